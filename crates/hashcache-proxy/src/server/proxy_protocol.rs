//! The PROXY protocol, versions 1 and 2: a load balancer sends the client's address before the
//! client's bytes (specification: `doc/proxy-protocol.txt` of HAProxy).
//!
//! Called by `cores` for connections from the networks of `proxy_protocol_from`.
//!
//! Invariants: a header is read only from addresses that the operator trusts, and these must send a
//! header: a connection without it is an error. No byte after the header is read, and at most
//! [`REST_MAX`] bytes in it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt as _};

use hashcache_upstream::announced::{
    ClientEnds, LOCAL, PROXY, SIGNATURE, TCP_OVER_IPV4, TCP_OVER_IPV6,
};

/// Reads a header. `None`: the connection is the load balancer's own, such as a health check, or
/// the load balancer does not know the client.
pub(super) async fn read(socket: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<ClientEnds>> {
    // A complete header of either version is at least this long.
    let mut begun = [0; SIGNATURE.len()];
    socket.read_exact(&mut begun).await?;
    if begun == SIGNATURE {
        return read_version_2(socket).await;
    }
    if !begun.starts_with(b"PROXY ") {
        return Err(malformed());
    }
    let mut line = begun.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() == LINE_MAX {
            return Err(malformed());
        }
        line.push(socket.read_u8().await?);
    }
    let line = std::str::from_utf8(&line[..line.len() - 2]).map_err(|_| malformed())?;
    ends_in_line(line).ok_or_else(malformed)
}

/// Parses a line of version 1 without CRLF. The outer `None`: the line is malformed.
fn ends_in_line(line: &str) -> Option<Option<ClientEnds>> {
    let mut words = line.split(' ');
    let family = words.by_ref().nth(1)?;
    if family == "UNKNOWN" {
        return Some(None);
    }
    let words: Vec<&str> = words.collect();
    let [client, local, client_port, local_port] = words[..] else {
        return None;
    };
    let address = |text: &str| {
        let address: IpAddr = text.parse().ok()?;
        let is_right = match family {
            "TCP4" => address.is_ipv4(),
            "TCP6" => address.is_ipv6(),
            _ => false,
        };
        is_right.then_some(address)
    };
    let port = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|_| is_number)
    };
    Some(Some(ClientEnds {
        client: SocketAddr::new(address(client)?, port(client_port)?),
        local: SocketAddr::new(address(local)?, port(local_port)?),
    }))
}

/// Reads the rest of a version 2 header after the signature.
async fn read_version_2(socket: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<ClientEnds>> {
    let mut head = [0; 4];
    socket.read_exact(&mut head).await?;
    let [command, family, length @ ..] = head;
    let length = usize::from(u16::from_be_bytes(length));
    if length > REST_MAX {
        return Err(malformed());
    }
    let mut rest = vec![0; length];
    socket.read_exact(&mut rest).await?;
    match (command, family) {
        (LOCAL, _) => Ok(None),
        (PROXY, TCP_OVER_IPV4) => ends_in::<4>(&rest).map(Some).ok_or_else(malformed),
        (PROXY, TCP_OVER_IPV6) => ends_in::<16>(&rest).map(Some).ok_or_else(malformed),
        // Unix sockets, datagrams, unknown: there are no client addresses that count here.
        (PROXY, _) => Ok(None),
        _ => Err(malformed()),
    }
}

/// Parses the addresses before the extensions: two addresses of `N` bytes, then two ports.
fn ends_in<const N: usize>(rest: &[u8]) -> Option<ClientEnds>
where
    IpAddr: From<[u8; N]>,
{
    let (client, rest) = rest.split_first_chunk::<N>()?;
    let (local, rest) = rest.split_first_chunk::<N>()?;
    let (client_port, rest) = rest.split_first_chunk::<2>()?;
    let (local_port, _extensions) = rest.split_first_chunk::<2>()?;
    let end = |address: &[u8; N], port: &[u8; 2]| {
        SocketAddr::new(IpAddr::from(*address), u16::from_be_bytes(*port))
    };
    Some(ClientEnds {
        client: end(client, client_port),
        local: end(local, local_port),
    })
}

fn malformed() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "no header of the PROXY protocol",
    )
}

