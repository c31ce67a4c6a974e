//! Fairness among the clients of a child: limits for the bytes of each client that are under way or
//! unread at the other side of a link.
//!
//! All streams of a link share the connection's window. Unread content stays in that window, so a
//! few unread downloads would stop all other streams. HTTP/2 does not tell a sender which streams
//! are read: stream windows are as large as a fast transfer over a long line needs, and
//! WINDOW_UPDATE arrives late. Therefore both sides acknowledge the bytes that were read, by the
//! numbers that the child gives to requests (`Hashcache-Link`, `c` and `n`), in separate frames
//! (`turn_frames`), and senders wait for their turn here.
//!
//! Used on both sides: by `http2` in `hashcache-wire` on the parent, and by `linked` and `channel`
//! in `hashcache-upstream` on the child.
//!
//! Invariants: unacknowledged bytes stay below the window, whatever a single client does. A client
//! may have a third of the bytes that all clients leave free, so each further client finds room. A
//! stream may have three times the client's remaining share, so a single transfer gets a fifth of
//! the window (1.6 MiB of 8), and the client's second stream is not stopped by the first. A stream
//! without unread bytes may send a piece while the client has less than half the free bytes, so a
//! new or small response does not wait for large responses. A piece is at most a sixteenth of the
//! window: senders cut larger pieces. The next piece is counted before it is sent, so no share is
//! exceeded by a piece (except by a stream's first piece, if it is larger than usual). A short
//! piece counts as half a KiB, because the other side keeps each piece separately. Bytes for a
//! stream that the other side no longer reads fill no window, so they do not count. A side that
//! never announces acknowledgements gets everything at once, as in older versions.
//! Cost: one lock per piece of content, and per acknowledgement.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use hashcache_http::LinkTurn;

use super::CONNECTION_MAX;

/// A connection's accounts, for both directions.
#[derive(Debug)]
pub struct Turns {
    /// Bytes that the other side may have unread here.
    window: u32,
    numbers: AtomicU64,
    sending: Mutex<Sending>,
    reading: Mutex<Reading>,
}

/// Bytes that were sent but not acknowledged.
#[derive(Debug, Default)]
struct Sending {
    /// The other side's window, after it has announced acknowledgements.
    window: Option<u64>,
    unread: u64,
    /// Unread bytes by client number.
    clients: HashMap<u32, u64>,
    streams: HashMap<u64, SentStream>,
    /// Streams that are finished here but still unread on the other side.
    ended: VecDeque<u64>,
    /// Streams without an account from which the other side reads nothing more. Most are finished;
    /// for some, nothing was sent yet.
    read_out: VecDeque<u64>,
}

#[derive(Debug)]
struct SentStream {
    client: u32,
    /// Bytes, plus the surcharge for short pieces.
    unread: u64,
    /// The pieces in `unread`, the oldest first. There are no more pieces than the window has room
    /// for.
    pieces: VecDeque<SentPiece>,
    /// The largest piece so far.
    piece: u64,
    waker: Option<Waker>,
    is_ended: bool,
    /// The other side reads nothing more, so bytes for this stream do not stay in the window.
    is_read_out: bool,
}

/// A piece that is not completely read.
#[derive(Clone, Copy, Debug)]
struct SentPiece {
    /// Unread bytes.
    bytes: u64,
    /// Share bytes that the piece takes.
    charge: u64,
}

/// Bytes that were read but are not yet acknowledged.
#[derive(Debug, Default)]
struct Reading {
    /// The other side understands acknowledgements.
    is_wanted: bool,
    acks: HashMap<u64, Ack>,
    /// How much `acks` are worth for the other side: bytes, plus the surcharge for short pieces.
    worth: u64,
    /// Wakes the task that writes to the socket.
    writer: Option<Waker>,
}

/// Bytes that were read from a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ack {
    Bytes(u32),
    /// Nothing more will be read: all bytes count as read.
    All,
}

