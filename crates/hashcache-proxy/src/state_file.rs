//! Small files beside the cache, which hold what a restart should know.
//!
//! Called by `clock` and `intercept/verified`; `admin/purge` opens the token's file by it too.
//!
//! Invariant: such a file is replaced as a whole or not at all, and none but its owner reads it:
//! where people have been is nobody else's business. Cost: a file made, synced and renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Whether the last part of a path may be a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// An operator may have named one.
    Followed,
    /// We make none.
    Refused,
}

/// Opens a regular file for reading, and nothing else. It never waits: opening a pipe would, until
/// somebody writes to it, and a start would hang.
pub(crate) fn open_regular(path: &Path, link: Link) -> io::Result<File> {
    let mut flags = OFlags::NONBLOCK;
    if link == Link::Refused {
        flags |= OFlags::NOFOLLOW;
    }
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    // Of the open file: what lies at the path may be another one by now.
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a regular file")),
    }
}

/// Puts `bytes` in the place of the file at `path`.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // The whole name stays in front: with another ending it could be some other file's, the cache's
    // even.
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    // What a kill left of it here; or a link, which would lead to a file that is not ours.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)?;
    file.write_all(bytes)?;
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
            // It would wait for ever; a minute is that on any machine.
            let opened = told.recv_timeout(std::time::Duration::from_mins(1));
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
