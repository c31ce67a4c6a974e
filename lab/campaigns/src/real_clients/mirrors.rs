//! pip, npm, cargo and apt through mirrors: without a proxy setting, and without a CA.
//!
//! Registries of one or two packages are made for this run and served on loopback. The proxy that
//! mirrors them may reach loopback addresses only for the mirrors. Clients get the settings that
//! `hashcache env` prints. Each client fetches twice, with all its own state deleted in between.
//!
//! Limit: every fetch is correct, and the second one costs no byte of content from the registry.

pub mod registries;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use self::registries::{Content, Registries};
use super::Bench;
use super::tool::{Tool, is_installed};
use crate::proxy_process::{ProxyCommand, ProxyProcess};
use crate::report::show_bytes;

/// Tries all package tools.
pub async fn run(bench: &mut Bench<'_>, binary: &Path) -> anyhow::Result<()> {
    let directory = bench.empty("mirrors")?;
    let registries = Registries::start(&directory.join("registries"), None).await?;
    let proxy = ProxyCommand::new(binary, &directory.join("cache.img")).flag("cache-size", "1GiB");
    let proxy = registries
        .flags()
        .iter()
        .fold(proxy, |proxy, mirror| proxy.flag("mirror", mirror))
        .start()?;
    let settings = settings(binary, &proxy, &registries).await?;
    let trial = Trial {
        directory,
        settings,
        variables: vec![],
    };
    for (kind, fetch) in CLIENTS {
        let what = format!("{kind} through a mirror");
        let Some(content) = registries.content(kind) else {
            let why = format!("no registry for it: {}", registries.missing(kind));
            bench.report.skip(what, why);
            continue;
        };
        if !is_installed(kind) && !is_installed(&format!("{kind}-get")) {
            bench.report.skip(what, "not installed");
            continue;
        }
        let outcome = trial.twice(kind, fetch, content).await;
        bench.report.outcome(what, outcome);
    }
    let complaints = registries.complaints().join("; ");
    bench.report.check(
        "registries have no complaints",
        complaints.is_empty(),
        complaints,
    );
    let outcome = automatic(&proxy, &trial.directory).await;
    match outcome {
        Some(outcome) => bench.report.outcome("/proxy.pac as node reads it", outcome),
        None => bench
            .report
            .skip("/proxy.pac as node reads it", "not installed"),
    }
    Ok(())
}

/// Fetches a package into an empty directory and checks it.
pub type Fetch = for<'a> fn(
    &'a Trial,
    &'a Path,
) -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

/// All clients, by the name of the program.
pub const CLIENTS: [(&str, Fetch); 4] = [
    ("pip", |trial, directory| Box::pin(pip(trial, directory))),
    ("npm", |trial, directory| Box::pin(npm(trial, directory))),
    ("cargo", |trial, directory| {
        Box::pin(cargo(trial, directory))
    }),
    ("apt", |trial, directory| Box::pin(apt(trial, directory))),
];

/// The output of `hashcache env` for this proxy.
async fn settings(
    binary: &Path,
    proxy: &ProxyProcess,
    registries: &Registries,
) -> anyhow::Result<Value> {
    let mut tool = Tool::new(&binary.display().to_string())
        .arguments(&["env", "--json", "--config=/dev/null"])
        .argument(format!("--public-url={}", proxy.url()));
    for mirror in registries.flags() {
        tool = tool.argument(format!("--mirror={mirror}"));
    }
    Ok(serde_json::from_slice(&tool.run().await?)?)
}

/// The directories and settings of the clients.
pub struct Trial {
    pub directory: PathBuf,
    /// The output of `hashcache env --json`, or a value of the same form.
    pub settings: Value,
    /// Variables in addition to those of the mirror.
    pub variables: Vec<(String, String)>,
}

impl Trial {
    /// Fetches twice, each time into an empty directory.
    pub async fn twice(
        &self,
        kind: &str,
        fetch: Fetch,
        content: &Content,
    ) -> anyhow::Result<String> {
        let mut told = vec![];
        for pass in 1..=2 {
            let directory = self.directory.join(format!("{kind}-{pass}"));
            fs::create_dir_all(&directory)?;
            let before = content.counts();
            fetch(self, &directory)
                .await
                .with_context(|| format!("pass {pass}"))?;
            let sent = content.counts() - before;
            told.push(format!(
                "pass {pass}: {} requests, {} of content",
                sent.requests,
                show_bytes(sent.body_bytes)
            ));
            if pass == 1 {
                ensure!(sent.body_bytes > 0, "it came from elsewhere");
            } else {
                let asked = sent.body_bytes == 0;
                ensure!(
                    asked,
                    "{} from the registry: {}",
                    sent.body_bytes,
                    told.join("; ")
                );
            }
        }
        Ok(told.join("; "))
    }

