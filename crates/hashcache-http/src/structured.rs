//! Structured fields (RFC 9651): dictionaries and lists of strings.
//!
//! `targeted`, `groups`, `digest`, `link_field`, `related` and `cache_status` call it.
//!
//! Invariant: a field is either valid as a whole or ignored.
//! Cost: one pass over the field; a dictionary member is compared with all preceding members.

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// The value of a dictionary member, as far as directives need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    Boolean(bool),
    Integer(i64),
    /// A string or a token.
    Text(Vec<u8>),
    /// A byte sequence.
    Bytes(Vec<u8>),
    /// A decimal, a date, a list.
    Other,
}

/// The members of a dictionary over all field lines, the last for each key; `None` if the field is
/// invalid.
pub(crate) fn dictionary(fields: &HeaderMap, name: &HeaderName) -> Option<Vec<(String, Item)>> {
    let text = joined(fields, name);
    let mut members: Vec<(String, Item)> = Vec::new();
    list(&text, |parser| {
        let key = parser.key()?;
        let item = if parser.skip(b'=') {
            parser.member()?
        } else {
            Item::Boolean(true)
        };
        members.retain(|(known, _)| *known != key);
        members.push((key, item));
        (members.len() <= MEMBERS_MAX).then_some(())
    })?;
    Some(members)
}

/// The strings of a list over all field lines, at most [`MEMBERS_MAX`]; `None` if the field is
/// invalid or holds anything else.
pub(crate) fn strings(fields: &HeaderMap, name: &HeaderName) -> Option<Vec<String>> {
    let text = joined(fields, name);
    let mut strings = Vec::new();
    list(&text, |parser| {
        if parser.0.first() != Some(&b'"') {
            return None;
        }
        let Item::Text(text) = parser.string()? else {
            return None;
        };
        if strings.len() < MEMBERS_MAX {
            strings.push(String::from_utf8(text).ok()?);
        }
        Some(())
    })?;
    Some(strings)
}

/// Returns true if a field is a list with at least one member, and remains a list when a member is
/// appended.
pub(crate) fn is_list(fields: &HeaderMap, name: &HeaderName) -> bool {
    let has_member = |line: &HeaderValue| !line.as_bytes().trim_ascii().is_empty();
    let lines = fields.get_all(name);
    let text = joined(fields, name);
    lines.iter().all(has_member) && list(&text, |parser| parser.member().map(|_| ())).is_some()
}

fn joined(fields: &HeaderMap, name: &HeaderName) -> Vec<u8> {
    let lines = fields.get_all(name).iter().map(HeaderValue::as_bytes);
    lines.collect::<Vec<_>>().join(&b","[..])
}

/// Parses a comma-separated list; `member` parses a single member, up to the parameters.
fn list<'a>(text: &'a [u8], mut member: impl FnMut(&mut Parser<'a>) -> Option<()>) -> Option<()> {
    let mut parser = Parser(text);
    parser.blanks(b" ");
    while !parser.0.is_empty() {
        member(&mut parser)?;
        parser.parameters()?;
        parser.blanks(b" \t");
        if parser.0.is_empty() {
            break;
        }
        if !parser.skip(b',') {
            return None;
        }
        parser.blanks(b" \t");
        if parser.0.is_empty() {
            return None;
        }
    }
    Some(())
}

/// More than the number of directives, and twice the groups that RFC 9875 requires; a larger
/// dictionary would take quadratic time.
pub(crate) const MEMBERS_MAX: usize = 64;

struct Parser<'a>(&'a [u8]);

