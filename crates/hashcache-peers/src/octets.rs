//! Reads the fields of a datagram in sequence; all integers are big-endian.
//!
//! Every parser in this crate uses it.
//!
//! Invariant: a read for more octets than are left returns `None` and consumes nothing.
//! Cost: nothing is copied or allocated.

/// The unread octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Octets<'a>(&'a [u8]);

impl<'a> Octets<'a> {
    pub(crate) fn new(octets: &'a [u8]) -> Octets<'a> {
        Octets(octets)
    }

    /// Takes the next `count` octets.
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// All unread octets.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_big_endian() {
        let mut octets = Octets::new(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(octets.u8(), Some(1));
        assert_eq!(octets.u16(), Some(0x0203));
        assert_eq!(octets.u32(), Some(0x0405_0607));
        assert_eq!(octets.rest(), [8]);
    }

    #[test]
    fn a_read_past_the_end_consumes_nothing() {
        let mut octets = Octets::new(&[1, 2]);
        assert_eq!(octets.u32(), None);
        assert_eq!(octets.take(3), None);
        assert_eq!(octets.take(2), Some(&[1, 2][..]));
        assert_eq!(octets.u8(), None);
        assert_eq!(octets.take(0), Some(&[][..]));
    }
}
