//! Authorities as clients judge them, and on disk.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use rustls::CertificateError;
use rustls::Error as TlsError;
use rustls::pki_types::pem::PemObject as _;
use tempfile::TempDir;

use super::*;

/// 2026-01-01, some hours later.
const NOW: u64 = 1_767_250_000;

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn options(only: &[&str]) -> MakeOptions {
    MakeOptions {
        name: "Cache of the tests".to_owned(),
        only: only.iter().map(|&domain| domain.to_owned()).collect(),
        now: at(NOW),
    }
}

fn make(only: &[&str]) -> (TempDir, CertificateAuthority) {
    let home = tempfile::tempdir().unwrap();
    let authority = CertificateAuthority::make(&home.path().join("ca"), &options(only)).unwrap();
    (home, authority)
}

impl CertificateAuthority {
    fn leaf_for_a_week(&self, host: &str) -> Arc<CertifiedKey> {
        self.leaf(host, at(NOW + 100 * DAY), at(NOW)).unwrap()
    }
}

/// The verdict of a client that trusts this root about a chain.
fn judge(
    authority: &CertificateAuthority,
    chain: &[CertificateDer<'_>],
    host: &str,
    time: u64,
) -> Result<(), TlsError> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from(authority.root_der()))
        .unwrap();
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
    let verified = verifier.build().unwrap().verify_server_cert(
        &chain[0],
        &chain[1..],
        &ServerName::try_from(host).unwrap(),
        &[],
        UnixTime::since_unix_epoch(Duration::from_secs(time)),
    );
    verified.map(drop)
}

fn facts(key: &CertifiedKey) -> Certificate {
    Certificate::read(&key.cert[0]).unwrap()
}

#[test]
fn a_leaf_is_believed_for_its_host_alone_and_for_its_time() {
    let (_home, authority) = make(&[]);
    let leaf = authority.leaf_for_a_week("a.test");
    let judge = |host, time| judge(&authority, &leaf.cert, host, time);
    assert!(leaf.keys_match().is_ok());
    assert_eq!(leaf.cert.len(), 2);
    assert_eq!(judge("a.test", NOW), Ok(()));
    assert_eq!(judge("a.test", NOW - DAY), Ok(()));
    assert_eq!(judge("a.test", NOW + 7 * DAY), Ok(()));
    for (host, time) in [
        ("b.a.test", NOW),
        ("test", NOW),
        ("a.test", NOW - DAY - 1),
        ("a.test", NOW + 7 * DAY + 1),
    ] {
        assert!(judge(host, time).is_err(), "{host} {time}");
    }
}

#[test]
fn a_leaf_ends_when_the_first_of_week_origin_and_authority_does() {
    let (_home, authority) = make(&[]);
    let end = seconds(authority.not_after());
    assert_eq!(end, NOW + 5 * 365 * DAY);
    for (origin, now, expected) in [
        (NOW + 100 * DAY, NOW, NOW + 7 * DAY),
        (NOW + 3 * DAY, NOW, NOW + 3 * DAY),
        (u64::MAX >> 8, end - 2 * DAY, end),
    ] {
        let host = format!("h{expected}.test");
        let leaf = authority.leaf(&host, at(origin), at(now)).unwrap();
        assert_eq!(facts(&leaf).not_after, expected);
        assert_eq!(facts(&leaf).not_before, now - DAY);
        assert_eq!(judge(&authority, &leaf.cert, &host, now), Ok(()));
    }
    assert!(matches!(
        authority.leaf("a.test", at(NOW), at(NOW)),
        Err(AuthorityError::Ended("the certificate of the origin"))
    ));
    assert!(matches!(
        authority.leaf("a.test", at(end + 1), at(end)),
        Err(AuthorityError::Ended("the authority"))
    ));
}

#[test]
fn a_leaf_is_kept_until_a_new_one_would_be_longer() {
    let (_home, authority) = make(&[]);
    let origin = NOW + 9 * DAY + DAY / 2;
    let leaf = |now: u64| authority.leaf("a.test", at(origin), at(now)).unwrap();
    let first = leaf(NOW);
    assert!(Arc::ptr_eq(&first, &leaf(NOW + 6 * DAY - 1)));
    // A day before its end.
    let second = leaf(NOW + 6 * DAY);
    assert!(!Arc::ptr_eq(&first, &second));
    assert_eq!(facts(&second).not_after, origin);
    // Another one would end no later: the origin's certificate ends as well.
    assert!(Arc::ptr_eq(&second, &leaf(origin - 1)));
    // The clock went back, or the origin has a certificate that ends sooner.
    assert!(!Arc::ptr_eq(&second, &leaf(NOW)));
    let sooner = authority.leaf("a.test", at(NOW + 2 * DAY), at(NOW));
    assert_eq!(facts(&sooner.unwrap()).not_after, NOW + 2 * DAY);
}

