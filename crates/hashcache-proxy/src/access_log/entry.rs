//! Log entries, and the words for outcomes.
//!
//! Made by `log_entry` when the last byte was sent, read by `format` and `metrics`.
//!
//! Invariant: `Outcome::row` is the only table from our outcomes to Squid's words and to the
//! classes of `/stats`.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use hashcache_base::clock::UnixMillis;
use http::Version;

use hashcache_link::usage::LinkUsage;

/// One request or one tunnel, at its end.
///
/// An open tunnel writes an entry every five minutes too. Each covers the traffic since the
/// previous entry, so sums over lines are correct.
#[derive(Clone, Debug)]
pub(crate) struct LogEntry<'a> {
    /// The time at which the request's first byte arrived.
    pub(crate) start: UnixMillis,
    /// From then to the last byte sent.
    pub(crate) duration: Duration,
    /// From then to the first byte sent.
    pub(crate) first_byte: Option<Duration>,
    /// The client's address.
    pub(crate) client: SocketAddr,
    /// The name of the user who logged in at the proxy.
    pub(crate) user: Option<&'a str>,
    /// The method as received.
    pub(crate) method: &'a str,
    /// `http` or `https`.
    pub(crate) scheme: &'a str,
    /// The requested host and port; empty if the head was refused before they were known.
    pub(crate) authority: &'a str,
    /// Path and query; of a refused request the target as received; empty for `CONNECT`.
    pub(crate) path: &'a str,
    /// The client's version of HTTP.
    pub(crate) version: Version,
    /// The status sent, 0 if none was.
    pub(crate) status: u16,
    /// The outcome.
    pub(crate) outcome: Outcome,
    /// Whether the client left before the end.
    pub(crate) aborted: bool,
    /// Bytes sent to the client, heads included.
    pub(crate) client_bytes: u64,
    /// Bytes received from upstream for this request, heads included.
    pub(crate) origin_bytes: u64,
    /// The frames of the response on a link, received or sent.
    pub(crate) link: Option<LinkUsage>,
    /// The server that was asked, if one was.
    pub(crate) next_hop: Option<LoggedHop<'a>>,
    /// `Failure::slug` of the failure.
    pub(crate) error: Option<&'static str>,
    /// The number that is also on the error page.
    pub(crate) request_id: RequestId,
    /// As received.
    pub(crate) user_agent: Option<&'a [u8]>,
    /// As received.
    pub(crate) referer: Option<&'a [u8]>,
    /// Of the response.
    pub(crate) content_type: Option<&'a [u8]>,
}

/// The server that was asked for a resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedHop<'a> {
    /// Its address; `None`: there was no connection.
    pub(crate) address: Option<SocketAddr>,
    /// Its name, if it is a peer and not the origin.
    pub(crate) peer: Option<&'a str>,
    /// Squid's word for the reason of the choice.
    pub(crate) code: &'static str,
}

impl LogEntry<'_> {
    /// The class in which this request is counted, if any.
    pub(crate) fn class(&self) -> Option<OutcomeClass> {
        let class = self.outcome.row().class;
        // A stale response served instead of an error is a hit: the client is served.
        match (self.error, class) {
            (Some(_), Some(OutcomeClass::Hit)) => class,
            (Some(_), _) if !self.outcome.is_connection() => Some(OutcomeClass::Error),
            _ => class,
        }
    }
}

/// The number of a request, on its log line and on its error page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestId(pub(crate) u64);

