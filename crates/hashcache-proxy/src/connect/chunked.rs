//! One end of a TCP stream over a link, sent as literals and references to chunks.
//!
//! The end at the parent is started by `connect` after a CONNECT that offers chunks, the end at the
//! child by `server/forward_listener`. The codec is `hashcache_wan::chunk`; this module moves the
//! bytes, and reads and writes extents in the store of this box.
//!
//! Invariants: as for a tunnel, the close of one direction is forwarded for that direction only,
//! and a broken side resets the other. Bytes from the link are read even while the near end accepts
//! none; the windows bound the bytes held. A stream finishes without error only when all content
//! has arrived on both sides. Memory for all that is reserved before the start
//! (`Windows::memory_bytes`).
//! Cost: that of the codec, and a store read for each run of references.

use std::cell::RefCell;
use std::future::{IntoFuture as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hashcache::{Cache, Put};
use hashcache_base::share::{Allowance, ShareReservation};
use hashcache_link::chunk_field::ChunkField;
use hashcache_link::counters::LinkCounters;
use hashcache_wan::chunk::{self, Event, Key, Known, Name, Near, OUTPUT_BYTES, Stream, Windows};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tracing::debug;

use super::tunnel::{CLOSE_TIME, REPORT_EVERY, Side};

/// Content that one end of a stream has moved so far, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) from_near: u64,
    pub(crate) to_near: u64,
}

/// Reason why a stream was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Both directions were closed.
    Finished,
    /// No byte moved for the idle time.
    Idle,
    /// The process stops, and the drain time is over; or the link is gone.
    Drained,
    /// One side has failed.
    Broke,
}

/// Settings that both ends of a stream have agreed on, and the state that this end uses.
pub(crate) struct ChunkPair {
    pub(crate) key: Key,
    pub(crate) windows: Windows,
    /// The chunks that the other box has.
    pub(crate) known: Arc<Known>,
    pub(crate) cache: Cache,
    pub(crate) counters: Arc<LinkCounters>,
    /// For the windows and the codec.
    pub(crate) _memory: ShareReservation,
}

/// Reserves memory for one end of a stream, within the client's share, and returns the windows that
/// it allows. If little memory is left, the windows are small; if too little is left, the stream
/// cannot be coded.
pub(crate) fn reserve(
    allowance: &Allowance,
    share_max: u64,
) -> Option<(Windows, ShareReservation)> {
    WINDOWS.into_iter().find_map(|(bytes, rest_eighths)| {
        let windows = Windows::both(bytes);
        let memory = windows.memory_bytes() + BUFFER_BYTES;
        let rest = share_max / 8 * rest_eighths;
        let fits = allowance.share().leaves(memory, rest);
        let reserved = fits.then(|| allowance.reserve_bulk(memory)).flatten();
        Some((windows, reserved?))
    })
}

/// The windows for an end that may use `own`, if the other end has sent `other`.
pub(crate) fn agreed(own: Windows, other: &ChunkField) -> Windows {
    Windows {
        send: own.send.min(other.window),
        ..own
    }
}

/// Forwards between the near end and the link until both directions are closed. `drained` and
/// `progress` are as in `tunnel::run`; `near` is the client at a child, the upstream at a parent.
pub(crate) async fn run<N, L>(
    mut near: N,
    mut link: L,
    pair: ChunkPair,
    idle_time: Duration,
    drained: impl Future<Output = ()>,
    mut progress: impl FnMut(Moved),
) -> (Moved, Ended)
where
    N: Side,
    L: Side,
{
    let mut carrier = Carrier::new(pair);
    let mut drained = pin!(drained);
    let mut last_moved = Instant::now();
    let mut report_at = last_moved + REPORT_EVERY;
    let ended = loop {
        tokio::select! {
            biased;
            ended = poll_fn(|cx| carrier.poll(cx, &mut near, &mut link)) => match ended {
                Ok(Turn::Done) => break Ended::Finished,
                Ok(Turn::Again) => {
                    carrier.count();
                    last_moved = Instant::now();
                    // A busy stream must not keep other tasks off the core.
                    tokio::task::yield_now().await;
                }
                Err(Broken::Near | Broken::Link) => break Ended::Broke,
            },
            () = &mut drained => break Ended::Drained,
            () = sleep_until(report_at) => {
                progress(carrier.moved);
                report_at += REPORT_EVERY;
            }
            () = sleep_until(last_moved + idle_time) => break Ended::Idle,
        }
    };
    carrier.count();
    let moved = carrier.moved;
    let is_at_rest = carrier.is_at_rest();
    // Another stream may use this memory while this stream waits to be closed.
    drop(carrier);
    match ended {
        Ended::Finished => close(&mut near, &mut link).await,
        // Close an idle connection like an idle tunnel.
        Ended::Idle if is_at_rest => {
            let _ = timeout(CLOSE_TIME, near.shutdown()).await;
            link.reset();
        }
        // Not all bytes have arrived, or more may be in transit.
        Ended::Idle | Ended::Drained | Ended::Broke => {
            near.reset();
            link.reset();
        }
    }
    (moved, ended)
}

