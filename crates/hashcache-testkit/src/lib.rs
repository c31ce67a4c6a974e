//! What tests and campaigns of this workspace talk to: a scripted origin, an origin of generated
//! content, a raw client. Never published, never part of what is served.
//!
//! Everything here speaks HTTP/1.1 by hand, on plain sockets and without hyper, so that it can
//! judge the framing of those who use it: whatever has two meanings is recorded as a *complaint*,
//! which a good test asserts to be absent.
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

// What is said, byte by byte.
mod message;
mod reader;

// The part of the test kit that reports it.
mod client;
mod content_origin;
mod ftp;
mod gopher;
mod origin;
mod reserved;
mod script;

pub mod content;

// What stands between them.
pub mod relay;

// What is played with them.
pub mod scenario;

pub use client::{BodyEnd, Client, Response};
pub use content_origin::{ContentOptions, ContentOrigin, Counts, Sizes};
pub use ftp::{FtpFault, FtpFile, FtpServer};
pub use gopher::GopherServer;
pub use message::Head;
pub use origin::{Origin, RawRequest};
pub use reserved::reserved_address;
pub use script::{Gate, Script};
