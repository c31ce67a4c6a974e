//! `cargo campaign papers`: draws figures of the papers again, from measurements of ours, and makes
//! the page docs/papers/README.md of them; with `--html` also index.html, which git ignores.
//!
//! - `webcosm`, `hashcache`, `harvest`: the figures of each paper.
//! - `figure`: what a figure is, and what was drawn; `curves` draws curves, `page` makes the pages.
//! - `lab`: runs the commands that figures ask for and keeps what they print, in
//!   docs/papers/results.json.
//!
//! Several figures are measured at once. Nearly all is counted in modelled time, which does not
//! depend on what else the machine does.
//!
//! Invariant: each number on the page is one that a named command prints, or is calculated from
//! such numbers, and a figure that was not drawn is on the page with the reason.

mod curves;
mod figure;
mod harvest;
mod hashcache;
mod lab;
mod page;
mod webcosm;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::IsTerminal as _;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::campaign::Campaign;
use crate::root;
use figure::Figure;
use lab::{Bench, Results, Unavailable};
use page::{Entry, State};

/// Arguments of `papers`.
#[derive(clap::Args)]
pub struct Args {
    /// Measure with small sizes: ten minutes on two cores
    #[arg(long)]
    quick: bool,
    /// Only a few figures with tiny sizes, to see that they are drawn; writes nothing to docs/
    #[arg(long, conflicts_with_all = ["quick", "redraw"])]
    short: bool,
    /// Measure only these figures; the others stay as they are
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    only: Vec<String>,
    /// Measure nothing: make pictures and pages again from the results that were kept
    #[arg(long, conflicts_with_all = ["quick", "only"])]
    redraw: bool,
    /// Write index.html as well: the page as one file with the pictures in it
    #[arg(long)]
    html: bool,
    /// Figures that are measured at once [default: as many as there are cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Directory for pictures, pages and results [default: docs/papers]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

/// How large the measurements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Size {
    Short,
    Quick,
    Full,
}

impl Size {
    /// One of three values.
    fn of<T>(self, short: T, quick: T, full: T) -> T {
        match self {
            Self::Short => short,
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.of("short", "quick", "full"))
    }
}

/// Measures, draws and writes.
pub fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let all = figures();
    check_names(args, &all)?;
    let directory = match &args.output {
        Some(directory) => directory.clone(),
        None if args.short => campaign.folder().join("papers"),
        None => root().join("docs/papers"),
    };
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let entries = draw_all(args, campaign, &all, &directory)?;
    write(campaign, &entries, &directory, args.html)
}

/// All figures in the order of the page.
fn figures() -> Vec<Figure> {
    [webcosm::figures(), hashcache::figures(), harvest::figures()].concat()
}

fn check_names(args: &Args, all: &[Figure]) -> anyhow::Result<()> {
    let known = |name: &str| all.iter().any(|figure| figure.id == name);
    if let Some(name) = args.only.iter().find(|name| !known(name)) {
        let names: Vec<&str> = all.iter().map(|figure| figure.id).collect();
        bail!("no figure `{name}`; there are {}", names.join(", "));
    }
    Ok(())
}

fn draw_all<'a>(
    args: &Args,
    campaign: &mut Campaign,
    all: &'a [Figure],
    directory: &Path,
) -> anyhow::Result<Vec<Entry<'a>>> {
    let results_file = directory.join(RESULTS);
    let size = match (args.short, args.quick) {
        (true, _) => Size::Short,
        (false, true) => Size::Quick,
        (false, false) => Size::Full,
    };
    let is_measured = |figure: &Figure| {
        let is_wanted = match args.only.as_slice() {
            [] => !args.short || SHORT.contains(&figure.id),
            named => named.iter().any(|id| id == figure.id),
        };
        is_wanted && !args.redraw
    };
    let to_measure: Vec<&Figure> = all.iter().filter(|figure| is_measured(figure)).collect();
    let bar = progress_bar(to_measure.len());
    let bench = Bench::new(campaign, &bar, Results::read(&results_file)?);
    let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
    let jobs = args.jobs.map_or_else(cores, usize::from);
    let mut outcomes = measure_all(&bench, &to_measure, size, jobs, &results_file)?;
    let mut lab = bench.lab();
    let mut entries = vec![];
    let mut used = BTreeSet::new();
    // Figures share commands, so none is drawn before all are measured. A figure that could not be
    // measured now is drawn from what is kept of it.
    for figure in all {
        let drawn = lab.redraw(figure.id).map(|()| (figure.draw)(&mut lab));
        if drawn.is_some() {
            used.extend(lab.asked().iter().cloned());
        }
        let failed = outcomes.iter().find(|it| it.figure.id == figure.id);
        let state = match drawn {
            Some(Ok(drawn)) => State::Drawn {
                drawn,
                commands: lab.asked().to_vec(),
                size: lab.size(),
            },
            Some(Err(error)) => {
                let reason = format!("{error:#}");
                if failed.is_none() {
                    outcomes.push(NotMeasured {
                        figure,
                        is_unavailable: false,
                        reason: reason.clone(),
                    });
                }
                State::NotDrawn(reason)
            }
            None => {
                let reason = failed.map(|it| it.reason.clone());
                State::NotDrawn(reason.unwrap_or_else(|| NOT_MEASURED.to_owned()))
            }
        };
        entries.push(Entry { figure, state });
    }
    bar.finish_and_clear();
    write_results(&results_file, &bench.finish(&used))?;
    for it in outcomes {
        if it.is_unavailable {
            campaign.report.skip(it.figure.id, it.reason);
        } else {
            campaign.report.check(it.figure.id, false, it.reason);
        }
    }
    Ok(entries)
}

