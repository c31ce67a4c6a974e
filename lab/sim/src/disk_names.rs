//! The disks that can be named: those of the engine's model, and the disks of the papers.

use std::str::FromStr as _;

use hashcache::device::{DiskModel, DiskModelError};

/// Names that [`disk`] knows beside those of [`DiskModel`], with the figures that they stand for.
const DISKS: [(&str, &str); 3] = [
    // Seagate ST15150WC as WebCoSM (section 3.1) describes it: 9 ms, 7200 turns a minute, and
    // 4.7 MB/s measured.
    ("1999", "seek=9ms,settle=1ms,rpm=7200,rate=4.7MB/s"),
    ("hdd", "hdd-7200"),
    // No arm and no platter: 80 µs before any access that does not continue the last one, whose
    // spread of 20 µs is that of a "turn".
    ("ssd", "seek=70us,settle=70us,rpm=1000000,rate=500MB/s"),
];

/// The disk of this name or these figures: `1999`, `hdd`, `ssd`, `hdd-5400`, `70` (seeks per
/// second), `seek=8.5ms,rpm=7200,rate=120MB/s`. Figures may follow a name.
///
/// # Errors
/// Neither a name nor figures of a disk.
pub fn disk(text: &str) -> Result<DiskModel, DiskModelError> {
    let (name, rest) = text.split_once(',').unwrap_or((text, ""));
    let known = DISKS.iter().find(|(known, _)| *known == name.trim());
    match known {
        Some((_, figures)) if rest.is_empty() => DiskModel::from_str(figures),
        Some((_, figures)) => DiskModel::from_str(&format!("{figures},{rest}")),
        None => DiskModel::from_str(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_disk_and_figures_may_follow_it() {
        for (name, figures) in DISKS {
            assert_eq!(disk(name).unwrap(), figures.parse().unwrap());
        }
        let slower = disk("1999,seek=20ms").unwrap();
        let wanted = "seek=20ms,settle=1ms,rpm=7200,rate=4.7MB/s";
        assert_eq!(slower, wanted.parse().unwrap());
        assert_eq!(disk("70").unwrap(), "70".parse().unwrap());
        assert!(disk("drum").is_err());
    }

    #[test]
    fn a_disk_of_1999_reads_64_kib_in_27_ms_and_an_ssd_in_a_fifth_of_one() {
        let micros = |name| disk(name).unwrap().random_read(64 << 10).as_micros();
        assert!(
            (27_000..27_300).contains(&micros("1999")),
            "{}",
            micros("1999")
        );
        assert!((200..240).contains(&micros("ssd")), "{}", micros("ssd"));
    }
}
