//! The openings of log segments, in order, and the state of lists that cannot be read.
//!
//! Each header names the previous opening, the number of batches in it, and the place up to which
//! the log was durable when the header was written (`format::Link`). So a missing opening or batch
//! is noticed. If it was durable, it is damaged: any name may have been put there, so no older
//! record counts any more. Otherwise a crash has torn it: it was not acknowledged to any caller,
//! and the log stops there.
//!
//! Called by `store/recover` before it replays lists.
//!
//! Invariant: a missing batch that was durable is never mistaken for the end of the log, if any
//! header behind it can be read.
//! Cost: a read for each segment, the header reads in the last segment, and at most 5 MiB behind
//! the end.

use std::borrow::Cow;

use super::{is_over, next_openings};
use crate::disk::circular_log::{Cursor, LEFT_OUT_IN_A_ROW_MAX};
use crate::disk::{Look, Segment, last_opening};
use crate::format::{DurablePoint, Link};
use crate::stripe::Stripe;

/// A place among the batches of the log: the number of an opening, and the number of a batch in it.
pub(super) type BatchPlace = (u64, u32);

/// An opening of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    /// Where to start reading the lists.
    pub(super) cursor: Cursor,
    /// Openings are numbered in the order in which they were made; missing openings count.
    pub(super) number: u64,
    /// Missing openings between the previous opening and this opening.
    pub(super) missing: u64,
    /// Number of batches, if the next opening contains it.
    pub(super) batches: Option<u32>,
}

/// See the module head.
pub(super) struct Openings {
    segments: u64,
    list: Vec<Opening>,
    /// All batches before this place were durable; `None`: unknown, because an older build wrote
    /// the log.
    durable: Option<BatchPlace>,
    /// True if the first opening in the list is the first opening ever.
    begins_with_first: bool,
    /// The lists of the last opening, which had to be read for the durable place. `None` if they
    /// are replayed several times because memory is short.
    last_lists: Option<Segment>,
}

impl Openings {
    fn from(stripe: &Stripe, first: Cursor) -> Self {
        Self {
            segments: stripe.medium.geometry.segments,
            list: vec![Opening {
                cursor: first,
                number: 0,
                missing: 0,
                batches: None,
            }],
            durable: None,
            begins_with_first: false,
            last_lists: None,
        }
    }

    /// Starts with the opening of `cursor`, in which the batches before the cursor are durable, and
    /// adds the openings after it.
    pub(super) fn since(stripe: &Stripe, cursor: Cursor) -> Self {
        let mut all = Self::from(stripe, cursor);
        // At most one lap: if the log is newer than that all the way round, it has passed the
        // checkpoint.
        for _ in 0..all.segments {
            let Some((next, link)) = following(stripe, all.last().cursor) else {
                break;
            };
            if is_over(stripe) {
                break;
            }
            all.push(next, link);
        }
        all.durable = all.durable_place(stripe, Some((0, cursor.ordinal)));
        all
    }

    /// All openings that can be found, if any.
    pub(super) fn all(stripe: &Stripe) -> Option<Self> {
        let mut found = found(stripe)?;
        found.sort_unstable_by_key(|(cursor, _)| cursor.stamp);
        let (head, _) = *found.last()?;
        if let Some((next, link)) = following(stripe, head)
            && found.iter().all(|(cursor, _)| cursor.stamp != next.stamp)
        {
            found.push((next, link));
        }
        let (head, _) = *found.last()?;
        // Segments that a run opened and lost in a power cut do not fit between these openings.
        let fits = |cursor: &Cursor| {
            let lap = if cursor.segment <= head.segment {
                Some(head.lap)
            } else {
                head.lap.checked_sub(1)
            };
            Some(cursor.lap) == lap
        };
        let mut fitting = found.into_iter().filter(|(cursor, _)| fits(cursor));
        let (first, link) = fitting.next()?;
        let mut all = Self::from(stripe, first);
        all.begins_with_first = begins_log(first, link);
        for (cursor, link) in fitting {
            // The openings between the two were given up by an earlier recovery.
            while link.previous > 0 && all.list.len() > 1 && all.last().cursor.stamp > link.previous
            {
                all.list.pop();
            }
            all.push(cursor, link);
        }
        all.durable = all.durable_place(stripe, None);
        Some(all)
    }

    pub(super) fn list(&self) -> &[Opening] {
        &self.list
    }

    pub(super) fn begins_with_first(&self) -> bool {
        self.begins_with_first
    }

    fn last(&self) -> Opening {
        *self.list.last().expect("there is a first one")
    }

    fn push(&mut self, cursor: Cursor, link: Link) {
        let segments = self.segments;
        let Some(last) = self.list.last_mut() else {
            return;
        };
        let is_next = link.previous == 0 || link.previous == last.cursor.stamp;
        let missing = if is_next {
            0
        } else {
            // Assume as many missing openings as there is room for in between.
            ((cursor.segment + segments - last.cursor.segment) % segments)
                .saturating_sub(1)
                .max(1)
        };
        // In older builds the count is 0, as their links are.
        if link.previous > 0 && is_next {
            last.batches = Some(link.previous_batches);
        }
        let number = last.number + missing + 1;
        self.list.push(Opening {
            cursor,
            number,
            missing,
            batches: None,
        });
    }

