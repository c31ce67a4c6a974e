//! The public face from outside: one file a theme. `support` holds what they share.
//!
//! Campaigns: `HASHCACHE_TEST_ROUNDS=n` makes the random tests n times as long; `cargo campaign
//! models` and `cargo campaign stress` set more (`support`).
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::single_range_in_vec_init,
    reason = "a test that meets what it does not expect has failed; its numbers are small"
)]

mod bad_sectors;
mod bans;
mod block_device;
mod budget;
mod checkpoint;
mod coming_and_going;
mod commit_with;
mod cost;
mod crash;
mod damage;
mod devices;
mod face;
mod fetch_once;
mod fill;
mod follow;
mod forged;
mod golden;
mod groups;
mod grow;
mod index;
mod many;
mod memory_only;
mod model;
mod older;
mod opening;
mod peak;
mod placement;
mod planned;
mod policies;
mod power;
mod purges;
mod reader;
mod readmission;
mod recovery;
mod removes;
mod rings;
mod scan;
mod sectors;
mod stalled;
mod stress;
mod support;
mod walk;
mod wrap;
