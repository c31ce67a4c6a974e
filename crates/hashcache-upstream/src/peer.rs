//! Peers: other caches through which this proxy fetches resources.
//!
//! Made from the settings at the start and at a reload. `Upstream` connects to them; in the proxy,
//! `route` chooses among them, `queries` sends them ICP and HTCP queries and `peers` answers their
//! queries. `learned` has the contents of a peer's store according to the digest.
//!
//! Invariant: the credentials of a peer are sent only to that peer, and neither they nor the secret
//! of a key ever appear in a log.

pub mod learned;

use std::hash::{Hash, Hasher};
use std::io::Read as _;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hashcache_base::failure::Failure;
use hashcache_base::state_file::{Link, open_regular};
use hashcache_http::{Host, Origin, Scheme};
use hashcache_link::identity::LinkIdentity;
use hashcache_link::parent::ParentLink;
use hashcache_link::pin::Pin;
use hashcache_peers::htcp::auth::Key;
use http::HeaderValue;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{info, warn};

use self::learned::Learned;

/// The operator's settings for a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// Name in logs and metrics; unique.
    pub name: String,
    /// The kind of requests that the peer gets.
    pub kind: PeerKind,
    /// The peer's URL; `https`: connections to it use TLS.
    pub url: Origin,
    /// User name and password for the peer.
    pub credentials: Credentials,
    /// The form of requests to the peer for https resources.
    pub https: PeerHttps,
    /// UDP port for ICP; `None`: no ICP with this peer in either direction.
    pub icp: Option<u16>,
    /// HTCP settings; `None`: no HTCP with this peer in either direction. A peer with both
    /// protocols is queried by HTCP, because HTCP carries request fields.
    pub htcp: Option<HtcpPeer>,
    /// How this proxy and the peer exchange the contents of their stores, beside queries.
    pub summary: PeerSummary,
    /// The answer to the peer's requests that miss in the store.
    pub misses: PeerMisses,
    /// The peer's share of the requests if the choice is by weight.
    pub weight: u32,
    /// The pin of the peer's key. A parent with a pin is used only over a link, and a link always
    /// needs a pin.
    pub pin: Option<Pin>,
}

/// HTCP settings for a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HtcpPeer {
    /// The peer's UDP port, not 0.
    pub port: u16,
    /// One line `name:secret` in this file, which is read at the start and at each reload. With a
    /// key all messages are signed, and messages without the peer's signature are refused.
    pub key_file: Option<PathBuf>,
    /// CLR requests from the peer are obeyed: it may remove stored responses.
    pub obeys_clear: bool,
    /// The peer gets a CLR for each URL that is purged here.
    pub sends_clear: bool,
}

/// The kind of requests that a peer gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PeerKind {
    /// All requests: the peer fetches a response that it does not have.
    #[default]
    Parent,
    /// Only requests for stored responses: the peer fetches nothing. The digest, ICP or HTCP shows
    /// the contents of the store.
    Sibling,
    /// Requests for the URLs that it owns: another box on the same site, see `members` of the
    /// proxy.
    Member,
}

/// How this proxy and a peer exchange the contents of their stores, beside queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PeerSummary {
    /// No exchange.
    #[default]
    None,
    /// Each side fetches the other's cache digest by HTTP.
    Digest,
    /// As `Digest`; later changes are sent by UDP (SC-ICP).
    Updates,
}

/// The answer to a peer's requests that miss in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PeerMisses {
    /// The resources are fetched, as for other clients.
    #[default]
    Fetched,
    /// Status 504, so that a sibling does not use this proxy as a parent.
    Refused,
}

/// The form of requests to a peer for https resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PeerHttps {
    /// CONNECT: TLS is between this proxy and the origin, and the peer stores nothing.
    #[default]
    Tunnel,
    /// A request with the whole URL: the peer is the origin's TLS client, and may store the
    /// response.
    Fetch,
}

impl PeerHttps {
    /// Returns true if requests to the peer for this scheme contain the whole URL.
    pub fn takes_url(self, scheme: Scheme) -> bool {
        scheme != Scheme::Https || self == Self::Fetch
    }
}

/// User name and password for a peer.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Credentials {
    /// No credentials are sent.
    #[default]
    None,
    /// One line `user:password` in this file, which is read at the start and at each reload.
    File(PathBuf),
    /// `user:password`, from the process environment.
    Given(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Given(_) => f.write_str("Given"),
        }
    }
}

