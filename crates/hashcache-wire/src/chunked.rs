//! The chunked coding of a request body (RFC 9112, 7.1), checked byte by byte.
//!
//! `inbound` calls it; it passes the content on. Extensions are dropped because they have no
//! end-to-end meaning.
//!
//! Invariant: only the strict grammar is accepted (hex digits, exact CRLF; space only around `;`
//! and `=` in an extension). Therefore no other recipient can find a different end of the body.
//! Cost: chunk data is skipped as a whole; everything else is one match per byte.

use super::head::{is_control, is_token};

/// Position in the coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    Size {
        digits: u8,
    },
    Extension(Extension),
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// At the start of a line of the trailer section.
    Trailer,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    End,
}

/// Position in `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extension {
    /// After space; a semicolon must follow.
    Semicolon,
    /// After a semicolon, and perhaps space.
    NameStart,
    Name,
    /// After a name and space: `=` or `;` must follow.
    NameEnd,
    /// After `=`, and perhaps space.
    ValueStart,
    Value,
    Quoted,
    /// After a backslash within quotes.
    Escaped,
    /// After the closing quote.
    QuotedEnd,
}

impl Extension {
    /// The position after this byte; `None` if the grammar does not allow the byte here.
    fn next(self, byte: u8) -> Option<Self> {
        let space = matches!(byte, b' ' | b'\t');
        Some(match (self, byte) {
            (Self::Semicolon, _) if space => Self::Semicolon,
            (
                Self::Semicolon | Self::Name | Self::NameEnd | Self::Value | Self::QuotedEnd,
                b';',
            ) => Self::NameStart,
            (Self::NameStart, _) if space => Self::NameStart,
            (Self::NameStart | Self::Name, _) if is_token(byte) => Self::Name,
            (Self::Name | Self::NameEnd, _) if space => Self::NameEnd,
            (Self::Name | Self::NameEnd, b'=') => Self::ValueStart,
            (Self::ValueStart, _) if space => Self::ValueStart,
            (Self::ValueStart, b'"') => Self::Quoted,
            (Self::ValueStart | Self::Value, _) if is_token(byte) => Self::Value,
            (Self::Value | Self::QuotedEnd, _) if space => Self::Semicolon,
            (Self::Quoted, b'"') => Self::QuotedEnd,
            (Self::Quoted, b'\\') => Self::Escaped,
            (Self::Quoted | Self::Escaped, _) if !is_control(byte) => Self::Quoted,
            _ => return None,
        })
    }

    /// Returns true if the line may be complete at this position.
    fn may_end(self) -> bool {
        matches!(self, Self::Name | Self::Value | Self::QuotedEnd)
    }
}

/// The state of a chunked body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunked {
    state: ChunkState,
    /// Missing bytes of the current chunk.
    left: u64,
    /// Bytes of extensions in the current chunk.
    extension: usize,
    extension_max: usize,
    /// The trailer lines so far.
    trailers: Vec<u8>,
    trailer_fields: usize,
}

impl Chunked {
    pub(super) fn new(extension_max: usize) -> Self {
        Self {
            state: ChunkState::Size { digits: 0 },
            left: 0,
            extension: 0,
            extension_max,
            trailers: Vec::new(),
            trailer_fields: 0,
        }
    }

