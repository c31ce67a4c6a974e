//! Connections to upstream that belong to a client connection, because a client has logged in on
//! them (NTLM, Negotiate; see `hashcache_http::logs_in_connection`).
//!
//! Each client connection has a table, [`Pins`]. `request/pass` in the proxy takes a [`Turn`] in
//! this table for every request that has such a login or follows such a login; `Upstream::try_send`
//! sends the request on the connection of the turn, and `ResponseBody` puts the connection back. If
//! a response only offers such a login, the connection is kept here too, for the handshake.
//!
//! Invariants: a connection in the table never returns to the pool, and leaves the table only to be
//! closed, at the latest with the client connection. It serves one request at a time. A login
//! message that belongs to a challenge is sent on the connection of that challenge, or not at all.
//! In the table of a link, no client of the child takes the pins of another client: a client has at
//! most a quarter of the table, and a full table loses a pin of the client with the most pins.
//! Cost: for clients without such a login only an empty table and a check of it; with a login, at
//! most `PINS_MAX` connections for a client connection, idle for as long as pooled connections, a
//! share of all for each client (`permits`), and their memory in the client's share.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hashcache_base::failure::Failure;
use hashcache_base::share::{Network, Share, ShareGuard};
use hashcache_base::task::spawn_local;
use hashcache_http::{Authority, Scheme, Space};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use super::endpoint::Endpoint;
use super::permits::{BUSY_BYTES, Permits, PinnedPermit};
use super::pool::{LOOK_EVERY, Pool, UpstreamConn};

/// A client connection's upstream connections.
#[derive(Clone)]
pub struct Pins(Rc<PinTable>);

struct PinTable {
    pins: RefCell<Vec<Pin>>,
    max: usize,
    sweeping: Cell<bool>,
}

/// The user and the server of a login: one client connection can have several of both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinKey {
    /// The client address: a trusted proxy in front of a site sends requests of several clients on
    /// one connection.
    pub client: IpAddr,
    /// The number of the child's pin, if the request is from a link.
    pub linked: Option<LinkedLogin>,
    /// The resource's key space.
    pub space: Space,
    /// The origin's scheme.
    pub scheme: Scheme,
    /// The origin's authority.
    pub authority: Authority,
    /// The only server that may answer.
    pub server: Option<Authority>,
}

/// The number of a pin. A child names the pin to the parent by this number, because a link has the
/// requests of all clients of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkedLogin(pub u64);

/// Marks a request: the proxy that has sent it keeps the connection for a single client.
#[derive(Clone, Copy, Debug)]
pub struct KeptLogin;

/// An upstream connection, or a place for it.
struct Pin {
    number: u64,
    key: PinKey,
    client: Network,
    turn: Arc<Semaphore>,
    used: Instant,
    /// Where the login is.
    at: Option<At>,
    login: Login,
}

enum At {
    /// On this idle connection.
    Conn(Box<IdlePin>),
    /// At a parent, which keeps the connection under the number of this pin.
    Linked(Endpoint),
}

struct IdlePin {
    conn: UpstreamConn,
    to: Endpoint,
    since: Instant,
    idle_time: Duration,
    _permit: PinnedPermit,
    _memory: ShareGuard,
}

/// Login progress on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Login {
    /// The server has offered the login.
    #[default]
    Offered,
    /// The client has sent credentials, and the server's last response did not request more.
    Begun,
    /// The server waits for the client's response to the challenge.
    HalfDone,
}

/// The way a request uses upstream connections.
#[derive(Clone, Default)]
pub enum Pinning {
    /// The proxy's own request, on any connection. If the response offers a login for the
    /// connection, the connection is closed.
    #[default]
    None,
    /// A client's request, on any connection. If the response offers a login, the client gets the
    /// connection.
    Offer(Rc<PinOffer>),
    /// The request has or follows a login, so it gets this turn's connection.
    Turn(Rc<Turn>),
    /// The request has or follows a login, but the client connection may carry several clients: it
    /// gets a connection for this request only.
    Alone,
}

