//! The fields in which proxies tell an origin about the client: `Forwarded` (RFC 7239) and the
//! older X-Forwarded-For, -Proto and -Host.
//!
//! Called once per request to a site, before any other field is read. Pure functions.
//!
//! Invariants: statements about the source of a request are believed only from networks that the
//! operator trusts. The first address that is sent to the origin is the address of the client, so
//! an origin that reads the leftmost address is not deceived either. A field that cannot be parsed
//! counts as absent.
//! Cost: for a client that sends none of these fields, only the new values are allocated.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use hashcache_http::{Authority, Host, Scheme, speaks_for_client};
use http::header::FORWARDED;
use http::{HeaderMap, HeaderName, HeaderValue};

/// The source of a request, as far as it can be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// The client: the rightmost address that is not trusted, or the leftmost address if all are.
    pub client: IpAddr,
    /// The proxies between the client and this proxy, in forwarding order.
    pub(crate) proxies: Vec<IpAddr>,
    /// The scheme that the client used.
    pub scheme: Scheme,
    /// True if a trusted proxy named the scheme; otherwise it is the connection's scheme.
    pub(crate) names_scheme: bool,
    /// The host that the client named, if a trusted proxy reports it.
    pub host: Option<Authority>,
    /// Trust in the statements of the peer.
    pub speaker: Speaker,
}

/// Trust in the statements of a peer about the source of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// A proxy that the operator trusts.
    Trusted,
    /// Any other peer.
    Untrusted,
}

impl Forwarding {
    /// Reads the fields of a request that `peer` sent over a connection with this scheme.
    ///
    /// X-Forwarded-For counts before Forwarded: nearly every proxy writes it, and a proxy that does
    /// not know Forwarded passes the client's value on.
    pub fn read(
        peer: IpAddr,
        scheme: Scheme,
        fields: &HeaderMap,
        is_trusted: impl Fn(IpAddr) -> bool,
    ) -> Self {
        let peer = peer.to_canonical();
        let speaker = if is_trusted(peer) {
            Speaker::Trusted
        } else {
            Speaker::Untrusted
        };
        let direct = Self {
            client: peer,
            proxies: Vec::new(),
            scheme,
            names_scheme: false,
            host: None,
            speaker,
        };
        if speaker == Speaker::Untrusted {
            return direct;
        }
        let elements = if fields.contains_key(&FOR) {
            elements_of_older_fields(fields)
        } else {
            parse_forwarded(fields).unwrap_or_default()
        };
        let unlisted = Element {
            client: None,
            scheme: members(fields, &PROTO).last().and_then(|it| scheme_of(it)),
            host: members(fields, &HOST).last().and_then(|it| host_text(it)),
        };
        // The peer's own statement is valid even if the addresses are unknown.
        let mut said = elements.last().unwrap_or(&unlisted);
        let (mut way, mut client) = (Vec::new(), peer);
        for element in elements.iter().rev() {
            let Some(address) = element.client else {
                break;
            };
            way.push(client);
            (client, said) = (address, element);
            if !is_trusted(address) {
                break;
            }
        }
        way.reverse();
        let scheme = said.scheme.unwrap_or(scheme);
        let host = said.host.as_deref();
        Self {
            client,
            proxies: way,
            scheme,
            names_scheme: said.scheme.is_some(),
            host: host.and_then(|host| Authority::parse(host, scheme).ok()),
            speaker,
        }
    }

    /// Writes the fields for the origin; `host` is the host that the client named.
    pub(crate) fn write(&self, host: &str, fields: &mut HeaderMap) {
        self.write_fields(Some(host), fields);
    }

    /// As [`write`](Self::write), for a site that serves any host. The client's host is not part of
    /// the cache key then, so it must not become part of a response.
    pub(crate) fn write_without_host(&self, fields: &mut HeaderMap) {
        self.write_fields(None, fields);
    }

