//! Requests and tunnels on a link that are sent again: a stream may be refused while the connection
//! is well, or the connection may break.
//!
//! Invariants: one failed stream never costs the others their connection; it is retired only when
//! it takes no more streams. A request is sent again only if the parent has not processed it, or if
//! it may be repeated and the connection broke before a byte of the response.

use std::sync::Arc;
use std::time::Duration;

use hashcache_base::failure::{Failure, LinkFault};
use hashcache_http::{HASHCACHE_LINK, HintUse, LinkRequest, Related, logs_in_connection};
use hashcache_link::coding::LinkCoding;
use hashcache_link::hints::Hints;
use hashcache_link::parent::{ParentLink, StreamUse};
use http::Request;
use tokio::time::sleep;

use super::super::exchange::FailedExchange;
use super::super::permits::Permit;
use super::super::pool::UpstreamConn;
use super::super::refused::{Refused, SendError};
use super::super::{
    Endpoint, RequestBody, SendFailure, SendOptions, Unanswered, Upstream, UpstreamExchange,
    copy_of, is_repeatable,
};
use super::LinkedStream;
use super::framed::Unusable;

/// What a stream without a response says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamFault {
    /// The parent has no room for the request now, and has not looked at it.
    Refused,
    /// The connection takes no more requests.
    Broken,
    /// This request alone has failed.
    Failed,
}

/// The attempts to send one request or to make one tunnel.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    refused: usize,
    has_reconnected: bool,
    has_waited: bool,
}

impl StreamFault {
    /// The fault of the stream whose answer is `error`.
    pub(super) fn of(error: &SendError, is_closed: bool) -> Self {
        Self::new(Refused::of(error), error.is_of_connection() || is_closed)
    }

    fn new(refused: Refused, connection_broke: bool) -> Self {
        match (connection_broke, refused) {
            (true, _) => Self::Broken,
            (false, Refused::Unseen) => Self::Refused,
            // A link has no other version of HTTP to try.
            (false, Refused::No | Refused::NeedsHttp1) => Self::Failed,
        }
    }
}

impl Attempts {
    /// Whether there may be one more attempt after `fault`. Waits before an attempt on the same
    /// connection.
    pub(super) async fn next(&mut self, fault: StreamFault) -> bool {
        match fault {
            StreamFault::Failed => false,
            StreamFault::Broken => !std::mem::replace(&mut self.has_reconnected, true),
            StreamFault::Refused => {
                let Some(pause) = PAUSES.get(self.refused) else {
                    return false;
                };
                self.refused += 1;
                sleep(*pause).await;
                true
            }
        }
    }

    /// Whether there may be one more attempt although there is no link: the connection broke under
    /// this request, so the parent may be starting again. Waits for it, once.
    async fn waits_for_parent(&mut self) -> bool {
        if !self.has_reconnected || std::mem::replace(&mut self.has_waited, true) {
            return false;
        }
        sleep(RESTART_WAIT).await;
        true
    }
}