/// The table and the key for the connection of a response that offers a login.
pub struct PinOffer {
    pins: Weak<PinTable>,
    key: PinKey,
    client: Share,
}

/// Exclusive use of a pin, until the response is complete or dropped.
pub struct Turn {
    pins: Pins,
    number: u64,
    client: Share,
    conn: RefCell<Option<(UpstreamConn, Endpoint)>>,
    /// The connection is in the table again.
    is_kept: Cell<bool>,
    login: Cell<Login>,
    /// The current request has credentials.
    has_credentials: Cell<bool>,
    _turn: OwnedSemaphorePermit,
}

impl Default for Pins {
    fn default() -> Self {
        Self::with_max(PINS_MAX)
    }
}

impl Pins {
    /// Makes a link's table.
    pub fn of_link() -> Self {
        Self::with_max(LINKED_PINS_MAX)
    }

    fn with_max(max: usize) -> Self {
        Self(Rc::new(PinTable {
            pins: RefCell::default(),
            max,
            sweeping: Cell::new(false),
        }))
    }

    /// Returns true if no login was started or offered on this client connection.
    pub fn is_empty(&self) -> bool {
        self.0.pins.borrow().is_empty()
    }

    /// Returns true if the client has started a login: then further requests follow that login.
    pub fn has_login(&self, key: &PinKey) -> bool {
        let pins = self.0.pins.borrow();
        let mut begun = pins.iter().filter(|pin| pin.login != Login::Offered);
        begun.any(|pin| pin.key == *key)
    }

    /// Makes an offer for a request without a login.
    pub fn offer(&self, key: PinKey, client: Share) -> Rc<PinOffer> {
        Rc::new(PinOffer {
            pins: Rc::downgrade(&self.0),
            key,
            client,
        })
    }

    /// Waits for the use of the pin of `key`; makes the pin if there is none.
    ///
    /// # Errors
    /// There are too many pins, or the requests before this request take longer than `limit`:
    /// HTTP/2 clients may send many requests at once.
    pub async fn turn(
        &self,
        key: &PinKey,
        client: &Share,
        limit: Duration,
    ) -> Result<Rc<Turn>, Failure> {
        let waiting = async {
            loop {
                let (number, semaphore) = self.find_or_make(key, client.network())?;
                let turn = semaphore.acquire_owned().await;
                let turn = turn.map_err(|_| Failure::Internal("turns are closed"))?;
                // The request before may have closed the connection, which removes the pin.
                if let Some(turn) = self.begin(number, client, turn) {
                    return Ok(Rc::new(turn));
                }
            }
        };
        timeout(limit, waiting)
            .await
            .unwrap_or(Err(Failure::UpstreamLimit))
    }

    fn find_or_make(
        &self,
        key: &PinKey,
        client: Network,
    ) -> Result<(u64, Arc<Semaphore>), Failure> {
        let mut pins = self.0.pins.borrow_mut();
        if let Some(pin) = pins.iter().find(|pin| pin.key == *key) {
            return Ok((pin.number, Arc::clone(&pin.turn)));
        }
        let of = |client| pins.iter().filter(move |pin| pin.client == client).count();
        let share = match client {
            Network::ChildClient(..) => self.0.max / CLIENT_PART,
            // All pins belong to a single client, or to clients that the child does not
            // distinguish.
            Network::Address(_) | Network::Child(_) => self.0.max,
        };
        if of(client) >= share {
            drop_oldest(&mut pins, client)?;
        } else if pins.len() >= self.0.max {
            let idle = pins.iter().filter(|pin| !pin.is_in_use());
            let most = idle.map(|pin| pin.client).max_by_key(|client| of(*client));
            drop_oldest(&mut pins, most.ok_or(Failure::UpstreamLimit)?)?;
        }
        let pin = Pin::new(key.clone(), client);
        let found = (pin.number, Arc::clone(&pin.turn));
        pins.push(pin);
        Ok(found)
    }

