//! SHA-256 of the content of a fetch: stored with the content, so that it can be a dictionary on a
//! link.
//!
//! Called by `pump`. Content that arrived in frames has a digest already.
//!
//! Invariant: a digest is given only if a single hash has seen the whole content.
//! Cost: 1 to 4 ms a MB, if digests are kept and the content arrived in ordinary HTTP.
use hashcache_wan::digest::{Digest, Running};

use hashcache_upstream::ResponseBody;

/// The hash of the content received so far.
pub(super) enum ContentHash {
    /// No digest is wanted, or it cannot be known.
    None,
    Running(Box<Running>),
    /// The frames carry the digest.
    Framed,
}

impl ContentHash {
    /// A hash for the content of `body`, if `metadata` has a place for it.
    pub(super) fn new(metadata: &[u8], body: &ResponseBody) -> Self {
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

    /// Records that the rest arrives with another response.
    pub(super) fn note_resumed(&mut self) {
        if let Self::Framed = self {
            *self = Self::None;
        }
    }

    /// The digest, when all content has arrived.
    pub(super) fn digest(&self, body: &ResponseBody) -> Option<Digest> {
        match self {
            Self::None => None,
            Self::Running(running) => Some(running.digest()),
            Self::Framed => body.content_digest(),
        }
    }
}
