//! Validation in the background (RFC 5861 3).
//!
//! Called by `request` while it serves a stale response if the origin allows
//! `stale-while-revalidate`.
//!
//! Invariant: one validation per key, at most [`BOUND`] in total, per origin and per client, and
//! none within ten seconds after a failure. The client that triggers a validation pays for it, and
//! none starts while the client's quota is used up.

use std::rc::Rc;

use hashcache_access::quota::RequestLimits;
use hashcache_base::task::spawn_local;
use hashcache_store::collapse::{Background, BackgroundBound, Role};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::counters::ByteCount;
use super::{FetchSpec, FetchTask, requester};
use crate::worker::Worker;

/// Starts a background validation, unless another is in progress or failed recently, or a quota in
/// `limits` is used up.
pub(crate) fn revalidate_in_background(
    worker: &Rc<Worker>,
    spec: Box<FetchSpec>,
    limits: Option<&RequestLimits>,
) {
    if limits.is_some_and(RequestLimits::is_any_used_up) {
        return;
    }
    let now = Instant::now();
    let collapse = &worker.common.collapse;
    if collapse.failed_lately(&spec.place.name, now) {
        return;
    }
    let of = spec.client_and_origin();
    let Some(counted) = collapse.in_background(Background::Revalidation, of, BOUND) else {
        return;
    };
    let Role::Leader(leader) = collapse.join(&spec.place.name, requester(&spec.fields), now) else {
        return;
    };
    let (reply, _) = oneshot::channel();
    let byte_count = ByteCount::default();
    if let Some(limits) = limits {
        byte_count.charge_to(limits);
    }
    let worker = Rc::clone(worker);
    spawn_local(async move {
        let task = FetchTask {
            worker,
            spec,
            leader: Some(leader),
            reply,
            byte_count,
        };
        task.run().await;
        drop(counted);
    });
}

/// Maximum number of background validations, on all cores.
const BOUND: BackgroundBound = BackgroundBound { all: 32, of_one: 8 };