    /// Returns true if the body is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.state == ChunkState::End
    }

    /// The trailer lines; later calls return nothing.
    pub(super) fn take_trailers(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.trailers)
    }

    /// Reads `input` until it is empty or the body is complete, and passes the content on. Returns
    /// the number of bytes taken.
    ///
    /// # Errors
    ///
    /// Returns the reason at the first byte that the grammar does not allow.
    pub(super) fn advance(
        &mut self,
        input: &[u8],
        mut pass: impl FnMut(&[u8]),
    ) -> Result<usize, &'static str> {
        let mut at = 0;
        while at < input.len() && self.state != ChunkState::End {
            if self.state == ChunkState::Data {
                let here = input.len() - at;
                let step = usize::try_from(self.left).map_or(here, |left| left.min(here));
                self.left -= u64::try_from(step).expect("usize is no wider than 64 bits");
                pass(&input[at..at + step]);
                at += step;
                if self.left == 0 {
                    self.state = ChunkState::DataCr;
                }
                continue;
            }
            self.state = self.next(input[at])?;
            at += 1;
        }
        Ok(at)
    }

    fn next(&mut self, byte: u8) -> Result<ChunkState, &'static str> {
        Ok(match (self.state, byte) {
            (ChunkState::Size { digits }, _) if byte.is_ascii_hexdigit() => {
                // Sixteen digits fill 64 bits. No legitimate client sends a longer size, even with
                // leading zeros.
                if digits == 16 {
                    return Err("chunk size too large");
                }
                let digit = char::from(byte).to_digit(16).expect("is a hex digit");
                self.left = self.left << 4 | u64::from(digit);
                ChunkState::Size { digits: digits + 1 }
            }
            (ChunkState::Size { digits: 1.. }, b'\r') => ChunkState::SizeLf,
            (ChunkState::Size { digits: 1.. }, b';') => {
                self.extension = 0;
                self.extend(Extension::NameStart)?
            }
            (ChunkState::Size { digits: 1.. }, b' ' | b'\t') => {
                self.extension = 0;
                self.extend(Extension::Semicolon)?
            }
            (ChunkState::Size { .. }, _) => return Err("malformed chunk size"),
            (ChunkState::Extension(extension), b'\r') if extension.may_end() => ChunkState::SizeLf,
            (ChunkState::Extension(extension), _) => match extension.next(byte) {
                Some(next) => self.extend(next)?,
                None => return Err("malformed chunk extension"),
            },
            (ChunkState::SizeLf, b'\n') if self.left == 0 => ChunkState::Trailer,
            (ChunkState::SizeLf, b'\n') => ChunkState::Data,
            (ChunkState::Data, _) => ChunkState::Data,
            (ChunkState::DataCr, b'\r') => ChunkState::DataLf,
            (ChunkState::DataLf, b'\n') => ChunkState::Size { digits: 0 },
            (ChunkState::DataCr | ChunkState::DataLf, _) => {
                return Err("chunk longer than its size");
            }
            (ChunkState::Trailer, b'\r') => ChunkState::EndLf,
            (ChunkState::Trailer, _) if is_token(byte) => {
                self.trailer_fields += 1;
                self.trail(byte, ChunkState::TrailerName)?
            }
            (ChunkState::TrailerName, b':') => self.trail(byte, ChunkState::TrailerValue)?,
            (ChunkState::TrailerName, _) if is_token(byte) => {
                self.trail(byte, ChunkState::TrailerName)?
            }
            (ChunkState::TrailerValue, b'\r') => self.trail(byte, ChunkState::TrailerLf)?,
            (ChunkState::TrailerValue, _) if !is_control(byte) => {
                self.trail(byte, ChunkState::TrailerValue)?
            }
            (ChunkState::TrailerLf, b'\n') => self.trail(byte, ChunkState::Trailer)?,
            (ChunkState::Trailer | ChunkState::TrailerName | ChunkState::TrailerValue, _) => {
                return Err("malformed trailer");
            }
            (ChunkState::EndLf, b'\n') => ChunkState::End,
            (ChunkState::SizeLf | ChunkState::TrailerLf | ChunkState::EndLf, _) => {
                return Err("CR without LF");
            }
            (ChunkState::End, _) => ChunkState::End,
        })
    }

    fn extend(&mut self, next: Extension) -> Result<ChunkState, &'static str> {
        self.extension += 1;
        if self.extension > self.extension_max {
            return Err("chunk extension too long");
        }
        Ok(ChunkState::Extension(next))
    }

    fn trail(&mut self, byte: u8, next: ChunkState) -> Result<ChunkState, &'static str> {
        if self.trailers.len() == TRAILER_BYTES || self.trailer_fields > TRAILER_FIELDS {
            return Err("trailer section too large");
        }
        self.trailers.push(byte);
        Ok(next)
    }
}

