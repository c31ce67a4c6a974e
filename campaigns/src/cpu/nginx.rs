//! An nginx with a cache, started for one run and removed after it.
//!
//! `cpu` compares the proxy with it. Invariant: it reads no configuration of the machine and writes
//! nothing outside the directory of the run.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

/// The settings in which the variants differ.
#[derive(Debug)]
pub struct Variant {
    /// Name in the report.
    pub name: &'static str,
    /// Ends the directive of the access log.
    log: &'static str,
    /// `on` or `off`.
    sendfile: &'static str,
}

/// First the defaults of nginx, which are its best settings for small objects; then commonly
/// recommended settings. `tcp_nopush` stays off: over loopback it triples the time at 100 KiB.
pub const VARIANTS: [Variant; 3] = [
    Variant {
        name: "nginx",
        log: "",
        sendfile: "off",
    },
    Variant {
        name: "nginx, sendfile",
        log: "",
        sendfile: "on",
    },
    Variant {
        name: "nginx, log buffered",
        log: " buffer=64k flush=1s",
        sendfile: "off",
    },
];

/// An nginx of ours: its configuration, cache and logs are in a directory of the run.
#[derive(Debug)]
pub struct Nginx {
    child: Child,
    address: SocketAddr,
}

impl Nginx {
    /// Starts it on these processors and waits until it listens.
    pub fn start(
        processors: &str,
        directory: &Path,
        origin: SocketAddr,
        variant: &Variant,
    ) -> anyhow::Result<Self> {
        let directory = directory.join(variant.name.replace([',', ' '], "-"));
        fs::create_dir_all(directory.join("temporary"))?;
        // nginx cannot say which port it was given; this one was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let text = NGINX
            .replace("DIRECTORY", &directory.display().to_string())
            .replace("LISTEN", &address.to_string())
            .replace("ORIGIN", &origin.to_string())
            .replace(" BUFFER", variant.log)
            .replace("SENDFILE", variant.sendfile);
        let file = directory.join("nginx.conf");
        fs::write(&file, text)?;
        let mut child = Command::new("taskset")
            .args(["-c", processors, "nginx", "-e"])
            .arg(directory.join("error.log"))
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start nginx")?;
        for _ in 0..START_LOOKS {
            if TcpStream::connect(address).is_ok() {
                return Ok(Self { child, address });
            }
            if let Some(status) = child.try_wait()? {
                bail!("nginx ended with {status}");
            }
            std::thread::sleep(LOOK_TIME);
        }
        child.kill()?;
        child.wait()?;
        bail!("nginx does not listen on {address}")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The master process and its children: the worker and the cache processes.
    pub fn pids(&self) -> anyhow::Result<Vec<u32>> {
        let master = self.child.id();
        let file = format!("/proc/{master}/task/{master}/children");
        let children = fs::read_to_string(&file).with_context(|| format!("no {file}"))?;
        let children = children.split_whitespace().map(str::parse);
        let mut pids: Vec<u32> = children.collect::<Result<_, _>>()?;
        pids.push(master);
        Ok(pids)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The master ends its workers on SIGTERM, which `kill` sends, but not on SIGKILL.
        let asked = Command::new("kill")
            .arg(self.child.id().to_string())
            .status();
        if !asked.is_ok_and(|status| status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

const START_LOOKS: u32 = 250;
const LOOK_TIME: Duration = Duration::from_millis(20);

/// A cache, one worker, and connections that are kept as long as the load wants.
const NGINX: &str = "\
user root;
daemon off;
worker_processes 1;
pid DIRECTORY/pid;
error_log DIRECTORY/error.log;
events { worker_connections 768; }
http {
    sendfile SENDFILE;
    types_hash_max_size 2048;
    default_type application/octet-stream;
    access_log DIRECTORY/access.log combined BUFFER;
    keepalive_requests 1000000000;
    client_body_temp_path DIRECTORY/temporary/body;
    proxy_temp_path DIRECTORY/temporary/proxy;
    fastcgi_temp_path DIRECTORY/temporary/fastcgi;
    uwsgi_temp_path DIRECTORY/temporary/uwsgi;
    scgi_temp_path DIRECTORY/temporary/scgi;
    proxy_cache_path DIRECTORY/cache levels=1:2 keys_zone=hits:10m max_size=1g inactive=1d;
    server {
        listen LISTEN;
        location / {
            proxy_pass http://ORIGIN;
            proxy_cache hits;
        }
    }
}
";
