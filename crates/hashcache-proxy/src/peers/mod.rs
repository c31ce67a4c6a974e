//! Replies to the queries of peers by ICP and HTCP, and the tasks that receive their datagrams (RFC
//! 2186, RFC 2187, RFC 2756).
//!
//! `server` binds the sockets and runs [`serve_icp`] and [`serve_htcp`] on the main thread, which
//! serves no clients: one task a protocol receives for all cores, and `queries` sends from the same
//! ports.
//!
//! Invariants: a datagram is answered only if it is from an address of a configured peer, and no
//! answer is larger than its question, except a signed one. An answer never causes a fetch, and
//! never waits for one.
//! Cost: one datagram each way, and one lookup.

mod answer;
mod htcp;
mod udp;

pub(crate) use self::htcp::serve as serve_htcp;
pub(crate) use self::udp::{bind, serve as serve_icp};
