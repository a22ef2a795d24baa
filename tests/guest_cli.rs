//! `flownic-guest` without a NIC: what it says of words and interfaces that make no sense.

use std::process::Command;

/// Exit status, standard output and standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_flownic-guest")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn what_makes_no_sense_is_said_before_any_device_is_asked() {
    for (words, wanted) in [
        ("flows add flow-type sctp4 action 1", "'sctp4' is no flow-type; there are ether"),
        ("flows add flow-type tcp4 dst-port 80", "The rule has no action"),
        ("flows add flow-type tcp4 dst-port 80 m action", "dst-port: 'action' is not possible"),
        ("rss set faster", "RSS has no 'faster'; it has on, off"),
        ("coalesce set rx 5", "Moderation has no 'rx'; it has queue, rx-usecs"),
        ("flows del x", "invalid value 'x' for '<LOCATION>'"),
        ("--timeout 0 info", "0.01 to 3600 seconds are possible"),
        ("fly", "unexpected argument 'fly' found"),
    ] {
        let args: Vec<_> = ["nowhere0"].into_iter().chain(words.split(' ')).collect();
        let (status, out, err) = run(&args);
        assert_eq!((status, out.as_str()), (2, ""), "{words}: {err}");
        assert!(err.contains(wanted), "{words}: {err}");
    }
}

#[test]
fn an_error_is_a_line_or_an_object() {
    // Without the right to send raw frames that is what is missing first.
    let possible =
        ["There is no network interface 'nowhere0'", "Raw frames need CAP_NET_RAW: run this as root"];
    let (status, out, err) = run(&["nowhere0", "info"]);
    assert_eq!((status, out.as_str()), (1, ""));
    assert!(possible.iter().any(|p| err == format!("error: nowhere0: {p}\n")), "{err}");
    let (status, out, err) = run(&["nowhere0", "info", "--json"]);
    assert_eq!((status, out.as_str()), (1, ""));
    let object: serde_json::Value = serde_json::from_str(&err).unwrap();
    let message = object["error"]["message"].as_str().unwrap();
    assert!(possible.iter().any(|p| message == format!("nowhere0: {p}")), "{message}");
}

#[test]
fn it_is_as_old_as_flownic() {
    let (status, out, _) = run(&["--version"]);
    assert_eq!((status, out), (0, format!("flownic-guest {}\n", env!("CARGO_PKG_VERSION"))));
}
