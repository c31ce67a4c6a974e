//! The rules that a user may match.
//!
//! Cost: a name and a number for each user that rules and groups name. Users that no rule names and
//! that are in the same groups share a set of rules, so there is a set for each user that a rule
//! names and for each combination of groups.

use std::collections::{HashMap, HashSet};

use super::entry::{Entry, InDoubt};
use super::request::RequestUser;
use super::rule_set::RuleSet;
use super::settings::{AccessConditions, AccessSettings};

/// The rules that each user may match.
#[derive(Debug, Default)]
pub(super) struct UserRules {
    /// The number of each user's set, for users that rules or groups name.
    numbers: HashMap<Box<str>, usize>,
    sets: Vec<RuleSet>,
    /// Rules for any user.
    for_any: RuleSet,
    /// Rules that match if the user cannot be known.
    for_unknowable: RuleSet,
}

impl UserRules {
    pub(super) fn new(entries: &[Entry<'_>], settings: &AccessSettings) -> Self {
        let needs_none = |entry: &Entry<'_>| !entry.conditions.need_user();
        let mut made = Self {
            for_any: RuleSet::from_entries(entries, needs_none),
            for_unknowable: RuleSet::from_entries(entries, |entry| {
                needs_none(entry) || entry.in_doubt == InDoubt::Matches
            }),
            ..Self::default()
        };
        let users = entries
            .iter()
            .map(|it| it.conditions.users.iter().flatten());
        let named: Vec<HashSet<&str>> = users
            .map(|users| users.map(String::as_str).collect())
            .collect();
        // For users that no rule names, only the groups decide.
        let mut of_groups: HashMap<&[&str], usize> = HashMap::new();
        let groups_of = groups_of_users(settings);
        for user in named.iter().flatten() {
            let groups = groups_of.get(user).map_or(&[][..], Vec::as_slice);
            made.add(
                user,
                set_for(entries, |number| named[number].contains(user), groups),
            );
        }
        for (user, groups) in &groups_of {
            if made.numbers.contains_key(*user) {
                continue;
            }
            let number = *of_groups.entry(groups).or_insert_with(|| {
                made.sets.push(set_for(entries, |_| false, groups));
                made.sets.len() - 1
            });
            made.numbers.insert((*user).into(), number);
        }
        made
    }

    /// Stores the set of a user that a rule names.
    fn add(&mut self, user: &str, set: RuleSet) {
        if !self.numbers.contains_key(user) {
            self.numbers.insert(user.into(), self.sets.len());
            self.sets.push(set);
        }
    }

    /// The rules that may match a request from `user`.
    pub(super) fn of(&self, user: RequestUser<'_>) -> &RuleSet {
        match user {
            RequestUser::Known(name) => {
                let number = self.numbers.get(name);
                number.map_or(&self.for_any, |&number| &self.sets[number])
            }
            RequestUser::Unknown => &RuleSet::ALL,
            RequestUser::Unknowable => &self.for_unknowable,
        }
    }

    /// The users that rules and groups name.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.numbers.keys().map(AsRef::as_ref)
    }
}

/// The groups of each user that is in a group, in the order of the groups' names.
fn groups_of_users(settings: &AccessSettings) -> HashMap<&str, Vec<&str>> {
    let mut groups_of: HashMap<&str, Vec<&str>> = HashMap::new();
    for (group, users) in &settings.groups {
        for user in users {
            let groups = groups_of.entry(user).or_default();
            // A user may be twice in a group.
            if groups.last() != Some(&group.as_str()) {
                groups.push(group);
            }
        }
    }
    groups_of
}

/// The rules that a user with these groups may match; `is_named` returns true if an entry names the
/// user.
fn set_for(entries: &[Entry<'_>], is_named: impl Fn(usize) -> bool, groups: &[&str]) -> RuleSet {
    let is_in = |group: &String| groups.contains(&group.as_str());
    let matched = entries.iter().enumerate().filter(|(number, entry)| {
        let AccessConditions { users, groups, .. } = entry.conditions;
        (users.is_none() || is_named(*number))
            && groups.as_ref().is_none_or(|them| them.iter().any(is_in))
    });
    matched.map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::super::entry::entries;
    use super::super::settings::{AccessAction, AccessRule};
    use super::*;

    #[test]
    fn users_of_the_same_groups_share_a_set() {
        let rule = |conditions| AccessRule {
            conditions,
            ..AccessRule::from_action(AccessAction::Allow)
        };
        let staff = rule(AccessConditions {
            groups: Some(vec!["staff".into()]),
            ..AccessConditions::default()
        });
        let anna = rule(AccessConditions {
            users: Some(vec!["anna".into()]),
            ..AccessConditions::default()
        });
        let many = || (0..10_000).map(|number| format!("user{number}"));
        let staff_users = many().chain(["anna".into(), "user1".into()]).collect();
        let other_users = vec!["user7".into(), "bert".into()];
        let groups = [
            ("staff".to_owned(), staff_users),
            ("other".to_owned(), other_users),
        ];
        let settings = AccessSettings {
            rules: vec![staff, anna],
            groups: groups.into(),
            ..AccessSettings::default()
        };
        let rules = UserRules::new(&entries(&settings.rules), &settings);
        let of = |user| {
            rules
                .of(RequestUser::Known(user))
                .iter()
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (of("anna"), of("user1"), of("user7")),
            (vec![0, 1], vec![0], vec![0])
        );
        assert_eq!((of("bert"), of("nobody")), (vec![], vec![]));
        assert_eq!(rules.names().count(), 10_002);
        // Anna; staff; staff and other; other.
        assert_eq!(rules.sets.len(), 4);
    }
}
