//! The configuration file: TOML in, keys with their line numbers out.
//!
//! Called by `settings::load`. Only the structure is checked here; `keys` knows which keys exist
//! and what their values mean. Every fault names its line, and all faults are reported together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hashcache_http::{RuleSpec, Rules};
use hashcache_proxy::{AccessRule, LimitSettings, ListSettings, PeerSettings, Prefix, Site};
use serde::Deserialize as _;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Value};

use super::access::{self, AccessTable, GroupTable, ListTable};
use super::given::{Given, Source};
use super::keys::{self, Written};
use super::limit::LimitTable;
use super::mirror::MirrorTable;
use super::peers::{PeerTable, RouteTable, WrittenRoute};
use super::site::SiteTable;
use crate::fault::{Fault, Faults};

/// Name of the array of tables that holds freshness rules.
const RULE: &str = "rule";
/// Names of the arrays of tables for peers and for routes.
const PEER: &str = "peer";
const ROUTE: &str = "route";

/// Names of the arrays of tables for access rules, lists, groups and limits, and of the table of
/// networks.
const ACCESS: &str = "access";
const LIST: &str = "list";
const GROUP: &str = "group";
const LIMIT: &str = "limit";
const NETWORKS: &str = "networks";

/// Name of the array of tables that holds sites.
const SITE: &str = "site";

/// Name of the key that takes tables as well as strings: mirrors.
const MIRROR: &str = "mirror";

