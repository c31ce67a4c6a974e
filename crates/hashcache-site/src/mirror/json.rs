//! Rewrites links in JSON while it passes.
//!
//! Parses only as much JSON as is needed to distinguish strings from everything else and names from
//! values: enough to find the values that are links. All other bytes pass unchanged.
//!
//! | kind | links |
//! |---|---|
//! | npm | `tarball` in an object that is the value of `dist`, at any depth |
//! | pypi | `url` in the objects in the array `files` in the outermost object |
//! | crates | `dl` and `api` in the outermost object |
//!
//! Called by `content` for each piece in order.
//!
//! Invariants: the output does not depend on how the input is divided; input that is not JSON
//! passes. Memory: the current link, at most [`LINK_BYTES_MAX`]; longer strings are not links.

use super::links::Links;
use super::{LINK_BYTES_MAX, MirrorKind};

/// State of the parser.
#[derive(Debug)]
pub(super) struct JsonRewriter {
    kind: MirrorKind,
    at: JsonState,
    /// Open objects and arrays.
    depth: u64,
    /// Depth of the innermost open object or array that contains links.
    marked: Option<u64>,
    /// The last string that may be a name: used when a colon follows.
    last: NameState,
    /// The name of the next value.
    name: Option<NameState>,
    /// The current string, as far as it is needed.
    held: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonState {
    Between,
    /// In a string that has passed so far; perhaps a name.
    Name(EscapeState),
    /// In a string without significance.
    Other(EscapeState),
    /// In a link, which is held back.
    Link(EscapeState),
}

/// State of the previous byte: a backslash that escapes the next byte, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EscapeState {
    No,
    Yes,
}

/// The significance of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameState {
    /// The value is a link, in the right place.
    Link,
    /// The value contains links, in the right place.
    Holder,
    Other,
}

impl JsonRewriter {
    pub(super) fn new(kind: MirrorKind) -> Self {
        Self {
            kind,
            at: JsonState::Between,
            depth: 0,
            marked: None,
            last: NameState::Other,
            name: None,
            held: Vec::new(),
        }
    }

    /// Takes the next piece and appends the output to `out`.
    pub(super) fn push(&mut self, mut input: &[u8], links: &Links, out: &mut Vec<u8>) {
        while !input.is_empty() {
            input = match self.at {
                JsonState::Between => self.between(input, out),
                JsonState::Name(escape) | JsonState::Other(escape) | JsonState::Link(escape) => {
                    self.string(input, escape, links, out)
                }
            };
        }
    }

