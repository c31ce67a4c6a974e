//! Escapes clients' bytes for a log line, so that no byte can terminate a line, a field or a quote.
//!
//! Called only by `format`. Runs of harmless bytes are copied at once.
//!
//! Invariant: the output is ASCII without control characters.

/// How a field is quoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quoting {
    /// Percent-encoding, for fields between spaces.
    Url,
    /// Backslash escapes, as in Apache's quoted fields.
    Quoted,
    /// JSON string escapes.
    Json,
}

/// Appends at most `bound` bytes of `bytes`, and an ellipsis if there are more.
pub(super) fn push(line: &mut Vec<u8>, bytes: &[u8], escape: Quoting, bound: usize) {
    let cut = &bytes[..bytes.len().min(bound)];
    let mut rest = cut;
    while let Some(at) = first_other(rest, escape) {
        line.extend_from_slice(&rest[..at]);
        rest = push_other(line, &rest[at..], escape);
    }
    line.extend_from_slice(rest);
    if cut.len() < bytes.len() {
        line.extend_from_slice(b"...");
    }
}

/// Returns the position of the first byte that needs escaping. Checks eight bytes at a time without
/// branches, which the compiler vectorises, because most fields have no such byte.
fn first_other(bytes: &[u8], escape: Quoting) -> Option<usize> {
    let (eights, _) = bytes.as_chunks::<8>();
    let plain = eights
        .iter()
        .take_while(|eight| {
            eight
                .iter()
                .fold(true, |all, &byte| all & is_plain(byte, escape))
        })
        .count()
        * 8;
    let at = bytes[plain..]
        .iter()
        .position(|&byte| !is_plain(byte, escape))?;
    Some(plain + at)
}

fn is_plain(byte: u8, escape: Quoting) -> bool {
    let lowest = if escape == Quoting::Url { b'!' } else { b' ' };
    (byte >= lowest) & (byte <= b'~') & (byte != b'"') & (byte != b'\\')
}

/// Appends the first byte of `bytes`, escaped, and returns the rest.
fn push_other<'a>(line: &mut Vec<u8>, bytes: &'a [u8], escape: Quoting) -> &'a [u8] {
    let (first, rest) = (bytes[0], &bytes[1..]);
    match escape {
        Quoting::Url => line.extend([b'%', upper(first >> 4), upper(first & 15)]),
        Quoting::Quoted if matches!(first, b'"' | b'\\') => line.extend([b'\\', first]),
        Quoting::Quoted => line.extend([b'\\', b'x', lower(first >> 4), lower(first & 15)]),
        Quoting::Json if matches!(first, b'"' | b'\\') => line.extend([b'\\', first]),
        Quoting::Json if first.is_ascii() => push_unit(line, u16::from(first)),
        Quoting::Json => {
            // Escape a UTF-8 character as such; any other byte as Latin-1, which old clients use
            // and which loses nothing.
            let width = match first {
                0xc2..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0..=0xf4 => 4,
                _ => 1,
            };
            let character = bytes
                .get(..width)
                .and_then(|bytes| std::str::from_utf8(bytes).ok())
                .and_then(|text| text.chars().next());
            let Some(character) = character else {
                push_unit(line, u16::from(first));
                return rest;
            };
            for unit in character.encode_utf16(&mut [0; 2]) {
                push_unit(line, *unit);
            }
            return &bytes[width..];
        }
    }
    rest
}

fn push_unit(line: &mut Vec<u8>, unit: u16) {
    let [high, low] = unit.to_be_bytes();
    line.extend([
        b'\\',
        b'u',
        lower(high >> 4),
        lower(high & 15),
        lower(low >> 4),
        lower(low & 15),
    ]);
}

fn lower(digit: u8) -> u8 {
    b"0123456789abcdef"[usize::from(digit & 15)]
}

fn upper(digit: u8) -> u8 {
    b"0123456789ABCDEF"[usize::from(digit & 15)]
}

/// Returns host and port without user name and password.
pub(super) fn without_userinfo(authority: &str) -> &str {
    authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host)
}

