//! A follower: a request that waits for the fetch of another request for the same key.
//!
//! `request` in the proxy gets a [`Follower`] from `Collapse::join` and waits for a leader's
//! outcome. If the leader is slow, a follower becomes a second leader and the other followers keep
//! waiting for either leader. If all of them fetched, an origin that slows down under load would
//! get the whole crowd at the worst moment.
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

/// How a follower's wait finished.
pub enum Followed {
    /// The response is being stored and may be followed.
    Shared(Arc<SharedResponse>),
    /// The stored response was validated in reply to a request of this kind: look it up again.
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
    /// Time after a fetch starts until a second leader may start.
    pub(crate) first: Duration,
    /// Limit for all waits together.
    pub(crate) total: Duration,
    pub(crate) at_end: AtEnd,
}

/// The action when the wait is over and no leader has an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// The request fetches for its client: the wait was short.
    Alone,
    /// The origin has sent nothing in the time that a fetch may take to its first byte.
    Fail,
}

/// Permission for a follower to become the next leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Succession {
    /// The follower may become the next leader.
    Allowed,
    /// The follower would fetch something else (a range), so it fetches for itself.
    Never,
}

/// The result when a follower tries to become another leader.
enum OneMore {
    Leader(Leader),
    /// Not before this time.
    At(Instant),
    /// The round is over, or may no longer be joined.
    Over,
}

impl Follower {
    /// Adds a follower to `round`.
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

    /// Waits for a leader's outcome; `fields` are the waiting request's fields.
    pub async fn wait(
        mut self,
        times: WaitTimes,
        succession: Succession,
        fields: &HeaderMap,
    ) -> Followed {
        let begun = Instant::now();
        let end = begun + times.total;
        let mut until = self.next_leader_at(times.first, begun).min(end);
        // The client with the failed request, if a field of that request may be the cause.
        let mut doubted = None;
        loop {
            let outcome = self
                .messages
                .wait_for(|message| !matches!(message, CollapseMsg::Wait));
            let message = match timeout_at(until, outcome).await {
                Ok(Ok(message)) => message.clone(),
                // Cannot happen: the sender is in `round`, and this follower holds `round`.
                Ok(Err(_)) => CollapseMsg::NoOutcome,
                Err(_) => CollapseMsg::Wait,
            };
            let now = Instant::now();
            match message {
                CollapseMsg::Shared(shared) => return Followed::Shared(shared),
                CollapseMsg::Validated(requester) => return Followed::Validated(requester),
                CollapseMsg::Failed(shared) => {
                    // A client must not make others fail by a cookie or a User-Agent that the
                    // origin cannot handle. A second client with the same failure confirms it: two
                    // clients do not both send such a field.
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

    /// Earliest start of the round's next leader; after `first` if the round is over.
    fn next_leader_at(&self, first: Duration, now: Instant) -> Instant {
        let shard = self.collapse.shard(&self.key);
        let entry = shard.fetches.get(&self.key);
        entry.map_or(now + first, |entry| entry.next_leader_at(first).max(now))
    }
}

impl Collapse {
    /// Makes `follower` another leader of the round, unless the latest leader started too recently.
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
