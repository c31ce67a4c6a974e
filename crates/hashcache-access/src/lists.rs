//! The lists from `[[list]]` in memory, read from files and kept up to date.
//!
//! `server` in the proxy loads them at the start and at a reload, and refreshes them once a minute.
//! A request only reads memory.
//!
//! Invariants: if a list becomes unreadable, or a file looks like a broken download, the old list
//! stays in effect. Each cause is logged once, and again at each reload. The memory for a list is
//! reserved in the budget before the list is filled; a list that does not fit is refused.
//! Cost: a file is read twice, first to count the names.

use std::fs;
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use hashcache::{Cache, Reservation};
use hashcache_base::state_file::{Link, open_regular};
use hashcache_http::{Host, UnixTime};
use tracing::{info, warn};

use crate::{BadLines, HostHashes, ListSettings, NameSet, Reach, read_list};

/// All lists, in the order of the settings.
#[derive(Default)]
pub struct Lists(Box<[Arc<LiveList>]>);

/// A list, and the last attempt to read it.
struct LiveList {
    settings: ListSettings,
    loaded: ArcSwap<LoadedList>,
    tried: Mutex<Tried>,
}

/// The last attempt to read a list.
struct Tried {
    /// The state of the files just before the attempt.
    stamps: Vec<Option<FileStamp>>,
    /// The error, if the attempt failed.
    error: Option<String>,
}

/// Why the files of a list are checked for changes.
#[derive(Clone, Copy, Debug)]
pub enum Look {
    /// The operator reloads the settings: a list that failed before is tried again.
    Reload,
    /// A minute has passed. Files that were written just before this time are left to the next
    /// check: a program may still be writing them.
    Minute(UnixTime),
}

/// The names in a list, with the reserved memory.
struct LoadedList {
    names: NameSet,
    /// The counts for each file, in the order of the settings.
    files: Box<[FileCounts]>,
    _memory: Reservation,
}

/// The number of entries and bad lines in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileCounts {
    entries: usize,
    /// Lines that are no entries.
    bad_lines: u64,
}

impl FileCounts {
    /// Returns true if the file looks like a broken download: an empty file, or an HTML page.
    fn are_doubtful(self) -> bool {
        self.entries == 0 || self.bad_lines > self.entries as u64
    }

    /// The file at `path` with these counts, if they are doubtful.
    fn doubtful<'a>(self, list: &'a ListSettings, path: &'a Path) -> Option<DoubtfulFile<'a>> {
        self.are_doubtful().then(|| DoubtfulFile {
            list: &list.name,
            path,
            entries: self.entries,
            bad_lines: self.bad_lines,
        })
    }

    /// Returns true if the file looks like a broken download: it is doubtful now but was not with
    /// the counts `before`, or more than nine tenths of the entries are missing.
    fn are_broken_after(self, before: Self) -> bool {
        let is_doubtful = self.are_doubtful() && !before.are_doubtful();
        is_doubtful || self.entries.saturating_mul(SHRINK_MAX) < before.entries
    }
}

/// A list file that looks like a broken download.
pub struct DoubtfulFile<'a> {
    /// The name of the list.
    pub list: &'a str,
    /// The file.
    pub path: &'a Path,
    /// Entries in the file.
    pub entries: usize,
    /// Lines that are no entries.
    pub bad_lines: u64,
}

/// File metadata that differs after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    /// The change time of the file (ctime), which changes with the permissions too and cannot be
    /// set back.
    changed: (i64, i64),
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
    /// There is not enough memory for the names.
    #[error("no memory for the list `{list}`: its {names} names take {} KiB", bytes >> 10)]
    Memory {
        /// The name of the list.
        list: String,
        /// Number of entries.
        names: usize,
        /// Memory that a set with these names needs.
        bytes: u64,
    },
    /// A list file that was good looks like a broken download.
    #[error(
        "{} of the list `{list}` seems broken: it has {entries} entries and {bad_lines} invalid \
         lines; before, it had {before} entries",
        path.display()
    )]
    Broken {
        /// The name of the list.
        list: String,
        /// The file.
        path: PathBuf,
        /// Number of entries now.
        entries: usize,
        /// Number of entries before.
        before: usize,
        /// Number of invalid lines.
        bad_lines: u64,
    },
}