/// A figure that could not be measured, or drawn.
struct NotMeasured<'a> {
    figure: &'a Figure,
    /// This machine cannot measure it.
    is_unavailable: bool,
    reason: String,
}

/// Measures `figures`, `jobs` of them at once; returns those that could not be.
fn measure_all<'a>(
    bench: &Bench<'_>,
    figures: &[&'a Figure],
    size: Size,
    jobs: usize,
    results_file: &Path,
) -> anyhow::Result<Vec<NotMeasured<'a>>> {
    let next = AtomicUsize::new(0);
    // A figure may run a proxy of its own, on the campaign's runtime.
    let runtime = Handle::current();
    let work = || -> anyhow::Result<Vec<NotMeasured<'a>>> {
        let _runtime = runtime.enter();
        let mut lab = bench.lab();
        let mut failures = vec![];
        while let Some(figure) = figures.get(next.fetch_add(1, Ordering::Relaxed)) {
            let begun = Instant::now();
            lab.measure(size);
            let outcome = match (figure.draw)(&mut lab) {
                Ok(_) => {
                    lab.drawn(figure.id);
                    // A run of hours that is interrupted loses one figure.
                    bench.with_results(|results| write_results(results_file, results))?;
                    "measured"
                }
                Err(error) => {
                    lab.failed();
                    failures.push(NotMeasured {
                        figure,
                        is_unavailable: error.is::<Unavailable>(),
                        reason: format!("{error:#}"),
                    });
                    "not measured"
                }
            };
            bench.over(figure.id, outcome, begun.elapsed());
        }
        Ok(failures)
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let mut failures = vec![];
        for worker in workers {
            let outcome = worker
                .join()
                .map_err(|_| anyhow!("a measurement panicked"))?;
            failures.extend(outcome?);
        }
        Ok(failures)
    })
}

/// Replaces the file as a whole: it may have the work of hours.
fn write_results(path: &Path, results: &Results) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    let written = fs::write(&new, results.text()?).and_then(|()| fs::rename(&new, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Writes pictures and pages, and reports each figure.
fn write(
    campaign: &mut Campaign,
    entries: &[Entry<'_>],
    directory: &Path,
    html: bool,
) -> anyhow::Result<()> {
    let put = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    remove_pictures(directory, entries)?;
    for entry in entries {
        let pictures = entry.pictures();
        for (file, panel) in &pictures {
            put(file, &panel.svg())?;
        }
        if let State::Drawn { drawn, .. } = &entry.state {
            let names: Vec<&str> = pictures.iter().map(|(file, _)| file.as_str()).collect();
            let found = format!("{}: {}", names.join(", "), drawn.found.join(" "));
            campaign
                .report
                .check(entry.figure.id, !names.is_empty(), found);
        }
    }
    put("README.md", &page::markdown(entries))?;
    let mut pages = "README.md".to_owned();
    if html {
        put("index.html", &page::html(entries))?;
        pages += ", index.html";
    }
    let pages = format!("{pages} in {}", directory.display());
    campaign.report.tell("pages", pages);
    Ok(())
}

/// Pictures of earlier runs, which this one may not have.
fn remove_pictures(directory: &Path, entries: &[Entry<'_>]) -> anyhow::Result<()> {
    for file in fs::read_dir(directory)? {
        let path = file?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_ours = |entry: &Entry<'_>| name.starts_with(entry.figure.id);
        if name.ends_with(".svg") && entries.iter().any(is_ours) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// A progress bar on a terminal, nothing elsewhere.
fn progress_bar(figures: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("papers {bar:20} {pos}/{len} {elapsed} {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(figures as u64).with_style(style)
}

const RESULTS: &str = "results.json";
const NOT_MEASURED: &str = "It has not been measured yet: `cargo campaign papers` does.";
/// The figures of `--short`.
const SHORT: [&str; 6] = [
    "webcosm-table-2",
    "webcosm-figure-7",
    "hashcache-table-7",
    "hashcache-figure-3",
    "hashcache-figure-8",
    "harvest-consistency",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_names_of_their_own_and_short_names_some_of_each_paper() {
        let all = figures();
        let names: BTreeSet<&str> = all.iter().map(|figure| figure.id).collect();
        assert_eq!(names.len(), all.len());
        for paper in figure::Paper::ALL {
            let is_short = |figure: &&Figure| SHORT.contains(&figure.id) && figure.paper == paper;
            assert!(all.iter().any(|figure| is_short(&figure)), "{paper}");
        }
        assert!(SHORT.iter().all(|name| names.contains(name)));
    }
}
