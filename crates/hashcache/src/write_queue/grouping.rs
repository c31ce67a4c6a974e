//! Groups: which queued records are in the next batch, in which order, and how long their runs are.
//!
//! Called by the queue when a batch is cut and by `writer/batch` when it is laid out. Heads are
//! members of a group, and so are the spans of objects with at most [`MEMBER_BYTES_MAX`], so that
//! such an object is loaded whole with one read.
//!
//! Invariants: a run is within one batch, and is no longer than an entry can encode. Records are
//! held back for [`HELD_MAX`] at most, and never more than one batch in total. A batch is cut
//! before the records of an object are put in order, so the ordering never moves a head to an
//! earlier batch than the spans of the head. A head of a longer object may be in an earlier batch,
//! because a group takes the place of the first member; if a kill happens in between, the stored
//! part of the object is found to be incomplete.
//! Place in the paper: section 3.6.
//! Cost: a few passes over the queued records, for each batch.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::disk::FIRST_READ;
use crate::format::{Kind, RUN_BYTES_MAX, run_code};
use crate::object::Version;
use crate::shard::Pending;

/// A group is open as long as the last member is no older than this: another member may follow.
const OPEN_FOR: Duration = Duration::from_secs(2);
/// Longest time in which the first members of a group are held back: an endless page must not keep
/// them from the disk.
const HELD_MAX: Duration = Duration::from_secs(10);
/// Longest object that has its spans in the group, bytes of content: a quarter of the longest run,
/// so that the run has room for others. A longer object is read in spans; adjacent spans are read
/// together.
const MEMBER_BYTES_MAX: u64 = 512 << 10;

/// The group in which `pending` is placed; 0: none. For an object of unknown length, the spans that
/// start within [`MEMBER_BYTES_MAX`] are members; the head decides if they are in a run.
pub(crate) fn group_of(pending: &Pending) -> u64 {
    let fields = &pending.record.fields;
    let is_member = fields.kind == Kind::Head || fields.least_bytes() <= MEMBER_BYTES_MAX;
    if is_member { fields.group } else { 0 }
}

/// A queued record.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingRecord {
    /// 0: none.
    pub(super) group: u64,
    pub(super) kind: Kind,
    /// Equal in all records of an object.
    pub(super) version: Version,
    /// Content bytes of the object, if the record contains them.
    pub(super) total: Option<u64>,
    pub(super) since: Duration,
    /// Bytes on disk.
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

/// The next batch: the records in log order, a group in each element; and the size of the held
/// records.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BatchPlan {
    pub(super) due: Vec<Vec<usize>>,
    pub(super) held_records: usize,
    pub(super) held_bytes: usize,
    /// When the first of the held records becomes due.
    pub(super) held_until: Option<Duration>,
}

struct HeldGroup {
    members: Vec<usize>,
    bytes: usize,
    /// Heads among `members`.
    heads: usize,
    /// Heads without a queued span, and their bytes.
    small: usize,
    small_bytes: usize,
    closes: Duration,
}

/// The held part of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Nothing,
    /// Heads without a queued span: there is no room for the others.
    Small,
    Everything,
}

/// Puts the members of a group side by side, in the place of the first member, and leaves out
/// groups that are still open, as many as there is `room` for.
pub(super) fn plan(waiting: &[WaitingRecord], now: Duration, room: HoldLimit) -> BatchPlan {
    let in_spans: HashSet<Version> = waiting
        .iter()
        .filter(|waits| waits.kind == Kind::Span)
        .map(|waits| waits.version)
        .collect();
    let is_small = |waits: &WaitingRecord| !in_spans.contains(&waits.version);
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
                heads: 0,
                small: 0,
                small_bytes: 0,
                closes: if waits.group == 0 { now } else { waits.since },
            });
        }
        let first = groups[index].members.first().map(|first| waiting[*first]);
        let group = &mut groups[index];
        group.members.push(n);
        group.bytes += waits.bytes;
        group.heads += usize::from(waits.kind == Kind::Head);
        if is_small(waits) {
            group.small += 1;
            group.small_bytes += waits.bytes;
        }
        if waits.group != 0 {
            let first = first.map_or(waits.since, |first| first.since);
            group.closes = (waits.since + OPEN_FOR).min(first + HELD_MAX);
        }
    }
    let mut open: Vec<usize> = (0..groups.len())
        .filter(|n| groups[*n].closes > now)
        .collect();
    // Groups that stay open longest are held back first, as long as there is room. A group with a
    // single object may stay that way, as for objects that programs without a page fetch: such
    // groups are last.
    open.sort_by_key(|n| {
        let group = &groups[*n];
        (group.heads <= 1, Reverse(group.closes))
    });
    let mut plan = BatchPlan::default();
    let mut held = vec![Held::Nothing; groups.len()];
    for n in open {
        let group = &groups[n];
        let whole = (Held::Everything, group.bytes, group.members.len());
        let small = (Held::Small, group.small_bytes, group.small);
        let fits = |&(_, bytes, records): &(Held, usize, usize)| {
            records > 0
                && plan.held_bytes + bytes <= room.bytes
                && plan.held_records + records <= room.records
        };
        let Some((what, bytes, records)) = [whole, small].into_iter().find(fits) else {
            continue;
        };
        plan.held_bytes += bytes;
        plan.held_records += records;
        let until = plan.held_until.unwrap_or(group.closes);
        plan.held_until = Some(until.min(group.closes));
        held[n] = what;
    }
    let due = groups.into_iter().zip(held).map(|(group, held)| {
        let mut members = group.members;
        members.retain(|n| match held {
            Held::Nothing => true,
            Held::Small => !is_small(&waiting[*n]),
            Held::Everything => false,
        });
        members
    });
    plan.due = due.filter(|members| !members.is_empty()).collect();
    plan
}

