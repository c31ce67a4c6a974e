//! A site's rules that change fields: in requests before they are sent to the origin, in responses
//! before they are sent to the client.
//!
//! Called once per forwarded request and once per response. Responses are stored as the origin sent
//! them, so a changed rule needs no purge.
//!
//! Invariant: no rule changes framing, the connection, the routing, or fields that the cache itself
//! reads and writes.
//! Cost: one lookup in the field map per rule.

use http::header::{self, HeaderMap, HeaderName, HeaderValue, InvalidHeaderName};

/// A list of changes, applied in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderRules(Vec<HeaderRule>);

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HeaderRule {
    /// The field gets only this value.
    Set(HeaderName, HeaderValue),
    /// The field gets an additional line.
    Add(HeaderName, HeaderValue),
    /// The field is removed.
    Remove(HeaderName),
}

/// The message in which a rule changes fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request to the origin.
    Request,
    /// A response to the client.
    Response,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Replaces all lines of the field.
    Set,
    /// Adds a line.
    Add,
}

/// Why a rule is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderRuleError {
    /// Not a field name.
    #[error("`{name}` is not the name of a field")]
    Name {
        /// The name.
        name: String,
    },
    /// Not a field value.
    #[error("the value of `{name}` contains a character that no field may have")]
    Value {
        /// The name of the field.
        name: HeaderName,
    },
    /// The proxy itself decides about this field.
    #[error("`{name}` cannot be changed: {reason}")]
    Refused {
        /// The name of the field.
        name: HeaderName,
        /// The reason.
        reason: &'static str,
    },
}

impl HeaderRules {
    /// Appends a rule that sets a field or adds a line to it.
    ///
    /// # Errors
    /// See [`HeaderRuleError`].
    pub fn push(
        &mut self,
        (message, change): (Message, Change),
        name: &str,
        value: &str,
    ) -> Result<(), HeaderRuleError> {
        let name = checked(message, name)?;
        let value = match HeaderValue::from_str(value.trim()) {
            Ok(value) => value,
            Err(_) => return Err(HeaderRuleError::Value { name }),
        };
        self.0.push(match change {
            Change::Set => HeaderRule::Set(name, value),
            Change::Add => HeaderRule::Add(name, value),
        });
        Ok(())
    }

    /// Appends a rule that removes a field.
    ///
    /// # Errors
    /// See [`HeaderRuleError`].
    pub fn push_removal(&mut self, message: Message, name: &str) -> Result<(), HeaderRuleError> {
        self.0.push(HeaderRule::Remove(checked(message, name)?));
        Ok(())
    }

    /// Removes the fields that the rules set or remove, also fields with `_` in place of `-`, which
    /// many origins do not distinguish. The cache must not see values that the origin will not see.
    pub(crate) fn hide(&self, fields: &mut HeaderMap) {
        if self.0.is_empty() {
            return;
        }
        let is_hidden = |dashed: &str| {
            self.0.iter().any(|rule| match rule {
                HeaderRule::Set(name, _) | HeaderRule::Remove(name) => name.as_str() == dashed,
                HeaderRule::Add(..) => false,
            })
        };
        let alike = fields.keys().filter(|name| {
            name.as_str().contains('_') && is_hidden(&name.as_str().replace('_', "-"))
        });
        for name in alike.cloned().collect::<Vec<_>>() {
            fields.remove(name);
        }
        for rule in &self.0 {
            if let HeaderRule::Set(name, _) | HeaderRule::Remove(name) = rule {
                fields.remove(name);
            }
        }
    }

    /// Applies all rules.
    pub fn apply(&self, fields: &mut HeaderMap) {
        for rule in &self.0 {
            match rule {
                HeaderRule::Set(name, value) => {
                    fields.insert(name, value.clone());
                }
                HeaderRule::Add(name, value) => {
                    fields.append(name, value.clone());
                }
                HeaderRule::Remove(name) => {
                    fields.remove(name);
                }
            }
        }
    }
}

fn checked(message: Message, name: &str) -> Result<HeaderName, HeaderRuleError> {
    let parsed: Result<HeaderName, InvalidHeaderName> = name.parse();
    let name = parsed.map_err(|_| HeaderRuleError::Name {
        name: name.to_owned(),
    })?;
    let of_message = match message {
        Message::Request => (&OF_REQUESTS[..], "it selects or conditions the response"),
        Message::Response => (&OF_RESPONSES[..], "the proxy writes it itself"),
    };
    let reasons = [
        (&HOP_BY_HOP[..], "it belongs to one connection"),
        (&FRAMING[..], "it says where the content ends or what it is"),
        of_message,
    ];
    match reasons.iter().find(|(names, _)| names.contains(&name)) {
        Some(&(_, reason)) => Err(HeaderRuleError::Refused { name, reason }),
        None => Ok(name),
    }
}

