//! Parts of an object: version, spans and their bounds.
//!
//! An object is a name, metadata and content of any length. Content is cut into *spans*: span 0 (at
//! most one page) is part of the head record, each further span is a separate record. Spans are
//! found under the name *and the version*, so the content of a put is never mistaken for that of
//! another put.

use std::ops::Range;

/// Identifies a put of a name. Monotone per store and never reused, not even after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub(crate) u64);

impl Version {
    /// The number itself, for logs and for callers that store it.
    pub fn to_u64(self) -> u64 {
        self.0
    }
}

/// Where an object is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Storage {
    /// On the device, and in memory while it is used.
    #[default]
    Disk,
    /// Only in memory, for as long as there is room among the hot objects. The object is never
    /// written to the device. An object with more content than [`PAGE`] is not kept.
    Memory,
}

/// Maximum length of a name, bytes.
pub const MAX_NAME: usize = 4096;
/// Maximum metadata of an object, bytes.
pub const MAX_METADATA: usize = 64 << 10;
/// Unit of verification: content and metadata carry a checksum per page of this many bytes.
pub const PAGE: usize = 64 << 10;
/// Maximum number of pages in a span. 1 MiB spans would not let 64 streams fit into 64 MiB of
/// memory.
pub const MAX_SPAN_PAGES: u8 = 4;

/// How the content of an object is cut into spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Pages per span from span 1 on.
    pub(crate) span_pages: u8,
}

impl Cut {
    /// Number of bytes in each span from span 1 on, except the last span.
    pub(crate) fn span_bytes(self) -> u64 {
        u64::from(self.span_pages.max(1)) * PAGE as u64
    }

    /// The span that holds the byte at `offset`.
    pub(crate) fn span_at(self, offset: u64) -> u32 {
        if offset < PAGE as u64 {
            return 0;
        }
        u32::try_from((offset - PAGE as u64) / self.span_bytes() + 1).unwrap_or(u32::MAX)
    }

    /// Start and end of span `n`, without regard to the object's length.
    pub(crate) fn bounds(self, span: u32) -> Range<u64> {
        if span == 0 {
            return 0..PAGE as u64;
        }
        let start = PAGE as u64 + u64::from(span - 1) * self.span_bytes();
        start..start.saturating_add(self.span_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_tile_the_content_without_gap_or_overlap() {
        for span_pages in [1, 2, 4] {
            let cut = Cut { span_pages };
            let mut at = 0;
            for span in 0..100 {
                let bounds = cut.bounds(span);
                assert_eq!(bounds.start, at);
                assert_eq!(cut.span_at(bounds.start), span);
                assert_eq!(cut.span_at(bounds.end - 1), span);
                at = bounds.end;
            }
        }
    }
}
