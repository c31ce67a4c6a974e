//! Squid in front of sites: `http_port … accel` with `cache_peer … originserver`.
//!
//! A site's hosts are the hosts that `cache_peer_access` allows for the site's servers, otherwise
//! the hosts that `http_access` allows and `defaultsite`. Access rules do not work in front of a
//! site.
//!
//! Invariant: a site has a host only if an `http_access` line lets every client reach it. A line
//! that denies some requests for certain hosts removes these hosts; a line that denies some
//! requests for any host is named with NOT DENIED, or removes all hosts.

use std::collections::BTreeSet;

use toml::Value;

use super::acl::Acls;
use super::condition::Condition;
use super::draft::{Comments, Draft, Fate, NO_REQUEST, Table, strings};
use super::hosts::{Decisions, Hosts, NEITHER};
use super::lines::Line;
use super::peers::{PEERS_MAX, Peer, PeerLines};
use super::purge;
use super::rules::{self, Unsure};
use super::work::Work;

/// Servers with the same hosts.
struct Group<'a> {
    hosts: BTreeSet<String>,
    peers: Vec<Peer<'a>>,
}

/// Writes the sites.
pub fn import(
    draft: &mut Draft,
    lines: &PeerLines<'_>,
    http_access: &[&Line],
    default_sites: &BTreeSet<String>,
    (acls, unsure): (&Acls, Unsure),
) {
    let mut access = read_access(draft, http_access, acls);
    close(&mut access, unsure);
    let usual = access.names(&acls.work);
    let usual = usual.map(|names| &names | default_sites);
    let (mut groups, mut names) = (Vec::<Group<'_>>::new(), BTreeSet::new());
    for (at, line) in lines.cache_peer.iter().enumerate() {
        let peer = match Peer::read(line) {
            Ok(_) if at >= PEERS_MAX => {
                draft.missing(line, format_args!("more than {PEERS_MAX} peers"));
                continue;
            }
            Ok(peer) if !names.insert(peer.name.to_ascii_lowercase()) => {
                draft.missing(line, "another peer has this name");
                continue;
            }
            Ok(peer) if peer.is_server => peer,
            Ok(_) => {
                draft.missing(
                    line,
                    "in front of a site, other caches are used by [[peer]] and [[route]]",
                );
                continue;
            }
            Err(reason) => {
                draft.missing(line, reason);
                continue;
            }
        };
        let own = lines.peer_access.iter().copied();
        let own: Vec<&Line> = own.filter(|line| peer.is_called(line.arg(0))).collect();
        // Where no line matches, the opposite of the last line holds.
        let otherwise = own.last().is_none_or(|line| line.arg(1) == "deny");
        let mut own = Decisions::read(own.into_iter(), 1, otherwise, acls);
        close(&mut own, unsure);
        tell(draft, &own);
        let hosts = match hosts_of(&own, &access, &usual, &acls.work) {
            Ok(hosts) => hosts,
            Err(reason) => {
                draft.missing(line, reason);
                continue;
            }
        };
        match groups.iter_mut().find(|group| group.hosts == hosts) {
            Some(group) => group.peers.push(peer),
            None => groups.push(Group {
                hosts,
                peers: vec![peer],
            }),
        }
    }
    let is_of_server = |line: &Line| {
        let mut peers = groups.iter().flat_map(|group| &group.peers);
        peers.any(|peer| peer.is_called(line.arg(0)))
    };
    for line in lines.peer_access.iter().filter(|line| !is_of_server(line)) {
        draft.missing(line, "its server is not imported");
    }
    let mut taken = BTreeSet::new();
    for group in groups {
        write_site(draft, group, &mut taken);
    }
    tell(draft, &access);
    for line in lines.always_direct.iter().chain(&lines.never_direct) {
        draft.unneeded(line, "a site is fetched from its origins");
    }
    for line in [lines.icp_port, lines.htcp_port].into_iter().flatten() {
        draft.missing(line, "ICP and HTCP work in a forward proxy only");
    }
}

/// The hosts for a server with lines in `own`: the hosts that the server and every client may have.
fn hosts_of(
    own: &Decisions<'_>,
    access: &Decisions<'_>,
    usual: &Result<BTreeSet<String>, String>,
    work: &Work,
) -> Result<BTreeSet<String>, String> {
    let named = own.names(work)?;
    let named = if named.is_empty() {
        usual.clone()?
    } else {
        named
    };
    let mut hosts = BTreeSet::new();
    for host in named {
        if own.allows(&host, work)? && access.allows(&host, work)? {
            hosts.insert(host);
        }
    }
    Ok(hosts)
}

/// Makes lines that deny some requests deny the hosts of these requests, if the hosts are known or
/// the operator wants it.
fn close(decisions: &mut Decisions<'_>, unsure: Unsure) {
    for decision in &mut decisions.all {
        let is_known = matches!(decision.bound, Hosts::These(_)) || unsure == Unsure::Close;
        if !decision.allows && decision.hosts.is_err() && is_known {
            decision.closes = true;
        }
    }
}

/// Returns the hosts that every client may reach. Lines about the cache manager are reported.
fn read_access<'a>(draft: &mut Draft, lines: &[&'a Line], acls: &Acls) -> Decisions<'a> {
    let mut about_hosts = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if at >= rules::RULES_MAX {
            let most = rules::RULES_MAX;
            let reason = format!("NOT READ: more than {most} lines");
            match line.arg(0) {
                "deny" => draft.open(line, reason),
                _ => draft.missing(line, reason),
            }
        } else if let Some(reason) = special(line, acls) {
            draft.unneeded(line, reason);
        } else {
            about_hosts.push(*line);
        }
    }
    // Where no line matches, Squid may serve everyone; here, the site is unknown in this case.
    Decisions::read(about_hosts.into_iter(), 0, false, acls)
}

