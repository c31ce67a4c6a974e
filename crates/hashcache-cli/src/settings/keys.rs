//! The table of all keys: how each is spelled, parsed and shown.
//!
//! One row per key. Files, variables, flags and `config show` all use this table, so all of them
//! know the same keys. To add a setting, add a field to `Values` and a row here and, if it needs a
//! flag, a field of the same name in `args`.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hashcache::{Io, PolicyKind, Rows};
use hashcache_http::{ClientReload, Host, Origin, Seconds, SetCookie, TargetError};
use hashcache_proxy::{
    AccessLog, CollapseWait, Direct, Fail, GroupBy, HostList, HostPattern, LinkForward,
    LinkForwardError, Listen, LogFormat, Offline, PeerChoice, Pin, PinError, Speaks,
};

use super::mirror::{read_mirror, show_mirror};
use super::peers::{
    CHOICES, DIRECTS, GATEWAYS, read_parent, read_threshold, read_udp, threshold_text,
};
use super::suggest;
use super::values::{PlaceBy, Values};
use super::words::one_of;
use crate::fault::{Fault, Faults};
use crate::units::{parse_size, parse_time, show_size, show_time};

/// A value as a source gave it, before its key parses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// One word or number.
    One(String),
    /// A list.
    Many(Vec<String>),
}

/// A value as it is shown: what TOML and JSON have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Not set, and the key has no word for that.
    Nothing,
    /// A word, size, time, path or address.
    Text(String),
    /// A count.
    Number(u64),
    /// Yes or no.
    Truth(bool),
    /// A list of words.
    List(Vec<String>),
}

impl Shown {
    /// The value as TOML writes it; `None` where there is none.
    pub fn toml(&self) -> Option<toml::Value> {
        Some(match self {
            Self::Nothing => return None,
            Self::Text(text) => toml::Value::String(text.clone()),
            // TOML's integers end at 2^63; no count of ours is larger.
            Self::Number(number) => {
                toml::Value::Integer(i64::try_from(*number).unwrap_or(i64::MAX))
            }
            Self::Truth(yes) => toml::Value::Boolean(*yes),
            Self::List(items) => {
                toml::Value::Array(items.iter().cloned().map(toml::Value::String).collect())
            }
        })
    }
}

/// How a key parses text into the values.
#[derive(Clone, Copy)]
pub enum Form {
    /// It takes one word.
    One(fn(&mut Values, &str) -> Result<(), Fault>),
    /// It takes any number of words; a later source replaces the whole list.
    Many(fn(&mut Values, &[String]) -> Result<(), Faults>),
}

/// A row of the table.
pub struct Key {
    /// Its name in a file, with its table.
    pub name: &'static str,
    /// How it is read.
    pub form: Form,
    /// How it is shown.
    pub show: fn(&Values) -> Shown,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Key").field(&self.name).finish()
    }
}

/// A key found by name, with its correct spelling.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The row.
    pub key: &'static Key,
    /// The spelling: the key's own name, or that of its opposite.
    pub spelling: &'static str,
    /// Whether the name was the opposite's, so that *true* means *false*.
    pub inverted: bool,
}

impl Found {
    /// Reads `written` into `values`. The error names every element of a list that is wrong.
    pub fn read(&self, values: &mut Values, written: &Written) -> Result<(), Faults> {
        match (self.key.form, written) {
            (Form::One(read), Written::One(word)) if self.inverted => {
                Ok(read(values, if truth(word)? { "false" } else { "true" })?)
            }
            (Form::One(read), Written::One(word)) => Ok(read(values, word)?),
            (Form::One(_), Written::Many(_)) => {
                Err(Fault::new(format!("`{}` takes one value, not a list", self.spelling)).into())
            }
            (Form::Many(read), Written::One(word)) => read(values, std::slice::from_ref(word)),
            (Form::Many(read), Written::Many(words)) => read(values, words),
        }
    }
}

/// Parses each of `words`; the error names every wrong one.
fn each<C: FromIterator<T>, T>(
    words: &[String],
    read: impl Fn(&str) -> Result<T, Fault>,
) -> Result<C, Faults> {
    let (mut values, mut faults) = (Vec::new(), Vec::new());
    for word in words {
        match read(word) {
            Ok(value) => values.push(value),
            Err(fault) => faults.push(fault),
        }
    }
    match faults.is_empty() {
        true => Ok(values.into_iter().collect()),
        false => Err(Faults(faults)),
    }
}

