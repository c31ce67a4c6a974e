//! `cargo campaign failures`: what clients notice when a server behind the proxy breaks.
//!
//! A matrix: a sibling, a parent, several parents, a member or an origin of a site is killed,
//! hangs, is slow, lies or cuts connections, while one client asks or many do. `bench` plays a cell
//! with a proxy of its own and relays in front of the servers; this module has the bars.
//!
//! Limits: no request fails while another way is left; none takes longer than the deadlines of
//! the proxy allow; the server is used again within 10 s; a distance of 700 ms alone takes no
//! server out of service. The short form is part of every test run, so its times have room for a
//! busy machine; the full form judges speed.

mod bench;
mod clients;
mod server;

use std::io::IsTerminal as _;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::campaign::Campaign;
use bench::{Cell, Fault, Figures, Role, USED_TIME};
use clients::Load;
use server::Lie;

/// Arguments of `failures`.
#[derive(clap::Args)]
pub struct Args {
    /// A few cells, in less than a minute
    #[arg(long)]
    short: bool,
    /// Play only the cells with these words in their name: "parent, hung", "load", …
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
    /// Cells without load that are played at once
    #[arg(long, default_value_t = 4, value_name = "CELLS")]
    at_once: usize,
    /// How long each fault lasts
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    seconds: u64,
}

/// Plays the matrix.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let example = example(campaign)?;
    let mut cells = cells(args);
    for role in Role::ALL {
        let is_lacking = role.kind().is_some_and(|kind| !has_kind(&example, kind));
        if is_lacking && cells.iter().any(|cell| cell.role == role) {
            let why = "this build has no such `kind` in [[peer]]";
            campaign.report.skip(role.name(), why);
            cells.retain(|cell| cell.role != role);
        }
    }
    ensure!(!cells.is_empty(), "no cell has these words in its name");
    let bar = progress_bar(cells.len());
    // Cells under load share the processors with no other cell.
    let (idle, load): (Vec<Cell>, Vec<Cell>) =
        cells.into_iter().partition(|cell| cell.load == Load::Idle);
    play(args, campaign, &bar, idle, args.at_once.max(1)).await?;
    play(args, campaign, &bar, load, 1).await?;
    bar.finish_and_clear();
    Ok(())
}

/// Plays these cells, so many at once.
async fn play(
    args: &Args,
    campaign: &mut Campaign,
    bar: &ProgressBar,
    cells: Vec<Cell>,
    at_once: usize,
) -> anyhow::Result<()> {
    let turns = Arc::new(Semaphore::new(at_once));
    let mut playing = JoinSet::new();
    let bars = args.bars();
    for cell in cells {
        let fault_time = args.fault_time(bars.extra_max(cell));
        let (command, folder) = (campaign.proxy()?, campaign.folder().to_owned());
        let turns = Arc::clone(&turns);
        playing.spawn(async move {
            let _turn = turns.acquire_owned().await?;
            let figures = cell.play(command, &folder, fault_time).await;
            anyhow::Ok((cell, figures))
        });
    }
    while let Some(played) = playing.join_next().await {
        let (cell, figures) = played??;
        bar.suspend(|| tell(campaign, cell, figures, bars));
        bar.inc(1);
    }
    Ok(())
}

fn tell(campaign: &mut Campaign, cell: Cell, figures: anyhow::Result<Figures>, bars: Bars) {
    let report = &mut campaign.report;
    let figures = match figures {
        Ok(figures) => figures,
        Err(error) => return report.check(cell.name(), false, format!("{error:#}")),
    };
    let missed = bars.missed(cell, &figures);
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let back = figures.back.map(ms);
    let mut detail = format!(
        "{} of {} failed; extra {} ms median, {} ms longest; used again after {} ms",
        figures.failed.len() + figures.wrong.len(),
        figures.requests,
        ms(figures.extra_median),
        ms(figures.extra_max),
        back.map_or("?".to_owned(), |ms| ms.to_string()),
    );
    for what in &missed {
        detail += &format!("\n        {what}");
    }
    let values = json!({
        "requests": figures.requests,
        "failed": figures.failed.len(),
        "failed_after_2_s": figures.failed_late,
        "wrong": figures.wrong.len(),
        "usual_ms": ms(figures.usual),
        "extra_median_ms": ms(figures.extra_median),
        "extra_max_ms": ms(figures.extra_max),
        "used_again_ms": back,
        "called_dead": figures.deaths,
    });
    report.figures(cell.name(), missed.is_empty().into(), detail, values);
}

impl Args {
    fn bars(&self) -> Bars {
        if self.short { SHORT_BARS } else { BARS }
    }

    /// How long the fault of a cell lasts. What hangs goes on when the fault ends, so only a fault
    /// that is longer than the bar shows a request without a deadline.
    fn fault_time(&self, extra_max: Duration) -> Duration {
        let named = Duration::from_secs(self.seconds);
        if self.short {
            named.max(extra_max + BEYOND_BAR)
        } else {
            named
        }
    }
}

/// Times that a cell is judged by.
#[derive(Clone, Copy, Debug)]
struct Bars {
    /// What a busy machine may add to a request.
    slack: Duration,
    /// Within this time after its fault, a server is used again.
    back_time: Duration,
}

