//! A single device of a store: reads its superblocks, checks them against the settings, and builds
//! the stripe.
//!
//! Called by `store`, which builds a store from devices, and by `check` and `measure`, which only
//! read.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::{Config, Io, PolicyKind};
use crate::device::{Device, FileDevice, FileError, Ring, SpaceRequest};
use crate::disk::circular_log::{LogAlignment, LogWriter};
use crate::disk::{DeviceHealth, Index, Medium, MediumParts};
use crate::error::{OpenError, Resize};
use crate::format::{Family, IO_BLOCK, SUPERBLOCK_BYTES, Superblock, SuperblockError, VERSION};
use crate::geometry::{Geometry, IndexId, IndexPolicy, block_bytes};
use crate::io::Pool;
use crate::key::{SHARDS, Secret};
use crate::members::Members;
use crate::membership::{DEVICES_MAX, Member};
use crate::memory::{AlignedBuf, Budget, Hot, Reservation};
use crate::policy::{Basic, Log, LogLru, Set, SetMem, SetMemLru, ShardPolicy};
use crate::shard::Shard;
use crate::shared::Shared;
use crate::store::sizing;
use crate::stripe::{Parts, Stripe};
use crate::write_queue::{Queue, names_max};

impl Config {
    /// The places of the store, one for each device.
    pub(crate) fn device_paths(&self) -> Vec<DevicePath> {
        if self.devices.is_empty() {
            let device_path = |path: &PathBuf| DevicePath::of_path(path.clone());
            return self.paths.iter().map(device_path).collect();
        }
        let device_path = |(n, device): (usize, &Arc<dyn Device>)| DevicePath {
            path: format!("device {n}").into(),
            device: Some(Arc::clone(device)),
            access: Access::Exclusive,
        };
        self.devices.iter().enumerate().map(device_path).collect()
    }
}

/// A file or device that holds a part of the store.
#[derive(Clone)]
pub(crate) struct DevicePath {
    /// The path; for a device that the caller passed, a name for it.
    pub(crate) path: PathBuf,
    pub(crate) device: Option<Arc<dyn Device>>,
    pub(crate) access: Access,
}

/// Lock on a file or block device while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Locked: no other process may have it open.
    Exclusive,
    /// Not locked: a process that serves from it continues, and a process that starts is not
    /// refused.
    Shared,
}

impl DevicePath {
    /// The place at `path`, to be locked.
    pub(crate) fn of_path(path: PathBuf) -> Self {
        Self {
            path,
            device: None,
            access: Access::Exclusive,
        }
    }

    /// Returns true if a file or device exists there.
    pub(crate) fn exists(&self) -> bool {
        self.device.is_some() || self.path.exists()
    }

    /// Returns true if the size is fixed: a device from the caller, or a block device.
    fn has_its_size(&self) -> bool {
        self.device.is_some() || FileDevice::is_block_device(&self.path)
    }
}

/// A device with a superblock, which may not be written yet.
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) superblock: Superblock,
    pub(crate) geometry: Geometry,
    /// The layout in the superblock, if the device is about to grow.
    pub(crate) pre_growth: Option<Geometry>,
    /// True if the store was closed in order; set when versions are reserved.
    pub(crate) was_clean: bool,
}

impl Opened {
    /// Returns true if the superblock was never written.
    pub(crate) fn is_new(&self) -> bool {
        self.superblock.serial == 0
    }
}

/// Opens the device at `device_path`. Writes nothing, but allocates the space for `size`.
pub(crate) fn device(
    device_path: &DevicePath,
    size: Option<u64>,
) -> Result<Arc<dyn Device>, OpenError> {
    device_or_new(device_path, size).map(|(device, _)| device)
}

/// As [`device()`], and returns true if this call created the file: another process may have been
/// faster.
pub(crate) fn device_or_new(
    device_path: &DevicePath,
    size: Option<u64>,
) -> Result<(Arc<dyn Device>, bool), OpenError> {
    if let Some(device) = &device_path.device {
        return Ok((Arc::clone(device), false));
    }
    let opened = match device_path.access {
        Access::Exclusive => FileDevice::open(&device_path.path, size),
        Access::Shared => FileDevice::open_shared(&device_path.path),
    };
    match opened {
        Ok(device) => {
            let is_new = device.is_new();
            Ok((Arc::new(device), is_new))
        }
        Err(FileError::Locked) => Err(OpenError::Locked {
            path: device_path.path.clone(),
        }),
        Err(FileError::Io(source)) => Err(refused_by_device(device_path)(source)),
    }
}

