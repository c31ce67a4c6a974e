//! The reference page of the operating manual: every setting and every array of tables.
//!
//! `hashcache config reference` prints it, and `cargo xtask docs` writes it to
//! `docs/operate/reference.md`. All text is taken from the rows of the settings.

use super::{Accepts, Applies, DefaultValue, Key, SECTIONS, TABLES};

const HEAD: &str = "\
# Reference of all settings

This page is made by `cargo xtask docs` from the same rows that the program reads. \
[Settings](settings.md) says how files, variables and flags work together, and explains the \
limits.
";

/// Returns the page in Markdown.
pub fn text() -> String {
    let mut text = HEAD.to_owned();
    for section in SECTIONS {
        text.push_str(&format!("\n## {}\n", section.heading));
        section.keys.iter().for_each(|key| describe(&mut text, key));
    }
    for table in &TABLES {
        text.push_str(&format!(
            "\n## {}: `[[{}]]`\n\n{} See [{page}]({page}).\n\n| field | meaning |\n|---|---|\n",
            table.heading,
            table.name,
            plain(table.about),
            page = table.page,
        ));
        for (name, about) in table.fields {
            text.push_str(&format!("| `{name}` | {} |\n", plain(about)));
        }
        text.push_str(&format!("\n```toml\n{}```\n", table.example));
    }
    text
}

fn describe(text: &mut String, key: &Key) {
    text.push_str(&format!(
        "\n### `{}`\n\n{}",
        key.name,
        plain(&key.sentences())
    ));
    if let Some(page) = key.page {
        text.push_str(&format!(" See [{page}]({page})."));
    }
    let kind = match key.kind.accepts {
        Accepts::Words(words) => {
            let words: Vec<String> = words().iter().map(|word| format!("`{word}`")).collect();
            words.join(", ")
        }
        _ => key.kind.about.to_owned(),
    };
    let list = if key.is_list() { "a list, each " } else { "" };
    let default = match key.default {
        DefaultValue::Value => format!("`{}`", key.sample()),
        DefaultValue::Words { words, .. } => plain(words),
        DefaultValue::Unset { .. } => "not set".to_owned(),
    };
    text.push_str(&format!("\n\n- Value: {list}{kind}. Default: {default}.\n"));
    if let DefaultValue::Words { example, .. } | DefaultValue::Unset { example } = key.default {
        let (_, name) = key.table_and_name();
        text.push_str(&format!("- Example: `{name} = {example}`.\n"));
    }
    let flag = match (key.flag_name(), key.is_flag_opposite()) {
        (None, _) => "none".to_owned(),
        (Some(name), true) => format!("`--{name}`"),
        (Some(name), false) => format!("`--{name} {}`", key.kind.placeholder),
    };
    let applies = match key.applies {
        Applies::AtReload => "at a reload",
        Applies::AtStart => "at the next start",
    };
    let variable = key.variable();
    text.push_str(&format!(
        "- Flag: {flag}. Variable: `{variable}`. A change applies {applies}.\n"
    ));
}

/// Escapes Markdown markup in `text`, except in backticks.
fn plain(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(at, part)| {
        if at % 2 == 1 {
            return part.to_owned();
        }
        let part = part.replace('<', "&lt;").replace('*', "\\*");
        part.replace('[', "\\[").replace('|', "\\|")
    });
    parts.collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_markup_stays_text() {
        assert_eq!(plain("a `*` <b> *.c [[d]]"), "a `*` &lt;b> \\*.c \\[\\[d]]");
    }
}
