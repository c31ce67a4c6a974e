//! Batches: records to the log; slots, and their tails to the log, for the Disk Table.
//!
//! Called by `writer` with records from the queue; calls `disk/circular_log`, `disk/table` and
//! `format`.
//!
//! Invariants: the head moves before a batch is written, so a reader never accepts half-overwritten
//! bytes as a record. After the write has returned, the index gets the entries; only then do the
//! records leave the pending map, so a lookup finds each record at every moment.
//! Cost: see `policy`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{BackgroundWrite, DeviceWriter};
use crate::address::{LogPos, SetId, Slot};
use crate::disk::circular_log::{Cursor, LEFT_OUT_IN_A_ROW_MAX};
use crate::disk::table;
use crate::format::{
    Family, IO_BLOCK, KIND_SLOT, KIND_TAIL, Listed, RecordAddress, TAIL_HEADER, Tail, TailAddress,
    encode_record, kind_number, round_up,
};
use crate::memory::{AlignedBuf, Arrival, Copied};
use crate::observers::{Event, MarkedObject};
use crate::shard::{Pending, Shard};
use crate::write_queue::{BatchRecord, group_of, runs};

const TABLE_ONLY: &str = "`write_batch` claims and writes slots in the Disk Table only";

/// Records of a batch, and their positions.
pub(super) struct Written {
    batch: Vec<Arc<Pending>>,
    places: Vec<LogPos>,
    runs: Vec<u8>,
}

/// Position of a record in the log, length of its run, and the log head.
#[derive(Clone, Copy)]
struct Placed {
    at: LogPos,
    run: u8,
    head: LogPos,
}

impl DeviceWriter {
    /// Writes `batch`. A large log batch may still be in flight when this returns
    /// ([`DeviceWriter::wait_for_write`]).
    pub(super) fn write_batch(&mut self, batch: Vec<Arc<Pending>>) -> io::Result<()> {
        match self.stripe.medium.geometry.family {
            Family::Log => self.write_log_batch(batch),
            Family::Table => self.write_table_batch(&batch),
        }
    }

    // -- the log ------------------------------------------------------------------------------

    fn write_log_batch(&mut self, batch: Vec<Arc<Pending>>) -> io::Result<()> {
        let alignment = self.stripe.log.alignment();
        let sizes: Vec<usize> = batch
            .iter()
            .map(|it| alignment.record(it.record_bytes))
            .collect();
        let first = self.make_room(sizes.len(), sizes.iter().sum())?;
        let cursor = self.log.cursor;
        let runs = self.runs(&batch, &sizes);
        let mut at = first;
        let mut in_buffer = first - usize_of(cursor.used);
        let mut list = Vec::with_capacity(batch.len());
        let mut places = Vec::with_capacity(batch.len());
        for ((pending, size), run) in batch.iter().zip(&sizes).zip(&runs) {
            let place = alignment.units(at);
            let spot = RecordAddress {
                device: self.stripe.medium.device_id,
                stamp: cursor.stamp,
                place,
            };
            let out = &mut self.buffer[in_buffer..in_buffer + size];
            let written = encode(&self.stripe.medium.secret, out, pending, spot, None);
            out[written..].fill(0);
            let kind = kind_number(pending.record.fields.kind);
            list.push(Listed {
                run: *run,
                ..listed(pending, place, alignment.units(*size), kind)
            });
            places.push(self.stripe.log.position(cursor.lap, cursor.segment, place));
            at += size;
            in_buffer += size;
        }
        let (at, bytes) = self.seal(in_buffer, list);
        let earlier = self.finish()?;
        self.stripe.log.opened(self.log.cursor);
        self.unsynced_bytes += bytes as u64;
        let written = Written {
            batch,
            places,
            runs,
        };
        // The previous batch is recorded first: if two entries could have the same name, the later
        // entry must be the newer. But this batch is given to the device before that: recording
        // takes half as long as a write, and the device would be idle.
        match &mut self.background {
            Some(background) if background.takes(bytes) => {
                background.begin(at, bytes, &mut self.buffer);
                self.under_way = Some(written);
                self.record(earlier);
            }
            _ => {
                self.record(earlier);
                self.write_side()?;
                self.stripe.medium.write(at, &self.buffer[..bytes])?;
                self.record(Some(written));
            }
        }
        Ok(())
    }

