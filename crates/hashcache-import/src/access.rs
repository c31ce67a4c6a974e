//! Writes access rules, with the networks, lists and groups that they use.
//!
//! Called by `mod`. Lines about ports (`ports`), destination addresses (`destinations`) and PURGE
//! (`purge`) become settings; `rules` compiles the other lines to rules, and `delay` adds their
//! limits.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use toml::Value;

use super::acl::{Acls, name_like};
use super::acl_values::TOO_MANY_NETWORKS;
use super::address::Addresses;
use super::condition::Condition;
use super::delay::{self, DelayLines};
use super::draft::{Comments, Draft, Fate, NO_REQUEST, Table, strings};
use super::lines::Line;
use super::port_values::port_values;
use super::rules::{self, Action, Compiled, PRIVATE, Rule, Unsure};
use super::{destinations, ports, purge, week};

/// The directives that allow or deny requests, and the directives that define their conditions.
#[derive(Debug, Default)]
pub struct AccessLines<'a> {
    pub acl: Vec<&'a Line>,
    pub http_access: Vec<&'a Line>,
    /// Further lists, each of which must allow a request too.
    pub further: [Vec<&'a Line>; 3],
    pub cache: Vec<&'a Line>,
    /// Requests may be sent to another cache, which resolves names.
    pub has_parent: bool,
    pub delay: DelayLines<'a>,
}

/// Writes all access rules. `users` are the users that can log in.
pub fn import(
    draft: &mut Draft,
    lines: &AccessLines<'_>,
    acls: &mut Acls,
    users: Option<&Rc<BTreeSet<String>>>,
    unsure: Unsure,
) {
    let found = destinations::find(&lines.http_access, acls, lines.has_parent);
    let acls = &*acls;
    let rest = ports::import(draft, &lines.http_access, acls);
    let mut compiled = rules::compile(&lines.http_access, &rest, acls, unsure);
    purge::import(draft, &lines.acl, &mut compiled.rules, &lines.http_access);
    let mut about_purge = BTreeSet::new();
    for line in &rest {
        let mut words = line.args_from(1).iter();
        if words.any(|it| purge::is_only_purge(&it.text, acls)) {
            about_purge.insert(place(line));
        }
    }
    draft.imported += about_purge.len();
    for further in lines.further.iter().filter(|it| !it.is_empty()) {
        let mut more = rules::compile(further, further, acls, unsure);
        if further.iter().all(|line| line.name == "http_reply_access") {
            more.spare_tunnels();
        }
        compiled.restrict(more, acls);
    }
    let [_, on_miss, _] = &lines.further;
    for line in on_miss.iter().filter(|line| line.arg(0) == "deny") {
        let reason = "DENIES MORE: stored responses, too, because rules decide before a lookup";
        draft.remark(Fate::Closed, line, reason);
    }
    found.write(draft, &compiled.rules);
    compiled.add_uncached(&lines.cache, acls);
    delay::import(draft, &lines.delay, acls, &mut compiled);
    let mut writer = Writer {
        names: named_networks(&lines.acl, acls),
        all_users: users,
        ..Writer::default()
    };
    if let Err(reason) = writer.rules(&compiled.rules) {
        compiled.close(reason);
        writer = Writer::default();
        // The rule that serves nobody has no condition that could not be written.
        let _ = writer.rules(&compiled.rules);
    }
    writer.finish(draft, acls, &compiled.rules);
    let further = lines.further.iter().flatten();
    let all = rest.iter().chain(further).chain(&lines.cache);
    let all: Vec<&Line> = all
        .filter(|it| !about_purge.contains(&place(it)))
        .copied()
        .collect();
    match &compiled.closed {
        Some(reason) => {
            for line in all {
                draft.remark(
                    Fate::Closed,
                    line,
                    format_args!("NOBODY IS SERVED: {reason}"),
                );
            }
        }
        None => remark(draft, &all, &compiled),
    }
}

fn place(line: &Line) -> (String, usize) {
    (line.place.file.to_string(), line.place.line)
}

