//! The faults that `mutants` plants. Each was, or could be, a bug that serves an older, removed or
//! purged object.
//!
//! To add one: the text to replace must be in the file exactly once; the test must pass without the
//! fault and fail with it.

/// The suite of the test that must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suite {
    /// Unit tests of the engine.
    Lib,
    /// Its integration tests.
    It,
    /// Its models, every order of steps (`cargo xtask loom`).
    Loom,
}

/// A fault, and the test that must catch it.
pub struct Fault {
    pub name: &'static str,
    /// From the root of the workspace.
    pub file: &'static str,
    /// The text to find and its replacement.
    pub edits: &'static [(&'static str, &'static str)],
    pub suite: Suite,
    pub test: &'static str,
    /// Whether it is planted in every run of CI.
    pub short: bool,
}

macro_rules! engine {
    ($file:literal) => {
        concat!("crates/hashcache/src/", $file)
    };
}

pub const FAULTS: &[Fault] = &[
    Fault {
        name: "no-version-floor",
        file: engine!("store/recover.rs"),
        edits: &[("            && listed.version >= self.floor\n", "")],
        suite: Suite::It,
        test: "older::without_a_checkpoint_no_remove_comes_back_that_the_ring_has_forgotten",
        short: true,
    },
    Fault {
        name: "damaged-gives-way-to-older",
        file: engine!("stripe/lookup.rs"),
        edits: &[(
            "                    self.medium.counters.damaged.add(1);
                    self.forget_candidates(wanted.key, candidates);
                    return Ok(None);
",
            "                    self.medium.counters.damaged.add(1);
",
        )],
        suite: Suite::It,
        test: "older::a_damaged_newest_version_does_not_give_way_to_an_older_one",
        short: true,
    },
    Fault {
        name: "what-does-not-count-is-not-left-out",
        file: engine!("writer/batch.rs"),
        edits: &[(
            "for n in left_out {",
            "for n in left_out.into_iter().take(0) {",
        )],
        suite: Suite::Lib,
        test: "stripe::window_tests",
        short: false,
    },
    Fault {
        name: "what-does-not-count-is-not-left-out-of-a-replay",
        file: engine!("store/recover.rs"),
        edits: &[(
            "            log.leave_out(listed.key, position(self.stripe, cursor, listed), head);\n",
            "            let _ = (log, cursor, head);\n",
        )],
        suite: Suite::Lib,
        test: "stripe::window_tests",
        short: false,
    },
    Fault {
        name: "rows-not-swept-after-a-replay",
        file: engine!("store/recover.rs"),
        edits: &[("    replay.sweep_all();\n", "")],
        suite: Suite::Lib,
        test: "recover::replay_tests",
        short: false,
    },
    Fault {
        name: "checkpoint-that-the-log-has-passed-goes-by",
        file: engine!("store/recover.rs"),
        edits: &[(
            "        && !next_openings(stripe, cursor, Look::Short).any(is_passed)\n",
            "        && !next_openings(stripe, cursor, Look::Short).take(0).any(is_passed)\n",
        )],
        suite: Suite::Lib,
        test: "recover::replay_tests",
        short: false,
    },
    Fault {
        name: "rows-from-before-the-log-count",
        file: engine!("store/recover.rs"),
        edits: &[(
            "                if let Some(log) = shard.policy.log_mut() {
                    log.clear();
                }
            }
            return self.index_from_scan",
            "                let _ = shard.policy.log_mut();
            }
            return self.index_from_scan",
        )],
        suite: Suite::Lib,
        test: "recover::replay_tests",
        short: false,
    },
    Fault {
        name: "head-moves-behind-the-write",
        file: engine!("writer/batch.rs"),
        edits: &[
            (
                "        let earlier = self.finish()?;
        self.stripe.log.opened(self.log.cursor);
",
                "        let earlier = self.finish()?;
",
            ),
            (
                "                self.stripe.medium.write(at, &self.buffer[..bytes])?;
                self.record(Some(written));
",
                "                self.stripe.medium.write(at, &self.buffer[..bytes])?;
                self.stripe.log.opened(self.log.cursor);
                self.record(Some(written));
",
            ),
        ],
        suite: Suite::It,
        test: "older::a_record_that_is_being_written_over_is_passed_and_not_damaged",
        short: false,
    },
    Fault {
        name: "oldest-of-equal-tags-is-touched",
        file: engine!("policy/log_lru.rs"),
        edits: &[(
            "let newest = Self::of_tag(&entries, key).min_by_key(|way| entries[*way].rank);
        let Some(way) = newest else {
            return;
        };
        let is_it",
            "let newest = Self::of_tag(&entries, key).max_by_key(|way| entries[*way].rank);
        let Some(way) = newest else {
            return;
        };
        let is_it",
        )],
        suite: Suite::Lib,
        test: "log_lru::tests::an_older_version_that_was_read_does_not_outlive_the_newer_one",
        short: false,
    },
    Fault {
        name: "log-resumes-in-the-same-segment",
        file: engine!("store/recover.rs"),
        edits: &[(
            "            replay.sweep_all();
            writer.log.resume_behind(end.cursor, end.durable);
",
            "            replay.sweep_all();
            go_on_at(writer, end.cursor);
",
        )],
        suite: Suite::It,
        test: "older::behind_a_crash_no_place_is_written_twice_under_one_stamp",
        short: false,
    },
    Fault {
        name: "log-resumes-in-the-same-segment-after-a-scan",
        file: engine!("store/recover.rs"),
        edits: &[(
            "        if let Some(end) = replay.scan(openings.as_ref()) {
            writer.log.resume_behind(end.cursor, end.durable);
",
            "        if let Some(end) = replay.scan(openings.as_ref()) {
            go_on_at(writer, end.cursor);
",
        )],
        suite: Suite::It,
        test: "older::behind_a_crash_no_place_is_written_twice_under_one_stamp",
        short: false,
    },
    Fault {
        name: "last-batches-stay-learned",
        file: engine!("store/recover.rs"),
        edits: &[("            replay.unlearn_last_batches();\n", "")],
        suite: Suite::It,
        test: "older::what_a_slot_holds_that_was_about_to_be_written_is_known_after_a_crash",
        short: false,
    },
    Fault {
        name: "no-sync-between-lists-and-slots",
        file: engine!("writer/batch.rs"),
        edits: &[(
            "        let tails = self.write_tails(batch, &slots)?;
        self.sync()?;
",
            "        let tails = self.write_tails(batch, &slots)?;
",
        )],
        suite: Suite::It,
        test: "older::no_slot_is_written_that_memory_would_not_know_of_after_a_power_cut",
        short: false,
    },
    Fault {
        name: "checkpoint-parts-unsynced",
        file: engine!("writer/mod.rs"),
        edits: &[(
            "        self.sync()?;
        self.superblock.checkpoint_serial",
            "        self.superblock.checkpoint_serial",
        )],
        suite: Suite::It,
        test: "older::no_superblock_names_a_checkpoint_that_a_power_cut_can_still_tear",
        short: false,
    },
    Fault {
        name: "rules-not-asked-at-the-end-of-a-read",
        file: engine!("stripe/lookup.rs"),
        edits: &[(
            "self.bans.any() && (self.bans.judge(&record).gone || outlived() || missed_pass());",
            "self.bans.any() && (outlived() || missed_pass());",
        )],
        suite: Suite::Loom,
        test: "no_look_up_behind_a_purge_finds_what_it_took_by_joining_an_earlier_one",
        short: false,
    },
    Fault {
        name: "no-sweep",
        file: engine!("stripe/mod.rs"),
        edits: &[(
            "        let segments = self.medium.geometry.segments;
        for mut shard in self.shards() {",
            "        let segments = self.medium.geometry.segments;
        for mut shard in self.shards().take(0) {",
        )],
        suite: Suite::It,
        test: "older::entries_that_the_log_has_passed_are_dropped_once_a_lap",
        short: false,
    },
    Fault {
        name: "version-of-a-remove-drawn-outside-the-lock",
        file: engine!("stripe/mod.rs"),
        edits: &[(
            "        let mut shard = self.shard(key);
        let (version, known, dropped) = self.remove_from(&mut shard, key, Mask::Name);
        drop(shard);
",
            "        let version = self.draw_version();
        let mut shard = self.shard(key);
        let (_, known, dropped) = self.remove_from(&mut shard, key, Mask::Name);
        drop(shard);
",
        )],
        suite: Suite::Loom,
        test: "a_remove_that_is_older_than_a_checkpoint_is_seen_by_it",
        short: false,
    },
    // -- purges that were acknowledged ------------------------------------------------------------
    Fault {
        name: "purged-pending-names-not-removed",
        file: engine!("cache/mod.rs"),
        edits: &[(
            "let (removed, behind_pending) = stripe.remove_barred();",
            "let (removed, behind_pending) = (Vec::new(), false);",
        )],
        suite: Suite::It,
        test: "purges::an_older_version_does_not_answer_when_the_purged_one_was_pending_at_a_kill",
        short: true,
    },
    Fault {
        name: "soft-rule-before-what-is-pending",
        file: engine!("cache/mod.rs"),
        edits: &[(
            "let (removed, behind_pending) = stripe.remove_barred();",
            "let (removed, behind_pending) = (stripe.remove_barred().0, false);",
        )],
        suite: Suite::It,
        test: "purges::a_soft_purge_of_what_was_pending_leaves_nothing_fresh_that_is_older",
        short: false,
    },
    Fault {
        name: "put-hides-a-purged-pending-record",
        file: engine!("stripe/mod.rs"),
        edits: &[(
            "|| self.has_barred_pending(shard, record.fields.key);",
            "|| false;",
        )],
        suite: Suite::Loom,
        test: "a_put_does_not_hide_a_purged_pending_record_that_is_still_to_be_removed",
        short: false,
    },
    Fault {
        name: "unreadable-block-taken-for-blank",
        file: engine!("disk/journal.rs"),
        edits: &[("return Block::Unreadable;", "return Block::Blank;")],
        suite: Suite::It,
        test: "purges::an_unreadable_block_of_the_journal_brings_nothing_back",
        short: false,
    },
    Fault {
        name: "lost-removes-ignored",
        file: engine!("store/recover.rs"),
        edits: &[(
            "if lost.bans || lost.removes_below > held_below {",
            "if lost.bans {",
        )],
        suite: Suite::It,
        test: "purges::an_unreadable_block_of_the_journal_brings_nothing_back",
        short: false,
    },
    Fault {
        name: "lost-rules-ignored",
        file: engine!("store/recover.rs"),
        edits: &[(
            "if lost.bans || lost.removes_below > held_below {",
            "if lost.removes_below > held_below {",
        )],
        suite: Suite::It,
        test: "purges::with_both_sets_of_rules_damaged_everything_older_is_forgotten",
        short: false,
    },
    Fault {
        name: "what-was-forgotten-not-durable",
        file: engine!("store/recover.rs"),
        edits: &[(
            "    writer.write_bans(&served.bans.lines())?;
    Ok(below)",
            "    Ok(below)",
        )],
        suite: Suite::It,
        test: "purges::an_unreadable_block_of_the_journal_brings_nothing_back",
        short: false,
    },
    Fault {
        name: "newest-block-counts-as-held",
        file: engine!("disk/journal/lost.rs"),
        edits: &[(
            "let behind = (2..=places).map(|step| place + step);",
            "let behind = (1..=places).map(|step| place + step);",
        )],
        suite: Suite::Lib,
        test: "disk::journal::lost::tests",
        short: false,
    },
    Fault {
        name: "one-set-of-rules",
        file: engine!("disk/journal.rs"),
        edits: &[(
            "for area in [self.bans_first, 1 - self.bans_first] {",
            "for area in [self.bans_first] {",
        )],
        suite: Suite::It,
        test: "purges::one_damaged_set_of_rules_of_two_takes_nothing_with_it",
        short: true,
    },
    Fault {
        name: "both-sets-of-rules-torn-at-once",
        file: engine!("disk/journal.rs"),
        edits: &[(
            "            // A power cut must not tear both areas.
            medium.sync()?;
",
            "",
        )],
        suite: Suite::It,
        test: "purges::a_power_cut_while_rules_are_written_leaves_one_set_whole",
        short: false,
    },
    Fault {
        name: "rolled-back-device-not-seen",
        file: engine!("store/mod.rs"),
        edits: &[(
            "let away = rolled_back(opened);",
            "let away = rolled_back(&opened[..0]);",
        )],
        suite: Suite::It,
        test: "devices::a_device_rolled_back_to_before_the_last_opening_answers_nothing_of_that",
        short: true,
    },
    Fault {
        name: "devices-not-told-of-the-orderly-end",
        file: engine!("cache/mod.rs"),
        edits: &[(
            "store::tell_closed(&self.stripes, closed);",
            "store::tell_closed(&self.stripes[..1], closed);",
        )],
        suite: Suite::It,
        test: "devices::a_device_rolled_back_within_the_last_run_is_known_by_the_orderly_end",
        short: false,
    },
    // -- locks, memory, closing ------------------------------------------------------------------
    Fault {
        name: "slab-given-back-under-a-lock",
        file: engine!("memory/wakes.rs"),
        edits: &[(
            "    if is_for_later() {
        leave(|left| left.work",
            "    if false {
        leave(|left| left.work",
        )],
        suite: Suite::Lib,
        test: "a_slab_is_given_back_when_the_thread_holds_no_lock_and_not_before",
        short: false,
    },
    Fault {
        name: "broken-hot-shard-kept",
        file: engine!("memory/hot.rs"),
        edits: &[(
            "let broken = std::mem::take(&mut **shard);",
            "let broken = HotShard::default();",
        )],
        suite: Suite::Lib,
        test: "what_a_panic_left_half_changed_is_dropped_and_the_rest_is_served",
        short: false,
    },
    Fault {
        name: "made-stale-not-handed-down",
        file: engine!("cache/write/update.rs"),
        edits: &[("    old.hand_down_judged(&head.record);\n", "")],
        suite: Suite::Lib,
        test: "what_a_soft_ban_made_stale_is_not_fresh_again_when_the_ban_ends",
        short: false,
    },
    Fault {
        name: "made-stale-not-kept-in-mind",
        file: engine!("bans.rs"),
        edits: &[(
            "            record.judged.store(judged, Ordering::Relaxed);
        } else if",
            "            let _ = judged;
        } else if",
        )],
        suite: Suite::Lib,
        test: "what_was_made_stale_before_it_became_hot_is_stale_when_the_ban_ends",
        short: false,
    },
    Fault {
        name: "checkpoint-at-once-for-removes",
        file: engine!("writer/removes.rs"),
        edits: &[("if !all && self.journal_needs_checkpoint() {", "if false {")],
        suite: Suite::It,
        test: "checkpoint::removes_that_fill_the_journal_wait_and_leave_the_device_to_others",
        short: false,
    },
    Fault {
        name: "growth-not-interrupted",
        file: engine!("store/device.rs"),
        edits: &[(
            "stripe_with(config, &before, shared, 0, Arc::clone(&grown.queue))?",
            "stripe(config, &before, shared, 0)?",
        )],
        suite: Suite::It,
        test: "recovery::a_store_that_is_closed_stops_recovering_and_growing_and_loses_nothing",
        short: false,
    },
    // -- the index: entries, rows on disk, checkpoints --------------------------------------------
    Fault {
        name: "displaced-entry-touched-beside-others-of-its-tag",
        file: engine!("policy/log_lru.rs"),
        edits: &[(
            "count == 1 && entries[way].generation == generation(at, self.capacity)",
            "count > 0 && entries[way].generation == generation(at, self.capacity)",
        )],
        suite: Suite::Lib,
        test: "an_older_version_never_outlives_a_newer_one_whichever_names_have_equal_tags",
        short: false,
    },
    Fault {
        name: "saved-position-of-another-lap-taken",
        file: engine!("policy/log_lru.rs"),
        edits: &[(
            "(saved.tag == entry.tag && saved.generation == entry.generation)",
            "(saved.tag == entry.tag)",
        )],
        suite: Suite::Lib,
        test: "a_saved_position_is_that_of_the_entry_it_was_saved_for_and_of_no_other",
        short: false,
    },
    Fault {
        name: "positions-dropped-before-their-checkpoint-counts",
        file: engine!("writer/mod.rs"),
        edits: &[(
            "        self.write_superblock(clean)?;
        self.let_removals_go_on();
",
            "        for mut shard in self.stripe.shards() {
            if let Some(log) = shard.policy.log_mut() {
                log.save_counts();
            }
        }
        self.write_superblock(clean)?;
        self.let_removals_go_on();
",
        )],
        suite: Suite::Lib,
        test: "while_a_checkpoint_is_made_the_one_that_counts_each_displaced_object_is_found",
        short: false,
    },
    Fault {
        name: "row-of-a-replaced-checkpoint-used",
        file: engine!("stripe/lookup.rs"),
        edits: &[(
            "if self.index.file.checkpoint_id() == Some(checkpoint_id) {",
            "if self.index.file.checkpoint_id().is_some() {",
        )],
        suite: Suite::Lib,
        test: "a_row_of_a_checkpoint_that_was_replaced_while_it_was_read_is_read_anew",
        short: false,
    },
    Fault {
        name: "row-of-any-checkpoint-genuine",
        file: engine!("disk/index_rows.rs"),
        edits: &[(
            "    is_genuine.then(|| bytes.to_vec())\n",
            "    Some(bytes.to_vec())\n",
        )],
        suite: Suite::Lib,
        test: "a_row_of_an_older_checkpoint_in_the_same_place_is_not_taken_for_that_of_the_newest",
        short: false,
    },
    Fault {
        name: "shards-keep-what-was-loaded-of-them",
        file: engine!("disk/checkpoint.rs"),
        edits: &[(
            "        shards.for_each(|n| index.shard_at(n).policy.clear());\n",
            "        drop(shards);\n",
        )],
        suite: Suite::Lib,
        test: "shards_whose_rows_cannot_be_read_again_know_nothing",
        short: false,
    },
    Fault {
        name: "rows-from-before-all-was-forgotten-kept",
        file: engine!("store/recover.rs"),
        edits: &[(
            "if restored.next_version <= replay.floor.0 {",
            "if restored.next_version == u64::MAX {",
        )],
        suite: Suite::It,
        test: "purges::with_both_sets_of_rules_damaged_everything_older_is_forgotten",
        short: false,
    },
    Fault {
        name: "index-file-of-the-older-checkpoint",
        file: engine!("store/recover.rs"),
        edits: &[(
            "let older = if stripe.index.shape.stays_on_disk() {",
            "let older = if serial == 0 {",
        )],
        suite: Suite::Lib,
        test: "no_checkpoint_is_written_over_the_one_that_has_the_rows",
        short: false,
    },
    // -- lists and laps of the log ----------------------------------------------------------------
    Fault {
        name: "segment-of-another-lap-follows",
        file: engine!("store/recover/openings.rs"),
        edits: &[(
            "opening.stamp > last.stamp && opening.lap == next.lap",
            "opening.stamp > last.stamp && opening.lap <= next.lap + 1",
        )],
        suite: Suite::Lib,
        test: "a_segment_that_a_later_lap_has_written_does_not_follow_one_of_the_lap_before",
        short: false,
    },
    Fault {
        name: "ordinals-of-batches-not-compared",
        file: engine!("disk/segment.rs"),
        edits: &[(
            "|header: &BatchHeader| header.stamp == cursor.stamp && header.ordinal == ordinal;",
            "|header: &BatchHeader| header.stamp == cursor.stamp && header.ordinal != u32::MAX;",
        )],
        suite: Suite::It,
        test: "damage::a_genuine_header_in_the_place_of_another_one_is_not_taken_for_it",
        short: false,
    },
    Fault {
        name: "ordinals-not-compared-behind-a-gap",
        file: engine!("disk/segment.rs"),
        edits: &[(
            "|header: &BatchHeader| header.stamp == cursor.stamp && header.ordinal > ordinal;",
            "|header: &BatchHeader| header.stamp == cursor.stamp && ordinal != u32::MAX;",
        )],
        suite: Suite::It,
        test: "damage::a_genuine_header_in_the_place_of_another_one_is_not_taken_for_it",
        short: false,
    },
    Fault {
        name: "ordinals-not-compared-by-walks",
        file: engine!("disk/segment_lists.rs"),
        edits: &[("                && header.ordinal == cursor.ordinal\n", "")],
        suite: Suite::It,
        test: "damage::a_genuine_header_in_the_place_of_another_one_is_not_taken_for_it",
        short: false,
    },
    Fault {
        name: "segment-left-out-keeps-its-stamp",
        file: engine!("writer/batch.rs"),
        edits: &[("            stripe.log.left_out(segment);\n", "")],
        suite: Suite::Lib,
        test: "a_ban_is_outlived_although_the_log_leaves_a_segment_out_for_good",
        short: false,
    },
    Fault {
        name: "head-does-not-pass-what-a-footer-overwrites",
        file: engine!("writer/batch.rs"),
        edits: &[(
            "            stripe.log.opened(end);\n",
            "            let _ = end;\n",
        )],
        suite: Suite::Lib,
        test: "nothing_of_the_log_is_written_over_before_the_head_has_passed_it",
        short: false,
    },
    Fault {
        name: "passed-tail-counts",
        file: engine!("disk/table.rs"),
        edits: &[(
            "if at.is_some_and(|at| !log.is_live(at)) {",
            "if false && at.is_some() {",
        )],
        suite: Suite::Lib,
        test: "a_tail_that_the_log_has_passed_while_it_was_read_does_not_count",
        short: false,
    },
    Fault {
        name: "sync-does-not-wait-for-the-write-in-flight",
        file: engine!("writer/mod.rs"),
        edits: &[(
            "        self.wait_for_write()?;
        self.stripe.medium.sync()?;
",
            "        self.stripe.medium.sync()?;
",
        )],
        suite: Suite::Lib,
        test: "a_sync_makes_the_batch_durable_that_the_other_thread_is_writing",
        short: false,
    },
    // -- removes and their journal ----------------------------------------------------------------
    Fault {
        name: "removes-during-recovery-not-in-its-checkpoint",
        file: engine!("store/recover.rs"),
        edits: &[("            stripe.forget_removing(shards.clone());\n", "")],
        suite: Suite::It,
        test: "what_was_removed_during_recovery_stays_removed_after_a_kill_behind_its_checkpoint",
        short: true,
    },
    Fault {
        name: "second-place-of-the-growing-block-not-counted",
        file: engine!("disk/journal.rs"),
        edits: &[(
            "let lost = self.lost(removes.div_ceil(REMOVES_PER_BLOCK) + 1);",
            "let lost = self.lost(removes.div_ceil(REMOVES_PER_BLOCK));",
        )],
        suite: Suite::Lib,
        test: "no_remove_that_was_durable_is_lost_by_a_write_that_a_power_cut_tears",
        short: false,
    },
    Fault {
        name: "next-block-goes-over-the-second-place",
        file: engine!("disk/journal.rs"),
        edits: &[(
            "self.base = (self.base + 1 + usize::from(self.doubled)) % self.ring.len();",
            "self.base = (self.base + 1) % self.ring.len();",
        )],
        suite: Suite::Lib,
        test: "no_remove_that_was_durable_is_lost_by_a_write_that_a_power_cut_tears",
        short: false,
    },
    Fault {
        name: "growing-block-written-over-itself",
        file: engine!("disk/journal.rs"),
        edits: &[(
            "            self.last = if self.last == self.base {
                behind
            } else {
                self.base
            };
",
            "            let _ = behind;
",
        )],
        suite: Suite::Lib,
        test: "no_remove_that_was_durable_is_lost_by_a_write_that_a_power_cut_tears",
        short: false,
    },
    Fault {
        name: "removes-during-a-checkpoint-count-as-held",
        file: engine!("writer/mod.rs"),
        edits: &[(
            "self.superblock.removes_held_below = self.removes_before_checkpoint;",
            "self.superblock.removes_held_below = self.journal.next_ordinal();",
        )],
        suite: Suite::It,
        test: "checkpoint::removes_that_came_while_a_checkpoint_was_written_are_not_held_by_it",
        short: false,
    },
    Fault {
        name: "remove-that-is-done-unmasks-a-later-one",
        file: engine!("writer/removes.rs"),
        edits: &[(
            "if shard.removing.get(&removed.key) == Some(&removed.version) {",
            "if shard.removing.contains_key(&removed.key) {",
        )],
        suite: Suite::Lib,
        test: "a_remove_that_is_done_leaves_a_later_one_of_the_name_in_force",
        short: false,
    },
    Fault {
        name: "miss-without-the-lock-while-removes-are-masked",
        file: engine!("stripe/lookup.rs"),
        edits: &[("            && shard.removing.is_empty()\n", "")],
        suite: Suite::Loom,
        test: "what_was_put_since_a_remove_that_is_not_done_is_found_while_it_is_written",
        short: false,
    },
    // -- bans and versions ------------------------------------------------------------------------
    Fault {
        name: "lookup-that-waited-for-a-run-asks-no-bans",
        file: engine!("stripe/group_read.rs"),
        edits: &[(
            "|it: &Record| request.wanted.is(it) && !self.bans.judge(it).gone;",
            "|it: &Record| request.wanted.is(it);",
        )],
        suite: Suite::Lib,
        test: "a_lookup_that_joins_one_which_waited_for_a_run_does_not_find_what_a_ban_took",
        short: false,
    },
    Fault {
        name: "what-a-ban-took-gives-way-to-an-older-one",
        file: engine!("stripe/lookup.rs"),
        edits: &[(
            "                    if self.bans.judge(&record).gone {
                        self.forget_candidates(wanted.key, candidates);
                        return Ok(None);
                    }
",
            "",
        )],
        suite: Suite::It,
        test: "bans::an_older_version_without_the_label_does_not_come_back",
        short: true,
    },
    Fault {
        name: "sibling-counts-though-a-ban-has-taken-it",
        file: engine!("stripe/group_read.rs"),
        edits: &[(
            "            && located.newest_in_log() == Some(self.window(at))
            && self.is_in_force(record);
",
            "            && located.newest_in_log() == Some(self.window(at));
",
        )],
        suite: Suite::It,
        test: "groups::a_sibling_that_a_rule_has_taken_is_not_kept",
        short: false,
    },
    Fault {
        name: "older-of-two-versions-in-a-set-found",
        file: engine!("stripe/lookup.rs"),
        edits: &[(
            "own.max_by_key(|slot| slot.occupant.version)?",
            "own.min_by_key(|slot| slot.occupant.version)?",
        )],
        suite: Suite::Lib,
        test: "of_two_versions_of_a_name_in_a_set_the_newer_is_found_whichever_slot_it_has",
        short: false,
    },
    Fault {
        name: "two-updates-of-one-version-both-count",
        file: engine!("shard.rs"),
        edits: &[(
            "            other.outrun.store(true, Ordering::Release);\n",
            "",
        )],
        suite: Suite::Lib,
        test: "of_two_updates_that_began_with_the_same_metadata_one_counts",
        short: false,
    },
    Fault {
        name: "update-of-whatever-version-is-stored",
        file: engine!("cache/write/update.rs"),
        edits: &[(
            "if old.fields.version != intent.version() || intent.token",
            "if intent.token",
        )],
        suite: Suite::It,
        test: "face::an_update_of_metadata_keeps_version_and_content",
        short: false,
    },
    Fault {
        name: "names-move-before-that-is-on-disk",
        file: engine!("members.rs"),
        edits: &[(
            "            if asked.iter().all(|outcome| outcome.wait()) {",
            "            let live = staying.iter().fold(0, |live, (n, _)| live | 1 << n);
            self.live.store(live, Ordering::Release);
            if asked.iter().all(|outcome| outcome.wait()) {",
        )],
        suite: Suite::It,
        test: "names_of_a_device_that_failed_do_not_move_before_the_others_have_that_on_disk",
        short: false,
    },
];
