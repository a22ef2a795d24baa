//! The channel against a device that is made up: what the real one does is tested from outside.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use super::channel::Repeat;
use super::{Channel, Device, Frames, GuestError};
use crate::virtio::MacAddr;
use crate::virtio::channel::{CHANNEL_VERSION, COMMAND_OFFSET, ChannelHeader, channel_header};
use crate::virtio::vendor::Identity;

type Reply = Box<dyn FnMut(&ChannelHeader, &[u8]) -> Vec<Vec<u8>>>;

/// A device: what it makes of each command.
struct Made {
    reply: Reply,
    waiting: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

impl Frames for Made {
    fn mac(&self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, 7])
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        let header = channel_header(frame, frame.len()).expect("a command");
        let command = &frame[COMMAND_OFFSET..COMMAND_OFFSET + usize::from(header.length)];
        self.sent.push(frame.to_vec());
        self.waiting.extend((self.reply)(&header, command));
        Ok(())
    }

    fn receive(&mut self, room: &mut [u8], _until: Instant) -> io::Result<Option<usize>> {
        // No time needs to pass.
        let Some(frame) = self.waiting.pop_front() else { return Ok(None) };
        room[..frame.len()].copy_from_slice(&frame);
        Ok(Some(frame.len()))
    }
}

fn channel(reply: impl FnMut(&ChannelHeader, &[u8]) -> Vec<Vec<u8>> + 'static) -> Channel<Made> {
    let made = Made { reply: Box::new(reply), waiting: VecDeque::new(), sent: Vec::new() };
    Channel::new(made, Duration::from_secs(1), u32::MAX)
}

/// A reply frame.
fn frame(header: ChannelHeader, answer: &[u8]) -> Vec<u8> {
    let header = ChannelHeader { kind: header.kind | 0x80, length: answer.len() as u16, ..header };
    let mut frame =
        [&[2, 0, 0, 0, 0, 7][..], &[2, 0, 0, 0, 0, 7], &[0x88, 0xb5], &header.to_bytes(), answer].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn status(status: u8) -> GuestError {
    let mut channel = channel(move |h, _| vec![frame(ChannelHeader { status, ..*h }, &[])]);
    channel.control("Something", &[0xf0, 0], Repeat::No).unwrap_err()
}

#[test]
fn a_command_is_a_frame_and_its_answer_comes_back_without_padding() {
    let mut channel = channel(|h, command| vec![frame(*h, &[&[0][..], command].concat())]);
    assert_eq!(channel.control("Echo", &[0xf0, 1, 2], Repeat::No).unwrap(), [0xf0, 1, 2]);
    let sent = &channel.frames().sent;
    assert_eq!((sent.len(), sent[0].len()), (1, 60));
    assert_eq!(sent[0][..20], *b"\x02\0\0\0\0\x07\x02\0\0\0\0\x07\x88\xb5flwn\x01\x02");
    // Sequences go on, beyond the end of numbers too.
    channel.control("Echo", &[0xf0], Repeat::No).unwrap();
    let sequence = |i: usize| channel_header(&channel.frames().sent[i], 60).unwrap().sequence;
    assert_eq!((sequence(0), sequence(1)), (0, 1));
}

#[test]
fn answers_to_others_and_frames_that_are_no_answers_are_passed_over() {
    let mut channel = channel(|h, _| {
        let other = |change: fn(&mut ChannelHeader)| {
            let mut header = *h;
            change(&mut header);
            frame(header, &[1, 1])
        };
        let mut command = frame(*h, &[1, 1]);
        command[19] = h.kind;
        vec![
            vec![0; 60],
            other(|h| h.sequence += 1),
            other(|h| h.kind = 1),
            other(|h| h.magic = 0),
            command,
            frame(*h, &[0, 42]),
        ]
    });
    assert_eq!(channel.control("Something", &[0xf0, 0], Repeat::No).unwrap(), [42]);
}

#[test]
fn each_status_has_its_words() {
    assert!(matches!(status(1), GuestError::Version(CHANNEL_VERSION)));
    assert!(matches!((status(2), status(3)), (GuestError::Channel(2), GuestError::Channel(3))));
    assert!(matches!(status(4), GuestError::NotAllowed));
    assert!(matches!(status(0), GuestError::Nonsense(_)), "an answer without an ack");
    let mut refuses = channel(|h, _| vec![frame(*h, &[1])]);
    let e = refuses.control("RSS", &[4, 1], Repeat::No).unwrap_err().to_string();
    assert_eq!(e, "RSS: the device refuses");
    let admin = |answer: &'static [u8]| {
        channel(move |h, _| vec![frame(*h, answer)]).admin("Rule", &[0; 24], Repeat::No)
    };
    assert_eq!(admin(&[0, 0, 0, 0, 0, 0, 0, 0, 5]).unwrap(), [5]);
    assert!(matches!(admin(&[0, 0, 0, 0, 0, 0, 0]), Err(GuestError::Nonsense(_))));
    for (answer, words) in [
        (&[6, 0, 0, 0, 0, 0, 0, 0][..], "Rule: there is no such object (ENXIO)"),
        (&[11, 0, 7, 0, 0, 0, 0, 0], "Rule: the device is busy with other rules, try again (EAGAIN)"),
        (&[22, 0, 3, 0, 0, 0, 0, 0], "Rule: the device finds it not possible (EINVAL); it is about a field"),
        (&[28, 0, 0, 0, 0, 0, 0, 0], "Rule: the device has no room for it (ENOSPC)"),
        (&[99, 0, 0, 0, 0, 0, 0, 0], "Rule: status 99"),
    ] {
        assert_eq!(admin(answer).unwrap_err().to_string(), words);
    }
}

