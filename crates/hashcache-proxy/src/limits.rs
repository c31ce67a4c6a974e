//! Bounds on what clients and origins may take: connections, time and memory.
//!
//! Part of the settings; apart from them, because all of the proxy reads the limits and the
//! settings name types of modules that do.

use std::time::Duration;

/// Bounds on time and memory; the defaults are those of `docs/OPERATING.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections from clients in all.
    pub clients: usize,
    /// Connections from one IPv4 address or one IPv6 network of 64 bits.
    pub clients_per_address: usize,
    /// What such a client may take of memory and of connections to origins, percent.
    pub client_share: u8,
    /// Requests under way at once on a connection in HTTP/2.
    pub streams: usize,
    /// Frames of HTTP/2 that ask for nothing (PING, SETTINGS, RST_STREAM and the like) that a
    /// client may send at once; a sixteenth of them is added each second, and one for each KiB
    /// that was sent to the client.
    pub frames: usize,
    /// Request head, bytes.
    pub head_bytes: usize,
    /// Fields in a head.
    pub head_fields: usize,
    /// Request target, bytes.
    pub target_bytes: usize,
    /// Extensions of one chunk, bytes.
    pub chunk_extension_bytes: usize,
    /// Time for a request head to arrive once its first byte has.
    pub head_time: Duration,
    /// Time a connection may lie idle between requests.
    pub idle_time: Duration,
    /// Time in which some progress must be made reading a request body or writing a response.
    pub progress_time: Duration,
    /// Time to connect, over all addresses of a name.
    pub connect_time: Duration,
    /// Time from the request sent to the first byte of the response.
    pub first_byte_time: Duration,
    /// Time between bytes of a response.
    pub between_bytes_time: Duration,
    /// Busy connections to one origin.
    pub upstream_per_origin: usize,
    /// Busy connections to all origins.
    pub upstream: usize,
    /// Time an upstream connection may lie idle before it is closed.
    pub upstream_idle_time: Duration,
    /// Time for a name to be looked up.
    pub dns_time: Duration,
    /// Time a tunnel may be silent in both directions.
    pub tunnel_idle_time: Duration,
    /// Time given to open requests when told to stop.
    pub drain_time: Duration,
    /// How far a fetch runs beyond its fastest reader, bytes.
    pub read_ahead: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 4096,
            clients_per_address: 256,
            client_share: 25,
            streams: 100,
            // A browser that leaves a page takes back some hundred requests.
            frames: 2048,
            head_bytes: 64 << 10,
            head_fields: 256,
            target_bytes: 16 << 10,
            chunk_extension_bytes: 256,
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_mins(1),
            progress_time: Duration::from_mins(1),
            connect_time: Duration::from_secs(10),
            first_byte_time: Duration::from_mins(1),
            between_bytes_time: Duration::from_mins(1),
            // One client's share is as many as `clients_per_address`: at 64, a hundred clients on a
            // page of a second that cannot be shared wait for two rounds of it.
            upstream_per_origin: 1024,
            upstream: 4096,
            upstream_idle_time: Duration::from_secs(30),
            dns_time: Duration::from_secs(5),
            tunnel_idle_time: Duration::from_mins(10),
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
