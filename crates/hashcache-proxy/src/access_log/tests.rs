//! The log as a whole: threads, files, full disks.

use std::path::Path;

use hashcache_base::clock::UnixMillis;
use http::Version;

use super::writer::{LINE_END_BYTES, RETRY_TIME};
use super::*;

/// 2026-11-21 21:47:02.
pub(super) const SECOND: u64 = 1_795_297_622;

pub(super) fn entry() -> LogEntry<'static> {
    LogEntry {
        start: UnixMillis(SECOND * 1000 + 123),
        duration: Duration::from_millis(234),
        first_byte: Some(Duration::from_millis(1)),
        client: ([192, 0, 2, 7], 50_000).into(),
        user: None,
        method: "GET",
        scheme: "http",
        authority: "a.test",
        path: "/x?y=1",
        version: Version::HTTP_11,
        status: 200,
        outcome: Outcome::Hit,
        aborted: false,
        client_bytes: 5120,
        origin_bytes: 0,
        link: None,
        next_hop: None,
        error: None,
        request_id: RequestId(255),
        user_agent: Some(b"curl/8"),
        referer: Some(b"http://b.test/"),
        content_type: Some(b"text/html; charset=utf-8"),
    }
}

/// A disk with so much room, and what was written to it.
#[derive(Debug)]
struct Disk {
    room: usize,
    reopens: usize,
    written: Vec<u8>,
}

pub(super) struct ScriptedSink(Arc<Mutex<Disk>>);

impl ScriptedSink {
    pub(super) fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut disk = lock(&self.0);
        if disk.room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let count = bytes.len().min(disk.room).min(1000);
        disk.room -= count;
        disk.written.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    pub(super) fn reopen(&mut self) -> io::Result<()> {
        lock(&self.0).reopens += 1;
        Ok(())
    }
}

const STYLE: LineStyle = LineStyle {
    format: LogFormat::Squid,
    query: QueryForm::Kept,
    target: TargetForm::Absolute,
    client: ClientForm::Address,
};

/// A log whose rounds the test makes.
fn by_hand(room: usize, queue_bytes: usize) -> (AccessLogger, LogWriterThread, Arc<Mutex<Disk>>) {
    let disk = Arc::new(Mutex::new(Disk {
        room,
        reopens: 0,
        written: Vec::new(),
    }));
    let shared = Arc::new(LogShared::default());
    let writer_thread = LogWriterThread::new(
        LogSink::Scripted(ScriptedSink(Arc::clone(&disk))),
        Arc::clone(&shared),
    );
    let log = AccessLogger {
        shared: Some(shared),
        style: STYLE,
        clock: Some(Arc::new(Clock::start(None))),
        writer_thread: Some(thread::current()),
        ended: None,
        queue_bytes,
    };
    (log, writer_thread, disk)
}

fn line_bytes() -> usize {
    let mut line = Vec::new();
    Formatter::new(STYLE).push(&mut line, &entry(), UnixMillis(SECOND * 1000));
    line.len()
}

fn to_file(path: &Path) -> AccessLogger {
    let clock = Arc::new(Clock::start(None));
    let sink = LogSink::file(path.to_owned()).unwrap();
    AccessLogger::start_with(sink, STYLE, &clock, QUEUE_BYTES).unwrap()
}

/// Waits for the log's thread, which needs no time but its turn.
fn until(condition: impl Fn() -> bool) {
    let mut turns = 0u64;
    while !condition() {
        turns += 1;
        assert!(turns < 50_000_000, "the log's thread does not come to it");
        thread::yield_now();
    }
}

#[test]
fn lines_of_all_workers_are_in_the_file_when_the_log_has_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let log = to_file(&path);
    thread::scope(|scope| {
        for _ in 0..4 {
            let worker = log.worker();
            scope.spawn(move || {
                for _ in 0..500 {
                    worker.write(&entry());
                }
            });
        }
    });
    log.stop();
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 2000);
    assert_eq!(text.len(), 2000 * line_bytes());
    let times: Vec<&str> = text.lines().map(|line| &line[..14]).collect();
    assert!(
        times.is_sorted(),
        "lines are not in the order of their times"
    );
    assert_eq!(
        log.figures(),
        LogFigures {
            written: 2000,
            ..LogFigures::default()
        }
    );
}

