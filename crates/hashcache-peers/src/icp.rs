//! ICP version 2: a cache queries another cache for a URL, with one UDP datagram in each direction
//! (RFC 2186, use: RFC 2187).
//!
//! The proxy parses each datagram from a configured peer, and builds all outgoing datagrams here. A
//! datagram that cannot be parsed gets no reply and is counted: [`Ignored`] is the reason.
//!
//! Not supported, and ignored on arrival: the options SRC_RTT and HIT_OBJ, the opcodes HIT_OBJ,
//! SECHO and DECHO, and every version except 2. Squid also answers HIT_OBJ with a plain HIT.
//!
//! Invariant: a reply is four octets shorter than the query, so amplification is impossible.
//! Cost: parsing copies nothing; building allocates the datagram.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | opcode |
//! | 1 | 1 | version, 2 |
//! | 2 | 2 | length of the message, this header included |
//! | 4 | 4 | request number |
//! | 8 | 4 | options |
//! | 12 | 4 | option data |
//! | 16 | 4 | sender host address: 0 is sent, what is received is not looked at |
//! | 20 | … | QUERY: requester address (4), URL, NUL; replies: URL, NUL |

use std::net::Ipv4Addr;

use crate::octets::Octets;

/// Maximum size of a sent or accepted datagram, in octets (RFC 2186 section "ICP Message Format").
pub const DATAGRAM_BYTES_MAX: usize = 16_384;

/// The usual UDP port.
pub const PORT: u16 = 3130;

/// Size of the header before the payload, in octets.
pub const HEADER_BYTES: usize = 20;

const VERSION: u8 = 2;
const QUERY: u8 = 1;

/// Size of the requester address in a query, in octets.
const REQUESTER_BYTES: usize = 4;

/// Maximum URL length in octets: a query for such a URL has the maximum datagram size.
pub const URL_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - HEADER_BYTES - REQUESTER_BYTES - 1;

/// A parsed datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A query from a peer.
    Query(Query<'a>),
    /// A reply from a peer.
    Reply(Reply<'a>),
}

/// A query for a URL. ICP queries are for GET, without any request fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    number: u32,
    requester: Ipv4Addr,
    url: &'a [u8],
}

/// The reply to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    answer: Answer,
    number: u32,
    url: &'a [u8],
}

/// The answer in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The object is stored and fresh: the peer may fetch it here.
    Hit,
    /// No such object; a parent invites the peer to fetch it through the parent.
    Miss,
    /// The URL in the query could not be parsed.
    Err,
    /// The peer may not fetch this URL here.
    Denied,
    /// No such object, and the cache does not currently fetch misses for the peer.
    MissNoFetch,
}

impl Answer {
    const ALL: [Answer; 5] = [
        Answer::Hit,
        Answer::Miss,
        Answer::Err,
        Answer::Denied,
        Answer::MissNoFetch,
    ];

    fn opcode(self) -> u8 {
        match self {
            Answer::Hit => 2,
            Answer::Miss => 3,
            Answer::Err => 4,
            Answer::MissNoFetch => 21,
            Answer::Denied => 22,
        }
    }

    fn of_opcode(opcode: u8) -> Option<Answer> {
        Answer::ALL.into_iter().find(|it| it.opcode() == opcode)
    }
}

/// Why a datagram is ignored. The caller counts it and sends no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Ignored {
    /// The datagram is truncated in the header or in a fixed field of the opcode.
    #[error("the datagram is cut off")]
    TooShort,
    /// The datagram is larger than [`DATAGRAM_BYTES_MAX`].
    #[error("the datagram is longer than {DATAGRAM_BYTES_MAX} octets")]
    TooLong,
    /// The version is not 2.
    #[error("ICP version {0} is not spoken")]
    Version(u8),
    /// The length field differs from the size of the datagram.
    #[error("the length field says {0} octets, which the datagram does not have")]
    Length(u16),
    /// The opcode is unknown here; [`update::OPCODE`](crate::update::OPCODE) has a separate parser.
    #[error("opcode {0} is not spoken")]
    Opcode(u8),
    /// The URL is not terminated by NUL, or octets follow the NUL.
    #[error("the URL does not end with the datagram's only NUL")]
    Url,
}

/// The URL does not fit into a datagram: the caller then does not query peers by ICP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a URL of {bytes} octets that ICP cannot carry: at most {URL_BYTES_MAX}, none of them NUL")]
pub struct UnsendableUrl {
    /// Length of the URL in octets.
    pub bytes: usize,
}

/// Parses a datagram from a peer.
pub fn parse(datagram: &[u8]) -> Result<Message<'_>, Ignored> {
    let header = Header::parse(datagram)?;
    let mut payload = header.payload;
    if header.opcode == QUERY {
        let requester = payload.array().ok_or(Ignored::TooShort)?;
        return Ok(Message::Query(Query {
            number: header.number,
            requester: Ipv4Addr::from(requester),
            url: terminated(payload)?,
        }));
    }
    Ok(Message::Reply(Reply {
        answer: Answer::of_opcode(header.opcode).ok_or(Ignored::Opcode(header.opcode))?,
        number: header.number,
        url: terminated(payload)?,
    }))
}

