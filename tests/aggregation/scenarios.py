# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Every scenario of test_aggregation.py, one after the other, in the lab that runs this as its launcher.

usage: scenarios.py FILE [NAME...]    writes what each one, or each of those, found, as JSON
"""

import json
import signal
import sys
import time
import traceback
from pathlib import Path

from lab_driver import GROUP, Job, Server, counted, deaf, loss, start, why_no_xdp

STEPS = 5
FIRST = dict(steps=STEPS, seed=1, spec="thc")
SECOND = dict(steps=STEPS, seed=2, spec="thc:bits=3,block=512")
HERE = Path(__file__).resolve().parent


def by_the_group(_):
    """The bits that servers have to give."""
    jobs = [Job(**FIRST), Job(**SECOND)]
    return [job.results() for job in jobs]


def lossless(servers):
    return Job(servers[:1], **FIRST).results()


def one_percent(servers):
    with loss("1%"):
        return Job(servers[:1], **FIRST).results()


def five_percent(servers):
    with loss("5%"):
        return Job(servers[:1], **FIRST).results()


def loss_in_the_first_window(servers):
    """Also of what the group says to itself about the first exchange."""
    job = Job(servers[:1], pause="0,1", **FIRST)
    job.wait_at(0)
    with loss("20%"):
        job.go()
        job.wait_at(1)
    job.go()
    return job.results()


def multicast_job(server, hosts):
    """What ranks found, and the bytes that left the server. On a busy machine a receive buffer overflows, and a rank that missed many results in a row requests
    unicast, as it should: one job of three has to show that the group reaches the first `hosts`."""
    for _ in range(3):
        before = counted("switch")["br0"][1]
        ranks = Job([server], multicast=1, **FIRST).results()
        sent = counted("switch")["br0"][1] - before
        if all(rank.get("multicast_servers") == 1 and rank["multicast_datagrams"] > 1000 for rank in ranks[:hosts]):
            break
    return ranks, sent


def multicast(_):
    """Compared with unicast by the same server, in bytes that leave it; with loss; to a host that receives no
    multicast."""
    server = Server(7432, "--multicast", GROUP)
    found, sent = {}, {}
    before = counted("switch")["br0"][1]
    found["unicast"] = Job([server], multicast=0, **FIRST).results()
    sent["unicast"] = counted("switch")["br0"][1] - before
    found["multicast"], sent["multicast"] = multicast_job(server, 4)
    with loss("1%"):
        found["lossy"], _ = multicast_job(server, 4)
    with deaf("host3"):
        found["deaf"], _ = multicast_job(server, 3)
    server.stop()
    return {"ranks": found, "sent": sent}


def two_jobs(servers):
    with loss("1%"):
        jobs = [Job(servers[:1], **FIRST), Job(servers[:1], **SECOND)]
        return [job.results() for job in jobs]


def two_servers(servers):
    with loss("1%"):
        return Job(servers, **FIRST).results()


def xdp(_):
    """A program in the kernel adds at the switch's ports. Hosts' ends lose packets, too."""
    if why := why_no_xdp():
        return {"why": why}
    server = Server(7433, "--io", "xdp", "--interfaces", "port0,port1,port2,port3")
    before = counted("host0")
    found = {"lossless": Job([server], **FIRST).results()}
    after = counted("host0")
    arrived = {name: after[name][0] - before[name][0] for name in ("eth0", "arrivals") if name in after}
    with loss("1%"):
        found["lossy"] = Job([server], **FIRST).results()
    return {"ranks": found, "server": server.stop(), "arrived": arrived}


def server_restarted(_):
    """Between two steps, and in the midst of one."""
    server = Server(7430)
    with loss("1%"):
        job = Job([server], pause="1,3,4", **FIRST)  # no rank has ended before it is there again
        for step, under_way in ((1, 0), (3, 0.03)):
            job.wait_at(step)
            if not under_way:
                server.kill()
            job.go()
            if under_way:
                time.sleep(under_way)
                server.kill()
            time.sleep(0.2)
            server.start()
        job.wait_at(4)
        job.go()
        found = job.results()
    server.stop()
    return found


def worker_killed(servers):
    """Between two steps, and in the midst of one; the server lives on."""
    found = []
    for under_way in (0, 0.02):
        # No rank has ended before the kill, and the group's timeout is longer than results() waits.
        job = Job(servers[:1], pause="2,4", timeout_ms=600_000, **FIRST)
        job.wait_at(2)
        if not under_way:
            job.kill(2)
        job.go()
        if under_way:
            time.sleep(under_way)
            job.kill(2)
        job.go()
        found.append(job.results())
    return {"killed": found, "after": Job(servers[:1], **FIRST).results()}


def hostile_sender(_):
    server = Server(7431, "--multicast", GROUP)
    attackers = [start(host, sys.executable, HERE / "hostile.py", device, "7431")
                 for host, device in (("host0", "eth0"), ("switch", "br0"))]
    for attacker in attackers:
        assert attacker.stdout.readline() == "listening\n"
    ranks = [Job([server], multicast=wanted, **FIRST).results() for wanted in (0, 1)]
    for attacker in attackers:
        attacker.send_signal(signal.SIGTERM)
    sent = [json.loads(attacker.communicate()[0]) for attacker in attackers]
    return {"ranks": ranks, "sent": sent, "server": server.stop()}


def slow_worker(servers):
    with loss("1%"):
        return Job(servers[:1], quorum=0.75, deadline_ms=20, own={3: dict(late="1,3", late_ms=400)}, **FIRST).results()


def main():
    servers = [Server(7420), Server(7421)]
    found = {}
    for scenario in (by_the_group, lossless, one_percent, five_percent, loss_in_the_first_window, two_jobs, two_servers,
                     multicast, server_restarted, worker_killed, hostile_sender, slow_worker, xdp):
        if sys.argv[2:] and scenario.__name__ not in sys.argv[2:]:
            continue
        began = time.monotonic()
        try:
            found[scenario.__name__] = {"found": scenario(servers)}
        except Exception:  # the test of this scenario says it
            found[scenario.__name__] = {"trouble": traceback.format_exc()}
        found[scenario.__name__]["seconds"] = time.monotonic() - began
    found["servers"] = [server.stop() for server in servers]
    Path(sys.argv[1]).write_text(json.dumps(found))


main()
