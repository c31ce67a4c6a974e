//! A picture of replays: hit ratio, byte hit ratio, and reads and writes of the disk, over the log.
//!
//! Each figure has a panel, each replay a curve in every panel. Called by `hashcache sim replay
//! --svg`.

use crate::intervals::Interval;
use crate::svg::{AXIS, Anchor, GRID, curve, document, line, words};

/// The curves of one replay.
#[derive(Clone, Copy, Debug)]
pub struct Curves<'a> {
    /// As the legend shows it.
    pub name: &'a str,
    /// In the order of the log.
    pub intervals: &'a [Interval],
}

/// The text of the file. `notes`: lines below the title.
pub fn svg(title: &str, notes: &[String], replays: &[Curves<'_>]) -> String {
    let mut body = words(MARGIN, TITLE_Y, Anchor::Start, 17, title);
    let mut y = TITLE_Y;
    for note in notes {
        y += NOTE_STEP;
        body += &words(MARGIN, y, Anchor::Start, 13, note);
    }
    body += &legend(&mut y, replays);
    let requests = replays.iter().map(|replay| requests_of(replay.intervals));
    let across = Scale::up_to(requests.max().unwrap_or(0) as f64, 4);
    for (place, figure) in FIGURES.iter().enumerate() {
        let (column, row) = (place % 2, place / 2);
        let panel = Panel {
            left: LEFT + COLUMN_STEP * column as f64,
            top: y + PANEL_TOP + ROW_STEP * row as f64,
            across: &across,
            figure,
            upwards: figure.scale(replays),
        };
        body += &panel.svg(replays);
    }
    let height = y + ROW_STEP * 2.0;
    document(WIDTH, height, title, &body)
}

/// What a panel shows.
struct Figure {
    title: &'static str,
    of: fn(&Interval) -> f64,
}

const FIGURES: [Figure; 4] = [
    Figure {
        title: "hits, % of requests",
        of: |it| percent(it.hits, it.requests),
    },
    Figure {
        title: "bytes of hits, % of bytes",
        of: |it| percent(it.hit_bytes, it.bytes),
    },
    Figure {
        title: "reads of the disk for each request",
        of: |it| ratio(it.reads, it.requests),
    },
    Figure {
        title: "writes of the disk for each request",
        of: |it| ratio(it.writes, it.requests),
    },
];

fn percent(part: u64, whole: u64) -> f64 {
    ratio(part, whole) * 100.0
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn requests_of(intervals: &[Interval]) -> u64 {
    intervals.iter().map(|it| it.requests).sum()
}

impl Figure {
    fn scale(&self, replays: &[Curves<'_>]) -> Scale {
        let intervals = replays.iter().flat_map(|replay| replay.intervals);
        let most = intervals.map(self.of).fold(0.0, f64::max);
        Scale::up_to(most, 4)
    }
}

/// An axis from 0 on.
struct Scale {
    most: f64,
    step: f64,
}

impl Scale {
    /// Reaches `most`, with about so many marks, each a multiple of 1, 2 or 5 times a power of ten.
    fn up_to(most: f64, marks: u32) -> Self {
        let least = most.max(LEAST) / f64::from(marks);
        let power = 10_f64.powf(least.log10().floor());
        let factor = [1.0, 2.0, 5.0].into_iter().find(|it| it * power >= least);
        let step = factor.unwrap_or(10.0) * power;
        Self {
            most: (most.max(LEAST) / step - ROUNDING).ceil() * step,
            step,
        }
    }

    fn marks(&self) -> impl Iterator<Item = f64> {
        let (step, most) = (self.step, self.most * (1.0 + ROUNDING));
        (0_u32..)
            .map(move |n| f64::from(n) * step)
            .take_while(move |mark| *mark <= most)
    }

    /// As many digits behind the point as the step has.
    fn show(&self, mark: f64) -> String {
        if self.step >= 1.0 {
            return with_separators(mark);
        }
        let digits = (-self.step.log10() - ROUNDING).ceil().clamp(0.0, 9.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to 9"
        )]
        let digits = digits as usize;
        format!("{mark:.digits$}")
    }
}

/// A whole number in groups of three digits.
fn with_separators(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// One figure of all replays.
struct Panel<'a> {
    left: f64,
    top: f64,
    across: &'a Scale,
    figure: &'a Figure,
    upwards: Scale,
}

impl Panel<'_> {
    fn svg(&self, replays: &[Curves<'_>]) -> String {
        let (right, bottom) = (self.left + PANEL_WIDTH, self.top + PANEL_HEIGHT);
        let mut text = words(
            self.left,
            self.top - 10.0,
            Anchor::Start,
            13,
            self.figure.title,
        );
        for mark in self.upwards.marks() {
            let y = self.y(mark);
            text += &line([self.left, right], [y, y], GRID);
            let shown = self.upwards.show(mark);
            text += &words(self.left - 6.0, y + 4.0, Anchor::End, 12, &shown);
        }
        for mark in self.across.marks() {
            let x = self.x(mark);
            text += &line([x, x], [bottom, bottom + 4.0], AXIS);
            let shown = self.across.show(mark);
            text += &words(x, bottom + 17.0, Anchor::Middle, 12, &shown);
        }
        text += &line([self.left, right], [bottom, bottom], AXIS);
        text += &line([self.left, self.left], [self.top, bottom], AXIS);
        let middle = (self.left + right) / 2.0;
        text += &words(middle, bottom + 34.0, Anchor::Middle, 12, "requests");
        for (place, replay) in replays.iter().enumerate() {
            text += &curve(self.points(replay.intervals), &stroke(place));
        }
        text
    }

    /// A point in the middle of each interval; of one interval, its ends.
    fn points(&self, intervals: &[Interval]) -> Vec<(f64, f64)> {
        if let [all] = intervals {
            let y = self.y((self.figure.of)(all));
            return vec![(self.x(0.0), y), (self.x(all.requests as f64), y)];
        }
        let mut before = 0;
        let points = intervals.iter().map(|interval| {
            let middle = before as f64 + interval.requests as f64 / 2.0;
            before += interval.requests;
            (self.x(middle), self.y((self.figure.of)(interval)))
        });
        points.collect()
    }

    fn x(&self, requests: f64) -> f64 {
        self.left + PANEL_WIDTH * (requests / self.across.most)
    }

    fn y(&self, value: f64) -> f64 {
        self.top + PANEL_HEIGHT * (1.0 - value / self.upwards.most)
    }
}

/// Names of the replays, in lines, with their strokes. `y` is the end of what is above, and then of
/// the legend.
fn legend(y: &mut f64, replays: &[Curves<'_>]) -> String {
    let mut text = String::new();
    for (place, replay) in replays.iter().enumerate() {
        let column = place % LEGEND_COLUMNS;
        if column == 0 {
            *y += NOTE_STEP + 4.0;
        }
        let x = MARGIN + LEGEND_STEP * column as f64;
        text += &curve([(x, *y - 4.5), (x + 26.0, *y - 4.5)], &stroke(place));
        text += &words(x + 33.0, *y, Anchor::Start, 13, replay.name);
    }
    text
}

fn stroke(place: usize) -> String {
    let colour = COLOURS[place % COLOURS.len()];
    let mut stroke = format!("stroke=\"{colour}\" stroke-width=\"1.6\"");
    // Policies that decide alike have curves on top of each other: the lower ones show through.
    if place % 2 == 1 {
        stroke += " stroke-dasharray=\"7 4\"";
    }
    stroke
}

const WIDTH: f64 = 760.0;
const MARGIN: f64 = 14.0;
const TITLE_Y: f64 = 28.0;
const NOTE_STEP: f64 = 19.0;
const LEGEND_COLUMNS: usize = 4;
const LEGEND_STEP: f64 = 180.0;
const LEFT: f64 = 54.0;
const PANEL_TOP: f64 = 42.0;
const PANEL_WIDTH: f64 = 300.0;
const PANEL_HEIGHT: f64 = 170.0;
const COLUMN_STEP: f64 = 372.0;
const ROW_STEP: f64 = 252.0;
/// Colours of the curves; every second curve has dashes, too.
const COLOURS: [&str; 6] = [
    "#1763b0", "#b3541e", "#2a7d4f", "#8a3ab9", "#444444", "#c2255c",
];
/// The end of an axis without values.
const LEAST: f64 = 1e-6;
/// Sums of steps are not exact.
const ROUNDING: f64 = 1e-9;

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(hits: u64, reads: u64) -> Interval {
        Interval {
            requests: 1000,
            hits,
            bytes: 8000,
            hit_bytes: 2000,
            reads,
            writes: 10,
        }
    }

    /// The points of each curve in the panels, in the order of the file.
    fn curves(svg: &str, replays: usize) -> Vec<Vec<(f64, f64)>> {
        let lines = svg.lines().filter_map(|line| {
            let rest = line.strip_prefix("<polyline points=\"")?;
            let points = rest.split('"').next()?.split(' ');
            let point = |text: &str| {
                let (x, y) = text.split_once(',').unwrap();
                (x.parse().unwrap(), y.parse().unwrap())
            };
            Some(points.map(point).collect())
        });
        // Strokes of the legend come first.
        lines.skip(replays).collect()
    }

    #[test]
    fn each_figure_has_a_curve_for_each_replay_and_more_is_higher() {
        let (one, two) = (
            [interval(100, 5), interval(400, 5)],
            [interval(300, 900); 2],
        );
        let replays = [
            Curves {
                name: "log",
                intervals: &one,
            },
            Curves {
                name: "set <a>",
                intervals: &two,
            },
        ];
        let svg = svg("Replay of a&b", &["memory 1 MB".to_owned()], &replays);
        let curves = curves(&svg, 2);
        assert_eq!(curves.len(), 8);
        let [hits, hits_of_set, .., writes] = &curves[..] else {
            panic!("{curves:?}");
        };
        assert!(hits[0].0 < hits[1].0, "the log goes on to the right");
        assert!(hits[0].1 > hits_of_set[0].1 && hits_of_set[0].1 > hits[1].1);
        assert_eq!(writes[0].1, writes[1].1);
        for (x, y) in curves.iter().flatten() {
            assert!((LEFT..WIDTH).contains(x) && *y > TITLE_Y, "{x} {y}");
        }
        for words in [
            "Replay of a&amp;b",
            "memory 1 MB",
            "set &lt;a&gt;",
            "reads of the disk for each request",
            "1,500",
            "40",
        ] {
            assert!(svg.contains(&format!(">{words}<")), "{words} in {svg}");
        }
        assert!(svg.ends_with("</svg>\n"));
    }

    #[test]
    fn a_replay_without_requests_is_a_picture() {
        let replays = [Curves {
            name: "log",
            intervals: &[Interval::default()],
        }];
        for replays in [&replays[..], &[]] {
            let svg = svg("", &[], replays);
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
        }
    }

    #[test]
    fn marks_are_round_numbers_up_to_the_end() {
        let marks = |most| {
            let scale = Scale::up_to(most, 4);
            let marks: Vec<String> = scale.marks().map(|mark| scale.show(mark)).collect();
            marks.join(" ")
        };
        assert_eq!(marks(100.0), "0 50 100");
        assert_eq!(marks(61.0), "0 20 40 60 80");
        assert_eq!(marks(0.03), "0.00 0.01 0.02 0.03");
        assert_eq!(marks(1.7), "0.0 0.5 1.0 1.5 2.0");
        assert_eq!(marks(290_282.0), "0 100,000 200,000 300,000");
    }
}
