//! The `acl` lines of Squid, as conditions of access rules.
//!
//! Called by `mod` before the directives that name them. An `acl` is a list of alternatives, or a
//! reason why our rules cannot say it. Invariants: an `acl` refers to earlier ones only, as in
//! Squid, so there are no circles; values, alternatives and files are bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use hashcache_proxy::Destination;

use super::address::{self, Addresses};
use super::condition::{Condition, Destinations, TwoLists};
use super::lines::{Line, Word};
use super::ranges::Ranges;
use super::source;
use super::week;
use super::work::Work;

/// Users who can log in, or why there are none.
pub type Users = Result<Rc<BTreeSet<String>>, String>;

/// An `acl`.
#[derive(Debug)]
pub struct Acl {
    /// Its type.
    pub kind: String,
    /// The requests that match: those of any alternative. Or why our rules cannot say it.
    pub alternatives: Result<Vec<Condition>, String>,
    /// What the alternatives do not say, if they say less than the `acl`.
    pub inexact: Option<&'static str>,
}

/// A list of hosts in a file.
#[derive(Debug)]
pub struct HostFile {
    /// The name of the `[[list]]`.
    pub name: String,
    pub path: PathBuf,
}

/// All `acl`s of a configuration.
#[derive(Debug)]
pub struct Acls {
    by_name: BTreeMap<String, Acl>,
    pub host_files: Vec<HostFile>,
    /// Values that all `acl`s together may still have.
    values_left: usize,
    /// Files with values that may still be read.
    files_left: usize,
    /// For combinations of conditions.
    pub work: Work,
}

impl Acls {
    /// Those of `lines`, all of which are `acl`s.
    pub fn new(lines: &[Line], users: &Users) -> Self {
        let mut acls = Self {
            by_name: BTreeMap::new(),
            host_files: Vec::new(),
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
            // Old configurations write the built-in ones out.
            let built_in = match acls.by_name.get(&name) {
                // Squid refuses lines of another type: they change nothing.
                Some(known) if !is_of(&known.kind) => continue,
                Some(known) => Some(known.alternatives.clone()),
                None => None,
            };
            let mut acl = acls.read(&lines, users);
            if let Some(known) = built_in {
                acl.alternatives = extended(known, acl.alternatives);
            }
            acls.by_name.insert(name, acl);
        }
        acls
    }

    /// The `acl` with this name; Squid compares names without case.
    pub fn get(&self, name: &str) -> Option<&Acl> {
        self.by_name.get(&name.to_ascii_lowercase())
    }

    /// The `acl`s that Squid knows without a line.
    fn add_built_in(&mut self) {
        let clients = |networks: &[&str]| Condition {
            clients: Some(Rc::new(Addresses::of_networks(networks))),
            ..Condition::default()
        };
        let to_this_machine = "the proxy refuses these addresses by itself";
        for (name, kind, alternatives) in [
            ("all", "src", Ok(vec![Condition::default()])),
            ("localhost", "src", Ok(vec![clients(&["127.0.0.1", "::1"])])),
            ("CONNECT", "method", Ok(vec![Condition::of_connect()])),
            (
                MANAGER,
                MANAGER,
                Err("there is no cache manager".to_owned()),
            ),
            ("to_localhost", TO_LOCAL, Err(to_this_machine.to_owned())),
            ("to_linklocal", TO_LOCAL, Err(to_this_machine.to_owned())),
        ] {
            let acl = Acl {
                kind: kind.to_owned(),
                alternatives,
                inexact: None,
            };
            self.by_name.insert(name.to_ascii_lowercase(), acl);
        }
    }

    /// Reads the lines of one `acl`.
    fn read(&mut self, lines: &[&Line], users: &Users) -> Acl {
        let first = lines[0];
        let kind = first.arg(1).to_owned();
        let alternatives = match lines.iter().all(|line| line.arg(1) == kind) {
            true => self.alternatives(&kind, first.arg(0), lines, users),
            false => Err("its lines have different types".to_owned()),
        };
        Acl {
            inexact: self.inexact(&kind, lines),
            kind,
            alternatives,
        }
    }

