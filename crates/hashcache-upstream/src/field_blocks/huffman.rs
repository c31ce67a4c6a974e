//! The Huffman code of HPACK (RFC 7541, section 5.2 and appendix B).
//!
//! Called by `hpack` for each coded string.
//!
//! Cost: a table lookup for each symbol; a search through the lengths for rare symbols, which have
//! codes with more than eight bits.

/// Decodes a coded string; `None` if the octets are no coded string.
pub fn decode(encoded: &[u8]) -> Option<Vec<u8>> {
    HUFFMAN.decode(encoded)
}

/// The code is canonical: the codes of equal length follow each other in the order of their
/// symbols, after all shorter codes.
struct Huffman {
    /// The symbols in the order of their codes.
    symbols: [u8; 256],
    /// For each length the first code, the position of the symbol, and the number of codes.
    lengths: [(usize, usize, usize); BITS_MAX + 1],
    /// For each octet the symbol with the code that is a prefix of the octet, and the code length;
    /// 0 if the code is longer than the octet.
    short: [(u8, usize); 256],
}

impl Huffman {
    const fn new() -> Self {
        let mut table = Self {
            symbols: [0; 256],
            lengths: [(0, 0, 0); BITS_MAX + 1],
            short: [(0, 0); 256],
        };
        let (mut place, mut code, mut bits) = (0, 0, 1);
        while bits <= BITS_MAX {
            code <<= 1;
            table.lengths[bits] = (code, place, 0);
            let mut symbol = 0_u8;
            loop {
                if CODE_BITS[symbol as usize] as usize == bits {
                    table.symbols[place] = symbol;
                    table.lengths[bits].2 += 1;
                    table.shorten(symbol, code, bits);
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

    /// Enters the octets that start with `code`, if it is short.
    const fn shorten(&mut self, symbol: u8, code: usize, bits: usize) {
        if bits > SHORT_BITS {
            return;
        }
        let (mut octet, end) = (
            code << (SHORT_BITS - bits),
            (code + 1) << (SHORT_BITS - bits),
        );
        while octet < end {
            self.short[octet] = (symbol, bits);
            octet += 1;
        }
    }

    fn decode(&self, encoded: &[u8]) -> Option<Vec<u8>> {
        let mut octets = Vec::with_capacity(encoded.len() * 8 / SHORTEST);
        // The next bits, starting at the highest bit, and their number.
        let (mut bits, mut have) = (0_u64, 0);
        let mut rest = encoded.iter();
        loop {
            while have <= ROOM - OCTET
                && let Some(octet) = rest.next()
            {
                have += OCTET;
                bits |= u64::from(*octet) << (ROOM - have);
            }
            match self.first(bits, have) {
                Some((symbol, length)) => {
                    octets.push(symbol);
                    bits <<= length;
                    have -= length;
                }
                // The rest is padding: the start of a code of ones. No code is longer than the bits
                // that are loaded at once, so nothing else follows.
                None => {
                    let is_padding = have < OCTET && bits.leading_ones() as usize >= have;
                    return is_padding.then_some(octets);
                }
            }
        }
    }

    /// Finds the symbol with a code that is a prefix of the first `have` of `bits`; also returns
    /// the code length.
    fn first(&self, bits: u64, have: usize) -> Option<(u8, usize)> {
        let (symbol, length) = self.short[usize::from(bits.to_be_bytes()[0])];
        if length > 0 {
            return (length <= have).then_some((symbol, length));
        }
        for length in OCTET + 1..=have.min(BITS_MAX) {
            let (first, begin, count) = self.lengths[length];
            let code = usize::try_from(bits >> (ROOM - length)).ok()?;
            if let Some(offset) = code.checked_sub(first).filter(|offset| *offset < count) {
                return Some((self.symbols[begin + offset], length));
            }
        }
        None
    }
}

static HUFFMAN: Huffman = Huffman::new();
const BITS_MAX: usize = 30;
/// Bits per octet, and bits that are examined at once.
const OCTET: usize = 8;
const ROOM: usize = 64;
/// Length up to which codes are looked up by an octet, and the shortest code length.
const SHORT_BITS: usize = OCTET;
const SHORTEST: usize = 5;

/// Code lengths for all octets.
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
pub(super) mod tests {
    use super::*;

    /// `text` in the Huffman code.
    pub(in super::super) fn coded(text: &[u8]) -> Vec<u8> {
        let (mut bits, mut octets) = (String::new(), Vec::new());
        for octet in text {
            let length = usize::from(CODE_BITS[usize::from(*octet)]);
            let (first, begin, _) = HUFFMAN.lengths[length];
            let place = HUFFMAN.symbols.iter().position(|it| it == octet).unwrap();
            let code = first + place - begin;
            bits += &format!("{code:0length$b}");
        }
        bits += &"1".repeat(bits.len().wrapping_neg() % 8);
        for octet in bits.as_bytes().chunks(8) {
            octets.push(u8::from_str_radix(str::from_utf8(octet).unwrap(), 2).unwrap());
        }
        octets
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
    }

    #[test]
    fn every_string_of_octets_is_decoded_to_itself() {
        for octet in 0..=u8::MAX {
            for text in [&[octet][..], &[octet, b'a', octet], &[octet; 40]] {
                assert_eq!(decode(&coded(text)).unwrap(), text);
            }
        }
        let all: Vec<u8> = (0..=u8::MAX).chain((0..=u8::MAX).rev()).collect();
        assert_eq!(decode(&coded(&all)).unwrap(), all);
        assert_eq!(decode(b"").unwrap(), b"");
    }

    #[test]
    fn padding_is_less_than_an_octet_of_ones() {
        for broken in [
            &b"\xff"[..],
            b"\xff\xff",
            b"\xff\xff\xff\xff", // the code that ends a string
            b"\0\0\0\0\x18",
            b"\x1f\xff",
            b"\x18",
        ] {
            assert_eq!(decode(broken), None, "{broken:?}");
        }
        assert_eq!(decode(b"\x1f").unwrap(), b"a");
    }
}
