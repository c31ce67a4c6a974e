//! Decides if a client may make a request, and checks the login if the rules need it.
//!
//! Called by `request` for every request, except requests for the proxy itself and for resources
//! that a member requests ([`Permission::OF_MEMBER`]). A login is checked only if a rule needs the
//! user: for this request, or for requests inside the connection that a CONNECT opens, if it may be
//! intercepted.
//!
//! Invariants: a password is requested only over TLS and from networks that the operator trusts,
//! and never on a connection that the network has diverted here. The caller removes the field
//! Proxy-Authorization from the request, whatever is decided.

use std::sync::Arc;

use hashcache_access::quota::{LimitPlan, RequestLimits, Sender};
use hashcache_access::users::{Login, LoginSource, Unchecked};
use hashcache_access::{AccessAction, Decision, RequestUser, UserNeeded};
use hashcache_base::failure::Failure;
use hashcache_base::share::Network;
use hashcache_http::Authority;
use http::{HeaderValue, Method};
use tokio::time::Instant;

use crate::connection::{Connection, MayAsk};
use crate::log_entry::LogEntryBuilder;

/// The allowed action for a request, the user, and the limits.
#[derive(Clone, Debug)]
pub(crate) struct Permission {
    pub(crate) action: AccessAction,
    pub(crate) user: Option<Arc<str>>,
    /// `None` if the rule names no limits.
    pub(crate) limits: Option<RequestLimits>,
}

impl Permission {
    /// For a request that a member forwards: allowed, because the member has applied its rules.
    pub(crate) const OF_MEMBER: Self = Self {
        action: AccessAction::Allow,
        user: None,
        limits: None,
    };
}

/// Login information of a request.
pub(crate) enum LoginField {
    /// The client may be challenged, and has sent this field.
    Asked(Option<HeaderValue>),
    /// The client does not know that it uses a proxy, so it cannot be challenged.
    NotAsked,
}

/// Decides about a request by method and destination. A child has authenticated with its key, and
/// has applied rules to its own clients, so the rules of this box do not apply to it. Requests for
/// the self-test are always allowed, because they are not forwarded.
///
/// # Errors
/// The client may not make the request, or must log in.
pub(crate) async fn permit(
    connection: &Connection,
    (method, authority): (&Method, &Authority),
    login: LoginField,
    log_entry: &mut LogEntryBuilder,
) -> Result<Permission, Failure> {
    let asks = match login {
        LoginField::Asked(_) => MayAsk::Yes,
        LoginField::NotAsked => MayAsk::No,
    };
    // Do not hold the settings while a password is checked.
    let (settled, user) = {
        let live = connection.worker.common.live();
        let settled = connection.settled_user(&live).cloned();
        (settled, connection.user_without_login(&live, asks))
    };
    if connection.child.is_some() || connection.is_self_test(authority) {
        return Ok(Permission {
            action: AccessAction::Allow,
            user: settled,
            limits: None,
        });
    }
    let request = (user, method, authority);
    match decide(connection, request)? {
        Ok(decided) if !needs_user_inside(connection, request, decided.action) => {
            permission(connection, decided, settled)
        }
        Ok(_) | Err(UserNeeded { .. }) => {
            let LoginField::Asked(Some(field)) = login else {
                return Err(login_needed(connection));
            };
            // On the heap: most requests do not need this future, and all futures would be larger.
            let user = Box::pin(checked(connection, &field)).await?;
            log_entry.set_user(Some(Arc::clone(&user)));
            let known = RequestUser::Known(&user);
            // With a known user no rule needs the user.
            let decided = decide(connection, (known, method, authority))?;
            let decided = decided.map_err(|_| login_needed(connection))?;
            permission(connection, decided, Some(user))
        }
    }
}

/// Returns the permission after a decision to serve a request, and counts the request.
///
/// # Errors
/// A limit on requests is reached.
pub(crate) fn permission(
    connection: &Connection,
    Decided { action, limits }: Decided,
    user: Option<Arc<str>>,
) -> Result<Permission, Failure> {
    let limits = limits.map(|(plan, numbers)| {
        let sender = Sender {
            client: connection.allowance.share().network().without_client(),
            user: user.as_deref(),
        };
        let limiter = &connection.worker.common.limiter;
        limiter.of_request(&plan, numbers, sender)
    });
    if let Some(limits) = &limits {
        limits.take_request(Instant::now())?;
    }
    Ok(Permission {
        action,
        user,
        limits,
    })
}

/// Returns the user of a request for a page about the sender: a login in the request is checked,
/// but a missing login is not requested.
pub(crate) async fn known_user(
    connection: &Connection,
    field: Option<&HeaderValue>,
) -> Option<Arc<str>> {
    let (settled, may_ask) = {
        let live = connection.worker.common.live();
        let settled = connection.settled_user(&live).cloned();
        let user = connection.user_without_login(&live, MayAsk::Yes);
        (settled, user == RequestUser::Unknown)
    };
    match field.filter(|_| may_ask) {
        Some(field) => Box::pin(checked(connection, field)).await.ok(),
        None => settled,
    }
}