#[test]
fn a_sleeping_log_is_woken_by_every_line() {
    let dir = tempfile::tempdir().unwrap();
    let log = to_file(&dir.path().join("access.log"));
    let worker = log.worker();
    for count in 1..=3 {
        until(|| {
            log.shared
                .as_ref()
                .is_some_and(|shared| shared.asleep.load(Relaxed))
        });
        worker.write(&entry());
        until(|| log.figures().written == count);
    }
}

#[test]
fn lines_of_workers_are_merged_by_the_times_at_which_requests_ended() {
    let (log, mut writer_thread, disk) = by_hand(usize::MAX, usize::MAX);
    let workers = [log.worker(), log.worker(), log.worker()];
    let ends = [[1, 5, 5], [0, 2, 9], [5, 6, 7]];
    let pending = lock(&log.shared.as_ref().unwrap().buffers).clone();
    for (pending, ends) in pending.iter().zip(ends) {
        for end in ends {
            let write = |text: &mut Vec<u8>| text.extend(format!("{end}\n").into_bytes());
            lock(pending).lines.push(UnixMillis(end), write);
        }
    }
    writer_thread.round(Duration::ZERO);
    assert_eq!(lock(&disk).written, b"0\n1\n2\n5\n5\n5\n6\n7\n9\n");
    drop(workers);
}

#[test]
fn what_does_not_fit_the_queue_is_dropped_and_counted() {
    let queue_bytes = 10 * (line_bytes() + LINE_END_BYTES);
    let (log, mut writer_thread, disk) = by_hand(usize::MAX, queue_bytes);
    let worker = log.worker();
    for _ in 0..15 {
        worker.write(&entry());
    }
    writer_thread.round(Duration::ZERO);
    assert_eq!(
        log.figures(),
        LogFigures {
            written: 10,
            dropped: 5,
            ..LogFigures::default()
        }
    );
    assert_eq!(lock(&disk).written.len(), 10 * line_bytes());
    // And there is room again.
    worker.write(&entry());
    writer_thread.round(Duration::ZERO);
    assert_eq!(log.figures().written, 11);
}

#[test]
fn a_full_disk_stops_the_log_until_there_is_room_at_the_next_try() {
    let line = line_bytes();
    let (log, mut writer_thread, disk) = by_hand(2 * line + 10, usize::MAX);
    let worker = log.worker();
    let write_three = || (0..3).for_each(|_| worker.write(&entry()));

    write_three();
    writer_thread.round(Duration::ZERO);
    let stopped = LogFigures {
        written: 2,
        dropped: 1,
        failures: 1,
        stopped: true,
    };
    assert_eq!(log.figures(), stopped);

    // There is room, but it is not time yet.
    lock(&disk).room = usize::MAX;
    write_three();
    writer_thread.round(RETRY_TIME / 2);
    assert_eq!(
        log.figures(),
        LogFigures {
            dropped: 4,
            ..stopped
        }
    );

    write_three();
    writer_thread.round(RETRY_TIME);
    assert_eq!(
        log.figures(),
        LogFigures {
            written: 5,
            dropped: 4,
            failures: 1,
            stopped: false
        }
    );
    let text = String::from_utf8(lock(&disk).written.clone()).unwrap();
    let lengths: Vec<_> = text.lines().map(str::len).collect();
    // The torn line is ended before the next begins.
    assert_eq!(
        lengths,
        [line - 1, line - 1, 10, line - 1, line - 1, line - 1]
    );
}

