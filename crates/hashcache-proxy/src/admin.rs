//! The admin listener: metrics, health and figures, for operators and their monitoring.
//!
//! Started by `server` on a bound listener, by default on loopback. Read-only: `/`, `/metrics`,
//! `/stats`, `/-/links`, `/-/healthy`, `/-/ready` and `/-/offline`. `/dashboard` and `/-/view` name
//! sites and clients, so other machines need the token. `/-/explain` needs the token from other
//! machines, and from this machine if a token is configured. `/-/list` and `POST` to `/-/purge` and
//! `/-/offline` always need the token.
//!
//! Invariants: a page of a foreign site cannot read these pages through a browser on this machine
//! (DNS rebinding), because Host must be a loopback name, a loopback address or the address of the
//! connection. The number of connections is limited, and each closes within a minute.

mod access;
mod answer;
mod body;
mod offline;
mod purge;
mod token;
mod views;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hashcache_base::frame::document;
use hashcache_store::purge::Purger;
use hashcache_upstream::offline::Line;
use http::{HeaderValue, Method, Response, StatusCode, Version, header};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use self::answer::{plain, typed};
use self::body::AdminBody;
use self::offline::Switch;
use self::purge::{Purges, SitesView};
use self::token::Token;
pub(crate) use self::token::read_token;
use self::views::Views;
use crate::dashboard::{self, Dashboard};
use crate::explain::Explainer;
use crate::inventory::Inventory;
use crate::metrics::{Detail, Exposition};
use crate::page::{self, PageReader};

/// Admin listener state.
#[derive(Debug)]
pub(crate) struct Admin {
    exposition: Exposition,
    draining: AtomicBool,
    purges: Option<Purges>,
    switch: Switch,
    token: Token,
    dashboard: Arc<Dashboard>,
    views: Option<Views>,
}

impl Admin {
    /// Creates the listener with these figures, the dashboard, and changes for clients with the
    /// token in `token_file`.
    pub(crate) fn new(
        (exposition, dashboard): (Exposition, Arc<Dashboard>),
        line: Arc<Line>,
        purger: Purger,
        sites: SitesView,
        token_file: Option<PathBuf>,
        (explainer, inventory): (Explainer, Inventory),
    ) -> Arc<Self> {
        let token = Token::new(token_file);
        Arc::new(Self {
            purges: Some(Purges {
                purger,
                sites,
                token: token.clone(),
            }),
            views: Some(Views {
                explainer,
                inventory,
                token: token.clone(),
            }),
            switch: Switch {
                line,
                token: token.clone(),
            },
            token,
            ..Self::with_dashboard(exposition, dashboard)
        })
    }

    fn with_dashboard(exposition: Exposition, dashboard: Arc<Dashboard>) -> Self {
        Self {
            exposition,
            draining: AtomicBool::new(false),
            purges: None,
            switch: Switch {
                line: Arc::default(),
                token: Token::new(None),
            },
            token: Token::new(None),
            dashboard,
            views: None,
        }
    }

