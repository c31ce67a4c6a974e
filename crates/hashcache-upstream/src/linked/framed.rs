//! Responses on a link with content in frames.
//!
//! Called by `linked_requests` for each response from a parent.
//!
//! Invariant: the caller gets a response only after the first content, or the end, was checked. An
//! error before that costs another request: no client has got anything yet.

use std::future::poll_fn;
use std::sync::Arc;

use hashcache_base::failure::{Failure, LinkFault};
use hashcache_base::share::Share;
use hashcache_link::coding::{Dictionaries, LinkCoding};
use hashcache_link::dictionary::StoredContent;
use hashcache_link::parent::ParentLink;
use hashcache_link::usage::{DictionaryKind, ResumeReason};
use hashcache_wan::frame::Dictionary;
use hashcache_wan::memory::decoder_bytes;
use http::Response;
use http::header::{CONTENT_LENGTH, HeaderValue};

use tokio::time::Instant;

use super::super::unframe::{Step, Unframing};
use super::super::{SendFailure, SendOptions, Upstream, UpstreamExchange};

/// A response that cannot be used.
pub(crate) enum Unusable {
    /// The request may be sent again in this way.
    Again(LinkCoding),
    Failed(SendFailure),
}

impl Upstream {
    /// Chooses how a request to a parent uses the link: without frames if there is no memory for
    /// them now.
    pub(crate) fn coding_now(
        &self,
        (coding, link): (LinkCoding, &ParentLink),
        client: Option<&Share>,
    ) -> LinkCoding {
        if self.reserve(client, FRAMES_BYTES_MIN).is_ok() {
            spare(coding, link)
        } else {
            coding.in_plain()
        }
    }

    /// Returns the response with decoded content, if the content is in frames.
    pub(crate) async fn unframed(
        &self,
        exchange: UpstreamExchange,
        (coding, link): (&LinkCoding, &ParentLink),
        options: &SendOptions,
    ) -> Result<UpstreamExchange, Unusable> {
        if !exchange.response.body().is_framed() {
            return Ok(exchange);
        }
        let UpstreamExchange {
            response,
            peer,
            reused,
            head_time,
            upgrade,
        } = exchange;
        let (mut head, mut body) = response.into_parts();
        let failed = |failure, origin_bytes| {
            Unusable::Failed(SendFailure {
                failure,
                peer: Some(peer),
                origin_bytes,
            })
        };
        let LinkCoding::Frames(dictionaries) = coding else {
            let failure = Failure::ResponseMalformed("frames that were not asked for");
            return Err(failed(failure, body.origin_bytes()));
        };
        let counters = &link.counters.coding;
        let client = options.client.as_ref();
        let origin = options.absolute.as_ref().map(|it| &it.origin);
        let host = origin.map(|it| it.authority.host.to_string());
        let host = host.unwrap_or_default().into();
        let mut frames = Unframing::new(dictionaries, Arc::clone(&link.counters), host);
        loop {
            let step = poll_fn(|cx| frames.poll_step(cx, |cx| body.poll_wire(cx))).await;
            match step {
                Ok(Some(Step::Head(begun))) => {
                    let Ok(dictionary) = found(dictionaries, &begun.dictionary, link).await else {
                        counters.resumed(ResumeReason::Dictionary);
                        return Err(Unusable::Again(coding.without_dictionaries()));
                    };
                    let length = dictionary.as_ref().map_or(0, |content| content.length);
                    let reading = dictionary.as_ref().map_or(0, StoredContent::reading_bytes);
                    let bytes = decoder_bytes(begun.length, length) + reading;
                    let Ok(memory) = self.reserve(client, bytes) else {
                        counters.resumed(ResumeReason::Memory);
                        return Err(Unusable::Again(coding.in_plain()));
                    };
                    frames.begin(&begun, dictionary, memory);
                }
                Ok(Some(first)) => {
                    frames.put_back(first);
                    break;
                }
                Ok(None) => break,
                Err(fault) => {
                    return Err(match fault.into() {
                        Failure::Link(LinkFault::Frames) => {
                            counters.resumed(ResumeReason::Frames);
                            Unusable::Again(coding.next().unwrap_or_default())
                        }
                        failure => failed(failure, body.origin_bytes()),
                    });
                }
            }
        }
        head.headers.remove(CONTENT_LENGTH);
        if let Some(length) = frames.left() {
            head.headers
                .insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        body.read_frames(frames);
        Ok(UpstreamExchange {
            response: Response::from_parts(head, body),
            peer,
            reused,
            head_time,
            upgrade,
        })
    }
}

/// Offers and allows no dictionaries if the disk has no time for them, or they were missing too
/// often.
fn spare(coding: LinkCoding, link: &ParentLink) -> LinkCoding {
    let LinkCoding::Frames(dictionaries) = &coding else {
        return coding;
    };
    let now = Instant::now();
    let offered = dictionaries.offered.as_ref();
    let bytes = offered.map_or(NAMED_BYTES, |content| content.length);
    let load = &link.counters.load;
    if !load.is_worth_reading(bytes, None, now.into_std()) {
        link.counters.coding.shed();
        return coding.without_dictionaries();
    }
    if link.named.may_name(now) {
        coding
    } else {
        coding.finding(None)
    }
}

/// Finds a transfer's dictionary, if the transfer uses a dictionary.
async fn found(
    dictionaries: &Dictionaries,
    used: &Dictionary,
    link: &ParentLink,
) -> Result<Option<StoredContent>, Lacking> {
    match used {
        Dictionary::None => Ok(None),
        Dictionary::Offered => dictionaries.offered.clone().map(Some).ok_or(Lacking),
        Dictionary::Named {
            key,
            digest,
            length,
        } => {
            let lookup = dictionaries.named.as_ref().ok_or(Lacking)?;
            let content = lookup.find(key.clone(), *digest).await;
            let content = content.filter(|content| content.length == *length);
            link.named.note(content.is_some(), Instant::now());
            if content.is_none() {
                let counters = &link.counters.coding;
                counters.dictionary(DictionaryKind::Named, false);
            }
            content.map(Some).ok_or(Lacking)
        }
    }
}

/// The dictionary is not here.
struct Lacking;

/// Assumed size for a dictionary that the parent names, before anything is known about it, bytes.
const NAMED_BYTES: u64 = 1 << 20;
/// Frames are requested while this much memory is free: enough for most objects on a page.
const FRAMES_BYTES_MIN: u64 = 1 << 20;
