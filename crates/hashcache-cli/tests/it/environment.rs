//! `hashcache env`: what a shell reads from its output, and which settings programs get.

use std::process::Command;

use crate::Home;

const MIRRORS: [&str; 4] = [
    "--mirror=pypi=http://index.test/simple/ http://files.test",
    "--mirror=npm:n=http://registry.test/",
    "--mirror=crates=http://crates.test/",
    "--mirror=apt=http://archive.test/debian/",
];

#[test]
fn a_shell_that_reads_it_has_the_variables_and_nothing_else() {
    let home = Home::new();
    let flags = [&["env", "--public-url=http://box.test:3128"], &MIRRORS[..]].concat();
    let outcome = home.hashcache(&flags, &[]);
    assert_eq!((outcome.status, &outcome.stderr[..]), (Some(0), ""));
    let script = format!("{}\nenv", outcome.stdout);
    let output = Command::new("sh")
        .args(["-euc", &script])
        .env_clear()
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // Some shells set variables of their own.
    let of_shell = ["PWD=", "OLDPWD=", "SHLVL=", "_="];
    let is_ours = |line: &&str| !of_shell.iter().any(|name| line.starts_with(name));
    let mut lines: Vec<&str> = text.lines().filter(is_ours).collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "HTTPS_PROXY=http://box.test:3128/",
            "NO_PROXY=localhost,127.0.0.1,::1,box.test",
            "PIP_INDEX_URL=http://box.test:3128/mirror/pypi/simple/",
            "PIP_TRUSTED_HOST=box.test:3128",
            "http_proxy=http://box.test:3128/",
            "https_proxy=http://box.test:3128/",
            "no_proxy=localhost,127.0.0.1,::1,box.test",
            "npm_config_omit_lockfile_registry_resolved=true",
            "npm_config_registry=http://box.test:3128/mirror/n/",
        ]
    );
    for line in [
        "#   trusted-host = box.test:3128",
        "#   registry=http://box.test:3128/mirror/n/",
        "#   registry = \"sparse+http://box.test:3128/mirror/crates/\"",
        "#   URIs: http://box.test:3128/mirror/apt/",
    ] {
        assert!(
            outcome.stdout.lines().any(|told| told == line),
            "{line}: {}",
            outcome.stdout
        );
    }
}

#[test]
fn pip_checks_the_certificate_of_a_proxy_with_tls() {
    let home = Home::new();
    let flags = [&["env", "--public-url=https://box.test"], &MIRRORS[..]].concat();
    let script = home.hashcache(&flags, &[]).stdout;
    assert!(
        script.contains("PIP_INDEX_URL='https://box.test/mirror/pypi/simple/'"),
        "{script}"
    );
    let told = script.to_lowercase().replace('-', "_");
    assert!(!told.contains("trusted_host"), "{script}");
}

#[test]
fn programs_are_told_the_same_and_of_each_mirror() {
    let home = Home::new();
    let flags = [&["env", "--json", "--listen=0.0.0.0:81"], &MIRRORS[..]].concat();
    let outcome = home.hashcache(&flags, &[]);
    let told: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    // A client cannot connect to an unspecified address, so loopback is printed.
    assert_eq!(told["proxy"], "http://127.0.0.1:81");
    assert_eq!(told["pac"], "http://127.0.0.1:81/proxy.pac");
    assert_eq!(told["variables"]["http_proxy"], "http://127.0.0.1:81/");
    let mirrors = told["mirrors"].as_array().unwrap();
    let names: Vec<&str> = mirrors
        .iter()
        .map(|mirror| mirror["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["pypi", "n", "crates", "apt"]);
    assert_eq!(mirrors[2]["file"], ".cargo/config.toml");
    assert_eq!(
        mirrors[2]["lines"][3],
        "registry = \"sparse+http://127.0.0.1:81/mirror/crates/\""
    );
}

#[test]
fn a_proxy_in_front_of_a_site_is_nothing_to_tell_clients_of() {
    let outcome = Home::new().hashcache(&["env", "--accelerate=http://site.test"], &[]);
    assert_eq!((outcome.status, &outcome.stdout[..]), (Some(2), ""));
    assert!(outcome.stderr.contains("hint: "), "{}", outcome.stderr);
}

#[test]
fn who_has_an_authority_is_told_of_its_certificates() {
    let home = Home::new();
    let made = home.hashcache(&["ca", "init", "--dir=it's $(id)"], &[]);
    assert_eq!(made.status, Some(0), "{}", made.stderr);
    let flags = ["env", "--intercept-ca=it's $(id)", "--intercept=a.test"];
    let outcome = home.hashcache(&flags, &[]);
    assert_eq!((outcome.status, &outcome.stderr[..]), (Some(0), ""));
    let names = [
        "SSL_CERT_FILE",
        "CURL_CA_BUNDLE",
        "REQUESTS_CA_BUNDLE",
        "PIP_CERT",
        "CARGO_HTTP_CAINFO",
        "GIT_SSL_CAINFO",
        "AWS_CA_BUNDLE",
        "npm_config_cafile",
        "NODE_EXTRA_CA_CERTS",
    ];
    // From another directory than the one that the flags are relative to.
    let script = format!("cd /\n{}\n", outcome.stdout);
    let script = names.iter().fold(script, |script, name| {
        format!("{script}cat \"${name}\"; echo .\n")
    });
    let output = Command::new("sh")
        .args(["-euc", &script])
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let read = |file: &str| std::fs::read_to_string(home.path().join("it's $(id)").join(file));
    let (root, bundle) = (read("root.pem").unwrap(), read("bundle.pem").unwrap());
    let expected = [format!("{bundle}.\n").repeat(8), format!("{root}.\n")].concat();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    let line = "# Other devices get the certificate from http://127.0.0.1:3128/ca\n";
    assert!(outcome.stdout.contains(line), "{}", outcome.stdout);

    let told = home.hashcache(&[&flags[..], &["--json"]].concat(), &[]);
    let told: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    let bundle = home
        .path()
        .canonicalize()
        .unwrap()
        .join("it's $(id)/bundle.pem");
    assert_eq!(told["variables"]["PIP_CERT"], bundle.to_str().unwrap());
}

#[test]
fn nobody_is_told_of_certificates_that_cannot_be_read() {
    let flags = ["env", "--intercept-ca=none", "--intercept=a.test"];
    let outcome = Home::new().hashcache(&flags, &[]);
    assert_eq!((outcome.status, &outcome.stderr[..]), (Some(0), ""));
    assert!(!outcome.stdout.contains("CERT="), "{}", outcome.stdout);
    assert!(
        outcome.stdout.contains("cannot be read by this user"),
        "{}",
        outcome.stdout
    );
}
