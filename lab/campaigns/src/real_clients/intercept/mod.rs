//! curl, pip, npm, cargo, git and Chromium through a proxy that intercepts their TLS, with an
//! authority that was made for this run and that only these processes trust.
//!
//! Origins with TLS run on loopback. Their certificates are from another authority, which the proxy
//! trusts and clients do not; so a client that accepts a connection has accepted our certificate.
//! Clients get the settings that `hashcache env` prints.
//!
//! Limit: a second fetch is served from the cache, also when the origins are stopped. A client
//! that does not trust the authority works from its third attempt on, and does not affect other
//! clients.

mod browser;
pub mod front;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use hashcache_testkit::{ContentOptions, ContentOrigin, content};
use serde_json::{Value, json};

use self::browser::Browser;
use self::front::{Front, HOST};
use super::Bench;
use super::access_log::{AccessLog, Line, Sums};
use super::git::{GitServer, make_repository};
use super::mirrors::registries::Registries;
use super::mirrors::{CLIENTS, Trial};
use super::tool::{Tool, is_installed};
use crate::proxy_process::{ProxyCommand, ProxyProcess};
use crate::report::show_bytes;

/// Tries all tools.
pub(super) async fn run(bench: &mut Bench<'_>, binary: &Path) -> anyhow::Result<()> {
    let directory = bench.empty("intercept")?;
    let front = Front::new(&[HOST])?;
    let origin = ContentOrigin::start_thread(ContentOptions::default())?;
    let page = browser::page().await?;
    let repositories = directory.join("git");
    fs::create_dir_all(&repositories)?;
    let git = if is_installed("git") {
        let commit = make_repository(&repositories).await?;
        Some((GitServer::start(&repositories).await?, commit))
    } else {
        None
    };
    let registries = Registries::start(&directory.join("registries"), Some(&front)).await?;
    let origin_url = front.put(origin.address()).await?;
    let page_url = front.put(page.address()).await?;
    let git = match git {
        Some((server, commit)) => Some((front.put(server.address).await?, commit, server)),
        None => None,
    };
    let proxy = Proxy::start(binary, &directory, &front).await?;
    let mut part = Part {
        proxy,
        directory,
        origin: Content {
            origin,
            url: origin_url,
        },
    };

    let outcome = part.curl().await;
    bench.report.outcome("curl, intercepted", outcome);
    match &git {
        Some((url, commit, _server)) => {
            let outcome = part.git(url, commit).await;
            bench.report.outcome("git (dumb), intercepted", outcome);
        }
        None => bench
            .report
            .skip("git (dumb), intercepted", "not installed"),
    }
    part.package_tools(bench, &registries).await?;
    part.browse(bench, &page_url).await;
    let outcome = part.refuse().await;
    bench
        .report
        .outcome("curl without the authority, then one with it", outcome);
    front.cut().await?;
    let outcome = part.line_down().await;
    bench
        .report
        .outcome("curl, intercepted, origins gone", outcome);
    let complaints = [registries.complaints(), page.complaints()].concat();
    let complaints = complaints.join("; ");
    bench.report.check(
        "origins behind TLS have no complaints",
        complaints.is_empty(),
        complaints,
    );
    Ok(())
}

/// A proxy that intercepts, and the settings of its clients.
struct Proxy {
    process: ProxyProcess,
    log: AccessLog,
    /// The variables of `hashcache env` for certificates.
    variables: Vec<(String, String)>,
    authority: PathBuf,
    /// The authority of the origins, given only to clients that do not trust ours.
    origins: PathBuf,
}

