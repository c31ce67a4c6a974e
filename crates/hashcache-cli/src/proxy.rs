//! `hashcache proxy`: loads the settings, opens the cache and runs the proxy until a signal stops
//! it.
//!
//! Called by `main`; calls `settings`, the engine and the proxy library, and contains none of their
//! logic.

use std::cell::Cell;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use hashcache::{Cache, Config, OpenError, PolicyKind};
use hashcache_http::host_part;
use hashcache_proxy::{
    AccessLog, CertificateAuthority, Diversion, Hosts, Intercept, ListError, Listening,
    ReloadedSettings, RunError, Settings, Speaks, StateFiles, Supervisor, Warning,
};
use hashcache_settings::fault::{self, Fault, Faults};
use hashcache_settings::units::{show_size, show_store_size};
use hashcache_settings::{Applies, Effective, Environment, SettingArgs, Source, Values};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

use crate::address::reachable;
use crate::logging;
use crate::open_fault::{Purpose, cannot_open, directory, no_directory};
use crate::output::{say, tell};
use crate::private::{Intent, Private};

/// Open files for a client: the client's connection, and a tunnel's other side or an upstream
/// connection.
const FILES_PER_CLIENT: u64 = 2;
/// Open files for the cache, logs, listeners and idle connections to origins. If the limit is below
/// 4,096 files, a quarter of the limit instead.
const OTHER_FILES: u64 = 1024;

/// The service of this process for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `hashcache proxy`.
    Proxy,
    /// `hashcache wan`: it forwards ports and is no proxy.
    Wan,
}

/// Runs the proxy.
pub fn run(args: &SettingArgs, role: Role, environment: &Environment) -> anyhow::Result<ExitCode> {
    // This must be first, while there are no other threads.
    let supervisor = Supervisor::of_this_process()
        .context("cannot use what the service manager passes (LISTEN_FDS, NOTIFY_SOCKET)")?;
    logging::start(environment)?;
    let mut effective = load(args, role, environment)?;
    let open_files = raise_open_files();
    let problems = start_problems(&effective, &supervisor);
    if !problems.is_empty() {
        return Err(Faults(problems).into());
    }
    let state = StateFiles {
        clock: effective.state_file("clock"),
        verified: effective.state_file("verified"),
        chunks: effective.state_file("chunks"),
        quotas: effective.state_file("quotas"),
        history: effective.state_file("history"),
    };
    let absent = absent_files(&effective, &state);
    let cache = open(&effective)?;
    // Not earlier: if opening fails, the engine removes the files that it made, and a file that
    // another process made meanwhile is not ours.
    let new_files = NewFiles::new(absent);
    let stats = cache.stats();
    let (cache_size, in_all) = (stats.device_bytes_min, stats.device_bytes);
    cap_clients(&mut effective, open_files);
    let started = effective.clone();
    // An existing cache keeps its own size. With several devices the smallest counts, because an
    // object is stored whole on one device.
    effective.values.engine.cache_size = cache_size;
    let again = (args.clone(), environment.clone());
    let reload = move || {
        let mut effective =
            load(&again.0, role, &again.1).map_err(|error| fault::one_line(&error))?;
        cap_clients(&mut effective, open_files);
        let restart = start_changes(&started, &effective);
        effective.values.engine.cache_size = cache_size;
        let settings =
            for_proxy(&effective, Intent::Run).map_err(|error| fault::one_line(&error))?;
        Ok::<_, String>(ReloadedSettings { settings, restart })
    };
    let announced = effective.clone();
    let listening = |listening: &Listening| {
        new_files.keep();
        let line = greeting(&announced, in_all, listening);
        match announced.values.startup.access_log {
            // On standard output, a log reader would take the greeting for a log entry.
            AccessLog::Stdout => tell(&line),
            AccessLog::None | AccessLog::File(_) => say(&line),
        }
    };
    let settings = for_proxy(&effective, Intent::Run)?;
    hashcache_proxy::run(settings, cache, state, supervisor, listening, reload)
        .map_err(cannot_run)?;
    Ok(ExitCode::SUCCESS)
}