impl Lists {
    /// Loads the lists in `settings`. A list in `known` with the same settings is read again only
    /// if the files have changed or could not be read, and stays as it was if that fails.
    ///
    /// # Errors
    /// A new list cannot be loaded.
    pub fn load(settings: &[ListSettings], cache: &Cache, known: &Self) -> Result<Self, ListError> {
        let lists = settings.iter().map(|settings| {
            let same = known.0.iter().find(|list| list.settings == *settings);
            match same {
                Some(same) => {
                    same.refresh(cache, Look::Reload);
                    Ok(Arc::clone(same))
                }
                None => LiveList::load(settings, cache).map(Arc::new),
            }
        });
        lists.collect::<Result<_, _>>().map(Self)
    }

    /// Reads changed lists again.
    pub fn refresh(&self, cache: &Cache, look: Look) {
        self.0.iter().for_each(|list| list.refresh(cache, look));
    }

    /// Returns true if the list with this number contains the host.
    pub fn has(&self, list: usize, host: &HostHashes) -> bool {
        let list = self.0.get(list);
        list.is_some_and(|list| list.loaded.load().names.contains(host))
    }
}

impl LiveList {
    fn load(settings: &ListSettings, cache: &Cache) -> Result<Self, ListError> {
        let stamps = stamps(&settings.files);
        let loaded = LoadedList::read(settings, cache, None)?;
        // There is no older list to keep.
        let files = settings.files.iter().zip(&loaded.files);
        for file in files.filter_map(|(path, counts)| counts.doubtful(settings, path)) {
            let (list, path) = (file.list, file.path.display());
            let (entries, bad_lines) = (file.entries, file.bad_lines);
            warn!(list, file = %path, entries, bad_lines, "a file of a list looks broken");
        }
        Ok(Self {
            loaded: ArcSwap::from_pointee(loaded),
            settings: settings.clone(),
            tried: Mutex::new(Tried {
                stamps,
                error: None,
            }),
        })
    }

    /// Reads the files again if they have changed since the last attempt.
    fn refresh(&self, cache: &Cache, look: Look) {
        let now = stamps(&self.settings.files);
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = match look {
            Look::Reload => tried.error.is_some() || tried.stamps != now,
            Look::Minute(time) => tried.stamps != now && are_settled(&now, time),
        };
        if !is_due {
            return;
        }
        tried.stamps = now;
        let old = self.loaded.load();
        match LoadedList::read(&self.settings, cache, Some(&old)) {
            Ok(loaded) => {
                let (list, names) = (&self.settings.name, loaded.names.count());
                info!(list, names, "list read again");
                self.loaded.store(Arc::new(loaded));
                tried.error = None;
            }
            Err(error) => tried.failed(&error, look),
        }
    }
}

impl Tried {
    /// Logs an error, unless the previous attempt failed with the same error. An operator that
    /// reloads sees it again.
    fn failed(&mut self, error: &ListError, look: Look) {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        let text = format!("{error}: {}", cause.as_deref().unwrap_or_default());
        if matches!(look, Look::Reload) || self.error.as_ref() != Some(&text) {
            warn!(%error, cause, "list not read again, the old one stays in effect");
        }
        self.error = Some(text);
    }
}

