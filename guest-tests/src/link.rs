//! Two interfaces that reach each other.

use crate::machine::Machine;
use crate::nic::Interface;
use crate::traffic;

/// Bytes before the payload of an echo request: IPv4 and ICMP.
const PING4: u32 = 28;
/// The same of IPv6 and ICMPv6.
const PING6: u32 = 48;

/// Address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Both ends of a wire, with addresses in a subnet of their own. `Near` and `far` are names only.
pub struct Link<'m> {
    near: Interface<'m>,
    far: Interface<'m>,
    subnet: u8,
}

impl<'m> Link<'m> {
    /// Gives both ends addresses in subnet number `subnet` and switches them on.
    ///
    /// # Panics
    /// When that fails or the far end cannot be reached.
    #[track_caller]
    pub fn up(subnet: u8, near: Interface<'m>, far: Interface<'m>) -> Link<'m> {
        let link = Link { near, far, subnet };
        for (end, interface) in [(1, &link.near), (2, &link.far)] {
            let (four, six) = (link.address(end, Family::V4) + "/24", link.address(end, Family::V6) + "/64");
            interface.up(&[&four, &six]);
        }
        traffic::wait_for_answer(link.near.machine(), &link.far(Family::V4));
        link
    }

    fn address(&self, end: u8, family: Family) -> String {
        match family {
            Family::V4 => format!("10.77.{}.{end}", self.subnet),
            Family::V6 => format!("2001:db8:{:x}::{end}", self.subnet),
        }
    }

    /// Address of the near end.
    pub fn near(&self, family: Family) -> String {
        self.address(1, family)
    }

    /// Address of the far end.
    pub fn far(&self, family: Family) -> String {
        self.address(2, family)
    }

    /// Interface at the near end.
    pub fn near_interface(&self) -> &Interface<'m> {
        &self.near
    }

    /// Interface at the far end.
    pub fn far_interface(&self) -> &Interface<'m> {
        &self.far
    }

    /// Both directions: from, to, and the address of `to`.
    fn directions(&self, family: Family) -> [(&'m Machine, &'m Machine, String); 2] {
        let (near, far) = (self.near.machine(), self.far.machine());
        [(near, far, self.far(family)), (far, near, self.near(family))]
    }

    /// Sets the largest packet size of both ends.
    ///
    /// # Panics
    /// When a kernel refuses.
    #[track_caller]
    pub fn mtu(&self, mtu: u32) {
        self.near.mtu(mtu);
        self.far.mtu(mtu);
    }

    /// Sends small and full packets of an MTU of `mtu` both ways in both families.
    ///
    /// # Panics
    /// When an answer is missing.
    #[track_caller]
    pub fn ping(&self, mtu: u32) {
        for (family, headers) in [(Family::V4, PING4), (Family::V6, PING6)] {
            for (from, _, address) in self.directions(family) {
                for size in [1, 56, mtu - headers - 1, mtu - headers] {
                    traffic::ping(from, &address, 2, size);
                }
            }
        }
    }

    /// Runs each of the netperf tests `tests` both ways: TCP for some hundred transactions or some megabytes, UDP for a
    /// second, since its peer would wait for what was lost.
    ///
    /// # Panics
    /// When one fails or gets nothing through.
    #[track_caller]
    pub fn netperf(&self, family: Family, tests: &[&str]) {
        for (from, to, address) in self.directions(family) {
            let server = traffic::netserver(to);
            for test in tests {
                // One datagram a packet, in either family.
                let (length, more) = match *test {
                    "TCP_RR" => (-300, ""),
                    "TCP_STREAM" => (-10_000_000, ""),
                    "UDP_STREAM" => (1, "-m 1432"),
                    _ => (1, ""),
                };
                let figure = traffic::netperf(from, &address, test, length, more);
                println!("{} -> {} {family:?} {test}: {figure:.0}", from.name(), to.name());
            }
            server.stop();
        }
    }

    /// Transfers `bytes` random bytes both ways in both families and compares.
    ///
    /// # Panics
    /// When what arrives differs.
    #[track_caller]
    pub fn transfer(&self, bytes: u64) {
        for family in [Family::V4, Family::V6] {
            for (from, to, address) in self.directions(family) {
                traffic::transfer(from, to, &address, bytes);
            }
        }
    }
}
