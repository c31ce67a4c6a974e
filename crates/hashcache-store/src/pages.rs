//! The page table: how long each page's stored form is in packed content.
//!
//! The page table is part of the metadata for each response that is stored in pages
//! ([`hashcache_wan::pages`]):
//!
//! ```text
//! content length 8 | for each page: length of its stored form 3
//! ```
//!
//! The page count follows from the content length, 64 KiB each. The pages are stored one after
//! another in the object's content.
//!
//! Invariant: a table that does not decode is damaged metadata, and damaged metadata is a miss.
//! Cost: 3 bytes for 64 KiB of content; finding a page adds up all earlier lengths.

use std::ops::Range;

use bytes::Bytes;
use hashcache_wan::pages::{PAGE_BYTES, STORED_PAGE_BYTES_MAX};

/// Page size in bytes, with the same type as offsets.
const PAGE: u64 = PAGE_BYTES as u64;

/// The longest content that is stored in pages: the table then takes 12 KiB out of 64 KiB metadata.
pub const PACKED_BYTES_MAX: u64 = 256 << 20;

/// The page positions in packed content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageTable {
    /// Content length, bytes.
    length: u64,
    /// The entries, encoded as in the metadata.
    entries: Bytes,
}

impl PageTable {
    /// Makes the table for content of `length` bytes; `ends` are the page ends in the stored form.
    pub(super) fn new(length: u64, ends: &[u64]) -> Self {
        debug_assert_eq!(pages_of(length), Some(ends.len()));
        let starts = std::iter::once(&0).chain(ends);
        let entries = starts.zip(ends).flat_map(|(start, end)| entry(end - start));
        Self {
            length,
            entries: entries.collect(),
        }
    }

    /// Makes a table for the metadata of a put that has just started: of the final size, or without
    /// entries if the length is unknown. All entries are 0, so a table with entries does not
    /// decode.
    pub fn announced(length: Option<u64>) -> Self {
        let length = length.unwrap_or(0);
        let pages = pages_of(length).unwrap_or(0);
        Self {
            length,
            entries: vec![0; ENTRY_BYTES * pages].into(),
        }
    }

    /// Content length, bytes.
    pub fn content_len(&self) -> u64 {
        self.length
    }

    /// Returns true if the content is a single page: then the stored form is a single zstd frame.
    pub fn is_one_page(&self) -> bool {
        self.pages() == 1
    }

    fn pages(&self) -> usize {
        self.entries.len() / ENTRY_BYTES
    }

    /// Length of a page's stored form; zero behind the last page.
    fn stored_len(&self, page: usize) -> u64 {
        let entry = self.entries.chunks_exact(ENTRY_BYTES).nth(page);
        entry.map_or(0, |entry| {
            u64::from(u32::from_le_bytes([entry[0], entry[1], entry[2], 0]))
        })
    }

    /// The page with the content byte at `offset`; `None` behind the end of the content.
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

    /// Where a page's stored form starts.
    fn start(&self, page: usize) -> u64 {
        (0..page.min(self.pages()))
            .map(|before| self.stored_len(before))
            .sum()
    }

    /// Range in the stored form for all pages with content in `range`.
    pub fn stored_range(&self, range: &Range<u64>) -> Range<u64> {
        let page = |offset: u64| usize::try_from(offset / PAGE).unwrap_or(usize::MAX);
        if range.is_empty() {
            return 0..0;
        }
        let behind = page(range.end - 1).saturating_add(1);
        self.start(page(range.start))..self.start(behind)
    }

    /// Appends the table to metadata.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&self.entries);
    }

    /// Decodes the table at the start of `metadata`; also returns the table length in bytes.
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

    /// Returns true if a table of `bytes` bytes is for a single page.
    pub(super) fn is_of_one_page(bytes: usize) -> bool {
        bytes == 8 + ENTRY_BYTES
    }

    /// Length in bytes of the table at the start of `metadata`; the entries are not checked.
    pub(super) fn bytes(metadata: &[u8]) -> Option<usize> {
        let length = u64::from_le_bytes(metadata.get(..8)?.try_into().ok()?);
        let bytes = 8 + ENTRY_BYTES * pages_of(length)?;
        (bytes <= metadata.len()).then_some(bytes)
    }
}

/// A page in packed content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    number: usize,
    /// Where the stored form starts.
    pub(super) stored: u64,
    pub(super) stored_bytes: u64,
    /// Content bytes in the page.
    pub(super) bytes: usize,
}

impl Page {
    /// Content offset where this page starts.
    pub(super) fn start(&self) -> u64 {
        self.number as u64 * PAGE
    }
}

/// Content bytes in page `page`, if the whole content has `length` bytes.
pub(super) fn page_bytes(page: usize, length: u64) -> usize {
    let left = length.saturating_sub((page as u64).saturating_mul(PAGE));
    usize::try_from(left.min(PAGE)).unwrap_or(PAGE_BYTES)
}

/// Number of pages for this content length; `None` if the content is too long for a table.
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
