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
//! The paper's messages list each bit in four octets. Here the bits are sorted, and each is coded
//! as its distance from the one before, in one or two octets mostly: if one of a hundred objects is
//! new, an update says more than twice as much.
//!
//! Invariant: every bit of a parsed update exists in a filter of the size that the update says.
//! Cost: parsing copies nothing, and decodes twice; 4 to 8 octets for an object whose four bits are
//! new, with hundreds of others.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 20 | header of ICP, opcode 20 |
//! | 20 | 2 | hash functions: 4 |
//! | 22 | 2 | bits of each: 32 |
//! | 24 | 4 | bits of the filter |
//! | 28 | 2 | number of bits that are set |
//! | 30 | 2 | number of bits that are clear |
//! | 32 | … | the set bits, then the clear ones, both in ascending order |
//!
//! The first bit of either kind is its number, each other one the distance from the one before, at
//! least 1: seven bits to an octet, the least significant first, with the top bit set in all octets
//! but the last, in as few octets as possible. If a bit is of both kinds, it is clear.

use std::cmp::Reverse;

use crate::filter::{BITS_MAX, Bit, Filter, Size};
use crate::icp::{HEADER_BYTES, Header, Ignored};
use crate::key::HASHES;
use crate::octets::Octets;

/// ICP's opcode of an update: DIRUPDATE.
pub const OPCODE: u8 = 20;

/// Octets of the largest datagram: with 28 of IP and UDP it fits into a frame of Ethernet.
pub const DATAGRAM_BYTES_MAX: usize = 1_400;

/// Octets before the coded bits.
const FIXED_BYTES: usize = HEADER_BYTES + 12;
/// Most octets of a coded bit.
const CODED_BYTES_MAX: usize = 5;

const FUNCTION_COUNT: u16 = 4;
const FUNCTION_BITS: u16 = 32;
const _: () = assert!(FUNCTION_COUNT as usize == HASHES);
const _: () = assert!(BITS_MAX <= 1 << (7 * CODED_BYTES_MAX));

/// Beside the number of a bit: the bit is set.
const IS_SET: u32 = 1 << 31;
const _: () = assert!(BITS_MAX <= IS_SET as u64);

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
    /// Not read yet.
    coded: Coded<'a>,
}

/// The bits of an update, decoded from front to back. Ends early where the octets are no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Coded<'a> {
    set: u16,
    clear: u16,
    /// The bit before of the same kind.
    before: Option<u32>,
    octets: Octets<'a>,
}

/// Changes of a filter that are being put into datagrams.
#[derive(Clone, Debug)]
pub struct Changes {
    size: Size,
    /// The bits that are in no datagram yet, in the order in which they are sent, from the end;
    /// with [`IS_SET`] those that are set.
    left: Vec<u32>,
}

/// Why an update is not used. The caller counts it and says nothing to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// It is no ICP message, or no update.
    #[error(transparent)]
    Icp(#[from] Ignored),
    /// It is larger than [`DATAGRAM_BYTES_MAX`].
    #[error("the update is longer than {DATAGRAM_BYTES_MAX} octets")]
    TooLong,
    /// It was made for other hash functions than the four of 32 bits.
    #[error("an update for {count} hash functions of {bits} bits")]
    Functions {
        /// Their number.
        count: u16,
        /// Bits of each.
        bits: u16,
    },
    /// The datagram does not have as many bits as it says, or more, or not in the only right code.
    #[error("an update of {set} set and {clear} clear bits, which the datagram does not have")]
    Coding {
        /// Number of set bits that it says.
        set: u16,
        /// Number of clear bits.
        clear: u16,
    },
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
        if position.epoch == self.epoch && behind < 1 << 31 {
            Step::Old
        } else {
            Step::Gap
        }
    }
}