    /// The settings of the mirror of this kind.
    fn mirror(&self, kind: &str) -> anyhow::Result<&Value> {
        let mirrors = self.settings["mirrors"].as_array();
        let mut mirrors = mirrors.context("no mirrors")?.iter();
        let found = mirrors.find(|mirror| mirror["kind"] == kind);
        found.with_context(|| format!("`env` tells of no {kind}"))
    }

    /// A program with the mirror's variables and `self.variables`, and no other proxy setting.
    fn tool(&self, program: &str, kind: &str) -> anyhow::Result<Tool> {
        let tool = [
            "http_proxy",
            "https_proxy",
            "HTTPS_PROXY",
            "no_proxy",
            "all_proxy",
        ]
        .into_iter()
        .fold(Tool::new(program), Tool::without);
        let variables = self.mirror(kind)?["variables"].as_object();
        let variables = variables.context("no variables")?.iter();
        let tool = variables.fold(tool, |tool, (name, value)| {
            tool.variable(name, value.as_str().unwrap_or_default())
        });
        let others = self.variables.iter();
        Ok(others.fold(tool, |tool, (name, value)| tool.variable(name, value)))
    }

    /// The lines of the mirror's file.
    fn lines(&self, kind: &str) -> anyhow::Result<String> {
        let lines = self.mirror(kind)?["lines"].as_array();
        let lines = lines.context("no lines")?.iter();
        let lines: Vec<&str> = lines.filter_map(Value::as_str).collect();
        Ok(lines.join("\n") + "\n")
    }
}

async fn pip(trial: &Trial, directory: &Path) -> anyhow::Result<()> {
    let words = ["download", "--no-cache-dir", "--dest"];
    let tool = trial.tool("pip", "pypi")?;
    // Package sources that this machine configures must not affect this pip.
    let tool = ["PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_EXTRA_INDEX_URL"]
        .into_iter()
        .fold(tool, Tool::without)
        .variable("PIP_CONFIG_FILE", "/dev/null");
    let tool = tool
        .arguments(&words)
        .argument(directory)
        .argument(registries::NAME);
    tool.run().await?;
    let wheels = fs::read_dir(directory)?.count();
    ensure!(wheels == 2, "{wheels} wheels of 2");
    // Once more with the lines in a configuration file, to check that they work too.
    let file = directory.join("pip.conf");
    fs::write(&file, trial.lines("pypi")?)?;
    let tool = trial.tool("pip", "pypi")?;
    let tool = ["PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_TRUSTED_HOST"]
        .into_iter()
        .fold(tool, Tool::without)
        .variable("PIP_CONFIG_FILE", &file);
    let again = directory.join("again");
    tool.arguments(&words)
        .argument(&again)
        .argument(registries::NAME)
        .run()
        .await?;
    Ok(())
}

async fn npm(trial: &Trial, directory: &Path) -> anyhow::Result<()> {
    fs::write(
        directory.join("package.json"),
        "{\"name\":\"user\",\"version\":\"1.0.0\"}",
    )?;
    fs::write(directory.join("npmrc"), trial.lines("npm")?)?;
    let tool = trial
        .tool("npm", "npm")?
        .variable("npm_config_userconfig", directory.join("npmrc"))
        .arguments(&["install", "--no-fund", "--no-update-notifier", "--cache"]);
    let tool = tool
        .argument(directory.join("cache"))
        .argument(registries::SCOPED);
    tool.directory(directory).run().await?;
    for name in [registries::NAME, registries::SCOPED] {
        let file = directory.join("node_modules").join(name).join("index.js");
        let text = fs::read_to_string(&file)?;
        ensure!(text == registries::SOURCE, "{} is another", file.display());
    }
    let lock = fs::read_to_string(directory.join("package-lock.json"))?;
    ensure!(
        !lock.contains("/mirror/"),
        "the lockfile leads to the mirror"
    );
    Ok(())
}

async fn cargo(trial: &Trial, directory: &Path) -> anyhow::Result<()> {
    let home = directory.join("home");
    fs::create_dir_all(&home)?;
    fs::write(home.join("config.toml"), trial.lines("crates")?)?;
    fs::create_dir_all(directory.join("src"))?;
    fs::write(directory.join("src/lib.rs"), "")?;
    let manifest = "[package]\nname = \"user\"\nversion = \"1.0.0\"\nedition = \"2021\"\n\
                    [workspace]\n[dependencies]\n";
    let manifest = format!("{manifest}{} = \"1\"\n", registries::NAME);
    fs::write(directory.join("Cargo.toml"), manifest)?;
    let tool = trial.tool("cargo", "crates")?.argument("fetch");
    let tool = tool.without("CARGO").without("CARGO_MANIFEST_DIR");
    tool.variable("CARGO_HOME", &home)
        .directory(directory)
        .run()
        .await?;
    let sources = home.join("registry/src");
    let source = fs::read_dir(sources)?
        .next()
        .context("nothing unpacked")??;
    let file = source
        .path()
        .join(format!("{}-1.0.0/src/lib.rs", registries::NAME));
    ensure!(
        fs::read_to_string(file)? == registries::SOURCE,
        "another source"
    );
    Ok(())
}

