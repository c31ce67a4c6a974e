//! `POST /-/offline`: sets how the line to the Internet is treated.
//!
//! A program sends JSON, `{"mode": "on"}`, `"off"` or `"auto"`, and a button on the dashboard sends
//! the form field `mode`. Both need the token; a browser prompts the user for it.
//!
//! Invariant: no page on a foreign site can press the button. Browsers send the Origin of the page
//! with a form, which must be checked because browsers add the token automatically once the user
//! has entered it.

use std::sync::Arc;

use bytes::Bytes;
use hashcache_upstream::offline::{Line, Offline};
use http::header::{LOCATION, ORIGIN};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};

use super::access::{is_own_origin, other_origin};
use super::answer::{error, plain, typed};
use super::token::{Shown, Token};

pub(super) const PATH: &str = "/-/offline";

/// The line, and the token that a change needs.
#[derive(Debug)]
pub(super) struct Switch {
    pub(super) line: Arc<Line>,
    pub(super) token: Token,
}

impl Switch {
    /// Returns the response to a `POST` to [`PATH`] at one of our addresses.
    pub(super) async fn answer<B>(&self, fields: &HeaderMap, body: B) -> Response<Bytes>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if !is_own_origin(fields) {
            return other_origin();
        }
        let is_page = fields.contains_key(ORIGIN);
        let shown = if is_page {
            Shown::BearerOrBasic
        } else {
            Shown::Bearer
        };
        if let Some(refusal) = self.token.refusal(fields, shown) {
            return refusal;
        }
        let body = Limited::new(body, BODY_BYTES).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        if let Some(mode) = mode_of_form(&body).filter(|_| is_page) {
            self.line.regard(mode);
            return to_dashboard();
        }
        let Some(mode) = mode_in(&body) else {
            let what = "the content is not {\"mode\": \"on\"}, \"off\" or \"auto\"";
            return error(StatusCode::BAD_REQUEST, what);
        };
        self.line.regard(mode);
        let state = state(&self.line);
        typed(StatusCode::OK, "application/json", format!("{state}\n"))
    }
}

/// Returns the JSON object with the mode and the state of the line.
pub(super) fn state(line: &Line) -> Value {
    json!({ "mode": line.regarded().word(), "offline": line.is_down() })
}

fn mode_in(body: &[u8]) -> Option<Offline> {
    let value: Value = serde_json::from_slice(body).ok()?;
    mode_named(value.get("mode")?.as_str()?)
}

fn mode_of_form(body: &[u8]) -> Option<Offline> {
    mode_named(std::str::from_utf8(body).ok()?.strip_prefix("mode=")?)
}

/// Redirects the browser to the dashboard, so that a reload does not press the button again.
fn to_dashboard() -> Response<Bytes> {
    let mut response = plain(StatusCode::SEE_OTHER, "see /dashboard\n".to_owned());
    let dashboard = HeaderValue::from_static(super::PAGE);
    response.headers_mut().insert(LOCATION, dashboard);
    response
}

fn mode_named(word: &str) -> Option<Offline> {
    let found = Offline::WORDS.iter().find(|(known, _)| *known == word);
    found.map(|(_, mode)| *mode)
}

const BODY_BYTES: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_one_of_three_words() {
        for (word, mode) in Offline::WORDS {
            let body = json!({ "mode": word }).to_string();
            assert_eq!(mode_in(body.as_bytes()), Some(mode));
            assert_eq!(mode_of_form(format!("mode={word}").as_bytes()), Some(mode));
        }
        for wrong in ["", "on", "{}", "{\"mode\": true}", "{\"mode\": \"down\"}"] {
            assert_eq!(mode_in(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
