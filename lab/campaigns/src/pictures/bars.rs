//! A picture of horizontal bars in sections.
//!
//! Used by `pictures` and `papers`. Invariant: the text of an SVG file without fonts and scripts.
//! Its background is transparent and its colours follow the reader's choice of light or dark.

use std::fmt::Write as _;

use hashcache_sim::svg::escaped;

/// A picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Above the picture.
    pub title: String,
    /// What was measured on what, a line each.
    pub notes: Vec<String>,
    /// From top to bottom.
    pub sections: Vec<Section>,
    /// Where bars begin and end.
    pub frame: Frame,
}

/// Widths within a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    /// Of the whole picture.
    pub width: f64,
    /// Where bars begin; labels are to the left.
    pub bars_begin: f64,
    /// Where the longest bar ends; values are to the right.
    pub bars_end: f64,
}

impl Frame {
    /// For pages on wide screens.
    pub const WIDE: Self = Self {
        width: 760.0,
        bars_begin: 220.0,
        bars_end: 650.0,
    };
    /// A telephone can show it without making its letters too small.
    pub const NARROW: Self = Self {
        width: 500.0,
        bars_begin: 155.0,
        bars_end: 335.0,
    };
}

/// Bars with a heading, on the scale of the whole picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// Above the bars.
    pub heading: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// A bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// To the left.
    pub label: String,
    /// Its length.
    pub value: f64,
    /// The value as the reader sees it.
    pub shown: String,
    /// Whether it has the colour of what is ours.
    pub is_ours: bool,
    /// A value to compare with, drawn as a line across the bar.
    pub mark: Option<f64>,
}

impl Chart {
    /// The text of the file.
    pub fn svg(&self) -> String {
        let bars = self.sections.iter().flat_map(|section| &section.bars);
        let values = bars.flat_map(|bar| [Some(bar.value), bar.mark]).flatten();
        let most = values.fold(f64::MIN_POSITIVE, f64::max);
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
                body += &bar.svg(y, most, self.frame);
            }
            y += BAR_STEP;
        }
        let (width, height) = (self.frame.width, y);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             role=\"img\">\n<title>{}</title>\n{STYLE}{body}</svg>\n",
            escaped(&self.title)
        )
    }
}

impl Bar {
    /// The bar with its label in front and its value behind, around the line of text at `y`.
    fn svg(&self, y: f64, most: f64, frame: Frame) -> String {
        let length = |value: f64| (frame.bars_end - frame.bars_begin) * value / most;
        let width = length(self.value);
        let class = if self.is_ours { "ours" } else { "other" };
        let (begin, top) = (frame.bars_begin, y - BASELINE);
        let mut svg = text(begin - GAP, y, "label", &self.label);
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{begin}\" y=\"{top}\" width=\"{width:.1}\" \
             height=\"{BAR_HEIGHT}\"/>",
        );
        let mut end = begin + width;
        if let Some(mark) = self.mark {
            let at = begin + length(mark);
            let _ = writeln!(
                svg,
                "<line class=\"mark\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{}\" y2=\"{}\"/>",
                top - MARK_REST,
                top + BAR_HEIGHT + MARK_REST,
            );
            end = end.max(at);
        }
        svg + &text(end + GAP, y, "value", &self.shown)
    }
}

fn text(x: f64, y: f64, class: &str, words: &str) -> String {
    format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>\n",
        escaped(words)
    )
}

const LEFT: f64 = 12.0;
const TITLE_Y: f64 = 26.0;
const NOTE_STEP: f64 = 18.0;
const SECTION_GAP: f64 = 12.0;
const BAR_STEP: f64 = 21.0;
const BAR_HEIGHT: f64 = 15.0;
/// How far a mark reaches beyond its bar.
const MARK_REST: f64 = 1.5;
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
.mark { stroke: #b3541e; stroke-width: 3; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e6e6; }
  .note { fill: #a8a8a8; }
  .ours { fill: #58a0ea; }
  .other { fill: #66707a; }
  .mark { stroke: #f0955a; }
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
            mark: None,
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
            frame: Frame::WIDE,
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
            frame: Frame::NARROW,
        };
        assert!(chart.svg().ends_with("</svg>\n"));
    }

    #[test]
    fn a_mark_counts_for_the_scale_and_its_bar_is_shorter() {
        let bar = Bar {
            mark: Some(200.0),
            ..bar("half", 100.0, true)
        };
        let chart = Chart {
            title: String::new(),
            notes: vec![],
            sections: vec![Section {
                heading: String::new(),
                bars: vec![bar],
            }],
            frame: Frame::NARROW,
        };
        let svg = chart.svg();
        let find = |start: &str| svg.lines().find(|line| line.starts_with(start)).unwrap();
        let Frame {
            bars_begin,
            bars_end,
            ..
        } = Frame::NARROW;
        assert_eq!(
            number(find("<rect"), "width"),
            (bars_end - bars_begin) / 2.0
        );
        assert_eq!(number(find("<line"), "x1"), bars_end);
        // The value stands behind the mark.
        assert!(number(find("<text class=\"value\""), "x") > bars_end);
    }
}