/// Puts the records of each object in a group side by side, the head first: a run is read from a
/// head to its end. Spans outside a run are before all heads: spans without their head, and spans
/// with a head that does not contain a length of at most [`MEMBER_BYTES_MAX`].
///
/// Called with the records of a single batch, after it was cut: a cut in between would leave a head
/// on disk without the spans.
pub(super) fn order_groups(waiting: &[WaitingRecord], batch: &mut [usize]) {
    let group = |n: &usize| waiting[*n].group;
    // The head of each object that is to be in a run whole.
    let mut whole: HashMap<Version, usize> = HashMap::new();
    for members in batch.chunk_by_mut(|one, other| group(one) == group(other)) {
        if group(&members[0]) == 0 || members.len() == 1 {
            continue;
        }
        whole.clear();
        for n in members.iter() {
            let waits = &waiting[*n];
            let fits = waits.total.is_some_and(|total| total <= MEMBER_BYTES_MAX);
            if waits.kind == Kind::Head && fits {
                whole.insert(waits.version, *n);
            }
        }
        members.sort_by_cached_key(|n| {
            let waits = &waiting[*n];
            match (waits.kind, whole.get(&waits.version)) {
                (Kind::Span, None) => (None, false),
                (Kind::Span, Some(head)) => (Some(*head), true),
                (Kind::Head, _) => (Some(*n), false),
            }
        });
    }
}

/// A record of a batch, in the order of [`order_groups`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchRecord {
    pub(crate) group: u64,
    pub(crate) kind: Kind,
    /// Bytes on disk.
    pub(crate) bytes: usize,
}

/// For each record of a batch the distance from the record start to the end of the run, as
/// [`run_code`] encodes it. A run has a single group, and stops before an object that would make it
/// longer than an entry can encode. 0 for a span, which is never looked up with a run, and for a
/// head without company, unless it is too long for the first read of a record with unknown length.
pub(crate) fn runs(batch: &[BatchRecord]) -> Vec<u8> {
    let mut runs = vec![0; batch.len()];
    let mut first = 0;
    while let Some(&BatchRecord { group, kind, .. }) = batch.get(first) {
        let (mut end, mut bytes) = (first, 0);
        while group != 0
            && kind == Kind::Head
            && let Some((records, more)) = object(&batch[end..], group)
            && bytes + more <= RUN_BYTES_MAX
        {
            (end, bytes) = (end + records, bytes + more);
        }
        if end - first > 1 || bytes > FIRST_READ {
            for n in first..end {
                if batch[n].kind == Kind::Head {
                    runs[n] = run_code(bytes);
                }
                bytes -= batch[n].bytes;
            }
        }
        first = end.max(first + 1);
    }
    runs
}