    /// What alternatives of this type do not say: with members, what those of one do not.
    fn inexact(&self, kind: &str, lines: &[&Line]) -> Option<&'static str> {
        match kind {
            "dst" => Some(DST),
            "any-of" | "all-of" => words(lines).find_map(|word| {
                let name = word.text.strip_prefix('!').unwrap_or(&word.text);
                self.get(name)?.inexact
            }),
            _ => None,
        }
    }

    fn alternatives(
        &mut self,
        kind: &str,
        name: &str,
        lines: &[&Line],
        users: &Users,
    ) -> Result<Vec<Condition>, String> {
        match kind {
            "any-of" => return self.any_of(lines),
            "all-of" => return self.all_of(lines),
            "time" => return times(lines),
            "dstdomain" => return self.dstdomain(name, lines),
            _ => {}
        }
        if let Some((_, reason)) = UNSAYABLE.iter().find(|(name, _)| *name == kind) {
            return Err((*reason).to_owned());
        }
        let values = self.values(lines)?;
        let values: Vec<&str> = values.iter().map(|it| &**it).collect();
        let condition = match kind {
            "src" => Condition {
                clients: addresses(&values)?.map(Rc::new),
                ..Condition::default()
            },
            "dst" => Condition {
                destinations: addresses(&values)?.map(|addresses| {
                    Rc::new(Destinations {
                        addresses,
                        ..Destinations::default()
                    })
                }),
                ..Condition::default()
            },
            "port" => Condition {
                ports: Some(ports(&values)?),
                ..Condition::default()
            },
            "method" => Condition {
                methods: Some(methods(&values)?),
                ..Condition::default()
            },
            "proxy_auth" => Condition {
                users: Some(named_users(&values, users)?),
                ..Condition::default()
            },
            "dstdom_regex" => Condition {
                destinations: Some(Rc::new(simple_regexes(&values)?)),
                ..Condition::default()
            },
            _ => {
                return Err(format!(
                    "there is no condition like `{kind}` in access rules"
                ));
            }
        };
        Ok(vec![condition])
    }

    /// `dstdomain`: hosts on the lines are one alternative, those in files another.
    fn dstdomain(&mut self, name: &str, lines: &[&Line]) -> Result<Vec<Condition>, String> {
        let (mut hosts, mut lists) = (Destinations::default(), BTreeSet::new());
        for word in words(lines) {
            match file_of(word) {
                Some(path) => drop(lists.insert(self.host_file(name, path)?)),
                None => add_host(&mut hosts, &word.text)?,
            }
            self.take_values(1)?;
            if hosts.names.len() > VALUES_MAX {
                return Err(too_many());
            }
        }
        let hosts = Condition {
            destinations: Some(Rc::new(hosts)),
            ..Condition::default()
        };
        let lists = Condition {
            lists: Some(lists),
            ..Condition::default()
        };
        Ok([hosts, lists]
            .into_iter()
            .filter(|it| !it.is_never())
            .collect())
    }

    /// The values of an `acl`, with those in files.
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

    /// The name of the list for a file.
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
        let name = match taken(&plain) {
            false => plain.clone(),
            true => numbered.find(|it| !taken(it)).unwrap_or_default(),
        };
        self.host_files.push(HostFile {
            name: name.clone(),
            path: path.to_owned(),
        });
        Ok(name)
    }

    /// The alternatives of all members.
    fn any_of(&self, lines: &[&Line]) -> Result<Vec<Condition>, String> {
        let mut all = Vec::new();
        for word in words(lines) {
            all.extend(self.literal(&word.text)?);
            if all.len() > ALTERNATIVES_MAX {
                return Err(too_many());
            }
        }
        Ok(all)
    }

    /// For each line, what all of its members match.
    fn all_of(&self, lines: &[&Line]) -> Result<Vec<Condition>, String> {
        let mut all = Vec::new();
        for line in lines {
            let mut line_matches = vec![Condition::default()];
            for word in line.args_from(2) {
                line_matches = self.product(&line_matches, &self.literal(&word.text)?)?;
            }
            all.extend(line_matches);
            if all.len() > ALTERNATIVES_MAX {
                return Err(too_many());
            }
        }
        Ok(all)
    }

    /// The requests that an `acl`, or `!` with an `acl`, matches.
    pub fn literal(&self, text: &str) -> Result<Vec<Condition>, String> {
        let name = text.strip_prefix('!').unwrap_or(text);
        let acl = self
            .get(name)
            .ok_or_else(|| format!("there is no acl `{name}`"))?;
        let reason = |reason: &String| format!("acl {name}: {reason}");
        let alternatives = acl.alternatives.as_ref().map_err(reason)?;
        let work = alternatives.iter().map(Condition::work_of_copy);
        self.work.spend(work.sum())?;
        if name == text {
            return Ok(alternatives.clone());
        }
        if let Some(inexact) = acl.inexact {
            return Err(format!("acl {name}: {inexact}"));
        }
        self.opposite(alternatives)?
            .map(|opposite| vec![opposite])
            .ok_or_else(|| format!("`!{name}` inside another acl has no counterpart"))
    }

    /// The requests that both match. `None`: there are none.
    pub fn and(&self, a: &Condition, b: &Condition) -> Result<Option<Condition>, String> {
        self.work.spend(a.work_with(b))?;
        a.and(b).map_err(|TwoLists| TWO_LISTS.to_owned())
    }

    /// [`Condition::is_writable`].
    pub fn is_writable(&self, condition: &Condition) -> Result<bool, String> {
        self.work.spend(condition.work_of_writing())?;
        Ok(condition.is_writable())
    }

    /// The requests that match one of `a` and one of `b`.
    pub fn product(&self, a: &[Condition], b: &[Condition]) -> Result<Vec<Condition>, String> {
        if a.len() * b.len() > ALTERNATIVES_MAX {
            return Err(too_many());
        }
        let pairs = a.iter().flat_map(|a| b.iter().map(move |b| self.and(a, b)));
        pairs.filter_map(Result::transpose).collect()
    }

    /// [`Condition::opposite`].
    pub fn opposite(&self, alternatives: &[Condition]) -> Result<Option<Condition>, String> {
        // Each is added to the union of those before.
        let work: usize = alternatives.iter().map(Condition::work).sum();
        self.work.spend(work * alternatives.len())?;
        Ok(Condition::opposite(alternatives))
    }
}

