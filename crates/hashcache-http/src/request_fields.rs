//! Classifies request fields by their effect on the response: known harmless fields, and the
//! others.
//!
//! An origin that states no lifetime may have made the response for a single client: by a cookie, a
//! key in an application-specific field, or a field that names another host or path. No list of
//! credentials is ever complete. Therefore a lifetime is guessed, or taken from a rule, only if
//! every field of the request is on the list of known harmless fields ([`FieldKind`]), in the key,
//! or named by `Vary`. A response that the origin explicitly allows to be stored is stored with any
//! field except an override.
//!
//! `storable` calls it for each response, and `reuse` for each request on the usual path; `vary`
//! compares fields with [`compared_fields`].
//!
//! Invariant: a field that is on no list counts as unknown, and never as harmless.
//! Cost: a binary search per field for a response that is stored; the first byte of each name for a
//! lookup.
//!
//! | kind | fields | why |
//! |---|---|---|
//! | inert | of caches, connections, tracing, sessions of tools | they choose no content |
//! | selecting | negotiation, client hints, Referer, package tools | they recognise nobody |
//! | special | Range, preconditions, Origin, Expect … | they can make this request fail |
//! | address | X-Forwarded-For, Forwarded with `for` | pages may differ by place, files do not |
//! | cookie, authorization | | they recognise a client |
//! | override | X-Forwarded-Host, X-Original-URL … | the origin may answer for another URL |
//! | like an override | X-Source-Host, X-URL … | the same, or a field of an application |
//! | unknown | all others | |

use http::header::{HeaderMap, HeaderName, HeaderValue, ORIGIN};

/// The kinds of fields in a request, as flags. The stored facts keep them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldKinds(u16);

impl FieldKinds {
    /// Cookie.
    pub const COOKIE: FieldKinds = FieldKinds(1);
    /// Authorization.
    pub const AUTHORIZATION: FieldKinds = FieldKinds(1 << 1);
    /// A client address that a proxy in front has written.
    pub const ADDRESS: FieldKinds = FieldKinds(1 << 2);
    /// A field that can make this request fail while others succeed.
    pub const SPECIAL: FieldKinds = FieldKinds(1 << 3);
    /// A field by which some origins use another method, path, scheme or host.
    pub const OVERRIDE: FieldKinds = FieldKinds(1 << 4);
    /// A field that is on no list.
    pub const UNKNOWN: FieldKinds = FieldKinds(1 << 5);
    /// Origin, even if it is in the key or named by `Vary`. It also counts as `SPECIAL`.
    pub const ORIGIN: FieldKinds = FieldKinds(1 << 6);
    /// Cookie, even if it is in the key or named by `Vary`.
    pub const ANY_COOKIE: FieldKinds = FieldKinds(1 << 7);
    /// Authorization, even if it is in the key or named by `Vary`.
    pub const ANY_AUTHORIZATION: FieldKinds = FieldKinds(1 << 8);

    const ALL: u16 = (1 << 9) - 1;

    /// The kinds of fields in a request. Fields in `varied` (the names in `Vary`), in the key or in
    /// `harmless` (names that the operator adds to the list) do not count.
    pub fn new(
        request: &HeaderMap,
        exempt: Exempt<'_>,
        varied: &[HeaderName],
        harmless: &[HeaderName],
    ) -> FieldKinds {
        let mut kinds = FieldKinds::default();
        for (name, value) in request {
            let none = FieldKinds::default();
            let (flag, always) = match kind_of(name.as_str(), value) {
                FieldKind::Inert | FieldKind::Selecting => continue,
                FieldKind::Unknown | FieldKind::LikeOverride if harmless.contains(name) => continue,
                FieldKind::Special if *name == ORIGIN => (FieldKinds::SPECIAL, FieldKinds::ORIGIN),
                FieldKind::Special => (FieldKinds::SPECIAL, none),
                FieldKind::Cookie => (FieldKinds::COOKIE, FieldKinds::ANY_COOKIE),
                FieldKind::Authorization => {
                    (FieldKinds::AUTHORIZATION, FieldKinds::ANY_AUTHORIZATION)
                }
                FieldKind::Address => (FieldKinds::ADDRESS, none),
                FieldKind::Override | FieldKind::LikeOverride => (FieldKinds::OVERRIDE, none),
                FieldKind::Unknown => (FieldKinds::UNKNOWN, none),
            };
            kinds = kinds.and(always);
            if !exempt.has(name) && !varied.contains(name) {
                kinds = kinds.and(flag);
            }
        }
        kinds
    }

