//! `http_access` and `cache` of Squid, as access rules.
//!
//! Both languages take the first rule that matches. Squid negates (`deny pupils !good_sites`), and
//! our rules cannot. A line `action A !B` before the rules `R` is written as: `R`, each also for
//! `A` and `B`; then `action A`; then `R`. The opposite of addresses, ports and times is a set of
//! the same kind, and needs no such copies.
//!
//! Invariants: a rule that serves never serves more requests than its line. A rule that denies
//! denies all requests of its line, unless the operator takes it open ([`Unsure::Open`]) or nothing
//! is written ([`Unsure::Refuse`]). There are at most [`RULES_MAX`] rules, and none that can never
//! match, because `config check` would refuse them.

use super::acl::{self, Acls, MANAGER, OF_RESPONSES, TO_LOCAL};
use super::bounds::{Bounds, is_everything};
use super::condition::Condition;
use super::delay::Limited;
use super::draft::Fate;
use super::lines::Line;

/// A rule's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Allow,
    Deny,
    NoCache,
}

/// The choice for a line that denies requests which no rule can name, and no host bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unsure {
    /// Nothing is written.
    #[default]
    Refuse,
    /// The line is left out, so the result is more open than Squid.
    Open,
    /// The line denies more: all that its other conditions match.
    Close,
}

/// A rule, with where it comes from.
#[derive(Clone, Debug)]
pub struct Rule<'a> {
    pub action: Action,
    pub condition: Condition,
    /// The line; `None`: the end of the list, where no line matches.
    pub line: Option<&'a Line>,
    /// The line that makes an exception, for which the rule is a copy.
    pub exception: Option<&'a Line>,
    /// The names of the limits of its requests.
    pub limits: Vec<String>,
}

/// A line that became no rule, or not exactly one.
#[derive(Debug)]
pub struct Unsaid<'a> {
    pub line: &'a Line,
    pub reason: String,
    pub fate: Fate,
}

/// The rules of all lines.
#[derive(Debug)]
pub struct Compiled<'a> {
    pub rules: Vec<Rule<'a>>,
    pub unsaid: Vec<Unsaid<'a>>,
    /// Why nobody is served, whatever the lines say.
    pub closed: Option<String>,
    unsure: Unsure,
}

/// The requests of a line, from below and from above.
pub struct Matched {
    /// Requests that certainly match.
    pub sure: Side,
    /// Requests that may match.
    pub may: Side,
    /// Why the two differ.
    pub why: Option<String>,
}

/// Requests that meet one of the alternatives, and none of the exceptions.
#[derive(Clone, Debug)]
pub struct Side {
    pub alternatives: Vec<Condition>,
    pub exceptions: Vec<Condition>,
}

/// The rules of a list such as `http_access`. `rest` are the lines of it that are no settings of
/// their own; `all` decides what holds where no line matches.
pub fn compile<'a>(all: &[&Line], rest: &[&'a Line], acls: &Acls, unsure: Unsure) -> Compiled<'a> {
    let mut compiled = Compiled {
        rules: at_the_end(all),
        unsaid: Vec::new(),
        closed: None,
        unsure,
    };
    for (line, matched) in reached(rest, acls).iter().rev() {
        compiled.add(line, matched, acls);
    }
    // Lines were added from the last to the first.
    compiled.unsaid.reverse();
    if let Some(reason) = compiled.closed.take() {
        compiled.close(reason);
    }
    if let Err(reason) = compiled.leave_out_unreachable(acls) {
        compiled.close(reason);
    }
    compiled
}

/// The lines that decide about some request, with the requests that they match.
fn reached<'a>(lines: &[&'a Line], acls: &Acls) -> Vec<(&'a Line, Matched)> {
    let (mut reached, mut decided) = (Vec::new(), Vec::<Condition>::new());
    for line in lines {
        let matched = matched(line, acls);
        let is_decided = |condition: &Condition| {
            let mut earlier = decided.iter();
            earlier.any(|it| it.covers(condition, &acls.work).unwrap_or(false))
        };
        let may = &matched.may.alternatives;
        if !may.is_empty() && may.iter().all(is_decided) {
            continue;
        }
        let is_plain = matched.sure.exceptions.is_empty() && line.args.len() > 1;
        if is_plain && is_action(line.arg(0)) {
            let blanket = matched.sure.alternatives.iter();
            decided.extend(blanket.filter(|it| it.is_blanket()).cloned());
        }
        reached.push((*line, matched));
    }
    reached
}

/// Squid's decision where no line matches: the opposite of the last line, and `deny` without lines.
fn at_the_end<'a>(lines: &[&Line]) -> Vec<Rule<'a>> {
    // Squid skips a line without an `acl`, and one that neither allows nor denies.
    let counts = |line: &&&Line| line.args.len() > 1 && is_action(line.arg(0));
    let last = lines.iter().rfind(counts);
    vec![Rule {
        action: match last.is_some_and(|line| line.arg(0) == "deny") {
            true => Action::Allow,
            false => Action::Deny,
        },
        condition: Condition::default(),
        line: None,
        exception: None,
        limits: Vec::new(),
    }]
}

