# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One tensor to one self-describing frame and back: Codec, Residual, Frame."""

from __future__ import annotations

import ctypes
import functools
import json
import math
import operator
import weakref

from ..core import _arrays, _lib, errors
from ..core._checks import U32, U64, finite, text, whole
from ..core.errors import LaconicError
from . import registered

MAX_ELEMENTS = 2**28


def _checked(function):
    """A call that runs out of memory while it allocates ends as LaconicError too."""

    @functools.wraps(function)
    def call(*arguments, **keywords):
        try:
            return function(*arguments, **keywords)
        except MemoryError as error:
            raise errors.error("out_of_memory", f"{function.__qualname__}: {error or 'no memory'}", "use smaller tensors") from None

    return call


def _readable(frame):
    """Any bytes-like object as (pointer, size, what keeps the pointer valid), without a copy where that is possible."""
    try:
        view = memoryview(frame)
        view = view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError, BufferError) as error:
        raise errors.error("invalid_argument", f"a frame cannot be read from {type(frame).__name__}: {error}",
                           "pass contiguous bytes: bytes, bytearray, memoryview or a NumPy array") from None
    size = view.nbytes
    if view.readonly or size == 0:
        data = frame if isinstance(frame, bytes) else bytes(view)
        return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), size, data
    return (ctypes.c_char * size).from_buffer(view), size, view


def _frame_info(pointer, size: int) -> _lib.FrameInfo:
    info = _lib.FrameInfo()
    _lib.check(_lib.lib.laconic_frame_parse(pointer, size, ctypes.byref(info)))
    return info


class Frame:
    """A verified frame.

    Attributes: codec (name), spec, count (elements), shape2d (rows, cols), dtype, step, seed, rank, world, contributors, payload (bytes).
    """

    _DTYPES = {_lib.F32: "float32", _lib.F16: "float16", _lib.BF16: "bfloat16"}

    def __init__(self, info: _lib.FrameInfo, data: bytes):
        self.spec = ctypes.string_at(info.spec, info.spec_bytes).decode()
        self.codec = self.spec.split(":")[0].split("+")[0]
        self.count = info.rows * info.cols
        self.shape2d = (info.rows, info.cols)
        self.dtype = self._DTYPES[info.dtype]
        self.step, self.seed = info.step, info.seed
        self.rank, self.world = info.rank, info.world
        self.contributors = info.contributors
        self.payload = data[info.payload_offset : info.payload_offset + info.payload_bytes]

    @classmethod
    @_checked
    def parse(cls, frame) -> "Frame":
        """Parses a frame and verifies its header and checksum. Raises LaconicError for invalid bytes."""
        pointer, size, keep = _readable(frame)
        return cls(_frame_info(pointer, size), bytes(keep))

    def __repr__(self) -> str:
        return f"Frame(spec={self.spec!r}, count={self.count}, payload={len(self.payload)} bytes)"


