//! A file as a disk with a file system: loop devices, mounts, and programs of the system.
//!
//! Used by the campaigns that need file systems of their own; all of it needs root. Invariant: what
//! is attached or mounted is removed when it is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};

/// A file as a block device. It bypasses the page cache of the file.
#[derive(Debug)]
pub struct LoopDevice {
    path: String,
    /// `major:minor`, by which cgroups know it.
    number: String,
}

impl LoopDevice {
    /// Makes a device of the file `image`.
    pub fn attach(image: &Path) -> anyhow::Result<Self> {
        let image = image.display().to_string();
        let said = run("losetup", &["--show", "-f", "--direct-io=on", &image])?;
        let mut device = Self {
            path: said.trim().to_owned(),
            number: String::new(),
        };
        let number = fs::read_to_string(device.directory().join("dev"))
            .with_context(|| format!("{} is no loop device", device.path))?;
        device.number = number.trim().to_owned();
        Ok(device)
    }

    /// Its path below `/dev`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its `major:minor`.
    pub fn number(&self) -> &str {
        &self.number
    }

    /// Has the kernel sort its requests by their places, as it does for disks that turn.
    pub fn sort_requests(&self) -> anyhow::Result<()> {
        let path = self.directory().join("queue/scheduler");
        fs::write(&path, "mq-deadline").with_context(|| format!("cannot set {}", path.display()))
    }

    /// Makes an ext4 file system on it, with more options of `mkfs.ext4`, the `extended` ones for
    /// its flag `-E`. All of it is made at once: otherwise the kernel goes on making it while
    /// something is measured.
    pub fn make_ext4(&self, extended: &[&str], options: &[&str]) -> anyhow::Result<()> {
        let at_once = ["lazy_itable_init=0", "lazy_journal_init=0", "nodiscard"];
        let extended = [&at_once, extended].concat().join(",");
        run(
            "mkfs.ext4",
            &[&["-q", "-E", &extended], options, &[self.path()]].concat(),
        )?;
        Ok(())
    }

    /// Its directory below `/sys`.
    pub fn directory(&self) -> PathBuf {
        Path::new("/sys/block").join(self.path.trim_start_matches("/dev/"))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = run("losetup", &["-d", &self.path]) {
            return eprintln!("campaign: a loop device is left: {error:#}");
        }
        // The kernel detaches it when its last user has closed it, and the image is in use until
        // then.
        let image = self.directory().join("loop/backing_file");
        for _ in 0..LEAVE_LOOKS {
            if !image.exists() {
                break;
            }
            thread::sleep(LEAVE_TIME);
        }
    }
}

/// A mounted file system.
#[derive(Debug)]
pub struct Mount {
    device: String,
    options: &'static str,
    directory: PathBuf,
}

impl Mount {
    /// Mounts `device` with `options` at `directory`, which is made if it is not there.
    pub fn make(device: &str, options: &'static str, directory: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&directory)?;
        mount(device, options, &directory)?;
        Ok(Self {
            device: device.to_owned(),
            options,
            directory,
        })
    }

    /// Unmounts it and mounts it again, so that nothing of it is in the page cache.
    pub fn remount(&self) -> anyhow::Result<()> {
        self.unmount()?;
        mount(&self.device, self.options, &self.directory)
    }

    fn unmount(&self) -> anyhow::Result<()> {
        let directory = self.directory.display().to_string();
        // The kernel needs a moment after the last process has ended.
        for _ in 1..LEAVE_LOOKS {
            if run("umount", &[&directory]).is_ok() {
                return Ok(());
            }
            thread::sleep(LEAVE_TIME);
        }
        run("umount", &[&directory])?;
        Ok(())
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!(
                "campaign: {} is still mounted: {error:#}",
                self.directory.display()
            );
        }
    }
}

fn mount(device: &str, options: &str, directory: &Path) -> anyhow::Result<()> {
    let path = directory.display().to_string();
    run("mount", &["-o", options, device, &path])?;
    Ok(())
}

/// Runs a program of the system; what it said.
pub fn run(program: &str, words: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(words)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {}: {} (are we root?)",
        words.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

const LEAVE_LOOKS: u32 = 50;
const LEAVE_TIME: Duration = Duration::from_millis(100);
