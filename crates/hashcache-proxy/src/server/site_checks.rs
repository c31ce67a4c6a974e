//! Health checks for the sites' origins.
//!
//! A task on the first core. Each check is a separate task, so an origin that hangs does not delay
//! other checks; there is at most one check of an origin at a time.
//!
//! Cost: four wake-ups a second with checks, one every five seconds without.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hashcache_base::task::spawn_local;
use hashcache_site::live::LiveSite;
use hashcache_site::spec::HealthCheck;
use hashcache_upstream::{RequestBody, SendOptions};
use http::header::HOST;
use http::{Request, Uri};
use tokio::time::{Instant, sleep, timeout};

use crate::worker::Worker;

/// Time for an origin's next check; `None` while a check is running.
type Due = Rc<Cell<Option<Instant>>>;

/// Checks origins until the core stops.
pub(super) async fn check_origins(worker: Rc<Worker>) {
    let mut due: HashMap<(String, usize), Due> = HashMap::new();
    loop {
        let sites = worker.common.live().sites.all().to_vec();
        let has_checks = sites.iter().any(|site| site.spec.health.is_some());
        sleep(if has_checks { PAUSE } else { PAUSE_WITHOUT }).await;
        let now = Instant::now();
        let mut kept = HashMap::new();
        for site in &sites {
            let Some(check) = &site.spec.health else {
                continue;
            };
            for (n, origin) in site.spec.origins.iter().enumerate() {
                let key = (format!("{} {}", site.spec.name(), origin.url), n);
                let next = due
                    .remove(&key)
                    .unwrap_or_else(|| Rc::new(Cell::new(Some(now))));
                if next.get().is_some_and(|at| at <= now) {
                    next.set(None);
                    let checking = check_one(Rc::clone(&worker), Arc::clone(site), n);
                    let (next, after) = (Rc::clone(&next), check.interval);
                    spawn_local(async move {
                        checking.await;
                        // A random deviation, so that many proxies do not check at the same moment.
                        let after = after.mul_f64(0.9 + 0.2 * fastrand::f64());
                        next.set(Some(now + after));
                    });
                }
                kept.insert(key, next);
            }
        }
        due = kept;
    }
}

async fn check_one(worker: Rc<Worker>, site: Arc<LiveSite>, n: usize) {
    let Some(check) = site.spec.health.clone() else {
        return;
    };
    let is_good = timeout(check.timeout, answers(&worker, &site, n, &check)).await;
    site.note_check(n, is_good.unwrap_or(false));
}

/// Returns true if the origin answers a check with the expected status.
async fn answers(worker: &Worker, site: &LiveSite, n: usize, check: &HealthCheck) -> bool {
    let to = site.endpoint(n);
    let mut request = Request::new(RequestBody::empty());
    let Ok(path) = Uri::try_from(&check.path) else {
        return false;
    };
    *request.uri_mut() = path;
    if let Some(host) = site.check_host(&to) {
        request.headers_mut().insert(HOST, host);
    }
    let options = SendOptions::default();
    let sent = worker.upstream().try_send(&to, request, &options).await;
    sent.is_ok_and(|exchange| exchange.response.status().as_u16() == check.status)
}

const PAUSE: Duration = Duration::from_millis(250);
/// Pause without checks; a reload may add checks.
const PAUSE_WITHOUT: Duration = Duration::from_secs(5);
