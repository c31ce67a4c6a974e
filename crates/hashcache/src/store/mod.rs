//! Creates or opens a store on one or more devices.
//!
//! Steps: checks the existing devices, creates the missing devices, agrees on the membership
//! history, reserves versions on all devices, then starts the threads.
//!
//! Called by `cache`; calls `device` for each device.
//!
//! Invariant: nothing on a device changes before all devices are known to fit. No version is drawn
//! before every device has on disk which devices are members and up to where versions are reserved.
//! A device that joins writes this before the other devices do: if it fails to join, nothing has
//! changed.

mod check;
pub(crate) mod device;
mod recover;
mod sizing;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

pub use check::{CheckReport, Inspection, MemberDevice, check, inspect};
use recover::recover;

use crate::completion::{Outcome, promise};
use crate::config::Config;
use crate::disk::write_superblock;
use crate::error::OpenError;
use crate::format::{COUNT_MAX, Family, Superblock, VERSION};
use crate::geometry::{BLOCK_BYTES, Geometry, IndexPolicy};
use crate::members::{Members, VERSIONS_RESERVED};
use crate::membership::{Chosen, DEVICES_MAX, History, Member};
use crate::memory::{AlignedBuf, MemoryPressure, Process, ProcessMemory};
use crate::placement::Placement;
use crate::shared::Shared;
use crate::stripe::Stripe;
use crate::writer::{BackgroundWrite, DeviceWriter, Readmission};
use device::{Access, DevicePath, Opened, PreGrowth, member, superblocks_damaged};

/// Reads that can be in progress on a device at the same time.
const READ_THREADS: usize = 16;

/// A writer thread, with the result of [`DeviceWriter::run`].
pub(crate) type WriterThread = JoinHandle<Option<Superblock>>;

/// An open store: the shared state, the stripes, their writer threads, and the memory thread.
pub(crate) struct OpenStore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) stripes: Vec<Arc<Stripe>>,
    pub(crate) writers: Vec<WriterThread>,
    pub(crate) memory_pressure: MemoryPressure,
}

/// Opens or creates the store for `config` and starts the threads.
pub(crate) fn start(config: &Config) -> Result<OpenStore, OpenError> {
    let mut made = CreatedFiles::default();
    let mut opened = devices(config, &mut made)?;
    let next_version = agree(&mut opened, config.placement)?;
    let shared = Arc::new(device::shared(config, &opened, next_version)?);
    for opened in &mut opened {
        set_aside(config, opened, next_version);
    }
    let stripes: Vec<_> = opened
        .iter()
        .map(|it| device::stripe(config, it, &shared, READ_THREADS))
        .collect::<Result<_, _>>()?;
    let pre_growths = opened
        .iter()
        .zip(&stripes)
        .map(|(it, stripe)| device::pre_growth(config, it, stripe, &shared))
        .collect::<Result<Vec<_>, _>>()?;
    shared
        .members
        .join(stripes.iter().map(|it| it.peer()).collect());
    let process = if config.whole_process {
        let geometries = opened.iter().map(|it| &it.geometry);
        Process::IsCache(ProcessMemory {
            fixed_bytes: config.memory_bytes.saturating_sub(shared.budget.limit()),
            content_bytes_min: sizing::content_bytes_min(geometries),
        })
    } else {
        Process::HasCache
    };
    let memory_pressure = shared
        .memory_pressure(process)
        .map_err(|source| OpenError::System {
            what: "a thread",
            source,
        })?;
    tell(&mut opened, &shared.members)?;
    made.keep();
    let opened = opened.into_iter().zip(pre_growths).collect();
    let writers = write(config, opened, &stripes)?;
    Ok(OpenStore {
        shared,
        stripes,
        writers,
        memory_pressure,
    })
}

