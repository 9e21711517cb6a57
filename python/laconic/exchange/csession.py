# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The C session of a model on one rank."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import weakref

from ..codec import registered
from ..codec.codec import spec_with
from ..core import _arrays, _lib, errors
from ..core._checks import U64, text, whole
from ..core.errors import LaconicError
from .driver import Driver, no_span
from .rules import array_of, chosen, given

STRATEGIES = {"auto": 0, "native_sum": 1, "gather_all": 2, "two_shot": 3, "server_sum": 4}
#: of a flush
MOST_STEPS = 65535
#: why a world of one compresses nothing, as the library says it
ALONE = "one rank has nothing to exchange: gradients stay as they are"
#: exchanges in flight, and maximum float32 bytes of the parts into which buckets are cut
WINDOW, PART = 2, 8 << 20


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of an exchange in a call: see laconic.attach. `keys`: settings of the codec that are not in the spec."""

    spec: str
    keys: dict = dataclasses.field(default_factory=dict)
    seed: int = 0
    small_elements: int = 4096
    strategy: str = "auto"
    down: str | None = None
    threads: int | str = 1
    window: int = WINDOW
    part: int = PART
    rules: list[dict] | str | os.PathLike | None = None
    control: str | None = None
    record: str | os.PathLike | None = None
    codecs: str = "auto"

    def read(self) -> Options:
        """With the variables of the environment where the call says nothing, and rules as a list."""
        return dataclasses.replace(self, spec=spec_with(self.spec, self.keys), keys={}, rules=given(self.rules), control=chosen(self.control),
                                   record=chosen(self.record, "LACONIC_RECORD"))

    def session(self, parameters, **more) -> CSession:
        """The result of `read`, as a session. `more`: further arguments, or replacements."""
        arguments = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in ("keys", "codecs")}
        return CSession(parameters=parameters, **{**arguments, **more})


def _end(handle, _lender) -> None:
    """The lender takes back the session's memory."""
    _lib.lib.laconic_session_destroy(handle)


