//! Ambiguous requests: the proxy must refuse each of them, or forward it with one meaning.
//!
//! Each shape of [`SHAPES`] is sent with an innocent request behind it on the same connection. Then
//! an innocent request is sent on each of two new connections: a client that gets the response to
//! another client's request is detected there. The origin records all requests and complains about
//! everything doubtful.
//!
//! Invariant: each path of a run is requested once, so every recorded request and every response
//! can be traced to the bytes that were sent.

mod shapes;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::timeout;

use super::Verdict;
use crate::{Client, Origin, RawRequest, Response, Script};

pub use shapes::SHAPES;

/// A way to write a request.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Shape name.
    pub name: &'static str,
    /// Bytes to send; the table head explains the placeholders.
    pub bytes: &'static [u8],
    /// Permitted outcomes.
    pub allowed: Allowed,
    /// Proxy modes in which the shape is sent.
    pub modes: Modes,
}

/// Permitted outcomes for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// The proxy must answer with its own error page and a status in [`REFUSALS`], and must close
    /// the connection after it.
    Refused,
    /// As `Refused`, but the connection may stay open.
    RefusedAlone,
    /// The proxy must forward the request, with this content.
    Forwarded(&'static [u8]),
    /// The proxy may refuse or forward the request.
    Either,
}

/// Proxy modes in which a shape makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modes {
    /// Both modes.
    Both,
    /// A forward proxy.
    Forward,
    /// A reverse proxy in front of an origin.
    Accelerate,
}

/// A proxy, the proxy mode and the origin.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Proxy address.
    pub proxy: SocketAddr,
    /// True for a reverse proxy in front of the origin, false for a forward proxy.
    pub accelerates: bool,
    /// The origin, started by [`echo_origin`].
    pub origin: &'a Origin,
}

/// How the bytes are cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All bytes at once, together with the innocent request behind them.
    Whole,
    /// Two segments with a short pause between them; the first has this percentage of the bytes.
    At(usize),
}

/// Refusal statuses.
pub const REFUSALS: [u16; 7] = [400, 414, 417, 421, 431, 501, 505];

/// Starts an origin that answers each request with its method and path: `METHOD path`.
///
/// # Errors
/// If the listener cannot be bound.
pub async fn echo_origin() -> std::io::Result<Origin> {
    Origin::start(|request| {
        let echo = format!("{} {}", request.method(), path_of(request));
        let fields = [("Cache-Control", "no-store"), ("X-Echo", echo.as_str())];
        if request.method() == "HEAD" {
            return Script::new().head(200, &[&fields[..], &[("Content-Length", "9")]].concat());
        }
        let before = if request.field("Expect").is_some() {
            Script::new()
                .bytes("HTTP/1.1 100 Continue\r\n\r\n")
                .read_body()
        } else {
            Script::new()
        };
        let length = echo.len().to_string();
        let fields = [&fields[..], &[("Content-Length", length.as_str())]].concat();
        before.head(200, &fields).bytes(&echo)
    })
    .await
}

/// Plays all shapes that make sense at `place`, one after the other, each cut in these ways.
pub async fn play_all(place: &Place<'_>, shapes: &[Shape], cuts: &[Cut]) -> Vec<Verdict> {
    let mut verdicts = vec![];
    let mut sent = 0;
    for (number, shape) in shapes.iter().enumerate() {
        if !shape.is_for(place.accelerates) {
            continue;
        }
        for (way, cut) in cuts.iter().enumerate() {
            let names = Names::new(place, number, way);
            let verdict = play(place, shape, *cut, &names).await;
            sent += names.requests_meant(shape);
            verdicts.push(verdict);
        }
    }
    verdicts.push(whole_record(place, sent));
    verdicts
}

/// Checks all requests that the origin has received in a run, late requests included.
fn whole_record(place: &Place<'_>, sent: usize) -> Verdict {
    let mut verdict = Verdict::new("record of the origin");
    let requests = place.origin.requests();
    verdict.seen = format!("{} requests, at most {sent} were meant", requests.len());
    verdict.expect(requests.len() <= sent, || {
        "more requests than were sent".to_owned()
    });
    for request in &requests {
        if path_of(request).contains(SMUGGLED) {
            verdict.fault(format!("smuggled: {:?}", request.head.start_line));
        }
    }
    for complaint in place.origin.complaints() {
        verdict.fault(format!("doubtful: {complaint}"));
    }
    verdict
}

