//! Forwards a PURGE to all members: the owner has the response on disk, and any other member may
//! have a copy in memory, or on disk from a time when the owner was down.
//!
//! Called by `purge` after the purge is in force here.
//!
//! Invariants: a PURGE that arrived from a member is not sent on, so each member gets it once. The
//! other members check it by their own `allow_purge`. The response to the PURGE shows for each
//! member whether it has purged. `purge` does this twice, because in the first round a member may
//! fetch the old response from a member that has not purged yet.
//! Cost: one request to each member, in parallel, and [`ANSWER_TIME`] at most.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hashcache_http::{Origin, Target};
use hashcache_store::purge::MemberPurge;
use hashcache_upstream::peer::Peer;
use hashcache_upstream::{AbsoluteForm, Endpoint, RequestBody, SendOptions, Wanted, set_target};
use http::{HeaderMap, HeaderName, Request, StatusCode, Version};
use tokio::time::timeout;

use crate::connection::Connection;
use crate::worker::Worker;

/// Sends a PURGE on to the other members; the results are in the order of the member list. `named`
/// are the fields that name the purged objects.
pub(super) async fn purge_at_members(
    connection: &Connection,
    request: &HeaderMap,
    target: &Target,
    named: &[HeaderName],
) -> Vec<MemberPurge> {
    let worker = &connection.worker;
    let live = worker.common.live();
    let members = live.routes.members();
    let others: Vec<Arc<Peer>> = match members.filter(|it| !it.are_in_via(request)) {
        Some(members) => members.others().cloned().collect(),
        None => return Vec::new(),
    };
    drop(live);
    let mut fields = HeaderMap::new();
    for name in named {
        for value in request.get_all(name) {
            fields.append(name, value.clone());
        }
    }
    worker.common.via.append_via(&mut fields, Version::HTTP_11);
    let mut asking = Vec::new();
    for member in others {
        let (worker, target, fields) = (Rc::clone(worker), target.clone(), fields.clone());
        let name = member.name().to_owned();
        let asked = tokio::task::spawn_local(async move {
            let sent = send(&worker, &member, &target, fields);
            let sent = timeout(ANSWER_TIME, sent).await;
            match sent {
                Ok(Ok(StatusCode::OK)) => None,
                Ok(Ok(status)) => Some(format!("status {}", status.as_u16())),
                Ok(Err(fault)) => Some(fault),
                Err(_) => Some("no answer in time".to_owned()),
            }
        });
        asking.push((name, asked));
    }
    let mut said = Vec::new();
    for (name, asked) in asking {
        let fault = asked
            .await
            .unwrap_or_else(|_| Some("internal error".to_owned()));
        said.push(MemberPurge { name, fault });
    }
    said
}

async fn send(
    worker: &Worker,
    member: &Arc<Peer>,
    target: &Target,
    fields: HeaderMap,
) -> Result<StatusCode, String> {
    let mut request = Request::new(RequestBody::empty());
    *request.method_mut() = PURGE.parse().map_err(|_| "not a method".to_owned())?;
    set_target(&mut request, &target.path_and_query);
    *request.headers_mut() = fields;
    let options = SendOptions {
        absolute: Some(AbsoluteForm {
            peer: Arc::clone(member),
            origin: Origin {
                scheme: target.scheme,
                authority: target.authority.clone(),
            },
            wanted: Wanted::Fetched,
        }),
        ..SendOptions::default()
    };
    let to = Endpoint::of_peer(member);
    let sent = worker.upstream().try_send(&to, request, &options).await;
    match sent {
        Ok(exchange) => Ok(exchange.response.status()),
        Err(unanswered) => {
            member.note_failure(&unanswered.failed.failure);
            Err(unanswered.failed.failure.to_string())
        }
    }
}

const PURGE: &str = "PURGE";
/// Maximum time for a member to purge; a purge is durable within a second.
const ANSWER_TIME: Duration = Duration::from_secs(5);
