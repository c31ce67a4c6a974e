//! HAProxy before the boxes: found, configured, started, stopped.
//!
//! Used by `mod`. Invariant: HAProxy reads no configuration of the machine, listens on loopback
//! only, and is ended by its own id.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::boxes::free_addresses;

/// An installed HAProxy.
#[derive(Debug)]
pub struct Installed {
    program: PathBuf,
    pub version: String,
}

impl Installed {
    /// Finds HAProxy, at `named` or where systems install it; the error says what to install.
    pub fn find(named: Option<&Path>) -> anyhow::Result<Self> {
        let program = match named {
            Some(named) => named.to_owned(),
            None => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                // Users other than root often have no `sbin` in their path.
                std::env::split_paths(&path)
                    .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
                    .map(|directory| directory.join("haproxy"))
                    .find(|program| program.is_file())
                    .context(MISSING)?
            }
        };
        let output = Command::new(&program).arg("-v").output();
        let output =
            output.with_context(|| format!("cannot run {}; {MISSING}", program.display()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let first = said.lines().next().unwrap_or_default();
        let version = first.strip_prefix("HAProxy version ");
        let version = version
            .with_context(|| format!("{} is no HAProxy: it says {said:?}", program.display()))?
            .to_owned();
        Ok(Self { program, version })
    }
}

/// How HAProxy chooses a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    ByUrl,
    InTurn,
}

/// A running HAProxy.
#[derive(Debug)]
pub struct Balancer {
    child: Child,
    address: SocketAddr,
    said: PathBuf,
}

impl Balancer {
    /// Starts HAProxy before these boxes and waits until it serves.
    pub fn start(
        installed: &Installed,
        folder: &Path,
        name: &str,
        balance: Balance,
        boxes: &[SocketAddr],
    ) -> anyhow::Result<Self> {
        // HAProxy cannot say which port the system gave it; this one was free a moment ago.
        let [address] = free_addresses(1)?[..] else {
            bail!("one address");
        };
        let file = folder.join(format!("haproxy-{name}.cfg"));
        let said = folder.join(format!("haproxy-{name}.said"));
        fs::write(&file, configuration(address, balance, boxes))?;
        let output = File::create(&said)?;
        let child = Command::new(&installed.program)
            .arg("-db")
            .arg("-f")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("cannot start HAProxy")?;
        let mut balancer = Self {
            child,
            address,
            said,
        };
        for _ in 0..START_LOOKS {
            if let Some(status) = balancer.child.try_wait()? {
                bail!("HAProxy ended with {status}: {}", balancer.said());
            }
            if TcpStream::connect(address).is_ok() {
                return Ok(balancer);
            }
            std::thread::sleep(LOOK_TIME);
        }
        bail!("HAProxy does not serve at {address}: {}", balancer.said())
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// An error if HAProxy has ended.
    pub fn check(mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("HAProxy ended with {status}: {}", self.said());
        }
        Ok(())
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The configuration that docs/operate/machines.md recommends, at this address; responses also say
/// which box HAProxy got them from. Only here a check may take 10 s: a stall of a busy machine is
/// to put no box out of service, and a box that was killed refuses its check at once.
fn configuration(address: SocketAddr, balance: Balance, boxes: &[SocketAddr]) -> String {
    let balance = match balance {
        Balance::ByUrl => "balance uri\n    hash-type consistent",
        Balance::InTurn => "balance roundrobin",
    };
    let servers = boxes.iter().enumerate();
    let servers = servers.map(|(n, at)| format!("    server box{n} {at} check {CHECK}\n"));
    let servers: String = servers.collect();
    format!(
        "defaults
    mode http
    timeout connect 2s
    timeout check 10s
    timeout client 60s
    timeout server 60s
    option redispatch
    retries 2
    retry-on conn-failure empty-response
frontend site
    bind {address}
    default_backend boxes
backend boxes
    {balance}
    http-response set-header {BOX_FIELD} %s
    option httpchk GET /proxy.pac
    http-check expect status 100-499
{servers}"
    )
}

/// Names the box that HAProxy has chosen, `box` and its number.
pub const BOX_FIELD: &str = "X-Box";
const CHECK: &str = "inter 1s fall 1 rise 2";
const MISSING: &str = "HAProxy is missing: apt-get install haproxy, or name it with --haproxy";
const START_LOOKS: u32 = 200;
const LOOK_TIME: Duration = Duration::from_millis(50);