#[test]
fn a_question_is_asked_again_and_an_order_is_not() {
    let mut lost = 2;
    let mut channel = channel(move |h, _| {
        lost -= 1;
        if lost >= 0 { vec![] } else { vec![frame(*h, &[0])] }
    });
    channel.control("Question", &[0xf0, 0], Repeat::Yes).unwrap();
    assert_eq!(channel.frames().sent.len(), 3);
    let mut deaf = self::channel(|_, _| vec![]);
    assert!(matches!(deaf.control("Order", &[0xf0, 1], Repeat::No), Err(GuestError::NoAnswer)));
    assert_eq!(deaf.frames().sent.len(), 1);
    assert!(matches!(deaf.control("Question", &[0xf0, 1], Repeat::Yes), Err(GuestError::NoAnswer)));
    assert_eq!(deaf.frames().sent.len(), 4);
}

#[test]
fn an_answer_that_was_cut_off_is_as_long_as_what_came() {
    let mut channel = channel(|h, _| {
        let mut cut = frame(*h, &[0; 100]);
        cut.truncate(COMMAND_OFFSET + 50);
        vec![cut]
    });
    assert_eq!(channel.control("Much", &[0xf0, 0], Repeat::No).unwrap().len(), 49);
}

#[test]
fn who_does_not_identify_as_known_here_is_no_device() {
    let identify = |identity: Identity| {
        let bytes = [vec![0], identity.to_bytes()].concat();
        Device::find(channel(move |h, _| vec![frame(*h, &bytes)])).map(drop)
    };
    let good = Identity { abi: Identity::ABI, queue_pairs: 4, ..Identity::default() };
    identify(good.clone()).unwrap();
    let e = identify(Identity { abi: 9, ..good.clone() }).unwrap_err().to_string();
    assert_eq!(e, "The device has ABI 9, this program knows 1");
    for queue_pairs in [0, 0x4001, u16::MAX] {
        let e = identify(Identity { queue_pairs, ..good.clone() }).unwrap_err();
        assert!(matches!(e, GuestError::Nonsense(_)), "{queue_pairs}");
    }
}
