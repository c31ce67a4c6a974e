//! Files of users: one `name:hash` a line, as `htpasswd -B` of Apache writes them.
//!
//! Read at the start and at a reload. Only bcrypt is taken: the other hashes of `htpasswd` can be
//! tried a million times a second. Invariant: a hash whose check would take longer than
//! [`COST_MAX`] allows is no entry.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hashcache::{Cache, Reservation};

use super::basic::USER_MAX;
use crate::state_file::{Link, open_regular};

/// The users of all files, with the hashes of their passwords.
pub(crate) struct UserHashes {
    hashes: HashMap<Box<str>, Box<str>>,
    _memory: Reservation,
}

/// Why the users of a file could not be read.
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
        /// What is wrong with it.
        what: &'static str,
    },
    /// There is no memory for so many users.
    #[error("no memory for {users} users")]
    Memory {
        /// How many.
        users: usize,
    },
}

impl UserHashes {
    /// Reads the users of `files`; of a name that is there twice, the first entry counts.
    ///
    /// # Errors
    /// A file cannot be read, or has a line that is no entry: a user who is left out in silence
    /// would be refused for no visible reason.
    pub(crate) fn load(files: &[PathBuf], cache: &Cache) -> Result<Self, UsersError> {
        let mut hashes = HashMap::new();
        for path in files {
            for UserEntry { user, hash } in read_file(path)? {
                hashes.entry(user).or_insert(hash);
            }
        }
        let users = hashes.len();
        let memory = cache.reserve(users as u64 * ENTRY_BYTES);
        Ok(Self {
            hashes,
            _memory: memory.ok_or(UsersError::Memory { users })?,
        })
    }

    /// How many users there are.
    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// The hash to check a password of `user` with, and whether there is such a user: a name that
    /// there is not must take as long as one that there is. `None`: there are no users.
    pub(crate) fn hash_for(&self, user: &str) -> Option<(&str, bool)> {
        match self.hashes.get(user) {
            Some(hash) => Some((hash, true)),
            None => Some((self.hashes.values().next()?, false)),
        }
    }
}

/// A line of a file.
pub(crate) struct UserEntry {
    user: Box<str>,
    hash: Box<str>,
}

/// Reads the entries of one file.
pub(crate) fn read_file(path: &Path) -> Result<Vec<UserEntry>, UsersError> {
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
    // A byte order mark, which some editors write, would be part of the first name.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let entries = lines.map(|(number, line)| {
        read_entry(line).map_err(|what| UsersError::Line {
            path: path.to_owned(),
            line: number + 1,
            what,
        })
    });
    entries.collect()
}

fn read_entry(line: &str) -> Result<UserEntry, &'static str> {
    let (user, rest) = line
        .trim_end()
        .split_once(':')
        .ok_or("there is no `user:hash`")?;
    if user.is_empty() || user.len() > USER_MAX || user.chars().any(char::is_control) {
        return Err("the name of the user is empty or too long");
    }
    let hash = rest.split(':').next().unwrap_or(rest);
    match is_bcrypt(hash) {
        true => Ok(UserEntry {
            user: user.into(),
            hash: hash.into(),
        }),
        false => Err("the hash is not bcrypt with a cost from 4 to 14: use `htpasswd -B -C 10`"),
    }
}

/// `$2y$10$` with 22 characters of salt and 31 of hash.
fn is_bcrypt(hash: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"./".contains(&byte);
    let parts: Vec<&str> = hash.split('$').collect();
    let ["", "2a" | "2b" | "2x" | "2y", cost, text] = parts[..] else {
        return false;
    };
    let cost = cost.parse::<u32>().ok().filter(|_| cost.len() == 2);
    cost.is_some_and(|cost| (COST_MIN..=COST_MAX).contains(&cost))
        && text.len() == 53
        && text.bytes().all(is_letter)
}

const FILE_MAX: u64 = 16 << 20;
const COST_MIN: u32 = 4;
/// About a second of a slow processor.
const COST_MAX: u32 = 14;
/// A name, a hash of 60 bytes, and their place in a map; and the result of a check with its place
/// in the list and the map of results.
const ENTRY_BYTES: u64 = 192 + 96;

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "$2y$05$bvIG6Nmid91Mu9RcmmWZfO5HJIMCT8riNW0hEp8f6/FuA2/mHZFpe";

    #[test]
    fn entries_have_a_name_and_a_bcrypt_hash() {
        let entry = read_entry(&format!("anna:{HASH}")).unwrap();
        assert_eq!((&*entry.user, &*entry.hash), ("anna", HASH));
        assert!(read_entry(&format!("zo\u{eb}:{HASH}:more\r")).is_ok());
        for wrong in [
            "anna",
            "anna:",
            "anna:secret",
            "anna:$apr1$x$y",
            "anna:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",
            &format!(":{HASH}"),
            &format!("anna:{}", HASH.replace("$05$", "$15$")),
            &format!("anna:{}", HASH.replace("$05$", "$5$")),
            &format!("anna:{}", &HASH[..59]),
            &format!("anna:{HASH}x"),
            &format!("anna:{}", HASH.replace("2y", "2z")),
        ] {
            assert!(read_entry(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("\u{feff}anna:{HASH}\n")).unwrap();
        let entries = read_file(file.path()).unwrap();
        assert_eq!(&*entries[0].user, "anna");
    }

    #[test]
    fn a_line_that_is_no_entry_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("# staff\n\nanna:{HASH}\nbert:x\n")).unwrap();
        let error = read_file(file.path()).err().unwrap().to_string();
        assert!(error.contains(":4: the hash is not bcrypt"), "{error}");
        assert!(read_file(Path::new("/nonexistent")).is_err());
        assert!(read_file(Path::new("/")).is_err());
    }
}
