//! The page docs/RIVALS.md.
//!
//! All of it is computed but for its last section, which is kept as it is when the page is written
//! again.

use super::kept::{Kept, Row};
use super::machine::Program;
use super::parts::{Form, Part};
use super::tables::{
    Better, Figure, by_load, count, distinct, micros, sentences, skipped, table, tenths,
    thousandths, wrong,
};

/// What the page is made of.
pub struct Page<'a> {
    pub form: Form,
    /// Each part with its report, or why there is none.
    pub parts: &'a [(Part, Result<Kept, String>)],
    pub programs: &'a [Program],
}

impl Page<'_> {
    /// The page; the last section is that of the page `before`.
    pub fn text(&self, before: &str) -> String {
        let mut text = HEAD.to_owned();
        if self.form != Form::Full {
            text += &format!(
                "**This is a {} run: small loads, short or single rounds, figures of little \
                 worth.** `cargo campaign rivals` does it in full.\n\n",
                self.form.word()
            );
        }
        text += &self.programs();
        text += &self.commands();
        for part in Part::ALL {
            let found = self.parts.iter().find(|it| it.0 == part);
            text += &match found {
                Some((_, Ok(kept))) => section(part, kept),
                Some((_, Err(error))) => {
                    format!("## {}\n\nNot measured: {error}.\n\n", heading(part))
                }
                None => format!("## {}\n\nNot measured.\n\n", heading(part)),
            };
        }
        let by_hand = before.find(BY_HAND).map(|at| &before[at..]);
        text + by_hand.unwrap_or(NOTHING_BY_HAND)
    }

    fn programs(&self) -> String {
        let mut lines = vec![];
        for program in self.programs {
            let version = program.version.as_deref();
            let version = version.unwrap_or("**not installed, so not measured**");
            lines.push(vec![program.name.to_owned(), version.to_owned()]);
        }
        format!("{}\n", table(&["program", "version"], &lines))
    }

    fn commands(&self) -> String {
        let mut lines = vec![];
        for (part, kept) in self.parts {
            let Ok(kept) = kept else { continue };
            lines.push(vec![
                heading(*part).to_owned(),
                format!("`cargo campaign {}`", kept.command()),
                kept.text("version").to_owned(),
            ]);
        }
        let version = "trees of `crates` and of the campaigns";
        let mut text = table(&["part", "command", version], &lines);
        let machines = self.parts.iter().filter_map(|(_, kept)| kept.as_ref().ok());
        let mut machines: Vec<&str> = machines.map(|kept| kept.text("machine")).collect();
        machines.dedup();
        text += "\nSeeds are 1 where a command has one.";
        for machine in machines {
            text += &format!(" Machine: {machine}.");
        }
        text + "\n\n"
    }
}

fn heading(part: Part) -> &'static str {
    match part {
        Part::Hits => "Hits and misses",
        Part::Mix => "Page mix larger than memory",
        Part::Polymix => "Polymix-4 on a fast disk",
        Part::SlowDisk => "Pages and Polymix-4 on a slow disk",
        Part::Restart => "Start after a kill",
        Part::IndexMemory => "Memory of the index",
    }
}

fn section(part: Part, kept: &Kept) -> String {
    let (about, body) = match part {
        Part::Hits => (HITS, both(kept)),
        Part::Mix => (MIX, both(kept)),
        Part::Polymix => (POLYMIX, both(kept) + "\n" + &disk(kept)),
        Part::SlowDisk => (SLOW_DISK, one(kept, RATE) + "\n" + &disk(kept)),
        Part::Restart => (RESTART, restart(kept)),
        Part::IndexMemory => (INDEX_MEMORY, index_memory(kept)),
    };
    let heading = heading(part);
    let (wrong, skipped) = (wrong(kept), skipped(kept));
    format!("## {heading}\n\n{about}\n{body}{wrong}{skipped}\n")
}

