//! What settings say that is most likely not meant, although the proxy can serve with it.
//!
//! Called at the start, at a reload, and by `hashcache config check`.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

use tracing::warn;

use crate::clock::zone::Zone;
use crate::lists;
use crate::settings::Settings;
use crate::users::users_of;

/// What is most likely not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// Access rules name users that no file of `htpasswd` has, so those rules are not for them.
    UnknownUsers {
        /// The first ones in the order of their names.
        first: Vec<String>,
        /// How many there are besides.
        others: usize,
    },
    /// The passwords of users can be guessed quickly by someone who has the file.
    CheapHashes {
        /// How many users have such a hash.
        users: usize,
    },
    /// Rules have times, and the system does not say in which time zone it is.
    NoZone,
    /// A file of a list looks like a broken download.
    DoubtfulList {
        /// The name of the list.
        list: String,
        /// The file.
        path: PathBuf,
        /// How many entries it has.
        entries: usize,
        /// How many lines are no entries.
        bad_lines: u64,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownUsers { first, others } => {
                let names = first.join("`, `");
                write!(
                    f,
                    "access rules name users that no file of `htpasswd` has: `{names}`"
                )?;
                match others {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
            Self::CheapHashes { users } => write!(
                f,
                "{users} passwords have a bcrypt cost below {COST_MIN}: use `htpasswd -B -C 10`"
            ),
            Self::NoZone => f.write_str("there is no /etc/localtime: access rules have UTC times"),
            Self::DoubtfulList {
                list,
                path,
                entries,
                bad_lines,
            } => write!(
                f,
                "{} of the list `{list}` looks broken: it has {entries} entries, and {bad_lines} \
                 lines that are none",
                path.display()
            ),
        }
    }
}

/// What is most likely not meant in `settings`. Files that cannot be read are none of it:
/// [`super::preflight`] reports them. Reads all lists of hosts.
pub fn warnings(settings: &Settings) -> Vec<Warning> {
    let doubtful = lists::doubtful(&settings.lists).map(|file| Warning::DoubtfulList {
        list: file.list.to_owned(),
        path: file.path.to_owned(),
        entries: file.entries,
        bad_lines: file.bad_lines,
    });
    let mut all = warnings_of_rules(settings);
    all.extend(doubtful);
    all
}

/// The same without the files of lists.
fn warnings_of_rules(settings: &Settings) -> Vec<Warning> {
    let (mut known, mut cheap) = (HashSet::new(), 0);
    let files = settings
        .htpasswd
        .iter()
        .filter_map(|path| users_of(path).ok());
    for (user, cost) in files.flatten() {
        cheap += usize::from(cost < COST_MIN);
        known.insert(user);
    }
    let names = settings.access.user_names();
    let mut unknown: Vec<&str> = names.filter(|name| !known.contains(*name)).collect();
    unknown.sort_unstable();
    let shown = unknown.len().min(SHOWN_MAX);
    let unknown_users = (shown > 0).then(|| Warning::UnknownUsers {
        first: unknown[..shown]
            .iter()
            .map(|name| (*name).to_owned())
            .collect(),
        others: unknown.len() - shown,
    });
    let cheap_hashes = (cheap > 0).then_some(Warning::CheapHashes { users: cheap });
    let no_zone = (settings.access.has_times() && !Zone::is_set()).then_some(Warning::NoZone);
    [unknown_users, cheap_hashes, no_zone]
        .into_iter()
        .flatten()
        .collect()
}

/// Logs the warnings about `settings`; lists are judged when they are loaded.
pub(super) fn log(settings: &Settings) {
    for warning in warnings_of_rules(settings) {
        warn!(%warning, "settings may not do what they say");
    }
}

/// Lower costs than this are for devices of twenty years ago.
const COST_MIN: u32 = 10;
/// So many names are shown.
const SHOWN_MAX: usize = 5;
