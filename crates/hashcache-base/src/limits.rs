//! Limits on the resources of clients and origins: connections, time and memory.
//!
//! A part of the settings, in a separate module: the whole proxy reads the limits, and the settings
//! use types from modules that also read them.

use std::time::Duration;

/// Limits on time and memory; `docs/operate/reference.md` lists the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections from clients in all.
    pub clients: usize,
    /// Connections from one IPv4 address or one IPv6 network of 64 bits.
    pub clients_per_address: usize,
    /// A client's share of memory and of connections to origins, percent.
    pub client_share: u8,
    /// Concurrent requests on an HTTP/2 connection.
    pub streams: usize,
    /// HTTP/2 frames without a request (PING, SETTINGS, RST_STREAM and the like) that a client may
    /// send at once. A sixteenth of this number is added each second, and 1 for each KiB sent to
    /// the client.
    pub frames: usize,
    /// Head of a request, or of an origin's response, bytes.
    pub head_bytes: usize,
    /// Field lines in a head of a request, or of an origin's response. HTTP/1.1 requests have at
    /// most 4,096 in any case.
    pub head_fields: usize,
    /// Request target, bytes.
    pub target_bytes: usize,
    /// Extensions of a chunk, bytes.
    pub chunk_extension_bytes: usize,
    /// Time for a request head to arrive after its first byte.
    pub head_time: Duration,
    /// Time a connection may be idle between requests.
    pub idle_time: Duration,
    /// Time in which reading a request body or writing a response must make some progress.
    pub progress_time: Duration,
    /// Time to connect, over all addresses of a name.
    pub connect_time: Duration,
    /// Time from sending the request to the first byte of the response.
    pub first_byte_time: Duration,
    /// Time from the request to the first byte of a peer's response, while another next hop is
    /// left; the limit for several peers together is hardly longer.
    pub peer_first_byte_time: Duration,
    /// Time between bytes of a response.
    pub between_bytes_time: Duration,
    /// Busy connections to an origin.
    pub upstream_per_origin: usize,
    /// Busy connections to all origins.
    pub upstream: usize,
    /// Time an upstream connection may be idle before it is closed.
    pub upstream_idle_time: Duration,
    /// Time for a DNS lookup.
    pub dns_time: Duration,
    /// Time a tunnel may be silent in both directions.
    pub tunnel_idle_time: Duration,
    /// Time for open requests to finish when the process stops.
    pub drain_time: Duration,
    /// How far a fetch runs ahead of its fastest reader, bytes.
    pub read_ahead: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 4096,
            clients_per_address: 256,
            client_share: 25,
            streams: 100,
            // A browser that leaves a page cancels some hundred requests.
            frames: 2048,
            head_bytes: 64 << 10,
            head_fields: 256,
            target_bytes: 16 << 10,
            chunk_extension_bytes: 256,
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(60),
            progress_time: Duration::from_secs(60),
            connect_time: Duration::from_secs(10),
            first_byte_time: Duration::from_secs(60),
            // Longer than nearly all pages take, and short enough for a reader to wait for.
            peer_first_byte_time: Duration::from_secs(20),
            between_bytes_time: Duration::from_secs(60),
            // A client's share of this limit is `clients_per_address`. With 64, a hundred clients
            // wait for two rounds if a page takes a second and cannot be shared.
            upstream_per_origin: 1024,
            upstream: 4096,
            upstream_idle_time: Duration::from_secs(30),
            dns_time: Duration::from_secs(5),
            tunnel_idle_time: Duration::from_secs(10 * 60),
            drain_time: Duration::from_secs(30),
            read_ahead: 4 << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_of_one_address_may_have_a_connection_to_one_origin() {
        let limits = Limits::default();
        let share = limits.upstream_per_origin * usize::from(limits.client_share) / 100;
        assert!(share >= limits.clients_per_address);
        assert!(limits.upstream_per_origin < limits.upstream);
    }
}
