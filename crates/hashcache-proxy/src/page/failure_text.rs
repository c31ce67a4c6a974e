//! Explains failures on the error page.
//!
//! Called only by `page`. The text is for the person at the client: first the problem, then the
//! advice, with the name of a flag if it helps.
//!
//! Invariant: the only foreign parts are the host and the operator's text about a rule; `page`
//! escapes all text.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use hashcache_base::failure::{Failure, QuotaDenial, RuleDenial};
use hashcache_base::frame::Size;
use http::StatusCode;

/// Explanation for a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Explanation {
    /// Page title, a few words.
    pub(super) title: &'static str,
    /// The problem, one or two sentences.
    pub(super) happened: Cow<'static, str>,
    /// The advice.
    pub(super) advice: Cow<'static, str>,
}

/// Explains a failed request for `host`.
pub(super) fn explain(failure: &Failure, host: Option<&str>) -> Explanation {
    let site = host.map_or(Cow::Borrowed("the site"), |host| {
        Cow::Owned(format!("“{host}”"))
    });
    let (title, happened, advice): (_, Cow<'static, str>, Cow<'static, str>) = match failure {
        Failure::Refused { status, reason } => (
            refused_title(*status),
            format!("The proxy did not forward the request: {reason}.").into(),
            refused_advice(*status, reason).into(),
        ),
        Failure::OriginForm => (
            "This is a proxy, not the site",
            format!(
                "The program asked for a page of {site} as if this proxy were the server of \
                 the site."
            )
            .into(),
            "Set this proxy in the settings of the program: as http_proxy, as the proxy for \
             HTTP and HTTPS, or by the URL of /proxy.pac. If the network sends connections \
             here, its operator has to start the proxy with --listen redirect://ADDRESS:PORT \
             and send them to that port; in front of a site, with --accelerate URL."
                .into(),
        ),
        Failure::ClientDenied { client } => (
            "This proxy does not serve your device",
            format!("Your address, {client}, is not on this proxy’s list of clients.").into(),
            format!(
                "If it should be, ask the operator of the proxy to start it with \
                 --allow-client {client} (or with your whole network)."
            )
            .into(),
        ),
        Failure::LoginNeeded { .. } => (
            "This proxy needs your name and password",
            format!("The request to {site} needs a user who may make it.").into(),
            "Enter the name and password that the operator of the proxy gave you, not those \
             of the site."
                .into(),
        ),
        Failure::LoginImpossible => (
            "This request needs a login",
            format!(
                "A rule of this proxy needs to know who you are before it lets you open \
                 {site}. Your network has sent the request here without the knowledge of your \
                 device, so nobody can be asked."
            )
            .into(),
            "Enter this proxy in the settings of your device or browser. Then it can ask for \
             your name and password. The operator of the network knows its address."
                .into(),
        ),
        Failure::TooManyLogins => (
            "Too many logins",
            "The proxy is checking as many passwords for your device as it allows, or there \
             were too many wrong ones."
                .into(),
            "Wait a few seconds. If it happens again, a program on your device may have an old \
             password."
                .into(),
        ),
        Failure::RuleDenied(denial) => (
            "This is not allowed here",
            denied_by(denial, &site).into(),
            format!("If you need it, ask {}.", person(denial.contact.as_deref())).into(),
        ),
        Failure::QuotaUsed(denial) => (
            "Your quota is used up",
            used_up(denial, &site).into(),
            format!(
                "What this proxy has stored is free and still comes. If you need more before \
                 then, ask {}. http://proxy/quota shows what you have left.",
                person(denial.contact.as_deref())
            )
            .into(),
        ),
        Failure::TooManyRequests(denial) => (
            "Too many requests",
            format!(
                "The limit “{}” allows {} requests per second, and there were more.",
                denial.limit, denial.per_second
            )
            .into(),
            format!(
                "Wait a moment and try again. If a program on your device needs more, ask {}.",
                person(denial.contact.as_deref())
            )
            .into(),
        ),
        Failure::ClientLimit => (
            "Too many connections",
            "Your device, or all devices together, have as many connections to this proxy as \
             it allows."
                .into(),
            "Close some pages or downloads, and try again in a few seconds.".into(),
        ),
        Failure::ConnectPortDenied { port } => (
            "The proxy does not allow this port",
            format!("The request was for a connection to port {port} of {site}.").into(),
            format!(
                "If you need it, ask the operator of the proxy to start it with \
                 --allow-connect-port {port}."
            )
            .into(),
        ),
        Failure::PortDenied { port } => (
            "The proxy does not allow this port",
            format!("The request was for a page at port {port} of {site}, not a web port.").into(),
            format!(
                "If there is a web server, ask the operator of the proxy to start it with \
                 --allow-port {port}."
            )
            .into(),
        ),
        Failure::DestinationDenied { address } => (
            "The proxy does not connect to this address",
            format!(
                "The address of {site} is {address}. It is private, or on the proxy’s list of \
                 refused destinations."
            )
            .into(),
            format!(
                "Open the site without the proxy, or ask the operator of the proxy to start it \
                 with --allow-destination {address}."
            )
            .into(),
        ),
        Failure::Loop => (
            "The request is in a loop",
            "This proxy received a request that it had already forwarded.".into(),
            "The settings of this proxy, or of a proxy behind it, point back here. Tell the \
             operator; trying again does not help."
                .into(),
        ),
        Failure::NameNotFound => (
            "The site does not exist",
            format!("There is no site with the name {site} (DNS).").into(),
            "Check the spelling of the address.".into(),
        ),
        Failure::NameError => (
            "The name lookup failed",
            format!("The name server (DNS) had no usable answer for {site}.").into(),
            "Try again in a minute. If other sites fail too, the connection or the name server \
             is down: tell the operator of this network."
                .into(),
        ),
        Failure::NameTimeout(waited) => (
            "The name server does not answer",
            format!(
                "No answer from the name server for {site} in {}.",
                SecondsText(*waited)
            )
            .into(),
            "The connection to the Internet may be down or busy. Try again in a minute. Pages \
             that are stored here still work."
                .into(),
        ),
        Failure::Unreachable => (
            "The site cannot be reached",
            format!("The proxy cannot reach any address of {site}.").into(),
            "The site or the connection to the Internet may be down. Try again later. Pages \
             that are stored here still work."
                .into(),
        ),
        Failure::ConnectionRefused => (
            "The site refuses connections",
            format!("The server of {site} refuses connections to this port.").into(),
            "Check the port in the address, or try again later.".into(),
        ),
        Failure::ConnectTimeout(waited) => (
            "The site does not answer",
            format!(
                "The proxy could not connect to {site} in {}.",
                SecondsText(*waited)
            )
            .into(),
            "The site or the connection to the Internet may be down or busy. Try again \
             later."
                .into(),
        ),
        Failure::TlsCertificate(why) => (
            "The site’s certificate is not valid",
            format!("The certificate of {site} is {why}. Nothing was sent to it.").into(),
            "Do not enter passwords on this site. If it is your own site with your own CA, ask \
             the operator of the proxy to start it with --upstream-ca FILE. If many sites \
             fail, the clock of the proxy may be wrong."
                .into(),
        ),
        Failure::TlsAlert(alert) => (
            "The site refuses a secure connection",
            format!("{} ended the TLS handshake: {alert}.", Capital(&site)).into(),
            "Check the name in the address. Trying again is unlikely to help; the operator of \
             the site can say what it needs."
                .into(),
        ),
        Failure::TlsProtocol(why) => (
            "No secure connection to the site",
            format!("The TLS handshake with {site} failed: {why}.").into(),
            "Check whether the address needs http:// or another port. An old device may only \
             work without this proxy."
                .into(),
        ),
        Failure::ConnectionTerminated => (
            "The site closed the connection",
            format!("The connection to {site} was closed before a response arrived.").into(),
            "Try again. The site may have received what you sent: check before you repeat an \
             order or a message."
                .into(),
        ),
        Failure::FirstByteTimeout(waited) => (
            "The site is too slow",
            format!(
                "{} received the request, but did not answer in {}.",
                Capital(&site),
                SecondsText(*waited)
            )
            .into(),
            "Try again later. The site may have received what you sent: check before you \
             repeat an order or a message."
                .into(),
        ),
        Failure::ReadTimeout(waited) => (
            "The site stopped sending",
            format!(
                "{} sent nothing for {}.",
                Capital(&site),
                SecondsText(*waited)
            )
            .into(),
            "Try again. The part that arrived may be stored here.".into(),
        ),
        Failure::ResponseIncomplete => (
            "The response is incomplete",
            format!("The connection to {site} was closed during the response.").into(),
            "Try again. The part that arrived may be stored here.".into(),
        ),
        Failure::ResponseMalformed(reason) => (
            "The site’s response is invalid",
            format!("The response of {site} is not valid HTTP: {reason}.").into(),
            "Trying again is unlikely to help: only the site’s operator can fix it.".into(),
        ),
        Failure::UpstreamLimit => (
            "The proxy is busy",
            format!("All connections to {site}, or to all sites together, are in use.").into(),
            "Try again in a few seconds.".into(),
        ),
        Failure::NotCached => (
            "The page is not stored here",
            "The request was for a stored copy only (Cache-Control: only-if-cached), and there \
             is none."
                .into(),
            "Send the request again without only-if-cached.".into(),
        ),
        Failure::OriginStatus { status } => (
            "The site has an error",
            format!(
                "The server of {site} answered with the error {status}. The proxy had sent one \
                 request for all who asked for this page at the same moment."
            )
            .into(),
            "Try again in a minute. If it stays so, tell the operator of the site.".into(),
        ),
        Failure::PeerStatus { status } => (
            "The next proxy refuses the request",
            format!(
                "This proxy asks another proxy for {site}, and that one answered with the \
                 status {status}."
            )
            .into(),
            "Tell the operator of this proxy: the credentials or the access rules of the other \
             proxy may be wrong."
                .into(),
        ),
        Failure::FtpReply { code } => (
            "The FTP server does not send the file",
            format!("The FTP server of {site} answered with the code {code}.").into(),
            match code {
                421 => "It may have too many users now. Try again in a minute.".into(),
                _ => "Try again later, or tell the operator of the server.".into(),
            },
        ),
        Failure::NoRoute => (
            "The site cannot be reached",
            format!(
                "This proxy may reach {site} only through other proxies, and none of them can \
                 be asked."
            )
            .into(),
            "Try again in a minute. Pages that are stored here still work.".into(),
        ),
        Failure::Offline => (
            "The line to the Internet is down",
            format!(
                "You asked for a page of {site}. It is not stored here, or must not be shown \
                 without asking the site, so it has to wait until the line is back."
            )
            .into(),
            "Pages that are stored here still work. Try again later. If other devices reach \
             the Internet, tell the operator of the proxy to run `hashcache offline off`."
                .into(),
        ),
        Failure::NotImplemented(what) => (
            "The proxy does not support this request",
            format!("Not supported: {what}.").into(),
            "Use http:// or https://, or open the address without the proxy.".into(),
        ),
        Failure::Link(fault) => (
            "There is no link to the next box",
            format!(
                "This proxy asks another box for {site}, and {}.",
                fault.as_str()
            )
            .into(),
            "Tell the operator of this proxy to run `hashcache link status`. Pages that are \
             stored here still work."
                .into(),
        ),
        Failure::Internal(what) => (
            "Something went wrong in the proxy",
            format!("This is a fault of the proxy, not of the site: {what}.").into(),
            "Try again. If it fails again, tell the operator of the proxy the request number \
             below; the log has details."
                .into(),
        ),
    };
    Explanation {
        title,
        happened,
        advice,
    }
}

