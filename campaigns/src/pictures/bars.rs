//! A picture of horizontal bars in sections.
//!
//! Invariant: the text of an SVG file without fonts and scripts. Its background is transparent and
//! its colours follow the reader's choice of light or dark.

use std::fmt::Write as _;

use hashcache_sim::svg::escaped;

/// A picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    pub title: String,
    /// What was measured on what, a line each.
    pub notes: Vec<String>,
    pub sections: Vec<Section>,
}

/// Bars with a heading, on the scale of the whole picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    pub heading: String,
    pub bars: Vec<Bar>,
}

/// A bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    pub label: String,
    pub value: f64,
    /// The value as the reader sees it.
    pub shown: String,
    pub is_ours: bool,
}

impl Chart {
    /// The text of the file.
    pub fn svg(&self) -> String {
        let bars = self.sections.iter().flat_map(|section| &section.bars);
        let most = bars.map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
        let mut body = text(LEFT, TITLE_Y, "title", &self.title);
        let mut y = TITLE_Y + NOTE_STEP;
        for note in &self.notes {
            body += &text(LEFT, y, "note", note);
            y += NOTE_STEP;
        }
        for section in &self.sections {
            y += SECTION_GAP;
            body += &text(LEFT, y, "heading", &section.heading);
            for bar in &section.bars {
                y += BAR_STEP;
                body += &bar.svg(y, most);
            }
            y += BAR_STEP;
        }
        let height = y;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             role=\"img\">\n<title>{}</title>\n{STYLE}{body}</svg>\n",
            escaped(&self.title)
        )
    }
}

impl Bar {
    /// The bar with its label in front and its value behind, around the line of text at `y`.
    fn svg(&self, y: f64, most: f64) -> String {
        let width = (BARS_END - BARS_BEGIN) * self.value / most;
        let class = if self.is_ours { "ours" } else { "other" };
        let mut svg = text(BARS_BEGIN - GAP, y, "label", &self.label);
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{BARS_BEGIN}\" y=\"{}\" width=\"{width:.1}\" \
             height=\"{BAR_HEIGHT}\"/>",
            y - BASELINE
        );
        svg + &text(BARS_BEGIN + width + GAP, y, "value", &self.shown)
    }
}

fn text(x: f64, y: f64, class: &str, words: &str) -> String {
    format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>\n",
        escaped(words)
    )
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 12.0;
const BARS_BEGIN: f64 = 220.0;
/// Room for a value is left behind the longest bar.
const BARS_END: f64 = 650.0;
const TITLE_Y: f64 = 26.0;
const NOTE_STEP: f64 = 18.0;
const SECTION_GAP: f64 = 12.0;
const BAR_STEP: f64 = 21.0;
const BAR_HEIGHT: f64 = 15.0;
/// From the top of a bar to the baseline of its label.
const BASELINE: f64 = 12.0;
const GAP: f64 = 8.0;
const STYLE: &str = "\
<style>
text { font: 13px Helvetica, Arial, sans-serif; fill: #222222; }
.title { font-size: 17px; }
.heading { font-weight: bold; }
.label { text-anchor: end; }
.note { fill: #666666; }
.ours { fill: #1763b0; }
.other { fill: #a3acb5; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e6e6; }
  .note { fill: #a8a8a8; }
  .ours { fill: #58a0ea; }
  .other { fill: #66707a; }
}
</style>
";

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, value: f64, is_ours: bool) -> Bar {
        Bar {
            label: label.to_owned(),
            value,
            shown: format!("{value} MB"),
            is_ours,
        }
    }

    fn number(line: &str, name: &str) -> f64 {
        let rest = line.split(&format!(" {name}=\"")).nth(1).expect("a number");
        rest.split('"').next().unwrap().parse().unwrap()
    }

    #[test]
    fn bars_are_as_long_as_their_values_and_end_within_the_picture() {
        let section = |heading: &str, bars| Section {
            heading: heading.to_owned(),
            bars,
        };
        let chart = Chart {
            title: "memory & disk".to_owned(),
            notes: vec!["on a desk".to_owned()],
            sections: vec![
                section("one", vec![bar("none", 0.0, true), bar("half", 50.0, true)]),
                section("two", vec![bar("all", 100.0, false)]),
            ],
        };
        let svg = chart.svg();
        let bars: Vec<&str> = svg.lines().filter(|it| it.starts_with("<rect")).collect();
        let widths: Vec<f64> = bars.iter().map(|line| number(line, "width")).collect();
        assert_eq!(widths, [0.0, 215.0, 430.0]);
        let ours = bars.iter().map(|line| line.contains("class=\"ours\""));
        assert_eq!(ours.collect::<Vec<_>>(), [true, true, false]);
        for words in ["memory &amp; disk", "on a desk", "two", "half", "50 MB"] {
            assert!(svg.contains(&format!(">{words}<")), "{words} in {svg}");
        }
        let lines = svg.lines().filter(|line| line.starts_with("<text"));
        let places: Vec<f64> = lines.map(|line| number(line, "y")).collect();
        let height: f64 = svg
            .split("0 0 760 ")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!(
            places.iter().all(|y| *y < height),
            "{places:?} and {height}"
        );
    }

    #[test]
    fn a_picture_without_bars_is_a_picture() {
        let chart = Chart {
            title: String::new(),
            notes: vec![],
            sections: vec![],
        };
        assert!(chart.svg().ends_with("</svg>\n"));
    }
}
