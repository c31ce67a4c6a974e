//! Reads a Squid configuration with the files that it includes, and evaluates `if`.
//!
//! Called by `mod`. Invariants: at most [`BYTES_MAX`] bytes, [`LINES_MAX`] lines, [`FILES_MAX`]
//! files and [`DEPTH_MAX`] levels are read, so a file that includes itself is read a bounded number
//! of times; unread parts are reported. Only the file that the operator names need not be a regular
//! file.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::lines::{self, Line};

/// A configuration after reading.
#[derive(Debug, Default)]
pub struct Source {
    /// The lines in order, without `include` and `if`.
    pub lines: Vec<Line>,
    pub failed: Vec<Failed>,
    /// Lines in branches of `if` that are not taken.
    pub skipped: Vec<Line>,
}

/// A line that was not followed, or not completely.
#[derive(Debug)]
pub struct Failed {
    /// The line's place and text.
    pub directive: String,
    pub reason: String,
}

/// Reads the file at `path`.
///
/// # Errors
/// The file cannot be read, or is too large.
pub fn read(path: &Path) -> io::Result<Source> {
    let mut reader = Reader {
        source: Source::default(),
        base: path.parent().unwrap_or(Path::new("")).to_owned(),
        bytes_left: BYTES_MAX,
        files_left: FILES_MAX,
        lines_left: LINES_MAX,
    };
    let text = reader.text(File::open(path)?)?;
    reader.file(path, &text, 0);
    Ok(reader.source)
}

/// Returns the values in a file that an `acl` names, with a value on each line.
///
/// # Errors
/// The file cannot be read, is not a regular file, or is too large.
pub fn values_of(path: &Path) -> io::Result<Vec<String>> {
    let text = regular(path).and_then(|file| bounded(file, VALUES_BYTES_MAX))?;
    let too_large = || io::Error::other(format!("more than {VALUES_BYTES_MAX} bytes"));
    let text = text.ok_or_else(too_large)?;
    let values = text.lines().filter_map(|line| {
        let line = line.split(" #").next().unwrap_or(line).trim();
        (!line.is_empty() && !line.starts_with('#')).then(|| line.to_owned())
    });
    Ok(values.collect())
}

struct Reader {
    source: Source,
    /// The first file's directory; relative names in `include` start there.
    base: PathBuf,
    bytes_left: usize,
    files_left: usize,
    lines_left: usize,
}

impl Reader {
    fn text(&mut self, file: File) -> io::Result<String> {
        let too_large = || {
            let what = format!("more than {BYTES_MAX} bytes in all files together");
            io::Error::other(what)
        };
        let text = bounded(file, self.bytes_left)?.ok_or_else(too_large)?;
        self.bytes_left -= text.len().min(self.bytes_left);
        Ok(text)
    }

    fn file(&mut self, path: &Path, text: &str, depth: usize) {
        let name = match depth {
            // The name as the operator knows it.
            0 => path
                .file_name()
                .unwrap_or(path.as_os_str())
                .to_string_lossy(),
            _ => path.to_string_lossy(),
        };
        let mut branches = Vec::<Branch>::new();
        for line in lines::lines(&name, text) {
            if self.lines_left == 0 {
                let reason = format!("more than {LINES_MAX} lines; no more are read");
                return self.fail(&line, reason);
            }
            self.lines_left -= 1;
            let is_taken = branches.iter().all(|branch| branch.is_taken);
            match (&*line.name, is_taken) {
                ("if", _) => branches.push(self.branch(&line, is_taken)),
                ("else", _) => match branches.last_mut() {
                    Some(branch) if branch.is_known => branch.is_taken = !branch.is_taken,
                    Some(_) => {}
                    None => self.fail(&line, "there is no `if` before it"),
                },
                ("endif", _) => {
                    if branches.pop().is_none() {
                        self.fail(&line, "there is no `if` before it");
                    }
                }
                (_, false) => self.source.skipped.push(line),
                ("include", true) => self.include(&line, depth),
                (_, true) => self.source.lines.push(line),
            }
        }
        if let Some(branch) = branches.pop() {
            self.fail(&branch.line, "there is no `endif` after it");
        }
    }

    fn branch(&mut self, line: &Line, is_taken: bool) -> Branch {
        let words: Vec<&str> = line.args.iter().map(|word| &*word.text).collect();
        let holds = condition(&words);
        if holds.is_none() && is_taken {
            self.fail(
                line,
                "the condition is not understood; both branches are left out",
            );
        }
        Branch {
            is_taken: holds.unwrap_or(false),
            is_known: holds.is_some(),
            line: line.clone(),
        }
    }

