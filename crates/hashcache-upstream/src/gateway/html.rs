//! Gateway pages: directories, menus and errors.
//!
//! Called by `ftp` and `gopher`, which send a page piece by piece.
//!
//! Invariant: all text from servers and URLs is escaped, and links have only the schemes in
//! [`LINKED`]. Cost: a piece at a time.

use std::fmt::{self, Write as _};

use hashcache_base::frame::{self, Escaped};
use hashcache_http::{Authority, Scheme};

use super::gopher_menu::{Item, Menu};
use super::listing::{Entry, EntryKind, Listing, NAMES_MAX};

/// Makes a directory page, in pieces. `path` is decoded, without a `/` at the end.
pub(super) fn directory<'a>(
    host: &str,
    path: &[u8],
    listing: &'a Listing<'a>,
) -> impl Iterator<Item = String> + use<'a> {
    let shown = String::from_utf8_lossy(path);
    let title = format!(
        "{}/{}",
        Escaped(host),
        Escaped(shown.trim_start_matches('/'))
    );
    let base = Encoded::path(path);
    let mut begin = frame::begin(&title, STYLE);
    if !path.is_empty() {
        let above = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let above = Encoded::path(&path[..above]);
        let _ = write!(begin, "<p><a href=\"{above}\">Parent directory</a></p>");
    }
    begin.push_str("<table>");
    let mut end = String::from("</table>");
    if listing.entries.is_empty() {
        end.push_str("<p>This directory is empty.</p>");
    }
    if listing.is_cut {
        let _ = write!(
            end,
            "<p class=a>There are more names than are shown here ({NAMES_MAX}, or 1 MiB of \
             text).</p>"
        );
    }
    if listing.unread > 0 {
        let lines = listing.unread;
        let _ = write!(end, "<p class=a>{lines} lines could not be read.</p>");
    }
    end.push_str(frame::END);
    let rows = listing.entries.iter();
    let rows = rows.map(move |entry| row(&base, entry));
    std::iter::once(begin)
        .chain(rows)
        .chain(std::iter::once(end))
}

fn row(base: &str, entry: &Entry<'_>) -> String {
    let slash = match entry.kind {
        EntryKind::Directory => "/",
        EntryKind::File | EntryKind::Link => "",
    };
    let name = String::from_utf8_lossy(entry.name);
    let mut row = String::with_capacity(128);
    let _ = write!(
        row,
        "<tr><td><a href=\"{base}{}{slash}\">{}{slash}</a><td>{}<td>",
        Encoded(entry.name),
        Escaped(&name),
        Time(entry.modified)
    );
    if let Some(size) = entry.size.filter(|_| entry.kind == EntryKind::File) {
        let _ = write!(row, "{size}");
    }
    row.push_str("</tr>\n");
    row
}

/// Makes a menu page, in pieces.
pub(super) fn menu<'a>(host: &str, menu: &'a Menu<'a>) -> impl Iterator<Item = String> + use<'a> {
    let begin = frame::begin(&Escaped(host).to_string(), STYLE) + "<div class=g>";
    let mut end = String::from("</div>");
    if menu.is_cut {
        end.push_str("<p class=a>There are more items than are shown here.</p>");
    }
    end.push_str(frame::END);
    std::iter::once(begin)
        .chain(menu.items.iter().map(menu_line))
        .chain(std::iter::once(end))
}

fn menu_line(item: &Item<'_>) -> String {
    let label = String::from_utf8_lossy(item.label);
    let label = Escaped(&label);
    match (item.kind, target_of(item)) {
        (b'7', Some(url)) => format!(
            "<form action=\"{url}\"><label>{label} <input name=q></label> \
             <button>Search</button></form>"
        ),
        (_, Some(url)) => format!("<div><a href=\"{url}\">{label}</a></div>\n"),
        (_, None) => format!("<div>{label}&nbsp;</div>\n"),
    }
}

/// Returns an item's URL, as HTML; `None` if the item has no target.
fn target_of(item: &Item<'_>) -> Option<String> {
    if item.kind == b'h'
        && let Some(url) = item.selector.strip_prefix(b"URL:")
    {
        let url = std::str::from_utf8(url).ok()?;
        let is_linked = LINKED.iter().any(|scheme| {
            let begin = url.get(..scheme.len());
            begin.is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
        });
        return is_linked.then(|| Escaped(url).to_string());
    }
    // 2, 8 and T need other programs; i is text, 3 an error.
    if b"i328T+".contains(&item.kind) || !item.kind.is_ascii_graphic() {
        return None;
    }
    let host = std::str::from_utf8(item.host).ok()?;
    let host = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{}", item.port?)
    } else {
        format!("{host}:{}", item.port?)
    };
    let authority = Authority::parse_with_port(&host).ok()?;
    let authority = authority.display(Scheme::Gopher);
    let (kind, selector) = (Encoded(std::slice::from_ref(&item.kind)), item.selector);
    Some(format!("gopher://{authority}/{kind}{}", Encoded(selector)))
}

/// Makes the page for a search without words: a form for the words. `path` is the path of the URL.
pub(super) fn search(host: &str, path: &[u8]) -> String {
    let action = Encoded::path(path);
    let action = action.trim_end_matches('/');
    let main = format!(
        "<form action=\"{action}\"><label>Words to search for <input name=q></label> \
         <button>Search</button></form>"
    );
    frame::document(&Escaped(host).to_string(), &main)
}

