//! Section `damage`: damaged frames, and a link that cuts connections and inverts bits.
//!
//! TLS finds every inverted bit on the wire, so frames are damaged in this process: the encoder of
//! `hashcache-wan` writes a transfer, the sequence is damaged, and its decoder reads it with the
//! real zstd. Then the relay damages the real link.
//!
//! Limits: no byte is given that is not the content's, no transfer ends well that is not whole;
//! on the link, an answer is complete after a resume, or the client sees an error.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache_testkit::relay::{Fault, Link};
use hashcache_wan::decode::{Decoder, Event, Offer};
use hashcache_wan::encode::Encoder;
use hashcache_wan::frame::{Dictionary, Head};
use serde_json::json;
use tokio::time::sleep;

use super::answers::{Outcome, fetch, fetch_retrying};
use super::boxes::{Pair, Settings};
use super::made;
use super::site::{Served, Site};
use super::{Args, Progress};
use crate::campaign::Campaign;

/// Plays the section.
pub async fn run(args: &Args, campaign: &mut Campaign, progress: &Progress) -> anyhow::Result<()> {
    let sequences = args.sequences();
    progress.expect(sequences + args.link_damages());
    let mut counts = Counts::default();
    for seed in 0..sequences {
        play(seed, &mut counts).with_context(|| format!("seed {seed}"))?;
        progress.step();
    }
    let Counts {
        found,
        harmless,
        wrong,
        released,
    } = counts;
    campaign.report.figures(
        format!("{sequences} damaged sequences of frames"),
        (wrong.is_empty() && found > sequences / 2).into(),
        format!(
            "{} with unchecked bytes, bar 0; {found} found out, {harmless} whole in spite of it; \
             {released} bytes were given before{}",
            wrong.len(),
            wrong
                .first()
                .map_or(String::new(), |it| format!("\n        {it}")),
        ),
        json!({ "wrong": wrong.len(), "found": found, "harmless": harmless }),
    );
    link(args, campaign, progress).await
}

#[derive(Debug, Default)]
struct Counts {
    /// Sequences that the decoder refused, or of which it waited for more.
    found: u64,
    /// Sequences whose whole content was given: the damage met nothing.
    harmless: u64,
    wrong: Vec<String>,
    /// Right bytes that were given before the damage.
    released: u64,
}

/// One transfer: what was sent, frame by frame, and what it means.
struct Transfer {
    old: Vec<u8>,
    new: Vec<u8>,
    offer: Offer,
    pieces: Vec<Vec<u8>>,
}

/// Encodes, damages, decodes.
fn play(seed: u64, counts: &mut Counts) -> anyhow::Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut transfer = Transfer::make(&mut random)?;
    let kind = damage(&mut transfer, &mut random);
    let mut content = Vec::new();
    let is_whole = transfer.decode(&mut content, &mut random);
    let shown = |what: &str| format!("seed {seed}, {kind}: {what}");
    if !transfer.new.starts_with(&content) {
        counts.wrong.push(shown("wrong bytes were given"));
    } else if is_whole && content.len() < transfer.new.len() {
        counts
            .wrong
            .push(shown("a part ended as if it were the whole"));
    } else if is_whole {
        counts.harmless += 1;
    } else {
        counts.found += 1;
        counts.released += content.len() as u64;
    }
    Ok(())
}

