# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The C session of a model on one rank, and the exchanges of flat buffers over an engine."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import struct
import time
import weakref

from . import _arrays, _lib, errors, registered
from ._checks import U64, text, whole
from .errors import LaconicError
from .rules import array_of, given

_NOTHING = contextlib.nullcontext()


def no_span(_name):
    """No profiler looks."""
    return _NOTHING


STRATEGIES = {"auto": 0, "native_sum": 1, "gather_all": 2, "two_shot": 3, "server_sum": 4}
PEER_FAILED, ENGINE_FAILED, RESIDUALS_LEFT = (errors.CODES[name] for name in ("peer_failed", "engine_failed", "residuals_left"))
#: of a flush
MOST_STEPS = 65535


def engine_failed(error: BaseException) -> LaconicError:
    """What came out of the engine, in the words of this package."""
    if isinstance(error, LaconicError):  # a plug-in says itself what it is
        return error
    return errors.error("engine_failed", f"{type(error).__name__}: {error}",
                        "a peer is gone or the network failed; restart from the last checkpoint")


def gather_texts(engine, text: str, limit: int = 500) -> list[str]:
    """Every rank's text, cut to `limit` bytes, in rank order."""
    texts = engine.gather_bytes(text.encode()[:limit].ljust(limit, b"\0"))
    return [texts[limit * r : limit * (r + 1)].rstrip(b"\0").decode(errors="replace") for r in range(engine.world)]


#: session::FailureCard of the library: in place of an agreement card, why this rank has no session
_FAILURE = struct.Struct("<8si512s128s")
_FAILURE_MAGIC = b"LACFAIL1"


def _failure_card(error: LaconicError) -> bytes:
    message, hint = (text.encode()[:limit - 1].decode(errors="ignore").encode() for text, limit in
                     ((error.message, 512), (error.hint or "", 128)))
    return _FAILURE.pack(_FAILURE_MAGIC, error.code, message, hint).ljust(_lib.AGREEMENT_BYTES, b"\0")


def _agree_by_cards(engine, session: CSession | None, failure: LaconicError | None, what: str) -> None:
    """In the one round that laconic::Session of C++ has, so that ranks of both may share a job."""
    cards = engine.gather_bytes(session.card() if failure is None else _failure_card(failure))
    told = []
    for rank in range(engine.world):
        magic, code, message, hint = _FAILURE.unpack_from(cards, rank * _lib.AGREEMENT_BYTES)
        if magic == _FAILURE_MAGIC and code != RESIDUALS_LEFT:  # of which the library tells
            said, hint = (text.partition(b"\0")[0].decode(errors="replace") for text in (message, hint))
            told.append((rank, code, said, hint))
    if failure is not None and len(told) == engine.world and len({one[1:] for one in told}) == 1:
        raise failure
    if told:  # a rank's own trouble before what others have seen of it
        hearsay = (PEER_FAILED, errors.CODES["timed_out"])
        rank, _, said, hint = next((one for one in told if one[1] not in hearsay), told[0])
        raise errors.error("ranks_disagree", f"rank {rank} could not {what}: {said}" + (f" ({hint})" if hint else ""),
                           "give every rank the same call, file and LACONIC_* variables")
    session.check(cards)


def agree(engine, session: CSession | None, failure: LaconicError | None, what: str, compare=None) -> None:
    """Every rank learns whether any rank could not do `what`, before anything is compared. `compare()`: before the sessions are,
    or behind them over engines of C++."""
    if engine.of_cpp:
        _agree_by_cards(engine, session, failure, what)
        if compare is not None:
            compare()
        return
    texts = gather_texts(engine, "" if failure is None else str(failure))
    if failure is not None and len(set(texts)) == 1:
        raise failure
    for rank, text in enumerate(texts):
        if text:
            raise errors.error("ranks_disagree", f"rank {rank} could not {what}: {text}",
                               "give every rank the same call, file and LACONIC_* variables")
    if compare is not None:
        compare()
    session.agree(engine)


class _Watched:
    """An engine, a failure of which is the end of a session."""

    def __init__(self, engine, session: CSession):
        self._engine, self._session, self.world, self.of_cpp = engine, session, engine.world, engine.of_cpp

    def gather_bytes(self, data: bytes) -> bytes:
        try:
            return self._engine.gather_bytes(data)
        except BaseException as error:
            self._session.broken = failed = self._session.broken or engine_failed(error)
            if isinstance(error, Exception) and failed is not error:
                raise failed from error
            raise


