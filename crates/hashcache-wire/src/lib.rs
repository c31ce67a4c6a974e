//! The protocols of clients: HTTP/1.1, and HTTP/2 by hyper (`http2`).
//!
//! `server` of the proxy hands every accepted socket to [`serve_connection`]. `serve` runs one
//! exchange after the other on a `stream`, which reads each request head (`head`), follows the
//! framing of the body to the next head (`inbound`, `chunked`; `content` is what the service reads)
//! and writes the response (`answer`). The connection's [`Cell`] passes the service what its
//! `Request` does not contain.
//!
//! ```text
//!   socket ──▶ stream ──▶ inbound ──▶ head ──────▶ Cell::next_head ──▶ service
//!                 │           └─────▶ chunked ───▶ content ────────────▶ │ │
//!                 ├◀── answer ◀──────────────────────────────────────────┘ │
//!                 │◀── send_interim, upgraded ◀────────────────────────────┘
//!                 └──▶ memory_hit (plain requests that memory answers)
//! ```
//!
//! Invariants: the `Request` has `/` for a target, and the service takes the client's own bytes
//! from [`HeadInfo`]. So a target is parsed once, and there are no two interpretations that could
//! differ. The next head is looked at only when the previous response has been flushed; therefore a
//! 1xx always stands between two messages. Cost: two passes over a head and one copy of it, which
//! its fields share. An idle connection holds no buffer.

mod head;

mod chunked;
mod inbound;

mod cell;
mod content;
mod memory_hit;
mod outgoing;
mod socket;
mod stream;

mod linger;

mod answer;

mod ending;
mod protocol;
mod serve;

mod http2;

#[cfg(test)]
mod cuts;
#[cfg(test)]
mod tests;

pub use cell::{Cell, ExchangeEnd, HeadInfo, OnSent, RequestHead, Upgraded};
pub use ending::Ending;
pub use head::{ContentFraming, RequestForm};
pub use http2::fields::malformed_field;
pub use http2::interim::push_string;
pub use http2::{ClientBody, Http2Kind, PREFACE, Pings, frames, link_bytes, serve_http2};
pub use memory_hit::{
    FREE_BYTES, MemoryHits, MemoryResponse, PIECES_MAX, PlainRequest, ResponseHead,
};
pub use outgoing::Outgoing;
pub use protocol::{
    HTTP_2_BYTES, INTERCEPTED_BYTES, Protocol, TLS_BYTES, handshake, link_handshake,
};
pub use serve::{FIRST_REQUEST_TIME, serve_connection};
pub use socket::Socket;
