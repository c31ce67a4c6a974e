//! Builds the datagrams of HTCP.
//!
//! Invariant: parsing a built datagram gives the same message.
//! Cost: one allocation for DATA and one for the datagram.

use super::auth::Signature;
use super::{
    Body, CLR, Cleared, ClrReason, DATA_HEADER_BYTES, DATAGRAM_BYTES_MAX, Detail, F1, MAJOR, NOP,
    Operation, RR, Response, Specifier, TST,
};

/// The message does not fit into a datagram, or is an [`Operation::Other`] with the opcode of a
/// supported operation. The caller then does not query the peer by HTCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an HTCP message longer than {DATAGRAM_BYTES_MAX} octets, or of a wrong opcode")]
pub struct Unsendable;

/// Builds the datagram of a message with version 0.`minor`, with an optional signature.
pub fn datagram(
    minor: u8,
    transaction: u32,
    body: &Body<'_>,
    signature: Option<&Signature<'_>>,
) -> Result<Vec<u8>, Unsendable> {
    let data = data(transaction, body)?;
    let mut datagram = vec![0, 0, MAJOR, minor];
    datagram.extend_from_slice(&data);
    match signature {
        None => datagram.extend_from_slice(&2_u16.to_be_bytes()),
        Some(signature) => signature.write(minor, &data, &mut datagram),
    }
    set_length(&mut datagram)?;
    Ok(datagram)
}

/// DATA in wire format.
fn data(transaction: u32, body: &Body<'_>) -> Result<Vec<u8>, Unsendable> {
    let mut data = vec![0; DATA_HEADER_BYTES];
    let (opcode, code, flags) = match body {
        Body::Request {
            operation,
            wants_response,
        } => {
            operation.write(&mut data)?;
            let flags = if *wants_response { F1 } else { 0 };
            (operation.opcode(), 0, flags)
        }
        Body::Response(response) => response.write(&mut data)?,
    };
    data[2] = opcode << 4 | code;
    data[3] = flags;
    data[4..DATA_HEADER_BYTES].copy_from_slice(&transaction.to_be_bytes());
    set_length(&mut data)?;
    Ok(data)
}

/// Writes the length of a part, or of the datagram, into the first two octets.
fn set_length(part: &mut [u8]) -> Result<(), Unsendable> {
    if part.len() > DATAGRAM_BYTES_MAX {
        return Err(Unsendable);
    }
    let length = u16::try_from(part.len()).map_err(|_| Unsendable)?;
    part[..2].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

/// Appends a COUNTSTR; fails early, so that no more than a datagram is copied.
pub(super) fn put_string(to: &mut Vec<u8>, string: &[u8]) -> Result<(), Unsendable> {
    if to.len() + string.len() > DATAGRAM_BYTES_MAX {
        return Err(Unsendable);
    }
    let length = u16::try_from(string.len()).map_err(|_| Unsendable)?;
    to.extend_from_slice(&length.to_be_bytes());
    to.extend_from_slice(string);
    Ok(())
}

impl Operation<'_> {
    fn write(&self, to: &mut Vec<u8>) -> Result<(), Unsendable> {
        match self {
            Operation::Nop | Operation::Other(2 | 3 | 5..=15) => Ok(()),
            // After the shift into four bits it would be a different operation.
            Operation::Other(_) => Err(Unsendable),
            Operation::Tst(specifier) => specifier.write(to),
            Operation::Clr { reason, specifier } => {
                let reason: u16 = match reason {
                    ClrReason::Unspecified => 0,
                    ClrReason::DoesNotExist => 1,
                };
                to.extend_from_slice(&reason.to_be_bytes());
                specifier.write(to)
            }
        }
    }
}

impl Specifier<'_> {
    fn write(&self, to: &mut Vec<u8>) -> Result<(), Unsendable> {
        [self.method, self.uri, self.version, self.request_fields]
            .into_iter()
            .try_for_each(|string| put_string(to, string))
    }
}

impl Response<'_> {
    /// Appends the op-data; returns opcode, response code and flags.
    fn write(&self, to: &mut Vec<u8>) -> Result<(u8, u8, u8), Unsendable> {
        Ok(match self {
            Response::Nop => (NOP, 0, RR),
            Response::Present(detail) => {
                detail.write(to)?;
                (TST, 0, RR)
            }
            Response::Absent { cache_fields } => {
                // The RFC has a single string here. Squid 5 drops a response without a whole
                // DETAIL; for others the two empty strings are padding.
                Detail {
                    response_fields: cache_fields,
                    ..Detail::default()
                }
                .write(to)?;
                (TST, 1, RR)
            }
            Response::Clr(Cleared::Gone) => (CLR, 0, RR),
            Response::Clr(Cleared::Kept) => (CLR, 1, RR),
            Response::Clr(Cleared::Absent) => (CLR, 2, RR),
            Response::Refused { opcode, failure } => (opcode & 0x0f, failure.code(), RR | F1),
        })
    }
}

impl Detail<'_> {
    fn write(&self, to: &mut Vec<u8>) -> Result<(), Unsendable> {
        [self.response_fields, self.entity_fields, self.cache_fields]
            .into_iter()
            .try_for_each(|string| put_string(to, string))
    }
}
