//! Menus from Gopher servers (RFC 1436), and paths in gopher URLs (RFC 4266).
//!
//! Called by `gopher` and `html`; the fuzz target `gopher` reads only this file.
//!
//! Invariants: no input panics. Fields of an item have no tab and no line end. A selector that is
//! sent has no control character.
//! Cost: an item (a few words) for each line.

/// A menu line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    /// The type: a character.
    pub(crate) kind: u8,
    pub(crate) label: &'a [u8],
    pub(crate) selector: &'a [u8],
    pub(crate) host: &'a [u8],
    /// `None`: the item has no target.
    pub(crate) port: Option<u16>,
}

/// A menu.
#[derive(Debug, Default)]
pub(crate) struct Menu<'a> {
    pub(crate) items: Vec<Item<'a>>,
    /// There are more items than these.
    pub(crate) is_cut: bool,
}

/// Reads a menu, up to a line with a single dot or the end.
pub(crate) fn read(text: &[u8]) -> Menu<'_> {
    let mut menu = Menu::default();
    for line in text.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line == b"." {
            break;
        }
        let Some(item) = item(line).filter(|_| line.len() <= LINE_MAX) else {
            continue;
        };
        if menu.items.len() == ITEMS_MAX {
            menu.is_cut = true;
            break;
        }
        menu.items.push(item);
    }
    menu
}

/// Reads a line: type and label, selector, host and port, with tabs between. Missing fields are
/// empty.
pub(crate) fn item(line: &[u8]) -> Option<Item<'_>> {
    let (&kind, rest) = line.split_first()?;
    let mut fields = rest.split(|&byte| byte == b'\t');
    let mut next = || fields.next().unwrap_or_default();
    let (label, selector, host) = (next(), next(), next());
    let port = std::str::from_utf8(next().trim_ascii()).ok();
    Some(Item {
        kind,
        label,
        selector,
        host: host.trim_ascii(),
        port: port.and_then(|port| port.parse().ok()).filter(|it| *it > 0),
    })
}

impl Item<'_> {
    /// Returns true if the server reports that the item does not exist.
    pub(crate) fn is_error(&self) -> bool {
        self.kind == b'3'
    }
}

/// The item that a gopher URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The item type.
    pub(crate) kind: u8,
    pub(crate) selector: Vec<u8>,
    /// The search words.
    pub(crate) search: Option<Vec<u8>>,
}

/// The reason why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathError {
    /// A control character would terminate the selector, or start another line.
    Control,
    /// The selector has more than 255 bytes.
    TooLong,
}

impl Request {
    /// Reads path and query of a URL: `/` and a type, and the selector. A search follows a tab
    /// (`%09`) or, as browsers write it, a question mark.
    pub(crate) fn parse(path_and_query: &str) -> Result<Self, PathError> {
        let path = path_and_query.strip_prefix('/').unwrap_or(path_and_query);
        let (path, query) = match path.split_once('?') {
            // Only items of this type are searched; in other types the question mark is part of the
            // selector.
            Some((path, query)) if path.starts_with('7') => (path, Some(query)),
            _ => (path, None),
        };
        let bytes = decode(path);
        let (&kind, rest) = bytes.split_first().unwrap_or((&b'1', &[]));
        let (selector, search) = match rest.iter().position(|&byte| byte == b'\t') {
            Some(tab) => (&rest[..tab], Some(rest[tab + 1..].to_vec())),
            // A form sends a space as `+`.
            None => (rest, query.map(|query| decode(&query.replace('+', "%20")))),
        };
        let search = search.map(|search| match search.strip_prefix(b"q=") {
            Some(words) => words.to_vec(),
            None => search,
        });
        let is_control = |byte: &u8| *byte < b' ' || *byte == 0x7f;
        let sent = || selector.iter().chain(search.iter().flatten());
        if is_control(&kind) || sent().any(is_control) {
            return Err(PathError::Control);
        }
        if sent().count() > SELECTOR_MAX {
            return Err(PathError::TooLong);
        }
        Ok(Self {
            kind,
            selector: selector.to_vec(),
            search,
        })
    }

