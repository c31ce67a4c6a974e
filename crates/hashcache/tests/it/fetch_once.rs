//! One fetch a name: shared when it succeeds, shared when it fails, taken over when it ends early.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use hashcache::device::{FaultDevice, MemoryDevice};
use hashcache::{Answer, Cache, FetchError, Fetched, Health, Keep, PolicyKind, Put, PutError};

use super::support::{KIB, MIB, POLICIES, Value, get, memory, open, quiet, rounds};

fn store() -> Cache {
    open(quiet(memory(64 * MIB), PolicyKind::Log))
}

fn fetched(value: Value, name: &[u8]) -> Fetched {
    Fetched {
        put: Put::metadata(value.metadata()),
        content: value.content(name).into(),
    }
}

/// An origin that answers when the test says so.
#[derive(Clone, Default)]
struct Origin {
    asked: Arc<AtomicUsize>,
    answer: Arc<Mutex<Option<Result<Fetched, io::Error>>>>,
}

impl Origin {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn answer(&self, answer: Result<Fetched, io::Error>) {
        *self.answer.lock().unwrap() = Some(answer);
    }

    fn fetch(&self) -> impl Future<Output = Result<Fetched, io::Error>> + use<> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let answer = Arc::clone(&self.answer);
        std::future::poll_fn(move |_| match answer.lock().unwrap().take() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
    }
}

type Outcome = Result<Answer, FetchError>;
type Asking = Pin<Box<dyn Future<Output = Outcome>>>;

/// Begins to ask for `name`.
fn ask(cache: &Cache, name: &[u8], origin: &Origin) -> Asking {
    let origin = origin.clone();
    let mut asking: Asking = Box::pin(cache.get_or_fetch(name, move || origin.fetch()));
    assert!(poll(&mut asking).is_none());
    asking
}

fn poll(asking: &mut Asking) -> Option<Outcome> {
    match asking
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

/// The value of an answer, every byte compared, and whether it was fetched.
fn value(outcome: &Outcome, name: &[u8]) -> (Value, bool) {
    let answer = outcome.as_ref().unwrap();
    let value = Value::parse(answer.metadata());
    assert!(answer.read_to_vec().unwrap() == value.content(name));
    (value, matches!(answer, Answer::Fetched { .. }))
}

#[test]
fn callers_of_one_name_share_one_fetch_and_it_is_stored() {
    let (cache, origin) = (store(), Origin::default());
    let mut all: Vec<Asking> = (0..5).map(|_| ask(&cache, b"name", &origin)).collect();
    let mut other = ask(&cache, b"other name", &Origin::default());
    assert_eq!(origin.asked(), 1);
    let wanted = Value::new(1, 100 * KIB);
    origin.answer(Ok(fetched(wanted, b"name")));
    // Waiting callers have no answer before the leader was polled.
    for asking in &mut all[1..] {
        assert!(poll(asking).is_none());
    }
    for asking in &mut all {
        assert_eq!(value(&poll(asking).unwrap(), b"name"), (wanted, true));
    }
    assert!(poll(&mut other).is_none());
    assert_eq!(get(&cache, b"name"), Some(wanted));
    let later = cache.get_or_fetch(b"name", || origin.fetch()).wait();
    assert_eq!(value(&later, b"name"), (wanted, false));
    assert_eq!(origin.asked(), 1);
}

#[test]
fn an_error_goes_to_all_who_wait_and_to_nobody_later() {
    let (cache, origin) = (store(), Origin::default());
    let mut first = ask(&cache, b"name", &origin);
    let mut second = ask(&cache, b"name", &origin);
    origin.answer(Err(io::ErrorKind::TimedOut.into()));
    let errors = [&mut first, &mut second].map(|asking| match poll(asking).unwrap() {
        Err(FetchError(error)) => error,
        Ok(_) => panic!("the fetch had failed"),
    });
    assert!(Arc::ptr_eq(&errors[0], &errors[1]));
    let error: &io::Error = errors[0].downcast_ref().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);

    let mut third = ask(&cache, b"name", &origin);
    origin.answer(Ok(fetched(Value::new(2, 10), b"name")));
    let outcome = poll(&mut third).unwrap();
    assert_eq!(value(&outcome, b"name"), (Value::new(2, 10), true));
    assert_eq!(origin.asked(), 2);
}

