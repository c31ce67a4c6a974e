//! The command line: subcommands, flags and their help.
//!
//! Flags that are settings stay text here. `settings::keys` parses them, as it parses values of
//! files and variables, so a value has the same syntax and the same errors everywhere.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::PossibleValuesParser;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use hashcache_proxy::{HostList, Offline};

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
use crate::settings::{
    CHOICES, COOKIES, DIRECTS, FAILS, FORMATS, GATEWAYS, GROUPS, Given, IOS, PLACEMENTS, POLICIES,
    ROWS, Source, Topic, Written, find_flag, help,
};
#[cfg(feature = "sim")]
use crate::sim::SimCommand;
use crate::top::TopArgs;

const LISTEN: &str = Topic::Listen.heading();
const CACHE: &str = Topic::Cache.heading();
const ACCESS: &str = Topic::Access.heading();
const HTTPS: &str = Topic::Https.heading();
const MIRRORS: &str = Topic::Mirrors.heading();
const PEERS: &str = Topic::Peers.heading();
const LOGS: &str = Topic::Logs.heading();
const EXPERT: &str = Topic::Expert.heading();

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
    /// Say what a running proxy would do with a request for a URL, and why
    Explain(ExplainArgs),
    /// List what a running proxy has stored
    List(ListArgs),
    /// Remove objects from the cache of a running proxy
    Purge(PurgeArgs),
    /// Show what a running proxy does, in the terminal
    Top(TopArgs),
    /// Show what the cache has saved in the last day, week, month or more
    Report(ReportArgs),
    /// Show or set whether the line to the Internet counts as down
    Offline(OfflineArgs),
    /// Ask a running proxy whether it works, for containers and scripts
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
    /// Replay logs of web caches, and count what they have
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

/// Subcommands of `hashcache config`.
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
}

const ENV_HELP: &str = "\
The output is for a shell: eval \"$(hashcache env)\". Settings that are not environment variables
are printed as comments. Give the flags of `hashcache proxy` that you start the proxy with.";

const SHOW_HELP: &str = "\
The output is a configuration file, unless --json is given. Takes the flags of `hashcache proxy`.";

/// Ends the help of every subcommand that takes settings.
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

/// Arguments of `hashcache wan`.
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
    /// The same as arguments of `hashcache proxy`.
    pub fn into_settings(self) -> SettingArgs {
        let mut settings = self.settings;
        settings.link_forward.extend(self.forward);
        settings
    }
}

/// Flags of all settings. The ones that take a list may be repeated, or take commas.
///
/// The help of each is its line in `settings::reference`.
#[derive(Args, Clone, Debug, Default)]
pub struct SettingArgs {
    /// Configuration file (TOML) [default: ~/.config or /etc, hashcache/hashcache.toml]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    #[arg(help_heading = LISTEN, help = help("listen"))]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    listen: Vec<String>,
    #[arg(help_heading = LISTEN, help = help("accelerate"), long, value_name = "URL")]
    accelerate: Option<String>,
    #[arg(help_heading = LISTEN, help = help("accelerate_host"))]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    accelerate_host: Vec<String>,
    #[arg(help_heading = LISTEN, help = help("admin"), long, value_name = "ADDR")]
    admin: Option<String>,
    #[arg(help_heading = LISTEN, help = help("public_url"), long, value_name = "URL")]
    public_url: Option<String>,
    #[arg(help_heading = LISTEN, help = help("fail"))]
    #[arg(long, value_name = "HOW", value_parser = words(&FAILS))]
    fail: Option<String>,
    #[arg(help_heading = LISTEN, help = help("pac_proxies"))]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pac_proxies: Vec<String>,

    #[arg(help_heading = CACHE, help = help("cache"), long, value_name = "PATH")]
    cache: Vec<String>,
    #[arg(help_heading = CACHE, help = help("cache_size"), long, value_name = "SIZE")]
    cache_size: Option<String>,
    #[arg(help_heading = CACHE, help = help("memory"), long, value_name = "SIZE")]
    memory: Option<String>,
    #[arg(help_heading = CACHE, help = help("max_object_size"), long, value_name = "SIZE")]
    max_object_size: Option<String>,
    #[arg(help_heading = CACHE, help = help("policy"))]
    #[arg(long, value_name = "NAME", value_parser = words(&POLICIES))]
    policy: Option<String>,

