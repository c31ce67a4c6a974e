//! Page groups through the whole proxy, on a modelled hard disk: the objects of a page are read
//! together, whichever clients fetched other objects in between. Seeks are counted; no time is
//! measured.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, mpsc};

use hashcache::device::{DiskModel, MemoryDevice, Pace, ThrottleDevice};
use hashcache::{Cache, Config, Placement};
use hashcache_http::{Seconds, host_part};
use hashcache_proxy::{
    GroupBy, Listening, Reloadable, ReloadedSettings, Settings, Startup, StateFiles, Supervisor,
};
use hashcache_testkit::{BodyEnd, Client, Origin, RawRequest, Script, content};

const PAGES: u64 = 150;
const OBJECTS: u64 = 13;
const CLIENTS: usize = 8;
/// Number of page visits after all pages were visited once.
const VISITS: u64 = 150;

/// The path of a page's text (object 0) or of one of its objects: 2 to 14 KiB each.
fn path(page: u64, object: u64) -> String {
    match object {
        0 => format!("/page/{page}"),
        _ => format!("/part/{page}/{object}"),
    }
}

fn body(path: &str) -> Vec<u8> {
    let seed: u64 = path.bytes().map(u64::from).sum::<u64>() * 7_919;
    content::body_for(1, path, 1, 2_048 + seed % 12_288).bytes()
}

async fn origin() -> Origin {
    let origin = Origin::start(|request: &RawRequest| {
        let kind = if request.target().starts_with("/page/") {
            "text/html"
        } else {
            "image/png"
        };
        let fields = [("Content-Type", kind), ("Cache-Control", "max-age=86400")];
        Script::response(200, &fields, body(request.target()))
    });
    origin.await.expect("a free port")
}

/// Starts a proxy on a thread of its own, which runs until the tests end.
pub fn start(cache: &Cache) -> SocketAddr {
    let settings = Settings {
        startup: Startup {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()],
            name: "hashcache".into(),
            group_by: Some(GroupBy::Page),
            workers: 2,
            ..Startup::default()
        },
        reloadable: Reloadable {
            allow_destination: vec!["127.0.0.0/8".parse().expect("a prefix")],
            allow_port: vec![hashcache_proxy::ConnectPort::new(1..=u16::MAX)],
            negative_lifetime: Seconds::new(60),
            unreachable_lifetime: std::time::Duration::from_secs(10),
            max_object_size: 1 << 20,
            summary_permille: 10,
            ..Reloadable::default()
        },
    };
    let (said, says) = mpsc::channel();
    let (cache, again) = (cache.clone(), settings.clone());
    std::thread::spawn(move || {
        let listening = |bound: &Listening| said.send(bound.clients[0]).expect("it is waited for");
        let (state, supervisor) = (StateFiles::default(), Supervisor::default());
        hashcache_proxy::run(settings, cache, state, supervisor, listening, || {
            Ok::<_, std::convert::Infallible>(ReloadedSettings {
                settings: again.clone(),
                restart: Vec::new(),
            })
        })
    });
    says.recv().expect("the proxy starts")
}

/// A client that visits one page after another.
struct Browser {
    connection: Client,
    page: u64,
    next: u64,
}

impl Browser {
    /// Requests the next object of its page, as a browser does.
    async fn step(&mut self, origin: &Origin) {
        let path = path(self.page, self.next);
        let (url, page) = (origin.url(&path), origin.url(&self::path(self.page, 0)));
        let fields = match self.next {
            0 => [("Accept", "text/html,*/*;q=0.8"), ("X-Referer", "")],
            _ => [("Accept", "image/*"), ("Referer", &*page)],
        };
        let response = self.connection.get(&url, &fields).await;
        let response = response.expect("the proxy answers");
        assert_eq!((response.status, response.end), (200, BodyEnd::Complete));
        assert!(response.body == body(&path), "{path}");
        self.next += 1;
    }
}

fn disk() -> Arc<ThrottleDevice> {
    let contents = Arc::new(MemoryDevice::new(96 << 20));
    let model = DiskModel::HDD_7200;
    Arc::new(ThrottleDevice::new(contents, model, Pace::Modelled, 1))
}

