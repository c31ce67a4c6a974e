//! A lookup without side effects: a record that it finds is not counted as a hit, does not become
//! hot, and does not count as used.
//!
//! Called by `cache/peek`, for operators that want to know which objects are stored.
//!
//! Invariant: a record that is found was the newest version of the name at some moment of the call.
//! Cost: as for `lookup`, but callers do not share a read. Blocks for the reads.

use std::sync::Arc;

use super::Stripe;
use crate::disk::{Medium, Read, table};
use crate::memory::RecordHandle;
use crate::policy::{Candidates, Located};
use crate::record::Record;
use crate::shard::{Found, LookupTarget};

impl Stripe {
    /// The answer from memory for the wanted record: the record, or that there is none. `None`: a
    /// disk read is needed.
    pub(crate) fn peek_memory(&self, wanted: &LookupTarget) -> Option<Found> {
        let right = |it: &Record| wanted.is(it) && !self.bans.judge(it).gone;
        if let Some(record) = self.shared.hot.look(wanted.key, right) {
            return Some(Some(RecordHandle::Pinned(record)));
        }
        let shard = self.view(wanted.key);
        if let Some(pending) = shard.pending.get(&wanted.key) {
            let record = Some(&pending.record).filter(|it| right(it));
            return Some(record.cloned());
        }
        let located = self.locate(&shard, wanted.key);
        (located == Located::Nowhere).then_some(None)
    }

    /// The wanted record, from memory or from the disk.
    pub(crate) fn peek(self: &Arc<Self>, wanted: &LookupTarget) -> Found {
        // Check memory again: since the caller's check, the record may have moved from memory to
        // disk or back.
        if let Some(known) = self.peek_memory(wanted) {
            return known;
        }
        let shard = self.view(wanted.key);
        let located = self.locate(&shard, wanted.key);
        drop(shard);
        let record = match located {
            Located::Nowhere => None,
            Located::Log(candidates) => self.peek_log(wanted, &candidates),
            Located::Displaced(row) => {
                let (shard, saved) = self.saved_row(wanted.key, row, Medium::read_bytes)?;
                let located = self.locate_in_row(&shard, wanted.key, &saved);
                drop(shard);
                match located {
                    Located::Log(candidates) => self.peek_log(wanted, &candidates),
                    _ => None,
                }
            }
            Located::Set(set, _) => {
                let read = table::read_set(&self.medium, set)?;
                let own = read
                    .filled
                    .iter()
                    .filter(|it| it.occupant.key == wanted.key);
                self.peek_slot(wanted, own.max_by_key(|it| it.occupant.version)?)
            }
            Located::Slot(set, slot) => {
                self.peek_slot(wanted, &table::read_slot(&self.medium, set, slot)?)
            }
        };
        record.map(RecordHandle::alone)
    }

    fn peek_log(&self, wanted: &LookupTarget, candidates: &Candidates) -> Option<Record> {
        for (n, at) in candidates.as_slice().iter().enumerate() {
            if n > 0 && !self.still_points_to(wanted.key, *at) {
                continue;
            }
            match self.read_window(*at, wanted.key, wanted.expect) {
                // Older versions do not count if a ban hides the newest version.
                Read::Record(record) if wanted.is(&record) => {
                    return Some(*record).filter(|it| self.is_in_force(it));
                }
                Read::Record(_) | Read::Other | Read::Passed => {}
                Read::Damaged | Read::Refused | Read::Failed => return None,
            }
        }
        None
    }

    fn peek_slot(&self, wanted: &LookupTarget, slot: &table::Filled) -> Option<Record> {
        match table::read_record(&self.medium, &self.log, slot) {
            Read::Record(record) => {
                Some(*record).filter(|it| wanted.is(it) && self.is_in_force(it))
            }
            Read::Other | Read::Damaged | Read::Passed | Read::Refused | Read::Failed => None,
        }
    }
}