impl Proxy {
    async fn start(binary: &Path, directory: &Path, front: &Front) -> anyhow::Result<Self> {
        let hashcache = || Tool::new(&binary.display().to_string());
        let authority = directory.join("authority");
        let tool = hashcache().arguments(&["ca", "init", "--dir"]);
        tool.argument(&authority).run().await?;
        let origins = directory.join("origins.pem");
        fs::write(&origins, &front.pem)?;
        let log = directory.join("access.log");
        let command = ProxyCommand::new(binary, &directory.join("cache.img"))
            .flag("cache-size", "1GiB")
            .flag("access-log", log.display())
            .flag("log-format", "json")
            .flag("allow-destination", "127.0.0.1/32")
            .flag("upstream-ca", origins.display())
            .flag("intercept-ca", authority.display())
            .flag("intercept", HOST)
            // The port of the self-test.
            .flag("allow-connect-port", 443);
        let process = front
            .ports()
            .iter()
            .fold(command, |it, port| it.flag("allow-connect-port", port))
            .start()?;
        let said = hashcache()
            .arguments(&["env", "--json", "--config=/dev/null"])
            .argument(format!("--public-url={}", process.url()))
            .argument(format!("--intercept-ca={}", authority.display()))
            .run()
            .await?;
        let said: Value = serde_json::from_slice(&said)?;
        let variables = said["variables"].as_object().context("no variables")?;
        let variables = variables
            .iter()
            // `no_proxy` of `hashcache env` covers the names of the origins.
            .filter(|(name, _)| !name.to_ascii_lowercase().ends_with("_proxy"))
            .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect();
        Ok(Self {
            process,
            log: AccessLog::new(log),
            variables,
            authority: authority.join("root.pem"),
            origins,
        })
    }

    /// Variables of a client that uses the proxy and trusts its authority.
    fn client(&self) -> Vec<(String, String)> {
        let url = self.process.url();
        let proxies = ["http_proxy", "https_proxy", "HTTPS_PROXY"];
        let proxies = proxies.map(|name| (name.to_owned(), url.clone()));
        [&self.variables[..], &proxies].concat()
    }

    /// A program that uses the proxy and trusts its authority.
    fn tool(&self, program: &str) -> Tool {
        let tool = ["no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"]
            .into_iter()
            .fold(Tool::new(program), Tool::without);
        self.client()
            .iter()
            .fold(tool, |tool, (name, value)| tool.variable(name, value))
    }
}

struct Content {
    origin: ContentOrigin,
    url: String,
}

struct Part {
    proxy: Proxy,
    directory: PathBuf,
    origin: Content,
}

impl Part {
    /// A client at `address` that fetches `target` with the authority of this file.
    async fn fetch(
        &self,
        address: &str,
        target: &str,
        authority: Option<&Path>,
    ) -> anyhow::Result<()> {
        let url = format!("{}{target}", self.origin.url);
        let words = [
            "--silent",
            "--show-error",
            "--fail",
            "--interface",
            address,
            &url,
        ];
        let tool = self.proxy.tool("curl").arguments(&words);
        let tool = match authority {
            Some(file) => tool.argument("--cacert").argument(file),
            None => tool,
        };
        let got = tool.run().await?;
        let wanted = self.origin.origin.content(target);
        ensure!(
            got.len() as u64 == wanted.length(),
            "{} of {} bytes",
            got.len(),
            wanted.length()
        );
        content::verify(&wanted, 0, &got).map_err(|at| anyhow::anyhow!("wrong byte at {at}"))
    }

    /// Bytes of content that the origin has sent.
    fn sent(&self) -> u64 {
        self.origin.origin.counts().body_bytes
    }

    async fn curl(&mut self) -> anyhow::Result<String> {
        let target = format!("/stored?size={SIZE}");
        for pass in 1..=2 {
            let before = self.sent();
            let fetched = self.fetch(CLIENT, &target, None).await;
            fetched.with_context(|| format!("pass {pass}"))?;
            let sent = self.sent() - before;
            let wanted = if pass == 1 { SIZE } else { 0 };
            ensure!(sent == wanted, "pass {pass}: the origin sent {sent} bytes");
        }
        let lines = self.proxy.log.next().await?;
        let hits = lines.iter().filter(|line| line.outcome == "hit").count();
        ensure!(hits == 1, "{hits} hits in the log: {lines:?}");
        Ok(format!("{} once from the origin", show_bytes(SIZE)))
    }

