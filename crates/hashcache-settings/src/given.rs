//! A value from a source, before it is parsed.

use std::fmt;
use std::path::PathBuf;

use super::key::Written;
use super::keys::{Found, find};

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// No source gave a value.
    Default,
    /// A line of the configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A flag, with its dashes.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// A value from a source, not parsed yet.
#[derive(Clone, Debug)]
pub struct Given {
    /// The key.
    pub found: Found,
    /// The value as written.
    pub written: Written,
    /// The source.
    pub source: Source,
}

/// Returns the values of the flags that were given; each flag has the name of a setting.
pub fn given_flags<const N: usize>(flags: [(&str, &Option<String>); N]) -> Vec<Given> {
    let given = |(flag, word): (&str, &Option<String>)| {
        Some(Given {
            found: find(flag).expect("each is a setting of the proxy"),
            written: Written::One(word.clone()?),
            source: Source::Flag(format!("--{flag}")),
        })
    };
    flags.into_iter().filter_map(given).collect()
}
