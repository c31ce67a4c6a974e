//! Sites: what a reverse proxy knows about the sites that it stands in front of; and mirrors: the
//! registries that a proxy offers under paths of its own.
//!
//! The proxy's settings carry sites as `spec` describes them, and mirrors as [`mirror::Mirror`];
//! its `request` and `fetch` use the other parts.
//!
//! Invariant: no module here does I/O or reads a clock. What a client says about itself counts only
//! as far as the operator trusts the network of its sender.

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
