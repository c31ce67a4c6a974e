//! `Hashcache-Link`: states what a child can receive on the link, and what the parent sends on it.
//!
//! | where | form | meaning |
//! |---|---|---|
//! | request | `v=1, dict=:B64:, dlen=N, max=N` | the child reads frames, see below |
//! | request | `hints` | the child wants to know which other objects a page has |
//! | request | `hinted` | the parent named this object before |
//! | request | `c=N, n=N` | the number of the child's client, and of this request |
//! | request | `login=N` | the request has or follows login N of a client of the child (NTLM) |
//! | response | `v=1` | the content is frames |
//!
//! `dict` is the SHA-256 of content that the child holds, and `dlen` the length. The parent may use
//! another dictionary of at most `max` bytes. `hints`, `hinted` and `login` may occur without the
//! other members: then the response is ordinary HTTP.
//!
//! With `c` the parent can be fair among the clients of a child; the number gives no other
//! information about a client, and has no meaning on another link. A request without `c` is from a
//! child that does not number its clients, so all of them count as a single client. `n` identifies
//! the request in acknowledgements (`turns` in `hashcache-link`).
//!
//! The proxy adds and removes the field in requests and responses on both sides of a link. The
//! field belongs to that connection and is never forwarded: `take` removes it for every sender, and
//! the caller decides if it counts.
//!
//! Invariant: a field with another version, or an invalid field, means ordinary HTTP.
//! Cost: one pass over the field.

use http::header::{ACCEPT_ENCODING, HeaderMap, HeaderName, HeaderValue};

use crate::fields::members;
use crate::structured::{self, Item};

/// `Hashcache-Link`.
pub const HASHCACHE_LINK: HeaderName = HeaderName::from_static("hashcache-link");

/// The field in which a child sends a path and query with octets that the `:path` type in the HTTP
/// library rejects. It counts only on a link, together with `Expect:` [`TARGET_EXPECTATION`].
pub const HASHCACHE_TARGET: HeaderName = HeaderName::from_static("hashcache-target");

/// The expectation that the parent takes the target from [`HASHCACHE_TARGET`].
pub const TARGET_EXPECTATION: HeaderValue = HeaderValue::from_static("hashcache-target");

/// The content of the field in a child's request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkRequest {
    /// The child reads frames.
    pub reads_frames: bool,
    /// How the request relates to hints.
    pub hints: HintUse,
    /// Content that the child holds.
    pub offered: Option<OfferedContent>,
    /// Maximum size of a dictionary that the parent may name, in bytes; 0: none.
    pub named_max: u64,
    /// A number for a client's connection-based login. The child needs it to separate the logins,
    /// because a link carries the requests of all clients.
    pub login: Option<u64>,
}

/// The client and the number of a child's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTurn {
    /// Client number, assigned by the child.
    pub client: u32,
    /// Request number on this connection, assigned by the child.
    pub number: u64,
}

impl LinkTurn {
    /// Reads the numbers from a request; the field stays. `None` if they are absent.
    pub fn from_fields(fields: &HeaderMap) -> Option<Self> {
        if !fields.contains_key(HASHCACHE_LINK) {
            return None;
        }
        let members = structured::dictionary(fields, &HASHCACHE_LINK)?;
        let number = |name| match member(&members, name) {
            Some(Item::Integer(number)) => u64::try_from(*number).ok(),
            _ => None,
        };
        Some(Self {
            client: u32::try_from(number("c")?).ok()?,
            number: number("n")?,
        })
    }

    /// Adds the numbers to the field of a request, which may already exist.
    pub fn add_to(self, fields: &mut HeaderMap) {
        let Self { client, number } = self;
        let before = fields.get(HASHCACHE_LINK).and_then(|it| it.to_str().ok());
        let text = match before {
            Some(before) => format!("{before}, c={client}, n={number}"),
            None => format!("c={client}, n={number}"),
        };
        let mut value = HeaderValue::try_from(text).expect("letters, digits and signs");
        // The value differs in each request, so in the HPACK table it would only evict other
        // fields.
        value.set_sensitive(true);
        fields.insert(HASHCACHE_LINK, value);
    }
}

/// How a request relates to hints: see [`Related`](crate::Related).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HintUse {
    /// The request has no relation to hints.
    #[default]
    None,
    /// The response may name other objects.
    Wanted,
    /// The request follows a hint, so it does not show that a client needs the object.
    Followed,
}

/// Content that a child holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedContent {
    /// SHA-256 of the content.
    pub digest: [u8; 32],
    /// Length of the content in bytes.
    pub length: u64,
}

