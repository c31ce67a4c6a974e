//! The superblock: what the store is and where things lie. Two copies, written in turn.

use std::collections::BTreeMap;

use super::{COUNT_MAX, Fieldreader, Layout, VERSION, put, tiles};
use crate::key::Secret;
use crate::membership::{DEVICES_KNOWN_MAX, History, MEMBERSHIPS_MAX, Member, Membership};

/// Size of a superblock, bytes; copy A lies at 0, copy B right behind it.
pub(crate) const SUPERBLOCK_BYTES: usize = 4096;

const MAGIC: [u8; 8] = *b"HASHCACH";

/// The superblock, up to the checksum that ends it.
#[rustfmt::skip]
pub(crate) const SUPERBLOCK_LAYOUT: Layout = &[
    ("magic", 0, 8), ("format version", 8, 4), ("flags", 12, 4), ("serial", 16, 8),
    ("store id", 24, 16),
    ("secret", 40, 32), ("device", 72, 2), ("family", 74, 1), ("policy", 75, 1),
    ("unit bytes", 76, 4),
    ("device bytes", 80, 8), ("segment bytes", 88, 4), ("block bytes", 92, 4), ("ways", 96, 4),
    ("object bytes", 100, 4), ("journal offset", 104, 8), ("journal bytes", 112, 8),
    ("checkpoint offset", 120, 8), ("checkpoint bytes", 128, 8), ("table offset", 136, 8),
    ("sets", 144, 8), ("log offset", 152, 8), ("segments", 160, 8), ("next version", 168, 8),
    ("checkpoint serial", 176, 8), ("checkpoint parts", 184, 8), ("wall clock", 192, 8),
    ("removes forgotten below", 200, 8), ("policy since", 208, 8),
    ("devices known", 216, 2), ("memberships", 218, 2), ("reserved", 220, 4),
    ("device lines", 224, 1024), ("membership lines", 1248, 512), ("removes held below", 1760, 8),
    ("reserved", 1768, 2320), ("checksum", 4088, 8),
];

/// A line of the devices known.
#[rustfmt::skip]
pub(crate) const MEMBER_LAYOUT: Layout = &[
    ("device", 0, 2), ("heard", 2, 6), ("weight", 8, 8),
];

/// A line of the memberships.
#[rustfmt::skip]
pub(crate) const MEMBERSHIP_LAYOUT: Layout = &[
    ("first version", 0, 8), ("members", 8, 8),
];

const LINE: usize = 16;
const MEMBERS_AT: usize = 224;
const MEMBERSHIPS_AT: usize = 1248;

const _: () = assert!(tiles(SUPERBLOCK_LAYOUT, SUPERBLOCK_BYTES));
const _: () = assert!(tiles(MEMBER_LAYOUT, LINE) && tiles(MEMBERSHIP_LAYOUT, LINE));
const _: () = assert!(MEMBERS_AT + DEVICES_KNOWN_MAX * LINE == MEMBERSHIPS_AT);
const _: () = assert!(MEMBERSHIPS_AT + MEMBERSHIPS_MAX * LINE == 1760 && DEVICES_KNOWN_MAX == 64);

const FLAG_CLEAN: u32 = 1;
/// What fits into six bytes; no device is written so often.
const HEARD_MAX: u64 = (1 << 48) - 1;

/// Which areas the store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Everything lies in the log.
    Log,
    /// Objects lie in the Disk Table, tails in the log.
    Table,
}

/// What a superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) serial: u64,
    pub(crate) store_id: u128,
    pub(crate) secret: [u8; 32],
    pub(crate) device: u16,
    pub(crate) family: Family,
    /// The store was closed in order and nothing was written since.
    pub(crate) clean: bool,
    pub(crate) unit_bytes: u32,
    pub(crate) device_bytes: u64,
    pub(crate) segment_bytes: u32,
    pub(crate) block_bytes: u32,
    pub(crate) ways: u32,
    pub(crate) object_bytes: u32,
    pub(crate) journal_offset: u64,
    pub(crate) journal_bytes: u64,
    pub(crate) checkpoint_offset: u64,
    /// Bytes of each of the two checkpoint areas.
    pub(crate) checkpoint_bytes: u64,
    pub(crate) table_offset: u64,
    pub(crate) sets: u64,
    pub(crate) log_offset: u64,
    pub(crate) segments: u64,
    /// No version at or above this was ever given out.
    pub(crate) next_version: u64,
    /// Serial of the last complete checkpoint; odd serials lie in area B. 0: none.
    pub(crate) checkpoint_serial: u64,
    pub(crate) checkpoint_parts: u64,
    /// Unix time when this was written, milliseconds.
    pub(crate) wall_clock: u64,
    /// Removes of versions below this may be known to the checkpoint only: without a checkpoint, no
    /// record older than this may come back.
    pub(crate) removes_forgotten_below: u64,
    /// The last complete checkpoint holds the removes in journal blocks of ordinals below this.
    pub(crate) removes_held_below: u64,
    /// Code of the policy that last opened the store (`config`).
    pub(crate) policy: u8,
    /// The first version given out since that policy, and no other, has opened it.
    pub(crate) policy_since: u64,
    /// Who made up the store when.
    pub(crate) history: History,
    /// For the devices of the history: the highest serial of a superblock of theirs that was
    /// durable when this was written. A device that comes with a lower one was rolled back.
    pub(crate) heard: BTreeMap<u16, u64>,
}

