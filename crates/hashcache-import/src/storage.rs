//! Squid's `cache_dir`, `cache_mem` and `maximum_object_size`: the cache's size and place.
//!
//! The proxy cannot read Squid's directories or store its cache in them: the cache is a single
//! file, in the default place, as large as all directories together.

use hashcache_settings::units::show_size;

use super::draft::{Comments, Draft, strings};
use super::lines::Line;
use super::values;

/// Writes the settings for all these lines.
pub fn import(
    draft: &mut Draft,
    cache_dirs: &[&Line],
    cache_mem: Option<&Line>,
    max: Option<&Line>,
) {
    let size = import_directories(draft, cache_dirs);
    import_memory(draft, cache_mem, size);
    if let Some(line) = max {
        import_max(draft, line, size);
    }
}

/// Writes the cache size, and returns it.
fn import_directories(draft: &mut Draft, lines: &[&Line]) -> u64 {
    let (mut total, mut files, mut comments) = (0_u64, Vec::new(), Comments::default());
    for line in lines {
        let size = line.arg(2).parse::<u64>().ok();
        let size = size.and_then(|megabytes| megabytes.checked_mul(1 << 20));
        let Some(size) = size.filter(|size| *size <= CACHE_MAX - total) else {
            draft.missing(line, "the third word is no size in megabytes");
            continue;
        };
        let kind = line.arg(0);
        draft.option(
            line,
            kind,
            "the storage engine has its own layout: see `policy`",
        );
        for word in line.args_from(3) {
            let reason = "one file has objects of every size, up to max_object_size";
            draft.option(line, &word.text, reason);
        }
        total += size;
        files.push(format!(
            "{}/hashcache.img",
            line.arg(1).trim_end_matches('/')
        ));
        comments = comments.and_of(line);
        draft.imported += 1;
    }
    if total == 0 {
        return CACHE_USUAL;
    }
    let size = total.max(CACHE_MIN);
    comments = comments.and("One file as large as Squid's directories together. Remove those.");
    draft.set("cache_size", show_size(size), comments);
    if files.len() > 1 {
        let why = "For one file on each disk, make this the list of files, and cache_size the size \
                   of each.";
        draft.suggest("cache", strings(&files), Comments::text(why));
    }
    size
}

/// Writes the memory. Squid's memory is only for objects; ours is also for the index, which takes
/// about a thousandth of the cache.
fn import_memory(draft: &mut Draft, line: Option<&Line>, cache_size: u64) {
    let index = (cache_size / INDEX_SHARE).next_multiple_of(1 << 20);
    let objects = line.and_then(|line| {
        let size = values::size(&line.args);
        if size.is_none() {
            draft.missing(line, "no size");
        }
        size
    });
    let memory = match objects {
        Some(size) => size + index,
        None if index > INDEX_USUAL => MEMORY_USUAL + index,
        None => return,
    };
    let mut comments = Comments::default();
    if let (Some(line), true) = (line, objects.is_some()) {
        comments = comments.and_of(line);
        draft.imported += 1;
    }
    let index = show_size(index);
    comments = comments.and(format_args!(
        "All memory of the proxy: hot objects, and {index} for the index and connections."
    ));
    let memory = memory.max(MEMORY_USUAL).next_multiple_of(1 << 20);
    draft.set("memory", show_size(memory), comments);
}

fn import_max(draft: &mut Draft, line: &Line, cache_size: u64) {
    match values::size(&line.args) {
        None | Some(0) => draft.missing(line, "no size"),
        Some(size) => {
            let mut comments = Comments::from_line(line);
            if size > cache_size {
                comments = comments.and("No object is larger than the cache.");
            }
            draft.set("max_object_size", show_size(size.min(cache_size)), comments);
            draft.imported += 1;
        }
    }
}

/// Default cache size.
const CACHE_USUAL: u64 = 1 << 30;
const CACHE_MIN: u64 = 64 << 20;
const CACHE_MAX: u64 = 1 << 50;
const MEMORY_USUAL: u64 = 64 << 20;
/// An index takes at most the cache size divided by this number, for 8 KiB objects.
const INDEX_SHARE: u64 = 1024;
/// Index size for which the default memory has room.
const INDEX_USUAL: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    fn text(dirs: &str, mem: &str, max: &str) -> String {
        let read = |text: &str| lines::lines("squid.conf", text).collect::<Vec<Line>>();
        let (dirs, mem, max) = (read(dirs), read(mem), read(max));
        let mut draft = Draft::default();
        import(
            &mut draft,
            &dirs.iter().collect::<Vec<_>>(),
            mem.first(),
            max.first(),
        );
        draft.text("squid.conf")
    }

    #[test]
    fn the_cache_is_as_large_as_all_directories() {
        let said = text(
            "cache_dir ufs /a 10000 16 256\ncache_dir rock /b 20000\ncache_dir ufs /c many\n",
            "cache_mem 256 MB",
            "maximum_object_size 64 GB",
        );
        assert!(said.contains("cache_size = \"30000MiB\"\n"), "{said}");
        assert!(said.contains("#cache = [\"/a/hashcache.img\", \"/b/hashcache.img\"]\n"));
        assert!(said.contains("memory = \"286MiB\"\n"), "{said}");
        assert!(said.contains("max_object_size = \"30000MiB\"\n"), "{said}");
        assert!(said.contains("cache_dir ufs /c many"), "{said}");
    }

    #[test]
    fn a_large_cache_gets_memory_for_its_index() {
        let said = text("cache_dir aufs /a 1000000 16 256", "", "");
        assert!(said.contains("memory = \"1041MiB\"\n"), "{said}");
        assert!(!text("", "", "").contains("memory"));
        assert!(!text("", "cache_mem 99999999 GB", "").contains("memory ="));
    }
}
