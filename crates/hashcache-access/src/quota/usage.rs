//! The bytes that were used in a period, and the file that keeps them over restarts.
//!
//! `limiter` counts in [`Usage`] and writes all usage with [`encode`]. Each record has a separate
//! checksum, so damage costs only the damaged records.
//!
//! ```text
//! "HCQUOTA1" | record | record | …
//! record: limit 8 | subject 16 | begins 8 | ends 8 | used 8 | checksum 8
//! ```
//!
//! Invariants: no file content can cause a panic or take more memory than [`RECORDS_MAX`] records.
//! Usage falls only when a later period starts: not when the clock is set back.

use hashcache_base::clock::zone::Zone;
use hashcache_base::share::Network;
use ring::digest::{SHA256, digest};

use super::period::Period;
use super::settings::Quota;

/// The bytes that were used in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) period: Period,
    pub(super) bytes: u64,
}

impl Usage {
    /// Moves to the period around this moment if the current period does not contain it.
    pub(super) fn roll(&mut self, unix: u64, quota: &Quota, zone: &Zone) {
        if !self.period.contains(unix) {
            self.go_to(Period::around(unix, quota.period, zone));
        }
    }

    /// As [`roll`](Self::roll), but for settings or a time zone that may have changed since: a
    /// period that contains the moment may be a wrong period.
    pub(super) fn adjust(&mut self, unix: u64, quota: &Quota, zone: &Zone) {
        self.go_to(Period::around(unix, quota.period, zone));
    }

    /// Bytes from before the new period are removed. Other bytes still count: bytes from a day when
    /// the period changes to a week, and bytes from a time that a clock shows again because it was
    /// set back.
    fn go_to(&mut self, period: Period) {
        if self.period.begins < period.begins {
            self.bytes = 0;
        }
        self.period = period;
    }

    /// The bytes, or 0 if they were used in a period that is over.
    pub(super) fn current_bytes(&self, unix: u64) -> u64 {
        if unix < self.period.ends {
            self.bytes
        } else {
            0
        }
    }

    /// Takes the usage in the later period; for the same period, the larger usage.
    pub(super) fn raise_to(&mut self, other: Self) {
        if self.period.ends < other.period.ends {
            *self = other;
        } else if self.period.ends == other.period.ends {
            self.bytes = self.bytes.max(other.bytes);
        }
    }
}

/// The key of a usage record: hashes of the limit's name and of the client or user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SubjectKey {
    pub(super) limit: LimitHash,
    subject: [u8; SUBJECT_BYTES],
}

/// A hash of a limit's name.
pub(super) type LimitHash = [u8; LIMIT_BYTES];

/// A client, a user, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject<'a> {
    All,
    Client(Network),
    User(&'a str),
}

impl SubjectKey {
    pub(super) fn new(limit: &str, subject: Subject<'_>) -> Self {
        let mut text = Vec::new();
        match subject {
            Subject::All => text.push(0),
            Subject::Client(Network::Address(address)) => {
                text.push(1);
                text.extend_from_slice(address.to_string().as_bytes());
            }
            // A child cannot multiply its quota by numbering its clients.
            Subject::Client(Network::Child(number) | Network::ChildClient(number, _)) => {
                text.push(2);
                text.extend_from_slice(&number.to_le_bytes());
            }
            Subject::User(name) => {
                text.push(3);
                text.extend_from_slice(name.as_bytes());
            }
        }
        Self {
            limit: hash(limit.as_bytes()),
            subject: hash(&text),
        }
    }

    /// The key for the usage that forgotten clients and users had of a limit.
    pub(super) const fn of_forgotten(limit: LimitHash) -> Self {
        Self {
            limit,
            subject: FORGOTTEN,
        }
    }

    pub(super) fn is_of_forgotten(&self) -> bool {
        self.subject == FORGOTTEN
    }
}

