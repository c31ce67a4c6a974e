//! `cargo campaign cpu`: processor time of a request, ours and that of other caches, in one run.
//!
//! All stand in front of the same origin, with as few threads as each can be told to have, and
//! answer the same keep-alive connections: with memory for everything (hits in memory, misses),
//! then with [`Memory::Tight`] (hits on disk, page mix); without an access log, then with one in
//! the combined format. Rounds alternate and the median counts, so that other load of the machine
//! affects all. The processor time is that of the process with all its threads, by the kernel's
//! account, divided by the number of requests. Disks are as fast as the kernel's page cache, whose
//! size is not limited: this helps programs that read files through it more than ours, which reads
//! past it where it can. With `--group-memory` it is limited, and each server has a file system of
//! its own. A program that does not start, or whose hits go to the origin, is left out, and the
//! report says so.
//!
//! Limits: hits in memory take at most 0.8 times what nginx takes at 1 and 8 KiB and 1.0 times
//! at 100 KiB and over TLS, misses 1.2 times, the page mix 0.9 times what the best of nginx and
//! Traffic Server takes. Over TLS only nginx takes part, with the same cipher and certificate.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{BodyEnd, Client, ContentOptions, ContentOrigin, content};
use serde_json::json;

use super::load::{self, Kind, Load, Protocol};
use super::{Args, cpu_ns, micros};
use crate::campaign::Campaign;
use crate::certificate::Certificate;
use crate::cgroup::Cgroup;
use crate::median::median;
use crate::proxy_process::ProxyCommand;
use crate::report::{Report, Verdict};
use crate::rivals::{self, Log, Rival, Server, Setup};
use crate::server_disk::ServerDisk;

const LOGS: [Log; 2] = [Log::None, Log::Combined];

fn words(log: Log) -> &'static str {
    match log {
        Log::None => "no log",
        Log::Combined => "combined log",
    }
}

fn what(kind: Kind, log: Log) -> String {
    format!("{}, {}", kind.name(), words(log))
}

/// Memory for objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// All objects fit.
    Roomy,
    /// A quarter or a fifth of them does.
    Tight,
}

impl Memory {
    const ALL: [Self; 2] = [Self::Roomy, Self::Tight];

    /// How much.
    pub fn mebibytes(self) -> u32 {
        match self {
            Self::Roomy => 512,
            Self::Tight => 64,
        }
    }

    fn rivals(self) -> &'static [rivals::Kind] {
        use rivals::Kind::{Nginx, NginxSendfile, Squid, SquidRock, TrafficServer, Varnish};
        match self {
            Self::Roomy => &[Nginx, NginxSendfile, TrafficServer, Varnish, Squid],
            Self::Tight => &[Nginx, NginxSendfile, TrafficServer, Varnish, SquidRock],
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Roomy => "512 MiB",
            Self::Tight => "64 MiB",
        }
    }

    /// The kinds that the arguments select with this log.
    fn selected(self, args: &Args, log: Log) -> Vec<Kind> {
        let word = args.only.as_deref().unwrap_or_default();
        let kinds = self.kinds().iter().copied();
        kinds
            .filter(|kind| what(*kind, log).contains(word))
            .collect()
    }

    fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Roomy => &[
                Kind::OneObject(1 << 10),
                Kind::OneObject(8 << 10),
                Kind::OneObject(100 << 10),
                Kind::ManyObjects,
                Kind::OneObjectOverTls(Protocol::Http1, 8 << 10),
                Kind::OneObjectOverTls(Protocol::Http1, 100 << 10),
                Kind::OneObjectOverTls(Protocol::Http2, 8 << 10),
                Kind::OneObjectOverTls(Protocol::Http2, 100 << 10),
                Kind::Miss,
            ],
            Self::Tight => &[Kind::Disk, Kind::Mix],
        }
    }
}

