//! Log entries, and the names of outcomes.
//!
//! Made by `log_entry` after the last byte was sent, read by `format` and `metrics`.
//!
//! Invariant: `Outcome::row` is the only table from our outcomes to Squid's result codes and to the
//! classes of `/stats`.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use hashcache_base::clock::UnixMillis;
use http::Version;

use hashcache_link::usage::LinkUsage;

/// A finished request or tunnel.
///
/// An open tunnel also writes an entry every five minutes. Each entry covers the traffic since the
/// previous entry, so sums over lines are correct.
#[derive(Clone, Debug)]
pub(crate) struct LogEntry<'a> {
    /// Time at which the request's first byte arrived.
    pub(crate) start: UnixMillis,
    /// Time from `start` to the last byte sent.
    pub(crate) duration: Duration,
    /// Time from `start` to the first byte sent.
    pub(crate) first_byte: Option<Duration>,
    /// The client's address.
    pub(crate) client: SocketAddr,
    /// User name from the login at the proxy.
    pub(crate) user: Option<&'a str>,
    /// The method as received.
    pub(crate) method: &'a str,
    /// `http` or `https`.
    pub(crate) scheme: &'a str,
    /// Requested host and port; empty if the head was refused before they were known.
    pub(crate) authority: &'a str,
    /// Path and query; for a refused request the target as received; empty for `CONNECT`.
    pub(crate) path: &'a str,
    /// The client's version of HTTP.
    pub(crate) version: Version,
    /// Status sent, or 0 if no response was sent.
    pub(crate) status: u16,
    /// The outcome.
    pub(crate) outcome: Outcome,
    /// True if the client left before the response was complete.
    pub(crate) aborted: bool,
    /// Bytes sent to the client, heads included.
    pub(crate) client_bytes: u64,
    /// Bytes received from upstream for this request, heads included.
    pub(crate) origin_bytes: u64,
    /// Frames of the response on a link, received or sent.
    pub(crate) link: Option<LinkUsage>,
    /// The upstream server, if the request was sent to one.
    pub(crate) next_hop: Option<LoggedHop<'a>>,
    /// `Failure::slug` of the failure.
    pub(crate) error: Option<&'static str>,
    /// Request ID, which is also on the error page.
    pub(crate) request_id: RequestId,
    /// Field value as received.
    pub(crate) user_agent: Option<&'a [u8]>,
    /// Field value as received.
    pub(crate) referer: Option<&'a [u8]>,
    /// Content-Type of the response.
    pub(crate) content_type: Option<&'a [u8]>,
}

/// The upstream server of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedHop<'a> {
    /// Address of the server; `None`: there was no connection.
    pub(crate) address: Option<SocketAddr>,
    /// Name of the peer, if the server is a peer and not the origin.
    pub(crate) peer: Option<&'a str>,
    /// Squid's hierarchy code: the reason of the choice.
    pub(crate) code: &'static str,
}

impl LogEntry<'_> {
    /// Returns the class in which this request is counted, if any.
    pub(crate) fn class(&self) -> Option<OutcomeClass> {
        let class = self.outcome.row().class;
        // A stale response instead of an error is a hit, because the client gets a response.
        match (self.error, class) {
            (Some(_), Some(OutcomeClass::Hit)) => class,
            (Some(_), _) if !self.outcome.is_connection() => Some(OutcomeClass::Error),
            _ => class,
        }
    }
}

/// ID of a request, on the log line and on the error page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestId(pub(crate) u64);

impl RequestId {
    /// Returns a new ID; unique, but not hard to guess.
    pub(crate) fn fresh() -> Self {
        Self(fastrand::u64(..))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Outcome of a request, in the terms of RFC 9211 where it has a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// `hit`, from disk.
    Hit,
    /// `hit`, from memory.
    MemoryHit,
    /// `hit` on a stored error of the proxy or of the origin.
    NegativeHit,
    /// `hit` on a stale response, while it is validated in the background.
    StaleHit,
    /// `hit` on a stale response, because the origin failed.
    StaleIfError,
    /// `fwd=stale; fwd-status=304`: the stored response was validated.
    Revalidated,
    /// `collapsed`: the fetch of another request served this one.
    Collapsed,
    /// `fwd=uri-miss`.
    Miss,
    /// `fwd=vary-miss`.
    VaryMiss,
    /// `fwd=stale`: there is a new response.
    Stale,
    /// `fwd=stale`: the stored response could not be validated, and must not be served unvalidated.
    StaleFailed,
    /// `fwd=request`: the client wanted a response from the origin.
    Request,
    /// `fwd=bypass`: not cacheable, by rule.
    Bypass,
    /// `fwd=method`.
    Method,
    /// `fwd=partial`: a part was stored.
    Partial,
    /// A tunnel.
    Tunnel,
    /// An intercepted CONNECT.
    Intercepted,
    /// Refused by an access rule.
    Denied,
    /// Answered by the proxy itself: own pages, refused heads.
    Own,
    /// A completed purge.
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
    /// Served by the fetch of another request.
    Collapsed,
    /// Not cacheable.
    Bypass,
    /// Failed or refused.
    Error,
    /// Answered by a stored error.
    Negative,
}

/// Names of an outcome.
pub(super) struct OutcomeWords {
    /// Name in JSON.
    pub(super) word: &'static str,
    /// Result code in Squid's log.
    pub(super) squid: &'static str,
    /// Class in the counters.
    pub(super) class: Option<OutcomeClass>,
}

impl Outcome {
    /// Returns the outcome of a request that was answered with `status`. An error does not replace
    /// a stale response, so a status of 500 or above means that the validation has failed. Squid
    /// has the same limit.
    pub(crate) fn with_status(self, status: u16) -> Self {
        match self {
            Self::Stale if status >= 500 => Self::StaleFailed,
            outcome => outcome,
        }
    }

    /// Returns true if the outcome describes a connection; requests inside are counted separately.
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