/// Splits a URL or a target in any form into the parts before and after the userinfo.
pub(super) fn around_userinfo(target: &[u8]) -> (&[u8], &[u8]) {
    if target.first().is_none_or(|&byte| byte == b'/') {
        return (target, &[]);
    }
    let authority = target
        .windows(3)
        .position(|at| at == b"://")
        .map_or(0, |at| at + 3);
    let end = target[authority..]
        .iter()
        .position(|byte| b"/?#".contains(byte))
        .map_or(target.len(), |at| authority + at);
    match target[authority..end]
        .iter()
        .rposition(|&byte| byte == b'@')
    {
        Some(at) => (&target[..authority], &target[authority + at + 1..]),
        None => (target, &[]),
    }
}

/// Returns the part up to the query, including the question mark.
pub(super) fn without_query(target: &[u8]) -> &[u8] {
    let end = target.iter().position(|byte| b"?#".contains(byte));
    end.map_or(target, |at| &target[..=at])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn escaped(bytes: &[u8], escape: Quoting) -> String {
        let mut line = Vec::new();
        push(&mut line, bytes, escape, usize::MAX);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn each_form_escapes_what_would_end_its_field() {
        let evil = b"a b\"c\\d\r\ne\xff\x7f";
        assert_eq!(escaped(evil, Quoting::Url), "a%20b%22c%5Cd%0D%0Ae%FF%7F");
        assert_eq!(
            escaped(evil, Quoting::Quoted),
            r#"a b\"c\\d\x0d\x0ae\xff\x7f"#
        );
        assert_eq!(
            escaped(evil, Quoting::Json),
            r#"a b\"c\\d\u000d\u000ae\u00ff\u007f"#
        );
    }

    #[test]
    fn json_keeps_characters_and_reads_other_bytes_as_latin_1() {
        assert_eq!(
            escaped("é€😀".as_bytes(), Quoting::Json),
            r"\u00e9\u20ac\ud83d\ude00"
        );
        assert_eq!(escaped(b"\xe9t\xe9", Quoting::Json), r"\u00e9t\u00e9");
        assert_eq!(escaped(b"\xf0\x9f", Quoting::Json), r"\u00f0\u009f");
    }

    #[test]
    fn long_fields_are_cut_with_an_ellipsis() {
        let mut line = Vec::new();
        push(&mut line, b"abcdef", Quoting::Url, 4);
        push(&mut line, b"|gh", Quoting::Url, 4);
        assert_eq!(line, b"abcd...|gh");
    }

    #[test]
    fn userinfo_is_found_wherever_the_authority_stands() {
        let without = |target: &str| {
            let (before, after) = around_userinfo(target.as_bytes());
            [before, after].concat()
        };
        assert_eq!(without("http://u:p@a.test/x@y"), b"http://a.test/x@y");
        assert_eq!(without("http://u:p@q@a.test"), b"http://a.test");
        assert_eq!(without("u:p@a.test:443"), b"a.test:443");
        assert_eq!(without("/x@y"), b"/x@y");
        assert_eq!(without("http://a.test/?m=u@b"), b"http://a.test/?m=u@b");
        assert_eq!(without(""), b"");
        assert_eq!(without_userinfo("u:p@a.test:80"), "a.test:80");
        assert_eq!(without_userinfo("a.test"), "a.test");
    }

    #[test]
    fn a_query_goes_but_for_its_question_mark() {
        assert_eq!(without_query(b"/a?token=1#x"), b"/a?");
        assert_eq!(without_query(b"/a"), b"/a");
    }

    proptest! {
        #[test]
        fn nothing_escaped_can_break_out(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let url = escaped(&bytes, Quoting::Url);
            prop_assert!(url.bytes().all(|b| b.is_ascii_graphic() && b != b'"'));
            for escape in [Quoting::Quoted, Quoting::Json] {
                let text = escaped(&bytes, escape);
                prop_assert!(text.bytes().all(|b| (b' '..=b'~').contains(&b)));
                // Every quote is escaped, and no backslash is left over to escape ours.
                let bare = text.replace(r"\\", "").replace(r#"\""#, "");
                prop_assert!(!bare.contains('"') && !bare.ends_with('\\'));
            }
            let json = format!("\"{}\"", escaped(&bytes, Quoting::Json));
            let text: String = serde_json::from_str(&json).unwrap();
            if let Ok(sent) = std::str::from_utf8(&bytes) {
                prop_assert_eq!(text, sent);
            }
        }
    }
}
