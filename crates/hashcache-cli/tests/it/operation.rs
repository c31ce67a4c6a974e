//! The proxy in operation: refusals at the start and their messages, signals, metrics, packaging.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use hashcache_testkit::{Client, Gate, Origin, Script};
use rustix::process::{Pid, Signal, kill_process};

use crate::proxy_process::Proxy;
use crate::{Home, Outcome};

/// Runs `hashcache proxy` with these flags, which must make it fail before it serves.
pub fn refused(home: &Home, flags: &[&str]) -> Outcome {
    let always = [
        "proxy",
        "--config=/dev/null",
        "--admin=none",
        "--listen=127.0.0.1:0",
    ];
    let outcome = home.hashcache(&[&always, flags].concat(), &[]);
    assert_eq!(outcome.status, Some(2), "{outcome:?}");
    assert_eq!(outcome.stdout, "");
    outcome
}

/// Standard error without logs: one line with the fault, one with the hint.
pub fn told(outcome: &Outcome) -> (&str, &str) {
    let told = outcome.stderr.lines();
    let mut told = told.skip_while(|line| !line.starts_with("hashcache: "));
    let lines = (told.next(), told.next(), told.next());
    let (Some(what), Some(hint), None) = lines else {
        panic!("{outcome:?}")
    };
    let hint = hint.strip_prefix("hint: ").expect("a hint");
    (what, hint)
}

#[test]
fn a_file_that_cannot_be_allocated_is_refused_and_not_left_behind() {
    let home = Home::new();
    // Stands for a full disk, which would need root: the file may have 4 MiB and the cache wants
    // more.
    let script = "trap '' XFSZ; ulimit -f 8192; exec \"$0\" \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_hashcache"), "proxy"])
        .args(["--config=/dev/null", "--admin=none", "--listen=127.0.0.1:0"])
        .args(["--cache=cache.img", "--cache-size=64MiB"])
        .current_dir(home.path())
        .output()
        .expect("a shell");
    let outcome = Outcome::from(output);
    assert_eq!(outcome.status, Some(2), "{outcome:?}");
    let (what, hint) = told(&outcome);
    assert!(
        what.starts_with("hashcache: cannot open cache.img: "),
        "{what}"
    );
    assert!(hint.contains("`--cache-size SIZE`"), "{hint}");
    assert!(hint.contains("`--cache PATH`"), "{hint}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn a_directory_that_was_named_is_not_made() {
    let home = Home::new();
    let outcome = refused(&home, &["--cache=disk/cache.img"]);
    let (what, hint) = told(&outcome);
    assert_eq!(
        what,
        "hashcache: cannot open disk/cache.img: directory disk does not exist"
    );
    assert!(hint.contains("mount"), "{hint}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn what_is_no_cache_is_refused_with_what_to_do_and_not_changed() {
    let home = Home::new();
    let letter = home.file("letter", "Dear Sir or Madam");
    for (flags, expected) in [
        (
            ["--cache=letter", "--cache-size=1GiB"],
            "not a HashCache store",
        ),
        (["--cache=.", "--cache-size=1GiB"], "Is a directory"),
        (
            ["--cache=/dev/null", "--cache-size=1GiB"],
            "neither a file nor",
        ),
        (
            ["--cache=letter/c.img", "--cache-size=1GiB"],
            "Not a directory",
        ),
        (["--cache=new", "--cache-size=4KiB"], "too small"),
    ] {
        let outcome = refused(&home, &flags);
        let (what, hint) = told(&outcome);
        assert!(what.starts_with("hashcache: cannot open "), "{what}");
        assert!(what.contains(expected), "{what}");
        assert!(!hint.is_empty(), "{what}");
    }
    assert_eq!(fs::read(letter).unwrap(), b"Dear Sir or Madam");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
}

#[test]
fn a_port_or_a_log_that_cannot_be_had_is_named() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let listen = format!("--listen={address}");
    let cache = ["--cache=c.img", "--cache-size=32MiB", &listen];
    let outcome = refused(&home, &cache);
    let (what, hint) = told(&outcome);
    assert!(
        what.contains(&format!("cannot listen on {address}")),
        "{what}"
    );
    assert!(hint.contains("--listen"), "{hint}");
    let log = ["--cache=c.img", "--access-log=no/such/access.log"];
    let outcome = refused(&home, &log);
    let (what, _) = told(&outcome);
    assert!(
        what.contains("access log to no/such/access.log: "),
        "{what}"
    );
}