/// A row that takes one word: name, field, reader of the word, shower of the field.
macro_rules! one {
    ($name:expr, $($field:ident).+, $read:expr, $show:expr) => {
        Key {
            name: $name,
            form: Form::One(|values, word| {
                values.$($field).+ = $read(word)?;
                Ok(())
            }),
            show: |values| $show(&values.$($field).+),
        }
    };
}

/// A row of the table `limits`, which is called like its field.
macro_rules! limit {
    ($field:ident, $read:expr, $show:expr) => {
        one!(
            concat!("limits.", stringify!($field)),
            limits.$field,
            $read,
            $show
        )
    };
}

/// A row that takes a list of things that read and show themselves.
macro_rules! many {
    ($name:literal, $field:ident, $read:expr) => {
        Key {
            name: $name,
            form: Form::Many(|values, words| {
                values.$field = each(words, |word| $read(word))?;
                Ok(())
            }),
            show: |values| Shown::List(values.$field.iter().map(ToString::to_string).collect()),
        }
    };
}

/// A row of the table `intercept` that takes a list of hosts.
macro_rules! hosts {
    ($name:literal, $field:ident) => {
        Key {
            name: $name,
            form: Form::Many(|values, words| {
                values.intercept.$field = each(words, host_pattern)?;
                Ok(())
            }),
            show: |values| {
                let hosts = &values.intercept.$field;
                Shown::List(hosts.iter().map(ToString::to_string).collect())
            },
        }
    };
}

/// A row that takes a list of paths.
macro_rules! paths {
    ($name:literal, $field:ident) => {
        Key {
            name: $name,
            form: Form::Many(|values, words| {
                values.$field = each(words, path)?;
                Ok(())
            }),
            show: |values| Shown::List(values.$field.iter().map(|path| show_path(path)).collect()),
        }
    };
}

