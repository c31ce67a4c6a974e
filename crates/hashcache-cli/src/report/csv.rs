//! A report as CSV (RFC 4180), for spreadsheets.
//!
//! Invariant: names are quoted, and no name starts with a character that makes a spreadsheet read
//! it as a formula.

use std::fmt::Write as _;

use hashcache_proxy::Counts;

use super::{Report, row_of};

pub(super) fn render(report: &Report) -> String {
    let mut text = HEADING.to_owned();
    row(&mut text, "total", &report.span(), &row_of(&report.totals));
    for (name, totals) in &report.steps {
        row(&mut text, "time", name, &row_of(totals));
    }
    for (section, lines) in &report.sections {
        for (name, counts) in &lines.named {
            row(&mut text, section.word(), name, counts);
        }
        for (name, counts) in lines.unnamed() {
            row(&mut text, section.word(), name, counts);
        }
    }
    text
}

fn row(text: &mut String, section: &str, name: &str, counts: &Counts) {
    let name = name.replace('"', "\"\"");
    let mark = if name.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        "'"
    } else {
        ""
    };
    // Writing to a `String` cannot fail.
    let _ = write!(
        text,
        "{section},\"{mark}{name}\",{},{},{},{},{},{}\r\n",
        counts.requests,
        counts.hits,
        counts.client_bytes,
        counts.origin_bytes,
        counts.saved_bytes(),
        counts.failures
    );
}

const HEADING: &str =
    "section,name,requests,hits,client_bytes,origin_bytes,saved_bytes,failures\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_neither_a_formula_nor_a_further_field() {
        let line = |name: &str| {
            let mut text = String::new();
            row(&mut text, "site", name, &Counts::default());
            text
        };
        assert_eq!(line("a,b\"c"), "site,\"a,b\"\"c\",0,0,0,0,0,0\r\n");
        assert_eq!(line("=1+1"), "site,\"'=1+1\",0,0,0,0,0,0\r\n");
        assert_eq!(line("-"), "site,\"'-\",0,0,0,0,0,0\r\n");
    }
}