/// A peer's credentials or key could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the {what} of the peer {peer} from {}", path.display())]
pub struct CredentialsError {
    what: &'static str,
    peer: String,
    path: PathBuf,
    source: io::Error,
}

impl PeerSettings {
    /// Makes the peer, and reads the credentials and key. `identity` is this box's key for links.
    ///
    /// # Errors
    /// The file of the credentials or of the key cannot be read, or other users may read it; or the
    /// peer has a pin, and this box has no key.
    pub fn load(&self, identity: Option<&LinkIdentity>) -> Result<Peer, CredentialsError> {
        let error = |what, path: &Path, source| CredentialsError {
            what,
            peer: self.name.clone(),
            path: path.to_owned(),
            source,
        };
        let authorization = match &self.credentials {
            Credentials::None => None,
            Credentials::Given(text) => Some(basic(text.as_bytes())),
            Credentials::File(path) => {
                let read = read_line(path, "user:password");
                let read = read.map_err(|source| error("credentials", path, source))?;
                Some(basic(&read))
            }
        };
        let key_file = self.htcp.as_ref().and_then(|htcp| htcp.key_file.as_ref());
        let htcp_key =
            key_file.map(|path| read_key(path).map_err(|source| error("HTCP key", path, source)));
        let link = match (self.pin, identity) {
            (None, _) => None,
            (Some(pin), Some(identity)) => Some(Arc::new(ParentLink::new(identity, pin))),
            (Some(_), None) => {
                let missing = io::Error::other("this box has no key for links");
                return Err(error("link", Path::new("link.pem"), missing));
            }
        };
        let literal = match self.url.authority.host {
            Host::V4(v4) => vec![IpAddr::V4(v4)],
            Host::V6(v6) => vec![IpAddr::V6(v6)],
            Host::Name(_) => vec![],
        };
        Ok(Peer {
            settings: self.clone(),
            authorization,
            htcp_key: htcp_key.transpose()?,
            health: PeerHealth::default(),
            query_health: PeerHealth::default(),
            round_trip: RoundTrip::default(),
            learned: Learned::default(),
            addresses: ArcSwap::from_pointee(literal),
            link,
        })
    }
}

/// Builds the field value for Basic authentication (RFC 7617).
fn basic(credentials: &[u8]) -> HeaderValue {
    let text = format!("Basic {}", STANDARD.encode(credentials));
    let mut value = HeaderValue::try_from(text).expect("base64 is made of visible characters");
    value.set_sensitive(true);
    value
}

/// Reads the key `name:secret` from a file that only the owner and the group may read.
fn read_key(path: &Path) -> io::Result<Key> {
    let line = read_line(path, "name:secret")?;
    let colon = line.iter().position(|&byte| byte == b':');
    let (name, secret) = line.split_at(colon.unwrap_or(line.len()));
    Key::new(name, secret.get(1..).unwrap_or_default()).map_err(io::Error::other)
}

/// Reads the single line of a file that only the owner and the group may read. The line has the
/// form `form`: two texts with a colon between them, of which the first is not empty.
fn read_line(path: &Path, form: &str) -> io::Result<Vec<u8>> {
    let file = open_regular(path, Link::Followed)?;
    if file.metadata()?.mode() & OTHERS != 0 {
        let what = "other users can read it or write to it: run `chmod 600` on it";
        return Err(io::Error::other(what));
    }
    let mut text = Vec::new();
    file.take(CREDENTIALS_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > CREDENTIALS_MAX {
        return Err(io::Error::other("it has more than 1 KiB"));
    }
    let line = text.trim_ascii();
    let is_line = !line.iter().any(u8::is_ascii_control);
    match line.iter().position(|&byte| byte == b':') {
        Some(1..) if is_line => Ok(line.to_vec()),
        _ => Err(io::Error::other(format!("it is not one line `{form}`"))),
    }
}

/// Permissions that the file must not have: only the owner and the group may read it.
const OTHERS: u32 = 0o027;
/// Maximum file size, bytes.
const CREDENTIALS_MAX: u64 = 1 << 10;

/// A peer as connections need it; shared by all cores. Peers with equal settings are equal: they
/// may share connections.
#[derive(Debug)]
pub struct Peer {
    /// The settings from the configuration.
    pub settings: PeerSettings,
    /// The Proxy-Authorization value.
    pub(crate) authorization: Option<HeaderValue>,
    /// Health for HTTP requests.
    pub health: PeerHealth,
    /// The key that signs HTCP messages in both directions.
    pub htcp_key: Option<Key>,
    /// Health for queries by UDP.
    pub query_health: PeerHealth,
    /// Time from a query by UDP to the reply.
    pub round_trip: RoundTrip,
    /// The contents of the peer's store, according to the digest.
    pub learned: Learned,
    /// The link to the peer, if the peer is used only over a link.
    pub link: Option<Arc<ParentLink>>,
    /// The addresses of the peer's host; empty until the name was looked up.
    addresses: ArcSwap<Vec<IpAddr>>,
}

impl PartialEq for Peer {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
            && self.authorization == other.authorization
            && self.htcp_key == other.htcp_key
            && self.link == other.link
    }
}

