//! Rewrites links in HTML while it passes.
//!
//! Reads the `href` of every `a`, and of `base`, to which links are relative. Comments, scripts and
//! styles pass unread; all bytes but the values of rewritten links are unchanged.
//!
//! Called by `content` for each piece in order.
//!
//! Invariants: the output does not depend on how the input is divided; input that is not HTML
//! passes. Memory: the current tag, at most [`LINK_BYTES_MAX`]; a longer tag passes unchanged.

use std::ops::Range;

use super::LINK_BYTES_MAX;
use super::links::Links;

/// State of the parser.
#[derive(Debug)]
pub(super) struct HtmlRewriter {
    at: HtmlState,
    /// The current tag, from the `<` on.
    held: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HtmlState {
    Text,
    /// In a tag that is held back.
    Tag(Attribute),
    /// In a tag that passes.
    OtherTag(Attribute),
    /// In a comment; number of bytes of the closing mark seen so far.
    Comment(usize),
    /// In an element that contains no tags except its end tag; number of bytes of the end tag seen
    /// so far.
    Raw(&'static [u8], usize),
}

/// Position in a tag: a `>` in quotes does not close the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attribute {
    Name,
    /// After `=`.
    Equals,
    Unquoted,
    Quoted(u8),
}

impl Attribute {
    /// The position after `byte`, which does not close the tag.
    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Quoted(quote), _) if byte != quote => self,
            (Self::Quoted(_), _) => Self::Name,
            (Self::Equals, b'"' | b'\'') => Self::Quoted(byte),
            (Self::Equals, _) if byte.is_ascii_whitespace() => self,
            (Self::Equals, _) => Self::Unquoted,
            (Self::Unquoted, _) if !byte.is_ascii_whitespace() => self,
            (Self::Name, b'=') => Self::Equals,
            (Self::Unquoted | Self::Name, _) => Self::Name,
        }
    }

    fn ends_with(self, byte: u8) -> bool {
        byte == b'>' && !matches!(self, Self::Quoted(_))
    }
}

impl HtmlRewriter {
    pub(super) fn new() -> Self {
        Self {
            at: HtmlState::Text,
            held: Vec::new(),
        }
    }

    /// Takes the next piece and appends the output to `out`.
    pub(super) fn push(&mut self, mut input: &[u8], links: &mut Links, out: &mut Vec<u8>) {
        while let Some((&byte, rest)) = input.split_first() {
            match self.at {
                HtmlState::Text => {
                    let at = input.iter().position(|&byte| byte == b'<');
                    let (text, tag) = input.split_at(at.unwrap_or(input.len()));
                    out.extend_from_slice(text);
                    input = tag;
                    if let Some((&byte, rest)) = tag.split_first() {
                        self.held.clear();
                        self.held.push(byte);
                        self.at = HtmlState::Tag(Attribute::Name);
                        input = rest;
                    }
                    continue;
                }
                HtmlState::Tag(attribute) => self.tag(byte, attribute, links, out),
                HtmlState::OtherTag(attribute) => {
                    out.push(byte);
                    self.at = if attribute.ends_with(byte) {
                        HtmlState::Text
                    } else {
                        HtmlState::OtherTag(attribute.after(byte))
                    };
                }
                HtmlState::Comment(dashes) => {
                    out.push(byte);
                    self.at = match byte {
                        b'>' if dashes >= 2 => HtmlState::Text,
                        b'-' => HtmlState::Comment(dashes + 1),
                        _ => HtmlState::Comment(0),
                    };
                }
                HtmlState::Raw(end, matched) => {
                    out.push(byte);
                    self.at = match byte.to_ascii_lowercase() {
                        byte if byte == end[matched] && matched + 1 == end.len() => {
                            HtmlState::OtherTag(Attribute::Name)
                        }
                        byte if byte == end[matched] => HtmlState::Raw(end, matched + 1),
                        // A `<` can only be the start of the end tag.
                        b'<' => HtmlState::Raw(end, 1),
                        _ => HtmlState::Raw(end, 0),
                    };
                }
            }
            input = rest;
        }
    }

