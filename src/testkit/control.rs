//! A client of the control socket, written from the protocol's description.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

use super::{PATIENCE, dial, soon};

/// One connection to a control socket.
#[derive(Debug)]
pub struct Control {
    reader: BufReader<UnixStream>,
    calls: u64,
}

impl Control {
    /// Connects; answers must come within [`PATIENCE`].
    ///
    /// # Errors
    /// When nobody listens in time.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = dial::dial(path, soon())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Control { reader: BufReader::new(stream), calls: 0 })
    }

    /// Sends a line as it is, without its end if the text has none.
    ///
    /// # Errors
    /// When the server has closed the connection.
    pub fn send(&mut self, text: &str) -> io::Result<()> {
        self.reader.get_mut().write_all(text.as_bytes())
    }

    /// Reads the next line; `None` at the end of the connection.
    ///
    /// # Panics
    /// When it does not come in time, or is no JSON.
    pub fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => {
                Some(serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e} in the answer {line:?}")))
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => None,
            Err(e) => panic!("no answer on the control socket: {e}"),
        }
    }

    /// Sends a request and returns its reply, or the `error` object.
    ///
    /// # Panics
    /// When the answer is not one to this call.
    pub fn call(&mut self, request: &Value) -> Result<Value, Value> {
        self.calls += 1;
        let call = json!({ "version": 1, "id": self.calls, "request": request });
        self.send(&format!("{call}\n")).expect("an open control connection");
        let mut answer = self.line().expect("an answer");
        assert_eq!((&answer["version"], &answer["id"]), (&json!(1), &json!(self.calls)), "{answer}");
        match answer.get_mut("ok") {
            Some(ok) => Ok(ok.take()),
            None => Err(answer
                .get_mut("error")
                .map(Value::take)
                .unwrap_or_else(|| panic!("neither ok nor error"))),
        }
    }
}
