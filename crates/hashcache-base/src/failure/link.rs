//! Why there is no link, and how the operator can repair it.
//!
//! Made by `linked` in `hashcache-upstream`; a part of `Failure`, and shown by `hashcache link
//! status`.

/// A fault in the link itself, not in the line below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFault {
    /// The parent has shown another key than the pinned key.
    OtherKey,
    /// The parent has aborted the handshake because of our key.
    NotAccepted,
    /// The other side does not speak the protocol of a link.
    NoListener,
    /// The connection was closed before the parent had accepted it.
    Ended,
    /// There is no memory for the connection's windows.
    Memory,
    /// Response content arrived in invalid frames.
    Frames,
}

impl LinkFault {
    /// A phrase for logs and pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OtherKey => "the key of the parent is not the pinned one",
            Self::NotAccepted => "the parent does not accept the key of this box",
            Self::NoListener => "the other end is not the link listener of a parent",
            Self::Ended => "the parent ended the connection before it accepted it",
            Self::Memory => "there is no memory for the link",
            Self::Frames => "content came damaged over the link",
        }
    }

    /// Advice for the operator.
    pub fn advice(self) -> &'static str {
        match self {
            Self::OtherKey => {
                "run `hashcache link pin` on the parent and compare it with the pin here; if \
                 nobody has made a new key there, someone else answers in its place"
            }
            Self::NotAccepted => {
                "run `hashcache link pin` here, and add that pin to `link_children` of the parent"
            }
            Self::NoListener => {
                "the URL of the parent must have the port of its `link_listen`, not that of \
                 `listen`"
            }
            Self::Ended => {
                "see the log of the parent: it may be stopping, or have no memory for a link"
            }
            Self::Memory => "give the proxy more with `--memory`, or wait until it is less busy",
            Self::Frames => {
                "run the same version on both sides; `hashcache_link_resumed_total` counts how \
                 often it happens"
            }
        }
    }
}
