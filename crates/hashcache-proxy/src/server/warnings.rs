//! Finds settings that are most likely a mistake, although the proxy can serve with them.
//!
//! Called at the start, at a reload, and by `hashcache config check`.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

use hashcache_access::lists;
use hashcache_access::quota::{LimitPer, LimitSettings};
use hashcache_access::users::users_of;
use hashcache_base::clock::zone::Zone;
use hashcache_upstream::peer::PeerSettings;
use tracing::warn;

use crate::settings::Settings;

/// A probable mistake in the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// Access rules name users that are in no `htpasswd` file, so these rules never apply to them.
    UnknownUsers {
        /// The first names in alphabetical order.
        first: Vec<String>,
        /// How many further names.
        others: usize,
    },
    /// The passwords of users can be guessed quickly if someone has the file.
    CheapHashes {
        /// Users with such a hash.
        users: usize,
    },
    /// Users have hashes that are not bcrypt, so they cannot log in.
    ForeignHashes {
        /// The first names in alphabetical order.
        first: Vec<String>,
        /// How many further names.
        others: usize,
    },
    /// Rules have times or quotas have days, but the system has no time zone.
    NoZone,
    /// No access rule names these limits, so they limit nothing.
    UnusedLimits(Vec<String>),
    /// These limits are for users, but no access rule requires a login, so they count by client.
    LimitsWithoutUsers(Vec<String>),
    /// These peers may remove URLs by HTCP CLR and have no key, so any host that forges the address
    /// of such a peer may do so too.
    UnsignedClears(Vec<String>),
    /// A file of a list looks like a broken download.
    DoubtfulList {
        /// The name of the list.
        list: String,
        /// The file.
        path: PathBuf,
        /// Entries in the file.
        entries: usize,
        /// Lines that are not entries.
        bad_lines: u64,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownUsers { first, others } => {
                f.write_str("access rules name users that no file of `htpasswd` has: ")?;
                write_names(f, first, *others)
            }
            Self::ForeignHashes { first, others } => {
                f.write_str("users whose hashes are not bcrypt cannot log in: ")?;
                write_names(f, first, *others)
            }
            Self::CheapHashes { users } => write!(
                f,
                "{users} passwords have a bcrypt cost below {COST_MIN}: use `htpasswd -B -C 10`"
            ),
            Self::NoZone => {
                f.write_str("there is no /etc/localtime: access rules and quotas have UTC times")
            }
            Self::UnusedLimits(names) => write!(
                f,
                "no access rule names the limits `{}`: they limit nothing",
                names.join("`, `")
            ),
            Self::LimitsWithoutUsers(names) => write!(
                f,
                "no access rule asks for users: the limits `{}` are for each client instead",
                names.join("`, `")
            ),
            Self::UnsignedClears(names) => write!(
                f,
                "`clear` of the peers `{}` without `htcp_key_file`: anyone who forges the address \
                 of a peer can remove URLs",
                names.join("`, `")
            ),
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

/// Returns the probable mistakes in `settings`. Files that cannot be read are not reported here:
/// [`super::preflight`] reports them. Reads all lists of hosts.
pub fn warnings(settings: &Settings) -> Vec<Warning> {
    let doubtful = lists::doubtful(&settings.reloadable.lists).map(|file| Warning::DoubtfulList {
        list: file.list.to_owned(),
        path: file.path.to_owned(),
        entries: file.entries,
        bad_lines: file.bad_lines,
    });
    let mut all = warnings_of_rules(settings);
    all.extend(doubtful);
    all
}

/// Returns the first of these names in alphabetical order, and the number of others. `None` without
/// names.
fn first_names(mut names: Vec<String>) -> Option<(Vec<String>, usize)> {
    names.sort_unstable();
    names.dedup();
    let others = names.len().saturating_sub(SHOWN_MAX);
    names.truncate(SHOWN_MAX);
    (!names.is_empty()).then_some((names, others))
}

fn write_names(f: &mut fmt::Formatter<'_>, first: &[String], others: usize) -> fmt::Result {
    write!(f, "`{}`", first.join("`, `"))?;
    match others {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}

/// As [`warnings`], without the files of lists.
fn warnings_of_rules(settings: &Settings) -> Vec<Warning> {
    let (mut known, mut foreign, mut cheap) = (HashSet::new(), Vec::new(), 0);
    let files = settings
        .reloadable
        .htpasswd
        .iter()
        .filter_map(|path| users_of(path).ok());
    for file in files {
        foreign.extend(file.foreign);
        for (user, cost) in file.users {
            cheap += usize::from(cost < COST_MIN);
            known.insert(user);
        }
    }
    let names = settings.reloadable.access.user_names();
    known.extend(foreign.iter().cloned());
    let unknown = names.filter(|name| !known.contains(*name));
    let unknown = first_names(unknown.map(str::to_owned).collect());
    let unknown_users = unknown.map(|(first, others)| Warning::UnknownUsers { first, others });
    let foreign = first_names(foreign.into_iter().map(String::from).collect());
    let foreign = foreign.map(|(first, others)| Warning::ForeignHashes { first, others });
    let cheap_hashes = (cheap > 0).then_some(Warning::CheapHashes { users: cheap });
    let no_zone = (settings.needs_zone() && !Zone::is_set()).then_some(Warning::NoZone);
    [
        unknown_users,
        foreign,
        cheap_hashes,
        no_zone,
        unsigned_clears(settings),
    ]
    .into_iter()
    .chain(warnings_of_limits(settings))
    .flatten()
    .collect()
}

fn unsigned_clears(settings: &Settings) -> Option<Warning> {
    let is_unsigned = |peer: &&PeerSettings| {
        let htcp = peer.htcp.as_ref();
        htcp.is_some_and(|htcp| htcp.obeys_clear && htcp.key_file.is_none())
    };
    let peers = settings.reloadable.peers.iter().filter(is_unsigned);
    let names: Vec<String> = peers.map(|peer| peer.name.clone()).collect();
    (!names.is_empty()).then_some(Warning::UnsignedClears(names))
}

fn warnings_of_limits(settings: &Settings) -> [Option<Warning>; 2] {
    let named = settings.reloadable.access.named_limits();
    let numbered = settings.reloadable.access_limits.iter().enumerate();
    let (named, unused): (Vec<_>, Vec<_>) =
        numbered.partition(|(number, _)| named >> number & 1 == 1);
    let names = |limits: Vec<(usize, &LimitSettings)>| -> Vec<String> {
        let limits = limits.iter();
        limits.map(|(_, limit)| limit.name.clone()).collect()
    };
    let counts_by_client = |limit: &LimitSettings| {
        limit.per == LimitPer::User && !settings.reloadable.access.need_users()
    };
    let of_users = named
        .into_iter()
        .filter(|(_, limit)| counts_by_client(limit));
    let (unused, of_users) = (names(unused), names(of_users.collect()));
    [
        (!unused.is_empty()).then_some(Warning::UnusedLimits(unused)),
        (!of_users.is_empty()).then_some(Warning::LimitsWithoutUsers(of_users)),
    ]
}

/// Logs the warnings about `settings`; lists are judged when they are loaded.
pub(super) fn log(settings: &Settings) {
    for warning in warnings_of_rules(settings) {
        warn!(%warning, "settings may not do what they say");
    }
}

/// Lower bcrypt costs are for devices of twenty years ago.
const COST_MIN: u32 = 10;
/// Names that a warning shows.
const SHOWN_MAX: usize = 5;
