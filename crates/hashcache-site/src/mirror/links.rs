//! The mirror's URL for a link in a response.
//!
//! Called by `json` and `html` with each link, by `fields` with Location.
//!
//! Invariant: a link to anything but a resource of the mirror is unchanged.
//! Cost: three small allocations per link.

use hashcache_http::{Target, resolve};

use super::Mirror;

/// Input for link rewriting.
#[derive(Clone, Debug)]
pub struct Links {
    mirror: Mirror,
    /// Scheme and authority under which the client reaches us.
    base: Box<str>,
    /// The base for relative links.
    page: Target,
    fingerprint: u64,
}

impl Links {
    /// Links in the response to `page`, for a client that reaches us under `base`.
    pub fn new(mirror: &Mirror, base: &str, page: Target) -> Self {
        Self {
            mirror: mirror.clone(),
            base: base.into(),
            page,
            fingerprint: mirror.fingerprint(base),
        }
    }

    /// A hash over everything that affects rewritten links.
    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(super) fn kind(&self) -> super::MirrorKind {
        self.mirror.kind
    }

    /// Sets the base for the following relative links: `<base href>`.
    pub(super) fn rebase(&mut self, reference: &str) {
        if let Some(page) = resolve(&self.page, reference) {
            self.page = page;
        }
    }

    /// The replacement for a link; `None` if it is unchanged.
    pub(super) fn rename(&self, reference: &str) -> Option<String> {
        let fragment_at = reference.find('#').unwrap_or(reference.len());
        let (bare, fragment) = reference.split_at(fragment_at);
        // A fragment in the page itself.
        if bare.is_empty() {
            return None;
        }
        let target = resolve(&self.page, bare)?;
        match self.mirror.place(&target) {
            Some(place) => {
                let Self { base, mirror, .. } = self;
                let mut renamed = format!("{base}/mirror/{}/{place}", mirror.name);
                // A link without a path gets a slash, after which clients add their own path. A
                // link that ends in dots is a directory, like a link that ends in a slash.
                let is_directory = matches!(bare.rsplit('/').next(), Some("" | "." | ".."));
                if !is_directory && renamed.ends_with('/') {
                    renamed.pop();
                }
                Some(renamed + fragment)
            }
            // Otherwise the link would be relative to the mirror.
            None if !bare.contains("://") => Some(format!("{target}{fragment}")),
            None => None,
        }
    }
}
