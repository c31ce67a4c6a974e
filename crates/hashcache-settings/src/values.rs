//! The typed settings, before the proxy and the engine take their parts.
//!
//! The rows of `keys` parse each value into a `Values` and show it; `Values::for_proxy` converts it
//! to the proxy's settings.

use std::num::NonZeroU32;
use std::path::PathBuf;
#[cfg(test)]
use std::time::Duration;

use hashcache::{Io, Placement, PolicyKind, Rows};
use hashcache_http::{Host, Origin};
use hashcache_proxy::{
    CertificateFiles, Direct, GroupBy, HostOptions, Mode, PeerChoice, Pin, Reloadable, SentHost,
    Settings, Site, Sites, Startup,
};

use super::keys::keys;
use super::peers::{Parent, PeersAndRoutes};

/// Without `max_object_size`, an object may take at most a cache file's size divided by this
/// number.
const OBJECTS_PER_CACHE: u64 = 4;

/// All settings. `Values::default()` has only the types' defaults; see [`Values::defaults`].
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// The engine's settings, which apply at the next start.
    pub engine: Engine,
    /// The proxy's settings that apply at the next start.
    pub startup: Startup,
    /// The proxy's settings that apply at a reload.
    pub reloadable: Reloadable,
    /// Files with certificates to present to clients.
    pub tls_cert: Vec<PathBuf>,
    /// Files with the keys of these certificates, in the same order.
    pub tls_key: Vec<PathBuf>,
    /// The origin that the proxy accelerates (reverse proxy), if any.
    pub accelerate: Option<Origin>,
    /// That origin's host names; empty means any name.
    pub accelerate_host: Vec<Host>,
    /// Largest object to store, bytes; `None` means a share of `cache_size`.
    pub max_object_size: Option<u64>,
    /// Parents by URL, or from the environment.
    pub parent: Vec<Parent>,
    /// The only parent's pin by URL, if a link is used to reach it.
    pub parent_pin: Option<Pin>,
    /// Default directory for this box's key for links.
    pub link_dir_default: Option<PathBuf>,
    /// Default for routes: the use of direct connections to origins.
    pub direct: Direct,
    /// Default for routes: the rule that chooses the first peer.
    pub peer_choice: PeerChoice,
    /// All peers and routes; built from the other settings and the tables in the file.
    pub peers: PeersAndRoutes,
    /// The certificate authority's directory for interception.
    pub intercept_ca: Option<PathBuf>,
    /// Hosts for which TLS is intercepted.
    pub intercept: HostOptions,
    /// A contact person, named on pages that refuse a request.
    pub contact: Option<String>,
    /// True if the freshness rules that ship with the program are applied.
    pub default_rules: bool,
    /// See `keys::trial`.
    #[cfg(test)]
    pub trial_time: Duration,
}

/// The engine's settings. They need a restart, and most of them a new cache.
#[derive(Clone, Debug, Default)]
pub struct Engine {
    /// Cache files or devices.
    pub cache: Vec<PathBuf>,
    /// Size of each cache file or device, bytes.
    pub cache_size: u64,
    /// Memory for the index, hot objects and pending writes, bytes.
    pub memory: u64,
    /// The policy: how the engine places objects.
    pub policy: PolicyKind,
    /// Share of the entries that memory holds, in 1/100, for policies that hold only a part;
    /// `None`: the policy's default.
    pub held_share: Option<u8>,
    /// Number of index rows in which a name can be.
    pub rows: Rows,
    /// True if the objects of a page group are written and read together.
    pub grouped: bool,
    /// The scope of a page group: a page of a client, or an origin.
    pub group_by: GroupBy,
    /// The rule that chooses the device of an object.
    pub placement: PlaceBy,
    /// True if objects in use are saved from the log's head before it overwrites them.
    pub readmission: bool,
    /// The I/O backend for reads that must not block a thread of the proxy.
    pub io: Io,
    /// Mean size of an object, bytes: it sizes the index.
    pub object_size: u32,
    /// Slot size for policies that have a Disk Table, bytes.
    pub block: u32,
}

/// The part of a URL that chooses an object's disk, if there are several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PlaceBy {
    /// Its whole name
    #[default]
    Name,
    /// The host of its URL
    Host,
}

impl PlaceBy {
    /// The placement for the engine; `host_of` finds the host in a name. The store remembers the
    /// number, so another rule needs another number.
    pub fn rule(self, host_of: fn(&[u8]) -> &[u8]) -> Placement {
        match self {
            Self::Name => Placement::NAME,
            Self::Host => Placement::new(NonZeroU32::MIN, host_of),
        }
    }
}

impl Values {
    /// The defaults of all rows on a machine with this many processors.
    pub fn defaults(processors: usize, cache_file: Option<PathBuf>) -> Self {
        let mut values = Self::default();
        values.startup.workers = processors;
        values.engine.cache = cache_file.into_iter().collect();
        for key in keys() {
            key.set_default(&mut values);
        }
        values
    }

    /// Largest object to store, bytes.
    pub fn max_object_size(&self) -> u64 {
        self.max_object_size
            .unwrap_or(self.engine.cache_size / OBJECTS_PER_CACHE)
    }

    /// True if the policy stores everything in the log, which can group and readmit.
    pub fn has_log(&self) -> bool {
        matches!(self.engine.policy, PolicyKind::Log | PolicyKind::LogLru)
    }

    /// True if the proxy is a reverse proxy.
    pub fn is_reverse(&self) -> bool {
        self.accelerate.is_some() || !self.reloadable.sites.all().is_empty()
    }

    /// The origin or the sites behind a reverse proxy, for messages.
    pub fn front_of(&self) -> String {
        match (&self.accelerate, self.reloadable.sites.all()) {
            (Some(origin), _) => origin.to_string(),
            (None, [site]) => site.name(),
            (None, sites) => format!("{} sites", sites.len()),
        }
    }

    /// The sites in the file, or the site of `accelerate`.
    fn sites(&self) -> Sites {
        let Some(origin) = &self.accelerate else {
            return self.reloadable.sites.clone();
        };
        let mut site = Site::at(origin.clone());
        site.hosts.clone_from(&self.accelerate_host);
        if site.hosts.is_empty() {
            // Without names of the site, the client's Host may be anything.
            site.sent_host = SentHost::Origin;
        }
        // A name that is given twice counts once.
        site.hosts.sort_by_key(ToString::to_string);
        site.hosts.dedup();
        Sites::new(vec![site]).unwrap_or_default()
    }

    fn tls(&self) -> Vec<CertificateFiles> {
        let pairs = self
            .tls_cert
            .iter()
            .cloned()
            .zip(self.tls_key.iter().cloned());
        pairs
            .map(|(certificate, key)| CertificateFiles { certificate, key })
            .collect()
    }

    /// The proxy's settings, except for interception, which has to be read from files first.
    pub fn for_proxy(&self) -> Settings {
        let is_grouped = self.engine.grouped && self.has_log();
        let link_dir = self.reloadable.link_dir.clone();
        Settings {
            startup: Startup {
                mode: if self.is_reverse() {
                    Mode::Reverse
                } else {
                    Mode::Forward
                },
                group_by: is_grouped.then_some(self.engine.group_by),
                ..self.startup.clone()
            },
            reloadable: Reloadable {
                sites: self.sites(),
                tls: self.tls(),
                peers: self.peers.peers.clone(),
                routes: self.peers.routes.clone(),
                max_object_size: self.max_object_size(),
                link_dir: link_dir.or_else(|| self.link_dir_default.clone()),
                ..self.reloadable.clone()
            },
        }
    }
}
