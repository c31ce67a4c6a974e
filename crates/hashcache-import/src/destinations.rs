//! Squid's `dst`, which also matches the addresses to which names resolve: `allow_destination` and
//! `deny_destination`.
//!
//! Access rules know only an address in the URL, so a line about addresses becomes a setting for
//! all clients. Addresses that no client can reach then match no line (`Acls::close`). Called by
//! `access` before the rules are compiled.
//!
//! A parent resolves names itself, so with a parent no setting applies to the addresses of names:
//! then it is unknown which requests a line with `dst` matches, and `rules` treats the line
//! accordingly.
//!
//! Invariants: a network that a line denies to some clients is denied to all, and a network that
//! the proxy refuses by default is opened only if Squid serves it to some client. This machine and
//! the link are opened only by a line that names them.

use super::acl::{Acls, TO_LOCAL};
use super::address::Addresses;
use super::draft::{Comments, Draft, Fate, strings};
use super::lines::Line;
use super::rules::{self, Action, Rule};

/// The networks in `http_access` lines.
#[derive(Debug, Default)]
pub struct Found<'a> {
    /// Networks that are denied to all clients, with the lines that deny them.
    denied: Addresses,
    denied_by: Vec<&'a Line>,
    /// Networks that are denied for direct connections, without a parent.
    denied_direct: Addresses,
    /// Networks that lines allow.
    allowed: Addresses,
    allowed_by: Vec<&'a Line>,
    /// Lines that deny a network only to some clients.
    widened: Vec<(&'a Line, Addresses)>,
}

/// Finds networks in `lines`, and closes the networks that are denied.
pub fn find<'a>(lines: &[&'a Line], acls: &mut Acls, has_parent: bool) -> Found<'a> {
    let mut found = Found::default();
    let last = lines.iter().position(|line| line.is_all_from(1));
    let reached = &lines[..last.map_or(lines.len(), |at| at + 1)];
    let local = Addresses::of_networks(&LOCAL);
    let mut is_after_allow = false;
    for (at, line) in reached.iter().take(LINES_MAX).enumerate() {
        let serves_later = || {
            let later = &reached[at + 1..];
            let is_end_open = rules::ends_open(lines) == Some(true);
            is_end_open || later.iter().any(|it| it.arg(0) == "allow")
        };
        if !serves_somebody(line, acls) {
            continue;
        }
        let only = line.args_from(1).iter().filter(|it| !it.is_all()).count() == 1;
        for word in line.args_from(1) {
            let (name, is_negated) = match word.text.strip_prefix('!') {
                Some(name) => (name, true),
                None => (&*word.text, false),
            };
            let Some(acl) = acls.get(name) else { continue };
            let Some(networks) = &acl.networks else {
                if line.arg(0) == "allow" && !is_negated {
                    found.allow_hosts(line, name, acls);
                }
                continue;
            };
            // No request for this machine is sent to a parent.
            if has_parent && acl.kind != TO_LOCAL && (line.arg(0), is_negated) != ("allow", false) {
                let is_small = networks
                    .network_count()
                    .is_some_and(|it| it <= NETWORKS_MAX);
                if line.arg(0) == "deny" && only && !is_negated && is_small {
                    found.denied_direct = found.denied_direct.union(networks);
                    found.denied_by.push(line);
                }
                continue;
            }
            let is_all_else = is_negated && only && !is_after_allow;
            let networks = match (line.arg(0), is_negated) {
                ("deny", false) if serves_later() => networks.clone(),
                ("allow", true) => networks.clone(),
                ("deny", true) if is_all_else => networks.complement(),
                ("allow", false) => {
                    found.allowed = found.allowed.union(networks);
                    found.allowed_by.push(line);
                    continue;
                }
                _ => continue,
            };
            let is_small = networks
                .networks()
                .is_some_and(|it| it.len() <= NETWORKS_MAX);
            if !is_small {
                continue;
            }
            if !only || is_after_allow {
                found.widened.push((line, networks.clone()));
            }
            found.denied = found.denied.union(&networks);
            found.denied_by.push(line);
        }
        is_after_allow |= line.arg(0) == "allow";
    }
    // A network that is refused by default was not widened.
    let usual = local.intersection(&found.allowed.complement());
    found
        .widened
        .retain(|(_, networks)| !usual.covers(networks));
    found.allowed = found.allowed.intersection(&found.denied.complement());
    let local_left = local.intersection(&found.allowed.complement());
    acls.close(&found.denied);
    acls.close(&local_left);
    found
}

