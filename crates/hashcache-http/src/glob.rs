//! Shell patterns for paths, hosts and names.
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
//! [`Crosses`] decides if `?`, `*` and a `**` elsewhere match a slash.
//!
//! `rules` and `site_lifetime` match the path of a response that may be stored; the cache key rules
//! of a site match the names of parameters and cookies. The crate `globset` has the same language;
//! this module is a tenth of the size, because it needs no regular expressions. Tests compare both.
//!
//! Invariant: a match takes time proportional to the length of the text, for every pattern.
//! Cost: most patterns are rejected by their first or last bytes, or because the text lacks a byte
//! that they need, in a few nanoseconds each; otherwise 0.1 to 1 us.

use thiserror::Error;

/// Which wildcards match a slash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crosses {
    /// All of them: for hosts and names.
    Star,
    /// Only `**` as a whole segment: for paths.
    DoubleStar,
}

/// Why a pattern is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GlobError {
    /// `{` without `}`.
    #[error("`{{` is not closed by `}}`")]
    UnclosedBrace,
    /// `}` without `{`.
    #[error("`}}` closes nothing")]
    UnopenedBrace,
    /// The braces expand to too many patterns.
    #[error("the braces stand for more than {ALTERNATIVES_MAX} patterns")]
    Alternatives,
    /// `[` without `]`.
    #[error("`[` is not closed by `]`")]
    UnclosedClass,
    /// A class with a character beyond ASCII.
    #[error("only ASCII characters may be between `[` and `]`")]
    ClassBeyondAscii,
    /// A range with the end before the start.
    #[error("the range `{0}-{1}` is empty")]
    EmptyRange(char, char),
    /// `\` at the end.
    #[error("nothing follows the last `\\`")]
    DanglingEscape,
}

/// Compiled patterns.
#[derive(Clone, Debug, Default)]
pub struct Globs {
    /// Sorted by pattern index, ascending.
    alternatives: Vec<Alternative>,
    patterns: usize,
}

impl Globs {
    /// No patterns.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a pattern.
    pub fn push(&mut self, pattern: &str, crosses: Crosses) -> Result<(), GlobError> {
        for text in without_braces(pattern)? {
            let alternative = Alternative::parse(self.patterns, &text, crosses)?;
            self.alternatives.push(alternative);
        }
        self.patterns += 1;
        Ok(())
    }

    /// Returns true if any pattern matches the whole text.
    pub fn is_match(&self, text: &str) -> bool {
        self.matches(text).next().is_some()
    }

    /// The indexes of the patterns that match the whole text, ascending: the first pattern added
    /// has index 0. An index may occur twice.
    pub fn matches(&self, text: &str) -> impl Iterator<Item = usize> {
        self.matches_below(self.patterns, text)
    }

    /// As [`Self::matches`], for the patterns with an index below `end`.
    pub fn matches_below(&self, end: usize, text: &str) -> impl Iterator<Item = usize> {
        let present = Class::from_text(text.as_bytes());
        let counted = self
            .alternatives
            .iter()
            .take_while(move |it| it.pattern < end);
        // Without this check a pattern such as `**/*latest*` would walk through every text.
        let possible = counted.filter(move |it| present.has_all(it.needed));
        let matching = possible.filter(move |it| it.is_match(text.as_bytes()));
        matching.map(|alternative| alternative.pattern)
    }
}

/// A pattern without braces.
#[derive(Clone, Debug)]
struct Alternative {
    /// Index of the pattern before brace expansion.
    pattern: usize,
    /// Required first and last bytes of the text.
    head: Vec<Class>,
    tail: Vec<Class>,
    /// Tokens for the bytes between head and tail.
    middle: Vec<Token>,
    /// Bytes that every matching text contains.
    needed: Class,
}

/// A part of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    One(Class),
    /// Any number of bytes except slashes.
    Segment,
    /// Any number of bytes.
    Any,
    /// An empty match at the start of the text or after a slash.
    Boundary,
}

