//! Releases of packages that registries ship: a real older and a real newer version of each file.
//!
//! Used by `content`, `chunks` and `cost`. The packages are fetched by the tools that people use,
//! from where this machine's configuration of them says, into the directory of `--packages`; what
//! is there already is not fetched again. Nothing of them is a part of this repository.
//!
//! Invariant: a package that cannot be had is an error that names it, never a row that is left out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, ensure};

/// A file of a release.
#[derive(Clone, Debug)]
pub struct File {
    /// Its path in the package, with `/` at its beginning.
    pub path: String,
    pub content: Arc<Vec<u8>>,
}

/// An older and a newer release: what is on both boxes, and what arrives over the link.
#[derive(Clone, Debug)]
pub struct Releases {
    pub old: Vec<File>,
    pub new: Vec<File>,
}

/// Content of these files, bytes.
pub fn bytes(files: &[File]) -> u64 {
    files.iter().map(|file| file.content.len() as u64).sum()
}

/// What fetches a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    Npm,
    Pip,
    /// The documentation of a Java library.
    Javadoc,
}

/// Two releases of a package, and what the prototypes of the codecs sent, in percent of content.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    pub name: &'static str,
    tool: Tool,
    package: &'static str,
    versions: [&'static str; 2],
    /// The files that count.
    endings: &'static [&'static str],
    pub delta: f64,
    pub chunks: f64,
    pub zstd: f64,
}

const fn set(
    name: &'static str,
    tool: Tool,
    package: &'static str,
    versions: [&'static str; 2],
    endings: &'static [&'static str],
    [delta, chunks, zstd]: [f64; 3],
) -> Set {
    Set {
        name,
        tool,
        package,
        versions,
        endings,
        delta,
        chunks,
        zstd,
    }
}

use Tool::{Javadoc, Npm, Pip};

const JS: &[&str] = &[".js"];
const HTML: &[&str] = &[".html"];
const GSON: &str = "com.google.code.gson:gson";
const GUAVA: &str = "com.google.guava:guava";

/// The same path, the next release; only files that changed.
#[rustfmt::skip]
pub const SAME_PATH: [Set; 7] = [
    set("react-dom", Npm, "react-dom", ["19.1.1", "19.2.0"], JS, [3.66, 9.05, 19.0]),
    set("swagger-ui", Npm, "swagger-ui-dist", ["5.29.0", "5.29.1"], JS, [0.51, 3.54, 27.4]),
    set("chart.js", Npm, "chart.js", ["4.4.9", "4.5.0"], &[".js", ".cjs"], [0.35, 5.66, 25.0]),
    set("pdfjs", Npm, "pdfjs-dist", ["5.4.149", "5.4.296"], &[".mjs"], [1.07, 7.01, 27.8]),
    set("typescript", Npm, "typescript", ["5.9.2", "5.9.3"], JS, [0.02, 0.12, 18.6]),
    set("Javadoc of gson", Javadoc, GSON, ["2.11.0", "2.12.0"], HTML, [0.53, 3.42, 18.0]),
    set("Javadoc of guava", Javadoc, GUAVA, ["33.4.0-jre", "33.4.8-jre"], HTML, [7.92, 8.30, 13.8]),
];

/// Every file at a new URL; the dictionary is found by content.
#[rustfmt::skip]
pub const NEW_URL: [Set; 2] = [
    set("monaco-editor", Npm, "monaco-editor", ["0.52.2", "0.53.0"], TEXT, [8.0, 11.2, 19.9]),
    set("three.js", Npm, "three", ["0.179.1", "0.180.0"], TEXT, [1.8, 6.1, 22.5]),
];

const TEXT: &[&str] = &[
    ".js", ".cjs", ".mjs", ".css", ".ts", ".html", ".json", ".md",
];

/// Each is one file, whose parts are compressed by themselves.
pub const WHEELS: [Set; 3] = [
    wheel("django", ["5.2.5", "5.2.6"]),
    wheel("botocore", ["1.40.20", "1.40.21"]),
    wheel("numpy", ["2.3.2", "2.3.3"]),
];

const fn wheel(name: &'static str, versions: [&'static str; 2]) -> Set {
    set(name, Pip, name, versions, &[".whl"], [13.3, 34.3, 97.2])
}

/// One compressed stream, in which no older version helps.
pub const COMPRESSED: Set = set(
    "react-dom as npm serves it",
    Npm,
    "react-dom",
    ["19.1.1", "19.2.0"],
    &[".tgz"],
    [100.0, 100.0, 100.0],
);

impl Set {
    /// Files of both releases that are at the same path and differ.
    pub fn changed(&self, directory: &Path) -> anyhow::Result<Releases> {
        let [all_old, all_new] = self.both(directory, Tool::files)?;
        let (mut old, mut new) = (vec![], vec![]);
        for file in all_new {
            let before = all_old.iter().find(|before| before.path == file.path);
            if let Some(before) = before.filter(|before| before.content != file.content) {
                old.push(before.clone());
                new.push(file);
            }
        }
        ensure!(!new.is_empty(), "{}: no file has changed", self.name);
        Ok(Releases { old, new })
    }

