//! Faults for a cache that cannot be opened, with a remedy for each reason.
//!
//! Called by every subcommand that opens a cache. The engine reports bytes and fields; this module
//! turns them into a message with command-line flags.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use hashcache::{OpenError, Resize};
use rustix::io::Errno;

use hashcache_settings::fault::Fault;
use hashcache_settings::units::{brief_size, show_size, show_store_size};

/// The purpose of opening a cache; a fault's hint depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To serve objects; a cache file that does not exist is made.
    Serve,
    /// To read an existing cache.
    Look,
}

impl Purpose {
    fn hint_if_locked(self) -> &'static str {
        match self {
            Self::Serve => "stop that process, or use another cache file with `--cache PATH`",
            Self::Look => "stop the proxy first: this command needs a cache that is not in use",
        }
    }
}

/// Hint if the existing cache file cannot be used any more.
const START_ANEW: &str = "remove the file and start again: a cache holds only copies";
/// Hint if the named file cannot hold a cache.
const NAME_ANOTHER: &str = "give a file or a block device with `--cache PATH`";

/// Hints round sizes up to a multiple of this, so that an operator need not type a size to the
/// byte.
const MIB: u64 = 1 << 20;

/// The fault if `path` cannot be opened for `purpose`.
pub fn cannot_open(path: &Path, purpose: Purpose, error: &OpenError) -> Fault {
    let (why, hint) = match error {
        OpenError::Device { source, .. } => return system_refused(path, purpose, source),
        OpenError::Foreign { .. } if purpose == Purpose::Look && is_empty(path) => (
            "the file is empty: no cache was made in it".to_owned(),
            None,
        ),
        OpenError::Short {
            length,
            device_bytes,
            ..
        } => (
            format!(
                "the file was cut: {} bytes of {} are missing",
                device_bytes.saturating_sub(*length),
                show_store_size(*device_bytes)
            ),
            Some(START_ANEW.to_owned()),
        ),
        OpenError::Foreign { .. } => (
            "not a HashCache store".to_owned(),
            Some("the file was not changed; use another file, or move this one".to_owned()),
        ),
        OpenError::Damaged { .. } => (
            "both superblocks are damaged".to_owned(),
            Some(START_ANEW.to_owned()),
        ),
        OpenError::Version { .. } => (error.to_string(), Some(START_ANEW.to_owned())),
        OpenError::Locked { .. } => (
            "in use by another process".to_owned(),
            Some(purpose.hint_if_locked().to_owned()),
        ),
        OpenError::TooSmall {
            size_bytes,
            needed_bytes,
        } => (
            format!("{} is too small for a cache", show_size(*size_bytes)),
            Some(format!(
                "use at least `--cache-size {}`",
                enough(*needed_bytes)
            )),
        ),
        OpenError::TooLarge {
            size_bytes,
            most_bytes,
        } => (
            format!("{} is too large for one device", brief_size(*size_bytes)),
            Some(format!(
                "a device has at most {}; for a larger cache, give several files or devices with \
                 `--cache`",
                brief_size(*most_bytes)
            )),
        ),
        OpenError::Geometry {
            field,
            found,
            asked,
            ..
        } => {
            let (found, asked) = (in_units(found), in_units(asked));
            (
                format!("the cache was made with {field} {found}, not {asked}"),
                Some(format!(
                    "keep {field} {found}, use another file with `--cache PATH`, or {START_ANEW}"
                )),
            )
        }
        OpenError::Sectors {
            block_bytes,
            sector_bytes,
            ..
        } => {
            let sector = show_size(*sector_bytes as u64);
            (
                format!(
                    "the slots of this cache have {}, but this disk has sectors of {sector}",
                    show_size((*block_bytes).into()),
                ),
                Some(format!(
                    "copy the file to a disk with smaller sectors, or {START_ANEW}"
                )),
            )
        }
        OpenError::Size {
            size_bytes,
            asked_bytes,
            why,
            ..
        } => other_size(*size_bytes, *asked_bytes, *why),
        OpenError::Memory {
            memory_bytes,
            needed_bytes,
        } => (
            format!(
                "{} of memory is too little for the index and buffers",
                match show_size(*memory_bytes) {
                    size if size.ends_with('B') => size,
                    bytes => format!("{bytes} bytes"),
                }
            ),
            Some(format!(
                "use at least `--memory {}`; the policies `set` and `basic` need no index",
                enough(*needed_bytes)
            )),
        ),
        OpenError::NoVersionsLeft { .. } => (
            "it was opened so often that its version numbers have come to an end".to_owned(),
            Some(
                "`hashcache format` makes a new cache; nothing in a cache needs saving".to_owned(),
            ),
        ),
        OpenError::OtherStore { other, .. } => (
            format!("it belongs to another cache than {}", other.display()),
            Some(
                "give only files of one cache; to add this one to it, remove the file first"
                    .to_owned(),
            ),
        ),
        OpenError::Twins { other, .. } => (
            format!(
                "it and {} were added to the cache separately, each without the other",
                other.display()
            ),
            Some("remove one of the two files: it is then added again, empty".to_owned()),
        ),
        OpenError::System {
            what: what @ "io_uring",
            source,
        } => (
            format!("the system refused {what}: {source}"),
            Some("use `--io auto`: it falls back to threads".to_owned()),
        ),
        OpenError::System { what, source } => {
            (format!("the system refused {what}: {source}"), None)
        }
        _ => (error.to_string(), None),
    };
    fault(path, &why, hint)
}

