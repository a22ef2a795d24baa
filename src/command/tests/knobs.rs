//! What a card that takes its time makes of a driver's commands. The clock is the tests'.

use std::time::Duration;

use super::*;
use crate::steer::{FilterKey, Knobs, Replace};
use crate::virtio::vendor::{IDENTIFY, Identity, RSS_GET, RULE_LIST, RULE_LIST_MAX, RssState};

const DELAY: Duration = Duration::from_secs(1000);
/// EAGAIN.
const TRY_AGAIN: (u16, u16) = (11, 7);

impl Driver {
    fn set(&self, knobs: Knobs) {
        self.nic().steering.write().filters_mut().set_knobs(knobs);
    }

    /// Lets time pass, and a packet come: where it goes.
    fn after(&mut self, time: Duration, frame: &Frame) -> Option<usize> {
        self.nic().filter_clock.advance(time);
        self.bed.post(4);
        self.bed.receive_plain(&frame.bytes());
        (0..4).find(|q| !self.bed.received(*q).is_empty())
    }
}

fn card(replace: Replace) -> Knobs {
    Knobs { delay: DELAY, in_flight: Some(2), replace, key: FilterKey::Any }
}

#[test]
fn a_packet_finds_a_rule_from_its_time_on() {
    let mut driver = Driver::ready().with_ports();
    driver.set(card(Replace::Atomic));
    let rss = driver.after(Duration::ZERO, &tcp_to(80)).unwrap() as u16;
    let to = (rss + 1) % 4;
    driver.create(rule(3), &to_queue(80, to).to_bytes()).unwrap();
    assert_eq!(driver.after(Duration::ZERO, &tcp_to(80)), Some(rss.into()));
    assert_eq!(driver.after(DELAY - Duration::from_secs(100), &tcp_to(80)), Some(rss.into()), "too early");
    assert_eq!(driver.query(rule(3)).unwrap()[..18], to_queue(80, to).to_bytes()[..18]);
    assert_eq!(driver.after(Duration::from_secs(100), &tcp_to(80)), Some(to.into()), "in time");
}

#[test]
fn so_many_are_on_their_way_that_one_more_is_to_try_again_and_it_changes_nothing() {
    let mut driver = Driver::ready().with_ports();
    driver.set(card(Replace::Atomic));
    driver.create(rule(0), &to_queue(1, 1).to_bytes()).unwrap();
    driver.create(rule(1), &to_queue(2, 1).to_bytes()).unwrap();
    assert_eq!(driver.create(rule(2), &to_queue(80, 1).to_bytes()), Err(TRY_AGAIN));
    assert_eq!(driver.query(rule(2)), Err(NO_SUCH));
    assert_eq!(driver.modify(rule(0), &to_queue(1, 2).to_bytes()), Err(TRY_AGAIN));
    assert_eq!(driver.query(rule(0)).unwrap()[..16], to_queue(1, 1).to_bytes()[..16]);
    // Destroying one makes room at once, and so does time, without any packet.
    driver.destroy(rule(0)).unwrap();
    driver.create(rule(2), &to_queue(80, 3).to_bytes()).unwrap();
    driver.nic().filter_clock.advance(DELAY);
    driver.create(rule(4), &to_queue(4, 1).to_bytes()).unwrap();
    assert_eq!(driver.after(Duration::ZERO, &tcp_to(80)), Some(3));
}

#[test]
fn what_is_on_its_way_is_forgotten_with_the_rest() {
    let mut driver = Driver::ready().with_ports();
    driver.set(card(Replace::Atomic));
    let rss = driver.after(Duration::ZERO, &tcp_to(80)).unwrap();
    driver.create(rule(3), &to_queue(80, (rss as u16 + 1) % 4).to_bytes()).unwrap();
    driver.nic().forget_guest();
    assert_eq!(driver.after(DELAY, &tcp_to(80)), Some(rss));
    assert_eq!(driver.nic().steering.read().filters().len(), 0);
}

