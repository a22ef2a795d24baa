//! QEMU's monitor protocol.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

/// A monitor connection.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Takes the greeting and enters command mode.
    ///
    /// # Errors
    /// When the peer does not greet in time, or speaks something else.
    pub(super) fn new(stream: UnixStream) -> io::Result<Qmp> {
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut qmp = Qmp { stream: BufReader::new(stream) };
        qmp.read()?;
        qmp.ask("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    fn read(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    fn ask(&mut self, command: &str, arguments: &Value) -> io::Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes())?;
        loop {
            let answer = self.read()?;
            if answer.get("event").is_none() {
                return Ok(answer);
            }
        }
    }

    /// Executes a command and gives what it returns; `arguments` is an object.
    ///
    /// # Panics
    /// When QEMU refuses, with its answer, or has gone away.
    #[track_caller]
    pub fn execute(&mut self, command: &str, arguments: Value) -> Value {
        match self.ask(command, &arguments) {
            Ok(answer) => match answer.get("return") {
                Some(value) => value.clone(),
                None => panic!("{command} {arguments} was answered with {answer}"),
            },
            Err(error) => panic!("{command} {arguments} was not answered: {error}"),
        }
    }
}