impl RequestId {
    /// A new number; unique, but not hard to guess.
    pub(crate) fn fresh() -> Self {
        Self(fastrand::u64(..))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// How a request was answered, in the words of RFC 9211 where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// `hit`, from disk.
    Hit,
    /// `hit`, from memory.
    MemoryHit,
    /// `hit` on a stored error of ours or of the origin's.
    NegativeHit,
    /// `hit` on a stale response, while it is validated in the background.
    StaleHit,
    /// `hit` on a stale response, because the origin failed.
    StaleIfError,
    /// `fwd=stale; fwd-status=304`: the stored response was validated.
    Revalidated,
    /// `collapsed`: another request's fetch served this one.
    Collapsed,
    /// `fwd=uri-miss`.
    Miss,
    /// `fwd=vary-miss`.
    VaryMiss,
    /// `fwd=stale`: there is a new response.
    Stale,
    /// `fwd=stale`: the stored response could not be validated, and must not be served unvalidated.
    StaleFailed,
    /// `fwd=request`: the client wanted the origin's answer.
    Request,
    /// `fwd=bypass`: not to be cached, by rule.
    Bypass,
    /// `fwd=method`.
    Method,
    /// `fwd=partial`: some of it was stored.
    Partial,
    /// A tunnel.
    Tunnel,
    /// An intercepted CONNECT.
    Intercepted,
    /// Refused by an access rule.
    Denied,
    /// Answered by the proxy itself: own pages, refused heads.
    Own,
    /// A purge that was made.
    Purge,
}

/// The classes of `/stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutcomeClass {
    /// Served from the store.
    Hit,
    /// Fetched, in whole or in part.
    Miss,
    /// Validated by the origin.
    Revalidated,
    /// Served by another request's fetch.
    Collapsed,
    /// Not cacheable.
    Bypass,
    /// Failed or refused.
    Error,
    /// Answered by a stored error.
    Negative,
}

/// The names of an outcome.
pub(super) struct OutcomeWords {
    /// In JSON.
    pub(super) word: &'static str,
    /// In Squid's log.
    pub(super) squid: &'static str,
    /// In the counters.
    pub(super) class: Option<OutcomeClass>,
}

impl Outcome {
    /// The outcome of a request that was answered with `status`. An error does not replace a stale
    /// response; its validation has failed. Squid draws the line at 500 too.
    pub(crate) fn with_status(self, status: u16) -> Self {
        match self {
            Self::Stale if status >= 500 => Self::StaleFailed,
            outcome => outcome,
        }
    }

    /// Whether this is about a connection, whose requests are counted separately.
    fn is_connection(self) -> bool {
        matches!(self, Self::Tunnel | Self::Intercepted)
    }

    pub(super) fn row(self) -> OutcomeWords {
        let (word, squid, class) = match self {
            Self::Hit => ("hit", "TCP_HIT", Some(OutcomeClass::Hit)),
            Self::MemoryHit => ("hit", "TCP_MEM_HIT", Some(OutcomeClass::Hit)),
            Self::NegativeHit => ("hit", "TCP_NEGATIVE_HIT", Some(OutcomeClass::Negative)),
            Self::StaleHit => ("hit-stale", "TCP_STALE_HIT", Some(OutcomeClass::Hit)),
            Self::StaleIfError => ("hit-stale", "TCP_REFRESH_FAIL_OLD", Some(OutcomeClass::Hit)),
            Self::Revalidated => (
                "revalidated",
                "TCP_REFRESH_UNMODIFIED",
                Some(OutcomeClass::Revalidated),
            ),
            Self::Collapsed => ("collapsed", "TCP_CF_HIT", Some(OutcomeClass::Collapsed)),
            Self::Miss => ("uri-miss", "TCP_MISS", Some(OutcomeClass::Miss)),
            Self::VaryMiss => ("vary-miss", "TCP_MISS", Some(OutcomeClass::Miss)),
            Self::Stale => ("stale", "TCP_REFRESH_MODIFIED", Some(OutcomeClass::Miss)),
            Self::StaleFailed => ("stale", "TCP_REFRESH_FAIL_ERR", Some(OutcomeClass::Miss)),
            Self::Request => (
                "request",
                "TCP_CLIENT_REFRESH_MISS",
                Some(OutcomeClass::Miss),
            ),
            Self::Bypass => ("bypass", "TCP_MISS", Some(OutcomeClass::Bypass)),
            Self::Method => ("method", "TCP_MISS", Some(OutcomeClass::Bypass)),
            Self::Partial => ("partial", "TCP_MISS", Some(OutcomeClass::Miss)),
            Self::Tunnel => ("tunnel", "TCP_TUNNEL", None),
            Self::Intercepted => ("intercepted", "NONE_NONE", None),
            Self::Denied => ("denied", "TCP_DENIED", Some(OutcomeClass::Error)),
            Self::Own => ("own", "NONE_NONE", None),
            Self::Purge => ("purge", "NONE_NONE", None),
        };
        OutcomeWords { word, squid, class }
    }
}
