//! Access rules made of any bytes decide as a walk through the rules as they are written decides:
//! rule by rule, condition by condition, exception by exception.

#![no_main]

use std::net::IpAddr;

use hashcache_access::{
    AccessAction, AccessConditions, AccessRequest, AccessRule, AccessRuleError, AccessRules,
    AccessSettings, Destination, ListFormat, ListSettings, RequestUser, RuleClients, WeekMinute,
};
use hashcache_http::Host;
use libfuzzer_sys::fuzz_target;

/// The choices that the bytes make.
struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn one<'t, T: ?Sized>(&mut self, of: &[&'t T]) -> &'t T {
        of[usize::from(self.byte()) % of.len()]
    }

    /// One or two, or no condition.
    fn some<T>(&mut self, is_given: bool, mut each: impl FnMut(&mut Self) -> T) -> Option<Vec<T>> {
        if !is_given {
            return None;
        }
        let count = 1 + self.byte() % 2;
        Some((0..count).map(|_| each(self)).collect())
    }

    fn rule(&mut self) -> AccessRule {
        let action = self.byte();
        let conditions = self.conditions();
        let exceptions = [0, 0, 1, 2][usize::from(self.byte()) % 4];
        AccessRule {
            conditions,
            except: (0..exceptions).map(|_| self.conditions()).collect(),
            // Not the fifth, which needs limits and otherwise does what the first one does.
            ..AccessRule::from_action(AccessAction::ALL[usize::from(action) % 4].1)
        }
    }

    fn conditions(&mut self) -> AccessConditions {
        let given = self.byte();
        let is = |bit: u8| given >> bit & 1 == 1;
        let text = |of: &'static [&'static str]| move |it: &mut Self| it.one(of).to_owned();
        AccessConditions {
            clients: self.some(is(0), Self::clients),
            users: self.some(is(1), text(&USERS)),
            groups: self.some(is(2), text(&["staff", "all"])),
            destinations: self.some(is(3), |it| parsed(it.one(&DESTINATIONS))),
            lists: self.some(is(4), text(&LISTS)),
            ports: self.some(is(5), |it| parsed(it.one(&["80", "443", "8000-8999"]))),
            methods: self.some(is(6), text(&["GET", "POST", "CONNECT"])),
            times: self.some(is(7), |it| parsed(it.one(&TIMES))),
        }
    }

    fn clients(&mut self) -> RuleClients {
        match self.byte() % 5 {
            0 => RuleClients::All,
            1 => RuleClients::Local,
            2 => RuleClients::Named("pupils".into()),
            3 => RuleClients::Network(parsed("10.0.0.0/8")),
            _ => RuleClients::Network(parsed("2001:db8::/32")),
        }
    }
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("what is chosen is right")
}

/// A client and its request.
struct Case<'a> {
    client: IpAddr,
    by_default: bool,
    user: RequestUser<'a>,
    method: &'a str,
    host: Host,
    port: u16,
    minute: WeekMinute,
    /// One bit for each list that has the host.
    lists: u8,
}