/// A set of bytes, with a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class([u128; 2]);

impl Class {
    const EMPTY: Self = Self([0; 2]);

    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte / 128)] |= 1 << (byte % 128);
    }

    /// The set of bytes in `text`.
    fn from_text(text: &[u8]) -> Self {
        let mut bytes = Self::EMPTY;
        text.iter().for_each(|byte| bytes.insert(*byte));
        bytes
    }

    fn has_all(self, others: Self) -> bool {
        let [low, high] = self.0;
        others.0[0] & !low == 0 && others.0[1] & !high == 0
    }

    /// This set if it has exactly one byte, otherwise the empty set.
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

    /// Returns true if the tokens between head and tail match this part of the text.
    ///
    /// All possible matches are followed in parallel, because backtracking could take excessively
    /// long for some texts.
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

/// How many tokens match the bytes read so far: a set, because wildcards allow several counts.
struct Matched<'a> {
    tokens: &'a [Token],
    counts: Vec<usize>,
    /// `has[count]` is true if `counts` contains the count.
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

    /// Adds a count, and the following counts while the next token can match nothing. `before` is
    /// the byte read last.
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

    /// Returns true if the token may match nothing after the byte `before`.
    fn is_empty(self, before: Option<&u8>) -> bool {
        match self {
            Self::One(_) => false,
            Self::Segment | Self::Any => true,
            Self::Boundary => before.is_none_or(|&byte| byte == b'/'),
        }
    }

    /// Returns true if the token matches this byte and may match more.
    fn repeats(self, byte: u8) -> bool {
        match self {
            Self::One(_) | Self::Boundary => false,
            Self::Segment => byte != b'/',
            Self::Any => true,
        }
    }
}

/// Returns true if the text starts with a byte from each class, in order.
fn has_each(classes: &[Class], text: &[u8]) -> bool {
    classes
        .iter()
        .zip(text)
        .all(|(class, &byte)| class.has(byte))
}

/// Expands braces: `{a,b}c` to `ac` and `bc`.
fn without_braces(pattern: &str) -> Result<Vec<String>, GlobError> {
    let mut done = Vec::new();
    let mut pending = vec![pattern.to_owned()];
    while let Some(pattern) = pending.pop() {
        let Some(braces) = Braces::find(&pattern)? else {
            done.push(pattern);
            continue;
        };
        // Checked before the expansion, because the expansion takes memory.
        if done.len() + pending.len() + braces.alternatives.len() > ALTERNATIVES_MAX {
            return Err(GlobError::Alternatives);
        }
        pending.extend(braces.written_out());
    }
    Ok(done)
}

/// The first pair of braces in a pattern.
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
        // The start of the current alternative.
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

    /// Last alternative first, because the caller pops the last pattern first.
    fn written_out(&self) -> impl Iterator<Item = String> {
        let alternatives = self.alternatives.iter().rev();
        alternatives.map(|alternative| [self.before, *alternative, self.after].concat())
    }
}

/// Length of the first element in `pattern`: an escaped character, a class or a single byte.
fn length(pattern: &[u8]) -> Result<usize, GlobError> {
    match pattern {
        [b'\\'] => Err(GlobError::DanglingEscape),
        [b'\\', ..] => Ok(2),
        [b'[', ..] => {
            let inside = pattern.get(class_start(pattern)..).unwrap_or_default();
            // A `]` directly at the start is a member.
            let close = inside.iter().skip(1).position(|&byte| byte == b']');
            let close = close.ok_or(GlobError::UnclosedClass)?;
            Ok(class_start(pattern) + 1 + close + 1)
        }
        _ => Ok(1),
    }
}

/// The offset of the first member in a class.
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

/// Parses the class in `[…]`.
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

/// Maximum number of patterns that braces may expand to; bounds the memory.
const ALTERNATIVES_MAX: usize = 1000;

#[cfg(test)]
mod tests;
