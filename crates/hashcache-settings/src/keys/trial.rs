//! A setting that only tests have. It shows that a setting needs only a row and a field.

use super::types::POSITIVE_TIME;
use crate::key::{Key, Section};

pub(super) static SECTION: Section = Section {
    heading: "Trial",
    keys: KEYS,
};

static KEYS: &[Key] = &[one!("trial_time", trial_time, POSITIVE_TIME)
    .flag()
    .default("7s")
    .about("Time that only tests set")
    .details("It shows that a row is enough.")
    .page("settings.md")];