/// Encodes a file with these records.
pub(super) fn encode(records: &[(SubjectKey, Usage)]) -> Vec<u8> {
    let mut file = Vec::with_capacity(MAGIC.len() + records.len() * RECORD_BYTES);
    file.extend_from_slice(MAGIC);
    for (SubjectKey { limit, subject }, usage) in records {
        let at = file.len();
        file.extend_from_slice(limit);
        file.extend_from_slice(subject);
        for number in [usage.period.begins, usage.period.ends, usage.bytes] {
            file.extend_from_slice(&number.to_le_bytes());
        }
        let checksum: [u8; CHECKSUM_BYTES] = hash(&file[at..]);
        file.extend_from_slice(&checksum);
    }
    file
}

/// The records in a file, and true if the file is damaged.
pub(super) fn decode(file: &[u8]) -> (Vec<(SubjectKey, Usage)>, bool) {
    let Some(records) = file.strip_prefix(MAGIC) else {
        return (Vec::new(), true);
    };
    let (whole, rest) = records.as_chunks::<RECORD_BYTES>();
    let right: Vec<_> = whole.iter().take(RECORDS_MAX).filter_map(read).collect();
    let is_damaged = right.len() < whole.len() || !rest.is_empty();
    (right, is_damaged)
}

fn read(record: &[u8; RECORD_BYTES]) -> Option<(SubjectKey, Usage)> {
    let (record, checksum) = record.split_last_chunk::<CHECKSUM_BYTES>()?;
    if *checksum != hash::<CHECKSUM_BYTES>(record) {
        return None;
    }
    let (&limit, record) = record.split_first_chunk::<LIMIT_BYTES>()?;
    let (&subject, numbers) = record.split_first_chunk::<SUBJECT_BYTES>()?;
    let (numbers, _) = numbers.as_chunks::<8>();
    let &[begins, ends, bytes] = numbers else {
        return None;
    };
    let [begins, ends, bytes] = [begins, ends, bytes].map(u64::from_le_bytes);
    let period = Period { begins, ends };
    Some((SubjectKey { limit, subject }, Usage { period, bytes }))
}

/// The first bytes of the SHA-256 hash.
fn hash<const N: usize>(text: &[u8]) -> [u8; N] {
    let hash = digest(&SHA256, text);
    let first = hash.as_ref().first_chunk::<N>();
    *first.expect("the hash has 32 bytes")
}

/// Most records in a file. More clients and users than [`SUBJECTS_MAX`] are remembered only while
/// they all have requests in progress, and the limits on connections keep that number far below
/// this.
///
/// [`SUBJECTS_MAX`]: super::limiter
pub(super) const RECORDS_MAX: usize = 64 << 10;
/// The longest file.
pub(super) const FILE_BYTES_MAX: usize = MAGIC.len() + RECORDS_MAX * RECORD_BYTES;