    /// Waits for the write in flight, if there is any, and records the batch. Writes the queued
    /// side write, too, so that after this everything handed over is on the device.
    pub(super) fn wait_for_write(&mut self) -> io::Result<()> {
        let written = self.finish()?;
        self.record(written);
        self.write_side()
    }

    /// Writes the queued side write now. No write is in flight.
    fn write_side(&mut self) -> io::Result<()> {
        if let Some(background) = &mut self.background {
            let took = background.write_side(&self.stripe)?;
            self.side_was_written(took);
        }
        Ok(())
    }

    /// If the side write was a checkpoint part, the pace of the checkpoint depends on the time it
    /// took.
    fn side_was_written(&mut self, took: Option<Duration>) {
        if let (Some(took), Some(checkpoint)) = (took, &mut self.checkpoint) {
            checkpoint.others_wrote(self.stripe.medium.clock.monotone(), took);
        }
    }

    /// Waits for the write in flight. The caller must record the batch.
    fn finish(&mut self) -> io::Result<Option<Written>> {
        let written = self.under_way.take();
        if let (Some(_), Some(background)) = (&written, &mut self.background) {
            let took = background.finish()?;
            self.side_was_written(took);
        }
        Ok(written)
    }

    /// Waits for the write in flight and drops the batch, because the device has failed.
    pub(super) fn drop_under_way(&mut self) {
        if let (Some(_), Some(background)) = (self.under_way.take(), &mut self.background) {
            let _ = background.finish();
        }
    }

    /// Records a batch in the index: after this, lookups find the records on disk.
    fn record(&self, written: Option<Written>) {
        let Some(Written {
            batch,
            places,
            runs,
        }) = written
        else {
            return;
        };
        self.stripe.medium.counters.batches.add(1);
        // Before the index has the entries: see `observers`.
        self.report(&batch);
        let head = self.stripe.log.head();
        // Sort by shard, so that each lock is taken once. Within a shard the batch order stays: of
        // two records with the same key the later record is recorded later.
        let shard_of = |n: usize| batch[n].record.fields.key.shard();
        let mut order: Vec<(usize, usize)> = (0..batch.len()).map(|n| (shard_of(n), n)).collect();
        order.sort_unstable();
        for of_shard in order.chunk_by(|one, other| one.0 == other.0) {
            let copy = |(_, n): &(usize, usize)| self.copy_hot(&batch[*n], Some(places[*n]));
            let copies: Vec<Option<Copied>> = of_shard.iter().map(copy).collect();
            let mut shard = self.stripe.shard_at(of_shard[0].0);
            let mut left_out = Vec::new();
            for ((_, n), copied) in of_shard.iter().zip(copies) {
                let placed = Placed {
                    at: places[*n],
                    run: runs[*n],
                    head,
                };
                if !self.record_one(&mut shard, &batch[*n], placed, copied) {
                    left_out.push(*n);
                }
            }
            // Under the same lock, because no lookup may see an entry that leads to a record that
            // was left out; and after all records that count, because those have made their entries
            // then.
            if let Some(log) = shard.policy.log_mut() {
                for n in left_out {
                    log.leave_out(batch[n].record.fields.key, places[n], head);
                }
            }
        }
    }

    /// Reports the records in `batch` to observers.
    fn report(&self, batch: &[Arc<Pending>]) {
        let stripe = &self.stripe;
        if !stripe.shared.observers.any() {
            return;
        }
        let now = stripe.medium.clock.unix_millis();
        let objects = batch.iter().filter_map(|it| stripe.pending_object(it, now));
        let objects: Vec<MarkedObject> = objects.collect();
        if !objects.is_empty() {
            stripe.shared.observers.report(Event::Recorded {
                device: stripe.medium.device_id,
                objects: &objects,
            });
        }
    }

    /// Reports to observers that the log overwrites a segment.
    fn report_reclaimed(&self, held_anything: bool) {
        let stripe = &self.stripe;
        if held_anything && stripe.shared.observers.any() {
            let segment_bytes = u64::from(stripe.medium.geometry.segment_bytes);
            stripe.shared.observers.report(Event::Reclaimed {
                device: stripe.medium.device_id,
                segment_bytes,
                log_bytes: stripe.medium.geometry.segments * segment_bytes,
            });
        }
    }

