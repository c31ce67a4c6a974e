//! Runs the commands that measure the figures, and keeps their output.
//!
//! A figure asks for the JSON of a command by its text, which is what a reader would type. So each
//! number on the page is one that the named command prints, and a page can be made again from what
//! was kept. Two figures that ask for the same command share one run, also if they are measured at
//! the same time.
//!
//! Invariant: nothing is drawn that no command has printed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Size;
use crate::campaign::Campaign;

/// What was measured, by figures and by commands.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// How large the measurements of each figure were.
    pub figures: BTreeMap<String, Size>,
    /// What each command has printed.
    outputs: BTreeMap<String, Value>,
}

/// A reason why a figure cannot be measured here.
#[derive(Debug)]
pub struct Unavailable(pub String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// What all figures share: the campaign with its binary, and the results.
pub struct Bench<'a> {
    campaign: &'a Campaign,
    bar: &'a ProgressBar,
    measured: Mutex<Measured>,
    /// Told when a command is over.
    command_over: Condvar,
}

struct Measured {
    results: Results,
    /// Commands that this run has measured; the rest of the results is older.
    fresh: BTreeSet<String>,
    running: BTreeSet<String>,
}

/// Where a figure gets its numbers from.
pub struct Lab<'a> {
    bench: &'a Bench<'a>,
    /// What was kept before of the commands that the figure has measured so far.
    replaced: Vec<(String, Option<Value>)>,
    /// Commands of the figure that is being drawn, in their order.
    asked: Vec<String>,
    size: Size,
    may_measure: bool,
}

impl Results {
    /// Those of a file, if there is one.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{} has no results of this campaign", path.display()))
    }

    /// The text of the file: a line for each command.
    pub fn text(&self) -> anyhow::Result<String> {
        let mut text = format!(
            "{{\n\"figures\": {},\n",
            serde_json::to_string(&self.figures)?
        );
        let lines: Result<Vec<String>, serde_json::Error> = self
            .outputs
            .iter()
            .map(|(command, output)| Ok(format!("{}: {output}", serde_json::to_string(command)?)))
            .collect();
        text += &format!("\"outputs\": {{\n{}\n}}\n}}\n", lines?.join(",\n"));
        Ok(text)
    }
}

impl<'a> Bench<'a> {
    pub fn new(campaign: &'a Campaign, bar: &'a ProgressBar, results: Results) -> Self {
        Self {
            campaign,
            bar,
            measured: Mutex::new(Measured {
                results,
                fresh: BTreeSet::new(),
                running: BTreeSet::new(),
            }),
            command_over: Condvar::new(),
        }
    }

    /// For the figures that one thread measures.
    pub fn lab(&'a self) -> Lab<'a> {
        Lab {
            bench: self,
            replaced: vec![],
            asked: vec![],
            size: Size::Quick,
            may_measure: false,
        }
    }

    /// Tells that a figure was measured, or could not be (`outcome`).
    pub fn over(&self, figure: &str, outcome: &str, took: Duration) {
        // A terminal has the bar.
        if self.bar.is_hidden() {
            eprintln!("papers: {figure} {outcome}, {} s", took.as_secs());
        }
        self.bar.inc(1);
    }

    /// Gives `write` what was measured until now, and what was kept before.
    pub fn with_results<T>(&self, write: impl FnOnce(&Results) -> T) -> T {
        write(&self.lock().results)
    }

    /// The results, without what none of `used` needs.
    pub fn finish(self, used: &BTreeSet<String>) -> Results {
        let measured = self.measured.into_inner();
        let mut results = measured.unwrap_or_else(PoisonError::into_inner).results;
        results.outputs.retain(|command, _| used.contains(command));
        results
    }

    fn lock(&self) -> MutexGuard<'_, Measured> {
        // Each change is one call, so the maps are whole whoever panicked.
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command that is running: when this is dropped, others may run it.
struct Running<'a> {
    bench: &'a Bench<'a>,
    command: &'a str,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.bench.lock().running.remove(self.command);
        self.bench.command_over.notify_all();
    }
}

