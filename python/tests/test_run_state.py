# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.run --state DIR`: a run resumed from the script's own checkpoint equals one that was never interrupted."""

from __future__ import annotations

import json
import shutil

import pytest

torch = pytest.importorskip("torch")

from launches import launch  # noqa: E402

from laconic.exchange import files  # noqa: E402
from laconic.launch import automatic, state_folder  # noqa: E402

SCRIPT = r'''
import gc
import hashlib
import json
import os
import signal
import sys
import time
import weakref

import laconic
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(72, 72) for _ in range(3)))

    def forward(self, x):
        return self.layers(x)


class ByData:
    """An optimizer whose updates torch does not count."""

    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr

    def step(self):
        for p in self.parameters:
            p.data.add_(p.grad, alpha=-self.lr)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    def state_dict(self):
        return {}

    def load_state_dict(self, _):
        pass


def made(plan, number):
    torch.manual_seed(number)
    ddp = DistributedDataParallel(Net(), bucket_cap_mb=0.025)
    kind = ByData if plan.get("by_data") else lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9)
    return ddp, kind(ddp.parameters(), 0.05)


def killed_while_saving(number):
    """With nothing of the file but a part."""
    import laconic.exchange.files

    count, synchronise = [0], laconic.exchange.files.os.fsync

    def fsync(fd):
        count[0] += 1
        if count[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        synchronise(fd)

    laconic.exchange.files.os.fsync = fsync


def wrap_again(pairs):
    """The first wrapper and all that belongs to it go away; the model stays."""
    module, optimizer = pairs[0][0].module, pairs[0][1]
    handle = weakref.ref(laconic.handles()[0])
    pairs.clear()
    deadline = time.monotonic() + 100
    while handle() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert handle() is None, gc.get_referrers(handle())
    pairs.append((DistributedDataParallel(module, bucket_cap_mb=0.025), optimizer))


def main(plan):
    dist.init_process_group("gloo")
    rank, first = dist.get_rank(), 0
    pairs = [made(plan, number) for number in range(plan.get("models", 1))]
    if plan.get("load"):
        saved = torch.load(plan["load"])
        first = saved["step"]
        for (ddp, optimizer), (model, state) in zip(pairs, saved["pairs"]):
            ddp.module.load_state_dict(model)
            optimizer.load_state_dict(state)
    if plan.get("die") == rank:
        killed_while_saving(3)  # two calls a file
    digest = hashlib.sha256()
    for step in range(first, plan["steps"]):
        if step == plan.get("wrap_again"):
            ddp = None
            wrap_again(pairs)
        for number, (ddp, optimizer) in enumerate(pairs):
            x = torch.randn(4, 72, generator=torch.Generator().manual_seed(100 * step + 10 * rank + number))
            ddp(x).square().mean().backward()
            if step not in plan.get("skip", []):
                optimizer.step()
            optimizer.zero_grad()
        if step + 1 == plan.get("save_at") and rank == 0:
            torch.save({"step": step + 1, "pairs": [(ddp.module.state_dict(), o.state_dict()) for ddp, o in pairs]}, plan["save"])
    for ddp, _ in pairs:
        for p in ddp.parameters():
            digest.update(bytes(p.detach().view(-1).view(torch.uint8).tolist()))
    sys.stdout.write(json.dumps({"rank": rank, "hash": digest.hexdigest()}) + "\n")
    sys.stdout.flush()
    if plan.get("ends") == "before the update":
        ddp(torch.ones(1, 72)).sum().backward()
    if plan.get("ends") == "within backward":  # the last layer's bucket is on its way by then
        ddp.module.layers[0].weight.register_hook(lambda _: sys.exit())
        ddp(torch.ones(1, 72)).sum().backward()
    dist.barrier()


main(json.loads(sys.argv[1]))
'''


