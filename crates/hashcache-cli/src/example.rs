//! The sample configuration: every setting with its default, commented out.
//!
//! `hashcache config example` prints it, and `packaging/hashcache.toml` is a copy. All text is
//! taken from `settings::reference`. Invariant: the text is a configuration file that changes no
//! setting. With the `#` before a setting removed, the setting has its default or, if it has none,
//! an example.

use crate::settings::{
    ACCESS_ABOUT, ACCESS_FIELDS, DefaultValue, ENTRIES, Entry, GROUP_ABOUT, GROUP_FIELDS,
    LIMIT_ABOUT, LIMIT_FIELDS, LIST_ABOUT, LIST_FIELDS, MIRROR_ABOUT, MIRROR_FIELDS, PEER_ABOUT,
    PEER_FIELDS, ROUTE_ABOUT, ROUTE_FIELDS, RULE_ABOUT, RULE_FIELDS, SITE_ABOUT, SITE_FIELDS,
    Shown, Topic,
};

/// Columns of a line.
const COLUMNS: usize = 80;

const HEAD: &str = "\
# HashCache configuration: every setting with its default, commented out.
#
# Copy it to /etc/hashcache/hashcache.toml, or ~/.config/hashcache/hashcache.toml, and remove the #
# before the settings you change. `hashcache config check` finds mistakes, `hashcache config show`
# prints the settings in effect. Sizes: 64MiB, 20GiB, 1GB. Times: 250ms, 10s, 5m.
";

const ACCESS: &str = "\
#[networks]
#pupils = [\"10.1.0.0/16\"]

#[[access]]
#name = \"no games during lessons\"
#action = \"deny\"
#clients = [\"pupils\"]
#destinations = [\".games.example\", \"chat.example.org\"]
#times = [\"Mon-Fri 08:00-15:30\"]
#reason = \"Games are for the afternoon.\"

#[[access]]
#action = \"tunnel\"
#destinations = [\".bank.example\"]
#ports = [443]
#methods = [\"CONNECT\"]
";

const GROUPS: &str = "\
#[[group]]
#name = \"staff\"
#users = [\"abara\", \"lee\"]
";

const LIMITS: &str = "\
#[[limit]]
#name = \"pupil\"
#per = \"client\"
#quota = \"500MiB\"
#every = \"day\"
#used_up = \"refuse\"
#bandwidth = \"1MiB\"
#burst = \"4MiB\"
#requests = 20
#requests_burst = 60

#[[access]]
#name = \"quota of pupils\"
#action = \"limit\"
#limits = [\"pupil\"]
#clients = [\"10.1.0.0/16\"]
";

const LISTS: &str = "\
#[[access]]
#name = \"advertising\"
#action = \"deny\"
#lists = [\"ads\"]

#[[list]]
#name = \"ads\"
#files = [\"/etc/hashcache/ads.hosts\"]
#format = \"auto\"
";

const RULES: &str = "\
#[[rule]]
#host = \"downloads.example.org\"
#path = \"/releases/**\"
#immutable = true

#[[rule]]
#path = \"/news/*\"
#lifetime = \"5m\"

#[[rule]]
#path = [\"/img/**\", \"/css/**\"]
#heuristic = { percent = 20, max = \"7d\" }
";

const SITES: &str = "\
#[[site]]
#hosts = [\"www.example.com\", \"example.com\"]
#origins = [\"http://10.0.0.5:8080\", { url = \"http://10.0.0.6:8080\", weight = 2 }]
#host = \"client\"
#balance = \"round-robin\"
#health = { path = \"/healthz\", interval = \"5s\", timeout = \"2s\", status = 200 }
#redirect_to_https = true
#trust_forwarded = [\"10.0.0.0/8\"]
#front_keeps_logins = true
#pass_fields = [\"X-HTTP-Method-Override\"]
#lifetime = [
#    { path = \"/static/**\", default = \"1d\", ignore_cookies = true },
#    { default = \"1m\", max = \"1h\" },
#]
#stale_if_error = \"1d\"
#stale_while_revalidate = \"1m\"
#key = { drop_query = [\"utm_*\", \"fbclid\"], sort_query = true, cookies = [\"lang\"] }
#bypass_cookie = [\"session\", \"wordpress_logged_in_*\"]
#request_headers = { set = { X-Served-By = \"hashcache\" } }
#response_headers = { remove = [\"Server\"], set = { X-Frame-Options = \"DENY\" } }
#compress = [\"br\", \"gzip\"]
#error_page = \"/etc/hashcache/error.html\"
";

