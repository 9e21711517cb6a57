# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""torch's device `pretend` (pretend.cc): builds it, registers it, and brings a process group that serves its tensors.

A process that calls `load` has the device.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import torch
import torch.distributed as dist
import torch.utils

SOURCE = Path(__file__).with_name("pretend.cc")
BUILT = Path(__file__).resolve().parents[2] / "build" / "pretend"
TORCH = Path(torch.__file__).parent
COMPILE = ["-std=c++20", "-O1", "-fPIC", "-w", f"-I{TORCH}/include", f"-I{TORCH}/include/torch/csrc/api/include",
           f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
LINK = ["-shared", f"-L{TORCH}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{TORCH}/lib"]
COMPUTE, DOWN, UP = 0, 1, 2


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "c++"))


def why_not() -> str | None:
    """Why this torch cannot have the device; None where it can."""
    if not hasattr(torch, "accelerator"):
        return f"torch {torch.__version__} has no torch.accelerator"
    if compiler() is None:
        return "no C++ compiler"
    if not (TORCH / "include" / "ATen").is_dir():
        return "this torch comes without its headers"
    return None


def library() -> Path:
    """The device's library, from this checkout, or compiled: for ten seconds, unless ccache has it."""
    key = hashlib.sha256(repr([SOURCE.read_bytes(), COMPILE, LINK, torch.__version__, compiler()]).encode()).hexdigest()[:16]
    BUILT.mkdir(parents=True, exist_ok=True)
    path = BUILT / f"libpretend-{key}.so"
    with open(BUILT / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several pytest workers may want it at the same time
        if not path.exists():
            begun, compiled = path.with_suffix(".begun"), path.with_suffix(".o")
            cached = list(filter(None, [shutil.which("ccache")]))  # which takes no command that links
            subprocess.run([*cached, compiler(), *COMPILE, "-c", str(SOURCE), "-o", str(compiled)], check=True)
            subprocess.run([compiler(), str(compiled), *LINK, "-o", str(begun)], check=True)
            begun.rename(path)
    return path


def _module() -> types.ModuleType:
    module = types.ModuleType("torch.pretend")
    module.pretends = True  # laconic.selftest claims nothing about hardware
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 2
    module.current_device = torch.accelerator.current_device_index
    module.set_device = torch.accelerator.set_device_index
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.current_stream = lambda device=None: torch.accelerator.current_stream(device)  # FSDP2 asks for these
    module.Stream = lambda priority=0: torch.Stream(device="pretend")
    module.stream = lambda stream: contextlib.nullcontext() if stream is None else stream
    module.Event = functools.partial(torch.Event, device="pretend")
    return module


@functools.cache
def load() -> ctypes.CDLL:
    """Registers device and process group in this process; gives the library, for `delay` and the other settings."""
    loaded = ctypes.CDLL(str(library()))
    loaded.pretend_delay.argtypes = [ctypes.c_int, ctypes.c_int64]
    loaded.pretend_pinned_bytes.restype = loaded.pretend_device_bytes.restype = ctypes.c_int64
    loaded.pretend_flip.argtypes = [ctypes.c_int64]
    loaded.pretend_flip(int(os.environ.get("PRETEND_FLIPS", "-1")))
    torch.utils.rename_privateuse1_backend("pretend")
    torch._register_device_module("pretend", _module())
    torch.utils.generate_methods_for_privateuse1_backend(unsupported_dtype=None)
    dist.Backend.register_backend("pretend", _group, devices=["pretend"])
    return loaded


def delay(compute=0, down=0, up=0) -> None:
    """Microseconds before each asynchronous operation on the device, copy to the host and copy to the device."""
    for which, microseconds in ((COMPUTE, compute), (DOWN, down), (UP, up)):
        load().pretend_delay(which, microseconds)


# ---- the process group -------------------------------------------------------------------------------------------------

class _Group(dist.ProcessGroup):
    """Sums, broadcasts and gathers on the host, by Gloo, and copies back before it returns."""

    def __init__(self, store, rank: int, world: int, timeout):
        super().__init__(rank, world)
        self._gloo = dist.ProcessGroupGloo(store, rank, world, timeout)
        self.options = types.SimpleNamespace(_timeout=timeout)
        self._name = None

    def _set_group_name(self, name):  # a DeviceMesh finds its groups by name
        self._name = name

    group_name = property(lambda self: self._name)

    def getBackendName(self):  # noqa: N802  torch's name
        return "pretend"

    def _on_host(self, tensors, call, opts):
        host = [t.cpu() if t.device.type == "pretend" else t for t in tensors]
        (call(host, opts) if opts is not None else call(host)).wait()
        for tensor, result in zip(tensors, host):
            if tensor is not result:
                tensor.copy_(result)
        return _done(tensors)

    def allreduce(self, tensors, opts=None):
        return self._on_host(tensors, self._gloo.allreduce, opts)

    def broadcast(self, tensors, opts=None):
        return self._on_host(tensors, self._gloo.broadcast, opts)

    def allgather(self, outputs, inputs, opts=None):
        host_inputs = [t.cpu() for t in inputs]
        host = [[torch.empty_like(t, device="cpu") for t in listed] for listed in outputs]
        (self._gloo.allgather(host, host_inputs, opts) if opts is not None else self._gloo.allgather(host, host_inputs)).wait()
        for listed, results in zip(outputs, host):
            for tensor, result in zip(listed, results):
                tensor.copy_(result)
        return _done(outputs[0])

    def _allgather_base(self, output, input, opts=None):  # noqa: A002
        return self._on_host([output], lambda host, opts=None: self._gloo._allgather_base(host[0], input.cpu()), None)

    def _reduce_scatter_base(self, output, input, opts=None):  # noqa: A002
        return self._on_host([output], lambda host, opts=None: self._gloo._reduce_scatter_base(host[0], input.cpu(), opts), opts)

    def alltoall_base(self, output, input, output_sizes, input_sizes, opts=None):  # noqa: A002
        """The only one that is under way when it returns."""
        arrives = torch.empty(output.shape, dtype=output.dtype, device="cpu")
        options = () if opts is None else (opts,)
        return _Arriving(self._gloo.alltoall_base(arrives, input.cpu(), output_sizes, input_sizes, *options), arrives, output)

    all_to_all_single = alltoall_base  # its name from torch 2.13 on
    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base  # their names from torch 2.13 on

    def barrier(self, opts=None):
        self._gloo.barrier().wait()
        return _done([])


class _Arriving:
    """As NCCL's work: `wait` is for the current stream, which goes on with what has arrived."""

    def __init__(self, work, arrives, output):
        self._work, self._arrives, self._output = work, arrives, output

    def is_completed(self):
        return self._work.is_completed()

    def wait(self, *timeout):
        self._work.wait(*timeout)
        self._output.copy_(self._arrives)
        return True


def _done(tensors):
    devices = sorted({t.device for t in tensors if t.device.type == "pretend"}, key=str)
    future = torch.futures.Future(devices=devices or None)
    future.set_result(list(tensors))
    return torch._C._distributed_c10d._create_work_from_future(future)


def _group(store, rank, world, timeout):
    return _Group(store, rank, world, timeout)


if __name__ == "__main__":
    sys.exit(print(library()))
