//! Logins: which are right, and what wrong ones may take.

use std::future::poll_fn;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::Poll;

use hashcache::{Cache, Config};

use super::*;

/// Made by another program: `perl -e 'print crypt("right:1", "\$2y\$04\$bvIG6Nmid91Mu9RcmmWZfO")'`.
const ANNA: &str = "$2y$04$bvIG6Nmid91Mu9RcmmWZfO9uJIet1vZ5RxKoHcc2APXp/vBHdBvP.";

struct Fixture {
    directory: tempfile::TempDir,
    cache: Cache,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            size_bytes: Some(32 << 20),
            memory_bytes: 16 << 20,
            ..Config::new(directory.path().join("c.img"))
        };
        let cache = Cache::open(config).unwrap();
        Self { directory, cache }
    }

    fn users(&self, text: &str) -> UserHashes {
        let path: PathBuf = self.directory.path().join("users");
        std::fs::write(&path, text).unwrap();
        UserHashes::load(&[path], &self.cache).unwrap()
    }
}

fn client(last: u8) -> LoginSource {
    from(IpAddr::from([10, 0, 0, last]))
}

fn from(address: IpAddr) -> LoginSource {
    LoginSource {
        network: Network::containing(address),
        address: Network::exact(address),
    }
}

fn login(user: &str, password: &str) -> Login {
    Login {
        user: user.into(),
        password: password.as_bytes().into(),
    }
}

#[tokio::test]
async fn the_right_password_of_a_user_is_right_and_no_other() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\nbert:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(2).unwrap());
    for (user, password, right) in [
        ("anna", "right:1", true),
        ("bert", "right:1", true),
        ("anna", "right:1", true),
        ("anna", "right:", false),
        ("anna", "", false),
        ("Anna", "right:1", false),
        ("nobody", "right:1", false),
    ] {
        let checked = checks.check(&users, client(1), login(user, password)).await;
        assert_eq!(checked, Ok(right), "{user} {password}");
    }
}

#[tokio::test]
async fn a_changed_file_ends_what_was_known_of_a_password() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    let anna = || login("anna", "right:1");
    assert_eq!(checks.check(&users, client(1), anna()).await, Ok(true));
    let changed = fixture.users(&format!("anna:{OTHER}\n"));
    assert_eq!(checks.check(&changed, client(1), anna()).await, Ok(false));
    assert_eq!(checks.check(&users, client(1), anna()).await, Ok(true));
    let gone = fixture.users("");
    assert_eq!(checks.check(&gone, client(1), anna()).await, Ok(false));
}

#[tokio::test]
async fn a_user_who_was_removed_has_no_right_password_although_another_has_the_same_hash() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\nbert:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    let anna = || login("anna", "right:1");
    assert_eq!(checks.check(&users, client(1), anna()).await, Ok(true));
    let without_anna = fixture.users(&format!("bert:{ANNA}\n"));
    let checked = checks.check(&without_anna, client(1), anna()).await;
    assert_eq!(checked, Ok(false));
    let bert = login("bert", "right:1");
    let checked = checks.check(&without_anna, client(1), bert).await;
    assert_eq!(checked, Ok(true));
}

/// The password is `other`.
const OTHER: &str = "$2y$04$abcdefghijklmnopqrstuu0HtfOlPbTiymk5tcV.3TsFPDd3SYZqu";

#[tokio::test]
async fn many_wrong_passwords_of_one_client_are_not_checked_and_others_are() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    tokio::time::pause();
    let mut refused = 0;
    for n in 0..100 {
        let wrong = login("anna", &n.to_string());
        match checks.check(&users, client(1), wrong).await {
            Ok(right) => assert!(!right),
            Err(unchecked) => {
                assert_eq!(unchecked, Unchecked::TooMany);
                refused += 1;
            }
        }
    }
    assert!(refused >= 88, "{refused}");
    // A wrong password that is sent again is known, and costs nothing.
    let known = checks.check(&users, client(1), login("anna", "0")).await;
    assert_eq!(known, Ok(false));
    assert_eq!(
        checks
            .check(&users, client(2), login("anna", "right:1"))
            .await,
        Ok(true)
    );
    tokio::time::advance(Duration::from_secs(120)).await;
    assert_eq!(
        checks
            .check(&users, client(1), login("anna", "right:1"))
            .await,
        Ok(true)
    );
    assert!(checks.state().checking.is_empty());
}

