//! The Disk Table: sets of slots at fixed places on a device (paper, section 3.2).
//!
//! A lookup reads a whole set: 64 KiB costs little more than the seek to it. A put writes a single
//! slot. Bytes that do not fit into the slot are stored in the log, as a tail that names the
//! record. The two writes need no order: a tail of another version is a miss.
//!
//! Called by `stripe` to look up and by `writer` to put and to clear.
//!
//! Invariants: a filled slot is in the set that is given by the name hash of the object. A slot
//! that is neither blank nor verifies may hold any name: a writer of the set overwrites the slot
//! with zeros before it treats the slot as empty, because it may verify again in a later read.
//! Cost: a read to look up, two reads for objects longer than a block; a write to store, and
//! another read if the set is not in memory.

use std::io;

use bytes::Bytes;

use crate::address::{LogPos, SetId, Slot};
use crate::bans::Bans;
use crate::disk::circular_log::LogMap;
use crate::disk::{Index, Medium, Read};
use crate::format::{Family, Prelude, RecordAddress, Removed, Tail, TailAddress};
use crate::geometry::Geometry;
use crate::hidden::KeyRange;
use crate::key::KeyHash;
use crate::memory::{AlignedBuf, Reservation};
use crate::object::Version;
use crate::policy::Occupant;
use crate::record::Record;

/// A slot with a genuine record of this store.
pub(crate) struct Filled {
    pub(crate) slot: Slot,
    pub(crate) occupant: Occupant,
    prelude: Prelude,
    block: Bytes,
}

impl Filled {
    fn decode(medium: &Medium, set: SetId, slot: Slot, block: Bytes) -> Option<Self> {
        let prelude = Prelude::decode(&block, &medium.secret, place(medium, set, slot))?;
        Some(Self {
            slot,
            occupant: occupant(&prelude),
            prelude,
            block,
        })
    }
}

fn offset(medium: &Medium, set: SetId) -> u64 {
    debug_assert!(set.0 < medium.geometry.sets);
    medium.geometry.table_offset + set.0 * medium.geometry.set_bytes()
}

/// Offset and byte size of a set.
pub(crate) fn range(medium: &Medium, set: SetId) -> (u64, usize) {
    (
        offset(medium, set),
        usize::try_from(medium.geometry.set_bytes()).unwrap_or(usize::MAX),
    )
}

/// The address that a record in a slot must prove.
pub(crate) fn place(medium: &Medium, set: SetId, slot: Slot) -> RecordAddress {
    let place = set.0 * u64::from(medium.geometry.ways) + slot.0 as u64;
    RecordAddress {
        device: medium.device_id,
        stamp: 0,
        place,
    }
}

/// The slots in a set.
pub(crate) struct SetContent {
    pub(crate) filled: Vec<Filled>,
    /// True if all other slots are blank. If false, memory must not treat them as empty.
    pub(crate) is_sound: bool,
}

/// Reads the filled slots in a set. `None` if the set cannot be read.
pub(crate) fn read_set(medium: &Medium, set: SetId) -> Option<SetContent> {
    let bytes = usize::try_from(medium.geometry.set_bytes()).ok()?;
    let block = medium.geometry.block_bytes as usize;
    let whole = medium.read_bytes(offset(medium, set), bytes)?;
    let (mut filled, mut is_sound) = (Vec::new(), true);
    for n in 0..medium.geometry.ways as usize {
        let block = whole.slice(n * block..(n + 1) * block);
        match Filled::decode(medium, set, Slot(n), block.clone()) {
            Some(slot) => filled.push(slot),
            None => is_sound &= is_blank(&block),
        }
    }
    Some(SetContent { filled, is_sound })
}

