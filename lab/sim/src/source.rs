//! Where requests come from: the files of a trace, in their order, as often as they are needed.
//!
//! Called by everything that counts or replays. Invariant: lines that are no requests are counted,
//! the first of them are kept to be shown, and [`OnDamage::Stop`] ends at the first one.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use siphasher::sip::SipHasher13;

use crate::trace::{Damage, Format, Request, Trace, TraceError};

/// Requests that can be read from the first to the last, several times.
pub trait Source {
    /// Calls `each` with every request until it breaks.
    ///
    /// # Errors
    /// See [`SourceError`].
    fn read(
        &mut self,
        each: &mut dyn FnMut(&Request<'_>) -> ControlFlow<()>,
    ) -> Result<(), SourceError>;
}

/// The number by which an object is known: a hash of its name. Of a hundred million names, two have
/// the same number with a chance of 1 to 3,700.
pub fn object_of(name: &[u8]) -> u64 {
    SipHasher13::new().hash(name)
}

/// What becomes of lines that are no requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage {
    /// They are counted.
    Skip,
    /// The first one is an error.
    Stop,
}

/// Why requests cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A file.
    #[error("cannot open {}", path.display())]
    Open {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that is no trace, or ends in its middle.
    #[error("cannot read {}", path.display())]
    Trace {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: TraceError,
    },
    /// A line that is no request, with [`OnDamage::Stop`].
    #[error("{}:{damage}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line.
        damage: Damage,
    },
}

/// What was read of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Lines, records or entries that are requests.
    pub requests: u64,
    /// Those that are none.
    pub damaged: u64,
    /// The first of them.
    pub examples: Vec<(PathBuf, Damage)>,
}

/// Opens a file, or what its name stands for.
pub type Open = Box<dyn FnMut(&Path) -> io::Result<Box<dyn Read + Send>>>;

/// The files of a trace.
pub struct Files {
    paths: Vec<PathBuf>,
    format: Option<Format>,
    on_damage: OnDamage,
    open: Open,
    tally: Tally,
}

impl Files {
    /// Files in the order of time, each opened by `open`. `format`: `None` recognises that of each
    /// one.
    pub fn new(
        paths: Vec<PathBuf>,
        format: Option<Format>,
        on_damage: OnDamage,
        open: Open,
    ) -> Self {
        Self {
            paths,
            format,
            on_damage,
            open,
            tally: Tally::default(),
        }
    }

    /// What the last [`Source::read`] has read.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }
}

impl Source for Files {
    fn read(
        &mut self,
        each: &mut dyn FnMut(&Request<'_>) -> ControlFlow<()>,
    ) -> Result<(), SourceError> {
        self.tally = Tally::default();
        for path in &self.paths {
            let input = (self.open)(path).map_err(|source| SourceError::Open {
                path: path.clone(),
                source,
            })?;
            let failed = |source| SourceError::Trace {
                path: path.clone(),
                source,
            };
            let mut trace = match Trace::open(input, self.format) {
                Ok(trace) => trace,
                // A log may be empty right after it was rotated.
                Err(TraceError::Empty) if self.paths.len() > 1 => continue,
                Err(error) => return Err(failed(error)),
            };
            while let Some(step) = trace.next().map_err(|error| failed(error.into()))? {
                match step {
                    Ok(request) => {
                        self.tally.requests += 1;
                        if each(&request).is_break() {
                            return Ok(());
                        }
                    }
                    Err(damage) if self.on_damage == OnDamage::Stop => {
                        let path = path.clone();
                        return Err(SourceError::Damaged { path, damage });
                    }
                    Err(damage) => self.tally.add(path, damage),
                }
            }
        }
        Ok(())
    }
}

impl Tally {
    fn add(&mut self, path: &Path, damage: Damage) {
        self.damaged += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push((path.to_owned(), damage));
        }
    }
}

/// Damaged lines that are shown.
const EXAMPLES: usize = 5;

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn files(texts: &'static [(&str, &str)], on_damage: OnDamage) -> Files {
        let paths = texts.iter().map(|(name, _)| name.into()).collect();
        let open = move |path: &Path| {
            let text = texts.iter().find(|(name, _)| Path::new(name) == path);
            let (_, text) = text.ok_or(io::ErrorKind::NotFound)?;
            Ok(Box::new(Cursor::new(text.as_bytes())) as Box<dyn Read + Send>)
        };
        Files::new(paths, None, on_damage, Box::new(open))
    }

    fn names(files: &mut Files) -> Result<Vec<String>, SourceError> {
        let mut names = vec![];
        files.read(&mut |request| {
            names.push(String::from_utf8_lossy(request.name).into_owned());
            ControlFlow::Continue(())
        })?;
        Ok(names)
    }

    const TEXTS: &[(&str, &str)] = &[("one", "url,bytes\n/a,1\n/b,x\n"), ("two", "url\n/c\n")];

    #[test]
    fn files_are_read_in_their_order_and_as_often_as_asked_for() {
        let mut files = files(TEXTS, OnDamage::Skip);
        for _ in 0..2 {
            assert_eq!(names(&mut files).unwrap(), ["/a", "/c"]);
            let tally = files.tally();
            assert_eq!((tally.requests, tally.damaged), (2, 1));
            assert_eq!(tally.examples[0].0, Path::new("one"));
            assert_eq!(
                tally.examples[0].1.to_string(),
                "3: the size cannot be read"
            );
        }
    }

    #[test]
    fn an_empty_file_among_several_is_passed_over() {
        const WITH_EMPTY: &[(&str, &str)] = &[("none", ""), TEXTS[0], ("no", ""), TEXTS[1]];
        let mut several = files(WITH_EMPTY, OnDamage::Skip);
        assert_eq!(names(&mut several).unwrap(), ["/a", "/c"]);
        let error = names(&mut files(&WITH_EMPTY[..1], OnDamage::Skip)).unwrap_err();
        assert_eq!(error.to_string(), "cannot read none");
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), "it is empty");
    }

    #[test]
    fn strictly_the_first_damaged_line_is_an_error_with_its_place() {
        let error = names(&mut files(TEXTS, OnDamage::Stop)).unwrap_err();
        assert_eq!(error.to_string(), "one:3: the size cannot be read");
    }

    #[test]
    fn a_reader_that_breaks_reads_no_further() {
        let mut files = files(TEXTS, OnDamage::Stop);
        let read = files.read(&mut |_| ControlFlow::Break(()));
        assert!(read.is_ok());
        assert_eq!(files.tally().requests, 1);
    }
}
