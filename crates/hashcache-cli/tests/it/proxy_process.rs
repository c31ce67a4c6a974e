//! A proxy process with a cache of its own, which tests start and kill.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hashcache_testkit::scenario::never_wrong::Victim;

/// A running proxy; when dropped, its process is ended by its id.
pub struct Proxy {
    child: Child,
    address: SocketAddr,
    second_address: Option<SocketAddr>,
    admin: SocketAddr,
    link: Option<SocketAddr>,
    forward: Option<SocketAddr>,
    /// Reads its standard error until it ends.
    reader: JoinHandle<()>,
    said: Arc<Mutex<String>>,
}

impl Proxy {
    /// Starts a proxy with its cache at `cache` and these additional flags.
    pub fn start(cache: &Path, flags: &[&str]) -> Result<Self, String> {
        Self::start_as("proxy", cache, flags)
    }

    /// Starts another subcommand that takes the flags of the proxy.
    pub fn start_as(command: &str, cache: &Path, flags: &[&str]) -> Result<Self, String> {
        let no_log = !flags.iter().any(|flag| flag.starts_with("--access-log"));
        let no_memory = !flags.iter().any(|flag| flag.starts_with("--memory"));
        let no_config = !flags.iter().any(|flag| flag.starts_with("--config"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_hashcache"))
            .args([command, "--listen=127.0.0.1:0"])
            .args(no_config.then_some("--config=/dev/null"))
            .arg("--cache-size=1GiB")
            .args(no_memory.then_some("--memory=64MiB"))
            .args(no_log.then_some("--access-log=none"))
            .args(["--admin=127.0.0.1:0", "--allow-destination=127.0.0.0/8"])
            .arg(format!("--cache={}", cache.display()))
            .args(flags)
            .env_clear()
            .env("HOME", cache.parent().expect("a cache lies in a directory"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let stderr = child.stderr.take().expect("it was asked to be piped");
        // Read to the end, or the proxy would block when the pipe is full.
        let said = Arc::new(Mutex::new(String::new()));
        let to = Arc::clone(&said);
        let reader = std::thread::spawn(move || {
            // Invalid UTF-8 ends the text early, which a test then shows.
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut said = to.lock().unwrap_or_else(PoisonError::into_inner);
                said.push_str(&line);
                said.push('\n');
            }
        });
        let stdout = child.stdout.take().expect("it was asked to be piped");
        let mut greeting = String::new();
        BufReader::new(stdout)
            .read_line(&mut greeting)
            .map_err(|error| error.to_string())?;
        let address = greeting
            .split_once(" on http://")
            .and_then(|(_, rest)| rest.split([' ', ',']).next()?.parse().ok());
        let mut listeners = greeting.split_once(" on ").unwrap_or_default().1.split(' ');
        let second_address = listeners.nth(1).and_then(|it| {
            let address = it.strip_prefix("http://")?;
            address.trim_end_matches(',').parse().ok()
        });
        let admin = greeting
            .split_once("admin on http://")
            .and_then(|(_, rest)| rest.split([';', ' ']).next()?.parse().ok());
        let link = greeting
            .split_once("link on https://")
            .and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
        let forward = greeting
            .split_once(" leads to ")
            .and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok());
        // `hashcache wan` has no other listener.
        let address = address.or(admin);
        let Some((address, admin)) = address.zip(admin) else {
            let _ = child.kill();
            let status = child.wait();
            reader.join().expect("a thread that only reads");
            let said = said.lock().unwrap_or_else(PoisonError::into_inner);
            return Err(format!(
                "the proxy ended with {status:?}: {greeting:?}, {said}"
            ));
        };
        let proxy = Self {
            child,
            address,
            second_address,
            admin,
            link,
            forward,
            reader,
            said,
        };
        proxy.until_open();
        Ok(proxy)
    }

    /// Waits until the store is open: until then everything is a miss, and nothing is stored. A
    /// proxy that does not answer is left to the test.
    fn until_open(&self) {
        for _ in 0..OPEN_LOOKS {
            match self.ready_page() {
                Ok(page) if page.contains("\"store\":\"opening\"") => {
                    std::thread::sleep(OPEN_PAUSE);
                }
                _ => return,
            }
        }
    }

    fn ready_page(&self) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.admin)?;
        stream.set_read_timeout(Some(OPEN_ANSWER_TIME))?;
        let request = format!("GET /-/ready HTTP/1.0\r\nHost: {}\r\n\r\n", self.admin);
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The second listener, if the flags ask for one.
    pub fn second_address(&self) -> Option<SocketAddr> {
        self.second_address
    }

    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The listener for children, if the flags ask for one.
    pub fn link_address(&self) -> Option<SocketAddr> {
        self.link
    }

    /// The first forwarded port, if the flags ask for one.
    pub fn forward_address(&self) -> Option<SocketAddr> {
        self.forward
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The text that the process has written to standard error so far.
    pub fn said(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.clone()
    }

    /// Stops it with a signal and waits for its end; a copy of its addresses stays.
    pub fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        self.child.wait().expect("a child that was not waited for");
    }

    /// Kills it, as a power cut would, and waits for its end.
    pub fn kill_now(&mut self) {
        self.child.kill().expect("a child that was not waited for");
        self.child.wait().expect("a child that was not waited for");
    }

    /// Kills it, as a power cut would; returns its output.
    pub fn kill(mut self) -> String {
        self.child.kill().expect("a child that was not waited for");
        self.child.wait().expect("a child that was not waited for");
        while !self.reader.is_finished() {
            std::thread::yield_now();
        }
        self.said()
    }

    /// Stops it with a signal, so that everything is written to disk.
    pub fn end_well(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        let ended = self.child.wait().expect("a child that was not waited for");
        assert!(ended.success(), "{ended}");
    }

    /// Kills it and checks that it was running without a panic.
    pub fn kill_well(mut self) {
        let ended = self.child.try_wait().expect("a child");
        let said = self.kill();
        assert!(
            ended.is_none() && !said.contains("panicked"),
            "{ended:?}: {said}"
        );
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A minute: much longer than the small caches of tests need.
const OPEN_LOOKS: u32 = 6_000;
const OPEN_PAUSE: Duration = Duration::from_millis(10);
const OPEN_ANSWER_TIME: Duration = Duration::from_secs(10);

/// A proxy that a scenario kills and starts again with the same cache.
pub struct Restarted<'a> {
    pub cache: &'a Path,
    pub running: Option<Proxy>,
}

impl Victim for Restarted<'_> {
    fn start(&mut self) -> Result<SocketAddr, String> {
        let proxy = Proxy::start(self.cache, &[])?;
        Ok(self.running.insert(proxy).address())
    }

    fn admin(&self) -> Option<SocketAddr> {
        self.running.as_ref().map(Proxy::admin)
    }

    fn kill(&mut self) {
        if let Some(proxy) = self.running.take() {
            let said = proxy.kill();
            assert!(!said.contains("panicked"), "{said}");
        }
    }
}
