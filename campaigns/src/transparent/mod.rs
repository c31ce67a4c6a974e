//! `cargo campaign transparent`: devices without settings behind a router that sends their
//! connections to the proxy, by REDIRECT and by TPROXY, in IPv4 and in IPv6.
//!
//! Real curl and Chromium; a server to which the names of the sites lead, and another one. Each
//! server says who it is. Needs root, and `unshare`, `nsenter`, `ip`, `nft` and `curl`; without
//! root it is skipped.
//!
//! The bar: what is asked for twice is served from the cache; a name that does not lead to the
//! address of the connection is answered by that address and nothing of it is stored; https is a
//! tunnel, or intercepted, as the list of hosts says; the proxy never connects to itself.

mod network;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{Origin, RawRequest, Script};
use rustix::process::geteuid;
use tokio::net::TcpListener;

use self::network::{FAMILIES, Family, LISTED, Mode, Network, PORT, SITE, in_url};
use crate::campaign::Campaign;
use crate::proxy_process::ProxyProcess;
use crate::real_clients::intercept::front::Front;
use crate::real_clients::tool::{Tool, is_installed};

/// Arguments of `transparent`.
#[derive(clap::Args)]
pub struct Args {
    /// Without Chromium
    #[arg(long)]
    short: bool,
}

/// Tries both modes.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let what = "redirect and tproxy in network namespaces";
    if !geteuid().is_root() {
        campaign.report.skip(what, "needs root");
        return Ok(());
    }
    if let Some(program) = PROGRAMS.into_iter().find(|it| !is_installed(it)) {
        campaign.report.skip(what, format!("no {program} here"));
        return Ok(());
    }
    for mode in [Mode::Redirect, Mode::Tproxy] {
        let mut trial = Trial::begin(mode, campaign).await?;
        for family in &FAMILIES {
            let outcomes = [
                ("a page is stored", trial.stored(family).await),
                ("a forged Host", trial.forged(family).await),
                ("no Host", trial.without_host(family).await),
                ("https as a tunnel", trial.tunnel(family).await),
                ("https intercepted", trial.intercepted(family).await),
                ("a forged server name", trial.forged_name(family).await),
                ("the proxy's own address", trial.own_address(family).await),
            ];
            for (what, outcome) in outcomes {
                let what = format!("{mode}, {}: {what}", family.name);
                campaign.report.outcome(what, outcome);
            }
        }
        let what = format!("{mode}: Chromium");
        match (args.short, is_installed(CHROMIUM)) {
            (true, _) => {}
            (false, true) => campaign.report.outcome(what, trial.browse().await),
            (false, false) => campaign.report.skip(what, "not installed"),
        }
        campaign.check_running(&mode.to_string(), &mut trial.proxy)?;
    }
    Ok(())
}

/// One mode, with a proxy and servers of its own.
struct Trial {
    network: Network,
    proxy: ProxyProcess,
    /// By family: the server of the names, and the other one.
    servers: Vec<[Origin; 2]>,
    _front: Front,
    folder: PathBuf,
}

impl Trial {
    async fn begin(mode: Mode, campaign: &Campaign) -> anyhow::Result<Self> {
        let folder = campaign.folder().join(mode.to_string());
        std::fs::create_dir_all(&folder)?;
        let binary = campaign.binary()?.display().to_string();
        Tool::new(&binary)
            .arguments(&["ca", "init", "--dir"])
            .argument(folder.join("ca"))
            .run()
            .await?;
        let front = Front::new(&[SITE, LISTED])?;
        std::fs::write(folder.join("servers.pem"), &front.pem)?;
        let network = Network::make(&folder)?;
        network.divert(mode)?;
        let proxy = campaign
            .proxy()?
            .without("allow-destination")
            .flag("listen", "127.0.0.1:3128")
            .flag("listen", format!("{mode}://[::]:{PORT}"))
            .flag("intercept", LISTED)
            .flag("intercept-ca", folder.join("ca").display())
            .flag("upstream-ca", folder.join("servers.pem").display())
            .inside(&network.router)
            .start()?;
        // The servers run on this thread.
        network.servers.join()?;
        let mut servers = vec![];
        for family in &FAMILIES {
            let named = server(&front, family.named, "named").await?;
            servers.push([named, server(&front, family.other, "other").await?]);
        }
        Ok(Self {
            network,
            proxy,
            servers,
            _front: front,
            folder,
        })
    }

    /// A page of one of the sites by curl on a device. `at` is the address that the device finds
    /// for both names.
    async fn curl(&self, at: &str, url: &str, words: &[&str]) -> anyhow::Result<Answer> {
        let at = in_url(at);
        let [page, tunnel, listed] = [(SITE, 80), (SITE, 443), (LISTED, 443)]
            .map(|(name, port)| format!("{name}:{port}:{at}"));
        let output = Tool::inside(&self.network.devices, "curl")
            .arguments(&["-sS", "-i", "--noproxy", "*", "--max-time", "20"])
            .arguments(&["--resolve", &page, "--resolve", &tunnel])
            .arguments(&["--resolve", &listed])
            .arguments(words)
            .argument(url)
            .run()
            .await?;
        let text = String::from_utf8_lossy(&output);
        let (head, body) = text.split_once("\r\n\r\n").context("no end of a head")?;
        Ok(Answer {
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        })
    }

    async fn stored(&self, family: &Family) -> anyhow::Result<String> {
        let url = format!("http://{SITE}/stored-{}", family.name);
        let first = self.curl(family.named, &url, &[]).await?;
        first.is_from("named")?;
        first.says("fwd=uri-miss; ttl=600; stored")?;
        let second = self.curl(family.named, &url, &[]).await?;
        second.is_from("named")?;
        second.says("hashcache; hit")?;
        Ok("miss, then hit".to_owned())
    }

