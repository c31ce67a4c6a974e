//! NAT64 prefixes: IPv6 addresses that embed IPv4 addresses (RFC 6052).
//!
//! `address` looks up the IPv4 address that a destination embeds. The well-known prefix
//! 64:ff9b::/96 needs no setting; a network may use another prefix, which looks like any other IPv6
//! prefix.
//!
//! Invariant: an address within the prefix is checked as the embedded IPv4 address.
//! Cost: a shift and two comparisons.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::Ipv6Net;

/// The prefix of a translator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nat64(Ipv6Net);

/// A text is not a [`Nat64`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits, such as 2001:db8:64::/96")]
pub struct Nat64Error;

impl Nat64 {
    /// The well-known prefix (RFC 6052, section 2.1).
    pub const WELL_KNOWN: Self = Self(Ipv6Net::new_assert(
        Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0),
        96,
    ));

    /// The IPv4 address that `address` embeds; `None` outside the prefix.
    pub fn embedded(self, address: IpAddr) -> Option<Ipv4Addr> {
        let IpAddr::V6(v6) = address else {
            return None;
        };
        if !self.0.contains(&v6) {
            return None;
        }
        let bits = v6.to_bits();
        // Bits 64 to 71 are not part of the IPv4 address (RFC 6052, section 2.2).
        let without_gap = bits >> 64 << 64 | (bits & (u128::MAX >> 72)) << 8;
        let behind = match self.0.prefix_len() {
            96 => bits << 96,
            before => without_gap << before,
        };
        let word = u32::try_from(behind >> 96).ok()?;
        Some(Ipv4Addr::from_bits(word))
    }
}

impl FromStr for Nat64 {
    type Err = Nat64Error;

    fn from_str(text: &str) -> Result<Self, Nat64Error> {
        let (address, bits) = text.split_once('/').ok_or(Nat64Error)?;
        let address: Ipv6Addr = address.parse().map_err(|_| Nat64Error)?;
        let bits = bits.parse().map_err(|_| Nat64Error)?;
        let network = Ipv6Net::new(address, bits).map_err(|_| Nat64Error)?;
        if !LENGTHS.contains(&bits) || network.trunc() != network {
            return Err(Nat64Error);
        }
        Ok(Self(network))
    }
}

impl fmt::Display for Nat64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The prefix lengths of RFC 6052, section 2.2.
const LENGTHS: [u8; 6] = [32, 40, 48, 56, 64, 96];

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of RFC 6052, section 2.4.
    #[test]
    fn the_embedded_address_is_where_the_rfc_puts_it() {
        for (prefix, address) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ] {
            let nat64: Nat64 = prefix.parse().unwrap();
            let embedded = nat64.embedded(address.parse().unwrap());
            assert_eq!(embedded, Some([192, 0, 2, 33].into()), "{prefix}");
            assert_eq!(nat64.embedded("2001:db9::1".parse().unwrap()), None);
            assert_eq!(nat64.embedded("192.0.2.33".parse().unwrap()), None);
            assert_eq!(nat64.to_string(), prefix);
        }
    }

    #[test]
    fn other_lengths_and_addresses_are_no_prefix() {
        for text in [
            "2001:db8::/33",
            "2001:db8::1/96",
            "10.0.0.0/8",
            "2001:db8::",
            "x/96",
            "",
        ] {
            assert_eq!(text.parse::<Nat64>(), Err(Nat64Error), "{text}");
        }
    }
}
