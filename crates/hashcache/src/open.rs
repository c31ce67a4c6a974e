//! Opening and making stores: superblocks, memory, threads.

use std::io;
use std::sync::Arc;

use crate::circular_log::{Grain, LogWriter};
use crate::completion::promise;
use crate::config::{Config, Geometry, IndexId, IndexPolicy, PolicyKind};
use crate::device::{Device, FileDevice, FileError};
use crate::error::OpenError;
use crate::flush::{BATCH_BYTES_MAX, BATCH_BYTES_MIN, Queue, Readmission, Scribe};
use crate::format::{BLOCK, Family, SUPERBLOCK_BYTES, Superblock, SuperblockError, VERSION};
use crate::io::Pool;
use crate::key::{SHARDS, Secret};
use crate::memory::{AlignedBuf, Budget, Hot};
use crate::policy::{Basic, Log, Policy, Set, SetMem};
use crate::shard::Shard;
use crate::stripe::{Parts, Stripe};

/// Reads that can be under way at once.
const READ_THREADS: usize = 16;
/// Versions set aside at each opening: no version is given out twice, even after a crash.
pub(crate) const VERSIONS_RESERVED: u64 = 1 << 40;
/// What is left for content, at the least, beside index and batch.
const CONTENT_BYTES_MIN: u64 = 4 << 20;

/// A device with the superblock found on it.
pub(crate) struct Opened {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) superblock: Superblock,
    pub(crate) geometry: Geometry,
}

/// Opens the device of `config` and reads its superblock, without writing anything.
pub(crate) fn device(config: &Config, size: Option<u64>) -> Result<Arc<dyn Device>, OpenError> {
    if let Some(device) = &config.device {
        return Ok(Arc::clone(device));
    }
    match FileDevice::open(&config.path, size) {
        Ok(device) => Ok(Arc::new(device)),
        Err(FileError::Locked) => Err(OpenError::Locked {
            path: config.path.clone(),
        }),
        Err(FileError::Io(source)) => Err(OpenError::Device {
            path: config.path.clone(),
            source,
        }),
    }
}

/// What lies where the superblocks should.
pub(crate) enum Front {
    /// The newer of the valid ones.
    Superblock(Box<Superblock>),
    /// Zeros: a file that was just made.
    Blank,
    /// Nothing of ours, or nothing whole.
    Not(SuperblockError),
}

/// Reads both superblocks.
pub(crate) fn front(device: &dyn Device) -> io::Result<Front> {
    if device.len() < 2 * SUPERBLOCK_BYTES as u64 {
        return Ok(Front::Not(SuperblockError::Foreign));
    }
    let mut bytes = AlignedBuf::zeroed(2 * SUPERBLOCK_BYTES);
    device.read_at(0, &mut bytes)?;
    let decode = |n: usize| {
        let mut copy = [0; SUPERBLOCK_BYTES];
        copy.copy_from_slice(&bytes[n * SUPERBLOCK_BYTES..(n + 1) * SUPERBLOCK_BYTES]);
        Superblock::decode(&copy)
    };
    Ok(match (decode(0), decode(1)) {
        (Ok(a), Ok(b)) => Front::Superblock(Box::new(if a.serial > b.serial { a } else { b })),
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Front::Superblock(Box::new(one)),
        _ if is_blank(device)? => Front::Blank,
        (Err(SuperblockError::Foreign), Err(other)) => Front::Not(other),
        (Err(other), Err(_)) => Front::Not(other),
    })
}

/// Which copies of `superblock` do not verify. One that was never written is no damage: the first
/// is written alone when a store is made.
pub(crate) fn superblocks_damaged(device: &dyn Device, superblock: &Superblock) -> [bool; 2] {
    [0, 1].map(|n: u64| {
        let mut bytes = AlignedBuf::zeroed(SUPERBLOCK_BYTES);
        if device
            .read_at(n * SUPERBLOCK_BYTES as u64, &mut bytes)
            .is_err()
        {
            return true;
        }
        let unwritten = superblock.serial <= 1 && bytes.iter().all(|byte| *byte == 0);
        let mut copy = [0; SUPERBLOCK_BYTES];
        copy.copy_from_slice(&bytes);
        !unwritten && Superblock::decode(&copy).is_err()
    })
}

