//! The lines in a Squid configuration: comments, continued lines, quoted words, macros.
//!
//! Called by `source` for each file. The fuzzer runs this module together with `address`, `values`
//! and `week`.

use std::fmt;
use std::rc::Rc;

use hashcache_http::printable;

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: Rc<str>,
    /// Counted from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A word in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    pub text: String,
    /// True if the word was in double quotes: in an `acl`, it names a file with values.
    pub is_quoted: bool,
}

impl Word {
    /// Returns true if the word names the `acl` that matches every request.
    pub fn is_all(&self) -> bool {
        self.text.eq_ignore_ascii_case("all")
    }

    /// The prefix if this is an option that contains a password.
    fn secret(&self) -> Option<&'static str> {
        let begins = |it: &&&str| self.text.starts_with(**it);
        let option = PASSWORDS.iter().find(begins).copied();
        // A log in a database: `daemon:/host/database/table/user/password`.
        let is_database = |path: &str| path.matches('/').count() >= DATABASE_PARTS;
        let database = self.text.strip_prefix(DAEMON).filter(|it| is_database(it));
        option.or(database.map(|_| DAEMON))
    }
}

/// A directive with arguments: a line, together with continuation lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The first line's place.
    pub place: Place,
    /// The directive.
    pub name: String,
    /// The arguments.
    pub args: Vec<Word>,
}

impl Line {
    /// The argument with this number, from 0; empty if it is missing.
    pub fn arg(&self, at: usize) -> &str {
        self.args.get(at).map_or("", |word| &word.text)
    }

    /// The arguments, starting with this number.
    pub fn args_from(&self, at: usize) -> &[Word] {
        self.args.get(at..).unwrap_or_default()
    }

    /// Returns true if all arguments, starting with this number, are the `acl` that matches every
    /// request.
    pub fn is_all_from(&self, at: usize) -> bool {
        let args = self.args_from(at);
        !args.is_empty() && args.iter().all(Word::is_all)
    }

    /// A word in the line, without a password.
    pub fn without_secret(&self, word: &str) -> String {
        let word = Word {
            text: word.to_owned(),
            is_quoted: false,
        };
        match word.secret() {
            Some(option) => format!("{option}..."),
            None => word.text,
        }
    }

    /// The place, and the line as in [`Self::shown`].
    pub fn shown_with_place(&self) -> String {
        format!("{}: {}", self.place, self.shown())
    }

    /// Formats the line for comments and messages: as a single line, truncated if it is long, and
    /// without passwords.
    pub fn shown(&self) -> String {
        let visible = match SECRETS.iter().find(|(name, _)| *name == self.name) {
            Some((_, visible)) => *visible,
            None => usize::MAX,
        };
        let mut shown: String = self.name.clone();
        for (at, word) in self.args.iter().enumerate() {
            if at >= visible || shown.len() > SHOWN_MAX {
                shown.push_str(" ...");
                break;
            }
            match (word.secret(), word.is_quoted) {
                (Some(option), _) => shown.push_str(&format!(" {option}...")),
                (None, true) => shown.push_str(&format!(" \"{}\"", word.text)),
                (None, false) => shown.push_str(&format!(" {}", word.text)),
            }
        }
        plain(&shown)
    }
}

/// Makes a text safe for a comment and a terminal, with at most [`PLAIN_MAX`] characters and an
/// ellipsis.
pub fn plain(text: &str) -> String {
    let mut chars = text.chars();
    let mut clean: String = chars.by_ref().take(PLAIN_MAX).collect();
    if chars.next().is_some() {
        clean.push_str("...");
    }
    printable(&clean)
}

/// Parses the lines in `text`, which was read from `file`.
pub fn lines(file: &str, text: &str) -> impl Iterator<Item = Line> {
    let file: Rc<str> = plain(file).into();
    let mut rest = text.lines().enumerate();
    std::iter::from_fn(move || {
        loop {
            let (number, first) = rest.next()?;
            if first.trim_start().starts_with('#') {
                continue;
            }
            let mut whole = first.to_owned();
            while whole.ends_with('\\') {
                whole.pop();
                match rest.next() {
                    Some((_, more)) => whole.push_str(more),
                    None => break,
                }
            }
            let mut words = words(&with_macros(&whole)).into_iter();
            if let Some(name) = words.next() {
                return Some(Line {
                    place: Place {
                        file: Rc::clone(&file),
                        line: number + 1,
                    },
                    name: name.text,
                    args: words.collect(),
                });
            }
        }
    })
}

/// Replaces Squid's macros by their values in Squid's first process.
fn with_macros(line: &str) -> String {
    if !line.contains("${") {
        return line.to_owned();
    }
    MACROS.iter().fold(line.to_owned(), |line, (name, value)| {
        line.replace(name, value)
    })
}

