//! A proxy process: built, started, asked for its figures, killed, started again.
//!
//! Used by the commands that test the real binary. Calls cargo to build it, and reads its address
//! from the greeting, the one line that the proxy prints at its start.
//!
//! Invariant: dropping a [`ProxyProcess`] ends the process by its own id. The process runs without
//! the configuration of the user of this command.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use hashcache_testkit::scenario::never_wrong::Victim;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::cargo;
use crate::cgroup::enter;
use crate::namespace::Namespace;

/// How to start a proxy; can be started any number of times.
///
/// By default it listens on loopback ports that the system chooses.
#[derive(Clone, Debug)]
pub struct ProxyCommand {
    binary: PathBuf,
    flags: Vec<(String, String)>,
    cgroups: Vec<PathBuf>,
    processors: Option<String>,
    /// The words that enter its namespaces.
    entering: Vec<String>,
    wait: Duration,
    home: Option<Arc<TempDir>>,
}

impl ProxyCommand {
    /// A proxy of this binary with a cache of its own at `cache`.
    pub fn new(binary: &Path, cache: &Path) -> Self {
        Self {
            binary: binary.to_owned(),
            flags: vec![],
            cgroups: vec![],
            processors: None,
            entering: vec![],
            wait: START_TIME,
            home: None,
        }
        .flag("cache", cache.display())
    }

    /// Adds `--name=value`; list settings accept the flag several times.
    pub fn flag(mut self, name: &str, value: impl ToString) -> Self {
        self.flags.push((name.to_owned(), value.to_string()));
        self
    }

    /// Removes all flags of this name.
    pub fn without(mut self, name: &str) -> Self {
        self.flags.retain(|(flag, _)| flag != name);
        self
    }

    /// Makes it listen at the address of an earlier proxy.
    pub fn at(self, address: SocketAddr) -> Self {
        self.without("listen").flag("listen", address)
    }

    /// Removes `home`, with the cache in it, after the last of its commands and processes.
    pub fn within(mut self, home: TempDir) -> Self {
        self.home = Some(Arc::new(home));
        self
    }

    /// Runs it in this cgroup from its first instruction; in several, one for each controller.
    pub fn cgroup(mut self, directory: &Path) -> Self {
        self.cgroups.push(directory.to_owned());
        self
    }

    /// Runs it on these processors only, in the syntax of `taskset`.
    pub fn processors(mut self, processors: &str) -> Self {
        self.processors = Some(processors.to_owned());
        self
    }

    /// Runs it in this namespace; needs root.
    pub fn inside(mut self, namespace: &Namespace) -> Self {
        self.entering = namespace.words();
        self
    }

    /// Starts it and waits for the greeting.
    pub fn start(&self) -> anyhow::Result<ProxyProcess> {
        let mut child = self
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        let stdout = child.stdout.take().expect("it was asked to be piped");
        let stderr = child.stderr.take().expect("it was asked to be piped");
        let said = Said::default();
        // The greeting is on standard output or standard error: the one without the access log.
        let (sender, greetings) = mpsc::channel();
        listen_to(stdout, Said::default(), sender.clone());
        listen_to(stderr, said.clone(), sender);
        let mut process = ProxyProcess {
            child,
            said,
            places: Places::default(),
            _home: self.home.clone(),
        };
        let greeting = greetings.recv_timeout(self.wait).map_err(|_| {
            let said = process.said();
            anyhow!("the proxy did not say where it listens; it said: {said:?}")
        })?;
        process.places = read_greeting(&greeting)?;
        Ok(process)
    }

    fn command(&self) -> Command {
        let mut words: Vec<String> = self.cgroups.iter().flat_map(|it| enter(it)).collect();
        if let Some(processors) = &self.processors {
            words.extend(["taskset", "-c", processors].map(str::to_owned));
        }
        words.extend_from_slice(&self.entering);
        words.push(self.binary.display().to_string());
        words.push("proxy".to_owned());
        for (name, otherwise) in [
            // An empty file, so that the proxy looks for no other.
            ("config", "/dev/null"),
            ("listen", "127.0.0.1:0"),
            ("admin", "127.0.0.1:0"),
        ] {
            if !self.flags.iter().any(|(flag, _)| flag == name) {
                words.push(format!("--{name}={otherwise}"));
            }
        }
        let flags = self.flags.iter();
        words.extend(flags.map(|(name, value)| format!("--{name}={value}")));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HASHCACHE_") {
                command.env_remove(name);
            }
        }
        command
    }
}

