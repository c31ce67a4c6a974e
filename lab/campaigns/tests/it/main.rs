//! Campaigns whose short form belongs to every test run.

mod failures;
mod layouts;
mod members;
mod papers;
mod rivals;
mod slow_disk;
mod squid;
mod transparent;
mod wan;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::geteuid;
use serde_json::Value;

/// A command that runs a campaign.
fn campaign(name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campaigns"));
    command.arg(name).arg("--binary").arg(proxy());
    command
}

/// Runs the short form of a campaign; the rows that passed. It has to succeed with `least` of them:
/// a campaign that ends early is no success.
fn passed(campaign: &mut Command, least: usize) -> Vec<Value> {
    let output = campaign.args(["--short", "--json"]).output();
    let output = output.expect("the campaigns can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report in JSON");
    let rows = report["rows"].as_array().expect("rows").iter();
    let passed: Vec<Value> = rows
        .filter(|row| row["verdict"] == "passed")
        .cloned()
        .collect();
    let count = passed.len();
    assert!(count >= least, "only {count} rows passed:\n{said}");
    passed
}

/// Whether file systems can be made on loop devices, and these paths are there.
fn can_mount(needed: &[&str]) -> bool {
    let works = |program: &str, argument: &str| {
        let mut command = Command::new(program);
        let command = command
            .arg(argument)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    geteuid().is_root()
        && needed.iter().all(|path| Path::new(path).exists())
        && works("losetup", "--find")
        && works("mkfs.ext4", "-V")
}

/// Runs a campaign that lacks a program. It has to fail and say `advice`.
fn fails(campaign: &mut Command, advice: &str) {
    let output = campaign.output().expect("the campaigns can be run");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(!output.status.success());
    assert!(said.contains(advice), "{said}");
}

/// The proxy that cargo has built beside the campaigns, for the tests of the product.
///
/// Cargo offers no way to name the binary of another workspace, and to call cargo from here would
/// build it once more, with other features.
fn proxy() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_campaigns")).with_file_name("hashcache");
    let fresh = "build it first: `cargo build`, or the tests of the product";
    let modified = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
    let built = modified(&path).unwrap_or_else(|error| panic!("{path:?}: {error}; {fresh}"));
    for source in sources(&path) {
        let is_newer = modified(&source).is_ok_and(|changed| changed > built);
        assert!(
            !is_newer,
            "{path:?} was built before {source:?} changed; {fresh}"
        );
    }
    path
}

/// The files that `binary` was built from: those that `cargo build` wrote beside it. `cargo test`
/// writes no such list; then it is every source of the product.
fn sources(binary: &Path) -> Vec<PathBuf> {
    if let Ok(list) = fs::read_to_string(binary.with_extension("d")) {
        let words = list.split_whitespace().filter(|word| word.ends_with(".rs"));
        return words.map(PathBuf::from).collect();
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let mut directories = vec![];
    for each in fs::read_dir(crates).expect("the crates of the product") {
        let source = each.expect("a crate").path().join("src");
        directories.extend(source.is_dir().then_some(source));
    }
    let mut files = vec![];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files
}