/// A file after parsing.
#[derive(Debug, Default)]
pub struct Parsed {
    /// Its keys in the order of their names.
    pub given: Vec<Given>,
    /// Its freshness rules in the order in which they stand: the first that matches decides.
    pub rules: Vec<RuleSpec>,
    /// Its peers.
    pub peers: Vec<PeerSettings>,
    /// Its routes in the order in which they stand: the first that matches decides.
    pub routes: Vec<WrittenRoute>,
    /// Its sites.
    pub sites: Vec<Site>,
    /// Its access rules, each with the place where it stands: the first that matches decides.
    pub access: Vec<(String, AccessRule)>,
    /// Its groups of users by name.
    pub groups: BTreeMap<String, Vec<String>>,
    /// Its lists of hosts.
    pub lists: Vec<ListSettings>,
    /// Its limits.
    pub limits: Vec<LimitSettings>,
    /// Its networks by name.
    pub networks: BTreeMap<String, Vec<Prefix>>,
    /// The arrays of tables as they were written, and the table of networks.
    pub tables: Vec<(&'static str, Value)>,
    /// Faults in the structure of the file.
    pub faults: Vec<Fault>,
}

/// Parses `text`, which was read from `path`.
pub fn parse(path: &Path, text: &str) -> Parsed {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader {
        path,
        text,
        given: vec![],
        rules: vec![],
        peers: vec![],
        routes: vec![],
        sites: vec![],
        access: vec![],
        groups: BTreeMap::new(),
        lists: vec![],
        limits: vec![],
        networks: BTreeMap::new(),
        tables: vec![],
        faults: vec![],
    };
    for error in errors {
        let line = error.span().map_or(1, |span| reader.line(span.start));
        let what = error.message().replace('\n', ", ");
        reader.fault(line, Fault::new(what));
    }
    // After a syntax error the recovered document may report faults that the file does not have.
    if reader.faults.is_empty() {
        reader.table(table.get_ref(), "");
    }
    // The parser's tables are sorted by key, but a person corrects a file from top to bottom.
    reader.faults.sort_by_key(|(line, _)| *line);
    Parsed {
        given: reader.given,
        rules: reader.rules,
        peers: reader.peers,
        routes: reader.routes,
        sites: reader.sites,
        access: reader.access,
        groups: reader.groups,
        lists: reader.lists,
        limits: reader.limits,
        networks: reader.networks,
        tables: reader.tables,
        faults: reader.faults.into_iter().map(|(_, fault)| fault).collect(),
    }
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    given: Vec<Given>,
    rules: Vec<RuleSpec>,
    peers: Vec<PeerSettings>,
    routes: Vec<WrittenRoute>,
    sites: Vec<Site>,
    access: Vec<(String, AccessRule)>,
    groups: BTreeMap<String, Vec<String>>,
    lists: Vec<ListSettings>,
    limits: Vec<LimitSettings>,
    networks: BTreeMap<String, Vec<Prefix>>,
    tables: Vec<(&'static str, Value)>,
    /// Faults with their line numbers.
    faults: Vec<(usize, Fault)>,
}

impl Reader<'_> {
    fn table(&mut self, table: &DeTable<'_>, prefix: &str) {
        for (key, value) in table {
            let line = self.line(key.span().start);
            let name = format!("{prefix}{}", key.get_ref());
            let inner = format!("{}.", name.replace('-', "_"));
            match value.get_ref() {
                DeValue::Array(tables) if name == RULE && is_tables(value.get_ref()) => {
                    for rule in tables {
                        self.rule(rule);
                    }
                    self.keep(RULE, tables);
                }
                DeValue::Array(tables) if name == PEER && is_tables(value.get_ref()) => {
                    for table in tables {
                        self.peer(table);
                    }
                    self.keep(PEER, tables);
                }
                DeValue::Array(tables) if name == ROUTE && is_tables(value.get_ref()) => {
                    for table in tables {
                        self.route(table);
                    }
                    self.keep(ROUTE, tables);
                }
                DeValue::Array(tables) if name == SITE && is_tables(value.get_ref()) => {
                    for table in tables {
                        self.site(table);
                    }
                    self.keep(SITE, tables);
                }
                DeValue::Array(tables) if name == ACCESS && is_tables(value.get_ref()) => {
                    for table in tables {
                        self.access(table);
                    }
                    self.keep(ACCESS, tables);
                }
                DeValue::Array(tables) if name == LIST && is_tables(value.get_ref()) => {
                    for table in tables {
                        self.list(table);
                    }
                    self.keep(LIST, tables);
                }
                DeValue::Array(tables) if name == GROUP && is_tables(value.get_ref()) => {
                    for table in tables {
                        self.group(table);
                    }
                    self.keep(GROUP, tables);
                }
                DeValue::Array(tables) if name == LIMIT && is_tables(value.get_ref()) => {
                    for table in tables {
                        self.limit(table);
                    }
                    self.keep(LIMIT, tables);
                }
                DeValue::Table(table) if name == NETWORKS => self.networks(table),
                DeValue::Array(tables) if name == MIRROR && has_tables(value.get_ref()) => {
                    self.mirrors(line, tables);
                }
                _ if [RULE, PEER, ROUTE, SITE, ACCESS, LIST, GROUP, LIMIT].contains(&&*name) => {
                    let fault = Fault::new(format!("`{name}` must be an array of tables"))
                        .hint(format!("start each {name} with `[[{name}]]`"));
                    self.fault(line, fault);
                }
                DeValue::Table(table) if keys::is_table(&inner) => self.table(table, &inner),
                DeValue::Array(_) if keys::is_table(&inner) && has_tables(value.get_ref()) => {
                    let mut hint = format!("start it with `[{name}]`");
                    if name == "limits" {
                        hint += "; limits that access rules name are `[[limit]]`";
                    }
                    let fault = Fault::new(format!("`{name}` must be one table")).hint(hint);
                    self.fault(line, fault);
                }
                _ => match (keys::find(&name), written(value.get_ref())) {
                    (Some(found), Some(written)) => {
                        let source = Source::File {
                            path: PathBuf::from(self.path),
                            line,
                        };
                        self.given.push(Given {
                            found,
                            written,
                            source,
                        });
                    }
                    (Some(found), None) => {
                        let kind = value.get_ref().type_str();
                        let fault = Fault::new(format!("`{}` cannot be a {kind}", found.key.name));
                        self.fault(line, fault);
                    }
                    (None, _) => self.fault(line, keys::unknown(&name)),
                },
            }
        }
    }

    /// Reads one `[[rule]]`; the error of a field names the field's own line.
    fn rule(&mut self, rule: &Spanned<DeValue<'_>>) {
        let start = rule.span().start;
        let spec = match RuleSpec::deserialize(ValueDeserializer::from(rule.clone())) {
            Ok(spec) => spec,
            Err(error) => {
                let line = self.line(error.span().map_or(start, |span| span.start));
                self.fault(line, table_fault(error.message()).at(RULE));
                return;
            }
        };
        // Each rule is built alone first, so that an error can name its rule.
        match Rules::new([&spec]) {
            Ok(_) => self.rules.push(spec),
            Err(error) => self.fault(self.line(start), Fault::new(error.to_string())),
        }
    }

    /// Reads one `[[peer]]`.
    fn peer(&mut self, table: &Spanned<DeValue<'_>>) {
        if let Some(read) = self.read::<PeerTable>(PEER, table) {
            match read.settings() {
                Ok(peer) if self.peers.iter().any(|it| it.name == peer.name) => {
                    let fault = Fault::new(format!("two peers are called `{}`", peer.name));
                    self.fault(self.line(table.span().start), fault.at(PEER));
                }
                Ok(peer) => self.peers.push(peer),
                Err(fault) => self.fault(self.line(table.span().start), fault.at(PEER)),
            }
        }
    }

    /// Reads one `[[route]]`.
    fn route(&mut self, table: &Spanned<DeValue<'_>>) {
        if let Some(read) = self.read::<RouteTable>(ROUTE, table) {
            match read.settings() {
                Ok(route) => self.routes.push(route),
                Err(Faults(faults)) => {
                    for fault in faults {
                        self.fault(self.line(table.span().start), fault.at(ROUTE));
                    }
                }
            }
        }
    }

    /// Reads one `[[site]]`.
    fn site(&mut self, table: &Spanned<DeValue<'_>>) {
        if let Some(read) = self.read::<SiteTable>(SITE, table) {
            match read.site() {
                Ok(site) => self.sites.push(site),
                Err(fault) => self.fault(self.line(table.span().start), fault.at(SITE)),
            }
        }
    }

    /// Reads one `[[access]]`.
    fn access(&mut self, table: &Spanned<DeValue<'_>>) {
        if let Some(read) = self.read::<AccessTable>(ACCESS, table) {
            let line = self.line(table.span().start);
            match read.rule() {
                Ok(rule) => {
                    let place = self.place(line);
                    let written = Some(format!("{place}: {}", access::in_a_line(table)));
                    self.access.push((place, AccessRule { written, ..rule }));
                }
                Err(Faults(faults)) => {
                    for fault in faults {
                        self.fault(line, fault.at(ACCESS));
                    }
                }
            }
        }
    }

    /// Reads one `[[group]]`.
    fn group(&mut self, table: &Spanned<DeValue<'_>>) {
        let Some(read) = self.read::<GroupTable>(GROUP, table) else {
            return;
        };
        let line = self.line(table.span().start);
        match read.group() {
            Ok((name, _)) if self.groups.contains_key(&name) => {
                let fault = Fault::new(format!("two groups are called `{name}`"));
                self.fault(line, fault.at(GROUP));
            }
            Ok((name, users)) => drop(self.groups.insert(name, users)),
            Err(Faults(faults)) => {
                for fault in faults {
                    self.fault(line, fault.at(GROUP));
                }
            }
        }
    }

    /// Reads one `[[list]]`.
    fn list(&mut self, table: &Spanned<DeValue<'_>>) {
        if let Some(read) = self.read::<ListTable>(LIST, table) {
            match read.settings() {
                Ok(list) if self.lists.iter().any(|it| it.name == list.name) => {
                    let fault = Fault::new(format!("two lists are called `{}`", list.name));
                    self.fault(self.line(table.span().start), fault.at(LIST));
                }
                Ok(list) => self.lists.push(list),
                Err(fault) => self.fault(self.line(table.span().start), fault.at(LIST)),
            }
        }
    }

    /// Reads one `[[limit]]`.
    fn limit(&mut self, table: &Spanned<DeValue<'_>>) {
        let Some(read) = self.read::<LimitTable>(LIMIT, table) else {
            return;
        };
        let line = self.line(table.span().start);
        match read.settings() {
            Ok(limit) if self.limits.iter().any(|it| it.name == limit.name) => {
                let fault = Fault::new(format!("two limits are called `{}`", limit.name));
                self.fault(line, fault.at(LIMIT));
            }
            Ok(limit) => self.limits.push(limit),
            Err(Faults(faults)) => {
                for fault in faults {
                    self.fault(line, fault.at(LIMIT));
                }
            }
        }
    }

    /// Reads `[networks]`.
    fn networks(&mut self, table: &DeTable<'_>) {
        let mut shown = toml::Table::new();
        for (key, value) in table {
            let (line, name) = (self.line(key.span().start), key.get_ref());
            let words = match written(value.get_ref()) {
                Some(Written::Many(words)) => words,
                Some(Written::One(word)) => vec![word],
                None => vec![],
            };
            match access::network(name, &words) {
                Ok(prefixes) => drop(self.networks.insert(name.to_string(), prefixes)),
                Err(Faults(faults)) => {
                    for fault in faults {
                        self.fault(line, fault.at(NETWORKS));
                    }
                }
            }
            shown.insert(name.to_string(), words.into());
        }
        self.tables.push((NETWORKS, shown.into()));
    }

    /// Deserializes one table of the array `name`; a wrong field names its own line.
    fn read<T: serde::de::DeserializeOwned>(
        &mut self,
        name: &str,
        table: &Spanned<DeValue<'_>>,
    ) -> Option<T> {
        match T::deserialize(ValueDeserializer::from(table.clone())) {
            Ok(read) => Some(read),
            Err(error) => {
                let start = table.span().start;
                let line = self.line(error.span().map_or(start, |span| span.start));
                self.fault(line, table_fault(error.message()).at(name));
                None
            }
        }
    }

    /// Keeps the tables of an array as they were written, for `config show`.
    fn keep(&mut self, name: &'static str, tables: &[Spanned<DeValue<'_>>]) {
        let written = tables
            .iter()
            .filter_map(|table| Value::deserialize(ValueDeserializer::from(table.clone())).ok());
        let written: Vec<Value> = written.collect();
        if !written.is_empty() {
            self.tables.push((name, written.into()));
        }
    }

