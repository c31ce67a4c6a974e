//! Squid's `http_port` and `https_port`.
//!
//! Invariant: a port that Squid uses in another way (for connections to other servers, in front of
//! a site) is never opened as a forward proxy's port.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use hashcache_http::Host;

use super::draft::{Comments, Draft};
use super::lines::Line;

/// The proxy's service for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Forward,
    /// In front of sites: a process has only one role.
    Reverse,
}

/// A configuration's role: in front of sites if any port is.
pub fn role(lines: &[&Line]) -> Role {
    let mut options = lines.iter().flat_map(|line| line.args_from(1));
    if options.any(|option| is_accel(&option.text)) {
        Role::Reverse
    } else {
        Role::Forward
    }
}

/// The default sites of ports in front of sites.
pub fn default_sites(lines: &[&Line]) -> BTreeSet<String> {
    let words = lines.iter().flat_map(|line| line.args_from(1));
    words.filter_map(|word| default_site(&word.text)).collect()
}

/// The host in `defaultsite=`, without a port.
fn default_site(option: &str) -> Option<String> {
    let host = option.strip_prefix(DEFAULT_SITE)?;
    let host = match host.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() && !host.contains(':') => host,
        _ => host,
    };
    let host = host.to_ascii_lowercase();
    Host::parse(&host).is_ok().then_some(host)
}

/// Writes the settings for all ports.
pub fn import(draft: &mut Draft, lines: &[&Line], role: Role) {
    let mut taken = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if at >= PORTS_MAX {
            draft.missing(line, format_args!("more than {PORTS_MAX} ports"));
        } else if let Err(reason) = import_one(draft, line, role, &mut taken) {
            draft.missing(line, reason);
        }
    }
}

fn import_one(
    draft: &mut Draft,
    line: &Line,
    role: Role,
    taken: &mut Vec<SocketAddr>,
) -> Result<(), String> {
    let address = address(line.arg(0))?;
    if taken.contains(&address) {
        return Err("another line has this address".to_owned());
    }
    let options: Vec<&str> = line.args_from(1).iter().map(|it| &*it.text).collect();
    let is_tls = line.name == "https_port";
    let diverted = options.iter().find_map(|it| match *it {
        "intercept" | "transparent" => Some("redirect://"),
        "tproxy" => Some("tproxy://"),
        _ => None,
    });
    let accel = options.iter().any(|it| is_accel(it));
    if role == Role::Reverse && !accel {
        return Err(
            "a process is in front of sites or a forward proxy: run a second one, with its \
                    own cache"
                .to_owned(),
        );
    }
    if let Some(option) = options.iter().find(|it| asks_for_certificates(it)) {
        // Without the certificates, every client could use the port.
        return Err(format!("{option}: clients are not asked for certificates"));
    }
    let value = |name: &str| {
        options
            .iter()
            .find_map(|it| it.strip_prefix(name))
            .map(str::to_owned)
    };
    let certificate = value("tls-cert=").or_else(|| value("cert="));
    let is_bumped = options.contains(&"ssl-bump");
    if is_tls && !is_bumped && diverted.is_none() {
        let certificate = certificate.ok_or("it has no certificate")?;
        let key = value("tls-key=").or_else(|| value("key="));
        let key = key.unwrap_or_else(|| certificate.clone());
        for path in [&certificate, &key] {
            if !Path::new(path).is_file() {
                return Err(format!("{path} is not there to be read"));
            }
        }
        let pair = [("tls_cert", &*certificate), ("tls_key", &*key)];
        draft.push_pair(pair, &Comments::from_line(line));
    }
    if is_bumped && is_tls && diverted.is_none() {
        return Err("it has neither `intercept` nor `tproxy`".to_owned());
    }
    if diverted == Some("tproxy://") {
        draft.missing(
            line,
            "tproxy: servers see the address of the proxy, not of the client",
        );
    }
    if is_bumped {
        let reason = "ssl-bump: make an authority with `hashcache ca init`, and list the hosts \
                      below [intercept]; only those are intercepted";
        draft.missing(line, reason);
    }
    for option in options {
        match option_reason(option, is_bumped, diverted.is_some()) {
            Some(reason) => draft.missing(line, format_args!("{option}: {reason}")),
            None if !is_imported(option) => {
                draft.option(line, option, "a port needs no such setting here");
            }
            None => {}
        }
    }
    taken.push(address);
    let scheme = match (diverted, is_tls, role) {
        (Some(scheme), _, _) => scheme,
        (None, true, _) => "https://",
        (None, false, Role::Reverse) => "http://",
        (None, false, Role::Forward) => "",
    };
    draft.push(
        "listen",
        format!("{scheme}{address}"),
        Comments::from_line(line),
    );
    if address == ADMIN {
        let why = "The address by default is one of `listen`.";
        draft.set("admin", "127.0.0.1:3181", Comments::text(why));
    }
    draft.imported += 1;
    Ok(())
}