    /// Returns the line to send to the server.
    pub(crate) fn line(&self) -> Vec<u8> {
        let mut line = self.selector.clone();
        if let Some(search) = &self.search {
            line.push(b'\t');
            line.extend_from_slice(search);
        }
        line.extend_from_slice(b"\r\n");
        line
    }
}

/// Decodes percent-encoding; a percent sign without two hexadecimal digits stays.
pub fn decode(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut decoded = Vec::with_capacity(rest.len());
    while let Some((&byte, after)) = rest.split_first() {
        let hex = |at: usize| char::from(*after.get(at)?).to_digit(16);
        match (byte, hex(0).zip(hex(1))) {
            (b'%', Some((high, low))) => {
                decoded.push(u8::try_from(high * 16 + low).unwrap_or_default());
                rest = &after[2..];
            }
            _ => {
                decoded.push(byte);
                rest = after;
            }
        }
    }
    decoded
}

/// Maximum number of items that are shown.
pub(crate) const ITEMS_MAX: usize = 10_000;
/// Maximum line length, bytes; longer lines are left out. A line becomes HTML as a whole, and
/// escaping makes it longer.
const LINE_MAX: usize = 4096;
/// Maximum selector length (RFC 1436, section 3.8), with the search words.
const SELECTOR_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_menu_ends_with_a_dot() {
        let text =
            b"iHello\t\tnull\t0\r\n1Sub\t/sub\texample.org\t70\r\n\r\n0x\r\n.\r\n1No\t\t\t\r\n";
        let menu = read(text);
        let port: Vec<_> = menu.items.iter().map(|it| (it.kind, it.port)).collect();
        assert_eq!(port, [(b'i', None), (b'1', Some(70)), (b'0', None)]);
        let sub = menu.items[1];
        assert_eq!((sub.label, sub.selector), (&b"Sub"[..], &b"/sub"[..]));
        assert_eq!(sub.host, b"example.org");
        let long = b"1\n".repeat(ITEMS_MAX + 1);
        assert!(read(&long).is_cut);
        assert!(!read(&long[2..]).is_cut);
        let long = format!("i{}\r\niB\r\n", "a".repeat(LINE_MAX));
        assert_eq!(read(long.as_bytes()).items.len(), 1);
    }

    #[test]
    fn a_path_names_type_selector_and_search() {
        let line = |path: &str| {
            let request = Request::parse(path).unwrap();
            (
                char::from(request.kind),
                String::from_utf8(request.line()).unwrap(),
            )
        };
        assert_eq!(line("/"), ('1', "\r\n".into()));
        assert_eq!(line("/1"), ('1', "\r\n".into()));
        assert_eq!(line("/0/a%20b"), ('0', "/a b\r\n".into()));
        assert_eq!(line("/0/a?b"), ('0', "/a?b\r\n".into()));
        assert_eq!(line("/7/s?q=a+b%2B"), ('7', "/s\ta b+\r\n".into()));
        assert_eq!(line("/7/s%09a+b"), ('7', "/s\ta+b\r\n".into()));
        assert_eq!(line("/9%"), ('9', "%\r\n".into()));
    }

    #[test]
    fn a_path_cannot_send_a_second_line() {
        for path in [
            "/0a%0d%0ab",
            "/0%0A",
            "/0%00",
            "/%0d",
            "/7s?a%0D",
            "/7s%09a%09b",
        ] {
            assert_eq!(Request::parse(path), Err(PathError::Control), "{path}");
        }
        let path = |length| format!("/0{}", "a".repeat(length));
        assert!(Request::parse(&path(255)).is_ok());
        assert_eq!(Request::parse(&path(256)), Err(PathError::TooLong));
    }
}
