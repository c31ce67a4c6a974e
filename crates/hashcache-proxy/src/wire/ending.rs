//! How a client's connection ended.

/// How a connection came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// After an answer that was the last, or because the client closed between two requests, or
    /// because we were told to stop.
    Closed,
    /// The client broke off, or sent a body that cannot be read, or the answer's body failed.
    Broken,
    /// No request came in `idle_time`.
    Idle,
    /// A request head was not complete in `head_time`.
    SlowHead,
    /// The client took nothing for `progress_time`.
    SlowWrite,
    /// In HTTP/2: more frames that ask for nothing than a client may send.
    Flood,
    /// There was no memory to serve a request.
    NoMemory,
    /// [`Cell::abort`], or an answer that broke and could only be ended so.
    Aborted,
    /// The socket was given to whoever called [`Cell::upgraded`].
    Upgraded,
}