#[tokio::test]
async fn checks_that_wait_are_bounded_and_end_with_their_requests() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    // No check can begin.
    let all = checks.permits.acquire(client(99).network).await;
    let mut waiting: Vec<_> = (0..WAITING_MAX)
        .map(|n| Box::pin(checks.check(&users, client(1), login("anna", &n.to_string()))))
        .collect();
    for each in &mut waiting {
        assert!(poll_once(each.as_mut()).is_none());
    }
    let more = checks.check(&users, client(1), login("anna", "x")).await;
    assert_eq!(more, Err(Unchecked::TooMany));
    drop(waiting);
    assert!(checks.state().checking.is_empty());
    drop(all);
    assert_eq!(
        checks
            .check(&users, client(1), login("anna", "right:1"))
            .await,
        Ok(true)
    );
}

#[tokio::test]
async fn requests_with_one_login_wait_for_one_check() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    let all = checks.permits.acquire(client(99).network).await;
    let anna = || Box::pin(checks.check(&users, client(1), login("anna", "right:1")));
    let mut waiting: Vec<_> = (0..WAITING_MAX * 3).map(|_| anna()).collect();
    for each in &mut waiting {
        assert!(poll_once(each.as_mut()).is_none());
    }
    assert_eq!(checks.state().checking.len(), 1);
    // The request that would have the check made leaves; another one takes its place.
    drop(waiting.remove(0));
    drop(all);
    for each in waiting {
        assert_eq!(each.await, Ok(true));
    }
    assert!(checks.state().checking.is_empty());
}

#[tokio::test]
async fn a_burst_of_wrong_passwords_gets_no_more_checks_than_one_by_one() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    tokio::time::pause();
    let all = checks.permits.acquire(client(99).network).await;
    let mut waiting: Vec<_> = (0..WAITING_MAX)
        .map(|n| Box::pin(checks.check(&users, client(1), login("anna", &n.to_string()))))
        .collect();
    for each in &mut waiting {
        assert!(poll_once(each.as_mut()).is_none());
    }
    drop(all);
    let mut checked = 0;
    for each in waiting {
        checked += usize::from(each.await == Ok(false));
    }
    assert!((10..=12).contains(&checked), "{checked}");
}

#[tokio::test]
async fn wrong_passwords_for_one_user_do_not_lock_out_others_of_the_network() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\nbert:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    tokio::time::pause();
    for n in 0..50 {
        let wrong = login("anna", &n.to_string());
        let _ = checks.check(&users, client(1), wrong).await;
    }
    let check = async |from, user| {
        let login = login(user, "right:1");
        checks.check(&users, client(from), login).await
    };
    assert_eq!(check(1, "anna").await, Err(Unchecked::TooMany));
    assert_eq!(check(1, "bert").await, Ok(true));
    assert_eq!(check(2, "anna").await, Ok(true));
}

#[tokio::test]
async fn guesses_with_many_names_are_limited_and_so_are_those_from_many_networks() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\nbert:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    tokio::time::pause();
    let mut checked = (0, 0);
    for n in 0..1000_u32 {
        let name = format!("user{n}");
        let by_name = checks.check(&users, client(250), login(&name, "x")).await;
        checked.0 += usize::from(by_name.is_ok());
        let wrong = login("anna", &n.to_string());
        let from = client(u8::try_from(n % 100).unwrap());
        checked.1 += usize::from(checks.check(&users, from, wrong).await.is_ok());
    }
    assert!((100..=110).contains(&checked.0), "{checked:?}");
    // Once the user has many failures, each network gets one guess in half a minute.
    assert!((100..=210).contains(&checked.1), "{checked:?}");
    let bert = login("bert", "right:1");
    assert_eq!(checks.check(&users, client(251), bert).await, Ok(true));
}

