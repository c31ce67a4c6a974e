//! `delay_pools` and `client_delay_pools`: their buckets as `[[limit]]`s, and the requests to which
//! the limits apply.
//!
//! In Squid a request uses the first pool that `delay_access` allows. The pools become a list of
//! conditions in which the first match decides, and `rules` writes each rule that serves once for
//! each condition.
//!
//! Invariants: a line, a level or a pool that cannot be imported is reported, and affects no other
//! pool. A list has at most [`RULES_MAX`] conditions.

use std::rc::Rc;

use toml::Value;

use super::acl::Acls;
use super::condition::Condition;
use super::draft::{Comments, Draft, Table};
use super::lines::Line;
use super::rules::{self, Compiled, RULES_MAX};
use super::work::Work;

/// Requests and the names of their limits; no names if the requests are not limited.
type Limited = (Condition, Rc<[String]>);

/// A line in `delay_access`, and the requests that it matches.
type AccessLine<'a> = (&'a Line, Vec<Condition>);

/// The lines about pools, by their directives.
#[derive(Debug, Default)]
pub struct DelayLines<'a>(Vec<(&'static str, Vec<&'a Line>)>);

impl<'a> DelayLines<'a> {
    /// Collects the lines; `all` returns a directive's lines.
    pub fn new(all: impl Fn(&str) -> Vec<&'a Line>) -> Self {
        Self(NAMES.iter().map(|name| (*name, all(name))).collect())
    }

    /// Reports that no line is imported.
    pub fn leave_out(&self, draft: &mut Draft, reason: &str) {
        for line in self.0.iter().flat_map(|(_, lines)| lines) {
            draft.missing(line, reason);
        }
    }

    fn all(&self, kind: Kind, directive: &str) -> &[&'a Line] {
        let is_it = |name: &str| name.strip_prefix(kind.prefix()) == Some(directive);
        let found = self.0.iter().find(|(name, _)| is_it(name));
        found.map_or(&[], |(_, lines)| lines)
    }
}

/// Adds limits to the rules, and writes the limits.
pub fn import(draft: &mut Draft, lines: &DelayLines<'_>, acls: &Acls, compiled: &mut Compiled<'_>) {
    for kind in [Kind::Server, Kind::Client] {
        let mut pools = pools(draft, lines, kind, acls);
        pools.sort_by_key(|pool| pool.number);
        let known = draft.tables_of("limit");
        let (mut kept, mut count) = (Vec::new(), known);
        for pool in pools {
            count += pool.limits.len();
            if count <= LIMITS_MAX {
                kept.push(pool);
            } else {
                count -= pool.limits.len();
                pool.leave_out(draft, &format!("there are more than {LIMITS_MAX} limits"));
            }
        }
        // If there are too many rules, the last pool is left out first.
        while let Err(reason) = added(&kept, acls, compiled) {
            match kept.pop() {
                Some(last) => last.leave_out(draft, &reason),
                None => break,
            }
        }
        for pool in kept {
            pool.write(draft, kind);
        }
    }
}

/// Adds the limits of these pools to the rules.
fn added(pools: &[Pool<'_>], acls: &Acls, compiled: &mut Compiled<'_>) -> Result<(), String> {
    if pools.is_empty() {
        Ok(())
    } else {
        list(pools, &acls.work).and_then(|list| compiled.limit(&list, acls))
    }
}

/// The traffic that a pool slows down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Content from servers.
    Server,
    /// All content for a client.
    Client,
}

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Server => "",
            Self::Client => "client_",
        }
    }
}

/// A pool with a `delay_access`.
struct Pool<'a> {
    number: u32,
    limits: Vec<Limit>,
    /// The lines that define the pool.
    lines: Vec<&'a Line>,
    access: Vec<AccessLine<'a>>,
}

/// A bucket of a pool.
struct Limit {
    name: String,
    per: &'static str,
    per_second: u64,
    burst: u64,
}

