# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What the ranks of the tests of outer steps run: a small model under an OuterStep, and the same by a loop over the ranks, from the papers."""

from __future__ import annotations

import contextlib
import copy
import os
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from training import OTHER_SPECS, SPECS, Net, batch, digest, gathered

import laconic

WEEKLY = os.environ.get("TEST_TIER") == "weekly"
SMALL = 64


def with_feedback() -> list[str]:
    """Specs of the whole registry, but for sums that engines make of halves: these round."""
    specs = []
    for spec in sorted({*SPECS, *OTHER_SPECS} - {"fp16", "bf16"}):
        with contextlib.suppress(laconic.LaconicError):
            specs.append(laconic.Codec(spec if spec.endswith("+ef") else f"{spec}+ef").spec)
    return specs


def made(every=1, spec="none", outer="average", *, kind="plain", optimizer="AdamW", lr=1e-2, dtype=torch.float32, device="cpu", seed=7, **options):
    """A model, its optimizer, and its OuterStep."""
    torch.manual_seed(seed)
    model = Net(32).to(dtype).to(device)
    model = DistributedDataParallel(model) if kind == "ddp" else model
    optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=lr)
    options = {"small_elements": SMALL, "quiet": True, **options}
    return model, optimizer, laconic.OuterStep(model, optimizer, spec=spec, every=every, outer=outer, **options)


def backward(model, step, rank=None):
    parameter = next(model.parameters())
    x, y = (t.to(parameter.device) for t in batch(dist.get_rank() if rank is None else rank, step, dtype=parameter.dtype))
    torch.nn.functional.cross_entropy(model(x).float(), y).backward()


def one(model, optimizer, step, rank=None):
    optimizer.zero_grad()
    backward(model, step, rank)
    optimizer.step()


def digests(steps, **options):
    """The parameters' after every step, and stats() and explain() at the end."""
    model, optimizer, outer = made(**options)
    with contextlib.closing(outer):
        found = []
        for step in range(steps):
            one(model, optimizer, step)
            found.append(digest(model))
        return found, outer.stats(), outer.explain()


#: of Net(32), in two runs of about equal size
HALVES = [[0, 1], [2, 3, 4, 5]]


def by_the_papers(steps, every=1, spec="none", outer="average", *, fragments=1, delay=0, alpha=0.0, optimizer="AdamW", lr=1e-2, warmup=0, **_):
    """As `digests`, of this rank: local SGD's, DiLoCo's (2311.08105) and Streaming DiLoCo's algorithm (2501.18512; but what a rank does while a
    fragment travels is kept whole), with the codec's own frames for what is exchanged."""
    torch.manual_seed(7)
    model, codec, world = Net(32), laconic.Codec(spec), dist.get_world_size()
    inner, parameters = getattr(torch.optim, optimizer)(model.parameters(), lr=lr), list(model.parameters())
    anchors = [torch.nn.Parameter(p.detach().clone()) for p in parameters]
    residuals = [laconic.Residual(p.numel()) for p in anchors]
    runs = HALVES if fragments == 2 else [range(len(anchors))]
    rule = [outer([anchors[i] for i in run]) if callable(outer) else torch.optim.SGD([anchors[i] for i in run], lr=1.0) for run in runs]
    under_way, found = {}, []

    def ends(f, step):
        taken, means, _ = under_way.pop(f)
        for i, mean in zip(runs[f], means):
            anchors[i].grad = mean
        rule[f].step()
        with torch.no_grad():
            for i, own in zip(runs[f], taken):
                exact = (step <= warmup or delay == 0) and alpha == 0
                parameters[i].copy_(anchors[i]) if exact else parameters[i].add_(own - anchors[i], alpha=alpha - 1.0)

    for step in range(1, steps + 1):
        one(model, inner, step - 1)
        for f, run in enumerate(runs):
            if f in under_way and under_way[f][2] == step:
                ends(f, step)
        for f, run in enumerate(runs):
            if step <= warmup or (step + delay) % every == (f + 1) * every // len(runs) % every:
                sent = [(anchors[i] - parameters[i]).detach() for i in run]
                sent = [codec.encode(d, step=step, residual=residuals[i]) if d.numel() > SMALL and spec != "none" else d for i, d in zip(run, sent)]
                means = []
                for i, theirs in zip(run, zip(*gathered(sent))):
                    total = torch.zeros_like(anchors[i])
                    for part in theirs:
                        total += part if isinstance(part, torch.Tensor) else codec.decode(part, torch.empty_like(anchors[i]))
                    means.append(total / world)
                under_way[f] = [parameters[i].detach().clone() for i in run], means, step if step <= warmup else step + delay
                if under_way[f][2] == step:
                    ends(f, step)
        found.append(digest(model))
    return found


