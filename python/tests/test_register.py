# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Codecs of users in Python: laconic.register."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

import own_codecs  # noqa: E402
import training  # noqa: E402

import laconic  # noqa: E402
from laconic.codec import registered  # noqa: E402


@pytest.fixture(autouse=True)
def known():
    own_codecs.register()


def refused(name, call, *arguments, **keywords):
    with pytest.raises(laconic.LaconicError) as caught:
        call(*arguments, **keywords)
    assert caught.value.name == name, caught.value
    return str(caught.value)


def gradient(n=1000, seed=0):
    return numpy.random.default_rng(seed).normal(size=n).astype(numpy.float32)


# ---- specs, frames, bench ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("spec", "canonical", "feedback"), [
    ("largest", "largest", True), ("largest:ratio=5e-2", "largest", True), ("largest:ratio=0.1+ef", "largest:ratio=0.1", True),
    ("largest+noef", "largest+noef", False), ("sparse", "sparse", False), ("sparse+ef", "sparse+ef", True), ("sparse+noef", "sparse", False),
    ("sparse:n=2Ki,v=1", "sparse:v=1,n=2048", False), ("sparse:dense=on,word=x-1.y", "sparse:dense=on,word=x-1.y", False),
    ("sparse:v=1e30", "sparse:v=1e30", False), ("places", "places", False)])
def test_specs_are_accepted(spec, canonical, feedback):
    codec = laconic.Codec(spec)
    assert (codec.spec, codec.feedback, codec.name) == (canonical, feedback, canonical.split(":")[0].split("+")[0])
    assert laconic.Codec(codec.spec).spec == canonical and isinstance(codec, laconic.Codec)


@pytest.mark.parametrize(("spec", "name", "word"), [
    ("largest:ratio=2", "value_out_of_range", "ValueError: ratio is 2"), ("largest:ratio=x", "value_out_of_range", "default is 0.05"),
    ("largest:ratio=1e+2", "spec_syntax", "+ef or +noef"), ("largest:ration=1", "unknown_key", "'ratio'"), ("largest:", "spec_syntax", "key=value"),
    ("largest:ratio=0.1,ratio=0.2", "spec_syntax", "twice"), ("largest+ema=0.9", "spec_syntax", "+ef or +noef"),
    ("largest+ef+noef", "spec_syntax", "once"), ("places+ef", "unsupported", "never"), ("sparse:n=1.5", "value_out_of_range", "whole"),
    ("sparse:dense=1", "value_out_of_range", "on or off"), ("sparse:word=a/b", "value_out_of_range", "word"),
    ("sparse:v=1e999", "value_out_of_range", "v="), ("places:a=1", "unknown_key", "has no keys"), ("largst", "unknown_codec", "largst"),
    ("sparse:word=" + "x" * 250, "spec_syntax", "longer than 255")])
def test_unsupported_specs_are_refused(spec, name, word):
    assert word in refused(name, laconic.Codec, spec)


def _class(**members):
    return type("Mine", (), {"name": "mine", "encode": lambda self, array: b"", "decode": lambda self, data, out: None, **members})


@pytest.mark.parametrize(("thing", "word"), [
    (3, "not a class"), (_class(name=None), "Mine.name is None"), (_class(name="Mine"), "'Mine'"), (_class(name="a b"), "'a b'"),
    (_class(name="topk"), "topk is a built-in codec"), (_class(encode=None), "no encode"), (_class(decode=3), "no decode"),
    (_class(feedback="maybe"), "feedback"), (_class(__init__=lambda self, k: None), "default"),
    (_class(__init__=lambda self, *k: None), "default"), (_class(__init__=lambda self, k=None: None), "default")])
def test_incomplete_classes_are_refused(thing, word):
    assert word in refused("invalid_argument", laconic.register, thing)


