//! `hashcache env`: prints shell code that sets environment variables for programs that use the
//! proxy.
//!
//! Invariant: for every configuration, a shell that evaluates the output only sets variables.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hashcache_http::{Authority, Host, Origin, Scheme};
use hashcache_proxy::{Listen, Mirror, Setup, Speaks};
use hashcache_settings::fault::Fault;
use hashcache_settings::{Environment, SettingArgs, Values};
use serde_json::{Map, Value, json};

use crate::address::reachable;

/// Runs `hashcache env`.
pub fn run(
    as_json: bool,
    args: &SettingArgs,
    environment: &Environment,
) -> anyhow::Result<ExitCode> {
    let values =
        hashcache_settings::load(args.config.as_deref(), args.given(), environment)?.values;
    if values.is_reverse() {
        let what = values.front_of();
        let fault = Fault::new(format!(
            "a reverse proxy in front of {what} needs no proxy settings"
        ));
        return Err(fault
            .hint("clients connect to it as if it were the site")
            .into());
    }
    let proxy = proxy_url(&values);
    let certificates = values
        .intercept_ca
        .as_deref()
        .map(Certificates::from_directory);
    let told = Told::new(&proxy, &values.reloadable.mirrors, certificates);
    let text = if as_json {
        told.json(&proxy)
    } else {
        told.shell()
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns `public_url`, the proxy's URL for all clients. If it is not set, returns a URL for
/// programs on this machine.
fn proxy_url(values: &Values) -> Origin {
    let is_for_programs = |listen: &&Listen| !matches!(listen.speaks, Some(Speaks::Transparent(_)));
    let mut listeners = values.startup.listen.iter().filter(is_for_programs);
    let listen = listeners.next().map(|listen| reachable(listen.address));
    values
        .reloadable
        .public_url
        .clone()
        .unwrap_or_else(|| Origin {
            scheme: Scheme::Http,
            authority: match listen {
                Some(address) => Authority {
                    host: match address.ip() {
                        std::net::IpAddr::V4(address) => Host::V4(address),
                        std::net::IpAddr::V6(address) => Host::V6(address),
                    },
                    port: address.port(),
                },
                // Every listener is transparent, so no program can be configured to use it.
                None => Authority {
                    host: Host::V4(std::net::Ipv4Addr::LOCALHOST),
                    port: 3128,
                },
            },
        })
}

/// Files of the certificate authority with which the proxy intercepts TLS.
#[derive(Debug)]
struct Certificates {
    /// The certificate of the authority, for programs that add it to the certificates of the
    /// system.
    root: PathBuf,
    /// The certificates of the authority and of the system, for programs that take a single file.
    bundle: PathBuf,
    /// True if this user, and so this user's programs, can read both files.
    readable: bool,
}

impl Certificates {
    fn from_directory(directory: &Path) -> Self {
        // An absolute path: the programs may run in another directory.
        let directory = directory.canonicalize().unwrap_or(directory.to_owned());
        let (root, bundle) = (directory.join("root.pem"), directory.join("bundle.pem"));
        let readable = [&root, &bundle].iter().all(|it| File::open(it).is_ok());
        Self {
            root,
            bundle,
            readable,
        }
    }

    fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let adds = ("NODE_EXTRA_CA_CERTS", self.root.display().to_string());
        let bundle = self.bundle.display().to_string();
        let replace = [
            "SSL_CERT_FILE",
            "CURL_CA_BUNDLE",
            "REQUESTS_CA_BUNDLE",
            "PIP_CERT",
            "CARGO_HTTP_CAINFO",
            "GIT_SSL_CAINFO",
            "AWS_CA_BUNDLE",
            // Overrides `cafile` in npm's own files, which would override NODE_EXTRA_CA_CERTS.
            "npm_config_cafile",
        ];
        let replace = replace.map(|name| (name, bundle.clone()));
        [adds].into_iter().chain(replace)
    }
}

/// The command's output.
struct Told<'a> {
    variables: Vec<(&'static str, String)>,
    mirrors: Vec<(&'a Mirror, Setup)>,
    /// Notes about certificates for the user; may be empty.
    certificates: Vec<String>,
}

impl<'a> Told<'a> {
    fn new(proxy: &Origin, mirrors: &'a [Mirror], certificates: Option<Certificates>) -> Self {
        let url = format!("{proxy}/");
        // The host without a port: few programs match a port here.
        let own = match &proxy.authority.host {
            Host::V6(address) => address.to_string(),
            host => host.to_string(),
        };
        let mut direct = vec![
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "::1".to_owned(),
        ];
        if !direct.contains(&own) {
            direct.push(own);
        }
        let mut variables = vec![
            ("http_proxy", url.clone()),
            ("https_proxy", url.clone()),
            // Some programs know only these upper-case names; none of them reads HTTP_PROXY, which
            // a client of a CGI program can set.
            ("HTTPS_PROXY", url),
            ("no_proxy", direct.join(",")),
            ("NO_PROXY", direct.join(",")),
        ];
        let mirrors: Vec<(&Mirror, Setup)> = mirrors
            .iter()
            .map(|mirror| (mirror, mirror.setup(proxy)))
            .collect();
        // The first mirror of each kind sets the variables; the lines of all mirrors are printed as
        // comments.
        let mut taken = BTreeSet::new();
        for (mirror, setup) in &mirrors {
            if taken.insert(mirror.kind().as_str()) {
                variables.extend(setup.variables.iter().cloned());
            }
        }
        let mut lines = vec![];
        if let Some(certificates) = certificates {
            if certificates.readable {
                variables.extend(certificates.variables());
                lines.push(
                    "Chromium and Firefox have their own lists of CAs. For Chromium:".to_owned(),
                );
                lines.push(format!("  {CERTUTIL}"));
            } else {
                lines.push("The CA certificates cannot be read by this user.".to_owned());
            }
            lines.push(format!("Other devices get the certificate from {proxy}/ca"));
        }
        Self {
            variables,
            mirrors,
            certificates: lines,
        }
    }

    fn shell(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.variables {
            text.push_str(&format!("export {name}={}\n", quoted(value)));
        }
        if !self.certificates.is_empty() {
            text.push('\n');
        }
        for line in &self.certificates {
            text.push_str(&format!("# {line}\n"));
        }
        for (mirror, setup) in &self.mirrors {
            let (name, kind, url) = (mirror.name(), mirror.kind(), mirror.url());
            text.push_str(&format!(
                "\n# mirror {name} ({kind}) of {url}, in {}:\n",
                setup.file
            ));
            for line in &setup.lines {
                text.push_str(&format!("#   {line}\n"));
            }
        }
        text
    }

    fn json(&self, proxy: &Origin) -> String {
        let variables: Map<String, Value> = self
            .variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        let mirrors: Vec<Value> = self
            .mirrors
            .iter()
            .map(|(mirror, setup)| {
                let variables: Map<String, Value> = setup
                    .variables
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), json!(value)))
                    .collect();
                json!({
                    "name": mirror.name(),
                    "kind": mirror.kind().as_str(),
                    "url": mirror.url(),
                    "variables": variables,
                    "file": setup.file,
                    "lines": setup.lines,
                })
            })
            .collect();
        let all = json!({
            "proxy": proxy.to_string(),
            "pac": format!("{proxy}/proxy.pac"),
            "variables": variables,
            "mirrors": mirrors,
        });
        format!("{all:#}\n")
    }
}