/// Records and bytes of the object in `group` at the start of `batch`: a head, and the spans behind
/// it.
fn object(batch: &[BatchRecord], group: u64) -> Option<(usize, usize)> {
    let (head, rest) = batch.split_first()?;
    if head.group != group || head.kind == Kind::Span {
        return None;
    }
    let spans = rest
        .iter()
        .take_while(|it| it.group == group && it.kind == Kind::Span);
    let sum = |(records, bytes), it: &BatchRecord| (records + 1, bytes + it.bytes);
    Some(spans.fold((1, head.bytes), sum))
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
            kind: Kind::Head,
            version: Version(since_ms),
            total: Some(1_000),
            since: Duration::from_millis(since_ms),
            bytes: 1_000,
        }
    }

    /// A record of object `version`, queued at once.
    fn of(kind: Kind, group: u64, version: u64) -> WaitingRecord {
        WaitingRecord {
            kind,
            version: Version(version),
            ..waits(group, 0)
        }
    }

    fn heads(records: &[(u64, usize)]) -> Vec<BatchRecord> {
        let head = |&(group, bytes): &(u64, usize)| BatchRecord {
            group,
            kind: Kind::Head,
            bytes,
        };
        records.iter().map(head).collect()
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
    fn a_run_is_told_from_each_member_to_its_end_and_none_of_a_short_record_alone() {
        let batch = heads(&[
            (0, 512),
            (7, 4_096),
            (7, 512),
            (7, 8_192),
            (9, 4_096),
            (0, 512),
            (0, 512),
        ]);
        assert_eq!(runs(&batch), [0, 4, 3, 2, 0, 0, 0]);
    }

    #[test]
    fn the_records_of_an_object_come_side_by_side_its_head_first_and_nothing_else_moves() {
        use Kind::{Head, Span};
        let waiting = [
            of(Span, 0, 1),
            of(Head, 0, 1),
            of(Span, 7, 2),
            of(Span, 7, 3),
            of(Span, 7, 2),
            of(Head, 7, 3),
            of(Head, 7, 4),
            of(Head, 7, 2),
            of(Span, 9, 5),
            of(Head, 9, 5),
        ];
        let mut batch: Vec<usize> = (0..waiting.len()).collect();
        order_groups(&waiting, &mut batch);
        assert_eq!(batch, [0, 1, 5, 3, 6, 7, 2, 4, 9, 8]);
    }

    #[test]
    fn spans_without_their_head_or_of_a_long_object_come_before_all_heads() {
        use Kind::{Head, Span};
        let long = WaitingRecord {
            total: Some(MEMBER_BYTES_MAX + 1),
            ..of(Head, 7, 3)
        };
        let waiting = [
            of(Head, 7, 1),
            of(Span, 7, 2),
            of(Span, 7, 3),
            of(Span, 7, 1),
            long,
        ];
        let mut batch: Vec<usize> = (0..waiting.len()).collect();
        order_groups(&waiting, &mut batch);
        assert_eq!(batch, [1, 2, 0, 3, 4]);
        let records: Vec<BatchRecord> = batch
            .iter()
            .map(|n| BatchRecord {
                group: 7,
                kind: waiting[*n].kind,
                bytes: 4_096,
            })
            .collect();
        assert_eq!(runs(&records), [0, 0, 3, 0, 1]);
    }

    #[test]
    fn without_room_for_a_page_its_large_objects_go_whole_and_its_small_ones_wait() {
        let large = WaitingRecord {
            bytes: 5_000,
            ..of(Kind::Span, 7, 0)
        };
        let waiting = [waits(7, 0), large, waits(7, 20), waits(7, 30)];
        let room = HoldLimit {
            bytes: 3_000,
            ..PLENTY
        };
        let plan = plan(&waiting, at(100), room);
        assert_eq!(plan.due, [vec![0, 1]]);
        assert_eq!((plan.held_records, plan.held_bytes), (2, 2_000));
    }

    #[test]
    fn a_run_ends_before_an_object_that_does_not_fit_and_spans_have_none() {
        let object = [(Kind::Head, 66 << 10), (Kind::Span, 200 << 10)];
        let batch: Vec<BatchRecord> = object
            .into_iter()
            .cycle()
            .take(20)
            .map(|(kind, bytes)| BatchRecord {
                group: 7,
                kind,
                bytes,
            })
            .collect();
        // Seven objects of 266 KiB fit into 2,036 KiB.
        let heads: Vec<u8> = runs(&batch).into_iter().step_by(2).collect();
        let expected =
            [7, 6, 5, 4, 3, 2, 1, 3, 2, 1].map(|objects| run_code(objects * (266 << 10)));
        assert_eq!(heads, expected);
        assert!(runs(&batch).iter().skip(1).step_by(2).all(|run| *run == 0));
    }

    #[test]
    fn a_record_alone_in_its_group_has_a_run_if_the_first_read_is_too_short_for_it() {
        let batch = heads(&[(7, 16_384), (9, 16_896), (0, 65_536)]);
        assert_eq!(runs(&batch), [0, 5, 0]);
    }

    #[test]
    fn a_run_longer_than_an_entry_can_tell_is_cut() {
        let batch = heads(&[(7, 64 << 10); 80]);
        let runs = runs(&batch);
        // 31 records of 64 KiB are 1,984 KiB; 32 would be 2,048.
        let whole = run_code(31 * (64 << 10));
        assert_eq!(
            [runs[0], runs[30], runs[31], runs[61]],
            [whole, 16, whole, 16]
        );
        assert_eq!([runs[62], runs[79]], [run_code(18 * (64 << 10)), 16]);
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
