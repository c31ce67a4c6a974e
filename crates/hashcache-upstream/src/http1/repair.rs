//! Response heads of HTTP/1.1 that are not well-formed and still have a single meaning.
//!
//! Called with each head's bytes, before they are parsed. Devices and scripts send control
//! characters in a field or a reason phrase, and minor versions that do not exist; for these,
//! httparse refuses the whole response. Such bytes are replaced here, in place, so a head keeps the
//! length:
//!
//! - a minor version above 1 by 1: a recipient takes it for the highest version that it knows (RFC
//!   9110, 2.5);
//! - control characters in the reason phrase by spaces: nothing depends on them;
//! - control characters in a field value by spaces, as RFC 9110, 5.5 advises. NUL, a bare CR and a
//!   bare LF stay, and httparse refuses or splits the head at them.
//!
//! httparse drops field lines with a name that is no token. Framing must not depend on such a
//! guess. A line that spells Content-Length or Transfer-Encoding with other bytes in between gets a
//! NUL, so that httparse refuses the response; the same applies to a value of these fields with
//! control characters.
//!
//! Invariant: the bytes after the last head are not touched, and no byte is added or removed.
//! Cost: a pass over a head; content is not examined.

/// The position in the heads of a response.
#[derive(Debug, Default)]
pub(super) struct HeadRepair {
    place: Place,
    /// Status line bytes so far.
    column: usize,
    status: u16,
    /// True if the status line started with `HTTP/1.`.
    is_http_1: bool,
    name: FieldName,
    /// True if the value belongs to a framing field.
    is_framing: bool,
    /// Complete heads that were not taken.
    ended: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before the first byte of a status line; empty lines are skipped.
    #[default]
    Start,
    StatusLine,
    /// At the first byte of a field line.
    LineStart,
    /// After the CR of a line that may be the empty line.
    LastLf,
    Name,
    Value,
    /// After the last head.
    Content,
}

impl HeadRepair {
    /// Returns true if one more head is complete.
    pub(super) fn take_ended(&mut self) -> bool {
        let ended = self.ended.checked_sub(1);
        self.ended = ended.unwrap_or(0);
        ended.is_some()
    }

    /// Repairs the part of `bytes` that belongs to heads; `bytes` are the next bytes read. Returns
    /// that part's size in bytes.
    pub(super) fn repair(&mut self, mut bytes: &mut [u8]) -> usize {
        let read = bytes.len();
        while self.place != Place::Content {
            let skipped = match self.place {
                Place::Start | Place::LineStart => Some(self.skip_plain_line(bytes)),
                // Most other head bytes are in values, where only control characters count.
                Place::Value => first_control(bytes),
                _ => Some(0),
            };
            let Some((byte, rest)) = skipped.and_then(|at| bytes[at..].split_first_mut()) else {
                return read;
            };
            self.step(byte);
            bytes = rest;
        }
        read - bytes.len()
    }

    /// Returns the length of the line at the start of `bytes`, up to the line feed, if nothing in
    /// the line can need a repair; otherwise 0.
    fn skip_plain_line(&mut self, bytes: &[u8]) -> usize {
        let end = first_control(bytes).filter(|&end| bytes[end..].starts_with(b"\r\n"));
        let Some(end) = end else {
            return 0;
        };
        let line = &bytes[..end];
        let is_plain = match self.place {
            Place::Start => self.is_plain_status_line(line),
            _ => self.is_plain_field_line(line),
        };
        if !is_plain {
            return 0;
        }
        // The line feed, which is next, has the same effect after a value and after a status line.
        self.place = Place::Value;
        end + 1
    }

