//! A network namespace for a part of a campaign.
//!
//! Used by campaigns whose programs need addresses, routes or rules of their own. Needs root, and
//! the programs `unshare`, `nsenter` and `ip`.
//!
//! Invariant: a namespace ends with this process: it is held by a `cat` whose standard input is a
//! pipe of ours.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A namespace with its own loopback.
#[derive(Debug)]
pub struct Namespace {
    holder: Child,
    has_mounts: bool,
}

impl Namespace {
    /// Makes a namespace. Programs in it find the file `hosts` as `/etc/hosts`, if there is one.
    pub fn make(hosts: Option<&Path>) -> anyhow::Result<Self> {
        let script = "ip link set dev lo up && echo made && exec cat > /dev/null";
        let mut command = Command::new("unshare");
        match hosts {
            Some(hosts) => command
                .args(["--net", "--mount", "sh", "-c"])
                .arg(format!("mount --bind \"$0\" /etc/hosts && {script}"))
                .arg(hosts),
            None => command.args(["--net", "sh", "-c", script]),
        };
        let holder = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run unshare")?;
        let mut namespace = Self {
            holder,
            has_mounts: hosts.is_some(),
        };
        let stdout = namespace.holder.stdout.take();
        let mut line = String::new();
        BufReader::new(stdout.context("no pipe")?).read_line(&mut line)?;
        ensure!(
            line == "made\n",
            "cannot make a network namespace (are we root?)"
        );
        Ok(namespace)
    }

    /// The process that holds it, by which `ip` knows it.
    pub fn id(&self) -> u32 {
        self.holder.id()
    }

    /// Moves the calling thread there; threads that it starts from now on are there too.
    pub fn join(&self) -> anyhow::Result<()> {
        let path = self.path();
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .context("cannot enter a network namespace")
    }

    /// The words in front of a command that runs there.
    pub fn words(&self) -> Vec<String> {
        let id = self.id();
        let net = [
            "nsenter".to_owned(),
            format!("--net={}", self.path().display()),
        ];
        let mounts = self
            .has_mounts
            .then(|| format!("--mount=/proc/{id}/ns/mnt"));
        net.into_iter().chain(mounts).collect()
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.id()))
    }

    /// Runs these commands of `ip` in the namespace.
    pub fn ip(&self, commands: &str) -> anyhow::Result<()> {
        self.run(&["ip", "-batch", "-"], commands)
    }

    /// Runs a program in the namespace, with this text as its input.
    pub fn run(&self, program: &[&str], input: &str) -> anyhow::Result<()> {
        let words = self.words();
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .args(program)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run nsenter")?;
        // Dropped after the write, so that the program reads an end.
        let written = child
            .stdin
            .take()
            .context("no pipe")?
            .write_all(input.as_bytes());
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{}: {said} in {input:?}",
            program.join(" ")
        );
        Ok(written?)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
