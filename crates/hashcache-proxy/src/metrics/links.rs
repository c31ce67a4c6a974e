//! The figures of links: one line per parent with a pin, and per child that was seen.
//!
//! Called by `exposition`; `server/links` gives the figures.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use serde_json::Value;

use crate::link::counters::LinkContents;
use crate::link::usage::{CODINGS, CodingFigures};

/// One link.
#[derive(Clone, Debug)]
pub(crate) struct LinkFigure {
    /// The name of the parent, or the pin of the child.
    pub(crate) name: String,
    pub(crate) is_up: bool,
    pub(crate) round_trip: Option<Duration>,
    /// Received, and sent.
    pub(crate) bytes: [u64; 2],
    /// Content of tunnels and of streams in chunks, received and sent.
    pub(crate) contents: [LinkContents; 2],
    pub(crate) coding: CodingFigures,
}

/// All links.
#[derive(Clone, Debug)]
pub(crate) struct LinkView {
    pub(crate) figures: Vec<LinkFigure>,
    /// The object of `/-/links`.
    pub(crate) status: Value,
}

/// Writes the figures, if there are links.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, links: &[LinkFigure]) -> fmt::Result {
    if links.is_empty() {
        return Ok(());
    }
    let what = "Bytes on the sockets of links, with TLS, by link and direction";
    let counter = MetricType::Counter;
    let mut family = encoder.encode_descriptor("hashcache_link_bytes", what, None, counter)?;
    for link in links {
        for (direction, bytes) in DIRECTIONS.iter().zip(link.bytes) {
            family
                .encode_family(&[("link", link.name.as_str()), ("direction", direction)])?
                .encode_counter::<NoLabelSet, _, u64>(&bytes, None)?;
        }
    }
    encode_contents(encoder, links)?;
    encode_coding(encoder, links)?;
    let what = "1 if the link is connected and accepted";
    let gauge = MetricType::Gauge;
    let mut family = encoder.encode_descriptor("hashcache_link_up", what, None, gauge)?;
    for link in links {
        family
            .encode_family(&[("link", link.name.as_str())])?
            .encode_gauge(&u64::from(link.is_up))?;
    }
    let what = "Seconds from a PING on the link to its answer, as measured last";
    let name = "hashcache_link_round_trip_seconds";
    let mut family = encoder.encode_descriptor(name, what, None, gauge)?;
    for link in links {
        let Some(round_trip) = link.round_trip else {
            continue;
        };
        family
            .encode_family(&[("link", link.name.as_str())])?
            .encode_gauge(&round_trip.as_secs_f64())?;
    }
    Ok(())
}

/// Writes what went over links in tunnels and in streams of chunks.
fn encode_contents(encoder: &mut DescriptorEncoder<'_>, links: &[LinkFigure]) -> fmt::Result {
    type Of = fn(&LinkContents) -> u64;
    let counter = MetricType::Counter;
    let families: [(&str, &str, Of); 3] = [
        (
            "hashcache_link_opaque_bytes",
            "Bytes of tunnels over links that passed unchanged",
            |it| it.opaque,
        ),
        (
            "hashcache_link_chunk_coded_bytes",
            "Bytes on links of forwarded streams, coded in chunks",
            |it| it.coded,
        ),
        (
            "hashcache_link_chunk_saved_bytes",
            "Content of forwarded streams less what it took on links",
            LinkContents::saved,
        ),
    ];
    for (name, what, of) in families {
        // What is saved may become less: literals take a little more than their content.
        let kind = match name.ends_with("saved_bytes") {
            true => MetricType::Gauge,
            false => counter,
        };
        let mut family = encoder.encode_descriptor(name, what, None, kind)?;
        for link in links {
            for (direction, contents) in DIRECTIONS.iter().zip(&link.contents) {
                let labels = [("link", link.name.as_str()), ("direction", direction)];
                let mut metric = family.encode_family(&labels)?;
                match kind {
                    MetricType::Gauge => metric.encode_gauge(&of(contents))?,
                    _ => metric.encode_counter::<NoLabelSet, _, u64>(&of(contents), None)?,
                }
            }
        }
    }
    let name = "hashcache_link_chunk_bytes";
    let what = "Content of forwarded streams by how it went over links; answers, which a store \
                that lacked a chunk has asked for, count as references too";
    let mut family = encoder.encode_descriptor(name, what, None, counter)?;
    for link in links {
        for (direction, contents) in DIRECTIONS.iter().zip(&link.contents) {
            let chunks = &contents.chunks;
            for (kind, bytes) in [
                ("literal", chunks.literal),
                ("reference", chunks.referred),
                ("answer", chunks.answered),
            ] {
                let direction = ("direction", *direction);
                let labels = [("link", link.name.as_str()), direction, ("kind", kind)];
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(&bytes, None)?;
            }
        }
    }
    Ok(())
}

