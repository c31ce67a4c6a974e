//! SHA-256 of the content of a fetch: stored with it, so that it can be a dictionary on a link.
//!
//! Called by `pump`. Content that came in frames has a digest already.
//!
//! Invariant: a digest is given only for content that was seen whole by one hash.
//! Cost: 1 to 4 ms a MB, where digests are kept and the content came in ordinary HTTP.
use hashcache_wan::digest::{Digest, Running};

use hashcache_upstream::ResponseBody;

/// The hash of what was received so far.
pub(super) enum ContentHash {
    /// None is wanted, or it cannot be known.
    None,
    Running(Box<Running>),
    /// The frames have it.
    Framed,
}

impl ContentHash {
    /// The hash of what arrives with `body`, if `metadata` has a place for it.
    pub(super) fn of(metadata: &[u8], body: &ResponseBody) -> Self {
        match (
            hashcache_store::announces_digest(metadata),
            body.is_framed(),
        ) {
            (false, _) => Self::None,
            (true, true) => Self::Framed,
            (true, false) => Self::Running(Box::default()),
        }
    }

    /// Adds content.
    pub(super) fn update(&mut self, content: &[u8]) {
        if let Self::Running(running) = self {
            running.update(content);
        }
    }

    /// Notes that the rest arrives with another response.
    pub(super) fn note_resumed(&mut self) {
        if let Self::Framed = self {
            *self = Self::None;
        }
    }

    /// The digest, when all content has arrivedd.
    pub(super) fn digest(&self, body: &ResponseBody) -> Option<Digest> {
        match self {
            Self::None => None,
            Self::Running(running) => Some(running.digest()),
            Self::Framed => body.content_digest(),
        }
    }
}
