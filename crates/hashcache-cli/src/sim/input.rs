//! The traces that a subcommand reads, with a progress bar.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use hashcache_sim::source::{Files, OnDamage};
use hashcache_sim::trace::Format;
use hashcache_sim::view::View;
use indicatif::{ProgressBar, ProgressStyle};

use crate::fault::Fault;
use crate::output::tell;

/// Flags of every subcommand that reads traces.
#[derive(Args, Clone, Debug)]
pub struct InputArgs {
    /// Logs in the order of time, plain or packed by gzip or zstd; `-` is standard input
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// Format of the logs [default: recognised from the first lines]
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
    /// Which requests count, and with which size
    #[arg(long, value_enum, value_name = "VIEW", default_value = "proxy")]
    pub view: View,
    /// Stop at the first line that is no request, instead of counting it
    #[arg(long)]
    strict: bool,
}

impl InputArgs {
    /// The traces. `passes`: how often they are going to be read, for the bar.
    pub fn open(&self, passes: u64) -> Result<Input, Fault> {
        let has_stdin = self.traces.iter().any(|path| path == Path::new(STDIN));
        let passes = if self.view == View::Big {
            2 * passes
        } else {
            passes
        };
        if has_stdin && passes > 1 {
            let fault = Fault::new("standard input cannot be read twice");
            return Err(fault.hint("write the log to a file first, or use `--view proxy`"));
        }
        let sizes = self.traces.iter().map(|path| path.metadata().ok());
        let total = sizes.map(|it| it.map(|it| it.len())).sum::<Option<u64>>();
        let bar = progress_bar(total.filter(|_| !has_stdin).map(|bytes| bytes * passes));
        let shown = bar.clone();
        let open = move |path: &Path| -> io::Result<Box<dyn Read + Send>> {
            if path == Path::new(STDIN) {
                return Ok(Box::new(shown.wrap_read(io::stdin())));
            }
            Ok(Box::new(shown.wrap_read(File::open(path)?)))
        };
        let on_damage = if self.strict {
            OnDamage::Stop
        } else {
            OnDamage::Skip
        };
        let files = Files::new(self.traces.clone(), self.format, on_damage, Box::new(open));
        Ok(Input { files, bar })
    }
}

/// Traces that are being read.
pub struct Input {
    pub files: Files,
    bar: ProgressBar,
}

impl Input {
    /// Takes the bar away, and names the first lines that were no requests.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
        let tally = self.files.tally();
        for (path, damage) in &tally.examples {
            tell(&format!("hashcache: {}:{damage}\n", path.display()));
        }
        let more = tally.damaged - tally.examples.len() as u64;
        if more > 0 {
            tell(&format!("hashcache: {more} more lines are no requests\n"));
        }
    }
}

/// A progress bar on a terminal, nothing elsewhere. `total`: `None` if it is not known.
pub fn progress_bar(total: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let Some(total) = total else {
        return ProgressBar::new_spinner();
    };
    let style = ProgressStyle::with_template("{wide_bar} {percent}% {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style)
}

const STDIN: &str = "-";
