//! Removes: of names, and by bans; and when a ban may be forgotten.
//!
//! Called by `writer` before each batch; calls `disk/journal` and `disk/table`.
//!
//! Invariant: a caller that waits for a remove gets its answer when the remove is durable, and not
//! before. A ban is forgotten when no record older than it can be read any more: in the log when
//! the head has wrapped, in the Disk Table when a pass over all sets has cleared what bans hide.
//! Cost: one write and one sync for all queued removes of names, one write more for all bans. Then
//! the writer leaves the device to other work for nine times as long as that took. So any number of
//! removes a second takes a tenth of the device, and a remove waits for a second at most. It waits
//! longer only if removes of names are so fast that the journal is full before a checkpoint is
//! complete, which takes a tenth of the device too.

use std::io;
use std::time::Duration;

use super::DeviceWriter;
use crate::address::SetId;
use crate::bans::Effect;
use crate::disk::table;
use crate::format::{BanLine, Family, Removed};
use crate::key::KeyMap;
use crate::object::Version;
use crate::write_queue::{Removal, RemovalDone, Removing};

/// After removes were written, others have the device for this many times as long as it took.
const REST: u32 = 9;
/// Work that takes less is not followed by a rest: it delays no other work noticeably.
const SHORT: Duration = Duration::from_millis(2);
/// Most rest: a second is the longest that an invalidation may take to become durable.
const REST_MAX: Duration = Duration::from_millis(750);

/// A soft ban is kept for so long where it can be forgotten only when the objects that it made
/// stale are removed: an object not requested for a day is not worth confirming.
const SOFT_FOR: Duration = Duration::from_secs(24 * 3600);
/// Longest pause between two sets of a pass: closing the store waits for it.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The Disk Table being read for what bans have taken away.
pub(super) struct BansPass {
    next: SetId,
    /// Bans up to these versions are done with when all sets are.
    gone_upto: Version,
    stale_upto: Version,
    due: Duration,
}

impl BansPass {
    pub(super) fn due_in(&self, now: Duration) -> Duration {
        self.due.saturating_sub(now)
    }
}

/// The names among some removes, each once: of several removes of a name the last says what all
/// say.
struct Names {
    removed: Vec<Removed>,
    /// Of each, the index of the first remove of it.
    first_at: Vec<usize>,
}

impl Names {
    fn of(removals: &[Removal]) -> Self {
        let mut names = Self {
            removed: Vec::new(),
            first_at: Vec::new(),
        };
        let mut place_of: KeyMap<usize> = KeyMap::default();
        for (at, removal) in removals.iter().enumerate() {
            let Removing::Name(removed) = removal.what else {
                continue;
            };
            let place = *place_of.entry(removed.key).or_insert(names.removed.len());
            match names.removed.get_mut(place) {
                Some(known) => known.version = known.version.max(removed.version),
                None => {
                    names.removed.push(removed);
                    names.first_at.push(at);
                }
            }
        }
        names
    }
}