/// Whether a word is the action of a line.
pub fn is_action(word: &str) -> bool {
    ["allow", "deny"].contains(&word)
}

impl<'a> Compiled<'a> {
    /// Adds a line before all rules.
    fn add(&mut self, line: &'a Line, matched: &Matched, acls: &Acls) {
        let action = match line.arg(0) {
            "allow" => Action::Allow,
            "deny" => Action::Deny,
            _ => return self.leave_out(line, Fate::Missing, "neither allow nor deny"),
        };
        if line.args_from(1).is_empty() {
            return self.leave_out(line, Fate::Unneeded, acl::NO_ACL);
        }
        if matched.may.alternatives.is_empty() {
            return self.leave_out(line, Fate::Unneeded, never_reason(line, acls));
        }
        match action {
            Action::Deny => self.add_deny(line, matched, acls),
            _ => self.add_allow(line, matched, acls),
        }
    }

    /// Adds a line that allows, for the requests that certainly match.
    fn add_allow(&mut self, line: &'a Line, matched: &Matched, acls: &Acls) {
        let added = self.with_exceptions((line, Action::Allow), &matched.sure, acls);
        let why = match added {
            Ok(rules) => {
                self.rules.splice(..0, rules);
                matched.why.clone()
            }
            Err(reason) => Some(reason),
        };
        if let Some(why) = why {
            self.leave_out(line, Fate::Missing, &why);
        }
    }

    /// Adds a line that denies, for all requests that may match.
    fn add_deny(&mut self, line: &'a Line, matched: &Matched, acls: &Acls) {
        let exact = match &matched.why {
            None => self.with_exceptions((line, Action::Deny), &matched.may, acls),
            Some(why) => Err(why.clone()),
        };
        let why = match exact {
            Ok(rules) => return drop(self.rules.splice(..0, rules)),
            Err(why) => why,
        };
        // Without exceptions the line denies more, and needs no copies.
        let all = Side {
            exceptions: Vec::new(),
            ..matched.may.clone()
        };
        let with_exceptions = |side| self.with_exceptions((line, Action::Deny), side, acls);
        let closing = with_exceptions(&matched.may).or_else(|_| with_exceptions(&all));
        if !self.may_serve(&all.alternatives, acls) {
            let reason = "the lines after it deny these requests too";
            return self.leave_out(line, Fate::Unneeded, reason);
        }
        let is_bounded = all.alternatives.iter().all(Condition::is_about_hosts);
        let is_closing = is_bounded || self.unsure == Unsure::Close;
        match closing {
            Ok(rules) if is_closing => {
                self.rules.splice(..0, rules);
                let reason = match is_bounded {
                    true => format!("DENIES MORE, all of these hosts: {why}"),
                    false => format!("DENIES MORE, whatever has its other conditions: {why}"),
                };
                self.leave_out(line, Fate::Closed, &reason);
            }
            Ok(_) | Err(_) if self.unsure == Unsure::Close => {
                self.close(format!("{}: {why}", line.place));
            }
            _ => {
                // The part that can be named is denied anyway.
                let sure = self.with_exceptions((line, Action::Deny), &matched.sure, acls);
                self.rules.splice(..0, sure.unwrap_or_default());
                self.leave_out(line, Fate::Open, &format!("NOT DENIED: {why}"));
            }
        }
    }

    /// Whether the rules so far may serve a request of these conditions.
    fn may_serve(&self, conditions: &[Condition], acls: &Acls) -> bool {
        conditions.iter().any(|condition| {
            for rule in &self.rules {
                match (acls.and(&rule.condition, condition), rule.action) {
                    (Ok(None), _) => {}
                    (_, Action::Deny) => {
                        let covers = rule.condition.covers(condition, &acls.work);
                        if covers.unwrap_or(false) {
                            return false;
                        }
                    }
                    _ => return true,
                }
            }
            false
        })
    }

    /// The rules of a line: copies of the rules after it for its exceptions, then itself.
    fn with_exceptions(
        &self,
        (line, action): (&'a Line, Action),
        side: &Side,
        acls: &Acls,
    ) -> Result<Vec<Rule<'a>>, String> {
        let mut rules = Vec::new();
        let room = RULES_MAX.saturating_sub(self.rules.len());
        for condition in &side.alternatives {
            let guards = acls.product(std::slice::from_ref(condition), &side.exceptions)?;
            for guard in guards {
                for rule in &self.rules {
                    let Some(condition) = acls.and(&rule.condition, &guard)? else {
                        continue;
                    };
                    if !acls.is_writable(&condition)? {
                        return Err(TOO_MANY_NETWORKS.to_owned());
                    }
                    let decides_all = condition == guard;
                    rules.push(Rule {
                        condition,
                        exception: Some(line),
                        ..rule.clone()
                    });
                    if rules.len() > room {
                        return Err(format!("its exceptions need more than {RULES_MAX} rules"));
                    }
                    if decides_all {
                        break;
                    }
                }
            }
            rules.push(Rule {
                action,
                condition: condition.clone(),
                line: Some(line),
                exception: None,
                limits: Vec::new(),
            });
        }
        match rules.len() > room {
            true => Err(format!("there are more than {RULES_MAX} rules")),
            false => Ok(rules),
        }
    }

