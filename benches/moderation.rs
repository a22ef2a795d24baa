//! How exact held signals are, and how many. First the time from a frame in the ring to its signal, as its guest sees it, less the time that was asked
//! for. Microseconds; median, 1 and 99 percent.
//!
//! Then how many signals a flood is worth: packets at a steady rate from `port=gen`, to a guest that takes them as Linux does, with
//! no wish for signals from the first one until it finds no more.
//!
//! One frame at a time, with pauses, so that the worker goes to sleep in between (`--poll off`) or polls. The guest looks at the
//! used index without a pause until the frame is there, then at its eventfd: both need a processor of their own.

use std::thread;
use std::time::{Duration, Instant};

use flownic::port::sys;
use flownic::testkit::{Flownic, frame, soon};

const FLOWNIC: &str = env!("CARGO_BIN_EXE_flownic");
const FRAMES: usize = 2000;
/// How long each flood lasts.
const FLOOD: Duration = Duration::from_secs(1);

/// The guest's processor, and flownic's.
fn processors() -> (usize, usize) {
    let allowed = sys::allowed_cpus().expect("the processors of this process");
    match allowed[..] {
        [guest, worker, ..] => (guest, worker),
        _ => panic!("two processors are needed, there is {allowed:?}"),
    }
}

/// Times from frame to signal, in microseconds, in order. The guest has a thread of its own: what is pinned stays so.
fn measure(poll: &str, usecs: u32, (guest_cpu, cpu): (usize, usize)) -> Vec<f64> {
    let nic = ["--nic", "n0,socket=@/n0,queues=1,port=echo", "--poll", poll, "--cpus", &cpu.to_string()];
    let flownic = Flownic::serve(FLOWNIC, &nic);
    thread::scope(|s| s.spawn(|| guest(&flownic, usecs, guest_cpu)).join().expect("a guest"))
}

fn guest(flownic: &Flownic, usecs: u32, cpu: usize) -> Vec<f64> {
    sys::pin_current_thread(cpu).expect("an allowed processor");
    flownic.ctl(&["coalesce", "set", "rx-usecs", &usecs.to_string()]);
    let mut guest = flownic.guest("n0").connect().expect("a back end");
    let sent = frame::udp("192.0.2.1:4000", "192.0.2.2:4001", 64);
    let mut times = Vec::new();
    for n in 0..FRAMES {
        guest.rx(0).want_signals(true);
        let before = guest.rx(0).signals();
        guest.send(0, &sent);
        let until = soon();
        while !guest.rx(0).has_used() {
            assert!(Instant::now() < until, "the frame came back");
        }
        let begin = Instant::now();
        while guest.rx(0).signals() == before {
            assert!(Instant::now() < until, "a signal came");
        }
        times.push(begin.elapsed().as_nanos() as f64 / 1000.0);
        while guest.try_recv(0).is_some() {}
        let pause = Instant::now() + Duration::from_micros(20 + n as u64 % 400);
        while Instant::now() < pause {
            std::hint::spin_loop();
        }
    }
    times.sort_by(f64::total_cmp);
    times
}

/// Signals and packets a second, of packets that come `rate` a second.
fn flood(rate: u64, usecs: u32, (guest_cpu, cpu): (usize, usize)) -> (f64, f64) {
    let nic = format!("n0,socket=@/n0,queues=1,port=gen:flows=16;size=60;rate={rate}");
    let flownic = Flownic::serve(FLOWNIC, &["--nic", &nic, "--poll", "always", "--cpus", &cpu.to_string()]);
    thread::scope(|s| s.spawn(|| take(&flownic, usecs, guest_cpu)).join().expect("a guest"))
}

fn take(flownic: &Flownic, usecs: u32, cpu: usize) -> (f64, f64) {
    sys::pin_current_thread(cpu).expect("an allowed processor");
    flownic.ctl(&["coalesce", "set", "rx-usecs", &usecs.to_string()]);
    let mut guest = flownic.guest("n0").connect().expect("a back end");
    let (mut packets, before, begin) = (0, guest.rx(0).signals(), Instant::now());
    let mut seen = before;
    while begin.elapsed() < FLOOD {
        guest.rx(0).want_signals(false);
        while guest.try_recv(0).is_some() {
            packets += 1;
        }
        guest.rx(0).want_signals(true);
        if guest.rx(0).has_used() {
            continue;
        }
        while guest.rx(0).signals() == seen && begin.elapsed() < FLOOD {}
        seen = guest.rx(0).signals();
    }
    let signals = seen - before;
    let seconds = begin.elapsed().as_secs_f64();
    (signals as f64 / seconds, packets as f64 / seconds)
}

fn main() {
    let (guest, worker) = processors();
    println!("{:<10} {:>8} {:>10} {:>10} {:>10}", "poll", "rx-usecs", "median", "1 %", "99 %");
    for poll in ["off", "always"] {
        for usecs in [8, 20, 60, 200, 1000] {
            let times = measure(poll, usecs, (guest, worker));
            let late = |share: f64| times[(share * (times.len() - 1) as f64) as usize] - f64::from(usecs);
            println!(
                "{poll:<10} {usecs:>8} {:>+10.1} {:>+10.1} {:>+10.1}",
                late(0.5),
                late(0.01),
                late(0.99)
            );
        }
    }
    println!("\n{:>10} {:>8} {:>10} {:>10} {:>10}", "rate", "rx-usecs", "packets/s", "signals/s", "at most");
    for rate in [10_000, 100_000, 1_000_000] {
        for usecs in [0, 20, 60] {
            let (signals, packets) = flood(rate, usecs, (guest, worker));
            let most = if usecs == 0 { f64::INFINITY } else { 1e6 / f64::from(usecs) };
            println!("{rate:>10} {usecs:>8} {packets:>10.0} {signals:>10.0} {most:>10.0}");
        }
    }
}
