//! Section `content`: what releases, pages and incompressible content take on the link.
//!
//! A client fetches one release through the child, then the next, at the same URLs or at new ones;
//! every byte is compared. The relay counts what the parent has sent for the second release.
//!
//! Limits: at the same path 1.2 times what a delta alone takes, and 150 bytes a response; at new
//! URLs 9 % (monaco-editor), 15 % (wheels), 11 % (pages). At the same path, in the long form, also
//! five reads of each device for a MB of the older release after a restart of both boxes, which
//! group what they store by origin.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{BodyEnd, Client};
use serde_json::json;

use super::boxes::{Pair, Settings, Side, Used};
use super::chunks::device_reads;
use super::made;
use super::packages::{self, COMPRESSED, File, NEW_URL, Releases, SAME_PATH, WHEELS};
use super::percent::percent;
use super::site::{Served, Site};
use super::warc;
use super::{Args, Progress};
use crate::campaign::Campaign;
use crate::report::{Verdict, show_bytes};

/// Where the newer release is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urls {
    /// At the URLs of the older one.
    Same,
    /// At others, which are fresh.
    New,
}

/// What two releases have taken.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Content of the newer release.
    pub plain: u64,
    pub responses: u64,
    pub used: Used,
    /// The same of the older release.
    first_plain: u64,
    first: Used,
    /// How often the child's log names each coding, for the newer release.
    codings: BTreeMap<String, u64>,
}

impl Measured {
    /// Percent of the content that came over the link.
    pub fn percent(&self) -> f64 {
        percent(self.used.down, self.plain)
    }

    fn detail(&self) -> String {
        let codings = self.codings.iter();
        let codings: Vec<String> = codings
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        format!(
            "of {} in {} responses ({}); requests {:.2} %; the first release {:.1} %",
            show_bytes(self.plain),
            self.responses,
            codings.join(", "),
            percent(self.used.up, self.plain),
            percent(self.first.down, self.first_plain),
        )
    }
}

/// Plays the section.
pub async fn run(args: &Args, campaign: &mut Campaign, progress: &Progress) -> anyhow::Result<()> {
    progress.expect(if args.short {
        2
    } else {
        (SAME_PATH.len() + NEW_URL.len() + 4) as u64
    });
    if args.short {
        let releases = made::releases(6, 400_000);
        // The delta of these edits alone, at level 3.
        let measured = measure(campaign, "made", &releases, Urls::Same).await;
        same_path(campaign, "made text", [0.9, 30.0], measured);
        let measured = measure(campaign, "made-moved", &moved(&releases), Urls::New).await;
        new_urls(campaign, "made text", 2.0, measured);
        progress.step();
        return nothing_saved(campaign, &noise(2_000_000)).await;
    }
    let directory = args.packages()?;
    for set in SAME_PATH.iter().filter(|set| args.plays_set(set.name)) {
        let name = set.name.replace([' ', '.'], "-");
        let measured = match set.changed(&directory) {
            Ok(releases) => measure(campaign, &name, &releases, Urls::Same).await,
            Err(error) => Err(error),
        };
        same_path(campaign, set.name, [set.delta, set.zstd], measured);
        for group_by in [BY_ORIGIN, BY_PAGE] {
            let reads = match set.changed(&directory) {
                Ok(releases) => dictionary_reads(campaign, &name, &releases, group_by).await,
                Err(error) => Err(error),
            };
            reads_row(campaign, set.name, group_by, reads);
        }
        progress.step();
    }
    let moved = NEW_URL.iter().zip(NEW_URL_MAX);
    for (set, bar) in moved.filter(|(set, _)| args.plays_set(set.name)) {
        let name = format!("moved-{}", set.name.replace('.', "-"));
        let measured = match set.moved(&directory) {
            Ok(releases) => measure(campaign, &name, &releases, Urls::New).await,
            Err(error) => Err(error),
        };
        new_urls(campaign, set.name, bar, measured);
        progress.step();
    }
    if args.sets.is_some() {
        return Ok(());
    }
    let wheels = WHEELS.iter().map(|set| set.archives(&directory));
    let measured = match wheels.collect::<anyhow::Result<Vec<_>>>() {
        Ok(wheels) => measure(campaign, "wheels", &together(wheels), Urls::New).await,
        Err(error) => Err(error),
    };
    new_urls(
        campaign,
        "wheels of django, botocore, numpy",
        WHEELS_MAX,
        measured,
    );
    progress.step();
    match &args.warc {
        Some(file) => pages(campaign, file).await,
        None => campaign.report.skip(
            "new URLs, archive.org pages of 2008",
            "open: name the archive with --warc FILE",
        ),
    }
    progress.step();
    match COMPRESSED.archives(&directory) {
        Ok(packages) => nothing_saved(campaign, &packages.new).await?,
        Err(error) => campaign
            .report
            .outcome("nothing saved, npm packages", Err(error)),
    }
    progress.step();
    nothing_saved(campaign, &noise(20_000_000)).await?;
    progress.step();
    Ok(())
}

