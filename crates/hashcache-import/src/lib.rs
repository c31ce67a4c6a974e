//! Converts a Squid configuration to a HashCache configuration.
//!
//! Called by `hashcache import`. Each setting has its Squid directive above it; a directive without
//! a counterpart is named with its line and the reason, in the file and in the report.
//!
//! Invariants: no directive is left out silently. A result that serves requests that Squid refuses
//! says so for each such line ([`Fate::Open`]). The work and the output are bounded for any input.

mod access;
mod acl;
mod acl_values;
mod address;
mod auth;
mod balancers;
mod bounds;
mod condition;
mod delay;
mod destinations;
mod directives;
mod draft;
mod hosts;
mod lines;
mod listeners;
mod peers;
mod port_values;
mod ports;
mod purge;
mod ranges;
mod refresh;
mod report;
mod rules;
mod sites;
mod source;
mod storage;
mod values;
mod week;
mod work;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;

pub use self::draft::Fate;
pub use self::rules::Unsure;

use self::access::AccessLines;
use self::acl::{Acls, MANAGER, TO_LOCAL};
use self::delay::DelayLines;
use self::draft::{Comments, Draft, strings};
use self::lines::Line;
use self::listeners::Role;
use self::peers::PeerLines;
use self::source::Source;

/// The result of an import.
#[derive(Debug)]
pub struct Import {
    draft: Draft,
    /// The configuration of Squid, as its path is written in the result.
    file: String,
}

/// Converts the configuration in `file`, with the files that it names.
///
/// # Errors
/// The file cannot be read, or is too large.
pub fn import(file: &Path, unsure: Unsure) -> io::Result<Import> {
    Ok(Import {
        draft: draft(source::read(file)?, unsure),
        file: file.to_string_lossy().into_owned(),
    })
}

impl Import {
    /// Returns the configuration file for HashCache.
    pub fn text(&self) -> String {
        self.draft.text(&self.file)
    }

    /// Number of directives with this result.
    pub fn count(&self, fate: Fate) -> usize {
        let remarks = self.draft.remarks.iter();
        remarks.filter(|it| it.fate == fate).count()
    }

    /// Returns a report for people: a line for each directive that differs from Squid, and a
    /// summary.
    pub fn report(&self) -> String {
        report::text(&self.draft)
    }

    /// Returns the report as JSON, also with the directives that need no setting. `is_written`: the
    /// configuration file was written.
    pub fn report_json(&self, is_written: bool) -> String {
        report::json(&self.draft, is_written)
    }
}

/// A configuration's lines, by directive.
struct Sorted<'a>(HashMap<&'a str, Vec<&'a Line>>);

impl<'a> Sorted<'a> {
    fn all(&self, name: &str) -> Vec<&'a Line> {
        self.0.get(name).cloned().unwrap_or_default()
    }

    /// The line that counts, for a directive that Squid takes once: the last.
    fn last(&self, name: &str) -> Option<&'a Line> {
        self.0.get(name).and_then(|lines| lines.last().copied())
    }
}

