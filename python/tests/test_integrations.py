# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The callbacks against stand-ins for the frameworks: what these show to a callback. `make users` has the real ones."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from training import Net, digest, step_once, unsealed  # noqa: E402

import laconic  # noqa: E402

OPTIONS = {"seed": 3, "small_elements": 64}


class Callback:
    """Base class of callbacks, in transformers and in Lightning."""


def _module(name: str, **names) -> None:
    module = sys.modules[name] = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(names)


def callbacks():
    """(laconic.integrations.transformers, .lightning) over the stand-ins, in a rank's process."""
    kept = {name: sys.modules.get(name) for name in ("transformers", "lightning", "lightning.pytorch")}
    _module("transformers", TrainerCallback=Callback)
    _module("lightning", __path__=[])
    _module("lightning.pytorch", Callback=Callback)
    try:
        return tuple(importlib.import_module(f"laconic.integrations.{name}") for name in ("transformers", "lightning"))
    finally:  # these processes serve other tests, too
        for name, module in kept.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


@contextlib.contextmanager
def said():
    """The lines that laconic says in here."""
    lines, stream = [], io.StringIO()
    with contextlib.redirect_stderr(stream):
        yield lines
    lines += [line.removeprefix("laconic: ") for line in stream.getvalue().splitlines() if line.startswith("laconic: ")]


def model(width=48):
    torch.manual_seed(7)
    return Net(width)


class Trainer:
    """Hugging Face's: wraps the model, calls callbacks with the model inside, makes checkpoint folders on all ranks."""

    def __init__(self, net, callback, folder, *, optimizer="SGD", whose=None, **arguments):
        """`whose`: the rank from whose checkpoint all ranks resume, as they do in Hugging Face's; else each has its own."""
        self.net, self.callback, self.kind, self.whose = net, callback, optimizer, whose
        self.args = types.SimpleNamespace(**{"output_dir": str(folder), "resume_from_checkpoint": None, "save_only_model": False,
                                             "deepspeed": None, "fsdp": [], **arguments})
        self.wrapped = self.optimizer = None

    def train(self, until, *, resume=None, save_at=(), search=False):
        state = types.SimpleNamespace(global_step=0, is_hyper_param_search=search)
        self.wrapped = self.wrapped or DistributedDataParallel(self.net)
        if self.optimizer is None and self.kind == "AdamW":
            self.optimizer = torch.optim.AdamW(self.wrapped.parameters(), lr=0.01)
        self.optimizer = self.optimizer or torch.optim.SGD(self.wrapped.parameters(), lr=0.05, momentum=0.9)
        if resume is not None:
            saved = torch.load(Path(resume, f"stub-{dist.get_rank() if self.whose is None else self.whose}.pt"))
            self.net.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            state.global_step = saved["step"]
        self.callback.on_train_begin(self.args, state, None, model=self.net, optimizer=self.optimizer)
        for step in range(state.global_step, until):
            step_once(self.wrapped, self.optimizer, dist.get_rank(), step)
            state.global_step = step + 1
            if state.global_step in save_at:
                folder = Path(self.args.output_dir, f"checkpoint-{state.global_step}")
                folder.mkdir(parents=True, exist_ok=True)
                torch.save({"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "step": state.global_step},
                           folder / f"stub-{dist.get_rank()}.pt")
                self.callback.on_save(self.args, state, None)
        return digest(self.net)


def hf(spec="3lc", *, folder, until=8, resume=None, save_at=(), arguments=None, search=False, **options):
    """One run of a Trainer: {"hash", "lines", "files", "step"}."""
    transformers, _ = callbacks()
    callback = transformers.LaconicCallback(spec, **{**OPTIONS, **options})
    with said() as lines:
        trainer = Trainer(model(), callback, folder, **(arguments or {}))
        end = trainer.train(until, resume=resume and Path(folder, resume), save_at=save_at, search=search)
    dist.barrier()
    files = sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("laconic-rank-*"))
    return {"hash": end, "lines": lines, "files": files, "step": getattr(callback.handle, "step", None)}


