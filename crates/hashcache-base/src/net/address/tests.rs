//! The table of verdicts, and the syntax of prefixes and ports.

use super::*;
use crate::net::own_domain::AllowedDestination;
use crate::net::prefix::PrefixError;

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn own() -> OwnAddresses {
    OwnAddresses::fixed(
        &[ip("203.0.113.7"), ip("2001:db8:7::7")],
        &[prefix("203.0.113.0/24"), prefix("2001:db8:7::/64")],
    )
}

#[test]
fn a_prefix_shows_what_it_was_parsed_from() {
    for text in [
        "10.0.0.0/8",
        "0.0.0.0/0",
        "192.0.2.1/32",
        "fd00::/8",
        "::/0",
        "::1/128",
    ] {
        assert_eq!(prefix(text).to_string(), text);
    }
    assert_eq!(prefix("192.0.2.1").to_string(), "192.0.2.1/32");
    assert_eq!(prefix("::1").to_string(), "::1/128");
    assert_eq!(prefix("::ffff:10.0.0.0/104").to_string(), "10.0.0.0/8");
}

#[test]
fn a_prefix_that_is_none_says_why() {
    let parse = |text: &str| text.parse::<Prefix>().unwrap_err();
    assert_eq!(parse("10.0.0"), PrefixError::Address);
    assert_eq!(parse(""), PrefixError::Address);
    assert_eq!(parse("example.com"), PrefixError::Address);
    for text in [
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/+8",
        "10.0.0.0/999",
        "10.0.0.0/8/8",
    ] {
        assert_eq!(parse(text), PrefixError::Length { max: 32 }, "{text}");
    }
    assert_eq!(parse("::/129"), PrefixError::Length { max: 128 });
    let meant = prefix("10.0.0.0/8");
    assert_eq!(parse("10.1.0.0/8"), PrefixError::HostBits { meant });
    assert!(
        parse("10.1.0.0/8")
            .to_string()
            .ends_with("did you mean 10.0.0.0/8?")
    );
}

#[test]
fn a_prefix_contains_its_ends_and_not_their_neighbours() {
    let p = prefix("172.16.0.0/12");
    assert!(p.contains(ip("172.16.0.0")) && p.contains(ip("172.31.255.255")));
    assert!(!p.contains(ip("172.15.255.255")) && !p.contains(ip("172.32.0.0")));
    assert!(p.contains(ip("::ffff:172.16.0.1")));
    assert!(!p.contains(ip("ac10::")));
    assert!(prefix("0.0.0.0/0").contains(ip("255.255.255.255")));
    assert!(!prefix("0.0.0.0/0").contains(ip("::2")));
    assert!(prefix("::/0").contains(ip("ff::")));
}

#[test]
fn connect_ports_are_a_port_or_a_range() {
    let port = |text: &str| text.parse::<ConnectPort>();
    assert!(port("443").unwrap().contains(443));
    assert!(!port("443").unwrap().contains(444));
    let range = port("8000-8999").unwrap();
    assert!(range.contains(8000) && range.contains(8999) && !range.contains(9000));
    assert_eq!(range.to_string(), "8000-8999");
    assert_eq!(port("443").unwrap().to_string(), "443");
    for text in [
        "", "0", "65536", "+443", "443-", "-443", "9-8", "a", "1-2-3",
    ] {
        assert_eq!(port(text), Err(ConnectPortError), "{text}");
    }
    let ports = [port("443").unwrap()];
    assert_eq!(check_connect_port(&ports, 443), Ok(()));
    assert_eq!(
        check_connect_port(&ports, 25),
        Err(Failure::ConnectPortDenied { port: 25 })
    );
}

