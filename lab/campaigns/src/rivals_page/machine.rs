//! What was measured on what: machine, programs, version of the sources.

use std::fs;
use std::process::Command;
use std::time::SystemTime;

use httpdate::fmt_http_date;

use crate::real_clients::tool::is_installed;
use crate::root;

/// A program that is compared with ours.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: &'static str,
    /// `None`: not installed.
    pub version: Option<String>,
}

/// All rivals, installed or not.
pub fn programs() -> [Program; 4] {
    let program = |name, program: &str, package: &str, words: &[&str]| Program {
        name,
        version: is_installed(program).then(|| {
            let own = version(program, words).unwrap_or_else(|| "installed".to_owned());
            match said("dpkg-query", &["-W", "-f=${Version}", package]) {
                Some(of_package) => format!("{own} (Debian package {of_package})"),
                None => own,
            }
        }),
    };
    [
        program("Squid", "squid", "squid", &["-v"]),
        program("nginx", "nginx", "nginx", &["-v"]),
        program("Varnish", "varnishd", "varnish", &["-V"]),
        program("Traffic Server", "traffic_server", "trafficserver", &["-V"]),
    ]
}

/// The first line that a program says of itself.
fn version(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    let line = String::from_utf8_lossy(&said).lines().next()?.to_owned();
    let number = line
        .split([' ', '/', '-'])
        .find(|word| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.'));
    Some(number.unwrap_or(&line).to_owned())
}

/// What a program says, if it succeeds.
fn said(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(words)
        .current_dir(root())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// Processors, memory and kernel.
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or_else(|| "not known".to_owned(), |it| it.1.trim().to_owned())
    };
    let processors = read("/proc/cpuinfo");
    let count = processors
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    format!(
        "{count} processors ({}), {} of memory, Linux {}",
        value(&processors, "model name"),
        value(&read("/proc/meminfo"), "MemTotal"),
        read("/proc/sys/kernel/osrelease").trim(),
    )
}

/// The date, in UTC.
#[expect(clippy::disallowed_methods, reason = "the date of a measurement")]
pub fn today() -> String {
    let now = fmt_http_date(SystemTime::now());
    let words: Vec<&str> = now.split(' ').collect();
    words.get(1..4).unwrap_or_default().join(" ")
}

/// From which files the proxy and the campaigns were built.
#[derive(Clone, Debug)]
pub struct Version {
    pub text: String,
    /// Whether the text says all: files differ from no commit.
    pub is_committed: bool,
}

impl Version {
    /// The hashes of `crates` and of `lab`: a commit that changes only documents leaves them as
    /// they were.
    pub fn of_sources() -> Self {
        let of = |path: &str| said("git", &["rev-parse", "--short=12", path]);
        let both = of("HEAD:crates").zip(of("HEAD:lab"));
        let tree = both.map(|(crates, lab)| format!("{crates} {lab}"));
        let changed = said(
            "git",
            &["status", "--porcelain", "--", "crates", "lab", "Cargo.lock"],
        );
        match tree {
            Some(tree) if changed.is_none() => Self {
                text: tree,
                is_committed: true,
            },
            Some(tree) => Self {
                text: format!("{tree}, changed"),
                is_committed: false,
            },
            None => Self {
                text: "not known".to_owned(),
                is_committed: false,
            },
        }
    }
}
