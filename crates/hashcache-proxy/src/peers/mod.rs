//! Replies to ICP queries of peers, and the task that receives their datagrams (RFC 2186, RFC
//! 2187). Another task keeps our own summary up and sends updates of it.
//!
//! `server` binds the socket and runs [`serve`] on the main thread, which serves no clients: one
//! task receives for all cores, and `queries` sends from the same port.
//!
//! Invariants: a datagram is answered only if it is from an address of a configured peer, and no
//! answer is larger than its question. An answer never causes a fetch, and never waits for one.
//! Cost: one datagram each way, and one lookup.

mod answer;
mod summary;
mod udp;

pub(crate) use self::summary::keep as keep_summary;
pub(crate) use self::udp::{bind, serve};
