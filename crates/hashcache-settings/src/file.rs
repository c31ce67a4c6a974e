//! The configuration file: parses TOML into keys with their line numbers.
//!
//! Called by `settings::load`. Only the structure is checked here; `keys` checks the keys and their
//! values. Every fault names its line, and all faults are reported together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hashcache_http::{RuleSpec, Rules};
use hashcache_proxy::{AccessRule, LimitSettings, ListSettings, PeerSettings, Prefix, Site};
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Value};

use super::access::{self, AccessTable, GroupTable, ListTable, RulePlaces};
use super::given::{Given, Source};
use super::key::Written;
use super::keys::{self, Found};
use super::limit::LimitTable;
use super::mirror::MirrorTable;
use super::peers::{PeerTable, RouteTable, WrittenRoute};
use super::site::SiteTable;
use super::tables::TABLES;
use crate::fault::{Fault, Faults};

/// Name of the key that takes tables as well as strings.
const MIRROR: &str = "mirror";
/// Name of the networks' table; the operator chooses the keys in it.
const NETWORKS: &str = "networks";

/// Serde struct for a table in an array such as `[[peer]]`.
pub(super) trait ArrayTable: DeserializeOwned {
    /// The array's name.
    const ARRAY: &'static str;
    /// Settings that the table becomes, such as `PeerSettings`.
    type Meaning;

    /// Converts the fields; the source text and the place are for later messages.
    fn meaning(self, written: &WrittenTable<'_>) -> Result<Self::Meaning, Faults>;

    /// Unique name of the table in the array; `None` if these tables have no names.
    fn name(meaning: &Self::Meaning) -> Option<&str>;
}

/// A table as written in the file.
pub(super) struct WrittenTable<'a> {
    pub(super) toml: &'a Spanned<DeValue<'a>>,
    path: &'a Path,
    text: &'a str,
}

impl WrittenTable<'_> {
    /// Returns the file, and the line of the byte at this offset.
    pub(super) fn place_of(&self, byte: usize) -> String {
        place(self.path, line_of(self.text, byte))
    }
}

impl ArrayTable for RuleSpec {
    const ARRAY: &'static str = "rule";
    type Meaning = Self;

    fn meaning(self, _: &WrittenTable<'_>) -> Result<Self, Faults> {
        // Each rule is built separately first, so that an error can name the rule.
        match Rules::new([&self]) {
            Ok(_) => Ok(self),
            Err(error) => Err(Fault::new(error.to_string()).into()),
        }
    }

    fn name(_: &Self) -> Option<&str> {
        None
    }
}

/// A file after parsing.
#[derive(Debug, Default)]
pub struct Parsed {
    /// The keys, sorted by name.
    pub given: Vec<Given>,
    /// The freshness rules, in file order: the first matching rule decides.
    pub rules: Vec<RuleSpec>,
    /// The peers.
    pub peers: Vec<PeerSettings>,
    /// The routes, in file order: the first matching route decides.
    pub routes: Vec<WrittenRoute>,
    /// The sites.
    pub sites: Vec<Site>,
    /// The access rules in file order, each with the places: the first matching rule decides.
    pub access: Vec<(RulePlaces, AccessRule)>,
    /// The user groups: name and users.
    pub groups: Vec<(String, Vec<String>)>,
    /// The host lists.
    pub lists: Vec<ListSettings>,
    /// The tables `[[limit]]`: quotas and rates. The section `[limits]` is other settings.
    pub limits: Vec<LimitSettings>,
    /// The networks by name.
    pub networks: BTreeMap<String, Vec<Prefix>>,
    /// The arrays of tables as they were written, and the table of networks.
    pub tables: Vec<(&'static str, Value)>,
    /// Faults in the file's structure.
    pub faults: Vec<Fault>,
}

/// Parses `text`, which was read from `path`.
pub fn parse(path: &Path, text: &str) -> Parsed {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader {
        path,
        text,
        parsed: Parsed::default(),
        faults: vec![],
    };
    for error in errors {
        let line = error.span().map_or(1, |span| reader.line(span.start));
        let what = error.message().replace('\n', ", ");
        let is_syntax = !what.contains("duplicate");
        let mut fault = Fault::new(what);
        if is_syntax {
            fault = fault.hint("in TOML, texts stand in quotation marks and lists in brackets");
        }
        reader.fault(line, fault);
    }
    // After a syntax error the recovered document may report faults that the file does not have.
    if reader.faults.is_empty() {
        reader.table(table.get_ref(), "");
    }
    // The parser's tables are sorted by key, but a person corrects a file from top to bottom.
    reader.faults.sort_by_key(|(line, _)| *line);
    Parsed {
        faults: reader.faults.into_iter().map(|(_, fault)| fault).collect(),
        ..reader.parsed
    }
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    parsed: Parsed,
    /// Faults with their line numbers.
    faults: Vec<(usize, Fault)>,
}

impl Reader<'_> {
    fn table(&mut self, table: &DeTable<'_>, prefix: &str) {
        for (key, value) in table {
            let line = self.line(key.span().start);
            let name = format!("{prefix}{}", key.get_ref());
            let inner = format!("{}.", name.replace('-', "_"));
            let array = TABLES.iter().find(|table| table.name == name);
            let has_tables = has_tables(value.get_ref());
            match (array, value.get_ref()) {
                (Some(array), DeValue::Array(tables)) if has_tables || array.name != MIRROR => {
                    if is_tables(tables) || array.name == MIRROR {
                        self.array(array.name, line, tables);
                    } else {
                        self.no_array(&name, line);
                    }
                }
                (Some(array), _) if array.name != MIRROR => self.no_array(&name, line),
                (_, DeValue::Table(table)) if name == NETWORKS => self.networks(table),
                (_, DeValue::Table(table)) if keys::is_table(&inner) => self.table(table, &inner),
                (_, DeValue::Array(_)) if keys::is_table(&inner) && has_tables => {
                    let mut hint = format!("start it with `[{name}]`");
                    if name == "limits" {
                        hint += "; limits that access rules name are `[[limit]]`";
                    }
                    let fault = Fault::new(format!("`{name}` must be one table")).hint(hint);
                    self.fault(line, fault);
                }
                (_, value) => match (keys::find(&name), written(value)) {
                    (Some(found), Some(written)) => self.give(found, written, line),
                    (Some(found), None) => {
                        let kind = value.type_str();
                        let fault = Fault::new(format!("`{}` cannot be a {kind}", found.key.name));
                        self.fault(line, fault);
                    }
                    (None, _) => self.fault(line, keys::unknown(&name)),
                },
            }
        }
    }

