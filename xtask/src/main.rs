//! `cargo xtask`: chores of the workspace's developers. Long tests are in `lab`.
//!
//! One module per command, each with its `Args` and a `run`. To add a command, add a `mod` line, a
//! variant of `Command` with its help as doc comment, and an arm in `main`.

mod campaign;
mod check;
mod dist;
mod docs;
mod fuzz;
mod loom;
mod mutants;
mod outcomes;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

use clap::{Parser, Subcommand};

/// Chores of the workspace's developers.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a long test or measurement of the laboratory; `cargo campaign` is its alias
    #[command(disable_help_flag = true)]
    Campaign(campaign::Args),
    /// Run every check that must pass before a commit, except tests
    Check(check::Args),
    /// Check what rustc and clippy do not know: heads, arrows, folders, disk format, words
    Tidy(tidy::Args),
    /// Write the files that the program prints: the reference of settings, the sample configuration
    Docs(docs::Args),
    /// Build what is shipped: static binaries, Debian packages, a container image
    Dist(dist::Args),
    /// Feed made-up bytes to whatever reads them
    Fuzz(fuzz::Args),
    /// Try the engine's protocols in every order of steps that a few preemptions allow
    Loom(loom::Args),
    /// Plant faults in the engine, one at a time: each must be caught by a test
    Mutants(mutants::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Campaign(args) => campaign::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Tidy(args) => tidy::run(&args),
        Command::Docs(args) => docs::run(&args),
        Command::Dist(args) => dist::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Loom(args) => loom::run(&args),
        Command::Mutants(args) => mutants::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the workspace, independent of the current directory.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent()
        .expect("xtask lies in the root of the workspace")
        .to_owned()
}

/// The cargo that started us, to be run in the root of the workspace.
fn cargo() -> process::Command {
    let mut command = cargo_here();
    command.current_dir(root());
    command
}

/// The cargo that started us, to be run in the current directory.
fn cargo_here() -> process::Command {
    process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
