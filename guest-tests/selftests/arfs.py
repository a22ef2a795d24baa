#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""
Test accelerated RFS: the device is told to deliver each flow to the queue whose
interrupt goes to the CPU where the flow's consumer runs.

The consumer is this process, pinned to one CPU after another. It plays ping-pong
with an echo server on the remote end, so that every packet it gets is one that
the device had to steer, and RFS knows where it was consumed.
"""

import glob
import os
import socket
import time
from lib.py import ksft_run, ksft_exit, ksft_pr
from lib.py import ksft_eq, ksft_ge, ksft_lt, ksft_ne, ksft_true
from lib.py import ksft_disruptive, ksft_variants, KsftNamedVariant
from lib.py import EthtoolFamily, NetDrvEpEnv, NetdevFamily
from lib.py import KsftSkipEx
from lib.py import bkg, cmd, defer, ethtool, ip, rand_port, wait_port_listen

# Entries of the socket flow table, and of each queue's
SOCK_FLOWS = 4096
QUEUE_FLOWS = 256
# Packets of one measurement, and how many others may get in their way: neighbour
# discovery and the like go where RSS sends them
PACKETS = 200
NOISE = 4
# Longest time for a filter to get into force, far more than a device should take
STEER_DEADLINE = 10


def _write(path, value):
    with open(path, "w", encoding="utf-8") as fp:
        fp.write(str(value))


def _read(path):
    with open(path, "r", encoding="utf-8") as fp:
        return fp.read().strip()


def _set_restore(path, value):
    """Write to a file of sysfs or procfs, and restore it after the test."""
    old = _read(path)
    _write(path, value)
    defer(_write, path, old)


def _set_flow_cnt(cfg, count):
    for path in glob.glob(f"/sys/class/net/{cfg.ifname}/queues/rx-*/rps_flow_cnt"):
        _write(path, count)


def _enable_rfs(cfg, flows=QUEUE_FLOWS):
    """Enable RFS, accelerated if ntuple filters are on."""
    _set_restore("/proc/sys/net/core/rps_sock_flow_entries", SOCK_FLOWS)
    _set_flow_cnt(cfg, flows)
    defer(_set_flow_cnt, cfg, 0)


def _require_ntuple(cfg):
    features = ethtool(f"-k {cfg.ifname}", json=True)[0]
    if not features["ntuple-filters"]["active"]:
        if features["ntuple-filters"]["fixed"]:
            raise KsftSkipEx("Device does not support ntuple-filters")
        ethtool(f"-K {cfg.ifname} ntuple-filters on")
        defer(ethtool, f"-K {cfg.ifname} ntuple-filters off")


def _queue_cpus(cfg):
    """Get the CPUs that handle one queue each, as a dict: queue ID to CPU."""
    queues = cfg.netnl.queue_get({"ifindex": cfg.ifindex}, dump=True)
    napis = cfg.netnl.napi_get({"ifindex": cfg.ifindex}, dump=True)
    irqs = {n["id"]: n["irq"] for n in napis if "irq" in n}

    cpus = {}
    for q in queues:
        if q["type"] != "rx" or q.get("napi-id") not in irqs:
            continue
        irq = irqs[q["napi-id"]]
        cpu = _read(f"/proc/irq/{irq}/effective_affinity_list")
        if cpu.isdigit():
            cpus[q["id"]] = int(cpu)

    # Of queues that share a CPU, aRFS may pick any
    values = list(cpus.values())
    return {q: cpu for q, cpu in cpus.items() if values.count(cpu) == 1}


def _setup(cfg, flows=QUEUE_FLOWS):
    """Enable everything and return the CPU of each queue."""
    _require_ntuple(cfg)

    cpus = _queue_cpus(cfg)
    if len(cpus) < 2:
        raise KsftSkipEx(f"Need at least 2 queues with a CPU of their own, found {len(cpus)}")
    if not glob.glob(f"/sys/class/net/{cfg.ifname}/queues/rx-*/rps_flow_cnt"):
        raise KsftSkipEx("Kernel has no RFS")

    _enable_rfs(cfg, flows)
    return cpus


def _get_rx_cnts(cfg, prev=None):
    """Get Rx packet counts of all queues, less those of prev."""
    cfg.wait_hw_stats_settle()
    data = cfg.netnl.qstats_get({"ifindex": cfg.ifindex, "scope": ["queue"]}, dump=True)
    cnts = {q["queue-id"]: q["rx-packets"] for q in data if q["queue-type"] == "rx"}
    return [cnts[q] - (prev[q] if prev and q < len(prev) else 0) for q in sorted(cnts)]


def _pin(cpu):
    os.sched_setaffinity(0, {cpu})


def _pin_elsewhere(cpus):
    """Pin to a CPU that no queue has for itself, if there is one, and restore that after the test.

       The stack asks for a filter when a flow's consumer has changed its CPU, and once only. A flow that begins on
       the CPU which the test will move it to may have been there already, and then nothing is asked for."""
    before = os.sched_getaffinity(0)
    defer(os.sched_setaffinity, 0, before)
    _pin(min(before - set(cpus.values()) or {cpus[min(cpus)]}))


# Sends back what comes. No socat, which would start a process for each flow.
ECHO_SERVER = """
import selectors, socket, sys
proto, ipver, port = sys.argv[1:]
kind = socket.SOCK_STREAM if proto == "tcp" else socket.SOCK_DGRAM
server = socket.socket(socket.AF_INET if ipver == "4" else socket.AF_INET6, kind)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("", int(port)))
ready = selectors.DefaultSelector()
ready.register(server, selectors.EVENT_READ)
if proto == "tcp":
    server.listen(64)