fn is_blank(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

/// Reads a slot in a set; `None` if it is empty, does not verify or cannot be read.
pub(crate) fn read_slot(medium: &Medium, set: SetId, slot: Slot) -> Option<Filled> {
    let bytes = medium.geometry.block_bytes as usize;
    let at = offset(medium, set) + (slot.0 * bytes) as u64;
    let block = medium.read_bytes(at, bytes)?.slice(..bytes);
    Filled::decode(medium, set, slot, block)
}

/// Converts the filled slots in a set to a list with an entry for each slot.
pub(crate) fn occupied(medium: &Medium, filled: &[Filled]) -> Vec<Option<Occupant>> {
    let mut slots = vec![None; medium.geometry.ways as usize];
    for filled in filled {
        slots[filled.slot.0] = Some(filled.occupant);
    }
    slots
}

/// The record in a filled slot, with the tail if there is a tail.
pub(crate) fn read_record(medium: &Medium, log: &LogMap, filled: &Filled) -> Read {
    let prelude = &filled.prelude;
    let (whole, at) = match prelude.tail {
        None => (filled.block.clone(), None),
        Some(tail) => match read_tail(medium, log, filled, tail) {
            Ok(whole) => (whole, Some(LogPos(tail.position))),
            Err(read) => return read,
        },
    };
    let Some((metadata, content)) = prelude.body(&medium.secret, &whole) else {
        return Read::Damaged;
    };
    if at.is_some_and(|at| !log.is_live(at)) {
        return Read::Passed;
    }
    Read::Record(Box::new(Record {
        fields: prelude.fields.clone(),
        name: prelude.name.clone(),
        metadata,
        content: if content.is_empty() {
            Vec::new()
        } else {
            vec![content]
        },
        at: None,
        storage: crate::object::Storage::Disk,
        judged: std::sync::atomic::AtomicU64::default(),
    }))
}

fn read_tail(
    medium: &Medium,
    log: &LogMap,
    filled: &Filled,
    tail: TailAddress,
) -> Result<Bytes, Read> {
    let at = LogPos(tail.position);
    let length = usize::try_from(tail.length).map_err(|_| Read::Damaged)?;
    let place = log.place(at).ok_or(Read::Passed)?;
    let (offset, left) = log.device_range(at);
    let wanted = crate::format::TAIL_HEADER + length;
    if wanted as u64 > left || length > crate::object::PAGE * 8 {
        return Err(Read::Damaged);
    }
    let bytes = medium.try_read_bytes(offset, wanted)?;
    let fields = &filled.prelude.fields;
    let expected = Tail {
        key: fields.key,
        version: fields.version,
        revision: fields.revision,
    };
    let Some(rest) = expected.decode(&bytes, &medium.secret, place, length) else {
        return Err(if log.is_live(at) {
            Read::Damaged
        } else {
            Read::Passed
        });
    };
    let whole = filled.block.len() + rest.len();
    let reservation = medium.budget.reserve(whole as u64).ok_or(Read::Failed)?;
    Ok(joined(&filled.block, rest, reservation))
}

fn joined(block: &[u8], tail: &[u8], reservation: Reservation) -> Bytes {
    let mut whole = AlignedBuf::reserved(block.len() + tail.len(), reservation);
    whole[..block.len()].copy_from_slice(block);
    whole[block.len()..].copy_from_slice(tail);
    Bytes::from_owner(whole)
}

/// Writes a slot block.
pub(crate) fn write_slot(medium: &Medium, set: SetId, slot: Slot, block: &[u8]) -> io::Result<()> {
    debug_assert_eq!(block.len(), medium.geometry.block_bytes as usize);
    medium.write(
        offset(medium, set) + slot.0 as u64 * block.len() as u64,
        block,
    )
}

/// Clears the slots that hold older versions of the removed key. Returns the number of bytes
/// written. Durable after the caller's sync.
pub(crate) fn clear(
    medium: &Medium,
    index: &Index,
    buffer: &mut AlignedBuf,
    removed: &Removed,
    set: SetId,
) -> io::Result<u64> {
    let (preludes, mut written) = preludes(medium, index, buffer, set)?;
    let slots = preludes.iter().map(|it| it.as_ref().map(occupant));
    for (slot, occupant) in slots.enumerate() {
        let old = |it: Occupant| it.key == removed.key && it.version < removed.version;
        if occupant.is_some_and(old) {
            clear_slot(medium, index, removed.key, set, Slot(slot))?;
            written += u64::from(medium.geometry.block_bytes);
        }
    }
    Ok(written)
}

/// Clears the slots of `set` that hold names in `range` with versions below `below`. Returns the
/// number of bytes written. Durable after the caller's sync.
pub(crate) fn clear_range(
    medium: &Medium,
    index: &Index,
    buffer: &mut AlignedBuf,
    (range, below): (KeyRange, Version),
    set: SetId,
) -> io::Result<u64> {
    let (preludes, mut written) = preludes(medium, index, buffer, set)?;
    for (slot, prelude) in preludes.iter().enumerate() {
        let old = |it: &Occupant| range.has(it.key) && it.version < below;
        if let Some(occupant) = prelude.as_ref().map(occupant).filter(old) {
            clear_slot(medium, index, occupant.key, set, Slot(slot))?;
            // No later pass for a ban would find this slot, so the reads of it are marked here.
            index.shard(occupant.key).cleared(occupant.key);
            written += u64::from(medium.geometry.block_bytes);
        }
    }
    Ok(written)
}

/// Clears a slot in the set of `key`.
pub(crate) fn clear_slot(
    medium: &Medium,
    index: &Index,
    key: KeyHash,
    set: SetId,
    slot: Slot,
) -> io::Result<()> {
    let empty = AlignedBuf::zeroed(medium.geometry.block_bytes as usize);
    write_slot(medium, set, slot, &empty)?;
    if let Some(table) = index.shard(key).policy.table_mut() {
        table.vacated(key, slot);
    }
    Ok(())
}

/// Clears the slots of `set` with a record that bans have removed, or made stale up to
/// `stale_upto`, and the slots of older versions beside it. Returns the number of bytes written.
/// Durable after the caller's sync.
pub(crate) fn clear_barred(
    medium: &Medium,
    index: &Index,
    bans: &Bans,
    buffer: &mut AlignedBuf,
    set: SetId,
    stale_upto: Version,
) -> io::Result<u64> {
    let (preludes, wiped) = preludes(medium, index, buffer, set)?;
    let clears = |it: &&Prelude| bans.clears(&it.fields, &it.name, stale_upto);
    let gone: Vec<_> = preludes.iter().flatten().filter(clears).collect();
    let is_gone = |it: &Prelude| {
        let (key, version) = (it.fields.key, it.fields.version);
        gone.iter()
            .any(|gone| gone.fields.key == key && version <= gone.fields.version)
    };
    let mut cleared = wiped;
    for (slot, prelude) in preludes.iter().enumerate() {
        if let Some(prelude) = prelude.as_ref().filter(|it| is_gone(it)) {
            clear_slot(medium, index, prelude.fields.key, set, Slot(slot))?;
            cleared += u64::from(medium.geometry.block_bytes);
        }
    }
    // After the writes, so that a later read finds cleared slots. All reads of the set are marked,
    // because a put may have overwritten a slot that an earlier read has seen, and the bans are
    // forgotten soon.
    forget_reads(medium, index, set);
    Ok(cleared)
}

/// Reads the slots in a set, before a write to that set. A slot that cannot be read, or does not
/// verify, is overwritten: it could hold an older version of the object that is written or removed
/// now, and become readable later.
pub(crate) fn occupants(
    medium: &Medium,
    index: &Index,
    buffer: &mut AlignedBuf,
    set: SetId,
) -> io::Result<Vec<Option<Occupant>>> {
    let (preludes, _) = preludes(medium, index, buffer, set)?;
    Ok(preludes
        .iter()
        .map(|it| it.as_ref().map(occupant))
        .collect())
}

/// Reads the slots in a set. Also returns how many bytes were overwritten in it.
fn preludes(
    medium: &Medium,
    index: &Index,
    buffer: &mut AlignedBuf,
    set: SetId,
) -> io::Result<(Vec<Option<Prelude>>, u64)> {
    let bytes = medium.geometry.block_bytes as usize;
    let (mut preludes, mut damaged) = (Vec::new(), Vec::new());
    // Read a damaged set again, because a single wrong read must not lose an object.
    for _ in 0..2 {
        if medium.fill(offset(medium, set), buffer).is_none() {
            buffer.fill(0);
            medium.write(offset(medium, set), buffer)?;
            forget_reads(medium, index, set);
            return Ok((
                vec![None; medium.geometry.ways as usize],
                buffer.len() as u64,
            ));
        }
        preludes = buffer
            .chunks(bytes)
            .enumerate()
            .map(|(n, block)| Prelude::decode(block, &medium.secret, place(medium, set, Slot(n))))
            .collect();
        damaged = (0..preludes.len())
            .filter(|n| preludes[*n].is_none() && !is_blank(&buffer[n * bytes..(n + 1) * bytes]))
            .collect::<Vec<_>>();
        if damaged.is_empty() {
            break;
        }
    }
    for n in &damaged {
        medium.counters.damaged.add(1);
        clear_slot(medium, index, any_key(medium, set), set, Slot(*n))?;
    }
    if !damaged.is_empty() {
        forget_reads(medium, index, set);
    }
    Ok((preludes, (damaged.len() * bytes) as u64))
}

/// A key that belongs to `set`, for slots without a known name.
fn any_key(medium: &Medium, set: SetId) -> KeyHash {
    let first = (u128::from(set.0) << 64).div_ceil(u128::from(medium.geometry.sets));
    KeyHash {
        high: u64::try_from(first).unwrap_or(u64::MAX),
        low: 0,
    }
}

/// Marks the reads of `set` in flight as gone: slots that may have held any name were overwritten,
/// so those reads do not count.
fn forget_reads(medium: &Medium, index: &Index, set: SetId) {
    let sets = medium.geometry.sets;
    let mut shard = index.shard(any_key(medium, set));
    let of_set = |key: &&KeyHash| key.set(sets) == set.0;
    let keys: Vec<KeyHash> = shard.in_flight.keys().filter(of_set).copied().collect();
    keys.into_iter().for_each(|key| shard.cleared(key));
}

fn occupant(prelude: &Prelude) -> Occupant {
    Occupant {
        key: prelude.fields.key,
        version: prelude.fields.version,
    }
}

/// Buffer size in bytes for [`occupants`].
pub(crate) fn set_buffer_bytes(geometry: &Geometry) -> usize {
    match geometry.family {
        Family::Log => 0,
        Family::Table => usize::try_from(geometry.set_bytes()).unwrap_or(usize::MAX),
    }
}
