//! Removes that wait for the writer: names, each once, and bans.
//!
//! Called by the queue, under the queue lock. Removes with a possibly waiting caller are first,
//! then bans, then the other removes: an unsafe request of a client must not keep a purge from the
//! disk.
//!
//! Invariants: bans are taken after the names with a caller that were queued before them. A name is
//! queued once, with the highest version. There are never more than [`Removals::most`] names, plus
//! the names that bans remove, which were pending records before.
//! Cost: [`NAME_BYTES`] of the memory budget for each name.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::{Removal, RemovalDone, Removing};
use crate::completion::{Outcome, Promise, promise};
use crate::format::Removed;
use crate::key::{KeyHash, KeyMap};
use crate::memory::Reservation;
use crate::object::Version;

/// Memory for a name, here and among the names that lookups skip: entries in three maps that may be
/// half empty, and a promise.
pub(crate) const NAME_BYTES: u64 = 512;
/// Names may take 1/16 of the memory budget.
const SHARE: u64 = 16;
/// Up to this many names need no memory from the budget, so that a full budget stops no purge.
pub(super) const ALWAYS: usize = 64;

/// How many names may wait on each of `devices` devices.
pub(crate) fn names_max(budget_bytes: u64, devices: u64) -> usize {
    let most = budget_bytes / SHARE / NAME_BYTES / devices.max(1);
    usize::try_from(most).unwrap_or(usize::MAX).max(2 * ALWAYS)
}

/// Presence of a caller that waits for a remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A caller waits, or may wait.
    Waits,
    /// No caller waits.
    Nobody,
}

/// A remove that waits for room. The writer accepts it, as long as the caller holds it.
pub(crate) struct WaitingRemove {
    pub(crate) key: KeyHash,
    /// In the log, where the name is forgotten already: the version of the remove.
    pub(crate) version: Option<Version>,
    done: Mutex<Option<RemovalDone>>,
}

impl WaitingRemove {
    pub(crate) fn new(key: KeyHash, version: Option<Version>, done: RemovalDone) -> Self {
        Self {
            key,
            version,
            done: Mutex::new(Some(done)),
        }
    }

