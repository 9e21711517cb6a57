# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank over torch.distributed's Gloo, for engines.py: started by `laconic lab`. Rank 0 writes what all have measured.

    python -m bench.engines.engines_rank PLAN.json OUT.json
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import laconic
from bench.lib import zeros
from bench.lib.models import load

SMALL = 100  # bytes of the hook that sends next to nothing
SLOW = 0.5  # seconds of a step, above which few are measured


# ---- models: what build() and batches() of the demo's models give ----


class Late(torch.autograd.Function):
    """The identity, whose gradient comes after a number of seconds without using a core, as a GPU's does."""

    @staticmethod
    def forward(ctx, value, seconds):
        ctx.seconds = seconds
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient.clone(), None


class Buckets(nn.Module):
    """A number of parameters of one size, each used once: with a bucket of that size each is its own bucket. Their gradients come
    `pause` seconds apart."""

    def __init__(self, count: int, elements: int, pause: float):
        super().__init__()
        self.parts, self.pause = nn.ParameterList([nn.Parameter(torch.ones(elements)) for _ in range(count)]), pause

    def forward(self, x):
        for part in self.parts:
            x = x + ((Late.apply(part, self.pause) if self.pause else part) * part).sum()
        return x


def perceptron(hidden: list[int]):
    """(module, batch -> loss, one batch): the demo's perceptron on digits with other layers."""
    kind = load("mlp")
    kind.LAYERS = (64, *hidden, 10)
    data = kind.data(None)
    batch = next(data.batches(kind.BATCH, 0, dist.get_rank(), dist.get_world_size()))
    return kind.build(data), lambda model: data.loss(model, batch)


def model_of(words: dict):
    torch.manual_seed(0)
    if "hidden" in words:
        return perceptron(words["hidden"])
    return Buckets(words["buckets"], words["bytes"] // 4, words.get("pause", 0.0)), lambda model: model(torch.ones(())).sum()


# ---- exchanges ----


def gather_little(state, bucket):
    """Sends SMALL bytes for a bucket, whatever its size, and leaves the bucket unchanged."""
    message = torch.zeros(SMALL, dtype=torch.uint8)
    received = [torch.empty_like(message) for _ in range(dist.get_world_size())]
    work = dist.all_gather(received, message, async_op=True)
    return work.get_future().then(lambda _: bucket.buffer())


class Arm:
    """A separate model with one exchange: a spec, followed by numbers for attach, "3lc part=65536"."""

    def __init__(self, spec: str, words: dict):
        self.spec = spec
        module, self.loss = model_of(words)
        self.model = DistributedDataParallel(module, bucket_cap_mb=words["cap"])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, fused=True)
        self.handle = None
        if spec == "pytorch:fp16":
            self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif spec == "pytorch:hook":  # its own all-reduce, as a hook in Python
            self.model.register_comm_hook(None, default_hooks.allreduce_hook)
        elif spec == "little":
            self.model.register_comm_hook(None, gather_little)
        elif spec != "pytorch:ddp":
            spec, *numbers = spec.split()
            options = {name: int(value) for name, value in (number.split("=") for number in numbers)}
            self.handle = laconic.attach(self.model, spec, quiet=True, **words.get("options", {}), **options)

    def step(self) -> float:
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        self.loss(self.model).backward()
        self.optimizer.step()
        return time.perf_counter() - begin

    def computing(self) -> float:
        with self.model.no_sync():
            return self.step()

    def stats(self) -> dict:
        return self.handle.stats() if self.handle is not None else {}

    def close(self) -> None:
        if self.handle is not None:
            self.handle.close()


# ---- measuring ----


def slowest(seconds: float) -> float:
    """The largest value of all ranks, which wait for each other here."""
    box = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(box, dist.ReduceOp.MAX)
    return box.item()


def together(function) -> float:
    """Seconds of the slowest rank; all begin together."""
    dist.barrier()
    return slowest(function())


