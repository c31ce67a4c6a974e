//! The access log of this proxy as JSON: one object per line, with keys of the Elastic Common
//! Schema.
//!
//! Called by `trace` for each line. Keys that are not known here are not looked at, so lines of
//! other programs with the same keys can be read too.
//!
//! Cost: one parse of the line; names are copied, because their escapes are removed.

use std::borrow::Cow;

use serde::Deserialize;

use super::fields::{NOT_MODIFIED, is_storable};
use super::har::time;
use super::{Reason, Request};

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow, rename = "@timestamp")]
    time: Cow<'a, str>,
    #[serde(borrow, default, rename = "client.ip")]
    client: Cow<'a, str>,
    #[serde(borrow, rename = "http.request.method")]
    method: Cow<'a, str>,
    #[serde(borrow, default, rename = "url.scheme")]
    scheme: Cow<'a, str>,
    #[serde(borrow, default, rename = "url.authority")]
    authority: Cow<'a, str>,
    #[serde(borrow, rename = "url.original")]
    target: Cow<'a, str>,
    #[serde(rename = "http.response.status_code")]
    status: u16,
    #[serde(rename = "http.response.bytes")]
    bytes: u64,
    #[serde(borrow, default, rename = "http.request.referrer")]
    referer: Cow<'a, str>,
}

/// Reads a line. `scratch` takes the texts without their escapes.
pub fn parse<'a>(line: &[u8], scratch: &'a mut Vec<u8>) -> Result<Request<'a>, Reason> {
    let entry: Entry<'_> = serde_json::from_slice(line).map_err(|_| Reason::Json)?;
    let time_us = time(entry.time.as_bytes()).ok_or(Reason::Time)?;
    scratch.clear();
    let mut end_of = |parts: &[&str]| {
        for part in parts {
            scratch.extend_from_slice(part.as_bytes());
        }
        scratch.len()
    };
    // A program may write the whole URL.
    let is_path = entry.target.starts_with('/') && !entry.authority.is_empty();
    let name_end = if is_path {
        end_of(&[&entry.scheme, "://", &entry.authority, &entry.target])
    } else {
        end_of(&[&entry.target])
    };
    if name_end == 0 {
        return Err(Reason::Name);
    }
    let client_end = end_of(&[&entry.client]);
    let referer_end = end_of(&[&entry.referer]);
    let scratch: &'a [u8] = scratch;
    Ok(Request {
        time_us,
        client: &scratch[name_end..client_end],
        name: &scratch[..name_end],
        bytes: (entry.status != NOT_MODIFIED).then_some(entry.bytes),
        group: &scratch[client_end..referer_end],
        may_be_stored: is_storable(entry.method.as_bytes(), entry.status),
    })
}
