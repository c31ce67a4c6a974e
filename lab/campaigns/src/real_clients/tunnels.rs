//! Package tools and curl through CONNECT.
//!
//! Each tool fetches one small package. The code names only the package; the tool's own
//! configuration names the source. The log shows tools whose sources are plain http.

use std::path::Path;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{ContentOrigin, content};

use super::Bench;
use super::access_log::{Line, Sums};
use super::tool::{Tool, is_installed};
use crate::report::show_bytes;

/// Runs every installed tool, then a tunnel with known bytes.
pub async fn run(bench: &mut Bench<'_>, origin: &ContentOrigin) -> anyhow::Result<()> {
    for (program, fetch) in TOOLS {
        let what = format!("{program} through CONNECT");
        if !is_installed(program) {
            bench.report.skip(what, "not installed");
            continue;
        }
        let directory = bench.empty(program)?;
        let outcome = fetch(bench, &directory)?.run().await;
        let lines = bench.logged().await?;
        if let Err(error) = &outcome {
            let direct = fetch(bench, &bench.empty(program)?)?
                .without("http_proxy")
                .without("https_proxy")
                .without("HTTPS_PROXY");
            if direct.run().await.is_err() {
                let why = format!("fails without the proxy too: {error:#}");
                bench.report.skip(what, why);
                continue;
            }
        }
        let seen = outcome.and_then(|_| tunnels(&lines));
        bench.report.outcome(what, seen);
    }
    let seen = known_bytes(bench, origin).await;
    bench
        .report
        .outcome("curl through CONNECT, bytes counted", seen);
    Ok(())
}

/// How a tool fetches a package into a directory.
type Fetch = fn(&Bench, &Path) -> anyhow::Result<Tool>;

const TOOLS: [(&str, Fetch); 4] = [("pip", pip), ("npm", npm), ("cargo", cargo), ("go", go)];

fn pip(bench: &Bench<'_>, directory: &Path) -> anyhow::Result<Tool> {
    let words = ["download", "--no-cache-dir", "--no-deps", "--dest"];
    let tool = bench.tool("pip").arguments(&words).argument(directory);
    Ok(tool.argument("idna").directory(directory))
}

fn npm(bench: &Bench<'_>, directory: &Path) -> anyhow::Result<Tool> {
    let tool = bench.tool("npm").arguments(&["pack", "--cache"]);
    let tool = tool.argument(directory.join("cache"));
    Ok(tool.argument("is-number").directory(directory))
}

fn cargo(bench: &Bench<'_>, directory: &Path) -> anyhow::Result<Tool> {
    let home = directory.join("home");
    std::fs::create_dir_all(&home)?;
    std::fs::create_dir_all(directory.join("src"))?;
    std::fs::write(directory.join("Cargo.toml"), MANIFEST)?;
    std::fs::write(directory.join("src").join("lib.rs"), "")?;
    // The sources are configured in the home directory; the rest of it is a cache.
    let own = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from);
    let own = own.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    for name in ["config.toml", "config"] {
        if let Some(file) = own
            .as_ref()
            .map(|own| own.join(name))
            .filter(|f| f.is_file())
        {
            std::fs::copy(file, home.join(name))?;
        }
    }
    let tool = bench.tool("cargo").arguments(&["fetch"]);
    // The cargo that runs us has set variables that do not apply to this one.
    let tool = tool.without("CARGO").without("CARGO_MANIFEST_DIR");
    Ok(tool.variable("CARGO_HOME", home).directory(directory))
}

fn go(bench: &Bench<'_>, directory: &Path) -> anyhow::Result<Tool> {
    let tool = bench.tool("go").arguments(&["mod", "download", "-json"]);
    Ok(tool
        .argument("rsc.io/quote@v1.5.2")
        .variable("GOPATH", directory.join("path"))
        .variable("GOMODCACHE", directory.join("modules"))
        .variable("GOFLAGS", "-modcacherw")
        .directory(directory))
}

/// Checks that all `lines` are tunnels that carried bytes.
fn tunnels(lines: &[Line]) -> anyhow::Result<String> {
    ensure!(!lines.is_empty(), "it worked, but not through the proxy");
    let tunnels: Vec<&Line> = lines.iter().filter(|line| line.is_tunnel()).collect();
    let others: Vec<String> = lines
        .iter()
        .filter(|line| !line.is_tunnel())
        .map(|line| {
            format!(
                "{} {}{} {}",
                line.method, line.authority, line.target, line.status
            )
        })
        .collect();
    ensure!(others.is_empty(), "not tunnelled: {}", others.join(", "));
    let empty = tunnels
        .iter()
        .find(|line| line.client_bytes == 0 || line.origin_bytes == 0);
    if let Some(line) = empty {
        anyhow::bail!("a tunnel to {} is logged without bytes", line.authority);
    }
    let sums = Sums::of(tunnels);
    Ok(format!(
        "{} tunnels, {} to it",
        sums.count,
        show_bytes(sums.client_bytes)
    ))
}

/// A tunnel to an origin of ours: the content is correct, and the log counts at least its bytes.
async fn known_bytes(bench: &mut Bench<'_>, origin: &ContentOrigin) -> anyhow::Result<String> {
    const SIZE: u64 = 3_000_000;
    let target = format!("/tunnelled?size={SIZE}");
    let url = origin.url(&target);
    let words = ["--silent", "--show-error", "--fail", "--proxytunnel", &url];
    let got = bench.tool("curl").arguments(&words).run().await?;
    ensure!(got.len() as u64 == SIZE, "{} of {SIZE} bytes", got.len());
    content::verify(&origin.content(&target), 0, &got)
        .map_err(|at| anyhow::anyhow!("wrong byte at {at}"))?;
    let lines = bench.logged().await?;
    let told = tunnels(&lines)?;
    let sums = Sums::of(&lines);
    let heads = sums
        .client_bytes
        .checked_sub(SIZE)
        .context("fewer bytes logged than came")?;
    ensure!(
        heads < 1000,
        "{} bytes logged, {SIZE} came",
        sums.client_bytes
    );
    Ok(told)
}

const MANIFEST: &str = "\
[package]
name = \"fetched\"
version = \"0.1.0\"
edition = \"2021\"
[dependencies]
itoa = \"1\"
[workspace]
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tunnels_with_bytes_pass() {
        let tunnel = Line {
            method: "CONNECT".to_owned(),
            status: 200,
            client_bytes: 10,
            origin_bytes: 10,
            ..Line::default()
        };
        assert!(tunnels(std::slice::from_ref(&tunnel)).is_ok());
        assert!(tunnels(&[]).is_err());
        for other in [
            Line {
                status: 403,
                ..tunnel.clone()
            },
            Line {
                method: "GET".to_owned(),
                ..tunnel.clone()
            },
            Line {
                client_bytes: 0,
                ..tunnel.clone()
            },
        ] {
            assert!(tunnels(&[tunnel.clone(), other]).is_err());
        }
    }
}