impl Transfer {
    fn make(random: &mut fastrand::Rng) -> anyhow::Result<Self> {
        let bytes = match random.u8(..8) {
            0 => random.usize(1..2_000),
            1 => random.usize(2_000_000..2_600_000),
            _ => random.usize(2_000..300_000),
        };
        let (seed, other) = (random.u64(..), random.u64(..));
        let old = if random.bool() {
            made::text(seed, bytes)
        } else {
            made::noise(seed, bytes)
        };
        let new = made::edited(other, &old);
        let has_dictionary = random.u8(..3) > 0;
        let head = Head {
            length: random.bool().then_some(new.len() as u64),
            version: other,
            dictionary: if has_dictionary {
                Dictionary::Offered
            } else {
                Dictionary::None
            },
        };
        let offer = Offer {
            offered: has_dictionary.then_some(old.len() as u64),
            named_max: 0,
        };
        let mut encoder = Encoder::new(head, old.len() as u64);
        let (mut pieces, mut rest) = (vec![], &new[..]);
        while !rest.is_empty() {
            while let Some(wanted) = encoder.wants() {
                encoder.give(&old[range(&wanted)?]);
            }
            let length = rest.len().min(random.usize(1..100_000));
            let mut piece = Vec::new();
            let taken = encoder.push(&rest[..length], &mut piece)?;
            rest = &rest[taken..];
            if random.bool() {
                encoder.flush(&mut piece)?;
            }
            pieces.push(piece);
        }
        let mut end = Vec::new();
        encoder.finish(&mut end)?;
        pieces.push(end);
        pieces.retain(|piece| !piece.is_empty());
        Ok(Self {
            old,
            new,
            offer,
            pieces,
        })
    }

    /// Whether the decoder says that the content is whole; `content` is what it gave.
    fn decode(&self, content: &mut Vec<u8>, random: &mut fastrand::Rng) -> bool {
        let sent = self.pieces.concat();
        let mut decoder = Decoder::new(self.offer);
        let mut rest = &sent[..];
        loop {
            match decoder.next() {
                Err(_) => return false,
                Ok(Event::End(_)) => return true,
                Ok(Event::Head(_)) => {}
                Ok(Event::Content(bytes)) => content.extend_from_slice(bytes),
                Ok(Event::Wants(wanted)) => match range(&wanted).map(|it| self.old.get(it)) {
                    Ok(Some(bytes)) => decoder.give(bytes),
                    // A caller without these bytes gives the transfer up.
                    _ => return false,
                },
                Ok(Event::More) if rest.is_empty() => return false,
                Ok(Event::More) => {
                    let length = rest.len().min(random.usize(1..40_000));
                    let (now, later) = rest.split_at(length);
                    decoder.push(now);
                    rest = later;
                }
            }
        }
    }
}

fn range(wanted: &Range<u64>) -> anyhow::Result<Range<usize>> {
    Ok(usize::try_from(wanted.start)?..usize::try_from(wanted.end)?)
}

/// Damages a transfer; how.
fn damage(transfer: &mut Transfer, random: &mut fastrand::Rng) -> &'static str {
    let pieces = &mut transfer.pieces;
    let at = random.usize(..pieces.len());
    match random.u8(..7) {
        0 => {
            let place = random.usize(..pieces[at].len());
            pieces[at][place] ^= 1 << random.u8(..8);
            "an inverted bit"
        }
        1 => {
            for _ in 0..random.u8(2..9) {
                let at = random.usize(..pieces.len());
                let place = random.usize(..pieces[at].len());
                pieces[at][place] = random.u8(..);
            }
            "several bytes replaced"
        }
        2 => {
            pieces.truncate(at + 1);
            let left = random.usize(..pieces[at].len());
            pieces[at].truncate(left);
            "cut off"
        }
        3 => {
            let other = random.usize(..pieces.len());
            pieces.swap(at, other);
            "frames reordered"
        }
        4 => {
            pieces.remove(at);
            "frames lost"
        }
        5 => {
            let again = pieces[at].clone();
            pieces.insert(random.usize(..=pieces.len()), again);
            "frames repeated"
        }
        _ => {
            let place = random.usize(..transfer.old.len());
            transfer.old[place] ^= 1 << random.u8(..8);
            "another dictionary at the receiver"
        }
    }
}

