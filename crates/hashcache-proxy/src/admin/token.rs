//! The token of the admin listener, in a file that the operator names.
//!
//! Read by `access` for each request that needs it, so that a new token needs no restart, and by
//! `server::preflight`.
//!
//! Invariant: a token that other users of the machine could read or change is none.

use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::state_file::{Link, open_regular};

/// The token in the file at `path`; if there is no valid one, that is logged.
pub(super) fn token(path: &Path) -> Option<Vec<u8>> {
    match read_token(path) {
        Ok(token) => Some(token),
        Err(error) => {
            let path = path.display();
            tracing::warn!(%error, %path, "no valid token: what needs it is refused");
            None
        }
    }
}

/// The token in the file at `path`; an error if there is no valid one.
pub(crate) fn read_token(path: &Path) -> io::Result<Vec<u8>> {
    let file = open_regular(path, Link::Followed)?;
    let facts = file.metadata()?;
    // At the start this is an error that names the fix. Here the file has changed since then.
    if facts.mode() & OTHERS != 0 {
        return Err(io::Error::other("other users can read it or write to it"));
    }
    let mut token = Vec::new();
    file.take(TOKEN_MAX + 1).read_to_end(&mut token)?;
    if u64::try_from(token.len()).is_ok_and(|bytes| bytes > TOKEN_MAX) {
        return Err(io::Error::other("it has more than 4 KiB"));
    }
    let token = token.trim_ascii();
    if token.len() < TOKEN_MIN {
        return Err(io::Error::other("it has fewer than 16 bytes"));
    }
    Ok(token.to_vec())
}

/// Permissions that the token file must not have: only the owner and the group may read it.
const OTHERS: u32 = 0o027;

/// Compares in constant time.
pub(super) fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(differences) == 0 && one.len() == other.len()
}

/// Minimum length of a token, bytes: shorter ones can be guessed.
const TOKEN_MIN: usize = 16;
/// A longer file is not a token.
const TOKEN_MAX: u64 = 4 << 10;
