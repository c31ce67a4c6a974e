//! What the bench found, as a table for people and as JSON for machines.
//!
//! Invariant: lines of at most 80 columns; the keys of the JSON stay.

use serde_json::{Value, json};

use super::play::{Candidate, Outcome};

/// A run's figures as they are told.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    candidate: Candidate,
    bits_per_slot: f64,
    bits_per_object: f64,
    hit_ratio: f64,
    offered: f64,
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
    fn of(outcome: &Outcome) -> Self {
        let (hits, misses, puts) = (outcome.hits, outcome.misses, outcome.puts);
        let seeks = hits.seeks + misses.seeks + puts.seeks;
        Self {
            candidate: outcome.candidate,
            bits_per_slot: outcome.stats.index_bits_per_slot(),
            bits_per_object: outcome.stats.index_bits_per_object(),
            hit_ratio: share(hits.count, outcome.requests),
            offered: share(outcome.offered, outcome.requests),
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

/// The table.
pub fn text(outcomes: &[Outcome]) -> String {
    let heads = [
        [
            "", "bits", "bits", "reads", "reads", "seeks", "seeks", "hit", "write", "requests",
        ],
        [
            "policy", "/slot", "/object", "/hit", "/miss", "/put", "/request", "ratio", "amp.",
            "/s",
        ],
    ];
    let heads = heads.map(|words| line(&words.map(str::to_owned)));
    let rows = outcomes
        .iter()
        .map(|outcome| line(&cells(&Figures::of(outcome))));
    heads.into_iter().chain(rows).collect()
}

fn cells(figures: &Figures) -> [String; 10] {
    [
        figures.candidate.name(),
        format!("{:.1}", figures.bits_per_slot),
        format!("{:.1}", figures.bits_per_object),
        format!("{:.2}", figures.reads_per_hit),
        format!("{:.3}", figures.reads_per_miss),
        format!("{:.2}", figures.seeks_per_put),
        format!("{:.3}", figures.seeks_per_request),
        format!("{:.3}", figures.hit_ratio),
        format!("{:.2}", figures.write_amplification),
        format!("{:.0}", figures.requests_per_s),
    ]
}

fn line(cells: &[String; 10]) -> String {
    let [
        name,
        slot,
        object,
        hit,
        miss,
        put,
        request,
        ratio,
        amplification,
        rate,
    ] = cells;
    let line = format!(
        "{name:<15} {slot:>5} {object:>7} {hit:>5} {miss:>6} {put:>5} {request:>8} {ratio:>6} \
         {amplification:>5} {rate:>9}"
    );
    format!("{}\n", line.trim_end())
}

/// The same and more, an object for each policy.
pub fn json(outcomes: &[Outcome]) -> Vec<Value> {
    outcomes.iter().map(json_of).collect()
}

fn json_of(outcome: &Outcome) -> Value {
    let figures = Figures::of(outcome);
    let resident_bits = outcome
        .resident_bytes
        .map(|bytes| share(bytes * 8, outcome.stats.live_entries));
    json!({
        "name": figures.candidate.name(),
        "policy": figures.candidate.policy.name(),
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
        "hits_from_memory": outcome.from_memory,
        "reads_per_hit": figures.reads_per_hit,
        "seeks_per_hit": figures.seeks_per_hit,
        "reads_per_miss": figures.reads_per_miss,
        "seeks_per_miss": figures.seeks_per_miss,
        "seeks_per_put": figures.seeks_per_put,
        "seeks_per_request": figures.seeks_per_request,
        "false_reads": outcome.false_reads,
        "group_reads": outcome.stats.group_reads,
        "prefetched": outcome.stats.prefetched,
        "write_amplification": figures.write_amplification,
        "seconds": outcome.time.as_secs_f64(),
        "requests_per_s": figures.requests_per_s,
    })
}