/// Closes the link stream, and reads until the other end closes it, so that HTTP/2 does not reset
/// the stream.
async fn close(near: &mut impl Side, link: &mut impl Side) {
    let closing = async {
        let _ = near.shutdown().await;
        let _ = link.shutdown().await;
        // Nothing but the end of stream may arrive.
        let mut buffer = [0; 64];
        let mut buffer = ReadBuf::new(&mut buffer);
        let _ = poll_fn(|cx| Pin::new(&mut *link).poll_read(cx, &mut buffer)).await;
    };
    let _ = timeout(LINK_CLOSE_TIME, closing).await;
}

/// Result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Bytes have moved.
    Again,
    /// Both directions are closed.
    Done,
}

/// The side that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Near,
    Link,
}

/// Bytes that wait to be written.
#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    written: usize,
    written_in_all: u64,
    /// Written bytes may still be buffered in a lower layer.
    unflushed: bool,
}

/// One end of a stream.
struct Carrier {
    stream: Stream,
    pair: ChunkPair,
    to_near: Waiting,
    to_link: Waiting,
    from_near: Reading,
    from_link: Reading,
    to_near_end: ToNearEnd,
    lookup: Option<Lookup>,
    /// Timer that sends the collected bytes when the near end pauses.
    flush: Option<FlushTimer>,
    /// Bytes read from the near end until the last pause.
    read_at_pause: u64,
    /// Number of stored extents from this stream; it gives their group.
    extents: u64,
    group: u64,
    moved: Moved,
    /// Bytes on the link, in and out, that are not yet counted.
    wire: [u64; 2],
    counted: [chunk::Carried; 2],
}

/// Content of an extent from the store; `None`: the store does not have it.
type Lookup = Pin<Box<dyn Future<Output = Option<Vec<u8>>>>>;

/// Read state of a side: more may arrive, or the side has finished.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Open,
    Ended,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ToNearEnd {
    Open,
    /// The far end has sent all bytes; the FIN follows the last of them.
    Ending,
    Ended,
}

struct FlushTimer {
    sleep: Pin<Box<Sleep>>,
    /// Time at which the first unsent byte was collected.
    since: Instant,
}

impl Carrier {
    fn new(pair: ChunkPair) -> Self {
        Self {
            stream: Stream::new(pair.key, pair.windows),
            pair,
            to_near: Waiting::default(),
            to_link: Waiting::default(),
            from_near: Reading::Open,
            from_link: Reading::Open,
            to_near_end: ToNearEnd::Open,
            lookup: None,
            flush: None,
            read_at_pause: 0,
            extents: 0,
            // Any number that other streams do not use; 0 would mean no group.
            group: fastrand::u64(..) | 1,
            moved: Moved::default(),
            wire: [0; 2],
            counted: [chunk::Carried::default(); 2],
        }
    }

