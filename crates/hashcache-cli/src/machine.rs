//! Resources of this machine.

/// This machine's available memory, bytes; `None` if the system does not report it.
pub fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let row = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = row.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}
