//! `cargo campaign wan`: the bars of the WAN accelerator, on the built program.
//!
//! A child and a parent with a link between them; all that goes over the link passes a relay, which
//! counts the bytes of the sockets and gives the link its rate, delay, cuts and damage. One module
//! per section; `boxes` starts the pair, `site` is the origin, `packages` has releases that
//! registries ship, `made` those that need no network.
//!
//! Invariant: every byte that a client receives is compared; a section that cannot be played is a
//! row that failed or an open row, which says why.

mod answers;
mod boxes;
mod chunks;
mod content;
mod cost;
mod damage;
mod kills;
mod made;
mod packages;
mod pages;
mod parents;
mod percent;
mod privacy;
mod shedding;
mod site;
mod tls;
mod warc;

use std::fs;
use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};

use crate::campaign::Campaign;

/// Arguments of `wan`.
#[derive(clap::Args)]
pub struct Args {
    /// Each section with made content and few rounds, without a network: less than a minute
    #[arg(long)]
    short: bool,
    /// Play only these sections
    #[arg(long, value_name = "SECTIONS", value_delimiter = ',')]
    only: Vec<Section>,
    /// Play only the sets of releases with these words in their name: "typescript", "Javadoc", …
    #[arg(long, value_name = "WORDS")]
    sets: Option<String>,
    /// Directory for packages, which are fetched with npm, pip and mvn if they are not there
    #[arg(long, value_name = "DIRECTORY")]
    packages: Option<PathBuf>,
    /// How often a box is killed [default: 1000, short: 20]
    #[arg(long)]
    kills: Option<u64>,
    /// Damaged sequences of frames [default: 10000, short: 200]
    #[arg(long)]
    sequences: Option<u64>,
    /// The program Squid [default: the installed one]
    #[arg(long, value_name = "FILE")]
    squid: Option<PathBuf>,
    /// Web archive (WARC, gzip) with pages of www.archive.org
    #[arg(long, value_name = "FILE")]
    warc: Option<PathBuf>,
}

/// A part of the campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Releases, pages and incompressible content: bytes on the link
    Content,
    /// Damaged frames, cuts and inverted bits
    Damage,
    /// One of the boxes is killed in mid-stream
    Kills,
    /// Releases in a TCP stream: bytes on the link
    Chunks,
    /// Processor time and memory of both boxes
    Cpu,
    /// What is never used as a dictionary
    Privacy,
    /// Debian's Squid as the parent
    Parents,
    /// Dictionaries that are left out because the disk is busier than the link
    Shedding,
    /// Time of a page over a long link
    Pages,
}

impl Section {
    const ALL: [Self; 9] = [
        Self::Content,
        Self::Damage,
        Self::Kills,
        Self::Chunks,
        Self::Cpu,
        Self::Privacy,
        Self::Parents,
        Self::Shedding,
        Self::Pages,
    ];

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// Plays the sections.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    for section in Section::ALL {
        if !args.plays(section) {
            continue;
        }
        let progress = Progress::new(section);
        let played = match section {
            Section::Content => content::run(args, campaign, &progress).await,
            Section::Damage => damage::run(args, campaign, &progress).await,
            Section::Kills => kills::run(args, campaign, &progress).await,
            Section::Chunks => chunks::run(args, campaign, &progress).await,
            Section::Cpu => cost::run(args, campaign, &progress).await,
            Section::Privacy => privacy::run(campaign, &progress).await,
            Section::Parents => parents::run(args, campaign, &progress).await,
            Section::Shedding => {
                shedding::run(campaign, &progress);
                Ok(())
            }
            Section::Pages => pages::run(args, campaign, &progress).await,
        };
        progress.end();
        if let Err(error) = played {
            let what = format!("section {}", section.name());
            campaign.report.outcome(what, Err(error));
        }
    }
    Ok(())
}

impl Args {
    fn plays(&self, section: Section) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }

    fn plays_set(&self, name: &str) -> bool {
        self.sets
            .as_ref()
            .is_none_or(|words| name.contains(words.as_str()))
    }

    fn kills(&self) -> u64 {
        self.kills.unwrap_or(if self.short { 20 } else { 1000 })
    }

    fn sequences(&self) -> u64 {
        self.sequences
            .unwrap_or(if self.short { 200 } else { 10_000 })
    }

    /// Cuts and inverted bits on the real link.
    fn link_damages(&self) -> u64 {
        if self.short { 10 } else { 200 }
    }

    /// The directory for packages: the named one, else one among the user's temporary files.
    fn packages(&self) -> anyhow::Result<PathBuf> {
        let otherwise = || std::env::temp_dir().join("hashcache-packages");
        let directory = self.packages.clone().unwrap_or_else(otherwise);
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        Ok(directory.canonicalize()?)
    }
}

/// A progress bar on a terminal, nothing elsewhere.
#[derive(Clone)]
struct Progress(ProgressBar);

impl Progress {
    fn new(section: Section) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(0).with_style(style);
        Self(bar.with_message(format!("wan, {}", section.name())))
    }

    /// How many steps there are.
    fn expect(&self, steps: u64) {
        self.0.set_length(steps);
    }

    fn step(&self) {
        self.0.inc(1);
    }

    fn end(&self) {
        self.0.finish_and_clear();
    }
}
