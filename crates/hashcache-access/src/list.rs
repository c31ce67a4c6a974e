//! Parser for lists of hosts: hosts files, files with a domain on each line, Squid's `dstdomain`.
//!
//! `lists` calls it when a file has changed. Invariant: memory does not depend on the file. Too
//! long lines and invalid entries are skipped, and such lines are counted; they never stop the
//! parser.

use std::io::{self, BufRead};
use std::net::IpAddr;

use hashcache_http::Host;

use super::name::{PlainHost, read_host};
use super::name_set::Reach;

/// The format of a list's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListFormat {
    /// Each line is parsed separately: as in a hosts file if it starts with an address and a name
    /// follows, otherwise as `domains`.
    #[default]
    Auto,
    /// An address and the names of a host. A name matches only itself.
    Hosts,
    /// A domain, which also matches all hosts below it.
    Domains,
    /// As in Squid: `.example.org` with all hosts below, `example.org` only itself.
    Dstdomain,
}

impl ListFormat {
    /// All formats and their names in settings.
    pub const ALL: [(&'static str, Self); 4] = [
        ("auto", Self::Auto),
        ("hosts", Self::Hosts),
        ("domains", Self::Domains),
        ("dstdomain", Self::Dstdomain),
    ];
}

/// Lines in a file that are no entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadLines {
    /// Number of bad lines.
    pub count: u64,
    /// The numbers of the first bad lines, from 1.
    pub first: Vec<u64>,
}

impl BadLines {
    fn note(&mut self, line: u64) {
        self.count += 1;
        if self.first.len() < FIRST_MAX {
            self.first.push(line);
        }
    }
}

/// Reads a list; `each` gets every host, and returns false to stop.
///
/// # Errors
/// Read errors of `file`.
pub fn read_list(
    mut file: impl BufRead,
    format: ListFormat,
    mut each: impl FnMut(&Host, Reach) -> bool,
) -> io::Result<BadLines> {
    let (mut bad, mut line) = (BadLines::default(), Vec::new());
    for number in 1.. {
        match next_line(&mut file, &mut line)? {
            None => break,
            Some(Length::Long) => bad.note(number),
            Some(Length::Usual) => match read_line(&line, format, &mut each) {
                Read::All => {}
                Read::Bad => bad.note(number),
                Read::Stopped => break,
            },
        }
    }
    Ok(bad)
}

/// The length of a line: only lines of usual length are kept.
enum Length {
    Usual,
    Long,
}

/// Reads the next line into `line`, without the line break; `None` at the end of the file.
fn next_line(file: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<Length>> {
    line.clear();
    let (mut is_any, mut length) = (false, Length::Usual);
    loop {
        let bytes = match file.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if bytes.is_empty() {
            return Ok(is_any.then_some(length));
        }
        is_any = true;
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        if line.len() + part.len() <= LINE_MAX {
            line.extend_from_slice(part);
        } else {
            length = Length::Long;
        }
        let read = end.map_or(bytes.len(), |end| end + 1);
        file.consume(read);
        if end.is_some() {
            return Ok(Some(length));
        }
    }
}

/// The result of parsing a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    All,
    Bad,
    Stopped,
}

fn read_line(line: &[u8], format: ListFormat, each: &mut impl FnMut(&Host, Reach) -> bool) -> Read {
    let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
    let end = line.iter().position(|&byte| byte == b'#');
    let Ok(text) = std::str::from_utf8(&line[..end.unwrap_or(line.len())]) else {
        return Read::Bad;
    };
    let mut words = text.split_ascii_whitespace().peekable();
    let Some(first) = words.next() else {
        return Read::All;
    };
    let is_address = first.parse::<IpAddr>().is_ok();
    let is_hosts = match format {
        ListFormat::Hosts => true,
        // An address without names is an entry.
        ListFormat::Auto => is_address && words.peek().is_some(),
        ListFormat::Domains | ListFormat::Dstdomain => false,
    };
    if is_hosts {
        return if is_address {
            read_names(words, each)
        } else {
            Read::Bad
        };
    }
    let more = words.peek().is_some();
    match format {
        ListFormat::Dstdomain => {
            let entries = std::iter::once(first).chain(words);
            all(entries.map(|word| entry(word, Reach::Host)), each)
        }
        _ if more => Read::Bad,
        _ => {
            // Some lists write every domain with a star.
            let word = first.strip_prefix('*').filter(|rest| rest.starts_with('.'));
            all(
                [entry(word.unwrap_or(first), Reach::Below)].into_iter(),
                each,
            )
        }
    }
}

/// Reads the names in a line of a hosts file. Names for the machine itself are no entries.
fn read_names<'a>(
    names: impl Iterator<Item = &'a str>,
    each: &mut impl FnMut(&Host, Reach) -> bool,
) -> Read {
    let mut names = names.filter(|name| !OWN_NAMES.contains(name)).peekable();
    match names.peek() {
        None => Read::All,
        Some(_) => all(
            names.map(|name| Some((read_host(name)?, Reach::Host))),
            each,
        ),
    }
}

