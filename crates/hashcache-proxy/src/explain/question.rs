//! A question about a request, which the admin listener receives in a query string.

use std::net::{IpAddr, Ipv4Addr};

use hashcache_http::{RequestTarget, Scheme, Target, UnixTime, octet_text, parse_target};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Map, Value, json};

use hashcache_upstream::gateway::decode;

/// The request in question. The default is a GET without fields, from this machine, now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Question {
    /// URL as in the query string.
    pub(super) url: String,
    pub(super) method: Method,
    pub(super) fields: HeaderMap,
    pub(super) client: Option<IpAddr>,
    /// User with a login at the proxy.
    pub(super) user: Option<String>,
    pub(super) at: Option<UnixTime>,
}

impl Question {
    /// Parses `url=…&method=…&header=Name:value&client=…&user=…&at=SECONDS`, percent-encoded.
    ///
    /// # Errors
    /// Describes the mistake in words.
    pub(crate) fn parse(query: &str) -> Result<Self, String> {
        let mut question = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value);
            if name == "url" {
                question.url = octet_text(&value).into_owned();
                continue;
            }
            let value = String::from_utf8(value);
            let value = value.map_err(|_| format!("`{name}` is not UTF-8"))?;
            match name {
                "method" => {
                    let method = Method::from_bytes(value.as_bytes());
                    question.method = method.map_err(|_| format!("`{value}` is no method"))?;
                }
                "header" => question.add_field(&value)?,
                "client" => {
                    let client = value.parse::<IpAddr>();
                    let client = client.map_err(|_| format!("`{value}` is no IP address"))?;
                    question.client = Some(client.to_canonical());
                }
                "user" => question.user = Some(value),
                "at" => {
                    let at = value.parse().map_err(|_| format!("`{value}` is no time"))?;
                    question.at = Some(UnixTime(at));
                }
                other => {
                    return Err(format!(
                        "`{other}` is not one of url, method, header, client, user, at"
                    ));
                }
            }
        }
        if question.url.is_empty() {
            Err("the question has no `url`".to_owned())
        } else {
            Ok(question)
        }
    }

    fn add_field(&mut self, line: &str) -> Result<(), String> {
        let wrong = || format!("`{line}` is no field such as `Accept-Encoding: gzip`");
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        let name = HeaderName::try_from(name.trim()).map_err(|_| wrong())?;
        let value = HeaderValue::try_from(value.trim()).map_err(|_| wrong())?;
        self.fields
            .try_append(name, value)
            .map_err(|_| "too many fields".to_owned())?;
        Ok(())
    }

    /// Returns the client: this machine, if the question names no client.
    pub(super) fn client(&self) -> IpAddr {
        self.client.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// Returns the resource; for a CONNECT the host and port as an https URL.
    pub(super) fn target(&self) -> Result<Target, String> {
        let url = &self.url;
        let wrong = |error: &dyn std::fmt::Display| format!("`{url}`: {error}");
        match (url.contains("://"), &self.method) {
            (true, _) => return Target::parse_url(url).map_err(|error| wrong(&error)),
            (false, &Method::CONNECT) => {}
            (false, _) => {
                return Err(wrong(
                    &"a URL begins with a scheme, as http://a.test/x does",
                ));
            }
        }
        match parse_target(&Method::CONNECT, url, None, Scheme::Https) {
            Ok(RequestTarget::Tunnel(authority)) => {
                Target::new(Scheme::Https, authority, "").map_err(|error| wrong(&error))
            }
            Ok(_) => Err(wrong(&"a CONNECT names HOST:PORT")),
            Err(error) => Err(wrong(&error)),
        }
    }

    /// Returns the question as the answer repeats it.
    pub(super) fn to_json(&self, now: UnixTime) -> Map<String, Value> {
        let value = json!({
            "url": self.url,
            "method": self.method.as_str(),
            "client": self.client().to_string(),
            "user": self.user,
            "at": self.at.unwrap_or(now).0,
        });
        match value {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_from_a_query() {
        let query = "url=http%3A%2F%2Fa.test%2Fx%3Fy%3D1%26z&method=HEAD&client=::ffff:192.0.2.1\
                     &user=b%C3%A9a&at=100&header=Accept%3A%20*%2F*&header=A:b&";
        let question = Question::parse(query).unwrap();
        assert_eq!(question.url, "http://a.test/x?y=1&z");
        assert_eq!(question.method, Method::HEAD);
        assert_eq!(question.client.unwrap().to_string(), "192.0.2.1");
        assert_eq!(question.user.as_deref(), Some("béa"));
        assert_eq!(question.at, Some(UnixTime(100)));
        assert_eq!(question.fields["accept"], "*/*");
        assert_eq!(question.fields["a"], "b");
    }

    #[test]
    fn what_is_wrong_with_a_question_is_said() {
        for (query, said) in [
            ("", "no `url`"),
            ("url=http://a/&client=x", "no IP address"),
            ("url=http://a/&method=%20", "no method"),
            ("url=http://a/&header=x", "no field"),
            ("url=http://a/&header=a%20b:c", "no field"),
            ("url=http://a/&header=a:b%0ac", "no field"),
            ("url=http://a/&at=-1", "no time"),
            ("user=%ff", "not UTF-8"),
            ("url=http://a/&x", "`x` is not one of"),
        ] {
            let error = Question::parse(query).unwrap_err();
            assert!(error.contains(said), "{query}: {error}");
        }
    }

    #[test]
    fn a_connect_names_a_host_and_a_port_or_an_https_url() {
        let target = |query: &str| Question::parse(query).unwrap().target();
        let of = |query: &str| {
            let target = target(query).unwrap();
            (target.scheme, target.authority.to_string())
        };
        let expected = (Scheme::Https, "a.test:443".to_owned());
        assert_eq!(of("method=CONNECT&url=a.test:443"), expected);
        assert_eq!(of("method=CONNECT&url=https://a.test/"), expected);
        assert!(target("method=CONNECT&url=a.test").is_err());
        assert!(target("url=a.test").is_err());
    }
}