/// A built-in `acl` together with lines of its name: Squid adds them to it. What matches every
/// request is as it was, whatever the lines have.
fn extended(
    known: Result<Vec<Condition>, String>,
    more: Result<Vec<Condition>, String>,
) -> Result<Vec<Condition>, String> {
    let known = known?;
    if known.contains(&Condition::default()) {
        return Ok(known);
    }
    let more = more?;
    Ok(match (&known[..], &more[..]) {
        ([a], [b]) if a == b => known,
        ([a], [b]) => a
            .or(b)
            .map_or_else(|| [known, more].concat(), |it| vec![it]),
        _ => [known, more].concat(),
    })
}

/// A name that `[networks]` and `[[list]]` take.
pub fn name_like(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let name: String = text
        .chars()
        .map(|c| if is_part(c) { c } else { '-' })
        .take(64)
        .collect();
    match name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        true if !["all", "local"].contains(&&*name) => name,
        _ => format!("acl-{name}"),
    }
}

/// The values of an `acl`, without options such as `-i`.
fn words<'a>(lines: &'a [&'a Line]) -> impl Iterator<Item = &'a Word> {
    let words = lines.iter().flat_map(|line| line.args_from(2));
    words.filter(|word| !OPTIONS.contains(&&*word.text))
}

/// The file that a word names: in double quotes, or as `parameters("…")`.
fn file_of(word: &Word) -> Option<&Path> {
    let text = match word.is_quoted {
        true => Some(&*word.text),
        false => word
            .text
            .strip_prefix("parameters(\"")
            .and_then(|it| it.strip_suffix("\")")),
    };
    text.filter(|text| text.starts_with('/')).map(Path::new)
}

/// The addresses of all values; `None`: every address, so that there is no condition.
fn addresses(values: &[&str]) -> Result<Option<Addresses>, String> {
    let mut set = (Vec::new(), Vec::new());
    for value in values {
        let read = address::parse(value);
        let read = read.ok_or_else(|| {
            format!("`{value}` is no address or network; rules do not look up names of clients")
        })?;
        set.0.extend(read.v4.iter());
        set.1.extend(read.v6.iter());
    }
    let set = Addresses {
        v4: Ranges::new(set.0),
        v6: Ranges::new(set.1),
    };
    Ok((set != Addresses::all()).then_some(set))
}

fn ports(values: &[&str]) -> Result<Ranges, String> {
    let mut ranges = Vec::new();
    for value in values {
        let (first, last) = value.split_once('-').unwrap_or((value, value));
        let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) else {
            return Err(format!("`{value}` is no port"));
        };
        ranges.push((u128::from(first.max(1)), u128::from(last)));
    }
    Ok(Ranges::new(ranges))
}