/// Command that makes Chromium on Linux trust the authority; it uses a variable that this module
/// sets.
const CERTUTIL: &str = "certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n hashcache -i \
    \"$NODE_EXTRA_CA_CERTS\"";

/// Quotes a word so that every POSIX shell reads it back unchanged.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        for word in [
            "http://a.test/",
            "",
            "it's",
            "$(id) `id` \\ \"x\" *",
            "a\nb",
        ] {
            let script = format!("printf %s {}", quoted(word));
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(output.stdout, word.as_bytes(), "{script}");
        }
    }

    #[test]
    fn programs_are_sent_to_a_listener_for_programs() {
        let mut values = Values::defaults(1, None);
        let listen = ["redirect://[::]:3129", "tproxy://[::]:3130", "0.0.0.0:3131"];
        values.startup.listen = listen.map(|text| text.parse().unwrap()).to_vec();
        assert_eq!(proxy_url(&values).to_string(), "http://127.0.0.1:3131");
    }

    #[test]
    fn of_several_mirrors_of_a_kind_the_first_is_set_and_all_are_told() {
        let proxy: Origin = "http://cache.lan:3128".parse().unwrap();
        let mirrors = ["npm=http://one.test/", "npm:two=http://two.test/"]
            .map(|word| hashcache_settings::read_mirror(word).unwrap());
        let told = Told::new(&proxy, &mirrors, None);
        let text = told.shell();
        let set = "export npm_config_registry='http://cache.lan:3128/mirror/npm/'\n";
        assert!(text.contains(set), "{text}");
        assert_eq!(text.matches("export npm_config_registry").count(), 1);
        assert!(
            text.contains("#   registry=http://cache.lan:3128/mirror/two/\n"),
            "{text}"
        );
        assert!(text.contains("export no_proxy='localhost,127.0.0.1,::1,cache.lan'\n"));
        let bare =
            |line: &str| line.is_empty() || line.starts_with("# ") || line.starts_with("#   ");
        let odd = text
            .lines()
            .find(|line| !bare(line) && !line.starts_with("export "));
        assert_eq!(odd, None);
    }
}
