//! A program of this machine, run with a time limit.
//!
//! Used by all parts. Invariant: a program that exceeds the limit is ended, and the error contains
//! its output.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::process::Command;

use crate::namespace::Namespace;

/// A program and how to start it.
#[derive(Debug)]
pub struct Tool {
    program: String,
    command: Command,
}

impl Tool {
    /// Without arguments yet.
    pub fn new(program: &str) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).kill_on_drop(true);
        Self {
            program: program.to_owned(),
            command,
        }
    }

    /// The program in this namespace.
    pub fn inside(namespace: &Namespace, program: &str) -> Self {
        let words = namespace.words();
        let tool = words[1..].iter().fold(Self::new(&words[0]), Self::argument);
        tool.argument(program)
    }

    /// Adds an argument.
    pub fn argument(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn arguments(mut self, words: &[&str]) -> Self {
        self.command.args(words);
        self
    }

    /// Sets a variable of its environment.
    pub fn variable(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Takes a variable out of its environment.
    pub fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Starts it in this directory.
    pub fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Runs it; an error when it fails. Returns what it wrote to standard output.
    pub async fn run(self) -> anyhow::Result<Vec<u8>> {
        let program = self.program.clone();
        let (status, stdout, stderr) = self.run_to_end().await?;
        if status != Some(0) {
            let status = status.map_or("a signal".to_owned(), |code| code.to_string());
            bail!("{program} ended with {status}: {}", tail(&stdout, &stderr));
        }
        Ok(stdout)
    }

    /// Runs it; returns its exit status, standard output and standard error.
    pub async fn run_to_end(mut self) -> anyhow::Result<(Option<i32>, Vec<u8>, Vec<u8>)> {
        let output = self.command.output();
        let output = tokio::time::timeout(RUN_TIME, output)
            .await
            .with_context(|| format!("{} took longer than {RUN_TIME:?}", self.program))?
            .with_context(|| format!("cannot run {}", self.program))?;
        Ok((output.status.code(), output.stdout, output.stderr))
    }
}

/// Whether a program of this name is installed.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// The last lines of a program's output, on one line.
fn tail(stdout: &[u8], stderr: &[u8]) -> String {
    let said = if stderr.trim_ascii().is_empty() {
        stdout
    } else {
        stderr
    };
    let text = String::from_utf8_lossy(said);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join(" | ")
}

/// Long enough for a slow line to the sources of this machine.
const RUN_TIME: Duration = Duration::from_secs(5 * 60);
const TAIL_LINES: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_program_said_the_last_lines_are_told() {
        let stderr: String = (0..9).map(|n| format!("line {n}\n\n")).collect();
        let told = tail(b"nothing", stderr.as_bytes());
        assert_eq!(told.matches(" | ").count(), TAIL_LINES - 1);
        assert!(told.ends_with("line 8") && !told.contains("line 2"));
        assert_eq!(tail(b"said\n", b" \n"), "said");
    }
}
