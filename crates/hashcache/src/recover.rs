//! Recovery: the index and the log's head, from the last checkpoint and the lists written since.
//!
//! Lists (batch headers, footers) say where records were put; whether they arrived, each record
//! proves itself when it is read. Behind a crash the log goes on in a new segment, under a new
//! stamp.
//!
//! Called by the writing thread before it writes anything.
//!
//! Invariant: what a returned `remove` took away stays away. With a checkpoint, removes since it
//! began are applied to it and to the lists; without one, all removes in the ring are, and no
//! record older than what the ring has forgotten comes back.
//! Cost: the checkpoint, plus the lists of at most a few hundred segments.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::checkpoint::{self, Restored};
use crate::circular_log::Cursor;
use crate::flush::Scribe;
use crate::format::{BATCH_HEADER, BatchHeader, FOOTER_TAIL, Footer, KIND_SLOT, Listed, Removed};
use crate::key::{KeyHash, KeyMap};
use crate::memory::AlignedBuf;
use crate::object::Version;
use crate::policy::Slot;
use crate::stripe::Stripe;

/// Fills the shards and sets the log's head and cursor.
pub(crate) fn recover(scribe: &mut Scribe) {
    let stripe = std::sync::Arc::clone(&scribe.stripe);
    let serial = scribe.superblock.checkpoint_serial;
    let forgotten_below = scribe.superblock.removes_forgotten_below;
    let journalled = scribe.journal.read(&stripe, serial, forgotten_below);
    let (removed, rules) = journalled.map(|it| (it.removed, it.rules)).unzip();
    let rules = rules.unwrap_or_default();
    for rule in &rules {
        stripe.version_was_drawn(rule.version);
    }
    // Before anything of what they bar can be found.
    stripe.rules.add(&rules, &stripe.budget);
    // Were the index file that of an older checkpoint, the next one would be written over it.
    let older = if stripe.index.stays_on_disk() {
        0
    } else {
        serial.saturating_sub(1)
    };
    let restored = removed
        .is_some()
        .then(|| checkpoint::load(&stripe, serial))
        .flatten();
    let restored = restored.filter(|it| still_there(&stripe, it)).or_else(|| {
        let restored = removed
            .is_some()
            .then(|| checkpoint::load(&stripe, older))
            .flatten();
        restored.filter(|it| still_there(&stripe, it))
    });
    // What it holds from before it came, or came back, belongs to others now.
    let since = stripe.members.since(stripe.device_id);
    let floor = match (&restored, &removed) {
        (Some(_), _) => 0,
        (None, Some(_)) => forgotten_below,
        // What was removed cannot be known, so nothing comes back.
        (None, None) => u64::MAX,
    };
    let removed = removed.unwrap_or_default();
    for removed in &removed {
        stripe.version_was_drawn(removed.version.0);
    }
    let replay = Replay {
        stripe: &stripe,
        removed: newest(&removed),
        floor: Version(floor.max(since)),
        last_batches: RefCell::default(),
    };
    match restored {
        Some(restored) => from_checkpoint(scribe, &replay, restored, &removed),
        None => {
            checkpoint::forget(&stripe);
            from_scan(scribe, &replay);
        }
    }
    if !scribe.was_clean {
        replay.unlearn_last_batches();
    }
    let cursor = scribe.log.cursor;
    stripe.version_was_drawn(cursor.stamp);
    tracing::debug!(segment = cursor.segment, lap = cursor.lap, "log recovered");
}

/// Whether the log still has the segment where a checkpoint says that replay begins. If not it has
/// come all the way round since, and only a scan knows where it stands.
fn still_there(stripe: &Stripe, restored: &Restored) -> bool {
    let cursor = restored.cursor;
    let is_open = |header: BatchHeader| header.stamp == cursor.stamp;
    cursor.used == 0 || first_header(stripe, cursor.segment).is_some_and(is_open)
}

