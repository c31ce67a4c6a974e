//! The types of the settings: parser, formatter and description of each.
//!
//! All keys with the same kind of value share a type, so they have the same syntax, bounds and
//! errors. Choices between a few words are in `choices`.

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use hashcache_http::{ClientReload, HeaderName, Host, Origin, Seconds, TargetError};
use hashcache_proxy::{
    AccessLog, AllowedDestination, CollapseWait, ConnectPort, HostPattern, LinkForward,
    LinkForwardError, Listen, Mirror, Nat64, Pin, PinError, Prefix, Speaks,
};

use crate::fault::Fault;
use crate::key::{Accepts, Kind, Shown, Type};
use crate::mirror::{read_mirror, show_mirror};
use crate::peers::{Parent, read_parent, read_threshold, read_udp, threshold_text};
use crate::units::{parse_size, parse_time, show_size, show_time};

/// A type without a fixed list of words.
const fn any<T>(
    placeholder: &'static str,
    about: &'static str,
    read: fn(&str) -> Result<T, Fault>,
    show: fn(&T) -> Shown,
) -> Type<T> {
    let kind = Kind {
        placeholder,
        about,
        accepts: Accepts::Any,
    };
    Type { kind, read, show }
}

const fn url(read: fn(&str) -> Result<Origin, Fault>) -> Type<Origin> {
    any(
        "URL",
        "an http or https URL without a path",
        read,
        displayed,
    )
}

/// A type that implements `FromStr` and `Display`.
const fn own<T: FromStr<Err: Display> + Display>(
    placeholder: &'static str,
    about: &'static str,
) -> Type<T> {
    any(placeholder, about, itself, displayed)
}

pub const TRUTH: Type<bool> = Type {
    kind: Kind {
        placeholder: "BOOL",
        about: "`true` or `false`",
        accepts: Accepts::Truth,
    },
    read: truth,
    show: |&yes| Shown::Truth(yes),
};

pub const TEXT: Type<String> = any("TEXT", "text", |word| Ok(word.to_owned()), displayed);
/// A pseudonym in `Via` and a token in `Cache-Status`.
pub const NAME: Type<String> = any(
    "NAME",
    "a letter, then letters, digits, `-`, `.` and `_`",
    name,
    displayed,
);
pub const REALM: Type<String> = any(
    "TEXT",
    "ASCII without quotes and backslashes",
    realm,
    displayed,
);

pub const COUNT: Type<usize> = any("COUNT", "a whole number from 1", count, show_count);
pub const WORKERS: Type<usize> = any(
    "COUNT",
    "a whole number from 1 to 1024",
    workers,
    show_count,
);
pub const PERCENT: Type<u8> = any("PERCENT", "a percentage from 1 to 100", share, |&share| {
    Shown::Number(share.into())
});
/// A percentage in thousandths.
pub const THRESHOLD: Type<u16> = any(
    "PERCENT",
    "a percentage from 0.1% to 10%",
    read_threshold,
    |&permille| Shown::Text(threshold_text(permille)),
);

/// A size in bytes.
pub const SIZE: Type<u64> = any("SIZE", "a size from 1", positive_size, |&bytes| {
    show_bytes(bytes)
});
/// A size in memory, bytes.
pub const MEMORY_SIZE: Type<usize> = any("SIZE", "a size from 1", memory_size, |&bytes| {
    show_bytes(bytes as u64)
});
/// An object size in bytes, within the range for which the engine can size an index.
pub const OBJECT_SIZE: Type<u32> = any("SIZE", "a size from 512 to 1GiB", object_size, |&bytes| {
    show_bytes(bytes.into())
});
/// A slot size in bytes.
pub const BLOCK: Type<u32> = any(
    "SIZE",
    "a power of two from 2KiB to 1MiB",
    block,
    |&bytes| show_bytes(bytes.into()),
);

