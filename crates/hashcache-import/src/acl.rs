//! Squid's `acl` lines, as conditions for access rules.
//!
//! Called by `mod` before the directives that name an `acl`; `acl_values` reads values. Each `acl`
//! has [`Bounds`]: the requests that certainly match, and the requests that may match.
//!
//! Invariants: an `acl` refers only to earlier ones, as in Squid, so there are no circles; values,
//! alternatives and files are bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::acl_values::{self as values, Parts, Users};
use super::address::Addresses;
use super::bounds::{Bounds, is_everything};
use super::condition::{Condition, Destinations};
use super::lines::{Line, Word};
use super::source;
use super::work::Work;

/// An `acl`.
#[derive(Debug)]
pub struct Acl {
    /// The type.
    pub kind: String,
    /// The requests that match.
    bounds: Bounds,
    /// The networks in a `dst`: names that resolve to them match too.
    pub networks: Option<Addresses>,
    /// The ordered members, if this is an `any-of`.
    members: Vec<String>,
    /// Squid requires a login when it evaluates the `acl`, or a member of it.
    asks_for_login: bool,
}

/// A host list in a file.
#[derive(Debug)]
pub struct HostFile {
    /// Name in `[[list]]`.
    pub name: String,
    pub path: PathBuf,
}

/// All `acl`s in a configuration.
#[derive(Debug)]
pub struct Acls {
    by_name: BTreeMap<String, Acl>,
    pub host_files: Vec<HostFile>,
    /// Addresses that no client can reach, regardless of the access rules.
    closed: Addresses,
    /// All users that can log in; `None`: no user can log in.
    pub everyone: Option<Rc<BTreeSet<String>>>,
    /// Values that all `acl`s together may still have.
    values_left: usize,
    /// Files with values that may still be read.
    files_left: usize,
    /// Work limit for combinations of conditions.
    pub work: Work,
}

impl Acls {
    /// Reads `lines`; all must be `acl`s.
    pub fn new(lines: &[Line], users: &Users) -> Self {
        let mut acls = Self {
            by_name: BTreeMap::new(),
            host_files: Vec::new(),
            closed: Addresses::default(),
            everyone: users.as_ref().ok().cloned(),
            values_left: ALL_VALUES_MAX,
            files_left: FILES_MAX,
            work: Work::new(),
        };
        acls.add_built_in();
        let mut written = Vec::<(String, Vec<&Line>)>::new();
        let mut numbers = BTreeMap::<String, usize>::new();
        for line in lines {
            let name = line.arg(0).to_ascii_lowercase();
            let number = *numbers.entry(name.clone()).or_insert_with(|| {
                written.push((name, Vec::new()));
                written.len() - 1
            });
            written[number].1.push(line);
        }
        for (name, lines) in written {
            let is_of = |kind: &str| lines.iter().all(|line| line.arg(1) == kind);
            // Old configurations also define the built-in `acl`s.
            let built_in = match acls.by_name.get(&name) {
                Some(known) if matches!(&*known.kind, MANAGER | TO_LOCAL) => {
                    let more = acls.more_local(&name, &lines);
                    if let (Some(more), Some(acl)) = (more, acls.by_name.get_mut(&name)) {
                        acl.networks = acl.networks.as_ref().map(|it| it.union(&more));
                    }
                    continue;
                }
                // Squid refuses lines with another type: they change nothing.
                Some(known) if !is_of(&known.kind) => continue,
                Some(known) => Some(known.bounds.clone()),
                None => None,
            };
            let mut acl = acls.read(&lines, users);
            if let Some(known) = built_in {
                acl.bounds = extended(known, acl.bounds, &acls.work);
            }
            acls.by_name.insert(name, acl);
        }
        acls
    }

    /// The `acl` with this name; Squid compares names without case.
    pub fn get(&self, name: &str) -> Option<&Acl> {
        self.by_name.get(&name.to_ascii_lowercase())
    }

