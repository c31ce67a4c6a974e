//! `BUDDY`: objects of equally many slots of 512 bytes share a file; larger ones than a threshold
//! have files of their own.
//!
//! A new object takes the first free slot of its file; a removed one leaves its slot free. So files
//! are created and deleted for large objects alone, but writes go all over the disk.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::object_files::ObjectFiles;
use super::{Found, Layout, Object, SLOT_BYTES, Settings, length, missing, slots};

pub struct Buddy {
    root: PathBuf,
    threshold_bytes: u64,
    /// By the slots of an object.
    classes: HashMap<u64, Class>,
    places: HashMap<u64, Place>,
    large: ObjectFiles,
    buffer: Vec<u8>,
}

/// The file of all objects of one size.
struct Class {
    file: File,
    /// Places of removed objects.
    free: BTreeSet<u64>,
    /// The first place that was never used.
    end: u64,
}

#[derive(Clone, Copy)]
struct Place {
    bytes: u64,
    /// In the file of its class, counted in objects; `None`: it has a file of its own.
    in_class: Option<u64>,
}

impl Buddy {
    pub fn new(root: &Path, settings: &Settings) -> io::Result<Self> {
        Ok(Self {
            root: root.to_owned(),
            threshold_bytes: settings.threshold_bytes,
            classes: HashMap::new(),
            places: HashMap::new(),
            large: ObjectFiles::simple(&root.join("large"), settings)?,
            buffer: vec![],
        })
    }

    fn put_small(&mut self, content: &[u8]) -> io::Result<u64> {
        let size = slots(content.len() as u64);
        if !self.classes.contains_key(&size) {
            self.classes.insert(size, Class::new(&self.root, size)?);
        }
        let class = self.classes.get_mut(&size).expect("it was made above");
        let place = class.take();
        class
            .file
            .write_all_at(content, place * size * SLOT_BYTES)?;
        Ok(place)
    }

    fn class(&mut self, bytes: u64) -> &mut Class {
        let class = self.classes.get_mut(&slots(bytes));
        class.expect("an object that is stored has a class")
    }
}

impl Class {
    fn new(root: &Path, size: u64) -> io::Result<Self> {
        let path = root.join(format!("slots-{size}"));
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        Ok(Self {
            file,
            free: BTreeSet::new(),
            end: 0,
        })
    }

    fn take(&mut self) -> u64 {
        self.free.pop_first().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        })
    }
}

impl Layout for Buddy {
    fn put(&mut self, object: Object, content: &[u8]) -> io::Result<()> {
        let bytes = content.len() as u64;
        let in_class = if bytes > self.threshold_bytes {
            self.large.put(object, content)?;
            None
        } else {
            Some(self.put_small(content)?)
        };
        self.places.insert(object.number, Place { bytes, in_class });
        Ok(())
    }

    fn get(&mut self, number: u64, now: Duration, found: Found<'_>) -> io::Result<()> {
        let place = *self.places.get(&number).ok_or_else(|| missing(number))?;
        let Some(in_class) = place.in_class else {
            return self.large.get(number, now, found);
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(length(place.bytes)?, 0);
        let offset = in_class * slots(place.bytes) * SLOT_BYTES;
        self.class(place.bytes)
            .file
            .read_exact_at(&mut buffer, offset)?;
        found(number, &buffer)?;
        self.buffer = buffer;
        Ok(())
    }

    fn remove(&mut self, number: u64, found: Found<'_>) -> io::Result<()> {
        let place = self.places.remove(&number).ok_or_else(|| missing(number))?;
        match place.in_class {
            None => self.large.remove(number, found),
            Some(in_class) => {
                self.class(place.bytes).free.insert(in_class);
                Ok(())
            }
        }
    }

    fn due(&mut self, now: Duration, found: Found<'_>) -> io::Result<()> {
        self.large.due(now, found)
    }

    fn finish(&mut self, found: Found<'_>) -> io::Result<()> {
        self.large.finish(found)
    }

    fn mean_free_bytes(&self) -> Option<u64> {
        None
    }

    fn slots_of(&self, _: u64) -> Option<(u64, u64)> {
        None
    }
}
