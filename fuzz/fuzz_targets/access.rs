//! Lists of hosts and conditions of rules of any bytes: every entry of a list is found in the set
//! that is made of it, however the file is cut, and a condition is shown as it can be read again.

#![no_main]

use std::io::BufReader;

use hashcache_access::{
    BadLines, Destination, HostHashes, ListFormat, NameSet, Reach, WeekSpan, read_list,
};
use hashcache_http::Host;
use libfuzzer_sys::fuzz_target;

fn entries(data: &[u8], format: ListFormat, buffer: usize) -> (Vec<(Host, Reach)>, BadLines) {
    let mut entries = Vec::new();
    let file = BufReader::with_capacity(buffer, data);
    let bad = read_list(file, format, |host, reach| {
        entries.push((host.clone(), reach));
        true
    });
    (entries, bad.expect("memory can be read"))
}

fn hashes(host: &Host) -> HostHashes {
    match host {
        Host::Name(name) => HostHashes::of_name(name.strip_suffix('.').unwrap_or(name)),
        Host::V4(address) => HostHashes::of_addresses([(*address).into(); 2]),
        Host::V6(address) => HostHashes::of_addresses([address.to_canonical(); 2]),
    }
}

fuzz_target!(|data: &[u8]| {
    for (_, format) in ListFormat::ALL {
        let read = entries(data, format, 1 << 16);
        assert_eq!(read, entries(data, format, 3));
        let (all, bad) = read;
        let lines = data.split(|&byte| byte == b'\n').count();
        assert!(bad.count <= lines as u64 && bad.first.len() <= lines);
        let mut set = NameSet::with_room(all.len());
        assert!(all.iter().all(|(host, reach)| set.insert(host, *reach)));
        assert!(all.iter().all(|(host, _)| set.contains(&hashes(host))));
        assert!(set.count() <= all.len());
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = text.parse::<WeekSpan>();
    if let Ok(destination) = text.parse::<Destination>() {
        assert_eq!(destination.to_string().parse(), Ok(destination));
    }
});