/// Processor time and requests/s.
fn both(kept: &Kept) -> String {
    format!(
        "Processor time of a request, µs:\n\n{}\nRequests/s:\n\n{}",
        one(kept, CPU),
        one(kept, RATE)
    )
}

fn one(kept: &Kept, figure: Figure) -> String {
    format!("{}\n{}", by_load(kept, figure), sentences(kept, figure))
}

/// What the disk did, and hits.
fn disk(kept: &Kept) -> String {
    let measured = kept.rows().filter(Row::has_figures);
    let lines: Vec<Vec<String>> = measured
        .map(|row| {
            let figure = |key: &str| row.figure(key).unwrap_or_default();
            vec![
                row.what.to_owned(),
                thousandths(figure("hits_per_mille")),
                thousandths(figure("offered_per_mille")),
                thousandths(figure("reads_per_mille")),
                figure("read_kib").to_string(),
                thousandths(figure("writes_per_mille")),
                row.wrong()
                    .map_or_else(|| "-".to_owned(), |count| count.to_string()),
            ]
        })
        .collect();
    let head = [
        "load and server",
        "hits",
        "possible",
        "reads a request",
        "KiB a read",
        "writes a request",
        "wrong",
    ];
    format!("{}\n", table(&head, &lines))
}

fn restart(kept: &Kept) -> String {
    let measured = || kept.rows().filter(Row::has_figures);
    let share = |row: &Row<'_>, key| thousandths(row.figure(key).unwrap_or_default());
    let lines: Vec<Vec<String>> = measured()
        .map(|row| {
            let range = match row.range(FIRST_HIT.rounds) {
                Some((least, most)) if least != most => format!(" ({least} to {most})"),
                _ => String::new(),
            };
            let median = row.figure(FIRST_HIT.key).map(|ms| format!("{ms}{range}"));
            let missed = match row.without(FIRST_HIT.rounds) {
                (without @ 1.., all @ 2..) => Some(format!("no hit in {without} of {all} runs")),
                _ => None,
            };
            let first: Vec<String> = median.into_iter().chain(missed).collect();
            let first = match first.as_slice() {
                [] => "no hit".to_owned(),
                parts => parts.join(", "),
            };
            vec![
                row.server.to_owned(),
                row.figure("listens_ms").unwrap_or_default().to_string(),
                first,
                share(&row, "hits_before_per_mille"),
                share(&row, "hits_at_once_per_mille"),
                share(&row, "hits_later_per_mille"),
                row.wrong()
                    .map_or_else(|| "-".to_owned(), |count| count.to_string()),
            ]
        })
        .collect();
    let head = [
        "server",
        "listens after, ms",
        "first hit after, ms",
        "hits before the kill",
        "right after the first hit",
        "later",
        "wrong",
    ];
    let mut text = format!("{}\n", table(&head, &lines));
    text += &sentences(kept, FIRST_HIT);
    text += &sentences(kept, HITS_LATER);
    for row in measured() {
        let lost = |key: &str| {
            let before = row.figure("hits_before_per_mille").unwrap_or_default();
            before - row.figure(key).unwrap_or_default()
        };
        let (at_once, later) = (lost("hits_at_once_per_mille"), lost("hits_later_per_mille"));
        if later > LOST_PER_MILLE {
            text += &format!(
                "- {} lost objects: after the kill, the share of its hits is less by {}.\n",
                row.server,
                thousandths(later)
            );
        } else if at_once > LOST_PER_MILLE {
            text += &format!(
                "- {}: right after the first hit, the share of hits is less by {} than before the \
                 kill; later it is not.\n",
                row.server,
                thousandths(at_once)
            );
        }
    }
    text
}

