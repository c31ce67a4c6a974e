//! Why a cache could not be opened, and what to do about each reason.
//!
//! Called by every subcommand that opens a cache. The engine says what is wrong in bytes and
//! fields; here that is told in the words of the command line.

use std::path::Path;

use hashcache::OpenError;

use crate::fault::Fault;
use crate::units::show_size;

/// What to do when what is there cannot be used any more.
const START_ANEW: &str = "remove the file and a new one is made; nothing in a cache needs saving";

/// Hints are rounded up to this, since nobody wants to type a size to the byte.
const MIB: u64 = 1 << 20;

/// The fault of not opening `path`.
pub fn cannot_open(path: &Path, error: &OpenError) -> Fault {
    let (why, hint) = match error {
        OpenError::Device { source, .. } => (source.to_string(), None),
        OpenError::Foreign { .. } => (
            "not a HashCache store".to_owned(),
            Some("it was not changed; name another file, or move this one away".to_owned()),
        ),
        OpenError::Damaged { .. } => (
            "both superblocks are damaged".to_owned(),
            Some(START_ANEW.to_owned()),
        ),
        OpenError::Version { .. } => (error.to_string(), Some(START_ANEW.to_owned())),
        OpenError::Locked { .. } => (
            "in use by another process".to_owned(),
            Some("stop the other one, or give this one a `--cache` of its own".to_owned()),
        ),
        OpenError::TooSmall {
            size_bytes,
            needed_bytes,
        } => (
            format!("{} is too small for a cache", show_size(*size_bytes)),
            Some(format!(
                "the least is `--cache-size {}`",
                enough(*needed_bytes)
            )),
        ),
        OpenError::Geometry {
            field,
            found,
            asked,
        } => (
            format!("it was made with {field} {found}, not {asked}"),
            Some(format!("keep {field} {found}, or {START_ANEW}")),
        ),
        OpenError::Memory {
            memory_bytes,
            needed_bytes,
        } => (
            format!(
                "{} of memory are too few for its index",
                show_size(*memory_bytes)
            ),
            Some(format!(
                "the least is `--memory {}`; `--policy set` needs none",
                enough(*needed_bytes)
            )),
        ),
        OpenError::System { what, source } => {
            (format!("the system refused {what}: {source}"), None)
        }
        _ => (error.to_string(), None),
    };
    let fault = Fault::new(format!("cannot open {}: {why}", path.display()));
    match hint {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}

fn enough(bytes: u64) -> String {
    show_size(bytes.div_ceil(MIB).saturating_mul(MIB))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn told(error: &OpenError) -> (String, Option<String>) {
        let fault = cannot_open(Path::new("/c.img"), error);
        (fault.what, fault.hint)
    }

    #[test]
    fn the_path_is_named_once_and_first() {
        let path = || "/c.img".into();
        let gone = io::Error::from(io::ErrorKind::NotFound);
        for error in [
            OpenError::Device {
                path: path(),
                source: gone,
            },
            OpenError::Foreign { path: path() },
            OpenError::Damaged { path: path() },
            OpenError::Locked { path: path() },
            OpenError::Version {
                found: 3,
                supported: 2,
            },
        ] {
            let (what, _) = told(&error);
            assert!(what.starts_with("cannot open /c.img: "), "{what}");
            assert_eq!(what.matches("/c.img").count(), 1, "{what}");
        }
    }

    #[test]
    fn too_little_is_told_with_the_least_that_is_enough() {
        let needed_bytes = (5 << 20) + 1;
        let (what, hint) = told(&OpenError::TooSmall {
            size_bytes: 4096,
            needed_bytes,
        });
        assert_eq!(what, "cannot open /c.img: 4KiB is too small for a cache");
        assert_eq!(hint.as_deref(), Some("the least is `--cache-size 6MiB`"));
        let (_, hint) = told(&OpenError::Memory {
            memory_bytes: 1,
            needed_bytes,
        });
        assert!(hint.unwrap().starts_with("the least is `--memory 6MiB`"));
    }

    #[test]
    fn another_version_is_told_as_the_documents_have_it() {
        let (what, hint) = told(&OpenError::Version {
            found: 3,
            supported: 2,
        });
        assert_eq!(
            what,
            "cannot open /c.img: format version 3, this build reads 2"
        );
        assert!(hint.unwrap().contains("nothing in a cache needs saving"));
    }
}