    /// Takes the notification for the caller; `None` if it was taken before.
    pub(crate) fn take_done(&self) -> Option<RemovalDone> {
        self.done
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

struct WaitingName {
    version: Version,
    caller: Caller,
    /// Memory knows that the name is not stored: nothing has to be cleared.
    is_absent: bool,
    done: Vec<RemovalDone>,
    reservation: Option<Reservation>,
    /// The number in `others`, if the name waits there.
    line: u64,
}

impl WaitingName {
    /// Returns true if the name waits at this number in `others`.
    fn is_at(&self, line: u64) -> bool {
        self.caller == Caller::Nobody && self.line == line
    }
}

/// Callers with removes that are in force without room, and that wait for room.
struct AwaitedRoom {
    /// There is room when no more names than this are left. It is half of the names that waited at
    /// first: if a single free place were enough, each round of the writer would let all callers
    /// continue, and only one caller would find room.
    names_max: usize,
    promise: Promise<bool>,
    outcome: Outcome<bool>,
}

struct WaitingBans {
    behind_pending: bool,
    /// The bans are taken when this many names with a caller were taken.
    behind_names: u64,
    done: Vec<RemovalDone>,
}

/// See the module head.
pub(crate) struct Removals {
    names: KeyMap<WaitingName>,
    /// Names in the order in which they were queued. A name that is not in `names`, or is there
    /// with the other kind of caller, is skipped.
    waited_for: VecDeque<KeyHash>,
    /// The other names, with numbers: an entry counts only if the name has the same number.
    others: VecDeque<(u64, KeyHash)>,
    /// Entries that were ever added to `others`.
    lines: u64,
    bans: Option<WaitingBans>,
    /// Names with a caller that were ever queued, and how many of them were taken.
    come: u64,
    gone: u64,
    /// Accepted names that are not queued yet.
    let_in: usize,
    most: usize,
    /// Removes without room, in the order in which they were queued. Each is owned by the caller.
    without_room: VecDeque<Weak<WaitingRemove>>,
    /// How many of these have lost their callers.
    given_up: usize,
    /// The outcome on which callers without a queue place wait.
    awaited_room: Option<AwaitedRoom>,
    /// Removes wait until then, so that more of them are collected.
    pub(super) due: Duration,
    /// True if there are hidden key ranges that the writer must clear.
    pub(super) any_hidden: bool,
}

impl Default for Removals {
    fn default() -> Self {
        Self {
            names: KeyMap::default(),
            waited_for: VecDeque::new(),
            others: VecDeque::new(),
            lines: 0,
            bans: None,
            come: 0,
            gone: 0,
            let_in: 0,
            most: usize::MAX,
            without_room: VecDeque::new(),
            given_up: 0,
            awaited_room: None,
            due: Duration::ZERO,
            any_hidden: false,
        }
    }
}

/// Adds `done` to the callers to notify, and sometimes drops entries without a waiting caller.
fn add_done(all: &mut Vec<RemovalDone>, mut done: Vec<RemovalDone>) {
    all.append(&mut done);
    if all.len() > 8 && all.len().is_power_of_two() {
        all.retain(RemovalDone::is_awaited);
    }
}

impl Removals {
    pub(super) fn of_at_most(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
            && self.bans.is_none()
            && self.without_room.is_empty()
            && !self.any_hidden
    }

    /// Returns true if there is a remove with a possibly waiting caller.
    pub(super) fn any_waited_for(&self) -> bool {
        self.bans.is_some() || self.gone < self.come || !self.without_room.is_empty()
    }

    /// Accepts a name if there is room. Callers that can wait leave a quarter free for callers that
    /// cannot wait. `has_memory` is false if the budget refused a reservation.
    pub(super) fn let_in(&mut self, key: KeyHash, caller: Caller, has_memory: bool) -> bool {
        let taken = self.names.len() + self.let_in;
        let most = match caller {
            Caller::Waits => self.most / 4 * 3,
            Caller::Nobody => self.most,
        };
        let most = if has_memory { most } else { ALWAYS.min(most) };
        let has_room = self.names.contains_key(&key) || taken < most;
        self.let_in += usize::from(has_room);
        has_room
    }

    /// Cancels an acceptance: the name will not be queued.
    pub(super) fn stays_out(&mut self) {
        self.let_in = self.let_in.saturating_sub(1);
    }

    /// Adds a remove for which there is no room.
    pub(super) fn waits_for_room(&mut self, waiting: &Arc<WaitingRemove>) {
        self.without_room.push_back(Arc::downgrade(waiting));
    }

    /// Notes that a caller has dropped a remove that waits for room.
    pub(super) fn gives_up(&mut self) {
        self.given_up += 1;
        if self.given_up > 64 && self.given_up > self.without_room.len() / 2 {
            self.without_room.retain(|it| it.strong_count() > 0);
            self.given_up = 0;
        }
    }

    /// The next remove that waits for room, if there is room for it. The caller must call `push` or
    /// `stays_out`, or put it back.
    pub(super) fn next_without_room(&mut self) -> Option<Arc<WaitingRemove>> {
        while self.names.len() + self.let_in < self.most / 4 * 3 {
            if let Some(waiting) = self.without_room.pop_front()?.upgrade() {
                self.let_in += 1;
                return Some(waiting);
            }
        }
        None
    }

    /// Puts `waiting` back to the front, because there was no memory for it.
    pub(super) fn waits_on(&mut self, waiting: &Arc<WaitingRemove>) {
        self.without_room.push_front(Arc::downgrade(waiting));
        self.stays_out();
    }

    /// An outcome that resolves when half of the names that are now queued are durable. All callers
    /// that wait for room share it, so it takes no memory for each caller.
    pub(super) fn half(&mut self) -> Outcome<bool> {
        let taken = self.names.len() + self.let_in;
        let awaited = self.awaited_room.get_or_insert_with(|| {
            let (promise, outcome) = promise();
            AwaitedRoom {
                names_max: taken / 2,
                promise,
                outcome,
            }
        });
        awaited.outcome.clone()
    }

    /// The promise of [`Removals::half`], if it is to be kept now.
    pub(super) fn take_half(&mut self) -> Option<Promise<bool>> {
        let taken = self.names.len() + self.let_in;
        let awaited = self.awaited_room.take_if(|it| taken <= it.names_max)?;
        Some(awaited.promise)
    }

    /// Queued names.
    pub(super) fn count(&self) -> usize {
        self.names.len()
    }

    pub(super) fn push(
        &mut self,
        removal: Removal,
        caller: Caller,
        reservation: Option<Reservation>,
    ) {
        match removal.what {
            Removing::Bans { behind_pending } => {
                let bans = self.bans.get_or_insert(WaitingBans {
                    behind_pending: false,
                    behind_names: 0,
                    done: Vec::new(),
                });
                bans.behind_pending |= behind_pending;
                bans.behind_names = self.come;
                add_done(&mut bans.done, removal.done);
            }
            Removing::Name(removed) => {
                self.push_name(removed, false, removal.done, caller, reservation);
            }
            Removing::Absent(removed) => {
                self.push_name(removed, true, removal.done, caller, reservation);
            }
        }
    }

    fn push_name(
        &mut self,
        Removed { key, version }: Removed,
        is_absent: bool,
        done: Vec<RemovalDone>,
        caller: Caller,
        reservation: Option<Reservation>,
    ) {
        let is_new = !self.names.contains_key(&key);
        let name = self.names.entry(key).or_insert(WaitingName {
            version,
            caller,
            is_absent,
            done: Vec::new(),
            reservation,
            line: 0,
        });
        name.version = name.version.max(version);
        name.is_absent &= is_absent;
        add_done(&mut name.done, done);
        let moves = name.caller == Caller::Nobody && caller == Caller::Waits;
        if is_new || moves {
            name.caller = caller;
            match caller {
                Caller::Waits => {
                    self.waited_for.push_back(key);
                    self.come += 1;
                }
                Caller::Nobody => {
                    self.lines += 1;
                    name.line = self.lines;
                    self.others.push_back((self.lines, key));
                }
            }
        }
        // Names for which a caller has waited since have left old entries here. `take` reaches and
        // skips these entries only when no name with a waiting caller is left.
        if self.others.len() > 2 * self.names.len().max(ALWAYS) {
            let names = &self.names;
            self.others
                .retain(|(line, key)| names.get(key).is_some_and(|it| it.is_at(*line)));
        }
    }

    /// Takes at most `most` removes, first the removes with a caller.
    pub(super) fn take(&mut self, most: usize) -> Vec<Removal> {
        let mut taken = Vec::new();
        while taken.len() < most {
            let removal = self
                .take_name(Caller::Waits)
                .or_else(|| self.take_bans())
                .or_else(|| self.take_name(Caller::Nobody));
            let Some(removal) = removal else { break };
            taken.push(removal);
        }
        taken
    }

    fn take_name(&mut self, caller: Caller) -> Option<Removal> {
        loop {
            let (key, line) = match caller {
                Caller::Waits => {
                    let key = self.waited_for.pop_front()?;
                    self.gone += 1;
                    (key, None)
                }
                Caller::Nobody => {
                    let (line, key) = self.others.pop_front()?;
                    (key, Some(line))
                }
            };
            let counts = |it: &WaitingName| match line {
                None => it.caller == Caller::Waits,
                Some(line) => it.is_at(line),
            };
            if !self.names.get(&key).is_some_and(counts) {
                continue;
            }
            let name = self.names.remove(&key)?;
            let removed = Removed {
                key,
                version: name.version,
            };
            let what = if name.is_absent {
                Removing::Absent(removed)
            } else {
                Removing::Name(removed)
            };
            return Some(Removal {
                what,
                done: name.done,
                reservation: name.reservation,
            });
        }
    }

    fn take_bans(&mut self) -> Option<Removal> {
        let bans = self.bans.take_if(|it| it.behind_names <= self.gone)?;
        let behind_pending = bans.behind_pending;
        Some(Removal {
            what: Removing::Bans { behind_pending },
            done: bans.done,
            reservation: None,
        })
    }

    /// Puts `removals`, which were taken, back to the front.
    pub(super) fn put_back(&mut self, removals: Vec<Removal>) {
        for removal in removals.into_iter().rev() {
            let (removed, is_absent) = match removal.what {
                Removing::Bans { behind_pending } => {
                    let come = self.come;
                    let bans = self.bans.get_or_insert(WaitingBans {
                        behind_pending,
                        behind_names: come,
                        done: Vec::new(),
                    });
                    bans.behind_pending |= behind_pending;
                    add_done(&mut bans.done, removal.done);
                    continue;
                }
                Removing::Name(removed) => (removed, false),
                Removing::Absent(removed) => (removed, true),
            };
            let key = removed.key;
            let name = self.names.entry(key).or_insert(WaitingName {
                version: removed.version,
                caller: Caller::Waits,
                is_absent,
                done: Vec::new(),
                reservation: removal.reservation,
                line: 0,
            });
            name.version = name.version.max(removed.version);
            name.is_absent &= is_absent;
            // A remove that waits for room in the journal has waited long enough to be first.
            name.caller = Caller::Waits;
            add_done(&mut name.done, removal.done);
            self.waited_for.push_front(key);
            self.gone = self.gone.saturating_sub(1);
            self.come = self.come.max(self.gone + 1);
        }
    }

    /// Takes everything, including the removes that wait for room, when no more is written.
    pub(super) fn take_all(&mut self) -> (Vec<Removal>, Vec<Arc<WaitingRemove>>) {
        let bans = self.bans.as_mut();
        if let Some(bans) = bans {
            bans.behind_names = 0;
        }
        let without_room = self.without_room.drain(..);
        let waiting = without_room.filter_map(|it| it.upgrade()).collect();
        (self.take(usize::MAX), waiting)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::completion::promise;
    use crate::key::Secret;

    fn key(name: &str) -> KeyHash {
        Secret::from_bytes([1; 32]).name(name.as_bytes())
    }

    fn push(removals: &mut Removals, name: &str, version: u64, caller: Caller) {
        let removed = Removed {
            key: key(name),
            version: Version(version),
        };
        let removal = Removal {
            what: Removing::Name(removed),
            done: Vec::new(),
            reservation: None,
        };
        removals.push(removal, caller, None);
    }

    fn push_bans(removals: &mut Removals) {
        let what = Removing::Bans {
            behind_pending: false,
        };
        let removal = Removal {
            what,
            done: Vec::new(),
            reservation: None,
        };
        removals.push(removal, Caller::Waits, None);
    }

    /// The names in the order in which they are taken, with their versions; `-` for bans.
    fn taken(removals: &mut Removals, most: usize) -> Vec<(String, u64)> {
        let name = |it: Removal| match it.what {
            Removing::Bans { .. } => ("-".to_owned(), 0),
            Removing::Name(removed) | Removing::Absent(removed) => {
                let name = ["a", "b", "c", "d"]
                    .into_iter()
                    .find(|it| key(it) == removed.key);
                (name.unwrap_or("?").to_owned(), removed.version.0)
            }
        };
        removals.take(most).into_iter().map(name).collect()
    }

    fn named(names: &[(&str, u64)]) -> Vec<(String, u64)> {
        names
            .iter()
            .map(|(name, version)| ((*name).to_owned(), *version))
            .collect()
    }

    #[test]
    fn a_name_waits_once_with_the_highest_version_however_often_it_is_removed() {
        let mut removals = Removals::default();
        for version in [3, 9, 4] {
            push(&mut removals, "a", version, Caller::Nobody);
        }
        push(&mut removals, "b", 5, Caller::Nobody);
        assert_eq!(taken(&mut removals, 9), named(&[("a", 9), ("b", 5)]));
        assert!(removals.is_empty());
    }

    #[test]
    fn a_remove_that_a_caller_waits_for_goes_before_the_others_and_bans_behind_their_names() {
        let mut removals = Removals::default();
        push(&mut removals, "a", 1, Caller::Nobody);
        push(&mut removals, "b", 2, Caller::Nobody);
        push(&mut removals, "c", 3, Caller::Waits);
        push_bans(&mut removals);
        push(&mut removals, "b", 4, Caller::Waits);
        assert_eq!(taken(&mut removals, 1), named(&[("c", 3)]));
        assert_eq!(taken(&mut removals, 1), named(&[("b", 4)]));
        assert!(removals.any_waited_for());
        assert_eq!(taken(&mut removals, 9), named(&[("-", 0), ("a", 1)]));
        assert!(removals.is_empty() && !removals.any_waited_for());
    }

    #[test]
    fn what_the_journal_has_no_room_for_goes_first_and_bans_behind_it() {
        let mut removals = Removals::default();
        push(&mut removals, "a", 1, Caller::Waits);
        push(&mut removals, "b", 2, Caller::Waits);
        push_bans(&mut removals);
        let mut held = removals.take(9);
        held.remove(0);
        push(&mut removals, "c", 3, Caller::Waits);
        push(&mut removals, "b", 7, Caller::Nobody);
        removals.put_back(held);
        let expected = named(&[("b", 7), ("c", 3), ("-", 0)]);
        assert_eq!(taken(&mut removals, 9), expected);
    }

    #[test]
    fn there_is_no_room_for_more_names_than_the_share_and_a_quarter_is_for_those_that_cannot_wait()
    {
        let mut removals = Removals::of_at_most(8);
        let names: Vec<String> = (0..9).map(|n| n.to_string()).collect();
        let mut let_in = 0;
        for name in &names {
            if removals.let_in(key(name), Caller::Waits, true) {
                push(&mut removals, name, 1, Caller::Waits);
                removals.stays_out();
                let_in += 1;
            }
        }
        assert_eq!(let_in, 6);
        assert!(
            removals.let_in(key("0"), Caller::Waits, true),
            "it is there already"
        );
        assert!(removals.let_in(key("7"), Caller::Nobody, true));
        assert!(!removals.let_in(key("8"), Caller::Nobody, true));
        removals.take(3);
        assert!(removals.let_in(key("8"), Caller::Nobody, true));
    }

    #[test]
    fn who_waits_for_room_goes_on_when_half_of_the_names_are_gone() {
        let mut removals = Removals::of_at_most(8);
        for name in ["a", "b", "c", "d"] {
            push(&mut removals, name, 1, Caller::Nobody);
        }
        let outcomes = [removals.half(), removals.half()];
        removals.take(1);
        assert!(removals.take_half().is_none());
        removals.take(1);
        removals.take_half().unwrap().set(true);
        assert!(outcomes.into_iter().all(|it| it.wait()));
        assert!(removals.take_half().is_none());
    }

    #[test]
    fn a_name_that_a_caller_waits_for_later_leaves_no_line_behind() {
        let mut removals = Removals::default();
        for n in 0..10_000 {
            push(&mut removals, "a", n, Caller::Nobody);
            push(&mut removals, "a", n, Caller::Waits);
            removals.take(1);
        }
        assert!(removals.others.len() <= 2 * ALWAYS && removals.is_empty());
        push(&mut removals, "b", 1, Caller::Nobody);
        push(&mut removals, "a", 2, Caller::Nobody);
        assert_eq!(taken(&mut removals, 9), named(&[("b", 1), ("a", 2)]));
    }

    #[test]
    fn promises_whose_callers_have_gone_do_not_gather() {
        let mut removals = Removals::default();
        for _ in 0..1_000 {
            let what = Removing::Bans {
                behind_pending: false,
            };
            let (done, _) = promise();
            let removal = Removal {
                what,
                done: vec![RemovalDone::Promise(done)],
                reservation: None,
            };
            removals.push(removal, Caller::Waits, None);
        }
        assert!(removals.take(9)[0].done.len() <= 16);
    }
}