/// Why a rival cannot take part, if that is so.
fn lack(kind: rivals::Kind, memory: Memory, log: Log) -> Option<&'static str> {
    match (kind, memory, log) {
        _ if !kind.is_installed() => Some("not installed"),
        // Its storage in files is not meant to last.
        (rivals::Kind::Varnish, Memory::Tight, _) => Some("has no store on disk that lasts"),
        (rivals::Kind::Varnish, _, Log::Combined) => Some("leaves the log to another program"),
        _ => None,
    }
}

/// What our time may be, in parts of that of these rivals, the best of them.
struct Bar {
    percent: u64,
    of: &'static [&'static str],
}

fn bar(kind: Kind) -> Option<Bar> {
    const NGINX: &[&str] = &["nginx", "nginx, sendfile"];
    let (percent, of): (u64, &[&str]) = match kind {
        Kind::OneObject(size) if size > 64 << 10 => (100, NGINX),
        Kind::OneObject(_) => (80, NGINX),
        Kind::OneObjectOverTls(..) => (100, NGINX),
        Kind::Miss => (120, NGINX),
        Kind::Mix => (90, &["nginx", "nginx, sendfile", "Traffic Server"]),
        Kind::ManyObjects | Kind::Disk => return None,
    };
    Some(Bar { percent, of })
}

/// Whether any of what is measured is over TLS.
pub(super) fn measures_tls(args: &Args) -> bool {
    let of_log = |log| {
        let all = Memory::ALL.into_iter();
        all.flat_map(move |it| it.selected(args, log))
    };
    LOGS.into_iter()
        .flat_map(of_log)
        .any(|it| matches!(it, Kind::OneObjectOverTls(..)))
}

/// Measures all kinds, with all programs that are installed.
pub(super) async fn run(
    args: &Args,
    campaign: &mut Campaign,
    origin: &ContentOrigin,
) -> anyhow::Result<()> {
    let word = args.only.as_deref().unwrap_or_default();
    let mut loads = 0;
    for log in LOGS {
        for memory in Memory::ALL {
            let kinds = memory.selected(args, log);
            if kinds.is_empty() {
                continue;
            }
            let folder = campaign.folder().join(format!("{memory:?}-{log:?}"));
            let contenders = contenders(args, memory, log, &folder, campaign, origin)?;
            for kind in kinds {
                measure(args, &contenders, kind, log, campaign, origin).await?;
                loads += 1;
            }
            // Their caches take gigabytes.
            drop(contenders);
            std::fs::remove_dir_all(&folder)?;
        }
    }
    ensure!(loads > 0, "no load has \"{word}\" in its name");
    Ok(())
}

fn contenders(
    args: &Args,
    memory: Memory,
    log: Log,
    folder: &Path,
    campaign: &mut Campaign,
    origin: &ContentOrigin,
) -> anyhow::Result<Vec<Contender>> {
    std::fs::create_dir(folder)?;
    let certificate = Certificate::make(folder)?;
    let access_log = match log {
        Log::None => "none".to_owned(),
        Log::Combined => folder.join("hashcache.log").display().to_string(),
    };
    let ground = Ground::make(args, &folder.join("ground-hashcache"))?;
    let command = match &ground {
        Some(ground) => {
            let directory = ground.disk.directory();
            let command = ProxyCommand::new(campaign.binary()?, &directory.join("cache"));
            command.cgroup(ground.group.directory())
        }
        None => campaign.proxy()?,
    };
    let ours = command
        .flag("cache-size", format!("{DISK_MIB}MiB"))
        .flag("memory", format!("{}MiB", memory.mebibytes()))
        .flag("accelerate", format!("http://{}", origin.address()))
        .flag("workers", 1)
        .flag("listen", "http://127.0.0.1:0")
        .flag("listen", "https://127.0.0.1:0")
        .flag("tls-cert", certificate.file.display())
        .flag("tls-key", certificate.key_file.display())
        .without("access-log")
        .flag("access-log", access_log)
        .flag("log-format", "combined")
        .processors(&args.server_processors)
        .start()?;
    let mut all = vec![Contender {
        name: OURS,
        server: Server::Ours(ours),
        _ground: ground,
    }];
    for kind in memory.rivals().iter().copied() {
        let what = format!("{}, {}, {}", kind.name(), words(log), memory.words());
        if let Some(lack) = lack(kind, memory, log) {
            campaign.report.skip(what, format!("not run: {lack}"));
            continue;
        }
        let name = kind.name().replace([',', ' '], "-");
        let ground = Ground::make(args, &folder.join(format!("ground-{name}")))?;
        let (directory, cgroups) = match &ground {
            Some(ground) => (
                ground.disk.directory().join("files"),
                vec![ground.group.directory().to_owned()],
            ),
            None => (folder.join(name), vec![]),
        };
        let setup = Setup {
            run: campaign.folder(),
            directory: &directory,
            origin: origin.address(),
            memory_mib: memory.mebibytes(),
            disk_mib: DISK_MIB,
            log,
            processors: Some(&args.server_processors),
            cgroups: &cgroups,
            certificate: Some(&certificate),
        };
        match Rival::start(kind, &setup) {
            Ok(rival) => all.push(Contender {
                name: kind.name(),
                server: Server::Rival(rival),
                _ground: ground,
            }),
            Err(error) => campaign.report.skip(what, format!("not run: {error:#}")),
        }
    }
    Ok(all)
}

