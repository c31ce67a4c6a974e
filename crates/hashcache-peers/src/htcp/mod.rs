//! HTCP, "do you have the response to this request?" and "forget it", by UDP (RFC 2756).
//!
//! The proxy parses each datagram that a configured peer sends, and builds its own here (`write`).
//! TST, CLR and NOP are spoken, in both directions; a request of another operation (MON, SET) is
//! recognised, to be answered by [`Failure::NotImplemented`]. [`auth`] signs and checks.
//!
//! Squid differs from the RFC, and so the wire does: it says version 0.1, which is sent here as
//! well ([`MINOR`]); 0.0 is read too. It sends `1/1` for the HTTP version and no request fields.
//! After "absent" it sends and wants three strings where one belongs, and so three are sent here.
//! It neither signs nor checks, and sends CLR to its peers unasked.
//!
//! Invariant: a parsed message borrows all it has from the datagram, so it needs no memory.
//! Cost: one pass over the datagram.
//!
//! | part | fields |
//! |---|---|
//! | header | length of all (2), major (1), minor (1) |
//! | DATA | length (2), opcode and response (4 bits each), flags (1), transaction (4), op-data |
//! | AUTH | length (2; 2 means none), time (4), expiry (4), key name, signature |
//!
//! A string (COUNTSTR) has its length (2) before it. Each part may have padding at its end.

pub mod auth;
mod write;

use crate::octets::Octets;

pub use write::{Unsendable, datagram};

/// The customary UDP port.
pub const PORT: u16 = 4827;

/// The largest datagram that is sent or accepted, octets.
pub const DATAGRAM_BYTES_MAX: usize = 16_384;

/// The minor version that is sent: Squid answers no other.
pub const MINOR: u8 = 1;

const MAJOR: u8 = 0;

/// Octets of DATA before the op-data.
const DATA_HEADER_BYTES: usize = 8;

/// A datagram that was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The minor version; an answer should have the same.
    pub minor: u8,
    /// The transaction: a response has that of its request.
    pub transaction: u32,
    /// What it says.
    pub body: Body<'a>,
    signed: auth::Signed<'a>,
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// RR = 0.
    Request {
        /// What is asked.
        operation: Operation<'a>,
        /// RD: without it nothing may be sent back, and TST and NOP mean nothing.
        wants_response: bool,
    },
    /// RR = 1.
    Response(Response<'a>),
}

/// What a request asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// "Are you there?"
    Nop,
    /// "Do you have the response to this?"
    Tst(Specifier<'a>),
    /// "Forget the response to this."
    Clr {
        /// Why.
        reason: ClrReason,
        /// Which one.
        specifier: Specifier<'a>,
    },
    /// An opcode that is not implemented here: MON (2), SET (3), or 5 to 15, which the RFC does not
    /// have. It is sent without op-data.
    Other(u8),
}

/// Why a peer asks to forget a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClrReason {
    /// It does not say, or in a way that the RFC does not have.
    Unspecified,
    /// The origin says that the resource does not exist.
    DoesNotExist,
}

/// A request for a resource (SPECIFIER, RFC 2756 section 3.2). Nothing in it was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Specifier<'a> {
    /// The method. GET and HEAD mean the same here.
    pub method: &'a [u8],
    /// The absolute URL.
    pub uri: &'a [u8],
    /// The HTTP version: `HTTP/1.1`, or `1/1` from Squid.
    pub version: &'a [u8],
    /// Fields of the request as lines that end with CR LF; none from Squid.
    pub request_fields: &'a [u8],
}

/// Fields of a stored response (DETAIL, RFC 2756 section 3.3), as lines that end with CR LF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail<'a> {
    /// Fields of the response, such as Age.
    pub response_fields: &'a [u8],
    /// Fields of its content, such as Expires and Last-Modified.
    pub entity_fields: &'a [u8],
    /// What the cache adds, such as Cache-to-Origin (RFC 2756 section 4).
    pub cache_fields: &'a [u8],
}

/// What a response says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response<'a> {
    /// To NOP.
    Nop,
    /// To TST: the response is stored. It may be stale.
    Present(Detail<'a>),
    /// To TST: it is not stored.
    Absent {
        /// What the cache knows nevertheless.
        cache_fields: &'a [u8],
    },
    /// To CLR.
    Clr(Cleared),
    /// To any operation: the message was refused as a whole (MO = 1).
    Refused {
        /// The request's opcode.
        opcode: u8,
        /// Why.
        failure: Failure,
    },
}

/// What became of a CLR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cleared {
    /// The response was stored and is removed.
    Gone,
    /// It is stored and will be kept.
    Kept,
    /// It was not stored.
    Absent,
}

/// Why a message is refused as a whole (RFC 2756 section 2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// It must be signed.
    AuthenticationRequired,
    /// Its signature is not accepted.
    AuthenticationUnsatisfactory,
    /// The opcode is not known.
    NotImplemented,
    /// The major version is not spoken.
    MajorVersion,
    /// The minor version is not spoken.
    MinorVersion,
    /// The sender may not do this.
    Disallowed,
}

/// Why a datagram is not answered. The caller counts it and says nothing to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Ignored {
    /// It, or a part of it, ends within a field.
    #[error("the datagram or a part of it is cut off")]
    TooShort,
    /// It is larger than [`DATAGRAM_BYTES_MAX`].
    #[error("the datagram is longer than {DATAGRAM_BYTES_MAX} octets")]
    TooLong,
    /// Another version than 0.0 and 0.1.
    #[error("HTCP version {major}.{minor} is not spoken")]
    Version {
        /// The major version.
        major: u8,
        /// The minor version.
        minor: u8,
    },
    /// The length of the message, of DATA or of AUTH does not fit into the datagram.
    #[error("a length field says {0} octets, which the datagram does not have")]
    Length(u16),
    /// A response code that the opcode does not have.
    #[error("response {code} to opcode {opcode} has no meaning")]
    Response {
        /// The opcode.
        opcode: u8,
        /// The code.
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

/// DATA or AUTH with its length field, which counts itself.
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

/// The flag RD of requests, MO of responses.
const F1: u8 = 2;
/// The flag of a response.
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

    /// Its opcode, which a refusal has to name.
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
    /// GET of an absolute URL with these request fields, each a line that ends with CR LF.
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
            // Squid sends a whole DETAIL of empty strings, of which the first stands for the one.
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
