//! Reasons why a client's TLS is not intercepted; a label of the metrics.

/// The reason why a client's TLS is not intercepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The host is not on the list.
    NotListed,
    /// The host is on the never-list.
    Never,
    /// The host is an address, not a name.
    Address,
    /// Our authority is limited to other domains.
    NotPermitted,
    /// This program has refused our certificate.
    Learned,
    /// Not enough bytes arrived in time.
    Slow,
    /// The client closed the connection.
    Ended,
    /// The first byte is not the type of a TLS handshake record.
    NotTls,
    /// The message is no ClientHello, or a ClientHello of excessive size.
    Malformed,
    /// The ClientHello has no server name.
    NoName,
    /// The server name differs from the host of the CONNECT.
    OtherName,
    /// The network has redirected the connection to this proxy, and the name does not resolve to
    /// the address that the client had connected to.
    OtherAddress,
    /// The client does not offer TLS 1.2 or 1.3.
    OldTls,
    /// The client offers only protocols other than HTTP.
    NotHttp,
    /// No cipher suite, group or signature algorithm in common.
    NothingInCommon,
    /// The origin's certificate is invalid, or the origin cannot be reached.
    Unverified,
    /// The origin requests a client certificate.
    ClientCertificate,
    /// The authority cannot sign for the name.
    NoLeaf,
    /// There is no memory.
    Memory,
}

impl Reason {
    /// The name of the reason in the metrics.
    pub fn as_str(self) -> &'static str {
        let mut all = Self::ALL.iter();
        let found = all.find(|(reason, _)| *reason == self);
        found.map_or("unknown", |(_, name)| name)
    }

    /// All reasons with their names, in numerical order.
    pub const ALL: [(Self, &'static str); 19] = [
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
        (Self::OtherAddress, "other_address"),
        (Self::OldTls, "old_tls"),
        (Self::NotHttp, "not_http"),
        (Self::NothingInCommon, "nothing_in_common"),
        (Self::Unverified, "unverified"),
        (Self::ClientCertificate, "client_certificate"),
        (Self::NoLeaf, "no_leaf"),
        (Self::Memory, "memory"),
    ];
}