    fn give(&mut self, found: Found, written: Written, line: usize) {
        let path = PathBuf::from(self.path);
        self.parsed.given.push(Given {
            found,
            written,
            source: Source::File { path, line },
        });
    }

    fn no_array(&mut self, name: &str, line: usize) {
        let fault = Fault::new(format!("`{name}` must be an array of tables"));
        self.fault(
            line,
            fault.hint(format!("start each {name} with `[[{name}]]`")),
        );
    }

    /// Reads all tables in the array `name`, which is on `line`.
    fn array(&mut self, name: &'static str, line: usize, tables: &[Spanned<DeValue<'_>>]) {
        match name {
            RuleSpec::ARRAY => self.parsed.rules = self.meanings::<RuleSpec>(tables),
            PeerTable::ARRAY => self.parsed.peers = self.meanings::<PeerTable>(tables),
            RouteTable::ARRAY => self.parsed.routes = self.meanings::<RouteTable>(tables),
            SiteTable::ARRAY => self.parsed.sites = self.meanings::<SiteTable>(tables),
            AccessTable::ARRAY => self.parsed.access = self.meanings::<AccessTable>(tables),
            GroupTable::ARRAY => self.parsed.groups = self.meanings::<GroupTable>(tables),
            ListTable::ARRAY => self.parsed.lists = self.meanings::<ListTable>(tables),
            LimitTable::ARRAY => self.parsed.limits = self.meanings::<LimitTable>(tables),
            // The only array that is also a key: the tables become words, which the key parses.
            _ => {
                let words = self.meanings::<MirrorTable>(tables);
                let found = keys::find(MIRROR).expect("a row of the table of keys");
                return self.give(found, Written::Many(words), line);
            }
        }
        self.keep(name, tables);
    }

    /// Parses `tables`. A wrong table becomes a fault and is left out. A fault names the line of
    /// the field if it is known, otherwise the line of the table.
    fn meanings<T: ArrayTable>(&mut self, tables: &[Spanned<DeValue<'_>>]) -> Vec<T::Meaning> {
        let mut meanings: Vec<T::Meaning> = Vec::new();
        for table in tables {
            let start = table.span().start;
            let read = match T::deserialize(ValueDeserializer::from(table.clone())) {
                Ok(read) => read,
                Err(error) => {
                    let line = self.line(error.span().map_or(start, |span| span.start));
                    self.fault(line, table_fault(error.message()).at(T::ARRAY));
                    continue;
                }
            };
            let line = self.line(start);
            let written = WrittenTable {
                toml: table,
                path: self.path,
                text: self.text,
            };
            let meaning = read.meaning(&written).and_then(|meaning| {
                let name = T::name(&meaning);
                let has_name = |it| name.is_some() && T::name(it) == name;
                if meanings.iter().any(has_name) {
                    let (name, array) = (name.unwrap_or_default(), T::ARRAY);
                    return Err(Fault::new(format!("two {array}s are called `{name}`")).into());
                }
                Ok(meaning)
            });
            match meaning {
                Ok(meaning) => meanings.push(meaning),
                Err(Faults(faults)) => {
                    for fault in faults {
                        // The error of a freshness rule starts with that word already.
                        let names_itself = fault.what.starts_with(T::ARRAY);
                        let line = fault.byte.map_or(line, |byte| self.line(byte));
                        self.fault(
                            line,
                            if names_itself {
                                fault
                            } else {
                                fault.at(T::ARRAY)
                            },
                        );
                    }
                }
            }
        }
        meanings
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
                Ok(prefixes) => drop(self.parsed.networks.insert(name.to_string(), prefixes)),
                Err(Faults(faults)) => {
                    for fault in faults {
                        self.fault(line, fault.at(NETWORKS));
                    }
                }
            }
            shown.insert(name.to_string(), words.into());
        }
        self.parsed.tables.push((NETWORKS, shown.into()));
    }

    /// Keeps the tables of an array as they were written, for `config show`.
    fn keep(&mut self, name: &'static str, tables: &[Spanned<DeValue<'_>>]) {
        let written = tables
            .iter()
            .filter_map(|table| Value::deserialize(ValueDeserializer::from(table.clone())).ok());
        let written: Vec<Value> = written.collect();
        if !written.is_empty() {
            self.parsed.tables.push((name, written.into()));
        }
    }

    fn fault(&mut self, line: usize, fault: Fault) {
        let place = place(self.path, line);
        self.faults.push((line, fault.at(place)));
    }

    fn line(&self, at: usize) -> usize {
        line_of(self.text, at)
    }
}

