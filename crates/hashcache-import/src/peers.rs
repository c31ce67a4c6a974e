//! Squid's `cache_peer`: parents and siblings of a forward proxy, and the servers of sites.
//!
//! The selection of requests for a peer (`cache_peer_access`, `always_direct`, `never_direct`) is
//! written as routes, as far as it depends only on hosts.

use std::rc::Rc;

use hashcache_http::Origin;
use hashcache_proxy::HostPattern;
use toml::Value;

use super::acl::Acls;
use super::condition::{Destinations, Elements as _};
use super::draft::{Comments, Draft, Fate, NO_REQUEST, Table, strings};
use super::hosts::{self, Hosts};
use super::lines::Line;
use super::work::Work;

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

/// A `cache_peer` line.
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
        let scheme = if has(line, "ssl") || has(line, "tls") {
            "https"
        } else {
            "http"
        };
        let host_text = if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]")
        } else {
            host.to_owned()
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
            is_server: has(line, "originserver"),
            url,
            udp_port: line.arg(3).parse().ok().filter(|port| *port != 0),
        })
    }

    /// Returns true if the peer has this name; Squid compares names without case.
    pub fn is_called(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    pub fn has(&self, option: &str) -> bool {
        has(self.line, option)
    }

    /// The peer's weight, if it is not 1.
    pub fn weight(&self) -> Option<i64> {
        let weight: i64 = option(self.line, "weight=")?.parse().ok()?;
        Some(weight.clamp(1, 1000)).filter(|weight| *weight != 1)
    }

    /// Reports options that have no counterpart.
    pub fn tell_options(&self, draft: &mut Draft) {
        for word in self.line.args_from(4) {
            let name = word.text.split('=').next().unwrap_or_default();
            let reason = if self.is_server {
                server_option_reason(&word.text)
            } else {
                peer_option_reason(name)
            };
            match reason.or_else(|| option_reason(name)) {
                Some(reason) => draft.missing(self.line, format_args!("{name}: {reason}")),
                None if !IMPORTED.contains(&name) => {
                    draft.option(self.line, &word.text, "a peer needs no such setting here");
                }
                None => {}
            }
        }
    }

    /// An option's value.
    pub fn option(&self, name: &str) -> Option<&'a str> {
        option(self.line, name)
    }
}

fn has(line: &Line, option: &str) -> bool {
    line.args_from(4).iter().any(|it| it.text == option)
}

fn option<'a>(line: &'a Line, name: &str) -> Option<&'a str> {
    line.args_from(4)
        .iter()
        .find_map(|it| it.text.strip_prefix(name))
}

/// Writes a forward proxy's peers and routes.
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
            Ok(peer) if peer.name.is_empty() || peers.iter().any(|it| it.is_called(&peer.name)) => {
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
        if draft.has_table("peer", key) {
            draft.set(
                key,
                line.arg(0).parse::<i64>().unwrap_or_default(),
                Comments::from_line(line),
            );
            draft.imported += 1;
        } else {
            draft.unneeded(line, "no peer is asked by it");
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

/// Writes a peer, unless there is no way to query it.
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
    let (key, turned_on) = if is_htcp {
        ("htcp", udp.htcp)
    } else {
        ("icp", udp.icp)
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
    peer.tell_options(draft);
    draft.table(Table {
        array: "peer",
        comments: Comments::from_line(line),
        fields,
    });
    draft.imported += 1;
    true
}

/// Reason why a server option has no counterpart in a site.
fn server_option_reason(option: &str) -> Option<&'static str> {
    match option.split('=').next().unwrap_or(option) {
        "login" if !["login=PASS", "login=PASSTHRU"].contains(&option) => {
            Some("a password for the origin: request_headers can set Authorization")
        }
        "sourcehash" | "userhash" | "carp" => Some("origins are chosen by `balance`"),
        "max-conn" => Some("limits.upstream_per_origin is for all origins"),
        _ => None,
    }
}

/// Reason why another cache's option has no counterpart in a peer.
fn peer_option_reason(name: &str) -> Option<&'static str> {
    match name {
        "login" => Some(
            "write user:password into a file that only the proxy can read, and name it with \
             credentials_file",
        ),
        "sourcehash" | "userhash" => Some("peers are chosen by the URL, not by the client"),
        "proxy-only" => Some("what comes from this peer is stored here too"),
        "max-conn" => Some("limits.upstream_per_origin is for all servers"),
        _ => None,
    }
}

/// Reason why an option has no counterpart, in a peer or in a site; `None`: it has a counterpart,
/// or needs none.
fn option_reason(name: &str) -> Option<&'static str> {
    match name {
        "sslcert" | "tls-cert" | "sslkey" | "tls-key" => Some("the proxy shows no certificate"),
        "sslcafile" | "tls-cafile" | "sslcapath" => Some("upstream_ca has more authorities"),
        "sslflags" | "tls-flags" => Some("certificates are always checked"),
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
        | "digest-url"
        | "login"
        | "max-conn"
        | "proxy-only"
        | "sourcehash"
        | "userhash" => None,
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
            return draft.set("peer_choice", choice, Comments::from_line(peer.line));
        }
    }
}

