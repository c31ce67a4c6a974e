//! The steps that an [`Origin`](crate::Origin) takes for one request.

use std::sync::Arc;

use tokio::sync::watch;

/// Steps in order. Without [`Script::read_body`] the origin reads the request content before the
/// first step. After the last step the connection stays open for another request.
#[derive(Clone, Debug, Default)]
pub struct Script {
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Bytes(Arc<[u8]>),
    /// Not sent in the response to HEAD.
    Content(Arc<[u8]>),
    ReadBody,
    Wait(Gate),
    Open(Gate),
    Close,
    Reset,
}

impl Script {
    /// Returns a script without steps: the origin sends nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A whole response with Content-Length (none for 204 and 304, which have no content). For HEAD
    /// only the head is sent, because the client would parse the content as the next response.
    #[must_use]
    pub fn response(status: u16, fields: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let length = body.len().to_string();
        let mut fields = fields.to_vec();
        if !matches!(status, 204 | 304) {
            fields.push(("Content-Length", &length));
        }
        let head = Self::new().head(status, &fields);
        head.step(Step::Content(body.into()))
    }

    /// Sends a head only; framing and content are left to the caller.
    #[must_use]
    pub fn head(self, status: u16, fields: &[(&str, &str)]) -> Self {
        let fields: String = fields
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        self.bytes(format!("HTTP/1.1 {status} Scripted\r\n{fields}\r\n"))
    }

    /// Sends one chunk of a body with `Transfer-Encoding: chunked`; an empty chunk is the last
    /// chunk.
    #[must_use]
    pub fn chunk(self, content: impl AsRef<[u8]>) -> Self {
        let content = content.as_ref();
        self.bytes(
            [
                format!("{:x}\r\n", content.len()).as_bytes(),
                content,
                b"\r\n",
            ]
            .concat(),
        )
    }

    /// Sends these bytes unchanged.
    #[must_use]
    pub fn bytes(self, bytes: impl AsRef<[u8]>) -> Self {
        self.step(Step::Bytes(bytes.as_ref().into()))
    }

    /// Reads the request content at this step and not earlier.
    #[must_use]
    pub fn read_body(self) -> Self {
        self.step(Step::ReadBody)
    }

    /// Waits until `gate` is open.
    #[must_use]
    pub fn wait(self, gate: &Gate) -> Self {
        self.step(Step::Wait(gate.clone()))
    }

    /// Opens `gate`: the test sees that the script has reached this step.
    #[must_use]
    pub fn open(self, gate: &Gate) -> Self {
        self.step(Step::Open(gate.clone()))
    }

    /// Closes the connection with a FIN.
    #[must_use]
    pub fn close(self) -> Self {
        self.step(Step::Close)
    }

    /// Closes the connection with a RST; bytes sent before may be lost.
    #[must_use]
    pub fn reset(self) -> Self {
        self.step(Step::Reset)
    }

    /// Continues with the steps of `next`.
    #[must_use]
    pub fn then(mut self, next: Self) -> Self {
        self.steps.extend(next.steps);
        self
    }

    fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }
}

/// A gate that opens once and stays open; clones refer to the same gate.
#[derive(Clone, Debug)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    /// Returns a closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::channel(false).0))
    }

    /// Opens the gate.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Returns true if the gate is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the gate is open.
    pub async fn opened(&self) {
        self.0
            .subscribe()
            .wait_for(|&open| open)
            .await
            .expect("the gate holds a sender itself");
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}
