# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Arrays as pointers: NumPy's, torch's, and anything with a buffer of floats. Neither package has to be installed."""

from __future__ import annotations

import array as plain
import ctypes
import math
import mmap
import sys

from . import _lib, errors

_TORCH_TYPES = {"torch.float32": _lib.F32, "torch.float16": _lib.F16, "torch.bfloat16": _lib.BF16}
_NUMPY_TYPES = {"float32": _lib.F32, "float16": _lib.F16, "bfloat16": _lib.BF16}


def zeros(size: int):
    """Zeroed bytes that take no memory until they are written."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return (ctypes.c_char * max(size, 1)).from_buffer(memory)


def is_torch(array) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


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
        raise errors.error("dtype_unsupported", f"elements of type {array.dtype} are not supported",
                           "convert to float32, float16 or bfloat16")
    return code


def tensor_of(array, writable: bool, on_gpu: bool = False) -> _lib.Tensor:
    """A view for the C library; the caller keeps `array` alive. Errors come before a byte moves. on_gpu: torch's CUDA tensors, too."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        return _buffer_tensor(array, writable)
    dtype = dtype_of(array)
    rows, cols = shape_of(array)
    if is_torch(array):
        if array.device.type not in (("cpu", "cuda") if on_gpu else ("cpu",)):
            raise errors.error("unsupported", f"the tensor is on {array.device}, which no codec takes here", ".cpu() first")
        if not array.is_contiguous():
            raise errors.error("invalid_argument", "the tensor is not contiguous", ".contiguous() first")
        return _lib.Tensor(dtype=dtype, rows=rows, cols=cols, data=array.data_ptr(),
                           memory=_lib.MEMORY_CUDA if array.device.type == "cuda" else 0)
    if not array.flags["C_CONTIGUOUS"]:
        raise errors.error("invalid_argument", "the array is not C-contiguous", "numpy.ascontiguousarray(x) first")
    if writable and not array.flags["WRITEABLE"]:
        raise errors.error("invalid_argument", "the output array is read-only", "pass a writable copy")
    return _lib.Tensor(dtype=dtype, rows=rows, cols=cols, data=array.ctypes.data)


def stream_of(array):
    """The CUDA stream whose work a call on `array` waits for: torch's current one. None: CUDA's default, or not on a GPU."""
    if not is_torch(array) or array.device.type != "cuda":
        return None
    return sys.modules["torch"].cuda.current_stream(array.device).cuda_stream or None


def _buffer_tensor(array, writable: bool) -> _lib.Tensor:
    """array.array("f"), a memoryview of floats or halves, a ctypes array of c_float."""
    try:
        view = memoryview(array)
    except TypeError:
        raise errors.error("invalid_argument", f"expected an array of floats, got {type(array).__name__}",
                           "pass a NumPy array, a torch tensor, or an object with a buffer of floats") from None
    dtype = {"f": _lib.F32, "e": _lib.F16}.get(view.format.lstrip("<=@"))
    if dtype is None:
        raise errors.error("dtype_unsupported", f"elements of format {view.format!r} are not supported",
                           "float32 ('f') or float16 ('e'), as in array.array('f', values)")
    if not view.c_contiguous:
        raise errors.error("invalid_argument", "the buffer is not contiguous", "copy it first")
    if writable and view.readonly:
        raise errors.error("invalid_argument", "the output buffer is read-only", "pass a writable buffer")
    rows, cols = shape_of(view)
    memory = bytearray(view) if view.readonly else view
    keep = (ctypes.c_char * view.nbytes).from_buffer(memory) if view.nbytes else None
    tensor = _lib.Tensor(dtype=dtype, rows=rows, cols=cols, data=ctypes.addressof(keep) if keep else None)
    tensor.keep = keep
    return tensor


def numpy_or_none():
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def float_view(address: int, count: int, owner) -> memoryview:
    """`count` floats at `address`, writable; keeps `owner` alive."""
    if count == 0:
        return memoryview(plain.array("f"))
    buffer = (ctypes.c_float * count).from_address(address)
    buffer._owner = owner  # noqa: SLF001  the view holds the buffer, the buffer holds the owner
    return memoryview(buffer).cast("B").cast("f")