/// Finds every reason not to start that can be found without starting. Creates and changes nothing,
/// and does not disturb a running proxy with these settings. An address in use is not reported: the
/// program that uses it may be the proxy that will be restarted.
pub fn start_problems(effective: &Effective, supervisor: &Supervisor) -> Vec<Fault> {
    let values = &effective.values;
    let mut problems = Vec::new();
    if values.startup.link_listen.is_some() && values.reloadable.link_children.is_empty() {
        let fault = Fault::new("`link_listen` without `link_children` serves nobody");
        let fault = fault.hint("run `hashcache link pin` on the child, and add what it prints");
        problems.push(fault.at(effective.source("link_listen")));
    }
    for path in &values.engine.cache {
        let directory = directory(path);
        if *effective.source("cache") != Source::Default && !directory.exists() {
            problems.push(no_directory(path, &directory));
        }
        problems.extend(Private::Cache.check(path, Intent::Check).err());
    }
    if problems.is_empty() {
        let refusals = Cache::preflight(&engine_config_now(effective));
        problems.extend(refusals.iter().map(|error| engine_fault(effective, error)));
    }
    let settings = match for_proxy(effective, Intent::Check) {
        Ok(settings) => settings,
        Err(error) => {
            problems.extend(fault::all(&error));
            // Faults in the token and the authority are reported already.
            let mut settings = values.for_proxy();
            settings.startup.admin_token_file = None;
            settings
        }
    };
    let refusals = hashcache_proxy::preflight(&settings, supervisor).into_iter();
    problems.extend(refusals.flat_map(|error| fault::all(&cannot_run(error))));
    problems
}

/// Returns warnings about settings that are most likely mistakes, although the proxy starts with
/// them.
pub fn start_warnings(effective: &Effective) -> anyhow::Result<Vec<Warning>> {
    Ok(hashcache_proxy::warnings(&for_proxy(
        effective,
        Intent::Check,
    )?))
}

/// Cache and state files that do not exist yet.
fn absent_files(effective: &Effective, state: &StateFiles) -> Vec<PathBuf> {
    let files = effective.values.engine.cache.iter();
    let files = files.chain(&state.clock).chain(&state.verified);
    let files = files.chain(&state.chunks).chain(&state.quotas);
    let files = files.chain(&state.history);
    let is_absent = |path: &&PathBuf| fs::symlink_metadata(path).is_err();
    files.filter(is_absent).cloned().collect()
}

/// Files that this start makes. If the value is dropped before the proxy listens, they are removed
/// again: a start that fails leaves no files behind.
struct NewFiles {
    paths: Vec<PathBuf>,
    kept: Cell<bool>,
}

impl NewFiles {
    fn new(paths: Vec<PathBuf>) -> Self {
        Self {
            paths,
            kept: Cell::new(false),
        }
    }

    fn keep(&self) {
        self.kept.set(true);
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        if self.kept.get() {
            return;
        }
        for path in &self.paths {
            let _ = fs::remove_file(path);
        }
    }
}

/// Settings for the proxy, with the contents of the files that they name.
fn for_proxy(effective: &Effective, intent: Intent) -> anyhow::Result<Settings> {
    let values = &effective.values;
    let mut exposed = Vec::new();
    if let Some(token) = &values.startup.admin_token_file {
        exposed.extend(Private::Token.check(token, intent).err());
    }
    if let Some(directory) = &values.intercept_ca {
        exposed.extend(Private::AuthorityDirectory.check(directory, intent).err());
        for key in ["signer.pem", "root.key"] {
            let path = directory.join(key);
            exposed.extend(Private::AuthorityKey.check(&path, intent).err());
        }
    }
    if !exposed.is_empty() {
        return Err(Faults(exposed).into());
    }
    let intercept = values.intercept_ca.as_deref().map(|directory| {
        let authority = CertificateAuthority::load(directory).map_err(|error| {
            let fault = Fault::new(format!("cannot use the CA in {}", directory.display()));
            let fault = match error.advice() {
                Some(advice) => fault.hint(advice),
                None => fault,
            };
            anyhow::Error::new(error).context(fault)
        })?;
        Ok::<_, anyhow::Error>(Intercept {
            authority: Arc::new(authority),
            hosts: Hosts::new(&values.intercept),
        })
    });
    let mut settings = values.for_proxy();
    settings.reloadable.intercept = intercept.transpose()?;
    Ok(settings)
}

