//! Headless Chromium, driven through chromedriver (the WebDriver protocol, by HTTP on loopback).
//!
//! Used by `mod`. Invariants: each [`Browser`] has a profile of its own, so it shares no cookie and
//! no cache with another one; no browser resolves any name but [`HOST`]. Dropping the [`Driver`]
//! ends all browsers: they are in its process group.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use hashcache_testkit::Client;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use super::HOST;

/// A running chromedriver.
#[derive(Debug)]
pub struct Driver {
    child: Child,
    address: SocketAddr,
}

impl Driver {
    /// Starts it; all files of it and of its browsers are in `folder`.
    pub fn start(folder: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(CHROMEDRIVER);
        for name in ["http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy"] {
            command.env_remove(name);
        }
        let child = command
            .arg("--port=0")
            .env("HOME", folder)
            .env("TMPDIR", folder)
            .env("XDG_CONFIG_HOME", folder)
            .env("XDG_CACHE_HOME", folder)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start chromedriver")?;
        let mut driver = Self {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        let stdout = driver.child.stdout.take().context("no output")?;
        let mut lines = BufReader::new(stdout);
        let port = loop {
            let mut line = String::new();
            let read = lines.read_line(&mut line)?;
            ensure!(read > 0, "chromedriver ended without naming its port");
            if let Some((_, port)) = line.split_once("successfully on port ") {
                break port.trim().trim_end_matches('.').parse()?;
            }
        };
        driver.address.set_port(port);
        // Read to the end, or chromedriver would block when the pipe is full.
        std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
        Ok(driver)
    }

    /// Opens a browser with a new profile.
    pub async fn browser(&self) -> anyhow::Result<Browser> {
        let rules = format!("--host-resolver-rules=MAP {HOST} 127.0.0.1,MAP * ~NOTFOUND");
        let words: Vec<&str> = WORDS.iter().copied().chain([&*rules]).collect();
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "acceptInsecureCerts": true,
            "goog:chromeOptions": { "args": words },
        } } });
        let value = call(self.address, "POST", "/session", &wanted).await?;
        let session = value["sessionId"].as_str().context("no session")?;
        Ok(Browser {
            driver: self.address,
            session: session.to_owned(),
        })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // All fail only when everything has ended already.
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A browser with a profile of its own.
#[derive(Debug)]
pub struct Browser {
    driver: SocketAddr,
    session: String,
}

impl Browser {
    async fn ask(&self, method: &str, what: &str, content: Value) -> anyhow::Result<Value> {
        let path = format!("/session/{}{what}", self.session);
        call(self.driver, method, &path, &content).await
    }

    /// Loads a URL.
    pub async fn visit(&self, url: &str) -> anyhow::Result<()> {
        self.ask("POST", "/url", json!({ "url": url })).await?;
        Ok(())
    }

    /// The URL in the address bar.
    pub async fn url(&self) -> anyhow::Result<String> {
        let url = self.ask("GET", "/url", Value::Null).await?;
        Ok(url.as_str().context("no URL")?.to_owned())
    }

    /// Waits until the address bar shows this URL.
    pub async fn arrives_at(&self, url: &str) -> anyhow::Result<()> {
        for _ in 0..LOOKS {
            if self.url().await? == url {
                return Ok(());
            }
            tokio::time::sleep(LOOK_TIME).await;
        }
        bail!("it is at {} and not at {url}", self.url().await?)
    }

    /// The result of a script, which may be a promise.
    pub async fn script(&self, script: &str) -> anyhow::Result<Value> {
        let content = json!({ "script": script, "args": [] });
        self.ask("POST", "/execute/sync", content).await
    }

    /// The text that the element with this id shows.
    pub async fn text(&self, id: &str) -> anyhow::Result<String> {
        let element = self.element(id).await?;
        let text = self
            .ask("GET", &format!("/element/{element}/text"), Value::Null)
            .await?;
        Ok(text.as_str().context("no text")?.to_owned())
    }

    /// Types a text into the element with this id.
    pub async fn types(&self, id: &str, text: &str) -> anyhow::Result<()> {
        let path = format!("/element/{}/value", self.element(id).await?);
        self.ask("POST", &path, json!({ "text": text })).await?;
        Ok(())
    }

    /// Clicks on the element with this id.
    pub async fn clicks(&self, id: &str) -> anyhow::Result<()> {
        let path = format!("/element/{}/click", self.element(id).await?);
        self.ask("POST", &path, json!({})).await?;
        Ok(())
    }

    /// Writes a picture of the page (PNG).
    pub async fn picture(&self, file: &Path) -> anyhow::Result<()> {
        let picture = self.ask("GET", "/screenshot", Value::Null).await?;
        let text = picture.as_str().context("no picture")?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(text)?;
        std::fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))
    }

    async fn element(&self, id: &str) -> anyhow::Result<String> {
        let wanted = json!({ "using": "css selector", "value": format!("#{id}") });
        let element = self.ask("POST", "/element", wanted).await?;
        let name = element[ELEMENT].as_str();
        Ok(name.with_context(|| format!("no element {id}"))?.to_owned())
    }
}

/// One command of the WebDriver protocol; returns the value of the response.
async fn call(
    driver: SocketAddr,
    method: &str,
    path: &str,
    content: &Value,
) -> anyhow::Result<Value> {
    let content = match content {
        Value::Null => String::new(),
        content => content.to_string(),
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {driver}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{content}",
        content.len()
    );
    let asked = async {
        let mut client = Client::connect(driver).await?;
        client.send(request.as_bytes()).await?;
        client.read_response(method).await
    };
    let response = tokio::time::timeout(CALL_TIME, asked).await;
    let response = response.with_context(|| format!("no answer to {method} {path}"))??;
    let answer: Value = serde_json::from_slice(&response.body)
        .with_context(|| format!("{method} {path}: the answer is no JSON"))?;
    let value = &answer["value"];
    if response.status != 200 {
        let message = value["message"].as_str().unwrap_or_default();
        bail!(
            "{method} {path}: {}",
            message.lines().next().unwrap_or_default()
        );
    }
    Ok(value.clone())
}

/// The programs that must be installed.
pub const PROGRAMS: [&str; 2] = ["chromium", CHROMEDRIVER];
const CHROMEDRIVER: &str = "chromedriver";

const WORDS: [&str; 7] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--window-size=800,500",
];

/// The key of an element in the WebDriver protocol.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
const CALL_TIME: Duration = Duration::from_secs(60);
const LOOKS: usize = 400;
const LOOK_TIME: Duration = Duration::from_millis(50);
