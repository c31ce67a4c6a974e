//! `LAZY-READS`: `STREAM-PACKETIZER`, with reads in batches.
//!
//! Reads wait until there are as many as a batch has (ten in the paper), or until the first of them
//! has waited long enough. Then they are done in the order of their places in the file, so that a
//! batch of N reads moves the head N + 1 times at most. The paper's reads come between writes, each
//! of which moves the head to its place and back.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::packetizer::Packetizer;
use super::{Found, Layout, Object, Settings};

pub struct LazyReads {
    stream: Packetizer,
    batch: usize,
    wait_max: Duration,
    waiting: Vec<u64>,
    /// When the first of them came.
    since: Duration,
}

impl LazyReads {
    pub fn new(root: &Path, settings: &Settings) -> io::Result<Self> {
        Ok(Self {
            stream: Packetizer::new(root, settings)?,
            batch: settings.batch,
            wait_max: settings.wait_max,
            waiting: vec![],
            since: Duration::ZERO,
        })
    }

    fn read_waiting(&mut self, found: Found<'_>) -> io::Result<()> {
        let mut reads = vec![];
        for number in self.waiting.drain(..) {
            reads.push((self.stream.start(number)?, number));
        }
        reads.sort_unstable();
        reads
            .into_iter()
            .try_for_each(|(_, number)| self.stream.get(number, self.since, found))
    }
}

impl Layout for LazyReads {
    fn put(&mut self, object: Object, content: &[u8]) -> io::Result<()> {
        self.stream.put(object, content)
    }

    fn get(&mut self, number: u64, now: Duration, found: Found<'_>) -> io::Result<()> {
        if self.waiting.is_empty() {
            self.since = now;
        }
        self.waiting.push(number);
        if self.waiting.len() >= self.batch {
            self.read_waiting(found)?;
        }
        Ok(())
    }

    fn remove(&mut self, number: u64, found: Found<'_>) -> io::Result<()> {
        if self.waiting.contains(&number) {
            self.read_waiting(found)?;
        }
        self.stream.remove(number, found)
    }

    fn due(&mut self, now: Duration, found: Found<'_>) -> io::Result<()> {
        if !self.waiting.is_empty() && now.saturating_sub(self.since) >= self.wait_max {
            self.read_waiting(found)?;
        }
        Ok(())
    }

    fn finish(&mut self, found: Found<'_>) -> io::Result<()> {
        self.read_waiting(found)?;
        self.stream.finish(found)
    }

    fn mean_free_bytes(&self) -> Option<u64> {
        self.stream.mean_free_bytes()
    }

    fn slots_of(&self, number: u64) -> Option<(u64, u64)> {
        self.stream.slots_of(number)
    }
}
