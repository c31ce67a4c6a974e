//! A child and its parent with a relay between them: the link that all sections measure.
//!
//! Used by all sections. Both boxes have keys of their own and know each other by their pins; the
//! child goes nowhere but to its parent.
//!
//! Invariant: the only way from the child to the parent leads through the relay, so its count of
//! bytes is all that went over the link: TLS, HTTP/2, fields, frames.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use hashcache_testkit::relay::Relay;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::campaign::Campaign;
use crate::cpu::cpu_ns;
use crate::proxy_process::{ProxyCommand, ProxyProcess};

/// What a pair differs in from others.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names its files; letters, digits, `-`.
    pub name: String,
    /// `--memory` of each box, MiB.
    pub memory: u64,
    /// `--cache-size` of each box, MiB.
    pub cache: u64,
    /// The server that the child's forwarded port leads to.
    pub forward: Option<SocketAddr>,
    /// The authority of origins with TLS, PEM; the parent alone knows it.
    pub upstream_ca: Option<PathBuf>,
    /// `--group-by` of both boxes, which then write and read what belongs together in one piece.
    pub group_by: Option<&'static str>,
    /// Cgroups of child and parent.
    pub cgroups: [Option<PathBuf>; 2],
}

impl Settings {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            memory: 256,
            cache: 1024,
            forward: None,
            upstream_ca: None,
            group_by: None,
            cgroups: [None, None],
        }
    }
}

/// One of the two boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Child,
    Parent,
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::Child, Self::Parent];

    pub fn name(self) -> &'static str {
        match self {
            Self::Child => "child",
            Self::Parent => "parent",
        }
    }
}

/// A box that may be killed and started again at its addresses.
#[derive(Debug)]
struct CacheBox {
    command: ProxyCommand,
    process: Option<ProxyProcess>,
    log: PathBuf,
}

impl CacheBox {
    fn running(&self) -> anyhow::Result<&ProxyProcess> {
        self.process.as_ref().context("the box was killed")
    }
}

/// Bytes on the link, and time on a processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// From the child to the parent.
    pub up: u64,
    /// From the parent to the child.
    pub down: u64,
    pub child_ns: u64,
    pub parent_ns: u64,
}

impl Used {
    /// What was used since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            up: self.up - before.up,
            down: self.down - before.down,
            child_ns: self.child_ns.saturating_sub(before.child_ns),
            parent_ns: self.parent_ns.saturating_sub(before.parent_ns),
        }
    }

    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self {
            up: self.up + other.up,
            down: self.down + other.down,
            child_ns: self.child_ns + other.child_ns,
            parent_ns: self.parent_ns + other.parent_ns,
        }
    }
}

/// A child, its parent, and the relay between them.
#[derive(Debug)]
pub struct Pair {
    child: CacheBox,
    parent: CacheBox,
    pub relay: Relay,
}

impl Pair {
    /// Starts both and waits until the link is up.
    pub async fn start(campaign: &Campaign, settings: &Settings) -> anyhow::Result<Self> {
        let folder = campaign.folder().join(&settings.name);
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let binary = campaign.binary()?;
        let [child_pin, parent_pin] = Side::BOTH.map(|side| pin(binary, &folder, side));
        let (child_pin, parent_pin) = (child_pin?, parent_pin?);
        let prepared = |side: Side| -> anyhow::Result<CacheBox> {
            let log = folder.join(format!("{}.log", side.name()));
            let mut command = campaign
                .proxy()?
                .without("access-log")
                .flag("access-log", log.display())
                // Squid's form has no place for the coding of a link.
                .flag("log-format", "combined")
                .flag("name", side.name())
                .flag("link-dir", folder.join(side.name()).display())
                .flag("memory", format!("{}MiB", settings.memory))
                .flag("cache-size", format!("{}MiB", settings.cache))
                .flag("allow-purge", "127.0.0.1");
            if let Some(group_by) = settings.group_by {
                command = command.flag("grouped", true).flag("group-by", group_by);
            }
            if let Some(group) = &settings.cgroups[side as usize] {
                command = command.cgroup(group);
            }
            Ok(CacheBox {
                command,
                process: None,
                log,
            })
        };
        let mut parent = prepared(Side::Parent)?;
        parent.command = parent
            .command
            .at(free_address()?)
            .flag("link-listen", free_address()?)
            .flag("link-children", child_pin);
        if let Some(file) = &settings.upstream_ca {
            parent.command = parent.command.flag("upstream-ca", file.display());
        }
        if let Some(to) = settings.forward {
            parent.command = parent.command.flag("allow-connect-port", to.port());
        }
        let running = parent.command.start()?;
        let at = running.link_address();
        let relay = Relay::tcp(at.context("the parent does not say where its link is")?)?;
        parent.process = Some(running);
        let config = folder.join("child.toml");
        fs::write(&config, child_of(relay.address(), &parent_pin))?;
        let mut child = prepared(Side::Child)?;
        child.command = child
            .command
            .at(free_address()?)
            .flag("config", config.display());
        if let Some(to) = settings.forward {
            let at = free_address()?.port();
            child.command = child.command.flag("link-forward", format!("{at}={to}"));
        }
        child.process = Some(child.command.start()?);
        let pair = Self {
            child,
            parent,
            relay,
        };
        pair.wait_until_up().await?;
        Ok(pair)
    }

    fn side(&self, side: Side) -> &CacheBox {
        match side {
            Side::Child => &self.child,
            Side::Parent => &self.parent,
        }
    }

    /// A running box.
    pub fn process(&self, side: Side) -> anyhow::Result<&ProxyProcess> {
        self.side(side).running()
    }