    /// Records `pending` where it is `placed`, unless it was superseded while it was written, and
    /// inserts the copy into the hot objects if there is a copy. Returns true if the record counts.
    fn record_one(
        &self,
        shard: &mut Shard,
        pending: &Arc<Pending>,
        placed: Placed,
        copied: Option<Copied>,
    ) -> bool {
        let key = pending.record.fields.key;
        let (replaces, counts) = match pending.copies {
            // The original may have been removed or replaced since the copy was made.
            Some(from) => (Some(from), self.stripe.newer(shard, key, from).is_some()),
            None => (pending.replaces, shard.written(pending)),
        };
        if !counts {
            return false;
        }
        let Placed { at, run, head } = placed;
        if let Some(log) = shard.policy.log_mut() {
            log.record(key, at, replaces, head);
            if run > 0 {
                log.set_run(key, at, run, head);
            }
        }
        if pending.copies.is_some() {
            self.stripe.medium.counters.readmitted.add(1);
        }
        copied.and_then(|it| self.stripe.shared.hot.insert(it, Arrival::Wanted));
        true
    }

    /// Length of the run of each record in `batch`, given the record `sizes`.
    fn runs(&self, batch: &[Arc<Pending>], sizes: &[usize]) -> Vec<u8> {
        if !self.stripe.index.id.policy.grouped {
            return vec![0; batch.len()];
        }
        let records = batch
            .iter()
            .zip(sizes)
            .map(|(pending, &bytes)| BatchRecord {
                group: group_of(pending),
                kind: pending.record.fields.kind,
                bytes,
            });
        runs(&records.collect::<Vec<_>>())
    }

    /// Copies a record for the hot objects if it was requested while it was pending, or if memory
    /// is free. Called before the shard lock is taken, because making room may take long.
    fn copy_hot(&self, pending: &Pending, at: Option<LogPos>) -> Option<Copied> {
        let budget = &self.stripe.medium.budget;
        let hot = &self.stripe.shared.hot;
        let roomy = || hot.may_grow() && budget.used() < budget.reservable() / 4 * 3;
        let is_wanted =
            pending.copies.is_none() && !pending.is_dead() && (pending.was_asked_for() || roomy());
        is_wanted.then(|| hot.copy(&pending.record, at)).flatten()
    }

    /// Opens the next segment if `count` records of `bytes` bytes in total do not fit into this
    /// segment. Returns the byte offset of the first record in the segment.
    fn make_room(&mut self, count: usize, bytes: usize) -> io::Result<usize> {
        if !self.log.fits(count, bytes) {
            self.open_segment()?;
        }
        Ok(self.log.first_record(count))
    }

    /// Seals the open segment with a footer, which is written now or with the next batch, and opens
    /// the next segment.
    fn open_segment(&mut self) -> io::Result<()> {
        let stripe = Arc::clone(&self.stripe);
        let side_buffer = self
            .background
            .as_mut()
            .and_then(BackgroundWrite::side_buffer);
        let goes_beside = side_buffer.is_some();
        let out = side_buffer.unwrap_or(&mut self.buffer);
        if let Some((at, bytes)) = self.log.footer(out, &stripe.medium.secret) {
            // The footer overwrites bytes of the last lap, so the head moves first here, too.
            let end = Cursor {
                used: stripe.medium.geometry.segment_bytes,
                ..self.log.cursor
            };
            stripe.log.opened(end);
            let at = stripe.medium.geometry.log_offset + at;
            match &mut self.background {
                Some(background) if goes_beside => background.queue_side_write(at, bytes),
                _ => stripe.medium.write(at, &self.buffer[..bytes])?,
            }
            self.unsynced_bytes += bytes as u64;
        }
        for _ in 0..LEFT_OUT_IN_A_ROW_MAX {
            let (segment, _) = self.log.following();
            if !stripe
                .medium
                .bad_places
                .leaves_out(&stripe.medium.geometry, segment)
            {
                break;
            }
            tracing::warn!(segment, "log segment skipped: reads of it failed");
            self.log.leave_out();
            let held_anything = stripe.log.was_opened(segment);
            stripe.log.left_out(segment);
            self.segments_since_checkpoint += 1;
            stripe.sweep(segment);
            self.report_reclaimed(held_anything);
        }
        let cursor = self.log.next_segment(stripe.draw_version().0);
        let held_anything = stripe.log.was_opened(cursor.segment);
        stripe.log.opened(cursor);
        self.segments_since_checkpoint += 1;
        stripe.sweep(cursor.segment);
        self.report_reclaimed(held_anything);
        Ok(())
    }

