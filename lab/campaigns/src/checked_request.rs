//! A request whose answer is checked byte by byte.
//!
//! Used by the campaigns that compare caches: the length and the bytes of a response follow from
//! its URL, because the origin makes content from that.

use std::net::SocketAddr;
use std::time::Duration;

use hashcache_testkit::{BodyEnd, Client, ContentOptions, Response, content};
use hashcache_workload::Kind;
use tokio::time::timeout;

/// See the module's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// A path, or an URL for a proxy.
    pub target: String,
    pub bytes: u64,
    pub kind: Kind,
    pub accept: String,
    /// Sec-Fetch-Dest.
    pub destination: Option<String>,
    pub referer: Option<String>,
}

impl Ask {
    /// For the object number `number` of `bytes` bytes, which may be stored.
    pub fn object(number: u64, bytes: u64) -> Self {
        Self {
            target: format!("/object/{number}?size={bytes}"),
            bytes,
            kind: Kind::Again,
            accept: OTHER_ACCEPT.to_owned(),
            destination: None,
            referer: None,
        }
    }

    /// Sends it; the connection, if it can be used again, and what is wrong with the answer.
    pub async fn answer(
        &self,
        connection: Option<Client>,
        server: SocketAddr,
    ) -> (Option<Client>, Option<String>) {
        let is_kept = connection.is_some();
        let mut got = self.send(connection, server).await;
        // A server may close a kept connection at any time; every browser then asks again.
        if got.is_err() && is_kept {
            got = self.send(None, server).await;
        }
        match got {
            Ok((connection, response)) => (connection, self.fault(&response)),
            Err(error) => (None, Some(error.to_string())),
        }
    }

    async fn send(
        &self,
        connection: Option<Client>,
        server: SocketAddr,
    ) -> anyhow::Result<(Option<Client>, Response)> {
        let answered = async {
            let mut client = match connection {
                Some(client) => client,
                None => Client::connect(server).await?,
            };
            let mut fields = vec![("Accept", &*self.accept)];
            let destination = self.destination.as_deref();
            fields.extend(destination.map(|it| ("Sec-Fetch-Dest", it)));
            fields.extend(self.referer.as_deref().map(|page| ("Referer", page)));
            let response = client.get(&self.target, &fields).await?;
            let closes = response
                .field("Connection")
                .is_some_and(|value| value.eq_ignore_ascii_case("close"));
            let is_kept = !closes && response.end == BodyEnd::Complete;
            anyhow::Ok((is_kept.then_some(client), response))
        };
        timeout(RESPONSE_TIME, answered).await?
    }

    /// What is wrong with the response.
    fn fault(&self, response: &Response) -> Option<String> {
        if response.status != 200 {
            return Some(format!("status {}", response.status));
        }
        let length = response.body.len() as u64;
        if length != self.bytes || response.end == BodyEnd::Truncated {
            return Some(format!("{length} of {} bytes", self.bytes));
        }
        let seed = ContentOptions::default().seed;
        // The origin makes content from the path alone.
        let path = match self.target.strip_prefix("http://") {
            Some(url) => &url[url.find('/').unwrap_or(url.len())..],
            None => &self.target,
        };
        let expected = content::body_for(seed, path, 0, self.bytes);
        let wrong = content::verify(&expected, 0, &response.body).err();
        wrong.map(|at| format!("wrong byte at {at}"))
    }
}

pub const OTHER_ACCEPT: &str = "*/*";
/// A disk of 100 operations/s needs some seconds for all that the browsers can ask for at once.
const RESPONSE_TIME: Duration = Duration::from_secs(60);
