//! A hostile client or origin against all other clients: attacks on memory, connections and time
//! that they need too.
//!
//! Each attack runs against a separate proxy while an innocent client, from another address,
//! requests stored and new objects. The memory of the process is sampled all the time.
//!
//! Invariant: the innocent client is compared with itself: first without, then under attack.

mod attacks;
mod http2;
mod innocent;
mod origins;
mod process;

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::Verdict;
use crate::{ContentOrigin, Origin, Script};
use attacks::{Attackers, Entrance};
use innocent::{Fared, Innocent};
use origins::{HostileOrigin, Manner};
use process::{Watch, processor_time};

/// A byte stream in both directions.
pub trait Channel: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Channel for T {}

/// A TLS handshake on a socket, as client or as server. The caller provides it because this crate
/// has no TLS of its own.
pub type Shake = Arc<dyn Fn(TcpStream) -> Shaken + Send + Sync>;
/// Future for a handshake.
pub type Shaken = Pin<Box<dyn Future<Output = io::Result<Box<dyn Channel>>> + Send>>;

/// A proxy under attack.
#[derive(Clone)]
pub struct Play {
    /// Address for HTTP/1.1 without TLS.
    pub proxy: SocketAddr,
    /// Address for HTTP/2; `shake` is the handshake if HTTP/2 uses TLS there.
    pub http2: SocketAddr,
    /// TLS handshake at `http2`.
    pub shake: Option<Shake>,
    /// TLS handshake of an origin that offers only HTTP/2 and has a certificate that the proxy
    /// trusts.
    pub origin_shake: Option<Shake>,
    /// Admin listener.
    pub admin: SocketAddr,
    /// Proxy process.
    pub pid: u32,
    /// Resident memory limit, bytes.
    pub resident_max: u64,
    /// Attackers, as a percentage of the full attack.
    pub percent: u32,
    /// Time for which the innocent client is measured under attack; a quarter without attack.
    pub time: Duration,
    /// Limit for the median under attack, as a multiple of the median without attack; `None` if
    /// other tests run on the same machine.
    pub slower_max: Option<f64>,
}

/// Configuration that an attack requires of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Forward proxy, with HTTP/2 without TLS.
    Forward,
    /// Reverse proxy in front of the content origin, with TLS.
    Accelerator,
    /// Forward proxy that trusts the certificate of the hostile origin.
    TrustedOrigin,
}

/// An attack. Numbers of attackers are for 100 percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// HTTP/2 without TLS, stream windows of 0, 100 requests on each of 200 connections.
    ClosedWindows,
    /// As `ClosedWindows`, but with TLS.
    ClosedWindowsTls,
    /// HTTP/2 without TLS, windows open, large content that the clients do not read.
    UnreadStreams,
    /// As `UnreadStreams`, but with TLS.
    UnreadStreamsTls,
    /// 256 large objects that clients at one address request and do not read.
    UnreadDownloads,
    /// 512 requests from one address for large stored objects that the clients do not read.
    UnreadStored,
    /// 11 HTTP/2 connections with 1,100 requests that their origins never answer.
    UpstreamPlaces,
    /// 2,000 request heads from 10 addresses that never become complete.
    SlowHeads,
    /// 2,500 clients that request responses with heads of 57 KiB.
    ResponseHeads,
    /// 256 clients, 64 from each address, that request endless content.
    EndlessBodies,
    /// 40 connections to the admin listener that send nothing.
    IdleAdmin,
    /// An HTTP/2 origin that sends endless interim responses.
    EndlessInterim,
    /// An HTTP/2 origin that sends endless frames of an unknown type.
    UnknownFrames,
    /// Requests in made-up languages, until they would evict the stored variants of a URL.
    MadeUpVariants,
    /// A 60 KiB language list.
    LongLanguages,
}

impl Attack {
    /// All attacks.
    pub const ALL: [Self; 15] = [
        Self::ClosedWindows,
        Self::ClosedWindowsTls,
        Self::UnreadStreams,
        Self::UnreadStreamsTls,
        Self::UnreadDownloads,
        Self::UnreadStored,
        Self::UpstreamPlaces,
        Self::SlowHeads,
        Self::ResponseHeads,
        Self::EndlessBodies,
        Self::IdleAdmin,
        Self::EndlessInterim,
        Self::UnknownFrames,
        Self::MadeUpVariants,
        Self::LongLanguages,
    ];

    /// Returns the configuration that the attack requires.
    #[must_use]
    pub fn needs(self) -> Needs {
        match self {
            Self::ClosedWindowsTls | Self::UnreadStreamsTls | Self::UnreadDownloads => {
                Needs::Accelerator
            }
            Self::EndlessInterim | Self::UnknownFrames => Needs::TrustedOrigin,
            _ => Needs::Forward,
        }
    }

