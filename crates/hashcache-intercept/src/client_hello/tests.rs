//! Hellos of rustls, and hellos put together by hand for what rustls does not say.

use std::sync::Arc;

use hashcache_base::tls::provider;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::server::Acceptor;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

/// The parts of a ClientHello.
#[derive(Clone, Debug)]
pub(in super::super) struct Made {
    pub(in super::super) legacy_version: u16,
    pub(in super::super) suites: Vec<u16>,
    /// Kind and content, in this order.
    pub(in super::super) extensions: Vec<(u16, Vec<u8>)>,
}

fn prefixed(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap();
    [&length.to_be_bytes()[..], bytes].concat()
}

fn numbers(numbers: &[u16]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_be_bytes())
        .collect()
}

pub(in super::super) fn named(name: &str) -> (u16, Vec<u8>) {
    let entry = [&[0][..], &prefixed(name.as_bytes())].concat();
    (0, prefixed(&entry))
}

fn alpn(names: &[&str]) -> (u16, Vec<u8>) {
    let entries: Vec<u8> = names
        .iter()
        .flat_map(|name| [&[u8::try_from(name.len()).unwrap()][..], name.as_bytes()].concat())
        .collect();
    (16, prefixed(&entries))
}

fn versions(versions: &[u16]) -> (u16, Vec<u8>) {
    let pairs = numbers(versions);
    let length = u8::try_from(pairs.len()).unwrap();
    (43, [&[length][..], &pairs].concat())
}

impl Made {
    /// The ClientHello of a client of TLS 1.2 and 1.3 that wants `name`.
    pub(in super::super) fn usual(name: &str) -> Self {
        Self {
            legacy_version: 0x0303,
            suites: vec![0x0a0a, 0x1301, 0xc02b],
            extensions: vec![
                named(name),
                (10, prefixed(&numbers(&[0x1a1a, 0x001d, 0x0017]))),
                (13, prefixed(&numbers(&[0x0403, 0x0804]))),
                alpn(&["h2", "http/1.1"]),
                versions(&[0x2a2a, 0x0304, 0x0303]),
                (
                    51,
                    prefixed(&[&numbers(&[0x001d])[..], &prefixed(&[9; 32])].concat()),
                ),
                (0x3a3a, vec![0]),
            ],
        }
    }

    pub(in super::super) fn without(mut self, kind: u16) -> Self {
        self.extensions.retain(|(each, _)| *each != kind);
        self
    }

    pub(in super::super) fn with(self, extension: (u16, Vec<u8>)) -> Self {
        let mut changed = self.without(extension.0);
        changed.extensions.push(extension);
        changed
    }

    /// The handshake message.
    fn message(&self) -> Vec<u8> {
        let extensions: Vec<u8> = self
            .extensions
            .iter()
            .flat_map(|(kind, content)| [&kind.to_be_bytes()[..], &prefixed(content)].concat())
            .collect();
        let body = [
            &self.legacy_version.to_be_bytes()[..],
            &[7; 32],
            &[0],
            &prefixed(&numbers(&self.suites)),
            &[1, 0],
            &prefixed(&extensions),
        ]
        .concat();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[1][..], &length[1..], &body].concat()
    }

    /// Divides it into records of at most `size` bytes.
    pub(in super::super) fn records(&self, size: usize) -> Vec<u8> {
        let message = self.message();
        message
            .chunks(size)
            .flat_map(|part| [&[22, 3, 1][..], &prefixed(part)].concat())
            .collect()
    }
}

/// The result of parsing these records, if they are a ClientHello.
fn read(records: &[u8]) -> Option<ParsedHello> {
    let mut acceptor = Acceptor::default();
    let mut rest = records;
    while !rest.is_empty() {
        acceptor.read_tls(&mut rest).ok()?;
        if let Some(accepted) = acceptor.accept().ok()? {
            return ParsedHello::new(&accepted.client_hello(), records);
        }
    }
    None
}

fn of(made: &Made) -> ParsedHello {
    read(&made.records(1 << 14)).unwrap()
}

/// The ClientHello of rustls for `name`, with `protocols` inside.
fn of_rustls(name: &str, protocols: &[&[u8]]) -> Vec<u8> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut records = Vec::new();
    connection.write_tls(&mut records).unwrap();
    records
}

