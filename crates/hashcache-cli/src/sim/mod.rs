//! `hashcache sim`: counts and replays the requests of a cache's clients. The crate `hashcache-sim`
//! does the work; this module parses flags, opens files and prints.
//!
//! Each subcommand has a file; `input` opens traces.

mod consistency;
mod generate;
mod input;
mod replay;
mod stats;

use std::process::ExitCode;

use clap::Subcommand;

use consistency::ConsistencyArgs;
use generate::GenerateArgs;
use replay::ReplayArgs;
use stats::StatsArgs;

/// Subcommands under `hashcache sim`.
#[derive(Clone, Debug, Subcommand)]
pub enum SimCommand {
    /// Count the requests, URLs and bytes of a log, and the hits of a cache without bounds
    #[command(after_help = stats::HELP)]
    Stats(StatsArgs),
    /// Replay a log through the engine, or through models of other caches
    #[command(after_help = replay::HELP)]
    Replay(Box<ReplayArgs>),
    /// Print the requests of a benchmark as a log
    #[command(after_help = generate::HELP)]
    Generate(GenerateArgs),
    /// Compare schemes that keep a hierarchy of caches current
    #[command(after_help = consistency::HELP)]
    Consistency(ConsistencyArgs),
}

/// Runs the subcommand.
pub fn run(command: &SimCommand) -> anyhow::Result<ExitCode> {
    match command {
        SimCommand::Stats(args) => stats::run(args),
        SimCommand::Replay(args) => replay::run(args),
        SimCommand::Generate(args) => generate::run(args),
        SimCommand::Consistency(args) => consistency::run(args),
    }
}