    /// Reads all `[[mirror]]` tables, as the strings that a flag would have.
    fn mirrors(&mut self, line: usize, tables: &[Spanned<DeValue<'_>>]) {
        let mut words = vec![];
        for table in tables {
            let start = table.span().start;
            let read = MirrorTable::deserialize(ValueDeserializer::from(table.clone()));
            match read {
                // Parsed here and not only by the key, because the key knows only the line of the
                // first table.
                Ok(read) => match read.word() {
                    Ok(word) => words.push(word),
                    Err(fault) => self.fault(self.line(start), fault.at(MIRROR)),
                },
                Err(error) => {
                    let line = self.line(error.span().map_or(start, |span| span.start));
                    self.fault(line, table_fault(error.message()).at(MIRROR));
                }
            }
        }
        let found = keys::find(MIRROR).expect("a row of the table of keys");
        let source = Source::File {
            path: PathBuf::from(self.path),
            line,
        };
        self.given.push(Given {
            found,
            written: Written::Many(words),
            source,
        });
    }

    fn fault(&mut self, line: usize, fault: Fault) {
        let place = self.place(line);
        self.faults.push((line, fault.at(place)));
    }

    fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.path.display())
    }

    /// The line, counted from 1, on which byte `at` of the text stands.
    fn line(&self, at: usize) -> usize {
        self.text
            .bytes()
            .take(at)
            .filter(|&byte| byte == b'\n')
            .count()
            + 1
    }
}

