//! `cache_peer` of Squid: parents and siblings of a forward proxy, and the servers of sites.
//!
//! Which requests a peer gets (`cache_peer_access`, `always_direct`, `never_direct`) is written as
//! routes, as far as it depends on hosts alone.

use std::collections::BTreeSet;
use std::rc::Rc;

use hashcache_http::Origin;
use hashcache_proxy::HostPattern;
use toml::Value;

use super::acl::Acls;
use super::condition::{Condition, Destinations};
use super::draft::{Comments, Draft, Table, strings};
use super::lines::Line;

/// The lines about other caches and servers.
#[derive(Debug, Default)]
pub struct PeerLines<'a> {
    pub cache_peer: Vec<&'a Line>,
    /// `cache_peer_access` and `cache_peer_domain`.
    pub peer_access: Vec<&'a Line>,
    pub always_direct: Vec<&'a Line>,
    pub never_direct: Vec<&'a Line>,
    pub icp_port: Option<&'a Line>,
    pub htcp_port: Option<&'a Line>,
}

/// One `cache_peer`.
#[derive(Debug)]
pub struct Peer<'a> {
    pub line: &'a Line,
    pub name: String,
    pub is_sibling: bool,
    pub is_server: bool,
    pub url: String,
    udp_port: Option<u16>,
}

impl<'a> Peer<'a> {
    /// Reads a line.
    pub fn read(line: &'a Line) -> Result<Self, String> {
        let has = |option: &str| line.args_from(4).iter().any(|it| it.text == option);
        let host = line.arg(0);
        let kind = line.arg(1);
        if !["parent", "sibling"].contains(&kind) {
            return Err(format!(
                "peers are parents or siblings; there is no `{kind}`"
            ));
        }
        let port: u16 = line
            .arg(2)
            .parse()
            .map_err(|_| "the third word is no port".to_owned())?;
        let scheme = match has("ssl") || has("tls") {
            true => "https",
            false => "http",
        };
        let host_text = match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]"),
            false => host.to_owned(),
        };
        let url = format!("{scheme}://{host_text}:{port}");
        if url.parse::<Origin>().is_err() {
            return Err(format!("`{host}` is no host"));
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        let name = option(line, "name=").unwrap_or(host);
        Ok(Self {
            line,
            name: name.chars().filter(|c| is_name(*c)).take(128).collect(),
            is_sibling: kind == "sibling",
            is_server: has("originserver"),
            url,
            udp_port: line.arg(3).parse().ok().filter(|port| *port != 0),
        })
    }

    pub fn has(&self, option: &str) -> bool {
        self.line.args_from(4).iter().any(|it| it.text == option)
    }

    /// Its share, if that is not 1.
    pub fn weight(&self) -> Option<i64> {
        let weight: i64 = option(self.line, "weight=")?.parse().ok()?;
        Some(weight.clamp(1, 1000)).filter(|weight| *weight != 1)
    }

    /// The value of an option.
    pub fn option(&self, name: &str) -> Option<&'a str> {
        option(self.line, name)
    }
}

fn option<'a>(line: &'a Line, name: &str) -> Option<&'a str> {
    line.args_from(4)
        .iter()
        .find_map(|it| it.text.strip_prefix(name))
}

