//! Plain requests that memory answers, in HTTP/1.1 without a map of fields.
//!
//! Called by `hashcache-wire` for each head of a plain GET, before the service would be called.
//! This module knows a few request fields that change nothing here ([`FieldKind`]); a request with
//! any other field is left to the general path. So is everything but a fresh response that does not
//! vary and that has all content in memory. Text that is stored in pages is served as stored, in
//! zstd; clients that do not accept zstd use the general path.
//!
//! Invariant: the response has the fields and the content that the general path gives to the same
//! request; the order of fields may differ between names. `tests/it/proxy_memory_hits.rs` of the
//! command line compares both paths. Side effects of the general path happen here too: the log,
//! metrics, page groups, records about an intercepted client.
//! Cost: the target, the cache key and the log entry are allocated; fields are copied once, from
//! the metadata to the head.

use std::rc::Rc;

use hashcache_base::net::address::check_port;
use hashcache_http::{
    FactFlags, RequestFacts, RequestTarget, Reuse, Scheme, Target, cache_key, line_accepts_coding,
    parse_target,
};
use hashcache_site::encode::{ABOUT_IDENTITY, has_no_transform, prefers_zstd};
use hashcache_site::live::ORIGIN;
use hashcache_site::spec::Grace;
use hashcache_store::StoredView;
use hashcache_store::page_groups::PageFields;
use hashcache_wire::{
    self, FREE_BYTES, MemoryResponse, PIECES_MAX, PlainRequest, RequestForm, ResponseHead,
};
use http::{Method, StatusCode};
use tokio::time::Instant;

use super::HEAD_FREE;
use super::site::with_scheme;
use super::stored_form::ZSTD;
use super::transaction::Served;
use crate::connect::intercepted::refusal;
use crate::connection::{Connection, InterceptedFor, MayAsk};
use crate::log_entry::MemoryHitEntry;
use crate::reuse::reuse_stored;

/// Answers the plain requests on one connection.
pub(crate) struct MemoryHits {
    connection: Rc<Connection>,
}

impl MemoryHits {
    /// `None`: nothing on this connection may be answered in this way.
    pub(crate) fn for_connection(
        connection: &Rc<Connection>,
    ) -> Option<Rc<dyn hashcache_wire::MemoryHits>> {
        let is_self_test = |it: &Rc<InterceptedFor>| it.is_self_test();
        let is_own = connection.intercepted.as_ref().is_some_and(is_self_test);
        // A child speaks HTTP/2, and a reload may remove the child's rights. On a connection that
        // the network redirected here each name is looked up first.
        let is_other = connection.child.is_some() || connection.plain_destination().is_some();
        if is_other || is_own {
            return None;
        }
        let connection = Rc::clone(connection);
        Some(Rc::new(Self { connection }))
    }
}

/// Effect of a request field on the answer from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldKind {
    Host,
    UserAgent,
    Referer,
    Accept,
    SecFetchDest,
    AcceptEncoding,
    /// The field selects variants at most, and a response with variants is not served here.
    Selects,
    /// `keep-alive` changes nothing. curl and browsers send it to a forward proxy in
    /// `Proxy-Connection`.
    Connection,
    /// The general path may need the field.
    Other,
}

impl FieldKind {
    fn from_name(name: &[u8]) -> Self {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        let any = |others: &[&str]| others.iter().any(|other| is(other));
        match name.len() {
            3 if is("dnt") => Self::Selects,
            4 if is("host") => Self::Host,
            6 if is("accept") => Self::Accept,
            6 if any(&["cookie", "origin"]) => Self::Selects,
            7 if is("referer") => Self::Referer,
            7 if is("sec-gpc") => Self::Selects,
            8 if is("priority") => Self::Selects,
            9 if is("save-data") => Self::Selects,
            10 if is("user-agent") => Self::UserAgent,
            10 if is("connection") => Self::Connection,
            14 if is("sec-fetch-dest") => Self::SecFetchDest,
            14 if any(&[
                "accept-charset",
                "sec-fetch-mode",
                "sec-fetch-site",
                "sec-fetch-user",
            ]) =>
            {
                Self::Selects
            }
            15 if is("accept-encoding") => Self::AcceptEncoding,
            15 if is("accept-language") => Self::Selects,
            16 if any(&["x-requested-with", "sec-ch-ua-mobile"]) => Self::Selects,
            16 if is("proxy-connection") => Self::Connection,
            9 if is("sec-ch-ua") => Self::Selects,
            18 if is("sec-ch-ua-platform") => Self::Selects,
            25 if is("upgrade-insecure-requests") => Self::Selects,
            _ => Self::Other,
        }
    }
}

/// The fields of a plain request that are needed; if a name has several lines, the first line.
#[derive(Clone, Copy, Default)]
struct PlainFields<'a> {
    host: Option<&'a str>,
    user_agent: Option<&'a [u8]>,
    referer: Option<&'a [u8]>,
    accept: Option<&'a [u8]>,
    destination: Option<&'a [u8]>,
    codings: Option<&'a [u8]>,
}

