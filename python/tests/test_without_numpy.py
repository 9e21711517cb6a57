# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""torch and no NumPy, which torch does not bring: tensors go through Codec as they do elsewhere.

`scripts/test nonumpy` runs the DDP tests in an environment of that kind; here NumPy is only hidden.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import laconic  # noqa: E402

PROGRAM = r"""
import array, sys, warnings


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
import torch

warnings.simplefilter("error")
warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # torch's own word on it
import laconic
import laconic.api.attach, laconic.ddp.hook, laconic.engines.emulate, laconic.exchange.files, laconic.run

torch.manual_seed(0)
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    values = torch.randn(90, 50).to(dtype)
    for spec in ("none", "fp16", "bf16", "int8", "topk:ratio=0.05", "randomk:ratio=0.05", "sidco:ratio=0.01", "3lc", "powersgd:rank=2"):
        codec = laconic.Codec(spec)
        residual = laconic.Residual(values.numel()) if codec.feedback else None
        frame = codec.encode(values, residual=residual)
        out = codec.decode(frame, out=torch.empty(90, 50))
        if residual is not None:
            kept = torch.frombuffer(residual.view(), dtype=torch.float32).reshape(90, 50)
            assert torch.allclose(out + kept, values.float(), atol=1e-4), spec
            again = laconic.Residual(len(residual))
            again.load_state_dict(residual.state_dict())
            assert again.view() == residual.view() and again.norm() == residual.norm() > 0
        plain = codec.decode(frame)
        assert type(plain) is array.array and torch.equal(torch.frombuffer(plain, dtype=torch.float32), out.flatten()), spec

state = laconic.Residual(4).state_dict()
again = laconic.Residual(4)
again.load_state_dict({**state, "residual": torch.tensor([1.0, 2.0, 3.0, 4.0])})
assert again.view().tolist() == [1, 2, 3, 4]
assert "numpy" not in sys.modules
print("no NumPy")
"""


def test_tensors_go_through_every_codec():
    environment = {**os.environ, "PYTHONPATH": str(Path(laconic.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stderr.replace(str(Path(torch.__file__).parents[1]), "")  # which its warnings name, and a checkout may be called so
    assert done.stdout == "no NumPy\n" and "laconic" not in said, said
