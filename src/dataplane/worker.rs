//! Workers: threads that serve queue pairs of any NIC.
//!
//! A worker is *busy* while any of its queues or ports has something, then either *polls* (always, or for a while),
//! or *sleeps* until a kick, a readable port, a timer, or somebody who changed something. Before it sleeps it asks every
//! guest for kicks and looks once more, so nothing that came in between is lost.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use epoll::{ControlOptions, Event, Events};
use log::warn;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{Context, tx};
use crate::config::PollMode;
use crate::nic::Nic;
use crate::port::sys;
use crate::port::{Port, PortQueue};
use crate::steer::Tick;
use crate::vhost::ring::BatchStore;

/// What an epoll event means: the fd number for kicks, these for the rest.
const WAKE: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;
const PORT: u64 = 1 << 32;

/// What says that a port's descriptor will never be of use again.
const FAILED: Events = Events::EPOLLERR.union(Events::EPOLLHUP);

/// Steps between two looks at the clock and the descriptors while a worker does not sleep: often where a port's
/// descriptor has to be asked, seldom where only a change of configuration waits.
const STEPS_BETWEEN_LOOKS: (u32, u32) = (64, 1024);
/// However slow a guest makes the steps, the others' descriptors are looked at after this time.
const LONGEST_BETWEEN_LOOKS: Duration = Duration::from_millis(1);
/// Steps between two looks at the clock for that.
const STEPS_BETWEEN_CLOCKS: u32 = 8;

/// What others may do with a worker.
pub struct WorkerHandle {
    id: usize,
    epoll: OwnedFd,
    wake: EventFd,
    stop: AtomicBool,
}

impl WorkerHandle {
    /// A handle for worker number `id`.
    ///
    /// # Errors
    /// When there are no descriptors to be had.
    pub fn new(id: usize) -> io::Result<Self> {
        let epoll = sys::epoll()?;
        let wake = EventFd::new(EFD_NONBLOCK)?;
        epoll::ctl(
            epoll.as_raw_fd(),
            ControlOptions::EPOLL_CTL_ADD,
            wake.as_raw_fd(),
            Event::new(Events::EPOLLIN, WAKE),
        )?;
        Ok(WorkerHandle { id, epoll, wake, stop: AtomicBool::new(false) })
    }

    /// Its number.
    pub fn id(&self) -> usize {
        self.id
    }

    /// Waits for this kick from now on. Edge-triggered: every kick wakes, and nobody needs to read the counter.
    ///
    /// # Errors
    /// As `epoll_ctl(2)`.
    pub fn watch(&self, kick: &impl AsRawFd) -> io::Result<()> {
        let fd = kick.as_raw_fd();
        let event = Event::new(Events::EPOLLIN | Events::EPOLLET, fd as u64);
        epoll::ctl(self.epoll.as_raw_fd(), ControlOptions::EPOLL_CTL_ADD, fd, event)
    }

    /// No longer waits for it. Needed before it is closed: the front end has the same eventfd open.
    pub fn unwatch(&self, kick: &impl AsRawFd) {
        let fd = kick.as_raw_fd();
        let _ = epoll::ctl(
            self.epoll.as_raw_fd(),
            ControlOptions::EPOLL_CTL_DEL,
            fd,
            Event::new(Events::empty(), 0),
        );
    }

    /// Makes it look at everything again.
    pub fn wake(&self) {
        let _ = self.wake.write(1);
    }

    /// Ends it.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }
}

/// One queue pair of one NIC, with its end of the port.
pub struct Source {
    /// The NIC.
    pub nic: Arc<Nic>,
    /// The queue pair.
    pub pair: usize,
    /// Its end of the port.
    pub port: PortQueue,
    /// The port's descriptor was readable and has not been emptied since.
    readable: bool,
}

impl Source {
    /// A source whose port is looked at first thing.
    pub fn new(nic: Arc<Nic>, pair: usize, port: PortQueue) -> Self {
        Source { nic, pair, port, readable: true }
    }
}

/// A worker thread's state.
pub struct Worker {
    handle: Arc<WorkerHandle>,
    sources: Vec<Source>,
    poll: PollMode,
    store: BatchStore,
    cx: Context,
    start: Instant,
    timer: OwnedFd,
    timer_set: bool,
    events: Vec<Event>,
}

