//! Each frame is read as it was written; nothing else is read at all.

use super::*;

fn all() -> Vec<Frame<'static>> {
    let named = Dictionary::Named {
        key: b"http://origin.test/app.js"[..].into(),
        digest: Digest([7; 32]),
        length: DICTIONARY_BYTES_MAX,
    };
    let head = |dictionary, length| {
        Frame::Head(Head {
            length,
            version: 9,
            dictionary,
        })
    };
    vec![
        head(Dictionary::None, None),
        head(Dictionary::Offered, Some(0)),
        head(named, Some(u64::MAX - 1)),
        Frame::Stretch(5..6),
        Frame::Stretch(DICTIONARY_BYTES_MAX - STRETCH_BYTES_MAX..DICTIONARY_BYTES_MAX),
        Frame::Zstd(b"data", Check([1; 8])),
        Frame::Zstd(&[3; CODED_BYTES_MAX], Check([1; 8])),
        Frame::Raw(&[4; BLOCK_BYTES_MAX], Check([2; 8])),
        Frame::End {
            length: 77,
            digest: Digest([8; 32]),
        },
        Frame::Abort(3),
    ]
}

fn written(frame: &Frame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.write(&mut out);
    out
}

#[test]
fn each_frame_is_read_as_it_was_written_and_not_before_its_last_byte() {
    for frame in all() {
        let bytes = written(&frame);
        for cut in (0..bytes.len().min(80)).chain([bytes.len() - 1]) {
            assert_eq!(parse(&bytes[..cut]), Ok(None), "{cut} of {}", frame.name());
        }
        let used = bytes.len();
        let more = [&bytes[..], b"more"].concat();
        assert_eq!(parse(&more), Ok(Some((frame, used))));
    }
}

#[test]
fn what_is_read_is_what_would_be_written() {
    let mut random = fastrand::Rng::with_seed(14);
    let frames: Vec<Vec<u8>> = all().iter().map(written).collect();
    for _ in 0..20_000 {
        let mut bytes = frames[random.usize(..frames.len())].clone();
        bytes.truncate(400);
        for _ in 0..random.usize(..4) {
            let at = random.usize(..bytes.len().min(40));
            bytes[at] = random.u8(..);
        }
        if let Ok(Some((frame, used))) = parse(&bytes) {
            assert_eq!(written(&frame), bytes[..used]);
        }
    }
}

#[test]
fn a_number_beyond_its_limit_is_refused_before_what_it_counts_has_come() {
    let refused: [(&[u8], Reason); 9] = [
        (&[ZSTD, 1, 4, 4], Reason::Limit("block")),
        (&[RAW, 1, 0, 4], Reason::Limit("block")),
        (&[ZSTD, 0, 0, 0], Reason::Malformed("block")),
        (&[0], Reason::UnknownType(0)),
        (&[5], Reason::UnknownType(5)),
        (&[8], Reason::UnknownType(8)),
        (
            &[STRETCH, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 64, 0],
            Reason::Limit("stretch"),
        ),
        (
            &[STRETCH, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0, 0, 0],
            Reason::Limit("stretch"),
        ),
        (
            &[STRETCH, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            Reason::Malformed("STRETCH"),
        ),
    ];
    for (bytes, reason) in refused {
        assert_eq!(parse(bytes), Err(reason), "{bytes:?}");
    }
    let mut head = written(&all()[2]);
    head.truncate(21);
    (head[19], head[20]) = (1, 16);
    assert_eq!(parse(&head), Err(Reason::Limit("key")));
    (head[19], head[20]) = (0, 0);
    assert_eq!(parse(&head), Err(Reason::Malformed("HEAD")));
    head[18] = 3;
    assert_eq!(parse(&head), Err(Reason::Malformed("HEAD")));
    head[1] = 1;
    assert_eq!(parse(&head), Err(Reason::Malformed("HEAD")));
}
