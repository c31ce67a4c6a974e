//! A figure of a paper, and what was drawn for it.

use std::fmt;

use hashcache_sim::median::median;

use super::curves;
use super::lab::Lab;
use crate::pictures::bars;

/// Which paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paper {
    Webcosm,
    HashCache,
    Harvest,
}

/// A figure or table of a paper.
#[derive(Clone, Copy)]
pub struct Figure {
    /// Its name on the command line and in names of files.
    pub id: &'static str,
    pub paper: Paper,
    /// Where it is in the paper.
    pub place: &'static str,
    pub title: &'static str,
    /// What the paper found.
    pub finding: &'static str,
    pub draw: Draw,
}

/// Measures a figure, or says why it is not.
pub type Draw = fn(&mut Lab<'_>) -> anyhow::Result<Drawn>;

/// What was found here.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Which requests, on what.
    pub workload: String,
    /// How often, with which seeds.
    pub runs: String,
    pub panels: Vec<Panel>,
    /// What was found, a sentence or more each.
    pub found: Vec<String>,
    /// Why it differs from the paper.
    pub reasons: Vec<String>,
}

/// A picture of a figure.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What distinguishes its file from those of other panels; empty if there is one.
    pub name: &'static str,
    pub title: String,
    /// Of the values.
    pub unit: &'static str,
    /// Of the values, after the point.
    pub digits: usize,
    pub drawing: Drawing,
}

#[derive(Clone, Debug)]
pub enum Drawing {
    Bars(Vec<Bar>),
    Curves(Curves),
}

#[derive(Clone, Debug)]
pub struct Bar {
    pub label: String,
    pub value: Spread,
    /// The paper's value.
    pub paper: Option<f64>,
    /// Whether it is our engine or layout, or one that it is compared with.
    pub is_ours: bool,
}

#[derive(Clone, Debug)]
pub struct Curves {
    /// The axis to the right.
    pub x: curves::Axis,
    /// How the axis upwards begins.
    pub y: curves::Scale,
    pub curves: Vec<Curve>,
}

#[derive(Clone, Debug)]
pub struct Curve {
    pub label: String,
    pub points: Vec<(f64, Spread)>,
    pub is_dashed: bool,
}

/// The median of some runs, the least and the largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// Of some values; `None` of none.
    pub fn from_values(values: Vec<f64>) -> Option<Self> {
        Some(Self {
            median: median(values.iter().copied(), f64::total_cmp)?,
            least: values.iter().copied().min_by(f64::total_cmp)?,
            most: values.iter().copied().max_by(f64::total_cmp)?,
        })
    }

    /// A value that was calculated, or measured once.
    pub fn one(value: f64) -> Self {
        Self {
            median: value,
            least: value,
            most: value,
        }
    }

    /// All of it by a factor.
    pub fn times(self, factor: f64) -> Self {
        Self {
            median: self.median * factor,
            least: self.least * factor,
            most: self.most * factor,
        }
    }

    pub fn range(self) -> Option<(f64, f64)> {
        (self.least < self.most).then_some((self.least, self.most))
    }

    /// With its range, if it has one.
    pub fn show(self, digits: usize) -> String {
        let show = |value| number(value, digits);
        match self.range() {
            Some((least, most)) => {
                format!("{} ({} to {})", show(self.median), show(least), show(most))
            }
            None => show(self.median),
        }
    }
}

/// What a page says of so many runs with seeds from 1 on.
pub fn runs_of(runs: u32) -> String {
    match runs {
        1 => "One run, seed 1.".to_owned(),
        runs => format!("Medians of {runs} runs (least to largest), seeds 1 to {runs}."),
    }
}

/// A number with commas between thousands.
pub fn number(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (n, digit) in whole.chars().enumerate() {
        if n > 0 && (whole.len() - n).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{grouped}{rest}")
}

impl Panel {
    /// The text of its file.
    pub fn svg(&self) -> String {
        match &self.drawing {
            Drawing::Bars(bars) => self.chart_of_bars(bars).svg(),
            Drawing::Curves(curves) => self.chart_of_curves(curves).svg(),
        }
    }

    fn chart_of_bars(&self, bars: &[Bar]) -> bars::Chart {
        let bar = |bar: &Bar| bars::Bar {
            label: bar.label.clone(),
            value: bar.value.median,
            shown: bar.value.show(self.digits),
            is_ours: bar.is_ours,
            mark: bar.paper,
        };
        let mut notes = vec![format!("In {}.", self.unit)];
        if bars.iter().any(|bar| bar.paper.is_some()) {
            notes[0] += " A line across a bar: the paper's value.";
        }
        bars::Chart {
            title: self.title.clone(),
            notes,
            sections: vec![bars::Section {
                heading: String::new(),
                bars: bars.iter().map(bar).collect(),
            }],
            frame: bars::Frame::NARROW,
        }
    }

    fn chart_of_curves(&self, curves: &Curves) -> curves::Chart {
        let point = |(x, y): &(f64, Spread)| curves::Point {
            x: *x,
            y: y.median,
            range: y.range(),
        };
        let drawn = curves.curves.iter().enumerate();
        let drawn = drawn.map(|(n, curve)| curves::Curve {
            label: curve.label.clone(),
            points: curve.points.iter().map(point).collect(),
            colour: n,
            is_dashed: curve.is_dashed,
            has_marks: curve.points.len() <= MARKS_MAX,
        });
        curves::Chart {
            title: self.title.clone(),
            x: curves.x.clone(),
            y: curves::Axis::new(self.unit, curves.y),
            curves: drawn.collect(),
        }
    }
}

impl Paper {
    pub const ALL: [Self; 3] = [Self::Webcosm, Self::HashCache, Self::Harvest];

    /// Its authors and title.
    pub fn title(self) -> &'static str {
        match self {
            Self::Webcosm => {
                "WebCoSM: Markatos and others, \"Web-Conscious Storage Management for Web Proxies\""
            }
            Self::HashCache => {
                "HashCache: Badam and others, \"HashCache: Cache Storage for the Next Billion\", \
                 NSDI 2009"
            }
            Self::Harvest => {
                "Harvest: Chankhunthod and others, \"A Hierarchical Internet Object Cache\", 1996"
            }
        }
    }
}

impl fmt::Display for Paper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Webcosm => "WebCoSM",
            Self::HashCache => "HashCache",
            Self::Harvest => "Harvest",
        })
    }
}

/// Curves of more points have no marks.
const MARKS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_several_runs_have_their_range() {
        let spread = Spread::from_values(vec![30.0, 1_000.0, 20.0]).unwrap();
        assert_eq!(spread.show(0), "30 (20 to 1,000)");
        assert_eq!(Spread::from_values(vec![1.0, 2.0]).unwrap().median, 1.0);
        assert_eq!(Spread::one(1_234_567.891).show(2), "1,234,567.89");
        assert_eq!(Spread::from_values(vec![]), None);
        assert_eq!(number(-1_000.0, 1), "-1,000.0");
    }

    #[test]
    fn the_papers_value_is_a_line_and_is_explained() {
        let panel = |paper| Panel {
            name: "",
            title: "Title".to_owned(),
            unit: "requests/s",
            digits: 0,
            drawing: Drawing::Bars(vec![Bar {
                label: "SQUID".to_owned(),
                value: Spread::one(94.0),
                paper,
                is_ours: true,
            }]),
        };
        let (with, without) = (panel(Some(27.0)).svg(), panel(None).svg());
        assert!(with.contains("class=\"mark\"") && with.contains("the paper's value"));
        assert!(!without.contains("class=\"mark\"") && !without.contains("the paper's value"));
    }
}
