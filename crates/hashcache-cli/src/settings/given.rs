//! One value from one source, before it is parsed.

use std::fmt;
use std::path::PathBuf;

use super::keys::{Found, Written};

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

/// One value from one source, not parsed yet.
#[derive(Clone, Debug)]
pub struct Given {
    /// Its key.
    pub found: Found,
    /// The value as it was written.
    pub written: Written,
    /// Its source.
    pub source: Source,
}