/// A running proxy.
#[derive(Debug)]
pub struct ProxyProcess {
    child: Child,
    said: Said,
    places: Places,
    /// Removed after `drop` has ended the process.
    _home: Option<Arc<TempDir>>,
}

impl ProxyProcess {
    /// The address of its first listener.
    pub fn address(&self) -> SocketAddr {
        self.places.listeners[0]
    }

    /// The addresses of all listeners, in the order of the flags.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.places.listeners
    }

    /// The address of its admin listener, if it has one.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.places.admin
    }

    /// The listener for children, if the flags ask for one.
    pub fn link_address(&self) -> Option<SocketAddr> {
        self.places.link
    }

    /// The first forwarded port, if the flags ask for one.
    pub fn forward_address(&self) -> Option<SocketAddr> {
        self.places.forward
    }

    /// `http://address`, the form that clients expect in `http_proxy`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The figures of `/stats` on the admin listener.
    pub fn stats(&self) -> anyhow::Result<Value> {
        let body = self.admin_page("/stats")?;
        serde_json::from_str(&body).with_context(|| format!("/stats is no JSON: {body:?}"))
    }

    /// A page of the admin listener.
    pub fn admin_page(&self, path: &str) -> anyhow::Result<String> {
        let admin = self.admin().context("this proxy has no admin listener")?;
        let mut stream =
            TcpStream::connect(admin).with_context(|| format!("cannot connect to {admin}"))?;
        stream.set_read_timeout(Some(ADMIN_TIME))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {admin}\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .with_context(|| format!("{path}: no end of the head in {answer:?}"))?;
        ensure!(
            head.split(' ').nth(1) == Some("200"),
            "{path}: {}",
            head.lines().next().unwrap_or_default()
        );
        Ok(body.to_owned())
    }

    /// Its standard error so far; only the end if it is long.
    pub fn said(&self) -> String {
        self.said.text()
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Asks it to stop (SIGTERM) and waits until it has; returns its exit status.
    pub fn terminate(mut self) -> anyhow::Result<ExitStatus> {
        if self.ended()?.is_none() {
            self.signal(Signal::TERM)?;
        }
        Ok(self.child.wait()?)
    }

    /// Kills it (SIGKILL), as a power cut would.
    pub fn kill(mut self) -> anyhow::Result<()> {
        self.signal(Signal::KILL)?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.context("a process id that is none")?;
        kill_process(pid, signal).with_context(|| format!("cannot signal process {}", self.pid()))
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        // Both fail only when it has ended already, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A proxy that a scenario kills and starts again.
pub struct Killed {
    command: ProxyCommand,
    process: Option<ProxyProcess>,
}

impl Killed {
    /// A proxy that is not started yet.
    pub fn new(command: ProxyCommand) -> Self {
        Self {
            command,
            process: None,
        }
    }
}

impl Victim for Killed {
    fn start(&mut self) -> Result<SocketAddr, String> {
        let process = self.command.start().map_err(|error| format!("{error:#}"))?;
        let address = process.address();
        self.process = Some(process);
        // The clients know one address, so the next process must listen there.
        self.command = self.command.clone().at(address);
        Ok(address)
    }

    fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            let said = process.said();
            if said.contains("panicked") {
                eprintln!("campaign: the proxy said {said:?}");
            }
            // Fails only if the process has ended by itself; the next start reports that.
            let _ = process.kill();
        }
    }
}

/// The end of what a process wrote to standard error.
#[derive(Clone, Debug, Default)]
struct Said(Arc<Mutex<String>>);

impl Said {
    fn push(&self, line: &str) {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.push_str(line);
        if said.len() > SAID_BYTES {
            let from = said.len() - SAID_BYTES / 2;
            let mut places = from..said.len();
            let cut = places.find(|at| said.is_char_boundary(*at));
            let cut = cut.unwrap_or(said.len());
            said.drain(..cut);
        }
    }

