//! The origin of the campaign and the requests to it through proxies.
//!
//! Used by all cases. Each object has a name of its own and content that follows from the name, so
//! a response is compared byte by byte, and the origin's record shows how often it was asked.

use std::net::SocketAddr;
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{BodyEnd, Client, Origin, RawRequest, Response, Script, content};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// An origin of cacheable objects.
#[derive(Debug)]
pub struct Site {
    origin: Origin,
    sizes: Vec<usize>,
}

impl Site {
    /// Starts it; a short campaign has few objects.
    pub async fn start(is_short: bool) -> anyhow::Result<Self> {
        let origin = Origin::start(|request| answer(request.target()));
        let mut sizes = vec![1, 1_000, 100_000];
        if !is_short {
            sizes.extend((1..40).map(|n| n * 1_999));
            sizes.push(3_000_000);
        }
        Ok(Self {
            origin: origin.await.context("cannot start an origin")?,
            sizes,
        })
    }

    /// The port of the origin.
    pub fn address(&self) -> SocketAddr {
        self.origin.address()
    }

    /// The URLs of the objects of a case. `kind` is a word that others can see in the URL.
    pub fn urls(&self, case: &str, kind: &str) -> Vec<String> {
        let sizes = self.sizes.iter();
        let paths = sizes.map(|size| format!("/{}/{kind}/{size}", case.replace(' ', "-")));
        paths.map(|path| self.origin.url(&path)).collect()
    }

    /// The URL of one object, with a size and a kind.
    pub fn url(&self, case: &str, kind: &str) -> String {
        let path = format!("/{}/{kind}/1000", case.replace(' ', "-"));
        self.origin.url(&path)
    }

    /// What the origin was asked about a URL.
    pub fn requests(&self, url: &str) -> Vec<RawRequest> {
        let mut requests = self.origin.requests();
        requests.retain(|request| self.origin.url(request.target()) == url);
        requests
    }

    /// An error unless the origin was asked so often about a URL.
    pub fn expect_requests(&self, url: &str, count: usize) -> anyhow::Result<()> {
        let asked = self.requests(url).len();
        ensure!(
            asked == count,
            "the origin was asked {asked} times, not {count}: {url}"
        );
        Ok(())
    }

    /// What anybody did wrong in a request to the origin.
    pub fn complaints(&self) -> Vec<String> {
        self.origin.complaints()
    }

    /// Fetches a URL through a proxy and compares the content.
    pub async fn fetch(
        &self,
        proxy: SocketAddr,
        url: &str,
        fields: &[(&str, &str)],
    ) -> anyhow::Result<Response> {
        let response = ask(proxy, url, fields).await?;
        check(url, &response).with_context(|| format!("{url} through {proxy}"))?;
        Ok(response)
    }

    /// Makes the origin's objects of a case known to one cache, and asks another one for them: the
    /// origin serves each once.
    pub async fn fetch_known(
        &self,
        case: &str,
        knows: SocketAddr,
        asks: SocketAddr,
    ) -> anyhow::Result<Vec<String>> {
        let urls = self.urls(case, KNOWN);
        for url in &urls {
            self.fetch(knows, url, &[]).await?;
        }
        for url in &urls {
            self.fetch(asks, url, &[]).await?;
            self.expect_requests(url, 1)?;
        }
        Ok(urls)
    }

    /// Fetches a URL through a tunnel of a proxy; returns the proxy's answer to CONNECT.
    pub async fn fetch_in_tunnel(
        &self,
        proxy: SocketAddr,
        url: &str,
        fields: &[(&str, &str)],
    ) -> anyhow::Result<Response> {
        let authority = self.address().to_string();
        let path = url.strip_prefix(&self.origin.url(""));
        let path = path.context("another origin's URL")?;
        let expected = expected(path).context("not an object")?;
        let fetched = async {
            let mut client = Client::connect(proxy).await?;
            client.request("CONNECT", &authority, fields).await?;
            let response = client.read_response("CONNECT").await?;
            if response.status != 200 {
                return Ok(response);
            }
            let request = format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            let mut socket = client.into_socket();
            socket.write_all(request.as_bytes()).await?;
            let mut got = vec![];
            let mut buffer = [0; 4096];
            while !got.ends_with(&expected) {
                let read = socket.read(&mut buffer).await?;
                ensure!(read > 0, "the tunnel ended after {} bytes", got.len());
                got.extend_from_slice(&buffer[..read]);
            }
            Ok(response)
        };
        let fetched = tokio::time::timeout(super::ANSWER_TIME, fetched).await;
        fetched.with_context(|| format!("the tunnel of {proxy} hangs"))?
    }
}

/// A GET through a proxy, on a connection of its own.
pub async fn ask(
    proxy: SocketAddr,
    url: &str,
    fields: &[(&str, &str)],
) -> anyhow::Result<Response> {
    send("GET", proxy, url, fields).await
}

/// A request without content through a proxy, on a connection of its own.
pub async fn send(
    method: &str,
    proxy: SocketAddr,
    url: &str,
    fields: &[(&str, &str)],
) -> anyhow::Result<Response> {
    let asked = async {
        let mut client = Client::connect(proxy).await?;
        client.request(method, url, fields).await?;
        client.read_response(method).await
    };
    let response = tokio::time::timeout(super::ANSWER_TIME, asked).await;
    response
        .with_context(|| format!("no answer from {proxy} about {url}"))?
        .with_context(|| format!("cannot ask {proxy} about {url}"))
}

fn check(url: &str, response: &Response) -> anyhow::Result<()> {
    ensure!(response.status == 200, "status {}", response.status);
    ensure!(
        response.end != BodyEnd::Truncated,
        "the content was cut off"
    );
    ensure!(response.complaints.is_empty(), "{:?}", response.complaints);
    let path = url
        .strip_prefix("http://")
        .and_then(|rest| rest.find('/').map(|at| &rest[at..]));
    let expected = path.and_then(expected).context("not an object")?;
    ensure!(response.body == expected, "wrong content");
    Ok(())
}

fn answer(path: &str) -> Script {
    let Some(content) = expected(path) else {
        return Script::response(404, &[], "");
    };
    // Without a Date, Squid 5 takes the response for stale at once.
    #[expect(clippy::disallowed_methods, reason = "an origin has a clock")]
    let date = httpdate::fmt_http_date(SystemTime::now());
    let mut fields = vec![
        ("Date", date.as_str()),
        ("Content-Type", "application/octet-stream"),
        ("Cache-Control", "public, max-age=3600"),
        ("ETag", "\"1\""),
    ];
    if path.contains(VARIES) {
        fields.push(("Vary", "Accept-Language"));
    }
    Script::response(200, &fields, content)
}

/// The content of the object at `/case/kind/size`.
fn expected(path: &str) -> Option<Vec<u8>> {
    let size = path.rsplit('/').next()?.parse().ok()?;
    Some(content::body_for(SEED, path, 1, size).bytes())
}

/// The kinds of objects: one cache has it; none has it; a sibling says falsely that it has it; it
/// has variants by language.
pub const KNOWN: &str = "known";
pub const UNKNOWN: &str = "unknown";
pub const CLAIMED: &str = "claimed";
pub const VARIES: &str = "varies";

const SEED: u64 = 1;
