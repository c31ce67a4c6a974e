//! Caches of others in front of an origin, started for one run and removed after it.
//!
//! `cpu` compares the proxy with them. Each has one thread for requests, as far as it can be told
//! to. Invariant: signals go only to processes that were started here, and all files that these
//! leave are in the directory of the run. Of the machine's configuration, Traffic Server reads a
//! copy of the files that are not written here.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use super::table::{Log, Memory};
use crate::certificate::Certificate;
use crate::squid::process::give_to_proxy;

/// A program, and settings in which an expert would run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With its defaults, which are best for small objects.
    Nginx,
    NginxSendfile,
    TrafficServer,
    /// In memory alone: its storage in files is not meant to last.
    Varnish,
    /// In memory, or with a `rock` store where memory is tight.
    Squid,
}

impl Kind {
    pub const ALL: [Self; 5] = [
        Self::Nginx,
        Self::NginxSendfile,
        Self::TrafficServer,
        Self::Varnish,
        Self::Squid,
    ];

    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::NginxSendfile => "nginx, sendfile",
            Self::TrafficServer => "Traffic Server",
            Self::Varnish => "Varnish",
            Self::Squid => "Squid",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Nginx | Self::NginxSendfile => "nginx",
            Self::TrafficServer => "traffic_server",
            Self::Varnish => "varnishd",
            Self::Squid => "squid",
        }
    }

    /// Why it cannot take part, if that is so.
    pub fn lack(self, memory: Memory, log: Log) -> Option<&'static str> {
        let found = Command::new("which").arg(self.program()).output();
        if !found.is_ok_and(|output| output.status.success()) {
            return Some("not installed");
        }
        match (self, memory, log) {
            (Self::Varnish, Memory::Tight, _) => Some("has no store on disk that lasts"),
            (Self::Varnish, _, Log::Combined) => Some("leaves the log to another program"),
            _ => None,
        }
    }
}

/// A rival that runs.
#[derive(Debug)]
pub struct Rival {
    child: Child,
    address: SocketAddr,
    tls_address: Option<SocketAddr>,
}

impl Rival {
    /// Starts it on these processors, with its files in `directory` in that of the run, and waits
    /// until it listens.
    pub fn start(
        kind: Kind,
        (memory, log): (Memory, Log),
        processors: &str,
        certificate: &Certificate,
        (run, directory): (&Path, &Path),
        origin: SocketAddr,
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(directory)?;
        // It cannot say which ports it was given; these were free a moment ago.
        let ports = [
            TcpListener::bind("127.0.0.1:0")?,
            TcpListener::bind("127.0.0.1:0")?,
        ];
        let (address, tls_address) = (ports[0].local_addr()?, ports[1].local_addr()?);
        drop(ports);
        let place = Place {
            run,
            directory,
            address,
            tls_address,
            certificate,
            origin,
            memory,
            log,
        };
        let words = match kind {
            Kind::Nginx => place.nginx("off")?,
            Kind::NginxSendfile => place.nginx("on")?,
            Kind::TrafficServer => place.traffic_server()?,
            Kind::Varnish => place.varnish(),
            Kind::Squid => place.squid()?,
        };
        let said = fs::File::create(directory.join("said"))?;
        let mut command = Command::new("taskset");
        command.args(["-c", processors]).args(&words);
        command
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said)
            .env("TS_RUNROOT", directory.join("runroot.yaml"));
        let name = kind.name();
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let is_nginx = matches!(kind, Kind::Nginx | Kind::NginxSendfile);
        let mut rival = Self {
            child,
            address,
            tls_address: is_nginx.then_some(tls_address),
        };
        for _ in 0..START_LOOKS {
            if TcpStream::connect(address).is_ok() {
                return Ok(rival);
            }
            if let Some(status) = rival.child.try_wait()? {
                let said = fs::read_to_string(directory.join("said"))?;
                bail!("{name} ended with {status}: {said}");
            }
            std::thread::sleep(LOOK_TIME);
        }
        bail!("{name} does not listen on {address}")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens with TLS, if it does.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.tls_address
    }

    /// Its first process and all that it has started.
    pub fn pids(&self) -> anyhow::Result<Vec<u32>> {
        let mut pids = vec![self.child.id()];
        let mut at = 0;
        while let Some(pid) = pids.get(at).copied() {
            at += 1;
            // A process that has ended has no children.
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let children = children.unwrap_or_default();
            let children = children.split_whitespace().map(str::parse);
            pids.extend(children.collect::<Result<Vec<u32>, _>>()?);
        }
        Ok(pids)
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        // The first process ends the others on SIGTERM, but not on SIGKILL.
        let pids = self.pids().unwrap_or_default();
        signal(self.child.id(), Signal::TERM);
        for _ in 0..END_LOOKS {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK_TIME);
        }
        pids.into_iter().for_each(|pid| signal(pid, Signal::KILL));
        let _ = self.child.wait();
    }
}

