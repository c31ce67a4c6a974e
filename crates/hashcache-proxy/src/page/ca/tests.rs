//! The page and its downloads as browsers and devices read them.

use hashcache_intercept::authority::MakeOptions;

use super::super::tests::text;
use super::*;

fn authority(name: &str, only: &[&str]) -> CertificateAuthority {
    let home = tempfile::tempdir().unwrap();
    let options = MakeOptions {
        name: name.to_owned(),
        only: only.iter().map(|&domain| domain.to_owned()).collect(),
        now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_250_000),
    };
    CertificateAuthority::make(&home.path().join("ca"), &options).unwrap()
}

fn get(
    authority: &CertificateAuthority,
    url: &str,
    path: &str,
    reader: PageReader,
) -> Option<Response<Bytes>> {
    let url = url.parse().unwrap();
    let wanted = CaPage {
        authority,
        url: &url,
        reader,
    };
    ca(path, &wanted)
}

const URL: &str = "http://box.lan:3128";

#[test]
fn everybody_sees_how_to_know_the_certificate_and_for_what_it_is() {
    let authority = authority("School", &["example.org"]);
    for reader in [PageReader::Browser, PageReader::Program] {
        let page = get(&authority, URL, "/ca", reader).unwrap();
        for part in [
            "School",
            &authority.fingerprint().to_string(),
            "Tue, 31 Dec 2030 06:46:40 GMT",
            "example.org",
            "/ca.crt",
            "/ca.mobileconfig",
            "http://box.lan:3128/ca.pem",
            "update-ca-certificates",
            "NODE_EXTRA_CA_CERTS",
            "only browsers trust a certificate that you install",
        ] {
            let text = text(&page).replace("<wbr>", "");
            assert!(text.contains(part), "{reader:?}: {part}");
        }
        assert!(!text(&page).contains("{url}") && text(&page).contains("CURL_CA_BUNDLE"));
    }
}

#[test]
fn the_page_is_not_large_and_asks_nobody_but_the_self_test() {
    let authority = authority("School", &[]);
    let page = get(&authority, URL, "/ca", PageReader::Browser).unwrap();
    let html = text(&page);
    assert!(html.len() < 24 << 10, "{} bytes", html.len());
    for part in ["src=", "<link", "url(", "@import"] {
        assert!(!html.contains(part), "{part}");
    }
    let others = html.match_indices("://").filter(|(at, _)| {
        let rest = &html[at + 3..];
        let ours = [SELF_TEST_HOST, "box.lan:3128"];
        // The script puts its own scheme in front.
        !ours.iter().any(|host| rest.starts_with(host))
    });
    assert_eq!(others.count(), 0);
    assert!(html.contains(&format!("'://{SELF_TEST_HOST}/ok'")));
    assert!(html.contains(&format!("href=\"https://{SELF_TEST_HOST}/ok\"")));
}

#[test]
fn the_one_script_is_the_one_that_may_run() {
    let authority = authority("School", &[]);
    let page = get(&authority, URL, "/ca", PageReader::Browser).unwrap();
    let html = text(&page);
    let scripts: Vec<&str> = html.split("<script>").skip(1).collect();
    let [script] = scripts[..] else {
        panic!("{} scripts", scripts.len())
    };
    let (script, _) = script.split_once("</script>").unwrap();
    let hash = BASE64.encode(sha256(script.as_bytes()));
    let policy = page.headers()[header::CONTENT_SECURITY_POLICY]
        .to_str()
        .unwrap();
    assert!(
        policy.contains(&format!("script-src 'sha256-{hash}'")),
        "{policy}"
    );
    assert!(policy.starts_with("default-src 'none'; "));
    let asks = format!("connect-src https://{SELF_TEST_HOST} http://{SELF_TEST_HOST}");
    assert!(policy.ends_with(&asks), "{policy}");
}

#[test]
fn a_name_is_shown_and_not_obeyed() {
    let authority = authority("<script>'\"&</string>", &[]);
    let shown = "&lt;script&gt;&#39;&quot;&amp;&lt;/string&gt;";
    let page = get(&authority, URL, "/ca", PageReader::Browser).unwrap();
    assert!(text(&page).contains(shown));
    let profile = get(&authority, URL, "/ca.mobileconfig", PageReader::Browser).unwrap();
    assert_eq!(text(&profile).matches(shown).count(), 2);
}

#[test]
fn devices_get_the_certificate_in_the_form_they_take() {
    let authority = authority("School", &[]);
    let get = |path| get(&authority, URL, path, PageReader::Browser).unwrap();
    let kind = |page: &Response<Bytes>| page.headers()[header::CONTENT_TYPE].clone();
    let der = get("/ca.crt");
    assert_eq!(kind(&der), "application/x-x509-ca-cert");
    assert_eq!(&der.body()[..], authority.root_der());
    let pem = get("/ca.pem");
    assert_eq!(kind(&pem), "application/x-pem-file");
    assert_eq!(text(&pem), authority.root_pem());
    let profile = get("/ca.mobileconfig");
    assert_eq!(kind(&profile), "application/x-apple-aspen-config");
    let data = text(&profile).split("<data>").nth(1).unwrap();
    let (data, _) = data.split_once("</data>").unwrap();
    assert_eq!(data, BASE64.encode(authority.root_der()));
    // A device that has it already replaces it, and does not list it twice.
    assert_eq!(get("/ca.mobileconfig").body(), profile.body());
}

#[test]
fn there_is_no_page_of_any_other_name() {
    let authority = authority("School", &[]);
    for path in ["/", "/ca/", "/CA", "/ca.key", "/signer.pem", "/ca.crt?x"] {
        assert!(
            get(&authority, URL, path, PageReader::Browser).is_none(),
            "{path}"
        );
    }
}

#[test]
fn a_code_is_for_those_who_would_find_us_by_it() {
    let authority = authority("School", &[]);
    let has_code = |url: &str| {
        let page = get(&authority, url, "/ca", PageReader::Browser).unwrap();
        text(&page).contains("<svg")
    };
    for url in [URL, "http://192.168.1.5:3128", "http://[2001:db8::1]:3128"] {
        assert!(has_code(url), "{url}");
    }
    for url in ["http://127.0.0.1:3128", "http://localhost", "http://[::1]"] {
        assert!(!has_code(url), "{url}");
    }
    let long = format!("http://{}.test", ["a".repeat(60), "b".repeat(60)].join("."));
    assert!(has_code(&long));
}

#[test]
fn a_code_has_its_white_border_and_its_three_corners() {
    let svg = qr_code(&URL.parse().unwrap()).unwrap();
    // 25 modules (version 2) and four on each side.
    assert!(svg.contains("viewBox=\"0 0 33 33\""), "{svg}");
    // The edge of a corner is seven dark modules.
    for corner in ["M4 4h7v1h-7z", "M22 4h7v1h-7z", "M4 22h7v1h-7z"] {
        assert!(svg.contains(corner), "{corner}");
    }
}