    /// Completes the batch with records in the buffer up to `filled`. Returns the device offset and
    /// the length in bytes.
    fn seal(&mut self, filled: usize, list: Vec<Listed>) -> (u64, usize) {
        let bytes = self.stripe.log.alignment().batch_end(filled);
        self.buffer[filled..bytes].fill(0);
        let at = self.stripe.medium.geometry.log_offset + self.log.batch_offset();
        self.log
            .seal_batch(&mut self.buffer, bytes, list, &self.stripe.medium.secret);
        (at, bytes)
    }

    /// Writes the batch with records in the buffer up to `filled`; the head moves first.
    fn write_out(&mut self, filled: usize, list: Vec<Listed>) -> io::Result<()> {
        let (at, bytes) = self.seal(filled, list);
        self.stripe.log.opened(self.log.cursor);
        self.stripe.medium.write(at, &self.buffer[..bytes])?;
        self.stripe.medium.counters.batches.add(1);
        self.unsynced_bytes += bytes as u64;
        Ok(())
    }

    // -- slots --------------------------------------------------------------------------------

    fn write_table_batch(&mut self, batch: &[Arc<Pending>]) -> io::Result<()> {
        let mut order: Vec<usize> = (0..batch.len()).collect();
        let sets = self.stripe.medium.geometry.sets;
        order.sort_by_key(|n| batch[*n].record.fields.key.set(sets));
        if self.stripe.index.id.policy.kind.keeps_lists() {
            return self.write_listed_slots(batch, &order);
        }
        let tails = self.write_tails(batch, &[])?;
        for n in order {
            if batch[n].is_dead() {
                continue;
            }
            let slot = self.claim(&batch[n])?;
            self.write_slot(&batch[n], slot, tails[n])?;
        }
        Ok(())
    }

    /// Writes slots for policies with the set index in memory: the slot of each record is on disk
    /// in a list before the slot is written. So after a crash the index knows every slot that may
    /// have been written; the sets of the last two batches, which may or may not have been written,
    /// are read again.
    fn write_listed_slots(&mut self, batch: &[Arc<Pending>], order: &[usize]) -> io::Result<()> {
        let mut slots = vec![None; batch.len()];
        for n in order.iter().copied().filter(|n| !batch[*n].is_dead()) {
            slots[n] = Some(self.claim(&batch[n])?);
        }
        let tails = self.write_tails(batch, &slots)?;
        self.sync()?;
        for n in order.iter().copied() {
            if let Some(slot) = slots[n] {
                self.write_slot(&batch[n], slot, tails[n])?;
            }
        }
        Ok(())
    }

    /// Claims the slot for a record. Reads the set if the policy does not know it.
    fn claim(&mut self, pending: &Pending) -> io::Result<Slot> {
        let stripe = Arc::clone(&self.stripe);
        let key = pending.record.fields.key;
        let mut shard = stripe.shard(key);
        let table = shard.policy.table_mut().expect(TABLE_ONLY);
        if !table.wants_slots(key) {
            // Check and claim under one lock: in between, a reader that loads another set could
            // take the row of this set.
            return Ok(table.claim(key, &[]));
        }
        drop(shard);
        let set = SetId(key.set(stripe.medium.geometry.sets));
        let mut slots = table::occupants(&stripe.medium, &stripe.index, &mut self.set_buffer, set)?;
        let surplus = stripe
            .view(key)
            .policy
            .table()
            .expect(TABLE_ONLY)
            .surplus(&slots);
        for slot in surplus {
            table::clear_slot(&stripe.medium, &stripe.index, key, set, slot)?;
            slots[slot.0] = None;
        }
        let mut shard = stripe.shard(key);
        Ok(shard
            .policy
            .table_mut()
            .expect(TABLE_ONLY)
            .claim(key, &slots))
    }

