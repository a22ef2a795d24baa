//! The real binary: its command line, its control socket, and how it ends. No guest, no root.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

const FLOWNIC: &str = env!("CARGO_BIN_EXE_flownic");
/// Makes its standard input descriptor 3 of flownic.
const WITH_FD: &str = r#"exec "$0" --fd=3 --no-control 3<&0 </dev/null"#;

/// The binary, with nothing of this process's surroundings that it would look at.
fn flownic() -> Command {
    clean(Command::new(FLOWNIC))
}

fn clean(mut command: Command) -> Command {
    command.env_remove("FLOWNIC_CONTROL").env_remove("RUST_LOG").env("XDG_RUNTIME_DIR", "/nonexistent");
    command.stdin(Stdio::null());
    command
}

/// The binary with a socket that it inherits.
fn with_fd(socket: impl Into<OwnedFd>) -> Command {
    let mut command = clean(Command::new("sh"));
    command.args(["-c", WITH_FD, FLOWNIC]).stdin(Stdio::from(socket.into()));
    command
}

fn run(args: &[&str]) -> Output {
    flownic().args(args).output().unwrap()
}

/// Exit status, standard output and standard error.
fn parts(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// A running `flownic serve`, killed at the end.
struct Serve {
    child: Child,
    log: BufReader<ChildStderr>,
    dir: TempDir,
}

impl Serve {
    /// Starts it and waits until it is ready. `@` in arguments is its folder; the control socket is `@/control`.
    #[track_caller]
    fn start(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().to_str().unwrap();
        let mut command = flownic();
        command.arg("serve").args(args.iter().map(|a| a.replace('@', at)));
        command.arg("--control").arg(dir.path().join("control"));
        Self::spawn(command, dir).0
    }

    /// Spawns the command; returns what it says until it is ready, too.
    #[track_caller]
    fn spawn(mut command: Command, dir: TempDir) -> (Self, String) {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut serve = Serve { child, log, dir };
        let said = serve.wait_for("Ready: ");
        (serve, said)
    }

    /// What it says until it says this.
    #[track_caller]
    fn wait_for(&mut self, words: &str) -> String {
        let mut said = String::new();
        while !said.contains(words) {
            assert_ne!(self.log.read_line(&mut said).unwrap(), 0, "it ended: {said}");
        }
        said
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn ctl(&self, words: &str) -> (i32, String, String) {
        let mut command = flownic();
        command.arg("ctl").args(words.split_whitespace()).env("FLOWNIC_CONTROL", self.path("control"));
        parts(command.output().unwrap())
    }

    /// What `ctl --json` says, which must succeed.
    #[track_caller]
    fn json(&self, words: &str) -> Value {
        let (status, out, err) = self.ctl(&format!("{words} --json"));
        assert_eq!((status, err.as_str()), (0, ""), "{words}");
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{words}: {e} in {out}"))
    }

    /// What `ctl` says to people, when it succeeds.
    #[track_caller]
    fn say(&self, words: &str) -> String {
        let (status, out, err) = self.ctl(words);
        assert_eq!((status, err.as_str()), (0, ""), "{words}");
        out
    }

    /// Sends a signal and waits for the end; what it has said since it was ready, and its folder.
    fn end(mut self, signal: &str) -> (ExitStatus, String, TempDir) {
        let kill = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let mut said = String::new();
        self.log.read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap());
        (status, said, dir)
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_follows_the_conventions_for_back_ends() {
    let (status, out, err) = parts(run(&["--print-capabilities"]));
    assert_eq!((status, err.as_str()), (0, ""));
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), json!({"type": "net"}));
    // Other options are ignored then.
    assert_eq!(run(&["--socket-path=/nonexistent/s", "--print-capabilities"]).status.code(), Some(0));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut command = flownic();
    command.arg(format!("--socket-path={}", path.display())).arg("--no-control");
    let (serve, said) = Serve::spawn(command, dir);
    assert!(said.contains(&format!("Ready: n0 on {}", path.display())), "{said}");
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
    let (status, _, _dir) = serve.end("-TERM");
    assert!(status.success() && !path.exists());
}

#[test]
fn an_inherited_connection_is_served_to_its_end() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (mut serve, _) = Serve::spawn(with_fd(theirs), tempfile::tempdir().unwrap());
    drop(ours);
    serve.wait_for("the last front end is gone");
    assert!(serve.child.wait().unwrap().success());
    let file = fs::File::open("/dev/null").unwrap();
    let (status, _, err) = parts(with_fd(file).output().unwrap());
    assert!(status == 1 && err.contains("Descriptor 3 is no UNIX stream socket"), "{err}");
}

