//! The superblock: the store's identity and area offsets. Two copies, written in turn.

use std::collections::BTreeMap;

use super::layout::record;
use super::{COUNT_MAX, OLDEST_VERSION, VERSION};
use crate::key::Secret;
use crate::membership::{DEVICES_KNOWN_MAX, History, MEMBERSHIPS_MAX, Member, Membership};

/// Superblock size, bytes; copy A is at offset 0, copy B right behind it.
pub(crate) const SUPERBLOCK_BYTES: usize = SuperblockFields::BYTES;

const MAGIC: [u8; 8] = *b"HASHCACH";

record! {
    /// A superblock. The checksum covers all bytes before it.
    struct SuperblockFields = "SUPERBLOCK", 4096;
    0 magic: [u8; 8],
    8 format_version: u32,
    12 flags: u32,
    16 serial: u64,
    24 store_id: u128,
    40 secret: [u8; 32],
    72 device: u16,
    74 family: u8,
    75 policy: u8,
    76 unit_bytes: u32,
    80 device_bytes: u64,
    88 segment_bytes: u32,
    92 block_bytes: u32,
    96 ways: u32,
    100 object_bytes: u32,
    104 journal_offset: u64,
    112 journal_bytes: u64,
    120 checkpoint_offset: u64,
    128 checkpoint_bytes: u64,
    136 table_offset: u64,
    144 sets: u64,
    152 log_offset: u64,
    160 segments: u64,
    168 next_version: u64,
    176 checkpoint_serial: u64,
    184 checkpoint_parts: u64,
    192 wall_clock: u64,
    200 removes_forgotten_below: u64,
    208 policy_since: u64,
    216 devices_known: u16,
    218 memberships: u16,
    224 device_lines: [u8; DEVICES_KNOWN_MAX * MemberFields::BYTES],
    1248 membership_lines: [u8; MEMBERSHIPS_MAX * MembershipFields::BYTES],
    1760 removes_held_below: u64,
    1768 placement: u32,
    4088 checksum: u64,
}

record! {
    /// A line in the known-devices table.
    struct MemberFields = "MEMBER", 16;
    0 device: u16,
    2 heard: [u8; 6],
    8 weight: u64,
}

record! {
    /// A line in the memberships table.
    struct MembershipFields = "MEMBERSHIP", 16;
    0 first_version: u64,
    /// A bit for each line in the known-devices table.
    8 members: u64,
}

const CHECKSUM_AT: usize = SUPERBLOCK_BYTES - 8;
const FAMILY_LOG: u8 = 1;
const FAMILY_TABLE: u8 = 2;
const FLAG_CLEAN: u32 = 1;
/// Largest number in six bytes; no device is written that often.
const HEARD_MAX: u64 = (1 << 48) - 1;

/// Selects the store's areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// All objects are in the log.
    Log,
    /// Objects are in the Disk Table, tails in the log.
    Table,
}

/// A decoded superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// The format version on disk; a superblock is always written in the current version.
    pub(crate) format_version: u32,
    pub(crate) serial: u64,
    pub(crate) store_id: u128,
    pub(crate) secret: [u8; 32],
    pub(crate) device: u16,
    pub(crate) family: Family,
    /// The store was closed properly and nothing was written since.
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
    /// Bytes in each of the two checkpoint areas.
    pub(crate) checkpoint_bytes: u64,
    pub(crate) table_offset: u64,
    pub(crate) sets: u64,
    pub(crate) log_offset: u64,
    pub(crate) segments: u64,
    /// No version at or above this was ever assigned.
    pub(crate) next_version: u64,
    /// The last complete checkpoint's serial; odd serials are in area B. 0: none.
    pub(crate) checkpoint_serial: u64,
    pub(crate) checkpoint_parts: u64,
    /// Unix time when this was written, milliseconds.
    pub(crate) wall_clock: u64,
    /// Removes with versions below this may be stored only in the checkpoint: without a checkpoint,
    /// no record older than this may be restored.
    pub(crate) removes_forgotten_below: u64,
    /// The last complete checkpoint has all removes in journal blocks with ordinals below this.
    pub(crate) removes_held_below: u64,
    /// Code for the policy that last opened the store (`config`).
    pub(crate) policy: u8,
    /// The first version assigned since the store was opened only with that policy.
    pub(crate) policy_since: u64,
    /// Number for the rule that maps name parts to devices ([`Placement`]); 0: whole names.
    ///
    /// [`Placement`]: crate::placement::Placement
    pub(crate) placement: u32,
    /// The store's devices, for each version range.
    pub(crate) history: History,
    /// For each device in the history: the highest superblock serial that was durable when this
    /// superblock was written. A device with a lower serial was rolled back.
    pub(crate) heard: BTreeMap<u16, u64>,
}

