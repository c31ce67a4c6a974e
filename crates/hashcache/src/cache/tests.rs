//! What only shows from inside: a lock that a panic has left behind.

use std::sync::Arc;

use super::Cache;
use crate::Config;
use crate::PolicyKind;
use crate::Put;
use crate::device::MemoryDevice;
use crate::error::PutError;
use crate::stats::Health;

#[test]
fn a_panic_under_a_shards_lock_takes_the_device_out_and_leaves_nobody_waiting() {
    for policy in PolicyKind::ALL {
        let config = Config {
            policy,
            memory_bytes: 16 << 20,
            ..Config::on_device(Arc::new(MemoryDevice::new(64 << 20)))
        };
        let cache = Cache::open(config).unwrap();
        let put = |name: &[u8]| cache.put(name, Put::metadata("m"), b"content");
        put(b"name").unwrap();
        let key = cache.secret().name(b"name");
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _shard = cache.stripe(key).shard(key);
                panic!("on purpose");
            });
            thread.join().is_err()
        });
        assert!(panicked);
        // Whatever asks next finds out, and all are answered.
        assert!(cache.remove(b"name").wait().is_err(), "{policy:?}");
        assert!(!cache.flush().wait());
        assert_eq!(cache.health(), Health::OutOfService);
        assert!(cache.get(b"name").wait().is_none());
        assert_eq!(put(b"name"), Err(PutError::OutOfService));
        cache.close();
    }
}