/// A stripe in service and its writer, without threads, for the models. Name hashes are the same in
/// each run.
#[cfg(all(test, loom))]
pub(crate) fn without_threads(config: &Config) -> Result<(Arc<Stripe>, DeviceWriter), OpenError> {
    let (mut made, device_path) = (CreatedFiles::default(), &config.device_paths()[0]);
    let mut opened = [make(config, device_path, (1, [1; 32]), &mut made)?];
    let next_version = agree(&mut opened, config.placement)?;
    let shared = Arc::new(device::shared(config, &opened, next_version)?);
    let stripe = device::stripe(config, &opened[0], &shared, 0)?;
    shared.members.join(vec![stripe.peer()]);
    tell(&mut opened, &shared.members)?;
    let [opened] = opened;
    let buffer = AlignedBuf::zeroed(sizing::buffer_bytes(config, &opened.geometry));
    let mut writer = DeviceWriter::new(
        Arc::clone(&stripe),
        opened.superblock,
        buffer,
        config.sync_interval,
        false,
    );
    recover(&mut writer, None).expect("memory reads and writes");
    stripe.recovered();
    Ok((stripe, writer))
}

/// Files that were created just now; they are deleted again if the open fails.
#[derive(Default)]
struct CreatedFiles(Vec<PathBuf>);

impl CreatedFiles {
    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for CreatedFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// All devices in `config`, in order. A missing device is created, with a superblock that was not
/// written yet.
fn devices(config: &Config, made: &mut CreatedFiles) -> Result<Vec<Opened>, OpenError> {
    let paths = config.device_paths();
    // Refuse before a file is created or grows.
    let found = survey(config, &paths).map_err(|mut errors| errors.swap_remove(0))?;
    for (device_path, _) in paths
        .iter()
        .zip(&found)
        .filter(|(_, found)| found.is_some())
    {
        device::claim(device_path);
    }
    let identity = match found.iter().flatten().next() {
        Some(opened) => (opened.superblock.store_id, opened.superblock.secret),
        None => new_identity(config)?,
    };
    let device = |(device_path, found): (&DevicePath, Option<Opened>)| match found {
        Some(opened) => device::make_space(device_path, opened),
        None => make(config, device_path, identity, made),
    };
    paths.iter().zip(found).map(device).collect()
}

/// The stores at `paths`, in the same order; `None` if a device can be created there. Nothing is
/// written.
///
/// # Errors
/// Every reason for which a store with `config` cannot be opened or created there, at least one.
fn survey(config: &Config, paths: &[DevicePath]) -> Result<Vec<Option<Opened>>, Vec<OpenError>> {
    if paths.is_empty() || paths.len() > DEVICES_MAX {
        return Err(vec![OpenError::Devices {
            count: paths.len(),
            most: DEVICES_MAX,
        }]);
    }
    let found = all(paths
        .iter()
        .map(|device_path| device::look(config, device_path)))?;
    belong_together(found.iter().flatten()).map_err(|error| vec![error])?;
    let geometries = paths
        .iter()
        .zip(&found)
        .map(|(device_path, found)| match found {
            Some(opened) => Ok(opened.geometry.clone()),
            None => device::planned(config, device_path),
        });
    let geometries: Vec<Geometry> = all(geometries)?;
    let pre_growth = found
        .iter()
        .flatten()
        .filter_map(|it| it.pre_growth.as_ref());
    sizing::enough(config, &geometries, pre_growth).map_err(|error| vec![error])?;
    Ok(found)
}

/// All values, or all errors.
fn all<T>(results: impl Iterator<Item = Result<T, OpenError>>) -> Result<Vec<T>, Vec<OpenError>> {
    let (mut values, mut errors) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() {
        Ok(values)
    } else {
        Err(errors)
    }
}

/// The reasons for which a store with `config` could not be opened or created now. Nothing is
/// written, and no device is locked: a process that serves from a device continues, and a device in
/// use is no reason for an error here.
pub(crate) fn preflight(config: &Config) -> Vec<OpenError> {
    let shared = |device_path| DevicePath {
        access: Access::Shared,
        ..device_path
    };
    let paths: Vec<DevicePath> = config.device_paths().into_iter().map(shared).collect();
    match survey(config, &paths) {
        Err(errors) => errors,
        Ok(found) => device::refused_by_system(config, &paths, &found),
    }
}

/// Returns an error unless all `found` devices belong to the same store and no device appears
/// twice.
fn belong_together<'a>(found: impl Iterator<Item = &'a Opened>) -> Result<(), OpenError> {
    let mut before: Vec<&Opened> = Vec::new();
    for opened in found {
        let path = || opened.path.clone();
        let identity = |it: &Opened| (it.superblock.store_id, it.superblock.secret);
        if let Some(other) = before.iter().find(|it| identity(it) != identity(opened)) {
            return Err(OpenError::OtherStore {
                path: path(),
                other: other.path.clone(),
            });
        }
        let device = opened.superblock.device;
        if let Some(other) = before.iter().find(|it| it.superblock.device == device) {
            return Err(OpenError::Twins {
                path: path(),
                other: other.path.clone(),
            });
        }
        before.push(opened);
    }
    Ok(())
}

