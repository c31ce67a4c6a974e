//! Converts any octets in a request target to text, and back.
//!
//! Browsers and scripts send octets in a path or query that RFC 3986 does not allow: quotes, angle
//! brackets, UTF-8, and old programs Latin-1. Servers accept all of them, and each server may
//! interpret them differently, so the octets must reach the origin unchanged. [`crate::Target`]
//! keeps text, which the rules, mirrors and logs can split and compare. Each octet outside valid
//! UTF-8 is kept as a character in a range at the end of Unicode's private planes. Octets that
//! encode a character in that range themselves are also kept octet by octet in this way.
//!
//! The proxy calls it with the target of each request, and wherever a target leaves the process.
//!
//! Invariant: [`octets`] returns exactly the input of [`octet_text`]. Two targets with different
//! octets therefore have different text and different cache keys.
//! Cost: one pass; nothing is allocated for UTF-8.

use std::borrow::Cow;

/// Converts the target's octets to text.
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

/// The octets unchanged, if they are text that needs no conversion: UTF-8 without characters in the
/// last plane. Other targets are rare enough for a slower path.
pub fn plain_text(octets: &[u8]) -> Option<&str> {
    let is_last_plane = |octet: &u8| *octet >= LAST_PLANE;
    if octets.iter().any(is_last_plane) {
        None
    } else {
        std::str::from_utf8(octets).ok()
    }
}

/// Restores the octets from the text made by [`octet_text`].
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

/// Maps an octet above 127 to a character.
fn as_character(octet: u8) -> char {
    char::from_u32(RANGE | u32::from(octet)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Returns true if a character represents an octet.
fn is_octet(character: char) -> bool {
    let code = u32::from(character);
    code & !0xff == RANGE && code & 0x80 != 0
}

/// U+10FF80 to U+10FFFF, 128 private characters in the last plane.
const RANGE: u32 = 0x0010_ff00;
/// The first octet in UTF-8 of U+100000 and all higher characters.
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
