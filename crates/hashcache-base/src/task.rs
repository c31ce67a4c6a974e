//! Starts tasks, each in a box.
//!
//! tokio has 3 kB of code for each future type that is started. The futures here all have one type,
//! so the binary has this code once. `http2` in `hashcache-wire` starts the tasks of streams
//! without a box, because there is a task for each request.
//!
//! Cost: an allocation for each task.

use std::pin::Pin;

use tokio::task::JoinHandle;

/// Starts a task on this thread.
pub fn spawn_local(task: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
    let task: Pin<Box<dyn Future<Output = ()>>> = Box::pin(task);
    tokio::task::spawn_local(task)
}

/// Starts a task on the caller's runtime.
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
    tokio::spawn(task)
}