def test_registering_again_replaces_codec():
    first, second = _class(encode=lambda self, array: b"1"), _class(encode=lambda self, array: b"22")
    assert laconic.register(first) is first
    one = len(laconic.Codec("mine").encode(gradient()))
    assert laconic.register(second) is second and len(laconic.Codec("mine").encode(gradient())) == one + 1
    assert "mine" not in laconic.codecs()


def test_frame_and_feedback_match_topk():
    """The same method as a codec of laconic's: the same values, residuals included."""
    mine, theirs = laconic.Codec("largest", ratio=0.05), laconic.Codec("topk", ratio=0.05)
    held = [laconic.Residual(1000), laconic.Residual(1000)]
    for step in range(5):
        values = gradient(seed=step)
        kept = values.copy()
        decoded = [codec.decode(codec.encode(values, step=step, residual=r)) for codec, r in zip((mine, theirs), held)]
        assert numpy.array_equal(*decoded) and numpy.array_equal(values, kept)
        assert numpy.array_equal(held[0].numpy(), held[1].numpy())
    out = numpy.ones(1000, numpy.float32)
    assert numpy.array_equal(mine.decode_add(mine.encode(values), out, weight=0.5), 1 + numpy.float32(0.5) * mine.decode(mine.encode(values)))
    tensor = torch.from_numpy(gradient()).reshape(20, 50).half()
    assert mine.decode(mine.encode(tensor)).dtype == numpy.float16 and mine.decode(mine.encode(tensor)).shape == (20, 50)
    assert numpy.array_equal(mine.decode(mine.encode(tensor), torch.zeros(20, 50)).numpy(), mine.decode(mine.encode(tensor)).astype("f"))
    refused("non_finite", mine.encode, numpy.float32([1, math.nan]))
    refused("frame_count", mine.encode, gradient(), residual=laconic.Residual(3))
    refused("frame_count", mine.decode, mine.encode(gradient()), numpy.zeros(3, numpy.float32))
    refused("dtype_unsupported", mine.encode, numpy.zeros(3))
    refused("unsupported", mine.max_frame_bytes, 100)
    refused("bound_exceeded", mine.decode, mine.encode(gradient()), max_elements=10)
    header, payload = registered.unpack(mine.encode(gradient()))
    for shape in ([0, *[2**32 - 1] * 2], [0] * 100):
        refused("shape_unsupported", mine.decode, registered.pack({**header, "shape": shape}, payload))
    refused("frame_codec", laconic.Codec("sparse").decode, mine.encode(gradient()))


def test_damaged_frames_are_numbered_errors():
    codec, draw = laconic.Codec("largest"), random.Random(1)
    frame, out = codec.encode(gradient()), numpy.zeros(1000, numpy.float32)
    cases = [frame[:n] for n in range(0, len(frame), 7)] + [frame + b"x", b"", 3]
    for _ in range(200):
        damaged = bytearray(frame)
        damaged[draw.randrange(len(frame))] ^= 1 << draw.randrange(8)
        cases.append(bytes(damaged))
    for case in cases:
        with pytest.raises(laconic.LaconicError) as caught:
            codec.decode(case, out)
        assert caught.value.name.startswith("frame_") or case == 3
    assert not out.any()


def test_bench_measures_registered_and_builtin_codecs():
    for spec in ("largest:ratio=0.01", "topk"):
        result = laconic.bench(spec, size="64Ki", seconds=0.05)
        assert result["codec"] == spec and result["elements"] == 16384 and result["samples"] >= 1
        assert result["encode_x_memcpy"] > 0 and result["decode_s"] > 0 and 30 < result["ratio"] < 101
    for size in (0, "4X", True, 3, "-1"):
        refused("invalid_argument", laconic.bench, "topk", size)


# ---- attached -------------------------------------------------------------------------------------------------------------------

def _train(spec, **options):
    own_codecs.register()
    return training.train(spec, **options)


