//! The codec of a slow link between two caches: each byte is sent once. Bytes in, bytes out.
//!
//! ```
//! use hashcache_wan::decode::{Decoder, Event, Offer};
//! use hashcache_wan::digest::Digest;
//! use hashcache_wan::encode::Encoder;
//! use hashcache_wan::frame::{Dictionary, Head};
//!
//! // Both ends have an older version of the object.
//! let old = b"The cache may forget; it must never lie. ".repeat(500);
//! let new = [&old[..9_000], b"New.", &old[9_000..]].concat();
//!
//! // The sender gives the encoder what it wants of the old version, then the new one.
//! let head = Head {
//!     length: Some(new.len() as u64),
//!     version: 7,
//!     dictionary: Dictionary::Offered,
//! };
//! let mut encoder = Encoder::new(head, old.len() as u64);
//! let wanted = encoder.wants().expect("a stretch of the dictionary");
//! encoder.give(&old[wanted.start as usize..wanted.end as usize]);
//! let mut link = Vec::new();
//! encoder.push(&new, &mut link)?;
//! encoder.finish(&mut link)?;
//! assert!(link.len() < 150);
//!
//! // The receiver takes events. Content is given when its check was right.
//! let offered = Some(old.len() as u64);
//! let mut decoder = Decoder::new(Offer { offered, named_max: 0 });
//! decoder.push(&link);
//! let mut received = Vec::new();
//! loop {
//!     match decoder.next()? {
//!         Event::Head(head) => assert_eq!(head.version, 7),
//!         Event::Wants(part) => decoder.give(&old[part.start as usize..part.end as usize]),
//!         Event::Content(bytes) => received.extend_from_slice(bytes),
//!         Event::End(digest) => break assert_eq!(digest, Digest::from_content(&new)),
//!         Event::More => unreachable!("all was pushed"),
//!     }
//! }
//! assert_eq!(received, new);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - A single transfer: [`encode`] and [`decode`], with the frames in [`frame`] and the checks in
//!   [`digest`]; `stretch` selects the part of a dictionary that they read.
//! - Choosing a dictionary: the receiver offers a dictionary, or the sender finds one in [`sent`]
//!   by a [`sketch`]. [`shed`] decides if it is worth reading, from the measurements in [`load`].
//! - Any TCP stream, without whole objects: [`chunk`].
//! - Text on the disk of a box with a link: [`pages`].
//! - Limits for input: [`limits`], [`error`]; limits for memory: [`memory`].
//!
//! Nothing here does I/O or reads a clock. No input causes a panic, and every number from the link
//! is compared with a limit before it is used.
#![forbid(unsafe_code)]

pub mod chunk;
pub mod decode;
pub mod digest;
pub mod encode;
pub mod error;
pub mod frame;
pub mod limits;
pub mod load;
pub mod memory;
pub mod pages;
pub mod sent;
pub mod shed;
pub mod sketch;
pub mod stats;
mod stretch;
mod zstd;
