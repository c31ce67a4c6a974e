//! HTCP: a cache queries another cache for a response, or tells it to remove a response, by UDP
//! (RFC 2756).
//!
//! The proxy parses each datagram from a configured peer, and builds all outgoing datagrams here
//! (`write`). TST, CLR and NOP are supported, in both directions; a request with another operation
//! (MON, SET) is recognised, so that [`Failure::NotImplemented`] can be sent back. [`auth`] signs
//! and checks.
//!
//! Squid differs from the RFC, and therefore the wire format here does too. Squid uses version 0.1,
//! so 0.1 is sent ([`MINOR`]); 0.0 is also accepted. Squid sends `1/1` as HTTP version and no
//! request fields. In an "absent" response it sends and requires three strings instead of one, so
//! three are sent here. It neither signs nor checks signatures, and sends unsolicited CLR to its
//! peers.
//!
//! Invariant: a parsed message borrows everything from the datagram, so it needs no memory.
//! Cost: one pass over the datagram.
//!
//! | part | fields |
//! |---|---|
//! | header | length of all (2), major (1), minor (1) |
//! | DATA | length (2), opcode and response (4 bits each), flags (1), transaction (4), op-data |
//! | AUTH | length (2; 2 means none), time (4), expiry (4), key name, signature |
//!
//! A string (COUNTSTR) follows its length (2). Each part may have padding at the end.

pub mod auth;
mod write;

use crate::octets::Octets;

pub use write::{Unsendable, datagram};

/// The usual UDP port.
pub const PORT: u16 = 4827;

/// Maximum size of a sent or accepted datagram, in octets.
pub const DATAGRAM_BYTES_MAX: usize = 16_384;

/// The minor version that is sent, because Squid answers no other.
pub const MINOR: u8 = 1;

const MAJOR: u8 = 0;

/// Size of the DATA header before the op-data, in octets.
const DATA_HEADER_BYTES: usize = 8;

/// A parsed datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Minor version; a response should have the same.
    pub minor: u8,
    /// Transaction number: a response repeats the number in the request.
    pub transaction: u32,
    /// Content of the message.
    pub body: Body<'a>,
    signed: auth::Signed<'a>,
}

/// Content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// RR = 0.
    Request {
        /// Requested operation.
        operation: Operation<'a>,
        /// RD: if it is not set, no response may be sent, and TST and NOP have no effect.
        wants_response: bool,
    },
    /// RR = 1.
    Response(Response<'a>),
}

/// The operation in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Tests if the peer is alive.
    Nop,
    /// Queries for a stored response.
    Tst(Specifier<'a>),
    /// Tells the peer to remove a stored response.
    Clr {
        /// Reason.
        reason: ClrReason,
        /// The request that the response answers.
        specifier: Specifier<'a>,
    },
    /// An opcode that is not implemented here: MON (2), SET (3), or 5 to 15, which the RFC does not
    /// define. It is sent without op-data.
    Other(u8),
}

/// The reason in a CLR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClrReason {
    /// None, or a reason that the RFC does not define.
    Unspecified,
    /// The origin reports that the resource does not exist.
    DoesNotExist,
}

/// A request for a resource (SPECIFIER, RFC 2756 section 3.2), unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Specifier<'a> {
    /// The method. GET and HEAD are equivalent here.
    pub method: &'a [u8],
    /// The absolute URL.
    pub uri: &'a [u8],
    /// The HTTP version: `HTTP/1.1`, or `1/1` from Squid.
    pub version: &'a [u8],
    /// Request fields as lines that end with CR LF; empty from Squid.
    pub request_fields: &'a [u8],
}

/// Fields of a stored response (DETAIL, RFC 2756 section 3.3), as lines that end with CR LF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail<'a> {
    /// Fields of the response, such as Age.
    pub response_fields: &'a [u8],
    /// Fields about the content, such as Expires and Last-Modified.
    pub entity_fields: &'a [u8],
    /// Fields added by the cache, such as Cache-to-Origin (RFC 2756 section 4).
    pub cache_fields: &'a [u8],
}