fn newest(removed: &[Removed]) -> KeyMap<Version> {
    let mut map = KeyMap::default();
    for removed in removed {
        let version = map.entry(removed.key).or_insert(removed.version);
        *version = removed.version.max(*version);
    }
    map
}

fn from_checkpoint(
    scribe: &mut Scribe,
    replay: &Replay<'_>,
    restored: Restored,
    removed: &[Removed],
) {
    let stripe = replay.stripe;
    let cursor = restored.cursor;
    stripe.log.restore(restored.stamps, cursor);
    stripe.version_was_drawn(restored.next_version);
    if restored.next_version <= stripe.members.since(stripe.device_id) {
        stripe.shards().for_each(|mut shard| shard.policy.clear());
    }
    for removed in removed
        .iter()
        .filter(|it| it.version.0 >= restored.next_version)
    {
        stripe.forget(&mut stripe.shard(removed.key), removed.key);
    }
    if cursor.stamp == 0 {
        return from_scan(scribe, replay);
    }
    if scribe.was_clean {
        let listed = Segment::walk(stripe, cursor.segment, Some(cursor.stamp), 0, 0).listed;
        scribe.log.resume(cursor, listed);
        return;
    }
    let mut last = replay.segment(cursor, cursor.used, cursor.ordinal);
    // At most one lap: a log that is newer all the way round has passed the checkpoint.
    for _ in 0..stripe.geometry.segments {
        let segment = (last.segment + 1) % stripe.geometry.segments;
        let lap = last.lap + u64::from(segment == 0);
        let Some(first) = first_header(stripe, segment) else {
            break;
        };
        if first.stamp <= last.stamp || first.lap != lap {
            break;
        }
        let next = Cursor {
            segment,
            lap,
            stamp: first.stamp,
            used: 0,
            ordinal: 0,
        };
        last = replay.segment(next, 0, 0);
    }
    scribe.log.resume_behind(last);
}

/// Without a checkpoint: every segment says itself when it was written.
fn from_scan(scribe: &mut Scribe, replay: &Replay<'_>) {
    let stripe = replay.stripe;
    let mut found: Vec<Cursor> = Vec::new();
    for segment in 0..stripe.geometry.segments {
        let Some(first) = first_header(stripe, segment) else {
            // In its first lap the log has not come further than this.
            if found.iter().all(|cursor| cursor.lap == 0) {
                break;
            }
            continue;
        };
        found.push(Cursor {
            segment,
            lap: first.lap,
            stamp: first.stamp,
            used: 0,
            ordinal: 0,
        });
    }
    found.sort_unstable_by_key(|cursor| cursor.stamp);
    // From the very beginning on, lists tell all there is.
    let since_made = stripe.index_id.since == 0 && found.iter().all(|cursor| cursor.lap == 0);
    if since_made {
        stripe
            .shards()
            .for_each(|mut shard| shard.policy.nothing_stored());
    }
    let Some(head) = found.last().copied() else {
        return;
    };
    // What a run that was lost in a power cut left behind does not fit between these.
    let fits = |cursor: &Cursor| {
        let lap = if cursor.segment <= head.segment {
            Some(head.lap)
        } else {
            head.lap.checked_sub(1)
        };
        Some(cursor.lap) == lap
    };
    let mut last = head;
    for cursor in found.into_iter().filter(fits) {
        last = replay.segment(cursor, 0, 0);
    }
    scribe.log.resume_behind(last);
}

struct Replay<'a> {
    stripe: &'a Stripe,
    removed: KeyMap<Version>,
    /// Records of lower versions do not come back.
    floor: Version,
    /// Slots that the last two batches list.
    last_batches: RefCell<VecDeque<(u32, Vec<KeyHash>)>>,
}

