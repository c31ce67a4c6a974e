//! The record of one hour: 4096 bytes under a checksum.
//!
//! Written and read by `file`. docs/FORMAT.md has the table.
//!
//! Invariants: bytes that the checksum does not match are not a record, and a record is valid only
//! at the place of the hour that it names. A record loses no count: lines without room are added to
//! the rest.

use super::counts::{By, Counts, Kind, KindCounts, Table, Totals};
use super::name::{NAME_BYTES, Name};

/// Size of a record, and of the part of a disk that is written at once.
pub(super) const RECORD_BYTES: usize = 4096;
/// Maximum lines of a record for sites; and for clients, networks and users each.
pub const NAMES: usize = 32;

/// Hours since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hour(pub u32);

impl Hour {
    /// Returns the hour for a time in seconds since 1970.
    pub fn from_seconds(seconds: u64) -> Self {
        Self(u32::try_from(seconds / 3600).unwrap_or(u32::MAX))
    }

    /// Returns the hour's first second, since 1970.
    pub fn start_seconds(self) -> u64 {
        u64::from(self.0) * 3600
    }
}

/// Counts for one hour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HourRecord {
    /// The hour.
    pub hour: Hour,
    /// Totals.
    pub totals: Totals,
    /// Names with the most bytes, in the order of [`By::ALL`].
    pub lines: [Lines; By::ALL.len()],
}

/// A table's largest lines, and the sum of the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// At most [`NAMES`] lines, the largest first.
    pub named: Vec<(Name, Counts)>,
    /// Sum over all other lines.
    pub rest: Counts,
}

impl Lines {
    pub(super) fn from_table(table: &Table<Name>) -> Self {
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

    /// Adds all lines after the first `most` to the rest.
    fn cut(&mut self, most: usize) {
        for (_, counts) in self.named.drain(most.min(self.named.len())..) {
            self.rest.add(&counts);
        }
    }
}

impl HourRecord {
    /// Returns the lines for sites, clients, networks or users.
    pub fn of(&self, by: By) -> &Lines {
        &self.lines[by as usize]
    }

    /// Removes users and clients' addresses.
    pub(super) fn forget_persons(&mut self) {
        for by in By::ALL.into_iter().filter(|by| by.is_personal()) {
            self.lines[by as usize] = Lines::default();
        }
    }

    pub(super) fn to_bytes(&self) -> Box<[u8; RECORD_BYTES]> {
        let mut lines = self.lines.clone();
        let most = fitting(&lines);
        lines
            .iter_mut()
            .zip(most)
            .for_each(|(it, most)| it.cut(most));
        let mut bytes = Box::new([0; RECORD_BYTES]);
        let mut at = Put {
            bytes: &mut bytes[..],
            at: CHECKED,
        };
        at.put(&VERSION.to_le_bytes());
        at.put(&most.map(|most| u8::try_from(most).unwrap_or_default()));
        at.put(&[0; 2]);
        at.put(&self.hour.0.to_le_bytes());
        at.put_numbers(&[self.totals.client_bytes, self.totals.origin_bytes]);
        for kind in &self.totals.kinds {
            at.put_numbers(&[kind.requests, kind.bytes]);
        }
        for lines in &lines {
            at.put_numbers(&lines.rest.fields());
        }
        for line in lines.iter().flat_map(|lines| &lines.named) {
            at.put(&line_bytes(line));
        }
        let checksum = crc32c::crc32c(&bytes[CHECKED..]);
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..CHECKED].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a record; `None` if these bytes are not a complete record.
    pub(super) fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let (head, checked) = bytes.split_at(CHECKED);
        let checksum = crc32c::crc32c(checked).to_le_bytes();
        if head[..4] != MAGIC[..] || head[4..] != checksum {
            return None;
        }
        let mut at = Take { rest: checked };
        let version = u16::from_le_bytes(at.take()?);
        let counts = at.take::<{ By::ALL.len() }>()?.map(usize::from);
        let reserved = at.take::<2>()?;
        if version != VERSION || reserved != [0; 2] || counts.iter().any(|count| *count > NAMES) {
            return None;
        }
        let hour = Hour(u32::from_le_bytes(at.take()?));
        let [client_bytes, origin_bytes] = at.numbers()?;
        let mut kinds = [KindCounts::default(); Kind::ALL.len()];
        for kind in &mut kinds {
            let [requests, bytes] = at.numbers()?;
            *kind = KindCounts { requests, bytes };
        }
        let mut lines: [Lines; By::ALL.len()] = Default::default();
        for lines in &mut lines {
            lines.rest = Counts::from_fields(at.numbers()?);
        }
        for (lines, count) in lines.iter_mut().zip(counts) {
            for _ in 0..count {
                lines.named.push(at.line()?);
            }
        }
        let totals = Totals {
            client_bytes,
            origin_bytes,
            kinds,
        };
        Some(Self {
            hour,
            totals,
            lines,
        })
    }
}

