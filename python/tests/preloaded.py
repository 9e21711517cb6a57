# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What the server process of the tests imports once, for all processes that are forked from it."""

import contextlib
import gc
import os

os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].partition(os.pathsep)[2]  # ranks.server put this folder in front

with contextlib.suppress(ImportError):  # there are torches without it
    import torch._dynamo  # noqa: F401
with contextlib.suppress(ImportError):
    import torch.distributed.fsdp  # noqa: F401
import launches  # noqa: E402, F401
import pytest  # noqa: E402, F401
import torch.distributed  # noqa: E402, F401
import training  # noqa: E402, F401

import laconic.ddp.hook  # noqa: E402, F401

gc.collect()
gc.freeze()  # a child's collections would copy all these pages and find nothing