/// All keys, in the order in which `config show` shows them: tables last, as TOML needs it.
pub static KEYS: &[Key] = &[
    many!("listen", listen, listen),
    paths!("tls_cert", tls_cert),
    paths!("tls_key", tls_key),
    one!("accelerate", accelerate, origin, show_origin),
    many!("accelerate_host", accelerate_host, host),
    one!("admin", admin, address_or_none, show_address),
    Key {
        name: "admin_token_file",
        form: Form::One(|values, word| {
            values.admin_token_file = Some(path(word)?);
            Ok(())
        }),
        show: |values| match &values.admin_token_file {
            Some(path) => Shown::Text(show_path(path)),
            None => Shown::Nothing,
        },
    },
    one!("name", name, name, show_name),
    one!("workers", workers, workers, show_count),
    paths!("cache", cache),
    one!("cache_size", cache_size, positive_size, show_bytes),
    one!("memory", memory, positive_size, show_bytes),
    one!("policy", policy, policy, show_policy),
    Key {
        name: "held_share",
        form: Form::One(|values, word| {
            values.held_share = Some(share(word)?);
            Ok(())
        }),
        show: |values| match values.held_share {
            Some(share) => Shown::Number(share.into()),
            None => Shown::Nothing,
        },
    },
    one!("rows", rows, rows, show_rows),
    one!("grouped", grouped, truth, show_truth),
    one!("group_by", group_by, group_by, show_group_by),
    one!("placement", placement, placement, show_placement),
    one!("readmission", readmission, truth, show_truth),
    one!("io", io, io, show_io),
    one!("object_size", object_size, object_size, show_object),
    one!("block", block, block, show_object),
    Key {
        name: "max_object_size",
        form: Form::One(|values, word| {
            values.max_object_size = Some(positive_size(word)?);
            Ok(())
        }),
        show: |values| show_bytes(&values.max_object_size()),
    },
    one!("public_url", public_url, public_url, show_origin),
    Key {
        name: "mirror",
        form: Form::Many(|values, words| {
            values.mirror = each(words, read_mirror)?;
            Ok(())
        }),
        show: |values| Shown::List(values.mirror.iter().map(show_mirror).collect()),
    },
    many!("parent", parent, read_parent),
    Key {
        name: "parent_pin",
        form: Form::One(|values, word| {
            values.parent_pin = Some(pin(word)?);
            Ok(())
        }),
        show: |values| match &values.parent_pin {
            Some(pin) => Shown::Text(pin.to_string()),
            None => Shown::Nothing,
        },
    },
    one!("link_listen", link_listen, address_or_none, show_address),
    many!("link_children", link_children, pin),
    many!("link_forward", link_forward, forward),
    one!("link_hints", link_hints, truth, show_truth),
    Key {
        name: "link_dir",
        form: Form::One(|values, word| {
            values.link_dir = Some(path(word)?);
            Ok(())
        }),
        show: |values| match &values.link_dir {
            Some(path) => Shown::Text(show_path(path)),
            None => Shown::Nothing,
        },
    },
    one!("direct", direct, direct, show_direct),
    one!("peer_choice", peer_choice, choice, show_choice),
    one!("icp", icp, read_udp, show_address),
    one!("htcp", htcp, read_udp, show_address),
    one!(
        "summary_threshold",
        summary_permille,
        read_threshold,
        show_threshold
    ),
    one!("fail", fail, fail, show_fail),
    many!("pac_proxies", pac_proxies, proxy_url),
    many!("allow_client", allow_client, itself),
    many!("proxy_protocol_from", proxy_protocol_from, itself),
    many!("proxy_protocol_to", proxy_protocol_to, server_url),
    many!("allow_purge", allow_purge, itself),
    many!("allow_destination", allow_destination, itself),
    many!("deny_destination", deny_destination, itself),
    paths!("htpasswd", htpasswd),
    one!("login_realm", login_realm, realm, show_name),
    many!("login_networks", login_networks, itself),
    Key {
        name: "contact",
        form: Form::One(|values, word| {
            values.contact = Some(word.to_owned());
            Ok(())
        }),
        show: |values| match &values.contact {
            Some(contact) => Shown::Text(contact.clone()),
            None => Shown::Nothing,
        },
    },
    paths!("upstream_ca", upstream_ca),
    many!("nat64_prefix", nat64_prefix, itself),
    many!("allow_connect_port", allow_connect_port, itself),
    many!("allow_port", allow_port, itself),
    Key {
        name: "gateways",
        form: Form::Many(|values, words| {
            values.gateways = each(words, |word| one_of(&GATEWAYS, word))?;
            Ok(())
        }),
        show: |values| {
            let schemes = values.gateways.iter();
            Shown::List(schemes.map(|scheme| scheme.as_str().to_owned()).collect())
        },
    },
    one!("access_log", access_log, access_log, show_access_log),
    one!("log_format", log_format, log_format, show_format),
    one!("log_strip_query", log_strip_query, truth, show_truth),
    one!("log_anonymize", log_anonymize, truth, show_truth),
    one!("default_rules", default_rules, truth, show_truth),
    one!("client_reload", client_reload, reload, show_reload),
    one!("set_cookie", set_cookie, set_cookie, show_set_cookie),
    many!("harmless_fields", harmless_fields, itself),
    one!("collapse_wait", collapse_wait, wait, show_wait),
    one!(
        "negative_lifetime",
        negative_lifetime,
        parse_time,
        show_duration
    ),
    one!(
        "unreachable_lifetime",
        unreachable_lifetime,
        parse_time,
        show_duration
    ),
    one!("adaptive_lifetime", adaptive_lifetime, truth, show_truth),
    one!("offline", offline, offline, show_offline),
    Key {
        name: "intercept.ca",
        form: Form::One(|values, word| {
            values.intercept_ca = Some(path(word)?);
            Ok(())
        }),
        show: |values| match &values.intercept_ca {
            Some(path) => Shown::Text(show_path(path)),
            None => Shown::Nothing,
        },
    },
    hosts!("intercept.hosts", hosts),
    Key {
        name: "intercept.lists",
        form: Form::Many(|values, words| {
            values.intercept.lists = each(words, |word| one_of(&HostList::ALL, word))?;
            Ok(())
        }),
        show: |values| {
            let lists = values.intercept.lists.iter();
            let names = lists.filter_map(|list| HostList::ALL.iter().find(|(_, it)| it == list));
            Shown::List(names.map(|(name, _)| (*name).to_owned()).collect())
        },
    },
    hosts!("intercept.never", never),
    hosts!("intercept.despite_never", despite_never),
    limit!(clients, count, show_count),
    limit!(clients_per_address, count, show_count),
    limit!(client_share, share, |share: &u8| Shown::Number(u64::from(
        *share
    ))),
    limit!(streams, count, show_count),
    limit!(frames, count, show_count),
    limit!(head_bytes, memory_size, show_memory),
    limit!(head_fields, count, show_count),
    limit!(target_bytes, memory_size, show_memory),
    limit!(chunk_extension_bytes, memory_size, show_memory),
    limit!(head_time, positive_time, show_duration),
    limit!(idle_time, positive_time, show_duration),
    limit!(progress_time, positive_time, show_duration),
    limit!(connect_time, positive_time, show_duration),
    limit!(first_byte_time, positive_time, show_duration),
    limit!(peer_first_byte_time, positive_time, show_duration),
    limit!(between_bytes_time, positive_time, show_duration),
    limit!(upstream_per_origin, count, show_count),
    limit!(upstream, count, show_count),
    limit!(upstream_idle_time, parse_time, show_duration),
    limit!(dns_time, positive_time, show_duration),
    limit!(tunnel_idle_time, positive_time, show_duration),
    limit!(drain_time, parse_time, show_duration),
    limit!(read_ahead, positive_size, show_bytes),
];