#[test]
fn a_disk_that_stays_full_is_tried_every_ten_seconds() {
    let (log, mut writer_thread, disk) = by_hand(0, usize::MAX);
    let worker = log.worker();
    for second in 0..=30 {
        worker.write(&entry());
        writer_thread.round(Duration::from_secs(second));
    }
    assert_eq!(log.figures().failures, 4);
    // The first line waits for the next try.
    assert_eq!(log.figures().dropped, 30);
    assert!(lock(&disk).written.is_empty());
}

#[test]
fn a_stopped_log_works_again_without_a_further_request() {
    for room in [0, 10] {
        let (log, mut writer_thread, disk) = by_hand(room, usize::MAX);
        let worker = log.worker();
        worker.write(&entry());
        worker.write(&entry());
        writer_thread.round(Duration::ZERO);
        assert!(log.figures().stopped);
        writer_thread.round(RETRY_TIME);
        assert!(log.figures().stopped, "the disk is still full");
        lock(&disk).room = usize::MAX;
        writer_thread.round(2 * RETRY_TIME);
        let figures = log.figures();
        assert!(!figures.stopped);
        assert_eq!((figures.written, figures.dropped), (1, 1));
        let written = lock(&disk).written.clone();
        assert!(written.ends_with(b"\n"));
        let torn = usize::from(room > 0);
        assert_eq!(written.split(|byte| *byte == b'\n').count(), 2 + torn);
    }
}

#[test]
fn reopening_tries_a_stopped_log_at_once() {
    let (log, mut writer_thread, disk) = by_hand(0, usize::MAX);
    let worker = log.worker();
    worker.write(&entry());
    writer_thread.round(Duration::ZERO);
    assert!(log.figures().stopped);
    lock(&disk).room = usize::MAX;
    log.reopen();
    writer_thread.round(Duration::ZERO);
    assert!(!log.figures().stopped);
    assert_eq!(log.figures().written, 1, "the line that was kept");
    worker.write(&entry());
    writer_thread.round(Duration::ZERO);
    assert_eq!(log.figures().written, 2);
    assert_eq!(lock(&disk).reopens, 1);
}

#[test]
fn a_file_moved_away_gets_what_came_before_the_signal_and_a_new_one_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let (path, moved) = (
        dir.path().join("access.log"),
        dir.path().join("access.log.1"),
    );
    let log = to_file(&path);
    let worker = log.worker();
    worker.write(&entry());
    std::fs::rename(&path, &moved).unwrap();
    log.reopen();
    until(|| path.exists());
    worker.write(&entry());
    worker.write(&entry());
    log.stop();
    let count = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
    assert_eq!((count(&moved), count(&path)), (1, 2));
}

#[test]
fn the_file_is_not_for_every_user_to_read() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    drop(to_file(&path));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o007, 0);
}

#[test]
fn a_log_that_is_not_wanted_costs_nothing_and_takes_lines_all_the_same() {
    let log = AccessLogger {
        shared: None,
        style: STYLE,
        clock: None,
        writer_thread: None,
        ended: None,
        queue_bytes: 0,
    };
    log.worker().write(&entry());
    log.reopen();
    log.stop();
    assert_eq!(log.figures(), LogFigures::default());
}

#[test]
fn failures_are_errors_unless_a_stored_response_was_served_instead() {
    let class = |outcome, error| {
        LogEntry {
            outcome,
            error,
            ..entry()
        }
        .class()
    };
    assert_eq!(class(Outcome::Miss, None), Some(OutcomeClass::Miss));
    assert_eq!(
        class(Outcome::Miss, Some("unreachable")),
        Some(OutcomeClass::Error)
    );
    assert_eq!(
        class(Outcome::StaleIfError, Some("unreachable")),
        Some(OutcomeClass::Hit)
    );
    assert_eq!(
        class(Outcome::Denied, Some("client-denied")),
        Some(OutcomeClass::Error)
    );
    assert_eq!(
        class(Outcome::Own, Some("refused")),
        Some(OutcomeClass::Error)
    );
    assert_eq!(class(Outcome::Own, None), None);
    assert_eq!(class(Outcome::Tunnel, None), None);
}