class Runs:
    """Runs of SCRIPT in one folder."""

    def __init__(self, folder, spec="topk:ratio=0.05", world=2):
        self.folder, self.spec, self.world = folder, spec, world
        self.options = ()
        self.script, self.states, self.checkpoint = folder / "train.py", folder / "states", folder / "checkpoint.pt"
        self.script.write_text(SCRIPT)

    def __call__(self, steps, *, state=True, every=2, options=(), world=None, spec=None, **plan):
        chosen = ["--state", self.states, "--state-every", every] if state else []
        plan = json.dumps({"steps": steps, "save": str(self.checkpoint), **plan})
        return launch(["-m", "laconic.run", "--spec", spec or self.spec, "--small-elements", 64, *chosen, *self.options, *options, self.script,
                       plan], self.folder, world=world or self.world)

    def resumed(self, steps, **more):
        return self(steps, load=str(self.checkpoint), **more)

    def names(self):
        names = [state_folder.Name.parse(path.name) for path in self.states.iterdir() if path.suffix != files.PARTIAL]
        assert None not in names, list(self.states.iterdir())
        return sorted(names, key=str)

    def steps(self, rank=0):
        return sorted(name.step for name in self.names() if name.rank == rank)

    def path(self, rank, step):
        return next(self.states / str(name) for name in self.names() if (name.rank, name.step) == (rank, step))


def hash_of(outcomes):
    assert [o.code for o in outcomes] == [0] * len(outcomes), outcomes[0].err
    assert len({o.report["hash"] for o in outcomes}) == 1
    return outcomes[0].report["hash"]


def line(outcomes):
    """Lines of rank 0 about residuals; other ranks log none."""
    assert all(o.notices == [] for o in outcomes[1:]), [o.notices for o in outcomes]
    found = [notice for notice in outcomes[0].notices if "residuals" in notice]
    assert len(found) == 1, outcomes[0].err
    return found[0]


@pytest.mark.parametrize(("spec", "world", "nodes"), [("3lc", 4, "2"), ("topk:ratio=0.05", 2, "off")])
def test_rank_killed_while_saving_resumes_bit_for_bit(tmp_path, spec, world, nodes):
    runs = Runs(tmp_path, spec, world)
    runs.options = ("--nodes", nodes)
    uninterrupted = hash_of(runs(9, state=False))
    broken = runs(9, save_at=4, die=1, every=4)  # its second save is that of the end of step 8
    assert broken[1].code == -9 and any(path.suffix == files.PARTIAL for path in runs.states.iterdir())
    assert "no state in" in line(broken[:1])
    left = runs.states / (str(runs.path(1, 4).name).replace("step4", "step3") + files.PARTIAL)  # of another writer
    left.write_text("")
    resumed = runs.resumed(9, every=4)
    assert f"resumes with the residuals of step 4 in {runs.states}" in line(resumed)
    assert hash_of(resumed) == uninterrupted
    assert runs.steps(1) == [4, 8, 9] and not left.exists()
    if world == 2:
        assert hash_of(runs.resumed(9, state=False)) != uninterrupted
    else:
        runs.options = ()
        assert "step 4 is refused: state: expected one of whole models, found one of 2 shards of a node" in line(runs.resumed(9, every=4))


def test_two_models_have_separate_states(tmp_path):
    runs = Runs(tmp_path)
    uninterrupted = hash_of(runs(8, state=False, models=2))
    hash_of(runs(5, models=2, save_at=4))
    assert {name.ordinal for name in runs.names()} == {0, 1} and len({name.model for name in runs.names()}) == 1
    resumed = runs.resumed(8, models=2)
    assert hash_of(resumed) == uninterrupted
    assert len([n for n in resumed[0].notices if "resumes with the residuals of step 4" in n]) == 2


