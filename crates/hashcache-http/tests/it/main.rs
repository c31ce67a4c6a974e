//! The rules from outside: a case per clause, our own decisions, and properties of all inputs.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test that panics fails the test"
)]

mod decisions;
mod oracle;
mod properties;
mod rfc5861;
mod rfc8246;
mod rfc9110;
mod rfc9111;
mod rfc9211;
mod rfc9213;
mod site_lifetimes;
mod support;
