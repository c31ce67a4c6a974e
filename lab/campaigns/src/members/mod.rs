//! `cargo campaign members`: three boxes in front of one site, of which one is killed and started
//! again under load.
//!
//! Needs an installed HAProxy (Debian's package `haproxy`) and names it when it is missing. The
//! load plays the same sequence of requests against one large box, against three boxes among which
//! HAProxy chooses by a hash of the URL, and against three boxes with lists of members among which
//! it chooses in turn. `haproxy` has the balancer, `boxes` the boxes, `load` the clients.
//!
//! Invariant: the sequence depends on nothing but its seed, so that the origin requests of each
//! part of it can be compared.

mod boxes;
mod haproxy;
mod load;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use hashcache_testkit::Origin;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::campaign::Campaign;
use boxes::{Boxes, Lists};
use haproxy::{Balance, Balancer, Installed};
use load::{Load, Part};

/// Arguments of `members`.
#[derive(clap::Args)]
pub struct Args {
    /// The program HAProxy [default: the installed one]
    #[arg(long, value_name = "FILE")]
    haproxy: Option<PathBuf>,
    /// A tenth of the requests
    #[arg(long)]
    short: bool,
    /// Clients at once
    #[arg(long, default_value_t = 8)]
    clients: usize,
}

/// Plays the load against each kind of site.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    // First: to build a proxy takes minutes.
    let installed = Installed::find(args.haproxy.as_deref())?;
    campaign.report.tell("HAProxy", &installed.version);
    let load = Load {
        clients: args.clients,
        part: if args.short { 2_000 } else { 20_000 },
    };
    let one = play(campaign, &installed, &load, Kind::OneBox).await?;
    campaign.report.check(
        "one box: no client error",
        one.errors.is_empty(),
        one.shown_errors(),
    );
    for kind in [Kind::Hashed, Kind::Members] {
        let three = play(campaign, &installed, &load, kind).await?;
        judge(campaign, kind, &load, &one, &three);
    }
    Ok(())
}

/// How a site is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    OneBox,
    Hashed,
    Members,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::OneBox => "one box",
            Self::Hashed => "hash of the URL",
            Self::Members => "lists of members",
        }
    }
}

/// What the load has shown of a site.
#[derive(Debug, Default)]
struct Played {
    /// Origin requests in each window of each part.
    origin_requests: Vec<Vec<usize>>,
    /// When each window of the part behind the return has ended, after the return.
    ended_after: Vec<Duration>,
    requests: usize,
    errors: Vec<String>,
    /// Responses of the killed box itself that were on their way when it was killed: HAProxy has
    /// passed the beginning on and cannot take it back.
    cut: usize,
    /// Requests sent again because a kept connection was closed before a response began.
    repeated: usize,
}

impl Played {
    fn of_part(&self, part: Part) -> usize {
        self.origin_requests[part as usize].iter().sum()
    }

    fn shown_errors(&self) -> String {
        let first = self.errors.first().map_or("", String::as_str);
        let (count, requests, repeated) = (self.errors.len(), self.requests, self.repeated);
        format!("{count} in {requests} requests, {repeated} sent again {first}")
    }
}

/// Name and number of the box that is killed.
const KILLED: &str = "box1";

async fn play(
    campaign: &mut Campaign,
    installed: &Installed,
    load: &Load,
    kind: Kind,
) -> anyhow::Result<Played> {
    let origin = Origin::start(|request| load::answer(request.target()));
    let origin = origin.await.context("cannot start an origin")?;
    let (count, lists, balance) = match kind {
        Kind::OneBox => (1, Lists::None, Balance::InTurn),
        Kind::Hashed => (3, Lists::None, Balance::ByUrl),
        Kind::Members => (3, Lists::Members, Balance::InTurn),
    };
    let mut boxes = Boxes::start(campaign, kind.name(), count, lists, origin.address())?;
    let name = kind.name().replace(' ', "-");
    let servers = boxes.addresses();
    let balancer = Balancer::start(installed, campaign.folder(), &name, balance, &servers)?;
    let mut played = Played::default();
    let mut returned = Instant::now();
    for part in Part::ALL {
        if part == Part::Return {
            if count > 1 {
                boxes.start_again(1)?;
            }
            returned = Instant::now();
        }
        let mut windows = Vec::new();
        for (window, pace) in (0..load.windows(part)).zip(0_u32..) {
            if part == Part::Return && count > 1 {
                // A steady load: the boxes need seconds to notice that one is back.
                let begin = returned + PACE * pace;
                tokio::time::sleep_until(begin).await;
            }
            let before = origin.request_count();
            let (half, half_sent) = oneshot::channel();
            let sending = load.send(balancer.address(), (part, window), half);
            let killing = async {
                let is_due = part == Part::Outage && window == 0 && count > 1;
                match half_sent.await {
                    Ok(()) if is_due => boxes.kill(1),
                    _ => Ok(()),
                }
            };
            let (sent, killed) = tokio::join!(sending, killing);
            killed?;
            windows.push(origin.request_count() - before);
            played.requests += sent.requests;
            played.repeated += sent.repeated;
            played.errors.extend(sent.errors);
            let is_killed = part == Part::Outage && window == 0 && count > 1;
            for from in sent.cut {
                if is_killed && from == KILLED {
                    played.cut += 1;
                } else {
                    played.errors.push(format!("a response of {from} was cut"));
                }
            }
            if part == Part::Return {
                played.ended_after.push(returned.elapsed());
            }
        }
        played.origin_requests.push(windows);
    }
    balancer.check()?;
    boxes.check(campaign, kind.name())?;
    let complaints = origin.complaints();
    let what = format!("{}: no request has two meanings", kind.name());
    let is_well = complaints.is_empty();
    campaign.report.check(what, is_well, complaints.join("; "));
    Ok(played)
}

