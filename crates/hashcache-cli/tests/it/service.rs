//! The proxy under a service manager, which these tests stand for: its sockets, its messages, the
//! signals, and the question whether the proxy works.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use rustix::net::{self, AddressFamily, SocketType, sockopt};
use rustix::process::{Pid, Signal, kill_process};

use crate::operation::{Running, refused, told};
use crate::{Home, Outcome};

/// Puts the listening socket, which comes as standard input, where systemd puts the first one.
const PASS_SOCKET: &str = "exec 3<&0 0</dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\"";

/// A test fails when the proxy has not answered for so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The command, which gets `socket` as systemd would pass it.
fn with_socket(home: &Home, socket: &TcpListener, flags: &[&str]) -> Command {
    let socket = OwnedFd::from(socket.try_clone().expect("a copy"));
    home.file("service.toml", "");
    let mut command = Command::new("sh");
    command
        .args(["-c", PASS_SOCKET, "sh", env!("CARGO_BIN_EXE_hashcache")])
        .args(["proxy", "--config=service.toml", "--access-log=none"])
        .args(["--cache=c.img", "--cache-size=32MiB"])
        .args(flags)
        .current_dir(home.path())
        .env_clear()
        .env("HOME", home.path())
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// A proxy that a service manager has started, and what it says to it.
struct Service {
    child: Child,
    notified: UnixDatagram,
    log: BufReader<ChildStderr>,
}

impl Service {
    /// Starts it with `socket` for its clients and these variables.
    fn start(home: &Home, socket: &TcpListener, variables: &[(&str, &str)]) -> Self {
        let listen = format!("--listen={}", address(socket));
        Self::begin(home, socket, &listen, variables)
    }

    /// Starts it with `socket` for its clients, and this flag for it.
    fn listening(home: &Home, socket: &TcpListener, listen: &str) -> Self {
        Self::begin(home, socket, listen, &[])
    }

    fn begin(home: &Home, socket: &TcpListener, listen: &str, variables: &[(&str, &str)]) -> Self {
        let name = home.path().join("notify");
        let _ = std::fs::remove_file(&name);
        let notified = UnixDatagram::bind(&name).expect("a socket below the home");
        notified
            .set_read_timeout(Some(PATIENCE))
            .expect("a time above zero");
        let mut child = with_socket(home, socket, &[listen, "--admin=none"])
            .env("NOTIFY_SOCKET", &name)
            .envs(variables.iter().copied())
            .spawn()
            .expect("a shell");
        let log = BufReader::new(child.stderr.take().expect("it was asked to be piped"));
        Self {
            child,
            notified,
            log,
        }
    }

    /// The next message.
    fn message(&self) -> String {
        let mut buffer = [0; 512];
        let bytes = self.notified.recv(&mut buffer).expect("a message");
        String::from_utf8(buffer[..bytes].to_vec()).expect("messages are text")
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process has a number"), signal).expect("a process that runs");
    }

    /// Reads its log up to a line with `part`.
    fn says(&mut self, part: &str) {
        let mut line = String::new();
        while !line.contains(part) {
            line.clear();
            let read = self.log.read_line(&mut line).expect("logs are text");
            assert!(read > 0, "it ended without {part:?}");
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn address(socket: &TcpListener) -> SocketAddr {
    socket.local_addr().expect("a bound socket")
}

/// Sends a request for a page of the proxy itself, without waiting for the response.
fn ask(socket: &TcpListener) -> TcpStream {
    let at = address(socket);
    let mut client = TcpStream::connect(at).expect("the socket accepts connections");
    client
        .set_read_timeout(Some(PATIENCE))
        .expect("a time above zero");
    let head = format!("GET / HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    client.write_all(head.as_bytes()).expect("room for a head");
    client
}

fn status_line(mut client: TcpStream) -> String {
    let mut response = String::new();
    client
        .read_to_string(&mut response)
        .expect("a whole response");
    response.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn the_service_manager_is_told_of_start_reload_and_stop() {
    let home = Home::new();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut service = Service::start(&home, &socket, &[]);
    let serving = format!("READY=1\nSTATUS=serving on {}", address(&socket));
    assert_eq!(service.message(), serving);
    service.signal(Signal::HUP);
    let reloading = service.message();
    let since = reloading
        .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
        .and_then(|micros| micros.parse::<u64>().ok());
    assert!(since.is_some_and(|micros| micros > 0), "{reloading:?}");
    assert_eq!(service.message(), serving);
    for (text, more) in [
        ("memroy = \"1GiB\"\n", "; last reload refused, see the log"),
        ("", ""),
    ] {
        home.file("service.toml", text);
        service.signal(Signal::HUP);
        assert!(service.message().starts_with("RELOADING=1\n"));
        assert_eq!(service.message(), format!("{serving}{more}"));
    }
    service.signal(Signal::USR2);
    service.says("signal USR2 has no effect");
    assert_eq!(status_line(ask(&socket)), "HTTP/1.1 200 OK");
    service.signal(Signal::QUIT);
    let stopping = "STOPPING=1\nSTATUS=waiting for ";
    let message = service.message();
    assert!(message.starts_with(stopping), "{message:?}");
    assert!(service.child.wait().unwrap().success());
}

#[test]
fn the_watchdog_hears_from_a_proxy_that_works() {
    let home = Home::new();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let service = Service::start(&home, &socket, &[("WATCHDOG_USEC", "100000")]);
    assert!(service.message().starts_with("READY=1"));
    for _ in 0..5 {
        assert_eq!(service.message(), "WATCHDOG=1");
    }
}

#[test]
fn connections_wait_while_a_proxy_with_passed_sockets_restarts() {
    let home = Home::new();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    // Connected before there is a proxy.
    let early = ask(&socket);
    let mut first = Service::start(&home, &socket, &[]);
    assert_eq!(status_line(early), "HTTP/1.1 200 OK");
    first.signal(Signal::TERM);
    assert!(first.child.wait().unwrap().success());
    // Connected while there is none.
    let between = ask(&socket);
    let _second = Service::start(&home, &socket, &[]);
    assert_eq!(status_line(between), "HTTP/1.1 200 OK");
}

/// A listening socket at an address that no machine has (RFC 5737).
fn socket_of_nobody() -> io::Result<TcpListener> {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_ip_freebind(&socket, true)?;
    net::bind(&socket, &SocketAddrV4::new([192, 0, 2, 1].into(), 0))?;
    net::listen(&socket, 16)?;
    Ok(socket.into())
}

#[test]
fn a_passed_socket_is_used_where_the_proxy_itself_cannot_bind() {
    let home = Home::new();
    // Usually such an address has a port below 1024, but the user of a test may be root.
    let socket = socket_of_nobody().unwrap();
    let listen = format!("--listen={}", address(&socket));
    let alone = refused(&home, &[&listen, "--cache=c.img"]);
    let (what, _) = told(&alone);
    assert!(what.contains("cannot listen"), "{what}");
    let service = Service::start(&home, &socket, &[]);
    let serving = format!("READY=1\nSTATUS=serving on {}", address(&socket));
    assert_eq!(service.message(), serving);
}

#[test]
fn a_passed_socket_that_no_setting_names_is_refused() {
    let home = Home::new();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let flags = ["--listen=127.0.0.1:0", "--admin=none"];
    let output = with_socket(&home, &socket, &flags).output().unwrap();
    let outcome = Outcome::from(output);
    assert_eq!(outcome.status, Some(2), "{outcome:?}");
    let (what, hint) = told(&outcome);
    assert!(what.contains(&address(&socket).to_string()), "{what}");
    assert!(hint.contains("hashcache.socket"), "{hint}");
    // A connection, as a unit with `Accept=yes` passes it.
    let client = TcpStream::connect(address(&socket)).unwrap();
    let output = with_socket(&home, &socket, &flags)
        .stdin(Stdio::from(OwnedFd::from(client)))
        .output()
        .unwrap();
    let outcome = Outcome::from(output);
    assert_eq!(outcome.status, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("LISTEN_FDS"), "{outcome:?}");
}

/// Returns true if this process may make sockets transparent: it has CAP_NET_ADMIN or CAP_NET_RAW.
fn may_make_transparent() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let mut lines = status.lines();
    let all = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let all = u64::from_str_radix(all.expect("a line of it").trim(), 16);
    all.expect("capabilities are a number") & (1 << 12 | 1 << 13) != 0
}

/// On a passed socket of such a listener the proxy finds itself as the destination, and refuses to
/// connect to itself.
fn is_refused_as_loop(socket: &TcpListener) -> bool {
    status_line(ask(socket)).starts_with("HTTP/1.1 508")
}

#[test]
fn a_passed_socket_for_other_destinations_is_made_transparent_or_refused() {
    let home = Home::new();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("--listen=tproxy://{}", address(&socket));
    let flags = [&listen, "--admin=none"];
    if may_make_transparent() {
        let service = Service::listening(&home, &socket, &listen);
        let serving = format!("READY=1\nSTATUS=serving on {}", address(&socket));
        assert_eq!(service.message(), serving);
        assert!(is_refused_as_loop(&socket));
        return;
    }
    let output = with_socket(&home, &socket, &flags).output().unwrap();
    let outcome = Outcome::from(output);
    assert_eq!(outcome.status, Some(2), "{outcome:?}");
    let (what, hint) = told(&outcome);
    assert!(what.contains("not transparent"), "{what}");
    assert!(hint.contains("Transparent=yes"), "{hint}");
}

#[test]
fn a_passed_socket_for_redirected_connections_serves_none_that_were_not_redirected() {
    let home = Home::new();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("--listen=redirect://{}", address(&socket));
    let service = Service::listening(&home, &socket, &listen);
    assert!(service.message().starts_with("READY=1\n"));
    let mut answer = String::new();
    // Where the kernel tracks no connections, it knows no destination: the connection is closed.
    let _closed = ask(&socket).read_to_string(&mut answer);
    let is_loop = answer.starts_with("HTTP/1.1 508");
    assert!(answer.is_empty() || is_loop, "{answer}");
}

#[test]
fn a_second_proxy_is_refused_while_the_first_has_the_cache() {
    let home = Home::new();
    let first = Running::start(&home, &["--config=/dev/null"]);
    let second = refused(&home, &["--cache=c.img"]);
    let (what, _) = told(&second);
    assert!(what.contains("in use"), "{what}");
    first.end();
}

#[test]
fn the_health_check_says_whether_the_proxy_works() {
    let home = Home::new();
    let proxy = Running::start(&home, &["--config=/dev/null"]);
    let admin = format!("--admin={}", proxy.admin);
    // A mistake in a file that the proxy has not read is no reason to end the proxy.
    let file = home.file("h.toml", "memroy = \"1GiB\"\n");
    let config = format!("--config={}", file.display());
    let check = |flags: &[&str]| {
        let flags = [&["healthcheck", &config], flags].concat();
        home.hashcache(&flags, &[("HASHCACHE_POLICY", "lru")])
    };
    for flags in [&[admin.as_str()][..], &[&admin, "--ready"]] {
        assert_eq!(check(flags).status, Some(0), "{:?}", check(flags));
    }
    proxy.end();
    let gone = check(&[&admin]);
    assert_eq!(gone.status, Some(1), "{gone:?}");
    assert!(gone.stdout.starts_with("no answer from "), "{gone:?}");
    for flags in [&["--admin=none"][..], &[]] {
        let unknown = check(flags);
        assert_eq!(unknown.status, Some(2), "{unknown:?}");
    }
    home.file("h.toml", "admin = \"none\"\n");
    let none = home.hashcache(&["healthcheck", &config], &[]);
    assert_eq!(none.status, Some(2), "{none:?}");
    assert!(told(&none).0.contains("no admin listener"), "{none:?}");
}