/// Returns the pools of this kind, in order. Faults of other pools are reported.
fn pools<'a>(draft: &mut Draft, lines: &DelayLines<'a>, kind: Kind, acls: &Acls) -> Vec<Pool<'a>> {
    for line in lines.all(kind, "delay_pools") {
        draft.unneeded(line, "each [[limit]] is written below");
    }
    let classes = lines.all(kind, "delay_class");
    let parameters = lines.all(kind, "delay_parameters");
    let access = lines.all(kind, "delay_access");
    let mut numbers: Vec<&str> = parameters.iter().map(|line| line.arg(0)).collect();
    numbers.sort_by_key(|number| (number.len(), *number));
    numbers.dedup();
    let mut pools = Vec::new();
    for number in numbers.iter().take(POOLS_MAX) {
        let of_pool = |lines: &[&'a Line]| -> Vec<&'a Line> {
            let lines = lines.iter().filter(|line| line.arg(0) == *number);
            lines.copied().collect()
        };
        let (class, parameters) = (of_pool(classes), of_pool(parameters));
        let (Some(last), access) = (parameters.last(), of_pool(access)) else {
            continue;
        };
        for line in class.iter().chain(&parameters) {
            let is_last = [class.last(), parameters.last()].contains(&Some(line));
            if !is_last {
                draft.unneeded(line, "a later line replaces it");
            }
        }
        let lines: Vec<&Line> = class.last().copied().into_iter().chain([*last]).collect();
        let levels = match kind {
            Kind::Server => levels(draft, class.last().map_or("", |line| line.arg(1)), last),
            Kind::Client => client_level(last),
        };
        let pool = levels.and_then(|levels| Pool::new((kind, number), &levels));
        match pool {
            Ok(_) if access.is_empty() => {
                for line in lines {
                    draft.unneeded(line, "no delay_access allows requests in this pool");
                }
            }
            Ok(pool) => {
                let (access, odd) = known_access(access, acls);
                for (line, reason) in odd {
                    draft.missing(line, reason);
                }
                let pool = Pool {
                    lines,
                    access,
                    ..pool
                };
                let allows = |(line, _): &AccessLine<'_>| line.arg(1) == "allow";
                if pool.access.iter().any(allows) || pool.allows_the_rest() {
                    pools.push(pool);
                } else {
                    pool.leave_out(draft, "no line that allows is left");
                }
            }
            Err(reason) => {
                for line in lines.into_iter().chain(access) {
                    draft.missing(line, &reason);
                }
            }
        }
    }
    for line in classes.iter().chain(parameters).chain(access) {
        if !numbers
            .iter()
            .take(POOLS_MAX)
            .any(|number| *number == line.arg(0))
        {
            draft.missing(line, "its pool has no delay_parameters that count");
        }
    }
    pools
}

