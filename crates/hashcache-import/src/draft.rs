//! The configuration file that an import writes. A comment above each setting quotes the directive
//! that it was made from. Directives that were not imported are listed above the settings.
//!
//! The readers of directives fill the draft, and `mod` renders it. Invariant: for any directives,
//! the text is valid TOML: the TOML library writes the values, and comments contain no control
//! characters.

use std::fmt::Display;

use hashcache_settings::SECTIONS;
use toml::Value;

use super::lines::{Line, plain};
use super::source::Failed;

/// Result for a directive that did not become a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// No setting is needed: the proxy does this, or has no use for it.
    Unneeded,
    /// There is no counterpart, at least for a part.
    Missing,
    /// More requests are denied than in Squid.
    Closed,
    /// Squid denies requests that are not denied here.
    Open,
}

/// A directive that did not, or not completely, become a setting.
#[derive(Clone, Debug)]
pub struct Remark {
    pub fate: Fate,
    /// The directive's place and text.
    pub directive: String,
    pub reason: String,
}

/// The comments above a setting.
#[derive(Clone, Debug, Default)]
pub struct Comments(Vec<String>);

impl Comments {
    /// A directive's place and text.
    pub fn from_line(line: &Line) -> Self {
        Self(vec![line.shown_with_place()])
    }

    /// Adds this directive's place and text.
    pub fn and_of(mut self, line: &Line) -> Self {
        self.0.push(line.shown_with_place());
        self
    }

    /// A comment that does not quote a directive.
    pub fn text(text: impl Display) -> Self {
        Self::default().and(text)
    }

    /// Adds a comment.
    pub fn and(mut self, text: impl Display) -> Self {
        self.0.push(plain(&text.to_string()));
        self
    }
}

/// A file that is being written.
#[derive(Debug, Default)]
pub struct Draft {
    settings: Vec<Setting>,
    networks: Vec<(String, Vec<String>)>,
    tables: Vec<Table>,
    pub remarks: Vec<Remark>,
    /// Options that were left out, each with the directive and a reason.
    pub options: Vec<Remark>,
    /// Differences that are not caused by a directive.
    pub notes: Vec<String>,
    /// Directives that became a setting.
    pub imported: usize,
}

#[derive(Debug)]
struct Setting {
    key: &'static str,
    value: Value,
    comments: Comments,
    /// The setting is written with a `#` in front, so that the operator decides.
    is_off: bool,
}

/// A table in an array.
#[derive(Debug)]
pub struct Table {
    /// The array's name.
    pub array: &'static str,
    pub comments: Comments,
    pub fields: Vec<(&'static str, Value)>,
}

impl Draft {
    /// Sets a key; the last value wins, as in Squid.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>, comments: Comments) {
        self.put(key, value.into(), comments, false);
    }

    /// Writes a key with a `#` in front.
    pub fn suggest(&mut self, key: &'static str, value: impl Into<Value>, comments: Comments) {
        if self.get(key).is_none() {
            self.put(key, value.into(), comments, true);
        }
    }

    fn put(&mut self, key: &'static str, value: Value, comments: Comments, is_off: bool) {
        let replaced = self.settings.extract_if(.., |setting| setting.key == key);
        for setting in replaced.filter(|setting| !setting.is_off) {
            if let Some(directive) = setting.comments.0.into_iter().next() {
                self.imported = self.imported.saturating_sub(1);
                self.remarks.push(Remark {
                    fate: Fate::Unneeded,
                    directive,
                    reason: "a later line replaces it".to_owned(),
                });
            }
        }
        self.settings.push(Setting {
            key,
            value,
            comments,
            is_off,
        });
    }

    /// Adds a value to a key that has a list, unless the value is already there.
    pub fn push(&mut self, key: &'static str, value: impl Into<Value>, comments: Comments) {
        let value = value.into();
        let is_new = !self.list(key).contains(&value);
        self.add(key, is_new.then_some(value), comments);
    }

