//! A special request from one client must not determine the response to a plain request.
//!
//! A range, a condition, credentials or content change the response without `Vary`, so the cache
//! itself must know that it is not the response to a plain GET. Each case is played in three
//! orders: the special request first, the plain request while the special one is in progress, and
//! the plain request first.
//!
//! Invariant: a plain GET gets the complete plain content, whatever other clients have requested.

use std::io;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::Verdict;
use super::smuggling::Place;
use crate::{BodyEnd, Client, Gate, Origin, RawRequest, Response, Script};

/// A special request and the origin's response to it.
#[derive(Clone, Copy, Debug)]
pub struct Special {
    /// Case name.
    pub name: &'static str,
    /// Request method.
    pub method: &'static str,
    /// Request field lines, with CRLF.
    pub fields: &'static str,
    /// Request content.
    pub content: &'static str,
    /// How the origin distinguishes the request from a plain GET.
    told_by: ToldBy,
    /// Response status.
    pub status: u16,
    /// Response fields.
    answer_fields: &'static [(&'static str, &'static str)],
    /// Response content.
    answer: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum ToldBy {
    Field(&'static str),
    Method,
    Content,
}

const fn special(
    name: &'static str,
    fields: &'static str,
    told_by: &'static str,
    status: u16,
    answer: &'static str,
) -> Special {
    Special {
        name,
        method: "GET",
        fields,
        content: "",
        told_by: ToldBy::Field(told_by),
        status,
        answer_fields: &[],
        answer,
    }
}

/// All cases.
#[rustfmt::skip]
pub const SPECIALS: &[Special] = &[
    special("range beyond the end", "Range: bytes=100-200\r\n", "Range", 416, ""),
    Special { answer_fields: &[("Content-Range", "bytes */5")], ..special("range beyond the end, told", "Range: bytes=100-200\r\n", "Range", 416, "") },
    Special { answer_fields: &[("Content-Range", "bytes 1-2/5")], ..special("range", "Range: bytes=1-2\r\n", "Range", 206, "la") },
    Special { answer_fields: &[("Content-Range", "bytes 1-2/5")], ..special("range if unchanged", "Range: bytes=1-2\r\nIf-Range: \"v\"\r\n", "Range", 206, "la") },
    Special { answer_fields: &[("Content-Range", "bytes 0-1/2")], ..special("range that is the whole of something else", "Range: bytes=0-1\r\n", "Range", 206, "pl") },
    special("range without its place", "Range: bytes=1-2\r\n", "Range", 206, "la"),
    Special { answer_fields: &[("Content-Type", "multipart/byteranges; boundary=b")], ..special("two ranges", "Range: bytes=0-0,2-2\r\n", "Range", 206, "--b\r\n--b--\r\n") },
    special("range refused", "Range: bytes=1-2\r\n", "Range", 400, "no"),
    special("if-match", "If-Match: \"other\"\r\n", "If-Match", 412, "no"),
    special("if-unmodified-since", "If-Unmodified-Since: Sat, 01 Jan 2000 00:00:00 GMT\r\n", "If-Unmodified-Since", 412, "no"),
    special("if-none-match", "If-None-Match: \"v\"\r\n", "If-None-Match", 304, ""),
    special("if-none-match any", "If-None-Match: *\r\n", "If-None-Match", 304, ""),
    special("if-modified-since", "If-Modified-Since: Sat, 01 Jan 2050 00:00:00 GMT\r\n", "If-Modified-Since", 304, ""),
    special("expectation failed", "Expect: 100-continue\r\n", "Expect", 417, "no"),
    special("authorization", "Authorization: Basic eDp5\r\n", "Authorization", 200, "secret"),
    special("authorization refused", "Authorization: Basic eDp5\r\n", "Authorization", 401, "no"),
    Special { method: "HEAD", told_by: ToldBy::Method, ..special("head", "", "", 404, "") },
    Special { method: "POST", told_by: ToldBy::Method, content: "x", ..special("post", "", "", 200, "posted") },
    Special { method: "OPTIONS", told_by: ToldBy::Method, ..special("options", "", "", 200, "options") },
    Special { told_by: ToldBy::Content, content: "x", ..special("get with content", "", "", 200, "other") },
];

impl Special {
    fn is(&self, request: &RawRequest) -> bool {
        match self.told_by {
            ToldBy::Field(name) => request.field(name).is_some(),
            ToldBy::Method => request.method() == self.method,
            ToldBy::Content => {
                let framed = ["Content-Length", "Transfer-Encoding"];
                framed.iter().any(|name| request.field(name).is_some())
            }
        }
    }

    fn script(&self) -> Script {
        let kept = [("Cache-Control", "max-age=3600"), ("ETag", "\"v\"")];
        let fields = [&kept[..], self.answer_fields].concat();
        if self.method == "HEAD" {
            return Script::new().head(self.status, &fields);
        }
        Script::response(self.status, &fields, self.answer)
    }

    fn request(&self, target: &str, host: &str) -> String {
        let Self {
            method,
            fields,
            content,
            ..
        } = self;
        let length = match content.len() {
            0 => String::new(),
            length => format!("Content-Length: {length}\r\n"),
        };
        format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}{length}\r\n{content}")
    }
}

/// Starts an origin that answers `/special/NUMBER/…` according to that case of [`SPECIALS`].
///
/// # Errors
/// If the listener cannot be bound.
pub async fn start_origin() -> io::Result<Origin> {
    Origin::start(|request| {
        let target = request.target();
        let number = target.split("/special/").nth(1);
        let number = number.and_then(|rest| rest.split('/').next()?.parse::<usize>().ok());
        let case = number.and_then(|number| SPECIALS.get(number));
        let answer = match case {
            Some(case) if case.is(request) => case.script(),
            _ => {
                let fields = [("Cache-Control", "max-age=3600"), ("ETag", "\"v\"")];
                Script::response(200, &fields, PLAIN)
            }
        };
        if !target.ends_with(SLOW) {
            return answer;
        }
        let over = Gate::new();
        let waits = Script::new().wait(&over);
        tokio::spawn(async move {
            sleep(SLOW_TIME).await;
            over.open();
        });
        waits.then(answer)
    })
    .await
}

/// Plays all cases at `place`, with an origin from [`start_origin`].
pub async fn play_all(place: &Place<'_>) -> Vec<Verdict> {
    let mut verdicts = vec![];
    for (number, case) in SPECIALS.iter().enumerate() {
        verdicts.push(play(place, case, number).await);
    }
    verdicts
}

async fn play(place: &Place<'_>, case: &Special, number: usize) -> Verdict {
    let mut verdict = Verdict::new(case.name);
    let host = place.origin.address().to_string();
    let base = if place.accelerates {
        format!("/special/{number}")
    } else {
        place.origin.url(&format!("/special/{number}"))
    };
    let plain = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");

    let target = format!("{base}/first");
    let first = ask(place, case.method, &case.request(&target, &host)).await;
    verdict.seen = match &first {
        Ok(answer) => format!("answered {}", answer.status),
        Err(error) => format!("{:?}", error.kind()),
    };
    for which in ["after it", "again after it"] {
        judge(
            &mut verdict,
            which,
            &ask(place, "GET", &plain(&target)).await,
        );
    }

    let target = format!("{base}/{SLOW}");
    let request = case.request(&target, &host);
    let beside = async {
        // Gives the special request time to be the first; otherwise this case equals the next one.
        sleep(BESIDE_AFTER).await;
        ask(place, "GET", &plain(&target)).await
    };
    let (_, beside) = tokio::join!(ask(place, case.method, &request), beside);
    judge(&mut verdict, "beside it", &beside);

    let target = format!("{base}/last");
    judge(
        &mut verdict,
        "before it",
        &ask(place, "GET", &plain(&target)).await,
    );
    let _ = ask(place, case.method, &case.request(&target, &host)).await;
    judge(
        &mut verdict,
        "before and after it",
        &ask(place, "GET", &plain(&target)).await,
    );
    verdict
}

fn judge(verdict: &mut Verdict, which: &str, answer: &io::Result<Response>) {
    match answer {
        Ok(answer) => {
            let plain = answer.status == 200
                && answer.body == PLAIN.as_bytes()
                && answer.end == BodyEnd::Complete
                && answer.complaints.is_empty();
            verdict.expect(plain, || {
                let body = answer.body.escape_ascii().to_string();
                format!("a plain GET {which} got {} with {body:?}", answer.status)
            });
        }
        Err(error) => verdict.fault(format!("a plain GET {which} got {error}")),
    }
}

async fn ask(place: &Place<'_>, method: &str, request: &str) -> io::Result<Response> {
    let conversation = async {
        let mut client = Client::connect(place.proxy).await?;
        client.send(request.as_bytes()).await?;
        client.read_response(method).await
    };
    timeout(PATIENCE, conversation)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

const PLAIN: &str = "plain";
const SLOW: &str = "slow";
/// Shorter than the time that followers wait for a leader's response head.
const SLOW_TIME: Duration = Duration::from_millis(120);
const BESIDE_AFTER: Duration = Duration::from_millis(40);
const PATIENCE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_origin_alone_tells_special_requests_from_plain_ones() {
        let origin = start_origin().await.unwrap();
        let place = Place {
            proxy: origin.address(),
            accelerates: true,
            origin: &origin,
        };
        for (number, case) in SPECIALS.iter().enumerate() {
            let host = origin.address().to_string();
            let request = case.request(&format!("/special/{number}/x"), &host);
            let answer = ask(&place, case.method, &request).await.unwrap();
            assert_eq!(answer.status, case.status, "{}", case.name);
            let verdict = play(&place, case, number).await;
            assert!(verdict.is_well(), "{verdict}");
        }
        assert_eq!(origin.complaints(), [""; 0]);
    }
}