    /// Makes `/-/ready` fail, because the process is about to stop.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Serves `listener` until dropped; the connections are closed then.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) -> Infallible {
        let mut connections = JoinSet::new();
        let mut open: Vec<OpenConnection> = Vec::new();
        loop {
            match listener.accept().await {
                Ok((stream, client)) => {
                    while connections.try_join_next().is_some() {}
                    open.retain(|it| !it.task.is_finished());
                    // At the limit, close the connection that was quiet for the longest time,
                    // because idle connections must not keep a monitor waiting.
                    let quiet = (0..open.len()).min_by_key(|at| open[*at].active());
                    let quiet = quiet.filter(|at| {
                        let long = open[*at].active().elapsed() >= QUIET_TIME;
                        open.len() >= CONNECTIONS_MAX || (open.len() >= CONNECTIONS && long)
                    });
                    if let Some(quiet) = quiet {
                        open.swap_remove(quiet).task.abort();
                    }
                    let active = Arc::new(Mutex::new(Instant::now()));
                    let connection = Arc::clone(&self);
                    let connection =
                        connection.connection(stream, client.ip(), Arc::clone(&active));
                    let task = connections.spawn(connection);
                    open.push(OpenConnection { task, active });
                }
                // Out of descriptors, or the client has already left: an immediate retry would
                // spin.
                Err(error) => {
                    tracing::debug!(%error, "cannot accept an admin connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        client: IpAddr,
        active: Arc<Mutex<Instant>>,
    ) {
        let Ok(local) = stream.local_addr() else {
            return;
        };
        let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
            let (head, body) = request.into_parts();
            let admin = Arc::clone(&self);
            *active.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            async move {
                let response = match admin.refusal(&head, local) {
                    Some(refusal) => refusal,
                    None if head.method == Method::POST => admin.change(&head, body, client).await,
                    None if head.uri.path() == EVENTS => {
                        return Ok::<_, Infallible>(admin.events(&head, client));
                    }
                    None => match admin.view(&head, client).await {
                        Some(view) => view,
                        None => admin.answer(&head, client),
                    },
                };
                Ok(response.map(AdminBody::from))
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .max_headers(HEAD_FIELDS)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        // The client has left, or the time is over; nobody needs the error.
        let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
    }

    /// Refuses a request that reached our address `local` but names another host.
    fn refusal(&self, head: &http::request::Parts, local: SocketAddr) -> Option<Response<Bytes>> {
        match authority(head) {
            RequestAuthority::Named(authority) if is_ours(authority, local.ip()) => None,
            // Browsers do not send HTTP/1.0, but some health checks do, without Host.
            RequestAuthority::Missing if head.version == Version::HTTP_10 => None,
            RequestAuthority::Named(_) => Some(plain(
                StatusCode::MISDIRECTED_REQUEST,
                format!(
                    "this is the admin listener; use the host localhost or {}\n",
                    local.ip()
                ),
            )),
            RequestAuthority::Missing | RequestAuthority::Malformed => Some(plain(
                StatusCode::BAD_REQUEST,
                "the request needs exactly one Host field\n".to_owned(),
            )),
        }
    }

    /// Returns the response to a request for a change, from the client at `client`.
    async fn change(
        &self,
        head: &http::request::Parts,
        body: hyper::body::Incoming,
        client: IpAddr,
    ) -> Response<Bytes> {
        match (head.uri.path(), &self.purges) {
            (purge::PATH, Some(purges)) => purges.answer(&head.headers, body).await,
            (offline::PATH, _) => self.switch.answer(&head.headers, body).await,
            _ => self.answer(head, client),
        }
    }

    /// Returns the response to an explain or list request, or `None` for another path.
    async fn view(&self, head: &http::request::Parts, client: IpAddr) -> Option<Response<Bytes>> {
        self.views.as_ref()?.answer(head, client).await
    }

    /// Returns the response to a request for a page, from the client at `client`.
    fn answer(&self, head: &http::request::Parts, client: IpAddr) -> Response<Bytes> {
        if head.method != Method::GET && head.method != Method::HEAD {
            return not_allowed("GET, HEAD");
        }
        // Only clients that may see the dashboard get names.
        let detail = || match self.dashboard_refusal(head, client) {
            None => Detail::Names,
            Some(_) => Detail::Figures,
        };
        match head.uri.path() {
            "/" => index(PageReader::from_request(&head.headers)),
            "/metrics" => self.metrics(),
            PAGE | SCRIPT | STYLE | VIEW => self.dashboard(head, client),
            LINKS => json_page(StatusCode::OK, &self.exposition.links(detail())),
            "/stats" => json_page(StatusCode::OK, &self.exposition.stats(detail())),
            "/-/healthy" => plain(StatusCode::OK, "ok\n".to_owned()),
            "/-/ready" => self.ready(),
            offline::PATH => json_page(StatusCode::OK, &offline::state(&self.switch.line)),
            purge::PATH => not_allowed("POST"),
            // `view` has already answered a GET.
            views::EXPLAIN | views::LIST => not_allowed("GET"),
            _ => plain(StatusCode::NOT_FOUND, "no such page; see /\n".to_owned()),
        }
    }

    /// Returns a page or the figures of the dashboard, for the client at `client`.
    fn dashboard(&self, head: &http::request::Parts, client: IpAddr) -> Response<Bytes> {
        if let Some(refusal) = self.dashboard_refusal(head, client) {
            return refusal;
        }
        match head.uri.path() {
            VIEW => json_page(StatusCode::OK, &self.dashboard.json()),
            SCRIPT => dashboard::script(),
            STYLE => dashboard::style(),
            _ => self.dashboard.page(),
        }
    }

    /// Returns the stream with the dashboard's figures.
    fn events(&self, head: &http::request::Parts, client: IpAddr) -> Response<AdminBody> {
        let refusal = match head.method {
            Method::GET => self.dashboard_refusal(head, client),
            _ => Some(not_allowed("GET")),
        };
        if let Some(refusal) = refusal {
            return refusal.map(AdminBody::from);
        }
        match self.dashboard.events() {
            Some(events) => dashboard::events_head(AdminBody::Events(events)),
            None => dashboard::too_many().map(AdminBody::from),
        }
    }

    fn dashboard_refusal(
        &self,
        head: &http::request::Parts,
        client: IpAddr,
    ) -> Option<Response<Bytes>> {
        access::dashboard_refusal(&head.headers, client, &self.token)
    }

    fn metrics(&self) -> Response<Bytes> {
        let Ok(text) = self.exposition.openmetrics() else {
            return plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "metrics not encoded\n".to_owned(),
            );
        };
        typed(StatusCode::OK, OPENMETRICS, text)
    }

    /// Ready even without a store, because the proxy still forwards requests.
    fn ready(&self) -> Response<Bytes> {
        let draining = self.draining.load(Relaxed);
        let status = if draining {
            StatusCode::SERVICE_UNAVAILABLE
        } else {
            StatusCode::OK
        };
        let clock = if self.exposition.clock_suspect() {
            "suspect"
        } else {
            "ok"
        };
        let state = json!({
            "ready": !draining,
            "draining": draining,
            "store": self.exposition.engine().store.word(),
            "clock": clock,
        });
        json_page(status, &state)
    }
}

/// An open connection.
struct OpenConnection {
    task: AbortHandle,
    /// Time when it was accepted, or last had a request.
    active: Arc<Mutex<Instant>>,
}

impl OpenConnection {
    fn active(&self) -> Instant {
        *self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request's authority.
enum RequestAuthority<'a> {
    Named(&'a str),
    Missing,
    Malformed,
}

/// Returns the authority of a request. The authority in the target takes precedence over Host;
/// several Host fields are malformed.
fn authority(head: &http::request::Parts) -> RequestAuthority<'_> {
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (None, _) => return RequestAuthority::Missing,
        (Some(_), Some(_)) => return RequestAuthority::Malformed,
        (Some(host), None) => host,
    };
    match (head.uri.authority(), host.to_str()) {
        // Refused because of the user name, also if the target has our authority.
        (_, Ok(host)) if host.contains('@') => RequestAuthority::Named(host),
        (Some(authority), _) => RequestAuthority::Named(authority.as_str()),
        (None, Ok(host)) => RequestAuthority::Named(host),
        (None, Err(_)) => RequestAuthority::Malformed,
    }
}

/// Returns true if an authority means this machine. The port is ignored: it differs behind a port
/// mapping, and a foreign page cannot choose its host name by the port.
fn is_ours(authority: &str, local: IpAddr) -> bool {
    let in_brackets = authority
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'));
    let (host, rest) = match in_brackets {
        Some(split) => split,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    // Only a port may follow: in `localhost:80@evil.test`, the host is `evil.test`.
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if !rest.is_empty() && !rest.strip_prefix(':').is_some_and(is_port) {
        return false;
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        let address = address.to_canonical();
        return address.is_loopback() || address == local.to_canonical();
    }
    // All of `.localhost` is loopback (RFC 6761, 6.3), and browsers do not look it up in DNS.
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

fn index(reader: PageReader) -> Response<Bytes> {
    let body = match reader {
        PageReader::Browser => {
            let rows: String = PATHS
                .iter()
                .map(|(path, what)| format!("<dt><a href=\"{path}\">{path}</a><dd>{what}"))
                .collect();
            document("HashCache admin", &format!("<dl class=words>{rows}</dl>"))
        }
        PageReader::Program => PATHS
            .iter()
            .map(|(path, what)| format!("{path}\t{what}\n"))
            .collect(),
    };
    page::page(StatusCode::OK, reader, body)
}

fn not_allowed(methods: &'static str) -> Response<Bytes> {
    let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, format!("{methods}\n"));
    let allow = HeaderValue::from_static(methods);
    response.headers_mut().insert(header::ALLOW, allow);
    response
}

fn json_page(status: StatusCode, value: &serde_json::Value) -> Response<Bytes> {
    typed(status, "application/json", format!("{value}\n"))
}

const PAGE: &str = "/dashboard";
const SCRIPT: &str = "/dashboard.js";
const STYLE: &str = "/dashboard.css";
const EVENTS: &str = "/-/events";
/// Path that `hashcache top` reads: the dashboard's figures.
const VIEW: &str = "/-/view";
/// Path that `hashcache link status` reads.
const LINKS: &str = "/-/links";
const PATHS: [(&str, &str); 11] = [
    (PAGE, "what the proxy does and saves, by site and client"),
    ("/metrics", "metrics for Prometheus (OpenMetrics)"),
    ("/stats", "the main metrics as JSON"),
    ("/-/healthy", "health: 200 if the process answers"),
    (
        "/-/ready",
        "readiness, and the state of the cache and the clock",
    ),
    (VIEW, "the figures of the dashboard as JSON"),
    (LINKS, "links to parents and from children, as JSON"),
    (
        offline::PATH,
        "whether the line counts as down; POST a mode as JSON, with the token",
    ),
    (
        "/-/explain?url=http://example.org/",
        "what would happen to a request for this URL, as JSON",
    ),
    ("/-/list", "what is stored, as JSON, with the token"),
    ("/-/purge", "POST a purge as JSON, with the token"),
];
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Number of connections that are always kept. If there are more, the quietest connection is closed
/// if it was quiet for [`QUIET_TIME`], and at the maximum in any case.
const CONNECTIONS: usize = 32;
const CONNECTIONS_MAX: usize = 256;
const QUIET_TIME: Duration = Duration::from_secs(1);
const HEAD_FIELDS: usize = 64;
/// Minimum that hyper allows.
const HEAD_BYTES: usize = 8 << 10;
const HEAD_TIME: Duration = Duration::from_secs(5);
const CONNECTION_TIME: Duration = Duration::from_secs(60);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