#[test]
fn what_a_real_client_says_is_read() {
    let hello = read(&of_rustls("A.test", &[b"h2"])).unwrap();
    assert_eq!(hello.name.as_deref(), Some("a.test"));
    assert_eq!(hello.speaks, InnerProtocol::Http);
    assert!(hello.modern && hello.common);
    let unsaid = read(&of_rustls("a.test", &[])).unwrap();
    assert_eq!(unsaid.speaks, InnerProtocol::Unsaid);
    let other = read(&of_rustls("a.test", &[b"xmpp-client"])).unwrap();
    assert_eq!(other.speaks, InnerProtocol::Other);
    let nameless = read(&of_rustls("127.0.0.1", &[])).unwrap();
    assert_eq!(nameless.name, None);
}

#[test]
fn a_program_has_one_fingerprint_and_another_has_another() {
    let first = read(&of_rustls("a.test", &[b"h2"])).unwrap();
    let again = read(&of_rustls("a.test", &[b"h2"])).unwrap();
    assert_eq!(first.fingerprint, again.fingerprint);
    let other = read(&of_rustls("a.test", &[])).unwrap();
    assert_ne!(first.fingerprint, other.fingerprint);

    let usual = Made::usual("a.test");
    let fingerprint = |made: &Made| of(made).fingerprint;
    let expected = fingerprint(&usual);
    let mut turned = usual.clone();
    turned.extensions.reverse();
    let mut greased = usual.clone();
    greased.suites[0] = 0xfafa;
    let same = [
        turned,
        greased,
        usual.clone().with((21, vec![0; 200])),
        usual.clone().without(0x3a3a).with((0x4a4a, vec![])),
    ];
    for made in same {
        assert_eq!(fingerprint(&made), expected, "{made:?}");
    }
    let mut fewer = usual.clone();
    fewer.suites.pop();
    let others = [
        fewer,
        usual.clone().with((23, vec![])),
        usual.clone().with(versions(&[0x0304])),
        usual.clone().with(alpn(&["http/1.1"])),
    ];
    for made in others {
        assert_ne!(fingerprint(&made), expected, "{made:?}");
    }
}

#[test]
fn versions_are_those_of_the_extension_or_else_of_the_old_field() {
    let modern = |made: Made| of(&made).modern;
    let usual = Made::usual("a.test");
    assert!(modern(usual.clone()));
    assert!(modern(usual.clone().with(versions(&[0x0304]))));
    assert!(modern(usual.clone().with(versions(&[0x0303, 0x0302]))));
    assert!(!modern(usual.clone().with(versions(&[0x0302, 0x0301]))));
    let mut old = usual.without(43);
    assert!(modern(old.clone()));
    old.legacy_version = 0x0302;
    assert!(!modern(old.clone()));
    old.legacy_version = 0x0304;
    assert!(modern(old));
}

#[test]
fn who_has_nothing_in_common_with_a_certificate_of_p256_is_known() {
    let common = |made: Made| of(&made).common;
    let usual = Made::usual("a.test");
    let with_suites = |suites: &[u16]| Made {
        suites: suites.to_vec(),
        ..usual.clone()
    };
    assert!(common(with_suites(&[0x1303])));
    assert!(common(with_suites(&[0xc02c])));
    // RSA alone, by ECDHE and by itself.
    assert!(!common(with_suites(&[0xc02f, 0x009c])));
    let only_1_2 = with_suites(&[0x1301]).with(versions(&[0x0303]));
    assert!(!common(only_1_2));
    let rsa = usual
        .clone()
        .with((13, prefixed(&numbers(&[0x0804, 0x0401]))));
    assert!(!common(rsa));
    let group = usual.clone().with((10, prefixed(&numbers(&[0x0019]))));
    assert!(!common(group));
    assert!(!common(usual.without(10)));
}

#[test]
fn a_hello_reads_alike_however_it_is_cut() {
    let made = Made::usual("a.test").with((0x9999, vec![3; 20_000]));
    let expected = of(&made);
    for size in [1 << 14, 5000, 1000, 300] {
        assert_eq!(read(&made.records(size)), Some(expected.clone()), "{size}");
    }
}

#[test]
fn what_is_no_hello_is_not_read_as_one() {
    let whole = Made::usual("a.test").records(1 << 14);
    for length in 0..whole.len() {
        assert_eq!(message(&whole[..length]), None, "{length}");
    }
    assert!(message(&whole).is_some());
    for (at, byte) in [(0, 23), (5, 2)] {
        let mut changed = whole.clone();
        changed[at] = byte;
        assert_eq!(message(&changed), None);
    }
}