fn index_memory(kept: &Kept) -> String {
    let measured = kept.rows().filter(Row::has_figures);
    let own = |row: &Row<'_>| row.figure("own_index_tenths_of_bytes_each");
    let lines: Vec<Vec<String>> = measured
        .map(|row| {
            let figure = |key: &str| row.figure(key).unwrap_or_default();
            let range = match row.range(INDEX.rounds) {
                Some((least, most)) if least != most => {
                    format!(" ({} to {})", tenths(least), tenths(most))
                }
                _ => String::new(),
            };
            vec![
                row.server.to_owned(),
                tenths(figure(INDEX.key)) + &range,
                tenths(figure("reserved_tenths_of_bytes_each")),
                own(&row).map_or_else(|| "-".to_owned(), tenths),
                thousandths(figure("hits_per_mille_min")),
                row.wrong()
                    .map_or_else(|| "-".to_owned(), |count| count.to_string()),
            ]
        })
        .collect();
    let head = [
        "server",
        "bytes an object = MB a million objects",
        "of these, reserved by the size of the store",
        "index by its own count",
        "stored",
        "wrong",
    ];
    let mut text = format!("{}\n", table(&head, &lines));
    text += &sentences(kept, INDEX);
    let servers = distinct(kept.rows().filter(|row| own(row).is_some()), |row| {
        row.server
    });
    for server in servers {
        let row = kept.rows().find(|row| row.server == server);
        let both = row.and_then(|row| Some((row.figure(INDEX.key)?, own(&row)?)));
        if let Some((measured, own)) = both.filter(|(measured, own)| measured > own) {
            text += &format!(
                "- {server}: of the measured growth, {} bytes an object are not its index by its \
                 own count: other growth of the process, and noise.\n",
                tenths(measured - own)
            );
        }
    }
    text
}

const CPU: Figure = Figure {
    key: "cpu_ns",
    rounds: "rounds_cpu_ns",
    name: "processor time",
    better: Better::Less,
    show: micros,
};
const RATE: Figure = Figure {
    key: "requests_per_second",
    rounds: "rounds_requests_per_second",
    name: "requests/s",
    better: Better::More,
    show: count,
};
const FIRST_HIT: Figure = Figure {
    key: "first_hit_ms",
    rounds: "runs_first_hit_ms",
    name: "time until the first hit",
    better: Better::Less,
    show: count,
};
const HITS_LATER: Figure = Figure {
    key: "hits_later_per_mille",
    rounds: "",
    name: "share of hits after the kill",
    better: Better::More,
    show: thousandths,
};
const INDEX: Figure = Figure {
    key: "tenths_of_bytes_each",
    rounds: "runs_tenths_of_bytes_each",
    name: "memory of an object",
    better: Better::Less,
    show: tenths,
};
/// Fewer are chance.
const LOST_PER_MILLE: i64 = 10;

const HEAD: &str = "\
# HashCache beside other caches

Written by `cargo campaign rivals`, which measures HashCache and Debian's Squid, nginx, Varnish
and Traffic Server on one machine. Every cache has a file system of its own on a loop device and is
in a memory group of equal size. The rivals have the configurations of
`lab/campaigns/src/rivals/configuration.rs`, where a comment says why. Figures are medians of the
rounds; a range beside one is the least and the largest. \"×\" says how many times the figure of
HashCache (of its first line) that is. Each sentence below a table is computed from its figures; a
program that was not measured is named with the reason. The sections at the end are written by hand.

";

const HITS: &str = "\
One object of each size is asked for again and again by 32 connections (hits in memory), or objects
in turn that are more than four times as large as the memory for objects (hits on disk), or objects
that nobody has asked for before (misses). Servers have one processor, the load has the other one.
Each server is in a memory group of 1 GiB, so the page cache has the files of the others, while
ours reads its disk. Contents are checked before the rounds; a server that fails requests during
them, or whose hits come from the origin, is left out. Varnish has no disk store that lasts, so it
has no figure for hits on disk; Squid has its rock store there.
";

const MIX: &str = "\
Requests for objects of 2 to 24 KB, 59 % of them for one of 20,000 objects (260 MB), the others
for objects that nobody has asked for before. 64 MiB for objects, 256 MiB for the group with the
page cache.
";