#[test]
fn when_the_leader_leaves_the_next_one_fetches() {
    let (cache, origin) = (store(), Origin::default());
    let mut all: Vec<Asking> = (0..4).map(|_| ask(&cache, b"name", &origin)).collect();
    drop(all.remove(0));
    // Not the caller that joined next, but the one that looks first.
    assert!(poll(&mut all[1]).is_none());
    assert!(poll(&mut all[0]).is_none());
    assert_eq!(origin.asked(), 2);
    // A waiting caller may leave without a trace.
    drop(all.pop());
    origin.answer(Ok(fetched(Value::new(3, 10), b"name")));
    assert!(poll(&mut all[0]).is_none());
    for n in [1, 0] {
        let outcome = poll(&mut all[n]).unwrap();
        assert_eq!(value(&outcome, b"name"), (Value::new(3, 10), true));
    }
    assert_eq!(origin.asked(), 2);
}

#[test]
fn a_fetch_that_panics_leaves_nobody_waiting() {
    let (cache, origin) = (store(), Origin::default());
    // One panics when it is made, the other when it is polled.
    let on_purpose = || -> Result<Fetched, io::Error> { panic!("on purpose") };
    let made = || std::future::ready(on_purpose());
    let polled = || std::future::poll_fn(|_| Poll::Ready(on_purpose()));
    let outcomes = [
        catch_unwind(AssertUnwindSafe(|| {
            cache.get_or_fetch(b"name", made).wait()
        })),
        catch_unwind(AssertUnwindSafe(|| {
            cache.get_or_fetch(b"name", polled).wait()
        })),
    ];
    assert!(outcomes.iter().all(Result::is_err));
    let mut next = ask(&cache, b"name", &origin);
    origin.answer(Ok(fetched(Value::new(4, 10), b"name")));
    assert!(poll(&mut next).is_some());
}

#[test]
fn who_asks_after_a_remove_never_gets_what_was_fetched_before_it() {
    let (cache, before, after) = (store(), Origin::default(), Origin::default());
    let mut early = ask(&cache, b"name", &before);
    cache.remove(b"name").wait().unwrap();
    let mut late = ask(&cache, b"name", &after);
    let mut later = ask(&cache, b"name", &after);
    assert_eq!((before.asked(), after.asked()), (1, 1));

    before.answer(Ok(fetched(Value::new(1, 10), b"name")));
    let outcome = poll(&mut early).unwrap();
    assert_eq!(value(&outcome, b"name"), (Value::new(1, 10), true));
    // This fetch is not stored either, and its end does not end the other fetch.
    let Ok(Answer::Fetched { stored, .. }) = outcome else {
        panic!("it was fetched")
    };
    assert_eq!(stored, Err(PutError::Superseded));
    assert!(poll(&mut later).is_none());
    let mut latest = ask(&cache, b"name", &after);
    assert_eq!(after.asked(), 1);

    after.answer(Ok(fetched(Value::new(2, 20), b"name")));
    for asking in [&mut late, &mut later, &mut latest] {
        let outcome = poll(asking).unwrap();
        assert_eq!(value(&outcome, b"name"), (Value::new(2, 20), true));
    }
    assert_eq!(get(&cache, b"name"), Some(Value::new(2, 20)));
}

