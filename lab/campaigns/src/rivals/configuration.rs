//! Settings in which an expert would run the rivals.
//!
//! Called by [`Rival::start`](super::Rival::start). Words in braces stand for what differs.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use anyhow::bail;
use rustix::process::geteuid;

use super::{Kind, Log, Setup};
use crate::certificate::Certificate;
use crate::squid::process::give_to_proxy;

/// The settings of a rival, which listens at `address`.
pub struct Configuration<'a> {
    pub setup: &'a Setup<'a>,
    pub address: SocketAddr,
    /// Where it listens with TLS, and its certificate there; nginx alone does.
    pub tls: Option<(SocketAddr, &'a Certificate)>,
    /// A name that no other process of this machine has.
    pub name: &'a str,
}

impl Configuration<'_> {
    /// Writes its files and makes its store; the words of the command that starts it.
    pub fn write(&self, kind: Kind) -> anyhow::Result<Vec<String>> {
        match kind {
            Kind::Nginx => self.nginx("sendfile off;"),
            Kind::NginxSendfile => self.nginx("sendfile on;"),
            Kind::NginxThreads => self.nginx("sendfile on; aio threads;"),
            Kind::TrafficServer => self.traffic_server(),
            Kind::Varnish => Ok(self.varnish("malloc,{MEMORY}m")),
            Kind::VarnishFile => Ok(self.varnish("file,{DIRECTORY}/store,{DISK}m")),
            // With a store on disk, hits come from there even if all fit in memory.
            Kind::Squid => self.squid("", InOneProcess::Yes),
            Kind::SquidRock => self.squid(ROCK, InOneProcess::Yes),
            Kind::SquidRockDisker => self.squid(ROCK, InOneProcess::No),
            Kind::SquidAufs => self.squid(AUFS, InOneProcess::Yes),
        }
    }

    fn file(&self, name: &str) -> String {
        self.setup.directory.join(name).display().to_string()
    }

    /// Writes a configuration in which words stand for what differs.
    fn write_file(&self, name: &str, text: &str) -> anyhow::Result<String> {
        let file = self.file(name);
        fs::write(&file, self.fill_in(text))?;
        Ok(file)
    }

    fn fill_in(&self, text: &str) -> String {
        let Setup {
            directory, origin, ..
        } = self.setup;
        text.replace("{DIRECTORY}", &directory.display().to_string())
            .replace("{ADDRESS}", &self.address.to_string())
            .replace("{PORT}", &self.address.port().to_string())
            .replace("{ORIGIN}", &origin.to_string())
            .replace("{ORIGIN_PORT}", &origin.port().to_string())
            .replace("{MEMORY}", &self.setup.memory_mib.to_string())
            .replace("{DISK}", &self.setup.disk_mib.to_string())
            .replace("{KEYS}", &self.keys_mib().to_string())
    }

    /// A key of nginx takes 128 bytes of its zone; objects that are smaller than 4 KiB on average
    /// are unusual. What is not used of the zone takes no memory.
    fn keys_mib(&self) -> u32 {
        (self.setup.disk_mib / 32).max(64)
    }

    fn nginx(&self, reading: &str) -> anyhow::Result<Vec<String>> {
        fs::create_dir_all(self.setup.directory.join("temporary"))?;
        let log = match self.setup.log {
            Log::None => "off",
            Log::Combined => "{DIRECTORY}/access.log combined",
        };
        let tls = self.tls.map(|(address, certificate)| {
            NGINX_TLS
                .replace("{TLS_ADDRESS}", &address.to_string())
                .replace("{CERTIFICATE}", &certificate.file.display().to_string())
                .replace("{KEY}", &certificate.key_file.display().to_string())
        });
        let text = NGINX
            .replace("{LOG}", log)
            .replace("{READING}", reading)
            .replace("{TLS}", &tls.unwrap_or_default());
        let file = self.write_file("nginx.conf", &text)?;
        let words = ["nginx", "-e", &self.file("error.log"), "-c", &file];
        Ok(words.map(str::to_owned).to_vec())
    }

    fn traffic_server(&self) -> anyhow::Result<Vec<String>> {
        for name in ["etc", "run", "log", "cache", "data"] {
            fs::create_dir_all(self.setup.directory.join(name))?;
        }
        let copied = Command::new("cp")
            .args(["-r", "/etc/trafficserver/.", &self.file("etc")])
            .status()?;
        if !copied.success() {
            bail!("no configuration of Traffic Server to copy");
        }
        self.write_file("runroot.yaml", TRAFFIC_SERVER_DIRECTORIES)?;
        let log = match self.setup.log {
            Log::None => "0",
            Log::Combined => "3",
        };
        let records = TRAFFIC_SERVER.replace("{LOG}", log);
        self.write_file("etc/records.config", &records)?;
        self.write_file("etc/plugin.config", "")?;
        self.write_file("etc/remap.config", "map / http://{ORIGIN}/\n")?;
        self.write_file("etc/logging.yaml", TRAFFIC_SERVER_LOG)?;
        self.write_file("etc/storage.config", "{DIRECTORY}/cache {DISK}M\n")?;
        Ok(vec!["traffic_server".to_owned()])
    }

    /// `-p thread_pools=1`: one pool is enough for one processor; it adds threads by itself. `-t`:
    /// what has no lifetime is kept as by the others.
    fn varnish(&self, store: &str) -> Vec<String> {
        let words = [
            "varnishd".to_owned(),
            "-F".to_owned(),
            format!("-a{}", self.address),
            format!("-b{}", self.setup.origin),
            format!("-n{}", self.file("varnish")),
            format!("-s{}", self.fill_in(store)),
            "-pthread_pools=1".to_owned(),
            "-t86400".to_owned(),
        ];
        words.to_vec()
    }

    fn squid(&self, store: &str, in_one_process: InOneProcess) -> anyhow::Result<Vec<String>> {
        let log = match self.setup.log {
            Log::None => "none",
            Log::Combined => "stdio:{DIRECTORY}/access.log combined",
        };
        let text = SQUID.replace("{LOG}", log).replace("{STORE}", store);
        let file = self.write_file("squid.conf", &text)?;
        fs::create_dir_all(self.setup.directory.join("store"))?;
        if geteuid().is_root() {
            give_to_proxy(self.setup.run, self.setup.directory)?;
        }
        let settings = ["-n", self.name, "-f", &file];
        let made = Command::new("squid")
            .args(["-N", "-z"])
            .args(settings)
            .output()?;
        if !made.status.success() {
            bail!(
                "squid makes no store: {}",
                String::from_utf8_lossy(&made.stderr)
            );
        }
        let processes = match in_one_process {
            InOneProcess::Yes => "-N",
            InOneProcess::No => "--foreground",
        };
        let words = ["squid", processes].into_iter().chain(settings);
        Ok(words.map(str::to_owned).collect())
    }
}

