//! A report as a single HTML file without scripts and without external resources.
//!
//! Invariant: names are escaped.

use std::fmt::Write as _;

use hashcache_proxy::{Counts, Escaped, Kind};
use hashcache_settings::units::{about_size, show_percent};

use super::section::{Lines, Section};
use super::{Report, grouped, row_of};

pub(super) fn render(report: &Report) -> String {
    let totals = &report.totals;
    let saved = totals.saved_bytes();
    let cards = [
        (
            "saved",
            about_size(saved),
            show_percent(saved, totals.served_bytes()),
        ),
        (
            "hits",
            grouped(totals.hits()),
            show_percent(totals.hits(), totals.requests()),
        ),
        ("requests", grouped(totals.requests()), String::new()),
        (
            "to clients",
            about_size(totals.served_bytes()),
            String::new(),
        ),
        (
            "from origins",
            about_size(totals.origin_bytes),
            String::new(),
        ),
        (
            "tunnels",
            about_size(totals.of(Kind::Tunnel).bytes),
            String::new(),
        ),
    ];
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>HashCache: {0}</title><style>{STYLE}</style></head><body>\
         <h1>HashCache, {0}</h1><p>{1}</p><ul>",
        report.period.words(),
        report.span()
    );
    for (name, value, more) in cards {
        // Writing to a `String` cannot fail, here and below.
        let _ = write!(html, "<li><b>{value}</b> {more}<span>{name}</span>");
    }
    html.push_str("</ul>");
    if report.damaged > 0 {
        let _ = write!(
            html,
            "<p>Damaged and left out: {} hours.</p>",
            report.damaged
        );
    }
    if !report.steps.is_empty() {
        let most = report.steps.iter().map(|(_, it)| it.served_bytes()).max();
        heading(&mut html, "begin");
        for (name, totals) in &report.steps {
            row(&mut html, name, &row_of(totals), most.unwrap_or(0));
        }
        html.push_str("</table>");
    }
    for (section, lines) in &report.sections {
        table(&mut html, *section, lines);
    }
    html.push_str("</body></html>\n");
    html
}

fn table(html: &mut String, section: Section, lines: &Lines) {
    if lines.is_empty() {
        let _ = write!(html, "<p>{}</p>", section.absence());
        return;
    }
    heading(html, section.word());
    let most = lines.named.first().map_or(0, |(_, it)| it.client_bytes);
    for (name, counts) in &lines.named {
        row(html, name, counts, most);
    }
    for (name, counts) in lines.unnamed() {
        row(html, name, counts, most);
    }
    html.push_str("</table>");
}

fn heading(html: &mut String, name: &str) {
    let _ = write!(
        html,
        "<table><tr><th>{name}<th>requests<th class=h>hits<th>to clients<th>saved<th class=m>"
    );
}

/// Adds a row; the bar shows the bytes to clients relative to `most`, and the saved bytes in
/// colour.
fn row(html: &mut String, name: &str, counts: &Counts, most: u64) {
    let saved = counts.saved_bytes();
    let part = |bytes: u64| match most {
        0 => 0.0,
        _ => (bytes as f64 * 100.0 / most as f64).min(100.0),
    };
    let _ = write!(
        html,
        "<tr><td>{}<td>{}<td class=h>{}<td>{}<td>{}<td class=m><svg viewBox=\"0 0 100 8\" \
         preserveAspectRatio=none><rect width={:.1} height=8 class=c />\
         <rect width={:.1} height=8 class=s /></svg>",
        // A line may break after a dot in a name; escapes contain no dots.
        Escaped(name).to_string().replace('.', ".<wbr>"),
        grouped(counts.requests),
        show_percent(counts.hits, counts.requests),
        about_size(counts.client_bytes),
        about_size(saved),
        part(counts.client_bytes),
        part(saved),
    );
}

/// Dark if the reader's system is dark.
const STYLE: &str = "\
:root{color-scheme:light dark;--b:#f4f1ea;--c:#fff;--t:#23262b;--m:#6a6f78;--l:#e3ded3;--a:#b4551d}\
@media(prefers-color-scheme:dark){\
:root{--b:#17191c;--c:#202327;--t:#e6e4df;--m:#9a9fa8;--l:#33373d;--a:#f0955b}}\
*{box-sizing:border-box}\
body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem;background:var(--b);color:var(--t);\
font:1rem/1.5 system-ui,sans-serif}\
h1{margin:0;font-size:1.5rem}\
p{margin:.25rem 0 1rem;color:var(--m)}\
ul{list-style:none;margin:0 0 1.5rem;padding:0;display:grid;gap:.75rem;\
grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr))}\
li{background:var(--c);border-radius:8px;padding:.75rem 1rem;white-space:nowrap}\
li b{font-size:1.25rem}\
li span{display:block;color:var(--m);font-size:.85rem}\
table{width:100%;margin-bottom:1.5rem;border-collapse:collapse;background:var(--c);\
border-radius:8px;font-size:.9rem;font-variant-numeric:tabular-nums}\
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--l)}\
th{color:var(--m);font-weight:500}\
th,td:not(:first-child){white-space:nowrap}\
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}\
.m{width:20%}\
svg{width:100%;height:.6rem;display:block}\
.c{fill:var(--l)}\
.s{fill:var(--a)}\
@media(max-width:40rem){.m,.h{display:none}th,td{padding:.3rem}}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_text() {
        let mut html = String::new();
        row(&mut html, "<script>&\"", &Counts::default(), 0);
        assert!(html.contains("<td>&lt;script&gt;&amp;&quot;<td>"), "{html}");
    }
}