impl<'a> Parser<'a> {
    fn skip(&mut self, byte: u8) -> bool {
        let rest = self.0.strip_prefix(&[byte]);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn blanks(&mut self, which: &[u8]) {
        self.take(|b| which.contains(&b));
    }

    fn take(&mut self, wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.0.iter().position(|&b| !wanted(b));
        let (taken, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest;
        taken
    }

    fn key(&mut self) -> Option<String> {
        if !matches!(self.0.first()?, b'a'..=b'z' | b'*') {
            return None;
        }
        let key =
            self.take(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-.*".contains(&b));
        String::from_utf8(key.to_vec()).ok()
    }

    fn member(&mut self) -> Option<Item> {
        if !self.skip(b'(') {
            return self.item();
        }
        loop {
            self.blanks(b" ");
            if self.skip(b')') {
                return Some(Item::Other);
            }
            self.item()?;
            self.parameters()?;
            if !matches!(self.0.first()?, b' ' | b')') {
                return None;
            }
        }
    }

    fn parameters(&mut self) -> Option<()> {
        while self.skip(b';') {
            self.blanks(b" ");
            self.key()?;
            if self.skip(b'=') {
                self.item()?;
            }
        }
        Some(())
    }

    fn item(&mut self) -> Option<Item> {
        match self.0.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b'?' => {
                self.skip(b'?');
                let is_true = self.skip(b'1');
                (is_true || self.skip(b'0')).then_some(Item::Boolean(is_true))
            }
            b':' => {
                self.skip(b':');
                let text = self.take(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b));
                let bytes = base64(text)?;
                self.skip(b':').then_some(Item::Bytes(bytes))
            }
            b'@' => {
                self.skip(b'@');
                matches!(self.number()?, Item::Integer(_)).then_some(Item::Other)
            }
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
                let more = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&b);
                Some(Item::Text(self.take(more).to_vec()))
            }
            _ => None,
        }
    }

    /// An integer with at most 15 digits, or a decimal with at most 12 and 3.
    fn number(&mut self) -> Option<Item> {
        let negative = self.skip(b'-');
        let digits = self.take(|b| b.is_ascii_digit());
        if digits.is_empty() || digits.len() > 15 {
            return None;
        }
        if self.skip(b'.') {
            let fraction = self.take(|b| b.is_ascii_digit());
            let valid = digits.len() <= 12 && (1..=3).contains(&fraction.len());
            return valid.then_some(Item::Other);
        }
        let number: i64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Some(Item::Integer(if negative { -number } else { number }))
    }

    fn string(&mut self) -> Option<Item> {
        self.skip(b'"');
        let mut text = Vec::new();
        loop {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            match byte {
                b'"' => return Some(Item::Text(text)),
                b'\\' => {
                    let (&quoted, rest) = self.0.split_first()?;
                    self.0 = rest;
                    matches!(quoted, b'"' | b'\\').then(|| text.push(quoted))?;
                }
                b' '..=b'~' => text.push(byte),
                _ => return None,
            }
        }
    }
}

/// Decodes base64; the padding is optional (RFC 9651 4.2.7).
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let unpadded = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"="));
    if unpadded.is_some() && !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in unpadded.unwrap_or(text).chunks(4) {
        let mut bits: u32 = 0;
        for at in 0..4 {
            let digit = match four.get(at).copied() {
                None => 0,
                Some(b @ b'A'..=b'Z') => b - b'A',
                Some(b @ b'a'..=b'z') => b - b'a' + 26,
                Some(b @ b'0'..=b'9') => b - b'0' + 52,
                Some(b'+') => 62,
                Some(b'/') => 63,
                Some(_) => return None,
            };
            bits = bits << 6 | u32::from(digit);
        }
        let count = four.len().checked_sub(1).filter(|&count| count > 0)?;
        bytes.extend_from_slice(&bits.to_be_bytes()[1..=count]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for (name, value) in lines {
            fields.append(*name, value.parse().unwrap());
        }
        fields
    }

    #[test]
    fn dictionaries_are_read_as_structured_fields_are() {
        let name = HeaderName::from_static("x");
        let one = |text: &str| dictionary(&fields(&[("x", text)]), &name);
        assert_eq!(one(""), Some(vec![]));
        let read = one("max-age=5;x=\"y\", no-store,a=?0 , b=to/ken, c=\"s\\\"\", d=-1").unwrap();
        let expected = [
            ("max-age", Item::Integer(5)),
            ("no-store", Item::Boolean(true)),
            ("a", Item::Boolean(false)),
            ("b", Item::Text(b"to/ken".to_vec())),
            ("c", Item::Text(b"s\"".to_vec())),
            ("d", Item::Integer(-1)),
        ];
        assert_eq!(read, expected.map(|(key, item)| (key.to_owned(), item)));
        assert_eq!(
            one("a=1, a=2"),
            Some(vec![("a".to_owned(), Item::Integer(2))])
        );
        for other in ["a=1.5", "a=@5", "a=(1 \"x\";y  z)", "a=()"] {
            assert_eq!(
                one(other),
                Some(vec![("a".to_owned(), Item::Other)]),
                "{other}"
            );
        }
        for invalid in [
            "A=1",
            "a =1",
            "a= 1",
            "a=1,",
            ",a",
            "a=1 b=2",
            "&&&",
            "a=1.2345",
            "a=\"x",
            "a=?2",
            "a=1234567890123456",
            "a=(1",
            "a=(1\"x\")",
            "a=\"\\n\"",
            "a=",
        ] {
            assert_eq!(one(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn byte_sequences_are_base64() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("eA==", b"x"),
            ("eHk=", b"xy"),
            ("eHl6", b"xyz"),
            ("eHl6eA", b"xyzx"),
        ] {
            assert_eq!(base64(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
        for text in ["e", "=", "eA=", "eA==eA==", "e-"] {
            assert_eq!(base64(text.as_bytes()), None, "{text}");
        }
    }
}
