//! The fields of requests and responses that say which of them are pages, and of which page the
//! others are parts.
//!
//! Called by `page_groups`, and by `request` of the proxy to find the objects that a parent names.
//! Cost: reads three fields; a Referer is parsed only where its page matters.

use hashcache_http::Target;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, REFERER};
use http::{HeaderMap, HeaderValue};

/// The fields of a request that say whether it is for a page, and for a part of which one.
#[derive(Clone, Copy)]
pub struct PageFields<'a> {
    /// Sec-Fetch-Dest.
    pub destination: Option<&'a [u8]>,
    /// Accept.
    pub accept: Option<&'a [u8]>,
    /// Referer.
    pub referer: Option<&'a [u8]>,
}

/// What a request is for, as far as its fields tell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Page,
    Frame,
    /// One of the two: the client does not send Sec-Fetch-Dest.
    PageOrFrame,
    /// Anything else that a page loads.
    Part,
    Unknown,
}

impl<'a> PageFields<'a> {
    /// Those of a request with `fields`.
    pub fn of(fields: &'a HeaderMap) -> Self {
        let field = |name: HeaderName| fields.get(name).map(HeaderValue::as_bytes);
        Self {
            destination: field(SEC_FETCH_DEST),
            accept: field(ACCEPT),
            referer: field(REFERER),
        }
    }

    pub(super) fn wanted(&self) -> Wanted {
        match self.destination {
            Some(b"document") => Wanted::Page,
            Some(b"iframe" | b"frame") => Wanted::Frame,
            Some(_) => Wanted::Part,
            // Browsers send this Accept for pages and frames only. Programs that accept anything do
            // not tell.
            None if self.accepts_first(b"text/html") => Wanted::PageOrFrame,
            None => Wanted::Unknown,
        }
    }

    pub(super) fn want_style_or_script(&self) -> bool {
        match self.destination {
            Some(destination) => [&b"style"[..], b"script"].contains(&destination),
            None => self.accepts_first(b"text/css"),
        }
    }

    /// The resource that Referer names.
    pub fn referer(&self) -> Option<Target> {
        let text = self.referer.filter(|value| value.is_ascii())?;
        let text = std::str::from_utf8(text).ok()?;
        Target::parse_url(text.split('#').next()?).ok()
    }

    fn accepts_first(&self, kind: &[u8]) -> bool {
        self.accept.is_some_and(|accept| accept.starts_with(kind))
    }
}

impl Wanted {
    /// Whether the request is for a page or a frame rather than for another part; `None`: unknown.
    pub(super) fn is_page(self) -> Option<bool> {
        match self {
            Self::Page | Self::Frame | Self::PageOrFrame => Some(true),
            Self::Part => Some(false),
            Self::Unknown => None,
        }
    }
}

/// Whether a client asks for a page or a frame rather than for another part; `None`: unknown.
pub fn wants_page(fields: &HeaderMap) -> Option<bool> {
    PageFields::of(fields).wanted().is_page()
}

/// Whether `target` is an icon that browsers ask for on their own: Chrome does so without a Referer
/// and with the Accept of a page.
pub(super) fn is_icon(target: &Target) -> bool {
    let path = target.path_and_query.split('?').next().unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    file == "favicon.ico" || file.starts_with("apple-touch-icon")
}

/// Whether the content of a response is HTML.
pub fn is_html(response: &HeaderMap) -> bool {
    let kind = media_type(response);
    let pages = [&b"text/html"[..], b"application/xhtml+xml"];
    pages.iter().any(|page| kind.eq_ignore_ascii_case(page))
}

pub(super) fn is_style_or_script(response: &HeaderMap) -> bool {
    let kind = media_type(response);
    // Besides text/javascript, older names are in use: application/x-javascript and others.
    let end = &kind[kind.len().saturating_sub(SCRIPT.len())..];
    kind.eq_ignore_ascii_case(b"text/css") || end.eq_ignore_ascii_case(SCRIPT)
}

/// Content-Type without parameters; empty if there is none.
fn media_type(response: &HeaderMap) -> &[u8] {
    let value = response
        .get(CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    let essence = value.split(|byte| *byte == b';').next();
    essence.unwrap_or_default().trim_ascii()
}

const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const SCRIPT: &[u8] = b"javascript";
