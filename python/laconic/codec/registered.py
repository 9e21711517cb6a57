# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.register(MyCodec)`: codecs written in Python: their classes, specs and frames."""

from __future__ import annotations

import ctypes
import difflib
import inspect
import json
import math
import re
import struct
import zlib
from typing import NamedTuple

from ..core import _arrays, _lib, errors
from ..core._checks import U32, U64, finite, whole
from .listing import codecs

_classes: dict[str, type] = {}

#: limits of a payload: bytes per element and in addition, and the capacity of a bundle
MOST_BYTES, MOST_BESIDE, LONGEST_PAYLOAD = 16, 4096, 0xFFFFFFEF
_FEEDBACK = {"never": 0, False: 1, True: 2}

_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_NUMBER = re.compile(r"(-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?)(k|M|G|Ki|Mi|Gi)?")
#: of the spec, as in saved states and frames
_LONGEST = 255


class Place(NamedTuple):
    """`self.place` during encode and decode: where the array belongs. During decode it is the encoder's."""

    seed: int = 0
    step: int = 0
    rank: int = 0
    world: int = 1
    parameter: str = ""


def register(codec: type) -> type:
    """Registers a codec class by its `name`, for `attach`, `Codec` and `bench`. Returns the class; usable as a decorator.

        @laconic.register
        class SignMean:
            name = "signmean"

            def __init__(self, scale=1.0):       # its keys: signmean:scale=0.5
                self.scale = scale

            def encode(self, array):             # NumPy float32 of the parameter's shape; may be changed
                mean = numpy.float32(self.scale * numpy.abs(array).mean())
                return mean.tobytes() + numpy.packbits(array.ravel() > 0).tobytes()

            def decode(self, data, out):         # fills `out`, which holds zeros of the same shape
                mean = numpy.frombuffer(data[:4], numpy.float32)
                bits = numpy.unpackbits(numpy.frombuffer(data[4:], numpy.uint8), count=out.size)
                out[...] = numpy.where(bits, mean, -mean).reshape(out.shape)

    Every rank registers it before attach. Python codecs are slow: use them to try ideas. Keys of the spec are the keywords of
    __init__; their defaults (float, int, bool or str) give the types. Error feedback is on (`+noef` turns it off), unless the class sets
    `feedback = False` (`+ef` turns it on) or `feedback = "never"`. Each parameter of each rank has its own instance, whose attributes
    are not saved in state_dict. `self.place` has seed, step, rank, world and the parameter's name. The same bytes must decode to
    the same values on every rank. docs/guide/your-own-method.md.
    """
    if not inspect.isclass(codec):
        raise errors.error("invalid_argument", f"{codec!r} is not a class", "laconic.register(MyCodec), without parentheses after it")
    name = getattr(codec, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise errors.error("invalid_argument", f"{codec.__name__}.name is {name!r}", "use a str of a-z, 0-9 and _")
    for method in ("encode", "decode"):
        if not callable(getattr(codec, method, None)):
            raise errors.error("invalid_argument", f"{codec.__name__} has no {method}",
                               "encode(self, array) -> bytes, decode(self, data, out)")
    if getattr(codec, "feedback", True) not in (True, False, "never"):
        raise errors.error("invalid_argument", f"{codec.__name__}.feedback is {codec.feedback!r}", 'True, False or "never"')
    if name in codecs():
        raise errors.error("invalid_argument", f"{name} is a built-in codec", "choose another name")
    if _arrays.numpy_or_none() is None:
        raise errors.error("unsupported", "codecs in Python need NumPy", "pip install numpy")
    _keys(codec)
    _classes[name] = codec
    return codec


def _keys(codec: type) -> dict[str, object]:
    """Keyword → default."""
    if codec.__init__ is object.__init__:
        return {}
    keys = {}
    for key in list(inspect.signature(codec.__init__).parameters.values())[1:]:
        named = key.kind in (key.POSITIONAL_OR_KEYWORD, key.KEYWORD_ONLY)
        if not named or type(key.default) not in (float, int, bool, str):
            raise errors.error("invalid_argument", f"{codec.__name__}.__init__: {key} is not a keyword with a default",
                               "give each key a default: a float, an int, a bool or a str")
        keys[key.name] = key.default
    return keys


def find(spec) -> type | None:
    """The registered class that a spec names, or None."""
    return _classes.get(re.split("[:+]", spec, maxsplit=1)[0]) if isinstance(spec, str) else None


def _value(name: str, key: str, written: str, default):
    """The value in a spec, as the default's type."""
    expected, value = "a number", None
    if isinstance(default, bool):
        expected, value = "on or off", {"on": True, "off": False}.get(written)
    elif isinstance(default, str):
        expected, value = "a word of letters, digits, ., _ and -", written if re.fullmatch(r"[\w.-]+", written, re.ASCII) else None
    elif (number := _NUMBER.fullmatch(written)) is not None:
        value = float(number[1]) * _SUFFIXES[number[2] or ""]
        if isinstance(default, int):
            expected, value = "a whole number", int(value) if value.is_integer() else None
    if value is None or value != value or value in (math.inf, -math.inf):
        raise errors.error("value_out_of_range", f"{name}: {key}={written!r}", f"{expected}; the default is {_written(default)}")
    return value


def _written(value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:
        value = int(value)
    return str(value).replace("e+", "e")  # a plus sign begins a modifier


class Method:
    """A registered class with the settings of a spec."""

    def __init__(self, spec: str):
        self._class = find(spec)
        self.name = self._class.name
        head, *modifiers = spec.split("+")
        keys = _keys(self._class)
        default = getattr(self._class, "feedback", True)
        self.feedback = self._modified(modifiers, default)
        self._settings = self._read(head.partition(":")[2] if ":" in head else None, keys, spec)
        changed = [f"{key}={_written(value)}" for key, value in sorted(self._settings.items(), key=lambda item: list(keys).index(item[0]))
                   if value != keys[key]]
        self.spec = self.name + (":" + ",".join(changed) if changed else "")
        if self.feedback != (default is True):
            self.spec += "+ef" if self.feedback else "+noef"
        if len(self.spec) > _LONGEST:
            raise errors.error("spec_syntax", f"the spec of {self.name} is longer than {_LONGEST} characters", "use shorter values")
        self.instance()  # what __init__ refuses is refused now

    def _read(self, options: str | None, keys: dict, spec: str) -> dict:
        settings = {}
        for option in options.split(",") if options is not None else ():
            key, equals, written = option.partition("=")
            if not equals or key in settings:
                raise errors.error("spec_syntax", f"spec {spec!r}: {option!r} is " + ("given twice" if equals else "not key=value"),
                                   "write name:key=value,key=value+noef")
            if key not in keys:
                near = difflib.get_close_matches(key, keys, n=1)
                known = ", ".join(f"{k} (default {_written(v)})" for k, v in keys.items())
                raise errors.error("unknown_key", f"{self.name} has no key {key!r}", (f"did you mean {near[0]!r}? " if near else "") + (
                    f"keys of {self.name}: {known}" if known else f"{self.name} has no keys"))
            settings[key] = _value(self.name, key, written, keys[key])
        return settings

    def _modified(self, modifiers: list[str], default) -> bool:
        if len(modifiers) > 1 or any(m not in ("ef", "noef") for m in modifiers):
            raise errors.error("spec_syntax", f"{self.name}+{'+'.join(modifiers)}: a registered codec accepts +ef or +noef, once",
                               "write name:key=value,key=value+noef")
        if default == "never" and modifiers == ["ef"]:
            raise errors.error("unsupported", f"{self.name} supports no error feedback: its class sets feedback = 'never'", "remove +ef")
        return modifiers == ["ef"] if modifiers else default is True

    def instance(self):
        try:
            return self._class(**self._settings)
        except Exception as error:  # noqa: BLE001  the user's code
            raise errors.error("value_out_of_range", f"{self.name}.__init__: {type(error).__name__}: {error}",
                               "check the registered class") from error


def encode(codec, place: Place, array) -> bytes:
    """`array` may be changed by the codec. A RuntimeError reports what the user's code raised."""
    codec.place = place
    try:
        data = codec.encode(array)
    except Exception as error:  # noqa: BLE001  the user's code
        raise RuntimeError(f"{codec.name}.encode: {type(error).__name__}: {error}") from error
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise RuntimeError(f"{codec.name}.encode returned {type(data).__name__}, not bytes")
    return bytes(data)


def decode(codec, place: Place, data: bytes, out) -> None:
    """Fills `out`, which the caller has set to zero."""
    codec.place = place
    try:
        given = codec.decode(data, out)
    except Exception as error:  # noqa: BLE001  the user's code
        raise RuntimeError(f"{codec.name}.decode: {type(error).__name__}: {error}") from error
    if given is not None and given is not out:
        raise RuntimeError(f"{codec.name}.decode returned {type(given).__name__}: it must fill `out` and return None")
    if not _arrays.numpy_or_none().isfinite(out).all():
        raise RuntimeError(f"{codec.name}.decode left infinity or NaN in `out`")


# ---- sessions -------------------------------------------------------------------------------------------------------------------


class Callbacks:
    """A method as a codec of the library's, for one session. `parameters`: (name, shape) of all."""

    def __init__(self, method: Method, parameters):
        self._method = method
        self._parameters = {_lib.lib.laconic_parameter_id(name.encode()): (name, shape) for name, shape in parameters}
        self._encoders, self._decoders = {}, {}  # instances, by parameter
        self.raised: BaseException | None = None  #: what a callback has raised last
        kind = getattr(type(method.instance()), "feedback", True)
        self.table = _lib.CodecTable(feedback=_FEEDBACK[kind], name=method.spec.partition("+")[0].encode(), plan=_lib.PLAN(self._plan),
                                     encode=_lib.ENCODE(self._encode), decode=_lib.DECODE(self._decode))

    @staticmethod
    def _plan(_context, rows, cols, _world, size, _state) -> None:
        size[0] = min(MOST_BYTES * rows * cols + MOST_BESIDE, LONGEST_PAYLOAD)

    def _at(self, call, instances: dict):
        """The parameter's instance, knowing where it is, and the shape of its array."""
        name, shape = self._parameters[call.parameter]
        if name not in instances:
            instances[name] = self._method.instance()
        return instances[name], Place(call.seed, call.step, call.rank, call.world, name), shape

    def _failed(self, error: BaseException, why: int, room: int) -> int:
        self.raised = error.__cause__ or error
        said = str(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
        ctypes.memmove(why, said.encode(errors="replace")[: room - 1].ljust(room, b"\0"), room)
        return 1

    def _encode(self, _context, call, values, out, room, size, why, why_room) -> int:
        try:
            codec, place, shape = self._at(call.contents, self._encoders)
            data = encode(codec, place, _floats_at(values, shape).copy())
            if len(data) > room:
                raise RuntimeError(f"{self._method.name}.encode returned {len(data)} bytes for {math.prod(shape)} elements: at most {room}")
            ctypes.memmove(out, data, len(data))
            size[0] = len(data)
        except BaseException as error:  # noqa: BLE001  nothing may leave a callback
            return self._failed(error, why, why_room)
        return 0

    def _decode(self, _context, call, payload, size, out, why, why_room) -> int:
        try:
            codec, place, shape = self._at(call.contents, self._decoders)
            decode(codec, place, ctypes.string_at(payload, size), _floats_at(out, shape))
        except BaseException as error:  # noqa: BLE001  as above
            return self._failed(error, why, why_room)
        return 0


def named(spec, rules, parameters):
    """Spec and rules with registered names in canonical form, and the codecs that these name."""
    methods = {s: Method(s) for s in (spec, *(rule.get("spec") for rule in rules)) if find(s) is not None}
    rules = [{**rule, "spec": methods[rule["spec"]].spec} if rule.get("spec") in methods else rule for rule in rules]
    own = {method.spec.partition("+")[0]: method for method in methods.values()}
    return methods[spec].spec if spec in methods else spec, rules, [Callbacks(method, parameters) for method in own.values()]


def raised(codecs) -> BaseException | None:
    """The first exception of one of these on this rank since the last failure."""
    found = [codec.raised for codec in codecs if codec.raised is not None]
    for codec in codecs:
        codec.raised = None
    return found[0] if found else None


def _floats_at(address: int, shape):
    """A view."""
    numpy = _arrays.numpy_or_none()
    return numpy.frombuffer((ctypes.c_float * math.prod(shape)).from_address(address), numpy.float32).reshape(shape)


# ---- frames: of this package, for its own eyes ---------------------------------------------------------------------------------

MAGIC = b"LACPYFRM"
_FIXED = struct.Struct("<8sIIQ")  # magic, CRC-32 of all that follows it, bytes of the header, bytes of the payload
_HEADER = {"spec": str, "shape": list, "dtype": str, "step": int, "seed": int, "rank": int, "world": int}


def pack(header: dict, payload: bytes) -> bytes:
    described = json.dumps(header).encode()
    rest = struct.pack("<IQ", len(described), len(payload)) + described + payload
    return MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest


def unpack(frame) -> tuple[dict, bytes]:
    """Header and payload. Any bytes give an answer or a LaconicError."""
    try:
        data = bytes(memoryview(frame))
    except TypeError as error:
        raise errors.error("invalid_argument", f"a frame cannot be read from {type(frame).__name__}: {error}", "bytes") from None
    if len(data) < _FIXED.size:
        raise errors.error("frame_truncated", f"{len(data)} bytes are not a frame of a registered codec")
    magic, crc, described, size = _FIXED.unpack_from(data)
    if magic != MAGIC:
        raise errors.error("frame_magic", "these bytes are not a frame of a registered codec")
    end = _FIXED.size + described + size
    if end != len(data):
        raise errors.error("frame_truncated" if end > len(data) else "frame_extended", f"the frame has {len(data)} bytes, not {end}")
    if zlib.crc32(data[12:]) != crc:
        raise errors.error("frame_checksum", "the frame's checksum is wrong")
    try:
        header = json.loads(data[_FIXED.size : _FIXED.size + described])
        sound = header.keys() == _HEADER.keys() and all(type(header[key]) is kind for key, kind in _HEADER.items())
        sound = sound and all(type(d) is int and 0 <= d <= U32 for d in header["shape"]) and header["dtype"] in ("float32", "float16")
    except (ValueError, AttributeError):
        sound = False
    if not sound:
        raise errors.error("frame_field", "the frame's header is damaged")
    return header, data[_FIXED.size + described :]


class OwnFrames:
    """`laconic.Codec` for a registered name: see codec.Codec, whose methods these replace."""

    def _open(self, spec: str, threads) -> None:
        whole("threads", threads, 0, 1024)
        self._method = Method(spec)
        self._instance = self._method.instance()
        self.spec, self.name, self.feedback = self._method.spec, self._method.name, self._method.feedback
        self.memory = "residual" if self.feedback else "none"
        never = getattr(type(self._instance), "feedback", True) == "never"
        default = "residual" if getattr(type(self._instance), "feedback", True) is True else "none"
        self.contract = {"merge": "none", "feedback": "never" if never else "own", "feedback_default": default != "none", "fused": False,
                         "exact_size": False, "memory_default": default, "memories": ["none"] if never else ["none", "residual"]}

    def max_frame_bytes(self, shape) -> int:
        raise errors.error("unsupported", f"{self.name} is a codec in Python: its largest frame is unknown", "encode to find out")

    def encode(self, array, *, step=0, seed=0, rank=0, world=1, residual=None) -> bytes:
        values, dtype = _floats(array)
        place = Place(whole("seed", seed, 0, U64), whole("step", step, 0, U64), whole("rank", rank, 0, U32), whole("world", world, 1, U32))
        held = None
        if residual is not None and self.feedback:
            if len(residual) != values.size:
                raise errors.error("frame_count", f"the residual holds {len(residual)} elements, the tensor {values.size}",
                                   "use one Residual per tensor")
            held = residual.numpy()
            values = values + held.reshape(values.shape)
        numpy = _arrays.numpy_or_none()
        if not numpy.isfinite(values).all():
            raise errors.error("non_finite", f"the tensor, or its sum with the residual, holds NaN or infinity: {self.name} encodes neither",
                               "skip this step, or send it uncompressed (none)")
        payload = _said(encode, self._instance, place, values.copy())
        if held is not None:
            out = numpy.zeros_like(values)
            _said(decode, self._instance, place, payload, out)
            held[:] = (values - out).ravel()
        return pack({"spec": self.spec, "shape": list(values.shape), "dtype": dtype, "step": place.step, "seed": place.seed,
                     "rank": place.rank, "world": place.world}, payload)

    def _decoded(self, frame, most: int):
        header, payload = unpack(frame)
        if math.prod(header["shape"]) > most:
            raise errors.error("bound_exceeded", f"the frame claims {math.prod(header['shape'])} elements, more than max_elements = {most}",
                               "pass max_elements= to decode if you trust the writer")
        if find(header["spec"]) is not type(self._instance):
            raise errors.error("frame_codec", f"the frame's spec is {header['spec']!r}, this codec is {self.name}", "decode it with the frame's codec")
        instance = self._instance if header["spec"] == self.spec else Method(header["spec"]).instance()
        out = _arrays.claimed(_arrays.numpy_or_none().zeros, header["shape"], "float32")
        _said(decode, instance, Place(header["seed"], header["step"], header["rank"], header["world"]), payload, out)
        return out, header["dtype"]

    def decode(self, frame, out=None, *, max_elements=2**28):
        values, dtype = self._decoded(frame, whole("max_elements", max_elements, 0, U64) if out is None else U64)
        if out is None:
            return values.astype(dtype, copy=False)
        _put(out, values)
        return out

    def decode_add(self, frame, out, *, weight=1.0):
        weight = finite("weight", weight)
        values, _ = self._decoded(frame, U64)
        _put(out, values, weight)
        return out


def _said(what, *arguments):
    try:
        return what(*arguments)
    except RuntimeError as error:
        raise errors.error("invalid_argument", str(error), "check the registered class") from error


def _floats(array):
    """A float32 array of the given one's shape, and the type that it decodes to."""
    tensor = _arrays.tensor_of(array, writable=False)  # refuses what no codec takes
    del tensor
    numpy = _arrays.numpy_or_none()
    if _arrays.is_torch(array):
        half = str(array.dtype) == "torch.float16"
        return array.detach().float().numpy(), "float16" if half else "float32"
    values = numpy.asarray(array)
    return values.astype(numpy.float32, copy=False), "float16" if values.dtype == numpy.float16 else "float32"


def _put(out, values, weight: float | None = None) -> None:
    """out = values, or out += weight · values."""
    tensor = _arrays.tensor_of(out, writable=True)
    if tensor.rows * tensor.cols != values.size:
        raise errors.error("frame_count", f"the frame holds {values.size} elements, the output {tensor.rows * tensor.cols}",
                           "pass an array of the same size")
    if _arrays.is_torch(out):
        import torch

        flat, given = out.detach().view(-1), torch.from_numpy(values.ravel())
        flat.copy_(given if weight is None else flat.float() + weight * given)
        return
    numpy = _arrays.numpy_or_none()
    flat = numpy.asarray(out).reshape(-1)
    given = values.ravel()
    flat[:] = given if weight is None else flat + numpy.float32(weight) * given