    /// Finishes the text: appends held bytes.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if matches!(self.at, HtmlState::Tag(_)) {
            out.append(&mut self.held);
        }
    }

    /// Takes a byte in a tag that is held back.
    fn tag(&mut self, byte: u8, attribute: Attribute, links: &mut Links, out: &mut Vec<u8>) {
        // `a < b` is text.
        if self.held.len() == 1 && !(byte.is_ascii_alphabetic() || b"!/?".contains(&byte)) {
            out.append(&mut self.held);
            if byte == b'<' {
                self.held.push(byte);
            } else {
                out.push(byte);
                self.at = HtmlState::Text;
            }
            return;
        }
        self.held.push(byte);
        if self.held == b"<!--" {
            out.append(&mut self.held);
            // `<!-->` is a complete comment.
            self.at = HtmlState::Comment(2);
        } else if attribute.ends_with(byte) {
            self.end_tag(links, out);
        } else if self.held.len() > LINK_BYTES_MAX {
            out.append(&mut self.held);
            self.at = HtmlState::OtherTag(attribute.after(byte));
        } else {
            self.at = HtmlState::Tag(attribute.after(byte));
        }
    }

    fn end_tag(&mut self, links: &mut Links, out: &mut Vec<u8>) {
        let tag = &self.held[..];
        let name_end = tag
            .iter()
            .position(|byte| byte.is_ascii_whitespace() || b"/>".contains(byte));
        let name = tag[1..name_end.unwrap_or(1).max(1)].to_ascii_lowercase();
        self.at = HtmlState::Text;
        match &name[..] {
            b"a" => match href(tag).and_then(|value| renamed(tag, value, links)) {
                Some((before, value, after)) => {
                    out.extend_from_slice(before);
                    out.extend_from_slice(value.as_bytes());
                    out.extend_from_slice(after);
                }
                None => out.extend_from_slice(tag),
            },
            b"base" => {
                let reference = href(tag).and_then(|value| unescape(&tag[value.range()]));
                if let Some(reference) = reference {
                    links.rebase(reference.trim());
                }
                out.extend_from_slice(tag);
            }
            name => {
                out.extend_from_slice(tag);
                let end = RAW.iter().find(|end| end[2..] == *name);
                if let Some(end) = end {
                    self.at = HtmlState::Raw(end, 0);
                }
            }
        }
        self.held.clear();
    }
}

/// The value of an attribute in a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AttributeValue {
    start: usize,
    end: usize,
    is_quoted: bool,
}

impl AttributeValue {
    fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

/// The value of the first `href` in a tag.
fn href(tag: &[u8]) -> Option<AttributeValue> {
    let is_space = |byte: &u8| byte.is_ascii_whitespace();
    let past = |from: usize, skip: &dyn Fn(&u8) -> bool| {
        let length = tag[from..].iter().take_while(|byte| skip(byte)).count();
        from + length
    };
    let mut at = past(1, &|byte| !is_space(byte) && *byte != b'/');
    loop {
        at = past(at, &|byte| is_space(byte) || *byte == b'/');
        let name_start = at;
        at = past(at, &|byte| !is_space(byte) && !b"=/>".contains(byte));
        // A lone `=` would be found at the same place each time.
        at = at.max(name_start + usize::from(tag.get(name_start) == Some(&b'=')));
        let name = tag.get(name_start..at)?;
        if name.is_empty() {
            return None;
        }
        let equals = past(at, &is_space);
        if tag.get(equals) != Some(&b'=') {
            continue;
        }
        let start = past(equals + 1, &is_space);
        let value = match tag.get(start)? {
            quote @ (b'"' | b'\'') => {
                let end = past(start + 1, &|byte| byte != quote);
                at = end + 1;
                AttributeValue {
                    start: start + 1,
                    end,
                    is_quoted: true,
                }
            }
            _ => {
                let end = past(start, &|byte| !is_space(byte) && *byte != b'>');
                at = end;
                AttributeValue {
                    start,
                    end,
                    is_quoted: false,
                }
            }
        };
        if name.eq_ignore_ascii_case(b"href") {
            return Some(value);
        }
        if at >= tag.len() {
            return None;
        }
    }
}

/// The tag with the link rewritten: the part before the value, the value, the part after it.
fn renamed<'a>(
    tag: &'a [u8],
    value: AttributeValue,
    links: &Links,
) -> Option<(&'a [u8], String, &'a [u8])> {
    let reference = unescape(&tag[value.range()])?;
    let renamed = links.rename(reference.trim())?;
    let mut text = String::with_capacity(renamed.len() + 2);
    for c in renamed.chars() {
        match c {
            '&' => text.push_str("&amp;"),
            '"' => text.push_str("&quot;"),
            '\'' => text.push_str("&#39;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            c => text.push(c),
        }
    }
    if !value.is_quoted {
        text = format!("\"{text}\"");
    }
    Some((&tag[..value.start], text, &tag[value.end..]))
}

/// Text with the character references of URLs resolved; `None` if it is not UTF-8.
fn unescape(value: &[u8]) -> Option<String> {
    let mut rest = std::str::from_utf8(value).ok()?;
    let mut text = String::with_capacity(rest.len());
    while let Some(at) = rest.find('&') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let reference = rest[1..].split_once(';').map(|(name, _)| name);
        match reference.and_then(|name| Some((name, character(name)?))) {
            Some((name, c)) => {
                text.push(c);
                rest = &rest[name.len() + 2..];
            }
            None => {
                text.push('&');
                rest = &rest[1..];
            }
        }
    }
    text.push_str(rest);
    Some(text)
}

fn character(name: &str) -> Option<char> {
    let named = [
        ("amp", '&'),
        ("quot", '"'),
        ("apos", '\''),
        ("lt", '<'),
        ("gt", '>'),
    ];
    if let Some((_, c)) = named.into_iter().find(|(known, _)| *known == name) {
        return Some(c);
    }
    let number = name.strip_prefix('#')?;
    let code = match number.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => number.parse(),
    };
    char::from_u32(code.ok()?)
}

/// The end tags for elements with text that contains no tags.
const RAW: [&[u8]; 4] = [b"</script", b"</style", b"</textarea", b"</title"];

#[cfg(test)]
mod tests;