def wire_alone(payload: int, strategy: str, messages: int) -> float:
    """Seconds for the same number of bytes without a codec, in a number of sequential messages."""
    state = zeros.Zeros(payload // messages, strategy)
    if strategy not in zeros.ROUNDS:
        lanes = torch.zeros(messages, state.sum_bytes() // 4)
        begin = time.perf_counter()
        for part in lanes:
            dist.all_reduce(part)
        return time.perf_counter() - begin
    message = torch.zeros(state.message_bytes(), dtype=torch.uint8)
    received = [torch.empty_like(message) for _ in range(dist.get_world_size() - 1)]
    begin = time.perf_counter()
    for _ in range(messages * zeros.ROUNDS[strategy]):
        zeros.swap(message, received)
    return time.perf_counter() - begin


KEYS = ("wire_bytes", "encode_seconds", "decode_seconds", "exchanges")


def deltas(before: dict, after: dict, steps: int) -> dict:
    return {key: (after[key] - before[key]) / steps for key in KEYS} if before else {}


def train(words: dict) -> dict:
    """{spec: {"step": [seconds of the slowest rank], "computing": [...], "wire": [...], counters of a step}}"""
    found: dict[str, dict] = {spec: {"step": [], "computing": [], "wire": []} for spec in words["specs"]}
    for repeat in range(words["repeats"]):
        order = words["specs"] if repeat % 2 == 0 else words["specs"][::-1]
        for spec in order:
            arm, here = Arm(spec, words), found[spec]
            first = [together(arm.step) for _ in range(3)]
            slow = first[-1] > SLOW
            if not slow:
                for _ in range(words["warmup"]):
                    together(arm.step)
            steps = words["slow_steps"] if slow else words["steps"]
            before = arm.stats()
            here["step"] += [together(arm.step) for _ in range(steps)]
            here.update(deltas(before, arm.stats(), steps))
            here["computing"] += [together(arm.computing) for _ in range(3)]
            if before:
                here["strategy"] = arm.handle.explain()["strategy"]
                payload, messages = int(slowest(here["wire_bytes"])), max(1, round(here["exchanges"]))  # none: PyTorch's own sums
                here["wire"] += [together(lambda: wire_alone(payload, here["strategy"], messages)) for _ in range(3 if slow else 9)]
            arm.close()
            del arm
            gc.collect()
    return found


def average(words: dict) -> dict:
    """{spec: {"native": [...], "step": [...], "wire": [...], counters of a call}}: arrays in parameters of 1 MiB, as
    `laconic bench --engine` averages them."""
    elements = words["bytes"] // 4
    parameters = [(f"p{i}", (512, 512)) for i in range(elements >> 18)]
    parameters += [("rest", (elements & 0x3FFFF,))] if elements & 0x3FFFF else []
    torch.manual_seed(dist.get_rank())
    own = torch.distributions.Laplace(0.0, 2.0 ** -10).sample((elements,))
    found = {}
    for spec in words["specs"]:
        buffer, native = own.clone(), own.clone()
        here: dict = {"native": [], "step": [], "wire": []}

        def all_reduce() -> float:
            native.copy_(own)
            begin = time.perf_counter()
            dist.all_reduce(native)
            return time.perf_counter() - begin

        with laconic.Session(spec, parameters, engine="c10d", small_elements=0) as session:
            strategy = session.explain()["strategy"]

            def call(step: int) -> float:
                buffer.copy_(own)
                begin = time.perf_counter()
                session.average(step, buffer.numpy())
                return time.perf_counter() - begin

            before = session.stats()
            for i in range(words["warmup"] + words["steps"]):
                if i == words["warmup"]:
                    here = {key: [] for key in here}
                    before = session.stats()
                here["native"].append(together(all_reduce))
                here["step"].append(together(lambda: call(i)))
                now = session.stats()
                calls = i + 1 - (words["warmup"] if i >= words["warmup"] else 0)
                payload = int(slowest((now["wire_bytes"] - before["wire_bytes"]) / calls))
                here["wire"].append(together(lambda: wire_alone(payload, strategy, round(now["exchanges"] / (i + 1)))))
            here.update(deltas(before, session.stats(), words["steps"]), strategy=strategy)
        found[spec] = here
    return found


def medians(found: dict) -> dict:
    return {spec: {key: statistics.median(value) if isinstance(value, list) and value else value for key, value in here.items()}
            for spec, here in found.items()}


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    gc.collect()
    gc.freeze()
    measured = {"train": train, "average": average}[plan["what"]](plan)
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps({"specs": medians(measured), "torch": torch.__version__,
                                                 "ranks": dist.get_world_size()}, indent=1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
