//! What must be known of a certificate beyond what `rustls` tells: how long it holds, by what name
//! it goes, for which domains an authority may vouch (RFC 5280, section 4.1).
//!
//! Called by `authority` for its own certificates, and for those of origins, whose end ours must
//! not outlive. Nothing here judges a certificate: `rustls` does.
//!
//! Invariant: no bytes whatever make it panic or read beyond their end. Cost: one pass, no copy but
//! of the names.

use std::time::{Duration, SystemTime};

/// What was looked for in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    /// From when on it holds, seconds since 1970.
    pub(crate) not_before: u64,
    /// Until when it holds, seconds since 1970.
    pub(crate) not_after: u64,
    /// The subject, where it is a common name in UTF-8 and nothing else.
    pub(crate) common_name: Option<String>,
    /// The domains to which its name constraints keep what it signs; `None` without any.
    pub(crate) permitted: Option<Vec<String>>,
}

/// Until when a certificate holds; `None` for what is no certificate.
pub(crate) fn not_after(der: &[u8]) -> Option<SystemTime> {
    let seconds = Certificate::read(der)?.not_after;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

impl Certificate {
    /// Reads a certificate in DER; `None` for what is none.
    pub(crate) fn read(der: &[u8]) -> Option<Self> {
        let mut signed = DerReader(DerReader(der).take(SEQUENCE)?);
        let mut body = DerReader(signed.take(SEQUENCE)?);
        body.take_if(VERSION);
        body.take(INTEGER)?;
        let (_algorithm, _issuer) = (body.take(SEQUENCE)?, body.take(SEQUENCE)?);
        let mut validity = DerReader(body.take(SEQUENCE)?);
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        let common_name = common_name(body.take(SEQUENCE)?);
        let _key = body.take(SEQUENCE)?;
        while let Some((tag, _)) = body.peek()
            && tag != EXTENSIONS
        {
            body.next()?;
        }
        let permitted = match body.take_if(EXTENSIONS) {
            Some(extensions) => permitted(extensions)?,
            None => None,
        };
        Some(Self {
            not_before,
            not_after,
            common_name,
            permitted,
        })
    }
}

/// The common name, if the name is made of nothing else.
fn common_name(name: &[u8]) -> Option<String> {
    let mut name = DerReader(name);
    let mut set = DerReader(name.take(SET)?);
    let mut pair = DerReader(set.take(SEQUENCE)?);
    let is_common_name = pair.take(OBJECT_IDENTIFIER)? == COMMON_NAME;
    let text = pair.take(UTF8_STRING)?;
    let is_all = name.0.is_empty() && set.0.is_empty();
    let text = std::str::from_utf8(text).ok()?;
    (is_common_name && is_all).then(|| text.to_owned())
}

/// The permitted domains among extensions; the inner `None` where there are no constraints, the
/// outer one where something is damaged.
#[expect(clippy::option_option, reason = "damaged, without constraints, with")]
fn permitted(extensions: &[u8]) -> Option<Option<Vec<String>>> {
    let mut all = DerReader(DerReader(extensions).take(SEQUENCE)?);
    while !all.0.is_empty() {
        let mut extension = DerReader(all.take(SEQUENCE)?);
        let is_wanted = extension.take(OBJECT_IDENTIFIER)? == NAME_CONSTRAINTS;
        extension.take_if(BOOLEAN);
        let value = extension.take(OCTET_STRING)?;
        if is_wanted {
            let mut constraints = DerReader(DerReader(value).take(SEQUENCE)?);
            let mut trees = DerReader(constraints.take_if(PERMITTED).unwrap_or_default());
            let mut domains = Vec::new();
            while !trees.0.is_empty() {
                if let Some(domain) = DerReader(trees.take(SEQUENCE)?).take_if(DNS_NAME) {
                    domains.push(String::from_utf8(domain.to_vec()).ok()?);
                }
            }
            return Some(Some(domains));
        }
    }
    Some(None)
}

/// What is left of a DER encoding (ITU-T X.690, section 8.1).
struct DerReader<'a>(&'a [u8]);

impl<'a> DerReader<'a> {
    /// Tag and content of the next value, which stays.
    fn peek(&self) -> Option<(u8, &'a [u8])> {
        DerReader(self.0).next()
    }

    /// Tag and content of the next value.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let length = match first {
            0..=0x7f => usize::from(first),
            // Up to 16 MiB; the indefinite form (0x80) is not DER.
            0x81..=0x83 => {
                let (length, more) = rest.split_at_checked(usize::from(first & 0x7f))?;
                rest = more;
                length
                    .iter()
                    .fold(0, |all, byte| all << 8 | usize::from(*byte))
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// The content of the next value, which must have this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (is, content) = self.next()?;
        (is == tag).then_some(content)
    }

    /// The content of the next value if it has this tag.
    fn take_if(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (is, _) = self.peek()?;
        if is == tag { self.take(tag) } else { None }
    }

    /// A time, seconds since 1970; what lies before is 0.
    fn time(&mut self) -> Option<u64> {
        let (tag, text) = self.next()?;
        let (year, rest) = match tag {
            UTC_TIME => {
                let (year, rest) = text.split_at_checked(2)?;
                let year = number(year)?;
                // RFC 5280, section 4.1.2.5.1.
                (if year < 50 { 2000 + year } else { 1900 + year }, rest)
            }
            GENERALIZED_TIME => {
                let (year, rest) = text.split_at_checked(4)?;
                (number(year)?, rest)
            }
            _ => return None,
        };
        let rest = rest.strip_suffix(b"Z")?;
        if rest.len() != 10 {
            return None;
        }
        let mut parts = rest.chunks(2).map(number);
        let mut part = || parts.next().flatten();
        let (month, day, hour, minute, second) = (part()?, part()?, part()?, part()?, part()?);
        let is_date = (1..=12).contains(&month) && (1..=31).contains(&day);
        if !is_date || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let days = days(year, month, day);
        Some(days * 86_400 + hour * 3600 + minute * 60 + second)
    }
}

/// The number that digits make.
fn number(digits: &[u8]) -> Option<u64> {
    let digit = |all: Option<u64>, byte: &u8| {
        let digit = u64::from(byte.checked_sub(b'0').filter(|digit| *digit < 10)?);
        Some(all? * 10 + digit)
    };
    digits.iter().fold(Some(0), digit)
}

/// Days from 1970-01-01 to a day of the Gregorian calendar; 0 for what is before.
fn days(year: u64, month: u64, day: u64) -> u64 {
    // Years that begin in March end with the day that some years have more.
    let (year, month) = if month < 3 {
        (year.saturating_sub(1), month + 9)
    } else {
        (year, month - 3)
    };
    let leap_days = (year / 4 + year / 400).saturating_sub(year / 100);
    let days = year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1;
    days.saturating_sub(DAYS_TO_1970)
}

/// From March 1 of the year 0.
const DAYS_TO_1970: u64 = 719_468;

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// `[0]` of a certificate's body, constructed; of name constraints likewise.
const VERSION: u8 = 0xa0;
const PERMITTED: u8 = 0xa0;
/// `[3]` of a certificate's body, constructed.
const EXTENSIONS: u8 = 0xa3;
/// `[2]` of a GeneralName, primitive.
const DNS_NAME: u8 = 0x82;
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
/// 2.5.29.30
const NAME_CONSTRAINTS: &[u8] = &[0x55, 29, 30];

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
            // What `rcgen` writes unless told otherwise.
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