    /// Returns true if the set contains a kind in `any`.
    pub fn has(self, any: FieldKinds) -> bool {
        self.0 & any.0 != 0
    }

    /// The union of both sets.
    #[must_use]
    pub const fn and(self, other: FieldKinds) -> FieldKinds {
        FieldKinds(self.0 | other.0)
    }

    /// The flags, to be stored with a response.
    pub(crate) fn bits(self) -> u16 {
        self.0
    }

    /// Reads stored flags; `None` for flags that no build has written.
    pub(crate) fn from_bits(bits: u16) -> Option<FieldKinds> {
        (bits & !FieldKinds::ALL == 0).then_some(FieldKinds(bits))
    }
}

/// Request fields that count as harmless because the key or a trusted front proxy covers them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exempt<'a> {
    /// Fields with values that are part of the cache key.
    pub keyed: &'a [HeaderName],
    /// True if a proxy that the operator trusts has sent the request: then its statements about the
    /// client, and about the URL that the client used, are true.
    pub by_front: bool,
    /// True if that proxy has stated the scheme in a field that the key is computed from
    /// (`X-Forwarded-Proto`, `Forwarded`). Otherwise its vendor-specific scheme fields
    /// (`CF-Visitor`) do not count, because the response would answer requests with the other
    /// scheme.
    pub front_named_scheme: bool,
}

impl Exempt<'_> {
    /// Returns true if the field `name` counts as harmless.
    fn has(&self, name: &HeaderName) -> bool {
        let by_front = || match SCHEMES.binary_search(&name.as_str()) {
            Ok(_) => self.front_named_scheme,
            Err(_) => is_of_front(name.as_str()),
        };
        self.keyed.contains(name) || self.by_front && by_front()
    }
}

/// Returns true if a request has an override: a field by which some origins use another method,
/// path, scheme or host than in the cache key. Such a request is neither answered from the store
/// nor stored, unless the stored response varies by the field.
pub fn has_override(request: &HeaderMap, exempt: Exempt<'_>) -> bool {
    overrides(request, exempt).next().is_some()
}

/// The first request field that is on no list. It shows operators why a response is not stored.
pub fn unknown_field<'a>(
    request: &'a HeaderMap,
    exempt: Exempt<'_>,
    harmless: &[HeaderName],
) -> Option<&'a HeaderName> {
    let mut names = request.iter().filter(|(name, value)| {
        let kind = kind_of(name.as_str(), value);
        let is_unknown = matches!(kind, FieldKind::Unknown | FieldKind::LikeOverride);
        is_unknown && !exempt.has(name) && !harmless.contains(name)
    });
    names.next().map(|(name, _)| name)
}

/// The overrides in a request.
pub fn overrides<'a>(
    request: &'a HeaderMap,
    exempt: Exempt<'a>,
) -> impl Iterator<Item = &'a HeaderName> {
    let is_override = move |(name, value): &(&HeaderName, &HeaderValue)| {
        is_override(name.as_str(), value) && !exempt.has(name)
    };
    request.iter().filter(is_override).map(|(name, _)| name)
}