/// Writes the peers and routes of a forward proxy.
pub fn import(draft: &mut Draft, lines: &PeerLines<'_>, acls: &Acls) {
    let mut peers = Vec::<Peer<'_>>::new();
    for line in &lines.cache_peer {
        match Peer::read(line) {
            Ok(peer) if peer.is_server => {
                draft.missing(
                    line,
                    "originserver has a counterpart in front of a site only",
                );
            }
            Ok(peer) if peer.name.is_empty() || peers.iter().any(|it| it.name == peer.name) => {
                draft.missing(line, "another peer has this name");
            }
            Ok(peer) if peers.len() == PEERS_MAX => {
                draft.missing(peer.line, format_args!("more than {PEERS_MAX} peers"));
            }
            Ok(peer) => peers.push(peer),
            Err(reason) => draft.missing(line, reason),
        }
    }
    let udp = Udp {
        icp: lines.icp_port.filter(|line| has_port(line)),
        htcp: lines.htcp_port.filter(|line| has_port(line)),
    };
    peers.retain(|peer| write_peer(draft, peer, &udp));
    for (line, key) in [(udp.icp, "icp"), (udp.htcp, "htcp")] {
        let Some(line) = line else { continue };
        match draft.has_table("peer", key) {
            true => {
                draft.set(
                    key,
                    line.arg(0).parse::<i64>().unwrap_or_default(),
                    Comments::of(line),
                );
                draft.imported += 1;
            }
            false => draft.unneeded(line, "no peer is asked by it"),
        }
    }
    for line in [lines.icp_port, lines.htcp_port].into_iter().flatten() {
        if !has_port(line) {
            draft.unneeded(line, "off by default");
        }
    }
    write_choice(draft, &peers);
    write_routes(draft, lines, &peers, acls);
}

/// The lines that turn ICP and HTCP on.
struct Udp<'a> {
    icp: Option<&'a Line>,
    htcp: Option<&'a Line>,
}

fn has_port(line: &Line) -> bool {
    line.arg(0).parse::<u16>().is_ok_and(|port| port != 0)
}

/// Writes a peer, unless there is no way to ask it.
fn write_peer(draft: &mut Draft, peer: &Peer<'_>, udp: &Udp<'_>) -> bool {
    let line = peer.line;
    let mut fields: Vec<(&'static str, Value)> = vec![("name", peer.name.clone().into())];
    if peer.is_sibling {
        fields.push(("kind", "sibling".into()));
    }
    fields.push(("url", peer.url.clone().into()));
    if let Some(weight) = peer.weight() {
        fields.push(("weight", weight.into()));
    }
    let is_htcp = line
        .args_from(4)
        .iter()
        .any(|it| it.text == "htcp" || it.text.starts_with("htcp="));
    let (key, turned_on) = match is_htcp {
        true => ("htcp", udp.htcp),
        false => ("icp", udp.icp),
    };
    let asked = peer
        .udp_port
        .filter(|_| turned_on.is_some() && !peer.has("no-query"));
    match asked {
        Some(port) => fields.push((key, i64::from(port).into())),
        None if peer.is_sibling && peer.has("no-digest") => {
            draft.missing(
                line,
                "a sibling is asked by ICP, HTCP or its digest, and it has none",
            );
            return false;
        }
        None if peer.is_sibling => fields.push(("digest", true.into())),
        None => {}
    }
    if peer.has("allow-miss") {
        fields.push(("misses", true.into()));
    }
    for word in line.args_from(4) {
        if let Some(reason) = option_reason(&word.text) {
            let name = word.text.split('=').next().unwrap_or_default();
            draft.missing(line, format_args!("{name}: {reason}"));
        }
    }
    draft.table(Table {
        array: "peer",
        comments: Comments::of(line),
        fields,
    });
    draft.imported += 1;
    true
}

/// Why an option has no counterpart; `None`: it has one, or needs none.
fn option_reason(option: &str) -> Option<&'static str> {
    match option.split('=').next().unwrap_or(option) {
        "proxy-only" => Some("what comes from this peer is stored here too"),
        "login" => Some(
            "write user:password into a file that only the proxy can read, and name it with \
             credentials_file",
        ),
        "sourcehash" | "userhash" => Some("peers are chosen by the URL, not by the client"),
        "sslcert" | "tls-cert" | "sslkey" | "tls-key" => Some("the proxy shows no certificate"),
        "sslcafile" | "tls-cafile" | "sslcapath" => Some("upstream_ca has more authorities"),
        "sslflags" | "tls-flags" => Some("certificates are always checked"),
        "max-conn" => Some("limits.upstream_per_origin is for all servers"),
        "no-query"
        | "no-digest"
        | "no-netdb-exchange"
        | "no-delay"
        | "default"
        | "round-robin"
        | "weighted-round-robin"
        | "carp"
        | "weight"
        | "name"
        | "htcp"
        | "ssl"
        | "tls"
        | "originserver"
        | "allow-miss"
        | "closest-only"
        | "background-ping"
        | "no-tproxy"
        | "ttl"
        | "basetime"
        | "connect-timeout"
        | "connect-fail-limit"
        | "standby"
        | "forceddomain"
        | "front-end-https"
        | "sslversion"
        | "ssloptions"
        | "sslcipher"
        | "ssldomain"
        | "tls-min-version"
        | "tls-options"
        | "monitorurl"
        | "monitorsize"
        | "monitorinterval"
        | "monitortimeout"
        | "digest-url" => None,
        _ => Some("unknown option"),
    }
}

