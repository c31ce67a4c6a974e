//! A tunnel: bytes both ways between a client and an upstream, unread.
//!
//! `connect` calls this after it answered a `CONNECT` with 200, and for connections that switched
//! protocols. One task moves both directions; what is read is written on at once, so a silent
//! tunnel holds no buffer, and a slow reader holds back the writer at the other end.
//!
//! Invariant: an end of one direction is passed on as an end (FIN) of that direction only; a tunnel
//! in which nothing moves for the idle time is ended both ways.
//! Cost: one copy per byte; memory only for what a slow side has not taken, at most 16 KiB each
//! way.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, sleep_until, timeout};

use crate::connection::Connection;
use crate::log_entry::TunnelEntryBuilder;
use crate::wire::Socket;

/// Bytes that a tunnel has carried so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    /// From the client to the upstream.
    pub(crate) to_upstream: u64,
    /// From the upstream to the client.
    pub(crate) to_client: u64,
}

/// Why a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Both sides had said all they had to say.
    Finished,
    /// Nothing moved for the idle time.
    Idle,
    /// The proxy stops, and the time for open requests is over.
    Drained,
    /// The client's connection broke.
    ClientBroke,
    /// The upstream's connection broke.
    UpstreamBroke,
}

/// Moves bytes between `client` and `upstream` until the tunnel ends.
///
/// `drained` resolves at the deadline of a stop. `progress` is called every five minutes while the
/// tunnel is open: long tunnels would else not be in the log before they end.
pub(crate) async fn run<C, U>(
    mut client: C,
    mut upstream: U,
    idle_time: Duration,
    drained: impl Future<Output = ()>,
    mut progress: impl FnMut(Carried),
) -> (Carried, Ended)
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let mut pump = Pump::default();
    let mut drained = pin!(drained);
    let mut last_moved = Instant::now();
    let mut report_at = last_moved + REPORT_EVERY;
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
        }
    };
    // FIN both ways. Who does not read any more must not keep us: the sockets close in any case.
    let _ = timeout(CLOSE_TIME, async {
        let _ = client.shutdown().await;
        let _ = upstream.shutdown().await;
    })
    .await;
    (pump.carried(), ended)
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
    /// Read but not yet taken by the other side.
    pending: Vec<u8>,
    taken: usize,
    state: State,
    carried: u64,
    /// Written bytes may still lie in a layer below.
    unflushed: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The reading side has ended; the end is to be passed on.
    Ending,
    Ended,
}

/// Which side of a direction failed.
enum Broken {
    Reading,
    Writing,
}

impl Pump {
    /// Ready with the reason when the tunnel ends, and with none after a burst of bytes, so that
    /// clocks are looked at now and then while a tunnel is busy.
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
        // A direction that is ready without having ended has had its turn and wants another.
        let again = (up.is_ready() && self.up.state != State::Ended)
            || (down.is_ready() && self.down.state != State::Ended);
        if again || self.carried() != before {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }

    fn carried(&self) -> Carried {
        Carried {
            to_upstream: self.up.carried,
            to_client: self.down.carried,
        }
    }
}

impl Half {
    /// Moves bytes until one side would block, the direction ends, or its turn is over.
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

    /// Reads once into this thread's buffer and writes what it can; the rest is kept.
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
    /// Where every tunnel of a core reads to; never held across a wait.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_BYTES].into());
}

const BUFFER_BYTES: usize = 16 << 10;
/// Reads of one direction before the other has its turn.
const READS_PER_TURN: usize = 16;
/// How often an open tunnel is reported.
const REPORT_EVERY: Duration = Duration::from_mins(5);
/// Time for the two FINs.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// Carries bytes both ways and writes the log entries. `held` is kept until the end.
pub(crate) async fn carry<U: AsyncRead + AsyncWrite + Unpin>(
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
    let broke = matches!(ended, Ended::ClientBroke | Ended::UpstreamBroke);
    log_entry.write(worker, carried.to_client - reported, broke);
    drop(held);
}

#[cfg(test)]
mod tests;
