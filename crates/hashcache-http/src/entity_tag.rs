//! Entity tags and their two comparisons (RFC 9110 8.8.3).
//!
//! `validate` and `range` call this module.
//!
//! Invariant: a value that is not an entity tag never equals an entity tag. Unquoted values, which
//! some origins send, equal only the same bytes, and never strongly.
//! Cost: one comparison of bytes.

/// An entity tag as written in a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntityTag<'a> {
    /// The bytes between the quotes, or all bytes if there are no quotes.
    opaque: &'a [u8],
    kind: TagKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TagKind {
    Strong,
    Weak,
    /// Not an entity tag by the grammar.
    Unquoted,
}

impl<'a> EntityTag<'a> {
    /// Parses the value of an ETag field or a member of If-None-Match.
    pub fn parse(value: &'a [u8]) -> EntityTag<'a> {
        let (kind, quoted) = match value.strip_prefix(b"W/") {
            Some(rest) => (TagKind::Weak, rest),
            None => (TagKind::Strong, value),
        };
        let inside = quoted
            .strip_prefix(b"\"")
            .and_then(|rest| rest.strip_suffix(b"\""));
        match inside {
            Some(opaque) if !opaque.iter().any(|&b| b == b'"' || b <= b' ' || b == 0x7f) => {
                EntityTag { opaque, kind }
            }
            _ => EntityTag {
                opaque: value,
                kind: TagKind::Unquoted,
            },
        }
    }

    /// Returns true for a strong tag, which changes whenever a byte of the content changes.
    pub fn is_strong(&self) -> bool {
        self.kind == TagKind::Strong
    }

    /// Returns true if the tag follows the grammar.
    pub fn is_well_formed(&self) -> bool {
        self.kind != TagKind::Unquoted
    }

    /// The strong comparison: the same bytes, for ranges.
    pub fn equals_strongly(&self, other: &EntityTag<'_>) -> bool {
        self.is_strong() && other.is_strong() && self.opaque == other.opaque
    }

    /// The weak comparison: equivalent content, for validation.
    pub fn equals_weakly(&self, other: &EntityTag<'_>) -> bool {
        self.is_well_formed() == other.is_well_formed() && self.opaque == other.opaque
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_as_the_table_of_rfc_9110_8_8_3_2() {
        let rows: [(&[u8], &[u8], bool, bool); 4] = [
            (b"W/\"1\"", b"W/\"1\"", false, true),
            (b"W/\"1\"", b"W/\"2\"", false, false),
            (b"W/\"1\"", b"\"1\"", false, true),
            (b"\"1\"", b"\"1\"", true, true),
        ];
        for (one, other, strong, weak) in rows {
            let (one, other) = (EntityTag::parse(one), EntityTag::parse(other));
            assert_eq!(one.equals_strongly(&other), strong, "{one:?} {other:?}");
            assert_eq!(one.equals_weakly(&other), weak, "{one:?} {other:?}");
        }
    }

    #[test]
    fn what_is_no_entity_tag_equals_only_its_own_bytes() {
        let tag = EntityTag::parse(b"\"abc\"");
        for text in ["abc", "w/\"abc\"", "\"abc", "abc\"", "W/abc", "\"a\"bc\""] {
            let other = EntityTag::parse(text.as_bytes());
            assert!(!other.is_well_formed() && !other.is_strong(), "{text}");
            assert!(!tag.equals_weakly(&other), "{text}");
            assert!(
                other.equals_weakly(&other) && !other.equals_strongly(&other),
                "{text}"
            );
        }
    }

    #[test]
    fn obs_text_backslashes_and_commas_are_opaque() {
        let tag = EntityTag::parse(b"\"a\\,\xff\"");
        assert!(tag.is_strong());
        assert_eq!(tag.opaque, b"a\\,\xff");
    }
}