    /// The place before which all batches are durable, according to the last readable header.
    /// `known`: a place that is durable in any case.
    fn durable_place(&mut self, stripe: &Stripe, known: Option<BatchPlace>) -> Option<BatchPlace> {
        let last = self.list.last_mut().expect("there is a first one");
        let Cursor { used, ordinal, .. } = last.cursor;
        let segment = Segment::walk(&stripe.medium, last.cursor, used, ordinal, None);
        // A second read must find as many batches.
        last.batches = Some(segment.ordinal);
        let (number, is_empty, link) = (last.number, segment.ordinal == ordinal, segment.link);
        self.last_lists = (!stripe.index.shape.stays_on_disk()).then_some(segment);
        if is_empty {
            return known;
        }
        let DurablePoint {
            openings_back,
            batches,
        } = link.durable?;
        let place = match number.checked_sub(openings_back.into()) {
            Some(number) => (number, batches),
            None => (0, 0),
        };
        Some(known.map_or(place, |known| place.max(known)))
    }

    /// The lists of `opening`.
    pub(super) fn lists(&self, stripe: &Stripe, opening: &Opening) -> Cow<'_, Segment> {
        if opening.number == self.last().number
            && let Some(lists) = self.last_lists.as_ref().filter(|it| it.gaps.is_empty())
        {
            return Cow::Borrowed(lists);
        }
        let Cursor { used, ordinal, .. } = opening.cursor;
        let medium = &stripe.medium;
        let lists = Segment::read(medium, opening.cursor, used, ordinal, opening.batches);
        Cow::Owned(lists)
    }

    /// Returns true if a batch that is missing at `place`, with other batches behind it, was
    /// durable: then it is damaged.
    pub(super) fn is_lost(&self, place: BatchPlace) -> bool {
        self.durable.is_none_or(|durable| place < durable)
    }

    /// Returns true if there are durable batches behind `place`, where no more can be found.
    pub(super) fn goes_on_behind(&self, place: BatchPlace) -> bool {
        self.durable.is_some_and(|durable| place < durable)
    }

    /// The place before which all batches are durable, in the form for a header in the opening
    /// after `end`.
    pub(super) fn durable_before(&self, end: BatchPlace) -> Option<DurablePoint> {
        let (number, batches) = self.durable?.min(end);
        Some(DurablePoint {
            openings_back: u16::try_from(end.0 - number).ok()?,
            batches,
        })
    }
}

/// Returns true if `first`, the first opening that was found, is the first that was ever made.
/// Links of older builds, and footers, name no previous opening: then only the first log segment is
/// known to be the start. If the first segment were lost, the Disk Table index would otherwise
/// treat slots as empty that the lost lists name.
fn begins_log(first: Cursor, link: Link) -> bool {
    let names_none = link.previous == 0 && (link.durable.is_some() || first.segment == 0);
    names_none && first.lap == 0
}

/// The last opening of each segment, with the link; `None` if the store was closed in the meantime.
fn found(stripe: &Stripe) -> Option<Vec<(Cursor, Link)>> {
    let mut found: Vec<(Cursor, Link)> = Vec::new();
    for segment in 0..stripe.medium.geometry.segments {
        if is_over(stripe) {
            return None;
        }
        // The log starts with the first segment.
        let look = match segment {
            0 => Look::Thorough,
            _ => Look::Short,
        };
        let Some(opening) = last_opening(&stripe.medium, segment, look) else {
            // In its first lap the log was not written beyond this, except for segments that were
            // skipped.
            let last = found.last().map_or(0, |(it, _)| it.segment);
            let is_far = segment > last + LEFT_OUT_IN_A_ROW_MAX;
            if is_far && found.iter().all(|(cursor, _)| cursor.lap == 0) {
                break;
            }
            continue;
        };
        let cursor = Cursor {
            segment,
            lap: opening.lap,
            stamp: opening.stamp,
            used: 0,
            ordinal: 0,
        };
        found.push((cursor, opening.link));
    }
    Some(found)
}

/// The segment that was opened after `last`, if there is such a segment. Segments in between may
/// have been skipped because reads of them fail.
fn following(stripe: &Stripe, last: Cursor) -> Option<(Cursor, Link)> {
    // Older openings are remains of the last lap.
    next_openings(stripe, last, Look::Thorough)
        .find(|(next, opening)| opening.stamp > last.stamp && opening.lap == next.lap)
        .map(|(next, opening)| (next, opening.link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_an_older_build_without_its_first_segment_does_not_begin_with_the_first_opening() {
        let at = |segment, lap| Cursor {
            segment,
            lap,
            ..Cursor::default()
        };
        let durable = Some(DurablePoint {
            openings_back: 0,
            batches: 0,
        });
        let link = |previous, durable| Link {
            previous,
            durable,
            ..Link::default()
        };
        assert!(begins_log(at(0, 0), link(0, durable)) && begins_log(at(0, 0), link(0, None)));
        // A segment may have been skipped because it could not be read.
        assert!(begins_log(at(1, 0), link(0, durable)));
        assert!(!begins_log(at(1, 0), link(0, None)));
        assert!(!begins_log(at(0, 1), link(0, durable)));
        assert!(!begins_log(at(1, 0), link(7, durable)));
    }
}
