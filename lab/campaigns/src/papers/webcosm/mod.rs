//! The figures of WebCoSM: layouts of files on a modelled disk, by `cargo campaign layouts`.

mod by_use;
mod files;
mod foxy;
mod stream;

use anyhow::Context as _;
use hashcache_layouts::Kind;
use serde_json::Value;

use super::curves::{Axis, Scale};
use super::figure::{Curve, Curves, Drawing, Drawn, Figure, Panel, Paper, Spread, runs_of};
use super::lab::Lab;

pub fn figures() -> Vec<Figure> {
    let figure = |id, place, title, finding, draw| Figure {
        id,
        paper: Paper::Webcosm,
        place,
        title,
        finding,
        draw,
    };
    vec![
        figure(
            "webcosm-table-2",
            "Table 2",
            "requests/s of each layout",
            "The best layout, LAZY-READS-LOC, serves 495 requests/s, 18.3 times as many as SQUID \
             (27). SIMPLE has 18, MULTIPLE-DIRS 31, BUDDY 133, STREAM 295, STREAM-PACKETIZER 358, \
             LAZY-READS 396 and STREAM-LOC 460.",
            files::table_2,
        ),
        figure(
            "webcosm-figure-6",
            "Figure 6",
            "the cost of a file for each object",
            "BUDDY takes forty minutes for 300,000 operations; the three layouts with a file for \
             each object take six to ten times as long.",
            files::figure_6,
        ),
        figure(
            "webcosm-figure-7",
            "Figure 7",
            "BUDDY by its threshold",
            "The time falls quickly as the threshold rises. At 256 blocks (128 KB) it is almost \
             the least, and higher thresholds gain nothing noticeable.",
            files::figure_7,
        ),
        figure(
            "webcosm-figure-10",
            "Figure 10",
            "BUDDY and STREAM by the use of the disk",
            "BUDDY is unaffected by how full the disk is. STREAM is more than twice as fast as \
             BUDDY at 70 %, and comparable at 90 to 95 %.",
            by_use::figure_10,
        ),
        figure(
            "webcosm-figure-11",
            "Figure 11",
            "STREAM and STREAM-PACKETIZER by the use of the disk",
            "STREAM-PACKETIZER is consistently faster, by as much as 20 % where the disk is little \
             used.",
            by_use::figure_11,
        ),
        figure(
            "webcosm-figure-12",
            "Figure 12",
            "LAZY-READS by the use of the disk",
            "LAZY-READS, ten reads at a time, is about 10 % faster than STREAM-PACKETIZER.",
            by_use::figure_12,
        ),
        figure(
            "webcosm-figure-14",
            "Figure 14",
            "mean length of a piece of free space",
            "With locality buffers a piece has about 145 KB after the warm-up, without them about \
             65 KB, fluctuating.",
            stream::figure_14,
        ),
        figure(
            "webcosm-figure-15",
            "Figure 15",
            "distance between reads that follow each other",
            "With 128 locality buffers 17 % of the reads are within ten blocks of the read before \
             (8,400), without them 6 % (3,200). 1,885 and 611 reads are for the next block.",
            stream::figure_15,
        ),
        figure(
            "webcosm-figure-16",
            "Figure 16",
            "locality buffers by the use of the disk",
            "Eight locality buffers gain 5 to 20 % over LAZY-READS. With 128 of them and 76 % of \
             the disk in use, LAZY-READS-LOC is 2.5 times as fast as LAZY-READS and \
             STREAM-PACKETIZER.",
            by_use::figure_16,
        ),
        figure(
            "webcosm-figure-18",
            "Figure 18",
            "throughput of SQUID and Foxy by the load",
            "SQUID's throughput levels off and decreases at 90 requests/s. Foxy, which has \
             STREAM-PACKETIZER, follows the load up to 340 requests/s.",
            foxy::figure_18,
        ),
        figure(
            "webcosm-figure-19",
            "Figure 19",
            "response time of SQUID and Foxy by the load",
            "SQUID's response time rises from 50 requests/s on, to almost 8 seconds at 90. Foxy \
             serves 340 requests/s with about 0.7 seconds.",
            foxy::figure_19,
        ),
        figure(
            "webcosm-figure-20",
            "Figure 20",
            "network bandwidth of SQUID and Foxy by the load",
            "Up to 50 requests/s both take the same bandwidth. Beyond that SQUID takes more, 45 % \
             at 110 requests/s, because it fetches objects again when its disk is overloaded.",
            foxy::figure_20,
        ),
    ]
}