/// Longest line of version 1, with CRLF.
const LINE_MAX: usize = 107;
/// Longest addresses and extensions of version 2. With client certificates, HAProxy sends some
/// hundred bytes.
const REST_MAX: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use hashcache_upstream::announced::header;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tokio::runtime::Builder;

    use super::*;

    /// The result for these bytes, and what is left of them.
    async fn read_from(mut bytes: &[u8]) -> (io::Result<Option<ClientEnds>>, &[u8]) {
        let ends = read(&mut bytes).await;
        (ends, bytes)
    }

    fn ends(client: &str, local: &str) -> Option<ClientEnds> {
        let (client, local) = (client.parse().unwrap(), local.parse().unwrap());
        Some(ClientEnds { client, local })
    }

    fn version_2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n";

    #[tokio::test]
    async fn both_versions_tell_the_client_and_leave_its_bytes() {
        let v4 = [192, 0, 2, 1, 198, 51, 100, 2, 0x12, 0x34, 0, 80];
        let mut v6 = [0; 36];
        (v6[15], v6[31], v6[33], v6[35]) = (1, 2, 3, 4);
        let extended = [&v4[..], &[0x20, 0, 1, 0]].concat();
        // Extensions are not read, so one that says a wrong length does no harm.
        let full = [&v4[..], &[0xff; REST_MAX - 12]].concat();
        let four = ends("192.0.2.1:4660", "198.51.100.2:80");
        for (header, expected) in [
            (
                b"PROXY TCP4 192.0.2.1 198.51.100.2 4660 80\r\n".to_vec(),
                four,
            ),
            (
                b"PROXY TCP6 ::1 ::2 3 4\r\n".to_vec(),
                ends("[::1]:3", "[::2]:4"),
            ),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN anything at all\r\n".to_vec(), None),
            (version_2(0x21, 0x11, &v4), four),
            (version_2(0x21, 0x11, &extended), four),
            (version_2(0x21, 0x11, &full), four),
            (version_2(0x21, 0x21, &v6), ends("[::1]:3", "[::2]:4")),
            (version_2(0x20, 0x11, &v4), None),
            (version_2(0x20, 0, &[]), None),
            (version_2(0x21, 0x31, &[0; 216]), None),
        ] {
            let bytes = [&header[..], REQUEST].concat();
            let (told, left) = read_from(&bytes).await;
            assert_eq!(told.unwrap(), expected, "{header:?}");
            assert_eq!(left, REQUEST, "{header:?}");
        }
    }

    #[tokio::test]
    async fn whatever_is_no_header_is_an_error_soon() {
        let long = [&b"PROXY UNKNOWN "[..], &[b'x'; 200]].concat();
        let huge = version_2(0x21, 0x11, &[0; REST_MAX + 1]);
        for (bytes, read_at_most) in [
            (REQUEST, SIGNATURE.len()),
            (b"PROXY TCP4 192.0.2.1 ::1 1 2\r\n", 107),
            (b"PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n", 107),
            (b"PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n", 107),
            (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n", 107),
            (b"PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n", 107),
            (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n", 107),
            (b"PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n", 107),
            (b"PROXY TCP4 192.0.2.1", 107),
            (&long, LINE_MAX),
            (&huge, SIGNATURE.len() + 4),
            (&version_2(0x21, 0x11, &[0; 11]), 27),
            (&version_2(0x21, 0x21, &[0; 35]), 51),
            (&version_2(0x22, 0x11, &[0; 12]), 28),
            (&version_2(0x11, 0x11, &[0; 12]), 28),
            (&SIGNATURE, SIGNATURE.len()),
        ] {
            let (told, left) = read_from(bytes).await;
            assert!(told.is_err(), "{bytes:?}");
            assert!(bytes.len() - left.len() <= read_at_most, "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn what_servers_are_told_is_what_is_read() {
        let four = ends("192.0.2.1:4660", "198.51.100.2:80");
        let six = ends("[2001:db8::1]:4660", "[2001:db8::2]:80");
        for ends in [four, six, None] {
            let bytes = [&header(ends)[..], REQUEST].concat();
            let (told, left) = read_from(&bytes).await;
            assert_eq!((told.unwrap(), left), (ends, REQUEST));
        }
    }

    proptest! {
        #[test]
        fn whatever_follows_a_beginning_is_read_within_bounds(
            is_version_2: bool,
            bytes in vec(any::<u8>(), 0..400),
        ) {
            let (begin, most) = if is_version_2 {
                (&SIGNATURE[..], SIGNATURE.len() + 4 + REST_MAX)
            } else {
                (&b"PROXY "[..], LINE_MAX)
            };
            let all = [begin, &bytes].concat();
            let runtime = Builder::new_current_thread().build().unwrap();
            let (_, left) = runtime.block_on(read_from(&all));
            prop_assert!(all.len() - left.len() <= most);
        }
    }
}