/// Reason why an option has no counterpart; `None`: it has a counterpart, or needs none.
fn option_reason(option: &str, is_bumped: bool, is_diverted: bool) -> Option<&'static str> {
    if option.starts_with(DEFAULT_SITE) && default_site(option).is_none() {
        return Some("it is no host");
    }
    if is_accel(option) || ["ssl-bump", "allow-direct", "ignore-cc"].contains(&option) {
        return (option == "ignore-cc").then_some("Cache-Control of clients is not ignored");
    }
    match option.split('=').next().unwrap_or(option) {
        "cert"
        | "tls-cert"
        | "key"
        | "tls-key"
        | "name"
        | "disable-pmtu-discovery"
        | "tcpkeepalive"
        | "connection-auth"
        | "protocol"
        | "http11" => None,
        "generate-host-certificates" | "dynamic_cert_mem_cache_size" if is_bumped => None,
        "intercept" | "transparent" | "tproxy" => None,
        "require-proxy-header" => Some(if is_diverted {
            "the PROXY protocol is not read on such a port"
        } else {
            "clients may connect without a load balancer too: see `[[access]]`"
        }),
        "cafile" | "capath" | "crlfile" => Some("clients are not asked for certificates"),
        "options" | "cipher" | "tls-min-version" | "dhparams" | "tls-dh" | "sslcontext"
        | "sslflags" | "version" => {
            Some("TLS 1.2 and 1.3 with their safe ciphers are used, without settings")
        }
        _ => Some("unknown option"),
    }
}

/// Returns true if the setting for the port contains the option.
fn is_imported(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or(option);
    let own = [
        "cert",
        "tls-cert",
        "key",
        "tls-key",
        "intercept",
        "transparent",
        "tproxy",
        "accel",
        "ssl-bump",
        "defaultsite",
    ];
    own.contains(&name)
}

/// Returns true if Squid requires certificates from clients.
fn asks_for_certificates(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or(option);
    ["clientca", "tls-clientca"].contains(&name)
}

fn is_accel(option: &str) -> bool {
    ["accel", "vhost", "no-vhost", "vport", "act-as-origin"].contains(&option)
        || [DEFAULT_SITE, "vport="]
            .iter()
            .any(|it| option.starts_with(it))
}

/// Parses `3128`, `10.0.0.1:3128` or `[::1]:3128`; a port without an address is for all addresses.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let port = text.strip_prefix(':').unwrap_or(text);
    match port.parse::<u16>() {
        Ok(port) if port != 0 => Ok(SocketAddr::new(IpAddr::from([0_u16; 8]), port)),
        _ => Err(format!("`{text}` is no port, and no address with a port")),
    }
}