class Residual:
    """Error feedback and codec state for one tensor of `n` elements on one rank."""

    _on_gpu = False

    def __init__(self, n: int):
        n = whole("the number of elements", n, 0, U64 // 4)
        self._open(_lib.lib.laconic_residual_create, n)

    def _open(self, create, argument) -> None:
        self._handle = ctypes.c_void_p()
        _lib.check(create(argument, ctypes.byref(self._handle)))
        weakref.finalize(self, _lib.lib.laconic_residual_destroy, self._handle).atexit = False

    @classmethod
    def over(cls, array) -> "Residual":
        """The residual whose values are those of `array`: contiguous float32, zeros at first; on a GPU for tensors there."""
        residual = cls.__new__(cls)
        tensor = _arrays.tensor_of(array, writable=True, on_gpu=True)
        residual._open(_lib.lib.laconic_residual_over, ctypes.byref(tensor))
        residual._array, residual._on_gpu = (array, tensor), tensor.memory != 0
        return residual

    def __len__(self) -> int:
        return _lib.lib.laconic_residual_count(self._handle)

    def view(self) -> memoryview:
        """The residual's float32 values as a writable memoryview. On a GPU: use the array that it is over."""
        if self._on_gpu:
            raise errors.error("unsupported", "the residual's values are on a GPU", "use the tensor that it is over")
        return _arrays.float_view(_lib.lib.laconic_residual_data(self._handle), len(self), self)

    def numpy(self):
        """The residual's float32 values as a writable NumPy view."""
        import numpy

        return numpy.frombuffer(self.view(), dtype=numpy.float32)

    def norm(self) -> float:
        """Euclidean norm of the residual."""
        values = self.view()
        numpy = _arrays.numpy_or_none()
        if numpy is not None:
            return float(numpy.linalg.norm(self.numpy().astype(numpy.float64)))
        return math.sqrt(sum(map(operator.mul, values, values)))

    def _state(self) -> memoryview:
        count = ctypes.c_uint64()
        address = _lib.lib.laconic_residual_state(self._handle, ctypes.byref(count))
        return _arrays.float_view(address, count.value, self)

    @_checked
    def state_dict(self) -> dict:
        """A copy of the state: {"version", "residual", "state"}, the latter two as float32 arrays (array.array without NumPy)."""
        return {"version": 1, "residual": _arrays.float_copy(self.view()), "state": _arrays.float_copy(self._state())}

    @_checked
    def load_state_dict(self, state: dict) -> None:
        """Restores a state_dict of a residual of the same size. Raises LaconicError for a damaged or foreign state, and changes nothing then."""
        if not isinstance(state, dict) or state.keys() != {"version", "residual", "state"}:
            raise _damaged("it is not a dict of version, residual and state")
        if type(state["version"]) is not int:
            raise _damaged(f"its version is {state['version']!r}")
        if state["version"] != 1:
            raise errors.error("state_version", f"residual state of version {state['version']}", "this release reads version 1")
        values, extra = (_saved_floats(state, key) for key in ("residual", "state"))
        if len(values) != len(self):
            raise errors.error("state_model", f"the state holds {len(values)} elements, this residual {len(self)}",
                               "load it into a residual of the same tensor")
        tensor = _arrays.tensor_of(extra, writable=False)
        _lib.check(_lib.lib.laconic_residual_set_state(self._handle, tensor.data, len(extra)))  # nothing after it can fail
        self.view()[:] = memoryview(values)


def _damaged(what: str) -> LaconicError:
    return errors.error("state_corrupt", f"the residual's state is damaged: {what}", "use an older checkpoint")


def _saved_floats(state: dict, key: str):
    """The float32 values of a saved array, all of them finite."""
    saved = state[key]
    try:
        if _arrays.is_torch(saved):
            saved = saved.detach().contiguous()
            if str(saved.dtype) != "torch.float32" or saved.dim() != 1 or saved.device.type != "cpu":
                raise TypeError(f"{saved.dtype} with {saved.dim()} dimensions on {saved.device}")
            saved = _arrays.float_view(saved.data_ptr(), saved.numel(), saved)
        view = memoryview(saved)
        if view.format.lstrip("<=@") != "f" or view.ndim != 1:
            raise TypeError(f"format {view.format!r} with {view.ndim} dimensions")
        values = _arrays.float_copy(saved)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _damaged(f"{key} is not a flat float32 array ({error})") from None
    if not _arrays.all_finite(values):
        raise _damaged(f"{key} holds a value that is not finite")
    return values


def spec_with(spec: str, options: dict) -> str:
    """A spec's text with further keys, as ``spec_with("topk", {"ratio": 0.01})``; switches may be bools."""
    if not options:
        return spec
    text("spec", spec)
    head, plus, modifiers = spec.partition("+")
    given = [f"{key}={_option(value)}" for key, value in options.items()]
    return head + (":" if ":" not in head else ",") + ",".join(given) + plus + modifiers


def _option(value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value).replace("e+", "e")  # a plus sign begins a modifier


class Codec:
    """A codec made from a spec: ``Codec("int8:block=256")``, or with keywords: ``Codec("int8", block=256)``.

    Immutable; threads may share it. `threads`: threads for encoding and decoding. A codec registered with `laconic.register` works
    as well; only the same class can decode its frames. Raises LaconicError for an unknown codec, key or value.
    """

    def __new__(cls, spec: str = "", **_):
        return super().__new__(_RegisteredCodec if cls is Codec and registered.find(spec) is not None else cls)

    def __init__(self, spec: str, *, threads: int = 1, **options):
        self._handle = ctypes.c_void_p()
        spec, threads = text("spec", spec_with(spec, options)), whole("threads", threads, 0, _lib.MAX_THREADS)
        _lib.check(_lib.lib.laconic_codec_create(spec, len(spec), threads, ctypes.byref(self._handle)))
        weakref.finalize(self, _lib.lib.laconic_codec_destroy, self._handle).atexit = False
        #: canonical spec: fixed option order, defaults left out
        self.spec = _lib.lib.laconic_codec_spec(self._handle).decode()
        description = json.loads(_lib.lib.laconic_codec_json(self._handle).decode())
        self.name = description["name"]
        self.feedback = description["feedback"]
        #: what it keeps of gradients: "none", "residual", "ema" or "momentum"
        self.memory = description["memory"]
        self.contract = description["contract"]

    def __repr__(self) -> str:
        return f"Codec({self.spec!r})"

    def max_frame_bytes(self, shape) -> int:
        """Maximum bytes of a frame for a tensor of `shape` (an int or a tuple)."""
        try:
            dims = tuple(shape)
        except TypeError:
            dims = (shape,)
        dims = [whole("a dimension", d, 0, U64) for d in dims]
        rows = dims[0] if dims else 1
        cols = whole("the product of all dimensions but the first", math.prod(dims[1:]), 0, U64)
        bound = ctypes.c_uint64()
        _lib.check(_lib.lib.laconic_codec_max_frame_bytes(self._handle, rows, cols, ctypes.byref(bound)))
        return bound.value

    @_checked
    def encode(self, array, *, step: int = 0, seed: int = 0, rank: int = 0, world: int = 1,
               residual: Residual | None = None) -> bytes:
        """Encodes `array` into a frame.

        Args:
            array: float32, float16 or bfloat16; a NumPy array, a torch tensor on the CPU or on a CUDA GPU, or a buffer; contiguous.
            step, seed, rank, world: recorded in the frame; they select the random numbers of codecs that use some.
            residual: error feedback: it is added before encoding, and keeps what the frame does not carry. On the GPU of `array`
                (Residual.over) if that is on one.

        Returns:
            bytes: the frame.

        Raises:
            LaconicError: array, residual or both hold NaN or infinity (non_finite); the residual is unchanged then.
        """
        tensor = _arrays.tensor_of(array, writable=False, on_gpu=True)
        place = _lib.Place(rank=whole("rank", rank, 0, U32), world=whole("world", world, 1, U32), seed=whole("seed", seed, 0, U64),
                           step=whole("step", step, 0, U64))
        bound = ctypes.c_uint64()
        _lib.check(_lib.lib.laconic_codec_max_frame_bytes(self._handle, tensor.rows, tensor.cols, ctypes.byref(bound)))
        out = ctypes.create_string_buffer(bound.value)
        written = ctypes.c_uint64()
        handle = residual._handle if residual is not None else None  # noqa: SLF001
        _lib.check(_lib.lib.laconic_encode(self._handle, ctypes.byref(tensor), ctypes.byref(place), handle, out,
                                           bound.value, ctypes.byref(written), _arrays.stream_of(array)))
        return ctypes.string_at(out, written.value)

    @_checked
    def decode(self, frame, out=None, *, max_elements: int = MAX_ELEMENTS):
        """Decodes a frame.

        Args:
            frame: bytes, bytearray, memoryview or a NumPy array of bytes.
            out: array to write into. Default: a new array of the encoder's dtype (float32 for bfloat16), rows × cols or flat; array.array
                without NumPy.
            max_elements: without `out`, a frame that claims more elements raises bound_exceeded before memory is allocated
                (default 2**28, 1 GiB of float32): a short header can claim terabytes.

        Raises:
            LaconicError: the frame is damaged, is from another codec, or does not fit `out`.
        """
        if out is None:
            most = whole("max_elements", max_elements, 0, U64)
            pointer, size, keep = _readable(frame)
            info = _frame_info(pointer, size)
            if info.rows * info.cols > most:
                raise errors.error("bound_exceeded", f"the frame claims {info.rows} x {info.cols} elements, more than "
                                   f"max_elements = {most}", "pass max_elements= to decode if you trust the writer")
            out = _arrays.empty(info.rows, info.cols, half=info.dtype == _lib.F16)
            del keep
        self._decode(frame, out, add=False, weight=1.0)
        return out

    @_checked
    def decode_add(self, frame, out, *, weight: float = 1.0):
        """Adds weight · decoded to `out` in place and returns `out`. Sparse codecs touch only the elements that were sent."""
        self._decode(frame, out, add=True, weight=weight)
        return out

    def _decode(self, frame, out, *, add: bool, weight: float) -> None:
        tensor = _arrays.tensor_of(out, writable=True, on_gpu=True)
        pointer, size, keep = _readable(frame)
        _lib.check(_lib.lib.laconic_decode(self._handle, pointer, size, finite("weight", weight), int(add), ctypes.byref(tensor),
                                           _arrays.stream_of(out)))
        del keep


class _RegisteredCodec(registered.OwnFrames, Codec):
    def __init__(self, spec: str, *, threads: int = 1, **options):
        self._open(spec_with(spec, options), threads)
