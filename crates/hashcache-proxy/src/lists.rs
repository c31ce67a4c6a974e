//! The lists of `[[list]]` in memory, read from their files and kept up to date.
//!
//! Loaded by `server` at the start and at a reload, and refreshed by it once a minute. A request
//! asks only memory.
//!
//! Invariants: a list that cannot be read any more stays as it was, and is warned about once. Its
//! memory is set aside in the budget before it is filled; a list that does not fit is refused.
//! Cost: a file is read twice, first to count its names.

use std::fs;
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use hashcache::{Cache, Reservation};
use hashcache_http::Host;
use tracing::{info, warn};

use crate::access::{BadLines, HostHashes, ListSettings, NameSet, Reach, read_list};
use crate::state_file::{Link, open_regular};

/// All lists, in the order of the settings.
#[derive(Default)]
pub(crate) struct Lists(Box<[Arc<LiveList>]>);

/// A list, and what was read last.
struct LiveList {
    settings: ListSettings,
    loaded: ArcSwap<LoadedList>,
    /// The files as they were when they were read last, with success or without.
    tried: Mutex<Vec<Option<FileStamp>>>,
}

/// The names of a list, with their memory.
struct LoadedList {
    names: NameSet,
    _memory: Reservation,
}

/// What shows that a file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// Why a list could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// A file could not be read.
    #[error("cannot read {} of the list `{list}`", path.display())]
    File {
        /// The name of the list.
        list: String,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is not enough memory for its names.
    #[error("no memory for the list `{list}`: its {names} names take {} KiB", bytes >> 10)]
    Memory {
        /// The name of the list.
        list: String,
        /// How many entries it has.
        names: usize,
        /// What a set of them takes.
        bytes: u64,
    },
}

impl Lists {
    /// Loads the lists of `settings`. A list of `known` with the same settings is read again only
    /// if its files have changed, and stays as it was if that fails.
    ///
    /// # Errors
    /// A new list cannot be loaded.
    pub(crate) fn load(
        settings: &[ListSettings],
        cache: &Cache,
        known: &Self,
    ) -> Result<Self, ListError> {
        let lists = settings.iter().map(|settings| {
            let same = known.0.iter().find(|list| list.settings == *settings);
            match same {
                Some(same) => {
                    same.refresh(cache);
                    Ok(Arc::clone(same))
                }
                None => LiveList::load(settings, cache).map(Arc::new),
            }
        });
        lists.collect::<Result<_, _>>().map(Self)
    }

    /// Reads again what has changed.
    pub(crate) fn refresh(&self, cache: &Cache) {
        self.0.iter().for_each(|list| list.refresh(cache));
    }

    /// Whether the list with this number has a host.
    pub(crate) fn has(&self, list: usize, host: &HostHashes) -> bool {
        let list = self.0.get(list);
        list.is_some_and(|list| list.loaded.load().names.contains(host))
    }
}

impl LiveList {
    fn load(settings: &ListSettings, cache: &Cache) -> Result<Self, ListError> {
        let stamps = stamps(&settings.files);
        Ok(Self {
            loaded: ArcSwap::from_pointee(LoadedList::read(settings, cache)?),
            settings: settings.clone(),
            tried: Mutex::new(stamps),
        })
    }

    /// Reads the files again if they have changed since they were read last.
    fn refresh(&self, cache: &Cache) {
        let now = stamps(&self.settings.files);
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        if *tried == now {
            return;
        }
        *tried = now;
        match LoadedList::read(&self.settings, cache) {
            Ok(loaded) => {
                let (list, names) = (&self.settings.name, loaded.names.len());
                info!(list, names, "list read again");
                self.loaded.store(Arc::new(loaded));
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                warn!(%error, cause, "list not read again, the old one stays in effect");
            }
        }
    }
}

impl LoadedList {
    fn read(settings: &ListSettings, cache: &Cache) -> Result<Self, ListError> {
        let mut room = 0;
        for path in &settings.files {
            let bad = read(settings, path, |_, _| {
                room += 1;
                true
            })?;
            warn_of(&bad, settings, path);
        }
        let bytes = NameSet::bytes_for(room);
        let memory = cache.reserve(bytes).ok_or_else(|| ListError::Memory {
            list: settings.name.clone(),
            names: room,
            bytes,
        })?;
        let mut names = NameSet::with_room(room);
        for path in &settings.files {
            let mut fits = true;
            read(settings, path, |host, reach| {
                fits = names.insert(host, reach);
                fits
            })?;
            if !fits {
                let (list, path) = (settings.name.clone(), path.clone());
                let source = io::Error::other("it changed while it was read");
                return Err(ListError::File { list, path, source });
            }
        }
        Ok(Self {
            names,
            _memory: memory,
        })
    }
}