/// Returns the person to contact.
fn person(contact: Option<&str>) -> &str {
    contact.unwrap_or("the operator of the proxy")
}

/// Names the used-up quota and the time at which it starts anew.
fn used_up(denial: &QuotaDenial, site: &str) -> String {
    format!(
        "The request to {site} needs the Internet, and the quota “{}” of {} per {} is used up. \
         It begins anew on {}.",
        denial.limit,
        Size(denial.bytes),
        denial.period,
        denial.ends
    )
}

/// Names the rule that refuses a request, and the reason.
fn denied_by(denial: &RuleDenial, site: &str) -> String {
    let what = format!(
        "A rule of this proxy, “{}”, does not allow this request to {site}.",
        denial.rule
    );
    match &denial.reason {
        Some(reason) => format!("{what} The reason: {reason}"),
        None => what,
    }
}

/// Returns the advice for a refused request: by status, and by reason if different parties can
/// cause the same status.
fn refused_advice(status: StatusCode, reason: &str) -> &'static str {
    let is_about = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    match status {
        StatusCode::NOT_FOUND => {
            "Check the address. The front page of this proxy has links to its pages and mirrors."
        }
        StatusCode::MISDIRECTED_REQUEST if is_about(&["admin"]) => {
            "Open them from the machine of the proxy, without a proxy."
        }
        StatusCode::MISDIRECTED_REQUEST if is_about(&["connection"]) => {
            "Try again: the program then makes a connection for this host."
        }
        StatusCode::MISDIRECTED_REQUEST => {
            "Check the name in the address. If it is right, ask the operator of the proxy to add \
             it to `hosts` of a `[[site]]`."
        }
        StatusCode::FORBIDDEN if is_about(&["purge"]) => {
            "If you should be able to purge, ask the operator of the proxy."
        }
        StatusCode::FORBIDDEN => {
            "Another browser or program may work. If you need this one, ask the operator of the \
             proxy."
        }
        StatusCode::TOO_MANY_REQUESTS => "Wait a moment and try again.",
        StatusCode::REQUEST_TIMEOUT => {
            "Try again. If it happens often, the connection between your device and the proxy is \
             slow or broken."
        }
        StatusCode::URI_TOO_LONG => "Use a shorter address.",
        StatusCode::PAYLOAD_TOO_LARGE => "Send less at once.",
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            "Delete the cookies of the site: they are sent with each request, and may have become \
             too many."
        }
        status if status.is_server_error() && status != StatusCode::HTTP_VERSION_NOT_SUPPORTED => {
            "Try again in a minute. If it fails again, tell the operator of the proxy."
        }
        StatusCode::BAD_REQUEST
            if is_about(&["the host is", "the port is", "user name", "the authority"]) =>
        {
            "Check the address: it needs a host name, perhaps a port after a colon, and no user \
             name."
        }
        StatusCode::BAD_REQUEST if is_about(&["the path "]) => "Check the path of the address.",
        StatusCode::BAD_REQUEST if is_about(&["ended early"]) => {
            "Try again. The connection from your device broke off while it sent the request."
        }
        _ => {
            "The fault is in the program that sent the request, not in the site. Update the \
             program, or report the problem to its authors."
        }
    }
}

