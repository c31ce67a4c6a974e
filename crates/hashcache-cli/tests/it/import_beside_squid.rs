//! Imported configurations beside Squid itself: for each file of `squid/beside`, Squid with the
//! file and the proxy with its import get the same requests, and both have one scripted parent
//! that answers everything.
//!
//! A request that Squid refuses and the proxy serves fails the test. A request that the proxy
//! refuses and Squid serves must be one of a file whose import says so. Without Squid on the
//! machine nothing is tested; CI installs it.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hashcache_testkit::reserved_address;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::Home;
use crate::proxy_users::{ANNA, BERT, USERS};

/// A file of `squid/beside`.
struct Case {
    name: &'static str,
    text: &'static str,
    /// The import says that it denies more than Squid.
    denies_more: bool,
}

const fn case(name: &'static str, text: &'static str, denies_more: bool) -> Case {
    Case {
        name,
        text,
        denies_more,
    }
}

const CASES: [Case; 24] = [
    case("debian", include_str!("squid/beside/debian.conf"), false),
    case("ports", include_str!("squid/beside/ports.conf"), false),
    case(
        "ports_only_safe",
        include_str!("squid/beside/ports_only_safe.conf"),
        false,
    ),
    case(
        "last_deny",
        include_str!("squid/beside/last_deny.conf"),
        false,
    ),
    case("users", include_str!("squid/beside/users.conf"), true),
    case("pools", include_str!("squid/beside/pools.conf"), false),
    case(
        "intranet",
        include_str!("squid/beside/intranet.conf"),
        false,
    ),
    case("times", include_str!("squid/beside/times.conf"), false),
    case("regex", include_str!("squid/beside/regex.conf"), true),
    case("lists", include_str!("squid/beside/lists.conf"), false),
    case("subnets", include_str!("squid/beside/subnets.conf"), false),
    case("connect", include_str!("squid/beside/connect.conf"), false),
    case("order", include_str!("squid/beside/order.conf"), false),
    case("purge", include_str!("squid/beside/purge.conf"), true),
    case(
        "negations",
        include_str!("squid/beside/negations.conf"),
        false,
    ),
    case(
        "exceptions",
        include_str!("squid/beside/exceptions.conf"),
        false,
    ),
    case("nights", include_str!("squid/beside/nights.conf"), false),
    case(
        "users_exceptions",
        include_str!("squid/beside/users_exceptions.conf"),
        false,
    ),
    case(
        "users_order",
        include_str!("squid/beside/users_order.conf"),
        false,
    ),
    case(
        "users_groups",
        include_str!("squid/beside/users_groups.conf"),
        true,
    ),
    case(
        "all_lists",
        include_str!("squid/beside/all_lists.conf"),
        false,
    ),
    case("nothing", include_str!("squid/beside/nothing.conf"), false),
    case("replies", include_str!("squid/beside/replies.conf"), false),
    case("accel", include_str!("squid/beside/accel.conf"), true),
];

/// A request of a client.
#[derive(Clone, Debug)]
struct Ask {
    from: u8,
    method: &'static str,
    host: &'static str,
    port: u16,
    path: &'static str,
    login: Option<&'static str>,
}

/// The last numbers of addresses: all of 127.0.0.0/8 is this machine, each another client.
const CLIENTS: [u8; 4] = [1, 2, 3, 9];
const HOSTS: [&str; 7] = [
    "www.a.test",
    "bad.test",
    "www.bad.test",
    "www.staff.test",
    "scripts.test",
    "10.1.2.3",
    "192.168.1.1",
];
/// Names and addresses of all hosts: Squid looks both up, and would wait for a name server.
const HOSTS_FILE: &str = "203.0.113.1 www.a.test\n203.0.113.2 bad.test www.bad.test\n\
    203.0.113.3 www.staff.test\n203.0.113.4 scripts.test\n10.1.2.3 ten.test\n\
    192.168.1.1 router.test\n";
/// Method, port and path.
const REQUESTS: [(&str, u16, &str); 11] = [
    ("GET", 80, "/"),
    ("GET", 80, "/bad/x"),
    ("GET", 25, "/"),
    ("GET", 443, "/"),
    ("GET", 8080, "/film.mp4"),
    ("POST", 80, "/"),
    ("DELETE", 8085, "/"),
    ("PURGE", 80, "/"),
    ("PURGE", 25, "/"),
    ("CONNECT", 443, ""),
    ("CONNECT", 8080, ""),
];

impl Ask {
    fn all(case: &Case) -> Vec<Self> {
        let logins: &[Option<&str>] = match case.name {
            "users" | "users_exceptions" | "users_order" | "users_groups" => {
                &[None, Some(ANNA), Some(BERT)]
            }
            _ => &[None],
        };
        let mut all = Vec::new();
        for from in CLIENTS {
            for host in HOSTS {
                for (method, port, path) in REQUESTS {
                    for login in logins {
                        all.push(Self {
                            from,
                            method,
                            host,
                            port,
                            path,
                            login: *login,
                        });
                    }
                }
            }
        }
        // In front of a site there are no tunnels and no ports that a client may choose.
        let is_for_sites = |ask: &Self| ask.port == 80 && ["GET", "POST"].contains(&ask.method);
        all.retain(|ask| case.name != "accel" || is_for_sites(ask));
        all
    }