/// Splits a line into words, up to a word that starts with `#`.
pub fn words(line: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_word(quoted),
            None => {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                let (text, after) = rest.split_at(end);
                let text = text.to_owned();
                (
                    Word {
                        text,
                        is_quoted: false,
                    },
                    after,
                )
            }
        };
        words.push(word);
        rest = after.trim_start();
    }
    words
}

/// Returns the word up to the closing quote, and the rest. If the closing quote is missing, the
/// word extends to the line's end.
fn quoted_word(line: &str) -> (Word, &str) {
    let mut text = String::new();
    let mut chars = line.char_indices();
    let mut end = line.len();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                end = at + 1;
                break;
            }
            '\\' => text.extend(chars.next().map(|(_, c)| c)),
            _ => text.push(c),
        }
    }
    (
        Word {
            text,
            is_quoted: true,
        },
        &line[end..],
    )
}

/// Characters after which a shown line takes no more words.
const SHOWN_MAX: usize = 160;
/// Most characters in a comment.
const PLAIN_MAX: usize = 500;
/// Directives with arguments that may contain passwords, with the number of arguments that are
/// shown.
const SECRETS: [(&str, usize); 12] = [
    ("auth_param", 3),
    ("external_acl_type", 1),
    ("url_rewrite_program", 1),
    ("redirect_program", 1),
    ("location_rewrite_program", 1),
    ("store_id_program", 1),
    ("sslcrtvalidator_program", 1),
    ("sslpassword_program", 1),
    ("sslcrtd_program", 1),
    ("cachemgr_passwd", 0),
    ("ftp_user", 0),
    ("wccp2_service", 3),
];
/// Prefixes for options that contain passwords.
const PASSWORDS: [&str; 2] = ["login=", "password="];
const DAEMON: &str = "daemon:";
const DATABASE_PARTS: usize = 5;
const MACROS: [(&str, &str); 3] = [
    ("${process_number}", "1"),
    ("${process_name}", "squid"),
    ("${service_name}", "squid"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<(usize, String)> {
        let lines = lines("squid.conf", text);
        lines.map(|line| (line.place.line, line.shown())).collect()
    }

    #[test]
    fn comments_and_empty_lines_are_left_out_and_lines_continue() {
        let text =
            "# c\n\n  http_port 3128 # c\nacl a src \\\n  10.0.0.1 \\\n10.0.0.2\n#x \\\nvia on\n";
        assert_eq!(
            shown(text),
            [
                (3, "http_port 3128".into()),
                (4, "acl a src 10.0.0.1 10.0.0.2".into()),
                (8, "via on".into())
            ]
        );
    }

    #[test]
    fn quoted_words_are_one_word() {
        let line = words(r#"acl x src "/etc/squid/my file" "a\"b" c"d # "e""#);
        let texts: Vec<_> = line.iter().map(|it| (&*it.text, it.is_quoted)).collect();
        let expected = [
            ("acl", false),
            ("x", false),
            ("src", false),
            ("/etc/squid/my file", true),
            ("a\"b", true),
            ("c\"d", false),
        ];
        assert_eq!(texts, expected);
        assert_eq!(words("a \"never closed").len(), 2);
        assert_eq!(words("a \"\\").len(), 2);
    }

    #[test]
    fn passwords_are_not_shown() {
        for text in [
            "cache_peer isp.example parent 3128 0 login=me:SECRET no-query",
            "auth_param basic program /usr/lib/squid/basic_ldap_auth -w SECRET",
            "cachemgr_passwd SECRET all",
            "external_acl_type x ldap -w SECRET",
            "redirect_program /x SECRET",
            "location_rewrite_program /x SECRET",
            "sslcrtvalidator_program /x SECRET",
            "access_log daemon:/host/squid/log/me/SECRET",
        ] {
            let shown = &shown(text)[0].1;
            assert!(!shown.contains("SECRET"), "{shown}");
        }
    }

    #[test]
    fn a_shown_line_is_one_line_without_odd_characters() {
        let long = format!("acl x src {}", "10.0.0.1 ".repeat(1000));
        assert!(shown(&long)[0].1.len() < 200);
        let odd = shown("via \u{1b}[31m\u{202e}\u{7}\u{2066}\u{2069}\u{61c}");
        assert_eq!(odd[0].1, "via ?[31m?????");
        let log = shown("access_log daemon:/var/log/squid/access.log");
        assert_eq!(log[0].1, "access_log daemon:/var/log/squid/access.log");
    }

    #[test]
    fn macros_are_those_of_the_first_process() {
        assert_eq!(shown("if ${process_number} = 1")[0].1, "if 1 = 1");
    }
}
