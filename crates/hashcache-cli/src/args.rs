//! The command line: subcommands, their help, and flags that are no settings. The flags for
//! settings are in `hashcache_settings`.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use hashcache_settings::SettingArgs;

use crate::bench::BenchCommand;
use crate::ca::CaCommand;
use crate::explain::ExplainArgs;
use crate::healthcheck::HealthArgs;
use crate::import::ImportArgs;
use crate::link::LinkCommand;
use crate::list::ListArgs;
use crate::offline::OfflineArgs;
use crate::plan::PlanArgs;
use crate::purge::PurgeArgs;
use crate::report::ReportArgs;
#[cfg(feature = "sim")]
use crate::sim::SimCommand;
use crate::top::TopArgs;

/// The version, with the commit if the build environment gave one.
///
/// The variable has no prefix `HASHCACHE_`: set at run time, it would be an unknown setting.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let version = env!("CARGO_PKG_VERSION");
    match option_env!("GIT_HASH") {
        Some(commit) if !commit.is_empty() => format!("{version} ({commit})"),
        _ => version.to_owned(),
    }
});

/// A caching web proxy for slow links, small machines and large disks.
#[derive(Debug, Parser)]
#[command(name = "hashcache", version = VERSION.as_str(), propagate_version = true)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Start with `hashcache proxy`, then `export http_proxy=http://127.0.0.1:3128`.
Exit status: 0 success, 1 a problem was found, 2 the command failed.")]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands, the everyday ones first.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the caching proxy
    #[command(after_help = SETTINGS_HELP)]
    Proxy(Box<SettingArgs>),
    /// Print the proxy settings for programs such as curl, pip and npm
    #[command(after_help = format!("{ENV_HELP}\n\n{SETTINGS_HELP}"))]
    Env {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The settings.
        #[command(flatten)]
        settings: Box<SettingArgs>,
    },
    /// Explain how a running proxy would handle a request for a URL
    Explain(ExplainArgs),
    /// List the objects that a running proxy has stored
    List(ListArgs),
    /// Remove objects from the cache of a running proxy
    Purge(PurgeArgs),
    /// Watch a running proxy in the terminal
    Top(TopArgs),
    /// Show the savings of the last day, week, month or more
    Report(ReportArgs),
    /// Show or set whether the line to the Internet counts as down
    Offline(OfflineArgs),
    /// Check that a running proxy works, for containers and scripts
    Healthcheck(HealthArgs),
    /// Check, show or explain the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Convert a Squid configuration
    Import(ImportArgs),
    /// Make or show the certificate authority for intercepting HTTPS
    #[command(subcommand)]
    Ca(CaCommand),
    /// Make the key for links between two proxies, or show the links of a running proxy
    #[command(subcommand)]
    Link(LinkCommand),
    /// Forward TCP ports over the link to a parent, with each byte sent once
    #[command(after_help = format!("{WAN_HELP}\n\n{SETTINGS_HELP}"))]
    Wan(Box<WanArgs>),
    /// Compare the policies for a disk and an amount of memory, and recommend one
    Plan(Box<PlanArgs>),
    /// Verify every record of a cache that is not in use
    #[command(
        after_help = "Exit status: 0 no damage, 1 damage was found, 2 the check failed to run."
    )]
    Check {
        /// Cache file or device
        path: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show size, policy and layout of a cache that is not in use
    Inspect {
        /// Cache file or device
        path: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Measure the policies of the storage engine
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Replay logs of web caches, and count their requests
    #[cfg(feature = "sim")]
    #[command(subcommand)]
    Sim(SimCommand),
    /// Print the completion script for a shell
    #[command(
        after_help = "For example: hashcache completions bash > /etc/bash_completion.d/hashcache"
    )]
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Print the manual page, or write all manual pages to a directory
    Man {
        /// Directory for the pages: one per subcommand, and hashcache.toml.5
        directory: Option<PathBuf>,
    },
}

/// Subcommands under `hashcache config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check the configuration file and the environment, and print every error
    #[command(
        after_help = "Exit status: 0 no errors, 1 errors were found, 2 the file cannot be read."
    )]
    Check {
        /// Configuration file [default: the one that `hashcache proxy` reads]
        file: Option<PathBuf>,
    },
    /// Show every setting in effect and where it was set
    #[command(after_help = format!("{SHOW_HELP}\n\n{SETTINGS_HELP}"))]
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The settings.
        #[command(flatten)]
        settings: Box<SettingArgs>,
    },
    /// Print a commented configuration file with every setting and its default
    Example,
    /// Print the reference page of all settings in Markdown
    Reference,
}

const ENV_HELP: &str = "\
The output is for a shell: eval \"$(hashcache env)\". Settings that are not environment variables
are printed as comments. Give the flags of `hashcache proxy` that you start the proxy with.";

const SHOW_HELP: &str = "\
The output is a configuration file, unless --json is given. Takes the flags of `hashcache proxy`.";

/// Last part of the help for every subcommand that takes settings.
const SETTINGS_HELP: &str = "\
Each flag (--cache-size 20GiB) is also a key of the configuration file (cache_size = \"20GiB\") and
an environment variable (HASHCACHE_CACHE_SIZE=20GiB). A flag wins over a variable, and a variable
over the file. Lists: repeat the flag, or separate the values with commas.
The file has more settings, such as the table [limits]: `hashcache config example` lists all, with
defaults. Their variables have two underscores for the table: HASHCACHE_LIMITS__HEAD_TIME=10s.
Sizes: 64MiB, 20GiB, 1GB or bytes. Times: 250ms, 10s, 5m.";

const WAN_HELP: &str = "\
For example: hashcache wan --forward 5432=db.example:5432 --parent https://hub.example:3129
--parent-pin sha256:..., on the box near the clients; a program then connects to 127.0.0.1:5432.
Any TCP is carried as new data and references to data that both boxes have stored. A box that runs
`hashcache proxy` with a link does the same with `link_forward` in its configuration. Settings are
those of `hashcache proxy`, but `listen` has no effect; two processes cannot share one `cache`.";

/// Arguments for `hashcache wan`.
#[derive(Args, Clone, Debug)]
pub struct WanArgs {
    /// Port to forward: PORT=HOST:PORT on loopback, or ADDRESS:PORT=HOST:PORT
    #[arg(
        long,
        value_name = "PORT=HOST:PORT",
        value_delimiter = ',',
        display_order = 0
    )]
    forward: Vec<String>,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

impl WanArgs {
    /// Converts the arguments to arguments for `hashcache proxy`.
    pub fn into_settings(self) -> SettingArgs {
        let mut settings = self.settings;
        settings.extend("link_forward", "--forward", self.forward);
        settings
    }
}

/// The whole command line as clap knows it, for completions and manual pages.
pub fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        command().debug_assert();
    }
}