/// Builds the configuration that corresponds to `source`.
fn draft(source: Source, unsure: Unsure) -> Draft {
    let mut draft = Draft::default();
    for failed in &source.failed {
        draft.failed(failed);
    }
    for line in &source.skipped {
        draft.unneeded(line, "it is for another case of `if`");
    }
    let mut sorted = Sorted(HashMap::new());
    for line in &source.lines {
        sorted.0.entry(&line.name).or_default().push(line);
    }
    let ports = [sorted.all("http_port"), sorted.all("https_port")].concat();
    let role = listeners::role(&ports);
    let users = auth::import(&mut draft, &sorted.all("auth_param"));
    let acl_lines: Vec<Line> = sorted.all("acl").into_iter().cloned().collect();
    let mut acls = Acls::new(&acl_lines, &users);
    listeners::import(&mut draft, &ports, role);
    balancers::import(
        &mut draft,
        &sorted.all("proxy_protocol_access"),
        &ports,
        &acls,
    );
    storage::import(
        &mut draft,
        &sorted.all("cache_dir"),
        sorted.last("cache_mem"),
        sorted.last("maximum_object_size"),
    );
    let peers = PeerLines {
        cache_peer: sorted.all("cache_peer"),
        peer_access: [
            sorted.all("cache_peer_access"),
            sorted.all("cache_peer_domain"),
        ]
        .concat(),
        always_direct: sorted.all("always_direct"),
        never_direct: sorted.all("never_direct"),
        icp_port: sorted.last("icp_port"),
        htcp_port: sorted.last("htcp_port"),
    };
    let access = AccessLines {
        acl: sorted.all("acl"),
        http_access: sorted.all("http_access"),
        further: [
            sorted.all("http_reply_access"),
            sorted.all("miss_access"),
            [
                sorted.all("adapted_http_access"),
                sorted.all("http_access2"),
            ]
            .concat(),
        ],
        cache: [sorted.all("cache"), sorted.all("no_cache")].concat(),
        has_parent: !peers.cache_peer.is_empty(),
        delay: DelayLines::new(|name| sorted.all(name)),
    };
    match role {
        Role::Forward => {
            access::import(&mut draft, &access, &mut acls, users.as_ref().ok(), unsure);
            peers::import(&mut draft, &peers, &acls);
            suggest_gateways(&mut draft);
        }
        Role::Reverse => {
            let default_sites = listeners::default_sites(&ports);
            sites::import(
                &mut draft,
                &peers,
                &access.http_access,
                &default_sites,
                (&acls, unsure),
            );
            for line in access.further.iter().flatten() {
                if line.is_all_from(1) && line.arg(0) == "allow" {
                    draft.unneeded(line, "the rule by default");
                } else {
                    draft.open(line, "in front of a site there are no access rules");
                }
            }
            if !draft.has_table("site", "hosts") {
                close_ports(&mut draft, &ports);
            }
            for line in &access.cache {
                draft.missing(line, "in front of a site there are no access rules");
            }
            access
                .delay
                .leave_out(&mut draft, "in front of a site there are no access rules");
        }
    }
    refresh::import(&mut draft, &sorted.all("refresh_pattern"));
    for line in &source.lines {
        match directives::treatment(&line.name) {
            Some(treatment) => directives::import(&mut draft, line, treatment),
            None => draft.missing(line, "unknown directive"),
        }
    }
    remark_acls(&mut draft, &source.lines, &acls);
    remark_repeated(&mut draft, &sorted);
    draft
}

/// Without a site, the ports would become a forward proxy's ports.
fn close_ports(draft: &mut Draft, ports: &[&Line]) {
    for key in ["listen", "tls_cert", "tls_key"] {
        draft.turn_off(key);
    }
    for line in ports {
        draft.missing(
            line,
            "no site is known: write a [[site]], and remove the # before `listen`",
        );
    }
}

/// Suggests the FTP gateway, because Squid serves FTP URLs without a setting.
fn suggest_gateways(draft: &mut Draft) {
    let why = "Squid also fetches ftp:// URLs for clients. Few clients ask for them today.";
    draft.suggest("gateways", strings(&["ftp"]), Comments::text(why));
}

/// Reports for each `acl` line if it could be read.
fn remark_acls(draft: &mut Draft, lines: &[Line], acls: &Acls) {
    let mut used = HashSet::new();
    for line in lines {
        // The name and type in an `acl` line do not count as a use.
        let from = if line.name == "acl" { 2 } else { 0 };
        let words = line.args_from(from).iter();
        used.extend(words.map(|it| it.text.trim_start_matches('!').to_ascii_lowercase()));
    }
    for line in lines.iter().filter(|line| line.name == "acl") {
        let name = line.arg(0);
        for option in line.args_from(2) {
            if acl::OPTIONS.contains(&&*option.text) {
                draft.option(
                    line,
                    &option.text,
                    "rules compare hosts and users by themselves",
                );
            }
        }
        match acls.named(name) {
            _ if !used.contains(&name.to_ascii_lowercase()) => {
                draft.unneeded(line, "no other directive names it");
            }
            Ok((acl, _)) if [MANAGER, TO_LOCAL].contains(&&*acl.kind) => {
                draft.unneeded(line, "Squid has this acl without a line");
            }
            Ok((acl, _)) if acl.kind != line.arg(1) => {
                draft.missing(line, "Squid has an acl of this name and of another type");
            }
            Ok((_, bounds)) => match bounds.why {
                // The lines that name the `acl` report the effect on requests.
                Some(reason) => draft.missing(line, reason),
                None => draft.imported += 1,
            },
            Err(reason) => draft.missing(line, reason),
        }
    }
}