/// Returns true if a field states, in place of the request itself, the URL, the method, the
/// client's address or the user. Front proxies write such fields, and the origins behind them trust
/// the fields, so clients must not be able to send such a field to an origin. `_` counts as `-`,
/// because many application servers do not distinguish them.
pub fn speaks_for_client(name: &HeaderName) -> bool {
    let name = name.as_str();
    if known_kind(name).is_some_and(|kind| kind != FieldKind::Address) {
        return false;
    }
    let dashed;
    let name = if name.contains('_') {
        dashed = name.replace('_', "-");
        &dashed
    } else {
        name
    };
    let is_in = |list: &[&str]| list.binary_search(&name).is_ok();
    name == "forwarded"
        || name == "proxy"
        || name.starts_with("x-forwarded-")
        || names_other_url(name)
        || is_in(&ADDRESSES)
        || is_in(&USERS)
        || USER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The request fields by which an origin may have selected or refused the response, as bytes: all
/// fields except inert ones, sorted by name. `None` if they are longer than `most`.
pub fn compared_fields(request: &HeaderMap, most: usize) -> Option<Vec<u8>> {
    let mut compared: Vec<(&HeaderName, &HeaderValue)> = request
        .iter()
        .filter(|(name, value)| kind_of(name.as_str(), value) != FieldKind::Inert)
        .collect();
    // The sort must be stable, so that lines with the same name keep their order.
    compared.sort_by_key(|(name, _)| name.as_str());
    let length = |(name, value): &(&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    let sizes = compared.iter().map(length);
    if sizes.sum::<usize>() + 2 * compared.len() > most {
        return None;
    }
    let mut out = Vec::new();
    for (name, value) in compared {
        out.extend_from_slice(name.as_str().as_bytes());
        out.push(b':');
        out.extend_from_slice(value.as_bytes());
        // A line feed separates the fields, because no field value contains it.
        out.push(b'\n');
    }
    Some(out)
}

/// The kind of a request field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldKind {
    Inert,
    Selecting,
    Special,
    Address,
    Cookie,
    Authorization,
    Override,
    LikeOverride,
    Unknown,
}

fn kind_of(name: &str, value: &HeaderValue) -> FieldKind {
    if let Some(known) = known_kind(name) {
        return known;
    }
    if name.starts_with("sec-ch-") || name.starts_with("sec-fetch-") {
        // Browsers write these fields; pages cannot.
        return FieldKind::Selecting;
    }
    match name {
        _ if is_override(name, value) => FieldKind::Override,
        "forwarded" => FieldKind::Address,
        _ if is_named_like_override(name) => FieldKind::LikeOverride,
        _ => FieldKind::Unknown,
    }
}

fn is_override(name: &str, value: &HeaderValue) -> bool {
    // Fast path for most names: only few requests have fields with these first letters.
    let Some(
        b'b' | b'c' | b'd' | b'f' | b'h' | b'm' | b'o' | b'p' | b'r' | b's' | b'u' | b'w' | b'x',
    ) = name.as_bytes().first()
    else {
        return false;
    };
    match name {
        // No known field is an override, and most of the remaining fields are known.
        _ if known_kind(name).is_some() => false,
        "forwarded" => names_url(value),
        _ if name.contains('_') => {
            let name = name.replace('_', "-");
            names_other_url(&name) || name == "forwarded" && names_url(value)
        }
        _ => names_other_url(name),
    }
}

/// Returns true if a field is an override by name, with any value.
fn names_other_url(name: &str) -> bool {
    let has_prefix = || {
        OVERRIDE_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    OVERRIDES.binary_search(&name).is_ok()
        || is_of_forwarded_url(name)
        // X-Original-Forwarded-For carries an address.
        || has_prefix() && ADDRESSES.binary_search(&name).is_err()
}

/// Returns true if an unlisted field has a last word that frameworks and front proxies use to state
/// the URL: X-URL, X-Source-Host.
///
/// Many of these fields belong to an application, which may send such a field with each request.
/// Therefore they are forwarded, and the request may be answered from the store; but the response
/// is not stored, because all clients would get it.
fn is_named_like_override(name: &str) -> bool {
    let mut words = name.split(['-', '_']);
    let has_x = words.next() == Some("x");
    let last = words.next_back().unwrap_or_default();
    has_x && OVERRIDE_ENDS.binary_search(&last).is_ok()
}

/// Returns true if a `Forwarded` may state the host or scheme that the client used: if it has any
/// parameter except addresses. Origins parse malformed values in different ways, so malformed
/// values count.
fn names_url(forwarded: &HeaderValue) -> bool {
    let mut parameters = forwarded.as_bytes().split(|byte| b",;".contains(byte));
    parameters.any(|parameter| {
        let name = parameter.split(|&byte| byte == b'=').next();
        let name = name.unwrap_or_default().trim_ascii();
        !(name.eq_ignore_ascii_case(b"for") || name.eq_ignore_ascii_case(b"by"))
    })
}

/// X-Forwarded-Host, -Proto, -Prefix and all others except the fields about the client.
fn is_of_forwarded_url(name: &str) -> bool {
    let rest = name.strip_prefix("x-forwarded-");
    rest.is_some_and(|rest| FORWARDED_CLIENT.binary_search(&rest).is_err())
}

/// Returns true if front proxies write this field about the client's address or the requested URL.
/// Fields about the user are excluded, because a response may be made for that user.
fn is_of_front(name: &str) -> bool {
    is_of_forwarded_url(name)
        || name == "x-forwarded"
        || name.starts_with("cf-ip")
        || name.starts_with("cloudfront-viewer-")
        || name.starts_with("cloudfront-is-")
        || ADDRESSES.binary_search(&name).is_ok()
}

fn known_kind(name: &str) -> Option<FieldKind> {
    let known = known_with_first_letter_of(name);
    let at = known.binary_search_by(|(known, _)| (*known).cmp(name));
    at.ok().map(|at| known[at].1)
}

/// The part of the known fields with the same first letter. This limits the binary search: every
/// field in every request is looked up, and most letters have few fields.
fn known_with_first_letter_of(name: &str) -> &'static [(&'static str, FieldKind)] {
    const STARTS: [usize; 257] = {
        let mut starts = [KNOWN.len(); 257];
        let mut at = KNOWN.len();
        let mut first = 256;
        while first > 0 {
            first -= 1;
            while at > 0 && KNOWN[at - 1].0.as_bytes()[0] as usize >= first {
                at -= 1;
            }
            starts[first] = at;
        }
        starts
    };
    let first = usize::from(name.as_bytes().first().copied().unwrap_or_default());
    &KNOWN[STARTS[first]..STARTS[first + 1]]
}

