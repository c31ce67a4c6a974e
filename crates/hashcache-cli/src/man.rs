//! `hashcache man [DIR]`: manual pages, made from what the command line says of itself.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::args;
use crate::fault::Fault;

/// Prints the main page, or writes it and one per subcommand to `directory`, made if needed.
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
        }
        None => {
            let mut page = vec![];
            clap_mangen::Man::new(args::command()).render(&mut page)?;
            std::io::stdout().write_all(&page)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
