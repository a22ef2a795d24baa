//! Any commands from a guest: each has an answer of the promised form, what they set up is bounded and hangs together, steering
//! goes on deciding, and a reset leaves nothing.
//!
//! Input: one command after the other. A byte says which; bytes for its fields follow, and one with its length for raw data.
#![no_main]

use std::sync::{Arc, LazyLock, Mutex};

use flownic::command::{Kind, execute};
use flownic::config::Settings;
use flownic::dataplane::worker::WorkerHandle;
use flownic::nic::Nic;
use flownic::packet::parse;
use flownic::steer::{FlowType, Mode, NtupleSpec, Tick, Verdict};
use flownic::virtio::admin::{self, BitList, ObjectId, Opcode};
use flownic::virtio::ctrl::{Class, RssContextParams, RssParams, command};
use flownic::virtio::flow::{Classifier, Group, ObjectType, RuleObject, Selector, SelectorType};
use flownic::virtio::vendor;
use libfuzzer_sys::fuzz_target;

const RULES: u32 = 32;
const ENABLED: u128 = 0b0111;

/// One NIC with four queue pairs, three of them enabled, and a rule of the host. Running inputs share it, one at a time.
static NIC: LazyLock<Mutex<Nic>> = LazyLock::new(|| {
    let nics = vec![format!("n0,socket=/n0,queues=4,filters={RULES}").parse().expect("a NIC")];
    let config = Settings { nics, ..Settings::default() }.build().expect("a configuration").nics.remove(0);
    let worker = Arc::new(WorkerHandle::new(0).expect("an epoll"));
    let nic = Nic::new(1, config, vec![worker; 4], 1, None);
    let mut steering = nic.steering.write();
    steering.set_enabled(ENABLED);
    steering.filters_mut().add_ntuple(NtupleSpec::new(FlowType::Udp6, 1)).unwrap();
    drop(steering);
    Mutex::new(nic)
});

