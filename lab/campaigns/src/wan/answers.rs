//! What a client makes of an answer, when boxes are killed and links are cut.
//!
//! Used by `damage` and `kills`.
//!
//! Invariant: an answer that looks whole and is not is never taken for a visible error.

use std::net::SocketAddr;
use std::time::Duration;

use hashcache_testkit::{BodyEnd, Client};
use tokio::time::{Instant, sleep, timeout};

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of the content, and nothing else.
    Right,
    /// The client can tell that something is missing.
    Visible(String),
    /// Wrong bytes, or a part that looks whole.
    Wrong(String),
}

/// Asks once.
pub async fn fetch(proxy: SocketAddr, url: &str, content: &[u8]) -> Outcome {
    let mut received = Vec::new();
    attempt(proxy, url, &[], content, &mut received).await
}

/// Asks, and asks again for what is missing, as download tools do, until all has arrived or
/// [`RETRY_TIME`] is over.
pub async fn fetch_retrying(proxy: SocketAddr, url: &str, content: &[u8]) -> Outcome {
    let begun = Instant::now();
    let mut received = Vec::new();
    loop {
        let range = format!("bytes={}-", received.len());
        let range = [("Range", range.as_str())];
        let fields = match received.len() {
            0 => &[][..],
            _ => &range[..],
        };
        let outcome = attempt(proxy, url, fields, content, &mut received).await;
        if !matches!(outcome, Outcome::Visible(_)) || begun.elapsed() > RETRY_TIME {
            return outcome;
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// One request; what it brings is added to `received`.
async fn attempt(
    proxy: SocketAddr,
    url: &str,
    fields: &[(&str, &str)],
    content: &[u8],
    received: &mut Vec<u8>,
) -> Outcome {
    let asking = async {
        let mut client = Client::connect(proxy).await?;
        client.request("GET", url, fields).await?;
        let (before, mut came) = (received.len(), Vec::new());
        let answer = client
            .read_response_to("GET", |part| came.extend_from_slice(part))
            .await?;
        Ok::<_, std::io::Error>((before, came, answer))
    };
    let (before, came, answer) = match timeout(ANSWER_TIME, asking).await {
        Err(_) => return Outcome::Visible(format!("no end within {ANSWER_TIME:?}")),
        Ok(Err(error)) => return Outcome::Visible(error.to_string()),
        Ok(Ok(answered)) => answered,
    };
    match answer.status {
        200 => received.clear(),
        206 => {
            let range = answer.field("Content-Range").unwrap_or_default();
            if !range.starts_with(&format!("bytes {before}-")) {
                return Outcome::Wrong(format!("{range} for an answer from {before} on"));
            }
        }
        status => return Outcome::Visible(format!("status {status}")),
    }
    received.extend_from_slice(&came);
    if !content.starts_with(received) {
        let wrong = received.iter().zip(content).position(|(a, b)| a != b);
        return Outcome::Wrong(format!("wrong byte at {wrong:?} of {}", received.len()));
    }
    match answer.end {
        BodyEnd::Truncated => Outcome::Visible(format!("cut after {} bytes", received.len())),
        BodyEnd::Complete | BodyEnd::CloseDelimited if received.len() < content.len() => {
            Outcome::Wrong(format!("{} bytes look whole", received.len()))
        }
        BodyEnd::Complete | BodyEnd::CloseDelimited => Outcome::Right,
    }
}

/// Much longer than any answer takes.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// How long a client tries to complete what was cut.
const RETRY_TIME: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use hashcache_testkit::{Origin, Script};

    use super::*;

    #[tokio::test]
    async fn only_what_looks_whole_and_is_not_is_wrong() {
        let whole = Script::response(200, &[], "0123456789");
        let cut = Script::new().head(200, &[("Content-Length", "10")]);
        let closed = Script::new().head(200, &[]).bytes("0123").close();
        for (script, expected) in [
            (whole, "Right"),
            (cut.bytes("0123").close(), "Visible"),
            (Script::response(200, &[], "0123"), "Wrong"),
            (closed, "Wrong"),
            (Script::response(200, &[], "012345678x"), "Wrong"),
            (Script::response(502, &[], "no"), "Visible"),
        ] {
            let origin = Origin::start(move |_| script.clone()).await.unwrap();
            let outcome = fetch(origin.address(), &origin.url("/"), b"0123456789").await;
            assert!(format!("{outcome:?}").starts_with(expected), "{outcome:?}");
        }
    }

    #[tokio::test]
    async fn what_is_missing_is_asked_for_again() {
        let origin = Origin::start(|request| match request.field("Range") {
            None => Script::new()
                .head(200, &[("Content-Length", "10")])
                .bytes("0123")
                .close(),
            Some(range) => {
                assert_eq!(range, "bytes=4-");
                Script::response(206, &[("Content-Range", "bytes 4-9/10")], "456789")
            }
        });
        let origin = origin.await.unwrap();
        let outcome = fetch_retrying(origin.address(), &origin.url("/"), b"0123456789").await;
        assert_eq!(outcome, Outcome::Right);
    }
}
