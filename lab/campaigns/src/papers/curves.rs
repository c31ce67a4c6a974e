//! A picture of curves over a common axis, with a legend below.
//!
//! Cost: proportional to the number of points.

use hashcache_sim::svg::{self, AXIS, Anchor, GRID, line, words};

/// A picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Above the picture.
    pub title: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// In the order of the legend.
    pub curves: Vec<Curve>,
}

/// What an axis shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What is shown, with its unit.
    pub label: String,
    /// How.
    pub scale: Scale,
}

/// How values become lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// In proportion, from zero.
    FromZero,
    /// In proportion, from the least value.
    FromLeast,
    /// By logarithm, from one power of ten to another. Values are larger than zero.
    Logarithmic,
}

/// A curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// In the legend.
    pub label: String,
    /// In the order of `x`.
    pub points: Vec<Point>,
    /// Curves of one number have one colour.
    pub colour: usize,
    /// Whether its line is broken.
    pub is_dashed: bool,
    /// Whether each point has a mark.
    pub has_marks: bool,
}

/// A point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// To the right.
    pub x: f64,
    /// Upwards.
    pub y: f64,
    /// The least and the largest value upwards, drawn as a line.
    pub range: Option<(f64, f64)>,
}

impl Axis {
    /// An axis with that label.
    pub fn new(label: impl Into<String>, scale: Scale) -> Self {
        Self {
            label: label.into(),
            scale,
        }
    }
}

impl Chart {
    /// The text of the file.
    pub fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let x = Length::new(&self.x, points().map(|point| point.x));
        let upwards = points().flat_map(|point| {
            let (least, most) = point.range.unwrap_or((point.y, point.y));
            [point.y, least, most]
        });
        let y = Length::new(&self.y, upwards);
        let mut body = words(MARGIN, 26.0, Anchor::Start, 16, &self.title);
        body += &words(MARGIN, TOP - 12.0, Anchor::Start, 13, &self.y.label);
        let middle = f64::midpoint(LEFT, RIGHT);
        body += &words(middle, BOTTOM + 38.0, Anchor::Middle, 13, &self.x.label);
        for (value, label) in y.ticks() {
            let at = up(y.share(value));
            body += &line([LEFT, RIGHT], [at, at], GRID);
            body += &words(LEFT - 8.0, at + 4.0, Anchor::End, 13, &label);
        }
        for (value, label) in x.ticks() {
            let at = along(x.share(value));
            body += &line([at, at], [TOP, BOTTOM], GRID);
            body += &words(at, BOTTOM + 19.0, Anchor::Middle, 13, &label);
        }
        body += &line([LEFT, RIGHT], [BOTTOM, BOTTOM], AXIS);
        body += &line([LEFT, LEFT], [TOP, BOTTOM], AXIS);
        for curve in &self.curves {
            body += &curve.svg(&x, &y);
        }
        body += &self.legend();
        let height = LEGEND + LEGEND_STEP * self.curves.len() as f64;
        svg::document(WIDTH, height, &self.title, &body)
    }

    fn legend(&self) -> String {
        let mut text = String::new();
        for (n, curve) in self.curves.iter().enumerate() {
            let y = LEGEND + LEGEND_STEP * n as f64;
            let sample = [(LEFT, y - 4.5), (LEFT + 30.0, y - 4.5)];
            text += &svg::curve(sample, &curve.stroke());
            if curve.has_marks {
                text += &curve.mark(LEFT + 15.0, y - 4.5);
            }
            text += &words(LEFT + 40.0, y, Anchor::Start, 13, &curve.label);
        }
        text
    }
}

impl Curve {
    fn svg(&self, x: &Length, y: &Length) -> String {
        let place = |point: &Point| (along(x.share(point.x)), up(y.share(point.y)));
        let mut text = svg::curve(self.points.iter().map(place), &self.stroke());
        for point in &self.points {
            let (across, upwards) = place(point);
            if let Some((least, most)) = point.range {
                let ends = [up(y.share(least)), up(y.share(most))];
                text += &line([across, across], ends, self.colour());
            }
            if self.has_marks {
                text += &self.mark(across, upwards);
            }
        }
        text
    }

