//! Stores on one and more disks, by `hashcache bench engine`.

use anyhow::Context as _;
use serde_json::Value;

use super::super::curves::{Axis, Scale};
use super::super::figure::{Bar, Curve, Curves, Drawing, Drawn, Panel, Spread, number, runs_of};
use super::super::lab::Lab;

pub fn figure_4(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let disks = |count: u64, flags: &str| {
        format!("{flags} --device throttle:70 --devices {count} --clients 64")
    };
    let one = Bench::new(lab, &disks(1, "--policy set-mem"))?;
    let two = Bench::new(lab, &disks(2, "--policy set-mem"))?;
    let lru_40 = Bench::new(lab, &disks(2, "--policy set-mem-lru --held-share 40"))?;
    let lru_30 = Bench::new(lab, &disks(2, "--policy set-mem-lru --held-share 30"))?;
    let bars = vec![
        one.bar("set-mem, one disk", Some(75.0))?,
        two.bar("set-mem, two disks", Some(160.0))?,
        lru_40.bar("set-mem-lru, 40 %", None)?,
        lru_30.bar("set-mem-lru, 30 %", None)?,
    ];
    let rate = |n: usize| bars[n].value.median;
    let found = format!(
        "Two disks serve {:.2} times as many requests as one ({:.2} in the paper). Of that, \
         `set-mem-lru` serves {:.2} with 40 % of the sets in memory and {:.2} with 30 %.",
        rate(1) / rate(0),
        160.0 / 75.0,
        rate(2) / rate(1),
        rate(3) / rate(1)
    );
    Ok(Drawn {
        found: vec![found],
        reasons: vec![
            "Here no disk has an access log to write. We have no numbers of the paper for \
             SetMemLRU."
                .to_owned(),
        ],
        ..benched(
            lab,
            "one and two modelled disks of 70 seeks/s, 64 clients",
            vec![rate_panel("HashCache, Figure 4: two disks", bars)],
        )
    })
}

pub fn table_8(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let policies = [
        ("basic", "--policy basic"),
        ("set", "--policy set"),
        ("set-mem", "--policy set-mem"),
        ("set-mem-lru", "--policy set-mem-lru --held-share 75"),
        ("log", "--policy log"),
        ("log-lru", "--policy log-lru --held-share 75"),
        ("log grouped", "--policy log --grouped"),
        (MORE_MEMORY, "--policy log --grouped --hot 16MiB"),
    ];
    let counts: &[u64] = lab.size().of(&[1, 5], &[1, 5], &[1, 2, 3, 5]);
    let mut curves = vec![];
    let (mut gains, mut farthest) = (vec![], 0.0_f64);
    for (label, flags) in policies {
        let mut points: Vec<(f64, Spread)> = vec![];
        for count in counts {
            let flags = format!(
                "{flags} --device throttle:{SCSI_SEEKS} --devices {count} --clients {CLIENTS}"
            );
            let rate = Bench::new(lab, &flags)?.spread("requests_per_s")?;
            points.push((*count as f64, rate));
        }
        let (one, five) = (points[0].1.median, points[points.len() - 1].1.median);
        gains.push(format!("{label} {:.2}", five / one));
        farthest = farthest.max((five / one / 5.0 - 1.0).abs());
        curves.push(Curve {
            label: label.to_owned(),
            points,
            is_dashed: false,
        });
    }
    let mut bars = vec![];
    for curve in &curves {
        let five = curve.points.last().context("no counts of disks")?.1;
        bars.push(Bar {
            label: curve.label.clone(),
            value: five,
            paper: curve.label.contains("grouped").then_some(2_200.0),
            is_ours: true,
        });
    }
    let rate = |n: usize| bars[bars.len() - n].value.median;
    let found = vec![
        format!(
            "`log` grouped serves {} requests/s on five disks, {:.0} per disk, and {}, {:.0} per \
             disk, with 16 MiB of hot objects.",
            number(rate(2), 0),
            rate(2) / 5.0,
            number(rate(1), 0),
            rate(1) / 5.0
        ),
        format!(
            "Five disks serve this many times the requests of one: {}. So each policy is within \
             {:.0} % of linear.",
            gains.join(", "),
            farthest * 100.0
        ),
    ];
    let scaling = Panel {
        name: "scaling",
        title: "HashCache, Table 8: by the number of disks".to_owned(),
        unit: "requests/s",
        digits: 0,
        drawing: Drawing::Curves(Curves {
            x: Axis::new("disks", Scale::FromZero),
            y: Scale::FromZero,
            curves,
        }),
    };
    Ok(Drawn {
        found,
        reasons: vec![
            "A name lies on one disk, so a page's objects lie on all of them, and a group read \
             loads a part of the page. Clients wait for their answers, so a disk is idle while no \
             client asks for what it has. Squid and Tiger are not modelled on several disks. The \
             objects of a page are read along long before they are requested, and memory must hold \
             those of all clients until then (docs/PAPER.md, \"Clients\"). Stores are smaller than \
             the paper's 90 GB, but the clients are as many as five disks need: 2 MiB are a \
             hundredth of the store, as the paper's memory (a third of 3.5 GB) was of its disks, \
             and too little for so many clients."
                .to_owned(),
        ],
        ..benched(
            lab,
            &format!(
                "modelled disks of {SCSI_SEEKS} seeks/s, {CLIENTS} clients; in one row with 16 MiB \
                 of hot objects"
            ),
            vec![rate_panel("HashCache, Table 8: five disks", bars), scaling],
        )
    })
}

