//! Freshness rules: lifetimes for certain URLs, from the operator or from the shipped list.
//!
//! `freshness` looks up a rule once per response that may be stored; `reuse` never does, because
//! the result is in the stored facts.
//!
//! Invariant: the first matching rule decides, and the operator's rules precede the shipped rules.
//! Cost: a comparison with the ends of all path patterns, 0.1 us for the shipped rules; without
//! rules, no work.
//!
//! ```toml
//! [[rule]]
//! host = "*.example.com"          # one or several; without it, every host
//! path = ["/static/**", "/*.js"]  # one or several
//! lifetime = "30d"
//! # or instead: immutable = true
//! # or instead: heuristic = { percent = 20, max = "7d" }
//! ```
//!
//! In a path `*` stays within a segment, `**` crosses segments, and `<hex:40>` is forty digits
//! 0-9a-f; in a host `*` crosses labels.

use serde::{Deserialize, Deserializer, de};
use thiserror::Error;

use crate::authority::Host;
use crate::date::Seconds;
use crate::glob::{Crosses, Globs};
use crate::heuristic::Heuristic;
use crate::target::Target;

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// A lifetime, if the origin states none.
    Lifetime(Seconds),
    /// Another heuristic, if the origin states no lifetime.
    Heuristic(Heuristic),
    /// The content under this name never changes.
    Immutable,
}

/// The author of a rule. An operator knows the site; the shipped list guesses only by the name, so
/// its rules apply to fewer responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuleAuthor {
    /// The operator.
    #[default]
    Operator,
    /// The shipped list.
    Shipped,
}

/// The first rule that matches a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matched {
    /// The action of the rule.
    pub action: RuleAction,
    /// The author of the rule.
    pub author: RuleAuthor,
}

impl Matched {
    /// Returns true if the operator's rule declares the matching responses to be for all clients: a
    /// lifetime does, another heuristic does not.
    pub(crate) fn is_leave(self) -> bool {
        self.author == RuleAuthor::Operator && !matches!(self.action, RuleAction::Heuristic(_))
    }
}

/// A `[[rule]]` table as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSpec {
    #[serde(default)]
    host: Patterns,
    path: Patterns,
    lifetime: Option<DurationText>,
    heuristic: Option<HeuristicSpec>,
    #[serde(default)]
    immutable: bool,
    #[serde(skip)]
    author: RuleAuthor,
}

impl RuleSpec {
    /// Parses the `[[rule]]` tables of a TOML text that holds nothing else.
    pub fn from_toml(text: &str) -> Result<Vec<RuleSpec>, RuleError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct RuleFile {
            #[serde(default)]
            rule: Vec<RuleSpec>,
        }
        let file: RuleFile =
            toml::from_str(text).map_err(|error| RuleError::Toml(Box::new(error)))?;
        Ok(file.rule)
    }

    /// The rules of the shipped list.
    pub fn shipped() -> Vec<RuleSpec> {
        let lists = SHIPPED.iter().flat_map(|list| {
            let specs = RuleSpec::from_toml(list);
            specs.expect("the lists are read by a test")
        });
        let mut specs: Vec<RuleSpec> = lists.collect();
        for spec in &mut specs {
            spec.author = RuleAuthor::Shipped;
        }
        specs
    }

    fn action(&self) -> Result<RuleAction, RuleError> {
        match (self.lifetime, &self.heuristic, self.immutable) {
            (Some(DurationText(seconds)), None, false) => Ok(RuleAction::Lifetime(seconds)),
            (None, Some(spec), false) => Ok(RuleAction::Heuristic(spec.heuristic())),
            (None, None, true) => Ok(RuleAction::Immutable),
            _ => Err(RuleError::Action {
                path: self.path.0.join(", "),
            }),
        }
    }
}

/// Compiled rules.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    paths: Globs,
    /// The rule index for each path pattern; ascending, because patterns are added in rule order.
    rule_of_path: Vec<usize>,
    rules: Vec<Rule>,
    /// Index after the last path pattern that belongs to an `immutable` rule.
    immutable_end: usize,
}

#[derive(Clone, Debug)]
struct Rule {
    /// `None` matches every host.
    hosts: Option<Globs>,
    gives: Matched,
}

impl Rules {
    /// Compiles these rules; the first has priority.
    pub fn new<'a>(specs: impl IntoIterator<Item = &'a RuleSpec>) -> Result<Rules, RuleError> {
        let mut out = Rules::none();
        for spec in specs {
            let action = spec.action()?;
            let hosts = host_set(&spec.host.0)?;
            for pattern in &spec.path.0 {
                if !pattern.starts_with('/') {
                    return Err(RuleError::Path {
                        pattern: pattern.clone(),
                    });
                }
                add(&mut out.paths, pattern, Crosses::DoubleStar)?;
                out.rule_of_path.push(out.rules.len());
            }
            if action == RuleAction::Immutable {
                out.immutable_end = out.rule_of_path.len();
            }
            let author = spec.author;
            let gives = Matched { action, author };
            out.rules.push(Rule { hosts, gives });
        }
        Ok(out)
    }

    /// The operator's rules, then the shipped rules.
    pub fn before_shipped(specs: &[RuleSpec]) -> Result<Rules, RuleError> {
        Rules::new(specs.iter().chain(&RuleSpec::shipped()))
    }

    /// Compiles the rules of a TOML text, without the shipped rules.
    pub fn from_toml(text: &str) -> Result<Rules, RuleError> {
        Rules::new(&RuleSpec::from_toml(text)?)
    }

    /// Only the shipped rules.
    pub fn shipped() -> Rules {
        Rules::new(&RuleSpec::shipped()).expect("the list is built by a test")
    }

    /// No rules.
    pub fn none() -> Rules {
        Rules::default()
    }

    /// The action and author of the first rule that matches the target.
    pub fn find(&self, target: &Target) -> Option<Matched> {
        self.find_below(self.rule_of_path.len(), target)
    }

    /// As [`Self::find`], but only if the matching rule is `immutable`: no other rule counts if the
    /// origin states a lifetime. This is cheaper, because rules after the last `immutable` rule are
    /// not tried.
    pub fn find_immutable(&self, target: &Target) -> Option<Matched> {
        let first = self.find_below(self.immutable_end, target);
        first.filter(|rule| rule.action == RuleAction::Immutable)
    }

    fn find_below(&self, end: usize, target: &Target) -> Option<Matched> {
        if end == 0 {
            return None;
        }
        let matched = self.paths.matches_below(end, target.path());
        let rules = matched.map(|path| &self.rules[self.rule_of_path[path]]);
        let mut applicable = rules.filter(|rule| rule.matches_host(&target.authority.host));
        applicable.next().map(|rule| rule.gives)
    }
}