/// Paths and targets for one shape with one cut.
struct Names {
    authority: String,
    /// Prefix that makes a target from a path.
    prefix: String,
    base: String,
}

impl Names {
    fn new(place: &Place<'_>, number: usize, way: usize) -> Self {
        let authority = place.origin.address().to_string();
        let prefix = if place.accelerates {
            String::new()
        } else {
            format!("http://{authority}")
        };
        Self {
            authority,
            prefix,
            base: format!("/{number}-{way}"),
        }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }

    fn target(&self, name: &str) -> String {
        format!("{}{}", self.prefix, self.path(name))
    }

    fn innocent(&self, name: &str) -> Vec<u8> {
        let (target, authority) = (self.target(name), &self.authority);
        format!("GET {target} HTTP/1.1\r\nHost: {authority}\r\n\r\n").into_bytes()
    }

    fn word(&self, word: &str) -> String {
        match word {
            "t" => self.target(FIRST),
            "p" => self.target(SECOND),
            "s" => self.target(SMUGGLED),
            "h" => self.authority.clone(),
            "path" => self.path(FIRST),
            _ => unreachable!("a word that the table's head does not have: {word}"),
        }
    }

    /// Returns how many requests the origin may receive for one play.
    fn requests_meant(&self, shape: &Shape) -> usize {
        let innocent = 3;
        innocent + 1 + usize::from(shape.means_two())
    }
}

/// Returns the table bytes with the placeholders replaced; `word` replaces the placeholders without
/// a number.
///
/// # Panics
/// Panics if the bytes do not follow the table syntax.
#[must_use]
pub fn written_out(shape: &[u8], word: impl Fn(&str) -> String) -> Vec<u8> {
    let mut bytes = vec![];
    let mut rest = shape;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'|' => bytes.extend_from_slice(b"\r\n"),
            b'{' => {
                let end = rest.iter().position(|&byte| byte == b'}');
                let end = end.expect("the table closes its braces");
                let named = std::str::from_utf8(&rest[..end]).expect("words are ASCII");
                let text = match named.split_once('*') {
                    Some((what, times)) => {
                        let what = if what == "f" { "A: b\r\n" } else { what };
                        what.repeat(times.parse().expect("a number in the table"))
                    }
                    None => word(named),
                };
                bytes.extend_from_slice(text.as_bytes());
                rest = &rest[end + 1..];
            }
            byte => bytes.push(byte),
        }
    }
    bytes
}

impl Shape {
    /// Returns true if the shape makes sense in this mode.
    #[must_use]
    pub fn is_for(&self, accelerates: bool) -> bool {
        match self.modes {
            Modes::Both => true,
            Modes::Forward => !accelerates,
            Modes::Accelerate => accelerates,
        }
    }

    /// Returns true if the shape contains a second, intended request.
    #[must_use]
    pub fn means_two(&self) -> bool {
        self.bytes.windows(3).any(|word| word == b"{p}")
    }

    /// Returns the first request's method.
    #[must_use]
    pub fn method(&self) -> String {
        let token = self.bytes.iter().skip_while(|&&byte| byte == b'|');
        let token = token.take_while(|&&byte| byte.is_ascii_alphabetic());
        token.map(|&byte| char::from(byte)).collect()
    }
}

