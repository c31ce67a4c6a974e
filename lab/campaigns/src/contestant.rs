//! The servers that are measured, each alone on a disk of its own and within a limit of memory.
//!
//! Used by `slow_disk`, `restart` and `index_memory`, which compare ours with other caches.
//! Invariant: dropping a [`Contestant`] ends its processes, then removes its groups and its disk.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use hashcache::device::DiskModel;
use hashcache_testkit::{ContentOptions, ContentOrigin};
use serde_json::Value;

use crate::campaign::Campaign;
use crate::cgroup::Cgroup;
use crate::cpu::cpu_ns;
use crate::proxy_process::ProxyCommand;
use crate::rivals::{Kind, Log, Prepared, Server, Setup};
use crate::server_disk::ServerDisk;

/// The origin that all of them ask.
pub fn origin() -> anyhow::Result<ContentOrigin> {
    let origin = ContentOrigin::start_thread(ContentOptions {
        max_age: 86_400,
        ..ContentOptions::default()
    })?;
    Ok(origin)
}

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

    /// All with any of these words in their name; without a word, all.
    pub fn selected(words: &[String]) -> anyhow::Result<Vec<Self>> {
        let is_wanted = |which: &Self| {
            let name = which.name();
            words.is_empty() || words.iter().any(|word| name.contains(word))
        };
        let found: Vec<Self> = Self::ALL.into_iter().filter(is_wanted).collect();
        ensure!(!found.is_empty(), "no server has {words:?} in its name");
        Ok(found)
    }

    pub fn is_ours(self) -> bool {
        matches!(self, Self::Ours { .. })
    }

    /// A store with room for so many objects of up to 8 KiB, head included, and a quarter more.
    pub fn store_mib(self, objects: u64) -> u32 {
        let bytes = match self {
            // Half of it is for objects that lie elsewhere.
            Self::Ours {
                policy: "set-mem", ..
            } => 16 << 10,
            // Measured: an object of 7000 bytes took 10.7 KB.
            Self::Rival(Kind::TrafficServer) => 12 << 10,
            // One slot each, whose size is by default the double of such an object.
            Self::Rival(Kind::SquidRock | Kind::SquidRockDisker) => 16 << 10,
            // The head has pages of its own.
            Self::Rival(Kind::Varnish | Kind::VarnishFile) => 16 << 10,
            _ => 8 << 10,
        };
        let mib = ((objects + objects / 4) * bytes) >> 20;
        u32::try_from(mib).unwrap_or(u32::MAX).max(STORE_MIN_MIB)
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

/// What a server is given.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Memory of all its processes, page cache included.
    pub memory_mib: u32,
    /// Of that, for objects that it keeps in memory itself; ours has its index there too.
    pub objects_mib: u32,
    /// Objects on disk.
    pub store_mib: u32,
    /// The file system, which needs a journal, inodes, and the rest of the last block of each file.
    pub disk_mib: u32,
    /// The disk it is on, if it is a modelled one.
    pub model: Option<DiskModel>,
}

impl Room {
    /// As an expert divides the memory of a small machine.
    pub fn divided(which: Which, memory_mib: u32, store_mib: u32) -> Self {
        Self {
            memory_mib,
            objects_mib: match which {
                Which::Ours { .. } => memory_mib - OURS_BESIDE_MIB,
                Which::Rival(_) => memory_mib / RIVALS_MEMORY_PART,
            },
            store_mib,
            disk_mib: store_mib + DISK_REST_MIB,
            model: None,
        }
    }

    /// A file system for a store with room for so many objects, each of which may be a file.
    pub fn disk_mib(store_mib: u32, objects: u64) -> u32 {
        let for_inodes = u32::try_from((objects * INODE_BYTES) >> 20).unwrap_or(u32::MAX);
        store_mib.max(for_inodes).saturating_add(DISK_REST_MIB)
    }
}

/// How to start it.
enum Start {
    Ours(ProxyCommand),
    Rival(Prepared),
}

impl Start {
    fn start(&self) -> anyhow::Result<Server> {
        Ok(match self {
            Self::Ours(command) => Server::Ours(command.start()?),
            Self::Rival(prepared) => Server::Rival(prepared.start()?),
        })
    }
}

