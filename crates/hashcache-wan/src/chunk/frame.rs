//! A stream's frames on the wire.
//!
//! | type | layout behind the type | to the |
//! |---|---|---|
//! | `11` BLOCK | lengths: content u24, steps u16, data u24; check 8 B; steps; data | receiver |
//! | `17` BLOCK without literals | lengths: content u24, steps u16; check 8 B; steps | receiver |
//! | `12` FINISH | content length u64 | receiver |
//! | `13` | reserved | |
//! | `14` ASK | offset u64, length u24 | sender |
//! | `15` ANSWER | offset u64, content length u24, data length u24; data | receiver |
//! | `16` ACK | offset u64 | sender |
//!
//! Integers are little-endian; offsets count content in the stream. The check is the first part of
//! SHA-256 over the block's offset and content. Data is zstd: in BLOCK the literals of the block,
//! as a flushed part of the stream's zstd frame; in ANSWER a separate frame. A block without
//! content may close an extent.
//!
//! Steps make a block's content. Each starts with a number in LEB128: the lower two bits are the
//! kind, the upper bits are a length. Kind 0: this many literals; 1: a reference, followed by the
//! extent's name and an offset (LEB128); 2: a reference to a recently referenced extent (`recent`),
//! followed by its position in that list and an offset; 3 (length 0): the literals since the last
//! such step are an extent.
//!
//! Invariant: every length is compared with the limit before the bytes that it counts have arrived.

use super::Name;
use crate::error::Reason;
use crate::limits::BLOCK_BYTES_MAX;

/// Maximum literals in a block, bytes.
pub(crate) const LITERAL_BYTES_MAX: usize = 64 << 10;
/// Maximum extent length, bytes: an engine page, which is read at once.
pub const EXTENT_BYTES_MAX: usize = 64 << 10;
/// Maximum for coded literals in a block, and for an answer, which may be a whole block.
const DATA_BYTES_MAX: usize = BLOCK_BYTES_MAX + 1024;

const BLOCK: u8 = 0x11;
const FINISH: u8 = 0x12;
const ASK: u8 = 0x14;
const ANSWER: u8 = 0x15;
const ACK: u8 = 0x16;
const BLOCK_WITHOUT_LITERALS: u8 = 0x17;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Block(Block<'a>),
    Finish(u64),
    Ask {
        offset: u64,
        length: usize,
    },
    Answer {
        offset: u64,
        length: usize,
        data: &'a [u8],
    },
    Ack(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    pub(crate) length: usize,
    pub(crate) check: [u8; 8],
    pub(crate) steps: &'a [u8],
    pub(crate) data: &'a [u8],
}

impl Frame<'_> {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Block(block) => {
                let has_data = !block.data.is_empty();
                out.push(if has_data {
                    BLOCK
                } else {
                    BLOCK_WITHOUT_LITERALS
                });
                out.extend(u24(block.length));
                out.extend(&u24(block.steps.len())[..2]);
                if has_data {
                    out.extend(u24(block.data.len()));
                }
                out.extend(block.check);
                out.extend(block.steps);
                out.extend(block.data);
            }
            Self::Finish(length) => {
                out.push(FINISH);
                out.extend(length.to_le_bytes());
            }
            Self::Ask { offset, length } => {
                out.push(ASK);
                out.extend(offset.to_le_bytes());
                out.extend(u24(*length));
            }
            Self::Answer {
                offset,
                length,
                data,
            } => {
                out.push(ANSWER);
                out.extend(offset.to_le_bytes());
                out.extend(u24(*length));
                out.extend(u24(data.len()));
                out.extend(*data);
            }
            Self::Ack(offset) => {
                out.push(ACK);
                out.extend(offset.to_le_bytes());
            }
        }
    }
}

