# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`python -m laconic.run --every N script.py`: an unmodified script of DistributedDataParallel exchanges changes of parameters."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from launches import launch  # noqa: E402

from laconic import run  # noqa: E402

SCRIPT = r'''
import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(mode="", begin="0", end="6", file=""):
    dist.init_process_group("gloo")
    rank, begin, end = dist.get_rank(), int(begin), int(end)
    torch.manual_seed(rank)  # DDP's first broadcast makes replicas equal
    model = torch.nn.Sequential(torch.nn.Linear(80, 80), torch.nn.Linear(80, 4))
    ddp = DistributedDataParallel(model)
    if mode == "two":
        optimizers = [torch.optim.AdamW(layer.parameters(), lr=1e-2) for layer in model]
    else:
        optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2)]
    if mode == "api":
        import laconic

        outer = laconic.OuterStep(ddp, optimizers[0], spec="topk:ratio=0.1", every=2)
    if begin:
        saved = torch.load(f"{file}-{begin}", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizers[0].load_state_dict(saved["optimizer"])
    digests = []
    for step in range(begin, end):
        for optimizer in optimizers:
            optimizer.zero_grad()
        generator = torch.Generator().manual_seed(100 * step + rank)
        ddp(torch.randn(4, 80, generator=generator)).square().mean().backward()
        for optimizer in optimizers:
            if mode != "none":
                optimizer.step()
        digests.append(hashlib.sha256(b"".join(bytes(p.detach().view(torch.uint8).flatten().tolist()) for p in ddp.parameters())).hexdigest()[:16])
        if file and rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizers[0].state_dict()}, f"{file}-{step + 1}")
    sys.stdout.write(json.dumps({"digests": digests}) + "\n")
    dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
'''


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def runs(script, *arguments, options=("--every", "2"), **more):
    return launch(["-m", "laconic.run", "--spec", "3lc", "--small-elements", "100", *options, script, *arguments], script.parent, **more)


def digests(outcomes):
    assert [o.code for o in outcomes] == [0] * len(outcomes), [o.err for o in outcomes]
    return [o.report["digests"] for o in outcomes]


def test_unmodified_script_has_equal_replicas_after_rounds(script):
    outcomes = runs(script, options=("--every", "1", "--summary"))
    first, second = digests(outcomes)
    assert first == second and len(set(first)) == 6
    notices = outcomes[0].notices
    assert any("a round after every step, average: 3lc on 2 of 4 tensors" in line for line in notices)
    assert any("6 steps" in line and "bytes sent" in line for line in notices) and outcomes[1].notices == []


def test_resumed_run_of_script_is_bit_identical(script):
    options = ("--every", "2", "--state", script.parent / "state", "--state-every", "2")
    file = script.parent / "model"
    whole = digests(runs(script, "", "0", "8", script.parent / "other"))
    before = runs(script, "", "0", "4", file, options=options)
    after = runs(script, "", "4", "8", file, options=options)
    assert [a + b for a, b in zip(digests(before), digests(after))] == whole
    assert any("resumes with the residuals of step 4" in line for line in after[0].notices), after[0].err
    assert whole[0][1::2] == whole[1][1::2] and whole[0][0::2] != whole[1][0::2]


def test_two_optimizers_are_refused_with_the_lines_of_the_api(script):
    for outcome in runs(script, "two"):
        assert outcome.code != 0
        for words in ("--every needs one optimizer", "laconic.OuterStep(model, None, spec=..., hook=False)", "outer.after_step()", "outer.close()"):
            assert words in outcome.err


def test_script_without_optimizer_or_with_own_rounds_is_named(script):
    first, _ = runs(script, "none")
    assert any("no optimizer of torch has stepped" in line for line in first.notices), first.err
    outcomes = runs(script, "api")
    one, other = digests(outcomes)
    assert one[1::2] == other[1::2]
    assert any("the script attaches laconic itself" in line for line in outcomes[0].notices)


@pytest.mark.parametrize(("options", "words"), [(["--every", "0"], "not a whole number from 1"), (["--every", "3", "--state", "x"], "not a multiple of --every 3"),
                                                (["--every", "2", "--aggregator", "localhost:1"], "--aggregator sums gradients")])
def test_options_that_do_not_go_together_are_refused(options, words, capsys):
    with pytest.raises(SystemExit):
        run._parse([*options, "train.py"])
    assert words in capsys.readouterr().err
