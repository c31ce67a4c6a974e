//! The form in which a client gets stored text: zstd as it is stored, or without a coding.
//!
//! Text of a box with a link is stored in pages (`pages` of `hashcache-store`), each a zstd frame.
//! Content of one page is given as it is, in the content coding `zstd`, which costs nothing. Longer
//! content is several frames: RFC 8878 allows that, but some clients silently end after the first
//! one. They, and clients that do not accept zstd, get the content of the pages.
//!
//! Called by `hit`, `memory_hit`, `follow` and `miss`.
//!
//! Invariants: as of `encode` of `hashcache-site`, whose fields these are: the coded form has a
//! weak entity tag, no ranges and no digests, and is never given where `no-transform` forbids it.
//! Requests for a range get the content. Another cache of ours (a child, a member) gets the content
//! too, without `Vary`: it would otherwise store a copy for each set of codings.

use hashcache_http::RequestFacts;
use hashcache_site::encode::{
    ABOUT_IDENTITY, add_vary, encoded_fields, forbids_changes, prefers_zstd, weaken_tag,
};
use hashcache_site::live::Sender;
use hashcache_store::StoredResponse;
use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

use super::transaction::ClientRequest;
use crate::connection::Connection;

/// The form in which a client gets a stored content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredForm {
    /// As it came: the content is not stored in pages, or the client is a cache of ours.
    AsItCame,
    /// The content of pages.
    Content,
    /// The pages themselves.
    Zstd,
}

impl StoredForm {
    /// The form for this request.
    pub(super) fn of(
        connection: &Connection,
        (request, facts): (&ClientRequest, &RequestFacts),
        stored: &StoredResponse,
    ) -> Self {
        let pages = stored.pages.as_ref();
        let Some(pages) = pages.filter(|_| !is_of_our_cache(connection, request)) else {
            return Self::AsItCame;
        };
        let accepted = request.fields.get_all(ACCEPT_ENCODING).iter();
        let is_zstd = pages.is_one_page()
            && !facts.has_range
            && !facts.directives.no_transform
            && !forbids_changes(&stored.fields)
            && prefers_zstd(accepted.map(|value| value.as_bytes()));
        if is_zstd { Self::Zstd } else { Self::Content }
    }

    /// Changes the stored fields into those of this form.
    pub(super) fn apply(self, fields: &mut HeaderMap) {
        match self {
            Self::AsItCame => {}
            Self::Content => add_vary(fields),
            Self::Zstd => {
                add_vary(fields);
                encoded_fields(ZSTD, fields);
            }
        }
    }

    /// The same for the fields of a 304, which are fewer.
    pub(super) fn apply_to_not_modified(self, fields: &mut HeaderMap) {
        if self == Self::Zstd {
            weaken_tag(fields);
            ABOUT_IDENTITY.iter().for_each(|name| {
                fields.remove(name);
            });
        }
        if self != Self::AsItCame {
            add_vary(fields);
        }
    }
}

/// Adds `Vary` to a response whose content is being stored in pages: later it has two forms.
pub(super) fn note_pages(connection: &Connection, request: &ClientRequest, fields: &mut HeaderMap) {
    if !is_of_our_cache(connection, request) {
        add_vary(fields);
    }
}

/// Whether the client is a child or a member: it stores content as it came.
fn is_of_our_cache(connection: &Connection, request: &ClientRequest) -> bool {
    let site = request.site.as_ref();
    connection.child.is_some() || site.is_some_and(|site| site.sender == Sender::Member)
}

/// The name of the coding.
pub(super) const ZSTD: &str = "zstd";
