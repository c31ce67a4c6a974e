//! The request and response fields that distinguish pages from parts and name the page of a part.
//!
//! Called by `page_groups`, and by `request` in the proxy to find the objects that a parent names.
//! Cost: reads three fields; a Referer is parsed only if the page matters.

use hashcache_http::Target;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, REFERER};
use http::{HeaderMap, HeaderValue};

/// The request fields that distinguish a page from a part, and name the page of the part.
#[derive(Clone, Copy)]
pub struct PageFields<'a> {
    /// Sec-Fetch-Dest.
    pub destination: Option<&'a [u8]>,
    /// Accept.
    pub accept: Option<&'a [u8]>,
    /// Referer.
    pub referer: Option<&'a [u8]>,
}

/// The resource kind that a request is for, as far as the fields show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Page,
    Frame,
    /// A page or a frame: the client does not send Sec-Fetch-Dest.
    PageOrFrame,
    /// Anything else that a page loads.
    Part,
    Unknown,
}

impl<'a> PageFields<'a> {
    /// Takes the three fields from a request's `fields`.
    pub fn from_fields(fields: &'a HeaderMap) -> Self {
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
            // Browsers send this Accept only for pages and frames. Programs that accept anything
            // send no hint.
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
    /// True if the request is for a page or a frame rather than for another part; `None`: unknown.
    pub(super) fn is_page(self) -> Option<bool> {
        match self {
            Self::Page | Self::Frame | Self::PageOrFrame => Some(true),
            Self::Part => Some(false),
            Self::Unknown => None,
        }
    }
}

/// Returns true if a client requests a page or a frame rather than another part; `None`: unknown.
pub fn wants_page(fields: &HeaderMap) -> Option<bool> {
    PageFields::from_fields(fields).wanted().is_page()
}

/// Returns true if `target` is an icon that browsers request on their own: Chrome does so without a
/// Referer and with a page's Accept.
pub(super) fn is_icon(target: &Target) -> bool {
    let path = target.path_and_query.split('?').next().unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    file == "favicon.ico" || file.starts_with("apple-touch-icon")
}

/// Returns true if a response's content is HTML.
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
