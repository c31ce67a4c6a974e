//! `hashcache man [DIR]`: manual pages, generated from the command line and the rows of the
//! settings.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use hashcache_settings::fault::Fault;
use hashcache_settings::manual;

use crate::args;

/// The page about the configuration file.
const CONFIGURATION: &str = "hashcache.toml.5";

/// Prints the main page, or writes all pages to `directory` and makes it if needed.
pub fn run(directory: Option<&Path>) -> anyhow::Result<ExitCode> {
    match directory {
        Some(directory) => {
            let fault = || {
                Fault::new(format!(
                    "cannot write manual pages to {}",
                    directory.display()
                ))
            };
            fs::create_dir_all(directory).with_context(fault)?;
            clap_mangen::generate_to(args::command(), directory).with_context(fault)?;
            fs::write(directory.join(CONFIGURATION), manual::page()).with_context(fault)?;
        }
        None => {
            let mut page = vec![];
            clap_mangen::Man::new(args::command()).render(&mut page)?;
            std::io::stdout().write_all(&page)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