const POLYMIX: &str = "\
Browsers visit the pages and single objects of Polymix-4 and check every byte. The working set is
larger than the memory; the disk has no limit. Browsers and servers share the processors, so
requests/s say less than processor time.
";

const SLOW_DISK: &str = "\
The same browsers on a disk of 100 reads and 100 writes a second. *Private pages* are pages whose
objects no other page has: the friendliest load for `grouped`. Requests/s, and what the disk did:
";

const RESTART: &str = "\
Each cache is filled with objects of 7000 bytes, left alone for some seconds (Traffic Server for
70, because it writes its directory once a minute; what it has written since is lost with a
crash), and killed with all its processes. Its file system is mounted anew, so that nothing is in
the page cache. The shares are of samples of 1000 requests or less.
";

const INDEX_MEMORY: &str = "\
Each cache is filled twice, with few objects of 7000 bytes and a store with room for them, and
with many. The figure is the difference of the memory of its processes and of what they share,
without pages of files, divided by the difference of the stored objects. So it has what a cache
reserves for the size of its store too. It has no part of the memory for objects, which is full
both times. Varnish has its objects in a mapped file. With rock, a slot has one place for the
objects of many names, so it loses some while it is being filled.
";

const BY_HAND: &str = "## What these figures do not show\n";
const NOTHING_BY_HAND: &str = "\
## What these figures do not show

Written by hand.

- One machine, one thread for requests, loopback: how these caches use many processors or a real
  network is not measured.
- Loads are synthetic. Private pages, of which every object belongs to one page, are the best case
  of `grouped`; the page mix and Polymix-4 are not.
- A kill of the processes is not a power cut: the kernel keeps what it had taken. `cargo campaign
  never-wrong` and the tests of the engine try cuts of every write of HashCache; the rivals are
  not tried.
";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page(parts: &[(Part, Result<Kept, String>)], before: &str) -> String {
        let programs = [Program {
            name: "Varnish",
            version: None,
        }];
        Page {
            form: Form::Quick,
            parts,
            programs: &programs,
        }
        .text(before)
    }

    #[test]
    fn a_rival_that_is_missing_and_a_part_that_failed_are_named() {
        let text = page(&[(Part::Mix, Err("wrk is not installed".to_owned()))], "");
        assert!(text.contains("| Varnish | **not installed, so not measured** |"));
        assert!(text.contains("larger than memory\n\nNot measured: wrk is not installed.\n"));
        assert!(text.contains("**This is a quick run"));
    }

    #[test]
    fn what_was_written_by_hand_stays() {
        let text = page(&[], &format!("old\n{BY_HAND}\nMine.\n"));
        assert!(text.ends_with("\nMine.\n") && !text.contains("old"));
        assert!(page(&[], "").ends_with(NOTHING_BY_HAND));
    }

    #[test]
    fn a_cache_without_a_hit_after_the_kill_has_lost_its_objects() {
        let figures = json!({
            "listens_ms": 5,
            "first_hit_ms": null,
            "runs_first_hit_ms": [null, 7, null],
            "hits_before_per_mille": 1000,
            "hits_at_once_per_mille": 0,
            "hits_later_per_mille": 0,
            "wrong": 0,
        });
        let row = json!({ "what": "nginx, threads", "verdict": "-", "figures": figures });
        let kept = Kept::from_value(json!({ "report": { "rows": [row] } }));
        let text = section(Part::Restart, &kept);
        assert!(text.contains(
            "| nginx, threads | 5 | no hit in 2 of 3 runs | 1.000 | 0.000 | 0.000 | 0 |"
        ));
        assert!(text.contains(
            "nginx, threads lost objects: after the kill, the share of its hits is less by 1.000"
        ));
        assert!(text.contains("HashCache has no figure"));
        assert!(text.contains("Wrong answers of the servers in the table: none"));
    }
}
