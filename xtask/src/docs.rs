//! `cargo xtask docs`: writes the files whose text the program itself prints.
//!
//! The reference page ends with a mark of the sources of its text, which `tidy` compares. A test of
//! the command line compares the texts.

use std::fs;
use std::process::Stdio;

use anyhow::{Context as _, bail};

use crate::tidy::Tree;
use crate::tidy::printed::{REFERENCE, mark};
use crate::{cargo, root};

/// Arguments of `docs`.
#[derive(clap::Args)]
pub struct Args {}

/// The files, with the arguments of the program that print them.
const FILES: [(&str, [&str; 2]); 2] = [
    (REFERENCE, ["config", "reference"]),
    ("packaging/hashcache.toml", ["config", "example"]),
];

/// Writes every file.
pub fn run(_: &Args) -> anyhow::Result<()> {
    let mark = mark(&Tree::read(&root())?);
    for (path, arguments) in FILES {
        let mut text = printed(&arguments)?;
        if path == REFERENCE {
            text.push_str(&mark);
        }
        fs::write(root().join(path), text).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

fn printed(arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = cargo();
    command.args([
        "run",
        "--quiet",
        "--locked",
        "--package",
        "hashcache-cli",
        "--",
    ]);
    let output = command.args(arguments).stderr(Stdio::inherit()).output();
    let output = output.context("cannot run cargo")?;
    if !output.status.success() {
        bail!("`hashcache {}` failed", arguments.join(" "));
    }
    String::from_utf8(output.stdout).context("the program printed bytes that are no UTF-8")
}