/// The requests for which a peer is used.
enum Scope {
    All,
    Only(Rc<Destinations>),
    Except(Rc<Destinations>),
}

fn write_routes(draft: &mut Draft, lines: &PeerLines<'_>, peers: &[Peer<'_>], acls: &Acls) {
    write_always_direct(draft, &lines.always_direct, acls);
    let has_parent = peers.iter().any(|peer| !peer.is_sibling);
    write_never_direct(draft, &lines.never_direct, has_parent);
    let scopes: Result<Vec<_>, _> = peers.iter().map(|peer| scope(peer, lines, acls)).collect();
    let routes = scopes.and_then(|scopes| routes_of(peers, &scopes, &acls.work));
    let is_known = |line: &&Line| peers.iter().any(|peer| peer.is_called(line.arg(0)));
    let all = lines.peer_access.iter().copied();
    let (known, unknown): (Vec<&Line>, Vec<&Line>) = all.partition(is_known);
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

/// Writes the hosts in `always_direct` as a route without peers.
fn write_always_direct(draft: &mut Draft, lines: &[&Line], acls: &Acls) {
    let last_allow = last_allow(lines);
    let (mut all, mut comments) = (Destinations::default(), Comments::default());
    let (mut written, mut has_exception, mut is_over) = (0, false, false);
    for (at, line) in lines.iter().enumerate() {
        let is_all = line.is_all_from(1);
        match line.arg(0) {
            _ if is_over => draft.unneeded(line, NO_REQUEST),
            "deny" if is_all || last_allow.is_none_or(|last| last < at) => {
                draft.unneeded(line, "the rule by default");
            }
            "deny" => {
                has_exception = true;
                draft.missing(
                    line,
                    "a line after it allows, and a route has no exceptions",
                );
            }
            "allow" if has_exception => {
                draft.missing(
                    line,
                    "a line before it denies, and a route has no exceptions",
                );
            }
            "allow" => match joined(&all, line, 1, acls) {
                Ok(hosts) => {
                    all = hosts;
                    comments = comments.and_of(line);
                    written += 1;
                }
                Err(reason) => draft.missing(line, reason),
            },
            _ => draft.missing(line, "neither allow nor deny"),
        }
        is_over |= is_all;
    }
    if written > 0 {
        draft.imported += written;
        let hosts = strings(&host_words(&all));
        write_route(
            draft,
            comments,
            vec![("host", hosts), ("peers", Value::Array(vec![]))],
        );
    }
}

/// Writes `never_direct`, which can only be for all hosts or for no host.
fn write_never_direct(draft: &mut Draft, lines: &[&Line], has_parent: bool) {
    let last_allow = last_allow(lines);
    let mut is_over = false;
    for (at, line) in lines.iter().enumerate() {
        let is_all = line.is_all_from(1);
        match line.arg(0) {
            _ if is_over => draft.unneeded(line, NO_REQUEST),
            "deny" if is_all || last_allow.is_none_or(|last| last < at) => {
                draft.unneeded(line, "the rule by default");
            }
            "deny" => draft.missing(
                line,
                "a line after it allows, and `direct` is for all hosts: a [[route]] with \
                 `peers = []` goes around the parents",
            ),
            "allow" if is_all && has_parent => {
                draft.set("direct", "never", Comments::from_line(line));
                draft.imported += 1;
            }
            "allow" if is_all => {
                draft.open(
                    line,
                    "no parent is imported, so requests go to servers directly",
                );
            }
            "allow" if has_parent => {
                let reason = "DENIES MORE: no request goes to a server directly, because `direct` \
                              is for all hosts";
                draft.set("direct", "never", Comments::from_line(line));
                draft.remark(Fate::Closed, line, reason);
            }
            "allow" => draft.open(line, "these requests go to servers directly"),
            _ => draft.missing(line, "neither allow nor deny"),
        }
        is_over |= is_all;
    }
}

/// The number of the last line that allows, up to a line that decides all requests.
fn last_allow(lines: &[&Line]) -> Option<usize> {
    let decides_all = lines.iter().position(|line| line.is_all_from(1));
    let reached = &lines[..decides_all.map_or(lines.len(), |at| at + 1)];
    reached.iter().rposition(|line| line.arg(0) == "allow")
}

fn write_route(draft: &mut Draft, comments: Comments, fields: Vec<(&'static str, Value)>) {
    draft.table(Table {
        array: "route",
        comments,
        fields,
    });
}

/// Returns the routes for peers that do not get all requests.
fn routes_of(
    peers: &[Peer<'_>],
    scopes: &[Scope],
    work: &Work,
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
            work.spend(a.work() + b.work())?;
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
        routes.push(vec![("host", strings(&host_words(set))), ("peers", peers)]);
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
        .filter(|line| peer.is_called(line.arg(0)));
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
        let is_all = line.is_all_from(2);
        match (line.arg(1), is_all) {
            ("allow", true) if !has_only => is_closed = true,
            ("deny", true) if has_only && !has_except => is_closed = true,
            ("allow", false) if !has_except => {
                has_only = true;
                only = joined(&only, line, 2, acls)?;
            }
            ("deny", false) if !has_only => {
                has_except = true;
                except = joined(&except, line, 2, acls)?;
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

/// Adds the hosts that all `acl`s in a line together match, starting with argument `at`, to
/// `hosts`.
///
/// # Errors
/// The line does not depend only on hosts, or a route cannot express the hosts.
fn joined(
    hosts: &Destinations,
    line: &Line,
    at: usize,
    acls: &Acls,
) -> Result<Destinations, String> {
    let Hosts::These(more) = hosts::of_line(line, at, acls)? else {
        return Err("a route is for hosts, and this line is for all".to_owned());
    };
    acls.work.spend(hosts.work() + more.work())?;
    let names = name_words(&more);
    let is_wrong = |word: &&String| word.parse::<HostPattern>().is_err();
    if let Some(word) = names.iter().find(is_wrong) {
        return Err(format!("a route cannot be for `{word}`"));
    }
    let all = hosts.union(&more);
    match all.addresses.network_count() {
        None => Err("too many networks".to_owned()),
        Some(0) if names.is_empty() => Err("it has no hosts".to_owned()),
        Some(_) => Ok(all),
    }
}

/// Formats hosts for a route.
fn host_words(hosts: &Destinations) -> Vec<String> {
    let networks = hosts.addresses.networks().unwrap_or_default();
    [name_words(hosts), networks].concat()
}

fn name_words(hosts: &Destinations) -> Vec<String> {
    let words = hosts
        .names
        .iter()
        .flat_map(|name| match name.strip_prefix('.') {
            Some(domain) => vec![domain.to_owned(), format!("*.{domain}")],
            None => vec![name.clone()],
        });
    words.collect()
}

/// Options that are written for a peer or a site.
const IMPORTED: [&str; 12] = [
    "name",
    "weight",
    "htcp",
    "ssl",
    "tls",
    "originserver",
    "allow-miss",
    "no-query",
    "round-robin",
    "weighted-round-robin",
    "carp",
    "forceddomain",
];
/// Most peers.
pub const PEERS_MAX: usize = 64;
/// Most lines about the requests for a peer.
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
        // Squid compares hosts as texts, so a network is none.
        assert_eq!(hosts, r#"["corp.test", "*.corp.test"]"#);
        assert!(routes[2].get("host").is_none() && draft.remarks.is_empty());
    }

    #[test]
    fn an_exception_before_a_line_that_allows_is_told() {
        let parent = "acl local dstdomain .here.test\nacl web dstdomain .web.test\n\
                      cache_peer a.test parent 3128 0\n";
        for (lines, told, routes) in [
            ("never_direct deny local\nnever_direct allow all\n", 1, 0),
            ("never_direct allow all\nnever_direct deny local\n", 0, 0),
            ("never_direct deny local\nnever_direct deny all\n", 0, 0),
            ("always_direct deny local\nalways_direct allow web\n", 2, 0),
            ("always_direct allow web\nalways_direct deny local\n", 0, 1),
            ("always_direct deny all\nalways_direct allow web\n", 0, 0),
        ] {
            let draft = imported(&format!("{parent}{lines}"));
            let missing = draft.remarks.iter().filter(|it| it.fate == Fate::Missing);
            assert_eq!(missing.count(), told, "{lines}");
            let table = table(&draft);
            let written = table
                .get("route")
                .and_then(Value::as_array)
                .map_or(0, Vec::len);
            assert_eq!(written, routes, "{lines}");
            // After `deny all`, no request comes to a line that allows.
            let is_never = lines.starts_with("never") && !lines.contains("deny all");
            assert_eq!(table.contains_key("direct"), is_never, "{lines}");
        }
        let draft = imported(&format!(
            "{parent}never_direct deny all\nnever_direct allow all\n"
        ));
        assert!(!table(&draft).contains_key("direct"));
    }

    #[test]
    fn addresses_that_names_resolve_to_are_no_hosts_of_a_route() {
        let draft = imported(
            "acl to_corp dst 10.0.0.0/8\ncache_peer a.test parent 3128 0\n\
             always_direct allow to_corp\ncache_peer_access a.test deny to_corp\n",
        );
        assert!(!table(&draft).contains_key("route"));
        assert_eq!(draft.remarks.len(), 2, "{:?}", draft.remarks);
    }

    #[test]
    fn a_peer_is_called_by_its_name_whatever_the_case() {
        let draft = imported(
            "acl inside dstdomain .corp.test\ncache_peer A.test parent 3128 0\n\
             cache_peer a.test parent 3129 0\ncache_peer_access a.TEST allow inside\n\
             cache_peer_access a.test deny all\n",
        );
        let table = table(&draft);
        assert_eq!(table["peer"].as_array().unwrap().len(), 1);
        let routes = table["route"].as_array().unwrap();
        assert_eq!(routes[0]["peers"].to_string(), "[\"A.test\"]");
        assert_eq!(draft.remarks.len(), 1, "{:?}", draft.remarks);
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