const HOP_BY_HOP: [HeaderName; 10] = [
    header::CONNECTION,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

const FRAMING: [HeaderName; 5] = [
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    // With a changed Expect, an origin would wait for content or send a second response.
    header::EXPECT,
    header::VIA,
];

/// With rules for these fields, the stored response would belong to another request than the
/// request that was looked up.
const OF_REQUESTS: [HeaderName; 12] = [
    header::HOST,
    header::RANGE,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-forwarded-host"),
    header::MAX_FORWARDS,
];

const OF_RESPONSES: [HeaderName; 6] = [
    header::AGE,
    header::DATE,
    header::ETAG,
    header::VARY,
    HeaderName::from_static("cache-status"),
    HeaderName::from_static("proxy-status"),
];

#[cfg(test)]
mod tests {
    use super::*;

    const SET: (Message, Change) = (Message::Response, Change::Set);
    const ADD: (Message, Change) = (Message::Response, Change::Add);

    #[test]
    fn rules_are_applied_in_their_order() {
        let mut rules = HeaderRules::default();
        rules.push_removal(Message::Response, "Server").unwrap();
        rules.push(SET, "X-Frame-Options", "DENY").unwrap();
        rules.push(ADD, "Link", "</a>").unwrap();
        rules.push(ADD, "Link", "</b>").unwrap();
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("server", "old"),
            ("x-frame-options", "a"),
            ("x-frame-options", "b"),
            ("link", "</0>"),
        ] {
            fields.append(name, HeaderValue::from_static(value));
        }
        rules.apply(&mut fields);
        assert!(!fields.contains_key("server"));
        let all = |name| fields.get_all(name).iter().collect::<Vec<_>>();
        assert_eq!(all("x-frame-options"), ["DENY"]);
        assert_eq!(all("link"), ["</0>", "</a>", "</b>"]);
    }

    #[test]
    fn a_field_is_hidden_in_either_spelling() {
        let mut rules = HeaderRules::default();
        rules.push_removal(Message::Request, "X-User-Id").unwrap();
        let mut fields = HeaderMap::new();
        for name in ["x-user-id", "x_user_id", "x-user_id", "x_user"] {
            fields.insert(name, HeaderValue::from_static("1"));
        }
        rules.hide(&mut fields);
        let names: Vec<_> = fields.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x_user"]);
    }

    #[test]
    fn fields_of_the_connection_and_of_framing_are_refused() {
        for name in [
            "Connection",
            "transfer-encoding",
            "Content-Length",
            "te",
            "Via",
        ] {
            for message in [Message::Request, Message::Response] {
                let mut rules = HeaderRules::default();
                for change in [Change::Set, Change::Add] {
                    let error = rules.push((message, change), name, "x").unwrap_err();
                    assert!(matches!(error, HeaderRuleError::Refused { .. }), "{name}");
                }
                assert!(rules.push_removal(message, name).is_err(), "{name}");
            }
        }
    }

    #[test]
    fn what_selects_a_response_cannot_be_changed_behind_the_cache() {
        let mut rules = HeaderRules::default();
        for name in ["Host", "Range", "If-None-Match", "X-Forwarded-For"] {
            assert!(
                rules
                    .push((Message::Request, Change::Set), name, "x")
                    .is_err()
            );
        }
        for name in ["ETag", "Vary", "Age", "Date"] {
            assert!(rules.push_removal(Message::Response, name).is_err());
        }
        assert!(
            rules
                .push((Message::Request, Change::Set), "Authorization", "x")
                .is_ok()
        );
    }

    #[test]
    fn a_value_cannot_end_its_line() {
        let mut rules = HeaderRules::default();
        let error = rules.push(SET, "X-A", "a\r\nSet-Cookie: b").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the value of `x-a` contains a character that no field may have"
        );
        let error = rules.push(SET, "X A", "a").unwrap_err();
        assert_eq!(error.to_string(), "`X A` is not the name of a field");
        assert_eq!(rules, HeaderRules::default());
    }
}
