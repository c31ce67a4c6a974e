//! The access log of a running proxy, read by the programs that people read Squid's log with.
//!
//! Needs Debian's packages `calamaris` and `goaccess`; without them their tests say so and end.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use hashcache_testkit::{Client, Origin, Script, reserved_address};

use super::Home;
use super::proxy_process::Proxy;

/// Lines of [`log_of`].
const LINES: u64 = 212;

/// A log with a line of each kind, in `format`.
async fn log_of(home: &Home, format: &str) -> PathBuf {
    let log = home.path().join(format!("{format}.log"));
    let refusing = refusing_port();
    let flags = [
        "--workers=2".to_owned(),
        format!("--access-log={}", log.display()),
        format!("--log-format={format}"),
        format!("--allow-connect-port={refusing}"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let proxy = Proxy::start(&home.path().join("c.img"), &flags).unwrap();
    let origin = Origin::start(move |request| match request.target() {
        "/must" if request.field("If-None-Match").is_some() => Script::new().close(),
        "/must" => {
            let fields = [
                ("Cache-Control", "max-age=0, must-revalidate"),
                ("ETag", "\"a\""),
            ];
            Script::response(200, &fields, "must")
        }
        "/missing" => Script::response(404, &[("Cache-Control", "no-store")], "none"),
        _ => Script::response(200, &[("Cache-Control", "max-age=600")], "x"),
    });
    let origin = origin.await.unwrap();
    let urls = [
        origin.url("/a?b=c+d"),
        origin.url("/a?b=c+d"),
        origin.url("/missing"),
        origin.url("/must"),
        origin.url("/must"),
        format!("http://127.0.0.1:{refusing}/refused"),
        "http://10.0.0.1/denied".to_owned(),
        format!("http://{}/own", proxy.address()),
    ];
    for url in &urls {
        let mut client = Client::connect(proxy.address()).await.unwrap();
        client.get(url, &[]).await.unwrap();
    }
    let host = format!("Host: 127.0.0.1:{refusing}\r\n");
    let head_of = origin.url("/a?b=c+d");
    for (method, head) in [
        (
            "CONNECT",
            format!("CONNECT 127.0.0.1:{refusing} HTTP/1.1\r\n{host}\r\n"),
        ),
        (
            "CONNECT",
            format!("CONNECT [2001:db8::1]:25 HTTP/1.1\r\n{host}\r\n"),
        ),
        ("GET", "GARBAGE\r\n\r\n".to_owned()),
        ("HEAD", format!("HEAD {head_of} HTTP/1.1\r\n{host}\r\n")),
    ] {
        let mut client = Client::connect(proxy.address()).await.unwrap();
        client.send(head.as_bytes()).await.unwrap();
        client.read_response(method).await.unwrap();
    }
    // Many at once, on all workers.
    let many = (0..200).map(|number| {
        let (at, url) = (proxy.address(), origin.url(&format!("/many/{number}")));
        tokio::spawn(async move {
            let mut client = Client::connect(at).await.unwrap();
            client.get(&url, &[]).await.unwrap().status
        })
    });
    for one in many.collect::<Vec<_>>() {
        assert_eq!(one.await.unwrap(), 200);
    }
    proxy.end_well();
    log
}

/// The result codes of requests for stored responses that must be validated, while their origin
/// answers with `failing`: of a GET, of a GET for a range, and of a HEAD.
async fn codes_of_failed_validation(failing: &'static str) -> Vec<String> {
    let home = Home::new();
    let log = home.path().join("a.log");
    let log_flag = format!("--access-log={}", log.display());
    let flags = [log_flag.as_str(), "--log-format=squid"];
    let proxy = Proxy::start(&home.path().join("c.img"), &flags).unwrap();
    let known = Mutex::new(HashSet::new());
    let origin = Origin::start(move |request| {
        let is_first = known.lock().unwrap().insert(request.target().to_owned());
        let body = if request.method() == "HEAD" { "" } else { "no" };
        let with = |status, control| Script::response(status, &[("Cache-Control", control)], body);
        match failing {
            _ if is_first => {
                let control = ("Cache-Control", "max-age=0, must-revalidate");
                Script::response(200, &[control, ("ETag", "\"a\"")], "must")
            }
            "503 that may not be stored" => with(503, "no-store"),
            "503 that may be stored" => with(503, "max-age=60"),
            "500 without fields" => Script::response(500, &[], body),
            "507" => with(507, "no-store"),
            "a new response" => with(200, "max-age=0, must-revalidate"),
            _ => Script::new().close(),
        }
    });
    let origin = origin.await.unwrap();
    let range = [("Range", "bytes=1-2")];
    for (method, fields) in [("GET", &[][..]), ("GET", &range), ("HEAD", &[])] {
        let url = origin.url(&format!("/{method}{}", fields.len()));
        for (method, fields) in [("GET", &[][..]), (method, fields)] {
            let mut client = Client::connect(proxy.address()).await.unwrap();
            client.request(method, &url, fields).await.unwrap();
            client.read_response(method).await.unwrap();
        }
    }
    proxy.end_well();
    let text = read(&log);
    let codes = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3));
    // A line may follow one of a request that began when its response had been read.
    let of_validations = codes.filter(|code| *code != "TCP_MISS/200");
    of_validations.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_validation_that_fails_has_squids_code_whatever_the_error_is() {
    for failing in [
        "503 that may not be stored",
        "503 that may be stored",
        "500 without fields",
        "507",
        "a connection that ends",
    ] {
        let codes = codes_of_failed_validation(failing).await;
        let is_failed = |code: &String| code.starts_with("TCP_REFRESH_FAIL_ERR/5");
        assert_eq!(codes.len(), 3, "{failing}: {codes:?}");
        assert!(codes.iter().all(is_failed), "{failing}: {codes:?}");
    }
    let codes = codes_of_failed_validation("a new response").await;
    assert!(
        codes.contains(&"TCP_REFRESH_MODIFIED/200".to_owned()),
        "{codes:?}"
    );
}

/// A port that refuses connections.
fn refusing_port() -> u16 {
    reserved_address(Ipv4Addr::LOCALHOST).unwrap().port()
}

fn read(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap()
}

/// The output of `program`; `None`, after a message, if it is not installed.
fn said_by(program: &str, arguments: &[&str], input: &str) -> Option<String> {
    let started = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match started {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: {program} is not installed");
            return None;
        }
        started => started.unwrap(),
    };
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || {
        // A program that does not read to the end has said why.
        let _ = std::io::Write::write_all(&mut stdin, input.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_in_squids_form_have_ten_fields_in_the_order_of_their_times() {
    let home = Home::new();
    let text = read(&log_of(&home, "squid").await);
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines.len() as u64, LINES, "{text}");
    for line in &lines {
        assert_eq!(line.len(), 10, "{line:?}");
    }
    assert!(lines.is_sorted_by_key(|line| line[0]), "{text}");
    let codes: Vec<&str> = lines.iter().map(|line| line[3]).collect();
    for code in [
        "TCP_MISS/200",
        "TCP_MEM_HIT/200",
        "TCP_MISS/404",
        "TCP_MISS/502",
        "TCP_DENIED/403",
        "NONE_NONE/400",
    ] {
        assert!(codes.contains(&code), "{code}: {text}");
    }
    let mut codes = codes.iter();
    assert!(
        codes.any(|code| code.starts_with("TCP_REFRESH_FAIL_ERR/5")),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn calamaris_reads_every_line() {
    let home = Home::new();
    let log = log_of(&home, "squid").await;
    // `-v` names invalid lines, `-p` lines that are not in order.
    let arguments = ["-a", "-n", "-v", "-p", "new"];
    let Some(said) = said_by("calamaris", &arguments, &read(&log)) else {
        return;
    };
    assert!(said.contains("using '-f squid'"), "{said}");
    let count = |what: &str| {
        let line = said.lines().find(|line| line.starts_with(what))?;
        line.split_whitespace().last()?.parse::<u64>().ok()
    };
    assert_eq!(count("lines parsed:"), Some(LINES), "{said}");
    assert_eq!(count("invalid lines:"), Some(0), "{said}");
    assert!(!said.contains("unsorted"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn goaccess_reads_every_line() {
    let squid = [
        "--log-format=%x.%^ %~%L %h %^/%s %b %m %U",
        "--date-format=%s",
        "--time-format=%s",
    ];
    for (format, flags) in [
        ("squid", &squid[..]),
        ("combined", &["--log-format=COMBINED"]),
    ] {
        let home = Home::new();
        let log = log_of(&home, format).await;
        let report = home.path().join("report.json");
        let (log_path, report_path) = (log.to_str().unwrap(), report.to_str().unwrap());
        let own = ["--no-global-config", log_path, "-o", report_path];
        let Some(said) = said_by("goaccess", &[&own, flags].concat(), "") else {
            return;
        };
        let text = std::fs::read(&report).unwrap_or_else(|_| panic!("{format}: {said}"));
        let report: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let general = &report["general"];
        assert_eq!(general["failed_requests"], 0, "{format}: {}", read(&log));
        assert_eq!(general["valid_requests"], LINES, "{format}");
    }
}