    /// Writes the parts of records that do not fit into slots to the log, in one batch, and lists
    /// `slots` with it.
    fn write_tails(
        &mut self,
        batch: &[Arc<Pending>],
        slots: &[Option<Slot>],
    ) -> io::Result<Vec<Option<TailAddress>>> {
        let block = usize_of(self.stripe.medium.geometry.block_bytes);
        let alignment = self.stripe.log.alignment();
        let mut tails = vec![None; batch.len()];
        let long: Vec<usize> = (0..batch.len())
            .filter(|n| batch[*n].record_bytes > block)
            .collect();
        let to_list = slots.iter().flatten().count();
        if long.is_empty() && to_list == 0 {
            return Ok(tails);
        }
        let length = |n: usize| batch[n].record_bytes - block;
        let sizes: Vec<usize> = long
            .iter()
            .map(|n| alignment.record(TAIL_HEADER + length(*n)))
            .collect();
        let mut at = self.make_room(long.len() + to_list, sizes.iter().sum())?;
        let cursor = self.log.cursor;
        let mut in_buffer = at - usize_of(cursor.used);
        let mut list = Vec::with_capacity(long.len() + to_list);
        let first = alignment.units(at);
        for (pending, slot) in batch.iter().zip(slots) {
            if let Some(slot) = slot {
                list.push(listed(pending, first, slot.0 as u64, KIND_SLOT));
            }
        }
        for (n, size) in long.into_iter().zip(sizes) {
            let pending = &batch[n];
            let place = alignment.units(at);
            let fields = &pending.record.fields;
            // The bytes beyond the slot do not depend on the place of the slot, which is not known
            // yet.
            let nowhere = RecordAddress {
                device: self.stripe.medium.device_id,
                stamp: 0,
                place: 0,
            };
            let mut whole = vec![0; pending.record_bytes];
            encode(
                &self.stripe.medium.secret,
                &mut whole,
                pending,
                nowhere,
                None,
            );
            let tail = Tail {
                key: fields.key,
                version: fields.version,
                revision: fields.revision,
            };
            let out = &mut self.buffer[in_buffer..in_buffer + size];
            out.fill(0);
            let spot = RecordAddress {
                device: self.stripe.medium.device_id,
                stamp: cursor.stamp,
                place,
            };
            tail.encode(out, &self.stripe.medium.secret, spot, &whole[block..]);
            list.push(listed(pending, place, alignment.units(size), KIND_TAIL));
            tails[n] = Some(TailAddress {
                position: self
                    .stripe
                    .log
                    .position(cursor.lap, cursor.segment, place)
                    .0,
                length: u32::try_from(length(n)).expect("a record has far less than 4 GiB"),
            });
            at += size;
            in_buffer += size;
        }
        self.write_out(in_buffer, list)?;
        Ok(tails)
    }

    fn write_slot(
        &mut self,
        pending: &Arc<Pending>,
        slot: Slot,
        tail: Option<TailAddress>,
    ) -> io::Result<()> {
        let stripe = Arc::clone(&self.stripe);
        let key = pending.record.fields.key;
        let set = SetId(key.set(stripe.medium.geometry.sets));
        let block = usize_of(stripe.medium.geometry.block_bytes);
        let mut buffer = AlignedBuf::zeroed(round_up(pending.record_bytes.max(block), IO_BLOCK));
        let place = table::place(&stripe.medium, set, slot);
        encode(&stripe.medium.secret, &mut buffer, pending, place, tail);
        table::write_slot(&stripe.medium, set, slot, &buffer[..block])?;
        self.unsynced_bytes += block as u64;
        let copied = self.copy_hot(pending, None);
        let mut shard = stripe.shard(key);
        shard.policy.table_mut().expect(TABLE_ONLY).written(key);
        if stripe.slot_was_written(&mut shard, pending) {
            copied.and_then(|it| stripe.shared.hot.insert(it, Arrival::Wanted));
        }
        Ok(())
    }
}

fn encode(
    secret: &crate::key::Secret,
    out: &mut [u8],
    pending: &Pending,
    place: RecordAddress,
    tail: Option<TailAddress>,
) -> usize {
    let record = &pending.record;
    let (name, metadata) = (&record.name, &record.metadata);
    encode_record(
        out,
        secret,
        &record.fields,
        place,
        tail,
        name,
        metadata,
        &record.content,
    )
}

fn listed(pending: &Pending, place: u64, units: u64, kind: u8) -> Listed {
    let fields = &pending.record.fields;
    Listed {
        key: fields.key,
        version: fields.version,
        revision: fields.revision,
        mark: fields.listed_mark(),
        offset: u32::try_from(place).expect("a segment has at most 2^23 units"),
        length: u32::try_from(units).expect("a record has fewer units than its segment"),
        run: 0,
        kind,
        fresh_until: fields.fresh_until,
    }
}

fn usize_of(n: u32) -> usize {
    usize::try_from(n).expect("the engine needs 32-bit addresses at least")
}
