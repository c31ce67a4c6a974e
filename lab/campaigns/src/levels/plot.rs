//! The picture: the share of requests that were answered within a time.
//!
//! Invariant: the text of an SVG file that needs no font, style sheet or script of its own.

use std::time::Duration;

use hashcache_sim::svg::{self, AXIS, Anchor, GRID, line, words};

use crate::durations::Durations;

/// The times of a case through a number of levels.
pub struct Curve {
    pub levels: usize,
    /// Whether the top had the objects.
    pub is_hit: bool,
    pub times: Durations,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 480.0;
/// The plot area.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 720.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 410.0;
/// By the number of levels.
const COLOURS: [&str; 3] = ["#555555", "#1763b0", "#b3541e"];
const LEGEND_STEP: f64 = 20.0;
const LEGEND_WIDTH: f64 = 190.0;
/// Points of a curve, in 1/1000 of the requests. The slowest are left out: one of them would
/// stretch the axis.
const POINT_STEP: usize = 5;
const POINT_MAX: usize = 995;

/// The picture of all curves. The axis of time is logarithmic, from one power of ten to another.
pub fn picture(curves: &[Curve]) -> String {
    let axis = Axis::from_curves(curves);
    let mut body = frame(&axis);
    body.extend(curves.iter().map(|curve| axis.curve(curve)));
    body += &legend(curves);
    let title = "Response times through levels of proxies";
    svg::document(WIDTH, HEIGHT, title, &body)
}

/// The decimal logarithms of milliseconds at both ends.
struct Axis {
    from: i32,
    to: i32,
}

impl Axis {
    fn from_curves(curves: &[Curve]) -> Self {
        let logs = curves.iter().flat_map(|curve| {
            [0, POINT_MAX].map(|per_mille| log_millis(curve.times.quantile(per_mille)))
        });
        let (least, most) = logs.fold((f64::MAX, f64::MIN), |(least, most), log| {
            (least.min(log), most.max(log))
        });
        if least > most {
            return Self { from: -1, to: 1 };
        }
        // Within ±10: a time is at least a nanosecond and at most the time limit of a request.
        #[expect(clippy::cast_possible_truncation, reason = "logarithms of short times")]
        let (from, to) = (least.floor() as i32, most.ceil() as i32);
        Self {
            from,
            to: to.max(from + 1),
        }
    }

    fn x(&self, log: f64) -> f64 {
        let (from, to) = (f64::from(self.from), f64::from(self.to));
        LEFT + (RIGHT - LEFT) * ((log - from) / (to - from)).clamp(0.0, 1.0)
    }

    fn curve(&self, curve: &Curve) -> String {
        let points = (0..=POINT_MAX).step_by(POINT_STEP).map(|per_mille| {
            let x = self.x(log_millis(curve.times.quantile(per_mille)));
            (x, y(per_mille))
        });
        svg::curve(points, &stroke(curve))
    }
}

fn log_millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).max(1e-6).log10()
}

fn y(per_mille: usize) -> f64 {
    BOTTOM - (BOTTOM - TOP) * per_mille as f64 / 1000.0
}

fn stroke(curve: &Curve) -> String {
    let colour = COLOURS[curve.levels % COLOURS.len()];
    let dashes = if curve.is_hit {
        " stroke-dasharray=\"6 4\""
    } else {
        ""
    };
    format!("stroke=\"{colour}\" stroke-width=\"2\"{dashes}")
}

