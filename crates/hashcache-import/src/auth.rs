//! Squid's `auth_param`: users with passwords in a file.
//!
//! Only `basic_ncsa_auth` with bcrypt hashes has a counterpart: the file is used unchanged, and
//! users with other hashes are named, because they cannot log in. An `acl` with `proxy_auth
//! REQUIRED` names every user, which our rules cannot express; therefore the users in the file are
//! written as a group.

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

use hashcache_proxy::users_of;

use super::acl_values::Users;
use super::draft::{Comments, Draft};
use super::lines::Line;

/// Writes the settings for all `auth_param` lines. Returns the users, or the reason why there are
/// none.
pub fn import(draft: &mut Draft, lines: &[&Line]) -> Users {
    let mut users =
        Err("there is no `auth_param basic program` with a file of passwords".to_owned());
    let mut realm = None;
    let is_program = |line: &&&Line| (line.arg(0), line.arg(1)) == ("basic", "program");
    let program = lines.iter().rfind(is_program).map(|line| &line.place);
    let is_about_case = |line: &&&Line| (line.arg(0), line.arg(1)) == ("basic", "casesensitive");
    let has_case = lines.iter().rfind(is_about_case);
    let has_case = has_case.is_some_and(|line| line.arg(2) == "on");
    for line in lines {
        match (line.arg(0), line.arg(1)) {
            ("basic", "program") if program == Some(&line.place) => {
                users = users_in(draft, line, has_case);
            }
            ("basic", "program") => draft.unneeded(line, "a later line replaces it"),
            ("basic", "realm") => realm = Some(line),
            (
                "basic",
                "children" | "credentialsttl" | "casesensitive" | "utf8" | "blankpassword"
                | "key_extras",
            ) => {
                draft.unneeded(line, "passwords are checked by the proxy itself");
            }
            ("basic", _) => draft.missing(line, "unknown parameter"),
            (scheme, _) => {
                let reason = format!("users log in by Basic; there is no {scheme}");
                draft.missing(line, reason);
            }
        }
    }
    if let Some(line) = realm {
        let words: Vec<&str> = line.args_from(2).iter().map(|it| &*it.text).collect();
        let is_bad = |c: char| !c.is_ascii() || c.is_ascii_control() || "\"\\".contains(c);
        let realm: String = words.join(" ").chars().filter(|c| !is_bad(*c)).collect();
        if realm.is_empty() {
            draft.missing(line, "it has no characters of ASCII");
        } else {
            draft.set("login_realm", realm, Comments::from_line(line));
            draft.imported += 1;
        }
    }
    users
}

fn users_in(draft: &mut Draft, line: &Line, has_case: bool) -> Users {
    let program = Path::new(line.arg(2)).file_name().unwrap_or_default();
    if !["basic_ncsa_auth", "ncsa_auth"]
        .iter()
        .any(|it| program == *it)
    {
        let reason = "there are no helpers: users are in files of `htpasswd`";
        draft.missing(line, reason);
        return Err(reason.to_owned());
    }
    let path = Path::new(line.arg(3));
    let names = users_of(path).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|it| format!(": {it}"));
        format!("{error}{}", cause.unwrap_or_default())
    });
    let names = names.and_then(|found| {
        let names = found.users.into_iter().map(|(name, _)| String::from(name));
        let mut foreign: Vec<String> = found.foreign.into_iter().map(String::from).collect();
        // Squid converts names to lower case, unless `casesensitive` is on.
        let is_found = |name: &String| has_case || !name.contains(|c: char| c.is_ascii_uppercase());
        let (names, capital): (BTreeSet<String>, BTreeSet<String>) = names.partition(is_found);
        let mut capital: Vec<String> = capital.into_iter().collect();
        match names.len() {
            0 => return Err("the file has no users".to_owned()),
            1..=USERS_MAX => {}
            _ => return Err(format!("the file has more than {USERS_MAX} users")),
        }
        for (users, reason) in [
            (
                &mut foreign,
                "their hashes are not bcrypt: they cannot log in until `htpasswd -B -C 10` makes \
                 new ones",
            ),
            (
                &mut capital,
                "Squid finds no name with capitals without `casesensitive on`: they are in no \
                 group",
            ),
        ] {
            if users.is_empty() {
                continue;
            }
            users.sort_unstable();
            let others = users.len().saturating_sub(SHOWN_MAX);
            let more = if others == 0 {
                String::new()
            } else {
                format!(" and {others} more")
            };
            users.truncate(SHOWN_MAX);
            draft.missing(
                line,
                format_args!("users `{}`{more}: {reason}", users.join("`, `")),
            );
        }
        Ok(names)
    });
    match names {
        Ok(names) => {
            draft.push("htpasswd", line.arg(3), Comments::from_line(line));
            draft.imported += 1;
            Ok(Rc::new(names))
        }
        Err(reason) => {
            draft.missing(line, &reason);
            Err(reason)
        }
    }
}

/// Most users in a message.
const SHOWN_MAX: usize = 20;
/// Most users that are written as a group.
const USERS_MAX: usize = 10_000;