const DEFAULT_SITE: &str = "defaultsite=";
const PORTS_MAX: usize = 256;
/// Default address for `admin`.
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 3180);

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    fn imported(text: &str) -> Draft {
        let lines: Vec<Line> = lines::lines("squid.conf", text).collect();
        let lines: Vec<&Line> = lines.iter().collect();
        let mut draft = Draft::default();
        import(&mut draft, &lines, role(&lines));
        draft
    }

    fn listen(draft: &Draft) -> String {
        draft
            .get("listen")
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    #[test]
    fn ports_become_addresses() {
        let draft =
            imported("http_port 3128\nhttp_port 10.0.0.1:8080 name=x\nhttp_port [::1]:3129\n");
        assert_eq!(
            listen(&draft),
            r#"["[::]:3128", "10.0.0.1:8080", "[::1]:3129"]"#
        );
        assert!(draft.remarks.is_empty());
    }

    #[test]
    fn a_port_of_another_kind_is_not_opened() {
        let draft = imported(
            "http_port proxy.test:3128\nhttp_port 0\n\
                              https_port 3130 ssl-bump cert=/x\nhttps_port 3131\n\
                              https_port 3132 cert=/none/cert.pem\n",
        );
        assert_eq!(listen(&draft), "");
        assert_eq!(draft.remarks.len(), 5);
    }

    #[test]
    fn ports_for_connections_to_other_servers_are_no_ports_of_a_forward_proxy() {
        let draft = imported(
            "http_port 3129 intercept\nhttp_port 3130 tproxy\nhttp_port 3131 transparent\n\
             https_port 3132 intercept ssl-bump cert=/x\n",
        );
        assert_eq!(
            listen(&draft),
            r#"["redirect://[::]:3129", "tproxy://[::]:3130", "redirect://[::]:3131", "#.to_owned()
                + r#""redirect://[::]:3132"]"#
        );
        let reasons = draft.remarks.iter().map(|it| &it.reason[..7]);
        assert_eq!(reasons.collect::<Vec<_>>(), ["tproxy:", "ssl-bum"]);
        let draft = imported("http_port 80 accel\nhttp_port 3129 intercept\n");
        assert_eq!(listen(&draft), r#"["http://[::]:80"]"#);
    }

    #[test]
    fn in_front_of_a_site_ports_of_a_forward_proxy_are_left_out() {
        let draft = imported("http_port 80 accel defaultsite=www.test vhost\nhttp_port 3128\n");
        assert_eq!(listen(&draft), r#"["http://[::]:80"]"#);
        assert_eq!(draft.remarks.len(), 1);
    }

    #[test]
    fn each_certificate_keeps_its_key() {
        let file = || tempfile::NamedTempFile::new().unwrap();
        let (a, b, key) = (file(), file(), file());
        let port = |port, certificate: &tempfile::NamedTempFile| {
            let (certificate, key) = (certificate.path().display(), key.path().display());
            format!("https_port {port} cert={certificate} key={key}\n")
        };
        let draft = imported(&[port(443, &a), port(444, &b), port(445, &a)].concat());
        let values = |name| draft.get(name).unwrap().as_array().unwrap();
        assert_eq!((values("tls_cert").len(), values("tls_key").len()), (2, 2));
        assert_eq!(values("tls_key")[0], values("tls_key")[1]);
    }

    #[test]
    fn every_site_by_default_is_known() {
        let text = "http_port 80 accel defaultsite=a.test:80\nhttp_port 81 accel \
                    defaultsite=B.test\nhttp_port 82 accel defaultsite=b/c\n";
        let lines: Vec<Line> = lines::lines("squid.conf", text).collect();
        let sites = default_sites(&lines.iter().collect::<Vec<_>>());
        assert_eq!(sites, ["a.test".to_owned(), "b.test".to_owned()].into());
        assert_eq!(imported(text).remarks.len(), 1);
    }

    #[test]
    fn what_an_option_loses_is_told() {
        let draft =
            imported("http_port 3128 ssl-bump cert=/x generate-host-certificates=on new=1\n");
        assert_eq!(listen(&draft), r#"["[::]:3128"]"#);
        let reasons: Vec<_> = draft.remarks.iter().map(|it| &it.reason[..8]).collect();
        assert_eq!(reasons, ["ssl-bump", "new=1: u"]);
    }

    #[test]
    fn the_admin_address_makes_room_for_a_listener() {
        let draft = imported("http_port 127.0.0.1:3180\n");
        assert!(draft.get("admin").is_some());
    }
}