    fn mark(&self, x: f64, y: f64) -> String {
        format!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{}\"/>\n",
            self.colour()
        )
    }

    fn colour(&self) -> &'static str {
        COLOURS[self.colour % COLOURS.len()]
    }

    fn stroke(&self) -> String {
        let dashes = if self.is_dashed {
            " stroke-dasharray=\"6 4\""
        } else {
            ""
        };
        format!("stroke=\"{}\" stroke-width=\"2\"{dashes}", self.colour())
    }
}

/// The values at both ends of an axis; of a logarithmic one their decimal logarithms.
struct Length {
    scale: Scale,
    from: f64,
    to: f64,
}

impl Length {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>) -> Self {
        let scale = axis.scale;
        let values = values.filter(|value| value.is_finite());
        let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), value| {
            (least.min(value), most.max(value))
        });
        let (least, most) = if least > most {
            (1.0, 1.0)
        } else {
            (least, most)
        };
        let (from, to) = match scale {
            Scale::FromZero => (0.0, (most / step(most)).ceil() * step(most)),
            Scale::FromLeast => (least, most),
            Scale::Logarithmic => (log(least).floor(), log(most).ceil()),
        };
        let to = if to > from { to } else { from + 1.0 };
        Self { scale, from, to }
    }

    /// Where a value lies: 0 at one end, 1 at the other.
    fn share(&self, value: f64) -> f64 {
        let value = match self.scale {
            Scale::Logarithmic => log(value),
            Scale::FromZero | Scale::FromLeast => value,
        };
        ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    /// Values with a line in the grid, and how they are written.
    fn ticks(&self) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Logarithmic => self.powers(),
            Scale::FromZero | Scale::FromLeast => self.steps(),
        }
    }

    /// At most six round values.
    fn steps(&self) -> Vec<(f64, String)> {
        let step = step(self.to - self.from);
        let first = (self.from / step).ceil();
        let digits = digits(step);
        (0..=STEPS_MAX)
            .map(|n| (first + f64::from(n)) * step)
            .take_while(|value| *value <= self.to + step * 1e-9)
            .map(|value| (value, format!("{value:.digits$}")))
            .collect()
    }

    /// Powers of ten, and twice and five times each if there are few.
    fn powers(&self) -> Vec<(f64, String)> {
        let factors: &[f64] = if self.to - self.from <= 3.0 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        let mut ticks = vec![];
        let mut power = self.from;
        while power <= self.to {
            for factor in factors {
                let value = factor * 10_f64.powf(power);
                if log(value) <= self.to + 1e-9 {
                    ticks.push((value, format!("{value:.*}", digits(10_f64.powf(power)))));
                }
            }
            power += 1.0;
        }
        ticks
    }
}

fn log(value: f64) -> f64 {
    value.max(f64::MIN_POSITIVE).log10()
}

