//! Access rules: `[[access]]` and `[[list]]` tables and the table `[networks]` of a configuration
//! file.
//!
//! Called by `file` for each table, and by `mod` when all tables are known. A fault names the line
//! of the table, with a hint for the correct value.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::str::FromStr;

use hashcache_proxy::{
    AccessAction, AccessConditions, AccessRule, AccessRuleError, AccessRules, AccessSettings,
    ListFormat, ListSettings, Prefix, RuleClients,
};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use super::file::{ArrayTable, WrittenTable};
use super::suggest;
use super::words::one_of;
use crate::fault::{Fault, Faults};

/// An `[[access]]` table as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessTable {
    name: Option<String>,
    action: String,
    clients: Option<Vec<String>>,
    users: Option<Vec<String>>,
    groups: Option<Vec<String>>,
    destinations: Option<Vec<String>>,
    lists: Option<Vec<String>>,
    ports: Option<Vec<toml::Value>>,
    methods: Option<Vec<String>>,
    times: Option<Vec<String>>,
    #[serde(default, deserialize_with = "one_or_many")]
    except: Vec<ConditionsTable>,
    limits: Option<Vec<String>>,
    reason: Option<String>,
}

/// A rule's conditions, or an `except` table. [`AccessTable`] repeats the fields: serde cannot
/// flatten them into a table that denies unknown fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionsTable {
    clients: Option<Vec<String>>,
    users: Option<Vec<String>>,
    groups: Option<Vec<String>>,
    destinations: Option<Vec<String>>,
    lists: Option<Vec<String>>,
    ports: Option<Vec<toml::Value>>,
    methods: Option<Vec<String>>,
    times: Option<Vec<String>>,
}

/// The file and line of a rule, and of each exception.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulePlaces {
    rule: String,
    exceptions: Vec<String>,
}

impl ArrayTable for AccessTable {
    const ARRAY: &'static str = "access";
    type Meaning = (RulePlaces, AccessRule);

    fn meaning(self, written: &WrittenTable<'_>) -> Result<Self::Meaning, Faults> {
        let starts = exception_starts(written.toml);
        let places = RulePlaces {
            rule: written.place_of(written.toml.span().start),
            exceptions: starts.iter().map(|at| written.place_of(*at)).collect(),
        };
        let text = format!("{}: {}", places.rule, in_a_line(written.toml));
        let rule = AccessRule {
            written: Some(text),
            ..self.rule(&starts)?
        };
        Ok((places, rule))
    }

    fn name(_: &Self::Meaning) -> Option<&str> {
        None
    }
}

impl AccessTable {
    /// Returns the rule, or every fault in the fields. `exceptions`: byte offsets of the exceptions
    /// in the file.
    pub fn rule(self, exceptions: &[usize]) -> Result<AccessRule, Faults> {
        let mut faults = Vec::new();
        let action = one_of(&AccessAction::ALL, &self.action);
        let action = action.map_err(|fault| faults.push(fault.at("action")));
        let conditions = ConditionsTable {
            clients: self.clients,
            users: self.users,
            groups: self.groups,
            destinations: self.destinations,
            lists: self.lists,
            ports: self.ports,
            methods: self.methods,
            times: self.times,
        };
        let conditions = conditions.conditions(&mut faults);
        let mut except = Vec::new();
        for (number, table) in self.except.into_iter().enumerate() {
            let mut wrong = Vec::new();
            except.push(table.conditions(&mut wrong));
            faults.extend(wrong.into_iter().map(|fault| {
                let fault = fault.at(EXCEPT);
                match exceptions.get(number) {
                    Some(byte) => fault.at_byte(*byte),
                    None => fault,
                }
            }));
        }
        let rule = AccessRule {
            conditions,
            except,
            limits: self.limits,
            name: self.name,
            reason: self.reason,
            ..AccessRule::from_action(action.unwrap_or(AccessAction::Deny))
        };
        if faults.is_empty() {
            Ok(rule)
        } else {
            Err(Faults(faults))
        }
    }
}

impl ConditionsTable {
    /// Parses the conditions; faults are added to `faults`.
    fn conditions(self, faults: &mut Vec<Fault>) -> AccessConditions {
        let ports = self
            .ports
            .map(|ports| ports.iter().map(port_text).collect());
        AccessConditions {
            clients: each(self.clients, client, ("clients", CLIENTS), faults),
            destinations: parsed(self.destinations, ("destinations", DESTINATIONS), faults),
            ports: parsed(ports, ("ports", PORTS), faults),
            methods: each(self.methods, method, ("methods", METHODS), faults),
            times: parsed(self.times, ("times", TIMES), faults),
            users: each(self.users, user, ("users", USERS), faults),
            groups: self.groups,
            lists: self.lists,
        }
    }
}