/// Parses a datagram from a peer.
pub fn parse(datagram: &[u8]) -> Result<Update<'_>, Refused> {
    let header = Header::parse(datagram)?;
    if header.opcode != OPCODE {
        return Err(Ignored::Opcode(header.opcode).into());
    }
    if datagram.len() > DATAGRAM_BYTES_MAX {
        return Err(Refused::TooLong);
    }
    let mut payload = header.payload;
    let fields = Fields::read(&mut payload).ok_or(Ignored::TooShort)?;
    if (fields.count, fields.bits) != (FUNCTION_COUNT, FUNCTION_BITS) {
        return Err(Refused::Functions {
            count: fields.count,
            bits: fields.bits,
        });
    }
    let coded = Coded {
        set: fields.set,
        clear: fields.clear,
        before: None,
        octets: payload,
    };
    let filter_bits = fields.filter_bits;
    let mut checked = coded;
    if let Some(Flip { bit, .. }) = checked.find(|flip| flip.bit >= filter_bits) {
        return Err(Refused::Bit { bit, filter_bits });
    }
    if (checked.set, checked.clear, checked.octets.rest()) != (0, 0, &[]) {
        return Err(Refused::Coding {
            set: fields.set,
            clear: fields.clear,
        });
    }
    Ok(Update {
        position: Position {
            epoch: header.options,
            serial: header.number,
        },
        filter_bits,
        coded,
    })
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

    /// The bits that it names: those that are set, then those that are clear. If a bit is both, the
    /// latter counts.
    pub fn flips(&self) -> impl Iterator<Item = Flip> {
        self.coded
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

impl Iterator for Coded<'_> {
    type Item = Flip;

    fn next(&mut self) -> Option<Flip> {
        let (value, left) = match (self.set, self.clear) {
            (0, 0) => return None,
            (0, _) => (Bit::Clear, &mut self.clear),
            _ => (Bit::Set, &mut self.set),
        };
        let distance = read_number(&mut self.octets)?;
        let bit = match self.before {
            None => distance,
            Some(_) if distance == 0 => return None,
            Some(before) => before.checked_add(distance)?,
        };
        *left -= 1;
        // The clear bits begin anew.
        self.before = (value == Bit::Clear || self.set > 0).then_some(bit);
        Some(Flip { bit, value })
    }
}

impl Changes {
    /// Changes of these bits of a filter of `size` to what they are now by `value_of`. Bits that
    /// the filter does not have are left out, and none is sent twice.
    ///
    /// Cost: two sorts, and no memory beside that of `bits`.
    pub fn new(size: Size, mut bits: Vec<u32>, value_of: impl Fn(u32) -> Bit) -> Changes {
        bits.retain(|bit| *bit < size.bits());
        bits.sort_unstable();
        bits.dedup();
        for bit in &mut bits {
            if value_of(*bit) == Bit::Set {
                *bit |= IS_SET;
            }
        }
        // The next one is taken from the end.
        bits.sort_unstable_by_key(|bit| (*bit & IS_SET, Reverse(*bit)));
        Changes { size, left: bits }
    }

    /// How many bits are in no datagram yet.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// The datagram at `position`, with as many of the changes as it has room for. Without changes
    /// it announces the position alone.
    pub fn datagram(&mut self, position: Position) -> Vec<u8> {
        let mut coded = Vec::new();
        let (mut set, mut clear) = (0_u16, 0_u16);
        let mut before: Option<u32> = None;
        while coded.len() + CODED_BYTES_MAX <= DATAGRAM_BYTES_MAX - FIXED_BYTES
            && let Some(bit) = self.left.pop()
        {
            let same = before.filter(|before| before & IS_SET == bit & IS_SET);
            write_number(
                (bit & !IS_SET) - same.map_or(0, |it| it & !IS_SET),
                &mut coded,
            );
            match bit & IS_SET {
                0 => clear += 1,
                _ => set += 1,
            }
            before = Some(bit);
        }
        let header = Header {
            opcode: OPCODE,
            number: position.serial,
            options: position.epoch,
            ..Header::default()
        };
        header.datagram(&[
            &FUNCTION_COUNT.to_be_bytes(),
            &FUNCTION_BITS.to_be_bytes(),
            &self.size.bits().to_be_bytes(),
            &set.to_be_bytes(),
            &clear.to_be_bytes(),
            &coded,
        ])
    }
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

/// Reads a number in seven bits to an octet; `None` if it is cut off, too large, or longer than it
/// need be.
fn read_number(octets: &mut Octets<'_>) -> Option<u32> {
    let mut number = 0_u64;
    for n in 0..CODED_BYTES_MAX {
        let octet = octets.u8()?;
        number |= u64::from(octet & !MORE) << (7 * n);
        if octet & MORE == 0 {
            let is_shortest = octet != 0 || n == 0;
            return u32::try_from(number).ok().filter(|_| is_shortest);
        }
    }
    None
}

fn write_number(mut number: u32, octets: &mut Vec<u8>) {
    while number >= MORE.into() {
        octets.push(number.to_le_bytes()[0] | MORE);
        number >>= 7;
    }
    octets.push(number.to_le_bytes()[0]);
}

/// In an octet of a number: another one follows.
const MORE: u8 = 1 << 7;

/// The fields between ICP's header and the coded bits, not checked.
struct Fields {
    count: u16,
    bits: u16,
    filter_bits: u32,
    set: u16,
    clear: u16,
}

impl Fields {
    fn read(payload: &mut Octets<'_>) -> Option<Fields> {
        Some(Fields {
            count: payload.u16()?,
            bits: payload.u16()?,
            filter_bits: payload.u32()?,
            set: payload.u16()?,
            clear: payload.u16()?,
        })
    }
}

#[cfg(test)]
mod tests;