/// Best effort: the process may have ended.
fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// What a configuration has to say.
struct Place<'a> {
    /// The directory of the run.
    run: &'a Path,
    directory: &'a Path,
    address: SocketAddr,
    tls_address: SocketAddr,
    certificate: &'a Certificate,
    origin: SocketAddr,
    memory: Memory,
    log: Log,
}

impl Place<'_> {
    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Writes a configuration in which words stand for what differs.
    fn write(&self, name: &str, text: &str) -> anyhow::Result<String> {
        let file = self.file(name);
        let text = text
            .replace("{DIRECTORY}", &self.directory.display().to_string())
            .replace("{ADDRESS}", &self.address.to_string())
            .replace("{TLS_ADDRESS}", &self.tls_address.to_string())
            .replace(
                "{CERTIFICATE}",
                &self.certificate.file.display().to_string(),
            )
            .replace("{KEY}", &self.certificate.key_file.display().to_string())
            .replace("{PORT}", &self.address.port().to_string())
            .replace("{ORIGIN}", &self.origin.to_string())
            .replace("{ORIGIN_PORT}", &self.origin.port().to_string())
            .replace("{MEMORY}", &self.memory.mebibytes().to_string());
        fs::write(&file, text)?;
        Ok(file)
    }

    fn nginx(&self, sendfile: &str) -> anyhow::Result<Vec<String>> {
        fs::create_dir_all(self.directory.join("temporary"))?;
        let log = match self.log {
            Log::None => "off",
            Log::Combined => "{DIRECTORY}/access.log combined",
        };
        let text = NGINX.replace("{LOG}", log).replace("{SENDFILE}", sendfile);
        let file = self.write("nginx.conf", &text)?;
        let words = ["nginx", "-e", &self.file("error.log"), "-c", &file];
        Ok(words.map(str::to_owned).to_vec())
    }

    fn traffic_server(&self) -> anyhow::Result<Vec<String>> {
        for name in ["etc", "run", "log", "cache", "data"] {
            fs::create_dir_all(self.directory.join(name))?;
        }
        let copied = Command::new("cp")
            .args(["-r", "/etc/trafficserver/.", &self.file("etc")])
            .status()?;
        if !copied.success() {
            bail!("no configuration of Traffic Server to copy");
        }
        self.write("runroot.yaml", TRAFFIC_SERVER_DIRECTORIES)?;
        let log = match self.log {
            Log::None => "0",
            Log::Combined => "3",
        };
        let records = TRAFFIC_SERVER.replace("{LOG}", log);
        self.write("etc/records.config", &records)?;
        self.write("etc/plugin.config", "")?;
        self.write("etc/remap.config", "map / http://{ORIGIN}/\n")?;
        self.write("etc/logging.yaml", TRAFFIC_SERVER_LOG)?;
        self.write("etc/storage.config", "{DIRECTORY}/cache 2G\n")?;
        Ok(vec!["traffic_server".to_owned()])
    }

    fn varnish(&self) -> Vec<String> {
        let words = [
            "varnishd".to_owned(),
            "-F".to_owned(),
            format!("-a{}", self.address),
            format!("-b{}", self.origin),
            format!("-n{}", self.file("varnish")),
            format!("-smalloc,{}m", self.memory.mebibytes()),
            "-pthread_pools=1".to_owned(),
            "-t86400".to_owned(),
        ];
        words.to_vec()
    }

    fn squid(&self) -> anyhow::Result<Vec<String>> {
        let log = match self.log {
            Log::None => "none",
            Log::Combined => "stdio:{DIRECTORY}/access.log combined",
        };
        // With a store on disk, hits come from there even if all fit in memory.
        let store = match self.memory {
            Memory::Roomy => "",
            Memory::Tight => "cache_dir rock {DIRECTORY}/rock 2048",
        };
        let text = SQUID.replace("{LOG}", log).replace("{STORE}", store);
        let file = self.write("squid.conf", &text)?;
        fs::create_dir_all(self.directory.join("rock"))?;
        if geteuid().is_root() {
            give_to_proxy(self.run, self.directory)?;
        }
        let service = format!("cpu{}", std::process::id());
        let words = ["squid", "-N", "-n", &service, "-f", &file];
        let made = Command::new(words[0])
            .args(&words[1..])
            .arg("-z")
            .output()?;
        if !made.status.success() {
            bail!(
                "squid makes no store: {}",
                String::from_utf8_lossy(&made.stderr)
            );
        }
        Ok(words.map(str::to_owned).to_vec())
    }
}

