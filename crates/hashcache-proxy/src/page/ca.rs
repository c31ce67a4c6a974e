//! The page `/ca`: explains how a device can trust the authority of this proxy, and tests if it
//! does.
//!
//! Called by `request::own` if there is an authority.
//!
//! Invariant: the page loads only the response of the self-test, from a host for which only this
//! proxy can answer. The only script is a constant, and the page's policy allows it by hash.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hashcache_base::frame::{Escaped, document};
use hashcache_base::tls::sha256;
use hashcache_http::{Host, Origin, UnixTime, http_date};
use hashcache_intercept::SELF_TEST_HOST;
use hashcache_intercept::authority::CertificateAuthority;
use http::{HeaderValue, Response, StatusCode, header};
use qrcodegen::{QrCode, QrCodeEcc};

use super::{PageReader, page, printable};

/// Page content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CaPage<'a> {
    /// The authority to trust.
    pub(crate) authority: &'a CertificateAuthority,
    /// URL under which the client reaches this proxy.
    pub(crate) url: &'a Origin,
    /// Reader type.
    pub(crate) reader: PageReader,
}

/// Returns the response for `path`, if there is one.
pub(crate) fn ca(path: &str, wanted: &CaPage<'_>) -> Option<Response<Bytes>> {
    let authority = wanted.authority;
    let (kind, content) = match path {
        "/ca" => return Some(wanted.page()),
        // Android and Firefox recognise a certificate by this type.
        "/ca.crt" => (
            "application/x-x509-ca-cert",
            Bytes::copy_from_slice(authority.root_der()),
        ),
        "/ca.pem" => ("application/x-pem-file", authority.root_pem().into()),
        "/ca.mobileconfig" => (
            "application/x-apple-aspen-config",
            profile(authority).into(),
        ),
        _ => return None,
    };
    let mut response = Response::new(content);
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    fields.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    Some(response)
}

impl CaPage<'_> {
    fn page(&self) -> Response<Bytes> {
        let body = match self.reader {
            PageReader::Browser => document("Trust this cache", &self.html()),
            PageReader::Program => self.text(),
        };
        let mut response = page(StatusCode::OK, self.reader, body);
        response
            .headers_mut()
            .insert(header::CONTENT_SECURITY_POLICY, POLICY.clone());
        response
    }

    fn html(&self) -> String {
        let (authority, url) = (self.authority, self.url);
        let name = printable(authority.name());
        // May wrap between bytes, but is copied without changes.
        let fingerprint = authority.fingerprint().to_string().replace(':', ":<wbr>");
        let until = date(authority.not_after());
        let mut main = format!(
            "<style>{STYLE}</style>\
             <p>This cache also stores pages of some HTTPS sites, which its operator has chosen \
             (such as updates, packages, encyclopedias). To do so it decrypts their traffic, so \
             your device must trust the certificate of this cache. All other HTTPS traffic \
             passes through encrypted.</p>{TEST}"
        );
        if let Some(code) = qr_code(url) {
            let _ = write!(main, "<p>To open this page on a phone, scan:</p>{code}");
        } else {
            main.push_str(
                "<p>If you open this page at the network address of this machine, it shows a code \
                 that phones can scan.</p>",
            );
        }
        let _ = write!(
            main,
            "<p class=d><a href=/ca.crt>Certificate</a> <a href=/ca.pem>Text (PEM)</a> \
             <a href=/ca.mobileconfig>Profile for iPhone and iPad</a></p>\
             <dl><dt>Name<dd>{}<dt>SHA-256<dd>{fingerprint}<dt>Expires<dd>{until}",
            Escaped(&name)
        );
        if let Some(only) = authority.only() {
            let only: Vec<&str> = only.collect();
            let _ = write!(main, "<dt>Only for<dd>{}", Escaped(&only.join(", ")));
        }
        main.push_str(
            "</dl><h2>How to trust it</h2><p>First compare the SHA-256 with the one you have from \
             the operator of this cache: anybody can make a page like this.</p>",
        );
        for (system, steps) in SYSTEMS {
            let _ = write!(main, "<details><summary>{system}</summary>");
            for step in *steps {
                let _ = match step {
                    Step::Do(text) => write!(main, "<p>{text}</p>"),
                    Step::Type(lines) => {
                        let lines = lines.replace("{url}", &url.to_string());
                        write!(main, "<pre>{}</pre>", Escaped(&lines))
                    }
                };
            }
            main.push_str("</details>");
        }
        let _ = write!(
            main,
            "<h2>Programs that do not trust it</h2><p>{LIMITS}</p>\
             <p>To undo this, remove the certificate in the same place.</p>\
             <script>{SCRIPT}</script>"
        );
        main
    }

    fn text(&self) -> String {
        let (authority, url) = (self.authority, self.url);
        let mut text = format!(
            "This cache stores pages of https sites that its operator has chosen, for devices \
             that trust its certificate.\n\nName:    {}\nSHA-256: {}\nExpires: {}\n",
            printable(authority.name()),
            authority.fingerprint(),
            date(authority.not_after()),
        );
        if let Some(only) = authority.only() {
            let _ = writeln!(text, "Only:    {}", only.collect::<Vec<_>>().join(", "));
        }
        let _ = write!(
            text,
            "\nCertificate: {url}/ca.crt (DER), {url}/ca.pem, {url}/ca.mobileconfig\n"
        );
        for (system, steps) in SYSTEMS {
            for step in *steps {
                if let Step::Type(lines) = step {
                    let lines = lines.replace("{url}", &url.to_string());
                    let _ = write!(text, "\n{system}:\n{lines}\n");
                }
            }
        }
        let _ = write!(text, "\n{LIMITS}\n");
        text
    }
}

