# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Gradients that are not finite, and loss scaling: overflows reach the scaler, residuals stay what they were."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import training  # noqa: E402

# One spec per strategy; whether its residual has to be guarded against sums that are not finite.
SPECS = {"bf16": {}, "powersgd:rank=2": {}, "topk:ratio=0.05": {}, "3lc": {"strategy": "two_shot"}, "int8": {"strategy": "two_shot"},
         "int8+ef": {"strategy": "gather_all"}, "randomk:ratio=0.05": {}}
FEEDBACK = ["powersgd:rank=2", "topk:ratio=0.05", "3lc", "int8+ef", "randomk:ratio=0.05"]


def backward(ddp, rank, step, scale=1.0, poison=None):
    """One backward pass on a scaled loss; `poison`: a parameter whose gradient becomes infinite here, or "loss"."""
    x, y = training.batch(rank, step)
    loss = torch.nn.functional.cross_entropy(ddp(x).float(), y) * scale
    if poison == "loss":
        loss = loss * float("inf")
    elif poison is not None:
        parameter = dict(ddp.module.named_parameters())[poison]
        bomb = parameter.register_hook(lambda g: g.index_put((torch.tensor([1]),), torch.tensor(float("inf"))))
    loss.backward()
    if poison not in (None, "loss"):
        bomb.remove()


def gradients(ddp):
    return {n: p.grad.clone() for n, p in ddp.module.named_parameters()}


def bits(tensors):
    import hashlib

    h = hashlib.sha256()
    for t in tensors.values():
        h.update(t.contiguous().view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def _overflow(spec, bad, poison, **options):
    """Three steps, one with an overflow on `bad` only, three more; with a scaler if it is to notice."""
    import torch.distributed as dist

    rank = dist.get_rank()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, attach_options={"scaler": scaler, **options})

    def one(step, poison=None):
        optimizer.zero_grad()
        backward(ddp, rank, step, scaler.get_scale(), poison)
        found = gradients(ddp)
        scaler.step(optimizer)
        scaler.update()
        return found

    scaler.scale(torch.ones(1))  # the scaler exists from its first use on
    for step in range(3):
        one(step)
    before, weights, fallbacks = handle.state_dict()["tensors"], training.digest(ddp), handle.stats()["fallbacks"]
    found = one(3, poison if rank == bad else None)
    result = {"before": before, "after": handle.state_dict()["tensors"], "found": {n: bool(g.isfinite().all()) for n, g in found.items()},
              "bits": bits(found), "scale": scaler.get_scale(), "skipped": training.digest(ddp) == weights,
              "fallbacks": handle.stats()["fallbacks"] - fallbacks, "counted": handle.stats()["non_finite_units"]}
    for step in range(4, 7):
        one(step)
    result["hash"] = training.digest(ddp)
    result["finite"] = all(bool(p.isfinite().all()) for p in ddp.parameters())
    result["norm"] = handle.stats()["residual_norm"]
    handle.close()
    return result


@pytest.mark.parametrize("poison", ["loss", "hidden.weight"])
@pytest.mark.parametrize("spec", SPECS)
def test_overflow_on_one_rank_reaches_all_scalers(pools, spec, poison):
    results = pools(3).run(_overflow, spec=spec, bad=1, poison=poison, **SPECS[spec])
    assert {r["scale"] for r in results} == {512.0}
    assert all(r["skipped"] for r in results)
    assert not any(r["found"]["hidden.weight"] for r in results)
    assert len({r["bits"] for r in results}) == 1, "ranks saw different gradients"
    assert len({r["hash"] for r in results}) == 1 and all(r["finite"] for r in results)
    if poison != "loss" and spec != "bf16":  # the others' means arrive, uncompressed
        assert all(r["found"]["first.weight"] and r["found"]["last.weight"] for r in results)
    if spec != "bf16":  # a cast keeps nothing: NaN and infinity travel as they are
        assert [r["fallbacks"] for r in results] == [1, 1, 1]
        assert results[1]["counted"] >= 1 and results[0]["counted"] == results[2]["counted"] == 0
    for rank, result in enumerate(results):
        for name, after in result["after"].items():
            before = result["before"][name]
            assert after.isfinite().all()
            torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-7)  # was encoded, and taken back
            if rank == 1 and name.startswith("residual/") and (poison == "loss" or "hidden.weight" in name):
                # Not encoded at all: bit for bit. two_shot cuts parameters; the infinity is in the second row's piece.
                unit = slice(48, 96) if poison != "loss" and "strategy" in SPECS[spec] else slice(None)
                assert torch.equal(after[unit], before[unit]), name


def test_overflow_with_rules_and_policies_reaches_all(pools):
    """All parameters keep what they had, whichever rule they are of; and the laws go on."""
    results = pools(3).run(_overflow, spec="topk:ratio=0.05", bad=1, poison="hidden.weight", control="dc2:deadline_ms=0.001",
                           rules=[{"match": "first.*", "spec": "3lc"}, {"match": "last.*", "spec": "powersgd:rank=2", "control": "fixed"}])
    assert {r["scale"] for r in results} == {512.0} and all(r["skipped"] for r in results)
    assert len({r["bits"] for r in results}) == 1 and len({r["hash"] for r in results}) == 1 and all(r["finite"] for r in results)
    assert [r["fallbacks"] for r in results] == [1, 1, 1] and [r["counted"] > 0 for r in results] == [False, True, False]
    for result in results:
        residuals = [name for name in result["before"] if name.startswith("residual/")]
        assert len(residuals) == 3
        for name in residuals:
            torch.testing.assert_close(result["after"][name], result["before"][name], rtol=1e-5, atol=1e-7)


