//! The mirror's name for what a link in a response leads to.
//!
//! Called by `json` and `html` with each link, by `fields` with Location.
//!
//! Invariant: a link that leads to none of the mirror's resources leads there still.
//! Cost: three small allocations a link.

use hashcache_http::{Target, resolve};

use super::Mirror;

/// What is needed to name a link anew.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    mirror: Mirror,
    /// Scheme and authority by which the client reaches us.
    base: Box<str>,
    /// What relative links are relative to.
    page: Target,
    fingerprint: u64,
}

impl Links {
    /// Links of the response to `page`, for a client that reaches us under `base`.
    pub(crate) fn new(mirror: &Mirror, base: &str, page: Target) -> Self {
        Self {
            mirror: mirror.clone(),
            base: base.into(),
            page,
            fingerprint: mirror.fingerprint(base),
        }
    }

    /// Changes with all that decides what links are turned into.
    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(super) fn kind(&self) -> super::MirrorKind {
        self.mirror.kind
    }

    /// Has links from now on be relative to this one: `<base href>`.
    pub(super) fn rebase(&mut self, reference: &str) {
        if let Some(page) = resolve(&self.page, reference) {
            self.page = page;
        }
    }

    /// What to write instead of a link; `None` when it stays as it is.
    pub(super) fn rename(&self, reference: &str) -> Option<String> {
        let fragment_at = reference.find('#').unwrap_or(reference.len());
        let (bare, fragment) = reference.split_at(fragment_at);
        // Only a place in the page itself.
        if bare.is_empty() {
            return None;
        }
        let target = resolve(&self.page, bare)?;
        match self.mirror.place(&target) {
            Some(place) => {
                let Self { base, mirror, .. } = self;
                let mut renamed = format!("{base}/mirror/{}/{place}", mirror.name);
                // A link without a path gets a slash, behind which clients put one of their own.
                // One that ends in dots leads to a directory, as one that ends in a slash does.
                let is_directory = matches!(bare.rsplit('/').next(), Some("" | "." | ".."));
                if !is_directory && renamed.ends_with('/') {
                    renamed.pop();
                }
                Some(renamed + fragment)
            }
            // It would be relative to the mirror.
            None if !bare.contains("://") => Some(format!("{target}{fragment}")),
            None => None,
        }
    }
}
