//! The method PURGE: `curl -X PURGE http://host/path`, as in other caches.
//!
//! | request | purges |
//! |---|---|
//! | no further fields | the URL and its variants |
//! | a path with a final `*` | all URLs that start with the part before it, `…*` itself too |
//! | `X-Purge-Method: exact` | the URL, even if its last character is `*` |
//! | `Surrogate-Key`, `xkey` or `xkey-purge` | the origin's responses with these labels |
//! | `Cache-Groups` | the origin's responses in these groups |
//! | `Soft-Purge: 1`, `Fastly-Soft-Purge: 1`, or `xkey-softpurge` | the same, softly |
//!
//! Called by `request`; calls `purge` of `hashcache-store`, and `queries`, which passes the purge
//! of a URL on to peers.
//!
//! Invariants: a PURGE is forwarded only to members of the site, because another cache must not
//! allow a purge that is forbidden here. It affects only the origin of the URL. It is refused if a
//! page in a browser sent it, even the operator's browser. In front of a site no client may purge
//! by default, not even this machine: behind a TLS terminator every request from the Internet has
//! the address of this machine. A child may purge nothing over its link, whatever address it has.

use hashcache_base::failure::Failure;
use hashcache_base::net::address::check_port;
use hashcache_http::{CACHE_GROUPS, LABEL_FIELDS, Space, Target, cache_groups, words};
use hashcache_store::purge::{BanQuota, PurgeEffect, PurgeError, PurgeTarget, report};
use hashcache_wire::ClientBody;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};

use super::body::Body;
use super::own::text;
use super::purge_members::purge_at_members;
use super::transaction::Answer;
use crate::access_log::Outcome;
use crate::connection::Connection;
use crate::log_entry::LogEntryBuilder;
use crate::worker::Common;

const PURGE_METHOD: HeaderName = HeaderName::from_static("x-purge-method");
const XKEY_PURGE: HeaderName = HeaderName::from_static("xkey-purge");
const XKEY_SOFT_PURGE: HeaderName = HeaderName::from_static("xkey-softpurge");
const SOFT: [HeaderName; 2] = [
    HeaderName::from_static("soft-purge"),
    HeaderName::from_static("fastly-soft-purge"),
];
/// Maximum number of labels or groups in one request.
const MOST: usize = 256;

pub(super) async fn answer(
    connection: &Connection,
    request: &Request<ClientBody>,
    (space, target): (Space, &Target),
    log_entry: &mut LogEntryBuilder,
) -> Answer {
    let common = &connection.worker.common;
    if is_of_a_page(request.headers()) {
        log_entry.set_outcome(Outcome::Denied);
        let reason = "a page in a browser may not purge: this request has Origin or Sec-Fetch-*";
        return Err(refused(StatusCode::FORBIDDEN, reason));
    }
    if !connection.may_purge(space) {
        log_entry.set_outcome(Outcome::Denied);
        let reason = match &connection.child {
            Some(_) => "a child may not purge at its parent: use a client of the parent",
            None => "this client may not purge: name its network with --allow-purge",
        };
        return Err(refused(StatusCode::FORBIDDEN, reason));
    }
    if space == Space::Own {
        // Squid's port rules apply to PURGE too: no response from another port is stored.
        check_port(
            &common.live().settings.allow_port,
            target.scheme,
            target.authority.port,
        )?;
    }
    let (what, effect) = asked(request.headers(), target)?;
    log_entry.set_outcome(Outcome::Purge);
    let purger = common.purger.within(space);
    let purge = || async {
        let purged = purger.purge(&what, effect, BanQuota::Client).await;
        purged.map_err(failure)
    };
    purge().await?;
    if matches!(space, Space::Mirror(_)) {
        return Ok(done(StatusCode::OK, report(&what, effect, &[])));
    }
    clear_at_peers(common, &what);
    let fields = named();
    let at_members = || purge_at_members(connection, request.headers(), target, &fields);
    let mut members = at_members().await;
    if !members.is_empty() {
        // A box that had purged may have fetched a copy from a box that had not. Now all have
        // purged, so purge again.
        purge().await?;
        for (first, second) in members.iter_mut().zip(at_members().await) {
            first.fault = first.fault.take().or(second.fault);
        }
    }
    let status = if members.iter().all(|member| member.fault.is_none()) {
        StatusCode::OK
    } else {
        StatusCode::BAD_GATEWAY
    };
    Ok(done(status, report(&what, effect, &members)))
}

fn failure(error: PurgeError) -> Failure {
    match error {
        PurgeError::TooManyRules => refused(
            StatusCode::TOO_MANY_REQUESTS,
            "not purged: too many purges by label or prefix are in force; purge URLs, or ask the \
             operator to purge everything",
        ),
        PurgeError::TooLong => {
            refused(StatusCode::URI_TOO_LONG, "the URL is too long to be stored")
        }
        PurgeError::NotDurable => refused(
            StatusCode::SERVICE_UNAVAILABLE,
            "purged, but the cache disk failed: the objects may be back after a restart",
        ),
    }
}

/// Asks the peers that want it to remove the purged URLs. HTCP knows no prefixes and no labels.
fn clear_at_peers(common: &Common, what: &[PurgeTarget]) {
    let live = common.live();
    for what in what {
        if let PurgeTarget::Url(target) = what {
            common.queries.clear(live.routes.peers(), target);
        }
    }
}

/// Returns true if a browser sent this for a page. Browsers add these fields, and no page can
/// prevent it.
fn is_of_a_page(fields: &HeaderMap) -> bool {
    let is_fetch = |name: &HeaderName| name.as_str().starts_with("sec-fetch-");
    fields.contains_key(ORIGIN) || fields.keys().any(is_fetch)
}