#[test]
fn the_default_list_refuses_every_entry_and_its_wrapped_forms() {
    let destinations = Destinations::new(&[], &[], own());
    let refused = [
        "0.0.0.0",
        "0.255.255.255",
        "10.0.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "192.0.0.8",
        "192.88.99.1",
        "198.18.0.1",
        "198.19.255.255",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "203.0.113.7",
        "::",
        "::1",
        "::127.0.0.1",
        "fc00::1",
        "fdff::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "2001:db8:7::7",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:203.0.113.7",
        "64:ff9b::10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "64:ff9b::192.88.99.1",
        "::ffff:0:127.0.0.1",
        "::ffff:0:192.168.1.1",
        "::ffff:0:1.1.1.1",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::5efe:10.0.0.1",
        "2606:4700::200:5efe:192.168.1.1",
        "2002:7f00:1::",
        "2002:c0a8:101::1",
        "2002:cb00:7107::",
    ];
    for address in refused {
        assert_eq!(
            destinations.check(ip(address), Purpose::Forward),
            Err(Failure::DestinationDenied {
                address: ip(address)
            }),
        );
    }
    let open = [
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.0.0.1",
        "128.0.0.1",
        "169.253.0.1",
        "172.15.0.1",
        "172.32.0.1",
        "192.0.1.1",
        "192.167.0.1",
        "198.17.0.1",
        "198.20.0.1",
        "203.0.113.8",
        "223.255.255.255",
        "2001:db8::1",
        "2606:4700::1111",
        "::ffff:1.1.1.1",
        "64:ff9b::1.1.1.1",
        "2001:1::1",
        "2001:db8::5efe:1.1.1.1",
        "2002:101:101::1",
    ];
    for address in open {
        assert_eq!(
            destinations.check(ip(address), Purpose::Forward),
            Ok(()),
            "{address}"
        );
    }
}

#[test]
fn behind_a_translator_its_addresses_are_judged_as_those_they_embed() {
    let nat64 = ["2001:db8:64::/96", "64:ff9b:1::/48", "fd00:64::/96"];
    let nat64: Vec<_> = nat64.iter().map(|it| it.parse().unwrap()).collect();
    let deny = [prefix("8.8.8.0/24")];
    let plain = Destinations::new(&[], &deny, own());
    let destinations = plain.clone().behind(&nat64);
    for (address, without, with) in [
        ("2001:db8:64::169.254.169.254", true, false),
        ("2001:db8:64::10.0.0.1", true, false),
        ("2001:db8:64::203.0.113.7", true, false),
        ("2001:db8:64::8.8.8.8", true, false),
        ("2001:db8:64::1.1.1.1", true, true),
        ("64:ff9b:1:a00:0:100::", false, false),
        ("64:ff9b:1:101:1:100::", false, true),
        ("fd00:64::1.1.1.1", false, true),
        ("fd00:64::192.168.1.1", false, false),
        ("fd00:65::1.1.1.1", false, false),
    ] {
        let verdict = |it: &Destinations| it.check(ip(address), Purpose::Forward).is_ok();
        assert_eq!(verdict(&plain), without, "{address}");
        assert_eq!(verdict(&destinations), with, "{address}");
    }
}

#[test]
fn the_deny_list_wins_over_the_allow_list_and_over_configuration() {
    let allow = [prefix("10.0.0.0/8"), prefix("127.0.0.1")];
    let deny = [
        prefix("10.9.0.0/16"),
        prefix("1.1.1.1"),
        prefix("64:ff9b::/96"),
    ];
    let destinations = Destinations::new(&allow, &deny, own());
    for (address, allowed) in [
        ("10.1.2.3", true),
        ("::ffff:10.1.2.3", true),
        ("2002:0a01:0203::", true),
        ("127.0.0.1", true),
        ("127.0.0.2", false),
        ("10.9.1.1", false),
        ("::ffff:10.9.1.1", false),
        ("1.1.1.1", false),
        ("::ffff:1.1.1.1", false),
        ("64:ff9b::8.8.8.8", false),
        ("8.8.8.8", true),
    ] {
        let verdict = destinations.check(ip(address), Purpose::Forward);
        assert_eq!(verdict.is_ok(), allowed, "{address}");
    }
    assert_eq!(
        destinations.check(ip("192.168.0.1"), Purpose::Configured),
        Ok(())
    );
    assert!(
        destinations
            .check(ip("10.9.0.1"), Purpose::Configured)
            .is_err()
    );
}