impl Lab<'_> {
    /// The figure that asks from now on is measured anew, in this size.
    pub fn measure(&mut self, size: Size) {
        (self.size, self.may_measure) = (size, true);
        self.asked.clear();
        self.replaced.clear();
    }

    /// The figure could not be measured: what was kept of it before stays.
    pub fn failed(&mut self) {
        let mut measured = self.bench.lock();
        for (command, output) in self.replaced.drain(..).rev() {
            measured.fresh.remove(&command);
            match output {
                Some(output) => measured.results.outputs.insert(command, output),
                None => measured.results.outputs.remove(&command),
            };
        }
    }

    /// The figure that asks from now on is drawn from what was kept, in the size that it had.
    pub fn redraw(&mut self, figure: &str) -> Option<()> {
        self.size = *self.bench.lock().results.figures.get(figure)?;
        self.may_measure = false;
        self.asked.clear();
        Some(())
    }

    pub fn size(&self) -> Size {
        self.size
    }

    /// The commands that were asked for since the figure began.
    pub fn asked(&self) -> &[String] {
        &self.asked
    }

    /// Notes that a figure was drawn in the current size.
    pub fn drawn(&mut self, figure: &str) {
        let figures = &mut self.bench.lock().results.figures;
        figures.insert(figure.to_owned(), self.size);
    }

    /// A part of `figure` is arithmetic of this campaign.
    pub fn calculated(&mut self, figure: &str) {
        self.asked
            .push(format!("cargo campaign papers --only {figure}"));
    }

    /// What this campaign itself measures for `figure`.
    pub fn own(
        &mut self,
        figure: &str,
        measure: impl FnOnce(&Campaign) -> anyhow::Result<Value>,
    ) -> anyhow::Result<Value> {
        let flag = self.size.of("--short", "--quick", "");
        let command = format!("cargo campaign papers --only {figure} {flag}");
        let command = command.trim_end().to_owned();
        self.output_of(command, |lab, _| measure(lab.bench.campaign))
    }

    /// The JSON that a command prints: `hashcache …` or `cargo campaign …`, or several of them
    /// with pipes between. Only members of these names are kept.
    pub fn json(&mut self, command: &str, names: &[&str]) -> anyhow::Result<Value> {
        let command = command.split_whitespace().collect::<Vec<_>>().join(" ");
        self.output_of(command, |lab, command| {
            let mut output = lab.run(command)?;
            keep(&mut output, names);
            Ok(output)
        })
    }

    fn output_of(
        &mut self,
        command: String,
        measure: impl FnOnce(&Self, &str) -> anyhow::Result<Value>,
    ) -> anyhow::Result<Value> {
        if !self.asked.contains(&command) {
            self.asked.push(command.clone());
        }
        let bench = self.bench;
        let mut measured = bench.lock();
        // Another figure may need the same command.
        while measured.running.contains(&command) {
            let woken = bench.command_over.wait(measured);
            measured = woken.unwrap_or_else(PoisonError::into_inner);
        }
        let is_fresh = !self.may_measure || measured.fresh.contains(&command);
        if let Some(output) = measured.results.outputs.get(&command).filter(|_| is_fresh) {
            return Ok(output.clone());
        }
        ensure!(self.may_measure, "`{command}` has not been run yet");
        measured.running.insert(command.clone());
        drop(measured);
        let running = Running {
            bench,
            command: &command,
        };
        bench.bar.set_message(command.clone());
        let output = measure(self, &command)?;
        let mut measured = bench.lock();
        let outputs = &mut measured.results.outputs;
        let before = outputs.insert(command.clone(), output.clone());
        self.replaced.push((command.clone(), before));
        measured.fresh.insert(command.clone());
        drop(measured);
        drop(running);
        Ok(output)
    }

    fn run(&self, command: &str) -> anyhow::Result<Value> {
        let mut running: Vec<Child> = vec![];
        for part in command.split(" | ") {
            let input = match running.last_mut() {
                Some(before) => before.stdout.take().context("no pipe")?.into(),
                None => Stdio::null(),
            };
            let mut program = self.program(part)?;
            let child = program.stdin(input).stdout(Stdio::piped()).spawn();
            running.push(child.with_context(|| format!("cannot run `{part}`"))?);
        }
        let last = running.pop().context("no command")?;
        let output = last.wait_with_output()?;
        for mut before in running {
            let status = before.wait()?;
            ensure!(status.success(), "`{command}`: {status}");
        }
        // A campaign fails if a bar is missed, and prints what was measured all the same.
        let is_campaign = command.starts_with(CAMPAIGN);
        if !output.status.success() && !is_campaign {
            bail!("`{command}`: {}", output.status);
        }
        let printed = serde_json::from_slice(&output.stdout);
        let printed: Value = printed.with_context(|| {
            let told = String::from_utf8_lossy(&output.stderr);
            let last = told.lines().last().unwrap_or_default();
            format!("`{command}` printed no JSON: {}: {last}", output.status)
        })?;
        if is_campaign {
            rows_of(printed)
        } else {
            Ok(printed)
        }
    }

    fn program(&self, command: &str) -> anyhow::Result<Command> {
        let (mut program, rest) = if let Some(rest) = command.strip_prefix(CAMPAIGN) {
            (Command::new(std::env::current_exe()?), rest)
        } else if let Some(rest) = command.strip_prefix("hashcache ") {
            (Command::new(self.bench.campaign.binary()?), rest)
        } else {
            bail!("`{command}` is not one of ours");
        };
        program.args(rest.split(' ').map(OsString::from));
        // The rows of a campaign, which are in the JSON as well, and why it failed.
        if command.starts_with(CAMPAIGN) {
            program.stderr(Stdio::piped());
        }
        Ok(program)
    }
}