/// Names of the changed settings that apply only at the next start.
fn start_changes(old: &Effective, new: &Effective) -> Vec<&'static str> {
    let both = old.shown().zip(new.shown());
    let changed = both.filter(|((_, was, _), (_, is, _))| was != is);
    let groups = |effective: &Effective| effective.values.for_proxy().startup.group_by.is_some();
    // Without `grouped`, the rule by which pages are grouped has no effect.
    let is_idle = |name: &str| name == "group_by" && !(groups(old) && groups(new));
    let keys = changed.map(|((key, ..), _)| key);
    keys.filter(|key| key.applies == Applies::AtStart && !is_idle(key.name))
        .map(|key| key.name)
        .collect()
}

/// The fault for a proxy that did not start, with a hint.
fn cannot_run(error: RunError) -> anyhow::Error {
    if let RunError::Link(fault) = &error {
        let source = std::error::Error::source(fault).map(|source| format!(": {source}"));
        let what = Fault::new(format!("{fault}{}", source.unwrap_or_default()));
        return match fault.advice() {
            Some(advice) => what.hint(advice).into(),
            None => what.into(),
        };
    }
    if let RunError::Inherited { .. } = &error {
        let fault = Fault::new(error.to_string());
        let hint = "the addresses of `hashcache.socket` must be those of `listen`, `admin`, \
                    `link_listen` or `link_forward`: see `systemctl edit hashcache.socket`";
        return fault.hint(hint).into();
    }
    let hint = match &error {
        RunError::NotTransparent { .. } => {
            "write `Transparent=yes` into `hashcache.socket`: see `systemctl edit hashcache.socket`"
        }
        RunError::Listen { source, .. } if source.kind() == ErrorKind::AddrInUse => {
            "another program uses this address: stop it, or use another `--listen` or `--admin`"
        }
        RunError::Listen { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            "ports below 1024 need root or the capability CAP_NET_BIND_SERVICE, `tproxy://` needs \
             CAP_NET_RAW or CAP_NET_ADMIN"
        }
        RunError::Listen { source, .. } if source.kind() == ErrorKind::AddrNotAvailable => {
            "this machine does not have this address; 0.0.0.0 means all its addresses"
        }
        RunError::AccessLog { .. } => {
            "the directory must exist, and the user of this process must be able to write to it"
        }
        RunError::Identity(_) => {
            "`--tls-cert` names a file with the certificate and its chain, `--tls-key` one with \
             its key, both in PEM"
        }
        RunError::Authorities(_) => {
            "`--upstream-ca` names a file with certificates of authorities, in PEM"
        }
        RunError::List(ListError::Memory { .. }) => "use a larger `--memory`, or a shorter list",
        RunError::List(_) => "the user of this process must be able to read the files of lists",
        RunError::Token { .. } => {
            "write 16 bytes or more into it, for example with `head -c 24 /dev/urandom | base64`"
        }
        _ => return error.into(),
    };
    let what = match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    Fault::new(what).hint(hint).into()
}

fn load(args: &SettingArgs, role: Role, environment: &Environment) -> anyhow::Result<Effective> {
    let mut effective =
        hashcache_settings::load(args.config.as_deref(), args.given(), environment)?;
    if role == Role::Wan {
        if effective.values.startup.link_forward.is_empty() {
            let fault = Fault::new("no port is to be forwarded");
            return Err(fault.hint("add `--forward PORT=HOST:PORT`").into());
        }
        effective.values.startup.listen.clear();
    }
    Ok(effective)
}

