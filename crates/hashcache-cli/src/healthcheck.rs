//! `hashcache healthcheck`: reports through the exit status if a running proxy works.
//!
//! Called by `main`, for containers, because their images have no other program that could send the
//! request. The admin address is read from the proxy's settings unless a flag gives it. If a failed
//! check stops the container, use `--admin`: the file may have a mistake that the running proxy has
//! not read.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use hashcache_settings::Environment;

use crate::admin_client::{address, ask};
use crate::output::{NOT_WELL, say};

/// Arguments for `hashcache healthcheck`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Exit status: 0 the proxy works, 1 it does not, 2 the command failed.")]
pub struct HealthArgs {
    /// Check that the proxy takes requests; a proxy that is stopping does not
    #[arg(long)]
    ready: bool,
    /// Configuration file of the proxy
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Admin address of the proxy; its settings are not read then [default: from the settings]
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
}

/// Timeout for the request. Container runtimes have a default timeout of 30 s.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends the request and sets the exit status.
pub fn run(args: &HealthArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let admin = match args.admin {
        Some(admin) => admin,
        None => configured(args, environment)?,
    };
    let line = if args.ready {
        "GET /-/ready"
    } else {
        "GET /-/healthy"
    };
    let (told, is_well) = match ask(admin, line, "", "", PATIENCE) {
        Ok((200, content)) => (content, true),
        Ok((status, content)) => (format!("status {status}: {content}"), false),
        Err(error) => (format!("no answer from {admin}: {error:#}"), false),
    };
    say(&format!("{}\n", told.trim_end()));
    Ok(if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_WELL)
    })
}

/// Reads the admin address from the settings.
fn configured(args: &HealthArgs, environment: &Environment) -> anyhow::Result<SocketAddr> {
    let effective = hashcache_settings::load(args.config.as_deref(), vec![], environment)?;
    address(&effective)
}
