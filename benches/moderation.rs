//! How exact held signals are: the time from a frame in the ring to its signal, as its guest sees it, less the time that was asked
//! for. Microseconds; median, 1 and 99 percent.
//!
//! One frame at a time, with pauses, so that the worker goes to sleep in between (`--poll off`) or polls. The guest looks at the
//! used index without a pause until the frame is there, then at its eventfd: both need a processor of their own.

use std::thread;
use std::time::{Duration, Instant};

use flownic::port::sys;
use flownic::testkit::{Flownic, frame, soon};

const FLOWNIC: &str = env!("CARGO_BIN_EXE_flownic");
const FRAMES: usize = 2000;

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
}
