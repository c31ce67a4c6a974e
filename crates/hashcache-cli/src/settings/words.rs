//! One of several words: how a choice is read.

use super::suggest;
use crate::fault::Fault;

/// The value that `word` stands for in `words`, or an error with the nearest word.
pub(super) fn one_of<T: Copy>(words: &[(&str, T)], word: &str) -> Result<T, Fault> {
    words
        .iter()
        .find(|(name, _)| *name == word)
        .map(|&(_, value)| value)
        .ok_or_else(|| {
            let names: Vec<&str> = words.iter().map(|&(name, _)| name).collect();
            let fault = Fault::new(format!("`{word}` is none of {}", names.join(", ")));
            match suggest::nearest(word, names) {
                Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
                None => fault,
            }
        })
}