impl<'a> PlainFields<'a> {
    /// `None` if there is a field that is not known here.
    fn from_request(request: &PlainRequest<'a>) -> Option<Self> {
        let mut fields = Self {
            host: request.authority,
            ..Self::default()
        };
        for (name, value) in request.fields() {
            match FieldKind::from_name(name) {
                // The general path compares it with the authority of HTTP/2.
                FieldKind::Host if fields.host.is_some() => return None,
                FieldKind::Host => {
                    let is_text = value.iter().all(|byte| (b' '..=b'~').contains(byte));
                    let host = std::str::from_utf8(value).ok().filter(|_| is_text);
                    fields.host = Some(host?);
                }
                FieldKind::UserAgent => fields.user_agent = fields.user_agent.or(Some(value)),
                FieldKind::Referer => fields.referer = fields.referer.or(Some(value)),
                FieldKind::Accept => fields.accept = fields.accept.or(Some(value)),
                FieldKind::SecFetchDest => fields.destination = fields.destination.or(Some(value)),
                // The general path uses all lines of this field.
                FieldKind::AcceptEncoding if fields.codings.is_some() => return None,
                FieldKind::AcceptEncoding => fields.codings = Some(value),
                FieldKind::Selects => {}
                FieldKind::Connection if value.eq_ignore_ascii_case(b"keep-alive") => {}
                FieldKind::Connection | FieldKind::Other => return None,
            }
        }
        Some(fields)
    }
}

impl hashcache_wire::MemoryHits for MemoryHits {
    fn answer(
        &self,
        request: &PlainRequest<'_>,
        head: &mut ResponseHead<'_>,
    ) -> Option<MemoryResponse> {
        let connection = &self.connection;
        if !connection.pins.is_empty() {
            // The origin may take this request for a request of a user that has logged in.
            return None;
        }
        let worker = &connection.worker;
        let common = &worker.common;
        let fields = PlainFields::from_request(request)?;
        let (target, grace) = target(connection, request, fields.host)?;
        // The general path records page objects for children. A single request of another client is
        // enough.
        if fields.referer.is_some()
            && common.live().link.is_some()
            && common.children.take_awaited(&target)
        {
            return None;
        }
        let key = cache_key(common.space(), &target)?;
        let hit = worker.cache.get_hot(&key)?;
        let mut stored = StoredView::from_metadata(hit.metadata())?;
        if stored.facts.status != StatusCode::OK || !hit.is_complete() {
            return None;
        }
        // As in `stored_form`.
        let is_zstd = stored.is_one_page && prefers_zstd(fields.codings.into_iter());
        if stored.is_in_pages && !is_zstd {
            return None;
        }
        let place = (common.space(), &target);
        let reuse = reuse_stored(
            common,
            common.now(),
            place,
            (&RequestFacts::PLAIN_GET, grace),
            (&hit, &stored.facts),
        );
        let Reuse::Fresh { age, ttl } = reuse else {
            return None;
        };
        let length = hit.content_len()?;
        // A client that does not read keeps the content from being evicted. The general path holds
        // less content at a time.
        let share = connection.allowance.share();
        let charge = if length > FREE_BYTES as u64 {
            Some(share.take(length)?)
        } else {
            None
        };
        let content = hit.content_in_memory(PIECES_MAX)?;
        let content_type = write_head(
            connection,
            &mut stored,
            Served::fresh(age, ttl),
            length,
            fields.codings,
            head,
        )?;
        worker.metrics.plain_hit();
        if let Some(intercepted) = &connection.intercepted {
            intercepted.note_request(worker);
        }
        let page_fields = PageFields {
            destination: fields.destination,
            accept: fields.accept,
            referer: fields.referer,
        };
        let (place, now) = ((connection.client.ip(), &target), Instant::now());
        common
            .page_groups
            .note_plain_request(place, &page_fields, now);
        let entry = MemoryHitEntry {
            version: request.version(),
            received: request.received,
            target: &target,
            status: StatusCode::OK.as_u16(),
            user_agent: fields.user_agent,
            referer: fields.referer,
            content_type,
        };
        let on_sent = entry.on_sent(connection);
        Some(MemoryResponse {
            content,
            charge,
            on_sent,
        })
    }
}

