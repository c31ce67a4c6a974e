//! `cargo campaign NAME` (`cargo xtask campaign NAME`): runs a campaign of the laboratory.
//!
//! The laboratory is a workspace of its own, and an alias of cargo has no path that is right in
//! every directory, so the alias leads here.
//!
//! Invariant: the campaign gets the arguments, the directory and the terminal of its caller, and
//! its exit status is ours.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use crate::{cargo_here, root};

/// Arguments of `campaign`.
#[derive(clap::Args)]
pub struct Args {
    /// The name of a campaign and its arguments; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Becomes the cargo that builds and runs the campaigns; returns only if it cannot be started.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let failure = cargo_here()
        .args(["run", "--quiet", "--package", "campaigns"])
        .arg("--manifest-path")
        .arg(root().join("lab/Cargo.toml"))
        .arg("--")
        .args(&args.words)
        .exec();
    Err(anyhow::Error::new(failure).context("cannot run cargo"))
}
