//! The boxes of a site: proxies with the same configuration.
//!
//! Used by `mod`. Each listens at an address that was free a moment ago, because the lists of
//! members and the balancer name it.

use std::fs;
use std::net::{SocketAddr, TcpListener};

use crate::campaign::Campaign;
use crate::proxy_process::{ProxyCommand, ProxyProcess};

/// Which boxes know each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    None,
    Members,
}

/// All boxes of a site.
#[derive(Debug)]
pub struct Boxes {
    commands: Vec<ProxyCommand>,
    running: Vec<Option<ProxyProcess>>,
    addresses: Vec<SocketAddr>,
}

impl Boxes {
    /// Starts `count` boxes in front of `origin`.
    pub fn start(
        campaign: &Campaign,
        name: &str,
        count: usize,
        lists: Lists,
        origin: SocketAddr,
    ) -> anyhow::Result<Self> {
        let addresses = free_addresses(count)?;
        let mut list = String::new();
        if lists == Lists::Members {
            for (n, address) in addresses.iter().enumerate() {
                let url = format!("http://{address}");
                list +=
                    &format!("[[peer]]\nname = \"box{n}\"\nkind = \"member\"\nurl = \"{url}\"\n\n");
            }
        }
        let mut boxes = Self {
            commands: Vec::new(),
            running: Vec::new(),
            addresses,
        };
        for (n, address) in boxes.addresses.clone().into_iter().enumerate() {
            let file = campaign
                .folder()
                .join(format!("{}-{n}.toml", name.replace(' ', "-")));
            let site = format!(
                "[[site]]\nhosts = [\"{HOST}\"]\norigins = [\"http://{origin}\"]\n\
                 trust_forwarded = [\"127.0.0.1/32\"]\n"
            );
            // All requests are from one address, that of the balancer.
            let limits = "[limits]\nclient_share = 100\n\n";
            fs::write(&file, format!("name = \"box{n}\"\n\n{limits}{list}{site}"))?;
            let command = campaign
                .proxy()?
                .flag("config", file.display())
                .flag("cache-size", "1GiB")
                .flag("memory", "64MiB")
                .at(address);
            boxes.running.push(Some(command.start()?));
            boxes.commands.push(command);
        }
        Ok(boxes)
    }

    /// Where the boxes listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    /// Kills a box, as a power cut would.
    pub fn kill(&mut self, n: usize) -> anyhow::Result<()> {
        self.running[n].take().map_or(Ok(()), ProxyProcess::kill)
    }

    /// Starts it again, with its cache.
    pub fn start_again(&mut self, n: usize) -> anyhow::Result<()> {
        self.running[n] = Some(self.commands[n].start()?);
        Ok(())
    }

    /// Adds a row for each box: it must not have ended or panicked.
    pub fn check(&mut self, campaign: &mut Campaign, name: &str) -> anyhow::Result<()> {
        for (n, process) in self.running.iter_mut().enumerate() {
            if let Some(process) = process {
                campaign.check_running(&format!("{name}, box{n}"), process)?;
            }
        }
        Ok(())
    }
}

/// Addresses at which nothing listens, all different.
pub fn free_addresses(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0"));
    let listeners: Vec<TcpListener> = listeners.collect::<Result<_, _>>()?;
    let addresses = listeners.iter().map(|listener| Ok(listener.local_addr()?));
    addresses.collect()
}

/// The name of the site.
pub const HOST: &str = "www.site.test";
