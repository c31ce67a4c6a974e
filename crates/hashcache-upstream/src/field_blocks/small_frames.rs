//! Counts the small DATA frames of each stream of an origin that wait for their reader.
//!
//! Used by `field_blocks`, which passes frames on to h2, and by `http2`, which reads content from
//! h2. Each waiting frame costs h2 some hundred bytes, however short it is, so h2 closes the
//! connection if all streams together have too many short frames: a single client that does not
//! read a stream of short events would break the responses to all clients. `field_blocks` therefore
//! merges the frames after the first [`UNREAD_MAX`] unread frames, and is woken when their reader
//! has caught up.
//!
//! If a stream has no reader any more, h2 drops all frames and counts the short frames for ever: on
//! such a stream all short frames are merged.
//!
//! Invariant: for a stream that is behind, the connection is woken as soon as at most half of
//! [`UNREAD_MAX`] frames are unread.
//! Cost: a lock and a map lookup for each short frame.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The short frames on a connection.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct SmallFrames(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// At most `ABANDONED_MAX` abandoned streams, and the streams that are read.
    streams: HashMap<u32, Unread>,
    /// Streams that were behind and have caught up.
    due: Vec<u32>,
    /// Wakes the connection, which reads the streams that are due.
    connection: Option<Waker>,
}

/// Short frames on a stream that h2 has and that are not read yet.
#[derive(Clone, Copy, Debug, Default)]
struct Unread {
    frames: usize,
    /// Further frames are merged, until at most half of [`UNREAD_MAX`] are unread.
    is_behind: bool,
    /// The reader is gone. h2 drops the rest, but never forgets how many frames were short.
    is_abandoned: bool,
}

/// The reader of a stream. Dropping it before the end abandons the stream.
#[derive(Debug)]
pub(in super::super) struct SmallReader {
    small: SmallFrames,
    stream: u32,
    is_over: bool,
}

impl SmallFrames {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if h2 has too many short frames of `stream`, so that further short frames must
    /// be merged. In this case [`SmallFrames::take_due`] returns the stream when the reader has
    /// caught up.
    pub(super) fn is_behind(&self, stream: u32) -> bool {
        let mut state = self.lock();
        let Some(unread) = state.streams.get_mut(&stream) else {
            return false;
        };
        unread.is_behind = unread.is_abandoned || unread.frames >= UNREAD_MAX;
        unread.is_behind
    }

    /// Notes that h2 gets a short frame of `stream`.
    pub(super) fn note_passed(&self, stream: u32) {
        self.lock().unread(stream).frames += 1;
    }

    /// Makes the reader of `stream`.
    pub(in super::super) fn reader(&self, stream: u32) -> SmallReader {
        SmallReader {
            small: self.clone(),
            stream,
            is_over: false,
        }
    }

    /// Called when the origin has closed `stream`.
    pub(super) fn forget(&self, stream: u32) {
        self.lock().streams.remove(&stream);
    }

    /// Takes the streams with readers that have caught up. `connection` is woken when there are
    /// more.
    pub(super) fn take_due(&self, connection: &Waker) -> Vec<u32> {
        let mut state = self.lock();
        let known = state.connection.as_ref();
        if !known.is_some_and(|known| known.will_wake(connection)) {
            state.connection = Some(connection.clone());
        }
        std::mem::take(&mut state.due)
    }
}

impl State {
    fn unread(&mut self, stream: u32) -> &mut Unread {
        if self.streams.len() >= ABANDONED_MAX && !self.streams.contains_key(&stream) {
            // Origins never close streams that we have reset.
            self.streams.retain(|_, unread| !unread.is_abandoned);
        }
        self.streams.entry(stream).or_default()
    }
}

impl SmallReader {
    /// Notes that `bytes`, a frame, were read.
    pub(in super::super) fn note_read(&self, bytes: usize) {
        if !is_small(bytes) {
            return;
        }
        let mut state = self.small.lock();
        let Some(unread) = state.streams.get_mut(&self.stream) else {
            return;
        };
        unread.frames = unread.frames.saturating_sub(1);
        let has_caught_up = unread.is_behind && unread.frames <= UNREAD_MAX / 2;
        unread.is_behind &= !has_caught_up;
        if unread.frames == 0 {
            state.streams.remove(&self.stream);
        }
        let connection = if has_caught_up {
            state.due.push(self.stream);
            state.connection.take()
        } else {
            None
        };
        drop(state);
        connection.into_iter().for_each(Waker::wake);
    }

    /// Called when the stream is complete, and all of it was read.
    pub(in super::super) fn ends(&mut self) {
        self.is_over = true;
        self.small.forget(self.stream);
    }
}

impl Drop for SmallReader {
    fn drop(&mut self) {
        if !self.is_over {
            self.small.lock().unread(self.stream).is_abandoned = true;
        }
    }
}

/// Returns true if h2 counts a frame with this length as short.
pub(super) fn is_small(bytes: usize) -> bool {
    (1..MERGED_MIN).contains(&bytes)
}

/// Minimum frame length that h2 does not count as short.
pub(super) const MERGED_MIN: usize = 256;
/// Short frames on a stream that h2 gets before they are read. For 32 streams these are an eighth
/// of the frames that h2 accepts on a connection.
const UNREAD_MAX: usize = 64;
/// Maximum number of abandoned streams that are remembered.
const ABANDONED_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_connection_is_woken_when_half_of_what_waited_is_read() {
        let (small, woken) = (SmallFrames::default(), Arc::<Woken>::default());
        let connection = Waker::from(Arc::clone(&woken));
        let [slow, fast] = [1, 3].map(|stream| small.reader(stream));
        assert!(small.take_due(&connection).is_empty());
        for _ in 0..UNREAD_MAX {
            assert!(!small.is_behind(1));
            small.note_passed(1);
        }
        small.note_passed(3);
        assert!(small.is_behind(1) && !small.is_behind(3));
        for read in 1..=UNREAD_MAX {
            slow.note_read(10);
            slow.note_read(0);
            slow.note_read(MERGED_MIN);
            let is_over = read >= UNREAD_MAX / 2;
            assert_eq!(woken.0.load(Ordering::Relaxed), usize::from(is_over));
            let due = small.take_due(&connection).len();
            assert_eq!(due, usize::from(read == UNREAD_MAX / 2));
        }
        // Nothing is due for a stream that was never behind.
        fast.note_read(10);
        fast.note_read(10);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(small.lock().streams.is_empty());
    }

    #[test]
    fn a_stream_that_nobody_reads_any_more_is_behind() {
        let small = SmallFrames::default();
        let reader = small.reader(1);
        small.note_passed(1);
        assert!(!small.is_behind(1));
        drop(reader);
        assert!(small.is_behind(1));
        small.forget(1);
        assert!(!small.is_behind(1));
    }

    #[test]
    fn no_more_abandoned_streams_are_remembered_than_there_is_room_for() {
        let small = SmallFrames::default();
        small.note_passed(7);
        let mut over = small.reader(7);
        for stream in (0..).map(|n| 2 * n).take(3 * ABANDONED_MAX) {
            drop(small.reader(stream));
            assert!(small.lock().streams.len() <= ABANDONED_MAX);
            assert!(small.lock().streams.contains_key(&7), "it is read");
        }
        over.ends();
        drop(over);
        assert!(!small.lock().streams.contains_key(&7));
    }
}