/// Reason why a line applies to no request for a site.
fn special(line: &Line, acls: &Acls) -> Option<&'static str> {
    if !rules::is_action(line.arg(0)) || line.args_from(1).is_empty() {
        return None;
    }
    if rules::matched(line, 1, acls).may.is_empty() {
        return Some("no request matches it: there is no cache manager");
    }
    let words = line.args_from(1).iter().filter(|word| !word.is_all());
    let mut words = words.map(|word| word.text.trim_start_matches('!'));
    let is_port = |name: &str| acls.get(name).is_some_and(|acl| acl.kind == "port");
    let is_tunnel = |name: &str| {
        let known = acls.literal(name);
        known.is_ok_and(|it| it == [Condition::of_connect()])
    };
    let is_purge = |name: &str| purge::is_only_purge(name, acls);
    // The site fixes an origin's port, whatever port the client names.
    let needs_none = |name: &str| is_port(name) || is_tunnel(name) || is_purge(name);
    let is_about = line.arg(0) == "deny" && words.all(needs_none) && !line.is_all_from(1);
    is_about.then_some("a site has the ports of its origins, no tunnels, and no PURGE from clients")
}

/// Notes for each `http_access` line if it was imported, was not needed, or is missing.
fn tell(draft: &mut Draft, decisions: &Decisions<'_>) {
    let mut is_over = false;
    for (at, decision) in decisions.all.iter().enumerate() {
        let line = decision.line;
        let serves_later = || {
            let mut later = decisions.all[at + 1..].iter();
            later.any(|it| it.allows) || decisions.otherwise
        };
        match (&decision.hosts, decision.allows) {
            _ if is_over => draft.unneeded(line, NO_REQUEST),
            (Ok(Hosts::These(hosts)), true) => {
                draft.imported += 1;
                if hosts.names.iter().any(|name| name.starts_with('.')) {
                    let reason = "a site has hosts and no domains: add those below to its `hosts`";
                    draft.missing(line, reason);
                }
                if !hosts.addresses.is_empty() {
                    draft.missing(line, "addresses are not imported as hosts of a site");
                }
            }
            (Ok(_), _) => draft.unneeded(line, "a site serves its hosts, and no others"),
            (Err(reason), true) => draft.missing(line, reason),
            (Err(reason), false) if *reason == NEITHER => draft.missing(line, reason),
            (Err(_), false) if !serves_later() => {
                draft.unneeded(line, "no line after it allows anything");
            }
            (Err(reason), false) if decision.closes => {
                let reason = format!("DENIES MORE, all requests for these hosts: {reason}");
                draft.remark(Fate::Closed, line, reason);
            }
            (Err(reason), false) => draft.open(line, reason),
        }
        is_over |= matches!(decision.hosts, Ok(Hosts::All));
    }
}