/// Bytes of the input, zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    fn bytes(&mut self) -> Vec<u8> {
        let n = usize::from(self.u8()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(n);
        self.0 = rest;
        bytes.to_vec()
    }

    /// An id, mostly a small one.
    fn id(&mut self) -> u32 {
        match self.u8() {
            0xff => u32::MAX,
            n => u32::from(n) % (RULES + 2),
        }
    }

    fn classifier(&mut self) -> Classifier {
        let shape = self.u8();
        let mut kinds = vec![SelectorType::Ethernet];
        kinds.extend([None, Some(SelectorType::Ipv4), Some(SelectorType::Ipv6)][usize::from(shape) % 3]);
        kinds.extend([None, Some(SelectorType::Tcp), Some(SelectorType::Udp)][usize::from(shape) / 3 % 3]);
        let mut selectors: Vec<_> = kinds.into_iter().map(Selector::new).collect();
        // What leads on to the next header.
        for (i, at) in [12..14, if shape % 3 == 2 { 6..7 } else { 9..10 }].into_iter().enumerate() {
            if i + 1 < selectors.len() {
                selectors[i].mask[at].fill(0xff);
            }
        }
        for _ in 0..self.u8() % 8 {
            let (which, at, mask) = (self.u8(), self.u8(), self.u8());
            let n = selectors.len();
            let masks = &mut selectors[usize::from(which) % n].mask;
            let n = masks.len();
            masks[usize::from(at) % n] = mask;
        }
        Classifier { selectors }
    }

    /// A rule for a classifier of this kind; its values are the input's.
    fn rule(&mut self) -> RuleObject {
        let classifier = self.classifier();
        let mut keys: Vec<u8> = (0..classifier.key_length()).map(|_| self.u8() & 3).collect();
        if let Some(ip) = classifier.selectors.get(1) {
            let v6 = ip.kind == SelectorType::Ipv6.code();
            keys[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
            if let Some(l4) = classifier.selectors.get(2) {
                keys[14 + if v6 { 6 } else { 9 }] = if l4.kind == SelectorType::Tcp.code() { 6 } else { 17 };
            }
        }
        RuleObject {
            group_id: self.id(),
            classifier_id: self.id(),
            priority: self.u8(),
            action: [1, 2, 2, 0x80][usize::from(self.u8()) % 4],
            vq_index: u16::from(self.u8()) % 10,
            queue_offset: u16::from(self.u8()) % 5,
            keys,
        }
    }

    fn rss(&mut self) -> RssParams {
        RssParams {
            hash_types: u32::from(self.u8() & 0x7f),
            unclassified: u16::from(self.u8()) % 5,
            table: (0..1 << (self.u8() % 8)).map(|_| u16::from(self.u8()) % 5).collect(),
            max_tx_vq: u16::from(self.u8()) % 6,
            key: vec![self.u8(); [0, 39, 40, 52, 53][usize::from(self.u8()) % 5]],
        }
    }

    fn object(&mut self) -> (ObjectId, Vec<u8>) {
        let id = self.id();
        match self.u8() % 3 {
            0 => (ObjectType::Group.id(id), Group { priority: self.u16() % 8 }.to_bytes()),
            1 => (ObjectType::Classifier.id(id), self.classifier().to_bytes()),
            _ => (ObjectType::Rule.id(id), self.rule().to_bytes()),
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let nic = NIC.lock().unwrap();
    let mut input = Input(bytes);
    agree(&nic);
    while !input.0.is_empty() {
        let (kind, command) = next(&nic, &mut input);
        let room = usize::from(input.u8()) * 8;
        run(&nic, kind, &command, room);
        check(&nic, &mut input);
    }
    run(&nic, Kind::Control, &command(Class::Flownic, vendor::RESET, &[]), 64);
    let steering = nic.steering.read();
    assert_eq!((steering.filters().len(), steering.filters().rules().count()), (1, 0));
    assert_eq!((steering.contexts().count(), steering.mode()), (0, Mode::Automatic));
    assert!(!steering.rss_is_guests() && steering.rx_filter().mode().promiscuous);
    drop(steering);
    assert_eq!(nic.guest_state().objects(), 0);
});

/// Uses all that there is, so that objects can be made.
fn agree(nic: &Nic) {
    run(nic, Kind::Admin, &admin::list_use(&BitList::of(Opcode::ALL.iter().map(|o| o.code()))), 8);
    for id in 0x800..0x803 {
        let capability = run(nic, Kind::Admin, &admin::device_cap_get(id), 512);
        run(nic, Kind::Admin, &admin::driver_cap_set(id, &capability[8..]), 8);
    }
}

fn next(nic: &Nic, input: &mut Input<'_>) -> (Kind, Vec<u8>) {
    match input.u8() % 12 {
        0 => (Kind::Admin, input.bytes()),
        1 => (Kind::Control, input.bytes()),
        2 => {
            let opcode = Opcode::ALL[usize::from(input.u8()) % Opcode::ALL.len()];
            (Kind::Admin, admin::command(opcode, &input.bytes()))
        }
        3 => {
            let class = Class::ALL[usize::from(input.u8()) % Class::ALL.len()];
            (Kind::Control, command(class, input.u8() % 6, &input.bytes()))
        }
        4 | 5 => {
            let (object, data) = input.object();
            (Kind::Admin, admin::object_create(object, &data))
        }
        6 => {
            let (object, data) = input.object();
            (Kind::Admin, admin::object_modify(object, &data))
        }
        7 => (Kind::Admin, admin::object_destroy(input.object().0)),
        8 => (Kind::Admin, admin::object_query(input.object().0)),
        9 => (Kind::Control, command(Class::Mq, 1 + input.u8() % 2, &input.rss().to_bytes())),
        10 => {
            let context = RssContextParams { id: u16::from(input.u8()) % 4, rss: input.rss() };
            (Kind::Control, command(Class::RssContext, 1 + input.u8() % 3, &context.to_bytes()))
        }
        _ => {
            agree(nic);
            (Kind::Control, command(Class::Flownic, vendor::IDENTIFY, &[]))
        }
    }
}

/// The answer, of which only what fits is written.
fn run(nic: &Nic, kind: Kind, command: &[u8], room: usize) -> Vec<u8> {
    let mut answer = vec![0xee; room + 16];
    let length = execute(nic, kind, command, &mut answer[..room]);
    assert!(answer[length.min(room)..].iter().all(|b| *b == 0xee));
    match kind {
        Kind::Admin => {
            assert!(length >= 8 && length.is_multiple_of(8) && length <= 512);
            if room >= 8 && answer[..2] != [0, 0] {
                assert!(length == 8 && answer[2] != 0, "a refusal says why, and nothing else");
            }
        }
        Kind::Control => {
            assert!((1..65536).contains(&length));
            assert!(room == 0 || answer[0] == 0 || answer[0] == 1 && length == 1);
        }
    }
    answer.truncate(length.min(room));
    answer
}

fn check(nic: &Nic, input: &mut Input<'_>) {
    let guest = nic.guest_state();
    let steering = nic.steering.read();
    let filters = steering.filters();
    assert!(filters.len() <= RULES && guest.objects() as u32 <= 16 + 64 + RULES);
    assert!(steering.contexts().count() <= 32);
    for (id, _, rule) in filters.rules() {
        let (object, _) = guest.rule(id).expect("both know of it");
        assert_eq!((object.group_id, object.classifier_id), (rule.group, rule.classifier));
        assert!(filters.group(rule.group).is_some() && filters.classifier(rule.classifier).is_some());
    }
    // A frame of the kind that rules are about, of few values.
    let mut frame = vec![0u8; 74];
    let v6 = input.u8() % 2 == 1;
    let tcp = input.u8() % 2 == 1;
    frame[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
    frame[14] = if v6 { 0x60 } else { 0x45 };
    let protocol = if tcp { 6 } else { 17 };
    let l4 = if v6 { 54 } else { 34 };
    if v6 {
        frame[19] = 20;
        frame[20] = protocol;
    } else {
        frame[17] = 60;
        frame[23] = protocol;
    }
    frame[l4 + 1] = input.u8() & 3;
    frame[l4 + 3] = input.u8() & 3;
    frame[l4 + if tcp { 12 } else { 5 }] = if tcp { 0x50 } else { 20 };
    let h = parse(&frame, frame.len());
    if let verdict @ Verdict::Queue { queue, .. } = steering.classify(&h, &nic.learned, Tick::ZERO) {
        assert_eq!(ENABLED >> queue & 1, 1, "a queue that is enabled");
        let _ = steering.hash(&h, verdict);
    }
}