    fn text(&self) -> String {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Reads the proxy's output until it ends, so that the proxy never blocks on a full pipe; sends the
/// greeting to the channel.
fn listen_to(source: impl Read + Send + 'static, said: Said, greetings: mpsc::Sender<String>) {
    thread::spawn(move || {
        let mut lines = BufReader::new(source);
        let mut line = vec![];
        while lines
            .read_until(b'\n', &mut line)
            .is_ok_and(|read| read > 0)
        {
            let text = String::from_utf8_lossy(&line);
            said.push(&text);
            if text.starts_with("hashcache: ") && text.contains(" on http") {
                // Only the first greeting has a receiver.
                let _ = greetings.send(text.into_owned());
            }
            line.clear();
        }
    });
}

/// Where a proxy listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Places {
    listeners: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    link: Option<SocketAddr>,
    forward: Option<SocketAddr>,
}

/// The listeners that a greeting names.
///
/// `hashcache: proxy on http://A http://B, link on https://C, D leads to E, admin on http://F; …`
fn read_greeting(greeting: &str) -> anyhow::Result<Places> {
    let (places, _) = greeting.split_once(';').context("a greeting without `;`")?;
    let mut parts = places.split(", ");
    let (_, listeners) = parts
        .next()
        .and_then(|first| first.rsplit_once(" on "))
        .with_context(|| format!("no listeners in {greeting:?}"))?;
    let address = |url: &str| {
        let (_, address) = url.split_once("://").unwrap_or(("", url));
        address
            .parse()
            .with_context(|| format!("`{url}` is no address in {greeting:?}"))
    };
    let listeners: Vec<SocketAddr> = listeners
        .split_whitespace()
        .map(address)
        .collect::<anyhow::Result<_>>()?;
    ensure!(!listeners.is_empty(), "no listeners in {greeting:?}");
    let mut found = Places {
        listeners,
        ..Places::default()
    };
    for part in parts {
        if let Some(url) = part.strip_prefix("admin on ") {
            found.admin = Some(address(url)?);
        } else if let Some(url) = part.strip_prefix("link on ") {
            found.link = Some(address(url)?);
        } else if let Some((at, _)) = part.split_once(" leads to ") {
            found.forward.get_or_insert(address(at)?);
        } else {
            ensure!(part == "no admin", "not a greeting: {greeting:?}");
        }
    }
    Ok(found)
}

/// Builds the binary for release; returns its path as cargo reports it.
pub fn build() -> anyhow::Result<PathBuf> {
    let output = cargo()
        .args(["build", "--release", "--locked", "-p", "hashcache-cli"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cannot build the proxy");
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "hashcache")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo did not say where it put the binary")
}

/// A log of hundreds of GB opens in less time, and a user should not wait longer for a mistake.
const START_TIME: Duration = Duration::from_secs(30);
const ADMIN_TIME: Duration = Duration::from_secs(10);
const SAID_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_tells_where_a_proxy_listens() {
        let at = |address: &str| address.parse().unwrap();
        let greeting = "hashcache: proxy on http://127.0.0.1:1 http://[::1]:2, admin on \
                        http://127.0.0.1:3; cache /c.img (1GiB, policy log), memory 64MiB\n";
        let places = read_greeting(greeting).unwrap();
        assert_eq!(places.listeners, [at("127.0.0.1:1"), at("[::1]:2")]);
        assert_eq!(places.admin, Some(at("127.0.0.1:3")));
        let greeting = "hashcache: in front of http://192.0.2.1 on http://127.0.0.1:1, no admin; \
                        cache";
        let places = read_greeting(greeting).unwrap();
        assert_eq!(places.listeners, [at("127.0.0.1:1")]);
        assert_eq!(places.admin, None);
        let greeting = "hashcache: in front of https://a on https://127.0.0.1:1, no admin; cache";
        let places = read_greeting(greeting).unwrap();
        assert_eq!(places.listeners, [at("127.0.0.1:1")]);
        let greeting = "hashcache: proxy on http://127.0.0.1:1, link on https://127.0.0.1:2, \
                        127.0.0.1:3 leads to db.example:5432, admin on http://127.0.0.1:4; cache";
        let places = read_greeting(greeting).unwrap();
        assert_eq!(places.link, Some(at("127.0.0.1:2")));
        assert_eq!(places.forward, Some(at("127.0.0.1:3")));
        assert_eq!(places.admin, Some(at("127.0.0.1:4")));
        assert!(read_greeting("hashcache: cannot open\n").is_err());
        assert!(read_greeting("hashcache: proxy on http://127.0.0.1:1, what; cache").is_err());
    }

    #[test]
    fn of_much_that_is_said_the_end_is_kept() {
        let said = Said::default();
        for _ in 0..SAID_BYTES {
            said.push("äß\n");
        }
        said.push("last\n");
        let text = said.text();
        assert!(text.len() <= SAID_BYTES && text.ends_with("ß\nlast\n"));
    }
}