/// A server, and what it runs on. Dropped in this order.
pub struct Contestant {
    /// `None`: it was killed.
    server: Option<Server>,
    start: Start,
    disk_group: Cgroup,
    memory_group: Cgroup,
    disk: ServerDisk,
}

impl Contestant {
    /// Starts one in front of `origin`, with its disk in `folder`, which no other server
    /// uses.
    pub fn start(
        (which, front): (Which, Front),
        room: Room,
        campaign: &Campaign,
        (origin, folder): (SocketAddr, &Path),
    ) -> anyhow::Result<Self> {
        // Varnish and Squid give up root.
        for folder in [campaign.folder(), folder] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
        }
        let disk = ServerDisk::make(folder, u64::from(room.disk_mib) << 20, room.model)?;
        let memory_group = Cgroup::memory()?;
        memory_group.limit(u64::from(room.memory_mib) << 20)?;
        let disk_group = Cgroup::blkio()?;
        let groups = [&memory_group, &disk_group].map(|group| group.directory().to_owned());
        let directory = disk.directory().join("files");
        let start = match which {
            Which::Ours { policy, grouped } => {
                fs::create_dir(&directory)?;
                let command = ProxyCommand::new(campaign.binary()?, &directory.join("cache"))
                    .flag("cache-size", format!("{}MiB", room.store_mib))
                    .flag("memory", format!("{}MiB", room.objects_mib))
                    .flag("policy", policy)
                    .flag("grouped", grouped)
                    .flag("access-log", "none");
                let command = match front {
                    Front::Site => command.flag("accelerate", format!("http://{origin}")),
                    Front::Proxy => command
                        .flag("parent", format!("http://{origin}"))
                        .flag("direct", "never"),
                };
                Start::Ours(within(command, &groups))
            }
            Which::Rival(kind) => Start::Rival(Prepared::make(
                kind,
                &Setup {
                    run: campaign.folder(),
                    directory: &directory,
                    origin,
                    memory_mib: room.objects_mib,
                    disk_mib: room.store_mib,
                    log: Log::None,
                    processors: None,
                    cgroups: &groups,
                    certificate: None,
                },
            )?),
        };
        Ok(Self {
            server: Some(start.start()?),
            start,
            disk_group,
            memory_group,
            disk,
        })
    }

    /// Kills all its processes (SIGKILL), and takes its files out of the page cache.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        match self.server.take().context("it runs no more")? {
            Server::Ours(proxy) => proxy.kill()?,
            Server::Rival(rival) => rival.kill()?,
        }
        self.disk.remount()
    }

    /// Starts it again with the store that it left, and waits until it listens.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        self.server = Some(self.start.start()?);
        Ok(())
    }

    fn server(&self) -> anyhow::Result<&Server> {
        self.server.as_ref().context("it was killed")
    }

    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.server()?.address())
    }

    pub fn disk(&self) -> &ServerDisk {
        &self.disk
    }

    /// Processor time of all its processes so far.
    pub fn cpu_ns(&self) -> anyhow::Result<u64> {
        cpu_ns(&self.server()?.pids()?)
    }

    /// Memory of all its processes: their own and what they share, without pages of files.
    pub fn memory(&self) -> anyhow::Result<u64> {
        let count = |row| self.memory_group.count("memory.stat", row);
        Ok(count("rss ")? + count("shmem ")?)
    }

    /// The figures of our engine; `None` for others.
    pub fn engine(&self) -> anyhow::Result<Option<Value>> {
        match self.server()? {
            Server::Ours(proxy) => Ok(Some(proxy.stats()?)),
            Server::Rival(_) => Ok(None),
        }
    }

    /// Makes its disk slow: as its model is, or so many reads and as many writes a second.
    pub fn slow_disk(&self, per_second: u32) -> anyhow::Result<()> {
        // What was written before is not to take the time of what follows.
        self.disk.sync()?;
        self.disk.slow(&self.disk_group, per_second)
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
/// `mkfs.ext4` makes an inode for so many bytes.
const INODE_BYTES: u64 = 16 << 10;
/// Traffic Server takes no smaller one.
const STORE_MIN_MIB: u32 = 256;
