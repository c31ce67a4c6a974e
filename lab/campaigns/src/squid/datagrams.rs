//! ICP and HTCP by hand: a client that asks Squid, and a sibling that answers it.
//!
//! Used by the cases. Shares no code with the proxy, on purpose: it shows what Squid itself says
//! and understands. ICP version 2 is RFC 2186, HTCP 0.1 is RFC 2756; only what a query for an
//! object needs.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::ANSWER_TIME;

/// The two protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Icp,
    Htcp,
}

impl Protocol {
    /// Asks a cache whether it has a URL.
    pub async fn ask(self, cache: SocketAddr, url: &str) -> anyhow::Result<bool> {
        let socket = UdpSocket::bind("127.0.0.1:0").await?;
        socket.connect(cache).await?;
        socket.send(&self.query(NUMBER, url)).await?;
        let mut buffer = vec![0; DATAGRAM_BYTES];
        let received = timeout(ANSWER_TIME, socket.recv(&mut buffer)).await;
        let length = received.with_context(|| format!("no {self:?} answer from {cache}"))??;
        let answer = self.read_answer(&buffer[..length]);
        answer.with_context(|| format!("{self:?} answer {:?}", &buffer[..length]))
    }

    fn query(self, number: u32, url: &str) -> Vec<u8> {
        match self {
            // The address of the requester is a field that nobody fills in.
            Self::Icp => icp(
                ICP_QUERY,
                number,
                &[&[0; 4], url.as_bytes(), b"\0"].concat(),
            ),
            Self::Htcp => {
                let texts = ["GET", url, "HTTP/1.1", ""].map(counted);
                htcp(0, HTCP_WANTS_ANSWER, number, &texts.concat())
            }
        }
    }

    fn read_answer(self, datagram: &[u8]) -> anyhow::Result<bool> {
        match self {
            Self::Icp => {
                let (code, number, _) = read_icp(datagram)?;
                ensure!(number == NUMBER, "another query's answer");
                ensure!(matches!(code, ICP_HIT | ICP_MISS), "neither hit nor miss");
                Ok(code == ICP_HIT)
            }
            Self::Htcp => {
                let (code, flags, number, _) = read_htcp(datagram)?;
                ensure!(
                    number == NUMBER && flags & HTCP_IS_ANSWER != 0,
                    "not an answer"
                );
                ensure!(matches!(code, HTCP_HIT | HTCP_MISS), "neither hit nor miss");
                Ok(code == HTCP_HIT)
            }
        }
    }

    /// The query's number and URL.
    fn read_query(self, datagram: &[u8]) -> anyhow::Result<(u32, String)> {
        let (number, url) = match self {
            Self::Icp => {
                let (code, number, payload) = read_icp(datagram)?;
                ensure!(code == ICP_QUERY, "not a query");
                let url = payload.get(4..).and_then(|rest| rest.strip_suffix(b"\0"));
                (number, url.context("no URL")?)
            }
            Self::Htcp => {
                let (_, _, number, payload) = read_htcp(datagram)?;
                let (_, rest) = split_counted(payload)?;
                (number, split_counted(rest)?.0)
            }
        };
        Ok((number, std::str::from_utf8(url)?.to_owned()))
    }

    fn answer(self, is_hit: bool, number: u32, url: &str) -> Vec<u8> {
        let (hit, miss) = match self {
            Self::Icp => (ICP_HIT, ICP_MISS),
            Self::Htcp => (HTCP_HIT, HTCP_MISS),
        };
        let code = if is_hit { hit } else { miss };
        match self {
            Self::Icp => icp(code, number, &[url.as_bytes(), b"\0"].concat()),
            // Fields of the response, of its content and of the cache: all empty. RFC 2756 has only
            // the last in a miss, which Squid 5 ignores as damaged; it sends and wants all three.
            Self::Htcp => htcp(code, HTCP_IS_ANSWER, number, &[0; 6]),
        }
    }
}

