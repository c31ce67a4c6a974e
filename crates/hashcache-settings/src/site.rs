//! Sites: `[[site]]` tables of a configuration file.
//!
//! Called by `file` for each table. A fault names the wrong field, with a hint for the correct
//! value. Contradictions between sites are found when all sites are known.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use hashcache_http::{
    Authority, HeaderName, Host, LifetimeSpec, Lifetimes, Origin, Scheme, Seconds, Target,
    speaks_for_client,
};
use hashcache_proxy::{
    Balance, Coding, Grace, HeaderChange, HeaderRules, HealthCheck, KeyRules, KeyRulesSpec,
    Message, Prefix, SentHost, Site, SiteOrigin,
};
use serde::Deserialize;

use super::file::{ArrayTable, WrittenTable};
use super::words::one_of;
use crate::fault::{Fault, Faults};
use crate::units::parse_time;

/// A `[[site]]` table as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteTable {
    hosts: Vec<String>,
    origins: Vec<OriginTable>,
    host: Option<String>,
    balance: Option<String>,
    health: Option<HealthTable>,
    #[serde(default)]
    redirect_to_https: bool,
    #[serde(default)]
    trust_forwarded: Vec<String>,
    #[serde(default)]
    front_keeps_logins: bool,
    #[serde(default)]
    pass_fields: Vec<String>,
    #[serde(default)]
    lifetime: Vec<LifetimeSpec>,
    stale_if_error: Option<String>,
    stale_while_revalidate: Option<String>,
    #[serde(default)]
    key: KeyTable,
    #[serde(default)]
    bypass_cookie: Vec<String>,
    #[serde(default)]
    request_headers: HeadersTable,
    #[serde(default)]
    response_headers: HeadersTable,
    #[serde(default)]
    compress: Vec<String>,
    error_page: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OriginTable {
    Url(String),
    Table(WeightedOrigin),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightedOrigin {
    url: String,
    #[serde(default = "usual_weight")]
    weight: u16,
}

fn usual_weight() -> u16 {
    1
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthTable {
    path: String,
    interval: Option<String>,
    timeout: Option<String>,
    status: Option<u16>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct KeyTable {
    drop_query: Vec<String>,
    sort_query: bool,
    cookies: Vec<String>,
    headers: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HeadersTable {
    remove: Vec<String>,
    set: BTreeMap<String, String>,
    add: BTreeMap<String, String>,
}

const BALANCES: [(&str, Balance); 4] = [
    ("round-robin", Balance::RoundRobin),
    ("least-busy", Balance::LeastBusy),
    ("hash", Balance::Hash),
    ("first", Balance::First),
];

impl ArrayTable for SiteTable {
    const ARRAY: &'static str = "site";
    type Meaning = Site;

    fn meaning(self, _: &WrittenTable<'_>) -> Result<Site, Faults> {
        Ok(self.site()?)
    }

    fn name(_: &Site) -> Option<&str> {
        None
    }
}

impl SiteTable {
    /// Returns the site, or the first fault in the table.
    pub fn site(self) -> Result<Site, Fault> {
        let hosts = self.hosts.iter().map(|host| read_host(host));
        let hosts: Vec<Host> = hosts.collect::<Result<_, _>>()?;
        if hosts.is_empty() {
            return Err(Fault::new("`hosts` is empty")
                .hint("list the names under which clients ask for the site"));
        }
        if self.origins.is_empty() {
            return Err(Fault::new("`origins` is empty")
                .hint("list the servers of the site, such as \"http://10.0.0.5:8080\""));
        }
        let origins = self.origins.into_iter().map(OriginTable::origin);
        let balance = match &self.balance {
            Some(word) => one_of(&BALANCES, word).map_err(|fault| fault.at("balance"))?,
            None => Balance::default(),
        };
        let key = KeyRules::new(&KeyRulesSpec {
            drop_query: self.key.drop_query,
            sort_query: self.key.sort_query,
            cookies: self.key.cookies,
            fields: self.key.headers,
            bypass_cookies: self.bypass_cookie,
        });
        let trust = self.trust_forwarded.iter().map(|text| network(text));
        if self.front_keeps_logins && self.trust_forwarded.is_empty() {
            let fault = Fault::new("no proxy is in front of this site").at("front_keeps_logins");
            return Err(fault.hint("name the proxies in `trust_forwarded`"));
        }
        let passed = self.pass_fields.iter().map(|name| passed_field(name));
        let compress = self.compress.iter().map(|word| {
            let coding = one_of(&Coding::ALL, word);
            coding.map_err(|fault| fault.at("compress"))
        });
        Ok(Site {
            hosts,
            origins: origins.collect::<Result<_, _>>()?,
            sent_host: sent_host(self.host.as_deref())?,
            balance,
            health: self.health.map(HealthTable::check).transpose()?,
            redirect_to_https: self.redirect_to_https,
            trust_forwarded: trust.collect::<Result<_, _>>()?,
            front_keeps_logins: self.front_keeps_logins,
            pass_fields: passed.collect::<Result<_, _>>()?,
            lifetimes: Lifetimes::new(self.lifetime)
                .map_err(|error| Fault::new(error.to_string()).at("lifetime"))?,
            grace: Grace {
                stale_if_error: seconds("stale_if_error", self.stale_if_error.as_deref())?,
                stale_while_revalidate: seconds(
                    "stale_while_revalidate",
                    self.stale_while_revalidate.as_deref(),
                )?,
            },
            key: key.map_err(|error| Fault::new(error.to_string()).at("key"))?,
            request_headers: self
                .request_headers
                .rules(Message::Request)
                .map_err(|fault| fault.at("request_headers"))?,
            response_headers: self
                .response_headers
                .rules(Message::Response)
                .map_err(|fault| fault.at("response_headers"))?,
            compress: compress.collect::<Result<_, _>>()?,
            error_page: self.error_page.as_deref().map(read_page).transpose()?,
        })
    }
}

impl OriginTable {
    fn origin(self) -> Result<SiteOrigin, Fault> {
        let (url, weight) = match self {
            Self::Url(url) => (url, 1),
            Self::Table(WeightedOrigin { url, weight }) => (url, weight),
        };
        if !(1..=WEIGHT_MAX).contains(&weight) {
            return Err(
                Fault::new(format!("`{weight}` is not a weight from 1 to {WEIGHT_MAX}"))
                    .at("origins"),
            );
        }
        match url.parse::<Origin>() {
            Ok(url) => Ok(SiteOrigin { url, weight }),
            Err(error) => Err(
                Fault::new(format!("`{url}` is not the URL of an origin: {error}"))
                    .at("origins")
                    .hint("write it as http://host:port or https://host, without a path"),
            ),
        }
    }
}

impl HealthTable {
    fn check(self) -> Result<HealthCheck, Fault> {
        let origin = Authority::parse("origin", Scheme::Http).expect("a valid host");
        if !self.path.starts_with('/') || Target::new(Scheme::Http, origin, &self.path).is_err() {
            return Err(Fault::new(format!("`{}` is not a path", self.path))
                .at("health.path")
                .hint("begin it with /, as in /healthz"));
        }
        let usual = HealthCheck::at(self.path);
        let time = |name: &str, text: Option<String>, usual| match text {
            None => Ok(usual),
            Some(text) => match parse_time(&text).map_err(|fault| fault.at(name))? {
                time if time.is_zero() => Err(Fault::new("must be longer than 0s").at(name)),
                time => Ok(time),
            },
        };
        let status = self.status.unwrap_or(usual.status);
        if !(200..600).contains(&status) {
            return Err(Fault::new(format!("`{status}` is not a final status code"))
                .at("health.status")
                .hint("use a number from 200 to 599"));
        }
        Ok(HealthCheck {
            interval: time("health.interval", self.interval, usual.interval)?,
            timeout: time("health.timeout", self.timeout, usual.timeout)?,
            status,
            path: usual.path,
        })
    }
}

impl HeadersTable {
    /// Removals are first, so that a field can be removed and then set.
    fn rules(&self, message: Message) -> Result<HeaderRules, Fault> {
        let mut rules = HeaderRules::default();
        let wrong = |error: hashcache_proxy::HeaderRuleError| Fault::new(error.to_string());
        for name in &self.remove {
            rules.push_removal(message, name).map_err(wrong)?;
        }
        for (change, fields) in [
            (HeaderChange::Set, &self.set),
            (HeaderChange::Add, &self.add),
        ] {
            for (name, value) in fields {
                rules.push((message, change), name, value).map_err(wrong)?;
            }
        }
        Ok(rules)
    }
}

fn read_host(text: &str) -> Result<Host, Fault> {
    Host::parse(text).map_err(|error| {
        let fault = Fault::new(format!("`{text}` is not a host: {error}")).at("hosts");
        fault.hint("write names without ports, as in www.example.com")
    })
}

fn sent_host(text: Option<&str>) -> Result<SentHost, Fault> {
    Ok(match text {
        None | Some("client") => SentHost::Client,
        Some("origin") => SentHost::Origin,
        Some(name) => match SentHost::name(name) {
            Some(sent) => sent,
            None => {
                let fault = Fault::new(format!("`{name}` is not a host")).at("host");
                return Err(fault.hint("write \"client\", \"origin\" or a name"));
            }
        },
    })
}

fn network(text: &str) -> Result<Prefix, Fault> {
    text.parse::<Prefix>().map_err(|error| {
        Fault::new(format!("`{text}` is not a network: {error}")).at("trust_forwarded")
    })
}

/// Parses a field name that is dropped unless it is listed in `pass_fields`.
fn passed_field(name: &str) -> Result<HeaderName, Fault> {
    let fault = |text: String| Fault::new(text).at("pass_fields");
    let parsed: HeaderName = name
        .parse()
        .map_err(|_| fault(format!("`{name}` is not the name of a field")))?;
    if REWRITTEN.contains(&parsed.as_str()) {
        let fault = fault(format!("`{name}` cannot be passed"));
        return Err(fault.hint("name the proxies that may send it in `trust_forwarded`"));
    }
    if speaks_for_client(&parsed) {
        Ok(parsed)
    } else {
        Err(fault(format!("`{name}` reaches the origins anyway")))
    }
}

/// Fields that the proxy writes itself, and `Proxy`, which programs may read as a setting of their
/// own.
const REWRITTEN: [&str; 5] = [
    "forwarded",
    "proxy",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];

fn seconds(name: &str, text: Option<&str>) -> Result<Seconds, Fault> {
    match text {
        None => Ok(Seconds::ZERO),
        Some(text) => {
            let time = parse_time(text).map_err(|fault| fault.at(name))?;
            Ok(Seconds::new(time.as_secs()))
        }
    }
}

/// Reads the error page. It is sent from memory, so it has a limit.
fn read_page(path: &Path) -> Result<Vec<u8>, Fault> {
    let unreadable = |error: std::io::Error| {
        let fault = Fault::new(format!("cannot read {}: {error}", path.display()));
        fault.at("error_page")
    };
    let mut page = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    let mut file = file.take(PAGE_BYTES_MAX + 1);
    file.read_to_end(&mut page).map_err(unreadable)?;
    if page.len() as u64 > PAGE_BYTES_MAX {
        let fault = Fault::new(format!("{} is longer than 64 KiB", path.display()));
        return Err(fault
            .at("error_page")
            .hint("put images and styles into the page's own host"));
    }
    Ok(page)
}

/// An origin's largest weight.
const WEIGHT_MAX: u16 = 1000;
/// The largest error page, bytes.
const PAGE_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "hosts = [\"a.test\"]\norigins = [\"http://10.0.0.5:8080\"]\n";

    fn site(more: &str) -> Result<Site, Fault> {
        let table: SiteTable = toml::from_str(&format!("{LEAST}{more}")).unwrap();
        table.site()
    }

    #[test]
    fn a_site_has_defaults_for_all_but_hosts_and_origins() {
        let mut usual = Site::at("http://10.0.0.5:8080".parse().unwrap());
        usual.hosts = vec![Host::parse("a.test").unwrap()];
        assert_eq!(site("").unwrap(), usual);
    }

    #[test]
    fn every_field_of_a_site_is_read() {
        let text = "
            hosts = [\"www.example.com\", \"example.com\"]
            origins = [\"http://10.0.0.5:8080\", { url = \"https://b.test\", weight = 2 }]
            host = \"origin\"
            balance = \"least-busy\"
            health = { path = \"/healthz?x\", interval = \"7s\", timeout = \"1s\", status = 204 }
            redirect_to_https = true
            trust_forwarded = [\"10.0.0.0/8\"]
            front_keeps_logins = true
            lifetime = [{ path = \"/a/**\", default = \"1d\" }, { max = \"1h\" }]
            stale_if_error = \"1h\"
            stale_while_revalidate = \"30s\"
            key = { drop_query = [\"utm_*\"], sort_query = true, cookies = [\"lang\"] }
            bypass_cookie = [\"session\"]
            pass_fields = [\"X-HTTP-Method-Override\"]
            request_headers = { set = { X-A = \"1\" }, remove = [\"X-B\"] }
            response_headers = { add = { Link = \"</a>\" } }
            compress = [\"gzip\"]
        ";
        let site = toml::from_str::<SiteTable>(text).unwrap().site().unwrap();
        assert_eq!(site.name(), "www.example.com");
        assert_eq!(site.origins.len(), 2);
        assert_eq!((site.origins[0].weight, site.origins[1].weight), (1, 2));
        assert_eq!(site.origins[1].url.to_string(), "https://b.test");
        assert_eq!(
            (site.sent_host, site.balance),
            (SentHost::Origin, Balance::LeastBusy)
        );
        let health = site.health.unwrap();
        assert_eq!(health.path, "/healthz?x");
        assert_eq!(
            (health.interval.as_secs(), health.timeout.as_secs()),
            (7, 1)
        );
        assert_eq!(health.status, 204);
        assert!(site.redirect_to_https);
        assert_eq!(site.trust_forwarded.len(), 1);
        assert!(site.front_keeps_logins);
        assert_eq!(site.pass_fields, ["x-http-method-override"]);
        assert!(!site.lifetimes.is_empty());
        assert_eq!(site.grace.stale_if_error, Seconds::new(3600));
        assert_eq!(site.grace.stale_while_revalidate, Seconds::new(30));
        assert_ne!(site.key, KeyRules::default());
        assert_ne!(site.request_headers, HeaderRules::default());
        assert_ne!(site.response_headers, HeaderRules::default());
        assert_eq!(site.compress, [Coding::Gzip]);
    }

    #[test]
    fn the_host_field_of_origins_can_be_a_name() {
        assert_eq!(
            site("host = \"inner.test:81\"").unwrap().sent_host,
            SentHost::name("inner.test:81").unwrap()
        );
        assert_eq!(
            site("host = \"client\"").unwrap().sent_host,
            SentHost::Client
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field() {
        for (more, what) in [
            ("host = \"a b\"", "host: `a b` is not a host"),
            (
                "pass_fields = [\"X-Forwarded-For\"]",
                "pass_fields: `X-Forwarded-For` cannot be passed",
            ),
            (
                "pass_fields = [\"X-Api-Key\"]",
                "pass_fields: `X-Api-Key` reaches the origins anyway",
            ),
            (
                "balance = \"random\"",
                "balance: `random` is not one of round-robin, ",
            ),
            (
                "health = { path = \"healthz\" }",
                "health.path: `healthz` is not a path",
            ),
            (
                "health = { path = \"/\", interval = \"0s\" }",
                "health.interval: must be longer than 0s",
            ),
            (
                "health = { path = \"/\", timeout = \"soon\" }",
                "health.timeout: `soon` is not a time",
            ),
            (
                "health = { path = \"/\", status = 100 }",
                "health.status: `100` is not a final status code",
            ),
            (
                "trust_forwarded = [\"10.0.0.1/8\"]",
                "trust_forwarded: `10.0.0.1/8` is not a network: ",
            ),
            (
                "lifetime = [{ path = \"/a\" }]",
                "lifetime: lifetime for /a: default or max is needed",
            ),
            (
                "lifetime = [{ path = \"a\", max = \"1h\" }]",
                "lifetime: path pattern a does not begin with /",
            ),
            (
                "stale_if_error = \"x\"",
                "stale_if_error: `x` is not a time",
            ),
            (
                "key = { cookies = [\"a=b\"] }",
                "key: `a=b` is not the name of a cookie",
            ),
            (
                "key = { headers = [\"a b\"] }",
                "key: `a b` is not the name of a field",
            ),
            (
                "request_headers = { remove = [\"Host\"] }",
                "request_headers: `host` cannot be changed: ",
            ),
            (
                "response_headers = { set = { Content-Length = \"1\" } }",
                "response_headers: `content-length` cannot be changed: ",
            ),
            (
                "compress = [\"zstd\"]",
                "compress: `zstd` is not one of br, gzip",
            ),
            (
                "error_page = \"/none.html\"",
                "error_page: cannot read /none.html: ",
            ),
        ] {
            let fault = site(more).unwrap_err();
            assert!(fault.what.starts_with(what), "{more}: {}", fault.what);
        }
        let table = |text: &str| {
            toml::from_str::<SiteTable>(text)
                .unwrap()
                .site()
                .unwrap_err()
        };
        for (text, what) in [
            ("hosts = []\norigins = [\"http://a\"]", "`hosts` is empty"),
            (
                "hosts = [\"a:80\"]\norigins = [\"http://a\"]",
                "hosts: `a:80` is not a host: ",
            ),
            ("hosts = [\"a\"]\norigins = []", "`origins` is empty"),
            (
                "hosts = [\"a\"]\norigins = [\"http://a/x\"]",
                "origins: `http://a/x` is not the URL of an origin: ",
            ),
            (
                "hosts = [\"a\"]\norigins = [{ url = \"http://a\", weight = 0 }]",
                "origins: `0` is not a weight from 1 to 1000",
            ),
        ] {
            let fault = table(text);
            assert!(fault.what.starts_with(what), "{text}: {}", fault.what);
        }
    }

    #[test]
    fn an_error_page_has_a_limit() {
        let page = |bytes: usize| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), vec![b'x'; bytes]).unwrap();
            let read = site(&format!(
                "error_page = {:?}",
                file.path().display().to_string()
            ));
            read.map(|site| site.error_page.unwrap().len())
        };
        assert_eq!(page(64 << 10).unwrap(), 64 << 10);
        assert!(
            page((64 << 10) + 1)
                .unwrap_err()
                .what
                .ends_with("longer than 64 KiB")
        );
    }
}
