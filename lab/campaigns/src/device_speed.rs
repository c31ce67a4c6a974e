//! `cargo campaign device-speed`: compares the speed of the engine on a device with that of fio.
//!
//! On one file system (that of `--directory`): fio reads 16 KiB at random places of a written file,
//! with 1, 8 and 32 reads under way, and writes the file in order. The engine answers random
//! look-ups of records of 16 KiB, none of which is hot, and takes puts as fast as it can
//! (`benches/device.rs`, built for release). One thread asks for several at once, whose reads the
//! engine's own threads or io_uring do; or each of several threads (`callers`) waits for its own.
//! Short runs of both alternate, so that other load of the machine affects both; medians are
//! compared.
//!
//! Limit: 0.95 of fio in reads, 0.90 in writes. A separate row checks that the engine has read
//! the device as often as it answered, and as many bytes per read as fio.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use crate::campaign::Campaign;
use crate::cargo;
use crate::median::median_f64;
use crate::report::{Report, Verdict};

/// Arguments of `device-speed`.
#[derive(clap::Args)]
pub struct Args {
    /// Size of fio's file and of the store, MiB
    #[arg(long, default_value_t = 2048)]
    size: u64,
    /// Length of a run, seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Runs of each kind
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// The share of fio's speed that the engine must reach.
const READ_BAR: f64 = 0.95;
const WRITE_BAR: f64 = 0.90;
const DEPTHS: [u32; 3] = [1, 8, 32];
const READ_BYTES: u64 = 16 << 10;
/// The share by which the engine's reads may differ from its answers: a tag shared with another
/// name costs one wasted read.
const READS_OFF: f64 = 0.05;

/// The figures of one run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Reads, or bytes written, a second.
    rate: f64,
    /// Processor time for each 16 KiB, µs.
    cpu_us: f64,
    /// Reads of the device per answer, bytes per read, hot answers.
    reads: Option<(f64, f64, f64)>,
}

/// The program that reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Fio,
    Engine(&'static str),
}

const ALL: [Who; 3] = [Who::Fio, Who::Engine("uring"), Who::Engine("threads")];
const CALLERS: Who = Who::Engine("callers");

/// Runs all measurements.
pub fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    ensure!(args.rounds > 0 && args.seconds > 0.0, "nothing to measure");
    let version = Command::new("fio").arg("--version").output();
    let version = version.context("fio is missing: install it (apt install fio)")?;
    let places = Places::new(args, campaign.folder())?;
    let at = campaign.folder().display().to_string();
    let report = &mut campaign.report;
    report.tell(
        "measured against",
        String::from_utf8_lossy(&version.stdout).trim(),
    );
    report.tell("at", at);
    let is_refused = places.engine(&["read", &places.store, "uring", "1", "0.1"]);
    let ways = match is_refused {
        Ok(_) => &ALL[..],
        Err(error) => {
            report.skip("io_uring", format!("{error:#}"));
            &[ALL[0], ALL[2]]
        }
    };
    for depth in DEPTHS {
        let what = format!("random reads of 16 KiB, {depth} at once");
        let with_callers = [ways, &[CALLERS]].concat();
        // One caller is measured in any case.
        let ways = if depth == 1 { ways } else { &with_callers };
        compare(report, args, ways, &what, |who| places.read(who, depth))?;
    }
    compare(report, args, ways, "writes in order", |who| {
        places.write(who)
    })?;
    Ok(())
}

