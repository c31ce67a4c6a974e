//! Programs that refuse our certificates, learned by trying: they get a tunnel.
//!
//! `connect/intercepted` of the proxy calls [`Refusals::tunnels`] after the peek, and reports the
//! handshake and the requests after it. A row is for one program (identified by the ClientHello) on
//! one client, and one host: other programs on that client keep their hits.
//!
//! ```text
//!            refused            refused within 10 min            term over
//!   new ───────────────▶ doubted ─────────────────────▶ learned ───────────▶ on trial
//!    ▲ a request inside     │                              ▲                     │ refused:
//!    └──────────────────────┴──────────────────────────────┼─────────────────────┘ twice the term
//!                                                          └─ five silent, no request ever
//! ```
//!
//! Invariant: at most `ROWS` rows, and at most `ROWS_PER_CLIENT` rows per client: a client with
//! many programs displaces only rows of that client. Nothing is written to disk, so a restart tries
//! again.
//! Cost: a lock and a hash. A new row scans all rows, twice if a row must be removed; the handshake
//! costs ten times as much.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_base::sort::sort_by_key;
use tokio::time::Instant;

/// One program on one client, and the host to which it connects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientProgram {
    /// The address of the client.
    pub client: IpAddr,
    /// The host to which the program connects.
    pub host: Box<str>,
    /// A hash of the program's ClientHello.
    pub fingerprint: u64,
}

/// The table of refusals; one instance for all cores.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<HashMap<ClientProgram, ProgramHistory>>);

/// The history of a program.
#[derive(Clone, Copy, Debug)]
struct ProgramHistory {
    touched: Instant,
    /// The time of the first of `refusals`.
    since: Instant,
    refusals: u8,
    /// Completed handshakes without a request.
    silences: u8,
    /// True if the program has ever sent a request.
    has_asked: bool,
    /// The program gets a tunnel until this time.
    until: Option<Instant>,
    /// The last term of tunnels.
    term: Duration,
}

/// A program that gets a tunnel, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refuser {
    /// The address of the client.
    pub client: IpAddr,
    /// The host to which the program connects.
    pub host: Box<str>,
    /// Time for which the program still gets a tunnel.
    pub left: Duration,
}

impl Refusals {
    /// Returns true if this program gets a tunnel.
    pub fn tunnels(&self, program: &ClientProgram, now: Instant) -> bool {
        let mut rows = self.rows();
        let Some(row) = rows.get_mut(program) else {
            return false;
        };
        row.touched = now;
        row.is_learned(now)
    }

    /// Notes that the program aborted the handshake because of our certificate.
    pub fn note_refusal(&self, program: &ClientProgram, now: Instant) {
        let mut rows = self.rows();
        row(&mut rows, program, now).refuse(now);
    }

    /// Notes that the program aborted the handshake without an alert. The reason may be our
    /// certificate, unless the program has accepted it before: browsers open connections ahead and
    /// then do not use them.
    pub fn note_abort(&self, program: &ClientProgram, now: Instant) {
        let mut rows = self.rows();
        let row = row(&mut rows, program, now);
        if !row.has_asked {
            row.refuse(now);
        }
    }

    /// Notes that the program completed the handshake and sent no request.
    pub fn note_silence(&self, program: &ClientProgram, now: Instant) {
        let mut rows = self.rows();
        let row = row(&mut rows, program, now);
        if row.has_asked || row.is_learned(now) {
            return;
        }
        row.silences += 1;
        if row.silences >= SILENCES {
            row.learn(now);
        }
    }

    /// Notes a request of the program, which shows that it accepts our certificate.
    pub fn note_request(&self, program: &ClientProgram, now: Instant) {
        let mut rows = self.rows();
        *row(&mut rows, program, now) = ProgramHistory {
            has_asked: true,
            ..ProgramHistory::new(now)
        };
    }