    /// Serves nobody, since what the lines say together cannot be written.
    pub fn close(&mut self, reason: String) {
        self.rules = at_the_end(&[]);
        self.closed = Some(reason);
    }

    /// Serves CONNECT before all rules, for a list about responses: a tunnel has none.
    pub fn spare_tunnels(&mut self) {
        if self.rules.iter().any(|rule| rule.action == Action::Deny) {
            let spared = Rule {
                action: Action::Allow,
                condition: Condition::of_connect(),
                line: None,
                exception: None,
                limits: Vec::new(),
            };
            self.rules.insert(0, spared);
        }
    }

    /// Takes from the requests that are served those that another list denies.
    pub fn restrict(&mut self, mut other: Compiled<'a>, acls: &Acls) {
        if let Some(reason) = other.closed.take() {
            self.close(reason);
        }
        let mut restricted = Vec::new();
        for rule in &self.rules {
            if rule.action != Action::Allow {
                restricted.push(rule.clone());
                continue;
            }
            match restricted_by(rule, &other.rules, acls) {
                Ok(rules) if restricted.len() + rules.len() <= RULES_MAX => {
                    restricted.extend(rules);
                }
                Ok(_) => return self.close(format!("more than {RULES_MAX} rules")),
                Err(reason) => return self.close(reason),
            }
        }
        self.rules = restricted;
        self.unsaid.append(&mut other.unsaid);
        if let Err(reason) = self.leave_out_unreachable(acls) {
            self.close(reason);
        }
    }

    /// Before each rule that serves, adds one that does not cache, for what `cache deny` names.
    pub fn add_uncached(&mut self, cache: &[&'a Line], acls: &Acls) {
        let mut uncached = self.uncached(cache, acls);
        let mut rules = Vec::new();
        for rule in &self.rules {
            if rule.action == Action::Allow {
                rules.extend(uncached.iter_mut().filter_map(|it| it.before(rule, acls)));
            }
            rules.push(rule.clone());
            if rules.len() > RULES_MAX || uncached.len() > RULES_MAX {
                for line in cache {
                    let reason = format!("they need more than {RULES_MAX} rules");
                    self.leave_out(line, Fate::Missing, &reason);
                }
                return;
            }
        }
        self.rules = rules;
        uncached.retain(|it| it.fault.is_some());
        uncached.dedup_by_key(|it| std::ptr::from_ref(it.line));
        for it in uncached {
            self.leave_out(it.line, Fate::Missing, &it.fault.unwrap_or_default());
        }
        if let Err(reason) = self.leave_out_unreachable(acls) {
            self.close(reason);
        }
    }

    /// The requests that are not to be cached: those that certainly match.
    fn uncached(&mut self, cache: &[&'a Line], acls: &Acls) -> Vec<Uncached<'a>> {
        let mut uncached = Vec::new();
        for line in cache {
            if uncached.len() > RULES_MAX {
                break;
            }
            if line.arg(0) != "deny" {
                let reason = "only `cache deny` without exceptions has a counterpart";
                self.leave_out(line, Fate::Missing, reason);
                continue;
            }
            let Matched { sure, why, .. } = matched(line, acls);
            if !sure.exceptions.is_empty() {
                self.leave_out(line, Fate::Missing, "its exception has no counterpart");
            } else if sure.alternatives.is_empty() {
                let reason = why.unwrap_or_else(|| "it matches no request".to_owned());
                self.leave_out(line, Fate::Missing, &reason);
            } else {
                uncached.extend(sure.alternatives.into_iter().map(|condition| Uncached {
                    line,
                    condition,
                    fault: why.clone(),
                }));
            }
        }
        uncached
    }

    /// Gives the requests that are served the limits of the first entry of `list` that matches; the
    /// last one matches all requests.
    ///
    /// # Errors
    /// The rules cannot say it; they are as before.
    pub fn limit(&mut self, list: &[Limited], acls: &Acls) -> Result<(), String> {
        let limited = self.limited(list, acls)?;
        let before = std::mem::replace(&mut self.rules, limited);
        let left_out = self.leave_out_unreachable(acls);
        if left_out.is_err() {
            self.rules = before;
        }
        left_out
    }

    fn limited(&self, list: &[Limited], acls: &Acls) -> Result<Vec<Rule<'a>>, String> {
        let mut rules = Vec::new();
        for rule in &self.rules {
            if rule.action == Action::Deny {
                rules.push(rule.clone());
                continue;
            }
            for limited in list {
                let Some(condition) = acls.and(&rule.condition, &limited.condition)? else {
                    continue;
                };
                if !acls.is_writable(&condition)? {
                    return Err(TOO_MANY_NETWORKS.to_owned());
                }
                let decides_all = condition == rule.condition;
                let limits = rule.limits.iter().chain(limited.limits.iter());
                rules.push(Rule {
                    condition,
                    limits: limits.cloned().collect(),
                    ..rule.clone()
                });
                if decides_all {
                    break;
                }
            }
            if rules.len() > RULES_MAX {
                return Err(format!("they need more than {RULES_MAX} rules"));
            }
        }
        Ok(rules)
    }

    /// Removes rules behind one that decides all of their requests.
    fn leave_out_unreachable(&mut self, acls: &Acls) -> Result<(), String> {
        let mut reached = Vec::<Rule<'a>>::new();
        'rules: for rule in std::mem::take(&mut self.rules) {
            for before in &reached {
                if before.condition.covers(&rule.condition, &acls.work)? {
                    continue 'rules;
                }
            }
            reached.push(rule);
        }
        self.rules = reached;
        Ok(())
    }

    /// Notes that a line became no rule, or not exactly one.
    pub fn leave_out(&mut self, line: &'a Line, fate: Fate, reason: &str) {
        self.unsaid.push(Unsaid {
            line,
            reason: reason.to_owned(),
            fate,
        });
    }
}

/// A rule that serves, for each of the rules that decide about its requests in another list.
fn restricted_by<'a>(
    rule: &Rule<'a>,
    others: &[Rule<'a>],
    acls: &Acls,
) -> Result<Vec<Rule<'a>>, String> {
    let mut rules = Vec::new();
    for other in others {
        let Some(condition) = acls.and(&rule.condition, &other.condition)? else {
            continue;
        };
        if !acls.is_writable(&condition)? {
            return Err(TOO_MANY_NETWORKS.to_owned());
        }
        let decides_all = condition == rule.condition;
        rules.push(match other.action {
            Action::Deny => Rule {
                condition,
                ..other.clone()
            },
            _ => Rule {
                condition,
                ..rule.clone()
            },
        });
        if decides_all {
            break;
        }
    }
    Ok(rules)
}

