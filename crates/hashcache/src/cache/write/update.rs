//! Updates of stored objects: a span that was missing, new metadata.
//!
//! An update keeps the object's version and draws a new revision. Any newer put or remove of the
//! name supersedes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::super::{Cache, Hit, Lookup, Updated};
use super::intent::stored_hour;
use super::memory::{RECORD_OVERHEAD, reserve, reserve_head};
use super::{Intent, pending};
use crate::completion::{Outcome, promise};
use crate::error::PutError;
use crate::format::{Fields, Kind};
use crate::hour::Hour;
use crate::memory::Reservations;
use crate::object::{MAX_METADATA, MAX_NAME, Storage, Version};
use crate::stripe::Accepted;

impl Hit {
    /// Stores a span that was missing: `content` starts at `offset`, where a span starts, and is
    /// that whole span (the last span may be shorter).
    ///
    /// # Errors
    /// [`PutError::Length`] if it is not a whole span, or is after the object's end;
    /// [`PutError::Full`] without memory.
    pub fn fill(&self, offset: u64, content: &[u8]) -> Result<(), PutError> {
        let head = &self.head;
        let span = self.cut().span_at(offset);
        let bounds = self.cut().bounds(span);
        let end = bounds.end.min(head.fields.total.unwrap_or(u64::MAX));
        let announced = end.saturating_sub(bounds.start);
        let written = content.len() as u64;
        if bounds.start != offset || announced != written || announced == 0 {
            return Err(PutError::Length { written, announced });
        }
        let reservation = reserve(&self.cache, content.len() + RECORD_OVERHEAD);
        let reservations = Reservations::from(reservation.ok_or(PutError::Full)?);
        let fields = Fields {
            kind: Kind::Span,
            key: self.span_key(span),
            span,
            confirmed: head.fields.version,
            labels: Vec::new(),
            ..head.fields.clone()
        };
        let content = vec![Bytes::copy_from_slice(content)];
        let reservations = Arc::new(reservations);
        let pending = pending(
            fields,
            &head.name,
            Bytes::new(),
            content,
            None,
            reservations,
        );
        match self.cache.stripe(head.fields.key).put_span(&pending) {
            Accepted::Yes => Ok(()),
            Accepted::OutOfService => Err(PutError::OutOfService),
            Accepted::Superseded | Accepted::Busy => Err(PutError::Superseded),
            Accepted::NoRoom => Err(PutError::Full),
        }
    }
}

/// Changes to a stored object.
#[derive(Clone, Debug)]
pub struct Update {
    /// The new metadata, at most [`crate::MAX_METADATA`].
    pub metadata: Bytes,
    /// The object was validated and found right as of this version, see
    /// [`Cache::confirm_metadata`].
    pub confirmed: Option<Version>,
    /// Change to [`Put::fresh_until`](crate::Put::fresh_until).
    pub fresh_until: HourChange,
}

/// Change to the caller's hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HourChange {
    /// The hour stays.
    #[default]
    Keep,
    /// The hour is replaced by this hour.
    Set(Option<Hour>),
}

impl Update {
    /// An update that only replaces the metadata.
    pub fn metadata(metadata: impl Into<Bytes>) -> Self {
        Self {
            metadata: metadata.into(),
            confirmed: None,
            fresh_until: HourChange::Keep,
        }
    }
}

/// See [`Cache::update`].
pub(in crate::cache) fn update(
    cache: &Cache,
    name: &[u8],
    expected: Version,
    update: Update,
) -> Outcome<Updated> {
    if update.metadata.len() > MAX_METADATA {
        return Outcome::ready(Updated::Refused);
    }
    if name.is_empty() || name.len() > MAX_NAME {
        return Outcome::ready(Updated::Gone);
    }
    // The update starts before the lookup, so that a newer put that the lookup does not see
    // supersedes this update.
    let intent = Intent::update(cache, name, expected);
    match cache.get(name) {
        Lookup::Hit(hit) => Outcome::ready(apply(&intent, &hit, update)),
        Lookup::Miss => Outcome::ready(Updated::Gone),
        Lookup::Pending(lookup) => {
            let (done, outcome) = promise();
            let stripe = Arc::clone(&intent.stripe);
            stripe.pool.run(move || {
                let found = lookup.wait();
                let applied = found.map(|hit| apply(&intent, &hit, update));
                done.set(applied.unwrap_or(Updated::Gone));
            });
            outcome
        }
    }
}