/// Runs of all kinds in turn, and a row for each kind.
fn compare(
    report: &mut Report,
    args: &Args,
    ways: &[Who],
    what: &str,
    mut play: impl FnMut(Who) -> anyhow::Result<Run>,
) -> anyhow::Result<()> {
    let mut runs: Vec<Vec<Run>> = ways.iter().map(|_| vec![]).collect();
    for _ in 0..args.rounds {
        for (who, runs) in ways.iter().zip(&mut runs) {
            runs.push(play(*who)?);
        }
    }
    let fio = median_f64(&runs[0], |run| run.rate);
    for (who, runs) in ways.iter().zip(&runs) {
        let (rate, cpu) = (
            median_f64(runs, |run| run.rate),
            median_f64(runs, |run| run.cpu_us),
        );
        let ratio = rate / fio;
        let (shown, bar) = if what.starts_with("writes") {
            (format!("{:.0} MB/s", rate / 1e6), WRITE_BAR)
        } else {
            (format!("{rate:.0}/s"), READ_BAR)
        };
        let figures = json!({
            "rate": rate, "ratio": ratio, "cpu_us": cpu,
            "rates": runs.iter().map(|run| run.rate).collect::<Vec<_>>(),
        });
        let detail = format!("{shown}, {cpu:.1} µs of processor time for 16 KiB");
        match who {
            Who::Fio => report.figures(format!("{what}: fio"), Verdict::Told, detail, figures),
            Who::Engine(io) => {
                let detail = format!("{ratio:.2} of fio, bar {bar:.2}; {detail}");
                // The first is what the engine does by itself here.
                let is_main = *who == ways[1];
                let verdict = if is_main {
                    (ratio >= bar).into()
                } else {
                    Verdict::Told
                };
                report.figures(format!("{what}: {io}"), verdict, detail, figures);
                if let Some((held, detail)) = from_device(runs) {
                    report.check(format!("{what}: {io}, off the device"), held, detail);
                }
            }
        }
    }
    Ok(())
}

/// Whether each answer took one read of the device, of the same size as fio's.
fn from_device(runs: &[Run]) -> Option<(bool, String)> {
    let reads: Vec<_> = runs.iter().filter_map(|run| run.reads).collect();
    if reads.is_empty() {
        return None;
    }
    let each = median_f64(&reads, |it| it.0);
    let bytes = median_f64(&reads, |it| it.1);
    let hot: f64 = reads.iter().map(|it| it.2).sum();
    let held = (each - 1.0).abs() <= READS_OFF
        && bytes >= READ_BYTES as f64
        && bytes <= READ_BYTES as f64 + 4096.0
        && hot == 0.0;
    let detail = format!("{each:.3} reads an answer, {bytes:.0} B a read, {hot} were hot");
    Some((held, detail))
}

/// The files of fio and of the engine.
struct Places {
    /// fio's file.
    file: String,
    store: String,
    size: u64,
    seconds: f64,
}

impl Places {
    /// Makes and fills both.
    fn new(args: &Args, directory: &Path) -> anyhow::Result<Self> {
        let file = |name: &str| {
            let path = directory.join(name);
            path.to_str()
                .map(str::to_owned)
                .context("a path that is no text")
        };
        let places = Self {
            file: file("fio")?,
            store: file("store")?,
            size: args.size << 20,
            seconds: args.seconds,
        };
        places.fio(&["--rw=write", "--bs=4m", "--iodepth=1"])?;
        places.engine(&["fill", &places.store, &places.size.to_string()])?;
        Ok(places)
    }

    fn read(&self, who: Who, depth: u32) -> anyhow::Result<Run> {
        let (depth, seconds) = (depth.to_string(), self.seconds.to_string());
        if let Who::Engine(io) = who {
            let said = self.engine(&["read", &self.store, io, &depth, &seconds])?;
            let answers = number(&said, "answers")?;
            let reads = number(&said, "reads")?;
            let each = (reads / answers, number(&said, "read_bytes")? / reads);
            return Ok(Run {
                rate: answers / number(&said, "seconds")?,
                cpu_us: number(&said, "cpu_us")?,
                reads: Some((each.0, each.1, number(&said, "hot")?)),
            });
        }
        let depth = format!("--iodepth={depth}");
        let said = self.fio(&[
            "--rw=randread",
            "--bs=16k",
            "--norandommap",
            &depth,
            &self.time(),
        ])?;
        Ok(Run {
            rate: number(&said["read"], "iops")?,
            cpu_us: cpu_us(&said, number(&said["read"], "iops")?)?,
            reads: None,
        })
    }

