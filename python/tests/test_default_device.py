# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""With another default for tensors in the program, every tensor that laconic makes names its device and type."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import training  # noqa: E402

import laconic  # noqa: E402

MAKERS = {"tensor", "as_tensor", "empty", "zeros", "ones", "full", "arange", "rand", "randn", "randint", "eye", "linspace"}
OWN_PROCESS = {"selftest.py"}  # a program of its own, with torch's defaults


def _trained(default, spec):
    import torch.distributed as dist

    if "largest" in spec:
        import own_codecs

        own_codecs.register()
    ddp, _, optimizer = training.build(dist.group.WORLD, None, buckets=2)
    type_before = torch.get_default_dtype()
    with torch.device(default):
        torch.set_default_dtype(torch.float64)
        try:
            handle = laconic.attach(ddp, spec, small_elements=64, quiet=True)
            handle.follow(optimizer)
        finally:
            torch.set_default_dtype(type_before)
    for step in range(3):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    with torch.device(default):
        state = handle.state_dict()
        about = laconic.checkpointable(handle)
        about.load_state_dict(about.state_dict())
        handle.load_state_dict(state)
        handle.flush(2)
        if "largest" not in spec:
            handle.set(spec)
    for step in range(3, 6):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    with torch.device(default):
        result = training.digest(ddp), {tensor.device.type for tensor in state["tensors"].values()}
        handle.close()
    return result


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "powersgd:rank=2", "largest:ratio=0.05"])
def test_attach_trains_under_another_default_device(pools, spec):
    if "largest" in spec:
        pytest.importorskip("numpy")
    meta, cpu = (pools(2).run(_trained, default=default, spec=spec) for default in ("meta", "cpu"))
    assert meta == cpu and meta[0] == meta[1] and meta[0][1] == {"cpu"}


def test_every_new_tensor_names_device_and_type():
    missing = []
    for path in sorted(Path(laconic.__file__).parent.rglob("*.py")):
        if path.name in OWN_PROCESS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            maker = getattr(node, "func", None)
            if isinstance(node, ast.Call) and isinstance(maker, ast.Attribute) and getattr(maker.value, "id", "") == "torch" and maker.attr in MAKERS:
                given = {keyword.arg for keyword in node.keywords}
                if not {"device", "dtype"} <= given:
                    missing.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert missing == []
