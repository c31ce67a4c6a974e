//! The link between a child and a parent: one warm TLS 1.3 connection with HTTP/2, and keys that
//! both sides know by their pins.
//!
//! This crate has what both ends share, and no I/O on sockets: keys (`identity`) and their hashes
//! (`pin`), the two TLS configurations (`tls`), what is counted of a link (`counters`, `usage`,
//! `sites`), the child's handle of the connection (`parent`) with the content of its requests
//! (`content`) and the way in which they use the link (`coding`), fairness among its clients
//! (`turns`) with the frames for that (`turn_frames`), stored content as a dictionary
//! (`dictionary`, `named`), what was sent to a child (`sent_to`) and for which page (`hints`), the
//! bytes of tunnels (`pieces`), and the parent's list of connected children (`children`). For
//! streams that are coded in chunks it has the setting (`forward`), the field that offers them
//! (`chunk_field`), and what each pair of boxes knows of the other's chunks (`chunk_tables`).
//! `linked` of `hashcache-upstream` makes the connection and `linked_requests` sends requests on
//! it; `server/links` of the proxy keeps it open, and its `server/link_listener` accepts children.
//!
//! Invariants: no byte of a request leaves before the other side has proved that it has the pinned
//! key. No session is resumed, so every connection proves it again. A child uses one connection for
//! all cores: a slow line wants one congestion window that is warm.
//! Cost: for the child up to 8 MiB of the budget, an eighth of it at most; see [`Windows`].

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
    /// For one stream.
    pub stream: u32,
    /// For all streams together.
    pub connection: u32,
}

impl Windows {
    /// The windows for a receiver that may hold `bytes`: 10 Mbit/s with a round trip of 600 ms need
    /// 750 kB, and eight large transfers at once are to keep a line busy.
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
/// The window that every HTTP/2 receiver begins with.
const STREAM_MIN: u32 = 65_535;

/// Silence on a link after which either side sends a PING.
pub const PING_AFTER: Duration = Duration::from_secs(15);
/// How long the answer may take. A line that passes nothing at all is found earlier, by
/// `UNACKNOWLEDGED_MAX`: a PING may wait behind minutes of content.
pub const PING_TIMEOUT: Duration = Duration::from_secs(120);
/// How long sent bytes may stay unacknowledged before the kernel ends the connection.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);
/// Bytes that the kernel accepts ahead of what it can send. The rest waits where HTTP/2 can still
/// order it, so a small response does not wait for a large one.
const UNSENT_BYTES: u32 = 128 << 10;
/// How long a request, a response or its next bytes may wait for their turn: many transfers share a
/// slow line. It is added to what a server may take, at both ends; a dead line is found earlier.
pub const TURN_TIME: Duration = Duration::from_secs(10 * 60);
/// Requests and tunnels at once on one link: the users of a whole school.
pub const STREAMS: usize = 1000;
/// Tunnels among them.
pub const TUNNELS: usize = tunnels_of(STREAMS);
/// Frames without a request, as a multiple of what one browser or one server may send.
pub const FRAMES_FACTOR: usize = 16;

/// How many of so many streams may be tunnels. Idle ones last for minutes, and must leave places to
/// requests.
pub const fn tunnels_of(streams: usize) -> usize {
    streams - streams.div_ceil(4)
}

/// What h2 holds of a stream ahead of the socket. It says nothing about the line: what is under way
/// there is in the kernel, and the windows bound it.
pub const SEND_BUFFER: usize = 8 << 10;
/// Memory of a tunnel that is full in both directions: a piece that waits for its turn in hyper,
/// two in its channel, those in h2 with one too many, and 16 KiB that `connect/tunnel` of the proxy
/// has read for either side. What was received is in the windows.
pub const TUNNEL_BYTES: u64 = (4 * pieces::PIECE_BYTES + SEND_BUFFER + (32 << 10)) as u64;

/// Sets the options of a link's socket.
pub fn prepare(socket: &tokio::net::TcpStream) {
    let socket = socket2::SockRef::from(socket);
    // Each of them makes a link better; none is needed for a correct one.
    drop(socket.set_tcp_nodelay(true));
    #[cfg(target_os = "linux")]
    {
        drop(socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX)));
        drop(socket.set_tcp_notsent_lowat(UNSENT_BYTES));
    }
}

/// Whether this system forgets the congestion window of a connection that was idle.
pub fn slow_start_after_idle() -> bool {
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_slow_start_after_idle");
    setting.is_ok_and(|setting| setting.trim() == "1")
}

/// What to do about it.
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
