//! The page table: how long the stored form of each page of a packed content is.
//!
//! The page table is part of the metadata of each response that is stored in pages
//! ([`hashcache_wan::pages`]):
//!
//! ```text
//! content length 8 | for each page: length of its stored form 3
//! ```
//!
//! The number of pages follows from the content length, 64 KiB each. The pages lie one after
//! another in the object's content.
//!
//! Invariant: a table that does not decode is damaged metadata, and that is a miss.
//! Cost: 3 bytes for 64 KiB of content; finding a page adds up the lengths of those before it.

use std::ops::Range;

use bytes::Bytes;
use hashcache_wan::pages::{PAGE_BYTES, STORED_PAGE_BYTES_MAX};

/// Bytes of a page, as an offset counts.
const PAGE: u64 = PAGE_BYTES as u64;

/// The longest content that is stored in pages: its table takes 12 of the 64 KiB of metadata.
pub const PACKED_BYTES_MAX: u64 = 256 << 20;

/// Where the pages of a content lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageTable {
    /// Length of the content, bytes.
    length: u64,
    /// As they are in metadata.
    entries: Bytes,
}

impl PageTable {
    /// The table of a content of `length` bytes whose pages end at `ends` in the stored form.
    pub(super) fn new(length: u64, ends: &[u64]) -> Self {
        debug_assert_eq!(pages_of(length), Some(ends.len()));
        let starts = std::iter::once(&0).chain(ends);
        let entries = starts.zip(ends).flat_map(|(start, end)| entry(end - start));
        Self {
            length,
            entries: entries.collect(),
        }
    }

    /// A table of the same size, for metadata of a put that has just begun. It does not decode.
    pub fn announced(length: Option<u64>) -> Self {
        let length = length.unwrap_or(0);
        let pages = pages_of(length).unwrap_or(0);
        Self {
            length,
            entries: vec![0; ENTRY_BYTES * pages].into(),
        }
    }

    /// Length of the content, bytes.
    pub fn content_len(&self) -> u64 {
        self.length
    }

    /// Whether the content is one page: then its stored form is one zstd frame.
    pub fn is_one_page(&self) -> bool {
        self.pages() == 1
    }

    fn pages(&self) -> usize {
        self.entries.len() / ENTRY_BYTES
    }

    /// Length of the stored form of a page; zero behind the last one.
    fn stored_len(&self, page: usize) -> u64 {
        let entry = self.entries.chunks_exact(ENTRY_BYTES).nth(page);
        entry.map_or(0, |entry| {
            u64::from(u32::from_le_bytes([entry[0], entry[1], entry[2], 0]))
        })
    }

    /// The page with the byte at `offset` of the content; `None` behind its end.
    pub(super) fn page_at(&self, offset: u64) -> Option<Page> {
        let number = usize::try_from(offset / PAGE).ok()?;
        (offset < self.length).then(|| Page {
            number,
            stored: self.start(number),
            stored_bytes: self.stored_len(number),
            bytes: page_bytes(number, self.length),
        })
    }

    /// The page behind `page`.
    pub(super) fn after(&self, page: &Page) -> Option<Page> {
        let number = page.number + 1;
        (number < self.pages()).then(|| Page {
            number,
            stored: page.stored + page.stored_bytes,
            stored_bytes: self.stored_len(number),
            bytes: page_bytes(number, self.length),
        })
    }

    /// Where the stored form of a page begins.
    fn start(&self, page: usize) -> u64 {
        (0..page.min(self.pages()))
            .map(|before| self.stored_len(before))
            .sum()
    }

    /// The stored form of the pages that have content of `range`.
    pub fn stored_range(&self, range: &Range<u64>) -> Range<u64> {
        let page = |offset: u64| usize::try_from(offset / PAGE).unwrap_or(usize::MAX);
        if range.is_empty() {
            return 0..0;
        }
        let behind = page(range.end - 1).saturating_add(1);
        self.start(page(range.start))..self.start(behind)
    }

    /// Adds the table to metadata.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&self.entries);
    }

    /// The table at the start of `metadata`, and how many bytes it takes.
    pub fn decode(metadata: &Bytes) -> Option<(Self, usize)> {
        let bytes = Self::bytes(metadata)?;
        let table = Self {
            length: u64::from_le_bytes(metadata.get(..8)?.try_into().ok()?),
            entries: metadata.slice(8..bytes),
        };
        let lengths = (0..table.pages()).map(|page| table.stored_len(page));
        let are_right = |length: u64| (1..=STORED_PAGE_BYTES_MAX as u64).contains(&length);
        lengths.into_iter().all(are_right).then_some((table, bytes))
    }

    /// Whether a table of so many bytes is that of one page.
    pub(super) fn is_of_one_page(bytes: usize) -> bool {
        bytes == 8 + ENTRY_BYTES
    }

    /// How many bytes the table at the start of `metadata` takes, without a look at its entries.
    pub(super) fn bytes(metadata: &[u8]) -> Option<usize> {
        let length = u64::from_le_bytes(metadata.get(..8)?.try_into().ok()?);
        let bytes = 8 + ENTRY_BYTES * pages_of(length)?;
        (bytes <= metadata.len()).then_some(bytes)
    }
}

