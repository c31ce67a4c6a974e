//! The values in `acl` lines: addresses, ports, methods, users, hosts and regular expressions.
//!
//! Called by `acl`. A value that cannot be read does not invalidate the `acl`'s other values: they
//! are kept, with the reason why the `acl` may match more.

use std::collections::BTreeSet;
use std::rc::Rc;

use hashcache_proxy::Destination;

use super::address::{self, Addresses};
use super::bounds::Bounds;
use super::condition::{Condition, Destinations};
use super::lines::Line;
use super::ranges::Ranges;
use super::week;

/// Users that can log in, or the reason why there are none.
pub type Users = Result<Rc<BTreeSet<String>>, String>;

/// The valid values in an `acl`, and the fault in the others, if any.
#[derive(Debug)]
pub struct Parts<T> {
    pub good: T,
    pub bad: Option<String>,
}

/// Reads addresses and networks.
pub fn addresses(values: &[String]) -> Parts<Addresses> {
    let (mut set, mut bad) = ((Vec::new(), Vec::new()), None);
    for value in values {
        match address::parse(value) {
            Some(read) => {
                set.0.extend(read.v4.iter());
                set.1.extend(read.v6.iter());
            }
            None => {
                bad.get_or_insert_with(|| {
                    format!(
                        "`{value}` is no address or network; rules do not look up names of clients"
                    )
                });
            }
        }
    }
    let good = Addresses {
        v4: Ranges::new(set.0),
        v6: Ranges::new(set.1),
    };
    match good.network_count() {
        Some(_) => Parts { good, bad },
        None => Parts {
            good: Addresses::default(),
            bad: Some(TOO_MANY_NETWORKS.to_owned()),
        },
    }
}

/// Reads ports and port ranges.
pub fn ports(values: &[String]) -> Parts<Ranges> {
    let (mut ranges, mut bad) = (Vec::new(), None);
    for value in values {
        let (first, last) = value.split_once('-').unwrap_or((value, value));
        match (first.parse::<u16>(), last.parse::<u16>()) {
            (Ok(first), Ok(last)) => ranges.push((u128::from(first.max(1)), u128::from(last))),
            _ => drop(bad.get_or_insert_with(|| format!("`{value}` is no port"))),
        }
    }
    Parts {
        good: Ranges::new(ranges),
        bad,
    }
}

/// Reads methods and converts them to upper case.
pub fn methods(values: &[String]) -> Parts<BTreeSet<String>> {
    let is_method = |value: &String| {
        let mut chars = value.chars();
        !value.is_empty() && chars.all(|c| c.is_ascii_alphabetic() || "-_".contains(c))
    };
    let (good, bad): (Vec<_>, Vec<_>) = values.iter().partition(|it| is_method(it));
    Parts {
        good: good.iter().map(|it| it.to_ascii_uppercase()).collect(),
        bad: bad.first().map(|value| format!("`{value}` is no method")),
    }
}

/// Reads times of the week.
pub fn times(lines: &[&Line]) -> Bounds {
    let (mut minutes, mut bad) = (Ranges::default(), None);
    for line in lines {
        let words: Vec<&str> = line.args_from(2).iter().map(|it| &*it.text).collect();
        match week::read(&words) {
            Some(read) => minutes = minutes.union(&read),
            None => bad = Some(format!("`{}` is no time: days, hours", words.join(" "))),
        }
    }
    let always = week::is_always(&minutes);
    let condition = Condition {
        times: (!always).then(|| Rc::new(minutes)),
        ..Condition::default()
    };
    let mut bounds = Bounds::at_least(vec![condition], bad);
    bounds.sure.retain(|it| !it.is_never());
    bounds.may.retain(|it| !it.is_never());
    bounds
}

