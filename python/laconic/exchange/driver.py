# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The library's driver over an engine of Python: what cuts, joins and exchanges buckets, and agrees with the other ranks. No torch in here."""

from __future__ import annotations

import ctypes
import time
import weakref

from ..codec import registered
from ..core import _lib, errors
from ..core._checks import text
from ..core.errors import LaconicError
from .rules import array_of, given

PEER_FAILED, ENGINE_FAILED = errors.CODES["peer_failed"], errors.CODES["engine_failed"]


class _Nothing:
    """A profiler span that is not recorded."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


_NOTHING = _Nothing()


def no_span(_name):
    """No profiler looks."""
    return _NOTHING


def engine_failed(error: BaseException) -> LaconicError:
    """An exception of the engine as an error of this package."""
    if isinstance(error, LaconicError):  # a plug-in says itself what it is
        return error
    return errors.error("engine_failed", f"{type(error).__name__}: {error}",
                        "a peer is gone or the network failed; restart from the last checkpoint")


def _failure(error: LaconicError | None, rank: int | None = None):
    """As the library takes it; null: none. `rank`: of the job, whose failure it is, if not this one's in the engine."""
    if error is None:
        return None
    return ctypes.byref(_lib.Failure(code=error.code, rank=0 if rank is None else 1 + rank, message=error.message.encode(),
                                     hint=(error.hint or "").encode()))


class Table:
    """An engine as the library's table of callbacks. What one of them raises is kept: `raised`."""

    def __init__(self, engine, span=no_span):
        self.engine = engine
        self.wire_seconds = 0.0
        self.raised: BaseException | None = None
        self._span, self._decoding = span, _NOTHING
        self._batches: dict[int, object] = {}
        self._number = 0
        self._completed = ctypes.c_double()
        self.c = _lib.EngineTable(rank=engine.rank, world=engine.world, start=_lib.START(self._start), wait=_lib.WAIT(self._wait),
                                  settle=_lib.SETTLE(self._settle), completed=ctypes.pointer(self._completed))

    def _start(self, _, steps, _size, count, ticket, message, room) -> int:
        try:
            self.computed()
            begin = time.perf_counter()
            batch = self.engine.start(steps, count)
            self.wire_seconds += time.perf_counter() - begin
            self._number += 1
            self._batches[self._number] = batch
            ticket[0] = self._number
        except BaseException as error:  # noqa: BLE001  it has to get past the library
            return self._failed(error, message, room)
        return 0

    def _wait(self, _, ticket, _timeout, message, room) -> int:
        try:
            self.computed()
            begin = time.perf_counter()
            batch = self._batches.pop(ticket)
            with self._span("laconic::wire"):
                self.engine.wait(batch)
            now = time.perf_counter()
            self.wire_seconds += now - begin
            self._completed.value = getattr(batch, "completed", None) or now
            self._decoding = self._span("laconic::decode")
            self._decoding.__enter__()
        except BaseException as error:  # noqa: BLE001
            return self._failed(error, message, room)
        return 0

    def _settle(self, _, ticket) -> None:
        try:
            batch = self._batches.pop(ticket, None)
            if batch is not None:
                self.engine.settle(batch)
        except BaseException as error:  # noqa: BLE001
            self.raised = self.raised or error

    def _failed(self, error: BaseException, message, room: int) -> int:
        self.raised = self.raised or error
        failed = engine_failed(error)
        said = failed.message.encode()[: room - 1].decode(errors="ignore").encode()
        ctypes.memmove(message, said + b"\0", len(said) + 1)
        return failed.code

    def encodes(self):
        """Starts a span of the library's computation, until its next callback."""
        self._decoding = self._span("laconic::encode")
        self._decoding.__enter__()

    def computed(self) -> None:
        decoding, self._decoding = self._decoding, _NOTHING
        decoding.__exit__(None, None, None)


def cards_of_all(engine, session, failure: LaconicError | None, what: str, rank: int | None = None) -> bytes:
    """Every rank learns whether any rank could not do `what`; `rank` of the job, if given, could not on this rank's side. Gives the cards,
    for CSession.check."""
    table, cards = Table(engine), ctypes.create_string_buffer(_lib.AGREEMENT_BYTES * engine.world)
    code = _lib.lib.laconic_agree(ctypes.byref(table.c), None if failure is not None else session.handle, _failure(failure, rank), what.encode(),
                                  cards)
    if table.raised is not None:
        raise table.raised
    _check_alike(code, failure)
    return cards.raw


def _check_alike(code: int, failure: LaconicError | None) -> None:
    """Raises what all ranks report, which may be this rank's own failure."""
    if code == 0:
        return
    error = _lib.last_error(code)
    raise failure if failure is not None and code == failure.code and failure.message.startswith(error.message) else error