fn new_identity(config: &Config) -> Result<(u128, [u8; 32]), OpenError> {
    let mut secret: [u8; 32] = random()?;
    if let Some(names) = config.name_secret {
        secret[..16].copy_from_slice(&names);
    }
    Ok((u128::from_le_bytes(random()?), secret))
}

fn random<const N: usize>() -> Result<[u8; N], OpenError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|source| OpenError::System {
        what: "random numbers",
        source: io::Error::other(source.to_string()),
    })?;
    Ok(bytes)
}

/// Creates a device for the store with `identity`. The device number and the members are set later.
fn make(
    config: &Config,
    device_path: &DevicePath,
    identity: (u128, [u8; 32]),
    made: &mut CreatedFiles,
) -> Result<Opened, OpenError> {
    let (device, is_new) = device::device_or_new(device_path, config.size_bytes)?;
    if is_new {
        made.0.push(device_path.path.clone());
    }
    let size = config.size_bytes.unwrap_or(u64::MAX).min(device.len());
    // A slot is read and written separately, so it has at least a sector.
    let least = u32::try_from(device.alignment()).unwrap_or(u32::MAX);
    if let Some(asked) = config.block_bytes.filter(|it| *it < least)
        && config.policy.family() == Family::Table
    {
        let device = device_path.path.display();
        let made = least;
        tracing::info!(%device, asked, made, "slot size raised to the disk's sector size");
    }
    let raised = Config {
        block_bytes: Some(config.block_bytes.unwrap_or(BLOCK_BYTES).max(least)),
        ..config.clone()
    };
    let geometry = Geometry::plan(&raised, size)?;
    let superblock = Superblock {
        format_version: VERSION,
        serial: 0,
        store_id: identity.0,
        secret: identity.1,
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
        removes_held_below: 0,
        policy: IndexPolicy::from_config(config).code(),
        policy_since: 0,
        placement: config.placement.number(),
        // No members yet.
        history: History::default(),
        heard: BTreeMap::new(),
    };
    Ok(Opened {
        path: device_path.path.clone(),
        device,
        superblock,
        geometry,
        pre_growth: None,
        was_clean: false,
    })
}

fn opened_before(opened: &[Opened]) -> impl Iterator<Item = &Opened> {
    opened.iter().filter(|it| !it.is_new())
}

/// Devices with an older superblock than other devices have seen: an image was restored, or a disk
/// has lost writes that it had acknowledged. Such a device still holds objects that were removed
/// since.
///
/// Not detected: a rollback of all devices together, and a rollback to a moment after the last
/// superblock that another device has seen.
fn rolled_back(opened: &[Opened]) -> Vec<u16> {
    let old = || opened_before(opened);
    let is_rolled_back = |one: &&Opened| {
        let (device, serial) = (one.superblock.device, one.superblock.serial);
        let others = old().filter(|it| it.superblock.device != device);
        let heard = others.filter_map(|it| it.superblock.heard.get(&device).copied());
        let heard = heard.max().unwrap_or(0);
        // If the newer copy is damaged, the previous copy does not mean that the device was rolled
        // back.
        let is_damaged = || superblocks_damaged(&*one.device, &one.superblock).contains(&true);
        heard > serial && !(heard == serial + 1 && is_damaged())
    };
    let devices = old().filter(is_rolled_back);
    devices.map(|it| it.superblock.device).collect()
}