impl LinkRequest {
    /// Removes the field from a request; `None` if it requests nothing that is known here.
    pub fn take(fields: &mut HeaderMap) -> Option<Self> {
        let members = take(fields)?;
        let has = |name| member(&members, name) == Some(&Item::Boolean(true));
        let hints = match (has("hints"), has("hinted")) {
            (_, true) => HintUse::Followed,
            (true, false) => HintUse::Wanted,
            (false, false) => HintUse::None,
        };
        let number = |name| match member(&members, name) {
            Some(Item::Integer(number)) => u64::try_from(*number).ok(),
            _ => None,
        };
        let login = number("login");
        if !is_version_1(&members) {
            let without_frames = Self {
                hints,
                login,
                ..Self::default()
            };
            let asks = hints != HintUse::None || login.is_some();
            return asks.then_some(without_frames);
        }
        let digest = match member(&members, "dict") {
            Some(Item::Bytes(digest)) => digest.as_slice().try_into().ok(),
            _ => None,
        };
        let offered = digest.zip(number("dlen"));
        Some(Self {
            reads_frames: true,
            hints,
            offered: offered.map(|(digest, length)| OfferedContent { digest, length }),
            named_max: number("max").unwrap_or(0),
            login,
        })
    }

    /// The field value.
    pub fn to_value(self) -> HeaderValue {
        let mut members = vec![];
        if self.reads_frames {
            members.push("v=1".to_owned());
            if let Some(OfferedContent { digest, length }) = self.offered {
                members.push(format!("dict=:{}:, dlen={length}", base64(&digest)));
            }
            if self.named_max > 0 {
                members.push(format!("max={}", self.named_max));
            }
        }
        match self.hints {
            HintUse::None => {}
            HintUse::Wanted => members.push("hints".to_owned()),
            HintUse::Followed => members.push("hinted".to_owned()),
        }
        members.extend(self.login.map(|number| format!("login={number}")));
        HeaderValue::try_from(members.join(", ")).expect("letters, digits and signs")
    }
}

/// The field value in a response with frames as content.
pub const FRAMES: HeaderValue = HeaderValue::from_static("v=1");

/// Removes the field from a response; returns true if the content is frames of version 1.
pub fn take_frames(fields: &mut HeaderMap) -> bool {
    take(fields).is_some_and(|members| is_version_1(&members))
}

/// Returns true if the client accepts content without a coding (RFC 9110, section 12.5.3).
pub fn permits_identity(request: &HeaderMap) -> bool {
    let (mut identity, mut any) = (None, None);
    for coding in members(request, &ACCEPT_ENCODING) {
        let mut parts = coding.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let is_refused = parts.any(is_zero_weight);
        if name.eq_ignore_ascii_case(b"identity") {
            identity = Some(!is_refused);
        } else if name == b"*" {
            any = Some(!is_refused);
        }
    }
    identity.or(any).unwrap_or(true)
}

/// Returns true if a parameter is a weight of 0.
fn is_zero_weight(parameter: &[u8]) -> bool {
    let weight = parameter.strip_prefix(b"q=");
    let Some(weight) = weight.or_else(|| parameter.strip_prefix(b"Q=")) else {
        return false;
    };
    weight.starts_with(b"0") && weight.iter().all(|byte| b"0.".contains(byte))
}

/// Removes the field; returns the members if the field is valid.
fn take(fields: &mut HeaderMap) -> Option<Vec<(String, Item)>> {
    if !fields.contains_key(HASHCACHE_LINK) {
        return None;
    }
    let members = structured::dictionary(fields, &HASHCACHE_LINK);
    fields.remove(HASHCACHE_LINK);
    members
}

fn is_version_1(members: &[(String, Item)]) -> bool {
    member(members, "v") == Some(&Item::Integer(1))
}