fn methods(values: &[&str]) -> Result<BTreeSet<String>, String> {
    let is_method = |value: &str| {
        let mut chars = value.chars();
        !value.is_empty() && chars.all(|c| c.is_ascii_alphabetic() || "-_".contains(c))
    };
    match values.iter().find(|value| !is_method(value)) {
        Some(value) => Err(format!("`{value}` is no method")),
        None => Ok(values.iter().map(|it| it.to_ascii_uppercase()).collect()),
    }
}

fn times(lines: &[&Line]) -> Result<Vec<Condition>, String> {
    let mut minutes = Ranges::default();
    for line in lines {
        let words: Vec<&str> = line.args_from(2).iter().map(|it| &*it.text).collect();
        let read = week::read(&words);
        let read = read.ok_or_else(|| {
            let words = words.join(" ");
            format!("`{words}` is no time: days, and then one pair of hours")
        })?;
        minutes = minutes.union(&read);
    }
    let always = week::is_always(&minutes);
    Ok(vec![Condition {
        times: (!always).then_some(minutes),
        ..Condition::default()
    }])
}

fn named_users(values: &[&str], users: &Users) -> Result<Rc<BTreeSet<String>>, String> {
    let known = users.as_ref().map_err(Clone::clone)?;
    if values.contains(&"REQUIRED") {
        return Ok(Rc::clone(known));
    }
    let is_bad = |value: &str| value.is_empty() || value.contains(':');
    match values.iter().find(|value| is_bad(value)) {
        Some(value) => Err(format!("`{value}` is no name of a user")),
        None => Ok(Rc::new(values.iter().map(|it| (*it).to_owned()).collect())),
    }
}

/// Adds a host of `dstdomain`.
fn add_host(hosts: &mut Destinations, text: &str) -> Result<(), String> {
    match text.parse::<Destination>() {
        Ok(Destination::Network(_)) => {
            let network = address::parse(text).ok_or_else(|| no_host(text))?;
            hosts.addresses = hosts.addresses.union(&network);
        }
        Ok(host) => drop(hosts.names.insert(host.to_string())),
        Err(_) => return Err(no_host(text)),
    }
    Ok(())
}

fn no_host(text: &str) -> String {
    format!("`{text}` is no host or domain")
}

/// Regular expressions that say no more than a host or a domain: `^www\.a\.b$`, `(^|\.)a\.b$`.
fn simple_regexes(values: &[&str]) -> Result<Destinations, String> {
    let mut hosts = Destinations::default();
    for value in values {
        let host = simple_regex(value).ok_or_else(|| {
            format!("the regular expression `{value}` is more than a host or a domain")
        })?;
        add_host(&mut hosts, &host)?;
    }
    Ok(hosts)
}

fn simple_regex(regex: &str) -> Option<String> {
    let body = regex.strip_suffix('$')?;
    let (dot, name) = match body.strip_prefix("(^|\\.)") {
        Some(name) => (".", name),
        None => ("", body.strip_prefix('^')?),
    };
    // A dot that is not escaped would match any character.
    let mut host = dot.to_owned();
    let mut chars = name.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.next() == Some('.') => host.push('.'),
            c if c.is_ascii_alphanumeric() || c == '-' => host.push(c),
            _ => return None,
        }
    }
    Some(host)
}

