//! The manual page hashcache.toml(5), generated from the rows of the settings.
//!
//! `hashcache man` prints and writes it.

use clap_mangen::roff::{Roff, bold, roman};

use super::{DefaultValue, Key, SECTIONS, TABLES};

const DESCRIPTION: [&str; 3] = [
    "The configuration file of `hashcache proxy`, in TOML. It is the file of --config or of the \
     variable HASHCACHE_CONFIG, otherwise hashcache/hashcache.toml in $XDG_CONFIG_HOME \
     (~/.config), otherwise /etc/hashcache/hashcache.toml. All keys are optional.",
    "Most keys are also flags (cache_size is --cache-size), and all are environment variables \
     (HASHCACHE_CACHE_SIZE, HASHCACHE_LIMITS__HEAD_TIME for a key of a table, lists with commas). \
     A flag wins over a variable, and a variable over the file. An unknown key is an error.",
    "Sizes are written as \"64MiB\", \"20GiB\", \"1GB\" or a number of bytes, times as \"250ms\", \
     \"10s\", \"5m\" or \"1h30m\". `hashcache config check` finds mistakes, `hashcache config \
     show` prints the settings in effect, `hashcache config example` prints a commented file. A \
     reload (signal HUP) reads the file again and logs which changes need a restart.",
];

/// Returns the page hashcache.toml(5).
pub fn page() -> String {
    let mut page = Roff::new();
    page.control("TH", ["hashcache.toml", "5", "", "", "HashCache"]);
    page.control("SH", ["NAME"]);
    page.text([roman(
        "hashcache.toml - configuration of the HashCache proxy",
    )]);
    page.control("SH", ["DESCRIPTION"]);
    for paragraph in DESCRIPTION {
        page.control("PP", []);
        page.text([roman(paragraph)]);
    }
    for section in SECTIONS {
        page.control("SH", [section.heading.to_uppercase().as_str()]);
        section.keys.iter().for_each(|key| describe(&mut page, key));
    }
    for table in &TABLES {
        let heading = format!("[[{}]]", table.name.to_uppercase());
        page.control("SH", [heading.as_str()]);
        page.text([roman(table.about)]);
        for &(name, about) in table.fields {
            page.control("TP", []);
            page.text([bold(name)]);
            page.text([roman(about)]);
        }
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([roman(
        "hashcache(1), hashcache-proxy(1), hashcache-config(1)",
    )]);
    page.render()
}

fn describe(page: &mut Roff, key: &Key) {
    let default = match key.default {
        DefaultValue::Words { words, .. } => words.to_owned(),
        DefaultValue::Unset { .. } => "not set".to_owned(),
        DefaultValue::Value => key.sample(),
    };
    page.control("TP", []);
    page.text([bold(key.name), roman(format!(" (default: {default})"))]);
    page.text([roman(key.sentences())]);
}
