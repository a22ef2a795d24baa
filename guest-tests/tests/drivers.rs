//! Which driver a card has: as chosen at boot, and changed later.

use guest_tests::nic::Interface;
use guest_tests::{Driver, Flownic, Guest, Kernel, Link, Namespace, Nic, Workdir, traffic};

/// Name of the driver that an interface has.
fn driver_of(interface: &Interface<'_>) -> String {
    let name = interface.name();
    interface.machine().run_ok(&format!("basename $(readlink -f /sys/class/net/{name}/device/driver)"))
}

fn each_card_has_its_own(kernel: Kernel) {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let nics = ["n0,queues=2,port=tap:fn0", "n1,queues=2,port=tap:fn1"];
    let _flownic = Flownic::start(&host, &workdir, &nics, &[]);
    let card = |name: &str| Nic::flownic(Flownic::socket(&workdir, name), 2);
    let builder = Guest::builder("guest").kernel(kernel).driver(Driver::FlownicNet);
    let guest = builder.nic(card("n0").driver(Driver::VirtioNet)).nic(card("n1")).boot(&workdir);

    assert_eq!(driver_of(&guest.interface(0)), "virtio_net");
    assert_eq!(driver_of(&guest.interface(1)), "flownic_net");
    let link = Link::up(0, Interface::named(&host, "fn0"), guest.interface(0));
    traffic::ping(&guest, &link.near(guest_tests::Family::V4), 2, 56);
    let link = Link::up(1, Interface::named(&host, "fn1"), guest.interface(1));
    traffic::ping(&guest, &link.near(guest_tests::Family::V4), 2, 56);

    // They change places, and frames still come and go.
    guest.bind(0, Driver::FlownicNet);
    guest.bind(1, Driver::VirtioNet);
    assert_eq!(driver_of(&guest.interface(0)), "flownic_net");
    assert_eq!(driver_of(&guest.interface(1)), "virtio_net");
    for (subnet, tap) in [(0, "fn0"), (1, "fn1")] {
        let index = usize::from(subnet);
        let link = Link::up(subnet, Interface::named(&host, tap), guest.interface(index));
        traffic::ping(&guest, &link.near(guest_tests::Family::V4), 2, 56);
    }
}

#[test]
fn each_card_has_its_own_with_the_older_kernel() {
    each_card_has_its_own(Kernel::Stable);
}

#[test]
fn each_card_has_its_own_with_the_newer_kernel() {
    each_card_has_its_own(Kernel::Backports);
}
