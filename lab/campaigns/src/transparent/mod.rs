//! `cargo campaign transparent`: devices without settings behind a router that sends their
//! connections to the proxy, by REDIRECT and by TPROXY, in IPv4 and in IPv6.
//!
//! Real curl and Chromium; a server to which the names of the sites lead, and another one. Each
//! server says who it is. Needs root, and `unshare`, `nsenter`, `ip`, `nft` and `curl`; without
//! root it is skipped.
//!
//! Limit: what is asked for twice is served from the cache; a name that does not lead to the
//! address of the connection is answered by that address and nothing of it is stored; https is a
//! tunnel, or intercepted, as the list of hosts says; the access rules hold for the names and for
//! the addresses, and no page asks for a login; the proxy never connects to itself.

mod network;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use hashcache_testkit::{Origin, RawRequest, Script};
use rustix::process::geteuid;
use tokio::net::TcpListener;

use self::network::{
    DENIED, FAMILIES, Family, LISTED, Mode, Network, OF_USER, PASSED, PORT, SITE, SITES, in_url,
};
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
    if let Some((_, package)) = PROGRAMS.iter().find(|(program, _)| !is_installed(program)) {
        let advice = format!("needs Debian's package {package}: apt-get install {package}");
        campaign.report.skip(what, advice);
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
                ("a denied site", trial.denied(family).await),
                ("a denied address", trial.denied_address(family).await),
                ("a tunnel by a rule", trial.passed(family).await),
                ("a rule for a user", trial.of_user(family).await),
                ("the proxy's own address", trial.own_address(family).await),
                ("the listener itself", trial.listener(family).await),
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
        let config = folder.join("hashcache.toml");
        std::fs::write(folder.join("users"), USERS)?;
        std::fs::write(&config, rules(&folder))?;
        let front = Front::new(&SITES)?;
        std::fs::write(folder.join("servers.pem"), &front.pem)?;
        let network = Network::make(&folder)?;
        network.divert(mode)?;
        let proxy = campaign
            .proxy()?
            .without("allow-destination")
            .flag("listen", "127.0.0.1:3128")
            .flag("listen", format!("{mode}://[::]:{PORT}"))
            .flag("config", config.display())
            .flag("intercept", LISTED)
            .flag("intercept", PASSED)
            .flag("intercept", DENIED)
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
    /// for all names.
    async fn curl(&self, at: &str, url: &str, words: &[&str]) -> anyhow::Result<Answer> {
        let everywhere = format!("::{}:", in_url(at));
        let output = Tool::inside(&self.network.devices, "curl")
            .arguments(&["-sS", "-i", "--noproxy", "*", "--max-time", "20"])
            .arguments(&["--connect-to", &everywhere])
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
        first.is_stored()?;
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
        honest.is_stored()?;
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
        let first = self.curl(family.named, &url, &trusting).await?;
        first.is_from("named")?;
        first.is_stored()?;
        let second = self.curl(family.named, &url, &trusting).await?;
        second.is_from("named")?;
        second.says("hashcache; hit")?;
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

    /// Whatever address the device finds for the name.
    async fn denied(&self, family: &Family) -> anyhow::Result<String> {
        for at in [family.named, family.other] {
            let page = self.curl(at, &format!("http://{DENIED}/"), &[]).await?;
            page.is_refusal(&["no games", "Not in this house.", "the porter"])?;
            self.is_closed(at, &format!("https://{DENIED}/")).await?;
        }
        Ok("a page over http, a closed connection over https".to_owned())
    }

    /// Whatever allowed name the device gives to the server.
    async fn denied_address(&self, family: &Family) -> anyhow::Result<String> {
        let url = format!("http://{SITE}/");
        let page = self.curl(family.denied, &url, &[]).await?;
        page.is_refusal(&["no such server"])?;
        self.is_closed(family.denied, &format!("https://{LISTED}/"))
            .await?;
        Ok("refused under the names of other sites".to_owned())
    }

    /// A TLS connection to a site gets nothing.
    async fn is_closed(&self, at: &str, url: &str) -> anyhow::Result<()> {
        let answer = self.curl(at, url, &["-k"]).await;
        ensure!(answer.is_err(), "{url} at {at} has an answer");
        Ok(())
    }

    async fn passed(&self, family: &Family) -> anyhow::Result<String> {
        let url = format!("https://{PASSED}/passed-{}", family.name);
        let trusting = ["--cacert", &self.file("servers.pem")];
        let answer = self.curl(family.named, &url, &trusting).await?;
        answer.is_from("named")?;
        Ok("the certificate is that of the server".to_owned())
    }

    async fn of_user(&self, family: &Family) -> anyhow::Result<String> {
        for words in [&[][..], &["-H", LOGIN]] {
            let page = self
                .curl(family.named, &format!("http://{OF_USER}/"), words)
                .await?;
            page.is_refusal(&["needs a login", "in the settings of your device"])?;
            let asks = page.head.contains("authenticate");
            ensure!(!asks, "the page asks for a login: {}", page.head);
        }
        self.is_closed(family.named, &format!("https://{OF_USER}/"))
            .await?;
        Ok("a page that says why no login can be asked for".to_owned())
    }

    /// A device that connects to the listener, without any rule of the network.
    async fn listener(&self, family: &Family) -> anyhow::Result<String> {
        let url = format!("http://{}:{PORT}/", in_url(family.router));
        let answer = self.curl(family.router, &url, &[]).await;
        // Without a rule of REDIRECT, the kernel may know of no original destination at all.
        let is_refused = answer.map_or(true, |it| it.head.starts_with("http/1.1 508"));
        ensure!(is_refused, "the listener serves itself");
        Ok("refused".to_owned())
    }

    async fn own_address(&self, family: &Family) -> anyhow::Result<String> {
        let router = in_url(family.router);
        let url = format!("http://{router}/");
        let listener = format!("Host: {router}:{PORT}");
        let host = ["-H", &listener];
        for (at, words) in [(family.router, &[][..]), (family.named, &host)] {
            let answer = self.curl(at, &url, words).await?;
            ensure!(answer.head.starts_with("http/1.1 508"), "{}", answer.head);
        }
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

    /// A page of the proxy with status 403 and these words.
    fn is_refusal(&self, words: &[&str]) -> anyhow::Result<()> {
        let is_denied = self.head.starts_with("http/1.1 403");
        let missing = words.iter().find(|word| !self.body.contains(**word));
        ensure!(
            is_denied && missing.is_none(),
            "no refusal with {words:?}: {} {}",
            self.head,
            self.body
        );
        Ok(())
    }

    /// A miss that was stored. Its lifetime is 600 s, of which some may be over.
    fn is_stored(&self) -> anyhow::Result<()> {
        self.says("fwd=uri-miss; ttl=")?;
        self.says("; stored")
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

/// The access rules, and the files of `folder` that they need.
fn rules(folder: &Path) -> String {
    let denied = FAMILIES.map(|family| format!("\"{}\"", family.denied));
    format!(
        "htpasswd = [\"{}\"]\n\
         login_networks = [\"10.0.0.0/8\", \"fd00::/8\"]\n\
         contact = \"the porter\"\n\
         [[access]]\nname = \"no games\"\naction = \"deny\"\nreason = \"Not in this house.\"\n\
         destinations = [\"{DENIED}\"]\n\
         [[access]]\nname = \"no such server\"\naction = \"deny\"\ndestinations = [{}]\n\
         [[access]]\naction = \"tunnel\"\ndestinations = [\"{PASSED}\"]\n\
         [[access]]\naction = \"allow\"\ndestinations = [\"{OF_USER}\"]\nusers = [\"anna\"]\n\
         [[access]]\naction = \"deny\"\ndestinations = [\"{OF_USER}\"]\n\
         [[access]]\naction = \"allow\"\n",
        folder.join("users").display(),
        denied.join(", ")
    )
}

/// `anna` has the password `right:1`.
const USERS: &str = "anna:$2y$04$bvIG6Nmid91Mu9RcmmWZfO9uJIet1vZ5RxKoHcc2APXp/vBHdBvP.\n";
const LOGIN: &str = "Proxy-Authorization: Basic YW5uYTpyaWdodDox";

/// Programs this campaign runs, and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 5] = [
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("curl", "curl"),
];
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