fn noise(bytes: usize) -> Vec<File> {
    vec![File {
        path: "/noise.jpeg".to_owned(),
        content: made::noise(77, bytes).into(),
    }]
}

/// The same releases, the newer one at other paths.
fn moved(releases: &Releases) -> Releases {
    let mut moved = releases.clone();
    for file in &mut moved.new {
        file.path = format!("/moved{}", file.path);
    }
    moved
}

fn together(all: Vec<Releases>) -> Releases {
    let mut sum = Releases {
        old: vec![],
        new: vec![],
    };
    for releases in all {
        sum.old.extend(releases.old);
        sum.new.extend(releases.new);
    }
    sum
}

/// Sends both releases through a pair of their own.
pub async fn measure(
    campaign: &Campaign,
    name: &str,
    releases: &Releases,
    urls: Urls,
) -> anyhow::Result<Measured> {
    let site = Site::start().await?;
    let settings = Settings::new(&format!("content-{name}"));
    let mut pair = Pair::start(campaign, &settings).await?;
    let begun = pair.used().await?;
    serve(&site, &releases.old, urls);
    fetch(&pair, &site, &releases.old).await?;
    let before = pair.used().await?;
    let known = pair.log(Side::Child).lines().count();
    serve(&site, &releases.new, urls);
    fetch(&pair, &site, &releases.new).await?;
    let after = pair.used().await?;
    pair.check()?;
    let mut codings = BTreeMap::new();
    for line in pair.log(Side::Child).lines().skip(known) {
        let coding = line
            .split_once("link_coding=")
            .map_or("plain", |(_, rest)| {
                rest.split(' ').next().unwrap_or_default()
            });
        *codings.entry(coding.to_owned()).or_default() += 1;
    }
    Ok(Measured {
        plain: packages::bytes(&releases.new),
        responses: releases.new.len() as u64,
        used: after.since(before),
        first_plain: packages::bytes(&releases.old),
        first: before.since(begun),
        codings,
    })
}

pub fn serve(site: &Site, files: &[File], urls: Urls) {
    for file in files {
        let served = match urls {
            Urls::Same => Served::stale(&file.content),
            Urls::New => Served::fresh(&file.content),
        };
        site.set(&file.path, served);
    }
}

/// Fetches these files through the child, one after another, and compares every byte.
pub async fn fetch(pair: &Pair, site: &Site, files: &[File]) -> anyhow::Result<()> {
    let mut client = Client::connect(pair.address()?).await?;
    for file in files {
        let answer = client.get(&site.url(&file.path), &[]).await;
        let answer = answer.with_context(|| format!("no answer for {}", file.path))?;
        ensure!(
            answer.status == 200 && answer.end == BodyEnd::Complete,
            "{}: status {}, {:?}",
            file.path,
            answer.status,
            answer.end
        );
        ensure!(answer.body == *file.content, "{}: wrong bytes", file.path);
    }
    Ok(())
}

