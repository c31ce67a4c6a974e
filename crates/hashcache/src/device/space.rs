//! Checks if files of given sizes could be created or extended, without creating them.
//!
//! Called by `store` to check a configuration without opening anything.
//!
//! Invariant: nothing is written. Cost: a few system calls for each file.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};

/// A file and its planned size in bytes.
pub(crate) struct SpaceRequest {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

/// The requests that cannot be met, each with the error that the system would return. Files on the
/// same file system share the free space there, in `requests` order.
pub(crate) fn refusals(requests: &[SpaceRequest]) -> Vec<(PathBuf, io::Error)> {
    let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
    let mut refusals = Vec::new();
    for request in requests {
        if let Err(error) = check(request, &mut taken) {
            refusals.push((request.path.clone(), error));
        }
    }
    refusals
}

/// Adds the space that `request` needs to the space already `taken` on the file system.
fn check(request: &SpaceRequest, taken: &mut BTreeMap<u64, u64>) -> io::Result<()> {
    let (place, held) = match request.path.metadata() {
        Ok(file) => (request.path.as_path(), file.blocks() * 512),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = existing_ancestor(&request.path);
            // A file is created in this directory, or first a subdirectory.
            access(directory, Access::WRITE_OK | Access::EXEC_OK)?;
            (directory, 0)
        }
        Err(error) => return Err(error),
    };
    let needed = request.bytes.saturating_sub(held);
    let system = statvfs(place)?;
    // Some blocks are reserved for root.
    let free_blocks = if rustix::process::geteuid().is_root() {
        system.f_bfree
    } else {
        system.f_bavail
    };
    let taken = taken.entry(place.metadata()?.dev()).or_default();
    *taken = taken.saturating_add(needed);
    if *taken <= free_blocks.saturating_mul(system.f_frsize) || needed == 0 {
        Ok(())
    } else {
        Err(io::ErrorKind::StorageFull.into())
    }
}

/// The nearest directory above `path` that exists.
fn existing_ancestor(path: &Path) -> &Path {
    let above = path.ancestors().skip(1);
    let mut named = above.filter(|it| !it.as_os_str().is_empty());
    named.find(|it| it.exists()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(requests: &[(&Path, u64)]) -> Vec<io::ErrorKind> {
        let request = |(path, bytes): &(&Path, u64)| SpaceRequest {
            path: path.to_path_buf(),
            bytes: *bytes,
        };
        let requests: Vec<SpaceRequest> = requests.iter().map(request).collect();
        refusals(&requests).iter().map(|it| it.1.kind()).collect()
    }

    #[test]
    fn files_that_do_not_fit_together_are_refused_and_nothing_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let system = statvfs(directory.path()).unwrap();
        let free = system.f_bfree * system.f_frsize;
        let [a, b] = ["a.img", "new/b.img"].map(|name| directory.path().join(name));
        assert_eq!(refused(&[(&a, 1 << 20), (&b, 1 << 20)]), []);
        assert_eq!(refused(&[(&a, 2 * free)]), [io::ErrorKind::StorageFull]);
        let most = free / 4 * 3;
        assert_eq!(refused(&[(&a, most), (&b, most)]).len(), 1);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_place_below_a_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "text").unwrap();
        let below = file.join("cache.img");
        assert_eq!(refused(&[(&below, 1 << 20)]).len(), 1);
    }
}
