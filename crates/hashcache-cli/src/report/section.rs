//! The lines of a report about sites, users, networks or clients.

use clap::ValueEnum;
use hashcache_proxy::{By, Counts, HistoryName, Table};
use serde_json::{Map, Value};

use super::counts_json;
use super::networks::Networks;

/// The subject of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Section {
    Site,
    User,
    Network,
    Client,
}

impl Section {
    /// All sections, in the order in which they are shown.
    pub(super) const ALL: [Self; 4] = [Self::Site, Self::User, Self::Network, Self::Client];

    fn by(self) -> By {
        match self {
            Self::Site => By::Site,
            Self::User => By::User,
            Self::Network => By::Network,
            Self::Client => By::Client,
        }
    }

    /// The heading of the column of names.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Site => "site",
            Self::User => "user",
            Self::Network => "network",
            Self::Client => "client",
        }
    }

    /// The reason why there may be no lines.
    pub(super) fn absence(self) -> &'static str {
        match self {
            Self::Site | Self::Network => "There were no requests.",
            Self::User => "Nobody has logged in, or log_anonymize leaves names out.",
            Self::Client => "There were no requests, or log_anonymize leaves addresses out.",
        }
    }
}

/// The largest names, and the counts without a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) named: Vec<(String, Counts)>,
    /// The sum for all other names.
    rest: Counts,
    /// For users: requests without a login.
    no_user: Counts,
}

impl Lines {
    /// The lines in a section; more lines if the user selected a single section.
    pub(super) fn new(
        section: Section,
        wanted: Option<Section>,
        tables: &[Table<HistoryName>; By::ALL.len()],
        networks: &Networks,
    ) -> Self {
        let most = match wanted {
            Some(_) => NAMES_WANTED,
            None => NAMES_SHOWN,
        };
        let table = &tables[section.by() as usize];
        let (named, rest) = match section {
            Section::Network => networks.name(table).top(most),
            _ => named(table.top(most)),
        };
        // Each request is in the network table.
        let all = tables[By::Network as usize].sum();
        let no_user = match section {
            Section::User if !table.is_empty() => all.without(&table.sum()),
            _ => Counts::default(),
        };
        Self {
            named,
            rest,
            no_user,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.named.is_empty() && self.unnamed().next().is_none()
    }

    /// The counts without a name.
    pub(super) fn unnamed(&self) -> impl Iterator<Item = (&'static str, &Counts)> {
        let unnamed = [("(others)", &self.rest), ("(no login)", &self.no_user)];
        let unnamed = unnamed.into_iter();
        unnamed.filter(|(_, counts)| **counts != Counts::default())
    }

    /// The entries in the JSON object, for example `sites` and `other_sites`.
    pub(super) fn to_json(&self, section: Section) -> Map<String, Value> {
        let lines = self.named.iter().map(|(name, counts)| {
            let mut line = counts_json(counts);
            line.insert("name".to_owned(), name.as_str().into());
            Value::Object(line)
        });
        let word = section.word();
        let mut entries = Map::new();
        entries.insert(format!("{word}s"), lines.collect());
        entries.insert(format!("other_{word}s"), counts_json(&self.rest).into());
        if section == Section::User {
            entries.insert("no_login".to_owned(), counts_json(&self.no_user).into());
        }
        entries
    }
}

fn named((lines, rest): (Vec<(HistoryName, Counts)>, Counts)) -> (Vec<(String, Counts)>, Counts) {
    let lines = lines.into_iter();
    let lines = lines.map(|(name, counts)| (name.as_str().to_owned(), counts));
    (lines.collect(), rest)
}

/// Names in a section if all sections are shown.
const NAMES_SHOWN: usize = 20;
/// Names in a section if only this section is shown.
const NAMES_WANTED: usize = 1000;