    /// Adds a value to two keys with lists that belong together, unless the pair is already there.
    pub fn push_pair(&mut self, [a, b]: [(&'static str, &str); 2], comments: &Comments) {
        let mut pairs = self.list(a.0).iter().zip(self.list(b.0));
        let is_new = !pairs.any(|(x, y)| (x.as_str(), y.as_str()) == (Some(a.1), Some(b.1)));
        for (key, value) in [a, b] {
            self.add(key, is_new.then(|| value.into()), comments.clone());
        }
    }

    /// The values in a key with a list.
    fn list(&self, key: &str) -> &[Value] {
        let list = self.get(key).and_then(Value::as_array);
        list.map_or(&[], Vec::as_slice)
    }

    fn add(&mut self, key: &'static str, value: Option<Value>, comments: Comments) {
        let same = |setting: &&mut Setting| setting.key == key && !setting.is_off;
        match self.settings.iter_mut().find(same) {
            Some(setting) => {
                setting.comments.0.extend(comments.0);
                if let Value::Array(values) = &mut setting.value {
                    values.extend(value);
                }
            }
            None => self.put(
                key,
                Value::Array(value.into_iter().collect()),
                comments,
                false,
            ),
        }
    }

    /// Puts a `#` in front of a key that is set.
    pub fn turn_off(&mut self, key: &str) {
        let setting = self.settings.iter_mut().find(|setting| setting.key == key);
        if let Some(setting) = setting {
            setting.is_off = true;
        }
    }

    /// The value of a key that is set.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let mut settings = self.settings.iter();
        let found = settings.find(|setting| setting.key == key && !setting.is_off)?;
        Some(&found.value)
    }

    /// Adds a network to `[networks]`.
    pub fn network(&mut self, name: &str, networks: Vec<String>) {
        if !self.networks.iter().any(|(known, _)| known == name) {
            self.networks.push((name.to_owned(), networks));
        }
    }

    /// Returns true if a table in an array has a field.
    pub fn has_table(&self, array: &str, field: &str) -> bool {
        let mut tables = self.tables.iter().filter(|table| table.array == array);
        tables.any(|table| table.fields.iter().any(|(name, _)| *name == field))
    }

    /// Counts the tables in an array.
    pub fn tables_of(&self, array: &str) -> usize {
        let tables = self.tables.iter();
        tables.filter(|table| table.array == array).count()
    }

    pub fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// Notes that a directive has no counterpart, at least for a part.
    pub fn missing(&mut self, line: &Line, reason: impl Display) {
        self.remark(Fate::Missing, line, reason);
    }

    /// Notes that a line could not be followed: lines that were not read may deny requests.
    pub fn failed(&mut self, failed: &Failed) {
        let reason = format_args!(
            "NOT DENIED, if lines that were not read do: {}",
            failed.reason
        );
        self.add_remark(Fate::Open, failed.directive.clone(), reason);
    }

    /// Notes that a directive needs no setting.
    pub fn unneeded(&mut self, line: &Line, reason: impl Display) {
        self.remark(Fate::Unneeded, line, reason);
    }

    /// Notes that the result serves requests that a Squid directive refuses.
    pub fn open(&mut self, line: &Line, reason: impl Display) {
        self.remark(Fate::Open, line, format_args!("NOT DENIED: {reason}"));
    }

    /// Notes that a directive's option is left out, without an important effect.
    pub fn option(&mut self, line: &Line, option: &str, reason: impl Display) {
        if self.options.len() < OPTIONS_MAX {
            self.options.push(Remark {
                fate: Fate::Unneeded,
                directive: line.shown_with_place(),
                reason: plain(&format!("{}: {reason}", line.without_secret(option))),
            });
        }
    }

    /// Notes a difference that is not caused by a directive.
    pub fn note(&mut self, note: &str) {
        self.notes.push(plain(note));
    }

    /// Notes a directive with this fate.
    pub fn remark(&mut self, fate: Fate, line: &Line, reason: impl Display) {
        self.add_remark(fate, line.shown_with_place(), reason);
    }

    fn add_remark(&mut self, fate: Fate, directive: String, reason: impl Display) {
        // A line may have arbitrarily many options.
        let before = self.remarks.iter().rev();
        let of_line = before.take_while(|it| it.directive == directive).count();
        if of_line < REMARKS_MAX {
            self.remarks.push(Remark {
                fate,
                directive,
                reason: plain(&reason.to_string()),
            });
        }
    }

    /// Renders the file. `from` is the imported file's name.
    pub fn text(&self, from: &str) -> String {
        let mut text = format!(
            "# HashCache configuration, made by `hashcache import` from {}.\n#\n\
             # `hashcache config check` finds mistakes, `hashcache config example` explains every\n\
             # setting.\n",
            plain(from)
        );
        self.write_remarks(&mut text);
        for section in SECTIONS {
            let is_of_section =
                |setting: &&Setting| section.keys.iter().any(|key| key.name == setting.key);
            let settings = self.settings.iter().filter(is_of_section);
            let mut settings = settings.filter(|it| !it.key.contains('.')).peekable();
            if settings.peek().is_some() {
                text.push_str(&format!("\n# ---- {} ----\n", section.heading));
            }
            settings.for_each(|setting| write_setting(&mut text, setting, setting.key));
        }
        self.write_limits(&mut text);
        self.write_networks(&mut text);
        for table in &self.tables {
            text.push('\n');
            write_comments(&mut text, &table.comments);
            text.push_str(&format!("[[{}]]\n", table.array));
            for (name, value) in &table.fields {
                text.push_str(&assignment(name, value));
            }
        }
        text
    }

    fn write_remarks(&self, text: &mut String) {
        for note in &self.notes {
            text.push_str(&format!("#\n# Note: {note}.\n"));
        }
        let of = |fate: Fate| self.remarks.iter().filter(move |it| it.fate == fate);
        let parts: [(Vec<&Remark>, &str); 5] = [
            (of(Fate::Open).collect(), "Denied by Squid, and not here"),
            (of(Fate::Closed).collect(), "Denies more than Squid"),
            (of(Fate::Missing).collect(), "Not imported, or not wholly"),
            (of(Fate::Unneeded).collect(), "Needs no setting here"),
            (self.options.iter().collect(), "Options that are left out"),
        ];
        for (remarks, heading) in parts {
            if !remarks.is_empty() {
                text.push_str(&format!("\n# ---- {heading} ----\n#\n"));
            }
            for Remark {
                directive, reason, ..
            } in remarks
            {
                text.push_str(&format!("# {directive}\n#     {reason}\n"));
            }
        }
    }

    fn write_limits(&self, text: &mut String) {
        let limits = self.settings.iter();
        let limits = limits.filter_map(|it| Some((it, it.key.strip_prefix("limits.")?)));
        for (at, (setting, name)) in limits.enumerate() {
            if at == 0 {
                text.push_str("\n[limits]\n");
            }
            write_setting(text, setting, name);
        }
    }

    fn write_networks(&self, text: &mut String) {
        if !self.networks.is_empty() {
            text.push_str("\n# ---- Access rules ----\n\n[networks]\n");
        }
        for (name, networks) in &self.networks {
            text.push_str(&assignment(name, &strings(networks)));
        }
    }
}

/// A list of texts as a value.
pub fn strings<T: AsRef<str>>(texts: &[T]) -> Value {
    let texts = texts.iter().map(|text| Value::from(text.as_ref()));
    Value::Array(texts.collect())
}

fn write_setting(text: &mut String, setting: &Setting, name: &str) {
    text.push('\n');
    write_comments(text, &setting.comments);
    let assignment = assignment(name, &setting.value);
    if setting.is_off {
        assignment
            .lines()
            .for_each(|line| text.push_str(&format!("#{line}\n")));
    } else {
        text.push_str(&assignment);
    }
}

fn write_comments(text: &mut String, Comments(comments): &Comments) {
    for (at, comment) in comments.iter().enumerate() {
        if at == COMMENTS_MAX {
            let more = comments.len() - at;
            text.push_str(&format!("# ... and {more} more\n"));
            break;
        }
        text.push_str(&format!("# {comment}\n"));
    }
}

/// Formats `name = value`; a long list takes several lines.
fn assignment(name: &str, value: &Value) -> String {
    let line = format!("{name} = {value}\n");
    match value {
        Value::Array(values) if line.len() > COLUMNS => {
            let values: String = values.iter().map(|it| format!("    {it},\n")).collect();
            format!("{name} = [\n{values}]\n")
        }
        _ => line,
    }
}

/// Columns after which a list is written on several lines.
const COLUMNS: usize = 100;
/// Reason why a line is ignored.
pub const NO_REQUEST: &str = "no request comes to it: other lines decide";
/// Most options that are named.
const OPTIONS_MAX: usize = 10_000;
/// Most remarks about a line.
const REMARKS_MAX: usize = 16;
/// Most comments above a setting.
const COMMENTS_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::super::lines::lines;
    use super::*;

