//! Requests on a link, and their repetition: a stream may be refused while the connection works, or
//! the connection may break.
//!
//! Invariants: a failed stream never costs the other streams their connection; the connection is
//! retired only when it takes no more streams. A request is sent again only if the parent has not
//! processed it, or if it may be repeated and the connection broke before a byte of the response.

use std::sync::Arc;

use hashcache_base::failure::{Failure, LinkFault};
use hashcache_http::{HASHCACHE_LINK, HintUse, LinkRequest, Related, logs_in_connection};
use hashcache_link::coding::LinkCoding;
use hashcache_link::hints::Hints;
use hashcache_link::parent::{ParentLink, StreamUse};
use http::Request;

use super::exchange::FailedExchange;
use super::linked::LinkedStream;
use super::linked::attempts::{Attempts, StreamFault};
use super::linked::framed::Unusable;
use super::permits::Permit;
use super::pool::UpstreamConn;
use super::refused::Refused;
use super::{
    Endpoint, RequestBody, SendFailure, SendOptions, Unanswered, Upstream, UpstreamExchange,
    copy_of, is_repeatable,
};

impl Upstream {
    /// Sends `request` on `link` and waits for the response head.
    pub(super) async fn send_linked(
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
        let mut coding = if is_repeatable {
            self.coding_now((options.link.clone(), link), client)
        } else {
            LinkCoding::Unchanged
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
                if is_repeatable {
                    options.hints
                } else {
                    HintUse::None
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
                        // No content has arrived, so the client has seen nothing of this response.
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
                // Another hop gets the client's original fields.
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

/// Records the link from which the names of other objects were received.
fn note_hints(exchange: &mut UpstreamExchange, link: &ParentLink) {
    let extensions = exchange.response.extensions_mut();
    if let Some(related) = extensions.remove::<Related>() {
        extensions.insert(Hints {
            related,
            counters: Arc::clone(&link.counters),
        });
    }
}

/// Returns the request to send again after `failed`; `copy` is a request that may be repeated.
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
