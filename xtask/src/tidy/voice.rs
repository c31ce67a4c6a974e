//! The voice of comments: how often they use words that usually stand in for a noun or a reason.
//!
//! `voice.toml` has the rates of well-kept projects. A crate may use a word three times as often.
//! Crates above that are listed with their present rate, which may only fall (a ratchet).
//!
//! Invariant: only comments of the product count, tests excluded. Strings do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::source::is_of_tests;
use super::{Finding, Tree};

/// The rates, beside this file.
const RATES: &str = "xtask/src/tidy/voice.toml";
/// Largest multiple of an anchor's rate.
const MOST: f64 = 3.0;
/// A listed rate must not be higher than the present one by more than this share, otherwise the
/// ratchet would give back part of each improvement.
const SLACK: f64 = 0.1;

/// Compares the comments of each crate with `voice.toml`.
pub fn voice(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.0.get(RATES) else {
        return vec![Finding::new(RATES, 0, "is missing")];
    };
    let rates: Rates = match toml::from_str(text) {
        Ok(rates) => rates,
        Err(error) => return vec![Finding::new(RATES, 0, error.to_string())],
    };
    let crates = comments_by_crate(tree);
    let mut findings = vec![];
    for (name, comments) in &crates {
        let lines = comments.lines().count().max(1) as f64;
        for (word, anchor) in &rates.anchors {
            let count = rates.count(word, comments) as f64;
            let rate = 1_000.0 * count / lines;
            // A small crate may use a rare word once.
            let limit = (MOST * anchor).max(1_000.0 / lines);
            let listed = rates.above.get(name).and_then(|it| it.get(word)).copied();
            findings.extend(judge(name, word, rate, limit, listed));
        }
    }
    let unknown = rates
        .above
        .keys()
        .filter(|name| !crates.contains_key(*name));
    findings.extend(unknown.map(|name| Finding::new(RATES, 0, format!("no crate `{name}`"))));
    let listed = rates.above.values().flat_map(BTreeMap::keys);
    let unknown = listed
        .chain(rates.forms.keys())
        .filter(|word| !rates.anchors.contains_key(*word));
    findings.extend(unknown.map(|word| {
        let what = format!("\"{word}\" has no rate under `[anchors]`");
        Finding::new(RATES, 0, what)
    }));
    findings
}

fn judge(name: &str, word: &str, rate: f64, limit: f64, listed: Option<f64>) -> Option<Finding> {
    let shown = (rate * 10.0).round() / 10.0;
    let what = match listed {
        None if rate <= limit => return None,
        None => format!(
            "`crates/{name}` uses \"{word}\" {shown} times per 1,000 comment lines; at most \
             {limit:.1} fit: name the thing, give the reason"
        ),
        Some(_) if rate <= limit => {
            format!("`crates/{name}` uses \"{word}\" seldom enough now: take it out")
        }
        Some(listed) if shown > listed => format!(
            "`crates/{name}` uses \"{word}\" {shown} times per 1,000 comment lines, more than \
             {listed}"
        ),
        Some(listed) if shown < listed * (1.0 - SLACK) => {
            format!("`crates/{name}` uses \"{word}\" {shown} times now: lower {listed} to that")
        }
        Some(_) => return None,
    };
    Some(Finding::new(RATES, 0, what))
}

/// The contents of `voice.toml`.
#[derive(serde::Deserialize)]
struct Rates {
    anchors: BTreeMap<String, f64>,
    /// Other forms of words.
    forms: BTreeMap<String, BTreeSet<String>>,
    /// Rates of crates that are above the limit, by crate and word.
    #[serde(default)]
    above: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Rates {
    /// How often `word`, or another form of it, occurs in lower-case `text`.
    fn count(&self, word: &str, text: &str) -> usize {
        let forms = self.forms.get(word).into_iter().flatten();
        let forms = forms.map(String::as_str).chain([word]);
        forms.map(|form| occurrences(text, form)).sum()
    }
}

/// How often the words `phrase` occur in `text`.
fn occurrences(text: &str, phrase: &str) -> usize {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    let stands_alone = |(at, _): &(usize, &str)| {
        let before = text[..*at].chars().next_back();
        let after = text[at + phrase.len()..].chars().next();
        !before.is_some_and(is_letter) && !after.is_some_and(is_letter)
    };
    text.match_indices(phrase).filter(stands_alone).count()
}

/// The comments of each crate's product code, in lower case, a comment line a line.
fn comments_by_crate(tree: &Tree) -> BTreeMap<String, String> {
    let mut crates = BTreeMap::<String, String>::new();
    for (path, text) in tree.ending(".rs") {
        let Some((name, file)) = path
            .strip_prefix("crates/")
            .and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        if is_of_tests(file) {
            continue;
        }
        let code = text.split("\nmod tests {").next();
        let comments = crates.entry(name.to_owned()).or_default();
        for line in code.unwrap_or_default().lines() {
            if let Some(comment) = line.trim_start().strip_prefix("//") {
                comments.push_str(&comment.trim_start_matches(['/', '!']).to_lowercase());
                comments.push('\n');
            }
        }
    }
    crates
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    const TOML: &str = "[anchors]\nwhat = 10.0\n[forms]\nwhat = [\"whatever\"]\n";

    /// A crate of 100 comment lines, `count` of them with the word.
    fn source(count: usize) -> String {
        let lines = (0..100).map(|n| {
            if n < count {
                "/// What.\n"
            } else {
                "// A noun.\n"
            }
        });
        lines.collect()
    }

    fn found(toml: &str, source: &str) -> Vec<String> {
        let files = [(RATES, toml), ("crates/a/src/b.rs", source)];
        findings(voice, &files)
    }

    #[test]
    fn a_crate_may_use_a_word_three_times_as_often_as_others_do() {
        assert_eq!(found(TOML, &source(3)).len(), 0);
        assert_eq!(found(TOML, &source(4)).len(), 1);
        let others = "/// Whatever.\n".repeat(4) + &"// Somewhat.\n".repeat(96);
        assert_eq!(found(TOML, &others).len(), 1);
    }

    #[test]
    fn a_listed_rate_may_only_fall_and_leaves_the_list_at_the_limit() {
        let listed = format!("{TOML}[above.a]\nwhat = 60.0\n");
        assert_eq!(found(&listed, &source(6)).len(), 0);
        for count in [3, 4, 7] {
            assert_eq!(found(&listed, &source(count)).len(), 1, "{count}");
        }
    }

    #[test]
    fn tests_and_strings_do_not_count() {
        let text = source(3) + "let a = \"what what\";\n#[cfg(test)]\nmod tests {\n// what\n}\n";
        assert_eq!(found(TOML, &text).len(), 0);
        let files = [(RATES, TOML), ("crates/a/src/b/tests.rs", &source(50))];
        assert_eq!(findings(voice, &files).len(), 0);
    }

    #[test]
    fn crates_and_words_that_are_gone_are_named() {
        let listed = format!("{TOML}[above.gone]\nwhat = 60.0\n");
        assert_eq!(found(&listed, &source(1)).len(), 1);
        let words = format!("{TOML}which = [\"that\"]\n[above.a]\nwhere = 60.0\n");
        assert_eq!(found(&words, &source(1)).len(), 2);
    }
}