    /// Notes addresses that no client can reach.
    pub fn close(&mut self, networks: &Addresses) {
        self.closed = self.closed.union(networks);
    }

    /// Adds the `acl`s that Squid knows without a line.
    fn add_built_in(&mut self) {
        let clients = |networks: &[&str]| Condition::of_clients(Addresses::of_networks(networks));
        let here = ["127.0.0.0/8", "0.0.0.0/32", "::1", "::"];
        let link = ["169.254.0.0/16", "fe80::/10"];
        for (name, kind, conditions, networks) in [
            ("all", "src", vec![Condition::default()], None),
            (
                "localhost",
                "src",
                vec![clients(&["127.0.0.1", "::1"])],
                None,
            ),
            ("CONNECT", "method", vec![Condition::of_connect()], None),
            // The proxy receives no requests for the cache manager.
            (MANAGER, MANAGER, Vec::new(), None),
            ("to_localhost", TO_LOCAL, Vec::new(), Some(&here[..])),
            ("to_linklocal", TO_LOCAL, Vec::new(), Some(&link[..])),
        ] {
            let acl = Acl {
                kind: kind.to_owned(),
                bounds: Bounds::exact(conditions),
                networks: networks.map(Addresses::of_networks),
                members: Vec::new(),
                asks_for_login: false,
            };
            self.by_name.insert(name.to_ascii_lowercase(), acl);
        }
    }

    /// The networks that lines add to a built-in `acl` for destinations.
    fn more_local(&mut self, name: &str, lines: &[&Line]) -> Option<Addresses> {
        let is_dst = lines.iter().all(|line| line.arg(1) == "dst");
        let known = self.get(name).is_some_and(|acl| acl.networks.is_some());
        let values = (is_dst && known).then(|| self.values(lines))?.ok()?;
        Some(values::addresses(&values).good)
    }

    /// Reads all lines for an `acl`.
    fn read(&mut self, lines: &[&Line], users: &Users) -> Acl {
        let kind = lines[0].arg(1).to_owned();
        let (bounds, networks) = if lines.iter().all(|line| line.arg(1) == kind) {
            self.bounds_of(&kind, lines[0].arg(0), lines, users)
        } else {
            (Bounds::unknown("its lines have different types"), None)
        };
        let members = match &*kind {
            "any-of" => words(lines).map(|word| word.text.clone()).collect(),
            _ => Vec::new(),
        };
        let asks_for_login = match &*kind {
            "any-of" | "all-of" => words(lines).any(|word| self.asks_for_login(&word.text)),
            _ => LOGIN_KINDS.contains(&&*kind),
        };
        Acl {
            kind,
            bounds,
            networks,
            members,
            asks_for_login,
        }
    }

    /// Returns true if Squid requires a login when it evaluates the `acl` that `text` names, with
    /// or without `!`.
    pub fn asks_for_login(&self, text: &str) -> bool {
        let name = text.strip_prefix('!').unwrap_or(text);
        self.get(name).is_some_and(|acl| acl.asks_for_login)
    }

