//! Cooperation of web caches: wire formats and hash functions. The input and output are bytes.
//!
//! ```
//! use hashcache_peers::icp::{Answer, Message, Query, parse};
//!
//! // A cache asks its sibling by UDP whether it has a response.
//! let query = Query::new(0x5eed, b"http://example.com/logo.png")?;
//! let datagram = query.to_datagram();
//!
//! // The sibling answers. It has that URL.
//! let Ok(Message::Query(received)) = parse(&datagram) else {
//!     panic!("this is a query");
//! };
//! assert_eq!(received.url(), b"http://example.com/logo.png");
//! let datagram = received.reply(Answer::Hit).to_datagram();
//!
//! // The cache believes the reply only if its number and its URL are those of the query.
//! let Ok(Message::Reply(reply)) = parse(&datagram) else {
//!     panic!("this is a reply");
//! };
//! assert!(reply.answers(&query));
//! assert_eq!(reply.answer(), Answer::Hit);
//! # Ok::<(), hashcache_peers::icp::UnsendableUrl>(())
//! ```
//!
//! - Query a cache for a single URL: [`icp`]; with request fields, signatures and purges: [`htcp`].
//! - Know the content of a cache without a query: [`digest`] fetches the whole [`filter`],
//!   [`update`] keeps the copy up to date. A [`key`] represents a URL in a filter.
//! - Agree on the cache for a URL without any message: [`carp`], [`rendezvous`], among [`members`].
//!
//! Several modules have `parse`, `Refused` and `Ignored`, so write them with the module name.
//!
//! Nothing here does I/O or reads a clock. No input causes a panic, and a parser never allocates
//! more than the size of its input.
#![forbid(unsafe_code)]

pub mod carp;
pub mod digest;
pub mod filter;
pub mod htcp;
pub mod icp;
pub mod key;
pub mod members;
pub mod rendezvous;
pub mod update;

mod octets;
