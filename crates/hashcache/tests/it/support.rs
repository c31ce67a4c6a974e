//! Helpers of the tests: contents that prove themselves, stores in memory, devices that report or
//! stop.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::{env, io};

use bytes::Bytes;
use hashcache::device::{Device, MemoryDevice};
use hashcache::{Cache, Config, Hit, Label, PolicyKind, Put, PutError, Version};

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;

/// Those that find what was put into a store with room.
pub const POLICIES: [PolicyKind; 2] = [PolicyKind::Log, PolicyKind::Set];

/// All there are. With some of them, names that share a place or a tag put each other out.
pub const EVERY: [PolicyKind; 6] = PolicyKind::ALL;

/// A policy with its options.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pub policy: PolicyKind,
    pub grouped: bool,
    pub readmission: bool,
}

impl From<PolicyKind> for Form {
    fn from(policy: PolicyKind) -> Self {
        Self {
            policy,
            grouped: false,
            readmission: false,
        }
    }
}

/// All policies, and those that have options with them.
pub fn forms() -> impl Iterator<Item = Form> {
    let with_all = |policy| Form {
        grouped: true,
        readmission: true,
        ..Form::from(policy)
    };
    let with_all = [PolicyKind::Log, PolicyKind::LogLru].map(with_all);
    EVERY.into_iter().map(Form::from).chain(with_all)
}

/// How many times as long random tests are to be as they are by default.
pub fn rounds() -> u64 {
    env::var("HASHCACHE_TEST_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1)
}

/// A number that a campaign set.
fn variable(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// The first seed of random tests.
pub fn seed() -> u64 {
    variable("HASHCACHE_TEST_SEED").unwrap_or(0)
}

/// Threads that do everything at once.
pub fn threads() -> u64 {
    variable("HASHCACHE_TEST_THREADS").unwrap_or(8)
}

/// How long they are to do it for each policy, if not as often as by default.
pub fn duration() -> Option<std::time::Duration> {
    variable("HASHCACHE_TEST_SECONDS").map(std::time::Duration::from_secs)
}

/// Every policy, or the one of a campaign.
pub fn chosen() -> Vec<Form> {
    let wanted = env::var("HASHCACHE_TEST_POLICY").ok();
    let is_wanted = |it: &Form| wanted.as_ref().is_none_or(|name| name == it.policy.name());
    forms().filter(is_wanted).collect()
}

/// A store on `device` in which nothing is written before it is asked for: no delay is ever over.
pub fn quiet(device: Arc<dyn Device>, policy: impl Into<Form>) -> Config {
    let Form {
        policy,
        grouped,
        readmission,
    } = policy.into();
    let hour = std::time::Duration::from_secs(3600);
    Config {
        policy,
        grouped,
        readmission,
        memory_bytes: 16 * MIB as u64,
        segment_bytes: Some(MIB as u32),
        batch_delay: hour,
        sync_interval: hour,
        open_patience: hour,
        ..Config::on_device(device)
    }
}

pub fn open(config: Config) -> Cache {
    Cache::open(config).expect("a store that can be opened")
}

pub fn memory(bytes: usize) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(bytes))
}

/// A store on a copy of what `device` holds, as after a kill at this moment.
pub fn copy(bytes: Vec<u8>) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::from_bytes(bytes))
}

/// The object that a put of a test stores: the metadata names the put, and the content follows from
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value {
    pub put: u64,
    pub revision: u32,
    pub length: usize,
}

impl Value {
    pub fn new(put: u64, length: usize) -> Self {
        Self {
            put,
            revision: 0,
            length,
        }
    }

    pub fn metadata(self) -> Bytes {
        let Self {
            put,
            revision,
            length,
        } = self;
        format!(
            "{put} {revision} {length} {}",
            "m".repeat((put % 900) as usize)
        )
        .into()
    }

    pub fn parse(metadata: &[u8]) -> Self {
        let text = std::str::from_utf8(metadata).expect("metadata of a test is text");
        let numbers: Vec<u64> = text
            .split(' ')
            .take(3)
            .map(|word| word.parse().expect("a number"))
            .collect();
        let value = Self {
            put: numbers[0],
            revision: u32::try_from(numbers[1]).unwrap(),
            length: usize::try_from(numbers[2]).unwrap(),
        };
        assert_eq!(value.metadata(), metadata, "metadata of another value");
        value
    }

    pub fn content(self, name: &[u8]) -> Vec<u8> {
        content(name, self.put, self.length)
    }

    pub fn store(self, cache: &Cache, name: &[u8]) -> Result<Version, PutError> {
        self.store_with(cache, name, Vec::new())
    }

