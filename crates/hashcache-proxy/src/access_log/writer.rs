//! The thread that writes the access log.
//!
//! `AccessLogger` starts it. It collects the workers' buffers and writes the lines. A failed write
//! stops the log: lines are dropped and counted until a retry succeeds. The thread retries every
//! ten seconds, with or without requests, because it keeps the first unwritten line for the retry.
//!
//! Invariants: a line that a full disk has cut is terminated before the next line is written. Lines
//! are written in the order of their times.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hashcache_base::clock::UnixMillis;
use rustix::fs::{Access, access};

use super::format::Formatter;

/// Destination of the lines.
pub(super) enum LogSink {
    Stdout(File),
    File {
        path: PathBuf,
        file: File,
    },
    #[cfg(test)]
    Scripted(super::tests::ScriptedSink),
}

impl LogSink {
    pub(super) fn file(path: PathBuf) -> io::Result<Self> {
        let file = open(&path)?;
        Ok(Self::File { path, file })
    }

    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(file) | Self::File { file, .. } => file.write(bytes),
            #[cfg(test)]
            Self::Scripted(sink) => sink.write_some(bytes),
        }
    }

    /// Reopens a file; keeps the old file if the path cannot be opened.
    fn reopen(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(_) => Ok(()),
            Self::File { path, file } => {
                *file = open(path)?;
                Ok(())
            }
            #[cfg(test)]
            Self::Scripted(sink) => sink.reopen(),
        }
    }
}

/// Not readable by other users of the machine, because logs show which sites people use.
fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .open(path)
}

/// Checks that `open` could open or create the file at `path`. Opens nothing, because opening a
/// pipe would block.
pub(super) fn can_open(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(file) if file.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(access(path, Access::WRITE_OK)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            Ok(access(parent, Access::WRITE_OK | Access::EXEC_OK)?)
        }
        Err(error) => Err(error),
    }
}

/// State of the thread.
pub(super) struct LogWriterThread {
    sink: LogSink,
    shared: Arc<LogShared>,
    /// Lines taken from each worker.
    taken: Vec<Lines>,
    /// Lines being written.
    batch: Vec<u8>,
    /// Time of the retry after a failure, since the start of the thread.
    retry_at: Option<Duration>,
    /// True if the last byte written was not the end of a line.
    torn: bool,
    /// First line that a full disk did not accept, for the retry.
    kept: Vec<u8>,
}

impl LogWriterThread {
    pub(super) fn new(sink: LogSink, shared: Arc<LogShared>) -> Self {
        Self {
            sink,
            shared,
            taken: Vec::new(),
            batch: Vec::new(),
            retry_at: None,
            torn: false,
            kept: Vec::new(),
        }
    }