    #[arg(help_heading = ACCESS, help = help("allow_client"))]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    allow_client: Vec<String>,
    #[arg(help_heading = ACCESS, help = help("proxy_protocol_from"))]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    proxy_protocol_from: Vec<String>,
    #[arg(help_heading = ACCESS, help = help("proxy_protocol_to"))]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    proxy_protocol_to: Vec<String>,
    #[arg(help_heading = ACCESS, help = help("allow_purge"))]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    allow_purge: Vec<String>,
    #[arg(help_heading = ACCESS, help = help("admin_token_file"), long, value_name = "FILE")]
    admin_token_file: Option<String>,
    #[arg(help_heading = ACCESS, help = help("allow_port"))]
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    allow_port: Vec<String>,
    #[arg(help_heading = ACCESS, help = help("gateways"))]
    #[arg(long, value_name = "SCHEME", value_delimiter = ',', value_parser = words(&GATEWAYS))]
    gateways: Vec<String>,
    #[arg(help_heading = ACCESS, help = help("allow_connect_port"))]
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    allow_connect_port: Vec<String>,
    #[arg(help_heading = ACCESS, help = help("allow_destination"))]
    #[arg(long, value_name = "CIDR|DOMAIN@SERVER", value_delimiter = ',')]
    allow_destination: Vec<String>,
    #[arg(help_heading = ACCESS, help = help("deny_destination"))]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    deny_destination: Vec<String>,

    #[arg(help_heading = HTTPS, help = help("tls_cert"), long, value_name = "FILE")]
    tls_cert: Vec<String>,
    #[arg(help_heading = HTTPS, help = help("tls_key"), long, value_name = "FILE")]
    tls_key: Vec<String>,
    #[arg(help_heading = HTTPS, help = help("upstream_ca"), long, value_name = "FILE")]
    upstream_ca: Vec<String>,
    #[arg(help_heading = HTTPS, help = help("intercept.ca"), long, value_name = "DIR")]
    intercept_ca: Option<String>,
    #[arg(help_heading = HTTPS, help = help("intercept.hosts"))]
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    intercept: Vec<String>,
    #[arg(help_heading = HTTPS, help = help("intercept.lists"))]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = words(&HostList::ALL))]
    intercept_list: Vec<String>,

    #[arg(help_heading = MIRRORS, help = help("mirror"))]
    #[arg(long, value_name = "KIND[:NAME]=URL", value_delimiter = ',')]
    mirror: Vec<String>,

    #[arg(help_heading = PEERS, help = help("parent"), long, value_name = "URL")]
    parent: Vec<String>,
    #[arg(help_heading = PEERS, help = help("parent_pin"), long, value_name = "PIN")]
    parent_pin: Option<String>,
    #[arg(help_heading = PEERS, help = help("link_listen"), long, value_name = "ADDR")]
    link_listen: Option<String>,
    #[arg(help_heading = PEERS, help = help("link_children"))]
    #[arg(long, value_name = "PIN", value_delimiter = ',')]
    link_children: Vec<String>,
    #[arg(help_heading = PEERS, help = help("link_forward"))]
    #[arg(long, value_name = "PORT=HOST:PORT", value_delimiter = ',')]
    link_forward: Vec<String>,
    #[arg(help_heading = PEERS, help = help("link_hints"))]
    #[arg(long, value_name = "BOOL", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true")]
    link_hints: Option<String>,
    #[arg(help_heading = PEERS, help = help("link_dir"), long, value_name = "DIR")]
    link_dir: Option<String>,
    #[arg(help_heading = PEERS, help = help("direct"))]
    #[arg(long, value_name = "WHEN", value_parser = words(&DIRECTS))]
    direct: Option<String>,
    #[arg(help_heading = PEERS, help = help("peer_choice"))]
    #[arg(long, value_name = "WHICH", value_parser = words(&CHOICES))]
    peer_choice: Option<String>,
    #[arg(help_heading = PEERS, help = help("icp"), long, value_name = "[ADDR:]PORT")]
    icp: Option<String>,
    #[arg(help_heading = PEERS, help = help("htcp"), long, value_name = "[ADDR:]PORT")]
    htcp: Option<String>,
    #[arg(help_heading = PEERS, help = help("summary_threshold"))]
    #[arg(long, value_name = "PERCENT")]
    summary_threshold: Option<String>,

    #[arg(help_heading = LOGS, help = help("access_log"), long, value_name = "PATH")]
    access_log: Option<String>,
    #[arg(help_heading = LOGS, help = help("log_format"))]
    #[arg(long, value_name = "FORMAT", value_parser = words(&FORMATS))]
    log_format: Option<String>,
    #[arg(help_heading = LOGS, help = help("log_strip_query"))]
    #[arg(long, value_name = "BOOL", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true")]
    log_strip_query: Option<String>,
    #[arg(help_heading = LOGS, help = help("log_anonymize"))]
    #[arg(long, value_name = "BOOL", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true")]
    log_anonymize: Option<String>,

