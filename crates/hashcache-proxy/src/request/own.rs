//! Responses of the proxy itself: the front page on a forward listener, `/proxy.pac`, `OPTIONS *`.

use bytes::Bytes;
use hashcache_access::RequestUser;
use hashcache_access::quota::Sender;
use hashcache_base::failure::Failure;
use hashcache_http::{Authority, Host, Scheme, Target};
use hashcache_site::mirror::Mirror;
use hashcache_wire::ClientBody;
use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};

use super::body::Body;
use super::transaction::Answer;
use crate::access_log::Outcome;
use crate::connection::Connection;
use crate::log_entry::LogEntryBuilder;
use crate::page::{self, CaPage, Landing, PageReader, QuotaPage};
use crate::permission::{LoginField, known_user};

/// The page at a path of this proxy.
pub(super) fn page(
    connection: &Connection,
    request: &Request<ClientBody>,
    target: &Target,
    log_entry: &mut LogEntryBuilder,
) -> Answer {
    log_entry.set_outcome(Outcome::Own);
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(not_allowed());
    }
    let common = &connection.worker.common;
    // A client that searches for a proxy may name a host that is not this proxy. The address that
    // the client connected to is certainly right, so the page shows that address.
    let authority = if common.is_us(&target.authority) {
        target.authority.clone()
    } else {
        local(connection)
    };
    let url = common.base(&authority, connection.scheme);
    let live = common.live();
    if is_pac(target) {
        return Ok(page::pac(&url, &live.settings.pac_proxies, live.settings.fail).map(Body::full));
    }
    let reader = PageReader::from_request(request.headers());
    let interceptor = live.intercept.as_deref();
    if let Some(interceptor) = interceptor {
        let wanted = CaPage {
            authority: &interceptor.authority,
            url: &url,
            reader,
        };
        if let Some(page) = page::ca(target.path(), &wanted) {
            return Ok(page.map(Body::full));
        }
    }
    if target.path() != "/" {
        let reason = "this proxy has no page of this name";
        return Err(Failure::Refused {
            status: StatusCode::NOT_FOUND,
            reason,
        });
    }
    let mirrors: Vec<&Mirror> = live.mirrors.iter().collect();
    let landing = Landing {
        name: common.name.as_str(),
        url: &url,
        mirrors: &mirrors,
        requests: common.exposition.requests(),
        engine: common.exposition.engine(),
        intercepts: interceptor.is_some(),
        reader,
    };
    Ok(page::landing(&landing).map(Body::full))
}

/// Returns true if the target is the quota page, which shows a person the rest of the quotas: at
/// the host `proxy`, which is requested through this proxy, or at an address of the proxy.
pub(super) fn is_quota(connection: &Connection, target: &Target) -> bool {
    let common = &connection.worker.common;
    let Authority { host, port } = &target.authority;
    let is_named = || {
        target.scheme == Scheme::Http
            && *port == Scheme::Http.default_port()
            && matches!(host, Host::Name(name) if &**name == QUOTA_HOST)
    };
    target.path() == "/quota"
        && !common.live().limits.limits.is_empty()
        && (is_named() || common.is_us(&target.authority))
}

/// The quota page, which shows a person the rest of the quotas. A login is used if present, but
/// there is no login challenge.
pub(super) async fn quota(
    connection: &Connection,
    request: &Request<ClientBody>,
    login: LoginField,
    log_entry: &mut LogEntryBuilder,
) -> Answer {
    log_entry.set_outcome(Outcome::Own);
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(not_allowed());
    }
    let login = match login {
        LoginField::Asked(field) => field,
        LoginField::NotAsked => None,
    };
    let reader = PageReader::from_request(request.headers());
    let user = known_user(connection, login.as_ref()).await;
    let common = &connection.worker.common;
    let live = common.live();
    let known = user.as_deref();
    let numbers = connection.access.limits_of(
        &live,
        known.map_or(RequestUser::Unknowable, RequestUser::Known),
    );
    let sender = Sender {
        client: connection.allowance.share().network().without_client(),
        user: known,
    };
    let standings = common.limiter.standings(&live.limits, numbers, sender);
    let shown = QuotaPage {
        user: known,
        standings: &standings,
        contact: live.limits.contact.as_deref(),
        reader,
    };
    let page = page::quota(&shown);
    log_entry.set_user(user);
    Ok(page.map(Body::full))
}

/// The host of the quota page, for requests through this proxy.
const QUOTA_HOST: &str = "proxy";

/// The answer to any request for the self-test host. Over https only a client that trusts our
/// certificate authority gets it.
pub(super) fn self_test(log_entry: &mut LogEntryBuilder) -> Response<Body> {
    log_entry.set_outcome(Outcome::Own);
    let mut response = text(StatusCode::OK, Bytes::from_static(b"trusted\n"));
    let fields = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, "text/plain; charset=utf-8"),
        // The proxy's own pages fetch it, and the proxy may be known by any name.
        (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (CACHE_CONTROL, "no-store"),
    ] {
        fields.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Returns true if browsers look for proxy settings at this path.
pub(super) fn is_pac(target: &Target) -> bool {
    matches!(target.path(), "/proxy.pac" | "/wpad.dat")
}

/// The address of the proxy on the client connection.
fn local(connection: &Connection) -> Authority {
    Authority::from(connection.local)
}

/// A page that a gateway serves without an upstream server.
pub(super) fn of_gateway(page: Response<Bytes>, log_entry: &mut LogEntryBuilder) -> Response<Body> {
    log_entry.set_outcome(Outcome::Own);
    page.map(Body::full)
}

/// The response to an `OPTIONS` request that is not forwarded.
pub(super) fn options(log_entry: &mut LogEntryBuilder) -> Response<Body> {
    log_entry.set_outcome(Outcome::Own);
    let mut response = text(StatusCode::OK, Bytes::new());
    response.headers_mut().insert(
        ALLOW,
        HeaderValue::from_static("GET, HEAD, OPTIONS, CONNECT"),
    );
    response
}

pub(super) fn not_allowed() -> Response<Body> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, Bytes::new());
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// A response of the proxy itself with this content.
pub(super) fn text(status: StatusCode, content: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::full(content));
    *response.status_mut() = status;
    response
}
