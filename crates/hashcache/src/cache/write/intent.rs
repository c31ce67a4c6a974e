//! An object's description, and the intent to put it.
//!
//! The caller draws an [`Intent`] before the work for the content starts (a proxy: before it sends
//! the request upstream). A [`Writer`] is made from it.
//!
//! Invariant: the version is drawn under the lock of the puts in progress in the name's shard. So
//! any later put or remove has a higher version and finds this put.

use std::sync::Arc;

use bytes::Bytes;

use super::super::follow::Stream;
use super::super::{Cache, Hit};
use super::Writer;
use super::memory::{RECORD_OVERHEAD, reserve_head};
use crate::address::LogPos;
use crate::bans::Label;
use crate::error::PutError;
use crate::hour::Hour;
use crate::key::KeyHash;
use crate::memory::{Chunk, Reservations};
use crate::object::{Cut, MAX_METADATA, MAX_SPAN_PAGES, PAGE, Storage, Version};
use crate::shard::PutToken;
use crate::stripe::Stripe;

/// Use of the content if the put does not finish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Nothing is kept, as if there had been no put.
    #[default]
    Whole,
    /// The received content is kept as an incomplete object, which lookups find from the first page
    /// on.
    Partial,
    /// Lookups find nothing before the put is over; then [`Writer::keep`] keeps the received
    /// content.
    AtEnd,
}

/// Metadata and other fields that are put with the content.
#[derive(Clone, Debug)]
pub struct Put {
    /// Opaque to the engine, at most [`crate::MAX_METADATA`].
    pub metadata: Bytes,
    /// Length of the content, bytes, if known.
    pub length: Option<u64>,
    /// Use of the content if the put does not finish.
    pub keep: Keep,
    /// Any number that the caller wants to find again with the object. [`crate::Cache::scan`] lists
    /// the marks of complete objects; objects with the mark 0 are left out.
    pub mark: u128,
    /// Objects in the same group are requested together; 0: no group.
    pub group: u64,
    /// Unix time after which the object is of no use, seconds; 0: never. Decides only which objects
    /// are kept longer, never an answer.
    pub useless_after: u64,
    /// Until when the caller wants to list the object ([`crate::Cache::scan`]); `None`: not known.
    /// The engine does not use it. Kept for at most three years.
    pub fresh_until: Option<Hour>,
    /// Labels by which the object is removed together with other objects ([`Cache::label`]). If
    /// there are more than 32 labels, the engine only stores that there were more: then a removal
    /// by any label removes the object too.
    pub labels: Vec<Label>,
    /// Where the object is kept. With [`Storage::Memory`], the put fails with [`PutError::Full`] if
    /// there is no room, and with [`PutError::Bypassed`] if there is more content than
    /// [`crate::PAGE`]; followers see all of it. In that case `keep`, `mark` and `fresh_until` have
    /// no effect.
    pub storage: Storage,
    /// Pages of 64 KiB in a span, 1 to [`crate::MAX_SPAN_PAGES`]: the unit in which content is read
    /// and filled in.
    pub span_pages: u8,
}

impl Put {
    /// A put with this metadata and defaults for all other fields.
    pub fn metadata(metadata: impl Into<Bytes>) -> Self {
        Self {
            metadata: metadata.into(),
            length: None,
            keep: Keep::Whole,
            mark: 0,
            group: 0,
            useless_after: 0,
            fresh_until: None,
            labels: Vec::new(),
            storage: Storage::Disk,
            span_pages: MAX_SPAN_PAGES,
        }
    }
}

/// A put that has started: its version is drawn, and any later put or remove supersedes it.
pub struct Intent {
    pub(super) cache: Cache,
    /// The stripe for the name when this put started. If its device fails, the put fails too:
    /// another stripe would not know the puts and removes in between.
    pub(super) stripe: Arc<Stripe>,
    pub(super) name: Bytes,
    pub(super) key: KeyHash,
    pub(super) token: Arc<PutToken>,
    pub(super) replaces: Option<LogPos>,
}

impl Intent {
    pub(in crate::cache) fn new(cache: &Cache, name: &[u8]) -> Result<Self, PutError> {
        let key = cache.secret().name(name);
        let stripe = cache.stripe(key);
        if name.is_empty() || name.len() > stripe.medium.geometry.name_bytes_max() {
            return Err(PutError::Name { length: name.len() });
        }
        let token = stripe.begin(key);
        Ok(Self::with_token(cache, stripe, name, key, token))
    }

    pub(super) fn update(cache: &Cache, name: &[u8], version: Version) -> Self {
        let key = cache.secret().name(name);
        let stripe = cache.stripe(key);
        let token = stripe.begin_update(key, version);
        Self::with_token(cache, stripe, name, key, token)
    }

    fn with_token(
        cache: &Cache,
        stripe: &Arc<Stripe>,
        name: &[u8],
        key: KeyHash,
        token: Arc<PutToken>,
    ) -> Self {
        let stripe = Arc::clone(stripe);
        let name = Bytes::copy_from_slice(name);
        Self {
            cache: cache.clone(),
            stripe,
            name,
            key,
            token,
            replaces: None,
        }
    }

    /// The version the put will have.
    pub fn version(&self) -> Version {
        self.token.version
    }

    /// Declares that the put replaces `hit`, so that the place of `hit` in the index is freed at
    /// once.
    #[must_use]
    pub fn replacing(mut self, hit: &Hit) -> Self {
        if hit.head.fields.key == self.key {
            self.replaces = hit.head.at;
        }
        self
    }

    /// Starts writing.
    ///
    /// # Errors
    /// [`PutError::Metadata`] if the metadata is too long, [`PutError::OutOfService`] without a
    /// store.
    pub fn writer(self, put: Put) -> Result<Writer, PutError> {
        if put.metadata.len() > MAX_METADATA {
            return Err(PutError::Metadata {
                length: put.metadata.len(),
            });
        }
        if self.stripe.health() == crate::stats::Health::OutOfService || self.cache.is_closed() {
            return Err(PutError::OutOfService);
        }
        let bytes = put.metadata.len() + self.name.len() + RECORD_OVERHEAD;
        let content = put.length.unwrap_or(0);
        let reservation = reserve_head(&self.cache, &self.stripe, bytes, content);
        let reservation = reservation.ok_or(PutError::Full)?;
        let cut = Cut {
            span_pages: put.span_pages.clamp(1, MAX_SPAN_PAGES),
        };
        let stream = Stream::new(&self.cache, &self.name, self.version(), cut, 0);
        let is_too_long = put.storage == Storage::Memory && content > PAGE as u64;
        let mut writer = Writer {
            fills: false,
            fresh_until: stored_hour(&self.cache, put.fresh_until),
            intent: self,
            put,
            cut,
            stream,
            chunk: Chunk::Full,
            head_reservations: reservation.into(),
            reservations: Reservations::new(),
            written: 0,
            revision: 0,
            bypassed: false,
            kept: false,
            refused: None,
        };
        if is_too_long {
            writer.bypass();
        }
        Ok(writer)
    }
}

/// `hour` as it is stored in records.
pub(super) fn stored_hour(cache: &Cache, hour: Option<Hour>) -> u16 {
    // Without an hour the clock need not be read.
    hour.map_or(0, |_| {
        Hour::to_stored(hour, cache.shared().clock.unix_millis())
    })
}

impl Drop for Intent {
    fn drop(&mut self) {
        self.stripe.end_put(self.key, &self.token);
    }
}
