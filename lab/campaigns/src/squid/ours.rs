//! Our proxy beside a Squid, and what this build of it can do with peers.
//!
//! Used by all cases. Cases of a feature that the binary does not know are reported as skipped,
//! with the key that its configuration lacks; they run as soon as it has the key.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::log::Log;
use super::process::{Places, Squid, own_address};
use crate::campaign::Campaign;
use crate::proxy_process::ProxyProcess;

/// Where our proxies listen. Not the address of Squid, which ignores ICP that seems its own.
pub fn address() -> Ipv4Addr {
    own_address(2)
}

/// A port for a proxy that starts after the Squid whose configuration names it.
pub fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((address(), 0))?.local_addr()?.port())
}

/// A running proxy of ours.
#[derive(Debug)]
pub struct Ours {
    pub process: ProxyProcess,
    pub log: Log,
}

impl Ours {
    /// Starts a proxy that may connect to `origin` and has these `[[peer]]` tables.
    pub fn start(
        campaign: &Campaign,
        name: &str,
        origin: SocketAddr,
        peers: &str,
    ) -> anyhow::Result<Self> {
        Self::start_at(campaign, name, 0, origin, peers)
    }

    /// The same at this port.
    pub fn start_at(
        campaign: &Campaign,
        name: &str,
        port: u16,
        origin: SocketAddr,
        peers: &str,
    ) -> anyhow::Result<Self> {
        let folder = campaign.folder();
        let access_log = folder.join(format!("ours-{name}.log"));
        let configuration = folder.join(format!("ours-{name}.toml"));
        fs::write(&configuration, peers)?;
        let process = campaign
            .proxy()?
            .flag("config", configuration.display())
            .flag("listen", format!("{}:{port}", address()))
            .flag("cache-size", "128MiB")
            .flag("memory", "32MiB")
            .flag("allow-connect-port", origin.port())
            .without("access-log")
            .flag("access-log", access_log.display())
            .flag("log-format", "squid")
            .start()?;
        Ok(Self {
            process,
            log: Log::new(access_log),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.process.address()
    }

    /// An error if the proxy has ended or panicked.
    pub fn check(&mut self) -> anyhow::Result<()> {
        let ended = self.process.ended()?;
        let said = self.process.said();
        ensure!(
            ended.is_none() && !said.contains("panicked"),
            "our proxy ended ({ended:?}) or panicked: {said}"
        );
        Ok(())
    }
}

/// What a peer is to our proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// `[[peer]]` at all.
    Peers,
    /// It asks and answers by ICP.
    Icp,
    /// It asks and answers by HTCP.
    Htcp,
    /// It reads and serves digests.
    Digest,
    /// It sends and reads updates of digests.
    Summary,
}

impl Feature {
    fn key(self) -> &'static str {
        match self {
            Self::Peers => "kind",
            Self::Icp => "icp",
            Self::Htcp => "htcp",
            Self::Digest => "digest",
            Self::Summary => "summary",
        }
    }
}

/// The commented configuration that a binary prints.
#[derive(Debug)]
pub struct Abilities(String);

impl Abilities {
    /// Asks the binary.
    pub fn from_binary(binary: &Path) -> anyhow::Result<Self> {
        let output = Command::new(binary)
            .args(["config", "example"])
            .output()
            .with_context(|| format!("cannot run {}", binary.display()))?;
        ensure!(
            output.status.success(),
            "`config example`: {}",
            output.status
        );
        Ok(Self(String::from_utf8(output.stdout)?))
    }

    /// Why a feature cannot be tried, if it cannot.
    pub fn lack(&self, feature: Feature) -> Option<String> {
        let key = feature.key();
        let mut is_peer = false;
        for line in self
            .0
            .lines()
            .map(|line| line.trim_start_matches(['#', ' ']))
        {
            if line.starts_with('[') {
                is_peer = line.starts_with("[[peer]]");
            }
            if is_peer
                && line
                    .split_once('=')
                    .is_some_and(|(name, _)| name.trim() == key)
            {
                return None;
            }
        }
        Some(format!("this build has no `{key}` in [[peer]]"))
    }
}

/// A `[[peer]]` table of our configuration about this Squid.
pub fn peer(
    folder: &Path,
    squid: &Squid,
    kind: &str,
    feature: Feature,
    credentials: Option<(&str, &str)>,
) -> anyhow::Result<String> {
    // Squid answers to the address of the query, whatever its port.
    let mut table = udp_peer(squid.places, kind, feature, free_udp_port()?);
    if let Some((user, password)) = credentials {
        let file = credentials_file(folder, user, password)?;
        table += &format!("credentials_file = \"{}\"\n", file.display());
    }
    Ok(table)
}

/// A `[[peer]]` table about this Squid, in which our proxy speaks ICP or HTCP at this port.
pub fn udp_peer(squid: Places, kind: &str, feature: Feature, port: u16) -> String {
    // Keys stand before tables.
    let own = match feature {
        Feature::Icp => format!("icp = \"{}:{port}\"\n", address()),
        Feature::Htcp => format!("htcp = \"{}:{port}\"\n", address()),
        Feature::Peers | Feature::Digest | Feature::Summary => String::new(),
    };
    let theirs = match feature {
        Feature::Peers => String::new(),
        Feature::Icp => format!("icp = {}\n", squid.icp.port()),
        Feature::Htcp => format!("htcp = {}\n", squid.htcp.port()),
        Feature::Digest => "digest = true\n".to_owned(),
        Feature::Summary => "summary = true\n".to_owned(),
    };
    let url = squid.http;
    format!("{own}[[peer]]\nname = \"squid\"\nkind = \"{kind}\"\nurl = \"http://{url}\"\n{theirs}")
}

/// A port of our address that no socket uses now.
pub fn free_udp_port() -> anyhow::Result<u16> {
    Ok(UdpSocket::bind((address(), 0))?.local_addr()?.port())
}

/// Readable by its owner alone: our proxy refuses another.
fn credentials_file(folder: &Path, user: &str, password: &str) -> anyhow::Result<PathBuf> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = folder.join("credentials");
    let mut options = fs::File::options();
    let mut writer = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&file)?;
    writeln!(writer, "{user}:{password}")?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_there_when_the_table_of_peers_has_its_key() {
        let example = "#icp = 3130\n#[[mirror]]\n#kind = \"npm\"\n#[[peer]]\n#kind = \"parent\"\n\
                       # digest = true\n#[[rule]]\n#htcp = 4827\n";
        let abilities = Abilities(example.to_owned());
        assert_eq!(abilities.lack(Feature::Peers), None);
        assert_eq!(abilities.lack(Feature::Digest), None);
        assert!(abilities.lack(Feature::Icp).unwrap().contains("`icp`"));
        assert!(abilities.lack(Feature::Htcp).is_some());
        let none = Abilities("#[[mirror]]\n#kind = \"npm\"\n".to_owned());
        assert!(none.lack(Feature::Peers).is_some());
    }
}
