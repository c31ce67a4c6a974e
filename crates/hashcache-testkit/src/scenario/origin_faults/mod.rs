//! Origins that send false, ambiguous or incomplete responses: a client must be able to detect
//! this, immediately and later.
//!
//! Each fault of [`FAULTS`] is the first response to a separate path, requested by an HTTP/1.1
//! client and, at another path, by an HTTP/1.0 client; every later response to a path is correct. A
//! client may accept as complete only the correct response, or a response that the fault explicitly
//! allows.
//!
//! Invariant: no part of a faulty response is later served as complete from the cache, and no other
//! request gets bytes that were left on a connection.

mod faults;

use std::collections::HashSet;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::timeout;

use super::Verdict;
use super::smuggling::Place;
use crate::{BodyEnd, Client, Origin, RawRequest, Response, Script};

pub use faults::FAULTS;

/// A faulty response from an origin.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Fault name.
    pub name: &'static str,
    /// Bytes that the origin sends; the table head explains the placeholders.
    pub bytes: &'static [u8],
    /// Action of the origin after these bytes.
    pub after: After,
    /// Request method.
    pub method: &'static str,
    /// Statuses and contents that a client may accept as complete.
    pub whole: &'static [(u16, &'static [u8])],
}

/// Action of the origin after the bytes of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The connection stays open for another request.
    Keep,
    /// FIN.
    Close,
    /// RST.
    Reset,
}

/// HTTP version that a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Http11,
    Http10,
}

/// Starts an origin that answers each path `/fault/NUMBER/…` once with that fault, then correctly.
///
/// # Errors
/// If the listener cannot be bound.
pub async fn faulty_origin(faults: &'static [Fault]) -> io::Result<Origin> {
    let answered = Mutex::new(HashSet::new());
    Origin::start(move |request| {
        let path = path_of(request);
        let number = path.strip_prefix("/fault/");
        let number = number.and_then(|rest| rest.split('/').next()?.parse::<usize>().ok());
        let fault = number.and_then(|number| faults.get(number));
        let mut answered = answered.lock().expect("no holder of this lock panics");
        match fault {
            Some(fault) if answered.insert(path.to_owned()) => fault.script(),
            _ => clean(request),
        }
    })
    .await
}

fn clean(request: &RawRequest) -> Script {
    let fields = [("Cache-Control", "no-store"), ("Content-Length", "5")];
    let script = Script::new().head(200, &fields);
    if request.method() == "HEAD" {
        script
    } else {
        script.bytes(CLEAN)
    }
}

impl Fault {
    fn script(&self) -> Script {
        let mut bytes = vec![];
        let mut rest = self.bytes;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'|' => bytes.extend_from_slice(b"\r\n"),
                b'{' => {
                    let end = rest.iter().position(|&byte| byte == b'}');
                    let end = end.expect("the table closes its braces");
                    let times = std::str::from_utf8(&rest[2..end]).ok();
                    let times = times.and_then(|times| times.parse().ok());
                    let what = match rest[0] {
                        b'f' => "A: b\r\n",
                        b'i' => "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
                        _ => "x",
                    };
                    let times = times.expect("a number in the table");
                    bytes.extend_from_slice(what.repeat(times).as_bytes());
                    rest = &rest[end + 1..];
                }
                byte => bytes.push(byte),
            }
        }
        let script = Script::new().bytes(bytes);
        match self.after {
            After::Keep => script,
            After::Close => script.close(),
            After::Reset => script.reset(),
        }
    }

    /// Returns true if a client may accept this response as it is.
    fn allows(&self, answer: &Response) -> bool {
        let whole = |status: u16, body: &[u8]| answer.status == status && answer.body == body;
        let clean = if self.method == "HEAD" { b"" } else { CLEAN };
        whole(200, clean) || self.whole.iter().any(|&(status, body)| whole(status, body))
    }
}

/// Plays these faults with an origin that [`faulty_origin`] has started for the same list.
pub async fn play_all(place: &Place<'_>, faults: &[Fault]) -> Vec<Verdict> {
    let mut verdicts = vec![];
    for (number, fault) in faults.iter().enumerate() {
        for speaks in [Speaks::Http11, Speaks::Http10] {
            verdicts.push(play(place, fault, number, speaks).await);
        }
    }
    let mut record = Verdict::new("record of the origin");
    record.seen = format!("{} requests", place.origin.request_count());
    for complaint in place.origin.complaints() {
        record.fault(format!("doubtful: {complaint}"));
    }
    verdicts.push(record);
    verdicts
}

