//! Lines that allow or deny only by hosts, as for sites and routes.
//!
//! Called by `sites` and `peers`. Invariant: a condition on anything else, such as a client or a
//! time, is an error; it is never left out.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::acl::{self, Acls};
use super::bounds;
use super::condition::{Condition, Destinations, Elements as _};
use super::lines::Line;
use super::rules;
use super::work::{self, Work};

/// The hosts in a line.
#[derive(Debug)]
pub enum Hosts {
    All,
    These(Rc<Destinations>),
}

/// The hosts that all `acl`s in a line together match, starting with argument `at`.
///
/// # Errors
/// The line does not depend only on hosts.
pub fn of_line(line: &Line, at: usize, acls: &Acls) -> Result<Hosts, String> {
    if line.args_from(at).is_empty() {
        return Err(acl::NO_ACL.to_owned());
    }
    let matched = rules::matched(line, at, acls);
    let matched = matched.known()?;
    if bounds::is_everything(matched) {
        return Ok(Hosts::All);
    }
    let alone = matched.iter().map(Condition::only_destinations);
    let alone: Option<Vec<_>> = alone.collect();
    match alone.ok_or("only acls with hosts have a counterpart, without lists in files")?[..] {
        [one] => Ok(Hosts::These(Rc::clone(one))),
        ref several => {
            let work: usize = several.iter().map(|it| it.work()).sum();
            acls.work.spend(work * several.len())?;
            let empty = Destinations::default();
            let all = several.iter().fold(empty, |all, it| all.union(it));
            Ok(Hosts::These(Rc::new(all)))
        }
    }
}

/// The hosts that a line may match, regardless of its other conditions.
pub fn bound_of_line(line: &Line, at: usize, acls: &Acls) -> Hosts {
    let may = rules::matched(line, at, acls).may;
    let mut all = Destinations::default();
    for condition in may {
        match &condition.destinations {
            Some(hosts) if condition.lists.is_none() => all = all.union(hosts),
            _ => return Hosts::All,
        }
    }
    Hosts::These(Rc::new(all))
}

/// A line that allows or denies, as far as it depends on hosts.
#[derive(Debug)]
pub struct Decision<'a> {
    pub line: &'a Line,
    pub allows: bool,
    /// The hosts, or the reason why the line is left out.
    pub hosts: Result<Hosts, String>,
    /// If the line is left out: the hosts for which it may deny requests.
    pub bound: Hosts,
    /// True if these hosts are denied for all requests.
    pub closes: bool,
}

/// Lines in order: the first that matches a host decides.
#[derive(Debug)]
pub struct Decisions<'a> {
    pub all: Vec<Decision<'a>>,
    /// The decision for a host that no line matches.
    pub otherwise: bool,
}

impl<'a> Decisions<'a> {
    /// Reads lines that have the action as argument `at`, followed by `acl`s.
    pub fn read(
        lines: impl Iterator<Item = &'a Line>,
        at: usize,
        otherwise: bool,
        acls: &Acls,
    ) -> Self {
        let all = lines.map(|line| Decision {
            line,
            allows: line.arg(at) == "allow",
            hosts: match line.arg(at) {
                "allow" | "deny" => of_line(line, at + 1, acls),
                _ => Err(NEITHER.to_owned()),
            },
            bound: bound_of_line(line, at + 1, acls),
            closes: false,
        });
        Self {
            all: all.collect(),
            otherwise,
        }
    }

    /// Returns true if a host is allowed.
    ///
    /// # Errors
    /// No work is left.
    pub fn allows(&self, name: &str, work: &Work) -> Result<bool, String> {
        for decision in &self.all {
            work.spend(work::of_name(name))?;
            let hosts = match &decision.hosts {
                Err(_) if decision.closes => Some(&decision.bound),
                hosts => hosts.as_ref().ok(),
            };
            let is_for_it = match hosts {
                Some(Hosts::All) => true,
                Some(Hosts::These(hosts)) => hosts.has(name) || hosts.has_address(name),
                None => false,
            };
            if is_for_it {
                return Ok(decision.allows);
            }
        }
        Ok(self.otherwise)
    }

    /// The hosts and domains in lines that allow.
    ///
    /// # Errors
    /// No work is left.
    pub fn names(&self, work: &Work) -> Result<BTreeSet<String>, String> {
        let mut names = BTreeSet::new();
        for decision in self.all.iter().filter(|it| it.allows) {
            let Ok(Hosts::These(hosts)) = &decision.hosts else {
                continue;
            };
            for name in &hosts.names {
                work.spend(work::of_name(name))?;
                names.insert(name.trim_start_matches('.').to_owned());
            }
        }
        Ok(names)
    }
}

/// Reason why a line is left out that Squid skips.
pub const NEITHER: &str = "neither allow nor deny";