/// Answers the queries of a Squid; ends when dropped.
#[derive(Debug)]
pub struct Answers {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Answers {
    /// Answers at this address; has all URLs that contain one of these words.
    pub async fn start(
        at: std::net::IpAddr,
        protocol: Protocol,
        has: &'static [&'static str],
    ) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((at, 0)).await?;
        let address = socket.local_addr()?;
        let task = tokio::spawn(async move {
            let mut buffer = vec![0; DATAGRAM_BYTES];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                // Squid also sends what no sibling needs to answer, as HTCP CLR.
                let Ok((number, url)) = protocol.read_query(&buffer[..length]) else {
                    continue;
                };
                let is_hit = url.split('/').any(|word| has.contains(&word));
                // A lost answer is a miss, and the case fails.
                let _ = socket
                    .send_to(&protocol.answer(is_hit, number, &url), from)
                    .await;
            }
        });
        Ok(Self { address, task })
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Opcode, version 2, length, number, options, option data, sender, payload.
fn icp(code: u8, number: u32, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![code, 2];
    datagram.extend(length_of(ICP_HEAD + payload.len()));
    datagram.extend(number.to_be_bytes());
    datagram.extend([0; 12]);
    datagram.extend(payload);
    datagram
}

fn read_icp(datagram: &[u8]) -> anyhow::Result<(u8, u32, &[u8])> {
    let (head, payload) = datagram.split_at_checked(ICP_HEAD).context("too short")?;
    ensure!(head[1] == 2, "version {}", head[1]);
    ensure!(head[2..4] == length_of(datagram.len()), "a wrong length");
    let number = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    Ok((head[0], number, payload))
}

/// Length and version 0.1; then length, opcode TST with a response code, flags, number, payload;
/// then no authentication.
fn htcp(code: u8, flags: u8, number: u32, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![];
    datagram.extend(length_of(HTCP_HEAD + payload.len() + 2));
    datagram.extend([0, 1]);
    datagram.extend(length_of(HTCP_HEAD - 4 + payload.len()));
    datagram.extend([HTCP_TST << 4 | code, flags]);
    datagram.extend(number.to_be_bytes());
    datagram.extend(payload);
    datagram.extend([0, 2]);
    datagram
}

fn read_htcp(datagram: &[u8]) -> anyhow::Result<(u8, u8, u32, &[u8])> {
    let (head, payload) = datagram.split_at_checked(HTCP_HEAD).context("too short")?;
    ensure!(head[..2] == length_of(datagram.len()), "a wrong length");
    ensure!(head[2..4] == [0, 1], "version {:?}", &head[2..4]);
    ensure!(head[6] >> 4 == HTCP_TST, "not a TST");
    let number = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
    Ok((head[6] & 15, head[7], number, payload))
}

fn counted(text: &str) -> Vec<u8> {
    [&length_of(text.len()), text.as_bytes()].concat()
}

fn split_counted(payload: &[u8]) -> anyhow::Result<(&[u8], &[u8])> {
    let (length, rest) = payload.split_at_checked(2).context("too short")?;
    let length = u16::from_be_bytes([length[0], length[1]]).into();
    rest.split_at_checked(length).context("too short")
}

fn length_of(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes)
        .expect("the URLs of a campaign are short")
        .to_be_bytes()
}

const ICP_QUERY: u8 = 1;
const ICP_HIT: u8 = 2;
const ICP_MISS: u8 = 3;
const ICP_HEAD: usize = 20;
const HTCP_TST: u8 = 1;
const HTCP_HIT: u8 = 0;
const HTCP_MISS: u8 = 1;
const HTCP_WANTS_ANSWER: u8 = 2;
const HTCP_IS_ANSWER: u8 = 1;
const HTCP_HEAD: usize = 12;
const NUMBER: u32 = 0x0102_0304;
const DATAGRAM_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_answers_are_read_as_they_were_written() {
        let url = "http://a.test/x";
        for protocol in [Protocol::Icp, Protocol::Htcp] {
            let query = protocol.query(NUMBER, url);
            assert_eq!(
                protocol.read_query(&query).unwrap(),
                (NUMBER, url.to_owned())
            );
            for is_hit in [true, false] {
                let answer = protocol.answer(is_hit, NUMBER, url);
                assert_eq!(protocol.read_answer(&answer).unwrap(), is_hit);
                let other = protocol.answer(is_hit, NUMBER + 1, url);
                assert!(protocol.read_answer(&other).is_err());
                for cut in 0..answer.len() {
                    assert!(protocol.read_answer(&answer[..cut]).is_err(), "{cut}");
                }
            }
        }
    }
}
