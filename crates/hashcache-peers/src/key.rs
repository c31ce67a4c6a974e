//! The key of a URL in Bloom filters: MD5 over a method octet and the URL, as in Squid's store
//! keys.
//!
//! The proxy computes a key for each lookup in a peer's filter; the engine stores the same 16
//! octets as the mark of a record. MD5 need not resist attackers here: two URLs with the same key
//! cost a useless request, never a wrong response.
//!
//! Cost: one pass of MD5 over the URL; nothing is allocated.

/// Number of hash functions in a filter: the four 32-bit words in the key.
pub const HASHES: usize = 4;

/// The octet that Squid puts before the URL for GET. Filters contain no other methods.
const METHOD_GET: u8 = 1;

/// The key of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u8; 16]);

impl Key {
    /// The key of GET for an absolute URL. Squid's form of the URL includes the query, but neither
    /// the fragment nor the scheme's default port.
    pub fn of_get(url: &[u8]) -> Key {
        let mut context = md5::Context::new();
        context.consume([METHOD_GET]);
        context.consume(url);
        Key(context.finalize().0)
    }

    /// Restores a stored key.
    pub fn from_octets(octets: [u8; 16]) -> Key {
        Key(octets)
    }

    /// The octets to store.
    pub fn octets(&self) -> [u8; 16] {
        self.0
    }

    /// The four big-endian words; each is the value of a hash function.
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