/// Known fields, sorted by name. Session and request identifiers of tools are inert although they
/// may be the same in all requests from a client: they identify a run of a program, and no origin
/// grants access by them.
const KNOWN: &[(&str, FieldKind)] = {
    use FieldKind::{Address, Authorization, Cookie, Inert, Selecting, Special};
    &[
        ("accept", Selecting),
        ("accept-charset", Selecting),
        ("accept-datetime", Selecting),
        ("accept-encoding", Selecting),
        ("accept-language", Selecting),
        ("alt-used", Inert),
        ("authorization", Authorization),
        ("b3", Inert),
        ("baggage", Inert),
        ("cache-control", Inert),
        // The version of the index protocol in cargo.
        ("cargo-protocol", Selecting),
        ("cdn-loop", Inert),
        ("cf-ray", Inert),
        ("connection", Inert),
        ("content-encoding", Special),
        ("content-language", Special),
        ("content-length", Special),
        // Some programs send it with every GET.
        ("content-type", Special),
        ("cookie", Cookie),
        ("date", Inert),
        ("device-memory", Selecting),
        ("dnt", Selecting),
        ("docker-distribution-api-version", Selecting),
        ("downlink", Selecting),
        ("dpr", Selecting),
        ("early-data", Special),
        ("ect", Selecting),
        ("expect", Special),
        ("flatpak-ref", Selecting),
        ("flatpak-upgrade-from", Selecting),
        ("git-protocol", Selecting),
        // Our own field: the values of a site's key rules.
        ("hashcache-key", Selecting),
        ("host", Inert),
        ("http2-settings", Inert),
        ("if-match", Special),
        ("if-modified-since", Selecting),
        ("if-none-match", Selecting),
        ("if-range", Special),
        ("if-unmodified-since", Special),
        ("keep-alive", Inert),
        ("max-forwards", Special),
        ("ms-cv", Inert),
        ("newrelic", Inert),
        ("npm-auth-type", Selecting),
        ("npm-command", Selecting),
        ("npm-in-ci", Selecting),
        ("npm-scope", Selecting),
        ("npm-session", Inert),
        // Requests for fonts and modules in web pages always have an Origin.
        ("origin", Special),
        ("pacote-integrity", Selecting),
        ("pacote-pkg-id", Selecting),
        ("pacote-req-type", Selecting),
        ("pacote-version", Selecting),
        ("pragma", Inert),
        ("priority", Inert),
        ("proxy-connection", Inert),
        ("purpose", Selecting),
        ("range", Special),
        ("referer", Selecting),
        // Request numbers in the public suite of caching tests.
        ("req-num", Inert),
        ("rtt", Selecting),
        ("save-data", Selecting),
        ("sec-gpc", Selecting),
        ("sec-purpose", Selecting),
        ("sentry-trace", Inert),
        ("service-worker", Selecting),
        ("te", Selecting),
        ("test-id", Inert),
        ("test-name", Inert),
        ("traceparent", Inert),
        ("tracestate", Inert),
        ("transfer-encoding", Special),
        ("uber-trace-id", Inert),
        ("upgrade", Special),
        ("upgrade-insecure-requests", Selecting),
        ("user-agent", Selecting),
        ("via", Selecting),
        ("viewport-width", Selecting),
        ("want-content-digest", Selecting),
        ("want-digest", Selecting),
        ("want-repr-digest", Selecting),
        ("width", Selecting),
        ("x-amz-cf-id", Inert),
        ("x-amzn-trace-id", Inert),
        ("x-b3-flags", Inert),
        ("x-b3-parentspanid", Inert),
        ("x-b3-sampled", Inert),
        ("x-b3-spanid", Inert),
        ("x-b3-traceid", Inert),
        ("x-bluecoat-via", Inert),
        ("x-cloud-trace-context", Inert),
        ("x-correlation-id", Inert),
        ("x-datadog-parent-id", Inert),
        ("x-datadog-sampling-priority", Inert),
        ("x-datadog-trace-id", Inert),
        ("x-forwarded-for", Address),
        // The source that a mirror replaces, for Bundler.
        ("x-gemfile-source", Selecting),
        ("x-moz", Selecting),
        ("x-nuget-client-version", Selecting),
        ("x-nuget-protocol-version", Selecting),
        ("x-nuget-session-id", Inert),
        ("x-purpose", Selecting),
        ("x-request-id", Inert),
        ("x-requested-with", Selecting),
        ("x-trace-id", Inert),
        // An identifier by which zypper installations are counted.
        ("x-zypp-anonymousid", Inert),
        ("x-zypp-distributionflavor", Selecting),
    ]
};

