//! Small state files beside the cache, which a restart reads.
//!
//! Called by `clock`, `tls::verified_hosts` and `chunk_tables` in `hashcache-link`; `admin/token`
//! in the proxy opens the token file with it, and `history/file` its own file.
//!
//! Invariant: a file is replaced as a whole or not at all, and only the owner can read it, because
//! it shows which sites people have used. Cost: one file made, synced and renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// How a symbolic link as the last component of a path is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Allowed: an operator may have chosen a link.
    Followed,
    /// Refused: the proxy makes no links.
    Refused,
}

/// Opens a regular file for reading, and no other kind. Never blocks: opening a pipe would block
/// the start until a process writes to it.
pub fn open_regular(path: &Path, link: Link) -> io::Result<File> {
    let mut flags = OFlags::NONBLOCK;
    if link == Link::Refused {
        flags |= OFlags::NOFOLLOW;
    }
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    // Checked on the open file: the path may name another file by now.
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

/// Replaces the file at `path` by a file that contains `bytes`.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, |mut file| file.write_all(bytes))
}

/// As [`replace`], with content that is written in parts.
pub fn replace_with(path: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    // The suffix is appended to the whole name: replacing the extension could yield the name of
    // another file, even of the cache.
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    // A killed process may have left a file here; or the path is a link, which may point to a file
    // that is not ours.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)?;
    write(&file)?;
    file.sync_data()?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn nothing_but_a_regular_file_is_opened_and_no_pipe_is_waited_for() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let directory = tempfile::tempdir().unwrap();
        let [file, pipe, link] = ["file", "pipe", "link"].map(|it| directory.path().join(it));
        fs::write(&file, "text").unwrap();
        symlink(&file, &link).unwrap();
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let paths = [file, pipe, directory.path().to_owned(), link];
        std::thread::spawn(move || {
            for path in paths {
                let opened = [Link::Refused, Link::Followed].map(|it| open_regular(&path, it));
                tell.send(opened.map(|it| it.is_ok())).unwrap();
            }
        });
        for expected in [[true; 2], [false; 2], [false; 2], [false, true]] {
            // A wrong open would block for ever; a minute is enough to tell on any machine.
            let opened = told.recv_timeout(std::time::Duration::from_secs(60));
            assert_eq!(opened, Ok(expected));
        }
    }

    #[test]
    fn a_file_is_replaced_for_its_owner_alone_and_no_link_is_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache.clock");
        let others = directory.path().join("others");
        fs::write(&path, "old").unwrap();
        fs::write(&others, "theirs").unwrap();
        symlink(&others, directory.path().join("cache.clock.new")).unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read(&others).unwrap(), b"theirs");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
