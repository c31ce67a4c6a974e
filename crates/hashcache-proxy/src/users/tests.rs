//! Logins: which are right, and what wrong ones may take.

use std::net::IpAddr;
use std::path::PathBuf;

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

fn client(last: u8) -> Network {
    Network::of(IpAddr::from([10, 0, 0, last]))
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
    // The same wrong password again is known, and costs nothing.
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
    assert!(checks.state().waiting.is_empty());
}

#[tokio::test]
async fn checks_that_wait_are_bounded_and_end_with_their_requests() {
    let fixture = Fixture::new();
    let users = fixture.users(&format!("anna:{ANNA}\n"));
    let checks = Arc::new(UserChecks::new(1).unwrap());
    // No check can begin.
    let all = Arc::clone(&checks.permits).acquire_owned().await.unwrap();
    let mut waiting: Vec<_> = (0..WAITING_MAX)
        .map(|n| Box::pin(checks.check(&users, client(1), login("anna", &n.to_string()))))
        .collect();
    for each in &mut waiting {
        assert!(poll_once(each.as_mut()).is_none());
    }
    let more = checks.check(&users, client(1), login("anna", "x")).await;
    assert_eq!(more, Err(Unchecked::TooMany));
    drop(waiting);
    assert!(checks.state().waiting.is_empty());
    drop(all);
    assert_eq!(
        checks
            .check(&users, client(1), login("anna", "right:1"))
            .await,
        Ok(true)
    );
}

/// Polls once; `None`: not ready.
fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}