impl Rule {
    fn matches_host(&self, host: &Host) -> bool {
        match (&self.hosts, host) {
            (None, _) => true,
            (Some(hosts), Host::Name(name)) => hosts.is_match(name),
            (Some(hosts), address) => hosts.is_match(&address.to_string()),
        }
    }
}

fn host_set(patterns: &[String]) -> Result<Option<Globs>, RuleError> {
    if patterns.iter().any(|pattern| pattern == "*") {
        return Ok(None);
    }
    let mut hosts = Globs::new();
    for pattern in patterns {
        add(&mut hosts, &pattern.to_ascii_lowercase(), Crosses::Star)?;
    }
    Ok(Some(hosts))
}

/// Adds a pattern, which may contain `<hex:N>`.
pub(crate) fn add(globs: &mut Globs, pattern: &str, crosses: Crosses) -> Result<(), RuleError> {
    let bad = |reason| RuleError::Pattern {
        pattern: pattern.to_owned(),
        reason,
    };
    let spelled_out = spell_out_digits(pattern).ok_or_else(|| bad("not <hex:N>".to_owned()))?;
    globs
        .push(&spelled_out, crosses)
        .map_err(|error| bad(error.to_string()))
}

/// Expands `<hex:40>` to forty times `[0-9a-f]`: a glob has no counted repetition for a digest.
fn spell_out_digits(pattern: &str) -> Option<String> {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('<') {
        let (inside, after) = after.split_once('>')?;
        let count: usize = inside.strip_prefix("hex:")?.parse().ok()?;
        if !(1..=128).contains(&count) {
            return None;
        }
        out.push_str(before);
        out.push_str(&"[0-9a-f]".repeat(count));
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

/// A single pattern or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patterns(pub(crate) Vec<String>);

impl Default for Patterns {
    fn default() -> Patterns {
        Patterns(vec!["*".to_owned()])
    }
}

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Patterns, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a pattern or a list of patterns")]
        enum OneOrMany {
            One(String),
            Many(Vec<String>),
        }
        match OneOrMany::deserialize(deserializer)? {
            OneOrMany::One(pattern) => Ok(Patterns(vec![pattern])),
            OneOrMany::Many(patterns) if patterns.is_empty() => {
                Err(de::Error::invalid_length(0, &"at least one pattern"))
            }
            OneOrMany::Many(patterns) => Ok(Patterns(patterns)),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeuristicSpec {
    percent: Option<u32>,
    max: Option<DurationText>,
}

impl HeuristicSpec {
    fn heuristic(&self) -> Heuristic {
        let default = Heuristic::default();
        Heuristic {
            percent: self.percent.unwrap_or(default.percent),
            max: self
                .max
                .map_or(default.max, |DurationText(seconds)| seconds),
        }
    }
}

/// A time span as written: `"90s"`, `"5m"`, `"12h"`, `"30d"`, `"2w"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DurationText(pub(crate) Seconds);

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DurationText, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_span(&text).map(DurationText).ok_or_else(|| {
            let found = de::Unexpected::Str(&text);
            de::Error::invalid_value(
                found,
                &"a time like \"90s\", \"5m\", \"12h\", \"30d\", \"2w\"",
            )
        })
    }
}

fn parse_span(text: &str) -> Option<Seconds> {
    let unit_seconds = match text.as_bytes().last()? {
        b's' => 1,
        b'm' => 60,
        b'h' => 3_600,
        b'd' => 86_400,
        b'w' => 7 * 86_400,
        _ => return None,
    };
    let count = crate::fields::digits(&text.as_bytes()[..text.len() - 1])?;
    Some(Seconds::new(count.saturating_mul(unit_seconds)))
}

/// Why rules are rejected.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The text is not a list of rules; the source error has the position.
    #[error("cannot read freshness rules")]
    Toml(#[source] Box<toml::de::Error>),
    /// A rule has none or several of the three actions.
    #[error("rule for {path}: exactly one of lifetime, heuristic and immutable is needed")]
    Action {
        /// The rule's path patterns.
        path: String,
    },
    /// A site lifetime has neither `default` nor `max`.
    #[error("lifetime for {path}: default or max is needed")]
    Lifetime {
        /// The path patterns.
        path: String,
    },
    /// A path pattern that can match no path.
    #[error("path pattern {pattern} does not begin with /")]
    Path {
        /// The pattern.
        pattern: String,
    },
    /// A malformed pattern.
    #[error("pattern {pattern}: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The error.
        reason: String,
    },
}

/// The first matching rule decides, so the second list covers only names that are not in the first.
const SHIPPED: [&str; 2] = [
    include_str!("../lists/immutable.toml"),
    include_str!("../lists/moving.toml"),
];

#[cfg(test)]
mod tests;
