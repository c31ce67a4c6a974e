//! The page of figures: as Markdown for readers of the repository, and as one HTML file with the
//! pictures in it.
//!
//! Invariant: both have every figure, also those that were not drawn, with the reason.

use std::fmt::Write as _;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hashcache_sim::svg::escaped;

use super::Size;
use super::figure::{Bar, Curves, Drawing, Drawn, Figure, Panel, Paper, number};

/// A figure with what became of it.
pub struct Entry<'a> {
    pub figure: &'a Figure,
    pub state: State,
}

pub enum State {
    Drawn {
        drawn: Drawn,
        commands: Vec<String>,
        size: Size,
    },
    /// The reason.
    NotDrawn(String),
}

impl Entry<'_> {
    /// The pictures: name and panel.
    pub fn pictures(&self) -> Vec<(String, &Panel)> {
        let State::Drawn { drawn, .. } = &self.state else {
            return vec![];
        };
        let panels = drawn.panels.iter();
        panels.map(|panel| (self.file(panel), panel)).collect()
    }

    fn file(&self, panel: &Panel) -> String {
        let id = self.figure.id;
        match panel.name {
            "" => format!("{id}.svg"),
            name => format!("{id}-{name}.svg"),
        }
    }
}

/// The page as Markdown. `pictures` lie beside it.
pub fn markdown(entries: &[Entry<'_>]) -> String {
    let mut text = format!("# {TITLE}\n\n{}", wrapped(INTRODUCTION));
    for paper in Paper::ALL {
        let _ = write!(text, "\n## {}\n", paper.title());
        for entry in entries.iter().filter(|entry| entry.figure.paper == paper) {
            text += &entry.markdown();
        }
    }
    text
}

/// The page as HTML, with all pictures in it.
pub fn html(entries: &[Entry<'_>]) -> String {
    let mut text = String::from(HEAD_HTML);
    let _ = write!(text, "<h1>{TITLE}</h1>\n<p>{}</p>\n", code(INTRODUCTION));
    for paper in Paper::ALL {
        let _ = writeln!(text, "<h2>{}</h2>", escaped(paper.title()));
        for entry in entries.iter().filter(|entry| entry.figure.paper == paper) {
            text += &entry.html();
        }
    }
    text + "</body>\n</html>\n"
}

impl Entry<'_> {
    fn heading(&self) -> String {
        format!("{}: {}", self.figure.place, self.figure.title)
    }

    fn markdown(&self) -> String {
        let mut text = format!("\n### {}\n\n", self.heading());
        let _ = writeln!(text, "**The paper:** {}\n", self.figure.finding);
        let (drawn, commands, size) = match &self.state {
            State::Drawn {
                drawn,
                commands,
                size,
            } => (drawn, commands, size),
            State::NotDrawn(reason) => {
                let _ = writeln!(text, "**Not drawn:** {reason}");
                return wrapped(&text);
            }
        };
        for (file, panel) in self.pictures() {
            let _ = writeln!(text, "![{}]({file})\n", panel.title);
        }
        let _ = writeln!(text, "**Here:** {}\n", drawn.found.join(" "));
        let _ = writeln!(text, "**Why they differ:** {}\n", drawn.reasons.join(" "));
        let _ = writeln!(
            text,
            "**Requests:** {} {} ({size})\n",
            drawn.workload, drawn.runs
        );
        for panel in &drawn.panels {
            text += &panel.table().markdown();
        }
        text += "<details><summary>Commands</summary>\n\n";
        for command in commands {
            let _ = writeln!(text, "    {command}");
        }
        text += "\n</details>\n";
        wrapped(&text)
    }

    fn html(&self) -> String {
        let mut text = format!("<section id=\"{}\">\n", self.figure.id);
        let _ = writeln!(text, "<h3>{}</h3>", escaped(&self.heading()));
        let paragraph =
            |heading: &str, words: &str| format!("<p><b>{heading}:</b> {}</p>\n", code(words));
        text += &paragraph("The paper", self.figure.finding);
        match &self.state {
            State::NotDrawn(reason) => text += &paragraph("Not drawn", reason),
            State::Drawn {
                drawn,
                commands,
                size,
            } => {
                for panel in &drawn.panels {
                    // As a file of its own: styles of one picture would change others.
                    let _ = writeln!(
                        text,
                        "<figure><img alt=\"{}\" src=\"data:image/svg+xml;base64,{}\"></figure>",
                        escaped(&panel.title),
                        BASE64_STANDARD.encode(panel.svg())
                    );
                }
                text += &paragraph("Here", &drawn.found.join(" "));
                text += &paragraph("Why they differ", &drawn.reasons.join(" "));
                let requests = format!("{} {} ({size})", drawn.workload, drawn.runs);
                text += &paragraph("Requests", &requests);
                text += "<details><summary>Numbers and commands</summary>\n";
                for panel in &drawn.panels {
                    text += &panel.table().html();
                }
                let commands = commands.iter().map(|it| escaped(it) + "\n");
                let _ = writeln!(
                    text,
                    "<pre>{}</pre>\n</details>",
                    commands.collect::<String>()
                );
            }
        }
        text + "</section>\n"
    }
}

/// The numbers of a panel.
struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Panel {
    fn table(&self) -> Table {
        match &self.drawing {
            Drawing::Bars(bars) => self.table_of_bars(bars),
            Drawing::Curves(curves) => self.table_of_curves(curves),
        }
    }

    fn table_of_bars(&self, bars: &[Bar]) -> Table {
        let has_paper = bars.iter().any(|bar| bar.paper.is_some());
        let mut head = vec![String::new(), self.unit.to_owned()];
        if has_paper {
            head.extend(["the paper".to_owned(), "here : paper".to_owned()]);
        }
        let row = |bar: &Bar| {
            let mut row = vec![bar.label.clone(), bar.value.show(self.digits)];
            match bar.paper {
                Some(paper) => row.extend([
                    number(paper, self.digits),
                    format!("{:.2}", bar.value.median / paper),
                ]),
                None if has_paper => row.extend([String::new(), String::new()]),
                None => {}
            }
            row
        };
        Table {
            head,
            rows: bars.iter().map(row).collect(),
        }
    }

    fn table_of_curves(&self, curves: &Curves) -> Table {
        let mut places: Vec<f64> = curves
            .curves
            .iter()
            .flat_map(|curve| curve.points.iter().map(|(x, _)| *x))
            .collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let mut head = vec![curves.x.label.clone()];
        head.extend(curves.curves.iter().map(|curve| curve.label.clone()));
        let row = |x: &f64| {
            let mut row = vec![plain(*x)];
            for curve in &curves.curves {
                let point = curve.points.iter().find(|(at, _)| at == x);
                row.push(point.map_or_else(String::new, |(_, y)| y.show(self.digits)));
            }
            row
        };
        let every = places.len().div_ceil(ROWS_MAX).max(1);
        let last = places.len().saturating_sub(1);
        let shown = places.iter().enumerate();
        let shown = shown.filter(|(n, _)| n % every == 0 || *n == last);
        Table {
            head,
            rows: shown.map(|(_, x)| row(x)).collect(),
        }
    }
}

impl Table {
    fn markdown(&self) -> String {
        let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut text = row(&self.head);
        text += &format!("|{}\n", "---|".repeat(self.head.len()));
        text += &self.rows.iter().map(|cells| row(cells)).collect::<String>();
        text + "\n"
    }

    fn html(&self) -> String {
        let row = |cells: &[String], name: &str| {
            let cells = cells.iter();
            let cells = cells.map(|cell| format!("<{name}>{}</{name}>", escaped(cell)));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let rows = self.rows.iter().map(|cells| row(cells, "td"));
        format!(
            "<div class=\"table\"><table>\n{}{}</table></div>\n",
            row(&self.head, "th"),
            rows.collect::<String>()
        )
    }
}

/// A number without zeros at its end.
fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text with `code` in backquotes, as HTML.
fn code(words: &str) -> String {
    let mut text = String::new();
    for (n, part) in words.split('`').enumerate() {
        if n % 2 == 1 {
            let _ = write!(text, "<code>{}</code>", escaped(part));
        } else {
            text += &escaped(part);
        }
    }
    text
}

/// Paragraphs in lines of at most 140 columns. Tables, pictures and commands stay as they are.
fn wrapped(text: &str) -> String {
    let mut wrapped = String::new();
    for line in text.lines() {
        if line.starts_with(['|', '!', ' ', '#']) {
            wrapped += line;
            wrapped.push('\n');
            continue;
        }
        let mut columns = 0;
        for word in line.split(' ') {
            let width = word.chars().count();
            if columns > 0 && columns + 1 + width > COLUMNS_MAX {
                wrapped.push('\n');
                columns = 0;
            }
            if columns > 0 {
                wrapped.push(' ');
                columns += 1;
            }
            wrapped += word;
            columns += width;
        }
        wrapped.push('\n');
    }
    wrapped
}

const COLUMNS_MAX: usize = 140;
/// Of longer curves a table has every second point, or fewer, and the last one.
const ROWS_MAX: usize = 20;

const INTRODUCTION: &str = "\
Made by `cargo campaign papers`. Each number is one that a command below it prints, or is \
calculated from such numbers; several runs have their median, the least and the largest. \
A disk is a model of the papers' disks, unless it \
says otherwise. The size of a measurement (`quick` or `full`) is in brackets. `cargo campaign \
papers --redraw` makes the page again from `results.json`, and with `--html` also `index.html`, \
one file with all pictures in it.";

const TITLE: &str = "Figures of the papers, drawn again";
const HEAD_HTML: &str = include_str!("head.html");

#[cfg(test)]
mod tests {
    use super::super::curves::{Axis, Scale};
    use super::super::figure::{Curve, Spread};
    use super::*;

    const FIGURE: Figure = Figure {
        id: "webcosm-table-2",
        paper: Paper::Webcosm,
        place: "Table 2",
        title: "requests/s of each layout",
        finding: "SQUID serves 27 & more.",
        draw: |_| unreachable!("nothing is measured here"),
    };

    fn drawn() -> State {
        let bars = Drawing::Bars(vec![Bar {
            label: "SQUID".to_owned(),
            value: Spread::from_values(vec![90.0, 94.5, 99.0]).unwrap(),
            paper: Some(27.0),
            is_ours: true,
        }]);
        let curves = Drawing::Curves(Curves {
            x: Axis::new("threshold, KiB", Scale::Logarithmic),
            y: Scale::FromZero,
            curves: vec![Curve {
                label: "BUDDY".to_owned(),
                points: vec![(0.5, Spread::one(1234.0)), (128.0, Spread::one(600.0))],
                is_dashed: false,
            }],
        });
        let panel = |name, drawing| Panel {
            name,
            title: "Title".to_owned(),
            unit: "requests/s",
            digits: 0,
            drawing,
        };
        State::Drawn {
            drawn: Drawn {
                workload: "`dec`.".to_owned(),
                runs: "Medians of 3 runs.".to_owned(),
                panels: vec![panel("", bars), panel("threshold", curves)],
                found: vec!["word ".repeat(60)],
                reasons: vec!["Because.".to_owned()],
            },
            commands: vec!["cargo campaign layouts --json".to_owned()],
            size: Size::Quick,
        }
    }

    #[test]
    fn a_drawn_figure_has_its_pictures_numbers_and_commands() {
        let entry = Entry {
            figure: &FIGURE,
            state: drawn(),
        };
        let names: Vec<String> = entry.pictures().into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            ["webcosm-table-2.svg", "webcosm-table-2-threshold.svg"]
        );
        let entries = [entry];
        let (text, html) = (markdown(&entries), html(&entries));
        for part in [
            "### Table 2: requests/s of each layout",
            "![Title](webcosm-table-2-threshold.svg)",
            "| SQUID | 94 (90 to 99) | 27 | 3.50 |",
            "| 0.5 | 1,234 |",
            "    cargo campaign layouts --json",
            "Medians of 3 runs. (quick)",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        for part in [
            "SQUID serves 27 &amp; more.",
            "<code>dec</code>",
            "<td>94 (90 to 99)</td>",
            "cargo campaign layouts --json",
        ] {
            assert!(html.contains(part), "{part} in {html}");
        }
        assert_eq!(html.matches("<img ").count(), 2);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS_MAX));
    }

    #[test]
    fn a_figure_that_was_not_drawn_has_its_reason_on_both_pages() {
        let entries = [Entry {
            figure: &FIGURE,
            state: State::NotDrawn("needs root".to_owned()),
        }];
        assert!(entries[0].pictures().is_empty());
        assert!(markdown(&entries).contains("**Not drawn:** needs root"));
        assert!(html(&entries).contains("<b>Not drawn:</b> needs root"));
    }
}
