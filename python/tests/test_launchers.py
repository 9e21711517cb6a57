# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""laconic.run: processes that the script starts, every kind of wrapper, and what it says when there is nothing to attach to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from launches import environment_for, launch  # noqa: E402
from ranks import free_port  # noqa: E402

import laconic  # noqa: E402

BOOTSTRAP = Path(laconic.__file__).parent / "launch" / "_bootstrap"

# Shared by all scripts: a model that a codec takes, plain updates, a report of rank and parameters.
COMMON = r'''
import copy
import gc
import hashlib
import json
import os
import pickle
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def network():
    torch.manual_seed(0)
    return torch.nn.Linear(80, 80)


def train(model, rank, steps=3):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        model(torch.randn(4, 80, generator=generator)).square().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None


def report(model, **more):
    digest = hashlib.sha256(b"".join(bytes(p.detach().view(-1).view(torch.uint8).tolist()) for p in model.parameters()))
    line = {"rank": dist.get_rank(), "hash": digest.hexdigest(), **more}
    sys.stdout.write(json.dumps(line) + "\n")  # in one piece: ranks share a pipe
    sys.stdout.flush()


def rank_of(rank=None, port=None):
    if rank is not None:
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    seconds = int(os.environ.get("TIMEOUT", "60"))
    import datetime

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
    os.chdir("/")
    ddp = DistributedDataParallel(network())
    train(ddp, dist.get_rank())
    report(ddp)
    dist.barrier()
    return ddp
'''

STARTS = COMMON + r'''
if __name__ == "__main__":
    how, port = sys.argv[1], sys.argv[2]
    if how == "spawn":
        import torch.multiprocessing

        torch.multiprocessing.spawn(rank_of, (port,), nprocs=2)
    elif how.startswith("fork"):
        import multiprocessing

        context = multiprocessing.get_context("fork")
        target, more = (rank_of, (port,)) if how == "fork" else (train, (0,))
        children = [context.Process(target=target, args=(network() if target is train else rank, *more)) for rank in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        sys.exit(max(abs(child.exitcode) for child in children))
    elif how == "rank":
        try:
            import torch._dynamo  # DDP does, and it takes longer than TIMEOUT where much else runs
        except ImportError:
            pass
        open(__file__ + ".here", "w").close()
        rank_of(int(sys.argv[3]), port)
    else:
        flags = {"popen": [], "isolated": ["-I"]}[how]
        child = subprocess.Popen([sys.executable, *flags, __file__, "rank", port, "1"])
        while not os.path.exists(__file__ + ".here") and child.poll() is None:
            time.sleep(0.05)
        try:
            kept = rank_of(0, port)
        finally:
            status = child.wait()
        sys.exit(status)
'''

KINDS = COMMON + r'''
import laconic


def main(kind):
    dist.init_process_group("gloo")
    rank, ddp = dist.get_rank(), None
    if kind == "replicate":
        from torch.distributed._composable.replicate import replicate

        model = replicate(network())
        train(model, rank)
        report(model, spec=laconic.handles()[0].spec)
        return
    ddp = DistributedDataParallel(network())
    if kind in ("pickle", "copy"):
        again = (lambda m: pickle.loads(pickle.dumps(m))) if kind == "pickle" else copy.deepcopy
        before = len(pickle.dumps(ddp))
        ddp = again(ddp)
        train(ddp, rank)
        grown = len(pickle.dumps(ddp)) - before
        first, ddp = laconic.handle_of(ddp), again(ddp)
        assert laconic.handle_of(ddp) is None
        train(ddp, rank)
        second = laconic.handle_of(ddp)
        report(ddp, specs=[first.spec, second.spec], different=first is not second, grown=grown,
               residual=4 * 80 * 80, steps=[first.step, second.step])
        return
    if kind == "stubborn":
        told = []
        for _ in range(2):
            try:
                train(ddp, rank, 1)
            except laconic.LaconicError as error:
                told.append(error.name)
        report(ddp, told=told)
        return
    compiled = torch.compile(ddp, backend="eager") if kind == "compiled" else ddp
    train(compiled, rank)
    report(ddp, attached=laconic.handle_of(ddp) is not None)


if __name__ == "__main__":
    main(sys.argv[1])
'''

