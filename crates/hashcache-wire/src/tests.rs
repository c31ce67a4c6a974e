//! Connections over pipes and sockets, with good and bad clients.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hashcache_base::failure::Failure;
use hashcache_base::limits::Limits;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, watch};

use super::*;

mod closing;
mod exchange;
mod from_memory;
mod memory;
mod refused;
mod smuggling;

/// Runs `client` against a connection served by `service`; returns the reason for closing it.
async fn talk<S, SF, CF>(
    limits: Limits,
    service: S,
    client: impl FnOnce(DuplexStream) -> CF,
) -> (Ending, CF::Output)
where
    S: Fn(Request<ClientBody>, Rc<Cell>) -> SF,
    SF: Future<Output = Response<Answer>>,
    CF: Future,
{
    let (near, far) = tokio::io::duplex(64 << 10);
    let (_stop, stopping) = watch::channel(false);
    tokio::join!(serve(far, limits, service, stopping), client(near))
}

async fn serve<S, SF>(
    socket: impl Into<Socket>,
    limits: Limits,
    service: S,
    stopping: watch::Receiver<bool>,
) -> Ending
where
    S: Fn(Request<ClientBody>, Rc<Cell>) -> SF,
    SF: Future<Output = Response<Answer>>,
{
    let cell = Cell::new();
    let service = |request| service(request, cell.clone());
    serve_connection(socket, &Rc::new(limits), &cell, None, service, stopping).await
}

/// The response to `input`, until the connection closes.
async fn answer_to(input: &[u8]) -> String {
    let input = input.to_vec();
    let (_, output) = talk(Limits::default(), echo, |mut client| async move {
        client.write_all(&input).await.unwrap();
        rest_of(&mut client).await
    })
    .await;
    output
}

async fn rest_of(client: &mut DuplexStream) -> String {
    let mut output = Vec::new();
    client.read_to_end(&mut output).await.unwrap();
    String::from_utf8(output).unwrap()
}

/// Reads until the input finishes with `end`.
async fn read_until(client: &mut (impl AsyncReadExt + Unpin), end: &str) -> String {
    let mut output = Vec::new();
    while !output.ends_with(end.as_bytes()) {
        let byte = client.read_u8().await;
        output.push(byte.unwrap_or_else(|_| panic!("{:?}", output.escape_ascii().to_string())));
    }
    String::from_utf8(output).unwrap()
}

/// Answers with the request target and content, or with the reason of the failure.
async fn echo(request: Request<ClientBody>, cell: Rc<Cell>) -> Response<Answer> {
    match cell.next_head() {
        RequestHead::Accepted(head) => {
            assert_eq!(request.uri(), "/");
            let method = request.method().clone();
            let target = head.target.escape_ascii().to_string();
            let Ok(content) = request.into_body().collect().await else {
                return refusal(cell.body_failure().expect("the body was refused by us"));
            };
            let trailers = content.trailers().map_or(0, |trailers| trailers.len());
            let content = content.to_bytes().escape_ascii().to_string();
            whole(format!("<{method} {target} {content} {trailers}>"))
        }
        RequestHead::Refused(failure) => refusal(failure),
    }
}

fn refusal(failure: Failure) -> Response<Answer> {
    let Failure::Refused { status, reason } = failure else {
        panic!("{failure:?}");
    };
    let mut response = whole(reason);
    *response.status_mut() = status;
    response
}

fn whole(text: impl Into<Bytes>) -> Response<Answer> {
    Response::new(Answer::Whole(Some(text.into())))
}

/// A response whose body the test sends step by step.
fn live() -> (
    mpsc::UnboundedSender<io::Result<&'static str>>,
    Response<Answer>,
) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, Response::new(Answer::Live(receiver)))
}

/// The body types in tests.
enum Answer {
    Whole(Option<Bytes>),
    Live(mpsc::UnboundedReceiver<io::Result<&'static str>>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let part = match self.get_mut() {
            Self::Whole(text) => text.take().map(Ok),
            Self::Live(parts) => ready!(parts.poll_recv(cx))
                .map(|part| part.map(|text| Bytes::from_static(text.as_bytes()))),
        };
        Poll::Ready(part.map(|part| part.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
            Self::Live(_) => SizeHint::default(),
        }
    }
}

/// The statuses of the responses in `output`; `HTTP/1.0` within content does not count.
fn statuses(output: &str) -> Vec<StatusCode> {
    let versions = output.split("HTTP/1.").skip(1);
    versions
        .filter_map(|line| line.get(2..5)?.parse().ok())
        .collect()
}