fn refused(status: StatusCode, reason: &'static str) -> Failure {
    Failure::Refused { status, reason }
}

/// The fields that name the purged objects and the kind of purge.
fn named() -> Vec<HeaderName> {
    let own = [PURGE_METHOD, XKEY_PURGE, XKEY_SOFT_PURGE, CACHE_GROUPS];
    own.into_iter().chain(LABEL_FIELDS).chain(SOFT).collect()
}

fn done(status: StatusCode, report: bytes::Bytes) -> Response<Body> {
    let mut response = text(status, report);
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The targets and the effect that the request fields name.
fn asked(fields: &HeaderMap, target: &Target) -> Result<(Vec<PurgeTarget>, PurgeEffect), Failure> {
    let bad = |reason| refused(StatusCode::BAD_REQUEST, reason);
    let mut what: Vec<PurgeTarget> = Vec::new();
    let named = LABEL_FIELDS
        .into_iter()
        .chain([XKEY_PURGE, XKEY_SOFT_PURGE]);
    for name in named {
        what.extend(
            words(fields, &name)
                .take(MOST + 1)
                .map(|label| PurgeTarget::Label(target.clone(), label)),
        );
    }
    if fields.contains_key(CACHE_GROUPS) {
        let groups = cache_groups(fields);
        if groups.is_empty() {
            return Err(bad("Cache-Groups is a list of strings: \"one\", \"two\""));
        }
        what.extend(
            groups
                .into_iter()
                .map(|group| PurgeTarget::Group(target.clone(), group)),
        );
    }
    if what.len() > MOST {
        return Err(bad("at most 256 labels and groups at once"));
    }
    if what.is_empty() {
        what.push(of_target(fields, target)?);
    }
    let says_soft = |name: &HeaderName| {
        let value = fields.get(name).map(HeaderValue::as_bytes);
        value.is_some_and(|value| !matches!(value, b"0" | b"false" | b""))
    };
    let soft = SOFT.iter().any(says_soft) || fields.contains_key(XKEY_SOFT_PURGE);
    Ok((what, PurgeEffect::from_soft(soft)))
}

fn of_target(fields: &HeaderMap, target: &Target) -> Result<PurgeTarget, Failure> {
    let exact = match fields.get(PURGE_METHOD).map(HeaderValue::as_bytes) {
        None | Some(b"default") => false,
        Some(b"exact") => true,
        Some(_) => {
            let reason = "X-Purge-Method is exact or default; a prefix is a URL that ends in *";
            return Err(refused(StatusCode::BAD_REQUEST, reason));
        }
    };
    let prefix = target.path_and_query.strip_suffix('*');
    Ok(match prefix.filter(|_| !exact) {
        Some(prefix) => PurgeTarget::Prefix(Target {
            path_and_query: prefix.into(),
            ..target.clone()
        }),
        None => PurgeTarget::Url(target.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_for(
        url: &str,
        fields: &[(&'static str, &'static str)],
    ) -> (Vec<PurgeTarget>, PurgeEffect) {
        let mut all = HeaderMap::new();
        for (name, value) in fields {
            all.append(*name, HeaderValue::from_static(value));
        }
        asked(&all, &target(url)).unwrap()
    }

    fn target(url: &str) -> Target {
        Target::parse_url(url).unwrap()
    }

    #[test]
    fn a_star_at_the_end_is_a_prefix_unless_it_is_said_to_be_a_star() {
        let (what, effect) = asked_for("http://h/a/*", &[]);
        assert_eq!(what, [PurgeTarget::Prefix(target("http://h/a/"))]);
        assert_eq!(effect, PurgeEffect::Hard);
        let exact = [("x-purge-method", "exact")];
        assert_eq!(
            asked_for("http://h/a/*", &exact).0,
            [PurgeTarget::Url(target("http://h/a/*"))]
        );
        assert_eq!(
            asked_for("http://h/*a", &[]).0,
            [PurgeTarget::Url(target("http://h/*a"))]
        );
    }

    #[test]
    fn labels_and_groups_are_purged_instead_of_the_url() {
        let label = |label: &str| PurgeTarget::Label(target("http://h/"), label.into());
        let (what, effect) = asked_for("http://h/", &[("surrogate-key", "a b"), ("xkey", "c")]);
        assert_eq!(what, ["a", "b", "c"].map(label));
        assert_eq!(effect, PurgeEffect::Hard);
        let (what, effect) = asked_for("http://h/", &[("xkey-softpurge", "a")]);
        assert_eq!((what, effect), (vec![label("a")], PurgeEffect::Soft));
        let group = PurgeTarget::Group(target("http://h/"), b"g".to_vec());
        assert_eq!(
            asked_for("http://h/", &[("cache-groups", "\"g\"")]).0,
            [group]
        );
        let bad = HeaderMap::from_iter([(CACHE_GROUPS, HeaderValue::from_static("g"))]);
        assert!(asked(&bad, &target("http://h/")).is_err());
    }

    #[test]
    fn what_browsers_send_for_pages_is_known_by_its_fields() {
        let field = |name: &'static str| {
            HeaderMap::from_iter([(
                HeaderName::from_static(name),
                HeaderValue::from_static("null"),
            )])
        };
        for name in ["origin", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-x"] {
            assert!(is_of_a_page(&field(name)), "{name}");
        }
        for name in ["original", "sec-ch-ua", "host"] {
            assert!(!is_of_a_page(&field(name)), "{name}");
        }
    }

    #[test]
    fn soft_is_said_by_a_field() {
        for (value, effect) in [("1", PurgeEffect::Soft), ("0", PurgeEffect::Hard)] {
            for name in ["soft-purge", "fastly-soft-purge"] {
                assert_eq!(asked_for("http://h/", &[(name, value)]).1, effect);
            }
        }
    }
}
