//! What a file for each object costs.

use anyhow::Context as _;
use hashcache_layouts::Kind;

use super::super::curves::{Axis, Scale};
use super::super::figure::{Bar, Drawing, Drawn, Panel, number};
use super::super::lab::Lab;
use super::{MILLION, Runs, curve, drawn, panel_of_curves};

pub fn table_2(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let mut bars = vec![];
    for kind in Kind::ALL {
        bars.push(Bar {
            label: kind.name().to_owned(),
            value: Runs::new(lab, kind, "")?.rate()?,
            paper: Some(kind.published().into()),
            is_ours: true,
        });
    }
    let rate = |kind: Kind| {
        let bar = bars.iter().find(|bar| bar.label == kind.name());
        bar.map_or(f64::NAN, |bar| bar.value.median)
    };
    let out_of_order: Vec<String> = Kind::ALL
        .windows(2)
        .filter(|pair| rate(pair[0]) >= rate(pair[1]))
        .map(|pair| format!("{} is not slower than {}", pair[0], pair[1]))
        .collect();
    let best = Kind::ALL.map(rate).into_iter().fold(0.0, f64::max);
    let order = match out_of_order.as_slice() {
        [] => "The order of the layouts is the paper's.".to_owned(),
        pairs => format!("The order is the paper's, but {}.", pairs.join(" and ")),
    };
    let many = [
        Kind::Buddy,
        Kind::Stream,
        Kind::StreamPacketizer,
        Kind::LazyReads,
        Kind::StreamLoc,
        Kind::LazyReadsLoc,
    ];
    let shares = many.map(|kind| rate(kind) / f64::from(kind.published()));
    let (least, most) = (
        shares.into_iter().fold(f64::MAX, f64::min),
        shares.into_iter().fold(0.0, f64::max),
    );
    let found = format!(
        "{order} The best serves {} requests/s, {:.1} times as many as SQUID. From BUDDY on, \
         where a file has many objects, the rates are {least:.2} to {most:.2} times the paper's.",
        number(best, 0),
        best / rate(Kind::Squid),
    );
    let panel = Panel {
        name: "",
        title: "WebCoSM, Table 2: one disk of 1999".to_owned(),
        unit: "requests/s",
        digits: 0,
        drawing: Drawing::Bars(bars),
    };
    Ok(Drawn {
        found: vec![found],
        reasons: vec![FILES.to_owned()],
        ..drawn(lab, vec![panel])
    })
}

pub fn figure_6(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let kinds = [Kind::Simple, Kind::Squid, Kind::MultipleDirs, Kind::Buddy];
    let mut bars = vec![];
    for kind in kinds {
        let seconds = Runs::new(lab, kind, "")?.seconds_for(300_000.0)?;
        bars.push(Bar {
            label: kind.name().to_owned(),
            value: seconds.times(1.0 / 60.0),
            paper: (kind == Kind::Buddy).then_some(40.0),
            is_ours: true,
        });
    }
    let buddy = bars[3].value.median;
    let times = |n: usize| bars[n].value.median / buddy;
    let found = format!(
        "BUDDY takes {:.0} minutes for 300,000 operations, SIMPLE {:.1}, SQUID {:.1} and \
         MULTIPLE-DIRS {:.1} times as long.",
        buddy,
        times(0),
        times(1),
        times(2)
    );
    let panel = Panel {
        name: "",
        title: "WebCoSM, Figure 6: 300,000 operations".to_owned(),
        unit: "minutes",
        digits: 1,
        drawing: Drawing::Bars(bars),
    };
    Ok(Drawn {
        found: vec![found],
        reasons: vec![FILES.to_owned()],
        ..drawn(lab, vec![panel])
    })
}

pub fn figure_7(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let thresholds: &[u64] = lab.size().of(
        &[4, 128][..],
        &[2, 16, 128, 256],
        &[1, 2, 4, 8, 16, 32, 64, 128, 256],
    );
    let mut points = vec![];
    for kib in thresholds {
        // The default: the run of Table 2.
        let flag = match kib {
            128 => String::new(),
            _ => format!("--threshold {kib}"),
        };
        let runs = Runs::new(lab, Kind::Buddy, &flag)?;
        points.push((*kib as f64, runs.seconds_for(MILLION)?));
    }
    let at = |kib: f64| {
        points
            .iter()
            .find(|(x, _)| *x == kib)
            .map(|(_, y)| y.median)
    };
    let least = points
        .iter()
        .map(|(_, y)| y.median)
        .fold(f64::MAX, f64::min);
    let first = points[0];
    let paper = at(128.0).context("no threshold of 128 KiB")?;
    let found = format!(
        "With a threshold of {} KiB, a million operations take {:.2} times as long as with the \
         paper's 128 KiB, and 128 KiB take {:.2} times as long as the best threshold.",
        first.0,
        first.1.median / paper,
        paper / least
    );
    Ok(Drawn {
        found: vec![found],
        reasons: vec![
            "Sizes of objects are our choice (10.6 KB on average), and the paper's trace is gone."
                .to_owned(),
        ],
        ..drawn(
            lab,
            vec![panel_of_curves(
                "WebCoSM, Figure 7: BUDDY by its threshold",
                Axis::new("threshold, KiB", Scale::Logarithmic),
                vec![curve("BUDDY", points)],
            )],
        )
    })
}

/// docs/LAYOUTS.md has the measurements.
const FILES: &str = "\
ext4 does what UFS did where that matters: a call that creates or deletes a file waits for its \
directory and for its inode, and directories are spread over the disk. The three layouts with a \
file for each object are then nearly equal, so chance decides their order. SIMPLE is last in the \
paper, whose directory had thirty times as many files and no index: the processor's time, which \
the paper includes, is left out here (docs/LAYOUTS.md).";
