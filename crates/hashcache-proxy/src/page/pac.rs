//! Proxy auto-configuration: a script with which browsers choose the proxy for a request.
//!
//! Called by `request::own` for `/proxy.pac` and `/wpad.dat`.
//!
//! Invariant: the script contains only configured values and the authority under which this client
//! has reached the proxy. The browser connects directly to destinations that a proxy refuses by
//! default. Only the name or literal decides this, because a DNS lookup would delay every page on a
//! slow line.
//!
//! With several proxies, a hash of the host decides, so that each proxy stores other sites. If a
//! proxy does not answer, the browser takes the next proxy for that host (the first form of CARP).

use bytes::Bytes;
use hashcache_http::{Host, Origin, Scheme};
use http::{HeaderValue, Response, header};

use crate::settings::Fail;

/// Returns the script for a client that reaches the proxy at `proxy`; the script uses `proxies`
/// instead, if there are any.
pub(crate) fn pac(proxy: &Origin, proxies: &[Origin], fail: Fail) -> Response<Bytes> {
    let otherwise = match fail {
        Fail::Open => "; DIRECT",
        Fail::Closed => "",
    };
    let choice = match proxies {
        [] => format!("return \"{}{otherwise}\";", word(proxy)),
        proxies => by_hash(proxies, otherwise),
    };
    let own = match &proxy.authority.host {
        Host::V6(address) => address.to_string(),
        host => host.to_string(),
    };
    let script = format!(
        r#"function FindProxyForURL(url, host) {{
  host = host.toLowerCase().replace(/^\[|\]$/g, "").replace(/\.$/, "");
  // A page of this proxy, which answers it to those who ask through it.
  if (url == "http://proxy/quota")
    return "{}";
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
  {choice}
}}
"#,
        word(proxies.first().unwrap_or(proxy)),
    );
    let mut response = Response::new(Bytes::from(script));
    let fields = response.headers_mut();
    fields.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-ns-proxy-autoconfig"),
    );
    // The proxy's address may differ in another network of the client.
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns a proxy in PAC syntax. The port is always written, because `PROXY host` means port 80 to
/// some clients and 1080 to others.
fn word(proxy: &Origin) -> String {
    let kind = match proxy.scheme {
        Scheme::Https => "HTTPS",
        Scheme::Http | Scheme::Ftp | Scheme::Gopher => "PROXY",
    };
    format!("{kind} {}", proxy.authority)
}

/// Returns statements that sort `proxies` by a hash of the host with each proxy (highest random
/// weight): if a proxy is removed, only the hosts of that proxy move. The hash is FNV-1a with a
/// final mix.
fn by_hash(proxies: &[Origin], otherwise: &str) -> String {
    let words: Vec<_> = proxies
        .iter()
        .map(|it| format!("\"{}\"", word(it)))
        .collect();
    format!(
        r#"var proxies = [{}], scores = {{}};
  for (var i = 0; i < proxies.length; i++) {{
    var text = proxies[i] + " " + host, h = 2166136261;
    for (var j = 0; j < text.length; j++) {{
      h = h ^ text.charCodeAt(j);
      h = (h + (h << 1) + (h << 4) + (h << 7) + (h << 8) + (h << 24)) >>> 0;
    }}
    h = h ^ (h >>> 15);
    h = (h + (h << 3) + (h << 10) + (h << 17)) >>> 0;
    scores[proxies[i]] = (h ^ (h >>> 13)) >>> 0;
  }}
  proxies.sort(function (a, b) {{ return scores[b] - scores[a]; }});
  return proxies.join("; ") + "{otherwise}";"#,
        words.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(proxy: &str, fail: Fail) -> String {
        let response = pac(&proxy.parse().unwrap(), &[], fail);
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
        let quota = "if (url == \"http://proxy/quota\")\n    return \"PROXY cache.lan:3128\";";
        assert!(open.contains(quota), "{open}");
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

    #[test]
    fn of_several_proxies_the_script_has_all_and_no_fixed_first() {
        let proxies = ["http://a.lan:3128", "https://b.lan"].map(|url| url.parse().unwrap());
        let own = "http://c.lan:3128".parse().unwrap();
        let response = pac(&own, &proxies, Fail::Open);
        let script = String::from_utf8(response.into_body().to_vec()).unwrap();
        assert!(
            script.contains(r#"["PROXY a.lan:3128", "HTTPS b.lan:443"]"#),
            "{script}"
        );
        assert!(
            script.contains(r#"proxies.join("; ") + "; DIRECT""#),
            "{script}"
        );
        assert!(!script.contains("PROXY c.lan"), "{script}");
    }
}
