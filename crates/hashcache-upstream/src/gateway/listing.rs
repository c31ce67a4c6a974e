//! Directory listings as FTP servers send them: MLSD (RFC 3659, section 7), and LIST in the forms
//! of Unix and MS-DOS.
//!
//! Called by `ftp`; `html` shows the entries. The fuzz target `ftp_listing` reads only this file.
//!
//! Invariants: no input panics. A name has no control character and no `/`, and is neither `.` nor
//! `..`. At most [`NAMES_MAX`] names are read.
//! Cost: an entry (a few words) for each name; names stay in the text.

/// The command that a listing answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListingForm {
    Mlsd,
    List,
}

/// The kind of file that a name in a directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EntryKind {
    Directory,
    /// A symbolic link, to a file or to a directory.
    Link,
    File,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) kind: EntryKind,
    pub(crate) name: &'a [u8],
    /// File size, bytes.
    pub(crate) size: Option<u64>,
    /// The modification time as the server writes it; empty: unknown.
    pub(crate) modified: &'a [u8],
}

/// The names in a directory.
#[derive(Debug, Default)]
pub(crate) struct Listing<'a> {
    /// Directories first, then by name.
    pub(crate) entries: Vec<Entry<'a>>,
    /// Number of lines that could not be read.
    pub(crate) unread: usize,
    /// There are more names than these.
    pub(crate) is_cut: bool,
}

/// Reads a listing.
pub(crate) fn read(form: ListingForm, text: &[u8]) -> Listing<'_> {
    let mut listing = Listing::default();
    for line in text.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let read = match form {
            ListingForm::Mlsd => mlsd(line),
            ListingForm::List => list(line),
        };
        match read {
            Line::Entry(entry) if listing.entries.len() < NAMES_MAX => listing.entries.push(entry),
            Line::Entry(_) => {
                listing.is_cut = true;
                break;
            }
            Line::Nothing => {}
            Line::Unread => listing.unread += 1,
        }
    }
    let is_file = |entry: &Entry<'_>| entry.kind != EntryKind::Directory;
    listing
        .entries
        .sort_by(|a, b| (is_file(a), a.name).cmp(&(is_file(b), b.name)));
    listing
}

enum Line<'a> {
    Entry(Entry<'a>),
    /// A line without a name to show.
    Nothing,
    Unread,
}

/// Returns an entry, if a URL can hold the name.
fn entry<'a>(entry: Entry<'a>) -> Line<'a> {
    let name = entry.name;
    let is_control = |byte: &u8| *byte < b' ' || *byte == 0x7f || *byte == b'/';
    match name {
        b"." | b".." => Line::Nothing,
        [] => Line::Unread,
        _ if name.len() > NAME_MAX => Line::Unread,
        _ if name.iter().any(is_control) => Line::Unread,
        _ => Line::Entry(entry),
    }
}

/// `type=file;size=25;modify=20240101000000; name`
fn mlsd(line: &[u8]) -> Line<'_> {
    if line.is_empty() {
        return Line::Nothing;
    }
    let Some(end) = line.iter().position(|&byte| byte == b' ') else {
        return Line::Unread;
    };
    let mut read = Entry {
        kind: EntryKind::File,
        name: &line[end + 1..],
        size: None,
        modified: b"",
    };
    for fact in line[..end].split(|&byte| byte == b';') {
        let Some(at) = fact.iter().position(|&byte| byte == b'=') else {
            continue;
        };
        let (name, value) = (&fact[..at], &fact[at + 1..]);
        if name.eq_ignore_ascii_case(b"size") {
            read.size = number(value);
        } else if name.eq_ignore_ascii_case(b"modify") {
            read.modified = value;
        } else if name.eq_ignore_ascii_case(b"type") {
            read.kind = match value {
                _ if value.eq_ignore_ascii_case(b"dir") => EntryKind::Directory,
                _ if value.eq_ignore_ascii_case(b"cdir") || value.eq_ignore_ascii_case(b"pdir") => {
                    return Line::Nothing;
                }
                _ if value.to_ascii_lowercase().starts_with(b"os.unix=s") => EntryKind::Link,
                _ => EntryKind::File,
            };
        }
    }
    entry(read)
}

/// A LIST line.
fn list(line: &[u8]) -> Line<'_> {
    let words: Vec<Word<'_>> = words(line).take(WORDS_READ).collect();
    match words.first() {
        None => Line::Nothing,
        Some(first) if first.text.eq_ignore_ascii_case(b"total") && words.len() == 2 => {
            Line::Nothing
        }
        Some(first) if first.text[0].is_ascii_digit() => dos(line, &words),
        Some(_) => unix(line, &words),
    }
}