    /// Ready when bytes have moved or the stream is closed.
    fn poll<N, L>(
        &mut self,
        cx: &mut Context<'_>,
        near: &mut N,
        link: &mut L,
    ) -> Poll<Result<Turn, Broken>>
    where
        N: AsyncRead + AsyncWrite + Unpin,
        L: AsyncRead + AsyncWrite + Unpin,
    {
        let mut has_moved = false;
        for _ in 0..TURNS {
            let mut moves = self.poll_store(cx);
            let waited = self.lookup.is_some();
            self.poll_events()?;
            // A lookup runs only if it is polled: otherwise nothing would wake this task.
            moves |= !waited && self.lookup.is_some();
            if self.is_cut_short() {
                return Poll::Ready(Err(Broken::Link));
            }
            let near_ended = self.to_near.poll(cx, near).map_err(|_| Broken::Near)?;
            moves |= near_ended.moved;
            if self.to_near_end == ToNearEnd::Ending && near_ended.is_empty {
                match Pin::new(&mut *near).poll_shutdown(cx) {
                    Poll::Ready(Ok(())) => {
                        self.to_near_end = ToNearEnd::Ended;
                        moves = true;
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Broken::Near)),
                    Poll::Pending => {}
                }
            }
            moves |= self.poll_near(cx, near)?;
            let to_link = self.to_link.poll(cx, link).map_err(|_| Broken::Link)?;
            moves |= to_link.moved;
            let is_done = self.stream.is_done() && self.to_near_end == ToNearEnd::Ended;
            if is_done && to_link.is_empty {
                return Poll::Ready(Ok(Turn::Done));
            }
            moves |= self.poll_link(cx, link)?;
            has_moved |= moves;
            if !moves {
                break;
            }
        }
        if has_moved {
            Poll::Ready(Ok(Turn::Again))
        } else {
            Poll::Pending
        }
    }

    /// Returns true if nothing waits for either side.
    fn is_at_rest(&self) -> bool {
        let is_silent = self.to_near.is_empty() && self.to_link.is_empty();
        let is_sent = !self.stream.has_unsent() && !self.stream.has_waiting();
        is_silent && is_sent && self.lookup.is_none()
    }

    /// Returns true if the link closed before both directions did. The other end closes the stream
    /// when all was acknowledged; the near end may take the last bytes later.
    fn is_cut_short(&self) -> bool {
        self.from_link == Reading::Ended
            && self.lookup.is_none()
            && self.to_near.is_empty()
            && !self.stream.is_done()
    }

    /// Gives the codec the result of the store lookup.
    fn poll_store(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(lookup) = &mut self.lookup else {
            return false;
        };
        let Poll::Ready(found) = lookup.as_mut().poll(cx) else {
            return false;
        };
        self.lookup = None;
        self.stream.give(found.as_deref());
        true
    }

    /// Takes all available events from the codec.
    fn poll_events(&mut self) -> Result<(), Broken> {
        while self.lookup.is_none() {
            self.stream.set_near(if self.to_near.is_empty() {
                Near::Takes
            } else {
                Near::Full
            });
            let event = self.stream.next(&self.pair.known, &mut self.to_link.bytes);
            match event.map_err(broken)? {
                Event::More => return Ok(()),
                Event::Wants(name) => {
                    self.lookup = Some(look_up(&self.pair, name));
                }
                Event::Store(name, extent) => {
                    let group = self.group.wrapping_add(2 * (self.extents / GROUP_EXTENTS));
                    self.extents += 1;
                    let put = Put {
                        length: Some(extent.len() as u64),
                        group,
                        ..Put::metadata(EXTENT_METADATA)
                    };
                    // If the put fails, the extent is requested again when the other end refers to
                    // it.
                    let _ = self
                        .pair
                        .cache
                        .put(&self.pair.key.object(name), put, extent);
                }
                Event::Content(content) => {
                    self.moved.to_near += content.len() as u64;
                    self.to_near.bytes.extend_from_slice(content);
                }
                Event::Finished => self.to_near_end = ToNearEnd::Ending,
            }
        }
        Ok(())
    }

    /// Reads from the near end while the window and the output have room.
    fn poll_near<N>(&mut self, cx: &mut Context<'_>, near: &mut N) -> Result<bool, Broken>
    where
        N: AsyncRead + Unpin,
    {
        let mut has_read = false;
        let begun = self.moved.from_near;
        // Extents to store are held until the next turn, and until a lookup has finished.
        while self.from_near == Reading::Open
            && self.lookup.is_none()
            && self.to_link.bytes.len() < OUTPUT_BYTES
            && self.moved.from_near - begun < READ_BYTES_MAX
        {
            let room = self.stream.room();
            if room == 0 {
                // Collected bytes wait for the acknowledgement that opens the window: a flush would
                // cut a chunk at each acknowledgement. If no acknowledgement is sure to arrive, the
                // bytes must be sent now.
                if !self.stream.awaits_acknowledgement() {
                    self.send_collected()?;
                }
                return Ok(has_read);
            }
            let read = SCRATCH.with_borrow_mut(|scratch| {
                let room = room.min(scratch.len());
                let mut buffer = ReadBuf::new(&mut scratch[..room]);
                match Pin::new(&mut *near).poll_read(cx, &mut buffer) {
                    Poll::Pending => return Ok(None),
                    Poll::Ready(Err(_)) => return Err(Broken::Near),
                    Poll::Ready(Ok(())) => {}
                }
                let (known, out) = (&self.pair.known, &mut self.to_link.bytes);
                let pushed = self.stream.push(buffer.filled(), known, out);
                pushed.map(Some).map_err(broken)
            })?;
            match read {
                Some(0) => {
                    self.from_near = Reading::Ended;
                    self.flush = None;
                    let (known, out) = (&self.pair.known, &mut self.to_link.bytes);
                    self.stream.finish(known, out).map_err(broken)?;
                    return Ok(true);
                }
                Some(bytes) => {
                    self.moved.from_near += bytes as u64;
                    has_read = true;
                }
                None => break,
            }
        }
        self.poll_flush(cx, has_read)?;
        Ok(has_read)
    }

    /// Sends the collected bytes when the near end has paused.
    fn poll_flush(&mut self, cx: &mut Context<'_>, has_read: bool) -> Result<(), Broken> {
        if !self.stream.has_unsent() || self.from_near == Reading::Ended {
            self.flush = None;
            return Ok(());
        }
        let now = Instant::now();
        let pause = if self.moved.from_near - self.read_at_pause >= BULK_BYTES {
            BULK_PAUSE
        } else {
            PAUSE
        };
        let timer = self.flush.get_or_insert_with(|| FlushTimer {
            sleep: Box::pin(sleep(pause)),
            since: now,
        });
        if has_read {
            let at = (now + pause).min(timer.since + COLLECT_TIME);
            timer.sleep.as_mut().reset(at);
        }
        if timer.sleep.as_mut().poll(cx).is_ready() {
            self.read_at_pause = self.moved.from_near;
            self.send_collected()?;
        }
        Ok(())
    }

    fn send_collected(&mut self) -> Result<(), Broken> {
        self.flush = None;
        let out = &mut self.to_link.bytes;
        self.stream.flush(out).map_err(broken)
    }

    /// Reads from the link, unless the codec waits for the store.
    fn poll_link<L>(&mut self, cx: &mut Context<'_>, link: &mut L) -> Result<bool, Broken>
    where
        L: AsyncRead + Unpin,
    {
        if self.to_link.bytes.len() > OUTPUT_BYTES_MAX {
            debug!("the other end of a stream in chunks asks and does not read");
            return Err(Broken::Link);
        }
        if self.lookup.is_some() || self.from_link == Reading::Ended {
            return Ok(false);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            match Pin::new(link).poll_read(cx, &mut buffer) {
                Poll::Pending => Ok(false),
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.wire[0] += buffer.filled().len() as u64;
                    self.stream.push_link(buffer.filled());
                    Ok(true)
                }
                Poll::Ready(Err(_)) if !self.stream.is_done() => Err(Broken::Link),
                // The close may be too early: the bytes that arrived before it must be read first.
                Poll::Ready(_) => {
                    self.from_link = Reading::Ended;
                    Ok(true)
                }
            }
        })
    }

    /// Adds the bytes moved since the last call to the link counters.
    fn count(&mut self) {
        self.wire[1] += std::mem::take(&mut self.to_link.written_in_all);
        let now = self.stream.carried();
        self.pair
            .counters
            .note_chunks(&self.counted, &now, std::mem::take(&mut self.wire));
        self.counted = now;
    }
}