    fn include(&mut self, line: &Line, depth: usize) {
        if depth == DEPTH_MAX {
            return self.fail(line, format!("more than {DEPTH_MAX} levels of files"));
        }
        for word in &line.args {
            // A pattern costs as much as a file, because a directory is read.
            if !self.take_file(line) {
                return;
            }
            let path = self.base.join(&word.text);
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !name.contains(['*', '?', '[']) {
                self.included(&path, line, depth);
                continue;
            }
            let paths = match Pattern::parse(&name) {
                Some(pattern) => pattern.paths(path.parent().unwrap_or(Path::new("/"))),
                None => Err(io::Error::other("this kind of pattern is not read")),
            };
            match paths {
                Ok(paths) => {
                    for path in paths {
                        if !self.take_file(line) {
                            return;
                        }
                        self.included(&path, line, depth);
                    }
                }
                Err(error) => self.fail(line, cannot_read(&path, &error)),
            }
        }
    }

    /// Counts a file or a pattern. `false`: there were too many, which is reported.
    fn take_file(&mut self, line: &Line) -> bool {
        let left = self.files_left.checked_sub(1);
        self.files_left = left.unwrap_or(0);
        if left.is_none() {
            self.fail(line, format!("more than {FILES_MAX} files and patterns"));
        }
        left.is_some()
    }

    fn included(&mut self, path: &Path, line: &Line, depth: usize) {
        match regular(path).and_then(|file| self.text(file)) {
            Ok(text) => self.file(path, &text, depth + 1),
            Err(error) => self.fail(line, cannot_read(path, &error)),
        }
    }

    fn fail(&mut self, line: &Line, reason: impl Into<String>) {
        self.source.failed.push(Failed {
            directive: line.shown_with_place(),
            reason: reason.into(),
        });
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> String {
    let path = lines::plain(&path.to_string_lossy());
    format!("cannot read {path}: {error}")
}

/// An open `if`.
struct Branch {
    is_taken: bool,
    /// The condition is understood.
    is_known: bool,
    line: Line,
}

/// Returns true if the condition in an `if` holds. `None`: it is not understood.
fn condition(words: &[&str]) -> Option<bool> {
    match words {
        ["true"] => Some(true),
        ["false"] => Some(false),
        [number] => number.parse::<i64>().ok().map(|number| number != 0),
        [a, operator, b] => {
            let (a, b): (i64, i64) = (a.parse().ok()?, b.parse().ok()?);
            match *operator {
                "=" => Some(a == b),
                "<" => Some(a < b),
                ">" => Some(a > b),
                _ => None,
            }
        }
        _ => None,
    }
}

/// A file name pattern, as in a shell.
struct Pattern(Vec<Part>);

/// A part in a pattern.
enum Part {
    /// Any characters, or none.
    Any,
    /// Exactly one character.
    One,
    /// A character in this set.
    Set(Vec<(char, char)>),
    /// A character that is not in this set.
    NotSet(Vec<(char, char)>),
}

impl Pattern {
    /// Parses `*`, `?` and sets such as `[0-9a]` and `[!a]`. `None`: the pattern has another
    /// element, such as `[[:digit:]]`, a set without an end, or a backslash.
    fn parse(text: &str) -> Option<Self> {
        let chars: Vec<char> = text.chars().collect();
        let (mut parts, mut at) = (Vec::new(), 0);
        while let Some(&c) = chars.get(at) {
            at += 1;
            parts.push(match c {
                '*' => Part::Any,
                '?' => Part::One,
                '\\' => return None,
                '[' => {
                    let is_negated = matches!(chars.get(at), Some('!' | '^'));
                    at += usize::from(is_negated);
                    let (set, after) = set(&chars, at)?;
                    at = after;
                    if is_negated {
                        Part::NotSet(set)
                    } else {
                        Part::Set(set)
                    }
                }
                c => Part::Set(vec![(c, c)]),
            });
        }
        Some(Self(parts))
    }

    /// The files in `directory` that match, in order.
    ///
    /// # Errors
    /// There are no such files, or not all could be seen. Squid does not start without a match.
    fn paths(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for (at, entry) in fs::read_dir(directory)?.enumerate() {
            if at == ENTRIES_MAX {
                let what = format!("its directory has more than {ENTRIES_MAX} entries");
                return Err(io::Error::other(what));
            }
            let entry = entry?;
            let name: Vec<char> = entry.file_name().to_string_lossy().chars().collect();
            // As in a shell, names that start with a dot are hidden.
            if name.first() != Some(&'.') && self.fits(&name) {
                found.push(entry.path());
            }
        }
        if found.is_empty() {
            return Err(io::Error::other("no file fits the pattern"));
        }
        found.sort();
        Ok(found)
    }

    /// Returns true if `name` matches; the time is at most the product of both lengths.
    fn fits(&self, name: &[char]) -> bool {
        let Self(parts) = self;
        let (mut p, mut n) = (0, 0);
        // The position of the last star, and of the first name character that the star does not
        // match.
        let mut retry = None;
        while n < name.len() {
            match parts.get(p) {
                Some(Part::Any) => {
                    retry = Some((p, n));
                    p += 1;
                }
                Some(part) if part.is(name[n]) => {
                    p += 1;
                    n += 1;
                }
                _ => match retry {
                    Some((star, taken)) => {
                        retry = Some((star, taken + 1));
                        p = star + 1;
                        n = taken + 1;
                    }
                    None => return false,
                },
            }
        }
        parts[p..].iter().all(|part| matches!(part, Part::Any))
    }
}

impl Part {
    fn is(&self, c: char) -> bool {
        let has = |set: &[(char, char)]| set.iter().any(|(from, to)| (*from..=*to).contains(&c));
        match self {
            Self::Any | Self::One => true,
            Self::Set(set) => has(set),
            Self::NotSet(set) => !has(set),
        }
    }
}

/// Parses the characters in a set that starts at `from`; also returns the position after the set.
fn set(chars: &[char], from: usize) -> Option<(Vec<(char, char)>, usize)> {
    let (mut set, mut at) = (Vec::new(), from);
    loop {
        match (*chars.get(at)?, chars.get(at + 1), chars.get(at + 2)) {
            // A bracket in the first position belongs to the set.
            (']', ..) if at > from => return Some((set, at + 1)),
            ('[' | '\\', ..) => return None,
            (first, Some('-'), Some(&last)) if last != ']' => {
                let is_odd = ['[', '\\'].contains(&last);
                set.push((!is_odd).then_some((first, last))?);
                at += 3;
            }
            (c, ..) => {
                set.push((c, c));
                at += 1;
            }
        }
    }
}

/// Opens a regular file: reading from a pipe or a terminal may never finish.
fn regular(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(path)
}

/// The text of a file, or `None` if it has more than `bytes_max`; bytes that are not UTF-8 become
/// U+FFFD.
fn bounded(file: File, bytes_max: usize) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    let text = || String::from_utf8_lossy(&bytes).into_owned();
    Ok((bytes.len() <= bytes_max).then(text))
}

/// Most bytes in all files together.
const BYTES_MAX: usize = 2 << 20;
/// Most lines in all files together.
const LINES_MAX: usize = 50_000;
/// Most bytes in a file with `acl` values.
const VALUES_BYTES_MAX: usize = 1 << 20;
/// Most included files and file patterns.
const FILES_MAX: usize = 256;
/// Most `include` levels: Squid's own limit.
const DEPTH_MAX: usize = 16;
/// Most directory entries that are compared with a pattern.
const ENTRIES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn source(files: &[(&str, &str)]) -> Source {
        let home = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = home.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        read(&home.path().join(files[0].0)).unwrap()
    }

