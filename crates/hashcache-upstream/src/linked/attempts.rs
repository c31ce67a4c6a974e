//! The attempts to send a request or to make a tunnel on a link, and the pauses between them.

use std::time::Duration;

use tokio::time::sleep;

use super::super::refused::{Refused, SendError};

/// Fault of a stream without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFault {
    /// The parent has no room for the request now, and has not processed it.
    Refused,
    /// The connection takes no more requests.
    Broken,
    /// Only this request has failed.
    Failed,
}

/// The attempts to send a request or to make a tunnel.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    refused: usize,
    has_reconnected: bool,
    has_waited: bool,
}

impl StreamFault {
    /// Returns the fault for a stream that failed with `error`.
    pub(crate) fn from_send_error(error: &SendError, is_closed: bool) -> Self {
        Self::new(
            Refused::from_error(error),
            error.is_of_connection() || is_closed,
        )
    }

    pub(crate) fn new(refused: Refused, connection_broke: bool) -> Self {
        match (connection_broke, refused) {
            (true, _) => Self::Broken,
            (false, Refused::Unseen) => Self::Refused,
            // A link has no other HTTP version to try.
            (false, Refused::No | Refused::NeedsHttp1) => Self::Failed,
        }
    }
}

impl Attempts {
    /// Returns true if another attempt is allowed after `fault`. Waits before an attempt on the
    /// same connection.
    pub(crate) async fn next(&mut self, fault: StreamFault) -> bool {
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

    /// Returns true if another attempt is allowed although there is no link: the connection broke
    /// under this request, so the parent may be restarting. Waits for the parent, once.
    pub(crate) async fn waits_for_parent(&mut self) -> bool {
        if !self.has_reconnected || std::mem::replace(&mut self.has_waited, true) {
            return false;
        }
        sleep(RESTART_WAIT).await;
        true
    }
}

/// Longer than the first two pauses of a link that has broken (`PAUSES` in `server/links.rs` of the
/// proxy).
const RESTART_WAIT: Duration = Duration::from_millis(1600);
/// Pauses before a refused request is sent again. The parent refuses streams while this child holds
/// its whole share of memory there; transfers release this memory when they finish.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(900),
];