impl<'a> Query<'a> {
    /// A query for `url`. `number` should be random: a reply must repeat it, so an attacker that
    /// does not see the query must guess it. The requester address is 0, as in Squid.
    pub fn new(number: u32, url: &'a [u8]) -> Result<Query<'a>, UnsendableUrl> {
        Ok(Query {
            number,
            requester: Ipv4Addr::UNSPECIFIED,
            url: sendable(url)?,
        })
    }

    /// The request number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The address of the peer's client, or 0.0.0.0 if the peer does not send it. Must never be
    /// trusted.
    pub fn requester(&self) -> Ipv4Addr {
        self.requester
    }

    /// The URL, checked only for NULs; the reply to a malformed URL is [`Answer::Err`].
    pub fn url(&self) -> &'a [u8] {
        self.url
    }

    /// The reply to this query, with the same number and URL.
    pub fn reply(&self, answer: Answer) -> Reply<'a> {
        Reply {
            answer,
            number: self.number,
            url: self.url,
        }
    }

    /// Encodes the datagram.
    pub fn to_datagram(&self) -> Vec<u8> {
        let header = Header {
            opcode: QUERY,
            number: self.number,
            ..Header::default()
        };
        let requester = self.requester.octets();
        header.datagram(&[&requester, self.url, &[0]])
    }
}

impl<'a> Reply<'a> {
    /// A reply from its parts; [`Query::reply`] builds the reply to a received query.
    pub fn new(answer: Answer, number: u32, url: &'a [u8]) -> Result<Reply<'a>, UnsendableUrl> {
        Ok(Reply {
            answer,
            number,
            url: sendable(url)?,
        })
    }

    /// The answer.
    pub fn answer(&self) -> Answer {
        self.answer
    }

    /// The request number of the query.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The URL of the query.
    pub fn url(&self) -> &'a [u8] {
        self.url
    }

    /// Returns true if the reply belongs to `query`: number and URL are equal (RFC 2187 section
    /// 5.3). The caller must check that the queried peer has sent it.
    pub fn answers(&self, query: &Query<'_>) -> bool {
        self.number == query.number && self.url == query.url
    }

    /// Encodes the datagram.
    pub fn to_datagram(&self) -> Vec<u8> {
        let header = Header {
            opcode: self.answer.opcode(),
            number: self.number,
            ..Header::default()
        };
        header.datagram(&[self.url, &[0]])
    }
}

/// The header that all opcodes share; `update` also reads and writes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header<'a> {
    pub(crate) opcode: u8,
    pub(crate) number: u32,
    pub(crate) options: u32,
    pub(crate) payload: Octets<'a>,
}

impl Default for Header<'_> {
    fn default() -> Self {
        Header {
            opcode: 0,
            number: 0,
            options: 0,
            payload: Octets::new(&[]),
        }
    }
}

impl<'a> Header<'a> {
    pub(crate) fn parse(datagram: &'a [u8]) -> Result<Header<'a>, Ignored> {
        if datagram.len() > DATAGRAM_BYTES_MAX {
            return Err(Ignored::TooLong);
        }
        let (header, version, length) = Header::read(datagram).ok_or(Ignored::TooShort)?;
        // Checked first, because in another version the other fields may have a different meaning.
        if version != VERSION {
            return Err(Ignored::Version(version));
        }
        if usize::from(length) != datagram.len() {
            return Err(Ignored::Length(length));
        }
        Ok(header)
    }

    /// The header, the version and the length field.
    fn read(datagram: &'a [u8]) -> Option<(Header<'a>, u8, u16)> {
        let mut octets = Octets::new(datagram);
        let opcode = octets.u8()?;
        let version = octets.u8()?;
        let length = octets.u16()?;
        let number = octets.u32()?;
        let options = octets.u32()?;
        let _option_data = octets.u32()?;
        let _sender = octets.u32()?;
        let header = Header {
            opcode,
            number,
            options,
            payload: octets,
        };
        Some((header, version, length))
    }

    /// The datagram with this header and the given payload, which the caller has bounded.
    pub(crate) fn datagram(&self, payload: &[&[u8]]) -> Vec<u8> {
        let length = HEADER_BYTES + payload.iter().map(|part| part.len()).sum::<usize>();
        let mut datagram = Vec::with_capacity(length);
        datagram.extend_from_slice(&[self.opcode, VERSION]);
        let length = u16::try_from(length).expect("every constructor bounds what it takes");
        datagram.extend_from_slice(&length.to_be_bytes());
        datagram.extend_from_slice(&self.number.to_be_bytes());
        datagram.extend_from_slice(&self.options.to_be_bytes());
        // Option data and sender host address.
        datagram.extend_from_slice(&[0; 8]);
        for part in payload {
            datagram.extend_from_slice(part);
        }
        datagram
    }
}

/// The URL before the NUL that terminates the payload. A datagram with octets after the NUL is
/// rejected, because two parsers could see different URLs.
fn terminated(payload: Octets<'_>) -> Result<&[u8], Ignored> {
    let (last, url) = payload.rest().split_last().ok_or(Ignored::Url)?;
    if *last == 0 && !url.contains(&0) {
        Ok(url)
    } else {
        Err(Ignored::Url)
    }
}

fn sendable(url: &[u8]) -> Result<&[u8], UnsendableUrl> {
    if url.len() <= URL_BYTES_MAX && !url.contains(&0) {
        Ok(url)
    } else {
        Err(UnsendableUrl { bytes: url.len() })
    }
}

#[cfg(test)]
mod tests;
