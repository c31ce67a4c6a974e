//! Groups: which of the records that wait go into the next batch, in which order, and how long the
//! runs become that they make there.
//!
//! Called by the queue when a batch is cut and by `writer/batch` when it is laid out. Only heads
//! are members of a group: a page is made of them, and they hold up to 64 KiB of content
//! themselves.
//!
//! Invariants: a run lies within one batch, and is no longer than an entry can tell. Nothing is
//! held back for longer than [`HELD_MAX`], nor when memory for it is short.
//! Place in the paper: section 3.6. Cost: one pass over what waits, a batch.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use crate::format::{IO_BLOCK, Kind};
use crate::shard::Pending;

/// A group is open for as long as its last member is no older than this: another may follow.
const OPEN_FOR: Duration = Duration::from_secs(2);
/// A page that never ends must not keep its first members from the disk.
const HELD_MAX: Duration = Duration::from_secs(10);
/// Longest run, bytes: 8 bits of 4 KiB.
const RUN_BYTES_MAX: usize = u8::MAX as usize * IO_BLOCK;

/// The group whose run `pending` belongs to; 0: none.
pub(crate) fn group_of(pending: &Pending) -> u64 {
    let fields = &pending.record.fields;
    match fields.kind {
        Kind::Head => fields.group,
        Kind::Span => 0,
    }
}

/// A record that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingRecord {
    /// 0: none.
    pub(super) group: u64,
    pub(super) since: Duration,
    /// Bytes it takes on disk.
    pub(super) bytes: usize,
}

/// How much may be held back.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldLimit {
    pub(super) bytes: usize,
    pub(super) records: usize,
}

impl HoldLimit {
    /// Nothing is held back.
    pub(super) const NONE: Self = Self {
        bytes: 0,
        records: 0,
    };
}

/// The next batch: its records in the order of the log, a group an element; and what is held back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BatchPlan {
    pub(super) due: Vec<Vec<usize>>,
    pub(super) held_records: usize,
    pub(super) held_bytes: usize,
    /// When the first of what is held back becomes due.
    pub(super) held_until: Option<Duration>,
}

struct HeldGroup {
    members: Vec<usize>,
    bytes: usize,
    closes: Duration,
}

/// Puts members of a group side by side, in the place of the first, and leaves out groups that are
/// still open, as many as there is `room` for.
pub(super) fn plan(waiting: &[WaitingRecord], now: Duration, room: HoldLimit) -> BatchPlan {
    let mut groups: Vec<HeldGroup> = Vec::with_capacity(waiting.len());
    let mut at: HashMap<u64, usize> = HashMap::new();
    for (n, waits) in waiting.iter().enumerate() {
        let next = groups.len();
        let index = match waits.group {
            0 => next,
            group => *at.entry(group).or_insert(next),
        };
        if index == next {
            groups.push(HeldGroup {
                members: Vec::with_capacity(1),
                bytes: 0,
                closes: if waits.group == 0 { now } else { waits.since },
            });
        }
        let first = groups[index].members.first().map(|first| waiting[*first]);
        let group = &mut groups[index];
        group.members.push(n);
        group.bytes += waits.bytes;
        if waits.group != 0 {
            let first = first.map_or(waits.since, |first| first.since);
            group.closes = (waits.since + OPEN_FOR).min(first + HELD_MAX);
        }
    }
    let mut open: Vec<usize> = (0..groups.len())
        .filter(|n| groups[*n].closes > now)
        .collect();
    // Those that stay open longest are held back as long as there is room. One that has a single
    // member may stay alone, as what programs without a page fetch does: it comes last.
    open.sort_by_key(|n| {
        let group = &groups[*n];
        (group.members.len() == 1, Reverse(group.closes))
    });
    let mut plan = BatchPlan::default();
    let mut is_held = vec![false; groups.len()];
    for n in open {
        let group = &groups[n];
        let (bytes, records) = (
            plan.held_bytes + group.bytes,
            plan.held_records + group.members.len(),
        );
        if bytes > room.bytes || records > room.records {
            continue;
        }
        (plan.held_bytes, plan.held_records) = (bytes, records);
        let until = plan.held_until.unwrap_or(group.closes);
        plan.held_until = Some(until.min(group.closes));
        is_held[n] = true;
    }
    let due = groups.into_iter().zip(is_held).filter(|(_, held)| !held);
    plan.due = due.map(|(group, _)| group.members).collect();
    plan
}

