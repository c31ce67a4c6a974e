//! `hashcache import`: writes the configuration that `hashcache_import` makes of a Squid
//! configuration, and the report.
//!
//! Invariants: a result that serves requests that Squid refuses is written only with
//! `--allow-open`. No existing file is overwritten, and no partial file is left.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use hashcache_import::{Fate, Import, Unsure};
use hashcache_settings::fault::Fault;

use crate::output::{NOT_WELL, say, tell};

/// Arguments for `hashcache import`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Run it where Squid runs: it reads the files that the configuration names. Check the result with
`hashcache config check`.

A line that denies by something that access rules do not know (a part of a URL, a header field, an
external helper) denies all of the hosts that it names. Where it names no host, nothing is written,
unless --close or --allow-open says what to do.

Exit status: 0 all imported, 1 something has no counterpart (the result is written), 2 failed, or
nothing was written because the result would serve what Squid refuses.")]
pub struct ImportArgs {
    /// Configuration of Squid
    file: PathBuf,
    /// Write to this file, which must not exist, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Deny more where a line of Squid cannot be written exactly: all that its other conditions
    /// match, which may be everything
    #[arg(long, conflicts_with = "allow_open")]
    close: bool,
    /// Write the result although it serves requests that Squid refuses; each line is named
    #[arg(long)]
    allow_open: bool,
    /// Write nothing unless everything is imported as it is: neither open, nor closed, nor left out
    #[arg(long, conflicts_with_all = ["close", "allow_open"])]
    strict: bool,
    /// Print the result for each directive as JSON; needs --out
    #[arg(long, requires = "out")]
    json: bool,
}

/// Imports the file, and writes the result and the report.
pub fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let unsure = match (args.allow_open, args.close) {
        (true, _) => Unsure::Open,
        (_, true) => Unsure::Close,
        _ => Unsure::Refuse,
    };
    let import = hashcache_import::import(&args.file, unsure);
    let import =
        import.with_context(|| Fault::new(format!("cannot read {}", args.file.display())))?;
    let refusal = refusal(args, &import);
    if refusal.is_none() {
        let text = import.text();
        match &args.out {
            Some(path) => write_new(path, &text)?,
            None => io::stdout().write_all(text.as_bytes())?,
        }
    }
    if args.json {
        say(&import.report_json(refusal.is_none()));
    } else {
        tell(&import.report());
    }
    if let Some(fault) = refusal {
        return Err(fault.into());
    }
    let differences = [Fate::Missing, Fate::Closed, Fate::Open].map(|fate| import.count(fate));
    Ok(if differences == [0; 3] {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_WELL)
    })
}

/// Reason why the result is not written, if any.
fn refusal(args: &ImportArgs, import: &Import) -> Option<Fault> {
    let file = args.file.display();
    let open = import.count(Fate::Open);
    if open > 0 && !args.allow_open {
        let what = format!(
            "nothing is written: the result would serve requests that {open} directives of {file} \
             refuse"
        );
        let hint = "see the lines with NOT DENIED; `--close` denies more in their place, \
                    `--allow-open` writes the result without them";
        return Some(Fault::new(what).hint(hint));
    }
    let others = import.count(Fate::Missing) + import.count(Fate::Closed);
    if args.strict && others > 0 {
        let what = format!("nothing is written: {others} directives of {file} are not as in Squid");
        return Some(Fault::new(what).hint("without `--strict` the result is written"));
    }
    None
}

fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    let written = made.and_then(|file| write_whole(file, path, text));
    written.map_err(|error| {
        let fault = Fault::new(format!("cannot write {}", path.display()));
        let fault = match error.kind() {
            io::ErrorKind::AlreadyExists => fault.hint("give another name, or move the file away"),
            _ => fault,
        };
        anyhow::Error::new(error).context(fault)
    })
}

/// Writes `text`. After an error the file is removed: a partial configuration could be taken for a
/// complete file.
fn write_whole(mut file: impl io::Write, path: &Path, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes()).inspect_err(|_| {
        // If removing fails, the returned error already reports the failed write.
        let _ = fs::remove_file(path);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_result_is_removed() {
        struct Full;
        impl io::Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("new.toml");
        fs::write(&path, "half").unwrap();
        assert!(write_whole(Full, &path, "text").is_err());
        assert!(!path.exists());
    }
}