    fn begin(&self, number: u64, client: &Share, turn: OwnedSemaphorePermit) -> Option<Turn> {
        let mut pins = self.0.pins.borrow_mut();
        let pin = pins.iter_mut().find(|pin| pin.number == number)?;
        pin.used = Instant::now();
        let conn = match pin.at.take() {
            Some(At::Conn(idle)) => Some((idle.conn, idle.to)),
            // The parent has the connection, or had it.
            linked => {
                pin.at = linked;
                None
            }
        };
        Some(Turn {
            pins: self.clone(),
            number,
            client: client.clone(),
            conn: RefCell::new(conn),
            is_kept: Cell::new(false),
            login: Cell::new(pin.login),
            has_credentials: Cell::new(false),
            _turn: turn,
        })
    }

    fn keep(&self, number: u64, at: At, login: Login) {
        let mut pins = self.0.pins.borrow_mut();
        let Some(pin) = pins.iter_mut().find(|pin| pin.number == number) else {
            return;
        };
        (pin.at, pin.login) = (Some(at), login);
        drop(pins);
        if !self.0.sweeping.replace(true) {
            spawn_local(sweep(Rc::downgrade(&self.0)));
        }
    }
}

impl Pin {
    fn new(key: PinKey, client: Network) -> Self {
        Self {
            number: NEXT_NUMBER.fetch_add(1, Relaxed),
            key,
            client,
            turn: Arc::new(Semaphore::new(1)),
            used: Instant::now(),
            at: None,
            login: Login::default(),
        }
    }

    fn is_in_use(&self) -> bool {
        self.turn.available_permits() == 0
    }
}

impl IdlePin {
    fn ends_at(&self) -> Instant {
        self.since + self.idle_time
    }
}

impl PinOffer {
    /// Keeps the connection of a complete response for the client, if that is still connected.
    pub(super) fn keep(&self, conn: UpstreamConn, to: Endpoint, pool: (&Permits, Duration)) {
        let Some(table) = self.pins.upgrade() else {
            return;
        };
        let pins = Pins(table);
        let Ok((number, _)) = pins.find_or_make(&self.key, self.client.network()) else {
            return;
        };
        let is_free = |pin: &Pin| pin.login == Login::Offered && !pin.is_in_use();
        let is_wanted = {
            let pins = pins.0.pins.borrow();
            let mut same = pins.iter().filter(|pin| pin.number == number);
            same.any(is_free)
        };
        // If a login was started meanwhile, it has a separate connection.
        if !is_wanted {
            return;
        }
        match IdlePin::new(conn, to, &self.client, pool) {
            Some(idle) => pins.keep(number, At::Conn(Box::new(idle)), Login::Offered),
            None => pins.forget_if_void(number),
        }
    }
}

impl IdlePin {
    fn new(
        conn: UpstreamConn,
        to: Endpoint,
        client: &Share,
        (permits, idle_time): (&Permits, Duration),
    ) -> Option<Self> {
        // A parent keeps the connection of a stream on a link, and HTTP/2 has no such logins.
        if !conn.rest() {
            return None;
        }
        let extra = conn.extra_bytes();
        Some(Self {
            _permit: permits.pinned(client.network(), extra)?,
            _memory: client.take(BUSY_BYTES + extra)?,
            conn,
            to,
            since: Instant::now(),
            idle_time,
        })
    }
}

impl Pins {
    /// Removes a pin without a connection and without a pending challenge.
    fn forget_if_void(&self, number: u64) {
        let is_void = |pin: &Pin| pin.at.is_none() && pin.login != Login::HalfDone;
        let mut pins = self.0.pins.borrow_mut();
        pins.retain(|pin| pin.number != number || !is_void(pin));
    }
}

