//! Any octets of a request target as text, and back.
//!
//! Browsers and scripts put more into a path or a query than RFC 3986 allows: quotes, angle
//! brackets, UTF-8, and old ones Latin-1. Servers take all of it, and each may mean something else
//! by it, so the octets have to reach the origin unchanged. [`crate::Target`] keeps text, which the
//! rules, mirrors and logs can split and compare. An octet that is no part of UTF-8 is kept as one
//! character of a range at the end of Unicode's private planes. Octets that spell a character of
//! that range themselves are kept one by one in the same way.
//!
//! Called by the proxy with the target of each request, and where a target leaves the process.
//!
//! Invariant: [`octets`] gives back what [`octet_text`] got. Two targets of different octets are
//! therefore different text, and have different cache keys.
//! Cost: one pass; nothing is allocated for UTF-8.

use std::borrow::Cow;

/// The target's octets as text.
pub fn octet_text(octets: &[u8]) -> Cow<'_, str> {
    if let Some(text) = plain_text(octets) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(octets.len() + 16);
    for chunk in octets.utf8_chunks() {
        for character in chunk.valid().chars() {
            if is_octet(character) {
                let mut spelled = [0; 4];
                let spelled = character.encode_utf8(&mut spelled).bytes();
                text.extend(spelled.map(as_character));
            } else {
                text.push(character);
            }
        }
        text.extend(chunk.invalid().iter().copied().map(as_character));
    }
    Cow::Owned(text)
}

/// The octets as they are, if they are text that needs no other form: UTF-8 without characters of
/// the last plane. Other targets are rare enough for a slower way.
pub fn plain_text(octets: &[u8]) -> Option<&str> {
    let is_last_plane = |octet: &u8| *octet >= LAST_PLANE;
    if octets.iter().any(is_last_plane) {
        None
    } else {
        std::str::from_utf8(octets).ok()
    }
}

/// The octets that [`octet_text`] has made this text of.
pub fn octets(text: &str) -> Cow<'_, [u8]> {
    if !text.bytes().any(|octet| octet >= LAST_PLANE) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut octets = Vec::with_capacity(text.len());
    for character in text.chars() {
        match u8::try_from(u32::from(character) & 0xff) {
            Ok(octet) if is_octet(character) => octets.push(octet),
            _ => octets.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(octets)
}

/// An octet above 127 as a character.
fn as_character(octet: u8) -> char {
    char::from_u32(RANGE | u32::from(octet)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Whether a character stands for an octet.
fn is_octet(character: char) -> bool {
    let code = u32::from(character);
    code & !0xff == RANGE && code & 0x80 != 0
}

/// U+10FF80 to U+10FFFF, 128 of the private characters of the last plane.
const RANGE: u32 = 0x0010_ff00;
/// The first octet of UTF-8 for the characters from U+100000 on.
const LAST_PLANE: u8 = 0xf4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_octets_come_back_unchanged() {
        for given in [
            &b"/plain?a=b|c"[..],
            b"/\xe4/\xff\x80",
            "/日本?é".as_bytes(),
            "/\u{10ffff}".as_bytes(),
            "/\u{10ff80}\u{10ff7f}".as_bytes(),
            "/\u{100000}".as_bytes(),
            b"/\xf4\x8f\xbe",
            b"",
        ] {
            assert_eq!(octets(&octet_text(given)), given, "{given:?}");
        }
        for first in 0..=255 {
            for second in 0..=255 {
                let given = [b'/', first, second, b'x'];
                assert_eq!(*octets(&octet_text(&given)), given);
            }
        }
    }

    #[test]
    fn different_octets_are_different_text() {
        let latin = octet_text(b"/\xe4");
        let spelled = octet_text(latin.as_bytes()).into_owned();
        assert_ne!(latin, spelled);
        assert_ne!(latin, octet_text("/ä".as_bytes()));
    }

    #[test]
    fn text_of_the_usual_planes_is_kept_as_it_is() {
        assert!(matches!(
            octet_text("/é日😀".as_bytes()),
            Cow::Borrowed("/é日😀")
        ));
        assert!(matches!(octets("/é日😀"), Cow::Borrowed(_)));
    }
}
