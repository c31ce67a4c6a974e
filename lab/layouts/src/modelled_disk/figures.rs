//! The file `figures`: what a modelled disk has done, as text, for other processes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use hashcache::device::ThrottleFigures;

/// The open file.
pub struct FiguresFile {
    file: File,
}

impl FiguresFile {
    /// Opens `figures` of a mounted disk.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        Ok(Self { file })
    }

    /// What the disk has done so far.
    pub fn read(&self) -> io::Result<ThrottleFigures> {
        let mut buffer = [0; TEXT_MAX];
        let length = self.file.read_at(&mut buffer, 0)?;
        parse(&buffer[..length]).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// The text of the file.
pub fn text(figures: &ThrottleFigures) -> String {
    let ThrottleFigures {
        reads,
        read_bytes,
        writes,
        written_bytes,
        seeks,
        busy,
    } = figures;
    let busy_ns = busy.as_nanos();
    format!("{reads} {read_bytes} {writes} {written_bytes} {seeks} {busy_ns}\n")
}

fn parse(text: &[u8]) -> Option<ThrottleFigures> {
    let text = std::str::from_utf8(text).ok()?;
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    let mut next = || numbers.next().flatten();
    Some(ThrottleFigures {
        reads: next()?,
        read_bytes: next()?,
        writes: next()?,
        written_bytes: next()?,
        seeks: next()?,
        busy: Duration::from_nanos(next()?),
    })
}

/// More than six numbers have.
pub const TEXT_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_back_from_their_text() {
        let most = ThrottleFigures {
            reads: 1,
            read_bytes: u64::MAX,
            writes: 3,
            written_bytes: 4,
            seeks: 5,
            busy: Duration::from_nanos(u64::MAX),
        };
        for figures in [ThrottleFigures::default(), most] {
            let text = text(&figures);
            assert!(text.len() <= TEXT_MAX);
            assert_eq!(parse(text.as_bytes()), Some(figures));
        }
        assert_eq!(parse(b"1 2 3"), None);
        assert_eq!(parse(b"\xff"), None);
    }
}