pub(crate) fn refused_by_device(
    device_path: &DevicePath,
) -> impl Fn(io::Error) -> OpenError + use<> {
    let path = device_path.path.clone();
    move |source| OpenError::Device {
        path: path.clone(),
        source,
    }
}

/// Result of a read of the superblocks.
pub(crate) enum FoundSuperblock {
    /// The newer of the valid copies.
    Superblock(Box<Superblock>),
    /// Zeros: a file that was just created.
    Blank,
    /// Foreign data, or no valid copy.
    Not(SuperblockError),
}

/// Reads both superblocks.
pub(crate) fn front(device: &dyn Device) -> io::Result<FoundSuperblock> {
    if device.len() < 2 * SUPERBLOCK_BYTES as u64 {
        return Ok(FoundSuperblock::Not(SuperblockError::Foreign));
    }
    let mut bytes = AlignedBuf::zeroed(2 * SUPERBLOCK_BYTES);
    // One copy is enough, even if the other cannot be read.
    let mut readable = [true; 2];
    if let Err(error) = device.read_at(0, &mut bytes) {
        for (n, copy) in bytes.chunks_mut(SUPERBLOCK_BYTES).enumerate() {
            readable[n] = device.read_at((n * SUPERBLOCK_BYTES) as u64, copy).is_ok();
        }
        if readable == [false; 2] {
            return Err(error);
        }
    }
    let decode = |n: usize| {
        if !readable[n] {
            return Err(SuperblockError::Damaged);
        }
        let mut copy = [0; SUPERBLOCK_BYTES];
        copy.copy_from_slice(&bytes[n * SUPERBLOCK_BYTES..(n + 1) * SUPERBLOCK_BYTES]);
        Superblock::decode(&copy)
    };
    Ok(match (decode(0), decode(1)) {
        (Ok(a), Ok(b)) => {
            FoundSuperblock::Superblock(Box::new(if a.serial > b.serial { a } else { b }))
        }
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => FoundSuperblock::Superblock(Box::new(one)),
        _ if is_blank(device)? => FoundSuperblock::Blank,
        (Err(SuperblockError::Foreign), Err(other)) => FoundSuperblock::Not(other),
        (Err(other), Err(_)) => FoundSuperblock::Not(other),
    })
}

/// Returns for each superblock copy whether it is damaged, so that it does not verify. A copy that
/// was never written is no damage: when a store is created, only the first copy is written.
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

