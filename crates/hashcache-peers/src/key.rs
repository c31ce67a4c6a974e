//! The key by which Bloom filters know a URL: MD5 of a method octet and the URL, as Squid keys its
//! store.
//!
//! The proxy makes one for each lookup in a peer's filter; the engine keeps the same 16 octets as
//! the mark of a record. MD5 does not have to resist forgers here: two URLs with one key cost a
//! request in vain, never a wrong answer.
//!
//! Cost: one pass of MD5 over the URL; nothing is allocated.

/// Hash functions of a filter: the four 32-bit words of the key.
pub const HASHES: usize = 4;

/// The octet that Squid puts before the URL for GET. Other methods are in no filter.
const METHOD_GET: u8 = 1;

/// The key of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u8; 16]);

impl Key {
    /// The key of GET for an absolute URL. Squid's form of it has the query, but neither the
    /// fragment nor the scheme's default port.
    pub fn of_get(url: &[u8]) -> Key {
        let mut context = md5::Context::new();
        context.consume([METHOD_GET]);
        context.consume(url);
        Key(context.finalize().0)
    }

    /// A key from where it was kept.
    pub fn from_octets(octets: [u8; 16]) -> Key {
        Key(octets)
    }

    /// The key to be kept.
    pub fn octets(&self) -> [u8; 16] {
        self.0
    }

    /// The four big-endian words, each the hash of one function.
    pub fn words(&self) -> [u32; HASHES] {
        let (words, _) = self.0.as_chunks();
        std::array::from_fn(|n| u32::from_be_bytes(words[n]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_md5_of_the_octet_1_and_the_url() {
        // printf '\001http://example.com/' | md5sum
        let key = Key::of_get(b"http://example.com/");
        let expected = 0x5c91_0903_4c1d_089f_b6d9_2f72_58b2_f5c3;
        assert_eq!(u128::from_be_bytes(key.octets()), expected);
        assert_eq!(Key::from_octets(key.octets()), key);
    }

    #[test]
    fn the_words_of_a_key_are_big_endian() {
        let key = Key::from_octets(std::array::from_fn(|n| u8::try_from(n).unwrap()));
        assert_eq!(
            key.words(),
            [0x0001_0203, 0x0405_0607, 0x0809_0a0b, 0x0c0d_0e0f]
        );
    }
}