    fn is_plain_status_line(&mut self, line: &[u8]) -> bool {
        let versions: [&[u8]; 2] = [b"HTTP/1.1 ", b"HTTP/1.0 "];
        let code = versions
            .iter()
            .find_map(|version| line.strip_prefix(*version));
        let Some(code) = code else {
            return false;
        };
        let Some((&[a, b, c], b"" | [b' ', ..])) = code.split_first_chunk() else {
            return false;
        };
        let digits = [a, b, c];
        if !digits.iter().all(u8::is_ascii_digit) {
            return false;
        }
        let value = |number, digit: &u8| number * 10 + u16::from(digit - b'0');
        self.status = digits.iter().fold(0, value);
        self.name = FieldName::default();
        true
    }

    /// A line without control characters needs no repair if the name is a token.
    fn is_plain_field_line(&mut self, line: &[u8]) -> bool {
        let mut is_framing = false;
        if !cannot_be_framing(line) {
            let colon = line.iter().position(|&byte| byte == b':');
            let name = colon.map(|at| &line[..at]);
            let Some(name) = name.filter(|name| name.iter().copied().all(is_token)) else {
                return false;
            };
            is_framing = is_framing_name(name);
        }
        self.is_framing = is_framing;
        self.name.has_ended = true;
        true
    }

    fn step(&mut self, byte: &mut u8) {
        match self.place {
            Place::Start if matches!(*byte, b'\r' | b'\n') => {}
            Place::Start => {
                (self.place, self.column, self.status) = (Place::StatusLine, 0, 0);
                self.is_http_1 = true;
                self.status_line(byte);
            }
            Place::StatusLine => self.status_line(byte),
            Place::LineStart => self.begin_line(byte),
            Place::LastLf if *byte == b'\n' => self.end_head(),
            // httparse refuses a CR without LF.
            Place::LastLf => {
                self.place = Place::Content;
                self.ended += 1;
            }
            Place::Name => self.name(byte),
            Place::Value => self.value(byte),
            Place::Content => {}
        }
    }

    fn status_line(&mut self, byte: &mut u8) {
        match (self.column, *byte) {
            (_, b'\n') => {
                self.place = Place::LineStart;
                self.name = FieldName::default();
                return;
            }
            (at @ 0..7, other) => self.is_http_1 &= other == b"HTTP/1."[at],
            (7, b'2'..=b'9') if self.is_http_1 => *byte = b'1',
            (9..12, digit @ b'0'..=b'9') => {
                self.status = self.status * 10 + u16::from(digit - b'0');
            }
            (REASON.., b'\r' | b'\t') => {}
            (REASON.., other) if other.is_ascii_control() => *byte = b' ',
            _ => {}
        }
        self.column = (self.column + 1).min(REASON);
    }

    fn begin_line(&mut self, byte: &mut u8) {
        match *byte {
            b'\r' => self.place = Place::LastLf,
            b'\n' => self.end_head(),
            // The rest of the previous value (obsolete line folding).
            b' ' | b'\t' if self.name.has_ended => self.place = Place::Value,
            _ => {
                (self.place, self.name) = (Place::Name, FieldName::default());
                self.name(byte);
            }
        }
    }

    fn name(&mut self, byte: &mut u8) {
        let is_end = matches!(*byte, b':' | b'\r' | b'\n');
        if !is_end {
            self.name.push(*byte);
            return;
        }
        self.is_framing = self.name.is_framing();
        if self.is_framing && (self.name.is_broken || *byte != b':') {
            *byte = 0;
        }
        match *byte {
            b'\n' => self.place = Place::LineStart,
            _ => self.place = Place::Value,
        }
        self.name.has_ended = true;
    }

    fn value(&mut self, byte: &mut u8) {
        match *byte {
            b'\n' => self.place = Place::LineStart,
            b'\r' | b'\t' | 0 => {}
            other if other.is_ascii_control() => {
                *byte = if self.is_framing { 0 } else { b' ' };
            }
            _ => {}
        }
    }

    fn end_head(&mut self) {
        self.ended += 1;
        // After a 101 the bytes belong to another protocol.
        let is_interim = (100..200).contains(&self.status) && self.status != 101;
        self.place = if is_interim {
            Place::Start
        } else {
            Place::Content
        };
    }
}

