//! `cargo xtask mutants`: plants faults in the engine, one at a time; each must make a test fail.
//!
//! A test that passes with broken code shows nothing. Each fault of `mutants/faults` names the test
//! that must catch it. The sources are not changed: faults are planted in a copy of the workspace
//! below `target/`, which is built separately.
//!
//! Invariant: a fault counts as caught only when the test passed without it and failed with it. A
//! fault that does not compile, or whose text is not in its file exactly once, is a failure. Cost:
//! a build of the engine and its tests, then some seconds to build each fault.

mod faults;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::outcomes::Outcomes;
use crate::{cargo, root};
use faults::{FAULTS, Fault, Suite};

/// Arguments of `mutants`.
#[derive(clap::Args)]
pub struct Args {
    /// Only faults with one of these in their names
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// A few faults of each kind: what CI plants
    #[arg(long)]
    short: bool,
}

/// A test that runs longer than this with a fault is in an endless loop, which counts as caught.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// The files of the workspace that the build needs.
const COPIED: [&str; 6] = [
    "Cargo.toml",
    "Cargo.lock",
    "crates",
    "lab",
    "xtask",
    "README.md",
];

/// Plants the faults.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let is_wanted = |fault: &&Fault| {
        let named = args.only.is_empty() || args.only.iter().any(|it| fault.name.contains(it));
        named && (fault.short || !args.short)
    };
    let mut wanted: Vec<&Fault> = FAULTS.iter().filter(is_wanted).collect();
    ensure!(!wanted.is_empty(), "no fault has such a name");
    // Ordered by suite: a fault then rebuilds only the tests of its own suite.
    wanted.sort_by_key(|fault| fault.suite);
    for fault in &wanted {
        planted(fault).with_context(|| format!("{} cannot be planted", fault.name))?;
    }
    let tree = Tree::new()?;
    let mut outcomes = Outcomes::default();
    let mut known = BTreeSet::new();
    for fault in wanted {
        let begun = now();
        let outcome = tree.try_fault(fault, &mut known);
        let took = begun.elapsed().as_secs();
        let outcome = outcome.map(|how| format!("{how} by {} ({took} s)", fault.test));
        outcomes.push(fault.name, outcome);
    }
    outcomes.finish()
}

/// The file of `fault` with the fault in it.
fn planted(fault: &Fault) -> anyhow::Result<String> {
    let path = root().join(fault.file);
    let mut text = fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
    for (find, put) in fault.edits {
        let count = text.matches(find).count();
        ensure!(
            count == 1,
            "{} has {count} times, not once: {find}",
            fault.file
        );
        text = text.replace(find, put);
    }
    Ok(text)
}

/// The copy of the workspace that faults are planted in.
struct Tree {
    sources: PathBuf,
    builds: PathBuf,
}