class CSession:
    """Owns the C session. Parameters are (name, shape) pairs; their order is the order of indices in a Layout. `gpu`: buckets and codecs are
    there, by CUDA's index; None: on the host. `lender`: a laconic.exchange.staging.Lender,
    whose memory they have there."""

    #: a step's first exchange carries what the ranks observed
    reports = False
    #: a set waits until residuals have gone out
    waiting = False

    def __init__(self, spec: str, parameters, *, rank: int, world: int, seed: int, small_elements: int, strategy: str,
                 engine_sums: int, threads: int, short_sends: bool = False, window: int = WINDOW, part: int = PART,
                 aggregates: bool = False, rules: list[dict] = (), control: str | None = None,
                 record: str | None = None, down: str | None = None, owner_turns: bool = False, ranks_per_host: int = 1,
                 node_shards: int = 1, node_shard: int = 0, gpu: int | None = None, lender=None):
        if not spec:
            raise errors.error("invalid_argument", "no spec given", 'attach(model, "3lc"), or set LACONIC_SPEC')
        if not isinstance(strategy, str) or strategy not in STRATEGIES:
            raise errors.error("invalid_argument", f"unknown strategy {strategy!r}",
                               "one of " + ", ".join(STRATEGIES))
        spec, rules, self.own = registered.named(spec, rules, parameters)
        if registered.find(down):
            raise errors.error("unsupported", f"down={down!r}: a registered codec supports gather_all only",
                               "use another codec for down, such as int8")
        tables = [ctypes.pointer(codec.table) for codec in self.own]
        spec, seed = text("spec", spec), whole("seed", seed, 0, U64)
        window, part = whole("window", window, 1, _lib.MAX_WINDOW), whole("part", part, 0, U64)
        small_elements, threads = whole("small_elements", small_elements, 0, U64), whole("threads", threads, 0, _lib.MAX_THREADS)
        self.names = [name for name, _ in parameters]
        self.rank, self.world = rank, world
        listing = (_lib.Parameter * max(len(parameters), 1))()
        for entry, (name, shape) in zip(listing, parameters):
            entry.name = text("a parameter's name", name)
            entry.rows, entry.cols = _arrays.shape_of(type("Shape", (), {"shape": shape}))
        options = _lib.SessionOptions(rank=rank, world=world, strategy=STRATEGIES[strategy], spec=spec, seed=seed,
                                      small_elements=small_elements, engine_sums=engine_sums, threads=threads,
                                      short_sends=int(short_sends), window=window, part=part, aggregates=int(aggregates),
                                      rule_count=len(rules), rules=array_of(rules),
                                      control=text("control", control) if control else None,
                                      record=text("record", os.fspath(record)) if record else None,
                                      codecs=(ctypes.POINTER(_lib.CodecTable) * len(tables))(*tables), codec_count=len(tables),
                                      owner_turns=int(owner_turns), down=text("down", down) if down else None,
                                      ranks_per_host=ranks_per_host, node_shards=node_shards, node_shard=node_shard,
                                      memory=0 if gpu is None else _lib.MEMORY_CUDA, gpu=gpu or 0,
                                      allocator=None if lender is None else ctypes.pointer(lender.table))
        self._handle = ctypes.c_void_p()
        _lib.check(_lib.lib.laconic_session_create(ctypes.byref(options), listing, len(parameters),
                                                   ctypes.byref(self._handle)))
        self._destroy = weakref.finalize(self, _end, self._handle, lender)
        self._destroy.atexit = False  # the system frees it; a worker that waits for a peer may still be in there
        self.window, self.part = window, part
        self.trace = None  #: see laconic.exchange.trace
        self._records = bool(record)
        self.sets = 0  #: that have succeeded: entries and layouts are others then
        self.read_settings()
        self.broken: LaconicError | None = None  #: the engine's first failure

    def read_settings(self, *, changed: bool = False) -> None:
        """Reads what depends on the settings, at first and after a change."""
        self.sets += int(changed)
        self.layout_matters = bool(_lib.lib.laconic_session_layout_matters(self._handle))
        self.all_raw = bool(_lib.lib.laconic_session_all_raw(self._handle))
        self.reports = self._records or any(setting["control"] != "fixed" for setting in self.explain()["settings"])

    @property
    def handle(self) -> ctypes.c_void_p:
        return self._handle

    def shard(self) -> list[tuple[int, int]]:
        """(first, count) of what it exchanges of each parameter."""
        first, count, held = ctypes.c_uint64(), ctypes.c_uint64(), []
        for p in range(len(self.names)):
            _lib.check(_lib.lib.laconic_session_shard(self._handle, p, ctypes.byref(first), ctypes.byref(count)))
            held.append((first.value, count.value))
        return held

    def report(self) -> bytes:
        """The reports of the ranks of its shard in this step: the same number of bytes for every shard of a node."""
        written = ctypes.create_string_buffer(8 + 12 * self.header()["world"])
        _lib.check(_lib.lib.laconic_session_reports(self._handle, written))
        return written.raw

    def decide_by(self, reports: bytes) -> None:
        """The reports of all shards of a node, in rank order."""
        _lib.check(_lib.lib.laconic_session_decide_by(self._handle, reports, len(reports)))

    def close(self) -> None:
        """Frees everything. No other call may follow, or be under way in another thread."""
        if self.trace is not None:
            self.trace.close()
        self._destroy()

    def abandon(self) -> None:
        """Frees nothing, ever: a collective that has not ended uses its memory."""
        self._destroy.detach()

    def driver(self, engine, ended, span=no_span, node=None) -> Driver:
        """A driver of its buffers over an engine: see Driver."""
        return Driver(self, engine, ended, span, node)

    def check(self, cards: bytes) -> None:
        """Every rank's card, in rank order."""
        _lib.check(_lib.lib.laconic_session_check_agreement(self._handle, cards))

    def summed(self, issued: float, completed: float) -> None:
        """The caller summed gradients of this step without the session, from one time.perf_counter() to the other."""
        _lib.lib.laconic_session_summed(self._handle, issued, completed)

    def flush(self, steps: int) -> int:
        """Asks for a flush in `steps` steps; gives the parts that one under way has left (0: there is none)."""
        _lib.check(_lib.lib.laconic_session_flush(self._handle, steps))
        return self._parts_left()

    def flush_steps_left(self) -> int:
        """Steps left of a running or requested flush; 0: none."""
        return self.stats()["flush_steps_left"]

    def _parts_left(self) -> int:
        """The same on all ranks between two steps; as the library reads what may have been loaded. The library has no call for it: its
        flush_steps_left counts what this rank alone has asked for, too."""
        for name, address, _ in self.entries():
            if name == "state/flush":
                left = (ctypes.c_float * 2).from_address(address)[1]
                return int(left) if 1 <= left <= MOST_STEPS else 0
        return 0

    def explain(self) -> dict:
        return json.loads(_lib.lib.laconic_session_explain(self._handle).decode())

    def stats(self) -> dict:
        return json.loads(_lib.lib.laconic_session_stats(self._handle).decode())

    def scale_residuals(self, factor: float) -> None:
        _lib.check(_lib.lib.laconic_session_scale_residuals(self._handle, factor))

    def residual_norm(self) -> float:
        return _lib.lib.laconic_session_residual_norm(self._handle)

    def entries(self):
        """(name, float32 view) of everything that this rank remembers."""
        name, data, count = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_uint64()
        for i in range(_lib.lib.laconic_session_state_count(self._handle)):
            _lib.check(_lib.lib.laconic_session_state_entry(self._handle, i, ctypes.byref(name), ctypes.byref(data),
                                                            ctypes.byref(count)))
            yield name.value.decode(), data.value, count.value

    def header(self) -> dict:
        header = _lib.StateHeader()
        _lib.lib.laconic_session_state_header(self._handle, ctypes.byref(header))
        shard = {"node_shards": header.node_shards, "node_shard": header.node_shard} if header.node_shards > 1 else {}
        return {"version": header.version, "rank": header.rank, "world": header.world, "model_hash": header.model_hash,
                "agreement": header.agreement, "spec": header.spec.decode(), **shard}

    def accepts(self, saved: dict) -> None:
        """Refuses the header of another rank, world size, model, spec or version. Its fields are those of `header`."""
        header = _lib.StateHeader(**{**saved, "spec": saved["spec"].encode()})
        _lib.check(_lib.lib.laconic_session_state_accepts(self._handle, ctypes.byref(header)))


class Layout:
    """Which parameters (indices) lie where in one flat buffer."""

    def __init__(self, parameters, offsets, elements: int, *, direct: bool = False):
        self.parameters = tuple(parameters)
        self.offsets = tuple(offsets)
        self.elements = elements
        self.c_parameters = (ctypes.c_uint32 * max(len(self.parameters), 1))(*self.parameters)
        self.c_offsets = (ctypes.c_uint64 * max(len(self.offsets), 1))(*self.offsets)
        self.dtype: int | None = None  #: LACONIC_F32, …: of the buffers that were exchanged
        self.direct = direct  #: the engine's own sum is all that this buffer needs

    def bucket(self, address: int, dtype: int, *, step: int = 0, index: int = 0) -> _lib.Bucket:
        """The library's view of a buffer of this layout."""
        return _lib.Bucket(dtype=dtype, index=index, step=step, buffer=address, elements=self.elements,
                           count=len(self.parameters), parameters=self.c_parameters, offsets=self.c_offsets)