/// Requests that are not to be cached.
struct Uncached<'a> {
    line: &'a Line,
    condition: Condition,
    /// Why not all of them are named by rules.
    fault: Option<String>,
}

impl<'a> Uncached<'a> {
    /// The rule before one that serves.
    fn before(&mut self, rule: &Rule<'a>, acls: &Acls) -> Option<Rule<'a>> {
        match self.condition_before(rule, acls) {
            Ok(condition) => Some(Rule {
                action: Action::NoCache,
                condition: condition?,
                line: Some(self.line),
                exception: rule.exception,
                limits: Vec::new(),
            }),
            Err(fault) => {
                self.fault.get_or_insert(fault);
                None
            }
        }
    }

    fn condition_before(&self, rule: &Rule<'_>, acls: &Acls) -> Result<Option<Condition>, String> {
        let Some(condition) = acls.and(&rule.condition, &self.condition)? else {
            return Ok(None);
        };
        match acls.is_writable(&condition)? {
            true => Ok(Some(condition)),
            false => Err(TOO_MANY_NETWORKS.to_owned()),
        }
    }
}

/// Why no request matches a line.
fn never_reason(line: &Line, acls: &Acls) -> &'static str {
    let kinds = line.args_from(1).iter().filter_map(|it| acls.get(&it.text));
    let kinds: Vec<&str> = kinds.map(|acl| &*acl.kind).collect();
    if kinds.contains(&MANAGER) {
        return "there is no cache manager; figures are at the address `admin`";
    }
    match kinds.contains(&TO_LOCAL) || kinds.contains(&"dst") {
        true => "no client can reach these addresses: see allow_destination and deny_destination",
        false => "no request matches all of its conditions",
    }
}

