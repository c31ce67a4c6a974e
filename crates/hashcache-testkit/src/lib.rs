//! Test servers and clients of this workspace: a scripted origin, an origin with generated content,
//! a raw client, a relay, and the scenarios that use them. This crate is never published and is no
//! part of the product.
//!
//! Everything here implements HTTP/1.1 by hand, on plain sockets and without hyper, so that it can
//! judge the framing of the programs under test. Every ambiguous byte sequence is recorded as a
//! *complaint*; a good test asserts that there is no complaint.
//!
//! ```
//! use hashcache_testkit::{BodyEnd, Client, Origin, Script};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
//! let origin = Origin::start(|_| Script::response(200, &[("ETag", "\"a\"")], "hello")).await?;
//! let mut client = Client::connect(origin.address()).await?;
//! let response = client.get("/x", &[]).await?;
//! assert_eq!((response.status, &response.body[..]), (200, &b"hello"[..]));
//! assert_eq!(response.end, BodyEnd::Complete);
//! assert_eq!(origin.requests()[0].target(), "/x");
//! assert_eq!(origin.complaints(), [""; 0]);
//! # Ok(()) }
//! ```

// Parsing of messages, byte by byte.
mod message;
mod reader;

// Servers, clients and the addresses that they use.
mod client;
mod content_origin;
mod ftp;
mod gopher;
mod origin;
mod reserved;
mod script;

pub mod content;

// A faulty link between a client and a server.
pub mod relay;

// Scenarios against a running proxy.
pub mod scenario;

pub use client::{BodyEnd, Client, Response};
pub use content_origin::{ContentOptions, ContentOrigin, Counts, Sizes};
pub use ftp::{FtpFault, FtpFile, FtpServer};
pub use gopher::GopherServer;
pub use message::Head;
pub use origin::{Origin, RawRequest};
pub use reserved::reserved_address;
pub use script::{Gate, Script};