/// A round step, at most six of which fit.
fn step(length: f64) -> f64 {
    let length = length.max(f64::MIN_POSITIVE);
    let power = 10_f64.powf((length / f64::from(STEPS_MAX)).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let fits = |step: &f64| length / step <= f64::from(STEPS_MAX);
    steps.into_iter().find(fits).unwrap_or(length)
}

/// Digits after the point that multiples of a round step need.
fn digits(step: f64) -> usize {
    (0..9)
        .find(|digits| {
            let scaled = step * 10_f64.powi(*digits);
            (scaled - scaled.round()).abs() < 1e-6 * scaled
        })
        .and_then(|digits| usize::try_from(digits).ok())
        .unwrap_or(9)
}

fn along(share: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * share
}

fn up(share: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * share
}

/// Narrow, so that a telephone can show it without making its letters too small.
const WIDTH: f64 = 500.0;
const MARGIN: f64 = 12.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 480.0;
const TOP: f64 = 66.0;
const BOTTOM: f64 = 320.0;
/// Baseline of the first line of the legend.
const LEGEND: f64 = 384.0;
const LEGEND_STEP: f64 = 19.0;
const STEPS_MAX: u32 = 6;
const COLOURS: [&str; 8] = [
    "#1763b0", "#b3541e", "#2a7d4f", "#8a3ab9", "#444444", "#c2255c", "#0b7285", "#a08000",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: &[(f64, f64)]) -> Chart {
        let points = points.iter().map(|(x, y)| Point {
            x: *x,
            y: *y,
            range: None,
        });
        Chart {
            title: "a & b".to_owned(),
            x: Axis::new("time, s", scale),
            y: Axis::new("requests", Scale::FromZero),
            curves: vec![Curve {
                label: "one < two".to_owned(),
                points: points.collect(),
                colour: 0,
                is_dashed: false,
                has_marks: true,
            }],
        }
    }

    fn places(svg: &str) -> Vec<(f64, f64)> {
        let line = svg.lines().find(|line| line.starts_with("<polyline"));
        let points = line.unwrap().split('"').nth(1).unwrap().split(' ');
        let place = |point: &str| {
            let (x, y) = point.split_once(',').unwrap();
            (x.parse().unwrap(), y.parse().unwrap())
        };
        points.map(place).collect()
    }

    #[test]
    fn a_larger_value_is_further_to_the_right_and_higher_and_none_leaves_the_frame() {
        let points = [(2.0, 0.0), (3.0, 50.0), (6.0, 130.0)];
        let svg = chart(Scale::FromLeast, &points).svg();
        let drawn = places(&svg);
        assert_eq!(drawn[0], (LEFT, BOTTOM));
        assert_eq!(drawn[2].0, RIGHT);
        assert!(
            drawn[0].0 < drawn[1].0 && drawn[1].0 < drawn[2].0,
            "{drawn:?}"
        );
        assert!(
            drawn[0].1 > drawn[1].1 && drawn[1].1 > drawn[2].1,
            "{drawn:?}"
        );
        // The axis ends at the round value above the largest.
        assert!(drawn[2].1 > TOP && svg.contains(">150<"), "{svg}");
        assert!(svg.contains("one &lt; two") && svg.contains("a &amp; b"));
    }

    #[test]
    fn a_logarithmic_axis_has_equal_lengths_for_equal_factors() {
        let points = [(0.1, 1.0), (1.0, 1.0), (10.0, 1.0)];
        let svg = chart(Scale::Logarithmic, &points).svg();
        let drawn = places(&svg);
        assert!(
            (drawn[1].0 - f64::midpoint(LEFT, RIGHT)).abs() < 0.1,
            "{drawn:?}"
        );
        for label in [">0.1<", ">0.5<", ">1<", ">10<"] {
            assert!(svg.contains(label), "{label} in {svg}");
        }
    }

    #[test]
    fn least_and_largest_value_are_drawn_within_the_frame() {
        let mut chart = chart(Scale::FromZero, &[(1.0, 10.0)]);
        chart.curves[0].points[0].range = Some((5.0, 40.0));
        let svg = chart.svg();
        let is_range = |line: &&str| line.contains(COLOURS[0]) && line.starts_with("<line");
        assert_eq!(svg.lines().filter(is_range).count(), 1);
        assert!(svg.contains(&format!("y2=\"{TOP:.1}\"")), "{svg}");
    }

    #[test]
    fn no_curves_and_curves_of_nothing_make_a_picture() {
        let mut empty = chart(Scale::Logarithmic, &[]);
        assert!(empty.svg().ends_with("</svg>\n"));
        empty.curves.clear();
        assert!(empty.svg().ends_with("</svg>\n"));
        assert!(!chart(Scale::FromLeast, &[(0.0, 0.0)]).svg().contains("NaN"));
    }

    #[test]
    fn steps_are_round_and_few() {
        for (length, wanted) in [(1.0, 0.2), (6.0, 1.0), (350.0, 100.0), (0.07, 0.02)] {
            assert!(
                (step(length) - wanted).abs() < 1e-9,
                "{length}: {}",
                step(length)
            );
        }
        assert_eq!([digits(0.2), digits(100.0), digits(0.05)], [1, 0, 2]);
    }
}