/// Reports lines that became no rule, or not an exact rule.
fn remark(draft: &mut Draft, lines: &[&Line], compiled: &Compiled<'_>) {
    for unsaid in &compiled.unsaid {
        draft.remark(unsaid.fate, unsaid.line, &unsaid.reason);
    }
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

/// A name for each client set in an `acl`.
fn named_networks(lines: &[&Line], acls: &Acls) -> Vec<(String, Rc<Addresses>)> {
    let mut named = Vec::<(String, Rc<Addresses>)>::new();
    for line in lines {
        let bounds = acls.named(line.arg(0)).ok().map(|(_, bounds)| bounds.sure);
        let Some([condition]) = bounds.as_deref() else {
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
    /// Names for client sets.
    names: Vec<(String, Rc<Addresses>)>,
    all_users: Option<&'a Rc<BTreeSet<String>>>,
    /// The rules, and the client sets that they name.
    tables: Vec<Table>,
    networks: BTreeMap<String, Vec<String>>,
    /// Size of all tables.
    bytes: usize,
    has_group: bool,
    used_lists: BTreeSet<String>,
}

impl Writer<'_> {
    /// Writes all rules.
    ///
    /// # Errors
    /// The rules are too long together, or a rule cannot be written.
    fn rules(&mut self, rules: &[Rule<'_>]) -> Result<(), String> {
        for rule in rules {
            self.rule(rule)?;
            if self.bytes > BYTES_MAX {
                return Err(format!("the rules are more than {BYTES_MAX} bytes"));
            }
        }
        Ok(())
    }

    fn rule(&mut self, rule: &Rule<'_>) -> Result<(), String> {
        let mut comments = match rule.line {
            Some(line) => Comments::from_line(line),
            None => Comments::text("Where no line of Squid matches."),
        };
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
        if rule.condition.clients.is_none() && rule.action != Action::Deny {
            comments = comments.and("As in Squid, for every client that can reach the proxy.");
            fields.push(("clients", strings(&["all"])));
        }
        fields.extend(self.conditions(&rule.condition)?);
        let mut except = Vec::new();
        for exception in &rule.condition.except {
            let fields = self.conditions(exception)?.into_iter();
            let fields = fields.map(|(name, value)| (name.to_owned(), value));
            except.push(Value::Table(fields.collect()));
        }
        match except.pop() {
            None => {}
            Some(only) if except.is_empty() => fields.push(("except", only)),
            Some(last) => {
                except.push(last);
                fields.push(("except", Value::Array(except)));
            }
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
        Ok(())
    }

    /// Returns the fields for conditions, without exceptions.
    fn conditions(&mut self, condition: &Condition) -> Result<Vec<(&'static str, Value)>, String> {
        let mut fields = Vec::new();
        if let Some(clients) = &condition.clients {
            fields.push(("clients", self.clients(clients)?));
        }
        if let Some(users) = &condition.users {
            fields.push(self.users(users));
        }
        if let Some(destinations) = &condition.destinations {
            let networks = written(&destinations.addresses)?;
            let all: Vec<String> = destinations.names.iter().cloned().chain(networks).collect();
            fields.push(("destinations", strings(&all)));
        }
        if let Some(lists) = &condition.lists {
            self.used_lists.extend(lists.iter().cloned());
            let lists: Vec<&String> = lists.iter().collect();
            fields.push(("lists", strings(&lists)));
        }
        if let Some(ports) = &condition.ports {
            fields.push(("ports", port_values(ports)));
        }
        if let Some(methods) = &condition.methods {
            let methods: Vec<&String> = methods.iter().collect();
            fields.push(("methods", strings(&methods)));
        }
        if let Some(times) = &condition.times {
            fields.push(("times", strings(&week::written(times))));
        }
        Ok(fields)
    }

    /// Returns the name for a client set, or the networks.
    fn clients(&mut self, clients: &Rc<Addresses>) -> Result<Value, String> {
        let networks = written(clients)?;
        let named = self.names.iter().find(|(_, named)| named == clients);
        Ok(match named {
            Some((name, _)) => {
                self.networks.insert(name.clone(), networks);
                strings(&[name])
            }
            None => strings(&networks),
        })
    }

    fn users(&mut self, users: &Rc<BTreeSet<String>>) -> (&'static str, Value) {
        if self.all_users == Some(users) {
            self.has_group = true;
            return ("groups", strings(&[GROUP]));
        }
        ("users", strings(&users.iter().collect::<Vec<_>>()))
    }

    /// Writes the rules, and the networks, lists and groups that they name.
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
            .filter(|it| it.condition.needs_user())
            .peekable();
        if with_users.peek().is_some() {
            let private = || Addresses::of_networks(&PRIVATE);
            let joined = |all: &mut dyn Iterator<Item = &Rule<'_>>, otherwise: &Addresses| {
                let clients = all.map(|rule| match &rule.condition.clients {
                    Some(clients) => Addresses::clone(clients),
                    None => otherwise.clone(),
                });
                clients.reduce(|a, b| a.union(&b)).unwrap_or_else(private)
            };
            // A rule for all clients requests a login from the clients that the other rules serve.
            let mut serving = rules.iter().filter(|it| it.action != Action::Deny);
            let served = joined(&mut serving, &private());
            let all = joined(&mut with_users, &served);
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

/// Returns the networks of a set.
fn written(addresses: &Addresses) -> Result<Vec<String>, String> {
    let networks = addresses.networks();
    networks.ok_or_else(|| TOO_MANY_NETWORKS.to_owned())
}

/// A lower bound for a value's size in the file.
fn bytes_of(value: &Value) -> usize {
    match value {
        Value::Table(fields) => fields.values().map(bytes_of).sum(),
        Value::Array(values) => values.iter().map(bytes_of).sum(),
        Value::String(text) => text.len() + 4,
        _ => 0,
    }
}

/// Most bytes in all rules.
const BYTES_MAX: usize = 8 << 20;
/// The group with all users.
const GROUP: &str = "squid-users";
/// Most names for networks.
const NAMES_MAX: usize = 1000;