def _scales(spec, scales, steps=6, **options):
    """Trains with the given loss scale at each step (None: without a scaler). Powers of two change no bit."""
    import torch.distributed as dist

    rank = dist.get_rank()
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0) if scales else None
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, attach_options={"scaler": scaler, **options})
    if scaler:
        scaler.scale(torch.ones(1))
    states = []
    for step in range(steps):
        optimizer.zero_grad()
        if scaler:
            scaler.update(scales[step])
        backward(ddp, rank, step, scaler.get_scale() if scaler else 1.0)
        if scaler:
            scaler.step(optimizer)
        else:
            optimizer.step()
        states.append(bits(handle.state_dict()["tensors"]))
    handle.close()
    return training.digest(ddp), states


@pytest.mark.parametrize("spec", [s for s in FEEDBACK if "powersgd" not in s])
def test_loss_scale_changes_no_bit(pools, spec):
    """Residuals follow the scale (or the sixth step would add residuals of another unit), and are saved without it."""
    plain = pools(3).run(_scales, spec=spec, scales=None, **SPECS[spec])
    constant = pools(3).run(_scales, spec=spec, scales=[1024.0] * 6, **SPECS[spec])
    changing = pools(3).run(_scales, spec=spec, scales=[1024.0, 1024.0, 65536.0, 512.0, 512.0, 8.0], **SPECS[spec])
    assert plain == constant == changing
    assert len({h for h, _ in plain}) == 1


def test_low_rank_follows_changing_loss_scale(pools):
    """PowerSGD's orthogonalisation guards against division by zero with a constant: bits may differ, training does not."""
    results = pools(3).run(_scales, spec="powersgd:rank=2", scales=[1024.0, 1024.0, 65536.0, 512.0, 512.0, 8.0])
    assert len({h for h, _ in results}) == 1


def _resumed_scale(spec, **options):
    import torch.distributed as dist

    rank = dist.get_rank()
    hashes = []
    for resumed in (False, True):
        scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
        scaler.scale(torch.ones(1))
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, attach_options={"scaler": scaler, **options})
        for step in range(6):
            if resumed and step == 3:
                saved = ddp.module.state_dict(), optimizer.state_dict(), handle.state_dict()
                handle.close()
                scaler = torch.amp.GradScaler("cpu", init_scale=64.0)  # another scale than when it was saved
                scaler.scale(torch.ones(1))
                ddp, handle, optimizer = training.build(dist.group.WORLD, spec, attach_options={"scaler": scaler, **options})
                ddp.module.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
                handle.load_state_dict(saved[2])
            optimizer.zero_grad()
            backward(ddp, rank, step, scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
        handle.close()
        hashes.append(training.digest(ddp))
    return hashes


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "3lc"])
def test_state_continues_under_another_loss_scale(pools, spec):
    for straight, resumed in pools(3).run(_resumed_scale, spec=spec, **SPECS[spec]):
        assert straight == resumed


# ---- without a scaler ----

def _infinite(spec, poison, **options):
    import torch.distributed as dist

    rank = dist.get_rank()
    found = {}
    for name in (None, spec):
        ddp, handle, optimizer = training.build(dist.group.WORLD, name, attach_options=options)
        for step in range(2):
            if handle:
                training.step_once(ddp, optimizer, rank, step)
        if handle is None:
            reference = ddp
            continue
        reference.module.load_state_dict(ddp.module.state_dict())
        for model in (reference, ddp):
            optimizer.zero_grad()
            model.zero_grad()
            backward(model, rank, 2, poison=poison if rank == 2 else None)
            found[model is ddp] = gradients(model)
        optimizer.zero_grad()
        for step in (3, 4):
            training.step_once(ddp, optimizer, rank, step)
        result = {"plain": found[False], "ours": found[True], "bits": bits(found[True]), "hash": training.digest(ddp),
                  "finite": all(bool(p.isfinite().all()) for p in ddp.parameters()), "fallbacks": handle.stats()["fallbacks"]}
        handle.close()
    return result


@pytest.mark.parametrize("poison", ["hidden.weight", "hidden.bias", "loss"])
@pytest.mark.parametrize("spec", SPECS)
def test_infinite_gradients_arrive_as_in_plain_ddp(pools, spec, poison):
    results = pools(3).run(_infinite, spec=spec, poison=poison, **SPECS[spec])
    assert len({r["bits"] for r in results}) == 1 and len({r["hash"] for r in results}) == 1
    for result in results:
        assert result["finite"]  # the optimizer never saw it: training goes on
        for name, plain in result["plain"].items():
            ours = result["ours"][name]
            assert torch.equal(ours.isfinite(), plain.isfinite()) or result["fallbacks"] == 0, name
            assert bool(ours.isfinite().all()) == bool(plain.isfinite().all()), name
            if result["fallbacks"]:
                torch.testing.assert_close(ours, plain, equal_nan=True, rtol=1e-5, atol=1e-7)
