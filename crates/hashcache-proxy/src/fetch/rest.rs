//! Fetches the rest of a response that was being passed to the client and broke off, by a request
//! for the missing range.
//!
//! Made by `fetch`, used by `request`: on an HTTP/2 connection, which many requests share, a
//! transfer can break off because of another client's request. `pump` does the same for responses
//! that are stored.
//!
//! Invariant: the bytes of two responses are joined only if both have the same strong entity tag
//! and the same content coding, and the range is the requested range.
//! Cost: the request fields are kept until all content has arrived.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use hashcache_base::share::Share;
use hashcache_http::{
    EntityTag, Target, accept_stored_coding, continues_stored, is_multipart, parse_content_range,
};
use hashcache_upstream::announced::ClientEnds;
use hashcache_upstream::{ResponseBody, SendOptions};
use http::header::{ETAG, IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};

use super::ask::ask;
use super::fields::{part_fields, request};
use crate::route::Route;
use crate::worker::Worker;

/// The parts of a client's request that the request for the rest repeats.
pub(super) struct Asked {
    pub(super) target: Target,
    pub(super) fields: HeaderMap,
    pub(super) version: Version,
    pub(super) share: Share,
    pub(super) ends: ClientEnds,
    pub(super) route: Route,
}

/// Requests the rest of a response that is passed to the client.
pub(crate) struct Rest {
    worker: Rc<Worker>,
    asked: Asked,
    /// The fields of the response.
    fields: HeaderMap,
    length: Option<u64>,
    resumes_left: Cell<u32>,
}

impl Rest {
    /// For the whole `response`; `None` if nothing would show that a rest belongs to it, or if the
    /// response is not in HTTP/2, where other requests share the connection.
    pub(super) fn new(
        worker: &Rc<Worker>,
        asked: Asked,
        response: &Response<ResponseBody>,
    ) -> Option<Rc<Self>> {
        let is_whole = response.status() == StatusCode::OK && response.version() == Version::HTTP_2;
        let etag = response.headers().get(ETAG)?;
        if !is_whole || !EntityTag::parse(etag.as_bytes()).is_strong() {
            return None;
        }
        Some(Rc::new(Self {
            worker: Rc::clone(worker),
            asked,
            fields: response.headers().clone(),
            length: http_body::Body::size_hint(response.body()).exact(),
            resumes_left: Cell::new(RESUMES_MAX),
        }))
    }

    /// The content after the first `written` bytes; the last byte of those is sent again.
    pub(crate) async fn after(self: Rc<Self>, written: u64) -> Option<ResponseBody> {
        while let Some(left) = self.resumes_left.get().checked_sub(1) {
            self.resumes_left.set(left);
            tokio::time::sleep(RESUME_PAUSE * (RESUMES_MAX - left)).await;
            if let Ok(body) = self.ask(written).await? {
                tracing::debug!(offset = written, "broken response taken up again");
                return Some(body);
            }
        }
        None
    }

    /// Sends one request. `None` if the origin answers with anything but the rest: a further
    /// request would most likely get the same answer.
    async fn ask(&self, written: u64) -> Option<Result<ResponseBody, NotAnswered>> {
        let asked = &self.asked;
        let mut fields = part_fields(&self.worker, &asked.target, &asked.fields, asked.version);
        // Start one byte back, so that the range is never empty.
        let first = written.saturating_sub(1);
        let range = HeaderValue::try_from(format!("bytes={first}-"));
        fields.insert(RANGE, range.ok()?);
        fields.insert(IF_RANGE, self.fields.get(ETAG)?.clone());
        accept_stored_coding(&mut fields, &self.fields);
        let options = SendOptions {
            client: Some(asked.share.clone()),
            ends: Some(asked.ends),
            ..SendOptions::default()
        };
        let request = request(&asked.target, fields);
        let Ok(answered) = ask(&self.worker, &asked.route, request, &options).await else {
            return Some(Err(NotAnswered));
        };
        let response = answered.exchange.response;
        let content_range = parse_content_range(response.headers())?;
        let (range, length) = (content_range.range?, content_range.complete?);
        let continues = response.status() == StatusCode::PARTIAL_CONTENT
            && range.first == first
            && range.last + 1 == length
            && self.length.is_none_or(|known| known == length)
            && !is_multipart(response.headers())
            && continues_stored(&self.fields, response.headers());
        continues.then(|| Ok(response.into_body()))
    }
}

/// No hop in the route gave a response.
struct NotAnswered;

/// Maximum number of times that a broken response is resumed.
const RESUMES_MAX: u32 = 3;
/// Pause before resuming, multiplied by the number of the attempt.
const RESUME_PAUSE: Duration = Duration::from_millis(100);
