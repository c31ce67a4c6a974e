//! Patterns of paths, hosts and names, in the language of shells.
//!
//! | in a pattern | stands for |
//! |---|---|
//! | `?` | one byte |
//! | `*` | any number of bytes |
//! | `**` between slashes | any number of segments, also none |
//! | `[0-9a]`, `[!0-9a]` | one ASCII character of these; one byte that is none of them |
//! | `{png,jpg}` | one of these patterns |
//! | `\*` | the character itself |
//!
//! [`Crosses`] says whether `?`, `*` and a `**` elsewhere take a slash.
//!
//! `rules` and `site_lifetime` ask for the path of a response that may be stored; the cache key
//! rules of a site ask for the names of parameters and cookies. The crate `globset` has the same
//! language; this module is a tenth of the code, because it needs no regular expressions. Tests
//! compare both.
//!
//! Invariant: a text is matched in time proportional to its length, whatever the pattern.
//! Cost: most patterns are rejected by their first or last bytes, or because the text lacks one of
//! theirs, in a few nanoseconds each; else 0.1 to 1 us.

use thiserror::Error;

/// Which wildcard takes a slash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crosses {
    /// Each of them: in hosts and names.
    Star,
    /// `**` as a whole segment alone: in paths.
    DoubleStar,
}

/// Why a pattern is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GlobError {
    /// `{` without `}`.
    #[error("`{{` is not closed by `}}`")]
    UnclosedBrace,
    /// `}` without `{`.
    #[error("`}}` closes nothing")]
    UnopenedBrace,
    /// Braces that stand for too many patterns.
    #[error("the braces stand for more than {ALTERNATIVES_MAX} patterns")]
    Alternatives,
    /// `[` without `]`.
    #[error("`[` is not closed by `]`")]
    UnclosedClass,
    /// A class with a character beyond ASCII.
    #[error("only ASCII characters may be between `[` and `]`")]
    ClassBeyondAscii,
    /// A range whose end is before its start.
    #[error("the range `{0}-{1}` is empty")]
    EmptyRange(char, char),
    /// `\` at the end.
    #[error("nothing follows the last `\\`")]
    DanglingEscape,
}

/// Patterns, ready to be matched.
#[derive(Clone, Debug, Default)]
pub struct Globs {
    /// Ascending by pattern.
    alternatives: Vec<Alternative>,
    patterns: usize,
}

impl Globs {
    /// No patterns.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pattern behind the others.
    pub fn push(&mut self, pattern: &str, crosses: Crosses) -> Result<(), GlobError> {
        for text in without_braces(pattern)? {
            let alternative = Alternative::parse(self.patterns, &text, crosses)?;
            self.alternatives.push(alternative);
        }
        self.patterns += 1;
        Ok(())
    }

    /// Whether a pattern matches the whole text.
    pub fn is_match(&self, text: &str) -> bool {
        self.matches(text).next().is_some()
    }

    /// The places of the patterns that match the whole text, ascending: the first pattern that was
    /// added has place 0. A place may come twice.
    pub fn matches(&self, text: &str) -> impl Iterator<Item = usize> {
        self.matches_below(self.patterns, text)
    }

    /// [`Self::matches`] of the patterns whose place is below `end`.
    pub fn matches_below(&self, end: usize, text: &str) -> impl Iterator<Item = usize> {
        let present = Class::of(text.as_bytes());
        let counted = self
            .alternatives
            .iter()
            .take_while(move |it| it.pattern < end);
        // Without the look at the bytes, a pattern such as `**/*latest*` would walk through every
        // text.
        let possible = counted.filter(move |it| present.has_all(it.needed));
        let matching = possible.filter(move |it| it.is_match(text.as_bytes()));
        matching.map(|alternative| alternative.pattern)
    }
}

/// A pattern without braces.
#[derive(Clone, Debug)]
struct Alternative {
    /// Place of the pattern that it comes from.
    pattern: usize,
    /// What the first and the last bytes of the text must be.
    head: Vec<Class>,
    tail: Vec<Class>,
    /// What may be between them.
    middle: Vec<Token>,
    /// Bytes that every text that matches has.
    needed: Class,
}

/// A part of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    One(Class),
    /// Any number of bytes but slashes.
    Segment,
    /// Any number of bytes.
    Any,
    /// Nothing, at the start of the text or behind a slash.
    Boundary,
}

/// A set of bytes, a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class([u128; 2]);

impl Class {
    const EMPTY: Self = Self([0; 2]);

    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte / 128)] |= 1 << (byte % 128);
    }

    /// The bytes of `text`.
    fn of(text: &[u8]) -> Self {
        let mut bytes = Self::EMPTY;
        text.iter().for_each(|byte| bytes.insert(*byte));
        bytes
    }

    fn has_all(self, others: Self) -> bool {
        let [low, high] = self.0;
        others.0[0] & !low == 0 && others.0[1] & !high == 0
    }

    /// This set if it has one byte, otherwise no byte.
    fn if_single(self) -> Self {
        let [low, high] = self.0;
        if low.count_ones() + high.count_ones() == 1 {
            self
        } else {
            Self::EMPTY
        }
    }

    fn negated(self) -> Self {
        Self(self.0.map(|bits| !bits))
    }

    fn has(self, byte: u8) -> bool {
        self.0[usize::from(byte / 128)] & (1 << (byte % 128)) != 0
    }
}

