//! One connection at a time that requests objects and checks the responses.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::objects::{Objects, Way};
use crate::content::{parse_etag, verify};
use crate::{BodyEnd, Client};

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Whole, and every byte as it should be.
    Right {
        /// It was in the cache, says the proxy.
        hit: bool,
        bytes: u64,
    },
    /// Whole to all appearances, and not what it should be.
    Wrong(String),
    /// Visibly cut short.
    Cut,
    /// 504 to `only-if-cached`.
    NotCached,
    /// No answer, or one that says it failed.
    Failed(String),
}

/// Asks on one connection, and on a new one when that is gone.
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
        // The head is returned with the body, but no byte depends on the declared length.
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
            // Too short for the range.
            (416, Way::Range, _) => {
                return Ok(Asked::Right {
                    hit: false,
                    bytes: 0,
                });
            }
            // A range may be ignored; then the bytes were compared at the wrong place.
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
