//! The sample configuration: every setting with its default, commented out.
//!
//! `hashcache config example` prints it, and `packaging/hashcache.toml` is a copy. All text is
//! taken from the rows of the settings. Invariant: the text is a configuration file that changes no
//! setting. With the `#` before a setting removed, the setting has its default or, if there is no
//! default, an example value.

use super::{DefaultValue, Key, SECTIONS, TABLES, keys};

/// Sample width in columns.
const COLUMNS: usize = 80;

const HEAD: &str = "\
# HashCache configuration: every setting with its default, commented out.
#
# Copy it to /etc/hashcache/hashcache.toml, or ~/.config/hashcache/hashcache.toml, and remove the #
# before the settings you change. `hashcache config check` finds mistakes, `hashcache config show`
# prints the settings in effect. Sizes: 64MiB, 20GiB, 1GB. Times: 250ms, 10s, 5m.
";

/// Returns the whole file.
pub fn text() -> String {
    let mut text = HEAD.to_owned();
    let table_of = |key: &Key| key.table_and_name().0;
    for section in SECTIONS {
        let mut keys = section.keys.iter().filter(|key| table_of(key).is_empty());
        if let Some(first) = keys.next() {
            text.push_str(&format!("\n# ---- {} ----\n", section.heading));
            describe(&mut text, first);
            keys.for_each(|key| describe(&mut text, key));
        }
    }
    // Tables follow the other keys: a key below the head of a table would belong to the table.
    for table in ["intercept", "limits"] {
        text.push_str(&format!("\n[{table}]\n"));
        keys()
            .filter(|key| table_of(key) == table)
            .for_each(|key| describe(&mut text, key));
    }
    for table in &TABLES {
        text.push_str(&format!("\n# ---- {} ----\n\n", table.heading));
        comment(&mut text, table.about);
        for (name, about) in table.fields {
            comment(&mut text, &format!("{name}: {about}"));
        }
        text.push('\n');
        for line in table.example.lines() {
            let mark = if line.is_empty() { "" } else { "#" };
            text.push_str(&format!("{mark}{line}\n"));
        }
    }
    text
}

/// Adds a comment about `key`, and the setting, commented out.
fn describe(text: &mut String, key: &Key) {
    let mut words = key.sentences();
    match key.default {
        DefaultValue::Value => {}
        DefaultValue::Words { words: usual, .. } => {
            words.push_str(&format!(" Default: {usual}. Example:"));
        }
        DefaultValue::Unset { .. } => words.push_str(" Not set by default. Example:"),
    }
    text.push('\n');
    comment(text, &words);
    let (_, name) = key.table_and_name();
    text.push_str(&format!("#{name} = {}\n", key.sample()));
}

/// Adds `words` as comment lines.
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

    use super::*;
    use crate::{Effective, Environment, Source, Table};

    fn loaded(text: &str) -> Effective {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let environment = Environment {
            variables: [("HOME".to_owned(), "/home-of-tests".to_owned())].into(),
            is_root: false,
            processors: 4,
        };
        crate::load(Some(file.path()), vec![], &environment).unwrap()
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
            let key = keys().find(|row| row.name == key).unwrap();
            key.default == DefaultValue::Value
        };
        let (sample, nothing) = (loaded(&uncommented(is_value)), loaded(""));
        for ((key, sample, source), (_, usual, _)) in sample.shown().zip(nothing.shown()) {
            assert_eq!(sample, usual, "{}", key.name);
            let is_given = *source != Source::Default;
            assert_eq!(is_given, is_value(key.name), "{}: {source}", key.name);
        }
    }

    #[test]
    fn every_example_in_the_sample_can_be_read() {
        for key in keys() {
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
            assert_ne!(*loaded(&text).source(key.name), Source::Default);
        }
    }

    #[test]
    fn the_tables_in_the_sample_can_be_read_and_have_every_field() {
        let is_of_sites = |table: &&Table| table.name == "site";
        let of_sites = TABLES.iter().filter(is_of_sites);
        let of_forward = TABLES.iter().filter(|table| !is_of_sites(table));
        let keys = "icp = 3130\nhtcp = \"192.0.2.1:4827\"\nhtpasswd = \"/etc/hashcache/users\"\n";
        // The file with the page is not there.
        let sites = of_sites.map(|table| table.example.replace("error_page", "#"));
        let effective = loaded(&sites.collect::<String>());
        assert_eq!(effective.values.reloadable.sites.all().len(), 1);
        let examples: String = of_forward.map(|table| table.example).collect();
        let effective = loaded(&format!("{keys}{examples}"));
        assert!(!effective.values.reloadable.access.is_empty());
        assert_eq!(effective.values.reloadable.mirrors.len(), 1);
        let all = text();
        for table in &TABLES {
            for (field, _) in table.fields {
                let line = format!("\n#{field} = ");
                assert!(all.contains(&line), "{} {field}", table.name);
            }
        }
    }
}