    fn bounds_of(
        &mut self,
        kind: &str,
        name: &str,
        lines: &[&Line],
        users: &Users,
    ) -> (Bounds, Option<Addresses>) {
        match kind {
            "any-of" => return (self.any_of(lines), None),
            "all-of" => return (self.all_of(lines), None),
            "time" => return (values::times(lines), None),
            "dstdomain" => return (self.dstdomain(name, lines), None),
            _ => {}
        }
        let reason = UNSAYABLE.iter().find(|(name, _)| *name == kind);
        if let Some((_, reason)) = reason
            && !["url_regex", "proto"].contains(&kind)
        {
            return (Bounds::unknown(*reason), None);
        }
        let values = match self.values(lines) {
            Ok(values) => values,
            Err(reason) => return (Bounds::unknown(reason), None),
        };
        if kind == "dst" {
            let Parts { good, bad } = values::addresses(&values);
            let bounds = match &bad {
                None if good == Addresses::all() => Bounds::exact(vec![Condition::default()]),
                _ => Bounds::at_least(
                    vec![of_addresses(good.clone())],
                    Some(bad.clone().unwrap_or_else(|| DST.to_owned())),
                ),
            };
            // If a `dst` has names, its networks are unknown.
            return (bounds, bad.is_none().then_some(good));
        }
        let ignores_case = lines.iter().any(|line| {
            let options = line.args_from(2).iter();
            options.into_iter().any(|word| word.text == "-i")
        });
        let bounds = match kind {
            "src" => {
                let Parts { good, bad } = values::addresses(&values);
                Bounds::at_least(vec![Condition::of_clients(good)], bad)
            }
            "port" => {
                let Parts { good, bad } = values::ports(&values);
                Bounds::at_least(vec![Condition::of_ports(good)], bad)
            }
            "method" => {
                let Parts { good, bad } = values::methods(&values);
                let condition = Condition {
                    methods: Some(Rc::new(good)),
                    ..Condition::default()
                };
                Bounds::at_least(vec![condition], bad)
            }
            "proxy_auth" => match values::named_users(&values, ignores_case, users) {
                Ok(users) => Bounds::exact(vec![Condition {
                    users: Some(users),
                    ..Condition::default()
                }]),
                Err(reason) => Bounds::unknown(reason),
            },
            "dstdom_regex" => values::host_regexes(&values, ignores_case),
            "url_regex" => values::url_regexes(&values, URLS),
            "proto" => values::schemes(&values),
            _ => Bounds::unknown(format!(
                "there is no condition like `{kind}` in access rules"
            )),
        };
        (without_empty(bounds), None)
    }

    /// Reads `dstdomain`: hosts on the lines are an alternative, hosts in files another.
    fn dstdomain(&mut self, name: &str, lines: &[&Line]) -> Bounds {
        let (mut hosts, mut lists) = (Destinations::default(), BTreeSet::new());
        let mut why = None;
        for word in words(lines) {
            match file_of(word) {
                Some(path) => match self.host_file(name, path) {
                    Ok(list) => drop(lists.insert(list)),
                    Err(reason) => why = Some(reason),
                },
                // A text that is no host matches no host in Squid either.
                None => values::add_host(&mut hosts, &word.text),
            }
            let taken = self.take_values(1);
            if taken.is_err() || hosts.names.len() > VALUES_MAX {
                return Bounds::unknown(taken.err().unwrap_or_else(too_many));
            }
        }
        if hosts.addresses.network_count().is_none() {
            return Bounds::unknown(values::TOO_MANY_NETWORKS);
        }
        let hosts = Condition::of_hosts(hosts);
        let lists = Condition {
            lists: Some(Rc::new(lists)),
            ..Condition::default()
        };
        without_empty(Bounds::at_least(vec![hosts, lists], why))
    }

    /// Returns all values in an `acl`, including values in files.
    fn values(&mut self, lines: &[&Line]) -> Result<Vec<String>, String> {
        let mut values = Vec::new();
        for word in words(lines) {
            let before = values.len();
            match file_of(word) {
                Some(path) => {
                    self.files_left = self.files_left.checked_sub(1).ok_or_else(too_many)?;
                    let read = source::values_of(path);
                    let error = |error| format!("cannot read {}: {error}", path.display());
                    values.extend(read.map_err(error)?);
                }
                None => values.push(word.text.clone()),
            }
            if values.len() > VALUES_MAX {
                return Err(too_many());
            }
            self.take_values(values.len() - before)?;
        }
        Ok(values)
    }

    fn take_values(&mut self, count: usize) -> Result<(), String> {
        self.values_left = self
            .values_left
            .checked_sub(count)
            .ok_or_else(|| format!("all acls together have more than {ALL_VALUES_MAX} values"))?;
        Ok(())
    }

