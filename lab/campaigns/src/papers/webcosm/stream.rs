//! What locality buffers do to the one file of a stream: free space, and distances of reads.

use anyhow::Context as _;
use hashcache_layouts::Kind;
use serde_json::Value;

use super::super::curves::{Axis, Scale};
use super::super::figure::{Drawn, Panel, Spread};
use super::super::lab::Lab;
use super::{Runs, capacity_mib, curve, drawn, panel_of_curves};

pub fn figure_14(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    // Until the cache is full, its free space is one piece.
    let filled_kb = capacity_mib(lab) * FILLED_SHARE * 1048.576;
    let mut curves = vec![];
    for (kind, label) in [
        (Kind::Stream, "STREAM"),
        (Kind::StreamLoc, "STREAM-LOC, 128 buffers"),
    ] {
        let runs = Runs::new(lab, kind, "")?;
        // Samples are at the same requests; some runs take longer to fill the cache.
        let samples = runs
            .0
            .iter()
            .map(|run| run["free"].as_array().map_or(0, Vec::len));
        let samples = samples.min().context("no run")?;
        let mut points = vec![];
        for n in 0..samples {
            let requests = runs.0[0]["free"][n][0].as_f64();
            let requests = requests.context("a sample without requests")?;
            let kilobytes = runs.spread(|run| Some(run["free"][n][1].as_f64()? / 1e3))?;
            points.push((requests / 1e3, kilobytes));
        }
        let full = points
            .iter()
            .position(|(_, kilobytes): &(f64, Spread)| kilobytes.most < filled_kb);
        points.drain(..full.context("a cache that was never full")?);
        curves.push(curve(label, points));
    }
    let end = |n: usize| curves[n].points.last().map_or(f64::NAN, |(_, y)| y.median);
    let found = format!(
        "At the end a piece has {:.0} KB without locality buffers and {:.0} KB with them, {:.2} \
         times as much (2.2 times in the paper).",
        end(0),
        end(1),
        end(1) / end(0)
    );
    let panel = Panel {
        unit: "KB",
        ..panel_of_curves(
            "WebCoSM, Figure 14: mean length of a piece of free space",
            Axis::new("thousands of requests", Scale::FromZero),
            curves,
        )
    };
    Ok(Drawn {
        found: vec![found],
        reasons: vec![
            "Pieces are in a cache of fewer bytes than the paper's, at the same share of free \
             space, and sizes of objects are our choice. The curves begin when the cache is full: \
             when the mean is less than a hundredth of it in all runs."
                .to_owned(),
        ],
        ..drawn(lab, vec![panel])
    })
}

pub fn figure_15(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let mut curves = vec![];
    let mut next = vec![];
    for (kind, label) in [
        (Kind::StreamPacketizer, "STREAM-PACKETIZER"),
        (Kind::StreamLoc, "STREAM-LOC, 128 buffers"),
    ] {
        let runs = Runs::new(lab, kind, "")?;
        let percent = |run: &Value, n: usize| {
            let distances = &run["distances"];
            let reads = distances["reads"].as_f64()?;
            Some(distances["within"][n][1].as_f64()? / reads.max(1.0) * 100.0)
        };
        let first = runs.0.first().context("no run")?;
        let bounds = first["distances"]["within"]
            .as_array()
            .context("no distances")?;
        let mut points = vec![];
        for (n, bound) in bounds.iter().enumerate() {
            let blocks = bound[0].as_f64().context("no bound")?;
            points.push((blocks, runs.spread(|run| percent(run, n))?));
        }
        next.push(runs.spread(|run| percent(run, 0))?);
        curves.push(curve(label, points));
    }
    let ten = |n: usize| {
        curves[n]
            .points
            .iter()
            .find(|(x, _)| *x == 10.0)
            .map(|(_, y)| *y)
    };
    let (without, with) = (ten(0).context("no ten")?, ten(1).context("no ten")?);
    let found = format!(
        "Within ten blocks of the read before are {} % of the reads without locality buffers and \
         {} % with them (6 and 17 % in the paper); right behind it {} and {} % (1 and 4 %).",
        without.show(1),
        with.show(1),
        next[0].show(1),
        next[1].show(1)
    );
    let panel = Panel {
        unit: "% of reads within that distance",
        digits: 1,
        ..panel_of_curves(
            "WebCoSM, Figure 15: distance between reads",
            Axis::new("blocks of 512 bytes", Scale::Logarithmic),
            curves,
        )
    };
    Ok(Drawn {
        found: vec![found],
        reasons: vec![
            "The figure of the paper is a histogram; this one adds up. 100 clients take turns \
             here, so reads of one page are rarely neighbours in time, wherever its objects lie. \
             The paper's clients came as its trace says."
                .to_owned(),
        ],
        ..drawn(lab, vec![panel])
    })
}

/// Pieces of free space in a full cache are shorter than this share of it.
const FILLED_SHARE: f64 = 0.01;