@pytest.mark.parametrize("world", [2, 3])
def test_registered_codec_trains_like_topk(pools, world):
    """The same method, by the same strategy: the same bits, whatever the buckets."""
    results = [pools(world).run(_train, spec=spec, steps=5, buckets=buckets, attach_options={"strategy": "gather_all"})
               for spec, buckets in (("largest:ratio=0.05", 1), ("largest:ratio=0.05", 4), ("topk:ratio=0.05", 1))]
    hashes = {r["hash"] for result in results for r in result}
    assert len({r["hash"] for r in results[0]}) == 1 and results[0][0]["finite"]
    if world != 3:  # sums of small parameters are the engine's there, and thirds are rounded elsewhere
        assert len(hashes) == 1


def _alone():
    ours = _train("largest:ratio=0.05", steps=3)
    return ours["hash"] == training.train(None, steps=3)["hash"], ours["stats"]


def test_one_rank_passes_gradients_through(pools):
    [(equal, stats)] = pools(1).run(_alone)
    assert equal and (stats["ratio"], stats["wire_bytes"], stats["residual_bytes"]) == (1.0, 0, 0)


@pytest.mark.parametrize("options", [{"dtype": torch.bfloat16}, {"ddp_options": {"static_graph": True}}, {"buckets": 4},
                                     {"ddp_options": {"gradient_as_bucket_view": True}}, {"accumulate": 1},
                                     {"attach_options": {"warmup": 2, "part": 4096, "window": 4}}])
@pytest.mark.parametrize("spec", ["largest", "sparse", "sparse:v=100"])
def test_all_modes_train(pools, spec, options):
    results = pools(3).run(_train, spec=spec, **options)
    assert len({r["hash"] for r in results}) == 1 and all(r["finite"] for r in results)


def _resume(**options):
    own_codecs.register()
    return training.resume(**options)


@pytest.mark.parametrize("flush", [None, (1, 4), (2, 4), (4, 3)])
def test_resume_is_bit_identical(pools, flush):
    hashes = pools(3).run(_resume, spec="largest", buckets=4, flush=flush)
    assert all(h == hashes[0] for h in hashes) and hashes[0][0] == hashes[0][1]


def _flushed():
    import torch.distributed as dist

    own_codecs.register()
    ddp, handle, optimizer = training.build(dist.group.WORLD, "largest", buckets=3)
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    last = handle.flush(3) if dist.get_rank() == 1 else None
    norms, left = [], []
    for step in range(1, 6):
        norms.append(handle.stats()["residual_norm"])
        left.append(handle.stats()["flush_steps_left"])
        training.step_once(ddp, optimizer, dist.get_rank(), step)
        if step == 2:
            again = handle.flush(9)
    stats = handle.stats()
    handle.close()
    return last, again, norms, left, stats, training.digest(ddp)


def test_flush_drains_equal_parts(pools):
    results = pools(2).run(_flushed)
    assert results[1][0] == 4 and len({r[5] for r in results}) == 1
    for _, again, norms, left, _, _ in results:
        assert again == 4
        assert norms[2:] == pytest.approx([norms[1] * 2 / 3, norms[1] / 3, 0]) and norms[4] == 0
        assert left[1:] == [3, 2, 1, 0]


def _told(other):
    import torch.distributed as dist

    rank = dist.get_rank()
    registered._classes.clear()
    own_codecs.register("largest") if rank != 1 else None
    try:
        training.build(dist.group.WORLD, "largest" if other is None or rank != 1 else other)
    finally:
        own_codecs.register()


@pytest.mark.parametrize(("other", "words"), [(None, ["rank 1 could not attach", "unknown codec 'largest'"]),
                                              ("topk", ["ranks disagree on the spec: rank 0 has 'largest', rank 1 has 'topk'"])])
def test_codec_missing_on_one_rank_is_one_message_on_all(pools, other, words):
    errors = pools(3).errors(_told, other=other)
    assert len({e.message for e in errors}) == 1 and all(e.kind == "LaconicError" for e in errors)
    assert all(word in errors[0].message for word in words), errors[0].message


