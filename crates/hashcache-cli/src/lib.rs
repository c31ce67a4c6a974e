//! The command `hashcache`: parses the command line, runs a subcommand, reports errors.
//!
//! A module for each subcommand; `args` defines the subcommands and flags, `settings` the settings
//! and their sources. Invariant: results are written to standard output, messages to standard
//! error; exit status 0 means success, 1 that the data has faults, 2 that the command failed.

// Input: arguments, settings, the admin listener; faults.
mod address;
mod admin_client;
mod args;
mod machine;
mod open_fault;
mod private;

// The subcommands.
mod bench;
mod ca;
mod check;
mod completions;
mod config;
mod env;
mod explain;
mod healthcheck;
mod import;
mod inspect;
mod link;
mod list;
mod man;
mod offline;
mod plan;
mod proxy;
mod purge;
mod report;
#[cfg(feature = "sim")]
mod sim;
mod top;

// Logging and output.
mod logging;
mod output;

use std::process::ExitCode;

use clap::Parser as _;
use hashcache_settings::{Environment, fault};

use args::{Cli, Command};
use output::tell;
use proxy::Role;

/// Exit status when the command failed.
const COULD_NOT: u8 = 2;

/// Runs this process's command line.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let environment = Environment::of_this_process();
    let outcome = match cli.command {
        Command::Proxy(settings) => proxy::run(&settings, Role::Proxy, &environment),
        Command::Wan(args) => proxy::run(&args.into_settings(), Role::Wan, &environment),
        Command::Check { path, json } => check::run(&path, json),
        Command::Inspect { path, json } => inspect::run(&path, json),
        Command::Plan(args) => plan::run(&args),
        Command::Bench(command) => bench::run(&command),
        #[cfg(feature = "sim")]
        Command::Sim(command) => sim::run(&command),
        Command::Purge(args) => purge::run(&args, &environment),
        Command::Report(args) => report::run(&args, &environment),
        Command::Top(args) => top::run(&args, &environment),
        Command::Explain(args) => explain::run(&args, &environment),
        Command::List(args) => list::run(&args, &environment),
        Command::Offline(args) => offline::run(&args, &environment),
        Command::Healthcheck(args) => healthcheck::run(&args, &environment),
        Command::Ca(command) => ca::run(&command, &environment),
        Command::Link(command) => link::run(&command, &environment),
        Command::Import(args) => import::run(&args),
        Command::Config(command) => config::run(command, &environment),
        Command::Env { json, settings } => env::run(json, &settings, &environment),
        Command::Completions { shell } => completions::run(shell),
        Command::Man { directory } => man::run(directory.as_deref()),
    };
    match outcome {
        Ok(status) => status,
        // The reader of our output has closed it, as `head` does: that is not an error.
        Err(error) if fault::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&fault::render(&error));
            ExitCode::from(COULD_NOT)
        }
    }
}

/// Prints help or the version as a result; every other message from clap is an error in our own
/// form.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Fails only if standard output is closed.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    match text.strip_prefix("error: ") {
        Some(what) => tell(&format!("hashcache: {what}")),
        None => tell(&text),
    }
    ExitCode::from(COULD_NOT)
}
