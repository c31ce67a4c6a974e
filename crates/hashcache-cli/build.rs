//! Names the commit for `hashcache --version`: passes `GIT_HASH` to the compiler.
//!
//! Whoever builds from an archive sets `GIT_HASH`. Otherwise git is asked, but only if the checkout
//! is ours: a source archive may be unpacked inside another repository, whose commit says nothing
//! about this source. Without both, the version has no commit; the build does not fail.
//!
//! Cost: two runs of git, some milliseconds. Cargo runs this again when HEAD moves, not when files
//! change: it would compile the binary again at each build. So the commit of a changed tree is the
//! commit that it was changed from.

use std::path::{Path, PathBuf};
use std::process::Command;

const VARIABLE: &str = "GIT_HASH";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let hash = match std::env::var(VARIABLE) {
        Ok(hash) => hash.trim().to_owned(),
        Err(_) => head_of_checkout().unwrap_or_default(),
    };
    // Cargo reads one instruction a line, and users read this in one line.
    if hash.contains(char::is_control) {
        println!("cargo::error={VARIABLE} has control characters: {hash:?}");
        return;
    }
    println!("cargo::rustc-env={VARIABLE}={hash}");
}

/// The hash of HEAD, if the workspace is the root of a checkout.
fn head_of_checkout() -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.parent()?;
    // A file in a linked worktree, a directory elsewhere.
    if !root.join(".git").exists() {
        return None;
    }
    let hash = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    for file in files_of_head(root) {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    Some(hash)
}

/// The files of git that change when HEAD moves. Only files that exist: cargo would run this at
/// each build for the sake of a missing file.
fn files_of_head(root: &Path) -> Vec<PathBuf> {
    let place = |name: &str| {
        let path = root.join(git(root, &["rev-parse", "--git-path", name])?);
        path.exists().then_some(path)
    };
    // The log of HEAD has a line for each commit, checkout and reset, and nothing else touches it.
    if let Some(log) = place("logs/HEAD") {
        return vec![log];
    }
    let branch = git(root, &["symbolic-ref", "--quiet", "HEAD"]);
    let branch = branch.and_then(|name| place(&name));
    let head = [place("HEAD"), place("packed-refs"), branch];
    head.into_iter().flatten().collect()
}

/// The line that git prints, if it succeeds.
fn git(root: &Path, words: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(words)
        .output()
        .ok()?;
    let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}
