//! The common log of servers, and the combined one, which adds Referer and User-Agent:
//! `client ident user [time] "method URL protocol" status bytes "referer" "agent"`.
//!
//! Quoted fields have `\"` and `\\` for these two characters; other escapes stay as they are. `-`
//! is a field that was not there. Fields that follow are not read.

use super::fields::{NOT_MODIFIED, is_storable, micros_since_1970, number, seconds_east, status};
use super::{Reason, Request};

/// Reads a line. `scratch` takes the name and the referer without their escapes.
pub fn parse<'a>(line: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<Request<'a>, Reason> {
    scratch.clear();
    let mut rest = line;
    let client = word(&mut rest)?;
    let _ident = word(&mut rest)?;
    let user_end = find(rest, b" [").ok_or(FEW)?;
    rest = &rest[user_end + 2..];
    let time_end = find(rest, b"] ").ok_or(Reason::Time)?;
    let time_us = time(&rest[..time_end]).ok_or(Reason::Time)?;
    rest = &rest[time_end + 2..];
    let request_end = quoted(&mut rest, scratch)?;
    let status = status(word(&mut rest)?).ok_or(Reason::Status)?;
    let bytes = size(word(&mut rest)?)?;
    let referer_end = if rest.is_empty() {
        request_end
    } else {
        quoted(&mut rest, scratch)?
    };
    if !rest.is_empty() {
        // The agent is not used, but a quote in it that is not closed is damage.
        let end = scratch.len();
        if rest[0] == b'"' {
            quoted(&mut rest, scratch)?;
        }
        scratch.truncate(end);
    }
    let scratch: &[u8] = scratch;
    let mut words = scratch[..request_end].splitn(2, |byte| *byte == b' ');
    let (method, target) = (words.next(), words.next());
    let target = target.ok_or(Reason::RequestLine)?;
    // A URL may have spaces where the server takes them; HTTP/0.9 has no protocol.
    let name_end = target
        .iter()
        .rposition(|byte| *byte == b' ')
        .filter(|at| target[at + 1..].starts_with(b"HTTP/"));
    let name = &target[..name_end.unwrap_or(target.len())];
    if name.is_empty() {
        return Err(Reason::Name);
    }
    let referer = &scratch[request_end..referer_end];
    Ok(Request {
        time_us,
        client,
        name,
        bytes: if status == NOT_MODIFIED { None } else { bytes },
        group: if referer == b"-" { b"" } else { referer },
        may_be_stored: is_storable(method.unwrap_or_default(), status),
    })
}

/// The next word, which a space or the end of the line follows.
fn word<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Reason> {
    let line: &'a [u8] = rest;
    let end = line.iter().position(|byte| *byte == b' ');
    let word = &line[..end.unwrap_or(line.len())];
    if word.is_empty() {
        return Err(FEW);
    }
    *rest = end.map_or(&b""[..], |at| &line[at + 1..]);
    Ok(word)
}

/// Appends the next field, which is quoted, to `scratch`, and says where it ends there.
fn quoted(rest: &mut &[u8], scratch: &mut Vec<u8>) -> Result<usize, Reason> {
    let mut bytes = rest.strip_prefix(b"\"").ok_or(Reason::Quotes)?.iter();
    loop {
        match bytes.next().ok_or(Reason::Quotes)? {
            b'"' => break,
            b'\\' if matches!(bytes.as_slice().first(), Some(b'"' | b'\\')) => {
                scratch.extend(bytes.next());
            }
            byte => scratch.push(*byte),
        }
    }
    *rest = match bytes.as_slice() {
        [] => b"",
        [b' ', rest @ ..] => rest,
        _ => return Err(Reason::Quotes),
    };
    Ok(scratch.len())
}

fn size(text: &[u8]) -> Result<Option<u64>, Reason> {
    match text {
        b"-" => Ok(Some(0)),
        _ => number(text).map(Some).ok_or(Reason::Size),
    }
}

/// `17/May/2015:10:05:03 +0000`
fn time(text: &[u8]) -> Option<u64> {
    let text: &[u8; 26] = text.try_into().ok()?;
    let separators = [
        (2, b'/'),
        (6, b'/'),
        (11, b':'),
        (14, b':'),
        (17, b':'),
        (20, b' '),
    ];
    if separators.iter().any(|(at, byte)| text[*at] != *byte) {
        return None;
    }
    let month = MONTHS.iter().position(|month| **month == text[3..6])? as u64 + 1;
    let date = [number(&text[7..11])?, month, number(&text[..2])?];
    let clock = [
        number(&text[12..14])?,
        number(&text[15..17])?,
        number(&text[18..20])?,
    ];
    let east = seconds_east(text[21], &text[22..24], &text[24..26])?;
    micros_since_1970(date, clock, east)
}

fn find(text: &[u8], wanted: &[u8; 2]) -> Option<usize> {
    text.windows(2).position(|two| two == wanted)
}

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
const FEW: Reason = Reason::Fields { wanted: 7 };
