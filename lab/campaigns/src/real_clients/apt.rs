//! apt-get, twice from nothing, against the sources it is configured with.
//!
//! The configuration is a copy of the machine's own, with other directories for state and cache and
//! with the proxy added; so the lists and packages of the machine are not touched, and none of its
//! hooks runs. apt checks every index and package by its hash, so the content that it accepts is
//! correct.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::Bench;
use super::access_log::{Line, Sums};
use super::tool::{Tool, is_installed};
use crate::report::show_bytes;

/// Updates lists and downloads packages twice; the second time nearly all is in the cache.
pub async fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !is_installed("apt-get") {
        bench.report.skip("apt-get", "not installed");
        return Ok(());
    }
    let mut packages = vec![];
    for pass in 1..=2 {
        let what = format!("apt-get update, pass {pass}");
        let apt = Apt::make(bench).await?;
        let updated = apt.get(&["update"]).await;
        let lines = bench.logged().await?;
        if let Err(error) = updated {
            // The sources may fail without our proxy as well.
            let direct = apt.without_proxy()?.get(&["update"]).await;
            match direct {
                Ok(_) => bench.report.check(what, false, format!("{error:#}")),
                Err(direct) => bench
                    .report
                    .skip(what, format!("fails without the proxy too: {direct:#}")),
            }
            return Ok(());
        }
        if lines.iter().all(Line::is_tunnel) {
            let why = "the sources of this machine are https only: tunnelled, nothing to cache";
            bench.report.skip(what, why);
            return Ok(());
        }
        report_update(bench, &what, pass, &lines);
        if packages.is_empty() {
            packages = apt.choose().await?;
        }
        let count = packages.len();
        let outcome = apt.download(&packages).await;
        let lines = bench.logged().await?;
        let what = format!("apt-get download of {count} packages, pass {pass}");
        let detail = format!("{}; {}", shares(&lines), faults(&lines));
        bench.report.outcome(what, outcome.map(|()| detail));
        report_share(
            bench,
            pass,
            "packages",
            lines.iter().filter(|l| is_package(l)),
        );
    }
    Ok(())
}

fn report_update(bench: &mut Bench<'_>, what: &str, pass: u32, lines: &[Line]) {
    bench
        .report
        .check(what, true, format!("{}; {}", shares(lines), faults(lines)));
    report_share(
        bench,
        pass,
        "by-hash indexes",
        lines.iter().filter(|l| is_by_hash(l)),
    );
    if pass == 1 {
        return;
    }
    let releases: Vec<&Line> = lines.iter().filter(|l| is_release(l)).collect();
    let asked = releases
        .iter()
        .filter(|line| line.origin_bytes > 0 && line.error.is_none());
    let asked = asked.count();
    let outcomes: Vec<&str> = releases.iter().map(|line| line.outcome.as_str()).collect();
    bench.report.check(
        "InRelease asked for anew, pass 2",
        asked == releases.len() && asked > 0,
        format!("{asked} of {} ({})", releases.len(), outcomes.join(", ")),
    );
}

/// The share of bytes from the cache, with its bar in the second pass.
fn report_share<'a>(
    bench: &mut Bench<'_>,
    pass: u32,
    of: &str,
    lines: impl Iterator<Item = &'a Line>,
) {
    let sums = Sums::of(lines);
    let what = format!("bytes of {of} from the cache, pass {pass}");
    let share = sums.cached_per_mille();
    let detail = format!(
        "{}.{} % of {} in {} answers, {} from the origin (bar in pass 2: {}.{} %)",
        share / 10,
        share % 10,
        show_bytes(sums.client_bytes),
        sums.count,
        show_bytes(sums.origin_bytes),
        CACHED_PER_MILLE_MIN / 10,
        CACHED_PER_MILLE_MIN % 10,
    );
    let figures = json!({
        "client_bytes": sums.client_bytes,
        "origin_bytes": sums.origin_bytes,
        "answers": sums.count,
    });
    let held = sums.count > 0 && (pass == 1 || share >= CACHED_PER_MILLE_MIN);
    bench.report.figures(what, held.into(), detail, figures);
}