/// Reads one file of a list; `each` says whether to go on.
fn read(
    settings: &ListSettings,
    path: &Path,
    each: impl FnMut(&Host, Reach) -> bool,
) -> Result<BadLines, ListError> {
    let failed = |source| ListError::File {
        list: settings.name.clone(),
        path: path.to_owned(),
        source,
    };
    let file = open_regular(path, Link::Followed).map_err(failed)?;
    let file = BufReader::with_capacity(READ_BYTES, file);
    read_list(file, settings.format, each).map_err(failed)
}

fn warn_of(bad: &BadLines, settings: &ListSettings, path: &Path) {
    if bad.count == 0 {
        return;
    }
    let first: Vec<String> = bad.first.iter().map(u64::to_string).collect();
    warn!(
        list = settings.name,
        file = %path.display(),
        count = bad.count,
        first = first.join(", "),
        "lines of a list are no entries"
    );
}

/// `None`: there is no such file.
fn stamps(files: &[PathBuf]) -> Vec<Option<FileStamp>> {
    let stamp = |path: &PathBuf| {
        let file = fs::metadata(path).ok()?;
        Some(FileStamp {
            inode: file.ino(),
            bytes: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    };
    files.iter().map(stamp).collect()
}

/// Checks that the files of all lists can be opened, without reading them.
pub(crate) fn check(settings: &[ListSettings]) -> impl Iterator<Item = ListError> {
    let files = settings
        .iter()
        .flat_map(|list| list.files.iter().map(move |path| (list, path)));
    files.filter_map(|(list, path)| {
        let source = open_regular(path, Link::Followed).err()?;
        let (list, path) = (list.name.clone(), path.clone());
        Some(ListError::File { list, path, source })
    })
}

const READ_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use hashcache::Config;

    use super::*;
    use crate::access::ListFormat;

    fn cache(directory: &tempfile::TempDir) -> Cache {
        let config = Config {
            size_bytes: Some(32 << 20),
            memory_bytes: 16 << 20,
            ..Config::new(directory.path().join("c.img"))
        };
        Cache::open(config).unwrap()
    }

    fn has(lists: &Lists, host: &str) -> bool {
        lists.has(0, &HostHashes::of(&Host::parse(host).unwrap()))
    }

    fn settings(files: &[&PathBuf]) -> Vec<ListSettings> {
        vec![ListSettings {
            name: "ads".into(),
            files: files.iter().map(|path| (*path).clone()).collect(),
            format: ListFormat::Auto,
        }]
    }

    #[test]
    fn a_list_follows_its_files_and_outlives_them() {
        let directory = tempfile::tempdir().unwrap();
        let cache = cache(&directory);
        let (a, b) = (directory.path().join("a"), directory.path().join("b"));
        fs::write(&a, "a.example\n").unwrap();
        fs::write(&b, "0.0.0.0 b.example\n").unwrap();
        let settings = settings(&[&a, &b]);
        let lists = Lists::load(&settings, &cache, &Lists::default()).unwrap();
        assert!(has(&lists, "x.a.example") && has(&lists, "b.example"));
        assert!(
            !has(&lists, "x.b.example") && !lists.has(1, &HostHashes::of(&Host::V4([0; 4].into())))
        );
        fs::write(&b, "0.0.0.0 other.example\n").unwrap();
        lists.0[0].refresh(&cache);
        assert!(has(&lists, "other.example") && !has(&lists, "b.example"));
        fs::remove_file(&a).unwrap();
        lists.0[0].refresh(&cache);
        let lists = Lists::load(&settings, &cache, &lists).unwrap();
        assert!(has(&lists, "a.example") && has(&lists, "other.example"));
        let error = Lists::load(&settings, &cache, &Lists::default())
            .err()
            .unwrap();
        assert!(error.to_string().starts_with("cannot read "), "{error}");
        assert_eq!(check(&settings).count(), 1);
        cache.close();
    }

    #[test]
    fn a_list_that_does_not_fit_the_memory_is_refused_and_the_old_one_stays() {
        let directory = tempfile::tempdir().unwrap();
        let cache = cache(&directory);
        let path = directory.path().join("a");
        fs::write(&path, "a.example\n").unwrap();
        let settings = settings(&[&path]);
        let lists = Lists::load(&settings, &cache, &Lists::default()).unwrap();
        let many: String = (0..2_000_000).map(|n| format!("{n}.x\n")).collect();
        fs::write(&path, many).unwrap();
        lists.0[0].refresh(&cache);
        assert!(has(&lists, "a.example"));
        let error = Lists::load(&settings, &cache, &Lists::default())
            .err()
            .unwrap();
        let expected = "no memory for the list `ads`: its 2000000 names take 20833 KiB";
        assert_eq!(error.to_string(), expected);
        cache.close();
    }
}
