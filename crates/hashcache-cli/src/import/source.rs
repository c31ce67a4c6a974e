//! Reads a Squid configuration with the files that it includes, and follows `if`.
//!
//! Called by `mod`. Invariants: at most [`BYTES_MAX`] of text, [`LINES_MAX`] lines, [`FILES_MAX`]
//! files and [`DEPTH_MAX`] levels are read, so a file that includes itself ends; what is not read
//! is told. Only the file that the operator names may be something else than a regular file.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::lines::{self, Line};

/// A configuration that was read.
#[derive(Debug, Default)]
pub struct Source {
    /// Its lines in order, without `include` and `if`.
    pub lines: Vec<Line>,
    /// Lines that were not followed, each with the reason.
    pub failed: Vec<(Line, String)>,
    /// Lines in branches of `if` that are not taken.
    pub skipped: Vec<Line>,
}

/// Reads the file at `path`.
///
/// # Errors
/// It cannot be read, or is too large.
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

/// The values in a file that an `acl` names: one a line.
///
/// # Errors
/// It cannot be read, is not a regular file, or is too large.
pub fn values_of(path: &Path) -> io::Result<Vec<String>> {
    let text = regular(path).and_then(|file| bounded(file, VALUES_BYTES_MAX))?;
    let values = text.lines().filter_map(|line| {
        let line = line.split(" #").next().unwrap_or(line).trim();
        (!line.is_empty() && !line.starts_with('#')).then(|| line.to_owned())
    });
    Ok(values.collect())
}

struct Reader {
    source: Source,
    /// The directory of the first file: that of relative names in `include`.
    base: PathBuf,
    bytes_left: usize,
    files_left: usize,
    lines_left: usize,
}

impl Reader {
    fn text(&mut self, file: File) -> io::Result<String> {
        let text = bounded(file, self.bytes_left)?;
        self.bytes_left -= text.len().min(self.bytes_left);
        Ok(text)
    }

    fn file(&mut self, path: &Path, text: &str, depth: usize) {
        let name = match depth {
            // As the operator knows it.
            0 => path
                .file_name()
                .unwrap_or(path.as_os_str())
                .to_string_lossy(),
            _ => path.to_string_lossy(),
        };
        let mut branches = Vec::<Branch>::new();
        for line in lines::lines(&name, text) {
            if self.lines_left == 0 {
                return self.fail(
                    line,
                    &format!("more than {LINES_MAX} lines; no more are read"),
                );
            }
            self.lines_left -= 1;
            let is_taken = branches.iter().all(|branch| branch.is_taken);
            match (&*line.name, is_taken) {
                ("if", _) => branches.push(self.branch(&line, is_taken)),
                ("else", _) => match branches.last_mut() {
                    Some(branch) if branch.is_known => branch.is_taken = !branch.is_taken,
                    Some(_) => {}
                    None => self.fail(line, "there is no `if` before it"),
                },
                ("endif", _) => {
                    if branches.pop().is_none() {
                        self.fail(line, "there is no `if` before it");
                    }
                }
                (_, false) => self.source.skipped.push(line),
                ("include", true) => self.include(&line, depth),
                (_, true) => self.source.lines.push(line),
            }
        }
        if let Some(branch) = branches.pop() {
            self.fail(branch.line, "there is no `endif` after it");
        }
    }

    fn branch(&mut self, line: &Line, is_taken: bool) -> Branch {
        let words: Vec<&str> = line.args.iter().map(|word| &*word.text).collect();
        let holds = condition(&words);
        if holds.is_none() && is_taken {
            self.fail(
                line.clone(),
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
            return self.fail(
                line.clone(),
                &format!("more than {DEPTH_MAX} levels of files"),
            );
        }
        for word in &line.args {
            for path in self.paths(Path::new(&word.text), line) {
                if self.files_left == 0 {
                    return self.fail(line.clone(), &format!("more than {FILES_MAX} files"));
                }
                self.files_left -= 1;
                match regular(&path).and_then(|file| self.text(file)) {
                    Ok(text) => self.file(&path, &text, depth + 1),
                    Err(error) => {
                        let path = lines::plain(&path.to_string_lossy());
                        self.fail(line.clone(), &format!("cannot read {path}: {error}"));
                    }
                }
            }
        }
    }

    /// The files that a name with `*` and `?` in its last part stands for, in order.
    fn paths(&mut self, path: &Path, line: &Line) -> Vec<PathBuf> {
        let path = self.base.join(path);
        let pattern = path.file_name().unwrap_or_default().to_string_lossy();
        if !pattern.contains(['*', '?', '[']) {
            return vec![path];
        }
        let directory = path.parent().unwrap_or(Path::new("/"));
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) => {
                let directory = lines::plain(&directory.to_string_lossy());
                self.fail(line.clone(), &format!("cannot read {directory}: {error}"));
                return vec![];
            }
        };
        let pattern: Vec<char> = pattern.chars().collect();
        let entries = entries.take(ENTRIES_MAX).flatten();
        let mut found: Vec<PathBuf> = entries
            .filter(|entry| {
                let name: Vec<char> = entry.file_name().to_string_lossy().chars().collect();
                // As in a shell, names that begin with a dot are hidden.
                name.first() != Some(&'.') && matches(&pattern, &name)
            })
            .map(|entry| entry.path())
            .collect();
        found.sort();
        found
    }

    fn fail(&mut self, line: Line, reason: &str) {
        self.source.failed.push((line, reason.to_owned()));
    }
}

/// An `if` that is open.
struct Branch {
    is_taken: bool,
    /// Its condition is understood.
    is_known: bool,
    line: Line,
}

/// Whether the condition of an `if` holds. `None`: it is not understood.
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

/// Whether `name` fits `pattern`, in time that is the product of their lengths at most.
fn matches(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where the last star stands, and the part of the name that it does not take.
    let mut retry = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
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
    pattern[p..].iter().all(|c| *c == '*')
}

/// Opens a regular file: a pipe or a terminal could be read from for ever.
fn regular(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(path)
}

/// The text of a file of at most `bytes_max`; what is not UTF-8 becomes U+FFFD.
fn bounded(file: File, bytes_max: usize) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        let what = format!("more than {bytes_max} bytes together");
        return Err(io::Error::other(what));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Text of all files together.
const BYTES_MAX: usize = 2 << 20;
/// Lines of all files together.
const LINES_MAX: usize = 50_000;
/// Text of one file with values of an `acl`.
const VALUES_BYTES_MAX: usize = 1 << 20;
const FILES_MAX: usize = 256;
/// The limit of Squid itself.
const DEPTH_MAX: usize = 16;
/// Entries of a directory that are compared with a pattern.
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
            source.failed[1].1.contains("not a regular file"),
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
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            matches(&chars(pattern), &chars(name))
        };
        assert!(fits("*.conf", "a.conf") && fits("a?c*", "abc") && fits("*", ""));
        assert!(fits("*a*b", "xaayb") && !fits("*a*b", "xaay") && !fits("?", ""));
        assert!(!fits(&"*a".repeat(30), &"a".repeat(29)));
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
