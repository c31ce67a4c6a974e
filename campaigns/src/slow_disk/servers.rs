//! The servers that are measured, each alone on a disk of its own and within a limit of memory.
//!
//! Invariant: dropping a [`Contestant`] ends its processes, then removes its groups and its disk.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::Args;
use super::disk::Disk;
use crate::campaign::Campaign;
use crate::cgroup::Cgroup;
use crate::proxy_process::ProxyCommand;
use crate::rivals::{Kind, Log, Rival, Server, Setup};

/// A program, in one of its forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Ours, with this policy.
    Ours {
        policy: &'static str,
        grouped: bool,
    },
    Rival(Kind),
}

impl Which {
    pub const ALL: [Self; 8] = [
        OURS,
        Self::Ours {
            policy: "log",
            grouped: false,
        },
        Self::Ours {
            policy: "set-mem",
            grouped: false,
        },
        Self::Rival(Kind::SquidAufs),
        Self::Rival(Kind::SquidRockDisker),
        Self::Rival(Kind::NginxThreads),
        Self::Rival(Kind::TrafficServer),
        Self::Rival(Kind::VarnishFile),
    ];

    /// Its name in the report.
    pub fn name(self) -> String {
        match self {
            Self::Ours { policy, grouped } => {
                let grouped = if grouped { " grouped" } else { "" };
                format!("hashcache, {policy}{grouped}")
            }
            Self::Rival(kind) => kind.name().to_owned(),
        }
    }

    /// Whether its program is there.
    pub fn is_installed(self) -> bool {
        match self {
            Self::Ours { .. } => true,
            Self::Rival(kind) => kind.is_installed(),
        }
    }
}

/// How servers stand in front of the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// As its site.
    Site,
    /// As a proxy, with the origin as parent for the sites of a HAR file. Ours alone.
    Proxy,
}

/// A server that runs, and what it runs on. Dropped in this order.
pub struct Contestant {
    server: Server,
    disk_group: Cgroup,
    _memory_group: Cgroup,
    disk: Disk,
}

impl Contestant {
    /// Starts one in front of `origin`, with its disk in `folder`, which no other server
    /// uses.
    pub fn start(
        (which, front): (Which, Front),
        args: &Args,
        campaign: &Campaign,
        (origin, folder): (SocketAddr, &Path),
    ) -> anyhow::Result<Self> {
        // Varnish and Squid give up root.
        for folder in [campaign.folder(), folder] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
        }
        let store_mib = args.store_mib();
        let disk = Disk::make(folder, u64::from(store_mib + DISK_REST_MIB) << 20)?;
        let memory_group = Cgroup::memory()?;
        memory_group.limit(u64::from(args.memory) << 20)?;
        let disk_group = Cgroup::blkio()?;
        let groups = [&memory_group, &disk_group].map(|group| group.directory().to_owned());
        let directory = disk.directory().join("files");
        let server = match which {
            Which::Ours { policy, grouped } => {
                fs::create_dir(&directory)?;
                let command = ProxyCommand::new(campaign.binary()?, &directory.join("cache"))
                    .flag("cache-size", format!("{store_mib}MiB"))
                    .flag("memory", format!("{}MiB", args.memory - OURS_BESIDE_MIB))
                    .flag("policy", policy)
                    .flag("grouped", grouped)
                    .flag("access-log", "none");
                let command = match front {
                    Front::Site => command.flag("accelerate", format!("http://{origin}")),
                    Front::Proxy => command
                        .flag("parent", format!("http://{origin}"))
                        .flag("direct", "never"),
                };
                Server::Ours(within(command, &groups).start()?)
            }
            Which::Rival(kind) => Server::Rival(Rival::start(
                kind,
                &Setup {
                    run: campaign.folder(),
                    directory: &directory,
                    origin,
                    memory_mib: args.memory / RIVALS_MEMORY_PART,
                    disk_mib: store_mib,
                    log: Log::None,
                    processors: None,
                    cgroups: &groups,
                    certificate: None,
                },
            )?),
        };
        Ok(Self {
            server,
            disk_group,
            _memory_group: memory_group,
            disk,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Reads that our engine has made so far. The kernel makes several operations of the disk of a
    /// long one: each has at most 128 stretches of memory here.
    pub fn engine_reads(&self) -> anyhow::Result<Option<u64>> {
        match &self.server {
            Server::Ours(proxy) => Ok(proxy.stats()?["device"]["reads"].as_u64()),
            Server::Rival(_) => Ok(None),
        }
    }

    /// Makes its disk slow: so many reads and as many writes a second.
    pub fn limit_disk(&self, per_second: u32) -> anyhow::Result<()> {
        // What was written before is not to take the time of what follows.
        self.disk.sync()?;
        self.disk.limit(&self.disk_group, per_second)
    }
}

fn within(command: ProxyCommand, groups: &[PathBuf]) -> ProxyCommand {
    groups
        .iter()
        .fold(command, |command, group| command.cgroup(group))
}

/// The form that has the bars.
pub const OURS: Which = Which::Ours {
    policy: "log",
    grouped: true,
};
/// What the process needs beside its budget; `cargo campaign memory-limit` allows it as much.
const OURS_BESIDE_MIB: u32 = 40;
/// A half is for objects that the program keeps itself. The program, its index, and the page cache
/// need the rest; programs without memory of their own have it all for these.
const RIVALS_MEMORY_PART: u32 = 2;
/// Journal and inodes of the file system, and what files of one object each waste.
const DISK_REST_MIB: u32 = 1024;