impl Case<'_> {
    fn chosen(choices: &mut Choices<'_>) -> Self {
        let clients = [
            "10.1.0.5",
            "10.2.0.5",
            "192.0.2.5",
            "2001:db8::5",
            "fd00::5",
        ];
        Self {
            client: parsed(choices.one(&clients)),
            by_default: choices.byte() % 2 == 0,
            user: match choices.byte() % 6 {
                0 => RequestUser::Unknown,
                1 => RequestUser::Unknowable,
                number => RequestUser::Known(["anna", "bert", "carl", "none"][number as usize - 2]),
            },
            method: choices.one(&["GET", "get", "POST", "CONNECT", "PURGE"]),
            host: Host::parse(choices.one(&HOSTS)).expect("what is chosen is right"),
            port: [80, 443, 8000, 8999, 9000][usize::from(choices.byte()) % 5],
            minute: WeekMinute::of_local(i64::from(choices.byte()) * 2400),
            lists: choices.byte(),
        }
    }

    /// Whether conditions hold, as far as they are not about the user.
    fn meets(&self, given: &AccessConditions, settings: &AccessSettings) -> bool {
        let is_client = |client: &RuleClients| match client {
            RuleClients::All => true,
            RuleClients::Local => self.by_default,
            RuleClients::Network(network) => network.contains(self.client),
            RuleClients::Named(name) => settings.networks[name]
                .iter()
                .any(|it| it.contains(self.client)),
        };
        let is_listed = |name: &String| {
            let number = LISTS.iter().position(|list| list == name);
            self.lists >> number.expect("it is one of them") & 1 == 1
        };
        let method = self.method.to_ascii_uppercase();
        holds(&given.clients, is_client)
            && holds(&given.destinations, |it| is_at(&self.host, it))
            && holds(&given.lists, is_listed)
            && holds(&given.ports, |it| it.contains(self.port))
            && holds(&given.methods, |it| *it == method)
            && holds(&given.times, |it| it.contains(self.minute))
    }

    /// Whether conditions that hold otherwise are about the user; `None`: the user is needed.
    /// `in_doubt`: whether they hold for a user who cannot be known.
    fn is_about_user(
        &self,
        given: &AccessConditions,
        settings: &AccessSettings,
        in_doubt: bool,
    ) -> Option<bool> {
        let needs_user = given.users.is_some() || given.groups.is_some();
        match self.user {
            _ if !needs_user => Some(true),
            RequestUser::Unknown => None,
            RequestUser::Unknowable => Some(in_doubt),
            RequestUser::Known(user) => {
                let is_in = |group: &String| settings.groups[group].iter().any(|it| it == user);
                Some(holds(&given.users, |it| it == user) && holds(&given.groups, is_in))
            }
        }
    }

    /// Whether a rule matches; `None`: the user is needed.
    fn matches(&self, rule: &AccessRule, settings: &AccessSettings) -> Option<bool> {
        let denies = rule.action == AccessAction::Deny;
        let is_client = rule.conditions.clients.is_some() || denies || self.by_default;
        if !is_client || !self.meets(&rule.conditions, settings) {
            return Some(false);
        }
        let own = self.is_about_user(&rule.conditions, settings, denies);
        let met = rule.except.iter().filter(|it| self.meets(it, settings));
        let met: Vec<Option<bool>> = met
            .map(|it| self.is_about_user(it, settings, !denies))
            .collect();
        match (own, met.contains(&Some(true)), met.contains(&None)) {
            (Some(false), ..) | (_, true, _) => Some(false),
            (None, ..) | (_, _, true) => None,
            (Some(true), false, false) => Some(true),
        }
    }

    /// The number of the first rule that matches; `Err`: it needs the user.
    fn decided(&self, settings: &AccessSettings) -> Result<Option<usize>, usize> {
        for (number, rule) in settings.rules.iter().enumerate() {
            match self.matches(rule, settings) {
                None => return Err(number),
                Some(true) => return Ok(Some(number)),
                Some(false) => {}
            }
        }
        Ok(None)
    }
}

/// Whether a condition is not given, or one of its values fits.
fn holds<T>(condition: &Option<Vec<T>>, fits: impl FnMut(&T) -> bool) -> bool {
    condition
        .as_ref()
        .is_none_or(|values| values.iter().any(fits))
}

fn is_at(host: &Host, destination: &Destination) -> bool {
    let name = match host {
        Host::Name(name) => name.trim_end_matches('.'),
        Host::V4(_) | Host::V6(_) => "",
    };
    let forms: &[&str] = match &*host.to_string() {
        "10.0.0.1" => &["10.0.0.1"],
        "[64:ff9b::a00:1]" => &["64:ff9b::a00:1", "10.0.0.1"],
        "[2001:db8:64::a00:1]" => &["2001:db8:64::a00:1", "10.0.0.1"],
        "[2001:db8::9]" => &["2001:db8::9"],
        _ => &[],
    };
    match destination {
        Destination::Host(wanted) => name == &**wanted,
        Destination::Below(wanted) => name == &**wanted || name.ends_with(&format!(".{wanted}")),
        Destination::Network(network) => forms.iter().any(|it| network.contains(parsed(it))),
    }
}

