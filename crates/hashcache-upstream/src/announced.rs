//! Servers that learn the client of each connection from a PROXY protocol header.
//!
//! `Upstream` writes the version 2 header before any other byte, also before TLS.
//! `server/proxy_protocol` in the proxy reads such headers from load balancers.
//!
//! Invariant: only servers that the operator has chosen get a header. A connection with a header
//! serves a single request, because the header names a single client; for requests of the proxy
//! itself the header has the command LOCAL.

use std::net::{IpAddr, SocketAddr};

/// Both addresses of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientEnds {
    /// The client's address.
    pub client: SocketAddr,
    /// Our address, or the address of the load balancer that accepted the client.
    pub local: SocketAddr,
}

/// Builds the header for a client with these addresses; `None`: for a connection without a client.
pub fn header(ends: Option<ClientEnds>) -> Vec<u8> {
    let Some(ClientEnds { client, local }) = ends else {
        return [&SIGNATURE[..], &[LOCAL, UNSPECIFIED, 0, 0]].concat();
    };
    let ports = [client.port().to_be_bytes(), local.port().to_be_bytes()].concat();
    match (client.ip().to_canonical(), local.ip().to_canonical()) {
        (IpAddr::V4(client), IpAddr::V4(local)) => [
            &SIGNATURE[..],
            &[PROXY, TCP_OVER_IPV4, 0, 12],
            &client.octets(),
            &local.octets(),
            &ports,
        ]
        .concat(),
        (client, local) => [
            &SIGNATURE[..],
            &[PROXY, TCP_OVER_IPV6, 0, 36],
            &in_ipv6(client),
            &in_ipv6(local),
            &ports,
        ]
        .concat(),
    }
}

/// Converts the address to IPv6: addresses from two families have no other form in common.
fn in_ipv6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The first bytes of version 2.
pub const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command LOCAL: the connection is not on behalf of a client.
pub const LOCAL: u8 = 0x20;
/// Version 2, command PROXY: the connection is on behalf of a client.
pub const PROXY: u8 = 0x21;
const UNSPECIFIED: u8 = 0;
/// TCP between two IPv4 addresses.
pub const TCP_OVER_IPV4: u8 = 0x11;
/// TCP between two IPv6 addresses.
pub const TCP_OVER_IPV6: u8 = 0x21;

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(client: &str, local: &str) -> Option<ClientEnds> {
        let (client, local) = (client.parse().unwrap(), local.parse().unwrap());
        Some(ClientEnds { client, local })
    }

    #[test]
    fn the_header_has_both_ends_in_one_family() {
        let mut plain = header(ends("192.0.2.1:4660", "[::ffff:198.51.100.2]:80"));
        let addresses = plain.split_off(SIGNATURE.len());
        assert_eq!(plain, SIGNATURE);
        let expected = [
            0x21, 0x11, 0, 12, 192, 0, 2, 1, 198, 51, 100, 2, 0x12, 0x34, 0, 80,
        ];
        assert_eq!(addresses, expected);
        for (client, local) in [
            ("[2001:db8::1]:1", "[2001:db8::2]:2"),
            ("192.0.2.1:1", "[::1]:2"),
        ] {
            let header = header(ends(client, local));
            assert_eq!(header[12..16], [0x21, 0x21, 0, 36]);
            assert_eq!((header.len(), &header[48..]), (52, &[0, 1, 0, 2][..]));
        }
        assert_eq!(header(None)[12..], [0x20, 0, 0, 0]);
    }
}