    /// Returns the list name for a file.
    fn host_file(&mut self, acl: &str, path: &Path) -> Result<String, String> {
        if !path.is_file() {
            return Err(format!(
                "the file {} is not there to be read",
                path.display()
            ));
        }
        if let Some(known) = self.host_files.iter().find(|it| it.path == path) {
            return Ok(known.name.clone());
        }
        if self.host_files.len() == LISTS_MAX {
            return Err(format!("more than {LISTS_MAX} files with hosts"));
        }
        let taken = |name: &String| self.host_files.iter().any(|it| it.name == *name);
        let plain = name_like(acl);
        let mut numbered = (2..).map(|number| format!("{plain}-{number}"));
        let name = if taken(&plain) {
            numbered.find(|it| !taken(it)).unwrap_or_default()
        } else {
            plain.clone()
        };
        self.host_files.push(HostFile {
            name: name.clone(),
            path: path.to_owned(),
        });
        Ok(name)
    }

    /// Returns the requests that match any member.
    fn any_of(&self, lines: &[&Line]) -> Bounds {
        let mut all = Bounds::never();
        for word in words(lines) {
            let member = self.literal_bounds(&word.text);
            all.sure.extend(member.sure);
            all.may.extend(member.may);
            all.why = all.why.or(member.why);
            if all.may.len().max(all.sure.len()) > ALTERNATIVES_MAX {
                return Bounds::unknown(too_many());
            }
        }
        all
    }

    /// Returns, for each line, the requests that match all its members.
    fn all_of(&self, lines: &[&Line]) -> Bounds {
        let mut all = Bounds::never();
        for line in lines {
            let mut of_line = Bounds::exact(vec![Condition::default()]);
            for word in line.args_from(2) {
                self.narrow(&mut of_line, self.literal_bounds(&word.text));
            }
            all.sure.extend(of_line.sure);
            all.may.extend(of_line.may);
            all.why = all.why.or(of_line.why);
            if all.may.len().max(all.sure.len()) > ALTERNATIVES_MAX {
                return Bounds::unknown(too_many());
            }
        }
        all
    }

    /// Removes the requests that `member` does not match from `all`. If their product cannot be
    /// written, fewer requests are sure, and more may match.
    pub fn narrow(&self, all: &mut Bounds, member: Bounds) {
        all.why = all.why.take().or(member.why);
        match self.product(&all.sure, &member.sure) {
            Ok(both) => all.sure = both,
            Err(reason) => {
                all.sure = Vec::new();
                all.why.get_or_insert(reason);
            }
        }
        match self.product(&all.may, &member.may) {
            Ok(both) => all.may = both,
            Err(reason) => drop(all.why.get_or_insert(reason)),
        }
    }

    /// Returns the `acl` called `name` and its bounds.
    ///
    /// # Errors
    /// There is no such `acl`, or no work is left.
    pub fn named(&self, name: &str) -> Result<(&Acl, Bounds), String> {
        let acl = self
            .get(name)
            .ok_or_else(|| format!("there is no acl `{name}`"))?;
        if let Some(networks) = &acl.networks {
            // There are no requests to an address that no client can reach.
            if self.closed.covers(networks) {
                return Ok((acl, Bounds::never()));
            }
            if self.closed.union(networks) == Addresses::all() {
                return Ok((acl, Bounds::exact(vec![Condition::default()])));
            }
            if acl.kind == TO_LOCAL {
                let sure = vec![of_addresses(networks.clone())];
                return Ok((acl, Bounds::at_least(sure, Some(DST.to_owned()))));
            }
        }
        self.work
            .spend(acl.bounds.sure.len() + acl.bounds.may.len())?;
        let mut bounds = acl.bounds.clone();
        bounds.why = bounds.why.map(|why| format!("acl {name}: {why}"));
        Ok((acl, bounds))
    }

