//! The settings in effect as text: as a configuration file and as JSON.
//!
//! `hashcache config show` prints it. Invariant: the configuration file, read again, gives the same
//! settings.

use serde_json::{Map, Value, json};

use super::{Effective, Shown, Source};

/// Formats the settings as a configuration file; a comment on each line names the source.
pub fn toml_of(effective: &Effective) -> String {
    let mut text = String::new();
    let mut open_table = "";
    for (key, shown, source) in effective.shown() {
        let (table, name) = key.name.split_once('.').unwrap_or(("", key.name));
        if table != open_table {
            text.push_str(&format!("\n[{table}]\n"));
            open_table = table;
        }
        let setting = match shown.toml() {
            Some(value) => format!("{name} = {value}"),
            // TOML cannot express an unset value; a comment still shows the key.
            None => format!("# {name} is not set"),
        };
        text.push_str(&format!("{setting:<40} # {source}\n"));
    }
    if let (false, Some(path)) = (effective.tables.is_empty(), &effective.file) {
        let tables = effective.tables.iter();
        let tables = tables.map(|(name, tables)| ((*name).to_owned(), tables.clone()));
        let tables = toml::Table::from_iter(tables);
        text.push_str(&format!("\n# {}\n{tables}", path.display()));
    }
    text
}

/// Formats the settings as JSON: each key with value and source, and the tables as objects.
pub fn json_of(effective: &Effective) -> String {
    let mut top = Map::new();
    for (key, shown, source) in effective.shown() {
        let value = match shown {
            Shown::Nothing => Value::Null,
            Shown::Text(text) => Value::String(text),
            Shown::Number(number) => number.into(),
            Shown::Truth(yes) => yes.into(),
            Shown::List(items) => items.into(),
        };
        let entry = json!({ "value": value, "source": json_source(source) });
        let (table, name) = key.name.split_once('.').unwrap_or(("", key.name));
        if table.is_empty() {
            top.insert(name.to_owned(), entry);
        } else if let Some(table) = top
            .entry(table)
            .or_insert_with(|| Value::Object(Map::new()))
            .as_object_mut()
        {
            table.insert(name.to_owned(), entry);
        }
    }
    for (name, tables) in &effective.tables {
        top.insert((*name).to_owned(), json!(tables));
    }
    format!("{:#}\n", Value::Object(top))
}

fn json_source(source: &Source) -> Value {
    match source {
        Source::Default => json!({ "kind": "default" }),
        Source::File { path, line } => {
            json!({ "kind": "file", "path": path.display().to_string(), "line": line })
        }
        Source::Variable(name) => json!({ "kind": "variable", "name": name }),
        Source::Flag(name) => json!({ "kind": "flag", "name": name }),
    }
}
