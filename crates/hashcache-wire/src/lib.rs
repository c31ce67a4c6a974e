//! Client protocols: HTTP/1.1, and HTTP/2 through hyper (`http2`).
//!
//! `server` in the proxy passes every accepted socket to [`serve_connection`]. `serve` runs the
//! exchanges in sequence on a `stream`, which reads each request head (`head`), follows the framing
//! of the body to the next head (`inbound`, `chunked`; the service reads `content`) and writes the
//! response (`answer`). Through the connection's [`Cell`] the service gets everything that its
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
//! Invariants: the `Request` has `/` as target, and the service takes the client's own bytes from
//! [`HeadInfo`]. Therefore a target is parsed once, and no two interpretations can differ. The next
//! head is parsed only when the previous response has been flushed; therefore a 1xx is always
//! between two messages. Cost: two passes over a head and one copy, which the fields share. An idle
//! connection holds no buffer.

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