#[test]
fn no_two_certificates_have_one_number_and_all_leaves_one_key() {
    let (_home, authority) = make(&[]);
    let leaves = ["a.test", "b.test"].map(|host| authority.leaf_for_a_week(host));
    let key = |leaf: &CertifiedKey| leaf.key.public_key().unwrap().to_vec();
    assert_eq!(key(&leaves[0]), key(&leaves[1]));
    // The body begins with 4 bytes of head, the version (5 bytes) and the head of the number.
    let number = |leaf: &CertifiedKey| leaf.cert[0][13..15 + 16].to_vec();
    assert_eq!(number(&leaves[0])[..2], [0x02, 16]);
    assert_ne!(number(&leaves[0]), number(&leaves[1]));
}

#[test]
fn an_authority_that_is_kept_to_domains_cannot_vouch_for_others() {
    let (home, authority) = make(&["Example.org", "b.test."]);
    let told: Vec<&str> = authority.only().unwrap().collect();
    assert_eq!(told, ["example.org", "b.test"]);
    for host in ["example.org", "WWW.example.org", "b.test", SELF_TEST_HOST] {
        assert!(authority.permits(host), "{host}");
        let leaf = authority.leaf_for_a_week(host);
        assert_eq!(judge(&authority, &leaf.cert, host, NOW), Ok(()), "{host}");
    }
    for host in ["example.com", "anexample.org", "org", "x.b.test.evil.test"] {
        assert!(!authority.permits(host), "{host}");
        let refused = authority.leaf(host, at(NOW + DAY), at(NOW));
        assert!(matches!(refused, Err(AuthorityError::NotPermitted(_))));
        // Were one made all the same, clients would not believe it.
        let leaf = authority.sign(host, NOW, NOW + DAY).unwrap();
        let chain = [leaf, authority.intermediate.clone()];
        let judged = judge(&authority, &chain, host, NOW);
        let Err(TlsError::InvalidCertificate(CertificateError::Other(why))) = judged else {
            panic!("{host}: {judged:?}")
        };
        assert!(why.to_string().contains("NameConstraint"), "{why}");
    }
    assert!(!home.path().join("ca/root.key").exists());
    for odd in ["", "*.a.test", ".a.test", "10.0.0.1", "bücher.test", "a b"] {
        let made = CertificateAuthority::make(&home.path().join("odd"), &options(&[odd]));
        assert!(matches!(made, Err(AuthorityError::Domain(_))), "{odd}");
    }
}

#[test]
fn hosts_that_are_no_names_get_no_leaf() {
    let (_home, authority) = make(&[]);
    for host in [
        "",
        "127.0.0.1",
        "[::1]",
        "a..b",
        "*.a.test",
        "a b",
        "é.test",
    ] {
        let refused = authority.leaf(host, at(NOW + DAY), at(NOW));
        assert!(matches!(refused, Err(AuthorityError::Host(_))), "{host}");
    }
    let long = format!("{}.{}.test", "a".repeat(60), "b".repeat(60));
    let leaf = authority.leaf_for_a_week(&long);
    assert_eq!(judge(&authority, &leaf.cert, &long, NOW), Ok(()));
    // Case and the root's dot make no other host.
    let again = authority.leaf_for_a_week(&format!("{}.", long.to_uppercase()));
    assert!(Arc::ptr_eq(&leaf, &again));
}

#[test]
fn what_was_made_is_loaded_and_trusted_by_the_same_devices() {
    for only in [&[][..], &["a.test"]] {
        let (home, made) = make(only);
        let loaded = CertificateAuthority::load_from(&home.path().join("ca"), None).unwrap();
        assert_eq!(loaded.root_der(), made.root_der());
        assert_eq!(loaded.name(), "Cache of the tests");
        assert_eq!(loaded.not_after(), made.not_after());
        assert_eq!(loaded.permits("b.test"), only.is_empty());
        let leaf = loaded.leaf_for_a_week("a.test");
        assert_eq!(judge(&made, &leaf.cert, "a.test", NOW), Ok(()));
        let pem = fs::read_to_string(home.path().join("ca/root.pem")).unwrap();
        assert_eq!(pem, loaded.root_pem());
        // Programs that take one file trust it and what the system trusts.
        let bundle = fs::read(home.path().join("ca/bundle.pem")).unwrap();
        let bundle: Vec<_> = CertificateDer::pem_slice_iter(&bundle)
            .map(|it| it.unwrap())
            .collect();
        assert_eq!(&bundle[0][..], loaded.root_der());
        let system = rustls_native_certs::load_native_certs().certs;
        assert_eq!(bundle[1..], system);
    }
}

