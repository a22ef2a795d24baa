//! `loopback` and `echo`: what the guest sends comes back to it, copied straight from its transmit buffers into its
//! receive buffers.

use super::Port;
use crate::dataplane::{Context, rx, tx};
use crate::nic::Nic;
use crate::vhost::ring::{BatchStore, FrameBatch};

/// Sends everything back.
#[derive(Debug, Clone, Copy)]
pub struct Reflector {
    /// Swap the MAC addresses, so that the frame comes from whom it was for (`echo`).
    pub swap_macs: bool,
}

impl Port for Reflector {
    fn receive<'a>(&'a mut self, store: &'a mut BatchStore) -> FrameBatch<'a> {
        FrameBatch::new(store)
    }

    fn send(&mut self, from: &Nic, batch: &mut FrameBatch<'_>, cx: &mut Context) -> u64 {
        batch.parse();
        if self.swap_macs {
            for i in 0..batch.len() {
                if let Some(macs) = batch.frame_mut(i).head_mut().first_chunk_mut::<12>() {
                    let &mut [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = macs;
                    *macs = [s0, s1, s2, s3, s4, s5, d0, d1, d2, d3, d4, d5];
                }
                batch.headers_mut(i).swap_macs();
            }
        }
        tx::cross(from, batch, rx::all(batch), cx);
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::testing::{Bed, frame};
    use crate::dataplane::tx::transmit;
    use crate::port::PortQueue;

    /// What comes back of `sent`.
    fn reflected(swap_macs: bool, sent: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut bed = Bed::new(1, 0);
        bed.post(sent.len());
        sent.iter().for_each(|f| _ = bed.tx[0].guest.send(f));
        let mut port = PortQueue::Reflect(Reflector { swap_macs });
        assert_ne!(transmit(&bed.nic, 0, &mut port, &mut BatchStore::default(), &mut bed.cx), 0);
        assert_eq!(bed.nic.counters.of(0).port_tx_packets.get(), sent.len() as u64);
        bed.received(0)
    }

    #[test]
    fn loopback_sends_frames_back_as_they_are_and_echo_from_whom_they_were_for() {
        let mut long = frame(1);
        long.resize(1514, 9);
        let sent = [frame(0), long, vec![0xab; 14]];
        assert_eq!(reflected(false, &sent), sent);
        let swapped = sent.map(|f| [&f[6..12], &f[..6], &f[12..]].concat());
        let back = [frame(0), [frame(1), vec![9; 1454]].concat(), vec![0xab; 14]];
        assert_eq!(reflected(true, &back), swapped);
    }

    #[test]
    fn nothing_comes_of_itself() {
        let mut store = BatchStore::default();
        assert!(Reflector { swap_macs: true }.receive(&mut store).is_empty());
    }
}
