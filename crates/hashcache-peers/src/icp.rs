//! ICP version 2: "do you have this URL?", one UDP datagram each way (RFC 2186, use: RFC 2187).
//!
//! The proxy parses each datagram that a configured peer sends, and builds its own here. A
//! datagram that is not understood gets no answer and is counted: [`Ignored`] is the reason.
//!
//! Left out, and ignored where it arrives: the options SRC_RTT and HIT_OBJ, the opcodes HIT_OBJ,
//! SECHO and DECHO, and every version but 2. Squid answers HIT_OBJ by a plain HIT too.
//!
//! Invariant: a reply is four octets shorter than its query, so no amplification is possible.
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

/// The largest datagram that is sent or accepted, octets (RFC 2186 section "ICP Message Format").
pub const DATAGRAM_BYTES_MAX: usize = 16_384;

/// The customary UDP port.
pub const PORT: u16 = 3130;

/// Octets before the payload.
pub const HEADER_BYTES: usize = 20;

const VERSION: u8 = 2;
const QUERY: u8 = 1;

/// Octets of a query's requester address.
const REQUESTER_BYTES: usize = 4;

/// Longest URL, octets: a query of it is as large as a datagram may be.
pub const URL_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - HEADER_BYTES - REQUESTER_BYTES - 1;

/// A datagram that was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A peer asks.
    Query(Query<'a>),
    /// A peer answers.
    Reply(Reply<'a>),
}

/// "Do you have this URL?" ICP asks about GET, without any fields of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    number: u32,
    requester: Ipv4Addr,
    url: &'a [u8],
}

/// The answer to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    answer: Answer,
    number: u32,
    url: &'a [u8],
}

/// What a reply says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The object is stored and fresh: fetch it here.
    Hit,
    /// It is not; a parent invites to fetch it through itself.
    Miss,
    /// The query's URL could not be parsed.
    Err,
    /// The asker may not have this URL from here.
    Denied,
    /// It is not here, and misses are not fetched for the asker now.
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

/// Why a datagram is not answered. The caller counts it and says nothing to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Ignored {
    /// It ends within the header or within a fixed field of its opcode.
    #[error("the datagram is cut off")]
    TooShort,
    /// It is larger than [`DATAGRAM_BYTES_MAX`].
    #[error("the datagram is longer than {DATAGRAM_BYTES_MAX} octets")]
    TooLong,
    /// Another version than 2.
    #[error("ICP version {0} is not spoken")]
    Version(u8),
    /// The length field differs from the datagram's length.
    #[error("the length field says {0} octets, which the datagram does not have")]
    Length(u16),
    /// An opcode that is not known here; [`update::OPCODE`](crate::update::OPCODE) has a parser of
    /// its own.
    #[error("opcode {0} is not spoken")]
    Opcode(u8),
    /// The URL has no NUL at its end, or octets follow the NUL.
    #[error("the URL does not end with the datagram's only NUL")]
    Url,
}

/// A URL that no datagram can carry: the caller asks no peer by ICP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a URL of {bytes} octets that ICP cannot carry: at most {URL_BYTES_MAX}, none of them NUL")]
pub struct UnsendableUrl {
    /// Its length, octets.
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
    /// A query about `url`. `number` should be random: a reply must repeat it, so a forger that
    /// does not see the query has to guess it. The requester address is 0, as Squid sends it.
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

    /// The address of the client for which the peer asks, 0.0.0.0 if it does not say. Never to be
    /// trusted.
    pub fn requester(&self) -> Ipv4Addr {
        self.requester
    }

    /// The URL, not checked in any way but for NULs; an unparsable one gets [`Answer::Err`].
    pub fn url(&self) -> &'a [u8] {
        self.url
    }

    /// The reply to this query: it has its number and its URL.
    pub fn reply(&self, answer: Answer) -> Reply<'a> {
        Reply {
            answer,
            number: self.number,
            url: self.url,
        }
    }

    /// The datagram.
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
    /// A reply from its parts; [`Query::reply`] makes the one to a query that was received.
    pub fn new(answer: Answer, number: u32, url: &'a [u8]) -> Result<Reply<'a>, UnsendableUrl> {
        Ok(Reply {
            answer,
            number,
            url: sendable(url)?,
        })
    }

    /// What it says.
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

    /// Whether it answers `query`: number and URL are the same (RFC 2187 section 5.3). That it came
    /// from the peer that was asked is for the caller to see.
    pub fn answers(&self, query: &Query<'_>) -> bool {
        self.number == query.number && self.url == query.url
    }

    /// The datagram.
    pub fn to_datagram(&self) -> Vec<u8> {
        let header = Header {
            opcode: self.answer.opcode(),
            number: self.number,
            ..Header::default()
        };
        header.datagram(&[self.url, &[0]])
    }
}

/// What all opcodes share; `update` reads and writes it as well.
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
        // First of all, since another version may mean other things by the rest.
        if version != VERSION {
            return Err(Ignored::Version(version));
        }
        if usize::from(length) != datagram.len() {
            return Err(Ignored::Length(length));
        }
        Ok(header)
    }

    /// The header, its version and its length field.
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

    /// The datagram of this header and the given payload, which the caller has bounded.
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

/// The URL before the NUL that ends the payload. With octets after the NUL two readers could see
/// two URLs, so such a datagram is refused.
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