/// Opposites: the flag that turns a thing off is a key and a variable too, as every flag is.
const OPPOSITES: [(&str, &str); 1] = [("no_default_rules", "default_rules")];

/// Flags that are called otherwise than their keys: those are in a table.
const FLAGS: [(&str, &str); 3] = [
    ("intercept", "intercept.hosts"),
    ("intercept-ca", "intercept.ca"),
    ("intercept-list", "intercept.lists"),
];

/// The words for each choice, also what the flags offer to complete.
pub const POLICIES: [(&str, PolicyKind); 6] = [
    ("log", PolicyKind::Log),
    ("log-lru", PolicyKind::LogLru),
    ("set-mem", PolicyKind::SetMem),
    ("set-mem-lru", PolicyKind::SetMemLru),
    ("set", PolicyKind::Set),
    ("basic", PolicyKind::Basic),
];
/// See [`POLICIES`].
pub const ROWS: [(&str, Rows); 2] = [("two", Rows::Two), ("one", Rows::One)];
/// See [`POLICIES`].
pub const GROUPS: [(&str, GroupBy); 2] = [("page", GroupBy::Page), ("origin", GroupBy::Origin)];
/// See [`POLICIES`].
pub const PLACEMENTS: [(&str, PlaceBy); 2] = [("name", PlaceBy::Name), ("host", PlaceBy::Host)];
/// See [`POLICIES`].
pub const IOS: [(&str, Io); 3] = [
    ("auto", Io::Auto),
    ("threads", Io::Threads),
    ("uring", Io::Uring),
];
/// See [`POLICIES`].
pub const FORMATS: [(&str, LogFormat); 3] = [
    ("squid", LogFormat::Squid),
    ("combined", LogFormat::Combined),
    ("json", LogFormat::Json),
];

/// See [`POLICIES`].
pub const FAILS: [(&str, Fail); 2] = [("open", Fail::Open), ("closed", Fail::Closed)];

/// What becomes of a response that sets a cookie.
pub const COOKIES: [(&str, SetCookie); 2] =
    [("protect", SetCookie::Protect), ("rfc", SetCookie::Rfc)];

/// The key called `name`; `-` and `_` are one letter here: flags have the one, files the other.
pub fn find(name: &str) -> Option<Found> {
    let name = name.replace('-', "_");
    if let Some(&(spelling, opposite)) = OPPOSITES.iter().find(|(word, _)| *word == name) {
        let key = KEYS.iter().find(|key| key.name == opposite)?;
        return Some(Found {
            key,
            spelling,
            inverted: true,
        });
    }
    let key = KEYS.iter().find(|key| key.name == name)?;
    Some(Found {
        key,
        spelling: key.name,
        inverted: false,
    })
}

