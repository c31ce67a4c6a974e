//! What the log knows about a request, and the words for how it was answered.
//!
//! Made by `request` and `tunnel` when the last byte has gone, read by `format` and `metrics`.
//!
//! Invariant: `Outcome::row` is the one table from our words to those of Squid and to the tallies.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use http::Version;

use crate::clock::UnixMillis;

/// One request or one tunnel, at its end.
///
/// A tunnel that stays open has an entry every five minutes too; each tells what passed since the
/// entry before, so that sums over lines are right.
#[derive(Clone, Debug)]
pub(crate) struct LogEntry<'a> {
    /// When the request's first byte came.
    pub(crate) start: UnixMillis,
    /// From then to the last byte sent.
    pub(crate) duration: Duration,
    /// From then to the first byte sent.
    pub(crate) first_byte: Option<Duration>,
    /// Who asked.
    pub(crate) client: SocketAddr,
    /// The method as it came.
    pub(crate) method: &'a str,
    /// `http` or `https`.
    pub(crate) scheme: &'a str,
    /// Host and port asked for; empty where the head was refused before they were known.
    pub(crate) authority: &'a str,
    /// Path and query; of a refused request the target as it came; empty for `CONNECT`.
    pub(crate) path: &'a str,
    /// The client's version of HTTP.
    pub(crate) version: Version,
    /// The status sent, 0 if none was.
    pub(crate) status: u16,
    /// How it was answered.
    pub(crate) outcome: Outcome,
    /// Whether the client left before the end.
    pub(crate) aborted: bool,
    /// Bytes sent to the client, heads included.
    pub(crate) client_bytes: u64,
    /// Bytes received from upstream for this request, heads included.
    pub(crate) origin_bytes: u64,
    /// Where we connected to.
    pub(crate) upstream: Option<SocketAddr>,
    /// The parent or sibling that was asked instead of the origin.
    pub(crate) peer: Option<&'a str>,
    /// `Failure::slug` of what went wrong.
    pub(crate) error: Option<&'static str>,
    /// The number that is also on the error page.
    pub(crate) request_id: RequestId,
    /// As it came.
    pub(crate) user_agent: Option<&'a [u8]>,
    /// As it came.
    pub(crate) referer: Option<&'a [u8]>,
    /// Of the response.
    pub(crate) content_type: Option<&'a [u8]>,
}

impl LogEntry<'_> {
    /// In which of the six tallies this request is counted, if in any.
    pub(crate) fn class(&self) -> Option<OutcomeClass> {
        let class = self.outcome.row().class;
        // A stale response served instead of an error is a hit all the same: the client is served.
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
    /// A new one; told apart from others, not hard to guess.
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
    /// `fwd=stale; fwd-status=304`: the stored response is good again.
    Revalidated,
    /// `collapsed`: another request's fetch served this one.
    Collapsed,
    /// `fwd=uri-miss`.
    Miss,
    /// `fwd=vary-miss`.
    VaryMiss,
    /// `fwd=stale`: there is a new response.
    Stale,
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
    /// A CONNECT whose TLS ended here.
    Intercepted,
    /// Refused by a list of ours.
    Denied,
    /// Answered by ourselves: own pages, refused heads.
    Own,
    /// A purge that was made.
    Purge,
}

/// The six tallies of `/stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutcomeClass {
    /// Nothing was fetched.
    Hit,
    /// It was fetched, in whole or in part.
    Miss,
    /// The origin said that the stored response is still good.
    Revalidated,
    /// Another request's fetch served it.
    Collapsed,
    /// It cannot be stored.
    Bypass,
    /// It was not answered as asked.
    Error,
}

/// What an outcome is called elsewhere.
pub(super) struct OutcomeWords {
    /// In JSON.
    pub(super) word: &'static str,
    /// In Squid's log.
    pub(super) squid: &'static str,
    /// In the counters.
    pub(super) class: Option<OutcomeClass>,
}

impl Outcome {
    /// Whether this is about a connection, and what is asked on it counts for itself.
    fn is_connection(self) -> bool {
        matches!(self, Self::Tunnel | Self::Intercepted)
    }

    pub(super) fn row(self) -> OutcomeWords {
        let (word, squid, class) = match self {
            Self::Hit => ("hit", "TCP_HIT", Some(OutcomeClass::Hit)),
            Self::MemoryHit => ("hit", "TCP_MEM_HIT", Some(OutcomeClass::Hit)),
            Self::NegativeHit => ("hit", "TCP_NEGATIVE_HIT", Some(OutcomeClass::Hit)),
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
