//! The users in all files, with their password hashes.
//!
//! Read at the start and at a reload.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hashcache::{Cache, Reservation};
use hashcache_base::state_file::{Link, open_regular};

use super::htpasswd::{BadEntry, read_entries};

/// The users in all files, with their password hashes.
pub struct UserHashes {
    hashes: HashMap<Box<str>, Box<str>>,
    /// A hash for unknown names, with the most common cost.
    decoy: Option<Box<str>>,
    _memory: Reservation,
}

/// Why the users in a file could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsersError {
    /// The file could not be read.
    #[error("cannot read users from {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A line is no entry.
    #[error("{}:{line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The fault.
        what: &'static str,
    },
    /// There is not enough memory for the users.
    #[error("no memory for {users} users")]
    Memory {
        /// Number of users.
        users: usize,
    },
}

impl UserHashes {
    /// Reads the users in `files`; if a name occurs twice, the first entry counts.
    ///
    /// Users with hashes from other programs are skipped: warnings of the proxy name them.
    ///
    /// # Errors
    /// A file cannot be read, has a line that is no entry (a user that is skipped without an error
    /// would be refused for no visible reason), or has only hashes from other programs.
    pub fn load(files: &[PathBuf], cache: &Cache) -> Result<Self, UsersError> {
        let (mut hashes, mut foreign) = (HashMap::new(), HashSet::<Box<str>>::new());
        // By cost: the number of hashes, and an example.
        let mut costs = BTreeMap::<u32, (usize, Box<str>)>::new();
        for path in files {
            let text = read_file(path)?;
            check(path, &text)?;
            for entry in read_entries(&text) {
                let entry = match entry {
                    Ok(entry) if foreign.contains(entry.user) => continue,
                    Ok(entry) => entry,
                    Err(bad) => {
                        let name = bad.foreign.filter(|it| !hashes.contains_key(*it));
                        foreign.extend(name.map(Box::from));
                        continue;
                    }
                };
                let hash: Box<str> = entry.hash.into();
                costs
                    .entry(entry.cost)
                    .or_insert_with(|| (0, hash.clone()))
                    .0 += 1;
                hashes.entry(entry.user.into()).or_insert(hash);
            }
        }
        let commonest = costs.into_values().max_by_key(|(count, _)| *count);
        let users = hashes.len();
        let memory = cache.reserve(users as u64 * ENTRY_BYTES);
        Ok(Self {
            hashes,
            decoy: commonest.map(|(_, hash)| hash),
            _memory: memory.ok_or(UsersError::Memory { users })?,
        })
    }

    /// Number of users.
    pub fn count(&self) -> usize {
        self.hashes.len()
    }

    /// Returns true if there is a user with this name.
    pub fn has(&self, user: &str) -> bool {
        self.hashes.contains_key(user)
    }

    /// The hash for checking a password of `user`, and true if the user exists: an unknown name
    /// must take as long as a known name. `None`: there are no users.
    pub fn hash_for(&self, user: &str) -> Option<(&str, bool)> {
        match self.hashes.get(user) {
            Some(hash) => Some((hash, true)),
            None => Some((self.decoy.as_deref()?, false)),
        }
    }
}

/// The users in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileUsers {
    /// Users that can log in, with the costs of their hashes.
    pub users: Vec<(Box<str>, u32)>,
    /// Users with another program's hash, which cannot log in.
    pub foreign: Vec<Box<str>>,
}

/// Checks that every line in a file is an entry, or has another program's hash.
///
/// # Errors
/// The file cannot be read, has another line, or has only hashes from other programs.
pub fn users_of(path: &Path) -> Result<FileUsers, UsersError> {
    let text = read_file(path)?;
    check(path, &text)?;
    let mut found = FileUsers::default();
    for entry in read_entries(&text) {
        match entry {
            Ok(entry) => found.users.push((entry.user.into(), entry.cost)),
            Err(bad) => found.foreign.extend(bad.foreign.map(Box::from)),
        }
    }
    Ok(found)
}

