//! Tests of the relay between sockets of the test, in paused time.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use super::*;

/// A connection through a relay: the client's end and the server's end.
struct Ends {
    client: TcpStream,
    server: TcpStream,
}

/// A relay and the server behind it.
async fn tcp() -> (Relay, TcpListener) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relay = Relay::tcp(server.local_addr().unwrap()).unwrap();
    (relay, server)
}

async fn connect(relay: &Relay, server: &TcpListener) -> Ends {
    let client = TcpStream::connect(relay.address()).await.unwrap();
    let (server, _) = server.accept().await.unwrap();
    Ends { client, server }
}

async fn udp(seed: u64) -> (Relay, UdpSocket, UdpSocket) {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let relay = Relay::udp(server.local_addr().unwrap(), seed).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(relay.address()).await.unwrap();
    (relay, server, client)
}

async fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 100];
    let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
    (buffer[..length].to_vec(), from)
}

/// An hour of paused time, in which no bytes arrive.
async fn silence(socket: &mut TcpStream) {
    let read = timeout(HOUR, socket.read_u8()).await;
    assert!(read.is_err(), "{read:?}");
}

async fn is_reset(mut socket: TcpStream) -> bool {
    let read = socket.read(&mut [0; 1]).await;
    read.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
}

/// Returns true if no other program can get the port.
fn is_reserved(address: SocketAddr, kind: Type) -> bool {
    let socket = Socket::new(Domain::IPV4, kind, None).unwrap();
    let bound = socket.bind(&SockAddr::from(address));
    bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn all_bytes_pass_and_each_direction_ends_for_itself() {
    let (relay, server) = tcp().await;
    let Ends { client, server } = connect(&relay, &server).await;
    let begun = now();
    let sent: Vec<u8> = (0..3_000_000_u32)
        .map(|n| n.to_le_bytes()[n as usize % 3])
        .collect();
    let (mut from_server, mut to_server) = client.into_split();
    let (mut from_client, mut to_client) = server.into_split();
    let mut got = vec![];
    let (wrote, read) = tokio::join!(
        async {
            to_server.write_all(&sent).await?;
            to_server.shutdown().await
        },
        from_client.read_to_end(&mut got)
    );
    wrote.unwrap();
    read.unwrap();
    assert!(got == sent);
    to_client.write_all(b"still open").await.unwrap();
    drop((to_client, from_client));
    let mut answer = vec![];
    from_server.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"still open");
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(relay.passed_bytes(), [3_000_000, 10]);
}

#[tokio::test(start_paused = true)]
async fn each_direction_has_a_delay_of_its_own() {
    let (relay, server) = tcp().await;
    relay.change(|link| {
        link.to_server.delay = Duration::from_millis(300);
        link.to_client.delay = Duration::from_millis(5);
    });
    let mut ends = connect(&relay, &server).await;
    for _ in 0..2 {
        let begun = now();
        ends.client.write_all(b"?").await.unwrap();
        ends.server.read_u8().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::from_millis(300));
        ends.server.write_all(b"!").await.unwrap();
        ends.client.read_u8().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::from_millis(305));
    }
    let begun = now();
    ends.client.shutdown().await.unwrap();
    assert_eq!(ends.server.read(&mut [0; 1]).await.unwrap(), 0);
    assert_eq!(begun.elapsed(), Duration::from_millis(300));
}

