//! The row of a setting, with all facts about it that any part of the program needs.
//!
//! The rows are in `keys`, a file for each section. The TOML reader, the flags, the environment
//! variables, `config example`, `config show`, the manual page and the reference page are all
//! generated from the rows, so all of them know the same keys.
//!
//! Invariant: the reader of a row also reads the text of its default, so a default is always a
//! value that an operator could write.

use std::fmt;
use std::sync::LazyLock;

use super::environment::variable_of;
use super::values::Values;
use crate::fault::{Fault, Faults};

/// A value as a source gave it, before the key parses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// A single word or number.
    One(String),
    /// A list.
    Many(Vec<String>),
}

/// A value in output, with the types that TOML and JSON have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Not set, and the key has no word for that.
    Nothing,
    /// A word, size, time, path or address.
    Text(String),
    /// A count.
    Number(u64),
    /// A truth value.
    Truth(bool),
    /// A list of words.
    List(Vec<String>),
}

impl Shown {
    /// Converts the value to TOML; `None` if there is no value.
    pub fn toml(&self) -> Option<toml::Value> {
        Some(match self {
            Self::Nothing => return None,
            Self::Text(text) => toml::Value::String(text.clone()),
            // TOML integers are below 2^63; no count of ours is larger.
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

/// Formats the value for people: lists with commas.
impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
            Self::Truth(yes) => yes.fmt(f),
            Self::List(items) => f.write_str(&items.join(", ")),
        }
    }
}

/// The type of a value: parser, formatter and description.
pub struct Type<T> {
    /// The type's description, independent of `T`.
    pub kind: Kind,
    /// Parses a word.
    pub read: fn(&str) -> Result<T, Fault>,
    /// Formats a value so that `read` parses it again.
    pub show: fn(&T) -> Shown,
}

/// A type's description for `--help`, completions and the reference page.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Placeholder in `--help`, such as SIZE.
    pub placeholder: &'static str,
    /// Noun phrase with unit and bounds, such as "a size from 2KiB to 1MiB".
    pub about: &'static str,
    /// Words that the flag accepts.
    pub accepts: Accepts,
}

/// The words that a type accepts.
#[derive(Clone, Copy, Debug)]
pub enum Accepts {
    /// Any word; `Type::read` rejects wrong ones.
    Any,
    /// A fixed list of words; shells complete them.
    Words(fn() -> Vec<&'static str>),
    /// `true` or `false`. A flag without a value means `true`.
    Truth,
}

/// A key's parser: it stores the value in `Values`.
#[derive(Clone, Copy)]
pub enum Form {
    /// Parser of a single value.
    One(fn(&mut Values, &str) -> Result<(), Fault>),
    /// Parser of a list; a later source replaces the whole list.
    Many(fn(&mut Values, &[String]) -> Result<(), Faults>),
}

/// A key's default in documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultValue {
    /// The value that `Values::defaults` sets.
    Value,
    /// A default that depends on the machine or on other settings.
    Words {
        /// The default in words.
        words: &'static str,
        /// A value for documents, in TOML.
        example: &'static str,
    },
    /// The setting has no default.
    Unset {
        /// A value for documents, in TOML.
        example: &'static str,
    },
}

/// A key's flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flag {
    /// No flag.
    None,
    /// A flag with the key's name, with dashes.
    Same,
    /// A flag with this name: a flag cannot contain the key's dot.
    Named(&'static str),
    /// Only the opposite of the key is a flag.
    Opposite,
}

/// The opposite of a key that is true by default. Like every flag, it is also a key and a variable.
#[derive(Clone, Copy, Debug)]
pub struct Opposite {
    pub name: &'static str,
    pub about: &'static str,
}

/// The time at which a changed value applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// At a reload.
    AtReload,
    /// At the next start.
    AtStart,
}

/// A key's row.
#[derive(Clone, Copy)]
pub struct Key {
    /// Name in a file, with the table.
    pub name: &'static str,
    /// The value's description, or an element's if the value is a list.
    pub kind: Kind,
    /// Parses text into `Values`.
    pub form: Form,
    /// Formats the current value.
    pub show: fn(&Values) -> Shown,
    /// One-line description without a full stop; also the flag's help.
    pub about: &'static str,
    /// Further sentences for the manual and the reference; may be empty.
    pub details: &'static str,
    /// The default in documents.
    pub default: DefaultValue,
    /// The page in `docs/operate` that describes the setting.
    pub page: Option<&'static str>,
    /// The time at which a changed value applies.
    pub applies: Applies,
    /// The opposite key, if there is any.
    pub opposite: Option<Opposite>,
    /// The default as an operator writes it; `None`: the default that the field's type has.
    default_text: Option<&'static str>,
    flag: Flag,
    /// True if the flag of a list takes several values, separated by commas.
    pub has_commas: bool,
}

impl Key {
    /// A key without a flag, with the default that the field's type has.
    pub const fn new(
        name: &'static str,
        kind: Kind,
        applies: Applies,
        form: Form,
        show: fn(&Values) -> Shown,
    ) -> Self {
        Self {
            name,
            kind,
            form,
            show,
            about: "",
            details: "",
            default: DefaultValue::Value,
            page: None,
            applies,
            opposite: None,
            default_text: None,
            flag: Flag::None,
            has_commas: true,
        }
    }

    /// Adds a flag with the key's name.
    pub const fn flag(mut self) -> Self {
        self.flag = Flag::Same;
        self
    }

    /// Adds a flag with this name.
    pub const fn flag_named(mut self, name: &'static str) -> Self {
        self.flag = Flag::Named(name);
        self
    }