fn member<'a>(members: &'a [(String, Item)], name: &str) -> Option<&'a Item> {
    let found = members.iter().find(|(key, _)| key == name);
    found.map(|(_, item)| item)
}

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=three.len()].copy_from_slice(three);
        let bits = u32::from_be_bytes(word);
        for at in 0..4 {
            let digit = bits >> (18 - 6 * at) & 63;
            text.push(if at > three.len() {
                '='
            } else {
                char::from(DIGITS[digit as usize])
            });
        }
    }
    text
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(name: HeaderName, lines: &[&'static str]) -> HeaderMap {
        let lines = lines.iter().map(|line| HeaderValue::from_static(line));
        lines.map(|line| (name.clone(), line)).collect()
    }

    fn taken(line: &'static str) -> Option<LinkRequest> {
        let mut fields = fields(HASHCACHE_LINK, &[line]);
        let taken = LinkRequest::take(&mut fields);
        assert!(fields.is_empty(), "{line}");
        taken
    }

    #[test]
    fn what_is_written_is_read_again() {
        for offered in [None, Some(0), Some(64 << 20)] {
            let offered = offered.map(|length| OfferedContent {
                digest: std::array::from_fn(|at| [0, 37, 255][at % 3]),
                length,
            });
            for (named_max, hints, login) in [
                (0, HintUse::None, None),
                (1 << 26, HintUse::Wanted, Some(7)),
                (0, HintUse::Followed, None),
            ] {
                let request = LinkRequest {
                    reads_frames: true,
                    hints,
                    offered,
                    named_max,
                    login,
                };
                let mut fields = HeaderMap::new();
                fields.insert(HASHCACHE_LINK, request.to_value());
                assert_eq!(LinkRequest::take(&mut fields), Some(request));
            }
        }
        let mut fields = HeaderMap::new();
        fields.insert(HASHCACHE_LINK, FRAMES);
        assert!(take_frames(&mut fields) && !take_frames(&mut fields));
    }

    #[test]
    fn another_version_or_a_field_that_is_not_valid_means_ordinary_http() {
        for line in [
            "",
            "v=2",
            "v=\"1\"",
            "v",
            "max=7",
            "v=1, dict=:",
            "v=1;",
            "1",
        ] {
            assert_eq!(taken(line), None, "{line}");
        }
    }

    #[test]
    fn the_number_of_a_client_stands_beside_all_else_and_alone_asks_for_nothing() {
        let turn = LinkTurn {
            client: 7,
            number: 1 << 40,
        };
        let mut fields = HeaderMap::new();
        assert_eq!(LinkTurn::from_fields(&fields), None);
        turn.add_to(&mut fields);
        assert_eq!(LinkTurn::from_fields(&fields), Some(turn));
        assert_eq!(LinkRequest::take(&mut fields), None);
        assert!(fields.is_empty());
        let asked = LinkRequest {
            reads_frames: true,
            hints: HintUse::Wanted,
            ..LinkRequest::default()
        };
        fields.insert(HASHCACHE_LINK, asked.to_value());
        turn.add_to(&mut fields);
        assert_eq!(LinkTurn::from_fields(&fields), Some(turn));
        assert_eq!(LinkRequest::take(&mut fields), Some(asked));
        for line in ["c=1", "n=1", "c=-1, n=1", "c=4294967296, n=1", "c=1, n=a"] {
            let fields = self::fields(HASHCACHE_LINK, &[line]);
            assert_eq!(LinkTurn::from_fields(&fields), None, "{line}");
        }
    }

    #[test]
    fn hints_need_no_frames() {
        for (line, hints) in [
            ("hints", HintUse::Wanted),
            ("v=2, hints", HintUse::Wanted),
            ("hints, hinted", HintUse::Followed),
        ] {
            let asked = LinkRequest {
                hints,
                ..LinkRequest::default()
            };
            assert_eq!(taken(line), Some(asked), "{line}");
        }
        let mut response = fields(HASHCACHE_LINK, &["hints"]);
        assert!(!take_frames(&mut response) && response.is_empty());
    }

    #[test]
    fn a_login_needs_no_frames() {
        let asked = taken("login=9").unwrap();
        assert_eq!((asked.login, asked.reads_frames), (Some(9), false));
        assert_eq!(taken("login=-1"), None);
        assert_eq!(taken("login"), None);
    }

    #[test]
    fn members_that_are_not_understood_are_ignored() {
        let none = Some(LinkRequest {
            reads_frames: true,
            ..LinkRequest::default()
        });
        assert_eq!(taken("v=1, hints=?0, later=(1 2)"), none);
        assert_eq!(taken("v=1, max=-1, dlen=7"), none);
        // A digest that is too short, and one without a length.
        assert_eq!(taken("v=1, dict=:AAAA:, dlen=7"), none);
        let digest = "v=1, dict=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:";
        assert_eq!(taken(digest), none);
    }

    #[test]
    fn base64_has_its_padding() {
        let texts = ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes()));
        assert_eq!(texts, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
    }

    #[test]
    fn identity_is_permitted_unless_its_weight_is_zero() {
        for (lines, permitted) in [
            (&[][..], true),
            (&["gzip, br"], true),
            (&["gzip, identity;q=0.001"], true),
            (&["gzip, *;q=0, identity"], true),
            (&["gzip", "identity ; q=0"], false),
            (&["gzip, Identity;Q=0.000"], false),
            (&["gzip, *;q=0"], false),
        ] {
            let request = fields(ACCEPT_ENCODING, lines);
            assert_eq!(permits_identity(&request), permitted, "{lines:?}");
        }
    }
}
