//! Proxies that are peers of each other, each with a log, and an origin.
//!
//! Every proxy has an address of its own, because peers are recognised by their addresses, and the
//! connections that a proxy makes on this machine are from 127.0.0.1. So the proxy that clients use
//! is at 127.0.0.1, and its siblings are at 127.0.0.2 and 127.0.0.3.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hashcache_testkit::{Client, Origin, Response, Script, reserved_address};
use rustix::process::{Pid, Signal, kill_process};

use crate::Home;
use crate::proxy_process::Proxy;

/// The addresses of a proxy.
#[derive(Clone, Copy)]
pub struct Place {
    pub http: SocketAddr,
    pub icp: SocketAddr,
    pub htcp: SocketAddr,
}

impl Place {
    /// Free ports at 127.0.0.`host`.
    pub fn at(host: u8) -> Self {
        let host = Ipv4Addr::new(127, 0, 0, host);
        let any = SocketAddr::from((host, 0));
        Self {
            http: reserved_address(host).unwrap(),
            icp: UdpSocket::bind(any).unwrap().local_addr().unwrap(),
            htcp: UdpSocket::bind(any).unwrap().local_addr().unwrap(),
        }
    }

    /// A configuration: where it speaks ICP and HTCP, and these peers.
    fn configuration(&self, peers: &str) -> String {
        let Self { icp, htcp, .. } = self;
        format!("icp = \"{icp}\"\nhtcp = \"{htcp}\"\n{peers}")
    }

    pub fn sibling(&self, more: &str) -> String {
        format!(
            "[[peer]]\nname = \"s{0}\"\nkind = \"sibling\"\nurl = \"http://{0}\"\n\
             icp = {1}\n{more}\n",
            self.http,
            self.icp.port()
        )
    }

    /// A sibling that speaks HTCP alone.
    pub fn htcp_sibling(&self, more: &str) -> String {
        format!(
            "[[peer]]\nname = \"s{0}\"\nkind = \"sibling\"\nurl = \"http://{0}\"\n\
             htcp = {1}\n{more}\n",
            self.http,
            self.htcp.port()
        )
    }
}

/// A proxy with a log.
pub struct CacheBox {
    pub proxy: Proxy,
    pub log: PathBuf,
    configuration: PathBuf,
}

impl CacheBox {
    pub fn start(home: &Home, place: Place, peers: &str) -> Self {
        let name = format!("box{}", place.http.port());
        let configuration = home.file(&format!("{name}.toml"), &place.configuration(peers));
        let log = home.path().join(format!("{name}.log"));
        let proxy = started(home, place, &configuration, &log);
        Self {
            proxy,
            log,
            configuration,
        }
    }

    /// Stops it, so that everything is on disk and nothing in memory, and starts it again.
    pub fn restart(self, home: &Home, place: Place) -> Self {
        self.proxy.end_well();
        Self {
            proxy: started(home, place, &self.configuration, &self.log),
            ..self
        }
    }

    /// Has it read its configuration again, with these UDP ports and peers, and waits for that.
    pub async fn reload(&self, place: Place, peers: &str) {
        let before = self.reloads();
        fs::write(&self.configuration, place.configuration(peers)).unwrap();
        let id = Pid::from_raw(self.proxy.pid().try_into().unwrap()).unwrap();
        kill_process(id, Signal::HUP).unwrap();
        for _ in 0..400 {
            if self.reloads() > before {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("not reloaded: {}", self.proxy.said());
    }

    fn reloads(&self) -> usize {
        self.proxy.said().matches("configuration reloaded").count()
    }

    pub async fn get(&self, url: &str) -> Response {
        self.get_with(url, &[]).await
    }

    pub async fn get_with(&self, url: &str, fields: &[(&str, &str)]) -> Response {
        let mut client = Client::connect(self.proxy.address()).await.unwrap();
        client.get(url, fields).await.unwrap()
    }

    /// The last line of the log, once it has `lines` lines.
    pub async fn line(&self, lines: usize) -> String {
        for _ in 0..200 {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            if text.lines().count() >= lines {
                return text.lines().last().unwrap().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{lines} lines are not in {}", self.log.display());
    }

    /// The last line of the log that has all of these texts, once there is one.
    pub async fn line_with(&self, texts: &[&str]) -> String {
        for _ in 0..200 {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let has_all = |line: &&str| texts.iter().all(|text| line.contains(text));
            if let Some(line) = log.lines().rfind(has_all) {
                return line.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("no line with {texts:?} in {}", self.log.display());
    }

    /// The last line of the log about a URL, which was asked for once.
    pub async fn line_about(&self, url: &str) -> String {
        self.line_with(&[&format!(" {url} ")]).await
    }

    /// Stores `count` objects of `origin`, and returns their URLs.
    pub async fn store(&self, origin: &Origin, path: &str, count: usize) -> Vec<String> {
        let urls: Vec<_> = (0..count)
            .map(|n| origin.url(&format!("{path}{n}")))
            .collect();
        for url in &urls {
            assert_eq!(self.get(url).await.status, 200);
        }
        urls
    }

    /// Asks for objects that a sibling has, until the log says `wanted` of one, and returns that
    /// URL, the response, and how many came from the origin before: a sibling that is late by 50 ms
    /// is not waited for, and on a busy machine it can be.
    pub async fn ask_until<'a>(
        &self,
        urls: &'a [String],
        fields: &[(&str, &str)],
        wanted: &str,
    ) -> (&'a str, Response, usize) {
        for (late, url) in urls.iter().enumerate() {
            let answer = self.get_with(url, fields).await;
            assert_eq!(answer.status, 200);
            let line = self.line_about(url).await;
            if line.contains(wanted) {
                return (url, answer, late);
            }
            assert!(line.contains("HIER_DIRECT/"), "{line}");
            // After three in a row, probes have to find it well again.
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        panic!("none of {} objects came from the sibling", urls.len());
    }

    /// A counter of `/metrics`; 0 if it is not there.
    pub fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.proxy.admin()).unwrap();
        let host = self.proxy.admin();
        let head = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |value| value.trim().parse().unwrap())
    }

    pub async fn wait_for_metric(&self, name: &str, least: u64) {
        for _ in 0..400 {
            if self.metric(name) >= least {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{name} is not {least}, but {}", self.metric(name));
    }
}

pub async fn origin() -> Origin {
    let fields = [("Cache-Control", "max-age=600")];
    let origin = Origin::start(move |request| {
        let body = format!("the origin's {}", request.target());
        Script::response(200, &fields, body)
    });
    origin.await.unwrap()
}

fn started(home: &Home, place: Place, configuration: &Path, log: &Path) -> Proxy {
    let name = format!("box{}", place.http.port());
    let flags = [
        format!("--config={}", configuration.display()),
        format!("--access-log={}", log.display()),
        format!("--name={name}"),
        format!("--listen={}", place.http),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Proxy::start(&home.path().join(format!("{name}.img")), &flags).unwrap()
}