#[test]
fn one_cache_named_twice_is_refused() {
    let outcome = refused(&Home::new(), &["--cache=a", "--memory=1GiB", "--cache=a"]);
    let fault = "hashcache: --cache: `cache` has a twice";
    assert!(outcome.stderr.starts_with(fault), "{outcome:?}");
}

#[test]
fn several_caches_are_one_store_and_a_stranger_is_refused() {
    let home = Home::new();
    let both = ["--config=/dev/null", "--cache=d.img"];
    Running::start(&home, &both).end();
    for (file, device) in [
        ("c.img", "0, with 1 (32MiB)"),
        ("d.img", "1, with 0 (32MiB)"),
    ] {
        let check = home.hashcache(&["check", file], &[]);
        assert_eq!(check.status, Some(0), "{check:?}");
        let inspect = home.hashcache(&["inspect", file], &[]);
        assert!(inspect.stdout.contains(device), "{inspect:?}");
    }
    Running::start(&home, &both).end();
    fs::rename(home.path().join("c.img"), home.path().join("old.img")).unwrap();
    Running::start(&home, &["--config=/dev/null"]).end();
    let strangers = refused(&home, &["--cache=c.img", "--cache=d.img"]);
    let (what, hint) = told(&strangers);
    assert!(
        what.ends_with("d.img: it belongs to another cache than c.img"),
        "{what}"
    );
    assert!(hint.contains("of one cache"), "{hint}");
}

/// A running proxy whose output is recorded.
pub struct Running {
    child: Child,
    said: BufReader<ChildStderr>,
    pub listen: SocketAddr,
    pub admin: SocketAddr,
}