    /// All files of the older release, and those of the newer one that the older has not; each
    /// under a path with its version.
    pub fn moved(&self, directory: &Path) -> anyhow::Result<Releases> {
        let [mut old, mut new] = self.both(directory, Tool::files)?;
        new.retain(|file| !old.iter().any(|before| before.content == file.content));
        for (files, version) in [(&mut old, self.versions[0]), (&mut new, self.versions[1])] {
            for file in files {
                file.path = format!("/{}/{version}{}", self.package, file.path);
            }
        }
        ensure!(!new.is_empty(), "{}: no file has changed", self.name);
        Ok(Releases { old, new })
    }

    /// The packages themselves, each under its own name.
    pub fn archives(&self, directory: &Path) -> anyhow::Result<Releases> {
        let archive = |_: Tool, archive: &Path| {
            let name = archive.file_name().context("a package without a name")?;
            let path = format!("/{}", name.to_string_lossy());
            let content = Arc::new(fs::read(archive)?);
            Ok(vec![File { path, content }])
        };
        let [old, new] = self.both(directory, archive)?;
        Ok(Releases { old, new })
    }

    /// What `read` makes of both packages: files that count, in the order of their paths.
    fn both(
        &self,
        directory: &Path,
        read: impl Fn(Tool, &Path) -> anyhow::Result<Vec<File>>,
    ) -> anyhow::Result<[Vec<File>; 2]> {
        let one = |version: &str| -> anyhow::Result<Vec<File>> {
            let what = || format!("cannot have {} {version}", self.package);
            let archive = self.tool.fetch(directory, self.package, version);
            let archive = archive.with_context(what)?;
            let mut files = read(self.tool, &archive).with_context(what)?;
            files.retain(|file| self.endings.iter().any(|end| file.path.ends_with(end)));
            files.sort_by(|a, b| a.path.cmp(&b.path));
            Ok(files)
        };
        Ok([one(self.versions[0])?, one(self.versions[1])?])
    }
}

impl Tool {
    /// The package in `directory`, fetched if it is not there.
    fn fetch(self, directory: &Path, package: &str, version: &str) -> anyhow::Result<PathBuf> {
        let name = format!("{}-{version}", package.replace([':', '/'], "-"));
        let place = directory.join(&name);
        if !place.is_dir() {
            let coming = directory.join(format!("{name}.coming"));
            if coming.is_dir() {
                fs::remove_dir_all(&coming)?;
            }
            fs::create_dir_all(&coming)
                .with_context(|| format!("cannot make {}", coming.display()))?;
            run(self.command(package, version, &coming))?;
            fs::rename(&coming, &place)?;
        }
        let found = fs::read_dir(&place)?.flatten().map(|entry| entry.path());
        let found = found.filter(|path| path.is_file()).min();
        found.with_context(|| format!("{} is empty", place.display()))
    }

    fn command(self, package: &str, version: &str, to: &Path) -> Command {
        let words = match self {
            Self::Npm => vec!["npm", "pack", "--silent", "--pack-destination"],
            Self::Pip => vec!["pip", "download", "--quiet", "--no-deps", "--dest"],
            Self::Javadoc => vec!["mvn", "--quiet", "--batch-mode", "dependency:copy"],
        };
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        match self {
            Self::Npm => command.arg(to).arg(format!("{package}@{version}")),
            Self::Pip => command.arg(to).arg(format!("{package}=={version}")),
            Self::Javadoc => command
                .arg(format!("-Dartifact={package}:{version}:jar:javadoc"))
                .arg(format!("-DoutputDirectory={}", to.display())),
        };
        // Not in a project of whoever runs this.
        command.current_dir(to);
        command
    }

    /// The files in a package.
    fn files(self, archive: &Path) -> anyhow::Result<Vec<File>> {
        let folder = archive.with_extension("files");
        if !folder.is_dir() {
            let coming = archive.with_extension("coming");
            if coming.is_dir() {
                fs::remove_dir_all(&coming)?;
            }
            fs::create_dir(&coming)?;
            let mut command = match self {
                Self::Npm => {
                    let mut command = Command::new("tar");
                    command.arg("-xzf").arg(archive).arg("-C").arg(&coming);
                    command
                }
                Self::Pip | Self::Javadoc => {
                    let mut command = Command::new("python3");
                    command.args(["-m", "zipfile", "-e"]).arg(archive);
                    command.arg(&coming);
                    command
                }
            };
            command.current_dir(&coming);
            run(command)?;
            fs::rename(&coming, &folder)?;
        }
        let mut files = vec![];
        collect(&folder, &folder, &mut files)?;
        Ok(files)
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<File>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else {
            let name = path.strip_prefix(root)?.to_string_lossy();
            files.push(File {
                // What does not stand in a URL as it is.
                path: format!(
                    "/{}",
                    name.replace(['%', ' ', '?', '#', '<', '>', '"'], "_")
                ),
                content: Arc::new(fs::read(&path)?),
            });
        }
    }
    Ok(())
}

/// Runs a tool to its end.
fn run(mut command: Command) -> anyhow::Result<()> {
    let shown = format!("{command:?}");
    let output = command
        .output()
        .with_context(|| format!("cannot run {shown}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let told = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{shown}: {told}{said}");
    Ok(())
}
