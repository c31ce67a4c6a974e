//! `hashcache config check`, `show`, `example` and `reference`: commands for the settings that do
//! not start a proxy.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use hashcache_proxy::Supervisor;
use serde_json::{Map, Value, json};

use crate::args::ConfigCommand;
use crate::example;
use crate::fault::{self, Faults};
use crate::output::{NOT_WELL, tell};
use crate::proxy;
use crate::reference;
use crate::settings::{self, Effective, Environment, SettingArgs, Shown, Source};

/// Runs the subcommand.
pub fn run(command: ConfigCommand, environment: &Environment) -> anyhow::Result<ExitCode> {
    match command {
        ConfigCommand::Check { file } => check(file.as_deref(), environment),
        ConfigCommand::Show { json, settings } => show(json, &settings, environment),
        ConfigCommand::Example => {
            std::io::stdout().write_all(example::text().as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        ConfigCommand::Reference => {
            std::io::stdout().write_all(reference::text().as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Checks a configuration. Exit status 1, not 2, if the file can be read but has faults.
fn check(file: Option<&Path>, environment: &Environment) -> anyhow::Result<ExitCode> {
    match settings::load(file, vec![], environment) {
        Ok(effective) => {
            let problems = proxy::start_problems(&effective, &Supervisor::default());
            if !problems.is_empty() {
                tell(&fault::render(&Faults(problems).into()));
                return Ok(ExitCode::from(NOT_WELL));
            }
            for warning in proxy::start_warnings(&effective)? {
                tell(&format!("warning: {warning}\n"));
            }
            let what = match &effective.file {
                Some(path) => path.display().to_string(),
                None => "no configuration file, environment".to_owned(),
            };
            writeln!(std::io::stdout(), "{what}: ok")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) if error.is::<Faults>() => {
            tell(&fault::render(&error));
            Ok(ExitCode::from(NOT_WELL))
        }
        Err(error) => Err(error),
    }
}

fn show(
    as_json: bool,
    settings: &SettingArgs,
    environment: &Environment,
) -> anyhow::Result<ExitCode> {
    let effective = settings::load(settings.config.as_deref(), settings.given(), environment)?;
    let text = if as_json {
        json_of(&effective)
    } else {
        toml_of(&effective)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

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
fn json_of(effective: &Effective) -> String {
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
