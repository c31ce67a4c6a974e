//! The command line: subcommands, flags and their help.
//!
//! Flags that are settings stay text here: `settings::keys` reads them, as it reads files and
//! variables, so that a size is the same size wherever it is written and is refused in one voice.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::PossibleValuesParser;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use hashcache_proxy::HostList;

use crate::bench::BenchCommand;
use crate::ca::CaCommand;
use crate::plan::PlanArgs;
use crate::purge::PurgeArgs;
use crate::settings::{
    COOKIES, FAILS, FORMATS, GROUPS, Given, IOS, POLICIES, ROWS, Source, Written, find_flag,
};

/// The version, with the commit when the build was told one.
///
/// The variable has no `HASHCACHE_` before it: set at run time, it would be an unknown setting.
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
#[command(after_help = "Exit status: 0 all well, 1 the data is not well, 2 could not.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the caching proxy
    #[command(after_help = SETTINGS_HELP)]
    Proxy(Box<SettingArgs>),
    /// Verify every record of a cache that is not in use
    #[command(after_help = "Exit status: 0 all well, 1 something is damaged, 2 could not check.")]
    Check {
        /// The cache file or device
        path: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what a cache that is not in use is made of
    Inspect {
        /// The cache file or device
        path: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Compare the policies on a disk and a memory budget, and choose one
    Plan(Box<PlanArgs>),
    /// Measure the policies of the engine
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Purge objects of a proxy that runs on this machine
    Purge(PurgeArgs),
    /// Make or show the certificate authority of a proxy that intercepts TLS
    #[command(subcommand)]
    Ca(CaCommand),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the settings of the programs that are to use a proxy
    #[command(
        long_about = "Print the settings of the programs that are to use a proxy. Takes the flags \
        of `hashcache proxy`. The output is for a shell: eval \"$(hashcache env)\"; what cannot be \
        said by variables stands in comments."
    )]
    #[command(after_help = SETTINGS_HELP)]
    Env {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The settings.
        #[command(flatten)]
        settings: Box<SettingArgs>,
    },
    /// Print completions for a shell
    #[command(
        after_help = "For example: hashcache completions bash > /etc/bash_completion.d/hashcache"
    )]
    Completions {
        /// The shell to complete in
        shell: Shell,
    },
    /// Print the manual page, or write those of all subcommands
    Man {
        /// Directory to write the pages to
        directory: Option<PathBuf>,
    },
}

/// What can be done with a configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration file together with the environment, and tell all that is wrong
    #[command(
        after_help = "Exit status: 0 all well, 1 the configuration is wrong, 2 could not read it."
    )]
    Check {
        /// The file; without it, the one that `hashcache proxy` would read
        file: Option<PathBuf>,
    },
    /// Show every setting that would hold, and where it is from
    #[command(
        long_about = "Show every setting that would hold, and where it is from. Takes the \
        flags of `hashcache proxy`. Without --json, the output is itself a configuration file."
    )]
    #[command(after_help = SETTINGS_HELP)]
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The settings.
        #[command(flatten)]
        settings: Box<SettingArgs>,
    },
}

/// Ends the help of every subcommand that takes settings.
const SETTINGS_HELP: &str = "\
Every flag is also a key of the configuration file (cache_size = \"20GiB\") and an environment
variable (HASHCACHE_CACHE_SIZE=20GiB, lists with commas, HASHCACHE_LIMITS__HEAD_TIME for keys of
tables; of these, those of [intercept] alone have flags). Flags win over variables, these over the
file. `hashcache config show` lists all keys.
Sizes: 64MiB, 20GiB, 1GB or plain bytes. Times: 250ms, 10s, 5m.";