    fn write_fields(&self, host: Option<&str>, fields: &mut HeaderMap) {
        // The text is built without `format!`, because this runs for each request to an origin.
        let mut text = String::with_capacity(128);
        push_address(&mut text, self.client);
        for proxy in &self.proxies {
            text.push_str(", ");
            push_address(&mut text, *proxy);
        }
        set(fields, FOR, &text);
        fields.insert(PROTO, HeaderValue::from_static(self.scheme.as_str()));
        text.clear();
        text.push_str("for=");
        push_node(&mut text, self.client);
        if let Some(host) = host.filter(|host| !host.is_empty()) {
            set(fields, HOST, host);
            // An authority has neither quotes nor backslashes.
            let quote = if is_token(host.as_bytes()) { "" } else { "\"" };
            for part in [";host=", quote, host, quote] {
                text.push_str(part);
            }
        }
        text.push_str(";proto=");
        text.push_str(self.scheme.as_str());
        for proxy in &self.proxies {
            text.push_str(", for=");
            push_node(&mut text, *proxy);
        }
        set(fields, FORWARDED, &text);
    }
}

fn set(fields: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        fields.insert(name, value);
    }
}

/// Removes the fields in which a request names its source, the URL or method that an origin should
/// use, or the user. Fields that this proxy writes anew are always removed. From untrusted clients,
/// all such fields ([`speaks_for_client`]) are removed except the fields that the site passes
/// (`passed`). Names with `_` in place of `-` are removed too, because CGI, WSGI and Rack do not
/// distinguish the two spellings. `Proxy` would set the application's proxy (CVE-2016-5385).
pub fn strip_forwarded(fields: &mut HeaderMap, speaker: Speaker, passed: &[HeaderName]) {
    let goes = |name: &&HeaderName| {
        let name = *name;
        let is_rewritten = || [FOR, PROTO, HOST, FORWARDED].contains(name) || name == "proxy";
        let may_stay = || {
            let by_front = speaker == Speaker::Trusted && !name.as_str().contains('_');
            by_front || passed.contains(name)
        };
        speaks_for_client(name) && (is_rewritten() || !may_stay())
    };
    let names: Vec<HeaderName> = fields.keys().filter(goes).cloned().collect();
    for name in names {
        fields.remove(name);
    }
}

/// A proxy's statement about the previous hop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Element {
    /// The address that connected to the proxy; `None`: unknown or hidden.
    client: Option<IpAddr>,
    scheme: Option<Scheme>,
    host: Option<String>,
}

/// The X-Forwarded-* fields, at most the rightmost [`ELEMENTS_MAX`].
fn elements_of_older_fields(fields: &HeaderMap) -> Vec<Element> {
    let addresses = members(fields, &FOR);
    let (schemes, hosts) = (members(fields, &PROTO), members(fields, &HOST));
    let count = addresses.len();
    // Proxies that append to one list append to all, or overwrite the other two.
    let at = |list: &[&[u8]], n: usize| {
        if list.len() == count {
            list.get(n).map(|text| text.to_vec())
        } else {
            list.last().map(|text| text.to_vec())
        }
    };
    let elements = addresses.iter().enumerate().map(|(n, address)| Element {
        client: node_address(address),
        scheme: at(&schemes, n).and_then(|text| scheme_of(&text)),
        host: at(&hosts, n).and_then(|text| host_text(&text)),
    });
    elements.skip(count.saturating_sub(ELEMENTS_MAX)).collect()
}

/// The trimmed members of a list without quoted strings, over all lines.
fn members<'a>(fields: &'a HeaderMap, name: &HeaderName) -> Vec<&'a [u8]> {
    let lines = fields.get_all(name).iter();
    let members = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b','));
    members
        .map(<[u8]>::trim_ascii)
        .filter(|it| !it.is_empty())
        .collect()
}

/// Parses `Forwarded`, the rightmost [`ELEMENTS_MAX`] elements; `None` if it is malformed.
fn parse_forwarded(fields: &HeaderMap) -> Option<Vec<Element>> {
    let mut elements = Vec::new();
    for line in fields.get_all(FORWARDED) {
        let mut rest = line.as_bytes().trim_ascii();
        while !rest.is_empty() {
            let (element, after) = parse_element(rest)?;
            elements.push(element);
            rest = after;
        }
    }
    elements.drain(..elements.len().saturating_sub(ELEMENTS_MAX));
    Some(elements)
}