fn open(effective: &Effective) -> anyhow::Result<Cache> {
    let paths = &effective.values.engine.cache;
    // Only our own default directory is made. If a directory that the operator named is missing,
    // the disk may not be mounted, and the path must not become a cache that fills the system's
    // disk.
    for path in paths {
        let directory = directory(path);
        if *effective.source("cache") == Source::Default {
            let fault = || {
                Fault::new(format!("cannot create {}", directory.display()))
                    .hint("use another path for the cache with `--cache PATH`")
            };
            fs::create_dir_all(&directory).with_context(fault)?;
        } else if !directory.exists() {
            return Err(no_directory(path, &directory).into());
        }
    }
    for path in paths {
        Private::Cache.check(path, Intent::Run)?;
    }
    for setting in without_effect(effective) {
        let policy = effective.values.engine.policy.name();
        warn!(setting, policy, "setting has no effect with this policy");
    }
    Ok(Cache::open(engine_config_now(effective))
        .map_err(|error| engine_fault(effective, &error))?)
}

/// The fault for a cache that cannot be opened.
fn engine_fault(effective: &Effective, error: &OpenError) -> Fault {
    // If there are several devices, the engine names the device that failed.
    let first = effective.values.engine.cache.first().map(PathBuf::as_path);
    let path = error.path().or(first).unwrap_or(Path::new(""));
    cannot_open(path, Purpose::Serve, error)
}

/// Settings for the engine, according to the files that exist at the paths now.
fn engine_config_now(effective: &Effective) -> Config {
    let paths = &effective.values.engine.cache;
    // A block device has a size before it holds a cache, but `len` in its metadata is 0.
    let sized = |file: fs::Metadata| file.len() > 0 || file.file_type().is_block_device();
    let exists = |path: &PathBuf| fs::metadata(path).is_ok_and(sized);
    engine_config(effective, paths, paths.iter().all(exists))
}

/// Names of the given settings that have no effect with the policy.
fn without_effect(effective: &Effective) -> Vec<&'static str> {
    let policy = effective.values.engine.policy;
    let is_log = effective.values.has_log();
    let works = [
        ("rows", policy == PolicyKind::Log),
        ("grouped", is_log),
        (
            "held_share",
            matches!(policy, PolicyKind::LogLru | PolicyKind::SetMemLru),
        ),
        ("readmission", is_log),
        ("object_size", is_log),
        ("block", !is_log),
    ];
    let is_given = |key: &str| *effective.source(key) != Source::Default;
    let idle = works
        .into_iter()
        .filter(|(key, works)| !works && is_given(key));
    idle.map(|(key, _)| key).collect()
}

/// Settings for the engine.
///
/// An existing cache keeps its size unless another size is given.
fn engine_config(effective: &Effective, paths: &[PathBuf], exist: bool) -> Config {
    let values = &effective.values;
    let is_asked = *effective.source("cache_size") != Source::Default;
    Config {
        size_bytes: (is_asked || !exist).then_some(values.engine.cache_size),
        memory_bytes: values.engine.memory,
        whole_process: true,
        policy: values.engine.policy,
        held_share: values.engine.held_share,
        rows: values.engine.rows,
        grouped: values.engine.grouped,
        placement: values.engine.placement.rule(host_part),
        readmission: values.engine.readmission,
        io: values.engine.io,
        object_bytes: values.engine.object_size,
        block_bytes: (*effective.source("block") != Source::Default).then_some(values.engine.block),
        paths: paths.to_vec(),
        ..Config::new("")
    }
}

/// Raises the limit on open files to the maximum that the system allows; returns the new limit.
fn raise_open_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

