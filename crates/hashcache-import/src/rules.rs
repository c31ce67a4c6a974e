//! Squid's `http_access` and `cache`, as access rules.
//!
//! Both languages use the first rule that matches, so a line becomes a rule in its place: its
//! `acl`s are conditions, and an `acl` with `!` is an exception (`deny pupils !good` denies pupils
//! except for good). An `acl` with several alternatives becomes a rule for each.
//!
//! Squid has several lists, each of which must allow a request, but we have only one list. So a
//! rule that serves is replaced by its parts, one for each line of the other list
//! ([`Compiled::refine`]).
//!
//! Invariants: a rule that serves never serves more requests than its line. A rule that denies
//! denies all requests of its line, unless the operator accepts an open result ([`Unsure::Open`])
//! or nothing is written ([`Unsure::Refuse`]). There are at most [`RULES_MAX`] rules and
//! exceptions, and no rule that can never match because of its clients: `config check` would refuse
//! it.

use std::rc::Rc;

use super::acl::{self, Acls, MANAGER, OF_RESPONSES, TO_LOCAL};
use super::address::Addresses;
use super::bounds::Bounds;
use super::condition::{Condition, Elements as _};
use super::draft::Fate;
use super::lines::{Line, Word};
use super::work::Work;

/// A rule's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Allow,
    Deny,
    NoCache,
}

/// The choice for a line that denies requests that no rule can express and that are not limited to
/// known hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unsure {
    /// Nothing is written.
    #[default]
    Refuse,
    /// The line is left out, so the result is more open than Squid.
    Open,
    /// The line denies more: all requests that match its other conditions.
    Close,
}

/// A rule and its source.
#[derive(Clone, Debug)]
pub struct Rule<'a> {
    pub action: Action,
    pub condition: Condition,
    /// The line; `None`: the default where no line matches.
    pub line: Option<&'a Line>,
    /// Names of the limits that apply to the requests.
    pub limits: Vec<String>,
}

/// A line that became no rule, or not an exact rule.
#[derive(Debug)]
pub struct Unsaid<'a> {
    pub line: &'a Line,
    pub reason: String,
    pub fate: Fate,
}

/// The rules for all lines.
#[derive(Debug)]
pub struct Compiled<'a> {
    pub rules: Vec<Rule<'a>>,
    pub unsaid: Vec<Unsaid<'a>>,
    /// Reason why no request is served, regardless of the lines.
    pub closed: Option<String>,
}

/// Compiles the rules for a list such as `http_access`. `rest` are the lines that did not become
/// settings; `all` determines the decision where no line matches.
pub fn compile<'a>(all: &[&Line], rest: &[&'a Line], acls: &Acls, unsure: Unsure) -> Compiled<'a> {
    let mut compiled = Compiled {
        rules: vec![at_the_end(all)],
        unsaid: Vec::new(),
        closed: None,
    };
    match reached(rest, acls) {
        Ok(lines) => {
            // From the last line to the first: a `deny` that no rule can express may be left out
            // only if no rule behind it serves its requests.
            for (line, matched) in lines.iter().rev() {
                compiled.add(line, matched, acls, unsure);
            }
            compiled.rules.reverse();
            compiled.unsaid.reverse();
            compiled.finish(&acls.work);
        }
        Err(reason) => compiled.close(reason),
    }
    compiled
}

/// Returns the lines that decide about any request, with the requests that they match.
///
/// # Errors
/// There are too many lines.
fn reached<'a>(lines: &[&'a Line], acls: &Acls) -> Result<Vec<(&'a Line, Bounds)>, String> {
    let (mut reached, mut decided, mut count) = (Vec::new(), Decided::default(), 0);
    for line in lines {
        let matched = matched(line, 1, acls);
        let may = &matched.may;
        if !may.is_empty() && may.iter().all(|it| decided.has(it, &acls.work)) {
            continue;
        }
        if line.args.len() > 1 && is_action(line.arg(0)) {
            for condition in &matched.sure {
                decided.add(condition, &acls.work);
            }
        }
        let alternatives = may.iter().chain(&matched.sure);
        count += 1 + alternatives.map(Condition::rule_count).sum::<usize>();
        if count > LINES_MAX {
            return Err(too_many());
        }
        reached.push((*line, matched));
    }
    // Without work left, the lines' conditions were treated as unknown.
    acls.work.spend(1)?;
    Ok(reached)
}