/// Gives new devices their numbers, and all devices the history that is now valid, with names
/// placed by `placement`. Returns the next version to draw.
fn agree(opened: &mut [Opened], placement: Placement) -> Result<u64, OpenError> {
    let old = || opened_before(opened).map(|it| &it.superblock);
    let next_version = old().map(|it| it.next_version).max().unwrap_or(1);
    let carried: Vec<_> = old().map(|it| (it.device, it.history.clone())).collect();
    let mut present: Vec<u16> = carried.iter().map(|it| it.0).collect();
    let chosen = History::choose(&carried);
    for (n, opened) in opened.iter_mut().enumerate().filter(|(_, it)| it.is_new()) {
        opened.superblock.device = match &chosen {
            Some(Chosen::Whole(history) | Chosen::Apart(history)) => {
                history.new_id(&present, u16::from_le_bytes(random()?))
            }
            None => u16::try_from(n).unwrap_or(u16::MAX),
        };
        present.push(opened.superblock.device);
    }
    let members: Vec<_> = opened.iter().map(member).collect();
    let away = rolled_back(opened);
    let is_moved = opened_before(opened).any(|it| it.superblock.placement != placement.number());
    let mut next_version = next_version;
    let history = match chosen {
        None => History::new(members),
        // Names had other hashes, so removes in this run would not find objects that were put
        // before.
        Some(Chosen::Whole(mut history) | Chosen::Apart(mut history)) if is_moved => {
            tracing::warn!("placement changed: all objects are forgotten");
            history.begin_anew(next_version, members);
            history
        }
        Some(Chosen::Whole(mut history)) => {
            let is_here = |it: &Member| members.iter().any(|member| member.id == it.id);
            let missing = history.members().iter().filter(|it| !is_here(it));
            let missing: Vec<u16> = missing.map(|it| it.id).collect();
            if !missing.is_empty() {
                tracing::warn!(?missing, "devices missing: their objects are forgotten");
            }
            if !away.is_empty() {
                tracing::error!(
                    ?away,
                    "devices were rolled back to an older state: their objects are forgotten"
                );
            }
            next_version = history.change_without(next_version, &away, members);
            history
        }
        Some(Chosen::Apart(mut history)) => {
            tracing::warn!("devices were used separately: all their objects are forgotten");
            history.begin_anew(next_version, members);
            history
        }
    };
    for opened in opened.iter_mut() {
        opened.superblock.history = history.clone();
        opened.superblock.placement = placement.number();
    }
    // A superblock with a higher version would be refused as forged: the store could not be opened
    // again.
    let is_left = next_version
        .checked_add(VERSIONS_RESERVED)
        .is_some_and(|it| it < COUNT_MAX);
    if is_left {
        Ok(next_version)
    } else {
        Err(OpenError::NoVersionsLeft {
            path: opened.first().map(|it| it.path.clone()).unwrap_or_default(),
        })
    }
}

/// Sets the superblock fields for an open store.
fn set_aside(config: &Config, opened: &mut Opened, next_version: u64) {
    let superblock = &mut opened.superblock;
    let policy = IndexPolicy::from_config(config).code();
    if superblock.policy != policy {
        // The lists of another policy do not continue the checkpoints of this policy, neither now
        // nor later.
        superblock.policy = policy;
        superblock.policy_since = next_version;
    }
    opened.was_clean = std::mem::take(&mut superblock.clean);
    superblock.next_version = next_version.saturating_add(VERSIONS_RESERVED);
}

