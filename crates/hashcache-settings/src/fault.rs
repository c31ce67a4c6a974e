//! Mistakes in input from an operator, and the format in which they are printed.
//!
//! Called by every subcommand; `main` prints the errors that they return. The form is fixed: a line
//! with the problem, the place and the reason that starts with `hashcache: `, then a line that
//! starts with `hint: `.

use std::fmt;

/// A fault, with a hint if a remedy is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The problem and the place: a lower-case phrase without a full stop.
    pub what: String,
    /// The remedy.
    pub hint: Option<String>,
    /// Byte offset in the configuration file, for a fault inside a table with several lines.
    pub byte: Option<usize>,
}

impl Fault {
    /// A fault without a hint.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            hint: None,
            byte: None,
        }
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the fault's byte offset in the configuration file.
    pub fn at_byte(mut self, byte: usize) -> Self {
        self.byte = Some(byte);
        self
    }

    /// Prepends `place` to the message.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.what = format!("{place}: {}", self.what);
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Fault {}

/// All faults in a configuration, reported together so that a single run is enough to correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phrases: Vec<&str> = self.0.iter().map(|fault| fault.what.as_str()).collect();
        f.write_str(&phrases.join("; "))
    }
}

impl std::error::Error for Faults {}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

/// Formats `error` as lines for standard error, outermost part first.
pub fn render(error: &anyhow::Error) -> String {
    if let Some(faults) = error.downcast_ref::<Faults>() {
        return faults
            .0
            .iter()
            .map(|fault| lines(&fault.what, fault.hint.as_deref()))
            .collect();
    }
    lines(&chain(error), hint_of(error))
}

/// Formats `error` as a single line for a log, each fault with a hint if it has any.
pub fn one_line(error: &anyhow::Error) -> String {
    let one = |what: &str, hint: Option<&str>| match hint {
        Some(hint) => format!("{what} ({hint})"),
        None => what.to_owned(),
    };
    if let Some(faults) = error.downcast_ref::<Faults>() {
        let faults = faults.0.iter();
        let faults = faults.map(|fault| one(&fault.what, fault.hint.as_deref()));
        return faults.collect::<Vec<_>>().join("; ");
    }
    one(&chain(error), hint_of(error))
}

/// Returns the faults in `error`, each with a hint if known; an error of another type becomes one
/// fault.
pub fn all(error: &anyhow::Error) -> Vec<Fault> {
    match error.downcast_ref::<Faults>() {
        Some(faults) => faults.0.clone(),
        None => vec![Fault {
            what: chain(error),
            hint: hint_of(error).map(str::to_owned),
            byte: None,
        }],
    }
}

/// Joins the error and the causes, outermost first.
fn chain(error: &anyhow::Error) -> String {
    let parts: Vec<String> = error.chain().map(ToString::to_string).collect();
    parts.join(": ")
}

fn hint_of(error: &anyhow::Error) -> Option<&str> {
    let fault = error.downcast_ref::<Fault>()?;
    fault.hint.as_deref()
}

/// Returns true if `error` only means that the reader closed our output, as in `hashcache … |
/// head`.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

fn lines(what: &str, hint: Option<&str>) -> String {
    let hint = hint
        .map(|hint| format!("hint: {hint}\n"))
        .unwrap_or_default();
    format!("hashcache: {what}\n{hint}")
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context as _;

    use super::*;

    #[test]
    fn an_error_is_told_outermost_part_first_with_its_hint() {
        let error = Err::<(), _>(io::Error::other("disk on fire"))
            .context(Fault::new("cannot open /srv/cache.img").hint("use another disk"))
            .unwrap_err();
        assert_eq!(
            render(&error),
            "hashcache: cannot open /srv/cache.img: disk on fire\nhint: use another disk\n"
        );
    }

    #[test]
    fn every_fault_of_a_configuration_gets_its_own_lines() {
        let faults = Faults(vec![
            Fault::new("a.toml:1: no"),
            Fault::new("a.toml:2: no").hint("yes"),
        ]);
        assert_eq!(
            render(&faults.into()),
            "hashcache: a.toml:1: no\nhashcache: a.toml:2: no\nhint: yes\n"
        );
    }

    #[test]
    fn a_log_has_all_faults_and_their_hints_on_one_line() {
        let faults = Faults(vec![
            Fault::new("a.toml:1: unknown key `memroy`").hint("did you mean `memory`?"),
            Fault::new("a.toml:2: no"),
        ]);
        assert_eq!(
            one_line(&faults.into()),
            "a.toml:1: unknown key `memroy` (did you mean `memory`?); a.toml:2: no"
        );
        let error = Err::<(), _>(io::Error::other("gone"))
            .context(Fault::new("cannot read a.toml").hint("look"))
            .unwrap_err();
        assert_eq!(one_line(&error), "cannot read a.toml: gone (look)");
    }

    #[test]
    fn a_broken_pipe_is_seen_under_its_context() {
        let pipe = io::Error::from(io::ErrorKind::BrokenPipe);
        let error = Err::<(), _>(pipe).context("cannot write").unwrap_err();
        assert!(is_broken_pipe(&error));
        assert!(!is_broken_pipe(&anyhow::anyhow!("broken pipe")));
    }
}