/// Returns true if requests inside a tunnel may need the user. Only the CONNECT can be challenged
/// for a login: inside an intercepted connection the client does not know that it uses a proxy.
fn needs_user_inside(
    connection: &Connection,
    (user, method, authority): (RequestUser<'_>, &Method, &Authority),
    action: AccessAction,
) -> bool {
    if (user, method) != (RequestUser::Unknown, &Method::CONNECT) || action == AccessAction::Tunnel
    {
        return false;
    }
    let live = connection.worker.common.live();
    let interceptor = live.intercept.as_ref();
    interceptor.is_some_and(|it| it.judge(authority).is_ok())
        && connection.access.may_need_user(&live, authority)
}

/// Decision of the rules on a request, by one generation of the settings.
pub(crate) struct Decided {
    action: AccessAction,
    /// Limits of the rule, if there are any: the plan, and the numbers of the limits in it.
    limits: Option<(Arc<LimitPlan>, u64)>,
}

impl Decided {
    /// Returns this action with the limits of both decisions. If the settings were reloaded between
    /// them, the limits of the newer decision, which is `later`, apply if there are any.
    pub(crate) fn with_limits_of(self, later: Self) -> Self {
        let limits = match (self.limits, later.limits) {
            (Some((plan, numbers)), Some((newer, more))) if Arc::ptr_eq(&plan, &newer) => {
                Some((plan, numbers | more))
            }
            (earlier, later) => later.or(earlier),
        };
        Self { limits, ..self }
    }
}

/// Decides about a request, or with the method CONNECT about a tunnel, of a client that cannot be
/// challenged for a login.
///
/// # Errors
/// The client may not make the request.
pub(crate) fn decide_without_login(
    connection: &Connection,
    (method, authority): (&Method, &Authority),
) -> Result<Decided, Failure> {
    let request = (RequestUser::Unknowable, method, authority);
    decide(connection, request)?.map_err(|_| Failure::LoginImpossible)
}

fn decide(
    connection: &Connection,
    (user, method, authority): (RequestUser<'_>, &Method, &Authority),
) -> Result<Result<Decided, UserNeeded>, Failure> {
    let live = connection.worker.common.live();
    let decide = |user| {
        let request = (user, method.as_str(), authority);
        connection.access.permit(&connection.worker, &live, request)
    };
    let decided = decide(user);
    // A client of a diverted connection does not know that it uses a proxy.
    let may_lack_login =
        connection.destination.is_some() && user == RequestUser::Unknowable && live.users.is_some();
    match decided {
        Err(_) if may_lack_login && matches!(decide(RequestUser::Unknown), Ok(Err(_))) => {
            Err(Failure::LoginImpossible)
        }
        decided => Ok(decided?.map(|Decision { action, rule }| {
            let numbers = rule.map_or(0, |rule| live.settings.access.limits(rule));
            let limits = (numbers != 0).then(|| (Arc::clone(&live.limits), numbers));
            Decided { action, limits }
        })),
    }
}

/// Checks the name and password in the field, and returns the user.
async fn checked(connection: &Connection, field: &HeaderValue) -> Result<Arc<str>, Failure> {
    let common = &connection.worker.common;
    let users = common.live().users.clone();
    let login = Login::read(field.as_bytes());
    let (Some(users), Some(login)) = (users, login) else {
        return Err(login_needed(connection));
    };
    let network = connection.allowance.share().network().without_client();
    let from = LoginSource {
        network,
        address: match network {
            Network::Child(_) | Network::ChildClient(..) => network,
            Network::Address(_) => Network::exact(connection.client.ip()),
        },
    };
    let user: Arc<str> = (&*login.user).into();
    match common.user_checks.check(&users, from, login).await {
        Ok(true) => Ok(user),
        Ok(false) => Err(login_needed(connection)),
        Err(Unchecked::TooMany) => Err(Failure::TooManyLogins),
        Err(Unchecked::Broken) => Err(Failure::Internal("a password was not checked")),
    }
}

fn login_needed(connection: &Connection) -> Failure {
    let realm = connection.worker.common.live().realm();
    Failure::LoginNeeded { realm }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_two_decisions_hold_together() {
        let plan = Arc::new(LimitPlan::default());
        let newer = Arc::new(LimitPlan::default());
        let decided = |limits| Decided {
            action: AccessAction::Allow,
            limits,
        };
        let both = |named: Option<(&Arc<LimitPlan>, u64)>,
                    server: Option<(&Arc<LimitPlan>, u64)>| {
            let owned = |(plan, numbers): (&Arc<LimitPlan>, u64)| (Arc::clone(plan), numbers);
            let named = decided(named.map(owned));
            named.with_limits_of(decided(server.map(owned))).limits
        };
        for (named, server, numbers) in [
            (Some((&plan, 1)), Some((&plan, 6)), 7),
            (None, Some((&plan, 2)), 2),
            (Some((&plan, 5)), None, 5),
        ] {
            let (of, together) = both(named, server).expect("there are some");
            assert!(Arc::ptr_eq(&of, &plan) && together == numbers, "{together}");
        }
        assert!(both(None, None).is_none());
        // Numbers of another configuration mean other limits.
        let (of, numbers) = both(Some((&plan, 1)), Some((&newer, 2))).expect("there are some");
        assert!(Arc::ptr_eq(&of, &newer) && numbers == 2, "{numbers}");
    }
}
