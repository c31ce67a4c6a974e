//! Decides how a stored response may be used: by the rules of `hashcache_http::reuse`, and by the
//! proxy's own rules.
//!
//! Called by `request` for each response that a lookup has found, and by `explain`. After a soft
//! purge a response is never fresh; a copy of an object that another member stores is fresh for
//! [`COPY_TIME`](crate::members::COPY_TIME) only.

use hashcache::{Hit, Storage};
use hashcache_http::{
    FactFlags, Forward, OnError, RequestFacts, Reuse, Space, StoredFacts, Target, UnixTime, reuse,
};
use hashcache_site::spec::Grace;

use crate::members::COPY_TIME;
use crate::worker::Common;

/// Decides how a stored response may be used at the time `now`. If the resource belongs to a site,
/// `grace` is the grace of that site.
pub(crate) fn reuse_stored(
    common: &Common,
    now: UnixTime,
    (space, target): (Space, &Target),
    (facts, grace): (&RequestFacts, Option<Grace>),
    (hit, stored): (&Hit, &StoredFacts),
) -> Reuse {
    let mut options = common.live().reuse;
    if let Some(grace) = grace {
        options.stale_if_error = grace.stale_if_error;
        options.stale_while_revalidate = grace.stale_while_revalidate;
    }
    let decision = reuse(facts, stored, now, &options);
    // The member that stores the object may know, unlike this box, that it is out of date. A
    // response on our own disk may be such a copy too: from a time when this box stood in for that
    // member.
    let is_copy = || hit.storage() == Storage::Memory || common.is_of_member(space, target);
    let is_old_copy =
        u64::from(now.since(stored.response_time).get()) >= COPY_TIME.as_secs() && is_copy();
    match decision {
        Reuse::Fresh { .. } | Reuse::Stale { .. } if is_old_copy || hit.is_made_stale() => {
            if facts.directives.only_if_cached {
                return Reuse::Unsatisfiable;
            }
            Reuse::Validate {
                forward: Forward::Stale,
                // As for a response that became stale by age: serve it on error, unless the origin
                // forbids that.
                on_error: if stored.flags.has(FactFlags::NEVER_STALE) {
                    OnError::Fail
                } else {
                    OnError::ServeIfError
                },
            }
        }
        _ => decision,
    }
}

/// Returns true if a stale response may be served where a quota forbids the validation: the
/// response could stand in for an unreachable origin, and the client does not demand a fresh
/// response.
pub(crate) fn may_stand_in(facts: &RequestFacts, forward: Forward, on_error: OnError) -> bool {
    let directives = &facts.directives;
    let is_demanding =
        directives.no_cache || directives.max_age.is_some() || directives.min_fresh.is_some();
    forward == Forward::Stale && on_error != OnError::Fail && !is_demanding
}
