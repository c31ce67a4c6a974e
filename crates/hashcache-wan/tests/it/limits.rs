//! Senders that mean harm: whatever they announce, the receiver's memory and time have bounds.

use hashcache_wan::decode::{Decoder, Event, Offer};
use hashcache_wan::error::Reason;
use hashcache_wan::frame::Head;
use hashcache_wan::limits::{BLOCK_BYTES_MAX, TRANSFER_BYTES_MAX};
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, zstd_sys::ZSTD_EndDirective};

use super::support::{encode, head, noise, places, slice};

/// A transfer up to the block that a test adds.
fn begun(length: Option<u64>) -> Vec<u8> {
    let head = Head {
        length,
        ..head(b"", None)
    };
    let mut frames = Vec::new();
    let mut encoder = hashcache_wan::encode::Encoder::new(head, 0);
    encoder.flush(&mut frames).unwrap();
    frames
}

fn block(kind: u8, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap().to_le_bytes();
    [&[kind], &length[..3], data, &[0; 8]].concat()
}

/// The reason why the receiver refuses `frames` after it has offered a dictionary of 1 MB.
fn refusal(frames: &[u8]) -> Reason {
    let mut decoder = Decoder::new(Offer {
        offered: Some(1_000_000),
        named_max: 0,
    });
    decoder.push(frames);
    loop {
        match decoder.next() {
            Ok(Event::Head(_)) => {}
            Ok(Event::Wants(range)) => {
                decoder.give(&vec![0; (range.end - range.start) as usize]);
            }
            Ok(event) => panic!("given: {event:?}"),
            Err(reason) => {
                assert!(decoder.memory_bytes() <= TRANSFER_BYTES_MAX);
                assert_eq!(decoder.next(), Err(reason));
                return reason;
            }
        }
    }
}

/// `content` as one zstd frame with a window of 2^`window_log`.
fn zstd(content: &[u8], window_log: u32) -> Vec<u8> {
    let mut context = CCtx::create();
    context
        .set_parameter(CParameter::WindowLog(window_log))
        .unwrap();
    let mut data = Vec::with_capacity(content.len() + 1_000);
    let mut output = OutBuffer::around(&mut data);
    let mut input = InBuffer::around(content);
    let flush = ZSTD_EndDirective::ZSTD_e_flush;
    assert_eq!(
        context.compress_stream2(&mut output, &mut input, flush),
        Ok(0)
    );
    data
}

#[test]
fn a_block_that_unpacks_to_more_than_a_block_is_refused() {
    let bomb = zstd(&vec![0; 64 << 20], 21);
    assert!(bomb.len() < 20_000);
    let frames = [begun(None), block(3, &bomb)].concat();
    assert_eq!(refusal(&frames), Reason::Limit("content of a block"));
    let most = zstd(&vec![0; BLOCK_BYTES_MAX], 21);
    let frames = [begun(None), block(3, &most)].concat();
    assert_eq!(refusal(&frames), Reason::Check, "a block may be as long");
}

#[test]
fn a_window_beyond_the_limit_is_refused_before_it_is_allocated() {
    let frames = [begun(None), block(3, &zstd(b"content", 27))].concat();
    assert!(matches!(refusal(&frames), Reason::Zstd(_)));
}

#[test]
fn data_that_give_no_content_are_refused() {
    // A frame that is to be skipped, and the header of one.
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 255, 255, 255, 255][..], &[0; 99]].concat();
    let header = &zstd(b"content", 21)[..6];
    for data in [&skippable[..], header] {
        let frames = [begun(None), block(3, data)].concat();
        assert_eq!(refusal(&frames), Reason::Malformed("ZSTD"));
    }
}

#[test]
fn two_zstd_frames_in_one_block_are_refused() {
    let mut data = Vec::with_capacity(1_000);
    CCtx::create().compress(&mut data, b"content", 3).unwrap();
    let frames = [begun(None), block(3, &[&data[..], &data].concat())].concat();
    assert_eq!(refusal(&frames), Reason::Malformed("ZSTD"));
}

#[test]
fn stretches_without_blocks_and_beyond_the_dictionary_are_refused() {
    let stretch =
        |at: u64, length: u32| [&[2][..], &at.to_le_bytes(), &length.to_le_bytes()].concat();
    let mut offered = begun(None);
    offered[18] = 1;
    let twice = [&offered[..], &stretch(0, 9), &stretch(0, 9)].concat();
    assert_eq!(refusal(&twice), Reason::Order("STRETCH"));
    let beyond = [&offered[..], &stretch(999_999, 2)].concat();
    assert_eq!(refusal(&beyond), Reason::Limit("stretch"));
    let none = [&begun(None)[..], &stretch(0, 9)].concat();
    assert_eq!(refusal(&none), Reason::Limit("stretch"));
    // In the middle of a segment it would cost a read for each byte of content.
    let content = noise(1, 3_000);
    let old = noise(2, 1_000_000);
    let honest = encode(head(&content, Some(&old)), &content, Some(&old), 1_000);
    let end = places(&honest).last().unwrap().1.start;
    let again = [&honest[..end], &stretch(0, 9)].concat();
    let mut decoder = Decoder::new(Offer {
        offered: Some(1_000_000),
        named_max: 0,
    });
    decoder.push(&again);
    let reason = loop {
        match decoder.next() {
            Ok(Event::Wants(range)) => decoder.give(&slice(&old, &range)),
            Ok(event) => assert!(event != Event::More),
            Err(reason) => break reason,
        }
    };
    assert_eq!(reason, Reason::Limit("stretch"));
    let raw = [&offered[..], &stretch(0, 9), &block(4, b"raw")].concat();
    assert_eq!(refusal(&raw), Reason::Order("RAW"));
}

#[test]
fn frames_out_of_order_are_refused() {
    let frames = encode(head(b"content", None), b"content", None, 9);
    let (head_frame, rest) = frames.split_at(19);
    assert_eq!(refusal(rest), Reason::Order("RAW"));
    assert_eq!(
        refusal(&[head_frame, head_frame].concat()),
        Reason::Order("HEAD")
    );
    assert_eq!(
        refusal(&[head_frame, &[5]].concat()),
        Reason::UnknownType(5)
    );
}

#[test]
fn a_dictionary_that_nobody_offered_is_refused() {
    let mut frames = begun(None);
    frames[18] = 1;
    let mut decoder = Decoder::new(Offer::default());
    decoder.push(&frames);
    assert_eq!(decoder.next(), Err(Reason::Order("dictionary")));
}
