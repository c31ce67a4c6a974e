//! Tests of collapsed forwarding.

use std::net::IpAddr;

use hashcache_http::Scheme;
use http::HeaderValue;
use tokio::task::JoinSet;

use super::*;

fn at(host: &str) -> Authority {
    Authority::parse(host, Scheme::Http).unwrap()
}

const FIRST_BYTE_TIME: Duration = Duration::from_secs(60);

fn patience(collapse: &Collapse, origin: &str) -> Duration {
    collapse
        .wait_times(&at(origin), CollapseWait::Lan, FIRST_BYTE_TIME)
        .first
}

const TIMES: WaitTimes = WaitTimes {
    first: Duration::from_secs(1),
    total: FIRST_BYTE_TIME,
    at_end: AtEnd::Fail,
};

fn leader(collapse: &Arc<Collapse>, key: &[u8]) -> Leader {
    match collapse.join(
        &Bytes::copy_from_slice(key),
        Requester::Anybody,
        Instant::now(),
    ) {
        Role::Leader(leader) => leader,
        Role::Follower(_) | Role::Alone => panic!("somebody else fetches"),
    }
}

fn client(number: u8) -> Network {
    Network::containing(IpAddr::from([192, 0, 2, number]))
}

/// The failure of a request of client `number`.
fn failure(requester: Requester, number: u8) -> SharedFailure {
    SharedFailure {
        failure: Failure::ConnectionRefused,
        requester,
        client: client(number),
        fields: None,
    }
}

/// The error that the origin has sent to client `number`, whose request has this User-Agent.
fn error(number: u8, user_agent: &'static str) -> SharedFailure {
    let failure = Failure::OriginStatus { status: 503 };
    let of = (client(number), &fields(user_agent));
    SharedFailure::new(failure, Requester::Anybody, of)
}

fn fields(user_agent: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(
        http::header::USER_AGENT,
        HeaderValue::from_static(user_agent),
    )])
}

/// A follower of `key` with this User-Agent.
fn follower_with(
    collapse: &Arc<Collapse>,
    key: &[u8],
    user_agent: &'static str,
) -> tokio::task::JoinHandle<Followed> {
    let Role::Follower(follower) = collapse.join(
        &Bytes::copy_from_slice(key),
        Requester::Anybody,
        Instant::now(),
    ) else {
        panic!("nobody else fetches");
    };
    tokio::spawn(async move {
        let fields = fields(user_agent);
        follower.wait(TIMES, Succession::Allowed, &fields).await
    })
}

/// `count` followers of `key`, and the ends of their waits as they come.
fn followers(collapse: &Arc<Collapse>, key: &[u8], count: usize) -> JoinSet<Followed> {
    let follow = |_| match collapse.join(
        &Bytes::copy_from_slice(key),
        Requester::Anybody,
        Instant::now(),
    ) {
        Role::Follower(follower) => {
            async move {
                let fields = HeaderMap::new();
                follower.wait(TIMES, Succession::Allowed, &fields).await
            }
        }
        Role::Leader(_) | Role::Alone => panic!("nobody else fetches"),
    };
    (0..count).map(follow).collect()
}

#[test]
fn one_origin_and_one_client_leave_background_fetches_to_others() {
    let collapse = Collapse::new();
    let bound = BackgroundBound { all: 8, of_one: 2 };
    let begin = |client: u8, origin: &str| {
        let client = Network::containing([192, 0, 2, client].into());
        let origin = Authority {
            host: hashcache_http::Host::Name(origin.into()),
            port: 80,
        };
        let kind = Background::Revalidation;
        collapse.in_background(kind, (client, &origin), bound)
    };
    let hanging: Vec<_> = (0..9).filter_map(|n| begin(n, "hangs.test")).collect();
    assert_eq!(hanging.len(), 2, "of one origin");
    let greedy: Vec<_> = (0..9)
        .filter_map(|n| begin(20, &format!("{n}.test")))
        .collect();
    assert_eq!(greedy.len(), 2, "because of one client");
    let others: Vec<_> = (0..9)
        .filter_map(|n| begin(30 + n, &format!("{n}.example")))
        .collect();
    assert_eq!(others.len(), 4, "in all");
    drop((hanging, greedy, others));
    assert!(collapse.background().is_empty());
}