/// Returns true if the regions are zero in which file systems, volume managers and similar software
/// put their signatures: some of them leave the very first blocks empty. The whole remove journal
/// will be inside the region that is checked.
fn is_blank(device: &dyn Device) -> io::Result<bool> {
    let length = device.len() / IO_BLOCK as u64 * IO_BLOCK as u64;
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

/// Opens an existing store; an error if there is no store of ours.
pub(crate) fn existing(device_path: &DevicePath) -> Result<Opened, OpenError> {
    let device = device(device_path, None)?;
    let path = || device_path.path.clone();
    let superblock = match front(&*device).map_err(refused_by_device(device_path))? {
        FoundSuperblock::Superblock(superblock) => *superblock,
        FoundSuperblock::Blank => return Err(OpenError::Foreign { path: path() }),
        FoundSuperblock::Not(error) => return Err(refused(device_path, error)),
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
    let least = device.alignment();
    if geometry.family == Family::Table && (geometry.block_bytes as usize) < least {
        return Err(OpenError::Sectors {
            path: path(),
            block_bytes: geometry.block_bytes,
            sector_bytes: least,
        });
    }
    Ok(Opened {
        path: path(),
        device,
        superblock,
        geometry,
        pre_growth: None,
        was_clean: false,
    })
}

fn refused(device_path: &DevicePath, error: SuperblockError) -> OpenError {
    let path = device_path.path.clone();
    match error {
        SuperblockError::Foreign => OpenError::Foreign { path },
        SuperblockError::Damaged => OpenError::Damaged { path },
        SuperblockError::Version(found) => OpenError::Version {
            path,
            found,
            supported: VERSION,
        },
    }
}

/// Returns the store, or the part of a store, at `device_path`; `None` if a store can be created
/// there.
pub(crate) fn look(config: &Config, device_path: &DevicePath) -> Result<Option<Opened>, OpenError> {
    // A file of another program must not grow, so it is checked first.
    if !device_path.exists() {
        return Ok(None);
    }
    let device = device(device_path, None)?;
    match front(&*device).map_err(refused_by_device(device_path))? {
        FoundSuperblock::Superblock(_) => {
            drop(device);
            let mut opened = existing(device_path)?;
            agrees(config, device_path, &opened)?;
            if let Some(grown) = grown(config, device_path, &opened)? {
                opened.pre_growth = Some(std::mem::replace(&mut opened.geometry, grown));
            }
            Ok(Some(opened))
        }
        FoundSuperblock::Not(error) if !device.is_empty() => Err(refused(device_path, error)),
        FoundSuperblock::Blank | FoundSuperblock::Not(_) => Ok(None),
    }
}

/// Allocates all space of an existing file, see [`FileDevice::claim`].
pub(crate) fn claim(device_path: &DevicePath) {
    if device_path.device.is_none() {
        FileDevice::claim(&device_path.path);
    }
}

/// The layout of the device that will be created at `device_path`. Nothing is created yet.
pub(crate) fn planned(config: &Config, device_path: &DevicePath) -> Result<Geometry, OpenError> {
    let length = match config.size_bytes {
        Some(_) if !device_path.has_its_size() => 0,
        _ => device(device_path, None)?.len(),
    };
    let size = match config.size_bytes {
        Some(size) if device_path.has_its_size() => size.min(length),
        Some(size) => size,
        None => length,
    };
    Geometry::plan(config, size)
}

fn agrees(config: &Config, device_path: &DevicePath, opened: &Opened) -> Result<(), OpenError> {
    let geometry = &opened.geometry;
    let path = || device_path.path.clone();
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
            path: path(),
            field: "policy",
            found: fitting.join(" or "),
            asked: policy.name().into(),
        });
    }
    if let Some(asked) = config.block_bytes
        && geometry.family == Family::Table
    {
        // The size with which the slots would be created here.
        let least = u32::try_from(opened.device.alignment()).unwrap_or(u32::MAX);
        let asked = block_bytes(asked.max(least));
        if asked != geometry.block_bytes {
            return Err(OpenError::Geometry {
                path: path(),
                field: "blocks of",
                found: geometry.block_bytes.to_string(),
                asked: asked.to_string(),
            });
        }
    }
    Ok(())
}

/// The new layout for `opened`, if the configured size is another size.
fn grown(
    config: &Config,
    device_path: &DevicePath,
    opened: &Opened,
) -> Result<Option<Geometry>, OpenError> {
    let Some(asked) = config.size_bytes else {
        return Ok(None);
    };
    let possible = if device_path.has_its_size() {
        asked.min(opened.device.len())
    } else {
        asked
    };
    let (size_bytes, asked_bytes) = (
        opened.geometry.device_bytes,
        possible / IO_BLOCK as u64 * IO_BLOCK as u64,
    );
    let grown = match asked_bytes.cmp(&size_bytes) {
        std::cmp::Ordering::Equal => return Ok(None),
        std::cmp::Ordering::Less => Err(Resize::Smaller),
        std::cmp::Ordering::Greater => opened.geometry.grown(asked_bytes),
    };
    match grown {
        Ok(grown) => Ok(Some(grown)),
        // Devices of a store may differ in size, but only a single size is configured.
        Err(_) if config.device_paths().len() > 1 => Ok(None),
        Err(why) => Err(OpenError::Size {
            path: device_path.path.clone(),
            size_bytes,
            asked_bytes,
            why,
        }),
    }
}

/// Extends the file of `opened` by the space that it grows by. Existing data is not touched.
pub(crate) fn make_space(device_path: &DevicePath, opened: Opened) -> Result<Opened, OpenError> {
    if opened.pre_growth.is_none() || device_path.device.is_some() {
        return Ok(opened);
    }
    let Opened {
        superblock,
        geometry,
        pre_growth,
        device: old,
        ..
    } = opened;
    drop(old);
    let device = device(device_path, Some(geometry.device_bytes))?;
    let path = || device_path.path.clone();
    if device.len() < geometry.device_bytes {
        return Err(OpenError::Short {
            path: path(),
            length: device.len(),
            device_bytes: geometry.device_bytes,
        });
    }
    // For a moment the file was not locked, so check that it is unchanged.
    match front(&*device).map_err(refused_by_device(device_path))? {
        FoundSuperblock::Superblock(now) if *now == superblock => Ok(Opened {
            path: path(),
            device,
            superblock,
            geometry,
            pre_growth,
            was_clean: false,
        }),
        _ => Err(OpenError::Locked { path: path() }),
    }
}

