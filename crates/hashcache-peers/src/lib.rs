//! How web caches work together: wire formats and hash functions. Bytes in, bytes out.
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
//! - Ask one URL of one cache: [`icp`]; with request fields, signatures and purges: [`htcp`].
//! - Know what a cache holds without asking: [`digest`] fetches its [`filter`] whole, [`update`]
//!   keeps the copy up to date. A filter knows a URL by its [`key`].
//! - Agree which cache has a URL without any message: [`carp`], [`rendezvous`], among [`members`].
//!
//! `parse`, `Refused` and `Ignored` exist in several modules, so write them with the module's name.
//!
//! Nothing here does I/O or reads a clock. No input makes anything panic, and what a parser
//! allocates is never larger than its input.
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
