//! The record of one hour: 4096 bytes under a checksum.
//!
//! Written and read by `file`. docs/FORMAT.md has the table.
//!
//! Invariant: bytes that the checksum does not cover as a whole are no record, and a record counts
//! only at the place of its hour.

use super::counts::{Counts, Kind, KindCounts, Table, Totals};
use super::name::{NAME_BYTES, Name};

/// Bytes of a record, and of the part of a disk that is written at once.
pub(super) const RECORD_BYTES: usize = 4096;
/// Sites, and clients, that a record has lines for.
pub const NAMES: usize = 16;

/// Hours since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hour(pub u32);

impl Hour {
    /// The hour of a time in seconds since 1970.
    pub fn of(seconds: u64) -> Self {
        Self(u32::try_from(seconds / 3600).unwrap_or(u32::MAX))
    }

    /// Its first second, since 1970.
    pub fn start_seconds(self) -> u64 {
        u64::from(self.0) * 3600
    }
}

/// What was counted in one hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HourRecord {
    /// The hour.
    pub hour: Hour,
    /// In all.
    pub totals: Totals,
    /// The sites with most bytes.
    pub sites: Lines,
    /// The clients with most bytes.
    pub clients: Lines,
}

/// The largest lines of a table, and the rest as one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// At most [`NAMES`], the largest first.
    pub named: Vec<(Name, Counts)>,
    /// All others.
    pub rest: Counts,
}

impl Lines {
    pub(super) fn of(table: &Table<Name>) -> Self {
        let (named, rest) = table.top(NAMES);
        Self { named, rest }
    }

    /// Adds these lines to a table.
    pub fn add_to(&self, table: &mut Table<Name>) {
        for (name, counts) in &self.named {
            table.add(*name, counts);
        }
        table.add_rest(&self.rest);
    }
}

impl HourRecord {
    pub(super) fn to_bytes(&self) -> Box<[u8; RECORD_BYTES]> {
        let mut bytes = Box::new([0; RECORD_BYTES]);
        let mut at = Put {
            bytes: &mut bytes[..],
            at: CHECKED,
        };
        let names = |lines: &Lines| u8::try_from(lines.named.len().min(NAMES)).unwrap_or_default();
        at.put(&VERSION.to_le_bytes());
        at.put(&[names(&self.sites), names(&self.clients)]);
        at.put(&self.hour.0.to_le_bytes());
        at.put_numbers(&[self.totals.client_bytes, self.totals.origin_bytes]);
        for kind in &self.totals.kinds {
            at.put_numbers(&[kind.requests, kind.bytes]);
        }
        for lines in [&self.sites, &self.clients] {
            at.put_numbers(&lines.rest.fields());
        }
        for lines in [&self.sites, &self.clients] {
            for (name, counts) in lines.named.iter().take(NAMES) {
                at.put(&name.to_bytes());
                at.put_numbers(&counts.fields());
            }
        }
        let checksum = crc32c::crc32c(&bytes[CHECKED..]);
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..CHECKED].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// `None`: these bytes are no whole record.
    pub(super) fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let (head, checked) = bytes.split_at(CHECKED);
        let checksum = crc32c::crc32c(checked).to_le_bytes();
        if head[..4] != MAGIC[..] || head[4..] != checksum {
            return None;
        }
        let mut at = Take { rest: checked };
        let version = u16::from_le_bytes(at.take()?);
        let [sites, clients] = at.take::<2>()?.map(usize::from);
        if version != VERSION || sites > NAMES || clients > NAMES {
            return None;
        }
        let hour = Hour(u32::from_le_bytes(at.take()?));
        let [client_bytes, origin_bytes] = at.numbers()?;
        let mut kinds = [KindCounts::default(); Kind::ALL.len()];
        for kind in &mut kinds {
            let [requests, bytes] = at.numbers()?;
            *kind = KindCounts { requests, bytes };
        }
        let rests = [at.numbers()?, at.numbers()?].map(Counts::from_fields);
        let [sites, clients] = [(sites, rests[0]), (clients, rests[1])].map(|(count, rest)| {
            let mut named = Vec::with_capacity(count);
            for _ in 0..count {
                let name = Name::from_bytes(&at.take()?)?;
                named.push((name, Counts::from_fields(at.numbers()?)));
            }
            Some(Lines { named, rest })
        });
        let totals = Totals {
            client_bytes,
            origin_bytes,
            kinds,
        };
        Some(Self {
            hour,
            totals,
            sites: sites?,
            clients: clients?,
        })
    }
}