async fn apt(trial: &Trial, directory: &Path) -> anyhow::Result<()> {
    for needed in ["state/lists/partial", "cache/archives/partial", "got"] {
        fs::create_dir_all(directory.join(needed))?;
    }
    fs::write(directory.join("status"), "")?;
    let sources = format!(
        "Types: deb\nTrusted: yes\nSuites: ./\n{}",
        trial.lines("apt")?
    );
    fs::write(directory.join("here.sources"), sources)?;
    let configuration = APT.replace("DIRECTORY", &directory.display().to_string());
    fs::write(directory.join("apt.conf"), configuration)?;
    let got = directory.join("got");
    for words in [&["update"][..], &["download", registries::NAME]] {
        let tool = trial.tool("apt-get", "apt")?.arguments(words);
        let tool = tool.variable("APT_CONFIG", directory.join("apt.conf"));
        tool.variable("LC_ALL", "C").directory(&got).run().await?;
    }
    ensure!(fs::read_dir(got)?.count() == 1, "no package came");
    Ok(())
}

/// A configuration that is independent of this machine's.
const APT: &str = r#"
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "DIRECTORY/here.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::State "DIRECTORY/state";
Dir::State::status "DIRECTORY/status";
Dir::Cache "DIRECTORY/cache";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
"#;

/// Runs the script of `/proxy.pac` for some hosts; `None` without Node.js.
async fn automatic(proxy: &ProxyProcess, directory: &Path) -> Option<anyhow::Result<String>> {
    if !is_installed("node") {
        return None;
    }
    let fetched = || async {
        let url = format!("{}/proxy.pac", proxy.url());
        let words = ["--silent", "--show-error", "--fail", "--noproxy", "*", &url];
        let script = Tool::new("curl").arguments(&words).run().await?;
        fs::write(directory.join("proxy.pac"), script)?;
        let evaluator = directory.join("evaluate.js");
        fs::write(&evaluator, EVALUATOR)?;
        let address = proxy.url().replace("http://", "");
        let tool = Tool::new("node").argument(&evaluator);
        let tool = tool
            .argument(directory.join("proxy.pac"))
            .argument(&address);
        let said = tool.run().await?;
        Ok(String::from_utf8_lossy(&said).trim().to_owned())
    };
    Some(fetched().await)
}

/// The functions that such a script may call, as browsers have them, and the expected result for
/// each host. There is no name resolution: a request for an address is an error here.
const EVALUATOR: &str = r#"
const [file, proxy] = process.argv.slice(2);
const number = ip => ip.split(".").reduce((all, part) => all * 256 + Number(part), 0);
const world = {
  isPlainHostName: host => !host.includes("."),
  dnsDomainIs: (host, domain) => host.endsWith(domain),
  isInNet: (host, net, mask) => {
    if (!/^\d+\.\d+\.\d+\.\d+$/.test(host)) throw new Error("would look up " + host);
    return (number(host) & number(mask)) >>> 0 === (number(net) & number(mask)) >>> 0;
  },
};
const vm = require("vm");
vm.createContext(world);
vm.runInContext(require("fs").readFileSync(file, "utf8"), world);
const through = "PROXY " + proxy + "; DIRECT", direct = "DIRECT";
const expected = {
  "example.org": through, "EXAMPLE.org": through, "fc.example.org": through,
  "8.8.8.8": through, "172.32.0.1": through, "192.169.0.1": through, "126.255.255.255": through,
  "2001:db8::1": through, "[2001:db8::1]": through, "10.example.org": through,
  "localhost": direct, "printer": direct, "a.localhost": direct, "printer.local": direct,
  "PRINTER.LOCAL.": direct, "127.0.0.1": direct, "10.255.0.1": direct, "172.31.255.255": direct,
  "192.168.1.1": direct, "169.254.1.1": direct, "::1": direct, "[fe80::1]": direct,
  "fd00::1": direct, [proxy.replace(/:\d+$/, "")]: direct,
};
let wrong = [];
for (const [host, answer] of Object.entries(expected)) {
  const got = world.FindProxyForURL("http://" + host + "/", host);
  if (got !== answer) wrong.push(host + ": " + got);
}
if (wrong.length) { console.error(wrong.join(", ")); process.exit(1); }
console.log(Object.keys(expected).length + " hosts right");
"#;
