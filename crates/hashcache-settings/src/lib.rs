//! The settings of `hashcache proxy`, each written down once: as a row in [`SECTIONS`] or a table
//! in [`TABLES`].
//!
//! Called by the command line and by the importer. The rows give the readers of flags, environment
//! variables and the configuration file (`flags`, `environment`, `file`), and all texts about
//! settings: the sample file, the reference, the manual page, `config show`.
//!
//! Every source becomes a list of [`Given`]. These lists are applied to the defaults in a fixed
//! order; the order within a source does not matter. All faults from all sources are collected
//! before the first is reported.
//!
//! Invariant: an [`Effective`] is consistent and knows the source of each value.

mod access;
pub mod effective_text;
mod environment;
pub mod example;
pub mod fault;
mod file;
mod flags;
mod given;
mod key;
mod keys;
mod limit;
pub mod manual;
mod mirror;
mod peers;
pub mod reference;
mod site;
mod suggest;
mod tables;
pub mod units;
mod values;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use environment::Environment;
pub use flags::SettingArgs;
pub use given::{Given, Source, given_flags};
pub use key::{Accepts, Applies, DefaultValue, Key, Shown, Written};
pub use keys::types::block;
pub use keys::{SECTIONS, find, keys};
pub use mirror::read_mirror;
pub use tables::{TABLES, Table};
pub use values::{PlaceBy, Values};

use hashcache_http::{RuleSpec, Rules};
use hashcache_proxy::{AccessSettings, Listen, PeerKind, Prefix, SiteError, Sites, Speaks};

use self::peers::Said;
use crate::fault::{Fault, Faults};
use crate::units::show_size;

/// Settings in effect, with their sources.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The settings.
    pub values: Values,
    /// The configuration file, if a file was read.
    pub file: Option<PathBuf>,
    /// The arrays of tables and the networks in the file, as they were written.
    pub tables: Vec<(&'static str, toml::Value)>,
    /// The networks in the file, by name.
    pub networks: BTreeMap<String, Vec<Prefix>>,
    /// Where each value comes from that is not the default, by key name.
    sources: BTreeMap<&'static str, Source>,
}

impl Effective {
    /// Every key with the value as shown and the source; the keys of tables are last, because TOML
    /// requires this order.
    pub fn shown(&self) -> impl Iterator<Item = (&'static Key, Shown, &Source)> {
        let is_top = |key: &&Key| key.table_and_name().0.is_empty();
        let tables = keys().filter(move |key| !is_top(key));
        let all = keys().filter(is_top).chain(tables);
        all.map(|key| (key, (key.show)(&self.values), self.source(key.name)))
    }

    /// A file that keeps state for the next start. It is beside the cache, where the proxy may
    /// write.
    pub fn state_file(&self, ending: &str) -> Option<PathBuf> {
        let cache = self.values.engine.cache.first()?;
        let file = cache.with_extension(ending);
        if file == *cache {
            return Some(cache.with_extension(format!("{ending}.{ending}")));
        }
        Some(file)
    }

    /// The source for the key called `name`.
    pub fn source(&self, name: &str) -> &Source {
        self.sources.get(name).unwrap_or(&Source::Default)
    }
}

/// Loads settings from `flags`, the variables in `environment` and a file. The file is `named`,
/// otherwise the file that a variable names, otherwise the first existing default file; it may be
/// missing.
pub fn load(
    named: Option<&Path>,
    flags: Vec<Given>,
    environment: &Environment,
) -> anyhow::Result<Effective> {
    let (path, text) = read_file(named, environment)?;
    Ok(assemble(path.as_deref(), &text, flags, environment)?)
}

