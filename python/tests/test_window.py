# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Several exchanges in flight, and buckets in parts: the same values, one order of issue on all ranks, nothing lost."""

from __future__ import annotations

import collections
import json
import random
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402

import laconic  # noqa: E402


@pytest.mark.parametrize(("spec", "strategy"), [("3lc", "two_shot"), ("topk:ratio=0.05", "gather_all"), ("int8+ef", "two_shot")])
def test_window_and_part_size_change_no_value(pools, spec, strategy):
    """Sums are taken by us, in rank order: neither when nor in which parts a bucket travels decides a bit."""
    seen = set()
    for window, part in ((1, 0), (2, 0), (2, 1024), (3, 1), (8, 20000)):
        options = {"strategy": strategy, "window": window, "part": part}
        seen |= {r["hash"] for r in pools(3).run(training.train, spec=spec, steps=4, buckets=3, attach_options=options)}
    assert len(seen) == 1


def test_replicas_are_identical_with_engine_addition(pools):
    for part in (0, 1024):
        results = pools(3).run(training.train, spec="powersgd:rank=2", steps=4, attach_options={"part": part, "window": 3})
        assert len({r["hash"] for r in results}) == 1


def _mixed(**options):
    """Three of 16 tensors are long, each with a short one before or after it; two short ones come before them, eight
    after."""
    torch.manual_seed(7)
    widths = [20, 20, 20, 20, 260, 260, 260, 260, 5]
    layers = [layer for pair in zip(widths, widths[1:]) for layer in (torch.nn.Linear(*pair), torch.nn.ReLU())]
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=100)
    handle = laconic.attach(ddp, "3lc", small_elements=64, quiet=True, strategy="two_shot", **options)
    return ddp, handle, torch.optim.SGD(ddp.parameters(), lr=0.05)


def _issued(window):
    """(exchange, batch) as they are started, and the elements of each exchange; every rank waits for moments of its own."""
    ddp, handle, optimizer = _mixed(window=window, part=1)
    engine, issued, elements = handle.worker.engine, [], []
    moments = random.Random(dist.get_rank())
    for step in range(2):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    start, wait = engine.start, engine.wait

    def started(steps, count):
        issued.append((steps[0].tag >> 8, steps[0].tag >> 3 & 31))
        time.sleep(moments.choice((0, 0.01)))
        return start(steps, count)

    def waited(batch):
        time.sleep(moments.choice((0, 0.01)))
        wait(batch)

    submit = handle.worker.submit

    def noted(layout, *arguments, **options):
        elements.extend(handle._opened.parameters.counts[p] for p in layout.parameters)  # parts of one parameter each
        return submit(layout, *arguments, **options)

    engine.start, engine.wait, handle.worker.submit = started, waited, noted
    for step in range(2, 5):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    handle.close()
    return issued, elements


@pytest.mark.parametrize("window", [1, 2, 3])
def test_issue_order_follows_buckets(pools, window):
    """First batch of i; then what is left of the oldest until a long one has a place: less than `window` long ones are in flight
    then and, where that is 2 or more, less than eight of all. At the end of a step all that is left. The same on every rank."""
    (first, elements), *others = pools(3).run(_issued, window=window)
    assert others == [(first, elements)] * 2
    batches = collections.Counter(exchange for exchange, _ in first)
    exchanges, wanted, in_flight = sorted(batches), [], []
    long = {exchange for exchange, size in zip(exchanges, elements) if size > 65536}
    assert len(exchanges) == len(elements) == 3 * 16 and len(long) == 3 * 3 and min(batches[e] for e in long) >= 2  # there and back
    assert "LsLsLssssssss" in "".join("L" if size > 65536 else "s" for size in elements[:16])

    def rest():
        exchange = in_flight.pop(0)
        wanted.extend((exchange, batch) for batch in range(1, batches[exchange]))

    for at, exchange in enumerate(exchanges):
        in_flight.append(exchange)
        wanted.append((exchange, 0))
        while len(long & {*in_flight}) >= window or len(in_flight) >= (8 if window > 1 else 1) or (in_flight and at % 16 == 15):
            rest()
    assert first == wanted


def _counted(part):
    ddp, handle, optimizer = _mixed(part=part)
    for step in range(3):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    stats, explained = handle.stats(), handle.explain()
    handle.close()
    return stats, explained


def test_parts_are_counted(pools):
    for stats, explained in pools(2).run(_counted, part=0):
        assert stats["parts"] == 0 and explained["part"] == 0 and explained["window"] == 2
    for stats, explained in pools(2).run(_counted, part=1):
        tensors = len(explained["parameters"])
        assert stats["parts"] == stats["exchanges"] == 3 * tensors and explained["part"] == 1
        assert stats["window_wait_seconds"] > 0


def _refused(**options):
    with pytest.raises(laconic.LaconicError) as error:
        training.build(dist.group.WORLD, "3lc", attach_options=options)
    return str(error.value)


def test_options_are_checked_and_agreed_on(pools):
    for options in ({"window": 0}, {"window": 9}, {"part": -1}, {"part": 1.5}):
        assert all(next(iter(options)) in said for said in pools(2).run(_refused, **options))


