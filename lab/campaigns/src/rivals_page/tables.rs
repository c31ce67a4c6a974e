//! Tables and sentences from the rows of a report.
//!
//! A sentence is computed from the figures, so it is true of any of them. Invariant: servers and
//! loads stand in the order of the report.

use super::kept::{Kept, Row};

/// A figure by which servers are compared.
#[derive(Clone, Copy)]
pub struct Figure {
    /// In a report, of the median; and of the rounds.
    pub key: &'static str,
    pub rounds: &'static str,
    /// In a sentence.
    pub name: &'static str,
    pub better: Better,
    pub show: fn(i64) -> String,
}

/// Which of two figures is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Less,
    More,
}

/// Nanoseconds as microseconds with one decimal.
pub fn micros(ns: i64) -> String {
    tenths(rounded(ns, 100))
}

/// As it is.
pub fn count(number: i64) -> String {
    number.to_string()
}

/// Thousandths as a decimal fraction.
pub fn thousandths(number: i64) -> String {
    format!("{}.{:03}", number / 1000, number % 1000)
}

pub fn tenths(number: i64) -> String {
    let sign = if number < 0 { "-" } else { "" };
    let number = number.unsigned_abs();
    format!("{sign}{}.{}", number / 10, number % 10)
}

/// The different texts of rows, in their order.
pub fn distinct<'a>(
    rows: impl Iterator<Item = Row<'a>>,
    text: fn(&Row<'a>) -> &'a str,
) -> Vec<&'a str> {
    let mut all = vec![];
    for row in rows {
        if !all.contains(&text(&row)) {
            all.push(text(&row));
        }
    }
    all
}

/// A table of Markdown.
pub fn table(head: &[&str], lines: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|it| (*it).to_owned()).collect();
    let mut text = line(&head);
    text += &format!("|{}\n", "---|".repeat(head.len()));
    for cells in lines {
        text += &line(cells);
    }
    text
}

/// One figure: a line for each server, a column for each load.
pub fn by_load(kept: &Kept, figure: Figure) -> String {
    let measured = || kept.rows().filter(Row::has_figures);
    let loads = distinct(measured(), |row| row.load);
    let mut lines = vec![];
    for server in distinct(measured(), |row| row.server) {
        let mut cells = vec![server.to_owned()];
        for load in &loads {
            let of_load = || measured().filter(|row| row.load == *load);
            let row = of_load().find(|row| row.server == server);
            cells.push(
                row.map_or_else(|| "-".to_owned(), |row| cell(&row, ours(of_load()), figure)),
            );
        }
        lines.push(cells);
    }
    let mut head = vec!["server"];
    head.extend(loads.iter().map(|load| load.trim_end_matches(", no log")));
    table(&head, &lines)
}

/// The median, the range, and how many times ours that is.
fn cell(row: &Row<'_>, ours: Option<Row<'_>>, figure: Figure) -> String {
    let Some(value) = row.figure(figure.key) else {
        return "-".to_owned();
    };
    let mut text = (figure.show)(value);
    if let Some((least, most)) = row.range(figure.rounds)
        && least != most
    {
        text += &format!(" ({} to {})", (figure.show)(least), (figure.show)(most));
    }
    if loses_objects(row) {
        return text + "; lost objects";
    }
    let own = ours.filter(|it| !loses_objects(it));
    let own = own.and_then(|it| it.figure(figure.key));
    if let Some(own) = own.filter(|own| *own > 0 && !row.is_ours() && value > 0) {
        text += &format!("; {} ×", times(value, own));
    }
    text
}

/// The first of our forms.
fn ours<'a>(mut rows: impl Iterator<Item = Row<'a>>) -> Option<Row<'a>> {
    rows.find(|row| row.is_ours() && row.has_figures())
}

/// A quotient with two decimals, or with three if it is small.
fn times(value: i64, of: i64) -> String {
    let of = of.max(1);
    if value.saturating_mul(20) < of {
        thousandths(rounded(value.saturating_mul(1000), of))
    } else {
        let percent = rounded(value.saturating_mul(100), of);
        format!("{}.{:02}", percent / 100, percent % 100)
    }
}

