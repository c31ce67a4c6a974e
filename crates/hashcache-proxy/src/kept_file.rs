//! Small files beside the cache, which hold what a restart should know.
//!
//! Called by `clock` and `intercept/verified`.
//!
//! Invariant: such a file is replaced as a whole or not at all, and none but its owner reads it:
//! where people have been is nobody else's business. Cost: a file made, synced and renamed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

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
