# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""NumPy and torch arrays as pointers. Neither package is imported unless the caller hands one of its arrays over."""

from __future__ import annotations

import ctypes
import sys

from . import _lib
from .errors import LaconicError

_TORCH_TYPES = {"torch.float32": _lib.F32, "torch.float16": _lib.F16, "torch.bfloat16": _lib.BF16}
_NUMPY_TYPES = {"float32": _lib.F32, "float16": _lib.F16, "bfloat16": _lib.BF16}


def is_torch(array) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _bad(name: str, message: str, hint: str) -> LaconicError:
    code = {"dtype_unsupported": 6, "invalid_argument": 1, "unsupported": 9}[name]
    return LaconicError(code, name, message, hint)


def shape_of(array) -> tuple[int, int]:
    """The matrix view (first dimension, product of the others); vectors and scalars have one column."""
    dims = [int(d) for d in array.shape]
    if len(dims) < 2:
        return (dims[0] if dims else 1), 1
    cols = 1
    for d in dims[1:]:
        cols *= d
    return dims[0], cols


def dtype_of(array) -> int:
    """LACONIC_F32, _F16 or _BF16; anything else is an error that names it."""
    kinds = _TORCH_TYPES if is_torch(array) else _NUMPY_TYPES
    code = kinds.get(str(array.dtype))
    if code is None:
        raise _bad("dtype_unsupported", f"elements of type {array.dtype} are not supported",
                   "convert to float32, float16 or bfloat16")
    return code


def tensor_of(array, writable: bool) -> _lib.Tensor:
    """A view for the C library; the caller keeps `array` alive. Errors come before a byte moves."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise _bad("invalid_argument", f"expected a NumPy array or a torch tensor, got {type(array).__name__}",
                   "numpy.asarray(x, dtype=numpy.float32)")
    dtype = dtype_of(array)
    rows, cols = shape_of(array)
    if is_torch(array):
        if array.device.type != "cpu":
            raise _bad("unsupported", f"the tensor lies on {array.device}; this build encodes on the CPU", ".cpu() first")
        if not array.is_contiguous():
            raise _bad("invalid_argument", "the tensor is not contiguous", ".contiguous() first")
        pointer = array.data_ptr()
    else:
        if not array.flags["C_CONTIGUOUS"]:
            raise _bad("invalid_argument", "the array is not C-contiguous", "numpy.ascontiguousarray(x) first")
        if writable and not array.flags["WRITEABLE"]:
            raise _bad("invalid_argument", "the output array is read-only", "give a writable copy")
        pointer = array.ctypes.data
    return _lib.Tensor(dtype=dtype, rows=rows, cols=cols, data=pointer)


def float_view(address: int, count: int, owner):
    """`count` floats at `address` as a NumPy array that keeps `owner` alive."""
    import numpy

    if count == 0:
        return numpy.zeros(0, dtype=numpy.float32)
    buffer = (ctypes.c_float * count).from_address(address)
    buffer._owner = owner  # noqa: SLF001  the array holds the buffer, the buffer holds the owner
    return numpy.frombuffer(buffer, dtype=numpy.float32)