/// The fault of a table in an array, in the deserializer's words, which list the valid fields.
fn table_fault(message: &str) -> Fault {
    let fault = Fault::new(message.replace('\n', ", "));
    if !message.starts_with("unknown field ") {
        return fault;
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let meant = quoted
        .next()
        .and_then(|unknown| super::suggest::nearest(unknown, quoted));
    match meant {
        Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
        None => fault,
    }
}

fn has_tables(value: &DeValue<'_>) -> bool {
    value
        .as_array()
        .is_some_and(|items| items.iter().any(|item| item.get_ref().is_table()))
}

fn is_tables(value: &DeValue<'_>) -> bool {
    value
        .as_array()
        .is_some_and(|items| items.iter().all(|item| item.get_ref().is_table()))
}

/// The value as text for its key; `None` for types that no key takes (tables, dates, nested
/// arrays).
fn written(value: &DeValue<'_>) -> Option<Written> {
    match value {
        DeValue::Array(items) => items
            .iter()
            .map(|item| scalar(item.get_ref()))
            .collect::<Option<_>>()
            .map(Written::Many),
        scalar_value => scalar(scalar_value).map(Written::One),
    }
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        // Decimal only: no key needs `0x…`, and the digits are passed on unchanged.
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().replace('_', "")),
        DeValue::Boolean(yes) => Some(yes.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_here(text: &str) -> Parsed {
        parse(Path::new("a.toml"), text)
    }

    fn faults(text: &str) -> Vec<String> {
        parse_here(text)
            .faults
            .into_iter()
            .map(|fault| fault.what)
            .collect()
    }

    #[test]
    fn keys_come_with_the_line_they_stand_on() {
        let parsed = parse_here("\nmemory = \"1GiB\"\n[limits]\n# c\nhead_time = \"1s\"\n");
        assert_eq!(parsed.faults, []);
        let lines: Vec<(&str, String)> = parsed
            .given
            .iter()
            .map(|given| (given.found.key.name, given.source.to_string()))
            .collect();
        assert_eq!(
            lines,
            [
                ("limits.head_time", "a.toml:5".into()),
                ("memory", "a.toml:2".into())
            ]
        );
    }

    #[test]
    fn an_unknown_key_names_its_line_and_the_key_meant() {
        let parsed = parse_here("memory = 1\n\ncache_sise = 2\n[limits]\nhed_time = \"1s\"\n");
        let faults: Vec<(String, Option<String>)> = parsed
            .faults
            .into_iter()
            .map(|fault| (fault.what, fault.hint))
            .collect();
        assert_eq!(faults[0].0, "a.toml:3: unknown key `cache_sise`");
        assert_eq!(faults[0].1.as_deref(), Some("did you mean `cache_size`?"));
        assert_eq!(faults[1].0, "a.toml:5: unknown key `limits.hed_time`");
        assert_eq!(
            faults[1].1.as_deref(),
            Some("did you mean `limits.head_time`?")
        );
    }

    #[test]
    fn a_table_that_is_written_as_one_of_many_is_told_how_it_begins() {
        for (table, expected) in [
            (
                "limits",
                "start it with `[limits]`; limits that access rules name are `[[limit]]`",
            ),
            ("intercept", "start it with `[intercept]`"),
        ] {
            let parsed = parse_here(&format!("[[{table}]]\nname = \"pupils\"\n"));
            let [fault] = parsed.faults.as_slice() else {
                panic!("{:?}", parsed.faults);
            };
            assert_eq!(fault.what, format!("a.toml:1: `{table}` must be one table"));
            assert_eq!(fault.hint.as_deref(), Some(expected));
        }
    }

    #[test]
    fn an_unknown_table_is_one_fault_not_one_per_key() {
        assert_eq!(
            faults("[quota]\nclients = 1\nupstream = 2\n"),
            ["a.toml:1: unknown key `quota`"]
        );
    }

    #[test]
    fn broken_toml_names_its_line() {
        let faults = faults("memory = 1\nlisten = [\n");
        assert!(faults[0].starts_with("a.toml:2: "), "{faults:?}");
    }

    #[test]
    fn a_key_given_twice_is_a_fault_at_the_second() {
        let faults = faults("memory = 1\nname = \"a\"\nmemory = 2\n");
        assert!(faults[0].starts_with("a.toml:3: "), "{faults:?}");
    }

    #[test]
    fn a_table_where_a_value_belongs_is_refused() {
        assert_eq!(
            faults("[memory]\nsize = 1\n"),
            ["a.toml:1: `memory` cannot be a table"]
        );
    }

    #[test]
    fn rules_are_read_beside_the_keys() {
        let text = "memory = 1\n[[rule]]\npath = \"/a/**\" # c\nimmutable = true\n\
                    [limits]\nclients = 1\n[[rule]]\npath = \"/b\"\nlifetime = \"1d\"\n";
        let parsed = parse_here(text);
        assert_eq!(parsed.faults, []);
        assert_eq!((parsed.rules.len(), parsed.given.len()), (2, 2));
        let inline = parse_here("rule = [{ path = \"/a\", immutable = true }]");
        assert_eq!((inline.rules.len(), inline.faults), (1, vec![]));
    }

    #[test]
    fn a_wrong_rule_names_its_line() {
        let unknown = "[[rule]]\npath = \"/a\"\nimmutable = true\n\n\
                       [[rule]]\npath = \"/b\"\nlifetme = \"1d\"\n";
        let unknown = faults(unknown);
        assert_eq!(unknown.len(), 1);
        assert!(
            unknown[0].starts_with("a.toml:7: rule: unknown field `lifetme`"),
            "{unknown:?}"
        );
        let without_outcome = faults("memory = 1\n[[rule]]\npath = \"/a\"\n");
        assert_eq!(without_outcome.len(), 1);
        assert!(
            without_outcome[0].starts_with("a.toml:2: rule for /a: "),
            "{without_outcome:?}"
        );
    }

    #[test]
    fn an_unknown_field_of_a_rule_names_the_one_meant() {
        let hint = |text| parse_here(text).faults.remove(0).hint;
        let meant = hint("[[rule]]\nhots = \"a\"\nimmutable = true\n");
        assert_eq!(meant.as_deref(), Some("did you mean `host`?"));
        assert_eq!(hint("[[rule]]\nfrobnicate = 1\n"), None);
    }

    #[test]
    fn faults_are_told_from_the_top_of_the_file_to_its_end() {
        let text = "zzz = 1\n[[rule]]\nhots = 1\n[limits]\nyyy = 2\n[aaa]\nx = 1\n";
        let faults = faults(text);
        let lines: Vec<&str> = faults.iter().map(|fault| &fault[..8]).collect();
        assert_eq!(lines, ["a.toml:1", "a.toml:3", "a.toml:5", "a.toml:6"]);
    }

    #[test]
    fn a_rule_that_is_no_table_is_refused() {
        assert_eq!(
            faults("rule = \"x\"\n"),
            ["a.toml:1: `rule` must be an array of tables"]
        );
        assert_eq!(
            faults("[rule]\nhost = \"a\"\n"),
            ["a.toml:1: `rule` must be an array of tables"]
        );
    }
}
