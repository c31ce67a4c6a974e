//! `cargo bench -p hashcache --bench device -- …`: how fast the engine reads and writes a device.
//!
//! For `cargo campaign device-speed`, which compares it with fio. `fill PATH BYTES` makes a store
//! and fills its log; `read PATH threads|uring DEPTH SECONDS` reads its objects at random, one of
//! them after another in each of DEPTH places at once, and `read PATH callers DEPTH SECONDS` in
//! DEPTH threads that wait for their answers; `write PATH threads|uring SECONDS` puts objects one
//! after another. Each prints one line of JSON, with what the engine's own counters
//! say of the device: nothing is hot, so each answer is one read of [`RECORD_BYTES`].
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a bench reads a clock, and is over when something fails"
)]

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use hashcache::{Cache, Config, Hit, Io, Lookup, PendingLookup, Put, PutError, Stats};
use rustix::time::{ClockId, clock_gettime};

/// Size of a record on disk: as much as one read brings, and as fio reads at once.
const RECORD_BYTES: u64 = 16 << 10;
/// Of which so much is content: the rest is header, name and checksums.
const CONTENT_BYTES: usize = (16 << 10) - 320;
/// Share of the log that is filled, in 1/100: all of it is found.
const FILLED: u64 = 80;

fn config(path: &str) -> Config {
    Config {
        // Enough for the next batch to be put together while one is written.
        memory_bytes: 256 << 20,
        // The device must give each answer.
        hot_bytes_max: 0,
        object_bytes: u32::try_from(RECORD_BYTES).unwrap(),
        open_patience: Duration::from_secs(60),
        ..Config::new(path)
    }
}

fn io(word: &str) -> Io {
    match word {
        // Callers that wait read by themselves.
        "threads" | "callers" => Io::Threads,
        "uring" => Io::Uring,
        other => panic!("{other}"),
    }
}

fn name(n: u64) -> String {
    format!("http://example.org/{n:016}")
}

/// Bytes that no disk or file system makes smaller.
fn content(n: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(n);
    let mut content = vec![0; CONTENT_BYTES];
    random.fill(&mut content);
    content
}

/// Objects that a store of this size is filled with.
fn objects(stats: &Stats) -> u64 {
    stats.log_bytes / 100 * FILLED / RECORD_BYTES
}

/// Names of those that are there still: some rows of the index are full before the log is.
fn stored(cache: &Cache) -> Vec<String> {
    let mut names: Vec<String> = (0..objects(&cache.stats())).map(name).collect();
    names.retain(|name| cache.contains_hint(name.as_bytes()));
    names
}

/// Puts an object, when there is memory for it.
fn put(cache: &Cache, name: &str, content: &[u8]) {
    let mut writer = loop {
        let put = Put {
            length: Some(content.len() as u64),
            ..Put::metadata("")
        };
        match cache.intend(name.as_bytes()).unwrap().writer(put) {
            Ok(writer) => break writer,
            // The pending writes that take the memory take much longer than this.
            Err(PutError::Full) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    };
    loop {
        match writer.write(content) {
            Ok(()) => break,
            Err(PutError::Full) => block_on(writer.released()),
            Err(error) => panic!("{error}"),
        }
    }
    writer.commit().unwrap();
}

fn fill(path: &str, bytes: u64) {
    let _ = std::fs::remove_file(path);
    let cache = Cache::open(Config {
        size_bytes: Some(bytes),
        ..config(path)
    })
    .unwrap();
    let objects = objects(&cache.stats());
    for n in 0..objects {
        put(&cache, &name(n), &content(n));
    }
    assert!(cache.flush().wait());
    let stats = cache.stats();
    println!(
        "{{\"objects\":{objects},\"written_bytes\":{}}}",
        stats.written_bytes
    );
    cache.close();
}

struct Meter {
    begun: Instant,
    cpu: Duration,
}

impl Meter {
    fn start() -> Self {
        Self {
            begun: Instant::now(),
            cpu: cpu(),
        }
    }

    /// Seconds gone by, and microseconds of processor time for each of `count`.
    fn stop(&self, count: u64) -> (f64, f64) {
        let cpu = cpu() - self.cpu;
        (
            self.begun.elapsed().as_secs_f64(),
            cpu.as_secs_f64() * 1e6 / count as f64,
        )
    }
}

fn cpu() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

fn read(path: &str, way: &str, depth: usize, time: Duration) {
    let io = io(way);
    let cache = Cache::open(Config { io, ..config(path) }).unwrap();
    let names = stored(&cache);
    let before = cache.stats();
    let meter = Meter::start();
    let go_on = || meter.begun.elapsed() < time;
    let answers = if depth == 1 || way == "callers" {
        let call = || ask_and_wait(&cache, &names, go_on);
        std::thread::scope(|scope| {
            let callers: Vec<_> = (0..depth).map(|_| scope.spawn(call)).collect();
            callers.into_iter().map(|it| it.join().unwrap()).sum()
        })
    } else {
        Places::new(&cache, &names, depth).play(go_on)
    };
    let (seconds, cpu_us) = meter.stop(answers);
    let after = cache.stats();
    println!(
        "{{\"answers\":{answers},\"seconds\":{seconds:.6},\"cpu_us\":{cpu_us:.3},\
         \"reads\":{},\"read_bytes\":{},\"hot\":{}}}",
        after.reads - before.reads,
        after.read_bytes - before.read_bytes,
        after.hot_hits - before.hot_hits,
    );
    cache.close();
}

/// Reads one object after another; returns the number of answers.
fn ask_and_wait(cache: &Cache, names: &[String], go_on: impl Fn() -> bool) -> u64 {
    let mut random = fastrand::Rng::new();
    let mut answers = 0;
    while go_on() {
        let name = &names[random.usize(..names.len())];
        answers += check(cache.get(name.as_bytes()).wait());
    }
    answers
}

/// 1 for an answer with its content; a tag that met another name is none.
fn check(hit: Option<Hit>) -> u64 {
    match hit {
        Some(hit) => u64::from(hit.whole_content().unwrap().len() == CONTENT_BYTES),
        None => 0,
    }
}

fn write(path: &str, io: Io, time: Duration) {
    let cache = Cache::open(Config { io, ..config(path) }).unwrap();
    let content = content(7);
    let objects = objects(&cache.stats());
    let mut put_bytes = 0;
    let mut n = 0;
    let before = cache.stats();
    let meter = Meter::start();
    while meter.begun.elapsed() < time {
        put(&cache, &name(n % objects), &content);
        (n, put_bytes) = (n + 1, put_bytes + CONTENT_BYTES);
    }
    assert!(cache.flush().wait());
    let (seconds, cpu_us) = meter.stop(n);
    let after = cache.stats();
    println!(
        "{{\"answers\":{n},\"seconds\":{seconds:.6},\"cpu_us\":{cpu_us:.3},\
         \"put_bytes\":{put_bytes},\"writes\":{},\"written_bytes\":{}}}",
        after.writes - before.writes,
        after.written_bytes - before.written_bytes,
    );
    cache.close();
}

/// As many lookups at once as there are places. One thread asks; a place with its answer is given
/// the next lookup.
struct Places<'a> {
    cache: &'a Cache,
    names: &'a [String],
    random: fastrand::Rng,
    pending: Vec<Option<PendingLookup>>,
    ready: Arc<Ready>,
    wakers: Vec<Waker>,
}