impl Bars {
    /// The bars that a cell has missed.
    fn missed(self, cell: Cell, figures: &Figures) -> Vec<String> {
        let Figures { failed, wrong, .. } = figures;
        let mut missed: Vec<String> = wrong.iter().take(SHOWN).cloned().collect();
        let failed_max = match (cell.fault, cell.role) {
            // The client was promised more than there is; the proxy can only say so.
            (Fault::Lying(Lie::WrongLength), _) => figures.requests,
            (_, Role::Origin) => figures.requests / ORIGIN_FAILED_PARTS,
            _ => 0,
        };
        if failed.len() > failed_max {
            missed.extend(failed.iter().take(SHOWN).cloned());
        }
        if cell.role == Role::Origin && failed_max < figures.requests && figures.failed_late > 0 {
            missed.push(format!("{} failed after 2 s", figures.failed_late));
        }
        let bar = self.extra_max(cell);
        if figures.extra_max > bar {
            missed.push(format!(
                "a request took {:?} longer, bar {bar:?}",
                figures.extra_max
            ));
        }
        match figures.back {
            Some(back) if back <= self.back_time => {}
            _ => missed.push(format!("not used again within {:?}", self.back_time)),
        }
        if cell.fault == Fault::Distant && figures.deaths > 0 {
            missed.push(format!("called dead {} times", figures.deaths));
        }
        missed
    }

    /// The time that a request may take longer with the fault.
    fn extra_max(self, cell: Cell) -> Duration {
        let deadline = match (cell.role, cell.fault) {
            (_, Fault::Distant) => Duration::from_secs(2),
            // A query, a connection and a head, of which none is waited for longer than this.
            (Role::Sibling, Fault::Hung | Fault::Slow) => Duration::from_secs(2),
            // A head is late after 2 s; within 3.5 s more a probe shows that the peer hangs.
            (_, Fault::Hung | Fault::Slow) => Duration::from_millis(5500),
            (_, Fault::Killed | Fault::Lying(_) | Fault::Cut) => Duration::from_secs(1),
        };
        deadline + self.slack
    }
}

fn cells(args: &Args) -> Vec<Cell> {
    let mut cells = vec![];
    for load in [Load::Idle, Load::Load] {
        for role in Role::ALL {
            let status = match role {
                Role::Sibling => 504,
                _ => 502,
            };
            let mut faults = vec![Fault::Killed, Fault::Hung, Fault::Slow];
            if role != Role::Parents {
                faults.extend([
                    Fault::Lying(Lie::Status(status)),
                    Fault::Lying(Lie::Garbage),
                    Fault::Lying(Lie::BrokenContent),
                    Fault::Lying(Lie::WrongLength),
                    Fault::Cut,
                    Fault::Distant,
                ]);
            }
            cells.extend(faults.into_iter().map(|fault| Cell { role, fault, load }));
        }
    }
    let is_short = |cell: &Cell| {
        let key = (cell.role, cell.fault, cell.load);
        SHORT.contains(&key)
    };
    cells.retain(|cell| !args.short || is_short(cell));
    if let Some(words) = &args.only {
        cells.retain(|cell| cell.name().contains(words.as_str()));
    }
    cells
}

/// The commented configuration that the binary prints.
fn example(campaign: &Campaign) -> anyhow::Result<String> {
    let binary = campaign.binary()?;
    let output = Command::new(binary).args(["config", "example"]).output();
    let output = output.with_context(|| format!("cannot run {}", binary.display()))?;
    ensure!(
        output.status.success(),
        "`config example`: {}",
        output.status
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether the example says that a peer may have this kind: in the text above the table.
fn has_kind(example: &str, kind: &str) -> bool {
    let above = example.split("#[[peer]]").next().unwrap_or_default();
    let text = above.rsplit("\n# ----").next().unwrap_or_default();
    text.split(|c: char| !c.is_alphanumeric())
        .any(|word| word == kind)
}

/// A progress bar on a terminal, nothing elsewhere.
fn progress_bar(cells: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("failures {wide_bar} {pos}/{len} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(cells as u64).with_style(style)
}

/// The cells of a short run.
const SHORT: [(Role, Fault, Load); 6] = [
    (Role::Sibling, Fault::Hung, Load::Idle),
    (Role::Parents, Fault::Hung, Load::Idle),
    (Role::Parent, Fault::Cut, Load::Idle),
    (Role::Sibling, Fault::Distant, Load::Idle),
    (Role::Member, Fault::Killed, Load::Idle),
    (Role::Origin, Fault::Killed, Load::Load),
];
const BARS: Bars = Bars {
    slack: Duration::from_secs(1),
    back_time: Duration::from_secs(10),
};
/// Of the short form: a thread, a process or a write may stand still for seconds.
const SHORT_BARS: Bars = Bars {
    slack: Duration::from_secs(5),
    back_time: USED_TIME,
};
const BEYOND_BAR: Duration = Duration::from_secs(4);
/// Of a thousand requests to a site, one may fail.
const ORIGIN_FAILED_PARTS: usize = 1000;
/// Errors that a row shows.
const SHOWN: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_known_when_the_text_above_the_table_names_it() {
        let example = "# ---- A ----\n# member\n\n# ---- Peers ----\n# kind: parent: it. sibling: \
                       it.\n#[[peer]]\n#kind = \"parent\"\n# member\n";
        assert!(has_kind(example, "parent") && has_kind(example, "sibling"));
        assert!(!has_kind(example, "member"));
    }
}