const USERS: [&str; 3] = ["anna", "bert", "dora"];
const LISTS: [&str; 4] = ["ads", "malware", "games", "news"];
const TIMES: [&str; 3] = ["Mon-Fri 08:00-15:30", "Sat,Sun", "22:00-06:00"];
const HOSTS: [&str; 10] = [
    "a.test",
    "b.a.test",
    "c.b.a.test.",
    "xa.test",
    "test",
    "other",
    "10.0.0.1",
    "[64:ff9b::a00:1]",
    "[2001:db8:64::a00:1]",
    "[2001:db8::9]",
];
const DESTINATIONS: [&str; 8] = [
    "a.test",
    ".a.test",
    "b.a.test",
    ".test",
    "10.0.0.0/8",
    "0.0.0.0/0",
    "::/0",
    "2001:db8:64::/96",
];

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices(data);
    let groups = [("staff", &["anna"][..]), ("all", &["anna", "bert", "carl"])];
    let groups = groups.map(|(name, users)| {
        let users = users.iter().map(|user| (*user).to_owned()).collect();
        (name.to_owned(), users)
    });
    let list = |name: &str| ListSettings {
        name: name.to_owned(),
        files: vec![],
        format: ListFormat::Auto,
    };
    let pupils = vec![parsed("10.1.0.0/16")];
    let cases: Vec<Case<'_>> = (0..4).map(|_| Case::chosen(&mut choices)).collect();
    let count = usize::from(choices.byte() % 130);
    let mut settings = AccessSettings {
        rules: (0..count).map(|_| choices.rule()).collect(),
        groups: groups.into(),
        lists: LISTS.map(list).into(),
        limits: vec![],
        networks: [("pupils".to_owned(), pupils)].into(),
        nat64: vec![parsed("2001:db8:64::/96")],
        contact: None,
    };
    let before: Vec<_> = cases.iter().map(|case| action(case, &settings)).collect();
    if let Err(faults) = AccessRules::new(&settings) {
        // The rules that can never match: without them, everything is decided as before.
        let can_never_match = |error: &AccessRuleError| {
            let is_behind = matches!(error, AccessRuleError::Unreachable { .. });
            is_behind || *error == AccessRuleError::ExceptsAll
        };
        assert!(faults.iter().all(|fault| can_never_match(&fault.error)));
        let mut never: Vec<usize> = faults.iter().map(|fault| fault.rule).collect();
        never.dedup();
        for number in never.into_iter().rev() {
            settings.rules.remove(number);
        }
    }
    let rules = AccessRules::new(&settings).expect("the other rules are right");
    for (case, before) in cases.iter().zip(before) {
        assert_eq!(action(case, &settings), before);
        compare(case, &settings, &rules);
    }
});

/// What a case comes to by the rules as they are written; `None`: the user is needed.
fn action(case: &Case<'_>, settings: &AccessSettings) -> Option<AccessAction> {
    let number = case.decided(settings).ok()?;
    Some(match (number, case.by_default) {
        (Some(number), _) => settings.rules[number].action,
        (None, true) => AccessAction::Allow,
        (None, false) => AccessAction::Deny,
    })
}

fn compare(case: &Case<'_>, settings: &AccessSettings, rules: &AccessRules) {
    let client = rules.client(case.client, case.by_default);
    let timed = rules.at(case.minute);
    let request = AccessRequest {
        user: case.user,
        method: case.method,
        host: &case.host,
        port: case.port,
    };
    let has = |list: usize, _: &_| case.lists >> list & 1 == 1;
    let decided = rules.decide(&client, &timed, &request, has);
    let expected = case.decided(settings);
    assert_eq!(decided.map(|it| it.rule).ok(), expected.ok());
    let decided_action = decided.ok().map(|it| it.action);
    assert_eq!(decided_action, action(case, settings));
    if rules.refusal(&client).is_some() {
        assert!(matches!(decided_action, None | Some(AccessAction::Deny)));
    }
    if expected.is_err() {
        assert!(rules.may_need_user(&client, (&case.host, case.port), has));
    }
}