#[tokio::test]
async fn guesses_lock_a_user_out_at_no_network_that_does_not_guess() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    tokio::time::pause();
    let mut last = [0; 2];
    for round in 0..50 {
        for network in 0..14 {
            let wrong = login("anna", &format!("{network} {round}"));
            let is_checked = checks.check(&users, client(network), wrong).await.is_ok();
            last[usize::from(round >= 25)] += usize::from(is_checked);
        }
    }
    assert!(last[0] >= 100 && last[1] == 0, "{last:?}");
    // The user has not logged in anywhere since the start.
    let anna = || login("anna", "right:1");
    assert_eq!(checks.check(&users, client(200), anna()).await, Ok(true));
    // Nor for long where somebody else guesses: the right password is checked half a minute later.
    let changed = fixture.users(&format!("anna:{OTHER}\n"));
    let other = || login("anna", "other");
    let at_once = checks.check(&changed, client(1), other()).await;
    assert_eq!(at_once, Err(Unchecked::TooMany));
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(checks.check(&changed, client(1), other()).await, Ok(true));
}

#[tokio::test]
async fn a_network_that_guesses_makes_others_wait_for_one_check_at_a_time() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    let all = checks.permits.acquire(client(99).network).await;
    let mut guesses: Vec<_> = (0..WAITING_MAX)
        .map(|n| Box::pin(checks.check(&users, client(1), login(&format!("n{n}"), "x"))))
        .collect();
    for each in &mut guesses {
        assert!(poll_once(each.as_mut()).is_none());
    }
    let mut right = Box::pin(checks.check(&users, client(2), login("anna", "right:1")));
    assert!(poll_once(right.as_mut()).is_none());
    drop(all);
    // More than one guess may end before the test looks, so the order of the results is compared.
    let mut waiting: Vec<Pin<Box<dyn Future<Output = _>>>> = Vec::new();
    for guess in guesses {
        waiting.push(guess);
    }
    waiting.push(right);
    let mut results = Vec::new();
    // So many checks use up the turn of a task, and the last would look as if it waited.
    tokio::task::unconstrained(poll_fn(|cx| {
        waiting.retain_mut(|check| match check.as_mut().poll(cx) {
            Poll::Ready(result) => {
                results.push(result);
                false
            }
            Poll::Pending => true,
        });
        match results.len() {
            0 | 1 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }))
    .await;
    assert_eq!(results[..2], [Ok(false), Ok(true)]);
}

#[tokio::test]
async fn many_networks_that_guess_leave_places_to_wait_to_others() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    let _all = checks.permits.acquire(client(99).network).await;
    let mut waiting = Vec::new();
    for network in 0..20 {
        for n in 0..100 {
            let guess = login(&format!("{network} {n}"), "x");
            let mut guess = Box::pin(checks.check(&users, client(network), guess));
            if poll_once(guess.as_mut()).is_none() {
                waiting.push(guess);
            }
        }
    }
    let anna = login("anna", "right:1");
    let mut right = Box::pin(checks.check(&users, client(200), anna));
    assert!(poll_once(right.as_mut()).is_none(), "it waits");
}

#[tokio::test]
async fn guesses_lock_no_user_out_of_a_network_where_the_user_has_logged_in() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    tokio::time::pause();
    let anna = login("anna", "right:1");
    assert_eq!(checks.check(&users, client(1), anna).await, Ok(true));
    for n in 0..200 {
        let wrong = login("anna", &n.to_string());
        let _ = checks.check(&users, client(n + 2), wrong).await;
    }
    // Another password: what is known of the old one would answer without a check.
    let changed = fixture.users(&format!("anna:{OTHER}\n"));
    let at = async |n| {
        checks
            .check(&changed, client(n), login("anna", "other"))
            .await
    };
    assert_eq!(at(3).await, Err(Unchecked::TooMany));
    assert_eq!(at(1).await, Ok(true));
    // Wrong passwords from there are limited as before.
    let mut checked = 0;
    for n in 0..50 {
        let wrong = login("anna", &format!("wrong {n}"));
        checked += usize::from(checks.check(&changed, client(1), wrong).await.is_ok());
    }
    assert!((10..=12).contains(&checked), "{checked}");
}

