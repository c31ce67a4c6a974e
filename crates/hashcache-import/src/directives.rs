//! The table of Squid's directives, with the treatment of each.
//!
//! Called by `mod` for each line. A directive that is not in the table is reported as unknown, so
//! no line is left out silently.

use std::path::Path;

use hashcache_settings::units::{show_size, show_time};
use hashcache_settings::{Values, Written, find};
use toml::Value;

use super::draft::{Comments, Draft, strings};
use super::lines::Line;
use super::values;

/// Treatment for a directive.
#[derive(Clone, Copy)]
pub enum Treatment {
    /// Other lines are needed to interpret the directive: `mod` collects them.
    Collected,
    /// A time for this key.
    Time(&'static str),
    /// A size for this key.
    Size(&'static str),
    /// A number from 1 for this key.
    Count(&'static str),
    /// Written by a separate function.
    Own(fn(&mut Draft, &Line)),
    /// No setting is needed, for this reason.
    Unneeded(&'static str),
    /// The directive is `on` or `off`, and the proxy always behaves as with the first value.
    Always(&'static str, &'static str),
    /// There is no counterpart, for this reason.
    Missing(&'static str),
    /// With this directive Squid may refuse requests, but the proxy does not, for this reason. A
    /// first word from this list changes nothing.
    Open(&'static [&'static str], &'static str),
}

/// The treatment for the directive called `name`.
pub fn treatment(name: &str) -> Option<Treatment> {
    let row = DIRECTIVES
        .iter()
        .find(|(names, _)| names.split(' ').any(|it| it == name));
    row.map(|(_, treatment)| *treatment)
}

/// Writes a directive that depends on no other line.
pub fn import(draft: &mut Draft, line: &Line, treatment: Treatment) {
    let value: Option<(&'static str, Value)> = match treatment {
        Treatment::Collected => return,
        Treatment::Own(write) => return write(draft, line),
        Treatment::Unneeded(reason) => return draft.unneeded(line, reason),
        Treatment::Missing(reason) => return draft.missing(line, reason),
        Treatment::Open(harmless, reason) => {
            if harmless.contains(&line.arg(0)) {
                draft.unneeded(line, "it changes nothing");
            } else {
                draft.open(line, reason);
            }
            return;
        }
        Treatment::Always(word, reason) => {
            if line.arg(0) == word {
                draft.unneeded(line, reason);
            } else {
                draft.missing(line, reason);
            }
            return;
        }
        Treatment::Time(key) => {
            let time = values::time(&line.args).filter(|time| !time.is_zero());
            time.map(|time| (key, show_time(time).into()))
        }
        Treatment::Size(key) => {
            let size = values::size(&line.args).filter(|size| *size > 0);
            size.map(|size| (key, show_size(size).into()))
        }
        Treatment::Count(key) => {
            let count = line.arg(0).parse::<u32>().ok().filter(|count| *count > 0);
            count.map(|count| (key, i64::from(count).into()))
        }
    };
    match value.filter(|(key, value)| is_taken(key, value)) {
        Some((key, value)) => {
            draft.set(key, value, Comments::from_line(line));
            draft.imported += 1;
        }
        None => draft.missing(line, "its value has no counterpart"),
    }
}

/// Returns true if our setting accepts the value: some settings have limits.
fn is_taken(key: &str, value: &Value) -> bool {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut values = Values::defaults(1, None);
    find(key).is_some_and(|found| found.read(&mut values, &Written::One(text)).is_ok())
}

fn visible_hostname(draft: &mut Draft, line: &Line) {
    let name: &str = line.arg(0);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic());
    if is_name && name.bytes().all(fits) {
        draft.set("name", name, Comments::from_line(line));
        draft.imported += 1;
    } else {
        draft.missing(
            line,
            "a name begins with a letter, and has no odd characters",
        );
    }
}

fn cache_mgr(draft: &mut Draft, line: &Line) {
    if line.args.is_empty() {
        return draft.missing(line, "there is no address");
    }
    draft.set("contact", line.arg(0), Comments::from_line(line));
    draft.imported += 1;
}

fn access_log(draft: &mut Draft, line: &Line) {
    let target = line.arg(0);
    let place = ["stdio:", "daemon:", "file:"]
        .iter()
        .find_map(|it| target.strip_prefix(it));
    let place = place.unwrap_or(target);
    let (format, conditions) = match line.arg(1).split_once('=') {
        Some(("logformat", format)) => (format, line.args_from(2)),
        Some(_) => ("squid", line.args_from(1)),
        None => (line.arg(1), line.args_from(2)),
    };
    if place == "none" {
        return match line.args.len() {
            1 => {
                draft.set("access_log", "none", Comments::from_line(line));
                draft.imported += 1;
            }
            _ => draft.missing(line, "all requests are logged, or none"),
        };
    }
    if draft.get("access_log").is_some() {
        return draft.missing(line, "there is one access log");
    }
    let format = match format {
        "" | "squid" => "squid",
        "combined" | "common" => "combined",
        _ => {
            draft.missing(line, "the format: squid, combined or json; squid is taken");
            "squid"
        }
    };
    let is_option = |text: &str| text.contains('=');
    for word in conditions.iter().filter(|it| is_option(&it.text)) {
        draft.option(line, &word.text, "lines are written as they come");
    }
    if conditions.iter().any(|word| !is_option(&word.text)) {
        draft.missing(line, "all requests are logged, whatever the acl says");
    }
    let directory = Path::new(place).parent().unwrap_or(Path::new("/"));
    if place.starts_with('/') && directory.is_dir() {
        let why = "The file goes on; SIGUSR1 opens it again, for logrotate.";
        draft.set("access_log", place, Comments::from_line(line).and(why));
        draft.set("log_format", format, Comments::default());
        draft.imported += 1;
    } else {
        draft.missing(line, "it is no file in a directory that is there");
    }
}

fn forwarded_for(draft: &mut Draft, line: &Line) {
    match line.arg(0) {
        "delete" | "off" | "transparent" => {
            draft.unneeded(line, "a forward proxy adds no X-Forwarded-For");
        }
        _ => draft.missing(
            line,
            "a forward proxy adds no X-Forwarded-For; a [[site]] does",
        ),
    }
}

fn strip_query_terms(draft: &mut Draft, line: &Line) {
    draft.set(
        "log_strip_query",
        line.arg(0) != "off",
        Comments::from_line(line),
    );
    draft.imported += 1;
}

fn client_netmask(draft: &mut Draft, line: &Line) {
    match line.arg(0) {
        "255.255.255.255" => draft.unneeded(line, "addresses are logged whole by default"),
        mask => {
            let mut comments = Comments::from_line(line);
            if mask != "255.255.255.0" {
                comments = comments.and("The network is /24, and /48 for IPv6.");
            }
            draft.set("log_anonymize", true, comments);
            draft.imported += 1;
        }
    }
}

fn prefer_direct(draft: &mut Draft, line: &Line) {
    if line.arg(0) == "on" && draft.get("direct").is_none() {
        draft.set("direct", "prefer", Comments::from_line(line));
        draft.imported += 1;
    } else {
        draft.unneeded(line, "peers are asked first by default");
    }
}

fn icp_access(draft: &mut Draft, line: &Line) {
    draft.unneeded(line, "only the peers in the file are answered");
}

fn tls_outgoing(draft: &mut Draft, line: &Line) {
    for word in &line.args {
        let file = word.text.strip_prefix("cafile=");
        match file.filter(|file| Path::new(file).is_file()) {
            Some(file) => {
                draft.set("upstream_ca", strings(&[file]), Comments::from_line(line));
                draft.imported += 1;
            }
            None => draft.missing(
                line,
                "TLS 1.2 and 1.3 are used, and certificates are checked",
            ),
        }
    }
}

fn ssl_bump(draft: &mut Draft, line: &Line) {
    match line.arg(0) {
        "terminate" | "deny" => draft.open(
            line,
            "a name in a TLS handshake is not refused: write a rule that denies its host",
        ),
        _ => draft.missing(line, INTERCEPT),
    }
}

fn snmp_port(draft: &mut Draft, line: &Line) {
    match line.arg(0) {
        "0" => draft.unneeded(line, "there is no SNMP"),
        _ => draft.missing(
            line,
            "there is no SNMP: Prometheus metrics are at the address `admin`",
        ),
    }
}

fn initial_level(draft: &mut Draft, line: &Line) {
    draft.unneeded(line, "a client that comes anew has its whole burst");
}

fn read_ahead(draft: &mut Draft, line: &Line) {
    // Squid's default is tens of KiB, which would stall a fetch behind a slow client.
    draft.unneeded(line, "limits.read_ahead is 4MiB");
}

const HELPERS: &str = "there are no external helpers";
const ICAP: &str = "content is not passed to other programs (ICAP, eCAP)";
const PAGES: &str = "pages of errors are the proxy's own, with the name and reason of the rule";
const INTERCEPT: &str =
    "hosts to intercept are listed below [intercept], after `hashcache ca init`";
const SYSTEM: &str = "the service manager says this: see the unit of the package";
const FIELDS: &str =
    "fields are changed in front of a site only: request_headers, response_headers";
const ROUTING: &str = "packets are marked by the system, not by the proxy";
const WCCP: &str = "rules of netfilter send connections here (redirect://, tproxy://): no WCCP";
const DIVERTED: &str = "a name that does not lead to the address of the connection is answered by \
                        that address, and servers see the address of the proxy";
const TUNING: &str = "the proxy has no such limit, or finds it by itself";

/// All directives; names with the same treatment are in the same row.
const DIRECTIVES: &[(&str, Treatment)] = &[
    (
        "acl http_access cache no_cache http_port https_port cache_peer cache_peer_access \
         cache_peer_domain always_direct never_direct icp_port htcp_port cache_dir cache_mem \
         maximum_object_size refresh_pattern auth_param delay_pools delay_class delay_parameters \
         delay_access client_delay_pools client_delay_parameters client_delay_access \
         proxy_protocol_access http_reply_access miss_access adapted_http_access http_access2",
        Treatment::Collected,
    ),
    (
        "visible_hostname unique_hostname",
        Treatment::Own(visible_hostname),
    ),
    ("cache_mgr", Treatment::Own(cache_mgr)),
    ("access_log cache_access_log", Treatment::Own(access_log)),
    ("forwarded_for", Treatment::Own(forwarded_for)),
    ("strip_query_terms", Treatment::Own(strip_query_terms)),
    ("client_netmask", Treatment::Own(client_netmask)),
    ("prefer_direct", Treatment::Own(prefer_direct)),
    ("icp_access htcp_access", Treatment::Own(icp_access)),
    ("tls_outgoing_options", Treatment::Own(tls_outgoing)),
    ("snmp_port", Treatment::Own(snmp_port)),
    (
        "delay_initial_bucket_level client_delay_initial_bucket_level",
        Treatment::Own(initial_level),
    ),
    (
        "response_delay_pool response_delay_pool_access",
        Treatment::Missing("a [[limit]] is chosen by the request, not by the response"),
    ),
    (
        "delay_pool_uses_indirect_client",
        Treatment::Missing("a client is the address that connects"),
    ),
    ("read_ahead_gap", Treatment::Own(read_ahead)),
    ("connect_timeout", Treatment::Time("limits.connect_time")),
    ("read_timeout", Treatment::Time("limits.between_bytes_time")),
    ("write_timeout", Treatment::Time("limits.progress_time")),
    (
        "request_timeout request_start_timeout",
        Treatment::Time("limits.head_time"),
    ),
    (
        "client_idle_pconn_timeout persistent_request_timeout",
        Treatment::Time("limits.idle_time"),
    ),
    (
        "server_idle_pconn_timeout pconn_timeout",
        Treatment::Time("limits.upstream_idle_time"),
    ),
    ("dns_timeout", Treatment::Time("limits.dns_time")),
    ("shutdown_lifetime", Treatment::Time("limits.drain_time")),
    ("forward_timeout", Treatment::Time("limits.first_byte_time")),
    ("negative_ttl", Treatment::Time("negative_lifetime")),
    (
        "request_header_max_size",
        Treatment::Size("limits.head_bytes"),
    ),
    ("workers", Treatment::Count("workers")),
    (
        "client_ip_max_connections",
        Treatment::Count("limits.clients_per_address"),
    ),
    (
        "via",
        Treatment::Always(
            "on",
            "the proxy always adds Via: other caches find loops by it",
        ),
    ),
    (
        "collapsed_forwarding",
        Treatment::Always("on", "requests for one URL always share a fetch"),
    ),
    (
        "client_persistent_connections server_persistent_connections",
        Treatment::Always("on", "connections are kept"),
    ),
    (
        "half_closed_clients",
        Treatment::Always("off", "a client that closes has left"),
    ),
    (
        "httpd_suppress_version_string",
        Treatment::Always("on", "pages of the proxy name no version"),
    ),
    (
        "reload_into_ims",
        Treatment::Unneeded("a reload validates: client_reload says how often"),
    ),
    (
        "cache_swap_low cache_swap_high store_dir_select_algorithm max_open_disk_fds \
         cache_swap_state diskd_program unlinkd_program \
         store_avg_object_size store_objects_per_bucket \
         cache_replacement_policy memory_replacement_policy maximum_object_size_in_memory \
         memory_cache_mode memory_cache_shared shared_memory_locking minimum_object_size \
         memory_pools memory_pools_limit",
        Treatment::Unneeded("the storage engine has its own ways: see `policy`"),
    ),
    (
        "cache_effective_user cache_effective_group pid_filename coredump_dir max_filedescriptors \
         max_filedesc chroot umask service_name cpu_affinity_map",
        Treatment::Unneeded(SYSTEM),
    ),
    (
        "cache_log debug_options cache_store_log logfile_rotate logfile_daemon buffered_logs \
         log_icp_queries log_mime_hdrs netdb_filename",
        Treatment::Unneeded("messages go to standard error, and the package has logrotate"),
    ),
    (
        "ipcache_size ipcache_low ipcache_high fqdncache_size quick_abort_min quick_abort_max \
         quick_abort_pct client_db half_closed_clients_max pipeline_prefetch positive_dns_ttl \
         negative_dns_ttl dns_retransmit_interval dns_packet_max minimum_expiry_time \
         high_response_time_warning high_page_fault_warning high_memory_warning sleep_after_fork \
         tcp_recv_bufsize client_request_buffer_max_size connect_retries forward_max_tries \
         retry_on_error balance_on_multiple_ip dns_v4_first happy_eyeballs_connect_timeout \
         happy_eyeballs_connect_gap happy_eyeballs_connect_limit hopeless_kid_revival_delay \
         dead_peer_timeout peer_connect_timeout icp_query_timeout maximum_icp_query_timeout \
         minimum_icp_query_timeout background_ping_rate digest_generation digest_bits_per_entry \
         digest_rebuild_period digest_rewrite_period digest_swapout_chunk_size \
         digest_rebuild_chunk_percentage nonhierarchical_direct hierarchy_stoplist \
         authenticate_cache_garbage_interval authenticate_ttl authenticate_ip_ttl \
         detect_broken_pconn persistent_connection_after_error pconn_lifetime client_lifetime \
         relaxed_header_parser check_hostnames allow_underscore hostname_aliases \
         accept_filter stats_collection pinger_enable pinger_program query_icmp \
         configuration_includes_quoted_values windows_ipaddrchangemonitor eui_lookup \
         minimum_direct_hops minimum_direct_rtt netdb_low netdb_high netdb_ping_period \
         announce_period announce_host announce_file announce_port mime_table icon_directory \
         short_icon_urls global_internal_static email_err_data err_page_stylesheet mail_from \
         mail_program ftp_passive ftp_epsv ftp_epsv_all ftp_eprt ftp_sanitycheck \
         ftp_telnet_protocol ftp_client_idle_timeout",
        Treatment::Unneeded(TUNING),
    ),
    (
        "logformat",
        Treatment::Missing("formats of the access log are squid, combined and json"),
    ),
    (
        "dns_nameservers dns_multicast_local dns_defnames append_domain hosts_file \
         ignore_unknown_nameservers",
        Treatment::Missing("names are looked up as /etc/resolv.conf and /etc/hosts say"),
    ),
    (
        "request_header_access reply_header_access request_header_add reply_header_add \
         request_header_replace reply_header_replace header_access header_replace",
        Treatment::Missing(FIELDS),
    ),
    (
        "snmp_access snmp_incoming_address snmp_outgoing_address",
        Treatment::Missing("there is no SNMP: Prometheus metrics are at the address `admin`"),
    ),
    (
        "send_hit store_miss htcp_clr_access ident_lookup_access url_rewrite_access",
        Treatment::Missing("[[access]] rules decide about requests, before there is a response"),
    ),
    (
        "reply_header_max_size range_offset_limit",
        Treatment::Missing("there is no such limit; max_object_size limits what is stored"),
    ),
    (
        "reply_body_max_size request_body_max_size",
        Treatment::Open(
            &["0", "none", "-1"],
            "the proxy has no limit for the size of a body; max_object_size limits what is stored",
        ),
    ),
    (
        "url_rewrite_program redirect_program",
        Treatment::Open(&["none"], "a helper that may refuse URLs is not asked"),
    ),
    (
        "icap_enable ecap_enable",
        Treatment::Open(
            &["off"],
            "content is not passed to programs that may refuse it (ICAP, eCAP)",
        ),
    ),
    (
        "follow_x_forwarded_for",
        Treatment::Open(
            &["deny"],
            "rules for clients see the address that connects, not the one in X-Forwarded-For; \
             name the load balancers in proxy_protocol_from",
        ),
    ),
    ("ssl_bump", Treatment::Own(ssl_bump)),
    (
        "external_acl_type url_rewrite_children url_rewrite_host_header \
         url_rewrite_bypass url_rewrite_extras url_rewrite_timeout \
         redirect_children store_id_program store_id_extras store_id_children store_id_access \
         store_id_bypass location_rewrite_program auth_schemes",
        Treatment::Missing(HELPERS),
    ),
    (
        "icap_service icap_class icap_access icap_connect_timeout icap_io_timeout \
         icap_service_failure_limit icap_service_revival_delay icap_preview_enable \
         icap_preview_size icap_206_enable icap_default_options_ttl icap_persistent_connections \
         icap_client_username_header icap_client_username_encode icap_log icap_retry \
         icap_retry_limit ecap_service loadable_modules adaptation_service_set \
         adaptation_service_chain adaptation_access adaptation_service_iteration_limit \
         adaptation_masterx_shared_names adaptation_meta adaptation_send_client_ip \
         adaptation_send_username adaptation_uses_indirect_client",
        Treatment::Missing(ICAP),
    ),
    (
        "deny_info error_directory error_default_language error_log_languages err_html_text",
        Treatment::Missing(PAGES),
    ),
    (
        "sslproxy_cert_error sslproxy_cert_sign sslproxy_cert_adapt \
         sslproxy_cert_sign_hash sslproxy_session_ttl sslproxy_session_cache_size \
         sslproxy_foreign_intermediate_certs sslcrtd_program sslcrtd_children \
         sslcrtvalidator_program sslcrtvalidator_children sslpassword_program ssl_engine \
         ssl_unclean_shutdown sslproxy_flags sslproxy_cafile sslproxy_capath sslproxy_cipher \
         sslproxy_options sslproxy_version on_unsupported_protocol",
        Treatment::Missing(INTERCEPT),
    ),
    (
        "tcp_outgoing_address tcp_outgoing_tos tcp_outgoing_mark clientside_tos mark_client_packet \
         mark_client_connection qos_flows udp_incoming_address udp_outgoing_address",
        Treatment::Missing(ROUTING),
    ),
    (
        "wccp_router wccp_version wccp_address wccp2_router wccp2_rebuild_wait \
         wccp2_forwarding_method wccp2_return_method wccp2_assignment_method wccp2_service \
         wccp2_service_info wccp2_weight wccp2_address",
        Treatment::Missing(WCCP),
    ),
    (
        "host_verify_strict client_dst_passthru spoof_client_ip tproxy_uses_indirect_client",
        Treatment::Missing(DIVERTED),
    ),
    (
        "acl_uses_indirect_client log_uses_indirect_client",
        Treatment::Missing("clients are known by their address; a [[site]] has trust_forwarded"),
    ),
    (
        "dns_v4_fallback dns_testnames httpd_accel_no_pmtu_disc ident_timeout ignore_expect_100 \
         ignore_ims_on_miss incoming_rate incoming_dns_average incoming_tcp_average \
         incoming_udp_average min_dns_poll_cnt min_tcp_poll_cnt min_udp_poll_cnt \
         maximum_single_addr_tries request_entities server_http11 shared_transient_entries_limit \
         test_reachability update_headers upgrade_http0.9 zero_buffers broken_posts \
         force_request_body_continuation refresh_stale_hit chunked_request_body_max_size \
         ftp_list_width cache_vary broken_vary_encoding",
        Treatment::Unneeded(TUNING),
    ),
    (
        "log_access log_fqdn log_icap log_ip_on_direct emulate_httpd_log forward_log referer_log \
         useragent_log",
        Treatment::Missing("there is one access log, of all requests"),
    ),
    (
        "as_whois_server error_map external_refresh_check url_rewrite_concurrency \
         sslproxy_client_certificate sslproxy_client_key wais_relay_host wais_relay_port zph_local \
         mcast_miss_encode_key",
        Treatment::Missing("there is no such feature"),
    ),
    (
        "offline_mode",
        Treatment::Always(
            "off",
            "Squid still fetches what is not stored; `offline = \"on\"` sends nothing at all",
        ),
    ),
    (
        "cachemgr_passwd",
        Treatment::Missing("there is no cache manager: see admin and admin_token_file"),
    ),
    (
        "max_stale",
        Treatment::Missing("how long a response is served stale is set for a [[site]] only"),
    ),
    (
        "ftp_user",
        Treatment::Missing("FTP servers are asked as `anonymous`, or with the user in the URL"),
    ),
    (
        "ftp_port",
        Treatment::Missing("clients ask for ftp:// URLs by HTTP: see `gateways`"),
    ),
    (
        "refresh_all_ims vary_ignore_expire ie_refresh",
        Treatment::Missing("HTTP (RFC 9111) decides this"),
    ),
    (
        "neighbor_type_domain icp_hit_stale",
        Treatment::Missing("peers are what [[peer]] says, for all hosts"),
    ),
    (
        "mcast_groups mcast_miss_addr mcast_miss_ttl mcast_miss_port mcast_icp_query_timeout",
        Treatment::Missing("there is no multicast"),
    ),
    (
        "uri_whitespace",
        Treatment::Missing("a URL with blanks is refused"),
    ),
    (
        "extension_methods",
        Treatment::Unneeded("any method is passed on"),
    ),
    (
        "esi_parser httpd_accel_surrogate_id http_accel_surrogate_remote",
        Treatment::Missing("there is no ESI"),
    ),
    ("note", Treatment::Missing("nothing is added to log lines")),
    (
        "http_upgrade_request_protocols",
        Treatment::Missing("WebSocket is passed on, and no other protocol"),
    ),
    (
        "server_pconn_for_nonretriable collapsed_forwarding_access cache_miss_revalidate",
        Treatment::Missing("there is no such choice"),
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::lines;
    use super::*;

    #[test]
    fn every_directive_has_one_row_and_every_key_exists() {
        let mut names = BTreeSet::new();
        for (row, treatment) in DIRECTIVES {
            for name in row.split(' ') {
                assert!(!name.is_empty() && names.insert(name), "{name}");
            }
            if let Treatment::Time(key) | Treatment::Size(key) | Treatment::Count(key) = treatment {
                assert!(find(key).is_some(), "{key}");
            }
        }
        assert!(names.len() > 300, "{}", names.len());
    }

    fn imported(text: &str) -> Draft {
        let mut draft = Draft::default();
        for line in lines::lines("squid.conf", text) {
            import(&mut draft, &line, treatment(&line.name).unwrap());
        }
        draft
    }

    #[test]
    fn values_are_those_of_our_settings() {
        let draft = imported(
            "connect_timeout 1 minute\nrequest_header_max_size 64 KB\nworkers 4\nvia on\n\
             visible_hostname proxy.school.test\ncache_mgr it@school.test\nstrip_query_terms off\n\
             client_netmask 255.255.255.0\nprefer_direct on\naccess_log none\n",
        );
        let value = |key: &str| draft.get(key).unwrap().to_string();
        assert_eq!(value("limits.connect_time"), "\"1m\"");
        assert_eq!(value("limits.head_bytes"), "\"64KiB\"");
        assert_eq!(value("workers"), "4");
        assert_eq!(value("name"), "\"proxy.school.test\"");
        assert_eq!(value("log_strip_query"), "false");
        assert_eq!(value("direct"), "\"prefer\"");
        assert_eq!(draft.remarks.len(), 1);
    }

    #[test]
    fn values_without_a_counterpart_are_told() {
        let text = "connect_timeout soon\nworkers 0\nworkers 5000\nvisible_hostname 10.0.0.1\n\
                    via off\n\
                    access_log syslog:daemon squid\nsnmp_port 3401\nresponse_delay_pool 2\n\
                    tls_outgoing_options cafile=/none\nforwarded_for on\naccess_log none all\n";
        let draft = imported(text);
        assert_eq!(draft.imported, 0);
        assert_eq!(draft.remarks.len(), 11);
    }

    #[test]
    fn a_log_in_a_directory_that_is_there_goes_on() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("access.log");
        let draft = imported(&format!(
            "access_log daemon:{} combined acl1\n",
            path.display()
        ));
        assert_eq!(draft.get("access_log").unwrap().as_str(), path.to_str());
        assert_eq!(draft.get("log_format").unwrap().as_str(), Some("combined"));
        assert_eq!(draft.remarks.len(), 1);
    }
}