def float_copy(values):
    """float32 values of any array or sequence, flat: as a NumPy array, or as array.array where there is no NumPy."""
    numpy = numpy_or_none()
    if numpy is not None:
        return numpy.array(values, dtype=numpy.float32).reshape(-1)
    return plain.array("f", values)


def all_finite(values) -> bool:
    """For the result of float_copy."""
    numpy = numpy_or_none()
    return bool(numpy.isfinite(values).all()) if numpy is not None else all(map(math.isfinite, values))


def empty(rows: int, cols: int, half: bool):
    """An array to decode into: rows × cols, flat with one column; flat float32 without NumPy."""
    numpy = numpy_or_none()
    if numpy is None:
        return plain.array("f", bytes(4 * rows * cols))
    return claimed(numpy.empty, (rows,) if cols == 1 else (rows, cols), "float16" if half else "float32")


def claimed(make, shape, dtype: str):
    """make(shape, dtype) of a shape that a frame claims. Not every one can be: NumPy bounds the dimensions of an empty array, too."""
    try:
        return make(shape, dtype)
    except ValueError as error:
        raise errors.error("shape_unsupported", f"the frame claims {' x '.join(map(str, shape))} elements: {error}",
                           "decode it into your own array") from None


def floats_in_place(array, count: int):
    """`count` float32 values in one piece of memory that may be written, as a ctypes array; the caller keeps `array` alive.

    Takes torch's CPU tensors, whatever has a buffer of floats (NumPy's arrays, array.array("f")) or an __array_interface__.
    """
    if is_torch(array):
        tensor = tensor_of(array, writable=True)
        _check_floats(array.numel() if tensor.dtype == _lib.F32 else None, array.dtype, count)
        return (ctypes.c_float * count).from_address(tensor.data or 0)
    try:
        view = memoryview(array)
    except (TypeError, ValueError, BufferError):
        return _floats_of_interface(array, count)
    kind = getattr(array, "dtype", f"format {view.format!r}")
    _check_floats(view.nbytes // 4 if view.format.lstrip("=@" + _NATIVE) == "f" else None, kind, count)
    _check_place(view.c_contiguous, view.readonly)
    return (ctypes.c_float * count).from_buffer(view)


_NATIVE = "<" if sys.byteorder == "little" else ">"


def _floats_of_interface(array, count: int):
    interface = getattr(array, "__array_interface__", None)
    if not isinstance(interface, dict):
        raise errors.error("invalid_argument", f"expected an array of float32 values, got {type(array).__name__}",
                           "pass a NumPy array, or an object with a buffer of floats")
    shape, (address, readonly) = interface["shape"], interface["data"]
    kind = interface["typestr"]
    _check_floats(math.prod(shape) if kind == f"{_NATIVE}f4" else None, kind, count)
    strides = interface.get("strides")
    packed = tuple(4 * math.prod(shape[i + 1 :]) for i in range(len(shape)))
    _check_place(strides is None or count == 0 or tuple(strides) == packed, readonly)
    return (ctypes.c_float * count).from_address(address or 0)


def _check_floats(found: int | None, kind, count: int) -> None:
    """found: how many float32 values there are; None: they are of another type, `kind`."""
    if found is None:
        raise errors.error("dtype_unsupported", f"elements of type {kind} cannot be exchanged", "convert to float32")
    if found != count:
        raise errors.error("shape_unsupported", f"the gradient has {found} elements, its parameters have {count}",
                           "pass all of them, contiguously")


def _check_place(contiguous: bool, readonly: bool) -> None:
    if not contiguous:
        raise errors.error("invalid_argument", "the array is not C-contiguous", "numpy.ascontiguousarray(x) first")
    if readonly:
        raise errors.error("invalid_argument", "the array is read-only, but the mean is written into it",
                           "numpy.array(x) makes a writable copy")