/// `-rw-r--r--   1 user group   25 Nov 20 12:34 name`, with any number of words before the size.
fn unix<'a>(line: &'a [u8], words: &[Word<'a>]) -> Line<'a> {
    let kind = match words[0].text[0] {
        b'd' => EntryKind::Directory,
        b'l' => EntryKind::Link,
        b'-' | b'f' => EntryKind::File,
        b'b' | b'c' | b'p' | b's' => return Line::Nothing,
        _ => return Line::Unread,
    };
    // Takes the first place with a number and a date: a group may be named like a month.
    let date = (2..words.len()).find_map(|at| {
        number(words[at - 1].text)?;
        let rest = &words[at..];
        let length = match rest {
            [month, day, time, ..] if is_month(month.text) && is_day(day.text) => {
                is_year_or_time(time.text).then_some(3)
            }
            [day, month, time, ..] if is_month(month.text) && is_day(day.text) => {
                is_year_or_time(time.text).then_some(3)
            }
            [date, time, ..] if is_iso_date(date.text) && is_year_or_time(time.text) => Some(2),
            _ => None,
        };
        length.map(|length| (at, length))
    });
    let Some((at, length)) = date else {
        return Line::Unread;
    };
    let (first, last) = (words[at], words[at + length - 1]);
    // Skips a single space, because a name may start with further spaces.
    let name = line.get(last.end() + 1..).unwrap_or_default();
    let name = match kind {
        EntryKind::Link => find(name, b" -> ").map_or(name, |end| &name[..end]),
        _ => name,
    };
    entry(Entry {
        kind,
        name,
        size: number(words[at - 1].text).filter(|_| kind == EntryKind::File),
        modified: &line[first.start..last.end()],
    })
}

/// `11-20-20  12:34PM       <DIR>          name`, or a size instead of `<DIR>`.
fn dos<'a>(line: &'a [u8], words: &[Word<'a>]) -> Line<'a> {
    let [date, time, size, ..] = words else {
        return Line::Unread;
    };
    let is_date = |text: &[u8]| {
        let part = |byte: &u8| byte.is_ascii_digit() || b"-/.".contains(byte);
        text.len() >= 6 && text.iter().all(part)
    };
    if !is_date(date.text) || !time.text.contains(&b':') {
        return Line::Unread;
    }
    let kind = match size.text {
        b"<DIR>" => EntryKind::Directory,
        b"<JUNCTION>" | b"<SYMLINK>" | b"<SYMLINKD>" => EntryKind::Link,
        _ => EntryKind::File,
    };
    let size_bytes = number(size.text);
    if kind == EntryKind::File && size_bytes.is_none() {
        return Line::Unread;
    }
    let rest = line.get(size.end()..).unwrap_or_default();
    // After `<DIR>` the name is aligned by spaces.
    let name = match kind {
        EntryKind::File => rest.get(1..).unwrap_or_default(),
        _ => rest.trim_ascii_start(),
    };
    entry(Entry {
        kind,
        name,
        size: size_bytes,
        modified: &line[date.start..time.end()],
    })
}

/// A word in a line, and the start position.
#[derive(Clone, Copy, Debug)]
struct Word<'a> {
    text: &'a [u8],
    start: usize,
}

impl Word<'_> {
    fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// Returns the words in a line; none is empty.
fn words(line: &[u8]) -> impl Iterator<Item = Word<'_>> {
    let mut start = 0;
    line.split(|&byte| byte == b' ').filter_map(move |text| {
        let word = Word { text, start };
        start += text.len() + 1;
        (!text.is_empty()).then_some(word)
    })
}

fn is_month(text: &[u8]) -> bool {
    const MONTHS: &[u8] = b"janfebmaraprmayjunjulaugsepoctnovdec";
    let text = text.to_ascii_lowercase();
    text.len() == 3 && MONTHS.chunks(3).any(|month| month == text)
}

fn is_day(text: &[u8]) -> bool {
    let text = text.strip_suffix(b".").unwrap_or(text);
    text.len() <= 2 && number(text).is_some_and(|day| (1..=31).contains(&day))
}

fn is_year_or_time(text: &[u8]) -> bool {
    let is_year = text.len() == 4 && number(text).is_some();
    let is_part = |byte: &u8| byte.is_ascii_digit() || *byte == b':' || *byte == b'.';
    is_year || (text.len() >= 4 && text.contains(&b':') && text.iter().all(is_part))
}

fn is_iso_date(text: &[u8]) -> bool {
    let is_part = |(at, byte): (usize, &u8)| match at {
        4 | 7 => *byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    text.len() == 10 && text.iter().enumerate().all(is_part)
}

/// Parses a number with at most 18 digits.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let append = |n: u64, digit: &u8| n * 10 + u64::from(digit - b'0');
    Some(digits.iter().fold(0, append))
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|part| part == wanted)
}

