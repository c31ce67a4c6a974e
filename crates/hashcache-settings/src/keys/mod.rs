//! All settings, a row each; `key` describes the contents of a row.
//!
//! To add a setting, add a row to the file of its section, and a field for its value to the struct
//! that uses it: `Startup` or `Reloadable` of the proxy, `Engine`, or `Values`. Files, variables
//! and flags then have the setting; `cargo xtask docs` writes the documents.
//!
//! Invariant: no two rows have the same name.

/// The time at which a changed value applies: it depends on the part of `Values` with the field.
macro_rules! applies {
    (startup) => {
        crate::key::Applies::AtStart
    };
    (engine) => {
        crate::key::Applies::AtStart
    };
    ($other:ident) => {
        crate::key::Applies::AtReload
    };
}

/// A key with a single value: name, field of `Values`, type.
macro_rules! one {
    ($name:expr, $part:ident $(. $field:ident)*, $type:expr) => {
        crate::key::Key::new(
            $name,
            $type.kind,
            applies!($part),
            crate::key::Form::One(|values, word| {
                values.$part $(. $field)* = ($type.read)(word)?;
                Ok(())
            }),
            |values| ($type.show)(&values.$part $(. $field)*),
        )
    };
}

/// A key with a value that may be unset.
macro_rules! optional {
    ($name:expr, $part:ident $(. $field:ident)*, $type:expr) => {
        crate::key::Key::new(
            $name,
            $type.kind,
            applies!($part),
            crate::key::Form::One(|values, word| {
                values.$part $(. $field)* = Some(($type.read)(word)?);
                Ok(())
            }),
            |values| {
                let value = values.$part $(. $field)*.as_ref();
                value.map_or(crate::key::Shown::Nothing, $type.show)
            },
        )
    };
}

/// A key with a list.
macro_rules! many {
    ($name:expr, $part:ident $(. $field:ident)*, $type:expr) => {
        crate::key::Key::new(
            $name,
            $type.kind,
            applies!($part),
            crate::key::Form::Many(|values, words| {
                values.$part $(. $field)* = crate::keys::each(words, $type.read)?;
                Ok(())
            }),
            |values| {
                let items = values.$part $(. $field)*.iter();
                let words = items.map(|item| ($type.show)(item).to_string());
                crate::key::Shown::List(words.collect())
            },
        )
    };
}

mod access;
mod cache;
pub mod choices;
mod expert;
mod https;
mod limits;
mod listen;
mod logs;
mod mirrors;
mod peers;
#[cfg(test)]
mod trial;
pub mod types;

use super::key::{Key, Section, Written};
use super::suggest;
use super::tables::TABLES;
use super::values::Values;
use crate::fault::{Fault, Faults};

/// All keys by section, in the documents' order.
pub static SECTIONS: &[&Section] = &[
    &listen::SECTION,
    &cache::SECTION,
    &access::SECTION,
    &https::SECTION,
    &mirrors::SECTION,
    &peers::SECTION,
    &logs::SECTION,
    &expert::SECTION,
    &limits::SECTION,
    #[cfg(test)]
    &trial::SECTION,
];

/// All keys, in the documents' order.
pub fn keys() -> impl Iterator<Item = &'static Key> {
    SECTIONS.iter().flat_map(|section| section.keys)
}

/// A key found by name, with the correct spelling.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The row.
    pub key: &'static Key,
    /// The spelling: the name of the key or of its opposite.
    pub spelling: &'static str,
}

impl Found {
    /// Parses `written` into `values`.
    ///
    /// # Errors
    /// Every wrong element of a list.
    pub fn read(&self, values: &mut Values, written: &Written) -> Result<(), Faults> {
        let opposite = match written {
            Written::One(word) if self.spelling != self.key.name => {
                &Written::One((!types::truth(word)?).to_string())
            }
            _ => written,
        };
        self.key.read(values, opposite, self.spelling)
    }
}

/// Finds a key by name. Dashes count as underscores: flags have dashes, files underscores.
pub fn find(name: &str) -> Option<Found> {
    let name = name.replace('-', "_");
    let found = |key: &'static Key| {
        let own = (key.name == name).then_some(key.name);
        let opposite = key.opposite.map(|opposite| opposite.name);
        let spelling = own.or(opposite.filter(|opposite| *opposite == name))?;
        Some(Found { key, spelling })
    };
    keys().find_map(found)
}

/// The key of the flag called `flag`, without dashes in front.
#[cfg(test)]
pub fn find_flag(flag: &str) -> Option<Found> {
    let key = keys().find(|key| key.flag_name().as_deref() == Some(flag))?;
    find(if key.is_flag_opposite() {
        flag
    } else {
        key.name
    })
}

/// All spellings that `find` knows.
pub fn spellings() -> impl Iterator<Item = &'static str> {
    let opposites = keys().filter_map(|key| key.opposite);
    keys()
        .map(|key| key.name)
        .chain(opposites.map(|opposite| opposite.name))
}

/// Returns true if a key's name starts with `prefix`, which has a dot at the end.
pub fn is_table(prefix: &str) -> bool {
    keys().any(|key| key.name.starts_with(prefix))
}

/// Returns true if `name` is a key that belongs to no table.
pub fn stands_above_tables(name: &str) -> bool {
    !name.contains('.') && find(name).is_some()
}

/// The hint for a top-level key that is below the head of a table.
pub fn move_up(name: &str) -> String {
    format!("`{name}` must stand above the first `[table]` of the file")
}

/// The fault for an unknown key.
pub fn unknown(name: &str) -> Fault {
    let fault = Fault::new(format!("unknown key `{name}`"));
    if name == "config" {
        return fault.hint("a configuration file cannot include another one");
    }
    if let Some((_, last)) = name.rsplit_once('.')
        && stands_above_tables(last)
    {
        return fault.hint(move_up(last));
    }
    let tables = TABLES.iter().map(|table| table.name);
    let known = spellings()
        .chain(["limits", "intercept", "networks"])
        .chain(tables);
    match suggest::nearest(name, known) {
        Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
        None => fault.hint("`hashcache config example` lists every key"),
    }
}

/// Parses each word in `words`; the error names every wrong word.
fn each<C: FromIterator<T>, T>(
    words: &[String],
    read: fn(&str) -> Result<T, Fault>,
) -> Result<C, Faults> {
    let (mut values, mut faults) = (Vec::new(), Vec::new());
    for word in words {
        match read(word) {
            Ok(value) => values.push(value),
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() {
        Ok(values.into_iter().collect())
    } else {
        Err(Faults(faults))
    }
}

#[cfg(test)]
mod tests;