/// Reason why a block is not a valid superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuperblockError {
    /// The block has foreign data.
    Foreign,
    /// A superblock in another format version.
    Version(u32),
    /// A damaged superblock.
    Damaged,
}

impl Superblock {
    pub(crate) fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let known: Vec<Member> = self.history.known().into_iter().collect();
        let memberships = self.history.memberships();
        let count = |n: usize| u16::try_from(n).expect("at most 64");
        let fields = SuperblockFields {
            magic: MAGIC,
            format_version: VERSION,
            flags: if self.clean { FLAG_CLEAN } else { 0 },
            serial: self.serial,
            store_id: self.store_id,
            secret: self.secret,
            device: self.device,
            family: match self.family {
                Family::Log => FAMILY_LOG,
                Family::Table => FAMILY_TABLE,
            },
            policy: self.policy,
            unit_bytes: self.unit_bytes,
            device_bytes: self.device_bytes,
            segment_bytes: self.segment_bytes,
            block_bytes: self.block_bytes,
            ways: self.ways,
            object_bytes: self.object_bytes,
            journal_offset: self.journal_offset,
            journal_bytes: self.journal_bytes,
            checkpoint_offset: self.checkpoint_offset,
            checkpoint_bytes: self.checkpoint_bytes,
            table_offset: self.table_offset,
            sets: self.sets,
            log_offset: self.log_offset,
            segments: self.segments,
            next_version: self.next_version,
            checkpoint_serial: self.checkpoint_serial,
            checkpoint_parts: self.checkpoint_parts,
            wall_clock: self.wall_clock,
            removes_forgotten_below: self.removes_forgotten_below,
            policy_since: self.policy_since,
            devices_known: count(known.len()),
            memberships: count(memberships.len()),
            device_lines: device_lines(&known, &self.heard),
            membership_lines: membership_lines(memberships, &known),
            removes_held_below: self.removes_held_below,
            placement: self.placement,
            checksum: 0,
        };
        let mut out = [0; SUPERBLOCK_BYTES];
        fields.encode(&mut out);
        let (covered, checksum) = out.split_at_mut(CHECKSUM_AT);
        let mac = Secret::from_bytes(self.secret).mac(&[covered]);
        checksum.copy_from_slice(&mac.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Self, SuperblockError> {
        let damaged = SuperblockError::Damaged;
        let fields = SuperblockFields::decode(bytes).ok_or(damaged)?;
        if fields.magic != MAGIC {
            return Err(SuperblockError::Foreign);
        }
        // The version is checked before the checksum, because a later format may have another
        // checksum.
        if !(OLDEST_VERSION..=VERSION).contains(&fields.format_version) {
            return Err(SuperblockError::Version(fields.format_version));
        }
        let secret = fields.secret;
        if Secret::from_bytes(secret).mac(&[&bytes[..CHECKSUM_AT]]) != fields.checksum {
            return Err(damaged);
        }
        let counts = [
            fields.serial,
            fields.next_version,
            fields.checkpoint_serial,
            fields.policy_since,
        ];
        // Serial 0 means that the superblock was never written.
        if fields.serial == 0 || counts.iter().any(|count| *count >= COUNT_MAX) {
            return Err(damaged);
        }
        Ok(Self {
            format_version: fields.format_version,
            serial: fields.serial,
            store_id: fields.store_id,
            secret,
            device: fields.device,
            family: match fields.family {
                FAMILY_LOG => Family::Log,
                FAMILY_TABLE => Family::Table,
                _ => return Err(damaged),
            },
            clean: fields.flags & FLAG_CLEAN != 0,
            unit_bytes: fields.unit_bytes,
            device_bytes: fields.device_bytes,
            segment_bytes: fields.segment_bytes,
            block_bytes: fields.block_bytes,
            ways: fields.ways,
            object_bytes: fields.object_bytes,
            journal_offset: fields.journal_offset,
            journal_bytes: fields.journal_bytes,
            checkpoint_offset: fields.checkpoint_offset,
            checkpoint_bytes: fields.checkpoint_bytes,
            table_offset: fields.table_offset,
            sets: fields.sets,
            log_offset: fields.log_offset,
            segments: fields.segments,
            next_version: fields.next_version,
            checkpoint_serial: fields.checkpoint_serial,
            checkpoint_parts: fields.checkpoint_parts,
            wall_clock: fields.wall_clock,
            removes_forgotten_below: fields.removes_forgotten_below,
            removes_held_below: fields.removes_held_below,
            policy: fields.policy,
            policy_since: fields.policy_since,
            placement: fields.placement,
            history: fields.history().ok_or(damaged)?,
            heard: fields.heard(),
        })
    }
}

impl SuperblockFields {
    /// The used lines in the known-devices table.
    fn members(&self) -> impl Iterator<Item = MemberFields> {
        let lines = self.device_lines.chunks_exact(MemberFields::BYTES);
        let lines = lines.take(usize::from(self.devices_known));
        lines.filter_map(MemberFields::decode)
    }

