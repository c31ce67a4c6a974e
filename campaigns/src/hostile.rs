//! `cargo campaign hostile`: one client, or one origin, against all clients of a proxy.
//!
//! Plays `hashcache_testkit::scenario::hostile`, each attack against a proxy of its own that was
//! given 64 MiB of memory (one: 512 MiB). Everything stays on addresses of 127.0.0.0/8.
//!
//! The bar: resident memory stays within that and 24 MiB at all times; an innocent client from
//! another address is served in 99 of 100 cases, in at most twice its usual time.

mod tls;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use hashcache_testkit::scenario::hostile::{Attack, Needs, Play};
use hashcache_testkit::{ContentOptions, ContentOrigin};

use crate::memory_limit::allow_many_files;
use crate::proxy_process::{BinaryArgs, ProxyCommand, ProxyProcess};
use crate::report::Report;
use crate::verdicts;
use tls::Certificates;

/// Arguments of `hostile`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: BinaryArgs,
    /// Play only the attacks with this word in their name: Windows, Unread, Heads, …
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// Number of attackers, in parts of 100 of the full attack
    #[arg(long, default_value_t = 100)]
    percent: u32,
    /// How long each attack lasts
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    seconds: u64,
    /// Write the report as JSON
    #[arg(long)]
    json: bool,
}

/// Plays all attacks.
pub fn run(args: &Args) -> anyhow::Result<()> {
    allow_many_files()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let binary = args.binary.binary()?;
    let mut report = Report::new("hostile", args.json);
    let wanted = |attack: &Attack| match &args.only {
        Some(word) => format!("{attack:?}").contains(word.as_str()),
        None => true,
    };
    for attack in Attack::ALL.into_iter().filter(wanted) {
        let origin = ContentOrigin::start_thread(ContentOptions::default())?;
        let home = tempfile::tempdir().context("cannot make a directory for the cache")?;
        let certificates = Certificates::make(home.path())?;
        let mut process = start(attack, &binary, home.path(), &origin, &certificates)?;
        let play = play(args, attack, &process, &certificates)?;
        let verdict = runtime.block_on(attack.play(&play, &origin));
        verdicts::tell(&mut report, "", &verdict);
        let ended = process.ended()?;
        if ended.is_some() || process.said().contains("panicked") {
            report.check(format!("{attack:?}: it runs on"), false, process.said());
        }
    }
    report.finish()
}

/// A proxy as an attack needs it, with a listener in the clear first and one for HTTP/2 second.
fn start(
    attack: Attack,
    binary: &Path,
    home: &Path,
    origin: &ContentOrigin,
    certificates: &Certificates,
) -> anyhow::Result<ProxyProcess> {
    let command = ProxyCommand::new(binary, &home.join("cache"))
        .flag("cache-size", "4GiB")
        .flag("memory", format!("{}MiB", attack.memory_mib()))
        .flag("allow-destination", "127.0.0.0/8")
        .flag("access-log", "none")
        .flag("listen", "http://127.0.0.1:0");
    let command = match attack.needs() {
        Needs::Forward => command.flag("listen", "h2c://127.0.0.1:0"),
        Needs::TrustedOrigin => command
            .flag("listen", "h2c://127.0.0.1:0")
            .flag("upstream-ca", certificates.authority.display()),
        Needs::Accelerator => command
            .flag("listen", "https://127.0.0.1:0")
            .flag("accelerate", format!("http://{}", origin.address()))
            .flag("tls-cert", certificates.certificate.display())
            .flag("tls-key", certificates.key.display()),
    };
    command.start()
}

fn play(
    args: &Args,
    attack: Attack,
    process: &ProxyProcess,
    certificates: &Certificates,
) -> anyhow::Result<Play> {
    let shake = match attack.needs() {
        Needs::Accelerator => Some(certificates.client()?),
        Needs::Forward | Needs::TrustedOrigin => None,
    };
    Ok(Play {
        proxy: process.address(),
        http2: *process.addresses().get(1).context("no second listener")?,
        shake,
        origin_shake: Some(certificates.server()?),
        admin: process.admin().context("no admin listener")?,
        pid: process.pid(),
        resident_max: (attack.memory_mib() + BESIDE_MIB) << 20,
        percent: args.percent,
        time: Duration::from_secs(args.seconds),
        slower_max: Some(SLOWER_MAX),
    })
}

const BESIDE_MIB: u64 = 24;
const SLOWER_MAX: f64 = 2.0;