/// Reads a table or an array of tables. An untagged enum would lose the lines of faults.
fn one_or_many<'de, D>(deserializer: D) -> Result<Vec<ConditionsTable>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    struct Tables;
    impl<'de> Visitor<'de> for Tables {
        type Value = Vec<ConditionsTable>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table of conditions, or an array of such tables")
        }

        fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
            ConditionsTable::deserialize(MapAccessDeserializer::new(map)).map(|table| vec![table])
        }

        fn visit_seq<S: SeqAccess<'de>>(self, seq: S) -> Result<Self::Value, S::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(seq))
        }
    }
    deserializer.deserialize_any(Tables)
}

/// Byte offsets at which a rule's exceptions start in the file.
fn exception_starts(rule: &Spanned<DeValue<'_>>) -> Vec<usize> {
    let DeValue::Table(fields) = rule.get_ref() else {
        return Vec::new();
    };
    let except = fields.iter().find(|(name, _)| name.get_ref() == EXCEPT);
    match except.map(|(_, value)| (value, value.get_ref())) {
        Some((_, DeValue::Array(tables))) => tables.iter().map(|it| it.span().start).collect(),
        Some((table, _)) => vec![table.span().start],
        None => Vec::new(),
    }
}

/// A `[[group]]` table as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupTable {
    name: String,
    users: Vec<String>,
}

impl ArrayTable for GroupTable {
    const ARRAY: &'static str = "group";
    /// The group's name and users.
    type Meaning = (String, Vec<String>);

    fn meaning(self, _: &WrittenTable<'_>) -> Result<Self::Meaning, Faults> {
        self.group()
    }

    fn name(meaning: &Self::Meaning) -> Option<&str> {
        Some(&meaning.0)
    }
}

impl GroupTable {
    /// Returns the group's name and users.
    pub fn group(self) -> Result<(String, Vec<String>), Faults> {
        if !is_name(&self.name) {
            let fault = Fault::new(format!("`{}` is not a name for a group", self.name));
            return Err(fault
                .hint("use a letter, then letters, digits, `-` and `_`")
                .into());
        }
        if self.users.is_empty() {
            return Err(Fault::new(format!("the group `{}` is empty", self.name)).into());
        }
        let mut faults = Vec::new();
        let users = each(Some(self.users), user, ("users", USERS), &mut faults);
        if faults.is_empty() {
            Ok((self.name, users.unwrap_or_default()))
        } else {
            Err(Faults(faults))
        }
    }
}

/// A `[[list]]` table as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListTable {
    name: String,
    files: Vec<PathBuf>,
    format: Option<String>,
}

impl ArrayTable for ListTable {
    const ARRAY: &'static str = "list";
    type Meaning = ListSettings;

    fn meaning(self, _: &WrittenTable<'_>) -> Result<ListSettings, Faults> {
        Ok(self.settings()?)
    }

    fn name(meaning: &ListSettings) -> Option<&str> {
        Some(&meaning.name)
    }
}

impl ListTable {
    /// Returns the list's settings.
    pub fn settings(self) -> Result<ListSettings, Fault> {
        if !is_name(&self.name) {
            let fault = Fault::new(format!("`{}` is not a name for a list", self.name));
            return Err(fault.hint("use a letter, then letters, digits, `-` and `_`"));
        }
        if self.files.is_empty() {
            return Err(Fault::new(format!(
                "the list `{}` has no `files`",
                self.name
            )));
        }
        let format = self
            .format
            .as_deref()
            .map(|word| one_of(&ListFormat::ALL, word));
        Ok(ListSettings {
            name: self.name,
            files: self.files,
            format: format
                .transpose()
                .map_err(|fault| fault.at("format"))?
                .unwrap_or_default(),
        })
    }
}