/// Returns the reason why a cache cannot have another size, and the hint.
fn other_size(size_bytes: u64, asked_bytes: u64, why: Resize) -> (String, Option<String>) {
    let (size, asked) = (show_store_size(size_bytes), show_store_size(asked_bytes));
    let go_on = format!("keep `--cache-size {size}`");
    let (why, besides) = match why {
        Resize::Smaller => ("a cache cannot shrink".to_owned(), START_ANEW.to_owned()),
        Resize::Table => (
            "a cache with this policy cannot grow, only with `log` and `log-lru`".to_owned(),
            START_ANEW.to_owned(),
        ),
        Resize::Above { most_bytes } => (
            format!("the cache can grow to at most {}", brief_size(most_bytes)),
            START_ANEW.to_owned(),
        ),
        Resize::Between { least_bytes } => (
            "the difference is too small for another log segment".to_owned(),
            format!("use at least `--cache-size {}`", enough(least_bytes)),
        ),
        _ => (why.to_string(), START_ANEW.to_owned()),
    };
    (
        format!("the cache has {size}, not {asked}: {why}"),
        Some(format!("{go_on}, or {besides}")),
    )
}

/// The fault if `path` cannot be opened because the directory is missing. We do not make the
/// directory: it may be the mount point of a disk that is not mounted.
pub fn no_directory(path: &Path, directory: &Path) -> Fault {
    let why = format!("directory {} does not exist", directory.display());
    let hint = "make the directory or mount its disk, or use another file with `--cache PATH`";
    fault(path, &why, Some(hint.to_owned()))
}

/// Adds a hint to the operating system's error, which names only the failure.
fn system_refused(path: &Path, purpose: Purpose, source: &io::Error) -> Fault {
    let hint = match (source.kind(), purpose) {
        (ErrorKind::StorageFull | ErrorKind::QuotaExceeded, _) => {
            let free =
                free_bytes(path).map(|bytes| format!("{} are free there; ", brief_size(bytes)));
            Some(format!(
                "{}use a smaller `--cache-size SIZE`, or a file on another disk with `--cache \
                 PATH`",
                free.unwrap_or_default()
            ))
        }
        (ErrorKind::FileTooLarge, _) => Some(
            "the file system does not allow files of this size: use a smaller `--cache-size \
             SIZE`, or a file on another disk with `--cache PATH`"
                .to_owned(),
        ),
        (ErrorKind::PermissionDenied, _) => Some(
            "the user of this process must be able to read and write the file, or to create it"
                .to_owned(),
        ),
        (ErrorKind::ReadOnlyFilesystem, Purpose::Serve) => {
            Some("use a file on a writable disk with `--cache PATH`".to_owned())
        }
        (ErrorKind::IsADirectory, Purpose::Serve) => Some(format!(
            "use a file in that directory, such as `--cache {}`",
            path.join("cache.img").display()
        )),
        (ErrorKind::NotADirectory, Purpose::Serve) => Some(NAME_ANOTHER.to_owned()),
        (ErrorKind::NotFound, Purpose::Look) => {
            Some("`hashcache config show` prints the path of the cache".to_owned())
        }
        _ => None,
    };
    if source.raw_os_error() == Some(Errno::NODEV.raw_os_error()) {
        let why = "neither a file nor a block device";
        return fault(path, why, Some(NAME_ANOTHER.to_owned()));
    }
    fault(path, &source.to_string(), hint)
}

fn fault(path: &Path, why: &str, hint: Option<String>) -> Fault {
    let fault = Fault::new(format!("cannot open {}: {why}", path.display()));
    match hint {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}

fn is_empty(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == 0)
}

/// Bytes that this user may still write to the disk of `path`, even if the file does not exist.
fn free_bytes(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(directory(path)).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize) / MIB * MIB)
}

/// The directory that contains `path`.
pub fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => path.to_owned(),
    }
}

/// Formats a size for people; any other setting is returned unchanged.
fn in_units(value: &str) -> String {
    value.parse().map_or_else(|_| value.to_owned(), show_size)
}