impl Eq for Peer {}

impl Hash for Peer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.settings.name.hash(state);
        self.settings.url.hash(state);
    }
}

impl Peer {
    /// The name in the configuration.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Returns true if requests to this peer for this scheme contain the whole URL.
    pub fn takes_url(&self, scheme: Scheme) -> bool {
        self.settings.https.takes_url(scheme)
    }

    /// Returns true if the peer's addresses must be known, because it is recognised by them as a
    /// client or by UDP.
    pub fn is_recognised(&self) -> bool {
        let PeerSettings { kind, misses, .. } = self.settings;
        kind == PeerKind::Sibling || misses == PeerMisses::Refused || self.is_queried()
    }

    /// Limit on the time for a connection to a sibling.
    pub fn connect_limit(&self) -> Duration {
        (self.reply_limit() + Duration::from_millis(200)).min(QUERY_LIMIT_MAX)
    }

    /// Limit on the time until the head of a sibling's response.
    pub fn head_limit(&self) -> Duration {
        (4 * self.reply_limit() + Duration::from_millis(250)).min(QUERY_LIMIT_MAX)
    }

    /// Limit on the time for a small message and the reply. A sibling without UDP queries is known
    /// only by the digest, and may be far away.
    fn reply_limit(&self) -> Duration {
        match self.health.connect_time() {
            _ if self.is_queried() => self.round_trip.query_limit(),
            Duration::ZERO => DIGEST_REPLY_LIMIT,
            time => (2 * time + QUERY_MARGIN).clamp(QUERY_LIMIT_UNKNOWN, QUERY_LIMIT_MAX),
        }
    }

    /// Returns true if the peer is another box in the same list.
    pub fn is_member(&self) -> bool {
        self.settings.kind == PeerKind::Member
    }

    /// Returns true if the peer gets UDP queries about its store.
    pub fn is_queried(&self) -> bool {
        self.settings.icp.is_some() || self.settings.htcp.is_some()
    }

    /// Returns true if `address` belongs to the peer.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.load().contains(&address.to_canonical())
    }

    /// Notes the addresses of the peer's host.
    pub fn set_addresses(&self, addresses: &[IpAddr]) {
        let addresses: Vec<_> = addresses.iter().map(IpAddr::to_canonical).collect();
        if **self.addresses.load() != addresses {
            self.addresses.store(addresses.into());
        }
    }

    /// Returns the peer's first address that `wants` accepts, i.e. that our socket can reach.
    pub fn address(&self, wants: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let addresses = self.addresses.load();
        addresses.iter().copied().find(|address| wants(*address))
    }

    /// Notes a reply to a query that was sent by UDP `round_trip` ago.
    pub fn note_reply(&self, round_trip: Duration) {
        self.round_trip.note(round_trip);
        if self.query_health.succeeded(Instant::now()) == HealthChange::CameUp {
            info!(peer = self.name(), "peer answers queries by UDP again");
        }
    }

    /// Notes a query by UDP that got no reply in time.
    pub fn note_no_reply(&self) {
        let failed = self.query_health.failed(PeerFailure::Other, Instant::now());
        if failed == HealthChange::WentDown {
            warn!(peer = self.name(), "peer does not answer queries by UDP");
        }
    }

    /// Notes that the peer has answered.
    pub fn note_success(&self) {
        if self.health.succeeded(Instant::now()) == HealthChange::CameUp {
            info!(peer = self.name(), "peer is up");
        }
    }

    /// Notes a failed attempt to use the peer. A failure to connect is the peer's fault. A request
    /// without a response may be the fault of an origin, which any client can choose: in this case
    /// a probe decides. Other failures are no evidence about the peer.
    pub fn note_failure(&self, failure: &Failure) {
        let kind = match failure {
            Failure::ConnectionRefused | Failure::Link(_) => PeerFailure::Refused,
            Failure::NameNotFound
            | Failure::NameError
            | Failure::NameTimeout(_)
            | Failure::Unreachable
            | Failure::ConnectTimeout(_)
            | Failure::TlsCertificate(_)
            | Failure::TlsAlert(_)
            | Failure::TlsProtocol(_) => PeerFailure::Other,
            Failure::ConnectionTerminated | Failure::FirstByteTimeout(_) => PeerFailure::Doubt,
            _ => return,
        };
        self.report(self.health.failed(kind, Instant::now()), failure);
    }

    /// Notes that an answer takes long: a probe decides whether the peer still answers.
    pub fn note_late(&self) {
        self.health.failed(PeerFailure::Doubt, Instant::now());
    }

    /// Notes a probe without an answer.
    pub(crate) fn note_failed_probe(&self, failure: &Failure) {
        self.report(self.health.probe_failed(Instant::now()), failure);
    }

    fn report(&self, change: HealthChange, failure: &Failure) {
        if change == HealthChange::WentDown {
            warn!(peer = self.name(), %failure, "peer is down");
        }
    }
}

