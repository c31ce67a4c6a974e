//! Sizes and contents of the objects.
//!
//! An object is a number: its type in the top byte, its place among the objects of that type below.
//! Invariant: size and content follow from the seed and that number, so no object is kept for the
//! comparison with what a store returns.

use super::draw::{exponential, log_normal, normal, whole};

/// How large objects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Log-normal with a median of 3 KB and a sigma of 1.5, whatever the type.
    Web,
    /// By type, as in Polymix-4.
    ByType,
    /// The same number of bytes for all.
    Fixed(u32),
}

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Type {
    /// Any object of `pages`.
    Web,
    /// Never stored; `pages` draws a new number for each request.
    Dynamic,
    /// A page.
    Html,
    /// An image of one page, or of none.
    Image,
    /// A large single object.
    Download,
    /// Any other single object.
    Other,
    /// An image that several pages of a site show.
    SharedImage,
}

impl Type {
    const ALL: [Self; 7] = [
        Self::Web,
        Self::Dynamic,
        Self::Html,
        Self::Image,
        Self::Download,
        Self::Other,
        Self::SharedImage,
    ];

    /// Share of the objects of this type that may be stored.
    pub fn cacheable(self) -> f64 {
        match self {
            Self::Web => 1.0,
            Self::Dynamic => 0.0,
            Self::Html => 0.90,
            Self::Image | Self::SharedImage => 0.80,
            Self::Download => 0.95,
            Self::Other => 0.72,
        }
    }
}

/// An object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object(u64);

impl Object {
    /// The object with this number among those of its type.
    pub fn new(kind: Type, number: u64) -> Self {
        Self((kind as u64) << TYPE_SHIFT | number & NUMBER_MASK)
    }

    /// Its type.
    pub fn kind(self) -> Type {
        let index = usize::try_from(self.0 >> TYPE_SHIFT).unwrap_or(usize::MAX);
        *Type::ALL.get(index).expect("made by `new`")
    }

    /// Its number among the objects of its type.
    pub fn number(self) -> u64 {
        self.0 & NUMBER_MASK
    }

    /// Its URL without the scheme.
    pub fn address(self) -> String {
        format!("bench.example/w1/t1/_{:016x}.html", self.0)
    }
}

/// Sizes and bytes of all objects.
pub struct Contents {
    seed: u64,
    sizes: Sizes,
    /// Contents are stretches of these random bytes.
    pool: Vec<u8>,
}

impl Contents {
    pub fn new(seed: u64, sizes: Sizes, random: &mut fastrand::Rng) -> Self {
        let mut pool = vec![0; POOL_BYTES + CONTENT_BYTES_MAX];
        random.fill(&mut pool);
        Self { seed, sizes, pool }
    }

    fn random_of(&self, object: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(object.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.seed)
    }

    /// Whether it may be stored.
    pub fn is_cacheable(&self, object: Object) -> bool {
        self.random_of(object.0.rotate_left(17)).f64() < object.kind().cacheable()
    }

    /// A number from 1 to `most` that belongs to `object`, by Polygraph's `zipf(most)`.
    pub fn zipf(&self, object: Object, most: u32) -> u64 {
        let u = self.random_of(object.0.rotate_left(29)).f64();
        whole(f64::from(most + 1).powf(u)).clamp(1, u64::from(most))
    }

    /// A random source that belongs to `object`.
    pub fn choices(&self, object: Object) -> fastrand::Rng {
        self.random_of(object.0.rotate_left(41))
    }

    /// Length of the content.
    pub fn bytes(&self, object: Object) -> usize {
        let random = &mut self.random_of(object.0);
        let bytes = match (self.sizes, object.kind()) {
            (Sizes::Fixed(bytes), _) => return bytes as usize,
            (Sizes::Web, _) | (_, Type::Web | Type::Dynamic) => {
                WEB_MEDIAN_BYTES * (WEB_SIGMA * normal(random)).exp()
            }
            (Sizes::ByType, Type::Html) => exponential(random, 8.5 * KB),
            (Sizes::ByType, Type::Image | Type::SharedImage) => exponential(random, 4.5 * KB),
            (Sizes::ByType, Type::Download) => log_normal(random, 300.0 * KB, 300.0 * KB),
            (Sizes::ByType, Type::Other) => log_normal(random, 25.0 * KB, 10.0 * KB),
        };
        let bytes = whole(bytes).clamp(1, CONTENT_BYTES_MAX as u64);
        usize::try_from(bytes).expect("bounded")
    }

