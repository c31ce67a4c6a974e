//! Failures in words: what a person reads on the error page.
//!
//! Called by `page` alone. The words are for whoever sits at the client: what happened, then what
//! to do, and a flag by name where one would help.
//!
//! Invariant: the only part that came from outside is the host, which `page` escapes.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use http::StatusCode;

use super::Failure;

/// What a person is told about a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Explanation {
    /// A few words for the top of the page.
    pub(crate) title: &'static str,
    /// What happened, one or two sentences.
    pub(crate) happened: Cow<'static, str>,
    /// What to do about it.
    pub(crate) advice: Cow<'static, str>,
}

impl Failure {
    /// What to tell the person who asked for `host`.
    pub(crate) fn explain(&self, host: Option<&str>) -> Explanation {
        let site = host.map_or(Cow::Borrowed("the site"), |host| {
            Cow::Owned(format!("“{host}”"))
        });
        let (title, happened, advice): (_, Cow<'static, str>, Cow<'static, str>) = match self {
            Self::Refused { status, reason } => (
                refused_title(*status),
                format!("The request was not passed on: {reason}.").into(),
                "This is a fault of the program that asked, not of the site. If it is your own \
                 program, mend the request; if not, update it or tell its makers."
                    .into(),
            ),
            Self::ClientDenied { client } => (
                "This proxy does not serve your device",
                format!("Your address, {client}, is not on this proxy’s list of clients.").into(),
                format!(
                    "If it should be, ask whoever runs the proxy to start it with \
                     --allow-client {client} (or with your whole network)."
                )
                .into(),
            ),
            Self::ClientLimit => (
                "Too many connections",
                "Your device, or all devices together, hold as many connections to this proxy as \
                 it allows."
                    .into(),
                "Close what you do not need and try again in a few seconds.".into(),
            ),
            Self::ConnectPortDenied { port } => (
                "This port is not open through the proxy",
                format!("A connection to port {port} of {site} was asked for.").into(),
                format!(
                    "If it is needed, ask whoever runs the proxy to start it with \
                     --allow-connect-port {port}."
                )
                .into(),
            ),
            Self::PortDenied { port } => (
                "This port is not open through the proxy",
                format!("A page at port {port} of {site} was asked for, where no web server is.")
                    .into(),
                format!(
                    "If there is one, ask whoever runs the proxy to start it with --allow-port \
                     {port}."
                )
                .into(),
            ),
            Self::DestinationDenied { address } => (
                "This address is not reachable through the proxy",
                format!(
                    "The address of {site} is {address}. This proxy does not go there: it is \
                     private, or on the list of refused destinations."
                )
                .into(),
                format!(
                    "If it is meant to be reached, go there without the proxy, or ask whoever \
                     runs it to start it with --allow-destination {address}."
                )
                .into(),
            ),
            Self::Loop => (
                "The request goes in a circle",
                "It came back to this proxy after it had been sent on.".into(),
                "The settings of this proxy or of one behind it point back here. Whoever runs \
                 them must mend that; trying again does not help."
                    .into(),
            ),
            Self::NameNotFound => (
                "There is no site of this name",
                format!("The name service says that {site} does not exist.").into(),
                "Check the spelling of the address.".into(),
            ),
            Self::NameError => (
                "The site’s name could not be looked up",
                format!("The name service had no usable answer about {site}.").into(),
                "Try again in a minute. If other sites fail too, the line or the name service is \
                 down: tell whoever runs this network."
                    .into(),
            ),
            Self::NameTimeout(waited) => (
                "The name service is silent",
                format!("No answer about {site} within {}.", Seconds(*waited)).into(),
                "The line may be down or busy. Try again in a minute; pages that are stored here \
                 still work."
                    .into(),
            ),
            Self::Unreachable => (
                "The site cannot be reached",
                format!("There is no way from here to any address of {site}.").into(),
                "The line may be down, or the site. Try again later; pages that are stored here \
                 still work."
                    .into(),
            ),
            Self::ConnectionRefused => (
                "The site refuses connections",
                format!("The machine of {site} is there, but takes no connections on this port.")
                    .into(),
                "Check the port in the address, or try again later.".into(),
            ),
            Self::ConnectTimeout(waited) => (
                "The site does not answer",
                format!("No connection to {site} within {}.", Seconds(*waited)).into(),
                "The site or the line may be down or busy. Try again later.".into(),
            ),
            Self::TlsCertificate(why) => (
                "The site cannot prove who it is",
                format!("The certificate of {site} is {why}. Nothing was sent there.").into(),
                "Do not enter anything secret there by another way. If it is a site of your own \
                 with a certificate of your own authority, ask whoever runs the proxy to start it \
                 with --upstream-ca FILE; if many sites fail, its clock may be wrong."
                    .into(),
            ),
            Self::TlsAlert(alert) => (
                "The site refuses a secure connection",
                format!("{} broke the handshake off: {alert}.", Capital(&site)).into(),
                "Check the name in the address; trying again is unlikely to help. Those who run \
                 the site can say what it asks for."
                    .into(),
            ),
            Self::TlsProtocol(why) => (
                "No secure connection to the site",
                format!("The handshake with {site} failed: {why}.").into(),
                "Check whether the address means http:// or another port. An old device may have \
                 to be reached without this proxy."
                    .into(),
            ),
            Self::ConnectionTerminated => (
                "The site hung up",
                format!("The connection to {site} broke before an answer came.").into(),
                "Try again. What you sent may have arrived all the same: look before you repeat \
                 an order or a message."
                    .into(),
            ),
            Self::FirstByteTimeout(waited) => (
                "The site is too slow",
                format!(
                    "{} took the request, but did not answer within {}.",
                    Capital(&site),
                    Seconds(*waited)
                )
                .into(),
                "Try again later. What you sent may have arrived all the same: look before you \
                 repeat an order or a message."
                    .into(),
            ),
            Self::ReadTimeout(waited) => (
                "The site stopped in the middle",
                format!("Nothing more came from {site} for {}.", Seconds(*waited)).into(),
                "Try again; what has come already may be served from here.".into(),
            ),
            Self::ResponseIncomplete => (
                "The answer is not whole",
                format!("The connection to {site} broke in the middle of the answer.").into(),
                "Try again; what has come already may be served from here.".into(),
            ),
            Self::ResponseMalformed(reason) => (
                "The site’s answer makes no sense",
                format!("What {site} sent is not sound HTTP: {reason}.").into(),
                "Trying again is unlikely to help; those who run the site must mend it.".into(),
            ),
            Self::UpstreamLimit => (
                "The proxy is busy",
                format!("All connections to {site}, or to all sites together, are in use.").into(),
                "Try again in a few seconds.".into(),
            ),
            Self::NotCached => (
                "Not stored here",
                "Only a stored copy was asked for (Cache-Control: only-if-cached), and there is \
                 none."
                    .into(),
                "Ask again without that wish, while the line is up.".into(),
            ),
            Self::NotImplemented(what) => (
                "This proxy cannot do that",
                format!("Not served here: {what}.").into(),
                "Go there without the proxy, or use http:// or https://.".into(),
            ),
            Self::Internal(what) => (
                "Something went wrong in the proxy",
                format!("A fault of ours, not of the site: {what}.").into(),
                "Try again. If it stays, tell whoever runs the proxy the request’s number below; \
                 the log has more."
                    .into(),
            ),
        };
        Explanation {
            title,
            happened,
            advice,
        }
    }
}