/// The key of the flag called `flag`, without its dashes in front.
pub fn find_flag(flag: &str) -> Option<Found> {
    let named = FLAGS.iter().find(|(word, _)| *word == flag);
    find(named.map_or(flag, |(_, key)| key))
}

/// All spellings that `find` knows.
pub fn spellings() -> impl Iterator<Item = &'static str> {
    KEYS.iter()
        .map(|key| key.name)
        .chain(OPPOSITES.iter().map(|&(word, _)| word))
}

/// Whether keys begin with `prefix`, which ends in a dot.
pub fn is_table(prefix: &str) -> bool {
    KEYS.iter().any(|key| key.name.starts_with(prefix))
}

/// What to say of a key in a file that nobody knows.
pub fn unknown(name: &str) -> Fault {
    let fault = Fault::new(format!("unknown key `{name}`"));
    if name == "config" {
        return fault.hint("a configuration file cannot include another one");
    }
    match suggest::nearest(
        name,
        spellings().chain([
            "limits",
            "intercept",
            "networks",
            "access",
            "group",
            "limit",
            "list",
            "rule",
            "site",
            "peer",
            "route",
        ]),
    ) {
        Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
        None => fault.hint("`hashcache config example` lists every key"),
    }
}

fn itself<T: FromStr<Err: std::fmt::Display>>(word: &str) -> Result<T, Fault> {
    word.parse()
        .map_err(|error| Fault::new(format!("`{word}`: {error}")))
}

fn policy(word: &str) -> Result<PolicyKind, Fault> {
    one_of(&POLICIES, word)
}

fn rows(word: &str) -> Result<Rows, Fault> {
    one_of(&ROWS, word)
}

fn group_by(word: &str) -> Result<GroupBy, Fault> {
    one_of(&GROUPS, word)
}

fn placement(word: &str) -> Result<PlaceBy, Fault> {
    one_of(&PLACEMENTS, word)
}

fn io(word: &str) -> Result<Io, Fault> {
    one_of(&IOS, word)
}

fn log_format(word: &str) -> Result<LogFormat, Fault> {
    one_of(&FORMATS, word)
}

/// `validate`, or the time within which reloads are ignored.
fn reload(word: &str) -> Result<ClientReload, Fault> {
    match word {
        "validate" => Ok(ClientReload::Validate),
        _ => parse_time(word)
            .map(|time| ClientReload::IgnoreWithin(Seconds::new(time.as_secs())))
            .map_err(|_| {
                Fault::new(format!("`{word}` is neither `validate` nor a time")).hint(
                    "write a time such as `10s` to ignore reloads of responses younger than that",
                )
            }),
    }
}

fn offline(word: &str) -> Result<Offline, Fault> {
    one_of(&Offline::WORDS, word)
}

fn set_cookie(word: &str) -> Result<SetCookie, Fault> {
    one_of(&COOKIES, word)
}

/// `satellite`, `lan`, or the longest wait.
fn wait(word: &str) -> Result<CollapseWait, Fault> {
    match word {
        "satellite" => Ok(CollapseWait::Satellite),
        "lan" => Ok(CollapseWait::Lan),
        _ => parse_time(word).map(CollapseWait::Within).map_err(|_| {
            Fault::new(format!("`{word}` is not satellite, lan or a time"))
                .hint("write a time such as `2s` to wait at most two seconds for a running fetch")
        }),
    }
}

fn truth(word: &str) -> Result<bool, Fault> {
    match word {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(Fault::new(format!("`{word}` is neither true nor false"))),
    }
}

fn address(word: &str) -> Result<SocketAddr, Fault> {
    word.parse().map_err(|_| {
        let fault = Fault::new(format!("`{word}` is not an IP address with a port"));
        let port = word.rsplit(':').next().unwrap_or(word);
        match port.parse::<u16>() {
            Ok(port) => fault.hint(format!(
                "write 127.0.0.1:{port} for this machine only, 0.0.0.0:{port} or [::]:{port} for \
                 all"
            )),
            Err(_) => fault.hint("write it as 127.0.0.1:3128 or [::1]:3128"),
        }
    })
}