/// Finds and reads the configuration file; without a file the text is empty.
fn read_file(
    named: Option<&Path>,
    environment: &Environment,
) -> anyhow::Result<(Option<PathBuf>, String)> {
    if let Some(path) = named
        .map(Path::to_owned)
        .or_else(|| environment.config_named())
    {
        let text = fs::read_to_string(&path).map_err(|error| unreadable(&path, error))?;
        return Ok((Some(path), text));
    }
    for path in environment.config_files() {
        match fs::read_to_string(&path) {
            Ok(text) => return Ok((Some(path), text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A file that exists but cannot be read must not be skipped silently: the operator
            // wrote it and assumes that it is in effect.
            Err(error) => return Err(unreadable(&path, error)),
        }
    }
    Ok((None, String::new()))
}

fn unreadable(path: &Path, error: io::Error) -> anyhow::Error {
    let fault = Fault::new(format!("cannot read configuration file {}", path.display()));
    let fault = match error.kind() {
        io::ErrorKind::NotFound => fault.hint("check the path, or start without `--config`"),
        io::ErrorKind::PermissionDenied => {
            fault.hint("the user of this process must be able to read it")
        }
        _ => fault,
    };
    anyhow::Error::new(error).context(fault)
}

/// Applies the sources to the defaults. Pure: `load` has read all files before.
fn assemble(
    path: Option<&Path>,
    text: &str,
    flags: Vec<Given>,
    environment: &Environment,
) -> Result<Effective, Faults> {
    let parsed = path.map(|path| file::parse(path, text)).unwrap_or_default();
    let (variables, variable_faults) = environment.given();
    let mut faults = parsed.faults;
    faults.extend(variable_faults);

    let mut effective = Effective {
        values: Values {
            link_dir_default: environment.link_directory(),
            ..Values::defaults(environment.processors, environment.cache_file())
        },
        file: path.map(Path::to_owned),
        tables: parsed.tables,
        networks: parsed.networks.clone(),
        sources: BTreeMap::new(),
    };
    for layer in [parsed.given, variables, flags] {
        faults.extend(said_twice(&layer));
        for Given {
            found,
            written,
            source,
        } in layer
        {
            match found.read(&mut effective.values, &written) {
                Ok(()) => drop(effective.sources.insert(found.key.name, source)),
                Err(Faults(wrong)) => faults.extend(wrong.into_iter().map(|fault| match &source {
                    Source::File { .. } => fault.at(found.spelling).at(&source),
                    _ => fault.at(&source),
                })),
            }
        }
    }
    let said = Said {
        parents: &effective.values.parent,
        pin: effective.values.parent_pin,
        peers: &parsed.peers,
        routes: &parsed.routes,
        direct: effective.values.direct,
        choice: effective.values.peer_choice,
        icp: effective.values.reloadable.icp,
        htcp: effective.values.reloadable.htcp,
        name: &effective.values.startup.name,
        policy: effective.values.engine.policy,
        in_front_of_a_site: effective.values.accelerate.is_some() || !parsed.sites.is_empty(),
    };
    match said.together(environment) {
        Ok(together) => effective.values.peers = together,
        Err(Faults(wrong)) => faults.extend(wrong),
    }
    match rules(&parsed.rules, effective.values.default_rules) {
        Ok(rules) => effective.values.reloadable.rules = rules,
        Err(fault) => faults.push(fault),
    }
    let (places, access_rules) = parsed.access.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
    let access = AccessSettings {
        rules: access_rules,
        groups: parsed.groups.into_iter().collect(),
        lists: parsed.lists,
        limits: parsed.limits.iter().map(|it| it.name.clone()).collect(),
        networks: parsed.networks,
        nat64: effective.values.reloadable.nat64_prefix.clone(),
        contact: effective.values.contact.clone(),
    };
    match access::compile(&access, &places) {
        Ok(rules) => {
            effective.values.reloadable.access = Arc::new(rules);
            effective.values.reloadable.lists = access.lists;
            effective.values.reloadable.access_limits = parsed.limits;
        }
        Err(Faults(wrong)) => faults.extend(wrong),
    }
    match Sites::new(parsed.sites) {
        Ok(sites) => effective.values.reloadable.sites = sites,
        Err(error) => faults.push(site_fault(&error)),
    }
    // Contradictions between values that are wrong themselves would only confuse the operator.
    if faults.is_empty() {
        faults = contradictions(&effective);
    }
    if faults.is_empty() {
        Ok(effective)
    } else {
        Err(Faults(faults))
    }
}

/// The operator's freshness rules, followed by the shipped rules unless they are turned off.
fn rules(own: &[RuleSpec], default_rules: bool) -> Result<Rules, Fault> {
    let rules = if default_rules {
        Rules::before_shipped(own)
    } else {
        Rules::new(own)
    };
    rules.map_err(|error| Fault::new(error.to_string()))
}

/// A contradiction between sites, with a hint.
fn site_fault(error: &SiteError) -> Fault {
    let fault = Fault::new(error.to_string()).at("site");
    match error {
        SiteError::HostTwice { .. } => fault.hint("each host belongs to one `[[site]]`"),
        SiteError::OriginTwice { .. } => fault.hint("use `weight` to send it more requests"),
        _ => fault,
    }
}

/// Keys that a source gives under two spellings: the result would depend on their order.
fn said_twice(layer: &[Given]) -> Vec<Fault> {
    let mut faults = vec![];
    for (at, given) in layer.iter().enumerate() {
        if layer[..at]
            .iter()
            .any(|earlier| earlier.found.key.name == given.found.key.name)
        {
            let fault = Fault::new(format!("`{}` is given twice", given.found.key.name));
            faults.push(fault.at(&given.source));
        }
    }
    faults
}

/// Contradictions between the settings for certificates and the protocols of listeners.
fn protocol_contradictions(effective: &Effective) -> Vec<Fault> {
    let values = &effective.values;
    let mut faults = vec![];
    let (certificates, keys) = (values.tls_cert.len(), values.tls_key.len());
    if certificates != keys {
        let fault = Fault::new(format!(
            "`tls_cert` has {certificates} files and `tls_key` has {keys}"
        ));
        let fault = fault.hint("each certificate needs its key, in the same order");
        faults.push(fault.at(effective.source("tls_cert")));
    }
    let is_transparent = |listen: &&Listen| matches!(listen.speaks, Some(Speaks::Transparent(_)));
    if let Some(listen) = values.startup.listen.iter().find(is_transparent)
        && values.is_reverse()
    {
        let fault = Fault::new(format!(
            "{listen} works only in a forward proxy, not in front of a site"
        ));
        faults.push(fault.at(effective.source("listen")));
    }
    let tls = values
        .startup
        .listen
        .iter()
        .find(|listen| listen.speaks == Some(Speaks::Tls));
    if !values.is_reverse() && certificates > 0 && tls.is_none() {
        let fault = Fault::new("`tls_cert` needs `accelerate`, `[[site]]` or an https:// address");
        let fault = fault.hint("in front of no site, say which address of `listen` has TLS");
        faults.push(fault.at(effective.source("tls_cert")));
    }
    if let Some(listen) = tls.filter(|_| certificates == 0) {
        let fault = Fault::new(format!("{listen} needs a certificate for TLS"));
        let fault = fault.hint("add `--tls-cert FILE` and `--tls-key FILE`");
        faults.push(fault.at(effective.source("listen")));
    }
    faults
}

/// Contradictions between the settings for links. A `link_listen` that serves nobody is not an
/// error here: the reload that removes the last child must not be refused (see `start_problems`).
fn link_contradictions(effective: &Effective) -> Vec<Fault> {
    let values = &effective.values;
    let mut faults = vec![];
    if values.startup.link_listen.is_some() && values.is_reverse() {
        let fault = Fault::new("`link_listen` works only in a forward proxy");
        faults.push(fault.at(effective.source("link_listen")));
    }
    if values.startup.link_listen.is_none() && !values.reloadable.link_children.is_empty() {
        let fault = Fault::new("`link_children` needs `link_listen`");
        let fault = fault.hint("say where children connect, for example `0.0.0.0:3129`");
        faults.push(fault.at(effective.source("link_children")));
    }
    let mut peers = values.peers.peers.iter();
    if !values.startup.link_forward.is_empty() && !peers.any(|peer| peer.pin.is_some()) {
        let fault = Fault::new("`link_forward` needs a parent with a pin");
        let fault = fault.hint("add `parent` and `parent_pin`: see `hashcache link init`");
        faults.push(fault.at(effective.source("link_forward")));
    }
    faults
}

/// Contradictions between the settings for interception.
fn intercept_contradictions(effective: &Effective) -> Vec<Fault> {
    let values = &effective.values;
    let mut faults = vec![];
    let says_hosts = !values.intercept.hosts.is_empty() || !values.intercept.lists.is_empty();
    if values.intercept_ca.is_none() && says_hosts {
        let key = if values.intercept.hosts.is_empty() {
            "intercept.lists"
        } else {
            "intercept.hosts"
        };
        let fault = Fault::new("intercepting hosts needs a certificate authority");
        let fault = fault.hint("make one with `hashcache ca init`, then add `--intercept-ca DIR`");
        faults.push(fault.at(effective.source(key)));
    }
    if values.intercept_ca.is_some() && values.is_reverse() {
        let fault = Fault::new("`intercept` works only in a forward proxy, not in front of a site");
        faults.push(fault.at(effective.source("intercept.ca")));
    }
    faults
}

/// Values that are each valid but contradict each other.
fn contradictions(effective: &Effective) -> Vec<Fault> {
    let values = &effective.values;
    let mut faults = vec![];
    if values.startup.listen.is_empty() {
        let fault = Fault::new("`listen` is empty: clients could not connect");
        faults.push(fault.at(effective.source("listen")));
    }
    for (at, listen) in values.startup.listen.iter().enumerate() {
        // Port 0 lets the system choose, a different port each time.
        let port = listen.address.port();
        let earlier = &values.startup.listen[..at];
        if port != 0 && earlier.iter().any(|it| it.address == listen.address) {
            faults.push(
                Fault::new(format!("{listen} is in the list twice")).at(effective.source("listen")),
            );
        }
        if port != 0 && values.startup.admin == Some(listen.address) {
            let fault = Fault::new(format!("`listen` and `admin` both use {listen}"));
            faults.push(fault.hint("use another port for `admin`: clients must not reach it"));
        }
    }
    faults.extend(protocol_contradictions(effective));
    faults.extend(intercept_contradictions(effective));
    faults.extend(link_contradictions(effective));
    if values.reloadable.access.needs_users() && values.reloadable.htpasswd.is_empty() {
        let fault = Fault::new("an `[[access]]` rule names users, but `htpasswd` is not set");
        faults.push(fault.hint("make a file with `htpasswd -B -C 10 -c FILE USER`, and name it"));
    }
    if values.is_reverse() && !values.reloadable.access.is_empty() {
        let fault =
            Fault::new("`[[access]]` works only in a forward proxy, not in front of a site");
        faults.push(fault.hint("`allow_client` says which clients a site has"));
    }
    if values.accelerate.is_none() && !values.accelerate_host.is_empty() {
        let fault = Fault::new("`accelerate_host` needs `accelerate`");
        faults.push(fault.at(effective.source("accelerate_host")));
    }
    if values.accelerate.is_some() && !values.reloadable.sites.all().is_empty() {
        let fault = Fault::new("`accelerate` and `[[site]]` contradict each other");
        let fault = fault.hint("make a `[[site]]` of the URL of `accelerate`");
        faults.push(fault.at(effective.source("accelerate")));
    }
    let has_members = values
        .peers
        .peers
        .iter()
        .any(|peer| peer.kind == PeerKind::Member);
    let mut sites = values.reloadable.sites.all().iter();
    if has_members && let Some(site) = sites.find(|site| site.trust_forwarded.is_empty()) {
        let what = format!(
            "the site {} has members but no `trust_forwarded`",
            site.name()
        );
        let fault = Fault::new(what).at("site");
        faults.push(fault.hint(
            "members tell each other the client's address and scheme: list the networks of the \
             members",
        ));
    }
    if values.is_reverse() && !values.reloadable.mirrors.is_empty() {
        let fault = Fault::new("`mirror` works only in a forward proxy, not in front of a site");
        let fault = fault.hint("run two proxies, each with its own cache");
        faults.push(fault.at(effective.source("mirror")));
    }
    for (n, mirror) in values.reloadable.mirrors.iter().enumerate() {
        let name = mirror.name();
        if values.reloadable.mirrors[..n]
            .iter()
            .any(|earlier| earlier.name() == name)
        {
            let kind = mirror.kind();
            let fault = Fault::new(format!("two mirrors have the name `{name}`"));
            let fault = fault.hint(format!(
                "give one of them another name: {kind}:NAME={}",
                mirror.url()
            ));
            faults.push(fault.at(effective.source("mirror")));
        }
    }
    if values.engine.cache.is_empty() {
        let fault = Fault::new("no path for the cache: neither HOME nor XDG_CACHE_HOME is set");
        let fault = if *effective.source("cache") == Source::Default {
            fault
        } else {
            Fault::new("`cache` is empty").at(effective.source("cache"))
        };
        faults.push(fault.hint("give a file or a block device with `--cache PATH`"));
    }
    for (n, path) in values.engine.cache.iter().enumerate() {
        if values.engine.cache[..n].contains(path) {
            let fault = Fault::new(format!("`cache` has {} twice", path.display()));
            faults.push(fault.at(effective.source("cache")));
        }
    }
    if values.max_object_size() > values.engine.cache_size {
        let fault = Fault::new("`max_object_size` is larger than `cache_size`");
        let fault = fault.hint(format!(
            "use at most {}, or a larger cache",
            show_size(values.engine.cache_size)
        ));
        faults.push(fault.at(effective.source("max_object_size")));
    }
    faults
}

#[cfg(test)]
mod tests;
