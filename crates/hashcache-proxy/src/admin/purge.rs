//! `POST /-/purge`: the only request to the admin listener that changes anything; and the token
//! that it needs.
//!
//! The body is JSON: `url`, `prefix`, `label` or `group` (with `origin`), each a string or a list
//! of strings, or `"everything": true`; and `"soft": true`. The token is in a file that the
//! operator names, and in the request as `Authorization: Bearer …`.
//!
//! Invariants: nothing is changed without the token. A page of a foreign site cannot send it: with
//! Authorization, browsers send a preflight request first, and that is refused. The time of a
//! refusal does not reveal the token.

use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use hashcache_http::Target;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::{Map, Value};

use super::answer::{plain, typed};
use crate::purge::{BanQuota, PurgeEffect, PurgeError, PurgeTarget, Purger, report};
use crate::site::live::LiveSites;
use crate::state_file::{Link, open_regular};

pub(super) const PATH: &str = "/-/purge";

/// Maximum length of the body, bytes.
const BODY_BYTES: usize = 256 << 10;
/// Maximum number of targets in one request.
const MOST: usize = 1_000;
/// Minimum length of a token, bytes: shorter ones can be guessed.
const TOKEN_MIN: usize = 16;
/// A longer file is not a token.
const TOKEN_MAX: u64 = 4 << 10;

/// Returns the sites of a reverse proxy; `None` from a forward proxy.
pub(crate) type SitesView = Arc<dyn Fn() -> Option<Arc<LiveSites>> + Send + Sync>;

/// The input of purges.
#[derive(Clone)]
pub(super) struct Purges {
    pub(super) purger: Purger,
    pub(super) sites: SitesView,
    pub(super) token_file: Option<PathBuf>,
}

impl std::fmt::Debug for Purges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Purges").finish_non_exhaustive()
    }
}

fn error(status: StatusCode, what: &str) -> Response<Bytes> {
    plain(status, format!("{what}\n"))
}

impl Purges {
    /// The response to a `POST` to [`PATH`] at one of our addresses.
    pub(super) async fn answer<B>(&self, fields: &HeaderMap, body: B) -> Response<Bytes>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Some(refusal) = self.refusal(fields) {
            return refusal;
        }
        let body = match Limited::new(body, BODY_BYTES).collect().await {
            Ok(body) => body.to_bytes(),
            Err(_) => {
                return error(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "the JSON is larger than 256 KiB",
                );
            }
        };
        let (what, effect) = match self.asked(&body) {
            Ok(asked) => asked,
            Err(what) => return error(StatusCode::BAD_REQUEST, &what),
        };
        match self.purger.purge(&what, effect, BanQuota::Operator).await {
            Ok(()) => {
                tracing::info!(count = what.len(), ?effect, "purged");
                typed(
                    StatusCode::OK,
                    "application/json",
                    String::from_utf8_lossy(&report(&what, effect, &[])).into_owned(),
                )
            }
            Err(PurgeError::TooManyRules) => error(
                StatusCode::TOO_MANY_REQUESTS,
                "not purged: too many purges by label or prefix are in force; purge URLs or \
                 everything",
            ),
            Err(PurgeError::TooLong) => {
                error(StatusCode::URI_TOO_LONG, "the URL is too long to be stored")
            }
            Err(PurgeError::NotDurable) => error(
                StatusCode::SERVICE_UNAVAILABLE,
                "purged, but the cache disk failed: the objects may be back after a restart",
            ),
        }
    }
}

/// The token in the file at `path`; if there is no valid one, that is logged.
pub(super) fn token(path: &Path) -> Option<Vec<u8>> {
    match read_token(path) {
        Ok(token) => Some(token),
        Err(error) => {
            let path = path.display();
            tracing::warn!(%error, %path, "no valid token: the admin listener refuses purges");
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

impl Purges {
    /// The response to a request without the token.
    pub(super) fn refusal(&self, fields: &HeaderMap) -> Option<Response<Bytes>> {
        let Some(path) = &self.token_file else {
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
        let given = fields.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let given = given.and_then(|value| value.strip_prefix(b"Bearer "));
        if given.is_some_and(|given| is_equal(given.trim_ascii(), &token)) {
            return None;
        }
        let mut refusal = error(StatusCode::UNAUTHORIZED, "the token is missing or wrong");
        let bearer = HeaderValue::from_static("Bearer");
        refusal.headers_mut().insert(WWW_AUTHENTICATE, bearer);
        Some(refusal)
    }

    fn asked(&self, body: &[u8]) -> Result<(Vec<PurgeTarget>, PurgeEffect), String> {
        let value: Value =
            serde_json::from_slice(body).map_err(|error| format!("not JSON: {error}"))?;
        let Value::Object(mut object) = value else {
            return Err("the content is not a JSON object".to_owned());
        };
        let soft = take_truth(&mut object, "soft")?;
        let mut what = Vec::new();
        if take_truth(&mut object, "everything")? {
            what.push(PurgeTarget::Everything);
        }
        for url in take_strings(&mut object, "url")? {
            what.push(PurgeTarget::Url(self.target(&url)?));
        }
        for url in take_strings(&mut object, "prefix")? {
            what.push(PurgeTarget::Prefix(
                self.target(url.strip_suffix('*').unwrap_or(&url))?,
            ));
        }
        for label in take_strings(&mut object, "label")? {
            what.push(PurgeTarget::LabelAnywhere(label.into_bytes()));
        }
        let groups = take_strings(&mut object, "group")?;
        let origins = take_strings(&mut object, "origin")?;
        match (&groups[..], &origins[..]) {
            ([], []) => {}
            ([_, ..], [origin]) => {
                let origin = self.target(origin)?;
                let group = |group: String| PurgeTarget::Group(origin.clone(), group.into_bytes());
                what.extend(groups.into_iter().map(group));
            }
            _ => return Err("`group` needs exactly one `origin`".to_owned()),
        }
        if let Some(unknown) = object.keys().next() {
            return Err(format!(
                "`{unknown}` is not one of url, prefix, label, group, origin, everything, soft"
            ));
        }
        if what.is_empty() || what.len() > MOST {
            return Err("1 to 1000 purges are allowed in a request".to_owned());
        }
        Ok((what, PurgeEffect::of(soft)))
    }

    /// The target under which a client's URL is stored.
    fn target(&self, url: &str) -> Result<Target, String> {
        let target = Target::parse_url(url).map_err(|error| format!("`{url}`: {error}"))?;
        match (self.sites)() {
            None => Ok(target),
            Some(sites) => sites
                .stored_as(&target)
                .ok_or_else(|| format!("`{url}`: there is no site of that name here")),
        }
    }
}

/// Compares in constant time.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(differences) == 0 && one.len() == other.len()
}

fn take_truth(object: &mut Map<String, Value>, name: &str) -> Result<bool, String> {
    match object.remove(name) {
        None => Ok(false),
        Some(Value::Bool(truth)) => Ok(truth),
        Some(_) => Err(format!("`{name}` is true or false")),
    }
}

fn take_strings(object: &mut Map<String, Value>, name: &str) -> Result<Vec<String>, String> {
    let wrong = || format!("`{name}` is a string or a list of strings");
    match object.remove(name) {
        None => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one]),
        Some(Value::Array(all)) => {
            let string = |value| match value {
                Value::String(string) => Ok(string),
                _ => Err(wrong()),
            };
            all.into_iter().map(string).collect()
        }
        Some(_) => Err(wrong()),
    }
}