/// The two percentages are those of a delta alone, and of zstd alone.
fn same_path(
    campaign: &mut Campaign,
    name: &str,
    [delta, zstd]: [f64; 2],
    outcome: anyhow::Result<Measured>,
) {
    let bar = |measured: &Measured| {
        let heads = percent(measured.responses * RESPONSE_BYTES, measured.plain);
        zstd.min(delta * DELTA_TIMES) + heads
    };
    row(campaign, format!("same path, {name}"), bar, outcome);
}

/// Reads of the devices for the older release as the dictionary of the newer one.
struct DictionaryReads {
    /// At the child and at the parent.
    reads: [u64; 2],
    files: u64,
    bytes: u64,
}

/// Sends both releases at the same URLs, between boxes with this `--group-by`. Both are restarted
/// before the newer release, so that the older one is on disk alone.
async fn dictionary_reads(
    campaign: &Campaign,
    name: &str,
    releases: &Releases,
    group_by: &'static str,
) -> anyhow::Result<DictionaryReads> {
    let site = Site::start().await?;
    let mut settings = Settings::new(&format!("cold-{group_by}-{name}"));
    settings.group_by = Some(group_by);
    let mut pair = Pair::start(campaign, &settings).await?;
    serve(&site, &releases.old, Urls::Same);
    fetch(&pair, &site, &releases.old).await?;
    pair.restart().await?;
    let before = device_reads(&pair)?;
    serve(&site, &releases.new, Urls::Same);
    fetch(&pair, &site, &releases.new).await?;
    let after = device_reads(&pair)?;
    pair.check()?;
    Ok(DictionaryReads {
        reads: [after[0] - before[0], after[1] - before[1]],
        files: releases.old.len() as u64,
        bytes: packages::bytes(&releases.old),
    })
}

fn reads_row(
    campaign: &mut Campaign,
    name: &str,
    group_by: &str,
    outcome: anyhow::Result<DictionaryReads>,
) {
    let what = format!("reads of the dictionary by {group_by}, {name}");
    let DictionaryReads {
        reads,
        files,
        bytes,
    } = match outcome {
        Ok(measured) => measured,
        Err(error) => return campaign.report.outcome(what, Err(error)),
    };
    let bar = DICTIONARY_READS_PER_MB * bytes as f64 / 1e6;
    let verdict = if group_by == BY_ORIGIN {
        reads.iter().all(|&reads| reads as f64 <= bar).into()
    } else {
        Verdict::Told
    };
    let per_mb = |reads: u64| reads as f64 * 1e6 / bytes.max(1) as f64;
    let bar = match verdict {
        Verdict::Told => String::new(),
        _ => format!(", bar {DICTIONARY_READS_PER_MB:.0}"),
    };
    let detail = format!(
        "child {:.2} a MB, parent {:.2}{bar}; {} in {files} files",
        per_mb(reads[0]),
        per_mb(reads[1]),
        show_bytes(bytes)
    );
    let figures = json!({ "child": reads[0], "parent": reads[1], "bytes": bytes, "files": files });
    campaign.report.figures(what, verdict, detail, figures);
}

fn new_urls(campaign: &mut Campaign, name: &str, bar: f64, outcome: anyhow::Result<Measured>) {
    row(campaign, format!("new URLs, {name}"), |_| bar, outcome);
}

