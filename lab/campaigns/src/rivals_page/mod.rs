//! `cargo campaign rivals`: all measurements beside other caches, and docs/RIVALS.md.
//!
//! Each part is another campaign (`cpu`, `slow-disk`, `restart`, `index-memory`), which this one
//! starts in a process of its own. Its report is kept, so that the page can be written again
//! without measuring: a kept report counts if it has the same command and the same rivals, and of
//! a part that is to be measured, the same sources of the proxy and of the campaigns. The page says
//! from which sources each part is.
//!
//! `parts` says which commands, `kept` keeps their reports, `machine` says what they ran on, `page`
//! writes the page from `tables`.
//!
//! Invariant: a figure of the page is one of a report, and a rival that was not measured is named
//! there with the reason.

mod kept;
mod machine;
mod page;
mod parts;
mod tables;

use std::path::PathBuf;
use std::{fs, io};

use anyhow::Context as _;
use rustix::process::geteuid;

use crate::campaign::Campaign;
use crate::report::Verdict;
use crate::root;
use kept::Kept;
use machine::{Program, Version};
use page::Page;
use parts::{Form, Part};

/// Arguments of `rivals`.
#[derive(clap::Args)]
pub struct Args {
    /// Measure only these parts; the page has the others from kept reports, of any sources
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Measure nothing: write the page from kept reports, of any sources
    #[arg(long, conflicts_with_all = ["only", "again"])]
    page: bool,
    /// Measure small loads for a short time: about 12 minutes, figures of little worth
    #[arg(long, conflicts_with = "short")]
    quick: bool,
    /// Only try what is installed with tiny loads; the page is not written to docs/
    #[arg(long)]
    short: bool,
    /// Measure again what is kept
    #[arg(long)]
    again: bool,
    /// Where reports are kept [default: the folder `rivals` beside this program]
    #[arg(long, value_name = "DIRECTORY")]
    reports: Option<PathBuf>,
}

impl Args {
    fn form(&self) -> Form {
        match (self.quick, self.short) {
            (true, _) => Form::Quick,
            (_, true) => Form::Short,
            _ => Form::Full,
        }
    }

    fn wants(&self, part: Part) -> bool {
        !self.page && (self.only.is_empty() || self.only.contains(&part))
    }
}

/// Measures what is not kept, and writes the page.
pub fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    if !geteuid().is_root() {
        campaign.report.skip("rivals", "needs root");
        return Ok(());
    }
    let form = args.form();
    let folder = match (&args.reports, form) {
        (Some(folder), _) => folder.clone(),
        // Reports that tests left are not used.
        (None, Form::Short) => campaign.folder().join("reports"),
        (None, _) => {
            let program = std::env::current_exe()?;
            program.with_file_name("rivals")
        }
    };
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let version = Version::of_sources();
    let mut all = vec![];
    for part in form.parts() {
        let kept = if !args.wants(part) {
            Kept::read(&folder, part, form, None)?
        } else if args.again {
            None
        } else {
            Kept::read(&folder, part, form, Some(&version))?
        };
        let outcome = match kept {
            Some(kept) => Ok((kept, "kept")),
            None if !args.wants(part) => continue,
            None => Kept::measure(&folder, part, form, &version, campaign).map(|it| (it, "now")),
        };
        let (kept, when) = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                campaign.report.skip(part.name(), format!("{error:#}"));
                all.push((part, Err(format!("{error:#}"))));
                continue;
            }
        };
        tell(part, &kept, when, campaign);
        all.push((part, Ok(kept)));
    }
    let file = match form {
        Form::Short | Form::Quick => folder.join("RIVALS.md"),
        Form::Full => root().join("docs/RIVALS.md"),
    };
    let before = match fs::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        before => before.with_context(|| format!("cannot read {}", file.display()))?,
    };
    let programs = machine::programs();
    let text = Page {
        form,
        parts: &all,
        programs: &programs,
    }
    .text(&before);
    fs::write(&file, &text).with_context(|| format!("cannot write {}", file.display()))?;
    campaign.report.tell("page", file.display().to_string());
    if args.only.is_empty() && !args.page {
        check_rivals(&programs, &all, campaign);
    }
    Ok(())
}

/// A row: each rival that is installed was measured in some part.
fn check_rivals(
    programs: &[Program],
    parts: &[(Part, Result<Kept, String>)],
    campaign: &mut Campaign,
) {
    let kept = || parts.iter().filter_map(|(_, kept)| kept.as_ref().ok());
    let is_measured = |name: &str| {
        let mut rows = kept().flat_map(Kept::rows);
        rows.any(|row| row.has_figures() && row.server.starts_with(name))
    };
    let installed = || programs.iter().filter(|it| it.version.is_some());
    let missing: Vec<&str> = installed()
        .map(|it| it.name)
        .filter(|name| !is_measured(name))
        .collect();
    let detail = match missing.as_slice() {
        [] => format!("{} of {}", installed().count(), programs.len()),
        names => format!("no figure of {}", names.join(", ")),
    };
    let what = "every installed rival is measured";
    campaign.report.check(what, missing.is_empty(), detail);
}

/// A row for a part: it has figures of ours, and none of ours gave a wrong answer.
fn tell(part: Part, kept: &Kept, when: &str, campaign: &mut Campaign) {
    let of = |is_ours: bool| kept.rows().filter(move |row| row.is_ours() == is_ours);
    let wrong = |is_ours| of(is_ours).map(|row| row.wrong().unwrap_or(0)).sum::<u64>();
    let measured = |is_ours| of(is_ours).filter(|row| row.has_figures()).count();
    let mut detail = format!(
        "{when}: {} rows of ours, {} of rivals; wrong answers: {} and {}",
        measured(true),
        measured(false),
        wrong(true),
        wrong(false),
    );
    for row in kept.rows().filter(|row| row.is_skipped()) {
        detail += &format!("\n        {}: {}", row.what, row.detail);
    }
    let held = measured(true) > 0 && wrong(true) == 0;
    campaign.report.figures(
        part.name(),
        Verdict::from(held),
        detail,
        kept.value().clone(),
    );
}
