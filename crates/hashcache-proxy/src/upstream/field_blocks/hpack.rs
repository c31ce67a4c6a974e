//! Strings of a field block (HPACK, RFC 7541) that h2 cannot take.
//!
//! Called by `field_blocks`. For a control character in a value, or a name that is no token, h2
//! ends the connection, and with it the responses to all clients. [`repaired`] changes such octets
//! so that h2 reads the block, and says what it has found.
//!
//! Invariant: each name and value keeps its length, because the tables of both sides count it
//! (section 4.1). What is no field block stays as it is; h2 ends the connection for it.
//! Cost: one pass over the block; names are decoded, and values only if they may have such octets.

use http::HeaderName;

use crate::wire::push_string;

/// A block that was changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Repaired {
    pub(super) block: Vec<u8>,
    /// Whether control characters became spaces.
    pub(super) has_spaces: bool,
    /// Whether the message must not be used (RFC 9113, section 8.2.1): a name is no token, or a
    /// value has CR, LF or NUL.
    pub(super) is_malformed: bool,
}

/// The block that h2 can take; `None` if it is `block` itself.
pub(super) fn repaired(block: &[u8]) -> Option<Repaired> {
    let mut repairing = Repairing {
        block,
        copied: 0,
        repaired: Repaired::default(),
    };
    let mut at = 0;
    while let Some(next) = repairing.field(at) {
        at = next;
    }
    let Repairing {
        copied,
        mut repaired,
        ..
    } = repairing;
    if copied == 0 {
        return None;
    }
    repaired.block.extend_from_slice(&block[copied..]);
    Some(repaired)
}

struct Repairing<'a> {
    block: &'a [u8],
    /// How much of it is in `repaired`.
    copied: usize,
    repaired: Repaired,
}

impl Repairing<'_> {
    /// Repairs the representation at `at`; the place after it.
    fn field(&mut self, at: usize) -> Option<usize> {
        let first = *self.block.get(at)?;
        // RFC 7541, section 6.
        let (bits, is_literal) = match first {
            0x80.. => (7, false),
            0x40..0x80 => (6, true),
            0x20..0x40 => (5, false),
            0..0x20 => (4, true),
        };
        let (index, mut at) = integer(self.block, at, bits)?;
        if !is_literal {
            return Some(at);
        }
        if index == 0 {
            let name = string(self.block, at)?;
            self.repair_name(&name);
            at = name.end;
        }
        let value = string(self.block, at)?;
        self.repair_value(&value);
        Some(value.end)
    }

    fn repair_name(&mut self, name: &Literal<'_>) {
        let Some(octets) = name.octets() else {
            return;
        };
        let is_known = octets.starts_with(b":") && PSEUDO_FIELDS.contains(&&octets[..]);
        if octets.is_empty() || is_known || HeaderName::from_lowercase(&octets).is_ok() {
            return;
        }
        self.repaired.is_malformed = true;
        // A later message may name it by its place in the table: so it is a name without meaning.
        self.replace(name, &vec![b'x'; octets.len()]);
    }

    fn repair_value(&mut self, value: &Literal<'_>) {
        if value.is_huffman && !may_have_control(value.encoded) {
            return;
        }
        let Some(octets) = value.octets() else {
            return;
        };
        if !octets.iter().any(is_control) {
            return;
        }
        if octets.iter().any(|octet| b"\r\n\0".contains(octet)) {
            self.repaired.is_malformed = true;
        }
        self.repaired.has_spaces = true;
        let octets = octets.iter().map(|octet| match is_control(octet) {
            true => b' ',
            false => *octet,
        });
        self.replace(value, &octets.collect::<Vec<_>>());
    }

    fn replace(&mut self, literal: &Literal<'_>, octets: &[u8]) {
        let block = &mut self.repaired.block;
        block.extend_from_slice(&self.block[self.copied..literal.start]);
        push_string(block, octets);
        self.copied = literal.end;
    }
}

/// A string of a block.
struct Literal<'a> {
    is_huffman: bool,
    encoded: &'a [u8],
    start: usize,
    end: usize,
}

impl Literal<'_> {
    fn octets(&self) -> Option<Vec<u8>> {
        match self.is_huffman {
            true => HUFFMAN.decode(self.encoded),
            false => Some(self.encoded.to_vec()),
        }
    }
}

