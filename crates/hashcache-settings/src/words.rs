//! Parser for a choice between several words.

use super::suggest;
use crate::fault::Fault;

/// The value of `word` in `words`, or an error with the nearest word.
pub(super) fn one_of<T: Copy>(words: &[(&str, T)], word: &str) -> Result<T, Fault> {
    words
        .iter()
        .find(|(name, _)| *name == word)
        .map(|&(_, value)| value)
        .ok_or_else(|| {
            let names: Vec<&str> = words.iter().map(|&(name, _)| name).collect();
            let fault = Fault::new(format!("`{word}` is not one of {}", names.join(", ")));
            match suggest::nearest(word, names) {
                Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
                None => fault,
            }
        })
}