/// A step for the user.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A description in HTML.
    Do(&'static str),
    /// A command for a terminal; `{url}` stands for this proxy's URL.
    Type(&'static str),
}

/// Steps for each system, the most common systems first.
const SYSTEMS: &[(&str, &[Step])] = &[
    (
        "Windows",
        &[
            Step::Do(
                "Open the <a href=/ca.crt>certificate</a>, choose “Install Certificate…”, “Place \
                 all certificates in the following store”, “Trusted Root Certification \
                 Authorities”. Or, in a terminal in the folder of the file:",
            ),
            Step::Type("certutil -user -addstore Root ca.crt"),
        ],
    ),
    (
        "Android",
        &[Step::Do(
            "Download the <a href=/ca.crt>certificate</a>. In the settings look for “CA \
             certificate” (Security, Encryption &amp; credentials, Install a certificate) and \
             choose the file. Chrome then trusts it; Firefox does if “Use third party CA \
             certificates” is on in its secret settings.",
        )],
    ),
    (
        "iPhone and iPad",
        &[Step::Do(
            "In Safari, open the <a href=/ca.mobileconfig>profile</a>. In the settings, install it \
             under “Profile Downloaded”. Then turn it on under General, About, Certificate Trust \
             Settings.",
        )],
    ),
    (
        "ChromeOS",
        &[Step::Do(
            "Download the <a href=/ca.crt>certificate</a>. In the settings of Chrome: Privacy and \
             security, Security, Manage certificates, Authorities, Import; tick “Trust this \
             certificate for identifying websites”.",
        )],
    ),
    (
        "macOS",
        &[
            Step::Do(
                "Open the <a href=/ca.crt>certificate</a>: Keychain Access imports it. Find it \
                 there, open it, and under Trust choose “Always Trust”. Or, in a terminal:",
            ),
            Step::Type(
                "curl -o hashcache-ca.pem {url}/ca.pem\n\
                 sudo security add-trusted-cert -d -r trustRoot \\\n  \
                 -k /Library/Keychains/System.keychain hashcache-ca.pem",
            ),
        ],
    ),
    (
        "Firefox (on Linux, and where it does not use the system’s list)",
        &[Step::Do(
            "Settings, Privacy &amp; Security, View Certificates, Authorities, Import; tick “Trust \
             this CA to identify websites”.",
        )],
    ),
    (
        "Chromium on Linux",
        &[Step::Type(
            "curl -o hashcache-ca.pem {url}/ca.pem\n\
             certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n hashcache -i hashcache-ca.pem",
        )],
    ),
    (
        "Debian and Ubuntu",
        &[Step::Type(
            "sudo curl -o /usr/local/share/ca-certificates/hashcache.crt {url}/ca.pem\n\
             sudo update-ca-certificates",
        )],
    ),
    (
        "Fedora, RHEL and similar",
        &[Step::Type(
            "sudo curl -o /etc/pki/ca-trust/source/anchors/hashcache.pem {url}/ca.pem\n\
             sudo update-ca-trust",
        )],
    ),
    (
        "curl, pip, npm, cargo, git and other programs",
        &[
            Step::Do(
                "Most of them trust what the system trusts. The others need variables, and a file \
                 that also contains the system’s certificates:",
            ),
            Step::Type(
                "curl -o hashcache-ca.pem {url}/ca.pem\n\
                 cat /etc/ssl/certs/ca-certificates.crt hashcache-ca.pem > hashcache-all.pem\n\
                 export CURL_CA_BUNDLE=$PWD/hashcache-all.pem\n\
                 export PIP_CERT=$PWD/hashcache-all.pem\n\
                 export REQUESTS_CA_BUNDLE=$PWD/hashcache-all.pem\n\
                 export CARGO_HTTP_CAINFO=$PWD/hashcache-all.pem\n\
                 export GIT_SSL_CAINFO=$PWD/hashcache-all.pem\n\
                 export NODE_EXTRA_CA_CERTS=$PWD/hashcache-ca.pem",
            ),
        ],
    ),
];

const LIMITS: &str = "On Android, only browsers trust a certificate that you install, not apps. \
    Some other programs (of banks, messengers, app stores) accept only the certificates of their \
    own servers. All of them continue to work: after two failed tries, their traffic passes \
    through encrypted and is not stored.";

/// The self-test: shows one result out of four.
const TEST: &str = "\
<div role=status><p class=a id=w>Testing whether this device trusts the certificate…</p>\
<p class=a id=y hidden><b>✓ This device trusts the certificate.</b> You do not need to do \
anything.</p>\
<p class=a id=n hidden><b>✗ This device does not trust the certificate yet.</b> Follow the steps \
below, then <a href=/ca>test again</a>.</p>\
<p class=a id=p hidden><b>This browser does not use the proxy yet.</b> Set it up as described on \
the <a href=/>first page</a>, then <a href=/ca>test again</a>.</p></div>\
<noscript><p>Open <a href=\"https://trust-test.hashcache.internal/ok\">the test</a>. “trusted” \
means that this device trusts the certificate; a warning, that it does not trust it yet; no page, \
that it does not use the proxy.</p></noscript>";

/// A response over https means trust; a response only over http means that at least the proxy is
/// used.
const SCRIPT: &str = "\
(function(){\
function ask(u){return fetch(u+'://trust-test.hashcache.internal/ok',\
{cache:'no-store',credentials:'omit'})\
.then(function(r){return r.ok},function(){return false})}\
function show(i){['w','y','n','p'].forEach(function(k){\
document.getElementById(k).hidden=k!==i})}\
ask('https').then(function(y){if(y)return show('y');\
ask('http').then(function(p){show(p?'n':'p')})})\
})()";

const STYLE: &str = "\
svg{display:block;width:12rem;max-width:100%;margin:0 0 1rem}\
.d a{display:inline-block;margin:0 1rem .3rem 0}\
details{border-top:1px solid var(--l)}\
summary{padding:.6rem 0;cursor:pointer}\
details p,details pre{margin:0 0 .8rem}";

/// Only this script may run, and it may only fetch the self-test.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = BASE64.encode(sha256(SCRIPT.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; \
         connect-src https://{SELF_TEST_HOST} http://{SELF_TEST_HOST}"
    );
    HeaderValue::from_str(&policy).expect("letters, digits and signs alone")
});