    #[test]
    fn whatever_a_directive_holds_the_text_is_toml() {
        let hostile = "name \u{1b}]0;x\u{7} \"\"\" ''' \u{85}\u{2028} [[a]] = \\u0000 \r x";
        let line = lines("squid.conf", hostile).next().unwrap();
        let mut draft = Draft::default();
        draft.set("name", hostile, Comments::from_line(&line).and(hostile));
        draft.push("listen", hostile, Comments::from_line(&line));
        draft.push("listen", "b", Comments::from_line(&line));
        draft.missing(&line, hostile);
        draft.network("a-b", vec![hostile.to_owned(); 9]);
        draft.table(Table {
            array: "access",
            comments: Comments::from_line(&line),
            fields: vec![("reason", hostile.into())],
        });
        let table: toml::Table = toml::from_str(&draft.text(hostile)).unwrap();
        assert_eq!(table["name"].as_str(), Some(hostile));
        assert_eq!(table["listen"].as_array().unwrap().len(), 2);
        assert_eq!(table["networks"]["a-b"].as_array().unwrap().len(), 9);
    }

    #[test]
    fn a_line_that_is_replaced_is_told() {
        let mut draft = Draft::default();
        for line in lines("squid.conf", "workers 1\nworkers 2\n") {
            draft.set("workers", line.arg(0), Comments::from_line(&line));
            draft.imported += 1;
        }
        assert_eq!(draft.remarks[0].directive, "squid.conf:1: workers 1");
        assert_eq!((draft.remarks.len(), draft.imported), (1, 1));
    }

    #[test]
    fn a_suggestion_changes_nothing() {
        let mut draft = Draft::default();
        draft.suggest("gateways", strings(&["ftp"]), Comments::text("why"));
        assert_eq!(draft.get("gateways"), None);
        let text = draft.text("squid.conf");
        assert!(text.contains("# why\n#gateways = [\"ftp\"]\n"), "{text}");
        assert!(toml::from_str::<toml::Table>(&text).unwrap().is_empty());
    }
}