    /// The content.
    pub fn content(&self, object: Object) -> &[u8] {
        let length = self.bytes(object);
        let from = self.random_of(!object.0).usize(..POOL_BYTES);
        &self.pool[from..from + length]
    }

    /// The metadata that is stored with the content: as long as the head of a response. It begins
    /// with the object's number, so that a store that mixes up objects is detected.
    pub fn metadata(&self, object: Object) -> Vec<u8> {
        let mut metadata = object.0.to_le_bytes().to_vec();
        metadata.resize(self.metadata_bytes(), b' ');
        metadata
    }

    fn metadata_bytes(&self) -> usize {
        match self.sizes {
            Sizes::Web | Sizes::ByType => WEB_METADATA_BYTES,
            Sizes::Fixed(_) => size_of::<u64>(),
        }
    }

    /// Length of the record of `object` in the log, with its list entries, about.
    pub fn record_bytes(&self, object: Object) -> u64 {
        let bytes = self.bytes(object) + self.metadata_bytes() + RECORD_REST_BYTES;
        (bytes.next_multiple_of(UNIT_BYTES) + LISTED_BYTES) as u64
    }
}

const TYPE_SHIFT: u32 = 56;
const NUMBER_MASK: u64 = (1 << TYPE_SHIFT) - 1;
const KB: f64 = 1024.0;
const WEB_MEDIAN_BYTES: f64 = 3072.0;
const WEB_SIGMA: f64 = 1.5;
const WEB_METADATA_BYTES: usize = 400;
const CONTENT_BYTES_MAX: usize = 1 << 20;
const POOL_BYTES: usize = 1 << 20;
/// Header and name of a record, about.
const RECORD_REST_BYTES: usize = 200;
/// Entries of a record in the lists of its batch and its segment.
const LISTED_BYTES: usize = 2 * 56;
const UNIT_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(sizes: Sizes) -> Contents {
        Contents::new(1, sizes, &mut fastrand::Rng::with_seed(1))
    }

    fn mean_bytes(kind: Type) -> f64 {
        let contents = contents(Sizes::ByType);
        let count = 20_000;
        let sum: usize = (0..count)
            .map(|n| contents.bytes(Object::new(kind, n)))
            .sum();
        sum as f64 / count as f64
    }

    #[test]
    fn web_objects_have_a_median_of_3_kib_and_a_mean_of_nine() {
        let contents = contents(Sizes::Web);
        let object = |n| Object::new(Type::Web, n);
        let mut sizes: Vec<usize> = (0..20_000).map(|n| contents.bytes(object(n))).collect();
        sizes.sort_unstable();
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((2_900..3_250).contains(&sizes[10_000]), "{}", sizes[10_000]);
        assert!((8_500..9_800).contains(&mean), "{mean}");
    }

    #[test]
    fn each_type_of_polymix_4_has_its_mean_size() {
        for (kind, kb, within) in [
            (Type::Html, 8.5, 0.3),
            (Type::Image, 4.5, 0.2),
            (Type::Other, 25.0, 0.5),
            // The 3 % above 1 MiB are cut.
            (Type::Download, 285.0, 15.0),
        ] {
            let mean = mean_bytes(kind) / KB;
            assert!((mean - kb).abs() < within, "{kind:?}: {mean} KB");
        }
    }

    #[test]
    fn zipf_13_has_the_mean_of_polygraphs_formula() {
        let contents = contents(Sizes::ByType);
        let draw = |n| contents.zipf(Object::new(Type::Html, n), 13);
        let draws: Vec<u64> = (0..20_000).map(draw).collect();
        assert!(draws.iter().all(|images| (1..=13).contains(images)));
        let mean = draws.iter().sum::<u64>() as f64 / 20_000.0;
        // The sum over k from 1 to 13 of the chance 1 - ln k / ln 14 that it is at least k.
        assert!((4.40..4.51).contains(&mean), "{mean}");
    }

    #[test]
    fn content_follows_from_the_seed_and_the_number() {
        let of = |seed| Contents::new(seed, Sizes::Fixed(100), &mut fastrand::Rng::with_seed(seed));
        let (one, same, other) = (of(7), of(7), of(8));
        let object = |n| Object::new(Type::Web, n);
        assert_eq!(one.content(object(5)), same.content(object(5)));
        assert_ne!(one.content(object(5)), one.content(object(6)));
        assert_ne!(one.content(object(5)), other.content(object(5)));
    }

    #[test]
    fn an_object_keeps_its_type_and_number() {
        for kind in Type::ALL {
            let object = Object::new(kind, 77);
            assert_eq!((object.kind(), object.number()), (kind, 77));
        }
    }
}