impl Turns {
    /// Creates the accounts for a connection with this receive window.
    pub fn new(window: u32) -> Arc<Self> {
        Arc::new(Self {
            window,
            numbers: AtomicU64::new(0),
            sending: Mutex::default(),
            reading: Mutex::default(),
        })
    }

    /// This side's receive window, bytes.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// The turn for the next request from `client`.
    pub(crate) fn next(&self, client: u32) -> LinkTurn {
        LinkTurn {
            client,
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Starts an account for content that this side sends, in a request or in the response.
    pub fn send(self: &Arc<Self>, turn: LinkTurn) -> SendTurn {
        let mut sending = self.sending();
        // If a child uses a number twice, the second stream gets no turns.
        let is_new = sending.window.is_some() && !sending.streams.contains_key(&turn.number);
        if is_new {
            let is_read_out = sending.read_out.contains(&turn.number);
            let stream = SentStream {
                client: turn.client,
                unread: 0,
                pieces: VecDeque::new(),
                piece: 0,
                waker: None,
                is_ended: false,
                is_read_out,
            };
            sending.streams.insert(turn.number, stream);
        }
        drop(sending);
        SendTurn {
            turns: Arc::clone(self),
            number: is_new.then_some(turn.number),
        }
    }

    /// Starts an account for content that this side reads, in a request or in the response.
    pub fn read(self: &Arc<Self>, turn: LinkTurn) -> ReadTurn {
        ReadTurn {
            turns: Arc::clone(self),
            number: turn.number,
        }
    }

    /// Notes that the other side acknowledges, and the bytes that it may have unread.
    pub(super) fn begin(&self, window: u32) {
        // A larger window would only let more pieces be remembered.
        self.sending().window = Some(window.min(CONNECTION_MAX).into());
        self.reading().is_wanted = true;
    }

    /// Notes that the other side has read content for the request `number`.
    pub(super) fn acknowledged(&self, number: u64, ack: Ack) {
        let mut sending = self.sending();
        sending.acknowledged(number, ack);
        let wakers = sending.turned();
        drop(sending);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Takes up to `most` acknowledgements to send. `writer` is woken when there are more.
    pub(super) fn take_acks(&self, most: usize, writer: &Waker) -> Vec<(u64, Ack)> {
        let mut reading = self.reading();
        if !reading
            .writer
            .as_ref()
            .is_some_and(|it| it.will_wake(writer))
        {
            reading.writer = Some(writer.clone());
        }
        if !reading.is_wanted || reading.acks.is_empty() {
            return vec![];
        }
        let numbers: Vec<u64> = reading.acks.keys().copied().take(most).collect();
        let take = |number| Some((number, reading.acks.remove(&number)?));
        let taken: Vec<_> = numbers.into_iter().filter_map(take).collect();
        let bytes = taken.iter().map(|(_, ack)| match ack {
            Ack::Bytes(bytes) => u64::from(*bytes),
            Ack::All => 0,
        });
        reading.worth = if reading.acks.is_empty() {
            0
        } else {
            reading.worth.saturating_sub(bytes.sum())
        };
        taken
    }

    fn note_read(&self, number: u64, ack: Ack, is_urgent: bool) {
        let mut reading = self.reading();
        if !reading.is_wanted {
            return;
        }
        let before = reading.acks.get(&number).copied();
        if before.is_none() && reading.acks.len() >= ENDED_MAX {
            // The other side takes no frames: it loses only room for itself.
            return;
        }
        let (sum, more) = match (before, ack) {
            (Some(Ack::Bytes(before)), Ack::Bytes(more)) => {
                (Ack::Bytes(before.saturating_add(more)), more)
            }
            (_, Ack::Bytes(more)) => (ack, more),
            (_, Ack::All) => (ack, 0),
        };
        if let (Some(Ack::Bytes(before)), Ack::All) = (before, ack) {
            reading.worth = reading.worth.saturating_sub(before.into());
        }
        reading.acks.insert(number, sum);
        if more > 0 {
            reading.worth += u64::from(more).max(CHARGE_MIN);
        }
        // Each acknowledgement takes a frame and a TLS record, so the first few wait until anything
        // else is sent.
        let is_enough = reading.worth >= u64::from(self.window / ACK_PART).min(ACK_BYTES)
            || reading.acks.len() >= ACKS_WAITING;
        let writer = (is_urgent || is_enough).then(|| reading.writer.clone());
        drop(reading);
        if let Some(Some(writer)) = writer {
            writer.wake();
        }
    }

    fn sending(&self) -> MutexGuard<'_, Sending> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reading(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sending {
    fn has_turn(&self, stream: &SentStream) -> bool {
        let Some(window) = self.window else {
            return true;
        };
        let free = window.saturating_sub(self.unread);
        let of_client = self.clients.get(&stream.client).copied().unwrap_or(0);
        if stream.is_read_out {
            return true;
        }
        if of_client == 0 {
            return free > 0;
        }
        // The values after the next piece is sent.
        let first = (window / FIRST_PART).min(FIRST_BYTES);
        let piece = stream.piece.max(first).max(CHARGE_MIN);
        let (free, of_client) = (free.saturating_sub(piece), of_client + piece);
        if stream.unread == 0 && of_client <= free / NEW_PART {
            return true;
        }
        let left = (free / CLIENT_PART).saturating_sub(of_client);
        stream.unread + piece <= left.saturating_mul(STREAM_FACTOR)
    }

    /// The wakers of all streams that now have their turn.
    fn turned(&mut self) -> Vec<Waker> {
        let turned = self.streams.iter();
        let turned = turned.filter(|(_, stream)| stream.waker.is_some() && self.has_turn(stream));
        let turned: Vec<u64> = turned.map(|(number, _)| *number).collect();
        let waker = |number| self.streams.get_mut(&number)?.waker.take();
        turned.into_iter().filter_map(waker).collect()
    }

    fn add(&mut self, number: u64, bytes: u64) {
        let stream = self.streams.get_mut(&number);
        if let Some(stream) = stream.filter(|stream| !stream.is_read_out) {
            let charge = bytes.max(CHARGE_MIN);
            stream.unread += charge;
            stream.pieces.push_back(SentPiece { bytes, charge });
            stream.piece = stream.piece.max(bytes);
            *self.clients.entry(stream.client).or_default() += charge;
            self.unread += charge;
        }
    }

    fn acknowledged(&mut self, number: u64, ack: Ack) {
        let Some(stream) = self.streams.get_mut(&number) else {
            if ack == Ack::All {
                self.read_out.push_back(number);
                if self.read_out.len() > READ_OUT_MAX {
                    self.read_out.pop_front();
                }
            }
            return;
        };
        stream.is_read_out |= ack == Ack::All;
        let charge = match ack {
            Ack::Bytes(bytes) => stream.read(bytes.into()),
            Ack::All => {
                stream.pieces.clear();
                stream.unread
            }
        };
        stream.unread -= charge;
        let (client, is_over) = (stream.client, stream.is_ended && stream.unread == 0);
        self.subtract(client, charge);
        if is_over {
            self.streams.remove(&number);
            self.ended.retain(|it| *it != number);
        }
    }

    fn subtract(&mut self, client: u32, bytes: u64) {
        self.unread -= bytes;
        if let Some(of_client) = self.clients.get_mut(&client) {
            *of_client -= bytes;
            if *of_client == 0 {
                self.clients.remove(&client);
            }
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(stream) = self.streams.remove(&number) {
            self.subtract(stream.client, stream.unread);
        }
    }

    /// Notes that this side sends nothing more for the stream. Unread bytes still fill the window.
    fn end(&mut self, number: u64) {
        match self.streams.get_mut(&number) {
            Some(stream) if stream.unread > 0 => {
                stream.is_ended = true;
                stream.waker = None;
                self.ended.push_back(number);
            }
            _ => self.remove(number),
        }
        // Limits memory if the other side does not acknowledge.
        while self.ended.len() > ENDED_MAX {
            let oldest = self.ended.pop_front();
            oldest.into_iter().for_each(|number| self.remove(number));
        }
    }
}

impl SentStream {
    /// Takes `bytes` that were read from the pieces; returns the freed share.
    fn read(&mut self, mut bytes: u64) -> u64 {
        let mut charge = 0;
        while let Some(piece) = self.pieces.front_mut() {
            if piece.bytes > bytes {
                piece.bytes -= bytes;
                let left = piece.bytes.max(CHARGE_MIN).min(piece.charge);
                charge += piece.charge - left;
                piece.charge = left;
                break;
            }
            bytes -= piece.bytes;
            charge += piece.charge;
            self.pieces.pop_front();
        }
        charge
    }
}

/// Content that this side sends in a stream. Dropped when the content is complete.
#[derive(Debug)]
pub struct SendTurn {
    turns: Arc<Turns>,
    /// `None`: the stream waits for no turn.
    number: Option<u64>,
}

impl SendTurn {
    /// Ready when the next content piece may be sent.
    pub fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let Some(number) = self.number else {
            return Poll::Ready(());
        };
        let mut sending = self.turns.sending();
        let has_turn = sending
            .streams
            .get(&number)
            .is_none_or(|stream| sending.has_turn(stream));
        if has_turn {
            return Poll::Ready(());
        }
        if let Some(stream) = sending.streams.get_mut(&number) {
            stream.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The largest piece to send in a turn, bytes. A larger piece would fill the client's share, or
    /// the window, at once.
    pub fn piece_max(&self) -> usize {
        let window = self.number.and_then(|_| self.turns.sending().window);
        let most = window.map(|window| (window / PIECE_PART).max(PIECE_MIN));
        most.map_or(usize::MAX, |most| {
            usize::try_from(most).unwrap_or(usize::MAX)
        })
    }

    /// Notes that `bytes` of content, at most [`SendTurn::piece_max`], were sent.
    pub fn sent(&self, bytes: usize) {
        if let Some(number) = self.number.filter(|_| bytes > 0) {
            self.turns.sending().add(number, bytes as u64);
        }
    }
}

impl Drop for SendTurn {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let mut sending = self.turns.sending();
            sending.end(number);
            let wakers = sending.turned();
            drop(sending);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

/// Content that this side reads in a stream. Dropped when nothing more will be read.
#[derive(Debug)]
pub struct ReadTurn {
    turns: Arc<Turns>,
    number: u64,
}

impl ReadTurn {
    /// Notes that `bytes` of content were read.
    pub fn read(&self, bytes: usize) {
        if bytes > 0 {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            self.turns.note_read(self.number, Ack::Bytes(bytes), false);
        }
    }
}

impl Drop for ReadTurn {
    fn drop(&mut self) {
        self.turns.note_read(self.number, Ack::All, false);
    }
}

/// A client may have 1/`CLIENT_PART` of the free bytes: a quarter of the window if it is the only
/// client. With 8 MiB this is 2 MiB, which a single stream may have anyway.
const CLIENT_PART: u64 = 3;
/// Limit for the first pieces in a client's streams, as 1/`NEW_PART` of the free bytes: a third of
/// the window. So with 8 MiB ten streams can start while others hold the whole share.
const NEW_PART: u64 = 2;
/// Assumed size for the first piece: the usual piece size for readers, or a part of a small window.
const FIRST_BYTES: u64 = 64 << 10;
const FIRST_PART: u64 = 32;
/// Minimum charge for a piece, bytes. h2 adds up how far unread frames are below 256 bytes, and
/// closes the connection if the sum is more than half the window. Without this minimum, a client
/// that does not read a stream with short events would close the link.
const CHARGE_MIN: u64 = 512;
/// No piece is larger than 1/`PIECE_PART` of the window.
const PIECE_PART: u64 = 16;
/// Minimum piece size: the other side may have a window with a sixteenth smaller than a frame.
const PIECE_MIN: u64 = 1 << 10;
/// A stream may have this many times the rest of the client's share.
const STREAM_FACTOR: u64 = 3;
/// Read bytes that trigger an acknowledgement: at 10 Mbit/s 20 times a second.
const ACK_BYTES: u64 = 64 << 10;
/// With a small window, 1/`ACK_PART` of the window triggers it.
const ACK_PART: u32 = 32;
/// How many acknowledgements may wait for something else to be sent.
const ACKS_WAITING: usize = 64;
/// Finished streams that may be unread: more than a connection has streams.
const ENDED_MAX: usize = 4096;
/// Streams that are remembered because they were given up before anything was sent: as many as a
/// link has.
const READ_OUT_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u32 = 8 << 20;
    const PIECE: usize = 64 << 10;

    fn turns() -> Arc<Turns> {
        let turns = Turns::new(WINDOW);
        turns.begin(WINDOW);
        turns
    }

    fn stream(turns: &Arc<Turns>, client: u32) -> SendTurn {
        turns.send(turns.next(client))
    }

    /// Sends as long as it is the turn of one of `streams`; how many bytes.
    fn fill(streams: &[SendTurn]) -> usize {
        let cx = Context::from_waker(Waker::noop());
        let mut sent = 0;
        while let Some(stream) = streams.iter().find(|it| it.poll(&cx).is_ready()) {
            stream.sent(PIECE);
            sent += PIECE;
        }
        sent
    }

    #[test]
    fn unread_streams_of_one_client_leave_most_of_the_window_to_others() {
        let turns = turns();
        let greedy: Vec<_> = (0..250).map(|_| stream(&turns, 1)).collect();
        let held = fill(&greedy);
        assert!(held <= WINDOW as usize / 3, "{held}");
        let other = [stream(&turns, 2)];
        assert!(fill(&other) >= 1 << 20, "one transfer fills a long line");
        let alone = self::turns();
        let one = fill(&[stream(&alone, 1)]);
        assert!((1_600_000..2 << 20).contains(&one), "{one}");
    }

    #[test]
    fn many_clients_that_do_not_read_still_leave_room_to_one_more() {
        let turns = turns();
        let held: Vec<_> = (1..16).map(|client| [stream(&turns, client)]).collect();
        let all: usize = held.iter().map(|streams| fill(streams)).sum();
        assert!(all < WINDOW as usize);
        assert!(fill(&[stream(&turns, 99)]) >= PIECE);
    }

    #[test]
    fn what_has_ended_fills_the_window_until_it_is_read() {
        let turns = turns();
        let cx = Context::from_waker(Waker::noop());
        let mut numbers = Vec::new();
        loop {
            let turn = turns.next(1);
            let stream = turns.send(turn);
            if stream.poll(&cx).is_pending() {
                break;
            }
            stream.sent(PIECE);
            numbers.push(turn.number);
        }
        assert!(
            numbers.len() <= 42,
            "short responses count too: {}",
            numbers.len()
        );
        turns.acknowledged(numbers[0], Ack::All);
        turns.acknowledged(numbers[1], Ack::Bytes(u32::MAX));
        assert!(stream(&turns, 1).poll(&cx).is_ready());
        for number in numbers {
            turns.acknowledged(number, Ack::All);
        }
        let sending = turns.sending();
        assert_eq!((sending.unread, sending.streams.len()), (0, 0));
        assert!(sending.clients.is_empty() && sending.ended.is_empty());
    }

    #[test]
    fn a_new_stream_begins_while_others_of_its_client_hold_the_share() {
        let turns = turns();
        let large: Vec<_> = (0..3).map(|_| stream(&turns, 1)).collect();
        fill(&large);
        let cx = Context::from_waker(Waker::noop());
        assert!(large.iter().all(|it| it.poll(&cx).is_pending()));
        let turn = turns.next(1);
        let small = turns.send(turn);
        for _ in 0..100 {
            assert!(small.poll(&cx).is_ready());
            small.sent(PIECE);
            assert!(small.poll(&cx).is_pending(), "a piece at a time");
            turns.acknowledged(turn.number, Ack::Bytes(u32::MAX));
        }
        // Unread ones get no further than a third of the window.
        let more: Vec<_> = (0..250).map(|_| stream(&turns, 1)).collect();
        let begun = fill(&more) / PIECE;
        assert!((5..=11).contains(&begun), "{begun}");
        assert!(turns.sending().unread <= u64::from(WINDOW / 3));
    }

    #[test]
    fn no_share_is_exceeded_by_a_piece() {
        for (window, wanted) in [
            (256 << 10, PIECE),
            (256 << 10, usize::MAX),
            (1 << 20, PIECE),
            (2 << 20, PIECE),
            (WINDOW, PIECE),
        ] {
            let turns = Turns::new(window);
            turns.begin(window);
            let streams: Vec<_> = (0..9).map(|_| stream(&turns, 1)).collect();
            let cx = Context::from_waker(Waker::noop());
            let piece = streams[0].piece_max().min(wanted);
            assert!(piece >= (window as usize / 16).min(PIECE));
            // Each has begun, so none is new.
            while let Some(it) = streams.iter().find(|it| it.poll(&cx).is_ready()) {
                it.sent(piece);
            }
            let held = turns.sending().unread;
            let most = u64::from(window / 3) + piece as u64;
            assert!(held <= most, "{held} of {window}");
            // So each further client finds room.
            let held: Vec<_> = (2..9).map(|client| stream(&turns, client)).collect();
            for it in &held {
                assert!(it.poll(&cx).is_ready());
                it.sent(piece);
            }
            assert!(turns.sending().unread < u64::from(window));
        }
    }

    #[test]
    fn short_pieces_fill_no_more_than_a_share_of_what_the_other_end_keeps_of_them() {
        for window in [256 << 10, WINDOW] {
            let turns = Turns::new(window);
            turns.begin(window);
            let cx = Context::from_waker(Waker::noop());
            let turn = turns.next(1);
            let stream = turns.send(turn);
            let (mut sent, mut all) = (0, 0_u64);
            while stream.poll(&cx).is_ready() {
                stream.sent(3);
                sent += 1;
                assert!(sent < 1_000_000);
            }
            // h2 keeps what each is shorter than 256 bytes, and takes half of the window for that.
            assert!(sent * 253 < u64::from(window) / 2 / 3, "{sent} pieces");
            all += sent;
            // Half of a piece, and the rest of it with the next one.
            for bytes in [1, 5] {
                turns.acknowledged(turn.number, Ack::Bytes(bytes));
            }
            all -= 2;
            let sending = turns.sending();
            assert_eq!(sending.unread, all * CHARGE_MIN);
            assert_eq!(sending.streams[&turn.number].pieces.len() as u64, all);
            drop(sending);
            turns.acknowledged(turn.number, Ack::Bytes(u32::MAX));
            assert_eq!(turns.sending().unread, 0);
            assert!(stream.poll(&cx).is_ready());
        }
    }

    #[test]
    fn what_is_sent_of_a_stream_that_is_given_up_takes_nothing_of_the_share() {
        let turns = turns();
        let cx = Context::from_waker(Waker::noop());
        let hold = |turn: LinkTurn, stream: SendTurn| {
            for _ in 0..100 {
                assert!(stream.poll(&cx).is_ready());
                stream.sent(PIECE);
            }
            drop(stream);
            let sending = turns.sending();
            assert!(!sending.streams.contains_key(&turn.number));
            assert_eq!((sending.unread, sending.clients.len()), (0, 0));
            assert!(sending.ended.is_empty());
        };
        // Given up under way.
        let turn = turns.next(1);
        let stream = turns.send(turn);
        stream.sent(PIECE);
        turns.acknowledged(turn.number, Ack::All);
        hold(turn, stream);
        // Given up before anything was sent.
        let turn = turns.next(1);
        turns.acknowledged(turn.number, Ack::All);
        hold(turn, turns.send(turn));
        for number in (1 << 40..).take(3 * READ_OUT_MAX) {
            turns.acknowledged(number, Ack::All);
        }
        assert_eq!(turns.sending().read_out.len(), READ_OUT_MAX);
    }

    #[test]
    fn an_end_that_takes_no_frames_makes_us_keep_few_acknowledgements() {
        let turns = turns();
        for n in (0..).take(3 * ENDED_MAX) {
            drop(turns.read(turns.next(n)));
        }
        assert_eq!(turns.reading().acks.len(), ENDED_MAX);
    }

    #[test]
    fn an_end_that_acknowledges_nothing_or_anything_makes_us_keep_little() {
        let turns = turns();
        for n in (0..).take(3 * ENDED_MAX) {
            let turn = turns.next(n);
            turns.send(turn).sent(10);
            turns.acknowledged(turn.number + 7, Ack::Bytes(u32::MAX));
        }
        let sending = turns.sending();
        assert_eq!(sending.streams.len(), ENDED_MAX);
        assert_eq!(sending.unread, CHARGE_MIN * ENDED_MAX as u64);
        drop(sending);
        // A number that is used twice.
        let turn = turns.next(1);
        let streams = [turns.send(turn), turns.send(turn)];
        assert_eq!(streams[1].number, None);
    }

    #[test]
    fn an_end_of_an_older_version_is_sent_all_at_once_and_gets_no_acknowledgement() {
        let turns = Turns::new(WINDOW);
        let cx = Context::from_waker(Waker::noop());
        let stream = stream(&turns, 1);
        for _ in 0..1000 {
            assert!(stream.poll(&cx).is_ready());
            stream.sent(PIECE);
        }
        turns.read(turns.next(1)).read(1 << 20);
        assert_eq!(turns.take_acks(9, Waker::noop()), []);
        assert!(turns.sending().streams.is_empty());
    }

    #[test]
    fn short_pieces_that_were_read_are_acknowledged_before_the_other_end_waits_for_that() {
        for window in [256 << 10, WINDOW] {
            let turns = Turns::new(window);
            turns.begin(window);
            let woken = Arc::new(Woken::default());
            turns.take_acks(1, &Waker::from(Arc::clone(&woken)));
            let turn = turns.next(1);
            let (sending, reading) = (turns.send(turn), turns.read(turn));
            let cx = Context::from_waker(Waker::noop());
            while sending.poll(&cx).is_ready() {
                sending.sent(3);
                reading.read(3);
            }
            assert!(woken.0.load(Ordering::Relaxed));
        }
    }

    #[derive(Default)]
    struct Woken(std::sync::atomic::AtomicBool);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_was_read_is_acknowledged_once() {
        let turns = turns();
        let [one, two] = [turns.next(1), turns.next(1)];
        let (reading, other) = (turns.read(one), turns.read(two));
        reading.read(5);
        reading.read(6);
        other.read(7);
        drop(other);
        let mut acks = turns.take_acks(9, Waker::noop());
        acks.sort_by_key(|(number, _)| *number);
        assert_eq!(acks, [(one.number, Ack::Bytes(11)), (two.number, Ack::All)]);
        assert_eq!(turns.take_acks(9, Waker::noop()), []);
        assert_eq!(turns.reading().worth, 0);
    }
}
