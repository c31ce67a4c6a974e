//! Explains the stored response for the request, and the outcome that follows from it.

use hashcache::{Cache, Hit, Storage};
use hashcache_http::{
    Exempt, FieldKinds, Forward, LifetimeSource, OnError, RequestFacts, Reuse, SpanText,
    StaleAllowance, Vary, answers_overrides, asks_for_upgrade, cache_key, logs_in_connection,
    unknown_field,
};
use hashcache_store::{HitSource, StoreLookup, StoredResponse, peek};
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, HeaderName, LAST_MODIFIED, VARY,
};
use http::{HeaderMap, HeaderValue};
use serde_json::{Map, Value, json};

use super::{Asked, route};
use crate::reuse::{may_stand_in, reuse_stored};
use crate::worker::Common;

/// The answer's part about the store.
pub(super) struct StoreView {
    pub(super) json: Value,
    /// The outcome, in a sentence.
    pub(super) outcome: String,
    pub(super) need: Need,
}

/// The need for an answer from a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// The proxy itself answers.
    Nothing,
    /// The stored response is served if no next hop can be reached.
    AnswerOrStored {
        /// True if it is served also when a used-up quota forbids a next hop.
        beyond_quota: bool,
    },
    Answer,
}

/// Looks up the stored response for the request.
pub(super) async fn view(common: &Common, cache: &Cache, asked: &Asked<'_>) -> StoreView {
    let facts = RequestFacts::with_exempt(&asked.question.method, &asked.fields, exempt(asked));
    let bypass = match facts.lookup() {
        Err(forward) => Some(why_forwarded(forward)),
        Ok(()) => bypass_of(common, &facts, asked),
    };
    if let Some(why) = bypass {
        return passed(why);
    }
    let Some(key) = cache_key(asked.space, &asked.target) else {
        return passed("the URL is longer than the store takes");
    };
    match peek(cache, key.clone(), &asked.fields).await {
        StoreLookup::Nothing(_) => {
            let json = json!({"state": "miss", "why": "nothing is stored for the URL"});
            missing(common, &facts, asked, &key, json)
        }
        StoreLookup::VaryMiss { table, .. } => {
            let names = table.as_ref().map(|it| {
                let names = it.names().iter().map(HeaderName::as_str);
                names.collect::<Vec<_>>()
            });
            let variants = table.as_ref().map(|it| it.rows().len());
            let json = json!({
                "state": "vary-miss",
                "why": "other variants are stored, but none for these request fields, or in a \
                        content coding that the request does not accept",
                "vary": names,
                "variants": variants,
            });
            missing(common, &facts, asked, &key, json)
        }
        StoreLookup::Found { stored, .. }
            if facts.has_override
                && !answers_overrides(&asked.fields, exempt(asked), stored.row.as_ref()) =>
        {
            let json = json!({"state": "not-used", "why": WHY_OVERRIDE});
            missing(common, &facts, asked, &key, json)
        }
        StoreLookup::Found {
            hit,
            stored,
            place,
            from,
        } => found(
            common,
            cache,
            asked,
            (&facts, &hit, &stored, &place.name, from),
        ),
    }
}

/// Returns why the store is bypassed, if the request's properties are sufficient to decide that.
fn bypass_of(common: &Common, facts: &RequestFacts, asked: &Asked<'_>) -> Option<&'static str> {
    if asked.is_no_cache {
        return Some("the access rule has the action `no-cache`");
    }
    if asks_for_upgrade(&asked.question.method, &asked.fields) {
        return Some("it asks for another protocol");
    }
    if logs_in_connection(&asked.fields) {
        return Some("it has a login of its connection (NTLM, Negotiate)");
    }
    if asked.target.scheme.needs_gateway() && asked.fields.contains_key(AUTHORIZATION) {
        return Some("a user name selects the file");
    }
    if facts.has_range && route::owner(common, asked).is_some() {
        return Some("the member that owns the URL answers ranges of it");
    }
    let site = asked.site.as_ref()?;
    let is_bypass = site.spec.key.is_bypass(&asked.fields);
    is_bypass.then_some("a cookie of `bypass_cookie` is set")
}

/// Returns the request fields that the cache key already covers. It is not known which front proxy
/// would send the request.
fn exempt<'a>(asked: &'a Asked<'_>) -> Exempt<'a> {
    let site = asked.site.as_ref();
    Exempt {
        keyed: site.map_or(&[], |site| site.spec.key.parts().1),
        ..Exempt::default()
    }
}

fn passed(why: &'static str) -> StoreView {
    StoreView {
        json: json!({"state": "bypass", "why": why}),
        outcome: format!("passed on to the next hop, neither looked up nor stored: {why}"),
        need: Need::Answer,
    }
}

fn why_forwarded(forward: Forward) -> &'static str {
    match forward {
        Forward::Method => "only GET and HEAD are answered from the store",
        Forward::Bypass => "the request has content",
        _ => "the request wants the origin's answer",
    }
}