/// Wakes the task that probes peers (`server/probes` in the proxy): a peer is in doubt or down, a
/// digest must be fetched at once, or the list of peers has changed. Proxies in the same process
/// share this notification, and check their peers more often than they need.
pub static PROBE_DUE: Notify = Notify::const_new();

/// A peer's state: up or down. A peer is down after one refused connection, after `FAILURES_DOWN`
/// other failures to connect in a row, or after a probe without an answer. It is up again after
/// `SUCCESSES_UP` successes in a row.
#[derive(Debug, Default)]
pub struct PeerHealth(Mutex<HealthState>);

#[derive(Debug, Default)]
struct HealthState {
    failures: u32,
    /// A probe is needed to find out whether the peer still answers.
    in_doubt: bool,
    /// Smoothed time to connect; zero: unknown.
    connect_time: Duration,
    /// Present while the peer is down.
    down: Option<Down>,
}

#[derive(Debug)]
struct Down {
    successes: u32,
    probes: usize,
    probe_at: Instant,
}

/// How an attempt to use a peer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerFailure {
    /// Nothing listens there.
    Refused,
    /// No connection to the peer was made.
    Other,
    /// The peer did not answer a request, perhaps because an origin did not answer.
    Doubt,
}

/// The effect of a report on the state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthChange {
    /// No change.
    None,
    /// The peer gets no more requests.
    WentDown,
    /// The peer gets requests again.
    CameUp,
}

impl PeerHealth {
    fn state(&self) -> std::sync::MutexGuard<'_, HealthState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the time that connecting took.
    pub fn note_connect_time(&self, time: Duration) {
        let mut state = self.state();
        state.connect_time = match state.connect_time {
            Duration::ZERO => time,
            // The weights in TCP's own estimate (RFC 6298).
            before => before.mul_f64(0.875) + time.mul_f64(0.125),
        };
    }

    /// Returns the usual time to connect; zero if it is not known.
    pub fn connect_time(&self) -> Duration {
        self.state().connect_time
    }

    /// Returns true if the peer gets requests.
    pub fn is_up(&self) -> bool {
        self.state().down.is_none()
    }

    /// Returns true if the peer is up and no probe is needed.
    pub fn is_settled(&self) -> bool {
        let state = self.state();
        state.down.is_none() && !state.in_doubt
    }

    /// Notes a response, or a probe that succeeded.
    pub(crate) fn succeeded(&self, now: Instant) -> HealthChange {
        let mut state = self.state();
        state.failures = 0;
        state.in_doubt = false;
        let Some(down) = &mut state.down else {
            return HealthChange::None;
        };
        down.successes += 1;
        if down.successes < SUCCESSES_UP {
            down.probe_at = down.probe_at.min(now + PROBE_PAUSES[0]);
            return HealthChange::None;
        }
        state.down = None;
        HealthChange::CameUp
    }