const START_LOOKS: u32 = 500;
const END_LOOKS: u32 = 500;
const LOOK_TIME: Duration = Duration::from_millis(20);

/// One worker, and connections that are kept as long as the load wants. `tcp_nopush` stays off:
/// over loopback it triples the time at 100 KiB.
const NGINX: &str = "\
user root;
daemon off;
worker_processes 1;
pid {DIRECTORY}/pid;
error_log {DIRECTORY}/error.log;
events { worker_connections 768; }
http {
    sendfile {SENDFILE};
    types_hash_max_size 2048;
    default_type application/octet-stream;
    access_log {LOG};
    keepalive_requests 1000000000;
    client_body_temp_path {DIRECTORY}/temporary/body;
    proxy_temp_path {DIRECTORY}/temporary/proxy;
    fastcgi_temp_path {DIRECTORY}/temporary/fastcgi;
    uwsgi_temp_path {DIRECTORY}/temporary/uwsgi;
    scgi_temp_path {DIRECTORY}/temporary/scgi;
    proxy_cache_path {DIRECTORY}/cache levels=1:2 keys_zone=hits:64m max_size=2g inactive=1d
                     use_temp_path=off;
    upstream origin { server {ORIGIN}; keepalive 64; }
    server {
        listen {ADDRESS};
        listen {TLS_ADDRESS} ssl http2;
        ssl_certificate {CERTIFICATE};
        ssl_certificate_key {KEY};
        ssl_protocols TLSv1.3;
        location / {
            proxy_pass http://origin;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_cache hits;
        }
    }
}
";

const TRAFFIC_SERVER_DIRECTORIES: &str = "\
prefix: {DIRECTORY}
exec_prefix: /usr
bindir: /usr/bin
sbindir: /usr/sbin
sysconfdir: {DIRECTORY}/etc
datadir: {DIRECTORY}/data
includedir: /usr/include
libdir: /usr/lib/trafficserver
libexecdir: /usr/lib/trafficserver/modules
localstatedir: {DIRECTORY}/run
runtimedir: {DIRECTORY}/run
logdir: {DIRECTORY}/log
cachedir: {DIRECTORY}/cache
";

const TRAFFIC_SERVER: &str = "\
CONFIG proxy.config.http.server_ports STRING {PORT}:ip-in=127.0.0.1
CONFIG proxy.config.admin.user_id STRING #-1
CONFIG proxy.config.exec_thread.autoconfig INT 0
CONFIG proxy.config.exec_thread.limit INT 1
CONFIG proxy.config.task_threads INT 1
CONFIG proxy.config.cache.threads_per_disk INT 2
CONFIG proxy.config.cache.ram_cache.size INT {MEMORY}M
CONFIG proxy.config.log.logging_enabled INT {LOG}
CONFIG proxy.config.reverse_proxy.enabled INT 1
CONFIG proxy.config.url_remap.remap_required INT 1
CONFIG proxy.config.http.keep_alive_no_activity_timeout_in INT 600
";

const TRAFFIC_SERVER_LOG: &str = "\
logging:
  formats:
    - name: combined
      format: '%<chi> - %<caun> [%<cqtn>] \"%<cqtx>\" %<pssc> %<pscl>
        \"%<{Referer}cqh>\" \"%<{User-Agent}cqh>\"'
  logs:
    - filename: access
      format: combined
      mode: ascii
";

const SQUID: &str = "\
http_port {ADDRESS} accel defaultsite=127.0.0.1 no-vhost
cache_peer 127.0.0.1 parent {ORIGIN_PORT} 0 no-query originserver no-digest no-netdb-exchange
http_access allow all
cache_mem {MEMORY} MB
maximum_object_size_in_memory 512 KB
maximum_object_size 512 KB
{STORE}
access_log {LOG}
cache_log {DIRECTORY}/cache.log
cache_store_log none
pinger_enable off
pid_filename {DIRECTORY}/pid
coredump_dir {DIRECTORY}
shutdown_lifetime 1 second
visible_hostname rival
";