async fn play(place: &Place<'_>, fault: &Fault, number: usize, speaks: Speaks) -> Verdict {
    let version = if speaks == Speaks::Http11 {
        "1.1"
    } else {
        "1.0"
    };
    let mut verdict = Verdict::new(format!("{} to HTTP/{version}", fault.name));
    let path = format!("/fault/{number}/{version}");
    let first = ask(place, fault.method, &path, speaks, "").await;
    verdict.seen = describe(&first);
    judge(&mut verdict, "the answer", fault, &first);
    if matches!(&first, Err(error) if error.kind() == io::ErrorKind::TimedOut) {
        verdict.fault("no answer in time");
    }

    // Bytes left on the upstream connection would be received now.
    let innocent = format!("/innocent/{number}/{version}");
    for _ in 0..2 {
        let answer = ask(place, "GET", &innocent, Speaks::Http11, "").await;
        let clean = matches!(&answer, Ok(answer) if is_whole(answer) && answer.body == CLEAN);
        verdict.expect(clean, || {
            format!("an innocent request got {}", describe(&answer))
        });
    }
    // Bytes after a response to HEAD are never content, so a GET must not get any of them.
    let whole = if fault.method == "GET" {
        fault.whole
    } else {
        &[]
    };
    let get = Fault {
        method: "GET",
        whole,
        ..*fault
    };
    let stored = ask(
        place,
        "GET",
        &path,
        speaks,
        "Cache-Control: only-if-cached\r\n",
    )
    .await;
    if matches!(&stored, Ok(answer) if answer.status != 504) {
        judge(&mut verdict, "from the cache", &get, &stored);
    }
    let again = ask(place, "GET", &path, speaks, "").await;
    judge(&mut verdict, "the next answer", &get, &again);
    verdict.expect(matches!(&again, Ok(answer) if !is_own_page(answer)), || {
        format!("a clean answer later does not come: {}", describe(&again))
    });
    verdict
}

/// Records a fault if a client would accept `answer` as complete although it is not.
fn judge(verdict: &mut Verdict, which: &str, fault: &Fault, answer: &io::Result<Response>) {
    let Ok(answer) = answer else { return };
    for complaint in &answer.complaints {
        verdict.fault(format!("{which} is doubtful: {complaint}"));
    }
    if is_whole(answer) && !is_own_page(answer) {
        verdict.expect(fault.allows(answer), || {
            let body = &answer.body[..answer.body.len().min(40)];
            let body = body.escape_ascii().to_string();
            format!("{which} looks whole: {} with {body:?}", answer.status)
        });
    }
}

async fn ask(
    place: &Place<'_>,
    method: &str,
    path: &str,
    speaks: Speaks,
    fields: &str,
) -> io::Result<Response> {
    let authority = place.origin.address();
    let target = if place.accelerates {
        path.to_owned()
    } else {
        place.origin.url(path)
    };
    let version = if speaks == Speaks::Http11 {
        "1.1"
    } else {
        "1.0"
    };
    let request = format!("{method} {target} HTTP/{version}\r\nHost: {authority}\r\n{fields}\r\n");
    let conversation = async {
        let mut client = Client::connect(place.proxy).await?;
        client.send(request.as_bytes()).await?;
        client.read_response(method).await
    };
    timeout(PATIENCE, conversation)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn is_whole(answer: &Response) -> bool {
    answer.end != BodyEnd::Truncated
}

fn is_own_page(answer: &Response) -> bool {
    let ours = answer.field("Proxy-Status");
    answer.status >= 500 && ours.is_some_and(|status| status.contains("error="))
}

fn describe(answer: &io::Result<Response>) -> String {
    match answer {
        Ok(answer) => format!(
            "{}, {} B, {:?}",
            answer.status,
            answer.body.len(),
            answer.end
        ),
        Err(error) => format!("{:?}", error.kind()),
    }
}

fn path_of(request: &RawRequest) -> &str {
    let target = request.target();
    match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    }
}

const CLEAN: &[u8] = b"clean";
/// Longer than any proxy time limit that these faults reach.
const PATIENCE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let names: HashSet<_> = FAULTS.iter().map(|fault| fault.name).collect();
        assert_eq!(names.len(), FAULTS.len());
    }

    #[tokio::test]
    async fn without_a_proxy_half_content_is_seen_and_false_content_is_judged() {
        let origin = faulty_origin(FAULTS).await.unwrap();
        let place = Place {
            proxy: origin.address(),
            accelerates: true,
            origin: &origin,
        };
        for (name, well) in [
            ("none-length", true),
            ("none-until-close", true),
            ("short-by-one", true),
            ("chunks-without-last", true),
            ("until-close-rst", true),
            // An origin is no proxy: doubtful requests reach it.
            ("lengths-different", false),
            ("coding-in-1.0", false),
            ("coding-unknown", false),
        ] {
            let number = FAULTS.iter().position(|fault| fault.name == name).unwrap();
            let verdict = play(&place, &FAULTS[number], number, Speaks::Http11).await;
            let lies = verdict
                .faults
                .iter()
                .any(|fault| !fault.starts_with("a clean answer"));
            assert_eq!(!lies, well, "{verdict}");
        }
    }
}