/// Writes all superblocks.
fn tell(opened: &mut [Opened], members: &Members) -> Result<(), OpenError> {
    let once = |it: &mut Opened| {
        it.superblock.heard = members.heard();
        let write = write_superblock(&*it.device, &mut it.superblock);
        write.map_err(|source| OpenError::Device {
            path: it.path.clone(),
            source,
        })?;
        members.superblock_is_durable(it.superblock.device, it.superblock.serial);
        Ok(())
    };
    let mut new = opened.iter_mut().filter(|it| it.is_new());
    new.try_for_each(once)?;
    // Write both copies: if only one copy had this state and that copy were lost, an open after a
    // crash would use a copy that states "closed in order" and draw the versions of this run again.
    // The second copies are written after all first copies: so each device knows the state on the
    // other devices, and a device that was rolled back to before this open is detected.
    for _ in 0..2 {
        opened.iter_mut().try_for_each(once)?;
    }
    Ok(())
}

/// Writes the superblocks of a store that was closed in order. If there are several devices, each
/// superblock has the serials of all others: a device that was rolled back is detected by them.
pub(crate) fn tell_closed(stripes: &[Arc<Stripe>], closed: Vec<Superblock>) {
    if stripes.len() == 1 || closed.len() < stripes.len() {
        return;
    }
    for mut superblock in closed {
        let of_device = |it: &&Arc<Stripe>| it.medium.device_id == superblock.device;
        let Some(stripe) = stripes.iter().find(of_device) else {
            continue;
        };
        superblock.heard = stripe.shared.members.heard();
        match write_superblock(&*stripe.medium.device, &mut superblock) {
            Ok(()) => stripe
                .shared
                .members
                .superblock_is_durable(superblock.device, superblock.serial),
            // All important data is on disk already.
            Err(error) => tracing::warn!(%error, "superblock not written at close"),
        }
    }
}

/// Starts the writer threads, and waits until the index is complete, but only as long as `config`
/// allows.
fn write(
    config: &Config,
    opened: Vec<(Opened, Option<PreGrowth>)>,
    stripes: &[Arc<Stripe>],
) -> Result<Vec<WriterThread>, OpenError> {
    let mut threads = Vec::new();
    let mut recoveries = Vec::new();
    for ((opened, pre_growth), stripe) in opened.into_iter().zip(stripes) {
        match start_writer(config, opened, pre_growth, stripe) {
            Ok((thread, recovered)) => {
                threads.push(thread);
                recoveries.push(recovered);
            }
            Err(source) => {
                let now = config.clock.monotone();
                stripes.iter().for_each(|stripe| stripe.queue.close(now));
                for thread in threads {
                    let _ = thread.join();
                }
                let what = "a thread";
                return Err(OpenError::System { what, source });
            }
        }
    }
    let until = config.clock.monotone().saturating_add(config.open_patience);
    for recovered in recoveries {
        let patience = until.saturating_sub(config.clock.monotone());
        if recovered.wait_for(patience).is_none() {
            tracing::info!("serving before the index is complete");
            break;
        }
    }
    Ok(threads)
}

fn start_writer(
    config: &Config,
    opened: Opened,
    pre_growth: Option<PreGrowth>,
    stripe: &Arc<Stripe>,
) -> io::Result<(WriterThread, Outcome<bool>)> {
    let mut writer = DeviceWriter::new(
        Arc::clone(stripe),
        opened.superblock,
        AlignedBuf::zeroed(sizing::buffer_bytes(config, &opened.geometry)),
        config.sync_interval,
        opened.was_clean,
    );
    let readmits = config.readmission && opened.geometry.family == Family::Log;
    writer.readmission = readmits.then(Readmission::default);
    if sizing::overlaps(config, &opened.geometry) {
        let spare = AlignedBuf::zeroed(sizing::buffer_bytes(config, &opened.geometry));
        let side_buffer = AlignedBuf::zeroed(sizing::side_buffer_bytes(&opened.geometry));
        writer.background = Some(BackgroundWrite::new(stripe, spare, side_buffer)?);
    }
    let (promise, recovered) = promise::<bool>();
    let thread = std::thread::Builder::new()
        .name("hc-write".into())
        .spawn(move || writer.run(|writer| recover(writer, pre_growth), promise))?;
    Ok((thread, recovered))
}