class Driver:
    """The library's driver, for a session. `ended(tokens, parts, error)`: an exchange has ended that carried buckets with these
    tokens, each of which takes this number of exchanges. `node`: the engine and the ranks of this rank's node, whose sessions exchange
    other shards. Single-threaded; `session.broken` is the engine's first failure."""

    def __init__(self, session, engine, ended, span=no_span, node=None):
        self._session, self._ended_call = session, ended
        self.table = Table(engine, span)
        self._inside = Table(node[0]) if node else None
        self._raised: BaseException | None = None  # out of `ended`
        self._failures: dict[int, LaconicError] = {}  # by token, of this step
        self._may_wait = False  # what was submitted last, for others
        trace = session.trace
        traced = _lib.TRACED(lambda _, *event: trace.phase(*event)) if trace is not None else _lib.TRACED()
        ours = weakref.WeakMethod(self._ended)  # the library holds the callbacks, which hold no driver
        options = _lib.DriverOptions(engine=ctypes.pointer(self.table.c), ended=_lib.ENDED(lambda _, ending: ours()(ending)), traced=traced)
        if node:
            options.inside, options.ranks = ctypes.pointer(self._inside.c), (ctypes.c_uint32 * len(node[1]))(*node[1])
        self._handle = ctypes.c_void_p()
        _lib.check(_lib.lib.laconic_driver_create(session.handle, ctypes.byref(options), ctypes.byref(self._handle)))
        self._destroy = weakref.finalize(self, _destroy, self._handle, options, session)
        self._destroy.atexit = False

    def _ended(self, ending) -> None:
        try:
            self.table.computed()
            this = ending.contents
            error = None
            if this.code != 0:
                error = LaconicError(this.code, _lib.error_name(this.code), this.message.decode(errors="replace"),
                                     this.hint.decode(errors="replace"))
                error.__cause__ = registered.raised(self._session.own)
                if self._heard() is None and error.code == ENGINE_FAILED:  # a callback was interrupted before it could keep why
                    self._session.broken = error
            tokens = this.tokens[: this.count]
            failure = next((self._failures[token] for token in tokens if token in self._failures), None)
            if failure is not None and this.code == PEER_FAILED:  # every rank gets the same message
                error = LaconicError(failure.code, failure.name, error.message, failure.hint)
            self._ended_call(tokens, this.parts[: this.count], self._heard() or error)
        except BaseException as error:  # noqa: BLE001  raised after the library's call
            self._raised = self._raised or error

    def _heard(self) -> LaconicError | None:
        """The engine's failure, if it has failed: the cause of all that follows."""
        session, raised = self._session, self.table.raised
        if self._inside is not None:
            raised = raised or self._inside.raised
        if session.broken is None and raised is not None:
            session.broken = engine_failed(raised)
            if session.broken is not raised:
                session.broken.__cause__ = raised
        return session.broken

    def _call(self, function, *arguments) -> int:
        code = function(self._handle, *arguments)
        self.table.computed()
        self._heard()
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised
        return code

    def _check(self, code: int) -> None:
        if code != 0:
            raise self._session.broken or _lib.last_error(code)

    def submit(self, layout, address: int, dtype: int, *, step: int, index: int = 0, token: int = 0, failure: LaconicError | None = None,
               apart: bool = False, whole: bool = False) -> int:
        """Submits the gradients at `address`, which their means replace, or the reason why there are none. Returns a code, which
        `ended` reports as well."""
        self.table.encodes()
        self._may_wait = not apart
        if failure is not None:
            self._failures[token] = failure
        bucket = layout.bucket(address, dtype, step=step, index=index)
        return self._call(_lib.lib.laconic_driver_submit, ctypes.byref(bucket), _lib.SUBMIT_APART * apart | _lib.SUBMIT_WHOLE * whole,
                          token, _failure(failure))

    def drain(self) -> int:
        """Ends all that was submitted, and not the step."""
        if self._may_wait:
            self.table.encodes()
        return self._call(_lib.lib.laconic_driver_drain)

    def finish(self) -> int:
        """Ends all that was submitted in this step."""
        if self._may_wait:
            self.table.encodes()
        code = self._call(_lib.lib.laconic_driver_finish)
        self._failures.clear()
        return code

    def set_replicas(self, replicas, begins: bool) -> None:
        """For a session with owner_turns: (address, dtype) of every parameter in host memory. `begins`: masters take their values."""
        listed = (_lib.Replica * max(len(replicas), 1))(*(_lib.Replica(values=address, dtype=dtype) for address, dtype in replicas))
        self._check(self._call(_lib.lib.laconic_driver_set_replicas, listed, len(replicas), int(begins)))

    def owned(self) -> list[tuple[int, int, int, int]]:
        """(parameter, offset, count, address of the master) of the ranges that this rank owns. A master stays where it is."""
        count = ctypes.c_uint32()
        _lib.check(_lib.lib.laconic_driver_owned(self._handle, None, 0, ctypes.byref(count)))
        ranges = (_lib.OwnedRange * max(count.value, 1))()
        _lib.check(_lib.lib.laconic_driver_owned(self._handle, ranges, count.value, ctypes.byref(count)))
        return [(r.parameter, r.offset, r.count, r.master) for r in ranges[: count.value]]

    def turns(self) -> tuple[bool, dict[tuple[int, int], int], float]:
        """Ends the pushes of a step. Whether it is skipped, as some rank's gradient is not finite; (parameter, offset) → address of the
        mean, until pull; sum of squares of the means. pull() follows, after a LaconicError too."""
        turns = _lib.Turns()
        self.table.encodes()
        self._check(self._call(_lib.lib.laconic_driver_turns, ctypes.byref(turns)))
        return turns.skips != 0, {(r.parameter, r.offset): r.mean for r in turns.ranges[: turns.count]}, turns.sum_of_squares

    def pull(self, failure: LaconicError | None = None) -> bool:
        """Ends the step: parameters move by what masters are ahead. False: nothing moved. `failure`: this rank's turn failed."""
        skipped = ctypes.c_uint32()
        self.table.encodes()
        code = self._call(_lib.lib.laconic_driver_pull, _failure(failure), ctypes.byref(skipped))
        failures = [*self._failures.values(), *([] if failure is None else [failure])]
        self._failures.clear()
        if code == PEER_FAILED and failures:
            heard = _lib.last_error(code)
            own = next((f for f in failures if f.message in heard.message), None)
            raise heard if own is None else LaconicError(own.code, own.name, heard.message, own.hint)
        self._check(code)
        return skipped.value == 0

    def break_off(self, error: LaconicError) -> None:
        """Undoes all that was submitted and has not ended: the session exchanges nothing any more."""
        self._session.broken = self._session.broken or error
        self._call(_lib.lib.laconic_driver_break_off, _failure(error))

    def release(self, layout) -> None:
        """Frees the buffers of a layout and its parts. Every rank does it between the same two exchanges."""
        self._check(self._call(_lib.lib.laconic_driver_release, ctypes.byref(layout.bucket(0, layout.dtype))))

    def exchanges(self, layouts, apart: bool) -> list[tuple[int, ...]]:
        """The parameters of each exchange, were the layouts submitted in a step."""
        buckets = (_lib.Bucket * max(len(layouts), 1))(*(layout.bucket(0, layout.dtype or _lib.F32) for layout in layouts))
        numbers = (ctypes.c_uint32 * max(sum(len(layout.parameters) for layout in layouts), 1))()
        _lib.check(_lib.lib.laconic_driver_exchanges(self._handle, buckets, len(layouts), int(apart), numbers))
        carried: dict[int, list[int]] = {}
        for number, parameter in zip(numbers, (p for layout in layouts for p in layout.parameters)):
            carried.setdefault(number, []).append(parameter)
        return [tuple(parameters) for parameters in carried.values()]

    @property
    def abandoned(self) -> bool:
        """A collective that has not ended uses memory of it."""
        return any(table.engine.abandoned for table in (self.table, self._inside) if table is not None)

    def set(self, spec: str | None, rules, control: str | None) -> bool:
        """Other settings from the next step on, on all ranks or, with one message, on none. What is None stays. False: they wait
        until residuals that they have no place for have gone out; then `set_what_waits` takes them."""
        failure = None
        settings, waits = _lib.Settings(strategy=_lib.KEEP, rule_count=_lib.KEEP), ctypes.c_uint32()
        try:
            if self._session.own or registered.find(spec):
                raise errors.error("unsupported", "the settings of a registered codec cannot change", "attach again with other settings")
            if spec is not None:
                settings.spec = text("spec", spec)
            if control is not None:
                settings.control = text("control", control)
            if rules is not None:
                rules = given(rules)
                settings.rules, settings.rule_count = array_of(rules), len(rules)
        except LaconicError as error:  # the other ranks are about to compare cards with us
            failure = error
        except Exception as error:  # noqa: BLE001  an argument of a wrong type
            failure = errors.error("invalid_argument", f"{type(error).__name__}: {error}", "spec and control are str, rules a list")
        code = self._call(_lib.lib.laconic_driver_set, ctypes.byref(settings), _failure(failure), ctypes.byref(waits))
        if self._session.broken is None:
            _check_alike(code, failure)
        self._check(code)
        self._session.waiting = waits.value != 0
        if not self._session.waiting:
            self._session.read_settings(changed=True)
        return not self._session.waiting

    def set_what_waits(self) -> bool:
        """Between two steps, where something waits. True: it holds."""
        done = ctypes.c_uint32()
        code = self._call(_lib.lib.laconic_driver_set_what_waits, ctypes.byref(done))
        if code != 0 or done.value:
            self._session.waiting = False
        self._check(code)
        if done.value:
            self._session.read_settings(changed=True)
        return bool(done.value)

    def stats(self) -> dict:
        """The session's counters, and the seconds in the engine."""
        return {**self._session.stats(), "wire_seconds": self.table.wire_seconds}

    def close(self) -> None:
        """Frees it, before the session."""
        self._destroy()

    def abandon(self) -> None:
        """Frees nothing, ever: a collective that has not ended uses its memory."""
        self._destroy.detach()


def _destroy(handle, _options, _session) -> None:
    """The session outlives it, and so do the callbacks."""
    _lib.lib.laconic_driver_destroy(handle)
