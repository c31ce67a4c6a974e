//! Between a client's socket and hyper: what hyper cannot see, cannot refuse politely, or cannot
//! send.
//!
//! `server` hands every accepted socket to [`serve_connection`]; hyper reads and writes through
//! `stream`, which holds each request head until it is complete (`head`), follows the body's
//! framing to the next head (`inbound`, `chunked`) and gives hyper one message at a time. What the
//! service must know beyond hyper's `Request` passes through the connection's [`Cell`].
//!
//! ```text
//!   socket ──▶ stream ──▶ inbound ──▶ head ──────▶ Cell::next_head ──▶ service
//!                 │           └─────▶ chunked         ▲    │
//!                 └──▶ hyper ─────────────────────────┘    └── send_interim, abort, upgraded
//! ```
//!
//! Invariant: hyper never sees a byte that was not checked here, and never a request target: it
//! gets `/` in its place, and the service takes the client's own bytes from [`HeadInfo`]. So there
//! is one reading of a request, not two that could differ. The next head is given only when the
//! answer to the one before it has been flushed; this is what makes a 1xx land between two
//! messages. Cost: two passes over a head, one copy of it and one allocation (the target); a
//! connection at rest holds no buffer, after [`serve::PARK_AFTER`] not even hyper's.

mod head;

mod chunked;
mod inbound;

mod cell;
mod socket;
mod stream;

mod ending;
mod protocol;
mod serve;

mod http2;

#[cfg(test)]
mod cuts;
#[cfg(test)]
mod tests;

pub(crate) use cell::{Cell, ExchangeEnd, HeadInfo, RequestHead, Upgraded};
pub(crate) use ending::Ending;
pub(crate) use head::{ContentFraming, RequestForm};
pub(crate) use http2::{ClientBody, PREFACE, frames, serve_http2};
pub(crate) use protocol::{HTTP_2_BYTES, INTERCEPTED_BYTES, Protocol, TLS_BYTES, handshake};
pub(crate) use serve::serve_connection;
pub(crate) use socket::Socket;