def zero_lines(outcomes) -> list[str]:
    """Lines of rank 0 about residuals; the other ranks log none."""
    assert all(not outcome["lines"] for outcome in outcomes[1:]), outcomes
    return [line for line in outcomes[0]["lines"] if "residuals" in line]


@pytest.mark.parametrize("spec", ["3lc", "topk:ratio=0.05"])
def test_resumed_trainer_equals_the_uninterrupted_one(pools, tmp_path, spec):
    whole = pools(2).run(hf, spec=spec, folder=tmp_path, save_at=(4,))
    assert whole[0]["files"] == ["checkpoint-4/laconic-rank-0.pt", "checkpoint-4/laconic-rank-1.pt"]
    resumed = pools(2).run(hf, spec=spec, folder=tmp_path, resume="checkpoint-4")
    assert zero_lines(resumed) == ["residuals continue at step 4"]
    assert len({outcome["hash"] for outcome in whole + resumed}) == 1
    assert resumed[1]["step"] == 8


@pytest.mark.parametrize(("every", "saved"), [(1, 4), (3, 3), (3, 4)])
def test_resumed_trainer_with_outer_steps_equals_uninterrupted(pools, tmp_path, every, saved):
    """Each rank has moments of its own, and between two rounds parameters: all resume from rank 0's checkpoint."""
    run = {"every": every, "arguments": {"optimizer": "AdamW", "whose": 0}, "until": 9, "folder": tmp_path}
    whole = pools(2).run(hf, save_at=(saved,), **run)
    assert whole[0]["files"] == [f"checkpoint-{saved}/laconic-rank-{rank}.pt" for rank in (0, 1)]
    assert any("a round after every" in line for line in whole[0]["lines"])
    resumed = pools(2).run(hf, resume=f"checkpoint-{saved}", **run)
    assert zero_lines(resumed) == [f"residuals continue at step {saved}"]
    assert len({outcome["hash"] for outcome in whole + resumed}) == 1
    assert resumed[1]["step"] == 9


def test_callbacks_warn_of_momentum_kept_twice(pools, tmp_path):
    """The stand-ins' SGD has momentum."""
    for run in (hf, fit_once):
        found = pools(2).run(run, spec="dgc:ratio=0.05", folder=tmp_path, until=1)
        warned = [[line for line in outcome["lines"] if "twice" in line] for outcome in found]
        assert len(warned[0]) == 1 and not warned[1]
        assert "dgc:ratio=0.05 keeps momentum, and SGD has momentum=0.9" in warned[0][0]
        for without in ({"spec": "3lc"}, {"spec": "dgc:ratio=0.05", "every": 1}):  # of changes, a codec's momentum is another than the optimizer's
            assert not any("twice" in line for outcome in pools(2).run(run, folder=tmp_path, until=1, **without) for line in outcome["lines"])


def lose(folder):
    (folder / "checkpoint-4" / "laconic-rank-1.pt").unlink()


def tear(folder):
    path = folder / "checkpoint-4" / "laconic-rank-1.pt"
    path.write_bytes(path.read_bytes()[:1000])


def change_model(folder):
    for rank in (0, 1):
        path = folder / "checkpoint-4" / f"stub-{rank}.pt"
        saved = torch.load(path)
        saved["model"]["last.weight"][0, 0] += 1
        torch.save(saved, path)


def swap(folder):
    first, second = (folder / "checkpoint-4" / f"laconic-rank-{rank}.pt" for rank in (0, 1))
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)


def put_text(folder):
    torch.save({"something": 1}, folder / "checkpoint-4" / "laconic-rank-0.pt")


