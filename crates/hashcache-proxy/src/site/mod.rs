//! Sites: what a reverse proxy knows about the sites that it stands in front of.
//!
//! `settings` carries the sites as `spec` describes them; `request` and `fetch` use the parts
//! below.
//!
//! Invariant: no module here does I/O or reads a clock. What a client says about itself counts only
//! as far as the operator trusts the network of its sender.

pub(crate) mod balance;
pub(crate) mod counters;
pub(crate) mod encode;
pub(crate) mod forwarded;
#[cfg(test)]
mod forwarded_check;
pub(crate) mod header_rules;
pub(crate) mod health;
pub(crate) mod key_rules;
pub(crate) mod live;
pub(crate) mod spec;