#[test]
fn what_was_put_meanwhile_answers_those_who_ask_then() {
    let (cache, origin) = (store(), Origin::default());
    let mut early = ask(&cache, b"name", &origin);
    Value::new(9, 30).store(&cache, b"name").unwrap();
    let late = cache.get_or_fetch(b"name", || origin.fetch()).wait();
    assert_eq!(value(&late, b"name"), (Value::new(9, 30), false));
    origin.answer(Ok(fetched(Value::new(1, 10), b"name")));
    assert!(poll(&mut early).is_some());
    assert_eq!(get(&cache, b"name"), Some(Value::new(9, 30)));
}

#[test]
fn what_is_stored_in_part_is_fetched() {
    let (cache, origin) = (store(), Origin::default());
    let put = Put {
        keep: Keep::Partial,
        length: Some(MIB as u64),
        ..Put::metadata(Value::new(1, MIB).metadata())
    };
    let mut writer = cache.intend(b"name").unwrap().writer(put).unwrap();
    writer.write(&[1; 100 * KIB]).unwrap();
    assert!(writer.keep());
    assert!(cache.get(b"name").wait().is_some());
    let mut asking = ask(&cache, b"name", &origin);
    origin.answer(Ok(fetched(Value::new(2, MIB), b"name")));
    let outcome = poll(&mut asking).unwrap();
    assert_eq!(value(&outcome, b"name"), (Value::new(2, MIB), true));
    assert_eq!(get(&cache, b"name"), Some(Value::new(2, MIB)));
}

#[test]
fn what_cannot_be_stored_is_answered_all_the_same() {
    let cache = store();
    cache.clone().close();
    let long = vec![b'n'; 5000];
    let names: [(&[u8], PutError); 3] = [
        (b"name", PutError::OutOfService),
        (b"", PutError::Name { length: 0 }),
        (&long, PutError::Name { length: 5000 }),
    ];
    for (name, error) in names {
        let wanted = Value::new(1, 10);
        let fetch = || std::future::ready(Ok::<_, io::Error>(fetched(wanted, name)));
        let outcome = cache.get_or_fetch(name, fetch).wait();
        assert_eq!(value(&outcome, name), (wanted, true));
        let Ok(Answer::Fetched { stored, .. }) = outcome else {
            panic!("it was fetched")
        };
        assert_eq!(stored, Err(error));
    }
}

#[test]
fn one_fetches_for_all_even_when_the_only_device_is_out_of_service() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(16 * MIB), None));
    let cache = open(quiet(device.clone(), PolicyKind::Log));
    device.fail();
    Value::new(1, 100).store(&cache, b"other").unwrap();
    assert!(!cache.flush().wait());
    while cache.health() != Health::OutOfService {
        std::thread::yield_now();
    }
    let origin = Origin::default();
    let mut all: Vec<_> = (0..3).map(|_| ask(&cache, b"name", &origin)).collect();
    all.iter_mut().for_each(|it| assert!(poll(it).is_none()));
    assert_eq!(origin.asked(), 1);
}

#[test]
fn many_threads_never_fetch_one_name_twice_at_a_time_nor_again() {
    const NAMES: usize = 40;
    for policy in POLICIES {
        let cache = open(quiet(memory(64 * MIB), policy));
        let fetches: Vec<AtomicUsize> = (0..NAMES).map(|_| AtomicUsize::new(0)).collect();
        let ask = |n: usize| {
            let name = format!("object {n}");
            let name = name.as_bytes();
            let wanted = Value::new(n as u64, 5 * KIB);
            let fetch = || {
                fetches[n].fetch_add(1, Ordering::Relaxed);
                std::thread::yield_now();
                std::future::ready(Ok::<_, io::Error>(fetched(wanted, name)))
            };
            let outcome = cache.get_or_fetch(name, fetch).wait();
            assert_eq!(value(&outcome, name).0, wanted);
        };
        std::thread::scope(|scope| {
            for seed in 0..8 {
                let ask = &ask;
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    for _ in 0..500 * rounds() {
                        ask(random.usize(..NAMES));
                    }
                });
            }
        });
        let fetches: Vec<usize> = fetches.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        assert_eq!(fetches, [1; NAMES], "{policy:?}");
    }
}