    /// Memory limit of the proxy, MiB. `UpstreamPlaces` gets more, so that its 11 connections
    /// exhaust the upstream places and not the memory first.
    #[must_use]
    pub fn memory_mib(self) -> u64 {
        match self {
            Self::UpstreamPlaces => 512,
            _ => 64,
        }
    }

    /// Runs the attack, while an innocent client requests objects of `origin`.
    pub async fn play(self, play: &Play, origin: &ContentOrigin) -> Verdict {
        let mut verdict = Verdict::new(format!("{self:?}"));
        let run = play.pid ^ self as u32;
        let innocent = Innocent {
            proxy: play.proxy,
            origin: origin.address(),
            run,
        };
        let watch = Watch::start(play.pid);
        innocent.ask("first", Duration::ZERO, 40).await;
        let quiet = innocent.ask("quiet", play.time / 4, 50).await;
        let under = match self.attack(play, origin, &innocent, &mut verdict).await {
            Ok(under) => under,
            Err(error) => {
                verdict.fault(format!("the attack could not be begun: {error}"));
                return verdict;
            }
        };
        judge(play, &quiet, &under, watch.peak(), &mut verdict);
        verdict
    }

    /// Runs the attack and the innocent client at the same time.
    async fn attack(
        self,
        play: &Play,
        origin: &ContentOrigin,
        innocent: &Innocent,
        verdict: &mut Verdict,
    ) -> io::Result<Fared> {
        let part = |full: u32| (full * play.percent / 100).max(1);
        let at = origin.address().to_string();
        let entrance = Entrance {
            at: play.http2,
            shake: play.shake.clone(),
        };
        let streams = |size: u32, window| {
            let at = at.clone();
            attacks::silent_streams(&entrance, part(200), 100, window, move |_, stream| {
                (at.clone(), format!("/attack/{stream}?size={size}"))
            })
        };
        let attackers = match self {
            Self::ClosedWindows | Self::ClosedWindowsTls => streams(100_000, 0),
            Self::UnreadStreams | Self::UnreadStreamsTls => streams(2_000_000, WINDOW_MAX),
            Self::UnreadDownloads => attacks::unread(play, part(256), 256, |client| {
                format!("http://{at}/unread/{client}?size=100000000")
            }),
            Self::UnreadStored => {
                let url = |object| format!("http://{at}/stored/{object}?size={STORED_BYTES}");
                for object in 0..STORED {
                    attacks::status(attacks::ADDRESS, play.proxy, &url(object), &[]).await?;
                }
                attacks::unread(play, part(512), u32::MAX, |client| url(client % STORED))
            }
            Self::SlowHeads => attacks::slow_heads(play, part(2000), 200, 60_000),
            Self::IdleAdmin => return admin(play, innocent, part(40), verdict).await,
            Self::UpstreamPlaces => return silent(play, innocent, part(11)).await,
            Self::ResponseHeads => {
                let hostile = HostileOrigin::start(Manner::LargeHead(57 << 10), None).await?;
                let attackers = attacks::unread(play, part(2500), 250, |client| {
                    format!("http://{}/head/{client}", hostile.address)
                });
                return Ok(while_attacked(play, innocent, attackers).await);
            }
            Self::EndlessBodies => {
                let hostile = HostileOrigin::start(Manner::Endless, None).await?;
                let attackers = attacks::slow_readers(play, part(256), 64, |client| {
                    format!("http://{}/endless/{client}", hostile.address)
                });
                return Ok(while_attacked(play, innocent, attackers).await);
            }
            Self::EndlessInterim => {
                return flooding(play, innocent, Manner::Interim, verdict).await;
            }
            Self::UnknownFrames => {
                return flooding(play, innocent, Manner::UnknownFrames, verdict).await;
            }
            Self::MadeUpVariants => return made_up_variants(play, innocent, verdict).await,
            Self::LongLanguages => return long_languages(play, innocent, verdict).await,
        };
        Ok(while_attacked(play, innocent, attackers).await)
    }
}

/// Measures the innocent client from the first moment of an attack on.
async fn while_attacked(play: &Play, innocent: &Innocent, attackers: Attackers) -> Fared {
    let fared = innocent.ask("attacked", play.time, 100).await;
    drop(attackers);
    fared
}

