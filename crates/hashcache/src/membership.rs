//! A store's devices for each version range, and the device that owns a name.
//!
//! Pure: no I/O, no clock. Called by `members`, `store/device` and `format`.
//!
//! Weighted rendezvous hashing maps a name to one device: each device draws a number for the name
//! and the best number wins. So a device that joins or leaves moves only the names that it wins or
//! had won. All numbers are integers, so every build on every machine finds the same owner. They
//! depend only on the key hash, in which `key` stores the bits from the name part that the store's
//! placement selects.
//!
//! Invariant: a record counts only if its device was the owner under every membership from the
//! record's version to now. Otherwise an object that was replaced or removed while the device was
//! away, or while the name had another owner, would return.
//! Cost: 32 multiplications a device, for stores on several devices.

use std::collections::BTreeSet;

use crate::key::KeyHash;

/// Stored memberships; records from before the oldest do not count any more.
pub(crate) const MEMBERSHIPS_MAX: usize = 32;
/// Most devices at a time.
pub(crate) const DEVICES_MAX: usize = 16;
/// Most devices in all stored memberships together.
pub(crate) const DEVICES_KNOWN_MAX: usize = 64;

/// A device in a store, with a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    pub(crate) id: u16,
    /// Store bytes on this device.
    pub(crate) weight: u64,
}

/// The members since a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) first: u64,
    /// Sorted by id.
    pub(crate) members: Vec<Member>,
}

/// A store's memberships, oldest first; never empty, except by `Default`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    memberships: Vec<Membership>,
}

impl History {
    /// A new store's history.
    pub(crate) fn new(members: Vec<Member>) -> Self {
        Self::from_parts(vec![Membership { first: 0, members }])
            .expect("ids of a new store are given out in turn")
    }

    /// Builds a history from a superblock; `None` if the memberships are not valid.
    pub(crate) fn from_parts(mut memberships: Vec<Membership>) -> Option<Self> {
        for membership in &mut memberships {
            membership.members.sort_unstable();
        }
        let sound = |it: &Membership| {
            let distinct = it.members.windows(2).all(|pair| pair[0].id < pair[1].id);
            (1..=DEVICES_MAX).contains(&it.members.len()) && distinct
        };
        let rising = memberships
            .windows(2)
            .all(|pair| pair[0].first < pair[1].first);
        let few = (1..=MEMBERSHIPS_MAX).contains(&memberships.len());
        let history = Self { memberships };
        let whole = few && rising && history.memberships.iter().all(sound);
        (whole && history.known().len() <= DEVICES_KNOWN_MAX).then_some(history)
    }

    pub(crate) fn memberships(&self) -> &[Membership] {
        &self.memberships
    }

    /// The current members.
    pub(crate) fn members(&self) -> &[Member] {
        &self.tip().members
    }

    fn tip(&self) -> &Membership {
        self.memberships.last().expect("a history is never empty")
    }

    /// All devices in any membership.
    pub(crate) fn known(&self) -> BTreeSet<Member> {
        let members = self.memberships.iter().flat_map(|it| &it.members);
        members.copied().collect()
    }

    /// An id that no device has, as far as this store knows. `drawn` is random: if another part of
    /// the store was used separately, a device that joined it is unlikely to have this id.
    pub(crate) fn new_id(&self, present: &[u16], drawn: u16) -> u16 {
        let known = self.known().into_iter().map(|it| it.id);
        let taken: BTreeSet<u16> = known.chain(present.iter().copied()).collect();
        let mut id = drawn;
        while taken.contains(&id) {
            id = id.wrapping_add(1);
        }
        id
    }

    /// Makes `members` the membership from version `first` on, which must not have been drawn yet.
    /// Changes nothing if they are the members already.
    pub(crate) fn change(&mut self, first: u64, mut members: Vec<Member>) {
        members.sort_unstable();
        if members == self.members() {
            return;
        }
        let first = first.max(self.tip().first.saturating_add(1));
        self.memberships.push(Membership { first, members });
        while self.memberships.len() > MEMBERSHIPS_MAX || self.known().len() > DEVICES_KNOWN_MAX {
            self.memberships.remove(0);
        }
    }

