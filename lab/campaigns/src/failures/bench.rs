//! One cell: a proxy, the servers behind it, a relay in front of each server that gets the fault.
//!
//! Used by `mod`, which judges the figures. A server without a fault is always left: the origin
//! itself beside peers, two other origins of a site.
//!
//! Invariant: the cells share nothing, so they may be played at the same time.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache_testkit::relay::{Fault as LinkFault, Link, Relay};
use tokio::time::{Instant, sleep};

use super::clients::{Clients, Door, Fault as Error, Load, Sample};
use super::server::{CUT_BYTES, HasEverything, Lie, Server};
use crate::durations::Durations;
use crate::proxy_process::{ProxyCommand, ProxyProcess};

/// What the servers with the fault are to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Sibling,
    Parent,
    /// Several parents, and all of them have the fault.
    Parents,
    Member,
    /// One of three origins of a site, whose health is checked.
    Origin,
}

impl Role {
    pub const ALL: [Self; 5] = [
        Self::Sibling,
        Self::Parent,
        Self::Parents,
        Self::Member,
        Self::Origin,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Sibling => "sibling",
            Self::Parent => "parent",
            Self::Parents => "three parents",
            Self::Member => "member",
            Self::Origin => "origin of a site",
        }
    }

    /// Its `kind` in `[[peer]]`.
    pub fn kind(self) -> Option<&'static str> {
        match self {
            Self::Sibling => Some("sibling"),
            Self::Parent | Self::Parents => Some("parent"),
            Self::Member => Some("member"),
            Self::Origin => None,
        }
    }

    fn servers(self) -> usize {
        match self {
            Self::Parents => 3,
            _ => 1,
        }
    }
}

/// What is wrong with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing listens at its port.
    Killed,
    /// It accepts connections, and no byte of them is answered.
    Hung,
    /// All it sends arrives five seconds later.
    Slow,
    Lying(Lie),
    /// Every connection is reset in the middle of the first content.
    Cut,
    /// It is 700 ms away from the beginning, which is no fault.
    Distant,
}

impl Fault {
    pub fn name(self) -> String {
        match self {
            Self::Killed => "killed".to_owned(),
            Self::Hung => "hung".to_owned(),
            Self::Slow => "5 s slow".to_owned(),
            Self::Lying(Lie::Status(status)) => format!("lying: {status}"),
            Self::Lying(Lie::Garbage) => "lying: no HTTP".to_owned(),
            Self::Lying(Lie::BrokenContent) => "lying: broken content".to_owned(),
            Self::Lying(Lie::WrongLength) => "lying: wrong length".to_owned(),
            Self::Cut => "cut off".to_owned(),
            Self::Distant => "700 ms away".to_owned(),
        }
    }
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub role: Role,
    pub fault: Fault,
    pub load: Load,
}

/// What a cell has shown.
#[derive(Debug)]
pub struct Figures {
    /// Requests that ended after the fault had begun.
    pub requests: usize,
    pub failed: Vec<String>,
    /// Of the failed requests, those that began 2 s after the fault or later.
    pub failed_late: usize,
    pub wrong: Vec<String>,
    /// Usual time of a request before the fault.
    pub usual: Duration,
    /// Time beyond that with the fault.
    pub extra_median: Duration,
    pub extra_max: Duration,
    /// Time from the end of the fault to the first request for a new object.
    pub back: Option<Duration>,
    /// Lines of the proxy's log that call a server dead.
    pub deaths: usize,
}

/// A proxy and the servers behind it.
struct Bench {
    process: ProxyProcess,
    /// Has the fault.
    faulty: Server,
    relays: Vec<Relay>,
    /// For ICP.
    datagrams: Option<Relay>,
    /// The origin, or the other origins of the site.
    others: Vec<Server>,
    _answers: Option<HasEverything>,
}

impl Cell {
    pub fn name(self) -> String {
        let Self { role, fault, load } = self;
        format!("{}, {}, {}", role.name(), fault.name(), load.name())
    }

