//! The process's environment: `HASHCACHE_*` variables, user, number of processors.
//!
//! `main` reads it once and passes it on as a value, so that all later code is a pure function of
//! the environment.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;

use super::given::{Given, Source};
use super::keys;
use crate::fault::Fault;

/// Prefix for our environment variables.
const PREFIX: &str = "HASHCACHE_";
/// The variable that names the configuration file.
pub const CONFIG: &str = "HASHCACHE_CONFIG";
/// Names of a configuration file and a cache file below their directories.
const CONFIG_FILE: &str = "hashcache/hashcache.toml";
const CACHE_FILE: &str = "hashcache/cache.img";
/// Name of the certificate authority's directory, beside the configuration file.
const CA_DIRECTORY: &str = "hashcache/ca";
/// Name of the directory with the key for links, also beside the configuration file.
const LINK_DIRECTORY: &str = "hashcache/link";

/// The process's environment.
#[derive(Clone, Debug)]
pub struct Environment {
    /// All environment variables; bytes that are not Unicode are replaced.
    pub variables: BTreeMap<String, String>,
    /// True if the process runs as root. Root's files are in the system's directories.
    pub is_root: bool,
    /// Processors that the process may use.
    pub processors: usize,
}

impl Environment {
    /// This process's environment.
    pub fn of_this_process() -> Self {
        Self {
            // A name or value that is not Unicode cannot be a valid setting of ours, but it must
            // not disappear either: the lossy form is kept and refused later.
            variables: std::env::vars_os()
                .map(|(name, value)| {
                    (
                        name.to_string_lossy().into_owned(),
                        value.to_string_lossy().into_owned(),
                    )
                })
                .collect(),
            is_root: rustix::process::geteuid().is_root(),
            processors: thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Default cache file; `None` when there is no home directory.
    pub fn cache_file(&self) -> Option<PathBuf> {
        if self.is_root {
            return Some(PathBuf::from("/var/cache").join(CACHE_FILE));
        }
        Some(
            self.user_directory("XDG_CACHE_HOME", ".cache")?
                .join(CACHE_FILE),
        )
    }

    /// Default configuration files; the first that exists is read.
    pub fn config_files(&self) -> Vec<PathBuf> {
        let own = self
            .user_directory("XDG_CONFIG_HOME", ".config")
            .filter(|_| !self.is_root);
        own.into_iter()
            .chain([PathBuf::from("/etc")])
            .map(|directory| directory.join(CONFIG_FILE))
            .collect()
    }

    /// The certificate authority's default directory; `None` when there is no home directory.
    pub fn ca_directory(&self) -> Option<PathBuf> {
        Some(self.own_configuration()?.join(CA_DIRECTORY))
    }

    /// Default directory of the key for links; `None` when there is no home directory.
    pub fn link_directory(&self) -> Option<PathBuf> {
        Some(self.own_configuration()?.join(LINK_DIRECTORY))
    }

    fn own_configuration(&self) -> Option<PathBuf> {
        if self.is_root {
            Some(PathBuf::from("/etc"))
        } else {
            self.user_directory("XDG_CONFIG_HOME", ".config")
        }
    }

    /// The configuration file that a variable names.
    pub fn config_named(&self) -> Option<PathBuf> {
        self.variable(CONFIG).map(PathBuf::from)
    }

    /// Returns every setting in a variable, and the faults of the other variables with our prefix.
    ///
    /// An empty variable counts as not set: compose files and units pass an unset variable on as
    /// empty.
    pub fn given(&self) -> (Vec<Given>, Vec<Fault>) {
        let mut given = vec![];
        let mut faults = vec![];
        for (variable, value) in &self.variables {
            let Some(rest) = variable.strip_prefix(PREFIX) else {
                continue;
            };
            if variable == CONFIG || value.is_empty() {
                continue;
            }
            // Only the exact spelling is accepted: `HASHCACHE_limits.x` would be a second spelling.
            let name = rest.replace("__", ".").to_lowercase();
            match keys::find(&name).filter(|found| variable_of(found.spelling) == *variable) {
                Some(found) => {
                    given.push(Given {
                        found,
                        written: found.key.written(value),
                        source: Source::Variable(variable.clone()),
                    });
                }
                None => faults.push(unknown(variable)),
            }
        }
        (given, faults)
    }

    /// A variable's value, if it is set and not empty.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Returns `$variable`, otherwise `$HOME/fallback`. Relative paths in `$variable` are ignored,
    /// as the XDG specification requires.
    fn user_directory(&self, variable: &str, fallback: &str) -> Option<PathBuf> {
        self.variable(variable)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| Some(PathBuf::from(self.variable("HOME")?).join(fallback)))
    }
}

/// The variable for key `name`: in upper case, with `__` for a dot in the key.
pub fn variable_of(name: &str) -> String {
    format!("{PREFIX}{}", name.replace('.', "__").to_uppercase())
}

fn unknown(variable: &str) -> Fault {
    let fault = Fault::new(format!("unknown variable `{variable}`"));
    // Without the prefix: it would make all names look similar.
    let name = variable.strip_prefix(PREFIX).unwrap_or(variable);
    let name = name.replace("__", ".");
    match super::suggest::nearest(&name, keys::spellings().chain(["config"])) {
        Some(meant) => fault.hint(format!("did you mean `{}`?", variable_of(meant))),
        None => {
            fault.hint("variables that begin with `HASHCACHE_` must be settings: unset this one")
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::key::Written;

    /// An environment with these variables, for an ordinary user.
    pub fn environment(variables: &[(&str, &str)]) -> Environment {
        let variables = variables
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Environment {
            variables,
            is_root: false,
            processors: 4,
        }
    }

    #[test]
    fn tables_are_written_with_two_underscores() {
        assert_eq!(
            variable_of("limits.head_time"),
            "HASHCACHE_LIMITS__HEAD_TIME"
        );
        let (given, faults) = environment(&[("HASHCACHE_LIMITS__HEAD_TIME", "3s")]).given();
        assert_eq!(faults, []);
        assert_eq!(given[0].found.key.name, "limits.head_time");
    }

    #[test]
    fn lists_are_split_at_commas() {
        let (given, _) = environment(&[("HASHCACHE_ALLOW_CONNECT_PORT", "443, 8443,")]).given();
        assert_eq!(
            given[0].written,
            Written::Many(vec!["443".into(), "8443".into()])
        );
    }

    #[test]
    fn an_unknown_variable_is_refused_with_the_one_meant() {
        let (_, faults) = environment(&[("HASHCACHE_MEMROY", "1"), ("OTHER", "x")]).given();
        assert_eq!(faults.len(), 1);
        assert_eq!(faults[0].what, "unknown variable `HASHCACHE_MEMROY`");
        assert_eq!(
            faults[0].hint.as_deref(),
            Some("did you mean `HASHCACHE_MEMORY`?")
        );
    }

    #[test]
    fn the_prefix_makes_no_variable_like_another() {
        for (variable, meant) in [
            ("HASHCACHE_FOO", None),
            ("HASHCACHE_PORT", Some("HASHCACHE_LISTEN")),
            ("HASHCACHE_HEAD_TIME", Some("HASHCACHE_LIMITS__HEAD_TIME")),
            (
                "HASHCACHE_LIMITS__HEAD_TIEM",
                Some("HASHCACHE_LIMITS__HEAD_TIME"),
            ),
            ("HASHCACHE_CONFG", Some("HASHCACHE_CONFIG")),
            ("HASHCACHE_CACHE-SIZE", Some("HASHCACHE_CACHE_SIZE")),
        ] {
            let fault = unknown(variable);
            let hint = fault.hint.unwrap();
            match meant {
                Some(meant) => assert_eq!(hint, format!("did you mean `{meant}`?")),
                None => assert!(hint.contains("unset this one"), "{hint}"),
            }
        }
    }

    #[test]
    fn a_variable_in_another_spelling_is_unknown() {
        for variable in [
            "HASHCACHE_memory",
            "HASHCACHE_CACHE-SIZE",
            "HASHCACHE_LIMITS.CLIENTS",
        ] {
            assert_eq!(
                environment(&[(variable, "1")]).given().1.len(),
                1,
                "{variable}"
            );
        }
    }

    #[test]
    fn an_empty_variable_is_not_set() {
        let environment = environment(&[("HASHCACHE_MEMORY", ""), ("HASHCACHE_CONFIG", "")]);
        assert!(environment.given().0.is_empty());
        assert_eq!(environment.config_named(), None);
    }

    #[test]
    fn the_cache_lies_where_the_desktop_rules_say() {
        let path = |variables: &[(&str, &str)]| environment(variables).cache_file();
        let home = ("HOME", "/h");
        assert_eq!(path(&[home]), Some("/h/.cache/hashcache/cache.img".into()));
        assert_eq!(
            path(&[home, ("XDG_CACHE_HOME", "/x")]),
            Some("/x/hashcache/cache.img".into())
        );
        assert_eq!(
            path(&[home, ("XDG_CACHE_HOME", "relative")]),
            Some("/h/.cache/hashcache/cache.img".into())
        );
        assert_eq!(path(&[]), None);
        let root = Environment {
            is_root: true,
            ..environment(&[home])
        };
        assert_eq!(
            root.cache_file(),
            Some("/var/cache/hashcache/cache.img".into())
        );
    }

    #[test]
    fn root_looks_for_its_configuration_in_etc_alone() {
        let user = environment(&[("HOME", "/h")]);
        let etc = PathBuf::from("/etc/hashcache/hashcache.toml");
        assert_eq!(
            user.config_files(),
            [
                PathBuf::from("/h/.config/hashcache/hashcache.toml"),
                etc.clone()
            ]
        );
        assert_eq!(
            Environment {
                is_root: true,
                ..user
            }
            .config_files(),
            [etc]
        );
    }

    #[test]
    fn the_certificate_authority_lies_beside_the_configuration() {
        let user = environment(&[("HOME", "/h")]);
        assert_eq!(user.ca_directory(), Some("/h/.config/hashcache/ca".into()));
        let elsewhere = environment(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]);
        assert_eq!(elsewhere.ca_directory(), Some("/x/hashcache/ca".into()));
        assert_eq!(environment(&[]).ca_directory(), None);
        let root = Environment {
            is_root: true,
            ..user
        };
        assert_eq!(root.ca_directory(), Some("/etc/hashcache/ca".into()));
    }
}