    /// Finishes the text: appends held bytes.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if matches!(self.at, JsonState::Link(_)) {
            out.append(&mut self.held);
        }
    }

    /// Skips to the next significant byte between strings, and past it.
    fn between<'a>(&mut self, input: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
        let Some(at) = input.iter().position(|byte| b"\"{}[]:,".contains(byte)) else {
            out.extend_from_slice(input);
            return &[];
        };
        let (passed, rest) = input.split_at(at + 1);
        out.extend_from_slice(passed);
        match input[at] {
            b'"' => {
                self.held.clear();
                self.at = match self.name.take() {
                    Some(NameState::Link) if self.is_place_of_links() => {
                        JsonState::Link(EscapeState::No)
                    }
                    Some(_) => JsonState::Other(EscapeState::No),
                    None => JsonState::Name(EscapeState::No),
                };
            }
            b'{' | b'[' => {
                self.depth += 1;
                let holds = self.name.take() == Some(NameState::Holder);
                // Deeper names are unrelated, except in npm, which has such objects at any depth.
                if holds && (self.kind == MirrorKind::Npm || self.depth == 2) {
                    self.marked = Some(self.depth);
                }
                self.last = NameState::Other;
            }
            b'}' | b']' => {
                if self.marked == Some(self.depth) {
                    self.marked = None;
                }
                self.depth = self.depth.saturating_sub(1);
                (self.name, self.last) = (None, NameState::Other);
            }
            b':' => self.name = Some(self.last),
            _ => (self.name, self.last) = (None, NameState::Other),
        }
        rest
    }

    fn is_place_of_links(&self) -> bool {
        match self.kind {
            MirrorKind::Npm => self.marked == Some(self.depth),
            MirrorKind::Pypi => self.marked.is_some_and(|marked| marked + 1 == self.depth),
            MirrorKind::Crates => self.depth == 1,
            MirrorKind::Apt => false,
        }
    }

    /// Skips to the end of the string, if it is in the input.
    fn string<'a>(
        &mut self,
        input: &'a [u8],
        escape: EscapeState,
        links: &Links,
        out: &mut Vec<u8>,
    ) -> &'a [u8] {
        let (mut escape, mut end) = (escape, None);
        for (at, &byte) in input.iter().enumerate() {
            match (escape, byte) {
                (EscapeState::Yes, _) => escape = EscapeState::No,
                (EscapeState::No, b'\\') => escape = EscapeState::Yes,
                (EscapeState::No, b'"') => {
                    end = Some(at);
                    break;
                }
                (EscapeState::No, _) => {}
            }
        }
        let (inside, rest) = input.split_at(end.unwrap_or(input.len()));
        self.take(inside, out);
        let Some((quote, rest)) = rest.split_first() else {
            self.at = match self.at {
                JsonState::Name(_) => JsonState::Name(escape),
                JsonState::Link(_) => JsonState::Link(escape),
                JsonState::Other(_) | JsonState::Between => JsonState::Other(escape),
            };
            return rest;
        };
        self.end_string(links, out);
        out.push(*quote);
        rest
    }

    /// Takes bytes in the current string.
    fn take(&mut self, inside: &[u8], out: &mut Vec<u8>) {
        match self.at {
            JsonState::Link(escape) if self.held.len() + inside.len() > LINK_BYTES_MAX => {
                out.append(&mut self.held);
                out.extend_from_slice(inside);
                self.at = JsonState::Other(escape);
            }
            JsonState::Link(_) => self.held.extend_from_slice(inside),
            JsonState::Name(_) => {
                // One byte more than the longest name is held, to show that the string is no name.
                let room = (NAME_BYTES_MAX + 1).saturating_sub(self.held.len());
                self.held
                    .extend_from_slice(&inside[..room.min(inside.len())]);
                out.extend_from_slice(inside);
            }
            JsonState::Other(_) | JsonState::Between => out.extend_from_slice(inside),
        }
    }

    fn end_string(&mut self, links: &Links, out: &mut Vec<u8>) {
        match self.at {
            JsonState::Link(_) => {
                let renamed = unescape(&self.held).and_then(|link| links.rename(&link));
                match renamed {
                    Some(renamed) => escape_into(&renamed, out),
                    None => out.extend_from_slice(&self.held),
                }
                self.last = NameState::Other;
            }
            JsonState::Name(_) => {
                self.last = match unescape(&self.held) {
                    Some(name) if self.held.len() <= NAME_BYTES_MAX => self.meaning(&name),
                    _ => NameState::Other,
                };
            }
            JsonState::Other(_) | JsonState::Between => self.last = NameState::Other,
        }
        self.held.clear();
        self.at = JsonState::Between;
    }

    fn meaning(&self, name: &str) -> NameState {
        match (self.kind, name) {
            (MirrorKind::Npm, "tarball")
            | (MirrorKind::Pypi, "url")
            | (MirrorKind::Crates, "dl" | "api") => NameState::Link,
            (MirrorKind::Npm, "dist") | (MirrorKind::Pypi, "files") => NameState::Holder,
            _ => NameState::Other,
        }
    }
}

/// The text in a JSON string; `None` if it is invalid.
fn unescape(inside: &[u8]) -> Option<String> {
    let mut rest = std::str::from_utf8(inside).ok()?;
    let mut text = String::with_capacity(rest.len());
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let escaped = rest[at + 1..].chars().next()?;
        rest = &rest[at + 1 + escaped.len_utf8()..];
        text.push(match escaped {
            '"' | '\\' | '/' => escaped,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let (unit, after) = unit(rest)?;
                rest = after;
                match unit {
                    // A character beyond U+FFFF consists of two units.
                    0xd800..=0xdbff => {
                        let (low, after) = unit_escaped(rest)?;
                        rest = after;
                        char::decode_utf16([unit, low]).next()?.ok()?
                    }
                    _ => char::from_u32(unit.into())?,
                }
            }
            _ => return None,
        });
    }
    text.push_str(rest);
    Some(text)
}

fn unit_escaped(text: &str) -> Option<(u16, &str)> {
    unit(text.strip_prefix("\\u")?)
}

/// Four hexadecimal digits.
fn unit(text: &str) -> Option<(u16, &str)> {
    let digits = text
        .get(..4)
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    Some((u16::from_str_radix(digits, 16).ok()?, &text[4..]))
}

/// Writes `text` as the inside of a JSON string.
fn escape_into(text: &str, out: &mut Vec<u8>) {
    for &byte in text.as_bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            // A fragment may contain bytes that a target cannot.
            0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
}

/// The longest spelling of our names: each letter of `tarball` written as `\u0074`.
const NAME_BYTES_MAX: usize = 7 * 6;

#[cfg(test)]
mod tests;
