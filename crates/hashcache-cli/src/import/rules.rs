//! `http_access` and `cache` of Squid, as access rules.
//!
//! Both languages take the first rule that matches. Squid negates (`deny pupils !good_sites`), and
//! our rules cannot. A line `action A !B` before the rules `R` is written as: `R`, each also for
//! `A` and `B`; then `action A`; then `R`. The opposite of addresses, ports and times is a set of
//! the same kind, and needs no such copies.
//!
//! Invariants: a rule that serves never serves more requests than its line. A line that our rules
//! cannot say is left out and told. There are at most [`RULES_MAX`] rules, and none that can never
//! match, because `config check` would refuse them.

use std::rc::Rc;

use super::acl::{self, Acls, MANAGER, TO_LOCAL};
use super::address::Addresses;
use super::condition::Condition;
use super::delay::Limited;
use super::lines::Line;

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Allow,
    Deny,
    NoCache,
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
    /// It needs no rule here.
    pub is_unneeded: bool,
}

/// The rules of all lines.
#[derive(Debug)]
pub struct Compiled<'a> {
    pub rules: Vec<Rule<'a>>,
    pub unsaid: Vec<Unsaid<'a>>,
    /// Why nobody is served, whatever the lines say.
    pub closed: Option<String>,
}

/// What a line matches.
pub struct Matched {
    pub alternatives: Vec<Condition>,
    /// None of these may match.
    pub exceptions: Vec<Condition>,
    /// Why it matches more or fewer requests than the line.
    pub inexact: Option<&'static str>,
}

/// The rules of `http_access` lines and, for requests that are served, of `cache` lines.
pub fn compile<'a>(access: &[&'a Line], cache: &[&'a Line], acls: &Acls) -> Compiled<'a> {
    let mut compiled = Compiled {
        rules: at_the_end(access),
        unsaid: Vec::new(),
        closed: None,
    };
    for line in access.iter().rev() {
        compiled.add(line, acls);
    }
    // Lines were added from the last to the first.
    compiled.unsaid.reverse();
    compiled.add_uncached(cache, acls);
    if let Err(reason) = compiled.leave_out_unreachable(acls) {
        compiled.close(reason);
    }
    compiled
}

/// What Squid does where no line matches: the opposite of the last line. It then serves everyone
/// after a last `deny`; here, private networks, so that no proxy is opened by what is not said.
fn at_the_end<'a>(access: &[&'a Line]) -> Vec<Rule<'a>> {
    let rule = |action, clients: Option<Addresses>| Rule {
        action,
        condition: Condition {
            clients: clients.map(Rc::new),
            ..Condition::default()
        },
        line: None,
        exception: None,
        limits: Vec::new(),
    };
    let deny = rule(Action::Deny, None);
    // Squid skips a line without an `acl`.
    match access.iter().rfind(|line| line.args.len() > 1) {
        Some(last) if last.arg(0) == "deny" => {
            let private = Addresses::of_networks(&PRIVATE);
            vec![rule(Action::Allow, Some(private)), deny]
        }
        _ => vec![deny],
    }
}

impl<'a> Compiled<'a> {
    /// Adds a line before all rules.
    fn add(&mut self, line: &'a Line, acls: &Acls) {
        let action = match line.arg(0) {
            "allow" => Action::Allow,
            "deny" => Action::Deny,
            _ => return self.leave_out(line, "neither allow nor deny".to_owned()),
        };
        if let Some((reason, is_unneeded)) = special(line, acls) {
            return self.unsaid.push(Unsaid {
                line,
                reason,
                is_unneeded,
            });
        }
        let added = matched(line, acls).and_then(|matched| {
            let rules = self.with_exceptions((line, action), &matched, acls)?;
            Ok((rules, matched.inexact))
        });
        match added {
            Ok((rules, inexact)) => {
                self.rules.splice(..0, rules);
                if let Some(inexact) = inexact {
                    self.unsaid.push(Unsaid {
                        line,
                        reason: inexact.to_owned(),
                        is_unneeded: false,
                    });
                }
            }
            Err(reason) => self.leave_out(line, reason),
        }
    }