    /// Returns true if the server at `to` serves the request: the status is the status of the
    /// parent, or of a purge.
    async fn is_served(&self, to: SocketAddr, is_site: bool) -> io::Result<bool> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::new(127, 0, 0, self.from), 0).into())?;
        let mut stream = socket.connect(to).await?;
        stream.write_all(self.head(is_site).as_bytes()).await?;
        let mut line = String::new();
        tokio::io::BufReader::new(stream)
            .read_line(&mut line)
            .await?;
        let status = line.split(' ').nth(1).unwrap_or_default();
        Ok(status == "200" || (self.method == "PURGE" && status == "404"))
    }

    fn head(&self, is_site: bool) -> String {
        let Self {
            method, host, port, ..
        } = self;
        let target = match (*method, is_site) {
            ("CONNECT", _) => format!("{host}:{port}"),
            (_, true) => self.path.to_owned(),
            _ => format!("http://{host}:{port}{}", self.path),
        };
        let host_field = match *port {
            80 => (*host).to_owned(),
            port => format!("{host}:{port}"),
        };
        let login = self
            .login
            .map(|it| format!("Proxy-Authorization: {it}\r\n"));
        let login = login.unwrap_or_default();
        let length = match *method {
            "POST" => "Content-Length: 0\r\n",
            _ => "",
        };
        format!(
            "{method} {target} HTTP/1.1\r\nHost: {host_field}\r\n{length}{login}Connection: \
             close\r\n\r\n"
        )
    }
}

/// A parent, or an origin, that answers 200 to everything.
struct Parent {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Parent {
    fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                // A connection that fails is one that a proxy has given up.
                if let Ok(stream) = stream {
                    thread::spawn(move || drop(answer(stream)));
                }
            }
        });
        Ok(Self {
            address,
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(TIME_MAX))?;
    let mut head = Vec::new();
    let mut reader = BufReader::new(stream.try_clone()?).take(HEAD_MAX);
    while !head.ends_with(b"\r\n\r\n") {
        if reader.read_until(b'\n', &mut head)? == 0 {
            return Ok(());
        }
    }
    if head.starts_with(b"CONNECT") {
        return stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
    }
    let response = b"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: 2\r\n\
                     Connection: close\r\n\r\nok";
    stream.write_all(response)
}

/// A process that a test has started; when dropped, it is killed: Squid takes two seconds to end.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program of Squid, if this machine has it.
fn squid_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    places.map(|it| it.join("squid")).find(|it| it.is_file())
}

/// Waits until a process listens at `address`.
fn until_open(process: &mut Process, address: SocketAddr) -> bool {
    for _ in 0..OPEN_LOOKS {
        if TcpStream::connect(address).is_ok() {
            return true;
        }
        if !matches!(process.0.try_wait(), Ok(None)) {
            return false;
        }
        thread::sleep(OPEN_PAUSE);
    }
    false
}

/// The settings of both servers besides the file: port and parent.
fn with_servers(case: &Case, home: &Path, port: u16, parent: SocketAddr) -> String {
    let (host, to) = (parent.ip(), parent.port());
    let text = case.text.replace("@HOME@", &home.display().to_string());
    match case.name {
        "accel" => format!(
            "http_port 127.0.0.1:{port} accel vhost defaultsite=www.staff.test\n\
             cache_peer {host} parent {to} 0 no-query no-digest originserver\n{text}"
        ),
        _ => format!(
            "http_port 127.0.0.1:{port}\ncache_peer {host} parent {to} 0 no-query no-digest \
             default\nnever_direct allow all\n{text}"
        ),
    }
}

/// The settings that a test needs only for Squid.
fn squids_own(home: &Path) -> String {
    let home = home.display();
    format!(
        "pid_filename none\ncache_log {home}/cache.log\naccess_log none\ncoredump_dir {home}\n\
         pinger_enable off\nhosts_file {home}/hosts\ndns_nameservers 127.0.0.1\n\
         shutdown_lifetime 0 seconds\nvisible_hostname squid.test\ncache_mem 8 MB\n\
         forward_timeout 5 seconds\nclient_db off\n"
    )
}

fn start_squid(
    case: &Case,
    program: &Path,
    home: &Home,
    parent: SocketAddr,
) -> (Process, SocketAddr) {
    let address = reserved_address(Ipv4Addr::LOCALHOST).expect("a port");
    let text = with_servers(case, home.path(), address.port(), parent) + &squids_own(home.path());
    home.file("for-squid.conf", &text);
    home.file("hosts", HOSTS_FILE);
    // Started by root, Squid gives its rights up.
    for (name, mode) in [("", 0o777), ("for-squid.conf", 0o644), ("hosts", 0o644)] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(home.path().join(name), mode).expect("a home of ours");
    }
    let child = Command::new(program)
        .args(["-N", "-f"])
        .arg(home.path().join("for-squid.conf"))
        .current_dir(home.path())
        .env_remove("TZ")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Squid is there");
    let mut squid = Process(child);
    if !until_open(&mut squid, address) {
        let log = fs::read_to_string(home.path().join("cache.log")).unwrap_or_default();
        panic!("{}: Squid does not start: {log}", case.name);
    }
    (squid, address)
}

