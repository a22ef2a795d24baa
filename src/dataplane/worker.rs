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

use super::notify::Nanos;
use super::patience::Patience;
use super::timers::{Clock, Lead, Timer};
use super::{Context, signal, tx};
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
    /// It sleeps and holds signals, or is about to.
    holding: AtomicBool,
    /// Limits of moderation have changed since it looked at all signals that it holds.
    limits_changed: AtomicBool,
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
        let [stop, holding, limits_changed] = [(); 3].map(|()| AtomicBool::new(false));
        Ok(WorkerHandle { id, epoll, wake, stop, holding, limits_changed })
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

    /// Limits of moderation have changed: it looks again at all signals that it holds. One that holds none is not woken.
    pub fn limits_changed(&self) {
        // The worker does the two in the other order, so one of both sees what the other did.
        self.limits_changed.store(true, Ordering::SeqCst);
        if self.holding.load(Ordering::SeqCst) {
            self.wake();
        }
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
    /// The NICs of the process, by number less 1, as far as this worker may deliver to them.
    nics: Vec<Option<Arc<Nic>>>,
    /// Some of them keep how long frames take.
    keeps_latency: bool,
    poll: PollMode,
    store: BatchStore,
    cx: Context,
    start: Instant,
    timer: OwnedFd,
    /// When it runs out, if it is set.
    timer_set: Option<Instant>,
    /// How long before a held signal is due a sleep has to end.
    lead: Lead,
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
        let mut cx = Context::new(handle.id);
        cx.clock = Clock::Since(start);
        cx.tx_grace = signal::tx_grace(poll != PollMode::Off);
        let mut worker = Worker {
            handle,
            sources,
            nics: Vec::new(),
            keeps_latency: false,
            poll,
            store: BatchStore::default(),
            cx,
            start,
            timer,
            timer_set: None,
            lead: Lead::default(),
            events,
        };
        let own: Vec<_> = worker.sources.iter().map(|s| Arc::clone(&s.nic)).collect();
        worker.add_nics(&own);
        Ok(worker)
    }

    /// NICs that its own ones are linked to: it may come to hold signals of theirs.
    pub fn add_nics(&mut self, nics: &[Arc<Nic>]) {
        for nic in nics {
            let i = usize::from(nic.id()) - 1;
            self.nics.resize(self.nics.len().max(i + 1), None);
            self.nics[i] = Some(Arc::clone(nic));
            self.keeps_latency |= nic.latency.is_some();
        }
    }

    /// Works until it is stopped.
    pub fn run(mut self) {
        let mut last_look = Instant::now();
        let mut patience = Patience::new(self.poll, last_look);
        let mut steps = 0u32;
        let has_descriptors = self.sources.iter().any(|s| s.port.readable_fd().is_some());
        let between_looks = if has_descriptors { STEPS_BETWEEN_LOOKS.0 } else { STEPS_BETWEEN_LOOKS.1 };
        loop {
            let busy = self.step() > 0;
            if !self.cx.timers.is_empty() {
                self.fire_due();
            }
            steps = steps.wrapping_add(1);
            if busy {
                patience.found();
                let late =
                    steps.is_multiple_of(STEPS_BETWEEN_CLOCKS) && last_look.elapsed() > LONGEST_BETWEEN_LOOKS;
                if !late && !steps.is_multiple_of(between_looks) {
                    continue;
                }
                last_look = self.tell_time();
                patience.renew(last_look);
                self.look(0);
            } else if patience.lasts(Instant::now) || self.is_due_soon() {
                patience.pause();
                if steps.is_multiple_of(between_looks) || has_descriptors {
                    last_look = self.tell_time();
                    self.look(0);
                }
            } else if !self.arm() {
                self.sleep();
                last_look = self.tell_time();
                patience.renew(last_look);
            }
            if self.handle.stop.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Serves every source once; returns how many frames there were.
    pub fn step(&mut self) -> usize {
        if self.keeps_latency {
            self.cx.turn = self.cx.clock.now();
        }
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

    /// Sends held signals whose time is up, or that are not to be held any longer.
    fn fire_due(&mut self) {
        if self.handle.limits_changed.load(Ordering::Relaxed) {
            self.handle.limits_changed.store(false, Ordering::SeqCst);
            for timer in self.cx.timers.take_all() {
                self.reconsider(timer);
            }
        }
        if self.cx.timers.next_due().is_none() {
            return;
        }
        let now = self.cx.clock.now();
        while let Some(timer) = self.cx.timers.take_due(now) {
            self.reconsider(timer);
        }
    }

    fn reconsider(&mut self, timer: Timer) {
        if let Some(Some(nic)) = self.nics.get(usize::from(timer.nic) - 1) {
            signal::reconsider(nic, timer, &mut self.cx);
        }
    }

    /// When to be awake for the first of the held signals.
    fn get_up(&self) -> Option<Nanos> {
        self.cx.timers.next_due().map(|due| due.saturating_sub(self.lead.get()))
    }

    /// Whether a held signal is due so soon that there is no sleeping until then.
    fn is_due_soon(&self) -> bool {
        self.get_up().is_some_and(|at| at <= self.cx.clock.now())
    }

    /// Sleeps until something happens. All guests have been asked to kick.
    fn sleep(&mut self) {
        if self.cx.timers.is_empty() {
            self.set_timer();
            self.look(-1);
            return;
        }
        self.handle.holding.store(true, Ordering::SeqCst);
        // If there has just been a change nobody may have woken it for that.
        if !self.handle.limits_changed.load(Ordering::SeqCst) {
            self.set_timer();
            let (set, begin) = (self.timer_set, Instant::now());
            self.look(-1);
            if let (Some(at), None) = (set.filter(|at| *at > begin), self.timer_set) {
                self.lead.slept(at.elapsed().as_nanos() as Nanos);
            }
        }
        self.handle.holding.store(false, Ordering::Relaxed);
    }

    /// Asks all guests to kick. True if one of them has something already: then there is no sleeping.
    fn arm(&mut self) -> bool {
        let mut pending = false;
        for s in &self.sources {
            let Some(mut guard) = s.nic.tx[s.pair].enter_waiting() else { continue };
            let Some(q) = guard.as_mut() else { continue };
            let more =
                if q.kicks.ask() { q.ring.want_kicks() } else { q.ring.is_empty().map(|empty| !empty) };
            match more {
                Ok(more) => pending |= more,
                Err(fault) => {
                    let broken = s.nic.tx[s.pair].take_broken(&mut guard);
                    drop(guard);
                    s.nic.tx_broken(s.pair, broken, fault);
                }
            }
        }
        pending
    }

    /// Sets the timer for the port that wants to be served first, or the signal that is to be sent first. One that is set for
    /// earlier stays: that wakes once for nothing, at the most, which is less than two system calls for each signal.
    fn set_timer(&mut self) {
        let held = self.get_up().map(|at| self.start + Duration::from_nanos(at));
        let Some(due) = self.sources.iter().filter_map(|s| s.port.due()).chain(held).min() else { return };
        if self.timer_set.is_some_and(|at| at <= due) {
            return;
        }
        let delay = due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        if let Err(e) = sys::timerfd_set(self.timer.as_fd(), Some(delay)) {
            warn!("The timer of worker {} can't be set: {e}", self.handle.id);
        }
        self.timer_set = Some(due);
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
                    self.timer_set = None;
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
            let Some(mut guard) = s.nic.tx[s.pair].enter_waiting() else { continue };
            if let Some(q) = guard.as_mut().filter(|q| q.kick.as_raw_fd() as u64 == fd) {
                let c = &s.nic.tx_counters[s.pair];
                c.kicks.add(1);
                // A ring that is broken is found so in its turn.
                c.kicks_spurious.add(u64::from(matches!(q.ring.is_empty(), Ok(true))));
                return;
            }
        }
    }
}