fn row(
    campaign: &mut Campaign,
    what: String,
    bar: impl Fn(&Measured) -> f64,
    outcome: anyhow::Result<Measured>,
) {
    let measured = match outcome {
        Ok(measured) => measured,
        Err(error) => return campaign.report.outcome(what, Err(error)),
    };
    let (came, bar) = (measured.percent(), bar(&measured));
    let detail = format!("{came:.3} %, bar {bar:.3} %, {}", measured.detail());
    let figures = json!({
        "percent": came,
        "bar_percent": bar,
        "plain_bytes": measured.plain,
        "down_bytes": measured.used.down,
        "up_bytes": measured.used.up,
        "responses": measured.responses,
        "first_percent": percent(measured.first.down, measured.first_plain),
        "codings": measured.codings,
    });
    campaign
        .report
        .figures(what, (came <= bar).into(), detail, figures);
}

/// The pages of a crawl, one after another: each may be coded with those before it.
async fn pages(campaign: &mut Campaign, file: &std::path::Path) {
    let pages = warc::pages(file, "www.archive.org");
    let measured = match pages {
        Ok(new) => {
            let releases = Releases { old: vec![], new };
            measure(campaign, "pages", &releases, Urls::New).await
        }
        Err(error) => Err(error),
    };
    new_urls(campaign, "archive.org pages of 2008", PAGES_MAX, measured);
}

/// Content in which neither an older version nor zstd saves anything, against the same content in
/// ordinary HTTP on the same link. TLS 1.3 alone adds 0.13 % (22 bytes to each record of 16 KiB)
/// and HTTP/2 0.06 %, so a bar of 100.1 % of the content itself could not be met by any program.
async fn nothing_saved(campaign: &mut Campaign, files: &[File]) -> anyhow::Result<()> {
    let site = Site::start().await?;
    let name = files[0]
        .path
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_owned();
    let settings = Settings::new(&format!("nothing-{}", name.replace('.', "-")));
    let pair = Pair::start(campaign, &settings).await?;
    serve(&site, files, Urls::New);
    let before = pair.used().await?;
    fetch(&pair, &site, files).await?;
    let coded = pair.used().await?.since(before).down;
    // A request with credentials takes no part in the coding.
    let plain_before = pair.used().await?;
    let mut client = Client::connect(pair.address()?).await?;
    for file in files {
        let url = site.url(&format!("/plain{}", file.path));
        site.set(
            &format!("/plain{}", file.path),
            Served::fresh(&file.content),
        );
        let answer = client.get(&url, &[("Authorization", "Basic eDp5")]).await?;
        ensure!(answer.body == *file.content, "{}: wrong bytes", file.path);
    }
    let uncoded = pair.used().await?.since(plain_before).down;
    let plain = packages::bytes(files);
    let times = percent(coded, uncoded);
    campaign.report.figures(
        format!("nothing saved, {name}"),
        (times <= NOTHING_MAX).into(),
        format!(
            "{times:.3} % of what it takes uncoded, bar {NOTHING_MAX} %; of {} itself {:.3} % \
             coded, {:.3} % uncoded",
            show_bytes(plain),
            percent(coded, plain),
            percent(uncoded, plain)
        ),
        json!({ "plain_bytes": plain, "coded_bytes": coded, "uncoded_bytes": uncoded }),
    );
    Ok(())
}

/// The client sends no Referer, as programs that fetch whole releases do: `--group-by origin` is
/// meant for those, and has the bar.
const BY_ORIGIN: &str = "origin";
/// With the default each file is a page of its own.
const BY_PAGE: &str = "page";
/// Reads of a device for each MB of a dictionary.
const DICTIONARY_READS_PER_MB: f64 = 5.0;
/// What the whole may take, in parts of the delta alone.
const DELTA_TIMES: f64 = 1.2;
/// For head, checks and end of a response, bytes.
const RESPONSE_BYTES: u64 = 150;
/// For the sets of `NEW_URL`, percent: for three.js 1.2 times what a delta alone takes.
const NEW_URL_MAX: [f64; 2] = [9.0, 2.2];
const WHEELS_MAX: f64 = 15.0;
const PAGES_MAX: f64 = 11.0;
const NOTHING_MAX: f64 = 100.1;