const MIRRORS: &str = "\
#[[mirror]]
#kind = \"pypi\"
#url = \"https://index.example/simple/\"
#files = [\"https://files.example\"]
#name = \"pypi\"
";

const PEERS: &str = "\
#[[peer]]
#name = \"isp\"
#kind = \"parent\"
#url = \"https://cache.isp.example:3129\"
#credentials_file = \"/etc/hashcache/isp\"
#https = \"tunnel\"
#plain_https = false
#weight = 1
#icp = 3130
#htcp = 4827
#htcp_key_file = \"/etc/hashcache/htcp-key\"
#clear = false
#send_clear = false
#misses = true

#[[peer]]
#name = \"hub\"
#url = \"https://hub.example:3129\"
#pin = \"sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"
#https = \"fetch\"

#[[peer]]
#name = \"east\"
#kind = \"sibling\"
#url = \"http://192.0.2.2:3128\"
#icp = 3130
#digest = true
#summary = true
";

const ROUTES: &str = "\
#[[route]]
#host = [\"intranet\", \"*.corp.example\", \"10.0.0.0/8\"]
#port = [80, \"8000-8999\"]
#scheme = \"http\"
#peers = [\"isp\"]
#direct = \"never\"
#choice = \"first\"
";

/// The whole file.
pub fn text() -> String {
    let mut text = HEAD.to_owned();
    let is_top = |entry: &&Entry| !entry.key.contains('.');
    for topic in Topic::ALL {
        let mut entries = ENTRIES.iter().filter(|it| it.topic == topic).peekable();
        if entries.clone().any(|entry| is_top(&entry)) {
            text.push_str(&format!("\n# ---- {} ----\n", topic.heading()));
        }
        while let Some(entry) = entries.next_if(is_top) {
            describe(&mut text, entry);
        }
    }
    for table in ["intercept", "limits"] {
        text.push_str(&format!("\n[{table}]\n"));
        let of_table =
            |entry: &&Entry| entry.key.split_once('.').is_some_and(|(it, _)| it == table);
        for entry in ENTRIES.iter().filter(of_table) {
            describe(&mut text, entry);
        }
    }
    let tables = [
        ("Access rules", ACCESS_ABOUT, &ACCESS_FIELDS[..], ACCESS),
        ("Groups of users", GROUP_ABOUT, &GROUP_FIELDS[..], GROUPS),
        ("Limits", LIMIT_ABOUT, &LIMIT_FIELDS[..], LIMITS),
        ("Lists of hosts", LIST_ABOUT, &LIST_FIELDS[..], LISTS),
        ("Freshness rules", RULE_ABOUT, &RULE_FIELDS[..], RULES),
        ("Sites", SITE_ABOUT, &SITE_FIELDS[..], SITES),
        ("Mirrors", MIRROR_ABOUT, &MIRROR_FIELDS[..], MIRRORS),
        ("Peers", PEER_ABOUT, &PEER_FIELDS[..], PEERS),
        ("Routes", ROUTE_ABOUT, &ROUTE_FIELDS[..], ROUTES),
    ];
    for (heading, about, fields, example) in tables {
        text.push_str(&format!("\n# ---- {heading} ----\n\n"));
        comment(&mut text, about);
        for (name, about) in fields {
            comment(&mut text, &format!("{name}: {about}"));
        }
        text.push_str(&format!("\n{example}"));
    }
    text
}

/// The comment and the commented setting of `entry`.
fn describe(text: &mut String, entry: &Entry) {
    let mut words = format!("{}.", entry.about);
    if !entry.details.is_empty() {
        words.push_str(&format!(" {}", entry.details));
    }
    let value = match (entry.default, entry.default_shown()) {
        (
            DefaultValue::Words {
                words: usual,
                example,
            },
            _,
        ) => {
            words.push_str(&format!(" Default: {usual}. Example:"));
            example.to_owned()
        }
        (DefaultValue::Unset { example }, _) => {
            words.push_str(" Not set by default. Example:");
            example.to_owned()
        }
        (DefaultValue::Value, shown) => {
            let value = shown.as_ref().and_then(Shown::toml);
            value.map(|value| value.to_string()).unwrap_or_default()
        }
    };
    text.push('\n');
    comment(text, &words);
    let name = entry.key.rsplit('.').next().unwrap_or(entry.key);
    text.push_str(&format!("#{name} = {value}\n"));
}

