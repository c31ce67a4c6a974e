//! Checks the invariants of `forwarded` for any bytes: called by a test and by the fuzz target.

use std::net::IpAddr;

use hashcache_http::Scheme;
use http::header::FORWARDED;
use http::{HeaderMap, HeaderValue};

use super::forwarded::{ELEMENTS_MAX, FOR, Forwarding, HOST, PROTO, Speaker, strip_forwarded};

/// Reads up to four lines: the values of Forwarded, X-Forwarded-For, -Proto and -Host.
pub(crate) fn check_reading(data: &[u8]) {
    let mut fields = HeaderMap::new();
    let mut parts = data.split(|&byte| byte == b'\n');
    for name in [FORWARDED, FOR, PROTO, HOST] {
        let value = parts.next().unwrap_or_default();
        if let Ok(value) = HeaderValue::from_bytes(value)
            && !value.is_empty()
        {
            fields.append(name, value);
        }
    }
    let peer = IpAddr::from([10, 0, 0, 1]);
    let is_trusted = |address| matches!(address, IpAddr::V4(it) if it.octets()[0] == 10);
    let read = Forwarding::read(peer, Scheme::Http, &fields, is_trusted);
    assert!(read.proxies.len() <= ELEMENTS_MAX);
    assert!(read.proxies.iter().all(|&proxy| is_trusted(proxy)));
    match read.proxies.last() {
        Some(last) => assert_eq!(*last, peer),
        None => assert_eq!(read.client, peer),
    }
    let untrusted = Forwarding::read(peer, Scheme::Http, &fields, |_| false);
    assert_eq!((untrusted.client, untrusted.host), (peer, None));

    let mut stripped = fields.clone();
    strip_forwarded(&mut stripped, Speaker::Untrusted, &[]);
    assert!(stripped.is_empty());

    // The forwarded fields mean the same to the next proxy, in either form.
    let host = read.host.as_ref().map(ToString::to_string);
    let host = host.unwrap_or_else(|| "site.test:8080".to_owned());
    let mut sent = HeaderMap::new();
    read.write(&host, &mut sent);
    let mut newer = HeaderMap::new();
    newer.insert(FORWARDED, sent[FORWARDED].clone());
    sent.remove(FORWARDED);
    let trusts = |address| read.proxies.contains(&address) || address == peer;
    // Each proxy adds an address, so a list at the limit exceeds it for the next proxy.
    if trusts(read.client) || read.proxies.len() == ELEMENTS_MAX {
        return;
    }
    for fields in [sent, newer] {
        let again = Forwarding::read(peer, Scheme::Http, &fields, trusts);
        assert_eq!((again.client, again.scheme), (read.client, read.scheme));
        assert_eq!(again.host.map(|host| host.to_string()), Some(host.clone()));
    }
}
