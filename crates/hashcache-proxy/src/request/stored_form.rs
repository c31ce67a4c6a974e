//! Form in which a client gets stored text: zstd as it is stored, or without a coding.
//!
//! On a box with a link, text is stored in pages (`pages` of `hashcache-store`), each a zstd frame.
//! Content in a single page is served as it is, in the content coding `zstd`, which costs nothing.
//! Longer content is several frames: RFC 8878 allows that, but some clients silently stop after the
//! first frame. These clients, and clients that do not accept zstd, get the decoded content.
//!
//! Called by `hit`, `memory_hit`, `follow` and `miss`.
//!
//! Invariants: as for `encode` of `hashcache-site`, which also defines these fields: the coded form
//! has a weak entity tag, no ranges and no digests, and is never served if `no-transform` forbids
//! it. Range requests get the decoded content. Another cache of ours (a child, a member) gets the
//! decoded content too, without `Vary`, because it would otherwise store a copy for each set of
//! codings.

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

/// Form in which a client gets stored content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredForm {
    /// As received: the content is not stored in pages, or the client is a cache of ours.
    AsItCame,
    /// The decoded content of the pages.
    Content,
    /// The pages themselves.
    Zstd,
}

impl StoredForm {
    /// The form for this request.
    pub(super) fn new(
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

    /// Adapts the stored fields to this form.
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

    /// As [`apply`](Self::apply), for the fields of a 304, which are fewer.
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

/// Adds `Vary` to a response that is being stored in pages, because later it has two forms.
pub(super) fn note_pages(connection: &Connection, request: &ClientRequest, fields: &mut HeaderMap) {
    if !is_of_our_cache(connection, request) {
        add_vary(fields);
    }
}

/// Returns true if the client is a child or a member: it stores content as received.
fn is_of_our_cache(connection: &Connection, request: &ClientRequest) -> bool {
    let site = request.site.as_ref();
    connection.child.is_some() || site.is_some_and(|site| site.sender == Sender::Member)
}

/// The name of the coding.
pub(super) const ZSTD: &str = "zstd";