NOTHING = COMMON + r'''
def main(kind):
    if kind == "help":
        import argparse

        argparse.ArgumentParser().parse_args(["--help"])
    if kind in ("alone", "leaves"):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(1, 80)).sum().backward()
        optimizer.step()
        if kind == "leaves":
            sys.exit(0)
        return
    if kind == "fails":
        raise ValueError("the script's own trouble")
    dist.init_process_group("gloo")
    rank, model = dist.get_rank(), network()
    if kind == "fully_shard":
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
        model(torch.ones(1, 80)).sum().backward()
    if kind == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        FullyShardedDataParallel(model, device_id=torch.device("cpu"))(torch.ones(1, 80)).sum().backward()
    if kind == "unused":
        train(DistributedDataParallel(model), rank)
        with torch.no_grad():
            DistributedDataParallel(network())(torch.ones(1, 80))
        child = os.fork()
        if child == 0:
            sys.exit()  # has nothing to say and nothing to save
        os.waitpid(child, 0)
    if kind == "workers":
        ddp = DistributedDataParallel(model)
        loader = torch.utils.data.DataLoader(list(range(4)), num_workers=2, multiprocessing_context="fork")
        train(ddp, rank)
        assert len(list(loader)) == 4
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
'''


def written(folder, text):
    path = folder / "train.py"
    path.write_text(text)
    return path


def under_run(script, *arguments, options=(), spec="3lc", outer=(), **more):
    return launch([*outer, "-m", "laconic.run", "--spec", spec, *options, script, *arguments], script.parent, **more)


def reports(outcome):
    found = [json.loads(line) for line in outcome.out.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda report: report["rank"])


def one_line_start(outcome, spec="3lc"):
    """Nothing was said but what attach says, by one rank."""
    assert len(outcome.notices) == 1 and outcome.notices[0].startswith(f"laconic: {spec} on 1 of 2 tensors"), outcome.err


# ---- processes that the script starts ----

@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    """The parameters' hash of STARTS with 3lc and without."""
    script = written(tmp_path_factory.mktemp("alone"), KINDS)
    both = under_run(script, "ddp"), launch([script, "ddp"], script.parent)
    hashes = [{reports(o)[0]["hash"] for o in outcomes} for outcomes in both]
    assert [len(h) for h in hashes] == [1, 1] and hashes[0] != hashes[1]
    return hashes[0].pop(), hashes[1].pop()


def start(tmp_path, how, argv=("-m", "laconic.run", "--spec", "3lc"), **more):
    script = written(tmp_path, STARTS)
    return launch([*argv, script, how, free_port()], tmp_path, world=1, daemon=False, **more)[0]


def test_torch_spawned_ranks_attach(tmp_path, compressed):
    outcome = start(tmp_path, "spawn", ["-m", "laconic.run", "--spec", "3lc", "--summary"])
    assert outcome.code == 0, outcome.err
    assert [r["hash"] for r in reports(outcome)] == [compressed[0]] * 2
    assert len(outcome.notices) == 2 and "3lc on 1 of 2" in outcome.notices[0] and "3 steps" in outcome.notices[1]


