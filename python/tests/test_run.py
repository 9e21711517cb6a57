# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`python -m laconic.run script.py`: an unmodified script finds everything as if it had been started alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from launches import environment_for, launch  # noqa: E402
from ranks import free_port  # noqa: E402

from laconic import run  # noqa: E402

SCRIPT = r'''
import hashlib
import json
import pickle
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import beside  # a module in the script's folder


class Mine(DistributedDataParallel):
    pass


class Thing:
    """Pickled by its name in __main__."""

    value = 3


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, mode = dist.get_rank(), sys.argv[1] if len(sys.argv) > 1 else ""
    ddp = (Mine if mode == "subclass" else DistributedDataParallel)(torch.nn.Linear(80, 80))
    other = DistributedDataParallel(torch.nn.Linear(80, 80)) if mode == "two" else None
    if mode == "hook":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if mode == "attach":
        import laconic

        laconic.attach(ddp, "int8")
    if mode == "evaluate":
        if rank == 0:
            with torch.no_grad():
                ddp(torch.ones(1, 80))
        dist.barrier()
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        x = torch.randn(4, 80, generator=generator)
        loss = ddp(x).square().mean() + (other(x).square().mean() if other else 0)
        loss.backward()
        with torch.no_grad():
            for p in ddp.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    digest = hashlib.sha256(b"".join(bytes(p.detach().view(torch.uint8).flatten().tolist()) for p in ddp.parameters())).hexdigest()
    report = {"rank": rank, "argv": sys.argv, "name": __name__, "file": __file__, "main": sys.modules["__main__"].Thing is Thing,
              "pickled": pickle.loads(pickle.dumps(Thing())).value, "path": sys.path[0], "hash": digest,
              "isinstance": isinstance(ddp, DistributedDataParallel)}
    sys.stdout.write(json.dumps(report) + "\n")  # in one piece: ranks share a pipe
    sys.stdout.flush()
    dist.barrier()
    if mode == "exit":
        sys.exit(7)
    if mode == "sentence":
        sys.exit("a parting sentence")
    if mode == "fail":
        raise ValueError("the script's own trouble")


if __name__ == "__main__":
    main()
'''


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("")
    return path


def with_laconic(script, *arguments, spec="topk:ratio=0.05", options=(), **more):
    spec_option = ["--spec", spec] if spec else []
    return launch(["-m", "laconic.run", *spec_option, *options, script, *arguments], script.parent, **more)


def alone(script, *arguments, **more):
    return launch([script, *arguments], script.parent, **more)


def same_hash(outcomes):
    assert [o.code for o in outcomes] == [0] * len(outcomes), [o.err for o in outcomes]
    assert len({o.report["hash"] for o in outcomes}) == 1
    return outcomes[0].report["hash"]


# ---- the real launchers, once ----

def torchrun(folder, *arguments, ranks=2):
    command = ["-m", "torch.distributed.run", "--nproc_per_node", ranks, "--master_addr", "127.0.0.1", "--master_port", free_port()]
    return launch([*command, *arguments], folder, world=1, daemon=False)[0]


def test_torchrun_trains_script(script):
    done = torchrun(script.parent, "-m", "laconic.run", "--spec", "3lc:s=1.5", "--summary", script, "--lr", "0.1", "--spec", "its own")
    assert done.code == 0, done.err
    reports = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    assert sorted(r["rank"] for r in reports) == [0, 1] and len({r["hash"] for r in reports}) == 1
    for report in reports:
        assert report["argv"] == [str(script), "--lr", "0.1", "--spec", "its own"]
        assert (report["name"], report["file"], report["path"]) == ("__main__", str(script), str(script.parent))
        assert report["main"] and report["pickled"] == 3
    notices = done.notices
    assert len(notices) == 2, notices  # one line at the start, one at the end, both of rank 0
    assert notices[0].startswith("laconic: 3lc:s=1.5 on 1 of 2 tensors")
    assert "3 steps" in notices[1]