pub const TIME: Type<Duration> = any("TIME", "a time, or 0", parse_time, show_duration);
/// A time in whole seconds; a fraction is cut off.
pub const SECONDS: Type<Seconds> = any(
    "TIME",
    "a time in whole seconds, or 0",
    seconds,
    |seconds| show_duration(&Duration::from_secs(seconds.get().into())),
);
pub const POSITIVE_TIME: Type<Duration> =
    any("TIME", "a time above 0", positive_time, show_duration);
pub const COLLAPSE_WAIT: Type<CollapseWait> =
    any("TIME", "`satellite`, `lan` or a time", wait, show_wait);
pub const CLIENT_RELOAD: Type<ClientReload> =
    any("TIME", "`validate` or a time", reload, show_reload);

pub const LISTEN: Type<Listen> = any(
    "ADDR",
    "an IP address with a port, with or without a scheme",
    listen,
    displayed,
);
pub const ADDRESS_OR_NONE: Type<Option<SocketAddr>> = any(
    "ADDR",
    "an IP address with a port, or `none`",
    address_or_none,
    show_address,
);
pub const UDP: Type<Option<SocketAddr>> = any(
    "[ADDR:]PORT",
    "a port, an IP address with a port, or `none`",
    read_udp,
    show_address,
);
pub const CIDR: Type<Prefix> = own("CIDR", "an IP address or a network in CIDR notation");
pub const NAT64: Type<Nat64> = own("CIDR", "an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits");
pub const DESTINATION: Type<AllowedDestination> = own(
    "CIDR|DOMAIN@SERVER",
    "a network in CIDR notation, or a domain with the IP address of its name server",
);
pub const PORT: Type<ConnectPort> = own("PORT", "a port, or a range of ports such as 8000-8999");
pub const FORWARD: Type<LinkForward> =
    any("PORT=HOST:PORT", "a forwarded port", forward, displayed);

pub const ORIGIN: Type<Origin> = url(origin);
pub const PROXY_URL: Type<Origin> = url(proxy_url);
pub const SERVER_URL: Type<Origin> = url(server_url);
pub const PARENT: Type<Parent> = any(
    "URL",
    "an http or https URL without a path, or `env`",
    read_parent,
    displayed,
);
pub const MIRROR: Type<Mirror> = any(
    "KIND[:NAME]=URL",
    "a kind, a name and a URL",
    read_mirror,
    |mirror| Shown::Text(show_mirror(mirror)),
);
pub const HOST: Type<Host> = any(
    "NAME",
    "a host name or an IP address, without a port",
    host,
    displayed,
);
pub const HOST_PATTERN: Type<HostPattern> = any(
    "HOST",
    "a host name, or `*.` with a domain",
    host_pattern,
    displayed,
);
pub const FIELD: Type<HeaderName> = own("NAMES", "the name of a request field");
pub const PIN: Type<Pin> = any(
    "PIN",
    "a pin, as `hashcache link pin` prints it",
    pin,
    displayed,
);

pub const PATH: Type<PathBuf> = path_to("PATH", "a path");
pub const FILE: Type<PathBuf> = path_to("FILE", "a path");
pub const DIRECTORY: Type<PathBuf> = path_to("DIR", "a path");
pub const ACCESS_LOG: Type<AccessLog> =
    any("PATH", "a path, `-` or `none`", access_log, show_access_log);

const fn path_to(placeholder: &'static str, about: &'static str) -> Type<PathBuf> {
    any(placeholder, about, path, |path| show_path(path))
}

fn itself<T: FromStr<Err: Display>>(word: &str) -> Result<T, Fault> {
    word.parse()
        .map_err(|error| Fault::new(format!("`{word}`: {error}")))
}

/// Parses `validate`, or the time within which reloads are ignored.
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

/// Parses `satellite`, `lan`, or the longest wait.
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