    /// The bounds for an `acl`, or for `!` with an `acl`.
    pub fn literal_bounds(&self, text: &str) -> Bounds {
        let name = text.strip_prefix('!').unwrap_or(text);
        let bounds = match self.named(name) {
            Ok((_, bounds)) => bounds,
            Err(reason) => return Bounds::unknown(reason),
        };
        if name == text {
            bounds
        } else {
            self.opposite(&bounds)
        }
    }

    /// For an `acl`, or `!` with an `acl`: the first alternatives that Squid finds to match before
    /// it evaluates the user.
    pub fn before_login(&self, text: &str) -> Vec<Condition> {
        let members = self.get(text).map_or(&[][..], |acl| &acl.members);
        let bounds = members.iter().map(|text| self.literal_bounds(text));
        let without = bounds.take_while(|it| !it.need_user());
        without.flat_map(|it| it.sure).collect()
    }

    /// The bounds for the requests that do not match.
    pub fn opposite(&self, bounds: &Bounds) -> Bounds {
        match (self.none_of(&bounds.may), self.none_of(&bounds.sure)) {
            (Ok(sure), Ok(may)) => Bounds {
                sure,
                may,
                why: bounds.why.clone(),
            },
            (Err(reason), _) | (_, Err(reason)) => Bounds::unknown(reason),
        }
    }

    /// Returns the requests that an `acl`, or `!` with an `acl`, matches.
    ///
    /// # Errors
    /// The requests are not known exactly.
    pub fn literal(&self, text: &str) -> Result<Vec<Condition>, String> {
        let bounds = self.literal_bounds(text);
        bounds.known().map(<[_]>::to_vec).map_err(str::to_owned)
    }

    /// The requests that match a condition in `a` and a condition in `b`.
    pub fn product(&self, a: &[Condition], b: &[Condition]) -> Result<Vec<Condition>, String> {
        if a.len() * b.len() > ALTERNATIVES_MAX {
            return Err(too_many());
        }
        let pairs = a
            .iter()
            .flat_map(|a| b.iter().map(move |b| a.and(b, &self.work)));
        pairs.filter_map(Result::transpose).collect()
    }

    /// The requests that match no condition in `alternatives`, as alternatives.
    fn none_of(&self, alternatives: &[Condition]) -> Result<Vec<Condition>, String> {
        let everything = vec![Condition::default()];
        alternatives
            .iter()
            .try_fold(everything, |none, it| self.product(&none, &it.opposite()))
    }
}

/// Combines a built-in `acl` with the lines for the same name: Squid adds them to it.
fn extended(known: Bounds, more: Bounds, work: &Work) -> Bounds {
    let joined = |mut known: Vec<Condition>, more: Vec<Condition>| {
        for condition in more {
            if !known.iter().any(|it| it.covers(&condition, work)) {
                known.push(condition);
            }
        }
        known
    };
    // An `acl` that matches every request does not change, whatever values the lines have.
    let why = if is_everything(&known.sure) {
        None
    } else {
        known.why.or(more.why)
    };
    Bounds {
        sure: joined(known.sure, more.sure),
        may: joined(known.may, more.may),
        why,
    }
}

/// Requests with a URL that contains an address in this set.
fn of_addresses(addresses: Addresses) -> Condition {
    Condition::of_hosts(Destinations {
        addresses,
        ..Destinations::default()
    })
}

/// Removes conditions that match no request.
fn without_empty(mut bounds: Bounds) -> Bounds {
    bounds.sure.retain(|it| !it.is_never());
    bounds.may.retain(|it| !it.is_never());
    bounds
}

/// Makes a name that is valid in `[networks]` and `[[list]]`.
pub fn name_like(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let name: String = text
        .chars()
        .map(|c| if is_part(c) { c } else { '-' })
        .take(64)
        .collect();
    let is_free = !["all", "local"].contains(&&*name);
    if is_free && name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        name
    } else {
        format!("acl-{name}")
    }
}

