# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel: the communication hook, and the handle behind it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import re
import time
import weakref

import torch
import torch.distributed as dist

from . import aggregation, environment, errors, names, registered, reports, trace
from ._checks import U64, whole
from ._session import ALONE, CSession, Layout, gather_texts
from .changes import Changes
from .codec import codecs
from .delivery import EndOfBackward, Sum, in_backward
from .driver import cards_of_all, engine_failed
from .engine import lend
from .environment import place
from .errors import LaconicError
from .group import Meeting, group_timeout
from .lane import SharedLane
from .rates import Rates
from .resumed import Resumed
from .rules import chosen, given
from .state import check_fields, check_layout, check_seal, of_one_rank, sealed, unsealed
from .turns import Turns, refused
from .worker import DTYPES, Worker, result, shorten

#: bytes of a bucket up to which its mean is given to DDP at the end of backward(): a copy of more takes longer than two hand-overs
#: of the interpreter
AT_END = 1 << 20


class Handle:
    """What `laconic.attach` gives: counters, explanation, saved state, flush.

    It ends with its wrapper: when that is collected, or `close` is called, everything is freed but for the last counters.
    """

    def __init__(self, ddp, spec, meeting: Meeting, stage, *, seed: int, small_elements: int, strategy: str, down: str | None,
                 threads: int | str, scaler, warmup: int, window: int, part: int, rules, control: str | None, record, aggregator: tuple):
        self._parameters, self._foreign = sorted_out(ddp)
        self._index = {id(p): i for i, (_, p) in enumerate(self._parameters)}
        self._counts = [p.numel() for _, p in self._parameters]
        self._foreign_ids = {id(p) for _, p, _ in self._foreign}
        self._user_group = ddp.process_group
        self._stage = stage
        lane = SharedLane.of(self._user_group, meeting, stage.backend)
        self._sibling = lane.sibling
        opens = functools.partial(self._open, ddp, spec, lane.engine, seed=seed, small_elements=small_elements, strategy=strategy,
                                  down=down, threads=threads, warmup=warmup, window=window, part=part, rules=rules, control=control,
                                  record=record, aggregator=aggregator)
        try:
            session, engine = lane.wait_for(opens)  # behind what other wrappers exchange
        except LaconicError:  # on every rank
            lane.leave()
            raise
        self._read_settings(session)
        self._scaler = scaler
        self._scale = 1.0  # of this iteration's gradients
        self._rates = Rates(self._parameters)
        self._rates_now: dict[str, float] | None = None  # of this iteration
        self._layouts: dict[tuple, Layout] = {}
        self._seen: list[Layout] = []      # this iteration's buckets
        self._last_seen: list[Layout] = []
        self._in_iteration = False
        self._turns = Turns()  # of iterations, and calls that may come from any thread
        self._apart = False  # short buckets do not travel together: a run of an earlier release goes on
        self._since_step = 0  # of the last change of a setting
        self._tells = False   # a bucket of this iteration that PyTorch would sum carries the ranks' reports
        self._at_end = EndOfBackward()
        self._asks_behind_us = False  # for what comes next in this iteration: see EndOfBackward.queue
        self._wrapper = weakref.ref(ddp)
        self._resumed: Resumed | None = None
        #: takes the buckets; see laconic.worker
        session.trace = trace.from_environment(self.rank, session.window)
        self.worker = Worker(session, engine, stage, lane)
        lane.leave()  # the worker has joined it
        self.worker.at_end(self._leave_servers)
        self._wrapper_ends = weakref.finalize(ddp, self.worker.end)
        self._wrapper_ends.atexit = False

    @property
    def step(self) -> int:
        """Iterations since attach, or since the saved run's attach."""
        return self.worker.step

    @property
    def last_error(self) -> LaconicError | None:
        """The last failure of an exchange on this rank."""
        return self.worker.last_error

    @property
    def closed(self) -> bool:
        """Its wrapper has gone, or `close` was called."""
        return self.worker.closed

    @property
    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Names and tensors of what is exchanged here, in the order of saved state."""
        return list(self._parameters)

    # ---- set-up -----------------------------------------------------------------------------------------------------

    def _open(self, ddp, spec, engine, *, warmup, threads, aggregator, strategy, rules, control, record, **options):
        """Everything that one rank may refuse, and the agreement of all of them."""
        self._world, self.rank = engine.world, engine.rank
        sums = engine.probe_sums()
        session, failure, servers, text = None, None, None, ""
        try:
            _refuse_hook(ddp)
            self._threads = self._stage.threads if threads == "auto" else threads
            self.warmup = whole("warmup", warmup, 0, U64 >> 1)
            engine.limiter = engine.limiter or _limiter()
            text, options["rules"] = spec(), names.of_rules(given(rules))
            options["control"], options["record"] = chosen(control), chosen(record, "LACONIC_RECORD")
            servers = aggregation.of(*aggregator, strategy=strategy, limiter=engine.limiter)
            if servers is not None:
                servers.open(self._world, _seconds(self._user_group))
                options["aggregates"] = True
            self._make_session = functools.partial(
                CSession, text, rank=self.rank, world=self._world, engine_sums=sums, short_sends=engine.short_sends, threads=self._threads,
                strategy=strategy if servers is None or options["rules"] else "server_sum", **options)
            session = self._make_session([(n, tuple(p.shape)) for n, p in self._parameters])
        except LaconicError as error:  # the other ranks are about to compare cards with us
            failure = aggregation.without_codes(error, text)
        except Exception as error:  # noqa: BLE001  an argument of a wrong type
            failure = errors.error("invalid_argument", f"{type(error).__name__}: {error}", "see help(laconic.attach)")
        cards = cards_of_all(engine, session, failure, "attach")
        aggregation.agree(engine, servers)
        session.check(cards)
        cards = gather_texts(engine, json.dumps([self.warmup, len(self._foreign), place()]))
        self._check_cards([json.loads(card) for card in cards])
        self._servers = servers
        if servers is not None and not session.all_raw:
            engine = servers.join(engine, session)
        return session, engine

    def _read_settings(self, session) -> None:
        """What follows from a session's settings, at attach and when others are set."""
        explained = session.explain()
        self.spec = explained["spec"]
        self._raw = {i for i, p in enumerate(explained["parameters"]) if p["codec"] == "none"}
        # Sums that are the engine's: then an element's place in the buffer matters.
        self._engine_sums = session.layout_matters or session.all_raw
        self._all_raw = session.all_raw
        self._observes = session.reports
        self._changes = Changes() if session.reports and self.rank == 0 else None

    def _check_cards(self, cards: list) -> None:
        """What the library does not compare. `cards`: of every rank, in rank order."""
        for what, at in (("warmup", 0), ("the number of parameters that no codec takes", 1)):
            other = next((r for r, card in enumerate(cards) if card[at] != cards[0][at]), None)
            if other is not None:
                raise errors.error("ranks_disagree", f"{what} is {cards[0][at]} on rank 0 and {cards[other][at]} on rank {other}",
                                   "give every rank the same call, file and LACONIC_* variables")
        self._one_machine = len({card[2] for card in cards}) == 1

    def register(self, ddp) -> None:
        copied = ddp._comm_hooks  # noqa: SLF001
        copied[:] = [(hook, state) for hook, state in copied if not isinstance(state, PickledHandle)]
        ddp.register_comm_hook(self, laconic_hook)

    def describe(self) -> str:
        """The one line that rank 0 logs at start."""
        e = self.explain()
        packed = [p for p in e["parameters"] if p["codec"] != "none" or p["down"]]
        elements = sum(p["elements"] for p in packed)
        text = f"{dist.get_backend(self._user_group)}, {self._world} rank{'s' if self._world > 1 else ''}, {self._stage.told}"
        if self._world == 1:
            text = f"{e['spec']}: {ALONE}; {text}"
        elif self._all_raw:
            text = (f"{e['spec']}: nothing to compress in {len(e['parameters'])} tensors ({self._why_all_raw(e)}): PyTorch's own "
                    f"all-reduce; {text}")
            if self._servers is not None:
                text += "; the aggregator has nothing to do"
        else:
            specs, strategy = self._told(e)
            text = (f"{specs} on {len(packed)} of {len(e['parameters'])} tensors ({elements} of {e['elements']} elements)"
                    f"{strategy}; {e['uncompressed_elements']} elements as they are; {text}")
            if self._servers is not None:
                text += f"; {self._servers}"
            if any(registered.find(p["codec"]) for p in packed):
                text += "; a registered codec runs in Python, slowly, for trying ideas"
            if self.warmup > self.step:
                text += f"; uncompressed for {self.warmup - self.step} steps"
        if self._foreign:
            named = shorten(f"{name} ({reason})" for name, _, reason in self._foreign)
            text += f"; PyTorch's own all-reduce for what no codec takes: {named}"
        if not self._all_raw and self.worker.engine.limiter is None:
            if self._one_machine and "LACONIC_LAB" not in os.environ:
                text += "; all ranks are on this machine, where compression cannot pay: no network is in between"
        return text

    def _moving_padding(self) -> str:
        """A line where padding rows of embeddings would move, whose gradients are zero; empty: none would."""
        explained, known = self.explain(), codecs()
        specs = {p["name"]: [p["codec"], p["down"] or "none"] for p in explained["parameters"]}
        moving = []
        for module in self._wrapper().module.modules():
            if getattr(module, "padding_idx", None) is None or id(getattr(module, "weight", None)) not in self._index:
                continue
            name = self._parameters[self._index[id(module.weight)]][0]
            for spec in specs[name]:
                if not known.get(re.split("[:+]", spec)[0], {}).get("zero_stays_zero", True):
                    moving.append(f"{name} ({spec})")
        return f"zeros do not stay zero, so padding rows move: {shorten(moving)}; rules give them another spec" if moving else ""

    @staticmethod
    def _told(explained: dict) -> tuple[str, str]:
        """The specs, and the strategy where there is one."""
        settings = [s for s in explained.get("settings", ()) if s["parameters"]]
        controls = sorted({s["control"] for s in settings} - {"fixed"})
        controlled = f", control {' and '.join(controls)}" if controls else ""
        if len(settings) < 2:
            down = f", means come down by {explained['down']}" if explained["down"] else ""
            return explained["spec"], f" by {explained['strategy']}{down}{controlled}"
        return shorten(f"{s['rule']}: {s['spec']} by {s['strategy']}" + (f", down {s['down']}" if s["down"] else "")
                       for s in settings), controlled

    @staticmethod
    def _why_all_raw(explained: dict) -> str:
        if explained["spec"] == "none" and not explained["down"]:
            return "none compresses nothing"
        if not explained["parameters"]:
            return "there is none that a codec takes"
        return f"none has more than {explained['small_elements']} elements"

    # ---- the hook -----------------------------------------------------------------------------------------------------

    def _layout(self, bucket, buffer) -> Layout:
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        layout = self._layouts.get(key)
        if layout is None or layout.elements != buffer.numel():
            if layout is not None:
                self.worker.release(layout)
            try:
                indices = [self._index[k] for k in key]
            except KeyError:
                raise errors.error("state_model", "DDP brings a parameter that was not there at attach",
                                   "attach after the last change of the model") from None
            offsets, at = [], 0
            for p in parameters:
                offsets.append(at)
                at += p.numel()
            layout = self._layouts[key] = self._new_layout(indices, offsets, buffer.numel())
        return layout

    def _new_layout(self, indices, offsets, elements: int) -> Layout:
        # Sums that are the engine's anyway, and nothing else in this bucket.
        return Layout(indices, offsets, elements, direct=self._engine_sums and self._raw.issuperset(indices))

    def on_bucket(self, bucket):
        """Called by DDP in backward(): queues the bucket and returns a future of its mean."""
        worker = self.worker
        worker.check_open()
        if not self._in_iteration:
            self._begin_iteration()
        if self._foreign_ids and id(bucket.parameters()[0]) in self._foreign_ids:  # DDP mixes no element types
            future, then = self._sum_foreign(bucket.buffer())
        else:
            future, then = self._exchange(bucket)
        if then is not result:
            lend(then)
        future = future.then(then)
        if bucket.is_last():
            self._end_iteration()
            self._at_end.queue()
            self._turns.end_step()
        return future

    def _exchange(self, bucket):
        """A future of the bucket's mean and what is to be done with its value."""
        worker, buffer = self.worker, bucket.buffer()
        layout = self._layout(bucket, buffer)
        self._seen.append(layout)
        # Behind a long one none: DDP is to copy that one while the others are on their way.
        small = buffer.numel() * buffer.element_size() <= AT_END
        at_end = self._at_end if (small or bucket.is_last()) and self._asks_behind_us else None
        self._asks_behind_us = self._asks_behind_us and small
        plain = layout.direct or worker.step < self.warmup
        cut = self._resumed is not None and self._is_cut(plain)
        tells, self._tells = self._tells and layout.direct, False
        if plain and not cut and not tells and worker.broken is None:
            size = buffer.numel() * buffer.element_size()
            worker.summed_elsewhere(buffer.numel(), 4 * buffer.numel(), size)
            issued = time.perf_counter() if self._observes else None
            return self._all_reduce(buffer, at_end), functools.partial(self._summed, layout, worker.step, issued=issued)
        options = {"index": bucket.index(), "scale": self._scale, "rates": self._rates_now, "coalesce": not self._apart}
        if not cut:
            return worker.submit(layout, buffer, at_end=at_end, **options), result
        exchange = self._submit_plain if plain and self._stage.cuts_sums and worker.broken is None else worker.submit
        return self._resumed.submit(exchange, layout, buffer, **{**options, "coalesce": self._resumed.joins,
                                                                 "whole": not self._resumed.uncut}), result

    def _is_cut(self, plain: bool) -> bool:
        """After a resume: does this iteration's bucket go out along the saved layout? All of the iteration's do, or none."""
        return self._stage.cuts_sums or not plain or not (self._all_raw or self.worker.step < self.warmup)

    def _begin_iteration(self) -> None:
        self._turns.begin_step()
        self._in_iteration = True
        self._asks_behind_us = self._stage.at_end and not getattr(self._wrapper(), "static_graph", True)
        if self._scaler is not None and self._scaler.is_enabled():
            self._scale = self._stage.scale_of(self._scaler)
        self._rates_now = self._rates.now()
        step = self.worker.step
        if self.worker.session.waiting:
            self._set_what_waits()
        if self._changes is not None:
            self._changes.tell(self.explain)
        self._tells = (self._observes and step >= self.warmup and reports.due(step - self._since_step)
                       and all(layout.direct for layout in self._last_seen))

    def _end_iteration(self) -> None:
        self._in_iteration = False
        self._forget_layouts()
        self._last_seen, self._seen = self._seen, []
        self.worker.next_step()
        if self._resumed is not None:
            apart = self._resumed.end(self.worker, self._last_seen, self._engine_sums)
            if apart is not None:
                self._apart, self._resumed = apart, None

    def _forget_layouts(self) -> None:
        """What DDP brought neither in this iteration nor in the last one: it rebuilds its buckets after the first, and the
        exchange of a bucket holds several times its size."""
        kept = {id(layout) for layouts in (self._seen, self._last_seen) for layout in layouts}
        if len(kept) < len(self._layouts):
            for key, layout in list(self._layouts.items()):
                if id(layout) not in kept:
                    self.worker.release(self._layouts.pop(key))

    def _all_reduce(self, buffer, at_end: EndOfBackward | None = None):
        """Plain DDP: the user group's own sum; no worker is involved. The group itself, not torch.distributed's
        function: between two layers the caches are cold, and every line of Python is felt."""
        buffer.mul_(1.0 / self._world)
        try:
            work = self._user_group.allreduce([buffer])
        except RuntimeError as error:  # out of the hook, DDP would not survive it
            failed = torch.futures.Future()
            failed.set_result(error)
            return failed
        if at_end is None:
            return work.get_future()
        delivery = Sum(work, buffer)
        at_end.add(delivery)
        return delivery.future

    def _summed(self, layout, step, future, *, issued=None):
        try:
            value = future.value()
            if isinstance(value, RuntimeError):
                raise value
        except RuntimeError as error:
            broken = self.worker.break_off(error, layout, step)
            raise RuntimeError(str(broken)) from error
        if issued is not None:
            self.worker.session.summed(issued, time.perf_counter())
        return value[0] if isinstance(value, (list, tuple)) else value

    def _submit_plain(self, layout, pieces, **_):
        """As Worker.submit, by the user group's own sum."""
        ticket = self._stage.fetch(layout, pieces)
        buffer = ticket.host
        self.worker.summed_elsewhere(buffer.numel(), 4 * buffer.numel(), buffer.numel() * buffer.element_size())
        future, step = torch.futures.Future(), self.worker.step

        def summed(done):
            failure = None
            try:
                self._summed(layout, step, done)
            except RuntimeError as error:
                failure = self.worker.broken or engine_failed(error)
            self._stage.deliver(ticket, future, failure)

        lend(summed)
        self._all_reduce(buffer).then(summed)
        return future

    def _sum_foreign(self, buffer):
        """What no codec takes: sparse gradients, float64, complex (which DDP brings as pairs of real numbers)."""
        if self.worker.broken is not None:  # nothing goes out any more
            failed = torch.futures.Future()
            failed.set_result(self.worker.broken)
            return failed, result
        elements = (buffer._values() if buffer.is_sparse else buffer).numel()  # noqa: SLF001
        size = elements * buffer.element_size()
        self.worker.summed_elsewhere(elements, size, size)
        return self._all_reduce(buffer), functools.partial(self._summed, _NO_LAYOUT, self.worker.step)

    # ---- what users ask -------------------------------------------------------------------------------------------------

    def stats(self) -> dict:
        """Counters since attach: steps, dense_bytes, wire_bytes, ratio, encode/decode/wire seconds, fallbacks, …

        May be called from any thread at any time, as may explain(). Buckets without compression, which PyTorch's own
        all-reduce sums, count in steps, elements, rounds and bytes, but not as exchanges or seconds: those are the worker's.
        """
        return self.worker.stats()

    def explain(self) -> dict:
        """What was picked and why: spec, strategy, reason, memory, and every parameter's codec and largest payload, or why it
        is not compressed. docs/guide/pytorch.md has every key."""
        explained = self.worker.explain()
        foreign = [{"name": name, "elements": p.numel(), "codec": "none", "reason": f"no codec takes {reason}"}
                   for name, p, reason in self._foreign]
        stage, threads = self._stage, self._threads
        return {**explained, "warmup": self.warmup, "device": str(stage.device), "path": stage.path, "threads": threads,
                "exchange_backend": self._sibling.backend, "parameters": explained["parameters"] + foreign}

    def flush(self, steps: int = 10) -> int:
        """Drains the residuals: an equal part of them goes out in each of `steps` steps (1 to 65535; 1: all at once).

        Gives the number of the step after which they are empty, `handle.step + steps`: the first step after the call
        carries the wish to the other ranks, the next one is the first that drains. One rank's call is enough; ranks that
        call it give the same number. A flush that is under way goes on as it is, and so does one that was saved with
        state_dict. `stats()["flush_steps_left"]` counts down.
        """
        with self._between_steps("flush"):
            return self.worker.flush(steps)

    def set(self, spec: str | None = None, rules=None, control: str | None = None) -> None:
        """Other settings from the next iteration on: those of `laconic.attach`; what is None stays. Residuals stay, too.

        Every rank makes the call, with the same arguments, between two iterations. All ranks change, or none does: where one
        cannot, or ranks differ, all get one LaconicError and train on as before. A setting without error feedback
        (`none`, `bf16`, `+noef`) has no place for residuals: these go out with the gradients first, in as many steps as they are
        larger, and the setting holds from the iteration behind them. docs/guide/control.md.
        """
        with contextlib.suppress(LaconicError):  # every rank hears of it below
            rules = None if rules is None else names.of_rules(given(rules))
        with self._between_steps("set"):
            if self.worker.set(spec, rules, control):
                self._take_settings()
            elif self.rank == 0:
                environment.say(f"set: residuals go out first, over {self.worker.session.flush_steps_left()} steps or more")

    def _set_what_waits(self) -> None:
        """DDP would not survive an error out of the hook: it is told, and training goes on."""
        try:
            if self.worker.set_what_waits():
                self._take_settings()
        except LaconicError as error:
            if self.rank == 0 and self.worker.broken is None:  # else the exchange has the message
                environment.say(f"set: {error}; training goes on by {self.describe()}", logging.WARNING)

    def _take_settings(self) -> None:
        self._read_settings(self.worker.session)
        self._since_step = self.worker.step
        self._apart = False
        made = {id(layout): self._new_layout(layout.parameters, layout.offsets, layout.elements) for layout in self._layouts.values()}
        self._layouts = {key: made[id(layout)] for key, layout in self._layouts.items()}
        self._last_seen = [made[id(layout)] for layout in self._last_seen]
        if self._resumed is not None and not self._resumed.uncut:
            self._resumed.left = None if self._engine_sums else Resumed.ITERATIONS
        if self.rank == 0:
            environment.say(f"set from step {self.step} on: {self.describe()}")

    def follow(self, optimizer) -> None:
        """Residuals follow the learning rates of a torch optimizer, so that what they hold back still moves the parameters as far
        as it would have: where a rate has changed since the last step, they are multiplied by old/new, each by the rate of its own
        parameter's group. At a rate of 0 they wait for the next positive one.

        Every rank calls it, with its own optimizer of the same rates, before training; with several optimizers, once for each.
        The rates are part of the saved state. No call per step is needed.
        """
        self._rates.follow(optimizer)

    def state_dict(self) -> dict:
        """Everything that this rank must have to continue bit for bit. One per rank: residuals differ.

        From another thread than the one that trains it waits for the end of the step under way, at most for the group's time-out. From
        inside of backward(), a signal handler that comes meanwhile included, it is refused and changes nothing, as are flush, set and
        load_state_dict: save the state that was taken last between two steps. When the engine has failed it always answers.
        """
        with self._between_steps("state_dict"):
            state, named, resumed = self.worker.state_dict(), self.worker.session.names, self._resumed
            layouts = self._last_seen if resumed is None else resumed.layouts
            exchanges = [layout.parameters for layout in layouts]
            if self.worker.step >= self.warmup and (resumed is None or resumed.joins):  # else nothing is cut or joined
                exchanges = self.worker.exchanges(layouts, self._apart)
            return sealed({**state, "layout": [[named[i] for i in parameters] for parameters in exchanges]})

    @contextlib.contextmanager
    def _between_steps(self, call: str):
        """Inside, no step is under way, or none will ever end."""
        worker = self.worker
        worker.check_process()

        def over() -> bool:
            return worker.broken is not None or worker.closed

        if worker.here or over():
            yield
            return
        if in_backward():
            raise refused(call)
        with self._turns.call(call, _seconds(self._user_group), over):
            yield

    def load_state_dict(self, state: dict) -> None:
        """Continues a saved run. Another rank's state, world size, model, spec or version is refused with the reason, a
        damaged one state_corrupt that names what; either changes nothing."""
        self.prepare(state)()

    def prepare(self, state: dict):
        """Checks a saved state as load_state_dict does and changes nothing; gives a call that loads it and cannot fail."""
        check_fields("it", state, {"version", "header", "step", "tensors", "layout"}, {"rates"})
        saved = names.renamed(unsealed(state), self.worker.session, self._under_other_names)
        own = {key: value for key, value in saved.items() if key != "layout"}
        if self._world == 1:
            own["tensors"] = of_one_rank(own["tensors"])
        try:
            with self._between_steps("load_state_dict"):
                load = self.worker.prepare(own)
        except LaconicError as error:
            raise names.with_names(error, saved, self.worker.session.names) from None
        buckets = check_layout(saved["layout"], self.worker.session.names, [p.dtype for _, p in self._parameters],
                               required=state["step"] > 0 and len(self._parameters) > 0)
        check_seal(state)
        first = state["version"] == 1

        def continues():
            with self._between_steps("load_state_dict"):
                load()
                self._apart = False
                self._resumed = self._resume(buckets, first) if buckets else None

        return continues

    def _under_other_names(self, others: list[str]):
        """A session of this model whose parameters have other names."""
        return self._make_session([(name, tuple(p.shape)) for name, (_, p) in zip(others, self._parameters)], record=None, control=None)

    def _resume(self, buckets: list[list[int]], first: bool) -> Resumed:
        """`first`: of a state of version 1, whose buckets travelled apart where the engine adds, and else by the rule of today."""
        uncut, layouts = self.worker.step < self.warmup, []
        for indices in buckets:
            offsets = [0, *itertools.accumulate(self._counts[i] for i in indices)]
            layouts.append(Layout(indices, offsets[:-1], offsets[-1]))
        return Resumed(layouts, self._counts, self._stage.devices, bounded=not self._engine_sums and not uncut, uncut=uncut,
                       joins=uncut or (first and not self._engine_sums))

    def gather_texts(self, text: str) -> list[str]:
        """Every rank's text (500 bytes of UTF-8 at most), in rank order. Collective: every rank makes the call, between two
        iterations."""
        with self._between_steps("gather_texts"):
            return self.worker.gather_texts(text)

    def at_end(self, callback) -> None:
        """`callback()` is called once when the wrapper goes away or the handle is closed, in a thread of laconic's; state_dict
        and parameters are whole then. Not at the end of the process: see atexit."""
        self.worker.at_end(callback)

    def close(self) -> None:
        """Ends the worker and frees what it holds; stats() and explain() stay. The model cannot exchange afterwards. Every
        rank calls it."""
        self.worker.close()
        if self.worker.session.waiting and self.rank == 0:
            environment.say("set: residuals were not out when training ended; nothing was set", logging.WARNING)
        self.tell_last_changes()

    def tell_last_changes(self) -> None:
        """On rank 0, what laws have changed and nothing has told yet. close() does it."""
        if self._changes is not None:
            self._changes.tell(self.explain, last=True)

    def _leave_servers(self) -> None:
        if isinstance(self.worker.engine, aggregation.AggregatingEngine):
            self.worker.engine.leave()

    def __reduce__(self):
        return PickledHandle, (self.spec,)