/// Parses an element and the comma after it; returns the remaining text.
fn parse_element(mut rest: &[u8]) -> Option<(Element, &[u8])> {
    let mut element = Element::default();
    let mut seen = [false; 3];
    loop {
        rest = rest.trim_ascii_start();
        match rest.first() {
            None => return Some((element, rest)),
            Some(b',') => return Some((element, &rest[1..])),
            Some(b';') => {
                rest = &rest[1..];
                continue;
            }
            Some(_) => {}
        }
        let (name, after) = token(rest)?;
        let after = after.strip_prefix(b"=")?;
        let (value, after) = value(after)?;
        let after = after.trim_ascii_start();
        if !matches!(after.first(), None | Some(b',' | b';')) {
            return None;
        }
        rest = after;
        let which = PARAMETERS
            .iter()
            .position(|known| known.eq_ignore_ascii_case(name));
        let Some(which) = which else {
            continue; // `by`, or an extension
        };
        // RFC 7239, section 4: each parameter at most once an element.
        if std::mem::replace(&mut seen[which], true) {
            return None;
        }
        match which {
            0 => element.client = node_address(&value),
            1 => element.scheme = scheme_of(&value),
            _ => element.host = host_text(&value),
        }
    }
}

/// The parameters that count, in the order of `seen`.
const PARAMETERS: [&[u8]; 3] = [b"for", b"proto", b"host"];

fn token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|&byte| !is_token_byte(byte));
    let (token, rest) = text.split_at(end.unwrap_or(text.len()));
    (!token.is_empty()).then_some((token, rest))
}

/// A token or a quoted string, unescaped.
fn value(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        return token(text).map(|(token, rest)| (token.to_vec(), rest));
    };
    let mut value = Vec::new();
    let mut bytes = quoted.iter().enumerate();
    while let Some((at, &byte)) = bytes.next() {
        match byte {
            b'"' => return Some((value, &quoted[at + 1..])),
            b'\\' => value.push(*bytes.next()?.1),
            _ => value.push(byte),
        }
    }
    None
}

/// The address of a node, with or without a port or brackets; `None`: `unknown`, a hidden name, or
/// no address at all.
fn node_address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let text = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or(text);
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let address = text.parse::<IpAddr>().ok().or_else(bracketed);
    let address = address.or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()));
    address.map(|address| address.to_canonical())
}

fn scheme_of(text: &[u8]) -> Option<Scheme> {
    let schemes = [Scheme::Http, Scheme::Https];
    let is = |scheme: &Scheme| text.eq_ignore_ascii_case(scheme.as_str().as_bytes());
    schemes.into_iter().find(is)
}

/// The text of a host, which is parsed when the scheme is known.
fn host_text(text: &[u8]) -> Option<String> {
    Some(std::str::from_utf8(text).ok()?.to_owned())
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| is_token_byte(byte))
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Appends an address as `Forwarded` spells it.
fn push_node(out: &mut String, address: IpAddr) {
    match address {
        IpAddr::V4(_) => push_address(out, address),
        IpAddr::V6(address) => {
            let _ = write!(out, "\"[{address}]\"");
        }
    }
}

fn push_address(out: &mut String, address: IpAddr) {
    let _ = match address {
        IpAddr::V4(address) => write!(out, "{}", Host::V4(address)),
        IpAddr::V6(address) => write!(out, "{address}"),
    };
}

