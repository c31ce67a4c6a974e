//! Limits as the operator wrote them.
//!
//! Made by `hashcache-cli`; `limiter` applies them.

/// Whose bytes and requests are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitPer {
    /// Each client has its own: an IPv4 address or an IPv6 network of 64 bits.
    Client,
    /// Each user has their own; where the user is not known, each client.
    User,
    /// All have one together.
    All,
}

impl LimitPer {
    /// The words for it.
    pub const ALL: [(&'static str, Self); 3] = [
        ("client", Self::Client),
        ("user", Self::User),
        ("all", Self::All),
    ];
}

/// How long a quota lasts, by the calendar of the system's time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaPeriod {
    /// From midnight.
    Day,
    /// From Monday.
    Week,
    /// From the first of the month.
    Month,
}

impl QuotaPeriod {
    /// The words for it.
    pub const ALL: [(&'static str, Self); 3] = [
        ("day", Self::Day),
        ("week", Self::Week),
        ("month", Self::Month),
    ];

    /// Name of the period in settings and on pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }
}

/// What happens when a quota is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaEnd {
    /// Requests that need the origin are refused, and transfers from it end.
    Refuse,
    /// Content from origins comes with so many bytes per second.
    Slow(u64),
}

/// An amount of bytes from origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes in each period.
    pub bytes: u64,
    /// The period.
    pub period: QuotaPeriod,
    /// What happens at the end of it.
    pub end: QuotaEnd,
}

/// A rate, and what may exceed it for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bytes or requests per second, at least 1.
    pub per_second: u64,
    /// Bytes or requests at once, after a time without any; at least 1.
    pub burst: u64,
}

/// One `[[limit]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSettings {
    /// Its name in rules, on pages and in the file of usage.
    pub name: String,
    /// Whose bytes and requests are added up.
    pub per: LimitPer,
    /// Bytes from origins per period.
    pub quota: Option<Quota>,
    /// Bytes of content to clients per second.
    pub bandwidth: Option<Rate>,
    /// Requests per second.
    pub requests: Option<Rate>,
}