fn refused_title(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_FOUND => "There is no such page",
        StatusCode::FORBIDDEN => "This is not allowed here",
        StatusCode::TOO_MANY_REQUESTS => "Too many requests",
        status if status.is_server_error() && status != StatusCode::HTTP_VERSION_NOT_SUPPORTED => {
            "The proxy cannot answer now"
        }
        StatusCode::METHOD_NOT_ALLOWED => "This method is not allowed here",
        StatusCode::REQUEST_TIMEOUT => "The request took too long",
        StatusCode::PAYLOAD_TOO_LARGE => "The request is too large",
        StatusCode::URI_TOO_LONG => "The address is too long",
        StatusCode::EXPECTATION_FAILED => "The request expects something unknown",
        StatusCode::MISDIRECTED_REQUEST => "This site is not served here",
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => "The request head is too large",
        StatusCode::HTTP_VERSION_NOT_SUPPORTED => "This version of HTTP is not supported",
        _ => "The request is not valid",
    }
}

/// A duration in seconds for people: "10 s", "0.5 s".
struct SecondsText(Duration);

impl fmt::Display for SecondsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.subsec_millis() == 0 {
            write!(f, "{} s", self.0.as_secs())
        } else {
            write!(f, "{:.1} s", self.0.as_secs_f64())
        }
    }
}