/// Runs of one layout, as `cargo campaign layouts` reports them.
struct Runs(Vec<Value>);

impl Runs {
    /// Runs `layout` on the disk of the paper, with more flags of `layouts`.
    fn new(lab: &mut Lab<'_>, layout: Kind, flags: &str) -> anyhow::Result<Self> {
        let size = lab.size();
        let capacity = capacity_mib(lab);
        let (requests, runs) = (size.of(1000, 10_000, 20_000), size.of(1, 3, 3));
        let command = format!(
            "cargo campaign layouts --disk 1999 --file-system ufs --workload dec --layout {layout} \
             --capacity {capacity} --requests {requests} {flags} --runs {runs} --seed 1 --json"
        );
        let rows = lab.json(&command, &KEPT)?;
        let runs = rows[0]["runs"].as_array().context("no runs of a layout")?;
        Ok(Self(runs.clone()))
    }

    fn spread(&self, figure: impl Fn(&Value) -> Option<f64>) -> anyhow::Result<Spread> {
        let figures: Option<Vec<f64>> = self.0.iter().map(figure).collect();
        let spread = figures.and_then(Spread::from_values);
        spread.context("a run of a layout lacks a figure")
    }

    /// Requests per second of the disk's time.
    fn rate(&self) -> anyhow::Result<Spread> {
        self.spread(|run| Some(run["requests"].as_f64()? / seconds(run)?))
    }

    /// Seconds for so many reads, writes and deletes of objects.
    fn seconds_for(&self, operations: f64) -> anyhow::Result<Spread> {
        self.spread(|run| {
            let count = |name: &str| run[name].as_f64();
            let all = count("object_reads")? + count("object_writes")? + count("object_deletes")?;
            Some(seconds(run)? * operations / all)
        })
    }
}

/// The cache on disk.
fn capacity_mib(lab: &Lab<'_>) -> f64 {
    lab.size().of(8.0, 64.0, 128.0)
}

fn seconds(run: &Value) -> Option<f64> {
    Some(run["busy_ns"].as_f64()? / 1e9)
}

fn drawn(lab: &Lab<'_>, panels: Vec<Panel>) -> Drawn {
    let size = lab.size();
    Drawn {
        workload: format!(
            "`dec`: pages of 1 to 13 objects of one server, 100 clients in turn, in the \
             proportions of the paper's Table 1, whose trace is gone; {} MiB of cache on disk \
             where the paper has 2 GB, on a modelled disk of 1999 and ext4 made like UFS \
             (docs/LAYOUTS.md).",
            capacity_mib(lab)
        ),
        runs: runs_of(size.of(1, 3, 3)),
        panels,
        found: vec![],
        reasons: vec![],
    }
}

fn curve(label: &str, points: Vec<(f64, Spread)>) -> Curve {
    Curve {
        label: label.to_owned(),
        points,
        is_dashed: false,
    }
}

fn panel_of_curves(title: &str, x: Axis, curves: Vec<Curve>) -> Panel {
    Panel {
        name: "",
        title: title.to_owned(),
        unit: "seconds for a million operations",
        digits: 0,
        drawing: Drawing::Curves(Curves {
            x,
            y: Scale::FromZero,
            curves,
        }),
    }
}

/// The operations that the paper's times are for.
const MILLION: f64 = 1e6;
const KEPT: [&str; 10] = [
    "runs",
    "requests",
    "busy_ns",
    "object_reads",
    "object_writes",
    "object_deletes",
    "free",
    "distances",
    "reads",
    "within",
];