while True:
    for key, _ in ready.select():
        sock = key.fileobj
        if proto == "udp":
            data, peer = sock.recvfrom(64)
            sock.sendto(data, peer)
        elif sock is server:
            flow, _ = server.accept()
            flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ready.register(flow, selectors.EVENT_READ)
        else:
            data = sock.recv(64)
            if data:
                sock.send(data)
            else:
                ready.unregister(sock)
                sock.close()
"""


class Echo:
    """An echo server on the remote end, and flows to it."""

    def __init__(self, cfg, proto, ipver):
        cfg.require_ipver(ipver)
        cfg.require_cmd("python3", local=False, remote=True)
        self.kind = socket.SOCK_STREAM if proto == "tcp" else socket.SOCK_DGRAM
        self.family = socket.AF_INET if ipver == "4" else socket.AF_INET6
        self.proto = proto
        self.addr = cfg.remote_addr_v[ipver]
        self.local = cfg.addr_v[ipver]
        self.port = rand_port(self.kind)

        server = bkg(f"exec python3 -c '{ECHO_SERVER}' {proto} {ipver} {self.port}",
                     host=cfg.remote)
        defer(server.process, terminate=True, fail=False)
        wait_port_listen(self.port, proto=proto, host=cfg.remote, deadline=20)

    def connect(self, port=0):
        """Open a flow, from this port if there is one."""
        sock = socket.socket(self.family, self.kind)
        sock.settimeout(10)
        if self.proto == "tcp":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((self.local, port))
        sock.connect((self.addr, self.port))
        return sock

    def flow(self, port=0):
        """Open a flow that is closed after the test."""
        sock = self.connect(port)
        defer(sock.close)
        return sock


def _ping_pong(sock, count):
    for _ in range(count):
        sock.send(b"x")
        if not sock.recv(16):
            raise ConnectionError("The echo server has hung up")


def _wait_steered(cfg, sock, queue, comment=""):
    """Play until packets arrive on the queue only. Returns the time it took."""
    start = time.monotonic()
    while True:
        cnts = _get_rx_cnts(cfg)
        _ping_pong(sock, 10)
        done = time.monotonic()
        cnts = _get_rx_cnts(cfg, prev=cnts)
        if cnts[queue] >= 10:
            return done - start
        if done - start > STEER_DEADLINE:
            ksft_true(False, f"Flow was not steered to queue {queue} {comment}: {cnts}")
            return done - start


def _check_queue(cfg, sock, queue, comment=""):
    """Check that packets of the flow arrive on the queue, and on no other."""
    cnts = _get_rx_cnts(cfg)
    _ping_pong(sock, PACKETS)
    cnts = _get_rx_cnts(cfg, prev=cnts)
    ksft_ge(cnts[queue], PACKETS, f"Traffic on queue {queue} {comment}: {cnts}")
    ksft_lt(sum(cnts) - cnts[queue], NOISE, f"Traffic on other queues {comment}: {cnts}")


def _rss_queue(cfg, sock):
    """Find the queue that RSS picks for a flow. Filters must be off."""
    cnts = _get_rx_cnts(cfg)
    _ping_pong(sock, 40)
    cnts = _get_rx_cnts(cfg, prev=cnts)
    queue = cnts.index(max(cnts))
    ksft_ge(cnts[queue], 40, f"RSS spreads one flow: {cnts}")
    return queue


def _flow_away_from(cfg, echo, cpus):
    """Open a flow and find a queue for it that RSS does not pick anyway.
       Returns the flow and both queues; filters are on again."""
    ethtool(f"-K {cfg.ifname} ntuple-filters off")
    restore = defer(ethtool, f"-K {cfg.ifname} ntuple-filters on")
    sock = echo.flow()
    rss = _rss_queue(cfg, sock)
    restore.exec()
    return sock, rss, [q for q in cpus if q != rss][-1]


def _variants():
    for proto in ["tcp", "udp"]:
        for ipver in ["4", "6"]:
            yield KsftNamedVariant(f"{proto}{ipver}", proto, ipver)


@ksft_variants(_variants())
def follow(cfg, proto, ipver):
    """Test that a flow arrives on the queue of its consumer's CPU, and follows when that moves."""
    cpus = _setup(cfg)
    echo = Echo(cfg, proto, ipver)
    _pin_elsewhere(cpus)

    sock = echo.flow()
    # Each queue once, then back to the first
    for queue in list(cpus) + [min(cpus)]:
        _pin(cpus[queue])
        took = _wait_steered(cfg, sock, queue)
        ksft_pr(f"On queue {queue} after {1000 * took:.0f} ms")
        _check_queue(cfg, sock, queue)