    #[arg(help_heading = EXPERT, help = help("name"), long, value_name = "NAME")]
    name: Option<String>,
    #[arg(help_heading = EXPERT, help = help("workers"), long, value_name = "COUNT")]
    workers: Option<String>,
    #[arg(help_heading = EXPERT, help = help("collapse_wait"), long, value_name = "TIME")]
    collapse_wait: Option<String>,
    #[arg(help_heading = EXPERT, help = help("offline"))]
    #[arg(long, value_name = "MODE", value_parser = words(&Offline::WORDS))]
    offline: Option<String>,
    #[arg(help_heading = EXPERT, help = help("set_cookie"))]
    #[arg(long, value_name = "HOW", value_parser = words(&COOKIES))]
    set_cookie: Option<String>,
    #[arg(help_heading = EXPERT, help = help("harmless_fields"))]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    harmless_fields: Vec<String>,
    #[arg(help_heading = EXPERT, long)]
    #[arg(help = "Do not use the freshness rules that ship with the program")]
    no_default_rules: bool,
    #[arg(help_heading = EXPERT, help = help("object_size"), long, value_name = "SIZE")]
    object_size: Option<String>,
    #[arg(help_heading = EXPERT, help = help("block"), long, value_name = "SIZE")]
    block: Option<String>,
    #[arg(help_heading = EXPERT, help = help("held_share"), long, value_name = "PERCENT")]
    held_share: Option<String>,
    #[arg(help_heading = EXPERT, help = help("rows"))]
    #[arg(long, value_name = "COUNT", value_parser = words(&ROWS))]
    rows: Option<String>,
    #[arg(help_heading = EXPERT, help = help("grouped"))]
    #[arg(long, value_name = "BOOL", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true")]
    grouped: Option<String>,
    #[arg(help_heading = EXPERT, help = help("group_by"))]
    #[arg(long, value_name = "WHAT", value_parser = words(&GROUPS))]
    group_by: Option<String>,
    #[arg(help_heading = EXPERT, help = help("placement"))]
    #[arg(long, value_name = "WHAT", value_parser = words(&PLACEMENTS))]
    placement: Option<String>,
    #[arg(help_heading = EXPERT, help = help("readmission"))]
    #[arg(long, value_name = "BOOL", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true")]
    readmission: Option<String>,
    #[arg(help_heading = EXPERT, help = help("io"))]
    #[arg(long, value_name = "HOW", value_parser = words(&IOS))]
    io: Option<String>,
    #[arg(help_heading = EXPERT, help = help("nat64_prefix"))]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    nat64_prefix: Vec<String>,
}

impl SettingArgs {
    /// The flags that were given, each as the source of its value.
    pub fn given(&self) -> Vec<Given> {
        let many = |words: &Vec<String>| (!words.is_empty()).then(|| Written::Many(words.clone()));
        let one = |word: &Option<String>| word.clone().map(Written::One);
        let all = [
            ("listen", many(&self.listen)),
            ("accelerate", one(&self.accelerate)),
            ("accelerate-host", many(&self.accelerate_host)),
            ("tls-cert", many(&self.tls_cert)),
            ("tls-key", many(&self.tls_key)),
            ("mirror", many(&self.mirror)),
            ("parent", many(&self.parent)),
            ("parent-pin", one(&self.parent_pin)),
            ("link-listen", one(&self.link_listen)),
            ("link-children", many(&self.link_children)),
            ("link-forward", many(&self.link_forward)),
            ("link-hints", one(&self.link_hints)),
            ("link-dir", one(&self.link_dir)),
            ("direct", one(&self.direct)),
            ("peer-choice", one(&self.peer_choice)),
            ("icp", one(&self.icp)),
            ("htcp", one(&self.htcp)),
            ("summary-threshold", one(&self.summary_threshold)),
            ("intercept-ca", one(&self.intercept_ca)),
            ("intercept", many(&self.intercept)),
            ("intercept-list", many(&self.intercept_list)),
            ("public-url", one(&self.public_url)),
            ("fail", one(&self.fail)),
            ("pac-proxies", many(&self.pac_proxies)),
            ("cache", many(&self.cache)),
            ("cache-size", one(&self.cache_size)),
            ("memory", one(&self.memory)),
            ("policy", one(&self.policy)),
            ("rows", one(&self.rows)),
            ("grouped", one(&self.grouped)),
            ("group-by", one(&self.group_by)),
            ("placement", one(&self.placement)),
            ("readmission", one(&self.readmission)),
            ("io", one(&self.io)),
            ("allow-destination", many(&self.allow_destination)),
            ("deny-destination", many(&self.deny_destination)),
            ("allow-client", many(&self.allow_client)),
            ("proxy-protocol-from", many(&self.proxy_protocol_from)),
            ("proxy-protocol-to", many(&self.proxy_protocol_to)),
            ("offline", one(&self.offline)),
            ("upstream-ca", many(&self.upstream_ca)),
            ("allow-purge", many(&self.allow_purge)),
            ("nat64-prefix", many(&self.nat64_prefix)),
            ("harmless-fields", many(&self.harmless_fields)),
            ("allow-port", many(&self.allow_port)),
            ("gateways", many(&self.gateways)),
            ("allow-connect-port", many(&self.allow_connect_port)),
            ("admin", one(&self.admin)),
            ("admin-token-file", one(&self.admin_token_file)),
            ("access-log", one(&self.access_log)),
            ("log-format", one(&self.log_format)),
            ("log-strip-query", one(&self.log_strip_query)),
            ("log-anonymize", one(&self.log_anonymize)),
            ("name", one(&self.name)),
            ("workers", one(&self.workers)),
            ("max-object-size", one(&self.max_object_size)),
            ("held-share", one(&self.held_share)),
            ("object-size", one(&self.object_size)),
            ("block", one(&self.block)),
            ("set-cookie", one(&self.set_cookie)),
            ("collapse-wait", one(&self.collapse_wait)),
            (
                "no-default-rules",
                self.no_default_rules
                    .then(|| Written::One("true".to_owned())),
            ),
        ];
        all.into_iter()
            .filter_map(|(flag, written)| {
                let found =
                    find_flag(flag).expect("the test below finds every flag among the keys");
                Some(Given {
                    found,
                    written: written?,
                    source: Source::Flag(format!("--{flag}")),
                })
            })
            .collect()
    }
}

