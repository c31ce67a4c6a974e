//! Addresses: which may be connected to, which are this machine's own, and what names say about
//! their owners.
//!
//! Access rules, sites, interception and connections to origins use it. Nothing here connects.

pub mod address;
pub mod interfaces;
pub mod nat64;
pub mod own_domain;
pub mod prefix;

/// The last two labels of a name. Who owns a domain can make any number of names below it.
#[must_use]
pub fn domain_of(name: &str) -> &str {
    let mut dots = name.rmatch_indices('.').map(|(at, _)| at);
    let second = dots.nth(1);
    second.map_or(name, |at| &name[at + 1..])
}
