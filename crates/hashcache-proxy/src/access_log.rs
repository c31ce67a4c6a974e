//! The access log: one line for each request, and for each tunnel when it closes.
//!
//! Each worker writes lines into a separate buffer. A thread collects the buffers ten times a
//! second, or as soon as a buffer holds 32 KiB, and sleeps while there are no requests. Therefore a
//! request pays for formatting a line and for an uncontended lock, never for a write or a wake-up.
//!
//! Called by `request` and `connect` with a [`LogEntry`], by `server` on signals, by `metrics`.
//!
//! Invariants: lines that wait to be written take at most 1 MiB; lines that do not fit are dropped
//! and counted. A full disk stops the log, not the proxy. The lines of all workers are in the order
//! in which the requests finished, unless the clock is set back.

mod entry;
mod escape;
mod format;
mod writer;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, Thread};
use std::time::Duration;

pub(crate) use entry::{LogEntry, LoggedHop, Outcome, OutcomeClass, RequestId};
use format::{ClientForm, Formatter, LineStyle, QueryForm, TargetForm};
use hashcache_base::clock::Clock;
use writer::{Lines, LogShared, LogSink, LogWriterThread, PendingLines, lock};

use crate::settings::{self, LogFormat, Mode, Settings};

/// The access log of the process; writes the waiting lines when dropped.
#[derive(Debug)]
pub(crate) struct AccessLogger {
    shared: Option<Arc<LogShared>>,
    style: LineStyle,
    clock: Option<Arc<Clock>>,
    writer_thread: Option<Thread>,
    /// The thread closes this channel when it stops.
    ended: Option<Mutex<mpsc::Receiver<()>>>,
    queue_bytes: usize,
}

impl AccessLogger {
    /// Opens the log and starts its thread.
    pub(crate) fn start(settings: &Settings, clock: &Arc<Clock>) -> io::Result<Self> {
        let style = LineStyle {
            format: settings.startup.log_format,
            query: if settings.startup.log_strip_query {
                QueryForm::Stripped
            } else {
                QueryForm::Kept
            },
            target: match settings.startup.mode {
                Mode::Forward => TargetForm::Absolute,
                // With several sites the path does not identify the site.
                Mode::Reverse if settings.reloadable.sites.all().len() > 1 => TargetForm::Absolute,
                Mode::Reverse => TargetForm::Path,
            },
            client: if settings.startup.log_anonymize {
                ClientForm::Network
            } else {
                ClientForm::Address
            },
        };
        let sink = match &settings.startup.access_log {
            settings::AccessLog::None => {
                return Ok(Self::none());
            }
            // Not through `io::stdout`, which buffers incomplete lines.
            settings::AccessLog::Stdout => {
                LogSink::Stdout(File::from(io::stdout().as_fd().try_clone_to_owned()?))
            }
            settings::AccessLog::File(path) => LogSink::file(path.clone())?,
        };
        let queue_bytes = QUEUE_BYTES / settings.startup.workers.max(1);
        Self::start_with(sink, style, clock, queue_bytes)
    }

    /// Checks that the log of `settings` could be opened; neither opens nor creates it.
    pub(crate) fn check(settings: &Settings) -> io::Result<()> {
        match &settings.startup.access_log {
            settings::AccessLog::None | settings::AccessLog::Stdout => Ok(()),
            settings::AccessLog::File(path) => writer::can_open(path),
        }
    }

    /// Returns a logger that writes nothing.
    pub(crate) fn none() -> Self {
        let style = LineStyle {
            format: LogFormat::default(),
            query: QueryForm::Stripped,
            target: TargetForm::Absolute,
            client: ClientForm::Network,
        };
        Self {
            shared: None,
            style,
            clock: None,
            writer_thread: None,
            ended: None,
            queue_bytes: 0,
        }
    }

