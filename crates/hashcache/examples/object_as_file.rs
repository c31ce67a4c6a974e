//! An object as a file: `Read` and `Seek` on a hit, and a put that copies from any reader.
//!
//! The paper (section 4) offers open, read, write, seek and close. Each is a few lines on top of
//! [`Hit`] and `Writer`.
//!
//! Run with `cargo run -p hashcache --example object_as_file`.

use std::error::Error;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config, Hit, PAGE, Put, PutError, Reader};

/// One version of an object, opened for reading. A later put or remove of the name does not change
/// what is read.
struct ObjectFile {
    hit: Hit,
    reader: Reader,
}

impl ObjectFile {
    fn open(cache: &Cache, name: &[u8]) -> io::Result<Self> {
        let hit = cache.get(name).wait().ok_or(io::ErrorKind::NotFound)?;
        let reader = hit.reader(0..u64::MAX);
        Ok(Self { hit, reader })
    }
}

impl Read for ObjectFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

impl Seek for ObjectFile {
    /// Reads nothing: the disk is asked when the next byte is.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.reader.offset().checked_add_signed(by),
            SeekFrom::End(by) => {
                let length = self.hit.content_len().ok_or(io::ErrorKind::Unsupported)?;
                length.checked_add_signed(by)
            }
        };
        let target = target.ok_or(io::ErrorKind::InvalidInput)?;
        self.reader = self.hit.reader(target..u64::MAX);
        Ok(target)
    }
}

/// Puts what `from` gives. The object can be found when this returns.
fn copy_in(cache: &Cache, name: &[u8], from: &mut impl Read) -> Result<(), Box<dyn Error>> {
    let mut writer = cache.intend(name)?.writer(Put::metadata(""))?;
    let mut buffer = vec![0; PAGE];
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            writer.commit()?;
            return Ok(());
        }
        // `Full`: pending writes take all the memory they may. Wait for the disk and try again.
        while let Err(error) = writer.write(&buffer[..length]) {
            if error != PutError::Full || !cache.flush().wait() {
                return Err(error.into());
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = Config::on_device(Arc::new(MemoryDevice::new(128 << 20)));
    config.memory_bytes = 16 << 20;
    let cache = Cache::open(config)?;
    // More than there is memory for.
    let length = 40 << 20;
    copy_in(&cache, b"large", &mut io::repeat(b'x').take(length))?;

    let mut file = ObjectFile::open(&cache, b"large")?;
    file.seek(SeekFrom::End(-3))?;
    let mut end = String::new();
    file.read_to_string(&mut end)?;
    assert_eq!(end, "xxx");
    file.rewind()?;
    assert_eq!(io::copy(&mut file, &mut io::sink())?, length);
    println!("{length} bytes in and out");
    Ok(())
}
