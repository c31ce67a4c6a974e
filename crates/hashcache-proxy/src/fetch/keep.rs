//! Keeps content on a parent when another version replaces it, because the parent's children still
//! have it.
//!
//! Called by `pump` when the new version is stored. The first child is served while the old version
//! is still stored; for the others the old content is put under the origin and the digest
//! (`hashcache_store::kept_name`). The kept copy is a dictionary only: no request finds it.
//!
//! Invariant: only content of a stored response is kept, under the digest that was stored with it.
//! Cost: one read and one put of the content, for each object that has changed, one at a time on a
//! thread; none without children.

use std::rc::Rc;

use hashcache::{Cache, Put};
use hashcache_base::task::spawn_local;
use hashcache_http::origin_key;
use hashcache_store::content::ContentReader;
use hashcache_store::purge::labels_of;
use hashcache_store::{StoredResponse, kept_name};
use hashcache_wan::digest::Digest;

use super::spec::FetchSpec;
use crate::worker::Worker;

/// Keeps the content that the response of `spec` has replaced, in a separate task; `new` is the
/// digest of the new content.
pub(super) fn keep_replaced(worker: &Rc<Worker>, spec: &FetchSpec, new: Option<Digest>) {
    if worker.common.live().link.is_none() {
        return;
    }
    let Some(content) = spec.offered() else {
        return;
    };
    let is_kept = (KEPT_MIN..=KEPT_MAX).contains(&content.length) && Some(content.digest) != new;
    let stored = spec.replaced().and_then(StoredResponse::decode);
    let Some(stored) = stored.filter(|_| is_kept) else {
        return;
    };
    let labels = labels_of(&worker.cache, spec.space, &spec.target, &stored.fields);
    let Some((metadata, length, reader)) = content.to_keep() else {
        return;
    };
    let put = Put {
        length: Some(length),
        useless_after: worker.common.now().0.saturating_add(KEPT_SECONDS),
        labels,
        ..Put::metadata(metadata)
    };
    // One copy at a time: a client that changes many objects must not use up the memory for writes.
    if worker.keeps_replaced.replace(true) {
        return;
    }
    let worker = Rc::clone(worker);
    let name = kept_name(&origin_key(spec.space, &spec.target), content.digest);
    spawn_local(async move {
        let copied = copy(&worker.cache, &name, reader, put).await;
        worker.keeps_replaced.set(false);
        if copied.is_none() {
            tracing::debug!(digest = ?content.digest, "a replaced version is not kept");
        }
    });
}

/// Copies the content. `None`: there was no room, or the content is gone.
async fn copy(cache: &Cache, name: &[u8], mut reader: ContentReader, put: Put) -> Option<()> {
    if cache.contains_hint(name) {
        return Some(());
    }
    let mut writer = cache.intend(name).ok()?.writer(put).ok()?;
    while let Some(piece) = reader.next().await {
        writer.write(&piece.ok()?).ok()?;
    }
    writer.commit().ok().map(drop)
}

/// Shorter content is not kept, bytes.
const KEPT_MIN: u64 = 2 << 10;
/// Longer content is not kept, bytes.
const KEPT_MAX: u64 = 16 << 20;
/// Time for which a version is useful: 30 days.
const KEPT_SECONDS: u64 = 30 * 24 * 3600;