    /// A program that connects to a server of its own and names another one.
    async fn forged(&self, family: &Family) -> anyhow::Result<String> {
        let url = format!("http://{SITE}/forged-{}", family.name);
        for _ in 0..2 {
            let forged = self.curl(family.other, &url, &[]).await?;
            forged.is_from("other")?;
            forged.says("fwd=bypass; detail=other-address")?;
        }
        let honest = self.curl(family.named, &url, &[]).await?;
        honest.is_from("named")?;
        honest.says("fwd=uri-miss; ttl=600; stored")?;
        // Now that the page is stored: it is not given to who is connected to another server.
        let forged = self.curl(family.other, &url, &[]).await?;
        forged.is_from("other")?;
        Ok("answered by the server of the connection, not stored".to_owned())
    }

    async fn without_host(&self, family: &Family) -> anyhow::Result<String> {
        let url = format!("http://{}/without-host", in_url(family.named));
        let answer = self.curl(family.named, &url, &["--http1.0", "-H", "Host:"]);
        answer.await?.is_from("named")?;
        Ok("answered by the server of the connection".to_owned())
    }

    async fn tunnel(&self, family: &Family) -> anyhow::Result<String> {
        let url = format!("https://{SITE}/tunnel-{}", family.name);
        let trusting = ["--cacert", &self.file("servers.pem")];
        let answer = self.curl(family.named, &url, &trusting).await?;
        answer.is_from("named")?;
        ensure!(
            !answer.head.contains("cache-status"),
            "the proxy has changed the answer: {}",
            answer.head
        );
        Ok("the certificate is that of the server".to_owned())
    }

    async fn intercepted(&self, family: &Family) -> anyhow::Result<String> {
        let url = format!("https://{LISTED}/intercepted-{}", family.name);
        let trusting = ["--cacert", &self.file("ca/root.pem")];
        for expected in ["fwd=uri-miss; ttl=600; stored", "hashcache; hit"] {
            let answer = self.curl(family.named, &url, &trusting).await?;
            answer.is_from("named")?;
            answer.says(expected)?;
        }
        Ok("miss, then hit".to_owned())
    }

    /// A listed name on a connection to a server to which it does not lead.
    async fn forged_name(&self, family: &Family) -> anyhow::Result<String> {
        let url = format!("https://{LISTED}/forged-name-{}", family.name);
        let trusting = ["--cacert", &self.file("servers.pem")];
        let answer = self.curl(family.other, &url, &trusting).await?;
        answer.is_from("other")?;
        Ok("a tunnel to the server of the connection".to_owned())
    }

    async fn own_address(&self, family: &Family) -> anyhow::Result<String> {
        let url = format!("http://{}/", in_url(family.router));
        let answer = self.curl(family.named, &url, &[]).await?;
        ensure!(answer.head.starts_with("http/1.1 508"), "{}", answer.head);
        Ok("refused with 508".to_owned())
    }

    /// Both sites in two browsers, each with a cache of its own.
    async fn browse(&self) -> anyhow::Result<String> {
        let family = &FAMILIES[0];
        let pages = [
            format!("http://{SITE}/browsed"),
            format!("https://{LISTED}/browsed"),
        ];
        for number in 0..2 {
            for url in &pages {
                let profile = self.folder.join(format!("browser-{number}"));
                let tool = Tool::inside(&self.network.devices, CHROMIUM)
                    .arguments(&BROWSER_WORDS)
                    .argument(format!("--user-data-dir={}", profile.display()))
                    .argument(format!("--host-resolver-rules=MAP * {}", family.named))
                    .argument(url);
                let document = String::from_utf8(tool.run().await?)?;
                ensure!(document.contains("from named"), "{url}: {document}");
            }
        }
        let [named, _] = &self.servers[0];
        let requests = named.requests();
        let count = requests.iter().filter(|it| it.target() == "/browsed");
        let count = count.count();
        ensure!(count == 2, "the server got {count} requests for two pages");
        Ok("http and https, fetched once for two browsers".to_owned())
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }
}

/// What curl has printed.
struct Answer {
    head: String,
    body: String,
}

impl Answer {
    fn is_from(&self, server: &str) -> anyhow::Result<()> {
        let expected = format!("from {server}");
        ensure!(
            self.body.contains(&expected),
            "not {expected}: {} {}",
            self.head,
            self.body
        );
        Ok(())
    }

    fn says(&self, status: &str) -> anyhow::Result<()> {
        ensure!(self.head.contains(status), "no `{status}`: {}", self.head);
        Ok(())
    }
}

/// A server that says its name, with http and https.
async fn server(front: &Front, address: &str, name: &'static str) -> anyhow::Result<Origin> {
    let address: IpAddr = address.parse()?;
    let at = |port| SocketAddr::new(address, port);
    let fields = [
        ("Cache-Control", "max-age=600"),
        ("Content-Type", "text/html"),
    ];
    let origin = Origin::start_at(at(80), move |request: &RawRequest| {
        Script::response(200, &fields, format!("{} from {name}", request.target()))
    });
    let origin = origin.await?;
    front.put_on(TcpListener::bind(at(443)).await?, origin.address())?;
    Ok(origin)
}

const PROGRAMS: [&str; 5] = ["unshare", "nsenter", "ip", "nft", "curl"];
const CHROMIUM: &str = "chromium";

/// The certificate of the proxy is not the question here; `real-clients --intercept` asks it.
const BROWSER_WORDS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-proxy-server",
    "--ignore-certificate-errors",
    "--dump-dom",
];
