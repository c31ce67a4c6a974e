//! Mirrors: package registries under paths of this proxy, for clients that do not trust our CA.
//!
//! `/mirror/NAME/…` stands for a base URL that the operator has configured. Responses are stored
//! unchanged. If a client would find links to the registry itself in a response, they are rewritten
//! into links to the mirror when it is served ([`Rewriting`]).
//!
//! ```text
//! path ─▶ Mirrors::route ─▶ Route (upstream target, whether links are in it)
//!                             │ request fields: `fields`      the ordinary life of a request
//!                             ▼                                           │
//!                 Links: our name for a target ◀── json, html ◀── content ◀┘
//! ```
//!
//! Called by `request/mirrored` in the proxy; knows no connection and no store.
//!
//! Invariant: only resources below a base, or below a place for files that the operator has listed
//! for it, are ever fetched; no part of a client's URL or of a response can name others. The host
//! of the base is not such a place by itself: it may serve more than the registry, and this proxy
//! may reach hosts that the client may not.
//! Cost: nothing for responses without links; otherwise one pass over the content each time it is
//! served.

mod content;
mod fields;
mod html;
mod json;
mod links;
mod setup;
mod upwards;

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use hashcache_base::sort::sort_by_key;
use hashcache_http::{Origin, Space, Target, TargetError};

pub use content::{REWRITING_BYTES, Rewriting};
pub use fields::{
    LinkRewriting, ask_plainly, coding, note_negotiation, rewrite_fields, take_out_of_request,
    translate_conditions,
};
pub use links::Links;
pub use setup::Setup;

/// The protocol of a registry, which decides about rewriting.
///
/// A new kind is a variant here, with its rows in `ALL`, `has_files`, `route` and `place`; the
/// cases in `setup`, `content`, `fields` and `json`; the name of its client in the proxy's `page`;
/// the texts in `keys/mirrors.rs` and `tables.rs` of the settings; and a row in
/// `docs/operate/mirrors.md`. Files that get no guessed lifetime are in `moving.toml` of
/// `hashcache-http`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MirrorKind {
    /// A Python package index with the simple API, HTML or JSON.
    Pypi,
    /// An npm registry.
    Npm,
    /// A sparse index for crates, with their downloads.
    Crates,
    /// An archive of Debian packages.
    Apt,
}

impl MirrorKind {
    /// All kinds with their names.
    pub const ALL: [(&'static str, MirrorKind); 4] = [
        ("pypi", Self::Pypi),
        ("npm", Self::Npm),
        ("crates", Self::Crates),
        ("apt", Self::Apt),
    ];

    /// The name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pypi => "pypi",
            Self::Npm => "npm",
            Self::Crates => "crates",
            Self::Apt => "apt",
        }
    }

    /// Returns true if the kind's index links to files on other hosts.
    fn has_files(self) -> bool {
        matches!(self, Self::Pypi | Self::Crates)
    }
}

impl fmt::Display for MirrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A registry and the mirror's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mirror {
    name: Box<str>,
    kind: MirrorKind,
    /// The registry's base URL: the path ends in `/`, and there is no query.
    base: Target,
    /// Places for files in addition to the base. Their paths end in `/`, and they have no query.
    files: Vec<Target>,
}

/// Why a mirror cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MirrorError {
    /// The name cannot be a path segment.
    #[error("`{name}` is not a name for a mirror")]
    Name {
        /// The name.
        name: String,
    },
    /// The URL is invalid.
    #[error("`{url}` is not a URL of a registry")]
    Url {
        /// The URL.
        url: String,
        /// The cause.
        source: TargetError,
    },
    /// The URL has a query, so no path can be appended.
    #[error("`{url}` has a query")]
    Query {
        /// The URL.
        url: String,
    },
    /// Hosts for files, but the kind's index links to no other hosts.
    #[error("an {kind} index does not link files on other hosts")]
    Files {
        /// The kind.
        kind: MirrorKind,
    },
}

