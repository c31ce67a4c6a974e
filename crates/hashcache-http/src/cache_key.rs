//! The cache key: the name under which the engine stores the response for a target.
//!
//! The proxy computes a key once per request; after an unsafe method, once per invalidated target.
//!
//! | part | bytes |
//! |---|---|
//! | format | 2: `KEY_FORMAT` |
//! | space | 1: 0 own, 1 site, 2 mirror; after 1 and 2 its number, 2, little-endian |
//! | scheme, 0 | in lower case, one zero byte |
//! | host, 0 | in its one spelling, one zero byte |
//! | port | 2, little-endian |
//! | path and query | the rest, as it came |
//!
//! Invariant: equal keys mean equal space and target. Scheme and host contain no zero byte, and the
//! other parts except the last have fixed lengths, so a key can be parsed in one way only.
//! Cost: one allocation.

use std::io::Write as _;

use crate::authority::{Authority, Host, Scheme};
use crate::target::Target;

/// The key space of a resource. An accelerated site or a mirror may serve a different resource for
/// a URL than the URL's own authority does, so they never share a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The resource of the URL's own authority: forward proxy, interception.
    Own,
    /// Accelerated site n.
    Site(u16),
    /// Mirror n.
    Mirror(u16),
}

/// Maximum key length. A response with a longer key is passed through and never stored.
pub const KEY_BYTES_MAX: usize = 4096;

/// The cache key for a target, or `None` if the key would exceed [`KEY_BYTES_MAX`].
pub fn cache_key(space: Space, target: &Target) -> Option<Vec<u8>> {
    let mut key = origin_key(space, target);
    if key.len() + target.path_and_query.len() > KEY_BYTES_MAX {
        return None;
    }
    key.extend_from_slice(target.path_and_query.as_bytes());
    Some(key)
}

/// The prefix that the keys for all resources of the target's origin share, and no other key has.
pub fn origin_key(space: Space, target: &Target) -> Vec<u8> {
    let host = &target.authority.host;
    let host_bytes = match host {
        Host::Name(name) => name.len(),
        Host::V4(_) | Host::V6(_) => ADDRESS_BYTES_MAX,
    };
    let scheme = target.scheme.as_str();
    let size = FIXED_BYTES_MAX + scheme.len() + host_bytes + target.path_and_query.len();
    let mut key = Vec::with_capacity(size.min(KEY_BYTES_MAX));
    key.push(KEY_FORMAT);
    match space {
        Space::Own => key.push(OWN),
        Space::Site(number) => {
            key.push(SITE);
            key.extend_from_slice(&number.to_le_bytes());
        }
        Space::Mirror(number) => {
            key.push(MIRROR);
            key.extend_from_slice(&number.to_le_bytes());
        }
    }
    key.extend_from_slice(scheme.as_bytes());
    key.push(0);
    match host {
        Host::Name(name) => key.extend_from_slice(name.as_bytes()),
        Host::V4(_) | Host::V6(_) => {
            write!(key, "{host}").expect("a Vec takes all that is written");
        }
    }
    key.push(0);
    key.extend_from_slice(&target.authority.port.to_le_bytes());
    key
}

/// Parses the key space and the target from a cache key, or from a name that starts with a cache
/// key, such as the name of a variant; `None` for other names.
pub fn target_of_key(name: &[u8]) -> Option<(Space, Target)> {
    let number = |low: u8, high: u8| u16::from_le_bytes([low, high]);
    let (space, rest) = match name {
        [KEY_FORMAT, OWN, rest @ ..] => (Space::Own, rest),
        [KEY_FORMAT, SITE, low, high, rest @ ..] => (Space::Site(number(*low, *high)), rest),
        [KEY_FORMAT, MIRROR, low, high, rest @ ..] => (Space::Mirror(number(*low, *high)), rest),
        _ => return None,
    };
    let mut parts = rest.splitn(3, |byte| *byte == 0);
    let mut text = || std::str::from_utf8(parts.next()?).ok();
    let (scheme, host) = (text()?, text()?);
    let [low, high, path @ ..] = parts.next()? else {
        return None;
    };
    // In a cache key the path is the last part; in the name of a variant a zero byte follows it.
    let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
    let path = std::str::from_utf8(path).ok()?;
    let scheme = Scheme::ALL.into_iter().find(|it| it.as_str() == scheme)?;
    let authority = Authority {
        host: Host::parse(host).ok()?,
        port: number(*low, *high),
    };
    let target = Target {
        scheme,
        authority,
        path_and_query: path.into(),
    };
    Some((space, target))
}

/// The part of a name that places objects of the same host together: the host in a cache key, or in
/// a name that starts with a cache key, such as the name of a variant. Scheme, port and site number
/// do not matter. For a mirror, which has a single host, and for names that are not keys, it is the
/// whole name.
pub fn host_part(name: &[u8]) -> &[u8] {
    let host = || {
        let behind_space = match name {
            [KEY_FORMAT, OWN, rest @ ..] | [KEY_FORMAT, SITE, _, _, rest @ ..] => rest,
            _ => return None,
        };
        let mut parts = behind_space.split(|byte| *byte == 0);
        let (_scheme, host) = (parts.next()?, parts.next()?);
        // A zero byte must follow the host.
        parts.next().map(|_| host)
    };
    host().unwrap_or(name)
}