fn enough(bytes: u64) -> String {
    show_size(bytes.div_ceil(MIB).saturating_mul(MIB))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(error: &OpenError) -> (String, Option<String>) {
        let fault = cannot_open(Path::new("/c.img"), Purpose::Serve, error);
        (fault.what, fault.hint)
    }

    #[test]
    fn the_path_is_named_once_and_first() {
        let path = || "/c.img".into();
        let gone = io::Error::from(ErrorKind::NotFound);
        for error in [
            OpenError::Device {
                path: path(),
                source: gone,
            },
            OpenError::Foreign { path: path() },
            OpenError::Damaged { path: path() },
            OpenError::Locked { path: path() },
            OpenError::Version {
                path: path(),
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
        assert_eq!(hint.as_deref(), Some("use at least `--cache-size 6MiB`"));
        let (_, hint) = told(&OpenError::Memory {
            memory_bytes: 1,
            needed_bytes,
        });
        assert!(hint.unwrap().starts_with("use at least `--memory 6MiB`"));
    }

    #[test]
    fn what_differs_is_told_in_units_with_every_way_out() {
        let geometry = |field, found: &str, asked: &str| {
            told(&OpenError::Geometry {
                path: "/c.img".into(),
                field,
                found: found.to_owned(),
                asked: asked.to_owned(),
            })
        };
        let (what, hint) = geometry("blocks of", "8192", "4096");
        assert_eq!(
            what,
            "cannot open /c.img: the cache was made with blocks of 8KiB, not 4KiB"
        );
        let hint = hint.unwrap();
        for way in ["blocks of 8KiB", "`--cache PATH`", "remove the file"] {
            assert!(hint.contains(way), "{hint}");
        }
        let (what, _) = geometry("policy", "log", "set");
        assert!(what.ends_with("made with policy log, not set"), "{what}");
    }

    #[test]
    fn another_size_is_told_with_why_not_and_what_to_do() {
        let other = |why| {
            told(&OpenError::Size {
                path: "/c.img".into(),
                size_bytes: 64 << 20,
                asked_bytes: 32 << 20,
                why,
            })
        };
        let (what, hint) = other(Resize::Smaller);
        assert_eq!(
            what,
            "cannot open /c.img: the cache has 64MiB, not 32MiB: a cache cannot shrink"
        );
        let hint = hint.unwrap();
        for way in ["`--cache-size 64MiB`", "remove the file"] {
            assert!(hint.contains(way), "{hint}");
        }
        assert!(other(Resize::Table).0.contains("`log-lru`"));
        let most_bytes = 2 << 40;
        assert!(
            other(Resize::Above { most_bytes })
                .0
                .ends_with("at most 2TiB")
        );
        let least_bytes = (66 << 20) + 1;
        let hint = other(Resize::Between { least_bytes }).1.unwrap();
        assert!(hint.contains("`--cache-size 67MiB`"), "{hint}");
    }

    /// Errors of the operating system that an operator can cause.
    const REFUSALS: [ErrorKind; 6] = [
        ErrorKind::StorageFull,
        ErrorKind::QuotaExceeded,
        ErrorKind::FileTooLarge,
        ErrorKind::PermissionDenied,
        ErrorKind::ReadOnlyFilesystem,
        ErrorKind::IsADirectory,
    ];

    fn refused(kind: ErrorKind) -> (String, Option<String>) {
        told(&OpenError::Device {
            path: "/c.img".into(),
            source: kind.into(),
        })
    }

    #[test]
    fn what_the_system_refuses_is_told_with_what_to_do() {
        for kind in REFUSALS {
            let (what, hint) = refused(kind);
            assert!(what.starts_with("cannot open /c.img: "), "{what}");
            assert!(hint.is_some(), "{kind:?}");
        }
    }

    #[test]
    fn a_full_disk_is_told_with_what_is_free_and_both_ways_out() {
        let hint = refused(ErrorKind::StorageFull).1.unwrap();
        assert!(hint.contains(" are free there; "), "{hint}");
        assert!(
            hint.contains("--cache-size") && hint.contains("--cache PATH"),
            "{hint}"
        );
    }

    #[test]
    fn who_only_looks_is_not_told_of_flags_that_only_the_proxy_has() {
        for kind in [ErrorKind::IsADirectory, ErrorKind::NotFound] {
            let error = OpenError::Device {
                path: "/c.img".into(),
                source: kind.into(),
            };
            let hint = cannot_open(Path::new("/c.img"), Purpose::Look, &error).hint;
            assert!(hint.is_none_or(|hint| !hint.contains("--")), "{kind:?}");
        }
        let locked = OpenError::Locked {
            path: "/c.img".into(),
        };
        let hint = cannot_open(Path::new("/c.img"), Purpose::Look, &locked).hint;
        assert!(!hint.unwrap().contains("--cache"));
    }

    #[test]
    fn a_name_alone_lies_in_the_working_directory() {
        assert_eq!(directory(Path::new("c.img")), Path::new("."));
        assert_eq!(directory(Path::new("/srv/c.img")), Path::new("/srv"));
        assert_eq!(directory(Path::new("/")), Path::new("/"));
    }

    #[test]
    fn another_version_is_told_as_the_documents_have_it() {
        let (what, hint) = told(&OpenError::Version {
            path: "/c.img".into(),
            found: 4,
            supported: 3,
        });
        assert_eq!(
            what,
            "cannot open /c.img: format version 4, this build reads 2 to 3"
        );
        assert!(hint.unwrap().contains("a cache holds only copies"));
    }
}