impl DeviceWriter {
    /// Makes `removals` durable: `all` of them, or as many as the journal has room for before the
    /// next checkpoint is complete; the others go back to the queue.
    pub(super) fn write_removals(
        &mut self,
        removals: &mut Vec<Removal>,
        all: bool,
    ) -> io::Result<()> {
        if removals.is_empty() {
            return Ok(());
        }
        let begun = self.stripe.medium.clock.monotone();
        let is_bans = |removal: &Removal| matches!(removal.what, Removing::Bans { .. });
        let behind_pending = |removal: &Removal| match removal.what {
            Removing::Name(_) => false,
            Removing::Bans { behind_pending } => behind_pending,
        };
        if removals.iter().any(behind_pending) {
            let (come, _) = self.stripe.queue.come_and_taken();
            self.write_pending_below(come)?;
            self.wait_for_write()?;
        }
        let names = Names::of(removals);
        match self.stripe.medium.geometry.family {
            Family::Log => {
                let written = self.journal_names(&names.removed, all)?;
                if let Some(first) = names.first_at.get(written) {
                    self.hold_back(removals.split_off(*first));
                }
            }
            Family::Table => {
                for removed in &names.removed {
                    let set = SetId(removed.key.set(self.stripe.medium.geometry.sets));
                    table::clear(
                        &self.stripe.medium,
                        &self.stripe.index,
                        &mut self.set_buffer,
                        removed,
                        set,
                    )?;
                }
            }
        }
        if removals.is_empty() {
            return Ok(());
        }
        if removals.iter().any(is_bans) {
            let lines = self.stripe.bans.lines();
            self.write_bans(&lines)?;
        }
        self.sync()?;
        let now = self.stripe.medium.clock.monotone();
        let took = now.saturating_sub(begun);
        let is_manual = self.stripe.medium.clock.is_manual();
        if took > SHORT && !self.removals_are_held && !is_manual {
            let rest = took.saturating_mul(REST).min(REST_MAX);
            self.stripe.queue.rest_from_removals(now + rest);
        }
        for removal in removals.drain(..) {
            self.tell(removal);
        }
        Ok(())
    }

    fn tell(&self, removal: Removal) {
        if let Removing::Name(removed) = removal.what {
            let mut shard = self.stripe.shard(removed.key);
            if shard.removing.get(&removed.key) == Some(&removed.version) {
                shard.removing.remove(&removed.key);
            }
        }
        RemovalDone::tell(removal.done);
    }

    /// Writes `removed` to the journal: `all` of them, or as many as there is room for without
    /// waiting for a checkpoint. Returns how many.
    fn journal_names(&mut self, removed: &[Removed], all: bool) -> io::Result<usize> {
        let mut written = 0;
        for some in removed.chunks(self.journal.removes_at_once()) {
            if let Some(below) = self.journal.forgets(some.len()) {
                if !all && self.journal_needs_checkpoint() {
                    break;
                }
                self.forget_removes(below)?;
            }
            self.journal.write(&self.stripe.medium, some)?;
            written += some.len();
        }
        Ok(written)
    }

    fn journal_needs_checkpoint(&self) -> bool {
        let completed = self.superblock.checkpoint_serial;
        self.journal.needs_checkpoint(completed)
    }

    pub(super) fn journal_wants_checkpoint(&self) -> bool {
        let completed = self.superblock.checkpoint_serial;
        self.journal.wants_checkpoint(completed)
    }

    /// Has `removals` wait for a checkpoint, which is written beside other work. Written at once it
    /// would keep all others from the device: removes of made-up names, as fast as a client can ask
    /// for them, would leave the device no time for anything else.
    fn hold_back(&mut self, removals: Vec<Removal>) {
        self.removals_are_held = true;
        self.stripe.queue.put_back(removals, Duration::MAX);
    }

    /// A checkpoint is complete: there may be room in the journal again.
    pub(super) fn let_removals_go_on(&mut self) {
        if self.removals_are_held && !self.journal_needs_checkpoint() {
            self.removals_are_held = false;
            let now = self.stripe.medium.clock.monotone();
            self.stripe.queue.rest_from_removals(now);
        }
    }

    /// Makes the bans of `lines`, which are all that are in force, durable.
    pub(crate) fn write_bans(&mut self, lines: &[BanLine]) -> io::Result<()> {
        // Where bans go, a store from before there were any may have removes.
        let displaced = self.journal.take_displaced();
        if !displaced.is_empty() {
            self.journal_names(&displaced, true)?;
            self.sync()?;
        }
        self.journal.write_bans(&self.stripe.medium, lines)
    }

    /// Before the journal's ring overwrites removes below `below`: they must be held by two
    /// checkpoints, and an opening without any must know that it may not go further back.
    fn forget_removes(&mut self, below: u64) -> io::Result<()> {
        while self.journal_needs_checkpoint() {
            self.run_checkpoint()?;
        }
        self.superblock.removes_forgotten_below = below;
        self.journal.forgot(below);
        self.write_superblock(false)
    }

