//! `hashcache healthcheck`: whether a running proxy works, as an exit status.
//!
//! Called by `main`, for containers, whose images have no other program that could ask. The address
//! of the admin listener is read from the settings of the proxy.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::admin_client::ask;
use crate::fault::Fault;
use crate::output::{NOT_WELL, say};
use crate::settings::{self, Environment, Given, Source, Written, find};

/// Arguments of `hashcache healthcheck`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Exit status: 0 the proxy works, 1 it does not, 2 the command failed.")]
pub struct HealthArgs {
    /// Ask whether the proxy takes requests; a proxy that is stopping does not
    #[arg(long)]
    ready: bool,
    /// Configuration file of the proxy
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Admin address of the proxy [default: from the configuration]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
}

/// Container runtimes wait for 30 s unless they are told otherwise.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks.
pub fn run(args: &HealthArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let admin = args.admin.clone().map(|word| Given {
        found: find("admin").expect("it is a setting of the proxy"),
        written: Written::One(word),
        source: Source::Flag("--admin".to_owned()),
    });
    let given = admin.into_iter().collect();
    let effective = settings::load(args.config.as_deref(), given, environment)?;
    let Some(admin) = effective.values.admin else {
        let fault = Fault::new("the proxy has no admin listener");
        return Err(fault.hint("start the proxy with `--admin ADDRESS`").into());
    };
    let line = match args.ready {
        true => "GET /-/ready",
        false => "GET /-/healthy",
    };
    let (told, is_well) = match ask(admin, line, "", "", PATIENCE) {
        Ok((200, content)) => (content, true),
        Ok((status, content)) => (format!("status {status}: {content}"), false),
        Err(error) => (format!("no answer from {admin}: {error:#}"), false),
    };
    say(&format!("{}\n", told.trim_end()));
    Ok(match is_well {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NOT_WELL),
    })
}