    fn names(source: &Source) -> Vec<String> {
        source.lines.iter().map(Line::shown).collect()
    }

    #[test]
    fn files_are_included_where_they_stand_and_in_order() {
        let source = source(&[
            ("squid.conf", "a 1\ninclude conf.d/*.conf\nb 2\n"),
            ("conf.d/2.conf", "two\n"),
            ("conf.d/1.conf", "one\n"),
            ("conf.d/.hidden.conf", "hidden\n"),
            ("conf.d/README", "no\n"),
        ]);
        assert_eq!(names(&source), ["a 1", "one", "two", "b 2"]);
        assert!(source.failed.is_empty());
        let places: Vec<String> = source.lines.iter().map(|it| it.place.to_string()).collect();
        assert!(places[0] == "squid.conf:1" && places[1].ends_with("conf.d/1.conf:1"));
    }

    #[test]
    fn a_file_that_includes_itself_ends() {
        let once = source(&[("squid.conf", "a\ninclude squid.conf\n")]);
        assert_eq!(once.lines.len(), DEPTH_MAX + 1);
        assert_eq!(once.failed.len(), 1);
        let often = source(&[("squid.conf", &"include squid.conf\n".repeat(50))]);
        assert!(often.lines.is_empty() && !often.failed.is_empty());
        // Each failure is a line of a file that was read, and the files are bounded.
        assert!(often.failed.len() <= (FILES_MAX + 1) * 50);
    }

    #[test]
    fn a_file_that_cannot_be_included_is_told() {
        let source = source(&[("squid.conf", "include none.conf /dev/zero none/*.conf\na\n")]);
        assert_eq!(names(&source), ["a"]);
        assert_eq!(source.failed.len(), 3);
        assert!(
            source.failed[1].reason.contains("not a regular file"),
            "{:?}",
            source.failed[1]
        );
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("squid.conf");
        fs::write(&path, " ".repeat(BYTES_MAX + 1)).unwrap();
        assert!(read(&path).is_err());
        assert!(read(&home.path().join("none")).is_err());
    }