class PickledHandle:
    """What a pickle, or a copy, of a wrapper has of its handle: the spec. The residual stays where it is, and the copy's
    reducer knows no hook: attach to it."""

    def __init__(self, spec: str):
        self.spec = spec

    def on_bucket(self, bucket):
        raise errors.error("unsupported", "this handle came out of a pickle", "call laconic.attach after loading the model")


_NO_LAYOUT = Layout((), (), 0)


def _seconds(group) -> float:
    timeout = group_timeout(group)
    return 60.0 if timeout is None else timeout.total_seconds()


def sorted_out(ddp) -> tuple[list, list]:
    """(name, parameter) of what a codec may take, and (name, parameter, what it is) of what none does."""
    sparse = {id(p) for m in ddp.module.modules() if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and m.sparse
              for p in m.parameters(recurse=False)}
    named = [(name, p) for name, p in ddp.module.named_parameters() if name not in ddp.parameters_to_ignore]
    exchanged, ours, foreign = _exchanged(ddp, [p for _, p in named], bool(sparse)), [], []
    for name, p in zip(names.undecorated([name for name, _ in named]), (p for _, p in named)):
        if id(p) not in exchanged:
            continue
        if id(p) in sparse:
            foreign.append((name, p, "sparse gradients"))
        elif p.dtype not in DTYPES:
            foreign.append((name, p, str(p.dtype).removeprefix("torch.")))
        else:
            ours.append((name, p))
    return ours, foreign


