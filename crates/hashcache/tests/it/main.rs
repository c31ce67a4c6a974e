//! The public face from outside: one file a theme. `support` holds what they share.
//!
//! Campaigns: `HASHCACHE_TEST_ROUNDS=n` makes the random tests n times as long.

mod budget;
mod cost;
mod crash;
mod face;
mod follow;
mod model;
mod opening;
mod power;
mod recovery;
mod stress;
mod support;