def against_the_papers(cases, steps=7):
    """[(digests, what they should be, stats)] of each case."""
    results = []
    for options in cases:
        found, stats, _ = digests(steps, strategy="gather_all", **options)
        results.append((found, by_the_papers(steps, **options), stats))
    return results


def fail_once(outer, what="the test told this rank to fail"):
    """Every exchange of the next round fails on this rank before anything is sent, as if it had no memory."""
    driver = outer._exchange.opened.worker._driver
    submit = driver.submit

    def fails(*arguments, **keywords):
        driver.submit = submit
        return submit(*arguments, **{**keywords, "failure": laconic.LaconicError(101, "internal", what, "stop telling it")})

    driver.submit = fails


def sums_of_changes(spec, rounds=20, failing=None, **options):
    """What this rank has changed in all, what the anchor moved by, the entries of its state, and its counters. `failing`: (rank, round)."""
    model, _, outer = made(spec=spec, hook=False, **options)
    with contextlib.closing(outer):
        before = {name: a.double() for name, a in outer.anchor.items()}
        changed = {name: torch.zeros_like(a) for name, a in before.items()}
        g = torch.Generator().manual_seed(dist.get_rank())
        for number in range(rounds):
            if failing == (dist.get_rank(), number):
                outer._rounds.land()
                fail_once(outer)
            with torch.no_grad():
                for name, p in model.named_parameters():
                    before_it = p.double()
                    p.add_(torch.randn(p.shape, generator=g), alpha=0.01)
                    changed[name] += before_it - p.double()
            try:
                outer.after_step()
            except laconic.LaconicError:
                assert failing is not None and number == failing[1] + outer.settings.delay
            if not outer.settings.delay:
                assert all(torch.equal(p, a) for p, a in zip(model.parameters(), outer.anchor.values()))
        outer.sync()
        assert all(torch.equal(p, outer.anchor[name]) for name, p in model.named_parameters())
        moved = {name: before[name] - a.double() for name, a in outer.anchor.items()}
        held = {}
        for saved in outer.state_dict()["fragments"]:
            held.update(saved["session"]["tensors"])
        return changed, moved, held, outer.stats()


def resumed_at(stops, steps, every, **options):
    """The digests of a run without a stop, and of one that is saved, thrown away and resumed after each of these steps."""
    whole, _, _ = digests(steps, every=every, **options)
    model, optimizer, outer = made(every=every, **options)
    found = []
    for step in range(steps):
        one(model, optimizer, step)
        found.append(digest(model))
        if step in stops:
            saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), outer.state_dict()])
            outer.close()
            model, optimizer, outer = made(every=every, seed=8, **options)
            for thing, state in zip((model, optimizer, outer), saved):
                thing.load_state_dict(state)
    rounds = outer.stats()["rounds"]
    outer.close()
    return whole, found, rounds


class Allocations(TorchDispatchMode):
    """Counts the elements of the largest tensor with memory of its own that an operation of this thread gives."""

    most = 0

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((arguments, keywords)) if isinstance(t, torch.Tensor)}
        made = operation(*arguments, **(keywords or {}))
        own = [t.numel() for t in tree_leaves(made) if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in given]
        self.most = max(self.most, *own, 0)
        return made


def allocates(**options):
    """Elements of the largest tensor that three rounds allocate in this thread, and those of the model."""
    model, _, outer = made(hook=False, **options)
    for _ in range(2):
        outer.after_step()
    with Allocations() as seen:
        for _ in range(3):
            with torch.no_grad():
                torch._foreach_add_(list(model.parameters()), 0.01)
            outer.after_step()
    elements = outer.explain()["anchor_bytes"] // 8
    outer.close()
    return seen.most, elements


def released_after_step(steps=6):
    """Whether each of a run's exchanges waited for the optimizer.step() before it to return, with a delay of one step."""
    model, optimizer, outer = made(spec="topk:ratio=0.1", delay=1)
    returned, waited = threading.Event(), []
    submit = outer._exchange.opened.worker._driver.submit

    def held(*arguments, **keywords):
        waited.append(returned.wait(60))  # False: optimizer.step() waits for this exchange
        returned.clear()
        return submit(*arguments, **keywords)

    outer._exchange.opened.worker._driver.submit = held
    with contextlib.closing(outer):
        for step in range(steps):
            one(model, optimizer, step)
            returned.set()
        outer.sync()
        return waited, outer.stats()["rounds"], digest(model)
