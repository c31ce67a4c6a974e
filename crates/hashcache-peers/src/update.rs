//! Directory updates of Summary Cache: bits of a filter that changed, by UDP (SC-ICP; Fan, Cao,
//! Almeida and Broder, "Summary Cache: A Scalable Wide-Area Web Cache Sharing Protocol").
//!
//! The proxy sends these to peers that hold a copy of its [`Filter`], and applies those that it
//! receives. An update is an ICP message with an opcode of its own. It says what bits *are* and not
//! that they flip, so one that arrives twice does no harm and one that is lost costs only its own
//! bits. [`Position`] finds the losses.
//!
//! Two fields of ICP's header have a meaning here that the paper does not give them: Options is the
//! epoch (the lifetime of one filter at its sender) and the request number is the serial number in
//! the epoch. The hash is that of the digests: unlike the paper's it has Squid's method octet.
//!
//! Invariant: every bit of a parsed update exists in a filter of the size that the update says.
//! Cost: parsing copies nothing; 16 octets for an object whose four bits are new.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 20 | header of ICP, opcode 20 |
//! | 20 | 2 | hash functions: 4 |
//! | 22 | 2 | bits of each: 32 |
//! | 24 | 4 | bits of the filter |
//! | 28 | 4 | number of words |
//! | 32 | 4 each | top bit: the new value; others: the number of the bit |

use crate::filter::{BITS_MAX, Bit, Filter, Size};
use crate::icp::{Header, Ignored};
use crate::key::HASHES;
use crate::octets::Octets;

/// ICP's opcode of an update: DIRUPDATE.
pub const OPCODE: u8 = 20;

/// Most bits in a datagram: with its headers it fits into a frame of Ethernet (1,400 octets and 28
/// of IP and UDP).
pub const FLIPS_MAX: usize = 342;

const FUNCTION_COUNT: u16 = 4;
const FUNCTION_BITS: u16 = 32;
const _: () = assert!(FUNCTION_COUNT as usize == HASHES);

/// The bit of a word that is the new value.
const VALUE: u32 = 1 << 31;
const _: () = assert!(BITS_MAX <= VALUE as u64);

/// One bit of a filter and its value now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flip {
    /// The number of the bit; below 2^31.
    pub bit: u32,
    /// What it is.
    pub value: Bit,
}

/// Where an update stands in the sender's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// Changes when the sender builds its filter from nothing or in another size.
    pub epoch: u32,
    /// One more for each datagram; wraps around.
    pub serial: u32,
}

/// What a receiver does with an update, having applied all up to some position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// It is the next one: apply it.
    Next,
    /// It, or a later one, was applied before: drop it.
    Old,
    /// Updates are missing between, or the filter is another one: fetch the whole digest.
    Gap,
}

/// A datagram that was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update<'a> {
    position: Position,
    filter_bits: u32,
    words: &'a [[u8; 4]],
}

/// Why an update is not used. The caller counts it and says nothing to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// It is no ICP message, or no update.
    #[error(transparent)]
    Icp(#[from] Ignored),
    /// It was made for other hash functions than the four of 32 bits.
    #[error("an update for {count} hash functions of {bits} bits")]
    Functions {
        /// Their number.
        count: u16,
        /// Bits of each.
        bits: u16,
    },
    /// More words than [`FLIPS_MAX`], or another number of them than the datagram has.
    #[error("an update that says {0} words, which the datagram does not have")]
    Words(u32),
    /// A bit that a filter of the size in the update does not have.
    #[error("an update of bit {bit} in a filter of {filter_bits} bits")]
    Bit {
        /// Its number.
        bit: u32,
        /// The filter's size.
        filter_bits: u32,
    },
}

/// The filter has another size than the update is for: its sender has a new one, whose digest must
/// be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an update for a filter of {theirs} bits, where the copy has {ours}")]
pub struct OtherSize {
    /// Bits that the update says.
    pub theirs: u32,
    /// Bits of the copy.
    pub ours: u32,
}

impl Position {
    /// The position of the next datagram.
    #[must_use]
    pub fn next(self) -> Position {
        Position {
            serial: self.serial.wrapping_add(1),
            ..self
        }
    }

    /// What to do with an update at `position` when all up to `self` were applied. Half of all
    /// serial numbers lie behind and half ahead (as in RFC 1982).
    pub fn step_to(self, position: Position) -> Step {
        if position == self.next() {
            return Step::Next;
        }
        let behind = self.serial.wrapping_sub(position.serial);
        match position.epoch == self.epoch && behind < 1 << 31 {
            true => Step::Old,
            false => Step::Gap,
        }
    }
}

