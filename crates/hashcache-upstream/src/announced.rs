//! Servers that want to be told by the PROXY protocol which client a connection is for.
//!
//! `Upstream` writes the header, of version 2, before any other byte, also of TLS.
//! `server/proxy_protocol` of the proxy reads such headers of load balancers.
//!
//! Invariant: only servers that the operator has chosen are told. A connection with a header serves
//! one request, because it tells one client; requests of the proxy itself say that they are its
//! own.

use std::net::{IpAddr, SocketAddr};

/// The ends of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientEnds {
    /// The client's end.
    pub client: SocketAddr,
    /// Our end, or that of the load balancer that has accepted the client.
    pub local: SocketAddr,
}

/// The header for a connection on behalf of the client with these ends; `None`: it is our own.
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

/// The address in IPv6: ends of two families have no other form in common.
fn in_ipv6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The first bytes of version 2.
pub const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, and whether the connection is on behalf of a client.
pub const LOCAL: u8 = 0x20;
/// Version 2, on behalf of a client.
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
