//! `cargo campaign hostile`: one client, or one origin, against all clients of a proxy.
//!
//! Plays `hashcache_testkit::scenario::hostile`, each attack against a proxy of its own with 64 MiB
//! of memory (one attack: 512 MiB). All connections stay on addresses of 127.0.0.0/8.
//!
//! Limit: resident memory never exceeds that by more than 24 MiB; an innocent client at another
//! address is served in 99 of 100 cases, in at most twice its usual time.

mod tls;

use std::time::Duration;

use anyhow::Context as _;
use hashcache_testkit::scenario::hostile::{Attack, Needs, Play};
use hashcache_testkit::{ContentOptions, ContentOrigin};

use crate::campaign::Campaign;
use crate::memory_limit::allow_many_files;
use crate::proxy_process::ProxyProcess;
use tls::Certificates;

/// Arguments of `hostile`.
#[derive(clap::Args)]
pub struct Args {
    /// Play only the attacks with this word in their name: Windows, Unread, Heads, …
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// Number of attackers, in parts of 100 of the full attack
    #[arg(long, default_value_t = 100)]
    percent: u32,
    /// How long each attack lasts
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    seconds: u64,
}

/// Plays all attacks.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    allow_many_files()?;
    let wanted = |attack: &Attack| match &args.only {
        Some(word) => format!("{attack:?}").contains(word.as_str()),
        None => true,
    };
    for attack in Attack::ALL.into_iter().filter(wanted) {
        let origin = ContentOrigin::start_thread(ContentOptions::default())?;
        let certificates = Certificates::make(campaign.folder())?;
        let mut process = start(attack, campaign, &origin, &certificates)?;
        let play = play(args, attack, &process, &certificates)?;
        let verdict = attack.play(&play, &origin).await;
        campaign.report.verdict("", &verdict);
        campaign.check_running(&format!("{attack:?}"), &mut process)?;
    }
    Ok(())
}

/// A proxy as an attack needs it, with a listener in the clear first and one for HTTP/2 second.
fn start(
    attack: Attack,
    campaign: &Campaign,
    origin: &ContentOrigin,
    certificates: &Certificates,
) -> anyhow::Result<ProxyProcess> {
    let command = campaign.proxy()?;
    let command = command
        .flag("cache-size", "4GiB")
        .flag("memory", format!("{}MiB", attack.memory_mib()))
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
