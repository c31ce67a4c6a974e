//! `POST /-/purge`.
//!
//! The body is JSON: `url`, `prefix`, `label` or `group` (with `origin`), each a string or a list
//! of strings, or `"everything": true`; and `"soft": true`. It needs the token.

use std::sync::Arc;

use bytes::Bytes;
use hashcache_http::Target;
use hashcache_site::live::LiveSites;
use hashcache_store::purge::{BanQuota, PurgeEffect, PurgeError, PurgeTarget, Purger, report};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::{Map, Value};

use super::answer::{error, typed};
use super::token::{Shown, Token};

pub(super) const PATH: &str = "/-/purge";

/// Maximum body length, bytes.
const BODY_BYTES: usize = 256 << 10;
/// Maximum targets in one request.
const MOST: usize = 1_000;

/// Returns a reverse proxy's sites; `None` in a forward proxy.
pub(crate) type SitesView = Arc<dyn Fn() -> Option<Arc<LiveSites>> + Send + Sync>;

/// State for purges.
#[derive(Clone)]
pub(super) struct Purges {
    pub(super) purger: Purger,
    pub(super) sites: SitesView,
    pub(super) token: Token,
}

impl std::fmt::Debug for Purges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Purges").finish_non_exhaustive()
    }
}

impl Purges {
    /// Returns the response to a `POST` to [`PATH`] at one of our addresses.
    pub(super) async fn answer<B>(&self, fields: &HeaderMap, body: B) -> Response<Bytes>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Some(refusal) = self.token.refusal(fields, Shown::Bearer) {
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
        Ok((what, PurgeEffect::from_soft(soft)))
    }

    /// Returns the target under which a client's URL is stored.
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