/// Limits clients and upstream connections to the number of files that may be open; `None` means no
/// limit.
fn cap_clients(effective: &mut Effective, open_files: Option<u64>) {
    let clients = &mut effective.values.startup.limits.clients;
    let most = open_files.map_or(usize::MAX, |files| {
        let for_clients = files - OTHER_FILES.min(files / 4);
        // An eighth more connections may be closing.
        usize::try_from(for_clients / FILES_PER_CLIENT / 9 * 8)
            .unwrap_or(usize::MAX)
            .max(1)
    });
    if *clients > most {
        warn!(
            asked = *clients,
            clients = most,
            "fewer clients than configured: the limit on open files is too low"
        );
        *clients = most;
    }
    let upstream = &mut effective.values.startup.limits.upstream;
    *upstream = most.min(*upstream);
}

/// The line at the start: the listener addresses, the resources in use (`bytes` on disk in total)
/// and the next command to type. A second line explains how to store https.
fn greeting(effective: &Effective, bytes: u64, listening: &Listening) -> String {
    let values = &effective.values;
    let settings = values.for_proxy();
    let scheme = |at: usize| match settings
        .startup
        .listen
        .get(at)
        .map(|it| settings.speaks(it))
    {
        Some(Speaks::Tls) => "https",
        Some(Speaks::Transparent(Diversion::Redirect)) => "redirect",
        Some(Speaks::Transparent(Diversion::Tproxy)) => "tproxy",
        Some(Speaks::Http | Speaks::H2c) | None => "http",
    };
    let urls: Vec<(&str, SocketAddr)> = listening
        .clients
        .iter()
        .enumerate()
        .map(|(at, address)| (scheme(at), *address))
        .collect();
    let addresses: Vec<String> = urls
        .iter()
        .map(|(scheme, address)| format!("{scheme}://{address}"))
        .collect();
    let caches: Vec<String> = values
        .engine
        .cache
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let link = listening.link.map(|at| format!(", link on https://{at}"));
    let admin = listening.admin.map_or_else(
        || "no admin".to_owned(),
        |at| format!("admin on http://{at}"),
    );
    let forwards: Vec<String> = listening
        .forwards
        .iter()
        .zip(&values.startup.link_forward)
        .map(|(address, forward)| format!(", {address} leads to {}", forward.destination()))
        .collect();
    let is_for_programs = |(scheme, _): &&(&str, SocketAddr)| scheme.starts_with("http");
    let next = match (values.is_reverse(), urls.iter().find(is_for_programs)) {
        (true, Some((scheme, address))) => curl_of_site(values, scheme, reachable(*address)),
        (false, Some((scheme, address))) => {
            format!("export http_proxy={scheme}://{}", reachable(*address))
        }
        (_, None) => match listening.forwards.first() {
            Some(address) => format!("connect to {}", reachable(*address)),
            None if !urls.is_empty() => "send connections here by rules of netfilter".to_owned(),
            None => String::new(),
        },
    };
    let is_proxy = !values.startup.listen.is_empty();
    let stores_https =
        values.intercept_ca.is_some() || !values.reloadable.mirrors.is_empty() || !is_proxy;
    let https = if !values.is_reverse() && !stores_https {
        HTTPS_IS_TUNNELLED
    } else {
        ""
    };
    let in_all = if caches.len() > 1 { " in all" } else { "" };
    let role = if values.is_reverse() {
        format!("in front of {}", values.front_of())
    } else if is_proxy {
        "proxy".to_owned()
    } else {
        "wan".to_owned()
    };
    let on = if is_proxy {
        format!(" on {}", addresses.join(" "))
    } else {
        String::new()
    };
    format!(
        "hashcache: {role}{on}{}{}, {admin}; cache {} ({}{in_all}, policy {}), memory {}; \
         next: {next}\n{https}",
        link.unwrap_or_default(),
        forwards.concat(),
        caches.join(" "),
        show_store_size(bytes),
        values.engine.policy.name(),
        show_size(values.engine.memory),
    )
}