/// Reads the first frame in `bytes`; also returns the frame's length. `None` if the frame is
/// incomplete.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Reason> {
    let Some((&kind, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    match kind {
        BLOCK | BLOCK_WITHOUT_LITERALS => {
            let lengths = if kind == BLOCK { 8 } else { 5 };
            let Some((fixed, rest)) = rest.split_at_checked(lengths + 8) else {
                return Ok(None);
            };
            let length = limited(number(&fixed[..3]), BLOCK_BYTES_MAX, "block")?;
            let steps = number(&fixed[3..5]);
            let data = number(&fixed[5..lengths]);
            if steps == 0 {
                return Err(Reason::Malformed("BLOCK"));
            }
            if data > LITERAL_BYTES_MAX + 1024 {
                return Err(Reason::Limit("block"));
            }
            let Some(both) = rest.get(..steps + data) else {
                return Ok(None);
            };
            let (steps, data) = both.split_at(steps);
            let check = fixed[lengths..].try_into().expect("8 bytes are left");
            let used = 1 + fixed.len() + both.len();
            let block = Block {
                length,
                check,
                steps,
                data,
            };
            Ok(Some((Frame::Block(block), used)))
        }
        FINISH => Ok(word(rest).map(|length| (Frame::Finish(length), 9))),
        ASK => {
            let Some(fixed) = rest.first_chunk::<11>() else {
                return Ok(None);
            };
            let length = limited(number(&fixed[8..]), BLOCK_BYTES_MAX, "question")?;
            let offset = word(fixed).unwrap_or(0);
            Ok(Some((Frame::Ask { offset, length }, 12)))
        }
        ANSWER => {
            let Some((fixed, rest)) = rest.split_first_chunk::<14>() else {
                return Ok(None);
            };
            let length = limited(number(&fixed[8..11]), BLOCK_BYTES_MAX, "answer")?;
            let data = limited(number(&fixed[11..]), DATA_BYTES_MAX, "answer")?;
            let Some(data) = rest.get(..data) else {
                return Ok(None);
            };
            let answer = Frame::Answer {
                offset: word(fixed).unwrap_or(0),
                length,
                data,
            };
            Ok(Some((answer, 15 + data.len())))
        }
        ACK => Ok(word(rest).map(|offset| (Frame::Ack(offset), 9))),
        unknown => Err(Reason::UnknownType(unknown)),
    }
}

/// A part of a block's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Literal(usize),
    Reference {
        length: usize,
        extent: Extent,
        offset: usize,
    },
    EndOfExtent,
}

/// The form in which a reference names an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Name(Name),
    /// By its position in the list of recently referenced extents.
    Recent(usize),
}

impl Step {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Literal(length) => write_number(*length << 2, out),
            Self::Reference {
                length,
                extent,
                offset,
            } => {
                match extent {
                    Extent::Name(name) => {
                        write_number(*length << 2 | 1, out);
                        out.extend(name.0);
                    }
                    Extent::Recent(place) => {
                        write_number(*length << 2 | 2, out);
                        write_number(*place, out);
                    }
                }
                write_number(*offset, out);
            }
            Self::EndOfExtent => write_number(3, out),
        }
    }

    /// Reads the first step in `bytes`; also returns the remaining bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Reason> {
        let (number, rest) = read_number(bytes)?;
        let length = number >> 2;
        let kind = number & 3;
        if (length == 0) != (kind == 3) || length > BLOCK_BYTES_MAX {
            return Err(MALFORMED);
        }
        match kind {
            0 => Ok((Self::Literal(length), rest)),
            3 => Ok((Self::EndOfExtent, rest)),
            kind => {
                let (extent, rest) = if kind == 1 {
                    let (name, rest) = rest.split_first_chunk::<16>().ok_or(MALFORMED)?;
                    (Extent::Name(Name(*name)), rest)
                } else {
                    let (place, rest) = read_number(rest)?;
                    (Extent::Recent(place), rest)
                };
                let (offset, rest) = read_number(rest)?;
                let reference = Self::Reference {
                    length,
                    extent,
                    offset,
                };
                Ok((reference, rest))
            }
        }
    }
}

const MALFORMED: Reason = Reason::Malformed("BLOCK");

