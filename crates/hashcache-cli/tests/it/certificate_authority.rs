//! `hashcache ca`: what it makes and shows, and whether other programs accept it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;

use crate::Home;

#[test]
fn an_authority_is_made_once_and_then_shown() {
    let home = Home::new();
    let made = home.hashcache(&["ca", "init", "--dir=ca"], &[]);
    assert_eq!((made.status, made.stderr.as_str()), (Some(0), ""));
    assert!(
        made.stdout.starts_with("name         HashCache"),
        "{}",
        made.stdout
    );
    assert!(
        made.stdout.contains("for          every host"),
        "{}",
        made.stdout
    );
    assert!(
        made.stdout.contains("does not need ca/root.key"),
        "{}",
        made.stdout
    );

    let again = home.hashcache(&["ca", "init", "--dir=ca"], &[]);
    assert_eq!((again.status, again.stdout.as_str()), (Some(2), ""));
    assert!(again.stderr.contains("exists already"), "{}", again.stderr);
    assert!(
        again.stderr.contains("\nhint: devices that trust"),
        "{}",
        again.stderr
    );

    let shown = home.hashcache(&["ca", "show", "--dir=ca"], &[]);
    assert_eq!((shown.status, shown.stderr.as_str()), (Some(0), ""));
    assert!(made.stdout.starts_with(&shown.stdout), "{}", shown.stdout);
}

#[test]
fn programs_are_told_the_same_and_get_the_certificate() {
    let home = Home::new();
    let flags = [
        "--dir=ca",
        "--name=School",
        "--only",
        "a.test",
        "b.test",
        "--json",
    ];
    let made = home.hashcache(&[&["ca", "init"], &flags[..]].concat(), &[]);
    assert_eq!((made.status, made.stderr.as_str()), (Some(0), ""));
    let shown = home.hashcache(&["ca", "show", "--dir=ca", "--json"], &[]);
    assert_eq!(made.stdout, shown.stdout);
    let told: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!(told["name"], "School");
    assert_eq!(told["only"], serde_json::json!(["a.test", "b.test"]));
    assert_eq!(told["certificate"], "ca/root.pem");
    assert_eq!(told["sha256"].as_str().map(str::len), Some(95));
    assert!(!home.path().join("ca/root.key").exists());
    let pem = home
        .hashcache(&["ca", "show", "--dir=ca", "--pem"], &[])
        .stdout;
    assert_eq!(
        pem,
        fs::read_to_string(home.path().join("ca/root.pem")).unwrap()
    );
    let der = std::process::Command::new(env!("CARGO_BIN_EXE_hashcache"))
        .args(["ca", "show", "--der", "--dir"])
        .arg(home.path().join("ca"))
        .output()
        .unwrap();
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    assert_eq!(der.stdout, certificate.as_ref());
}

#[test]
fn nothing_that_is_printed_holds_a_key() {
    let home = Home::new();
    let made = home.hashcache(&["ca", "init", "--dir=ca"], &[("RUST_LOG", "trace")]);
    let keys = ["signer.pem", "root.key"].map(|file| {
        let text = fs::read_to_string(home.path().join("ca").join(file)).unwrap();
        let begin = text.find("-----BEGIN PRIVATE KEY-----\n").unwrap();
        text[begin..].lines().nth(2).unwrap().to_owned()
    });
    let shows = [vec![], vec!["--pem"], vec!["--json"]].map(|form| {
        let line = [vec!["ca", "show", "--dir=ca"], form].concat();
        home.hashcache(&line, &[("RUST_LOG", "trace")])
    });
    for outcome in shows.iter().chain([&made]) {
        assert_eq!(outcome.status, Some(0));
        for key in &keys {
            assert!(!outcome.stdout.contains(key) && !outcome.stderr.contains(key));
        }
    }
}

#[test]
fn what_cannot_be_is_told_with_what_to_do() {
    let home = Home::new();
    for (line, what, hint) in [
        (
            &["show", "--dir=none"][..],
            "cannot show a certificate authority: cannot read none/signer.pem: No such file",
            "make one with `hashcache ca init`",
        ),
        (
            &["init", "--dir=none/ca"],
            "cannot make a certificate authority: cannot write none/ca: No such file",
            "",
        ),
        (
            &["init", "--dir=ca", "--only=*.test"],
            "cannot make a certificate authority: `*.test` is not a domain",
            "all its subdomains",
        ),
        (
            &["init", "--dir=ca", "--name="],
            "cannot make a certificate authority: `` is not a valid name",
            "characters",
        ),
    ] {
        let outcome = home.hashcache(&[&["ca"], line].concat(), &[]);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(2), ""));
        let begin = format!("hashcache: {what}");
        assert!(outcome.stderr.starts_with(&begin), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(hint), "{}", outcome.stderr);
    }
    assert!(!home.path().join("ca").exists());
    let outcome = home.hashcache(&["ca", "init", "--dir=ca"], &[]);
    assert_eq!(outcome.status, Some(0));
    let key = home.path().join("ca/signer.pem");
    fs::set_permissions(key, Permissions::from_mode(0o644)).unwrap();
    let outcome = home.hashcache(&["ca", "show", "--dir=ca"], &[]);
    assert_eq!(outcome.status, Some(2));
    assert!(outcome.stderr.contains("(mode 644)"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("hint: `chmod 600 ca/signer.pem`"));
}

#[test]
fn the_place_that_the_settings_name_is_where_it_is_made_and_shown() {
    let home = Home::new();
    home.file("c.toml", "[intercept]\nca = \"here\"\n");
    let variables = [("HASHCACHE_CONFIG", "c.toml")];
    let made = home.hashcache(&["ca", "init"], &variables);
    assert_eq!((made.status, made.stderr.as_str()), (Some(0), ""));
    assert!(home.path().join("here/signer.pem").exists());
    let shown = home.hashcache(&["ca", "show"], &variables);
    assert!(shown.stdout.ends_with("\ndirectory    here\n"), "{shown:?}");
    let wrong = home.hashcache(&["ca", "show"], &[("HASHCACHE_CONFIG", "none.toml")]);
    assert_eq!(wrong.status, Some(2));
}
