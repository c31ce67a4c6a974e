//! Parts of a checkpoint: the index and the state of the log, as of a log position.

use super::{Fieldreader, Layout, put, tiles};
use crate::key::Secret;

/// Size of a part on disk, bytes.
pub(crate) const PART_BYTES: usize = 256 << 10;
/// What a part carries, bytes.
pub(crate) const PART_BODY: usize = PART_BYTES - PART_HEADER;

/// Bytes of a part in front of its body.
pub(crate) const PART_HEADER: usize = 64;
/// Bytes of the check behind a row, in a checkpoint whose rows are read one by one.
pub(crate) const ROW_CHECK: usize = 4;
const MAGIC: u32 = u32::from_le_bytes(*b"HCcp");

/// The head of a checkpoint part; the body follows.
#[rustfmt::skip]
pub(crate) const PART_LAYOUT: Layout = &[
    ("mac", 0, 8), ("magic", 8, 4), ("body bytes", 12, 4), ("serial", 16, 8), ("number", 24, 8),
    ("device", 32, 2), ("reserved", 34, 6), ("begun", 40, 8), ("reserved", 48, 16),
];

const _: () = assert!(tiles(PART_LAYOUT, PART_HEADER));

/// A part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    pub(crate) device: u16,
    pub(crate) serial: u64,
    pub(crate) number: u64,
    /// Version drawn when the checkpoint began: parts of one that was given up do not fit another
    /// of the same serial.
    pub(crate) begun: u64,
    pub(crate) body: &'a [u8],
}

impl<'a> Part<'a> {
    /// Writes the part to `out`, [`PART_BYTES`] long.
    pub(crate) fn encode(&self, out: &mut [u8], secret: &Secret) {
        assert!(self.body.len() <= PART_BODY && out.len() == PART_BYTES);
        let length = u32::try_from(self.body.len()).expect("less than 256 KiB");
        out.fill(0);
        put(out, 8, &MAGIC.to_le_bytes());
        put(out, 12, &length.to_le_bytes());
        put(out, 16, &self.serial.to_le_bytes());
        put(out, 24, &self.number.to_le_bytes());
        put(out, 32, &self.device.to_le_bytes());
        put(out, 40, &self.begun.to_le_bytes());
        put(out, PART_HEADER, self.body);
        let mac = secret.mac(&[b"part", &out[8..PART_HEADER + self.body.len()]]);
        put(out, 0, &mac.to_le_bytes());
    }

    /// The part in `bytes`, if it is one of ours.
    pub(crate) fn decode(bytes: &'a [u8], secret: &Secret) -> Option<Self> {
        let field = Fieldreader(bytes.get(..PART_HEADER)?);
        let length = usize::try_from(field.u32(12)).ok()?;
        let covered = bytes.get(8..PART_HEADER.checked_add(length)?)?;
        let genuine = field.u32(8) == MAGIC && secret.mac(&[b"part", covered]) == field.u64(0);
        genuine.then(|| Self {
            device: field.u16(32),
            serial: field.u64(16),
            number: field.u64(24),
            begun: field.u64(40),
            body: &bytes[PART_HEADER..PART_HEADER + length],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_comes_back_and_damage_voids_it() {
        let secret = Secret::from_bytes([2; 32]);
        let body: Vec<u8> = (0..=u8::MAX).cycle().take(PART_BODY).collect();
        let part = Part {
            device: 0,
            serial: 4,
            number: 2,
            begun: 9,
            body: &body,
        };
        let mut bytes = vec![0; PART_BYTES];
        part.encode(&mut bytes, &secret);
        assert_eq!(Part::decode(&bytes, &secret), Some(part));
        bytes[100_000] ^= 1;
        assert_eq!(Part::decode(&bytes, &secret), None);
    }
}