/// The site's name at the start of a sentence.
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
        let advice = |failure: Failure| explain(&failure, Some("a.test")).advice.into_owned();
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
    fn a_program_is_to_be_updated_only_if_it_is_at_fault() {
        let advice = |status, reason| {
            let refused = Failure::Refused { status, reason };
            explain(&refused, None).advice.into_owned()
        };
        let is_program = |status, reason| advice(status, reason).contains("Update the program");
        assert!(is_program(StatusCode::BAD_REQUEST, "two lengths"));
        assert!(is_program(StatusCode::BAD_REQUEST, "Host is not ASCII"));
        assert!(is_program(StatusCode::METHOD_NOT_ALLOWED, "a method"));
        for (status, reason) in [
            (StatusCode::NOT_FOUND, "this proxy has no page of this name"),
            (
                StatusCode::NOT_FOUND,
                "this proxy has no mirror of this name",
            ),
            (
                StatusCode::MISDIRECTED_REQUEST,
                "this proxy does not serve a site of this name",
            ),
            (
                StatusCode::MISDIRECTED_REQUEST,
                "the admin pages cannot be reached through the proxy",
            ),
            (
                StatusCode::FORBIDDEN,
                "this client may not purge: name its network with --allow-purge",
            ),
            (
                StatusCode::BAD_REQUEST,
                "the host is neither a valid name nor an IP address",
            ),
            (StatusCode::BAD_REQUEST, "the request content ended early"),
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "no server of this site is in service",
            ),
        ] {
            assert!(!is_program(status, reason), "{reason}");
        }
        let unserved = "this proxy does not serve a site of this name";
        assert!(advice(StatusCode::MISDIRECTED_REQUEST, unserved).contains("`[[site]]`"));
    }

    #[test]
    fn sentences_name_the_site_and_the_time_waited() {
        let said = explain(
            &Failure::FirstByteTimeout(Duration::from_millis(1500)),
            None,
        )
        .happened;
        assert_eq!(
            said,
            "The site received the request, but did not answer in 1.5 s."
        );
        let said = explain(
            &Failure::ConnectTimeout(Duration::from_secs(10)),
            Some("a.test"),
        )
        .happened;
        assert_eq!(said, "The proxy could not connect to “a.test” in 10 s.");
    }
}