#[tokio::test(start_paused = true)]
async fn two_connections_share_the_rate_until_it_is_lifted() {
    let (relay, server) = tcp().await;
    relay.change(|link| link.to_client.bytes_per_second = NonZeroU64::new(10_000));
    let mut ends = [
        connect(&relay, &server).await,
        connect(&relay, &server).await,
    ];
    let begun = now();
    for ends in &mut ends {
        ends.server.write_all(&[7; 20_000]).await.unwrap();
    }
    for ends in &mut ends {
        ends.client.read_exact(&mut [0; 20_000]).await.unwrap();
    }
    assert_eq!(begun.elapsed(), Duration::from_secs(4));
    relay.change(|link| link.to_client.bytes_per_second = None);
    let begun = now();
    ends[0].server.write_all(&[7; 20_000]).await.unwrap();
    ends[0].client.read_exact(&mut [0; 20_000]).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_hang_stops_at_its_byte_and_its_end_loses_none() {
    let (relay, server) = tcp().await;
    relay.change(|link| link.to_client.fault = Some(Fault::HangAfter(4)));
    let Ends {
        mut client,
        mut server,
    } = connect(&relay, &server).await;
    server.write_all(b"abcdefg").await.unwrap();
    drop(server);
    let mut begun = [0; 4];
    client.read_exact(&mut begun).await.unwrap();
    assert_eq!(&begun, b"abcd");
    silence(&mut client).await;
    relay.change(|link| link.to_client.fault = None);
    let mut rest = vec![];
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"efg");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_content_hangs_as_its_bytes_do() {
    let (relay, server) = tcp().await;
    relay.change(|link| link.to_client.fault = Some(Fault::HangAfter(2)));
    let Ends {
        mut client,
        mut server,
    } = connect(&relay, &server).await;
    server.write_all(b"ab").await.unwrap();
    drop(server);
    client.read_exact(&mut [0; 2]).await.unwrap();
    silence(&mut client).await;
}

#[tokio::test(start_paused = true)]
async fn a_black_hole_accepts_and_the_server_sees_nothing_of_it() {
    let (relay, server) = tcp().await;
    relay.change(|link| link.to_server.fault = Some(Fault::HangAfter(0)));
    let mut client = TcpStream::connect(relay.address()).await.unwrap();
    client.write_all(b"?").await.unwrap();
    silence(&mut client).await;
    assert!(timeout(HOUR, server.accept()).await.is_err());
    relay.change(|link| link.to_server.fault = None);
    let (mut server, _) = server.accept().await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'?');
}

#[tokio::test(start_paused = true)]
async fn a_hang_stops_the_sender_instead_of_filling_memory() {
    let (relay, server) = tcp().await;
    relay.change(|link| link.to_server.fault = Some(Fault::HangAfter(1)));
    let mut ends = connect(&relay, &server).await;
    let mut sent = 0;
    let piece = [0; 64 << 10];
    while let Ok(wrote) = timeout(HOUR, ends.client.write(&piece)).await {
        sent += wrote.unwrap();
        assert!(sent < 100 << 20, "nothing stops the sender");
    }
    assert!(sent > 1 << 20, "{sent}: the queue alone holds more");
}

#[tokio::test(start_paused = true)]
async fn a_cut_lets_its_bytes_pass_and_resets_both_sides() {
    let (relay, server) = tcp().await;
    relay.change(|link| link.to_client.fault = Some(Fault::CutAfter(3)));
    let Ends {
        mut client,
        mut server,
    } = connect(&relay, &server).await;
    server.write_all(b"abc").await.unwrap();
    let mut got = [0; 3];
    client.read_exact(&mut got).await.unwrap();
    silence(&mut client).await;
    server.write_all(b"d").await.unwrap();
    assert!(is_reset(client).await && is_reset(server).await);
}

#[tokio::test(start_paused = true)]
async fn one_bit_is_flipped_and_no_other() {
    let (relay, server) = tcp().await;
    relay.change(|link| link.to_client.fault = Some(Fault::FlipBit { byte: 5, bit: 1 }));
    let Ends {
        mut client,
        mut server,
    } = connect(&relay, &server).await;
    let mut got = [0; 8];
    for part in [b"aaaa", b"aaaa"] {
        server.write_all(part).await.unwrap();
    }
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"aaaaacaa");
}

#[tokio::test(start_paused = true)]
async fn killed_connections_are_reset_and_new_ones_work() {
    let (relay, server) = tcp().await;
    let old = connect(&relay, &server).await;
    relay.kill_connections();
    assert!(is_reset(old.client).await && is_reset(old.server).await);
    let mut ends = connect(&relay, &server).await;
    ends.client.write_all(b"?").await.unwrap();
    assert_eq!(ends.server.read_u8().await.unwrap(), b'?');
}