fn shares(lines: &[Line]) -> String {
    let sums = Sums::of(lines);
    format!(
        "{} requests, {} to apt, {} from origins",
        sums.count,
        show_bytes(sums.client_bytes),
        show_bytes(sums.origin_bytes)
    )
}

fn faults(lines: &[Line]) -> String {
    let faults: Vec<String> = lines
        .iter()
        .filter_map(|line| Some((line.error.as_ref()?, line)))
        .map(|(error, line)| format!("{error} for {}{}", line.authority, line.target))
        .collect();
    if faults.is_empty() {
        "no errors".to_owned()
    } else {
        faults.join(", ")
    }
}

fn is_by_hash(line: &Line) -> bool {
    line.target.contains("/by-hash/")
}

fn is_package(line: &Line) -> bool {
    has_extension(&line.target, "deb")
}

fn is_release(line: &Line) -> bool {
    line.target.ends_with("/InRelease")
}

fn has_extension(target: &str, extension: &str) -> bool {
    Path::new(target)
        .extension()
        .is_some_and(|found| found == extension)
}

/// An apt with nothing in its cache.
struct Apt {
    /// Holds all of it.
    directory: PathBuf,
    /// Names the rest of the configuration.
    configuration: PathBuf,
}

impl Apt {
    async fn make(bench: &Bench<'_>) -> anyhow::Result<Self> {
        let directory = bench.empty("apt")?;
        let parts = directory.join("conf.d");
        for needed in [
            "conf.d",
            "state/lists/partial",
            "cache/archives/partial",
            "got",
        ] {
            fs::create_dir_all(directory.join(needed))?;
        }
        fs::write(directory.join("status"), "")?;
        for entry in fs::read_dir(of_machine("Dir::Etc::parts/d").await?)? {
            let path = entry?.path();
            let name = path.file_name().context("a directory without names")?;
            if path.is_file() {
                fs::copy(&path, parts.join(name))?;
            }
        }
        // Read after all parts, as apt does; files without an extension count.
        let main = of_machine("Dir::Etc::main/f").await?;
        if main.is_file() {
            fs::copy(&main, parts.join("zz-main"))?;
        }
        let ours = OURS
            .replace("PROXY", &bench.proxy.url())
            .replace("DIRECTORY", &directory.display().to_string());
        fs::write(parts.join("zzz-ours"), ours)?;
        let configuration = directory.join("apt.conf");
        let first = format!("Dir::Etc::parts \"{}\";\n", parts.display());
        fs::write(&configuration, first + "Dir::Etc::main \"/dev/null\";\n")?;
        Ok(Self {
            directory,
            configuration,
        })
    }

    /// The same apt without our proxy.
    fn without_proxy(&self) -> anyhow::Result<&Self> {
        let without = "#clear Acquire::http::Proxy;\n#clear Acquire::https::Proxy;\n";
        fs::write(self.directory.join("conf.d").join("zzzz-direct"), without)?;
        Ok(self)
    }

    fn tool(&self, program: &str) -> Tool {
        // In parts of apt, proxy variables of the environment would override the configuration.
        [
            "http_proxy",
            "https_proxy",
            "HTTPS_PROXY",
            "no_proxy",
            "all_proxy",
        ]
        .into_iter()
        .fold(Tool::new(program), Tool::without)
        .variable("APT_CONFIG", &self.configuration)
        .variable("LC_ALL", "C")
        .directory(&self.directory.join("got"))
    }

