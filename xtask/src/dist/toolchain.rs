//! The tools that build static binaries for both processors on one machine, and the build.
//!
//! Rust's targets for musl have the C library and the linker (`rust-lld`). The C code of `ring`,
//! `zstd-safe` and `mimalloc` needs a compiler that knows the headers of musl: that is zig, one
//! program for every target, which PyPI has as `ziglang`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use super::{Arch, directory, execute, output, place, target_directory, works};
use crate::cargo;

/// Tools that were found.
pub(super) struct Toolchain {
    /// Program and arguments that run zig.
    zig: Vec<String>,
}

/// C code does not unwind, so it needs no tables for that. And without huge pages, mimalloc takes
/// 40 MiB less beside the budget of 64 MiB (`cargo campaign memory-limit`).
///
/// The wan codec compresses by level 3 of zstd alone, which has the strategies `fast` and `dfast`.
/// The others are left out: zstd has a switch for each.
const C_FLAGS: &str = "-fno-unwind-tables -fno-asynchronous-unwind-tables \
                       -DMI_DEFAULT_ALLOW_THP=0 \
                       -DZSTD_EXCLUDE_GREEDY_BLOCK_COMPRESSOR \
                       -DZSTD_EXCLUDE_LAZY_BLOCK_COMPRESSOR \
                       -DZSTD_EXCLUDE_LAZY2_BLOCK_COMPRESSOR \
                       -DZSTD_EXCLUDE_BTLAZY2_BLOCK_COMPRESSOR \
                       -DZSTD_EXCLUDE_BTOPT_BLOCK_COMPRESSOR \
                       -DZSTD_EXCLUDE_BTULTRA_BLOCK_COMPRESSOR";

/// What rustc and the linker are told.
///
/// Symbols are stripped, which a profile cannot set for single packages. Relocations are in the
/// compact form, which musl knows. Functions with the same code are kept once: Rust promises no
/// function an address of its own, and the C code here compares none. (Data is not folded.)
const FLAGS: [&str; 3] = [
    "-Cstrip=symbols",
    "-Clink-arg=--pack-dyn-relocs=relr",
    "-Clink-arg=--icf=all",
];

/// The level of link-time optimisation. With `z`, which is the level of the package, functions of
/// other crates would not be inlined on the way of a request.
const LINK_LEVEL: &str = "-Copt-level=s";

const NO_ZIG: &str = "no C compiler for musl was found. Install zig, for example with
    python3 -m venv ~/zig && ~/zig/bin/pip install ziglang
and run this command again with `--zig ~/zig/bin/python-zig`";

impl Toolchain {
    /// Looks for everything that a build for `arches` needs; the error says how to install it.
    pub(super) fn find(arches: &[Arch], named: Option<&Path>) -> anyhow::Result<Self> {
        let targets = arches.iter().map(|arch| arch.target());
        let missing: Vec<String> = targets
            .filter(|target| !has_target(target).unwrap_or(false))
            .collect();
        ensure!(
            missing.is_empty(),
            "Rust's standard library is missing for a target. Install it with\n    rustup target \
             add {}",
            missing.join(" ")
        );
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let mut candidates: Vec<Vec<String>> = vec![
            words(&["zig"]),
            words(&["python-zig"]),
            words(&["python3", "-m", "ziglang"]),
        ];
        if let Some(named) = named {
            candidates = vec![vec![named.display().to_string()]];
        }
        let is_zig =
            |words: &Vec<String>| works(Command::new(&words[0]).args(&words[1..]).arg("version"));
        match candidates.into_iter().find(is_zig) {
            Some(zig) => Ok(Self { zig }),
            None => bail!("{NO_ZIG}"),
        }
    }

    /// Builds the binary for `arch` and copies it to `target/dist`.
    pub(super) fn build(&self, arch: Arch) -> anyhow::Result<()> {
        let target = arch.target();
        eprintln!("xtask: building for {target}");
        let variable = target.replace('-', "_");
        let mut command = cargo();
        command
            .args(["rustc", "--locked", "--profile", "dist"])
            .args(["-p", "hashcache-cli", "--bin", "hashcache"])
            // Without `hashcache sim`, which is for those who build it.
            .arg("--no-default-features")
            .args(["--target", &target])
            .arg("--config")
            .arg(format!("target.{target}.linker = 'rust-lld'"))
            .arg("--config")
            .arg(format!("target.{target}.rustflags = {:?}", flags()?))
            // The crate `cc` reads these.
            .env(format!("CC_{variable}"), self.compiler(arch)?)
            .env(format!("AR_{variable}"), self.archiver()?)
            // For the binary alone, after the level of its package.
            .args(["--", LINK_LEVEL]);
        execute(&mut command)?;
        let built = target_directory().join(target).join("dist/hashcache");
        fs::copy(&built, arch.binary())
            .with_context(|| format!("cannot copy {}", built.display()))?;
        Ok(())
    }

    /// A script that compiles C for `arch`. `cc` adds `--target` in a spelling that zig does not
    /// take.
    fn compiler(&self, arch: Arch) -> anyhow::Result<PathBuf> {
        let script = format!(
            "#!/bin/sh\nfor word do\n    shift\n    case $word in --target=*) ;; *) set -- \"$@\" \
             \"$word\" ;; esac\ndone\nexec {} cc -target {}-linux-musl {C_FLAGS} \"$@\"\n",
            self.quoted(),
            arch.name()
        );
        self.script(&format!("cc-{}", arch.name()), &script)
    }

    fn archiver(&self) -> anyhow::Result<PathBuf> {
        self.script(
            "ar",
            &format!("#!/bin/sh\nexec {} ar \"$@\"\n", self.quoted()),
        )
    }

    fn script(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = directory().join("tools").join(name);
        place(&path, text, 0o755)?;
        Ok(path)
    }

    /// The words that run zig, for a shell.
    fn quoted(&self) -> String {
        let quote = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
        let words: Vec<String> = self.zig.iter().map(quote).collect();
        words.join(" ")
    }
}

/// Flags of rustc. The message of a panic has the path of a source file. These flags remove the
/// directory of this machine from the paths of crates: the user of a binary has no such directory,
/// and a binary has thousands of such paths.
fn flags() -> anyhow::Result<Vec<String>> {
    let mut flags: Vec<String> = FLAGS.map(str::to_owned).to_vec();
    for sources in registry_sources()? {
        flags.push(format!("--remap-path-prefix={}/=", sources.display()));
    }
    Ok(flags)
}

/// The directories in which cargo has the sources of crates, one for each registry; none where all
/// are vendored.
fn registry_sources() -> anyhow::Result<Vec<PathBuf>> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let sources = home.context("no CARGO_HOME")?.join("registry/src");
    if !sources.is_dir() {
        return Ok(vec![]);
    }
    let entries =
        fs::read_dir(&sources).with_context(|| format!("cannot read {}", sources.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Whether rustc has the standard library for `target`.
fn has_target(target: &str) -> anyhow::Result<bool> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", target]);
    Ok(Path::new(output(&mut rustc)?.trim()).exists())
}
