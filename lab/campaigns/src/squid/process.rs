//! A Squid of the campaign: found, configured, started, stopped.
//!
//! Used by all cases. Invariant: Squid reads no configuration of the machine, listens on addresses
//! of loopback only, writes only below the campaign's folder, and is ended by its own id.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use super::log::Log;

/// Where Squid listens and from where it connects.
pub fn address() -> Ipv4Addr {
    own_address(1)
}

/// An address of loopback that no other campaign uses. Squid shares UDP ports with whatever asks
/// for the same, so free ports alone do not keep two campaigns apart.
pub fn own_address(last: u8) -> Ipv4Addr {
    let [_, _, high, low] = (std::process::id() % OTHER_NETWORKS).to_be_bytes();
    Ipv4Addr::new(127, 1 + high, low, last)
}

/// An installed Squid.
#[derive(Debug)]
pub struct Installed {
    program: PathBuf,
    pub version: String,
}

impl Installed {
    /// Finds Squid, at `named` or where systems install it; the error says what to install.
    pub fn find(named: Option<&Path>) -> anyhow::Result<Self> {
        let program = match named {
            Some(named) => named.to_owned(),
            None => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                // Users other than root often have no `sbin` in their path.
                std::env::split_paths(&path)
                    .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
                    .map(|directory| directory.join("squid"))
                    .find(|program| program.is_file())
                    .context(MISSING)?
            }
        };
        let output = Command::new(&program)
            .arg("-v")
            .output()
            .with_context(|| format!("cannot run {}; {MISSING}", program.display()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let version = said.lines().next().unwrap_or_default();
        let version = version.strip_prefix("Squid Cache: Version ");
        let version = version
            .with_context(|| format!("{} is no Squid: it says {said:?}", program.display()))?
            .to_owned();
        Ok(Self { program, version })
    }
}

/// What Squids differ in.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of its folder, its host and its service; letters and digits.
    pub name: String,
    /// Lines of its configuration about the caches that it asks.
    pub peers: String,
    /// Bits for each object in its digest.
    pub digest_bits: u8,
    /// The user and password without which it serves nobody.
    pub credentials: Option<(&'static str, &'static str)>,
    /// Where it serves; `None`: at free ports.
    pub places: Option<Places>,
}

/// The addresses at which a Squid serves.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    pub http: SocketAddr,
    pub icp: SocketAddr,
    pub htcp: SocketAddr,
}

impl Places {
    /// Ports that are free now: Squid cannot say which ports the system gave it.
    pub fn free() -> anyhow::Result<Self> {
        Ok(Self {
            http: TcpListener::bind((address(), 0))?.local_addr()?,
            icp: UdpSocket::bind((address(), 0))?.local_addr()?,
            htcp: UdpSocket::bind((address(), 0))?.local_addr()?,
        })
    }
}

impl Settings {
    /// A Squid that asks no other cache and serves everybody.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            peers: String::new(),
            digest_bits: 5,
            credentials: None,
            places: None,
        }
    }
}

/// A running Squid.
#[derive(Debug)]
pub struct Squid {
    child: Child,
    folder: PathBuf,
    pub http: SocketAddr,
    pub places: Places,
    pub log: Log,
}

impl Squid {
    /// Starts Squid with a folder of its own in `within`, and waits until it serves.
    pub fn start(
        installed: &Installed,
        within: &Path,
        settings: &Settings,
    ) -> anyhow::Result<Self> {
        let folder = within.join(format!("squid-{}", settings.name));
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::create_dir(folder.join("cache"))?;
        let places = settings.places.map_or_else(Places::free, Ok)?;
        let Places { http, icp, htcp } = places;
        let text = CONFIGURATION
            .replace("{FOLDER}", &folder.display().to_string())
            .replace("{NAME}", &settings.name)
            .replace("{ADDRESS}", &address().to_string())
            .replace("{HTTP}", &http.port().to_string())
            .replace("{ICP}", &icp.port().to_string())
            .replace("{HTCP}", &htcp.port().to_string())
            .replace("{BITS}", &settings.digest_bits.to_string())
            .replace("{PEERS}", &settings.peers)
            .replace("{ACCESS}", &access(&folder, settings.credentials)?);
        fs::write(folder.join("squid.conf"), text)?;
        if geteuid().is_root() {
            give_to_proxy(within, &folder)?;
        }
        let made = command(installed, &folder, &settings.name)
            .arg("-z")
            .output();
        let made = made.context("cannot run Squid")?;
        let said = String::from_utf8_lossy(&made.stderr);
        ensure!(made.status.success(), "squid -z: {said}");
        let said = File::create(folder.join("said"))?;
        let child = command(installed, &folder, &settings.name)
            .stdout(said.try_clone()?)
            .stderr(said)
            .spawn()
            .context("cannot start Squid")?;
        let log = Log::new(folder.join("access.log"));
        let mut squid = Self {
            child,
            folder,
            http,
            places,
            log,
        };
        squid.wait_until_it_serves()?;
        Ok(squid)
    }