const MAGIC: &[u8] = b"HCQUOTA1";
const LIMIT_BYTES: usize = 8;
const SUBJECT_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 8;
const RECORD_BYTES: usize = LIMIT_BYTES + SUBJECT_BYTES + 3 * 8 + CHECKSUM_BYTES;
/// In practice, no hash has this value.
const FORGOTTEN: [u8; SUBJECT_BYTES] = [0; SUBJECT_BYTES];

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::settings::{QuotaEnd, QuotaPeriod};
    use super::*;

    fn records() -> Vec<(SubjectKey, Usage)> {
        let subjects = [
            Subject::All,
            Subject::User("anna"),
            Subject::User("bert"),
            Subject::Client(Network::Child(7)),
            Subject::Client(Network::containing(IpAddr::from([192, 0, 2, 1]))),
        ];
        let records = subjects.iter().zip(1..).map(|(subject, number)| {
            let period = Period {
                begins: number,
                ends: number * 1000,
            };
            let bytes = u64::MAX / number;
            (SubjectKey::new("day", *subject), Usage { period, bytes })
        });
        records.collect()
    }

    #[test]
    fn a_file_gives_back_what_was_written() {
        let records = records();
        let file = encode(&records);
        assert_eq!(file.len(), 8 + 5 * 56);
        assert_eq!(decode(&file), (records, false));
        assert_eq!(decode(&encode(&[])), (vec![], false));
    }

    #[test]
    fn a_changed_bit_costs_one_record_and_a_cut_file_the_last_one() {
        let records = records();
        let file = encode(&records);
        for bit in 0..file.len() * 8 {
            let mut changed = file.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let (read, is_damaged) = decode(&changed);
            assert!(is_damaged, "{bit}");
            let lost = match bit / 8 {
                0..8 => records.len(),
                _ => 1,
            };
            assert_eq!(read.len(), records.len() - lost, "{bit}");
            assert!(read.iter().all(|record| records.contains(record)), "{bit}");
        }
        for length in 0..file.len() {
            let (read, _) = decode(&file[..length]);
            let whole = length.saturating_sub(8) / 56;
            assert_eq!(read, records[..whole], "{length}");
        }
    }

    #[test]
    fn usage_falls_only_when_a_later_period_begins() {
        let zone = Zone::default();
        let quota = |period| Quota {
            bytes: 1,
            period,
            end: QuotaEnd::Refuse,
        };
        let [day, week, month] = [QuotaPeriod::Day, QuotaPeriod::Week, QuotaPeriod::Month];
        // 2026-11-27, a Friday, 12:00.
        let noon = 1_795_780_800;
        const DAY: u64 = 86_400;
        let friday = || {
            let mut usage = Usage::default();
            usage.roll(noon, &quota(day), &zone);
            usage.bytes = 7;
            usage
        };
        let (mut usage, before) = (friday(), friday());
        usage.roll(noon + DAY / 2 - 1, &quota(day), &zone);
        assert_eq!(usage, before);
        // The clock is set back over midnight, and comes to this day again.
        usage.roll(noon - DAY, &quota(day), &zone);
        assert_eq!((usage.bytes, usage.period.ends), (7, noon - DAY / 2));
        usage.roll(noon, &quota(day), &zone);
        assert_eq!(usage.bytes, 0);
        // The day lies in its week and its month; the month does not lie in the day.
        let mut usage = friday();
        usage.adjust(noon, &quota(week), &zone);
        usage.adjust(noon, &quota(month), &zone);
        assert_eq!(usage.bytes, 7);
        usage.adjust(noon, &quota(day), &zone);
        assert_eq!(usage, Usage { bytes: 0, ..before });
        assert_eq!(before.current_bytes(noon + DAY / 2 - 1), 7);
        assert_eq!(before.current_bytes(noon + DAY / 2), 0);
        let mut raised = before;
        raised.raise_to(Usage { bytes: 3, ..before });
        assert_eq!(raised.bytes, 7);
        let mut tomorrow = Usage::default();
        tomorrow.roll(noon + DAY, &quota(day), &zone);
        tomorrow.bytes = 2;
        raised.raise_to(tomorrow);
        raised.raise_to(before);
        assert_eq!(raised, tomorrow);
    }

    #[test]
    fn no_two_subjects_share_a_key() {
        let named = |limit: &str, name: &str| SubjectKey::new(limit, Subject::User(name));
        assert_ne!(named("a", "bc"), named("ab", "c"));
        assert_ne!(named("a", "192.0.2.1"), {
            let client = Network::containing(IpAddr::from([192, 0, 2, 1]));
            SubjectKey::new("a", Subject::Client(client))
        });
        let mut keys: Vec<SubjectKey> = records().iter().map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), records().len());
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_subject() {
        let key = |address: &str| {
            let network = Network::containing(address.parse().unwrap());
            SubjectKey::new("day", Subject::Client(network))
        };
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:ffff:ffff:ffff"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
    }
}
