//! Per-core state: upstream connections, the access log buffer, and a pointer to the state that all
//! cores share.
//!
//! [`Common`] is shared and never replaced; [`LiveSettings`] is shared and replaced by a reload;
//! each core has a [`Worker`]. `routing` finds the next hops. Made by `server`, once per runtime;
//! used by `request` and `fetch`.
//!
//! Invariant: settings that a reload may change are in [`LiveSettings`], and each request reads
//! them anew.

mod common;
mod live;
mod routing;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use hashcache::{Cache, Reservation};
use hashcache_access::TimedRules;
use hashcache_base::limits::Limits;
use hashcache_http::Authority;
use hashcache_site::encode::EncodeBudget;
use hashcache_store::collapse::WaitTimes;
use hashcache_upstream::Upstream;
use hashcache_wan::pages::Packer;
use hashcache_wire::Ending;

pub(crate) use self::common::Common;
pub(crate) use self::live::{LiveSettings, NamedFiles};
pub(crate) use self::routing::route_request;
use crate::access_log::WorkerLog;
use crate::history::tally::Tally;
use crate::metrics::{Limit, WorkerMetrics};

/// The state of one core.
pub(crate) struct Worker {
    pub(crate) common: Arc<Common>,
    pub(crate) cache: Cache,
    pub(crate) limits: Rc<Limits>,
    pub(crate) log: WorkerLog,
    pub(crate) metrics: Arc<WorkerMetrics>,
    /// Counts that are not yet in the history.
    pub(crate) tally: Rc<Tally>,
    /// Limits the content that this core encodes.
    pub(crate) encode_budget: RefCell<EncodeBudget>,
    /// True while a replaced version is being copied.
    pub(crate) keeps_replaced: Cell<bool>,
    /// Packs text before it is stored, with the memory reserved for it; made at the first use.
    pub(crate) packer: RefCell<Option<(Packer, Reservation)>>,
    upstream: RefCell<(u64, Rc<Upstream>)>,
    timed_rules: RefCell<Option<TimedRulesNow>>,
}

/// The access rules that apply in one minute.
struct TimedRulesNow {
    generation: u64,
    unix_minute: u64,
    rules: Rc<TimedRules>,
}

impl Worker {
    pub(crate) fn new(
        common: Arc<Common>,
        cache: Cache,
        limits: &Limits,
        log: WorkerLog,
        (metrics, tally): (Arc<WorkerMetrics>, Rc<Tally>),
    ) -> Rc<Self> {
        let live = common.live();
        let upstream = (
            live.generation,
            Rc::new(Upstream::new(&live.upstream).within(&cache)),
        );
        drop(live);
        let limits = Rc::new(limits.clone());
        let upstream = RefCell::new(upstream);
        Rc::new(Self {
            common,
            cache,
            limits,
            log,
            metrics,
            tally,
            encode_budget: RefCell::default(),
            keeps_replaced: Cell::new(false),
            packer: RefCell::default(),
            upstream,
            timed_rules: RefCell::default(),
        })
    }

    /// Connections to origins and peers. A reload replaces them, because an [`Upstream`] copies the
    /// settings when it is made.
    pub(crate) fn upstream(&self) -> Rc<Upstream> {
        let live = self.common.live();
        let mut upstream = self.upstream.borrow_mut();
        if upstream.0 != live.generation {
            *upstream = (
                live.generation,
                Rc::new(Upstream::new(&live.upstream).within(&self.cache)),
            );
        }
        Rc::clone(&upstream.1)
    }

    /// The access rules that apply now. If rules have times of the week, they are rebuilt once a
    /// minute.
    pub(crate) fn timed_rules(&self, live: &LiveSettings) -> Rc<TimedRules> {
        let generation = live.generation;
        let unix = if live.settings.access.has_times() {
            self.common.clock.now().seconds()
        } else {
            0
        };
        let unix_minute = unix / 60;
        let mut known = self.timed_rules.borrow_mut();
        let is_now = |known: &&TimedRulesNow| {
            (known.generation, known.unix_minute) == (generation, unix_minute)
        };
        if let Some(known) = known.as_ref().filter(is_now) {
            return Rc::clone(&known.rules);
        }
        let rules = Rc::new(live.rules_at(unix));
        *known = Some(TimedRulesNow {
            generation,
            unix_minute,
            rules: Rc::clone(&rules),
        });
        rules
    }

    /// How long a request to `origin` waits for the fetch of another request for the same key.
    pub(crate) fn wait_times(&self, origin: &Authority) -> WaitTimes {
        let (collapse, wait) = (
            &self.common.collapse,
            self.common.live().settings.collapse_wait,
        );
        collapse.wait_times(origin, wait, self.limits.first_byte_time)
    }

    /// Counts the limit that closed a connection, if a limit did.
    pub(crate) fn count_ending(&self, ending: Ending) {
        let metrics = &self.metrics;
        match ending {
            Ending::Idle => metrics.limit(Limit::IdleTime),
            Ending::SlowHead => metrics.limit(Limit::HeadTime),
            Ending::Flood => metrics.limit(Limit::Frames),
            Ending::NoMemory => metrics.limit(Limit::Memory),
            Ending::SlowWrite => metrics.limit(Limit::ProgressTime),
            Ending::Upgraded | Ending::Closed | Ending::Broken => {}
        }
    }
}