/// Fields by which some origins, frameworks and front proxies use another method, path, scheme or
/// host than in the request line and Host, sorted. In addition, all fields with a prefix in
/// [`OVERRIDE_PREFIXES`], all X-Forwarded fields except addresses, and `Forwarded` with `host` or
/// `proto` count.
const OVERRIDES: [&str; 45] = [
    "base-url",
    "cf-visitor",
    "cloudfront-forwarded-proto",
    "destination-url",
    "fastly-ssl",
    "fly-forwarded-proto",
    "fly-forwarded-ssl",
    "front-end-https",
    "http-host",
    "method-override",
    "original-url",
    "path-override",
    "redirect-url",
    "request-uri",
    "script-name",
    "ssl-offloaded",
    "uri",
    "wl-proxy-ssl",
    "x-arr-ssl",
    "x-backend-host",
    "x-custom-host",
    "x-envoy-original-host",
    "x-envoy-original-path",
    // Older than the `Forwarded` standard; origins read addresses, hosts and schemes in it.
    "x-forwarded",
    "x-host",
    "x-host-override",
    "x-http-destinationurl",
    "x-http-host",
    "x-http-host-override",
    "x-http-method",
    "x-http-method-override",
    "x-http-path-override",
    // Next.js and its hosting services read the route and the parameters from these fields.
    "x-matched-path",
    "x-method",
    "x-method-override",
    "x-now-route-matches",
    "x-proxy-url",
    "x-real-host",
    // The path before a Traefik rule replaced it.
    "x-replaced-path",
    "x-request-uri",
    "x-scheme",
    "x-script-name",
    "x-server-name",
    "x-tunnel-method",
    "x-url-scheme",
];

