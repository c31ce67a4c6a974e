//! The picture: bits of memory an object to the right, requests a second upwards.
//!
//! Invariant: the text of an SVG file that needs no font, style sheet or script of its own.

use std::ops::Range;

use hashcache_sim::svg::{AXIS, Anchor, GRID, document, line, words};

use super::{Measured, Published};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 480.0;
/// The plot area.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 720.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 410.0;
const BITS_MAX: f64 = 105.0;
const RATE_STEP: f64 = 50.0;
const OURS: &str = "#1763b0";
const THEIRS: &str = "#b3541e";
/// Labels closer than this would overlap, vertically and horizontally.
const LABEL_STEP: f64 = 17.0;
const LABEL_WIDTH: f64 = 130.0;
const LETTER_WIDTH: f64 = 7.0;
/// Half the width of a mark, and the distance from its centre to the baseline of its label.
const MARK: f64 = 8.0;
const BASELINE: f64 = 4.5;

struct Point {
    x: f64,
    y: f64,
    name: String,
    rate: f64,
    ours: bool,
}

/// The picture with the measured and the published figures.
pub fn svg(measured: &[Measured], published: &[Published]) -> String {
    let rates = measured.iter().map(|it| it.requests_per_s);
    let rates = rates.chain(published.iter().map(|it| it.requests_per_s));
    let rate_max = (rates.fold(0.0, f64::max) / RATE_STEP).ceil() * RATE_STEP;
    let ours = measured.iter().map(|it| {
        (
            it.bits_per_object,
            it.requests_per_s,
            it.name.as_str(),
            true,
        )
    });
    let theirs = published
        .iter()
        .map(|it| (it.bits, it.requests_per_s, it.label, false));
    let mut points: Vec<Point> = Vec::new();
    for (bits, rate, name, ours) in ours.chain(theirs) {
        let x = LEFT + (RIGHT - LEFT) * bits / BITS_MAX;
        let y = BOTTOM - (BOTTOM - TOP) * rate / rate_max;
        let same = |it: &&mut Point| it.ours == ours && it.x == x && it.y == y;
        match points.iter_mut().find(same) {
            Some(point) => point.name += &format!(", {name}"),
            None => points.push(Point {
                x,
                y,
                name: name.to_owned(),
                rate,
                ours,
            }),
        }
    }
    let mut body = frame(rate_max);
    body.extend(points.iter().map(mark));
    body += &labels(points);
    let title = "Memory against throughput of the policies";
    document(WIDTH, HEIGHT, title, &body)
}

fn frame(rate_max: f64) -> String {
    let mut text = words(
        LEFT,
        28.0,
        Anchor::Start,
        17,
        "What memory buys: one disk of 70 seeks a second",
    );
    let middle = (LEFT + RIGHT) / 2.0;
    text += &words(
        middle,
        HEIGHT - 26.0,
        Anchor::Middle,
        13,
        "bits of memory for each live object",
    );
    text += &words(
        LEFT - 50.0,
        TOP - 14.0,
        Anchor::Start,
        13,
        "requests a second",
    );
    for (n, (colour, fill, what)) in [
        (OURS, OURS, "measured here"),
        (THEIRS, "#ffffff", "the paper, its SATA disk"),
    ]
    .into_iter()
    .enumerate()
    {
        let x = RIGHT - 330.0 + 140.0 * n as f64;
        text += &circle(x, TOP - 18.0, colour, fill);
        text += &words(x + 11.0, TOP - 14.0, Anchor::Start, 13, what);
    }
    let mut rate = 0.0;
    while rate <= rate_max {
        let y = BOTTOM - (BOTTOM - TOP) * rate / rate_max;
        text += &line([LEFT, RIGHT], [y, y], GRID);
        text += &words(LEFT - 8.0, y + 4.0, Anchor::End, 13, &format!("{rate:.0}"));
        rate += RATE_STEP;
    }
    for step in 0..=7 {
        let bits = BITS_MAX / 7.0 * f64::from(step);
        let x = LEFT + (RIGHT - LEFT) * bits / BITS_MAX;
        text += &line([x, x], [BOTTOM, BOTTOM + 5.0], AXIS);
        text += &words(x, BOTTOM + 20.0, Anchor::Middle, 13, &format!("{bits:.0}"));
    }
    text += &line([LEFT, RIGHT], [BOTTOM, BOTTOM], AXIS);
    text + &line([LEFT, LEFT], [TOP, BOTTOM], AXIS)
}