/// Clients for which an earlier rule decides about every request.
#[derive(Default)]
struct Decided(Addresses);

impl Decided {
    /// Returns true if all requests are decided. Without work left, they count as undecided.
    fn has(&self, condition: &Condition, work: &Work) -> bool {
        let all = || Rc::new(Addresses::all());
        let clients = condition.clients.clone().unwrap_or_else(all);
        // Comparing ranges is faster than comparing names.
        let ranges = self.0.work() + clients.work();
        work.spend(ranges / 8).is_ok() && self.0.covers(&clients)
    }

    fn add(&mut self, condition: &Condition, work: &Work) {
        if condition.is_blanket() && !self.has(condition, work) {
            self.0 = match &condition.clients {
                Some(clients) => self.0.union(clients),
                None => Addresses::all(),
            };
        }
    }
}

/// Returns true if Squid serves requests that no line matches: the opposite of the last line. Squid
/// skips a line without an `acl`, and a line that neither allows nor denies. `None`: it skips all
/// lines.
pub fn ends_open(lines: &[&Line]) -> Option<bool> {
    let counts = |line: &&&Line| line.args.len() > 1 && is_action(line.arg(0));
    lines.iter().rfind(counts).map(|line| line.arg(0) == "deny")
}

/// Squid's decision where no line matches; without lines, it denies.
fn at_the_end<'a>(lines: &[&Line]) -> Rule<'a> {
    Rule {
        action: match ends_open(lines) {
            Some(true) => Action::Allow,
            _ => Action::Deny,
        },
        condition: Condition::default(),
        line: None,
        limits: Vec::new(),
    }
}

/// Returns true if a word is an action.
pub fn is_action(word: &str) -> bool {
    ["allow", "deny"].contains(&word)
}

impl<'a> Compiled<'a> {
    /// Adds a line; the rules behind it were added before.
    fn add(&mut self, line: &'a Line, matched: &Bounds, acls: &Acls, unsure: Unsure) {
        let action = match line.arg(0) {
            "allow" => Action::Allow,
            "deny" => Action::Deny,
            _ => return self.leave_out(line, Fate::Missing, "neither allow nor deny"),
        };
        if line.args_from(1).is_empty() {
            return self.leave_out(line, Fate::Unneeded, acl::NO_ACL);
        }
        match (&matched.why, action) {
            _ if matched.may.is_empty() => {
                self.leave_out(line, Fate::Unneeded, never_reason(line, acls));
            }
            (None, _) => self.push((line, action), &matched.may),
            (Some(why), Action::Deny) => self.add_deny(line, (matched, why), acls, unsure),
            (Some(why), _) => {
                self.push((line, action), &matched.sure);
                self.leave_out(line, Fate::Missing, why);
            }
        }
        self.stop_logged_out(line, acls, unsure);
    }