impl Alternative {
    fn parse(pattern: usize, text: &str, crosses: Crosses) -> Result<Self, GlobError> {
        let tokens = parse(text, crosses)?;
        let class = |token: &Token| match token {
            Token::One(class) => Some(*class),
            Token::Segment | Token::Any | Token::Boundary => None,
        };
        let mut needed = Class::EMPTY;
        for Class([low, high]) in tokens.iter().filter_map(class).map(Class::if_single) {
            needed.0[0] |= low;
            needed.0[1] |= high;
        }
        let head: Vec<Class> = tokens.iter().map_while(class).collect();
        let rest = &tokens[head.len()..];
        let mut tail: Vec<Class> = rest.iter().rev().map_while(class).collect();
        tail.reverse();
        let middle = rest[..rest.len() - tail.len()].to_vec();
        Ok(Self {
            pattern,
            head,
            tail,
            middle,
            needed,
        })
    }

    fn is_match(&self, text: &[u8]) -> bool {
        let Some(end) = text.len().checked_sub(self.tail.len()) else {
            return false;
        };
        let start = self.head.len();
        if start > end || !has_each(&self.tail, &text[end..]) || !has_each(&self.head, text) {
            return false;
        }
        match self.middle[..] {
            [] => start == end,
            [Token::Any] => true,
            _ => self.matches_middle(text, start, end),
        }
    }

    /// Whether the tokens between head and tail match this part of the text.
    ///
    /// All ways to match are followed at once: trying one after the other would take time beyond
    /// all bounds for some texts.
    fn matches_middle(&self, text: &[u8], start: usize, end: usize) -> bool {
        let tokens = &self.middle;
        let (mut matched, mut next) = (Matched::new(tokens), Matched::new(tokens));
        matched.insert(0, text[..start].last());
        for byte in &text[start..end] {
            for &count in &matched.counts {
                let Some(token) = tokens.get(count) else {
                    continue;
                };
                if token.repeats(*byte) {
                    next.insert(count, Some(byte));
                } else if token.is_one(*byte) {
                    next.insert(count + 1, Some(byte));
                }
            }
            std::mem::swap(&mut matched, &mut next);
            next.clear();
        }
        matched.has[tokens.len()]
    }
}

/// How many tokens match what was read so far: a set, because wildcards leave several ways.
struct Matched<'a> {
    tokens: &'a [Token],
    counts: Vec<usize>,
    /// Whether a count is in `counts`.
    has: Vec<bool>,
}

impl<'a> Matched<'a> {
    fn new(tokens: &'a [Token]) -> Self {
        Self {
            tokens,
            counts: Vec::with_capacity(tokens.len() + 1),
            has: vec![false; tokens.len() + 1],
        }
    }

    /// Adds a count, and the tokens that follow if they match nothing. `before` is the byte that
    /// was read last.
    fn insert(&mut self, mut count: usize, before: Option<&u8>) {
        while !std::mem::replace(&mut self.has[count], true) {
            self.counts.push(count);
            let token = self.tokens.get(count);
            if !token.is_some_and(|token| token.is_empty(before)) {
                break;
            }
            count += 1;
        }
    }

    fn clear(&mut self) {
        for count in self.counts.drain(..) {
            self.has[count] = false;
        }
    }
}

impl Token {
    fn is_one(self, byte: u8) -> bool {
        matches!(self, Self::One(class) if class.has(byte))
    }

    /// Whether the token may match nothing behind the byte `before`.
    fn is_empty(self, before: Option<&u8>) -> bool {
        match self {
            Self::One(_) => false,
            Self::Segment | Self::Any => true,
            Self::Boundary => before.is_none_or(|&byte| byte == b'/'),
        }
    }

    /// Whether the token takes this byte and may take more.
    fn repeats(self, byte: u8) -> bool {
        match self {
            Self::One(_) | Self::Boundary => false,
            Self::Segment => byte != b'/',
            Self::Any => true,
        }
    }
}

/// Whether the text begins with a byte of each class, in their order.
fn has_each(classes: &[Class], text: &[u8]) -> bool {
    classes
        .iter()
        .zip(text)
        .all(|(class, &byte)| class.has(byte))
}