/// The quotient of two numbers that are not negative, to the nearest.
fn rounded(number: i64, by: i64) -> i64 {
    (number + by / 2) / by
}

/// For each load: how the first of our forms compares with the best rival.
pub fn sentences(kept: &Kept, figure: Figure) -> String {
    let measured = || kept.rows().filter(Row::has_figures);
    let mut text = String::new();
    for load in distinct(measured(), |row| row.load) {
        let of_load = || measured().filter(|row| row.load == load);
        let before = match load {
            "" => String::new(),
            load => format!("*{}*: ", load.trim_end_matches(", no log")),
        };
        let rivals = of_load().filter(|row| !row.is_ours() && !loses_objects(row));
        let rivals = rivals.filter_map(|row| Some((row.figure(figure.key)?, row)));
        let best = match figure.better {
            Better::Less => rivals.min_by_key(|it| it.0),
            Better::More => rivals.max_by_key(|it| it.0),
        };
        let own = ours(of_load()).filter(|row| !loses_objects(row));
        let own = own.and_then(|row| Some((row.figure(figure.key)?, row)));
        let sentence = match (own, best) {
            (Some(own), Some(best)) => compared(own, best, figure),
            (None, _) => "HashCache has no figure that can be compared.".to_owned(),
            (_, None) => "There is no rival to compare with.".to_owned(),
        };
        text += &format!("- {before}{sentence}\n");
        for row in of_load().filter(loses_objects) {
            let hits = row.figure("hits_per_mille").unwrap_or_default();
            let offered = row.figure("offered_per_mille").unwrap_or_default();
            text += &format!(
                "- {before}{} lost objects (hits {} of the requests, {} were possible), and the \
                 origin does not wait for a disk: its figures cannot be compared.\n",
                row.server,
                thousandths(hits),
                thousandths(offered),
            );
        }
    }
    text
}

/// Whether a row counts hits, and has less than 95 % of those that were possible.
fn loses_objects(row: &Row<'_>) -> bool {
    let both = (
        row.figure("hits_per_mille"),
        row.figure("offered_per_mille"),
    );
    matches!(both, (Some(hits), Some(offered)) if hits * 100 < offered * 95)
}

fn compared((own, form): (i64, Row<'_>), (best, rival): (i64, Row<'_>), figure: Figure) -> String {
    let name = figure.name;
    let ranges = (form.range(figure.rounds), rival.range(figure.rounds));
    let overlap = match ranges {
        (Some(ours), Some(theirs)) if ours.0 <= theirs.1 && theirs.0 <= ours.1 => {
            "; the ranges of the rounds overlap"
        }
        _ => "",
    };
    let (form, rival) = (form.server, rival.server);
    if own <= 0 || best <= 0 {
        let (own, best) = ((figure.show)(own), (figure.show)(best));
        return format!("{form} has {own}, the best rival, {rival}, {best}: {name}.");
    }
    let factor = times(own, best);
    let (is_less, is_more) = (own * 100 < best * 95, own * 100 > best * 105);
    let is_better = match figure.better {
        Better::Less => is_less,
        Better::More => is_more,
    };
    if !is_less && !is_more {
        format!(
            "{form} and the best rival, {rival}, differ by at most 5 % ({name}: {factor} times)."
        )
    } else if is_better {
        format!("{form} is better: {factor} times the {name} of the best rival, {rival}{overlap}.")
    } else {
        format!(
            "**HashCache loses**: {form} has {factor} times the {name} of the best, \
             {rival}{overlap}."
        )
    }
}

/// What was not measured, and why.
pub fn skipped(kept: &Kept) -> String {
    kept.rows()
        .filter(Row::is_skipped)
        .map(|row| {
            format!(
                "- Not measured: {}: {}.\n",
                row.what,
                row.detail.trim_end_matches('.')
            )
        })
        .collect()
}