@pytest.mark.parametrize("harm, words", [
    (lose, ["rank 1: ", "there is no "]),
    (tear, ["rank 1: ", "damaged"]),
    (change_model, ["rank 0, 1: ", "other parameters"]),
    (swap, ["rank 0, 1: ", "laconic-rank-0.pt: ", "rank 1"]),
    (put_text, ["rank 0: ", "not a state that LaconicCallback saved"]),
], ids=["lost", "torn", "other-model", "swapped", "foreign"])
def test_all_ranks_load_or_none_and_rank_0_reports_why(pools, tmp_path, harm, words):
    pools(2).run(hf, folder=tmp_path, until=4, save_at=(4,))
    harm(tmp_path)
    resumed = pools(2).run(hf, folder=tmp_path, resume="checkpoint-4")
    [line] = zero_lines(resumed)
    assert line.startswith("residuals start at zero: ") and all(word in line for word in words), line
    assert [outcome["step"] for outcome in resumed] == [4, 4]  # counted from the attach: nothing was loaded, on either rank
    assert resumed[0]["hash"] == resumed[1]["hash"]


def test_different_spec_and_steps_are_reported(pools, tmp_path):
    pools(2).run(hf, folder=tmp_path, until=4, save_at=(4,))
    [line] = zero_lines(pools(2).run(hf, spec="topk:ratio=0.05", folder=tmp_path, resume="checkpoint-4"))
    assert "3lc" in line and "topk" in line

    path = tmp_path / "checkpoint-4" / "laconic-rank-1.pt"
    content = torch.load(path)
    content["state"] = {**unsealed(content["state"]), "step": 3}
    torch.save(content, path)
    [line] = zero_lines(pools(2).run(hf, folder=tmp_path, resume="checkpoint-4"))
    assert "not saved at the same step" in line


def test_folder_to_resume_from_may_be_named(pools, tmp_path):
    pools(2).run(hf, folder=tmp_path, until=4, save_at=(4,))
    here = str(tmp_path / "checkpoint-4")
    elsewhere = {"output_dir": str(tmp_path / "new")}
    [line] = zero_lines(pools(2).run(hf, folder=tmp_path, resume="checkpoint-4", arguments=elsewhere))
    assert "rank 0, 1: there is no " in line and "new/checkpoint-4" in line
    named = {**elsewhere, "resume_from_checkpoint": here}
    for options in ({"arguments": named}, {"arguments": elsewhere, "resume_from": here}):
        outcomes = pools(2).run(hf, folder=tmp_path, resume="checkpoint-4", **options)
        assert zero_lines(outcomes) == ["residuals continue at step 4"]


def test_unwritable_state_is_reported_and_training_continues(pools, tmp_path):
    (tmp_path / "checkpoint-4" / "laconic-rank-1.pt" / "in the way").mkdir(parents=True)
    outcomes = pools(2).run(hf, folder=tmp_path, save_at=(4,))
    [line] = [line for line in outcomes[0]["lines"] if "not saved" in line]
    assert "state of rank 1 " in line and "IsADirectoryError" in line
    assert outcomes[0]["step"] == 8 and outcomes[0]["hash"] == outcomes[1]["hash"]


def after_a_failure(folder):
    transformers, _ = callbacks()
    with said() as lines:
        trainer = Trainer(model(), transformers.LaconicCallback("3lc", **OPTIONS), folder)
        trainer.train(2)
        trainer.callback.handle.worker.exchanges.broken = laconic.LaconicError(62, "engine_failed", "a peer is gone")
        Path(folder, "checkpoint-2").mkdir(exist_ok=True)
        trainer.callback.on_save(trainer.args, types.SimpleNamespace(global_step=2), None)
    return Path(folder, "checkpoint-2", f"laconic-rank-{dist.get_rank()}.pt").is_file(), lines


def test_survivor_still_saves(pools, tmp_path):
    for saved, lines in pools(2).run(after_a_failure, folder=str(tmp_path)):
        assert saved and not any("not saved" in line for line in lines)