impl Turn {
    /// Returns the login connection's endpoint; `None`: there is no connection.
    pub fn leads_to(&self) -> Option<Endpoint> {
        if let Some((_, to)) = &*self.conn.borrow() {
            return Some(to.clone());
        }
        let pins = self.pins.0.pins.borrow();
        let pin = pins.iter().find(|pin| pin.number == self.number)?;
        match &pin.at {
            Some(At::Linked(to)) => Some(to.clone()),
            _ => None,
        }
    }

    /// Returns true if the server waits for the answer to a challenge.
    pub fn is_half_done(&self) -> bool {
        self.login.get() == Login::HalfDone
    }

    /// Called when the client gets the message that the handshake has failed; the client may start
    /// a new handshake.
    pub fn give_up(&self) {
        self.login.set(Login::Offered);
    }

    /// Closes the connection, because it leads to another endpoint than this request.
    pub fn leave(&self) {
        self.conn.take();
        let mut pins = self.pins.0.pins.borrow_mut();
        if let Some(pin) = pins.iter_mut().find(|pin| pin.number == self.number) {
            pin.at = None;
        }
    }

    /// The pin number, for a parent.
    pub(super) fn number(&self) -> LinkedLogin {
        LinkedLogin(self.number)
    }

    /// Takes the connection to `to`, if it is still open.
    pub(super) fn take(&self, to: &Endpoint) -> Option<UpstreamConn> {
        let taken = self.conn.take().filter(|(_, leads_to)| leads_to == to);
        taken.map(|(conn, _)| conn).filter(UpstreamConn::is_open)
    }

    /// Called before a request is sent.
    pub(super) fn begin(&self, has_credentials: bool) {
        self.has_credentials.set(has_credentials);
        if has_credentials {
            // If there is no response, the login progress is unknown.
            self.login.set(Login::HalfDone);
        }
    }

    /// Called when the response has arrived; `asks`: it requests more credentials.
    pub(super) fn answered(&self, asks: bool) {
        self.login.set(match (self.has_credentials.get(), asks) {
            (true, true) => Login::HalfDone,
            (true, false) => Login::Begun,
            // The client has given up the handshake, or there was no handshake yet.
            (false, _) => self.login.get().min(Login::Begun),
        });
    }

    /// Keeps the connection of a complete response.
    pub(super) fn keep(&self, conn: UpstreamConn, to: Endpoint, pool: (&Permits, Duration)) {
        if let Some(idle) = IdlePin::new(conn, to, &self.client, pool) {
            self.is_kept.set(true);
            let at = At::Conn(Box::new(idle));
            self.pins.keep(self.number, at, self.login.get());
        }
    }

    /// Notes that a parent has the connection.
    pub(super) fn keep_linked(&self, to: Endpoint) {
        self.is_kept.set(true);
        self.pins
            .keep(self.number, At::Linked(to), self.login.get());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_kept.get() {
            return;
        }
        {
            let mut pins = self.pins.0.pins.borrow_mut();
            if let Some(pin) = pins.iter_mut().find(|pin| pin.number == self.number) {
                pin.at = None;
                // A challenge without the connection: the next message of the login is refused.
                pin.login = match self.login.get() {
                    Login::HalfDone => Login::HalfDone,
                    Login::Offered | Login::Begun => Login::Offered,
                };
            }
        }
        self.pins.forget_if_void(self.number);
    }
}

impl Pinning {
    /// Returns true if the request has or follows a login.
    pub fn is_login(&self) -> bool {
        matches!(self, Self::Turn(_) | Self::Alone)
    }

    /// The turn, if any.
    pub(super) fn turn(&self) -> Option<&Rc<Turn>> {
        match self {
            Self::Turn(turn) => Some(turn),
            Self::None | Self::Offer(_) | Self::Alone => None,
        }
    }
}

