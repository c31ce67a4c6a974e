//! A device in memory, for tests, models and examples. Its bytes are lost when the process exits.

use std::io;
use std::sync::RwLock;

use super::Device;

/// Keeps its bytes until it is dropped.
pub struct MemoryDevice {
    bytes: RwLock<Vec<u8>>,
}

impl MemoryDevice {
    /// A device of `len` zero bytes.
    pub fn new(len: usize) -> Self {
        Self::from_bytes(vec![0; len])
    }

    /// A device that holds `bytes`.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self {
            bytes: RwLock::new(bytes),
        }
    }

    /// A copy of all bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bytes
            .read()
            .expect("no holder of this lock panics")
            .clone()
    }

    /// Lets `change` alter the bytes, as damage to the medium would.
    pub fn alter(&self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.bytes.write().expect("no holder of this lock panics"));
    }
}

fn range(offset: u64, length: usize, size: usize) -> io::Result<std::ops::Range<usize>> {
    let start = usize::try_from(offset).map_err(io::Error::other)?;
    match start.checked_add(length) {
        Some(end) if end <= size => Ok(start..end),
        _ => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "beyond the end of the device",
        )),
    }
}

impl Device for MemoryDevice {
    fn len(&self) -> u64 {
        self.bytes
            .read()
            .expect("no holder of this lock panics")
            .len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes.read().expect("no holder of this lock panics");
        buffer.copy_from_slice(&bytes[range(offset, buffer.len(), bytes.len())?]);
        Ok(())
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        let mut bytes = self.bytes.write().expect("no holder of this lock panics");
        let range = range(offset, buffer.len(), bytes.len())?;
        bytes[range].copy_from_slice(buffer);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
