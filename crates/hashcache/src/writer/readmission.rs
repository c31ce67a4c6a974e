//! Readmission: records in use are copied to the log head before the head overwrites them.
//!
//! The log evicts the oldest records, not the least used. While a segment is being filled, the
//! writer searches the next segment, which has the oldest records. It copies the records that were
//! used lately to the head, so that they stay for another lap.
//!
//! Called by `writer` after each batch. A record in memory is copied from there, others are read.
//!
//! Invariants: a copy keeps the version and gets a new MAC, because the MAC covers the place. It is
//! written only if no newer version of the name exists, and recorded only if the entry still points
//! to the original. A single thread writes all batches, so no batch is written between the two
//! checks, and a copy is never stored behind a newer version of the name. At most a quarter of a
//! lap is copied, so the log always makes room.
//! Cost: a list for each segment; at most a read for each copy, and one more for each equal tag
//! further on. After a batch the reads are limited to the room in the next batch.

use std::io;
use std::sync::Arc;

use super::DeviceWriter;
use crate::address::LogPos;
use crate::disk::Segment;
use crate::disk::circular_log::Cursor;
use crate::format::{Kind, Listed, kind_number, record_bytes};
use crate::memory::RecordHandle;
use crate::memory::{Pinned, Reservation};
use crate::record::Record;
use crate::shard::Pending;

/// At most 1/4 of the bytes in a segment are copied.
const COPIED_SHARE: u64 = 4;

/// The segment that will be opened next.
struct Victim {
    /// Cursor for the last opening.
    cursor: Cursor,
    listed: Vec<Listed>,
    /// Index of the first line in `listed` that was not visited yet.
    next: usize,
    copied_bytes: u64,
    _reservation: Reservation,
}

/// Progress of the pass through the next segment.
#[derive(Default)]
pub(crate) struct Readmission {
    victim: Option<Victim>,
    /// The segment that was started last, so that a segment that cannot be read is not tried again.
    begun: Option<Cursor>,
}

impl DeviceWriter {
    /// Copies the records in use from the segment that the head reaches next. The pass through that
    /// segment keeps pace with the filling of the open segment.
    pub(super) fn readmit(&mut self) -> io::Result<()> {
        let Some(mut readmission) = self.readmission.take() else {
            return Ok(());
        };
        let copies = self.copies(&mut readmission);
        self.readmission = Some(readmission);
        if !copies.is_empty() {
            self.write_batch(copies)?;
        }
        Ok(())
    }

    /// Returns true if a batch of `count` copies fits into the open segment. If not, it may be too
    /// late for these copies, because the next segment is the segment that they are in.
    fn has_room(&self, count: usize, bytes: usize) -> bool {
        let batch = self.stripe.log.alignment().batch(count, bytes);
        self.log.fits(count, bytes) && batch <= self.buffer.len()
    }

    fn copies(&self, readmission: &mut Readmission) -> Vec<Arc<Pending>> {
        let Some(next) = self.next_victim() else {
            return Vec::new();
        };
        if readmission.begun != Some(next) {
            readmission.begun = Some(next);
            readmission.victim = self.victim(next);
        }
        let Some(victim) = &mut readmission.victim else {
            return Vec::new();
        };
        let alignment = self.stripe.log.alignment();
        let segment_bytes = u64::from(self.stripe.medium.geometry.segment_bytes);
        // A batch ahead of the head, so that all lines were visited when the segment is full.
        let ahead = u64::from(self.log.cursor.used) + self.buffer.len() as u64;
        let filled = ahead.min(segment_bytes);
        let lines = victim.listed.len() as u64;
        let end = usize::try_from(lines * filled / segment_bytes).unwrap_or(usize::MAX);
        let most = filled / COPIED_SHARE;
        let (mut copies, mut copied) = (Vec::new(), 0);
        while victim.next < end && victim.copied_bytes < most {
            let listed = victim.listed[victim.next];
            // A record without room in this batch is visited after the next batch.
            let bytes = copied + listed.length as usize * alignment.record(1);
            if !self.has_room(copies.len() + 1, bytes) {
                return copies;
            }
            victim.next += 1;
            if let Some(copy) = self.copy(victim.cursor, &listed) {
                let bytes = alignment.record(copy.record_bytes);
                victim.copied_bytes += bytes as u64;
                copied += bytes;
                copies.push(copy);
            }
        }
        victim.next = victim.next.max(end.min(victim.listed.len()));
        copies
    }