def _exchanged(ddp, parameters: list, sparse: bool) -> set[int]:
    """Ids of those that the reducer has had since DDP was made, whatever requires_grad says now."""
    everything = {id(p) for p in parameters}
    awake = {id(p) for p in parameters if p.requires_grad}
    count = ddp._get_ddp_logging_data().get("num_parameter_tensors")  # noqa: SLF001
    if len(awake) == len(everything) == count:
        return awake
    if not sparse:  # of whose gradients torch makes no zeros
        return {id(p) for bucket in ddp.reducer._get_zeros_like_grad_buckets() for p in bucket.parameters()}  # noqa: SLF001
    for some in (awake, everything):
        if len(some) == count:
            return some
    raise errors.error("unsupported", "parameters were frozen or woken since DDP was made, in a model with sparse gradients: which ones "
                       "DDP exchanges cannot be told", "attach right after wrapping")


def other_hook(ddp) -> str | None:
    """The name of the communication hook that this model's reducer has. A copy's list of hooks is the original's; its reducer
    is new."""
    return ddp._get_ddp_logging_data().get("comm_hook") or None  # noqa: SLF001


def _refuse_hook(ddp) -> None:
    other = other_hook(ddp)
    if other == laconic_hook.__qualname__:
        raise errors.error("unsupported", "laconic is attached to this model already",
                           "use the handle that the first attach gave, laconic.handle_of(model); its set() changes the spec")
    if other is not None:
        raise errors.error("unsupported", f"this model already has a communication hook ({other})",
                           "DDP takes one hook only: wrap the model again and attach laconic first")
    if ddp._use_python_reducer:  # noqa: SLF001
        raise errors.error("unsupported", "torch._dynamo.config.optimize_ddp is 'python_reducer', which traces hooks",
                           "leave optimize_ddp at its default: torch.compile then works with laconic")


def _limiter():
    from .emulate import limiter_from_environment

    return limiter_from_environment()


def laconic_hook(state, bucket):  # no annotations: DDP compares them, and a string never equals the class
    return state.on_bucket(bucket)