fn write_number(number: usize, out: &mut Vec<u8>) {
    let mut number = u32::try_from(number).expect("below a block's limit, and two bits");
    while number >= 128 {
        out.push(number.to_le_bytes()[0] | 128);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// A number of at most three bytes.
fn read_number(bytes: &[u8]) -> Result<(usize, &[u8]), Reason> {
    let mut number = 0;
    for (at, &byte) in bytes.iter().take(3).enumerate() {
        number |= usize::from(byte & 127) << (7 * at);
        if byte < 128 {
            return Ok((number, &bytes[at + 1..]));
        }
    }
    Err(MALFORMED)
}

fn limited(number: usize, max: usize, what: &'static str) -> Result<usize, Reason> {
    if number > max {
        return Err(Reason::Limit(what));
    }
    Ok(number)
}

fn number(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .rev()
        .fold(0, |number, &byte| number << 8 | usize::from(byte))
}

fn word(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn u24(number: usize) -> [u8; 3] {
    let bytes = u32::try_from(number)
        .expect("below a block's limit")
        .to_le_bytes();
    [bytes[0], bytes[1], bytes[2]]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(frame: &Frame<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        frame.write(&mut out);
        out
    }

    fn all() -> [Frame<'static>; 6] {
        let block = |length, data| {
            Frame::Block(Block {
                length,
                check: [1; 8],
                steps: &[3],
                data,
            })
        };
        [
            block(0, &[]),
            block(BLOCK_BYTES_MAX, &[9; 70]),
            Frame::Finish(u64::MAX),
            Frame::Ask {
                offset: 5,
                length: BLOCK_BYTES_MAX,
            },
            Frame::Answer {
                offset: 5,
                length: 7,
                data: &[8; 9],
            },
            Frame::Ack(77),
        ]
    }

    #[test]
    fn each_frame_is_read_as_it_was_written_and_not_before_its_last_byte() {
        for frame in all() {
            let bytes = written(&frame);
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]), Ok(None), "{cut} of {frame:?}");
            }
            let more = [&bytes[..], b"more"].concat();
            assert_eq!(parse(&more), Ok(Some((frame, bytes.len()))));
        }
    }

    #[test]
    fn a_length_beyond_its_limit_is_refused_before_what_it_counts_has_come() {
        let limit = |bytes: &[u8]| matches!(parse(bytes), Err(Reason::Limit(_)));
        assert!(limit(&[&[BLOCK, 1, 0, 4][..], &[0; 13]].concat()));
        assert!(limit(
            &[&[BLOCK, 1, 0, 0, 1, 0, 0, 0, 2][..], &[0; 8]].concat()
        ));
        assert!(limit(&[&[ASK][..], &[0; 8], &[1, 0, 4]].concat()));
        assert!(limit(
            &[&[ANSWER][..], &[0; 8], &[1, 0, 4, 0, 0, 0]].concat()
        ));
        assert!(limit(
            &[&[ANSWER][..], &[0; 8], &[1, 0, 0, 0, 0, 5]].concat()
        ));
        assert_eq!(parse(&[1]), Err(Reason::UnknownType(1)));
        assert_eq!(parse(&[0x18]), Err(Reason::UnknownType(0x18)));
    }

    #[test]
    fn steps_are_read_as_they_were_written_and_nothing_else_is_a_step() {
        let steps = [
            Step::Literal(1),
            Step::Literal(BLOCK_BYTES_MAX),
            Step::Reference {
                length: 300,
                extent: Extent::Name(Name([5; 16])),
                offset: EXTENT_BYTES_MAX,
            },
            Step::Reference {
                length: 1,
                extent: Extent::Recent(63),
                offset: 0,
            },
            Step::EndOfExtent,
        ];
        for step in steps {
            let mut bytes = Vec::new();
            step.write(&mut bytes);
            bytes.push(77);
            assert_eq!(Step::parse(&bytes), Ok((step, &[77][..])));
            assert!(Step::parse(&bytes[..bytes.len() - 2]).is_err());
        }
        // A length of 0, an end with a length, numbers that do not end.
        for bytes in [&[0][..], &[1], &[7], &[255, 255, 255, 1], &[]] {
            assert_eq!(Step::parse(bytes), Err(MALFORMED));
        }
    }
}
