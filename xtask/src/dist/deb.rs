//! Debian packages: the files of `packaging/` at their places, put together by `dpkg-deb`.
//!
//! cargo-deb does the same from a table in `Cargo.toml`, but has to be installed, and builds again
//! what is built already.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::{
    Arch, VERSION, commit_seconds, directory, empty_directory, execute, output, own_binary, place,
    source,
};
use crate::root;

/// Files of the repository, their place in the package and their permission bits.
const FILES: [(&str, &str, u32); 16] = [
    (
        "packaging/logrotate/hashcache",
        "etc/logrotate.d/hashcache",
        0o644,
    ),
    (
        "packaging/systemd/hashcache.service",
        "usr/lib/systemd/system/hashcache.service",
        0o644,
    ),
    (
        "packaging/systemd/hashcache.socket",
        "usr/lib/systemd/system/hashcache.socket",
        0o644,
    ),
    (
        "packaging/systemd/notify-reload.conf",
        "usr/share/doc/hashcache/examples/notify-reload.conf",
        0o644,
    ),
    (
        "packaging/systemd/hashcache.sysusers",
        "usr/lib/sysusers.d/hashcache.conf",
        0o644,
    ),
    (
        "packaging/deb/lintian-overrides",
        "usr/share/lintian/overrides/hashcache",
        0o644,
    ),
    (
        "packaging/deb/copyright",
        "usr/share/doc/hashcache/copyright",
        0o644,
    ),
    ("docs/BOUNDS.md", "usr/share/doc/hashcache/BOUNDS.md", 0o644),
    (
        "docs/MESSAGES.md",
        "usr/share/doc/hashcache/MESSAGES.md",
        0o644,
    ),
    (
        "docs/WATCHING.md",
        "usr/share/doc/hashcache/WATCHING.md",
        0o644,
    ),
    (
        "packaging/grafana/hashcache.json",
        "usr/share/doc/hashcache/examples/grafana.json",
        0o644,
    ),
    (
        "packaging/prometheus/hashcache.rules.yml",
        "usr/share/doc/hashcache/examples/prometheus.rules.yml",
        0o644,
    ),
    ("packaging/deb/conffiles", "DEBIAN/conffiles", 0o644),
    ("packaging/deb/postinst", "DEBIAN/postinst", 0o755),
    ("packaging/deb/prerm", "DEBIAN/prerm", 0o755),
    ("packaging/deb/postrm", "DEBIAN/postrm", 0o755),
];

/// Shells, and the places of their completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/hashcache"),
    ("zsh", "usr/share/zsh/vendor-completions/_hashcache"),
    ("fish", "usr/share/fish/vendor_completions.d/hashcache.fish"),
];

/// Makes the package of `arch`. Only `cargo xtask dist --try` has a second revision, to upgrade to.
pub(super) fn build(arch: Arch, revision: u32) -> anyhow::Result<PathBuf> {
    let version = format!("{VERSION}-{revision}");
    let tree = directory().join(format!("deb-{}", arch.debian()));
    empty_directory(&tree)?;
    for (from, to, mode) in FILES {
        place(&tree.join(to), source(from)?, mode)?;
    }
    place_manual(&tree)?;
    place(
        &tree.join("etc/hashcache/hashcache.toml"),
        settings()?,
        0o644,
    )?;
    let binary = fs::read(arch.binary())?;
    place(&tree.join("usr/bin/hashcache"), binary, 0o755)?;
    for (shell, to) in COMPLETIONS {
        let script = output(Command::new(own_binary()?).args(["completions", shell]))?;
        place(&tree.join(to), script, 0o644)?;
    }
    let manual = tree.join("man");
    execute(Command::new(own_binary()?).arg("man").arg(&manual))?;
    for entry in fs::read_dir(&manual)? {
        let page = entry?.path();
        let name = page.file_name().unwrap_or_default().to_string_lossy();
        let section = name.rsplit('.').next().unwrap_or("1");
        let to = tree.join(format!("usr/share/man/man{section}/{name}"));
        place(&to, fs::read(&page)?, 0o644)?;
        compress(&to)?;
    }
    fs::remove_dir_all(&manual)?;
    write_changelogs(&tree, &version)?;
    let kib = output(
        Command::new("du")
            .args(["-sk", "--apparent-size"])
            .arg(&tree),
    )?;
    let control = source("packaging/deb/control")?
        .replace("@VERSION@", &version)
        .replace("@ARCH@", arch.debian())
        .replace("@KIB@", kib.split_whitespace().next().unwrap_or_default());
    place(&tree.join("DEBIAN/control"), control, 0o644)?;
    let package = directory().join(format!("hashcache_{version}_{}.deb", arch.debian()));
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "-Zxz", "--build"])
        .arg(&tree)
        .arg(&package)
        .env("SOURCE_DATE_EPOCH", commit_seconds()?);
    execute(&mut pack)?;
    Ok(package)
}

/// The pages of `docs/operate`.
fn place_manual(tree: &Path) -> anyhow::Result<()> {
    let pages = fs::read_dir(root().join("docs/operate")).context("no docs/operate")?;
    for page in pages {
        let name = page?.file_name();
        let name = name.to_string_lossy();
        let to = tree.join("usr/share/doc/hashcache/operate").join(&*name);
        place(&to, source(&format!("docs/operate/{name}"))?, 0o644)?;
    }
    Ok(())
}

/// The sample configuration, which names the token that `postinst` makes.
fn settings() -> anyhow::Result<String> {
    let sample = source("packaging/hashcache.toml")?;
    let (before, after) = sample
        .split_once(" Not set by default. Example:\n#admin_token_file = ")
        .context("the sample configuration has no admin_token_file that is not set")?;
    Ok(format!("{before}\nadmin_token_file = {after}"))
}

/// Our changelog, and the one in Debian's form that every package must have.
fn write_changelogs(tree: &Path, version: &str) -> anyhow::Result<()> {
    let seconds = commit_seconds()?;
    let mut date = Command::new("date");
    let date = output(date.args(["--utc", "-R", "-d", &format!("@{seconds}")]))?;
    let entry = format!(
        "hashcache ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- HashCache \
         developers <developers@hashcache.invalid>  {date}"
    );
    let documents = tree.join("usr/share/doc/hashcache");
    for (name, text) in [
        ("changelog.Debian", entry),
        ("changelog", source("CHANGELOG.md")?),
    ] {
        let path = documents.join(name);
        place(&path, text, 0o644)?;
        compress(&path)?;
    }
    Ok(())
}

/// Replaces a file by its gzip form, without name and time in it.
fn compress(path: &Path) -> anyhow::Result<()> {
    execute(Command::new("gzip").arg("-9n").arg(path))
}
