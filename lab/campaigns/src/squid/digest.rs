//! Squid's cache digest, read by hand: is a URL in it?
//!
//! Used by the cases. Shares no code with the proxy, on purpose. The form is that of Squid's
//! "Cache Digest specification", version 5: a block of 128 octets, then a Bloom filter whose four
//! hashes are the four words of an MD5.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use super::ANSWER_TIME;
use super::process::address;

/// A digest that a cache served.
#[derive(Debug)]
pub struct Digest {
    /// How many objects went into it.
    pub count: u32,
    /// Bits for each object.
    pub bits: u8,
    /// Requests that were made until it had the URLs.
    pub requests: usize,
    filter: Vec<u8>,
}

impl Digest {
    /// Asks a cache again and again until its digest has these URLs.
    pub async fn with(cache: SocketAddr, urls: &[String]) -> anyhow::Result<Self> {
        let keys: Vec<_> = urls.iter().map(|url| md5(url)).collect::<Result<_, _>>()?;
        let mut last = None;
        for look in 0..LOOKS {
            // 404 while it is being built.
            if let Some(body) = fetch(cache).await? {
                let mut digest = Self::parse(&body)?;
                digest.requests = look + 1;
                if keys.iter().all(|key| digest.has_key(key)) {
                    return Ok(digest);
                }
                last = Some(digest.count);
            }
            tokio::time::sleep(LOOK_TIME).await;
        }
        anyhow::bail!("{cache} builds no digest with these URLs; objects in its last: {last:?}")
    }

    fn parse(body: &[u8]) -> anyhow::Result<Self> {
        let (block, filter) = body.split_at_checked(BLOCK).context("a digest too short")?;
        let word = |at: usize| block[at..at + 4].try_into().map(u32::from_be_bytes);
        ensure!(block[..4] == [0, 5, 0, 3], "version {:?}", &block[..4]);
        ensure!(
            word(16)? as usize == filter.len(),
            "a filter of another size"
        );
        ensure!(block[21] == 4, "{} hashes", block[21]);
        Ok(Self {
            count: word(8)?,
            bits: block[20],
            requests: 1,
            filter: filter.to_vec(),
        })
    }

    /// Whether it says that Squid has this URL.
    pub fn has(&self, url: &str) -> anyhow::Result<bool> {
        Ok(self.has_key(&md5(url)?))
    }

    fn has_key(&self, key: &[u8]) -> bool {
        let size = self.filter.len() as u64 * 8;
        key.chunks(4).all(|word| {
            let word = word
                .iter()
                .fold(0, |word, &octet| word << 8 | u64::from(octet));
            let bit = word % size;
            let octet = usize::try_from(bit / 8)
                .ok()
                .and_then(|at| self.filter.get(at));
            octet.is_some_and(|octet| octet >> (bit % 8) & 1 == 1)
        })
    }
}

/// The body of a digest in a response with status 200. Asks in origin-form, as Squids ask each
/// other, and from Squid's address: our proxy serves digests to its peers alone.
async fn fetch(cache: SocketAddr) -> anyhow::Result<Option<Vec<u8>>> {
    let fetched = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((address(), 0).into())?;
        let mut stream = socket.connect(cache).await?;
        let request = format!("GET {PATH} HTTP/1.0\r\nHost: {cache}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut response = vec![];
        stream.read_to_end(&mut response).await?;
        anyhow::Ok(response)
    };
    let response = tokio::time::timeout(ANSWER_TIME, fetched).await;
    let response = response.with_context(|| format!("no answer from {cache}"))??;
    let end = response.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, body) = response.split_at(end.context("no end of the head")? + 4);
    let is_found = head.split(|&octet| octet == b' ').nth(1) == Some(b"200");
    Ok(is_found.then(|| body.to_vec()))
}

/// The MD5 of Squid's key of a GET, by the program of coreutils.
fn md5(url: &str) -> anyhow::Result<Vec<u8>> {
    let mut child = Command::new("md5sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run md5sum (of coreutils)")?;
    let mut input = child.stdin.take().context("no pipe")?;
    input.write_all(&[b"\x01", url.as_bytes()].concat())?;
    drop(input);
    let said = String::from_utf8(child.wait_with_output()?.stdout)?;
    let digits = said.get(..32).context("md5sum says nothing")?;
    let pairs = (0..16).map(|n| u8::from_str_radix(&digits[2 * n..2 * n + 2], 16));
    Ok(pairs.collect::<Result<_, _>>()?)
}

/// Where caches of this kind serve their digest.
pub const PATH: &str = "/squid-internal-periodic/store_digest";
const BLOCK: usize = 128;
/// Six periods in which Squid builds it anew.
const LOOKS: usize = 150;
const LOOK_TIME: Duration = Duration::from_millis(200);