    #[test]
    fn lines_are_bounded_and_the_rest_is_told() {
        let read = source(&[("squid.conf", &"a\n".repeat(LINES_MAX + 10))]);
        assert_eq!((read.lines.len(), read.failed.len()), (LINES_MAX, 1));
    }

    #[test]
    fn branches_are_taken_as_squid_takes_them() {
        let text = "if ${process_number} = 1\na\nif false\nb\nelse\nc\nendif\nelse\nd\nendif\n\
                    if 2 > 3\ne\nendif\nf\n";
        let read = source(&[("squid.conf", text)]);
        assert_eq!(names(&read), ["a", "c", "f"]);
        let skipped: Vec<_> = read.skipped.iter().map(|it| &*it.name).collect();
        assert_eq!(skipped, ["b", "d", "e"]);
        assert!(read.failed.is_empty());
        let odd = source(&[("squid.conf", "else\nendif\nif x ~ y\na\nelse\nb\n")]);
        assert_eq!(
            (odd.lines.len(), odd.skipped.len(), odd.failed.len()),
            (0, 2, 4)
        );
    }

    #[test]
    fn patterns_fit_names_as_in_a_shell() {
        let fits = |pattern: &str, name: &str| {
            let pattern = Pattern::parse(pattern).unwrap();
            pattern.fits(&name.chars().collect::<Vec<_>>())
        };
        assert!(fits("*.conf", "a.conf") && fits("a?c*", "abc") && fits("*", ""));
        assert!(fits("*a*b", "xaayb") && !fits("*a*b", "xaay") && !fits("?", ""));
        assert!(!fits(&"*a".repeat(30), &"a".repeat(29)));
        assert!(fits("[0-9]*.conf", "10-a.conf") && !fits("[0-9]*.conf", "a.conf"));
        assert!(fits("[!a-c]", "d") && !fits("[^a-c]", "b") && fits("[]x-]", "-"));
        for odd in ["[[:digit:]]*", "a\\*", "[a", "[", "[]", "[a-[]"] {
            assert!(Pattern::parse(odd).is_none(), "{odd}");
        }
    }

    #[test]
    fn a_pattern_with_a_set_is_read() {
        let source = source(&[
            ("squid.conf", "include conf.d/[0-9]*.conf\n"),
            ("conf.d/10-acl.conf", "one\n"),
            ("conf.d/old.conf", "old\n"),
        ]);
        assert_eq!(names(&source), ["one"]);
        assert!(source.failed.is_empty());
    }

    #[test]
    fn a_pattern_that_reads_nothing_or_not_all_is_told() {
        let home = tempfile::tempdir().unwrap();
        let text = "include x/*.conf\ninclude x/[[:digit:]].conf\ninclude many/*\n";
        fs::write(home.path().join("squid.conf"), text).unwrap();
        fs::create_dir(home.path().join("x")).unwrap();
        fs::write(home.path().join("x/1"), "x\n").unwrap();
        fs::create_dir(home.path().join("many")).unwrap();
        for name in 0..=ENTRIES_MAX {
            File::create(home.path().join(format!("many/{name}"))).unwrap();
        }
        let read = read(&home.path().join("squid.conf")).unwrap();
        let reasons: Vec<&str> = read.failed.iter().map(|it| &*it.reason).collect();
        assert!(read.lines.is_empty() && reasons.len() == 3, "{reasons:?}");
        for (reason, why) in reasons.iter().zip(["no file fits", "not read", "entries"]) {
            assert!(reason.contains(why), "{reason}");
        }
    }

    #[test]
    fn a_line_with_many_words_fails_in_little_memory() {
        for word in ["x ", "/none/* "] {
            let text = format!("include {}\n", word.repeat((1 << 20) / word.len()));
            let read = source(&[("squid.conf", &text)]);
            assert_eq!(read.failed.len(), FILES_MAX + 1);
            assert!(read.failed.iter().all(|it| it.directive.len() < 1000));
        }
    }

    #[test]
    fn a_limit_that_is_told_is_the_limit() {
        let large = "#".repeat(BYTES_MAX);
        let read = source(&[("squid.conf", "include large\n"), ("large", &large)]);
        let reason = &read.failed[0].reason;
        assert!(reason.contains(&BYTES_MAX.to_string()), "{reason}");
    }

    #[test]
    fn values_are_the_lines_of_a_file() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("nets");
        fs::write(&path, "# c\n10.0.0.0/8 # pupils\n\n 10.1.0.0/16\n").unwrap();
        assert_eq!(values_of(&path).unwrap(), ["10.0.0.0/8", "10.1.0.0/16"]);
        assert!(values_of(home.path()).is_err());
    }
}