    /// As [`History::change`], but records on the devices `away` do not count: these devices were
    /// rolled back, and are treated as if they had left and joined again. Returns a version from
    /// which all this holds.
    pub(crate) fn change_without(&mut self, first: u64, away: &[u16], members: Vec<Member>) -> u64 {
        if away.is_empty() {
            self.change(first, members);
            return first;
        }
        let stayed = members.iter().filter(|it| !away.contains(&it.id));
        let stayed: Vec<Member> = stayed.copied().collect();
        if stayed.is_empty() {
            self.begin_anew(first, members);
            return first;
        }
        self.change(first, stayed);
        let back = first.max(self.tip().first) + 1;
        self.change(back, members);
        back
    }

    /// Returns true if a record on `device` for `key` with `version` counts.
    pub(crate) fn counts(&self, key: KeyHash, version: u64, device: u16) -> bool {
        for membership in self.memberships.iter().rev() {
            if owner(&membership.members, key) != device {
                return false;
            }
            if membership.first <= version {
                return true;
            }
        }
        false
    }

    /// The version since which `device` has taken part without a break; records from before do not
    /// count.
    pub(crate) fn since(&self, device: u16) -> u64 {
        let takes_part = |it: &&Membership| it.members.iter().any(|member| member.id == device);
        let rest = self.memberships.iter().rev().take_while(takes_part);
        rest.last().map_or(u64::MAX, |it| it.first)
    }

    /// Chooses the valid history among those on the present devices; nothing if there is no device.
    ///
    /// A membership is written to all members before any version is assigned under it. So a
    /// membership was never in force if a present member does not have it, and it is dropped. After
    /// that the longest history is valid if the others are parts of it, because it knows all
    /// memberships that were in force. Otherwise parts of the store were used separately, and one
    /// part may still have objects that another part replaced or removed: then no earlier record
    /// counts.
    pub(crate) fn choose(carried: &[(u16, Self)]) -> Option<Chosen> {
        let refuted = |it: &Membership| {
            carried.iter().any(|(device, history)| {
                it.members.iter().any(|member| member.id == *device)
                    && !history.memberships.contains(it)
            })
        };
        let in_force: Vec<Self> = carried
            .iter()
            .map(|(_, history)| {
                let mut history = history.clone();
                while history.memberships.len() > 1 && refuted(history.tip()) {
                    history.memberships.pop();
                }
                history
            })
            .collect();
        let longest = in_force.iter().max_by_key(|it| it.tip().first)?.clone();
        Some(if in_force.iter().all(|it| it.is_part_of(&longest)) {
            Chosen::Whole(longest)
        } else {
            Chosen::Apart(longest)
        })
    }

    /// Returns true if `longer` continues this history, as far as both remember.
    fn is_part_of(&self, longer: &Self) -> bool {
        let end = longer.memberships.iter().position(|it| it == self.tip());
        end.is_some_and(|end| {
            let both = self.memberships.iter().rev();
            both.zip(longer.memberships[..=end].iter().rev())
                .all(|(one, other)| one == other)
        })
    }

    /// Makes `members` the membership from version `first` on; no earlier record counts.
    pub(crate) fn begin_anew(&mut self, first: u64, mut members: Vec<Member>) {
        members.sort_unstable();
        self.memberships = vec![Membership { first, members }];
    }
}

/// See [`History::choose`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// The history knows all memberships.
    Whole(History),
    /// Parts of the store were used separately; this is a part's history.
    Apart(History),
}

/// The device that owns `key` among `members`, which is not empty.
pub(crate) fn owner(members: &[Member], key: KeyHash) -> u16 {
    match members {
        [one] => one.id,
        _ => members
            .iter()
            .copied()
            .reduce(|best, other| better(best, other, key))
            .map_or(0, |best| best.id),
    }
}

/// Returns the device that wins the name. Each device draws a number evenly distributed in (0, 1);
/// the lower −log(number) / weight wins, which makes a device's chance proportional to its weight.
pub(crate) fn better(one: Member, other: Member, key: KeyHash) -> Member {
    let cost = |it: Member, weight: u64| u128::from(draw(key, it.id)) * u128::from(weight);
    // Multiplied crosswise, to avoid a division; the lower id wins a tie in any argument order.
    let (first, second) = (cost(one, other.weight), cost(other, one.weight));
    match first.cmp(&second) {
        std::cmp::Ordering::Less => one,
        std::cmp::Ordering::Greater => other,
        std::cmp::Ordering::Equal => one.min(other),
    }
}