/// Whether nothing lies where file systems, volume managers and the like leave their marks: some of
/// them leave the very first blocks alone. The whole remove journal will lie in what is looked at.
fn is_blank(device: &dyn Device) -> io::Result<bool> {
    let length = device.len() / BLOCK as u64 * BLOCK as u64;
    let front = length.min(2 << 20);
    let back = (length - front).min(256 << 10);
    for (at, bytes) in [(0, front), (length - back, back)] {
        let mut buffer = AlignedBuf::zeroed(usize::try_from(bytes).unwrap_or(0));
        device.read_at(at, &mut buffer)?;
        if buffer.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Opens what is there; an error when there is nothing of ours.
pub(crate) fn existing(config: &Config) -> Result<Opened, OpenError> {
    let device = device(config, None)?;
    let io_error = |source| OpenError::Device {
        path: config.path.clone(),
        source,
    };
    let path = || config.path.clone();
    let superblock = match front(&*device).map_err(io_error)? {
        Front::Superblock(superblock) => *superblock,
        Front::Blank => return Err(OpenError::Foreign { path: path() }),
        Front::Not(error) => return Err(refused(config, error)),
    };
    let geometry = Geometry::from_superblock(&superblock)
        .ok_or_else(|| OpenError::Damaged { path: path() })?;
    if device.len() < geometry.device_bytes {
        return Err(OpenError::Short {
            path: path(),
            length: device.len(),
            device_bytes: geometry.device_bytes,
        });
    }
    Ok(Opened {
        device,
        superblock,
        geometry,
    })
}

fn refused(config: &Config, error: SuperblockError) -> OpenError {
    match error {
        SuperblockError::Foreign => OpenError::Foreign {
            path: config.path.clone(),
        },
        SuperblockError::Damaged => OpenError::Damaged {
            path: config.path.clone(),
        },
        SuperblockError::Version(found) => OpenError::Version {
            found,
            supported: VERSION,
        },
    }
}

/// Opens what is there, or makes a store where there is nothing yet.
fn open_or_make(config: &Config) -> Result<Opened, OpenError> {
    let io_error = |source| OpenError::Device {
        path: config.path.clone(),
        source,
    };
    // A file that is someone else's must not grow, so it is looked at before it is.
    let found = config.device.is_some() || config.path.exists();
    if found {
        let device = device(config, None)?;
        match front(&*device).map_err(io_error)? {
            Front::Superblock(_) => {
                drop(device);
                let opened = existing(config)?;
                agrees(config, &opened.geometry)?;
                enough(config, &opened.geometry)?;
                if config.device.is_none() {
                    FileDevice::claim(&config.path);
                }
                return Ok(opened);
            }
            Front::Not(error) if !device.is_empty() => return Err(refused(config, error)),
            Front::Blank | Front::Not(_) => {}
        }
    }
    make(config)
}

/// Makes an empty store. Nothing is left behind when it cannot be made.
fn make(config: &Config) -> Result<Opened, OpenError> {
    let found = config.device.is_some() || config.path.exists();
    if let (false, Some(size)) = (found, config.size_bytes) {
        // Refuse before a file is made.
        enough(config, &Geometry::plan(config, size)?)?;
    }
    let made = fill(config);
    if made.is_err() && !found {
        let _ = std::fs::remove_file(&config.path);
    }
    made
}

/// Writes the first superblock to a device that holds nothing yet.
fn fill(config: &Config) -> Result<Opened, OpenError> {
    let io_error = |source| OpenError::Device {
        path: config.path.clone(),
        source,
    };
    let size = |device: &dyn Device| config.size_bytes.unwrap_or(u64::MAX).min(device.len());
    if config.device.is_none() && config.path.exists() {
        // It is not made to grow for a store that cannot be made in it.
        let length = size(&*device(config, None)?);
        enough(
            config,
            &Geometry::plan(config, config.size_bytes.unwrap_or(length))?,
        )?;
    }
    let device = device(config, config.size_bytes)?;
    let geometry = Geometry::plan(config, size(&*device))?;
    enough(config, &geometry)?;
    let refused = |source: getrandom::Error| OpenError::System {
        what: "random numbers",
        source: io::Error::other(source.to_string()),
    };
    let (mut id, mut secret) = ([0; 16], [0; 32]);
    getrandom::fill(&mut id).map_err(refused)?;
    getrandom::fill(&mut secret).map_err(refused)?;
    let mut superblock = Superblock {
        serial: 0,
        store_id: u128::from_le_bytes(id),
        secret,
        device: 0,
        family: geometry.family,
        clean: false,
        unit_bytes: geometry.unit_bytes,
        device_bytes: geometry.device_bytes,
        segment_bytes: geometry.segment_bytes,
        block_bytes: geometry.block_bytes,
        ways: geometry.ways,
        object_bytes: geometry.object_bytes,
        journal_offset: geometry.journal_offset,
        journal_bytes: geometry.journal_bytes,
        checkpoint_offset: geometry.checkpoint_offset,
        checkpoint_bytes: geometry.checkpoint_bytes,
        table_offset: geometry.table_offset,
        sets: geometry.sets,
        log_offset: geometry.log_offset,
        segments: geometry.segments,
        next_version: 1,
        checkpoint_serial: 0,
        checkpoint_parts: 0,
        wall_clock: config.clock.unix_millis(),
        removes_forgotten_below: 0,
        policy: IndexPolicy::of(config).code(),
        policy_since: 0,
    };
    write_superblock(&*device, &mut superblock).map_err(io_error)?;
    Ok(Opened {
        device,
        superblock,
        geometry,
    })
}

fn agrees(config: &Config, geometry: &Geometry) -> Result<(), OpenError> {
    let policy = config.policy;
    if (geometry.family, geometry.ways) != (policy.family(), policy.ways()) {
        let fits =
            |kind: &PolicyKind| (geometry.family, geometry.ways) == (kind.family(), kind.ways());
        let fitting: Vec<_> = PolicyKind::ALL
            .into_iter()
            .filter(fits)
            .map(PolicyKind::name)
            .collect();
        return Err(OpenError::Geometry {
            field: "policy",
            found: fitting.join(" or "),
            asked: policy.name().into(),
        });
    }
    let block = BLOCK as u64;
    if let Some(asked) = config.size_bytes
        && asked / block * block != geometry.device_bytes
    {
        return Err(OpenError::Geometry {
            field: "size",
            found: geometry.device_bytes.to_string(),
            asked: asked.to_string(),
        });
    }
    if !geometry.fits_checkpoint(IndexPolicy::of(config)) {
        // Made before there were groups: its checkpoints have no room for the lengths of runs.
        return Err(OpenError::Geometry {
            field: "grouped",
            found: false.to_string(),
            asked: config.grouped.to_string(),
        });
    }
    Ok(())
}

/// Writes the superblock with the next serial to the older copy's place, and makes it durable.
pub(crate) fn write_superblock(device: &dyn Device, superblock: &mut Superblock) -> io::Result<()> {
    superblock.serial += 1;
    let mut bytes = AlignedBuf::zeroed(SUPERBLOCK_BYTES);
    bytes.copy_from_slice(&superblock.encode());
    device.write_at(superblock.serial % 2 * SUPERBLOCK_BYTES as u64, &bytes)?;
    device.sync()
}

/// The memory a store needs: index, a batch, the footer and its list, a set, a checkpoint part and
/// the state of the log that goes into it, room for content.
pub(crate) fn memory_needed(config: &Config, geometry: &Geometry) -> u64 {
    let buffer = buffer_bytes(config, geometry) as u64;
    geometry
        .index(IndexPolicy::of(config))
        .bytes()
        .saturating_add(buffer + LogWriter::list_bytes_max(geometry))
        .saturating_add(crate::disk_table::set_buffer_bytes(geometry) as u64)
        .saturating_add(2 * crate::format::PART_BYTES as u64 + geometry.segments * 16)
        .saturating_add(match config.readmission {
            // The footer of the segment that is looked through.
            true => footer_bytes_max(geometry) as u64,
            false => 0,
        })
        .saturating_add(CONTENT_BYTES_MIN)
}

/// The buffer of the writing thread: batches, and footers, which are encoded into it too.
fn buffer_bytes(config: &Config, geometry: &Geometry) -> usize {
    batch_bytes(config, geometry).max(footer_bytes_max(geometry))
}

/// Whether the memory allowed is enough.
fn enough(config: &Config, geometry: &Geometry) -> Result<(), OpenError> {
    let (memory_bytes, needed_bytes) = (config.memory_bytes, memory_needed(config, geometry));
    if memory_bytes < needed_bytes {
        return Err(OpenError::Memory {
            memory_bytes,
            needed_bytes,
        });
    }
    Ok(())
}

fn batch_bytes(config: &Config, geometry: &Geometry) -> usize {
    let by_memory = usize::try_from(config.memory_bytes / 16).unwrap_or(usize::MAX);
    let by_segment = geometry.segment_bytes as usize / 2;
    let bytes = by_memory
        .clamp(BATCH_BYTES_MIN, BATCH_BYTES_MAX)
        .min(by_segment);
    bytes / BLOCK * BLOCK
}

/// The parts of an opened store, without its threads: for `check` too.
pub(crate) fn stripe(
    config: &Config,
    opened: &Opened,
    threads: usize,
) -> Result<Arc<Stripe>, OpenError> {
    let system = |what| move |source| OpenError::System { what, source };
    let geometry = &opened.geometry;
    enough(config, geometry)?;
    let fixed = memory_needed(config, geometry) - CONTENT_BYTES_MIN;
    let budget = Budget::new(config.memory_bytes - fixed);
    // A slot and its tail are listed one by one.
    let lines = if config.policy.keeps_lists() { 2 } else { 1 };
    let batch_records = LogWriter::list_entries_max(geometry) / lines;
    let policy = IndexPolicy::of(config);
    let index = geometry.index(policy);
    let rows = index.shard_rows;
    let shard = |n| {
        let policy: Box<dyn Policy> = match policy.kind {
            PolicyKind::Basic => Box::new(Basic::new(geometry.sets)),
            PolicyKind::Set => Box::new(Set::new(geometry.sets)),
            PolicyKind::SetMem => {
                Box::new(SetMem::new(geometry.sets, n as u64 * u64::from(rows), rows))
            }
            PolicyKind::Log => Box::new(Log::new(
                policy.rows,
                policy.grouped,
                rows,
                geometry.capacity(),
            )),
        };
        Shard::new(policy)
    };
    let stripe = Stripe::new(Parts {
        device: Arc::clone(&opened.device),
        device_id: opened.superblock.device,
        geometry: geometry.clone(),
        index,
        index_id: IndexId {
            policy,
            since: opened.superblock.policy_since,
        },
        secret: Secret::from_bytes(opened.superblock.secret),
        hot: Hot::new(&budget).map_err(system("memory for hot objects"))?,
        budget,
        queue: Queue::new(
            batch_bytes(config, geometry),
            usize::try_from(batch_records).unwrap_or(usize::MAX),
            config.batch_delay,
            Grain::new(geometry),
            policy.grouped,
        ),
        clock: config.clock.clone(),
        pool: Pool::new(threads).map_err(system("threads"))?,
        next_version: opened.superblock.next_version,
        shards: (0..SHARDS).map(shard).collect(),
    });
    Ok(Arc::new(stripe))
}

/// Opens or makes the store of `config` and starts its threads.
pub(crate) fn start(
    config: &Config,
) -> Result<(Arc<Stripe>, std::thread::JoinHandle<()>), OpenError> {
    let mut opened = open_or_make(config)?;
    let policy = IndexPolicy::of(config).code();
    if opened.superblock.policy != policy {
        // What checkpoints say is not continued by the lists of another policy, and never again.
        opened.superblock.policy = policy;
        opened.superblock.policy_since = opened.superblock.next_version;
    }
    let stripe = stripe(config, &opened, READ_THREADS)?;
    let was_clean = opened.superblock.clean;
    opened.superblock.clean = false;
    let next_version = opened
        .superblock
        .next_version
        .saturating_add(VERSIONS_RESERVED);
    opened.superblock.next_version = next_version;
    // Both copies: were the only one that says this lost, an opening after a crash would go by one
    // that says "closed in order" and gives the versions of this run out again.
    for _ in 0..2 {
        write_superblock(&*opened.device, &mut opened.superblock).map_err(|source| {
            OpenError::Device {
                path: config.path.clone(),
                source,
            }
        })?;
    }
    let mut scribe = Scribe::new(
        Arc::clone(&stripe),
        opened.superblock,
        AlignedBuf::zeroed(buffer_bytes(config, &opened.geometry)),
        config.sync_interval,
        was_clean,
    );
    let readmits = config.readmission && opened.geometry.family == Family::Log;
    scribe.readmission = readmits.then(Readmission::default);
    let (promise, recovered) = promise::<bool>();
    let thread = std::thread::Builder::new()
        .name("hc-write".into())
        .spawn(move || scribe.run(promise))
        .map_err(|source| OpenError::System {
            what: "a thread",
            source,
        })?;
    if recovered.wait_for(config.open_patience).is_none() {
        tracing::info!("going on before all of the index is known");
    }
    Ok((stripe, thread))
}

fn footer_bytes_max(geometry: &Geometry) -> usize {
    let lines = usize::try_from(LogWriter::list_bytes_max(geometry)).unwrap_or(usize::MAX);
    crate::format::round_up(lines + crate::format::FOOTER_TAIL, BLOCK)
}