/// For each level that a pool limits: the scope for which bytes are added up, bytes per second,
/// burst.
type Levels = Vec<(&'static str, u64, u64)>;

fn levels(draft: &mut Draft, class: &str, parameters: &Line) -> Result<Levels, String> {
    let whose: &[&str] = match class {
        "1" => &["all"],
        "2" => &["all", "client"],
        "3" => &["all", NETWORK, "client"],
        "4" => &["all", NETWORK, "client", "user"],
        "" => return Err("its pool has no delay_class".to_owned()),
        _ => return Err("limits are for all, for clients or for users, not for tags".to_owned()),
    };
    let words = parameters.args_from(1);
    if words.len() != whose.len() {
        return Err(format!(
            "a pool of class {class} has {} levels",
            whose.len()
        ));
    }
    let (mut levels, mut left_out) = (Vec::new(), Vec::new());
    for (per, word) in whose.iter().zip(words) {
        match level(&word.text) {
            Ok(None) => {}
            Ok(Some(_)) if *per == NETWORK => left_out.push(
                "there is no limit for each network: write a [[limit]] with per = \"all\" and a \
                 rule for each"
                    .to_owned(),
            ),
            Ok(Some(level)) => levels.push((*per, level.0, level.1)),
            Err(reason) => left_out.push(reason),
        }
    }
    match left_out.into_iter().next() {
        Some(reason) if levels.is_empty() => return Err(reason),
        Some(reason) => draft.missing(parameters, format_args!("one level: {reason}")),
        None => {}
    }
    Ok(levels)
}

/// Parses `restore/max` in bytes; `None`: no limit.
fn level(text: &str) -> Result<Option<(u64, u64)>, String> {
    if ["none", "-1/-1"].contains(&text) {
        return Ok(None);
    }
    let numbers = text.split_once('/').and_then(|(rate, most)| {
        let (rate, most) = (rate.parse::<u64>().ok()?, most.parse::<u64>().ok()?);
        Some((rate, most))
    });
    let (rate, most) =
        numbers.ok_or_else(|| format!("`{text}` is no rate and size of a bucket"))?;
    checked(rate, most).map(Some)
}

/// Returns a rate and a bucket size, if a `[[limit]]` can have them.
fn checked(rate: u64, most: u64) -> Result<(u64, u64), String> {
    match (rate, most) {
        (RATE_MIN.., 1..) => Ok((rate, most)),
        (_, 0) => Err("its bucket is always empty: write a rule that denies".to_owned()),
        _ => Err(format!("a limit has at least {RATE_MIN} bytes per second")),
    }
}

fn client_level(parameters: &Line) -> Result<Levels, String> {
    let [rate, most] = [1, 2].map(|at| parameters.arg(at).parse::<u64>().unwrap_or(0));
    let (rate, most) = checked(rate, most)?;
    Ok(vec![("client", rate, most)])
}

impl<'a> Pool<'a> {
    fn new((kind, number): (Kind, &str), levels: &Levels) -> Result<Self, String> {
        let read = number.parse::<u32>().ok();
        let read = read.filter(|read| read.to_string() == number);
        let number = read.ok_or_else(|| format!("`{number}` is not the number of a pool"))?;
        let limit = |(per, per_second, burst): &(&'static str, u64, u64)| Limit {
            name: match kind {
                Kind::Server => format!("pool-{number}-{per}"),
                Kind::Client => format!("client-pool-{number}"),
            },
            per,
            per_second: *per_second,
            burst: *burst,
        };
        Ok(Self {
            number,
            limits: levels.iter().map(limit).collect(),
            lines: Vec::new(),
            access: Vec::new(),
        })
    }

    /// True if the pool applies to requests that match no line: as in `http_access`, they get the
    /// opposite of the last line.
    fn allows_the_rest(&self) -> bool {
        let last = self.access.last();
        last.is_some_and(|(line, _)| line.arg(1) == "deny" && !line.is_all_from(2))
    }

    fn write(self, draft: &mut Draft, kind: Kind) {
        draft.imported += self.lines.len() + self.access.len();
        let comments = || {
            let access = self.access.iter().map(|(line, _)| line);
            let lines = self.lines.iter().chain(access);
            let comments = lines.fold(Comments::default(), |all, line| all.and_of(line));
            match kind {
                Kind::Server => comments.and("Squid does not slow hits down. Here they are too."),
                Kind::Client => comments,
            }
        };
        if self.limits.is_empty() {
            // This pool's requests are not slowed down, and no other pool applies to them.
            for line in &self.lines {
                draft.unneeded(
                    line,
                    "it limits nothing, and keeps its requests out of other pools",
                );
            }
            for (line, _) in &self.access {
                draft.unneeded(line, "its pool limits nothing");
            }
            draft.imported -= self.lines.len() + self.access.len();
            return;
        }
        for limit in &self.limits {
            draft.table(Table {
                array: "limit",
                comments: comments(),
                fields: vec![
                    ("name", limit.name.as_str().into()),
                    ("per", limit.per.into()),
                    ("bandwidth", Value::from(limit.per_second.to_string())),
                    ("burst", Value::from(limit.burst.to_string())),
                ],
            });
        }
    }

    fn leave_out(self, draft: &mut Draft, reason: &str) {
        let access = self.access.into_iter().map(|(line, _)| line);
        for line in self.lines.into_iter().chain(access) {
            draft.missing(line, reason);
        }
    }
}

/// Returns a pool's lines with known requests, and the other lines with the reason why they are
/// left out.
fn known_access<'a>(
    lines: Vec<&'a Line>,
    acls: &Acls,
) -> (Vec<AccessLine<'a>>, Vec<(&'a Line, String)>) {
    let (mut known, mut odd) = (Vec::new(), Vec::new());
    for line in lines {
        let matched = rules::matched(line, 2, acls);
        match matched.why {
            _ if !rules::is_action(line.arg(1)) => {
                odd.push((line, "neither allow nor deny".to_owned()));
            }
            // Squid skips a line without an `acl`.
            _ if line.args_from(2).is_empty() => known.push((line, Vec::new())),
            None => known.push((line, matched.sure)),
            Some(reason) => odd.push((line, reason)),
        }
    }
    (known, odd)
}

