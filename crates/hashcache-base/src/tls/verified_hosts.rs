//! Hosts with certificates that were verified within the last week. Their connections are
//! intercepted without a new verification, so that stored responses are available while the line is
//! down.
//!
//! `connect/intercepted` in the proxy reads the table; `hashcache-upstream` reports every
//! handshake. The table is kept in a small file, which `server` in the proxy writes every few
//! seconds if there is anything new.
//!
//! Invariants: at most `HOSTS` entries. The file is replaced as a whole or not at all, and a
//! damaged file counts as empty. A host in the table is still verified on every connection to it.
//! Cost: one lock and one hash.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_http::{Authority, UnixTime};
use tracing::warn;

use crate::net::domain_of;
use crate::state_file::{Link, open_regular, replace};

/// Verified hosts; one table for all cores.
#[derive(Debug, Default)]
pub struct VerifiedHosts {
    rows: Mutex<HostRows>,
    /// True if the file differs from the table.
    is_changed: AtomicBool,
    path: Option<PathBuf>,
}

type HostRows = HashMap<Authority, VerifiedHost>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct VerifiedHost {
    at: UnixTime,
    /// The end of the certificate's validity.
    not_after: UnixTime,
}

impl VerifiedHosts {
    /// Loads the file at `path`, and later saves the table there.
    pub fn load(path: Option<PathBuf>) -> Self {
        let rows = path.as_deref().map(read).unwrap_or_default();
        Self {
            rows: Mutex::new(rows),
            is_changed: AtomicBool::new(false),
            path,
        }
    }

    /// The end of validity of `authority`'s certificate, if it was verified recently and is still
    /// valid.
    pub fn not_after(&self, authority: &Authority, now: UnixTime) -> Option<UnixTime> {
        let row = *self.rows().get(authority)?;
        // A verification in the future was done with a wrong clock.
        let is_recent = row.at <= now && now.0 - row.at.0 < LIFE.as_secs();
        (is_recent && now < row.not_after).then_some(row.not_after)
    }

    /// Notes that the certificate of `authority` was verified now.
    pub fn note(&self, authority: &Authority, not_after: UnixTime, now: UnixTime) {
        let mut rows = self.rows();
        if rows.len() >= HOSTS && !rows.contains_key(authority) {
            remove_one(&mut rows);
        }
        rows.insert(authority.clone(), VerifiedHost { at: now, not_after });
        self.is_changed.store(true, Relaxed);
    }

    /// As [`note`](Self::note), for an intercepted host, which already has an entry. A renewal with
    /// the same certificate is recorded at most once an hour, to limit writes to the file.
    pub fn renew(
        &self,
        authority: &Authority,
        now: UnixTime,
        not_after: impl FnOnce() -> Option<UnixTime>,
    ) {
        let mut rows = self.rows();
        let Some(row) = rows.get_mut(authority) else {
            return;
        };
        let Some(not_after) = not_after() else {
            return;
        };
        let is_new =
            row.not_after != not_after || now < row.at || now.0 - row.at.0 >= RENEWAL_SECONDS;
        if is_new {
            *row = VerifiedHost { at: now, not_after };
            self.is_changed.store(true, Relaxed);
        }
    }

    /// Forgets `authority`, so that it must be verified again before it is intercepted.
    pub fn forget(&self, authority: &Authority) {
        if self.rows().remove(authority).is_some() {
            self.is_changed.store(true, Relaxed);
        }
    }

    /// Number of hosts.
    pub fn count(&self) -> usize {
        self.rows().len()
    }

    /// Writes the file if there is anything new.
    pub fn persist(&self) -> io::Result<()> {
        let Some(path) = self.path.as_deref() else {
            return Ok(());
        };
        if !self.is_changed.swap(false, Relaxed) {
            return Ok(());
        }
        let text = text(&self.rows());
        let written = replace(path, text.as_bytes());
        if written.is_err() {
            self.is_changed.store(true, Relaxed);
        }
        written
    }