fn refused_title(status: StatusCode) -> &'static str {
    match status {
        StatusCode::METHOD_NOT_ALLOWED => "This cannot be done here",
        StatusCode::REQUEST_TIMEOUT => "The request took too long",
        StatusCode::PAYLOAD_TOO_LARGE => "The request is too large",
        StatusCode::URI_TOO_LONG => "The address is too long",
        StatusCode::EXPECTATION_FAILED => "The request expects what we do not know",
        StatusCode::MISDIRECTED_REQUEST => "This site is not served here",
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => "The request’s head is too large",
        StatusCode::HTTP_VERSION_NOT_SUPPORTED => "This version of HTTP is not spoken here",
        _ => "The request could not be understood",
    }
}

/// A time to wait as people say it: "10 s", "0.5 s".
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.subsec_millis() == 0 {
            write!(f, "{} s", self.0.as_secs())
        } else {
            write!(f, "{:.1} s", self.0.as_secs_f64())
        }
    }
}

/// The phrase for a site at the start of a sentence.
struct Capital<'a>(&'a str);

impl fmt::Display for Capital<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.strip_prefix('t') {
            Some(rest) => write!(f, "T{rest}"),
            None => f.write_str(self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn denials_name_the_flag_that_allows_them() {
        let advice = |failure: Failure| failure.explain(Some("a.test")).advice.into_owned();
        let address = IpAddr::from([10, 0, 0, 1]);
        assert!(
            advice(Failure::DestinationDenied { address }).contains("--allow-destination 10.0.0.1")
        );
        assert!(advice(Failure::PortDenied { port: 25 }).contains("--allow-port 25"));
        assert!(
            advice(Failure::ConnectPortDenied { port: 25 }).contains("--allow-connect-port 25")
        );
        assert!(
            advice(Failure::ClientDenied { client: address }).contains("--allow-client 10.0.0.1")
        );
    }

    #[test]
    fn sentences_name_the_site_and_the_time_waited() {
        let said = Failure::FirstByteTimeout(Duration::from_millis(1500))
            .explain(None)
            .happened;
        assert_eq!(
            said,
            "The site took the request, but did not answer within 1.5 s."
        );
        let said = Failure::ConnectTimeout(Duration::from_secs(10))
            .explain(Some("a.test"))
            .happened;
        assert_eq!(said, "No connection to “a.test” within 10 s.");
    }
}
