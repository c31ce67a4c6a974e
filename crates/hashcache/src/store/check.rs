//! Inspects a store offline: verifies every record, or reads only the superblock.

use crate::address::SetId;
use crate::config::{Config, PolicyKind, Rows};
use crate::disk::checkpoint;
use crate::disk::circular_log::Cursor;
use crate::disk::journal;
use crate::disk::table;
use crate::disk::{Read, Segment, first_header};
use crate::error::OpenError;
use crate::format::{KIND_SLOT, Superblock};
use crate::geometry::IndexPolicy;
use crate::membership::{DEVICES_MAX, Member};
use crate::object::PAGE;
use crate::stats::bits_each;
use crate::store::device::{self, DevicePath, Opened};
use crate::store::sizing;
use crate::stripe::Stripe;

/// Result of a check; see [`CheckReport::is_well`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Records that verify: heads, spans and tails.
    pub records: u64,
    /// Bytes of content and metadata in the records that verify.
    pub bytes: u64,
    /// Records that were written and do not verify.
    pub damaged: u64,
    /// Records of the last batch in a run that crashed: their write never finished, which is no
    /// damage.
    pub cut_off: u64,
    /// Segments and sets that were checked.
    pub areas: u64,
    /// Copies A and B of the superblock that do not verify.
    pub superblocks_damaged: [bool; 2],
    /// Blocks of the remove journal that were written and do not verify.
    pub journal_blocks_damaged: u64,
    /// Parts of the last checkpoint that do not verify.
    pub checkpoint_parts_damaged: u64,
}

impl CheckReport {
    /// Returns true if everything that was written verifies.
    pub fn is_well(&self) -> bool {
        self.damaged == 0
            && self.superblocks_damaged == [false; 2]
            && self.journal_blocks_damaged == 0
            && self.checkpoint_parts_damaged == 0
    }
}

/// A member device, as the other devices of the store record it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberDevice {
    /// Device number in the store.
    pub device: u16,
    /// Device size, bytes: the device's share of the objects is in proportion to it.
    pub device_bytes: u64,
}

/// Contents of a superblock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Inspection {
    /// Format version of the store.
    pub format_version: u32,
    /// Random ID, drawn when the store was created.
    pub store_id: u128,
    /// Number of this device in the store.
    pub device: u16,
    /// The member devices when this device was last part of the store.
    pub members: Vec<MemberDevice>,
    /// The policy of the last open.
    pub policy: &'static str,
    /// Rows that a name may be in, with `log`.
    pub rows: Option<u8>,
    /// True if the index entries have room for runs.
    pub grouped: bool,
    /// The first version since which only that policy opened the store; 0: from the start.
    pub policy_since: u64,
    /// The member devices over time, each list with the first version, oldest first.
    pub memberships: Vec<(u64, Vec<MemberDevice>)>,
    /// Without a checkpoint, no record below this version is restored: removes may be gone from the
    /// journal.
    pub removes_forgotten_below: u64,
    /// How often a superblock was written.
    pub superblock_serial: u64,
    /// Size of the remove journal, bytes.
    pub journal_bytes: u64,
    /// Size of each of the two checkpoint areas, bytes.
    pub checkpoint_bytes: u64,
    /// True if the store was closed in order.
    pub clean: bool,
    /// Size of the store, bytes.
    pub device_bytes: u64,
    /// Size of the log, bytes.
    pub log_bytes: u64,
    /// Size of a segment, bytes.
    pub segment_bytes: u32,
    /// Segments that were written.
    pub segments_written: u64,
    /// Segments in total.
    pub segments: u64,
    /// The unit of positions, bytes.
    pub unit_bytes: u32,
    /// Size of a Disk Table slot, bytes.
    pub block_bytes: u32,
    /// Slots in a set.
    pub ways: u32,
    /// Sets in the Disk Table.
    pub sets: u64,
    /// Mean object size for which the index is sized, bytes.
    pub object_bytes: u32,
    /// Memory for the index, bytes.
    pub index_bytes: u64,
    /// Index bits for each slot.
    pub index_bits_per_slot: f64,
    /// Index bits for each live entry, as of the last checkpoint; `None` if the store was not
    /// closed in order, because entries may have changed since, and if there is no index.
    pub index_bits_per_object: Option<f64>,
    /// Serial of the last checkpoint.
    pub checkpoint_serial: u64,
    /// True if all parts of that checkpoint verify, whichever build and policy wrote it.
    pub checkpoint_whole: bool,
    /// Versions up to this may have been drawn.
    pub next_version: u64,
    /// Unix time when the superblock was written, milliseconds.
    pub written_at_millis: u64,
}

