//! The properties of a request that rules compare, and the decision.

use hashcache_http::Host;

use super::settings::AccessAction;

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The action.
    pub action: AccessAction,
    /// The number of the rule that decided, from 0; `None`: no rule matched.
    pub rule: Option<usize>,
}

impl Decision {
    /// Replaces a decision that serves the request, without limits or within other limits, by the
    /// limits of `rule`. The rule has limits and an exception for some users, and the client's user
    /// cannot be known: such a client must not get more than the clients of that rule. If a later
    /// rule refuses, the refusal stays.
    pub(super) fn limited_by(self, rule: Option<usize>) -> Self {
        match (rule, self.action) {
            (Some(rule), AccessAction::Allow | AccessAction::Limit) => Self {
                action: AccessAction::Limit,
                rule: Some(rule),
            },
            _ => self,
        }
    }
}

/// The user of a request, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestUser<'a> {
    /// The user with this name.
    Known(&'a str),
    /// The user is not known, but a login can be requested.
    Unknown,
    /// The user is not known, and no login can be requested. Then rules that refuse certain users
    /// refuse, and other rules for certain users do not match.
    Unknowable,
}

/// The first rule that can match needs the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserNeeded {
    /// The number of that rule, from 0.
    pub rule: usize,
}

/// The properties of a request that rules compare.
#[derive(Clone, Copy, Debug)]
pub struct AccessRequest<'a> {
    /// The user that sends the request.
    pub user: RequestUser<'a>,
    /// The method; `CONNECT` for a tunnel.
    pub method: &'a str,
    /// The host in the URL.
    pub host: &'a Host,
    /// The port in the URL.
    pub port: u16,
}
