//! Time limits on waiting for a server while another next hop is left.
//!
//! `ask` and the tunnels of `connect` use this to wait for peers, `ask` also for origins of a site.
//! A peer with a late answer is probed: so a slow page does not mark the peer as down, but a peer
//! that hangs is down within seconds, for all requests that wait for it.
//!
//! Invariant: all peers that do not answer a request take at most `limits.peer_first_byte_time`
//! together, and [`LATE`] for each peer beyond that.
//! Cost: a timer for each request, and four checks a second after [`LATE`].

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hashcache_base::failure::Failure;
use hashcache_base::limits::Limits;
use tokio::time::{Instant, timeout};

use hashcache_upstream::peer::Peer;

/// The time left for the peers of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    left: Duration,
}

impl Patience {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            left: limits.peer_first_byte_time,
        }
    }

    /// Waits for the answer of `peer`; `others` are the next peers.
    ///
    /// # Errors
    /// The peer went down, or the time is over.
    pub(crate) async fn wait<T>(
        &mut self,
        peer: &Arc<Peer>,
        others: &[Arc<Peer>],
        answer: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let begun = Instant::now();
        let limit = self.left.max(LATE);
        let note_late = || {
            // The others too, so that several peers behind the same broken line do not each cost
            // this wait.
            for peer in std::iter::once(peer).chain(others) {
                peer.note_late();
            }
        };
        let waited = while_in_service(answer, limit, note_late, || peer.health.is_up()).await;
        self.left = self.left.saturating_sub(begun.elapsed());
        waited
    }
}

/// Waits for `answer` until `limit`, and no longer than the server is in service. `note_late` is
/// called once, when the answer is late.
///
/// # Errors
/// The server is out of service, or the time is over.
pub(super) async fn while_in_service<T>(
    answer: impl Future<Output = T>,
    limit: Duration,
    note_late: impl Fn(),
    is_in_service: impl Fn() -> bool,
) -> Result<T, Failure> {
    let begun = Instant::now();
    let mut answer = pin!(answer);
    let mut pause = LATE.min(limit);
    let mut is_late = false;
    loop {
        if let Ok(answer) = timeout(pause, &mut answer).await {
            return Ok(answer);
        }
        let waited = begun.elapsed();
        if waited >= limit || !is_in_service() {
            return Err(Failure::FirstByteTimeout(waited));
        }
        if !is_late {
            is_late = true;
            note_late();
        }
        pause = LOOK_PAUSE.min(limit.saturating_sub(waited));
    }
}

/// An answer that takes longer is late: more than two round trips by satellite.
const LATE: Duration = Duration::from_secs(2);
/// Interval of the checks after that.
const LOOK_PAUSE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use tokio::time::sleep;

    use hashcache_upstream::peer::{
        Credentials, PeerHttps, PeerKind, PeerMisses, PeerSettings, PeerSummary,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_goes_out_of_service_is_waited_for_no_longer() {
        let begun = Instant::now();
        let late = Cell::new(0);
        let waited = while_in_service(
            pending::<()>(),
            Duration::from_secs(60),
            || late.set(late.get() + 1),
            || begun.elapsed() < Duration::from_secs(5),
        );
        assert!(waited.await.is_err());
        assert_eq!(late.get(), 1);
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(6));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_of_a_server_in_service_arrives() {
        let answer = async {
            sleep(Duration::from_secs(19)).await;
            "page"
        };
        let waited = while_in_service(answer, Duration::from_secs(20), || {}, || true).await;
        assert_eq!(waited.unwrap(), "page");
    }

    fn parent() -> Peer {
        let settings = PeerSettings {
            name: "a".into(),
            kind: PeerKind::Parent,
            url: "http://192.0.2.1:3128".parse().unwrap(),
            credentials: Credentials::None,
            https: PeerHttps::Tunnel,
            icp: None,
            htcp: None,
            summary: PeerSummary::None,
            misses: PeerMisses::Fetched,
            weight: 1,
            pin: None,
        };
        settings.load(None).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn several_silent_peers_take_hardly_more_than_one() {
        let mut patience = Patience::new(&Limits::default());
        let begun = Instant::now();
        for _ in 0..5 {
            let peer = Arc::new(parent());
            assert!(patience.wait(&peer, &[], pending::<()>()).await.is_err());
        }
        let bar = Limits::default().peer_first_byte_time + 4 * LATE + Duration::from_millis(10);
        assert!(begun.elapsed() <= bar, "{:?}", begun.elapsed());
    }
}