def test_plain_variables_train_script_and_show_traceback(script):
    environment = environment_for(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    done = subprocess.run([sys.executable, "-m", "laconic.run", "--spec", "topk", str(script), "fail"], env=environment,
                          cwd=script.parent, capture_output=True, text=True, timeout=280)
    err = done.stderr
    assert done.returncode == 1
    assert json.loads(done.stdout)["argv"] == [str(script), "fail"]
    assert err.rstrip().endswith("ValueError: the script's own trouble")
    assert f'File "{script}", line {SCRIPT.splitlines().index("    main()") + 1}, in <module>' in err
    assert 'raise ValueError("the script\'s own trouble")' in err
    assert err.count("Traceback (most recent call last)") == 1


# ---- everything else, from a warm process ----

def test_script_finds_what_it_expects(script):
    started = with_laconic(script, "--flag", "value")
    expected = alone(script, "--flag", "value")
    for ours, plain in zip(started, expected):
        ours, plain = ours.report, plain.report
        assert ours.pop("hash") != plain.pop("hash")  # it did compress
        assert ours == plain


@pytest.mark.parametrize(("mode", "code"), [("exit", 7), ("sentence", 1), ("fail", 1)])
def test_exit_codes_are_passed_on(script, mode, code):
    for ours, plain in zip(with_laconic(script, mode), alone(script, mode)):
        assert ours.code == plain.code == code
        last = [[line for line in o.err.splitlines() if line not in o.notices][-1:] for o in (ours, plain)]
        assert last[0] == last[1]


def test_own_hook_of_script_wins(script):
    ours, plain = with_laconic(script, "hook"), alone(script, "hook")
    assert same_hash(ours) == same_hash(plain)
    assert len(ours[0].notices) == 1 and ours[1].notices == []
    assert "fp16_compress_hook" in ours[0].notices[0] and "leaves this model as it is" in ours[0].notices[0]


def test_script_that_attaches_itself_wins(script):
    ours = with_laconic(script, "attach", spec="topk")
    assert same_hash(ours) == same_hash(alone(script, "attach"))
    assert len([n for n in ours[0].notices if "the script attaches laconic itself; laconic.run leaves this model as it is" in n]) == 1
    kept = with_laconic(script, "attach", spec="topk", options=["--state", script.parent / "states"])
    assert len([n for n in kept[0].notices if "laconic.run leaves this model as it is; --state saves nothing for this model" in n]) == 1
    assert not (script.parent / "states").exists()


def test_own_attach_on_one_rank_is_reported(script):
    mixed = script.parent / "mixed.py"
    mixed.write_text("import os, runpy, sys\n"
                     f"sys.argv[1:] = ['--spec', 'int8', {str(script)!r}] if os.environ['RANK'] == '0' else ['attach']\n"
                     "if os.environ['RANK'] == '0':\n"
                     "    runpy.run_module('laconic.run', run_name='__main__', alter_sys=True)\n"
                     f"sys.path.insert(0, {str(script.parent)!r})\n"
                     f"runpy.run_path({str(script)!r}, run_name='__main__')\n")
    outcomes = launch([mixed], script.parent)
    assert [o.code for o in outcomes] == [1, 1]
    assert "rank 1 calls laconic.attach and does not run under laconic.run" in outcomes[0].err
    assert "rank 0 could not attach: it runs under laconic.run" in outcomes[1].err


def test_disabled_is_plain_ddp_bit_for_bit(script):
    ours = with_laconic(script, LACONIC_DISABLE="1", LACONIC_SPEC="3lc")
    assert same_hash(ours) == same_hash(alone(script))
    assert all(o.notices == [] for o in ours)
    assert same_hash(with_laconic(script, "attach", LACONIC_DISABLE="1")) == same_hash(alone(script))


@pytest.mark.parametrize("rank", [0, 1])
def test_kill_switch_on_one_rank_ends_script_on_all(script, rank):
    outcomes = with_laconic(script, per_rank={rank: {"LACONIC_DISABLE": "1"}})
    for outcome in outcomes:
        assert outcome.code == 1
        assert f"LACONIC_DISABLE=1 is set on rank {rank} and not on rank {1 - rank}" in outcome.err.splitlines()[-1]


def test_own_hook_of_script_runs_under_kill_switch(script):
    ours = with_laconic(script, "hook", LACONIC_DISABLE="1")
    assert same_hash(ours) == same_hash(alone(script, "hook")) and all(o.notices == [] for o in ours)


@pytest.mark.parametrize(("option", "variable", "chosen"), [
    (None, "topk:ratio=0.05", "topk:ratio=0.05"), ("int8", "topk:ratio=0.05", "int8"), ("int8", "no such codec", "int8")])
def test_call_overrides_environment(script, option, variable, chosen):
    outcomes = with_laconic(script, spec=option, LACONIC_SPEC=variable)
    assert outcomes[0].notices[0].startswith(f"laconic: {chosen} on 1 of 2 tensors")
    assert same_hash(outcomes) == same_hash(with_laconic(script, spec=chosen))


def test_missing_spec_is_reported(script):
    for outcome in with_laconic(script, spec=None):
        assert outcome.code == 1 and "no spec given" in outcome.err and "LACONIC_SPEC" in outcome.err


def test_options_reach_attach(script):
    outcomes = with_laconic(script, spec="none", options=["--small-elements", "10000", "--strategy", "native_sum", "--threads", "2",
                                                          "--seed", "3"])
    assert "nothing to compress in 2 tensors" in outcomes[0].notices[0]
    assert same_hash(outcomes) == same_hash(alone(script))
    assert "means are encoded by int8" in with_laconic(script, options=["--down", "int8"])[0].notices[0]


def test_warm_up_is_passed_on(script):
    outcomes = with_laconic(script, options=["--warmup-steps", "2"])
    assert "uncompressed for 2 steps" in outcomes[0].notices[0]
    assert same_hash(outcomes) not in (same_hash(with_laconic(script)), plain := same_hash(alone(script)))
    assert same_hash(with_laconic(script, options=["--warmup-steps", "3"])) == plain


@pytest.mark.parametrize("options", [["--state-keep", "1"], ["--state-every", "0"], ["--state-every", "x"], ["--warmup-steps", "-1"]])
def test_impossible_numbers_are_refused(options, capsys):
    with pytest.raises(SystemExit) as refused:
        run._parse([*options, "train.py"])
    assert refused.value.code == 2 and f"argument {options[0]}: {options[1]} is not a whole number" in capsys.readouterr().err


def test_subclasses_and_several_models_attach(script):
    assert same_hash(with_laconic(script, "subclass")) == same_hash(with_laconic(script))
    both = with_laconic(script, "two")
    assert same_hash(both) == same_hash(with_laconic(script))
    assert len(both[0].notices) == 2


def test_two_models_have_separate_records(script, tmp_path):
    file = tmp_path / "run.jsonl"
    same_hash(with_laconic(script, "two", options=["--record", str(file), "--control", "schedule:0=0.1,2=0.25"]))
    for each in (file, tmp_path / "run.jsonl.2"):
        configuration, *steps = map(json.loads, each.read_text().splitlines())
        assert configuration["rules"][0]["control"] == "schedule:0=0.1,2=0.25" and steps[0]["decision"][0]["to"] == 0.25


def test_evaluation_on_one_rank_does_not_attach(script):
    assert same_hash(with_laconic(script, "evaluate")) == same_hash(with_laconic(script))


SCALED = r'''
import hashlib, json, sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DistributedDataParallel(torch.nn.Linear(80, 80))
scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2) for _ in range(2 if "two" in sys.argv else 1)]
scaler = scalers[0]
if "attach" in sys.argv:
    import laconic

    laconic.attach(ddp, "topk:ratio=0.05", scaler=scaler)
optimizer = torch.optim.SGD(ddp.parameters(), 0.05, momentum=0.9 if "momentum" in sys.argv else 0)
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(6):
    scaler.scale(ddp(torch.randn(4, 80, generator=generator)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
digest = hashlib.sha256(b"".join(bytes(p.detach().view(-1).view(torch.uint8).tolist()) for p in ddp.parameters())).hexdigest()
sys.stdout.write(json.dumps({"rank": dist.get_rank(), "hash": digest}) + "\n")
sys.stdout.flush()
dist.barrier()
'''


def test_residuals_follow_grad_scaler_of_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCALED)
    found = with_laconic(script)
    assert same_hash(found) == same_hash(alone(script, "attach"))
    several = with_laconic(script, "two")
    assert same_hash(several) != same_hash(found)
    assert len([line for line in several[0].notices if "has 2 GradScalers: residuals cannot follow a changing scale" in line]) == 1


def test_momentum_of_script_and_codec_is_reported(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCALED)
    lines = [line for one in with_laconic(script, "momentum", spec="dgc:ratio=0.05") for line in one.notices if "twice" in line]
    assert len(lines) == 1 and "dgc:ratio=0.05 keeps momentum, and SGD has momentum=0.9" in lines[0]


def test_module_may_replace_file(script):
    ours = launch(["-m", "laconic.run", "--spec", "none", "-m", "train", "--flag", "x"], script.parent, cwd=script.parent)
    plain = launch(["-m", "train", "--flag", "x"], script.parent, cwd=script.parent)
    assert same_hash(ours) == same_hash(plain)
    assert ours[0].report == plain[0].report and ours[0].report["argv"] == [str(script), "--flag", "x"]


def test_unknown_variables_are_named_once_per_node(script):
    outcomes = with_laconic(script, LACONIC_SPCE="3lc")
    assert len([line for line in outcomes[0].notices if "did you mean LACONIC_SPEC?" in line]) == 1
    assert outcomes[1].notices == []