fn write_choice(draft: &mut Draft, peers: &[Peer<'_>]) {
    for (option, choice) in [
        ("carp", "carp"),
        ("round-robin", "round-robin"),
        ("weighted-round-robin", "fastest"),
    ] {
        let mut having = peers
            .iter()
            .filter(|peer| !peer.is_sibling && peer.has(option));
        if let Some(peer) = having.next() {
            return draft.set("peer_choice", choice, Comments::of(peer.line));
        }
    }
}

/// Which requests a peer gets.
enum Scope {
    All,
    Only(Rc<Destinations>),
    Except(Rc<Destinations>),
}

fn write_routes(draft: &mut Draft, lines: &PeerLines<'_>, peers: &[Peer<'_>], acls: &Acls) {
    for line in &lines.always_direct {
        match (line.arg(0), hosts_of(line, 1, acls)) {
            ("deny", _) => draft.unneeded(line, "the rule by default"),
            (_, Ok(hosts)) => {
                let fields = vec![("host", hosts.0), ("peers", Value::Array(vec![]))];
                write_route(draft, Comments::of(line), fields);
            }
            (_, Err(reason)) => draft.missing(line, reason),
        }
    }
    let has_parent = peers.iter().any(|peer| !peer.is_sibling);
    for line in &lines.never_direct {
        let is_all = line
            .args_from(1)
            .iter()
            .all(|it| it.text.eq_ignore_ascii_case("all"));
        match line.arg(0) {
            "deny" => draft.unneeded(line, "the rule by default"),
            "allow" if is_all && has_parent => {
                draft.set("direct", "never", Comments::of(line));
                draft.imported += 1;
            }
            "allow" if is_all => {
                draft.missing(line, "there is no parent: nothing could be fetched");
            }
            _ => draft.missing(line, "only `never_direct allow all` has a counterpart"),
        }
    }
    let scopes: Result<Vec<_>, _> = peers.iter().map(|peer| scope(peer, lines, acls)).collect();
    let routes = scopes.and_then(|scopes| routes_of(peers, &scopes));
    let names: BTreeSet<&str> = peers.iter().map(|peer| &*peer.name).collect();
    let all = lines.peer_access.iter();
    let (known, unknown): (Vec<&Line>, Vec<&Line>) =
        all.partition(|line| names.contains(line.arg(0)));
    for line in unknown {
        draft.missing(line, "its peer is not imported");
    }
    match routes {
        Ok(routes) => {
            draft.imported += known.len();
            let mut comments = known
                .iter()
                .fold(Comments::default(), |all, line| all.and_of(line));
            for fields in routes {
                write_route(draft, std::mem::take(&mut comments), fields);
            }
        }
        Err(reason) => {
            for line in known {
                draft.missing(line, format_args!("THE PEER GETS ALL REQUESTS: {reason}"));
            }
        }
    }
}

