//! `POST /-/offline`: how the line to the Internet is regarded.
//!
//! The body is JSON, `{"mode": "on"}`, `"off"` or `"auto"`. It needs the token.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};

use super::answer::{error, typed};
use super::token::{Shown, Token};
use crate::offline::{Line, Offline};

pub(super) const PATH: &str = "/-/offline";

/// The line, and who may say how it is regarded.
#[derive(Debug)]
pub(super) struct Switch {
    pub(super) line: Arc<Line>,
    pub(super) token: Token,
}

impl Switch {
    /// The response to a `POST` to [`PATH`] at one of our addresses.
    pub(super) async fn answer<B>(&self, fields: &HeaderMap, body: B) -> Response<Bytes>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Some(refusal) = self.token.refusal(fields, Shown::Bearer) {
            return refusal;
        }
        let body = Limited::new(body, BODY_BYTES).collect().await;
        let Some(mode) = body.ok().and_then(|body| mode_in(&body.to_bytes())) else {
            let what = "the content is not {\"mode\": \"on\"}, \"off\" or \"auto\"";
            return error(StatusCode::BAD_REQUEST, what);
        };
        self.line.regard(mode);
        let state = state(&self.line);
        typed(StatusCode::OK, "application/json", format!("{state}\n"))
    }
}

/// The object that tells how the line is regarded.
pub(super) fn state(line: &Line) -> Value {
    json!({ "mode": line.regarded().word(), "offline": line.is_down() })
}

fn mode_in(body: &[u8]) -> Option<Offline> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let word = value.get("mode")?.as_str()?;
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
        }
        for wrong in ["", "on", "{}", "{\"mode\": true}", "{\"mode\": \"down\"}"] {
            assert_eq!(mode_in(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