const TRAILER_BYTES: usize = 8 << 10;
const TRAILER_FIELDS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &[u8], step: usize) -> Result<(Vec<u8>, usize), &'static str> {
        let mut chunked = Chunked::new(8);
        let (mut passed, mut taken) = (Vec::new(), 0);
        for part in body.chunks(step) {
            taken += chunked.advance(part, |bytes| passed.extend_from_slice(bytes))?;
        }
        passed.extend(chunked.take_trailers());
        if chunked.is_complete() {
            Ok((passed, taken))
        } else {
            Err("incomplete")
        }
    }

    #[test]
    fn content_and_trailers_pass() {
        let body = b"3;a=b\r\nabc\r\n00\r\nA: b\r\n\r\nGET /";
        let expected = b"abcA: b\r\n".to_vec();
        for step in 1..=body.len() {
            assert_eq!(
                read(body, step),
                Ok((expected.clone(), body.len() - 5)),
                "step {step}"
            );
        }
    }

    #[test]
    fn extensions_may_have_space_and_quoted_strings() {
        for extension in [
            ";a",
            ";a=b",
            " ;a",
            "\t; a",
            "; a=b",
            ";a =b",
            ";a= b",
            ";a=b ;c",
            ";a ;c",
            ";a;b;c",
            r#";a="""#,
            r#";a="x;y""#,
            r#";a="\"""#,
            r#";a="" ;c"#,
            ";a=\"x\ty\"",
        ] {
            let body = format!("3{extension}\r\nabc\r\n0{extension}\r\n\r\n");
            let expected = b"abc".to_vec();
            for step in 1..=body.len() {
                assert_eq!(
                    read(body.as_bytes(), step),
                    Ok((expected.clone(), body.len())),
                    "{extension:?}, step {step}"
                );
            }
        }
        for extension in [
            " ",
            ";",
            ";;a",
            "; ",
            ";a ",
            ";a=",
            ";a=b ",
            ";a=b c",
            ";a b",
            r#";a="b"#,
            r#";a="b"c"#,
            r#";"a""#,
            ";a==b",
            " a",
            r#";a="\"#,
        ] {
            let body = format!("3{extension}\r\nabc\r\n0\r\n\r\n");
            for step in 1..=body.len() {
                assert_eq!(
                    read(body.as_bytes(), step),
                    Err("malformed chunk extension"),
                    "{extension:?}"
                );
            }
        }
    }

    #[test]
    fn only_the_strict_grammar_passes() {
        let cases: [(&[u8], &str); 20] = [
            (b"3\nabc\r\n0\r\n\r\n", "malformed chunk size"),
            (b"\r\n", "malformed chunk size"),
            (b"g\r\n", "malformed chunk size"),
            (b"0x3\r\n", "malformed chunk size"),
            (b"-1\r\n", "malformed chunk size"),
            (b"+1\r\n", "malformed chunk size"),
            (b" 3\r\n", "malformed chunk size"),
            (b"3 \r\nabc\r\n", "malformed chunk extension"),
            (b"00000000000000003\r\n", "chunk size too large"),
            (b"ffffffffffffffff1\r\n", "chunk size too large"),
            (b"3\rabc", "CR without LF"),
            (b"3;a\nabc\r\n", "malformed chunk extension"),
            (b"3;123456789\r\nabc", "chunk extension too long"),
            (b"3\r\nabcd\r\n", "chunk longer than its size"),
            (b"3\r\nabc\n0\r\n\r\n", "chunk longer than its size"),
            (b"3\r\nabc\rx", "chunk longer than its size"),
            (b"0\r\n\n", "malformed trailer"),
            (b"0\r\nA b: c\r\n\r\n", "malformed trailer"),
            (b"0\r\nA: b\r\n folded\r\n\r\n", "malformed trailer"),
            (b"0\r\nA: \x00\r\n\r\n", "malformed trailer"),
        ];
        for (body, reason) in cases {
            for step in 1..=body.len() {
                assert_eq!(
                    read(body, step),
                    Err(reason),
                    "{:?}",
                    body.escape_ascii().to_string()
                );
            }
        }
    }

    #[test]
    fn trailers_are_bounded() {
        let many = [
            b"0\r\n".as_slice(),
            &b"a:\r\n".repeat(TRAILER_FIELDS + 1),
            b"\r\n",
        ]
        .concat();
        assert_eq!(read(&many, 7), Err("trailer section too large"));
        let long = [
            b"0\r\na:".as_slice(),
            &vec![b'x'; TRAILER_BYTES],
            b"\r\n\r\n",
        ]
        .concat();
        assert_eq!(read(&long, 1000), Err("trailer section too large"));
        let some = [
            b"0\r\n".as_slice(),
            &b"a:\r\n".repeat(TRAILER_FIELDS),
            b"\r\n",
        ]
        .concat();
        let passed = b"a:\r\n".repeat(TRAILER_FIELDS);
        assert_eq!(read(&some, 7), Ok((passed, some.len())));
    }
}