    /// Writes the file every few seconds if there is anything new; never returns.
    pub async fn keep(self: Arc<Self>) {
        let mut is_failing = false;
        loop {
            tokio::time::sleep(PERSIST_EVERY).await;
            let verified = Arc::clone(&self);
            let kept = tokio::task::spawn_blocking(move || verified.persist()).await;
            let error = match kept {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error),
                Err(error) => Some(io::Error::other(error)),
            };
            // Logged once per series of failures: a full disk stays full for a while.
            if let (Some(error), false) = (&error, is_failing) {
                warn!(%error, "verified hosts not saved");
            }
            is_failing = error.is_some();
        }
    }

    fn rows(&self) -> MutexGuard<'_, HostRows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entries in the file at `path`; none if there is no such file.
fn read(path: &Path) -> HostRows {
    let mut text = String::new();
    let read = open_regular(path, Link::Refused);
    let read = read.and_then(|file| file.take(FILE_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => parse(&text).unwrap_or_else(|| {
            warn!(path = %path.display(), "verified hosts not loaded: the file is damaged");
            HostRows::new()
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => HostRows::new(),
        Err(error) => {
            warn!(%error, path = %path.display(), "verified hosts not loaded");
            HostRows::new()
        }
    }
}

/// A head line, a line per host with both times in seconds, and the number of hosts.
fn text(rows: &HostRows) -> String {
    let mut text = format!("{HEAD}\n");
    for (authority, row) in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{authority} {} {}", row.at.0, row.not_after.0);
    }
    let _ = writeln!(text, "{END} {}", rows.len());
    text
}

fn parse(text: &str) -> Option<HostRows> {
    let (lines, end) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let mut lines = lines.lines();
    if lines.next() != Some(HEAD) {
        return None;
    }
    let rows: HostRows = lines.map(row).collect::<Option<_>>()?;
    let count: usize = end.strip_prefix(END)?.trim_start().parse().ok()?;
    (rows.len() == count && count <= HOSTS).then_some(rows)
}

fn row(line: &str) -> Option<(Authority, VerifiedHost)> {
    let mut words = line.split(' ');
    let authority = Authority::parse_with_port(words.next()?).ok()?;
    let mut time = || words.next()?.parse().ok().map(UnixTime);
    let row = VerifiedHost {
        at: time()?,
        not_after: time()?,
    };
    words.next().is_none().then_some((authority, row))
}

/// Removes the oldest row. A domain's owner can make any number of hosts below it, so if a domain
/// takes more than an eighth of the table, that domain's oldest row is removed.
fn remove_one(rows: &mut HostRows) {
    let domain = |authority: &Authority| domain_of(&authority.host.to_string()).to_owned();
    let mut domains: HashMap<String, usize> = HashMap::new();
    for authority in rows.keys() {
        *domains.entry(domain(authority)).or_default() += 1;
    }
    let largest = domains.into_iter().max_by_key(|(_, count)| *count);
    let largest = largest.filter(|(_, count)| *count > HOSTS / 8);
    let goes_first = |authority: &Authority| {
        let largest = largest.as_ref();
        largest.is_none_or(|(largest, _)| domain(authority) == *largest)
    };
    let first = rows.iter().filter(|(authority, _)| goes_first(authority));
    let oldest = first.min_by_key(|(_, row)| row.at);
    if let Some(oldest) = oldest.map(|(authority, _)| authority.clone()) {
        rows.remove(&oldest);
    }
}

/// How long a verification is valid.
const LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of hosts; a line has at most 300 bytes.
const HOSTS: usize = 2048;
const FILE_BYTES: u64 = 1 << 20;
const RENEWAL_SECONDS: u64 = 3600;
const PERSIST_EVERY: Duration = Duration::from_secs(5);
const HEAD: &str = "hashcache verified hosts 1";
const END: &str = "end";

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000);
    const DAY: u64 = 86_400;

    fn authority(text: &str) -> Authority {
        Authority::parse_with_port(text).unwrap()
    }

    fn later(seconds: u64) -> UnixTime {
        UnixTime(NOW.0 + seconds)
    }

    #[test]
    fn a_host_is_verified_for_a_week_and_no_longer_than_its_certificate() {
        let verified = VerifiedHosts::default();
        let (long, short) = (authority("a.test:443"), authority("b.test:443"));
        verified.note(&long, later(90 * DAY), NOW);
        verified.note(&short, later(DAY), NOW);
        let known = |authority: &Authority, seconds| {
            verified.not_after(authority, later(seconds)).is_some()
        };
        assert!(known(&long, 0) && known(&long, 7 * DAY - 1) && !known(&long, 7 * DAY));
        assert!(known(&short, DAY - 1) && !known(&short, DAY));
        assert_eq!(verified.not_after(&long, UnixTime(NOW.0 - 1)), None);
        assert_eq!(verified.not_after(&authority("a.test:444"), NOW), None);
        verified.renew(&long, later(6 * DAY), || None);
        assert!(!known(&long, 12 * DAY));
        verified.renew(&long, later(6 * DAY), || Some(later(90 * DAY)));
        assert!(known(&long, 12 * DAY));
        verified.renew(&authority("c.test:443"), NOW, || Some(later(DAY)));
        assert!(!known(&authority("c.test:443"), 0));
        verified.forget(&long);
        assert!(!known(&long, 0));
    }

    #[test]
    fn what_is_kept_is_there_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("verified");
        let verified = VerifiedHosts::load(Some(path.clone()));
        verified.persist().unwrap();
        assert!(!path.exists(), "nothing is new");
        for host in ["a.test:443", "[2001:db8::1]:8443"] {
            verified.note(&authority(host), later(DAY), NOW);
        }
        verified.persist().unwrap();
        let again = VerifiedHosts::load(Some(path));
        assert_eq!(*again.rows(), *verified.rows());
        assert_eq!(
            again.not_after(&authority("a.test:443"), NOW),
            Some(later(DAY))
        );
    }

    #[test]
    fn a_file_that_is_cut_or_changed_is_as_none() {
        let verified = VerifiedHosts::default();
        for host in ["a.test:443", "b.test:443"] {
            verified.note(&authority(host), later(DAY), NOW);
        }
        let whole = text(&verified.rows());
        assert_eq!(parse(&whole).unwrap().len(), 2);
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), None, "{length}");
        }
        for (from, to) in [
            ("hosts 1", "hosts 2"),
            ("a.test:443", "a.test"),
            ("a.test:443", "b.test:443"),
            ("a.test:443", "a..test:443"),
            (" 18", " x8"),
            ("end 2", "end 3"),
        ] {
            assert_eq!(parse(&whole.replacen(from, to, 1)), None, "{from}");
        }
        assert_eq!(parse(""), None);
        assert_eq!(parse("\n\n"), None);
    }

    #[test]
    fn the_hosts_of_one_domain_displace_no_others() {
        let verified = VerifiedHosts::default();
        let other = authority("www.other.test:443");
        verified.note(&other, later(DAY), later(0));
        for n in 0..2 * HOSTS as u64 {
            let host = authority(&format!("{n}.evil.test:443"));
            verified.note(&host, later(DAY), later(n));
        }
        assert_eq!(verified.count(), HOSTS);
        assert!(verified.not_after(&other, later(1)).is_some());
    }

    #[test]
    fn the_table_is_bounded_and_the_oldest_goes() {
        let verified = VerifiedHosts::default();
        for n in 0..=HOSTS as u64 {
            let host = authority(&format!("{n}.test:443"));
            verified.note(&host, later(DAY), later(n));
        }
        assert_eq!(verified.count(), HOSTS);
        let now = later(HOSTS as u64);
        assert_eq!(verified.not_after(&authority("0.test:443"), now), None);
        assert!(verified.not_after(&authority("1.test:443"), now).is_some());
        let text = text(&verified.rows());
        assert_eq!(parse(&text).unwrap().len(), HOSTS);
        let longest = "x".repeat(63) + "." + &"y".repeat(63) + "." + &"z".repeat(63);
        let line = format!(
            "{longest}.{}:65535 {} {}\n",
            "w".repeat(60),
            u64::MAX,
            u64::MAX
        );
        assert!(
            (HOSTS * line.len()) as u64 + 100 < FILE_BYTES,
            "{}",
            line.len()
        );
    }
}
