//! `hashcache completions SHELL`: the script that lets a shell complete our command line.

use std::io::Write as _;
use std::process::ExitCode;

use clap_complete::Shell;

use crate::args;

/// Prints the script for `shell`.
pub fn run(shell: Shell) -> anyhow::Result<ExitCode> {
    // Into memory first: clap_complete panics when it cannot write.
    let mut script = vec![];
    clap_complete::generate(shell, &mut args::command(), "hashcache", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
