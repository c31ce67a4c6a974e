//! Layouts by how much of the disk is in use.

use anyhow::Context as _;
use hashcache_layouts::Kind;

use super::super::curves::{Axis, Scale};
use super::super::figure::{Curve, Drawn, Spread};
use super::super::lab::Lab;
use super::{MILLION, Runs, curve, drawn, panel_of_curves};

pub fn figure_10(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let curves = by_use(
        lab,
        &[(Kind::Buddy, "BUDDY", ""), (Kind::Stream, "STREAM", "")],
    )?;
    let found = format!(
        "STREAM is {} times as fast as BUDDY.",
        range(&gains(&curves[0], &curves[1]))
    );
    let buddy = Spread::from_values(curves[0].points.iter().map(|(_, y)| y.median).collect());
    let buddy = buddy.context("no points")?;
    let flat = format!(
        "The longest time of BUDDY is {:.2} times the shortest.",
        buddy.most / buddy.least
    );
    use_figure(
        lab,
        "WebCoSM, Figure 10: by the use of the disk",
        curves,
        vec![found, flat],
        &[USE],
    )
}

pub fn figure_11(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let layouts = [
        (Kind::Stream, "STREAM", ""),
        (Kind::StreamPacketizer, "STREAM-PACKETIZER", ""),
    ];
    let curves = by_use(lab, &layouts)?;
    let found = format!(
        "STREAM-PACKETIZER is {} times as fast as STREAM.",
        range(&gains(&curves[0], &curves[1]))
    );
    use_figure(
        lab,
        "WebCoSM, Figure 11: by the use of the disk",
        curves,
        vec![found],
        &[BLOCKS, USE],
    )
}

pub fn figure_12(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let layouts = [
        (Kind::StreamPacketizer, "STREAM-PACKETIZER", ""),
        (Kind::LazyReads, "LAZY-READS", ""),
    ];
    let curves = by_use(lab, &layouts)?;
    let found = format!(
        "LAZY-READS is {} times as fast as STREAM-PACKETIZER.",
        range(&gains(&curves[0], &curves[1]))
    );
    use_figure(
        lab,
        "WebCoSM, Figure 12: by the use of the disk",
        curves,
        vec![found],
        &[USE],
    )
}

pub fn figure_16(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let layouts = [
        (Kind::StreamPacketizer, "STREAM-PACKETIZER", ""),
        (Kind::LazyReads, "LAZY-READS", ""),
        (
            Kind::LazyReadsLoc,
            "LAZY-READS-LOC, 8 buffers",
            "--buffers 8",
        ),
        (
            Kind::LazyReadsLoc,
            "LAZY-READS-LOC, 32 buffers",
            "--buffers 32",
        ),
        (Kind::LazyReadsLoc, "LAZY-READS-LOC, 128 buffers", ""),
    ];
    let curves = by_use(lab, &layouts)?;
    let found = vec![
        format!(
            "8 buffers make LAZY-READS {} times as fast,",
            range(&gains(&curves[1], &curves[2]))
        ),
        format!(
            "128 buffers {} times.",
            range(&gains(&curves[1], &curves[4]))
        ),
    ];
    use_figure(
        lab,
        "WebCoSM, Figure 16: by the use of the disk",
        curves,
        found,
        &[TURNS, USE],
    )
}

/// Curves of layouts by how much of the disk is in use.
fn by_use(lab: &mut Lab<'_>, layouts: &[(Kind, &str, &str)]) -> anyhow::Result<Vec<Curve>> {
    let uses: &[u64] = lab.size().of(
        &[70, 90],
        &[60, 70, 76, 94],
        &[60, 65, 70, 76, 82, 88, 91, 95],
    );
    let mut curves = vec![];
    for (kind, label, flags) in layouts {
        let mut points = vec![];
        for high in uses {
            // 70 % is the default, which other figures share.
            let high_flag = match high {
                70 => String::new(),
                high => format!("--high {high}"),
            };
            let runs = Runs::new(lab, *kind, &format!("{flags} {high_flag}"))?;
            points.push((*high as f64, runs.seconds_for(MILLION)?));
        }
        curves.push(curve(label, points));
    }
    Ok(curves)
}

fn use_figure(
    lab: &Lab<'_>,
    title: &str,
    curves: Vec<Curve>,
    found: Vec<String>,
    reasons: &[&str],
) -> anyhow::Result<Drawn> {
    let x = Axis::new("use of the cache on disk, %", Scale::FromLeast);
    Ok(Drawn {
        found,
        reasons: reasons.iter().map(|&it| it.to_owned()).collect(),
        ..drawn(lab, vec![panel_of_curves(title, x, curves)])
    })
}

/// How often as fast the second curve is as the first, at each place; the least and the largest,
/// each with its place.
fn gains(slow: &Curve, fast: &Curve) -> Vec<(f64, f64)> {
    let pairs = slow.points.iter().zip(&fast.points);
    pairs
        .map(|((x, slow), (_, fast))| (*x, slow.median / fast.median))
        .collect()
}

fn range(gains: &[(f64, f64)]) -> String {
    let least = gains.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
    let most = gains.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
    match (least, most) {
        (Some((low, least)), Some((high, most))) => {
            format!("{least:.2} (at {low} %) to {most:.2} (at {high} %)")
        }
        _ => String::new(),
    }
}

const USE: &str = "\
The share in use is that of the watermark above which objects are deleted; deletion ends 2 % \
below. The cache is smaller than the paper's and the requests are ours.";
/// docs/LAYOUTS.md has the measurements.
const BLOCKS: &str = "\
A write that fills a part of a block makes the kernel read the rest of it: STREAM reads 0.43 \
blocks a request, STREAM-PACKETIZER 0.11 (docs/LAYOUTS.md). The page cache is small here, so \
more of these reads may go to the disk than in the paper, which has no figure for them.";
const TURNS: &str = "\
Locality buffers save seeks (0.075 instead of 0.118 a request, docs/LAYOUTS.md), because fewer \
objects are cut. They bring reads no nearer to each other here, because 100 clients take turns \
(Figure 15). Whether that is all of the difference was not measured.";