/// Flags of all settings; those of lists may be repeated or take several values with commas.
#[derive(Args, Clone, Debug, Default)]
pub struct SettingArgs {
    /// Configuration file (TOML) [default: hashcache/hashcache.toml in ~/.config or /etc, if there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address to accept clients on, after http://, h2c:// or https:// if need be [default:
    /// 127.0.0.1:3128]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    listen: Vec<String>,
    /// Stand in front of this origin (http://… or https://…) instead of being a forward proxy
    #[arg(long, value_name = "URL")]
    accelerate: Option<String>,
    /// Name that the accelerated site goes by; requests for others get 421 [default: any]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    accelerate_host: Vec<String>,
    /// Certificate of the accelerated site, with its chain (PEM); read anew on HUP
    #[arg(long, value_name = "FILE")]
    tls_cert: Vec<String>,
    /// Its key (PEM); several pairs are told apart by the names in the certificates
    #[arg(long, value_name = "FILE")]
    tls_key: Vec<String>,
    /// Mirror a registry under /mirror/NAME/: pypi=URL, npm=URL, crates=URL or apt=URL
    ///
    /// URL is what clients of the registry are told; behind it, and a blank, stand the other hosts
    /// that its index says files are on. NAME is the kind if none is given.
    #[arg(long, value_name = "KIND[:NAME]=URL", value_delimiter = ',')]
    mirror: Vec<String>,
    /// Directory of the certificate authority (`hashcache ca init`) by which TLS may end here, so
    /// that what passes can be stored; it ends here for hosts that are named alone
    #[arg(long, value_name = "DIR")]
    intercept_ca: Option<String>,
    /// Host whose TLS ends here, or `*.example.org` for all below one
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    intercept: Vec<String>,
    /// List of hosts whose TLS ends here: `cacheable`, those that answer all who ask alike
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = words(&HostList::ALL))]
    intercept_list: Vec<String>,
    /// URL under which clients reach this proxy, where their requests do not tell
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// What browsers configured by /proxy.pac do when this proxy is gone [default: open]
    #[arg(long, value_parser = words(&FAILS))]
    fail: Option<String>,
    /// Cache file or device [default: hashcache/cache.img in ~/.cache, for root in /var/cache]
    #[arg(long, value_name = "PATH")]
    cache: Vec<String>,
    /// Size of the cache file [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<String>,
    /// Memory for the index and for hot content [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Where objects are put: a log with an index in memory, or sets without one [default: log]
    #[arg(long, value_parser = words(&POLICIES))]
    policy: Option<String>,
    /// Rows of the index of `log` that a name can be in: `one` as published [default: two]
    #[arg(long, value_parser = words(&ROWS))]
    rows: Option<String>,
    /// Write and read together what a page is made of: for disks that turn, with `log`, `log-lru`
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true")]
    grouped: Option<String>,
    /// What `--grouped` takes for one group: a page of a client, or an origin [default: page]
    #[arg(long, value_parser = words(&GROUPS))]
    group_by: Option<String>,
    /// Keep what is in use when the log comes round to it, with `log` and `log-lru`
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true")]
    readmission: Option<String>,
    /// Who reads the disk: the kernel by io_uring, or threads; `auto` is io_uring where the kernel
    /// lets us, `uring` does not start where it does not [default: auto]
    #[arg(long, value_parser = words(&IOS))]
    io: Option<String>,
    /// Also allow destinations in this network (private ones are refused by default)
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    allow_destination: Vec<String>,
    /// Refuse destinations in this network
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    deny_destination: Vec<String>,
    /// Also allow clients of this network (by default: this machine and private networks)
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    allow_client: Vec<String>,
    /// File with certificates of authorities to believe beside those of the platform (PEM)
    #[arg(long, value_name = "FILE")]
    upstream_ca: Vec<String>,
    /// Let clients of this network purge, and no others (by default: this machine, and nobody in
    /// front of a site)
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    allow_purge: Vec<String>,
    /// Prefix of a NAT64 translator of this network: its addresses are judged as the IPv4 ones that
    /// they embed
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    nat64_prefix: Vec<String>,
    /// Port, or range of ports, at which clients may ask for pages [default: 80, 443, 21, 70, 210,
    /// 280, 488, 591, 777, 1024-65535]
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    allow_port: Vec<String>,
    /// Port, or range of ports, that CONNECT may go to [default: 443]
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    allow_connect_port: Vec<String>,
    /// Where metrics and health are served, or `none` [default: 127.0.0.1:3180]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// File with the token that `POST /-/purge` and `hashcache purge` need
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<String>,
    /// Access log: a file, `-` for standard output, or `none` [default: none]
    #[arg(long, value_name = "PATH")]
    access_log: Option<String>,
    /// Form of the lines of the access log [default: squid]
    #[arg(long, value_parser = words(&FORMATS))]
    log_format: Option<String>,
    /// Leave query strings out of the access log
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true")]
    log_strip_query: Option<String>,
    /// Write networks of clients (/24, /48) to the access log, not their addresses
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true")]
    log_anonymize: Option<String>,
    /// Name of this proxy in Via and Cache-Status [default: hashcache]
    #[arg(long)]
    name: Option<String>,
    /// Threads that serve clients [default: one per processor]
    #[arg(long, value_name = "COUNT")]
    workers: Option<String>,
    /// Largest object to store [default: one eighth of the cache size]
    #[arg(long, value_name = "SIZE")]
    max_object_size: Option<String>,
    /// Share that memory holds, in 1/100: of the positions with `log-lru` [default: 50], of the
    /// sets with `set-mem-lru` [default: 40]
    #[arg(long, value_name = "PERCENT")]
    held_share: Option<String>,
    /// Mean size of an object, which sizes the index [default: 8KiB]
    #[arg(long, value_name = "SIZE")]
    object_size: Option<String>,
    /// Slots of `set-mem`, `set` and `basic`: small ones make room on a small disk [default: 8KiB]
    #[arg(long, value_name = "SIZE")]
    block: Option<String>,
    /// What a response that sets a cookie needs to be stored: the origin's word that it is for
    /// everybody, or nothing more than others [default: protect]
    #[arg(long, value_parser = words(&COOKIES))]
    set_cookie: Option<String>,
    /// How long a request waits for the same one that is under way: satellite (as long as that may
    /// take), lan (twice what the origin usually takes), or a time [default: satellite]
    #[arg(long, value_name = "TIME")]
    collapse_wait: Option<String>,
    /// Do without the freshness rules that ship with the program
    #[arg(long)]
    no_default_rules: bool,
}