/// Returns how many lines of each kind fit in a record. The largest lines of all kinds are placed
/// first, so that long names of one kind do not take room from the largest of another kind.
fn fitting(lines: &[Lines; By::ALL.len()]) -> [usize; By::ALL.len()] {
    let mut free = RECORD_BYTES - LINES_AT;
    let mut counts = [0; By::ALL.len()];
    for rank in 0..NAMES {
        for (lines, count) in lines.iter().zip(&mut counts) {
            // After a line without room, smaller lines of this kind are not placed either.
            let next = lines.named.get(rank).filter(|_| *count == rank);
            let Some(line) = next.map(line_bytes).filter(|line| line.len() <= free) else {
                continue;
            };
            free -= line.len();
            *count += 1;
        }
    }
    counts
}

/// Encodes a line: the name's length, the name, and the counts with seven bits per byte (LEB128).
fn line_bytes((name, counts): &(Name, Counts)) -> Vec<u8> {
    let name = name.used();
    let mut line = Vec::with_capacity(LINE_BYTES);
    line.push(u8::try_from(name.len()).unwrap_or_default());
    line.extend_from_slice(name);
    for mut number in counts.fields() {
        while number >= 0x80 {
            line.push(0x80 | number.to_le_bytes()[0]);
            number >>= 7;
        }
        line.push(number.to_le_bytes()[0]);
    }
    line
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

impl<'a> Take<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*field)
    }

    fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (slice, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(slice)
    }

    fn numbers<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = u64::from_le_bytes(self.take()?);
        }
        Some(numbers)
    }

    fn line(&mut self) -> Option<(Name, Counts)> {
        let [length] = self.take()?;
        let name = Name::stored(self.slice(length.into())?)?;
        let mut fields = [0; Counts::FIELDS];
        for field in &mut fields {
            *field = self.short_number()?;
        }
        Some((name, Counts::from_fields(fields)))
    }

    /// Reads a number with seven bits per byte; `None` if it has more than 64 bits.
    fn short_number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take()?;
            let bits = u64::from(byte & 0x7f);
            if bits.leading_zeros() < shift {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

const MAGIC: &[u8; 4] = b"HCho";
const VERSION: u16 = 1;
/// Offset at which the checksum's coverage starts.
const CHECKED: usize = 8;
/// Offset at which the lines start: after head, totals, kinds and rests.
const LINES_AT: usize =
    CHECKED + 12 + 16 + Kind::ALL.len() * 16 + By::ALL.len() * Counts::FIELDS * 8;
/// Longest line, bytes.
const LINE_BYTES: usize = 1 + NAME_BYTES + Counts::FIELDS * 10;

/// A record has room for at least seven lines of each kind, whatever they contain.
const _: () = assert!(LINES_AT + By::ALL.len() * 7 * LINE_BYTES <= RECORD_BYTES);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Lines with long names and `number` in each count.
    fn lines(number: u64) -> Lines {
        let line = |n: usize| {
            let name = Name::new(format_args!("{n}.{}.test", "x".repeat(60)));
            (name, Counts::from_fields([number; Counts::FIELDS]))
        };
        Lines {
            named: (0..NAMES).map(line).collect(),
            rest: Counts::from_fields([number, 1, 2, 3, 4, 5, 6]),
        }
    }

    fn full(number: u64) -> HourRecord {
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
            lines: [100, 200, 300, number].map(lines),
        }
    }

    /// As many lines as people have in an hour: 32 sites, clients and users of three networks.
    fn usual() -> HourRecord {
        let lines = |count: usize, name: fn(usize) -> String| {
            let line = |n| {
                let counts = [900, 700, 41_000_000, 12_000_000, 3, 200, 9_000_000];
                (Name::new(name(n)), Counts::from_fields(counts))
            };
            Lines {
                named: (0..count).map(line).collect(),
                rest: Counts::default(),
            }
        };
        HourRecord {
            lines: [
                lines(NAMES, |n| format!("www{n}.example.org")),
                lines(NAMES, |n| format!("10.1.0.{n}")),
                lines(3, |n| format!("10.1.{n}.0/24")),
                lines(NAMES, |n| format!("pupil{n}")),
            ],
            ..full(0)
        }
    }

    fn read(record: &HourRecord) -> HourRecord {
        HourRecord::from_bytes(&record.to_bytes()).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        for record in [HourRecord::default(), usual()] {
            assert_eq!(read(&record), record);
        }
    }

    #[test]
    fn lines_without_room_are_in_the_rest() {
        for number in [0, 127, 128, u64::MAX >> 8, u64::MAX] {
            let (record, read) = (full(number), read(&full(number)));
            assert_eq!((read.hour, read.totals), (record.hour, record.totals));
            for (written, read) in record.lines.iter().zip(&read.lines) {
                let kept = read.named.len();
                assert!((7..NAMES).contains(&kept), "{kept}");
                assert_eq!(read.named, written.named[..kept]);
                let mut rest = written.rest;
                written.named[kept..]
                    .iter()
                    .for_each(|(_, it)| rest.add(it));
                assert_eq!(read.rest, rest);
            }
        }
    }

    #[test]
    fn a_record_with_one_wrong_bit_is_none() {
        let bytes = full(u64::MAX).to_bytes();
        for at in (0..RECORD_BYTES).step_by(7).chain(0..16) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert_eq!(HourRecord::from_bytes(&damaged), None, "{at}");
        }
        assert_eq!(HourRecord::from_bytes(&[0; RECORD_BYTES]), None);
    }

    fn sign(bytes: &mut [u8; RECORD_BYTES]) {
        let checksum = crc32c::crc32c(&bytes[CHECKED..]);
        bytes[4..CHECKED].copy_from_slice(&checksum.to_le_bytes());
    }

    proptest! {
        #[test]
        fn any_bytes_under_a_right_checksum_are_read_without_a_panic(
            content in proptest::collection::vec(any::<u8>(), 600),
            begin in CHECKED..LINES_AT,
            counts in any::<[u8; 4]>(),
        ) {
            let mut bytes = full(u64::MAX).to_bytes();
            bytes[begin..begin + 600].copy_from_slice(&content);
            bytes[CHECKED..CHECKED + 2].copy_from_slice(&VERSION.to_le_bytes());
            bytes[CHECKED + 2..CHECKED + 6].copy_from_slice(&counts.map(|it| it % 40));
            bytes[CHECKED + 6..CHECKED + 8].copy_from_slice(&[0; 2]);
            sign(&mut bytes);
            if let Some(read) = HourRecord::from_bytes(&bytes) {
                prop_assert!(read.lines.iter().all(|it| it.named.len() <= NAMES));
            }
        }
    }

    #[test]
    fn a_record_whose_checksum_is_right_may_still_be_wrong() {
        let mut bytes = full(1).to_bytes();
        bytes[CHECKED + 2] = u8::try_from(NAMES + 1).unwrap();
        sign(&mut bytes);
        assert_eq!(HourRecord::from_bytes(&bytes), None);
        // A number of 65 bits.
        let mut bytes = usual().to_bytes();
        let counts = LINES_AT + 1 + "www0.example.org".len();
        bytes[counts..counts + 10]
            .copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]);
        sign(&mut bytes);
        assert_eq!(HourRecord::from_bytes(&bytes), None);
    }
}