fn circle(x: f64, y: f64, colour: &str, fill: &str) -> String {
    format!(
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5.5\" fill=\"{fill}\" stroke=\"{colour}\" \
         stroke-width=\"2\"/>\n"
    )
}

fn mark(point: &Point) -> String {
    let (colour, fill) = if point.ours {
        (OURS, OURS)
    } else {
        (THEIRS, "#ffffff")
    };
    circle(point.x, point.y, colour, fill)
}

/// Labels beside the points, moved upwards where they would overlap another label or point.
fn labels(mut points: Vec<Point>) -> String {
    points.sort_by(|a, b| b.y.total_cmp(&a.y));
    let mut text = String::new();
    let around = |point: &Point| (point.x - MARK..point.x + MARK, point.y + BASELINE);
    let mut placed: Vec<(Range<f64>, f64)> = points.iter().map(around).collect();
    for point in &points {
        // To the left of a point at the far right, or of a point with another one at its right.
        let blocked = points.iter().any(|other| {
            let ahead = other.x - point.x;
            ahead > 0.0 && ahead < LABEL_WIDTH && (other.y - point.y).abs() < LABEL_STEP
        });
        let fits_left = point.x - LABEL_WIDTH > LEFT;
        let (x, anchor) = if fits_left && (blocked || point.x > RIGHT - LABEL_WIDTH) {
            (point.x - 11.0, "end")
        } else {
            (point.x + 11.0, "start")
        };
        let Point { name, rate, .. } = point;
        let words = format!("{name}  {rate:.0}");
        let width = words.chars().count() as f64 * LETTER_WIDTH;
        let begins = if anchor == "end" { x - width } else { x };
        let mut y = point.y + BASELINE;
        while let Some((_, taken)) = placed.iter().find(|(other, taken)| {
            let beside = other.end <= begins || begins + width <= other.start;
            !beside && (taken - y).abs() < LABEL_STEP
        }) {
            y = taken - LABEL_STEP - 0.5;
        }
        placed.push((begins..begins + width, y));
        let colour = if point.ours { OURS } else { THEIRS };
        text += &format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">\
             {words}</text>\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_in_the_picture_and_no_words_lie_on_others() {
        let measured = |name: &str, bits: f64, rate: f64| Measured {
            name: name.to_owned(),
            bits_per_object: bits,
            reads_per_hit: 1.0,
            reads_per_miss: 1.0,
            seeks_per_put: 1.0,
            hit_ratio: 0.6,
            full_hit_ratio: 0.5,
            from_memory: 0.1,
            requests_per_s: rate,
            range: None,
        };
        let all = [
            measured("basic", 0.0, 54.0),
            measured("set", 0.0, 47.0),
            measured("log", 52.0, 108.0),
            measured("log one-row", 57.0, 108.0),
        ];
        let picture = svg(&all, &super::super::PUBLISHED);
        let mut places: Vec<f64> = Vec::new();
        for name in ["basic", "set"] {
            let line = picture
                .lines()
                .find(|line| line.contains(&format!(">{name}  ")));
            let line = line.unwrap_or_else(|| panic!("no {name} in the picture"));
            let y = line
                .split("y=\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next());
            places.push(y.unwrap().parse().unwrap());
        }
        assert!((places[0] - places[1]).abs() >= LABEL_STEP, "{places:?}");
        // The label would be to the left of the point, where `log` is.
        let crowded = [
            measured("log", 50.0, 123.0),
            measured("log one-row", 54.0, 122.0),
            measured("log-lru", 67.0, 120.0),
        ];
        let crowd = svg(&crowded, &[]);
        let line = crowd.lines().find(|line| line.contains(">log one-row  "));
        let y = line.and_then(|line| line.split("y=\"").nth(1)?.split('"').next()?.parse().ok());
        let rate_max = 150.0;
        let beside: f64 = BOTTOM - (BOTTOM - TOP) * 123.0 / rate_max + BASELINE;
        assert!(y.is_some_and(|y: f64| beside - y >= LABEL_STEP), "{y:?}");
        assert!(picture.contains(">log one-row  108<"), "{picture}");
        assert!(picture.ends_with("</svg>\n"));
    }
}