/// Reads the users in `proxy_auth`. Only known users can log in, so a name without regard to case
/// stands for the known users that it matches.
pub fn named_users(
    values: &[String],
    ignores_case: bool,
    users: &Users,
) -> Result<Rc<BTreeSet<String>>, String> {
    let known = users.as_ref().map_err(Clone::clone)?;
    if values.iter().any(|value| value == "REQUIRED") {
        return Ok(Rc::clone(known));
    }
    let is_bad = |value: &&String| value.is_empty() || value.contains(':');
    if let Some(value) = values.iter().find(is_bad) {
        return Err(format!("`{value}` is no name of a user"));
    }
    let mut named: BTreeSet<String> = values.iter().cloned().collect();
    if ignores_case {
        let lower: BTreeSet<String> = values.iter().map(|it| it.to_lowercase()).collect();
        let alike = known.iter().filter(|it| lower.contains(&it.to_lowercase()));
        named.extend(alike.cloned());
    }
    Ok(Rc::new(named))
}

/// Reads the schemes in `proto`. There are no requests for FTP, Gopher and the other schemes,
/// because an import enables no gateway.
pub fn schemes(values: &[String]) -> Bounds {
    let is_web = |value: &String| {
        let value = value.to_ascii_uppercase();
        !NO_SCHEMES.contains(&&*value)
    };
    if values.iter().any(is_web) {
        Bounds::unknown("access rules do not look at the scheme")
    } else {
        Bounds::never()
    }
}

/// Adds a host from `dstdomain`. A text that cannot be a request's host is left out: Squid compares
/// texts, so `10.0.0.0/8` is not a host either.
pub fn add_host(hosts: &mut Destinations, text: &str) {
    match text.parse::<Destination>() {
        Ok(Destination::Network(_)) if text.contains('/') => {}
        Ok(Destination::Network(_)) => {
            if let Some(address) = address::parse(text) {
                hosts.addresses = hosts.addresses.union(&address);
            }
        }
        Ok(host) => drop(hosts.names.insert(host.to_string())),
        Err(_) => {}
    }
}

/// Reads the hosts in `dstdom_regex`.
pub fn host_regexes(values: &[String], ignores_case: bool) -> Bounds {
    let (mut sure, mut may) = (Destinations::default(), Destinations::default());
    let (mut why, mut is_bounded) = (None, true);
    for value in values {
        let regex = value.to_ascii_lowercase();
        // Hosts are in lower case, so a capital letter matches no host.
        let matches_case = ignores_case || regex == *value;
        match host_regex(&regex) {
            Some((host, is_exact)) => {
                add_host(&mut may, &host);
                if is_exact && matches_case {
                    add_host(&mut sure, &host);
                } else {
                    why.get_or_insert_with(|| too_much(value));
                }
            }
            None => {
                is_bounded = false;
                why.get_or_insert_with(|| too_much(value));
            }
        }
    }
    Bounds {
        sure: vec![Condition::of_hosts(sure)],
        may: if is_bounded {
            vec![Condition::of_hosts(may)]
        } else {
            vec![Condition::default()]
        },
        why,
    }
}

fn too_much(regex: &str) -> String {
    format!("the regular expression `{regex}` is more than a host or a domain")
}

/// Returns the host or domain that a regular expression for hosts matches. The flag is true if the
/// expression matches exactly these hosts; otherwise it matches some of them.
fn host_regex(regex: &str) -> Option<(String, bool)> {
    let body = regex.strip_suffix('$')?;
    for (begin, is_exact) in [("(^|\\.)", true), ("\\.", false), ("^.*\\.", false)] {
        if let Some(name) = body.strip_prefix(begin) {
            return Some((format!(".{}", plain_host(name)?), is_exact));
        }
    }
    Some((plain_host(body.strip_prefix('^')?)?, true))
}

/// Parses a text with only letters, digits, hyphens and escaped dots. An unescaped dot would match
/// any character.
fn plain_host(regex: &str) -> Option<String> {
    let mut host = String::new();
    let mut chars = regex.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.next() == Some('.') => host.push('.'),
            c if c.is_ascii_alphanumeric() || c == '-' => host.push(c),
            _ => return None,
        }
    }
    (!host.is_empty()).then_some(host)
}