fn string(block: &[u8], start: usize) -> Option<Literal<'_>> {
    let is_huffman = block.get(start)? & 0x80 != 0;
    let (length, at) = integer(block, start, 7)?;
    let end = at.checked_add(length)?;
    Some(Literal {
        is_huffman,
        encoded: block.get(at..end)?,
        start,
        end,
    })
}

/// The integer at `at`, whose first octet has this many bits of it (section 5.1), and the place
/// after it.
fn integer(block: &[u8], mut at: usize, bits: u32) -> Option<(usize, usize)> {
    let most = (1 << bits) - 1;
    let mut value = usize::from(*block.get(at)?) & most;
    at += 1;
    if value < most {
        return Some((value, at));
    }
    for shift in [0, 7, 14, 21] {
        let octet = *block.get(at)?;
        at += 1;
        value += usize::from(octet & 0x7f) << shift;
        if octet & 0x80 == 0 {
            return Some((value, at));
        }
    }
    None
}

fn is_control(octet: &u8) -> bool {
    octet.is_ascii_control() && *octet != b'\t'
}

/// Whether a coded string may have control characters: their codes have at least ten ones in a row
/// (RFC 7541, appendix B), of which nine lie in two neighbouring octets.
fn may_have_control(encoded: &[u8]) -> bool {
    let has_ones =
        |pair: &[u8]| pair[0].trailing_ones() + pair[1].leading_ones() >= CONTROL_ONES - 1;
    encoded.windows(2).any(has_ones)
}

/// The Huffman code. It is canonical: the codes of one length follow each other in the order of
/// their symbols, after those of shorter ones.
struct Huffman {
    /// The symbols in the order of their codes.
    symbols: [u8; 256],
    /// For each length the first code, the place of its symbol, and how many there are.
    lengths: [(u32, usize, u32); BITS_MAX + 1],
}

impl Huffman {
    const fn new() -> Self {
        let mut table = Self {
            symbols: [0; 256],
            lengths: [(0, 0, 0); BITS_MAX + 1],
        };
        let (mut place, mut code, mut bits) = (0, 0_u32, 1);
        while bits <= BITS_MAX {
            code <<= 1;
            table.lengths[bits] = (code, place, 0);
            let mut symbol = 0_u8;
            loop {
                if CODE_BITS[symbol as usize] as usize == bits {
                    table.symbols[place] = symbol;
                    table.lengths[bits].2 += 1;
                    place += 1;
                    code += 1;
                }
                if symbol == u8::MAX {
                    break;
                }
                symbol += 1;
            }
            bits += 1;
        }
        table
    }

    /// The octets of a coded string; `None` if it is none.
    fn decode(&self, encoded: &[u8]) -> Option<Vec<u8>> {
        let mut octets = Vec::with_capacity(encoded.len() * 2);
        let (mut code, mut bits) = (0_u32, 0);
        for octet in encoded {
            for place in (0..8).rev() {
                code = code << 1 | u32::from(octet >> place & 1);
                bits += 1;
                let (first, begin, count) = *self.lengths.get(bits)?;
                if let Some(offset) = code.checked_sub(first).filter(|offset| *offset < count) {
                    octets.push(self.symbols[begin + offset as usize]);
                    (code, bits) = (0, 0);
                }
            }
        }
        // The rest is padding: the begin of a code of ones (RFC 7541, section 5.2).
        (bits < 8 && code.count_ones() as usize == bits).then_some(octets)
    }
}

static HUFFMAN: Huffman = Huffman::new();
const BITS_MAX: usize = 30;
/// The ones in a row of the code of NUL.
const CONTROL_ONES: u32 = 10;
/// The pseudo-fields of both directions: h2 ends the connection for others.
const PSEUDO_FIELDS: [&[u8]; 6] = [
    b":status",
    b":authority",
    b":method",
    b":scheme",
    b":path",
    b":protocol",
];

