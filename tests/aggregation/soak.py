# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Jobs of four workers one after the other, sometimes two at a time, on a slow network that loses packets, while servers and
workers are killed at random. Every mean of a job that nobody left has to be the group's own, bit for bit; every job has to
end; and the server that is never killed must not grow.

usage: soak.py [SECONDS] [LOSS]    600 and 1%; the status is 1 when something was wrong
"""

import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback

MEGABYTE = 1 << 20
STEPS = 12
LONG = 60  #: seconds: a shorter run does not wait until the server rests
FORGETS = 120  #: seconds after which a server has forgotten jobs whose workers are gone
GROWTH = 4 * MEGABYTE  #: of a server that has forgotten all jobs, against one that has seen none
SPECS = ("thc", "thc:bits=3,block=512", "thc:bits=2,block=512,lane=16")


def named(message):
    """The ranks of "rank 2: ..." and "ranks 0 and 3: ..."."""
    lists = re.findall(r"\branks? (\d+(?:(?:, | and )\d+)*)", message)
    return {int(rank) for ranks in lists for rank in re.findall(r"\d+", ranks)}


class Soak:
    def __init__(self, seconds, share, choose):
        import lab_driver

        self.lab, self.choose, self.share = lab_driver, choose, share
        self.end = time.monotonic() + seconds
        self.steady, self.killed = lab_driver.Server(7420), lab_driver.Server(7421)
        self.wrong, self.sizes, self.fresh, self.rested = [], [], self.size(), None
        self.long = seconds >= LONG
        self.counts = dict.fromkeys(("jobs", "steps", "server kills", "worker kills", "restarts seen", "resent"), 0)

    def job(self, servers, seed, **more):
        return self.lab.Job(servers, seed=seed, spec=SPECS[seed % len(SPECS)], steps=STEPS, elements=200_000, timeout_ms=20_000,
                            **more)

    def run(self):
        self.expected = {seed: [rank["compressed"] for rank in self.job([], seed).results()] for seed in range(len(SPECS))}
        said = began = time.monotonic()
        with self.lab.loss(self.share):
            while time.monotonic() < self.end or len(self.sizes) < 4:
                self.round(len(self.sizes))
                self.sizes.append(self.size())
                if time.monotonic() - said > 30:
                    said = time.monotonic()
                    print(f"{said - began:5.0f} s: {self.figures()}")
        if self.long:
            self.rested = self.rest()
        return self.verdict()

    def size(self):
        return self.lab.rss(self.steady.process.pid)

    def rest(self):
        """Bytes, when the server has forgotten the jobs that have ended."""
        end = time.monotonic() + FORGETS
        while (now := self.size()) > self.fresh + GROWTH and time.monotonic() < end:
            time.sleep(0.5)
        return now

    def round(self, number):
        """The first ones do everything, also in a short run."""
        event = ("worker", "server", "none")[number % 3] if number < 3 else self.choose.choice(("none", "server", "worker", "both"))
        two = number < 3 or self.choose.random() < 0.5
        steady = self.job([self.steady], self.choose.randrange(len(SPECS)))
        others, lost = None, self.choose.randrange(4)
        if two or event != "none":
            # A group that has not met yet waits for who was killed: that is not the servers' business.
            pause = {"pause": 0} if event in ("worker", "both") else {}
            others = self.job([self.killed, self.steady], self.choose.randrange(len(SPECS)), **pause)
            if pause:
                others.wait_at(0)
                others.go()
        if event in ("server", "both"):
            time.sleep(self.choose.uniform(0, 0.6))
            self.killed.kill()
            time.sleep(self.choose.uniform(0, 0.3))
            self.killed.start()
            self.counts["server kills"] += 1
        if event in ("worker", "both"):
            time.sleep(self.choose.uniform(0, 0.5))
            others.kill(lost)
            self.counts["worker kills"] += 1
        self.judge(number, steady, None)
        if others is not None:
            self.judge(number, others, lost if event in ("worker", "both") else None)

    def judge(self, number, job, lost):
        seed = next(int(word[5:]) for word in job.ranks[0].args[-1].split() if word.startswith("seed="))
        try:
            ranks = job.results()
        except subprocess.TimeoutExpired:
            self.wrong.append(f"round {number}: a job did not end within {self.lab.LIMIT} s")
            return [rank.kill() for rank in job.ranks]
        self.counts["jobs"] += 1
        failed = []
        for rank, (said, expected) in enumerate(zip(ranks, self.expected[seed])):
            done = (said or {}).get("compressed", [])
            self.counts["steps"] += len(done)
            self.counts["restarts seen"] += (said or {}).get("aggregator_restarts", 0)
            self.counts["resent"] += (said or {}).get("resent_datagrams", 0)
            if done != expected[:len(done)]:
                self.wrong.append(f"round {number}: rank {rank} got other means")
            if said is None and rank != lost:
                self.wrong.append(f"round {number}: rank {rank} ended without a word")
            if (error := (said or {}).get("error")) is not None:
                failed.append((rank, error["message"]))
        # A rank that receives the loss of the killed one leaves, and another server may report that first.
        if failed and (lost is None or not any(lost in named(message) for _, message in failed)):
            killed = "nobody" if lost is None else f"rank {lost}"
            self.wrong.append(f"round {number}: {killed} was killed, and "
                              + "; ".join(f"rank {rank} said: {message}" for rank, message in failed))
        return None

    def figures(self):
        sizes = f"RSS {max(self.sizes) / MEGABYTE:.1f} MiB at most, {self.sizes[-1] / MEGABYTE:.1f} now"
        return ", ".join([*(f"{count:,} {name}" for name, count in self.counts.items() if count), sizes])

    def verdict(self):
        flat = "too short to say whether the server grows"
        if self.rested is not None:
            flat = f"the steady server {self.fresh / MEGABYTE:.1f} MiB before the first job, {self.rested / MEGABYTE:.1f} after the last"
            if self.rested > self.fresh + GROWTH:
                self.wrong.append("the server grew")
        print(f"soak: {len(self.sizes)} rounds, {self.figures()}; {flat}")
        for server in (self.steady, self.killed):
            print(f"soak: {server.address} at its end: {server.stop()}")
        for line in self.wrong:
            print("soak: WRONG: " + line)
        print("soak: " + ("failed" if self.wrong else "all was right"))
        return 1 if self.wrong else 0


def main():
    seconds, share = int((sys.argv[1:] or ["600"])[0]), (sys.argv[2:] or ["1%"])[0]
    if "AGGREGATION_RANK" in os.environ:
        seed = int(os.environ.get("SOAK_SEED") or time.time())
        print(f"soak: {seconds} s at {share} loss, SOAK_SEED={seed}")
        try:
            return Soak(seconds, share, random.Random(seed)).run()
        except Exception:
            traceback.print_exc()
            return 1
    import in_lab

    if missing := in_lab.why_not():
        print("soak: " + missing, file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory(prefix="laconic-soak-") as folder:
        return in_lab.run(folder, seconds + 240, "soak.py", seconds, share).returncode


sys.exit(main())
