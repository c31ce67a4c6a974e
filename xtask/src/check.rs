//! `cargo xtask check`: format, lints, documentation, licences and `tidy`, the fast checks first.
//!
//! Tests are a separate command (see `README.md`; `.ci/run` runs both), so that this one can run
//! before every commit.

use std::process::Stdio;

use anyhow::{Context as _, bail};

use crate::{cargo, tidy};

/// Arguments of `check`.
#[derive(clap::Args)]
pub struct Args {
    /// Fail when a tool is missing, instead of saying so
    #[arg(long)]
    all: bool,
}

/// A step that is a cargo command.
struct Step {
    arguments: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

const STEPS: [Step; 7] = [
    Step {
        arguments: &["fmt", "--all", "--check"],
        variables: &[],
    },
    Step {
        arguments: &[
            "fmt",
            "--manifest-path",
            "lab/Cargo.toml",
            "--all",
            "--check",
        ],
        variables: &[],
    },
    Step {
        arguments: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
        variables: &[],
    },
    Step {
        arguments: &[
            "clippy",
            "--manifest-path",
            "lab/Cargo.toml",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
        variables: &[],
    },
    // They take sources of the crates by path, and are a workspace of their own.
    Step {
        arguments: &["check", "--manifest-path", "fuzz/Cargo.toml", "--locked"],
        variables: &[],
    },
    Step {
        arguments: &[
            "doc",
            "--workspace",
            "--no-deps",
            "--all-features",
            "--locked",
        ],
        variables: &[("RUSTDOCFLAGS", "-D warnings")],
    },
    Step {
        arguments: &[
            "doc",
            "--manifest-path",
            "lab/Cargo.toml",
            "--workspace",
            "--no-deps",
            "--all-features",
            "--locked",
        ],
        variables: &[("RUSTDOCFLAGS", "-D warnings")],
    },
];

/// Without advisories: their database would have to be fetched, and the result for a commit would
/// change from day to day.
const DENY: [Step; 2] = [
    Step {
        arguments: &["deny", "--locked", "check", "bans", "licenses", "sources"],
        variables: &[],
    },
    Step {
        arguments: &[
            "deny",
            "--manifest-path",
            "lab/Cargo.toml",
            "--locked",
            "check",
            "bans",
            "licenses",
            "sources",
        ],
        variables: &[],
    },
];

/// Runs every step, also after a failure, so that one run reports all failures.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut failed = vec![];
    eprintln!("xtask: tidy");
    if let Err(error) = tidy::run(&tidy::Args {}) {
        eprintln!("{error:#}");
        failed.push("tidy".to_owned());
    }
    for step in &STEPS {
        if !step.run()? {
            failed.push(step.name());
        }
    }
    if is_installed("deny")? {
        for step in &DENY {
            if !step.run()? {
                failed.push(step.name());
            }
        }
    } else if args.all {
        failed.push("cargo deny (not installed)".to_owned());
    } else {
        eprintln!(
            "xtask: skipped: cargo deny is not installed (`cargo install --locked cargo-deny`)"
        );
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    eprintln!("xtask: all checks passed");
    Ok(())
}

impl Step {
    fn name(&self) -> String {
        let of_lab = self.arguments.contains(&"lab/Cargo.toml");
        let place = if of_lab { " in lab" } else { "" };
        format!("cargo {}{place}", self.arguments[0])
    }

    /// Whether the step passed; an error when it could not even be started.
    fn run(&self) -> anyhow::Result<bool> {
        eprintln!("xtask: cargo {}", self.arguments.join(" "));
        let status = cargo()
            .args(self.arguments)
            .envs(self.variables.iter().copied())
            .status()
            .with_context(|| format!("cannot run {}", self.name()))?;
        Ok(status.success())
    }
}

fn is_installed(tool: &str) -> anyhow::Result<bool> {
    let mut command = cargo();
    command
        .args([tool, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Ok(command.status().context("cannot run cargo")?.success())
}
