//! Caches of others in front of an origin, started for one run and removed after it.
//!
//! `cpu`, `slow_disk`, `restart` and `index_memory` compare the proxy with them; `configuration`
//! has their settings. Each has one thread for requests, as far as it can be told to. Invariant:
//! signals go only to processes that were started here, and all files that these leave are in the
//! directory of the run. Of the machine's configuration, Traffic Server reads a copy of the files
//! that are not written here.

mod configuration;

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::certificate::Certificate;
use crate::cgroup::enter;
use crate::proxy_process::ProxyProcess;
use crate::real_clients::tool::is_installed;
use configuration::Configuration;

/// A program, and settings in which an expert would run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With its defaults, which are best for small objects.
    Nginx,
    NginxSendfile,
    /// Files are read by threads, so that the worker never waits for the disk.
    NginxThreads,
    TrafficServer,
    /// In memory alone.
    Varnish,
    /// In a file, which is mapped into memory and does not outlast the process.
    VarnishFile,
    /// In memory alone.
    Squid,
    /// Objects in slots of one file.
    SquidRock,
    /// The same, read and written by a process of its own, so that Squid never waits for the disk.
    SquidRockDisker,
    /// An object in each file, read by threads.
    SquidAufs,
}

impl Kind {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::NginxSendfile => "nginx, sendfile",
            Self::NginxThreads => "nginx, threads",
            Self::TrafficServer => "Traffic Server",
            Self::Varnish => "Varnish",
            Self::VarnishFile => "Varnish, file",
            Self::Squid => "Squid",
            Self::SquidRock => "Squid, rock",
            Self::SquidRockDisker => "Squid, rock and disker",
            Self::SquidAufs => "Squid, aufs",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Nginx | Self::NginxSendfile | Self::NginxThreads => "nginx",
            Self::TrafficServer => "traffic_server",
            Self::Varnish | Self::VarnishFile => "varnishd",
            Self::Squid | Self::SquidRock | Self::SquidRockDisker | Self::SquidAufs => "squid",
        }
    }

    /// Whether the program is there.
    pub fn is_installed(self) -> bool {
        is_installed(self.program())
    }
}

/// The access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    None,
    /// In the combined format, written at once or as the program's defaults say.
    Combined,
}

/// What a rival is given.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The directory of the run.
    pub run: &'a Path,
    /// A directory for its files, in that of the run.
    pub directory: &'a Path,
    pub origin: SocketAddr,
    /// Memory for objects, of its own; the kernel's page cache comes on top.
    pub memory_mib: u32,
    /// Room for objects on disk, if it has a store there.
    pub disk_mib: u32,
    pub log: Log,
    /// The processors on which it runs, in the syntax of `taskset`; `None`: all.
    pub processors: Option<&'a str>,
    /// Its cgroups, one for each controller.
    pub cgroups: &'a [PathBuf],
    /// nginx listens with TLS too if there is one.
    pub certificate: Option<&'a Certificate>,
}

/// A server under load: ours or another one.
#[derive(Debug)]
pub enum Server {
    Ours(ProxyProcess),
    Rival(Rival),
}

impl Server {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Ours(proxy) => proxy.address(),
            Self::Rival(rival) => rival.address,
        }
    }

    /// Where it listens with TLS, if it does: of ours, the second listener.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Ours(proxy) => proxy.addresses().get(1).copied(),
            Self::Rival(rival) => rival.tls_address,
        }
    }

    /// Its processes.
    pub fn pids(&self) -> anyhow::Result<Vec<u32>> {
        match self {
            Self::Ours(proxy) => Ok(vec![proxy.pid()]),
            Self::Rival(rival) => rival.pids(),
        }
    }
}

/// A rival with its files and its store, that can be started any number of times.
#[derive(Clone, Debug)]
pub struct Prepared {
    name: &'static str,
    words: Vec<String>,
    directory: PathBuf,
    address: SocketAddr,
    tls_address: Option<SocketAddr>,
    /// The name of Squid's service, which its shared memory has.
    service: String,
}