#[test]
fn clients_are_near_or_listed() {
    let clients = Clients::new(&[prefix("198.51.100.0/24")], own());
    for near in [
        "127.0.0.1",
        "10.1.1.1",
        "172.20.0.1",
        "192.168.0.9",
        "169.254.3.4",
        "::1",
        "fd12::1",
        "fe80::1",
        "::ffff:10.0.0.1",
        "198.51.100.4",
        "203.0.113.99",
        "2001:db8:7::99",
    ] {
        assert_eq!(clients.check(ip(near)), Ok(()), "{near}");
    }
    for far in [
        "8.8.8.8",
        "100.64.0.1",
        "2001:db8:8::1",
        "2002:0a00:0001::",
        "::ffff:8.8.8.8",
    ] {
        let client = ip(far).to_canonical();
        assert_eq!(
            clients.check(ip(far)),
            Err(Failure::ClientDenied { client }),
            "{far}"
        );
    }
}

#[test]
fn a_domain_of_the_own_network_may_have_private_addresses_and_no_other_name_may() {
    let AllowedDestination::Domain(domain) = "school.test@10.0.0.1".parse().unwrap() else {
        panic!("a domain was asked for");
    };
    let deny = [prefix("10.9.0.0/16"), prefix("2002:a08::/32")];
    let destinations = Destinations::new(&[], &deny, own()).with_domains(&[domain]);
    // The translator of this network has a private prefix.
    let destinations = destinations.behind(&["fd64::/96".parse().unwrap()]);
    let is_allowed = |name: &str, address: &str, purpose| {
        let host = Host::parse(name).unwrap();
        let checked = destinations.check_named(&host, ip(address), purpose);
        checked.is_ok()
    };
    for address in [
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "fd00::1",
        "8.8.8.8",
    ] {
        assert!(
            is_allowed("www.school.test", address, Purpose::Forward),
            "{address}"
        );
    }
    for address in ["10.1.2.3", "192.168.1.1", "fd00::1"] {
        for name in [
            "evil.test",
            "school.test.evil.test",
            "preschool.test",
            "10.1.2.3",
        ] {
            assert!(
                !is_allowed(name, address, Purpose::Forward),
                "{name} {address}"
            );
        }
    }
    // This machine, links, denied addresses, and addresses that no machine has.
    for address in [
        "127.0.0.1",
        "::1",
        "169.254.169.254",
        "fe80::1",
        "0.0.0.0",
        "224.0.0.1",
        "10.9.1.1",
        "203.0.113.7",
        "2001:db8:7::7",
        "::ffff:127.0.0.1",
        // 10.9.1.1 and 127.0.0.1 behind the translator, and 10.8.1.1 in 6to4.
        "fd64::a09:101",
        "fd64::7f00:1",
        "2002:a08:101::1",
    ] {
        assert!(
            !is_allowed("www.school.test", address, Purpose::Forward),
            "{address}"
        );
    }
}

#[test]
fn why_a_client_is_served_is_known() {
    let clients = Clients::new(&[prefix("198.51.100.0/24")], own());
    for (client, rule) in [
        ("127.0.0.1", Some(ClientRule::Near)),
        ("::ffff:10.0.0.1", Some(ClientRule::Near)),
        ("198.51.100.4", Some(ClientRule::Listed)),
        ("203.0.113.99", Some(ClientRule::Neighbour)),
        ("8.8.8.8", None),
    ] {
        assert_eq!(clients.rule(ip(client)), rule, "{client}");
    }
}
