//! `hashcache inspect`: prints the contents of a cache's superblock.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use hashcache::{Config, Inspection};
use hashcache_settings::units::{brief_size, show_size, show_store_size};
use serde_json::{Value, json};

use crate::open_fault::{Purpose, cannot_open};

/// Shows the cache at `path`.
pub fn run(path: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let found = hashcache::inspect(&Config::new(path))
        .map_err(|error| cannot_open(path, Purpose::Look, &error))?;
    let text = if as_json {
        format!("{}\n", json_of(&found))
    } else {
        text_of(&found)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn json_of(found: &Inspection) -> Value {
    json!({
        "format_version": found.format_version,
        "store_id": format!("{:032x}", found.store_id),
        "device": found.device,
        "members": found
            .members
            .iter()
            .map(|it| json!({"device": it.device, "device_bytes": it.device_bytes}))
            .collect::<Vec<_>>(),
        "policy": found.policy,
        "rows": found.rows,
        "grouped": found.grouped,
        "policy_since": found.policy_since,
        "memberships": found
            .memberships
            .iter()
            .map(|(first, members)| json!({
                "first_version": first,
                "devices": members.iter().map(|it| it.device).collect::<Vec<_>>(),
            }))
            .collect::<Vec<_>>(),
        "removes_forgotten_below": found.removes_forgotten_below,
        "superblock_serial": found.superblock_serial,
        "journal_bytes": found.journal_bytes,
        "checkpoint_bytes": found.checkpoint_bytes,
        "clean": found.clean,
        "device_bytes": found.device_bytes,
        "log_bytes": found.log_bytes,
        "segment_bytes": found.segment_bytes,
        "segments": found.segments,
        "segments_written": found.segments_written,
        "unit_bytes": found.unit_bytes,
        "block_bytes": found.block_bytes,
        "ways": found.ways,
        "sets": found.sets,
        "object_bytes": found.object_bytes,
        "index_bytes": found.index_bytes,
        "index_bits_per_slot": found.index_bits_per_slot,
        "index_bits_per_object": found.index_bits_per_object,
        "checkpoint_serial": found.checkpoint_serial,
        "checkpoint_whole": found.checkpoint_whole,
        "next_version": found.next_version,
        "written_at_millis": found.written_at_millis,
    })
}

/// Formats the number of this device and the other devices of the cache.
fn device_of(found: &Inspection) -> String {
    let others = found.members.iter().filter(|it| it.device != found.device);
    let others: Vec<String> = others
        .map(|it| format!("{} ({})", it.device, show_store_size(it.device_bytes)))
        .collect();
    match others.as_slice() {
        [] => format!("{}, alone", found.device),
        others => format!("{}, with {}", found.device, others.join(", ")),
    }
}

fn policy_of(found: &Inspection) -> String {
    let rows = match found.rows {
        Some(1) => ", one row",
        Some(_) => ", two rows",
        None => "",
    };
    let grouped = if found.grouped { ", grouped" } else { "" };
    format!("{}{rows}{grouped}", found.policy)
}

fn areas_of(found: &Inspection) -> String {
    format!(
        "remove journal {}, two checkpoints of {}",
        brief_size(found.journal_bytes),
        brief_size(found.checkpoint_bytes)
    )
}

fn index_of(found: &Inspection) -> String {
    let size = brief_size(found.index_bytes);
    let bits = found.index_bits_per_slot;
    match found.index_bits_per_object {
        Some(each) => format!("{size} of memory, {bits:.1} bits per slot, {each:.1} per object"),
        None => format!("{size} of memory, {bits:.1} bits per slot"),
    }
}

fn text_of(found: &Inspection) -> String {
    let closed = if found.clean {
        "cleanly"
    } else {
        "not cleanly, or open now"
    };
    let checkpoint = match (found.checkpoint_serial, found.checkpoint_whole) {
        (0, _) => "none".to_owned(),
        (serial, true) => format!("number {serial}, complete"),
        (serial, false) => format!("number {serial}, damaged"),
    };
    let segments = format!(
        "{} of {} written, {} each",
        found.segments_written,
        found.segments,
        show_size(found.segment_bytes.into())
    );
    let rows = [
        ("store", format!("{:032x}", found.store_id)),
        ("device", device_of(found)),
        ("format", found.format_version.to_string()),
        ("policy", policy_of(found)),
        ("size", show_store_size(found.device_bytes)),
        ("log", brief_size(found.log_bytes)),
        ("segments", segments),
        ("sets", format!("{} of {} slots", found.sets, found.ways)),
        ("index", index_of(found)),
        (
            "sized for",
            format!("objects of {}", show_size(found.object_bytes.into())),
        ),
        ("areas", areas_of(found)),
        ("memberships", found.memberships.len().to_string()),
        ("checkpoint", checkpoint),
        ("closed", closed.to_owned()),
    ];
    rows.iter()
        .map(|(name, value)| format!("{name:11} {value}\n"))
        .collect()
}