    /// Returns the number of programs that get a tunnel, and at most `most` of them, the most
    /// recently used first.
    pub fn refusers(&self, most: usize, now: Instant) -> (usize, Vec<Refuser>) {
        let rows = self.rows();
        let mut learned: Vec<_> = rows.iter().filter(|(_, row)| row.is_learned(now)).collect();
        sort_by_key(&mut learned, |(_, row)| std::cmp::Reverse(row.touched));
        let shown = learned.iter().take(most).map(|(program, row)| Refuser {
            client: program.client,
            host: program.host.clone(),
            left: row
                .until
                .map_or(Duration::ZERO, |until| until.duration_since(now)),
        });
        (learned.len(), shown.collect())
    }

    fn rows(&self) -> MutexGuard<'_, HashMap<ClientProgram, ProgramHistory>> {
        // A panic under the lock would leave at worst one odd row.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProgramHistory {
    fn new(now: Instant) -> Self {
        Self {
            touched: now,
            since: now,
            refusals: 0,
            silences: 0,
            has_asked: false,
            until: None,
            term: Duration::ZERO,
        }
    }

    fn is_learned(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    fn refuse(&mut self, now: Instant) {
        // Concurrent connections that close after the decisive refusal do not count again.
        if self.is_learned(now) {
            return;
        }
        if self.refusals == 0 || now.duration_since(self.since) > TOGETHER {
            (self.since, self.refusals) = (now, 0);
        }
        self.refusals += 1;
        // If a program was learned before, one refusal is enough, because nothing has changed.
        if self.refusals >= REFUSALS || self.until.is_some() {
            self.learn(now);
        }
    }

    fn learn(&mut self, now: Instant) {
        self.term = (2 * self.term).clamp(TERM, TERM_MAX);
        self.until = Some(now + self.term);
        (self.refusals, self.silences) = (0, 0);
    }
}

/// Returns the row of `program`, marked as used; makes room for a new row.
fn row<'a>(
    rows: &'a mut HashMap<ClientProgram, ProgramHistory>,
    program: &ClientProgram,
    now: Instant,
) -> &'a mut ProgramHistory {
    if !rows.contains_key(program) {
        make_room(rows, program.client, now);
    }
    let row = rows
        .entry(program.clone())
        .or_insert_with(|| ProgramHistory::new(now));
    row.touched = now;
    row
}

/// Removes the oldest row of a client that has used up the part per client, or the oldest of all
/// rows if the table is full. Rows with a tunnel are removed last.
fn make_room(rows: &mut HashMap<ClientProgram, ProgramHistory>, client: IpAddr, now: Instant) {
    let of_client = rows
        .keys()
        .filter(|program| program.client == client)
        .count();
    let is_theirs = of_client >= ROWS_PER_CLIENT;
    if !is_theirs && rows.len() < ROWS {
        return;
    }
    let among = rows
        .iter()
        .filter(|(program, _)| !is_theirs || program.client == client);
    let oldest = among.min_by_key(|(_, row)| (row.is_learned(now), row.touched));
    if let Some(oldest) = oldest.map(|(program, _)| program.clone()) {
        rows.remove(&oldest);
    }
}