fn apply(intent: &Intent, hit: &Hit, update: Update) -> Updated {
    let Update {
        metadata,
        confirmed,
        fresh_until,
    } = update;
    let old = &hit.head;
    if old.fields.version != intent.version() || intent.token.superseded.load(Ordering::Acquire) {
        return Updated::Gone;
    }
    // The content is in memory already, under its owner's reservation; only the metadata is new.
    let bytes = metadata.len() + RECORD_OVERHEAD;
    let content = old.content_bytes() as u64;
    let Some(reservations) = reserve_head(&intent.cache, &intent.stripe, bytes, content) else {
        return Updated::Refused;
    };
    let revision = old.fields.revision.saturating_add(1);
    let fields = Fields {
        revision,
        confirmed: old
            .fields
            .confirmed
            .max(confirmed.unwrap_or(old.fields.confirmed)),
        fresh_until: match fresh_until {
            HourChange::Keep => old.fields.fresh_until,
            HourChange::Set(hour) => stored_hour(&intent.cache, hour),
        },
        ..old.fields.clone()
    };
    let (content, reservations) = (old.content.clone(), Arc::new(reservations.into()));
    let head = pending(fields, &old.name, metadata, content, old.at, reservations);
    // A ban that made the old record stale may be forgotten by now.
    old.hand_down_judged(&head.record);
    let accepted = match old.storage {
        Storage::Disk => intent.stripe.put_head(&head, &intent.token),
        Storage::Memory => intent.stripe.put_hot(&head.record, &intent.token),
    };
    match accepted {
        Accepted::Yes => Updated::Done,
        Accepted::Busy | Accepted::NoRoom => Updated::Refused,
        Accepted::Superseded | Accepted::OutOfService => Updated::Gone,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::device::MemoryDevice;
    use crate::{Ban, Config, PolicyKind, Put};

    /// Forgets the bans, as the writing thread does when they are no longer needed.
    fn end_of_bans(cache: &Cache) {
        let upto = cache.next_version();
        for stripe in &cache.inner.stripes {
            stripe.let_go_of_barred();
            stripe.bans.forget(upto, upto);
        }
        assert_eq!(cache.bans(), 0);
    }

    #[test]
    fn what_a_soft_ban_made_stale_is_not_fresh_again_when_the_ban_ends() {
        for policy in PolicyKind::ALL {
            for hot_bytes_max in [0, u64::MAX] {
                let cache = Cache::open(Config {
                    policy,
                    hot_bytes_max,
                    memory_bytes: 16 << 20,
                    batch_delay: std::time::Duration::from_secs(3600),
                    ..Config::on_device(Arc::new(MemoryDevice::new(64 << 20)))
                })
                .unwrap();
                let version = cache
                    .put(b"name", Put::metadata("old"), b"content")
                    .unwrap();
                assert!(cache.flush().wait());
                let ban = Ban::prefix(b"na").softly();
                cache.remove_matching(&[ban]).wait().unwrap();
                // The update is in progress when the ban is forgotten.
                let intent = Intent::update(&cache, b"name", version);
                let confirmed = cache.next_version();
                let hit = cache.get(b"name").wait().unwrap();
                end_of_bans(&cache);
                assert!(hit.is_made_stale(), "{policy:?}");
                let unconfirmed = apply(&intent, &hit, Update::metadata("new"));
                assert_eq!(unconfirmed, Updated::Gone, "{policy:?}");
                // A caller that has validated the object since may confirm it.
                let right = Update {
                    confirmed: Some(confirmed),
                    ..Update::metadata("right")
                };
                let confirmed = apply(&intent, &hit, right);
                assert_eq!(confirmed, Updated::Done, "{policy:?}");
                drop(intent);
                let hit = cache.get(b"name").wait().unwrap();
                assert!(!hit.is_made_stale() && hit.metadata() == &b"right"[..]);
            }
        }
    }

    /// Both updates have read the same old object: applying the later update would undo the change
    /// of the first.
    #[test]
    fn of_two_updates_that_began_with_the_same_metadata_one_counts() {
        use crate::Storage;
        for policy in PolicyKind::ALL {
            for (storage, written) in [
                (Storage::Disk, false),
                (Storage::Disk, true),
                (Storage::Memory, false),
            ] {
                let what = format!("{policy:?} {storage:?}, written: {written}");
                let cache = Cache::open(Config {
                    policy,
                    memory_bytes: 16 << 20,
                    batch_delay: std::time::Duration::from_secs(3600),
                    ..Config::on_device(Arc::new(MemoryDevice::new(64 << 20)))
                })
                .unwrap();
                let put = Put {
                    storage,
                    ..Put::metadata("old")
                };
                let version = cache.put(b"name", put, b"content").unwrap();
                assert!(!written || cache.flush().wait());
                let intents = [(); 3].map(|()| Intent::update(&cache, b"name", version));
                let hit = cache.get(b"name").wait().unwrap();
                let applied = ["first", "second", "third"].map(Update::metadata);
                let mut applied = intents
                    .iter()
                    .zip(applied)
                    .map(|(intent, update)| apply(intent, &hit, update));
                assert_eq!(applied.next(), Some(Updated::Done), "{what}");
                assert!(applied.all(|it| it != Updated::Done), "{what}");
                drop(intents);
                let metadata = || cache.get(b"name").wait().unwrap().metadata().clone();
                assert_eq!(metadata(), &b"first"[..], "{what}");
                // An update that starts now has read the result of the first.
                let intent = Intent::update(&cache, b"name", version);
                let hit = cache.get(b"name").wait().unwrap();
                let applied = apply(&intent, &hit, Update::metadata("fourth"));
                assert_eq!(applied, Updated::Done, "{what}");
                assert_eq!(metadata(), &b"fourth"[..], "{what}");
            }
        }
    }

    #[test]
    fn what_was_made_stale_before_it_became_hot_is_stale_when_the_ban_ends() {
        let cache = Cache::open(Config {
            memory_bytes: 16 << 20,
            ..Config::on_device(Arc::new(MemoryDevice::new(64 << 20)))
        })
        .unwrap();
        cache
            .put(b"name", Put::metadata("old"), b"content")
            .unwrap();
        assert!(cache.flush().wait());
        let ban = Ban::prefix(b"na").softly();
        cache.remove_matching(&[ban]).wait().unwrap();
        cache.hot().remove_all(|_| true);
        let hit = cache.get(b"name").wait().unwrap();
        assert!(cache.hot().bytes() > 0, "not hot");
        end_of_bans(&cache);
        assert!(hit.is_made_stale());
        assert_eq!(cache.hot().bytes(), 0);
    }
}