    fn wait_until_it_serves(&mut self) -> anyhow::Result<()> {
        for _ in 0..START_LOOKS {
            if let Some(status) = self.child.try_wait()? {
                bail!("Squid ended with {status}: {}", self.said());
            }
            // Squid opens the sockets of ICP and HTCP before it accepts connections.
            if TcpStream::connect(self.http).is_ok() && self.said().contains(SERVES) {
                return Ok(());
            }
            std::thread::sleep(LOOK_TIME);
        }
        bail!("Squid does not serve at {}: {}", self.http, self.said())
    }

    /// An error if Squid has ended or complained of itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("Squid ended with {status}: {}", self.said());
        }
        let said = self.said();
        let bad = ["FATAL", "assertion failed", "ERROR"];
        let line = said
            .lines()
            .find(|line| bad.iter().any(|word| line.contains(word)));
        line.map_or(Ok(()), |line| bail!("Squid says {line:?}"))
    }

    /// Asks Squid to stop (SIGTERM) and waits until it has.
    pub fn stop(mut self) -> anyhow::Result<String> {
        self.check()?;
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(id.context("a process id that is none")?, Signal::TERM)?;
        for _ in 0..START_LOOKS {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "it ended with {status}");
                return Ok(status.to_string());
            }
            std::thread::sleep(LOOK_TIME);
        }
        bail!("Squid does not stop: {}", self.said())
    }

    /// Its log of events; only the last lines if it is long.
    fn said(&self) -> String {
        let files = ["said", "cache.log"].map(|name| self.folder.join(name));
        let text: String = files
            .iter()
            .map(|file| fs::read_to_string(file).unwrap_or_default())
            .collect();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SAID_LINES)..].join("\n")
    }
}

impl Drop for Squid {
    fn drop(&mut self) {
        // Both fail only when it has ended already. Its helper processes end with their pipes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Squid in the foreground, as a service of its own, so that no other Squid of this machine is
/// meant. A service's name has only letters and digits; the number keeps two campaigns apart.
fn command(installed: &Installed, folder: &Path, name: &str) -> Command {
    let service = format!("{name}{}", std::process::id());
    let mut command = Command::new(&installed.program);
    command.args(["-N", "-n", &service, "-f", "squid.conf"]);
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// Which users may use it. Debian's helpers want files of hashed passwords, and a script of five
/// lines speaks the same protocol.
fn access(folder: &Path, credentials: Option<(&str, &str)>) -> anyhow::Result<String> {
    let Some((user, password)) = credentials else {
        return Ok("http_access allow all".to_owned());
    };
    let script = folder.join("basic.sh");
    let text = format!(
        "while read -r user password; do\n    \
         if [ \"$user $password\" = '{user} {password}' ]; then echo OK; else echo ERR; fi\ndone\n"
    );
    fs::write(&script, text)?;
    Ok(format!(
        "auth_param basic program /bin/sh {}\nauth_param basic realm squid\n\
         acl known proxy_auth REQUIRED\nhttp_access allow known\nhttp_access deny all",
        script.display()
    ))
}

/// Squid gives up root for the user that Debian makes for it, so that user must be able to write
/// here.
pub fn give_to_proxy(within: &Path, folder: &Path) -> anyhow::Result<()> {
    fs::set_permissions(within, fs::Permissions::from_mode(0o711))?;
    let changed = Command::new("chown")
        .args(["-R", "proxy:proxy"])
        .arg(folder)
        .status()
        .context("cannot run chown")?;
    ensure!(
        changed.success(),
        "cannot give {} to proxy",
        folder.display()
    );
    Ok(())
}

const MISSING: &str = "Squid is missing: install it (Debian: apt-get install squid), or name it \
                       with --squid FILE";
/// Of `127.0.0.0/8`, all but `127.0.0.0/16` and `127.255.0.0/16`.
const OTHER_NETWORKS: u32 = 254 << 8;
const SERVES: &str = "Accepting HTCP messages";
const START_LOOKS: u32 = 500;
const LOOK_TIME: Duration = Duration::from_millis(20);
const SAID_LINES: usize = 60;

/// Without a `cache_dir`, Squid never builds its digest. The measured distances must be zero:
/// Squid would otherwise go to an origin nearby without its parents. By default it waits for twice
/// the usual time of an answer by UDP: too short on a machine that is busy with other tests.
const CONFIGURATION: &str = "\
visible_hostname {NAME}
http_port {ADDRESS}:{HTTP}
udp_incoming_address {ADDRESS}
tcp_outgoing_address {ADDRESS}
icp_port {ICP}
htcp_port {HTCP}
cache_effective_user proxy
pid_filename {FOLDER}/squid.pid
coredump_dir {FOLDER}
access_log stdio:{FOLDER}/access.log squid
cache_log {FOLDER}/cache.log
buffered_logs off
cache_dir ufs {FOLDER}/cache 64 4 4
cache_mem 32 MB
netdb_filename none
pinger_enable off
dns_nameservers 127.0.0.1
shutdown_lifetime 0 seconds
icp_query_timeout 10000
minimum_direct_rtt 0
minimum_direct_hops 0
digest_rebuild_period 5 seconds
digest_rewrite_period 5 seconds
digest_bits_per_entry {BITS}
icp_access allow all
htcp_access allow all
{ACCESS}
{PEERS}
";