/// Rounds of all contenders with one kind of requests.
async fn measure(
    args: &Args,
    contenders: &[Contender],
    kind: Kind,
    log: Log,
    campaign: &mut Campaign,
    origin: &ContentOrigin,
) -> anyhow::Result<()> {
    let what = what(kind, log);
    let script = campaign.folder().join("load.lua");
    let mut running = vec![];
    for contender in contenders {
        let ready = match contender.check(kind).await {
            Ok(()) => contender.fill(args, kind, &script, origin),
            Err(error) => Err(error),
        };
        match ready {
            Ok(()) => running.push((contender, vec![])),
            Err(error) => contender.leave(&what, error, &mut campaign.report)?,
        }
    }
    for number in 1..=args.rounds {
        std::fs::write(&script, kind.script(number))?;
        let mut left = vec![];
        for (contender, mut done) in running {
            match contender.round(args, kind, &script, origin) {
                Ok(round) => done.push(round),
                Err(error) => {
                    contender.leave(&what, error, &mut campaign.report)?;
                    continue;
                }
            }
            left.push((contender, done));
        }
        running = left;
    }
    let mut medians = vec![];
    for (contender, done) in &running {
        let figures = Figures::from_rounds(done);
        tell(&what, contender.name, &figures, &mut campaign.report);
        medians.push((contender.name, figures));
    }
    compare(&what, kind, &medians, &mut campaign.report);
    Ok(())
}

/// Whether nothing may come from the origin.
fn are_hits(kind: Kind) -> bool {
    !matches!(kind, Kind::Miss | Kind::Mix)
}

fn tell(what: &str, name: &str, figures: &Figures, report: &mut Report) {
    report.figures(
        format!("{what}: {name}"),
        Verdict::Told,
        format!(
            "{} µs a request ({} to {}), {} requests/s, {} % from the origin",
            micros(figures.cpu_ns),
            micros(figures.all_cpu_ns.iter().copied().min().unwrap_or(0)),
            micros(figures.all_cpu_ns.iter().copied().max().unwrap_or(0)),
            figures.per_second,
            figures.asked_percent,
        ),
        json!({
            "cpu_ns": figures.cpu_ns,
            "rounds_cpu_ns": figures.all_cpu_ns,
            "requests_per_second": figures.per_second,
            "from_origin_percent": figures.asked_percent,
        }),
    );
}