    pub fn store_with(
        self,
        cache: &Cache,
        name: &[u8],
        labels: Vec<Label>,
    ) -> Result<Version, PutError> {
        let put = Put {
            // Of every five one is alone.
            group: self.put % 5,
            labels,
            ..Put::metadata(self.metadata())
        };
        cache.put(name, put, &self.content(name))
    }

    /// The label of this put, which others of the same name need not have: it is drawn by the
    /// number of the put. One in five has none.
    pub fn label(self) -> Option<u64> {
        let drawn = fastrand::Rng::with_seed(self.put).u64(..LABELS + 1);
        (drawn < LABELS).then_some(drawn)
    }

    /// The label in the form that the store has.
    pub fn labels(self, cache: &Cache) -> Vec<Label> {
        self.label()
            .map(|it| label(cache, it))
            .into_iter()
            .collect()
    }
}

/// How many labels there are that puts draw.
pub const LABELS: u64 = 4;

pub fn label(cache: &Cache, drawn: u64) -> Label {
    cache.label(&drawn.to_le_bytes())
}

/// Bytes that belong to this put of this name and to no other.
pub fn content(name: &[u8], put: u64, length: usize) -> Vec<u8> {
    let seed = name.iter().fold(put ^ 0x9e37_79b9_7f4a_7c15, |seed, byte| {
        (seed ^ u64::from(*byte))
            .wrapping_mul(0x0100_0000_01b3)
            .rotate_left(29)
    });
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; length];
    for chunk in bytes.chunks_mut(8) {
        let word = random.u64(..).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    bytes
}

/// Other content with the same CRC32C, which is linear: its polynomial may be added
/// anywhere.
pub fn forged(bytes: &[u8], at: usize) -> Vec<u8> {
    let polynomial = ((0x82f6_3b78_u64 << 1) | 1).to_le_bytes();
    let mut forged = bytes.to_vec();
    for (byte, add) in forged[at..].iter_mut().zip(&polynomial[..5]) {
        *byte ^= add;
    }
    forged
}

/// The value of a hit, every byte compared; `None` when content has gone.
///
/// # Panics
/// On a single wrong byte.
pub fn read(hit: &Hit, name: &[u8]) -> Option<Value> {
    let value = Value::parse(hit.metadata());
    assert_eq!(hit.content_len(), Some(value.length as u64));
    let content = hit.reader(0..u64::MAX).read_to_vec().ok()?;
    assert!(
        content == value.content(name),
        "wrong content for {value:?}"
    );
    Some(value)
}

pub fn get(cache: &Cache, name: &[u8]) -> Option<Value> {
    read(&cache.get(name).wait()?, name)
}

/// One call to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub offset: u64,
    pub length: usize,
}

#[derive(Default)]
struct Tape {
    reads: Vec<Call>,
    writes: Vec<Call>,
    /// Bytes of the writes, if they are kept.
    written: Option<Vec<Vec<u8>>>,
}

/// A device that tells what was asked of it.
pub struct Recorder<D> {
    pub inner: D,
    tape: Mutex<Tape>,
}

impl<D: Device> Recorder<D> {
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            tape: Mutex::default(),
        }
    }

    /// Keeps the bytes of all writes.
    pub fn keeping(inner: D) -> Self {
        let device = Self::new(inner);
        device.tape.lock().unwrap().written = Some(Vec::new());
        device
    }

    pub fn take_reads(&self) -> Vec<Call> {
        std::mem::take(&mut self.tape.lock().unwrap().reads)
    }

    pub fn take_writes(&self) -> Vec<Call> {
        std::mem::take(&mut self.tape.lock().unwrap().writes)
    }

    pub fn writes(&self) -> usize {
        self.tape.lock().unwrap().writes.len()
    }

    /// Offset and bytes of all writes.
    pub fn written(&self) -> Vec<(u64, Vec<u8>)> {
        let tape = self.tape.lock().unwrap();
        let bytes = tape.written.clone().expect("made with `keeping`");
        tape.writes
            .iter()
            .map(|call| call.offset)
            .zip(bytes)
            .collect()
    }
}

impl<D: Device> Device for Recorder<D> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let call = Call {
            offset,
            length: buffer.len(),
        };
        self.tape.lock().unwrap().reads.push(call);
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        let mut tape = self.tape.lock().unwrap();
        tape.writes.push(Call {
            offset,
            length: buffer.len(),
        });
        if let Some(written) = &mut tape.written {
            written.push(buffer.to_vec());
        }
        drop(tape);
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

/// A device with blocks that it refuses to read until they are written, as a disk with bad sectors.
pub struct BadBlocks {
    pub inner: MemoryDevice,
    bad: Mutex<BTreeSet<u64>>,
}

const BAD_BLOCK: u64 = 4096;

impl BadBlocks {
    /// `bad`: where those blocks begin.
    pub fn new(inner: MemoryDevice, bad: &[u64]) -> Self {
        let bad = bad.iter().map(|at| at / BAD_BLOCK).collect();
        Self {
            inner,
            bad: Mutex::new(bad),
        }
    }