def test_forked_ranks_attach(tmp_path, compressed):
    """Such processes run no atexit."""
    outcome = start(tmp_path, "fork", ["-m", "laconic.run", "--spec", "3lc", "--summary", "--state", "states"], cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert [r["hash"] for r in reports(outcome)] == [compressed[0]] * 2
    assert len(outcome.notices) == 3 and "3lc on 1 of 2" in outcome.notices[0] and "3 steps" in outcome.notices[2]
    assert sorted(name.split("-")[2] for name in os.listdir(tmp_path / "states")) == ["rank0of2", "rank1of2"]


def test_launcher_processes_that_are_no_ranks_are_ignored(tmp_path):
    outcome = start(tmp_path, "fork_alone")
    assert len(outcome.notices) == 1 and "nothing was compressed: the script ran" in outcome.notices[0], outcome.err


def test_forked_child_leaves_marker_and_process_removes_it():
    code = """
import json, os, sys
from laconic import run
from laconic.launch import automatic
automatic.start(run._parse(["train.py"]))
sign = json.loads(os.environ["LACONIC_RUN"])["met"]
open(sign, "w").close()
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
print(os.path.exists(sign), sign)
"""
    there, sign = interpreter(code, BOOTSTRAP.parents[2]).stdout.split()
    assert there == "True" and not os.path.exists(sign)


def test_subprocess_ranks_obey_kill_switch(tmp_path, compressed):
    outcome = start(tmp_path, "popen", LACONIC_DISABLE="1")
    assert outcome.code == 0, outcome.err
    assert [r["hash"] for r in reports(outcome)] == [compressed[1]] * 2 and outcome.notices == []


def test_unreached_rank_is_named(tmp_path):
    outcome = start(tmp_path, "isolated", TIMEOUT="15")
    assert outcome.code != 0 and "rank 1 did not attach within 15 s: is it running without laconic?" in outcome.err


def test_torchrun_ranks_attach(tmp_path, compressed):
    """Their models are there to the end of the process."""
    script = written(tmp_path, STARTS)
    script.write_text(STARTS.replace('how, port = sys.argv[1], sys.argv[2]', 'kept = rank_of(); sys.exit()'))
    command = ["-m", "laconic.run", "--spec", "3lc", "--summary", "--state", tmp_path / "states", "-m", "torch.distributed.run",
               "--nproc_per_node", "2", "--master_addr", "127.0.0.1", "--master_port", free_port(), script]
    outcome = launch(command, tmp_path, world=1, daemon=False)[0]
    assert outcome.code == 0, outcome.err
    assert [r["hash"] for r in reports(outcome)] == [compressed[0]] * 2
    assert len(outcome.notices) == 3 and "3lc on 1 of 2" in outcome.notices[0] and "3 steps" in outcome.notices[2]
    assert sorted(name.split("-")[2] for name in os.listdir(tmp_path / "states")) == ["rank0of2", "rank1of2"]


def test_inner_run_wins(tmp_path):
    script = written(tmp_path, KINDS)
    outer = ["-m", "laconic.run", "--spec", "topk", "--summary"]
    outcomes = under_run(script, "ddp", spec="3lc", outer=outer)
    one_line_start(outcomes[0])  # one finder, one attach, no summary
    assert outcomes[1].notices == [] and reports(outcomes[0])[0]["hash"] == reports(under_run(script, "ddp")[0])[0]["hash"]


def test_two_runs_in_one_process_log_one_line(tmp_path):
    outer = ["-m", "laconic.run", "--spec", "topk"]
    assert len(under_run(written(tmp_path, NOTHING), "alone", world=1, outer=outer)[0].notices) == 1


# ---- the start of an interpreter under LACONIC_RUN ----

def interpreter(code, *folders, bootstrap=BOOTSTRAP, **variables):
    path = os.pathsep.join(map(str, [bootstrap, *folders]))
    done = subprocess.run([sys.executable, "-c", code], env={**environment_for(**variables), "PYTHONPATH": path}, cwd="/",
                          capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done


SEEN = """
import sys
loaded = sorted(sys.modules)
import json
print(json.dumps({"path": sys.path, "ours": [f for f in sys.meta_path if hasattr(f, "watches_for_laconic")] != [],
                  "modules": loaded, "mark": getattr(sys, "mark", None)}))
"""


def test_next_sitecustomize_runs_unchanged(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.mark = __name__, __file__, sys.modules[__name__].__file__\n")
    for variables in ({"LACONIC_RUN": "{}"}, {}):
        done = interpreter(SEEN, tmp_path, **variables)
        seen = json.loads(done.stdout)
        assert seen["mark"] == ["sitecustomize", str(tmp_path / "sitecustomize.py"), str(tmp_path / "sitecustomize.py")]
        assert str(BOOTSTRAP) not in seen["path"] and str(tmp_path) in seen["path"]
        assert seen["ours"] == bool(variables) and done.stderr == ""


def test_interpreter_without_torch_loads_nothing():
    with_it, without = (set(json.loads(interpreter(SEEN, **v).stdout)["modules"]) for v in ({"LACONIC_RUN": "{}"}, {}))
    assert with_it - without == {"laconic_imports"}


def test_import_hook_is_installed_once():
    more = "from laconic.launch._bootstrap import laconic_imports as ours, sitecustomize\nours.install()\nimport sys\n"
    done = interpreter(more + "print(sum(hasattr(f, 'watches_for_laconic') for f in sys.meta_path))",
                       BOOTSTRAP.parents[2], LACONIC_RUN="{}")
    assert done.stdout.strip() == "1"


def test_broken_sitecustomize_is_reported_by_python(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import no_such_module\n")
    done = interpreter(SEEN, tmp_path, LACONIC_RUN="{}")
    assert "no_such_module" in done.stderr and "laconic" not in done.stderr
    assert json.loads(done.stdout)["ours"]


def test_damaged_bootstrap_stops_no_interpreter(tmp_path):
    (tmp_path / "sitecustomize.py").write_text((BOOTSTRAP / "sitecustomize.py").read_text())
    (tmp_path / "laconic_imports.py").write_text("1 / 0\n")
    done = interpreter(SEEN, bootstrap=tmp_path, LACONIC_RUN="{}")
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("laconic: nothing will be compressed in process ")
    assert "ZeroDivisionError" in done.stderr and str(tmp_path) not in json.loads(done.stdout)["path"]


def test_unreadable_options_stop_no_import(tmp_path):
    for parent in ("torch", "torch/nn", "torch/nn/parallel", "torch/optim"):
        (tmp_path / parent).mkdir()
        (tmp_path / parent / "__init__.py").write_text("")
    (tmp_path / "torch/nn/parallel/distributed.py").write_text("class DistributedDataParallel: pass")
    (tmp_path / "torch/optim/optimizer.py").write_text("class Optimizer: pass")
    done = interpreter("import torch.nn.parallel.distributed, torch.optim.optimizer", tmp_path, LACONIC_RUN='{"spec": ')
    assert len(done.stderr.splitlines()) == 1 and "LACONIC_RUN was changed after laconic.run set it" in done.stderr


# ---- every kind of wrapper ----

def kinds(tmp_path, kind, **more):
    outcomes = under_run(written(tmp_path, KINDS), kind, **more)
    assert [o.code for o in outcomes] == [0, 0], outcomes[0].err
    found = [reports(o)[0] for o in outcomes]
    assert found[0]["hash"] == found[1]["hash"]
    return found[0], outcomes


@pytest.mark.parametrize("kind", ["pickle", "copy"])
def test_wrappers_are_pickled_and_copied(tmp_path, kind):
    """Before the first forward pass and after it; the copy trains on compressed, and begins without residuals."""
    report, outcomes = kinds(tmp_path, kind)
    assert report["specs"] == ["3lc", "3lc"] and report["different"] and report["steps"] == [3, 3]
    assert report["grown"] < report["residual"] / 4
    assert len(outcomes[0].notices) == 2 and outcomes[1].notices == []


def test_compiled_wrapper_trains_the_same(tmp_path):
    compiled, outcomes = kinds(tmp_path, "compiled")
    one_line_start(outcomes[0])
    assert compiled["hash"] == kinds(tmp_path, "ddp")[0]["hash"]


def test_replicated_module_attaches(tmp_path, compressed):
    pytest.importorskip("torch.distributed._composable.replicate", reason="this torch has no replicate()")
    report, outcomes = kinds(tmp_path, "replicate")
    one_line_start(outcomes[0])
    assert report["spec"] == "3lc" and report["hash"] == compressed[0]


def test_caught_refusal_does_not_train_uncompressed(tmp_path):
    report, _ = kinds(tmp_path, "stubborn", spec="no_such_codec")
    assert report["told"] == ["unknown_codec"] * 2


# ---- nothing to attach to ----

@pytest.mark.parametrize(("kind", "world", "said"), [
    ("alone", 1, "ran in one process, without torch.distributed"),
    ("leaves", 1, "ran in one process, without torch.distributed"),
    ("alone", 2, "ran in one process, without torch.distributed"),
    ("group", 2, "no model was wrapped in DistributedDataParallel"),
    ("unused", 2, "1 of 2 DistributedDataParallel models: no forward pass through the wrapper recorded gradients"),
    ("fully_shard", 2, "fully_shard(): a 1-D mesh does not tell replicas apart: laconic.attach(model, spec, replicate=mesh)"),
    ("fsdp", 2, "FullyShardedDataParallel: FSDP1 has no all-reduce between replicas"),
])
def test_unattached_model_is_reported_once(tmp_path, kind, world, said):
    outcomes = under_run(written(tmp_path, NOTHING), kind, world=world)
    assert [o.code for o in outcomes] == [0] * world, outcomes[0].err
    last = [line for line in outcomes[0].notices if "compressed: " in line]
    assert len(last) == 1 and last[0] == outcomes[0].notices[-1] and said in last[0]
    assert len(outcomes[0].notices) == (2 if kind == "unused" else 1)
    assert all(o.notices == [] for o in outcomes[1:])


@pytest.mark.parametrize(("kind", "world", "code"), [("help", 1, 0), ("fails", 1, 1), ("workers", 2, 0)])
def test_no_false_alarm_is_raised(tmp_path, kind, world, code):
    outcomes = under_run(written(tmp_path, NOTHING), kind, world=world, daemon=False)
    assert [o.code for o in outcomes] == [code] * world
    assert [len(o.notices) for o in outcomes] == ([1, 0] if kind == "workers" else [0]), outcomes[0].err


def test_kill_switch_silences_warnings(tmp_path):
    assert under_run(written(tmp_path, NOTHING), "alone", world=1, LACONIC_DISABLE="1")[0].notices == []
