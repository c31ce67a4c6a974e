//! The flags for settings, generated from the rows of their keys.
//!
//! Values remain text here. The rows parse them, in the same way as values in files and variables,
//! so a value has the same syntax and the same errors everywhere.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

use super::given::{Given, Source};
use super::key::{Accepts, Key, Written};
use super::keys::{SECTIONS, find, keys};

/// Name of the flag for the configuration file.
const CONFIG: &str = "config";

/// The flags for all settings, and the flag for the configuration file. A flag that takes a list
/// may be repeated; most list flags also take commas.
#[derive(Clone, Debug, Default)]
pub struct SettingArgs {
    /// The configuration file.
    pub config: Option<PathBuf>,
    given: Vec<Given>,
}

impl SettingArgs {
    /// The flags that were given, each as the source of a value.
    pub fn given(&self) -> Vec<Given> {
        self.given.clone()
    }

    /// Adds values to the list of the key called `name`, from a flag that is no setting.
    pub fn extend(&mut self, name: &str, flag: &str, words: Vec<String>) {
        let earlier = self.given.iter_mut().find(|it| it.found.key.name == name);
        match (earlier.map(|given| &mut given.written), find(name)) {
            _ if words.is_empty() => {}
            (Some(Written::Many(all)), _) => all.extend(words),
            (_, Some(found)) => self.given.push(Given {
                found,
                written: Written::Many(words),
                source: Source::Flag(flag.to_owned()),
            }),
            (_, None) => {}
        }
    }
}

impl Args for SettingArgs {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new(CONFIG)
            .short('c')
            .long(CONFIG)
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help(
                "Configuration file (TOML) [default: ~/.config or /etc, hashcache/hashcache.toml]",
            );
        let flags = SECTIONS.iter().flat_map(|section| {
            let keys = section.keys.iter();
            keys.filter_map(|key| Some(flag(key)?.help_heading(section.heading)))
        });
        command.arg(config).args(flags)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = keys().filter_map(|key| {
            let name = key.flag_name()?;
            // Only this source: a flag such as `--no-default-rules` has a default in clap.
            if matches.value_source(&name) != Some(ValueSource::CommandLine) {
                return None;
            }
            let written = if key.is_flag_opposite() {
                Written::One("true".to_owned())
            } else if key.is_list() {
                Written::Many(matches.get_many(&name)?.cloned().collect())
            } else {
                Written::One(matches.get_one::<String>(&name)?.clone())
            };
            let spelling = if key.is_flag_opposite() {
                &name
            } else {
                key.name
            };
            Some(Given {
                found: find(spelling)?,
                written,
                source: Source::Flag(format!("--{name}")),
            })
        });
        Ok(Self {
            config: matches.get_one::<PathBuf>(CONFIG).cloned(),
            given: given.collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns `key`'s flag; `None` if it has no flag.
fn flag(key: &'static Key) -> Option<Arg> {
    let name = key.flag_name()?;
    let flag = Arg::new(name.clone()).long(name);
    if let Some(opposite) = key.opposite.filter(|_| key.is_flag_opposite()) {
        return Some(flag.action(ArgAction::SetTrue).help(opposite.about));
    }
    let flag = flag.help(key.help()).value_name(key.kind.placeholder);
    let flag = match key.kind.accepts {
        Accepts::Any => flag,
        Accepts::Words(words) => flag.value_parser(PossibleValuesParser::new(words())),
        // The value must follow `=`: in `--grouped FILE`, FILE is another argument.
        Accepts::Truth => flag
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
    };
    Some(if !key.is_list() {
        flag
    } else if key.has_commas {
        flag.action(ArgAction::Append).value_delimiter(',')
    } else {
        flag.action(ArgAction::Append)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser as _;

    use super::super::keys::find_flag;
    use super::*;

    /// A command that takes all settings.
    #[derive(clap::Parser)]
    pub(crate) struct Line {
        #[command(flatten)]
        pub(crate) settings: SettingArgs,
    }

    /// Flags that are not settings: they name a configuration file, or belong to clap.
    const OTHERS: [&str; 3] = ["config", "help", "version"];

    fn flags() -> Vec<String> {
        let command = SettingArgs::augment_args(Command::new("test"));
        let longs = command
            .get_arguments()
            .filter_map(|arg| arg.get_long().map(str::to_owned));
        longs
            .filter(|long| !OTHERS.contains(&long.as_str()))
            .collect()
    }

    #[test]
    fn every_flag_is_a_key_of_the_file_and_a_variable() {
        assert!(flags().contains(&"cache-size".to_owned()));
        for flag in flags() {
            assert!(find_flag(&flag).is_some(), "{flag}");
        }
    }

    #[test]
    fn every_flag_arrives_under_its_own_name() {
        for flag in flags() {
            let key = find_flag(&flag).unwrap().key;
            let argument = match key.kind.accepts {
                Accepts::Words(words) => format!("--{flag}={}", words()[0]),
                Accepts::Truth if key.is_flag_opposite() => format!("--{flag}"),
                _ => format!("--{flag}=7"),
            };
            let line = Line::try_parse_from(["test", &argument]).unwrap();
            let given = line.settings.given();
            assert_eq!(given.len(), 1, "{flag}");
            assert_eq!(given[0].source, Source::Flag(format!("--{flag}")));
            assert_eq!(given[0].found.key.name, key.name);
        }
    }

    #[test]
    fn lists_are_given_by_repeating_a_flag_or_with_commas() {
        let line = [
            "test",
            "--listen=1.1.1.1:1,2.2.2.2:2",
            "--listen",
            "3.3.3.3:3",
        ];
        let settings = Line::try_parse_from(line).unwrap().settings;
        let written = ["1.1.1.1:1", "2.2.2.2:2", "3.3.3.3:3"]
            .map(str::to_owned)
            .to_vec();
        assert_eq!(settings.given()[0].written, Written::Many(written));
    }
}