/// Returns the requests of all pools and their limits. The last condition matches every request.
fn list(pools: &[Pool<'_>], work: &Work) -> Result<Vec<Limited>, String> {
    let mut list: Vec<Limited> = vec![(Condition::default(), Rc::from([]))];
    for pool in pools.iter().rev() {
        let names = pool.limits.iter().map(|limit| limit.name.clone());
        let limits: Rc<[String]> = names.collect();
        // Requests to which this pool does not apply are left to the pools after it.
        let mut of_pool = Vec::new();
        for (line, conditions) in &pool.access {
            for condition in conditions {
                match line.arg(1) {
                    "allow" => of_pool.push((condition.clone(), Rc::clone(&limits))),
                    _ => add_common(&mut of_pool, &list, condition, work)?,
                }
                check_length(&of_pool)?;
            }
        }
        if pool.allows_the_rest() {
            of_pool.push((Condition::default(), limits));
        } else {
            of_pool.append(&mut list);
        }
        check_length(&of_pool)?;
        list = of_pool;
    }
    Ok(list)
}

/// Adds the part of `list` for requests with this condition.
fn add_common(
    to: &mut Vec<Limited>,
    list: &[Limited],
    condition: &Condition,
    work: &Work,
) -> Result<(), String> {
    for (other, limits) in list {
        if let Some(both) = other.and(condition, work)? {
            to.push((both, Rc::clone(limits)));
        }
    }
    Ok(())
}

fn check_length(list: &[Limited]) -> Result<(), String> {
    if list.len() <= RULES_MAX {
        Ok(())
    } else {
        Err(format!("they need more than {RULES_MAX} rules"))
    }
}

/// All directives that this module reads.
const NAMES: [&str; 7] = [
    "delay_pools",
    "delay_class",
    "delay_parameters",
    "delay_access",
    "client_delay_pools",
    "client_delay_parameters",
    "client_delay_access",
];

/// The level in class 3 that has no counterpart.
const NETWORK: &str = "network";
/// The lowest rate in a `[[limit]]`.
const RATE_MIN: u64 = 1 << 10;
/// Most limits in a configuration.
const LIMITS_MAX: usize = 64;
/// Most pools that are read.
const POOLS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::super::source::Source;
    use super::super::tests::loaded;
    use super::super::{Draft, Fate, Unsure, draft, lines};

    const ACLS: &str = "acl pupils src 10.1.0.0/16\nacl net src 10.0.0.0/8\n\
        acl good dstdomain .good.test\nacl odd url_regex x\n\
        http_access allow net\nhttp_access deny all\n";

    fn imported(text: &str) -> (Draft, toml::Table) {
        let source = Source {
            lines: lines::lines("squid.conf", &format!("{ACLS}{text}")).collect(),
            ..Source::default()
        };
        let draft = draft(source, Unsure::Refuse);
        let table = toml::from_str(&draft.text("squid.conf")).unwrap();
        (draft, table)
    }

    /// Each rule in a few words: action, clients, destinations, limits.
    fn rules(table: &toml::Table) -> Vec<String> {
        let rules = table["access"].as_array().unwrap().iter();
        let rules = rules.map(|rule| {
            let words = ["action", "clients", "destinations", "limits"];
            let words = words.iter().filter_map(|key| rule.get(*key));
            let words = words.map(|value| match value {
                toml::Value::Array(all) => {
                    let all: Vec<_> = all.iter().filter_map(toml::Value::as_str).collect();
                    all.join(",")
                }
                other => other.as_str().unwrap_or_default().to_owned(),
            });
            words.collect::<Vec<_>>().join(" ")
        });
        rules.collect()
    }

    #[test]
    fn a_pool_becomes_limits_of_the_rules_that_serve_its_requests() {
        let (draft, table) = imported(
            "delay_pools 1\ndelay_class 1 2\ndelay_parameters 1 500000/1000000 -1/-1\n\
             delay_access 1 deny good\ndelay_access 1 allow pupils\ndelay_access 1 deny all\n",
        );
        let limits = table["limit"].as_array().unwrap();
        assert_eq!(limits.len(), 1);
        let field = |key: &str| limits[0][key].as_str().unwrap().to_owned();
        assert_eq!(field("name"), "pool-1-all");
        assert_eq!(
            (field("per"), field("bandwidth"), field("burst")),
            ("all".into(), "500000".into(), "1000000".into())
        );
        let said = rules(&table);
        assert_eq!(
            said,
            [
                "allow net .good.test",
                "limit pupils pool-1-all",
                "allow net",
                "deny",
            ],
        );
        let missing = draft.remarks.iter().filter(|it| it.fate == Fate::Missing);
        assert_eq!(missing.count(), 0, "{:?}", draft.remarks);
    }

    #[test]
    fn a_request_has_the_first_pool_that_allows_it_and_one_of_its_client() {
        let (_, table) = imported(
            "delay_pools 2\ndelay_class 2 4\n\
             delay_parameters 2 -1/-1 none 10000/20000 30000/40000\n\
             delay_access 2 allow all\ndelay_class 1 1\ndelay_parameters 1 70000/90000\n\
             delay_access 1 allow good\nclient_delay_pools 1\n\
             client_delay_parameters 1 3000 4000\nclient_delay_access 1 allow pupils\n",
        );
        let said = rules(&table);
        assert_eq!(
            said,
            [
                "limit pupils .good.test pool-1-all,client-pool-1",
                "limit net .good.test pool-1-all",
                "limit pupils pool-2-client,pool-2-user,client-pool-1",
                "limit net pool-2-client,pool-2-user",
                "deny",
            ],
        );
        assert_eq!(table["limit"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn a_pool_that_cannot_be_said_is_left_out_and_told() {
        for text in [
            "delay_class 1 3\ndelay_parameters 1 -1/-1 5000/5000 -1/-1\ndelay_access 1 allow all\n",
            "delay_class 1 1\ndelay_parameters 1 5000/5000\ndelay_access 1 allow odd\n",
            "delay_class 1 5\ndelay_parameters 1 5000/5000\ndelay_access 1 allow all\n",
            "delay_class 1 2\ndelay_parameters 1 5000/5000\ndelay_access 1 allow all\n",
            "delay_class 1 1\ndelay_parameters 1 0/5\ndelay_access 1 allow all\n",
            "delay_class 01 1\ndelay_parameters 01 5000/5000\ndelay_access 01 allow all\n",
            "delay_class x 1\ndelay_parameters x 5000/5000\ndelay_access x allow all\n",
        ] {
            let (draft, table) = imported(text);
            assert!(!table.contains_key("limit"), "{text}");
            let told = draft.remarks.iter();
            let told = told.filter(|it| it.directive.contains("delay_"));
            assert_eq!(told.count(), 3, "{text} {:?}", draft.remarks);
        }
    }

    #[test]
    fn a_line_or_a_level_that_cannot_be_said_takes_no_other_pool_with_it() {
        let (draft, table) = imported(
            "delay_pools 3\ndelay_class 1 1\ndelay_parameters 1 5000/5000\n\
             delay_access 1 allow odd\ndelay_class 2 3\n\
             delay_parameters 2 60000/60000 5000/5000 4000/8000\ndelay_access 2 deny odd\n\
             delay_access 2 allow pupils\ndelay_class 3 1\ndelay_parameters 3 9000/9000\n\
             delay_access 3 deny good\n",
        );
        let names = table["limit"].as_array().unwrap().iter();
        let names: Vec<&str> = names.filter_map(|it| it["name"].as_str()).collect();
        assert_eq!(names, ["pool-2-all", "pool-2-client", "pool-3-all"]);
        let missing = draft.remarks.iter().filter(|it| it.fate == Fate::Missing);
        // All of pool 1, the level of networks, and the line that denies.
        let missing = missing.filter(|it| it.directive.contains("delay_"));
        assert_eq!(missing.count(), 5, "{:?}", draft.remarks);
        assert_eq!(
            rules(&table),
            [
                "limit pupils pool-2-all,pool-2-client",
                "allow net .good.test",
                "limit net pool-3-all",
                "deny"
            ]
        );
    }

    #[test]
    fn whatever_the_pools_the_result_is_one_of_ours_and_each_line_is_told_or_imported() {
        let mut rng = fastrand::Rng::with_seed(27);
        let words = [
            "1",
            "2",
            "3",
            "-1/-1",
            "none",
            "2000/3000",
            "1/1",
            "4000",
            "allow",
            "deny",
            "all",
            "pupils",
            "net",
            "good",
            "odd",
            "!good",
            "!pupils",
            "!odd",
            "missing",
        ];
        let mut limits = 0;
        for round in 0..500 {
            let mut text = String::new();
            let number = rng.usize(1..20);
            for _ in 0..number {
                let mut word = || words[rng.usize(..words.len())];
                let (a, b, c) = (word(), word(), word());
                let pool = rng.u8(1..4);
                let class = rng.u8(1..6);
                let allow = if rng.bool() { "allow" } else { "deny" };
                let line = match rng.u8(0..9) {
                    0 | 1 => format!("delay_class {pool} {class}"),
                    2 => format!("delay_parameters {pool} 2000/3000"),
                    3 => format!("delay_parameters {pool} 2000/3000 {a}"),
                    4 | 5 => format!("delay_access {pool} {allow} {b} {c}"),
                    6 => format!("client_delay_parameters {pool} 4000 5000"),
                    7 => format!("client_delay_access {pool} {allow} {c}"),
                    _ => format!("delay_parameters {a} {b} {c}"),
                };
                text.push_str(&line);
                text.push('\n');
            }
            let source = Source {
                lines: lines::lines("squid.conf", &format!("{ACLS}{text}")).collect(),
                ..Source::default()
            };
            let draft = draft(source, Unsure::Refuse);
            let written = draft.text("squid.conf");
            let loaded = loaded(&written);
            assert!(loaded.is_ok(), "round {round}: {text}{written}\n{loaded:?}");
            limits += draft.tables_of("limit");
            let quoted = |line: usize| {
                let place = format!("squid.conf:{line}: ");
                written.contains(&place)
            };
            let first = ACLS.lines().count() + 1;
            for line in first..first + number {
                assert!(quoted(line), "round {round}, line {line}: {text}{written}");
            }
        }
        assert!(limits > 20, "{limits}");
    }
}
