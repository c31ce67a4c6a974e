//! `hashcache ca init` and `ca show`: the certificate authority for a proxy that intercepts TLS.
//!
//! Called by `main`. The proxy's library makes and reads the authority. Invariant: no part of a
//! private key is ever printed.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use hashcache_http::{UnixTime, http_date};
use hashcache_proxy::{AuthorityError, CertificateAuthority, MakeOptions};
use hashcache_settings::Environment;
use hashcache_settings::fault::Fault;
use serde_json::json;

use crate::output::{NOT_WELL, say};

/// Subcommands under `hashcache ca`.
#[derive(Clone, Debug, Subcommand)]
pub enum CaCommand {
    /// Make a certificate authority (CA) for intercepting HTTPS
    #[command(after_help = INIT_HELP)]
    Init(InitArgs),
    /// Show the CA, or print the certificate that devices must trust
    #[command(after_help = "Exit status: 0 valid, 1 expired, 2 the command failed.")]
    Show(ShowArgs),
}

const INIT_HELP: &str = "\
The CA is valid for five years. Its keys can decrypt what devices that trust it send over TLS: only
you can read the directory, and nothing that exists is overwritten. With --only, the CA is valid for
these domains only; the root key is deleted after use, so nobody can extend it.
Devices get the certificate from the proxy's page http://PROXY/ca.";

/// Arguments for `hashcache ca init`.
#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    /// Directory for the CA [default: from the configuration, otherwise hashcache/ca in ~/.config,
    /// or in /etc for root]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Name that devices show for the CA [default: with this machine's name and the date]
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Make the CA valid for these domains and their subdomains only
    #[arg(long, value_name = "DOMAIN", value_delimiter = ',', num_args = 1..)]
    only: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments for `hashcache ca show`.
#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    /// Directory of the CA [default: from the configuration, otherwise hashcache/ca in ~/.config,
    /// or in /etc for root]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print the certificate as PEM
    #[arg(long, group = "form")]
    pem: bool,
    /// Print the certificate as DER
    #[arg(long, group = "form")]
    der: bool,
    /// Print JSON
    #[arg(long, group = "form")]
    json: bool,
}

/// Runs the subcommand.
pub fn run(command: &CaCommand, environment: &Environment) -> anyhow::Result<ExitCode> {
    #[expect(clippy::disallowed_methods, reason = "the command begins here")]
    let now = SystemTime::now();
    match command {
        CaCommand::Init(args) => init(args, environment, now),
        CaCommand::Show(args) => show(args, environment, now),
    }
}

fn init(args: &InitArgs, environment: &Environment, now: SystemTime) -> anyhow::Result<ExitCode> {
    let directory = match named(args.dir.as_deref(), environment)? {
        Some(directory) => directory,
        None => {
            let directory = default_directory(environment)?;
            // Missing parents are made only for our default directory.
            if let Some(parent) = directory.parent() {
                let fault = || Fault::new(format!("cannot create {}", parent.display()));
                fs::create_dir_all(parent).with_context(fault)?;
            }
            directory
        }
    };
    let name = args.name.clone().unwrap_or_else(|| default_name(now));
    let only = args.only.clone();
    let made = CertificateAuthority::make(&directory, &MakeOptions { name, only, now });
    let authority = made.map_err(|error| cannot("make a certificate authority", error))?;
    if args.json {
        say(&json_of(&authority, &directory));
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = text_of(&authority, &directory, now);
    if authority.only().is_none() {
        text.push_str(&format!(
            "\nThe proxy does not need {}: move it to a safe place, or delete it.\n",
            directory.join("root.key").display()
        ));
    }
    text.push_str(&format!(
        "\nnext: hashcache proxy --intercept-ca {} --intercept-list cacheable\n\
         Devices then get the certificate from the proxy's page /ca\n",
        directory.display()
    ));
    say(&text);
    Ok(ExitCode::SUCCESS)
}

fn show(args: &ShowArgs, environment: &Environment, now: SystemTime) -> anyhow::Result<ExitCode> {
    let directory = match named(args.dir.as_deref(), environment)? {
        Some(directory) => directory,
        None => default_directory(environment)?,
    };
    let loaded = CertificateAuthority::load(&directory);
    let authority = loaded.map_err(|error| cannot("show a certificate authority", error))?;
    let mut output = std::io::stdout().lock();
    if args.der {
        output.write_all(authority.root_der())?;
    } else {
        let text = match (args.pem, args.json) {
            (true, _) => authority.root_pem(),
            (_, true) => json_of(&authority, &directory),
            _ => text_of(&authority, &directory, now),
        };
        output.write_all(text.as_bytes())?;
    }
    output.flush()?;
    Ok(if authority.not_after() > now {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_WELL)
    })
}

