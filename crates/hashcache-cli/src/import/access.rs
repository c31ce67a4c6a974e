//! Writes the access rules of a forward proxy, with their networks, lists and groups.
//!
//! `http_access deny !Safe_ports` and `deny CONNECT !SSL_ports` become `allow_port` and
//! `allow_connect_port`, and `deny` of `dst` alone becomes `deny_destination`: these settings say
//! the same for all clients, and `deny_destination` holds for the addresses that names resolve to.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use toml::Value;

use super::acl::{Acls, name_like};
use super::address::Addresses;
use super::condition::{Condition, all_ports};
use super::delay::{self, DelayLines};
use super::draft::{Comments, Draft, NO_REQUEST, Table, strings};
use super::lines::Line;
use super::ranges::Ranges;
use super::rules::{self, Action, Compiled, PRIVATE, Rule};
use super::week;

/// The directives that allow or deny requests, and those that define their conditions.
#[derive(Debug, Default)]
pub struct AccessLines<'a> {
    pub acl: Vec<&'a Line>,
    pub http_access: Vec<&'a Line>,
    pub cache: Vec<&'a Line>,
    pub delay: DelayLines<'a>,
}

/// Writes all of them. `users` are those who can log in.
pub fn import(
    draft: &mut Draft,
    lines: &AccessLines<'_>,
    acls: &Acls,
    users: Option<&Rc<BTreeSet<String>>>,
) {
    let rest = import_ports(draft, &lines.http_access, acls);
    let mut compiled = rules::compile(&rest, &lines.cache, acls);
    delay::import(draft, &lines.delay, acls, &mut compiled);
    let mut writer = Writer {
        names: named_networks(&lines.acl, acls),
        all_users: users,
        ..Writer::default()
    };
    if let Err(reason) = writer.rules(&compiled.rules) {
        compiled.close(reason);
        writer = Writer::default();
        compiled.rules.iter().for_each(|rule| writer.rule(rule));
    }
    writer.finish(draft, acls, &compiled.rules);
    let all: Vec<&Line> = rest.iter().chain(&lines.cache).copied().collect();
    match &compiled.closed {
        Some(reason) => {
            for line in all {
                draft.missing(line, format_args!("NOBODY IS SERVED: {reason}"));
            }
        }
        None => remark(draft, &all, &compiled),
    }
}

/// Tells of lines that became no rule, or not exactly one.
fn remark(draft: &mut Draft, lines: &[&Line], compiled: &Compiled<'_>) {
    for unsaid in &compiled.unsaid {
        match (unsaid.is_unneeded, unsaid.line.arg(0)) {
            (true, _) => draft.unneeded(unsaid.line, &unsaid.reason),
            (false, "deny") if unsaid.line.name == "http_access" => {
                let reason = &unsaid.reason;
                draft.missing(
                    unsaid.line,
                    format_args!("NOT DENIED, or not all of it: {reason}"),
                );
            }
            (false, _) => draft.missing(unsaid.line, &unsaid.reason),
        }
    }
    let place = |line: &Line| (line.place.file.to_string(), line.place.line);
    let of_rules = compiled.rules.iter().filter_map(|rule| rule.line);
    let written: BTreeSet<_> = of_rules.map(place).collect();
    draft.imported += written.len();
    let told: BTreeSet<_> = compiled.unsaid.iter().map(|it| place(it.line)).collect();
    for line in lines {
        if !written.contains(&place(line)) && !told.contains(&place(line)) {
            draft.unneeded(line, NO_REQUEST);
        }
    }
}

/// Takes the lines that have settings of their own out of `lines`.
fn import_ports<'a>(draft: &mut Draft, lines: &[&'a Line], acls: &Acls) -> Vec<&'a Line> {
    let mut rest = Vec::new();
    let (mut allowed, mut connect) = (None, None);
    let (mut denied, mut denied_by) = (Addresses::default(), Comments::default());
    for (at, line) in lines.iter().enumerate() {
        let own = (at < OWN_MAX).then(|| own_setting(line, acls)).flatten();
        match own {
            Some(Own::Port(ports)) => narrow(&mut allowed, ports, line),
            Some(Own::ConnectPort(ports)) => narrow(&mut connect, ports, line),
            Some(Own::DenyDestination(networks)) => {
                denied = denied.union(&networks);
                denied_by = denied_by.and_of(line);
            }
            None => rest.push(*line),
        }
    }
    if !denied.is_empty() {
        let networks = denied.networks().unwrap_or_default();
        draft.set("deny_destination", strings(&networks), denied_by);
    }
    if let Some((ports, comments)) = &allowed {
        draft.set("allow_port", port_words(ports), comments.clone());
        if connect.is_none() {
            let why = "Squid also let clients CONNECT to these ports; by default it is 443 here.";
            draft.suggest("allow_connect_port", port_words(ports), Comments::text(why));
        }
    }
    if let Some((ports, comments)) = &connect {
        // Squid's tunnels must pass both lines.
        let ports = match &allowed {
            Some((allowed, _)) => ports.intersection(allowed),
            None => ports.clone(),
        };
        draft.set("allow_connect_port", port_words(&ports), comments.clone());
    }
    draft.imported += lines.len() - rest.len();
    rest
}