/// The values in an `acl`, without options such as `-i`.
fn words<'a>(lines: &'a [&'a Line]) -> impl Iterator<Item = &'a Word> {
    let words = lines.iter().flat_map(|line| line.args_from(2));
    words.filter(|word| !OPTIONS.contains(&&*word.text))
}

/// The file that a word names: in quotes, or as `parameters("…")`. A path that is not absolute is
/// most likely not found: Squid resolves it in the directory where Squid was started.
fn file_of(word: &Word) -> Option<&Path> {
    let text = &*word.text;
    let parameters = text.strip_prefix("parameters(\"");
    let file = if word.is_quoted {
        Some(text)
    } else {
        parameters
            .and_then(|it| it.strip_suffix("\")"))
            .or_else(|| text.strip_prefix('\'').map(|it| it.trim_end_matches('\'')))
    };
    file.map(Path::new)
}

fn too_many() -> String {
    format!("more than {VALUES_MAX} values, or {ALTERNATIVES_MAX} alternatives")
}

/// Type for the built-in `acl` about cache manager requests.
pub const MANAGER: &str = "manager";
/// Type for the built-in `acl`s about addresses on this machine and link.
pub const TO_LOCAL: &str = "to_local";
/// Reason why a line without an `acl` is left out.
pub const NO_ACL: &str = "it names no acl: Squid skips it";
const DST: &str = "an address matches here if the URL names it, not if a name resolves to it";
/// Most values in an `acl`. For more hosts, a list is better.
const VALUES_MAX: usize = 2000;
/// Most values in all `acl`s.
const ALL_VALUES_MAX: usize = 50_000;
/// Most files with values.
const FILES_MAX: usize = 256;
/// Most alternatives in an `acl`.
const ALTERNATIVES_MAX: usize = 256;
/// Most lists in a configuration.
const LISTS_MAX: usize = 64;
pub const OPTIONS: [&str; 5] = ["-i", "+i", "-n", "-m", "--"];
const CONTENT: &str = "access rules decide before there is a response";
const URLS: &str = "access rules know the host, the port and the method, not the whole URL";
const HEADERS: &str = "access rules do not look at header fields";
/// Types that match nothing before there is a response.
pub const OF_RESPONSES: [&str; 3] = ["rep_header", "rep_mime_type", "http_status"];
/// Types that have no counterpart.
const UNSAYABLE: [(&str, &str); 33] = [
    ("url_regex", URLS),
    ("urlpath_regex", URLS),
    ("urllogin", URLS),
    ("url", URLS),
    ("browser", HEADERS),
    ("referer_regex", HEADERS),
    ("req_header", HEADERS),
    ("req_mime_type", HEADERS),
    ("rep_header", CONTENT),
    ("rep_mime_type", CONTENT),
    ("http_status", CONTENT),
    (
        "arp",
        "access rules do not look at MAC addresses: give the device a fixed address",
    ),
    ("eui64", "access rules do not look at EUI-64 addresses"),
    ("srcdomain", "rules do not look up names of clients"),
    ("srcdom_regex", "rules do not look up names of clients"),
    ("src_as", "rules do not look up AS numbers"),
    ("dst_as", "rules do not look up AS numbers"),
    ("ident", "there is no ident"),
    ("ident_regex", "there is no ident"),
    ("proxy_auth_regex", "rules name users, not patterns of them"),
    ("ext_user", "there are no external helpers"),
    ("ext_user_regex", "there are no external helpers"),
    ("external", "there are no external helpers"),
    (
        "maxconn",
        "limits.clients_per_address limits connections for all clients",
    ),
    ("max_user_ip", "addresses of a user are not counted"),
    (
        "myport",
        "rules do not look at the port that the client came to",
    ),
    (
        "localport",
        "rules do not look at the port that the client came to",
    ),
    (
        "myportname",
        "rules do not look at the port that the client came to",
    ),
    (
        "myip",
        "rules do not look at the address that the client came to",
    ),
    (
        "localip",
        "rules do not look at the address that the client came to",
    ),
    ("peername", "rules do not look at the next hop"),
    ("random", "rules are not random"),
    (
        "ssl::server_name",
        "the name in a TLS handshake is compared as a destination, not by its own",
    ),
];

/// Types of `acl` for which Squid requires a login.
const LOGIN_KINDS: [&str; 2] = ["proxy_auth", "proxy_auth_regex"];

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    fn acls(text: &str) -> Acls {
        let lines: Vec<Line> = lines::lines("squid.conf", text).collect();
        let users = BTreeSet::from(["anna".to_owned(), "ben".to_owned()]);
        Acls::new(&lines, &Ok(Rc::new(users)))
    }

    fn reason(acls: &Acls, name: &str) -> String {
        acls.named(name).unwrap().1.why.unwrap()
    }

    fn sure(acls: &Acls, name: &str) -> Vec<Condition> {
        acls.named(name).unwrap().1.sure
    }

    #[test]
    fn lines_of_one_name_are_one_acl_whatever_its_case() {
        let acls = acls("acl Net src 10.1.0.0/16\nacl net src 10.2.0.0-10.2.0.255\n");
        let [net] = &sure(&acls, "NET")[..] else {
            panic!("several alternatives")
        };
        let networks = net.clients.as_ref().unwrap().networks().unwrap();
        assert_eq!(networks, ["10.1.0.0/16", "10.2.0.0/24"]);
    }

    #[test]
    fn lines_of_a_built_in_acl_are_added_to_it() {
        let acls = acls(
            "acl all src 0.0.0.0/0.0.0.0\nacl localhost src 127.0.0.2\n\
             acl CONNECT method CONNECT\nacl connect method GET\n\
             acl to_localhost dst 127.0.0.0/8\n",
        );
        assert_eq!(acls.literal("all").unwrap(), [Condition::default()]);
        let localhost = acls.literal("localhost").unwrap();
        let networks = |it: &Condition| it.clients.as_ref().unwrap().networks().unwrap();
        let networks: Vec<String> = localhost.iter().flat_map(networks).collect();
        assert_eq!(networks, ["127.0.0.1/32", "::1/128", "127.0.0.2/32"]);
        assert_eq!(acls.literal("CONNECT").unwrap().len(), 2);
        assert_eq!(acls.get("to_localhost").unwrap().kind, TO_LOCAL);
    }

    #[test]
    fn no_line_narrows_all() {
        for line in [
            "acl all src 10.0.0.0/8",
            "acl all src pc.test",
            "acl ALL port 80",
        ] {
            let acls = acls(&format!("{line}\n"));
            assert_eq!(
                acls.literal("all").unwrap(),
                [Condition::default()],
                "{line}"
            );
        }
    }

    #[test]
    fn hosts_in_files_are_a_list_and_hosts_on_lines_another_alternative() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display();
        let text = format!(
            "acl bad dstdomain .a.test B.test \"{path}\"\nacl Bad dstdomain c.test\n\
                            acl worse dstdomain \"{path}\" \"/none\"\n"
        );
        let acls = acls(&text);
        let bad = sure(&acls, "bad");
        let names: Vec<&String> = bad[0].destinations.as_ref().unwrap().names.iter().collect();
        assert_eq!(names, [".a.test", "b.test", "c.test"]);
        assert_eq!(bad[1].lists, Some(Rc::new(["bad".to_owned()].into())));
        assert_eq!(acls.host_files.len(), 1);
        assert!(reason(&acls, "worse").contains("/none"));
    }

    #[test]
    fn acls_of_acls_are_put_together() {
        let acls = acls(
            "acl a src 10.0.0.0/8\nacl b port 80\nacl c any-of a b\n\
                         acl d all-of a b\nacl d all-of !a\nacl e all-of a !c\nacl x any-of x\n",
        );
        assert_eq!(acls.literal("c").unwrap().len(), 2);
        let d = acls.literal("d").unwrap();
        assert!(d[0].clients.is_some() && d[0].ports.is_some() && d[1].clients.is_none());
        assert_eq!(d[1].except, acls.literal("a").unwrap());
        // Nothing is in `a` and in nothing of which `a` is a part.
        assert_eq!(acls.literal("e").unwrap(), []);
        assert!(reason(&acls, "x").contains("no acl `x`"));
        assert!(acls.literal("none").is_err());
    }

    #[test]
    fn users_are_names_or_all_that_can_log_in() {
        let acls = acls("acl auth proxy_auth REQUIRED\nacl boss proxy_auth zoe\n");
        let users = |name| acls.literal(name).unwrap().remove(0).users.unwrap();
        assert_eq!(users("auth").len(), 2);
        assert!(users("boss").contains("zoe"));
    }

    #[test]
    fn what_rules_cannot_say_has_a_reason() {
        let acls = acls(
            "acl a url_regex x\nacl b src pc.test\nacl c port x\nacl d time X\n\
             acl f new_type x\nacl g port 80\nacl g src ::1\n\
             acl h method G3T\nacl i dstdom_regex x\n",
        );
        for name in "abcdfghi".chars() {
            assert!(!reason(&acls, &name.to_string()).is_empty(), "{name}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_read_leaves_the_others() {
        let acls = acls(
            "acl a src 10.0.0.0/8 pc.test\nacl b port 80 x\nacl c dstdomain a.test 10.0.0.0/8\n\
             acl d any-of a c\nacl e all-of a c\n",
        );
        for name in ["a", "b", "d", "e"] {
            let (_, bounds) = acls.named(name).unwrap();
            assert!(!bounds.sure.is_empty() && bounds.why.is_some(), "{name}");
            assert_eq!(is_everything(&bounds.may), name != "e", "{name}");
        }
        // Squid compares hosts as texts, so a network is none.
        let [hosts] = &acls.literal("c").unwrap()[..] else {
            panic!("several alternatives")
        };
        assert!(hosts.destinations.as_ref().unwrap().addresses.is_empty());
    }

    #[test]
    fn a_word_in_quotes_is_a_file_that_must_be_there() {
        let acls = acls(
            "acl a dstdomain \"bad.txt\"\nacl b dstdomain '/none/b.txt'\n\
                         acl c src \"nets.txt\"\n",
        );
        for name in ["a", "b", "c"] {
            let (_, bounds) = acls.named(name).unwrap();
            assert!(
                bounds.sure.is_empty() && is_everything(&bounds.may),
                "{name}"
            );
        }
    }

    #[test]
    fn users_without_regard_to_case_are_those_of_the_file() {
        let acls = acls("acl a proxy_auth -i ANNA\nacl b proxy_auth ANNA\n");
        let users = |name| acls.literal(name).unwrap().remove(0).users.unwrap();
        assert!(users("a").contains("anna") && !users("b").contains("anna"));
    }

    #[test]
    fn addresses_that_nobody_reaches_match_nothing() {
        let mut acls = acls("acl inside dst 10.0.0.0/8\nacl both dst 10.0.0.0/8 192.0.2.0/24\n");
        assert!(acls.literal("inside").is_err());
        acls.close(&Addresses::of_networks(&["10.0.0.0/8", "192.0.3.0/24"]));
        assert_eq!(acls.literal("inside").unwrap(), []);
        assert_eq!(acls.literal("to_localhost").unwrap_or_default(), []);
        assert!(acls.literal("both").is_err());
    }

    #[test]
    fn names_are_those_that_networks_take() {
        assert_eq!(name_like("pupils"), "pupils");
        assert_eq!(name_like("10net:x"), "acl-10net-x");
        assert_eq!(name_like("local"), "acl-local");
    }
}