fn too_many() -> String {
    format!("more than {VALUES_MAX} values, or {ALTERNATIVES_MAX} alternatives")
}

/// The type of the built-in `acl` for cache manager requests.
pub const MANAGER: &str = "manager";
/// The type of the built-in `acl`s for addresses of this machine and link.
pub const TO_LOCAL: &str = "to_local";
/// Why a line without an `acl` is left out.
pub const NO_ACL: &str = "it names no acl: Squid skips it";
/// Why two conditions could not be combined.
const TWO_LISTS: &str = "a rule cannot say that a host must be in two lists";
const DST: &str = "an address matches here if the URL names it, not if a name resolves to it";
/// Most values of an `acl`. More hosts belong into a list.
const VALUES_MAX: usize = 2000;
/// Most values of all `acl`s.
const ALL_VALUES_MAX: usize = 50_000;
/// Most files with values.
const FILES_MAX: usize = 256;
/// Most alternatives of an `acl`.
const ALTERNATIVES_MAX: usize = 256;
/// Most lists that a configuration may have.
const LISTS_MAX: usize = 64;
const OPTIONS: [&str; 5] = ["-i", "+i", "-n", "-m", "--"];
const CONTENT: &str = "access rules decide before there is a response";
const URLS: &str = "access rules know the host, the port and the method, not the whole URL";
const HEADERS: &str = "access rules do not look at header fields";
/// Types that have no counterpart.
const UNSAYABLE: [(&str, &str); 34] = [
    ("url_regex", URLS),
    ("urlpath_regex", URLS),
    ("urllogin", URLS),
    ("url", URLS),
    (
        "proto",
        "access rules do not look at the scheme; gateways says which there are",
    ),
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
        acls.get(name).unwrap().alternatives.clone().unwrap_err()
    }

    #[test]
    fn lines_of_one_name_are_one_acl_whatever_its_case() {
        let acls = acls("acl Net src 10.1.0.0/16\nacl net src 10.2.0.0-10.2.0.255\n");
        let [net] = &acls.get("NET").unwrap().alternatives.as_ref().unwrap()[..] else {
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
        let [localhost] = &acls.literal("localhost").unwrap()[..] else {
            panic!("several alternatives")
        };
        let networks = localhost.clients.as_ref().unwrap().networks().unwrap();
        assert_eq!(networks, ["127.0.0.1/32", "127.0.0.2/32", "::1/128"]);
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
        let bad = acls.get("bad").unwrap().alternatives.as_ref().unwrap();
        let names: Vec<&String> = bad[0].destinations.as_ref().unwrap().names.iter().collect();
        assert_eq!(names, [".a.test", "b.test", "c.test"]);
        assert_eq!(bad[1].lists, Some(["bad".to_owned()].into()));
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
        assert!(d[0].clients.is_some() && d[0].ports.is_some() && d[1].ports.is_none());
        assert!(acls.literal("e").is_err());
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
             acl e dstdomain a_b/\nacl f new_type x\nacl g port 80\nacl g src ::1\n\
             acl h method G3T\nacl i dstdom_regex x\n",
        );
        for name in "abcdefghi".chars() {
            assert!(!reason(&acls, &name.to_string()).is_empty(), "{name}");
        }
    }

    #[test]
    fn a_regular_expression_that_is_a_host_is_one() {
        assert_eq!(
            simple_regex(r"^www\.a\.test$").as_deref(),
            Some("www.a.test")
        );
        assert_eq!(simple_regex(r"(^|\.)a\.test$").as_deref(), Some(".a.test"));
        for regex in [
            r"a\.test",
            r"^a.test$",
            r"\.a\.test$",
            r"^a\d$",
            "^[a]$",
            "^a*$",
            "^\\$",
        ] {
            assert_eq!(simple_regex(regex), None, "{regex}");
        }
    }

    #[test]
    fn names_are_those_that_networks_take() {
        assert_eq!(name_like("pupils"), "pupils");
        assert_eq!(name_like("10net:x"), "acl-10net-x");
        assert_eq!(name_like("local"), "acl-local");
    }
}