/// Wrong answers of each server that gave any.
pub fn wrong(kept: &Kept) -> String {
    let counts: Vec<(&str, u64)> = kept
        .rows()
        .filter_map(|row| Some((row.what, row.wrong()?)))
        .collect();
    if counts.is_empty() {
        return String::new();
    }
    let wrong = counts.iter().filter(|(_, count)| *count > 0);
    let lines: String = wrong
        .map(|(what, count)| format!("- {what}: {count} wrong, cut or missing answers.\n"))
        .collect();
    if lines.is_empty() {
        return "- Wrong answers of the servers in the table: none.\n".to_owned();
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RATE: Figure = Figure {
        key: "requests_per_second",
        rounds: "rounds_requests_per_second",
        name: "requests/s",
        better: Better::More,
        show: count,
    };

    fn row(what: &str, rate: i64, hits: i64) -> Value {
        let figures = json!({
            "cpu_ns": 1,
            "requests_per_second": rate,
            "rounds_requests_per_second": [rate - 1, rate + 1],
            "hits_per_mille": hits,
            "offered_per_mille": 600,
        });
        json!({ "what": what, "verdict": "-", "detail": "", "figures": figures })
    }

    fn kept(rows: &[Value]) -> Kept {
        Kept::from_value(json!({ "report": { "rows": rows } }))
    }

    #[test]
    fn a_sentence_says_who_is_better_and_by_how_much() {
        for (ours, expected) in [
            (
                390,
                "is better: 3.90 times the requests/s of the best rival, nginx",
            ),
            (103, "differ by at most 5 %"),
            (50, "**HashCache loses**: hashcache, log has 0.50 times"),
        ] {
            let rows = [
                row("pages: hashcache, log", ours, 600),
                row("pages: Squid", 90, 600),
                row("pages: nginx", 100, 600),
            ];
            let text = sentences(&kept(&rows), RATE);
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_sentence_says_if_the_ranges_overlap() {
        let mut rows = [row("hashcache, log", 110, 600), row("nginx", 100, 600)];
        let overlaps = |rows: &[Value]| sentences(&kept(rows), RATE).contains("ranges of the");
        assert!(!overlaps(&rows));
        rows[1]["figures"][RATE.rounds] = json!([90, 109]);
        assert!(overlaps(&rows));
    }

    #[test]
    fn a_rival_that_lost_objects_is_named_and_not_compared() {
        let rows = [
            row("pages: hashcache, log", 200, 600),
            row("pages: Squid, rock", 900, 400),
            row("pages: nginx", 100, 590),
        ];
        let text = sentences(&kept(&rows), RATE);
        assert!(
            text.contains("2.00 times the requests/s of the best rival, nginx"),
            "{text}"
        );
        assert!(
            text.contains("Squid, rock lost objects (hits 0.400"),
            "{text}"
        );
    }

    #[test]
    fn a_table_has_every_server_and_load_with_its_range_and_factor() {
        let rows = [
            row("pages: hashcache, log", 200, 600),
            row("pages: nginx", 100, 600),
            row("mix: nginx", 7, 600),
        ];
        let expected = "| server | pages | mix |\n|---|---|---|\n\
                        | hashcache, log | 200 (199 to 201) | - |\n\
                        | nginx | 100 (99 to 101); 0.50 × | 7 (6 to 8) |\n";
        assert_eq!(by_load(&kept(&rows), RATE), expected);
    }

    #[test]
    fn our_own_figure_does_not_count_if_we_lose_objects() {
        let rows = [
            row("pages: hashcache, log", 900, 300),
            row("pages: nginx", 100, 590),
        ];
        let text = sentences(&kept(&rows), RATE);
        assert!(text.contains("HashCache has no figure"), "{text}");
        let table = by_load(&kept(&rows), RATE);
        assert!(
            table.contains("lost objects") && !table.contains('×'),
            "{table}"
        );
    }

    #[test]
    fn quotients_are_rounded() {
        for (value, of, expected) in [
            (1_473, 744, "1.98"),
            (2_180, 462, "4.72"),
            (996, 1000, "1.00"),
            (73, 7_424, "0.010"),
            (0, 7, "0.000"),
        ] {
            assert_eq!(times(value, of), expected);
        }
        assert_eq!(micros(17_251), "17.3");
    }

    #[test]
    fn what_was_skipped_is_named_with_the_reason() {
        let rows = [json!({ "what": "Varnish", "verdict": "skipped", "detail": "not installed" })];
        assert_eq!(
            skipped(&kept(&rows)),
            "- Not measured: Varnish: not installed.\n"
        );
    }
}