impl Running {
    pub fn start(home: &Home, flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hashcache"))
            .args(["proxy", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"])
            .args(["--cache=c.img", "--cache-size=32MiB"])
            .arg("--allow-destination=127.0.0.0/8")
            .args(flags)
            .current_dir(home.path())
            .env_clear()
            .env("HOME", home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command was built with the tests");
        let said = BufReader::new(child.stderr.take().expect("it was asked to be piped"));
        let stdout = child.stdout.take().expect("it was asked to be piped");
        let mut greeting = String::new();
        let read = BufReader::new(stdout).read_line(&mut greeting);
        assert!(
            read.is_ok() && greeting.contains("next: "),
            "{greeting:?} {read:?}"
        );
        let (_, places) = greeting.split_once(" on ").expect("places");
        let mut addresses = places.split("://").skip(1).map(|rest| {
            let end = rest.find([' ', ',', ';']).unwrap_or(rest.len());
            rest[..end].parse().expect("an address")
        });
        let listen = addresses.next().expect("where clients are accepted");
        let admin = addresses.next().expect("where figures are");
        Self {
            child,
            said,
            listen,
            admin,
        }
    }

    /// The next line of its output that contains `part`.
    pub fn says(&mut self, part: &str) -> String {
        line_with(&mut self.said, part)
    }

    /// All that it says up to the next line that contains `part`.
    pub fn says_up_to(&mut self, part: &str) -> String {
        text_up_to(&mut self.said, part)
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process has a number"), signal).expect("a process that runs");
    }

    /// Stops it with a signal and waits, so that everything is written.
    pub fn end(mut self) {
        self.signal(Signal::TERM);
        assert!(self.child.wait().expect("a child").success());
    }

    pub async fn figure(&self, name: &str) -> String {
        let mut client = Client::connect(self.admin)
            .await
            .expect("the admin listener");
        let metrics = client
            .get("/metrics", &[("Host", "localhost")])
            .await
            .expect("an answer");
        let text = String::from_utf8(metrics.body).expect("metrics are text");
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
            .to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line_with(said: &mut BufReader<ChildStderr>, part: &str) -> String {
    let all = text_up_to(said, part);
    all.lines().last().unwrap_or_default().to_owned()
}

fn text_up_to(said: &mut BufReader<ChildStderr>, part: &str) -> String {
    let mut all = String::new();
    loop {
        let before = all.len();
        let read = said.read_line(&mut all).expect("what it says is text");
        assert!(read > 0, "it ended without {part:?}: {all}");
        if all[before..].contains(part) {
            return all;
        }
    }
}

#[test]
fn the_greeting_is_the_first_thing_said_and_is_on_standard_output() {
    let home = Home::new();
    for (log, is_on_stdout) in [("none", true), ("-", false)] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hashcache"))
            .args([
                "proxy",
                "--config=/dev/null",
                "--listen=127.0.0.1:0",
                "--admin=none",
            ])
            .args(["--cache=c.img", "--cache-size=32MiB"])
            .arg(format!("--access-log={log}"))
            .current_dir(home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command was built with the tests");
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let mut line = String::new();
        let read = if is_on_stdout {
            BufReader::new(stdout).read_line(&mut line)
        } else {
            BufReader::new(stderr).read_line(&mut line)
        };
        // Before the first request.
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(read.is_ok(), "{read:?}");
        assert!(
            line.starts_with("hashcache: proxy on http://127.0.0.1:"),
            "{line}"
        );
        assert!(line.contains("; next: export http_proxy="), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_pages_are_not_to_be_had_through_the_proxy() {
    let home = Home::new();
    let flags = ["--config=/dev/null", "--allow-connect-port=1-65535"];
    let proxy = Running::start(&home, &flags);
    let port = proxy.admin.port();
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "127.9.9.9",
        "0.0.0.0",
        "[::1]",
    ] {
        for (method, target) in [
            ("GET", format!("http://{host}:{port}/stats")),
            ("POST", format!("http://{host}:{port}/")),
            ("CONNECT", format!("{host}:{port}")),
        ] {
            let mut client = Client::connect(proxy.listen).await.unwrap();
            let head = format!("{method} {target} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
            client.send(head.as_bytes()).await.unwrap();
            let answer = client.read_response(method).await.unwrap();
            assert_eq!(answer.status, 421, "{head}");
        }
    }
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accelerated_site_answers_to_its_own_names_alone() {
    let origin = Origin::start(|_| Script::response(200, &[], "the site"))
        .await
        .unwrap();
    let home = Home::new();
    let site = format!("--accelerate=http://{}", origin.address());
    let status = async |proxy: &Running, host: &str| {
        let mut client = Client::connect(proxy.listen).await.unwrap();
        client.get("/", &[("Host", host)]).await.unwrap().status
    };
    let flags = [
        "--config=/dev/null",
        &site,
        "--accelerate-host=www.example.net,192.0.2.1",
    ];
    let proxy = Running::start(&home, &flags);
    for host in ["www.example.net", "WWW.example.net:8080", "192.0.2.1"] {
        assert_eq!(status(&proxy, host).await, 200, "{host}");
    }
    for host in ["example.net", "192.0.2.2", "evil.test"] {
        assert_eq!(status(&proxy, host).await, 421, "{host}");
    }
    proxy.end();
    let proxy = Running::start(&home, &["--config=/dev/null", &site]);
    assert_eq!(status(&proxy, "whatever.test").await, 200);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_go_to_the_client_that_caused_the_fetch_and_are_not_stored() {
    let home = Home::new();
    let proxy = Running::start(&home, &["--config=/dev/null"]);
    let fields = [
        ("Cache-Control", "max-age=60"),
        ("Trailer", "X-Sum"),
        ("Transfer-Encoding", "chunked"),
    ];
    let whole = Script::new().head(200, &fields).chunk("hello");
    let whole = whole.bytes("0\r\nX-Sum: 17\r\nSet-Cookie: a=b\r\n\r\n");
    let origin = Origin::start(move |_| whole.clone()).await.unwrap();
    let ask = async || {
        let mut client = Client::connect(proxy.listen).await.unwrap();
        let fields = [("TE", "trailers"), ("Connection", "TE")];
        client.get(&origin.url("/"), &fields).await.unwrap()
    };
    let first = ask().await;
    assert_eq!(first.body, b"hello");
    let [(name, value)] = first.trailers.as_slice() else {
        panic!("{first:?}")
    };
    assert_eq!(
        (name.to_ascii_lowercase().as_str(), value.as_str()),
        ("x-sum", "17")
    );
    let second = ask().await;
    assert_eq!(
        (second.body.as_slice(), second.trailers.len()),
        (&b"hello"[..], 0)
    );
    assert_eq!(origin.requests().len(), 1);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn content_of_unknown_length_is_passed_on_when_it_becomes_too_large() {
    let home = Home::new();
    let proxy = Running::start(&home, &["--config=/dev/null", "--max-object-size=1MiB"]);
    let fields = [
        ("Cache-Control", "max-age=60"),
        ("Transfer-Encoding", "chunked"),
    ];
    let chunked = |bytes: usize| {
        let chunk = [b"10000\r\n", &[b'x'; 1 << 16][..], b"\r\n"].concat();
        let chunks = chunk.repeat(bytes >> 16);
        Script::new()
            .head(200, &fields)
            .bytes(chunks)
            .bytes("0\r\n\r\n")
    };
    let (small, large) = (chunked(1 << 20), chunked(3 << 20));
    let origin = Origin::start(move |request| {
        if request.target().ends_with("/small") {
            small.clone()
        } else {
            large.clone()
        }
    });
    let origin = origin.await.unwrap();
    let mut client = Client::connect(proxy.listen).await.unwrap();
    for (path, bytes, asked) in [("/small", 1 << 20, 1), ("/large", 3 << 20, 2)] {
        let before = origin.requests().len();
        for _ in 0..2 {
            let response = client.get(&origin.url(path), &[]).await.unwrap();
            assert_eq!(
                (response.status, response.body.len()),
                (200, bytes),
                "{path}"
            );
        }
        assert_eq!(origin.requests().len() - before, asked, "{path}");
    }
    let name = "hashcache_limit_hits_total{limit=\"max_object_size\"}";
    assert_eq!(proxy.figure(name).await, "2");
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_counted_while_a_transfer_is_under_way() {
    let home = Home::new();
    let proxy = Running::start(&home, &["--config=/dev/null", "--max-object-size=1MiB"]);
    const BYTES: usize = 3 << 20;
    let go_on = Gate::new();
    let answer = |cache_control: &str| {
        let length = (2 * BYTES).to_string();
        let fields = [
            ("Cache-Control", cache_control),
            ("Content-Length", &*length),
        ];
        let half = Script::new().head(200, &fields).bytes(vec![b'x'; BYTES]);
        half.wait(&go_on).bytes(vec![b'x'; BYTES])
    };
    let large = answer("max-age=60");
    let origin = Origin::start(move |_| large.clone()).await.unwrap();
    let mut client = Client::connect(proxy.listen).await.unwrap();
    let host = origin.address().to_string();
    let head = format!("GET {} HTTP/1.1\r\nHost: {host}\r\n\r\n", origin.url("/"));
    client.send(head.as_bytes()).await.unwrap();
    let reading = tokio::spawn(async move { client.read_response("GET").await });
    for figure in ["client_bytes", "origin_bytes", "origin_body_bytes"] {
        let name = format!("hashcache_{figure}_total");
        while proxy.figure(&name).await.parse::<usize>().unwrap() < BYTES - (256 << 10) {
            tokio::task::yield_now().await;
        }
    }
    go_on.open();
    let whole = reading.await.unwrap().unwrap();
    assert_eq!(whole.body.len(), 2 * BYTES);
    let status = whole.head.field("Cache-Status").unwrap();
    assert!(status.contains("detail=too-large"), "{status}");
    // And each only once.
    let exact = |name: &'static str| {
        let (proxy, name) = (&proxy, format!("hashcache_{name}_total"));
        async move { proxy.figure(&name).await.parse::<usize>().unwrap() }
    };
    while exact("client_bytes").await < 2 * BYTES {
        tokio::task::yield_now().await;
    }
    assert_eq!(exact("origin_body_bytes").await, 2 * BYTES);
    assert!(exact("client_bytes").await < 2 * BYTES + 1_000);
    proxy.end();
}

#[test]
fn a_cache_that_was_damaged_cut_or_never_made_is_told_apart_by_check() {
    let home = Home::new();
    Running::start(&home, &["--config=/dev/null"]).end();
    let path = home.path().join("c.img");
    let check = || home.hashcache(&["check", "c.img"], &[]);
    let well = check();
    assert_eq!(well.status, Some(0), "{well:?}");
    assert!(well.stdout.contains("no damage"), "{well:?}");

    let mut bytes = fs::read(&path).unwrap();
    bytes[4096 + 500] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let damaged = check();
    assert_eq!(damaged.status, Some(1), "{damaged:?}");
    assert!(
        damaged.stdout.contains("superblock B is damaged"),
        "{damaged:?}"
    );

    bytes[4096 + 500] ^= 1;
    bytes.truncate(bytes.len() - 12_345);
    fs::write(&path, &bytes).unwrap();
    let short = "the file was cut: 12345 bytes of 32MiB are missing";
    let cut = check();
    assert_eq!(cut.status, Some(1), "{cut:?}");
    assert!(told(&cut).0.ends_with(short), "{cut:?}");
    let cut = refused(&home, &["--cache=c.img"]);
    let (what, hint) = told(&cut);
    assert!(
        what.ends_with(short) && hint.contains("remove the file"),
        "{cut:?}"
    );

    fs::write(&path, b"").unwrap();
    let empty = check();
    assert_eq!(empty.status, Some(2), "{empty:?}");
    assert!(
        empty.stderr.contains("c.img: the file is empty"),
        "{empty:?}"
    );
}

#[test]
fn a_token_file_that_will_not_do_is_refused_and_another_one_needs_a_restart() {
    let home = Home::new();
    home.file("short", "five5");
    home.file("well", "a-token-of-many-letters");
    let cache = ["--cache=c.img", "--cache-size=32MiB"];
    for (name, why) in [("short", "fewer than 16 bytes"), ("none", "No such file")] {
        let token = format!("--admin-token-file={name}");
        let outcome = refused(&home, &[&cache[..], &[&token]].concat());
        let (what, hint) = told(&outcome);
        assert!(what.contains(name) && what.contains(why), "{what}");
        assert!(hint.contains("16 bytes"), "{hint}");
    }
    let config = home.file("h.toml", "admin_token_file = \"well\"");
    let mut proxy = Running::start(&home, &["--config=h.toml"]);
    fs::write(&config, "admin_token_file = \"other\"").unwrap();
    proxy.signal(Signal::HUP);
    let line = proxy.says("need a restart");
    assert!(line.contains("admin_token_file"), "{line}");
    proxy.end();
}

#[test]
fn a_reload_says_the_key_that_was_meant_and_what_needs_a_restart() {
    let home = Home::new();
    let config = home.file("h.toml", "");
    let mut proxy = Running::start(&home, &["--config=h.toml"]);
    fs::write(&config, "\nmax_objekt_size = \"1MiB\"\n").unwrap();
    proxy.signal(Signal::HUP);
    let line = proxy.says("configuration not reloaded");
    assert!(
        line.contains("h.toml:2: unknown key `max_objekt_size`"),
        "{line}"
    );
    assert!(line.contains("did you mean `max_object_size`?"), "{line}");
    fs::write(&config, "max_object_size = \"1MiB\"\nmemory = \"65MiB\"\n").unwrap();
    proxy.signal(Signal::HUP);
    let line = proxy.says("need a restart");
    assert!(line.contains("\"memory\""), "{line}");
    proxy.says("configuration reloaded");
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_and_idle_connections_to_origins_are_told_apart() {
    let home = Home::new();
    let proxy = Running::start(&home, &["--config=/dev/null"]);
    let go_on = Gate::new();
    let waits = Script::new().wait(&go_on).then(Script::response(
        200,
        &[("Cache-Control", "no-store")],
        "x",
    ));
    let origin = Origin::start(move |_| waits.clone()).await.unwrap();
    let mut client = Client::connect(proxy.listen).await.unwrap();
    let host = origin.address().to_string();
    let head = format!("GET {} HTTP/1.1\r\nHost: {host}\r\n\r\n", origin.url("/"));
    client.send(head.as_bytes()).await.unwrap();
    origin.wait_for_requests(1).await;
    let busy = "hashcache_upstream_connections{state=\"busy\"}";
    let idle = "hashcache_upstream_connections{state=\"idle\"}";
    assert_eq!(proxy.figure(busy).await, "1");
    assert_eq!(proxy.figure(idle).await, "0");
    go_on.open();
    assert_eq!(client.read_response("GET").await.unwrap().body, b"x");
    // The client may have the end of the response before its connection is idle again.
    while proxy.figure(idle).await != "1" {
        tokio::task::yield_now().await;
    }
    assert_eq!(proxy.figure(busy).await, "0");
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_usr1_lines_go_to_a_new_file_and_name_networks_if_asked() {
    let home = Home::new();
    let flags = [
        "--config=/dev/null",
        "--access-log=access.log",
        "--log-anonymize",
    ];
    let proxy = Running::start(&home, &flags);
    let (log, old) = (home.path().join("access.log"), home.path().join("old.log"));
    let ask = async |path: &str| {
        let mut client = Client::connect(proxy.listen).await.unwrap();
        // A page of the proxy itself: it needs no origin.
        client.get(path, &[("Host", "localhost")]).await.unwrap();
    };
    ask("/first").await;
    // The log entry follows the response; it must be written before the signal is sent.
    while !read(&log).contains("/first") {
        tokio::task::yield_now().await;
    }
    fs::rename(&log, &old).unwrap();
    proxy.signal(Signal::USR1);
    while !log.exists() {
        tokio::task::yield_now().await;
    }
    ask("/second").await;
    proxy.end();
    let (old, new) = (read(&old), read(&log));
    assert!(old.contains("/first") && !old.contains("/second"), "{old}");
    assert!(new.contains("/second") && !new.contains("/first"), "{new}");
    for line in old.lines().chain(new.lines()) {
        assert!(
            line.contains(" 127.0.0.0 ") && !line.contains("127.0.0.1 "),
            "{line}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_it_drains_answers_go_on_and_new_clients_are_refused_by_the_system() {
    let home = Home::new();
    let mut proxy = Running::start(&home, &["--config=/dev/null"]);
    let go_on = Gate::new();
    let waits = Script::new().wait(&go_on).then(Script::response(
        200,
        &[("Cache-Control", "no-store")],
        "x",
    ));
    let origin = Origin::start(move |_| waits.clone()).await.unwrap();
    let mut client = Client::connect(proxy.listen).await.unwrap();
    let host = origin.address().to_string();
    let head = format!("GET {} HTTP/1.1\r\nHost: {host}\r\n\r\n", origin.url("/"));
    client.send(head.as_bytes()).await.unwrap();
    origin.wait_for_requests(1).await;
    proxy.signal(Signal::TERM);
    proxy.says("stopping");
    // The threads close their listeners a moment after the message.
    let refused = loop {
        match tokio::net::TcpStream::connect(proxy.listen).await {
            Ok(_) => tokio::task::yield_now().await,
            // A connection that only the kernel has accepted is reset when the last listener
            // closes.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    go_on.open();
    assert_eq!(client.read_response("GET").await.unwrap().body, b"x");
    assert!(proxy.child.wait().expect("a child").success());
}

#[test]
fn a_connection_that_was_made_before_a_stop_may_make_one_request() {
    for scheme in ["http", "h2c"] {
        let home = Home::new();
        let listen = format!("--listen={scheme}://127.0.0.1:0");
        let mut proxy = Proxy::start(&home.path().join("cache.img"), &[&listen]).unwrap();
        let address = proxy.second_address().unwrap();
        let mut client = std::net::TcpStream::connect(address).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        // Another one has its response, so the proxy has accepted the first.
        let mut other = std::net::TcpStream::connect(address).unwrap();
        let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n");
        other.write_all(request.as_bytes()).unwrap();
        other.read_exact(&mut [0; 12]).unwrap();
        let pid = i32::try_from(proxy.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.unwrap(), Signal::TERM).unwrap();
        // The listener is closed when the stop has begun.
        while std::net::TcpStream::connect(address).is_ok() {
            std::thread::yield_now();
        }
        client.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        assert!(
            response.starts_with("HTTP/1.1 200 "),
            "{scheme}: {response}"
        );
        let head = response.split("\r\n\r\n").next().unwrap();
        assert!(
            head.to_lowercase().contains("connection: close"),
            "{scheme}: {head}"
        );
        proxy.stop();
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A file of `packaging/`.
fn packaged(name: &str) -> String {
    read(
        &Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../packaging")
            .join(name),
    )
}

#[test]
fn the_unit_keeps_cache_and_logs_where_it_may_write() {
    let unit = packaged("systemd/hashcache.service");
    let value = |key: &str| {
        let mut lines = unit.lines();
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    };
    assert_eq!(value("ExecStart"), Some("/usr/bin/hashcache proxy"));
    assert_eq!(value("ExecReload"), Some("/bin/sh -c 'kill -HUP $MAINPID'"));
    // A socket unit without this address would keep the default settings from starting.
    let socket = packaged("systemd/hashcache.socket");
    let streams: Vec<&str> = socket
        .lines()
        .filter_map(|line| line.strip_prefix("ListenStream="))
        .collect();
    let example = packaged("hashcache.toml");
    assert!(example.contains(&format!("\n#listen = {streams:?}\n")));
    let (cache, home) = value("Environment").unwrap().split_once('=').unwrap();
    assert_eq!(cache, "XDG_CACHE_HOME");
    // What the proxy makes of it when nobody is root, is what systemd lets it write to.
    let directory = format!("{home}/{}", value("CacheDirectory").unwrap());
    assert_eq!(directory, "/var/cache/hashcache");
    let logs = format!("/var/log/{}", value("LogsDirectory").unwrap());
    let rotation = packaged("logrotate/hashcache");
    assert!(
        rotation.starts_with(&format!("{logs}/*.log {{\n")),
        "{rotation}"
    );
    let (user, group) = (value("User").unwrap(), value("Group").unwrap());
    assert!(
        rotation.contains(&format!("\tsu {user} {group}\n")),
        "{rotation}"
    );
    assert!(
        rotation.contains("--signal=USR1 hashcache.service"),
        "{rotation}"
    );
}