/// Places that were woken, and the thread that looks at them.
struct Ready {
    places: Mutex<Vec<usize>>,
    thread: Thread,
}

struct Place {
    ready: Arc<Ready>,
    number: usize,
}

impl Wake for Place {
    fn wake(self: Arc<Self>) {
        let mut places = self.ready.places.lock().unwrap();
        places.push(self.number);
        let first = places.len() == 1;
        drop(places);
        if first {
            self.ready.thread.unpark();
        }
    }
}

impl<'a> Places<'a> {
    fn new(cache: &'a Cache, names: &'a [String], depth: usize) -> Self {
        let ready = Arc::new(Ready {
            places: Mutex::new((0..depth).collect()),
            thread: std::thread::current(),
        });
        let waker = |number| {
            Waker::from(Arc::new(Place {
                ready: Arc::clone(&ready),
                number,
            }))
        };
        Self {
            wakers: (0..depth).map(waker).collect(),
            cache,
            names,
            random: fastrand::Rng::new(),
            pending: (0..depth).map(|_| None).collect(),
            ready,
        }
    }

    fn play(mut self, go_on: impl Fn() -> bool) -> u64 {
        let mut answers = 0;
        let mut woken = Vec::new();
        while go_on() {
            std::mem::swap(&mut woken, &mut self.ready.places.lock().unwrap());
            if woken.is_empty() {
                std::thread::park();
            }
            for place in woken.drain(..) {
                answers += self.go_on_at(place);
            }
        }
        // What is under way still belongs to the time it was asked in: it is waited for, uncounted.
        self.pending
            .into_iter()
            .flatten()
            .for_each(|it| drop(it.wait()));
        answers
    }

    /// Takes the answers that are there, and asks on until one is not.
    fn go_on_at(&mut self, place: usize) -> u64 {
        let mut context = Context::from_waker(&self.wakers[place]);
        let mut answers = 0;
        loop {
            if let Some(pending) = &mut self.pending[place] {
                match Pin::new(pending).poll(&mut context) {
                    Poll::Pending => return answers,
                    Poll::Ready(hit) => answers += check(hit),
                }
            }
            let name = &self.names[self.random.usize(..self.names.len())];
            self.pending[place] = match self.cache.get(name.as_bytes()) {
                Lookup::Pending(pending) => Some(pending),
                Lookup::Hit(_) | Lookup::Miss => panic!("{name} did not come from the device"),
            };
        }
    }
}

fn block_on(future: impl Future<Output = ()>) {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(future);
    while future
        .as_mut()
        .poll(&mut Context::from_waker(&waker))
        .is_pending()
    {
        std::thread::park();
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|it| it != "--bench")
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let seconds = |word: &str| Duration::from_secs_f64(word.parse().unwrap());
    match words[..] {
        ["fill", path, bytes] => fill(path, bytes.parse().unwrap()),
        ["read", path, way, depth, time] => {
            read(path, way, depth.parse().unwrap(), seconds(time));
        }
        ["write", path, io, time] => write(path, self::io(io), seconds(time)),
        _ => {}
    }
}
