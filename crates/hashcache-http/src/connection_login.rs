//! Authentication schemes that log in a connection instead of a single request (NTLM, Negotiate).
//!
//! RFC 9110, section 11.7, requires every request to carry its own authentication. NTLM and
//! Negotiate (RFC 4559) do not: after the handshake the server treats every request on that
//! connection as a request from the user. If a proxy put such a connection back into the pool, the
//! next client on it would get the user's rights. The proxy calls [`logs_in_connection`] for each
//! request and [`binds_connection`] for each response head.
//!
//! Invariant: a scheme is assumed to log in the connection unless it is known to carry its proof in
//! every request. Therefore an unknown scheme costs a separate connection, but never leaks rights.
//! Cost: for requests without Authorization and for usual responses, lookups by name.

use http::StatusCode;
use http::header::{
    AUTHORIZATION, CONNECTION, FORWARDED, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, VIA, WWW_AUTHENTICATE,
};

use crate::fields::{Backslash, members, split_list};

/// `Proxy-Support`: a proxy keeps the logged-in connection for the client (RFC 4559, section 6).
pub const PROXY_SUPPORT: HeaderName = HeaderName::from_static("proxy-support");
/// The value of [`PROXY_SUPPORT`].
pub const SESSION_BASED: HeaderValue = HeaderValue::from_static("Session-Based-Authentication");

/// `Persistent-Auth`: the login lasts as long as the connection (Microsoft's HTTP server sends the
/// field after Negotiate).
const PERSISTENT_AUTH: HeaderName = HeaderName::from_static("persistent-auth");

/// Returns true if a request has credentials that may log in the whole connection.
pub fn logs_in_connection(request: &HeaderMap) -> bool {
    has_scheme(request, &AUTHORIZATION, is_login)
        || has_scheme(request, &PROXY_AUTHORIZATION, is_login)
}

/// Returns true if a response shows that the connection belongs, or is about to belong, to a single
/// user: the response offers or continues a connection login, or states that a login persists.
pub fn binds_connection(response: &HeaderMap) -> bool {
    has_scheme(response, &WWW_AUTHENTICATE, is_challenge)
        || has_scheme(response, &PROXY_AUTHENTICATE, is_challenge)
        || is_persistent(response)
}

/// Returns true if a response is part of a connection login, and therefore for a single user.
/// Unless the status is 407, Proxy-Authenticate is an origin's mistake (RFC 9110 11.7.1): then only
/// schemes that are known to log in connections count.
pub(crate) fn is_of_login(status: StatusCode, response: &HeaderMap) -> bool {
    let of_proxy: fn(Scheme<'_>) -> bool = match status {
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => is_challenge,
        _ => |scheme| scheme.is_any(OF_CONNECTION),
    };
    has_scheme(response, &WWW_AUTHENTICATE, is_challenge)
        || has_scheme(response, &PROXY_AUTHENTICATE, of_proxy)
        || is_persistent(response)
}

/// Returns true if a response to a request with such credentials demands more credentials.
pub fn continues_login(status: StatusCode, response: &HeaderMap) -> bool {
    let asks = [
        StatusCode::UNAUTHORIZED,
        StatusCode::PROXY_AUTHENTICATION_REQUIRED,
    ];
    asks.contains(&status) && binds_connection(response)
}

/// Returns true if a request was forwarded by another proxy, which may send requests from many
/// clients on the same connection. The check is for fields that only proxies write; most reverse
/// proxies write X-Forwarded-For, but no Via.
pub fn is_forwarded(request: &HeaderMap) -> bool {
    OF_PROXIES.iter().any(|name| request.contains_key(name))
}

/// Returns true if the proxy that sent a request declares that this connection carries requests
/// from a single client. Connection must name the field too: a proxy that does not know the field
/// removes both, so the declaration is always from the last proxy (RFC 9110, section 7.6.1).
pub fn keeps_login(request: &HeaderMap) -> bool {
    let names_it = || {
        let mut options = members(request, &CONNECTION);
        options.any(|name| name.eq_ignore_ascii_case(PROXY_SUPPORT.as_str().as_bytes()))
    };
    let is_session = |value: &HeaderValue| {
        let value = value.as_bytes().trim_ascii();
        value.eq_ignore_ascii_case(SESSION_BASED.as_bytes())
    };
    request.get(PROXY_SUPPORT).is_some_and(is_session) && names_it()
}

/// Declares in a request to another proxy that the connection carries requests from a single
/// client.
pub fn say_keeps_login(request: &mut HeaderMap) {
    if !keeps_login(request) {
        request.insert(PROXY_SUPPORT, SESSION_BASED);
        request.append(CONNECTION, HeaderValue::from(PROXY_SUPPORT));
    }
}

fn is_persistent(response: &HeaderMap) -> bool {
    let lines = response.get_all(PERSISTENT_AUTH).iter();
    let mut values = lines.map(|line| line.as_bytes().trim_ascii());
    values.any(|value| !value.eq_ignore_ascii_case(b"false"))
}

