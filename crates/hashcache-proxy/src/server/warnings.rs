//! What settings say that is most likely not meant, although the proxy can serve with it.
//!
//! Called at the start, at a reload, and by `hashcache config check`.

use std::collections::HashSet;
use std::fmt;

use tracing::warn;

use crate::clock::zone::Zone;
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
    /// Rules have times or quotas have days, and the system does not say in which time zone it is.
    NoZone,
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
            Self::NoZone => {
                f.write_str("there is no /etc/localtime: access rules and quotas have UTC times")
            }
        }
    }
}

/// What is most likely not meant in `settings`. Files that cannot be read are none of it:
/// [`super::preflight`] reports them.
pub fn warnings(settings: &Settings) -> Vec<Warning> {
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
    let no_zone = (settings.needs_zone() && !Zone::is_set()).then_some(Warning::NoZone);
    [unknown_users, cheap_hashes, no_zone]
        .into_iter()
        .flatten()
        .collect()
}

/// Logs the warnings about `settings`.
pub(super) fn log(settings: &Settings) {
    for warning in warnings(settings) {
        warn!(%warning, "settings may not do what they say");
    }
}

/// Lower costs than this are for devices of twenty years ago.
const COST_MIN: u32 = 10;
/// So many names are shown.
const SHOWN_MAX: usize = 5;