def many_flows(cfg):
    """Test flows on all queues at the same time, also such that share a hash bucket."""
    cpus = _setup(cfg, flows=64)
    echo = Echo(cfg, "udp", "6" if cfg.addr_v["6"] else "4")
    _pin_elsewhere(cpus)

    flows = [(echo.flow(), queue) for _ in range(8) for queue in cpus]
    deadline = time.monotonic() + STEER_DEADLINE * 2
    while True:
        wrong = 0
        # One queue at a time, to know whose packets are counted
        for queue, cpu in cpus.items():
            _pin(cpu)
            cnts = _get_rx_cnts(cfg)
            sent = 0
            for sock, wanted in flows:
                if wanted == queue:
                    _ping_pong(sock, 10)
                    sent += 10
            cnts = _get_rx_cnts(cfg, prev=cnts)
            wrong += max(sent - cnts[queue], 0)
        if wrong == 0 or time.monotonic() > deadline:
            break
    # Two flows that share a bucket take turns with its one filter
    ksft_lt(wrong, len(flows) * 10 / 4, f"Packets on wrong queues, of {len(flows) * 10}")


def ntuple_off(cfg):
    """Test that steering ends when ntuple filters are switched off, and starts again."""
    cpus = _setup(cfg)
    echo = Echo(cfg, "tcp", cfg.addr_ipver)
    _pin_elsewhere(cpus)

    sock, rss, queue = _flow_away_from(cfg, echo, cpus)
    _pin(cpus[queue])
    _wait_steered(cfg, sock, queue)
    _check_queue(cfg, sock, queue)

    ethtool(f"-K {cfg.ifname} ntuple-filters off")
    restore = defer(ethtool, f"-K {cfg.ifname} ntuple-filters on")
    _check_queue(cfg, sock, rss, "(filters off)")

    restore.exec()
    _wait_steered(cfg, sock, queue)
    _check_queue(cfg, sock, queue, "(filters on again)")


