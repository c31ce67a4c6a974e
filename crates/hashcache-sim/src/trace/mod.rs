//! Requests of a trace.

/// One request: what a line of a trace says. Names are bytes: URLs in old logs have spaces, control
/// characters and any octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// When it was made, microseconds since whatever the trace counts from; 0 if it does not say.
    pub time_us: u64,
    /// Who made it; empty if the trace does not say.
    pub client: &'a [u8],
    /// What is requested, mostly an URL.
    pub name: &'a [u8],
    /// Octets of the response; `None` if the trace does not say, as of what was validated or was
    /// answered by the client's own cache.
    pub bytes: Option<u64>,
    /// The page that it belongs to, as the trace names it; empty: none is known.
    pub group: &'a [u8],
    /// Whether a cache may store the response, as far as method and status say.
    pub may_be_stored: bool,
}