#[test]
fn each_way_to_replace_is_seen_by_packets() {
    for (replace, meanwhile, afterwards) in
        [(Replace::Atomic, 1, 2), (Replace::DeleteAdd, 0, 2), (Replace::None, 1, 1)]
    {
        let mut driver = Driver::ready().with_ports();
        let rss = driver.after(Duration::ZERO, &tcp_to(80)).unwrap();
        let queue = |n: usize| (rss + n) % 4;
        driver.create(rule(3), &to_queue(80, queue(1) as u16).to_bytes()).unwrap();
        assert_eq!(driver.after(Duration::ZERO, &tcp_to(80)), Some(queue(1)));
        driver.set(card(replace));
        driver.modify(rule(3), &to_queue(80, queue(2) as u16).to_bytes()).unwrap();
        assert_eq!(driver.after(Duration::ZERO, &tcp_to(80)), Some(queue(meanwhile)), "{replace}");
        assert_eq!(driver.after(DELAY, &tcp_to(80)), Some(queue(afterwards)), "{replace}");
        // The answer to QUERY is what the driver has asked for, whatever the card makes of it.
        let said = RuleObject::from_bytes(&driver.query(rule(3)).unwrap());
        assert_eq!(usize::from(said.vq_index / 2), queue(2), "{replace}");
    }
}

#[test]
fn a_card_offers_what_it_compares_and_refuses_the_rest() {
    let driver = Driver::new();
    driver.set(Knobs { key: FilterKey::FiveTuple, ..Knobs::default() });
    driver.agree();
    let offered = Classifier::from_bytes(&driver.admin(&admin::device_cap_get(CAP_SELECTORS)).unwrap());
    assert!(offered.selectors.iter().all(|s| s.flags == 0));
    driver.create(group(0), &Group { priority: 1 }.to_bytes()).unwrap();
    assert_eq!(driver.create(classifier(0), &dst_port().to_bytes()), Err(FIELD));
    let mut five = dst_port();
    five.selectors[1].mask[12..].fill(0xff);
    five.selectors[2].mask[..4].fill(0xff);
    driver.create(classifier(0), &five.to_bytes()).unwrap();
    assert_eq!(driver.modify(classifier(0), &dst_port().to_bytes()), Err(FIELD));
}

#[test]
fn a_program_that_remembers_nothing_finds_all_rules_and_rss() {
    let driver = Driver::ready().with_ports();
    let list = |first: u32| {
        let bytes = driver.control(Class::Flownic, RULE_LIST, &first.to_le_bytes()).unwrap();
        bytes.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
    };
    assert!(list(0).is_empty());
    for id in 0..RULE_LIST_MAX as u16 + 2 {
        driver.create(rule(u32::from(id) * 2), &to_queue(id, 1).to_bytes()).unwrap();
    }
    assert_eq!((list(0).len(), &list(0)[..3]), (RULE_LIST_MAX, &[0, 2, 4][..]));
    assert_eq!(list(2 * RULE_LIST_MAX as u32 - 1), [512, 514]);
    assert!(list(515).is_empty() && list(u32::MAX).is_empty());
    assert_eq!(driver.control(Class::Flownic, RULE_LIST, &[0; 3]), None);

    let rss = || RssState::from_bytes(&driver.control(Class::Flownic, RSS_GET, &[]).unwrap()).unwrap();
    let before = rss();
    assert!(before.on && before.default_table && !before.rss_mode && !before.by_guest);
    assert_eq!((before.params.table.len(), before.params.hash_types), (128, 0x3f));
    let wanted = table(&[3, 2, 1, 0]);
    driver.control(Class::Mq, ctrl::mq::RSS_CONFIG, &wanted.to_bytes()).unwrap();
    let after = rss();
    assert!(after.on && after.rss_mode && !after.default_table && after.by_guest);
    assert_eq!(after.params, RssParams { max_tx_vq: 0, ..wanted });

    driver.nic().profile.store(4, std::sync::atomic::Ordering::Relaxed);
    let identity = driver.control(Class::Flownic, IDENTIFY, &[]).unwrap();
    assert_eq!(Identity::from_bytes(&identity).unwrap().profile, 4);
}
