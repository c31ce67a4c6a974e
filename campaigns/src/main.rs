//! `cargo campaign NAME`: long tests and measurements of the proxy and the engine.
//!
//! One file a campaign, each with its `Args` and a `run`. To add one: a `mod` line, a variant of
//! `Command` whose doc comment is its help, and an arm in `main`.

mod conformance;
mod cpu;
mod device_speed;
mod followers;
mod h2spec;
mod hostile;
mod memory_limit;
mod memory_pressure;
mod models;
mod never_wrong;
mod paper_figure;
mod proxy_process;
mod purges;
mod range_storm;
mod real_clients;
mod report;
mod smuggling;
mod verdicts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Long tests and measurements of the proxy and the engine.
#[derive(Parser)]
#[command(name = "cargo campaign", bin_name = "cargo campaign")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Try curl, wget, git, apt and package tools through the proxy
    RealClients(real_clients::Args),
    /// Hold the memory of the proxy against what it was allowed
    MemoryLimit(memory_limit::Args),
    /// Let the proxy share a memory limit with others that want it
    MemoryPressure(memory_pressure::Args),
    /// Kill the proxy under load again and again and check every byte
    NeverWrong(never_wrong::Args),
    /// Let many clients share one fetch that is cut, slow or not to be shared
    Followers(followers::Args),
    /// Purge in every way, kill the proxy, and measure many purges on a slow disk
    Purges(purges::Args),
    /// Ask for random ranges of one object: each byte is to be fetched once
    RangeStorm(range_storm::Args),
    /// Hold HTTP/2 to clients against every case of h2spec
    H2spec(h2spec::Args),
    /// Attack the proxy with greedy clients and origins while an innocent client uses it
    Hostile(hostile::Args),
    /// Send requests and answers that have two meanings
    Smuggling(smuggling::Args),
    /// Run the public suite of HTTP caching tests in both modes
    Conformance(conformance::Args),
    /// Hold random operations on every policy against a map
    Models(models::ModelArgs),
    /// Have many threads do everything at once on every policy, contents checked
    Stress(models::StressArgs),
    /// Measure every policy on a modelled disk; writes a table and a picture to docs/
    PaperFigure(paper_figure::Args),
    /// Compare processor time of a hit with that of nginx
    Cpu(cpu::Args),
    /// Compare reads and writes of a device with those of fio
    DeviceSpeed(device_speed::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::RealClients(args) => real_clients::run(&args),
        Command::MemoryLimit(args) => memory_limit::run(&args),
        Command::MemoryPressure(args) => memory_pressure::run(&args),
        Command::NeverWrong(args) => never_wrong::run(&args),
        Command::Followers(args) => followers::run(&args),
        Command::Purges(args) => purges::run(&args),
        Command::RangeStorm(args) => range_storm::run(&args),
        Command::H2spec(args) => h2spec::run(&args),
        Command::Hostile(args) => hostile::run(&args),
        Command::Smuggling(args) => smuggling::run(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Models(args) => models::models(&args),
        Command::Stress(args) => models::stress(&args),
        Command::PaperFigure(args) => paper_figure::run(&args),
        Command::Cpu(args) => cpu::run(&args),
        Command::DeviceSpeed(args) => device_speed::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("campaign: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the workspace, wherever the command was started.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent()
        .expect("campaigns lies in the root of the workspace")
        .to_owned()
}
