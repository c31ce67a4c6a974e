//! Objects that are empty at first, and writers that fill in missing content.
//!
//! The caller knows an object's length and validators but has only a part of its content. It
//! creates the object without content ([`Intent::incomplete`]) and fills in parts
//! ([`Hit::filler`]), which followers read like any put.
//!
//! Invariant: a filler never writes a head. Its records are found under the version of the hit it
//! was made from, so they can become part of no other object, however late they are written.
//! Cost: a record a span.

use std::ops::Range;
use std::sync::Arc;

use super::super::Hit;
use super::super::follow::{End, Stream};
use super::intent::stored_hour;
use super::memory::{RECORD_OVERHEAD, reserve, reserve_head};
use super::{Intent, Keep, Put, Writer, pending};
use crate::error::PutError;
use crate::format::{Fields, Kind};
use crate::memory::{Chunk, Reservations};
use crate::object::{MAX_METADATA, MAX_SPAN_PAGES, Storage, Version};
use crate::stripe::Accepted;

impl Intent {
    /// Puts an object without content; [`Hit::filler`] adds content to it.
    ///
    /// # Errors
    /// As [`Intent::writer`], and [`PutError::Superseded`] when a newer put or a remove came first.
    pub fn incomplete(mut self, put: Put) -> Result<Hit, PutError> {
        if put.metadata.len() > MAX_METADATA {
            return Err(PutError::Metadata {
                length: put.metadata.len(),
            });
        }
        let bytes = put.metadata.len() + self.name.len() + RECORD_OVERHEAD;
        let reservation = reserve_head(&self.cache, &self.stripe, bytes, 0);
        let reservation = reservation.ok_or(PutError::Full)?;
        let fields = Fields {
            kind: Kind::Head,
            key: self.key,
            version: self.version(),
            revision: 0,
            confirmed: self.version(),
            span: 0,
            incomplete: true,
            total: put.length,
            span_pages: put.span_pages.clamp(1, MAX_SPAN_PAGES),
            mark: put.mark,
            group: put.group,
            useless_after: put.useless_after,
            fresh_until: stored_hour(&self.cache, put.fresh_until),
            labels: super::labels(&put.labels),
        };
        let (reservations, replaces) = (Arc::new(reservation.into()), self.replaces.take());
        let head = pending(
            fields,
            &self.name,
            put.metadata,
            Vec::new(),
            replaces,
            reservations,
        );
        match self.stripe.put_head(&head, &self.token) {
            Accepted::Yes => Ok(Hit::new(self.cache.clone(), head.record.clone())),
            Accepted::OutOfService => Err(PutError::OutOfService),
            Accepted::Superseded | Accepted::Busy => Err(PutError::Superseded),
            Accepted::NoRoom => Err(PutError::Full),
        }
    }
}

impl Hit {
    /// The whole spans around `range`, which is the part that a filler can store.
    pub fn whole_spans(&self, range: Range<u64>) -> Range<u64> {
        let total = self.content_len().unwrap_or(u64::MAX);
        let bounds = |at| self.cut().bounds(self.cut().span_at(at));
        let last = range.end.saturating_sub(1).max(range.start);
        bounds(range.start).start..bounds(last).end.min(total)
    }

    /// Writes missing content from `offset` on, where a span starts. Each span is stored when it is
    /// whole; [`Writer::commit`] can finish the fill at any offset.
    ///
    /// # Errors
    /// [`PutError::Length`] if no span starts at `offset`, [`PutError::Full`] without memory.
    pub fn filler(&self, offset: u64) -> Result<Writer, PutError> {
        let announced = self.whole_spans(offset..offset).start;
        if announced != offset {
            let written = offset;
            return Err(PutError::Length { written, announced });
        }
        let cache = &self.cache;
        let reservation = reserve(cache, RECORD_OVERHEAD).ok_or(PutError::Full)?;
        let fields = &self.head.fields;
        let put = Put {
            metadata: bytes::Bytes::new(),
            length: fields.total,
            keep: Keep::Whole,
            mark: fields.mark,
            group: fields.group,
            useless_after: fields.useless_after,
            fresh_until: None,
            labels: Vec::new(),
            storage: Storage::Disk,
            span_pages: fields.span_pages,
        };
        Ok(Writer {
            intent: Intent::update(cache, &self.head.name, self.version()),
            fills: true,
            put,
            fresh_until: fields.fresh_until,
            cut: self.cut(),
            stream: Stream::new(cache, &self.head.name, self.version(), self.cut(), offset),
            chunk: Chunk::Full,
            head_reservations: reservation.into(),
            reservations: Reservations::new(),
            written: offset,
            revision: fields.revision,
            bypassed: false,
            kept: false,
            refused: None,
        })
    }
}

impl Writer {
    /// Finishes a fill: the last span is stored if it reaches the end of the object.
    pub(super) fn end_fill(&mut self) -> Version {
        let span = self.cut.span_at(self.written);
        let begun = self.written > self.cut.bounds(span).start;
        if begun && !self.bypassed && self.put.length == Some(self.written) {
            self.end_span(span);
        }
        self.stream.end(End::Complete);
        self.version()
    }
}