/// Returns the view for a request without a usable stored response; adds why the last response was
/// not stored, if that is known.
fn missing(
    common: &Common,
    facts: &RequestFacts,
    asked: &Asked<'_>,
    key: &[u8],
    mut json: Value,
) -> StoreView {
    let refused = common.not_stored.find(key);
    let owner = route::owner(common, asked);
    let live = common.live();
    let unknown = unknown_field(&asked.fields, exempt(asked), &live.store.harmless);
    let kinds = FieldKinds::new(&asked.fields, exempt(asked), &[], &live.store.harmless);
    let outcome = match () {
        () if facts.directives.only_if_cached => {
            "answered with 504: the client wants what is stored (`only-if-cached`)"
        }
        () if facts.directives.no_store => {
            "fetched from the next hop, and not stored: the request has `no-store`"
        }
        () if asked.fields.contains_key(AUTHORIZATION) => {
            "fetched from the next hop; stored only if the response says that it is for everyone, \
             because the request has Authorization"
        }
        () if kinds.has(FieldKinds::OVERRIDE) => {
            "fetched from the next hop, and not stored: the request has a field by which some \
             origins take another host, path, scheme or method"
        }
        () if unknown.is_some() => {
            "fetched from the next hop; stored only if the response states a lifetime or is \
             `public`, because the request has a field that is not known to be harmless"
        }
        () if owner.is_some() => {
            "asked of the member that owns the URL and stores it; here a copy is kept in memory \
             for a short time"
        }
        () => "fetched from the next hop, and stored if the response allows it",
    };
    let mut outcome = outcome.to_owned();
    if let (Some(name), Some(object)) = (unknown, json.as_object_mut()) {
        object.insert("unknown_field".to_owned(), json!(name.as_str()));
    }
    if let (Some((reason, when)), Some(object)) = (refused, json.as_object_mut()) {
        let last = json!({"reason": reason.as_str(), "at": when.0});
        object.insert("last_response_not_stored".to_owned(), last);
        outcome.push_str(&format!(
            "; the last one was not stored ({})",
            reason.as_str()
        ));
    }
    let need = if facts.directives.only_if_cached {
        Need::Nothing
    } else {
        Need::Answer
    };
    StoreView {
        json,
        outcome,
        need,
    }
}

fn found(
    common: &Common,
    cache: &Cache,
    asked: &Asked<'_>,
    (facts, hit, stored, name, from): (&RequestFacts, &Hit, &StoredResponse, &[u8], HitSource),
) -> StoreView {
    let now = asked.at(common);
    let grace = asked.site.as_ref().map(|it| it.spec.grace);
    let place = (asked.space, &asked.target);
    let reuse = reuse_stored(common, now, place, (facts, grace), (hit, &stored.facts));
    let (state, outcome) = decided(reuse);
    let length = stored.content_len(hit);
    let missing: u64 = match hit.content_len() {
        Some(length) => hit
            .holes(0..length)
            .iter()
            .map(|it| it.end - it.start)
            .sum(),
        None => 0,
    };
    let fields = [
        CACHE_CONTROL,
        EXPIRES,
        ETAG,
        LAST_MODIFIED,
        VARY,
        CONTENT_TYPE,
    ];
    let fields: Map<String, Value> = fields
        .iter()
        .filter_map(|name| Some((name.to_string(), text(stored.fields.get(name)?))))
        .collect();
    let json = json!({
        "state": state,
        "on_error": on_error(reuse),
        "status": stored.facts.status.as_u16(),
        "age": stored.facts.age(now).get(),
        "ttl": stored.facts.ttl(now),
        "lifetime": stored.facts.lifetime.seconds.get(),
        "lifetime_from": lifetime_from(stored.facts.lifetime.source),
        "made_stale_by_purge": hit.is_made_stale(),
        "received": stored.facts.response_time.0,
        "place": place_of(hit, from),
        "device": cache.device_of(name),
        "devices": cache.devices(),
        "content_bytes": length,
        "missing_bytes": missing,
        "variant": variant(stored, &asked.fields),
        "fields": fields,
    });
    StoreView {
        json,
        outcome,
        need: need(facts, reuse),
    }
}