    /// Notes a failed attempt to use the peer.
    pub fn failed(&self, failure: PeerFailure, now: Instant) -> HealthChange {
        let mut state = self.state();
        if let Some(down) = &mut state.down {
            down.successes = 0;
            return HealthChange::None;
        }
        if failure == PeerFailure::Doubt {
            if !std::mem::replace(&mut state.in_doubt, true) {
                PROBE_DUE.notify_waiters();
            }
            return HealthChange::None;
        }
        state.failures += 1;
        if failure != PeerFailure::Refused && state.failures < FAILURES_DOWN {
            return HealthChange::None;
        }
        state.go_down(now)
    }

    /// Notes a probe without an answer.
    pub(crate) fn probe_failed(&self, now: Instant) -> HealthChange {
        let mut state = self.state();
        if let Some(down) = &mut state.down {
            down.successes = 0;
            return HealthChange::None;
        }
        state.go_down(now)
    }

    /// Returns true if a probe is due, because the peer is down or in doubt; the caller then sends
    /// the probe.
    pub fn take_probe(&self, now: Instant) -> bool {
        let mut state = self.state();
        if std::mem::take(&mut state.in_doubt) && state.down.is_none() {
            return true;
        }
        let Some(down) = state.down.as_mut().filter(|down| down.probe_at <= now) else {
            return false;
        };
        down.probes += 1;
        let pause = PROBE_PAUSES[down.probes.min(PROBE_PAUSES.len() - 1)];
        // Several proxies that lost a peer at the same moment must not all probe it together.
        down.probe_at = now + pause.mul_f64(0.8 + 0.4 * fastrand::f64());
        true
    }
}

impl HealthState {
    fn go_down(&mut self, now: Instant) -> HealthChange {
        self.down = Some(Down {
            successes: 0,
            probes: 0,
            probe_at: now + PROBE_PAUSES[0],
        });
        PROBE_DUE.notify_waiters();
        HealthChange::WentDown
    }
}

/// The smoothed time from a query to the reply, with the weights of TCP (RFC 6298: 7/8 old, 1/8
/// new).
#[derive(Debug, Default)]
pub struct RoundTrip {
    /// Microseconds; 0: unknown.
    smoothed_us: AtomicU32,
}

impl RoundTrip {
    fn note(&self, round_trip: Duration) {
        let new = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX);
        let new = new.clamp(1, u32::MAX / 8);
        // Two replies at the same moment may lose an update, which does no harm.
        let smoothed = match self.smoothed_us.load(Ordering::Relaxed) {
            0 => new,
            old => (old.saturating_mul(7) / 8).saturating_add(new / 8).max(1),
        };
        self.smoothed_us.store(smoothed, Ordering::Relaxed);
    }

    /// Returns the smoothed time; `None`: no reply was seen yet.
    pub fn smoothed(&self) -> Option<Duration> {
        let us = self.smoothed_us.load(Ordering::Relaxed);
        (us != 0).then(|| Duration::from_micros(us.into()))
    }

    /// Returns the time to wait for a reply to a query.
    pub fn query_limit(&self) -> Duration {
        self.smoothed().map_or(QUERY_LIMIT_UNKNOWN, |smoothed| {
            (2 * smoothed + QUERY_MARGIN).clamp(QUERY_LIMIT_MIN, QUERY_LIMIT_MAX)
        })
    }
}

/// Limit on a reply from a sibling without any connection so far: a satellite's round trip.
const DIGEST_REPLY_LIMIT: Duration = Duration::from_millis(700);
/// Time to wait for a peer's first replies.
const QUERY_LIMIT_UNKNOWN: Duration = Duration::from_millis(100);
/// Added to two round trips: the peer may have to read from a disk.
const QUERY_MARGIN: Duration = Duration::from_millis(10);
/// Minimum of the limit: on a slow or busy machine a thread may wait this long for a processor, and
/// a late reply costs a fetch from the origin.
const QUERY_LIMIT_MIN: Duration = Duration::from_millis(50);
const QUERY_LIMIT_MAX: Duration = Duration::from_secs(2);