    /// Treats commas in the flag as parts of the value: file names and URLs may contain commas.
    pub const fn without_commas(mut self) -> Self {
        self.has_commas = false;
        self
    }

    /// For a key that is true by default: adds the opposite key, variable and flag `name`, with
    /// this help.
    pub const fn off_by(mut self, name: &'static str, about: &'static str) -> Self {
        self.opposite = Some(Opposite { name, about });
        self.flag = Flag::Opposite;
        self
    }

    /// Sets the default, as an operator writes it; commas separate the values of a list.
    pub const fn default(mut self, text: &'static str) -> Self {
        self.default_text = Some(text);
        self
    }

    /// Describes a default that depends on the machine or on other settings; `example` is a sample
    /// value in TOML.
    pub const fn usually(mut self, words: &'static str, example: &'static str) -> Self {
        self.default = DefaultValue::Words { words, example };
        self
    }

    /// Marks the key as not set by default; `toml` is a sample value.
    pub const fn example(mut self, toml: &'static str) -> Self {
        self.default = DefaultValue::Unset { example: toml };
        self
    }

    /// Sets the one-line description without a full stop; it is also the flag's help.
    pub const fn about(mut self, line: &'static str) -> Self {
        self.about = line;
        self
    }

    /// Adds further sentences for the manual and the reference.
    pub const fn details(mut self, sentences: &'static str) -> Self {
        self.details = sentences;
        self
    }

    /// Sets the page in `docs/operate` that describes the setting.
    pub const fn page(mut self, file: &'static str) -> Self {
        self.page = Some(file);
        self
    }

    /// The flag's name, without dashes in front.
    pub fn flag_name(&self) -> Option<String> {
        match self.flag {
            Flag::None => None,
            Flag::Same => Some(self.name.replace('_', "-")),
            Flag::Named(name) => Some(name.to_owned()),
            Flag::Opposite => Some(self.opposite?.name.replace('_', "-")),
        }
    }

    /// True if the flag means the opposite of the key.
    pub fn is_flag_opposite(&self) -> bool {
        self.flag == Flag::Opposite
    }

    /// The key's environment variable.
    pub fn variable(&self) -> String {
        variable_of(self.name)
    }

    /// The key's table, empty if it has no table, and the name in that table.
    pub fn table_and_name(&self) -> (&'static str, &'static str) {
        self.name.split_once('.').unwrap_or(("", self.name))
    }

    /// True if the key takes a list.
    pub fn is_list(&self) -> bool {
        matches!(self.form, Form::Many(_))
    }

    /// Converts text without quotes, as in a variable, to a value of this key: commas separate the
    /// values of a list.
    pub fn written(&self, text: &str) -> Written {
        match self.form {
            Form::One(_) => Written::One(text.trim().to_owned()),
            Form::Many(_) => {
                let items = text.split(',').map(str::trim);
                let items = items.filter(|item| !item.is_empty());
                Written::Many(items.map(str::to_owned).collect())
            }
        }
    }

    /// Parses `written` into `values`; `spelling` is the name under which it was given.
    ///
    /// # Errors
    /// Every wrong element of a list.
    pub fn read(
        &self,
        values: &mut Values,
        written: &Written,
        spelling: &str,
    ) -> Result<(), Faults> {
        match (self.form, written) {
            (Form::One(read), Written::One(word)) => Ok(read(values, word)?),
            (Form::One(_), Written::Many(_)) => {
                Err(Fault::new(format!("`{spelling}` takes one value, not a list")).into())
            }
            (Form::Many(read), Written::One(word)) => read(values, std::slice::from_ref(word)),
            (Form::Many(read), Written::Many(words)) => read(values, words),
        }
    }

    /// Sets the default in `values`.
    pub fn set_default(&self, values: &mut Values) {
        if let Some(text) = self.default_text {
            self.read(values, &self.written(text), self.name)
                .expect("a test reads the defaults of all rows");
        }
    }

    /// The default as text or in words; `None` if the key has no value by default.
    pub fn default_words(&self) -> Option<String> {
        match self.default {
            DefaultValue::Words { words, .. } => Some(words.to_owned()),
            DefaultValue::Unset { .. } => None,
            DefaultValue::Value => Some(self.default_shown().to_string()),
        }
    }

    /// The default, or an example if there is no fixed default, in TOML.
    pub fn sample(&self) -> String {
        match self.default {
            DefaultValue::Words { example, .. } | DefaultValue::Unset { example } => {
                example.to_owned()
            }
            DefaultValue::Value => {
                let value = self.default_shown().toml();
                value.map(|value| value.to_string()).unwrap_or_default()
            }
        }
    }

    fn default_shown(&self) -> Shown {
        // Computed once: each flag shows its default, in each command, at each start.
        static DEFAULTS: LazyLock<Values> = LazyLock::new(|| Values::defaults(1, None));
        (self.show)(&DEFAULTS)
    }

    /// The flag's help, with the default.
    pub fn help(&self) -> String {
        match self.default_words() {
            // A flag that is not given means `false`.
            Some(words) if !words.is_empty() && words != "false" && words != "true" => {
                format!("{} [default: {words}]", self.about)
            }
            _ => self.about.to_owned(),
        }
    }

    /// Joins `about` and `details` in a single paragraph.
    pub fn sentences(&self) -> String {
        match self.details {
            "" => format!("{}.", self.about),
            details => format!("{}. {details}", self.about),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.name).finish()
    }
}

/// Keys under a common heading.
#[derive(Debug)]
pub struct Section {
    pub heading: &'static str,
    /// The keys, the most common first.
    pub keys: &'static [Key],
}