/// Last words of X- fields that state another URL or method, sorted.
const OVERRIDE_ENDS: [&str; 11] = [
    "host", "hostname", "https", "method", "path", "proto", "protocol", "scheme", "ssl", "uri",
    "url",
];

/// Prefixes under which frameworks and front proxies have several fields: X-Original-URL, -URI,
/// -Host, -Path, -Method; X-Rewrite-URL; X-Override-URL; X-Invoke-Path, -Query, -Status and
/// X-Middleware-Subrequest, -Rewrite, -Prefetch in Next.js, which make it answer with another page,
/// an error, or nothing.
const OVERRIDE_PREFIXES: [&str; 5] = [
    "x-invoke-",
    "x-middleware-",
    "x-original-",
    "x-override-",
    "x-rewrite-",
];

/// The X-Forwarded fields that describe the client and not the URL, sorted.
const FORWARDED_CLIENT: [&str; 15] = [
    "access-token",
    "authorization",
    "by",
    "client-cert",
    "client-cert-chain",
    "client-ip",
    "email",
    "for",
    "groups",
    "login",
    "preferred-username",
    "tls-client-cert",
    "tls-client-cert-info",
    "user",
    "username",
];

/// Fields in which front proxies state the client's address or connection, sorted.
const ADDRESSES: [&str; 36] = [
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "cf-pseudo-ipv4",
    "cf-visitor",
    "client-ip",
    "do-connecting-ip",
    "fastly-client-ip",
    "fly-client-ip",
    "front-end-https",
    "incap-client-ip",
    "remote-addr",
    "ssl-offloaded",
    "true-client-ip",
    "wl-proxy-client-ip",
    "x-appengine-remote-addr",
    "x-appengine-user-ip",
    "x-arr-ssl",
    "x-azure-clientip",
    "x-azure-socketip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-nf-client-connection-ip",
    "x-original-forwarded-for",
    "x-original-remote-addr",
    "x-originating-ip",
    "x-proxyuser-ip",
    "x-real-ip",
    "x-real-port",
    "x-remote-addr",
    "x-remote-ip",
    "x-scheme",
    "x-sucuri-clientip",
    "x-true-client-ip",
    "x-url-scheme",
    "x-vercel-forwarded-for",
];

/// Fields in which front proxies state the scheme that the client used, besides the usual fields,
/// sorted.
const SCHEMES: [&str; 17] = [
    "cf-visitor",
    "cloudfront-forwarded-proto",
    "fastly-ssl",
    "fly-forwarded-proto",
    "fly-forwarded-ssl",
    "front-end-https",
    "ssl-offloaded",
    "wl-proxy-ssl",
    "x-arr-ssl",
    "x-forwarded",
    "x-forwarded-https",
    // 443 or 80.
    "x-forwarded-port",
    "x-forwarded-protocol",
    "x-forwarded-scheme",
    "x-forwarded-ssl",
    "x-scheme",
    "x-url-scheme",
];

/// Fields in which front proxies state the client's user or certificate (RFC 9440), sorted.
const USERS: [&str; 9] = [
    "cf-access-authenticated-user-email",
    "client-cert",
    "client-cert-chain",
    "remote-user",
    "x-authenticated-user",
    "x-client-cert",
    "x-remote-user",
    "x-ssl-cert",
    "x-webauth-user",
];

