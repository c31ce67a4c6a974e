//! The codec from outside: one file a theme. `support` holds what they share.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that meets what it does not expect has failed; its numbers are small"
)]

mod chunks;
mod damage;
mod engine;
mod limits;
mod memory;
mod round_trip;
mod support;
