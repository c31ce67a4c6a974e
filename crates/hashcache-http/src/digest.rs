//! Digests of content: what `Repr-Digest` and `Content-Digest` promise (RFC 9530).
//!
//! The proxy asks when a whole response is about to be stored, and feeds the content as it comes.
//!
//! Invariant: content is called sound only if every promise in `sha-256` holds. Other algorithms
//! are ignored, as RFC 9530 2 and 3 allow: `sha-512` is rarely sent alone, and the others are not
//! to be trusted (RFC 9530 5).
//! Cost: nothing without the fields; else one SHA-256 over the content, 200 MB/s or so.

use http::header::{HeaderMap, HeaderName};

use crate::sha256::Sha256;
use crate::structured::{Item, dictionary};

/// What is promised about content that is still coming.
#[derive(Clone, Debug)]
pub struct ContentDigest {
    promised: [u8; 32],
    hash: Sha256,
}

impl ContentDigest {
    /// What the fields of a whole response to GET promise; `None` if nothing we can check. Fields
    /// that contradict each other promise what no content can keep.
    pub fn promised(response: &HeaderMap) -> Option<ContentDigest> {
        let mut promised: Option<[u8; 32]> = None;
        for field in FIELDS {
            let members = dictionary(response, &field).unwrap_or_default();
            let member = members.into_iter().find(|(name, _)| name == ALGORITHM);
            let Some((_, Item::Bytes(bytes))) = member else {
                continue;
            };
            // A digest of another length is no digest of this algorithm.
            let Ok(bytes) = <[u8; 32]>::try_from(bytes) else {
                continue;
            };
            match promised {
                Some(before) if before != bytes => promised = Some([0; 32]),
                _ => promised = Some(bytes),
            }
        }
        promised.map(|promised| ContentDigest {
            promised,
            hash: Sha256::new(),
        })
    }

    /// Takes the next bytes of the content.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
    }

    /// Whether the bytes so far are the content that was promised.
    pub fn holds(&self) -> bool {
        self.hash.clone().finish() == self.promised
    }
}

const FIELDS: [HeaderName; 2] = [
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("content-digest"),
];

const ALGORITHM: &str = "sha-256";

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `hello`, by `printf hello | openssl dgst -sha256 -binary | base64`.
    const HELLO: &str = "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:";

    fn digest(lines: &[(&'static str, &str)]) -> Option<ContentDigest> {
        let mut fields = HeaderMap::new();
        for (name, value) in lines {
            fields.append(*name, value.parse().unwrap());
        }
        ContentDigest::promised(&fields)
    }

    fn holds(digest: Option<ContentDigest>, content: &[u8]) -> bool {
        let mut digest = digest.expect("something is promised");
        content.chunks(2).for_each(|bytes| digest.update(bytes));
        digest.holds()
    }

    #[test]
    fn content_is_held_against_what_was_promised() {
        for name in ["repr-digest", "content-digest"] {
            assert!(holds(digest(&[(name, HELLO)]), b"hello"));
            assert!(!holds(digest(&[(name, HELLO)]), b"hellO"));
            assert!(!holds(digest(&[(name, HELLO)]), b"hell"));
        }
        let both = [("repr-digest", HELLO), ("content-digest", HELLO)];
        assert!(holds(digest(&both), b"hello"));
        let other = "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCA=:";
        let torn = [("repr-digest", HELLO), ("content-digest", other)];
        assert!(!holds(digest(&torn), b"hello"));
    }

    #[test]
    fn what_cannot_be_checked_promises_nothing() {
        for value in [
            "md5=:eA==:",
            "sha-256=:eA==:",
            "sha-256=x",
            "sha-512=:eA==:",
            "SHA-256=:eA==:",
            "",
        ] {
            assert!(digest(&[("repr-digest", value)]).is_none(), "{value}");
        }
        assert!(digest(&[]).is_none());
        let mixed = format!("sha-512=:eA==:, {HELLO}, unixsum=5");
        assert!(holds(digest(&[("repr-digest", &mixed)]), b"hello"));
    }
}