fn opened(
    config: &Config,
    device_path: &DevicePath,
) -> Result<(Opened, std::sync::Arc<Stripe>), OpenError> {
    let opened = [device::existing(device_path)?];
    let [only] = &opened;
    let policy = IndexPolicy::from_code(only.superblock.policy);
    let fits =
        |it: &PolicyKind| (it.family(), it.ways()) == (only.geometry.family, only.geometry.ways);
    let mut config = config.clone();
    match policy.filter(|it| fits(&it.kind)) {
        Some(policy) => {
            (config.policy, config.rows) = (policy.kind, policy.rows);
            (config.grouped, config.readmission) = (policy.grouped, policy.ranked);
        }
        None => {
            let fitting = PolicyKind::ALL.into_iter().rfind(fits);
            config.policy = fitting.unwrap_or(config.policy);
        }
    }
    // Enough for a store of any size: the index takes no memory unless it is loaded.
    let memory_bytes = sizing::memory_needed(&config, [&only.geometry]).saturating_add(64 << 20);
    let config = Config {
        memory_bytes,
        ..config
    };
    let shared = device::shared(&config, &opened, only.superblock.next_version)?;
    let stripe = device::stripe(&config, only, &std::sync::Arc::new(shared), 0)?;
    let [opened] = opened;
    Ok((opened, stripe))
}

/// Reads the superblock of the first device in `config`. Changes nothing.
///
/// # Errors
/// See [`OpenError`].
pub fn inspect(config: &Config) -> Result<Inspection, OpenError> {
    let paths = config.device_paths();
    let first = paths.first().ok_or(OpenError::Devices {
        count: 0,
        most: DEVICES_MAX,
    })?;
    let (opened, stripe) = opened(config, first)?;
    let (superblock, geometry) = (&opened.superblock, &opened.geometry);
    let policy = stripe.index.id.policy;
    let written = (0..geometry.segments)
        .filter(|n| first_header(&stripe.medium, *n).is_some())
        .count();
    Ok(Inspection {
        format_version: superblock.format_version,
        store_id: superblock.store_id,
        device: superblock.device,
        members: devices(superblock.history.members()),
        policy: policy.kind.name(),
        rows: (policy.kind == PolicyKind::Log).then_some(match policy.rows {
            Rows::One => 1,
            Rows::Two => 2,
        }),
        grouped: policy.grouped,
        policy_since: superblock.policy_since,
        memberships: superblock
            .history
            .memberships()
            .iter()
            .map(|it| (it.first, devices(&it.members)))
            .collect(),
        removes_forgotten_below: superblock.removes_forgotten_below,
        superblock_serial: superblock.serial,
        journal_bytes: geometry.journal_bytes,
        checkpoint_bytes: geometry.checkpoint_bytes,
        clean: superblock.clean,
        device_bytes: geometry.device_bytes,
        log_bytes: geometry.segments * u64::from(geometry.segment_bytes),
        segment_bytes: geometry.segment_bytes,
        segments_written: written as u64,
        segments: geometry.segments,
        unit_bytes: geometry.unit_bytes,
        block_bytes: geometry.block_bytes,
        ways: geometry.ways,
        sets: geometry.sets,
        object_bytes: geometry.object_bytes,
        index_bytes: stripe.index.shape.bytes(),
        index_bits_per_slot: bits_each(stripe.index.shape.bytes(), geometry.slots()),
        index_bits_per_object: bits_per_object(&stripe, superblock),
        checkpoint_serial: superblock.checkpoint_serial,
        checkpoint_whole: superblock.checkpoint_serial > 0
            && checkpoint::parts_damaged(&stripe.medium, superblock) == 0,
        next_version: superblock.next_version,
        written_at_millis: superblock.wall_clock,
    })
}

fn bits_per_object(stripe: &Stripe, superblock: &Superblock) -> Option<f64> {
    if !superblock.clean || stripe.index.shape.bytes() == 0 {
        return None;
    }
    let restored = checkpoint::load(
        &stripe.medium,
        &stripe.index,
        superblock.checkpoint_serial,
        || false,
    )?;
    stripe.log.restore(restored.stamps, restored.cursor);
    Some(bits_each(stripe.index.shape.bytes(), stripe.live_entries()))
}

fn devices(members: &[Member]) -> Vec<MemberDevice> {
    members
        .iter()
        .map(|it| MemberDevice {
            device: it.id,
            device_bytes: it.weight,
        })
        .collect()
}

/// Verifies every record on every device in `config`, each device separately. Changes nothing.
/// Calls `progress` with the number of areas checked and their total, one device after another.
///
/// # Errors
/// See [`OpenError`]; a damaged record is counted, not an error.
pub fn check(
    config: &Config,
    mut progress: impl FnMut(u64, u64),
) -> Result<CheckReport, OpenError> {
    let mut report = CheckReport::default();
    for device_path in config.device_paths() {
        check_device(config, &device_path, &mut report, &mut progress)?;
    }
    Ok(report)
}

