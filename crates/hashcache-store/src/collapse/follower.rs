//! A follower: a request that waits for another request's fetch of the same key.
//!
//! `request` of the proxy gets a [`Follower`] from `Collapse::join` and waits for a leader's
//! outcome. When the leader is slow, one follower becomes a leader beside it and the others keep
//! waiting for either: if all of them went, an origin that slows down under load would get the
//! whole crowd just then.
//!
//! Invariant: all waits of a follower together take no longer than [`WaitTimes::total`].
//! Cost: one timer; the lock of the key's shard each time a wait is over.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hashcache_base::failure::Failure;
use http::HeaderMap;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::{Collapse, CollapseMsg, Leader, Requester, Role, Round, SharedResponse};

/// A request that waits.
pub struct Follower {
    collapse: Arc<Collapse>,
    key: Bytes,
    requester: Requester,
    round: Arc<Round>,
    messages: watch::Receiver<CollapseMsg>,
}

/// The end of a follower's wait.
pub enum Followed {
    /// The response is being stored and may be followed.
    Shared(Arc<SharedResponse>),
    /// The stored response was validated in reply to such a request: look it up again.
    Validated(Requester),
    /// The origin failed, and would fail for this request too.
    Failed(Failure),
    /// This request fetches, and informs the other followers.
    Leader(Leader),
    /// This request fetches for its client only.
    Alone,
}

/// Limits on a follower's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimes {
    /// Time from the beginning of a fetch until a second leader may begin.
    pub(crate) first: Duration,
    /// All waits together.
    pub(crate) total: Duration,
    pub(crate) at_end: AtEnd,
}

/// The outcome of a wait that is over before any leader has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// The request fetches for its client: the wait was short.
    Alone,
    /// The origin has sent nothing in the time that a fetch may take to its first byte.
    Fail,
}

/// Whether a follower may become the next leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Succession {
    /// It may.
    Allowed,
    /// It would fetch something else (a range), so it fetches alone.
    Never,
}

/// The result of an attempt to become one more leader.
enum OneMore {
    Leader(Leader),
    /// Not before this time.
    At(Instant),
    /// The round is over, or no longer to be joined.
    Over,
}

impl Follower {
    /// One more follower of `round`.
    pub(super) fn new(
        collapse: &Arc<Collapse>,
        key: &Bytes,
        requester: Requester,
        round: &Arc<Round>,
    ) -> Self {
        Self {
            collapse: Arc::clone(collapse),
            key: key.clone(),
            requester,
            round: Arc::clone(round),
            messages: round.messages.subscribe(),
        }
    }

    /// Waits for the outcome of a leader; `fields` are those of the request that waits.
    pub async fn wait(
        mut self,
        times: WaitTimes,
        succession: Succession,
        fields: &HeaderMap,
    ) -> Followed {
        let begun = Instant::now();
        let end = begun + times.total;
        let mut until = self.next_leader_at(times.first, begun).min(end);
        // The client whose request has failed, if a field of it may be the cause.
        let mut doubted = None;
        loop {
            let outcome = self
                .messages
                .wait_for(|message| !matches!(message, CollapseMsg::Wait));
            let message = match timeout_at(until, outcome).await {
                Ok(Ok(message)) => message.clone(),
                // The sender is in `round`, which this follower holds.
                Ok(Err(_)) => CollapseMsg::NoOutcome,
                Err(_) => CollapseMsg::Wait,
            };
            let now = Instant::now();
            match message {
                CollapseMsg::Shared(shared) => return Followed::Shared(shared),
                CollapseMsg::Validated(requester) => return Followed::Validated(requester),
                CollapseMsg::Failed(shared) => {
                    // One client must not make others fail with a cookie or a User-Agent that the
                    // origin stumbles over. Two clients do not both send such a field.
                    let is_confirmed = doubted.is_some_and(|doubted| doubted != shared.client);
                    if is_confirmed || now >= end || shared.holds_for(fields) {
                        return Followed::Failed(shared.failure);
                    }
                    doubted = Some(shared.client);
                }
                CollapseMsg::NotShared => return Followed::Alone,
                _ if succession == Succession::Never => return Followed::Alone,
                _ if now >= end => {
                    return match times.at_end {
                        AtEnd::Alone => Followed::Alone,
                        AtEnd::Fail => Followed::Failed(Failure::FirstByteTimeout(times.total)),
                    };
                }
                CollapseMsg::Wait => {
                    let one_more = self.collapse.one_more_leader(&self, times.first, now);
                    match one_more {
                        OneMore::Leader(leader) => return Followed::Leader(leader),
                        OneMore::At(then) => {
                            until = end.min(then);
                            continue;
                        }
                        OneMore::Over => {}
                    }
                }
                CollapseMsg::NoOutcome => {}
            }
            if succession == Succession::Never {
                return Followed::Alone;
            }
            match self.collapse.join(&self.key, self.requester, now) {
                Role::Leader(leader) => return Followed::Leader(leader),
                Role::Alone => return Followed::Alone,
                Role::Follower(next) => self = next,
            }
            until = self.next_leader_at(times.first, now).min(end);
        }
    }

    /// When the round may have its next leader; after `first` if the round is over.
    fn next_leader_at(&self, first: Duration, now: Instant) -> Instant {
        let shard = self.collapse.shard(&self.key);
        let entry = shard.fetches.get(&self.key);
        entry.map_or(now + first, |entry| entry.next_leader_at(first).max(now))
    }
}

impl Collapse {
    /// Makes `follower` one more leader of its round, unless the latest one began too recently.
    fn one_more_leader(
        self: &Arc<Self>,
        follower: &Follower,
        first: Duration,
        now: Instant,
    ) -> OneMore {
        let mut shard = self.shard(&follower.key);
        let Some(entry) = shard.fetches.get_mut(&follower.key) else {
            return OneMore::Over;
        };
        if !Arc::ptr_eq(&entry.round, &follower.round) {
            return OneMore::Over;
        }
        let then = entry.next_leader_at(first);
        if then > now {
            return OneMore::At(then);
        }
        OneMore::Leader(entry.one_more(self, &follower.key, now))
    }
}