/// Holds our time against the best of those that have the bar.
fn compare(what: &str, kind: Kind, medians: &[(&str, Figures)], report: &mut Report) {
    let Some((_, ours)) = medians.iter().find(|(name, _)| *name == OURS) else {
        return;
    };
    let bar = bar(kind);
    let counts = |name: &str| bar.as_ref().is_none_or(|bar| bar.of.contains(&name));
    let rivals = medians.iter().filter(|(name, _)| *name != OURS);
    let best = rivals
        .filter(|(name, _)| counts(name))
        .min_by_key(|(_, figures)| figures.cpu_ns);
    let what = format!("{what}: processor time");
    let Some((name, best)) = best else {
        return report.skip(what, "no program to compare with");
    };
    let percent = ours.cpu_ns * 100 / best.cpu_ns.max(1);
    let rate_percent = ours.per_second * 100 / best.per_second.max(1);
    let shown = |percent: u64| format!("{}.{:02}", percent / 100, percent % 100);
    let (verdict, bar) = match &bar {
        Some(bar) => (
            (percent <= bar.percent).into(),
            format!(", bar {}", shown(bar.percent)),
        ),
        None => (Verdict::Told, String::new()),
    };
    report.figures(
        what,
        verdict,
        format!(
            "{} of {name}{bar}; {} times the requests/s",
            shown(percent),
            shown(rate_percent)
        ),
        json!({ "percent": percent, "rate_percent": rate_percent, "of": name }),
    );
}

/// A server under load. Its parts are dropped in this order.
struct Contender {
    name: &'static str,
    server: Server,
    /// `None`: a directory of the machine's file system, and the machine's memory.
    _ground: Option<Ground>,
}

/// What one server alone has.
struct Ground {
    group: Cgroup,
    disk: ServerDisk,
}

impl Ground {
    /// Makes one in `folder`, if the arguments ask for it.
    fn make(args: &Args, folder: &Path) -> anyhow::Result<Option<Self>> {
        let Some(memory_mib) = args.group_memory else {
            return Ok(None);
        };
        std::fs::create_dir(folder)?;
        let group = Cgroup::memory()?;
        group.limit(u64::from(memory_mib) << 20)?;
        let disk = ServerDisk::make(folder, u64::from(DISK_MIB + DISK_REST_MIB) << 20, None)?;
        Ok(Some(Self { group, disk }))
    }
}

/// What one round showed.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// Processor time of a request.
    cpu_ns: u64,
    load: Load,
    /// Requests to the origin, of 100.
    asked_percent: u64,
}

/// Medians of all rounds.
#[derive(Debug)]
struct Figures {
    cpu_ns: u64,
    per_second: u64,
    asked_percent: u64,
    all_cpu_ns: Vec<u64>,
}

impl Figures {
    fn from_rounds(rounds: &[Round]) -> Self {
        Self {
            cpu_ns: median(rounds, |round| round.cpu_ns),
            per_second: median(rounds, |round| round.load.per_second),
            asked_percent: median(rounds, |round| round.asked_percent),
            all_cpu_ns: rounds.iter().map(|round| round.cpu_ns).collect(),
        }
    }
}

impl Contender {
    /// Has the requests of a kind made, those of `script` if it has one.
    fn load(&self, args: &Args, kind: Kind, script: &Path) -> anyhow::Result<Load> {
        let Kind::OneObjectOverTls(protocol, size) = kind else {
            return Load::run(args, self.server.address(), script);
        };
        Load::run_over_tls(args, self.tls_address()?, protocol, size)
    }

    fn tls_address(&self) -> anyhow::Result<SocketAddr> {
        let address = self.server.tls_address();
        address.context("not measured over TLS")
    }