impl Replay<'_> {
    /// Takes the records of a segment into the index, from `used` on. Returns where it ends.
    fn segment(&self, cursor: Cursor, used: u32, ordinal: u32) -> Cursor {
        let stripe = self.stripe;
        let segment = Segment::read(stripe, cursor, used, ordinal);
        let end = Cursor {
            used: segment.used,
            ordinal: segment.ordinal,
            ..cursor
        };
        stripe.log.opened(end);
        stripe.sweep(cursor.segment);
        let from = used / stripe.geometry.unit_bytes;
        for listed in segment.listed.iter().filter(|listed| listed.offset >= from) {
            self.record(cursor, listed);
        }
        end
    }

    /// Notes a slot that `listed` says was about to be written, and of which batch.
    fn slot(&self, listed: &Listed) {
        let mut shard = self.stripe.shard(listed.key);
        let slot = usize::try_from(listed.length).unwrap_or(usize::MAX);
        shard.policy.claimed(listed.key, Slot(slot));
        drop(shard);
        let mut last = self.last_batches.borrow_mut();
        // Slots of one batch are listed with the place of that batch.
        if last.back().is_none_or(|(place, _)| *place != listed.offset) {
            last.push_back((listed.offset, Vec::new()));
            if last.len() > 2 {
                last.pop_front();
            }
        }
        if let Some((_, keys)) = last.back_mut() {
            keys.push(listed.key);
        }
    }

    /// The slots of the last two batches may or may not have been written: a batch is only listed
    /// when all slots of the one before the last are durable.
    fn unlearn_last_batches(&self) {
        for key in self.last_batches.borrow().iter().flat_map(|(_, keys)| keys) {
            self.stripe.shard(*key).policy.unlearn(*key);
        }
    }

    fn record(&self, cursor: Cursor, listed: &Listed) {
        self.stripe.version_was_drawn(listed.version.0);
        let removed = self
            .removed
            .get(&listed.key)
            .is_some_and(|below| listed.version < *below);
        if listed.kind == KIND_SLOT {
            self.slot(listed);
        }
        let is_record = listed.kind == 1 || listed.kind == 2;
        if removed || !is_record || listed.version < self.floor {
            return;
        }
        let stripe = self.stripe;
        let at = stripe
            .log
            .position(cursor.lap, cursor.segment, u64::from(listed.offset));
        let mut shard = stripe.shard(listed.key);
        // Naming the same place as what it replaces makes a replay of what is known change nothing.
        let head = stripe.log.head();
        shard.policy.record(listed.key, at, Some(at), head);
        if listed.run > 0 {
            shard.policy.set_run(listed.key, at, listed.run, head);
        }
    }
}

/// What the lists of a segment say.
pub(crate) struct Segment {
    pub(crate) listed: Vec<Listed>,
    /// Where in `listed` the last batch begins that was walked to.
    pub(crate) last_batch: usize,
    pub(crate) used: u32,
    pub(crate) ordinal: u32,
    /// Whether the list is that of a footer.
    pub(crate) sealed: bool,
}

impl Segment {
    /// From the footer if the segment was sealed, else from the batch headers.
    pub(crate) fn read(stripe: &Stripe, cursor: Cursor, used: u32, ordinal: u32) -> Self {
        if let Some(footer) = footer(stripe, cursor.segment)
            && footer.stamp == cursor.stamp
        {
            let used = stripe.geometry.segment_bytes;
            let last_batch = footer.list.len();
            return Self {
                listed: footer.list,
                last_batch,
                used,
                ordinal,
                sealed: true,
            };
        }
        Self::walk(stripe, cursor.segment, Some(cursor.stamp), used, ordinal)
    }