    /// Plays the cell with a proxy of `command`; files are put into `folder`.
    pub async fn play(
        self,
        command: ProxyCommand,
        folder: &Path,
        fault_time: Duration,
    ) -> anyhow::Result<Figures> {
        let mut bench = Bench::start(self, command, folder).await?;
        let clients = Clients::start(bench.door(self.role), self.load);
        let begun = Instant::now();
        while !bench.faulty.was_asked_since(0) || begun.elapsed() < WARM_TIME {
            ensure!(begun.elapsed() < USED_TIME, "the server was never asked");
            sleep(LOOK_PAUSE).await;
        }
        let fault_at = Instant::now();
        bench.break_down(self.fault).await;
        sleep(fault_time).await;
        bench.mend().await?;
        let (mended_at, first_after) = (Instant::now(), clients.next());
        while !bench.faulty.was_asked_since(first_after) && mended_at.elapsed() < USED_TIME {
            sleep(LOOK_PAUSE).await;
        }
        let is_back = bench.faulty.was_asked_since(first_after);
        let back = is_back.then(|| mended_at.elapsed());
        let samples = clients.finish().await;
        let said = bench.process.said();
        ensure!(
            bench.process.ended()?.is_none() && !said.contains("panicked"),
            "the proxy ended or panicked: {said}"
        );
        let is_death = |line: &&str| DEATHS.iter().any(|words| line.contains(words));
        let deaths = said.lines().filter(is_death).count();
        Ok(Figures::new(&samples, fault_at, back, deaths))
    }
}

impl Bench {
    async fn start(cell: Cell, command: ProxyCommand, folder: &Path) -> anyhow::Result<Self> {
        let faulty = Server::start().await?;
        let host = match cell.role {
            // A client with the address of a sibling would be taken for the sibling.
            Role::Sibling | Role::Member => Ipv4Addr::new(127, 0, 0, 2),
            _ => Ipv4Addr::LOCALHOST,
        };
        let relays = (0..cell.role.servers()).map(|_| Relay::tcp_at(host, faulty.address()));
        let relays = relays.collect::<Result<Vec<_>, _>>()?;
        let answers = match cell.role {
            Role::Sibling => Some(HasEverything::start().await?),
            _ => None,
        };
        let datagrams = answers.as_ref();
        let datagrams = datagrams.map(|it| Relay::udp_at(host, it.address, 1));
        let datagrams = datagrams.transpose()?;
        let others = match cell.role {
            Role::Origin => vec![Server::start().await?, Server::start().await?],
            _ => vec![Server::start().await?],
        };
        if cell.fault == Fault::Distant {
            for relay in relays.iter().chain(&datagrams) {
                relay.change(|link| link.to_client.delay = DISTANCE);
            }
        }
        let configuration = configuration(cell.role, &relays, datagrams.as_ref(), &others)?;
        let file = folder.join(format!(
            "{}.toml",
            cell.name().replace([' ', ',', ':'], "-")
        ));
        fs::write(&file, configuration)?;
        let process = command
            .flag("config", file.display())
            .flag("cache-size", "256MiB")
            .flag("memory", "32MiB")
            .start()?;
        Ok(Self {
            process,
            faulty,
            relays,
            datagrams,
            others,
            _answers: answers,
        })
    }

    fn door(&self, role: Role) -> Door {
        let (before_path, host) = match role {
            Role::Origin => (String::new(), Some(SITE.to_owned())),
            _ => (format!("http://{}", self.others[0].address()), None),
        };
        Door {
            proxy: self.process.address(),
            before_path,
            host,
        }
    }

    async fn break_down(&mut self, fault: Fault) {
        let to_all = |change: &dyn Fn(&mut Link)| {
            for relay in self.relays.iter().chain(&self.datagrams) {
                relay.change(change);
            }
        };
        match fault {
            Fault::Killed => {
                for relay in self.relays.iter_mut().chain(&mut self.datagrams) {
                    relay.stop().await;
                }
            }
            Fault::Hung => to_all(&|link| link.to_server.fault = Some(LinkFault::HangAfter(0))),
            Fault::Slow => to_all(&|link| link.to_client.delay = SLOWNESS),
            Fault::Lying(lie) => self.faulty.lie(Some(lie)),
            Fault::Cut => {
                // New connections, so that each is cut in its first content.
                for relay in &self.relays {
                    relay.kill_connections();
                    let cut = LinkFault::CutAfter(CUT_BYTES);
                    relay.change(|link| link.to_client.fault = Some(cut));
                }
            }
            Fault::Distant => {}
        }
    }