    /// Where clients ask the child.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.child.running()?.address())
    }

    /// The child's forwarded port.
    pub fn forward(&self) -> anyhow::Result<SocketAddr> {
        let port = self.child.running()?.forward_address();
        port.context("the child does not say where its forwarded port is")
    }

    /// Its access log so far.
    pub fn log(&self, side: Side) -> String {
        fs::read_to_string(&self.side(side).log).unwrap_or_default()
    }

    /// What `/-/links` says of the link, at the child or at the parent.
    pub fn status(&self, side: Side) -> anyhow::Result<Value> {
        let links = self.process(side)?.admin_page("/-/links")?;
        let links: Value = serde_json::from_str(&links).context("the status is no JSON")?;
        let list = match side {
            Side::Child => "parents",
            Side::Parent => "children",
        };
        Ok(links[list][0].clone())
    }

    /// The sum of a counter's series whose labels contain `with`.
    pub fn metric(&self, side: Side, name: &str, with: &str) -> anyhow::Result<u64> {
        let metrics = self.process(side)?.admin_page("/metrics")?;
        let series = metrics.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            let is_it = labels.is_empty() || labels.starts_with('{');
            (is_it && labels.contains(with)).then(|| value.parse::<u64>().ok())?
        });
        Ok(series.sum())
    }

    /// Returns when the child says that the link is up.
    async fn wait_until_up(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            if self.status(Side::Child)?["up"] == true {
                return Ok(());
            }
            if begun.elapsed() > UP_TIME {
                let said = self.child.running()?.said();
                bail!("the link is not up: {}; {said}", self.status(Side::Child)?);
            }
            sleep(LOOK_TIME).await;
        }
    }

    /// What was used so far, once no more bytes arrive.
    pub async fn used(&self) -> anyhow::Result<Used> {
        let mut seen = self.relay.passed_bytes();
        loop {
            sleep(QUIET_TIME).await;
            let now = self.relay.passed_bytes();
            if now == seen {
                break;
            }
            seen = now;
        }
        let [up, down] = seen;
        Ok(Used {
            up,
            down,
            child_ns: cpu_ns(&[self.child.running()?.pid()])?,
            parent_ns: cpu_ns(&[self.parent.running()?.pid()])?,
        })
    }

    /// Bytes that have arrived at the child so far.
    pub fn received_bytes(&self) -> u64 {
        let [_, down] = self.relay.passed_bytes();
        down
    }

    /// Gives the link this rate in each direction, and each direction half of the round trip.
    pub fn slow(&self, bits_per_second: u64, round_trip: Duration) {
        self.relay.change(|link| {
            for way in [&mut link.to_server, &mut link.to_client] {
                way.bytes_per_second = NonZeroU64::new(bits_per_second / 8);
                way.delay = round_trip / 2;
            }
        });
    }

    /// Stops both boxes and starts them again: what they hold is on disk alone then.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        for it in [&mut self.child, &mut self.parent] {
            let process = it.process.take().context("it was killed already")?;
            let status = tokio::task::block_in_place(|| process.terminate())?;
            ensure!(status.success(), "asked to stop, it ended with {status}");
        }
        for side in [Side::Parent, Side::Child] {
            tokio::task::block_in_place(|| self.start_again(side))?;
        }
        self.wait_until_up().await
    }

    /// Kills a box, as a power cut would.
    pub fn kill(&mut self, side: Side) -> anyhow::Result<()> {
        let killed = match side {
            Side::Child => self.child.process.take(),
            Side::Parent => self.parent.process.take(),
        };
        let killed = killed.context("it was killed already")?;
        ensure!(
            !killed.said().contains("panicked"),
            "the {} panicked: {}",
            side.name(),
            killed.said()
        );
        killed.kill()
    }

    /// Starts a killed box again, with its cache, at its addresses.
    pub fn start_again(&mut self, side: Side) -> anyhow::Result<()> {
        let it = match side {
            Side::Child => &mut self.child,
            Side::Parent => &mut self.parent,
        };
        it.process = Some(it.command.start()?);
        Ok(())
    }

    /// An error if one of the boxes has ended or panicked.
    pub fn check(&mut self) -> anyhow::Result<()> {
        for (name, it) in [("child", &mut self.child), ("parent", &mut self.parent)] {
            let process = it.process.as_mut().context("it was killed")?;
            let (ended, said) = (process.ended()?, process.said());
            ensure!(
                ended.is_none() && !said.contains("panicked"),
                "the {name} ended ({ended:?}) or panicked: {said}"
            );
        }
        Ok(())
    }
}

/// Makes the key of a box; its pin.
pub fn pin(binary: &Path, folder: &Path, side: Side) -> anyhow::Result<String> {
    let directory = folder.join(side.name());
    let made = Command::new(binary)
        .args(["link", "init", "--json", "--dir"])
        .arg(&directory)
        .output()
        .with_context(|| format!("cannot run {}", binary.display()))?;
    let said = String::from_utf8_lossy(&made.stderr);
    ensure!(made.status.success(), "`link init`: {said}");
    let made: Value = serde_json::from_slice(&made.stdout).context("`link init`: no JSON")?;
    Ok(made["pin"]
        .as_str()
        .context("`link init`: no pin")?
        .to_owned())
}

/// The configuration of a child.
pub fn child_of(parent: SocketAddr, pin: &str) -> String {
    format!(
        "direct = \"never\"\n[[peer]]\nname = \"hub\"\nurl = \"https://{parent}\"\n\
         pin = \"{pin}\"\nhttps = \"fetch\"\n"
    )
}

/// An address at which nothing listens now: a box that is started again must listen where it did.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

const UP_TIME: Duration = Duration::from_secs(60);
const LOOK_TIME: Duration = Duration::from_millis(20);
/// A link on which nothing moves for longer is idle.
const QUIET_TIME: Duration = Duration::from_millis(150);