/// Returns true if a request may match the line: there are no requests for the cache manager.
fn serves_somebody(line: &Line, acls: &Acls) -> bool {
    let kinds = line.args_from(1).iter().filter_map(|it| acls.get(&it.text));
    !kinds.into_iter().any(|acl| acl.kind == super::acl::MANAGER)
}

impl<'a> Found<'a> {
    /// Notes the addresses in an `acl` with hosts.
    fn allow_hosts(&mut self, line: &'a Line, name: &str, acls: &Acls) {
        let Ok((_, bounds)) = acls.named(name) else {
            return;
        };
        for hosts in bounds.sure.iter().filter_map(|it| it.destinations.as_ref()) {
            let mut named = hosts.addresses.clone();
            if hosts.names.contains("localhost") {
                named = named.union(&Addresses::of_networks(&["127.0.0.1", "::1"]));
            }
            if !named.is_empty() {
                self.allowed = self.allowed.union(&named);
                self.allowed_by.push(line);
            }
        }
    }

    /// Writes the settings.
    pub fn write(&self, draft: &mut Draft, rules: &[Rule<'_>]) {
        let all_of = |lines: &[&Line]| {
            let comments = Comments::default();
            lines.iter().fold(comments, |all, line| all.and_of(line))
        };
        let local = Addresses::of_networks(&LOCAL);
        let denied = self.denied.intersection(&local.complement());
        let denied = denied.union(&self.denied_direct);
        if let Some(networks) = denied.networks().filter(|it| !it.is_empty()) {
            draft.set(
                "deny_destination",
                strings(&networks),
                all_of(&self.denied_by),
            );
        }
        for (line, _) in &self.widened {
            let reason = "DENIES MORE, these addresses for every client: addresses that names \
                          resolve to are compared without regard to the client";
            draft.remark(Fate::Closed, line, reason);
        }
        if !rules.iter().any(|rule| rule.action != Action::Deny) {
            return;
        }
        let special = Addresses::of_networks(&SPECIAL);
        let usual = Addresses::of_networks(&INTRANET).union(&self.allowed.intersection(&special));
        let open = usual.intersection(&self.denied.complement());
        let Some(networks) = open.networks().filter(|it| !it.is_empty()) else {
            return;
        };
        let mut comments = all_of(&self.allowed_by);
        comments = comments.and(
            "As in Squid, clients may ask for servers of private networks. Without this setting \
             the proxy refuses them.",
        );
        if !open.covers(&local) && !self.denied.covers(&local) {
            comments = comments.and(
                "This machine and link-local addresses stay refused, although Squid allows them: \
                 add 127.0.0.0/8 here if clients need them.",
            );
            draft.note(
                "this machine (127.0.0.0/8, ::1) and link-local addresses stay refused as \
                 destinations, although no line denies them: see allow_destination",
            );
        }
        draft.set("allow_destination", strings(&networks), comments);
    }
}

/// Addresses on this machine and link.
const LOCAL: [&str; 5] = [
    "127.0.0.0/8",
    "0.0.0.0/8",
    "169.254.0.0/16",
    "::/96",
    "fe80::/10",
];
/// Networks of other machines that the proxy refuses by default.
const INTRANET: [&str; 5] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
];
/// All networks that the proxy refuses by default, as in `hashcache-proxy`.
const SPECIAL: [&str; 18] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "192.0.0.0/24",
    "192.88.99.0/24",
    "198.18.0.0/15",
    "224.0.0.0/3",
    "::/96",
    "2001::/32",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
    "64:ff9b:1::/48",
];
/// Most lines that are read.
const LINES_MAX: usize = 1024;
/// Most networks in a line that becomes a setting.
const NETWORKS_MAX: usize = 64;
