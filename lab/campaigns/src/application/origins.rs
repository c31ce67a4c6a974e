//! The application's processes.
//!
//! Used by `mod`. Each origin is a process of its own with the same database, as behind any load
//! balancer, and records the requests that it sees.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::Value;

/// A Python with Django.
#[derive(Debug)]
pub struct Python {
    program: PathBuf,
    pub version: String,
}

impl Python {
    /// Finds it; the error says what to install.
    pub fn find(named: Option<&Path>) -> anyhow::Result<Self> {
        let usual = ["python3", "/usr/bin/python3"].map(Path::new);
        let candidates = named.map_or(usual.to_vec(), |named| vec![named]);
        for program in candidates {
            let asked = Command::new(program)
                .args(["-c", "import django; print(django.__version__)"])
                .output();
            let Ok(said) = asked else {
                continue;
            };
            if said.status.success() {
                let version = String::from_utf8_lossy(&said.stdout).trim().to_owned();
                let program = program.to_owned();
                return Ok(Self { program, version });
            }
        }
        anyhow::bail!(
            "Django is missing: install it (Debian: apt-get install python3-django), or name a \
             Python that has it with --python FILE"
        )
    }

    fn command(&self, words: &[&str]) -> Command {
        let file = crate::root().join("lab/campaigns/src/application/app.py");
        let mut command = Command::new(&self.program);
        command.arg("-B").arg(file).args(words).stdin(Stdio::null());
        command
    }

    /// Makes the database with its two users.
    pub fn prepare(&self, database: &Path) -> anyhow::Result<()> {
        let database = database.display().to_string();
        let output = self.command(&["prepare", &database]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "no database: {said}");
        Ok(())
    }
}

/// A running origin; dropping it ends the process by its id.
#[derive(Debug)]
pub struct AppOrigin {
    child: Child,
    pub name: &'static str,
    port: u16,
    record: PathBuf,
}

impl AppOrigin {
    /// Starts one on a port that the system chooses.
    pub fn start(python: &Python, folder: &Path, name: &'static str) -> anyhow::Result<Self> {
        let (database, record) = (database(folder), folder.join(format!("{name}.record")));
        let (words, file) = (
            [database.display().to_string(), record.display().to_string()],
            fs::File::create(folder.join(format!("{name}.log")))?,
        );
        let child = python
            .command(&["serve", &words[0], name, &words[1]])
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()?;
        let mut origin = Self {
            child,
            name,
            port: 0,
            record,
        };
        let stdout = origin.child.stdout.take().context("no output")?;
        let mut port = String::new();
        BufReader::new(stdout).read_line(&mut port)?;
        let port = port.trim().parse();
        origin.port = port.with_context(|| format!("the origin {name} does not start"))?;
        Ok(origin)
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The requests that it saw.
    pub fn seen(&self) -> anyhow::Result<Vec<Value>> {
        let text = fs::read_to_string(&self.record).unwrap_or_default();
        let lines = text.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().context("a broken record")
    }

    /// Ends it at once.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for AppOrigin {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The database of the campaign.
pub fn database(folder: &Path) -> PathBuf {
    folder.join("database")
}
