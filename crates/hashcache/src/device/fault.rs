//! A device that fails on purpose: at write number n, or by losing writes that were not synced.
//!
//! The tests "every write can be the last" run a workload on it, stop it at each write in turn, and
//! open the store that remains.

use std::io;
use std::ops::Range;
use std::sync::Mutex;

use super::{Device, MemoryDevice};

/// Effect on the chosen write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This write and all later writes are lost (kill, power cut).
    Freeze,
    /// Only this write's first sectors are stored, later writes are lost.
    Torn {
        /// Number of 512-byte sectors that are stored.
        sectors: usize,
    },
    /// This write is lost, later writes are stored.
    Lost,
    /// This write is stored with one bit flipped.
    Flip {
        /// Bit number, modulo the write's length.
        bit: usize,
    },
    /// This write and all later operations fail with an error.
    Error,
    /// This write and all later writes fail with `ENOSPC`; reads and syncs still work.
    Full,
}

struct State {
    writes: u64,
    /// Writes since the last sync: offset and the bytes that were there before.
    unsynced: Vec<(u64, Vec<u8>)>,
    track: bool,
    stopped: bool,
    failing: bool,
    full: bool,
    /// Byte ranges that cannot be read.
    unreadable: Vec<Range<u64>>,
}

/// A [`MemoryDevice`] that fails on command.
pub struct FaultDevice {
    inner: MemoryDevice,
    at: Option<(u64, Fault)>,
    state: Mutex<State>,
}

impl FaultDevice {
    /// Fails with `fault` at write number `at` (the first is 0); `None`: never fails.
    pub fn new(inner: MemoryDevice, at: Option<(u64, Fault)>) -> Self {
        let state = State {
            writes: 0,
            unsynced: Vec::new(),
            track: false,
            stopped: false,
            failing: false,
            full: false,
            unreadable: Vec::new(),
        };
        Self {
            inner,
            at,
            state: Mutex::new(state),
        }
    }

    /// A device that remembers unsynced writes, for [`FaultDevice::cut_power`].
    pub fn with_volatile_cache(inner: MemoryDevice) -> Self {
        let device = Self::new(inner, None);
        device.lock().track = true;
        device
    }

    /// Writes so far.
    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// A copy of the bytes on the medium.
    pub fn media(&self) -> Vec<u8> {
        self.inner.to_bytes()
    }

    /// Makes every later operation fail.
    pub fn fail(&self) {
        self.lock().failing = true;
    }

    /// Makes later reads of any byte in `range` fail, even after writes to it.
    pub fn refuse_reads(&self, range: Range<u64>) {
        self.lock().unreadable.push(range);
    }

    /// Simulates a power cut: each sector written since the last sync is lost if `keep` returns
    /// false for it. Later writes are lost.
    pub fn cut_power(&self, mut keep: impl FnMut() -> bool) {
        let mut state = self.lock();
        state.stopped = true;
        for (offset, before) in std::mem::take(&mut state.unsynced).into_iter().rev() {
            for (n, sector) in before.chunks(512).enumerate() {
                if !keep() {
                    let at = offset + 512 * n as u64;
                    self.inner
                        .write_at(at, sector)
                        .expect("it was written there before");
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

fn broken() -> io::Error {
    io::Error::other("injected fault")
}

fn full() -> io::Error {
    rustix::io::Errno::NOSPC.into()
}

impl Device for FaultDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset + buffer.len() as u64;
        let state = self.lock();
        let mut unreadable = state.unreadable.iter();
        if state.failing || unreadable.any(|bad| offset < bad.end && bad.start < end) {
            return Err(broken());
        }
        drop(state);
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        let number = state.writes;
        state.writes += 1;
        if state.failing {
            return Err(broken());
        }
        if state.full {
            return Err(full());
        }
        if state.stopped {
            return Ok(());
        }
        if state.track {
            let mut before = vec![0; buffer.len()];
            self.inner.read_at(offset, &mut before)?;
            state.unsynced.push((offset, before));
        }
        let Some((_, fault)) = self.at.filter(|(at, _)| *at == number) else {
            return self.inner.write_at(offset, buffer);
        };
        match fault {
            Fault::Freeze => state.stopped = true,
            Fault::Torn { sectors } => {
                state.stopped = true;
                self.inner
                    .write_at(offset, &buffer[..buffer.len().min(sectors * 512)])?;
            }
            Fault::Lost => {}
            Fault::Flip { bit } => {
                let mut flipped = buffer.to_vec();
                let bit = bit % (buffer.len() * 8);
                flipped[bit / 8] ^= 1 << (bit % 8);
                self.inner.write_at(offset, &flipped)?;
            }
            Fault::Error => {
                state.failing = true;
                return Err(broken());
            }
            Fault::Full => {
                state.full = true;
                return Err(full());
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.lock();
        if state.failing {
            return Err(broken());
        }
        if !state.stopped {
            state.unsynced.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(fault: Option<(u64, Fault)>) -> Vec<u8> {
        let device = FaultDevice::new(MemoryDevice::new(4096), fault);
        for n in 0..3u8 {
            device
                .write_at(1024 * u64::from(n), &[n + 1; 1024])
                .unwrap();
        }
        device.media().chunks(512).map(|sector| sector[0]).collect()
    }

    #[test]
    fn each_fault_does_what_it_says() {
        assert_eq!(written(None), [1, 1, 2, 2, 3, 3, 0, 0]);
        assert_eq!(written(Some((1, Fault::Freeze))), [1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            written(Some((1, Fault::Torn { sectors: 1 }))),
            [1, 1, 2, 0, 0, 0, 0, 0]
        );
        assert_eq!(written(Some((1, Fault::Lost))), [1, 1, 0, 0, 3, 3, 0, 0]);
        assert_eq!(
            written(Some((1, Fault::Flip { bit: 2 }))),
            [1, 1, 6, 2, 3, 3, 0, 0]
        );
    }

    #[test]
    fn a_full_device_refuses_writes_only() {
        let fault = Some((1, Fault::Full));
        let device = FaultDevice::new(MemoryDevice::new(4096), fault);
        device.write_at(0, &[1; 512]).unwrap();
        for _ in 0..2 {
            let error = device.write_at(0, &[2; 512]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
        let mut read = [0; 512];
        device.read_at(0, &mut read).unwrap();
        assert_eq!(read, [1; 512]);
        device.sync().unwrap();
    }

    #[test]
    fn a_bad_sector_is_refused_whole_and_alone() {
        let device = FaultDevice::new(MemoryDevice::new(4096), None);
        device.refuse_reads(1024..1536);
        let reads = |at: u64, length: usize| device.read_at(at, &mut vec![0; length]).is_ok();
        assert!(reads(512, 512) && reads(1536, 512));
        assert!(!reads(512, 1024) && !reads(1024, 512) && !reads(0, 4096));
        device.write_at(1024, &[1; 512]).unwrap();
        assert!(!reads(1024, 512));
    }

    #[test]
    fn a_power_cut_takes_only_what_was_not_synced() {
        let device = FaultDevice::with_volatile_cache(MemoryDevice::new(2048));
        device.write_at(0, &[1; 512]).unwrap();
        device.sync().unwrap();
        device.write_at(0, &[2; 512]).unwrap();
        device.write_at(512, &[3; 512]).unwrap();
        device.cut_power(|| false);
        device.write_at(1024, &[4; 512]).unwrap();
        assert_eq!(
            device.media().chunks(512).map(|s| s[0]).collect::<Vec<_>>(),
            [1, 0, 0, 0]
        );
    }
}