fn judge(play: &Play, quiet: &Fared, under: &Fared, peak: u64, verdict: &mut Verdict) {
    let mib = |bytes: u64| bytes >> 20;
    let (before, after) = (quiet.median(), under.median());
    let seen = format!(
        "{} of {} innocent requests served, median {after:.1?} (quiet {before:.1?}), peak {} MiB",
        under.served,
        under.asked,
        mib(peak)
    );
    verdict.seen = if verdict.seen.is_empty() {
        seen
    } else {
        format!("{}; {seen}", verdict.seen)
    };
    verdict.figure("peak_bytes", precise(peak));
    verdict.figure("served", f64::from(under.served));
    verdict.figure("asked", f64::from(under.asked));
    verdict.figure("quiet_median_ms", before.as_secs_f64() * 1e3);
    verdict.figure("attacked_median_ms", after.as_secs_f64() * 1e3);
    verdict.expect(quiet.served == quiet.asked, || {
        format!(
            "not all were served before the attack: {:?}",
            quiet.refusals
        )
    });
    verdict.expect(under.served * 100 >= under.asked * 99, || {
        format!("fewer than 99 of 100 were served: {:?}", under.refusals)
    });
    verdict.expect(peak <= play.resident_max, || {
        let bar = mib(play.resident_max);
        format!("resident memory was {} MiB, bar {bar} MiB", mib(peak))
    });
    if let Some(most) = play.slower_max {
        verdict.expect(after.as_secs_f64() <= before.as_secs_f64() * most, || {
            format!("the median is more than {most} times the quiet one")
        });
    }
}

/// No process has 2^53 bytes, so the conversion is exact.
#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn precise(number: u64) -> f64 {
    number as f64
}

/// Sends as many requests over HTTP/2 as there are upstream places, to origins that never answer.
async fn silent(play: &Play, innocent: &Innocent, connections: u32) -> io::Result<Fared> {
    let mut hostile = Vec::new();
    for _ in 0..SILENT_ORIGINS {
        hostile.push(HostileOrigin::start(Manner::Silent, None).await?);
    }
    let entrance = Entrance {
        at: play.http2,
        shake: None,
    };
    let attackers = attacks::silent_streams(
        &entrance,
        connections,
        100,
        WINDOW_MAX,
        |connection, stream| {
            let at = &hostile[(stream as usize) % hostile.len()];
            (at.address.to_string(), format!("/{connection}/{stream}"))
        },
    );
    Ok(while_attacked(play, innocent, attackers).await)
}

/// Opens connections to the admin listener and checks that it still answers `/-/healthy` fast.
async fn admin(
    play: &Play,
    innocent: &Innocent,
    connections: u32,
    verdict: &mut Verdict,
) -> io::Result<Fared> {
    let attackers = attacks::idle(play.admin, connections);
    let asking = while_attacked(play, innocent, attackers);
    let checking = async {
        let (mut times, end) = (vec![], Instant::now() + play.time);
        while Instant::now() < end {
            let begun = Instant::now();
            let url = format!("http://{}/-/healthy", play.admin);
            let asked = attacks::status(Ipv4Addr::LOCALHOST, play.admin, &url, &[]);
            let healthy = timeout(Duration::from_secs(15), asked).await;
            times.push(begun.elapsed());
            if !matches!(healthy, Ok(Ok(200))) {
                return (times, Some(format!("{healthy:?}")));
            }
            sleep(Duration::from_millis(100)).await;
        }
        (times, None)
    };
    let (fared, (mut times, fault)) = tokio::join!(asking, checking);
    times.sort_unstable();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    let slowest = times.last().copied().unwrap_or_default();
    verdict.seen = format!("/-/healthy took {slowest:.1?} at most");
    verdict.figure("healthy_ms", slowest.as_secs_f64() * 1e3);
    verdict.expect(fault.is_none(), || format!("/-/healthy: {fault:?}"));
    // Less than the time that idle connections may stay: a busy machine may stall for a second or
    // two.
    let is_quick = middle < Duration::from_secs(1) && slowest < Duration::from_millis(4500);
    verdict.expect(is_quick, || {
        format!("/-/healthy took {middle:.1?}, and {slowest:.1?} at most")
    });
    Ok(fared)
}

/// An origin sends endless frames: the proxy must close the connection soon.
async fn flooding(
    play: &Play,
    innocent: &Innocent,
    manner: Manner,
    verdict: &mut Verdict,
) -> io::Result<Fared> {
    let hostile = HostileOrigin::start(manner, play.origin_shake.clone()).await?;
    let url = format!("https://{}/flood", hostile.address);
    let before = processor_time(play.pid);
    let asking = attacks::status(attacks::ADDRESS, play.proxy, &url, &[]);
    let asking = timeout(play.time.max(Duration::from_secs(5)), asking);
    let (asked, fared) = tokio::join!(asking, while_attacked(play, innocent, Attackers::new()));
    let took = processor_time(play.pid) - before;
    verdict.seen = format!(
        "the origin sent {} kB, the request ended with {asked:?}, {took:.1?} of processor time",
        hostile.sent() / 1000
    );
    verdict.figure("flood_bytes", precise(hostile.sent()));
    verdict.expect(hostile.sent() > 0, || "the origin sent nothing".to_owned());
    verdict.expect(hostile.sent() <= FLOOD_MAX, || {
        format!("the origin could send more than {FLOOD_MAX} bytes")
    });
    verdict.expect(matches!(asked, Ok(Ok(502))), || {
        "the request did not end with 502".to_owned()
    });
    Ok(fared)
}