/// A field name in lower case, without hyphens and without the bytes that no token has.
#[derive(Clone, Copy, Debug, Default)]
struct FieldName {
    letters: [u8; NAME_MAX],
    length: usize,
    /// The name is no token, or has spaces in it.
    is_broken: bool,
    has_blank: bool,
    has_ended: bool,
}

impl FieldName {
    fn push(&mut self, byte: u8) {
        let is_blank = matches!(byte, b' ' | b'\t');
        // httparse accepts blanks after a name, but not before or in it.
        let fits = is_blank || (is_token(byte) && !self.has_blank);
        self.is_broken |= !fits;
        self.has_blank |= is_blank;
        // Other bytes of a token make another name, for example `content_length`.
        if byte.is_ascii_alphanumeric() || (is_token(byte) && byte != b'-') {
            if let Some(place) = self.letters.get_mut(self.length) {
                *place = byte.to_ascii_lowercase();
            }
            self.length += 1;
        }
    }

    /// Returns true if this is a framing field name, or looks like such a name.
    fn is_framing(&self) -> bool {
        FRAMING.contains(&self.letters.get(..self.length).unwrap_or_default())
    }
}

/// As [`FieldName::is_framing`], for a token.
fn is_framing_name(token: &[u8]) -> bool {
    let letters = || token.iter().filter(|byte| **byte != b'-');
    FRAMING.iter().any(|name| {
        let lower = letters().map(u8::to_ascii_lowercase);
        lower.eq(name.iter().copied())
    })
}

/// Returns true if the name of a field line is certainly not a framing field name, nor spelled like
/// such a name. Two letters are enough for most names.
fn cannot_be_framing(line: &[u8]) -> bool {
    let differs = |at: usize, others: [u8; 2]| {
        let byte = line.get(at).map_or(b'-', u8::to_ascii_lowercase);
        byte.is_ascii_alphanumeric() && !others.contains(&byte)
    };
    let begins_plainly = line.first().is_some_and(u8::is_ascii_alphanumeric);
    // Content-Length and Transfer-Encoding.
    begins_plainly && (differs(0, [b'c', b't']) || differs(1, [b'o', b'r']))
}

/// Returns the position of the first control character. Works in blocks, which compilers turn into
/// vector instructions: most heads have control characters only at the ends of lines.
fn first_control(bytes: &[u8]) -> Option<usize> {
    const BLOCK: usize = 16;
    let has_control = |block: &[u8; BLOCK]| {
        let found = |found: bool, byte: &u8| found | (*byte < b' ') | (*byte == 0x7f);
        block.iter().fold(false, found)
    };
    let (blocks, _) = bytes.as_chunks::<BLOCK>();
    let clean = blocks.iter().take_while(|block| !has_control(block));
    let clean = clean.count() * BLOCK;
    let at = bytes[clean..].iter().position(u8::is_ascii_control)?;
    Some(clean + at)
}

/// Uses a table, because each byte of many names is checked.
fn is_token(byte: u8) -> bool {
    const TOKEN: [bool; 256] = {
        let mut table = [false; 256];
        let others = b"!#$%&'*+-.^_`|~";
        let mut at = 0;
        while at < others.len() {
            table[others[at] as usize] = true;
            at += 1;
        }
        let mut byte = 0_u8;
        while byte < 128 {
            table[byte as usize] |= byte.is_ascii_alphanumeric();
            byte += 1;
        }
        table
    };
    TOKEN[usize::from(byte)]
}

/// Reason phrase position in a status line, at the blank before it.
const REASON: usize = 12;

