//! Network namespaces on one machine: one for clients and origin, one for each proxy, a bridge
//! between them.
//!
//! Each proxy has an address of its own, by which the others recognise it, also in TCP connections;
//! and the kernel counts the datagrams of each namespace by themselves. Needs root, and the
//! programs `unshare`, `nsenter` and `ip`.
//!
//! Invariant: no packet leaves the namespaces.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::Context as _;

use crate::namespace::Namespace;

/// All namespaces.
#[derive(Debug)]
pub struct Network {
    clients: Namespace,
    proxies: Vec<Namespace>,
}

impl Network {
    /// Makes a network with places for this many proxies.
    pub fn make(proxies: usize) -> anyhow::Result<Self> {
        let clients = Namespace::make(None)?;
        let address = client_address();
        clients.ip(&format!(
            "link add bridge0 type bridge\nlink set dev bridge0 up\n\
             address add {address}/24 dev bridge0\n"
        ))?;
        let mut network = Self {
            clients,
            proxies: vec![],
        };
        for proxy in 0..proxies {
            let namespace = Namespace::make(None)?;
            network.clients.ip(&format!(
                "link add proxy{proxy} type veth peer name eth0 netns {}\n\
                 link set dev proxy{proxy} master bridge0\nlink set dev proxy{proxy} up\n",
                namespace.id()
            ))?;
            let address = proxy_address(proxy);
            namespace.ip(&format!(
                "address add {address}/24 dev eth0\nlink set dev eth0 up\n"
            ))?;
            network.proxies.push(namespace);
        }
        Ok(network)
    }

    /// Moves the calling thread to the clients; threads that it starts from now on are there too.
    pub fn join_clients(&self) -> anyhow::Result<()> {
        self.clients.join()
    }

    /// The namespace of a proxy.
    pub fn proxy(&self, proxy: usize) -> &Namespace {
        &self.proxies[proxy]
    }
}

/// The address of clients and origin.
pub fn client_address() -> IpAddr {
    address_of(254)
}

/// The address of a proxy, counted from 0.
pub fn proxy_address(proxy: usize) -> IpAddr {
    address_of(u8::try_from(proxy + 1).expect("a handful of proxies"))
}

/// The network for measurements (RFC 2544), which no machine has in earnest.
pub const NETWORK: &str = "198.18.0.0/24";

fn address_of(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, last))
}

/// Datagrams that the namespace of a process has received and sent.
pub fn datagrams(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/net/snmp");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    udp_datagrams(&text).with_context(|| format!("no figures of UDP in {path}"))
}

/// The line with the names of the figures is followed by the line with the figures.
fn udp_datagrams(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let (names, figures) = (lines.next()?, lines.next()?);
    let figure = |wanted: &str| {
        let mut pairs = names.split_whitespace().zip(figures.split_whitespace());
        pairs.find(|(name, _)| *name == wanted)?.1.parse().ok()
    };
    let (received, sent): (u64, u64) = (figure("InDatagrams")?, figure("OutDatagrams")?);
    Some(received + sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_those_received_and_those_sent() {
        let text = "Tcp: A InDatagrams\nTcp: 1 2\n\
                    Udp: InDatagrams NoPorts InErrors OutDatagrams\nUdp: 5 1 2 7\n\
                    UdpLite: InDatagrams OutDatagrams\nUdpLite: 100 100\n";
        assert_eq!(udp_datagrams(text), Some(12));
        assert_eq!(udp_datagrams("Udp: InDatagrams\nUdp: 5\n"), None);
        assert_eq!(udp_datagrams(""), None);
    }
}
