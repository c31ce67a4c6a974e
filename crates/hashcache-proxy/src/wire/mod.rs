//! The layer between a client's socket and hyper: checks that hyper does not do, refusals with a
//! page, and interim responses, which hyper cannot send.
//!
//! `server` hands every accepted socket to [`serve_connection`]. hyper reads and writes through
//! `stream`, which holds each request head until it is complete (`head`), follows the framing of
//! the body to the next head (`inbound`, `chunked`) and gives hyper one message at a time. The
//! connection's [`Cell`] passes the service what hyper's `Request` does not contain.
//!
//! ```text
//!   socket ──▶ stream ──▶ inbound ──▶ head ──────▶ Cell::next_head ──▶ service
//!                 │           └─────▶ chunked         ▲    │
//!                 ├──▶ hyper ─────────────────────────┘    └── send_interim, abort, upgraded
//!                 └──▶ memory_hit (plain requests that memory answers)
//! ```
//!
//! Invariants: hyper gets only bytes that were checked here, and never a request target: it gets
//! `/` instead, and the service takes the client's own bytes from [`HeadInfo`]. So a request is
//! parsed once, and there are no two interpretations that could differ. The next head is given to
//! hyper only when the previous response has been flushed; therefore a 1xx always stands between
//! two messages. Cost: two passes over a head, one copy of it and one allocation (the target). An
//! idle connection holds no buffer, after [`serve::PARK_AFTER`] not even hyper's.

mod head;

mod chunked;
mod inbound;

mod cell;
mod memory_hit;
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

pub(crate) use cell::{
    Cell, ExchangeEnd, HeadInfo, OnSent, RequestHead, Upgraded, push_title_case,
};
pub(crate) use ending::Ending;
pub(crate) use head::{ContentFraming, RequestForm};
pub(crate) use http2::fields::malformed_field;
pub(crate) use http2::interim::push_string;
pub(crate) use http2::{ClientBody, Http2Kind, PREFACE, Pings, frames, link_bytes, serve_http2};
pub(crate) use memory_hit::{
    FREE_BYTES, MemoryHits, MemoryResponse, PIECES_MAX, PlainRequest, ResponseHead,
};
pub(crate) use protocol::{
    HTTP_2_BYTES, INTERCEPTED_BYTES, Protocol, TLS_BYTES, handshake, link_handshake,
};
pub(crate) use serve::{FIRST_REQUEST_TIME, serve_connection};
pub(crate) use socket::Socket;