/// Framing field names, without hyphens.
const FRAMING: [&[u8]; 2] = [b"contentlength", b"transferencoding"];
/// Longer than each name above.
const NAME_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn repaired(head: &str) -> String {
        let mut whole = head.as_bytes().to_vec();
        let head_bytes = HeadRepair::default().repair(&mut whole);
        for step in [1, 2, 5] {
            let mut cut = head.as_bytes().to_vec();
            let mut repair = HeadRepair::default();
            let parts: usize = cut.chunks_mut(step).map(|part| repair.repair(part)).sum();
            assert_eq!(cut, whole, "cut every {step} bytes");
            assert_eq!(parts, head_bytes, "cut every {step} bytes");
        }
        String::from_utf8(whole).unwrap()
    }

    #[test]
    fn a_well_formed_head_and_its_content_stay_as_they_are() {
        for head in [
            "HTTP/1.1 200 OK\r\nX: a\tb\r\n\r\n\x01\x7f\0",
            "HTTP/1.0 200\r\n\r\n\x01",
            "\r\nHTTP/1.1 200 OK\nX:\n folded\n\n\x01",
            "HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\nHTTP/1.9 200 \x01",
            "HTTP/1.1 200 OK\r\nContent-Length : 5\r\ncontent_length: x\r\n\r\n12345",
            "HTTP/2.0 200 OK\r\n\r\n",
        ] {
            assert_eq!(repaired(head), head);
        }
    }

    #[test]
    fn what_says_nothing_becomes_a_space_and_a_later_version_the_one_that_is_known() {
        assert_eq!(
            repaired("HTTP/1.9 200 O\x01\x7fK\0\r\nX\x01: y\x7fz\r\n \x02w\r\n\r\n\x02"),
            "HTTP/1.1 200 O  K \r\nX\x01: y z\r\n  w\r\n\r\n\x02"
        );
        let folded = "HTTP/1.1 200\r\nContent-Type: x\r\n \x7f\r\nY: z\r\n \x7f\r\n\r\n";
        assert_eq!(repaired(folded), folded.replace('\x7f', " "));
        let interim = "HTTP/1.2 103 \x01\r\nLink: \x7f\r\n\r\nHTTP/1.2 200 \x01\r\n\r\n\x01";
        let expected = "HTTP/1.1 103  \r\nLink:  \r\n\r\nHTTP/1.1 200  \r\n\r\n\x01";
        assert_eq!(repaired(interim), expected);
    }

    #[test]
    fn the_bytes_of_all_heads_are_counted_and_those_of_content_are_not() {
        let interim = "HTTP/1.1 103 Early\r\n\r\n";
        let head = "HTTP/1.1 200 OK\r\nX: y\r\n\r\n";
        let mut read = format!("{interim}{head}HTTP/1.1 content").into_bytes();
        let mut repair = HeadRepair::default();
        assert_eq!(repair.repair(&mut read), interim.len() + head.len());
        assert_eq!(repair.repair(&mut read), 0);
    }

    #[test]
    fn doubts_about_framing_become_a_nul() {
        for (line, expected) in [
            ("Content-Length: 5\x7f", "Content-Length: 5\0"),
            (
                "Transfer-Encoding: \x0bchunked",
                "Transfer-Encoding: \0chunked",
            ),
            (
                "Transfer-Encoding\x0b: chunked",
                "Transfer-Encoding\x0b\0 chunked",
            ),
            (
                " Transfer-Encoding: chunked",
                " Transfer-Encoding\0 chunked",
            ),
            ("Content Length: 5", "Content Length\0 5"),
            ("Content-Length", "Content-Length\0"),
            ("Content-Length: 5\r\n \x7f", "Content-Length: 5\r\n \0"),
            ("Co-ntentlength: 5\r\n \x7f", "Co-ntentlength: 5\r\n \0"),
            (
                "Content-Length: 5\r\n \r\n \x01",
                "Content-Length: 5\r\n \r\n \0",
            ),
            ("X: a\0b", "X: a\0b"),
        ] {
            let head = format!("HTTP/1.1 200 OK\r\n{line}\r\n\r\n");
            let got = repaired(&head);
            assert!(
                got.starts_with(&format!("HTTP/1.1 200 OK\r\n{expected}")),
                "{got:?}"
            );
            assert!(got.contains('\0'));
        }
    }
}