impl Prepared {
    /// Writes its files and makes its store.
    pub fn make(kind: Kind, setup: &Setup<'_>) -> anyhow::Result<Self> {
        let directory = setup.directory;
        fs::create_dir_all(directory)?;
        // It cannot say which ports it was given; these were free a moment ago.
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0"));
        let [address, tls_address] = ports.map(|it| it.and_then(|it| it.local_addr()));
        let (address, tls_address) = (address?, tls_address?);
        let tls = setup.certificate.filter(|_| kind.program() == "nginx");
        let service = format!("rival{}n{}", std::process::id(), fastrand::u32(..));
        let configuration = Configuration {
            setup,
            address,
            tls: tls.map(|certificate| (tls_address, certificate)),
            name: &service,
        };
        let words = configuration.write(kind)?;
        let mut all: Vec<String> = setup.cgroups.iter().flat_map(|it| enter(it)).collect();
        if let Some(processors) = setup.processors {
            all.extend(["taskset", "-c", processors].map(str::to_owned));
        }
        all.extend(words);
        Ok(Self {
            name: kind.name(),
            words: all,
            directory: directory.to_owned(),
            address,
            tls_address: tls.map(|_| tls_address),
            service,
        })
    }

    /// Starts it and waits until it listens.
    pub fn start(&self) -> anyhow::Result<Rival> {
        let (directory, name) = (&self.directory, self.name);
        let said = fs::File::create(directory.join("said"))?;
        let child = Command::new(&self.words[0])
            .args(&self.words[1..])
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said)
            .env("TS_RUNROOT", directory.join("runroot.yaml"))
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let mut rival = Rival {
            child,
            address: self.address,
            tls_address: self.tls_address,
            service: self.service.clone(),
        };
        for _ in 0..START_LOOKS {
            if TcpStream::connect(self.address).is_ok() {
                return Ok(rival);
            }
            if let Some(status) = rival.child.try_wait()? {
                let said = fs::read_to_string(directory.join("said"))?;
                bail!("{name} ended with {status}: {said}");
            }
            std::thread::sleep(START_LOOK_TIME);
        }
        bail!("{name} does not listen on {}", self.address)
    }
}

/// A rival that runs.
#[derive(Debug)]
pub struct Rival {
    child: Child,
    address: SocketAddr,
    tls_address: Option<SocketAddr>,
    service: String,
}

impl Rival {
    /// Starts one with a new store and waits until it listens.
    pub fn start(kind: Kind, setup: &Setup<'_>) -> anyhow::Result<Self> {
        Prepared::make(kind, setup)?.start()
    }

    /// Kills all its processes (SIGKILL) at once, as a crash would.
    pub fn kill(mut self) -> anyhow::Result<()> {
        let processes: Vec<OwnedFd> = self.pids()?.into_iter().filter_map(open).collect();
        for process in &processes {
            // Best effort: a process may have ended as its parent did.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        self.child.wait()?;
        Ok(())
    }

    /// Its first process and all that it has started.
    fn pids(&self) -> anyhow::Result<Vec<u32>> {
        let mut pids = vec![self.child.id()];
        let mut at = 0;
        while let Some(pid) = pids.get(at).copied() {
            at += 1;
            // A process that has ended has no children.
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let children = children.unwrap_or_default();
            let children = children.split_whitespace().map(str::parse);
            pids.extend(children.collect::<Result<Vec<u32>, _>>()?);
        }
        Ok(pids)
    }
}

impl Rival {
    fn end(&mut self) {
        // A process that was waited for may have left its number to another one.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // A descriptor stays with its process.
        let pids = self.pids().unwrap_or_default();
        let processes: Vec<OwnedFd> = pids.into_iter().filter_map(open).collect();
        // The first process ends the others on SIGTERM, if all is well.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        for _ in 0..END_LOOKS {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(LOOK_TIME);
        }
        // Best effort: they may have ended.
        for process in processes {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        self.end();
        // A Squid that does not end well leaves its shared memory.
        let prefix = format!("{}-", self.service);
        let shared = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        for file in shared {
            if file.file_name().to_string_lossy().starts_with(&prefix) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

/// `None`: the process has ended.
fn open(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// A minute: a store may be read before the first answer.
const START_LOOKS: u32 = 12_000;
/// Short, because `restart` measures how long a start takes.
const START_LOOK_TIME: Duration = Duration::from_millis(5);
const END_LOOKS: u32 = 500;
const LOOK_TIME: Duration = Duration::from_millis(20);
