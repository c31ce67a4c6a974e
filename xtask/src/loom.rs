//! `cargo xtask loom`: runs the engine's concurrency models, each in every order of steps that a
//! few preemptions allow.
//!
//! The models are in `crates/hashcache/src/models.rs`. They are built separately, because `--cfg
//! loom` changes every lock.
//!
//! Cost: a build of some crates, then some seconds.

use anyhow::{Context as _, bail};

use crate::{cargo, root};

/// Arguments of `loom`.
#[derive(clap::Args)]
pub struct Args {
    /// Preemptions at most in one order of steps
    #[arg(long, default_value_t = 3)]
    preemptions: u32,
    /// Only models with this in their names
    model: Option<String>,
}

/// Builds and runs the models.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let target = root().join(target).join("loom");
    let mut command = cargo();
    command
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", target)
        .env("LOOM_MAX_PREEMPTIONS", args.preemptions.to_string())
        .args(["test", "--locked", "-p", "hashcache", "--lib"])
        .arg(args.model.as_deref().unwrap_or("models::"));
    let status = command.status().context("cannot run cargo")?;
    if !status.success() {
        bail!("a model failed: it says which, and `LOOM_LOG=trace` its steps");
    }
    Ok(())
}
