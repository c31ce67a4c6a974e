//! The fields in a block from an origin, checked (RFC 9113, section 8), and the block that h2 gets
//! for them.
//!
//! Called by `field_blocks`; `http2` calls [`take_malformed`]. A malformed message is an error of
//! the stream (section 8.1.1), but h2 closes the connection for some malformed messages, and so
//! drops the responses to all clients. So h2 gets a head or trailers with a single field,
//! [`MALFORMED`], with the reason as value.
//!
//! Invariants: a [`MALFORMED`] field from an origin never reaches h2. A block for h2 uses no table,
//! so the h2 table stays empty, whatever a block contains.
//! Cost: a copy per field.

use hashcache_wire::push_string;
use http::header::{HeaderMap, HeaderName};
use http::{StatusCode, header};

use super::hpack::{Field, table_bytes};

/// The role of a block in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockKind {
    /// A response head, or an interim response.
    Head,
    Trailers,
    /// Head or trailers: it is not known whether the stream has a head.
    Unknown,
}

/// The fields in a block so far.
#[derive(Debug)]
pub(super) struct Message {
    kind: BlockKind,
    /// Room for fields, in the bytes of RFC 9113, section 6.5.2.
    left: usize,
    block: Vec<u8>,
    status: Option<StatusCode>,
    has_fields: bool,
    malformed: Option<&'static str>,
}

/// A block for h2.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) block: Vec<u8>,
    /// True if the block is the final head of a response.
    pub(super) is_final_head: bool,
}

impl Message {
    /// Makes a message with fields up to this size, as RFC 9113, section 6.5.2, counts it.
    pub(super) fn new(kind: BlockKind, bytes_max: usize) -> Self {
        Self {
            kind,
            left: bytes_max,
            block: Vec::new(),
            status: None,
            has_fields: false,
            malformed: None,
        }
    }

    /// Makes a malformed head, for content without a head.
    pub(super) fn headless() -> Written {
        let mut message = Self::new(BlockKind::Head, 0);
        message.malformed = Some(NO_HEAD);
        message.written()
    }

    /// Adds the next field.
    pub(super) fn add(&mut self, field: &Field) {
        if self.malformed.is_some() {
            return;
        }
        match self.left.checked_sub(table_bytes(field)) {
            Some(left) => self.left = left,
            None => return self.fail(TOO_LARGE),
        }
        let Field { name, value } = field;
        if let Some(reason) = malformed_name(name) {
            return self.fail(reason);
        }
        if name.starts_with(b":") {
            return self.add_pseudo(name, value);
        }
        self.has_fields = true;
        if name == MALFORMED {
            return;
        }
        if name == header::TE.as_str() && value != "trailers" {
            return self.fail(OF_CONNECTION);
        }
        if value.iter().any(|octet| b"\r\n\0".contains(octet)) {
            return self.fail(BAD_VALUE);
        }
        self.block.push(LITERAL);
        push_string(&mut self.block, name);
        if value.iter().any(is_control) {
            let spaced = value
                .iter()
                .map(|octet| if is_control(octet) { b' ' } else { *octet });
            // Spaces at both ends do not belong to a value, as in HTTP/1.1.
            push_string(&mut self.block, spaced.collect::<Vec<_>>().trim_ascii());
        } else {
            push_string(&mut self.block, value);
        }
    }

    fn add_pseudo(&mut self, name: &[u8], value: &[u8]) {
        let may_be_here = self.kind != BlockKind::Trailers && !self.has_fields;
        if name != b":status" || !may_be_here {
            return self.fail(MISPLACED);
        }
        if self.status.is_some() {
            return self.fail(TWO_STATUSES);
        }
        let Ok(status) = StatusCode::from_bytes(value) else {
            return self.fail(NO_STATUS);
        };
        if status.is_informational() {
            self.left = self.left.min(INTERIM_BYTES);
        }
        self.status = Some(status);
        self.block.push(STATUS_INDEX);
        push_string(&mut self.block, value);
    }

    fn fail(&mut self, reason: &'static str) {
        self.malformed = Some(reason);
    }