fn place(path: &Path, line: usize) -> String {
    format!("{}:{line}", path.display())
}

/// The line, counted from 1, that contains byte `at` of the text.
fn line_of(text: &str, at: usize) -> usize {
    let before = text.bytes().take(at);
    before.filter(|&byte| byte == b'\n').count() + 1
}

/// The fault for a table in an array, in the words of the deserializer, which list the valid
/// fields.
fn table_fault(message: &str) -> Fault {
    let fault = Fault::new(message.replace('\n', ", "));
    if !message.starts_with("unknown field ") {
        return fault;
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let unknown = quoted.next();
    if let Some(name) = unknown.filter(|name| keys::stands_above_tables(name)) {
        return fault.hint(keys::move_up(name));
    }
    let meant = unknown.and_then(|unknown| super::suggest::nearest(unknown, quoted));
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

fn is_tables(items: &[Spanned<DeValue<'_>>]) -> bool {
    items.iter().all(|item| item.get_ref().is_table())
}

/// Converts the value to text for its key; `None` for types that no key takes (tables, dates,
/// nested arrays).
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
        let hint = |text| parse_here(text).faults.remove(0).hint;
        let unquoted = hint("listen = [127.0.0.1:3128]\n").unwrap();
        assert!(unquoted.contains("quotation marks"), "{unquoted}");
        assert_eq!(hint("memory = 1\nmemory = 2\n"), None);
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
    fn a_key_behind_the_head_of_a_table_is_told_where_it_belongs() {
        let hint = |text| parse_here(text).faults.remove(0).hint;
        let above = Some("`fail` must stand above the first `[table]` of the file");
        for text in [
            "[[access]]\naction = \"deny\"\nfail = \"closed\"\n",
            "[intercept]\nfail = \"closed\"\n",
        ] {
            assert_eq!(hint(text).as_deref(), above, "{text}");
        }
    }

    #[test]
    fn faults_are_told_from_the_top_of_the_file_to_its_end() {
        let text = "zzz = 1\n[[rule]]\nhots = 1\n[limits]\nyyy = 2\n[aaa]\nx = 1\n";
        let faults = faults(text);
        let lines: Vec<&str> = faults.iter().map(|fault| &fault[..8]).collect();
        assert_eq!(lines, ["a.toml:1", "a.toml:3", "a.toml:5", "a.toml:6"]);
    }

    #[test]
    fn the_documents_have_the_fields_that_are_read() {
        for table in &TABLES {
            let text = format!("[[{}]]\n\"no such field\" = 1\n", table.name);
            let fault = faults(&text).remove(0);
            let (_, known) = fault.split_once("expected one of ").unwrap_or_else(|| {
                let (_, known) = fault.split_once("expected ").unwrap();
                ("", known)
            });
            let mut known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
            let mut documented: Vec<&str> = table.fields.iter().map(|(name, _)| *name).collect();
            known.sort_unstable();
            documented.sort_unstable();
            assert_eq!(documented, known, "{fault}");
        }
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
