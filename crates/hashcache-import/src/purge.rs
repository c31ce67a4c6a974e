//! The method PURGE: `allow_purge`, from the rules for `http_access`.
//!
//! Access rules do not apply to PURGE. Called by `access` with all rules.
//!
//! Invariant: a client is named only if Squid accepts PURGE for every URL from it. Without an `acl`
//! that names the method, Squid accepts it from no client.

use super::acl::Acls;
use super::address::Addresses;
use super::condition::{Condition, all_ports};
use super::draft::{Comments, Draft, strings};
use super::lines::Line;
use super::port_values::port_values;
use super::rules::{Action, Rule};

/// Writes the setting, and removes the rules that are only about PURGE from `rules`.
pub fn import(draft: &mut Draft, acl_lines: &[&Line], rules: &mut Vec<Rule<'_>>, lines: &[&Line]) {
    let names_it = |line: &&&Line| {
        let mut values = line.args_from(2).iter();
        line.arg(1) == "method" && values.any(|it| it.text.eq_ignore_ascii_case(PURGE))
    };
    let named: Vec<&&Line> = acl_lines.iter().filter(names_it).collect();
    let clients = if named.is_empty() {
        Addresses::default()
    } else {
        clients(rules)
    };
    let is_about = |line: &&&Line| {
        let mut words = line.args_from(1).iter();
        let names = |text: &str| {
            named
                .iter()
                .any(|acl| acl.arg(0).eq_ignore_ascii_case(text))
        };
        words.any(|it| names(it.text.trim_start_matches('!')))
    };
    let about: Vec<&&Line> = lines.iter().filter(is_about).collect();
    let comments = |text: &str| {
        let comments = Comments::default();
        let all = about.iter().fold(comments, |all, line| all.and_of(line));
        all.and(text)
    };
    match clients.networks().filter(|it| !it.is_empty()) {
        Some(networks) => {
            let why = "Clients that may send PURGE, for URLs at ports of allow_port.";
            if draft.get("allow_port") != Some(&port_values(&all_ports())) {
                draft.note(
                    "PURGE is taken for URLs at ports of allow_port only, whatever line of Squid \
                     stands first",
                );
            }
            draft.set("allow_purge", strings(&networks), comments(why));
        }
        None => {
            let why = "Nobody may send PURGE: no client has this address.";
            draft.set("allow_purge", strings(&[NOBODY]), comments(why));
            let allows = about.iter().filter(|line| line.arg(0) == "allow");
            for line in allows {
                let reason = "allow_purge names clients that may purge every URL, and this line \
                              is for others";
                draft.missing(line, reason);
            }
        }
    }
    rules.retain(|rule| !is_purge(&rule.condition));
}

/// Returns true if an `acl` matches only PURGE.
pub fn is_only_purge(name: &str, acls: &Acls) -> bool {
    let found = acls.literal(name);
    found.is_ok_and(|all| !all.is_empty() && all.iter().all(is_purge))
}

fn is_purge(condition: &Condition) -> bool {
    let methods = condition.methods.as_ref();
    methods.is_some_and(|them| them.iter().all(|method| method == PURGE))
}

/// The clients for which the rules allow PURGE for every URL.
fn clients(rules: &[Rule<'_>]) -> Addresses {
    let (mut allowed, mut denied) = (Addresses::default(), Addresses::default());
    for rule in rules.iter().filter(|it| has_purge(&it.condition)) {
        let except = rule.condition.except.iter().filter(|it| has_purge(it));
        // In a line that denies, an exception for only some URLs does not exempt its clients.
        let is_denying = rule.action == Action::Deny;
        let except = except
            .filter(|it| !is_denying || is_whole(it))
            .map(clients_of);
        let except = except.fold(Addresses::default(), |all, it| all.union(&it));
        let clients = clients_of(&rule.condition).intersection(&except.complement());
        if is_denying {
            denied = denied.union(&clients.intersection(&allowed.complement()));
        } else if is_whole(&rule.condition) {
            allowed = allowed.union(&clients.intersection(&denied.complement()));
        }
        // Otherwise the rule allows some URLs for these clients: later rules decide about the
        // others.
    }
    allowed
}

/// A condition's clients.
fn clients_of(condition: &Condition) -> Addresses {
    let clients = condition.clients.as_deref().cloned();
    clients.unwrap_or_else(Addresses::all)
}

/// True unless the condition names only other methods.
fn has_purge(condition: &Condition) -> bool {
    let methods = condition.methods.as_ref();
    methods.is_none_or(|them| them.contains(PURGE))
}

/// True if the condition limits only clients and methods.
fn is_whole(condition: &Condition) -> bool {
    let without = Condition {
        methods: None,
        except: Vec::new(),
        ..condition.clone()
    };
    without.is_blanket()
}

const PURGE: &str = "PURGE";
/// An address that no client has.
const NOBODY: &str = "0.0.0.0/32";