pub fn table_9(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let rows = [
        ("set-mem", "--policy set-mem", None),
        (
            "log-lru grouped",
            "--policy log-lru --grouped --held-share 75",
            Some(300.0),
        ),
        ("log grouped", "--policy log --grouped", Some(300.0)),
    ];
    let mut bars = vec![];
    for (label, flags, paper) in rows {
        for count in [1, 2] {
            let flags =
                format!("{flags} --device throttle:{USB_SEEKS} --devices {count} --clients 64");
            let disks = if count == 1 { "one disk" } else { "two disks" };
            let bench = Bench::new(lab, &flags)?;
            let paper = paper.map(|paper: f64| paper * f64::from(count));
            bars.push(bench.bar(&format!("{label}, {disks}"), paper)?);
        }
    }
    let rate = |n: usize| bars[n].value.median;
    let found = format!(
        "`log` grouped serves {:.0} requests/s on one disk and {:.2} times as many on two; \
         `log-lru` grouped {:.2} and {:.2} of what `log` does on one and two, `set-mem` {:.2} and \
         {:.2}.",
        rate(4),
        rate(5) / rate(4),
        rate(2) / rate(4),
        rate(3) / rate(5),
        rate(0) / rate(4),
        rate(1) / rate(5)
    );
    Ok(Drawn {
        found: vec![found],
        reasons: vec![
            "The paper's Disk Table lies on a disk of its own; here it lies on the same disk. A \
             page's objects lie on both disks, so two disks read each page twice. Stores are \
             small and the model charges them the seeks of a full disk; the paper spread 50 GB \
             over each drive."
                .to_owned(),
        ],
        ..benched(
            lab,
            &format!("one and two modelled disks of {USB_SEEKS} seeks/s, 64 clients"),
            vec![rate_panel("HashCache, Table 9: disks of 1 TB", bars)],
        )
    })
}

/// `hashcache bench engine` of one policy on several disks.
struct Bench(Value);

impl Bench {
    fn new(lab: &mut Lab<'_>, flags: &str) -> anyhow::Result<Self> {
        let size = lab.size();
        let (objects, runs) = (size.of(15_000, 20_000, 50_000), size.of(1, 3, 3));
        let command = format!(
            "hashcache bench engine --workload polymix {flags} --objects {objects} --runs {runs} \
             --seed 1 --json"
        );
        let output = lab.json(&command, &KEPT_OF_BENCHES)?;
        Ok(Self(output["policies"][0].clone()))
    }

    fn spread(&self, key: &str) -> anyhow::Result<Spread> {
        let median = self.0[key].as_f64();
        let median = median.with_context(|| format!("the bench lacks {key}"))?;
        let range = &self.0["range"][key];
        Ok(Spread {
            median,
            least: range[0].as_f64().unwrap_or(median),
            most: range[1].as_f64().unwrap_or(median),
        })
    }

    fn bar(&self, label: &str, paper: Option<f64>) -> anyhow::Result<Bar> {
        Ok(Bar {
            label: label.to_owned(),
            value: self.spread("requests_per_s")?,
            paper,
            is_ours: true,
        })
    }
}

fn benched(lab: &Lab<'_>, what: &str, panels: Vec<Panel>) -> Drawn {
    let size = lab.size();
    Drawn {
        workload: format!(
            "Polymix-4's pages and sizes on {what}; stores with room for {} objects, filled \
             before, 2 MiB of hot objects.",
            number(size.of(15e3, 2e4, 5e4), 0)
        ),
        runs: runs_of(size.of(1, 3, 3)),
        panels,
        found: vec![],
        reasons: vec![],
    }
}

fn rate_panel(title: &str, bars: Vec<Bar>) -> Panel {
    Panel {
        name: "",
        title: title.to_owned(),
        unit: "requests/s",
        digits: 0,
        drawing: Drawing::Bars(bars),
    }
}

const KEPT_OF_BENCHES: [&str; 3] = ["policies", "requests_per_s", "range"];
/// Between 90 and 95.
const SCSI_SEEKS: u32 = 92;
/// Between 67 and 70.
const USB_SEEKS: u32 = 68;
const MORE_MEMORY: &str = "log grouped, 16 MiB";
/// Enough to keep five disks busy.
const CLIENTS: u32 = 256;
