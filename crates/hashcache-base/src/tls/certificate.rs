//! Parts of a certificate that `rustls` does not expose: the validity, the name, and the domains to
//! which an authority is limited (RFC 5280, section 4.1).
//!
//! Called by `authority` in `hashcache-intercept` for its own root and intermediate, and by `tls`
//! in `hashcache-upstream` for origins' certificates, because a leaf must not outlive the origin's
//! certificate. Verification is left to `rustls`.
//!
//! Invariant: no input causes a panic or a read beyond the input; `der` does the decoding. Cost:
//! one pass; names and lists of fields are allocated.

use std::time::{Duration, SystemTime};

use der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use der::{Decode as _, Reader as _, SliceReader, Tag, TagNumber, Tagged as _};

/// The parts of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Start of the validity, seconds since 1970.
    pub not_before: u64,
    /// End of the validity, seconds since 1970.
    pub not_after: u64,
    /// The subject, if it is a UTF-8 common name and nothing else.
    pub common_name: Option<String>,
    /// The domains in the name constraints; `None` without any.
    pub permitted: Option<Vec<String>>,
}

/// The end of a certificate's validity; `None` for invalid data.
pub fn not_after(der: &[u8]) -> Option<SystemTime> {
    let seconds = Certificate::read(der)?.not_after;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

impl Certificate {
    /// Parses a certificate in DER; `None` if it is invalid.
    pub fn read(der: &[u8]) -> Option<Self> {
        let signed = AnyRef::decode(&mut SliceReader::new(der).ok()?).ok()?;
        let body = *parts(signed, Tag::Sequence)?.first()?;
        let mut body = parts(body, Tag::Sequence)?;
        if body.first()?.tag() == VERSION {
            body.remove(0);
        }
        // After the serial number: algorithm, issuer, validity, subject, key.
        let tags = [Tag::Integer].into_iter().chain([Tag::Sequence; 5]);
        let [_, _, _, validity, subject, _, rest @ ..] = &body[..] else {
            return None;
        };
        if !tags.eq(body.iter().take(6).map(|it| it.tag())) {
            return None;
        }
        let [not_before, not_after] = parts(*validity, Tag::Sequence)?[..] else {
            return None;
        };
        let permitted = match rest.iter().find(|it| it.tag() == EXTENSIONS) {
            Some(extensions) => permitted(*extensions)?,
            None => None,
        };
        Some(Self {
            not_before: seconds(not_before)?,
            not_after: seconds(not_after)?,
            common_name: common_name(*subject),
            permitted,
        })
    }
}

/// The common name, if the name has no other part.
fn common_name(name: AnyRef<'_>) -> Option<String> {
    let [set] = parts(name, Tag::Sequence)?[..] else {
        return None;
    };
    let [pair] = parts(set, Tag::Set)?[..] else {
        return None;
    };
    let [kind, text] = parts(pair, Tag::Sequence)?[..] else {
        return None;
    };
    let is_common_name = kind.value() == COMMON_NAME
        && kind.tag() == Tag::ObjectIdentifier
        && text.tag() == Tag::Utf8String;
    let text = std::str::from_utf8(text.value()).ok()?;
    is_common_name.then(|| text.to_owned())
}

/// The permitted domains among extensions; the inner `None` without constraints, the outer `None`
/// for damaged data.
#[expect(clippy::option_option, reason = "damaged, without constraints, with")]
fn permitted(extensions: AnyRef<'_>) -> Option<Option<Vec<String>>> {
    let all = *parts(extensions, EXTENSIONS)?.first()?;
    for extension in parts(all, Tag::Sequence)? {
        // The criticality may stand between the two.
        let [kind, .., value] = parts(extension, Tag::Sequence)?[..] else {
            return None;
        };
        if kind.tag() != Tag::ObjectIdentifier || value.tag() != Tag::OctetString {
            return None;
        }
        if kind.value() == NAME_CONSTRAINTS {
            let constraints = AnyRef::from_der(value.value()).ok()?;
            let constraints = parts(constraints, Tag::Sequence)?;
            let mut domains = Vec::new();
            if let Some(trees) = constraints.iter().find(|it| it.tag() == PERMITTED) {
                for tree in parts(*trees, PERMITTED)? {
                    let base = *parts(tree, Tag::Sequence)?.first()?;
                    if base.tag() == DNS_NAME {
                        domains.push(String::from_utf8(base.value().to_vec()).ok()?);
                    }
                }
            }
            return Some(Some(domains));
        }
    }
    Some(None)
}

/// The values inside a constructed value, which must have this tag.
fn parts(value: AnyRef<'_>, tag: Tag) -> Option<Vec<AnyRef<'_>>> {
    if value.tag() != tag {
        return None;
    }
    let mut reader = SliceReader::new(value.value()).ok()?;
    let mut parts = Vec::new();
    while !reader.is_finished() {
        parts.push(AnyRef::decode(&mut reader).ok()?);
    }
    Some(parts)
}

/// A time in seconds since 1970. `der` rejects earlier times; rustls does so too.
fn seconds(time: AnyRef<'_>) -> Option<u64> {
    let since_1970 = match time.tag() {
        Tag::UtcTime => time.decode_as::<UtcTime>().ok()?.to_unix_duration(),
        _ => time.decode_as::<GeneralizedTime>().ok()?.to_unix_duration(),
    };
    Some(since_1970.as_secs())
}

/// `[0]` in a certificate's body, and also in name constraints.
const VERSION: Tag = context_specific(0, true);
const PERMITTED: Tag = VERSION;
/// `[3]` in a certificate's body.
const EXTENSIONS: Tag = context_specific(3, true);
/// `[2]` in a GeneralName.
const DNS_NAME: Tag = context_specific(2, false);
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
/// 2.5.29.30
const NAME_CONSTRAINTS: &[u8] = &[0x55, 29, 30];

const fn context_specific(number: u32, constructed: bool) -> Tag {
    Tag::ContextSpecific {
        constructed,
        number: TagNumber(number),
    }
}

#[cfg(test)]
mod tests {
    use hashcache_http::parse_http_date;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn made(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    fn seconds(date: &'static str) -> u64 {
        let now = hashcache_http::UnixTime(0);
        parse_http_date(date.as_bytes(), now).unwrap().0
    }

    #[test]
    fn both_spellings_of_time_are_read_over_centuries() {
        for (year, month, day, date) in [
            (1970, 1, 1, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (1999, 12, 31, "Fri, 31 Dec 1999 00:00:00 GMT"),
            (2000, 2, 29, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (2024, 2, 29, "Thu, 29 Feb 2024 00:00:00 GMT"),
            (2024, 3, 1, "Fri, 01 Mar 2024 00:00:00 GMT"),
            (2049, 12, 31, "Fri, 31 Dec 2049 00:00:00 GMT"),
            (2050, 1, 1, "Sat, 01 Jan 2050 00:00:00 GMT"),
            (2100, 3, 1, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (9999, 12, 31, "Fri, 31 Dec 9999 00:00:00 GMT"),
        ] {
            let der = made(|params| params.not_after = date_time_ymd(year, month, day));
            let read = Certificate::read(&der).unwrap();
            assert_eq!(read.not_after, seconds(date), "{date}");
            // The default of `rcgen`.
            assert_eq!(read.not_before, seconds("Wed, 01 Jan 1975 00:00:00 GMT"));
            let told = not_after(&der).unwrap();
            let since = told.duration_since(SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(since.as_secs(), read.not_after);
        }
    }

    #[test]
    fn only_a_common_name_alone_is_told_as_one() {
        use rcgen::DnType;
        let der = made(|params| {
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, "Čache");
        });
        let read = Certificate::read(&der).unwrap();
        assert_eq!(read.common_name.as_deref(), Some("Čache"));
        assert_eq!(read.permitted, None);
        let der = made(|params| {
            params
                .distinguished_name
                .push(DnType::OrganizationName, "Other");
        });
        assert_eq!(Certificate::read(&der).unwrap().common_name, None);
    }

    #[test]
    fn what_is_not_tagged_as_an_object_identifier_names_no_common_name() {
        let mut der = made(|_| ());
        let subject = der.windows(5).rposition(|five| five == [6, 3, 0x55, 4, 3]);
        assert!(Certificate::read(&der).unwrap().common_name.is_some());
        der[subject.unwrap()] = 4;
        assert_eq!(Certificate::read(&der).unwrap().common_name, None);
    }

    #[test]
    fn what_is_cut_or_followed_by_more_is_no_certificate_or_the_same() {
        let der = made(|_| ());
        let whole = Certificate::read(&der).unwrap();
        for end in 0..der.len() {
            assert_eq!(Certificate::read(&der[..end]), None, "{end}");
        }
        let longer = [&der[..], b"more"].concat();
        assert_eq!(Certificate::read(&longer), Some(whole));
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let _ = Certificate::read(&bytes);
            let mut der = KNOWN.with(Vec::clone);
            let at = at.index(der.len());
            der[at] = byte;
            let _ = Certificate::read(&der);
        }
    }

    thread_local! {
        static KNOWN: Vec<u8> = made(|_| ());
    }
}
