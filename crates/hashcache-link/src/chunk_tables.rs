//! Tables for the chunks that the other box has: a table for each parent and each child.
//!
//! `connect` and `server/forward_listener` in the proxy take a table for each stream; `server` in
//! the proxy reads the tables from a file at the start and writes them at the end. A lost or wrong
//! table only costs bytes on the link, so the file has no checksum.
//!
//! Invariants: the memory for a table is reserved as long as the table exists. A table is used with
//! a single key only, because a parent with another key has other names.
//! Cost: 1/32 of the budget for each pair, 64 MiB at most, and 1/8 for all pairs; 1 MiB remembers
//! 100 MiB.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache::{Cache, Reservation};
use hashcache_base::state_file::{Link, open_regular, replace_with};
use hashcache_wan::chunk::{Key, Known};
use tracing::warn;

use super::pin::Pin;

/// The tables for all pairs, by the other box's pin.
#[derive(Debug, Default)]
pub struct ChunkTables {
    pairs: Mutex<HashMap<Pin, Pair>>,
    path: Option<PathBuf>,
    /// How many entries were made in the tables before the last write. Only one writer at a time.
    written: Mutex<u64>,
}

#[derive(Debug)]
struct Pair {
    key: Key,
    known: Arc<Known>,
    /// Memory for the table, bytes.
    bytes: usize,
    _memory: Reservation,
}

impl ChunkTables {
    /// Loads the tables for `pins` from the file at `path`. A table that cannot be read, or has no
    /// room in the budget, starts empty.
    pub fn load(path: Option<PathBuf>, pins: &[Pin], cache: &Cache) -> Self {
        let mut pairs = HashMap::new();
        if let Some(path) = &path {
            // A missing file is the usual case, and a damaged file only costs bytes on the link.
            let _ = read(path, pins, cache, &mut pairs);
        }
        Self {
            pairs: Mutex::new(pairs),
            path,
            written: Mutex::default(),
        }
    }

    fn pairs(&self) -> MutexGuard<'_, HashMap<Pin, Pair>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table for the box `pin` under `key`. Without memory, the table remembers nothing.
    pub fn of(&self, pin: Pin, key: Key, cache: &Cache) -> Arc<Known> {
        let mut pairs = self.pairs();
        if let Some(pair) = pairs.get_mut(&pin) {
            if pair.key != key {
                // Streams with the old key keep the old table.
                pair.known = Arc::new(Known::new(pair.bytes));
                pair.key = key;
            }
            return Arc::clone(&pair.known);
        }
        let Some((bytes, memory)) = room(cache, &pairs) else {
            return Arc::new(Known::new(0));
        };
        let known = Arc::new(Known::new(bytes));
        let pair = Pair {
            key,
            known: Arc::clone(&known),
            bytes,
            _memory: memory,
        };
        pairs.insert(pin, pair);
        known
    }

    /// Drops the tables for boxes that are not in `pins`.
    pub fn keep_only(&self, pins: &[Pin]) {
        self.pairs().retain(|pin, _| pins.contains(pin));
    }

    /// Writes the tables periodically, so that a power cut does not lose all entries.
    pub async fn keep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(KEEP_EVERY).await;
            let tables = Arc::clone(&self);
            // A join error would be a panic, which the thread has already reported.
            let written = tokio::task::spawn_blocking(move || tables.persist()).await;
            if let Ok(Err(error)) = written {
                warn!(%error, "tables of chunks not saved");
            }
        }
    }

    /// Writes the tables for the next start, if there are new entries since the last write.
    ///
    /// # Errors
    /// File errors.
    pub fn persist(&self) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        // The list is copied, so that new streams do not wait for the disk.
        let pairs: Vec<_> = self
            .pairs()
            .iter()
            .map(|(pin, pair)| (*pin, pair.key, Arc::clone(&pair.known)))
            .collect();
        let entered = pairs.iter().map(|(.., known)| known.entered()).sum();
        match &self.path {
            Some(path) if entered != *written => replace_with(path, |file| {
                let mut out = BufWriter::new(file);
                out.write_all(MAGIC)?;
                for (pin, key, known) in &pairs {
                    out.write_all(&pin.bytes())?;
                    out.write_all(&key.0)?;
                    known.write_to(&mut out)?;
                }
                out.flush()
            })?,
            Some(_) | None => {}
        }
        *written = entered;
        Ok(())
    }
}

/// Reserves memory for a new table: limited for each pair and for all pairs together.
fn room(cache: &Cache, pairs: &HashMap<Pin, Pair>) -> Option<(usize, Reservation)> {
    let budget = cache.stats().memory_limit_bytes;
    let taken: u64 = pairs.values().map(|pair| pair.bytes as u64).sum();
    let left = (budget / ALL_PART).saturating_sub(taken);
    let mut bytes = (budget / BUDGET_PART).clamp(TABLE_BYTES_MIN, TABLE_BYTES_MAX);
    while bytes >= TABLE_BYTES_MIN {
        if bytes <= left
            && let Some(memory) = cache.reserve_spare(bytes)
        {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            return Some((bytes, memory));
        }
        bytes /= 2;
    }
    None
}

