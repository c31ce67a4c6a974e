//! SETTINGS and GOAWAY from an HTTP/2 origin, read below h2.
//!
//! `meter` passes every byte that the origin sends; `http2` checks the signals before it adds a
//! stream to a connection. h2 reads the same bytes afterwards, but does not report the arrival of
//! the SETTINGS, and notices a GOAWAY only with the next request.
//!
//! Invariant: after the head of a GOAWAY, or after connection close, no stream is added.
//! Cost: nine bytes examined per frame.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use tokio::sync::Notify;

/// Signals from the origin about its end of a connection.
#[derive(Debug)]
pub(super) struct OriginSignals {
    has_settings: AtomicBool,
    streams_max: AtomicU32,
    head_max: AtomicU32,
    takes_no_more: AtomicBool,
    has_error: AtomicBool,
    changed: Notify,
}

impl OriginSignals {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            has_settings: AtomicBool::new(false),
            // Both are unlimited until the origin announces a limit (RFC 9113, section 6.5.2).
            streams_max: AtomicU32::new(u32::MAX),
            head_max: AtomicU32::new(u32::MAX),
            takes_no_more: AtomicBool::new(false),
            has_error: AtomicBool::new(false),
            changed: Notify::new(),
        })
    }

    /// Returns true if the first SETTINGS have arrived, or never will.
    pub(super) fn is_settled(&self) -> bool {
        self.has_settings.load(Relaxed) || self.takes_no_more()
    }

    /// Waits until `is_settled`.
    pub(super) async fn settled(&self) {
        loop {
            // Registered before the test, so that a change between the two is not missed.
            let changed = self.changed.notified();
            if self.is_settled() {
                return;
            }
            changed.await;
        }
    }

    /// SETTINGS_MAX_CONCURRENT_STREAMS, as last announced.
    pub(super) fn streams_max(&self) -> usize {
        usize::try_from(self.streams_max.load(Relaxed)).unwrap_or(usize::MAX)
    }

    /// SETTINGS_MAX_HEADER_LIST_SIZE, as last announced.
    pub(super) fn head_max(&self) -> usize {
        usize::try_from(self.head_max.load(Relaxed)).unwrap_or(usize::MAX)
    }

    /// Returns true if the origin has sent GOAWAY, or the connection is closed.
    pub(super) fn takes_no_more(&self) -> bool {
        self.takes_no_more.load(Relaxed)
    }

    /// Returns true if one side has closed the connection for an error on the other side.
    pub(super) fn has_error(&self) -> bool {
        self.has_error.load(Relaxed)
    }

    /// Notes such an error.
    pub(super) fn note_error(&self) {
        self.has_error.store(true, Relaxed);
    }

    fn end(&self) {
        self.takes_no_more.store(true, Relaxed);
        self.changed.notify_waiters();
    }
}

/// Reads the signals in the origin's bytes.
#[derive(Debug)]
pub(super) struct SignalReader {
    signals: Arc<OriginSignals>,
    head: [u8; FRAME_HEAD],
    have: usize,
    /// Missing bytes of the frame's payload.
    payload: usize,
    /// The current setting, or the start of a GOAWAY, and the number of bytes that have arrived.
    part: [u8; GOAWAY_PAYLOAD],
    part_have: usize,
}

impl SignalReader {
    pub(super) fn new(signals: &Arc<OriginSignals>) -> Self {
        Self {
            signals: Arc::clone(signals),
            head: [0; FRAME_HEAD],
            have: 0,
            payload: 0,
            part: [0; GOAWAY_PAYLOAD],
            part_have: 0,
        }
    }

