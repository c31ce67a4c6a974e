//! `hashcache completions SHELL`: prints the completion script for a shell.

use std::io::Write as _;
use std::process::ExitCode;

use clap_complete::Shell;

use crate::args;

/// Prints the script for `shell`.
pub fn run(shell: Shell) -> anyhow::Result<ExitCode> {
    // Written to memory first: clap_complete panics when a write fails.
    let mut script = vec![];
    clap_complete::generate(shell, &mut args::command(), "hashcache", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
