//! Squid in front of sites: `http_port … accel` with `cache_peer … originserver`.
//!
//! The hosts of a site are those that `cache_peer_access` allows for its servers, else those that
//! `http_access` allows, else `defaultsite`. Access rules do not work in front of a site.

use std::collections::BTreeSet;

use toml::Value;

use super::acl::Acls;
use super::draft::{Comments, Draft, Table, strings};
use super::lines::Line;
use super::peers::{PEERS_MAX, Peer, PeerLines};

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
    default_site: Option<&str>,
    acls: &Acls,
) {
    let allowed = http_access.iter().filter(|line| line.arg(0) == "allow");
    let allowed = allowed.flat_map(|line| hosts_in(line, 1, acls));
    let default_site = default_site.map(str::to_ascii_lowercase);
    let usual: BTreeSet<String> = allowed.chain(default_site).collect();
    let mut groups = Vec::<Group<'_>>::new();
    for (at, line) in lines.cache_peer.iter().enumerate() {
        let peer = match Peer::read(line) {
            Ok(_) if at >= PEERS_MAX => {
                draft.missing(line, format_args!("more than {PEERS_MAX} peers"));
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
        let own = lines
            .peer_access
            .iter()
            .filter(|line| line.arg(0) == peer.name);
        let own: BTreeSet<String> = own
            .filter(|line| line.arg(1) == "allow")
            .flat_map(|line| hosts_in(line, 2, acls))
            .collect();
        let hosts = if own.is_empty() { usual.clone() } else { own };
        match groups.iter_mut().find(|group| group.hosts == hosts) {
            Some(group) => group.peers.push(peer),
            None => groups.push(Group {
                hosts,
                peers: vec![peer],
            }),
        }
    }
    let mut taken = BTreeSet::new();
    for group in groups {
        write_site(draft, group, &mut taken);
    }
    for line in &lines.peer_access {
        match (line.arg(1), hosts_in(line, 2, acls).is_empty()) {
            ("allow", false) => draft.imported += 1,
            ("deny", true) if line.args_from(2).iter().all(|it| it.text == "all") => {
                draft.unneeded(line, "a site has the hosts that are listed, and no others");
            }
            _ => draft.missing(line, "only the hosts of a site are imported"),
        }
    }
    for line in http_access {
        match (line.arg(0), hosts_in(line, 1, acls).is_empty()) {
            ("allow", false) => draft.imported += 1,
            _ if line.args_from(1).iter().all(|it| it.text == "all") => {
                draft.unneeded(line, "a site serves its hosts, and no others");
            }
            _ => draft.missing(line, "in front of a site there are no access rules"),
        }
    }
    for line in lines.always_direct.iter().chain(&lines.never_direct) {
        draft.unneeded(line, "a site is fetched from its origins");
    }
    for line in [lines.icp_port, lines.htcp_port].into_iter().flatten() {
        draft.missing(line, "ICP and HTCP work in a forward proxy only");
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
            let reason = "its hosts are not known: write a [[site]] with `hosts` and this origin";
            draft.missing(peer.line, reason);
        }
        return;
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
        for word in peer.line.args_from(4) {
            if let Some(reason) = option_reason(&word.text) {
                let name = word.text.split('=').next().unwrap_or_default();
                draft.missing(peer.line, format_args!("{name}: {reason}"));
            }
        }
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

/// Why an option of a server has no counterpart; `None`: it has one, or needs none.
fn option_reason(option: &str) -> Option<&'static str> {
    match option.split('=').next().unwrap_or(option) {
        "login" if !option.ends_with("=PASS") && !option.ends_with("=PASSTHRU") => {
            Some("a password for the origin: request_headers can set Authorization")
        }
        "sslcert" | "tls-cert" | "sslkey" | "tls-key" => Some("the proxy shows no certificate"),
        "sslcafile" | "tls-cafile" | "sslcapath" => Some("upstream_ca has more authorities"),
        "sslflags" | "tls-flags" => Some("certificates are always checked"),
        "sourcehash" | "userhash" | "carp" => Some("origins are chosen by `balance`"),
        "max-conn" => Some("limits.upstream_per_origin is for all origins"),
        _ => None,
    }
}

/// The names of hosts that a line names, from argument `at` on.
fn hosts_in(line: &Line, at: usize, acls: &Acls) -> Vec<String> {
    let mut hosts = Vec::new();
    for word in line.args_from(at) {
        let alternatives = acls.literal(&word.text).unwrap_or_default();
        let destinations = alternatives
            .iter()
            .filter_map(|it| it.destinations.as_ref());
        for name in destinations.flat_map(|it| it.names.iter()) {
            // A site has names, not domains.
            hosts.push(name.trim_start_matches('.').to_owned());
        }
    }
    hosts
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
                    cache_peer_access a2 deny all\ncache_peer_access b1 allow b\n";
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
        import(&mut draft, &peers, &[], None, &acls);
        let table: toml::Table = toml::from_str(&draft.text("squid.conf")).unwrap();
        let sites = table["site"].as_array().unwrap();
        assert_eq!(sites[0]["hosts"].to_string(), r#"["a.test", "www.a.test"]"#);
        assert_eq!(sites[0]["origins"].as_array().unwrap().len(), 2);
        assert_eq!(
            sites[1]["origins"].to_string(),
            r#"["https://10.0.0.3:443"]"#
        );
        assert_eq!(sites[1]["host"].as_str(), Some("b.test"));
        assert_eq!(draft.remarks.len(), 1);
    }

    #[test]
    fn a_server_whose_hosts_are_not_known_is_told() {
        let text = "cache_peer 10.0.0.1 parent 80 0 originserver\n";
        let all: Vec<Line> = lines::lines("squid.conf", text).collect();
        let acls = Acls::new(&[], &Err("none".to_owned()));
        let peers = PeerLines {
            cache_peer: all.iter().collect(),
            ..PeerLines::default()
        };
        let mut draft = Draft::default();
        import(&mut draft, &peers, &[], None, &acls);
        assert_eq!(draft.remarks.len(), 1);
        import(&mut draft, &peers, &[], Some("www.test"), &acls);
        assert_eq!(draft.remarks.len(), 1);
    }
}