    /// From the batch headers, from `used` on, as far as they follow each other.
    pub(crate) fn walk(
        stripe: &Stripe,
        segment: u64,
        stamp: Option<u64>,
        mut used: u32,
        mut ordinal: u32,
    ) -> Self {
        let mut window = Window::new(stripe, segment, WINDOW_BYTES);
        let (mut listed, mut last_batch) = (Vec::new(), 0);
        while let Some(header) = window.header(used) {
            let follows = stamp.is_none_or(|stamp| stamp == header.stamp)
                && header.ordinal == ordinal
                && header.device == stripe.device_id
                && header.batch_bytes <= stripe.geometry.segment_bytes - used;
            if !follows {
                break;
            }
            used += header.batch_bytes;
            ordinal += 1;
            last_batch = listed.len();
            listed.extend(header.list);
        }
        Self {
            listed,
            last_batch,
            used,
            ordinal,
            sealed: false,
        }
    }
}

/// The header of a segment's first batch.
pub(crate) fn first_header(stripe: &Stripe, segment: u64) -> Option<BatchHeader> {
    let header = Window::new(stripe, segment, FIRST_WINDOW_BYTES).header(0)?;
    (header.ordinal == 0 && header.device == stripe.device_id).then_some(header)
}

fn segment_offset(stripe: &Stripe, segment: u64) -> u64 {
    stripe.geometry.log_offset + segment * u64::from(stripe.geometry.segment_bytes)
}

fn footer(stripe: &Stripe, segment: u64) -> Option<Footer> {
    let bytes = stripe.geometry.segment_bytes as usize;
    let start = segment_offset(stripe, segment);
    let mut end = AlignedBuf::zeroed(bytes.min(64 << 10));
    stripe.fill(start + (bytes - end.len()) as u64, &mut end)?;
    let claimed = Footer::claimed_bytes(&end, bytes)?;
    if claimed > end.len() {
        end = AlignedBuf::zeroed(claimed.min(bytes));
        stripe.fill(start + (bytes - end.len()) as u64, &mut end)?;
    }
    debug_assert!(end.len() >= FOOTER_TAIL);
    let footer = Footer::decode(&end, &stripe.secret)?;
    (footer.device == stripe.device_id).then_some(footer)
}

/// Reads a segment piece by piece: headers of small batches lie close together.
struct Window<'a> {
    stripe: &'a Stripe,
    start: u64,
    segment_bytes: usize,
    window_bytes: usize,
    at: usize,
    bytes: AlignedBuf,
}

const WINDOW_BYTES: usize = 256 << 10;
/// Enough for the fixed part of a header; a scan of all segments reads no more of each.
const FIRST_WINDOW_BYTES: usize = 4 << 10;

impl<'a> Window<'a> {
    fn new(stripe: &'a Stripe, segment: u64, window_bytes: usize) -> Self {
        let segment_bytes = stripe.geometry.segment_bytes as usize;
        let start = segment_offset(stripe, segment);
        let bytes = AlignedBuf::zeroed(0);
        Self {
            stripe,
            start,
            segment_bytes,
            window_bytes,
            at: 0,
            bytes,
        }
    }

    /// `length` bytes at `from`, or as many as the segment has.
    fn get(&mut self, from: usize, length: usize) -> Option<&[u8]> {
        let to = (from + length).min(self.segment_bytes);
        if from < self.at || to > self.at + self.bytes.len() {
            let wanted =
                crate::format::round_up(length.max(self.window_bytes), crate::format::BLOCK);
            let size = wanted.min(self.segment_bytes.checked_sub(from)?);
            self.bytes = AlignedBuf::zeroed(size);
            self.at = from;
            if self
                .stripe
                .fill(self.start + from as u64, &mut self.bytes)
                .is_none()
            {
                self.bytes = AlignedBuf::zeroed(0);
                return None;
            }
        }
        self.bytes.get(from - self.at..to - self.at)
    }

    fn header(&mut self, at: u32) -> Option<BatchHeader> {
        let at = usize::try_from(at).ok()?;
        let claimed = BatchHeader::claimed_bytes(self.get(at, BATCH_HEADER)?)?;
        let secret = self.stripe.secret.clone();
        BatchHeader::decode(self.get(at, claimed)?, &secret)
    }
}

#[cfg(test)]
mod tests;
