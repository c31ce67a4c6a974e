//! The figures of Harvest: how current caches are (section 4), and memory for each object.

use std::fs;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{Client, ContentOptions, ContentOrigin};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::curves::{Axis, Scale};
use super::figure::{Curve, Curves, Drawing, Drawn, Figure, Panel, Paper, Spread, number};
use super::lab::Lab;
use crate::campaign::Campaign;
use crate::memory_limit::fetch;

pub fn figures() -> Vec<Figure> {
    vec![
        Figure {
            id: "harvest-figure-8",
            paper: Paper::Harvest,
            place: "Figure 8",
            title: "memory by the number of cached objects",
            finding: "The process grows to the 20 MB of its hot objects, and then linearly by 750 \
                      bytes for each object: 125 bytes of metadata and 500 of its MIME header.",
            draw: figure_8,
        },
        Figure {
            id: "harvest-consistency",
            paper: Paper::Harvest,
            place: "Section 4",
            title: "one lifetime for all objects against invalidation",
            finding: "One lifetime (TTL) for all objects takes less bandwidth than hierarchical \
                      invalidation if it is longer than five days, and with five days twenty \
                      percent of the references are stale. (The section has no figure of this.)",
            draw: consistency,
        },
    ]
}

// -- memory ------------------------------------------------------------------------------------

fn figure_8(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let objects = lab.size().of(2_000, 60_000, 200_000);
    let output = lab.own("harvest-figure-8", |campaign| {
        tokio::task::block_in_place(|| Handle::current().block_on(grow(campaign, objects)))
    })?;
    let samples = output["samples"].as_array().context("no samples")?;
    let mut points = vec![];
    for sample in samples {
        let figure = |key: &str| sample[key].as_f64().context("a sample lacks a figure");
        points.push((
            figure("objects")? / 1000.0,
            Spread::one(figure("bytes")? / 1e6),
        ));
    }
    ensure!(points.len() >= 4, "too few samples");
    let half = &points[points.len() / 2..];
    let (first, last) = (half[0], half[half.len() - 1]);
    let each = (last.1.median - first.1.median) * 1e6 / ((last.0 - first.0) * 1000.0);
    let most = points.iter().map(|it| it.1.median).fold(0.0, f64::max);
    let paper = points.iter().map(|(thousands, _)| {
        let megabytes = 20.0 + thousands * 0.75;
        (*thousands, Spread::one(megabytes))
    });
    let paper = Curve {
        label: "the paper: 20 MB and 750 bytes an object".to_owned(),
        points: paper.collect(),
        is_dashed: true,
    };
    let found = vec![format!(
        "With {} MiB allowed, the proxy has {:.1} MB when {} objects are stored, and {most:.1} MB \
         at most: stacks and the program's own data come on top of what is allowed. In the second \
         half of the run its memory changes by {} bytes for each object.",
        MEMORY_MIB,
        last.1.median,
        number(last.0 * 1000.0, 0),
        number(each, 0)
    )];
    Ok(Drawn {
        workload: format!(
            "{} different objects of web sizes (10 KB on average) through the proxy with policy \
             `log`, `--memory {MEMORY_MIB}MiB` and a cache of 4 GB; anonymous and shared memory \
             of the process.",
            number(objects as f64, 0)
        ),
        runs: "One run; sizes and contents from seed 1.".to_owned(),
        panels: vec![Panel {
            name: "",
            title: "Harvest, Figure 8: memory by objects".to_owned(),
            unit: "MB",
            digits: 1,
            drawing: Drawing::Curves(Curves {
                x: Axis::new("thousands of objects stored", Scale::FromZero),
                y: Scale::FromZero,
                curves: vec![
                    Curve {
                        label: "measured here".to_owned(),
                        points,
                        is_dashed: false,
                    },
                    paper,
                ],
            }),
        }],
        found,
        reasons: vec![
            "The heads of stored responses lie on disk with their objects, and an entry of the \
             index takes some 5 bytes, in a table whose size follows from the disk and not from \
             the number of objects. So memory grows until the hot objects have what `--memory` \
             leaves them, and then stays. The dashed line is what the paper's text says, not its \
             measurement."
                .to_owned(),
        ],
    })
}