#[test]
fn keys_are_their_owners_alone_and_shown_to_nobody() {
    let (home, authority) = make(&[]);
    let mode = |name: &str| {
        let path = home.path().join(name);
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    let modes = ["ca", "ca/signer.pem", "ca/root.key"].map(mode);
    assert_eq!(modes, [0o700, 0o600, 0o600]);
    let shown = format!("{authority:?}");
    assert_eq!(
        shown,
        "CertificateAuthority { name: \"Cache of the tests\", only: None, .. }"
    );
}

#[test]
fn a_key_that_others_may_read_is_refused_with_what_to_do() {
    let (home, _) = make(&[]);
    let directory = home.path().join("ca");
    let path = directory.join("signer.pem");
    for mode in [0o640, 0o604, 0o660] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let error = CertificateAuthority::load_from(&directory, None).unwrap_err();
        assert!(matches!(&error, AuthorityError::Exposed { mode: told, .. } if *told == mode));
        let advice = error.advice().unwrap();
        assert!(advice.contains(&format!("chmod 600 {}", path.display())));
    }
    fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
    assert!(CertificateAuthority::load_from(&directory, None).is_ok());
}

#[test]
fn a_credential_is_taken_in_place_of_the_file() {
    let (home, made) = make(&[]);
    let credentials = home.path().join("credentials");
    fs::create_dir(&credentials).unwrap();
    let nowhere = home.path().join("nowhere");
    let load = |directory: &Path| CertificateAuthority::load_from(directory, Some(&credentials));
    let error = load(&nowhere).unwrap_err();
    assert!(matches!(&error, AuthorityError::Read { .. }));
    assert!(error.advice().unwrap().contains("hashcache ca init"));
    assert!(load(&home.path().join("ca")).is_ok());
    let credential = credentials.join("hashcache-ca");
    fs::copy(home.path().join("ca/signer.pem"), &credential).unwrap();
    // As systemd has it where it names a user by an access list.
    fs::set_permissions(&credential, Permissions::from_mode(0o440)).unwrap();
    assert_eq!(load(&nowhere).unwrap().root_der(), made.root_der());
}

#[test]
fn nothing_is_overwritten() {
    let (home, made) = make(&[]);
    let directory = home.path().join("ca");
    for _ in 0..2 {
        let again = CertificateAuthority::make(&directory, &options(&[]));
        assert!(matches!(again, Err(AuthorityError::Exists { .. })));
    }
    let loaded = CertificateAuthority::load_from(&directory, None).unwrap();
    assert_eq!(loaded.root_der(), made.root_der());
    // Someone else made one since it was looked.
    let bundle = files::read(&directory, None).unwrap().1;
    let raced = files::write(&directory, &bundle, None, || Ok(()));
    assert!(matches!(raced, Err(AuthorityError::Exists { .. })));
    let names: Vec<_> = home.path().read_dir().unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    let empty = home.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(CertificateAuthority::make(&empty, &options(&[])).is_ok());
    assert_eq!(
        fs::metadata(&empty).unwrap().permissions().mode() & 0o777,
        0o700
    );
}