class Flight:
    """An exchange that has begun: the library's handle, and the batch that is on its way."""

    __slots__ = ("batch", "elements", "failure", "handle", "index", "since", "step")

    def __init__(self, step: int, index: int, failure=None):
        self.handle, self.failure = ctypes.c_void_p(), failure
        self.step, self.index = step, index
        self.batch, self.elements, self.since = None, 0, 0.0


#: why a world of one compresses nothing, as the library says it
ALONE = "one rank exchanges nothing: gradients pass through"
#: exchanges in flight at a time, and float32 bytes of the parts that buckets are cut into
WINDOW, PART = 2, 8 << 20


class CSession:
    """Owns the C session. Parameters are (name, shape) pairs; their order is the order of indices in a Layout."""

    #: a step's first exchange carries what the ranks observed
    reports = False
    #: the arguments of a set that waits until residuals have gone out
    waiting: tuple | None = None
    #: no rank has heard yet that they are to go out
    _release_is_new = False

    def __init__(self, spec: str, parameters, *, rank: int, world: int, seed: int, small_elements: int, strategy: str,
                 engine_sums: int, threads: int, short_sends: bool = False, window: int = WINDOW, part: int = PART,
                 aggregates: bool = False, rules: list[dict] = (), control: str | None = None,
                 record: str | None = None):
        if not spec:
            raise errors.error("invalid_argument", "no spec given", 'attach(model, "3lc"), or set LACONIC_SPEC')
        if not isinstance(strategy, str) or strategy not in STRATEGIES:
            raise errors.error("invalid_argument", f"strategy {strategy!r} is not known",
                               "one of " + ", ".join(STRATEGIES))
        spec, rules, self._own = registered.named(spec, rules, parameters)
        tables = [ctypes.pointer(codec.table) for codec in self._own]
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
                                      codecs=(ctypes.POINTER(_lib.CodecTable) * len(tables))(*tables), codec_count=len(tables))
        self._handle = ctypes.c_void_p()
        _lib.check(_lib.lib.laconic_session_create(ctypes.byref(options), listing, len(parameters),
                                                   ctypes.byref(self._handle)))
        self._destroy = weakref.finalize(self, _lib.lib.laconic_session_destroy, self._handle)
        self._destroy.atexit = False  # the system frees it; a worker that waits for a peer may still be in there
        self._steps = (_lib.Step * _lib.MAX_BATCH)()
        self.window, self.part = window, part
        self.trace = None  #: see laconic.trace
        self._records = bool(record)
        self._read_settings()
        self.sets = 0  #: that have succeeded: entries and layouts are others then
        self.wire_seconds = 0.0
        self.broken: LaconicError | None = None  #: the engine's first failure

    def _read_settings(self) -> None:
        self.layout_matters = bool(_lib.lib.laconic_session_layout_matters(self._handle))
        self.all_raw = bool(_lib.lib.laconic_session_all_raw(self._handle))
        explained = self.explain()
        self.reports = self._records or any(setting["control"] != "fixed" for setting in explained["settings"])
        self._most_bytes = [parameter["payload_bytes_at_most"] for parameter in explained["parameters"]]

    def most_bytes(self, layout: "Layout") -> int:
        """Of a rank's payloads of a buffer, as configured: with a control, by the setting that it begins with."""
        return sum(self._most_bytes[i] for i in layout.parameters)

    @property
    def handle(self) -> ctypes.c_void_p:
        return self._handle

    def close(self) -> None:
        """Frees everything. No other call may follow, or be under way in another thread."""
        if self.trace is not None:
            self.trace.close()
        self._destroy()

    def abandon(self) -> None:
        """Frees nothing, ever: a collective that has not ended uses its memory."""
        self._destroy.detach()

    def agree(self, engine) -> None:
        """Compares cards with all ranks; the same message on every rank when they differ."""
        self.check(engine.gather_bytes(self.card()))

    def card(self) -> bytes:
        """What this rank tells the others of itself."""
        card = ctypes.create_string_buffer(_lib.AGREEMENT_BYTES)
        _lib.lib.laconic_session_agreement(self._handle, card)
        return card.raw

    def check(self, cards: bytes) -> None:
        """Every rank's card, in rank order."""
        _lib.check(_lib.lib.laconic_session_check_agreement(self._handle, cards))

    def set(self, engine, spec: str | None, rules, control: str | None) -> bool:
        """Other settings from the next step on, on all ranks or, with one message, on none. What is None stays. False: they wait
        until residuals that they have no place for have gone out; then `set_what_waits` takes them."""
        failure = self.waiting = None
        try:
            settings = _lib.Settings(strategy=_lib.KEEP, rule_count=_lib.KEEP)
            if self._own or registered.find(spec):
                raise errors.error("unsupported", "a registered codec keeps its settings", "attach again with others")
            if spec is not None:
                settings.spec = text("spec", spec)
            if control is not None:
                settings.control = text("control", control)
            if rules is not None:
                rules = given(rules)
                settings.rules, settings.rule_count = array_of(rules), len(rules)
            _lib.check(_lib.lib.laconic_session_set(self._handle, ctypes.byref(settings)))
        except LaconicError as error:  # the other ranks are about to compare cards with us
            if error.code != RESIDUALS_LEFT:  # of which the card tells
                failure = error
        except Exception as error:  # noqa: BLE001  an argument of a wrong type
            failure = errors.error("invalid_argument", f"{type(error).__name__}: {error}", "spec and control are str, rules a list")
        try:
            agree(_Watched(engine, self), self, failure, "set")
        except BaseException as error:
            if isinstance(error, LaconicError) and error.code == RESIDUALS_LEFT:
                self.waiting = spec, rules, control
                self._release_is_new = self._parts_left() == 0
                return False
            nothing = ctypes.create_string_buffer(_lib.AGREEMENT_BYTES * self.world)
            _lib.lib.laconic_session_check_agreement(self._handle, nothing)  # what was prepared is dropped
            raise
        self.sets += 1
        self._read_settings()
        return True

    def set_what_waits(self, engine) -> bool:
        """Between two steps, where something waits. True: it holds. What this rank alone asks for by `flush` decides nothing."""
        if self._parts_left() != 0:
            self._release_is_new = False
            return False
        return not self._release_is_new and self.set(engine, *self.waiting)

    def exchange(self, layout: "Layout", address: int, dtype: int, engine, *, step: int, index: int = 0,
                 failure: LaconicError | None = None, span=no_span) -> None:
        """Replaces the gradients at `address` by their mean over all ranks.

        After an exception nothing undelivered is lost: this rank's payloads are back in the residuals. Whatever leaves the
        engine ends as engine_failed; the session then exchanges nothing any more. `span(name)`: a context around a part.
        """
        flight = self.begin(layout, address, dtype, engine, step=step, index=index, failure=failure, span=span)
        if flight is not None:
            self.finish(flight, engine, span=span)

    def begin(self, layout: "Layout", address: int, dtype: int, engine, *, step: int, index: int = 0,
              failure: LaconicError | None = None, span=no_span) -> Flight | None:
        """The first half of `exchange`: its first batch is on its way. None: it has ended already. As many exchanges of
        different parameters as Window says may be in flight; when the engine fails, all of them are undone."""
        flight = Flight(step, index, failure)
        with self._or_abort(flight):
            with span("laconic::encode"), self._traced("encode", flight):
                self._begin(flight, layout, address, dtype)
                if failure is not None:
                    _lib.lib.laconic_exchange_fail(flight.handle, failure.code, failure.message.encode())
                count = self._next(flight)
            if count == 0:
                return None
            self._start(flight, engine, count)
        return flight

    def finish(self, flight: Flight, engine, *, span=no_span) -> None:
        """The second half."""
        with self._or_abort(flight):
            self._drive(flight, engine, span)

    def _drive(self, flight: Flight, engine, span) -> None:
        count = 1
        while count:
            start = time.perf_counter()
            try:
                with span("laconic::wire"):
                    engine.wait(flight.batch)
            except BaseException as error:  # noqa: BLE001
                self._abort(flight, error)
            now = time.perf_counter()
            self.wire_seconds += now - start
            completed = getattr(flight.batch, "completed", None) or now
            _lib.lib.laconic_exchange_timed(flight.handle, flight.since, completed)
            if self.trace is not None:
                self.trace.wire(flight.since, now, flight.step, flight.index)
            with span("laconic::decode"), self._traced("decode", flight):
                count = self._next(flight)
            if count:
                self._start(flight, engine, count)

    def _start(self, flight: Flight, engine, count: int) -> None:
        start = flight.since = time.perf_counter()
        try:
            flight.batch = engine.start(self._steps, count)
        except BaseException as error:  # noqa: BLE001
            self._abort(flight, error)
        self.wire_seconds += time.perf_counter() - start

    def _traced(self, name: str, flight: Flight):
        return _NOTHING if self.trace is None else self.trace.span(name, flight.step, flight.index)

    @contextlib.contextmanager
    def _or_abort(self, flight: Flight):
        """What is raised between the library's calls leaves no exchange half done. Its own failures have ended theirs."""
        try:
            yield
        except LaconicError:
            raise
        except BaseException as error:  # noqa: BLE001
            self._abort(flight, error)

    def _abort(self, flight: Flight, error: BaseException):
        _lib.lib.laconic_exchange_abort(flight.handle)
        failed = engine_failed(error)
        self.broken = self.broken or failed
        if failed is error:
            raise failed
        raise failed from error

    def abort(self, flight: Flight) -> None:
        """Undoes it and every other exchange in flight; the session exchanges nothing any more."""
        _lib.lib.laconic_exchange_abort(flight.handle)

    def keep(self, layout: "Layout", address: int, dtype: int, *, step: int, index: int = 0) -> None:
        """Adds the gradients at `address` to the residuals, without an exchange: the engine has failed before."""
        flight = Flight(step, index)
        try:
            self._begin(flight, layout, address, dtype)
        except LaconicError as error:
            if error.code != ENGINE_FAILED:
                raise
        else:  # the session has not heard of the failure yet
            self.abort(flight)

    def _begin(self, flight, layout, address, dtype) -> None:
        bucket, flight.elements = layout.bucket(address, dtype, step=flight.step, index=flight.index), layout.elements
        _lib.check(_lib.lib.laconic_exchange_begin(self._handle, ctypes.byref(bucket), ctypes.byref(flight.handle)))

    def _next(self, flight: Flight) -> int:
        """Fetches the next batch of steps; gives their number, 0 at the end."""
        count = ctypes.c_uint32()
        code = _lib.lib.laconic_exchange_next(flight.handle, self._steps, ctypes.sizeof(_lib.Step), len(self._steps),
                                              ctypes.byref(count))
        if code == PEER_FAILED and flight.failure is not None:  # every rank, this one too, hears the same message
            raise LaconicError(flight.failure.code, flight.failure.name, _lib.last_error(code).message, flight.failure.hint)
        if code != 0:
            raise _lib.last_error(code) from registered.raised(self._own)
        return count.value

    def summed(self, issued: float, completed: float) -> None:
        """The caller summed gradients of this step without the session, from one time.perf_counter() to the other."""
        _lib.lib.laconic_session_summed(self._handle, issued, completed)

    def release(self, layout: "Layout") -> None:
        """Frees the buffers of a layout. Every rank does it between the same two exchanges."""
        _lib.check(_lib.lib.laconic_session_release_layout(self._handle, ctypes.byref(layout.bucket(0, layout.dtype))))

    def flush(self, steps: int) -> int:
        """Asks for a flush in `steps` steps; gives the parts that one under way has left (0: there is none)."""
        _lib.check(_lib.lib.laconic_session_flush(self._handle, steps))
        return self._parts_left()

    def flush_steps_left(self) -> int:
        """Of a flush that is under way or asked for; 0: there is none."""
        return self.stats()["flush_steps_left"]

    def _parts_left(self) -> int:
        """The same on all ranks between two steps; as the library reads what may have been loaded."""
        for name, address, _ in self.entries():
            if name == "state/flush":
                left = (ctypes.c_float * 2).from_address(address)[1]
                return int(left) if 1 <= left <= MOST_STEPS else 0
        return 0

    def explain(self) -> dict:
        return json.loads(_lib.lib.laconic_session_explain(self._handle).decode())

    def stats(self) -> dict:
        stats = json.loads(_lib.lib.laconic_session_stats(self._handle).decode())
        stats["wire_seconds"] = self.wire_seconds
        return stats

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
        return {"version": header.version, "rank": header.rank, "world": header.world, "model_hash": header.model_hash,
                "agreement": header.agreement, "spec": header.spec.decode()}

    def accepts(self, saved: dict) -> None:
        """Refuses the header of another rank, world size, model, spec or version. Its fields are those of `header`."""
        header = _lib.StateHeader(**{**saved, "spec": saved["spec"].encode()})
        _lib.check(_lib.lib.laconic_session_state_accepts(self._handle, ctypes.byref(header)))