/// The lengths of the codes of all octets.
#[rustfmt::skip]
const CODE_BITS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5,
    6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23,
    23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22,
    22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26,
    27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25,
    25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// `text` in the Huffman code.
    fn coded(text: &[u8]) -> Vec<u8> {
        let (mut bits, mut octets) = (String::new(), Vec::new());
        for octet in text {
            let length = usize::from(CODE_BITS[usize::from(*octet)]);
            let (first, begin, _) = HUFFMAN.lengths[length];
            let place = HUFFMAN.symbols.iter().position(|it| it == octet).unwrap();
            let code = first + u32::try_from(place - begin).unwrap();
            bits += &format!("{code:0length$b}");
        }
        bits += &"1".repeat(bits.len().wrapping_neg() % 8);
        for octet in bits.as_bytes().chunks(8) {
            octets.push(u8::from_str_radix(str::from_utf8(octet).unwrap(), 2).unwrap());
        }
        octets
    }

    fn coded_string(text: &[u8]) -> Vec<u8> {
        let coded = coded(text);
        let mut string = vec![0x80 | u8::try_from(coded.len()).unwrap()];
        string.extend(coded);
        string
    }

    #[test]
    fn the_huffman_code_is_that_of_the_standard() {
        // RFC 7541, C.4.1 and C.6.1.
        let examples: [(&[u8], &[u8]); 3] = [
            (
                b"www.example.com",
                b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
            ),
            (b"no-cache", b"\xa8\xeb\x10\x64\x9c\xbf"),
            (b"private", b"\xae\xc3\x77\x1a\x4b"),
        ];
        for (text, expected) in examples {
            assert_eq!(coded(text), expected);
        }
        for octet in 0..=u8::MAX {
            let text = [octet, b'a', octet];
            assert_eq!(HUFFMAN.decode(&coded(&text)).unwrap(), text);
            for before in [&b""[..], b"a", b"aa", b"ab", b"?", b"????", b"~~~"] {
                let text = [before, &[octet]].concat();
                assert!(
                    !is_control(&octet) || may_have_control(&coded(&text)),
                    "{text:?}"
                );
            }
        }
        assert_eq!(
            HUFFMAN.decode(b"\xff\xff"),
            None,
            "padding of more than seven bits"
        );
        assert_eq!(HUFFMAN.decode(b"\0\0\0\0\x18"), None, "padding of zeros");
    }

    #[test]
    fn control_characters_become_spaces_in_strings_of_the_same_length() {
        for text in [&b"a\x01b\x7f"[..], b"\x1f", b"a\x0bbc", b"a\x16b"] {
            let spaced: Vec<u8> = text
                .iter()
                .map(|octet| if is_control(octet) { b' ' } else { *octet })
                .collect();
            let mut plain = Vec::new();
            push_string(&mut plain, text);
            for value in [plain, coded_string(text)] {
                // A literal with a new name, one with an indexed name, and indexed fields.
                for before in [
                    &b"\x88\x40\x01x"[..],
                    b"\x3f\xe1\x1f\x88\x7f\x10",
                    b"\0\x01x",
                ] {
                    let block = [before, &value, b"\x88\x0f\x26\x011"].concat();
                    let mut expected = before.to_vec();
                    push_string(&mut expected, &spaced);
                    expected.extend(b"\x88\x0f\x26\x011");
                    let repaired = repaired(&block).unwrap();
                    assert_eq!(repaired.block, expected, "{text:?}");
                    assert!(repaired.has_spaces && !repaired.is_malformed);
                }
            }
        }
    }

    #[test]
    fn a_value_with_a_line_end_and_a_name_that_is_no_token_are_malformed() {
        for text in [&b"a\r"[..], b"\n", b"a\0b"] {
            let block = [b"\x0f\x26", &coded_string(text)[..]].concat();
            assert!(repaired(&block).unwrap().is_malformed, "{text:?}");
        }
        for name in [&b"Upper"[..], b"a b", b":unknown", b"a\0", b"\xe9"] {
            let block = [b"\x40", &coded_string(name)[..], b"\x01v"].concat();
            let repaired = repaired(&block).unwrap();
            assert!(repaired.is_malformed && !repaired.has_spaces, "{name:?}");
            assert_eq!(usize::from(repaired.block[1]), name.len());
        }
    }

    #[test]
    fn a_block_without_such_octets_stays_as_it_is() {
        let long = vec![b'v'; 300];
        let mut block = b"\x20\x88\x40\x01x".to_vec();
        push_string(&mut block, &long);
        block.extend(b"\x10\x07:status\x03200\x40\x01y\x03\xe9\ta");
        block.extend([b"\x0f\x26", &coded_string("?~$@ \u{ff}".as_bytes())[..]].concat());
        assert_eq!(repaired(&block), None);
        // h2 judges octets that are no block.
        for broken in [
            &b"\xff"[..],
            b"\xff\xff\xff\xff\xff\xff",
            b"\0",
            b"\0\x01x\x05\x01",
        ] {
            assert_eq!(repaired(broken), None, "{broken:?}");
        }
    }
}
