//! `cargo xtask dist --try`: installs and runs what was packed, in roots made for that, with the
//! scripts of `packaging/try`.
//!
//! Each script has a network namespace of its own, so nothing on this machine is reached or
//! disturbed. Needs root, `unshare` and `curl`; for the package also `mmdebstrap`, `nsenter`, `ip`,
//! `python3` and a mounted cgroup2; for the image also `skopeo`, `umoci` and `crun`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::ensure;

use super::{Arch, VERSION, deb, directory, execute, output};
use crate::root;

/// Releases of Debian that the package is installed on.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];

/// What a root needs beside Debian to run systemd.
const SYSTEMD: &str = "systemd,systemd-sysv,dbus";

/// Restarts the binary under load, and tries the package and the image if they were made.
pub(super) fn run(package: bool, image: bool) -> anyhow::Result<()> {
    let user = output(Command::new("id").arg("-u"))?;
    ensure!(
        user.trim() == "0",
        "`--try` makes roots of its own: run it as root"
    );
    let arch = match std::env::consts::ARCH {
        "aarch64" => Arch::Aarch64,
        _ => Arch::X86_64,
    };
    if package {
        let old = deb::build(arch, 1)?;
        let new = deb::build(arch, 2)?;
        for release in RELEASES {
            for (name, included) in [("deb", ""), ("systemd", SYSTEMD)] {
                let archive = debian(release, included)?;
                let mut script = script(name);
                execute(script.arg(archive).arg(&old).arg(&new))?;
            }
        }
        fs::remove_file(new)?;
    }
    execute(script("restart").arg(arch.binary()))?;
    if image {
        let layout = directory().join("oci");
        execute(script("oci").arg(layout).arg(VERSION).arg(arch.debian()))?;
    }
    Ok(())
}

/// A minimal root of a Debian release with the packages `included`, made once.
fn debian(release: &str, included: &str) -> anyhow::Result<PathBuf> {
    let name = match included {
        "" => format!("debian-{release}.tar"),
        _ => format!("debian-{release}-{}.tar", included.replace(',', "-")),
    };
    let archive = directory().join(name);
    if !archive.exists() {
        // Under its name only when it is whole: an interrupted one would be used again.
        let part = archive.with_extension("part.tar");
        let mut bootstrap = Command::new("mmdebstrap");
        bootstrap.args(["--variant=minbase", release]).arg(&part);
        bootstrap.arg("http://deb.debian.org/debian");
        if !included.is_empty() {
            bootstrap.arg(format!("--include={included}"));
        }
        execute(&mut bootstrap)?;
        fs::rename(part, &archive)?;
    }
    Ok(archive)
}

/// A script of `packaging/try` with a network and mounts of its own.
fn script(name: &str) -> Command {
    let path = root().join("packaging/try").join(name);
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--"]).arg(path);
    command
}