def _disagrees(name, values):
    return _refused(**{name: values[dist.get_rank()]})


@pytest.mark.parametrize(("name", "values"), [("window", (2, 3)), ("part", (0, 4096))])
def test_every_rank_has_same_window(pools, name, values):
    said = pools(2).run(_disagrees, name=name, values=values)
    assert said[0] == said[1] and f"rank 0 has {values[0]}, rank 1 has {values[1]}" in said[0]


def _saved_within_a_step(coalesce):
    """A bucket is in flight, or waits for the next one, when the engine has failed and its rank asks for the state."""
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", buckets=16, coalesce=coalesce)
    for step in range(2):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    before, gradients, saved = handle.state_dict()["tensors"], {}, []
    on_bucket, names = handle.hook.on_bucket, {id(p): n for n, p in ddp.module.named_parameters()}

    def asks(bucket):
        if not saved:
            for p, g in zip(bucket.parameters(), bucket.gradients()):
                gradients[names[id(p)]] = g.detach().clone().flatten()
        future = on_bucket(bucket)
        if not saved:
            handle.worker.commands.between_jobs(lambda: handle.worker.exchanges.break_off(laconic.LaconicError(62, "engine_failed", "the test breaks it", "")))
            saved.append(handle.state_dict()["tensors"])
        return future

    handle.hook.on_bucket = asks
    try:
        training.step_once(ddp, optimizer, dist.get_rank(), 2)
        raised = ""
    except RuntimeError as error:
        raised = str(error)
    handle.close()
    return before, gradients, saved[0], raised


@pytest.mark.parametrize("coalesce", [True, False])
def test_state_after_failure_within_step_undoes_exchanges(pools, coalesce):
    for before, gradients, saved, raised in pools(2).run(_saved_within_a_step, coalesce=coalesce):
        assert "the test breaks it" in raised
        residuals = [name for name in gradients if f"residual/{name}" in saved]
        assert residuals
        for name in residuals:
            torch.testing.assert_close(saved[f"residual/{name}"], before[f"residual/{name}"] + gradients[name], rtol=1e-6, atol=1e-7)


def _traced(folder):
    import os

    os.environ["LACONIC_TRACE"] = f"{folder}/trace.json"
    try:
        ddp, handle, optimizer = training.build(dist.group.WORLD, "3lc", buckets=3,
                                                attach_options={"strategy": "two_shot", "window": 2, "part": 1})
    finally:
        del os.environ["LACONIC_TRACE"]
    for step in range(4):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    exchanges = handle.stats()["exchanges"]
    handle.close()
    return exchanges


def test_trace_has_every_part_of_every_exchange(pools, tmp_path):
    exchanges = pools(2).run(_traced, folder=str(tmp_path))[0]
    for rank in (0, 1):
        events = [e for e in json.loads((tmp_path / f"trace.rank{rank}.json").read_text(encoding="utf-8")) if e["ph"] == "X"]
        assert {e["pid"] for e in events} == {rank}
        named = {name: [e for e in events if e["cat"] == name] for name in ("encode", "wire", "decode")}
        assert len(named["encode"]) == exchanges and len(named["wire"]) == len(named["decode"]) >= 2 * exchanges
        computing = sorted((e["ts"], e["ts"] + e["dur"]) for e in named["encode"] + named["decode"])
        assert all(ended <= begun + 1 for (_, ended), (begun, _) in zip(computing, computing[1:]))  # one thread
        for place in {e["tid"] for e in named["wire"]}:
            taken = sorted((e["ts"], e["ts"] + e["dur"]) for e in named["wire"] if e["tid"] == place)
            assert all(ended <= begun + 1 for (_, ended), (begun, _) in zip(taken, taken[1:]))
        # the second exchange of a step is encoded while the first is on the wire
        assert any(w["ts"] < e["ts"] and e["ts"] + e["dur"] < w["ts"] + w["dur"] for w in named["wire"] for e in named["encode"])


def test_unwritable_trace_logs_a_line(tmp_path, monkeypatch, caplog):
    from laconic.exchange import trace

    monkeypatch.setenv("LACONIC_TRACE", str(tmp_path / "none" / "trace.json"))
    said = []
    monkeypatch.setattr(trace.environment, "say", lambda text, *_: said.append(text))
    assert trace.from_environment(1, 2) is None and "LACONIC_TRACE" in said[0]
    monkeypatch.setenv("LACONIC_TRACE", "")
    assert trace.from_environment(1, 2) is None
    monkeypatch.setenv("LACONIC_TRACE", str(tmp_path / "few"))
    monkeypatch.setattr(trace, "LIMIT", 8)
    few = trace.from_environment(1, 2)
    for step in range(9):
        few.phase(0, step, 1 << 16 | 2, 1.0, 2.0)
    assert len([e for e in json.loads((tmp_path / "few.rank1.json").read_text()) if e["ph"] == "X"]) == 4
    assert "and stops" in said[1]
