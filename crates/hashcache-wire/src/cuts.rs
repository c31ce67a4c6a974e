//! A property of `inbound`, checked by its tests and by the fuzz target `wire`, which includes this
//! file.

use super::head::HeadLimits;
use super::inbound::{HeadStep, Inbound};

/// Checks that the result does not depend on how the bytes are cut into pieces.
///
/// # Panics
///
/// Panics if the results differ.
pub(super) fn check_reading(data: &[u8]) {
    let whole = read_in_parts(data, data.len().max(1));
    for step in [1, 2, 3, 7, 64] {
        assert_eq!(read_in_parts(data, step), whole, "cut every {step} bytes");
    }
}

/// The result of reading some bytes: heads, forwarded body bytes, and the final state.
fn read_in_parts(data: &[u8], step: usize) -> Vec<String> {
    let limits = HeadLimits {
        bytes: 512,
        fields: 8,
        target: 128,
    };
    let mut inbound = Inbound::new(limits, 16);
    let (mut seen, mut held, mut body) = (Vec::new(), Vec::new(), String::new());
    for part in data.chunks(step) {
        held.extend_from_slice(part);
        while !held.is_empty() && !inbound.is_stopped() {
            let taken = if inbound.wants_head() {
                match inbound.head(&held) {
                    HeadStep::Partial => break,
                    HeadStep::Accepted {
                        start,
                        taken,
                        checked,
                    } => {
                        let head = held[start..taken].escape_ascii();
                        seen.push(std::mem::take(&mut body));
                        seen.push(format!("{head} {checked:?}"));
                        taken
                    }
                    HeadStep::Refused(refusal) => {
                        seen.push(format!("{refusal:?}"));
                        break;
                    }
                }
            } else {
                let pass = |bytes: &[u8]| body.push_str(&bytes.escape_ascii().to_string());
                match inbound.body(&held, pass) {
                    Ok(taken) => taken,
                    Err(reason) => {
                        // The forwarded length of a broken body depends on the cut and does not
                        // matter.
                        body.clear();
                        seen.push(reason.to_owned());
                        break;
                    }
                }
            };
            held.drain(..taken);
        }
    }
    seen.push(body);
    seen
}
