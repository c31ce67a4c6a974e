//! `cargo xtask dist`: what is shipped: static binaries, Debian packages, a container image.
//!
//! Everything is written to `target/dist`, with a file of checksums. The binaries are linked with
//! musl, so they run on every Linux of their processor. `deb` and `oci` make packages of them, with
//! no package tool but `dpkg-deb` and `tar`, without a daemon and without the network.
//!
//! Cost: a full optimised build for each processor.

mod deb;
mod oci;
mod toolchain;
mod trial;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;

use self::toolchain::Toolchain;
use crate::root;

/// Arguments of `dist`.
#[derive(clap::Args)]
pub struct Args {
    /// Processors, all by default
    #[arg(long, value_delimiter = ',')]
    arch: Vec<Arch>,
    /// The C compiler: zig, or a program that takes its arguments [default: zig, then
    /// python3 -m ziglang]
    #[arg(long, value_name = "PROGRAM")]
    zig: Option<PathBuf>,
    /// Use the binaries of target/dist instead of building them
    #[arg(long)]
    reuse: bool,
    /// Make Debian packages as well (needs dpkg-deb)
    #[arg(long)]
    deb: bool,
    /// Make a container image as well, as an OCI layout
    #[arg(long)]
    oci: bool,
    /// Install and run the packages in roots made for that; as root, with mmdebstrap and crun
    #[arg(long = "try")]
    attempt: bool,
}

/// The largest binary that is shipped: it must fit small machines and slow lines.
const BINARY_BYTES_MAX: u64 = 12_000_000;

/// The version of what is shipped, which all crates of the workspace have.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Arch {
    /// 64-bit Intel and AMD
    #[value(name = "x86_64")]
    X86_64,
    /// 64-bit ARM, such as a Raspberry Pi 3 or later
    #[value(name = "aarch64")]
    Aarch64,
}

impl Arch {
    const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Its name at Debian and in container images.
    const fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    fn target(self) -> String {
        format!("{}-unknown-linux-musl", self.name())
    }

    /// The file of its binary in `target/dist`.
    fn binary(self) -> PathBuf {
        directory().join(format!("hashcache-{VERSION}-{}-linux", self.name()))
    }
}

/// Builds, packs and tries.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let arches = match args.arch.as_slice() {
        [] => Arch::value_variants(),
        some => some,
    };
    fs::create_dir_all(directory()).context("cannot make target/dist")?;
    if !args.reuse {
        let toolchain = Toolchain::find(arches, args.zig.as_deref())?;
        for arch in arches {
            toolchain.build(*arch)?;
        }
    }
    if args.deb {
        for arch in arches {
            deb::build(*arch, 1)?;
        }
    }
    if args.oci {
        oci::build(arches)?;
    }
    write_checksums()?;
    if args.attempt {
        trial::run(args.deb, args.oci)?;
    }
    // Last: a binary that is too large works, and everything is made of it before this fails.
    for arch in arches {
        check(*arch)?;
    }
    Ok(())
}

/// Where everything is written.
fn directory() -> PathBuf {
    target_directory().join("dist")
}

/// Where cargo builds.
fn target_directory() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(target)
}

/// Refuses a binary that is missing or too large.
fn check(arch: Arch) -> anyhow::Result<()> {
    let binary = arch.binary();
    let bytes = fs::metadata(&binary)
        .with_context(|| format!("no binary {}", binary.display()))?
        .len();
    eprintln!("xtask: {} has {bytes} bytes", binary.display());
    ensure!(
        bytes <= BINARY_BYTES_MAX,
        "a binary may have {BINARY_BYTES_MAX} bytes at most"
    );
    Ok(())
}

/// The checksums of all files in `target/dist`, in the form of `sha256sum`.
fn write_checksums() -> anyhow::Result<()> {
    let mut names = vec![];
    for entry in fs::read_dir(directory())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && is_shipped(&name) {
            names.push(name);
        }
    }
    names.sort();
    let mut sums = Command::new("sha256sum");
    let sums = output(sums.args(&names).current_dir(directory()))?;
    fs::write(directory().join("SHA256SUMS"), sums).context("cannot write SHA256SUMS")
}

/// Whether a file in `target/dist` is one of ours. Cargo has files there too.
fn is_shipped(name: &str) -> bool {
    name.starts_with("hashcache-") || name.starts_with("hashcache_")
}

/// The binary that runs here: it prints manual pages and completions, which are the same for all.
fn own_binary() -> anyhow::Result<PathBuf> {
    let arches = Arch::value_variants().iter();
    let mut own = arches.filter(|arch| arch.name() == std::env::consts::ARCH);
    let own = own.next().context("no binary is made for this processor")?;
    let binary = own.binary();
    ensure!(
        binary.exists(),
        "manual pages need the binary of this machine: add `--arch {}`",
        own.name()
    );
    Ok(binary)
}

/// The time of the last commit, for files of packages: the same commit gives the same packages.
fn commit_seconds() -> anyhow::Result<String> {
    let mut git = Command::new("git");
    let seconds = output(git.args(["log", "-1", "--format=%ct"]).current_dir(root()))?;
    Ok(seconds.trim().to_owned())
}

/// Makes an empty `directory`.
fn empty_directory(directory: &Path) -> anyhow::Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)
            .with_context(|| format!("cannot empty {}", directory.display()))?;
    }
    make_directory(directory)
}

/// Makes a directory, and those above it that are missing. Packages have them as they are here, so
/// everyone may read them, whatever the umask of the build.
fn make_directory(directory: &Path) -> anyhow::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    make_directory(directory.parent().context("a path without a directory")?)?;
    let make = || {
        fs::create_dir(directory)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
    };
    make().with_context(|| format!("cannot make {}", directory.display()))
}

/// Writes a file with these permission bits, and makes its directory.
fn place(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> anyhow::Result<()> {
    let write = || -> anyhow::Result<()> {
        make_directory(path.parent().context("a path without a directory")?)?;
        fs::write(path, content)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// A file of the repository.
fn source(path: &str) -> anyhow::Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| format!("cannot read {path}"))
}

/// Runs a command that must succeed.
fn execute(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| cannot_run(command))?;
    if !status.success() {
        bail!("{} failed: {status}", shown(command));
    }
    Ok(())
}

/// What a command that must succeed prints.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| cannot_run(command))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed: {}", shown(command), said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{} prints no text", shown(command)))
}

/// Whether a command can be started and succeeds.
fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn cannot_run(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    format!("cannot run {program}: install it, as root with `apt-get install`, and try again")
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    words.join(" ")
}