    /// The rules of a line: copies of the rules after it for its exceptions, then itself.
    fn with_exceptions(
        &self,
        (line, action): (&'a Line, Action),
        matched: &Matched,
        acls: &Acls,
    ) -> Result<Vec<Rule<'a>>, String> {
        let mut rules = Vec::new();
        let room = RULES_MAX.saturating_sub(self.rules.len());
        for condition in &matched.alternatives {
            let guards = acls.product(std::slice::from_ref(condition), &matched.exceptions)?;
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

    /// Before each rule that serves, adds one that does not cache, for what `cache deny` names.
    fn add_uncached(&mut self, cache: &[&'a Line], acls: &Acls) {
        let mut uncached = self.uncached(cache, acls);
        let mut rules = Vec::new();
        for rule in &self.rules {
            if rule.action == Action::Allow {
                rules.extend(uncached.iter_mut().filter_map(|it| it.before(rule, acls)));
            }
            rules.push(rule.clone());
            if rules.len() > RULES_MAX || uncached.len() > RULES_MAX {
                for line in cache {
                    self.leave_out(line, format!("they need more than {RULES_MAX} rules"));
                }
                return;
            }
        }
        self.rules = rules;
        uncached.retain(|it| it.fault.is_some());
        uncached.dedup_by_key(|it| std::ptr::from_ref(it.line));
        for it in uncached {
            self.leave_out(it.line, it.fault.unwrap_or_default());
        }
    }

    /// What the lines name that is not to be cached.
    fn uncached(&mut self, cache: &[&'a Line], acls: &Acls) -> Vec<Uncached<'a>> {
        let mut uncached = Vec::new();
        for line in cache {
            if uncached.len() > RULES_MAX {
                break;
            }
            let matched = match line.arg(0) {
                "deny" => matched(line, acls),
                _ => Err("only `cache deny` without exceptions has a counterpart".to_owned()),
            };
            match matched {
                Ok(matched) if matched.exceptions.is_empty() => {
                    let fault = matched.inexact.map(str::to_owned);
                    uncached.extend(matched.alternatives.into_iter().map(|condition| Uncached {
                        line,
                        condition,
                        fault: fault.clone(),
                    }));
                }
                Ok(_) => self.leave_out(line, "its exception has no counterpart".to_owned()),
                Err(reason) => self.leave_out(line, reason),
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

    fn leave_out(&mut self, line: &'a Line, reason: String) {
        self.unsaid.push(Unsaid {
            line,
            reason,
            is_unneeded: false,
        });
    }
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

/// Why a line about addresses of this machine or the cache manager is no rule, and whether it needs
/// none.
pub fn special(line: &Line, acls: &Acls) -> Option<(String, bool)> {
    let kind = |text: &str| acls.get(text).map(|acl| acl.kind.clone());
    let is_of = |wanted: &str| {
        line.args_from(1)
            .iter()
            .any(|it| kind(&it.text).as_deref() == Some(wanted))
    };
    if is_of(MANAGER) {
        let reason = "there is no cache manager; figures are at the address `admin`";
        return Some((reason.to_owned(), true));
    }
    if is_of(TO_LOCAL) {
        let reason = match line.arg(0) {
            "deny" => "the proxy refuses these addresses by itself, as allow_destination says",
            _ => "only allow_destination opens these addresses, for all clients",
        };
        return Some((reason.to_owned(), line.arg(0) == "deny"));
    }
    None
}

/// What the `acl`s of a line match together.
pub fn matched(line: &Line, acls: &Acls) -> Result<Matched, String> {
    if line.args_from(1).is_empty() {
        return Err(acl::NO_ACL.to_owned());
    }
    let mut matched = Matched {
        alternatives: vec![Condition::default()],
        exceptions: Vec::new(),
        inexact: None,
    };
    for word in line.args_from(1) {
        let (name, is_negated) = match word.text.strip_prefix('!') {
            Some(name) => (name, true),
            None => (&*word.text, false),
        };
        let acl = acls
            .get(name)
            .ok_or_else(|| format!("there is no acl `{name}`"))?;
        // A request for the cache manager never comes.
        if is_negated && acl.kind == MANAGER {
            continue;
        }
        matched.inexact = matched.inexact.or(acl.inexact);
        if is_negated && acl.inexact.is_some() {
            return Err(format!("acl {name}: its opposite has no counterpart"));
        }
        let alternatives = acls.literal(name)?;
        let opposite = match is_negated {
            true => writable_opposite(&alternatives, acls)?,
            false => None,
        };
        match (is_negated, opposite) {
            (false, _) => {
                matched.alternatives = acls.product(&matched.alternatives, &alternatives)?;
            }
            (true, Some(opposite)) => {
                matched.alternatives = acls.product(&matched.alternatives, &[opposite])?;
            }
            (true, None) => matched.exceptions.extend(alternatives),
        }
        if matched.exceptions.len() > EXCEPTIONS_MAX {
            return Err(format!("more than {EXCEPTIONS_MAX} exceptions"));
        }
    }
    for condition in &matched.alternatives {
        if !acls.is_writable(condition)? {
            return Err(TOO_MANY_NETWORKS.to_owned());
        }
    }
    Ok(matched)
}

/// The opposite of `alternatives`, if there is one and rules can have it.
fn writable_opposite(alternatives: &[Condition], acls: &Acls) -> Result<Option<Condition>, String> {
    let Some(opposite) = acls.opposite(alternatives)? else {
        return Ok(None);
    };
    Ok(acls.is_writable(&opposite)?.then_some(opposite))
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
        check(compile(&of("http_access"), &of("cache"), &acls));
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
                "Deny 10.1.0.0/16 .games.test Mon-Fri 08:00-15:30",
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
                "Deny 10.1.0.0/16 Mon-Fri 00:00-08:00,Mon-Fri 15:30-24:00,Sat-Sun",
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
                assert_eq!(compiled.unsaid.len(), 7);
                assert!(compiled.unsaid.iter().all(|it| !it.is_unneeded));
                assert_eq!(compiled.unsaid[0].line.arg(0), "allow");
            },
        );
    }

    #[test]
    fn where_nothing_matches_the_opposite_of_the_last_line_holds_for_private_networks() {
        let said = rules("http_access deny games\n");
        assert_eq!(said.len(), 3);
        assert!(
            said[1].starts_with("Allow 10.0.0.0/8,127.0.0.0/8,"),
            "{said:?}"
        );
        assert_eq!(
            rules("http_access allow net\n"),
            ["Allow 10.0.0.0/8", "Deny"]
        );
        assert_eq!(rules(""), ["Deny"]);
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
            Some((false, _)) => {
                let private = Addresses::of_networks(&PRIVATE);
                private
                    .v4
                    .iter()
                    .any(|(a, b)| a <= request.client && request.client <= b)
            }
            _ => false,
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
            let compiled = compile(&read.iter().collect::<Vec<_>>(), &[], &acls);
            assert!(
                compiled.unsaid.is_empty(),
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
