//! A client with a single connection at a time that requests objects and checks the responses.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::objects::{Objects, Way};
use crate::content::{parse_etag, verify};
use crate::{BodyEnd, Client};

/// Request result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Complete, and every byte is correct.
    Right {
        /// A hit, according to `Cache-Status`.
        hit: bool,
        bytes: u64,
    },
    /// Complete according to the framing, but wrong.
    Wrong(String),
    /// Detectably cut short.
    Cut,
    /// 504 to `only-if-cached`.
    NotCached,
    /// No response, or a response with an unexpected status.
    Failed(String),
}

/// Sends requests on one connection, and on a new connection when that is closed.
pub(super) struct Requester {
    proxy: SocketAddr,
    objects: Arc<Objects>,
    client: Option<Client>,
}

impl Requester {
    pub(super) fn new(proxy: SocketAddr, objects: Arc<Objects>) -> Self {
        Self {
            proxy,
            objects,
            client: None,
        }
    }

    pub(super) async fn ask(&mut self, object: u32, way: Way) -> Asked {
        let target = self.objects.target(object);
        self.ask_for(&target, way).await
    }

    pub(super) async fn ask_for(&mut self, target: &str, way: Way) -> Asked {
        match timeout(PATIENCE, self.exchange(target, way)).await {
            Ok(Ok(asked)) => asked,
            Ok(Err(error)) => {
                self.client = None;
                Asked::Failed(error.kind().to_string())
            }
            Err(_) => {
                self.client = None;
                Asked::Failed(format!("no answer within {PATIENCE:?}"))
            }
        }
    }

    async fn exchange(&mut self, target: &str, way: Way) -> io::Result<Asked> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(self.proxy).await?,
        };
        let authority = self.objects.authority();
        let fields = match way {
            Way::Plain => "",
            Way::Range => "Range: bytes=100-1123\r\n",
            Way::OnlyIfCached => "Cache-Control: only-if-cached\r\n",
        };
        let request =
            format!("GET http://{authority}{target} HTTP/1.1\r\nHost: {authority}\r\n{fields}\r\n");
        client.send(request.as_bytes()).await?;
        // The head is returned only with the body, so the declared length is not known yet; no byte
        // depends on it.
        let first = if way == Way::Range { RANGE_FIRST } else { 0 };
        let content = self.objects.content(target, u64::MAX);
        let (mut at, mut wrong) = (first, None);
        let response = client.read_response_to("GET", |part| {
            if wrong.is_none() {
                wrong = verify(&content, at, part).err();
            }
            at += part.len() as u64;
        });
        let response = response.await?;
        let bytes = at - first;
        if response.end == BodyEnd::Truncated {
            return Ok(Asked::Cut);
        }
        if response.status == 504 && way == Way::OnlyIfCached {
            self.client = Some(client);
            return Ok(Asked::NotCached);
        }
        if !response.complaints.is_empty() {
            return Ok(Asked::Wrong(format!("doubtful: {:?}", response.complaints)));
        }
        let whole_length = response
            .field("ETag")
            .and_then(parse_etag)
            .map(|(_, length)| length);
        let expected = match (response.status, way, whole_length) {
            (200, Way::Plain | Way::OnlyIfCached, length) => length,
            (206, Way::Range, Some(length)) => Some(length.min(RANGE_END) - RANGE_FIRST),
            // The object is too short for the range.
            (416, Way::Range, _) => {
                return Ok(Asked::Right {
                    hit: false,
                    bytes: 0,
                });
            }
            // A server may ignore a range; then the bytes were compared at the wrong offset.
            (200, Way::Range, Some(length)) if length == bytes => {
                return Ok(Asked::Right { hit: false, bytes });
            }
            (status, ..) => return Ok(Asked::Failed(format!("status {status}"))),
        };
        let hit = response
            .field("Cache-Status")
            .is_some_and(|status| status.contains("; hit"));
        if response.end == BodyEnd::Complete {
            self.client = Some(client);
        }
        Ok(match (wrong, expected) {
            (Some(at), _) => Asked::Wrong(format!("{target}: wrong byte at {at}")),
            (None, Some(expected)) if expected != bytes => Asked::Wrong(format!(
                "{target}: {bytes} bytes look whole, {expected} are"
            )),
            (None, None) => Asked::Wrong(format!("{target}: an answer without its ETag")),
            _ => Asked::Right { hit, bytes },
        })
    }
}

const RANGE_FIRST: u64 = 100;
const RANGE_END: u64 = 1124;
/// Longer than a large object takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