    fn start_with(
        sink: LogSink,
        style: LineStyle,
        clock: &Arc<Clock>,
        queue_bytes: usize,
    ) -> io::Result<Self> {
        let shared = Arc::new(LogShared::default());
        let mut writer_thread = LogWriterThread::new(sink, Arc::clone(&shared));
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || {
                writer_thread.run();
                drop(end);
            })?;
        Ok(Self {
            shared: Some(shared),
            style,
            clock: Some(Arc::clone(clock)),
            writer_thread: Some(thread.thread().clone()),
            ended: Some(Mutex::new(ended)),
            queue_bytes,
        })
    }

    /// Creates the buffer of a worker; each worker must call it once.
    pub(crate) fn worker(&self) -> WorkerLog {
        let (Some(shared), Some(clock), Some(writer_thread)) =
            (&self.shared, &self.clock, &self.writer_thread)
        else {
            return WorkerLog { buffer: None };
        };
        let pending = PendingLines {
            lines: Lines::default(),
            formatter: Formatter::new(self.style),
        };
        let pending = Arc::new(Mutex::new(pending));
        lock(&shared.buffers).push(Arc::clone(&pending));
        let buffer = WorkerBuffer {
            pending,
            shared: Arc::clone(shared),
            clock: Arc::clone(clock),
            writer_thread: writer_thread.clone(),
            queue_bytes: self.queue_bytes,
        };
        WorkerLog {
            buffer: Some(Arc::new(buffer)),
        }
    }

    /// Writes the waiting lines to the current file, then reopens the path.
    pub(crate) fn reopen(&self) {
        if let (Some(shared), Some(writer_thread)) = (&self.shared, &self.writer_thread) {
            shared.reopen.store(true, Relaxed);
            writer_thread.unpark();
        }
    }

    /// Returns the counts since the start.
    pub(crate) fn figures(&self) -> LogFigures {
        let Some(shared) = &self.shared else {
            return LogFigures::default();
        };
        LogFigures {
            written: shared.written.load(Relaxed),
            dropped: shared.dropped.load(Relaxed),
            failures: shared.failures.load(Relaxed),
            stopped: shared.stopped.load(Relaxed),
        }
    }

    /// Writes the waiting lines and stops the thread; gives up if the reader of a pipe is stuck.
    pub(crate) fn stop(&self) {
        if let (Some(shared), Some(writer_thread), Some(ended)) =
            (&self.shared, &self.writer_thread, &self.ended)
        {
            shared.stop.store(true, Relaxed);
            writer_thread.unpark();
            // An error means that the thread has stopped, or that the time is over; neither needs
            // an action.
            let _ = lock(ended).recv_timeout(STOP_TIME);
        }
    }
}

impl Drop for AccessLogger {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Counts of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogFigures {
    /// Lines written.
    pub(crate) written: u64,
    /// Lines lost: no room in the queue, or the file could not be written.
    pub(crate) dropped: u64,
    /// Writes and reopenings that failed.
    pub(crate) failures: u64,
    /// True if the log has stopped after a failure.
    pub(crate) stopped: bool,
}

/// Handle of a worker to the log.
#[derive(Clone, Debug)]
pub(crate) struct WorkerLog {
    buffer: Option<Arc<WorkerBuffer>>,
}

impl WorkerLog {
    /// Returns true if lines are written anywhere.
    pub(crate) fn is_written(&self) -> bool {
        self.buffer.is_some()
    }

    /// Appends a line about a request that has just finished. Waits at most while another line is
    /// written or the buffers are emptied.
    pub(crate) fn write(&self, entry: &LogEntry<'_>) {
        let Some(buffer) = &self.buffer else { return };
        let (before, after) = {
            let mut guard = lock(&buffer.pending);
            let PendingLines { lines, formatter } = &mut *guard;
            let before = lines.bytes();
            // Read under the lock, because the order of lines depends on it
            // (`LogWriterThread::collect`).
            let end = buffer.clock.now();
            lines.push(end, |text| formatter.push(text, entry, end));
            if lines.bytes() > buffer.queue_bytes {
                lines.drop_last();
                buffer.shared.dropped.fetch_add(1, Relaxed);
            }
            (before, lines.bytes())
        };
        let full = before < WAKE_BYTES && after >= WAKE_BYTES;
        // Relaxed is enough, because the writer thread sets `asleep` before it locks each buffer
        // for the last time. If the thread locks this buffer after us, it finds our line. If it
        // locked the buffer before us, our lock makes the store to `asleep` visible here, and we
        // wake the thread.
        if full || buffer.shared.asleep.load(Relaxed) && buffer.shared.asleep.swap(false, Relaxed) {
            buffer.writer_thread.unpark();
        }
    }
}

#[derive(Debug)]
struct WorkerBuffer {
    pending: Arc<Mutex<PendingLines>>,
    shared: Arc<LogShared>,
    clock: Arc<Clock>,
    writer_thread: Thread,
    queue_bytes: usize,
}

/// Maximum size of all lines that the thread has not collected.
const QUEUE_BYTES: usize = 1 << 20;
/// Size at which a buffer is collected at once; about 200 lines.
const WAKE_BYTES: usize = 32 << 10;
/// How long the process waits for a stuck reader of the log when it stops.
const STOP_TIME: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