def test_old_states_are_pruned_and_last_is_saved(tmp_path):
    runs = Runs(tmp_path)
    uninterrupted = hash_of(runs(10, state=False))
    hash_of(runs(7, save_at=7))
    assert runs.steps(0) == runs.steps(1) == [4, 6, 7]
    resumed = runs.resumed(10, options=["--state-keep", "2"])
    assert hash_of(resumed) == uninterrupted and "of step 7" in line(resumed)
    assert runs.steps(0) == runs.steps(1) == [8, 10]
    begun_again = runs(4)
    assert "no state in" in line(begun_again) and "has these parameters, the newest is from step 10" in line(begun_again)
    assert runs.steps(0) == [2, 4, 10]  # by age


def test_rewrapped_model_continues(tmp_path):
    """The first wrapper's handle is freed, its state was saved before that, under a number of the model that comes again."""
    runs = Runs(tmp_path)
    outcomes = runs(6, wrap_again=3)
    hash_of(outcomes)
    assert len([n for n in outcomes[0].notices if "resumes with the residuals of step 3" in n]) == 1
    assert {name.ordinal for name in runs.names()} == {0} and runs.steps(0) == runs.steps(1) == [3, 4, 6]


def test_updates_that_torch_does_not_count_are_counted(tmp_path):
    runs = Runs(tmp_path)
    uninterrupted = hash_of(runs(6, state=False, by_data=True))
    hash_of(runs(5, by_data=True, save_at=4))
    resumed = runs.resumed(6, by_data=True)
    assert hash_of(resumed) == uninterrupted and "of step 4" in line(resumed)


def test_step_without_update_is_not_saved_at_exit(tmp_path):
    runs = Runs(tmp_path)
    hash_of(runs(6, skip=[3, 5]))  # as a GradScaler skips; the state after step 4 waits for the update of step 5
    assert runs.steps(0) == runs.steps(1) == [2, 5]
    for ends in ("before the update", "within backward"):
        shutil.rmtree(runs.states)
        hash_of(runs(3, ends=ends))
        assert runs.steps(0) == [2], ends


def test_one_rank_with_unusable_state_is_reported(tmp_path):
    """Damaged anywhere, gone, another rank's: no rank loads, and all of them train on from zero residuals."""
    runs = Runs(tmp_path)
    hash_of(runs(5, save_at=4))
    from_zero = hash_of(runs.resumed(6, state=False))
    kept = tmp_path / "kept"
    shutil.copytree(runs.states, kept)

    def resumed():
        outcomes = runs.resumed(6)
        assert hash_of(outcomes) == from_zero
        shutil.rmtree(runs.states)
        shutil.copytree(kept, runs.states)
        return line(outcomes)

    path = runs.path(1, 4)
    damaged = bytearray(path.read_bytes())
    content = files.load(path)
    tensor = max(content["state"]["tensors"].values(), key=lambda t: t.numel())
    at = damaged.index(bytes(tensor.view(torch.uint8).tolist()))
    damaged[at + 2] ^= 1  # in the middle of a residual
    path.write_bytes(damaged)
    assert "rank 1: step 4 is refused: " in (said := resumed()) and "damaged" in said
    path.unlink()
    assert "start at zero: rank 1: no state in" in resumed()
    shutil.copy(runs.path(0, 4), path)
    assert "rank 1: step 4 is refused: " in resumed()


def test_states_of_other_settings_are_refused(tmp_path):
    runs = Runs(tmp_path)
    hash_of(runs(5, save_at=4))
    shutil.copytree(runs.states, tmp_path / "kept")
    for more, said in [({"spec": "topk:ratio=0.1"}, "step 4 is refused: "), ({"world": 3}, "are for 2 ranks")]:
        outcomes = runs.resumed(5, **more)
        shutil.rmtree(runs.states)
        shutil.copytree(tmp_path / "kept", runs.states)
        hash_of(outcomes)
        assert "start at zero: " in line(outcomes) and said in line(outcomes), line(outcomes)


