//! What rules look at in a request, and what they decide.

use hashcache_http::Host;

use super::settings::AccessAction;

/// What was decided about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub action: AccessAction,
    /// The number of the rule that decided, from 0; `None`: no rule matched.
    pub rule: Option<usize>,
}

impl Decision {
    /// The decision of `rule` in place of one that serves without limits or within others. The
    /// rule has limits and an exception for some users, and this client cannot say who it is: then
    /// it must not get more than the rule's own clients. What later rules refuse stays refused.
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
    /// It is not known, but the client can be asked.
    Unknown,
    /// It is not known, and the client cannot be asked. Rules that refuse certain users then
    /// refuse, and others for certain users do not match.
    Unknowable,
}

/// The first rule that can match needs the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserNeeded {
    /// The number of that rule, from 0.
    pub rule: usize,
}

/// A request, as far as rules look at it.
#[derive(Clone, Copy, Debug)]
pub struct AccessRequest<'a> {
    /// The user who sends it.
    pub user: RequestUser<'a>,
    /// The method; `CONNECT` for a tunnel.
    pub method: &'a str,
    /// The host of the URL.
    pub host: &'a Host,
    /// The port of the URL.
    pub port: u16,
}
