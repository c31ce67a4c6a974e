//! `cargo xtask fuzz`: runs the targets of `fuzz/` one after the other, each for a given time.
//!
//! `cargo fuzz` builds a target without a sanitizer: the fuzzed code has no `unsafe`, so it needs
//! only coverage from the compiler, which the stable one provides.
//!
//! Invariant: a failure names the file that reproduces it.

use std::fs;

use anyhow::{Context as _, bail, ensure};

use crate::outcomes::Outcomes;
use crate::{cargo, root};

/// Arguments of `fuzz`.
#[derive(clap::Args)]
pub struct Args {
    /// How long, for each target
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The same in seconds, for a try
    #[arg(long, conflicts_with = "minutes")]
    seconds: Option<u64>,
    /// Targets, all by default
    #[arg(long, value_delimiter = ',')]
    target: Vec<String>,
}

/// Longest input, bytes: two heads with a few dozen fields.
const INPUT_BYTES_MAX: u64 = 4096;

/// Fuzzes all targets.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let version = cargo().args(["fuzz", "--version"]).output();
    ensure!(
        version.is_ok_and(|it| it.status.success()),
        "cargo-fuzz is not installed: cargo install --locked cargo-fuzz"
    );
    let all = targets()?;
    for target in &args.target {
        ensure!(
            all.contains(target),
            "no target {target}: there are {}",
            all.join(", ")
        );
    }
    let chosen = if args.target.is_empty() {
        all
    } else {
        args.target.clone()
    };
    let seconds = args.seconds.unwrap_or(args.minutes * 60);
    let mut outcomes = Outcomes::default();
    for target in chosen {
        outcomes.push(&target, fuzz(&target, seconds));
    }
    outcomes.finish()
}

/// The files of `fuzz/fuzz_targets`, by name.
fn targets() -> anyhow::Result<Vec<String>> {
    let directory = root().join("fuzz/fuzz_targets");
    let mut names = vec![];
    for entry in fs::read_dir(&directory).context("there are no fuzz targets")? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "rs") {
            names.extend(path.file_stem().map(|it| it.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// Fuzzes one target; returns how many runs it made.
fn fuzz(target: &str, seconds: u64) -> anyhow::Result<String> {
    let mut command = cargo();
    command.args(["fuzz", "run", "--sanitizer", "none", target, "--"]);
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-max_len={INPUT_BYTES_MAX}"));
    let dictionary = format!("fuzz/fuzz_targets/{target}.dict");
    if root().join(&dictionary).exists() {
        command.arg(format!("-dict={dictionary}"));
    }
    let output = command.output().context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    // The last line of a run without a finding is `Done 1234 runs in 61 second(s)`.
    let done = said.lines().rev().find_map(|line| {
        let runs = line.strip_prefix("Done ")?.split(' ').next()?;
        runs.parse::<u64>().ok()
    });
    match done {
        Some(runs) if output.status.success() && runs > 0 => Ok(format!("{runs} runs")),
        _ => {
            let lines: Vec<&str> = said.lines().collect();
            let last = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
            bail!("{}", last.join("\n"))
        }
    }
}

/// Lines of a failure that are shown: the panic and the path of the input.
const LINES_SHOWN: usize = 40;