impl Tree {
    fn new() -> anyhow::Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        let base = root().join(target).join("mutants");
        let tree = Self {
            sources: base.join("sources"),
            builds: base.join("builds"),
        };
        for name in COPIED {
            copy(&root().join(name), &tree.sources.join(name))?;
        }
        Ok(tree)
    }

    /// Tries one fault; reports how it was caught.
    fn try_fault(
        &self,
        fault: &Fault,
        known: &mut BTreeSet<(Suite, &'static str)>,
    ) -> anyhow::Result<&'static str> {
        if known.insert((fault.suite, fault.test)) {
            let tests = self.build(fault.suite)?;
            let whole = self.run_test(fault, &tests)?;
            ensure!(whole == Ran::Passed, "the test {whole:?} without the fault");
        }
        let path = self.sources.join(fault.file);
        let whole = fs::read(&path)?;
        fs::write(&path, planted(fault)?)?;
        let ran = self
            .build(fault.suite)
            .context("the fault does not compile")
            .and_then(|tests| self.run_test(fault, &tests));
        fs::write(&path, whole)?;
        match ran? {
            Ran::Failed => Ok("caught"),
            Ran::TooLong => Ok("caught, in an endless loop,"),
            Ran::Passed => bail!("not caught by {}", fault.test),
            Ran::None => bail!("no test is called {}", fault.test),
        }
    }

    /// Builds the tests of `suite`; returns the path of the binary.
    fn build(&self, suite: Suite) -> anyhow::Result<PathBuf> {
        let mut command = cargo();
        let builds = match suite {
            Suite::Lib | Suite::It => "plain",
            Suite::Loom => "loom",
        };
        command
            .current_dir(&self.sources)
            .env("CARGO_TARGET_DIR", self.builds.join(builds))
            .args(["test", "--locked", "--no-run", "-p", "hashcache"])
            .args(["--message-format", "json"]);
        match suite {
            Suite::Lib => command.arg("--lib"),
            Suite::It => command.args(["--test", "it"]),
            Suite::Loom => command.arg("--lib").env("RUSTFLAGS", "--cfg loom"),
        };
        let output = command.stderr(Stdio::piped()).output()?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        let messages = String::from_utf8_lossy(&output.stdout);
        let executable = |line: &str| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            let is_test = message["profile"]["test"].as_bool() == Some(true);
            let path = message["executable"].as_str().filter(|_| is_test)?;
            Some(PathBuf::from(path))
        };
        let found = messages.lines().rev().find_map(executable);
        found.context("cargo built no tests")
    }

    fn run_test(&self, fault: &Fault, tests: &Path) -> anyhow::Result<Ran> {
        let log = self.builds.join("output");
        let output = fs::File::create(&log)?;
        let mut child = Command::new(tests)
            .current_dir(self.sources.join("crates/hashcache"))
            .arg(fault.test)
            .env("RUST_BACKTRACE", "0")
            .env("LOOM_MAX_PREEMPTIONS", "3")
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let begun = now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if begun.elapsed() > PATIENCE {
                child.kill()?;
                child.wait()?;
                return Ok(Ran::TooLong);
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let text = fs::read_to_string(&log)?;
        if text.contains("running 0 tests") {
            return Ok(Ran::None);
        }
        // A test that aborts its process has failed too.
        let passed = status.success() && text.contains("test result: ok.");
        Ok(if passed { Ran::Passed } else { Ran::Failed })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test that hangs is found by the clock"
)]
fn now() -> Instant {
    Instant::now()
}

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ran {
    Passed,
    Failed,
    TooLong,
    /// No test has that name.
    None,
}

/// Makes `to` a copy of `from`. Identical files are not rewritten, so that cargo does not rebuild
/// them.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if !from.is_dir() {
        let bytes = fs::read(from).with_context(|| format!("cannot read {from:?}"))?;
        if fs::read(to).is_ok_and(|old| old == bytes) {
            return Ok(());
        }
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        return fs::write(to, bytes).with_context(|| format!("cannot write {to:?}"));
    }
    fs::create_dir_all(to)?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        copy(&from.join(&name), &to.join(&name))?;
        names.insert(name);
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if names.contains(&entry.file_name()) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_can_be_planted_and_names_are_used_once() {
        let mut names = BTreeSet::new();
        for fault in FAULTS {
            assert!(names.insert(fault.name), "{}", fault.name);
            let planted = planted(fault).unwrap_or_else(|error| panic!("{}: {error}", fault.name));
            let whole = fs::read_to_string(root().join(fault.file)).unwrap();
            assert_ne!(planted, whole, "{}", fault.name);
        }
    }

    #[test]
    fn every_fault_names_a_test_that_exists() {
        let mut sources = String::new();
        read_all(&root().join("crates/hashcache"), &mut sources);
        for fault in FAULTS {
            let name = fault.test.rsplit("::").next().unwrap();
            let is_there = sources.contains(&format!("fn {name}("))
                || sources.contains(&format!("mod {name}"));
            assert!(is_there, "{}: {}", fault.name, fault.test);
        }
    }

    fn read_all(directory: &Path, sources: &mut String) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read_all(&path, sources);
            } else if path.extension().is_some_and(|it| it == "rs") {
                sources.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
}
