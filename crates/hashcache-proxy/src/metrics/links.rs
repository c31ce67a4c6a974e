//! Figures for links: a line per parent with a pin, and per child that was seen.
//!
//! Called by `exposition`; `server/links` supplies the figures.

use std::time::Duration;

use hashcache_link::counters::LinkContents;
use hashcache_link::usage::{CODINGS, CodingFigures};
use serde_json::Value;

use super::moment::Moment;
use super::table::{AddLine, Figure, Number, Values::Lines, counter, gauge};

/// Figures for a link.
#[derive(Clone, Debug)]
pub(crate) struct LinkFigure {
    /// The name of the parent, or the pin of the child.
    pub(crate) name: String,
    pub(crate) is_up: bool,
    pub(crate) round_trip: Option<Duration>,
    /// Bytes received and sent.
    pub(crate) bytes: [u64; 2],
    /// Content in tunnels and in streams with chunks, received and sent.
    pub(crate) contents: [LinkContents; 2],
    pub(crate) coding: CodingFigures,
}

/// Figures for all links.
#[derive(Clone, Debug)]
pub(crate) struct LinkView {
    pub(crate) figures: Vec<LinkFigure>,
    /// Object for `/-/links`.
    pub(crate) status: Value,
}

/// Figures for links; each has a line per link, or several by direction and kind.
pub(super) static FIGURES: &[Figure] = &[
    counter(
        "hashcache_link_bytes",
        "Bytes on the sockets of links, with TLS, by link and direction",
        Lines(|it, add| directions(it, add, |link| link.bytes)),
    ),
    counter(
        "hashcache_link_opaque_bytes",
        "Bytes of tunnels over links that passed unchanged",
        Lines(|it, add| directions(it, add, |link| link.contents.each_ref().map(|it| it.opaque))),
    ),
    counter(
        "hashcache_link_chunk_coded_bytes",
        "Bytes on links of forwarded streams, coded in chunks",
        Lines(|it, add| directions(it, add, |link| link.contents.each_ref().map(|it| it.coded))),
    ),
    // Not a counter: literals take a little more than their content, so the saving may decrease.
    gauge(
        "hashcache_link_chunk_saved_bytes",
        "Content of forwarded streams less what it took on links",
        Lines(|it, add| {
            directions(it, add, |link| {
                link.contents.each_ref().map(LinkContents::saved)
            });
        }),
    ),
    counter(
        "hashcache_link_chunk_bytes",
        "Content of forwarded streams by how it went over links; answers, which a store that \
         lacked a chunk has asked for, count as references too",
        Lines(|it, add| {
            let kinds = ["literal", "reference", "answer"];
            by_two(
                it,
                add,
                ("direction", &DIRECTIONS),
                ("kind", &kinds),
                |link, direction, kind| {
                    let chunks = &link.contents[direction].chunks;
                    [chunks.literal, chunks.referred, chunks.answered][kind]
                },
            );
        }),
    ),
    counter(
        "hashcache_link_plain_bytes",
        "Bytes of content that passed in frames, by link and direction",
        Lines(|it, add| directions(it, add, |link| link.coding.content)),
    ),
    counter(
        "hashcache_link_frame_bytes",
        "Bytes of frames, by link, direction and coding: raw, zstd, or with a dictionary that the \
         child offered or the parent named",
        Lines(|it, add| {
            by_two(
                it,
                add,
                ("direction", &DIRECTIONS),
                ("coding", &CODINGS),
                |link, direction, coding| link.coding.frames[direction][coding],
            );
        }),
    ),
    counter(
        "hashcache_link_coding_seconds",
        "Seconds of decoding (in) and encoding (out), by link",
        Lines(|it, add| {
            for link in it.links() {
                for (direction, time) in DIRECTIONS.iter().zip(link.coding.work) {
                    let labels = [("link", &*link.name), ("direction", direction)];
                    add(&labels, Number::Real(time.as_secs_f64()));
                }
            }
        }),
    ),
    counter(
        "hashcache_link_dictionary",
        "Responses with a dictionary, and dictionaries that were not there",
        Lines(|it, add| {
            let (kinds, results) = (["offered", "named"], ["used", "missed"]);
            by_two(
                it,
                add,
                ("kind", &kinds),
                ("result", &results),
                |link, kind, result| link.coding.dictionaries[kind][result],
            );
        }),
    ),
    counter(
        "hashcache_link_resumed",
        "Requests that were sent again, and transfers resumed, because of frames",
        Lines(|it, add| {
            let reasons = ["frames", "dictionary", "memory"];
            by_one(it, add, "reason", reasons, |link| link.coding.resumed);
        }),
    ),
    counter(
        "hashcache_link_hints",
        "Objects of pages that were fetched because the parent named them (in), or that were \
         named to the child (out)",
        Lines(|it, add| directions(it, add, |link| link.coding.hints)),
    ),
    counter(
        "hashcache_link_shed",
        "Requests and responses without a dictionary, because the disk is busier than the link or \
         the dictionary is much longer than the content",
        Lines(|it, add| each(it, add, |link| Some(Number::Whole(link.coding.shed)))),
    ),
    gauge(
        "hashcache_link_up",
        "1 if the link is connected and accepted",
        Lines(|it, add| each(it, add, |link| Some(Number::Truth(link.is_up)))),
    ),
    gauge(
        "hashcache_link_round_trip_seconds",
        "Seconds from a PING on the link to its answer, as measured last",
        Lines(|it, add| {
            each(it, add, |link| {
                Some(Number::Real(link.round_trip?.as_secs_f64()))
            });
        }),
    ),
];

/// Labels for index 0 (received) and index 1 (sent).
const DIRECTIONS: [&str; 2] = ["in", "out"];

fn each(moment: &Moment<'_>, add: &mut AddLine<'_>, value: fn(&LinkFigure) -> Option<Number>) {
    for link in moment.links() {
        if let Some(value) = value(link) {
            add(&[("link", &*link.name)], value);
        }
    }
}

fn directions(moment: &Moment<'_>, add: &mut AddLine<'_>, values: fn(&LinkFigure) -> [u64; 2]) {
    by_one(moment, add, "direction", DIRECTIONS, values);
}

fn by_one<const N: usize>(
    moment: &Moment<'_>,
    add: &mut AddLine<'_>,
    label: &str,
    words: [&str; N],
    values: fn(&LinkFigure) -> [u64; N],
) {
    for link in moment.links() {
        for (word, value) in words.iter().zip(values(link)) {
            add(
                &[("link", &*link.name), (label, word)],
                Number::Whole(value),
            );
        }
    }
}

/// Adds a line for each pair of words; `value` takes the words' positions.
fn by_two(
    moment: &Moment<'_>,
    add: &mut AddLine<'_>,
    (first, firsts): (&str, &[&str]),
    (second, seconds): (&str, &[&str]),
    value: fn(&LinkFigure, usize, usize) -> u64,
) {
    for link in moment.links() {
        for (i, one) in firsts.iter().enumerate() {
            for (j, other) in seconds.iter().enumerate() {
                let labels = [("link", &*link.name), (first, one), (second, other)];
                add(&labels, Number::Whole(value(link, i, j)));
            }
        }
    }
}