/// For each record of a batch, given its group and its bytes: the distance from its start to the
/// end of its run, 4 KiB; 0 for what has no company.
pub(crate) fn runs(batch: &[(u64, usize)]) -> Vec<u8> {
    let mut runs = vec![0; batch.len()];
    let mut first = 0;
    while first < batch.len() {
        let group = batch[first].0;
        let (mut end, mut bytes) = (first, 0);
        while let Some((_, more)) = batch.get(end).filter(|it| it.0 == group)
            && (end == first || bytes + more <= RUN_BYTES_MAX)
        {
            bytes += more;
            end += 1;
        }
        if group != 0 && end - first > 1 {
            for n in first..end {
                runs[n] = u8::try_from(bytes.div_ceil(IO_BLOCK)).unwrap_or(u8::MAX);
                bytes -= batch[n].1;
            }
        }
        first = end;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: HoldLimit = HoldLimit {
        bytes: 1 << 20,
        records: 1_000,
    };

    fn waits(group: u64, since_ms: u64) -> WaitingRecord {
        WaitingRecord {
            group,
            since: Duration::from_millis(since_ms),
            bytes: 1_000,
        }
    }

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn members_come_side_by_side_in_the_place_of_the_first() {
        let waiting = [
            waits(0, 0),
            waits(7, 0),
            waits(9, 1),
            waits(0, 2),
            waits(7, 3),
            waits(9, 4),
        ];
        let plan = plan(&waiting, at(5_000), PLENTY);
        assert_eq!(plan.due, [vec![0], vec![1, 4], vec![2, 5], vec![3]]);
        assert_eq!((plan.held_records, plan.held_until), (0, None));
    }

    #[test]
    fn a_group_waits_until_two_seconds_after_its_last_member() {
        let waiting = [waits(7, 0), waits(0, 100), waits(7, 1_500)];
        let early = plan(&waiting, at(3_499), PLENTY);
        assert_eq!(early.due, [vec![1]]);
        assert_eq!((early.held_records, early.held_bytes), (2, 2_000));
        assert_eq!(early.held_until, Some(at(3_500)));
        assert_eq!(plan(&waiting, at(3_500), PLENTY).due, [vec![0, 2], vec![1]]);
    }

    #[test]
    fn a_page_that_never_ends_is_written_after_ten_seconds() {
        let waiting: Vec<WaitingRecord> = (0..10).map(|n| waits(7, n * 1_000)).collect();
        assert_eq!(plan(&waiting, at(9_999), PLENTY).held_records, 10);
        assert_eq!(plan(&waiting, at(10_000), PLENTY).held_records, 0);
    }

    #[test]
    fn without_memory_nothing_waits_and_with_little_the_oldest_go_first() {
        let waiting = [waits(7, 0), waits(9, 10), waits(7, 20), waits(5, 30)];
        assert_eq!(plan(&waiting, at(100), HoldLimit::NONE).due.len(), 3);
        let room = HoldLimit {
            bytes: 1_000,
            ..PLENTY
        };
        let little = plan(&waiting, at(100), room);
        assert_eq!(little.due, [vec![0, 2], vec![1]]);
        assert_eq!(little.held_until, Some(at(2_030)));
    }

    #[test]
    fn pages_are_held_before_what_is_alone() {
        let waiting = [waits(7, 0), waits(7, 10), waits(9, 20)];
        let room = HoldLimit {
            bytes: 2_000,
            ..PLENTY
        };
        assert_eq!(plan(&waiting, at(100), room).due, [vec![2]]);
    }

    #[test]
    fn what_is_held_becomes_due_with_the_first_of_it_in_whatever_order_it_is_held() {
        // The page closes first, and is held first.
        let waiting = [waits(7, 0), waits(7, 10), waits(9, 900), waits(5, 300)];
        let plan = plan(&waiting, at(1_000), PLENTY);
        assert_eq!((plan.held_records, plan.held_until), (4, Some(at(2_010))));
    }

    #[test]
    fn a_run_is_told_from_each_member_to_its_end_and_none_to_who_is_alone() {
        let batch = [
            (0, 512),
            (7, 4_096),
            (7, 512),
            (7, 8_192),
            (9, 4_096),
            (0, 512),
            (0, 512),
        ];
        assert_eq!(runs(&batch), [0, 4, 3, 2, 0, 0, 0]);
    }

    #[test]
    fn a_run_longer_than_an_entry_can_tell_is_cut() {
        let batch = [(7, 64 << 10); 40];
        let runs = runs(&batch);
        // 15 records of 64 KiB are 240 blocks; 16 would be 256.
        assert_eq!([runs[0], runs[14], runs[15], runs[29]], [240, 16, 240, 16]);
        assert_eq!([runs[30], runs[39]], [160, 16]);
    }

    #[test]
    fn whatever_waits_nothing_is_lost_or_doubled() {
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..500 {
            let waiting: Vec<WaitingRecord> = (0..random.usize(..60))
                .map(|n| waits(random.u64(..6), n as u64 * random.u64(..300)))
                .collect();
            let room = HoldLimit {
                bytes: random.usize(..40_000),
                records: random.usize(..40),
            };
            let plan = plan(&waiting, at(random.u64(..20_000)), room);
            let mut all: Vec<usize> = plan.due.concat();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len() + plan.held_records, waiting.len());
            assert_eq!(plan.due.concat().len(), all.len());
            assert!(plan.held_bytes <= room.bytes && plan.held_records <= room.records);
        }
    }
}