#[test]
fn a_cut_at_any_step_leaves_no_authority_or_a_whole_one() {
    let (home, _) = make(&[]);
    let bundle = files::read(&home.path().join("ca"), None).unwrap().1;
    let directory = home.path().join("cut");
    let mut steps = 0;
    loop {
        let mut left = steps;
        let written = files::write(&directory, &bundle, None, || {
            left -= 1;
            if left < 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
        if written.is_ok() {
            break;
        }
        assert!(!directory.exists(), "step {steps}");
        steps += 1;
    }
    // The directory, three files in three steps each, its sync, its name.
    assert_eq!(steps, 12);
    assert!(CertificateAuthority::load_from(&directory, None).is_ok());
}

#[test]
fn names_are_such_as_devices_can_list() {
    let home = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let options = MakeOptions {
            name: name.to_owned(),
            ..options(&[])
        };
        CertificateAuthority::make(
            &home.path().join(format!("{}", fastrand::u64(..))),
            &options,
        )
    };
    let long = "é".repeat(CertificateAuthority::NAME_CHARS);
    assert_eq!(make(&long).unwrap().name(), long);
    assert_eq!(
        make(" Schule <1> & \"2\" ").unwrap().name(),
        "Schule <1> & \"2\""
    );
    for odd in ["", "  ", "a\nb", "\u{1b}[31m", &format!("{long}e")] {
        assert!(matches!(make(odd), Err(AuthorityError::Name(_))), "{odd}");
    }
}

#[test]
fn what_is_damaged_or_mixed_is_refused_and_named() {
    let (home, _) = make(&[]);
    let (other_home, _) = make(&[]);
    let directory = home.path().join("ca");
    let path = directory.join("signer.pem");
    let text = fs::read_to_string(&path).unwrap();
    let other = fs::read_to_string(other_home.path().join("ca/signer.pem")).unwrap();
    let parts = |text: &str| {
        let parts: Vec<String> = text.split_inclusive("-----\n").map(str::to_owned).collect();
        [
            parts[..2].concat(),
            parts[2..4].concat(),
            parts[4..].concat(),
        ]
    };
    let ([key, intermediate, root], [other_key, other_intermediate, other_root]) =
        (parts(&text), parts(&other));
    let wrong = "its key and certificates do not go together";
    for (content, expected) in [
        (String::new(), "it has no key"),
        ([&*intermediate, &root].concat(), "it has no key"),
        ([&*key, &root].concat(), "it has not two certificates"),
        ([&*text, &root].concat(), "it has not two certificates"),
        ([&*other_key, &intermediate, &root].concat(), wrong),
        ([&*key, &other_intermediate, &root].concat(), wrong),
        ([&*key, &intermediate, &other_root].concat(), wrong),
        ([&*key, &root, &intermediate].concat(), wrong),
        ("x".repeat(70_000), "it is too long"),
    ] {
        fs::write(&path, content).unwrap();
        let error = CertificateAuthority::load_from(&directory, None).unwrap_err();
        let AuthorityError::Malformed { what, .. } = error else {
            panic!("{expected}: {error:?}")
        };
        assert_eq!(what, expected);
    }
    for at in (0..text.len()).step_by(7) {
        let mut bytes = text.clone().into_bytes();
        bytes[at] ^= 4;
        fs::write(&path, bytes).unwrap();
        // Damage shows, unless it is in what is no part of the content.
        let _ = CertificateAuthority::load_from(&directory, None);
    }
}

#[test]
fn leaves_stay_within_their_memory() {
    let (_home, authority) = make(&[]);
    *authority.leaves() = LeafCache::new(20_000);
    for host in 0..40 {
        authority.leaf_for_a_week(&format!("h{host}.test"));
        assert!(authority.leaves_bytes() <= 20_000);
    }
    assert!(authority.leaves_bytes() > 15_000);
}

#[test]
fn a_fingerprint_is_written_as_people_compare_it() {
    let mut bytes = [0; 32];
    (bytes[0], bytes[31]) = (0xab, 1);
    let text = Fingerprint(bytes).to_string();
    assert!(
        text.starts_with("AB:00:") && text.ends_with(":01"),
        "{text}"
    );
    assert_eq!(text.len(), 95);
}

#[test]
fn leaves_count_in_the_budget_and_are_done_without_where_it_is_spent() {
    let (_home, authority) = make(&[]);
    let device = Arc::new(hashcache::device::MemoryDevice::new(32 << 20));
    let cache = Cache::open(hashcache::Config::on_device(device)).unwrap();
    authority.count_in(&cache);
    let before = cache.stats().memory_used_bytes;
    for host in 0..20 {
        authority.leaf_for_a_week(&format!("h{host}.test"));
    }
    let counted = cache.stats().memory_used_bytes - before;
    assert_eq!(counted, authority.leaves_bytes());
    assert!(counted > 20 * 1000, "{counted}");
    *authority.leaves() = LeafCache::new(1);
    assert_eq!(cache.stats().memory_used_bytes, before);
    let limit = cache.stats().memory_limit_bytes;
    let _spent = cache.reserve(limit / 8 * 5).unwrap();
    let one = authority.leaf_for_a_week("a.test");
    assert!(!Arc::ptr_eq(&one, &authority.leaf_for_a_week("a.test")));
    assert_eq!(authority.leaves_bytes(), 0);
}
