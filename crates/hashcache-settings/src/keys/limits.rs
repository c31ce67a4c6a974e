//! The table `[limits]`: bounds on the resources that a client or origin may take.
//!
//! The defaults are from `hashcache_proxy::Limits`; the comments there give the reasons.

use super::types::{COUNT, MEMORY_SIZE, PERCENT, POSITIVE_TIME, SIZE, TIME};
use crate::key::{Key, Section};

/// A row of the table, with the name of the field.
macro_rules! limit {
    ($field:ident, $type:expr) => {
        one!(
            concat!("limits.", stringify!($field)),
            startup.limits.$field,
            $type
        )
    };
}

pub(super) static SECTION: Section = Section {
    heading: "Limits",
    keys: KEYS,
};

static KEYS: &[Key] = &[
    limit!(clients, COUNT)
        .about("Connections from all clients")
        .details(
            "At the limit, a new client gets the place of a slow request, or of the connection \
             that has been idle longest. The proxy sets 1,024 open files aside (a quarter if it \
             may open fewer than 4,096); each client takes two of the rest.",
        ),
    limit!(clients_per_address, COUNT)
        .about("Connections from one client")
        .details("A client is an IPv4 address or an IPv6 /64 network."),
    limit!(client_share, PERCENT)
        .about("Percentage of memory and of upstream connections that one client may take")
        .details("Set it to 100 behind a load balancer and where many people share one address."),
    limit!(streams, COUNT).about("Concurrent requests on one HTTP/2 connection"),
    limit!(frames, COUNT)
        .about("HTTP/2 frames that request nothing (PING, SETTINGS, RST_STREAM) in a burst")
        .details(
            "A sixteenth of it is granted again each second, and one frame for each KiB sent to \
             the client. Also applies to origins.",
        ),
    limit!(head_bytes, MEMORY_SIZE)
        .about("Size of a head, of a request or of an origin's response"),
    limit!(head_fields, COUNT)
        .about("Field lines in a head, of a request or of an origin's response"),
    limit!(target_bytes, MEMORY_SIZE).about("Size of a request target"),
    limit!(chunk_extension_bytes, MEMORY_SIZE).about("Size of the extensions of one chunk"),
    limit!(head_time, POSITIVE_TIME)
        .about("Time for a request head to arrive, after its first byte"),
    limit!(idle_time, POSITIVE_TIME).about("Idle time of a client connection between requests"),
    limit!(progress_time, POSITIVE_TIME)
        .about("Time without progress while a request is read or a response is sent"),
    limit!(connect_time, POSITIVE_TIME)
        .about("Time to connect to an origin, over all its addresses"),
    limit!(first_byte_time, POSITIVE_TIME)
        .about("Time from a request to the first byte of the origin's response"),
    limit!(peer_first_byte_time, POSITIVE_TIME)
        .about("Time for the first byte of a peer's response while another next hop is left")
        .details(
            "All peers of a request together get this time. A peer that answers nothing at all is \
             found out earlier, by a probe after 2 s. Raise it if fetches through a parent take \
             long and are not to be repeated directly.",
        ),
    limit!(between_bytes_time, POSITIVE_TIME).about("Time between bytes of an origin's response"),
    limit!(upstream_per_origin, COUNT).about("Busy connections to one origin"),
    limit!(upstream, COUNT).about("Busy connections to all origins"),
    limit!(upstream_idle_time, TIME).about("How long an idle connection to an origin is kept"),
    limit!(dns_time, POSITIVE_TIME).about("Time for a name lookup"),
    limit!(tunnel_idle_time, POSITIVE_TIME).about("Idle time of a tunnel, both directions"),
    limit!(drain_time, TIME).about("Time for open requests to finish when the proxy stops"),
    limit!(read_ahead, SIZE).about("How far a fetch may run ahead of its fastest client"),
];