/// Result of a write: tells whether bytes moved, and if more wait.
#[derive(Clone, Copy)]
struct Written {
    moved: bool,
    is_empty: bool,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Writes as much as `to` accepts.
    fn poll<W>(&mut self, cx: &mut Context<'_>, to: &mut W) -> io::Result<Written>
    where
        W: AsyncWrite + Unpin,
    {
        let mut moved = false;
        while let Some(rest) = self.bytes.get(self.written..).filter(|it| !it.is_empty()) {
            match Pin::new(&mut *to).poll_write(cx, rest) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(written)) => {
                    self.written += written;
                    self.written_in_all += written as u64;
                    moved = true;
                    self.unflushed = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        if self.written == self.bytes.len() {
            // A silent stream holds no buffer.
            (self.bytes, self.written) = (Vec::new(), 0);
        } else if self.written >= DRAINED_BYTES {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
        if self.unflushed && self.bytes.is_empty() {
            match Pin::new(to).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {}
            }
        }
        Ok(Written {
            moved,
            is_empty: self.bytes.is_empty() && !self.unflushed,
        })
    }
}

fn broken(reason: hashcache_wan::error::Reason) -> Broken {
    debug!(%reason, "a stream in chunks is broken");
    Broken::Link
}

/// Looks an extent up in the store of this box.
fn look_up(pair: &ChunkPair, name: Name) -> Lookup {
    let lookup = pair.cache.get(&pair.key.object(name)).into_future();
    Box::pin(async move {
        let hit = lookup.await?;
        let length = hit
            .content_len()
            .filter(|bytes| *bytes <= chunk::EXTENT_BYTES_MAX as u64)?;
        let mut reader = hit.reader(0..length);
        let mut extent = Vec::new();
        while let Some(piece) = poll_fn(|cx| reader.poll_next(cx)).await {
            extent.extend_from_slice(&piece.ok()?);
        }
        Some(extent)
    })
}

thread_local! {
    /// The read buffer for all streams on a core; never held across an await.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into());
}

const SCRATCH_BYTES: usize = 16 << 10;
/// Number of written bytes at which they are removed from the front of a buffer.
const DRAINED_BYTES: usize = 16 << 10;
/// Content that waits for the near end (a block), and frames that wait for the link.
const BUFFER_BYTES: u64 = (256 << 10) + OUTPUT_BYTES_MAX as u64;
/// Frames that wait for the link at most, bytes: a block, an answer, and in addition to the usual
/// frames all requests for content that this end lacks.
const OUTPUT_BYTES_MAX: usize = 768 << 10;
/// Content that is read from the near end in one turn.
const READ_BYTES_MAX: u64 = 256 << 10;
/// Windows that are tried, bytes: the largest, a window for 10 Mbit/s over 600 ms without savings,
/// and the smallest; each with the eighths of the client's share that must stay free. So a few
/// streams do not take the memory that many could use, and tunnels that pass unchanged, which need
/// little, always fit.
const WINDOWS: [(u64, u64); 3] = [(Windows::BYTES_MAX, 6), (1 << 20, 4), (0, 1)];
/// Turns of a poll before other tasks on the core get theirs.
const TURNS: usize = 16;
/// A near end that sends nothing for this time has paused. A shorter time would cut a bulk transfer
/// wherever its sender waits for a moment; a longer time would delay database answers.
const PAUSE: Duration = Duration::from_millis(2);
/// A near end that has sent this number of bytes without a pause makes a bulk transfer.
const BULK_BYTES: u64 = 256 << 10;
/// Pause in a bulk transfer: longer, because nobody waits for a part of it.
const BULK_PAUSE: Duration = Duration::from_millis(10);
/// Maximum time that a collected byte waits while more bytes arrive.
const COLLECT_TIME: Duration = Duration::from_millis(100);
/// Time for the other end's close to arrive over a slow line.
const LINK_CLOSE_TIME: Duration = Duration::from_secs(10);
/// Extents in a group: about 1 MiB, so that a run of them is one read.
const GROUP_EXTENTS: u64 = 16;
/// The metadata of a stored response never starts with this byte.
const EXTENT_METADATA: &[u8] = b"c";

#[cfg(test)]
mod tests;