/// The whole command line as clap knows it, for completions and manual pages.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Accepts, and lets shells complete, the words of a choice.
fn words<T>(words: &[(&'static str, T)]) -> PossibleValuesParser {
    PossibleValuesParser::new(words.iter().map(|&(word, _)| word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags that are not settings: they name a configuration file, or belong to clap.
    const OTHERS: [&str; 3] = ["config", "help", "version"];

    fn flags() -> Vec<String> {
        let command = SettingArgs::augment_args(clap::Command::new("test"));
        let longs = command
            .get_arguments()
            .filter_map(|arg| arg.get_long().map(str::to_owned));
        longs
            .filter(|long| !OTHERS.contains(&long.as_str()))
            .collect()
    }

    #[test]
    fn the_command_line_holds_together() {
        command().debug_assert();
    }

    #[test]
    fn every_flag_is_a_key_of_the_file_and_a_variable() {
        assert!(flags().contains(&"cache-size".to_owned()));
        for flag in flags() {
            assert!(find_flag(&flag).is_some(), "{flag}");
        }
    }

    #[test]
    fn every_flag_arrives_under_its_own_name() {
        for flag in flags() {
            let argument = match flag.as_str() {
                "policy" => format!("--{flag}=set"),
                "rows" => format!("--{flag}=one"),
                "group-by" => format!("--{flag}=origin"),
                "placement" => format!("--{flag}=host"),
                "io" => format!("--{flag}=threads"),
                "fail" => format!("--{flag}=closed"),
                "offline" => format!("--{flag}=auto"),
                "direct" => format!("--{flag}=never"),
                "peer-choice" => format!("--{flag}=carp"),
                "set-cookie" => format!("--{flag}=rfc"),
                "log-format" => format!("--{flag}=json"),
                "no-default-rules" => format!("--{flag}"),
                "intercept-list" => format!("--{flag}=cacheable"),
                "gateways" => format!("--{flag}=ftp"),
                _ => format!("--{flag}=7"),
            };
            let cli = Cli::try_parse_from(["hashcache", "config", "show", &argument]).unwrap();
            let Command::Config(ConfigCommand::Show { settings, .. }) = cli.command else {
                panic!("another command")
            };
            let given = settings.given();
            assert_eq!(given.len(), 1, "{flag}");
            assert_eq!(given[0].source, Source::Flag(format!("--{flag}")));
            let key = match flag.as_str() {
                "intercept" => "intercept.hosts",
                "intercept-ca" => "intercept.ca",
                "intercept-list" => "intercept.lists",
                _ => &flag.replace('-', "_"),
            };
            assert_eq!(given[0].found.spelling, key);
        }
    }

    #[test]
    fn lists_are_given_by_repeating_a_flag_or_with_commas() {
        let line = [
            "hashcache",
            "config",
            "show",
            "--listen=1.1.1.1:1,2.2.2.2:2",
            "--listen",
            "3.3.3.3:3",
        ];
        let Command::Config(ConfigCommand::Show { settings, .. }) =
            Cli::try_parse_from(line).unwrap().command
        else {
            panic!("another command")
        };
        let written = ["1.1.1.1:1", "2.2.2.2:2", "3.3.3.3:3"]
            .map(str::to_owned)
            .to_vec();
        assert_eq!(settings.given()[0].written, Written::Many(written));
    }
}