/// A page of a packed content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    number: usize,
    /// Where its stored form begins.
    pub(super) stored: u64,
    pub(super) stored_bytes: u64,
    /// Content in it.
    pub(super) bytes: usize,
}

impl Page {
    /// Where its content begins.
    pub(super) fn start(&self) -> u64 {
        self.number as u64 * PAGE
    }
}

/// Content in a page of a content of `length` bytes.
pub(super) fn page_bytes(page: usize, length: u64) -> usize {
    let left = length.saturating_sub((page as u64).saturating_mul(PAGE));
    usize::try_from(left.min(PAGE)).unwrap_or(PAGE_BYTES)
}

/// Pages of a content of this length; `None` if it is too long for a table.
fn pages_of(length: u64) -> Option<usize> {
    if length > PACKED_BYTES_MAX {
        return None;
    }
    usize::try_from(length.div_ceil(PAGE)).ok()
}

fn entry(length: u64) -> [u8; ENTRY_BYTES] {
    let bytes = length.to_le_bytes();
    [bytes[0], bytes[1], bytes[2]]
}

const ENTRY_BYTES: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(table: &PageTable) -> Option<(PageTable, usize)> {
        let mut bytes = Vec::new();
        table.encode(&mut bytes);
        bytes.extend_from_slice(b"rest");
        PageTable::decode(&bytes.into())
    }

    #[test]
    fn a_table_comes_back_and_finds_its_pages() {
        let table = PageTable::new(2 * PAGE + 10, &[1000, 66_000, 66_020]);
        assert_eq!(decoded(&table), Some((table.clone(), 8 + 3 * 3)));
        let page = table.page_at(PAGE + 7).unwrap();
        assert_eq!(
            (page.start(), page.stored, page.stored_bytes, page.bytes),
            (PAGE, 1000, 65_000, PAGE_BYTES)
        );
        let last = table.after(&page).unwrap();
        assert_eq!(Some(last), table.page_at(2 * PAGE + 9));
        assert_eq!(
            (last.stored, last.stored_bytes, last.bytes),
            (66_000, 20, 10)
        );
        assert_eq!(
            (table.after(&last), table.page_at(2 * PAGE + 10)),
            (None, None)
        );
        for (range, stored) in [
            (0..1, 0..1000),
            (PAGE - 1..PAGE, 0..1000),
            (PAGE - 1..PAGE + 1, 0..66_000),
            (2 * PAGE..2 * PAGE + 10, 66_000..66_020),
            (0..2 * PAGE + 10, 0..66_020),
            (5..5, 0..0),
        ] {
            assert_eq!(table.stored_range(&range), stored, "{range:?}");
        }
        let empty = PageTable::new(0, &[]);
        assert_eq!(decoded(&empty), Some((empty, 8)));
    }

    #[test]
    fn a_table_that_cannot_be_is_refused() {
        for length in [1, PAGE, PAGE + 1] {
            let announced = PageTable::announced(Some(length));
            assert_eq!(
                decoded(&announced),
                None,
                "{length}: of a put that was not finished"
            );
        }
        assert_eq!(
            decoded(&PageTable::new(1, &[STORED_PAGE_BYTES_MAX as u64 + 1])),
            None
        );
        for length in [PACKED_BYTES_MAX + 1, u64::MAX] {
            let mut bytes = length.to_le_bytes().to_vec();
            bytes.resize(100_000, 1);
            assert_eq!(PageTable::decode(&bytes.into()), None);
        }
        let mut bytes = Vec::new();
        PageTable::new(PAGE + 1, &[5, 9]).encode(&mut bytes);
        for length in 0..bytes.len() {
            assert_eq!(PageTable::decode(&bytes[..length].to_vec().into()), None);
        }
    }

    #[test]
    fn the_longest_table_leaves_most_of_the_metadata() {
        let table = PageTable::announced(Some(PACKED_BYTES_MAX));
        assert!(table.entries.len() <= hashcache::MAX_METADATA / 4);
    }
}
