//! Section `shedding`: whether dictionaries are left out when the disk is the bottleneck.
//!
//! A simulation, because the program has no setting that forces a dictionary always or never. The
//! rule and what it measures are those of the program (`hashcache_wan::load`); the disk serves one
//! read after another at 100 a second, the link one transfer after another. Clients fetch changed
//! objects of 1 MB without pauses: with a dictionary, each costs four reads and few bytes on the
//! link, without one no read and the bytes that zstd leaves.
//!
//! Limit: at 1, 10 and 100 Mbit/s, at least 0.95 of the content a second that the better of
//! always and never brings.

use std::time::{Duration, Instant};

use hashcache_wan::load::LinkLoad;
use hashcache_wan::shed::expected_saving;
use serde_json::json;

use super::Progress;
use crate::campaign::Campaign;

/// How dictionaries are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Always,
    Never,
    /// As the program decides.
    Measured,
}

/// Plays the section.
pub fn run(campaign: &mut Campaign, progress: &Progress) {
    progress.expect((LINKS.len() * CLIENTS.len()) as u64);
    for megabits in LINKS {
        for clients in CLIENTS {
            let play = |policy| Simulation::new(megabits).play(policy, clients);
            let [always, never, measured] =
                [Policy::Always, Policy::Never, Policy::Measured].map(play);
            let times = measured as f64 / always.max(never) as f64;
            let shown = |objects: u64| objects as f64 / SIMULATED.as_secs_f64();
            campaign.report.figures(
                format!("simulated: {megabits} Mbit/s, {clients} clients"),
                (times >= TIMES_MIN).into(),
                format!(
                    "{times:.2} of the better, bar {TIMES_MIN}: {:.2} MB/s, always {:.2}, never \
                     {:.2}",
                    shown(measured),
                    shown(always),
                    shown(never)
                ),
                json!({ "objects": measured, "always": always, "never": never }),
            );
            progress.step();
        }
    }
}

/// A disk, a link, and a time that only moves when something happens.
struct Simulation {
    load: LinkLoad,
    begun: Instant,
    bytes_per_second: u64,
    disk_free: Duration,
    link_free: Duration,
}

/// A client and what it does next.
#[derive(Clone, Copy, Debug)]
struct Client {
    at: Duration,
    step: Step,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask,
    /// So many reads are left.
    Read(u64),
    /// So many bytes are left on the link.
    Send(u64),
}

impl Simulation {
    fn new(megabits: u64) -> Self {
        Self {
            load: LinkLoad::default(),
            begun: tokio::time::Instant::now().into_std(),
            bytes_per_second: megabits * 1_000_000 / 8,
            disk_free: Duration::ZERO,
            link_free: Duration::ZERO,
        }
    }

    /// Objects that arrive in [`SIMULATED`], after as long a time that is not counted.
    fn play(mut self, policy: Policy, clients: usize) -> u64 {
        let asks = Client {
            at: Duration::ZERO,
            step: Step::Ask,
        };
        let mut clients = vec![asks; clients];
        let mut arrived = 0;
        loop {
            let next = clients.iter_mut().min_by_key(|client| client.at);
            let Some(client) = next.filter(|client| client.at < 2 * SIMULATED) else {
                return arrived;
            };
            let ends = self.step(policy, client);
            arrived += u64::from(ends && client.at >= SIMULATED);
        }
    }

    /// The next step of a client; whether it has its object then.
    fn step(&mut self, policy: Policy, client: &mut Client) -> bool {
        match client.step {
            Step::Ask => {
                let now = self.begun + client.at;
                let is_used = match policy {
                    Policy::Always => true,
                    Policy::Never => false,
                    Policy::Measured => {
                        self.load
                            .is_worth_reading(OBJECT_BYTES, Some(OBJECT_BYTES), now)
                    }
                };
                client.step = if is_used {
                    Step::Read(READS)
                } else {
                    Step::Send(DELTA_BYTES + expected_saving(OBJECT_BYTES))
                };
                false
            }
            Step::Read(left) => {
                let asked = client.at;
                self.disk_free = self.disk_free.max(asked) + READ_TIME;
                client.at = self.disk_free;
                self.load
                    .note_read(client.at - asked, self.begun + client.at);
                client.step = match left {
                    1 => Step::Send(DELTA_BYTES),
                    left => Step::Read(left - 1),
                };
                false
            }
            Step::Send(left) => {
                let piece = left.min(PIECE_BYTES);
                let nanos = piece * 1_000_000_000 / self.bytes_per_second;
                self.link_free = self.link_free.max(client.at) + Duration::from_nanos(nanos);
                client.at = self.link_free;
                self.load
                    .note_moved(usize::try_from(piece).unwrap_or(usize::MAX));
                // The receiver has taken all that has arrived.
                self.load.note_waits(self.begun + client.at);
                client.step = match left - piece {
                    0 => Step::Ask,
                    left => Step::Send(left),
                };
                left == piece
            }
        }
    }
}

const LINKS: [u64; 3] = [1, 10, 100];
const CLIENTS: [usize; 3] = [1, 8, 32];
const SIMULATED: Duration = Duration::from_secs(5 * 60);
const READ_TIME: Duration = Duration::from_millis(10);
const OBJECT_BYTES: u64 = 1_000_000;
/// Spans of 256 KiB in 1 MB.
const READS: u64 = 4;
/// A changed release takes two in a hundred.
const DELTA_BYTES: u64 = 20_000;
/// A segment of TCP on Ethernet.
const PIECE_BYTES: u64 = 1448;
const TIMES_MIN: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_disk_and_link_decides_what_comes() {
        let second = SIMULATED.as_secs();
        // Four reads of 10 ms each, one after another.
        let always = Simulation::new(100).play(Policy::Always, 32);
        assert!(always.abs_diff(25 * second) < second, "{always}");
        // 210 kB on a link of 125 kB/s; one of each client is under way at the beginning.
        let never = Simulation::new(1).play(Policy::Never, 32);
        assert!(never.abs_diff(second * 125 / 210) <= 32, "{never}");
    }
}