#[test]
fn an_inherited_listener_is_served_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (mut serve, _) = Serve::spawn(with_fd(UnixListener::bind(&path).unwrap()), dir);
    for _ in 0..2 {
        drop(UnixStream::connect(&path).unwrap());
        serve.wait_for("front end disconnected");
    }
    let (status, _, _dir) = serve.end("-TERM");
    assert!(status.success() && path.exists(), "the path is not its own");
}

#[test]
fn signals_end_it_in_order() {
    for signal in ["-TERM", "-INT"] {
        let capture = "--capture=@/c.pcapng";
        let serve = Serve::start(&["--nic", "a,socket=@/a", "--nic", "b,socket=@/b,port=link:a", capture]);
        assert_eq!(serve.json("show")[0]["nic"], "a");
        assert_eq!(fs::metadata(serve.path("control")).unwrap().mode() & 0o777, 0o600);
        let (status, said, dir) = serve.end(signal);
        assert!(status.success() && said.contains("Stopped"), "{status} {said}");
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["c.pcapng"], "no socket is left");
        let capture = fs::read(dir.path().join("c.pcapng")).unwrap();
        assert_eq!(capture[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a section header");
    }
}

#[test]
fn what_makes_no_sense_has_status_2_and_says_what_would() {
    for (args, wanted) in [
        (&["serve"][..], "There is no NIC: give --socket-path PATH"),
        (&["serve", "--nic", "n0,socket=/a,queus=3"], "unknown key 'queus'; keys are socket, mode"),
        (
            &["serve", "--nic", "n0,socket=/a", "--nic", "n1,socket=/a"],
            "NICs n0 and n1 have the same socket: /a",
        ),
        (&["serve", "--features=-turbo", "--socket-path=/a"], "'turbo' is no feature"),
        (&["serve", "--queues", "2"], "go with --socket-path or --fd"),
        (
            &["serve", "--socket-path=/a", "--queues", "128"],
            "queues=128 is not possible; queues takes 1 to 127",
        ),
        (&["serve", "--socket-path=/a", "--poll", "often"], "off, adaptive, adaptive=USECS"),
        (&["serve", "--config", "/nonexistent/f"], "/nonexistent/f: No such file"),
        (&["--socket-path=/a", "--fd=3"], "cannot be used with"),
        (&["ctl", "--control=/a", "flows", "add", "flow-type", "tcp4"], "The rule has no action"),
        (&["ctl", "--control=/a", "learn", "n0", "forget"], "[show | on | off | clear [QUEUE]]"),
        (&["ctl", "--control=/a", "link", "n0", "sideways"], "link [NIC] up|down"),
        (&["ctl", "--control=/a", "rss", "set", "n0", "faster"], "RSS has no 'faster'"),
        (&["ctl", "--control=/a", "stats", "--watch", "0"], "0.01 to 86400 seconds"),
        (&["qemu-args", "--socket-path=/a", "n1"], "There is no NIC 'n1'; there are: n0"),
        (&["fly"], "unrecognized subcommand"),
    ] {
        let (status, out, err) = parts(run(args));
        assert!(status == 2 && out.is_empty() && err.contains(wanted), "{args:?}: {status} {err}");
    }
}

#[test]
fn what_can_not_be_done_has_status_1() {
    let serve = Serve::start(&["--nic", "n0,socket=@/n0"]);
    let taken = format!("--socket-path={}", serve.path("n0").display());
    for (args, wanted) in [
        (["serve", &taken], "already served by a running process"),
        (["serve", "--socket-path=/nonexistent/s"], "Socket /nonexistent/s can't be created"),
        (["ctl", "show"], "Can't reach flownic at /nonexistent/flownic.sock"),
        (["ctl", "show"], "is `flownic serve` running there? Name another socket with --control"),
    ] {
        let (status, _, err) = parts(run(&args));
        assert!(status == 1 && err.contains(wanted), "{args:?}: {status} {err}");
    }
    let dir = tempfile::tempdir().unwrap();
    let nic = format!("--socket-path={}", dir.path().join("s").display());
    let control = format!("--control={}", serve.path("control").display());
    let (status, _, err) = parts(run(&["serve", &nic, &control]));
    assert!(status == 1 && err.contains("already served"), "{err}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the NIC's socket is gone again");
}

#[test]
fn what_there_is_not_is_refused_with_what_there_is() {
    let serve = Serve::start(&["--nic", "n0,socket=@/n0,queues=4"]);
    let control = format!("--control={}", serve.path("control").display());
    let nic = format!("--control={}", serve.path("n0").display());
    for (socket, args, wanted) in [
        (&control, &["trace", "--queue", "9"][..], "There is no receive queue 9: queues go from 0 to 3"),
        (&control, &["learn", "maybe"], "'maybe' is neither a NIC (n0) nor one of show, on, off, clear"),
        (&control, &["rss", "set", "maybe", "on"], "'maybe' is neither a NIC (n0) nor one of on, off, mode"),
        (&nic, &["show"], "does not answer as a control socket; is it a NIC's socket?"),
    ] {
        let args = [&["ctl", socket.as_str()], args].concat();
        let (status, _, err) = parts(run(&args));
        assert!(status == 1 && err.contains(wanted), "{args:?}: {status} {err}");
    }
    assert!(serve.say("rss get").contains("in force: nothing, no queue runs"));
}

#[test]
fn rules_are_handled_in_the_words_of_ethtool() {
    let serve = Serve::start(&["--nic", "n0,socket=@/n0,queues=4,filters=8"]);
    let added = serve.say("flows add n0 flow-type tcp4 dst-ip 10.0.0.1 dst-port 80 action 2");
    assert_eq!(added, "Added rule with ID 7\n");
    let added = serve.say("flows add flow-type udp4 src-port 0 m 0xff action -1 loc 1");
    assert_eq!(added, "Added rule with ID 1\n");
    assert_eq!(
        serve.say("flows list"),
        concat!(
            "n0: 2 of 8 rules\n",
            "  loc  hits       to  rule\n",
            "    1     0     drop  flow-type udp4 src-port 0 m 255 action -1 loc 1\n",
            "    7     0  queue 2  flow-type tcp4 dst-ip 10.0.0.1 dst-port 80 action 2 loc 7\n",
        )
    );
    let rules = &serve.json("flows list n0")["rules"];
    assert_eq!(rules[0]["rule"]["src_port"], json!({"value": 0, "mask": 0xff00}));
    let rule = json!({"flow_type": "tcp4", "dst_ip": "10.0.0.1", "dst_port": 80, "action": 2, "loc": 7});
    assert_eq!(rules[1], json!({"rule": rule, "hits": 0}));
    assert_eq!(serve.json("flows add n0 flow-type ip4 action 0"), json!({"loc": 6}));
    assert_eq!(serve.say("flows del n0 1"), "");
    let (status, out, err) = serve.ctl("flows delete 1");
    assert_eq!((status, out.as_str(), err.as_str()), (1, "", "error: There is no rule at location 1\n"));
    for _ in 0..6 {
        serve.say("flows add flow-type ip4 action 0");
    }
    let (status, out, err) = serve.ctl("flows add flow-type ip4 action 0 --json");
    assert_eq!((status, out.as_str()), (1, ""));
    assert_eq!(serde_json::from_str::<Value>(&err).unwrap()["error"]["code"], "ENOSPC");
    serve.say("flows clear n0");
    assert_eq!(serve.json("flows list")["rules"], json!([]));
}

#[test]
fn every_other_command_does_what_it_says() {
    let n0 = "n0,socket=@/n0,queues=2,rss-table=4";
    let serve = Serve::start(&["--nic", n0, "--nic", "n1,socket=@/n1,port=link:n0"]);
    assert!(serve.say("show n1").starts_with("n1: not connected, on "));
    assert!(serve.say("show").contains("port link:n1, MTU 1500, link up"));
    serve.say("link n0 down");
    assert_eq!(serve.json("show n0")[0]["link_up"], false);
    serve.say("rss set n0 mode rss equal 1 unclassified 1");
    let rss = serve.json("rss get n0");
    assert_eq!((&rss["mode"], &rss["table"]), (&json!("rss"), &json!([0, 0, 0, 0])));
    assert_eq!(rss["unclassified"], 1);
    assert!(serve.say("rss get n0").starts_with("n0: RSS on, mode rss\n  key: 6d:5a:"));
    serve.say("learn n0 off");
    assert_eq!(serve.json("learn n0")["on"], false);
    serve.say("learn n0 clear");
    assert!(serve.say("learn n0 show").starts_with("n0: learned flows off, mode rss; 0 of 16384"));
    serve.say("reset-stats n0");
    let stats = serve.json("stats");
    assert_eq!((stats.as_array().unwrap().len(), &stats[0]["rx"][1]["by_rss"]), (2, &json!(0)));
    assert!(serve.say("stats n0 --all").contains("drop_no_queue: 0\n"));
    assert!(serve.say("features n0").contains("mrg_rxbuf"));
    for words in ["learn", "link up", "rss get", "trace", "features", "flows list", "reset-stats"] {
        let (status, _, err) = serve.ctl(words);
        let wanted = "error: There are several NICs, name one: n0, n1\n";
        assert_eq!((status, err.as_str()), (1, wanted), "{words}");
    }
    let (status, _, err) = serve.ctl("trace n0 --reason luck");
    assert!(status == 1 && err.contains("'luck' is no reason"), "{err}");
}

#[test]
fn watching_goes_on_until_nobody_reads() {
    let serve = Serve::start(&["--nic", "n0,socket=@/n0"]);
    let mut command = flownic();
    command.args(["ctl", "stats", "--watch", "0.01", "--json", "--control"]).arg(serve.path("control"));
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let line = lines.next().unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()[0]["nic"], "n0");
    }
    drop(lines);
    assert!(watch.wait().unwrap().success());
}