#[tokio::test]
async fn a_machine_that_changes_its_address_locks_out_no_neighbour_who_has_logged_in() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\nbert:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    tokio::time::pause();
    let host = |n: u16| from(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]));
    let anna = login("anna", "right:1");
    assert_eq!(checks.check(&users, host(1), anna).await, Ok(true));
    // Guesses at one address, then at many of the same /64.
    let mut checked = [0; 2];
    for n in 0..400 {
        let guesses_at = [host(2), host(n + 1000)][usize::from(n >= 50)];
        let wrong = login("anna", &n.to_string());
        let is_checked = checks.check(&users, guesses_at, wrong).await.is_ok();
        checked[usize::from(n >= 50)] += usize::from(is_checked);
    }
    assert!((10..=12).contains(&checked[0]), "{checked:?}");
    assert!((80..=95).contains(&checked[1]), "{checked:?}");
    // Another password: what is known of the old one would answer without a check.
    let changed = fixture.users(&format!("anna:{OTHER}\nbert:{OTHER}\n"));
    let other = |user| login(user, "other");
    assert_eq!(
        checks.check(&changed, host(1), other("anna")).await,
        Ok(true)
    );
    // A user who has not logged in at this address waits until the network has a check again.
    let new = checks.check(&changed, host(1), other("bert")).await;
    assert_eq!(new, Err(Unchecked::TooMany));
}

#[tokio::test]
async fn users_who_are_known_at_an_address_get_no_more_guesses_than_others() {
    let fixture = Fixture::new();
    let names: Vec<String> = (0..200).map(|n| format!("user{n}")).collect();
    let lines = names.iter().map(|name| format!("{name}:{ANNA}\n"));
    let users = fixture.users(&lines.collect::<String>());
    let checks = Arc::new(UserChecks::new(1).unwrap());
    tokio::time::pause();
    for name in &names {
        let right = login(name, "right:1");
        assert_eq!(checks.check(&users, client(1), right).await, Ok(true));
    }
    let mut checked = 0;
    for round in 0..5 {
        for name in &names {
            let wrong = login(name, &format!("wrong {round}"));
            checked += usize::from(checks.check(&users, client(1), wrong).await.is_ok());
        }
    }
    assert!((100..=110).contains(&checked), "{checked}");
    // The count grows no further than its limit.
    tokio::time::advance(Duration::from_secs(3)).await;
    let other = login("user0", "wrong");
    assert_eq!(checks.check(&users, client(1), other).await, Ok(false));
}

#[tokio::test]
async fn a_user_who_has_logged_in_from_a_network_is_known_there_at_any_address() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    tokio::time::pause();
    let host = |n: u16| from(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]));
    let anna = login("anna", "right:1");
    assert_eq!(checks.check(&users, host(1), anna).await, Ok(true));
    for n in 0..200 {
        let wrong = login("anna", &n.to_string());
        let _ = checks.check(&users, client(n), wrong).await;
    }
    // A wrong password there is no reason to refuse the right one.
    let wrong = checks.check(&users, host(3), login("anna", "x")).await;
    assert_eq!(wrong, Ok(false));
    let changed = fixture.users(&format!("anna:{OTHER}\n"));
    let other = || login("anna", "other");
    let elsewhere = checks.check(&changed, client(150), other()).await;
    assert_eq!(elsewhere, Err(Unchecked::TooMany));
    assert_eq!(checks.check(&changed, host(2), other()).await, Ok(true));
}

#[tokio::test]
async fn a_right_login_is_kept_for_every_user() {
    let fixture = Fixture::new();
    let users = RESULTS_MAX.get() + 100;
    let checks = Arc::new(UserChecks::new(1).unwrap());
    let tag = |n: usize| {
        let mut tag = Tag::default();
        tag[..8].copy_from_slice(&(n as u64).to_le_bytes());
        tag
    };
    let keys = || FailureKeys::new(&checks.key, client(1), "anna");
    (0..users).for_each(|n| checks.note_right(tag(n), keys(), users));
    assert!((0..users).all(|n| checks.result(&tag(n)) == Some(true)));
    checks.note_right(tag(users), keys(), 1);
    assert_eq!(checks.state().right.len(), RESULTS_MAX.get());
    let lines = (0..3).map(|n| format!("user{n}:{ANNA}\n"));
    assert_eq!(fixture.users(&lines.collect::<String>()).count(), 3);
}

/// Polls once; `None`: not ready.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