def test_models_without_optimizer_and_searches_have_no_state(pools, tmp_path):
    outcomes = pools(2).run(hf, folder=tmp_path, until=2, save_at=(2,), arguments={"save_only_model": True})
    assert outcomes[0]["files"] == []
    outcomes = pools(2).run(hf, folder=tmp_path, until=2, save_at=(2,), search=True)
    assert outcomes[0]["files"] == [] and any("hyperparameter search" in line for line in outcomes[0]["lines"])


def unwrapped(which, arguments=None):
    """on_train_begin where the ranks in `which` have no wrapper: the lines, whether something is attached."""
    transformers, _ = callbacks()
    net = model()
    ddp = DistributedDataParallel(net)
    if dist.get_rank() in which:
        net = model()
    args = types.SimpleNamespace(output_dir="", resume_from_checkpoint=None, save_only_model=False, deepspeed=None, fsdp=None)
    args.__dict__.update(arguments or {})
    callback = transformers.LaconicCallback("3lc")
    with said() as lines:
        callback.on_train_begin(args, types.SimpleNamespace(global_step=0), None, model=net)
    callback.on_save(args, types.SimpleNamespace(global_step=1), None)
    return lines, callback.handle is not None, ddp is not None


@pytest.mark.parametrize("arguments, words", [({}, "not wrapped"), ({"fsdp": ["full_shard"]}, "FSDP"),
                                              ({"deepspeed": "config.json"}, "DeepSpeed")])
def test_trainer_without_ddp_is_reported_and_continues(pools, arguments, words):
    (lines, attached, _), (others, *_) = pools(2).run(unwrapped, which=(0, 1), arguments=arguments)
    [line] = lines
    assert line.startswith("nothing is compressed: ") and words in line
    assert not attached and not others


def test_one_process_exchanges_nothing_and_is_informed(pools):
    [(lines, attached, _)] = pools(1).run(unwrapped, which=(0,))
    assert lines == ["one process has nothing to exchange: LaconicCallback does not attach"] and not attached


def test_wrapper_on_some_ranks_only_is_error_on_all(pools):
    for error in pools(2).errors(unwrapped, which=(1,)):
        assert "rank 1 could not attach" in error.message


def trained_again(folder):
    """The same Trainer twice, then another Trainer of the same model, then the first one again."""
    transformers, _ = callbacks()
    net, handles = model(), []
    first = Trainer(net, transformers.LaconicCallback("3lc", **OPTIONS), folder)
    second = Trainer(net, transformers.LaconicCallback("int8", **OPTIONS), folder)
    with said() as lines:
        for trainer in (first, first, second, first):
            trainer.train(2)
            handles.append(trainer.callback.handle)
    return [handles.index(h) for h in handles], [h.spec for h in handles], [h.step for h in handles], lines


def test_every_trainer_keeps_its_handle(pools, tmp_path):
    for same, specs, steps, _ in pools(2).run(trained_again, folder=tmp_path):
        assert same == [0, 0, 2, 0]
        assert [spec.partition(":")[0] for spec in specs] == ["3lc", "3lc", "int8", "3lc"] and steps[0] == 6


def attached_before():
    transformers, _ = callbacks()
    net = model()
    ddp = DistributedDataParallel(net)
    handle = laconic.attach(ddp, "3lc", quiet=True)
    callback = transformers.LaconicCallback("int8")
    with said() as lines:
        callback.on_train_begin(types.SimpleNamespace(output_dir=""), types.SimpleNamespace(global_step=0), None, model=net)
    return callback.handle is handle, lines


def test_attached_model_keeps_its_handle(pools):
    (kept, lines), (_, others) = pools(2).run(attached_before)
    assert kept and not others
    [line] = lines
    assert "already attached with 3lc" in line and "int8" in line


def disabled(folder):
    os.environ["LACONIC_DISABLE"] = "1"
    try:
        wrapped = hf(folder=folder, until=2, save_at=(2,)), hf(folder=folder, until=3, resume="checkpoint-2")
        return wrapped, unwrapped(which=(0, 1))
    finally:
        del os.environ["LACONIC_DISABLE"]