/// An address, which may say what is spoken there.
fn listen(word: &str) -> Result<Listen, Fault> {
    match word.parse() {
        Ok(listen) => Ok(listen),
        Err(_) => {
            let mut known = Speaks::WORDS.iter();
            let bare = known.find_map(|(_, known)| word.strip_prefix(known));
            address(bare.unwrap_or(word)).map(Listen::from)
        }
    }
}

/// The pin of a key for links.
pub fn pin(word: &str) -> Result<Pin, Fault> {
    word.parse().map_err(|error: PinError| {
        Fault::new(format!("`{word}` is not a pin: {error}"))
            .hint("run `hashcache link pin` on the other box, and copy what it prints")
    })
}

/// A forwarded port.
fn forward(word: &str) -> Result<LinkForward, Fault> {
    word.parse().map_err(|error: LinkForwardError| {
        Fault::new(format!("`{word}` is not a forwarded port: {error}"))
            .hint("write it as 5432=db.example:5432, or 192.0.2.1:5432=db.example:5432")
    })
}

fn address_or_none(word: &str) -> Result<Option<SocketAddr>, Fault> {
    if word == "none" {
        Ok(None)
    } else {
        address(word).map(Some)
    }
}

fn origin(word: &str) -> Result<Option<Origin>, Fault> {
    let why = match word.parse::<Origin>() {
        Ok(origin) => return Ok(Some(origin)),
        Err(_) if !word.contains("://") => "it has no scheme".to_owned(),
        Err(TargetError::Path) => "it has a path; requests bring their own path".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(
        Fault::new(format!("`{word}` is not the origin of a site: {why}"))
            .hint("write it as http://127.0.0.1:8080"),
    )
}

fn public_url(word: &str) -> Result<Option<Origin>, Fault> {
    proxy_url(word).map(Some)
}

fn server_url(word: &str) -> Result<Origin, Fault> {
    word.parse().map_err(|error: TargetError| {
        Fault::new(format!("`{word}` is not the URL of a server: {error}"))
            .hint("write it as in `accelerate`, `origins` or `parent`: http://10.0.0.5:8080")
    })
}

fn proxy_url(word: &str) -> Result<Origin, Fault> {
    word.parse().map_err(|error: TargetError| {
        Fault::new(format!("`{word}` is not the URL of a proxy: {error}"))
            .hint("write it as http://cache.lan:3128")
    })
}

fn direct(word: &str) -> Result<Direct, Fault> {
    one_of(&DIRECTS, word)
}

fn choice(word: &str) -> Result<PeerChoice, Fault> {
    one_of(&CHOICES, word)
}

fn fail(word: &str) -> Result<Fail, Fault> {
    one_of(&FAILS, word)
}

/// A host without a port: a site has its names by whatever port leads here.
fn host(word: &str) -> Result<Host, Fault> {
    Host::parse(word).map_err(|_| {
        Fault::new(format!("`{word}` is not a host name"))
            .hint("write a name or an address, without a port")
    })
}

fn host_pattern(word: &str) -> Result<HostPattern, Fault> {
    word.parse().map_err(|error| {
        Fault::new(format!("`{word}` is not a host to intercept: {error}"))
            .hint("write a host name, or `*.example.org` for every host below example.org")
    })
}

/// The name is a pseudonym in `Via` and a token in `Cache-Status`; both allow this length.
fn name(word: &str) -> Result<String, Fault> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if word.starts_with(|first: char| first.is_ascii_alphabetic()) && word.bytes().all(fits) {
        return Ok(word.to_owned());
    }
    Err(Fault::new(format!("`{word}` is not a name for a proxy"))
        .hint("use a letter, then letters, digits, `-`, `.` and `_`"))
}

/// What a quoted string of a field can hold.
fn realm(word: &str) -> Result<String, Fault> {
    let is_bad = |c: char| !c.is_ascii() || c.is_ascii_control() || "\"\\".contains(c);
    match word.is_empty() || word.chars().any(is_bad) {
        false => Ok(word.to_owned()),
        true => Err(Fault::new(format!("`{word}` is not a realm"))
            .hint("use ASCII without quotes and backslashes")),
    }
}

fn path(word: &str) -> Result<PathBuf, Fault> {
    if word.is_empty() {
        return Err(Fault::new("the path is empty"));
    }
    Ok(PathBuf::from(word))
}