    fn covered(offset: u64, length: usize) -> std::ops::Range<u64> {
        offset / BAD_BLOCK..(offset + length as u64).div_ceil(BAD_BLOCK)
    }
}

impl Device for BadBlocks {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let bad = self.bad.lock().unwrap();
        if bad
            .range(Self::covered(offset, buffer.len()))
            .next()
            .is_some()
        {
            return Err(io::Error::other("a bad block"));
        }
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        let covered = Self::covered(offset, buffer.len());
        self.bad.lock().unwrap().retain(|it| !covered.contains(it));
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

/// A device whose writes wait while it is shut.
pub struct Gate<D> {
    pub inner: D,
    shut: Mutex<bool>,
    opened: Condvar,
    waiting: Condvar,
    /// Names of the threads whose writes are held up.
    held: Mutex<Vec<String>>,
}

impl<D: Device> Gate<D> {
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            shut: Mutex::new(false),
            opened: Condvar::new(),
            waiting: Condvar::new(),
            held: Mutex::default(),
        }
    }

    pub fn shut(&self) {
        *self.shut.lock().unwrap() = true;
    }

    pub fn open(&self) {
        *self.shut.lock().unwrap() = false;
        self.opened.notify_all();
    }

    /// Waits until a write is being held up. Returns the name of the thread that writes.
    pub fn wait_for_write(&self) -> String {
        let held = self.held.lock().unwrap();
        let held = self.waiting.wait_while(held, |held| held.is_empty());
        held.unwrap()[0].clone()
    }
}

impl<D: Device> Device for Gate<D> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        let name = std::thread::current().name().unwrap_or("").to_owned();
        self.held.lock().unwrap().push(name.clone());
        self.waiting.notify_all();
        let shut = self.shut.lock().unwrap();
        // A test that fails while it is shut would else never end.
        let minute = std::time::Duration::from_secs(60);
        let waited = self.opened.wait_timeout_while(shut, minute, |shut| *shut);
        if waited.unwrap().1.timed_out() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut held = self.held.lock().unwrap();
        let own = held.iter().position(|it| *it == name).unwrap();
        held.remove(own);
        drop(held);
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

/// A device of any size: what was never written is as in `base`, or zero. Takes memory only for
/// what was written, so that a thousand crashes of one store cost no thousand copies.
pub struct Overlay {
    len: u64,
    base: Arc<Vec<u8>>,
    pages: Mutex<HashMap<u64, [u8; OVERLAY_PAGE]>>,
}

const OVERLAY_PAGE: usize = 4096;

impl Overlay {
    pub fn new(len: u64, base: Arc<Vec<u8>>) -> Self {
        Self {
            len,
            base,
            pages: Mutex::default(),
        }
    }

    /// A device with the same bytes.
    pub fn copy(&self) -> Self {
        let pages = Mutex::new(self.pages.lock().unwrap().clone());
        Self {
            len: self.len,
            base: self.base.clone(),
            pages,
        }
    }

    /// Calls `each` with the parts of pages that the range covers: page, place in the page, place
    /// in the range, length.
    fn walk(offset: u64, length: usize, mut each: impl FnMut(u64, usize, usize, usize)) {
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let within = usize::try_from(at % OVERLAY_PAGE as u64).unwrap();
            let step = (OVERLAY_PAGE - within).min(length - done);
            each(at / OVERLAY_PAGE as u64, within, done, step);
            done += step;
        }
    }

    fn base(&self, page: u64) -> [u8; OVERLAY_PAGE] {
        let mut bytes = [0; OVERLAY_PAGE];
        let at = usize::try_from(page).unwrap() * OVERLAY_PAGE;
        if let Some(base) = self.base.get(at..at + OVERLAY_PAGE) {
            bytes.copy_from_slice(base);
        }
        bytes
    }
}

impl Device for Overlay {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        assert!(offset + buffer.len() as u64 <= self.len);
        let pages = self.pages.lock().unwrap();
        Self::walk(offset, buffer.len(), |page, within, done, step| {
            let to = &mut buffer[done..done + step];
            match pages.get(&page) {
                Some(page) => to.copy_from_slice(&page[within..within + step]),
                None => to.copy_from_slice(&self.base(page)[within..within + step]),
            }
        });
        Ok(())
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        assert!(offset + buffer.len() as u64 <= self.len);
        let mut pages = self.pages.lock().unwrap();
        Self::walk(offset, buffer.len(), |page, within, done, step| {
            let page = pages.entry(page).or_insert_with(|| self.base(page));
            page[within..within + step].copy_from_slice(&buffer[done..done + step]);
        });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends the other threads even when this one panics.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