/// Drops a pin of `client` that is not in use: the least recently used pin, but a handshake only if
/// there is nothing else.
fn drop_oldest(pins: &mut Vec<Pin>, client: Network) -> Result<(), Failure> {
    let own = pins.iter().enumerate();
    let idle = own.filter(|(_, pin)| pin.client == client && !pin.is_in_use());
    let oldest = idle.min_by_key(|(_, pin)| (pin.login == Login::HalfDone, pin.used));
    let oldest = oldest.map(|(at, _)| at);
    pins.remove(oldest.ok_or(Failure::UpstreamLimit)?);
    Ok(())
}

/// Closes connections that were idle too long; returns when none is left, or with the table.
async fn sweep(table: Weak<PinTable>) {
    while let Some(first) = table.upgrade().and_then(|table| table.first_end()) {
        sleep_until(first.min(Instant::now() + LOOK_EVERY)).await;
        let Some(table) = table.upgrade() else { return };
        let now = Instant::now();
        let mut pins = table.pins.borrow_mut();
        pins.retain_mut(|pin| {
            let is_over = match &pin.at {
                Some(At::Conn(idle)) => idle.ends_at() <= now || !idle.conn.is_open(),
                Some(At::Linked(_)) | None => false,
            };
            if is_over {
                pin.at = None;
            }
            !is_over || pin.login == Login::HalfDone
        });
    }
    if let Some(table) = table.upgrade() {
        table.sweeping.set(false);
    }
}