fn access_log(word: &str) -> Result<AccessLog, Fault> {
    match word {
        "none" => Ok(AccessLog::None),
        "-" => Ok(AccessLog::Stdout),
        _ => match meant_instead_of_file(word) {
            Some(hint) => Err(Fault::new(format!("`{word}` is not a file"))
                .hint(format!("{hint}; for a file of that name, write `./{word}`"))),
            None => path(word).map(AccessLog::File),
        },
    }
}

/// What a word means that other programs take for a log, and that nobody means as a file name.
fn meant_instead_of_file(word: &str) -> Option<&'static str> {
    const OFF: &[&str] = &[
        "off", "false", "no", "0", "disable", "disabled", "never", "null", "nil",
    ];
    const STDOUT: &[&str] = &["stdout", "console", "std", "journal", "journald"];
    const ON: &[&str] = &[
        "on", "true", "yes", "1", "enable", "enabled", "default", "auto", "file",
    ];
    const FORMATS: &[&str] = &["squid", "combined", "common", "json", "clf"];
    let lower = word.trim().to_ascii_lowercase();
    let is_any = |words: &[&str]| words.contains(&lower.as_str());
    if is_any(OFF) {
        return Some("write `none` for no log");
    }
    if is_any(STDOUT) {
        return Some("write `-` for standard output");
    }
    if is_any(FORMATS) {
        return Some("set `log_format` to this, and `access_log` to a path");
    }
    // `syslog:daemon`, `daemon:/var/log/squid/access.log`, `udp://host:514`.
    let is_module = lower
        .split_once(':')
        .is_some_and(|(module, _)| !module.is_empty() && !module.contains(['/', '.']));
    let is_other = is_module
        || lower.is_empty()
        || is_any(&["syslog", "daemon", "stderr", "stdio"])
        || lower.parse::<f64>().is_ok();
    (is_any(ON) || is_other)
        .then_some("write the path of a file, `-` for standard output, or `none`")
}

fn count(word: &str) -> Result<usize, Fault> {
    match word.parse() {
        Ok(0) => Err(Fault::new("the number must be at least 1")),
        Ok(number) => Ok(number),
        Err(_) => Err(Fault::new(format!("`{word}` is not a whole number"))),
    }
}

fn share(word: &str) -> Result<u8, Fault> {
    let share = word.parse().ok().filter(|share| (1..=100).contains(share));
    share.ok_or_else(|| Fault::new(format!("`{word}` is not a percentage from 1 to 100")))
}

/// What the engine can size an index for.
const OBJECT_SIZES: RangeInclusive<u32> = 512..=1 << 30;

fn object_size(word: &str) -> Result<u32, Fault> {
    let size = u32::try_from(parse_size(word)?)
        .ok()
        .filter(|size| OBJECT_SIZES.contains(size));
    size.ok_or_else(|| {
        let ends = [OBJECT_SIZES.start(), OBJECT_SIZES.end()].map(|&end| show_size(end.into()));
        Fault::new(format!(
            "the mean object size must be from {} to {}",
            ends[0], ends[1]
        ))
    })
}

/// What the engine can make slots of.
const BLOCKS: RangeInclusive<u32> = 2 << 10..=1 << 20;

/// Reads a size of blocks; `hashcache bench` does so too.
pub fn block(word: &str) -> Result<u32, Fault> {
    let size = u32::try_from(parse_size(word)?)
        .ok()
        .filter(|size| size.is_power_of_two() && BLOCKS.contains(size));
    size.ok_or_else(|| {
        let ends = [BLOCKS.start(), BLOCKS.end()].map(|&end| show_size(end.into()));
        Fault::new(format!("`{word}` is not a slot size")).hint(format!(
            "use a power of two from {} to {}",
            ends[0], ends[1]
        ))
    })
}

/// More threads than this make no proxy faster, and each costs memory for its stack.
const WORKERS_MAX: usize = 1024;

fn workers(word: &str) -> Result<usize, Fault> {
    let workers = count(word)?;
    if workers > WORKERS_MAX {
        return Err(Fault::new(format!(
            "at most {WORKERS_MAX} workers are allowed"
        )));
    }
    Ok(workers)
}