def test_rank_without_state_is_reported(tmp_path):
    runs = Runs(tmp_path)
    plain = hash_of(runs(4, state=False))
    options = {"spec": runs.spec, "small_elements": 64}
    script = tmp_path / "differ.py"  # --state on rank 0 alone
    script.write_text("import os, runpy, sys\n"
                      f"sys.argv = ['laconic.run', '--spec', '{options['spec']}', '--small-elements', '64']\n"
                      f"if os.environ['RANK'] == '0': sys.argv += ['--state', {str(runs.states)!r}]\n"
                      f"sys.argv += [{str(runs.script)!r}, '{{\"steps\": 4}}']\n"
                      "runpy.run_module('laconic.run', run_name='__main__', alter_sys=True)\n")
    outcomes = launch([script], tmp_path)
    assert hash_of(outcomes) == plain
    assert "rank 1 runs without --state: no rank saves or loads state" in "\n".join(outcomes[0].notices)
    assert not runs.states.exists() or runs.names() == []


def test_unusable_folder_is_reported(tmp_path):
    runs = Runs(tmp_path)
    plain = hash_of(runs(4, state=False))
    runs.states.write_text("a file")
    outcomes = runs(4)
    assert hash_of(outcomes) == plain
    for rank, outcome in enumerate(outcomes):
        assert len([n for n in outcome.notices if f"rank {rank}: --state {runs.states} cannot be used: " in n]) == 1
    assert "start at zero" in outcomes[0].err


def test_full_disk_is_reported(tmp_path):
    runs = Runs(tmp_path)
    plain = hash_of(runs(6, state=False))
    runs.script.write_text("import resource, signal\n"
                           "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
                           "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))\n" + SCRIPT)
    outcomes = runs(6)
    assert hash_of(outcomes) == plain
    for rank, outcome in enumerate(outcomes):
        warnings = [n for n in outcome.notices if "was not saved" in n]
        assert len(warnings) == 1 and f"rank {rank}: the state of step 2 was not saved in {runs.states}: " in warnings[0]
    assert list(runs.states.iterdir()) == []


# ---- without ranks ----

def test_card_fits_and_keeps_its_reason():
    keys = [(10**9, 10**9 + i) for i in range(4)]
    for reason in ("", "x" * 2000, "\N{GRINNING FACE}" * 500, '"' * 900):
        text = state_folder._card(10**9, keys, reason)
        assert len(text.encode()) <= 500
        ordinal, back, shortened = json.loads(text)
        assert [tuple(k) for k in back] == keys and reason.startswith(shortened) and (len(shortened) > 25 or not reason)


def test_reasons_are_readable():
    keeper = state_folder.Keeper.__new__(state_folder.Keeper)
    keeper._folder, keeper._model = "states", "ab" * 8
    other = state_folder.Name("00ff" * 4, 0, 0, 2, 8, "ab" * 16)
    assert keeper._nothing([(other, "path")], []) == "the states in states are for other models"
    assert state_folder._why(["", ""]) == "no state is from the same step on all ranks"
    assert state_folder._why(["", "gone", "gone"]) == "rank 1, 2: gone"


def test_file_names_are_parsed():
    name = state_folder.Name("00ff" * 4, 1, 12, 64, 123456789, "ab" * 16)
    assert str(state_folder.Name.parse(str(name))) == str(name)
    for other in (str(name) + files.PARTIAL, "x" + str(name), str(name).replace("rank", "rang"), "notes.txt"):
        assert state_folder.Name.parse(other) is None


@pytest.mark.parametrize(("ratio", "shown"), [(30.52, "30.5:1"), (0.6, "0.60:1"), (0.004, "0.004:1")])
def test_summary_is_accurate(ratio, shown):
    stats = {"steps": 3, "wire_bytes": 10, "ratio": ratio, "encode_seconds": 0.0, "wire_seconds": 0.0, "decode_seconds": 0.0}
    text = automatic._summary(stats)
    assert shown in text and ("more than without compression" in text) == (ratio < 1)
    assert "nothing sent" in automatic._summary({**stats, "wire_bytes": 0})