    /// The segment behind the open segment, as of the last opening, if it was ever opened.
    fn next_victim(&self) -> Option<Cursor> {
        let (segment, next_lap) = self.log.following();
        // The data in it is from the previous lap.
        let lap = next_lap.checked_sub(1)?;
        let place = self
            .stripe
            .log
            .place(self.stripe.log.position(lap, segment, 0))?;
        Some(Cursor {
            segment,
            lap,
            stamp: place.stamp,
            used: 0,
            ordinal: 0,
        })
    }

    fn victim(&self, cursor: Cursor) -> Option<Victim> {
        let mut listed = Segment::read(&self.stripe.medium, cursor, 0, 0, None).listed;
        listed.retain(|it| it.kind == kind_number(Kind::Head));
        listed.shrink_to_fit();
        let bytes = size_of_val(&listed[..]) as u64;
        Some(Victim {
            cursor,
            listed,
            next: 0,
            copied_bytes: 0,
            _reservation: self.stripe.medium.budget.reserve(bytes)?,
        })
    }

    /// A copy of the `listed` record in the segment of `cursor`, if it is in use and the newest
    /// version of the name.
    fn copy(&self, cursor: Cursor, listed: &Listed) -> Option<Arc<Pending>> {
        let stripe = &self.stripe;
        let unit = u64::from(listed.offset);
        let at = stripe.log.position(cursor.lap, cursor.segment, unit);
        let key = listed.key;
        let (newer, hot) = {
            let shard = stripe.view(key);
            let log = shard.policy.log()?;
            let newer = stripe.newer(&shard, key, at)?;
            let (hot, used) = stripe.shared.hot.peek(key).unzip();
            let in_use = used == Some(true) || log.is_hot(key, at, stripe.log.head());
            (in_use.then_some(newer)?, hot)
        };
        // An equal tag further on can be a newer version, if the put did not name the version that
        // it replaces.
        if !newer.iter().all(|window| stripe.is_of_other(key, *window)) {
            return None;
        }
        let is_it = |record: &Pinned| {
            record.fields.version == listed.version && record.fields.revision == listed.revision
        };
        let record = match hot.filter(is_it) {
            Some(record) => RecordHandle::Pinned(record),
            None => {
                // A writer must not wait for memory that readers hold.
                let bytes = u64::from(listed.length) * u64::from(stripe.medium.geometry.unit_bytes);
                RecordHandle::alone(stripe.read_at_once(at, bytes)?)
            }
        };
        let right = record.fields.key == key && self.worth_copying(&record);
        right.then(|| copied(record, at))
    }

    /// Returns true if `record` is worth copying. Objects with more than one record are not: the
    /// head is useless without the other records.
    fn worth_copying(&self, record: &Record) -> bool {
        let fields = &record.fields;
        let useless = fields.useless_after != 0
            && fields.useless_after <= self.stripe.medium.clock.unix_millis() / 1000;
        let whole = fields.total == Some(record.content_bytes() as u64) && !fields.incomplete;
        // Records that bans have removed or made stale must not be copied, because a ban is
        // forgotten when the head has wrapped.
        whole && !useless && !self.stripe.bans.judge(record).is_barred()
    }
}

fn copied(record: RecordHandle, from: LogPos) -> Arc<Pending> {
    let record_bytes = record_bytes(
        record.name.len(),
        record.fields.label_words(),
        record.metadata.len(),
        record.content_bytes(),
    );
    // A record that was read holds a separate reservation; a hot record is accounted for by the hot
    // objects.
    Arc::new(Pending::copy(record, record_bytes, from))
}