/// The proxy with the import of the file, and what the import said as JSON.
fn start_import(case: &Case, home: &Home, parent: SocketAddr) -> (Process, SocketAddr, String) {
    let address = reserved_address(Ipv4Addr::LOCALHOST).expect("a port");
    let text = with_servers(case, home.path(), address.port(), parent);
    home.file("squid.conf", &text);
    let import = ["import", "squid.conf", "--out", "new.toml", "--json"];
    let outcome = home.hashcache(&import, &[]);
    assert!(
        matches!(outcome.status, Some(0 | 1)),
        "{}: {outcome:?}",
        case.name
    );
    let child = Command::new(env!("CARGO_BIN_EXE_hashcache"))
        .args([
            "proxy",
            "--config=new.toml",
            "--admin=127.0.0.1:0",
            "--access-log=none",
        ])
        .args(["--cache=c.img", "--cache-size=32MiB", "--memory=64MiB"])
        .current_dir(home.path())
        .env_clear()
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command was built with the tests");
    let mut proxy = Process(child);
    let result = || fs::read_to_string(home.path().join("new.toml"));
    let is_open = until_open(&mut proxy, address);
    assert!(
        is_open,
        "{}: the proxy does not start: {:?}",
        case.name,
        result()
    );
    (proxy, address, outcome.stdout)
}

/// Sends all requests to both, several at a time: whether each serves them.
async fn both(
    asks: &Arc<[Ask]>,
    squid: SocketAddr,
    ours: SocketAddr,
    is_site: bool,
) -> Vec<(bool, bool)> {
    let next = Arc::new(AtomicUsize::new(0));
    let served = async move |ask: &Ask, to| {
        let answer = timeout(TIME_MAX, ask.is_served(to, is_site)).await;
        let served = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        served.unwrap_or_else(|error| panic!("{ask:?} to {to}: {error}"))
    };
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (next, asks) = (Arc::clone(&next), Arc::clone(asks));
        tasks.spawn(async move {
            let mut found = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(ask) = asks.get(number) else {
                    return found;
                };
                found.push((number, served(ask, squid).await, served(ask, ours).await));
            }
        });
    }
    let mut all: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    all.sort_unstable();
    all.into_iter().map(|(_, a, b)| (a, b)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_serves_nothing_that_squid_refuses() {
    let Some(program) = squid_program() else {
        eprintln!("there is no Squid: nothing is compared");
        return;
    };
    let parent = Parent::start().expect("a listener");
    let (mut opened, mut closed, mut served) = (Vec::new(), Vec::new(), 0);
    for case in &CASES {
        let home = Home::new();
        home.file("passwd", &format!("{USERS}carl:$apr1$x$y\n"));
        home.file("bad.txt", ".bad.test\n# a comment\nwww.staff.test\n");
        home.file("machines.txt", "127.0.0.2\n127.0.0.9 # a comment\n");
        for name in ["passwd", "bad.txt", "machines.txt"] {
            home.mode(name, 0o644);
        }
        let (_squid, squid) = start_squid(case, &program, &home, parent.address);
        let (_proxy, ours, report) = start_import(case, &home, parent.address);
        let asks: Arc<[Ask]> = Ask::all(case).into();
        let decisions = both(&asks, squid, ours, case.name == "accel").await;
        let mut more = 0;
        for (ask, (theirs, ours)) in asks.iter().zip(decisions) {
            served += usize::from(theirs && ours);
            match (theirs, ours) {
                (false, true) => opened.push(format!("{}: {ask:?}", case.name)),
                (true, false) if case.denies_more => more += 1,
                (true, false) => closed.push(format!("{}: {ask:?}", case.name)),
                _ => {}
            }
        }
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        let named = |key: &str| report[key].as_array().map_or(0, Vec::len);
        let is_named = named("closed") + named("missing") > 0 || case.name == "purge";
        assert!(
            more == 0 || is_named,
            "{}: {more} are not named: {report:#}",
            case.name
        );
        assert_eq!(named("open"), 0, "{}: {report:#}", case.name);
    }
    assert!(
        opened.is_empty(),
        "{} are opened:\n{}",
        opened.len(),
        opened.join("\n")
    );
    assert!(
        closed.is_empty(),
        "{} are closed:\n{}",
        closed.len(),
        closed.join("\n")
    );
    assert!(served > 1000, "{served}");
}

/// Requests at one time.
const TASKS: usize = 8;
/// Longest wait for an answer.
const TIME_MAX: Duration = Duration::from_secs(20);
const OPEN_LOOKS: usize = 500;
const OPEN_PAUSE: Duration = Duration::from_millis(20);
const HEAD_MAX: u64 = 64 << 10;
