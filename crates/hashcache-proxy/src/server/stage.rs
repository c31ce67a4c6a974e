//! Stages of the process from start to end, and the errors that prevent a start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hashcache_access::lists::ListError;
use hashcache_access::users::UsersError;
use hashcache_base::tls::identity::IdentityError;
use hashcache_link::identity::LinkIdentityError;
use hashcache_wire::FIRST_REQUEST_TIME;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::warn;

use hashcache_upstream::peer::CredentialsError;
use hashcache_upstream::tls::AuthoritiesError;

/// The stages of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Serving,
    /// No new connections are accepted; responses that have started are completed.
    Draining,
    /// The drain time is over.
    Over,
}

/// How long cores may take to stop after the drain time; then the process exits without them.
pub(super) const OVER_TIME: Duration = Duration::from_secs(2);

/// How often the state of the cores is checked while draining.
pub(super) const DRAIN_STEP: Duration = Duration::from_millis(50);

/// Accepts connections until the process stops, and passes each to `serve`. `what` names the
/// connections in the log.
pub(super) async fn accept_while_serving(
    listener: TcpListener,
    mut stopping: watch::Receiver<Stage>,
    what: &str,
    mut serve: impl FnMut(TcpStream, SocketAddr),
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stage| *stage != Stage::Serving) => return,
        };
        match accepted {
            Ok((socket, client)) => serve(socket, client),
            // Out of descriptors, or the client has already left: an immediate retry would spin.
            Err(error) => {
                warn!(%error, what, "cannot accept a connection");
                sleep(DRAIN_STEP).await;
            }
        }
    }
}

/// Resolves when a connection without a request has had its time after the drain started.
pub(super) async fn is_too_late(mut stage: watch::Receiver<Stage>) {
    // An error means that the server has stopped.
    if stage
        .wait_for(|stage| *stage != Stage::Serving)
        .await
        .is_ok()
    {
        sleep(FIRST_REQUEST_TIME).await;
    }
}

/// Returns the channel that stops a new connection; it is already set if the drain has started.
/// `None` after the drain time. Marks the stage as seen, so `stage` then reports later changes
/// only.
pub(super) fn stop_for(
    stage: &mut watch::Receiver<Stage>,
) -> Option<(watch::Sender<bool>, watch::Receiver<bool>)> {
    // `changed` does not report a stage that the caller has seen already.
    match *stage.borrow_and_update() {
        Stage::Serving => Some(watch::channel(false)),
        Stage::Draining => Some(watch::channel(true)),
        Stage::Over => None,
    }
}

/// Reason why the proxy could not start, or stopped unexpectedly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// An address could not be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The supervisor passes a socket that no setting names.
    #[error("a socket at {address} was passed to this process, and no setting has that address")]
    Inherited {
        /// The address.
        address: SocketAddr,
    },
    /// The supervisor passes a socket for a `tproxy://` listener that is not transparent.
    #[error("the socket at {address} that was passed to this process is not transparent")]
    NotTransparent {
        /// The address.
        address: SocketAddr,
        /// The system's error on the attempt to make the socket transparent.
        source: io::Error,
    },
    /// The access log could not be opened.
    #[error("cannot write the access log to {place}")]
    AccessLog {
        /// The file, or standard output.
        place: String,
        /// The system's error.
        source: io::Error,
    },
    /// The proxy's name is not a token.
    #[error("the name `{name}` is not valid in a header field")]
    Name {
        /// The name.
        name: String,
    },
    /// Our own certificates could not be read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Certificates of trusted authorities could not be read.
    #[error(transparent)]
    Authorities(#[from] AuthoritiesError),
    /// The key for links could not be read.
    #[error(transparent)]
    Link(#[from] LinkIdentityError),
    /// The credentials for a peer could not be read.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The token file of the admin listener has no valid token.
    #[error("no token for the admin listener in {}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why the file has no valid token.
        source: io::Error,
    },
    /// The users of the proxy could not be read.
    #[error(transparent)]
    Users(#[from] UsersError),
    /// A list of hosts could not be loaded.
    #[error(transparent)]
    List(#[from] ListError),
    /// The time zone, which access rules with times need, could not be read.
    #[error("cannot read the time zone in /etc/localtime")]
    Zone(#[source] io::Error),
    /// The system refused threads, signals or a runtime.
    #[error("the system refused {what}")]
    System {
        /// The refused resource.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