/// Checks the lines in a file.
fn check(path: &Path, text: &str) -> Result<(), UsersError> {
    let (mut has_users, mut first_foreign) = (false, None);
    for entry in read_entries(text) {
        match entry {
            Ok(_) => has_users = true,
            Err(bad) if bad.foreign.is_some() => drop(first_foreign.get_or_insert(bad)),
            Err(bad) => return Err(bad_line(path, bad)),
        }
    }
    match first_foreign.filter(|_| !has_users) {
        Some(bad) => Err(bad_line(path, bad)),
        None => Ok(()),
    }
}

fn read_file(path: &Path) -> Result<String, UsersError> {
    let failed = |source| UsersError::File {
        path: path.to_owned(),
        source,
    };
    let file = open_regular(path, Link::Followed).map_err(failed)?;
    let mut text = String::new();
    let read = file.take(FILE_MAX + 1).read_to_string(&mut text);
    if read.map_err(failed)? as u64 > FILE_MAX {
        return Err(failed(io::Error::other("longer than 16 MiB")));
    }
    Ok(text)
}

fn bad_line(path: &Path, BadEntry { line, what, .. }: BadEntry<'_>) -> UsersError {
    UsersError::Line {
        path: path.to_owned(),
        line,
        what,
    }
}

const FILE_MAX: u64 = 16 << 20;
/// A name, a hash of 60 bytes, and their place in a map; and the result of a check with the places
/// in the list and the map of results.
const ENTRY_BYTES: u64 = 192 + 96;

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "$2y$05$bvIG6Nmid91Mu9RcmmWZfO5HJIMCT8riNW0hEp8f6/FuA2/mHZFpe";

    #[test]
    fn a_name_that_is_no_user_costs_what_most_users_cost() {
        let directory = tempfile::tempdir().unwrap();
        let config = hashcache::Config {
            size_bytes: Some(32 << 20),
            memory_bytes: 16 << 20,
            ..hashcache::Config::new(directory.path().join("c.img"))
        };
        let cache = Cache::open(config).unwrap();
        let path = directory.path().join("users");
        let costly = HASH.replace("$05$", "$12$");
        let text = format!("a:{HASH}\nb:{costly}\nc:{costly}\nd:{HASH}\ne:{costly}\n");
        std::fs::write(&path, text).unwrap();
        let users = UserHashes::load(&[path], &cache).unwrap();
        assert_eq!(users.hash_for("nobody"), Some((&*costly, false)));
        assert_eq!(users.hash_for("a"), Some((HASH, true)));
        cache.close();
    }

    #[test]
    fn a_hash_of_another_program_locks_out_its_user_only() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!("old:$apr1$x$y\nanna:{HASH}\nold:{HASH}\n");
        std::fs::write(file.path(), text).unwrap();
        let found = users_of(file.path()).unwrap();
        let names: Vec<&str> = found.users.iter().map(|(name, _)| &**name).collect();
        assert_eq!(
            (&names[..], &*found.foreign[0]),
            (&["anna", "old"][..], "old")
        );
        let directory = tempfile::tempdir().unwrap();
        let config = hashcache::Config {
            size_bytes: Some(32 << 20),
            memory_bytes: 16 << 20,
            ..hashcache::Config::new(directory.path().join("c.img"))
        };
        let cache = Cache::open(config).unwrap();
        let users = UserHashes::load(&[file.path().to_owned()], &cache).unwrap();
        // Of a name that is there twice, the first entry counts.
        assert!(users.has("anna") && !users.has("old"));
        cache.close();
        std::fs::write(file.path(), "old:$apr1$x$y\n").unwrap();
        assert!(users_of(file.path()).is_err());
    }

    #[test]
    fn a_line_that_is_no_entry_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("# staff\n\nanna:{HASH}\nbert:x\n")).unwrap();
        let error = users_of(file.path()).err().unwrap().to_string();
        assert!(error.contains(":4: the hash is not bcrypt"), "{error}");
        assert!(users_of(Path::new("/nonexistent")).is_err());
        assert!(users_of(Path::new("/")).is_err());
    }
}