/// In the order of what is counted.
const DIRECTIONS: [&str; 2] = ["in", "out"];

/// Writes what coding came to.
fn encode_coding(encoder: &mut DescriptorEncoder<'_>, links: &[LinkFigure]) -> fmt::Result {
    let counter = MetricType::Counter;
    let what = "Bytes of content that passed in frames, by link and direction";
    let name = "hashcache_link_plain_bytes";
    let mut family = encoder.encode_descriptor(name, what, None, counter)?;
    for link in links {
        for (direction, bytes) in ["in", "out"].iter().zip(link.coding.content) {
            family
                .encode_family(&[("link", link.name.as_str()), ("direction", direction)])?
                .encode_counter::<NoLabelSet, _, u64>(&bytes, None)?;
        }
    }
    let what = "Bytes of frames, by link, direction and coding: raw, zstd, or with a dictionary \
                that the child offered or the parent named";
    let name = "hashcache_link_frame_bytes";
    let mut family = encoder.encode_descriptor(name, what, None, counter)?;
    for link in links {
        for (direction, all) in DIRECTIONS.iter().zip(&link.coding.frames) {
            for (coding, bytes) in CODINGS.iter().zip(all) {
                let direction = ("direction", *direction);
                let labels = [("link", link.name.as_str()), direction, ("coding", coding)];
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(bytes, None)?;
            }
        }
    }
    let what = "Seconds of decoding (in) and encoding (out), by link";
    let name = "hashcache_link_coding_seconds";
    let mut family = encoder.encode_descriptor(name, what, None, counter)?;
    for link in links {
        for (direction, time) in DIRECTIONS.iter().zip(link.coding.work) {
            family
                .encode_family(&[("link", link.name.as_str()), ("direction", direction)])?
                .encode_counter::<NoLabelSet, _, u64>(&time.as_secs_f64(), None)?;
        }
    }
    let what = "Responses with a dictionary, and dictionaries that were not there";
    let name = "hashcache_link_dictionary";
    let mut family = encoder.encode_descriptor(name, what, None, counter)?;
    for link in links {
        for (kind, results) in ["offered", "named"].iter().zip(link.coding.dictionaries) {
            for (result, count) in ["used", "missed"].iter().zip(results) {
                let link = ("link", link.name.as_str());
                family
                    .encode_family(&[link, ("kind", kind), ("result", result)])?
                    .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
    }
    let what = "Requests that were sent again, and transfers resumed, because of frames";
    let name = "hashcache_link_resumed";
    let mut family = encoder.encode_descriptor(name, what, None, counter)?;
    for link in links {
        let reasons = ["frames", "dictionary", "memory"];
        for (reason, count) in reasons.iter().zip(link.coding.resumed) {
            family
                .encode_family(&[("link", link.name.as_str()), ("reason", reason)])?
                .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
    }
    let what = "Objects of pages that were fetched because the parent named them (in), or that \
                were named to the child (out)";
    let mut family = encoder.encode_descriptor("hashcache_link_hints", what, None, counter)?;
    for link in links {
        for (direction, count) in DIRECTIONS.iter().zip(link.coding.hints) {
            family
                .encode_family(&[("link", link.name.as_str()), ("direction", direction)])?
                .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
    }
    let what = "Requests and responses without a dictionary, because the disk is busier than the \
                link or the dictionary is much longer than the content";
    let mut family = encoder.encode_descriptor("hashcache_link_shed", what, None, counter)?;
    for link in links {
        family
            .encode_family(&[("link", link.name.as_str())])?
            .encode_counter::<NoLabelSet, _, u64>(&link.coding.shed, None)?;
    }
    Ok(())
}