/// Adds `words` as lines of a comment.
fn comment(text: &mut String, words: &str) {
    let mut line = "#".to_owned();
    for word in words.split(' ') {
        if line.len() > 1 && line.len() + 1 + word.len() > COLUMNS {
            text.push_str(&format!("{line}\n"));
            line.truncate(1);
        }
        line.push_str(&format!(" {word}"));
    }
    text.push_str(&format!("{line}\n"));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::settings::{self, Effective, Environment, KEYS};

    fn loaded(text: &str) -> Effective {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let environment = Environment {
            variables: [("HOME".to_owned(), "/home-of-tests".to_owned())].into(),
            is_root: false,
            processors: 4,
        };
        settings::load(Some(file.path()), vec![], &environment).unwrap()
    }

    /// The settings that `take` accepts, no longer commented out; comments are `# …` with a blank.
    fn uncommented(take: impl Fn(&str) -> bool) -> String {
        let text = text();
        let settings = text.split("# ---- Access rules").next().unwrap();
        let mut table = String::new();
        let mut out = String::new();
        for line in settings.lines() {
            if let Some(name) = line.strip_prefix('[') {
                table = format!("{}.", name.trim_end_matches(']'));
            }
            let setting = line.strip_prefix('#').filter(|it| !it.starts_with(' '));
            let key = setting
                .and_then(|it| it.split_once(" = "))
                .map(|(name, _)| name);
            match (setting, key) {
                (Some(setting), Some(key)) if take(&format!("{table}{key}")) => {
                    out.push_str(&format!("{setting}\n"));
                }
                _ => out.push_str(&format!("{line}\n")),
            }
        }
        out
    }

    #[test]
    fn the_sample_as_it_is_changes_no_setting() {
        let (sample, nothing) = (loaded(&text()), loaded(""));
        for ((key, sample, _), (_, usual, _)) in sample.shown().zip(nothing.shown()) {
            assert_eq!(sample, usual, "{}", key.name);
        }
    }

    #[test]
    fn every_setting_in_the_sample_has_its_default() {
        let is_value = |key: &str| {
            let entry = ENTRIES.iter().find(|entry| entry.key == key).unwrap();
            entry.default == DefaultValue::Value
        };
        let (sample, nothing) = (loaded(&uncommented(is_value)), loaded(""));
        for ((key, sample, source), (_, usual, _)) in sample.shown().zip(nothing.shown()) {
            assert_eq!(sample, usual, "{}", key.name);
            let is_given = *source != settings::Source::Default;
            assert_eq!(is_given, is_value(key.name), "{}: {source}", key.name);
        }
    }

    #[test]
    fn every_example_in_the_sample_can_be_read() {
        for key in KEYS {
            let with = |more: &[&str]| uncommented(|it| it == key.name || more.contains(&it));
            let text = match key.name {
                "accelerate_host" => with(&["accelerate"]),
                "tls_cert" | "tls_key" => with(&["accelerate", "tls_cert", "tls_key"]),
                "intercept.hosts" | "intercept.lists" => with(&["intercept.ca"]),
                "parent_pin" | "link_forward" => {
                    let all = with(&["parent", "parent_pin"]);
                    all.replace("http://cache", "https://cache")
                }
                _ => with(&[]),
            };
            assert_ne!(*loaded(&text).source(key.name), settings::Source::Default);
        }
    }

    #[test]
    fn the_tables_in_the_sample_can_be_read() {
        let tables = format!(
            "icp = 3130\nhtcp = \"192.0.2.1:4827\"\n\
             {ACCESS}{GROUPS}{LIMITS}{LISTS}{RULES}{MIRRORS}{PEERS}{ROUTES}"
        )
        .replace('#', "");
        let effective = loaded(&tables);
        assert_eq!(effective.tables.len(), 8);
        assert!(!effective.values.access.is_empty());
        assert_eq!(effective.values.mirror.len(), 1);
    }

    #[test]
    fn the_site_in_the_sample_can_be_read_and_has_every_field() {
        let page = "#error_page = \"/etc/hashcache/error.html\"\n";
        let effective = loaded(&SITES.replace(page, "").replace('#', ""));
        assert_eq!(effective.values.sites.all().len(), 1);
        for (name, _) in SITE_FIELDS {
            assert!(SITES.contains(&format!("#{name} = ")), "{name}");
        }
    }

    #[test]
    fn the_packaged_sample_is_what_the_program_prints() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/hashcache.toml");
        let packaged = fs::read_to_string(path).unwrap();
        assert!(
            packaged == text(),
            "run `hashcache config example > packaging/hashcache.toml`"
        );
    }
}
