//! The parts that all campaigns share: options, the binary, proxies with caches of their own, the
//! report.
//!
//! Used by `main`, which begins a campaign before its `run` and finishes it afterwards.
//!
//! Invariant: every file that a campaign writes is in [`Campaign::folder`] or in the folder of one
//! of its proxies; both are removed at the end, the first one unless `--keep` is given.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Context as _;
use tempfile::TempDir;

use crate::proxy_process::{self, ProxyCommand, ProxyProcess};
use crate::report::Report;

/// Options of every campaign.
#[derive(clap::Args, Default)]
pub struct Options {
    /// Run this binary instead of building one
    #[arg(long, value_name = "FILE", global = true)]
    binary: Option<PathBuf>,
    /// Write the report as JSON
    #[arg(long, global = true)]
    json: bool,
    /// Directory for cache files [default: that for temporary files]
    #[arg(long, value_name = "DIRECTORY", global = true)]
    directory: Option<PathBuf>,
    /// Keep the campaign's files (not the caches) and print where they are
    #[arg(long, global = true)]
    keep: bool,
}

impl Options {
    fn folder(&self, directory: &Path) -> anyhow::Result<TempDir> {
        let mut folder = folder_in(directory)?;
        if self.keep {
            folder.disable_cleanup(true);
            eprintln!("campaign: files are kept in {}", folder.path().display());
        }
        Ok(folder)
    }
}

/// A campaign that runs.
#[derive(Debug)]
pub struct Campaign {
    pub report: Report,
    named: Option<PathBuf>,
    binary: OnceLock<PathBuf>,
    directory: PathBuf,
    folder: TempDir,
}

impl Campaign {
    /// Begins the campaign with this name.
    pub fn begin(name: &str, options: &Options) -> anyhow::Result<Self> {
        let directory = options.directory.clone().unwrap_or_else(std::env::temp_dir);
        Ok(Self {
            report: Report::new(name, options.json),
            named: options.binary.clone(),
            binary: OnceLock::new(),
            folder: options.folder(&directory)?,
            directory,
        })
    }

    /// The binary to run: the named one, or a release build made now.
    pub fn binary(&self) -> anyhow::Result<&Path> {
        if let Some(binary) = self.binary.get() {
            return Ok(binary);
        }
        let binary = match &self.named {
            Some(binary) => binary
                .canonicalize()
                .with_context(|| format!("cannot find {}", binary.display()))?,
            None => proxy_process::build()?,
        };
        Ok(self.binary.get_or_init(|| binary))
    }

    /// A folder for the campaign's files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A proxy with a cache in a folder of its own and no access log, which may connect to
    /// loopback.
    pub fn proxy(&self) -> anyhow::Result<ProxyCommand> {
        let folder = folder_in(&self.directory)?;
        let command = ProxyCommand::new(self.binary()?, &folder.path().join("cache"))
            .flag("allow-destination", "127.0.0.0/8")
            .flag("access-log", "none");
        Ok(command.within(folder))
    }

    /// Adds a row: the proxy must not have ended or panicked. `which` says where it was used.
    pub fn check_running(&mut self, which: &str, process: &mut ProxyProcess) -> anyhow::Result<()> {
        let ended = process.ended()?;
        let what = match which {
            "" => "the proxy still runs".to_owned(),
            which => format!("{which}: the proxy still runs"),
        };
        self.report.check(
            what,
            ended.is_none() && !process.said().contains("panicked"),
            ended.map_or_else(String::new, |status| status.to_string()),
        );
        Ok(())
    }

    /// Ends the campaign; an error names the rows that failed.
    pub fn finish(self) -> anyhow::Result<()> {
        self.report.finish()
    }
}

fn folder_in(directory: &Path) -> anyhow::Result<TempDir> {
    tempfile::tempdir_in(directory)
        .with_context(|| format!("cannot make a folder in {}", directory.display()))
}