/// Returns the hosts in `url_regex` if every expression starts with a scheme and a host. The
/// expressions may match only some URLs on these hosts.
pub fn url_regexes(values: &[String], why: &str) -> Bounds {
    let mut hosts = Destinations::default();
    for value in values {
        match url_regex(&value.to_ascii_lowercase()) {
            Some(host) => add_host(&mut hosts, &host),
            None => return Bounds::unknown(why),
        }
    }
    Bounds {
        sure: Vec::new(),
        may: vec![Condition::of_hosts(hosts)],
        why: Some(why.to_owned()),
    }
}

/// Returns the only host, or domain, with URLs that a regular expression can match.
fn url_regex(regex: &str) -> Option<String> {
    // An alternative need not start with the scheme.
    if regex.contains('|') {
        return None;
    }
    let rest = SCHEMES.iter().find_map(|it| regex.strip_prefix(it))?;
    let begins = ["([^/]*\\.)?", "([^/]+\\.)?", "[^/]*\\.", "[^/]+\\."];
    let domain = begins.iter().find_map(|it| rest.strip_prefix(it));
    let (dot, rest) = domain.map_or(("", rest), |rest| (".", rest));
    // The host is complete up to the first slash.
    let (host, path) = rest.split_once('/')?;
    // A slash that is optional does not terminate the host.
    if path.starts_with(['?', '*', '{']) {
        return None;
    }
    let host = ["(:[0-9]+)?", "(:[0-9]*)?", ":[0-9]+"]
        .iter()
        .find_map(|it| host.strip_suffix(it))
        .unwrap_or(host);
    Some(format!("{dot}{}", plain_host(host)?))
}

/// Reason why addresses cannot be written.
pub const TOO_MANY_NETWORKS: &str = "it needs too many networks";
/// Prefixes for expressions about URLs.
const SCHEMES: [&str; 4] = ["^http://", "^https://", "^https?://", "^http[s]?://"];
/// Schemes for which the proxy receives no requests.
const NO_SCHEMES: [&str; 6] = ["FTP", "GOPHER", "WAIS", "URN", "WHOIS", "CACHE_OBJECT"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regular_expression_that_is_a_host_is_one() {
        let exact = |host: &str| Some((host.to_owned(), true));
        assert_eq!(host_regex(r"^www\.a\.test$"), exact("www.a.test"));
        assert_eq!(host_regex(r"(^|\.)a\.test$"), exact(".a.test"));
        let within = Some((".a.test".to_owned(), false));
        assert_eq!(host_regex(r"\.a\.test$"), within);
        for regex in [
            r"a\.test",
            r"^a.test$",
            r"^a\d$",
            "^[a]$",
            "^a*$",
            "^\\$",
            "^$",
        ] {
            assert_eq!(host_regex(regex), None, "{regex}");
        }
    }

    #[test]
    fn an_expression_for_urls_that_begins_with_a_host_is_about_that_host() {
        for (regex, host) in [
            (r"^http://www\.a\.test/bad", Some("www.a.test")),
            (r"^https?://([^/]*\.)?a\.test/", Some(".a.test")),
            (r"^http://a\.test(:[0-9]+)?/x.*", Some("a.test")),
            (r"^http://a\.test", None),
            (r"^http://a\.test/?", None),
            (r"^http://a.test/", None),
            (r"http://a\.test/", None),
            (r"^http://a\.test/|bad", None),
            (r"^http://[^/]*a\.test/", None),
            (r"bad", None),
        ] {
            assert_eq!(url_regex(regex).as_deref(), host, "{regex}");
        }
    }

    #[test]
    fn a_capital_without_i_matches_no_host() {
        let values = [r"^A\.test$".to_owned()];
        let bounds = host_regexes(&values, false);
        assert!(bounds.why.is_some() && bounds.sure.iter().all(Condition::is_never));
        assert!(host_regexes(&values, true).why.is_none());
    }
}