/// Parses an entry; a dot in front adds all hosts below.
fn entry(word: &str, reach: Reach) -> Option<(Host, Reach)> {
    match word.strip_prefix('.') {
        Some(domain) => {
            let host = read_host(domain)?;
            let is_name = matches!(PlainHost::from_host(&host), PlainHost::Name(_));
            is_name.then_some((host, Reach::Below))
        }
        None => {
            // IPv6 addresses have no brackets in lists.
            let address = word.parse().map(|address| match address {
                IpAddr::V4(address) => Host::V4(address),
                IpAddr::V6(address) => Host::V6(address),
            });
            Some((address.ok().or_else(|| read_host(word))?, reach))
        }
    }
}

/// Gives all entries to `each`; a line with a wrong entry is bad, but the other entries in it
/// count.
fn all(
    entries: impl Iterator<Item = Option<(Host, Reach)>>,
    each: &mut impl FnMut(&Host, Reach) -> bool,
) -> Read {
    let mut read = Read::All;
    for entry in entries {
        match entry {
            None => read = Read::Bad,
            Some((host, reach)) if each(&host, reach) => {}
            Some(_) => return Read::Stopped,
        }
    }
    read
}

/// Longer lines are no entries.
const LINE_MAX: usize = 4 << 10;
/// At most this number of bad lines are logged with their line numbers.
const FIRST_MAX: usize = 5;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Names in hosts files that mean the machine itself.
const OWN_NAMES: [&str; 11] = [
    "localhost",
    "localhost.localdomain",
    "local",
    "broadcasthost",
    "ip6-localhost",
    "ip6-loopback",
    "ip6-localnet",
    "ip6-mcastprefix",
    "ip6-allnodes",
    "ip6-allrouters",
    "0.0.0.0",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The entries as `dstdomain` writes them, and the bad lines.
    fn read(text: &[u8], format: ListFormat) -> (Vec<String>, BadLines) {
        let mut entries = Vec::new();
        // A small buffer, so that lines are cut.
        let file = io::BufReader::with_capacity(7, text);
        let bad = read_list(file, format, |host, reach| {
            entries.push(match reach {
                Reach::Host => host.to_string(),
                Reach::Below => format!(".{host}"),
            });
            true
        });
        (entries, bad.unwrap())
    }

    fn bad(count: u64, first: &[u64]) -> BadLines {
        let first = first.to_vec();
        BadLines { count, first }
    }

    #[test]
    fn each_format_is_read_as_its_programs_read_it() {
        let hosts = b"# ads\r\n127.0.0.1 localhost\n0.0.0.0 Ads.example b.example # c\n\
                      ::1 ip6-localhost\n0.0.0.0 0.0.0.0\nads.example\n";
        let (entries, bad_lines) = read(hosts, ListFormat::Hosts);
        assert_eq!(entries, ["ads.example", "b.example"]);
        assert_eq!(bad_lines, bad(1, &[6]));

        let domains = "\u{feff}ads.example\n\n.b.example\n*.c.example\nb\u{fc}cher.example\n\
                       192.0.2.1\n||d.example^\n0.0.0.0 e.example\n";
        let (entries, bad_lines) = read(domains.as_bytes(), ListFormat::Domains);
        let expected = [
            ".ads.example",
            ".b.example",
            ".c.example",
            ".xn--bcher-kva.example",
            ".192.0.2.1",
        ];
        assert_eq!(
            (&entries[..], bad_lines),
            (&expected.map(str::to_owned)[..], bad(2, &[7, 8]))
        );

        let squid = b".a.example\nb.example .c.example\n.10.0.0.1\n2001:db8::1\n";
        let (entries, bad_lines) = read(squid, ListFormat::Dstdomain);
        assert_eq!(
            entries,
            [".a.example", "b.example", ".c.example", "[2001:db8::1]"]
        );
        assert_eq!(bad_lines, bad(1, &[3]));

        let mixed = b"0.0.0.0 a.example\nb.example\n.c.example\n192.0.2.1\n";
        let (entries, bad_lines) = read(mixed, ListFormat::Auto);
        assert_eq!(
            entries,
            ["a.example", ".b.example", ".c.example", ".192.0.2.1"]
        );
        assert_eq!(bad_lines, bad(0, &[]));
    }

    #[test]
    fn a_line_of_any_length_takes_no_more_memory_than_a_usual_one() {
        let mut text = vec![b'x'; 3 << 20];
        text.extend_from_slice(b"\na.example\n");
        let mut line = Vec::new();
        let mut file = &text[..];
        assert!(matches!(
            next_line(&mut file, &mut line),
            Ok(Some(Length::Long))
        ));
        assert!(line.capacity() <= 2 * LINE_MAX);
        let (entries, bad_lines) = read(&text, ListFormat::Auto);
        assert_eq!(
            (entries, bad_lines),
            (vec![".a.example".to_owned()], bad(1, &[1]))
        );
    }

    #[test]
    fn a_million_bad_lines_are_counted_and_the_good_ones_read() {
        let text = b"?\n".repeat(1_000_000);
        let text = [&text[..], b"a.example"].concat();
        let (entries, bad_lines) = read(&text, ListFormat::Auto);
        assert_eq!(entries, [".a.example"]);
        assert_eq!(bad_lines, bad(1_000_000, &[1, 2, 3, 4, 5]));
    }

    #[test]
    fn bytes_that_are_no_text_are_a_bad_line() {
        let (entries, bad_lines) = read(b"a\xff.example\n\0\nb.example", ListFormat::Domains);
        assert_eq!(
            (entries, bad_lines),
            (vec![".b.example".to_owned()], bad(2, &[1, 2]))
        );
    }
}
