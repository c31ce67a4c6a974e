//! Everything that keeps a proxy from starting and can be known before it starts.
//!
//! Called by `hashcache-cli`: by `hashcache config check`, and by `hashcache proxy` before it opens
//! its cache. [`super::run`] uses the same functions again, so what is refused here is refused
//! there with the same words.
//!
//! Invariant: nothing is written, and nobody is served.

use std::net::SocketAddr;
use std::sync::Arc;

use super::control::interceptor;
use super::stage::RunError;
use super::{pseudonyms, socket};
use crate::access_log::AccessLogger;
use crate::admin::read_token;
use crate::clock::Clock;
use crate::settings::Settings;
use crate::tls::identity::{IdentityError, pair};
use crate::upstream::tls::read_authorities;

/// Every reason for which [`super::run`] would fail with `settings` that can be known without
/// starting.
///
/// An address that is in use is no such reason: the process that uses it may be the one that is to
/// be restarted with these settings.
pub fn preflight(settings: &Settings) -> Vec<RunError> {
    let listen = settings.listen.iter().map(|listen| listen.address);
    let listeners = listen.chain(settings.admin).map(can_bind);
    let log = AccessLogger::check(settings).map_err(|source| RunError::AccessLog {
        place: settings.access_log.to_string(),
        source,
    });
    let certificates = settings.tls.iter().map(|it| Ok(pair(it).map(drop)?));
    let intercept = interceptor(settings, &Arc::new(Clock::start(None)));
    let authorities = settings.upstream_ca.iter();
    let authorities = authorities.map(|path| Ok(read_authorities(path).map(drop)?));
    let token = settings.admin_token_file.as_ref().map(|path| {
        read_token(path).map(drop).map_err(|source| {
            let path = path.clone();
            RunError::Token { path, source }
        })
    });
    [pseudonyms(&settings.name).map(drop)]
        .into_iter()
        .chain(listeners)
        .chain([log])
        .chain(certificates)
        .chain([intercept.map(drop).map_err(IdentityError::into)])
        .chain(authorities)
        .chain(token)
        .filter_map(Result::err)
        .collect()
}

/// Whether `address` is one of this machine that this user may listen on. No client can connect
/// meanwhile, and a proxy that starts just now is not kept from it.
fn can_bind(address: SocketAddr) -> Result<(), RunError> {
    match socket(address) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Ok(()),
        Err(source) => Err(RunError::Listen { address, source }),
        Ok(_bound) => Ok(()),
    }
}