    async fn get(&self, words: &[&str]) -> anyhow::Result<String> {
        let output = self.tool("apt-get").arguments(words).run().await?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    /// Packages of some MB each, spread over the alphabet, with http URLs.
    async fn choose(&self) -> anyhow::Result<Vec<String>> {
        let output = self
            .tool("apt-cache")
            .arguments(&["dumpavail"])
            .run()
            .await?;
        let mut names = of_some_size(&String::from_utf8_lossy(&output));
        names.sort();
        names.dedup();
        let step = (names.len() / PACKAGES).max(1);
        let some: Vec<&str> = names.iter().step_by(step).map(String::as_str).collect();
        let listed = self
            .get(&[&["download", "--print-uris"], &some[..]].concat())
            .await?;
        // 'http://…' name_version_architecture.deb size hash
        let plain: Vec<String> = listed
            .lines()
            .filter(|line| line.starts_with("'http://"))
            .filter_map(|line| line.split(' ').nth(1)?.split('_').next())
            .map(str::to_owned)
            .take(PACKAGES)
            .collect();
        ensure!(!plain.is_empty(), "no package of some MB comes over http");
        Ok(plain)
    }

    async fn download(&self, packages: &[String]) -> anyhow::Result<()> {
        let names: Vec<&str> = packages.iter().map(String::as_str).collect();
        self.get(&[&["download"], &names[..]].concat()).await?;
        let got = fs::read_dir(self.directory.join("got"))?.count();
        ensure!(
            got == packages.len(),
            "{got} files came for {} packages",
            packages.len()
        );
        Ok(())
    }
}

/// The names of the listed packages whose size is within our bounds.
fn of_some_size(available: &str) -> Vec<String> {
    let field = |stanza: &str, name: &str| {
        let value = stanza.lines().find_map(|line| line.strip_prefix(name));
        value.map(|value| value.trim().to_owned())
    };
    available
        .split("\n\n")
        .filter(|stanza| {
            field(stanza, "Size:")
                .and_then(|size| size.parse().ok())
                .is_some_and(|size: u64| PACKAGE_BYTES.contains(&size))
        })
        .filter_map(|stanza| field(stanza, "Package:"))
        .collect()
}

/// A path of the machine's own configuration.
async fn of_machine(key: &str) -> anyhow::Result<PathBuf> {
    let output = Tool::new("apt-config")
        .arguments(&["shell", "FOUND", key])
        .run()
        .await?;
    let text = String::from_utf8_lossy(&output);
    let path = text
        .trim()
        .strip_prefix("FOUND='")
        .and_then(|rest| rest.strip_suffix('\''));
    Ok(path.with_context(|| format!("apt has no {key}"))?.into())
}

/// The settings that differ from the machine's configuration.
const OURS: &str = r##"
#clear Acquire::http::Proxy;
#clear Acquire::https::Proxy;
#clear Acquire::http::Proxy-Auto-Detect;
#clear Acquire::https::Proxy-Auto-Detect;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Acquire::http::Proxy "PROXY";
Acquire::https::Proxy "PROXY";
Dir::State "DIRECTORY/state";
Dir::State::status "DIRECTORY/status";
Dir::Cache "DIRECTORY/cache";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
"##;
/// The part of 1,000 bytes of packages and by-hash indexes that the second pass must find in the
/// cache.
const CACHED_PER_MILLE_MIN: u64 = 950;
const PACKAGES: usize = 8;
const PACKAGE_BYTES: std::ops::RangeInclusive<u64> = 2_000_000..=8_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_chosen_by_size() {
        let available = "Package: small\nSize: 10\n\nPackage: right\nVersion: 1\nSize: 3000000\n\n\
                         Package: large\nSize: 9000000\n\nPackage: none\n";
        assert_eq!(of_some_size(available), ["right"]);
    }

    #[test]
    fn targets_are_told_apart() {
        let line = |target: &str| Line {
            target: target.to_owned(),
            ..Line::default()
        };
        assert!(is_package(&line("/pool/a/a_1_all.deb")));
        assert!(!is_package(&line("/dists/x/InRelease")));
        assert!(is_by_hash(&line("/dists/x/main/by-hash/SHA256/00")));
        assert!(is_release(&line("/dists/x/InRelease")));
    }
}