impl Mirror {
    /// The registry at `url`, which is the URL for the registry's own clients: the index with the
    /// simple API, the npm registry, the sparse index without `sparse+`, the archive above `dists`.
    /// `files` are the places outside the registry for files that the index links to: an origin, or
    /// a path on an origin.
    ///
    /// # Errors
    /// See [`MirrorError`].
    pub fn new(
        name: &str,
        kind: MirrorKind,
        url: &str,
        files: Vec<Target>,
    ) -> Result<Self, MirrorError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !name.starts_with(|first: char| first.is_ascii_alphanumeric())
            || name.len() > NAME_BYTES_MAX
            || !name.bytes().all(fits)
        {
            return Err(MirrorError::Name {
                name: name.to_owned(),
            });
        }
        let named = Target::parse_url(url).map_err(|source| MirrorError::Url {
            url: url.to_owned(),
            source,
        })?;
        if !files.is_empty() && !kind.has_files() {
            return Err(MirrorError::Files { kind });
        }
        let base = directory(named)?;
        let files = files.into_iter().map(directory).collect::<Result<_, _>>()?;
        Ok(Self {
            name: name.into(),
            kind,
            base,
            files,
        })
    }

    /// The path segment after `/mirror/`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kind of registry.
    pub fn kind(&self) -> MirrorKind {
        self.kind
    }

    /// The registry's URL.
    pub fn url(&self) -> String {
        self.base.to_string()
    }

    /// The places for files outside the registry.
    pub fn files(&self) -> &[Target] {
        &self.files
    }

    /// The route for the rest of a path; `None` if it names no resource in the registry.
    fn route(&self, rest: &str) -> Option<Route> {
        let path = rest.split('?').next().unwrap_or_default();
        let below = |rest: &str| format!("{}{rest}", self.base.path());
        let (origin, path_and_query) = match self.kind {
            MirrorKind::Npm | MirrorKind::Apt => (None, below(rest)),
            MirrorKind::Pypi => match rest.strip_prefix(SIMPLE) {
                Some(rest) => (None, below(rest)),
                None => self.file(rest)?,
            },
            MirrorKind::Crates => match self.file(rest) {
                Some(file) => file,
                None if rest.starts_with(FILES) => return None,
                None => (None, below(rest)),
            },
        };
        let (scheme, authority) = match origin {
            Some(origin) => (origin.scheme, origin.authority),
            None => (self.base.scheme, self.base.authority.clone()),
        };
        let target = Target::new(scheme, authority, &path_and_query).ok()?;
        let links = match self.kind {
            MirrorKind::Pypi => path.starts_with(SIMPLE),
            // A segment `-` starts files and APIs; all other paths describe packages.
            MirrorKind::Npm => !path.starts_with("-/") && !path.contains("/-/"),
            MirrorKind::Crates => path == "config.json",
            MirrorKind::Apt => false,
        };
        Some(Route { target, links })
    }

    /// The origin and the path in `files/<host>/<path>`, if the place is on the list.
    fn file(&self, rest: &str) -> Option<(Option<Origin>, String)> {
        let (host, _) = rest.strip_prefix(FILES)?.split_once('/')?;
        let path = &rest[FILES.len() + host.len()..];
        // pip writes the colon of a port as %3A.
        let named = unescaped_host(host);
        let is_here = |place: &&Target| host_id(place) == named && path.starts_with(place.path());
        let place = self.places().find(is_here)?;
        let origin = Origin {
            scheme: place.scheme,
            authority: place.authority.clone(),
        };
        Some((Some(origin), path.to_owned()))
    }

    /// The places where files may be.
    fn places(&self) -> impl Iterator<Item = &Target> {
        std::iter::once(&self.base).chain(&self.files)
    }

    /// The path of `target` below this mirror; `None` if the mirror has no such resource.
    fn place(&self, target: &Target) -> Option<String> {
        let is_own = target.same_origin(&self.base);
        let below = target.path_and_query.strip_prefix(self.base.path());
        let below = below.filter(|_| is_own);
        match self.kind {
            MirrorKind::Npm | MirrorKind::Apt => below.map(str::to_owned),
            MirrorKind::Pypi => match below {
                Some(rest) => Some(format!("{SIMPLE}{rest}")),
                None => self.place_of_file(target),
            },
            MirrorKind::Crates => match below.filter(|rest| !rest.starts_with(FILES)) {
                Some(rest) => Some(rest.to_owned()),
                None => self.place_of_file(target),
            },
        }
    }

    fn place_of_file(&self, target: &Target) -> Option<String> {
        let is_here = |place: &&Target| {
            place.same_origin(target) && target.path_and_query.starts_with(place.path())
        };
        let host = host_id(self.places().find(is_here)?);
        Some(format!("{FILES}{host}{}", target.path_and_query))
    }

    /// A hash over everything that affects rewritten responses under `base`. Hashes are only
    /// compared with each other, so the algorithm may change.
    fn fingerprint(&self, base: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (REWRITING_VERSION, self, base).hash(&mut hasher);
        hasher.finish()
    }
}

