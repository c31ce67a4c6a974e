//! `STREAM-LOC` and `LAZY-READS-LOC`: objects wait in a buffer for their origin server, so that
//! objects of one server come to lie side by side.
//!
//! A buffer that is full is put as a whole. If all buffers are taken by other servers, the one to
//! which nothing was added for longest is put and given to the new server; the paper does not say
//! which one. Objects larger than a buffer are put at once. What waits is read from memory, and
//! what is removed before it was put is never written.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use super::{Found, Layout, Object, SLOT_BYTES, Settings, slots};

pub struct Locality<L> {
    layout: L,
    buffers_max: usize,
    buffer_bytes: u64,
    buffers: Vec<Buffer>,
    /// The server of each object that waits.
    waiting: HashMap<u64, u32>,
    /// Objects that were added so far.
    added: u64,
}

struct Buffer {
    server: u32,
    objects: Vec<(u64, Vec<u8>)>,
    bytes: u64,
    /// Value of `added` at the last addition.
    added_at: u64,
}

impl<L: Layout> Locality<L> {
    pub fn new(layout: L, settings: &Settings) -> Self {
        Self {
            layout,
            buffers_max: settings.buffers.max(1),
            buffer_bytes: settings.buffer_bytes as u64,
            buffers: vec![],
            waiting: HashMap::new(),
            added: 0,
        }
    }

    /// Index of a buffer of this server with room for so many bytes.
    fn buffer_for(&mut self, server: u32, bytes: u64) -> io::Result<usize> {
        let own = self
            .buffers
            .iter()
            .position(|buffer| buffer.server == server);
        if let Some(index) = own {
            if self.buffers[index].bytes + bytes > self.buffer_bytes {
                self.put_buffer(index)?;
            }
            return Ok(index);
        }
        if self.buffers.len() < self.buffers_max {
            self.buffers.push(Buffer::new(server));
            return Ok(self.buffers.len() - 1);
        }
        let oldest = (0..self.buffers.len()).min_by_key(|index| self.buffers[*index].added_at);
        let index = oldest.expect("there is a buffer");
        self.put_buffer(index)?;
        self.buffers[index] = Buffer::new(server);
        Ok(index)
    }

    fn put_buffer(&mut self, index: usize) -> io::Result<()> {
        let buffer = &mut self.buffers[index];
        buffer.bytes = 0;
        for (number, content) in buffer.objects.drain(..) {
            self.waiting.remove(&number);
            let server = buffer.server;
            self.layout.put(Object { number, server }, &content)?;
        }
        Ok(())
    }

    /// Buffer and index in it of an object that waits.
    fn find(&mut self, number: u64) -> Option<(&mut Buffer, usize)> {
        let server = *self.waiting.get(&number)?;
        let mut buffers = self.buffers.iter_mut();
        let buffer = buffers.find(|buffer| buffer.server == server)?;
        let index = buffer.objects.iter().position(|(it, _)| *it == number)?;
        Some((buffer, index))
    }
}

impl Buffer {
    fn new(server: u32) -> Self {
        Self {
            server,
            objects: vec![],
            bytes: 0,
            added_at: 0,
        }
    }
}

impl<L: Layout> Layout for Locality<L> {
    fn put(&mut self, object: Object, content: &[u8]) -> io::Result<()> {
        let bytes = space_of(content);
        if bytes > self.buffer_bytes {
            return self.layout.put(object, content);
        }
        let index = self.buffer_for(object.server, bytes)?;
        self.added += 1;
        let buffer = &mut self.buffers[index];
        buffer.objects.push((object.number, content.to_owned()));
        buffer.bytes += bytes;
        buffer.added_at = self.added;
        self.waiting.insert(object.number, object.server);
        Ok(())
    }

    fn get(&mut self, number: u64, now: Duration, found: Found<'_>) -> io::Result<()> {
        match self.find(number) {
            Some((buffer, index)) => found(number, &buffer.objects[index].1),
            None => self.layout.get(number, now, found),
        }
    }

    fn remove(&mut self, number: u64, found: Found<'_>) -> io::Result<()> {
        let Some((buffer, index)) = self.find(number) else {
            return self.layout.remove(number, found);
        };
        let (_, content) = buffer.objects.remove(index);
        buffer.bytes -= space_of(&content);
        self.waiting.remove(&number);
        Ok(())
    }

    fn due(&mut self, now: Duration, found: Found<'_>) -> io::Result<()> {
        self.layout.due(now, found)
    }

    fn finish(&mut self, found: Found<'_>) -> io::Result<()> {
        (0..self.buffers.len()).try_for_each(|index| self.put_buffer(index))?;
        self.layout.finish(found)
    }

    fn mean_free_bytes(&self) -> Option<u64> {
        self.layout.mean_free_bytes()
    }

    fn slots_of(&self, number: u64) -> Option<(u64, u64)> {
        if self.waiting.contains_key(&number) {
            return None;
        }
        self.layout.slots_of(number)
    }
}

fn space_of(content: &[u8]) -> u64 {
    slots(content.len() as u64) * SLOT_BYTES
}