impl LoadedList {
    /// Reads the files of a list. `old`: the list as it was before.
    ///
    /// # Errors
    /// Also if a file was good in `old` and now looks like a broken download: a list that denies
    /// would no longer deny that file's hosts.
    fn read(settings: &ListSettings, cache: &Cache, old: Option<&Self>) -> Result<Self, ListError> {
        let mut files = Vec::with_capacity(settings.files.len());
        for (n, path) in settings.files.iter().enumerate() {
            let (now, bad) = count(settings, path)?;
            warn_of(&bad, settings, path);
            if let Some(before) = old.map(|old| old.files[n])
                && now.are_broken_after(before)
            {
                return Err(ListError::Broken {
                    list: settings.name.clone(),
                    path: path.clone(),
                    entries: now.entries,
                    before: before.entries,
                    bad_lines: now.bad_lines,
                });
            }
            files.push(now);
        }
        let room = files.iter().map(|file| file.entries).sum();
        let bytes = NameSet::bytes_for(room);
        let memory = cache.reserve(bytes).ok_or_else(|| ListError::Memory {
            list: settings.name.clone(),
            names: room,
            bytes,
        })?;
        let mut names = NameSet::with_room(room);
        for (path, counts) in settings.files.iter().zip(&files) {
            let mut left = counts.entries;
            let mut is_longer = false;
            read(settings, path, |host, reach| {
                is_longer = left == 0 || !names.insert(host, reach);
                left = left.saturating_sub(1);
                !is_longer
            })?;
            if is_longer || left > 0 {
                let (list, path) = (settings.name.clone(), path.clone());
                let source = io::Error::other("it changed while it was read");
                return Err(ListError::File { list, path, source });
            }
        }
        Ok(Self {
            names,
            files: files.into(),
            _memory: memory,
        })
    }
}

/// All list files that look like broken downloads. Reads all files, and skips files that cannot be
/// read.
pub fn doubtful(settings: &[ListSettings]) -> impl Iterator<Item = DoubtfulFile<'_>> {
    files_of(settings).filter_map(|(list, path)| {
        let (counts, _) = count(list, path).ok()?;
        counts.doubtful(list, path)
    })
}

fn files_of(settings: &[ListSettings]) -> impl Iterator<Item = (&ListSettings, &PathBuf)> {
    settings
        .iter()
        .flat_map(|list| list.files.iter().map(move |path| (list, path)))
}

/// Reads a file of a list to count entries and bad lines.
fn count(settings: &ListSettings, path: &Path) -> Result<(FileCounts, BadLines), ListError> {
    let mut entries = 0;
    let bad = read(settings, path, |_, _| {
        entries += 1;
        true
    })?;
    let bad_lines = bad.count;
    Ok((FileCounts { entries, bad_lines }, bad))
}

/// Reads a file of a list; `each` returns false to stop.
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