class Window:
    """Up to `session.window` long exchanges of a session in flight and, where that is 2 or more, _lib.MAX_WINDOW with short ones.
    What is issued when is a function of the order of submission and of sizes, never of time: the first batch of exchange i; then
    all that is left of the oldest ones until another has a place, however long; in `finish` all that is left, in order."""

    def __init__(self, session: CSession):
        self._session = session
        self._flights: collections.deque = collections.deque()  # (exchange in flight, whom its end is told)
        self.waited = 0.0  #: seconds, for an older exchange because as many as may be were in flight

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def submit(self, engine, ended, layout: "Layout", address: int, dtype: int, *, span=no_span, **options) -> None:
        """As CSession.exchange, with its options. ended(error): called once, now or later, in the order of submission, when the
        mean is there (None) or will not come."""
        try:
            flight = self._session.begin(layout, address, dtype, engine, span=span, **options)
        except BaseException as error:  # noqa: BLE001  it has to reach the one that waits for the mean
            return self._failed(engine, ended, error)
        if flight is None:
            return ended(None)
        self._flights.append((flight, ended))
        since = time.perf_counter()
        waits = self._full() and self._session.window > 1
        while self._full():
            self._finish_first(engine, span)
        if waits:
            self.waited += time.perf_counter() - since
        return None

    def _full(self) -> bool:
        """A long exchange would have no place."""
        window = self._session.window
        long = sum(flight.elements > _lib.SHORT_ELEMENTS for flight, _ in self._flights)
        return long >= window or len(self._flights) >= (_lib.MAX_WINDOW if window > 1 else 1)

    def finish(self, engine, *, span=no_span) -> None:
        """Ends all in flight."""
        while self._flights:
            self._finish_first(engine, span)

    def break_off(self, engine, error: LaconicError) -> None:
        """Undoes all in flight; the session exchanges nothing any more. Batches end before anybody uses their memory again."""
        if self._flights:
            self._session.abort(self._flights[0][0])
        while self._flights:
            flight, ended = self._flights.popleft()
            engine.settle(flight.batch)
            ended(error)

    def _finish_first(self, engine, span) -> None:
        flight, ended = self._flights.popleft()
        try:
            self._session.finish(flight, engine, span=span)
        except BaseException as error:  # noqa: BLE001  as above
            return self._failed(engine, ended, error)
        return ended(None)

    def _failed(self, engine, ended, error: BaseException) -> None:
        ended(error)
        if self._session.broken is not None:
            self.break_off(engine, self._session.broken)


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
        self._parts: list[tuple[int, Layout]] | None = None

    @property
    def parts(self) -> list[tuple[int, "Layout"]]:
        """What is exchanged on its own: the element at which it begins, and its layout."""
        return self._parts or [(0, self)]

    def bucket(self, address: int, dtype: int, *, step: int = 0, index: int = 0) -> _lib.Bucket:
        """The library's view of a buffer of this layout."""
        return _lib.Bucket(dtype=dtype, index=index, step=step, buffer=address, elements=self.elements,
                           count=len(self.parameters), parameters=self.c_parameters, offsets=self.c_offsets)

    def cut(self, counts, part: int) -> "Layout":
        """Cuts it between parameters into parts of at most `part` bytes of float32, unless a single parameter has more; 0: not
        at all. counts: elements of the model's parameters. Gives itself."""
        starts = [0]
        for i, (parameter, offset) in enumerate(zip(self.parameters, self.offsets)):
            if part and i > starts[-1] and 4 * (offset + counts[parameter] - self.offsets[starts[-1]]) > part:
                starts.append(i)
        if len(starts) > 1:
            ends = [*starts[1:], len(self.parameters)]
            self._parts = []
            for start, end in zip(starts, ends):
                first = self.offsets[start]
                last = self.elements if end == len(self.parameters) else self.offsets[end]
                self._parts.append((first, Layout(self.parameters[start:end], [o - first for o in self.offsets[start:end]],
                                                  last - first)))
        return self
