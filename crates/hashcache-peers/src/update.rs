//! Directory updates in Summary Cache: changed bits of a filter, by UDP (SC-ICP; Fan, Cao, Almeida
//! and Broder, "Summary Cache: A Scalable Wide-Area Web Cache Sharing Protocol").
//!
//! The proxy sends updates to peers that hold a copy of its [`Filter`], and applies the updates
//! that it receives. An update is an ICP message with a separate opcode. It carries the new values
//! of bits, not flips, so a duplicate update does no harm and a lost update affects only the bits
//! in it. [`Position`] detects losses.
//!
//! Two fields of the ICP header have a meaning here that the paper does not define: Options is the
//! epoch (the lifetime of a filter at the sender) and the request number is the serial number in
//! the epoch. The hash is the same as in digests: unlike the paper, it includes Squid's method
//! octet.
//!
//! In the paper, messages list each bit in four octets. Here the bits are sorted, and each is coded
//! as the distance from the preceding bit, mostly in one or two octets: if one in a hundred objects
//! is new, an update carries more than twice as many bits.
//!
//! Invariant: every bit in a parsed update exists in a filter with the size that the update states.
//! Cost: parsing copies nothing, and decodes twice; 4 to 8 octets for an object with four new bits,
//! among hundreds of others.
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
//! The first bit of each kind is coded as its number, every further bit as the distance from the
//! preceding bit, at least 1: seven bits per octet, the least significant first, with the top bit
//! set in all octets except the last, in as few octets as possible. A bit of both kinds is clear.

use std::cmp::Reverse;

use crate::filter::{BITS_MAX, Bit, Filter, Size};
use crate::icp::{HEADER_BYTES, Header, Ignored};
use crate::key::HASHES;
use crate::octets::Octets;

/// ICP opcode for an update: DIRUPDATE.
pub const OPCODE: u8 = 20;

/// Maximum datagram size in octets: with 28 octets for IP and UDP it fits into an Ethernet frame.
pub const DATAGRAM_BYTES_MAX: usize = 1_400;

/// Size of the fields before the coded bits, in octets.
const FIXED_BYTES: usize = HEADER_BYTES + 12;
/// Maximum size of a coded bit in octets.
const CODED_BYTES_MAX: usize = 5;

const FUNCTION_COUNT: u16 = 4;
const FUNCTION_BITS: u16 = 32;
const _: () = assert!(FUNCTION_COUNT as usize == HASHES);
const _: () = assert!(BITS_MAX <= 1 << (7 * CODED_BYTES_MAX));

/// Flag added to a bit number: the bit is set.
const IS_SET: u32 = 1 << 31;
const _: () = assert!(BITS_MAX <= IS_SET as u64);

/// A bit of a filter and the new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flip {
    /// Bit number; below 2^31.
    pub bit: u32,
    /// New value.
    pub value: Bit,
}

/// The position of an update in the sender's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// Changes when the sender builds the filter anew or with another size.
    pub epoch: u32,
    /// Incremented for each datagram; wraps around.
    pub serial: u32,
}

/// How a receiver handles an update, after it has applied all updates up to some position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The update is the next: apply it.
    Next,
    /// This update, or a later update, was already applied: drop it.
    Old,
    /// Updates are missing, or the sender has a new filter: fetch the whole digest.
    Gap,
}

/// A parsed update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update<'a> {
    position: Position,
    filter_bits: u32,
    /// Coded bits, not decoded.
    coded: Coded<'a>,
}

/// The bits of an update, decoded in sequence. Stops early if the octets are not a valid code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Coded<'a> {
    set: u16,
    clear: u16,
    /// The preceding bit of the same kind.
    before: Option<u32>,
    octets: Octets<'a>,
}

/// Changes of a filter to be encoded into datagrams.
#[derive(Clone, Debug)]
pub struct Changes {
    size: Size,
    /// The bits that are not yet in a datagram, in reverse order of sending; set bits are flagged
    /// with [`IS_SET`].
    left: Vec<u32>,
}

/// Why an update is rejected. The caller counts it and sends no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The datagram is not an ICP message, or not an update.
    #[error(transparent)]
    Icp(#[from] Ignored),
    /// The datagram is larger than [`DATAGRAM_BYTES_MAX`].
    #[error("the update is longer than {DATAGRAM_BYTES_MAX} octets")]
    TooLong,
    /// The update is for other hash functions than the four with 32 bits.
    #[error("an update for {count} hash functions of {bits} bits")]
    Functions {
        /// Number of functions.
        count: u16,
        /// Bits per function.
        bits: u16,
    },
    /// The datagram has fewer or more bits than stated, or they are not in the shortest code.
    #[error("an update of {set} set and {clear} clear bits, which the datagram does not have")]
    Coding {
        /// Stated number of set bits.
        set: u16,
        /// Stated number of clear bits.
        clear: u16,
    },
    /// A bit is outside a filter of the stated size.
    #[error("an update of bit {bit} in a filter of {filter_bits} bits")]
    Bit {
        /// Bit number.
        bit: u32,
        /// Size of the filter.
        filter_bits: u32,
    },
}

/// The filter size differs from the size in the update: the sender has a new filter, so its digest
/// must be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an update for a filter of {theirs} bits, where the copy has {ours}")]
pub struct OtherSize {
    /// Number of bits in the update.
    pub theirs: u32,
    /// Number of bits in the copy.
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

    /// How to handle an update at `position` when all up to `self` were applied. Half of all serial
    /// numbers count as older and half as newer (as in RFC 1982).
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
    /// Position in the sender's sequence.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Number of bits in the filter that the update is for.
    pub fn filter_bits(&self) -> u32 {
        self.filter_bits
    }

    /// The bits in the update: first the set bits, then the clear bits. If a bit occurs twice, the
    /// later value counts.
    pub fn flips(&self) -> impl Iterator<Item = Flip> {
        self.coded
    }

    /// Applies the bits to `filter`; returns how many have changed. An error if the filter has
    /// another size; then nothing is changed.
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
        // The clear bits start again from 0.
        self.before = (value == Bit::Clear || self.set > 0).then_some(bit);
        Some(Flip { bit, value })
    }
}

impl Changes {
    /// Changes of these bits in a filter of `size`, with the current values from `value_of`. Bits
    /// outside the filter are dropped, and no bit is sent twice.
    ///
    /// Cost: two sorts, and no memory besides `bits`.
    pub fn new(size: Size, mut bits: Vec<u32>, value_of: impl Fn(u32) -> Bit) -> Changes {
        bits.retain(|bit| *bit < size.bits());
        bits.sort_unstable();
        bits.dedup();
        for bit in &mut bits {
            if value_of(*bit) == Bit::Set {
                *bit |= IS_SET;
            }
        }
        // Bits are popped from the end.
        bits.sort_unstable_by_key(|bit| (*bit & IS_SET, Reverse(*bit)));
        Changes { size, left: bits }
    }

    /// Number of bits that are not yet in a datagram.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// Builds the datagram at `position`, with as many changes as fit. Without changes it announces
    /// only the position.
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

/// The bits in which two filters of the same size differ, with the newer values: these are the
/// updates to send after a filter was rebuilt. `None` if the sizes differ; then a new epoch starts.
///
/// Cost: one comparison per octet.
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

/// Decodes a number with seven bits per octet; `None` if it is truncated, too large, or longer than
/// necessary.
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

/// Flag in an octet of a number: another octet follows.
const MORE: u8 = 1 << 7;

/// The unchecked fields between the ICP header and the coded bits.
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