/// The first byte of every key. It changes with the layout, so that a new version never finds keys
/// in an old layout. 2: labels include their origin; a purge could not find older responses,
/// because they have no such label.
const KEY_FORMAT: u8 = 2;

const OWN: u8 = 0;
const SITE: u8 = 1;
const MIRROR: u8 = 2;

/// Format, space with number, two zero bytes, port.
const FIXED_BYTES_MAX: usize = 1 + 3 + 2 + 2;
/// The longest address: an IPv6 address in brackets.
const ADDRESS_BYTES_MAX: usize = 41;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(space: Space, url: &str) -> Vec<u8> {
        cache_key(space, &Target::parse_url(url).unwrap()).unwrap()
    }

    #[test]
    fn the_layout_is_the_tables() {
        assert_eq!(
            key(Space::Own, "http://Example.com/a?b"),
            b"\x02\x00http\0example.com\0\x50\x00/a?b"
        );
        assert_eq!(
            key(Space::Mirror(0x0102), "https://[::1]:8443"),
            b"\x02\x02\x02\x01https\0[::1]\0\xfb\x20/"
        );
    }

    #[test]
    fn a_key_tells_its_space_and_target_and_a_variant_those_of_its_key() {
        for (space, url) in [
            (Space::Own, "http://example.com/a?b"),
            (Space::Own, "http://h/"),
            (Space::Site(1), "https://192.0.2.1:8443/x"),
            (Space::Mirror(0x0102), "ftp://[::1]:300/"),
        ] {
            let target = Target::parse_url(url).unwrap();
            let name = key(space, url);
            assert_eq!(target_of_key(&name), Some((space, target.clone())), "{url}");
            let variant = [&name[..], b"\0v\x01\x00\xff/"].concat();
            assert_eq!(target_of_key(&variant), Some((space, target)), "{url}");
        }
        for name in [
            &b""[..],
            b"\x01\x00http\0h\0\x50\x00/",
            b"\x02\x00http\0h\0\x50",
            b"\x02\x00nttp\0h\0\x50\x00/",
            b"\x02\x00http\0h h\0\x50\x00/",
            b"\x02\x01\x00",
            b"\0v",
        ] {
            assert_eq!(target_of_key(name), None, "{name:?}");
        }
    }

    #[test]
    fn spaces_schemes_and_ports_are_kept_apart() {
        let keys = [
            key(Space::Own, "http://h/"),
            key(Space::Site(0), "http://h/"),
            key(Space::Site(1), "http://h/"),
            key(Space::Mirror(0), "http://h/"),
            key(Space::Own, "ftp://h/"),
            key(Space::Own, "gopher://h/"),
            key(Space::Own, "http://h:21/"),
            key(Space::Own, "https://h/"),
            key(Space::Own, "http://h:443/"),
        ];
        for (at, one) in keys.iter().enumerate() {
            assert!(keys[at + 1..].iter().all(|other| one != other));
        }
    }

    #[test]
    fn the_part_of_a_host_is_the_same_for_all_that_it_has() {
        let urls = [
            "http://a.example/",
            "https://a.example/b?c",
            "ftp://a.example:2/b",
        ];
        for url in urls {
            for space in [Space::Own, Space::Site(0), Space::Site(0x0102)] {
                let key = key(space, url);
                let variant = [&key[..], b"\0v\0\0\x07\0\0\0\0\0\0\0\0\0\0\0\0\0"].concat();
                for name in [key, variant] {
                    assert_eq!(host_part(&name), b"a.example", "{url}");
                }
            }
            let mirrored = key(Space::Mirror(1), url);
            assert_eq!(host_part(&mirrored), mirrored);
        }
        assert_eq!(host_part(&key(Space::Own, "http://[::1]/")), b"[::1]");
    }

    #[test]
    fn a_name_that_is_no_key_is_one_part() {
        let names: [&[u8]; 8] = [
            b"",
            b"\x02",
            b"\x02\x00http",
            b"\x02\x00http\0host",
            b"\x02\x01\0\0",
            b"\x01\x00http\0host\0\x50\x00/",
            b"\0c........................",
            b"\0v................................\x02\x00http\0host\0",
        ];
        for name in names {
            assert_eq!(host_part(name), name);
        }
    }

    #[test]
    fn a_key_of_4096_bytes_is_the_longest() {
        let with_path = |length: usize| {
            let url = format!("http://h/{}", "a".repeat(length));
            cache_key(Space::Own, &Target::parse_url(&url).unwrap())
        };
        let fixed = key(Space::Own, "http://h/").len();
        assert_eq!(
            with_path(KEY_BYTES_MAX - fixed).unwrap().len(),
            KEY_BYTES_MAX
        );
        assert_eq!(with_path(KEY_BYTES_MAX - fixed + 1), None);
    }
}
