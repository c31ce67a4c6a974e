//! `hashcache config check`, `show`, `example` and `reference`: commands for the settings that do
//! not start a proxy.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use crate::args::ConfigCommand;
use crate::output::{NOT_WELL, tell};
use crate::proxy;
use hashcache_proxy::Supervisor;
use hashcache_settings::fault::{self, Faults};
use hashcache_settings::{Environment, SettingArgs};
use hashcache_settings::{effective_text, example, reference};

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
    match hashcache_settings::load(file, vec![], environment) {
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
    let effective =
        hashcache_settings::load(settings.config.as_deref(), settings.given(), environment)?;
    let text = if as_json {
        effective_text::json_of(&effective)
    } else {
        effective_text::toml_of(&effective)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