/// Why a block is no superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuperblockError {
    /// Something else lies here.
    Foreign,
    /// One of ours, of another format version.
    Version(u32),
    /// One of ours, damaged.
    Damaged,
}

impl Superblock {
    pub(crate) fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut out = [0; SUPERBLOCK_BYTES];
        put(&mut out, 0, &MAGIC);
        put(&mut out, 8, &VERSION.to_le_bytes());
        put(
            &mut out,
            12,
            &if self.clean { FLAG_CLEAN } else { 0 }.to_le_bytes(),
        );
        put(&mut out, 16, &self.serial.to_le_bytes());
        put(&mut out, 24, &self.store_id.to_le_bytes());
        put(&mut out, 40, &self.secret);
        put(&mut out, 72, &self.device.to_le_bytes());
        out[74] = match self.family {
            Family::Log => 1,
            Family::Table => 2,
        };
        out[75] = self.policy;
        let words = [
            (76, self.unit_bytes),
            (88, self.segment_bytes),
            (92, self.block_bytes),
            (96, self.ways),
            (100, self.object_bytes),
        ];
        for (at, word) in words {
            put(&mut out, at, &word.to_le_bytes());
        }
        let longs = [
            (80, self.device_bytes),
            (104, self.journal_offset),
            (112, self.journal_bytes),
            (120, self.checkpoint_offset),
            (128, self.checkpoint_bytes),
            (136, self.table_offset),
            (144, self.sets),
            (152, self.log_offset),
            (160, self.segments),
            (168, self.next_version),
            (176, self.checkpoint_serial),
            (184, self.checkpoint_parts),
            (192, self.wall_clock),
            (200, self.removes_forgotten_below),
            (208, self.policy_since),
            (1760, self.removes_held_below),
        ];
        for (at, long) in longs {
            put(&mut out, at, &long.to_le_bytes());
        }
        encode_history(&mut out, &self.history, &self.heard);
        let mac = Secret::from_bytes(self.secret).mac(&[&out[..4088]]);
        put(&mut out, 4088, &mac.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Self, SuperblockError> {
        let field = Fieldreader(bytes);
        if field.array(0) != MAGIC {
            return Err(SuperblockError::Foreign);
        }
        // The version comes before the checksum: a later format may end in another one.
        if field.u32(8) != VERSION {
            return Err(SuperblockError::Version(field.u32(8)));
        }
        let secret = field.array(40);
        if Secret::from_bytes(secret).mac(&[&bytes[..4088]]) != field.u64(4088) {
            return Err(SuperblockError::Damaged);
        }
        // Serial 0 is that of one that was never written.
        let counts = [16, 168, 176, 208].map(|at| field.u64(at));
        if counts[0] == 0 || counts.iter().any(|count| *count >= COUNT_MAX) {
            return Err(SuperblockError::Damaged);
        }
        Ok(Self {
            serial: field.u64(16),
            store_id: field.u128(24),
            secret,
            device: field.u16(72),
            family: match field.u8(74) {
                1 => Family::Log,
                2 => Family::Table,
                _ => return Err(SuperblockError::Damaged),
            },
            clean: field.u32(12) & FLAG_CLEAN != 0,
            unit_bytes: field.u32(76),
            device_bytes: field.u64(80),
            segment_bytes: field.u32(88),
            block_bytes: field.u32(92),
            ways: field.u32(96),
            object_bytes: field.u32(100),
            journal_offset: field.u64(104),
            journal_bytes: field.u64(112),
            checkpoint_offset: field.u64(120),
            checkpoint_bytes: field.u64(128),
            table_offset: field.u64(136),
            sets: field.u64(144),
            log_offset: field.u64(152),
            segments: field.u64(160),
            next_version: field.u64(168),
            checkpoint_serial: field.u64(176),
            checkpoint_parts: field.u64(184),
            wall_clock: field.u64(192),
            removes_forgotten_below: field.u64(200),
            removes_held_below: field.u64(1760),
            policy: bytes[75],
            policy_since: field.u64(208),
            history: decode_history(&field).ok_or(SuperblockError::Damaged)?,
            heard: decode_heard(&field),
        })
    }
}

fn encode_history(out: &mut [u8; SUPERBLOCK_BYTES], history: &History, heard: &BTreeMap<u16, u64>) {
    let known: Vec<Member> = history.known().into_iter().collect();
    let count = |n: usize| u16::try_from(n).expect("at most 64").to_le_bytes();
    put(out, 216, &count(known.len()));
    put(out, 218, &count(history.memberships().len()));
    for (n, member) in known.iter().enumerate() {
        let at = MEMBERS_AT + n * LINE;
        put(out, at, &member.id.to_le_bytes());
        let heard = heard.get(&member.id).copied().unwrap_or(0);
        put(out, at + 2, &heard.min(HEARD_MAX).to_le_bytes()[..6]);
        put(out, at + 8, &member.weight.to_le_bytes());
    }
    for (n, membership) in history.memberships().iter().enumerate() {
        let bits = (0..known.len()).filter(|n| membership.members.contains(&known[*n]));
        let members = bits.fold(0_u64, |members, n| members | 1 << n);
        let at = MEMBERSHIPS_AT + n * LINE;
        put(out, at, &membership.first.to_le_bytes());
        put(out, at + 8, &members.to_le_bytes());
    }
}

fn decode_history(field: &Fieldreader<'_>) -> Option<History> {
    let known = usize::from(field.u16(216));
    let memberships = usize::from(field.u16(218));
    if known > DEVICES_KNOWN_MAX || memberships > MEMBERSHIPS_MAX {
        return None;
    }
    let member = |n: usize| {
        let at = MEMBERS_AT + n * LINE;
        Member {
            id: field.u16(at),
            weight: field.u64(at + 8),
        }
    };
    let begun = |n: usize| field.u64(MEMBERSHIPS_AT + n * LINE);
    if (0..memberships).any(|n| begun(n) >= COUNT_MAX) {
        return None;
    }
    let membership = |n: usize| {
        let at = MEMBERSHIPS_AT + n * LINE;
        let members = field.u64(at + 8);
        Membership {
            first: field.u64(at),
            members: (0..known)
                .filter(|n| members & (1 << n) != 0)
                .map(member)
                .collect(),
        }
    };
    History::from_parts((0..memberships).map(membership).collect())
}

fn decode_heard(field: &Fieldreader<'_>) -> BTreeMap<u16, u64> {
    let mut all = BTreeMap::new();
    for n in 0..usize::from(field.u16(216)).min(DEVICES_KNOWN_MAX) {
        let at = MEMBERS_AT + n * LINE;
        let mut serial = [0; 8];
        serial[..6].copy_from_slice(&field.array::<6>(at + 2));
        let serial = u64::from_le_bytes(serial);
        if serial > 0 {
            all.insert(field.u16(at), serial);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            serial: 3,
            store_id: 0x1234,
            secret: [9; 32],
            device: 0,
            family: Family::Table,
            clean: true,
            unit_bytes: 512,
            device_bytes: 1 << 30,
            segment_bytes: 16 << 20,
            block_bytes: 8192,
            ways: 8,
            object_bytes: 8192,
            journal_offset: 1,
            journal_bytes: 2,
            checkpoint_offset: 3,
            checkpoint_bytes: 4,
            table_offset: 5,
            sets: 6,
            log_offset: 7,
            segments: 8,
            next_version: 9,
            checkpoint_serial: 10,
            checkpoint_parts: 11,
            wall_clock: 12,
            removes_forgotten_below: 13,
            removes_held_below: 16,
            policy: 14,
            policy_since: 15,
            history: {
                let member = |id| Member {
                    id,
                    weight: 1 << id,
                };
                let mut history = History::new(vec![member(0), member(3)]);
                history.change(99, vec![member(0)]);
                history.change(100, vec![member(0), member(9)]);
                history
            },
            heard: BTreeMap::from([(3, 17), (9, HEARD_MAX)]),
        }
    }

    #[test]
    fn a_superblock_comes_back_as_it_was_written() {
        assert_eq!(Superblock::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn counts_that_nothing_can_be_added_to_are_damage() {
        let with = |change: fn(&mut Superblock)| {
            let mut superblock = sample();
            change(&mut superblock);
            Superblock::decode(&superblock.encode())
        };
        let changes: [fn(&mut Superblock); 5] = [
            |it| it.serial = 0,
            |it| it.serial = u64::MAX,
            |it| it.next_version = u64::MAX,
            |it| it.checkpoint_serial = COUNT_MAX,
            |it| it.policy_since = COUNT_MAX,
        ];
        for change in changes {
            assert_eq!(with(change), Err(SuperblockError::Damaged));
        }
    }

    #[test]
    fn damage_a_later_version_and_a_stranger_are_told_apart() {
        let mut bytes = sample().encode();
        bytes[100] ^= 1;
        assert_eq!(Superblock::decode(&bytes), Err(SuperblockError::Damaged));
        bytes[8] = 7;
        assert_eq!(Superblock::decode(&bytes), Err(SuperblockError::Version(7)));
        bytes[0] = 0;
        assert_eq!(Superblock::decode(&bytes), Err(SuperblockError::Foreign));
    }
}