/// Returns the page's own URL as a QR code, unless the URL would lead to the scanning device
/// itself.
fn qr_code(url: &Origin) -> Option<String> {
    let is_here = match &url.authority.host {
        Host::Name(name) => &**name == "localhost" || name.ends_with(".localhost"),
        Host::V4(address) => IpAddr::V4(*address).is_loopback(),
        Host::V6(address) => IpAddr::V6(*address).is_loopback(),
    };
    if is_here {
        return None;
    }
    let code = QrCode::encode_text(&format!("{url}/ca"), QrCodeEcc::Medium).ok()?;
    let size = code.size();
    let whole = size + 2 * QUIET;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {whole} {whole}\" shape-rendering=crispEdges role=img \
         aria-label=\"{url}/ca\"><path fill=#fff d=\"M0 0h{whole}v{whole}H0z\"/><path d=\""
    );
    for y in 0..size {
        let mut x = 0;
        while x < size {
            let run = (x..size).take_while(|&x| code.get_module(x, y)).count();
            let run = i32::try_from(run).expect("a code has at most 177 modules a side");
            if run > 0 {
                let _ = write!(svg, "M{} {}h{run}v1h-{run}z", x + QUIET, y + QUIET);
            }
            x += run + 1;
        }
    }
    svg.push_str("\"/></svg>");
    Some(svg)
}

/// White margin around a code, in modules (ISO/IEC 18004).
const QUIET: i32 = 4;

/// Returns the certificate as a profile for iOS and macOS.
fn profile(authority: &CertificateAuthority) -> String {
    let name = printable(authority.name());
    let name = Escaped(&name);
    let bytes = authority.fingerprint().0;
    let certificate = BASE64.encode(authority.root_der());
    let (outer, inner) = (uuid(&bytes[..16]), uuid(&bytes[16..]));
    let payload = |kind: &str, uuid: &str| {
        format!(
            "<key>PayloadDisplayName</key><string>{name}</string>\n\
             <key>PayloadIdentifier</key><string>hashcache.ca.{uuid}</string>\n\
             <key>PayloadType</key><string>{kind}</string>\n\
             <key>PayloadUUID</key><string>{uuid}</string>\n\
             <key>PayloadVersion</key><integer>1</integer>\n"
        )
    };
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \
         \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
         <plist version=\"1.0\"><dict>\n{}\
         <key>PayloadContent</key><array><dict>\n{}\
         <key>PayloadCertificateFileName</key><string>ca.crt</string>\n\
         <key>PayloadContent</key><data>{certificate}</data>\n\
         </dict></array>\n</dict></plist>\n",
        payload("Configuration", &outer),
        payload("com.apple.security.root", &inner),
    )
}

/// Returns a UUID from 16 bytes (RFC 9562, version 8): equal for equal profiles.
fn uuid(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let byte = match at {
            6 => byte & 0x0f | 0x80,
            8 => byte & 0x3f | 0x80,
            _ => *byte,
        };
        let _ = write!(text, "{byte:02X}");
    }
    text
}

fn date(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let date = http_date(UnixTime(since.unwrap_or(Duration::ZERO).as_secs()));
    date.to_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
