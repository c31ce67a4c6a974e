//! Addresses: which addresses may be connected to, which belong to this machine, and which names
//! belong to the same domain.
//!
//! Access rules, sites, interception and connections to origins use it. This module opens no
//! connection.

pub mod address;
pub mod interfaces;
pub mod nat64;
pub mod own_domain;
pub mod prefix;

/// The last two labels of a name. A domain's owner can make any number of names below it, so tables
/// count such names together.
#[must_use]
pub fn domain_of(name: &str) -> &str {
    let mut dots = name.rmatch_indices('.').map(|(at, _)| at);
    let second = dots.nth(1);
    second.map_or(name, |at| &name[at + 1..])
}
