//! Limits as the operator wrote them.
//!
//! Made by `hashcache-cli`; `limiter` applies them.

/// Which bytes and requests are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitPer {
    /// Separately for each client: an IPv4 address or an IPv6 network of 64 bits.
    Client,
    /// Separately for each user; if the user is not known, for each client.
    User,
    /// For all clients together.
    All,
}

impl LimitPer {
    /// All values and their names in settings.
    pub const ALL: [(&'static str, Self); 3] = [
        ("client", Self::Client),
        ("user", Self::User),
        ("all", Self::All),
    ];
}

/// The calendar period of a quota, in the system's time zone.
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
    /// All values and their names in settings.
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

/// The action when a quota is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaEnd {
    /// Requests that need the origin are refused, and transfers from the origin are stopped.
    Refuse,
    /// Content from origins is slowed down to this number of bytes per second.
    Slow(u64),
}

/// An amount of bytes from origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes in each period.
    pub bytes: u64,
    /// The period.
    pub period: QuotaPeriod,
    /// The action when the bytes are used up.
    pub end: QuotaEnd,
}

/// A rate, and how far a burst may exceed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bytes or requests per second, at least 1.
    pub per_second: u64,
    /// Bytes or requests at once, after a pause; at least 1.
    pub burst: u64,
}

/// The settings in a `[[limit]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSettings {
    /// The name in rules, on pages and in the usage file.
    pub name: String,
    /// Which bytes and requests are added up.
    pub per: LimitPer,
    /// Bytes from origins per period.
    pub quota: Option<Quota>,
    /// Bytes of content to clients per second.
    pub bandwidth: Option<Rate>,
    /// Requests per second.
    pub requests: Option<Rate>,
}