/// Maximum number of names that are shown.
pub(crate) const NAMES_MAX: usize = 10_000;
/// Maximum name length, bytes: a row becomes HTML as a whole, and escaping makes it longer.
const NAME_MAX: usize = 4096;
/// Number of words per line in which size and date are searched.
const WORDS_READ: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    type Row<'a> = (EntryKind, &'a str, Option<u64>, &'a str);

    fn rows(form: ListingForm, text: &str) -> (Vec<Row<'_>>, usize) {
        let listing = read(form, text.as_bytes());
        let text = |bytes| std::str::from_utf8(bytes).unwrap();
        let rows = listing.entries.iter();
        let rows = rows.map(|it| (it.kind, text(it.name), it.size, text(it.modified)));
        (rows.collect(), listing.unread)
    }

    use EntryKind::{Directory, File, Link};

    #[test]
    fn mlsd_is_read_by_its_facts() {
        let text = "type=cdir;modify=20240101000000; .\r\n\
                    Type=file;Size=25;Modify=20240102030405;perm=r; a b.txt\r\n\
                    type=dir;modify=20240102030405; sub\r\n\
                    type=OS.unix=slink:/x;size=3; link\r\n\
                    no facts\r\nbroken\r\n\
                    type=file; a/b\r\ntype=dir; ..\r\n";
        let (rows, unread) = rows(ListingForm::Mlsd, text);
        assert_eq!(
            rows,
            [
                (Directory, "sub", None, "20240102030405"),
                (File, "a b.txt", Some(25), "20240102030405"),
                (File, "facts", None, ""),
                (Link, "link", Some(3), ""),
            ]
        );
        assert_eq!(unread, 2);
    }

    #[test]
    fn a_name_that_is_too_long_for_a_row_is_counted_alone() {
        let [fits, long] = [NAME_MAX, NAME_MAX + 1].map(|length| "\"".repeat(length));
        let text = format!("type=file; {fits}\r\ntype=file; {long}\r\n");
        let (rows, unread) = rows(ListingForm::Mlsd, &text);
        assert_eq!((rows.len(), unread), (1, 1));
        assert_eq!(rows[0].1, fits);
    }

    #[test]
    fn unix_listings_are_read() {
        let text = "total 12\r\n\
             drwxr-xr-x   2 ftp      ftp          4096 Nov 20 12:34 pub\r\n\
             -rw-r--r--   1 ftp      ftp            25 Nov  5  2020  two spaces\r\n\
             lrwxrwxrwx   1 ftp      ftp             7 Jan  1  2021 now -> pub/x\r\n\
             -rw-r--r--   1 may      jun            26 Jul  4 01:02 a -> b\r\n\
             -rw-r--r--   1 1000 domain users       27 2024-02-03 04:05 iso\r\n\
             -rw-r--r--+  1 ftp                     28 5 Feb 2019 short\r\n\
             crw-r--r--   1 ftp ftp             1,  3 Nov 20 12:34 null\r\n\
             -rw-r--r--   1 ftp      ftp            25 Nov 20 12:34\r\n\
             ls: cannot open\r\n";
        let (rows, unread) = rows(ListingForm::List, text);
        assert_eq!(
            rows,
            [
                (Directory, "pub", None, "Nov 20 12:34"),
                (File, " two spaces", Some(25), "Nov  5  2020"),
                (File, "a -> b", Some(26), "Jul  4 01:02"),
                (File, "iso", Some(27), "2024-02-03 04:05"),
                (Link, "now", None, "Jan  1  2021"),
                (File, "short", Some(28), "5 Feb 2019"),
            ]
        );
        assert_eq!(unread, 2);
    }

    #[test]
    fn dos_listings_are_read() {
        let text = "11-20-20  12:34PM       <DIR>          Program Files\r\n\
                    2020-11-20  12:34               1024 a b.txt\r\n\
                    11-20-20 12:34PM\r\n";
        let (rows, unread) = rows(ListingForm::List, text);
        assert_eq!(
            rows,
            [
                (Directory, "Program Files", None, "11-20-20  12:34PM"),
                (File, "a b.txt", Some(1024), "2020-11-20  12:34"),
            ]
        );
        assert_eq!(unread, 1);
    }

    #[test]
    fn a_long_listing_is_cut() {
        let text: String = (0..=NAMES_MAX).map(|n| format!("; {n}\r\n")).collect();
        let listing = read(ListingForm::Mlsd, text.as_bytes());
        assert!(listing.is_cut);
        assert_eq!(listing.entries.len(), NAMES_MAX);
        let text = text.trim_end().rsplit_once("\r\n").unwrap().0;
        assert!(!read(ListingForm::Mlsd, text.as_bytes()).is_cut);
    }
}