fn place_of(hit: &Hit, from: HitSource) -> &'static str {
    match (hit.storage(), from) {
        (Storage::Memory, _) => "in memory alone: another member stores it",
        (Storage::Disk, HitSource::Memory) => "in memory",
        (Storage::Disk, HitSource::Disk) => "on disk",
    }
}

/// Returns a stored response's state, and the outcome.
fn decided(reuse: Reuse) -> (&'static str, String) {
    match reuse {
        Reuse::Fresh { ttl, .. } => (
            "fresh",
            format!(
                "answered from the store; fresh for another {}",
                SpanText(ttl.unsigned_abs())
            ),
        ),
        Reuse::Stale { allowed_by, .. } => (
            "stale-served",
            match allowed_by {
                StaleAllowance::Client => {
                    "answered from the store, stale: the client allows it by `max-stale`"
                }
                StaleAllowance::WhileRevalidating => {
                    "answered from the store, stale, and validated in the background \
                     (`stale-while-revalidate`)"
                }
            }
            .to_owned(),
        ),
        Reuse::Validate { forward, .. } => (
            "validated",
            match forward {
                Forward::Request => "validated at the next hop first: the client asks for that",
                _ => "validated at the next hop first: the stored response is stale",
            }
            .to_owned(),
        ),
        Reuse::Miss { forward } => (
            "not-used",
            format!(
                "fetched from the next hop: the stored response cannot answer it ({})",
                forward.as_str()
            ),
        ),
        Reuse::Unsatisfiable => (
            "not-used",
            "answered with 504: the client wants what is stored (`only-if-cached`), and that may \
             not be served"
                .to_owned(),
        ),
    }
}

fn need(facts: &RequestFacts, reuse: Reuse) -> Need {
    match reuse {
        Reuse::Fresh { .. } | Reuse::Stale { .. } | Reuse::Unsatisfiable => Need::Nothing,
        Reuse::Validate {
            on_error: OnError::Fail,
            ..
        }
        | Reuse::Miss { .. } => Need::Answer,
        Reuse::Validate { forward, on_error } => Need::AnswerOrStored {
            beyond_quota: may_stand_in(facts, forward, on_error),
        },
    }
}

/// Describes the outcome if the next hop fails.
fn on_error(reuse: Reuse) -> Option<&'static str> {
    let Reuse::Validate { on_error, .. } = reuse else {
        return None;
    };
    Some(match on_error {
        OnError::Fail => "the error is passed on: the response may not be served unvalidated",
        OnError::ServeIfUnreachable => {
            "the stored response is served if the next hop cannot be reached"
        }
        OnError::ServeIfError => "the stored response is served instead of errors too",
    })
}

fn lifetime_from(source: LifetimeSource) -> &'static str {
    match source {
        LifetimeSource::None => "nothing states one",
        LifetimeSource::SMaxage => "s-maxage of the response",
        LifetimeSource::MaxAge => "max-age of the response",
        LifetimeSource::Expires => "Expires of the response",
        LifetimeSource::Rule => "a freshness rule (`[[rule]]`, or `lifetime` of the site)",
        LifetimeSource::Immutable => "a freshness rule that says immutable",
        LifetimeSource::Heuristic => "a share of the time since Last-Modified",
        LifetimeSource::Negative => "`negative_lifetime`, for requests with the same fields",
    }
}

/// Returns the request fields that selected this variant, with their values.
fn variant(stored: &StoredResponse, request: &HeaderMap) -> Value {
    match Vary::parse(&stored.fields) {
        Vary::Nothing => Value::Null,
        Vary::Fields(names) => {
            let values = names.iter().map(|name| {
                (
                    name.to_string(),
                    request.get(name).map_or(Value::Null, text),
                )
            });
            Value::Object(values.collect())
        }
        Vary::TooWide | Vary::Anything => json!("any"),
    }
}

fn text(value: &HeaderValue) -> Value {
    json!(String::from_utf8_lossy(value.as_bytes()))
}

const WHY_OVERRIDE: &str = "a response is stored, but the request has a field by which some \
                            origins take another host, path, scheme or method";
