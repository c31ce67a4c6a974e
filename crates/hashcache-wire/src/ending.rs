//! How a client's connection ended.

/// The reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// After the last response, because the client closed between two requests, or because we were
    /// told to stop.
    Closed,
    /// The client disconnected or sent an invalid body, or the body of the response failed.
    Broken,
    /// No request arrived within `idle_time`.
    Idle,
    /// A request head was incomplete after `head_time`.
    SlowHead,
    /// The client took no byte for `progress_time`.
    SlowWrite,
    /// HTTP/2: the client sent more frames without a request than it may.
    Flood,
    /// There was no memory to serve a request.
    NoMemory,
    /// The socket was handed to the caller of `Cell::upgraded`.
    Upgraded,
}