#[tokio::test(start_paused = true)]
async fn a_reset_of_the_server_reaches_the_client() {
    let (relay, server) = tcp().await;
    let Ends { client, server } = connect(&relay, &server).await;
    server.set_zero_linger().unwrap();
    drop(server);
    assert!(is_reset(client).await);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_relay_refuses_keeps_its_port_and_listens_there_again() {
    let (mut relay, server) = tcp().await;
    let old = connect(&relay, &server).await;
    for _ in 0..3 {
        relay.stop().await;
        relay.stop().await;
        let refused = TcpStream::connect(relay.address()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(is_reserved(relay.address(), Type::STREAM));
        relay.start().unwrap();
        relay.start().unwrap();
        let mut ends = connect(&relay, &server).await;
        ends.client.write_all(b"?").await.unwrap();
        assert_eq!(ends.server.read_u8().await.unwrap(), b'?');
    }
    assert!(is_reset(old.client).await && is_reset(old.server).await);
}

#[tokio::test(start_paused = true)]
async fn connections_end_with_the_relay() {
    let (relay, server) = tcp().await;
    let address = relay.address();
    let ends = connect(&relay, &server).await;
    drop(relay);
    assert!(is_reset(ends.client).await && is_reset(ends.server).await);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn each_client_gets_the_datagrams_of_its_own_flow() {
    let (relay, server, first) = udp(1).await;
    let second = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    second.connect(relay.address()).await.unwrap();
    for (client, question) in [(&first, b"1"), (&second, b"2"), (&first, b"3")] {
        client.send(question).await.unwrap();
        let (got, from) = receive(&server).await;
        assert_eq!(got, question);
        server.send_to(&got, from).await.unwrap();
        assert_eq!(receive(client).await, (got, relay.address()));
    }
}

#[tokio::test(start_paused = true)]
async fn datagrams_are_delayed_and_broken_at_the_byte_named() {
    let (relay, server, client) = udp(1).await;
    relay.change(|link| {
        link.to_server.delay = Duration::from_secs(5);
        link.to_server.fault = Some(Fault::FlipBit { byte: 1, bit: 0 });
    });
    let begun = now();
    for _ in 0..2 {
        client.send(b"aaa").await.unwrap();
    }
    for _ in 0..2 {
        assert_eq!(receive(&server).await.0, b"a`a");
    }
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
    client.send(b"a").await.unwrap();
    assert_eq!(receive(&server).await.0, b"a");
    relay.change(|link| {
        link.to_server = Way::default();
        // Seven bytes were sent before, so two more are forwarded.
        link.to_server.fault = Some(Fault::HangAfter(9));
    });
    for datagram in [b"bb", b"cc", b"dd"] {
        client.send(datagram).await.unwrap();
    }
    assert_eq!(receive(&server).await.0, b"bb");
    assert!(timeout(HOUR, receive(&server)).await.is_err());
}

/// Returns the numbers of the datagrams that arrive, out of a thousand.
async fn arrivals(seed: u64, loss_per_mille: u16) -> Vec<u16> {
    let (relay, server, client) = udp(seed).await;
    relay.change(|link| link.to_server.loss_per_mille = loss_per_mille);
    let mut arrived = vec![];
    for number in 0..1000_u16 {
        client.send(&number.to_le_bytes()).await.unwrap();
        if let Ok((got, _)) = timeout(Duration::from_secs(1), receive(&server)).await {
            arrived.push(u16::from_le_bytes(got.try_into().unwrap()));
        }
    }
    arrived
}

#[tokio::test(start_paused = true)]
async fn the_seed_decides_which_datagrams_are_lost() {
    let arrived = arrivals(1, 250).await;
    assert!((700..800).contains(&arrived.len()), "{}", arrived.len());
    assert_eq!(arrived, arrivals(1, 250).await);
    assert_ne!(arrived, arrivals(2, 250).await);
    assert_eq!(arrivals(1, 1000).await, [0; 0]);
    assert_eq!(arrivals(1, 0).await.len(), 1000);
}

#[tokio::test(start_paused = true)]
async fn datagrams_without_room_are_lost() {
    let (relay, server, client) = udp(1).await;
    relay.change(|link| link.to_server.delay = HOUR);
    for _ in 0..2 * udp::DATAGRAMS_MAX {
        client.send(b"x").await.unwrap();
        // Lets the relay receive it: the kernel's own queue is shorter.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut arrived = 0;
    while timeout(2 * HOUR, receive(&server)).await.is_ok() {
        arrived += 1;
    }
    assert_eq!(arrived, udp::DATAGRAMS_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_relay_refuses_datagrams_and_receives_them_again() {
    let (mut relay, server, client) = udp(1).await;
    for _ in 0..3 {
        client.send(b"?").await.unwrap();
        assert_eq!(receive(&server).await.0, b"?");
        relay.stop().await;
        client.send(b"?").await.unwrap();
        let refused = client.recv(&mut [0; 1]).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(is_reserved(relay.address(), Type::DGRAM));
        relay.start().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_a_killed_flow_finds_nobody() {
    let (relay, server, client) = udp(1).await;
    client.send(b"?").await.unwrap();
    let (_, from) = receive(&server).await;
    relay.kill_connections();
    // The new flow shows that the relay has noticed.
    client.send(b"!").await.unwrap();
    let (_, newer) = receive(&server).await;
    assert_ne!(from, newer);
    server.send_to(b"late", from).await.unwrap();
    server.send_to(b"answer", newer).await.unwrap();
    assert_eq!(receive(&client).await.0, b"answer");
    assert!(timeout(HOUR, receive(&client)).await.is_err());
}