def rule_first(cfg):
    """Test that a rule of the user goes before aRFS."""
    cpus = _setup(cfg)
    echo = Echo(cfg, "udp", cfg.addr_ipver)
    _pin_elsewhere(cpus)

    sock, _, queue = _flow_away_from(cfg, echo, cpus)
    _pin(cpus[queue])
    _wait_steered(cfg, sock, queue)

    other = [q for q in cpus if q != queue][0]
    local = sock.getsockname()[1]
    rule = ethtool(f"-N {cfg.ifname} flow-type udp{cfg.addr_ipver} dst-port {local} action {other}")
    rule = rule.stdout.split()[-1]
    delete = defer(ethtool, f"-N {cfg.ifname} delete {rule}")
    _check_queue(cfg, sock, other, "(with a rule)")

    delete.exec()
    _wait_steered(cfg, sock, queue, "(after the rule)")
    _check_queue(cfg, sock, queue, "(after the rule)")


def expire(cfg):
    """Test that the filter of a flow goes away after the flow."""
    flows = 64
    cpus = _setup(cfg, flows=flows)
    echo = Echo(cfg, "udp", cfg.addr_ipver)
    _pin_elsewhere(cpus)

    # Expiry is the driver's business: it asks now and then
    sock, rss, queue = _flow_away_from(cfg, echo, cpus)
    _pin(cpus[queue])
    _wait_steered(cfg, sock, queue)
    local = sock.getsockname()[1]
    sock.close()

    # RFS calls a flow idle when that CPU has seen ten packets per bucket since
    busy = echo.flow()
    ksft_ne(local, busy.getsockname()[1])
    _ping_pong(busy, 20 * flows)

    arrived = None
    for pause in [1, 5, 30]:
        time.sleep(pause)
        # One packet, which must find the filter gone; it may bring a new one about
        with echo.connect(local) as probe:
            cnts = _get_rx_cnts(cfg)
            _ping_pong(probe, 1)
            cnts = _get_rx_cnts(cfg, prev=cnts)
        arrived = cnts.index(max(cnts))
        if arrived == rss:
            ksft_pr(f"Gone after {pause} s")
            return
        # The probe has kept it alive
        _ping_pong(busy, 20 * flows)
    ksft_eq(arrived, rss, "Filter of a closed flow is still there")


@ksft_disruptive
def reconfig_queues(cfg):
    """Test that flows are steered again after the number of queues has changed."""
    cpus = _setup(cfg)
    channels = cfg.ethnl.channels_get({"header": {"dev-index": cfg.ifindex}})
    count = channels.get("combined-count", 0)
    if count < 2:
        raise KsftSkipEx("Need at least 2 combined channels")
    echo = Echo(cfg, "tcp", cfg.addr_ipver)
    _pin_elsewhere(cpus)

    sock = echo.flow()
    queue = max(cpus)
    _pin(cpus[queue])
    _wait_steered(cfg, sock, queue)

    ethtool(f"-L {cfg.ifname} combined 1")
    restore = defer(ethtool, f"-L {cfg.ifname} combined {count}")
    _check_queue(cfg, sock, 0, "(1 channel)")
    restore.exec()

    # Queues that were away come back without a flow table, maybe for other CPUs
    _set_flow_cnt(cfg, QUEUE_FLOWS)
    cpus = _queue_cpus(cfg)
    _pin(cpus[queue])
    _wait_steered(cfg, sock, queue)
    _check_queue(cfg, sock, queue, "(after reconfig)")


@ksft_disruptive
def down_up(cfg):
    """Test that flows are steered again after the interface was down."""
    cpus = _setup(cfg)
    echo = Echo(cfg, "tcp", cfg.addr_ipver)
    _pin_elsewhere(cpus)

    sock, _, queue = _flow_away_from(cfg, echo, cpus)
    _pin(cpus[queue])
    _wait_steered(cfg, sock, queue)

    ip(f"link set dev {cfg.ifname} down")
    ip(f"link set dev {cfg.ifname} up")
    cmd(f"ping -c 1 -W 5 {cfg.remote_addr}")

    cpus = _queue_cpus(cfg)
    _pin(cpus[queue])
    _wait_steered(cfg, sock, queue)
    _check_queue(cfg, sock, queue, "(after down and up)")


def main() -> None:
    """Ksft boilerplate main."""

    with NetDrvEpEnv(__file__, nsim_test=False) as cfg:
        cfg.ethnl = EthtoolFamily()
        cfg.netnl = NetdevFamily()
        ksft_run([follow, many_flows, ntuple_off, rule_first, expire,
                  reconfig_queues, down_up],
                 args=(cfg, ))
    ksft_exit()


if __name__ == "__main__":
    main()
