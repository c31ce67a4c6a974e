//! Sets of addresses, and their syntax in Squid's `src` and `dst`: an address, a network, a range,
//! or a range of networks.
//!
//! Invariant: an IPv4 address written as IPv6 is an IPv4 address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ranges::Ranges;

/// A set of client addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    pub v4: Ranges,
    pub v6: Ranges,
}

impl Addresses {
    /// All addresses.
    pub fn all() -> Self {
        Self {
            v4: Ranges::new([(0, V4_MAX)]),
            v6: Ranges::new([(0, u128::MAX)]),
        }
    }

    /// The addresses in these networks, written as `10.0.0.0/8`; an invalid text is left out.
    pub fn of_networks(networks: &[&str]) -> Self {
        let all = networks.iter().filter_map(|text| parse(text));
        all.fold(Self::default(), |set, more| set.union(&more))
    }

    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    pub fn union(&self, other: &Self) -> Self {
        Self {
            v4: self.v4.union(&other.v4),
            v6: self.v6.union(&other.v6),
        }
    }

    pub fn intersection(&self, other: &Self) -> Self {
        Self {
            v4: self.v4.intersection(&other.v4),
            v6: self.v6.intersection(&other.v6),
        }
    }

    pub fn complement(&self) -> Self {
        Self {
            v4: self.v4.complement(V4_MAX),
            v6: self.v6.complement(u128::MAX),
        }
    }

    /// Returns true if all addresses in `other` are in this set.
    pub fn covers(&self, other: &Self) -> bool {
        self.intersection(other) == *other
    }

    /// The set as networks, or `None` if there are more than [`NETWORKS_MAX`].
    pub fn networks(&self) -> Option<Vec<String>> {
        let count = self.network_count()?;
        let mut networks = Vec::with_capacity(count);
        networks.extend(self.prefixes_v4().map(|(first, length)| {
            let address = Ipv4Addr::from(u32::try_from(first).unwrap_or(u32::MAX));
            format!("{address}/{length}")
        }));
        let v6 = self.prefixes_v6();
        networks.extend(v6.map(|(first, length)| format!("{}/{length}", Ipv6Addr::from(first))));
        Some(networks)
    }

    /// The number of networks in the set, or `None` if there are more than [`NETWORKS_MAX`].
    pub fn network_count(&self) -> Option<usize> {
        let networks = self.prefixes_v4().chain(self.prefixes_v6());
        let count = networks.take(NETWORKS_MAX + 1).count();
        (count <= NETWORKS_MAX).then_some(count)
    }

    fn prefixes_v4(&self) -> impl Iterator<Item = (u128, u32)> {
        self.v4.iter().flat_map(|range| prefixes(range, 32))
    }

    fn prefixes_v6(&self) -> impl Iterator<Item = (u128, u32)> {
        let all = self.v6.iter().flat_map(|range| prefixes(range, 128));
        // Such a network would be read as an IPv4 network, which `v4` contains.
        let is_mapped = |first: u128, length| length >= 96 && first >> 32 == 0xffff;
        all.filter(move |(first, length)| !is_mapped(*first, *length))
    }
}

/// Splits an address range with `bits` bits into networks: first address and length.
fn prefixes((first, last): (u128, u128), bits: u32) -> impl Iterator<Item = (u128, u32)> {
    let mut next = Some(first);
    std::iter::from_fn(move || {
        let from = next.filter(|from| *from <= last)?;
        // The size is limited by the alignment of the address and by the end of the range.
        let mut free = from.trailing_zeros().min(bits);
        while ones(free) > last - from {
            free -= 1;
        }
        next = from
            .checked_add(ones(free))
            .and_then(|it| it.checked_add(1));
        Some((from, bits - free))
    })
}

/// The largest number with `count` bits.
fn ones(count: u32) -> u128 {
    match count {
        0 => 0,
        _ => u128::MAX >> (128 - count),
    }
}

