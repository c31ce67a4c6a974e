//! Building blocks of field values: lists, tokens, quoted strings, digits.
//!
//! Called by every module that reads a field; calls nothing.
//!
//! Invariant: a list is split only at commas outside quoted strings, over all its field lines.
//! Cost: each byte is examined once or twice; nothing is allocated unless a string is unescaped.

use std::borrow::Cow;

use http::header::{AsHeaderName, HeaderMap, HeaderName};

/// How to read a backslash inside double quotes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backslash {
    /// The backslash quotes the next byte (`quoted-string`).
    Escapes,
    /// The backslash is an ordinary byte (`entity-tag`).
    Plain,
}

/// The members of a list field over all lines, trimmed, without empty members.
pub(crate) fn members<'a>(
    fields: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    fields
        .get_all(name)
        .iter()
        .flat_map(|line| split_list(line.as_bytes(), Backslash::Escapes))
}

/// The members in a single line of a list field, trimmed, without empty members.
pub(crate) fn split_list(line: &[u8], backslash: Backslash) -> impl Iterator<Item = &[u8]> {
    split(line, b',', backslash)
}

/// Splits at a separator outside quoted strings; trims the pieces and drops empty pieces.
pub(crate) fn split(
    line: &[u8],
    separator: u8,
    backslash: Backslash,
) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    let mut quotes_close = true;
    std::iter::from_fn(move || {
        loop {
            let line = rest?;
            let end = next_separator(line, separator, backslash, &mut quotes_close);
            rest = line.get(end + 1..);
            let piece = trim(&line[..end]);
            if !piece.is_empty() {
                return Some(piece);
            }
        }
    })
}

/// The position of the next separator, or the length of the line.
///
/// A quote that is never closed is a plain byte, and so is every later quote in the line. If it
/// swallowed the rest, a broken extension could hide a `no-store`; if each later quote were tried
/// anew, a crafted line would take quadratic time.
fn next_separator(
    line: &[u8],
    separator: u8,
    backslash: Backslash,
    quotes_close: &mut bool,
) -> usize {
    let mut at = 0;
    while at < line.len() {
        if line[at] == separator {
            return at;
        }
        at += 1;
        if line[at - 1] == b'"' && *quotes_close {
            match closing_quote(&line[at..], backslash) {
                Some(length) => at += length + 1,
                None => *quotes_close = false,
            }
        }
    }
    line.len()
}

/// The number of bytes before the closing quote.
fn closing_quote(inside: &[u8], backslash: Backslash) -> Option<usize> {
    let mut at = 0;
    while at < inside.len() {
        match inside[at] {
            b'"' => return Some(at),
            b'\\' if backslash == Backslash::Escapes => at += 2,
            _ => at += 1,
        }
    }
    None
}

/// The unescaped content of a value that is a single quoted string.
pub(crate) fn unquote(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    let inside = value.strip_prefix(b"\"")?;
    let length = closing_quote(inside, Backslash::Escapes)?;
    if length + 1 != inside.len() {
        return None;
    }
    let inside = &inside[..length];
    if !inside.contains(&b'\\') {
        return Some(Cow::Borrowed(inside));
    }
    let mut plain = Vec::with_capacity(inside.len());
    let mut bytes = inside.iter();
    while let Some(&b) = bytes.next() {
        plain.push(if b == b'\\' { *bytes.next()? } else { b });
    }
    Some(Cow::Owned(plain))
}

/// Removes leading and trailing blanks and tabs.
pub(crate) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Returns true if the bytes form a `token` (RFC 9110 5.6.2).
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    let token_byte = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    !bytes.is_empty() && bytes.iter().all(token_byte)
}

/// Parses a whole number that has digits only. A number too large for `u64` becomes `u64::MAX`.
pub(crate) fn digits(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let append = |n: u64, b: &u8| n.saturating_mul(10).saturating_add(u64::from(b - b'0'));
    Some(value.iter().fold(0, append))
}

/// A field that may occur once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Single<'a> {
    Absent,
    /// A single line, or several equal lines.
    One(&'a [u8]),
    /// Lines that disagree, so no line can be trusted.
    Conflicting,
}

/// Reads a field that may occur once.
pub(crate) fn single<K: AsHeaderName>(fields: &HeaderMap, name: K) -> Single<'_> {
    let mut lines = fields
        .get_all(name)
        .iter()
        .map(|value| trim(value.as_bytes()));
    let Some(first) = lines.next() else {
        return Single::Absent;
    };
    if lines.all(|other| other == first) {
        Single::One(first)
    } else {
        Single::Conflicting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_text(line: &str) -> Vec<&str> {
        split_list(line.as_bytes(), Backslash::Escapes)
            .map(|member| std::str::from_utf8(member).unwrap())
            .collect()
    }

    #[test]
    fn commas_inside_quotes_do_not_split() {
        assert_eq!(split_text(r#"a="x, y" , b"#), [r#"a="x, y""#, "b"]);
        assert_eq!(split_text(r#"a="x\", y", b"#), [r#"a="x\", y""#, "b"]);
        assert_eq!(split_text(", ,a,,b, "), ["a", "b"]);
        assert_eq!(split_text(""), [""; 0]);
    }

    #[test]
    fn an_unclosed_quote_hides_nothing() {
        assert_eq!(split_text(r#"a="x, no-store"#), [r#"a="x"#, "no-store"]);
        assert_eq!(split_text(r#"a="x\", no-store"#), [r#"a="x\""#, "no-store"]);
    }

    #[test]
    fn a_line_of_escaped_quotes_is_split_in_linear_time() {
        let line = br#""","#.repeat(100_000);
        assert_eq!(split_list(&line, Backslash::Escapes).count(), 100_000);
    }

    #[test]
    fn an_entity_tag_ends_with_a_backslash_like_any_byte() {
        let tags: Vec<_> = split_list(br#""a\", "b""#, Backslash::Plain).collect();
        assert_eq!(tags, [br#""a\""#.as_slice(), br#""b""#]);
    }

    #[test]
    fn unquote_takes_whole_quoted_strings_only() {
        assert_eq!(unquote(br#""a\"b""#).as_deref(), Some(br#"a"b"#.as_slice()));
        assert_eq!(unquote(br#""a"b"#), None);
        assert_eq!(unquote(br#""a\""#), None);
        assert_eq!(unquote(b"a"), None);
    }

    #[test]
    fn digits_saturate_and_take_no_signs() {
        assert_eq!(digits(b"0007"), Some(7));
        assert_eq!(digits(b"99999999999999999999999"), Some(u64::MAX));
        for text in ["", "+1", "-1", "1.0", " 1", "0x1"] {
            assert_eq!(digits(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn lines_that_disagree_conflict() {
        let mut fields = HeaderMap::new();
        assert_eq!(single(&fields, "expires"), Single::Absent);
        fields.append("expires", "a".parse().unwrap());
        fields.append("expires", "a".parse().unwrap());
        assert_eq!(single(&fields, "expires"), Single::One(b"a"));
        fields.append("expires", "b".parse().unwrap());
        assert_eq!(single(&fields, "expires"), Single::Conflicting);
    }
}