/// The content of a response message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response<'a> {
    /// Response to NOP.
    Nop,
    /// Response to TST: the response is stored. It may be stale.
    Present(Detail<'a>),
    /// Response to TST: no response is stored.
    Absent {
        /// Fields that the cache has nevertheless.
        cache_fields: &'a [u8],
    },
    /// Response to CLR.
    Clr(Cleared),
    /// Response to any operation: the whole message was refused (MO = 1).
    Refused {
        /// Opcode of the request.
        opcode: u8,
        /// Reason.
        failure: Failure,
    },
}

/// Result of a CLR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cleared {
    /// The response was stored and has been removed.
    Gone,
    /// The response is stored and will be kept.
    Kept,
    /// No response was stored.
    Absent,
}

/// Why a whole message is refused (RFC 2756 section 2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The message must be signed.
    AuthenticationRequired,
    /// The signature is not accepted.
    AuthenticationUnsatisfactory,
    /// The opcode is not supported.
    NotImplemented,
    /// The major version is not supported.
    MajorVersion,
    /// The minor version is not supported.
    MinorVersion,
    /// The sender lacks permission.
    Disallowed,
}

/// Why a datagram is ignored. The caller counts it and sends no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Ignored {
    /// The datagram, or a part in it, is truncated.
    #[error("the datagram or a part of it is cut off")]
    TooShort,
    /// The datagram is larger than [`DATAGRAM_BYTES_MAX`].
    #[error("the datagram is longer than {DATAGRAM_BYTES_MAX} octets")]
    TooLong,
    /// The version is neither 0.0 nor 0.1.
    #[error("HTCP version {major}.{minor} is not spoken")]
    Version {
        /// Major version.
        major: u8,
        /// Minor version.
        minor: u8,
    },
    /// The length of the message, of DATA or of AUTH does not fit into the datagram.
    #[error("a length field says {0} octets, which the datagram does not have")]
    Length(u16),
    /// A response code that is not defined for the opcode.
    #[error("response {code} to opcode {opcode} has no meaning")]
    Response {
        /// Opcode.
        opcode: u8,
        /// Response code.
        code: u8,
    },
}

/// Parses a datagram from a peer. The signature is not checked: see [`Message::check`].
pub fn parse(datagram: &[u8]) -> Result<Message<'_>, Ignored> {
    if datagram.len() > DATAGRAM_BYTES_MAX {
        return Err(Ignored::TooLong);
    }
    let mut rest = Octets::new(datagram);
    let length = rest.u16().ok_or(Ignored::TooShort)?;
    let [major, minor] = rest.array().ok_or(Ignored::TooShort)?;
    if major != MAJOR || minor > MINOR {
        return Err(Ignored::Version { major, minor });
    }
    if usize::from(length) != datagram.len() {
        return Err(Ignored::Length(length));
    }
    let data = part(&mut rest)?;
    let auth = part(&mut rest)?;
    let (transaction, body) = read_data(data)?;
    Ok(Message {
        minor,
        transaction,
        body,
        signed: auth::Signed::parse(data, auth).ok_or(Ignored::TooShort)?,
    })
}

/// DATA or AUTH with the length field, which includes itself.
fn part<'a>(rest: &mut Octets<'a>) -> Result<&'a [u8], Ignored> {
    let length = { *rest }.u16().ok_or(Ignored::TooShort)?;
    match rest.take(usize::from(length)) {
        Some(part) if length >= 2 => Ok(part),
        _ => Err(Ignored::Length(length)),
    }
}

