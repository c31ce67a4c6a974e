//! A tunnel: forwards bytes both ways between a client and an upstream without interpreting them.
//!
//! `connect` calls it after a 200 to `CONNECT`, and for upgraded connections. A single task serves
//! both directions. Bytes are written as soon as they are read, so a silent tunnel holds no buffer,
//! and a slow receiver slows the sender down.
//!
//! Invariants: the close (FIN) of one direction is forwarded for that direction only. When one side
//! breaks, or the process or a child's link shuts down, the other side gets a reset: the bytes so
//! far are not complete, and many protocols detect the end of data only by the close. A tunnel in
//! which no byte moves for the idle time is closed in both directions; with a reset, if bytes wait
//! for a receiver.
//! Cost: one copy per byte; memory only for bytes that a slow receiver has not taken, at most 16
//! KiB per direction.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hashcache_upstream::Switched;
use hashcache_upstream::channel::Channel;
use hashcache_wire::Socket;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, sleep_until, timeout};

use crate::connection::Connection;
use crate::log_entry::TunnelEntryBuilder;

/// Bytes that a tunnel has forwarded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    /// From the client to the upstream.
    pub(crate) to_upstream: u64,
    /// From the upstream to the client.
    pub(crate) to_client: u64,
}

/// Reason why a tunnel was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Both directions were closed.
    Finished,
    /// No byte moved for the idle time.
    Idle,
    /// The process stops, and the drain time is over; or the link that carries the tunnel is gone.
    Drained,
    /// The client connection failed.
    ClientBroke,
    /// The upstream connection failed.
    UpstreamBroke,
}

impl Ended {
    /// Returns true if a side has failed, so that not all bytes have arrived.
    pub(crate) fn is_broken(self) -> bool {
        matches!(self, Self::ClientBroke | Self::UpstreamBroke)
    }
}

/// One side of a tunnel.
pub(crate) trait Side: AsyncRead + AsyncWrite + Unpin {
    /// Closes this side with a reset, so that the other end does not take the bytes so far as
    /// complete.
    fn reset(self);
}

impl Side for Socket {
    fn reset(self) {
        self.reset_on_drop(true);
    }
}

impl Side for Channel {
    fn reset(self) {
        Self::reset(self);
    }
}

/// A connection to an origin after a protocol switch.
impl Side for Switched {
    fn reset(self) {
        Self::reset(self);
    }
}

/// Forwards bytes between `client` and `upstream` until the tunnel closes.
///
/// `drained` resolves at the deadline of a stop. `progress` is called every five minutes, because
/// otherwise a long tunnel would not be in the log until it closes.
pub(crate) async fn run<C, U>(
    mut client: C,
    mut upstream: U,
    idle_time: Duration,
    drained: impl Future<Output = ()>,
    mut progress: impl FnMut(Carried),
) -> (Carried, Ended)
where
    C: Side,
    U: Side,
{
    let mut pump = Pump::default();
    let mut drained = pin!(drained);
    let mut last_moved = Instant::now();
    let mut report_at = last_moved + REPORT_EVERY;
    let mut check_at = last_moved + CHECK_EVERY;
    let ended = loop {
        let before = pump.carried();
        tokio::select! {
            biased;
            ended = poll_fn(|cx| pump.poll(cx, &mut client, &mut upstream)) => match ended {
                Some(ended) => break ended,
                None => last_moved = Instant::now(),
            },
            () = &mut drained => break Ended::Drained,
            () = sleep_until(report_at) => {
                progress(before);
                report_at += REPORT_EVERY;
            }
            () = sleep_until(last_moved + idle_time) => break Ended::Idle,
            () = sleep_until(check_at) => {
                if let Some(broken) = find_broken(&mut client, &mut upstream).await {
                    break broken;
                }
                check_at += CHECK_EVERY;
            }
        }
    };
    if ended.is_broken() || ended == Ended::Drained || !pump.is_at_rest() {
        client.reset();
        upstream.reset();
        return (pump.carried(), ended);
    }
    // Send FIN both ways. A peer that does not read must not delay this task: the sockets are
    // closed in any case.
    let _ = timeout(CLOSE_TIME, async {
        let _ = client.shutdown().await;
        let _ = upstream.shutdown().await;
    })
    .await;
    (pump.carried(), ended)
}

/// Returns the side with a broken write half, if there is such a side. A link stream does not wake
/// the tunnel when the other side resets it and nothing more can be read.
async fn find_broken(
    client: &mut (impl AsyncWrite + Unpin),
    upstream: &mut (impl AsyncWrite + Unpin),
) -> Option<Ended> {
    let is_broken = |flushed| matches!(flushed, Poll::Ready(Err(_)));
    poll_fn(|cx| {
        Poll::Ready(if is_broken(Pin::new(&mut *client).poll_flush(cx)) {
            Some(Ended::ClientBroke)
        } else if is_broken(Pin::new(&mut *upstream).poll_flush(cx)) {
            Some(Ended::UpstreamBroke)
        } else {
            None
        })
    })
    .await
}

/// Both directions.
#[derive(Default)]
struct Pump {
    up: Half,
    down: Half,
}

/// One direction.
#[derive(Default)]
struct Half {
    /// Bytes read and not yet written.
    pending: Vec<u8>,
    taken: usize,
    state: State,
    carried: u64,
    /// Written bytes may still be buffered in a lower layer (TLS).
    unflushed: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The reading side sent FIN, which must still be forwarded.
    Ending,
    Ended,
}

/// Which side of a direction failed.
enum Broken {
    Reading,
    Writing,
}

