//! Proxy auto-configuration: a script with which browsers choose the proxy for a request.
//!
//! Called by `request::own` for `/proxy.pac` and `/wpad.dat`.
//!
//! Invariant: the script contains only configured values and the authority under which this client
//! has reached us. Destinations that a proxy refuses by default are connected to directly, decided
//! by name or literal alone: a DNS lookup would delay every page on a slow line.

use bytes::Bytes;
use hashcache_http::{Host, Origin, Scheme};
use http::{HeaderValue, Response, header};

use crate::settings::Fail;

/// The script for a client that reaches the proxy at `proxy`.
pub(crate) fn pac(proxy: &Origin, fail: Fail) -> Response<Bytes> {
    let otherwise = match fail {
        Fail::Open => "; DIRECT",
        Fail::Closed => "",
    };
    let kind = match proxy.scheme {
        Scheme::Http => "PROXY",
        Scheme::Https => "HTTPS",
    };
    let authority = &proxy.authority;
    let own = match &proxy.authority.host {
        Host::V6(address) => address.to_string(),
        host => host.to_string(),
    };
    // With the port: `PROXY host` means port 80 to some clients and 1080 to others.
    let script = format!(
        r#"function FindProxyForURL(url, host) {{
  host = host.toLowerCase().replace(/^\[|\]$/g, "").replace(/\.$/, "");
  // This proxy itself, this machine and this network.
  if (host == "{own}" || host == "localhost" || isPlainHostName(host) && host.indexOf(":") < 0 ||
      dnsDomainIs(host, ".localhost") || dnsDomainIs(host, ".local"))
    return "DIRECT";
  if (/^\d+\.\d+\.\d+\.\d+$/.test(host) &&
      (isInNet(host, "127.0.0.0", "255.0.0.0") || isInNet(host, "10.0.0.0", "255.0.0.0") ||
       isInNet(host, "172.16.0.0", "255.240.0.0") || isInNet(host, "192.168.0.0", "255.255.0.0") ||
       isInNet(host, "169.254.0.0", "255.255.0.0")))
    return "DIRECT";
  if (host.indexOf(":") >= 0 && /^(::1$|f[cd]|fe[89ab])/.test(host))
    return "DIRECT";
  return "{kind} {authority}{otherwise}";
}}
"#,
    );
    let mut response = Response::new(Bytes::from(script));
    let fields = response.headers_mut();
    fields.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-ns-proxy-autoconfig"),
    );
    // The proxy's address may change with the client's network.
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(proxy: &str, fail: Fail) -> String {
        let response = pac(&proxy.parse().unwrap(), fail);
        assert_eq!(
            response.headers()["content-type"],
            "application/x-ns-proxy-autoconfig"
        );
        String::from_utf8(response.into_body().to_vec()).unwrap()
    }

    #[test]
    fn the_script_names_the_proxy_and_what_to_do_without_it() {
        let open = script("http://cache.lan:3128", Fail::Open);
        assert!(
            open.contains("return \"PROXY cache.lan:3128; DIRECT\";"),
            "{open}"
        );
        assert!(open.contains("host == \"cache.lan\""), "{open}");
        let closed = script("http://cache.lan", Fail::Closed);
        assert!(
            closed.contains("return \"PROXY cache.lan:80\";"),
            "{closed}"
        );
        let secure = script("https://cache.lan", Fail::Closed);
        assert!(secure.contains("\"HTTPS cache.lan:443\""), "{secure}");
        let six = script("http://[2001:db8::1]:3128", Fail::Open);
        assert!(
            six.contains("\"PROXY [2001:db8::1]:3128; DIRECT\""),
            "{six}"
        );
        // Brackets are removed before the comparison.
        assert!(six.contains("host == \"2001:db8::1\""), "{six}");
    }
}
