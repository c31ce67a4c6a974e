//! An import report, with the result for each directive, for people and as JSON.
//!
//! Called by `mod`. Invariant: the report has each remark and each option, so nothing is left out
//! silently.

use serde_json::{Value, json};

use super::draft::{Draft, Fate, Remark};

/// Formats a line for each directive that differs from Squid, and a summary.
pub fn text(draft: &Draft) -> String {
    let mut text = String::new();
    for (fate, word) in [
        (Fate::Open, "would be open"),
        (Fate::Closed, "closed"),
        (Fate::Missing, "not imported"),
    ] {
        for remark in of(draft, fate) {
            text.push_str(&format!(
                "{}: {word}: {}\n",
                remark.directive, remark.reason
            ));
        }
    }
    for note in &draft.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    let count = |fate| of(draft, fate).count();
    text.push_str(&format!(
        "{} directives imported, {} need no setting, {} not imported or not wholly, \
         {} deny more than Squid, {} would be open; {} options left out\n",
        draft.imported,
        count(Fate::Unneeded),
        count(Fate::Missing),
        count(Fate::Closed),
        count(Fate::Open),
        draft.options.len(),
    ));
    text
}

/// Formats the report as JSON, including the directives that need no setting. `is_written`: there
/// is a result.
pub fn json(draft: &Draft, is_written: bool) -> String {
    let all = |remarks: &mut dyn Iterator<Item = &Remark>| -> Vec<Value> {
        remarks
            .map(|it| json!({"directive": it.directive, "reason": it.reason}))
            .collect()
    };
    let report = json!({
        "written": is_written,
        "imported": draft.imported,
        "open": all(&mut of(draft, Fate::Open)),
        "closed": all(&mut of(draft, Fate::Closed)),
        "missing": all(&mut of(draft, Fate::Missing)),
        "unneeded": all(&mut of(draft, Fate::Unneeded)),
        "options": all(&mut draft.options.iter()),
        "notes": draft.notes,
    });
    format!("{report:#}\n")
}

fn of(draft: &Draft, fate: Fate) -> impl Iterator<Item = &Remark> {
    draft.remarks.iter().filter(move |it| it.fate == fate)
}
