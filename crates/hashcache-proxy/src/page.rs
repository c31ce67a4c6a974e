//! The proxy's own pages: error pages, and the front page of a forward listener.
//!
//! Called by `request` with a `Failure`, or for a request for `/` of the proxy itself; `admin` uses
//! the page layout. People get HTML, programs plain text with the same content.
//!
//! Invariant: all text from clients or origins is escaped. A page is self-contained (no script,
//! image, font or other host), has less than 4 KiB except for the escaped host and configured text,
//! and is never stored. `ca` describes how the CA page differs.

mod ca;
mod failure_text;
mod pac;
mod quota;

use std::fmt::Write as _;

use bytes::Bytes;
use hashcache_base::failure::Failure;
use hashcache_base::frame::{Escaped, document};
use hashcache_http::{Origin, PROXY_STATUS};
use hashcache_site::mirror::{Mirror, MirrorKind, Setup};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

pub(crate) use ca::{CaPage, ca};
pub(crate) use pac::pac;
pub(crate) use quota::{QuotaPage, quota};

use crate::access_log::RequestId;
use crate::metrics::{EngineFigures, Requests, StoreState};

/// Reader type for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageReader {
    /// A person at a browser.
    Browser,
    /// A program, and the person who reads the program's output.
    Program,
}

impl PageReader {
    /// Selected by `Accept`: browsers name HTML; curl, apt and similar programs send `*/*` or no
    /// field.
    pub(crate) fn from_request(request: &HeaderMap) -> Self {
        let members = request.get_all(header::ACCEPT);
        let mut members = members
            .iter()
            .flat_map(|field| field.as_bytes().split(|&b| b == b','));
        if members.any(names_html) {
            Self::Browser
        } else {
            Self::Program
        }
    }
}

/// Returns true if an `Accept` member is HTML and not refused by `q=0`.
fn names_html(member: &[u8]) -> bool {
    let mut parts = member.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    let html = parts.next().is_some_and(|kind| {
        kind.eq_ignore_ascii_case(b"text/html")
            || kind.eq_ignore_ascii_case(b"application/xhtml+xml")
    });
    let refused = parts.any(|parameter| {
        let weight = parameter
            .strip_prefix(b"q=")
            .or_else(|| parameter.strip_prefix(b"Q="));
        weight.is_some_and(|weight| weight.iter().all(|byte| b"0.".contains(byte)))
    });
    html && !refused
}

/// Parts of an error page besides the failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageContext<'a> {
    /// The proxy's name.
    pub(crate) name: &'a str,
    /// Name in Proxy-Status: identifies this installation and not the program, as in Via (RFC 9209,
    /// section 2).
    pub(crate) deployment: &'a str,
    /// Requested host, as the client wrote it.
    pub(crate) host: Option<&'a str>,
    /// Request ID, which is also in the log.
    pub(crate) request_id: RequestId,
    /// Reader type.
    pub(crate) reader: PageReader,
}

/// Returns the response to a failed request, with all fields.
pub(crate) fn failure(failure: &Failure, context: &PageContext<'_>) -> Response<Bytes> {
    let status = failure.status();
    let host = context.host.filter(|host| !host.is_empty()).map(printable);
    let told = failure_text::explain(failure, host.as_deref());
    let facts = [
        (
            "Status",
            format!("{} ({})", status.as_u16(), failure.slug()),
        ),
        ("Host", host.unwrap_or_default()),
        ("Request", context.request_id.to_string()),
        ("Proxy", printable(context.name)),
    ];
    let facts = facts.iter().filter(|(_, value)| !value.is_empty());
    let body = match context.reader {
        PageReader::Browser => {
            let mut main = String::with_capacity(1 << 10);
            let (happened, advice) = (Escaped(&told.happened), Escaped(&told.advice));
            // Writing to a `String` cannot fail, here and below.
            let _ = write!(main, "<p>{happened}</p><p class=a>{advice}</p><dl>");
            for (name, value) in facts {
                let _ = write!(main, "<dt>{name}<dd>{}", Escaped(value));
            }
            main.push_str("</dl>");
            document(told.title, &main)
        }
        PageReader::Program => {
            let mut text = format!("{}\n\n{}\n{}\n\n", told.title, told.happened, told.advice);
            for (name, value) in facts {
                let _ = writeln!(text, "{name}: {value}");
            }
            text
        }
    };
    let mut response = page(status, context.reader, body);
    let fields = response.headers_mut();
    fields.insert(PROXY_STATUS, failure.proxy_status(context.deployment));
    if let Some(challenge) = failure.challenge() {
        fields.insert(header::PROXY_AUTHENTICATE, challenge);
    }
    if let Some(time) = failure.retry_after() {
        fields.insert(header::RETRY_AFTER, HeaderValue::from(time.as_secs()));
    }
    response
}

/// Front page content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landing<'a> {
    /// The proxy's name.
    pub(crate) name: &'a str,
    /// URL under which the client reaches this proxy.
    pub(crate) url: &'a Origin,
    /// Mirrors in display order.
    pub(crate) mirrors: &'a [&'a Mirror],
    /// Requests and hits so far.
    pub(crate) requests: Requests,
    /// Store state and content.
    pub(crate) engine: EngineFigures,
    /// True if interception is on; then there is a page `/ca`.
    pub(crate) intercepts: bool,
    /// Reader type.
    pub(crate) reader: PageReader,
}

