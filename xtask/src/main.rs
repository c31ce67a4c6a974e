//! `cargo xtask`: checks and measurements of the workspace, written in Rust like the rest.
//!
//! One file a command, each with its `Args` and a `run`. To add one: a `mod` line, a variant of
//! `Command` whose doc comment is its help, and an arm in `main`.

mod check;
mod conformance;
mod cpu;
mod device_speed;
mod followers;
mod fuzz;
mod h2spec;
mod hostile;
mod loom;
mod memory_limit;
mod memory_pressure;
mod models;
mod mutants;
mod never_wrong;
mod outcomes;
mod paper_figure;
mod proxy_process;
mod purges;
mod range_storm;
mod real_clients;
mod report;
mod smuggling;
mod tidy;
mod verdicts;

use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

use clap::{Parser, Subcommand};

/// Checks and measurements of the workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every check that must pass before a change goes in, tests apart
    Check(check::Args),
    /// Check what rustc and clippy do not know: heads, arrows, code map, disk format, words
    Tidy(tidy::Args),
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
    /// Feed made-up bytes to whatever reads them
    Fuzz(fuzz::Args),
    /// Run the public suite of HTTP caching tests in both modes
    Conformance(conformance::Args),
    /// Hold random operations on every policy against a map
    Models(models::ModelArgs),
    /// Have many threads do everything at once on every policy, contents checked
    Stress(models::StressArgs),
    /// Try the engine's protocols in every order of steps that a few preemptions allow
    Loom(loom::Args),
    /// Plant faults in the engine, one at a time: each must be caught by a test
    Mutants(mutants::Args),
    /// Measure every policy on a modelled disk; writes a table and a picture to docs/
    PaperFigure(paper_figure::Args),
    /// Compare processor time of a hit with that of nginx
    Cpu(cpu::Args),
    /// Compare reads and writes of a device with those of fio
    DeviceSpeed(device_speed::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Check(args) => check::run(&args),
        Command::Tidy(args) => tidy::run(&args),
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
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Models(args) => models::models(&args),
        Command::Stress(args) => models::stress(&args),
        Command::Loom(args) => loom::run(&args),
        Command::Mutants(args) => mutants::run(&args),
        Command::PaperFigure(args) => paper_figure::run(&args),
        Command::Cpu(args) => cpu::run(&args),
        Command::DeviceSpeed(args) => device_speed::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the workspace, wherever the command was started.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent()
        .expect("xtask lies in the root of the workspace")
        .to_owned()
}

/// The cargo that runs us, in the root of the workspace.
fn cargo() -> process::Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = process::Command::new(program);
    command.current_dir(root());
    command
}