    async fn mend(&mut self) -> anyhow::Result<()> {
        self.faulty.lie(None);
        for relay in self.relays.iter_mut().chain(&mut self.datagrams) {
            relay.change(|link| {
                link.to_server.fault = None;
                link.to_client.fault = None;
                if link.to_client.delay == SLOWNESS {
                    link.to_client.delay = Duration::ZERO;
                }
            });
            relay.start()?;
        }
        Ok(())
    }
}

fn configuration(
    role: Role,
    relays: &[Relay],
    datagrams: Option<&Relay>,
    others: &[Server],
) -> anyhow::Result<String> {
    let Some(kind) = role.kind() else {
        let servers = relays.iter().map(Relay::address);
        let servers = servers.chain(others.iter().map(Server::address));
        let urls: Vec<String> = servers.map(|at| format!("\"http://{at}\"")).collect();
        return Ok(format!(
            "[[site]]\nhosts = [\"{SITE}\"]\norigins = [{}]\n\
             health = {{ path = \"/healthz\", interval = \"1s\", timeout = \"1s\" }}\n",
            urls.join(", ")
        ));
    };
    let mut text = String::new();
    if datagrams.is_some() {
        text += &format!("icp = \"{}\"\n", free_udp_address()?);
    }
    if role == Role::Member {
        // The list of members has the proxy itself, which owns few URLs and is never asked.
        text += "name = \"us\"\n[[peer]]\nname = \"us\"\nkind = \"member\"\n\
                 url = \"http://127.0.0.1:9\"\n";
    }
    for (number, relay) in relays.iter().enumerate() {
        text += &format!(
            "[[peer]]\nname = \"faulty{number}\"\nkind = \"{kind}\"\nurl = \"http://{}\"\n",
            relay.address()
        );
        if let Some(datagrams) = datagrams {
            text += &format!("icp = {}\n", datagrams.address().port());
        }
        if role == Role::Member {
            text += "weight = 100\n";
        }
    }
    Ok(text)
}

/// An address that no socket uses now.
fn free_udp_address() -> anyhow::Result<SocketAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("no port for ICP")?;
    Ok(socket.local_addr()?)
}

impl Figures {
    fn new(samples: &[Sample], fault_at: Instant, back: Option<Duration>, deaths: usize) -> Self {
        let is_before = |sample: &&Sample| sample.begun + sample.took < fault_at;
        let (before, with): (Vec<_>, Vec<_>) = samples.iter().partition(is_before);
        let usual = Durations::new(before.iter().map(|sample| sample.took).collect()).median();
        let extra = |sample: &&Sample| sample.took.saturating_sub(usual);
        let extras: Vec<Duration> = with.iter().map(extra).collect();
        let (mut failed, mut wrong, mut failed_late) = (vec![], vec![], 0);
        for sample in &with {
            match &sample.fault {
                Some(Error::Failed(what)) => {
                    failed.push(what.clone());
                    failed_late += usize::from(sample.begun >= fault_at + LATE_TIME);
                }
                Some(Error::Wrong(what)) => wrong.push(what.clone()),
                None => {}
            }
        }
        Self {
            requests: with.len(),
            failed,
            failed_late,
            wrong,
            usual,
            extra_max: extras.iter().max().copied().unwrap_or_default(),
            extra_median: Durations::new(extras).median(),
            back,
            deaths,
        }
    }
}

const SITE: &str = "www.failures.test";
const WARM_TIME: Duration = Duration::from_secs(2);
/// How long a server is waited for that should be asked.
pub const USED_TIME: Duration = Duration::from_secs(20);
const LOOK_PAUSE: Duration = Duration::from_millis(20);
const SLOWNESS: Duration = Duration::from_secs(5);
/// The round trip by a satellite in a high orbit.
const DISTANCE: Duration = Duration::from_millis(700);
/// From then on no request to a site may fail.
const LATE_TIME: Duration = Duration::from_secs(2);
/// What the proxy says of a server that it regards as dead.
const DEATHS: [&str; 4] = [
    "peer is down",
    "peer does not answer queries by UDP",
    "origin fails",
    "origin left out",
];