def test_kill_switch_is_silent(pools, tmp_path):
    for (first, second), (lines, *_) in pools(2).run(disabled, folder=tmp_path):
        assert first["lines"] == second["lines"] == lines == [] and first["files"] == []


# ---- Lightning ----------------------------------------------------------------------------------------------------------


class Strategy:
    """Called on all ranks with every checkpoint; rank 0 writes."""

    def __init__(self, net):
        self.model = net

    def save_checkpoint(self, checkpoint, filepath, storage_options=None):
        if dist.get_rank() == 0 and "://" not in str(filepath):
            torch.save(checkpoint, filepath)

    def remove_checkpoint(self, filepath):
        if dist.get_rank() == 0:
            os.unlink(filepath)


class Fit:
    """Lightning's Trainer: wraps the model for each fit, and drops the wrapper afterwards."""

    def __init__(self, net, callback):
        self.net, self.callback, self.step = net, callback, 0
        self.strategy, self.precision_plugin, self.ckpt_path, self.optimizers = Strategy(net), types.SimpleNamespace(), None, []

    def save(self, path, weights_only=False):
        checkpoint = {"model": self.net.state_dict(), "step": self.step}
        if not weights_only:
            checkpoint["optimizer_states"] = [self.optimizer.state_dict()]
        self.strategy.save_checkpoint(checkpoint, path, storage_options=None)
        dist.barrier()

    def fit(self, until, *, ckpt_path=None, save_at=(), ddp=True):
        self.ckpt_path = ckpt_path
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        if ckpt_path is not None:
            saved = torch.load(ckpt_path)
            self.net.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer_states"][0])
            self.step = saved["step"]
        self.optimizers = [self.optimizer]
        if ddp:
            self.strategy.model = DistributedDataParallel(self.net)
        self.callback.on_train_start(self, self.net)
        while self.step < until:
            step_once(self.strategy.model, self.optimizer, dist.get_rank(), self.step)
            self.step += 1
            if self.step in save_at:
                self.save(save_at[self.step])
        self.callback.on_train_end(self, self.net)
        self.strategy.model = self.net
        return digest(self.net)


def fit_once(spec, folder, until, **options):
    _, lightning = callbacks()
    with said() as lines:
        Fit(model(), lightning.LaconicCallback(spec, **OPTIONS, **options)).fit(until)
    return {"lines": lines}


def fitted(folder, name="4.ckpt", spec="3lc"):
    """A run that saves and one that resumes; a second fit; checkpoints after it; what is removed."""
    _, lightning = callbacks()
    state_file = lightning.state_file
    path, after, weights = (str(Path(folder, file)) for file in (name, "after.ckpt", "weights.ckpt"))
    with said() as lines:
        trainer = Fit(model(), lightning.LaconicCallback(spec, **OPTIONS))
        whole = trainer.fit(8, save_at={4: path})
        assert trainer.callback.handle.step == 8 or trainer.callback.handle.closed
        trainer.save(after)
        trainer.save(weights, weights_only=True)
        files = sorted(str(p.relative_to(folder)) for p in Path(folder).glob("*.laconic/*"))
        trainer.fit(10)
        again = trainer.callback.handle.step
        if dist.get_rank() == 0:
            os.symlink(name, Path(folder, "last.ckpt"))
        dist.barrier()
        resumed = [Fit(model(), lightning.LaconicCallback(spec, **OPTIONS)).fit(8, ckpt_path=p)
                   for p in (path, str(Path(folder, "last.ckpt")))]
        Fit(model(), lightning.LaconicCallback(spec, **OPTIONS)).fit(9, ckpt_path=after)
        if dist.get_rank() == 0:
            state_file(path, 2).touch()  # of a larger world, before
        dist.barrier()
        trainer.strategy.remove_checkpoint(path)
    dist.barrier()
    left = sorted(p.name for p in Path(folder).glob("*.laconic"))
    return {"whole": whole, "resumed": resumed, "files": files, "left": left, "again": again, "lines": lines,
            "followed": [trainer.strategy.save_checkpoint.args[1].__name__, trainer.strategy.remove_checkpoint.args[1].__name__]}