/// The errors that the system would give to a store with `config` at `paths`, where `found` is
/// stored: for space, or for io_uring. Nothing is created.
pub(crate) fn refused_by_system(
    config: &Config,
    paths: &[DevicePath],
    found: &[Option<Opened>],
) -> Vec<OpenError> {
    let files = paths.iter().zip(found).filter(|it| it.0.device.is_none());
    let requests: Vec<SpaceRequest> = files
        .map(|(device_path, found)| SpaceRequest {
            path: device_path.path.clone(),
            bytes: match found {
                Some(opened) if opened.pre_growth.is_some() => opened.geometry.device_bytes,
                // The file keeps its current size: holes in it are allocated if there is space, and
                // used as they are if there is not.
                Some(_) => 0,
                None if device_path.has_its_size() => 0,
                None => config.size_bytes.unwrap_or(0),
            },
        })
        .collect();
    let mut errors: Vec<OpenError> = crate::device::space_refusals(&requests)
        .into_iter()
        .map(|(path, source)| OpenError::Device { path, source })
        .collect();
    if config.io == Io::Uring {
        // Any file will do: the kernel either allows us a ring or not.
        let ring = File::open("/proc/self/exe").and_then(|file| Ring::start(&file));
        match ring {
            Ok(ring) => ring.close(),
            Err(source) => errors.push(OpenError::System {
                what: "io_uring",
                source,
            }),
        }
    }
    errors
}

/// A device with the layout before it grew, as the source for recovery.
pub(crate) struct PreGrowth {
    pub(crate) stripe: Arc<Stripe>,
    pub(crate) _reservation: Option<Reservation>,
}

/// Builds the stripe from which a grown device is recovered.
///
/// The new stripe shares the queue with `grown`, the stripe that serves: if that queue is closed,
/// recovery stops.
pub(crate) fn pre_growth(
    config: &Config,
    opened: &Opened,
    grown: &Stripe,
    shared: &Arc<Shared>,
) -> Result<Option<PreGrowth>, OpenError> {
    let Some(geometry) = &opened.pre_growth else {
        return Ok(None);
    };
    let before = Opened {
        path: opened.path.clone(),
        device: Arc::clone(&opened.device),
        superblock: opened.superblock.clone(),
        geometry: geometry.clone(),
        pre_growth: None,
        was_clean: opened.was_clean,
    };
    Ok(Some(PreGrowth {
        stripe: stripe_with(config, &before, shared, 0, Arc::clone(&grown.queue))?,
        _reservation: shared
            .budget
            .reserve_free(sizing::pre_growth_bytes(config, geometry)),
    }))
}

/// Builds the state that the stripes on `opened` share. All devices take part, as the history on
/// each device records.
pub(crate) fn shared(
    config: &Config,
    opened: &[Opened],
    next_version: u64,
) -> Result<Shared, OpenError> {
    let geometries = || opened.iter().map(|it| &it.geometry);
    sizing::enough(
        config,
        geometries(),
        opened.iter().filter_map(|it| it.pre_growth.as_ref()),
    )?;
    let fixed =
        sizing::memory_needed(config, geometries()) - sizing::content_bytes_min(geometries());
    let budget = Budget::new(config.memory_bytes - fixed);
    let hot = Hot::new(&budget, config.hot_bytes_max).map_err(|source| OpenError::System {
        what: "memory for hot objects",
        source,
    })?;
    let [first, ..] = opened else {
        return Err(OpenError::Devices {
            count: 0,
            most: DEVICES_MAX,
        });
    };
    let history = first.superblock.history.clone();
    let members = Members::new(opened.iter().map(member).collect(), history, next_version);
    for superblock in opened.iter().map(|it| &it.superblock) {
        members.superblock_is_durable(superblock.device, superblock.serial);
        for (device, serial) in &superblock.heard {
            members.superblock_is_durable(*device, *serial);
        }
    }
    let secret = Secret::from_bytes(first.superblock.secret).placed_by(config.placement);
    let clock = config.clock.clone();
    Ok(Shared::new(secret, budget, hot, members, clock))
}

/// A device as other devices record it.
pub(crate) fn member(opened: &Opened) -> Member {
    Member {
        id: opened.superblock.device,
        weight: opened.geometry.device_bytes,
    }
}

