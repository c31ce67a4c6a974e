//! One disk at the low end: the engine and models of Squid and Tiger replay the same requests.

use anyhow::Context as _;
use serde_json::Value;

use super::super::figure::{Bar, Drawing, Drawn, Panel, Spread, number, runs_of};
use super::super::lab::Lab;

pub fn figure_3(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let bars = bars_of_caches(lab, "requests_per_s", 1.0)?;
    let rate = |n: usize| bars[n].value.median;
    let order: Vec<&str> = {
        let mut order: Vec<&Bar> = bars.iter().collect();
        order.sort_by(|a, b| a.value.median.total_cmp(&b.value.median));
        order.into_iter().map(|bar| bar.label.as_str()).collect()
    };
    let found = vec![
        format!("From the slowest to the fastest: {}.", order.join(", ")),
        format!(
            "`log` grouped serves {:.1} times as many requests as `set-mem` ({:.1} in the paper) \
             and {:.1} times as many as Squid ({:.1}).",
            rate(4) / rate(2),
            275.0 / 75.0,
            rate(4) / rate(6),
            275.0 / 60.0
        ),
    ];
    let panel = Panel {
        name: "",
        title: "HashCache, Figure 3: one disk at the low end".to_owned(),
        unit: "requests/s",
        digits: 0,
        drawing: Drawing::Bars(bars),
    };
    Ok(Drawn {
        found,
        reasons: vec![MODELS.to_owned()],
        ..low_end(lab, vec![panel])
    })
}

pub fn figure_6(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    let mut panels = vec![];
    let mut found = vec![];
    let measures = [
        ("objects", "hit_ratio", "% of requests that hit", 60.0),
        ("bytes", "byte_hit_ratio", "% of bytes that hit", 40.0),
    ];
    for (name, key, unit, offered) in measures {
        let mut bars = bars_of_caches(lab, key, 100.0)?;
        // `basic`, the first, does not reach them in the paper.
        for (n, bar) in bars.iter_mut().enumerate() {
            bar.paper = (n > 0).then_some(offered);
        }
        let of = |n: usize| bars[n].value.median;
        let most = bars.iter().map(|bar| bar.value.median).fold(0.0, f64::max);
        found.push(format!(
            "Of {name}: {:.1} % with `basic`, {:.1} % with `set`, {:.1} % with `log`; the most is \
             {most:.1} %.",
            of(0),
            of(1),
            of(3)
        ));
        panels.push(Panel {
            name,
            title: format!("HashCache, Figure 6: hit ratio by {name}"),
            unit,
            digits: 1,
            drawing: Drawing::Bars(bars),
        });
    }
    Ok(Drawn {
        found,
        reasons: vec![
            "The line across a bar is what the paper's workload offers at most. Ours offers 50 % \
             of the requests and 42 % of the bytes: it begins with an empty cache. Large downloads \
             that are requested again more often than others (0.1 % of the objects in the paper) \
             are not modelled."
                .to_owned(),
        ],
        ..low_end(lab, panels)
    })
}

/// Replays of one cache, one for each seed.
struct Replays(Vec<Value>);

impl Replays {
    /// The paper has caches of 60 GB and 18 GB with 256 MB of memory: here each is a sixtieth.
    fn new(lab: &mut Lab<'_>, cache: &Cache) -> anyhow::Result<Self> {
        let size = lab.size();
        let (requests, runs) = (size.of(4_000, 100_000, 300_000), size.of(1, 3, 3));
        let is_rival = cache.1.starts_with("--index");
        let disk = if is_rival { "300MB" } else { "1GB" };
        let mut replays = vec![];
        for seed in 1..=runs {
            let command = format!(
                "hashcache sim generate --workload polymix --requests {requests} --working-set \
                 12500 --seed {seed} | hashcache sim replay - {} --disk-size {disk} --memory \
                 4.27MB --device-model 70 --seed {seed} --json",
                cache.1
            );
            replays.push(lab.json(&command, &KEPT_OF_REPLAYS)?);
        }
        Ok(Self(replays))
    }

    fn spread(&self, key: &str) -> anyhow::Result<Spread> {
        let figures = self.0.iter().map(|replay| replay["runs"][0][key].as_f64());
        let spread = figures
            .collect::<Option<Vec<f64>>>()
            .and_then(Spread::from_values);
        spread.with_context(|| format!("a replay lacks {key}"))
    }
}

/// A cache of Figures 3 and 6: label, flags of `sim replay`, requests/s in the paper.
type Cache = (&'static str, &'static str, Option<f64>);

const CACHES: [Cache; 7] = [
    ("basic (HC-B)", "--policy basic", Some(45.0)),
    ("set (HC-S)", "--policy set", Some(45.0)),
    ("set-mem (HC-SM)", "--policy set-mem", Some(75.0)),
    ("log (HC-LN)", "--policy log", None),
    ("log grouped (HC-L)", "--policy log --grouped", Some(275.0)),
    ("Tiger (model)", "--index tiger", Some(250.0)),
    ("Squid (model)", "--index squid", Some(60.0)),
];

fn bars_of_caches(lab: &mut Lab<'_>, key: &str, factor: f64) -> anyhow::Result<Vec<Bar>> {
    let mut bars = vec![];
    for cache in &CACHES {
        let value = Replays::new(lab, cache)?.spread(key)?;
        bars.push(Bar {
            label: cache.0.to_owned(),
            value: value.times(factor),
            paper: cache.2,
            is_ours: !cache.1.starts_with("--index"),
        });
    }
    Ok(bars)
}

fn low_end(lab: &Lab<'_>, panels: Vec<Panel>) -> Drawn {
    let size = lab.size();
    Drawn {
        workload: format!(
            "Polymix-4's pages and sizes, {} requests; a modelled disk of 70 seeks/s; the paper's \
             disks and memory divided by 60: 1 GB of cache (Squid and Tiger 300 MB) and 4.27 MB \
             of memory.",
            number(size.of(4e3, 1e5, 3e5), 0)
        ),
        runs: runs_of(size.of(1, 3, 3)),
        panels,
        found: vec![],
        reasons: vec![],
    }
}

const KEPT_OF_REPLAYS: [&str; 4] = ["runs", "requests_per_s", "hit_ratio", "byte_hit_ratio"];
const MODELS: &str = "\
Squid and Tiger are models by their descriptions (docs/SIMULATION.md), without the file system's \
cache and without Tiger's prefetching, which the paper mentions. The disk does nothing else, where \
the paper's also wrote the access log.";