fn frame(axis: &Axis) -> String {
    let title = "What each level of proxies adds, on loopback";
    let mut text = words(LEFT, 28.0, Anchor::Start, 17, title);
    let middle = (LEFT + RIGHT) / 2.0;
    let below = "milliseconds from the request to the end of the response";
    text += &words(middle, HEIGHT - 26.0, Anchor::Middle, 13, below);
    text += &words(LEFT - 50.0, TOP - 14.0, Anchor::Start, 13, "% of requests");
    for percent in (0..=100).step_by(20) {
        let y = y(percent * 10);
        text += &line([LEFT, RIGHT], [y, y], GRID);
        text += &words(LEFT - 8.0, y + 4.0, Anchor::End, 13, &percent.to_string());
    }
    for power in axis.from..=axis.to {
        for (step, is_power) in [(1, true), (2, false), (5, false)] {
            let x = axis.x(f64::from(power) + f64::from(step).log10());
            if power == axis.to && !is_power {
                continue;
            }
            text += &line([x, x], [TOP, BOTTOM], GRID);
            let digits = usize::try_from(-power).unwrap_or(0);
            let value = f64::from(step) * 10_f64.powi(power);
            text += &words(
                x,
                BOTTOM + 20.0,
                Anchor::Middle,
                13,
                &format!("{value:.digits$}"),
            );
        }
    }
    text += &line([LEFT, RIGHT], [BOTTOM, BOTTOM], AXIS);
    text + &line([LEFT, LEFT], [TOP, BOTTOM], AXIS)
}

/// Below the curves, to the right.
fn legend(curves: &[Curve]) -> String {
    let (x, from) = (
        RIGHT - LEGEND_WIDTH,
        BOTTOM - 16.0 - LEGEND_STEP * curves.len() as f64,
    );
    let mut text = format!(
        "<rect x=\"{:.0}\" y=\"{from:.0}\" width=\"{:.0}\" height=\"{:.0}\" fill=\"#ffffff\"/>\n",
        x - 6.0,
        LEGEND_WIDTH,
        LEGEND_STEP * curves.len() as f64 + 6.0
    );
    for (n, curve) in curves.iter().enumerate() {
        let y = from + LEGEND_STEP * (n as f64 + 0.7);
        text += &svg::curve([(x, y), (x + 30.0, y)], &stroke(curve));
        text += &words(x + 38.0, y + 4.5, Anchor::Start, 13, &label(curve));
    }
    text
}

fn label(curve: &Curve) -> String {
    match (curve.levels, curve.is_hit) {
        (0, false) => "no proxy".to_owned(),
        (0, true) => "no proxy, again".to_owned(),
        (1, false) => "1 level, miss".to_owned(),
        (1, true) => "1 level, hit".to_owned(),
        (levels, false) => format!("{levels} levels, miss"),
        (levels, true) => format!("{levels} levels, hit at the top"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(levels: usize, is_hit: bool, millis: u64) -> Curve {
        let times = (0..100).map(|n| Duration::from_micros(millis * 1000 + n));
        Curve {
            levels,
            is_hit,
            times: Durations::new(times.collect()),
        }
    }

    #[test]
    fn a_slower_curve_is_more_to_the_right_and_every_curve_has_a_label() {
        let curves = [curve(0, false, 1), curve(1, false, 2), curve(2, true, 40)];
        let picture = picture(&curves);
        let starts: Vec<f64> = picture
            .split("<polyline points=\"")
            .skip(1)
            .map(|rest| rest.split(',').next().unwrap().parse().unwrap())
            .collect();
        // Each curve, then each stroke of the legend.
        assert_eq!(starts.len(), 6);
        assert!(starts[0] < starts[1] && starts[1] < starts[2], "{starts:?}");
        assert!(starts[2] < RIGHT, "{starts:?}");
        for label in ["no proxy", "1 level, miss", "2 levels, hit at the top"] {
            assert!(picture.contains(&format!(">{label}<")), "{label}");
        }
        // Powers of ten with the digits that they need.
        for mark in [">1<", ">10<", ">100<"] {
            assert!(picture.contains(mark), "{mark} in {picture}");
        }
        assert!(picture.ends_with("</svg>\n"));
    }

    #[test]
    fn no_curves_make_an_empty_picture() {
        assert!(picture(&[]).contains("</svg>"));
        assert!(picture(&[curve(0, false, 0)]).contains("</svg>"));
    }
}