    /// Denies requests without a login that Squid stops at a line, if rules behind the line would
    /// serve them.
    fn stop_logged_out(&mut self, line: &'a Line, acls: &Acls, unsure: Unsure) {
        let logged_out = logged_out(line, acls);
        let (LoggedOut::Asked(bounds) | LoggedOut::Unchecked(bounds)) = &logged_out else {
            return;
        };
        let is_silent = |rule: &Rule<'_>| {
            let mut except = rule.condition.except.iter();
            rule.condition.users.is_none() && !except.any(Condition::asks)
        };
        if !self.may_serve(&bounds.may, &acls.work, is_silent) {
            return;
        }
        match (&logged_out, &bounds.why) {
            (LoggedOut::Unchecked(_), Some(why)) => {
                let why = format!("requests without a login: {why}");
                self.add_deny(line, (bounds, &why), acls, unsure);
            }
            (_, why) => {
                self.push((line, Action::Deny), &bounds.may);
                if let Some(why) = why {
                    let reason = format!("DENIES MORE, requests without a login: {why}");
                    self.leave_out(line, Fate::Closed, &reason);
                }
            }
        }
    }

    /// Adds a line that denies and is not known exactly.
    fn add_deny(
        &mut self,
        line: &'a Line,
        (matched, why): (&Bounds, &str),
        acls: &Acls,
        unsure: Unsure,
    ) {
        if !self.may_serve(&matched.may, &acls.work, |_| true) {
            let reason = "the lines after it deny these requests too";
            return self.leave_out(line, Fate::Unneeded, reason);
        }
        let is_bounded = matched.may.iter().all(Condition::is_about_hosts);
        if !is_bounded && unsure != Unsure::Close {
            // The part that can be expressed is denied anyway.
            self.push((line, Action::Deny), &matched.sure);
            return self.leave_out(line, Fate::Open, &format!("NOT DENIED: {why}"));
        }
        self.push((line, Action::Deny), &matched.may);
        let reason = if is_bounded {
            format!("DENIES MORE, all of these hosts: {why}")
        } else {
            format!("DENIES MORE, whatever has its other conditions: {why}")
        };
        self.leave_out(line, Fate::Closed, &reason);
    }

    /// Returns true if any rule so far may serve a request with these conditions; only serving
    /// rules for which `counts` is true count. The rules are in reverse order: the last matches
    /// first.
    fn may_serve(
        &self,
        conditions: &[Condition],
        work: &Work,
        counts: impl Fn(&Rule<'_>) -> bool,
    ) -> bool {
        conditions.iter().any(|condition| {
            for rule in self.rules.iter().rev() {
                match rule.action {
                    Action::Deny if rule.condition.covers(condition, work) => return false,
                    Action::Deny => {}
                    _ if rule.condition.and(condition, work) == Ok(None) => {}
                    _ if !counts(rule) => {}
                    _ => return true,
                }
            }
            false
        })
    }

    fn push(&mut self, (line, action): (&'a Line, Action), conditions: &[Condition]) {
        self.rules
            .extend(conditions.iter().rev().map(|condition| Rule {
                action,
                condition: condition.clone(),
                line: Some(line),
                limits: Vec::new(),
            }));
    }

    /// Serves no request, because the lines together cannot be written.
    pub fn close(&mut self, reason: String) {
        self.rules = vec![at_the_end(&[])];
        self.closed = Some(reason);
    }

    /// Serves CONNECT before all rules, for a list about responses: a tunnel has none.
    pub fn spare_tunnels(&mut self) {
        if self.rules.iter().any(|rule| rule.action == Action::Deny) {
            let spared = Rule {
                condition: Condition::of_connect(),
                action: Action::Allow,
                ..at_the_end(&[])
            };
            self.rules.insert(0, spared);
        }
    }

    /// Denies the requests that another list denies.
    pub fn restrict(&mut self, other: Compiled<'a>, acls: &Acls) {
        self.unsaid.extend(other.unsaid);
        if let Some(reason) = other.closed {
            return self.close(reason);
        }
        let parts: Vec<_> = other
            .rules
            .iter()
            .map(|rule| (rule.condition.clone(), rule))
            .collect();
        let restricted = self.refine(&parts, &acls.work, Err, |rule, other| match other.action {
            Action::Deny => (*other).clone(),
            _ => rule.clone(),
        });
        match restricted {
            Ok(rules) => {
                self.rules = rules;
                self.finish(&acls.work);
            }
            Err(reason) => self.close(reason),
        }
    }

    /// Serves requests without the store if `cache` lines deny them and rules can express them.
    pub fn add_uncached(&mut self, lines: &[&'a Line], acls: &Acls) {
        let mut parts = Vec::new();
        for line in lines {
            let Bounds { sure, why, .. } = matched(line, 1, acls);
            let action = match line.arg(0) {
                "allow" => Action::Allow,
                "deny" => Action::NoCache,
                _ => {
                    self.leave_out(line, Fate::Missing, "neither allow nor deny");
                    continue;
                }
            };
            match (why, action) {
                (Some(why), _) => self.leave_out(line, Fate::Missing, &why),
                (None, Action::Allow) => {
                    self.leave_out(line, Fate::Unneeded, "what it names is stored as usual");
                }
                (None, _) => {}
            }
            if parts.len() <= RULES_MAX {
                parts.extend(sure.into_iter().map(|it| (it, (action, Some(*line)))));
            }
        }
        let end = match ends_open(lines) {
            None => return,
            Some(true) => Action::Allow,
            Some(false) => Action::NoCache,
        };
        parts.push((Condition::default(), (end, None)));
        let mut fault = None;
        let ignore = |reason| {
            fault.get_or_insert(reason);
            Ok(())
        };
        let uncached = if parts.len() <= RULES_MAX {
            self.refine(&parts, &acls.work, ignore, |rule, (action, line)| Rule {
                action: *action,
                line: line.filter(|_| *action == Action::NoCache).or(rule.line),
                ..rule.clone()
            })
        } else {
            Err(too_many())
        };
        if let Some(reason) = uncached.as_ref().err().or(fault.as_ref()) {
            for line in lines.iter().filter(|line| line.arg(0) == "deny") {
                self.leave_out(line, Fate::Missing, reason);
            }
        }
        if let Ok(rules) = uncached {
            self.rules = rules;
            self.finish(&acls.work);
        }
    }

    /// Adds limits to the rules that serve: the limits of the first matching entry in `list`. The
    /// last entry matches all requests.
    ///
    /// # Errors
    /// The rules cannot express the limits; they are unchanged.
    pub fn limit(&mut self, list: &[(Condition, Rc<[String]>)], acls: &Acls) -> Result<(), String> {
        self.rules = self.refine(list, &acls.work, Err, |rule, limits| Rule {
            limits: rule.limits.iter().chain(limits.iter()).cloned().collect(),
            ..rule.clone()
        })?;
        self.finish(&acls.work);
        Ok(())
    }

    /// Returns the rules, with each rule that serves split into parts: one for each entry in `list`
    /// that decides about some of the rule's requests. The last entry matches all requests. The
    /// reason why two conditions cannot be combined is passed to `fault`, which may stop the
    /// operation.
    fn refine<T>(
        &self,
        list: &[(Condition, T)],
        work: &Work,
        mut fault: impl FnMut(String) -> Result<(), String>,
        part: impl Fn(&Rule<'a>, &T) -> Rule<'a>,
    ) -> Result<Vec<Rule<'a>>, String> {
        let (mut parts, mut count) = (Vec::new(), 0);
        for rule in &self.rules {
            if rule.action == Action::Deny {
                count += rule.condition.rule_count();
                parts.push(rule.clone());
                continue;
            }
            for (condition, entry) in list {
                let both = match rule.condition.and(condition, work) {
                    Ok(Some(both)) => both,
                    Ok(None) => continue,
                    Err(reason) => {
                        fault(reason)?;
                        continue;
                    }
                };
                let decides_all = both == rule.condition;
                count += both.rule_count();
                if count > RULES_MAX {
                    return Err(too_many());
                }
                parts.push(Rule {
                    condition: both,
                    ..part(rule, entry)
                });
                if decides_all {
                    break;
                }
            }
        }
        Ok(parts)
    }

    /// Removes rules behind others that decide about all their clients' requests. Serves no request
    /// if the remaining rules are more than a configuration may have.
    fn finish(&mut self, work: &Work) {
        let mut decided = Decided::default();
        self.rules.retain(|rule| {
            let is_reached = !decided.has(&rule.condition, work);
            decided.add(&rule.condition, work);
            is_reached
        });
        let rules = self.rules.iter();
        if rules.map(|it| it.condition.rule_count()).sum::<usize>() > RULES_MAX {
            self.close(too_many());
        } else if let Err(reason) = work.spend(1) {
            self.close(reason);
        }
    }

    /// Notes that a line became no rule, or not an exact rule.
    pub fn leave_out(&mut self, line: &'a Line, fate: Fate, reason: &str) {
        self.unsaid.push(Unsaid {
            line,
            reason: reason.to_owned(),
            fate,
        });
    }
}

/// Reason why no request matches a line.
fn never_reason(line: &Line, acls: &Acls) -> &'static str {
    let kinds = line.args_from(1).iter().filter_map(|it| acls.get(&it.text));
    let kinds: Vec<&str> = kinds.map(|acl| &*acl.kind).collect();
    if kinds.contains(&MANAGER) {
        return "there is no cache manager; figures are at the address `admin`";
    }
    if kinds.contains(&TO_LOCAL) || kinds.contains(&"dst") {
        "no client can reach these addresses: see allow_destination and deny_destination"
    } else {
        "no request matches all of its conditions"
    }
}

/// Returns the requests that all `acl`s in a line match together, starting with argument `at`. If
/// the proxy has no condition for them, or needs too many, fewer are sure and more may match.
pub fn matched(line: &Line, at: usize, acls: &Acls) -> Bounds {
    let mut all = Bounds::exact(vec![Condition::default()]);
    for word in line.args_from(at) {
        let name = word.text.strip_prefix('!').unwrap_or(&word.text);
        let is_of_response = |acl: &acl::Acl| OF_RESPONSES.contains(&&*acl.kind);
        // Before there is a response, such an `acl` matches nothing.
        let is_never =
            line.name != "http_reply_access" && acls.get(name).is_some_and(is_of_response);
        let bounds = match (is_never, name == word.text) {
            (false, _) => acls.literal_bounds(&word.text),
            (true, true) => Bounds::never(),
            (true, false) => continue,
        };
        acls.narrow(&mut all, bounds);
    }
    all
}

/// See [`logged_out`].
enum LoggedOut {
    /// The line requires no login, or our rule for it does.
    Nobody,
    /// Requests from clients that can log in here.
    Asked(Bounds),
    /// Requests from clients that cannot log in: their users were not imported.
    Unchecked(Bounds),
}

/// Returns the requests without a login that reach a line but no line behind it. Squid evaluates
/// `acl`s from left to right and requires a login at the first `acl` about users, whatever follows
/// it. A rule requires a login only if all other conditions match, so another rule is needed unless
/// that `acl` is the last.
fn logged_out(line: &Line, acls: &Acls) -> LoggedOut {
    let words: Vec<&Word> = line.args_from(1).iter().filter(|it| !it.is_all()).collect();
    let Some(first) = words.iter().position(|it| acls.asks_for_login(&it.text)) else {
        return LoggedOut::Nobody;
    };
    let bounds = acls.literal_bounds(&words[first].text);
    let before = Line {
        args: std::iter::once(&line.args[0])
            .chain(words[..first].iter().copied())
            .cloned()
            .collect(),
        ..line.clone()
    };
    let Some(everyone) = acls.everyone.as_ref().filter(|_| bounds.need_user()) else {
        // These users cannot log in here, so no rule requires a login, and the lines behind would
        // serve the requests.
        let why = format!(
            "`{}` asks for a login that the proxy cannot check",
            words[first].text
        );
        let mut logged_out = Bounds::unknown(why);
        acls.narrow(&mut logged_out, matched(&before, 1, acls));
        return LoggedOut::Unchecked(logged_out);
    };
    let known = acls.before_login(&words[first].text);
    let mut others = bounds.sure.iter().skip(known.len());
    let is_plain = others.all(Condition::asks) && bounds.why.is_none();
    if is_plain && first + 1 == words.len() {
        return LoggedOut::Nobody;
    }
    let with_login = Condition {
        users: Some(Rc::clone(everyone)),
        ..Condition::default()
    };
    let mut logged_out = Bounds::exact(with_login.opposite());
    if !is_plain {
        // Members may have conditions before the condition about users.
        let why = format!("`{}` is about users and more", words[first].text);
        logged_out.why = Some(why);
    }
    acls.narrow(&mut logged_out, matched(&before, 1, acls));
    acls.narrow(&mut logged_out, acls.opposite(&Bounds::exact(known)));
    LoggedOut::Asked(logged_out)
}

fn too_many() -> String {
    format!("they need more than {RULES_MAX} rules and exceptions")
}

/// Most rules and exceptions in a configuration.
pub const RULES_MAX: usize = 1024;
/// Most rules and exceptions for all lines, before lines that decide nothing are removed.
const LINES_MAX: usize = 16 * RULES_MAX;
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

    /// Compiles the lines of all lists that take part.
    fn with_lines(text: &str, check: impl Fn(Compiled<'_>)) {
        let all = format!("{ACLS}{text}");
        let all: Vec<Line> = lines::lines("squid.conf", &all).collect();
        let (acls, others): (Vec<Line>, Vec<Line>) =
            all.into_iter().partition(|line| line.name == "acl");
        let acls = Acls::new(&acls, &Ok(Rc::new(BTreeSet::from(["zoe".to_owned()]))));
        let of =
            |name: &str| -> Vec<&Line> { others.iter().filter(|it| it.name == name).collect() };
        let (access, replies) = (of("http_access"), of("http_reply_access"));
        let mut compiled = compile(&access, &access, &acls, Unsure::Open);
        if !replies.is_empty() {
            compiled.restrict(compile(&replies, &replies, &acls, Unsure::Open), &acls);
        }
        compiled.add_uncached(&of("cache"), &acls);
        check(compiled);
    }

    /// The rules in `text`, briefly.
    fn rules(text: &str) -> Vec<String> {
        let said = std::cell::RefCell::new(Vec::new());
        with_lines(text, |compiled| {
            *said.borrow_mut() = compiled.rules.iter().map(brief).collect();
        });
        said.into_inner()
    }

    fn brief(rule: &Rule<'_>) -> String {
        let except = rule.condition.except.iter();
        let except: String = except.map(|it| format!(" !{}", words(it))).collect();
        let said = format!("{:?} {}", rule.action, words(&rule.condition));
        format!("{}{except}", said.trim_end())
    }

    fn words(condition: &Condition) -> String {
        let clients = condition.clients.as_ref();
        let clients = clients.map(|it| it.networks().unwrap().join(","));
        let hosts = condition.destinations.as_ref();
        let hosts = hosts.map(|it| it.names.iter().cloned().collect::<Vec<_>>().join(","));
        let ports = condition.ports.as_ref();
        let ports = ports.map(|it| format!("{:?}", it.iter().collect::<Vec<_>>()));
        let times = condition.times.as_ref();
        let times = times.map(|it| super::super::week::written(it).join(","));
        let parts = [clients, hosts, ports, times].into_iter().flatten();
        parts.collect::<Vec<_>>().join(" ")
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
    fn a_negated_acl_is_an_exception_of_its_rule() {
        assert_eq!(
            rules(
                "http_access deny !web\nhttp_access deny pupils !good !lessons\n\
                 http_access allow net !games !staff\n"
            ),
            [
                "Deny ![(80, 80), (443, 443)]",
                "Deny 10.1.0.0/16 !.good.test !Mon-Fri 08:00-15:31",
                "Allow 10.0.0.0/8 !.games.test !10.2.0.0/16",
                "Deny"
            ]
        );
        // An acl of two alternatives is two exceptions; the opposite of an exception is a rule.
        let acls = "acl either any-of pupils games\nacl but all-of net !games\n";
        assert_eq!(
            rules(&format!("{acls}http_access deny !either\n")),
            ["Deny !10.1.0.0/16 !.games.test", "Allow"]
        );
        assert_eq!(
            rules(&format!("{acls}http_access deny !but\n")),
            ["Deny !10.0.0.0/8", "Deny .games.test", "Allow"]
        );
    }

    #[test]
    fn exceptions_that_no_request_meets_are_left_out_and_rules_that_none_matches_too() {
        let said = rules(
            "http_access deny pupils !staff\nhttp_access allow pupils !net\n\
             http_access allow net !all\nhttp_access allow net\n",
        );
        assert_eq!(said, ["Deny 10.1.0.0/16", "Allow 10.0.0.0/8", "Deny"]);
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
    fn what_is_not_known_is_an_exception_only_of_what_denies_no_more() {
        let odd = "acl good_or_odd any-of good odd\n";
        // Clients that are surely good are not denied; clients that may be odd are not allowed.
        let text = format!("{odd}http_access deny pupils !good_or_odd\nhttp_access allow net\n");
        let closed = ["Deny 10.1.0.0/16 !.good.test", "Allow 10.0.0.0/8", "Deny"];
        assert_eq!(chosen(&text, Unsure::Close).0, closed);
        let text = format!("{odd}http_access allow net !good_or_odd\nhttp_access deny all\n");
        assert_eq!(chosen(&text, Unsure::Refuse).0, ["Deny"]);
    }

    #[test]
    fn a_line_asks_for_a_login_before_it_looks_at_what_follows() {
        let asked = |lines: &str| {
            let count = std::cell::Cell::new(0);
            with_lines(lines, |compiled| {
                let is_asking = |it: &&Rule<'_>| {
                    let mut except = it.condition.except.iter();
                    it.action == Action::Deny && except.any(|it| it.users.is_some())
                };
                count.set(compiled.rules.iter().filter(is_asking).count());
            });
            count.get()
        };
        let open = "http_access allow net\n";
        assert_eq!(asked(&format!("http_access allow boss good\n{open}")), 1);
        assert_eq!(
            asked(&format!("http_access deny pupils boss !good\n{open}")),
            1
        );
        assert_eq!(asked(&format!("http_access deny boss !boss\n{open}")), 1);
        // The rule of the line itself asks, or nobody is served without a login.
        assert_eq!(asked(&format!("http_access allow good boss\n{open}")), 0);
        assert_eq!(
            asked("http_access allow boss good\nhttp_access deny all\n"),
            0
        );
        assert_eq!(
            asked("http_access allow boss good\nhttp_access allow boss web\n"),
            0
        );
    }

    #[test]
    fn another_list_takes_from_what_is_served() {
        let said = rules(
            "http_access allow net !staff\nhttp_reply_access deny games\n\
             http_reply_access allow pupils !good\nhttp_reply_access deny all\n",
        );
        let expected = [
            "Deny 10.0.0.0/8 .games.test !10.2.0.0/16",
            "Allow 10.1.0.0/16 !.good.test",
            "Deny 10.0.0.0/8 !10.2.0.0/16",
            "Deny",
        ];
        assert_eq!(said, expected);
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
                let allows = compiled.rules.iter();
                let allows = allows.filter(|it| it.action == Action::Allow && it.line.is_some());
                assert_eq!((allows.count(), compiled.unsaid.len()), (0, 2));
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
    fn lines_of_cache_are_a_list_of_their_own() {
        let said = rules(
            "http_access allow net\ncache allow good\ncache deny pupils !games\ncache allow all\n",
        );
        assert_eq!(
            said,
            [
                "Allow 10.0.0.0/8 .good.test",
                "NoCache 10.1.0.0/16 !.games.test",
                "Allow 10.0.0.0/8",
                "Deny"
            ]
        );
        // Where no line matches, the opposite of the last one holds.
        let said = rules("http_access allow net\ncache allow good\n");
        assert_eq!(
            said,
            ["Allow 10.0.0.0/8 .good.test", "NoCache 10.0.0.0/8", "Deny"]
        );
        assert_eq!(
            rules("http_access allow net\ncache maybe\n"),
            ["Allow 10.0.0.0/8", "Deny"]
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
    fn more_rules_and_exceptions_than_a_configuration_may_have_serve_nobody() {
        let many = "http_access deny !good games\nhttp_access deny !games good\n".repeat(600);
        with_lines(&many, |compiled| {
            assert_eq!(compiled.rules.len(), 1);
            assert!(compiled.closed.is_some());
        });
        let lines = "http_access deny !good !web !lessons\n".repeat(200);
        assert_eq!(rules(&lines).len(), 201);
    }

    /// A request, as Squid's lines and our rules look at it.
    struct Request {
        client: u128,
        host: &'static str,
        port: u128,
        minute: u128,
    }

    fn holds(condition: &Condition, request: &Request) -> bool {
        !condition.except.iter().any(|it| holds(it, request)) && conditions_hold(condition, request)
    }

    fn conditions_hold(condition: &Condition, request: &Request) -> bool {
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
                let alternatives = acls.literal(name).unwrap();
                alternatives.iter().any(|it| holds(it, request)) != *negated
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
            "pupils", "staff", "net", "good", "games", "lessons", "web", "all", "either", "but",
        ];
        let more = "acl either any-of pupils games\nacl but all-of net !games\n\
                    acl but all-of !web good\n";
        let acl_lines: Vec<Line> = lines::lines("squid.conf", &format!("{ACLS}{more}")).collect();
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

    #[test]
    fn users_that_are_not_imported_stop_requests_without_a_login_or_are_named() {
        let text = "http_access allow boss net\nhttp_access allow net\nhttp_access deny all\n";
        let text = format!("{ACLS}{text}");
        let all: Vec<Line> = lines::lines("squid.conf", &text).collect();
        let (acls, access): (Vec<Line>, Vec<Line>) =
            all.into_iter().partition(|line| line.name == "acl");
        let acls = Acls::new(&acls, &Err("they are in LDAP".into()));
        let access: Vec<&Line> = access.iter().collect();
        let compiled = compile(&access, &access, &acls, Unsure::Refuse);
        let is_named = |it: &Unsaid<'_>| {
            it.reason
                .starts_with("NOT DENIED: requests without a login")
        };
        assert!(
            compiled.unsaid.iter().any(is_named),
            "{:?}",
            compiled.unsaid
        );
        let closed = compile(&access, &access, &acls, Unsure::Close);
        let serves = |it: &Rule<'_>| it.action == Action::Allow;
        assert!(!closed.rules.iter().any(serves), "{:?}", closed.rules);
        // Without a line behind that serves, nobody is served either way.
        let last = [access[0], access[2]];
        let compiled = compile(&last, &last, &acls, Unsure::Refuse);
        assert!(
            !compiled.unsaid.iter().any(is_named),
            "{:?}",
            compiled.unsaid
        );
    }
}