/// Prefixes of fields in which front proxies and login services state the user or the certificate.
const USER_PREFIXES: [&str; 10] = [
    "oidc-claim-",
    "ssl-client-",
    "tailscale-user-",
    "x-amzn-oidc-",
    "x-auth-request-",
    "x-authentik-",
    "x-goog-authenticated-user-",
    "x-ms-client-principal",
    "x-ssl-client-",
    "x-token-user-",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for (name, value) in lines {
            fields.append(*name, value.parse().unwrap());
        }
        fields
    }

    fn kinds(name: &'static str, value: &str) -> FieldKinds {
        FieldKinds::new(&fields(&[(name, value)]), Exempt::default(), &[], &[])
    }

    #[test]
    fn the_lists_are_sorted_so_that_a_search_finds_each_name() {
        assert!(KNOWN.is_sorted_by(|one, other| one.0 < other.0));
        for known in KNOWN {
            assert!(known_with_first_letter_of(known.0).contains(known));
        }
        for list in [
            &OVERRIDES[..],
            &OVERRIDE_ENDS,
            &SCHEMES[..],
            &ADDRESSES,
            &USERS,
            &FORWARDED_CLIENT,
        ] {
            assert!(list.is_sorted_by(|one, other| one < other));
        }
    }

    #[test]
    fn no_known_field_but_an_address_speaks_for_a_client_and_none_is_an_override() {
        for (name, kind) in KNOWN {
            let is_listed = ADDRESSES.contains(name) || USERS.contains(name);
            let is_of_proxies = is_listed || *name == "proxy" || name.starts_with("x-forwarded-");
            assert!(*kind == FieldKind::Address || !is_of_proxies, "{name}");
            assert!(!names_other_url(name), "{name}");
        }
    }

    #[test]
    fn every_override_is_seen_by_its_first_letter_and_in_both_spellings() {
        for name in OVERRIDES {
            let value = HeaderValue::from_static("x");
            assert!(is_override(name, &value), "{name}");
            assert!(is_override(&name.replace('-', "_"), &value), "{name}");
        }
    }

    #[test]
    fn a_field_that_no_list_names_is_unknown() {
        for name in [
            "x-jfrog-art-api",
            "private-token",
            "api_key",
            "x-auth",
            "dpop",
            "signature",
            "cookie2",
            "sec-session",
            "npm-otp",
            "x-nuget-apikey",
            "user_agent",
            "x-real-ip",
            "client-ip",
            "x-forwarded-user",
            "cf-access-jwt-assertion",
        ] {
            assert_eq!(kinds(name, "x"), FieldKinds::UNKNOWN, "{name}");
        }
    }

    #[test]
    fn what_browsers_and_package_tools_send_is_harmless() {
        for name in [
            "accept",
            "sec-ch-ua-arch",
            "sec-fetch-dest",
            "dnt",
            "priority",
            "npm-command",
            "npm-session",
            "pacote-req-type",
            "cargo-protocol",
            "git-protocol",
            "docker-distribution-api-version",
            "x-nuget-session-id",
            "traceparent",
            "via",
        ] {
            assert_eq!(kinds(name, "x"), FieldKinds::default(), "{name}");
        }
    }

    #[test]
    fn overrides_count_whatever_their_spelling_unless_a_trusted_front_states_them() {
        let all = [
            ("x-forwarded-host", "evil"),
            ("x_forwarded_host", "evil"),
            ("x-forwarded-anything", "x"),
            ("x-original-url", "/admin"),
            ("x-http-method-override", "POST"),
            ("x-forwarded", "host=evil"),
            ("x-matched-path", "/admin"),
            ("x-now-route-matches", "1=admin"),
            ("x-replaced-path", "/admin"),
            ("x-original-path", "/admin"),
            ("x_original_anything", "x"),
            ("x-rewrite-path", "/admin"),
            ("x-override-host", "evil"),
            ("x-invoke-status", "500"),
            ("x-middleware-subrequest", "middleware"),
            ("x-request-uri", "/admin"),
            ("x-http-host", "evil"),
            ("x_server_name", "evil"),
            ("cf-visitor", "{\"scheme\":\"http\"}"),
            ("cloudfront-forwarded-proto", "http"),
            ("wl-proxy-ssl", "true"),
            ("forwarded", "for=1.2.3.4;Host=evil"),
            ("forwarded", "PROTO=\"https\""),
            ("forwarded", "evil"),
        ];
        for (name, value) in all {
            assert_eq!(kinds(name, value), FieldKinds::OVERRIDE, "{name}: {value}");
            assert!(has_override(&fields(&[(name, value)]), Exempt::default()));
            let name: HeaderName = name.parse().unwrap();
            assert!(speaks_for_client(&name), "{name}");
        }
        for name in [
            "fly-client-ip",
            "x_true_client_ip",
            "tailscale-user-login",
            "oidc_claim_email",
            "x-ms-client-principal-name",
        ] {
            let name: HeaderName = name.parse().unwrap();
            assert!(speaks_for_client(&name), "{name}");
        }
        for name in [
            "x-original-forwarded-for",
            "x-original-remote-addr",
            "x-originator",
        ] {
            assert_eq!(kinds(name, "x"), FieldKinds::UNKNOWN, "{name}");
        }
        let addresses = "for=1.2.3.4, For=\"[::1]:80\";by=_x";
        assert_eq!(kinds("forwarded", addresses), FieldKinds::ADDRESS);
        assert_eq!(kinds("x-forwarded-for", "1.2.3.4"), FieldKinds::ADDRESS);
        let by_front = Exempt {
            by_front: true,
            ..Exempt::default()
        };
        let of_front = fields(&[("x-forwarded-host", "a"), ("x-real-ip", "1.2.3.4")]);
        assert_eq!(
            FieldKinds::new(&of_front, by_front, &[], &[]),
            FieldKinds::default()
        );
        assert!(!has_override(&of_front, by_front));
        assert!(has_override(&fields(&[("x-original-url", "/a")]), by_front));
        // The scheme in a field that the key is not computed from.
        let named_scheme = Exempt {
            front_named_scheme: true,
            ..by_front
        };
        for name in SCHEMES {
            let alone = fields(&[(name, "https")]);
            assert!(has_override(&alone, by_front), "{name}");
            assert!(!has_override(&alone, named_scheme), "{name}");
            assert!(has_override(&alone, Exempt::default()), "{name}");
        }
    }

    #[test]
    fn the_response_to_a_field_named_like_an_override_is_for_its_client_alone() {
        for name in ["x-url", "x-source-host", "x_upload_path"] {
            assert_eq!(kinds(name, "x"), FieldKinds::OVERRIDE, "{name}");
            let request = fields(&[(name, "x")]);
            assert!(!has_override(&request, Exempt::default()), "{name}");
            let name: HeaderName = name.parse().unwrap();
            assert!(!speaks_for_client(&name), "{name}");
            assert_eq!(unknown_field(&request, Exempt::default(), &[]), Some(&name));
            let harmless = [name];
            let kinds = FieldKinds::new(&request, Exempt::default(), &[], &harmless);
            assert_eq!(kinds, FieldKinds::default());
        }
        for name in ["url", "x-urls", "x-host-id", "x"] {
            assert_eq!(kinds(name, "x"), FieldKinds::UNKNOWN, "{name}");
        }
    }

    #[test]
    fn fields_in_the_key_in_vary_or_named_by_the_operator_are_covered() {
        let request = fields(&[("x-api-key", "secret"), ("x-tenant", "a")]);
        let name = |name: &str| vec![name.parse::<HeaderName>().unwrap()];
        let (key, tenant) = (name("x-api-key"), name("x-tenant"));
        let keyed = Exempt {
            keyed: &key,
            ..Exempt::default()
        };
        let kinds = |exempt, varied: &[_], harmless: &[_]| {
            FieldKinds::new(&request, exempt, varied, harmless)
        };
        assert_eq!(kinds(keyed, &[], &[]), FieldKinds::UNKNOWN);
        assert_eq!(kinds(keyed, &tenant, &[]), FieldKinds::default());
        assert_eq!(kinds(keyed, &[], &tenant), FieldKinds::default());
        let none = Exempt::default();
        assert_eq!(kinds(none, &key, &tenant), FieldKinds::default());
    }

    #[test]
    fn compared_fields_leave_out_those_of_single_requests() {
        let one = fields(&[("b3", "1"), ("user-agent", "u"), ("accept", "a")]);
        let other = fields(&[("accept", "a"), ("host", "h"), ("user-agent", "u")]);
        assert_eq!(compared_fields(&one, 100), compared_fields(&other, 100));
        let third = fields(&[("accept", "b"), ("user-agent", "u")]);
        assert_ne!(compared_fields(&one, 100), compared_fields(&third, 100));
        assert_eq!(compared_fields(&one, 10), None);
    }
}
