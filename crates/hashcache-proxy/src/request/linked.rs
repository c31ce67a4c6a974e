//! Requests of children: the field for the link, responses in frames, and the names of other
//! objects of a page.
//!
//! Called by `request` for each request, when it arrives and when the response is ready.
//!
//! Invariants: the field is removed from every request except a child's CONNECT, and counts only on
//! a child's connection. For a request with Cookie, a response passes unchanged if no shared cache
//! may store it, or if it varies by Cookie; for a request with Authorization, every response passes
//! unchanged. Only a response that a shared cache may store is coded with a dictionary. Without
//! memory for an encoder the response is ordinary HTTP.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashcache::Hit;
use hashcache_http::{
    Exchange, Exempt, FRAMES, HASHCACHE_LINK, HASHCACHE_RELATED, HintUse, LinkRequest, Space,
    Storable, Target, cache_key, origin_key, related_value, storable,
};
use hashcache_link::counters::LinkCounters;
use hashcache_link::dictionary::{DICTIONARY_BYTES_MIN, StoredContent};
use hashcache_link::hints::PageObject;
use hashcache_link::usage::DictionaryKind;
use hashcache_store::StoredResponse;
use hashcache_upstream::pinned::LinkedLogin;
use hashcache_wan::digest::Digest;
use hashcache_wan::memory::encoder_bytes;
use hashcache_wan::sketch::{ASKED_BYTES, Sketcher};
use hashcache_wire::Http2Kind;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, VARY};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body as _;
use tokio::time::{Instant, timeout};

use super::body::Body;
use super::framed::{Account, Begun};
use super::named::{self, Resemblance, Search};
use super::page_object::page_of;
use crate::connection::Connection;
use crate::fetch::counters::ByteCount;

/// A request of a child that reads frames or takes part in hints.
#[derive(Debug)]
pub(super) struct LinkedRequest {
    asked: LinkRequest,
    /// The dictionary that the child offers, if it is stored here.
    offered: Mutex<Option<StoredContent>>,
    has_cookie: bool,
    resource: Mutex<Option<Resource>>,
}

/// The requested resource.
#[derive(Clone, Debug)]
struct Resource {
    target: Target,
    fields: HeaderMap,
}

impl LinkedRequest {
    /// Removes the field from a request; `None` if the response is ordinary HTTP.
    pub(super) fn take<B>(connection: &Connection, request: &mut Request<B>) -> Option<Arc<Self>> {
        // In a CONNECT the field offers chunks, and `connect` reads it.
        if connection.child.is_some() && *request.method() == Method::CONNECT {
            return None;
        }
        let asked = LinkRequest::take(request.headers_mut())?;
        if let (Some(number), Some(_)) = (asked.login, &connection.child) {
            request.extensions_mut().insert(LinkedLogin(number));
            return None;
        }
        // With Authorization a child does not request frames, and gets none.
        let may_frame =
            *request.method() == Method::GET && !request.headers().contains_key(AUTHORIZATION);
        if connection.child.is_none() || !may_frame {
            return None;
        }
        let linked = Arc::new(Self {
            asked,
            offered: Mutex::default(),
            has_cookie: request.headers().contains_key(COOKIE),
            resource: Mutex::default(),
        });
        request.extensions_mut().insert(Arc::clone(&linked));
        Some(linked)
    }

    /// Records the requested resource, when it is known.
    pub(super) fn note(&self, space: Space, target: &Target, fields: &HeaderMap) {
        let resource = Resource {
            target: target.clone(),
            fields: fields.clone(),
        };
        let is_own = space == Space::Own;
        *lock(&self.resource) = is_own.then_some(resource);
    }

    /// Records the stored response that was found, before a new response replaces it: it may be the
    /// content that the child offers.
    pub(super) fn note_stored(&self, hit: &Hit, stored: &StoredResponse) {
        let is_offered = self.asked.offered.is_some_and(|offered| {
            stored.digest == Some(Digest(offered.digest))
                && stored.content_len(hit) == Some(offered.length)
        });
        if is_offered {
            *lock(&self.offered) = StoredContent::new(hit, stored);
        }
    }

    /// The response in frames, if that is useful.
    pub(super) async fn respond(
        &self,
        connection: &Connection,
        mut response: Response<Body>,
        received: ByteCount,
    ) -> Response<Body> {
        let Some(child) = &connection.child else {
            return response;
        };
        let Http2Kind::Link { counters, .. } = &child.kind else {
            return response;
        };
        self.hint(connection, &mut response, counters);
        if !self.asked.reads_frames {
            return response;
        }
        let length = response.body().size_hint().exact();
        if response.body().is_end_stream()
            || length.is_some_and(|length| length < FRAMED_MIN)
            || is_stream_of_events(response.headers())
        {
            return response;
        }
        // A response stored separately for each cookie belongs to a user.
        let is_of_user = self.has_cookie && varies_by_cookie(response.headers());
        let is_public = !is_of_user && self.is_public(connection, &response);
        if self.has_cookie && !is_public {
            return response;
        }
        let is_dictionary = is_public && response.status() == StatusCode::OK;
        let offered = if is_dictionary {
            self.offered(connection).await
        } else {
            None
        };
        let resemblance = if is_dictionary {
            self.resemblance(connection)
        } else {
            None
        };
        let is_searched = offered.is_none()
            && resemblance.is_some()
            && self.asked.named_max > 0
            && length.is_none_or(|length| length >= DICTIONARY_BYTES_MIN);
        let collected = if is_searched {
            length.unwrap_or(u64::MAX).min(ASKED_BYTES as u64)
        } else {
            0
        };
        if self.asked.offered.is_some() && is_dictionary && offered.is_none() {
            counters.coding.dictionary(DictionaryKind::Offered, false);
        }
        let reserve = |bytes| connection.allowance.reserve_bulk(bytes);
        let plain = encoder_bytes(length, 0);
        let with_offered = offered.and_then(|content| {
            let bytes = encoder_bytes(length, content.length) + content.reading_bytes();
            let memory = reserve(bytes)?;
            Some((memory, Some(content)))
        });
        let begun = with_offered.or_else(|| Some((reserve(plain + collected)?, None)));
        let Some((memory, offered)) = begun else {
            return response;
        };
        let search = is_searched.then(|| Search::new(self.asked.named_max, length));
        let begun = Begun {
            length,
            offered,
            resemblance,
            allowance: connection.allowance.clone(),
            memory,
            account: Account::new(Arc::clone(counters), self.host(), received),
        };
        let (mut head, body) = response.into_parts();
        head.headers.remove(CONTENT_LENGTH);
        head.headers.insert(HASHCACHE_LINK, FRAMES);
        Response::from_parts(head, body.framed(begun, search))
    }

