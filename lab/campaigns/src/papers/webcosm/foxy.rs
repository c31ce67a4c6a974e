//! The layouts of Squid and Foxy when requests arrive at given rates.

use anyhow::Context as _;
use hashcache_layouts::Kind;

use super::super::curves::{Axis, Scale};
use super::super::figure::{Curve, Drawn, Panel};
use super::super::lab::Lab;
use super::{Runs, capacity_mib, curve, drawn, panel_of_curves};

pub fn figure_18(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let curves = by_load(lab, "throughput", 1.0)?;
    let follows = |curve: &Curve| most_load(curve, |load, rate| rate >= load * 0.95);
    let most = |curve: &Curve| {
        let rates = curve.points.iter().map(|(_, y)| y.median);
        rates.fold(0.0, f64::max)
    };
    let found = format!(
        "SQUID follows the load up to {:.0} requests/s and serves {:.0} at most, Foxy up to {:.0} \
         and {:.0}: {:.1} times as many (four times in the paper).",
        follows(&curves[0]),
        most(&curves[0]),
        follows(&curves[1]),
        most(&curves[1]),
        most(&curves[1]) / most(&curves[0])
    );
    let panel = Panel {
        unit: "requests/s answered",
        ..by_load_panel("WebCoSM, Figure 18: throughput", curves)
    };
    let reasons = "SQUID's throughput does not decrease here, because the queue costs nothing.";
    Ok(foxy(lab, vec![found], reasons, panel))
}

pub fn figure_19(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let mut curves = by_load(lab, "response_ms", 1e-3)?;
    let of = |n: usize| load_of_two_seconds(&curves[n]).context("no load takes two seconds");
    let (squid, foxy_load) = (of(0)?, of(1)?);
    let found = format!(
        "Responses take two seconds on average at {squid:.0} requests/s with SQUID and at \
         {foxy_load:.0} with Foxy, {:.1} times as many (almost 7 times in the paper).",
        foxy_load / squid
    );
    // Beyond that the times say only how long the run was.
    for curve in &mut curves {
        curve
            .points
            .retain(|(_, seconds)| seconds.median <= SECONDS_MAX);
    }
    let panel = Panel {
        unit: "seconds",
        digits: 2,
        ..by_load_panel("WebCoSM, Figure 19: response time", curves)
    };
    let reasons = "What was written for thirty seconds or 4 MiB goes to the disk at once, and \
                   requests wait behind it. Loads at which responses take more than ten seconds \
                   are left out: there the queue grows as long as the run lasts.";
    Ok(foxy(lab, vec![found], reasons, panel))
}

pub fn figure_20(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let curves = by_load(lab, "fetched_bytes_per_s", 1e-3)?;
    let more = curves[0].points.iter().zip(&curves[1].points);
    let more = more.map(|((_, squid), (_, foxy))| squid.median / foxy.median);
    let found = format!(
        "Both fetch the same as long as both follow the load. SQUID fetches at most {:.2} \
         times what Foxy does.",
        more.fold(0.0, f64::max)
    );
    let panel = Panel {
        unit: "kB/s from origin servers",
        ..by_load_panel("WebCoSM, Figure 20: network bandwidth", curves)
    };
    let reasons = "The layout SQUID does not fetch an object again when its disk is overloaded, \
                   as the program Squid did; so this figure is not reproduced, it shows the \
                   misses alone.";
    Ok(foxy(lab, vec![found], reasons, panel))
}

/// Curves of the two layouts by the load.
fn by_load(lab: &mut Lab<'_>, key: &str, factor: f64) -> anyhow::Result<Vec<Curve>> {
    let size = lab.size();
    let (capacity, requests) = (capacity_mib(lab), size.of(1_000, 10_000, 20_000));
    let runs = size.of(1, 3, 3);
    let mut curves = vec![];
    for (kind, label) in [(Kind::Squid, "SQUID"), (Kind::StreamPacketizer, "Foxy")] {
        let command = format!(
            "cargo campaign layouts --disk 1999 --file-system ufs --workload table3 --layout \
             {kind} --capacity {capacity} --requests {requests} --load {LOADS} --runs {runs} \
             --seed 1 --json"
        );
        let rows = lab.json(&command, &KEPT_OF_LOADS)?;
        let runs = Runs(rows[0]["runs"].as_array().context("no runs")?.clone());
        let mut points = vec![];
        for (n, load) in LOADS.split(',').enumerate() {
            let value = runs.spread(|run| run["loads"][n][key].as_f64())?;
            points.push((load.parse()?, value.times(factor)));
        }
        curves.push(curve(label, points));
    }
    Ok(curves)
}

fn foxy(lab: &Lab<'_>, found: Vec<String>, reasons: &str, panel: Panel) -> Drawn {
    let drawn = drawn(lab, vec![panel]);
    Drawn {
        workload: format!(
            "`table3`: the paper's Table 3 (sizes exp(5 KB), 40 % repeated by zipf(0.6), 4 \
             servers, an origin takes a second); {} MiB of cache where the paper has 8 GB, on the \
             modelled disk of 1999. Requests arrive at random and wait for each other's disk \
             time.",
            capacity_mib(lab)
        ),
        found,
        reasons: vec![format!("{QUEUE} {reasons}")],
        ..drawn
    }
}

/// The largest load that a curve follows: with 95 % of it, or with less than so much.
fn most_load(curve: &Curve, keeps_up: impl Fn(f64, f64) -> bool) -> f64 {
    let kept = curve.points.iter().filter(|(x, y)| keeps_up(*x, y.median));
    kept.map(|(x, _)| *x).fold(0.0, f64::max)
}

/// The load at which responses take two seconds, between the two loads that were measured around
/// it. An origin alone takes one.
fn load_of_two_seconds(curve: &Curve) -> Option<f64> {
    let points = curve
        .points
        .iter()
        .map(|(load, seconds)| (*load, seconds.median));
    let points: Vec<(f64, f64)> = points.collect();
    let crossing = points
        .windows(2)
        .find(|two| two[0].1 < 2.0 && two[1].1 >= 2.0)?;
    let ((low, fast), (high, slow)) = (crossing[0], crossing[1]);
    Some(low + (high - low) * (2.0 - fast) / (slow - fast))
}

fn by_load_panel(title: &str, curves: Vec<Curve>) -> Panel {
    panel_of_curves(
        title,
        Axis::new("requests/s offered", Scale::FromZero),
        curves,
    )
}

const LOADS: &str = "1,2,3,5,10,15,20,25,30,40,50,60,70,80,90,110,140,180,220,260,300,340";
const SECONDS_MAX: f64 = 10.0;
const QUEUE: &str = "\
The paper has the programs Squid and Foxy; here only their layouts differ, and everything but the \
disk takes no time. The disk is that of the paper's Table 2, not the faster one of its section \
4.2.";

const KEPT_OF_LOADS: [&str; 5] = [
    "runs",
    "loads",
    "throughput",
    "response_ms",
    "fetched_bytes_per_s",
];
