//! Reasons for closing a client's connection.

/// The reason why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Closed after the last response, because the client closed between two requests, or because
    /// the proxy is stopping.
    Closed,
    /// The client disconnected or sent an invalid body, or the response body failed.
    Broken,
    /// No request arrived within `idle_time`.
    Idle,
    /// A request head was incomplete after `head_time`.
    SlowHead,
    /// The client accepted no byte for `progress_time`.
    SlowWrite,
    /// HTTP/2: the client exceeded the limit for frames without a request.
    Flood,
    /// There was no memory to serve a request.
    NoMemory,
    /// The socket was handed to the caller of `Cell::upgraded`.
    Upgraded,
}
