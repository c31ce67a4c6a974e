//! Digests in `Repr-Digest` and `Content-Digest` (RFC 9530). The predecessors are only recognised,
//! not checked: `Digest` (RFC 3230) and `Content-MD5` (RFC 1864).
//!
//! The proxy creates a [`ContentDigest`] for each complete response that is about to be stored, and
//! passes the content to it as it arrives.
//!
//! Invariant: content is valid only if every `sha-256` and `sha-512` digest matches. Other
//! algorithms are ignored, as RFC 9530 2 and 3 allow, because they are insecure (RFC 9530 5).
//! Cost: nothing without the fields; otherwise a hash over the content for each of the two
//! algorithms in use, about a gigabyte a second on processors with SHA-256 instructions.

use std::fmt;

use http::header::{HeaderMap, HeaderName};
use ring::digest::{Algorithm, Context, SHA256, SHA512};

use crate::structured::{Item, dictionary};

/// Expected digests for content that is still arriving.
#[derive(Clone)]
pub struct ContentDigest(Vec<ExpectedDigest>);

#[derive(Clone)]
struct ExpectedDigest {
    /// `None`: two fields contradict each other, so no content can match.
    digest: Option<Vec<u8>>,
    hash: Context,
}

impl ContentDigest {
    /// The digests in a complete response to GET; `None` if there is none that we can check.
    pub fn promised(response: &HeaderMap) -> Option<ContentDigest> {
        let fields = FIELDS.map(|field| dictionary(response, &field).unwrap_or_default());
        let promises = ALGORITHMS.iter().filter_map(|(name, algorithm)| {
            let members = fields.iter().flatten().filter(|(member, _)| member == name);
            let mut digests = members.filter_map(|(_, item)| match item {
                // Bytes with another length cannot be a digest for this algorithm.
                Item::Bytes(bytes) if bytes.len() == algorithm.output_len() => Some(bytes),
                _ => None,
            });
            let first = digests.next()?;
            let agreed = digests.all(|digest| digest == first);
            Some(ExpectedDigest {
                digest: agreed.then(|| first.clone()),
                hash: Context::new(algorithm),
            })
        });
        let promises: Vec<_> = promises.collect();
        (!promises.is_empty()).then_some(ContentDigest(promises))
    }

    /// Hashes the next bytes of the content.
    pub fn update(&mut self, bytes: &[u8]) {
        for promise in &mut self.0 {
            promise.hash.update(bytes);
        }
    }

    /// Returns true if the bytes so far match all expected digests.
    pub fn holds(&self) -> bool {
        self.0.iter().all(|promise| {
            let found = promise.hash.clone().finish();
            promise.digest.as_deref() == Some(found.as_ref())
        })
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let promises = self.0.iter().map(|promise| &promise.digest);
        f.debug_list().entries(promises).finish()
    }
}

/// Removes the digests of a single message's content. `Content-Digest` and `Content-MD5` describe
/// the bytes in their own message (RFC 9530 2), so they are wrong in a 206 that is cut from a 200,
/// in a 200 that is assembled from parts, and in responses without content. `Repr-Digest` and
/// `Digest` describe the whole representation and stay.
pub fn remove_content_digests(fields: &mut HeaderMap) {
    for name in OF_CONTENT {
        fields.remove(name);
    }
}

/// Fields with a digest of a single message's content.
pub(crate) const OF_CONTENT: [HeaderName; 2] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
];

/// All digest fields. They describe the bytes in their own message: therefore a 304, a 206 or the
/// response to a HEAD does not change the digests of a stored response.
pub(crate) const DIGEST_FIELDS: [HeaderName; 4] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
];

const FIELDS: [HeaderName; 2] = [
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("content-digest"),
];

const ALGORITHMS: [(&str, &Algorithm); 2] = [("sha-256", &SHA256), ("sha-512", &SHA512)];

#[cfg(test)]
mod tests {
    use super::*;

    /// Digest of `hello`, from `printf hello | openssl dgst -sha256 -binary | base64`.
    const HELLO: &str = "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:";

    /// As above, with `-sha512`.
    const HELLO_512: &str = concat!(
        "sha-512=:m3HSJL1i83hdltRq0+o9czGb+8KJDKra4t/3JRlnPKcjI8PZ",
        "m6XBHXx6zG4UuMXaDEZjR1wuXDre9G9zvN7AQw==:"
    );

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
            for hello in [HELLO, HELLO_512] {
                assert!(holds(digest(&[(name, hello)]), b"hello"));
                assert!(!holds(digest(&[(name, hello)]), b"hellO"));
                assert!(!holds(digest(&[(name, hello)]), b"hell"));
            }
        }
        let both = [("repr-digest", HELLO), ("content-digest", HELLO)];
        assert!(holds(digest(&both), b"hello"));
        let other = "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCA=:";
        let torn = [("repr-digest", HELLO), ("content-digest", other)];
        assert!(!holds(digest(&torn), b"hello"));
        for (mixed, sound) in [(HELLO, true), (other, false)] {
            let mixed = format!("{HELLO_512}, {mixed}");
            assert_eq!(holds(digest(&[("repr-digest", &mixed)]), b"hello"), sound);
        }
    }

    #[test]
    fn a_part_keeps_the_digest_of_the_representation_and_loses_that_of_the_content() {
        let names = ["content-digest", "content-md5", "digest", "repr-digest"];
        let pairs = names.map(|name| (HeaderName::from_static(name), HELLO.parse().unwrap()));
        let mut fields: HeaderMap = pairs.into_iter().collect();
        remove_content_digests(&mut fields);
        let has = names.map(|name| fields.contains_key(name));
        assert_eq!(has, [false, false, true, true]);
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