impl Pump {
    /// Ready with the reason when the tunnel closes, and with `None` after a burst of bytes, so
    /// that the timers are checked while a tunnel is busy.
    fn poll<C, U>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut C,
        upstream: &mut U,
    ) -> Poll<Option<Ended>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
        U: AsyncRead + AsyncWrite + Unpin,
    {
        let before = self.carried();
        let up = match self.up.poll(cx, client, upstream) {
            Poll::Ready(Err(Broken::Reading)) => return Poll::Ready(Some(Ended::ClientBroke)),
            Poll::Ready(Err(Broken::Writing)) => return Poll::Ready(Some(Ended::UpstreamBroke)),
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        };
        let down = match self.down.poll(cx, upstream, client) {
            Poll::Ready(Err(Broken::Reading)) => return Poll::Ready(Some(Ended::UpstreamBroke)),
            Poll::Ready(Err(Broken::Writing)) => return Poll::Ready(Some(Ended::ClientBroke)),
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        };
        if self.up.state == State::Ended && self.down.state == State::Ended {
            return Poll::Ready(Some(Ended::Finished));
        }
        // A direction that is ready and still open has used up the turn and needs another poll.
        let again = (up.is_ready() && self.up.state != State::Ended)
            || (down.is_ready() && self.down.state != State::Ended);
        if again || self.carried() != before {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }

    /// Returns true if no bytes wait for a receiver.
    fn is_at_rest(&self) -> bool {
        self.up.pending.is_empty() && self.down.pending.is_empty()
    }

    fn carried(&self) -> Carried {
        Carried {
            to_upstream: self.up.carried,
            to_client: self.down.carried,
        }
    }
}

impl Half {
    /// Forwards bytes until one side would block, the direction closes, or the turn is over.
    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
    ) -> Poll<Result<(), Broken>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        for _ in 0..READS_PER_TURN {
            if self.state == State::Ended {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_pending(cx, to)).map_err(|_| Broken::Writing)?;
            if self.state == State::Ending {
                ready!(Pin::new(&mut *to).poll_shutdown(cx)).map_err(|_| Broken::Writing)?;
                self.state = State::Ended;
                return Poll::Ready(Ok(()));
            }
            match self.poll_read(cx, from, to)? {
                Poll::Ready(()) => {}
                Poll::Pending => {
                    if self.unflushed {
                        ready!(Pin::new(&mut *to).poll_flush(cx)).map_err(|_| Broken::Writing)?;
                        self.unflushed = false;
                    }
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once into this thread's buffer and writes as much as possible; the rest stays in
    /// `pending`.
    fn poll_read<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
    ) -> Result<Poll<()>, Broken>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            match Pin::new(from).poll_read(cx, &mut buffer) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Err(_)) => return Err(Broken::Reading),
                Poll::Ready(Ok(())) => {}
            }
            let read = buffer.filled();
            if read.is_empty() {
                self.state = State::Ending;
                return Ok(Poll::Ready(()));
            }
            let written = match Pin::new(to).poll_write(cx, read) {
                Poll::Pending => 0,
                Poll::Ready(Ok(written)) if written > 0 => written,
                Poll::Ready(_) => return Err(Broken::Writing),
            };
            self.note_written(written);
            self.pending
                .extend_from_slice(read.get(written..).unwrap_or_default());
            Ok(Poll::Ready(()))
        })
    }

    fn poll_pending<W>(&mut self, cx: &mut Context<'_>, to: &mut W) -> Poll<io::Result<()>>
    where
        W: AsyncWrite + Unpin,
    {
        while let Some(rest) = self
            .pending
            .get(self.taken..)
            .filter(|rest| !rest.is_empty())
        {
            let written = ready!(Pin::new(&mut *to).poll_write(cx, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.note_written(written);
            self.taken += written;
        }
        if self.taken > 0 {
            self.pending = Vec::new(); // a silent tunnel holds no buffer
            self.taken = 0;
        }
        Poll::Ready(Ok(()))
    }

    fn note_written(&mut self, bytes: usize) {
        self.carried += u64::try_from(bytes).unwrap_or(u64::MAX);
        self.unflushed |= bytes > 0;
    }
}

thread_local! {
    /// The read buffer for all tunnels on a core; never held across an await.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_BYTES].into());
}

const BUFFER_BYTES: usize = 16 << 10;
/// Reads in one direction before it is the other direction's turn.
const READS_PER_TURN: usize = 16;
/// Interval at which a silent tunnel checks for a broken side.
const CHECK_EVERY: Duration = Duration::from_secs(30);
/// Interval at which an open tunnel writes a log entry.
pub(super) const REPORT_EVERY: Duration = Duration::from_secs(5 * 60);
/// Time for the two FINs.
pub(super) const CLOSE_TIME: Duration = Duration::from_secs(1);

/// Forwards bytes both ways and writes the log entries. `held` is dropped when the tunnel closes.
pub(crate) async fn carry<U: Side>(
    connection: &Connection,
    log_entry: TunnelEntryBuilder,
    client: Socket,
    upstream: U,
    held: impl Sized,
) {
    let worker = &connection.worker;
    let mut drained = connection.drained.clone();
    let stop = async move {
        let _ = drained.wait_for(|drained| *drained).await;
    };
    let idle_time = worker.limits.tunnel_idle_time;
    let mut reported = 0;
    let progress = |carried: Carried| {
        log_entry.write(worker, carried.to_client - reported, false);
        reported = carried.to_client;
    };
    let (carried, ended) = run(client, upstream, idle_time, stop, progress).await;
    log_entry.write(worker, carried.to_client - reported, ended.is_broken());
    drop(held);
}

#[cfg(test)]
mod tests;
