//! Connections that netfilter sends to the proxy, in network namespaces.

use rustix::process::geteuid;

#[test]
fn devices_without_settings_are_served_and_names_are_checked() {
    // Without root there is one row, which says so.
    let least = if geteuid().is_root() { 30 } else { 0 };
    super::passed(&mut super::campaign("transparent"), least);
}