fn write_site(draft: &mut Draft, group: Group<'_>, taken: &mut BTreeSet<String>) {
    let hosts: Vec<&String> = group
        .hosts
        .iter()
        .filter(|host| !taken.contains(*host))
        .collect();
    let comments = group
        .peers
        .iter()
        .fold(Comments::default(), |all, peer| all.and_of(peer.line));
    if hosts.is_empty() {
        for peer in &group.peers {
            let reason = "no host of it is known that every client may reach: write a [[site]] \
                          with `hosts` and this origin";
            draft.missing(peer.line, reason);
        }
        return;
    }
    if hosts.len() < group.hosts.len() {
        for peer in &group.peers {
            draft.missing(
                peer.line,
                "some of its hosts belong to another site already",
            );
        }
    }
    let mut origins = Vec::<Value>::new();
    let mut urls = BTreeSet::new();
    for peer in &group.peers {
        if !urls.insert(peer.url.clone()) {
            draft.missing(peer.line, "the site has this origin already");
            continue;
        }
        origins.push(match peer.weight() {
            Some(weight) => {
                let mut table = toml::Table::new();
                table.insert("url".to_owned(), peer.url.clone().into());
                table.insert("weight".to_owned(), weight.into());
                table.into()
            }
            None => peer.url.clone().into(),
        });
        peer.tell_options(draft);
        draft.imported += 1;
    }
    let mut fields = vec![
        ("hosts", strings(&hosts)),
        ("origins", Value::Array(origins)),
    ];
    let forced = group
        .peers
        .iter()
        .find_map(|peer| peer.option("forceddomain="));
    if let Some(host) = forced.filter(|it| it.parse::<hashcache_proxy::HostPattern>().is_ok()) {
        fields.push(("host", host.into()));
    }
    let is_spread = group.peers.iter().any(|peer| peer.has("round-robin"));
    fields.push((
        "balance",
        if is_spread { "round-robin" } else { "first" }.into(),
    ));
    draft.table(Table {
        array: "site",
        comments,
        fields,
    });
    taken.extend(group.hosts);
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    #[test]
    fn servers_become_sites_by_their_hosts() {
        let text = "acl a dstdomain www.a.test a.test\nacl b dstdomain .b.test\n\
                    cache_peer 10.0.0.1 parent 80 0 no-query originserver round-robin name=a1\n\
                    cache_peer 10.0.0.2 parent 80 0 no-query originserver round-robin name=a2 \
                    weight=2\n\
                    cache_peer 10.0.0.3 parent 443 0 originserver tls name=b1 forceddomain=b.test\n\
                    cache_peer_access a1 allow a\ncache_peer_access a2 allow a\n\
                    cache_peer_access a2 deny all\ncache_peer_access b1 allow b\n\
                    http_access allow all\n";
        let (_, draft) = imported(text, &[]);
        let table: toml::Table = toml::from_str(&draft.text("squid.conf")).unwrap();
        let sites = table["site"].as_array().unwrap();
        assert_eq!(sites[0]["hosts"].to_string(), r#"["a.test", "www.a.test"]"#);
        assert_eq!(sites[0]["origins"].as_array().unwrap().len(), 2);
        assert_eq!(
            sites[1]["origins"].to_string(),
            r#"["https://10.0.0.3:443"]"#
        );
        assert_eq!(sites[1]["host"].as_str(), Some("b.test"));
        // `deny all`, the domain of `b`, `allow all`.
        assert_eq!(draft.remarks.len(), 3, "{:?}", draft.remarks);
    }

    /// The sites of a configuration, and its draft.
    fn imported(text: &str, default_sites: &[&str]) -> (Vec<String>, Draft) {
        let all: Vec<Line> = lines::lines("squid.conf", text).collect();
        let of = |name: &str| -> Vec<&Line> { all.iter().filter(|it| it.name == name).collect() };
        let acl_lines: Vec<Line> = of("acl").into_iter().cloned().collect();
        let acls = Acls::new(&acl_lines, &Err("none".to_owned()));
        let peers = PeerLines {
            cache_peer: of("cache_peer"),
            peer_access: of("cache_peer_access"),
            ..PeerLines::default()
        };
        let mut draft = Draft::default();
        let default_sites = default_sites.iter().map(|it| (*it).to_owned()).collect();
        import(
            &mut draft,
            &peers,
            &of("http_access"),
            &default_sites,
            (&acls, Unsure::Open),
        );
        let table: toml::Table = toml::from_str(&draft.text("squid.conf")).unwrap();
        let sites = table.get("site").and_then(Value::as_array);
        let sites = sites.into_iter().flatten();
        (sites.map(|site| site["hosts"].to_string()).collect(), draft)
    }

    /// A site for everyone, one for an office, and the server of both.
    const OFFICE: &str = "acl shop dstdomain shop.test\nacl inside dstdomain inside.test\n\
        acl office src 10.0.0.0/8\nacl to_server dst 10.0.0.1\nacl night time 22:00-24:00\n\
        acl both all-of inside office\ncache_peer 10.0.0.1 parent 80 0 originserver name=S\n";

    #[test]
    fn a_site_that_only_some_may_reach_is_not_opened() {
        let deny = "http_access deny all\n";
        for (lines, sites, told) in [
            (format!("http_access allow inside office\n{deny}"), "", 2),
            (format!("http_access allow both\n{deny}"), "", 2),
            (format!("http_access allow inside night\n{deny}"), "", 2),
            (format!("http_access allow to_server\n{deny}"), "", 2),
            (
                "http_access deny all\nhttp_access allow inside\n".to_owned(),
                "",
                1,
            ),
            (String::new(), "", 1),
            (format!("http_access allow\n{deny}"), "", 2),
            (
                "http_access deny inside\nhttp_access allow all\n".to_owned(),
                "",
                1,
            ),
            (
                format!("http_access allow shop\nhttp_access allow inside office\n{deny}"),
                "[\"shop.test\"]",
                1,
            ),
            (
                "cache_peer_access s allow inside\ncache_peer_access s deny all\n\
                 http_access allow inside office\nhttp_access deny all\n"
                    .to_owned(),
                "",
                2,
            ),
            (
                "cache_peer_access s allow office\ncache_peer_access s deny all\n\
                 http_access ALLOW all\nhttp_access allow All\n"
                    .to_owned(),
                "",
                3,
            ),
            ("http_access allow All\n".to_owned(), "[\"inside.test\"]", 0),
        ] {
            // The site by default is that of the office, too.
            let (found, draft) = imported(&format!("{OFFICE}{lines}"), &["inside.test"]);
            assert_eq!(found.concat(), sites, "{lines}");
            let missing = draft.remarks.iter().filter(|it| it.fate == Fate::Missing);
            assert_eq!(missing.count(), told, "{lines}{:?}", draft.remarks);
        }
    }

    #[test]
    fn an_address_that_is_denied_is_no_site() {
        let lines = "acl address dstdomain 192.0.2.1\nhttp_access deny address\n\
                     http_access allow all\n";
        let (sites, _) = imported(&format!("{OFFICE}{lines}"), &["192.0.2.1", "192.0.2.2"]);
        assert_eq!(sites, ["[\"192.0.2.2\"]"]);
    }

    #[test]
    fn clients_that_are_not_denied_are_told() {
        let lines = "http_access deny office\nhttp_access allow shop\nhttp_access deny all\n";
        let (sites, draft) = imported(&format!("{OFFICE}{lines}"), &[]);
        assert_eq!(sites, ["[\"shop.test\"]"]);
        assert!(draft.remarks[0].reason.starts_with("NOT DENIED"));
    }

    #[test]
    fn options_of_a_server_that_are_not_known_are_told() {
        let text = "acl a dstdomain a.test\nhttp_access allow a\n\
                    cache_peer 10.0.0.1 parent 80 0 originserver no-query new=1 login=a:b\n";
        let (_, draft) = imported(text, &[]);
        let reasons: Vec<_> = draft.remarks.iter().map(|it| &it.reason[..4]).collect();
        assert_eq!(reasons, ["new:", "logi"]);
    }

    #[test]
    fn a_server_whose_hosts_are_not_known_is_told() {
        let text = "cache_peer 10.0.0.1 parent 80 0 originserver\nhttp_access allow all\n";
        let missing = |sites: &[&str]| {
            let (_, draft) = imported(text, sites);
            let missing = draft.remarks.into_iter();
            missing.filter(|it| it.fate == Fate::Missing).count()
        };
        assert_eq!((missing(&[]), missing(&["www.test"])), (1, 0));
    }
}