#[tokio::test(start_paused = true)]
async fn when_a_leader_has_no_outcome_one_follower_leads_and_the_others_follow_it() {
    let collapse = Collapse::new();
    let first = leader(&collapse, b"k");
    let mut waiting = followers(&collapse, b"k", 5);
    assert!(matches!(
        collapse.join(
            &Bytes::from_static(b"other"),
            Requester::Anybody,
            Instant::now()
        ),
        Role::Leader(_)
    ));
    drop(first);
    let Some(Ok(Followed::Leader(next))) = waiting.join_next().await else {
        panic!("nobody leads");
    };
    next.validated((client(1), &at("h")), Requester::Anybody);
    while let Some(end) = waiting.join_next().await {
        assert!(matches!(
            end.expect("it ends"),
            Followed::Validated(Requester::Anybody)
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn followers_share_the_failure_of_a_request_that_anybody_could_have_sent() {
    let collapse = Collapse::new();
    let first = leader(&collapse, b"k");
    let mut waiting = followers(&collapse, b"k", 5);
    first.failed(failure(Requester::Anybody, 1));
    while let Some(end) = waiting.join_next().await {
        let end = end.expect("it ends");
        assert!(matches!(end, Followed::Failed(Failure::ConnectionRefused)));
    }
    drop(leader(&collapse, b"k"));
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_origin_is_for_requests_with_the_same_fields_until_another_client_has_it() {
    let collapse = Collapse::new();
    let first = leader(&collapse, b"k");
    let same = follower_with(&collapse, b"k", "odd");
    let other = follower_with(&collapse, b"k", "usual");
    first.failed(error(1, "odd"));
    assert!(matches!(
        same.await.expect("it ends"),
        Followed::Failed(Failure::OriginStatus { status: 503 })
    ));
    let Ok(Followed::Leader(next)) = other.await else {
        panic!("the other request does not ask");
    };
    let waiting = [
        follower_with(&collapse, b"k", "third"),
        follower_with(&collapse, b"k", "fourth"),
    ];
    tokio::task::yield_now().await;
    next.failed(error(2, "usual"));
    let mut ends = JoinSet::new();
    for end in waiting {
        ends.spawn(async move { end.await.expect("it ends") });
    }
    let Some(Ok(Followed::Leader(next))) = ends.join_next().await else {
        panic!("neither asks");
    };
    // A second client has the error with other fields, so the cause is the origin.
    next.failed(error(3, "third or fourth"));
    assert!(matches!(
        ends.join_next().await,
        Some(Ok(Followed::Failed(_)))
    ));
}

#[tokio::test(start_paused = true)]
async fn a_client_cannot_make_others_fail_with_a_field_of_its_own() {
    let collapse = Collapse::new();
    let first = leader(&collapse, b"k");
    let mut waiting = followers(&collapse, b"k", 6);
    first.failed(failure(Requester::OneClient, 1));
    let Some(Ok(Followed::Leader(next))) = waiting.join_next().await else {
        panic!("nobody leads");
    };
    // The same client again proves nothing more.
    next.failed(failure(Requester::OneClient, 1));
    let Some(Ok(Followed::Leader(next))) = waiting.join_next().await else {
        panic!("nobody leads");
    };
    next.failed(failure(Requester::OneClient, 2));
    while let Some(end) = waiting.join_next().await {
        assert!(matches!(end.expect("it ends"), Followed::Failed(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_leader_with_a_field_that_may_make_the_origin_slow() {
    let collapse = Collapse::new();
    let join = |requester| collapse.join(&Bytes::from_static(b"k"), requester, Instant::now());
    let Role::Leader(_odd) = join(Requester::Unknown) else {
        panic!("somebody else fetches");
    };
    let Role::Leader(_user) = join(Requester::OneClient) else {
        panic!("a user waits for it");
    };
    let Role::Leader(plain) = join(Requester::Anybody) else {
        panic!("a plain request waits for a special one");
    };
    for requester in [Requester::Anybody, Requester::OneClient, Requester::Unknown] {
        assert!(
            matches!(join(requester), Role::Follower(_)),
            "{requester:?}"
        );
    }
    let waiting = followers(&collapse, b"k", 3);
    plain.validated((client(1), &at("h")), Requester::Anybody);
    for end in waiting.join_all().await {
        assert!(matches!(end, Followed::Validated(Requester::Anybody)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_for_one_client_sends_all_followers_at_once() {
    let collapse = Collapse::new();
    let first = leader(&collapse, b"k");
    let mut waiting = followers(&collapse, b"k", 5);
    first.not_shared((client(1), &at("h")), Requester::Anybody, Instant::now());
    let before = Instant::now();
    while let Some(end) = waiting.join_next().await {
        assert!(matches!(end.expect("it ends"), Followed::Alone));
    }
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_field_for_which_nothing_is_stored_makes_no_plain_request_go_alone() {
    let collapse = Collapse::new();
    let join = |requester| collapse.join(&Bytes::from_static(b"k"), requester, Instant::now());
    let Role::Leader(odd) = join(Requester::Unknown) else {
        panic!("somebody else fetches");
    };
    let Role::Leader(plain) = join(Requester::Anybody) else {
        panic!("a plain request waits for a special one");
    };
    let waiting = followers(&collapse, b"k", 3);
    odd.not_shared((client(1), &at("h")), Requester::Unknown, Instant::now());
    assert!(matches!(join(Requester::Unknown), Role::Alone));
    assert!(matches!(join(Requester::Anybody), Role::Follower(_)));
    plain.validated((client(1), &at("h")), Requester::Anybody);
    for end in waiting.join_all().await {
        assert!(matches!(end, Followed::Validated(_)));
    }
    assert_eq!(patience(&collapse, "h"), WAIT_UNKNOWN);
}

#[tokio::test(start_paused = true)]
async fn a_response_for_its_client_alone_ends_the_round_and_says_nothing_of_the_key() {
    let collapse = Collapse::new();
    let join = |requester| collapse.join(&Bytes::from_static(b"k"), requester, Instant::now());
    let Role::Leader(odd) = join(Requester::Unknown) else {
        panic!("somebody else fetches");
    };
    let Role::Follower(follower) = join(Requester::Unknown) else {
        panic!("it does not wait");
    };
    odd.for_one(Requester::Unknown);
    let fields = HeaderMap::new();
    let end = follower.wait(TIMES, Succession::Allowed, &fields).await;
    assert!(matches!(end, Followed::Alone));
    assert!(matches!(join(Requester::Unknown), Role::Leader(_)));
}

#[tokio::test(start_paused = true)]
async fn a_slow_leader_gets_one_more_at_a_time_and_less_and_less_often() {
    let collapse = Collapse::new();
    let _slow = leader(&collapse, b"k");
    let begun = Instant::now();
    let mut waiting = followers(&collapse, b"k", 100);
    let mut leaders = Vec::new();
    let mut failed = 0;
    while let Some(end) = waiting.join_next().await {
        match end.expect("it ends") {
            Followed::Leader(leader) => leaders.push((begun.elapsed().as_secs(), leader)),
            Followed::Failed(Failure::FirstByteTimeout(_)) => {
                failed += 1;
                assert_eq!(begun.elapsed(), FIRST_BYTE_TIME);
            }
            _ => panic!("no outcome was announced"),
        }
    }
    let times: Vec<_> = leaders.iter().map(|(time, _)| *time).collect();
    assert_eq!(times[..5], [1, 3, 7, 12, 17]);
    assert_eq!(failed + leaders.len(), 100);
    assert!(leaders.len() < 16, "{}", leaders.len());
}

#[tokio::test(start_paused = true)]
async fn all_follow_whichever_leader_answers_first() {
    let collapse = Collapse::new();
    let slow = leader(&collapse, b"k");
    let mut waiting = followers(&collapse, b"k", 5);
    let Some(Ok(Followed::Leader(quick))) = waiting.join_next().await else {
        panic!("nobody leads");
    };
    // The slow one may still answer, so its failure would come too early.
    quick.failed(failure(Requester::Anybody, 1));
    slow.validated((client(1), &at("h")), Requester::Anybody);
    while let Some(end) = waiting.join_next().await {
        assert!(matches!(end.expect("it ends"), Followed::Validated(_)));
    }
    drop(leader(&collapse, b"k"));
}

#[tokio::test(start_paused = true)]
async fn a_follower_of_something_else_goes_alone_when_its_wait_is_over() {
    let collapse = Collapse::new();
    let _slow = leader(&collapse, b"k");
    let follower = collapse
        .under_way(&Bytes::from_static(b"k"))
        .expect("it is fetched");
    let before = Instant::now();
    let fields = HeaderMap::new();
    let end = follower.wait(TIMES, Succession::Never, &fields).await;
    assert!(matches!(end, Followed::Alone));
    assert_eq!(before.elapsed(), TIMES.first);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_could_not_be_shared_is_not_waited_for() {
    let collapse = Collapse::new();
    let Role::Leader(leader) = collapse.join(
        &Bytes::from_static(b"k"),
        Requester::Anybody,
        Instant::now(),
    ) else {
        panic!()
    };
    leader.not_shared((client(1), &at("h")), Requester::Anybody, Instant::now());
    assert!(matches!(
        collapse.join(
            &Bytes::from_static(b"k"),
            Requester::Anybody,
            Instant::now()
        ),
        Role::Alone
    ));
    let later = Instant::now() + UNSHAREABLE + Duration::from_secs(1);
    assert!(matches!(
        collapse.join(&Bytes::from_static(b"k"), Requester::Anybody, later),
        Role::Leader(_)
    ));
}

#[test]
fn patience_is_what_was_set_and_never_more_than_a_fetch_may_take() {
    let collapse = Collapse::new();
    collapse.note_head_time((client(1), &at("near")), Duration::from_millis(10));
    let second = Duration::from_secs(1);
    for origin in ["near", "unknown"] {
        let wait = |wait| {
            collapse
                .wait_times(&at(origin), wait, FIRST_BYTE_TIME)
                .first
        };
        assert_eq!(wait(CollapseWait::Satellite), FIRST_BYTE_TIME);
        assert_eq!(wait(CollapseWait::Within(second)), second);
        for longer in [CollapseWait::Within(2 * FIRST_BYTE_TIME), CollapseWait::Lan] {
            assert!(wait(longer) <= FIRST_BYTE_TIME);
        }
    }
    let most = Duration::from_millis(50);
    let times = collapse.wait_times(&at("unknown"), CollapseWait::Lan, most);
    assert_eq!((times.first, times.total), (most, most));
}

#[tokio::test]
async fn an_origin_that_hardly_shares_is_not_waited_for_whatever_was_set() {
    let collapse = Collapse::new();
    answer(&collapse, "counter", b"page", Shared::No);
    for wait in [
        CollapseWait::Satellite,
        CollapseWait::Lan,
        CollapseWait::Within(WAIT_MAX),
    ] {
        let times = collapse.wait_times(&at("counter"), wait, FIRST_BYTE_TIME);
        assert_eq!(times.total, WAIT_IN_VAIN, "{wait:?}");
    }
}

#[test]
fn patience_follows_the_origin() {
    let collapse = Collapse::new();
    collapse.note_head_time((client(1), &at("slow")), Duration::from_secs(1));
    assert_eq!(patience(&collapse, "slow"), Duration::from_secs(2));
    collapse.note_head_time((client(1), &at("dead")), Duration::from_secs(60));
    assert_eq!(patience(&collapse, "dead"), WAIT_MAX);
}

/// An origin answers a leader after a second.
fn answer(collapse: &Arc<Collapse>, origin: &str, key: &[u8], shared: Shared) {
    let Role::Leader(leader) = collapse.join(
        &Bytes::copy_from_slice(key),
        Requester::Anybody,
        Instant::now(),
    ) else {
        panic!()
    };
    collapse.note_head_time((client(1), &at(origin)), Duration::from_secs(1));
    match shared {
        Shared::Yes => leader.validated((client(1), &at(origin)), Requester::Anybody),
        Shared::No => {
            leader.not_shared((client(1), &at(origin)), Requester::Anybody, Instant::now());
        }
    }
}

#[derive(Clone, Copy)]
enum Shared {
    Yes,
    No,
}

#[tokio::test]
async fn one_answer_that_could_not_be_shared_is_enough_for_an_origin_not_met_before() {
    let collapse = Collapse::new();
    answer(&collapse, "counter", b"page", Shared::No);
    assert_eq!(patience(&collapse, "counter"), WAIT_IN_VAIN);
    assert_eq!(patience(&collapse, "other"), WAIT_UNKNOWN);
    answer(&collapse, "counter", b"style", Shared::Yes);
    assert_eq!(patience(&collapse, "counter"), Duration::from_secs(2));
}

#[tokio::test]
async fn an_origin_with_answers_of_both_kinds_is_waited_for() {
    let collapse = Collapse::new();
    for number in 0..64u8 {
        let shared = match number % 4 {
            0 => Shared::Yes,
            _ => Shared::No,
        };
        answer(&collapse, "shop", &[number], shared);
        assert_eq!(patience(&collapse, "shop"), Duration::from_secs(2));
    }
}

#[tokio::test]
async fn an_origin_that_no_longer_shares_is_waited_for_no_longer() {
    let collapse = Collapse::new();
    answer(&collapse, "h", b"style", Shared::Yes);
    let mut needed = 0;
    while patience(&collapse, "h") != WAIT_IN_VAIN {
        needed += 1;
        answer(&collapse, "h", &[needed], Shared::No);
    }
    assert_eq!(needed, 16);
}

#[test]
fn no_more_origins_are_remembered_than_there_is_room_for_and_each_client_has_a_share() {
    let collapse = Collapse::new();
    collapse.note_head_time((client(1), &at("near")), Duration::from_millis(300));
    let known = patience(&collapse, "near");
    for number in 0..2 * SHARDS * REMEMBERED {
        let origin = at(&format!("h{number}"));
        collapse.note_head_time((client(2), &origin), Duration::ZERO);
    }
    for shard in &collapse.shards {
        let origins = shard.lock().unwrap().origins.len();
        assert!(origins <= REMEMBERED, "{origins}");
    }
    assert_eq!(patience(&collapse, "near"), known);
    assert_ne!(patience(&collapse, "unknown"), known);
}

#[tokio::test]
async fn a_head_that_is_being_changed_holds_up_a_32nd_of_the_others_and_those_in_their_order() {
    let collapse = Collapse::new();
    let held = collapse.head(b"changed").await;
    let is_held_up = |n: &u32| {
        let part = collapse.index(&n.to_be_bytes());
        collapse.heads[part].try_lock().is_err()
    };
    let held_up = (0..3200).filter(is_held_up).count();
    // 100 of them are to be expected, give or take 10.
    assert!((40..200).contains(&held_up), "{held_up}");
    // Many changes of one client, then one of another.
    let order = Arc::<Mutex<Vec<u32>>>::default();
    let mut changes = JoinSet::new();
    for n in 0..100 {
        let (collapse, order) = (Arc::clone(&collapse), Arc::clone(&order));
        changes.spawn(async move {
            let _alone = collapse.head(b"changed").await;
            order.lock().unwrap().push(n);
        });
        // It takes its place in the line.
        tokio::task::yield_now().await;
    }
    drop(held);
    while let Some(changed) = changes.join_next().await {
        changed.unwrap();
    }
    let order = order.lock().unwrap();
    assert!(order.is_sorted() && order.len() == 100, "{order:?}");
}