@pytest.mark.parametrize("spec", ["3lc", "topk:ratio=0.05"])
def test_resumed_fit_equals_the_uninterrupted_one(pools, tmp_path, spec):
    outcomes = pools(2).run(fitted, folder=str(tmp_path), spec=spec)
    assert zero_lines([outcomes[0], {"lines": []}]) == ["residuals continue at step 4"] * 2 + ["residuals continue at step 8"]
    assert not outcomes[1]["lines"]
    for outcome in outcomes:
        assert outcome["resumed"] == [outcomes[0]["whole"]] * 2
        assert outcome["files"] == [f"{name}.ckpt.laconic/rank-{rank}.pt" for name in ("4", "after") for rank in (0, 1)]
        assert outcome["again"] == 10, "a second fit goes on with the residuals of the first"
        assert outcome["followed"] == ["save_checkpoint", "remove_checkpoint"], "once, however many fits there are"
        assert outcome["left"] == ["after.ckpt.laconic"], "away with its checkpoint"


def fitted_with_outer_steps(folder):
    """A fit that saves between two rounds, one that resumes, and a second fit of the first Trainer."""
    _, lightning = callbacks()
    path = str(Path(folder, "4.ckpt"))

    def made():
        return Fit(model(), lightning.LaconicCallback("3lc", every=3, **OPTIONS))

    with said() as lines:
        trainer = made()
        whole = trainer.fit(9, save_at={4: path})
        resumed = made().fit(9, ckpt_path=path)
        again = trainer.fit(12)
        wrapped = trainer.callback.handle.outer.explain()["every"]
    return whole, resumed, again, wrapped, lines


def test_resumed_fit_with_outer_steps_equals_uninterrupted(pools, tmp_path):
    outcomes = pools(2).run(fitted_with_outer_steps, folder=str(tmp_path))
    (whole, resumed, again, every, lines), other = outcomes
    assert whole == resumed != again and outcomes[1][:3] == (whole, resumed, again) and every == 3
    assert [line for line in lines if "residuals" in line] == ["residuals continue at step 4"] and other[4] == []


def unfit(folder):
    """Another strategy; a checkpoint without states; one in a store of objects."""
    _, lightning = callbacks()
    with said() as other:
        trainer = Fit(model(), lightning.LaconicCallback("3lc"))
        trainer.callback.on_train_start(trainer, trainer.net)
        trainer.callback.on_train_end(trainer, trainer.net)
    path = str(Path(folder, "bare.ckpt"))
    with said() as bare:
        trainer = Fit(model(), lightning.LaconicCallback("3lc", **OPTIONS))
        trainer.optimizer = torch.optim.SGD(trainer.net.parameters(), lr=0.05)
        trainer.save(path)
        trainer.fit(2, ckpt_path=path, save_at={1: "store://bucket/1.ckpt"})
    return other, bare


def test_other_strategies_and_missing_states_are_reported(pools, tmp_path):
    (other, bare), *others = pools(2).run(unfit, folder=str(tmp_path))
    [line] = other
    assert line.startswith("nothing is compressed: ") and "Strategy" in line
    assert ["residuals start at zero: rank 0, 1: there is no" in line for line in bare].count(True) == 1
    assert ["local folders only" in line and "store://bucket/1.ckpt" in line for line in bare].count(True) == 1
    assert others == [([], [])]


def test_laconic_imports_no_framework_and_names_missing_one():
    program = """
import sys
import laconic, laconic.integrations
assert not {"transformers", "lightning", "pytorch_lightning", "torch"} & set(sys.modules)
sys.modules["lightning"] = sys.modules["pytorch_lightning"] = None
try:
    import laconic.integrations.lightning
except ImportError as error:
    print(error)
"""
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280,
                          env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    assert "pip install lightning" in done.stdout