/// Whether Squid does everything in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InOneProcess {
    Yes,
    No,
}

/// One worker, and connections that are kept as long as the load wants.
///
/// - `tcp_nopush` stays off: over loopback it triples the time at 100 KiB.
/// - `use_temp_path=off`: a new file is renamed within its directory, never copied.
/// - `inactive`: by default, objects without a request for ten minutes are removed.
/// - `proxy_cache_lock` stays off, as it is by default: few requests of these loads are for an
///   object that is being fetched, and each of these would wait in steps of 500 ms.
/// - `open_file_cache`: without it, nginx opens and closes a file for each hit. With it, a hit took
///   about 0.7 times the processor time at 8 KiB and 0.9 times at 100 KiB, on a busy machine. Each
///   file in it is open: hence `worker_rlimit_nofile`.
/// - `Connection ""` and HTTP/1.1: without both, nginx makes a connection for each miss.
const NGINX: &str = "\
user root;
daemon off;
worker_processes 1;
worker_rlimit_nofile 20000;
pid {DIRECTORY}/pid;
error_log {DIRECTORY}/error.log;
events { worker_connections 768; }
http {
    {READING}
    types_hash_max_size 2048;
    default_type application/octet-stream;
    access_log {LOG};
    open_file_cache max=10000;
    keepalive_requests 1000000000;
    client_body_temp_path {DIRECTORY}/temporary/body;
    proxy_temp_path {DIRECTORY}/temporary/proxy;
    fastcgi_temp_path {DIRECTORY}/temporary/fastcgi;
    uwsgi_temp_path {DIRECTORY}/temporary/uwsgi;
    scgi_temp_path {DIRECTORY}/temporary/scgi;
    proxy_cache_path {DIRECTORY}/cache levels=1:2 keys_zone=hits:{KEYS}m max_size={DISK}m
                     inactive=1d use_temp_path=off;
    upstream origin { server {ORIGIN}; keepalive 64; }
    server {
        listen {ADDRESS};
        {TLS}
        location / {
            proxy_pass http://origin;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_cache hits;
        }
    }
}
";

const NGINX_TLS: &str = "\
listen {TLS_ADDRESS} ssl http2;
        ssl_certificate {CERTIFICATE};
        ssl_certificate_key {KEY};
        ssl_protocols TLSv1.3;";

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

/// One thread for requests, as the others have.
///
/// - `threads_per_disk`: eight threads, the default, are for disks that do several requests at
///   once. Two keep a disk of 100 operations a second busy.
/// - `ram_cache.size`: by default it takes memory by the size of the store.
/// - `wait_for_cache`: otherwise it listens while it still reads its store, and all is a miss.
/// - `min_average_object_size` stays 8000, which is right for these loads.
/// - The memory cache replaces by LRU, the default.
const TRAFFIC_SERVER: &str = "\
CONFIG proxy.config.http.server_ports STRING {PORT}:ip-in=127.0.0.1
CONFIG proxy.config.admin.user_id STRING #-1
CONFIG proxy.config.exec_thread.autoconfig INT 0
CONFIG proxy.config.exec_thread.limit INT 1
CONFIG proxy.config.task_threads INT 1
CONFIG proxy.config.cache.threads_per_disk INT 2
CONFIG proxy.config.cache.ram_cache.size INT {MEMORY}M
CONFIG proxy.config.http.wait_for_cache INT 1
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

/// - `maximum_object_size_in_memory`, `maximum_object_size`: large enough for every object of the
///   loads, as those of the others are.
/// - `no-digest no-netdb-exchange no-query`: the parent is the origin, which knows none of them.
/// - `cache_store_log`, `pinger_enable`: off, as they cost time and tell what nobody reads here.
/// - `memory_pools` and the replacement by LRU are the defaults.
const SQUID: &str = "\
http_port {ADDRESS} accel defaultsite=127.0.0.1 no-vhost
cache_peer 127.0.0.1 parent {ORIGIN_PORT} 0 no-query originserver no-digest no-netdb-exchange
http_access allow all
cache_mem {MEMORY} MB
maximum_object_size_in_memory 512 KB
maximum_object_size 4 MB
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

/// Slots of 16 KiB, the default: most objects of the loads need one, and half as many slots need
/// half the memory of slots of 8 KiB.
const ROCK: &str = "cache_dir rock {DIRECTORY}/store {DISK}";
/// 4096 directories: with a million files each has 256, as its documentation wants.
const AUFS: &str = "cache_dir aufs {DIRECTORY}/store {DISK} 16 256";