async fn play(place: &Place<'_>, shape: &Shape, cut: Cut, names: &Names) -> Verdict {
    let mut verdict = Verdict::new(match cut {
        Cut::Whole => shape.name.to_owned(),
        Cut::At(share) => format!("{} (cut at {share} %)", shape.name),
    });
    let complaints = place.origin.complaints().len();
    let first_request = place.origin.request_count();
    let bytes = [
        written_out(shape.bytes, |word| names.word(word)),
        names.innocent(AFTER),
    ]
    .concat();
    // Intended requests and their responses, in this order.
    let mut meant = vec![(shape.method(), names.path(FIRST))];
    if shape.means_two() {
        meant.push(("GET".to_owned(), names.path(SECOND)));
    }
    meant.push(("GET".to_owned(), names.path(AFTER)));

    match converse(place.proxy, &bytes, cut, &meant).await {
        Ok(answers) => judge_answers(&mut verdict, shape, &meant, &answers),
        Err(error) => verdict.fault(format!("no conversation: {error}")),
    }
    for name in ["new-1", "new-2"] {
        let outcome = converse(
            place.proxy,
            &names.innocent(name),
            Cut::Whole,
            &[("GET".to_owned(), names.path(name))],
        )
        .await;
        let echoed = match outcome.as_deref() {
            Ok([answer]) => echo_of(answer),
            _ => None,
        };
        verdict.expect(echoed == Some(format!("GET {}", names.path(name))), || {
            format!("an innocent request on a new connection got {outcome:?}")
        });
    }
    let requests = place.origin.requests();
    judge_requests(
        &mut verdict,
        shape,
        &meant,
        &requests[first_request..],
        names,
    );
    for complaint in &place.origin.complaints()[complaints..] {
        verdict.fault(format!("the origin finds doubtful: {complaint}"));
    }
    verdict
}

/// Sends `bytes` and reads responses, until each intended request has a response or no more
/// responses arrive.
async fn converse(
    proxy: SocketAddr,
    bytes: &[u8],
    cut: Cut,
    meant: &[(String, String)],
) -> std::io::Result<Vec<Response>> {
    let conversation = async {
        let mut client = Client::connect(proxy).await?;
        // A refusal may close the connection while the client is still sending; the response
        // counts.
        let _ = match cut {
            Cut::Whole => client.send(bytes).await,
            Cut::At(share) => {
                let (begin, rest) = bytes.split_at(bytes.len() * share / 100);
                let begun = client.send(begin).await;
                tokio::time::sleep(SEGMENT_PAUSE).await;
                begun.and(client.send(rest).await)
            }
        };
        let mut answers = vec![];
        for (method, _) in meant {
            let Ok(answer) = client.read_response(method).await else {
                break;
            };
            let closes = answer
                .field("Connection")
                .is_some_and(|value| value.eq_ignore_ascii_case("close"));
            answers.push(answer);
            if closes {
                // The close may be a FIN, or a RST because more bytes had been sent, but no further
                // byte may arrive that a client could parse as a response.
                if let Err(error) = client.read_close().await
                    && error.kind() == std::io::ErrorKind::InvalidData
                {
                    return Err(error);
                }
                break;
            }
        }
        Ok(answers)
    };
    timeout(PATIENCE, conversation)
        .await
        .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}

fn judge_answers(
    verdict: &mut Verdict,
    shape: &Shape,
    meant: &[(String, String)],
    answers: &[Response],
) {
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    verdict.seen = format!("answered {statuses:?}");
    for (place, answer) in answers.iter().enumerate() {
        for complaint in &answer.complaints {
            verdict.fault(format!("a doubtful answer: {complaint}"));
        }
        if let Some(echo) = echo_of(answer) {
            let (method, path) = &meant[place];
            let asked = format!("{method} {path}");
            verdict.expect(echo.starts_with(&asked), || {
                format!("asked for {asked:?}, got the answer to {echo:?}")
            });
        } else {
            verdict.expect(is_own_refusal(answer), || {
                format!(
                    "neither the origin's answer nor our refusal: {:?}",
                    answer.head
                )
            });
            let is_last = place + 1 == answers.len();
            verdict.expect(is_last || shape.allowed != Allowed::Refused, || {
                "the connection goes on after a refusal".to_owned()
            });
        }
    }
    let first_is_echo = answers.first().map(|answer| echo_of(answer).is_some());
    match (shape.allowed, first_is_echo) {
        (_, None) => verdict.fault("no answer"),
        (Allowed::Refused | Allowed::RefusedAlone, Some(true)) => {
            verdict.fault("passed on, must be refused");
        }
        (Allowed::Forwarded(_), Some(false)) => verdict.fault("refused, must be passed on"),
        (Allowed::Forwarded(_), _) if shape.means_two() => {
            verdict.expect(answers.len() == meant.len(), || {
                format!("{} requests, {} answers", meant.len(), answers.len())
            });
        }
        _ => {}
    }
}

