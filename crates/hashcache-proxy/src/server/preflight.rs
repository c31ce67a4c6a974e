//! Checks before the start: finds every reason that prevents a start and can be known before it.
//!
//! Called by `hashcache-cli`: by `hashcache config check`, and by `hashcache proxy` before it opens
//! its cache. [`super::run`] uses the same functions again, so it fails with the same messages.
//!
//! Invariant: nothing is written, and no client is served.

use std::sync::Arc;

use hashcache_access::lists;
use hashcache_access::users::users_of;
use hashcache_base::clock::Clock;
use hashcache_base::tls::identity::{IdentityError, pair};
use hashcache_upstream::tls::read_authorities;

use super::bind::{listens, socket};
use super::load::pseudonyms;
use super::named_files::{interceptor, link_identity, zone};
use super::stage::RunError;
use super::supervisor::Supervisor;
use super::udp_sockets::Protocol;
use crate::access_log::AccessLogger;
use crate::admin::read_token;
use crate::peers;
use crate::settings::{Listen, Settings};

/// Returns every reason for which [`super::run`] would fail with `settings` and `supervisor`, if it
/// can be known without starting.
///
/// An address in use is not reported: the process that uses it may be the process that is to be
/// restarted with these settings. An address for which the supervisor passes a socket is not
/// reported either: this user may not be able to bind it, for example port 80.
pub fn preflight(settings: &Settings, supervisor: &Supervisor) -> Vec<RunError> {
    let listens = listens(settings);
    let passed = supervisor.sockets.prepare(&listens);
    let own = listens.iter().copied();
    let own = own.filter(|listen| !supervisor.sockets.has(listen.address));
    let listeners = own.map(can_bind);
    let udp = Protocol::ALL.map(|protocol| protocol.address(settings));
    let udp = udp.into_iter().flatten();
    let udp = udp.map(|address| match peers::bind(address) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Ok(()),
        Err(source) => Err(RunError::Listen { address, source }),
        Ok(_bound) => Ok(()),
    });
    let log = AccessLogger::check(settings).map_err(|source| RunError::AccessLog {
        place: settings.startup.access_log.to_string(),
        source,
    });
    let certificates = settings
        .reloadable
        .tls
        .iter()
        .map(|it| Ok(pair(it).map(drop)?));
    let intercept = interceptor(settings, &Arc::new(Clock::start(None)));
    let authorities = settings.reloadable.upstream_ca.iter();
    let authorities = authorities.map(|path| Ok(read_authorities(path).map(drop)?));
    let token = settings.startup.admin_token_file.as_ref().map(|path| {
        read_token(path).map(drop).map_err(|source| {
            let path = path.clone();
            RunError::Token { path, source }
        })
    });
    let identity = link_identity(settings);
    let link = identity.as_ref().ok().and_then(Option::as_ref);
    // Without a key for links, report only the missing key, and not each parent with a pin.
    let without = identity.is_err();
    let peers = settings.reloadable.peers.iter();
    let peers = peers.filter(|peer| peer.pin.is_none() || !without);
    let peers: Vec<Result<(), RunError>> =
        peers.map(|peer| Ok(peer.load(link).map(drop)?)).collect();
    [pseudonyms(&settings.startup.name).map(drop)]
        .into_iter()
        .chain([passed])
        .chain(listeners)
        .chain(udp)
        .chain([log])
        .chain(certificates)
        .chain([intercept.map(drop).map_err(IdentityError::into)])
        .chain(authorities)
        .chain(peers)
        .chain([identity.map(drop).map_err(RunError::from)])
        .chain(
            settings
                .reloadable
                .htpasswd
                .iter()
                .map(|path| Ok(users_of(path).map(drop)?)),
        )
        .chain([zone(settings).map(drop)])
        .chain(lists::check(&settings.reloadable.lists).map(|error| Err(error.into())))
        .chain(token)
        .filter_map(Result::err)
        .collect()
}

/// Checks that this user may listen on the address of `listen`. The socket does not listen, so no
/// client can connect, and a proxy that starts at this moment can still bind the address.
fn can_bind(listen: Listen) -> Result<(), RunError> {
    let address = listen.address;
    match socket(listen) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Ok(()),
        Err(source) => Err(RunError::Listen { address, source }),
        Ok(_bound) => Ok(()),
    }
}