    fn host(&self) -> Box<str> {
        let resource = lock(&self.resource);
        let host = resource
            .as_ref()
            .map(|it| it.target.authority.host.to_string());
        host.unwrap_or_default().into()
    }

    /// Names the other objects of a page to the child, or records that this is such an object.
    fn hint(
        &self,
        connection: &Connection,
        response: &mut Response<Body>,
        counters: &LinkCounters,
    ) {
        let worker = &connection.worker;
        let resource = lock(&self.resource);
        let Some(Resource { target, fields }) = &*resource else {
            return;
        };
        let Some(pages) = worker.common.children.pages(&worker.cache) else {
            return;
        };
        let (now, status) = (Instant::now(), response.status());
        let names_others = status == StatusCode::OK || status == StatusCode::NOT_MODIFIED;
        let length = response.body().size_hint().exact();
        if self.asked.hints == HintUse::Wanted && names_others {
            let of_page = length.filter(|_| status == StatusCode::OK);
            let others = pages.of(target, of_page, now);
            if let Some(value) = related_value(target, &others) {
                response.headers_mut().insert(HASHCACHE_RELATED, value);
                counters.coding.hints_given(others.len());
            }
        }
        if self.asked.hints == HintUse::Followed || status != StatusCode::OK {
            return;
        }
        let Some((page, length)) = page_of(target, fields, (response.headers(), length)) else {
            return;
        };
        drop(resource);
        if self.is_public(connection, response)
            && let Some(Resource { target, .. }) = &*lock(&self.resource)
        {
            let object = PageObject {
                target,
                length,
                client: connection.allowance.share().network(),
            };
            pages.note(&page, &object, now);
        }
    }

    /// Returns true if the child sent the request because this box had named the resource.
    pub(super) fn follows_hint(&self) -> bool {
        self.asked.hints == HintUse::Followed
    }

    /// The dictionary that the child offers, if it is stored here: as it was found, or kept since.
    async fn offered(&self, connection: &Connection) -> Option<StoredContent> {
        let offered = self.asked.offered?;
        if let Some(content) = lock(&self.offered).take() {
            return Some(content);
        }
        let origin = {
            let resource = lock(&self.resource);
            origin_key(Space::Own, &resource.as_ref()?.target)
        };
        let digest = Digest(offered.digest);
        let kept = named::kept(&connection.worker.cache, &origin, digest);
        // A busy disk must not delay the response.
        let content = timeout(named::FIND_TIME, kept).await.ok()??;
        (content.length == offered.length).then_some(content)
    }

    /// Data with which the response may find a dictionary and be a dictionary later.
    fn resemblance(&self, connection: &Connection) -> Option<Resemblance> {
        let sent = connection.child.as_ref()?.sent.clone()?;
        let resource = lock(&self.resource);
        let target = &resource.as_ref()?.target;
        Some(Resemblance {
            sent,
            cache: connection.worker.cache.clone(),
            key: cache_key(Space::Own, target)?.into(),
            origin_bytes: origin_key(Space::Own, target).len(),
            sketcher: Sketcher::default(),
        })
    }

    /// Returns true if a shared cache may store the response.
    fn is_public(&self, connection: &Connection, response: &Response<Body>) -> bool {
        let common = &connection.worker.common;
        let resource = lock(&self.resource);
        let Some(resource) = &*resource else {
            return false;
        };
        let now = common.now();
        let exchange = Exchange {
            target: &resource.target,
            method: &Method::GET,
            request: &resource.fields,
            // A child sends requests to a forward proxy, where nothing is exempt.
            exempt: Exempt::default(),
            status: response.status(),
            response: response.headers(),
            request_time: now,
            response_time: now,
        };
        !matches!(storable(&exchange, &common.live().store), Storable::No(_))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn varies_by_cookie(fields: &HeaderMap) -> bool {
    let names = fields.get_all(VARY).iter().map(|value| value.as_bytes());
    names
        .flat_map(|value| value.split(|octet| *octet == b','))
        .any(|name| name.trim_ascii().eq_ignore_ascii_case(b"cookie"))
}

/// Returns true if the client waits for single events: the head must not wait for the first of
/// them.
fn is_stream_of_events(fields: &HeaderMap) -> bool {
    let kind = fields.get(CONTENT_TYPE).map(|kind| kind.as_bytes());
    kind.is_some_and(|kind| kind.to_ascii_lowercase().starts_with(b"text/event-stream"))
}

/// Shorter content would grow in frames, bytes.
const FRAMED_MIN: u64 = 256;