fn text_of(authority: &CertificateAuthority, directory: &Path, now: SystemTime) -> String {
    let only = match authority.only() {
        Some(only) => only.collect::<Vec<_>>().join(", "),
        None => "every host".to_owned(),
    };
    let until = date(authority.not_after());
    let ended = if authority.not_after() > now {
        ""
    } else {
        " (expired)"
    };
    format!(
        "name         {}\nSHA-256      {}\nuntil        {until}{ended}\nfor          {only}\n\
         directory    {}\n",
        authority.name(),
        authority.fingerprint(),
        directory.display(),
    )
}

fn json_of(authority: &CertificateAuthority, directory: &Path) -> String {
    let since_1970 = authority.not_after().duration_since(SystemTime::UNIX_EPOCH);
    let all = json!({
        "name": authority.name(),
        "sha256": authority.fingerprint().to_string(),
        "not_after": since_1970.unwrap_or_default().as_secs(),
        "only": authority.only().map(Iterator::collect::<Vec<_>>),
        "directory": directory,
        "certificate": directory.join("root.pem"),
    });
    format!("{all:#}\n")
}

/// Returns the given directory, otherwise the directory in the settings of the proxy.
fn named(given: Option<&Path>, environment: &Environment) -> anyhow::Result<Option<PathBuf>> {
    if let Some(directory) = given {
        return Ok(Some(directory.to_owned()));
    }
    let effective = hashcache_settings::load(None, vec![], environment)?;
    Ok(effective.values.intercept_ca)
}

/// Returns the directory beside the configuration file.
fn default_directory(environment: &Environment) -> Result<PathBuf, Fault> {
    environment.ca_directory().ok_or_else(|| {
        let fault = Fault::new("no directory for the CA: HOME is not set");
        fault.hint("give a directory with `--dir DIR`")
    })
}

/// Makes a default name from this machine's host name and the date: in a device's certificate list,
/// two authorities with the same name could not be distinguished.
fn default_name(now: SystemTime) -> String {
    let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let machine: String = machine.trim().chars().take(HOST_CHARS).collect();
    // `Sun, 22 Nov 2026 11:33:00 GMT`
    let date = date(now);
    let day = date.get(5..16).unwrap_or_default();
    if machine.is_empty() {
        format!("HashCache, {day}")
    } else {
        format!("HashCache of {machine}, {day}")
    }
}

/// Most characters for the host name in a default name.
const HOST_CHARS: usize = CertificateAuthority::NAME_CHARS - "HashCache of , 22 Nov 2026".len();

fn date(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let date = http_date(UnixTime(since.unwrap_or(Duration::ZERO).as_secs()));
    date.to_str().unwrap_or_default().to_owned()
}

fn cannot(what: &str, error: AuthorityError) -> anyhow::Error {
    let advice = error.advice();
    let fault = Fault::new(format!("cannot {what}"));
    let fault = match advice {
        Some(advice) => fault.hint(advice),
        None => fault,
    };
    anyhow::Error::from(error).context(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_home_a_place_must_be_named() {
        let nobody = Environment {
            variables: [].into(),
            is_root: false,
            processors: 1,
        };
        let fault = default_directory(&nobody).unwrap_err();
        assert!(fault.hint.is_some_and(|hint| hint.contains("--dir DIR")));
    }

    #[test]
    fn a_default_name_is_one_that_can_be_given() {
        let home = tempfile::tempdir().unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_347_180);
        let name = default_name(now);
        assert!(name.ends_with(", 22 Nov 2026"), "{name}");
        let only = vec![];
        let options = MakeOptions { name, only, now };
        assert!(CertificateAuthority::make(&home.path().join("ca"), &options).is_ok());
    }
}
