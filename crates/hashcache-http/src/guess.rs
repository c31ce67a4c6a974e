//! Decides if a lifetime that the origin does not state may be guessed, or taken from a rule (RFC
//! 9111 4.2.2).
//!
//! `freshness` calls it for each response without an explicit lifetime.
//!
//! Invariant: nothing is assumed for a response that may be made for a single client, or that the
//! origin has declared, in any spelling, not to be kept.
//! Cost: one pass over the names of the response fields, for responses without a lifetime.

use http::StatusCode;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_DISPOSITION, CONTENT_TYPE, HeaderMap, HeaderName, PRAGMA,
    SET_COOKIE,
};

use crate::cache_control::ResponseDirectives;
use crate::exchange::Exchange;
use crate::fields::trim;
use crate::request_fields::FieldKinds;

/// The source of a possible lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// A rule by the operator, because operators know their sites.
    OperatorRule,
    /// A rule from the shipped list, which knows only names.
    ShippedRule,
    /// The default for a site; `site_lifetime` decides about cookies.
    SiteDefault,
    /// The time since Last-Modified.
    LastModified,
    /// The negative lifetime, for an absent resource.
    Negative,
}

/// Returns true if the request and response fields allow a lifetime that the origin does not state.
/// `kinds` are from the request that the content answers: after a 304 the fields of that request
/// are no longer available.
pub(crate) fn may_assume(basis: Basis, exchange: &Exchange<'_>, kinds: FieldKinds) -> bool {
    let foreign = FieldKinds::UNKNOWN.and(FieldKinds::OVERRIDE);
    if kinds.has(foreign) || forbids_keeping(exchange.response, basis) {
        return false;
    }
    let recognised = FieldKinds::COOKIE.and(FieldKinds::AUTHORIZATION);
    match basis {
        // `storable` has already applied the rules for Authorization (RFC 9111 3.5).
        Basis::OperatorRule | Basis::SiteDefault => true,
        Basis::ShippedRule => !kinds.has(recognised) && is_for_any_origin(exchange, kinds),
        Basis::LastModified => {
            let is_clean = exchange.target.query().is_none()
                && !exchange.response.contains_key(SET_COOKIE)
                && !kinds.has(FieldKinds::AUTHORIZATION)
                && is_for_any_origin(exchange, kinds);
            let may_be_personal = kinds.has(FieldKinds::COOKIE.and(FieldKinds::ADDRESS));
            is_clean && (!may_be_personal || is_asset(exchange.response))
        }
        Basis::Negative => {
            // Each of these fields can be the reason for the error.
            let reasons = recognised.and(FieldKinds::ADDRESS).and(FieldKinds::SPECIAL);
            exchange.target.query().is_none()
                && !exchange.response.contains_key(SET_COOKIE)
                && !kinds.has(reasons)
        }
    }
}

/// Returns true if a guess by Last-Modified is for content, not for an error or a redirect, which
/// may disappear at any time. With `public` the origin declares a response with any status to be
/// for all clients.
pub(crate) fn is_content(status: StatusCode, directives: &ResponseDirectives) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 206) || directives.public
}

/// Returns true if a response without a lifetime, to a request with a cookie, may be made for a
/// single user: a page or data. Such a response is never used without validation, not even if the
/// origin cannot be reached.
pub(crate) fn may_be_personal(exchange: &Exchange<'_>, kinds: FieldKinds) -> bool {
    kinds.has(FieldKinds::COOKIE) && !is_asset(exchange.response)
}

/// Returns true if, as far as this request shows, the origin sends the same response to pages from
/// any origin. If the response allows only a single origin by name, browsers refuse it to pages
/// from all others.
fn is_for_any_origin(exchange: &Exchange<'_>, kinds: FieldKinds) -> bool {
    let allowed = exchange.response.get(ACCESS_CONTROL_ALLOW_ORIGIN);
    !kinds.has(FieldKinds::ORIGIN) || allowed.is_none_or(|allowed| allowed == "*")
}

/// Returns true if a response field contains `no-store`, `no-cache` or `private` in any spelling:
/// between wrong separators, quoted, with a value, in `Pragma` or in a field for other caches. A
/// well-formed Cache-Control was obeyed earlier; here a field counts even if the origin only seems
/// to mean it. A rule by the operator overrides `Pragma` and fields for other caches.
fn forbids_keeping(response: &HeaderMap, basis: Basis) -> bool {
    response.iter().any(|(name, value)| {
        let counts = match basis {
            Basis::OperatorRule => *name == http::header::CACHE_CONTROL,
            _ => is_about_caches(name),
        };
        counts && says_not_to_keep(value.as_bytes())
            || name == "x-accel-expires" && basis != Basis::OperatorRule && value == "0"
    })
}