    /// Writes until `stop` is set.
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread outside any runtime has no other clock"
    )]
    pub(super) fn run(&mut self) {
        let start = Instant::now();
        loop {
            // Read before the round, so that the last round finds every line that was written
            // before the stop.
            let stopping = self.shared.stop.load(Relaxed);
            let busy = self.round(start.elapsed());
            if stopping {
                self.batch = std::mem::take(&mut self.kept);
                return self.drop_lines(0);
            }
            if busy {
                thread::park_timeout(ROUND_TIME);
                continue;
            }
            // Sleep until there is a line. The buffers are checked after the flag is set, so no
            // line is missed in between.
            self.shared.asleep.store(true, Relaxed);
            if self.nothing_waits() {
                match self.retry_at {
                    Some(at) => thread::park_timeout(at.saturating_sub(start.elapsed())),
                    None => thread::park(),
                }
            }
            self.shared.asleep.store(false, Relaxed);
        }
    }

    /// Collects and writes once; returns true if there were any lines.
    pub(super) fn round(&mut self, now: Duration) -> bool {
        self.collect();
        let busy = !self.batch.is_empty();
        match self.retry_at {
            Some(at) if now < at => self.drop_lines(0),
            Some(_) => self.write_batch(now, BeforeWrite::Reopen),
            None if busy => self.write_batch(now, BeforeWrite::Nothing),
            None => {}
        }
        if self.shared.reopen.swap(false, Relaxed) {
            match self.sink.reopen() {
                // A new file may be on a disk with room.
                Ok(()) if self.retry_at.is_some() => {
                    self.batch.clear();
                    self.write_batch(now, BeforeWrite::Nothing);
                }
                Ok(()) => {}
                Err(error) => {
                    self.shared.failures.fetch_add(1, Relaxed);
                    tracing::warn!(%error, "access log not reopened");
                }
            }
        }
        busy
    }

    /// Takes the lines of all workers and merges them by their times.
    ///
    /// All buffers are locked at once, and a worker reads the time of a line while it holds the
    /// lock. So each line that is written later has a later time than all lines that are taken
    /// here.
    fn collect(&mut self) {
        let buffers = lock(&self.shared.buffers).clone();
        self.taken.resize_with(buffers.len(), Lines::default);
        self.taken.iter_mut().for_each(Lines::clear);
        let locked: Vec<_> = buffers.iter().map(|buffer| lock(buffer)).collect();
        for (mut pending, taken) in locked.into_iter().zip(&mut self.taken) {
            std::mem::swap(&mut pending.lines, taken);
        }
        self.batch.clear();
        merge(&self.taken, &mut self.batch);
    }

    fn nothing_waits(&self) -> bool {
        lock(&self.shared.buffers)
            .iter()
            .all(|buffer| lock(buffer).lines.is_empty())
    }

    /// Writes the kept line and the batch.
    fn write_batch(&mut self, now: Duration, before: BeforeWrite) {
        self.batch.splice(0..0, self.kept.drain(..));
        let mut sent = 0;
        match self.try_write(before, &mut sent) {
            Ok(()) => {
                self.shared.written.fetch_add(lines(&self.batch), Relaxed);
                if self.retry_at.take().is_some() {
                    let dropped = self.shared.dropped.load(Relaxed);
                    tracing::info!(dropped, "access log works again");
                }
            }
            Err(error) => {
                self.shared
                    .written
                    .fetch_add(lines(&self.batch[..sent]), Relaxed);
                self.shared.failures.fetch_add(1, Relaxed);
                if self.retry_at.is_none() {
                    tracing::error!(%error, "access log stopped; tried again every 10 s");
                }
                self.retry_at = Some(now + RETRY_TIME);
                self.keep_one_line(sent);
            }
        }
        self.shared.stopped.store(self.retry_at.is_some(), Relaxed);
    }

    fn try_write(&mut self, before: BeforeWrite, sent: &mut usize) -> io::Result<()> {
        if before == BeforeWrite::Reopen {
            // The file may be on a disk that was removed and mounted again.
            self.sink.reopen()?;
        }
        if self.torn {
            write_all(&mut self.sink, &self.shared, b"\n", &mut 0)?;
            self.torn = false;
        }
        let written = write_all(&mut self.sink, &self.shared, &self.batch, sent);
        if *sent > 0 {
            self.torn = self.batch[*sent - 1] != b'\n';
        }
        written
    }

    /// Keeps the first line after `sent` for the retry, and counts the others as lost. A cut line
    /// is lost too, because its rest might be written to another file.
    fn keep_one_line(&mut self, sent: usize) {
        let rest = &self.batch[sent..];
        let end_of_line = |bytes: &[u8]| bytes.iter().position(|&byte| byte == b'\n');
        let is_torn = sent > 0 && self.batch[sent - 1] != b'\n';
        let begin = if is_torn {
            end_of_line(rest).map_or(rest.len(), |at| at + 1)
        } else {
            0
        };
        let kept = end_of_line(&rest[begin..]).map_or(0, |at| at + 1);
        self.kept.extend_from_slice(&rest[begin..begin + kept]);
        self.shared
            .dropped
            .fetch_add(lines(rest) - lines(&self.kept), Relaxed);
    }

    /// Counts the lines of the batch after `sent` as lost.
    fn drop_lines(&self, sent: usize) {
        self.shared
            .dropped
            .fetch_add(lines(&self.batch[sent..]), Relaxed);
    }
}

