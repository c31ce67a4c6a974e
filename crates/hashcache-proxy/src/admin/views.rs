//! `GET /-/explain` and `GET /-/list`: operators' questions about requests and the store.
//!
//! A list contains URLs that people have used, as the access log does, so it needs the token. An
//! explanation reveals which URLs are stored and how rules treat users, so it needs the token too,
//! except from this machine if no token is configured.

use std::net::IpAddr;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use serde_json::Value;

use super::answer::{plain, typed};
use super::token::{Shown, Token};
use crate::explain::{Explainer, Question};
use crate::inventory::{Inventory, InventoryQuestion};

/// Path of `hashcache explain`.
pub(super) const EXPLAIN: &str = "/-/explain";
/// Path of `hashcache list`.
pub(super) const LIST: &str = "/-/list";

/// State for explain and list requests.
pub(super) struct Views {
    pub(super) explainer: Explainer,
    pub(super) inventory: Inventory,
    pub(super) token: Token,
}

impl std::fmt::Debug for Views {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Views").finish_non_exhaustive()
    }
}

impl Views {
    /// Returns the response to `head` from the client at `client`; `None` for another method or
    /// path.
    pub(super) async fn answer(
        &self,
        head: &http::request::Parts,
        client: IpAddr,
    ) -> Option<Response<Bytes>> {
        if head.method != Method::GET {
            return None;
        }
        let query = head.uri.query().unwrap_or_default();
        match head.uri.path() {
            EXPLAIN => {
                let is_here = client.to_canonical().is_loopback();
                let is_free = is_here && !self.token.is_configured();
                let refusal = self.refusal(head).filter(|_| !is_free);
                Some(match (refusal, Question::parse(query)) {
                    (Some(refusal), _) => refusal,
                    (None, Ok(question)) => answered(self.explainer.answer(&question).await),
                    (None, Err(what)) => refused(&what),
                })
            }
            LIST => Some(
                match (self.refusal(head), InventoryQuestion::parse(query)) {
                    (Some(refusal), _) => refusal,
                    (None, Ok(question)) => answered(self.inventory.answer(&question).await),
                    (None, Err(what)) => refused(&what),
                },
            ),
            _ => None,
        }
    }

    fn refusal(&self, head: &http::request::Parts) -> Option<Response<Bytes>> {
        self.token.refusal(&head.headers, Shown::Bearer)
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
