//! Ends a campaign in good order when it is told to stop.
//!
//! Used by campaigns that mount file systems: a signal would otherwise leave mounts and loop
//! devices behind.

use std::future::Future;

use anyhow::bail;
use tokio::signal::unix::{SignalKind, signal};

/// The outcome of `work`, or an error as soon as a signal says that this process is to end.
pub async fn unless_told(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        _ = terminated.recv() => bail!("terminated"),
        _ = hung_up.recv() => bail!("the terminal was closed"),
    }
}