impl PinTable {
    fn first_end(&self) -> Option<Instant> {
        let pins = self.pins.borrow();
        let idle = pins.iter().filter_map(|pin| match &pin.at {
            Some(At::Conn(idle)) => Some(idle.ends_at()),
            Some(At::Linked(_)) | None => None,
        });
        idle.min()
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PinOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinOffer")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// Numbers are drawn for the whole process, because a link has the pins of all cores.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);
/// Maximum logins per client connection. A browser uses one connection to a proxy for several
/// origins.
const PINS_MAX: usize = 8;
/// Maximum logins for all clients of a child.
const LINKED_PINS_MAX: usize = 256;
/// One client of a child may have 1/`CLIENT_PART` of them: eight browser connections, each with the
/// maximum number of logins.
const CLIENT_PART: usize = 4;

/// The place for a connection after the response is complete.
#[derive(Debug)]
pub(super) enum ConnHome {
    Pool,
    /// A client has logged in on it.
    Turn(Rc<Turn>),
    /// The response offers a login, and this client may want it.
    Offer(Rc<PinOffer>),
    /// The connection is closed.
    Nowhere,
}

impl ConnHome {
    /// Puts a connection in the right place. The last exchange on it, for `client`, is complete.
    pub(super) fn put(
        &self,
        pool: &Rc<Pool>,
        to: Endpoint,
        conn: UpstreamConn,
        client: Option<Network>,
    ) {
        let limits = (&pool.permits, pool.idle_time);
        match self {
            Self::Pool => pool.put(to, conn, client),
            Self::Turn(turn) => turn.keep(conn, to, limits),
            Self::Offer(offer) => offer.keep(conn, to, limits),
            Self::Nowhere => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use hashcache_base::net::address::Purpose;
    use hashcache_base::share::Shares;
    use hashcache_http::Host;
    use tokio::task::LocalSet;

    use super::*;

    fn key(name: &str) -> PinKey {
        PinKey {
            client: [192, 0, 2, 1].into(),
            linked: None,
            space: Space::Own,
            scheme: Scheme::Http,
            authority: Authority {
                host: Host::Name(name.into()),
                port: 80,
            },
            server: None,
        }
    }

    fn client() -> Share {
        Shares::new(1 << 30, 100).of([192, 0, 2, 1].into())
    }

    async fn turn(pins: &Pins, name: &str) -> Result<Rc<Turn>, Failure> {
        turn_of(pins, name, &client()).await
    }

    async fn turn_of(pins: &Pins, name: &str, client: &Share) -> Result<Rc<Turn>, Failure> {
        let limit = Duration::from_secs(10);
        pins.turn(&key(name), client, limit).await
    }

    /// Leaves a handshake whose challenge waits for the client.
    async fn leave_half_done(pins: &Pins, name: &str, client: &Share) {
        let turn = turn_of(pins, name, client).await.unwrap();
        turn.begin(true);
        turn.answered(true);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_of_a_child_evicts_no_login_of_another_one() {
        let (pins, shares) = (Pins::of_link(), Shares::new(1 << 30, 100));
        let child = shares.of_network(Network::Child(7));
        let of = |number| child.of_client(number);
        leave_half_done(&pins, "victim.test", &of(1)).await;
        for n in 0..2 * LINKED_PINS_MAX {
            leave_half_done(&pins, &format!("{n}.test"), &of(2)).await;
        }
        assert!(pins.has_login(&key("victim.test")));
        assert_eq!(
            pins.0.pins.borrow().len(),
            1 + LINKED_PINS_MAX / CLIENT_PART
        );
        // Many clients: clients with several pins give way to a client with none.
        for n in 0..2 * LINKED_PINS_MAX {
            let client = of(3 + u32::try_from(n % 8).unwrap());
            leave_half_done(&pins, &format!("more{n}.test"), &client).await;
        }
        assert_eq!(pins.0.pins.borrow().len(), LINKED_PINS_MAX);
        assert!(pins.has_login(&key("victim.test")));
        leave_half_done(&pins, "late.test", &of(99)).await;
        assert!(pins.has_login(&key("late.test")) && pins.has_login(&key("victim.test")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_is_the_last_of_its_client_to_be_dropped() {
        let test = async {
            let (pins, client) = (Pins::default(), client());
            leave_half_done(&pins, "begun.test", &client).await;
            for n in 0..2 * PINS_MAX {
                let name = format!("{n}.test");
                let turn = turn_of(&pins, &name, &client).await.unwrap();
                turn.begin(true);
                turn.answered(false);
                turn.keep_linked(Endpoint {
                    authority: key(&name).authority,
                    purpose: Purpose::Peer,
                    scheme: Scheme::Http,
                    through: None,
                });
            }
            assert!(pins.has_login(&key("begun.test")));
            assert_eq!(pins.0.pins.borrow().len(), PINS_MAX);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_a_login_wait_for_each_other_and_not_for_ever() {
        let pins = Pins::default();
        let first = turn(&pins, "a.test").await.unwrap();
        let refused = turn(&pins, "a.test").await;
        assert_eq!(refused.unwrap_err(), Failure::UpstreamLimit);
        assert!(turn(&pins, "b.test").await.is_ok(), "another login");
        drop(first);
        assert!(turn(&pins, "a.test").await.is_ok());
        assert!(pins.is_empty(), "nothing was sent, so nothing is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn a_challenge_is_remembered_without_its_connection_until_the_client_is_told() {
        let pins = Pins::default();
        let sent = turn(&pins, "a.test").await.unwrap();
        sent.begin(true);
        sent.answered(true);
        drop(sent);
        assert!(pins.has_login(&key("a.test")));
        let next = turn(&pins, "a.test").await.unwrap();
        assert!(next.is_half_done() && next.leads_to().is_none());
        next.give_up();
        drop(next);
        assert!(pins.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn no_login_is_given_up_while_it_is_in_use() {
        let pins = Pins::default();
        let mut held = Vec::new();
        for n in 0..PINS_MAX {
            held.push(turn(&pins, &format!("{n}.test")).await.unwrap());
        }
        let refused = turn(&pins, "more.test").await;
        assert_eq!(refused.unwrap_err(), Failure::UpstreamLimit);
        // Its challenge keeps a pin, which gives way to another login.
        let idle = held.remove(0);
        idle.begin(true);
        idle.answered(true);
        drop(idle);
        assert!(turn(&pins, "more.test").await.is_ok());
        assert!(!pins.has_login(&key("0.test")));
    }
}
