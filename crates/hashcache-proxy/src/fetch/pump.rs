//! Transfers a response's content from upstream into the store.
//!
//! Called by `fetch` when a response must be stored. A broken transfer is resumed with Range and
//! If-Range if the entity tag is strong. If it cannot be resumed, or if no reader is left, the
//! bytes so far are kept as an incomplete object, provided that the validator allows the rest to be
//! added later.
//!
//! Invariant: a put is committed only if the end of the content was received and the content
//! matches the digest, if there is one.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hashcache::{Health, PutError, Storage};
use hashcache_base::failure::{Failure, LinkFault};
use hashcache_http::{
    ContentDigest, NotStored, accept_stored_coding, continues_stored, is_multipart,
    parse_content_range, remove_content_digests,
};
use hashcache_link::coding::LinkCoding;
use hashcache_link::usage::LinkUsage;
use hashcache_store::StoredResponse;
use hashcache_store::put::ContentWriter;
use hashcache_upstream::{RequestBody, ResponseBody, SendOptions};
use http::header::{IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;

use super::ask::ask;
use super::content_hash::ContentHash;
use super::counters::{ByteCount, Trailers};
use super::fields::{part_fields, request};
use super::judge::{note_too_large, reason_of};
use super::keep::keep_replaced;
use super::sink::{BYPASS_AHEAD, NEARLY_DONE, take_content, take_end};
use super::spec::{Cause, FetchSpec, is_failing};
use crate::metrics::CountedBytes;
use crate::worker::Worker;

/// Maximum number of times that a broken transfer is resumed.
pub(super) const RESUMES_MAX: u32 = 3;
/// Pause before resuming, multiplied by the number of the attempt.
const RESUME_PAUSE: Duration = Duration::from_millis(300);
/// The transfer of a response's content into the store.
pub(super) struct Transfer {
    pub(super) worker: Rc<Worker>,
    pub(super) spec: Box<FetchSpec>,
    pub(super) byte_count: ByteCount,
    pub(super) length: Option<u64>,
    /// The response head announced the length.
    pub(super) was_announced: bool,
    /// The strong entity tag, with which a broken transfer can be resumed.
    pub(super) etag: Option<HeaderValue>,
    pub(super) resumes_left: u32,
    /// Bytes that are received twice after resuming.
    pub(super) skip: u64,
    /// Coding of the rest of a broken transfer on the link to a parent.
    pub(super) link: LinkCoding,
    /// The metadata as it was put.
    pub(super) metadata: Bytes,
    pub(super) hash: ContentHash,
    /// Bytes received on earlier connections.
    pub(super) earlier_bytes: u64,
    /// Bytes from earlier connections and from this connection that are in `byte_count`.
    pub(super) received: u64,
    /// Frame bytes received on earlier connections.
    pub(super) earlier_link_bytes: u64,
    pub(super) counted: CountedBytes,
    /// The digest that the response announces (RFC 9530).
    pub(super) digest: Option<ContentDigest>,
    /// Filled after the last content byte.
    pub(super) trailers: Trailers,
}

impl Transfer {
    pub(super) async fn run(&mut self, mut writer: ContentWriter, mut body: ResponseBody) {
        loop {
            if !self.is_wanted(&writer) {
                break;
            }
            let ahead = if writer.is_stored() {
                self.worker.limits.read_ahead
            } else {
                BYPASS_AHEAD
            };
            poll_fn(|context| writer.poll_room(context, ahead)).await;
            let frame = body.frame().await;
            if let Some(Err(Failure::Link(LinkFault::Frames))) = &frame {
                self.link = self.link.in_plain();
            }
            let all = self.earlier_bytes + body.origin_bytes();
            self.byte_count.advance(&mut self.received, all);
            // Before the reader has the last content, because the log entry is written then.
            self.note_link(&body);
            match frame {
                Some(Ok(frame)) => {
                    let data = match frame.into_data() {
                        Ok(data) => data,
                        Err(frame) => {
                            // Trailers are never stored. They must be set before the content is
                            // complete, because readers look then.
                            *self.trailers.borrow_mut() = self.trailers_of(frame);
                            continue;
                        }
                    };
                    let data = self.unskipped(&data);
                    if !self.is_as_promised(data, writer.written()) {
                        return self.broken_promise(&body, writer);
                    }
                    self.hash.update(data);
                    let was_stored = writer.is_stored();
                    let is_taken = take_content(&self.worker, &mut writer, data).await;
                    self.note_bypass(was_stored, &writer);
                    if !is_taken {
                        break;
                    }
                    self.bypass_too_large(&mut writer);
                    let metrics = &self.worker.metrics;
                    metrics.fetching(&mut self.counted, all, writer.written());
                }
                None if body.is_complete() && self.is_whole(&writer) => {
                    if self.digest.as_ref().is_some_and(|digest| !digest.holds()) {
                        return self.broken_promise(&body, writer);
                    }
                    let was_stored = writer.is_stored();
                    let is_taken = take_end(&self.worker, &mut writer).await;
                    self.note_bypass(was_stored, &writer);
                    if !is_taken {
                        break;
                    }
                    self.count(&body, writer.written());
                    // An error here means that a newer response was stored or that the store is
                    // closed; the readers have all content in any case.
                    let digest = self.hash.digest(&body);
                    match writer.commit(&self.metadata, digest) {
                        Ok(_) => keep_replaced(&self.worker, &self.spec, digest),
                        Err(error) => {
                            tracing::debug!(%error, "response not stored");
                            if matches!(error, PutError::Full | PutError::OutOfService) {
                                self.note_not_stored(reason_of(error));
                            }
                        }
                    }
                    return;
                }
                Some(Err(_)) | None => {
                    // Boxed, because otherwise every transfer would keep room for this future until
                    // it is over.
                    let resuming = Box::pin(self.resume(&writer, body.origin_bytes()));
                    let Some(rest) = resuming.await else { break };
                    self.earlier_link_bytes += body.link_usage().map_or(0, |usage| usage.bytes);
                    self.hash.note_resumed();
                    body = rest;
                }
            }
        }
        self.count(&body, writer.written());
        let (written, kept) = (writer.written(), writer.keep());
        tracing::debug!(written, kept, "fetch ended early");
    }

    /// The trailers after the content. In a resumed transfer, digests are removed, because they
    /// cover the last part only.
    fn trailers_of(&self, frame: Frame<Bytes>) -> Option<HeaderMap> {
        let mut trailers = frame.into_trailers().ok()?;
        if self.earlier_bytes > 0 {
            remove_content_digests(&mut trailers);
        }
        Some(trailers)
    }

    /// The part of `data` that was not received before the transfer was resumed.
    fn unskipped<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        let skip = data
            .len()
            .min(usize::try_from(self.skip).unwrap_or(usize::MAX));
        self.skip -= skip as u64;
        &data[skip..]
    }

    /// Adds `data` to the digest; false if the content is complete and does not match. Then the
    /// last bytes are not sent either: without them the client sees an incomplete response, with
    /// them a complete wrong response.
    fn is_as_promised(&mut self, data: &[u8], written: u64) -> bool {
        let Some(digest) = &mut self.digest else {
            return true;
        };
        digest.update(data);
        self.length != Some(written + data.len() as u64) || digest.holds()
    }

    /// Discards content that does not match the digest: it is not stored, and no reader gets it as
    /// complete (RFC 9530).
    fn broken_promise(&mut self, body: &ResponseBody, writer: ContentWriter) {
        self.count(body, writer.written());
        let host = self.spec.target.authority.to_string();
        tracing::debug!(host, "content is not what its digest says");
        self.note_not_stored(NotStored::OtherDigest);
        if !writer.is_stored() {
            // The bytes before the bypass are stored already, so remove them.
            self.worker.cache.invalidate(&self.spec.place.name);
        }
    }

    /// Passes content on without storing it if it is larger than `max_object_size`. `judge` refuses
    /// announced lengths, but a chunked response has none, and a resumed transfer gets a length
    /// later.
    fn bypass_too_large(&self, writer: &mut ContentWriter) {
        if self.was_announced || !writer.is_stored() {
            return;
        }
        let most = self.worker.common.live().settings.max_object_size;
        let size = self.length.unwrap_or(0).max(writer.written());
        if size > most {
            note_too_large(&self.worker, size, most);
            self.note_not_stored(NotStored::TooLarge);
            writer.bypass();
        }
    }

    /// Notes the reason if the content has left the store since `was_stored`.
    fn note_bypass(&self, was_stored: bool, writer: &ContentWriter) {
        // Content of another member is kept in memory only, and only if it is short.
        if !was_stored || writer.is_stored() || writer.storage() == Storage::Memory {
            return;
        }
        self.note_not_stored(if writer.is_too_long() {
            NotStored::TooLarge
        } else if self.worker.cache.health() == Health::OutOfService {
            NotStored::OutOfService
        } else {
            NotStored::NoMemory
        });
    }

    /// Notes for operators why the response is not stored, although `Cache-Status` has announced
    /// that it would be.
    fn note_not_stored(&self, reason: NotStored) {
        let common = &self.worker.common;
        let key = &self.spec.place.key;
        common.not_stored.note(key, reason, common.now());
    }

    /// Returns true if all bytes of a known length have arrived.
    fn is_whole(&self, writer: &ContentWriter) -> bool {
        self.length.is_none_or(|length| length == writer.written())
    }

    /// Records the frame bytes so far, if the content arrived in frames.
    fn note_link(&self, body: &ResponseBody) {
        if let Some(usage) = body.link_usage() {
            let bytes = self.earlier_link_bytes + usage.bytes;
            self.byte_count.set_link(LinkUsage { bytes, ..usage });
        }
    }

    fn count(&mut self, body: &ResponseBody, content: u64) {
        self.note_link(body);
        let all = self.earlier_bytes + body.origin_bytes();
        let metrics = &self.worker.metrics;
        metrics.fetched_rest(&mut self.counted, all, content);
    }

    /// Returns true if a reader, or the store, needs the rest.
    fn is_wanted(&self, writer: &ContentWriter) -> bool {
        let is_wanted_anyway = match self.spec.cause {
            Cause::Request | Cause::RequestByHint => false,
            // No client waits, so nobody can be cut off. Content that is not stored is of no use to
            // anybody.
            Cause::Revalidation => writer.is_stored() && !self.byte_count.is_over_quota(),
            // The object is short.
            Cause::Hint => writer.is_stored(),
        };
        if is_wanted_anyway || writer.followers() > 0 {
            return true;
        }
        let Some(length) = self.length else {
            return false;
        };
        let left = length.saturating_sub(writer.written());
        writer.is_stored() && (left <= NEARLY_DONE || left <= length / 10)
    }

    /// Resumes a broken transfer if the origin confirms that the content is the same.
    async fn resume(&mut self, writer: &ContentWriter, bytes: u64) -> Option<ResponseBody> {
        let etag = self.etag.clone()?;
        self.earlier_bytes += bytes;
        while self.resumes_left > 0 {
            let attempt = RESUMES_MAX - self.resumes_left + 1;
            self.resumes_left -= 1;
            tokio::time::sleep(RESUME_PAUSE * attempt).await;
            let written = writer.written();
            if attempt == 2
                && let Ok(Some(route)) = &mut self.spec.route
            {
                // A hop that breaks off each time does so for the rest as well.
                *route = route.clone().with_first_last();
            }
            match self.rest(written, &etag).await {
                Rest::Content(body, length) => {
                    tracing::debug!(offset = written, "broken fetch taken up again");
                    self.length = Some(length);
                    self.skip = written - first_again(written);
                    return Some(*body);
                }
                Rest::Nothing => {}
                // All hops in the route have had their turn.
                Rest::Refused => break,
            }
        }
        self.earlier_bytes -= bytes;
        None
    }

    /// Fetches the content from offset `written` on.
    async fn rest(&self, written: u64, etag: &HeaderValue) -> Rest {
        // For text in pages, the page table is complete only after the last byte.
        let Some(stored) = StoredResponse::decode_fields(&self.metadata) else {
            return Rest::Refused;
        };
        let first = first_again(written);
        let Some(request) = self.rest_request(first, etag, &stored) else {
            return Rest::Refused;
        };
        let Ok(Some(route)) = &self.spec.route else {
            return Rest::Refused;
        };
        let options = SendOptions {
            client: Some(self.spec.share.clone()),
            ends: Some(self.spec.ends),
            link: self.link.clone(),
            ..SendOptions::default()
        };
        let answered = match ask(&self.worker, route, request, &options).await {
            Ok(answered) => answered,
            Err(failed) => {
                // The flag of an earlier attempt does not apply to this failure.
                self.byte_count.set_free(false);
                self.count_in_vain(failed.origin_bytes);
                return Rest::Nothing;
            }
        };
        self.byte_count.set_free(answered.is_stored_nearby());
        let response = answered.exchange.response;
        let status = response.status();
        match self.length_of_rest(&response, first, &stored) {
            Some(length) => Rest::Content(Box::new(response.into_body()), length),
            None => {
                self.count_in_vain(response.body().origin_bytes());
                if is_failing(status) || status.is_client_error() {
                    Rest::Refused
                } else {
                    Rest::Nothing
                }
            }
        }
    }

    /// A request for the content from offset `first` on, in the coding of the content so far.
    fn rest_request(
        &self,
        first: u64,
        etag: &HeaderValue,
        stored: &HeaderMap,
    ) -> Option<Request<RequestBody>> {
        let spec = &self.spec;
        let mut fields = part_fields(&self.worker, &spec.target, &spec.fields, spec.version);
        let range = HeaderValue::try_from(format!("bytes={first}-"));
        fields.insert(RANGE, range.ok()?);
        fields.insert(IF_RANGE, etag.clone());
        accept_stored_coding(&mut fields, stored);
        Some(request(&spec.target, fields))
    }

    /// Counts the bytes that a failed resume attempt has received.
    fn count_in_vain(&self, bytes: u64) {
        self.byte_count.add(bytes);
        self.worker.metrics.fetched(bytes, 0);
    }

    /// The complete length, if a response has the content from offset `first` on.
    fn length_of_rest(
        &self,
        response: &Response<ResponseBody>,
        first: u64,
        stored: &HeaderMap,
    ) -> Option<u64> {
        let content_range = parse_content_range(response.headers())?;
        let (range, length) = (content_range.range?, content_range.complete?);
        let same = response.status() == StatusCode::PARTIAL_CONTENT
            && range.first == first
            && range.last + 1 == length
            && self.length.is_none_or(|known| known == length)
            && !is_multipart(response.headers())
            && continues_stored(stored, response.headers());
        same.then_some(length)
    }
}

/// Result of an attempt to resume.
enum Rest {
    /// The content, and the complete length.
    Content(Box<ResponseBody>, u64),
    Nothing,
    /// An error of the origin: this transfer sends no further request.
    Refused,
}

/// The offset from which a transfer of `written` bytes is resumed: one byte back. So the range is
/// never empty, even if only the close was missing, and If-Range is always tested.
fn first_again(written: u64) -> u64 {
    written.saturating_sub(1)
}
