//! HTCP messages of this proxy: selects the request fields for a TST, and signs messages.
//!
//! Called by `queries`, and by `peers` for replies. No I/O.
//!
//! Invariant: a message to a peer with a key is always signed, except a refusal of a message
//! without a valid signature of that peer.

use std::net::SocketAddr;

use hashcache_peers::htcp::auth::{AuthError, Ends, LIFETIME_SECONDS, Signature};
use hashcache_peers::htcp::{Body, Message, Unsendable, datagram};
use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE};

use hashcache_upstream::peer::Peer;

/// Returns the `request` fields by which responses usually vary and that reveal little about a
/// client, as lines with CR LF.
pub(super) fn test_fields(request: &HeaderMap) -> Vec<u8> {
    let mut lines = Vec::new();
    for name in [ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE] {
        for value in request.get_all(&name) {
            let parts = [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"];
            lines.extend_from_slice(&parts.concat());
        }
    }
    lines
}

/// Encodes a message of version 0.`minor` for `peer`, signed if the peer has a key.
///
/// # Errors
/// The message does not fit in a datagram.
pub(crate) fn message(
    peer: &Peer,
    (minor, transaction): (u8, u32),
    body: &Body<'_>,
    ends: Ends,
    now: u32,
) -> Result<Vec<u8>, Unsendable> {
    let signature = peer.htcp_key.as_ref().map(|key| Signature {
        key,
        ends,
        time: now,
        expiry: now.saturating_add(LIFETIME_SECONDS),
    });
    datagram(minor, transaction, body, signature.as_ref())
}

/// Checks that `message`, which `from` sent to `to`, may be from `peer`: if the peer has a key, the
/// message must be signed with it.
pub(crate) fn check(
    peer: &Peer,
    message: &Message<'_>,
    (from, to): (SocketAddr, SocketAddr),
    now: u32,
) -> Result<(), AuthError> {
    let ends = Ends {
        source: from,
        destination: to,
    };
    let key = peer.htcp_key.as_ref();
    key.map_or(Ok(()), |key| message.check(key, &ends, now))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_test_carries_the_fields_by_which_responses_vary_and_no_others() {
        let mut request = HeaderMap::new();
        for (name, value) in [
            ("accept-encoding", "gzip"),
            ("cookie", "secret"),
            ("accept", "text/html"),
            ("accept", "image/*"),
            ("accept-language", "de"),
            ("authorization", "Basic eDp5"),
        ] {
            request.append(name, HeaderValue::from_static(value));
        }
        let lines = "accept: text/html\r\naccept: image/*\r\naccept-encoding: gzip\r\n\
                     accept-language: de\r\n";
        assert_eq!(test_fields(&request), lines.as_bytes());
    }
}