/// Nothing is written before it is asked for.
fn without_delays(config: Config) -> Config {
    let hour = std::time::Duration::from_secs(3600);
    Config {
        segment_bytes: Some(4 << 20),
        batch_delay: hour,
        sync_interval: hour,
        open_patience: hour,
        ..config
    }
}

/// Seeks per request, for pages that eight clients in turn had stored.
async fn seeks(origin: &Origin, grouped: bool) -> f64 {
    let device = disk();
    let config = Config {
        grouped,
        memory_bytes: 14 << 20,
        ..Config::on_device(device.clone())
    };
    let config = without_delays(config);
    let cache = Cache::open(config).expect("a store that can be opened");
    let proxy = start(&cache);
    let mut browsers = Vec::new();
    for _ in 0..CLIENTS {
        browsers.push(Browser {
            connection: Client::connect(proxy).await.expect("the proxy answers"),
            page: 0,
            next: OBJECTS,
        });
    }
    let (mut begun, mut requests, mut before) = (0u64, 0u64, None);
    while begun < PAGES + VISITS {
        for browser in &mut browsers {
            if browser.next == OBJECTS {
                // Each page once, then some pages more often than others.
                let some = (begun * 61 % 100).pow(2) * PAGES / 10_000;
                (browser.page, browser.next) = (if begun < PAGES { begun } else { some }, 0);
                begun += 1;
                if begun.is_multiple_of(4 * CLIENTS as u64) {
                    assert!(cache.flush().await);
                }
                if begun == PAGES + CLIENTS as u64 {
                    (requests, before) = (0, Some(device.figures().seeks));
                }
            }
            browser.step(origin).await;
            requests += 1;
        }
    }
    let seeks = device.figures().seeks - before.expect("all pages were stored");
    seeks as f64 / requests as f64
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_cost_less_than_0_45_of_the_seeks_when_the_proxy_names_them() {
    let origin = origin().await;
    let alone = seeks(&origin, false).await;
    let together = seeks(&origin, true).await;
    println!("seeks a request: {alone:.3} alone, {together:.3} together");
    assert!(alone > 0.2, "memory holds nearly all: {alone:.3}");
    assert!(together <= 0.45 * alone, "{together:.3} of {alone:.3}");
    // Both proxies fetched each object at most once, and no object twice for one page.
    assert!(origin.request_count() as u64 <= 2 * PAGES * OBJECTS * 11 / 10);
}

/// Bytes that two disks have written when pages of one host are stored, the lower number first.
async fn written(origin: &Origin, placement: Placement) -> [u64; 2] {
    let disks = [disk(), disk()];
    let config = Config {
        grouped: true,
        placement,
        memory_bytes: 28 << 20,
        ..Config::on_devices(vec![disks[0].clone(), disks[1].clone()])
    };
    let cache = Cache::open(without_delays(config)).expect("a store that can be opened");
    let before = disks.each_ref().map(|disk| disk.figures().written_bytes);
    let mut browser = Browser {
        connection: Client::connect(start(&cache))
            .await
            .expect("the proxy answers"),
        page: 0,
        next: 0,
    };
    for page in 0..20 {
        (browser.page, browser.next) = (page, 0);
        while browser.next < OBJECTS {
            browser.step(origin).await;
        }
    }
    assert!(cache.flush().await);
    let after = disks.each_ref().map(|disk| disk.figures().written_bytes);
    let mut written = [after[0] - before[0], after[1] - before[1]];
    written.sort_unstable();
    written
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_host_has_lies_on_one_disk_if_the_host_chooses_the_disk() {
    let origin = origin().await;
    let [less, more] = written(&origin, Placement::NAME).await;
    assert!(less > more / 2, "by name: {less} and {more}");
    let by_host = Placement::new(NonZeroU32::MIN, host_part);
    let [less, more] = written(&origin, by_host).await;
    assert!(less < more / 10, "by host: {less} and {more}");
}
