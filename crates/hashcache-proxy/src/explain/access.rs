//! Whether the request is allowed: each check that the proxy makes, with the setting that decides.
//!
//! Rules of `[[access]]` tables belong into [`of_forward`], before the check of the client, which
//! is for requests that no rule matches; they need the user and the time of the question.

use std::net::IpAddr;

use hashcache_http::Space;
use http::Method;
use serde_json::{Value, json};

use super::Asked;
use crate::failure::Failure;
use crate::route::literal_address;
use crate::upstream::address::{ClientRule, Purpose, check_connect_port, check_port};
use crate::worker::Common;

/// The checks of a request, in their order.
#[derive(Default)]
pub(super) struct Checks(Vec<Check>);

struct Check {
    /// What was checked.
    what: &'static str,
    /// By which setting, or why.
    by: String,
    refused: Option<&'static str>,
}

impl Checks {
    fn add(&mut self, what: &'static str, by: impl Into<String>, outcome: Result<(), Failure>) {
        self.0.push(Check {
            what,
            by: by.into(),
            refused: outcome.err().map(|failure| failure.slug()),
        });
    }

    /// What happens if a check refuses the request.
    pub(super) fn denied(&self) -> Option<String> {
        let check = self.0.iter().find(|check| check.refused.is_some())?;
        let error = check.refused.unwrap_or_default();
        Some(format!("refused ({error}): {}", check.by))
    }

    pub(super) fn to_json(&self) -> Value {
        let checks = self.0.iter().map(|check| {
            json!({
                "check": check.what,
                "allowed": check.refused.is_none(),
                "by": check.by,
                "error": check.refused,
            })
        });
        json!({
            "allowed": self.denied().is_none(),
            "checks": checks.collect::<Vec<_>>(),
        })
    }
}

/// The checks of a request to a forward proxy.
pub(super) fn of_forward(common: &Common, asked: &Asked<'_>, by_connect: bool) -> Checks {
    let mut checks = Checks::default();
    if let Some(client) = asked.question.client {
        client_check(common, client, &mut checks);
    }
    if let Some(user) = &asked.question.user {
        checks.add(
            "user",
            format!("no setting looks at the user {user}"),
            Ok(()),
        );
    }
    let live = common.live();
    let (scheme, port) = (asked.target.scheme, asked.target.authority.port);
    if by_connect {
        let by = "`allow_connect_port`";
        checks.add("port", by, check_connect_port(&live.connect_ports, port));
    } else if asked.space == Space::Own {
        checks.add(
            "port",
            "`allow_port`",
            check_port(&live.ports, scheme, port),
        );
    }
    if scheme.needs_gateway() {
        let is_allowed = live.gateways.contains(&scheme);
        let outcome = is_allowed
            .then_some(())
            .ok_or(Failure::NotImplemented("gateway"));
        checks.add("scheme", "`gateways`", outcome);
        let is_read = [Method::GET, Method::HEAD].contains(&asked.question.method);
        let outcome = is_read
            .then_some(())
            .ok_or(Failure::NotImplemented("method"));
        checks.add("method", "gateways know GET and HEAD alone", outcome);
    }
    if asked.space == Space::Own {
        destination(common, asked, &mut checks);
    }
    checks
}

/// The checks of a request to a site: it is for all clients, and its origins are the operator's.
pub(super) fn of_site(common: &Common, asked: &Asked<'_>) -> Checks {
    let mut checks = Checks::default();
    if let Some(client) = asked.question.client {
        client_check(common, client, &mut checks);
    }
    checks
}

fn client_check(common: &Common, client: IpAddr, checks: &mut Checks) {
    let live = common.live();
    let rule = live.clients.rule(client);
    let by = match rule {
        Some(ClientRule::Near) => "it is in a private network, or this machine",
        Some(ClientRule::Listed) => "`allow_client` has its network",
        Some(ClientRule::Neighbour) => "it is in the network of an interface",
        None => "its network is neither private nor in `allow_client`",
    };
    checks.add("client", by, live.clients.check(client));
}

fn destination(common: &Common, asked: &Asked<'_>, checks: &mut Checks) {
    let live = common.live();
    match literal_address(&asked.target.authority.host) {
        Some(address) => {
            let outcome = live.upstream.destinations.check(address, Purpose::Forward);
            let by = match &outcome {
                Ok(()) => "`allow_destination` has its network, or it is public",
                Err(_) => {
                    "it is private, local or in `deny_destination`, and not in \
                     `allow_destination`"
                }
            };
            checks.add("destination", by, outcome);
        }
        None => {
            let by = "known when the name is resolved: private and local addresses are refused \
                      unless `allow_destination` has them";
            checks.add("destination", by, Ok(()));
        }
    }
}