/// Parses a value's addresses, such as `10.0.0.0/8`, `10.0.0.0/255.0.0.0`, `10.1-10.3/16` spelled
/// out, or `all`. `None`: the value has another form, for example a host name.
pub fn parse(text: &str) -> Option<Addresses> {
    if text == "all" {
        return Some(Addresses::all());
    }
    let (addresses, mask) = match text.split_once('/') {
        Some((addresses, mask)) => (addresses, Some(mask)),
        None => (text, None),
    };
    let (first, last) = addresses.split_once('-').unwrap_or((addresses, addresses));
    let (first, last) = (address(first)?, address(last)?);
    let bits = if first.is_ipv4() { 32 } else { 128 };
    let host_bits = match mask {
        Some(mask) => bits - length(mask, bits)?,
        None => 0,
    };
    let low = match host_bits {
        0 => 0,
        _ => u128::MAX >> (128 - host_bits),
    };
    let range = (number(first) & !low, number(last) | low);
    let set = Ranges::new([range]);
    match (first, last) {
        (IpAddr::V4(_), IpAddr::V4(_)) => Some(Addresses {
            v4: set,
            ..Addresses::default()
        }),
        (IpAddr::V6(_), IpAddr::V6(_)) => Some(Addresses {
            v6: set,
            ..Addresses::default()
        }),
        _ => None,
    }
}

fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let address: IpAddr = bare.unwrap_or(text).parse().ok()?;
    Some(address.to_canonical())
}

/// Parses a prefix length: a number, or a mask with all ones in front.
fn length(mask: &str, bits: u32) -> Option<u32> {
    if let Ok(length) = mask.parse::<u32>() {
        return (length <= bits).then_some(length);
    }
    let mask: IpAddr = mask.parse().ok()?;
    let ones = match mask {
        IpAddr::V4(mask) if bits == 32 => {
            let mask = u32::from(mask);
            (mask.leading_ones() + mask.trailing_zeros().min(32) >= 32).then(|| mask.leading_ones())
        }
        IpAddr::V6(mask) if bits == 128 => {
            let mask = u128::from(mask);
            (mask.leading_ones() + mask.trailing_zeros() >= 128).then(|| mask.leading_ones())
        }
        _ => None,
    };
    ones.filter(|ones| *ones <= bits)
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

const V4_MAX: u128 = u32::MAX as u128;
/// Most networks in a rule.
const NETWORKS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_squid_is_read() {
        for (text, networks) in [
            ("10.1.2.3", vec!["10.1.2.3/32"]),
            ("10.1.2.3/8", vec!["10.0.0.0/8"]),
            ("10.1.2.0/255.255.255.0", vec!["10.1.2.0/24"]),
            ("0.0.0.1-0.0.0.3", vec!["0.0.0.1/32", "0.0.0.2/31"]),
            ("10.1.0.0-10.3.0.0/16", vec!["10.1.0.0/16", "10.2.0.0/15"]),
            ("fc00::/7", vec!["fc00::/7"]),
            ("::1", vec!["::1/128"]),
            ("::ffff:10.0.0.1", vec!["10.0.0.1/32"]),
            ("10.0.0.0/0.0.0.0", vec!["0.0.0.0/0"]),
            ("all", vec!["0.0.0.0/0", "::/0"]),
        ] {
            assert_eq!(parse(text).unwrap().networks().unwrap(), networks, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_none() {
        for text in [
            "",
            "pc1.school.example",
            "10.0.0.0/33",
            "10.0.0.0/255.0.255.0",
            "10.0.0.1-::1",
            "10.0.0.0/ffff::",
            "::/129",
            "10.0.0",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn all_addresses_are_two_networks() {
        assert_eq!(Addresses::all().networks().unwrap(), ["0.0.0.0/0", "::/0"]);
        assert!(Addresses::all().complement().is_empty());
    }

    #[test]
    fn no_network_of_ipv6_is_read_as_one_of_ipv4() {
        let others = Addresses::of_networks(&["::fffe:0:0/96", "0.0.0.0/0"]).complement();
        assert!(
            others
                .networks()
                .unwrap()
                .iter()
                .all(|it| !it.contains("::ffff:"))
        );
    }

    #[test]
    fn a_set_of_addresses_is_written_as_networks() {
        let set = Addresses::of_networks(&["10.0.0.0/8", "192.168.7.1"]);
        assert_eq!(set.networks().unwrap(), ["10.0.0.0/8", "192.168.7.1/32"]);
        let others = Addresses::of_networks(&["0.0.0.0/1", "::/0"]).complement();
        assert_eq!(others.networks().unwrap(), ["128.0.0.0/1"]);
        let range = Addresses {
            v4: Ranges::new([(0x0a00_0001, 0x0a00_0006)]),
            v6: Ranges::default(),
        };
        assert_eq!(
            range.networks().unwrap(),
            ["10.0.0.1/32", "10.0.0.2/31", "10.0.0.4/31", "10.0.0.6/32"]
        );
    }
}
