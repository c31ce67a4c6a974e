//! The ports that clients may use: `allow_port` and `allow_connect_port`, from `deny !Safe_ports`,
//! `deny CONNECT !SSL_ports` and other lines with this form, with any `acl` names.
//!
//! Called by `access`. A line becomes a setting if no line before it serves a client; otherwise it
//! becomes a rule in its place. Both settings are always written: the proxy has its own default
//! ports, while Squid has no limit without such a line.

use toml::Value;

use super::acl::{Acls, MANAGER};
use super::condition::{Condition, all_ports};
use super::draft::{Comments, Draft};
use super::lines::Line;
use super::port_values::port_values;
use super::purge;
use super::ranges::Ranges;
use super::rules;

/// Writes both settings, and returns the lines that became no setting.
pub fn import<'a>(draft: &mut Draft, lines: &[&'a Line], acls: &Acls) -> Vec<&'a Line> {
    let mut rest = Vec::new();
    let (mut allowed, mut connect) = (Allowed::default(), Allowed::default());
    let mut is_first = true;
    for (at, line) in lines.iter().enumerate() {
        is_first &= at < LINES_MAX && !line.is_all_from(1) && !serves(line, acls);
        let own = is_first.then(|| own_setting(line, acls)).flatten();
        let is_taken = match &own {
            // CONNECT must pass both settings.
            Some(Own::Port(ports)) => allowed.takes(ports) && connect.takes(ports),
            Some(Own::ConnectPort(ports)) => connect.takes(ports),
            None => false,
        };
        match own.filter(|_| is_taken) {
            Some(Own::Port(ports)) => {
                allowed.narrow(&ports, line);
                connect.narrow(&ports, line);
            }
            Some(Own::ConnectPort(ports)) => connect.narrow(&ports, line),
            None => rest.push(*line),
        }
    }
    if !lines.is_empty() {
        draft.set("allow_port", allowed.words(), allowed.comments());
        draft.set("allow_connect_port", connect.words(), connect.comments());
    }
    draft.imported += lines.len() - rest.len();
    rest
}

/// The ports that the lines leave.
#[derive(Default)]
struct Allowed {
    ports: Option<Ranges>,
    comments: Comments,
}

impl Allowed {
    fn ports(&self) -> Ranges {
        self.ports.clone().unwrap_or_else(all_ports)
    }

    /// Returns true if ports are left. Otherwise the line becomes a rule: a setting names at least
    /// one port.
    fn takes(&self, ports: &Ranges) -> bool {
        !self.ports().intersection(ports).is_empty()
    }

    fn narrow(&mut self, ports: &Ranges, line: &Line) {
        self.ports = Some(self.ports().intersection(ports));
        self.comments = std::mem::take(&mut self.comments).and_of(line);
    }

    fn words(&self) -> Value {
        port_values(&self.ports())
    }

    fn comments(&self) -> Comments {
        match self.ports {
            Some(_) => self.comments.clone(),
            None => Comments::text(
                "All ports, as in Squid: no line before those that serve limits them.",
            ),
        }
    }
}

/// A line that becomes a setting and no rule.
enum Own {
    Port(Ranges),
    ConnectPort(Ranges),
}

/// Returns true if a line may serve a request. There are no requests for the cache manager, and a
/// PURGE fetches nothing.
fn serves(line: &Line, acls: &Acls) -> bool {
    let mut words = line.args_from(1).iter();
    line.arg(0) != "deny"
        && line.args.len() > 1
        && !words.any(|it| {
            let is_manager = acls.get(&it.text).is_some_and(|acl| acl.kind == MANAGER);
            is_manager || purge::is_only_purge(&it.text, acls)
        })
}

fn own_setting(line: &Line, acls: &Acls) -> Option<Own> {
    let matched = rules::matched(line, 1, acls);
    let [condition] = matched.known().ok()? else {
        return None;
    };
    let [exception] = &condition.except[..] else {
        return None;
    };
    let ports = exception.ports.as_deref()?.clone();
    let but_ports = |condition| Condition {
        except: vec![Condition::of_ports(ports.clone())],
        ..condition
    };
    if line.arg(0) != "deny" {
        None
    } else if *condition == but_ports(Condition::default()) {
        Some(Own::Port(ports))
    } else if *condition == but_ports(Condition::of_connect()) {
        Some(Own::ConnectPort(ports))
    } else {
        None
    }
}

/// Only the first lines, up to this number, may become settings.
const LINES_MAX: usize = 64;
