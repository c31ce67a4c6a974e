//! Replies to queries from peers by ICP and HTCP, and the tasks that receive the datagrams (RFC
//! 2186, RFC 2187, RFC 2756). Another task keeps our own summary up to date and sends updates.
//!
//! `server` binds the sockets and runs [`serve_icp`] and [`serve_htcp`] on the main thread, which
//! serves no clients: one task per protocol receives for all cores, and `queries` sends from the
//! same ports.
//!
//! Invariants: a datagram is answered only if it is from an address of a configured peer, and no
//! reply is larger than the request, except a signed reply. A reply never causes a fetch, and never
//! waits for a fetch.
//! Cost: one datagram each way, and one lookup.

mod answer;
mod htcp;
mod summary;
mod udp;

pub(crate) use self::htcp::serve as serve_htcp;
pub(crate) use self::summary::keep as keep_summary;
pub(crate) use self::udp::{bind, serve as serve_icp};