/// The figures of the rows of a campaign that were measured.
fn rows_of(report: Value) -> anyhow::Result<Value> {
    let rows = report["rows"].as_array().context("a report without rows")?;
    if let Some(row) = rows.iter().find(|row| row["verdict"] == "skipped") {
        let reason = row["detail"].as_str().unwrap_or("skipped");
        return Err(Unavailable(reason.to_owned()).into());
    }
    let figures = rows.iter().map(|row| &row["figures"]);
    let figures: Vec<Value> = figures.filter(|it| !it.is_null()).cloned().collect();
    ensure!(
        !figures.is_empty(),
        "the campaign measured nothing: {report}"
    );
    Ok(figures.into())
}

/// Removes the members of all objects that have other names.
fn keep(value: &mut Value, names: &[&str]) {
    match value {
        Value::Object(members) => {
            members.retain(|name, _| names.contains(&name.as_str()));
            members.values_mut().for_each(|it| keep(it, names));
        }
        Value::Array(items) => items.iter_mut().for_each(|it| keep(it, names)),
        _ => {}
    }
}

const CAMPAIGN: &str = "cargo campaign ";

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;
    use crate::campaign::Options;

    #[test]
    fn results_are_read_as_they_were_written() {
        let mut results = Results::default();
        results.figures.insert("a".to_owned(), Size::Quick);
        let output = json!({ "x": [1, 2.5, "\"y\""] });
        results
            .outputs
            .insert("hashcache plan \"".to_owned(), output);
        let text = results.text().unwrap();
        let again: Results = serde_json::from_str(&text).unwrap();
        assert_eq!(again.figures, results.figures);
        assert_eq!(again.outputs, results.outputs);
        assert!(Results::default().text().is_ok_and(|text| !text.is_empty()));
    }

    #[test]
    fn a_command_that_two_figures_need_at_once_runs_until_it_has_succeeded_once() {
        let campaign = Campaign::begin("papers", &Options::default()).unwrap();
        let bar = ProgressBar::hidden();
        let bench = Bench::new(&campaign, &bar, Results::default());
        let (runs, both) = (AtomicUsize::new(0), Barrier::new(2));
        let figure = || {
            let mut lab = bench.lab();
            lab.measure(Size::Short);
            both.wait();
            let outcome = lab.own("figure", |_| {
                let run = runs.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
                ensure!(run > 0, "the first run fails");
                Ok(json!(7))
            });
            outcome.is_ok_and(|it| it == 7)
        };
        std::thread::scope(|scope| {
            let figures = [scope.spawn(figure), scope.spawn(figure)];
            let succeeded = figures.map(|it| it.join().unwrap());
            assert_eq!(succeeded.iter().filter(|it| **it).count(), 1);
        });
        assert_eq!(runs.load(Ordering::Relaxed), 2);
        // A later figure takes what was measured.
        let mut lab = bench.lab();
        lab.measure(Size::Short);
        let output = lab.own("figure", |_| bail!("it is measured already"));
        assert_eq!(output.unwrap(), 7);
    }

    #[test]
    fn only_what_a_figure_needs_is_kept() {
        let mut output = json!({ "runs": [{ "rate": 1, "more": 2 }], "rate": [3, 4], "seed": 5 });
        keep(&mut output, &["runs", "rate"]);
        assert_eq!(output, json!({ "runs": [{ "rate": 1 }], "rate": [3, 4] }));
    }

    #[test]
    fn a_campaign_that_cannot_run_here_is_unavailable_and_not_empty() {
        let skipped = json!({ "rows": [{ "verdict": "skipped", "detail": "needs root" }] });
        let error = rows_of(skipped).unwrap_err();
        assert_eq!(error.downcast_ref::<Unavailable>().unwrap().0, "needs root");
        let measured = json!({ "rows": [
            { "verdict": "-", "figures": { "rate": 1 } },
            { "verdict": "passed", "figures": null },
        ] });
        assert_eq!(rows_of(measured).unwrap(), json!([{ "rate": 1 }]));
        assert!(rows_of(json!({ "rows": [] })).is_err());
    }
}