fn read(
    path: &Path,
    pins: &[Pin],
    cache: &Cache,
    pairs: &mut HashMap<Pin, Pair>,
) -> io::Result<()> {
    let file: File = open_regular(path, Link::Refused)?;
    let mut input = BufReader::new(file);
    let mut magic = [0; MAGIC.len()];
    input.read_exact(&mut magic)?;
    if &magic != MAGIC {
        return Ok(());
    }
    for _ in 0..PAIRS_MAX {
        let (mut pin, mut key) = ([0; 32], [0; 16]);
        input.read_exact(&mut pin)?;
        input.read_exact(&mut key)?;
        let pin = Pin::from_bytes(pin);
        if !pins.contains(&pin) || pairs.contains_key(&pin) {
            // The table is read to the end and dropped.
            Known::read_from(&mut input, 0)?;
            continue;
        }
        let Some((bytes, memory)) = room(cache, pairs) else {
            return Ok(());
        };
        let pair = Pair {
            key: Key(key),
            known: Arc::new(Known::read_from(&mut input, bytes)?),
            bytes,
            _memory: memory,
        };
        pairs.insert(pin, pair);
    }
    Ok(())
}

const MAGIC: &[u8; 8] = b"hcchunk1";
/// A pair's table gets this part of the budget.
const BUDGET_PART: u64 = 32;
/// All tables together get this part.
const ALL_PART: u64 = 8;
const TABLE_BYTES_MAX: u64 = 64 << 20;
const TABLE_BYTES_MIN: u64 = 128 << 10;
/// Writing all tables takes less than a second on most disks.
const KEEP_EVERY: Duration = Duration::from_secs(10 * 60);
/// How many pairs are read from a file.
const PAIRS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use hashcache::Config;
    use hashcache::device::MemoryDevice;
    use hashcache_wan::chunk::{Stream, Windows};

    use super::*;

    const KEY: Key = Key([1; 16]);

    fn cache() -> Cache {
        let config = Config {
            memory_bytes: 16 << 20,
            ..Config::on_device(Arc::new(MemoryDevice::new(16 << 20)))
        };
        Cache::open(config).unwrap()
    }

    fn sent(known: &Known) -> usize {
        let content: Vec<u8> = (0..50_000_u32)
            .flat_map(|n| (n * n).to_le_bytes())
            .collect();
        let mut stream = Stream::new(KEY, Windows::both(u64::MAX));
        let mut out = Vec::new();
        stream.push(&content, known, &mut out).unwrap();
        stream.finish(known, &mut out).unwrap();
        out.len()
    }

    #[test]
    fn a_table_outlives_a_restart_unless_the_key_is_another() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("c.chunks");
        let cache = cache();
        let pin = Pin::from_bytes([7; 32]);
        let tables = ChunkTables::load(Some(path.clone()), &[pin], &cache);
        tables.persist().unwrap();
        assert!(!path.exists(), "no pair");
        let first = sent(&tables.of(pin, KEY, &cache));
        tables.persist().unwrap();
        let again = ChunkTables::load(Some(path.clone()), &[pin], &cache);
        let second = sent(&again.of(pin, KEY, &cache));
        assert!(second * 20 < first, "{second} of {first} bytes");
        again.of(pin, Key([2; 16]), &cache);
        assert!(sent(&again.of(pin, KEY, &cache)) * 2 > first);
        again.keep_only(&[]);
        assert!(again.pairs().is_empty());
        // A file that was cut: what is left of it is used or not, and nothing fails.
        let whole = std::fs::read(&path).unwrap();
        for length in [0, 3, 8, 40, 60, 70, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).unwrap();
            let cut = ChunkTables::load(Some(path.clone()), &[pin], &cache);
            sent(&cut.of(pin, KEY, &cache));
        }
    }

    #[test]
    fn a_table_takes_less_where_memory_is_short() {
        let cache = cache();
        let free = std::iter::from_fn(|| cache.reserve_bulk(64 << 10));
        let mut held: Vec<_> = free.collect();
        let tables = ChunkTables::default();
        let known = tables.of(Pin::from_bytes([1; 32]), KEY, &cache);
        assert!(known.memory_bytes() < 1000 && tables.pairs().is_empty());
        held.truncate(held.len() / 2);
        let known = tables.of(Pin::from_bytes([1; 32]), KEY, &cache);
        assert!((50_000..=512 << 10).contains(&known.memory_bytes()));
    }
}
