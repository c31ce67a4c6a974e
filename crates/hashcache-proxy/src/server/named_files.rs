//! Reads and checks the files that the settings name: certificates, keys, credentials of peers,
//! users, the time zone.
//!
//! Called by `load` at the start, and by `control` for a reload, which applies nothing if a file
//! cannot be read.

use std::sync::Arc;

use hashcache::Cache;
use hashcache_access::users::{UserHashes, UsersError};
use hashcache_base::clock::Clock;
use hashcache_base::clock::zone::Zone;
use hashcache_base::tls::identity::{FOR_FORWARD, FOR_SITES, Identity, IdentityError};
use hashcache_intercept::Interceptor;
use hashcache_link::children::LinkServer;
use hashcache_link::identity::{LinkIdentity, LinkIdentityError};
use hashcache_upstream::peer::{CredentialsError, Peer};
use hashcache_upstream::tls::Trust;

use super::stage::RunError;
use crate::metrics::Metrics;
use crate::route::Routes;
use crate::settings::{Mode, Settings};
use crate::worker::NamedFiles;

/// Reads all files. Peers of `known` with unchanged settings are kept.
///
/// # Errors
/// A file cannot be read, or its content is not valid.
pub(super) fn read(
    settings: &Settings,
    known: &[Arc<Peer>],
    clock: &Arc<Clock>,
    cache: &Cache,
) -> Result<NamedFiles, RunError> {
    let identity = identity(settings, clock)?;
    let intercept = interceptor(settings, clock)?;
    let trust = Trust::load(&settings.reloadable.upstream_ca, Arc::clone(clock))?;
    let link = link_identity(settings)?;
    Ok(NamedFiles {
        identity,
        intercept,
        trust,
        routes: load_routes(settings, known, link.as_ref())?,
        link: link_server(settings, link.as_ref(), clock),
        zone: zone(settings)?,
        users: users(settings, cache)?,
    })
}

/// Returns the routes of `settings`, with the credentials of their peers. A peer of `known` with
/// unchanged settings is kept, and with it the state of its health.
fn load_routes(
    settings: &Settings,
    known: &[Arc<Peer>],
    link: Option<&LinkIdentity>,
) -> Result<Routes, CredentialsError> {
    let peers = settings.reloadable.peers.iter().map(|settings| {
        let peer = settings.load(link)?;
        let same = known.iter().find(|known| ***known == peer).cloned();
        Ok(same.unwrap_or_else(|| Arc::new(peer)))
    });
    Ok(Routes::new(
        peers.collect::<Result<_, _>>()?,
        &settings.reloadable.routes,
        &settings.startup.name,
    ))
}

/// Returns this box's key for links, if it has a link listener or a parent with a pin.
pub(super) fn link_identity(
    settings: &Settings,
) -> Result<Option<LinkIdentity>, LinkIdentityError> {
    let has_parent = settings
        .reloadable
        .peers
        .iter()
        .any(|peer| peer.pin.is_some());
    if settings.startup.link_listen.is_none() && !has_parent {
        return Ok(None);
    }
    LinkIdentity::find(settings.reloadable.link_dir.as_deref()).map(Some)
}

/// Returns the certificates for clients, with the protocols that ALPN offers.
fn identity(settings: &Settings, clock: &Arc<Clock>) -> Result<Option<Identity>, IdentityError> {
    let protocols = match settings.startup.mode {
        Mode::Forward => &FOR_FORWARD[..],
        Mode::Reverse => &FOR_SITES[..],
    };
    Identity::load(&settings.reloadable.tls, protocols, clock)
}

/// Returns the users of the files in `settings`, if there are files.
fn users(settings: &Settings, cache: &Cache) -> Result<Option<Arc<UserHashes>>, UsersError> {
    if settings.reloadable.htpasswd.is_empty() {
        Ok(None)
    } else {
        UserHashes::load(&settings.reloadable.htpasswd, cache)
            .map(Arc::new)
            .map(Some)
    }
}

/// Returns the time zone of the system if a rule has times or a quota has days, otherwise the
/// default.
pub(super) fn zone(settings: &Settings) -> Result<Zone, RunError> {
    if settings.needs_zone() {
        Zone::of_system().map_err(RunError::Zone)
    } else {
        Ok(Zone::default())
    }
}

/// Returns the link server for children, if `settings` has a link listener.
fn link_server(
    settings: &Settings,
    identity: Option<&LinkIdentity>,
    clock: &Arc<Clock>,
) -> Option<Arc<LinkServer>> {
    let identity = identity.filter(|_| settings.startup.link_listen.is_some())?;
    Some(Arc::new(LinkServer {
        config: hashcache_link::tls::of_parent(
            &identity.key,
            &settings.reloadable.link_children,
            clock,
        ),
        children: settings.reloadable.link_children.clone(),
        names: identity.names.clone(),
    }))
}

/// Returns the interceptor for the hosts in `settings`, if interception is on.
pub(super) fn interceptor(
    settings: &Settings,
    clock: &Arc<Clock>,
) -> Result<Option<Arc<Interceptor>>, IdentityError> {
    let intercept = settings.reloadable.intercept.as_ref();
    let made = intercept.map(|intercept| Interceptor::new(intercept, clock).map(Arc::new));
    made.transpose().map_err(IdentityError::Tickets)
}

/// Counts the certificates of `interceptor` in the memory budget, and exports the expiry of its
/// authority.
pub(super) fn account(interceptor: Option<&Interceptor>, cache: &Cache, metrics: &Metrics) {
    let authority = interceptor.map(|it| &it.authority);
    metrics.authority_ends(authority.map(|it| it.not_after_seconds()));
    if let Some(authority) = authority {
        authority.count_in(cache);
    }
}