/// A line that is a setting and no rule.
enum Own {
    Port(Ranges),
    ConnectPort(Ranges),
    DenyDestination(Addresses),
}

fn own_setting(line: &Line, acls: &Acls) -> Option<Own> {
    if line.arg(0) != "deny" {
        return None;
    }
    let words = line.args_from(1).iter().filter(|word| !word.is_all());
    let words: Vec<&str> = words.map(|word| &*word.text).collect();
    let only = |name: &str| match acls.literal(name).ok()?.as_slice() {
        [condition] => Some(condition.clone()),
        _ => None,
    };
    let ports = |word: &str| {
        let condition = only(word.strip_prefix('!')?)?;
        let ports = condition.ports.clone()?;
        let alone = Condition {
            ports: Some(ports.clone()),
            ..Condition::default()
        };
        (condition == alone).then_some(ports)
    };
    match words[..] {
        [word] if acls.get(word).is_some_and(|acl| acl.kind == "dst") => {
            let addresses = only(word)?.destinations?.addresses.clone();
            // So few that all of them together can be written.
            let is_small = addresses.networks()?.len() <= OWN_NETWORKS_MAX;
            is_small.then_some(Own::DenyDestination(addresses))
        }
        [word] => ports(word).map(Own::Port),
        [a, b] => {
            let is_connect =
                |word: &str| only(word).is_some_and(|it| it == Condition::of_connect());
            let other = if is_connect(a) {
                Some(b)
            } else {
                is_connect(b).then_some(a)
            };
            ports(other?).map(Own::ConnectPort)
        }
        _ => None,
    }
}

fn narrow(ports: &mut Option<(Ranges, Comments)>, more: Ranges, line: &Line) {
    *ports = Some(match ports.take() {
        Some((ports, comments)) => (ports.intersection(&more), comments.and_of(line)),
        None => (more, Comments::of(line)),
    });
}

/// Ports as text: one number, or a range.
fn port_words(ports: &Ranges) -> Value {
    let words = ports.intersection(&all_ports());
    let words = words.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    strings(&words.collect::<Vec<_>>())
}

/// A name for each set of clients that an `acl` has.
fn named_networks(lines: &[&Line], acls: &Acls) -> Vec<(String, Rc<Addresses>)> {
    let mut named = Vec::<(String, Rc<Addresses>)>::new();
    for line in lines {
        let alternatives = acls
            .get(line.arg(0))
            .and_then(|acl| acl.alternatives.as_ref().ok());
        let Some([condition]) = alternatives.map(Vec::as_slice) else {
            continue;
        };
        let name = name_like(line.arg(0));
        if let Some(clients) = condition
            .clients
            .as_ref()
            .filter(|_| condition.is_blanket())
            && !named.iter().any(|(known, _)| *known == name)
            && named.len() < NAMES_MAX
        {
            named.push((name, Rc::clone(clients)));
        }
    }
    named
}

#[derive(Default)]
struct Writer<'a> {
    /// Names that sets of clients may have.
    names: Vec<(String, Rc<Addresses>)>,
    all_users: Option<&'a Rc<BTreeSet<String>>>,
    /// The rules, and the sets of clients that they name.
    tables: Vec<Table>,
    networks: BTreeMap<String, Vec<String>>,
    /// The size of the tables.
    bytes: usize,
    has_group: bool,
    used_lists: BTreeSet<String>,
}