/// Writes fields one after another.
struct Put<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Put<'_> {
    fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    fn put_numbers(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.put(&number.to_le_bytes());
        }
    }
}

/// Reads fields one after another.
struct Take<'a> {
    rest: &'a [u8],
}

impl Take<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*field)
    }

    fn numbers<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = u64::from_le_bytes(self.take()?);
        }
        Some(numbers)
    }
}

const MAGIC: &[u8; 4] = b"HCho";
const VERSION: u16 = 1;
/// Where the part begins that the checksum covers.
const CHECKED: usize = 8;

/// All lines fit: head, totals, two rests and two times [`NAMES`] lines.
const _: () = {
    let counts = 7 * 8;
    let totals = 16 + Kind::ALL.len() * 16;
    let lines = 2 * NAMES * (1 + NAME_BYTES + counts);
    assert!(CHECKED + 8 + totals + 2 * counts + lines <= RECORD_BYTES);
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn full() -> HourRecord {
        let lines = |begin: u64| Lines {
            named: (0..NAMES as u64)
                .map(|n| {
                    let name = Name::of(format_args!("{n}.{}.test", "x".repeat(60)));
                    (name, Counts::from_fields([begin + n; 7]))
                })
                .collect(),
            rest: Counts::from_fields([begin, 1, 2, 3, 4, 5, u64::MAX]),
        };
        let mut totals = Totals {
            client_bytes: u64::MAX,
            origin_bytes: 7,
            ..Totals::default()
        };
        totals.add(Kind::Memory, 5);
        totals.add(Kind::Tunnel, 6);
        HourRecord {
            hour: Hour(498_000),
            totals,
            sites: lines(100),
            clients: lines(200),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let empty = HourRecord {
            hour: Hour(1),
            totals: Totals::default(),
            sites: Lines::default(),
            clients: Lines::default(),
        };
        for record in [full(), empty] {
            assert_eq!(HourRecord::from_bytes(&record.to_bytes()), Some(record));
        }
    }

    #[test]
    fn a_record_with_one_wrong_bit_is_none() {
        let bytes = full().to_bytes();
        for at in (0..RECORD_BYTES).step_by(7).chain(0..16) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert_eq!(HourRecord::from_bytes(&damaged), None, "{at}");
        }
        assert_eq!(HourRecord::from_bytes(&[0; RECORD_BYTES]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_under_a_right_checksum_are_read_without_a_panic(
            head in proptest::collection::vec(any::<u8>(), 400),
            lines in 0_u8..20,
        ) {
            let mut bytes = full().to_bytes();
            bytes[CHECKED..CHECKED + 400].copy_from_slice(&head);
            bytes[CHECKED..CHECKED + 4].copy_from_slice(&[1, 0, lines, lines]);
            let checksum = crc32c::crc32c(&bytes[CHECKED..]);
            bytes[4..CHECKED].copy_from_slice(&checksum.to_le_bytes());
            let read = HourRecord::from_bytes(&bytes);
            prop_assert!(read.is_none_or(|it| it.sites.named.len() <= NAMES));
        }
    }

    #[test]
    fn a_record_whose_checksum_is_right_may_still_be_wrong() {
        let mut bytes = full().to_bytes();
        bytes[CHECKED + 2] = u8::try_from(NAMES + 1).unwrap();
        let checksum = crc32c::crc32c(&bytes[CHECKED..]);
        bytes[4..CHECKED].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(HourRecord::from_bytes(&bytes), None);
    }
}