/// The requests that all `acl`s of a line match together. Where the proxy has no condition for
/// them, or needs too many, fewer are sure and more may match.
pub fn matched(line: &Line, acls: &Acls) -> Matched {
    let mut positive = Bounds::exact(vec![Condition::default()]);
    let (mut sure_exceptions, mut may_exceptions) = (Vec::new(), Vec::new());
    for word in line.args_from(1) {
        let (name, is_negated) = match word.text.strip_prefix('!') {
            Some(name) => (name, true),
            None => (&*word.text, false),
        };
        let bounds = match acls.named(name) {
            // Before there is a response, such an `acl` matches nothing.
            Ok((acl, _)) if is_request_list(line) && OF_RESPONSES.contains(&&*acl.kind) => {
                Bounds::never()
            }
            Ok((_, bounds)) => bounds,
            Err(reason) => Bounds::unknown(reason),
        };
        if !is_negated {
            acls.narrow(&mut positive, bounds);
            continue;
        }
        let sure = writable_opposite(&bounds.may, acls);
        let may = writable_opposite(&bounds.sure, acls);
        // Without an opposite, the requests are exceptions of the line.
        let everything = || vec![Condition::default()];
        if sure.is_none() {
            sure_exceptions.extend(bounds.may);
        }
        if may.is_none() {
            may_exceptions.extend(bounds.sure);
        }
        let opposite = Bounds {
            sure: sure.unwrap_or_else(everything),
            may: may.unwrap_or_else(everything),
            why: bounds.why,
        };
        acls.narrow(&mut positive, opposite);
    }
    let mut matched = Matched {
        sure: Side {
            alternatives: positive.sure,
            exceptions: sure_exceptions,
        },
        may: Side {
            alternatives: positive.may,
            exceptions: may_exceptions,
        },
        why: positive.why,
    };
    keep_writable(&mut matched, acls);
    matched
}

/// Leaves out of what is sure, and widens of what may match, conditions that no rule can have.
fn keep_writable(matched: &mut Matched, acls: &Acls) {
    let Matched { sure, may, why } = matched;
    let can_write = |condition: &Condition| acls.is_writable(condition).unwrap_or(false);
    let all = sure.alternatives.len();
    sure.alternatives.retain(can_write);
    if sure.exceptions.len() > EXCEPTIONS_MAX {
        sure.alternatives.clear();
    }
    if sure.alternatives.len() < all {
        why.get_or_insert_with(|| TOO_MANY_NETWORKS.to_owned());
    }
    for condition in &mut may.alternatives {
        if !can_write(condition) {
            condition.clients = None;
            condition.destinations = None;
            why.get_or_insert_with(|| TOO_MANY_NETWORKS.to_owned());
        }
    }
    if may.exceptions.len() > EXCEPTIONS_MAX {
        may.exceptions.clear();
        why.get_or_insert_with(|| format!("more than {EXCEPTIONS_MAX} exceptions"));
    }
}

/// Whether a line is of a list that is asked before there is a response.
fn is_request_list(line: &Line) -> bool {
    line.name != "http_reply_access"
}

/// The opposite of `alternatives`, if there is one and rules can have it.
fn writable_opposite(alternatives: &[Condition], acls: &Acls) -> Option<Vec<Condition>> {
    // Without work left, the requests stay exceptions, and the rules end as a whole.
    let opposite = acls.opposite(alternatives).ok()??;
    let can_write = |it: &Condition| acls.is_writable(it).unwrap_or(false);
    (is_everything(&opposite) || opposite.iter().all(can_write)).then_some(opposite)
}