#[test]
fn without_a_word_the_control_socket_is_in_the_runtime_folder() {
    let runtime = tempfile::tempdir().unwrap();
    let start = |name: &str| {
        let mut command = flownic();
        command.args(["serve", "--nic", &format!("{name},socket={}", runtime.path().join(name).display())]);
        command.env("XDG_RUNTIME_DIR", runtime.path());
        Serve::spawn(command, tempfile::tempdir().unwrap())
    };
    let (_first, said) = start("n0");
    assert!(said.contains("The control socket is "), "{said}");
    let (_second, said) = start("n1");
    assert!(said.contains("There is no control socket (say --control PATH"), "{said}");
    let show = flownic().args(["ctl", "show", "--json"]).env("XDG_RUNTIME_DIR", runtime.path()).output();
    let show: Value = serde_json::from_slice(&show.unwrap().stdout).unwrap();
    assert_eq!((show[0]["nic"].as_str(), show.as_array().unwrap().len()), (Some("n0"), 1));
}

#[test]
fn qemu_s_arguments_are_those_of_the_running_nic() {
    let n0 = "n0,socket=@/n0,queues=3,mtu=9000";
    let serve = Serve::start(&["--nic", n0, "--nic", "n1,socket=@/n1,mode=client"]);
    let control = format!("--control={}", serve.path("control").display());
    let at = |name: &str| serve.path(name).display().to_string();
    let common = ["qemu-args", "n0", "--no-memory", "--qemu-version=7.2", "--mac=02:00:00:00:00:01"];
    let running = parts(run(&[&common[..], &[&control]].concat()));
    let nic = n0.replace("@/n0", &at("n0"));
    assert_eq!(running, parts(run(&[&common[..], &["--nic", &nic]].concat())));
    let wanted = format!(
        "-chardev socket,id=chr-n0,path={},reconnect=1\n\
         -netdev vhost-user,id=net-n0,chardev=chr-n0,queues=3\n\
         -device virtio-net-pci,netdev=net-n0,mac=02:00:00:00:00:01,mq=on,vectors=8,rx_queue_size=1024,\
         tx_queue_size=1024,host_mtu=9000\n",
        at("n0")
    );
    assert_eq!(running, (0, wanted, String::new()));
    let (status, out, _) = parts(run(&["qemu-args", "n1", "--json", "--memory=1G", &control]));
    let args: Vec<String> = serde_json::from_str(&out).unwrap();
    assert_eq!((status, args[0].as_str(), args[1].as_str()), (0, "-m", "1G"));
    assert!(args.contains(&"memory-backend-memfd,id=flownic-memory,size=1G,share=on".into()), "{out}");
    assert!(args.contains(&format!("socket,id=chr-n1,path={},server=on", at("n1"))), "{out}");
    let (status, _, err) = parts(run(&["qemu-args", &control]));
    assert!(status == 2 && err.contains("There are several NICs, name some: n0, n1"), "{err}");
}

#[test]
fn the_description_is_installed_with_the_program_s_path() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("qemu/vhost-user");
    let (status, out, err) = parts(run(&["install-description", "--dir", folder.to_str().unwrap()]));
    assert_eq!((status, err.as_str()), (0, ""));
    let description: Value = serde_json::from_slice(&fs::read(out.trim_end()).unwrap()).unwrap();
    assert_eq!(description["type"], "net");
    assert!(Path::new(description["binary"].as_str().unwrap()).is_file());
    let (status, _, err) = parts(run(&["install-description", "--binary", "flownic"]));
    assert!(status == 2 && err.contains("no absolute path"), "{err}");
}
