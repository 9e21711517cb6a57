# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Codec with tensors on a GPU, in a process whose torch is a stand-in over the simulated CUDA driver of tests/engines."""

import subprocess
import sys
from pathlib import Path

import pytest
from laconic.core import _lib

DRIVER = Path(_lib.lib.path).parent / "liblaconic_fake_nccl.so"

PROGRAM = r"""
import array, ctypes, sys, types

cuda = ctypes.CDLL(sys.argv[1])
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxPushCurrent_v2(context) == 0
cuda.cuMemcpyHtoDAsync_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
cuda.cuMemcpyDtoHAsync_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
stream = ctypes.c_void_p()
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
asked = []


class Tensor:
    dtype = "torch.float32"
    device = types.SimpleNamespace(type="cuda", index=0)

    def __init__(self, values):
        self.shape, size = (len(values),), 4 * len(values)
        self.pinned, self.address = ctypes.c_void_p(), ctypes.c_uint64()
        assert cuda.cuMemHostAlloc(ctypes.byref(self.pinned), size, 0) == 0 and cuda.cuMemAlloc_v2(ctypes.byref(self.address), size) == 0
        self.here = (ctypes.c_float * len(values)).from_address(self.pinned.value)
        self.here[:] = values
        assert cuda.cuMemcpyHtoDAsync_v2(self.address, self.pinned, size, stream) == 0

    def data_ptr(self):
        return self.address.value

    def is_contiguous(self):
        return True

    def values(self):
        assert cuda.cuMemcpyDtoHAsync_v2(self.pinned, self.address, 4 * len(self.here), stream) == 0
        assert cuda.cuStreamSynchronize(stream) == 0
        return array.array("f", self.here)


def current_stream(device):
    asked.append(device)
    return types.SimpleNamespace(cuda_stream=stream.value)


sys.modules["torch"] = types.SimpleNamespace(Tensor=Tensor, cuda=types.SimpleNamespace(current_stream=current_stream))
import laconic
from laconic.core import _arrays

codec = laconic.Codec("int8+ef")
values = array.array("f", [((i * 37) % 101 - 50) / 7 for i in range(300)])
x, kept, out = Tensor(values), Tensor([0.0] * 300), Tensor([1.0] * 300)
on_gpu, on_host = laconic.Residual.over(kept), laconic.Residual(300)
try:
    frame = codec.encode(x, residual=on_gpu)
except laconic.LaconicError as error:
    assert (error.name, str(error).count("this build has no kernels")) == ("unsupported", 1), error
    print("no kernels")
    sys.exit()
assert frame == codec.encode(values, residual=on_host)
assert kept.values().tobytes() == on_host.view().tobytes()
decoded = array.array("f", [1.0] * 300)
assert codec.decode_add(frame, out, weight=0.5) is out
codec.decode_add(frame, decoded, weight=0.5)
assert out.values().tobytes() == decoded.tobytes()
assert len(asked) == 2 and asked[0] is Tensor.device
assert len(on_gpu) == 300
for refused in (on_gpu.view, on_gpu.state_dict, lambda: _arrays.floats_in_place(x, 300)):
    try:
        refused()
        raise AssertionError
    except laconic.LaconicError as error:
        assert error.name == "unsupported", error
floats = array.array("f", [0.0] * 300)
beside = laconic.Residual.over(floats)
codec.encode(values, residual=beside)
assert floats.tobytes() == on_host.view().tobytes() and beside.view().tobytes() == floats.tobytes()
print("equal")
"""


@pytest.mark.skipif(not DRIVER.exists(), reason=f"{DRIVER.name} is not built: scripts/build release test_engines")
def test_tensors_on_gpu_give_frames_of_cpu():
    done = subprocess.run([sys.executable, "-c", PROGRAM, DRIVER], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    if done.stdout.strip() == "no kernels":
        pytest.skip("built without nvcc")
    assert done.stdout.strip() == "equal"
