//! Content that is computed from a name: any byte of any object, without storing the object.
//!
//! [`ContentOrigin`](crate::ContentOrigin) uses it to answer, clients use it to verify; the two
//! need only share a seed. The bytes are the output of SplitMix64 at a counter, keyed by seed, URL
//! and version, so that neither two objects nor two places in an object look alike.
//! Cost: some GB/s.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// Content of one version of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    key: u64,
    length: u64,
}

/// Returns the content of `version` of `url`.
#[must_use]
pub fn body_for(seed: u64, url: &str, version: u64, length: u64) -> Content {
    Content {
        key: hash(seed, version, url),
        length,
    }
}

/// Compares `bytes` with the content at `offset`.
///
/// # Errors
/// The offset, within the content, of the first byte that differs or is behind the end.
pub fn verify(content: &Content, offset: u64, bytes: &[u8]) -> Result<(), u64> {
    let mut expected = [0; 4 << 10];
    let mut at = offset;
    for part in bytes.chunks(expected.len()) {
        let filled = content.fill(at, &mut expected[..part.len()]);
        if expected[..filled] != *part {
            let wrong = expected[..filled]
                .iter()
                .zip(part)
                .position(|(a, b)| a != b);
            return Err(at + wrong.unwrap_or(filled) as u64);
        }
        at += part.len() as u64;
    }
    Ok(())
}

impl Content {
    /// Content size, bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the whole content.
    ///
    /// # Panics
    /// Panics if the content is larger than the address space.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.length).expect("content fits into memory")];
        self.fill(0, &mut bytes);
        bytes
    }

    /// Writes the content at `offset` into `out`; returns the number of bytes written, which is
    /// less than `out` only at the end of the content.
    pub fn fill(&self, offset: u64, out: &mut [u8]) -> usize {
        let left = self.length.saturating_sub(offset);
        let size = usize::try_from(left).map_or(out.len(), |left| left.min(out.len()));
        let out = &mut out[..size];
        // The bytes up to the first whole word, then whole words, then the rest.
        let within = (offset % 8) as usize;
        let first = if within == 0 {
            0
        } else {
            (8 - within).min(size)
        };
        let (head, tail) = out.split_at_mut(first);
        if !head.is_empty() {
            head.copy_from_slice(&self.word(offset / 8)[within..within + first]);
        }
        let mut index = offset.div_ceil(8);
        let mut words = tail.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.word(index));
            index += 1;
        }
        let rest = words.into_remainder();
        let size_of_rest = rest.len();
        rest.copy_from_slice(&self.word(index)[..size_of_rest]);
        size
    }

    fn word(&self, index: u64) -> [u8; 8] {
        mix(self.key.wrapping_add(index.wrapping_mul(GOLDEN))).to_le_bytes()
    }
}

/// Returns an object size from the web's size distribution, chosen by the URL hash: lognormal,
/// median 3 KB, sigma 1.5, at most 64 MiB.
#[must_use]
pub fn web_size(seed: u64, url: &str) -> u64 {
    const MEDIAN: f64 = 3000.0;
    const SIGMA: f64 = 1.5;
    const MAX: f64 = 67_108_864.0;
    let hash = hash(seed, u64::MAX, url);
    // Box-Muller transform: two uniform numbers in (0, 1] give a normally distributed number.
    let even = |bits: u64| ((bits >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    let (radius, angle) = (even(mix(hash)), even(mix(hash ^ GOLDEN)));
    let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
    let size = (MEDIAN * (SIGMA * normal).exp()).clamp(1.0, MAX);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "clamped, and the fraction is not wanted"
    )]
    let size = size as u64;
    size
}

/// Returns the entity tag under which a [`ContentOrigin`](crate::ContentOrigin) serves `version`.
#[must_use]
pub fn etag(version: u64, length: u64) -> String {
    format!("\"{version}-{length}\"")
}

/// Returns the version and the length from an [`etag`].
#[must_use]
pub fn parse_etag(etag: &str) -> Option<(u64, u64)> {
    let (version, length) = etag.strip_prefix('"')?.strip_suffix('"')?.split_once('-')?;
    Some((version.parse().ok()?, length.parse().ok()?))
}

fn hash(seed: u64, version: u64, url: &str) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(seed, version);
    hasher.write(url.as_bytes());
    hasher.finish()
}

/// The finalizer of SplitMix64.
fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_is_the_same_as_in_the_whole() {
        let content = body_for(7, "/a", 1, 100);
        let whole = content.bytes();
        for from in 0..=100_usize {
            for size in 0..40 {
                let mut part = vec![0; size];
                let offset = from as u64;
                let filled = content.fill(offset, &mut part);
                assert_eq!(
                    part[..filled],
                    whole[from..(from + size).min(100)],
                    "{offset} {size}"
                );
                assert_eq!(verify(&content, offset, &part[..filled]), Ok(()));
            }
        }
    }

    #[test]
    fn a_wrong_byte_is_found_wherever_it_is() {
        let content = body_for(7, "/a", 1, 10_000);
        for at in [0, 1, 4095, 4096, 9_999] {
            let mut bytes = content.bytes();
            bytes[at] ^= 1;
            assert_eq!(verify(&content, 0, &bytes), Err(at as u64));
        }
        let longer = [content.bytes(), vec![0]].concat();
        assert_eq!(verify(&content, 0, &longer), Err(10_000));
    }

    #[test]
    fn seed_url_version_and_place_all_make_other_bytes() {
        let one = body_for(7, "/a", 1, 4096).bytes();
        for other in [
            body_for(8, "/a", 1, 4096),
            body_for(7, "/b", 1, 4096),
            body_for(7, "/a", 2, 4096),
        ] {
            let equal = one
                .iter()
                .zip(other.bytes())
                .filter(|(a, b)| **a == *b)
                .count();
            assert!(equal < 64, "{equal} of 4096 equal, 16 expected");
        }
        assert_ne!(one[..8], one[8..16]);
    }

    #[test]
    fn sizes_have_the_median_and_spread_of_the_web() {
        let mut sizes: Vec<_> = (0..10_001).map(|n| web_size(1, &format!("/{n}"))).collect();
        sizes.sort_unstable();
        assert!(
            (2800..3200).contains(&sizes[5000]),
            "median {}",
            sizes[5000]
        );
        // One sigma up: 3000 × e^1.5.
        assert!(
            (12_000..15_000).contains(&sizes[8413]),
            "84th percentile {}",
            sizes[8413]
        );
    }

    #[test]
    fn an_etag_tells_its_version() {
        assert_eq!(parse_etag(&etag(3, 99)), Some((3, 99)));
        assert_eq!(parse_etag("W/\"3-99\""), None);
    }
}