    fn history(&self) -> Option<History> {
        let count = usize::from(self.memberships);
        if usize::from(self.devices_known) > DEVICES_KNOWN_MAX || count > MEMBERSHIPS_MAX {
            return None;
        }
        let member = |line: MemberFields| Member {
            id: line.device,
            weight: line.weight,
        };
        let known: Vec<Member> = self.members().map(member).collect();
        let membership = |line: MembershipFields| {
            let is_member = |n: &usize| line.members & (1 << n) != 0;
            let members = (0..known.len()).filter(is_member).map(|n| known[n]);
            let first = line.first_version;
            (first < COUNT_MAX).then(|| Membership {
                first,
                members: members.collect(),
            })
        };
        let lines = self.membership_lines.chunks_exact(MembershipFields::BYTES);
        let lines = lines.take(count).filter_map(MembershipFields::decode);
        let memberships: Option<Vec<_>> = lines.map(membership).collect();
        History::from_parts(memberships?)
    }

    fn heard(&self) -> BTreeMap<u16, u64> {
        let heard = |line: MemberFields| {
            let mut serial = [0; 8];
            serial[..line.heard.len()].copy_from_slice(&line.heard);
            (line.device, u64::from_le_bytes(serial))
        };
        let all = self.members().map(heard);
        all.filter(|(_, serial)| *serial > 0).collect()
    }
}

fn device_lines<const N: usize>(known: &[Member], heard: &BTreeMap<u16, u64>) -> [u8; N] {
    let mut out = [0; N];
    let lines = out.chunks_exact_mut(MemberFields::BYTES);
    for (line, member) in lines.zip(known) {
        let serial = heard.get(&member.id).copied().unwrap_or(0);
        let mut heard = [0; 6];
        heard.copy_from_slice(&serial.min(HEARD_MAX).to_le_bytes()[..6]);
        let fields = MemberFields {
            device: member.id,
            heard,
            weight: member.weight,
        };
        fields.encode(line);
    }
    out
}

fn membership_lines<const N: usize>(memberships: &[Membership], known: &[Member]) -> [u8; N] {
    let mut out = [0; N];
    let lines = out.chunks_exact_mut(MembershipFields::BYTES);
    for (line, membership) in lines.zip(memberships) {
        let bits = (0..known.len()).filter(|n| membership.members.contains(&known[*n]));
        let fields = MembershipFields {
            first_version: membership.first,
            members: bits.fold(0, |members, n| members | 1 << n),
        };
        fields.encode(line);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            format_version: VERSION,
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
            placement: 17,
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