fn write_route(draft: &mut Draft, comments: Comments, fields: Vec<(&'static str, Value)>) {
    draft.table(Table {
        array: "route",
        comments,
        fields,
    });
    draft.imported += 1;
}

/// The routes for peers that do not get all requests.
fn routes_of(
    peers: &[Peer<'_>],
    scopes: &[Scope],
) -> Result<Vec<Vec<(&'static str, Value)>>, String> {
    let mut sets = Vec::<&Rc<Destinations>>::new();
    for scope in scopes {
        if let Scope::Only(hosts) | Scope::Except(hosts) = scope
            && !sets.contains(&hosts)
        {
            sets.push(hosts);
        }
    }
    for (at, a) in sets.iter().enumerate() {
        for b in &sets[at + 1..] {
            if !a.is_apart(b) {
                return Err("the hosts of two peers overlap".to_owned());
            }
        }
    }
    let names = |of: &dyn Fn(&Scope) -> bool| {
        let peers = peers.iter().zip(scopes).filter(|(_, scope)| of(scope));
        strings(
            &peers
                .map(|(peer, _)| peer.name.as_str())
                .collect::<Vec<_>>(),
        )
    };
    let mut routes = Vec::new();
    for set in &sets {
        let peers = names(&|scope| match scope {
            Scope::All => true,
            Scope::Only(hosts) => hosts == *set,
            Scope::Except(hosts) => hosts != *set,
        });
        routes.push(vec![("host", host_words(set)?), ("peers", peers)]);
    }
    if !sets.is_empty() {
        let others = names(&|scope| !matches!(scope, Scope::Only(_)));
        routes.push(vec![("peers", others)]);
    }
    Ok(routes)
}

fn scope(peer: &Peer<'_>, lines: &PeerLines<'_>, acls: &Acls) -> Result<Scope, String> {
    let (mut only, mut except) = (Destinations::default(), Destinations::default());
    let (mut has_only, mut has_except, mut is_closed) = (false, false, false);
    let lines = lines
        .peer_access
        .iter()
        .filter(|line| line.arg(0) == peer.name);
    if lines.clone().count() > ACCESS_MAX {
        return Err(format!("more than {ACCESS_MAX} lines for one peer"));
    }
    for line in lines {
        if is_closed {
            return Err("a line after `all`".to_owned());
        }
        if line.name == "cache_peer_domain" {
            return Err("use cache_peer_access: cache_peer_domain is of Squid 3".to_owned());
        }
        let is_all = line
            .args_from(2)
            .iter()
            .all(|it| it.text.eq_ignore_ascii_case("all"));
        match (line.arg(1), is_all) {
            ("allow", true) if !has_only => is_closed = true,
            ("deny", true) if has_only && !has_except => is_closed = true,
            ("allow", false) if !has_except => {
                has_only = true;
                only = only.union(&hosts_of(line, 2, acls)?.1);
            }
            ("deny", false) if !has_only => {
                has_except = true;
                except = except.union(&hosts_of(line, 2, acls)?.1);
            }
            _ => {
                return Err(
                    "only lists of allowed or of denied hosts have a counterpart".to_owned(),
                );
            }
        }
    }
    Ok(match (has_only, has_except) {
        (true, _) => Scope::Only(Rc::new(only)),
        (_, true) => Scope::Except(Rc::new(except)),
        _ => Scope::All,
    })
}

/// The hosts that the `acl`s of a line name, from argument `at` on; the line has nothing else.
fn hosts_of(line: &Line, at: usize, acls: &Acls) -> Result<(Value, Destinations), String> {
    let [word] = line.args_from(at) else {
        return Err("a route is for one acl with hosts".to_owned());
    };
    let mut hosts = Destinations::default();
    for condition in acls.literal(&word.text)? {
        let destinations = condition.destinations.clone();
        let alone = Condition {
            destinations: condition.destinations.clone(),
            ..Condition::default()
        };
        match destinations.filter(|_| condition == alone) {
            Some(destinations) => hosts = hosts.union(&destinations),
            None => return Err("a route is for hosts, without lists in files".to_owned()),
        }
    }
    Ok((host_words(&hosts)?, hosts))
}

/// Hosts as a route has them.
fn host_words(hosts: &Destinations) -> Result<Value, String> {
    let mut words = Vec::new();
    for name in &hosts.names {
        match name.strip_prefix('.') {
            Some(domain) => words.extend([domain.to_owned(), format!("*.{domain}")]),
            None => words.push(name.clone()),
        }
    }
    if let Some(word) = words
        .iter()
        .find(|word| word.parse::<HostPattern>().is_err())
    {
        return Err(format!("a route cannot be for `{word}`"));
    }
    words.extend(hosts.addresses.networks().ok_or("too many networks")?);
    match words.is_empty() {
        true => Err("it has no hosts".to_owned()),
        false => Ok(strings(&words)),
    }
}

/// Most peers.
pub const PEERS_MAX: usize = 64;
/// Most lines about the requests of one peer.
const ACCESS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    fn imported(text: &str) -> Draft {
        let all: Vec<Line> = lines::lines("squid.conf", text).collect();
        let of = |name: &str| -> Vec<&Line> { all.iter().filter(|it| it.name == name).collect() };
        let acl_lines: Vec<Line> = of("acl").into_iter().cloned().collect();
        let acls = Acls::new(&acl_lines, &Err("none".to_owned()));
        let lines = PeerLines {
            cache_peer: of("cache_peer"),
            peer_access: of("cache_peer_access"),
            always_direct: of("always_direct"),
            never_direct: of("never_direct"),
            icp_port: of("icp_port").pop(),
            htcp_port: of("htcp_port").pop(),
        };
        let mut draft = Draft::default();
        import(&mut draft, &lines, &acls);
        draft
    }

    fn table(draft: &Draft) -> toml::Table {
        toml::from_str(&draft.text("squid.conf")).unwrap()
    }

    #[test]
    fn parents_and_siblings_become_peers() {
        let draft = imported(
            "icp_port 3130\ncache_peer isp.test parent 3128 0 no-query default login=a:b\n\
             cache_peer east.test sibling 3128 3130 proxy-only\n\
             cache_peer west.test sibling 3128 3130 no-query\n\
             cache_peer tls.test parent 3129 3130 tls weight=3 round-robin name=tls\n\
             cache_peer x.test multicast 3128 3130\ncache_peer y.test sibling 3128 0 no-digest\n\
             cache_peer z.test parent 80 0 originserver\nnever_direct allow all\n",
        );
        let table = table(&draft);
        let peers = table["peer"].as_array().unwrap();
        assert_eq!(peers.len(), 4);
        assert_eq!(peers[1]["icp"].as_integer(), Some(3130));
        assert_eq!(peers[2]["digest"].as_bool(), Some(true));
        assert_eq!(peers[3]["url"].as_str(), Some("https://tls.test:3129"));
        assert_eq!(table["direct"].as_str(), Some("never"));
        assert_eq!(table["peer_choice"].as_str(), Some("round-robin"));
        assert_eq!(table["icp"].as_integer(), Some(3130));
        assert_eq!(draft.remarks.len(), 5, "{:?}", draft.remarks);
    }

    #[test]
    fn hosts_of_peers_become_routes() {
        let draft = imported(
            "acl inside dstdomain .corp.test 10.0.0.0/8\ncache_peer a.test parent 3128 0\n\
             cache_peer b.test parent 3128 0\ncache_peer c.test parent 3128 0\n\
             acl here dstdomain intranet\nalways_direct allow here\n\
             cache_peer_access a.test allow inside\ncache_peer_access a.test deny all\n\
             cache_peer_access b.test deny inside\n",
        );
        let table = table(&draft);
        let routes = table["route"].as_array().unwrap();
        let peers: Vec<String> = routes.iter().map(|it| it["peers"].to_string()).collect();
        let expected = ["[]", r#"["a.test", "c.test"]"#, r#"["b.test", "c.test"]"#];
        assert_eq!(peers, expected);
        let hosts = routes[1]["host"].to_string();
        assert_eq!(hosts, r#"["corp.test", "*.corp.test", "10.0.0.0/8"]"#);
        assert!(routes[2].get("host").is_none() && draft.remarks.is_empty());
    }

    #[test]
    fn what_depends_on_more_than_hosts_is_told() {
        let draft = imported(
            "acl night time 22:00-24:00\ncache_peer a.test parent 3128 0\n\
             cache_peer_access a.test allow night\nnever_direct allow night\n\
             always_direct allow night\nalways_direct deny all\n",
        );
        assert!(!table(&draft).contains_key("route"));
        assert_eq!(draft.remarks.len(), 4, "{:?}", draft.remarks);
    }
}