/// A client requests a URL in made-up languages; the stored variants of other clients must stay.
async fn made_up_variants(
    play: &Play,
    innocent: &Innocent,
    verdict: &mut Verdict,
) -> io::Result<Fared> {
    let fields = [
        ("Cache-Control", "max-age=3600"),
        ("Vary", "Accept-Language"),
    ];
    let answer = Script::response(200, &fields, "content");
    let origin = Origin::start(move |_| answer.clone()).await?;
    let url = origin.url("/page");
    let others = Ipv4Addr::new(127, 0, 8, 8);
    let real = ["de", "en", "fr", "it"];
    for language in real {
        let fields = [("Accept-Language", language)];
        attacks::status(others, play.proxy, &url, &fields).await?;
    }
    for number in 0..MADE_UP {
        let language = format!("x-{number}");
        let fields = [("Accept-Language", language.as_str())];
        attacks::status(attacks::ADDRESS, play.proxy, &url, &fields).await?;
    }
    let mut kept = 0;
    for language in real {
        let fields = [
            ("Accept-Language", language),
            ("Cache-Control", "only-if-cached"),
        ];
        let status = attacks::status(others, play.proxy, &url, &fields).await?;
        kept += u32::from(status == 200);
    }
    verdict.seen = format!("{kept} of {} variants are still stored", real.len());
    verdict.expect(kept == 4, || "variants of others were evicted".to_owned());
    Ok(while_attacked(play, innocent, Attackers::new()).await)
}

/// Measures the processor time for a request with a long language list.
async fn long_languages(
    play: &Play,
    innocent: &Innocent,
    verdict: &mut Verdict,
) -> io::Result<Fared> {
    let fields = [
        ("Cache-Control", "max-age=3600"),
        ("Vary", "Accept-Language"),
    ];
    let answer = Script::response(200, &fields, "content");
    let origin = Origin::start(move |_| answer.clone()).await?;
    let url = origin.url("/page");
    let short = [("Accept-Language", "de")];
    attacks::status(attacks::ADDRESS, play.proxy, &url, &short).await?;
    let mut list = String::new();
    for number in (0..).take_while(|number| *number < 12_000) {
        list += &format!("{:x};q=0.{},", number % 4096, number % 1000);
        if list.len() > 59_000 {
            break;
        }
    }
    let time = |value: String| {
        let url = url.clone();
        async move {
            let before = processor_time(play.pid);
            for _ in 0..LONG_ASKED {
                let fields = [("Accept-Language", value.as_str())];
                attacks::status(attacks::ADDRESS, play.proxy, &url, &fields).await?;
            }
            io::Result::Ok((processor_time(play.pid) - before) / LONG_ASKED)
        }
    };
    let (mut plain, mut long) = (Duration::MAX, Duration::MAX);
    // Alternately, and the minimum counts, because a busy machine adds time to some rounds.
    for _ in 0..LONG_ROUNDS {
        plain = plain.min(time("x".repeat(59_000)).await?);
        long = long.min(time(list.clone()).await?);
    }
    verdict.seen = format!("{long:.2?} of processor time a request, {plain:.2?} without the list");
    verdict.figure("processor_ms", long.as_secs_f64() * 1e3);
    verdict.expect(long <= plain + Duration::from_millis(1), || {
        "a list costs more than a millisecond beside what its bytes cost".to_owned()
    });
    Ok(while_attacked(play, innocent, Attackers::new()).await)
}

/// The largest window of a stream (RFC 9113, section 6.9.1).
const WINDOW_MAX: u32 = (1 << 31) - 1;
/// Large objects that are stored before the attackers request and do not read them, and their size:
/// the sockets take up to 3 MB of each response.
const STORED: u32 = 16;
const STORED_BYTES: u32 = 8_000_000;
const SILENT_ORIGINS: usize = 5;
/// Bytes that an origin may send in useless frames before the proxy closes the connection; part of
/// it is held by the sockets.
const FLOOD_MAX: u64 = 16 << 20;
/// One more than a variant table has rows.
const MADE_UP: u32 = 17;
const LONG_ASKED: u32 = 25;
const LONG_ROUNDS: u32 = 4;
