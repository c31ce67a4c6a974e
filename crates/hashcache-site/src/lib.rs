//! Sites: the configuration and state of the sites behind a reverse proxy; and mirrors: the
//! registries that a proxy offers under its paths.
//!
//! The proxy's settings carry sites as `spec` describes them, and mirrors as [`mirror::Mirror`];
//! `request` and `fetch` in the proxy use the other parts.
//!
//! Invariant: no module here does I/O or reads a clock. A client's statements about itself count
//! only as far as the operator trusts the sender's network.

pub mod balance;
pub mod counters;
pub mod encode;
pub mod forwarded;
#[cfg(test)]
mod forwarded_check;
pub mod header_rules;
pub mod health;
pub mod key_rules;
pub mod live;
pub mod mirror;
pub mod spec;
