//! A transfer's frames on the wire, version 1.
//!
//! `encode` writes them, `decode` reads them. All integers are little-endian.
//!
//! | type | layout behind the type |
//! |---|---|
//! | `01` HEAD | flags u8 (0), length u64, version u64, dictionary kind u8; for kind 2: |
//! | | key length u16, key, SHA-256 32 B, dictionary length u64 |
//! | `02` STRETCH | offset u64, length u32 |
//! | `03` ZSTD | length u24, data, check 8 B |
//! | `04` RAW | length u24, content, check 8 B |
//! | `05` REF | reserved |
//! | `06` END | length u64, SHA-256 32 B |
//! | `07` ABORT | reason u8 |
//!
//! HEAD is first; END or ABORT (the sender's source failed) is last. STRETCH names the dictionary
//! part that is the prefix of the zstd frame that starts with the next ZSTD; without STRETCH, a
//! zstd frame has no prefix. ZSTD is a part of a zstd frame from which the block can be restored,
//! RAW an uncompressed block; an open zstd frame is closed before RAW and STRETCH.
//!
//! Invariant: `parse` accepts only frames that `Frame::write` writes. Every length is compared with
//! the limit as soon as the length has arrived, before the bytes that it counts.
//! Cost: none besides the copy into the reader's buffer.

use std::ops::Range;

use crate::digest::{Check, Digest};
use crate::error::Reason;
use crate::limits::{
    BLOCK_BYTES_MAX, CODED_BYTES_MAX, DICTIONARY_BYTES_MAX, KEY_BYTES_MAX, STRETCH_BYTES_MAX,
};

/// The first frame of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Content length, bytes, if known.
    pub length: Option<u64>,
    /// Reserved for the version under which the sender stores the content; senders write 0.
    pub version: u64,
    /// The dictionary that both sides have.
    pub dictionary: Dictionary,
}

/// The dictionary for a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dictionary {
    /// None.
    None,
    /// The dictionary that the receiver offered with the request.
    Offered,
    /// A dictionary that the sender names, because it has sent it to this receiver before.
    Named {
        /// The object's cache key.
        key: Box<[u8]>,
        /// SHA-256 of the content.
        digest: Digest,
        /// Content length, bytes.
        length: u64,
    },
}

/// Content length on the wire when it is not known.
const UNKNOWN: u64 = u64::MAX;

const HEAD: u8 = 1;
const STRETCH: u8 = 2;
const ZSTD: u8 = 3;
const RAW: u8 = 4;
const END: u8 = 6;
const ABORT: u8 = 7;

/// Bytes of HEAD without a key.
const HEAD_BYTES: usize = 19;
/// Bytes for a named dictionary besides the key: key length, digest, length.
const NAMED_BYTES: usize = 42;
/// A block's type and length; the check is behind the block.
const BLOCK_HEAD_BYTES: usize = 4;
const CHECK_BYTES: usize = 8;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Head(Head),
    Stretch(Range<u64>),
    Zstd(&'a [u8], Check),
    Raw(&'a [u8], Check),
    End { length: u64, digest: Digest },
    Abort(u8),
}

impl Frame<'_> {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Head(head) => write_head(head, out),
            Self::Stretch(range) => {
                out.push(STRETCH);
                out.extend(range.start.to_le_bytes());
                let length = u32::try_from(range.end - range.start).expect("at most 4 MiB");
                out.extend(length.to_le_bytes());
            }
            Self::Zstd(data, check) => write_block(ZSTD, data, *check, out),
            Self::Raw(content, check) => write_block(RAW, content, *check, out),
            Self::End { length, digest } => {
                out.push(END);
                out.extend(length.to_le_bytes());
                out.extend(digest.0);
            }
            Self::Abort(reason) => out.extend([ABORT, *reason]),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Head(_) => "HEAD",
            Self::Stretch(_) => "STRETCH",
            Self::Zstd(..) => "ZSTD",
            Self::Raw(..) => "RAW",
            Self::End { .. } => "END",
            Self::Abort(_) => "ABORT",
        }
    }
}

fn write_head(head: &Head, out: &mut Vec<u8>) {
    out.extend([HEAD, 0]);
    out.extend(head.length.unwrap_or(UNKNOWN).to_le_bytes());
    out.extend(head.version.to_le_bytes());
    match &head.dictionary {
        Dictionary::None => out.push(0),
        Dictionary::Offered => out.push(1),
        Dictionary::Named {
            key,
            digest,
            length,
        } => {
            out.push(2);
            let key_bytes = u16::try_from(key.len()).expect("at most KEY_BYTES_MAX");
            out.extend(key_bytes.to_le_bytes());
            out.extend(key);
            out.extend(digest.0);
            out.extend(length.to_le_bytes());
        }
    }
}

