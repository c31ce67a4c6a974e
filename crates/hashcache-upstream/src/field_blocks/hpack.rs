//! Fields of a field block (HPACK, RFC 7541).
//!
//! Called by `field_blocks` with each block from an origin. h2 has a decoder too, but closes the
//! connection for strings that concern only a single message, such as an empty name.
//!
//! Invariants: the connection's table has the octets that the origin has put there, even if the
//! message drops some octets. The table takes no more than the size that the origin may use
//! ([`TABLE_MAX`]). After octets that are no field block the table is undefined, so the connection
//! must be closed.
//! Cost: a copy per string.

use std::borrow::Cow;
use std::collections::VecDeque;

use bytes::Bytes;

use super::huffman;

/// A name and a value: any octets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: Bytes,
    pub(super) value: Bytes,
}

/// The octets are no field block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoBlock;

/// A connection's table.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Newest first.
    entries: VecDeque<Field>,
    bytes: usize,
    /// At most `TABLE_MAX`.
    bytes_max: usize,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            bytes_max: TABLE_MAX,
        }
    }

    /// Passes the fields of `block` to `found`, in their order.
    ///
    /// # Errors
    /// The octets are no field block.
    pub fn decode(&mut self, block: &[u8], mut found: impl FnMut(&Field)) -> Result<(), NoBlock> {
        let mut rest = block;
        let mut may_resize = true;
        while let Some(first) = rest.first() {
            // RFC 7541, section 6.
            let field = match first {
                0x80.. => self.entry(integer(&mut rest, 7)?)?,
                0x40..0x80 => {
                    let field = self.literal(&mut rest, 6)?;
                    self.insert(field.clone());
                    field
                }
                0x20..0x40 => {
                    let bytes_max = integer(&mut rest, 5)?;
                    if !may_resize || bytes_max > TABLE_MAX {
                        return Err(NoBlock);
                    }
                    self.bytes_max = bytes_max;
                    self.evict(0);
                    continue;
                }
                0..0x20 => self.literal(&mut rest, 4)?,
            };
            may_resize = false;
            found(&field);
        }
        Ok(())
    }

    fn literal(&self, rest: &mut &[u8], bits: u32) -> Result<Field, NoBlock> {
        let name = match integer(rest, bits)? {
            0 => string(rest)?,
            place => self.entry(place)?.name,
        };
        let value = string(rest)?;
        Ok(Field { name, value })
    }

    /// Returns the entry with this index, from the static or the dynamic table (section 2.3.3).
    fn entry(&self, index: usize) -> Result<Field, NoBlock> {
        let place = index.checked_sub(1).ok_or(NoBlock)?;
        if let Some((name, value)) = STATIC_TABLE.get(place) {
            let [name, value] = [name, value].map(|text| Bytes::from_static(text.as_bytes()));
            return Ok(Field { name, value });
        }
        let entry = self.entries.get(place - STATIC_TABLE.len());
        entry.cloned().ok_or(NoBlock)
    }

    fn insert(&mut self, field: Field) {
        let bytes = table_bytes(&field);
        self.evict(bytes);
        // An entry that is larger than the table empties the table, and is no error (section 4.4).
        if bytes <= self.bytes_max {
            self.bytes += bytes;
            self.entries.push_front(field);
        }
    }

    /// Makes room for this many bytes.
    fn evict(&mut self, bytes: usize) {
        while self.bytes + bytes > self.bytes_max
            && let Some(oldest) = self.entries.pop_back()
        {
            self.bytes -= table_bytes(&oldest);
        }
    }
}

/// Returns the size of an entry (section 4.1).
pub(super) fn table_bytes(field: &Field) -> usize {
    field.name.len() + field.value.len() + 32
}

fn string(rest: &mut &[u8]) -> Result<Bytes, NoBlock> {
    let is_coded = rest.first().ok_or(NoBlock)? & 0x80 != 0;
    let length = integer(rest, 7)?;
    let (octets, after) = rest.split_at_checked(length).ok_or(NoBlock)?;
    *rest = after;
    let octets = if is_coded {
        Cow::Owned(huffman::decode(octets).ok_or(NoBlock)?)
    } else {
        Cow::Borrowed(octets)
    };
    // Without the spare room of a vector: only the octets of an entry are counted.
    Ok(Bytes::copy_from_slice(&octets))
}

/// Parses the integer that starts in the low `bits` bits of the first octet (section 5.1).
fn integer(rest: &mut &[u8], bits: u32) -> Result<usize, NoBlock> {
    let most = (1 << bits) - 1;
    let mut octets = rest.iter();
    let mut value = usize::from(*octets.next().ok_or(NoBlock)?) & most;
    if value == most {
        let mut shift = 0;
        loop {
            // 28 bits are more than any block has octets.
            let octet = octets.next().filter(|_| shift < 28).ok_or(NoBlock)?;
            value += usize::from(octet & 0x7f) << shift;
            shift += 7;
            if octet & 0x80 == 0 {
                break;
            }
        }
    }
    *rest = octets.as_slice();
    Ok(value)
}