/// Makes an error page. `said` is the server's message.
pub(super) fn error(title: &str, said: &[u8]) -> String {
    let said = String::from_utf8_lossy(&said[..said.len().min(SAID_MAX)]);
    let main = match said.trim() {
        "" => String::new(),
        said => format!("<p>The server says: {}</p>", Escaped(said)),
    };
    frame::document(&Escaped(title).to_string(), &main)
}

/// Bytes as a part of a URL: percent-encoded except for letters, digits and a few others.
struct Encoded<'a>(&'a [u8]);

impl Encoded<'_> {
    /// Returns the URL path of the directory with this decoded name, with `/` at both ends. A `/`
    /// at the start of the name is encoded, because two slashes would start a host.
    fn path(name: &[u8]) -> String {
        if name.is_empty() {
            return "/".to_owned();
        }
        let (begin, rest) = match name.strip_prefix(b"/") {
            Some(rest) => ("/%2F", rest),
            None => ("/", name),
        };
        let mut path = begin.to_owned();
        for segment in rest.split(|&byte| byte == b'/') {
            let _ = write!(path, "{}/", Encoded(segment));
        }
        path
    }
}

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in self.0 {
            match byte {
                b'-' | b'.' | b'_' | b'~' => f.write_char(byte.into())?,
                _ if byte.is_ascii_alphanumeric() => f.write_char(byte.into())?,
                _ => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}

/// A time in a listing: a time from MLSD in a readable form, other times as the server writes them.
struct Time<'a>(&'a [u8]);

impl fmt::Display for Time<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(self.0);
        let part = |from, to| text.get(from..to);
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        if let (14, Some(year), Some(month), Some(day), Some(hour), Some(minute)) = (
            digits,
            part(0, 4),
            part(4, 6),
            part(6, 8),
            part(8, 10),
            part(10, 12),
        ) {
            return write!(f, "{year}-{month}-{day} {hour}:{minute}");
        }
        Escaped(&text).fmt(f)
    }
}

/// Allowed URL prefixes in items with type `h`.
const LINKED: [&str; 4] = ["http://", "https://", "gopher://", "ftp://"];
/// Maximum number of bytes of a server's message that are shown.
const SAID_MAX: usize = 512;

/// Tables that fit a phone, and menus as their authors aligned them.
const STYLE: &str = "body{align-items:flex-start}main{max-width:60rem}h1{font-size:1.25rem}\
table{border-collapse:collapse;width:100%}\
td{padding:.25rem .75rem .25rem 0;border-top:1px solid var(--l);vertical-align:top}\
td+td{color:var(--m);font-size:.85rem;white-space:nowrap;text-align:right}\
.g{font-family:ui-monospace,monospace;white-space:pre-wrap;font-size:.9rem}\
@media(max-width:34rem){body{padding:.5rem}main{padding:1rem}td:nth-child(2){display:none}}";

#[cfg(test)]
mod tests {
    use super::super::gopher_menu;
    use super::super::listing::{ListingForm, read};
    use super::*;

    #[test]
    fn names_of_a_listing_are_escaped_and_encoded() {
        let text = b"type=file;size=5; <b>&\"'.txt\r\ntype=dir;modify=20240102030405; a b\xff\r\n";
        let listing = read(ListingForm::Mlsd, text);
        let page: String = directory("h<", b"/etc/<x>", &listing).collect();
        assert!(
            page.contains("<title>h&lt;/etc/&lt;x&gt;</title>"),
            "{page}"
        );
        assert!(
            page.contains(
                "<a href=\"/%2Fetc/%3Cx%3E/%3Cb%3E%26%22%27.txt\">&lt;b&gt;&amp;&quot;&#39;.txt</a>\
                 <td><td>5</tr>"
            ),
            "{page}"
        );
        assert!(
            page.contains("/a%20b%FF/\">a b\u{fffd}/</a><td>2024-01-02 03:04<td></tr>"),
            "{page}"
        );
        assert!(
            page.contains("<a href=\"/%2Fetc/\">Parent directory"),
            "{page}"
        );
    }

    #[test]
    fn items_lead_only_where_they_may() {
        let text = b"1<Sub>\t/a b\texample.org\t70\r\n\
                     hWeb\tURL:https://x.test/?a&b\t\t0\r\n\
                     hBad\tURL:javascript:alert(1)\t\t0\r\n\
                     1Bad\t/\texample.org\"><\t70\r\n\
                     8Telnet\t\texample.org\t23\r\n\
                     ibare text\t\t\t0\r\n\
                     0Six\t/\t2001:db8::1\t7070\r\n\
                     7Find\t/s\texample.org\t70\r\n";
        let menu = gopher_menu::read(text);
        let page: String = super::menu("h", &menu).collect();
        assert!(page.contains("<a href=\"gopher://example.org/1%2Fa%20b\">&lt;Sub&gt;</a>"));
        assert!(page.contains("<a href=\"https://x.test/?a&amp;b\">Web</a>"));
        assert!(
            page.contains("<div>Bad&nbsp;</div>\n<div>Bad&nbsp;</div>"),
            "{page}"
        );
        assert!(page.contains("<div>Telnet&nbsp;</div>\n<div>bare text&nbsp;</div>"));
        assert!(page.contains("gopher://[2001:db8::1]:7070/0%2F"), "{page}");
        assert!(
            page.contains("<form action=\"gopher://example.org/7%2Fs\">"),
            "{page}"
        );
    }

    #[test]
    fn an_error_shows_what_the_server_says() {
        let page = error("Not found", b"No <such> file");
        assert!(page.contains("The server says: No &lt;such&gt; file"));
        assert!(!error("Not found", b" ").contains("says"));
    }
}
