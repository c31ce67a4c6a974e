//! A network of IP addresses, as operators write it: `10.0.0.0/8`.
//!
//! `address` and `interfaces` compare addresses with it; settings are parsed into it.
//!
//! Invariant: an IPv4-mapped network is the IPv4 network.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// A network: an address and the number of leading bits that count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix(IpNet);

/// Why a text is not a [`Prefix`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// The part before the slash is not an address.
    #[error("not an IP address (expected 192.0.2.1, 10.0.0.0/8 or fd00::/8)")]
    Address,
    /// The part after the slash is not a number, or too large for the address family.
    #[error("prefix length must be a number from 0 to {max}")]
    Length {
        /// The largest length for this address family.
        max: u8,
    },
    /// Address bits are set after the prefix, most likely by mistake.
    #[error("address bits are set after the prefix; did you mean {meant}?")]
    HostBits {
        /// The network that contains the address.
        meant: Prefix,
    },
}

impl Prefix {
    /// The network of `address` with `bits` leading bits. If `bits` is more than the address has,
    /// the network is only this address.
    pub fn new(address: IpAddr, bits: u8) -> Self {
        // Access rules compare unwrapped addresses, so an IPv4-mapped network would never match.
        // Therefore it becomes the IPv4 network.
        let (address, bits) = match address.to_canonical() {
            v4 @ IpAddr::V4(_) if address.is_ipv6() && bits >= 96 => (v4, bits - 96),
            _ => (address, bits),
        };
        let network = IpNet::new(address, bits.min(bits_max(address)));
        Self(network.expect("no more bits than the address has").trunc())
    }

    /// Returns true if `address` is in this network.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Returns true if all addresses of `other` are in this network.
    pub fn covers(&self, other: &Self) -> bool {
        self.0.contains(&other.0)
    }

    /// The prefix length: leading bits that all addresses in this network share.
    pub fn bits(&self) -> u8 {
        self.0.prefix_len()
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| PrefixError::Address)?;
        let max = bits_max(address);
        let bits = match bits {
            None => max,
            Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits
                    .parse()
                    .ok()
                    .filter(|bits| *bits <= max)
                    .ok_or(PrefixError::Length { max })?
            }
            Some(_) => return Err(PrefixError::Length { max }),
        };
        let prefix = Self::new(address, bits);
        if ![address, address.to_canonical()].contains(&prefix.0.addr()) {
            return Err(PrefixError::HostBits { meant: prefix });
        }
        Ok(prefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The number of bits in an address of this family.
fn bits_max(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}