fn has_scheme(fields: &HeaderMap, name: &HeaderName, test: fn(Scheme<'_>) -> bool) -> bool {
    // Fast path: nearly all messages have none of these fields.
    if !fields.contains_key(name) {
        return false;
    }
    let lines = fields.get_all(name).iter();
    let mut members = lines.flat_map(|line| split_list(line.as_bytes(), Backslash::Escapes));
    members.any(|member| Scheme::from_member(member).is_some_and(test))
}

/// The scheme in a challenge or in credentials.
#[derive(Clone, Copy)]
struct Scheme<'a> {
    name: &'a [u8],
    /// True if a token or parameters follow the scheme.
    has_more: bool,
}

impl<'a> Scheme<'a> {
    /// The scheme at the start of a list member. `None` if the member is a further parameter of the
    /// preceding scheme: `Digest realm="a", nonce="b"` has two members.
    fn from_member(member: &'a [u8]) -> Option<Self> {
        let end = member.iter().position(|byte| b" \t=".contains(byte));
        let (name, rest) = member.split_at(end.unwrap_or(member.len()));
        let rest = rest.trim_ascii_start();
        (!rest.starts_with(b"=")).then_some(Self {
            name,
            has_more: !rest.is_empty(),
        })
    }

    fn is_any(self, schemes: &[&str]) -> bool {
        let is = |scheme: &&str| self.name.eq_ignore_ascii_case(scheme.as_bytes());
        schemes.iter().any(is)
    }
}

/// A single word in a request is a key without a scheme, as many APIs accept it, unless the word is
/// the name of a scheme that logs in connections: in a login a token follows the scheme.
fn is_login(scheme: Scheme<'_>) -> bool {
    if scheme.has_more {
        is_challenge(scheme)
    } else {
        scheme.is_any(OF_CONNECTION)
    }
}

fn is_challenge(scheme: Scheme<'_>) -> bool {
    let name = scheme.name;
    // Request signatures: AWS4-HMAC-SHA256, TC3-HMAC-SHA256, GOOG4-RSA-SHA256 and others.
    let is_signature = [&b"-hmac-"[..], b"-rsa-sha", b"-ecdsa-"]
        .iter()
        .any(|part| contains(name, part));
    !is_signature && !scheme.is_any(OF_REQUEST)
}

fn contains(name: &[u8], part: &[u8]) -> bool {
    let mut windows = name.windows(part.len());
    windows.any(|window| window.eq_ignore_ascii_case(part))
}

/// Fields that proxies and content delivery networks write.
static OF_PROXIES: [HeaderName; 5] = [
    VIA,
    FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("cdn-loop"),
];

/// Schemes that log in a connection; compared without regard to letter case.
const OF_CONNECTION: &[&str] = &["NTLM", "Negotiate", "Kerberos", "Nego2"];