/// Holds three boxes against one.
fn judge(campaign: &mut Campaign, kind: Kind, load: &Load, one: &Played, three: &Played) {
    let report = &mut campaign.report;
    let name = kind.name();
    report.check(
        format!("{name}: no client error"),
        three.errors.is_empty(),
        three.shown_errors(),
    );
    report.check(
        format!("{name}: responses that the kill itself cut"),
        three.cut <= load.clients,
        format!(
            "{}, at most one for each of {} clients",
            three.cut, load.clients
        ),
    );
    for part in Part::ALL {
        let (of_one, of_three) = (one.of_part(part), three.of_part(part));
        let ratio = of_three as f64 / of_one.max(1) as f64;
        let verdict = match part {
            Part::Before | Part::After => (of_three as f64 <= most(of_one)).into(),
            Part::Warm | Part::Outage | Part::Return => crate::report::Verdict::Told,
        };
        let detail = format!("{of_three}, one box {of_one}: {ratio:.2} times");
        let figures = json!({ "three": of_three, "one": of_one, "ratio": ratio });
        let what = format!("{name}: origin requests {}", part.name());
        report.figures(what, verdict, detail, figures);
    }
    let windows = |played: &Played| played.origin_requests[Part::Return as usize].clone();
    let pairs: Vec<_> = windows(three).into_iter().zip(windows(one)).collect();
    // Windows in groups: one window is too small a sample for the margin.
    let is_back = |group: &[(usize, usize)]| {
        let more = group.iter().map(|(three, one)| *three as f64 - *one as f64);
        more.sum::<f64>() <= HIT_MARGIN * (group.len() * load.window(Part::Return)) as f64
    };
    // Back for good: no later group falls behind again.
    let behind = pairs.windows(GROUP).rposition(|group| !is_back(group));
    let good = behind.map_or(0, |last| last + 1);
    let time = three.ended_after.get(good + GROUP - 1);
    let shown = time.map(|time| format!("within {:.1} s", time.as_secs_f64()));
    report.check(
        format!("{name}: hit ratio is back"),
        time.is_some_and(|time| *time <= BACK_MAX),
        shown.unwrap_or_else(|| {
            format!("not at the end of the part; origin requests of three and one: {pairs:?}")
        }),
    );
}

/// Most origin requests of three boxes where one box has `one`. Few requests cannot tell
/// [`RATIO_MAX`] from a little more: the short form may exceed it by one standard deviation.
fn most(one: usize) -> f64 {
    let most = RATIO_MAX * one as f64;
    match one {
        ..FEW => most + most.sqrt(),
        _ => most,
    }
}

/// Windows behind the return that are compared with one box together.
const GROUP: usize = 5;
/// Time between the beginnings of two windows behind the return.
const PACE: Duration = Duration::from_secs(2);
/// Most origin requests of three boxes, as a multiple of those of one box.
const RATIO_MAX: f64 = 1.1;
/// So few origin requests of one box are a small sample.
const FEW: usize = 1_000;
/// By how much the hit ratio of three boxes may be below that of one box, as a share of requests.
const HIT_MARGIN: f64 = 0.02;
/// Time after which a box that returned must be as good as before.
const BACK_MAX: Duration = Duration::from_secs(60);