/// Failures in a row after which a peer is down.
const FAILURES_DOWN: u32 = 3;
/// Successes in a row after which a peer is up again.
const SUCCESSES_UP: u32 = 2;
/// Pauses before the probes of a peer that is down; the last pause applies to all further probes.
const PROBE_PAUSES: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_is_down_after_one_refusal_or_three_failures_in_a_row() {
        let now = Instant::now();
        let health = PeerHealth::default();
        for _ in 0..2 {
            assert_eq!(health.failed(PeerFailure::Other, now), HealthChange::None);
        }
        health.succeeded(now);
        for _ in 0..2 {
            health.failed(PeerFailure::Other, now);
        }
        assert!(health.is_up());
        assert_eq!(
            health.failed(PeerFailure::Other, now),
            HealthChange::WentDown
        );
        assert!(!health.is_up());
        let refusing = PeerHealth::default();
        assert_eq!(
            refusing.failed(PeerFailure::Refused, now),
            HealthChange::WentDown
        );
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_response_take_a_peer_down_only_if_a_probe_fails_too() {
        let now = Instant::now();
        let health = PeerHealth::default();
        for _ in 0..10 {
            health.failed(PeerFailure::Doubt, now);
        }
        assert!(health.is_up() && health.take_probe(now));
        health.succeeded(now);
        assert!(health.is_up() && !health.take_probe(now));
        health.failed(PeerFailure::Doubt, now);
        assert!(health.take_probe(now));
        assert_eq!(health.probe_failed(now), HealthChange::WentDown);
        assert!(!health.is_up() && !health.take_probe(now));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_answers_again_is_up_within_ten_seconds() {
        let start = Instant::now();
        let health = PeerHealth::default();
        health.failed(PeerFailure::Refused, start);
        assert!(!health.take_probe(start));
        let mut back = None;
        for ms in (0..30_000).step_by(100) {
            let now = start + Duration::from_millis(ms);
            if health.take_probe(now) {
                // It answers from the 17th second on.
                let changed = if ms >= 17_000 {
                    health.succeeded(now)
                } else {
                    health.failed(PeerFailure::Other, now)
                };
                if changed == HealthChange::CameUp {
                    back = Some(ms);
                }
            }
        }
        assert!(back.is_some_and(|ms| ms <= 27_000), "{back:?}");
    }

    #[test]
    fn credentials_are_one_line_that_others_cannot_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("credentials");
        let read = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read_line(&path, "user:password").map_err(|error| error.to_string())
        };
        assert_eq!(read("user:pass:word\n", 0o600).unwrap(), b"user:pass:word");
        assert!(read("user:x", 0o644).unwrap_err().contains("chmod 600"));
        for wrong in ["", "user", ":x", "a:b\nc:d"] {
            assert!(read(wrong, 0o600).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_key_is_a_name_and_a_secret_that_no_output_shows() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let load = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let settings = PeerSettings {
                name: "a".into(),
                kind: PeerKind::Sibling,
                url: "http://192.0.2.1:3128".parse().unwrap(),
                credentials: Credentials::None,
                https: PeerHttps::Tunnel,
                icp: None,
                htcp: Some(HtcpPeer {
                    port: 4827,
                    key_file: Some(path.clone()),
                    obeys_clear: true,
                    sends_clear: false,
                }),
                summary: PeerSummary::None,
                misses: PeerMisses::Fetched,
                weight: 1,
                pin: None,
            };
            settings.load(None)
        };
        let peer = load("west:se:cret\n", 0o600).unwrap();
        assert_eq!(peer.htcp_key, Some(Key::new(b"west", b"se:cret").unwrap()));
        assert!(!format!("{peer:?}").contains("cret"));
        assert_ne!(peer, load("west:other", 0o600).unwrap());
        let error = load("west:se:cret", 0o644).unwrap_err();
        assert!(error.to_string().starts_with("cannot read the HTCP key"));
        for wrong in ["", "west", "west:", ":secret", "a:b\nc:d"] {
            assert!(load(wrong, 0o600).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn no_debug_output_shows_a_password() {
        let settings = PeerSettings {
            name: "isp".into(),
            kind: PeerKind::Parent,
            url: "http://192.0.2.1:3128".parse().unwrap(),
            credentials: Credentials::Given("user:secret".into()),
            https: PeerHttps::Tunnel,
            icp: None,
            htcp: None,
            summary: PeerSummary::None,
            misses: PeerMisses::Fetched,
            weight: 1,
            pin: None,
        };
        let peer = settings.load(None).unwrap();
        let shown = format!("{settings:?} {peer:?}");
        assert!(!shown.contains("secret"), "{shown}");
        assert!(!shown.contains(&STANDARD.encode("user:secret")), "{shown}");
        assert_eq!(peer.authorization.unwrap(), "Basic dXNlcjpzZWNyZXQ=");
    }
}