    fn write(&self, who: Who) -> anyhow::Result<Run> {
        if let Who::Engine(io) = who {
            let seconds = self.seconds.to_string();
            let said = self.engine(&["write", &self.store, io, &seconds])?;
            return Ok(Run {
                rate: number(&said, "written_bytes")? / number(&said, "seconds")?,
                cpu_us: number(&said, "cpu_us")?,
                reads: None,
            });
        }
        let said = self.fio(&["--rw=write", "--bs=4m", "--iodepth=1", &self.time()])?;
        let rate = number(&said["write"], "bw_bytes")?;
        Ok(Run {
            rate,
            cpu_us: cpu_us(&said, rate / READ_BYTES as f64)?,
            reads: None,
        })
    }

    fn time(&self) -> String {
        format!("--runtime={:.0}ms", self.seconds * 1000.0)
    }

    /// The output of fio for the one job that `arguments` describe.
    fn fio(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let timed = arguments.iter().any(|it| it.starts_with("--runtime"));
        let output = Command::new("fio")
            .args(["--name=device-speed", "--direct=1", "--ioengine=io_uring"])
            .arg(format!("--filename={}", self.file))
            .arg(format!("--size={}", self.size))
            .args(["--output-format=json"])
            .args(timed.then_some("--time_based"))
            .args(arguments)
            .output()
            .context("cannot run fio")?;
        ensure!(
            output.status.success(),
            "fio: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        let said = String::from_utf8_lossy(&output.stdout);
        // fio may print notes before the JSON.
        let json = &said[said.find('{').context("fio said nothing")?..];
        let all: Value = serde_json::from_str(json)?;
        Ok(all["jobs"][0].clone())
    }

    /// The output of the engine's bench.
    fn engine(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let output = cargo()
            .args(["bench", "-q", "-p", "hashcache", "--bench", "device", "--"])
            .args(arguments)
            .output()
            .context("cannot run cargo")?;
        let said = String::from_utf8_lossy(&output.stdout);
        let line = said.lines().rfind(|line| line.starts_with('{'));
        match line {
            Some(line) if output.status.success() => Ok(serde_json::from_str(line)?),
            _ => bail!("{said}{}", String::from_utf8_lossy(&output.stderr)),
        }
    }
}

/// Processor time of a job of fio's for each of its so many calls a second, µs.
fn cpu_us(job: &Value, rate: f64) -> anyhow::Result<f64> {
    let percent = number(job, "usr_cpu")? + number(job, "sys_cpu")?;
    Ok(percent * 1e4 / rate)
}

fn number(of: &Value, name: &str) -> anyhow::Result<f64> {
    let value = of[name].as_f64();
    value.with_context(|| format!("no `{name}` in {of}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_did_not_come_off_the_device_are_told() {
        let run = |each, bytes, hot| Run {
            reads: Some((each, bytes, hot)),
            ..Run::default()
        };
        let held = |run| from_device(&[run]).unwrap().0;
        assert!(held(run(1.02, 16384.0, 0.0)));
        assert!(!held(run(0.5, 16384.0, 0.0)));
        assert!(!held(run(1.0, 8192.0, 0.0)));
        assert!(!held(run(1.0, 16384.0, 1.0)));
        assert!(from_device(&[Run::default()]).is_none());
    }

    #[test]
    fn what_fio_says_is_read() {
        let job = json!({ "usr_cpu": 1.0, "sys_cpu": 24.0, "read": { "iops": 50_000.0 } });
        let rate = number(&job["read"], "iops").unwrap();
        assert!((cpu_us(&job, rate).unwrap() - 5.0).abs() < 1e-9);
        assert!(number(&job, "none").is_err());
    }
}