fn write_block(kind: u8, data: &[u8], check: Check, out: &mut Vec<u8>) {
    let length = u32::try_from(data.len()).expect("at most CODED_BYTES_MAX");
    out.push(kind);
    out.extend(&length.to_le_bytes()[..3]);
    out.extend(data);
    out.extend(check.0);
}

/// Reads the first frame in `bytes`; also returns the frame's length. `None` if the frame is
/// incomplete.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Reason> {
    let Some((&kind, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    match kind {
        HEAD => parse_head(bytes),
        STRETCH => {
            let Some(fixed) = rest.first_chunk::<12>() else {
                return Ok(None);
            };
            let (at, length) = (u64_at(fixed, 0), u64::from(u32_at(fixed, 8)));
            if length == 0 {
                return Err(Reason::Malformed("STRETCH"));
            }
            if length > STRETCH_BYTES_MAX || at > DICTIONARY_BYTES_MAX - length {
                return Err(Reason::Limit("stretch"));
            }
            Ok(Some((Frame::Stretch(at..at + length), 13)))
        }
        ZSTD => {
            let block = parse_block(rest, CODED_BYTES_MAX)?;
            Ok(block.map(|(data, check, used)| (Frame::Zstd(data, check), used)))
        }
        RAW => {
            let block = parse_block(rest, BLOCK_BYTES_MAX)?;
            Ok(block.map(|(data, check, used)| (Frame::Raw(data, check), used)))
        }
        END => Ok(rest.first_chunk::<40>().map(|fixed| {
            let digest = fixed[8..].try_into().expect("32 of 40 bytes");
            let end = Frame::End {
                length: u64_at(fixed, 0),
                digest: Digest(digest),
            };
            (end, 41)
        })),
        ABORT => Ok(rest.first().map(|&reason| (Frame::Abort(reason), 2))),
        unknown => Err(Reason::UnknownType(unknown)),
    }
}

fn parse_head(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Reason> {
    let Some((fixed, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
        return Ok(None);
    };
    if fixed[1] != 0 {
        return Err(Reason::Malformed("HEAD"));
    }
    let length = u64_at(fixed, 2);
    let (dictionary, more) = match fixed[18] {
        0 => (Dictionary::None, 0),
        1 => (Dictionary::Offered, 0),
        2 => {
            let Some(key_bytes) = rest.first_chunk::<2>() else {
                return Ok(None);
            };
            let key_bytes = usize::from(u16::from_le_bytes(*key_bytes));
            if key_bytes == 0 {
                return Err(Reason::Malformed("HEAD"));
            }
            if key_bytes > KEY_BYTES_MAX {
                return Err(Reason::Limit("key"));
            }
            let Some(named) = rest.get(2..NAMED_BYTES + key_bytes) else {
                return Ok(None);
            };
            let (key, named) = named.split_at(key_bytes);
            let dictionary_length = u64_at(named, 32);
            if dictionary_length == 0 || dictionary_length > DICTIONARY_BYTES_MAX {
                return Err(Reason::Limit("dictionary"));
            }
            let named = Dictionary::Named {
                key: key.into(),
                digest: Digest(named[..32].try_into().expect("32 bytes")),
                length: dictionary_length,
            };
            (named, NAMED_BYTES + key_bytes)
        }
        _ => return Err(Reason::Malformed("HEAD")),
    };
    let head = Head {
        length: (length != UNKNOWN).then_some(length),
        version: u64_at(fixed, 10),
        dictionary,
    };
    Ok(Some((Frame::Head(head), HEAD_BYTES + more)))
}

type Block<'a> = (&'a [u8], Check, usize);

/// Reads a block behind the type byte.
fn parse_block(rest: &[u8], bytes_max: usize) -> Result<Option<Block<'_>>, Reason> {
    let Some(&[a, b, c]) = rest.first_chunk::<3>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes([a, b, c, 0]) as usize;
    if length == 0 {
        return Err(Reason::Malformed("block"));
    }
    if length > bytes_max {
        return Err(Reason::Limit("block"));
    }
    let Some(block) = rest.get(3..3 + length + CHECK_BYTES) else {
        return Ok(None);
    };
    let (data, check) = block.split_at(length);
    let check = Check(check.try_into().expect("8 bytes"));
    Ok(Some((data, check, BLOCK_HEAD_BYTES + length + CHECK_BYTES)))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

#[cfg(test)]
mod tests;
