# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.Session`: averages gradients of any framework over the ranks of an engine. Only engine="c10d" needs torch."""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
import os
import threading
import weakref

from ..core import _arrays, _lib, environment, errors
from ..core._checks import U32, U64, whole
from ..core.errors import LaconicError
from ..engines import aggregation, plugin
from ..engines.aggregation import ServerOptions
from ..engines.alone import Alone
from ..engines.hosts import Hosts, beyond_ring
from . import launched, trace
from .changes import Changes
from .csession import ALONE, PART, WINDOW, CSession, Layout, Options
from .driver import cards_of_all
from .state import VERSION, check_fields, check_header, check_number, check_seal, check_version, corrupt, of_one_rank, sealed, unsealed

ENGINES = ("auto", "mpi", "gloo", "c10d")
TIMEOUT = 1800.0


class Session:
    """Averages a model's gradients over all ranks, compressed.

        with laconic.Session("3lc", [("w1", (64, 256)), ("b1", (256,))]) as session:
            for step in range(300):
                gradient[:] = ...              # float32, all parameters, contiguous
                session.average(step, gradient)

    With one rank gradients stay as they are. Call `average` from one thread at a time; `stats` and `explain` may be called from any
    thread at any time. Attributes: `rank`, `world`, `spec`.
    """

    def __init__(self, spec: str, parameters, engine: str = "auto", *, seed: int = 0, small_elements: int = 4096,
                 strategy: str = "auto", down: str | None = None, threads: int = 1, window: int = WINDOW, part: int = PART, timeout: float = TIMEOUT,
                 aggregator: str | None = None, token=None, quorum: float = 1.0, deadline_ms: float = 20.0,
                 auth: str = "header", multicast: bool = False, rules=None, control: str | None = None,
                 record: str | os.PathLike | None = None,
                 rank: int | None = None, world: int | None = None, rendezvous: str | None = None, interface: str | None = None,
                 group=None):
        """Collective: every rank creates the session with the same spec, parameters and options.

        Args:
            spec: codec and settings, such as "3lc:s=1.5" or "topk:ratio=0.01" (`laconic list`).
            parameters: (name, shape) pairs, in the order of their gradients in the array.
            engine: "mpi": the processes that mpirun started, or this one alone; "gloo"; "c10d": a process group of torch. "auto": the
                first that docs/guide/engines.md's table finds started, or this process alone; arguments below decide before it.
            seed: seed for all random streams; must be the same on every rank.
            small_elements: parameters of at most this many elements are sent uncompressed.
            strategy: "auto", "native_sum", "gather_all", "two_shot" or "server_sum".
            down: spec of the means that owners send, as in `laconic.attach`.
            threads: threads for encoding and decoding on this rank; results do not depend on it.
            window: exchanges in flight at a time, 1 to 8; must be the same on every rank.
            part: maximum bytes of float32 per exchange; must be the same on every rank. Larger arrays are cut between parameters.
                0: the array is not cut.
            timeout: seconds that a rank waits for the others; "c10d" uses its group's timeout.
            aggregator, token, quorum, deadline_ms, auth, multicast: aggregation servers, as in `laconic.attach`.
            rules, control: parameters with another spec, and the control policy, as in `laconic.attach`.
            record: file in which rank 0 records reports and decisions, as in `laconic.attach`.
            rank, world: required by "gloo", unless "auto" has found them. "mpi" takes them from the launcher and rejects others.
            rendezvous: for "gloo": "file:FOLDER", an empty folder that all ranks can access, or "tcp:HOST:PORT", where rank 0 listens.
            interface: for "gloo": name of the network interface.
            group: for "c10d": the process group. Default: the group of all ranks.

        Raises:
            LaconicError: on every rank, if their arguments differ or if one rank cannot create its session.
        """
        self._lock, self._in_use = threading.RLock(), threading.RLock()
        self._last_words: tuple[dict, dict] | None = None
        self._next_step = 0
        self._failures: list[BaseException] = []  # of the last average()
        self._open_engine(engine, timeout, rank, world, rendezvous, interface, group)
        try:
            options = Options(spec=spec, seed=seed, small_elements=small_elements, strategy=strategy, down=down, threads=threads, window=window,
                              part=part, rules=rules, control=control, record=record)
            named = ServerOptions(aggregator=aggregator, token=token, quorum=quorum, deadline_ms=deadline_ms, auth=auth, multicast=multicast)
            self._session, self._layout = self._open_session(options, named, parameters, rank, world, timeout)
        except BaseException:
            self._end_engine()
            raise
        if self.rank == 0:
            environment.report_unknown()
        if self.world == 1:
            environment.say(ALONE)
        self._changes = Changes()
        self._session.trace = trace.from_environment(self.rank, self._session.window)
        ours = weakref.WeakMethod(self._exchange_ended)
        self._driver = self._session.driver(self._engine, lambda *ending: ours()(*ending))
        explained = self._session.explain()
        self.spec: str = explained["spec"]
        if self.rank == 0 and (warning := beyond_ring(explained)):
            environment.say(warning, logging.WARNING)

    # ---- set-up ---------------------------------------------------------------------------------------------------------------

    def _open_engine(self, engine, timeout, rank, world, rendezvous, interface, group) -> None:
        self._sibling = None
        timeout = _seconds(timeout)
        if (rank is None) != (world is None):
            raise errors.error("invalid_argument", f"rank is {rank!r} and world is {world!r}", "give both or neither")
        place = None
        if engine == "auto":
            place = _chosen(rendezvous, group)
            engine = place.engine
            if engine == "gloo" and place.host:
                rank, world = (place.rank, place.world) if rank is None else (rank, world)
                rendezvous = place.rendezvous()
        if engine != "gloo" and (rendezvous is not None or interface is not None):
            raise errors.error("invalid_argument", f"engine {engine!r} does not accept rendezvous or interface",
                               'they are for engine="gloo"')
        if engine != "c10d" and group is not None:
            raise errors.error("invalid_argument", f"engine {engine!r} does not accept group", 'it is for engine="c10d"')
        if engine == "mpi":
            self._engine = plugin.open_mpi(timeout=timeout)
        elif engine == "gloo":
            if rank is None or rendezvous is None:
                raise errors.error("invalid_argument", "engine='gloo' needs rank, world and rendezvous",
                                   'rendezvous is "file:FOLDER" or "tcp:HOST:PORT"')
            world = whole("world", world, 1, U32)
            options = {"rank": whole("rank", rank, 0, world - 1), "world": world,
                       "rendezvous": _text("rendezvous", rendezvous), "interface": _text("interface", interface)}
            self._engine = plugin.PluginEngine(plugin.gloo_path(), timeout=timeout, **options)
        elif engine == "c10d":
            self._engine = self._open_c10d(group)
        elif place is not None:
            self._engine = Alone()
        else:
            raise errors.error("invalid_argument", f"unknown engine {engine!r}", "one of " + ", ".join(ENGINES))
        self.rank, self.world = self._engine.rank, self._engine.world
        if place is not None and self.rank == 0:
            environment.say(place.said(self.world, rendezvous))

    def _open_c10d(self, group):
        try:
            import torch.distributed as dist
        except ImportError as error:
            raise errors.error("unsupported", f'engine="c10d" needs torch: {error}',
                               "pip install torch, or use engine mpi or gloo") from None
        from ..engines.c10d import Engine
        from ..engines.group import Meeting, Sibling

        if group is None:
            if not (dist.is_available() and dist.is_initialized()):
                raise errors.error("invalid_argument", "torch has no process group yet",
                                   "call torch.distributed.init_process_group first")
            group = dist.group.WORLD
        self._sibling = Sibling(group, Meeting(group, ""))
        return Engine(self._sibling.group, of=group)

    def _open_session(self, options: Options, named: ServerOptions, parameters, rank, world, timeout: float) -> tuple[CSession, Layout]:
        """Everything that one rank may refuse, and the agreement of all of them."""
        session = layout = failure = servers = None
        sums = self._engine.probe_sums()
        hosts = None if self._engine.of_cpp else Hosts.of(self._engine)  # ranks of C++ know no such round
        try:
            if rank is not None and (rank, world) != (self.rank, self.world):
                raise errors.error("invalid_argument", f"the launcher started this rank as {self.rank} of {self.world}, requested was "
                                   f"rank {rank} of {world}", "omit rank and world: the launcher sets them")
            listed, options = _listed(parameters), options.read()
            servers = aggregation.of(named, strategy=options.strategy)
            if servers is not None:
                servers.open(self.world, timeout)
            session = options.session(listed, rank=self.rank, world=self.world, engine_sums=sums, short_sends=self._engine.short_sends,
                                      aggregates=servers is not None, strategy=options.strategy if servers is None or options.rules else "server_sum",
                                      ranks_per_host=1 if hosts is None else hosts.fullest)
            layout = _layout(listed)
        except LaconicError as error:  # the other ranks are about to compare cards with us
            failure = aggregation.without_codes(error, str(options.spec))
        except Exception as error:  # noqa: BLE001  an argument of a wrong type
            failure = errors.error("invalid_argument", f"{type(error).__name__}: {error}", "see help(laconic.Session)")
        cards = cards_of_all(self._engine, session, failure, "create its session")
        if servers is not None or not self._engine.of_cpp:  # ranks of C++ know no such round
            aggregation.agree(self._engine, servers)
        session.check(cards)
        if servers is not None and self.world > 1:
            self._engine = servers.join(self._engine, session)
        return session, layout

    # ---- exchange -------------------------------------------------------------------------------------------------------------

    def average(self, step: int, array) -> None:
        """Replaces `array` by its mean over all ranks. Every rank calls it with the same step.

        Args:
            step: number of the step; must increase.
            array: float32, C-contiguous, writable, with all parameters in order: a NumPy array or any object with a buffer or an
                __array_interface__.

        Raises:
            LaconicError: on every rank, if one fails (a wrong array, out of memory). The contents of `array` are then undefined, and
                the next step may be called. After a failure of the engine every later call fails; gradients that were not delivered
                are kept in the residuals.
        """
        with self._lock:
            self._check_open()
            if self._session.waiting and self._session.broken is None:
                self._set_what_waits()
            failure = memory = None
            try:
                step = whole("step", step, 0, U64 >> 1)
                memory = _arrays.floats_in_place(array, self._layout.elements)
            except LaconicError as error:  # the other ranks are about to exchange theirs
                failure = error
            except Exception as error:  # noqa: BLE001
                failure = errors.error("invalid_argument", f"{type(error).__name__}: {error}", "pass a flat float32 array")
            if failure is not None and self._session.broken is not None:
                raise self._session.broken
            if failure is not None:
                step = self._next_step if type(step) is not int or not 0 <= step <= U64 >> 1 else step
            self._next_step = step + 1
            whole_before = self._session.broken is None
            failures = self._exchange(step, memory, failure)
            if self._session.broken is not None and whole_before:
                plugin.keep_for_good(self._session, self._driver, memory, array)
            if failures:
                raise failures[0] if failure is None or self._session.broken is not None else failure
            self._tell_changes()

    def _exchange(self, step: int, memory, failure: LaconicError | None) -> list[BaseException]:
        """Returns the failures."""
        driver, failures, broken = self._driver, self._failures, self._session.broken
        failures.clear()
        codes = [driver.submit(self._layout, ctypes.addressof(memory) if failure is None else 0, _lib.F32, step=step, failure=failure),
                 driver.finish()]
        if any(codes) and not failures:
            failures.append(self._session.broken or _lib.last_error(max(codes)))
        if broken is not None:
            return [broken]
        return [error if error.__cause__ is None or isinstance(error.__cause__, Exception) else error.__cause__  # or KeyboardInterrupt
                for error in failures]

    def _exchange_ended(self, _tokens, _parts, error: LaconicError | None) -> None:
        if error is not None:
            self._failures.append(error)

    def _check_open(self) -> None:
        if self._last_words is not None:
            raise errors.error("invalid_argument", "this session is closed", "create another one")

    def _tell_changes(self, *, last: bool = False) -> None:
        if self.rank == 0 and self._session.reports:
            self._changes.tell(self.explain, last=last)

    # ---- what users ask --------------------------------------------------------------------------------------------------------

    def stats(self) -> dict:
        """Counters: steps, dense_bytes, wire_bytes, ratio, encode/decode/wire seconds, fallbacks, …"""
        with self._in_use:
            return self._stats() if self._last_words is None else self._last_words[0].copy()

    def _stats(self) -> dict:
        return {**self._driver.stats(), **self._aggregating("stats")}

    def _aggregating(self, what: str) -> dict:
        return getattr(self._engine, what)() if isinstance(self._engine, aggregation.AggregatingEngine) else {}

    def explain(self) -> dict:
        """The plan and its reasons: spec, strategy, reason, each parameter's codec and largest payload, engine and library."""
        with self._in_use:
            return self._explain() if self._last_words is None else self._last_words[1].copy()

    def _explain(self) -> dict:
        return {**self._session.explain(), **self._aggregating("explain"), "engine": getattr(self._engine, "name", "c10d"),
                "library": getattr(self._engine, "library", "torch")}

    def flush(self, steps: int = 10) -> int:
        """Sends the residuals: an equal part of them in each of `steps` steps (1 to 65535; 1: all at once).

        Returns the number of calls of `average` until the residuals are empty; the first of these carries the request to the other
        ranks. One rank's call is enough. A flush that is already running is not changed.
        """
        with self._lock:
            self._check_open()
            steps = whole("steps", steps, 1, 65535)
            return self._session.flush(steps) or steps + 1

    def set(self, spec: str | None = None, rules=None, control: str | None = None) -> None:
        """Changes settings from the next call of `average` on; arguments that are None keep their setting, and residuals are kept.

        Collective: every rank calls it with the same arguments. All ranks change or none does: if one cannot, or if ranks differ, all
        raise the same LaconicError and continue as before. A setting without error feedback (`none`, `bf16`, `+noef`) cannot keep
        residuals: they are sent first, over several steps, and the setting takes effect after that. docs/guide/control.md.
        """
        with self._lock:
            self._check_open()
            if self._session.broken is not None:
                raise self._session.broken
            if self._driver.set(spec, rules, control):
                self._take_settings()
            elif self.rank == 0:
                environment.say(f"set: residuals are sent first, over {self._session.flush_steps_left()} steps or more")

    def _take_settings(self) -> None:
        explained = self._session.explain()
        self.spec = explained["spec"]
        if self.rank == 0:
            environment.say(f"set from step {self._next_step} on: {self.spec} by {explained['strategy']}")

    def _set_what_waits(self) -> None:
        """A setting that cannot take effect is logged, and averaging continues."""
        try:
            if self._driver.set_what_waits():
                self._take_settings()
        except LaconicError as error:
            if self.rank == 0 and self._session.broken is None:  # else the exchange has the message
                environment.say(f"set: {error}; averaging continues with {self.spec}", logging.WARNING)

    def state_dict(self) -> dict:
        """The state from which this rank continues bit for bit, as plain data: {"version", "header", "part", "entries"}; entries maps names to the
        bytes of little-endian float32 values. Residuals differ between ranks: save one state per rank, after the same step.
        """
        with self._lock:
            self._check_open()
            return sealed({"version": VERSION, "header": self._session.header(), "part": self._part(),
                           "entries": {name: ctypes.string_at(address, 4 * count) if count else b""
                                       for name, address, count in self._session.entries()}})

    def load_state_dict(self, state: dict) -> None:
        """Restores this rank's state_dict.

        Raises:
            LaconicError: the state is damaged, or belongs to another rank, world, model, spec or version, or, where the engine sums,
                to another `part` (it would change the last bits of sums). Nothing is changed then.
        """
        with self._lock:
            self._check_open()
            check_fields("it", state, {"version", "header", "part", "entries"})
            check_version(state["version"])
            header = unsealed(state)["header"]
            check_header(header)
            self._session.accepts(header)
            if check_number("part", state["part"], U64) != self._part() and self.world > 1:
                raise errors.error("state_spec", f"state: expected one saved with part={self._part()}, found part={state['part']}",
                                   "the engine sums parts: another part size would change the last bits of its sums")
            entries = list(self._session.entries())
            saved = of_one_rank(state["entries"]) if self.world == 1 else state["entries"]
            check_fields("entries", saved, {name for name, _, _ in entries})
            ready = [_checked(self._session, i, name, saved[name]) for i, (name, _, _) in enumerate(entries)]
            check_seal(state)
            for (_, address, count), values in zip(entries, ready):
                if count:
                    ctypes.memmove(address, values, 4 * count)

    def _part(self) -> int:
        return self._session.part if self._session.layout_matters else 0

    def gather_bytes(self, data: bytes) -> bytes:
        """Every rank's `data`, of the same length on all ranks, in rank order. Collective, between two calls of `average`."""
        with self._lock:
            self._check_open()
            if self._session.broken is not None:
                raise self._session.broken
            return (self._engine.inner if isinstance(self._engine, aggregation.AggregatingEngine) else self._engine).gather_bytes(data)

    # ---- the end -----------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Frees the session; stats() and explain() stay available. Call it on every rank or on none: it also runs at the end of the process."""
        with self._lock, self._in_use:
            if self._last_words is not None:
                return
            self._last_words = self._stats(), self._explain()
            self._tell_changes(last=True)
            if self._session.waiting and self.rank == 0:
                environment.say("set: the session ended before all residuals were sent; nothing was changed", logging.WARNING)
            if self._session.broken is None:
                self._driver.close()
                self._session.close()
            elif self._session.trace is not None:
                self._session.trace.close()
            self._end_engine()

    def _end_engine(self) -> None:
        if isinstance(self._engine, aggregation.AggregatingEngine):
            self._engine.leave()
            self._engine = self._engine.inner
        if self._sibling is None:
            self._engine.close()
        elif getattr(self, "_session", None) is None or self._session.broken is None:
            self._sibling.release()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind, error, where) -> None:
        if isinstance(error, SystemExit) and error.code:
            plugin.abandon()
        self.close()


