//! HTTP/2 frames written by hand, so that a client or an origin can send frames that no library
//! sends.
//!
//! Field blocks use literals without indexing and without Huffman coding (RFC 7541, section 6.2.2).

/// The connection preface of a client (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const SETTINGS: u8 = 4;
const HEADERS: u8 = 1;
const WINDOW_UPDATE: u8 = 8;
/// A frame type that no specification defines.
const UNKNOWN: u8 = 0xfa;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];

/// Returns the first bytes of a client that gives each stream this window, and adds 2^30 bytes to
/// the window of the connection.
pub fn client_start(stream_window: u32) -> Vec<u8> {
    let mut out = PREFACE.to_vec();
    let mut settings = INITIAL_WINDOW_SIZE.to_vec();
    settings.extend(stream_window.to_be_bytes());
    frame(&mut out, SETTINGS, 0, 0, &settings);
    frame(&mut out, SETTINGS, ACK, 0, &[]);
    frame(&mut out, WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
    out
}

/// Returns the first bytes of an origin.
pub fn server_start() -> Vec<u8> {
    let mut out = Vec::new();
    frame(&mut out, SETTINGS, 0, 0, &[]);
    frame(&mut out, SETTINGS, ACK, 0, &[]);
    out
}

/// Appends a GET as the client's request `number`, counted from 0.
pub fn get(out: &mut Vec<u8>, number: u32, authority: &str, path: &str) {
    // `:method GET`, `:scheme http`, then the names at index 1 and 4 of the static table.
    let mut block = vec![0x82, 0x86, 0x01];
    text(&mut block, authority.as_bytes());
    block.push(0x04);
    text(&mut block, path.as_bytes());
    let flags = END_STREAM | END_HEADERS;
    frame(out, HEADERS, flags, 2 * number + 1, &block);
}

/// Appends an interim response to the request on `stream`, with a field value of `bytes` bytes.
pub fn early_hints(out: &mut Vec<u8>, stream: u32, bytes: usize) {
    let mut block = vec![0x08];
    text(&mut block, b"103");
    block.push(0x00);
    text(&mut block, b"link");
    text(&mut block, &vec![b'a'; bytes]);
    frame(out, HEADERS, END_HEADERS, stream, &block);
}

/// Appends a frame of an unknown type, which a receiver must ignore (RFC 9113, section 5.5).
pub fn unknown(out: &mut Vec<u8>, bytes: usize) {
    frame(out, UNKNOWN, 0, 0, &vec![0; bytes]);
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("payloads here are short");
    out.extend_from_slice(&length.to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Appends a string literal (RFC 7541, section 5.2).
fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut length = bytes.len();
    if length < 127 {
        out.push(u8::try_from(length).expect("below 127"));
    } else {
        out.push(127);
        length -= 127;
        while length >= 128 {
            out.push(u8::try_from(length % 128).expect("below 128") | 128);
            length /= 128;
        }
        out.push(u8::try_from(length).expect("below 128"));
    }
    out.extend_from_slice(bytes);
}