/// Reports repeated directives if Squid uses only the last.
fn remark_repeated(draft: &mut Draft, sorted: &Sorted<'_>) {
    for name in ["cache_mem", "maximum_object_size", "icp_port", "htcp_port"] {
        let lines = sorted.all(name);
        for line in lines.iter().rev().skip(1) {
            draft.unneeded(line, "a later line replaces it");
        }
    }
}
#[cfg(test)]
mod tests {
    use std::fs;
    use std::rc::Rc;

    use super::lines::Place;
    use super::source::Failed;
    use super::*;
    use hashcache_settings::{Effective, Environment};

    /// The draft of a configuration, and the settings that it gives.
    fn imported(text: &str) -> (Draft, String) {
        let source = Source {
            lines: lines::lines("squid.conf", text).collect(),
            ..Source::default()
        };
        let draft = draft(source, Unsure::Open);
        let text = draft.text("squid.conf");
        (draft, text)
    }

    pub(super) fn loaded(text: &str) -> anyhow::Result<Effective> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let environment = Environment {
            variables: [("HOME".to_owned(), "/home-of-tests".to_owned())].into(),
            is_root: false,
            processors: 4,
        };
        hashcache_settings::load(Some(file.path()), vec![], &environment)
    }

    #[test]
    fn every_line_is_imported_or_told() {
        let text = "http_port 3128\nnew_directive 1\nacl a src 10.0.0.0/8\nacl b src 10.0.0.1\n\
                    http_access deny c\nvia on\ndelay_pools 1\nacl c url_regex x\n\
                    http_access allow a\nhttp_access deny all\ncache_mem 1 MB\ncache_mem 2 MB\n";
        let (draft, text) = imported(text);
        loaded(&text).unwrap();
        let told: Vec<&str> = draft.remarks.iter().map(|it| &*it.directive).collect();
        for line in [2, 4, 5, 6, 7, 8, 11] {
            let place = format!("squid.conf:{line}: ");
            assert!(
                told.iter().any(|it| it.starts_with(&place)),
                "{line}: {told:?}"
            );
        }
        assert_eq!(draft.imported, 5);
        let unsaid = draft
            .remarks
            .iter()
            .find(|it| it.directive.contains(":5:"))
            .unwrap();
        assert!(unsaid.reason.starts_with("NOT DENIED"), "{unsaid:?}");
    }

    #[test]
    fn a_built_in_acl_that_is_written_out_is_unneeded() {
        let (draft, text) = imported(
            "acl manager proto cache_object\nacl to_localhost dst 127.0.0.0/8 ::1\n\
             acl to_localhost dst 192.0.2.1\nhttp_access deny manager\n\
             http_access deny to_localhost\nhttp_access allow all\n",
        );
        let fates = draft.remarks.iter().map(|it| it.fate);
        assert!(
            fates.clone().all(|it| it == Fate::Unneeded),
            "{:?}",
            draft.remarks
        );
        assert_eq!(fates.count(), 5);
        // The address that the last line adds is no address of this machine.
        assert!(
            text.contains("deny_destination = [\"192.0.2.1/32\"]"),
            "{text}"
        );
    }

    /// The values of a key of the settings that a configuration gives.
    fn list(text: &str, key: &str) -> String {
        let (draft, text) = imported(text);
        loaded(&text).unwrap();
        let value = draft.get(key).map(ToString::to_string);
        value.unwrap_or_default()
    }

    #[test]
    fn ports_are_those_of_the_file_whatever_its_acls_are_called() {
        let acls = "acl web port 80 8000-8100\nacl web port 443\nacl tls port 443\n\
                    acl here src 10.0.0.0/8\nacl wipe method PURGE\n";
        for (lines, allow_port, connect) in [
            (
                "http_access allow wipe here\nhttp_access deny wipe\nhttp_access deny !web\n\
                 http_access deny !tls CONNECT\nhttp_access allow here\n",
                r#"["80", "443", "8000-8100"]"#,
                r#"["443"]"#,
            ),
            (
                "http_access deny !web\nhttp_access allow here\n",
                r#"["80", "443", "8000-8100"]"#,
                r#"["80", "443", "8000-8100"]"#,
            ),
            // Behind a line that serves, both are rules in their places.
            (
                "http_access allow here\nhttp_access deny !web\nhttp_access deny CONNECT !tls\n",
                r#"["1-65535"]"#,
                r#"["1-65535"]"#,
            ),
            (
                "http_access allow here\n",
                r#"["1-65535"]"#,
                r#"["1-65535"]"#,
            ),
        ] {
            let text = format!("{acls}{lines}");
            assert_eq!(list(&text, "allow_port"), allow_port, "{lines}");
            assert_eq!(list(&text, "allow_connect_port"), connect, "{lines}");
        }
    }

    #[test]
    fn a_last_line_about_ports_decides_what_holds_where_none_matches() {
        let acls = "acl web port 80\nacl here src 10.0.0.0/8\nacl bad dstdomain .bad.test\n";
        let (draft, text) = imported(&format!(
            "{acls}http_access deny bad\nhttp_access deny !web\n"
        ));
        assert!(
            text.contains("action = \"allow\"\nclients = [\"all\"]"),
            "{text}"
        );
        assert!(draft.remarks.iter().all(|it| it.fate == Fate::Unneeded));
    }

    #[test]
    fn purge_is_for_clients_that_squid_takes_it_from() {
        let acls = "acl wipe method PURGE\nacl here src 10.0.0.0/8\nacl bad dstdomain .bad.test\n";
        let nobody = r#"["0.0.0.0/32"]"#;
        for (lines, clients) in [
            (
                "http_access allow wipe here\nhttp_access deny wipe\nhttp_access allow all\n",
                r#"["10.0.0.0/8"]"#,
            ),
            (
                "http_access deny wipe !here\nhttp_access allow all\n",
                r#"["10.0.0.0/8"]"#,
            ),
            ("http_access deny wipe\nhttp_access allow all\n", nobody),
            ("http_access allow here\n", r#"["10.0.0.0/8"]"#),
            (
                "http_access deny bad\nhttp_access allow wipe here\n",
                nobody,
            ),
        ] {
            assert_eq!(
                list(&format!("{acls}{lines}"), "allow_purge"),
                clients,
                "{lines}"
            );
        }
        // Without an `acl` for the method, Squid has no PURGE.
        let text = "acl here src 10.0.0.0/8\nhttp_access allow here\n";
        assert_eq!(list(text, "allow_purge"), nobody);
        let (_, text) = imported(&format!("{acls}http_access allow wipe here\n"));
        assert!(!text.contains("methods"), "{text}");
    }

    #[test]
    fn networks_that_the_file_allows_are_allowed_as_destinations() {
        let acls = "acl here src 10.0.0.0/8\nacl inside dst 192.168.0.0/16\n\
                    acl lab dst 127.5.0.0/16\n";
        let usual = "[\"10.0.0.0/8\", \"100.64.0.0/10\", \"172.16.0.0/12\", \
                     \"192.168.0.0/16\", \"fc00::/7\"]";
        let allow = |lines: &str| list(&format!("{acls}{lines}"), "allow_destination");
        assert_eq!(allow("http_access allow here\n"), usual);
        assert_eq!(allow("http_access deny here\nhttp_access deny all\n"), "");
        let without = allow("http_access deny inside\nhttp_access allow here\n");
        assert!(!without.contains("192.168"), "{without}");
        let with_lab = allow("http_access allow lab\nhttp_access allow here\n");
        assert!(with_lab.contains("127.5.0.0/16"), "{with_lab}");
        let text = format!("{acls}http_access allow here !inside\nhttp_access deny all\n");
        assert_eq!(list(&text, "deny_destination"), r#"["192.168.0.0/16"]"#);
        let (draft, _) = imported(&text);
        let closed = draft.remarks.iter().filter(|it| it.fate == Fate::Closed);
        assert_eq!(closed.count(), 1, "{:?}", draft.remarks);
        // A parent looks names up, so no setting keeps them out of the network.
        let (draft, _) = imported(&format!(
            "{acls}cache_peer p.test parent 3128 0\nhttp_access deny inside\n\
             http_access allow here\n"
        ));
        let open = draft.remarks.iter().filter(|it| it.fate == Fate::Open);
        assert_eq!(open.count(), 1, "{:?}", draft.remarks);
    }

    #[test]
    fn directives_that_refuse_requests_are_open() {
        for line in [
            "url_rewrite_program /usr/bin/squidGuard",
            "icap_enable on",
            "reply_body_max_size 10 MB",
            "follow_x_forwarded_for allow all",
            "ssl_bump terminate all",
            "http_reply_access deny mime",
            "never_direct allow all",
        ] {
            let text = format!(
                "acl here src 10.0.0.0/8\nacl mime rep_mime_type video\nhttp_access allow here\n\
                 {line}\n"
            );
            let (draft, _) = imported(&text);
            let open = draft.remarks.iter().filter(|it| it.fate == Fate::Open);
            assert_eq!(open.count(), 1, "{line} {:?}", draft.remarks);
        }
    }

    #[test]
    fn every_option_that_is_left_out_is_named() {
        let (draft, text) = imported(
            "http_port 3128 name=x tcpkeepalive=60\n\
             cache_peer p.test parent 3128 0 no-digest ttl=5\n\
             cache_dir ufs /a 100 16 256\nacl a dstdomain -n a.test\nhttp_access allow a\n",
        );
        let named: Vec<&str> = draft
            .options
            .iter()
            .map(|it| it.reason.split(':').next().unwrap())
            .collect();
        for option in [
            "name=x",
            "tcpkeepalive=60",
            "no-digest",
            "ttl=5",
            "ufs",
            "16",
            "256",
            "-n",
        ] {
            assert!(named.contains(&option), "{option} {named:?}");
            assert!(text.contains(option), "{text}");
        }
        let report: serde_json::Value = serde_json::from_str(&report::json(&draft, true)).unwrap();
        assert_eq!(report["options"].as_array().unwrap().len(), 8);
    }

    #[test]
    fn an_empty_configuration_is_one_of_ours() {
        let (draft, text) = imported("");
        loaded(&text).unwrap();
        assert!(draft.remarks.is_empty());
    }

    #[test]
    fn a_port_of_sites_that_are_not_known_is_not_opened() {
        let (draft, text) = imported("http_port 80 accel vhost\n");
        let listen = loaded(&text).unwrap().values.startup.listen;
        assert!(
            listen.iter().all(|it| it.address.ip().is_loopback()),
            "{text}"
        );
        assert_eq!(draft.remarks.len(), 1);
    }

    #[test]
    fn files_that_cannot_be_read_are_told() {
        let line = Line {
            place: Place {
                file: Rc::from("squid.conf"),
                line: 1,
            },
            name: "include".to_owned(),
            args: vec![],
        };
        let source = Source {
            failed: vec![Failed {
                directive: line.shown_with_place(),
                reason: "why".to_owned(),
            }],
            skipped: vec![line],
            ..Source::default()
        };
        let draft = draft(source, Unsure::Open);
        let fates: Vec<Fate> = draft.remarks.iter().map(|it| it.fate).collect();
        assert_eq!(fates, [Fate::Open, Fate::Unneeded]);
        let told = "squid.conf:1: include: would be open: NOT DENIED, if lines that were not read \
                    do: why\n";
        assert!(report::text(&draft).contains(told));
    }

    /// Words of configurations, also of broken ones.
    const WORDS: [&str; 96] = [
        "acl",
        "acl",
        "acl",
        "http_access",
        "http_access",
        "http_access",
        "http_port",
        "https_port",
        "cache_peer",
        "cache_peer_access",
        "always_direct",
        "never_direct",
        "icp_port",
        "htcp_port",
        "cache_dir",
        "cache_mem",
        "maximum_object_size",
        "refresh_pattern",
        "auth_param",
        "cache",
        "access_log",
        "visible_hostname",
        "cache_mgr",
        "connect_timeout",
        "negative_ttl",
        "workers",
        "a",
        "b",
        "c",
        "d",
        "a",
        "b",
        "c",
        "!a",
        "!b",
        "!c",
        "!d",
        "all",
        "!all",
        "src",
        "dst",
        "dstdomain",
        "port",
        "method",
        "time",
        "proxy_auth",
        "any-of",
        "all-of",
        "dstdom_regex",
        "url_regex",
        "allow",
        "deny",
        "allow",
        "deny",
        "allow",
        "10.0.0.0/8",
        "10.1.2.3",
        "0.0.0.0/0",
        "::/0",
        "fc00::/7",
        "::ffff:0:0/96",
        "::fffe:0:0/96",
        ".a.test",
        "b.test",
        "a.a.test",
        "80",
        "443",
        "1-65535",
        "0",
        "GET",
        "connect",
        "CONNECT",
        "MTWHF",
        "08:00-15:30",
        "S",
        "REQUIRED",
        "zoe",
        "localhost",
        "manager",
        "to_localhost",
        "3128",
        "127.0.0.1:3180",
        "accel",
        "intercept",
        "defaultsite=w.test",
        "p.test",
        "parent",
        "sibling",
        "originserver",
        "no-query",
        "name=b",
        "round-robin",
        ".",
        r"\.(gif|png)$",
        "1440",
        "20%",
    ];

    #[test]
    fn whatever_the_configuration_the_result_is_one_of_ours() {
        let mut rng = fastrand::Rng::with_seed(16);
        let (mut rules, mut sites, mut peers) = (0, 0, 0);
        for round in 0..1000 {
            let mut text = String::new();
            for _ in 0..rng.usize(1..40) {
                let words = (0..rng.usize(1..8)).map(|_| WORDS[rng.usize(..WORDS.len())]);
                let words: Vec<&str> = words.collect();
                // Half of the lines are of the forms that are understood.
                let mut one_of = |two: [&'static str; 2]| two[rng.usize(..2)];
                let (ab, cd) = (one_of(["a", "b"]), one_of(["c", "d"]));
                let (allow, kind) = (one_of(["allow", "deny"]), one_of(["parent", "sibling"]));
                let rest = words.join(" ");
                let line = match rng.u8(0..12) {
                    0 => format!("acl {ab} src {rest}"),
                    1 => format!("acl {cd} dstdomain .{}.test", rng.u8(..)),
                    2 | 3 => format!("http_access {allow} {rest}"),
                    4 => format!("cache_peer {ab}.test {kind} 3128 3130 {}", words[0]),
                    5 => format!("cache_peer_access {ab}.test {allow} {cd}"),
                    6 => "icp_port 3130".to_owned(),
                    7 if rng.u8(..) < 20 => format!(
                        "http_port 80 accel defaultsite=w.test\n\
                         http_access allow all\n\
                         cache_peer {ab}.o.test parent 80 0 originserver {rest}"
                    ),
                    _ => rest,
                };
                text.push_str(&format!("{line}\n"));
            }
            let (_, result) = imported(&text);
            match loaded(&result) {
                Ok(effective) => {
                    rules += usize::from(!effective.values.reloadable.access.is_empty());
                    sites += usize::from(effective.values.is_reverse());
                    peers += usize::from(!effective.values.peers.peers.is_empty());
                }
                Err(error) => {
                    let error = hashcache_settings::fault::render(&error);
                    panic!("round {round}: {error}\n{text}\n----\n{result}")
                }
            }
        }
        assert!(
            rules > 300 && sites > 15 && peers > 150,
            "{rules} {sites} {peers}"
        );
    }

    /// Sets that differ in one of many hosts, each of which is compared with each.
    fn many_sets() -> String {
        let hosts: String = (0..1999).map(|n| format!(" .h{n}.test")).collect();
        let mut text: String = (0..25)
            .map(|set| format!("acl s{set} dstdomain{hosts} z{set}.test\n"))
            .collect();
        for rule in 0..rules::RULES_MAX {
            let (last, set) = (60_000 - rule, rule % 25);
            text.push_str(&format!(
                "acl p{rule} port 1-{last}\nhttp_access allow s{set} p{rule}\n"
            ));
        }
        text + &"http_access deny s1 s2 s3 !s4\n".repeat(100)
    }

    /// A set of long names, in every rule.
    fn long_rules() -> String {
        let long = "x".repeat(60);
        let hosts: String = (0..2000)
            .map(|n| format!(" {long}.{long}.{long}.h{n}.test"))
            .collect();
        let mut text = format!("acl long dstdomain{hosts}\n");
        for rule in 0..1000 {
            text.push_str(&format!(
                "acl p{rule} port {}\nhttp_access allow long p{rule}\n",
                rule + 1
            ));
        }
        text
    }

    /// Many hosts and many lines, in front of a site.
    fn many_sites() -> String {
        let mut text = "http_port 80 accel\n".to_owned();
        for set in 0..20 {
            let hosts: String = (0..2000).map(|n| format!(" h{n}.s{set}.test")).collect();
            text.push_str(&format!("acl s{set} dstdomain{hosts}\n"));
        }
        for peer in 0..64 {
            text.push_str(&format!(
                "cache_peer 10.0.0.{peer} parent 80 0 originserver\n"
            ));
        }
        let all: String = (0..20)
            .map(|set| format!("http_access allow s{set}\n"))
            .collect();
        text + &all.repeat(50)
    }

    #[test]
    fn rules_that_are_too_much_together_serve_nobody() {
        for text in [many_sets(), long_rules()] {
            let (draft, result) = imported(&text);
            let table: toml::Table = toml::from_str(&result).unwrap();
            let rules = table["access"].as_array().unwrap();
            assert_eq!(
                (rules.len(), rules[0]["action"].as_str()),
                (1, Some("deny"))
            );
            let told = draft
                .remarks
                .iter()
                .filter(|it| it.reason.contains("NOBODY IS SERVED"));
            assert!(told.count() >= 1000);
        }
    }

    #[test]
    fn hostile_lines_end_soon_and_take_little_memory() {
        let many = |line: &str| line.repeat(20_000);
        let hosts: String = (0..2000).map(|n| format!(".h{n}.test ")).collect();
        for text in [
            many("http_port 3128 x y z\n"),
            many("cache_peer a.test parent 3128 0 x\ncache_peer_access a.test allow all\n"),
            many("acl a dstdomain .x.test\nhttp_access deny !a\nhttp_access allow a\n"),
            many("auth_param basic program /none/basic_ncsa_auth /none\n"),
            format!(
                "acl a dstdomain {hosts}\n{}",
                many("http_access deny !a\ncache deny a\n")
            ),
            format!(
                "acl a src 10.0.0.0/8\n{}",
                many("acl b any-of a !a\nhttp_access deny !b b\n")
            ),
            format!("unknown {}\n", "x ".repeat(100_000)),
            many_sites(),
            format!("http_port 3128 {}\n", "x ".repeat(100_000)),
            format!("refresh_pattern {} 0 20% 1\n", "(a|b)".repeat(10_000)),
        ] {
            let (_, result) = imported(&text);
            assert!(result.len() < 16 << 20, "{} bytes", result.len());
            loaded(&result).unwrap();
        }
    }
}
