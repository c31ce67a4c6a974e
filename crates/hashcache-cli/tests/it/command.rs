//! Help, version, completions, manual pages, and mistakes on the command line.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Home;

#[test]
fn the_version_names_the_commit_of_a_checkout() {
    let outcome = Home::new().hashcache(&["--version"], &[]);
    assert_eq!(outcome.status, Some(0));
    let version = env!("CARGO_PKG_VERSION");
    let expected = match commit() {
        Some(commit) => format!("hashcache {version} ({commit})\n"),
        None => format!("hashcache {version}\n"),
    };
    assert_eq!(outcome.stdout, expected);
    assert_eq!(outcome.stderr, "");
}

/// The commit that this was built from: `GIT_HASH` of a packager, or HEAD of our own checkout.
fn commit() -> Option<String> {
    if let Ok(commit) = std::env::var("GIT_HASH") {
        return Some(commit).filter(|it| !it.is_empty());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut git = Command::new("git");
    git.arg("-C")
        .arg(&root)
        .args(["rev-parse", "--short=12", "HEAD"]);
    let output = git.output().ok().filter(|it| it.status.success())?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    root.join(".git").exists().then_some(commit)
}

#[test]
fn help_goes_to_standard_output_and_is_well() {
    let outcome = Home::new().hashcache(&["config", "show", "--help"], &[]);
    assert_eq!(outcome.status, Some(0));
    assert!(outcome.stdout.contains("--cache-size"), "{outcome:?}");
}

#[test]
fn a_mistake_on_the_command_line_is_told_in_our_voice_with_status_2() {
    let outcome = Home::new().hashcache(&["config", "show", "--memroy", "1"], &[]);
    assert_eq!(outcome.status, Some(2));
    assert_eq!(outcome.stdout, "");
    assert!(outcome.stderr.starts_with("hashcache: "), "{outcome:?}");
    assert!(outcome.stderr.contains("--memory"), "{outcome:?}");
}

#[test]
fn no_subcommand_shows_the_help_with_status_2() {
    let outcome = Home::new().hashcache(&[], &[]);
    assert_eq!(outcome.status, Some(2));
    assert!(outcome.stderr.contains("Usage: hashcache"), "{outcome:?}");
}

#[test]
fn every_shell_gets_completions_that_know_the_flags() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let outcome = Home::new().hashcache(&["completions", shell], &[]);
        assert_eq!(outcome.status, Some(0), "{shell}");
        assert!(outcome.stdout.contains("cache-size"), "{shell}");
    }
}

#[test]
fn there_is_a_manual_page_for_every_subcommand() {
    let home = Home::new();
    let outcome = home.hashcache(&["man", "pages/man1"], &[]);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""));
    for page in [
        "hashcache",
        "hashcache-config",
        "hashcache-config-show",
        "hashcache-config-example",
        "hashcache-man",
    ] {
        let path = home.path().join(format!("pages/man1/{page}.1"));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(".SH NAME"), "{page}");
    }
    let file = fs::read_to_string(home.path().join("pages/man1/hashcache.toml.5")).unwrap();
    for part in [".SH CACHE", "limits.head_time", "heuristic"] {
        assert!(file.contains(part), "{part}");
    }
}

#[test]
fn help_is_grouped_by_topic_with_everyday_flags_first() {
    let help = Home::new().hashcache(&["proxy", "--help"], &[]).stdout;
    let headings: Vec<&str> = help
        .lines()
        .filter_map(|line| line.strip_suffix(':'))
        .filter(|line| line.chars().all(char::is_alphabetic))
        .collect();
    assert_eq!(
        headings,
        [
            "Options", "Listen", "Cache", "Access", "HTTPS", "Mirrors", "Peers", "Logs", "Expert"
        ]
    );
    assert!(help.contains("-c, --config <FILE>"), "{help}");
    let at = |flag: &str| help.find(flag).unwrap();
    assert!(at("--cache-size") < at("--policy") && at("--policy") < at("--rows"));
}

#[test]
fn the_sample_configuration_is_a_configuration_without_errors() {
    let home = Home::new();
    let sample = home.hashcache(&["config", "example"], &[]);
    assert_eq!((sample.status, sample.stderr.as_str()), (Some(0), ""));
    home.file("sample.toml", &sample.stdout);
    let outcome = home.hashcache(&["config", "check", "sample.toml"], &[]);
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
}

#[test]
fn the_main_manual_page_is_printed_when_no_directory_is_named() {
    let outcome = Home::new().hashcache(&["man"], &[]);
    assert_eq!(outcome.status, Some(0));
    assert!(outcome.stdout.contains(".SH NAME"), "{outcome:?}");
}

#[test]
fn a_directory_that_cannot_be_made_is_told_with_status_2() {
    let home = Home::new();
    home.file("taken", "");
    let outcome = home.hashcache(&["man", "taken/pages"], &[]);
    assert_eq!(outcome.status, Some(2));
    let expected = "hashcache: cannot write manual pages to taken/pages: ";
    assert!(outcome.stderr.starts_with(expected), "{outcome:?}");
}