/// Parses a datagram from a peer.
pub fn parse(datagram: &[u8]) -> Result<Update<'_>, Refused> {
    let header = Header::parse(datagram)?;
    if header.opcode != OPCODE {
        return Err(Ignored::Opcode(header.opcode).into());
    }
    let mut payload = header.payload;
    let fields = Fields::read(&mut payload).ok_or(Ignored::TooShort)?;
    if (fields.count, fields.bits) != (FUNCTION_COUNT, FUNCTION_BITS) {
        return Err(Refused::Functions {
            count: fields.count,
            bits: fields.bits,
        });
    }
    let (words, rest) = payload.rest().as_chunks();
    let fits = rest.is_empty() && words.len() <= FLIPS_MAX;
    if !fits || u32::try_from(words.len()) != Ok(fields.words) {
        return Err(Refused::Words(fields.words));
    }
    let update = Update {
        position: Position {
            epoch: header.options,
            serial: header.number,
        },
        filter_bits: fields.filter_bits,
        words,
    };
    match update.flips().find(|flip| flip.bit >= fields.filter_bits) {
        None => Ok(update),
        Some(Flip { bit, .. }) => Err(Refused::Bit {
            bit,
            filter_bits: fields.filter_bits,
        }),
    }
}

impl Update<'_> {
    /// Its place among the sender's updates.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Bits of the filter that it is for.
    pub fn filter_bits(&self) -> u32 {
        self.filter_bits
    }

    /// The bits that it names, in the order in which they changed: the last value of a bit counts.
    pub fn flips(&self) -> impl ExactSizeIterator<Item = Flip> {
        self.words.iter().map(|word| Flip::of(*word))
    }

    /// Gives the bits of `filter` their values; returns how many were different. An error if the
    /// filter has another size; then nothing was changed.
    pub fn apply(&self, filter: &mut Filter) -> Result<usize, OtherSize> {
        let ours = filter.size().bits();
        if self.filter_bits != ours {
            return Err(OtherSize {
                theirs: self.filter_bits,
                ours,
            });
        }
        Ok(self
            .flips()
            .filter(|flip| filter.put(flip.bit, flip.value))
            .count())
    }
}

/// The datagram at `position` that says `flips` about a filter of `size`: at most [`FLIPS_MAX`], or
/// it is refused, as it is when the filter does not have one of the bits.
pub fn datagram(position: Position, size: Size, flips: &[Flip]) -> Result<Vec<u8>, Refused> {
    let count = u32::try_from(flips.len()).unwrap_or(u32::MAX);
    if flips.len() > FLIPS_MAX {
        return Err(Refused::Words(count));
    }
    let filter_bits = size.bits();
    if let Some(&Flip { bit, .. }) = flips.iter().find(|flip| flip.bit >= filter_bits) {
        return Err(Refused::Bit { bit, filter_bits });
    }
    let words: Vec<u8> = flips.iter().flat_map(|flip| flip.word()).collect();
    let header = Header {
        opcode: OPCODE,
        number: position.serial,
        options: position.epoch,
        ..Header::default()
    };
    Ok(header.datagram(&[
        &FUNCTION_COUNT.to_be_bytes(),
        &FUNCTION_BITS.to_be_bytes(),
        &filter_bits.to_be_bytes(),
        &count.to_be_bytes(),
        &words,
    ]))
}

/// The bits in which two filters of one size differ, with their values in the newer: what updates
/// have to say after a filter was built anew. `None` if the sizes differ; then an epoch begins.
///
/// Cost: one comparison for each octet of the filters.
pub fn differences(old: &Filter, new: &Filter) -> Option<impl Iterator<Item = Flip>> {
    let octets = old.octets().iter().zip(new.octets());
    let flips = (0_u32..)
        .zip(octets)
        .filter(|(_, (old, new))| old != new)
        .flat_map(|(index, (old, new))| {
            let of_bit = move |n: u32| {
                let mask = 1_u8 << n;
                let value = match new & mask {
                    0 => Bit::Clear,
                    _ => Bit::Set,
                };
                let flip = Flip {
                    bit: index * 8 + n,
                    value,
                };
                ((old ^ new) & mask != 0).then_some(flip)
            };
            (0..8).filter_map(of_bit)
        });
    (old.size().bits() == new.size().bits()).then_some(flips)
}

impl Flip {
    fn of(word: [u8; 4]) -> Flip {
        let word = u32::from_be_bytes(word);
        Flip {
            bit: word & !VALUE,
            value: match word & VALUE {
                0 => Bit::Clear,
                _ => Bit::Set,
            },
        }
    }

    fn word(self) -> [u8; 4] {
        let value = match self.value {
            Bit::Set => VALUE,
            Bit::Clear => 0,
        };
        (self.bit | value).to_be_bytes()
    }
}

/// The fields between ICP's header and the words, not checked.
struct Fields {
    count: u16,
    bits: u16,
    filter_bits: u32,
    words: u32,
}

impl Fields {
    fn read(payload: &mut Octets<'_>) -> Option<Fields> {
        Some(Fields {
            count: payload.u16()?,
            bits: payload.u16()?,
            filter_bits: payload.u32()?,
            words: payload.u32()?,
        })
    }
}

#[cfg(test)]
mod tests;