/// Action before a write of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BeforeWrite {
    Nothing,
    Reopen,
}

fn write_all(
    sink: &mut LogSink,
    shared: &LogShared,
    bytes: &[u8],
    sent: &mut usize,
) -> io::Result<()> {
    while *sent < bytes.len() {
        match sink.write_some(&bytes[*sent..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => *sent += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A slow reader of a non-blocking pipe: wait and write again. Meanwhile workers drop
            // the lines that do not fit in their full buffers, so memory stays bounded.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if shared.stop.load(Relaxed) {
                    return Err(error);
                }
                thread::park_timeout(PIPE_TIME);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Appends the lines of all workers to `batch`, the earliest first.
fn merge(taken: &[Lines], batch: &mut Vec<u8>) {
    let mut next = vec![0; taken.len()];
    let time = |lines: &Lines, at: usize| lines.ends.get(at).map(|end| end.time);
    while let Some((_, worker)) = (0..taken.len())
        .filter_map(|worker| Some((time(&taken[worker], next[worker])?, worker)))
        .min()
    {
        batch.extend_from_slice(taken[worker].line(next[worker]));
        next[worker] += 1;
    }
}

fn lines(bytes: &[u8]) -> u64 {
    let count = bytes.iter().filter(|&&byte| byte == b'\n').count();
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Time from a failure to the retry.
pub(super) const RETRY_TIME: Duration = Duration::from_secs(10);
const PIPE_TIME: Duration = Duration::from_millis(10);

/// Lines that wait for the writer thread.
#[derive(Debug)]
pub(super) struct PendingLines {
    pub(super) lines: Lines,
    pub(super) formatter: Formatter,
}

/// Lines of a worker, with the times at which the requests finished.
#[derive(Debug, Default)]
pub(super) struct Lines {
    text: Vec<u8>,
    ends: Vec<LineEnd>,
}

/// End of a line.
#[derive(Clone, Copy, Debug)]
struct LineEnd {
    /// Position in the text.
    at: usize,
    /// The time of the line.
    time: UnixMillis,
}

impl Lines {
    /// Appends a line; `write` adds it to the text.
    pub(super) fn push(&mut self, time: UnixMillis, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.text);
        let at = self.text.len();
        self.ends.push(LineEnd { at, time });
    }

    pub(super) fn drop_last(&mut self) {
        self.ends.pop();
        self.text.truncate(self.begin(self.ends.len()));
    }

    /// Returns the memory of all lines.
    pub(super) fn bytes(&self) -> usize {
        self.text.len() + self.ends.len() * size_of::<LineEnd>()
    }

    fn line(&self, number: usize) -> &[u8] {
        &self.text[self.begin(number)..self.ends[number].at]
    }

    /// Returns the start of a line, which is the end of the previous line.
    fn begin(&self, number: usize) -> usize {
        let before = number.checked_sub(1).and_then(|it| self.ends.get(it));
        before.map_or(0, |end| end.at)
    }

    fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }
}

/// Memory of a line in addition to its text.
#[cfg(test)]
pub(super) const LINE_END_BYTES: usize = size_of::<LineEnd>();

/// State shared by the workers and the writer thread.
#[derive(Debug, Default)]
pub(super) struct LogShared {
    pub(super) buffers: Mutex<Vec<Arc<Mutex<PendingLines>>>>,
    pub(super) asleep: AtomicBool,
    pub(super) reopen: AtomicBool,
    pub(super) stop: AtomicBool,
    pub(super) written: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) stopped: AtomicBool,
}

/// A panic in another thread leaves complete lines or none, so the buffer is valid.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum time that a line stays in a buffer.
pub(super) const ROUND_TIME: Duration = Duration::from_millis(100);
