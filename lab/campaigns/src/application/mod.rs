//! `cargo campaign application`: a Django application with three origins behind the proxy, used by
//! Chromium.
//!
//! Needs Debian's packages chromium, chromium-driver and python3-django, and names what is missing.
//! `app.py` is the application: login with a session cookie, forms with CSRF tokens, redirects,
//! static files without Cache-Control. `browser` drives Chromium, `origins` the application. The
//! proxy ends TLS and has a `[[site]]` of three origins with default lifetimes. All of it is on
//! loopback. It is no part of the tests of every change: the browser alone has 300 MB.
//!
//! Invariant: what is checked is what a browser shows, what the origins recorded, and what the
//! proxy logged.

mod browser;
mod origins;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::campaign::Campaign;
use crate::certificate::Certificate;
use crate::proxy_process::ProxyProcess;
use crate::real_clients::access_log::{AccessLog, Line};
use crate::real_clients::tool::is_installed;
use browser::{Browser, Driver, PROGRAMS};
use origins::{AppOrigin, Python, database};

/// Arguments of `application`.
#[derive(clap::Args)]
pub struct Args {
    /// A Python that has Django [default: the installed one]
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
}

/// Plays all scenes.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    // First: to build a proxy takes minutes.
    let missing = PROGRAMS.into_iter().find(|program| !is_installed(program));
    if let Some(program) = missing {
        anyhow::bail!(
            "{program} is missing: install Chromium and its driver (Debian: apt-get install \
             chromium chromium-driver)"
        );
    }
    let python = Python::find(args.python.as_deref())?;
    campaign.report.tell("Django", &python.version);
    let folder = campaign.folder().canonicalize()?;
    python.prepare(&database(&folder))?;
    let start = |name| AppOrigin::start(&python, &folder, name);
    let origins = [start("one")?, start("two")?, start("three")?];
    let mut proxy = start_proxy(campaign, &folder, &origins)?;
    let driver = Driver::start(&folder)?;
    let mut stage = Stage {
        base: format!("https://{HOST}:{}", proxy.address().port()),
        anna: driver.browser().await?,
        ben: driver.browser().await?,
        nobody: driver.browser().await?,
        log: AccessLog::new(folder.join("access.log")),
        origins,
        folder,
    };
    let played = stage.play(campaign).await;
    campaign
        .report
        .outcome("the scenes are played to the end", played);
    campaign.check_running("", &mut proxy)
}

/// The proxy with the site.
fn start_proxy(
    campaign: &Campaign,
    folder: &Path,
    origins: &[AppOrigin; 3],
) -> anyhow::Result<ProxyProcess> {
    let certificate = Certificate::make_for(&[HOST], folder)?;
    let urls: Vec<String> = origins
        .iter()
        .map(|it| format!("\"{}\"", it.url()))
        .collect();
    let config = folder.join("hashcache.toml");
    fs::write(&config, CONFIG.replace("{ORIGINS}", &urls.join(", ")))?;
    campaign
        .proxy()?
        .flag("config", config.display())
        .flag("cache-size", "1GiB")
        .flag("listen", "https://127.0.0.1:0")
        .flag("tls-cert", certificate.file.display())
        .flag("tls-key", certificate.key_file.display())
        .without("access-log")
        .flag("access-log", folder.join("access.log").display())
        .flag("log-format", "json")
        .start()
}

/// The browsers, and what they look at.
struct Stage {
    base: String,
    anna: Browser,
    ben: Browser,
    nobody: Browser,
    log: AccessLog,
    origins: [AppOrigin; 3],
    folder: PathBuf,
}