pub(super) const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(super) const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// More proxies than any request passes; the rest of a longer list is ignored.
pub(super) const ELEMENTS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn fields(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for (name, value) in lines {
            fields.append(*name, value.parse().unwrap());
        }
        fields
    }

    fn is_inside(address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(it) if it.octets()[0] == 10)
    }

    fn read(lines: &[(&'static str, &str)]) -> Forwarding {
        Forwarding::read(PEER, Scheme::Http, &fields(lines), is_inside)
    }

    fn client(lines: &[(&'static str, &str)]) -> String {
        read(lines).client.to_string()
    }

    #[test]
    fn an_untrusted_client_cannot_say_who_it_is() {
        let lines = [
            ("x-forwarded-for", "192.0.2.1"),
            ("forwarded", "for=192.0.2.1;proto=https;host=evil.test"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "evil.test"),
        ];
        let peer = IpAddr::from([198, 51, 100, 7]);
        let read = Forwarding::read(peer, Scheme::Http, &fields(&lines), is_inside);
        assert_eq!(read.client, peer);
        assert_eq!(
            (read.scheme, read.host, read.proxies.len()),
            (Scheme::Http, None, 0)
        );
    }

    #[test]
    fn the_scheme_is_that_of_the_connection_unless_a_trusted_proxy_names_it() {
        for (lines, expected) in [
            (&[("x-forwarded-proto", "https")][..], (Scheme::Https, true)),
            (
                &[("forwarded", "for=192.0.2.1;proto=https")],
                (Scheme::Https, true),
            ),
            (&[("x-forwarded-proto", "gopher")], (Scheme::Http, false)),
            (&[("x-forwarded-for", "192.0.2.1")], (Scheme::Http, false)),
            (&[], (Scheme::Http, false)),
        ] {
            let read = read(lines);
            assert_eq!((read.scheme, read.names_scheme), expected, "{lines:?}");
        }
    }

    #[test]
    fn other_spellings_of_these_fields_are_removed_too() {
        for speaker in [Speaker::Trusted, Speaker::Untrusted] {
            let mut fields = fields(&[
                ("x_forwarded_for", "127.0.0.1"),
                ("x-forwarded_host", "evil.test"),
                ("x_real_ip", "127.0.0.1"),
                ("proxy", "http://evil.test"),
                ("x_other", "stays"),
            ]);
            strip_forwarded(&mut fields, speaker, &[]);
            let names: Vec<_> = fields.keys().map(HeaderName::as_str).collect();
            assert_eq!(names, ["x_other"]);
        }
    }

    #[test]
    fn the_client_is_the_rightmost_address_that_is_not_trusted() {
        let older = |list| client(&[("x-forwarded-for", list)]);
        assert_eq!(
            older("192.0.2.9, 192.0.2.1, 10.0.0.3, 10.0.0.2"),
            "192.0.2.1"
        );
        assert_eq!(older("10.0.0.3"), "10.0.0.3");
        assert_eq!(older("192.0.2.1,, , 10.0.0.2"), "192.0.2.1");
        assert_eq!(older("192.0.2.1:4711"), "192.0.2.1");
        assert_eq!(older("2001:db8::1"), "2001:db8::1");
        assert_eq!(older("[2001:db8::1]:80"), "2001:db8::1");
        assert_eq!(older("::ffff:192.0.2.1"), "192.0.2.1");
        let newer = |list| client(&[("forwarded", list)]);
        assert_eq!(
            newer("for=192.0.2.9, for=192.0.2.1;by=_x, FOR=10.0.0.2"),
            "192.0.2.1"
        );
        assert_eq!(newer("for=\"[2001:db8::1]:4711\""), "2001:db8::1");
        assert_eq!(newer("for=\"192.0.2.1:80\";proto=http"), "192.0.2.1");
    }

    #[test]
    fn an_unknown_address_ends_the_search_at_the_proxy_that_saw_it() {
        for list in [
            "192.0.2.1, unknown, 10.0.0.2",
            "192.0.2.1, _hidden, 10.0.0.2",
        ] {
            assert_eq!(client(&[("x-forwarded-for", list)]), "10.0.0.2");
        }
        let newer = "for=192.0.2.1, for=unknown, for=10.0.0.2";
        assert_eq!(client(&[("forwarded", newer)]), "10.0.0.2");
        assert_eq!(client(&[("x-forwarded-for", "gibberish")]), "10.0.0.1");
    }

    #[test]
    fn several_lines_are_one_list() {
        let lines = [
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-for", "10.0.0.2"),
        ];
        assert_eq!(client(&lines), "192.0.2.1");
    }

    #[test]
    fn a_malformed_forwarded_counts_as_absent() {
        for text in [
            "for",
            "for=",
            "for=192.0.2.1;for=192.0.2.2",
            "for=\"192.0.2.1",
            "for=192.0.2.1 proto=http",
            "=192.0.2.1",
            "for = 192.0.2.1",
            "for=\"\\",
        ] {
            assert_eq!(client(&[("forwarded", text)]), "10.0.0.1", "{text}");
        }
        assert_eq!(client(&[("forwarded", ";;for=192.0.2.1;;")]), "192.0.2.1");
    }

    #[test]
    fn the_older_field_counts_before_forwarded() {
        let lines = [
            ("forwarded", "for=192.0.2.66"),
            ("x-forwarded-for", "192.0.2.1"),
        ];
        assert_eq!(client(&lines), "192.0.2.1");
    }

    #[test]
    fn scheme_and_host_are_those_of_the_clients_own_hop() {
        let said = read(&[
            ("x-forwarded-for", "192.0.2.1, 10.0.0.2"),
            ("x-forwarded-proto", "https, http"),
            ("x-forwarded-host", "www.example.com, inside.test"),
        ]);
        assert_eq!(said.scheme, Scheme::Https);
        assert_eq!(said.host.unwrap().host.to_string(), "www.example.com");
        let said = read(&[(
            "forwarded",
            "for=192.0.2.1;proto=https;host=\"a.test:8443\", for=10.0.0.2;proto=http;host=b.test",
        )]);
        assert_eq!(
            (said.scheme, said.host.unwrap().port),
            (Scheme::Https, 8443)
        );
        let overwritten = read(&[
            ("x-forwarded-for", "192.0.2.1, 10.0.0.2"),
            ("x-forwarded-proto", "https"),
        ]);
        assert_eq!(overwritten.scheme, Scheme::Https);
    }

    #[test]
    fn a_trusted_proxy_may_name_the_scheme_alone() {
        let said = read(&[("x-forwarded-proto", "HTTPS")]);
        assert_eq!((said.scheme, said.client), (Scheme::Https, PEER));
        assert_eq!(
            read(&[("x-forwarded-proto", "gopher")]).scheme,
            Scheme::Http
        );
    }

    #[test]
    fn the_origin_sees_the_client_first_and_then_the_proxies() {
        let mut sent = fields(&[("x-forwarded-for", "forged"), ("forwarded", "for=forged")]);
        let read = read(&[
            ("x-forwarded-for", "203.0.113.9, 2001:db8::1, 10.0.0.2"),
            ("x-forwarded-proto", "https"),
        ]);
        read.write("www.example.com:8443", &mut sent);
        assert_eq!(sent["x-forwarded-for"], "2001:db8::1, 10.0.0.2, 10.0.0.1");
        assert_eq!(sent["x-forwarded-proto"], "https");
        assert_eq!(sent["x-forwarded-host"], "www.example.com:8443");
        assert_eq!(
            sent["forwarded"],
            "for=\"[2001:db8::1]\";host=\"www.example.com:8443\";proto=https, \
             for=10.0.0.2, for=10.0.0.1"
        );
        assert_eq!(sent.len(), 4);
    }

    #[test]
    fn fields_of_this_kind_are_removed_from_untrusted_clients() {
        let lines = [
            ("x-forwarded-for", "1"),
            ("x-forwarded-prefix", "/evil"),
            ("x-forwarded-port", "1"),
            ("x-real-ip", "192.0.2.1"),
            ("forwarded", "for=1"),
            ("x-forwarder", "kept"),
        ];
        let mut untrusted = fields(&lines);
        strip_forwarded(&mut untrusted, Speaker::Untrusted, &[]);
        assert_eq!(untrusted.keys().collect::<Vec<_>>(), ["x-forwarder"]);
        let mut trusted = fields(&lines);
        strip_forwarded(&mut trusted, Speaker::Trusted, &[]);
        assert_eq!(trusted.len(), 4);
        assert!(!trusted.contains_key("forwarded"));
    }

    #[test]
    fn a_list_without_end_is_read_from_the_right() {
        let list = "192.0.2.1, ".repeat(500) + &"10.0.0.2, ".repeat(40);
        let read = read(&[("x-forwarded-for", &list)]);
        assert_eq!(
            (read.client.to_string(), read.proxies.len()),
            ("10.0.0.2".into(), 32)
        );
        assert!(read.proxies.len() <= ELEMENTS_MAX);
    }

    #[test]
    fn a_list_at_its_limit_is_read_without_a_fault() {
        for count in [31, 32, 33, 100] {
            let list = vec!["10.0.0.2"; count].join(",");
            super::super::forwarded_check::check_reading(format!("\n10.0.0.32,{list}").as_bytes());
        }
    }

    #[test]
    fn random_bytes_keep_the_promises() {
        let mut random = fastrand::Rng::with_seed(7);
        let pieces: [&[u8]; 16] = [
            b"for=",
            b"192.0.2.1",
            b"10.0.0.2",
            b",",
            b";",
            b"\"",
            b"\\",
            b"[::1]",
            b"proto=",
            b"https",
            b"host=",
            b"a.test",
            b":80",
            b"\n",
            b"unknown",
            b" ",
        ];
        for _ in 0..20_000 {
            let count = random.usize(..24);
            let text: Vec<u8> = (0..count)
                .flat_map(|_| pieces[random.usize(..pieces.len())].to_vec())
                .collect();
            super::super::forwarded_check::check_reading(&text);
        }
    }
}