    /// The block for h2.
    pub(super) fn written(mut self) -> Written {
        if self.kind == BlockKind::Head && self.status.is_none() && self.malformed.is_none() {
            self.malformed = Some(NO_STATUS);
        }
        let is_head = self.kind == BlockKind::Head || self.status.is_some();
        let Some(reason) = self.malformed else {
            let is_final_head = self.status.is_some_and(|status| !status.is_informational());
            return Written {
                block: self.block,
                is_final_head,
            };
        };
        if let Some(status) = self.status.filter(StatusCode::is_informational)
            && reason == TOO_LARGE
        {
            // A client may ignore every 1xx except 101 (RFC 9110, 15.2). To fail the stream would
            // lose the final response.
            let mut block = vec![STATUS_INDEX];
            push_string(&mut block, status.as_str().as_bytes());
            return Written {
                block,
                is_final_head: false,
            };
        }
        let mut block = Vec::new();
        if is_head {
            block.push(STATUS_200);
        }
        block.push(LITERAL);
        push_string(&mut block, MALFORMED.as_bytes());
        push_string(&mut block, reason.as_bytes());
        Written {
            block,
            is_final_head: is_head,
        }
    }
}

/// Removes and returns the reason from fields that h2 has read; `None`: their message is
/// well-formed.
pub(in super::super) fn take_malformed(fields: &mut HeaderMap) -> Option<&'static str> {
    let noted = fields.remove(MALFORMED)?;
    let reason = REASONS.iter().find(|reason| noted == **reason);
    Some(reason.copied().unwrap_or("not HTTP/2"))
}

fn malformed_name(name: &[u8]) -> Option<&'static str> {
    match name {
        b"" => Some(NO_NAME),
        [b':', ..] => None,
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
            Some(OF_CONNECTION)
        }
        _ if HeaderName::from_lowercase(name).is_err() => Some(BAD_NAME),
        _ => None,
    }
}

fn is_control(octet: &u8) -> bool {
    octet.is_ascii_control() && *octet != b'\t'
}

