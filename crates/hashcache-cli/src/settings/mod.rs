//! From what was said in four places to settings that hold: flag, variable, file, default.
//!
//! Called by `proxy` and `config`. Every source is turned into the same thing, a list of
//! [`Given`], and laid over the defaults in one fixed order; within a source order never matters.
//! All faults of all sources are gathered before any is told.
//!
//! Invariant: an [`Effective`] that exists is consistent and knows where its values are from.

mod environment;
mod file;
mod given;
mod keys;
mod mirror;
mod suggest;
mod values;
mod words;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use environment::Environment;
pub use file::RULE;
pub use given::{Given, Source};
pub use keys::{
    COOKIES, FAILS, FORMATS, GROUPS, IOS, KEYS, Key, POLICIES, ROWS, Shown, Written, block, find,
    find_flag,
};
#[cfg(test)]
pub use mirror::read_mirror;
pub use values::Values;

use hashcache_http::{RuleSpec, Rules};
use hashcache_proxy::Speaks;

use crate::fault::{Fault, Faults};
use crate::units::show_size;

/// Settings that hold, and why.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The settings.
    pub values: Values,
    /// The configuration file that was read, if one was.
    pub file: Option<PathBuf>,
    /// Its freshness rules, as they were written.
    pub rule_tables: Vec<toml::Value>,
    /// Where the value of each of [`KEYS`] is from, in that order.
    sources: Vec<Source>,
}

impl Effective {
    /// Every key with its value as shown and where it is from.
    pub fn shown(&self) -> impl Iterator<Item = (&'static Key, Shown, &Source)> {
        KEYS.iter()
            .zip(&self.sources)
            .map(|(key, source)| (key, (key.show)(&self.values), source))
    }

    /// Where the value of the key called `name` is from.
    pub fn source(&self, name: &str) -> &Source {
        let mut rows = KEYS.iter().zip(&self.sources);
        rows.find(|(key, _)| key.name == name)
            .map_or(&Source::Default, |(_, source)| source)
    }
}

/// Settings from `flags`, the variables of `environment` and a file: `named`, else the one that a
/// variable names, else the first that exists in the usual places, else none.
pub fn load(
    named: Option<&Path>,
    flags: Vec<Given>,
    environment: &Environment,
) -> anyhow::Result<Effective> {
    let (path, text) = read_file(named, environment)?;
    Ok(assemble(path.as_deref(), &text, flags, environment)?)
}

/// Finds and reads the configuration file; no file at all is an empty one.
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
            // A file that is there but cannot be read must not be passed over in silence: the
            // operator who wrote it believes that it holds.
            Err(error) => return Err(unreadable(&path, error)),
        }
    }
    Ok((None, String::new()))
}

fn unreadable(path: &Path, error: io::Error) -> anyhow::Error {
    let fault = Fault::new(format!("cannot read configuration file {}", path.display()));
    let fault = match error.kind() {
        io::ErrorKind::NotFound => {
            fault.hint("name the file with `--config FILE`, or leave it out")
        }
        io::ErrorKind::PermissionDenied => fault.hint("it must be readable by the user we run as"),
        _ => fault,
    };
    anyhow::Error::new(error).context(fault)
}

/// Lays the sources over the defaults. Pure: what `load` has left when everything is read.
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
        values: Values::defaults(environment.processors, environment.cache_file()),
        file: path.map(Path::to_owned),
        rule_tables: parsed.rule_tables,
        sources: vec![Source::Default; KEYS.len()],
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
                Ok(()) => {
                    let row = KEYS.iter().zip(&mut effective.sources);
                    row.filter(|(key, _)| key.name == found.key.name)
                        .for_each(|(_, slot)| *slot = source.clone());
                }
                Err(Faults(wrong)) => faults.extend(wrong.into_iter().map(|fault| match &source {
                    Source::File { .. } => fault.at(found.spelling).at(&source),
                    _ => fault.at(&source),
                })),
            }
        }
    }
    match rules(&parsed.rules, effective.values.default_rules) {
        Ok(rules) => effective.values.rules = rules,
        Err(fault) => faults.push(fault),
    }
    // Contradictions between values that are themselves wrong would only confuse.
    if faults.is_empty() {
        faults = contradictions(&effective);
    }
    if faults.is_empty() {
        Ok(effective)
    } else {
        Err(Faults(faults))
    }
}

/// The operator's own freshness rules, before those that ship unless these are turned off.
fn rules(own: &[RuleSpec], default_rules: bool) -> Result<Rules, Fault> {
    let rules = if default_rules {
        Rules::before_shipped(own)
    } else {
        Rules::new(own)
    };
    rules.map_err(|error| Fault::new(error.to_string()))
}

/// Keys that one source gives under two spellings; which one holds would depend on order.
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

