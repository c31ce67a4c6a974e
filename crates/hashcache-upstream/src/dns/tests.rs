//! Lookups against a name server of our own on loopback; time is paused, so silence costs nothing.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use hashcache_base::net::own_domain::AllowedDestination;
use tokio::net::UdpSocket;
use tokio::task::LocalSet;

use super::*;

#[derive(Clone)]
enum Reply {
    Addresses(u32, Vec<IpAddr>),
    NoSuchName(u32),
    Failure,
    Silence,
}

/// A name server that answers from a list and counts questions.
struct FakeDns {
    address: SocketAddr,
    replies: RefCell<HashMap<String, Reply>>,
    asked: Cell<usize>,
}

impl FakeDns {
    async fn start() -> Rc<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let fake = Rc::new(Self {
            address: socket.local_addr().unwrap(),
            replies: RefCell::default(),
            asked: Cell::new(0),
        });
        let server = Rc::clone(&fake);
        tokio::task::spawn_local(async move {
            let mut question = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut question).await {
                if let Some(answer) = server.answer(&question[..length]) {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
        fake
    }

    fn set(&self, name: &str, reply: Reply) {
        self.replies.borrow_mut().insert(name.to_owned(), reply);
    }

    /// A-questions only are counted; AAAA gets an empty answer unless the list has IPv6 addresses.
    fn answer(&self, question: &[u8]) -> Option<Vec<u8>> {
        let mut name = String::new();
        let mut at = 12;
        while question[at] != 0 {
            let end = at + 1 + usize::from(question[at]);
            name.push_str(std::str::from_utf8(&question[at + 1..end]).unwrap());
            name.push('.');
            at = end;
        }
        let is_a = question[at + 2] == 1;
        let question_end = at + 5;
        if is_a {
            self.asked.set(self.asked.get() + 1);
        }
        let name = name.to_ascii_lowercase();
        let reply = self.replies.borrow().get(&name).cloned();
        let (code, answers, authority): (u8, Vec<Vec<u8>>, Option<Vec<u8>>) = match reply {
            None | Some(Reply::Silence) => return None,
            Some(Reply::Failure) => (2, vec![], None),
            Some(Reply::NoSuchName(ttl_s)) => (3, vec![], Some(soa(ttl_s))),
            Some(Reply::Addresses(ttl_s, list)) => {
                let wanted = list.iter().filter(|address| address.is_ipv4() == is_a);
                let records: Vec<_> = wanted.map(|address| record(ttl_s, *address)).collect();
                let authority = records.is_empty().then(|| soa(ttl_s));
                (0, records, authority)
            }
        };
        let mut out = question[..2].to_vec();
        out.extend([
            0x81,
            0x80 | code,
            0,
            1,
            0,
            u8::try_from(answers.len()).unwrap(),
        ]);
        out.extend([0, u8::from(authority.is_some()), 0, 0]);
        out.extend(&question[12..question_end]);
        answers.iter().for_each(|record| out.extend(record));
        out.extend(authority.into_iter().flatten());
        Some(out)
    }
}

fn record(ttl_s: u32, address: IpAddr) -> Vec<u8> {
    let (kind, data) = match address {
        IpAddr::V4(v4) => (1, v4.octets().to_vec()),
        IpAddr::V6(v6) => (28, v6.octets().to_vec()),
    };
    let mut out = vec![0xc0, 12, 0, kind, 0, 1];
    out.extend(ttl_s.to_be_bytes());
    out.extend([0, u8::try_from(data.len()).unwrap()]);
    out.extend(data);
    out
}

fn soa(ttl_s: u32) -> Vec<u8> {
    let mut out = vec![0xc0, 12, 0, 6, 0, 1];
    out.extend(ttl_s.to_be_bytes());
    out.extend([0, 22, 0, 0]); // both names are the root
    for number in [1, 3600, 600, 86400, ttl_s] {
        out.extend(number.to_be_bytes());
    }
    out
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn names(fake: &FakeDns) -> DnsCache {
    DnsCache::new(
        NameServers::Fixed([fake.address].into()),
        Duration::from_secs(5),
    )
}

async fn locally<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

#[tokio::test(start_paused = true)]
async fn a_name_is_asked_for_once_per_lifetime() {
    locally(async {
        let fake = FakeDns::start().await;
        fake.set(
            "a.test.",
            Reply::Addresses(60, ips(&["192.0.2.1", "192.0.2.2"])),
        );
        let resolver = Resolver::new(names(&fake));
        for _ in 0..3 {
            let found = resolver.resolve("A.Test", false, None).await.unwrap();
            assert_eq!(*found, *ips(&["192.0.2.1", "192.0.2.2"]));
        }
        assert_eq!(fake.asked.get(), 1);
        tokio::time::advance(Duration::from_secs(61)).await;
        fake.set("a.test.", Reply::Addresses(60, ips(&["192.0.2.9"])));
        // The dot of a fully qualified name is not a name of its own.
        assert_eq!(
            *resolver.resolve("a.test.", false, None).await.unwrap(),
            *ips(&["192.0.2.9"])
        );
        assert_eq!(fake.asked.get(), 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn many_who_ask_at_once_share_one_lookup_across_cores() {
    locally(async {
        let fake = FakeDns::start().await;
        fake.set("a.test.", Reply::Addresses(60, ips(&["192.0.2.1"])));
        let names = names(&fake);
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let resolver = Resolver::new(names.clone());
            asking.spawn_local(async move { resolver.resolve("a.test", false, None).await });
        }
        while let Some(answer) = asking.join_next().await {
            assert_eq!(*answer.unwrap().unwrap(), *ips(&["192.0.2.1"]));
        }
        assert_eq!(fake.asked.get(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lookup_outlives_the_client_that_began_it() {
    locally(async {
        let fake = FakeDns::start().await;
        fake.set("a.test.", Reply::Addresses(60, ips(&["192.0.2.1"])));
        let resolver = Resolver::new(names(&fake));
        assert!(
            timeout(Duration::ZERO, resolver.resolve("a.test", false, None))
                .await
                .is_err()
        );
        resolver.resolve("a.test", false, None).await.unwrap();
        assert_eq!(fake.asked.get(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ipv6_comes_first_and_only_where_it_is_reached() {
    locally(async {
        let fake = FakeDns::start().await;
        let both = ips(&["192.0.2.1", "2001:db8::1"]);
        fake.set("a.test.", Reply::Addresses(60, both.clone()));
        fake.set("b.test.", Reply::Addresses(60, both));
        fake.set("c.test.", Reply::Addresses(60, ips(&["2001:db8::2"])));
        let resolver = Resolver::new(names(&fake));
        let found = resolver.resolve("a.test", true, None).await.unwrap();
        assert_eq!(*found, *ips(&["2001:db8::1", "192.0.2.1"]));
        assert_eq!(
            *resolver.resolve("b.test", false, None).await.unwrap(),
            *ips(&["192.0.2.1"])
        );
        assert_eq!(
            *resolver.resolve("c.test", false, None).await.unwrap(),
            *ips(&["2001:db8::2"])
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_name_is_remembered_as_the_soa_says() {
    locally(async {
        let fake = FakeDns::start().await;
        fake.set("no.test.", Reply::NoSuchName(30));
        let resolver = Resolver::new(names(&fake));
        assert_eq!(
            resolver.resolve("no.test", false, None).await,
            Err(Failure::NameNotFound)
        );
        assert_eq!(
            resolver.resolve("no.test", false, None).await,
            Err(Failure::NameNotFound)
        );
        assert_eq!(fake.asked.get(), 1);
        tokio::time::advance(Duration::from_secs(31)).await;
        fake.set("no.test.", Reply::Addresses(60, ips(&["192.0.2.1"])));
        resolver.resolve("no.test", false, None).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn silent_and_failing_resolvers_have_their_own_names_and_a_short_memory() {
    locally(async {
        let fake = FakeDns::start().await;
        fake.set("quiet.test.", Reply::Silence);
        fake.set("bad.test.", Reply::Failure);
        let resolver = Resolver::new(names(&fake));
        let limit = Duration::from_secs(5);
        let begun = Instant::now();
        let answer = resolver.resolve("quiet.test", false, None).await;
        assert_eq!(answer, Err(Failure::NameTimeout(limit)));
        assert!(begun.elapsed() <= limit + Duration::from_millis(10));
        assert_eq!(
            resolver.resolve("bad.test", false, None).await,
            Err(Failure::NameError)
        );
        let asked = fake.asked.get();
        assert_eq!(
            resolver.resolve("bad.test", false, None).await,
            Err(Failure::NameError)
        );
        assert_eq!(fake.asked.get(), asked);
        tokio::time::advance(Duration::from_secs(6)).await;
        fake.set("bad.test.", Reply::Addresses(60, ips(&["192.0.2.1"])));
        resolver.resolve("bad.test", false, None).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_old_answer_stands_in_for_silence_without_a_long_wait() {
    locally(async {
        let fake = FakeDns::start().await;
        fake.set("a.test.", Reply::Addresses(60, ips(&["192.0.2.1"])));
        let resolver = Resolver::new(names(&fake));
        resolver.resolve("a.test", false, None).await.unwrap();
        fake.set("a.test.", Reply::Silence);
        tokio::time::advance(Duration::from_secs(48 * 3600)).await;
        let begun = Instant::now();
        assert_eq!(
            *resolver.resolve("a.test", false, None).await.unwrap(),
            *ips(&["192.0.2.1"])
        );
        assert!(begun.elapsed() < Duration::from_secs(2));
        tokio::time::advance(Duration::from_secs(48 * 3600)).await;
        assert!(resolver.resolve("a.test", false, None).await.is_err());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn localhost_is_never_asked_for() {
    locally(async {
        let fake = FakeDns::start().await;
        let resolver = Resolver::new(names(&fake));
        for name in ["localhost", "LOCALHOST.", "a.localhost"] {
            let found = resolver.resolve(name, true, None).await.unwrap();
            assert!(found.iter().all(IpAddr::is_loopback), "{name}");
        }
        assert_eq!(fake.asked.get(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn names_that_are_no_names_do_not_exist() {
    locally(async {
        let fake = FakeDns::start().await;
        let resolver = Resolver::new(names(&fake));
        let long = format!("{}.test", "x".repeat(64));
        for name in ["a..test", "", long.as_str()] {
            assert_eq!(
                resolver.resolve(name, false, None).await,
                Err(Failure::NameNotFound),
                "{name}"
            );
        }
        assert_eq!(fake.asked.get(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn both_files_are_read_again_when_they_change() {
    locally(async {
        let directory = tempfile::tempdir().unwrap();
        let hosts = directory.path().join("hosts");
        let resolv_conf = directory.path().join("resolv.conf");
        std::fs::write(&hosts, "192.0.2.1 box.test\n").unwrap();
        std::fs::write(&resolv_conf, "nameserver 127.0.0.1\nsearch corp.test\n").unwrap();
        let servers = NameServers::Files {
            resolv_conf,
            hosts: hosts.clone(),
        };
        let resolver = Resolver::new(DnsCache::new(servers, Duration::from_secs(5)));
        assert_eq!(
            *resolver.resolve("box.test", false, None).await.unwrap(),
            *ips(&["192.0.2.1"])
        );

        std::fs::write(&hosts, "192.0.2.2 box.test\n").unwrap();
        let changed = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        std::fs::File::options()
            .write(true)
            .open(&hosts)
            .unwrap()
            .set_modified(changed)
            .unwrap();
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(
            *resolver.resolve("box.test", false, None).await.unwrap(),
            *ips(&["192.0.2.2"])
        );
    })
    .await;
}

#[tokio::test]
async fn a_core_that_goes_away_leaves_no_name_under_way() {
    let fake_address = "127.0.0.1:9".parse().unwrap();
    let names = DnsCache::new(
        NameServers::Fixed([fake_address].into()),
        Duration::from_secs(5),
    );
    {
        let core = LocalSet::new();
        let resolver = Resolver::new(names.clone());
        let asking = core.run_until(timeout(
            Duration::ZERO,
            resolver.resolve("a.test", false, None),
        ));
        assert!(asking.await.is_err());
        let found = names.table().find("a.test", Instant::now());
        assert!(matches!(found, TableAnswer::UnderWay { .. }));
    }
    assert!(matches!(
        names.table().find("a.test", Instant::now()),
        TableAnswer::Unknown
    ));
}

#[tokio::test(start_paused = true)]
async fn names_of_an_own_domain_are_asked_for_at_its_server_alone() {
    locally(async {
        let (system, own) = (FakeDns::start().await, FakeDns::start().await);
        // An attacker may have the other server say what he likes.
        for name in ["www.school.local.", "www.test."] {
            system.set(name, Reply::Addresses(60, ips(&["192.0.2.66"])));
            own.set(name, Reply::Addresses(60, ips(&["10.0.0.80"])));
        }
        let allowed = format!("school.local@{}", own.address);
        let AllowedDestination::Domain(domain) = allowed.parse().unwrap() else {
            panic!("a domain was asked for");
        };
        let plain = Resolver::new(names(&system));
        let resolver = plain.clone().with_domains(&[domain]);
        let inside = resolver.resolve("WWW.School.Local", false, None).await;
        assert_eq!(inside.unwrap()[..], ips(&["10.0.0.80"]));
        let outside = resolver.resolve("www.test", false, None).await;
        assert_eq!(outside.unwrap()[..], ips(&["192.0.2.66"]));
        assert_eq!((own.asked.get(), system.asked.get()), (1, 1));
        // After a reload without the domain its answers are not used.
        own.set("www.test.", Reply::Silence);
        let other = plain.resolve("www.test", false, None).await.unwrap();
        assert_eq!(other[..], ips(&["192.0.2.66"]));
        assert_eq!((own.asked.get(), system.asked.get()), (1, 1));
        // Silence of its server is no reason to ask another one.
        own.set("mail.school.local.", Reply::Silence);
        let silent = resolver.resolve("mail.school.local", false, None).await;
        assert!(matches!(
            silent,
            Err(Failure::NameTimeout(_) | Failure::NameError)
        ));
        assert_eq!(system.asked.get(), 1);
    })
    .await;
}

#[tokio::test]
async fn lookups_of_the_system_for_one_client_leave_threads_to_others() {
    let system = FairPermits::new(source::SYSTEM_LOOKUPS);
    let servers = NameServers::Files {
        resolv_conf: "/nowhere/resolv.conf".into(),
        hosts: "/nowhere/hosts".into(),
    };
    let source = DnsSource::new(servers, Duration::from_secs(5), system.clone());
    let client = |last| Some(Network::containing([192, 0, 2, last].into()));
    let mut held = Vec::new();
    for _ in 0..source::SYSTEM_LOOKUPS / 2 {
        held.push(system.acquire(client(1)).await);
    }
    // The system refuses this name without asking anybody.
    let name = "\0.local";
    let mut greedy = Box::pin(source.look_up(name, false, client(1)));
    let none = timeout(Duration::ZERO, &mut greedy).await;
    assert!(none.is_err(), "it waits");
    let other = source.look_up(name, false, client(2)).await;
    assert!(matches!(other.outcome, LookupOutcome::NoSuchName));
    assert!(timeout(Duration::ZERO, &mut greedy).await.is_err());
    held.pop();
    assert!(matches!(greedy.await.outcome, LookupOutcome::NoSuchName));
}