impl Upstream {
    /// Sends `request` on `link` and waits for the head of the response.
    pub(in super::super) async fn send_linked(
        &self,
        link: &ParentLink,
        to: &Endpoint,
        (mut request, mut permit): (Request<RequestBody>, Permit),
        options: &SendOptions,
    ) -> Result<UpstreamExchange, Unanswered> {
        let is_login = options.pinning.is_login();
        let is_repeatable = is_repeatable(&request) && !is_login;
        let limit = options.connect_time.unwrap_or(self.limits.connect_time);
        let client = options.client.as_ref();
        let mut coding = match is_repeatable {
            true => self.coding_now((options.link.clone(), link), client),
            false => LinkCoding::Unchanged,
        };
        let mut attempts = Attempts::default();
        loop {
            let begun = match self.upload_memory(&request, client) {
                Ok(memory) => link
                    .stream(StreamUse::Request, client, limit)
                    .await
                    .map(|stream| (stream, memory)),
                Err(failure) => Err(failure),
            };
            let (stream, memory) = match begun {
                Ok(begun) => begun,
                Err(failure) => {
                    if !link.is_up() && attempts.waits_for_parent().await {
                        continue;
                    }
                    return Err(Unanswered::unsent(failure.into(), request));
                }
            };
            let line = stream.number;
            let copy = is_repeatable.then(|| copy_of(&request));
            coding.prepare(
                request.headers_mut(),
                match is_repeatable {
                    true => options.hints,
                    false => HintUse::None,
                },
            );
            if let Some(turn) = options.pinning.turn() {
                turn.begin(logs_in_connection(request.headers()));
                let asks = LinkRequest {
                    login: Some(turn.number().0),
                    ..LinkRequest::default()
                };
                request
                    .headers_mut()
                    .insert(HASHCACHE_LINK, asks.to_value());
            }
            stream.turn.add_to(request.headers_mut());
            let conn = UpstreamConn::linked(LinkedStream::new(stream, memory));
            let mut failed = match self.exchange(conn, to, request, permit, options).await {
                Ok(mut exchange) => {
                    note_hints(&mut exchange, link);
                    match (
                        self.unframed(exchange, (&coding, link), options).await,
                        copy,
                    ) {
                        (Ok(exchange), _) => return Ok(exchange),
                        (Err(Unusable::Again(next)), Some(again)) => {
                            let permit_time = options.permit_time;
                            let taken = self.permit(to, client, permit_time).await;
                            permit = taken.map_err(SendFailure::from)?;
                            (request, coding) = (again, next);
                            continue;
                        }
                        (Err(Unusable::Again(_)), None) => {
                            let failure = Failure::Link(LinkFault::Frames);
                            return Err(SendFailure::from(failure).into());
                        }
                        // No content has come, so the client has seen nothing of this response.
                        (Err(Unusable::Failed(failed)), Some(again))
                            if failed.failure == Failure::ResponseIncomplete
                                && attempts.next(StreamFault::Broken).await =>
                        {
                            link.retire(line);
                            let permit_time = options.permit_time;
                            let taken = self.permit(to, client, permit_time).await;
                            permit = taken.map_err(SendFailure::from)?;
                            request = again;
                            continue;
                        }
                        (Err(Unusable::Failed(failed)), _) => return Err(failed.into()),
                    }
                }
                Err(failed) => failed,
            };
            if let Some(unsent) = &mut failed.unsent {
                // Another hop is asked as the client asked.
                match &copy {
                    Some(copy) => *unsent.headers_mut() = copy.headers().clone(),
                    None => drop(unsent.headers_mut().remove(HASHCACHE_LINK)),
                }
            }
            let fault = StreamFault::new(failed.refused, failed.connection_broke);
            match fault {
                StreamFault::Broken => link.retire(line),
                StreamFault::Refused => failed.failed.failure = Failure::UpstreamLimit,
                StreamFault::Failed => {}
            }
            match again(&mut failed, copy) {
                Some(again) if attempts.next(fault).await => {
                    (request, permit) = (again, failed.permit);
                }
                _ => return Err(failed.into()),
            }
        }
    }
}

/// Says from which link the names of other objects came.
fn note_hints(exchange: &mut UpstreamExchange, link: &ParentLink) {
    let extensions = exchange.response.extensions_mut();
    if let Some(related) = extensions.remove::<Related>() {
        extensions.insert(Hints {
            related,
            counters: Arc::clone(&link.counters),
        });
    }
}

/// The request that may be sent again after `failed`; `copy` is one that may be repeated.
fn again(
    failed: &mut FailedExchange,
    copy: Option<Request<RequestBody>>,
) -> Option<Request<RequestBody>> {
    let is_unseen = failed.refused != Refused::No;
    if let Some(copy) = copy {
        return (is_unseen || failed.failed.is_stale_connection()).then_some(copy);
    }
    failed.unsent.take().map(|unsent| *unsent)
}

/// Longer than the first two pauses of a link that has broken (`PAUSES` of `server/links.rs`).
const RESTART_WAIT: Duration = Duration::from_millis(1600);
/// Pauses before a refused request is sent again. The parent refuses streams while this child holds
/// its share of memory there, which transfers give back as they end.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(900),
];