/// Returns the page at `/` of a forward listener.
pub(crate) fn landing(landing: &Landing<'_>) -> Response<Bytes> {
    // These lines are for a shell; a parsed host contains no special characters.
    let url = landing.url;
    let lines = format!(
        "export http_proxy={url}/\n\
         export https_proxy={url}/\n\
         export no_proxy=localhost,127.0.0.1"
    );
    let apt = format!("Acquire::http::Proxy \"{url}/\";");
    let setups: Vec<(&Mirror, Setup)> = landing
        .mirrors
        .iter()
        .map(|&mirror| (mirror, mirror.setup(url)))
        .collect();
    let Requests { hits, all } = landing.requests;
    let EngineFigures {
        objects,
        objects_exact,
        ..
    } = landing.engine;
    let mut facts = match landing.engine.store {
        StoreState::Absent => "The cache is out of service: nothing is stored.".to_owned(),
        StoreState::Opening => "The cache is starting.".to_owned(),
        StoreState::Ready | StoreState::Degraded if objects_exact => {
            format!("{} objects are stored.", Grouped(objects))
        }
        StoreState::Ready | StoreState::Degraded => {
            format!("About {} objects are stored.", Grouped(objects))
        }
    };
    if all > 0 {
        // In 128 bits, because hits times 100 must not wrap.
        let percent = u128::from(hits) * 100 / u128::from(all);
        let _ = write!(
            facts,
            " {} of {} requests ({percent} %) were answered from the cache.",
            Grouped(hits),
            Grouped(all)
        );
    }
    let name = printable(landing.name);
    let https = if landing.intercepts {
        "Some https:// sites are stored too, for devices that \
             <a href=/ca>trust this cache</a>. All other https:// traffic passes through \
             encrypted."
    } else {
        "Traffic of https:// sites passes through encrypted and is not stored."
    };
    let body = match landing.reader {
        PageReader::Browser => {
            let mut main = format!(
                "<p>{} is a caching web proxy: it stores what it fetches, so that the next request \
                 for the same page is answered at once. {https}</p>\
                 <p class=a>{facts}</p>\
                 <h2>In a terminal</h2><pre>{}</pre>\
                 <h2>For apt, in /etc/apt/apt.conf.d/30proxy</h2><pre>{}</pre>\
                 <h2>In a browser or on a phone</h2><p>Set the proxy for HTTP and HTTPS to \
                 <code>{}</code>, or use the automatic configuration \
                 <code>{url}/proxy.pac</code>.</p>",
                Escaped(&name),
                Escaped(&lines),
                Escaped(&apt),
                url.authority,
            );
            for (mirror, setup) in &setups {
                let lines = setup.lines.join("\n");
                let _ = write!(
                    main,
                    "<h2>For {}, in {}</h2><pre>{}</pre>",
                    client(mirror),
                    Escaped(setup.file),
                    Escaped(&lines)
                );
            }
            document("This is a web cache", &main)
        }
        PageReader::Program => {
            let mut text = format!(
                "{name} is a caching web proxy.\n{facts}\n\n\
                 In a terminal:\n{lines}\n\nFor apt, in /etc/apt/apt.conf.d/30proxy:\n{apt}\n"
            );
            if landing.intercepts {
                let _ = write!(text, "\nTo cache https:// sites too, see {url}/ca\n");
            }
            for (mirror, setup) in &setups {
                let lines = setup.lines.join("\n");
                let client = client(mirror);
                let _ = write!(text, "\nFor {client}, in {}:\n{lines}\n", setup.file);
            }
            text
        }
    };
    page(StatusCode::OK, landing.reader, body)
}

/// Returns a page with security fields, which is never stored.
pub(crate) fn page(status: StatusCode, reader: PageReader, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let kind = match reader {
        PageReader::Browser => "text/html; charset=utf-8",
        PageReader::Program => "text/plain; charset=utf-8",
    };
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    fields.insert(header::CONTENT_LANGUAGE, HeaderValue::from_static("en"));
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    fields.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"),
    );
    fields.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// Replaces control and direction characters in foreign text, and cuts the text to a maximum
/// length.
fn printable(text: &str) -> String {
    let harmless = |c: char| match c {
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    let mut printable: String = text.chars().take(HOST_CHARS).map(harmless).collect();
    if text.chars().nth(HOST_CHARS).is_some() {
        printable.push('…');
    }
    printable
}

/// Names the clients that a mirror serves without any proxy setting.
fn client(mirror: &Mirror) -> String {
    let client = match mirror.kind() {
        MirrorKind::Pypi => "pip",
        MirrorKind::Npm => "npm",
        MirrorKind::Crates => "cargo",
        MirrorKind::Apt => "apt",
    };
    // The name distinguishes several mirrors of the same kind.
    if mirror.name() == mirror.kind().as_str() {
        format!("{client} without a proxy")
    } else {
        format!("{client} without a proxy ({})", mirror.name())
    }
}

/// A number with separated thousands.
struct Grouped(u64);

impl std::fmt::Display for Grouped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 < 1000 {
            return write!(f, "{}", self.0);
        }
        write!(f, "{},{:03}", Grouped(self.0 / 1000), self.0 % 1000)
    }
}

/// A DNS name has at most 253 characters; longer text is cut.
const HOST_CHARS: usize = 253;

#[cfg(test)]
mod tests;
