//! Why TLS of a client is not intercepted; a label of the metrics.

/// Why TLS does not end here while it might.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The host is not on the list.
    NotListed,
    /// It is one of those that are never intercepted.
    Never,
    /// There is no name, but an address.
    Address,
    /// Our authority is kept to other domains.
    NotPermitted,
    /// This program has refused us.
    Learned,
    /// Nothing that could be judged came in time.
    Slow,
    /// The client ended before.
    Ended,
    /// The first byte is not one of TLS.
    NotTls,
    /// It is no ClientHello, or one of unheard-of size.
    Malformed,
    /// The client names nobody.
    NoName,
    /// The client names another host than the one it connects to.
    OtherName,
    /// The client does not offer TLS 1.2 or 1.3.
    OldTls,
    /// The client wants to speak something else than HTTP.
    NotHttp,
    /// We could not shake hands with this client.
    NothingInCommon,
    /// The origin's certificate is not good, or the origin is not to be reached.
    Unverified,
    /// The origin wants to know who the client is.
    ClientCertificate,
    /// The authority does not vouch for the name.
    NoLeaf,
    /// There is no memory for it.
    Memory,
}

impl Reason {
    /// All, in the order of their numbers, with their names.
    pub(crate) const ALL: [(Self, &'static str); 18] = [
        (Self::NotListed, "not_listed"),
        (Self::Never, "never"),
        (Self::Address, "address"),
        (Self::NotPermitted, "not_permitted"),
        (Self::Learned, "learned"),
        (Self::Slow, "slow"),
        (Self::Ended, "ended"),
        (Self::NotTls, "not_tls"),
        (Self::Malformed, "malformed"),
        (Self::NoName, "no_name"),
        (Self::OtherName, "other_name"),
        (Self::OldTls, "old_tls"),
        (Self::NotHttp, "not_http"),
        (Self::NothingInCommon, "nothing_in_common"),
        (Self::Unverified, "unverified"),
        (Self::ClientCertificate, "client_certificate"),
        (Self::NoLeaf, "no_leaf"),
        (Self::Memory, "memory"),
    ];
}