    /// Its answers must be right. The object of a kind that has a single one is stored then: Squid
    /// stores none that all clients ask for at once.
    async fn check(&self, kind: Kind) -> anyhow::Result<()> {
        let (target, size) = match kind {
            Kind::OneObject(size) | Kind::OneObjectOverTls(_, size) => {
                (format!("/hit?size={size}"), size)
            }
            _ => ("/check?size=20000".to_owned(), 20_000),
        };
        let target = &*target;
        let expected = content::body_for(ContentOptions::default().seed, target, 0, size);
        let mut client = Client::connect(self.server.address()).await?;
        for _ in 0..3 {
            let response = client.get(target, &[]).await?;
            let right = content::verify(&expected, 0, &response.body).is_ok()
                && response.body.len() as u64 == size;
            ensure!(
                response.status == 200 && response.end == BodyEnd::Complete && right,
                "{} answers {target} with {} and {} bytes",
                self.name,
                response.status,
                response.body.len()
            );
        }
        if let Kind::OneObjectOverTls(protocol, _) = kind {
            let body = load::body_over_tls(self.tls_address()?, protocol, target)?;
            let right = content::verify(&expected, 0, &body).is_ok() && body.len() as u64 == size;
            ensure!(right, "{} answers {target} wrongly over TLS", self.name);
        }
        Ok(())
    }

    /// Has it store what is asked for again.
    fn fill(
        &self,
        args: &Args,
        kind: Kind,
        script: &Path,
        origin: &ContentOrigin,
    ) -> anyhow::Result<()> {
        std::fs::write(script, kind.filling())?;
        for _ in 0..(FILL_SECONDS / args.seconds.max(1)).max(FILLS_LEAST) {
            let before = origin.counts().requests;
            let load = self.load(args, kind, script)?;
            let asked = origin.counts().requests - before;
            if kind == Kind::Miss || asked <= load.requests / 200 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A round without failed requests; an error if requests that must be hits went to the origin.
    fn round(
        &self,
        args: &Args,
        kind: Kind,
        script: &Path,
        origin: &ContentOrigin,
    ) -> anyhow::Result<Round> {
        let pids = self.server.pids()?;
        let asked_before = origin.counts().requests;
        let before = cpu_ns(&pids)?;
        let load = self.load(args, kind, script)?;
        let taken = cpu_ns(&pids)?.saturating_sub(before);
        let asked = origin.counts().requests - asked_before;
        let asked_percent = asked * 100 / load.requests.max(1);
        ensure!(
            asked_percent == 0 || !are_hits(kind),
            "{asked_percent} % of the requests went to the origin: they are no hits"
        );
        Ok(Round {
            cpu_ns: taken / load.requests.max(1),
            load,
            asked_percent,
        })
    }

    /// It takes no further part; an error if it is ours.
    fn leave(&self, what: &str, error: anyhow::Error, report: &mut Report) -> anyhow::Result<()> {
        if self.name == OURS {
            return Err(error.context(what.to_owned()));
        }
        report.skip(
            format!("{what}: {}", self.name),
            error.root_cause().to_string(),
        );
        Ok(())
    }
}

const OURS: &str = "hashcache";
const DISK_MIB: u32 = 2048;
/// Journal and inodes of a file system, and what files of one object each waste.
const DISK_REST_MIB: u32 = 1024;
/// Rounds, or seconds if these are more, that may be needed until everything is stored.
const FILLS_LEAST: u64 = 10;
const FILL_SECONDS: u64 = 45;

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(cpu_ns: u64) -> Figures {
        Figures {
            cpu_ns,
            per_second: 1,
            asked_percent: 0,
            all_cpu_ns: vec![],
        }
    }

    fn holds(kind: Kind, medians: &[(&str, Figures)]) -> bool {
        let mut report = Report::new("test", false);
        compare("row", kind, medians, &mut report);
        report.finish().is_ok()
    }

    #[test]
    fn the_bar_is_held_against_the_best_of_those_that_have_it() {
        for (ours, held) in [(80, true), (81, false)] {
            let medians = [
                (OURS, figures(ours)),
                ("nginx", figures(120)),
                ("nginx, sendfile", figures(100)),
                ("Squid", figures(10)),
            ];
            assert_eq!(holds(Kind::OneObject(1024), &medians), held, "{ours}");
        }
        let mix = [(OURS, figures(91)), ("nginx", figures(200))];
        assert!(holds(Kind::Mix, &mix));
        let mix = [(OURS, figures(91)), ("Traffic Server", figures(100))];
        assert!(!holds(Kind::Mix, &mix));
    }
}