/// The only field of a malformed message besides the status, for h2.
const MALFORMED: &str = "hashcache-malformed";
const NO_NAME: &str = "a field name is empty";
const BAD_NAME: &str = "a field name is no token";
const BAD_VALUE: &str = "a field value has a line end or NUL";
const OF_CONNECTION: &str = "a field of the connection in HTTP/2";
const MISPLACED: &str = "a pseudo-field in the wrong place";
const NO_STATUS: &str = "no status, or none of three digits";
const TWO_STATUSES: &str = "two statuses";
const NO_HEAD: &str = "content without a head";
const TOO_LARGE: &str = "head is too large";
const REASONS: [&str; 9] = [
    NO_NAME,
    BAD_NAME,
    BAD_VALUE,
    OF_CONNECTION,
    MISPLACED,
    NO_STATUS,
    TWO_STATUSES,
    NO_HEAD,
    TOO_LARGE,
];
/// Room for the fields of an interim response. h2 keeps interim responses of a stream until it is
/// polled, and an origin may send 32.
const INTERIM_BYTES: usize = 8 << 10;
/// Literals that enter no table (RFC 7541, section 6.2.2): with a literal name, and with `:status`.
const LITERAL: u8 = 0;
const STATUS_INDEX: u8 = 8;
/// `:status: 200` of the static table.
const STATUS_200: u8 = 0x88;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn message(kind: BlockKind, fields: &[(&'static str, &'static str)]) -> Written {
        let mut message = Message::new(kind, 1000);
        for (name, value) in fields {
            let [name, value] = [name, value].map(|text| Bytes::from_static(text.as_bytes()));
            message.add(&Field { name, value });
        }
        message.written()
    }

    fn block(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in fields {
            match *name {
                ":status" => block.push(STATUS_INDEX),
                _ => {
                    block.push(0);
                    push_string(&mut block, name.as_bytes());
                }
            }
            push_string(&mut block, value.as_bytes());
        }
        block
    }

    fn reason(written: &Written) -> Option<&str> {
        let block = &written.block;
        let mark = MALFORMED.as_bytes();
        let at = block.windows(mark.len()).position(|part| part == mark)?;
        str::from_utf8(&block[at + mark.len() + 1..]).ok()
    }

    #[test]
    fn a_well_formed_message_has_its_fields_in_literals() {
        let status = (":status", "200");
        for (kind, fields, is_final_head) in [
            (BlockKind::Head, &[status, ("a", "b"), ("c", "")][..], true),
            (
                BlockKind::Head,
                &[(":status", "103"), ("te", "trailers")],
                false,
            ),
            (BlockKind::Trailers, &[("a", "\u{e9}\tb")], false),
            (BlockKind::Trailers, &[], false),
            (BlockKind::Unknown, &[status], true),
            (BlockKind::Unknown, &[("a", "b")], false),
        ] {
            let written = message(kind, fields);
            assert_eq!(written.block, block(fields), "{fields:?}");
            assert_eq!(written.is_final_head, is_final_head, "{fields:?}");
        }
    }

    #[test]
    fn an_interim_response_with_too_many_fields_loses_them_and_a_final_one_is_malformed() {
        let large: &'static str = "v".repeat(1000).leak();
        for (status, is_final_head) in [("103", false), ("200", true)] {
            let written = message(BlockKind::Head, &[(":status", status), ("link", large)]);
            assert_eq!(written.is_final_head, is_final_head);
            if is_final_head {
                assert_eq!(reason(&written), Some(TOO_LARGE));
            } else {
                assert_eq!(written.block, block(&[(":status", status)]));
            }
        }
    }

    #[test]
    fn control_characters_become_spaces_and_none_at_the_ends() {
        let odd = [
            (":status", "200"),
            ("x", "\u{1}a\u{7f}b\u{1f}"),
            ("y", "\u{8}"),
        ];
        let expected = block(&[(":status", "200"), ("x", "a b"), ("y", "")]);
        assert_eq!(message(BlockKind::Head, &odd).block, expected);
        // The origin's own spaces are another fault, which is found later.
        let blank = [(":status", "200"), ("x", " a")];
        assert_eq!(message(BlockKind::Head, &blank).block, block(&blank));
    }

    #[test]
    fn a_malformed_message_has_its_reason_and_nothing_else() {
        let status = (":status", "200");
        for (fields, expected) in [
            (&[status, ("", "x")][..], NO_NAME),
            (&[status, ("Upper", "x")], BAD_NAME),
            (&[status, ("a b", "x")], BAD_NAME),
            (&[status, ("x", "a\0b")], BAD_VALUE),
            (&[status, ("x", "a\r\nb: c")], BAD_VALUE),
            (&[status, ("connection", "close")], OF_CONNECTION),
            (&[status, ("keep-alive", "")], OF_CONNECTION),
            (&[status, ("proxy-connection", "")], OF_CONNECTION),
            (&[status, ("transfer-encoding", "chunked")], OF_CONNECTION),
            (&[status, ("upgrade", "h2c")], OF_CONNECTION),
            (&[status, ("te", "gzip")], OF_CONNECTION),
            (&[("x", "y"), status], MISPLACED),
            (&[status, (":path", "/")], MISPLACED),
            (&[status, (":method", "a b")], MISPLACED),
            (&[status, (":unknown", "")], MISPLACED),
            (&[status, (":", "")], MISPLACED),
            (&[], NO_STATUS),
            (&[("x", "y")], NO_STATUS),
            (&[(":status", "")], NO_STATUS),
            (&[(":status", "20")], NO_STATUS),
            (&[(":status", "2000")], NO_STATUS),
            (&[(":status", "abc")], NO_STATUS),
            (&[(":status", "099")], NO_STATUS),
            (&[status, status], TWO_STATUSES),
        ] {
            let written = message(BlockKind::Head, fields);
            assert_eq!(reason(&written), Some(expected), "{fields:?}");
            assert!(written.block.starts_with(&[STATUS_200, LITERAL]));
            assert!(written.is_final_head);
        }
        for fields in [&[status][..], &[("x", "y"), status], &[(":path", "/")]] {
            let written = message(BlockKind::Trailers, fields);
            assert_eq!(reason(&written), Some(MISPLACED), "{fields:?}");
            assert!(written.block.starts_with(&[LITERAL]) && !written.is_final_head);
        }
        assert_eq!(reason(&Message::headless()), Some(NO_HEAD));
    }

    #[test]
    fn no_more_fields_are_kept_than_a_head_may_have() {
        let mut message = Message::new(BlockKind::Head, 200);
        let value = Bytes::from_static(&[b'v'; 40]);
        for name in [":status", "a", "b", "c"] {
            let value = match name {
                ":status" => Bytes::from_static(b"200"),
                _ => value.clone(),
            };
            let name = Bytes::from_static(name.as_bytes());
            message.add(&Field { name, value });
            assert!(message.block.len() <= 200);
        }
        assert_eq!(reason(&message.written()), Some(TOO_LARGE));
    }

    #[test]
    fn the_mark_is_the_one_of_this_proxy() {
        let forged = [(":status", "200"), (MALFORMED, "x"), ("a", "b")];
        let written = message(BlockKind::Head, &forged);
        assert_eq!(written.block, block(&[(":status", "200"), ("a", "b")]));
        let mut fields = HeaderMap::new();
        assert_eq!(take_malformed(&mut fields), None);
        for reason in REASONS {
            fields.insert(MALFORMED, reason.parse().unwrap());
            assert_eq!(take_malformed(&mut fields), Some(reason));
            assert!(fields.is_empty());
        }
    }
}