    /// Clones twice, each time into an empty directory.
    async fn git(&mut self, url: &str, commit: &str) -> anyhow::Result<String> {
        let mut told = vec![];
        for pass in 1..=2 {
            let clone = self.directory.join(format!("clone-{pass}"));
            let url = format!("{url}/repository.git");
            let git = || self.proxy.tool("git").variable("GIT_SMART_HTTP", "0");
            let tool = git()
                .arguments(&["clone", "--quiet", &url])
                .argument(&clone);
            tool.run().await?;
            let head = git().arguments(&["rev-parse", "HEAD"]).directory(&clone);
            let head = head.run().await?;
            let head = String::from_utf8_lossy(&head);
            ensure!(head.trim() == commit, "HEAD is {head}, not {commit}");
            let lines = self.proxy.log.next().await?;
            let packs = lines
                .iter()
                .filter(|line| line.target.contains("/objects/"));
            let packs = Sums::of(packs);
            ensure!(packs.count > 0, "no object was asked for: {lines:?}");
            let sent = show_bytes(packs.origin_bytes);
            told.push(format!(
                "pass {pass}: {} of objects, {sent} from the origin",
                show_bytes(packs.client_bytes)
            ));
            let share = packs.cached_per_mille();
            ensure!(
                pass == 1 || share >= CACHED_PER_MILLE_MIN,
                "{}",
                told.join("; ")
            );
        }
        Ok(told.join("; "))
    }

    /// pip, npm and cargo, from registries behind TLS.
    async fn package_tools(
        &mut self,
        bench: &mut Bench<'_>,
        registries: &Registries,
    ) -> anyhow::Result<()> {
        let settings = settings(&registries.flags());
        let directory = self.directory.join("packages");
        fs::create_dir_all(&directory)?;
        let trial = Trial {
            directory,
            settings,
            variables: self.proxy.client(),
        };
        for (kind, fetch) in CLIENTS.into_iter().filter(|(kind, _)| *kind != "apt") {
            let what = format!("{kind}, intercepted");
            let Some(content) = registries.content(kind) else {
                let why = format!("no registry for it: {}", registries.missing(kind));
                bench.report.skip(what, why);
                continue;
            };
            if !is_installed(kind) {
                bench.report.skip(what, "not installed");
                continue;
            }
            let outcome = trial.twice(kind, fetch, content).await;
            let lines = self.proxy.log.next().await?;
            let outcome = outcome.and_then(|told| seen_within(&lines).map(|()| told));
            bench.report.outcome(what, outcome);
        }
        Ok(())
    }

    /// Visits a page twice, with an empty browser cache each time, and the self-test.
    async fn browse(&mut self, bench: &mut Bench<'_>, page: &str) {
        let rows = [
            "Chromium, intercepted",
            "the self-test in a Chromium that trusts the authority",
            "the self-test in one that does not",
        ];
        if let Some(program) = browser::missing() {
            for what in rows {
                bench.report.skip(what, format!("no {program} here"));
            }
            return;
        }
        let outcome = self.visit(page).await;
        bench.report.outcome(rows[0], outcome);
        for (what, authority, expected) in [
            (rows[1], Some(self.proxy.authority.clone()), "trusted"),
            (rows[2], None, "not trusted"),
        ] {
            let outcome = self.self_test(authority.as_deref()).await;
            let outcome = outcome.and_then(|shown| {
                ensure!(shown == expected, "it says: {shown}");
                Ok(format!("it says: {shown}"))
            });
            bench.report.outcome(what, outcome);
        }
    }

    async fn visit(&mut self, page: &str) -> anyhow::Result<String> {
        let home = self.directory.join("browser");
        let url = self.proxy.process.url();
        let mut browser = Browser::new(&home, &url, Some(&self.proxy.authority)).await?;
        let mut told = vec![];
        for pass in 1..=2 {
            let document = browser.visit(&format!("{page}/")).await?;
            ensure!(
                document.contains(browser::ALL_THERE),
                "pass {pass}: it says {document}"
            );
            let lines = self.proxy.log.next().await?;
            let lines = lines.iter().filter(|line| {
                line.authority.starts_with(HOST) && line.method == "GET" && line.status < 300
            });
            let sums = Sums::of(lines);
            told.push(format!(
                "pass {pass}: {} requests, {} from the origin",
                sums.count,
                show_bytes(sums.origin_bytes)
            ));
            // The page, three images, a stretch of the film.
            ensure!(sums.count == 5, "{}", told.join("; "));
            let is_first = pass == 1;
            ensure!((sums.origin_bytes > 0) == is_first, "{}", told.join("; "));
        }
        Ok(told.join("; "))
    }

