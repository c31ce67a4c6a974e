//! The field `Hashcache-Link` in a CONNECT on a link with a stream that is coded in chunks.
//!
//! The child offers `v=1, chunks, window=N`; a parent that accepts the offer answers `v=1, chunks,
//! window=N, key=:BASE64:`. A parent that does not know the field, or the version, answers without
//! the field, and the stream is a tunnel that passes unchanged. `connect` in the proxy reads the
//! offer, `linked` in `hashcache-upstream` sends it. The form is a dictionary as in RFC 8941.
//!
//! Invariant: a field in any other form counts as no offer and no answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hashcache_http::HASHCACHE_LINK;
use hashcache_wan::chunk::{Key, Windows};
use http::{HeaderMap, HeaderValue};

/// Parameters that one side sends for a stream in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkField {
    /// Content bytes that this side is ready to receive before it acknowledges them.
    pub window: u64,
    /// The key for chunk names; only a parent sends one.
    pub key: Option<Key>,
}

impl ChunkField {
    /// Reads the field from `fields`; `None` if it is missing, of another version, or malformed.
    pub fn from_fields(fields: &HeaderMap) -> Option<Self> {
        let mut values = fields.get_all(HASHCACHE_LINK).iter();
        let value = values.next()?.to_str().ok()?;
        if values.next().is_some() {
            return None;
        }
        let (mut is_version, mut is_chunks, mut window, mut key) = (false, false, None, None);
        for member in value.split(',') {
            match member.trim().split_once('=') {
                Some(("v", version)) => is_version = version == VERSION,
                Some(("window", bytes)) => window = bytes.parse::<u64>().ok(),
                Some(("key", text)) => key = Some(read_key(text)?),
                None if member.trim() == "chunks" => is_chunks = true,
                // Later versions may add members.
                Some(_) | None => {}
            }
        }
        let window = window.filter(|bytes| *bytes >= Windows::BYTES_MIN)?;
        (is_version && is_chunks).then_some(Self { window, key })
    }

    /// Encodes the field for sending.
    pub fn to_value(self) -> HeaderValue {
        let key = self.key.map(|key| STANDARD.encode(key.0));
        let key = key.map(|key| format!(", key=:{key}:")).unwrap_or_default();
        let text = format!("v={VERSION}, chunks, window={}{key}", self.window);
        let mut value = HeaderValue::try_from(text).expect("words, digits and base64");
        value.set_sensitive(true);
        value
    }
}

fn read_key(text: &str) -> Option<Key> {
    let key = text.strip_prefix(':')?.strip_suffix(':')?;
    Some(Key(STANDARD.decode(key).ok()?.try_into().ok()?))
}

const VERSION: &str = "1";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Option<ChunkField> {
        let value = HeaderValue::try_from(value).unwrap();
        ChunkField::from_fields(&[(HASHCACHE_LINK, value)].into_iter().collect())
    }

    #[test]
    fn a_field_is_read_as_it_was_written_and_another_one_is_none() {
        for key in [None, Some(Key([200; 16]))] {
            let field = ChunkField {
                window: 1 << 20,
                key,
            };
            let value = field.to_value();
            assert_eq!(read(value.to_str().unwrap()), Some(field));
        }
        assert!(read("v=1, chunks, window=300000, later=2").is_some());
        for other in [
            "",
            "v=1",
            "v=2, chunks, window=300000",
            "v=1, window=300000",
            "v=1, chunks",
            "v=1, chunks, window=5",
            "v=1, chunks, window=-1",
            "v=1, chunks, window=300000, key=:AAAA:",
            "v=1, chunks, window=300000, key=x",
        ] {
            assert_eq!(read(other), None, "{other}");
        }
        assert_eq!(ChunkField::from_fields(&HeaderMap::new()), None);
    }
}