impl Stage {
    async fn play(&mut self, campaign: &mut Campaign) -> anyhow::Result<String> {
        let report = &mut campaign.report;
        report.outcome("two users log in", self.log_in().await);
        report.outcome(
            "nobody sees the page of another user",
            self.own_pages().await,
        );
        report.outcome("redirects stay on the public name", self.redirects().await);
        report.outcome(
            "static files are hits for the second profile",
            self.static_files().await,
        );
        report.outcome(
            "a page without cookies is a hit, with cookies it is not",
            self.page_without_cookies().await,
        );
        report.outcome("a forged form is refused", self.forged_form().await);
        report.outcome("a killed origin is not noticed", self.killed_origin().await);
        self.ben.picture(&self.folder.join("ben.png")).await?;
        report.outcome("logout works, and for one user only", self.log_out().await);
        report.outcome("origins see who asked for what", self.seen_by_origins());
        Ok(String::new())
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    async fn log_in(&self) -> anyhow::Result<String> {
        for (browser, name) in [(&self.anna, "anna"), (&self.ben, "ben")] {
            browser.visit(&self.at("/notes/")).await?;
            browser.arrives_at(&self.at("/login/?next=/notes/")).await?;
            browser.types("id_username", name).await?;
            browser
                .types("id_password", &format!("{name}'s password"))
                .await?;
            browser.clicks("enter").await?;
            browser.arrives_at(&self.at("/notes/")).await?;
            is_for(browser, &format!("Signed in as {name}")).await?;
            for number in 0..3 {
                browser
                    .types("note", &format!("{name}'s note {number}"))
                    .await?;
                browser.clicks("add").await?;
                browser.arrives_at(&self.at("/notes/")).await?;
            }
        }
        Ok(format!("anna and ben at {}", self.base))
    }

    async fn own_pages(&self) -> anyhow::Result<String> {
        for _ in 0..ROUNDS {
            for (browser, who, notes) in [
                (&self.anna, "Signed in as anna", Some("anna's note")),
                (&self.ben, "Signed in as ben", Some("ben's note")),
                (&self.nobody, "Nobody is signed in", None),
            ] {
                browser.visit(&self.at("/")).await?;
                is_for(browser, who).await?;
                let Some(notes) = notes else {
                    continue;
                };
                browser.visit(&self.at("/notes/")).await?;
                is_for(browser, who).await?;
                let text = browser.text("notes").await?;
                let is_own = |line: &str| line.starts_with(notes);
                ensure!(
                    text.lines().count() == 3 && text.lines().all(is_own),
                    "{who}: {text:?}"
                );
            }
        }
        Ok(format!("{} pages of three profiles", ROUNDS * 5))
    }

    async fn redirects(&self) -> anyhow::Result<String> {
        for browser in [&self.anna, &self.nobody, &self.ben, &self.nobody] {
            browser.visit(&self.at("/old/")).await?;
            browser.arrives_at(&self.at("/")).await?;
            let source = browser
                .script("return document.documentElement.outerHTML")
                .await?;
            let source = source.as_str().context("no page")?;
            ensure!(
                !source.contains("127.0.0.1"),
                "an internal address: {source}"
            );
        }
        Ok("of the login, of a form, and one with a whole URL".to_owned())
    }

    async fn static_files(&mut self) -> anyhow::Result<String> {
        for browser in [&self.anna, &self.ben, &self.nobody] {
            browser.visit(&self.at("/")).await?;
            let script = browser
                .script("return document.documentElement.dataset.script")
                .await?;
            ensure!(script == "loaded", "the script did not run: {script}");
            let color = "return getComputedStyle(document.querySelector('h1')).color";
            let color = browser.script(color).await?;
            ensure!(color == "rgb(35, 82, 124)", "no style: {color}");
        }
        let lines = self.log.next().await?;
        let mut said = vec![];
        for path in ["/static/style.css", "/static/app.js"] {
            let of_file: Vec<&Line> = lines.iter().filter(|line| line.target == path).collect();
            let misses = of_file.iter().filter(|line| line.outcome != "hit").count();
            ensure!(
                of_file.len() >= 3,
                "{path} was asked for {} times",
                of_file.len()
            );
            ensure!(
                misses == 1,
                "{path}: {misses} of {} were no hits",
                of_file.len()
            );
            said.push(format!(
                "{path}: {} of {}",
                of_file.len() - 1,
                of_file.len()
            ));
        }
        for origin in &self.origins {
            let seen = origin.seen()?;
            let count = |path| seen.iter().filter(|it| it["path"] == path).count();
            ensure!(
                count("/static/style.css") <= 1,
                "{} was asked again",
                origin.name
            );
        }
        Ok(said.join(", "))
    }

    async fn page_without_cookies(&mut self) -> anyhow::Result<String> {
        let (mut hits, mut others) = (0, 0);
        for _ in 0..ROUNDS {
            self.nobody.visit(&self.at("/")).await?;
            is_for(&self.nobody, "Nobody is signed in").await?;
        }
        let of_page = |lines: Vec<Line>| lines.into_iter().filter(|line| line.target == "/");
        for line in of_page(self.log.next().await?) {
            ensure!(
                line.outcome == "hit",
                "the page of nobody: {}",
                line.outcome
            );
            hits += 1;
        }
        for browser in [&self.anna, &self.ben, &self.anna] {
            browser.visit(&self.at("/")).await?;
        }
        for line in of_page(self.log.next().await?) {
            ensure!(line.outcome != "hit", "the page of a user is a hit");
            others += 1;
        }
        ensure!(
            hits == ROUNDS && others == 3,
            "{hits} and {others} requests"
        );
        Ok(format!("{hits} hits, {others} requests to origins"))
    }

    async fn forged_form(&self) -> anyhow::Result<String> {
        let script = "return fetch('/notes/', { method: 'POST', body: new URLSearchParams({ \
                      note: 'forged', csrfmiddlewaretoken: 'x'.repeat(64) }) })\
                      .then(answer => answer.status)";
        let status = self.anna.script(script).await?;
        ensure!(status == 403, "status {status}");
        self.anna.visit(&self.at("/notes/")).await?;
        let notes = self.anna.text("notes").await?;
        ensure!(!notes.contains("forged"), "{notes:?}");
        Ok("status 403".to_owned())
    }

    async fn killed_origin(&mut self) -> anyhow::Result<String> {
        let [one, ..] = &mut self.origins;
        one.kill()?;
        for _ in 0..2 * ROUNDS {
            for (browser, who) in [(&self.anna, "anna"), (&self.ben, "ben")] {
                browser.visit(&self.at("/notes/")).await?;
                is_for(browser, &format!("Signed in as {who}")).await?;
            }
        }
        let lines = self.log.next().await?;
        let errors = lines.iter().filter(|line| line.status >= 500).count();
        ensure!(errors == 0, "{errors} errors");
        Ok(format!("{} pages without an error", 4 * ROUNDS))
    }

    async fn log_out(&self) -> anyhow::Result<String> {
        self.anna.clicks("logout").await?;
        self.anna.arrives_at(&self.at("/")).await?;
        is_for(&self.anna, "Nobody is signed in").await?;
        self.anna.visit(&self.at("/notes/")).await?;
        self.anna
            .arrives_at(&self.at("/login/?next=/notes/"))
            .await?;
        self.ben.visit(&self.at("/notes/")).await?;
        is_for(&self.ben, "Signed in as ben").await?;
        Ok("anna is asked to log in again, ben is not".to_owned())
    }

    fn seen_by_origins(&self) -> anyhow::Result<String> {
        let host = self.base.trim_start_matches("https://");
        let expected = [
            ("HTTP_HOST", host.to_owned()),
            ("HTTP_X_FORWARDED_FOR", "127.0.0.1".to_owned()),
            ("HTTP_X_FORWARDED_PROTO", "https".to_owned()),
            ("HTTP_X_FORWARDED_HOST", host.to_owned()),
            (
                "HTTP_FORWARDED",
                format!("for=127.0.0.1;host=\"{host}\";proto=https"),
            ),
        ];
        let mut said = vec![];
        for origin in &self.origins {
            let seen = origin.seen()?;
            ensure!(
                seen.len() > 5,
                "{} saw {} requests",
                origin.name,
                seen.len()
            );
            for request in &seen {
                for (name, value) in &expected {
                    let is = request[*name] == value.as_str();
                    ensure!(is, "{}: {request}", origin.name);
                }
            }
            said.push(format!("{}: {} requests", origin.name, seen.len()));
        }
        Ok(said.join(", "))
    }
}

/// The page names its reader.
async fn is_for(browser: &Browser, expected: &str) -> anyhow::Result<()> {
    let text = browser.text("user").await?;
    ensure!(
        text == expected,
        "the page says {text:?} and not {expected:?}"
    );
    Ok(())
}

/// The public name of the application.
const HOST: &str = "www.app.test";
const ROUNDS: usize = 5;

const CONFIG: &str = "\
[[site]]
hosts = [\"www.app.test\"]
origins = [{ORIGINS}]
lifetime = [
    { path = \"/static/**\", default = \"1h\", ignore_cookies = true },
    { default = \"5m\" },
]
compress = [\"br\", \"gzip\"]
";