fn check_device(
    config: &Config,
    device_path: &DevicePath,
    report: &mut CheckReport,
    progress: &mut impl FnMut(u64, u64),
) -> Result<(), OpenError> {
    let (opened, stripe) = opened(config, device_path)?;
    check_front(&stripe, &opened, report);
    let geometry = &stripe.medium.geometry;
    let total = geometry.segments + geometry.sets;
    let (mut cursors, mut areas) = (Vec::new(), 0);
    for segment in 0..geometry.segments {
        if let Some(first) = first_header(&stripe.medium, segment) {
            let cursor = Cursor {
                segment,
                lap: first.lap,
                stamp: first.stamp,
                used: 0,
                ordinal: 0,
            };
            cursors.push(cursor);
        }
    }
    cursors.sort_unstable_by_key(|cursor| cursor.stamp);
    for cursor in &cursors {
        check_segment(&stripe, *cursor, opened.superblock.clean, report);
        areas += 1;
        progress(areas, total);
    }
    for set in 0..geometry.sets {
        check_set(&stripe, SetId(set), report);
        areas += 1;
        progress(areas + geometry.segments - cursors.len() as u64, total);
    }
    report.areas += areas;
    progress(total, total);
    Ok(())
}

/// Checks the areas in front of the records: superblocks, remove journal, checkpoint.
fn check_front(stripe: &Stripe, opened: &Opened, report: &mut CheckReport) {
    let superblock = &opened.superblock;
    let copies = device::superblocks_damaged(&*opened.device, superblock);
    let all = report.superblocks_damaged.iter_mut().zip(copies);
    all.for_each(|(any, damaged)| *any |= damaged);
    let damaged = journal::blocks_damaged(&stripe.medium);
    // A crash may have torn the last block that the run wrote.
    match damaged {
        1 if !superblock.clean => report.cut_off += 1,
        _ => report.journal_blocks_damaged += damaged,
    }
    report.checkpoint_parts_damaged += checkpoint::parts_damaged(&stripe.medium, superblock);
}

fn check_segment(stripe: &Stripe, cursor: Cursor, clean: bool, report: &mut CheckReport) {
    let segment = Segment::read(&stripe.medium, cursor, 0, 0, None);
    // Set the head behind this segment, as if the log had just been written up to here.
    stripe.log.opened(Cursor {
        used: stripe.medium.geometry.segment_bytes,
        ..cursor
    });
    // Slots are checked in the Disk Table.
    let records = segment.listed.iter().enumerate();
    for (n, listed) in records.filter(|(_, listed)| listed.kind != KIND_SLOT) {
        let at = stripe
            .log
            .position(cursor.lap, cursor.segment, u64::from(listed.offset));
        let bytes = match listed.kind {
            1 | 2 => match stripe.read_exactly(at, listed.key, 4 * PAGE) {
                Read::Record(record) => Some(record.content_bytes() + record.metadata.len()),
                _ => None,
            },
            // A tail is verified with the slot.
            _ => Some(0),
        };
        match bytes {
            Some(bytes) => {
                report.records += 1;
                report.bytes += bytes as u64;
            }
            None if !clean && !segment.sealed && n >= segment.last_batch => report.cut_off += 1,
            None => report.damaged += 1,
        }
    }
    stripe.log.opened(Cursor {
        used: segment.used,
        ..cursor
    });
}

fn check_set(stripe: &Stripe, set: SetId, report: &mut CheckReport) {
    let (offset, bytes) = table::range(&stripe.medium, set);
    let Some(raw) = stripe.medium.read_bytes(offset, bytes) else {
        report.damaged += 1;
        return;
    };
    let Some(table::SetContent { filled, .. }) = table::read_set(&stripe.medium, set) else {
        return;
    };
    for (slot, block) in raw
        .chunks(stripe.medium.geometry.block_bytes as usize)
        .enumerate()
    {
        let Some(filled) = filled.iter().find(|filled| filled.slot.0 == slot) else {
            report.damaged += u64::from(block.iter().any(|byte| *byte != 0));
            continue;
        };
        match table::read_record(&stripe.medium, &stripe.log, filled) {
            Read::Record(record) => {
                report.records += 1;
                report.bytes += (record.content_bytes() + record.metadata.len()) as u64;
            }
            // The log has overwritten the tail, so the slot counts as free.
            Read::Passed => {}
            Read::Other | Read::Damaged | Read::Refused | Read::Failed => report.damaged += 1,
        }
    }
}