pub fn truth(word: &str) -> Result<bool, Fault> {
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

/// Parses a listener's address, optionally with a protocol.
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

/// Parses a link key's pin.
pub fn pin(word: &str) -> Result<Pin, Fault> {
    word.parse().map_err(|error: PinError| {
        Fault::new(format!("`{word}` is not a pin: {error}"))
            .hint("run `hashcache link pin` on the other box, and copy what it prints")
    })
}

/// Parses a forwarded port.
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

fn origin(word: &str) -> Result<Origin, Fault> {
    let why = match word.parse::<Origin>() {
        Ok(origin) => return Ok(origin),
        Err(_) if !word.contains("://") => "it has no scheme".to_owned(),
        Err(TargetError::Path) => "it has a path; requests bring their own path".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(
        Fault::new(format!("`{word}` is not the origin of a site: {why}"))
            .hint("write it as http://127.0.0.1:8080"),
    )
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

/// Parses a host without a port: the names of a site are the same on every port.
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

/// Parses a proxy name. It is a pseudonym in `Via` and a token in `Cache-Status`; both allow this
/// syntax.
fn name(word: &str) -> Result<String, Fault> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if word.starts_with(|first: char| first.is_ascii_alphabetic()) && word.bytes().all(fits) {
        return Ok(word.to_owned());
    }
    Err(Fault::new(format!("`{word}` is not a name for a proxy"))
        .hint("use a letter, then letters, digits, `-`, `.` and `_`"))
}

/// Parses a realm that needs no escapes in a `quoted-string` (RFC 9110, 5.6.4).
fn realm(word: &str) -> Result<String, Fault> {
    let is_bad = |c: char| !c.is_ascii() || c.is_ascii_control() || "\"\\".contains(c);
    if word.is_empty() || word.chars().any(is_bad) {
        Err(Fault::new(format!("`{word}` is not a realm"))
            .hint("use ASCII without quotes and backslashes"))
    } else {
        Ok(word.to_owned())
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

/// Hint for a word that other programs accept as a log destination and that is hardly a file name.
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

/// Bounds of the engine for the object size from which it sizes an index.
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

/// Bounds of the engine for slots.
const BLOCKS: RangeInclusive<u32> = 2 << 10..=1 << 20;

/// Parses a slot size; `hashcache bench` also uses this.
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

/// More threads than this make no proxy faster, and each thread costs memory for its stack.
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

fn seconds(word: &str) -> Result<Seconds, Fault> {
    parse_time(word).map(|time| Seconds::new(time.as_secs()))
}

fn positive_time(word: &str) -> Result<Duration, Fault> {
    let time = parse_time(word)?;
    if time.is_zero() {
        Err(Fault::new("the time must not be 0"))
    } else {
        Ok(time)
    }
}

fn displayed<T: Display>(value: &T) -> Shown {
    Shown::Text(value.to_string())
}

fn show_path(path: &Path) -> Shown {
    Shown::Text(path.display().to_string())
}

fn show_count(&count: &usize) -> Shown {
    Shown::Number(count as u64)
}

fn show_bytes(bytes: u64) -> Shown {
    Shown::Text(show_size(bytes))
}

fn show_duration(&time: &Duration) -> Shown {
    Shown::Text(show_time(time))
}

fn show_address(admin: &Option<SocketAddr>) -> Shown {
    Shown::Text(admin.map_or_else(|| "none".to_owned(), |address| address.to_string()))
}

fn show_access_log(log: &AccessLog) -> Shown {
    match log {
        AccessLog::None => Shown::Text("none".to_owned()),
        AccessLog::Stdout => Shown::Text("-".to_owned()),
        AccessLog::File(path) => show_path(path),
    }
}

fn show_reload(&reload: &ClientReload) -> Shown {
    match reload {
        ClientReload::Validate => Shown::Text("validate".to_owned()),
        ClientReload::IgnoreWithin(span) => show_duration(&Duration::from_secs(span.get().into())),
    }
}

fn show_wait(&wait: &CollapseWait) -> Shown {
    match wait {
        CollapseWait::Satellite => Shown::Text("satellite".to_owned()),
        CollapseWait::Lan => Shown::Text("lan".to_owned()),
        CollapseWait::Within(most) => show_duration(&most),
    }
}