fn judge_requests(
    verdict: &mut Verdict,
    shape: &Shape,
    meant: &[(String, String)],
    requests: &[RawRequest],
    names: &Names,
) {
    let mut next = 0;
    for request in requests {
        let path = path_of(request);
        if ["new-1", "new-2"]
            .iter()
            .any(|name| path == names.path(name))
        {
            continue;
        }
        let at = meant[next..].iter().position(|(method, asked)| {
            path.starts_with(asked.as_str()) && request.method() == method
        });
        match at {
            Some(at) => next += at + 1,
            None => verdict.fault(format!(
                "the origin was asked {:?}, which nobody meant",
                request.head.start_line
            )),
        }
    }
    let first = requests
        .iter()
        .find(|request| path_of(request).starts_with(&names.path(FIRST)));
    match (shape.allowed, first) {
        // A request with content that turns out to be malformed may have been forwarded in part,
        // but never as complete.
        (Allowed::Refused | Allowed::RefusedAlone, Some(request)) if request.whole => {
            verdict.fault(format!("reached the origin: {:?}", request.head.start_line));
        }
        (Allowed::Forwarded(body), Some(request)) => {
            verdict.expect(request.body == body, || {
                format!(
                    "the origin got {:?}",
                    request.body.escape_ascii().to_string()
                )
            });
            let host = request.field("Host");
            verdict.expect(host == Some(&names.authority), || {
                format!("the origin got Host {host:?}")
            });
        }
        _ => {}
    }
}

/// Returns the method and path that the origin has echoed, or `None` if the response is not from
/// the origin.
fn echo_of(answer: &Response) -> Option<String> {
    let echo = answer.field("X-Echo")?;
    let same = answer.body == echo.as_bytes() || answer.body.is_empty() && echo.starts_with("HEAD");
    (answer.status == 200 && same).then(|| echo.to_owned())
}

fn is_own_refusal(answer: &Response) -> bool {
    let ours = answer
        .field("Proxy-Status")
        .is_some_and(|status| status.contains("error="));
    ours && REFUSALS.contains(&answer.status)
}

/// Request path and query, for each target form.
fn path_of(request: &RawRequest) -> &str {
    let target = request.target();
    match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    }
}

const FIRST: &str = "first";
const SECOND: &str = "second";
const AFTER: &str = "after";
const SMUGGLED: &str = "smuggled";
/// Longer than every proxy time limit that a correct request could reach here.
const PATIENCE: Duration = Duration::from_secs(15);
/// Pause after which the first segment usually arrives separately; the result does not depend on
/// it.
const SEGMENT_PAUSE: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_large_and_its_names_are_unique() {
        let names: std::collections::BTreeSet<_> = SHAPES.iter().map(|shape| shape.name).collect();
        assert_eq!(names.len(), SHAPES.len());
        assert!(SHAPES.len() >= 100, "{}", SHAPES.len());
    }

    #[tokio::test]
    async fn a_careful_origin_alone_passes_what_is_clear_and_is_no_proxy_of_the_rest() {
        // Without a proxy between, what must be refused reaches the origin: the judge must say so.
        let origin = echo_origin().await.unwrap();
        let place = Place {
            proxy: origin.address(),
            accelerates: true,
            origin: &origin,
        };
        for (name, well) in [
            ("pipelined", true),
            ("chunks-then-request", true),
            ("length-leading-zeros", true),
            ("cl-te", false),
            ("fragment", false),
            ("lf-between-fields", false),
            ("connection-cookie", false),
        ] {
            let number = SHAPES.iter().position(|shape| shape.name == name).unwrap();
            let names = Names::new(&place, number, 0);
            let verdict = play(&place, &SHAPES[number], Cut::Whole, &names).await;
            assert_eq!(verdict.is_well(), well, "{verdict}");
        }
    }
}