/// −log2 of the number in (0, 1) that `device` draws for `key`, in units of 2⁻³²; at least 1.
fn draw(key: KeyHash, device: u16) -> u64 {
    let bits = key.device_bits() | (u64::from(device) << 32);
    let number = mix(bits) | 1;
    let whole = u64::from(number.leading_zeros());
    // The mantissa in [1, 2), as a 63-bit fixed point number. Squaring it doubles the logarithm,
    // which yields the bits one by one.
    let mut mantissa = number << whole;
    let mut fraction: u64 = 0;
    for _ in 0..32 {
        let square = (u128::from(mantissa) * u128::from(mantissa)) >> 63;
        fraction <<= 1;
        if square >> 64 != 0 {
            fraction |= 1;
            mantissa = low(square >> 1);
        } else {
            mantissa = low(square);
        }
    }
    // log2 of the number is 64 − 1 − whole + fraction; log2 of 2^64, which stands for 1, is 64.
    (((whole + 1) << 32) - fraction).max(1)
}

fn low(wide: u128) -> u64 {
    u64::try_from(wide & u128::from(u64::MAX)).unwrap_or(u64::MAX)
}

/// The finalizer of SplitMix64: every input bit changes half the output bits.
fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Secret;
    use crate::placement::Placement;

    fn member(id: u16, weight: u64) -> Member {
        Member { id, weight }
    }

    fn keys(n: u64) -> impl Iterator<Item = KeyHash> {
        let mut random = fastrand::Rng::with_seed(7);
        (0..n).map(move |_| KeyHash {
            high: random.u64(..),
            low: random.u64(..),
        })
    }

    #[test]
    fn a_device_owns_its_share_and_takes_or_leaves_no_more_than_that() {
        const KEYS: u64 = 200_000;
        let all = [member(0, 1 << 40), member(1, 2 << 40), member(2, 5 << 40)];
        let mut owned = [0u64; 3];
        for key in keys(KEYS) {
            let with = owner(&all, key);
            owned[usize::from(with)] += 1;
            let without = owner(&all[..2], key);
            // The owner of a name keeps it when other devices join or leave.
            assert!(with == 2 || with == without);
            assert!(without != 2);
            assert_eq!(with, owner(&[all[2], all[0], all[1]], key));
        }
        for (owned, eighths) in owned.into_iter().zip([1, 2, 5]) {
            let expected = KEYS * eighths / 8;
            assert!(
                owned.abs_diff(expected) < expected / 50,
                "{owned} of {KEYS}, expected {expected}"
            );
        }
    }

    #[test]
    fn a_device_that_joins_takes_whole_hosts_and_no_more_than_its_share_of_them() {
        const HOSTS: u32 = 20_000;
        let host: fn(&[u8]) -> &[u8] = |name| &name[..4];
        let by_host = Placement::new(std::num::NonZeroU32::MIN, host);
        let secret = Secret::from_bytes([7; 32]).placed_by(by_host);
        let all = [member(0, 1), member(1, 1), member(2, 1)];
        let mut moved = 0;
        for n in 0..HOSTS {
            let key = |of_host: &[u8]| secret.name(&[&n.to_be_bytes()[..], of_host].concat());
            let keys = [key(b""), key(b"/"), key(b"/image"), key(b"/image\0v1")];
            let [with, without] = [&all[..], &all[..2]].map(|it| owner(it, keys[0]));
            for key in keys {
                assert_eq!((owner(&all, key), owner(&all[..2], key)), (with, without));
            }
            assert!(with == 2 || with == without);
            moved += u32::from(with == 2);
        }
        assert!(moved.abs_diff(HOSTS / 3) < HOSTS / 50, "{moved} of {HOSTS}");
    }

    #[test]
    fn the_number_drawn_is_the_logarithm() {
        // −log2 of an evenly distributed number is 1/ln 2 = 1.442695 on average.
        let sum: u128 = keys(100_000).map(|key| u128::from(draw(key, 3))).sum();
        let mean = (sum / 100_000 * 1000) >> 32;
        assert!((1430..1456).contains(&mean), "{mean}");
    }

    #[test]
    fn a_record_counts_only_if_its_device_was_the_owner_ever_since() {
        let (a, b) = (member(0, 1), member(1, 1));
        let mut history = History::new(vec![a]);
        history.change(100, vec![a, b]);
        history.change(200, vec![a]);
        let moved = keys(1000).find(|key| owner(&[a, b], *key) == 1).unwrap();
        let stayed = keys(1000).find(|key| owner(&[a, b], *key) == 0).unwrap();
        assert!(!history.counts(moved, 50, 0) && !history.counts(moved, 150, 1));
        assert!(history.counts(moved, 200, 0) && !history.counts(moved, 250, 1));
        assert!(history.counts(stayed, 1, 0) && history.counts(stayed, 199, 0));
        assert_eq!((history.since(0), history.since(1)), (0, u64::MAX));
        history.change(300, vec![a, b]);
        assert_eq!((history.since(0), history.since(1)), (0, 300));
    }

    #[test]
    fn nothing_on_a_device_that_was_rolled_back_counts_and_all_else_does() {
        let (a, b) = (member(0, 1), member(1, 1));
        for names in [vec![a, b], vec![a]] {
            let mut history = History::new(names.clone());
            let next = history.change_without(100, &[1], vec![a, b]);
            for key in keys(100) {
                let owner = |members: &[Member]| u64::from(owner(members, key));
                let stays = owner(&[a, b]) == 0 && owner(&names) == 0;
                assert_eq!(history.counts(key, 99, 0), stays);
                assert!(!history.counts(key, 99, 1));
                // An object that is put from now on counts at its owner.
                assert!(history.counts(key, next, owner(&[a, b]).try_into().unwrap()));
            }
        }
        // With all of them rolled back, each to another moment, nothing counts.
        let mut history = History::new(vec![a, b]);
        let next = history.change_without(100, &[0, 1], vec![a, b]);
        for key in keys(100) {
            assert!((0..2).all(|device| !history.counts(key, 99, device)));
            assert!((0..2).any(|device| history.counts(key, next, device)));
        }
    }

    #[test]
    fn what_is_forgotten_of_a_history_counts_for_nothing() {
        let (a, b) = (member(0, 1), member(1, 1));
        let mut history = History::new(vec![a]);
        for n in 1..=40 {
            let members = if n % 2 == 0 { vec![a] } else { vec![a, b] };
            history.change(100 * n, members);
        }
        assert_eq!(history.memberships().len(), MEMBERSHIPS_MAX);
        let oldest = history.memberships()[0].first;
        let key = keys(1000).find(|key| owner(&[a, b], *key) == 0).unwrap();
        assert!(!history.counts(key, oldest - 1, 0) && history.counts(key, oldest, 0));
        let rebuilt = History::from_parts(history.memberships().to_vec());
        assert_eq!(rebuilt, Some(history));
    }

    #[test]
    fn histories_that_cannot_be_are_refused() {
        let at = |first, ids: &[u16]| Membership {
            first,
            members: ids.iter().map(|id| member(*id, 1)).collect(),
        };
        assert!(History::from_parts(vec![at(0, &[0, 1])]).is_some());
        assert!(History::from_parts(vec![]).is_none());
        assert!(History::from_parts(vec![at(0, &[])]).is_none());
        assert!(History::from_parts(vec![at(0, &[1, 1])]).is_none());
        assert!(History::from_parts(vec![at(5, &[0]), at(5, &[1])]).is_none());
        assert!(History::from_parts(vec![at(0, &[0; 17])]).is_none());
    }

    #[test]
    fn a_new_device_gets_no_number_that_is_known_or_present() {
        let history = History::new(vec![member(0, 1), member(7, 1)]);
        for drawn in [0, 5, 7, u16::MAX] {
            let id = history.new_id(&[8, u16::MAX], drawn);
            let expected = match drawn {
                0 | u16::MAX => 1,
                7 => 9,
                other => other,
            };
            assert_eq!(id, expected);
        }
    }

    /// A device of the model: its history, the version set aside, and for each key what it holds.
    #[derive(Clone)]
    struct Disk {
        carried: Option<(u64, History)>,
        held: Vec<Option<u64>>,
    }

    /// Runs on random parts of a store, some of which end while they open. As long as each run has
    /// a device of the last one that gave versions out, only the last put of a key ever counts.
    #[test]
    fn whatever_comes_and_goes_only_the_last_put_counts() {
        const KEYS: usize = 24;
        const AHEAD: u64 = 1000;
        let device = |n: usize| member(u16::try_from(n).unwrap(), 1 + n as u64);
        let (mut runs, mut anew, mut answers) = (0, 0, 0);
        for seed in 0..2000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let disks = random.usize(2..6);
            let keys: Vec<KeyHash> = keys(KEYS as u64).collect();
            let mut disks = vec![
                Disk {
                    carried: None,
                    held: vec![None; KEYS]
                };
                disks
            ];
            let mut last: Vec<Option<u64>> = vec![None; KEYS];
            let mut last_run: Vec<usize> = Vec::new();
            for _ in 0..random.usize(2..14) {
                let present: Vec<usize> = (0..disks.len()).filter(|_| random.bool()).collect();
                let known = present.iter().any(|n| last_run.contains(n));
                if present.is_empty() || (!known && !last_run.is_empty()) {
                    continue;
                }
                let carried: Vec<_> = present
                    .iter()
                    .filter_map(|n| {
                        let (_, history) = disks[*n].carried.clone()?;
                        Some((u16::try_from(*n).unwrap(), history))
                    })
                    .collect();
                let next = present
                    .iter()
                    .filter_map(|n| Some(disks[*n].carried.as_ref()?.0));
                let members: Vec<_> = present.iter().map(|n| device(*n)).collect();
                let next = next.max().unwrap_or(1);
                let mut history = match History::choose(&carried) {
                    None => History::new(members),
                    Some(Chosen::Whole(mut history)) => {
                        history.change(next, members);
                        history
                    }
                    Some(Chosen::Apart(mut history)) => {
                        history.begin_anew(next, members);
                        anew += 1;
                        history
                    }
                };
                let mut order = present.clone();
                random.shuffle(&mut order);
                let crash = random.u8(..4) == 0;
                let written = if crash {
                    random.usize(..order.len())
                } else {
                    order.len()
                };
                for n in &order[..written] {
                    disks[*n].carried = Some((next + AHEAD, history.clone()));
                }
                if crash {
                    continue;
                }
                last_run.clone_from(&present);
                runs += 1;
                for (key, last) in last.iter().enumerate() {
                    for n in &present {
                        let Some(version) = disks[*n].held[key] else {
                            continue;
                        };
                        let counts = history.counts(keys[key], version, u16::try_from(*n).unwrap());
                        answers += u64::from(counts);
                        assert!(!counts || *last == Some(version), "seed {seed}, key {key}");
                    }
                }
                let mut version = next;
                loop {
                    for _ in 0..random.u64(..20) {
                        let key = random.usize(..KEYS);
                        let on = usize::from(owner(history.members(), keys[key]));
                        let put = (random.u8(..3) > 0).then_some(version);
                        (disks[on].held[key], last[key]) = (put, put);
                        let id = u16::try_from(on).unwrap();
                        assert!(history.counts(keys[key], version, id), "seed {seed}");
                        version += 1;
                    }
                    // One device fails, and the others continue if they can.
                    if last_run.len() < 2 || random.bool() {
                        break;
                    }
                    let failed = last_run[random.usize(..last_run.len())];
                    let mut staying = last_run.clone();
                    staying.retain(|n| *n != failed);
                    random.shuffle(&mut staying);
                    let members = staying.iter().map(|n| device(*n)).collect();
                    history.change(version, members);
                    version += 1;
                    let told = random.usize(..=staying.len());
                    for n in &staying[..told] {
                        disks[*n].carried = Some((next + AHEAD, history.clone()));
                    }
                    if told < staying.len() {
                        break;
                    }
                    last_run = staying;
                }
            }
        }
        // Forgetting everything is the exception, and what counts is found.
        assert!(anew < runs / 20, "{anew} of {runs}");
        assert!(answers > runs, "{answers} in {runs}");
    }
}
