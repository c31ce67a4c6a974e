//! Measurements for the attacked process from the kernel: resident memory, sampled all the time,
//! and processor time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Samples the resident memory of a process until dropped.
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    peak: AtomicU64,
}

impl Watch {
    pub fn start(pid: u32) -> Self {
        let shared = Arc::<Shared>::default();
        let kept = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            while !kept.stop.load(Relaxed) {
                kept.peak.fetch_max(resident_bytes(pid), Relaxed);
                thread::sleep(LOOK_TIME);
            }
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Maximum since the start, bytes.
    pub fn peak(&self) -> u64 {
        self.shared.peak.load(Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Resident memory of a process, program text included; 0 after the process has exited.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Processor time that a process has used. The kernel counts it in hundredths of a second.
pub fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may contain anything; user and system time are fields 14 and 15.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

const LOOK_TIME: Duration = Duration::from_millis(5);
