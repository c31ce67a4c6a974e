//! The crate from outside: properties of all inputs.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test that panics fails the test"
)]

mod datagrams;
mod filters;
mod support;