/// Rules that a configuration may have.
pub const RULES_MAX: usize = 1024;
pub const TOO_MANY_NETWORKS: &str = "it needs too many networks";
/// Most alternatives that one line excepts.
const EXCEPTIONS_MAX: usize = 256;
/// Clients that the proxy serves without rules.
pub const PRIVATE: [&str; 7] = [
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::rc::Rc;

    use super::super::lines;
    use super::*;

    /// The ACLs of every test.
    const ACLS: &str = "acl pupils src 10.1.0.0/16\nacl staff src 10.2.0.0/16\n\
        acl net src 10.0.0.0/8\nacl good dstdomain .good.test\nacl games dstdomain .games.test\n\
        acl lessons time D 08:00-15:30\nacl web port 80 443\nacl odd url_regex x\n\
        acl boss proxy_auth zoe\nacl private dst 10.0.0.0/8\n";

    fn with_lines(text: &str, check: impl Fn(Compiled<'_>)) {
        let all = format!("{ACLS}{text}");
        let all: Vec<Line> = lines::lines("squid.conf", &all).collect();
        let (acls, others): (Vec<Line>, Vec<Line>) =
            all.into_iter().partition(|line| line.name == "acl");
        let acls = Acls::new(&acls, &Ok(Rc::new(BTreeSet::from(["zoe".to_owned()]))));
        let of =
            |name: &str| -> Vec<&Line> { others.iter().filter(|it| it.name == name).collect() };
        let access = of("http_access");
        let mut compiled = compile(&access, &access, &acls, Unsure::Open);
        compiled.add_uncached(&of("cache"), &acls);
        check(compiled);
    }

    /// What the rules say, a word for each.
    fn rules(text: &str) -> Vec<String> {
        let said = std::cell::RefCell::new(Vec::new());
        with_lines(text, |compiled| {
            *said.borrow_mut() = compiled.rules.iter().map(brief).collect();
        });
        said.into_inner()
    }

    fn brief(rule: &Rule<'_>) -> String {
        let condition = &rule.condition;
        let clients = condition
            .clients
            .as_ref()
            .map(|it| it.networks().unwrap().join(","));
        let hosts = condition.destinations.as_ref();
        let hosts = hosts.map(|it| it.names.iter().cloned().collect::<Vec<_>>().join(","));
        let ports = condition
            .ports
            .as_ref()
            .map(|it| format!("{:?}", it.iter().collect::<Vec<_>>()));
        let times = condition
            .times
            .as_ref()
            .map(|it| super::super::week::written(it).join(","));
        let parts = [clients, hosts, ports, times].into_iter().flatten();
        let parts: Vec<String> = parts.collect();
        format!("{:?} {}", rule.action, parts.join(" "))
            .trim_end()
            .to_owned()
    }

    #[test]
    fn lines_become_rules_in_their_order() {
        let said = rules(
            "http_access deny pupils games lessons\nhttp_access allow net\n\
                          http_access deny all\n",
        );
        assert_eq!(
            said,
            [
                "Deny 10.1.0.0/16 .games.test Mon-Fri 08:00-15:31",
                "Allow 10.0.0.0/8",
                "Deny"
            ]
        );
    }

    #[test]
    fn an_opposite_of_clients_ports_or_times_is_written_as_one() {
        assert_eq!(
            rules(
                "http_access deny !web\nhttp_access deny pupils !lessons\nhttp_access allow net\n"
            ),
            [
                "Deny [(1, 79), (81, 442), (444, 65535)]",
                "Deny 10.1.0.0/16 Mon-Fri 00:00-08:00,Mon-Fri 15:31-24:00,Sat-Sun",
                "Allow 10.0.0.0/8",
                "Deny"
            ]
        );
    }

    #[test]
    fn an_exception_of_hosts_copies_the_rules_after_it() {
        let said =
            rules("http_access deny pupils !good\nhttp_access allow net\nhttp_access deny all\n");
        assert_eq!(
            said,
            [
                "Allow 10.1.0.0/16 .good.test",
                "Deny 10.1.0.0/16",
                "Allow 10.0.0.0/8",
                "Deny"
            ]
        );
    }

    #[test]
    fn a_line_that_cannot_be_said_is_left_out_and_told() {
        with_lines(
            "http_access allow odd\nhttp_access deny odd\nhttp_access allow !odd\n\
                    http_access maybe net\nhttp_access allow none\nhttp_access allow private\n\
                    http_access allow net !private\n",
            |compiled| {
                let said: Vec<String> = compiled.rules.iter().map(brief).collect();
                assert_eq!(said, ["Allow", "Deny"], "only the addresses in URLs");
                assert!(compiled.rules[0].condition.destinations.is_some());
                let fates: Vec<Fate> = compiled.unsaid.iter().map(|it| it.fate).collect();
                let mut expected = [Fate::Missing; 7];
                expected[1] = Fate::Open;
                assert_eq!(fates, expected);
                assert_eq!(compiled.unsaid[0].line.arg(0), "allow");
            },
        );
    }

    #[test]
    fn where_nothing_matches_the_opposite_of_the_last_line_holds() {
        assert_eq!(
            rules("http_access deny games\n"),
            ["Deny .games.test", "Allow"]
        );
        assert_eq!(
            rules("http_access allow net\n"),
            ["Allow 10.0.0.0/8", "Deny"]
        );
        assert_eq!(rules("http_access maybe net\n"), ["Deny"]);
        assert_eq!(rules(""), ["Deny"]);
    }

    /// The rules with this choice, and how many lines are open and closed.
    fn chosen(text: &str, unsure: Unsure) -> (Vec<String>, usize, usize) {
        let all = format!("{ACLS}{text}");
        let all: Vec<Line> = lines::lines("squid.conf", &all).collect();
        let (acls, others): (Vec<Line>, Vec<Line>) =
            all.into_iter().partition(|line| line.name == "acl");
        let acls = Acls::new(&acls, &Err("none".to_owned()));
        let lines: Vec<&Line> = others.iter().collect();
        let compiled = compile(&lines, &lines, &acls, unsure);
        let count = |fate| compiled.unsaid.iter().filter(|it| it.fate == fate).count();
        let (open, closed) = (count(Fate::Open), count(Fate::Closed));
        (compiled.rules.iter().map(brief).collect(), open, closed)
    }

    #[test]
    fn a_line_that_denies_by_what_rules_do_not_know_denies_its_hosts() {
        let text = "http_access deny odd games\nhttp_access allow net\n";
        let rules = ["Deny .games.test", "Allow 10.0.0.0/8", "Deny"];
        let expected = (rules.map(str::to_owned).to_vec(), 0, 1);
        assert_eq!(chosen(text, Unsure::Refuse), expected);
        assert_eq!(chosen(text, Unsure::Open), expected);
    }

    #[test]
    fn a_line_that_denies_and_names_no_host_is_open_or_denies_more() {
        let text = "http_access deny pupils odd\nhttp_access allow net\n";
        let open = (vec!["Allow 10.0.0.0/8".to_owned(), "Deny".to_owned()], 1, 0);
        assert_eq!(chosen(text, Unsure::Refuse), open);
        assert_eq!(chosen(text, Unsure::Open), open);
        let rules = ["Deny 10.1.0.0/16", "Allow 10.0.0.0/8", "Deny"];
        let closed = (rules.map(str::to_owned).to_vec(), 0, 1);
        assert_eq!(chosen(text, Unsure::Close), closed);
    }

    #[test]
    fn a_line_that_denies_what_is_denied_anyway_is_not_open() {
        for text in [
            "http_access allow net\nhttp_access deny odd\nhttp_access deny all\n",
            "http_access allow net\nhttp_access deny net odd\nhttp_access deny good\n",
            "http_access deny pupils odd\nhttp_access deny pupils\nhttp_access allow net\n",
        ] {
            let (_, open, closed) = chosen(text, Unsure::Refuse);
            assert_eq!((open, closed), (0, 0), "{text}");
        }
    }

    #[test]
    fn the_opposite_of_an_unknown_condition_denies_and_allows_nothing() {
        // Users who cannot log in here: `!boss` may be anybody.
        let text = "http_access deny !boss\nhttp_access allow net\n";
        assert_eq!(chosen(text, Unsure::Close).0, ["Deny"]);
        let text = "http_access allow net !odd\nhttp_access deny all\n";
        assert_eq!(chosen(text, Unsure::Refuse).0, ["Deny"]);
    }

    #[test]
    fn another_list_takes_from_what_is_served() {
        with_lines(
            "http_access allow net\ncache deny good\n",
            |mut compiled| {
                let more = "http_reply_access deny games\nhttp_reply_access allow all\n";
                let more: Vec<Line> = lines::lines("squid.conf", more).collect();
                let acl_lines: Vec<Line> = lines::lines("squid.conf", ACLS).collect();
                let acls = Acls::new(&acl_lines, &Err("none".to_owned()));
                let more: Vec<&Line> = more.iter().collect();
                compiled.rules.retain(|rule| rule.action != Action::NoCache);
                let other = compile(&more, &more, &acls, Unsure::Refuse);
                // The lines of the other list live as long as those of the first.
                let rules: Vec<String> = compiled
                    .rules
                    .iter()
                    .flat_map(|rule| match rule.action {
                        Action::Allow => restricted_by(rule, &other.rules, &acls).unwrap(),
                        _ => vec![rule.clone()],
                    })
                    .map(|rule| brief(&rule))
                    .collect();
                let expected = ["Deny 10.0.0.0/8 .games.test", "Allow 10.0.0.0/8", "Deny"];
                assert_eq!(rules, expected);
            },
        );
    }

    #[test]
    fn a_line_without_an_acl_opens_nothing() {
        let said = rules("http_access allow\nhttp_access allow net\nhttp_access deny\n");
        assert_eq!(said, ["Allow 10.0.0.0/8", "Deny"]);
    }

    #[test]
    fn an_acl_of_addresses_of_destinations_is_inexact_inside_another_too() {
        let text = "http_access allow net !inside\nhttp_access deny inside\n";
        with_lines(
            &format!("acl inside any-of private games\n{text}"),
            |compiled| {
                let allows = compiled
                    .rules
                    .iter()
                    .filter(|it| it.action == Action::Allow);
                let of_lines = allows.filter(|it| it.line.is_some());
                assert_eq!((of_lines.count(), compiled.unsaid.len()), (0, 2));
            },
        );
    }

    #[test]
    fn what_is_not_cached_is_served_by_a_rule_of_its_own() {
        let said = rules(
            "http_access deny games\nhttp_access allow net\nhttp_access deny all\n\
                          cache deny good\ncache allow all\n",
        );
        assert_eq!(
            said,
            [
                "Deny .games.test",
                "NoCache 10.0.0.0/8 .good.test",
                "Allow 10.0.0.0/8",
                "Deny"
            ]
        );
    }

    #[test]
    fn what_is_cached_although_a_line_denies_it_is_told() {
        with_lines("http_access allow net\ncache deny private\n", |compiled| {
            let uncached = |it: &&Rule<'_>| it.action == Action::NoCache;
            assert_eq!(compiled.rules.iter().filter(uncached).count(), 1);
            assert_eq!(compiled.unsaid.len(), 1, "only addresses in URLs");
        });
        let (a, b) = (
            tempfile::NamedTempFile::new().unwrap(),
            tempfile::NamedTempFile::new().unwrap(),
        );
        let (a, b) = (a.path().display(), b.path().display());
        let lists = format!("acl a dstdomain \"{a}\"\nacl b dstdomain \"{b}\"\n");
        let lines = "http_access allow a\ncache deny b\nhttp_access allow b\n";
        with_lines(&format!("{lists}{lines}"), |compiled| {
            let told: Vec<&str> = compiled.unsaid.iter().map(|it| &*it.line.name).collect();
            assert_eq!(told, ["cache"], "{:?}", compiled.unsaid);
        });
    }

    #[test]
    fn rules_that_can_never_match_are_left_out() {
        let said = rules(
            "http_access allow net\nhttp_access deny pupils\nhttp_access deny all\n\
                          http_access allow staff\n",
        );
        assert_eq!(said, ["Allow 10.0.0.0/8", "Deny"]);
    }

    #[test]
    fn exceptions_of_exceptions_do_not_grow_without_bound() {
        let many = "http_access deny !good games\nhttp_access deny !games good\n".repeat(300);
        with_lines(&many, |compiled| {
            assert!(compiled.rules.len() <= RULES_MAX);
        });
        let many: String = (0..12)
            .map(|n| format!("acl h{n} dstdomain .h{n}.test\n"))
            .collect();
        let lines: String = (0..12)
            .map(|n| format!("http_access deny !h{n}\n"))
            .collect();
        with_lines(&format!("{many}{lines}"), |compiled| {
            assert!(compiled.rules.len() <= RULES_MAX);
        });
    }

    /// A request, as Squid's lines and our rules look at it.
    struct Request {
        client: u128,
        host: &'static str,
        port: u128,
        minute: u128,
    }

    fn holds(condition: &Condition, request: &Request) -> bool {
        let has =
            |ranges: &super::super::ranges::Ranges, n| ranges.iter().any(|(a, b)| a <= n && n <= b);
        let host_is = |name: &String| match name.strip_prefix('.') {
            Some(domain) => request.host == domain || request.host.ends_with(name.as_str()),
            None => request.host == name,
        };
        condition
            .clients
            .as_ref()
            .is_none_or(|it| has(&it.v4, request.client))
            && condition
                .destinations
                .as_ref()
                .is_none_or(|it| it.names.iter().any(host_is))
            && condition
                .ports
                .as_ref()
                .is_none_or(|it| has(it, request.port))
            && condition
                .times
                .as_ref()
                .is_none_or(|it| has(it, request.minute))
    }

    /// Squid's decision, straight from its lines.
    fn squid(lines: &[(bool, Vec<(&str, bool)>)], acls: &Acls, request: &Request) -> bool {
        for (allows, words) in lines {
            let matches = words.iter().all(|(name, negated)| {
                let any = acls
                    .literal(name)
                    .unwrap()
                    .iter()
                    .any(|it| holds(it, request));
                any != *negated
            });
            if matches {
                return *allows;
            }
        }
        match lines.last() {
            Some((allows, _)) => !allows,
            None => false,
        }
    }

    #[test]
    fn rules_decide_as_squid_does() {
        let names = [
            "pupils", "staff", "net", "good", "games", "lessons", "web", "all",
        ];
        let acl_lines: Vec<Line> = lines::lines("squid.conf", ACLS).collect();
        let acls = Acls::new(&acl_lines, &Err("none".to_owned()));
        let mut rng = fastrand::Rng::with_seed(7);
        let mut decided = [0, 0];
        for round in 0..400 {
            let lines: Vec<(bool, Vec<(&str, bool)>)> = (0..rng.usize(1..6))
                .map(|_| {
                    let words = (0..rng.usize(1..4)).map(|_| {
                        let name = names[rng.usize(..names.len())];
                        (name, name != "all" && rng.bool())
                    });
                    let words = words.collect();
                    (rng.bool(), words)
                })
                .collect();
            let text: String = lines
                .iter()
                .map(|(allows, words)| {
                    let words: Vec<String> = words
                        .iter()
                        .map(|(name, negated)| format!("{}{name}", if *negated { "!" } else { "" }))
                        .collect();
                    let action = if *allows { "allow" } else { "deny" };
                    format!("http_access {action} {}\n", words.join(" "))
                })
                .collect();
            let read: Vec<Line> = lines::lines("squid.conf", &text).collect();
            let read: Vec<&Line> = read.iter().collect();
            let compiled = compile(&read, &read, &acls, Unsure::Refuse);
            assert!(
                compiled.unsaid.iter().all(|it| it.fate == Fate::Unneeded),
                "round {round}: {:?}",
                compiled.unsaid
            );
            for _ in 0..60 {
                let request = Request {
                    client: [0x0a01_0001, 0x0a02_0001, 0x0a03_0001, 0xc000_0201][rng.usize(..4)],
                    host: ["a.good.test", "games.test", "other.test"][rng.usize(..3)],
                    port: [80, 443, 8080][rng.usize(..3)],
                    minute: rng.u128(0..=super::super::condition::MINUTE_MAX),
                };
                let mut rules = compiled.rules.iter();
                let rule = rules.find(|rule| holds(&rule.condition, &request)).unwrap();
                let ours = rule.action == Action::Allow;
                let theirs = squid(&lines, &acls, &request);
                assert_eq!(ours, theirs, "round {round}:\n{text}");
                decided[usize::from(ours)] += 1;
            }
        }
        assert!(decided[0] > 1000 && decided[1] > 1000, "{decided:?}");
    }
}