/// Maximum number of rows; each takes some 200 bytes.
const ROWS: usize = 4096;
const ROWS_PER_CLIENT: usize = 256;
/// Number of refusals within [`TOGETHER`] after which the program gets a tunnel.
const REFUSALS: u8 = 2;
const TOGETHER: Duration = Duration::from_secs(10 * 60);
/// Number of handshakes without a request after which the program gets a tunnel: browsers open
/// connections ahead.
const SILENCES: u8 = 5;
/// First and maximum term of tunnels.
const TERM: Duration = Duration::from_secs(24 * 3600);
const TERM_MAX: Duration = Duration::from_secs(32 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn program(client: u8, fingerprint: u64) -> ClientProgram {
        ClientProgram {
            client: IpAddr::from([10, 0, 0, client]),
            host: "a.test".into(),
            fingerprint,
        }
    }

    #[test]
    fn two_refusals_within_ten_minutes_are_learned_for_this_program_alone() {
        let (learned, now) = (Refusals::default(), Instant::now());
        learned.note_refusal(&program(1, 1), now);
        assert!(!learned.tunnels(&program(1, 1), now));
        learned.note_refusal(&program(1, 1), now + TOGETHER);
        assert!(learned.tunnels(&program(1, 1), now + TOGETHER));
        assert!(!learned.tunnels(&program(1, 2), now));
        assert!(!learned.tunnels(&program(2, 1), now));
        // Connections that were made at the same time do not count again.
        learned.note_refusal(&program(1, 1), now + TOGETHER);
        learned.note_silence(&program(1, 1), now + TOGETHER);
        let refusers = learned.refusers(8, now + TOGETHER);
        assert_eq!((refusers.0, refusers.1[0].left), (1, TERM));
    }

    #[test]
    fn two_refusals_far_apart_are_two_accidents() {
        let (learned, now) = (Refusals::default(), Instant::now());
        learned.note_refusal(&program(1, 1), now);
        learned.note_refusal(&program(1, 1), now + TOGETHER + SECOND);
        assert!(!learned.tunnels(&program(1, 1), now + TOGETHER + SECOND));
        learned.note_refusal(&program(1, 1), now + TOGETHER + 2 * SECOND);
        assert!(learned.tunnels(&program(1, 1), now + TOGETHER + 2 * SECOND));
    }

    #[test]
    fn a_term_ends_and_the_next_is_twice_as_long_up_to_a_bound() {
        let (learned, mut now) = (Refusals::default(), Instant::now());
        learned.note_refusal(&program(1, 1), now);
        for days in [1, 2, 4, 8, 16, 32, 32] {
            learned.note_refusal(&program(1, 1), now);
            let term = days * TERM;
            assert!(
                learned.tunnels(&program(1, 1), now + term - SECOND),
                "{days}"
            );
            assert!(!learned.tunnels(&program(1, 1), now + term), "{days}");
            now += term;
        }
    }

    #[test]
    fn a_request_forgives_all() {
        let (learned, now) = (Refusals::default(), Instant::now());
        learned.note_refusal(&program(1, 1), now);
        learned.note_request(&program(1, 1), now);
        learned.note_refusal(&program(1, 1), now);
        assert!(!learned.tunnels(&program(1, 1), now));
        for _ in 0..2 * SILENCES {
            learned.note_silence(&program(1, 1), now);
        }
        assert!(!learned.tunnels(&program(1, 1), now));
    }

    #[test]
    fn who_leaves_without_a_word_is_believed_to_refuse_unless_it_has_asked() {
        let (learned, now) = (Refusals::default(), Instant::now());
        learned.note_request(&program(1, 1), now);
        for _ in 0..4 {
            learned.note_abort(&program(1, 1), now);
            learned.note_abort(&program(2, 1), now);
        }
        assert!(!learned.tunnels(&program(1, 1), now));
        assert!(learned.tunnels(&program(2, 1), now));
        for _ in 0..2 {
            learned.note_refusal(&program(1, 1), now);
        }
        assert!(learned.tunnels(&program(1, 1), now));
    }

    #[test]
    fn five_silences_with_no_request_ever_are_learned() {
        let (learned, now) = (Refusals::default(), Instant::now());
        for _ in 1..SILENCES {
            learned.note_silence(&program(1, 1), now);
            assert!(!learned.tunnels(&program(1, 1), now));
        }
        learned.note_silence(&program(1, 1), now);
        assert!(learned.tunnels(&program(1, 1), now));
    }

    #[test]
    fn a_flood_of_programs_stays_in_its_bounds_and_costs_no_other_client_its_row() {
        let (learned, mut now) = (Refusals::default(), Instant::now());
        for _ in 0..2 {
            learned.note_refusal(&program(1, 0), now);
        }
        for fingerprint in 0..3 * ROWS_PER_CLIENT as u64 {
            now += SECOND;
            learned.note_refusal(&program(2, fingerprint), now);
        }
        assert_eq!(learned.rows().len(), 1 + ROWS_PER_CLIENT);
        assert!(learned.tunnels(&program(1, 0), now));
        for client in 3..=255 {
            for fingerprint in 0..32 {
                now += Duration::from_millis(1);
                learned.note_refusal(&program(client, fingerprint), now);
            }
        }
        assert_eq!(learned.rows().len(), ROWS);
        assert!(learned.tunnels(&program(1, 0), now));
        assert!(!learned.rows().contains_key(&program(2, 1)));
    }
}
