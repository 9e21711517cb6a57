# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Sharded models that laconic finds by itself: under laconic.run, and by the callbacks of frameworks."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")

import sharding  # noqa: E402  skips below torch 2.13
from launches import launch  # noqa: E402
from ranks import Ranks  # noqa: E402
from test_integrations import callbacks  # noqa: E402
from test_integrations import said as lines_of  # noqa: E402

SCRIPT = '''
import json, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed._composable.replicate_with_fsdp import replicate

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 96), torch.nn.ReLU(), torch.nn.Linear(96, 5))
kind = sys.argv[1]
if kind == "replicate":
    replicate(model, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("replicate",)))
else:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
if kind == "itself":
    import laconic
    laconic.attach(model, "none")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.no_grad():
    model(torch.ones(1, 20))
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 20, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))).square().mean().backward()
    optimizer.step()
values = [p.to_local().sum().item() for p in model.parameters()]
print(json.dumps(values))
'''


@pytest.mark.parametrize(("kind", "arguments"), [("mesh", ["--summary"]), ("replicate", ["--state", "states"]), ("itself", [])])
def test_laconic_run_attaches_before_first_step(tmp_path, kind, arguments):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    logs = tmp_path / "logs"
    logs.mkdir()
    outcomes = launch(["-m", "laconic.run", "--spec", "3lc", "--small-elements", "64", *arguments, script, kind], logs, cwd=tmp_path)
    assert [o.code for o in outcomes] == [0, 0], outcomes[0].err
    first, second = (o.out for o in outcomes)
    assert first == second and outcomes[1].notices == []
    said = outcomes[0].notices
    if kind == "itself":
        assert said[0].startswith("laconic: none: nothing to compress in 4 tensors") and "2 replicas" in said[0]
        assert "the script attaches laconic itself; laconic.run leaves this model as it is" in said[1] and len(said) == 2
        return
    attached = next(line for line in said if "3lc on 3 of 4 tensors" in line)
    assert "2 replicas" in attached
    assert ("3 steps, " in said[-1]) == (kind == "mesh") and not any("compressed: " in line for line in said)
    assert any("--state keeps nothing of sharded models" in line for line in said) == (kind == "replicate")


def by_callback(way, which):
    """What a callback attaches to, and says."""
    transformers, lightning = callbacks()
    model = sharding.made(way)
    with lines_of() as lines:
        if which == "transformers":
            callback = transformers.LaconicCallback("3lc", small_elements=sharding.SMALL)
            args = types.SimpleNamespace(output_dir="", resume_from_checkpoint=None, save_only_model=False, deepspeed=None, fsdp=["fully_shard"])
            callback.on_train_begin(args, types.SimpleNamespace(global_step=0), None, model=model)
            callback.on_save(args, types.SimpleNamespace(global_step=0), None)
        else:
            callback = lightning.LaconicCallback("3lc", small_elements=sharding.SMALL)
            trainer = types.SimpleNamespace(strategy=types.SimpleNamespace(model=model), precision_plugin=None, ckpt_path=None, optimizers=[])
            callback.on_train_start(trainer, model)
            callback.on_train_end(trainer, model)
        sharding.loss_of(model, 0).backward()
    handle = callback.handle
    with sharding.closing(handle):
        return lines, handle and (handle.step, handle.explain()["replicas"])


@pytest.fixture(scope="module")
def four():
    ranks = Ranks(4)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("which", ["transformers", "lightning"])
@pytest.mark.parametrize("way", ["2d", "1d"])
def test_callbacks_attach_where_mesh_has_replicas(four, which, way):
    outcomes = four.run(by_callback, way=way, which=which)
    for rank, (lines, attached) in enumerate(outcomes):
        assert attached == ((1, [rank % 2, rank % 2 + 2]) if way == "2d" else None)
        if rank > 0:
            assert lines == []
        elif way == "2d":
            assert "3lc on " in lines[0] and "2 replicas of 2 shards" in lines[0] and "laconic.checkpointable" in lines[1] and len(lines) == 2
        else:
            assert len(lines) == 1 and "nothing is compressed: the model is sharded over a 1-D mesh" in lines[0]