/// The same of certificates.
fn tls_contradictions(effective: &Effective) -> Vec<Fault> {
    let values = &effective.values;
    let mut faults = vec![];
    let (certificates, keys) = (values.tls_cert.len(), values.tls_key.len());
    if certificates != keys {
        let fault = Fault::new(format!(
            "`tls_cert` names {certificates} files and `tls_key` {keys}"
        ));
        let fault = fault.hint("each certificate needs its key, in the same order");
        faults.push(fault.at(effective.source("tls_cert")));
    }
    if values.accelerate.is_none() && certificates > 0 {
        let fault = Fault::new("`tls_cert` is for a site, and `accelerate` names none");
        faults.push(fault.at(effective.source("tls_cert")));
    }
    let tls = values
        .listen
        .iter()
        .find(|listen| listen.speaks == Some(Speaks::Tls));
    if let Some(listen) = tls.filter(|_| certificates == 0) {
        let fault = Fault::new(format!("{listen} speaks TLS, and there is no certificate"));
        let fault = fault.hint("name one with `--tls-cert FILE` and `--tls-key FILE`");
        faults.push(fault.at(effective.source("listen")));
    }
    faults
}

/// The same of whose TLS ends here.
fn intercept_contradictions(effective: &Effective) -> Vec<Fault> {
    let values = &effective.values;
    let mut faults = vec![];
    let says_hosts = !values.intercept.hosts.is_empty() || !values.intercept.lists.is_empty();
    if values.intercept_ca.is_none() && says_hosts {
        let key = match values.intercept.hosts.is_empty() {
            true => "intercept.lists",
            false => "intercept.hosts",
        };
        let fault = Fault::new("hosts are to be intercepted, and there is no authority for it");
        let fault =
            fault.hint("make one with `hashcache ca init` and name it: `--intercept-ca DIR`");
        faults.push(fault.at(effective.source(key)));
    }
    if values.intercept_ca.is_some() && values.accelerate.is_some() {
        let fault =
            Fault::new("`intercept` is for a forward proxy, and `accelerate` makes it another");
        faults.push(fault.at(effective.source("intercept.ca")));
    }
    faults
}

/// Values that are right alone but not together.
fn contradictions(effective: &Effective) -> Vec<Fault> {
    let values = &effective.values;
    let mut faults = vec![];
    if values.listen.is_empty() {
        let fault = Fault::new("`listen` names no address, so nobody could connect");
        faults.push(fault.at(effective.source("listen")));
    }
    for (at, listen) in values.listen.iter().enumerate() {
        // Port 0 lets the system choose, a different port each time.
        let port = listen.address.port();
        let earlier = &values.listen[..at];
        if port != 0 && earlier.iter().any(|it| it.address == listen.address) {
            faults.push(
                Fault::new(format!("{listen} is listed twice")).at(effective.source("listen")),
            );
        }
        if port != 0 && values.admin == Some(listen.address) {
            let fault = Fault::new(format!("{listen} is given to clients and to `admin`"));
            faults.push(fault.hint("admin pages are for operators only: give them another port"));
        }
    }
    faults.extend(tls_contradictions(effective));
    faults.extend(intercept_contradictions(effective));
    if values.accelerate.is_none() && !values.accelerate_host.is_empty() {
        let fault = Fault::new("`accelerate_host` names hosts of a site, and `accelerate` no site");
        faults.push(fault.at(effective.source("accelerate_host")));
    }
    if values.accelerate.is_some() && !values.mirror.is_empty() {
        let fault =
            Fault::new("`mirror` is for a forward proxy, and `accelerate` makes it another");
        let fault = fault.hint("run two of them, each with a cache of its own");
        faults.push(fault.at(effective.source("mirror")));
    }
    for (n, mirror) in values.mirror.iter().enumerate() {
        let name = mirror.name();
        if values.mirror[..n]
            .iter()
            .any(|earlier| earlier.name() == name)
        {
            let kind = mirror.kind();
            let fault = Fault::new(format!("two mirrors are called `{name}`"));
            let fault = fault.hint(format!("name one of them: {kind}:NAME={}", mirror.url()));
            faults.push(fault.at(effective.source("mirror")));
        }
    }
    if values.cache.is_empty() {
        let fault =
            Fault::new("there is no place for the cache: neither HOME nor XDG_CACHE_HOME is set");
        let fault = if *effective.source("cache") == Source::Default {
            fault
        } else {
            Fault::new("`cache` names no file").at(effective.source("cache"))
        };
        faults.push(fault.hint("say where with `--cache PATH`"));
    }
    for (n, path) in values.cache.iter().enumerate() {
        if values.cache[..n].contains(path) {
            let fault = Fault::new(format!("`cache` names {} twice", path.display()));
            faults.push(fault.at(effective.source("cache")));
        }
    }
    if values.max_object_size() > values.cache_size {
        let fault = Fault::new("`max_object_size` is larger than `cache_size`");
        let fault = fault.hint(format!(
            "ask for at most {}, or for a larger cache",
            show_size(values.cache_size)
        ));
        faults.push(fault.at(effective.source("max_object_size")));
    }
    faults
}

#[cfg(test)]
mod tests;