    // -- what bans have left to do --------------------------------------------------------------

    /// Takes bans further on their way to be forgotten, if there are any.
    pub(super) fn outlive_bans(&mut self) -> io::Result<()> {
        if self.stripe.bans.is_empty() {
            self.bans_pass = None;
            return Ok(());
        }
        let unsettled = self.stripe.bans.any_unsettled();
        if unsettled {
            // What was taken out of the queue is to be written, not under way.
            self.wait_for_write()?;
        }
        let stripe = &self.stripe;
        let now = stripe.medium.clock.monotone();
        if unsettled {
            // In this order: a put that ends later has queued its record before it ends.
            let begun = stripe.oldest_begun();
            let (come, taken) = stripe.queue.come_and_taken();
            let open = (self.log.cursor.stamp, now);
            stripe.bans.settle(begun, come, taken, open);
        }
        match stripe.medium.geometry.family {
            Family::Log => {
                if let Some(oldest) = stripe.log.oldest_stamp()
                    && stripe.bans.any_outlived(oldest)
                {
                    stripe.let_go_of_barred();
                    stripe.bans.forget_outlived(oldest);
                }
                Ok(())
            }
            Family::Table => self.pass_over_table(now),
        }
    }

    /// Clears the next set's slots that bans have taken away.
    fn pass_over_table(&mut self, now: Duration) -> io::Result<()> {
        let stripe = std::sync::Arc::clone(&self.stripe);
        let mut pass = match self.bans_pass.take() {
            Some(pass) => pass,
            None => BansPass {
                next: SetId(0),
                gone_upto: stripe.bans.settled(Effect::Gone, Some(now)),
                stale_upto: stripe
                    .bans
                    .settled(Effect::Stale, now.checked_sub(SOFT_FOR)),
                due: now,
            },
        };
        if pass.gone_upto.max(pass.stale_upto).0 == 0 {
            return Ok(());
        }
        if pass.due > now {
            self.bans_pass = Some(pass);
            return Ok(());
        }
        let cleared = table::clear_barred(
            &stripe.medium,
            &stripe.index,
            &stripe.bans,
            &mut self.set_buffer,
            pass.next,
            pass.stale_upto,
        )?;
        self.unsynced_bytes += cleared;
        pass.next.0 += 1;
        if pass.next.0 < stripe.medium.geometry.sets {
            let after = stripe.medium.clock.monotone();
            pass.due = after + after.saturating_sub(now).min(PAUSE_MAX);
            self.bans_pass = Some(pass);
            return Ok(());
        }
        // On disk before the bans that said so are no longer.
        self.sync()?;
        stripe.let_go_of_barred();
        stripe.bans.forget(pass.gone_upto, pass.stale_upto);
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::key::Secret;

    #[test]
    fn of_several_removes_of_a_name_the_last_is_written_in_the_place_of_the_first() {
        let secret = Secret::from_bytes([1; 32]);
        let name = |name: &str, version| Removal {
            what: Removing::Name(Removed {
                key: secret.name(name.as_bytes()),
                version: Version(version),
            }),
            done: RemovalDone::Nobody,
        };
        let bans = Removal {
            what: Removing::Bans {
                behind_pending: false,
            },
            done: RemovalDone::Nobody,
        };
        let removals = [name("a", 1), bans, name("b", 2), name("a", 9), name("c", 4)];
        let names = Names::of(&removals);
        let removed = names.removed.iter().map(|it| (it.key, it.version.0));
        let expected = [("a", 9), ("b", 2), ("c", 4)];
        assert!(
            removed.eq(expected.map(|(name, version)| (secret.name(name.as_bytes()), version)))
        );
        assert_eq!(names.first_at, [0, 2, 4]);
    }
}
