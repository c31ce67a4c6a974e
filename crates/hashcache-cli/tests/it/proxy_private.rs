//! Files that others could write or read, and a pipe where a file should be, at the start.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::Home;
use crate::operation::{Running, refused, told};

#[test]
fn a_cache_file_that_others_may_write_or_read_is_refused_with_the_command_that_mends_it() {
    let home = Home::new();
    Running::start(&home, &["--config=/dev/null"]).end();
    let mode = || fs::metadata(home.path().join("c.img")).map(|it| it.permissions().mode());
    assert_eq!(mode().expect("a cache") & 0o777, 0o600);
    for mode in [0o666, 0o644, 0o660, 0o602] {
        home.mode("c.img", mode);
        let outcome = refused(&home, &["--cache=c.img", "--cache-size=32MiB"]);
        let (what, hint) = told(&outcome);
        assert!(what.contains("other users can"), "{mode:o}: {what}");
        assert!(hint.starts_with("`chmod 600 c.img`"), "{hint}");
    }
    for mode in [0o640, 0o600] {
        home.mode("c.img", mode);
        Running::start(&home, &["--config=/dev/null"]).end();
    }
}

#[test]
fn a_token_or_a_key_that_others_may_read_is_refused() {
    let home = Home::new();
    home.file("token", "a-token-of-many-letters");
    let outcome = home.hashcache(&["ca", "init", "--dir=ca", "--name=Test"], &[]);
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
    let flags = [
        "--cache=c.img",
        "--cache-size=32MiB",
        "--admin-token-file=token",
        "--intercept-ca=ca",
        "--intercept=a.test",
    ];
    for (name, ill, well) in [
        ("token", 0o644, 0o640),
        ("token", 0o660, 0o600),
        ("ca", 0o777, 0o700),
        ("ca", 0o770, 0o755),
        ("ca/root.key", 0o644, 0o600),
        ("ca/signer.pem", 0o640, 0o600),
    ] {
        home.mode(name, ill);
        let outcome = refused(&home, &flags);
        let (what, hint) = told(&outcome);
        assert!(what.contains("other users can"), "{name} {ill:o}: {what}");
        let command = format!("{name}`");
        assert!(
            hint.starts_with("`chmod ") && hint.contains(&command),
            "{hint}"
        );
        home.mode(name, well);
    }
    Running::start(&home, &[&["--config=/dev/null"], &flags[2..]].concat()).end();
}

#[test]
fn a_pipe_beside_the_cache_does_not_keep_it_from_starting() {
    let home = Home::new();
    for name in ["c.clock", "c.verified"] {
        let path = home.path().join(name);
        let made = mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
        made.expect("a pipe");
    }
    let (tell, told) = std::sync::mpsc::channel();
    let path = home.path().to_owned();
    let start = std::thread::spawn(move || {
        Running::start(&home, &["--config=/dev/null"]).end();
        tell.send(()).expect("the test waits");
    });
    let started = told.recv_timeout(Duration::from_secs(60));
    if started.is_err() {
        // Opening the pipe unblocks the proxy, so that its process ends with the test.
        drop(
            fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(path.join("c.clock")),
        );
    }
    assert_eq!(started, Ok(()));
    start.join().expect("it ended well");
}