/// SETTINGS_HEADER_TABLE_SIZE, bytes; the connection keeps the initial value.
const TABLE_MAX: usize = 4096;

/// Appendix A.
#[rustfmt::skip]
const STATIC_TABLE: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use super::super::huffman::tests::coded;
    use super::*;

    fn fields(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, NoBlock> {
        let mut fields = Vec::new();
        decoder.decode(block, |field| {
            let [name, value] = [&field.name, &field.value];
            let text = |octets: &Bytes| String::from_utf8(octets.to_vec()).unwrap();
            fields.push((text(name), text(value)));
        })?;
        Ok(fields)
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        expected.iter().map(owned).collect()
    }

    #[test]
    fn the_responses_of_the_standard_are_decoded() {
        // RFC 7541, C.5 with a table of 256 bytes, whose size comes first.
        let mut decoder = Decoder::new();
        let first = b"\x3f\xe1\x01\x48\x03302\x58\x07private\
            \x61\x1dMon, 21 Oct 2013 20:13:21 GMT\x6e\x17https://www.example.com";
        let mut expected = pairs(&[
            (":status", "302"),
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("location", "https://www.example.com"),
        ]);
        assert_eq!(fields(&mut decoder, first).unwrap(), expected);
        assert_eq!((decoder.bytes, decoder.entries.len()), (222, 4));
        let second = b"\x48\x03307\xc1\xc0\xbf";
        expected[0].1 = "307".to_owned();
        assert_eq!(fields(&mut decoder, second).unwrap(), expected);
        assert_eq!(decoder.bytes, 222);
        let third = b"\x88\xc1\x61\x1dMon, 21 Oct 2013 20:13:22 GMT\xc0\x5a\x04gzip\x77\x38\
            foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
        let got = fields(&mut decoder, third).unwrap();
        assert_eq!(got[4], ("content-encoding".to_owned(), "gzip".to_owned()));
        assert_eq!((got.len(), decoder.bytes), (6, 215));
        // Its last response in the Huffman code has the same entries.
        let cookie = b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
        let cookie = coded(cookie);
        let length = 0x80 | u8::try_from(cookie.len()).unwrap();
        let block = [&b"\x77"[..], &[length], &cookie].concat();
        assert_eq!(fields(&mut decoder, &block).unwrap()[0], got[5]);
    }

    #[test]
    fn an_entry_takes_no_more_than_the_table_has() {
        let mut decoder = Decoder::new();
        let large = [&b"\x40\x01x\x7f\xe1\x1f"[..], &[b'v'; 4064 + 128]].concat();
        fields(&mut decoder, b"\x40\x01x\x01y").unwrap();
        assert_eq!(decoder.entries.len(), 1);
        fields(&mut decoder, &large).unwrap();
        assert_eq!((decoder.entries.len(), decoder.bytes), (0, 0));
        for _ in 0..1000 {
            fields(&mut decoder, b"\x40\x01x\x01y").unwrap();
            assert!(decoder.bytes <= TABLE_MAX);
        }
        assert_eq!(decoder.entries.len(), TABLE_MAX / 34);
        fields(&mut decoder, b"\x20").unwrap();
        assert_eq!((decoder.entries.len(), decoder.bytes), (0, 0));
        // A name of an entry that its own field displaces.
        let mut decoder = Decoder::new();
        let name = [&b"\x40\x7f\x81\x0f"[..], &[b'n'; 2048], b"\0"].concat();
        fields(&mut decoder, &name).unwrap();
        let again = [&b"\x7e\x7f\x81\x0f"[..], &[b'v'; 2048]].concat();
        let got = fields(&mut decoder, &again).unwrap();
        assert_eq!((got[0].0.len(), decoder.entries.len()), (2048, 0));
    }

    #[test]
    fn octets_that_are_no_block_are_an_error() {
        for broken in [
            &b"\x80"[..], // index 0
            b"\xbe",      // no entry
            b"\xff",
            b"\xff\xff\xff\xff\xff\xff",
            b"\x7f\xff\xff\xff\xff\x0f\0",
            b"\0",
            b"\0\x01x",
            b"\0\x01x\x05\x01",
            b"\0\x81\x18\0", // padding of zeros
            b"\x88\x20",     // a new size behind a field
            b"\x3f\xe2\x1f", // a size above the one that was allowed
        ] {
            let got = fields(&mut Decoder::new(), broken);
            assert_eq!(got, Err(NoBlock), "{broken:?}");
        }
        assert_eq!(
            fields(&mut Decoder::new(), b"\x3f\xe1\x1f\x20").unwrap(),
            []
        );
    }
}
