//! Devices, a router and servers, each in a network namespace, and the rules of the router.
//!
//! ```text
//!   devices ── lan0 ─ router (the proxy) ─ wan0 ── servers
//! ```
//!
//! The servers have addresses for documentation (RFC 5737, RFC 3849), which the proxy takes for
//! public ones. The rules are those of `docs/operate/transparent.md`.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use crate::namespace::Namespace;

/// The three namespaces.
pub struct Network {
    pub devices: Namespace,
    pub router: Namespace,
    pub servers: Namespace,
}

/// How the router sends connections to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Redirect,
    Tproxy,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redirect => "redirect",
            Self::Tproxy => "tproxy",
        })
    }
}

/// Addresses of one family.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    pub name: &'static str,
    /// The router, towards the servers.
    pub router: &'static str,
    /// The server to which the names lead.
    pub named: &'static str,
    /// Another server.
    pub other: &'static str,
    /// A server that a rule denies by its address.
    pub denied: &'static str,
}

pub const FAMILIES: [Family; 2] = [
    Family {
        name: "IPv4",
        router: "203.0.113.1",
        named: "203.0.113.2",
        other: "203.0.113.3",
        denied: "203.0.113.4",
    },
    Family {
        name: "IPv6",
        router: "2001:db8:1::1",
        named: "2001:db8:1::2",
        other: "2001:db8:1::3",
        denied: "2001:db8:1::4",
    },
];

/// Of this site, https passes through as a tunnel.
pub const SITE: &str = "site.test";
/// TLS to this site is intercepted.
pub const LISTED: &str = "listed.test";
/// A rule denies this site.
pub const DENIED: &str = "denied.test";
/// TLS to this site would be intercepted, but a rule says that it is a tunnel.
pub const PASSED: &str = "passed.test";
/// A rule serves this site to one user only.
pub const OF_USER: &str = "user.test";
/// All of them lead to the same server.
pub const SITES: [&str; 5] = [SITE, LISTED, DENIED, PASSED, OF_USER];
/// The port of the proxy's listener for connections to other servers.
pub const PORT: u16 = 3129;

impl Network {
    /// Makes the network; `folder` gets the file in which the proxy finds the names.
    pub fn make(folder: &Path) -> anyhow::Result<Self> {
        let hosts = folder.join("hosts");
        let lines = FAMILIES.map(|family| format!("{} {}\n", family.named, SITES.join(" ")));
        fs::write(&hosts, format!("127.0.0.1 localhost\n{}", lines.concat()))?;
        let network = Self {
            devices: Namespace::make(None)?,
            router: Namespace::make(Some(&hosts))?,
            servers: Namespace::make(None)?,
        };
        network.router.ip(&format!(
            "link add lan0 type veth peer name eth0 netns {}\n\
             link add wan0 type veth peer name eth0 netns {}\n\
             address add 10.9.0.1/24 dev lan0\naddress add fd09::1/64 dev lan0 nodad\n\
             address add 203.0.113.1/24 dev wan0\naddress add 2001:db8:1::1/64 dev wan0 nodad\n\
             link set dev lan0 up\nlink set dev wan0 up\n",
            network.devices.id(),
            network.servers.id()
        ))?;
        network.devices.ip(
            "address add 10.9.0.2/24 dev eth0\naddress add fd09::2/64 dev eth0 nodad\n\
             link set dev eth0 up\nroute add default via 10.9.0.1\n\
             route add default via fd09::1\n",
        )?;
        network.servers.ip(
            "address add 203.0.113.2/24 dev eth0\naddress add 203.0.113.3/24 dev eth0\n\
             address add 203.0.113.4/24 dev eth0\n\
             address add 2001:db8:1::2/64 dev eth0 nodad\n\
             address add 2001:db8:1::3/64 dev eth0 nodad\n\
             address add 2001:db8:1::4/64 dev eth0 nodad\nlink set dev eth0 up\n",
        )?;
        Ok(network)
    }

    /// Has the router send connections to the proxy in this way.
    pub fn divert(&self, mode: Mode) -> anyhow::Result<()> {
        let (chain, verdicts) = match mode {
            Mode::Redirect => (
                "type nat hook prerouting priority dstnat;",
                [
                    format!("redirect to :{PORT}"),
                    format!("redirect to :{PORT}"),
                ],
            ),
            Mode::Tproxy => {
                let to_this_machine = |all| {
                    format!(
                        "rule add fwmark 1 lookup 100\nroute add local {all} dev lo table 100\n"
                    )
                };
                self.router.ip(&to_this_machine("0.0.0.0/0"))?;
                let six = ["ip", "-6", "-batch", "-"];
                self.router.run(&six, &to_this_machine("::/0"))?;
                let verdict = |family| format!("tproxy {family} to :{PORT} meta mark set 1 accept");
                (
                    "type filter hook prerouting priority mangle;",
                    [verdict("ip"), verdict("ip6")],
                )
            }
        };
        let [v4, v6] = verdicts;
        let rules = format!(
            "flush ruleset\n\
             table inet hashcache {{\n\
                 set private {{\n\
                     type ipv4_addr; flags interval\n\
                     elements = {{ 10.0.0.0/8, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, \
                     192.168.0.0/16, 224.0.0.0/3 }}\n\
                 }}\n\
                 chain divert {{\n\
                     {chain}\n\
                     iifname \"lan0\" ip daddr != @private tcp dport {{ 80, 443 }} {v4}\n\
                     iifname \"lan0\" ip6 daddr 2000::/3 tcp dport {{ 80, 443 }} {v6}\n\
                 }}\n\
             }}\n"
        );
        self.router.run(&["nft", "-f", "-"], &rules)
    }
}

/// The host of an address in a URL.
pub fn in_url(address: &str) -> String {
    match address.parse() {
        Ok(IpAddr::V6(_)) => format!("[{address}]"),
        _ => address.to_owned(),
    }
}
