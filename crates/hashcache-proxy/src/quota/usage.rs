//! The bytes that were used in a period, and the file that keeps them over restarts.
//!
//! `limiter` counts in [`Usage`] and writes all of them with [`encode`]. Each record has a checksum
//! of its own, so damage costs the records that it hit and no others.
//!
//! ```text
//! "HCQUOTA1" | record | record | …
//! record: key 16 | begins 8 | ends 8 | used 8 | checksum 8        numbers little-endian
//! ```
//!
//! Invariant: nothing in a file can panic or take more memory than [`SUBJECTS_MAX`] records.

use ring::digest::{SHA256, digest};

use super::period::Period;
use super::settings::Quota;
use crate::clock::zone::Zone;
use crate::share::Network;

/// What was used in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) period: Period,
    pub(super) bytes: u64,
}

impl Usage {
    /// Begins a new period if the old one is over, or if the clock was wrong in it.
    pub(super) fn roll(&mut self, unix: u64, quota: &Quota, zone: &Zone) {
        if !self.period.contains(unix) {
            self.begin(Period::around(unix, quota.period, zone));
        }
    }

    /// The same if the settings may have changed since: what was used in a day is not what was used
    /// in the week.
    pub(super) fn adjust(&mut self, unix: u64, quota: &Quota, zone: &Zone) {
        let period = Period::around(unix, quota.period, zone);
        if self.period != period {
            self.begin(period);
        }
    }

    fn begin(&mut self, period: Period) {
        *self = Self { period, bytes: 0 };
    }
}

/// Whose usage it is: a hash of the limit's name and of the client or user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SubjectKey([u8; KEY_BYTES]);

/// A client, a user, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject<'a> {
    All,
    Client(Network),
    User(&'a str),
}

impl SubjectKey {
    pub(super) fn new(limit: &str, subject: Subject<'_>) -> Self {
        // The length keeps a name from running into what follows it.
        let length = u64::try_from(limit.len()).unwrap_or(u64::MAX);
        let mut text = length.to_le_bytes().to_vec();
        text.extend_from_slice(limit.as_bytes());
        match subject {
            Subject::All => text.push(0),
            Subject::Client(Network::Address(address)) => {
                text.push(1);
                text.extend_from_slice(address.to_string().as_bytes());
            }
            Subject::Client(Network::Child(number)) => {
                text.push(2);
                text.extend_from_slice(&number.to_le_bytes());
            }
            Subject::User(name) => {
                text.push(3);
                text.extend_from_slice(name.as_bytes());
            }
        }
        Self(hash(&text))
    }
}

/// The file with these records.
pub(super) fn encode(records: &[(SubjectKey, Usage)]) -> Vec<u8> {
    let mut file = Vec::with_capacity(MAGIC.len() + records.len() * RECORD_BYTES);
    file.extend_from_slice(MAGIC);
    for (SubjectKey(key), usage) in records {
        let at = file.len();
        file.extend_from_slice(key);
        for number in [usage.period.begins, usage.period.ends, usage.bytes] {
            file.extend_from_slice(&number.to_le_bytes());
        }
        let checksum: [u8; CHECKSUM_BYTES] = hash(&file[at..]);
        file.extend_from_slice(&checksum);
    }
    file
}

/// The records of a file, and whether it is damaged.
pub(super) fn decode(file: &[u8]) -> (Vec<(SubjectKey, Usage)>, bool) {
    let Some(records) = file.strip_prefix(MAGIC) else {
        return (Vec::new(), true);
    };
    let (whole, rest) = records.as_chunks::<RECORD_BYTES>();
    let right: Vec<_> = whole.iter().take(SUBJECTS_MAX).filter_map(read).collect();
    let is_damaged = right.len() < whole.len() || !rest.is_empty();
    (right, is_damaged)
}

fn read(record: &[u8; RECORD_BYTES]) -> Option<(SubjectKey, Usage)> {
    let (record, checksum) = record.split_last_chunk::<CHECKSUM_BYTES>()?;
    if *checksum != hash::<CHECKSUM_BYTES>(record) {
        return None;
    }
    let (key, numbers) = record.split_first_chunk::<KEY_BYTES>()?;
    let (numbers, _) = numbers.as_chunks::<8>();
    let &[begins, ends, bytes] = numbers else {
        return None;
    };
    let [begins, ends, bytes] = [begins, ends, bytes].map(u64::from_le_bytes);
    let period = Period { begins, ends };
    Some((SubjectKey(*key), Usage { period, bytes }))
}

/// The first bytes of the SHA-256 hash.
fn hash<const N: usize>(text: &[u8]) -> [u8; N] {
    let hash = digest(&SHA256, text);
    let first = hash.as_ref().first_chunk::<N>();
    *first.expect("the hash has 32 bytes")
}

/// Most clients and users, over all limits, that are remembered.
pub(super) const SUBJECTS_MAX: usize = 16 << 10;
/// The longest file.
pub(super) const FILE_BYTES_MAX: usize = MAGIC.len() + SUBJECTS_MAX * RECORD_BYTES;

const MAGIC: &[u8] = b"HCQUOTA1";
const KEY_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 8;
const RECORD_BYTES: usize = KEY_BYTES + 3 * 8 + CHECKSUM_BYTES;

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn records() -> Vec<(SubjectKey, Usage)> {
        let subjects = [
            Subject::All,
            Subject::User("anna"),
            Subject::User("bert"),
            Subject::Client(Network::Child(7)),
            Subject::Client(Network::of(IpAddr::from([192, 0, 2, 1]))),
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
        assert_eq!(file.len(), 8 + 5 * 48);
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
            let whole = length.saturating_sub(8) / 48;
            assert_eq!(read, records[..whole], "{length}");
        }
    }

    #[test]
    fn no_two_subjects_share_a_key() {
        let named = |limit: &str, name: &str| SubjectKey::new(limit, Subject::User(name));
        assert_ne!(named("a", "bc"), named("ab", "c"));
        assert_ne!(named("a", "192.0.2.1"), {
            let client = Network::of(IpAddr::from([192, 0, 2, 1]));
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
            let network = Network::of(address.parse().unwrap());
            SubjectKey::new("day", Subject::Client(network))
        };
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:ffff:ffff:ffff"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
    }
}
