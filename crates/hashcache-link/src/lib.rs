//! The link between a child and a parent: one warm TLS 1.3 connection with HTTP/2, and keys that
//! both sides know by their pins.
//!
//! This crate has the parts that both sides share, without I/O on sockets: keys (`identity`) and
//! key hashes (`pin`), the two TLS configurations (`tls`), counters (`counters`, `usage`, `sites`),
//! the child's handle to the connection (`parent`) with request content (`content`) and the way in
//! which a request uses the link (`coding`), fairness among clients (`turns`) with the frames for
//! it (`turn_frames`), stored content as a dictionary (`dictionary`, `named`), the table with
//! objects sent to a child (`sent_to`), the objects that belong to a page (`hints`), the bytes in
//! tunnels (`pieces`), and the parent's list of connected children (`children`). For streams that
//! are coded in chunks it has the setting (`forward`), the field that offers them (`chunk_field`),
//! and each box's table for chunks in the other box (`chunk_tables`). `linked` in
//! `hashcache-upstream` makes the connection and `linked_requests` sends requests on it;
//! `server/links` in the proxy keeps it open, and `server/link_listener` accepts children.
//!
//! Invariants: no request byte is sent before the other side has proved that it has the pinned key.
//! No session is resumed, so every connection proves it again. A child uses a single connection for
//! all cores, because a slow line needs a single congestion window that stays warm.
//! Cost: for the child up to 8 MiB of the budget, an eighth at most; see [`Windows`].

pub mod children;
pub mod chunk_field;
pub mod chunk_tables;
pub mod coding;
pub mod content;
pub mod counters;
pub mod dictionary;
pub mod forward;
pub mod hints;
pub mod identity;
pub mod named;
pub mod parent;
pub mod pieces;
pub mod pin;
pub mod sent_to;
pub(crate) mod sites;
pub mod tls;
pub mod turn_frames;
pub mod turns;
pub mod usage;

use std::time::Duration;

/// How many bytes may be under way on a link before the receiver has taken them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// For a single stream.
    pub stream: u32,
    /// For all streams together.
    pub connection: u32,
}

impl Windows {
    /// Windows for a receiver that may hold `bytes`. 10 Mbit/s with a 600 ms round trip needs 750
    /// kB, and eight large transfers at once must be able to keep a line busy.
    pub fn within(bytes: u64) -> Self {
        let connection = u32::try_from(bytes).unwrap_or(u32::MAX);
        let connection = connection.clamp(CONNECTION_MIN, CONNECTION_MAX);
        Self {
            stream: (connection / 4).max(STREAM_MIN),
            connection,
        }
    }
}

const CONNECTION_MAX: u32 = 8 << 20;
const CONNECTION_MIN: u32 = 256 << 10;
/// The initial window in HTTP/2 (RFC 9113, section 6.9.2).
const STREAM_MIN: u32 = 65_535;

/// Silence on a link after which either side sends a PING.
pub const PING_AFTER: Duration = Duration::from_secs(15);
/// Time limit for the answer to a PING. A dead line is found earlier, by `UNACKNOWLEDGED_MAX`; this
/// limit is longer because a PING may wait behind content that takes minutes.
pub const PING_TIMEOUT: Duration = Duration::from_secs(120);
/// How long sent bytes may stay unacknowledged before the kernel closes the connection.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);
/// Bytes that the kernel accepts ahead of the line. The rest waits in HTTP/2, which can still
/// reorder it, so a small response does not wait for a large response.
const UNSENT_BYTES: u32 = 128 << 10;
/// How long a request, a response or the next bytes may wait for their turn, because many transfers
/// share a slow line. Both sides add this to a server's time limit; a dead line is found earlier.
pub const TURN_TIME: Duration = Duration::from_secs(10 * 60);
/// Requests and tunnels at once on one link: the users of a whole school.
pub const STREAMS: usize = 1000;
/// Tunnel limit among the [`STREAMS`].
pub const TUNNELS: usize = tunnels_of(STREAMS);
/// Limit for frames without a request, as a multiple of the limit for a browser or a server.
pub const FRAMES_FACTOR: usize = 16;

/// Tunnel limit among `streams` streams. Idle tunnels last for minutes and must leave places for
/// requests.
pub const fn tunnels_of(streams: usize) -> usize {
    streams - streams.div_ceil(4)
}

/// Bytes that h2 holds for a stream ahead of the socket. This is no limit for the line: bytes under
/// way are in the kernel, and the windows limit them.
pub const SEND_BUFFER: usize = 8 << 10;
/// Memory for a tunnel that is full in both directions: a piece that waits for its turn in hyper,
/// two pieces in the channel, a piece in h2 plus `SEND_BUFFER`, and 16 KiB that `connect/tunnel` in
/// the proxy has read for each side. Received bytes are counted in the windows.
pub const TUNNEL_BYTES: u64 = (4 * pieces::PIECE_BYTES + SEND_BUFFER + (32 << 10)) as u64;

/// Sets a link socket's options.
pub fn prepare(socket: &tokio::net::TcpStream) {
    let socket = socket2::SockRef::from(socket);
    // Each option improves a link, but none is needed for correctness.
    drop(socket.set_tcp_nodelay(true));
    #[cfg(target_os = "linux")]
    {
        drop(socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX)));
        drop(socket.set_tcp_notsent_lowat(UNSENT_BYTES));
    }
}

/// Returns true if this system forgets the congestion window of an idle connection.
pub fn slow_start_after_idle() -> bool {
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_slow_start_after_idle");
    setting.is_ok_and(|setting| setting.trim() == "1")
}

/// Advice for the operator if [`slow_start_after_idle`] is true.
pub const SLOW_START_ADVICE: &str = "this system slows a link down after each pause: run \
     `sysctl -w net.ipv4.tcp_slow_start_after_idle=0`, and write it into /etc/sysctl.d";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_those_of_the_design_unless_memory_is_short() {
        let design = Windows {
            stream: 2 << 20,
            connection: 8 << 20,
        };
        assert_eq!(Windows::within(8 << 20), design);
        assert_eq!(Windows::within(u64::MAX), design);
        assert_eq!(Windows::within(2 << 20).stream, 512 << 10);
        assert_eq!(Windows::within(0).connection, CONNECTION_MIN);
    }
}
