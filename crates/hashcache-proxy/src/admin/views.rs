//! `GET /-/explain` and `GET /-/list`: questions of operators about requests and the store.
//!
//! A list names URLs that people have used, as the access log does, so it needs the token. Who asks
//! for an explanation knows the URL already.

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use serde_json::Value;

use super::answer::{plain, typed};
use super::purge::Purges;
use crate::explain::{Explainer, Question};
use crate::inventory::{Inventory, InventoryQuestion};

/// The page of `hashcache explain`.
pub(super) const EXPLAIN: &str = "/-/explain";
/// The page of `hashcache list`.
pub(super) const LIST: &str = "/-/list";

/// Answers the questions.
pub(super) struct Views {
    pub(super) explainer: Explainer,
    pub(super) inventory: Inventory,
}

impl std::fmt::Debug for Views {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Views").finish_non_exhaustive()
    }
}

impl Views {
    /// The answer to `head`; `None`: it asks for something else. `purges` has the token.
    pub(super) async fn answer(
        &self,
        head: &http::request::Parts,
        purges: &Purges,
    ) -> Option<Response<Bytes>> {
        if head.method != Method::GET {
            return None;
        }
        let query = head.uri.query().unwrap_or_default();
        match head.uri.path() {
            EXPLAIN => Some(match Question::parse(query) {
                Ok(question) => answered(self.explainer.answer(&question).await),
                Err(what) => refused(&what),
            }),
            LIST => Some(
                match (
                    purges.refusal(&head.headers),
                    InventoryQuestion::parse(query),
                ) {
                    (Some(refusal), _) => refusal,
                    (None, Ok(question)) => answered(self.inventory.answer(&question).await),
                    (None, Err(what)) => refused(&what),
                },
            ),
            _ => None,
        }
    }
}

fn answered(answer: Result<Value, String>) -> Response<Bytes> {
    match answer {
        Ok(value) => typed(StatusCode::OK, "application/json", format!("{value}\n")),
        Err(what) => refused(&what),
    }
}

fn refused(what: &str) -> Response<Bytes> {
    plain(StatusCode::BAD_REQUEST, format!("{what}\n"))
}