/// Cache-Control, CDN-Cache-Control, Surrogate-Control, Edge-Control and similar fields; Pragma.
fn is_about_caches(name: &HeaderName) -> bool {
    let text = name.as_str();
    *name == PRAGMA
        || text.ends_with("cache-control")
        || matches!(text, "surrogate-control" | "edge-control")
}

fn says_not_to_keep(value: &[u8]) -> bool {
    let letters = value.iter().filter(|byte| byte.is_ascii_alphabetic());
    let letters: Vec<u8> = letters.map(u8::to_ascii_lowercase).collect();
    let has = |word: &[u8]| letters.windows(word.len()).any(|part| part == word);
    has(b"nostore") || has(b"nocache") || has(b"private")
}

/// Returns true if the content is a file or a part of pages that sites usually have for all
/// clients: images, styles, scripts, fonts, media, archives. A response without a type, or with a
/// type that is not listed, may be a page.
fn is_asset(response: &HeaderMap) -> bool {
    let mut lines = response.get_all(CONTENT_TYPE).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return false;
    };
    let kind = line.as_bytes().to_ascii_lowercase();
    let kind = kind.split(|&byte| matches!(byte, b';' | b',')).next();
    let kind = trim(kind.unwrap_or_default());
    // A download that a browser saves under a name may be an invoice.
    let is_download = || response.contains_key(CONTENT_DISPOSITION);
    ASSETS
        .iter()
        .any(|prefix| kind.starts_with(prefix.as_bytes()))
        || SCRIPTS.iter().any(|end| kind.ends_with(end.as_bytes()))
        || ARCHIVES.iter().any(|it| it.as_bytes() == kind) && !is_download()
}

const ASSETS: [&str; 9] = [
    "application/font",
    "application/vnd.ms-fontobject",
    "application/wasm",
    "application/x-font",
    "audio/",
    "font/",
    "image/",
    "text/css",
    "video/",
];

const SCRIPTS: [&str; 2] = ["/javascript", "script"];

const ARCHIVES: [&str; 27] = [
    "application/gzip",
    "application/java-archive",
    "application/octet-stream",
    "application/vnd.android.package-archive",
    "application/vnd.debian.binary-package",
    "application/vnd.ms-cab-compressed",
    "application/vnd.rar",
    "application/x-7z-compressed",
    "application/x-apple-diskimage",
    "application/x-bzip",
    "application/x-bzip2",
    "application/x-cd-image",
    "application/x-compressed-tar",
    "application/x-debian-package",
    "application/x-gzip",
    "application/x-iso9660-image",
    "application/x-java-archive",
    "application/x-msdownload",
    "application/x-msi",
    "application/x-redhat-package-manager",
    "application/x-rpm",
    "application/x-shockwave-flash",
    "application/x-tar",
    "application/x-xz",
    "application/x-zip-compressed",
    "application/zip",
    "application/zstd",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_against_keeping_count_in_any_spelling() {
        for value in [
            "no-store; must-revalidate",
            "private; max-age=0",
            "\"no-cache\"",
            "NO-STORE",
            "no-store=1",
            "no_cache",
            "no store",
            "max-age no-store",
            "public,private=\"x\"",
        ] {
            assert!(says_not_to_keep(value.as_bytes()), "{value}");
        }
        for value in ["public", "max-age=5; immutable", "no-transform", "store"] {
            assert!(!says_not_to_keep(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn assets_are_what_sites_have_for_everybody() {
        let is_asset_of = |kind: &str, extra: Option<&str>| {
            let mut fields = HeaderMap::new();
            fields.insert(CONTENT_TYPE, kind.parse().unwrap());
            if let Some(extra) = extra {
                fields.insert(CONTENT_DISPOSITION, extra.parse().unwrap());
            }
            is_asset(&fields)
        };
        for kind in [
            "image/svg+xml",
            "text/css; charset=utf-8",
            "text/javascript",
            "application/x-javascript",
            "application/ecmascript",
            "font/woff2",
            "application/font-woff",
            "VIDEO/mp4",
            "application/zip",
            "application/octet-stream",
        ] {
            assert!(is_asset_of(kind, None), "{kind}");
        }
        for kind in [
            "text/html",
            "text/plain",
            "application/json",
            "application/xml",
            "application/xhtml+xml",
            "application/pdf",
            "application/ld+json",
            "",
        ] {
            assert!(!is_asset_of(kind, None), "{kind}");
        }
        assert!(!is_asset_of("application/zip", Some("attachment")));
        assert!(!is_asset(&HeaderMap::new()));
    }
}
