//! Mirrors as text: `KIND[:NAME]=URL [FILES…]`, or a `[[mirror]]` table of a file.
//!
//! Called by `keys` and `file`. A table is converted to the text form, so that there is only one
//! parser.

use hashcache_http::{Target, TargetError};
use hashcache_proxy::{Mirror, MirrorError, MirrorKind};
use serde::Deserialize;

use super::file::{ArrayTable, WrittenTable};
use super::words::one_of;
use crate::fault::{Fault, Faults};

/// Parses a mirror. URLs contain no blanks, so blanks separate them.
pub fn read_mirror(word: &str) -> Result<Mirror, Fault> {
    let example = "write it as pypi=URL, or as pypi:NAME=URL if there are several of a kind";
    let mut urls = word.split_ascii_whitespace();
    let first = urls.next().unwrap_or_default();
    let Some((place, url)) = first.split_once('=') else {
        return Err(Fault::new(format!("`{word}` is not a mirror")).hint(example));
    };
    let (kind, name) = match place.split_once(':') {
        Some((kind, name)) => (kind, name),
        None => (place, place),
    };
    let kind = one_of(&MirrorKind::ALL, kind)?;
    let files: Vec<Target> = urls
        .map(|url| {
            let target = match Target::parse_url(url) {
                Ok(target) if target.scheme.needs_gateway() => Err(TargetError::Scheme),
                read => read,
            };
            target.map_err(|error| {
                Fault::new(format!("`{url}` is not a URL of files: {error}"))
                    .hint("write it as https://files.example.org, or https://example.org/packages/")
            })
        })
        .collect::<Result<_, _>>()?;
    Mirror::new(name, kind, url, files).map_err(mirror_fault)
}

fn mirror_fault(error: MirrorError) -> Fault {
    let cause = std::error::Error::source(&error).map(|source| format!(": {source}"));
    let fault = Fault::new(format!("{error}{}", cause.unwrap_or_default()));
    match error {
        MirrorError::Name { .. } => {
            fault.hint("use a letter or digit, then letters, digits, `-`, `_` and `.`")
        }
        MirrorError::Url { .. } => fault.hint("start it with http:// or https://"),
        MirrorError::Files { .. } => fault.hint("remove the URLs after the first"),
        _ => fault,
    }
}

/// Formats a mirror as text that [`read_mirror`] parses.
pub fn show_mirror(mirror: &Mirror) -> String {
    let (kind, name) = (mirror.kind(), mirror.name());
    let mut word = if name == kind.as_str() {
        format!("{kind}={}", mirror.url())
    } else {
        format!("{kind}:{name}={}", mirror.url())
    };
    for place in mirror.files() {
        word.push_str(&format!(" {place}"));
    }
    word
}

/// A `[[mirror]]` table as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorTable {
    kind: String,
    name: Option<String>,
    url: String,
    #[serde(default)]
    files: Vec<String>,
}

impl ArrayTable for MirrorTable {
    const ARRAY: &'static str = "mirror";
    type Meaning = String;

    fn meaning(self, _: &WrittenTable<'_>) -> Result<String, Faults> {
        Ok(self.word()?)
    }

    fn name(_: &String) -> Option<&str> {
        None
    }
}

impl MirrorTable {
    /// The table's text form, after it was parsed successfully.
    pub fn word(&self) -> Result<String, Fault> {
        let parts = self.files.iter().chain([&self.url, &self.kind]);
        for part in parts.chain(&self.name) {
            if part.is_empty() || part.contains(|c: char| c.is_ascii_whitespace()) {
                return Err(Fault::new(format!("`{part}` is empty or contains a space")));
            }
        }
        let name = self.name.as_ref().map(|name| format!(":{name}"));
        let mut word = format!("{}{}={}", self.kind, name.unwrap_or_default(), self.url);
        for url in &self.files {
            word.push_str(&format!(" {url}"));
        }
        read_mirror(&word).map(|_| word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_shown_as_it_is_read() {
        for word in [
            "npm=http://registry.test/",
            "apt:security=http://archive.test/debian-security/",
            "pypi=https://index.test/simple/ https://files.test/ http://more.test:81/a/",
        ] {
            assert_eq!(show_mirror(&read_mirror(word).unwrap()), word);
        }
        let mirror = read_mirror("crates:a=http://INDEX.test:80").unwrap();
        assert_eq!(show_mirror(&mirror), "crates:a=http://index.test/");
    }

    #[test]
    fn what_is_no_mirror_says_why() {
        for (word, what) in [
            ("http://a.test/", "`http://a.test/` is not a mirror"),
            (
                "pipy=http://a.test/",
                "`pipy` is not one of pypi, npm, crates, apt",
            ),
            ("npm:=http://a.test/", "`` is not a name for a mirror"),
            ("npm:a/b=http://a.test/", "`a/b` is not a name for a mirror"),
            (
                "npm=ftp://a.test/",
                "`ftp://a.test/` is not a URL of a registry: scheme",
            ),
            ("npm=http://a.test/?x", "`http://a.test/?x` has a query"),
            (
                "npm=http://a.test/ http://b.test",
                "an npm index does not link files on other hosts",
            ),
            (
                "pypi=http://a.test/ ftp://b.test/x",
                "`ftp://b.test/x` is not a URL of files: scheme",
            ),
            ("", "`` is not a mirror"),
        ] {
            let fault = read_mirror(word).unwrap_err();
            assert!(fault.what.starts_with(what), "{word}: {}", fault.what);
        }
    }

    #[test]
    fn a_table_cannot_say_more_than_a_word() {
        let table = |url: &str| MirrorTable {
            kind: "pypi".into(),
            name: Some("x".into()),
            url: url.into(),
            files: vec!["http://b.test".into()],
        };
        let word = table("http://a.test/").word().unwrap();
        assert_eq!(word, "pypi:x=http://a.test/ http://b.test");
        assert!(table("http://a.test/ http://c.test").word().is_err());
    }
}
