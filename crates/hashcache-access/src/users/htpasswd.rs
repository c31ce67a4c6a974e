//! Lines with users and password hashes, as Apache's `htpasswd -B` writes them: `name:hash`.
//!
//! Called by `user_hashes`. Only bcrypt is accepted: the other hashes that `htpasswd` makes can be
//! tried a million times a second. Squid's files have such hashes beside bcrypt. Their users are
//! distinguished from broken lines, so that such a line does not lock out the other users.
//!
//! Invariant: a hash is no entry if its check would take longer than [`COST_MAX`] allows.

use bcrypt::HashParts;

use super::basic::USER_MAX;

/// A user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserEntry<'a> {
    pub user: &'a str,
    pub hash: &'a str,
    /// The work for a check doubles with each step.
    pub cost: u32,
}

/// A line that is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadEntry<'a> {
    /// The number of the line, from 1.
    pub line: usize,
    /// The fault.
    pub what: &'static str,
    /// The user, if another program made the hash in the line. This user cannot log in.
    pub foreign: Option<&'a str>,
}

/// The entries in a file. Empty lines and lines that start with `#` are skipped.
pub fn read_entries(text: &str) -> impl Iterator<Item = Result<UserEntry<'_>, BadEntry<'_>>> {
    // A byte order mark, which some editors write, would be part of the first name.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(|(number, line)| {
        let line_number = number + 1;
        read_entry(line).map_err(|what| BadEntry {
            line: line_number,
            what,
            foreign: foreign_user(line),
        })
    })
}

fn read_entry(line: &str) -> Result<UserEntry<'_>, &'static str> {
    let (user, rest) = line
        .trim_end()
        .split_once(':')
        .ok_or("there is no `user:hash`")?;
    if user.is_empty() || user.len() > USER_MAX || user.chars().any(char::is_control) {
        return Err("the name of the user is empty or too long");
    }
    let hash = rest.split(':').next().unwrap_or(rest);
    let parts: Option<HashParts> = hash.parse().ok();
    let cost = parts.map(|parts| parts.get_cost());
    let cost = cost.filter(|cost| (COST_MIN..=COST_MAX).contains(cost));
    Ok(UserEntry {
        user,
        hash,
        cost: cost
            .ok_or("the hash is not bcrypt with a cost from 4 to 14: use `htpasswd -B -C 10`")?,
    })
}

/// The user in a line with a hash that `htpasswd`, `crypt` or LDAP tools make.
fn foreign_user(line: &str) -> Option<&str> {
    let (user, rest) = line.trim_end().split_once(':')?;
    let is_named =
        !user.is_empty() && user.len() <= USER_MAX && !user.chars().any(char::is_control);
    let hash = rest.split(':').next().unwrap_or(rest);
    let of_program = FOREIGN.iter().any(|begin| hash.starts_with(begin));
    let is_crypt_char = |c: char| c.is_ascii_alphanumeric() || "./".contains(c);
    let is_crypt = hash.len() == CRYPT_LENGTH && hash.chars().all(is_crypt_char);
    (is_named && (of_program || is_crypt)).then_some(user)
}

/// Prefixes of other programs' hashes: MD5, SHA-256, SHA-512, yescrypt, scrypt, Argon2, LDAP.
const FOREIGN: [&str; 10] = [
    "$apr1$", "$1$", "$5$", "$6$", "$7$", "$y$", "$gy$", "$argon2", "{SHA}", "{SSHA}",
];
/// Length of a hash from the old `crypt`.
const CRYPT_LENGTH: usize = 13;
const COST_MIN: u32 = 4;
/// About a second on a slow processor.
const COST_MAX: u32 = 14;

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "$2y$05$bvIG6Nmid91Mu9RcmmWZfO5HJIMCT8riNW0hEp8f6/FuA2/mHZFpe";

    #[test]
    fn entries_have_a_name_and_a_bcrypt_hash() {
        let line = format!("anna:{HASH}");
        let entry = read_entry(&line).unwrap();
        assert_eq!((entry.user, entry.hash), ("anna", HASH));
        assert_eq!(entry.cost, 5);
        assert!(read_entry(&format!("zo\u{eb}:{HASH}:more\r")).is_ok());
        for wrong in [
            "anna",
            "anna:",
            "anna:secret",
            "anna:$apr1$x$y",
            "anna:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",
            &format!(":{HASH}"),
            &format!("anna:{}", HASH.replace("$05$", "$15$")),
            &format!("anna:{}", HASH.replace("$05$", "$5$")),
            &format!("anna:{}", &HASH[..59]),
            &format!("anna:{HASH}x"),
            &format!("anna:{}", HASH.replace("2y", "2z")),
        ] {
            assert!(read_entry(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_hash_of_another_program_is_told_from_a_broken_line() {
        for (line, user) in [
            ("anna:$apr1$x$y", Some("anna")),
            ("anna:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", Some("anna")),
            ("anna:rqXexS6ZhobKA", Some("anna")),
            ("anna:$6$salt$hash:more", Some("anna")),
            ("anna:secret", None),
            ("anna:", None),
            ("anna", None),
            (":$apr1$x$y", None),
        ] {
            assert_eq!(foreign_user(line), user, "{line}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_name() {
        let text = format!("\u{feff}anna:{HASH}\n");
        let entries: Vec<_> = read_entries(&text).collect();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].unwrap().user, "anna");
    }
}