def _settings(**different):
    import torch.distributed as dist

    own_codecs.register()
    rank = dist.get_rank()
    options = {key: values[rank] for key, values in different.items()}
    training.build(dist.group.WORLD, options.pop("spec", "largest"), attach_options=options)


@pytest.mark.parametrize(("different", "word"), [({"seed": [1, 1, 2]}, "the seed: rank 0 has 1, rank 2 has 2"),
                                                 ({"spec": ["largest", "largest:ratio=0.1", "largest"]}, "rank 0 has 'largest', rank 1 has 'largest:ratio=0.1'"),
                                                 ({"strategy": ["two_shot"] * 3}, "cannot carry largest"), ({"spec": ["largest:a=1"] * 3}, "no key 'a'")])
def test_different_or_impossible_settings_are_refused(pools, different, word):
    errors = pools(3).errors(_settings, **different)
    assert len({e.message for e in errors}) == 1 and word in errors[0].message, errors[0].message


def _failing(what, bad, state_before=False):
    """Three steps, the second of which fails on rank `bad`; returns what each rank reported and held."""
    import torch.distributed as dist

    own_codecs.register()
    rank = dist.get_rank()
    ddp, handle, optimizer = training.build(dist.group.WORLD, "faulty", buckets=1)
    training.step_once(ddp, optimizer, rank, 0)
    before = {n: t.clone() for n, t in handle.state_dict()["tensors"].items()}
    own_codecs.Faulty.told = (bad, 1, what)
    x, y = training.batch(rank, 1)
    with ddp.no_sync():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        own = {n: p.grad.clone().ravel() for n, p in ddp.module.named_parameters()}
        optimizer.zero_grad()
    try:
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        heard = None
    except RuntimeError as error:
        heard = str(error)
    own_codecs.Faulty.told = None
    after = handle.state_dict()["tensors"]
    kept = all(torch.equal(after[n], before[n] + own[n.removeprefix("residual/")]) for n in after if n.startswith("residual/"))
    optimizer.zero_grad()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in (2, 3):
        training.step_once(ddp, optimizer, rank, step)
    result = heard, kept, training.digest(ddp), handle.stats()["failures"], handle.last_error.name
    handle.close()
    return result


@pytest.mark.parametrize(("what", "words"), [("encode", "faulty.encode: ValueError: no idea"), ("text", "encode returned str, not bytes"),
                                             ("decode", "faulty.decode: KeyError"), ("nan", "left infinity or NaN"),
                                             ("gives", "decode returned ndarray")])
def test_codec_that_raises_on_one_rank_fails_all_without_loss(pools, what, words):
    results = pools(3).run(_failing, what=what, bad=1)
    for heard, kept, _, failures, name in results:
        assert heard is not None and "rank 1 failed in bucket 0" in heard and words in heard, heard
        assert kept and failures == 1 and name == "peer_failed"
    assert len({r[2] for r in results}) == 1  # training went on


def _chained():
    """An error that Python raised on rank 1, as every rank's handle reports it, and a payload that is too long."""
    import torch.distributed as dist

    class Long(own_codecs.Largest):
        name = "long"

        def encode(self, array):
            return bytes(16 * array.size + 4096 + (dist.get_rank() == 0))

        def decode(self, data, out):
            assert not any(data)

    own_codecs.register()
    laconic.register(Long)
    found = []
    for spec, told in (("faulty", (1, 0, "encode")), ("faulty", (1, 0, "decode")), ("long", None)):
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec)
        own_codecs.Faulty.told = told
        with pytest.raises(RuntimeError):
            training.step_once(ddp, optimizer, dist.get_rank(), 0)
        own_codecs.Faulty.told = None
        found.append((handle.last_error.message, repr(handle.last_error.__cause__)))
        handle.close()
    return found