/// The requested resource, and the grace of the site; `None` if this module does not answer it. The
/// checks are the same as in the general path (`serve`, `first` and `site::serve`).
fn target(
    connection: &Connection,
    request: &PlainRequest<'_>,
    host: Option<&str>,
) -> Option<(Target, Option<Grace>)> {
    let common = &connection.worker.common;
    let live = common.live();
    let permits = |target: &Target| {
        let worker = &connection.worker;
        // A request with a login has a field that is not known here.
        let user = || connection.user_without_login(&live, MayAsk::Yes);
        connection
            .access
            .permits_stored(worker, &live, user, &target.authority)
    };
    let scheme = match connection.intercepted {
        Some(_) => Scheme::Https,
        None => connection.scheme,
    };
    let named = parse_target(&Method::GET, request.target, host, scheme).ok()?;
    if let Some(intercepted) = &connection.intercepted {
        let is_for_it = refusal(intercepted, &named).is_none() && intercepted.refusal().is_none();
        let RequestTarget::Resource(target) = named else {
            return None;
        };
        return (is_for_it && permits(&target)).then_some((target, None));
    }
    let RequestTarget::Resource(target) = named else {
        return None;
    };
    if target.scheme.needs_gateway() {
        return None;
    }
    if common.is_reverse() {
        let site = live
            .sites
            .find(&target.authority)
            .filter(|it| it.is_plain && permits(&target))?;
        // No forwarding fields are present, so the client is the peer of the connection.
        let authority = match site.spec.any_host_authority() {
            Some(authority) => authority.clone(),
            None => with_scheme(target.authority, target.scheme, connection.scheme),
        };
        let target = Target {
            scheme: connection.scheme,
            authority,
            path_and_query: target.path_and_query,
        };
        return Some((target, Some(site.spec.grace)));
    }
    let is_usual = request.form == RequestForm::Absolute
        && !common.is_admin(&target.authority)
        && !common.is_us(&target.authority)
        && !connection.is_self_test(&target.authority)
        && check_port(
            &live.settings.allow_port,
            target.scheme,
            target.authority.port,
        )
        .is_ok()
        && permits(&target);
    is_usual.then_some((target, None))
}

/// Writes the head of the response; `None` if the general path must answer. Returns the stored
/// Content-Type.
fn write_head<'a>(
    connection: &Connection,
    stored: &mut StoredView<'a>,
    served: Served,
    length: u64,
    codings: Option<&[u8]>,
    head: &mut ResponseHead<'_>,
) -> Option<Option<&'a [u8]>> {
    let common = &connection.worker.common;
    let (mut has_date, mut content_type) = (false, None);
    let is_zstd = stored.is_in_pages;
    head.begin();
    let fits = |bytes: &usize| *bytes <= HEAD_FREE;
    let mut line = |name: &[u8], value: &[u8]| head.push(name, value).filter(fits);
    while let Some((name, value)) = stored.next_field().ok()? {
        match name {
            b"age" => continue,
            b"content-type" if content_type.is_none() => content_type = Some(value),
            b"date" => has_date = true,
            // The zstd form has another entity tag, and fields that describe the content are for
            // the identity form.
            b"etag" if is_zstd && value.starts_with(b"\"") => {
                line(name, &[b"W/", value].concat())?;
                continue;
            }
            b"vary" if is_zstd => return None,
            // As in `hashcache_store::matches`. A response that varies does not get here.
            b"content-encoding"
                if !stored.facts.flags.has(FactFlags::ANY_CODING)
                    && !line_accepts_coding(codings, value) =>
            {
                return None;
            }
            b"cache-control" if is_zstd && has_no_transform(value) => return None,
            // The general path does more with these fields than to write them.
            b"connection" | b"content-length" | b"transfer-encoding" | b"te" | b"trailer"
            | b"upgrade" => return None,
            _ if is_zstd
                && ABOUT_IDENTITY
                    .iter()
                    .any(|it| it.as_str().as_bytes() == name) =>
            {
                continue;
            }
            // `site::finish` removes this field; from an origin of the Web it is an ordinary field.
            _ if name == ORIGIN.as_str().as_bytes() => {
                if !common.is_reverse() {
                    return None;
                }
                continue;
            }
            _ => {}
        }
        line(name, value)?;
    }
    if !has_date {
        return None;
    }
    if is_zstd {
        line(b"vary", b"accept-encoding")?;
        line(b"content-encoding", ZSTD.as_bytes())?;
    }
    let mut number = itoa::Buffer::new();
    line(b"age", number.format(served.age.get()).as_bytes())?;
    let received = stored.facts.received();
    line(b"via", common.via.via_value(received).as_bytes())?;
    let status = served.status().to_value(&common.name);
    line(b"cache-status", status.as_bytes())?;
    head.push_length(length).filter(fits)?;
    head.end();
    Some(content_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_the_usual_way_looks_at_are_not_known_here() {
        for name in [
            "Authorization",
            "Cache-Control",
            "CDN-Loop",
            "Content-Length",
            "Expect",
            "Forwarded",
            "Hashcache-Key",
            "If-Match",
            "If-Modified-Since",
            "If-None-Match",
            "If-Range",
            "If-Unmodified-Since",
            "Max-Forwards",
            "Pragma",
            "Proxy",
            "Proxy-Authorization",
            "Range",
            "TE",
            "Trailer",
            "Transfer-Encoding",
            "Upgrade",
            "Via",
            "Want-Repr-Digest",
            "X-Forwarded-For",
            "X-Forwarded-Host",
            "X-Forwarded-Proto",
            "X-Real-IP",
            "X_Forwarded_For",
        ] {
            assert_eq!(
                FieldKind::from_name(name.as_bytes()),
                FieldKind::Other,
                "{name}"
            );
        }
    }
}
