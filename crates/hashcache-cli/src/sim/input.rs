//! The traces that a subcommand reads, with a progress bar.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use hashcache_settings::fault::Fault;
use hashcache_sim::source::{Files, OnDamage};
use hashcache_sim::trace::Format;
use hashcache_sim::view::View;
use indicatif::{ProgressBar, ProgressStyle};

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
    /// Opens the traces. `passes`: the number of times that they will be read.
    pub fn open(&self, passes: u64) -> Result<Input, Fault> {
        let passes = if self.view == View::Big {
            2 * passes
        } else {
            passes
        };
        self.check_streams(passes)?;
        let sizes = self.traces.iter().map(|path| file_bytes(path));
        let total = sizes.sum::<Option<u64>>();
        let bar = progress_bar(total.map(|bytes| bytes.saturating_mul(passes)));
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

    /// Names of the first traces, for people.
    pub fn names(&self) -> String {
        let shown = self.traces.iter().take(NAMES_SHOWN).map(|path| {
            let name = path.file_name().map_or(path.as_path(), Path::new);
            shown_name(path, name)
        });
        let shown = shown.collect::<Vec<_>>().join(", ");
        match self.traces.len().saturating_sub(NAMES_SHOWN) {
            0 => shown,
            more => format!("{shown} and {more} more"),
        }
    }

    /// Refuses to read a pipe more than once: the content can be read only once.
    fn check_streams(&self, passes: u64) -> Result<(), Fault> {
        for (place, path) in self.traces.iter().enumerate() {
            let again = self.traces[place + 1..].contains(path);
            if !is_stream(path) || (passes <= 1 && !again) {
                continue;
            }
            let fault = Fault::new(format!("{} cannot be read twice", shown_name(path, path)));
            return Err(fault.hint(match (again, self.view) {
                (true, _) => "name it once",
                (false, View::Big) => "write the log to a file first, or use `--view proxy`",
                (false, View::Proxy) => "write the log to a file first, or use one `--policy`",
            }));
        }
        Ok(())
    }
}

/// Formats `name`, which is all or a part of `path`, for people.
fn shown_name(path: &Path, name: &Path) -> String {
    if path == Path::new(STDIN) {
        "standard input".to_owned()
    } else {
        name.display().to_string()
    }
}

/// Returns true if `path` is standard input, a pipe or a device. A path without a file is an error
/// when it is opened.
fn is_stream(path: &Path) -> bool {
    let metadata = || path.metadata();
    path == Path::new(STDIN) || metadata().is_ok_and(|it| !it.is_file() && !it.is_dir())
}

/// Length of a file; `None` if the length of the input is unknown.
fn file_bytes(path: &Path) -> Option<u64> {
    let metadata = path.metadata().ok()?;
    (metadata.is_file() && path != Path::new(STDIN)).then_some(metadata.len())
}

/// Traces that are being read. Drop removes the bar and prints the first lines that were not
/// requests.
pub struct Input {
    pub files: Files,
    bar: ProgressBar,
}

impl Drop for Input {
    fn drop(&mut self) {
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

/// Shows a progress bar if standard error is a terminal. `total` is `None` if it is unknown.
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
const NAMES_SHOWN: usize = 3;
