//! The bench results as a table for people and as JSON for programs.
//!
//! For several runs, both show each figure's median and range.
//!
//! Invariant: lines have at most 80 columns; the JSON keys do not change.

use hashcache_sim::median::median;
use serde_json::{Map, Value, json};

use super::play::{Candidate, Outcome};

/// The figures that the table shows for a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    bits_per_slot: f64,
    bits_per_object: f64,
    hit_ratio: f64,
    offered: f64,
    full_hit_ratio: f64,
    full_offered: f64,
    reads_per_hit: f64,
    seeks_per_hit: f64,
    reads_per_miss: f64,
    seeks_per_miss: f64,
    seeks_per_put: f64,
    seeks_per_request: f64,
    write_amplification: f64,
    requests_per_s: f64,
}

impl Figures {
    fn from_outcome(outcome: &Outcome) -> Self {
        let (hits, misses, puts) = (outcome.hits, outcome.misses, outcome.puts);
        let seeks = hits.seeks + misses.seeks + puts.seeks;
        Self {
            bits_per_slot: outcome.stats.index_bits_per_slot(),
            bits_per_object: outcome.stats.index_bits_per_object(),
            hit_ratio: share(hits.count, outcome.requests),
            offered: share(outcome.offered, outcome.requests),
            full_hit_ratio: share(outcome.full_hits, outcome.requests),
            full_offered: share(outcome.full_offered, outcome.requests),
            reads_per_hit: share(hits.reads, hits.count),
            seeks_per_hit: share(hits.seeks, hits.count),
            reads_per_miss: share(misses.reads, misses.count),
            seeks_per_miss: share(misses.seeks, misses.count),
            seeks_per_put: share(puts.seeks, puts.count),
            seeks_per_request: share(seeks, outcome.requests),
            write_amplification: share(outcome.written_bytes, outcome.put_bytes),
            requests_per_s: match outcome.time.as_secs_f64() {
                0.0 => 0.0,
                seconds => outcome.requests as f64 / seconds,
            },
        }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// All runs for a candidate.
struct Runs {
    candidate: Candidate,
    figures: Vec<Figures>,
}

impl Runs {
    fn from_outcomes(outcomes: &[Outcome]) -> Option<Self> {
        Some(Self {
            candidate: outcomes.first()?.candidate,
            figures: outcomes.iter().map(Figures::from_outcome).collect(),
        })
    }

    fn sorted(&self, figure: fn(&Figures) -> f64) -> Vec<f64> {
        let mut all: Vec<f64> = self.figures.iter().map(figure).collect();
        all.sort_unstable_by(f64::total_cmp);
        all
    }

    fn median(&self, figure: fn(&Figures) -> f64) -> f64 {
        let figures = self.figures.iter().map(figure);
        median(figures, f64::total_cmp).expect("there is a run")
    }

    /// Formats the median and, for several runs, the least and the largest value.
    fn range(&self, figure: fn(&Figures) -> f64, digits: usize) -> String {
        let all = self.sorted(figure);
        let (least, most) = (all[0], all[all.len() - 1]);
        let middle = self.median(figure);
        format!("{middle:.digits$} ({least:.digits$}-{most:.digits$})")
    }
}

/// Formats the table.
pub fn text(outcomes: &[Vec<Outcome>]) -> String {
    let runs: Vec<Runs> = outcomes
        .iter()
        .filter_map(|all| Runs::from_outcomes(all))
        .collect();
    let heads = [
        [
            "", "bits", "reads", "reads", "seeks", "seeks", "hits", "hits", "write", "requests",
        ],
        [
            "policy", "/object", "/hit", "/miss", "/put", "/request", "fit", "full", "amp.", "/s",
        ],
    ];
    let heads = heads.map(|words| line(&words.map(str::to_owned)));
    let rows = runs.iter().map(|runs| line(&cells(runs)));
    let mut text: String = heads.into_iter().chain(rows).collect();
    if let Some(first) = runs.first() {
        text += &format!(
            "\nhits fit: the working set is a quarter of the objects; {:.3} is offered\n\
             hits full: the working set is as large as the store; {:.3} is offered\n",
            first.median(|it| it.offered),
            first.median(|it| it.full_offered),
        );
    }
    if runs.iter().any(|runs| runs.figures.len() > 1) {
        text += &ranges(&runs);
    }
    text
}

fn ranges(runs: &[Runs]) -> String {
    let heads = ["median (range)", "hits full", "seeks/request", "requests/s"];
    let mut text = format!("\n{}", range_line(&heads.map(str::to_owned)));
    for runs in runs {
        text += &range_line(&[
            runs.candidate.name(),
            runs.range(|it| it.full_hit_ratio, 3),
            runs.range(|it| it.seeks_per_request, 3),
            runs.range(|it| it.requests_per_s, 0),
        ]);
    }
    text
}

fn range_line(cells: &[String; 4]) -> String {
    let [name, hits, seeks, rate] = cells;
    format!("{name:<15} {hits:>20} {seeks:>20} {rate:>18}\n")
}

fn cells(runs: &Runs) -> [String; 10] {
    let cell = |figure: fn(&Figures) -> f64, digits| format!("{:.*}", digits, runs.median(figure));
    [
        runs.candidate.name(),
        cell(|it| it.bits_per_object, 1),
        cell(|it| it.reads_per_hit, 2),
        cell(|it| it.reads_per_miss, 3),
        cell(|it| it.seeks_per_put, 2),
        cell(|it| it.seeks_per_request, 3),
        cell(|it| it.hit_ratio, 3),
        cell(|it| it.full_hit_ratio, 3),
        cell(|it| it.write_amplification, 2),
        cell(|it| it.requests_per_s, 0),
    ]
}

fn line(cells: &[String; 10]) -> String {
    let [
        name,
        object,
        hit,
        miss,
        put,
        request,
        fit,
        full,
        amplification,
        rate,
    ] = cells;
    let line = format!(
        "{name:<15} {object:>7} {hit:>5} {miss:>6} {put:>5} {request:>8} {fit:>5} {full:>5} \
         {amplification:>5} {rate:>9}"
    );
    format!("{}\n", line.trim_end())
}

/// The results as JSON, with more figures than the table: an object for each policy. For several
/// runs, each number is the median, and `range` has the least and the largest value.
pub fn json(outcomes: &[Vec<Outcome>]) -> Vec<Value> {
    outcomes.iter().map(|runs| json_of_runs(runs)).collect()
}

fn json_of_runs(outcomes: &[Outcome]) -> Value {
    let runs: Vec<Map<String, Value>> = outcomes.iter().map(json_of).collect();
    let Some(first) = runs.first() else {
        return Value::Null;
    };
    let mut range = Map::new();
    let mut medians = first.clone();
    for (key, median) in &mut medians {
        let mut all: Vec<&Value> = runs.iter().map(|run| &run[key]).collect();
        if all.iter().any(|value| !value.is_number()) {
            continue;
        }
        all.sort_by(|a, b| {
            a.as_f64()
                .unwrap_or(0.0)
                .total_cmp(&b.as_f64().unwrap_or(0.0))
        });
        *median = all[(all.len() - 1) / 2].clone();
        range.insert(key.clone(), json!([all[0], all[all.len() - 1]]));
    }
    if runs.len() > 1 {
        medians.insert("range".to_owned(), range.into());
    }
    medians.into()
}

fn json_of(outcome: &Outcome) -> Map<String, Value> {
    let figures = Figures::from_outcome(outcome);
    let resident_bits = outcome
        .resident_bytes
        .map(|bytes| share(bytes * 8, outcome.stats.live_entries));
    let time = outcome.time.as_secs_f64();
    let value = json!({
        "name": outcome.candidate.name(),
        "policy": outcome.candidate.policy.name(),
        "index_bytes": outcome.stats.index_bytes,
        "index_resident_bytes": outcome.resident_bytes,
        "slots": outcome.stats.index_slots,
        "live_objects": outcome.stats.live_entries,
        "bits_per_slot": figures.bits_per_slot,
        "bits_per_object": figures.bits_per_object,
        "resident_bits_per_object": resident_bits,
        "requests": outcome.requests,
        "hits": outcome.hits.count,
        "puts": outcome.puts.count,
        "hit_ratio": figures.hit_ratio,
        "offered_hit_ratio": figures.offered,
        "full_hit_ratio": figures.full_hit_ratio,
        "full_offered_hit_ratio": figures.full_offered,
        "hits_from_memory": outcome.from_memory,
        "reads_per_hit": figures.reads_per_hit,
        "seeks_per_hit": figures.seeks_per_hit,
        "reads_per_miss": figures.reads_per_miss,
        "seeks_per_miss": figures.seeks_per_miss,
        "seeks_per_put": figures.seeks_per_put,
        "seeks_per_request": figures.seeks_per_request,
        "false_reads": outcome.false_reads,
        "group_reads": outcome.stats.group_reads,
        "repeated_group_reads": outcome.stats.repeated_group_reads,
        "prefetched": outcome.stats.prefetched,
        "prefetched_present": outcome.stats.prefetched_present,
        "prefetched_dropped": outcome.stats.prefetched_dropped,
        "ungrouped_reads": outcome.stats.ungrouped_reads,
        "lone_reads": outcome.stats.lone_reads,
        "span_reads": outcome.stats.span_reads,
        "write_amplification": figures.write_amplification,
        "seconds": outcome.time.as_secs_f64(),
        "requests_per_s": figures.requests_per_s,
        "disks_busy": outcome.busy.map(|busy| busy.as_secs_f64() / time),
    });
    match value {
        Value::Object(map) => map,
        _ => unreachable!("`json!` with braces makes an object"),
    }
}