impl Worker {
    /// A worker for these sources.
    ///
    /// # Errors
    /// When descriptors are not to be had.
    pub fn new(
        handle: Arc<WorkerHandle>,
        sources: Vec<Source>,
        poll: PollMode,
        start: Instant,
    ) -> io::Result<Self> {
        let timer = sys::timerfd()?;
        let add = |fd: BorrowedFd<'_>, token| {
            let event = Event::new(Events::EPOLLIN, token);
            epoll::ctl(handle.epoll.as_raw_fd(), ControlOptions::EPOLL_CTL_ADD, fd.as_raw_fd(), event)
        };
        add(timer.as_fd(), TIMER)?;
        for (i, s) in sources.iter().enumerate() {
            if let Some(fd) = s.port.readable_fd() {
                add(fd, PORT | i as u64)?;
            }
        }
        let events = vec![Event::new(Events::empty(), 0); 64];
        let cx = Context::new(handle.id);
        Ok(Worker {
            handle,
            sources,
            poll,
            store: BatchStore::default(),
            cx,
            start,
            timer,
            timer_set: false,
            events,
        })
    }

    /// Works until it is stopped.
    pub fn run(mut self) {
        let mut last_busy = Instant::now();
        let mut steps = 0u32;
        let has_descriptors = self.sources.iter().any(|s| s.port.readable_fd().is_some());
        let between_looks = if has_descriptors { STEPS_BETWEEN_LOOKS.0 } else { STEPS_BETWEEN_LOOKS.1 };
        loop {
            let busy = self.step() > 0;
            steps = steps.wrapping_add(1);
            let late =
                steps.is_multiple_of(STEPS_BETWEEN_CLOCKS) && last_busy.elapsed() > LONGEST_BETWEEN_LOOKS;
            if busy && !late && !steps.is_multiple_of(between_looks) {
                continue;
            }
            if busy {
                last_busy = self.tell_time();
                self.look(0);
            } else {
                let polling = match self.poll {
                    PollMode::Always => true,
                    PollMode::Adaptive(time) => last_busy.elapsed() < time,
                    PollMode::Off => false,
                };
                if polling {
                    std::hint::spin_loop();
                    if steps.is_multiple_of(between_looks) || has_descriptors {
                        self.tell_time();
                        self.look(0);
                    }
                } else if !self.arm() {
                    self.set_timer();
                    self.look(-1);
                    last_busy = self.tell_time();
                }
            }
            if self.handle.stop.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Serves every source once; returns how many frames there were.
    pub fn step(&mut self) -> usize {
        let mut handled = 0;
        for s in &mut self.sources {
            if s.readable {
                let delivered = s.port.deliver(&s.nic, &mut self.store, &mut self.cx);
                handled += delivered;
                if delivered == 0 {
                    // A descriptor tells when there is more; where there is none, only looking does.
                    s.readable = s.port.readable_fd().is_none();
                }
            }
            handled += tx::transmit(&s.nic, s.pair, &mut s.port, &mut self.store, &mut self.cx);
        }
        handled
    }

    /// Looks at the clock.
    fn tell_time(&mut self) -> Instant {
        let now = Instant::now();
        self.cx.now = Tick::from_secs(now.duration_since(self.start).as_secs());
        now
    }

    /// Asks all guests to kick. True if one of them has something already: then there is no sleeping.
    fn arm(&mut self) -> bool {
        let mut pending = false;
        for s in &self.sources {
            let Some(mut guard) = s.nic.tx[s.pair].enter_waiting() else { continue };
            let Some(q) = guard.as_mut() else { continue };
            match q.ring.want_kicks() {
                Ok(more) => {
                    q.armed = true;
                    pending |= more;
                }
                Err(fault) => {
                    let broken = s.nic.tx[s.pair].take_broken(&mut guard);
                    drop(guard);
                    s.nic.tx_broken(s.pair, broken, fault);
                }
            }
        }
        pending
    }

    /// Sets the timer for the port that wants to be served first.
    fn set_timer(&mut self) {
        let due = self.sources.iter().filter_map(|s| s.port.due()).min();
        if due.is_none() && !self.timer_set {
            return;
        }
        let delay = due.map(|t| t.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1)));
        if let Err(e) = sys::timerfd_set(self.timer.as_fd(), delay) {
            warn!("The timer of worker {} can't be set: {e}", self.handle.id);
        }
        self.timer_set = due.is_some();
    }

    /// Takes in events; waits for them at most `timeout` milliseconds, for ever if negative.
    fn look(&mut self, timeout: i32) {
        let n = match epoll::wait(self.handle.epoll.as_raw_fd(), timeout, &mut self.events) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            Err(e) => {
                warn!("Worker {} can't wait for events: {e}", self.handle.id);
                0
            }
        };
        for event in 0..n {
            let token = self.events[event].data;
            match token {
                WAKE => {
                    let _ = self.handle.wake.read();
                    // What changed may be that a port without a descriptor has somebody to send to.
                    self.sources.iter_mut().for_each(|s| s.readable = true);
                }
                TIMER => {
                    let _ = sys::read_counter(self.timer.as_fd());
                    self.sources.iter_mut().for_each(|s| s.readable |= s.port.due().is_some());
                }
                port if port & PORT != 0 => {
                    let i = (port & !PORT) as usize;
                    self.sources[i].readable = true;
                    if self.events[event].events & FAILED.bits() != 0 {
                        self.give_up(i);
                    }
                }
                kick => self.kicked(kick),
            }
        }
    }

    /// A port's descriptor has failed for good (the device is gone): waiting for it would be no waiting.
    fn give_up(&self, i: usize) {
        let s = &self.sources[i];
        if let Some(fd) = s.port.readable_fd() {
            warn!("{}: the device on its port is gone; nothing more comes from there", s.nic.name());
            self.handle.unwatch(&fd);
        }
    }

    /// Counts a kick for the queue it belongs to.
    fn kicked(&mut self, fd: u64) {
        for s in &self.sources {
            let Some(guard) = s.nic.tx[s.pair].enter_waiting() else { continue };
            if guard.as_ref().is_some_and(|q| q.kick.as_raw_fd() as u64 == fd) {
                s.nic.tx_counters[s.pair].kicks.add(1);
                return;
            }
        }
    }
}
