//! Tests of the rows: that each is complete, and that a row is all that a setting needs.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use clap::Parser as _;

use super::*;
use crate::environment::tests::environment;
use crate::flags::tests::Line;
use crate::key::{Applies, DefaultValue, Shown};
use crate::{Effective, assemble};
use crate::{effective_text, example, manual, reference};

fn help(name: &str) -> String {
    find(name).unwrap().key.help()
}

#[test]
fn no_two_keys_have_one_name() {
    let mut names = BTreeSet::new();
    for name in spellings() {
        assert!(names.insert(name), "{name}");
    }
    assert!(names.len() > 90, "{}", names.len());
}

#[test]
fn the_help_says_the_default() {
    assert!(help("cache_size").ends_with(" [default: 1GiB]"));
    assert!(help("workers").ends_with(" [default: one per processor]"));
    assert!(!help("accelerate").contains("default"));
    assert!(!help("grouped").contains("default"));
}

#[test]
fn lines_are_phrases_and_details_are_sentences() {
    for key in keys() {
        let (about, details) = (key.about, key.details);
        assert!(about.starts_with(char::is_uppercase), "{about}");
        assert!(!about.ends_with('.'), "{about}");
        assert!(details.is_empty() || details.ends_with('.'), "{details}");
    }
}

#[test]
fn every_key_has_a_default_or_an_example() {
    let values = Values::defaults(1, None);
    for key in keys() {
        let is_set = (key.show)(&values) != Shown::Nothing;
        assert!(is_set || key.default != DefaultValue::Value, "{}", key.name);
        assert!(!key.sample().is_empty(), "{}", key.name);
    }
}

/// The settings of `hashcache proxy` with a file, a variable and flags.
fn loaded(file: &str, variables: &[(&str, &str)], flags: &[&str]) -> Result<Effective, Faults> {
    let line = Line::try_parse_from([&["test"], flags].concat()).unwrap();
    let variables = [&[("HOME", "/home-of-tests")], variables].concat();
    let path = Some(Path::new("a.toml"));
    assemble(path, file, line.settings.given(), &environment(&variables))
}

#[test]
fn a_flag_of_files_or_parents_takes_a_comma_as_a_part_of_the_name() {
    let flags = ["--cache=/srv/a,b.img", "--cache=/c", "--allow-port=1,2"];
    let effective = loaded("", &[], &flags).unwrap();
    let shown = effective_text::toml_of(&effective);
    for line in [
        r#"cache = ["/srv/a,b.img", "/c"]"#,
        r#"allow_port = ["1", "2"]"#,
    ] {
        assert!(shown.contains(line), "{shown}");
    }
}

#[test]
fn a_row_is_all_that_a_setting_needs() {
    let file = "\ntrial_time = \"1s\"";
    let variable = [("HASHCACHE_TRIAL_TIME", "2s")];
    let flag = ["--trial-time=3s"];
    for (effective, seconds, source) in [
        (loaded("", &[], &[]), 7, "default"),
        (loaded(file, &[], &[]), 1, "a.toml:2"),
        (loaded(file, &variable, &[]), 2, "HASHCACHE_TRIAL_TIME"),
        (loaded(file, &variable, &flag), 3, "--trial-time"),
    ] {
        let effective = effective.unwrap();
        assert_eq!(effective.values.trial_time, Duration::from_secs(seconds));
        let shown = effective_text::toml_of(&effective);
        let line = format!(
            "{:<40} # {source}\n",
            format!("trial_time = \"{seconds}s\"")
        );
        assert!(shown.contains(&line), "{shown}");
    }
    let [wrong, unknown] = ["trial_time = 0", "trail_time = \"1s\""]
        .map(|file| loaded(file, &[], &[]).unwrap_err().0.remove(0));
    assert_eq!(wrong.what, "a.toml:1: trial_time: the time must not be 0");
    assert_eq!(unknown.hint.as_deref(), Some("did you mean `trial_time`?"));
    let help = Line::try_parse_from(["test", "--help"]).err().unwrap();
    for (text, part) in [
        (help.to_string(), "--trial-time <TIME>"),
        (help.to_string(), "Time that only tests set [default: 7s]"),
        (example::text(), "#trial_time = \"7s\"\n"),
        (manual::page(), "It shows that a row is enough."),
        (reference::text(), "### `trial_time`\n"),
        (reference::text(), "a time above 0"),
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(find("trial_time").unwrap().key.applies, Applies::AtReload);
}