fn read_data(data: &[u8]) -> Result<(u32, Body<'_>), Ignored> {
    let mut octets = Octets::new(data);
    let header: [u8; DATA_HEADER_BYTES] = octets.array().ok_or(Ignored::TooShort)?;
    let [_, _, operation, flags, transaction @ ..] = header;
    let (opcode, code) = (operation >> 4, operation & 0x0f);
    let f1 = flags & F1 != 0;
    let body = match flags & RR {
        0 => Body::Request {
            operation: Operation::read(opcode, octets).ok_or(Ignored::TooShort)?,
            wants_response: f1,
        },
        _ if f1 => Body::Response(Response::Refused {
            opcode,
            failure: Failure::of_code(code).ok_or(Ignored::Response { opcode, code })?,
        }),
        _ => Body::Response(Response::read(opcode, code, octets)?),
    };
    Ok((u32::from_be_bytes(transaction), body))
}

/// The flag RD in requests, MO in responses.
const F1: u8 = 2;
/// The flag for a response.
const RR: u8 = 1;

const NOP: u8 = 0;
const TST: u8 = 1;
const CLR: u8 = 4;

fn string<'a>(octets: &mut Octets<'a>) -> Option<&'a [u8]> {
    let length = octets.u16()?;
    octets.take(usize::from(length))
}

impl<'a> Operation<'a> {
    fn read(opcode: u8, mut octets: Octets<'a>) -> Option<Operation<'a>> {
        Some(match opcode {
            NOP => Operation::Nop,
            TST => Operation::Tst(Specifier::read(&mut octets)?),
            CLR => Operation::Clr {
                reason: match octets.u16()? & 0x0f {
                    1 => ClrReason::DoesNotExist,
                    _ => ClrReason::Unspecified,
                },
                specifier: Specifier::read(&mut octets)?,
            },
            _ => Operation::Other(opcode),
        })
    }

    /// Opcode of the operation; a refusal must repeat it.
    pub fn opcode(&self) -> u8 {
        match self {
            Operation::Nop => NOP,
            Operation::Tst(_) => TST,
            Operation::Clr { .. } => CLR,
            Operation::Other(opcode) => *opcode,
        }
    }
}

impl<'a> Specifier<'a> {
    /// GET for an absolute URL with these request fields, each a line that ends with CR LF.
    pub fn get(uri: &'a [u8], request_fields: &'a [u8]) -> Specifier<'a> {
        Specifier {
            method: b"GET",
            uri,
            version: b"HTTP/1.1",
            request_fields,
        }
    }

    fn read(octets: &mut Octets<'a>) -> Option<Specifier<'a>> {
        Some(Specifier {
            method: string(octets)?,
            uri: string(octets)?,
            version: string(octets)?,
            request_fields: string(octets)?,
        })
    }
}

impl<'a> Response<'a> {
    fn read(opcode: u8, code: u8, mut octets: Octets<'a>) -> Result<Response<'a>, Ignored> {
        Ok(match (opcode, code) {
            (NOP, 0) => Response::Nop,
            (TST, 0) => Response::Present(Detail::read(&mut octets).ok_or(Ignored::TooShort)?),
            // Squid sends a whole DETAIL with three empty strings; only the first is read.
            (TST, 1) => Response::Absent {
                cache_fields: string(&mut octets).unwrap_or_default(),
            },
            (CLR, 0) => Response::Clr(Cleared::Gone),
            (CLR, 1) => Response::Clr(Cleared::Kept),
            (CLR, 2) => Response::Clr(Cleared::Absent),
            _ => return Err(Ignored::Response { opcode, code }),
        })
    }
}

impl<'a> Detail<'a> {
    fn read(octets: &mut Octets<'a>) -> Option<Detail<'a>> {
        Some(Detail {
            response_fields: string(octets)?,
            entity_fields: string(octets)?,
            cache_fields: string(octets)?,
        })
    }
}

impl Failure {
    const ALL: [Failure; 6] = [
        Failure::AuthenticationRequired,
        Failure::AuthenticationUnsatisfactory,
        Failure::NotImplemented,
        Failure::MajorVersion,
        Failure::MinorVersion,
        Failure::Disallowed,
    ];

    fn code(self) -> u8 {
        self as u8
    }

    fn of_code(code: u8) -> Option<Failure> {
        Failure::ALL.into_iter().find(|it| it.code() == code)
    }
}

#[cfg(test)]
mod tests;