/// Schemes with a proof in every request: the schemes in the IANA registry except Negotiate, and
/// some that large services have defined themselves.
const OF_REQUEST: &[&str] = &[
    "Basic",
    "Bearer",
    "Digest",
    "Concealed",
    "DPoP",
    "GNAP",
    "HOBA",
    "Mutual",
    "OAuth",
    "PrivateToken",
    "SCRAM-SHA-1",
    "SCRAM-SHA-256",
    "vapid",
    // Not registered.
    "ApiKey",
    "Api-Key",
    "AWS",
    "AWS3",
    "GoogleLogin",
    "GOOG1",
    "Hawk",
    "JWT",
    "Key",
    "MAC",
    "OSS",
    "PoP",
    "RemoteAuth",
    "SharedAccessSignature",
    "SharedKey",
    "SharedKeyLite",
    "Signature",
    "Splunk",
    "Token",
    "WSSE",
];

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn fields(name: HeaderName, lines: &[&'static str]) -> HeaderMap {
        let lines = lines.iter().map(|line| HeaderValue::from_static(line));
        lines.map(|line| (name.clone(), line)).collect()
    }

    #[test]
    fn a_login_of_the_connection_is_seen_in_any_case_and_anywhere_in_the_field() {
        for lines in [
            &["NTLM TlRMTVNTUAAB"][..],
            &["ntlm TlRMTVNTUAAB="],
            &["nEgOtIaTe YIIB=="],
            &["Kerberos YIIB"],
            &["NTLM"],
            &["Negotiate\tYIIB"],
            &["Basic YTpi, NTLM TlRM"],
            &["Basic YTpi", "Negotiate YIIB"],
            &["Digest username=\"a, b\", uri=\"/\", NTLM TlRM"],
            // An unknown scheme.
            &["Frob abc"],
            &["Frob a=\"b\", c=d"],
        ] {
            assert!(
                logs_in_connection(&fields(AUTHORIZATION, lines)),
                "{lines:?}"
            );
            let proxy = fields(PROXY_AUTHORIZATION, lines);
            assert!(logs_in_connection(&proxy), "{lines:?}");
        }
    }

    #[test]
    fn a_login_of_one_request_leaves_the_connection_to_others() {
        for lines in [
            &[][..],
            &["Basic bnRsbTpuZWdvdGlhdGU="],
            &["bearer eyJhbGciOi.J9"],
            &["Digest username=\"NTLM\", realm=\"a, Negotiate b\", qop=auth , nc = 1"],
            &["AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=00"],
            &["GOOG4-RSA-SHA256 Credential=a"],
            &["token 1234"],
            // A key without a scheme.
            &["0123456789abcdef"],
            &["eyJhbGciOi.J9"],
            &[""],
        ] {
            let request = fields(AUTHORIZATION, lines);
            assert!(!logs_in_connection(&request), "{lines:?}");
        }
    }

    #[test]
    fn a_challenge_binds_the_connection_unless_every_scheme_is_of_the_request() {
        for lines in [
            &["NTLM"][..],
            &["Negotiate"],
            &["NTLM TlRMTVNTUAAC"],
            &["Basic realm=\"x\", ntlm"],
            &["Negotiate, Basic realm=\"x\""],
            &["Basic realm=\"x\"", "NTLM"],
            &["Frob"],
            // A quote that is never closed hides no scheme.
            &["Basic realm=\"x, NTLM"],
        ] {
            assert!(
                binds_connection(&fields(WWW_AUTHENTICATE, lines)),
                "{lines:?}"
            );
            assert!(
                binds_connection(&fields(PROXY_AUTHENTICATE, lines)),
                "{lines:?}"
            );
        }
        for lines in [
            &[][..],
            &["Basic realm=\"NTLM\""],
            &["Basic realm=\"a, NTLM\", charset=\"UTF-8\", Bearer"],
            &["Digest realm=\"a\", nonce=\"b\", algorithm=MD5, qop=\"auth,auth-int\""],
            &["Bearer realm=\"https://a/\",service=\"b\",scope=\"c:d:pull,push\""],
        ] {
            assert!(
                !binds_connection(&fields(WWW_AUTHENTICATE, lines)),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn a_login_that_persists_binds_the_connection_whatever_the_status() {
        assert!(binds_connection(&fields(PERSISTENT_AUTH, &["true"])));
        assert!(binds_connection(&fields(PERSISTENT_AUTH, &["false", "1"])));
        assert!(!binds_connection(&fields(PERSISTENT_AUTH, &["False"])));
    }

    #[test]
    fn a_word_in_the_proxy_authenticate_of_an_origin_is_no_login() {
        let ok = StatusCode::OK;
        let offers = |lines: &[&'static str]| fields(PROXY_AUTHENTICATE, lines);
        assert!(!is_of_login(ok, &offers(&["frob"])));
        assert!(!is_of_login(ok, &offers(&["Basic realm=\"x\""])));
        assert!(is_of_login(ok, &offers(&["frob, ntlm"])));
        assert!(is_of_login(
            StatusCode::PROXY_AUTHENTICATION_REQUIRED,
            &offers(&["frob"])
        ));
        assert!(is_of_login(ok, &fields(WWW_AUTHENTICATE, &["frob"])));
        assert!(is_of_login(ok, &fields(PERSISTENT_AUTH, &["true"])));
    }

    #[test]
    fn only_a_demand_for_credentials_continues_a_login() {
        let challenge = fields(WWW_AUTHENTICATE, &["NTLM TlRM"]);
        assert!(continues_login(StatusCode::UNAUTHORIZED, &challenge));
        // The last message of Negotiate, which authenticates the server.
        assert!(!continues_login(StatusCode::OK, &challenge));
        assert!(!continues_login(
            StatusCode::UNAUTHORIZED,
            &HeaderMap::new()
        ));
    }
    #[test]
    fn a_request_with_a_field_of_a_proxy_may_share_its_connection_with_others() {
        assert!(!is_forwarded(&fields(AUTHORIZATION, &["NTLM TlRM"])));
        for name in ["via", "forwarded", "x-forwarded-for", "x-real-ip"] {
            let name = HeaderName::from_static(name);
            assert!(
                is_forwarded(&fields(name.clone(), &["1.1 front"])),
                "{name}"
            );
        }
    }

    #[test]
    fn only_the_last_proxy_can_say_that_it_keeps_a_login() {
        let mut request = HeaderMap::new();
        say_keeps_login(&mut request);
        assert!(keeps_login(&request));
        say_keeps_login(&mut request);
        assert_eq!(request.len(), 2);
        // A proxy that forwards an unknown field writes a Connection without it.
        request.insert(CONNECTION, HeaderValue::from_static("keep-alive, TE"));
        assert!(!keeps_login(&request));
        request.append(CONNECTION, HeaderValue::from_static("Proxy-Support"));
        assert!(keeps_login(&request));
        request.insert(PROXY_SUPPORT, HeaderValue::from_static("Other"));
        assert!(!keeps_login(&request));
    }
}