# ---- arguments ------------------------------------------------------------------------------------------------------------


def _chosen(rendezvous, group) -> launched.Place:
    """For engine="auto"."""
    if rendezvous is not None and group is not None:
        raise errors.error("invalid_argument", "rendezvous and group name two engines", 'rendezvous is for "gloo", group for "c10d"')
    if rendezvous is not None:
        return launched.Place("gloo", "rendezvous=")
    return launched.Place("c10d", "group=") if group is not None else launched.place()


def _seconds(timeout) -> float:
    try:
        seconds = float(timeout)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 < seconds <= 1e8:
        raise errors.error("invalid_argument", f"timeout is {timeout!r}", "seconds, above 0")
    return seconds


def _checked(session: CSession, i: int, name: str, saved):
    """A saved entry as the session takes it."""
    if not isinstance(saved, (bytes, bytearray)) or len(saved) % 4:
        raise corrupt(f"{name} is {type(saved).__name__}, not the bytes of float32 values")
    values = (ctypes.c_float * (len(saved) // 4)).from_buffer_copy(saved)
    _lib.check(_lib.lib.laconic_session_state_check(session._handle, i, values, len(values)))  # noqa: SLF001
    return values


def _text(name: str, value) -> str | None:
    if value is not None and (not isinstance(value, str) or "\0" in value):
        raise errors.error("invalid_argument", f"{name} is {value!r}", "a str without NUL")
    return value


def _listed(parameters) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every parameter; a shape may be a single number."""
    listed = []
    for entry in parameters:
        try:
            name, shape = entry
        except (TypeError, ValueError):
            raise errors.error("invalid_argument", f"a parameter is {entry!r}",
                               'use a pair of name and shape, such as ("w1", (64, 256))') from None
        dims = shape if isinstance(shape, (tuple, list)) else (shape,)
        listed.append((name, tuple(whole(f"the shape of {name!r}", d, 0, U64) for d in dims)))
    return listed


def _layout(parameters) -> Layout:
    counts = [math.prod(shape) for _, shape in parameters]
    offsets = [0, *itertools.accumulate(counts)]
    return Layout(range(len(counts)), offsets[:-1], offsets[-1])
