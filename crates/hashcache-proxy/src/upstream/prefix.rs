//! A network of IP addresses, as operators write it: `10.0.0.0/8`.
//!
//! `address` and `interfaces` compare addresses with it; settings are parsed into it.
//!
//! Invariant: an IPv4-mapped network is the IPv4 network.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network: an address and the number of its leading bits that count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

/// Why a text is not a [`Prefix`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// The part before the slash is no address.
    #[error("not an IP address (expected 192.0.2.1, 10.0.0.0/8 or fd00::/8)")]
    Address,
    /// The part after the slash is no number, or too large for the kind of address.
    #[error("prefix length must be a number from 0 to {max}")]
    Length {
        /// The largest length for this kind of address.
        max: u8,
    },
    /// There are bits set behind the prefix; most likely a slip.
    #[error("address bits are set after the prefix; did you mean {meant}?")]
    HostBits {
        /// The network the address lies in.
        meant: Prefix,
    },
}

impl Prefix {
    /// The network of `bits` leading bits in which `address` lies; more bits than the address has
    /// mean the address alone.
    pub fn new(address: IpAddr, bits: u8) -> Self {
        match address {
            IpAddr::V4(v4) => {
                let bits = bits.min(32);
                Self {
                    address: Ipv4Addr::from_bits(v4.to_bits() & mask_v4(bits)).into(),
                    bits,
                }
            }
            // An IPv4-mapped network means the IPv4 network: verdicts are passed on unwrapped
            // addresses, and a rule that can never match would be a trap.
            IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
                Some(v4) if bits >= 96 => Self::new(v4.into(), bits - 96),
                _ => {
                    let bits = bits.min(128);
                    let masked = v6.to_bits() & mask_v6(bits);
                    Self {
                        address: Ipv6Addr::from_bits(masked).into(),
                        bits,
                    }
                }
            },
        }
    }

    /// Whether `address` lies in this network.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(ip)) => ip.to_bits() & mask_v4(self.bits) == net.to_bits(),
            (IpAddr::V6(net), IpAddr::V6(ip)) => ip.to_bits() & mask_v6(self.bits) == net.to_bits(),
            _ => false,
        }
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
        let max = if address.is_ipv4() { 32 } else { 128 };
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
        if prefix.address != address && prefix.address != address.to_canonical() {
            return Err(PrefixError::HostBits { meant: prefix });
        }
        Ok(prefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The bits of an IPv4 address that a network of `bits` leading bits looks at.
pub(super) fn mask_v4(bits: u8) -> u32 {
    u32::MAX
        .checked_shl(32 - u32::from(bits.min(32)))
        .unwrap_or(0)
}

/// The bits of an IPv6 address that a network of `bits` leading bits looks at.
pub(super) fn mask_v6(bits: u8) -> u128 {
    u128::MAX
        .checked_shl(128 - u32::from(bits.min(128)))
        .unwrap_or(0)
}