/// The metadata of each file; `None`: there is no such file.
fn stamps(files: &[PathBuf]) -> Vec<Option<FileStamp>> {
    let stamp = |path: &PathBuf| {
        let file = fs::metadata(path).ok()?;
        Some(FileStamp {
            device: file.dev(),
            inode: file.ino(),
            bytes: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    };
    files.iter().map(stamp).collect()
}

/// Returns true if no file was written just before `now`. A time in the future proves nothing.
fn are_settled(files: &[Option<FileStamp>], now: UnixTime) -> bool {
    let now = i64::try_from(now.0).unwrap_or(i64::MAX);
    let is_settled = |file: &FileStamp| {
        let age = now.saturating_sub(file.modified.0);
        !(0..SETTLE_SECONDS).contains(&age)
    };
    files.iter().flatten().all(is_settled)
}

/// Checks that the files of all lists can be opened, without reading them.
pub fn check(settings: &[ListSettings]) -> impl Iterator<Item = ListError> {
    files_of(settings).filter_map(|(list, path)| {
        let source = open_regular(path, Link::Followed).err()?;
        let (list, path) = (list.name.clone(), path.clone());
        Some(ListError::File { list, path, source })
    })
}

const READ_BYTES: usize = 64 << 10;
/// A file with fewer than 1/`SHRINK_MAX` of its previous entries looks broken.
const SHRINK_MAX: usize = 10;
/// A file is read only if it was not written for this long.
const SETTLE_SECONDS: i64 = 5;

#[cfg(test)]
mod tests {
    use hashcache::Config;

    use super::*;
    use crate::ListFormat;

    fn cache(directory: &tempfile::TempDir) -> Cache {
        let config = Config {
            size_bytes: Some(32 << 20),
            memory_bytes: 16 << 20,
            ..Config::new(directory.path().join("c.img"))
        };
        Cache::open(config).unwrap()
    }

    fn has(lists: &Lists, host: &str) -> bool {
        lists.has(0, &HostHashes::of_name(host))
    }

    fn settings(files: &[&PathBuf]) -> Vec<ListSettings> {
        vec![ListSettings {
            name: "ads".into(),
            files: files.iter().map(|path| (*path).clone()).collect(),
            format: ListFormat::Auto,
        }]
    }

    /// A list that was loaded from one file.
    struct OneFile {
        cache: Cache,
        path: PathBuf,
        settings: Vec<ListSettings>,
        lists: Lists,
        _directory: tempfile::TempDir,
    }

    fn one_file(content: &str) -> OneFile {
        let directory = tempfile::tempdir().unwrap();
        let cache = cache(&directory);
        let path = directory.path().join("a");
        fs::write(&path, content).unwrap();
        let settings = settings(&[&path]);
        let lists = Lists::load(&settings, &cache, &Lists::default()).unwrap();
        OneFile {
            cache,
            path,
            settings,
            lists,
            _directory: directory,
        }
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
        assert!(!has(&lists, "x.b.example") && !lists.has(1, &HostHashes::of_name("a.example")));
        fs::write(&b, "0.0.0.0 other.example\n").unwrap();
        lists.refresh(&cache, Look::Reload);
        assert!(has(&lists, "other.example") && !has(&lists, "b.example"));
        fs::remove_file(&a).unwrap();
        lists.refresh(&cache, Look::Reload);
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
        let one = one_file("a.example\n");
        let OneFile {
            cache,
            path,
            settings,
            lists,
            ..
        } = one;
        let many: String = (0..2_000_000).map(|n| format!("{n}.x\n")).collect();
        fs::write(&path, many).unwrap();
        lists.refresh(&cache, Look::Reload);
        assert!(has(&lists, "a.example"));
        let error = Lists::load(&settings, &cache, &Lists::default())
            .err()
            .unwrap();
        let expected = "no memory for the list `ads`: its 2000000 names take 20833 KiB";
        assert_eq!(error.to_string(), expected);
        cache.close();
    }

    #[test]
    fn a_broken_download_does_not_take_the_place_of_a_good_list() {
        let one = one_file("a.example\nb.example\n");
        let OneFile {
            cache, path, lists, ..
        } = one;
        let page = "<html>\n<p>no such page\nexample\n</html>\n";
        for broken in ["", "# nothing\n", page] {
            fs::write(&path, broken).unwrap();
            lists.refresh(&cache, Look::Reload);
            assert!(has(&lists, "a.example"), "{broken}");
        }
        fs::write(&path, "c.example\n<p>\n").unwrap();
        lists.refresh(&cache, Look::Reload);
        assert!(has(&lists, "c.example") && !has(&lists, "a.example"));
        cache.close();
    }

    #[test]
    fn each_file_of_a_list_is_judged_by_itself() {
        let directory = tempfile::tempdir().unwrap();
        let cache = cache(&directory);
        let (a, b) = (directory.path().join("a"), directory.path().join("b"));
        let lines = |names: std::ops::Range<u32>| -> String {
            names.map(|n| format!("n{n}.example\n")).collect()
        };
        fs::write(&a, lines(0..100)).unwrap();
        fs::write(&b, lines(200..1000)).unwrap();
        let settings = settings(&[&a, &b]);
        let lists = Lists::load(&settings, &cache, &Lists::default()).unwrap();
        let page = "<html>\n<p>no such page\nexample\n</html>\n".to_owned();
        for broken in [String::new(), page, lines(0..9)] {
            fs::write(&a, &broken).unwrap();
            lists.refresh(&cache, Look::Reload);
            assert!(has(&lists, "n99.example"), "{broken}");
            let error = lists.0[0].tried.lock().unwrap().error.clone().unwrap();
            let said = format!("{} of the list `ads` seems broken", a.display());
            assert!(error.starts_with(&said), "{error}");
        }
        fs::write(&a, lines(0..10)).unwrap();
        lists.refresh(&cache, Look::Reload);
        assert!(has(&lists, "n9.example") && !has(&lists, "n99.example"));
        assert!(lists.0[0].tried.lock().unwrap().error.is_none());
        cache.close();
    }

    #[test]
    fn a_file_without_entries_or_with_more_wrong_lines_is_doubtful_at_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let files = [
            file("good", "a.example\n<p>\n"),
            file("empty", "# nothing\n"),
            file("page", "<html>\n<p>\nexample\n"),
            directory.path().join("none"),
        ];
        let settings = settings(&files.each_ref());
        let found = doubtful(&settings).map(|file| (file.path, file.entries, file.bad_lines));
        let expected = [(&*files[1], 0, 0), (&*files[2], 1, 2)];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_list_that_was_mostly_bad_lines_from_the_start_follows_its_file() {
        let one = one_file("||a^\n||b^\na.example\n");
        let OneFile {
            cache, path, lists, ..
        } = one;
        fs::write(&path, "||a^\n||b^\nb.example\n").unwrap();
        lists.refresh(&cache, Look::Reload);
        assert!(has(&lists, "b.example"));
        cache.close();
    }

    #[test]
    fn a_file_that_was_just_written_is_left_to_the_next_look() {
        let one = one_file("a.example\n");
        let OneFile {
            cache, path, lists, ..
        } = one;
        fs::write(&path, "other.example\n").unwrap();
        let written = u64::try_from(fs::metadata(&path).unwrap().mtime()).unwrap();
        let after = |seconds| Look::Minute(UnixTime(written + seconds));
        lists.refresh(&cache, after(1));
        assert!(has(&lists, "a.example"));
        lists.refresh(&cache, after(60));
        assert!(has(&lists, "other.example"));
        // A file of the future is read at once: it may never become old.
        fs::write(&path, "third.example\n").unwrap();
        lists.refresh(&cache, Look::Minute(UnixTime(written - 60)));
        assert!(has(&lists, "third.example"));
        cache.close();
    }

    #[test]
    fn a_reload_tries_again_what_failed_although_the_files_are_the_same() {
        let one = one_file("a.example\n");
        let OneFile {
            cache, path, lists, ..
        } = one;
        let many: String = (0..500_000).map(|n| format!("{n}.x\n")).collect();
        fs::write(&path, many).unwrap();
        // Others hold the memory.
        let held: Vec<_> = std::iter::from_fn(|| cache.reserve(256 << 10)).collect();
        lists.refresh(&cache, Look::Reload);
        assert!(has(&lists, "a.example"));
        drop(held);
        lists.refresh(&cache, Look::Minute(UnixTime(u64::MAX)));
        assert!(has(&lists, "a.example"));
        lists.refresh(&cache, Look::Reload);
        assert!(has(&lists, "1.x"));
        cache.close();
    }

    #[test]
    fn new_permissions_are_a_change() {
        use std::os::unix::fs::PermissionsExt as _;

        let file = tempfile::NamedTempFile::new().unwrap();
        let path = [file.path().to_owned()];
        let before = stamps(&path);
        let changed = fs::metadata(file.path()).unwrap().ctime_nsec();
        let mode = |mode| fs::set_permissions(file.path(), fs::Permissions::from_mode(mode));
        // The system's clock for files may be coarse.
        for n in 0.. {
            mode(0o600 | (n & 1)).unwrap();
            if fs::metadata(file.path()).unwrap().ctime_nsec() != changed {
                break;
            }
        }
        assert_ne!(stamps(&path), before);
    }
}