/// Formats a rule, as written, in a single line; a long rule is truncated.
fn in_a_line(table: &Spanned<DeValue<'_>>) -> String {
    let written = toml::Table::deserialize(ValueDeserializer::from(table.clone()));
    let fields = written.unwrap_or_default().into_iter();
    let fields: Vec<String> = fields
        .map(|(name, value)| format!("{name} = {value}"))
        .collect();
    let line = fields.join(", ");
    match line.char_indices().nth(LINE_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// A port as text: it may be a number in the file.
fn port_text(port: &toml::Value) -> String {
    match port {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Parses each word of a condition; faults are added to `faults`.
fn each<T, E: Display>(
    words: Option<Vec<String>>,
    read: impl Fn(&str) -> Result<T, E>,
    (condition, hint): (&str, &str),
    faults: &mut Vec<Fault>,
) -> Option<Vec<T>> {
    let mut values = Vec::new();
    for word in words.as_ref()? {
        match read(word) {
            Ok(value) => values.push(value),
            Err(error) => {
                let fault = Fault::new(format!("`{word}`: {error}"));
                faults.push(fault.at(condition).hint(hint));
            }
        }
    }
    Some(values)
}

/// As [`each`], for types that implement `FromStr`.
fn parsed<T: FromStr<Err: Display>>(
    words: Option<Vec<String>>,
    condition: (&str, &str),
    faults: &mut Vec<Fault>,
) -> Option<Vec<T>> {
    each(words, str::parse, condition, faults)
}

/// Parses a network, the name of a network, or a word for many clients.
fn client(word: &str) -> Result<RuleClients, &'static str> {
    match word {
        "all" => Ok(RuleClients::All),
        "local" => Ok(RuleClients::Local),
        _ => match word.parse() {
            Ok(network) => Ok(RuleClients::Network(network)),
            Err(_) if is_name(word) => Ok(RuleClients::Named(word.to_owned())),
            Err(_) => Err("neither a network nor the name of one"),
        },
    }
}

/// A name starts with a letter, so no mistyped address is read as a name.
pub(super) fn is_name(word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    word.starts_with(|first: char| first.is_ascii_alphabetic()) && word.chars().all(is_part)
}

/// Parses a user's name; Basic authentication cannot carry a name with a colon.
fn user(word: &str) -> Result<String, &'static str> {
    let is_bad = |c: char| c == ':' || c.is_control();
    if word.is_empty() || word.chars().any(is_bad) {
        Err("not the name of a user")
    } else {
        Ok(word.to_owned())
    }
}

/// Parses a method. Methods are tokens; all registered methods are in upper case.
fn method(word: &str) -> Result<String, &'static str> {
    let is_method = |c: char| c.is_ascii_uppercase() || "-_".contains(c);
    if !word.is_empty() && word.chars().all(is_method) {
        Ok(word.to_owned())
    } else {
        Err("not the name of a method")
    }
}

/// Parses a network of `[networks]` into its prefixes.
pub fn network(name: &str, words: &[String]) -> Result<Vec<Prefix>, Faults> {
    if !is_name(name) || ["all", "local"].contains(&name) {
        let fault = Fault::new(format!("`{name}` is not a name for a network"));
        let hint = "begin with a letter; `all` and `local` have a meaning of their own";
        return Err(fault.hint(hint).into());
    }
    if words.is_empty() {
        return Err(Fault::new(format!("the network `{name}` is empty")).into());
    }
    let mut faults = Vec::new();
    let words = Some(words.to_vec());
    let prefixes = parsed(words, (name, "write it as 10.1.0.0/16"), &mut faults);
    if faults.is_empty() {
        Ok(prefixes.unwrap_or_default())
    } else {
        Err(Faults(faults))
    }
}

/// Compiles the rules; `places` has the place of each rule in the file.
pub fn compile(settings: &AccessSettings, places: &[RulePlaces]) -> Result<AccessRules, Faults> {
    AccessRules::new(settings).map_err(|wrong| {
        let faults = wrong.into_iter().map(|wrong| {
            let fault = rule_fault(&wrong.error, settings);
            let places = places.get(wrong.rule);
            let (fault, place) = match wrong.exception {
                Some(number) => (
                    fault.at(EXCEPT),
                    places.and_then(|it| it.exceptions.get(number)),
                ),
                None => (fault, places.map(|it| &it.rule)),
            };
            let fault = fault.at("access");
            match place {
                Some(place) => fault.at(place),
                None => fault,
            }
        });
        Faults(faults.collect())
    })
}

fn rule_fault(error: &AccessRuleError, settings: &AccessSettings) -> Fault {
    let fault = Fault::new(error.to_string());
    match error {
        AccessRuleError::Empty { condition } => {
            fault.hint(format!("leave `{condition}` out if all of them match"))
        }
        AccessRuleError::UnknownNetwork { name } => {
            let known = settings.networks.keys().map(String::as_str);
            match suggest::nearest(name, known.chain(["all", "local"])) {
                Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
                None => fault.hint("write the networks of this name below `[networks]`"),
            }
        }
        AccessRuleError::UnknownGroup { name } => {
            let known = settings.groups.keys().map(String::as_str);
            match suggest::nearest(name, known) {
                Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
                None => fault.hint("write a `[[group]]` with this name and its users"),
            }
        }
        AccessRuleError::UnknownList { name } => {
            let known = settings.lists.iter().map(|list| list.name.as_str());
            match suggest::nearest(name, known) {
                Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
                None => fault.hint("write a `[[list]]` with this name and its files"),
            }
        }
        AccessRuleError::UnknownLimit { name } => {
            let known = settings.limits.iter().map(String::as_str);
            match suggest::nearest(name, known) {
                Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
                None => fault.hint("write a `[[limit]]` with this name"),
            }
        }
        AccessRuleError::NoLimits => fault.hint("name a `[[limit]]`, as in limits = [\"pupil\"]"),
        AccessRuleError::ExceptsAll => {
            fault.hint("remove the rule, or give the exception a condition such as `destinations`")
        }
        AccessRuleError::Unreachable { .. } => {
            fault.hint("the first rule that matches decides: move this one up, or remove it")
        }
        _ => fault,
    }
}

/// The name that the field with exceptions has.
const EXCEPT: &str = "except";
/// Most characters of a rule in explanations: a rule may have thousands of destinations.
const LINE_CHARS: usize = 300;

const CLIENTS: &str = "write 10.1.0.0/16, a name of `[networks]`, `local` or `all`";
const DESTINATIONS: &str =
    "write example.org for one host, .example.org for it and every host below, or a network";
const USERS: &str = "a name is not empty and has no colon";
const PORTS: &str = "write 443 or \"8000-8999\"";
const METHODS: &str = "write it in capitals, as in \"POST\"; a tunnel has the method CONNECT";
const TIMES: &str = "write \"Mon-Fri 08:00-15:30\", \"Sat,Sun\" or \"22:00-06:00\"";

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Result<AccessRule, Faults> {
        toml::from_str::<AccessTable>(text).unwrap().rule(&[])
    }

    #[test]
    fn every_condition_of_a_rule_is_read() {
        let rule = rule(
            "name = \"lessons\"
             action = \"no-cache\"
             clients = [\"pupils\", \"10.0.0.0/8\", \"local\", \"all\"]
             destinations = [\"example.org\", \".example.com\", \"192.0.2.1\"]
             users = [\"anna\", \"zo\u{eb}\"]
             groups = [\"staff\"]
             lists = [\"ads\"]
             ports = [80, \"8000-8999\"]
             methods = [\"GET\", \"CONNECT\"]
             times = [\"Mon-Fri 08:00-15:30\"]
             except = { ports = [8080], groups = [\"heads\"] }
             limits = [\"pupil\"]
             reason = \"Lessons.\"",
        );
        let rule = rule.unwrap();
        assert_eq!(rule.action, AccessAction::NoCache);
        assert_eq!(rule.except.len(), 1);
        assert_eq!(rule.except[0].groups.as_ref().unwrap(), &["heads"]);
        let given = rule.conditions;
        assert_eq!(
            given.clients.unwrap()[0],
            RuleClients::Named("pupils".into())
        );
        assert_eq!(given.destinations.unwrap().len(), 3);
        assert_eq!(given.users.unwrap(), ["anna", "zo\u{eb}"]);
        assert_eq!(given.groups.unwrap(), ["staff"]);
        assert_eq!(given.lists.unwrap(), ["ads"]);
        assert_eq!(given.ports.unwrap().len(), 2);
        assert_eq!(given.methods.unwrap(), ["GET", "CONNECT"]);
        assert_eq!(given.times.unwrap().len(), 1);
        assert_eq!(rule.limits.unwrap(), ["pupil"]);
    }

    #[test]
    fn every_fault_of_a_rule_is_reported_with_its_condition() {
        let Faults(faults) = rule(
            "action = \"dney\"
             clients = [\"10.0.0.1/8\"]
             users = [\"a:b\"]
             destinations = [\"*.example.org\"]
             ports = [0]
             methods = [\"get\"]
             times = [\"Monday\"]",
        )
        .unwrap_err();
        let said: Vec<&str> = faults.iter().map(|fault| &fault.what[..14]).collect();
        assert_eq!(
            said,
            [
                "action: `dney`",
                "clients: `10.0",
                "destinations: ",
                "ports: `0`: ex",
                "methods: `get`",
                "times: `Monday",
                "users: `a:b`: ",
            ]
        );
        assert_eq!(faults[0].hint.as_deref(), Some("did you mean `deny`?"));
    }

    #[test]
    fn several_exceptions_are_an_array_of_tables() {
        for text in [
            "action = \"deny\"\nexcept = [{ ports = [80] }, { methods = [\"GET\"] }]",
            "action = \"deny\"\n[[except]]\nports = [80]\n[[except]]\nmethods = [\"GET\"]",
        ] {
            assert_eq!(rule(text).unwrap().except.len(), 2, "{text}");
        }
        assert_eq!(rule("action = \"deny\"").unwrap().except, []);
    }

    #[test]
    fn names_of_networks_are_words() {
        let words = ["10.1.0.0/16".to_owned()];
        assert_eq!(network("pupils", &words).unwrap().len(), 1);
        for name in ["all", "local", "10", "a b", ""] {
            assert!(network(name, &words).is_err(), "{name}");
        }
        assert!(network("pupils", &[]).is_err());
        assert!(network("pupils", &["10.1.0.1/16".to_owned()]).is_err());
    }
}