def test_codec_exception_is_cause_of_error(pools):
    results = pools(2).run(_chained)
    assert [cause for _, cause in results[1]] == ["ValueError('no idea')", "KeyError('nor here')", "None"]
    assert [cause for _, cause in results[0]][:2] == ["None", "None"]
    for found in results:
        assert "rank 0 failed in bucket 0" in found[2][0] and "long.encode returned" in found[2][0] and "at most" in found[2][0]


def _poisoned(poison):
    import torch.distributed as dist

    own_codecs.register()
    rank = dist.get_rank()
    ddp, handle, optimizer = training.build(dist.group.WORLD, "largest", buckets=1)
    training.step_once(ddp, optimizer, rank, 0)
    before = {n: t.clone() for n, t in handle.state_dict()["tensors"].items()}
    x, y = training.batch(rank, 1)
    loss = torch.nn.functional.cross_entropy(ddp(x), y)
    optimizer.zero_grad()
    (loss * (poison if rank == 1 else 1.0)).backward()
    found = {n: bool(p.grad.isfinite().all()) for n, p in ddp.module.named_parameters()}
    after, stats = handle.state_dict()["tensors"], handle.stats()
    optimizer.zero_grad()
    training.step_once(ddp, optimizer, rank, 2)
    result = found, all(torch.equal(after[n], before[n]) for n in after), stats["fallbacks"], stats["non_finite_units"], training.digest(ddp)
    handle.close()
    return result


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_nan_on_one_rank_sends_all_uncompressed(pools, poison):
    results = pools(3).run(_poisoned, poison=poison)
    for rank, (found, untouched, fallbacks, counted, _) in enumerate(results):
        assert not found["hidden.weight"] and untouched and fallbacks == 1 and (counted > 0) == (rank == 1)
    assert len({r[4] for r in results}) == 1


def _followed():
    import torch.distributed as dist

    own_codecs.register()
    ddp, handle, optimizer = training.build(dist.group.WORLD, "largest")
    handle.follow(optimizer)
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    state = handle.state_dict()
    optimizer.param_groups[0]["lr"] *= 2
    weights = {n: p.clone() for n, p in ddp.module.state_dict().items()}
    hashes = []
    for by_hand in (False, True):
        ddp.module.load_state_dict(weights)
        if by_hand:
            tensors = {n: t / 2 if n.startswith("residual/") else t for n, t in state["tensors"].items()}
            handle.load_state_dict({**training.unsealed(state), "tensors": tensors, "rates": {n: r * 2 for n, r in state["rates"].items()}})
        ddp.zero_grad()
        x, y = training.batch(dist.get_rank(), 1)
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        hashes.append([training.raw(p.grad) for p in ddp.parameters()])
    handle.close()
    return hashes[0] == hashes[1]


def test_residuals_follow_the_learning_rate(pools):
    assert all(pools(2).run(_followed))


def _beside():
    import torch.distributed as dist

    own_codecs.register()
    rules = [{"match": "hidden.weight", "spec": "largest:ratio=0.1+noef"}, {"match": "*.weight", "spec": "sparse"}]
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk", attach_options={"rules": rules})
    for step in range(2):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    codecs = {p["name"]: p["codec"] for p in handle.explain()["parameters"]}
    handle.close()
    return codecs, training.digest(ddp)


def test_rules_mix_registered_and_builtin_codecs(pools):
    results = pools(2).run(_beside)
    assert results[0] == results[1] and results[0][0]["hidden.weight"] == "largest:ratio=0.1+noef"


def _without_ddp():
    import torch.distributed as dist

    own_codecs.register()
    session = laconic.Session("largest:ratio=0.5", [("w", (2, 2))], engine="c10d", small_elements=0)
    values = numpy.float32([4, 1, 3, 2]) * (dist.get_rank() + 1)
    session.average(0, values)
    session.close()
    return values.tolist()


