//! The token for the admin listener, which is needed to change anything, to get URLs, and to see
//! the dashboard from another machine.
//!
//! The token is in a file that the operator names; a request sends `Authorization: Bearer …` with
//! it. Called by `purge`, `offline`, `views` and, for the dashboard, `access`.
//!
//! Invariants: a page of a foreign site cannot send the token as Bearer: with Authorization,
//! browsers send a preflight request first, and the preflight is refused. A browser in which the
//! user has entered the token sends it automatically, so callers check `access::is_own_origin`
//! before they accept `Shown::BearerOrBasic`. The time of a refusal does not reveal the token.

use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hashcache_base::state_file::{Link, open_regular};
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::answer::error;

/// Ways in which a client may send the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// `Authorization: Bearer`, which no page on a foreign site can send.
    Bearer,
    /// Bearer, or the password of `Authorization: Basic`, for which a browser prompts the user.
    BearerOrBasic,
}

/// Token file path; `None`: nothing may be changed.
#[derive(Clone, Debug)]
pub(super) struct Token(Option<PathBuf>);

impl Token {
    /// Uses the token in this file. An invalid file is logged now, and not only at the first use.
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        let _told = path.as_deref().map(token);
        Self(path)
    }

    /// Returns true if the operator has configured a token file.
    pub(super) fn is_configured(&self) -> bool {
        self.0.is_some()
    }

    /// Refuses a request without the token.
    pub(super) fn refusal(&self, fields: &HeaderMap, shown: Shown) -> Option<Response<Bytes>> {
        let Some(path) = &self.0 else {
            return Some(error(
                StatusCode::FORBIDDEN,
                "no token is configured: start the proxy with --admin-token-file FILE",
            ));
        };
        let Some(token) = token(path) else {
            return Some(error(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the token file cannot be read, or has fewer than 16 bytes",
            ));
        };
        if given(fields, shown).is_some_and(|given| is_equal(&given, &token)) {
            return None;
        }
        let mut refusal = error(StatusCode::UNAUTHORIZED, "the token is missing or wrong");
        let challenge = HeaderValue::from_static(match shown {
            Shown::Bearer => "Bearer",
            Shown::BearerOrBasic => {
                "Basic realm=\"HashCache: any user name, the token as password\""
            }
        });
        refusal.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        Some(refusal)
    }
}

/// Returns the token in the request.
fn given(fields: &HeaderMap, shown: Shown) -> Option<Vec<u8>> {
    let value = fields.get(AUTHORIZATION)?.as_bytes();
    if let Some(token) = value.strip_prefix(b"Bearer ") {
        return Some(token.trim_ascii().to_vec());
    }
    let basic = value
        .strip_prefix(b"Basic ")
        .filter(|_| shown == Shown::BearerOrBasic)?;
    let decoded = STANDARD.decode(basic.trim_ascii()).ok()?;
    let password = decoded.iter().position(|byte| *byte == b':')? + 1;
    Some(decoded[password..].trim_ascii().to_vec())
}

/// Reads the token from the file at `path`; logs if it is not valid.
fn token(path: &Path) -> Option<Vec<u8>> {
    match read_token(path) {
        Ok(token) => Some(token),
        Err(error) => {
            let path = path.display();
            tracing::warn!(%error, %path, "no valid token: what needs it is refused");
            None
        }
    }
}

/// Reads the token from the file at `path`; an error if it is not valid.
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

/// Forbidden permissions on the token file: only the owner and the group may read it.
const OTHERS: u32 = 0o027;

/// Compares in constant time.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(differences) == 0 && one.len() == other.len()
}

/// Minimum token length, bytes: shorter tokens can be guessed.
const TOKEN_MIN: usize = 16;
/// Maximum file length, bytes: a longer file is not a token.
const TOKEN_MAX: u64 = 4 << 10;