/// The path segment for files on this origin.
fn host_id(place: &Target) -> String {
    place.authority.host_field(place.scheme)
}

/// A URL as a directory, to which paths can be appended.
fn directory(named: Target) -> Result<Target, MirrorError> {
    if named.scheme.needs_gateway() {
        return Err(MirrorError::Url {
            url: named.to_string(),
            source: TargetError::Scheme,
        });
    }
    if named.query().is_some() {
        let url = named.to_string();
        return Err(MirrorError::Query { url });
    }
    let path = match named.path().strip_suffix('/') {
        Some(_) => named.path().to_owned(),
        None => format!("{}/", named.path()),
    };
    Ok(Target {
        path_and_query: path.into(),
        ..named
    })
}

/// A host in lower case, with percent-encoded colons and brackets decoded.
fn unescaped_host(host: &str) -> String {
    let mut host = host.to_ascii_lowercase();
    for (escaped, byte) in [("%3a", ":"), ("%5b", "["), ("%5d", "]")] {
        host = host.replace(escaped, byte);
    }
    host
}

/// The resource to which a mirror URL leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The resource to fetch.
    pub target: Target,
    /// True if the response contains links to the registry.
    pub links: bool,
}

/// All mirrors of this proxy.
#[derive(Clone, Debug, Default)]
pub struct Mirrors {
    /// With the numbers of their key spaces.
    all: Vec<(Mirror, u16)>,
}

/// Result of resolving a path below `/mirror/`.
pub enum MirrorLookup {
    /// A resource in a mirror, in this key space.
    To(Mirror, Space, Route),
    /// The mirror has no such resource.
    Nowhere,
    /// The path might leave the mirror: servers interpret it differently.
    Refused,
    /// There is no mirror with this name.
    NoMirror,
}

impl Mirrors {
    /// The mirrors in a configuration.
    pub fn new(mirrors: &[Mirror]) -> Self {
        let mut numbered = Vec::with_capacity(mirrors.len());
        let mut taken = std::collections::BTreeSet::new();
        let mut sorted: Vec<&Mirror> = mirrors.iter().collect();
        sort_by_key(&mut sorted, |mirror| &mirror.name);
        for mirror in sorted {
            // By name and not by position: a mirror must keep its stored responses when another
            // mirror is added before it.
            let mut number = name_number(&mirror.name);
            while !taken.insert(number) {
                number = number.wrapping_add(1);
            }
            numbered.push((mirror.clone(), number));
        }
        Self { all: numbered }
    }

    /// All mirrors, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = &Mirror> {
        self.all.iter().map(|(mirror, _)| mirror)
    }

    /// Resolves a path and query; `None` if it is not below `/mirror/`.
    pub fn resolve(&self, path_and_query: &str) -> Option<MirrorLookup> {
        let below = path_and_query.strip_prefix(PREFIX)?;
        let end = below.find(['/', '?']).unwrap_or(below.len());
        let (name, rest) = below.split_at(end);
        let Some((mirror, number)) = self.all.iter().find(|(mirror, _)| *mirror.name == *name)
        else {
            return Some(MirrorLookup::NoMirror);
        };
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        if upwards::may_lead_upwards(rest.split('?').next().unwrap_or_default()) {
            return Some(MirrorLookup::Refused);
        }
        Some(match mirror.route(rest) {
            Some(route) => MirrorLookup::To(mirror.clone(), Space::Mirror(*number), route),
            None => MirrorLookup::Nowhere,
        })
    }
}

/// FNV-1a, folded. The number is a part of stored keys, so the algorithm must not change.
fn name_number(name: &str) -> u16 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let [a, b, c, d] = hash.to_le_bytes();
    u16::from_le_bytes([a ^ c, b ^ d])
}

/// The path of all mirrors.
const PREFIX: &str = "/mirror/";
/// The path of the index in a `pypi` mirror.
const SIMPLE: &str = "simple/";
/// The path for files from listed hosts in a mirror. No path in a sparse index has five letters
/// before the first slash.
const FILES: &str = "files/";
const NAME_BYTES_MAX: usize = 64;
/// Maximum length of links and tags. Requests for longer links are refused.
const LINK_BYTES_MAX: usize = 16 << 10;
/// Raised when rewriting changes, so that clients do not keep responses from an older version.
const REWRITING_VERSION: u8 = 1;

#[cfg(test)]
mod tests;