def test_session_without_ddp_takes_registered_codec(pools):
    assert pools(2).run(_without_ddp) == [[6.0, 0.0, 4.5, 0.0]] * 2


def _places():
    import torch.distributed as dist

    own_codecs.register()
    own_codecs.Places.seen.clear()
    ddp, handle, optimizer = training.build(dist.group.WORLD, "places", attach_options={"seed": 7})
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    training.step_once(ddp, optimizer, dist.get_rank(), 1)
    grads = {n: float(p.grad.mean()) for n, p in ddp.module.named_parameters()}
    told = handle.describe(), handle.explain(), handle.stats()
    handle.close()
    return own_codecs.Places.seen, grads, told


def test_codec_knows_its_position(pools):
    for rank, (seen, grads, told) in enumerate(pools(2).run(_places)):
        assert ((48, 48), "float32", 7, 1, rank, 2, "hidden.weight") in seen and grads["hidden.weight"] == 1
        assert {place[3] for place in seen} == {0, 1}
        line, explained, stats = told
        assert "in Python and is slow" in line and "places on " in line
        assert explained["strategy"] == "gather_all" and explained["feedback"] is False and stats["ratio"] > 1
        assert not any(key.startswith("residual/") for key in explained) and explained["residual_bytes"] == 0


def test_handle_reports_registered_codec_like_others(pools):
    mine, theirs = (pools(2).run(_keys, spec=spec)[0] for spec in ("largest", "topk"))
    assert mine == theirs


def _keys(spec):
    import torch.distributed as dist

    own_codecs.register()
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec)
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    explained = handle.explain()
    keys = [sorted(of) for of in (handle.stats(), explained, explained["parameters"][0], explained["settings"][0], handle.state_dict())]
    handle.close()
    return keys


# ---- the page -------------------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[2] / "docs/guide/your-own-method.md"


def _blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def _page():
    """Its code, from top to bottom, on a model of this rank's."""
    import torch.distributed as dist

    model = training.Net(48)
    loader = [training.batch(dist.get_rank(), step) for step in range(4)]
    space = {"model": model, "loader": loader, "loss_of": lambda out, y: torch.nn.functional.cross_entropy(out, y)}
    for block in _blocks():
        exec(compile(block, str(PAGE), "exec"), space)  # noqa: S102
    stats = space["handle"].stats()
    result = training.digest(space["ddp"]), stats["steps"], stats["ratio"], space["figures"]["codec"]
    space["handle"].close()
    return result


def test_guide_code_runs(pools):
    method = _blocks()[0]
    assert len([line for line in method.splitlines() if line.strip()]) <= 20
    results = pools(2).run(_page)
    assert len({r[0] for r in results}) == 1 and results[0][1] == 4
    assert all(ratio > 1 and codec == "blocktop:keep=4" for _, _, ratio, codec in results)


def _dies():
    """The last rank goes away: the others raise, and hold their gradients."""
    import os

    import torch.distributed as dist

    own_codecs.register()
    ddp, handle, optimizer = training.build(dist.group.WORLD, "largest", buckets=3)
    rank = dist.get_rank()
    for step in range(2):
        training.step_once(ddp, optimizer, rank, step)
    before = handle.stats()["residual_norm"]
    if rank == 2:
        os._exit(1)
    try:
        training.step_once(ddp, optimizer, rank, 2)
    except RuntimeError as error:
        return str(error), handle.last_error.name, handle.stats()["residual_norm"] - before
    return None


def test_dead_rank_is_reported_and_gradients_kept():
    from ranks import Ranks

    pool = Ranks(3)
    try:
        pool.start(_dies)
        outcomes = pool.finish()
        assert [kind for kind, _ in outcomes] == ["ok", "ok", "dead"]
        for _, (message, name, more) in outcomes[:2]:
            assert name == "engine_failed" and message and more != 0
    finally:
        pool.close()
