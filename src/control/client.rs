//! The client's end of the control socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use super::protocol::{Answer, Body, ControlError, Request, VERSION};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no reply.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody is there.
    #[error("Can't reach flownic at {path}: {source}")]
    Connect {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody is there and says nothing, or hangs up without a word.
    #[error("{0} does not answer as a control socket; is it a NIC's socket?")]
    Silent(PathBuf),
    /// The connection broke.
    #[error("The connection to flownic broke: {0}")]
    Io(#[from] io::Error),
    /// The server has closed.
    #[error("flownic has closed the connection")]
    Closed,
    /// The server speaks another language.
    #[error("flownic's answer makes no sense: {0}")]
    Nonsense(String),
    /// The server refuses.
    #[error(transparent)]
    Refused(#[from] ControlError),
}

/// A connection to a control socket.
pub struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
    calls: u64,
    /// Whether a line has come, so that this is a control socket.
    answered: bool,
}

#[derive(Serialize)]
struct Call<'a> {
    version: u64,
    id: u64,
    request: &'a Request,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// [`ClientError::Connect`] when nobody serves the socket.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path)
            .map_err(|source| ClientError::Connect { path: path.to_owned(), source })?;
        Ok(Client { stream: BufReader::new(stream), path: path.to_owned(), calls: 0, answered: false })
    }

    /// Asks, and waits for the reply.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the server's words, or what went wrong on the way.
    pub fn call<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, ClientError> {
        self.exchange(request).map_err(|e| match e {
            ClientError::Io(e) if e.kind() == io::ErrorKind::WouldBlock => {
                ClientError::Silent(self.path.clone())
            }
            // A NIC that has no front end takes the request for a message, and hangs up.
            ClientError::Closed | ClientError::Io(_) if !self.answered => {
                ClientError::Silent(self.path.clone())
            }
            e => e,
        })
    }

    fn exchange<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, ClientError> {
        self.calls += 1;
        let mut line = serde_json::to_vec(&Call { version: VERSION, id: self.calls, request })
            .expect("requests are plain data");
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)?;
        self.stream.get_ref().set_read_timeout(Some(PATIENCE))?;
        loop {
            match self.next()? {
                (_, Body::Ok(reply)) => {
                    return serde_json::from_value(reply).map_err(|e| ClientError::Nonsense(e.to_string()));
                }
                (_, Body::Error(e)) => return Err(e.into()),
                // The rest of a trace that this call has ended.
                (id, _) if id != self.calls => {}
                _ => return Err(ClientError::Nonsense("a trace that nobody asked for".into())),
            }
        }
    }

    /// The next line of a trace. Waits for as long as it takes.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn trace(&mut self) -> Result<Body<Value>, ClientError> {
        self.stream.get_ref().set_read_timeout(None)?;
        self.next().map(|(_, body)| body)
    }

    fn next(&mut self) -> Result<(Value, Body<Value>), ClientError> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(ClientError::Closed);
        }
        let answer: Answer<Value> =
            serde_json::from_str(&line).map_err(|e| ClientError::Nonsense(e.to_string()))?;
        self.answered = true;
        Ok((answer.id, answer.body))
    }
}