    async fn self_test(&self, authority: Option<&Path>) -> anyhow::Result<&'static str> {
        let home = match authority {
            Some(_) => self.directory.join("trusts"),
            None => self.directory.join("trusts-not"),
        };
        let url = self.proxy.process.url();
        let mut browser = Browser::new(&home, &url, authority).await?;
        browser::self_test(&browser.visit(&format!("{url}/ca")).await?)
    }

    /// A client that trusts only the origins' authority is refused twice, then works; a client at
    /// another address gets hits all the time.
    async fn refuse(&mut self) -> anyhow::Result<String> {
        let stored = format!("/stored?size={SIZE}");
        let own = self.proxy.origins.clone();
        let mut told = vec![];
        for attempt in 1..=4 {
            let target = format!("/refused-{attempt}?size=1000");
            let fetched = self.fetch(REFUSER, &target, Some(&own)).await;
            let is_over = attempt > 2;
            match fetched {
                Ok(()) if is_over => told.push(format!("try {attempt} works")),
                Ok(()) => anyhow::bail!("try {attempt} works: it was not intercepted"),
                Err(error) if is_over => return Err(error.context(format!("try {attempt}"))),
                Err(_) => told.push(format!("try {attempt} refuses")),
            }
            let before = self.sent();
            self.fetch(CLIENT, &stored, None).await?;
            let sent = self.sent() - before;
            ensure!(
                sent == 0,
                "the other client had {sent} bytes from the origin"
            );
        }
        Ok(told.join(", "))
    }

    /// Stored responses are served without any origin; others are not.
    async fn line_down(&mut self) -> anyhow::Result<String> {
        let stored = format!("/stored?size={SIZE}");
        self.fetch(CLIENT, &stored, None).await?;
        let other = self.fetch(CLIENT, "/never-asked-for?size=1000", None).await;
        ensure!(other.is_err(), "an origin that is gone has answered");
        Ok(format!("{} right", show_bytes(SIZE)))
    }
}

/// Checks that there were requests inside the tunnels, and that every tunnel was intercepted.
fn seen_within(lines: &[Line]) -> anyhow::Result<()> {
    let within = lines.iter().filter(|line| line.method != "CONNECT").count();
    ensure!(within > 0, "nothing was seen of what went through");
    Ok(())
}

/// The settings of package tools for registries, in the form of `hashcache env --json`.
fn settings(flags: &[&str]) -> Value {
    let mirrors = flags.iter().filter_map(|flag| {
        let (kind, urls) = flag.split_once('=')?;
        let url = urls.split(' ').next()?;
        let (variables, lines) = match kind {
            "pypi" => (
                json!({ "PIP_INDEX_URL": url }),
                vec!["[global]".to_owned(), format!("index-url = {url}")],
            ),
            "npm" => (
                json!({ "npm_config_registry": url }),
                vec![format!("registry={url}")],
            ),
            "crates" => (
                json!({}),
                vec![
                    "[source.crates-io]".to_owned(),
                    "replace-with = \"here\"".to_owned(),
                    "[source.here]".to_owned(),
                    format!("registry = \"sparse+{url}\""),
                ],
            ),
            _ => return None,
        };
        Some(json!({ "kind": kind, "variables": variables, "lines": lines }))
    });
    json!({ "mirrors": mirrors.collect::<Vec<_>>() })
}

/// Large enough that it cannot be mistaken for a head.
const SIZE: u64 = 3_000_000;
/// The part of 1,000 bytes of objects that the second clone must find in the cache.
const CACHED_PER_MILLE_MIN: u64 = 950;
/// Addresses of two clients: a refusal by one does not affect the other.
const CLIENT: &str = "127.0.0.2";
const REFUSER: &str = "127.0.0.3";