    /// Continues with these bytes.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.have < FRAME_HEAD {
                let taken = (FRAME_HEAD - self.have).min(bytes.len());
                self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
                self.have += taken;
                bytes = &bytes[taken..];
                if self.have < FRAME_HEAD {
                    return;
                }
                self.begin();
            } else {
                let taken = self.payload.min(bytes.len());
                if self.is_settings() || self.kind() == GOAWAY {
                    self.read_payload(&bytes[..taken]);
                }
                self.payload -= taken;
                bytes = &bytes[taken..];
            }
            if self.payload == 0 {
                self.finish();
            }
        }
    }

    /// Notes that the origin has sent forbidden bytes, so the connection must be closed.
    pub(super) fn note_error(&self) {
        self.signals.note_error();
    }

    fn kind(&self) -> u8 {
        self.head[3]
    }

    /// Returns true if the current frame is SETTINGS, and not the ACK for ours.
    fn is_settings(&self) -> bool {
        self.kind() == SETTINGS && self.head[4] & ACK == 0
    }

    fn begin(&mut self) {
        let [a, b, c, ..] = self.head;
        self.payload = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        self.part_have = 0;
        if self.kind() == GOAWAY {
            // The last stream in the GOAWAY is for the requests in progress, which h2 informs. New
            // requests take another connection in any case.
            self.signals.end();
        }
    }

    fn finish(&mut self) {
        if self.is_settings() {
            self.signals.has_settings.store(true, Relaxed);
            self.signals.changed.notify_waiters();
        }
        self.have = 0;
    }

    fn read_payload(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let Some(place) = self.part.get_mut(self.part_have) else {
                return; // the debug data of a GOAWAY
            };
            *place = *byte;
            self.part_have += 1;
            if self.kind() == SETTINGS && self.part_have == SETTING {
                self.part_have = 0;
                self.note_setting();
            } else if self.kind() == GOAWAY && self.part_have == GOAWAY_PAYLOAD {
                let [_, _, _, _, error @ ..] = self.part;
                if u32::from_be_bytes(error) != NO_ERROR {
                    self.note_error();
                }
            }
        }
    }

    fn note_setting(&self) {
        let [id_high, id_low, value @ .., _, _] = self.part;
        let value = u32::from_be_bytes(value);
        match u16::from_be_bytes([id_high, id_low]) {
            MAX_CONCURRENT_STREAMS => self.signals.streams_max.store(value, Relaxed),
            MAX_HEADER_LIST_SIZE => self.signals.head_max.store(value, Relaxed),
            _ => {}
        }
    }
}

impl Drop for SignalReader {
    fn drop(&mut self) {
        self.signals.end();
    }
}

const FRAME_HEAD: usize = 9;
/// A setting: the number, and four value bytes.
const SETTING: usize = 6;
/// The last stream and the error code; debug data may follow.
const GOAWAY_PAYLOAD: usize = 8;

const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const NO_ERROR: u32 = 0;

const MAX_CONCURRENT_STREAMS: u16 = 3;
const MAX_HEADER_LIST_SIZE: u16 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 0];
        frame.extend(payload);
        frame
    }

    #[test]
    fn settings_and_goaway_are_found_however_the_bytes_are_cut() {
        let settings = [0, 3, 0, 0, 0, 10, 0, 4, 0, 0, 0, 0, 0, 6, 0, 0, 16, 0];
        let bytes = [
            frame(SETTINGS, 0, &settings),
            frame(SETTINGS, ACK, &[]),
            frame(0, 0, &[SETTINGS; 30]),
        ]
        .concat();
        for step in [1, 2, 7, 64, bytes.len()] {
            let signals = OriginSignals::new();
            let mut reader = SignalReader::new(&signals);
            assert!(!signals.is_settled());
            for part in bytes.chunks(step) {
                reader.read(part);
            }
            assert!(signals.is_settled() && !signals.takes_no_more(), "{step}");
            assert_eq!((signals.streams_max(), signals.head_max()), (10, 4096));
            // A later SETTINGS frame changes what it names.
            reader.read(&frame(SETTINGS, 0, &[0, 3, 0, 0, 0, 2]));
            assert_eq!((signals.streams_max(), signals.head_max()), (2, 4096));
            reader.read(&frame(GOAWAY, 0, &[0; 8]));
            assert!(signals.takes_no_more() && !signals.has_error());
            let debug = b"\0\0\0\x09\0\0\0\x0bcalm down";
            for part in frame(GOAWAY, 0, debug).chunks(step) {
                reader.read(part);
            }
            assert!(signals.has_error());
        }
    }

    #[test]
    fn a_confirmation_is_not_taken_for_the_origins_settings() {
        let signals = OriginSignals::new();
        let mut reader = SignalReader::new(&signals);
        reader.read(&frame(SETTINGS, ACK, &[]));
        assert!(!signals.is_settled());
        reader.read(&frame(SETTINGS, 0, &[]));
        assert!(signals.is_settled(), "SETTINGS may be empty");
        assert_eq!(signals.streams_max(), u32::MAX as usize);
    }

    #[tokio::test]
    async fn the_end_of_the_connection_ends_the_wait_for_settings() {
        let signals = OriginSignals::new();
        let reader = SignalReader::new(&signals);
        tokio::join!(signals.settled(), async { drop(reader) });
        assert!(signals.takes_no_more());
    }
}