/// Second greeting line if responses over https are not stored.
const HTTPS_IS_TUNNELLED: &str = "hashcache: https passes through as a tunnel and is not stored; \
     to store it, point package tools at a mirror (`--mirror`), or run `hashcache ca init` and add \
     `--intercept-ca DIR --intercept-list cacheable`\n";

/// The command that requests the first page of the first site. A site with names answers requests
/// for these names only, and its certificate has no other.
fn curl_of_site(values: &Values, scheme: &str, address: SocketAddr) -> String {
    let of_file = || values.reloadable.sites.all().first()?.hosts.first();
    let host = values.accelerate_host.first().or_else(of_file);
    match host {
        None => format!("curl {scheme}://{address}/"),
        Some(host) => {
            let port = address.port();
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_string(),
                IpAddr::V6(ip) => format!("[{ip}]"),
            };
            format!("curl --resolve {host}:{port}:{ip} {scheme}://{host}:{port}/")
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn at(clients: &[SocketAddr], admin: Option<&str>) -> Listening {
        Listening {
            clients: clients.to_vec(),
            admin: admin.and_then(|admin| admin.parse().ok()),
            link: None,
            forwards: Vec::new(),
        }
    }
    use crate::args::{Cli, Command};

    /// Settings from these flags alone.
    fn effective(flags: &[&str]) -> Effective {
        let line = [&["hashcache", "proxy"], flags].concat();
        let Command::Proxy(args) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command")
        };
        let variables = [("HOME".to_owned(), "/home-of-tests".to_owned())].into();
        let environment = Environment {
            variables,
            is_root: false,
            processors: 4,
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        hashcache_settings::load(Some(file.path()), args.given(), &environment).unwrap()
    }

    #[test]
    fn what_does_nothing_with_the_policy_is_told() {
        let all = [
            "--rows",
            "one",
            "--grouped",
            "--readmission",
            "--held-share",
            "30",
            "--block",
            "4KiB",
            "--object-size",
            "4KiB",
        ];
        for (policy, idle) in [
            ("log", vec!["held_share", "block"]),
            ("log-lru", vec!["rows", "block"]),
            (
                "set-mem-lru",
                vec!["rows", "grouped", "readmission", "object_size"],
            ),
            (
                "set",
                vec![
                    "rows",
                    "grouped",
                    "held_share",
                    "readmission",
                    "object_size",
                ],
            ),
        ] {
            let given = effective(&[&["--policy", policy], &all[..]].concat());
            assert_eq!(without_effect(&given), idle, "{policy}");
            assert!(without_effect(&effective(&["--policy", policy])).is_empty());
        }
    }

    #[test]
    fn bounds_follow_from_the_cache_that_is_there_and_the_files_there_are() {
        let mut effective = effective(&[]);
        cap_clients(&mut effective, Some(400));
        effective.values.engine.cache_size = 200 << 30;
        let settings = effective.values.for_proxy();
        assert_eq!(settings.startup.limits.clients, 128);
        assert_eq!(settings.reloadable.max_object_size, 50 << 30);
    }

    #[test]
    fn a_reload_names_the_settings_that_only_a_restart_changes() {
        let old = effective(&["--memory=1GiB", "--cache=/a", "--workers=1"]);
        let new = effective(&["--memory=2GiB", "--cache=/b", "--workers=2"]);
        assert_eq!(start_changes(&old, &new), ["cache", "memory", "workers"]);
        assert!(start_changes(&old, &old).is_empty());
        let new = effective(&[
            "--memory=1GiB",
            "--cache=/a",
            "--workers=1",
            "--fail=closed",
            "--group-by=origin",
        ]);
        assert!(start_changes(&old, &new).is_empty());
    }

    #[test]
    fn the_greeting_says_where_what_and_what_next() {
        let effective = effective(&["--cache=/srv/c.img", "--memory=1GiB"]);
        let listen = ["0.0.0.0:3128".parse().unwrap(), "[::1]:81".parse().unwrap()];
        assert_eq!(
            greeting(&effective, 1 << 30, &at(&listen, Some("127.0.0.1:3180"))),
            "hashcache: proxy on http://0.0.0.0:3128 http://[::1]:81, \
             admin on http://127.0.0.1:3180; cache /srv/c.img (1GiB, policy log), memory 1GiB; \
             next: export http_proxy=http://127.0.0.1:3128\n"
                .to_owned()
                + HTTPS_IS_TUNNELLED
        );
        let effective = self::effective(&["--accelerate=http://192.0.2.1"]);
        let line = greeting(&effective, 1 << 30, &at(&listen[1..], None));
        assert!(
            line.starts_with("hashcache: in front of http://192.0.2.1 on "),
            "{line}"
        );
        assert!(line.ends_with("next: curl http://[::1]:81/\n"), "{line}");
        let effective = self::effective(&[
            "--accelerate=http://a",
            "--tls-cert=c",
            "--tls-key=k",
            "--listen=0.0.0.0:443,h2c://127.0.0.1:81",
        ]);
        let line = greeting(&effective, 1 << 30, &at(&listen, None));
        let told = "on https://0.0.0.0:3128 http://[::1]:81, no admin";
        assert!(line.contains(told), "{line}");
        let next = "next: curl https://127.0.0.1:3128/\n";
        assert!(line.ends_with(next), "{line}");
        let effective = self::effective(&["--accelerate=http://a", "--accelerate-host=www.a.test"]);
        let line = greeting(&effective, 1 << 30, &at(&listen[1..], None));
        let next = "next: curl --resolve www.a.test:81:[::1] http://www.a.test:81/\n";
        assert!(line.ends_with(next), "{line}");
        let mirrors = ["--cache=/a", "--mirror=npm=http://registry.test/"];
        let line = greeting(&self::effective(&mirrors), 1 << 30, &at(&listen, None));
        assert_eq!(line.lines().count(), 1, "{line}");
        let effective = self::effective(&["--cache=/a", "--cache=/b"]);
        let line = greeting(&effective, 3 << 30, &at(&listen, None));
        let told = "cache /a /b (3GiB in all, policy log)";
        assert!(line.contains(told), "{line}");
    }

    #[test]
    fn a_cache_that_exists_keeps_its_size_unless_another_is_asked_for() {
        let paths = [PathBuf::from("/c.img")];
        let size =
            |flags: &[&str], exist| engine_config(&effective(flags), &paths, exist).size_bytes;
        assert_eq!(size(&[], false), Some(1 << 30));
        assert_eq!(size(&[], true), None);
        assert_eq!(size(&["--cache-size=2GiB"], true), Some(2 << 30));
    }

    #[test]
    fn no_state_is_ever_kept_in_the_file_of_the_cache() {
        for (cache, clock) in [
            ("/c.img", "/c.clock"),
            ("/c.clock", "/c.clock.clock"),
            ("/c.clock.new", "/c.clock.clock"),
        ] {
            let effective = effective(&[&format!("--cache={cache}")]);
            let file = effective.state_file("clock");
            assert_eq!(file.as_deref(), Some(Path::new(clock)));
        }
    }

    #[test]
    fn clients_are_no_more_than_there_are_files_for() {
        let clients = |files| {
            let mut effective = effective(&[]);
            cap_clients(&mut effective, files);
            effective.values.startup.limits.clients
        };
        assert_eq!(clients(None), 4096);
        assert_eq!(clients(Some(1 << 20)), 4096);
        assert_eq!(clients(Some(1024)), 336);
        assert_eq!(clients(Some(10_240)), 4096);
        assert_eq!(clients(Some(0)), 1);
    }

    #[test]
    fn an_address_that_means_all_is_reached_through_loopback() {
        for (listen, typed) in [
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("10.0.0.1:1", "10.0.0.1:1"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()), typed.parse().unwrap());
        }
    }
}