/// Cuts and inverted bits on the real link, at bytes of a transfer.
async fn link(args: &Args, campaign: &mut Campaign, progress: &Progress) -> anyhow::Result<()> {
    let rounds = args.link_damages();
    let site = Site::start().await?;
    let mut pair = Pair::start(campaign, &Settings::new("damage")).await?;
    let mut random = fastrand::Rng::with_seed(3);
    let mut content = Arc::new(made::text(5, OBJECT_BYTES));
    let warm = Arc::new(b"warm".to_vec());
    let (mut completed, mut visible, mut wrong) = (0, vec![], vec![]);
    site.set("/object", Served::stale(&content));
    ensure!(
        fetch(pair.address()?, &site.url("/object"), &content).await == Outcome::Right,
        "the first answer is not right"
    );
    // Faults are at bytes of a connection; it began at about this byte of all.
    let (mut accepted, mut connected_at) = (pair.relay.accepted(), 0);
    for round in 0..rounds {
        // Every other round, content for which there is no dictionary.
        content = Arc::new(match round % 2 {
            0 => made::edited(round, &content),
            _ => made::text(1000 + round, OBJECT_BYTES),
        });
        site.set("/object", Served::stale(&content));
        site.set("/warm", Served::no_store(&warm));
        // A request makes the child connect at once; left alone, it would wait longer each time.
        let outcome = fetch_retrying(pair.address()?, &site.url("/warm"), &warm).await;
        ensure!(
            outcome == Outcome::Right,
            "no link before round {round}: {outcome:?}"
        );
        let reach = match round % 2 {
            0 => 10_000,
            _ => 200_000,
        };
        let passed = pair.relay.passed_bytes()[1];
        if pair.relay.accepted() > accepted {
            (accepted, connected_at) = (pair.relay.accepted(), passed);
        }
        let byte = passed - connected_at + HANDSHAKE_BYTES + random.u64(..reach);
        let fault = if random.bool() {
            Fault::CutAfter(byte)
        } else {
            Fault::FlipBit {
                byte,
                bit: random.u8(..8),
            }
        };
        pair.relay.change(|link| link.to_client.fault = Some(fault));
        let (address, url) = (pair.address()?, site.url("/object"));
        let asked = fetch(address, &url, &content);
        tokio::pin!(asked);
        let outcome = loop {
            tokio::select! {
                outcome = &mut asked => break outcome,
                () = sleep(LOOK_TIME) => {
                    // One damage is enough: the next connection is a good one.
                    let now = pair.relay.passed_bytes()[1];
                    if pair.relay.accepted() > accepted {
                        (accepted, connected_at) = (pair.relay.accepted(), now);
                        pair.relay.change(|link| *link = Link::default());
                    } else if now > connected_at + byte {
                        pair.relay.change(|link| *link = Link::default());
                    }
                }
            }
        };
        pair.relay.change(|link| *link = Link::default());
        match outcome {
            Outcome::Right => completed += 1,
            Outcome::Visible(what) => visible.push(what),
            Outcome::Wrong(what) => wrong.push(format!("round {round}, {fault:?}: {what}")),
        }
        progress.step();
    }
    let whole = fetch_retrying(pair.address()?, &site.url("/object"), &content).await;
    pair.check()?;
    campaign.report.figures(
        format!("{rounds} cuts and inverted bits on the link"),
        (wrong.is_empty() && whole == Outcome::Right).into(),
        format!(
            "{} wrong or short, bar 0; {completed} complete, {} visible errors{}; \
             afterwards: {whole:?}{}",
            wrong.len(),
            visible.len(),
            visible
                .last()
                .map_or(String::new(), |it| format!(" (the last: {it})")),
            wrong
                .first()
                .map_or(String::new(), |it| format!("\n        {it}")),
        ),
        json!({ "wrong": wrong.len(), "completed": completed, "visible": visible.len() }),
    );
    Ok(())
}

const OBJECT_BYTES: usize = 1_000_000;
/// More than the TLS handshake of a connection that has just been noticed.
const HANDSHAKE_BYTES: u64 = 4096;
const LOOK_TIME: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_without_damage_are_whole_and_damaged_ones_are_found_out() {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let transfer = Transfer::make(&mut random).unwrap();
            let mut content = Vec::new();
            assert!(transfer.decode(&mut content, &mut random), "{seed}");
            assert!(content == transfer.new);
        }
        let mut counts = Counts::default();
        for seed in 0..50 {
            play(seed, &mut counts).unwrap();
        }
        assert_eq!(counts.wrong, [""; 0]);
        assert!(counts.found > 25, "{counts:?}");
    }
}