impl Writer<'_> {
    /// Writes all rules.
    ///
    /// # Errors
    /// They are too long together.
    fn rules(&mut self, rules: &[Rule<'_>]) -> Result<(), String> {
        for rule in rules {
            self.rule(rule);
            if self.bytes > BYTES_MAX {
                return Err(format!("the rules are more than {BYTES_MAX} bytes"));
            }
        }
        Ok(())
    }

    fn rule(&mut self, rule: &Rule<'_>) {
        let mut comments = match rule.line {
            Some(line) => Comments::of(line),
            None => Comments::text("Where no line of Squid matches."),
        };
        if let Some(exception) = rule.exception {
            let place = &exception.place;
            comments = comments.and(format_args!("For the exceptions of {place}."));
        }
        let condition = &rule.condition;
        let action = match rule.action {
            Action::Allow if !rule.limits.is_empty() => "limit",
            Action::Allow => "allow",
            Action::Deny => "deny",
            Action::NoCache => "no-cache",
        };
        let mut fields = vec![("action", Value::from(action))];
        if !rule.limits.is_empty() {
            fields.push(("limits", strings(&rule.limits)));
        }
        match &condition.clients {
            Some(clients) => fields.push(("clients", self.clients(clients))),
            None if rule.action != Action::Deny => {
                comments = comments.and("As in Squid, for every client that can reach the proxy.");
                fields.push(("clients", strings(&["all"])));
            }
            None => {}
        }
        if let Some(users) = &condition.users {
            fields.push(self.users(users));
        }
        if let Some(destinations) = &condition.destinations {
            let networks = destinations.addresses.networks().unwrap_or_default();
            let all: Vec<String> = destinations.names.iter().cloned().chain(networks).collect();
            fields.push(("destinations", strings(&all)));
        }
        if let Some(lists) = &condition.lists {
            self.used_lists.extend(lists.iter().cloned());
            let lists: Vec<&String> = lists.iter().collect();
            fields.push(("lists", strings(&lists)));
        }
        if let Some(ports) = &condition.ports {
            fields.push(("ports", port_words(ports)));
        }
        if let Some(methods) = &condition.methods {
            let methods: Vec<&String> = methods.iter().collect();
            fields.push(("methods", strings(&methods)));
        }
        if let Some(times) = &condition.times {
            fields.push(("times", strings(&week::written(times))));
        }
        self.bytes += fields
            .iter()
            .map(|(_, value)| bytes_of(value))
            .sum::<usize>();
        self.tables.push(Table {
            array: "access",
            comments,
            fields,
        });
    }

    /// The name of a set of clients, or its networks.
    fn clients(&mut self, clients: &Rc<Addresses>) -> Value {
        let networks = clients.networks().unwrap_or_default();
        match self.names.iter().find(|(_, named)| named == clients) {
            Some((name, _)) => {
                self.networks.insert(name.clone(), networks);
                strings(&[name])
            }
            None => strings(&networks),
        }
    }

    fn users(&mut self, users: &Rc<BTreeSet<String>>) -> (&'static str, Value) {
        if self.all_users == Some(users) {
            self.has_group = true;
            return ("groups", strings(&[GROUP]));
        }
        ("users", strings(&users.iter().collect::<Vec<_>>()))
    }

    /// Writes what the rules name.
    fn finish(self, draft: &mut Draft, acls: &Acls, rules: &[Rule<'_>]) {
        for (name, networks) in self.networks {
            draft.network(&name, networks);
        }
        for table in self.tables {
            draft.table(table);
        }
        for file in &acls.host_files {
            if self.used_lists.contains(&file.name) {
                let path = file.path.to_string_lossy();
                draft.table(Table {
                    array: "list",
                    comments: Comments::text("Read again when the file changes."),
                    fields: vec![
                        ("name", file.name.as_str().into()),
                        ("files", strings(&[path])),
                        ("format", "dstdomain".into()),
                    ],
                });
            }
        }
        if let (true, Some(users)) = (self.has_group, self.all_users) {
            let why = "The users of the file when it was imported: add new ones here too.";
            draft.table(Table {
                array: "group",
                comments: Comments::text(why),
                fields: vec![
                    ("name", GROUP.into()),
                    ("users", strings(&users.iter().collect::<Vec<_>>())),
                ],
            });
        }
        let mut with_users = rules
            .iter()
            .filter(|rule| rule.condition.users.is_some())
            .peekable();
        if with_users.peek().is_some() {
            let private = || Addresses::of_networks(&PRIVATE);
            let clients = with_users.map(|rule| match &rule.condition.clients {
                Some(clients) => Addresses::clone(clients),
                None => private(),
            });
            let all = clients.reduce(|a, b| a.union(&b)).unwrap_or_else(private);
            let all = all.union(&Addresses::of_networks(&["127.0.0.0/8", "::1"]));
            let why =
                "Squid asks for passwords without TLS: others can read them in these networks.";
            let networks = all
                .networks()
                .unwrap_or_else(|| PRIVATE.map(str::to_owned).to_vec());
            draft.set("login_networks", strings(&networks), Comments::text(why));
        }
    }
}

/// The size of a value in the file, at least.
fn bytes_of(value: &Value) -> usize {
    match value {
        Value::Array(values) => values.iter().map(bytes_of).sum(),
        Value::String(text) => text.len() + 4,
        _ => 0,
    }
}

/// Most bytes of all rules.
const BYTES_MAX: usize = 8 << 20;
/// Lines that may become settings: the first ones do.
const OWN_MAX: usize = 64;
/// Networks of a line that becomes a setting.
const OWN_NETWORKS_MAX: usize = 64;
/// The group of all users.
const GROUP: &str = "squid-users";
/// Most names for networks.
const NAMES_MAX: usize = 1000;