impl SettingArgs {
    /// What was given, each with its flag as the source.
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
            ("intercept-ca", one(&self.intercept_ca)),
            ("intercept", many(&self.intercept)),
            ("intercept-list", many(&self.intercept_list)),
            ("public-url", one(&self.public_url)),
            ("fail", one(&self.fail)),
            ("cache", many(&self.cache)),
            ("cache-size", one(&self.cache_size)),
            ("memory", one(&self.memory)),
            ("policy", one(&self.policy)),
            ("rows", one(&self.rows)),
            ("grouped", one(&self.grouped)),
            ("group-by", one(&self.group_by)),
            ("readmission", one(&self.readmission)),
            ("io", one(&self.io)),
            ("allow-destination", many(&self.allow_destination)),
            ("deny-destination", many(&self.deny_destination)),
            ("allow-client", many(&self.allow_client)),
            ("upstream-ca", many(&self.upstream_ca)),
            ("allow-purge", many(&self.allow_purge)),
            ("nat64-prefix", many(&self.nat64_prefix)),
            ("allow-port", many(&self.allow_port)),
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

    /// Flags that are no settings: they say where settings are, or belong to clap.
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
                "io" => format!("--{flag}=threads"),
                "fail" => format!("--{flag}=closed"),
                "set-cookie" => format!("--{flag}=rfc"),
                "log-format" => format!("--{flag}=json"),
                "no-default-rules" => format!("--{flag}"),
                "intercept-list" => format!("--{flag}=cacheable"),
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