/// Writes out braces: `{a,b}c` as `ac` and `bc`.
fn without_braces(pattern: &str) -> Result<Vec<String>, GlobError> {
    let mut done = Vec::new();
    let mut pending = vec![pattern.to_owned()];
    while let Some(pattern) = pending.pop() {
        let Some(braces) = Braces::find(&pattern)? else {
            done.push(pattern);
            continue;
        };
        // Before they are written out, which takes memory.
        if done.len() + pending.len() + braces.alternatives.len() > ALTERNATIVES_MAX {
            return Err(GlobError::Alternatives);
        }
        pending.extend(braces.written_out());
    }
    Ok(done)
}

/// The first braces of a pattern.
struct Braces<'a> {
    before: &'a str,
    alternatives: Vec<&'a str>,
    after: &'a str,
}

impl<'a> Braces<'a> {
    fn find(pattern: &'a str) -> Result<Option<Self>, GlobError> {
        let mut depth = 0_usize;
        let mut before = "";
        let mut alternatives = Vec::new();
        // The start of an alternative.
        let mut from = 0;
        let mut at = 0;
        while let Some(&byte) = pattern.as_bytes().get(at) {
            match byte {
                b'{' => {
                    depth += 1;
                    if depth == 1 {
                        before = &pattern[..at];
                        from = at + 1;
                    }
                }
                b',' if depth == 1 => {
                    alternatives.push(&pattern[from..at]);
                    from = at + 1;
                }
                b'}' if depth == 1 => {
                    alternatives.push(&pattern[from..at]);
                    let after = &pattern[at + 1..];
                    return Ok(Some(Self {
                        before,
                        alternatives,
                        after,
                    }));
                }
                b'}' => depth = depth.checked_sub(1).ok_or(GlobError::UnopenedBrace)?,
                _ => {}
            }
            at += length(&pattern.as_bytes()[at..])?;
        }
        match depth {
            0 => Ok(None),
            _ => Err(GlobError::UnclosedBrace),
        }
    }

    /// The last alternative first: the caller takes the last pattern first.
    fn written_out(&self) -> impl Iterator<Item = String> {
        let alternatives = self.alternatives.iter().rev();
        alternatives.map(|alternative| [self.before, *alternative, self.after].concat())
    }
}

/// Bytes of what `pattern` begins with: an escaped character, a class or one byte.
fn length(pattern: &[u8]) -> Result<usize, GlobError> {
    match pattern {
        [b'\\'] => Err(GlobError::DanglingEscape),
        [b'\\', ..] => Ok(2),
        [b'[', ..] => {
            let inside = pattern.get(class_start(pattern)..).unwrap_or_default();
            // A `]` that comes first is a member.
            let close = inside.iter().skip(1).position(|&byte| byte == b']');
            let close = close.ok_or(GlobError::UnclosedClass)?;
            Ok(class_start(pattern) + 1 + close + 1)
        }
        _ => Ok(1),
    }
}

/// Where the members of a class begin.
fn class_start(pattern: &[u8]) -> usize {
    match pattern {
        [b'[', b'!' | b'^', ..] => 2,
        _ => 1,
    }
}

fn parse(pattern: &str, crosses: Crosses) -> Result<Vec<Token>, GlobError> {
    let (one, star) = match crosses {
        Crosses::Star => (Class::EMPTY.negated(), Token::Any),
        Crosses::DoubleStar => (exactly(b'/').negated(), Token::Segment),
    };
    let bytes = pattern.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let is_segment_start = at == 0 || bytes[at - 1] == b'/';
        let mut length = length(rest)?;
        match rest {
            [b'*', b'*', b'/', ..] if is_segment_start => {
                tokens.extend([Token::Any, Token::Boundary]);
                length = 3;
            }
            [b'*', b'*'] if is_segment_start => {
                tokens.push(Token::Any);
                length = 2;
            }
            [b'*', ..] => tokens.push(star),
            [b'?', ..] => tokens.push(Token::One(one)),
            [b'[', ..] => tokens.push(Token::One(class(&rest[..length])?)),
            [b'\\', byte, ..] | [byte, ..] => tokens.push(Token::One(exactly(*byte))),
            [] => {}
        }
        at += length;
    }
    Ok(tokens)
}

fn exactly(byte: u8) -> Class {
    let mut class = Class::EMPTY;
    class.insert(byte);
    class
}

/// The class in `[…]`.
fn class(text: &[u8]) -> Result<Class, GlobError> {
    let start = class_start(text);
    let mut members = &text[start..text.len() - 1];
    if !members.is_ascii() {
        return Err(GlobError::ClassBeyondAscii);
    }
    let mut class = Class::EMPTY;
    while let [first, rest @ ..] = members {
        let (last, rest) = match rest {
            [b'-', last, rest @ ..] => (last, rest),
            _ => (first, rest),
        };
        if last < first {
            return Err(GlobError::EmptyRange((*first).into(), (*last).into()));
        }
        (*first..=*last).for_each(|byte| class.insert(byte));
        members = rest;
    }
    Ok(if start == 2 { class.negated() } else { class })
}

/// Patterns that braces may stand for, so that none takes memory without bound.
const ALTERNATIVES_MAX: usize = 1000;

#[cfg(test)]
mod tests;