/// Builds the stripe of an opened device, without the writer thread. Also used by `check`.
pub(crate) fn stripe(
    config: &Config,
    opened: &Opened,
    shared: &Arc<Shared>,
    threads: usize,
) -> Result<Arc<Stripe>, OpenError> {
    let geometry = &opened.geometry;
    // A slot and the tail are listed separately.
    let lines = if config.policy.keeps_lists() { 2 } else { 1 };
    let batch_records = LogWriter::list_entries_max(geometry) / lines;
    let queue = Queue::new(
        sizing::batch_bytes(config, geometry),
        usize::try_from(batch_records).unwrap_or(usize::MAX),
        names_max(shared.budget.limit(), config.device_paths().len() as u64),
        (!config.clock.is_manual()).then_some(config.batch_delay),
        LogAlignment::new(geometry),
        IndexPolicy::from_config(config).grouped,
    );
    stripe_with(config, opened, shared, threads, Arc::new(queue))
}

fn stripe_with(
    config: &Config,
    opened: &Opened,
    shared: &Arc<Shared>,
    threads: usize,
    queue: Arc<Queue>,
) -> Result<Arc<Stripe>, OpenError> {
    let system = |what| move |source| OpenError::System { what, source };
    let geometry = &opened.geometry;
    let policy = IndexPolicy::from_config(config);
    let index = geometry.index(policy);
    let rows = index.shard_rows;
    let shard = |n| {
        use ShardPolicy::{Log as OfLog, Table};
        let sets = geometry.sets;
        let policy = match policy.kind {
            PolicyKind::Basic => Table(Box::new(Basic::new(sets))),
            PolicyKind::Set => Table(Box::new(Set::new(sets))),
            PolicyKind::SetMem => {
                let first = n as u64 * u64::from(rows);
                Table(Box::new(SetMem::new(sets, first, rows)))
            }
            PolicyKind::SetMemLru => {
                let here = sets / SHARDS as u64;
                let held = geometry.held_sets(policy);
                Table(Box::new(SetMemLru::new(sets, n as u64 * here, here, held)))
            }
            PolicyKind::LogLru => OfLog(Box::new(LogLru::new(
                policy.grouped,
                rows,
                geometry.capacity(),
                policy.positions_held(),
                geometry.unsaved_max(policy),
            ))),
            PolicyKind::Log => OfLog(Box::new(Log::new(
                policy.log_form(index.windows),
                rows,
                index.windows,
            ))),
        };
        Shard::new(policy)
    };
    let wakes = Arc::clone(&queue);
    let health = DeviceHealth::recovering(opened.path.clone(), move || wakes.wake());
    let health = Arc::new(health);
    let id = IndexId {
        policy,
        since: opened.superblock.policy_since,
    };
    let shards = (0..SHARDS).map(shard).collect();
    let stripe = Stripe::new(Parts {
        medium: Medium::new(MediumParts {
            device: Arc::clone(&opened.device),
            device_id: opened.superblock.device,
            geometry: geometry.clone(),
            secret: shared.secret.clone(),
            clock: shared.clock.clone(),
            budget: shared.budget.clone(),
            health: Arc::clone(&health),
            devices: shared.members.count(),
        }),
        index: Index::new(index, id, shards, health),
        shared: Arc::clone(shared),
        queue,
        pool: Pool::new(threads).map_err(system("threads"))?,
        ring: ring(config, opened, threads)?,
    });
    Ok(Arc::new(stripe))
}

/// Starts the ring that reads `opened`, if it is configured and the kernel allows it, and logs the
/// choice. `None` for a check, which has no threads, and for a device that is not a file.
fn ring(config: &Config, opened: &Opened, threads: usize) -> Result<Option<Ring>, OpenError> {
    let Some(file) = opened.device.file().filter(|_| threads > 0) else {
        return Ok(None);
    };
    let device = opened.path.display();
    let started = match config.io {
        Io::Threads => {
            tracing::info!(%device, "reading by threads, as configured");
            return Ok(None);
        }
        Io::Auto | Io::Uring => Ring::start(file),
    };
    match started {
        Ok(ring) => {
            tracing::debug!(%device, "reading by io_uring");
            Ok(Some(ring))
        }
        Err(source) if config.io == Io::Uring => Err(OpenError::System {
            what: "io_uring",
            source,
        }),
        Err(error) => {
            tracing::info!(%device, %error, "reading by threads: the kernel refused io_uring");
            Ok(None)
        }
    }
}
