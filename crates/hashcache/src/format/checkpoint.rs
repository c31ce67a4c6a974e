//! Checkpoint parts: the log state and the index rows, as of a log position. Called by
//! `disk/checkpoint`.

use super::layout::{covered, record, seal};
use crate::key::Secret;

/// Size of a part on disk, bytes.
pub(crate) const PART_BYTES: usize = 256 << 10;
/// Part capacity, bytes.
pub(crate) const PART_BODY: usize = PART_BYTES - PART_HEADER;

/// Bytes before the body.
pub(crate) const PART_HEADER: usize = PartHeader::BYTES;
/// Check bytes after each row, for checkpoints with rows that are read one by one.
pub(crate) const ROW_CHECK: usize = 4;
const MAGIC: u32 = u32::from_le_bytes(*b"HCcp");

record! {
    /// A checkpoint part's header; the body follows.
    struct PartHeader = "PART", 64;
    0 mac: u64,
    8 magic: u32,
    12 body_bytes: u32,
    16 serial: u64,
    24 number: u64,
    32 device: u16,
    40 begun: u64,
}

record! {
    /// The log state, in the first parts; a stamp for each segment follows.
    struct LogState = "LOG STATE", 64;
    0 segment: u64,
    8 lap: u64,
    16 stamp: u64,
    24 bytes_used: u64,
    32 ordinal: u64,
    /// Version drawn when the checkpoint started.
    40 begun: u64,
    48 policy: u64,
    56 policy_since: u64,
}

/// A checkpoint part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointPart<'a> {
    pub(crate) device: u16,
    pub(crate) serial: u64,
    pub(crate) number: u64,
    /// Version drawn when the checkpoint started. It distinguishes an abandoned checkpoint's parts
    /// from another checkpoint with the same serial.
    pub(crate) begun: u64,
    pub(crate) body: &'a [u8],
}

impl<'a> CheckpointPart<'a> {
    /// Writes the part to `out`, [`PART_BYTES`] long.
    pub(crate) fn encode(&self, out: &mut [u8], secret: &Secret) {
        assert!(self.body.len() <= PART_BODY && out.len() == PART_BYTES);
        let header = PartHeader {
            mac: 0,
            magic: MAGIC,
            body_bytes: u32::try_from(self.body.len()).expect("less than 256 KiB"),
            serial: self.serial,
            number: self.number,
            device: self.device,
            begun: self.begun,
        };
        header.encode(out);
        let end = PART_HEADER + self.body.len();
        out[PART_HEADER..end].copy_from_slice(self.body);
        out[end..].fill(0);
        seal(out, secret.mac(&[b"part", covered(&out[..end])]));
    }

    /// Decodes the part in `bytes`, if the MAC is ours.
    pub(crate) fn decode(bytes: &'a [u8], secret: &Secret) -> Option<Self> {
        let header = PartHeader::decode(bytes)?;
        let length = usize::try_from(header.body_bytes).ok()?;
        let part = bytes.get(..PART_HEADER.checked_add(length)?)?;
        let genuine = header.magic == MAGIC && secret.mac(&[b"part", covered(part)]) == header.mac;
        genuine.then(|| Self {
            device: header.device,
            serial: header.serial,
            number: header.number,
            begun: header.begun,
            body: &part[PART_HEADER..],
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
        let part = CheckpointPart {
            device: 0,
            serial: 4,
            number: 2,
            begun: 9,
            body: &body,
        };
        let mut bytes = vec![0; PART_BYTES];
        part.encode(&mut bytes, &secret);
        assert_eq!(CheckpointPart::decode(&bytes, &secret), Some(part));
        bytes[100_000] ^= 1;
        assert_eq!(CheckpointPart::decode(&bytes, &secret), None);
    }
}
