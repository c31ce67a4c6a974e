//! Reports to the supervisor that this process works, as long as every core answers.
//!
//! Started by `server` if the supervisor has a watchdog. The main thread raises a number, and each
//! core stores that number when it next polls its tasks. A core that is stuck in a task, or has
//! stopped, does not.
//!
//! Cost: one wake of each core per quarter of the supervisor's time; nothing without a supervisor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;

use super::stage::Stage;
use super::supervisor::Notifier;

/// Checks the cores, and notifies the supervisor.
pub(super) struct Watchdog {
    interval: Duration,
    asked: watch::Sender<u64>,
    answers: Vec<Arc<AtomicU64>>,
}

/// A core's part of the watchdog: the current number, and where to store it.
pub(super) struct Pulse {
    asked: watch::Receiver<u64>,
    answer: Arc<AtomicU64>,
}

impl Watchdog {
    /// Makes a watchdog for a supervisor that terminates this process if it hears nothing for
    /// `patience`.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            // A single late round must not be a reason to terminate the process.
            interval: patience / 4,
            asked: watch::Sender::new(0),
            answers: Vec::new(),
        }
    }

    /// Adds a core, which runs [`Pulse::answer`].
    pub(super) fn pulse(&mut self) -> Pulse {
        let answer = Arc::new(AtomicU64::new(0));
        self.answers.push(Arc::clone(&answer));
        Pulse {
            asked: self.asked.subscribe(),
            answer,
        }
    }

    /// Runs for ever, on the main thread. Cores that stop because the process stops need not
    /// answer.
    pub(super) async fn keep(self, notifier: Arc<Notifier>, stage: watch::Receiver<Stage>) {
        loop {
            let round = *self.asked.borrow();
            let mut answers = self.answers.iter();
            let silent = answers.position(|answer| answer.load(Relaxed) != round);
            match silent {
                Some(core) if *stage.borrow() == Stage::Serving => {
                    warn!(core, "a core does not answer");
                }
                _ => {
                    notifier.alive();
                    self.asked.send_replace(round + 1);
                }
            }
            tokio::time::sleep(self.interval).await;
        }
    }
}

impl Pulse {
    /// Answers until the watchdog is dropped.
    pub(super) async fn answer(mut self) {
        while self.asked.changed().await.is_ok() {
            self.answer.store(*self.asked.borrow_and_update(), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::super::supervisor::tests::notifier;
    use super::*;

    /// The messages that have arrived.
    fn heard(socket: &UnixDatagram) -> usize {
        let mut buffer = [0; 64];
        let mut messages = 0;
        while let Ok(bytes) = socket.recv(&mut buffer) {
            assert_eq!(&buffer[..bytes], b"WATCHDOG=1");
            messages += 1;
        }
        messages
    }

    #[tokio::test(start_paused = true)]
    async fn a_core_that_does_not_answer_silences_the_process_until_it_stops() {
        let (notifier, supervisor) = notifier();
        supervisor.set_nonblocking(true).unwrap();
        let mut watchdog = Watchdog::new(Duration::from_secs(40));
        let pulses = [watchdog.pulse(), watchdog.pulse()];
        let [first, second] = pulses.map(|pulse| tokio::spawn(pulse.answer()));
        let (stop, stage) = watch::channel(Stage::Serving);
        tokio::spawn(watchdog.keep(Arc::new(notifier), stage));
        let pass = async || tokio::time::sleep(Duration::from_secs(100)).await;
        pass().await;
        assert_eq!(heard(&supervisor), 10);
        second.abort();
        pass().await;
        // The last answer of the second core may have been in time.
        assert!(heard(&supervisor) <= 1);
        pass().await;
        assert_eq!(heard(&supervisor), 0);
        stop.send_replace(Stage::Draining);
        pass().await;
        assert_eq!(heard(&supervisor), 10);
        first.abort();
    }
}