/// Stores objects, and samples the memory of the proxy meanwhile.
async fn grow(campaign: &Campaign, objects: u64) -> anyhow::Result<Value> {
    let origin = ContentOrigin::start_thread(ContentOptions {
        max_age: 86_400,
        ..ContentOptions::default()
    })?;
    let proxy = campaign
        .proxy()?
        .flag("cache-size", "4GB")
        .flag("policy", "log")
        .flag("memory", format!("{MEMORY_MIB}MiB"))
        .start()?;
    let mut samples = vec![json!({ "objects": 0, "bytes": memory_of(proxy.pid())? })];
    let step = objects.div_ceil(SAMPLES);
    for from in (0..objects).step_by(usize::try_from(step)?) {
        let to = (from + step).min(objects);
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (address, at) = (proxy.address(), origin.address());
            clients.spawn(async move {
                let mut connection = Client::connect(address).await?;
                for n in (from..to).filter(|n| n % CLIENTS == client) {
                    let target = format!("/small/{n}");
                    fetch(&mut connection, &format!("http://{at}{target}"), &target).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = clients.join_next().await {
            done??;
        }
        samples.push(json!({ "objects": to, "bytes": memory_of(proxy.pid())? }));
    }
    let requests = origin.counts().requests;
    ensure!(
        requests == objects,
        "{requests} of {objects} objects came from the origin"
    );
    proxy.terminate()?;
    Ok(json!({ "samples": samples }))
}

/// Anonymous and shared memory of a process that is in memory now.
fn memory_of(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let mut kib = 0;
    for name in ["RssAnon:", "RssShmem:"] {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|rest| rest.split_whitespace().next());
        kib += number
            .with_context(|| format!("no {name} in {path}"))?
            .parse::<u64>()?;
    }
    Ok(kib << 10)
}

const MEMORY_MIB: u64 = 32;
const SAMPLES: u64 = 24;
const CLIENTS: u64 = 16;

// -- consistency -------------------------------------------------------------------------------

/// The schemes that are drawn: as `hashcache sim consistency` names them, as the legend does, and
/// whether the paper had them.
const SCHEMES: [(&str, &str, bool); 5] = [
    ("fixed", "fixed: one lifetime, then discarded", true),
    ("validated", "validated: one lifetime, then validated", true),
    ("doubling", "doubling: the paper's proposal", true),
    ("heuristic", "heuristic: by the age of the object", false),
    (
        "while-revalidating",
        "while-revalidating: stale meanwhile",
        false,
    ),
];

/// The schemes without a lifetime, under which nothing is stale.
const WITHOUT_LIFETIME: [(&str, &str, bool); 2] = [
    (
        "invalidation",
        "invalidation: caches that have it are told",
        true,
    ),
    (
        "group-purge",
        "group-purge: all caches are told the site",
        false,
    ),
];

fn consistency(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let (lifetimes, seeds) = lab.size().of(
        ("1,5,30", 1),
        ("1,3,5,10,30", 3),
        ("1,2,3,5,7,10,14,21,30,60", 5),
    );
    let sizes = lab
        .size()
        .of("--objects 500 --fan-out 2 --requests-per-day 50", "", "");
    let mut runs = vec![];
    for seed in 1..=seeds {
        let command = format!(
            "hashcache sim consistency --lifetimes {lifetimes} {sizes} --seed {seed} --runs 1 \
             --json"
        );
        runs.push(lab.json(&command, &KEPT)?);
    }
    let curves = |key: &str, factor: f64| -> anyhow::Result<Vec<Curve>> {
        let mut curves = vec![];
        for (scheme, label, is_of_paper) in SCHEMES {
            let mut points = vec![];
            for days in lifetimes.split(',') {
                let days: f64 = days.parse()?;
                let value = spread(&runs, |run| of(run, scheme, Some(days), key))?;
                points.push((days, value.times(factor)));
            }
            curves.push(Curve {
                label: label.to_owned(),
                points,
                is_dashed: !is_of_paper,
            });
        }
        Ok(curves)
    };
    let stale = curves("stale_share", 100.0)?;
    let mut bytes = curves("link_bytes_per_request", 1e-3)?;
    let ends = [
        bytes[0].points[0].0,
        bytes[0].points[bytes[0].points.len() - 1].0,
    ];
    for (scheme, label, is_of_paper) in WITHOUT_LIFETIME {
        let cost = spread(&runs, |run| of(run, scheme, None, "link_bytes_per_request"))?;
        bytes.push(Curve {
            label: label.to_owned(),
            points: ends.map(|days| (days, cost.times(1e-3))).to_vec(),
            is_dashed: !is_of_paper,
        });
    }
    let five = stale[0].points.iter().find(|(days, _)| *days == 5.0);
    let mut found = vec![format!(
        "With five days, {} % of the requests are stale (20 % in the paper).",
        five.context("no lifetime of five days")?.1.show(1)
    )];
    for scheme in ["fixed", "validated"] {
        found.push(crossing(&runs, scheme));
    }
    let panel = |name, title: &str, unit, digits, curves| Panel {
        name,
        title: title.to_owned(),
        unit,
        digits,
        drawing: Drawing::Curves(Curves {
            x: Axis::new("lifetime, days", Scale::Logarithmic),
            y: Scale::FromZero,
            curves,
        }),
    };
    Ok(Drawn {
        workload: "4,600 objects of 2,000 sites whose lifetimes are 44 days on average, three \
                   levels of caches with four below each, 100 requests a day at each of the \
                   lowest, by Zipf's law (docs/CONSISTENCY.md). The caches decide by the rules of \
                   the proxy."
            .to_owned(),
        runs: match seeds {
            1 => "One run, seed 1, with fewer objects and caches.".to_owned(),
            seeds => format!("Medians of {seeds} runs (least to largest), seeds 1 to {seeds}."),
        },
        panels: vec![
            panel(
                "stale",
                "Harvest, section 4: stale requests",
                "% of requests",
                1,
                stale,
            ),
            panel(
                "bytes",
                "Harvest, section 4: bytes on \
                            links",
                "kB on links for a request",
                2,
                bytes,
            ),
        ],
        found,
        reasons: vec![
            "The paper describes its hierarchy in outline (a cache at each regional network and \
             country, caches below it by the number of hosts) and states no numbers of caches, \
             requests or sizes, and not whether its TTL scheme sends content again that has not \
             changed: `fixed` does, `validated` does not."
                .to_owned(),
        ],
    })
}

/// Where a scheme costs as many bytes as invalidation.
fn crossing(runs: &[Value], scheme: &str) -> String {
    let found = |key: &str| {
        let values = runs.iter().filter_map(|run| {
            let crossings = run["crossings"].as_array()?.iter();
            let mut own = crossings.filter(|it| it["scheme"] == scheme);
            own.next()?[key].as_f64()
        });
        Spread::from_values(values.collect())
    };
    match (found("lifetime_days"), found("stale_share")) {
        (Some(days), Some(stale)) => format!(
            "`{scheme}` costs as many bytes as invalidation with {} days, and then {} % are stale.",
            days.show(1),
            stale.times(100.0).show(1)
        ),
        _ => format!("`{scheme}` costs as many bytes as invalidation at none of these lifetimes."),
    }
}

fn spread(runs: &[Value], figure: impl Fn(&Value) -> Option<f64>) -> anyhow::Result<Spread> {
    let figures: Option<Vec<f64>> = runs.iter().map(figure).collect();
    figures
        .and_then(Spread::from_values)
        .context("a scheme lacks a figure")
}

/// A figure of a scheme with that lifetime.
fn of(run: &Value, scheme: &str, days: Option<f64>, key: &str) -> Option<f64> {
    let mut schemes = run["schemes"].as_array()?.iter();
    let found = schemes.find(|it| it["scheme"] == scheme && it["lifetime_days"].as_f64() == days);
    found?[key].as_f64()
}

const KEPT: [&str; 6] = [
    "schemes",
    "scheme",
    "lifetime_days",
    "stale_share",
    "link_bytes_per_request",
    "crossings",
];
