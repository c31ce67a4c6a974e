//! How far the process is on its way from the start to the end, and why it may not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::tls::identity::IdentityError;
use crate::upstream::tls::AuthoritiesError;

/// How far the end of the process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Serving,
    /// No new connections; answers that have begun are finished.
    Draining,
    /// No more time.
    Over,
}

/// How long cores may take to end when there is no more time; then the process ends without them.
pub(super) const OVER_TIME: Duration = Duration::from_secs(2);

/// How often the clock and the health of the store are looked at while draining.
pub(super) const DRAIN_STEP: Duration = Duration::from_millis(50);

/// Why the proxy could not start, or stopped out of order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// An address could not be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The access log could not be opened.
    #[error("cannot write the access log to {place}")]
    AccessLog {
        /// The file, or standard output.
        place: String,
        /// What the system said.
        source: io::Error,
    },
    /// The proxy's name is no token.
    #[error("the name `{name}` cannot stand in a header field")]
    Name {
        /// The name.
        name: String,
    },
    /// Our own certificates could not be read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Certificates of authorities could not be read.
    #[error(transparent)]
    Authorities(#[from] AuthoritiesError),
    /// The file of the token for the admin listener holds none that will do.
    #[error("no token for the admin listener in {}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// Threads, signals or a runtime could not be had.
    #[error("the system refused {what}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}
