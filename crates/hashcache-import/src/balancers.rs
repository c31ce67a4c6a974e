//! Squid's `proxy_protocol_access`: the load balancers that name the client.
//!
//! Squid reads the header on ports with `require-proxy-header`; the proxy reads it on every port,
//! but only from the addresses in `proxy_protocol_from`.
//!
//! Invariant: no address may name a client unless it may do so in Squid.

use super::acl::Acls;
use super::address::Addresses;
use super::draft::{Comments, Draft, strings};
use super::lines::Line;

/// Writes the setting for `lines`, if it has the same meaning for all `ports`.
pub fn import(draft: &mut Draft, lines: &[&Line], ports: &[&Line], acls: &Acls) {
    match all_of(lines, ports, acls) {
        Ok(balancers) => {
            let networks = balancers.networks().unwrap_or_default();
            let comments = lines
                .iter()
                .fold(Comments::default(), |all, it| all.and_of(it));
            if !networks.is_empty() {
                draft.set("proxy_protocol_from", strings(&networks), comments);
            }
            draft.imported += lines.len();
        }
        Err(reason) => {
            for line in lines {
                draft.missing(line, reason);
            }
        }
    }
}

/// Returns all load balancers' addresses, or the reason why the setting cannot express them.
fn all_of(lines: &[&Line], ports: &[&Line], acls: &Acls) -> Result<Addresses, &'static str> {
    if lines.len() > LINES_MAX {
        return Err("too many lines: write the networks into proxy_protocol_from");
    }
    let wants = |port: &&Line| port.args_from(1).iter().any(|it| it.text == REQUIRED);
    if !ports.iter().all(wants) {
        return Err(
            "proxy_protocol_from holds for every port, and not all have \
                    require-proxy-header",
        );
    }
    let mut balancers = Addresses::default();
    for (at, line) in lines.iter().enumerate() {
        let words = line.args_from(1);
        match (line.arg(0), words) {
            ("allow", [word]) => {
                let networks = networks(acls, &word.text);
                balancers = balancers.union(&networks.ok_or(NO_NETWORKS)?);
            }
            // Squid denies connections that no line allows.
            ("deny", [word]) if word.text == "all" && at + 1 == lines.len() => {}
            _ => return Err(NO_NETWORKS),
        }
    }
    balancers.networks().map(|_| balancers).ok_or(NO_NETWORKS)
}

/// Returns the addresses if an `acl` consists only of addresses.
fn networks(acls: &Acls, name: &str) -> Option<Addresses> {
    acls.get(name).filter(|acl| acl.kind == "src")?;
    match acls.literal(name).ok()?.as_slice() {
        [condition] => condition.clients.as_deref().cloned(),
        _ => None,
    }
}

const REQUIRED: &str = "require-proxy-header";
const NO_NETWORKS: &str = "proxy_protocol_from takes networks: only lines `allow` with one acl of \
                           the type src, and `deny all` at the end, can be read";
const LINES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::super::lines;
    use super::*;

    fn imported(text: &str) -> Draft {
        let all: Vec<Line> = lines::lines("squid.conf", text).collect();
        let called = |name: &str| -> Vec<&Line> {
            let lines = all.iter();
            lines.filter(|line| line.name == name).collect()
        };
        let acl: Vec<Line> = called("acl").into_iter().cloned().collect();
        let acls = Acls::new(&acl, &Ok(Rc::default()));
        let mut draft = Draft::default();
        let (lines, ports) = (called("proxy_protocol_access"), called("http_port"));
        import(&mut draft, &lines, &ports, &acls);
        draft
    }

    const ACL: &str = "acl front src 192.0.2.10 198.51.100.0/24\nacl web dstdomain a.test\n";

    #[test]
    fn load_balancers_are_those_that_squid_believes() {
        let draft = imported(&format!(
            "{ACL}http_port 3128 require-proxy-header\n\
             proxy_protocol_access allow front\nproxy_protocol_access deny all\n"
        ));
        let setting = draft.get("proxy_protocol_from").map(ToString::to_string);
        assert_eq!(
            setting.as_deref(),
            Some(r#"["192.0.2.10/32", "198.51.100.0/24"]"#)
        );
        assert!(draft.remarks.is_empty());
    }

    #[test]
    fn what_the_setting_would_widen_is_named() {
        let plain = "http_port 3128\nhttp_port 3129 require-proxy-header\n";
        let all = "http_port 3129 require-proxy-header\n";
        for (ports, line) in [
            (plain, "allow front"),
            (all, "allow web"),
            (all, "allow front web"),
            (all, "allow !front"),
            (all, "allow unknown"),
            (all, "deny front"),
            (all, "deny all\nproxy_protocol_access allow front"),
        ] {
            let draft = imported(&format!("{ACL}{ports}proxy_protocol_access {line}\n"));
            assert!(draft.get("proxy_protocol_from").is_none(), "{line}");
            assert!(!draft.remarks.is_empty(), "{line}");
        }
    }
}