fn positive_size(word: &str) -> Result<u64, Fault> {
    match parse_size(word)? {
        0 => Err(Fault::new("the size must not be 0")),
        bytes => Ok(bytes),
    }
}

fn memory_size(word: &str) -> Result<usize, Fault> {
    usize::try_from(positive_size(word)?)
        .map_err(|_| Fault::new(format!("`{word}` is more than this machine can address")))
}

fn positive_time(word: &str) -> Result<std::time::Duration, Fault> {
    let time = parse_time(word)?;
    if time.is_zero() {
        Err(Fault::new("the time must not be 0"))
    } else {
        Ok(time)
    }
}

fn show_word<T: Copy + PartialEq>(words: &[(&str, T)], value: T) -> Shown {
    let word = words
        .iter()
        .find(|(_, each)| *each == value)
        .map(|&(word, _)| word.to_owned());
    word.map_or(Shown::Nothing, Shown::Text)
}

fn show_origin(origin: &Option<Origin>) -> Shown {
    origin
        .as_ref()
        .map_or(Shown::Nothing, |origin| Shown::Text(origin.to_string()))
}

fn show_address(admin: &Option<SocketAddr>) -> Shown {
    Shown::Text(admin.map_or_else(|| "none".to_owned(), |address| address.to_string()))
}

fn show_name(name: &str) -> Shown {
    Shown::Text(name.to_owned())
}

fn show_path(path: &Path) -> String {
    path.display().to_string()
}

fn show_access_log(log: &AccessLog) -> Shown {
    Shown::Text(match log {
        AccessLog::None => "none".to_owned(),
        AccessLog::Stdout => "-".to_owned(),
        AccessLog::File(path) => show_path(path),
    })
}

fn show_count(&count: &usize) -> Shown {
    Shown::Number(count as u64)
}

fn show_bytes(&bytes: &u64) -> Shown {
    Shown::Text(show_size(bytes))
}

fn show_memory(&bytes: &usize) -> Shown {
    show_bytes(&(bytes as u64))
}

fn show_reload(&reload: &ClientReload) -> Shown {
    match reload {
        ClientReload::Validate => Shown::Text("validate".to_owned()),
        ClientReload::IgnoreWithin(span) => {
            show_duration(&std::time::Duration::from_secs(span.get().into()))
        }
    }
}

fn show_set_cookie(&set_cookie: &SetCookie) -> Shown {
    show_word(&COOKIES, set_cookie)
}

fn show_offline(&offline: &Offline) -> Shown {
    show_word(&Offline::WORDS, offline)
}

fn show_wait(&wait: &CollapseWait) -> Shown {
    match wait {
        CollapseWait::Satellite => Shown::Text("satellite".to_owned()),
        CollapseWait::Lan => Shown::Text("lan".to_owned()),
        CollapseWait::Within(most) => show_duration(&most),
    }
}

fn show_truth(&yes: &bool) -> Shown {
    Shown::Truth(yes)
}

fn show_rows(&rows: &Rows) -> Shown {
    show_word(&ROWS, rows)
}

fn show_group_by(&by: &GroupBy) -> Shown {
    show_word(&GROUPS, by)
}

fn show_placement(by: &PlaceBy) -> Shown {
    show_word(&PLACEMENTS, *by)
}

fn show_io(io: &Io) -> Shown {
    show_word(&IOS, *io)
}

fn show_threshold(&permille: &u16) -> Shown {
    Shown::Text(threshold_text(permille))
}

fn show_policy(&policy: &PolicyKind) -> Shown {
    show_word(&POLICIES, policy)
}

fn show_fail(&fail: &Fail) -> Shown {
    show_word(&FAILS, fail)
}

fn show_direct(&direct: &Direct) -> Shown {
    show_word(&DIRECTS, direct)
}

fn show_choice(&choice: &PeerChoice) -> Shown {
    show_word(&CHOICES, choice)
}

fn show_format(&format: &LogFormat) -> Shown {
    show_word(&FORMATS, format)
}

fn show_object(&bytes: &u32) -> Shown {
    show_bytes(&bytes.into())
}

fn show_duration(&time: &std::time::Duration) -> Shown {
    Shown::Text(show_time(time))
}
