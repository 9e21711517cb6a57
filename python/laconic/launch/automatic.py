# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""laconic.run inside a process: attaches to models as they train, and logs at the end what it could not attach to.

The process started by the user comes here through `start`, those that its script starts through LACONIC_RUN and _bootstrap. torch
is not imported here; its import is observed. Its classes are changed, not their instances, so that wrappers stay picklable.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import multiprocessing.util
import os
import resource
import sys
import tempfile
import types
import uuid
import weakref

from ..core import environment, errors

VARIABLE = "LACONIC_RUN"
#: said in the group's store before attach; what other ranks say is quoted in errors
UNDER_RUN = "it runs under laconic.run"
WITH_STATE = UNDER_RUN + " with --state"
#: seconds that the end of the process waits for the state of a model that has gone
TIMEOUT = 60.0


class Model:
    """A wrapper that was at its first forward pass with gradients."""

    waits = never_stepped = False  # for its optimizer, as an OuterModel does

    def __init__(self, wrapper):
        self.wrapper = weakref.ref(wrapper)
        self.name = type(getattr(wrapper, "module", wrapper)).__name__
        self.handle = None
        self.keeper = None  # of its state, under --state
        self.summary = False
        self._last_stats: dict | None = None

    def attached(self, handle, summary: bool) -> None:
        self.handle, self.summary = handle, summary and not environment.disabled()
        handle.at_end(self._ended)

    def _ended(self) -> None:
        """In the worker's thread. A handle holds the model's parameters: nothing here may hold the handle."""
        try:
            if self.keeper is not None:
                self.keeper.save_last()
        finally:
            self._last_stats = self.stats()
            self.handle.tell_last_changes()
            self.handle = None

    def before_forward(self) -> None:
        if self.keeper is not None and self.handle is not None:
            self.keeper.before_forward()

    def tell_last_changes(self) -> None:
        handle = self.handle
        if handle is not None:  # closed or not: its thread may be about to say it, and ends with the process
            handle.tell_last_changes()

    def save_last(self) -> None:
        """At the end of the process."""
        wrapper, handle = self.wrapper(), self.handle  # neither may go away meanwhile
        if self.keeper is None:
            return
        if wrapper is None or handle is None or handle.closed:
            self.keeper.done.wait(TIMEOUT)
        else:
            self.keeper.save_last()

    def stats(self) -> dict | None:
        """For the summary: None on other ranks than 0."""
        handle = self.handle
        if handle is None:
            return self._last_stats
        return handle.stats() if self.summary and handle.speaks else None


class Process:
    """State of this process."""

    def __init__(self, starter: bool = False):
        self.starter = starter  # the user started it, and none above it is under laconic.run
        self.rank: int | None = None  # in the default group, of which the process is or was a member
        self.optimizers: list[weakref.ref] = []  # torch's, that were made here
        self.watches_steps = False  # of optimizers, under --every
        self.scalers: weakref.WeakSet = weakref.WeakSet()  # torch's GradScalers
        self.constructed = 0  # wrappers that were made here
        self.trained = 0  # wrappers that came to a forward pass with gradients; copies of the former may be among them
        self.sharded: dict[str, str] = {}  # what has taken models, and why laconic has not
        self.models: list[Model] = []
        self.summed_up = self.over = False
        self.ends = False  # `finish` will be called


_process = Process()
_models: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _forked() -> None:
    global _process  # noqa: PLW0603
    _process = Process()  # models, group, last words and the sign are the parent's
    atexit.unregister(_other_ranks_were_met)


os.register_at_fork(after_in_child=_forked)


# ---- options -----------------------------------------------------------------------------------------------------------

def start(options) -> None:
    """In laconic.run: hands the options to this process and to all that it starts. Those of an inner laconic.run replace an
    outer one's."""
    above = _options_from(os.environ.get(VARIABLE, ""))
    _process.starter = _process.starter or above is None  # two of them may run in one process
    if above is None:
        atexit.register(_other_ranks_were_met)  # whatever happens, the sign does not stay
    given = {"spec": options.spec, "seed": options.seed, "strategy": options.strategy, "down": options.down,
             "small_elements": options.small_elements, "threads": options.threads, "warmup": options.warmup_steps, "summary": options.summary,
             "state": options.state and os.path.abspath(options.state), "state_every": options.state_every,
             "state_keep": options.state_keep, "control": options.control, "record": options.record and os.path.abspath(options.record),
             "rules": options.rules and os.path.abspath(options.rules), "aggregator": options.aggregator,
             "token": options.token and os.path.abspath(options.token), "quorum": options.quorum, "deadline_ms": options.deadline_ms,
             "auth": options.auth, "multicast": options.multicast, "every": options.every, "nodes": options.nodes, "codecs": options.codecs, "met": _new_sign() if above is None else above.met}
    os.environ[VARIABLE] = json.dumps(given)


def _options() -> types.SimpleNamespace:
    options = _options_from(os.environ.get(VARIABLE, ""))
    if options is None:
        raise errors.error("invalid_argument", f"{VARIABLE} was changed after laconic.run set it",
                           f"do not set {VARIABLE}; start the script with `python -m laconic.run`")
    return options


def _options_from(text: str) -> types.SimpleNamespace | None:
    with contextlib.suppress(ValueError, TypeError):
        options = types.SimpleNamespace(**json.loads(text))
        if hasattr(options, "met"):
            return options
    return None


def _new_sign() -> str:
    """The name of a file that a rank makes, so that the process above it knows; "" where there is no place for one."""
    try:
        return os.path.join(tempfile.gettempdir(), f"laconic-run-{uuid.uuid4().hex}")
    except OSError:
        return ""


def _is_rank() -> None:
    """From now on this process answers for itself; the one that started it need not."""
    if not _process.starter and _process.rank is None:
        with contextlib.suppress(OSError, errors.LaconicError):
            os.close(os.open(_options().met, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))


def _other_ranks_were_met() -> bool:
    try:
        os.unlink(_options().met)
    except (OSError, errors.LaconicError):
        return False
    return True


# ---- torch -------------------------------------------------------------------------------------------------------------

def imported(module) -> None:
    """A module of laconic_imports.WATCHED was executed. The rest of torch may not be there yet."""
    _options()  # an error now rather than at the first forward pass
    name = module.__name__
    if name == "torch.nn.parallel.distributed":
        _wrap(module.DistributedDataParallel, "__init__", after=_count)
        _watch_forward(module.DistributedDataParallel)
    elif name == "torch.distributed.distributed_c10d":
        original = getattr(module, "init_process_group", None)
        _wrap(module, "init_process_group", after=_joined)
        package = sys.modules["torch.distributed"]
        if original is not None and getattr(package, "init_process_group", None) is original:  # torch was here before us
            package.init_process_group = module.init_process_group
    elif name == "torch.optim.optimizer":
        _wrap(module.Optimizer, "__init__", after=_note_optimizer)
        if _options().every is not None and not _process.watches_steps:
            _process.watches_steps = True
            module.register_optimizer_step_pre_hook(_before_any_step)
    elif name in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
        _wrap(module.GradScaler, "__init__", after=_note_scaler)
        if _options().every is not None:
            _watch_scaler(module.GradScaler)
    elif name == "torch.distributed.fsdp.fully_sharded_data_parallel":
        _wrap(module.FullyShardedDataParallel, "__init__", after=_note_sharded)
    else:
        from torch._compile import _disable_dynamo

        _wrap(module.FSDPState, "__init__", after=_note_sharded)
        _wrap(module.FSDPState, "_pre_forward", before=_disable_dynamo(_before_sharded_forward))


def _wrap(owner, name: str, *, before=None, after=None) -> None:
    """Calls `before` and `after` with the first argument (if there is one) around owner.name. Once, however often it is asked."""
    original = getattr(owner, name, None)
    if original is None or getattr(original, "laconic_listens", False):
        return

    @functools.wraps(original)
    def listening(*arguments, **keywords):
        if before is not None:
            before(*arguments[:1])
        result = original(*arguments, **keywords)
        if after is not None:
            after(*arguments[:1])
        return result

    listening.laconic_listens = True
    setattr(owner, name, listening)


def _watch_forward(wrapper_class) -> None:
    """_pre_forward is what replicate() calls, too."""
    from torch._compile import _disable_dynamo  # the compiler must not look into it

    _wrap(wrapper_class, "_pre_forward", before=_disable_dynamo(_before_forward))


def _count(_) -> None:
    _process.constructed += 1
    _end_with_a_word()


def _joined(*_) -> None:
    import torch.distributed as dist

    _is_rank()
    _process.rank = dist.get_rank()
    _end_with_a_word()


def _note_optimizer(optimizer) -> None:
    _process.optimizers.append(weakref.ref(optimizer))


def _note_scaler(scaler) -> None:
    _process.scalers.add(scaler)


def _scaler(group):
    """The GradScaler in use: residuals have to follow its scale. With several, none can be assigned to this model."""
    enabled = [scaler for scaler in _process.scalers if scaler.is_enabled()]
    if len(enabled) > 1:
        _warn_on_first(group, f"the script has {len(enabled)} GradScalers: residuals cannot follow a changing scale; call "
                       "laconic.attach(model, scaler=...) in the script")
    return enabled[0] if len(enabled) == 1 else None


def _note_sharded(state) -> None:
    if "FullyShardedDataParallel" in [base.__name__ for base in type(state).__mro__]:
        _process.sharded["FullyShardedDataParallel"] = "FSDP1 has no all-reduce between replicas to replace; fully_shard() on a 2-D mesh has"
    else:
        _process.sharded.setdefault(_taker(state), "no forward pass recorded gradients")
    _end_with_a_word()


def _taker(state) -> str:
    return "replicate() of FSDP2" if "replicate" in type(state).__module__ else "fully_shard()"


# ---- attaching ---------------------------------------------------------------------------------------------------------

def _before_forward(wrapper) -> None:
    import torch

    if not torch.is_grad_enabled():  # an evaluation, perhaps on one rank only: attaching takes all of them
        return
    model = _models.get(wrapper)
    if model is None:
        _first_forward(wrapper)
    else:
        model.before_forward()


def _before_sharded_forward(state) -> None:
    import torch

    from ..fsdp.layout import root_of

    model = root_of(state)
    if model is None or not torch.is_grad_enabled() or model in _models:
        return
    _models[model] = Model(model)
    _process.sharded[_taker(state)] = _first_sharded_forward(_models[model], model)


def _first_sharded_forward(model: Model, module) -> str:
    """Why it is not compressed; empty: it is."""
    import torch.distributed as dist

    from ..api.attach import handle_of
    from ..fsdp.layout import units_of

    units, options, world = units_of(module), _options(), dist.group.WORLD
    if options.every is not None:
        return "--every is for DistributedDataParallel"
    hooks = [unit.other_hook for unit in units if unit.other_hook is not None]
    if hooks or handle_of(module) is not None:
        ours = not hooks or isinstance(getattr(hooks[0], "__self__", None), type(units[0]))
        _warn_on_first(world, "the script attaches laconic itself; laconic.run leaves this model as it is" if ours else
                       "the script has an all-reduce hook of its own; laconic.run leaves this model as it is")
        return ""
    if all(unit.native is None for unit in units):
        return "a 1-D mesh does not tell replicas apart: laconic.attach(model, spec, replicate=mesh) in the script does"
    if options.state:
        _warn_on_first(world, "--state keeps nothing of sharded models: save laconic.checkpointable(laconic.handle_of(model)) in the script")
    _attach(model, module, options, world)
    return ""


def _first_forward(wrapper) -> None:
    from ..ddp.hook import other_hook

    model, options, hook = Model(wrapper), _options(), other_hook(wrapper)
    keeps_state = False
    if hook is not None:
        _stand_aside(wrapper, hook)
    elif options.every is not None:
        model = _outer_model(wrapper, options)
    else:  # a script that catches the error and tries again gets it again
        keeps_state = _all_keep_state(wrapper.process_group, options) and not environment.disabled()
        _attach(model, wrapper, options, wrapper.process_group)
    _models[wrapper] = model
    _process.trained += 1
    if keeps_state:
        _resume(model, options)


def _outer_model(wrapper, options):
    """Gradients stay local from here on; the rest when its optimizer steps."""
    from .outer import OuterModel, OuterStep

    group = wrapper.process_group

    def make(wrapper, optimizer):
        _end_with_a_word()
        return OuterStep(wrapper, optimizer, spec=options.spec, every=options.every, seed=options.seed, strategy=options.strategy, down=options.down,
                         small_elements=options.small_elements, threads=options.threads, warmup=options.warmup, scaler=_scaler(group),
                         rules=options.rules, control=options.control, record=_next_record(options))

    model = OuterModel(wrapper, options, lambda: _all_keep_state(group, options) and not environment.disabled(), make)
    _process.models.append(model)
    _end_with_a_word()
    return model


def _before_step(optimizer):
    """Of any optimizer, before its step. The OuterStep that was made for it here."""
    made = None
    for model in list(_process.models):
        if model.waits:
            made = model.before_step(optimizer, [other.keeper for other in _process.models if other.keeper is not None]) or made
    return made


def _before_any_step(optimizer, _arguments, _keywords) -> None:
    _before_step(optimizer)


def _watch_scaler(scaler_class) -> None:
    """A first step that a GradScaler skips on this rank is the first one all the same."""
    original = scaler_class.step
    if getattr(original, "laconic_listens", False):
        return

    @functools.wraps(original)
    def step(self, optimizer, *arguments, **keywords):
        made = _before_step(optimizer)
        result = original(self, optimizer, *arguments, **keywords)
        if made is not None and made.step == 0:
            made.step_skipped()
        return result

    step.laconic_listens = True
    scaler_class.step = step


def _attach(model: Model, wrapper, options, group) -> None:
    from ..api.attach import attach

    handle = attach(wrapper, options.spec, seed=options.seed, strategy=options.strategy, down=options.down,
                    small_elements=options.small_elements, threads=options.threads, warmup=options.warmup, scaler=_scaler(group),
                    rules=options.rules, control=options.control, record=_next_record(options), aggregator=options.aggregator,
                    token=options.token, quorum=options.quorum, deadline_ms=options.deadline_ms, auth=options.auth, multicast=options.multicast, nodes=options.nodes, codecs=options.codecs)
    for optimizer in filter(None, (made() for made in _process.optimizers)):
        handle.check_momentum(optimizer)
    model.attached(handle, options.summary)
    _process.models.append(model)
    _end_with_a_word()


def _next_record(options) -> str | None:
    """Each model's own: run.jsonl, run.jsonl.2."""
    from ..exchange.rules import chosen

    file, earlier = chosen(options.record, "LACONIC_RECORD"), len(_process.models)
    return f"{file}.{earlier + 1}" if file and earlier else file


def _resume(model: Model, options) -> None:
    from .state_folder import Keeper

    others = [other.keeper for other in _process.models if other.keeper is not None]
    model.keeper = Keeper(model.handle, model.name, options, others)
    model.keeper.resume()


def _stand_aside(wrapper, hook: str) -> None:
    whose = "the script attaches laconic itself" if hook in ("laconic_hook", "outer_step_keeps_gradients_local") else (
        f"the script registered its own communication hook ({hook})")
    state = "; --state saves nothing for this model" if _options().state else ""
    _warn_on_first(wrapper.process_group, f"{whose}; laconic.run leaves this model as it is{state}")


def _all_keep_state(group, options) -> bool:
    """Loading a state takes all ranks, so they tell each other first, in the group's store: no collective that one of them
    would miss."""
    import torch.distributed as dist

    from ..engines.group import Meeting, listed

    every = "" if options.every is None else f" --every {options.every}"
    said = Meeting(group, (WITH_STATE if options.state else UNDER_RUN) + every).words
    alone = [rank for rank, word in enumerate(said) if not word.startswith(UNDER_RUN)]
    if alone:
        raise errors.error("ranks_disagree", f"rank {listed(alone)} calls laconic.attach and does not run under laconic.run, as the "
                           "others are", "start every rank the same way")
    other = [rank for rank, word in enumerate(said) if word.partition(" --every ")[2] != every.partition(" --every ")[2]]
    if other:
        raise errors.error("ranks_disagree", f"rank {listed(other)} runs with another --every than rank {dist.get_rank(group)}", "start every rank the same way")
    said = [word.partition(" --every ")[0] for word in said]
    without = [rank for rank, word in enumerate(said) if word == UNDER_RUN]
    if WITH_STATE in said and without:
        _warn_on_first(group, f"rank {listed(without)} runs without --state: no rank saves or loads state")
    return not without


def _warn_on_first(group, text: str) -> None:
    import torch.distributed as dist

    if dist.get_rank(group) == 0 and not environment.disabled():
        environment.say(text, logging.WARNING)


# ---- the end -----------------------------------------------------------------------------------------------------------

def _end_with_a_word() -> None:
    """`finish` at the end of the process. Forked children of multiprocessing run no atexit."""
    atexit.unregister(_finish_in)
    atexit.register(_finish_in, _process)  # the last to come is the first to go: workers must still be there
    if not _process.ends:
        _process.ends = True
        multiprocessing.util.Finalize(None, _finish_in, args=(_process,), exitpriority=10)


def _finish_in(process: Process) -> None:
    if process is _process and not process.over:  # not one that was forked from it
        process.over = True
        finish("failed" if hasattr(sys, "last_type") else "returned")


def finish(ended: str) -> None:
    """At the end of the script, and once more at that of the process. `ended`: "returned", "left" (SystemExit) or "failed"."""
    for model in list(_process.models):
        model.save_last()
    if _process.summed_up:
        return
    _process.summed_up = True
    for model in list(_process.models):
        model.tell_last_changes()
        stats = model.stats()
        if stats is not None:
            print(f"laconic: {_summary(stats)}", file=sys.stderr)
    missing = _not_attached(ended)
    if missing:
        environment.say(missing, logging.WARNING)


def _summary(stats: dict) -> str:
    if not stats["wire_bytes"]:
        sent = "nothing sent"
    else:
        ratio = stats["ratio"]
        shown = f"{ratio:.1f}:1" if ratio >= 10 else f"{ratio:.2f}:1" if ratio >= 0.1 else f"{ratio:.2g}:1"
        sent = f"{stats['wire_bytes']} bytes sent, {shown} against a float32 ring"
        if ratio < 1:
            sent += " (more than without compression)"
    seconds = ", ".join(f"{part} {stats[f'{part}_seconds']:.2f} s" for part in ("encode", "wire", "decode"))
    return f"{stats['steps']} steps, {sent}, {seconds}"


def _not_attached(ended: str) -> str | None:
    """One line on rank 0: what ran uncompressed in this process, and why."""
    process = _process
    others = process.starter and _other_ranks_were_met()
    if environment.disabled() or ended == "failed":
        return None
    if process.rank is None and not process.constructed and not process.sharded:
        return None if others or not process.starter or os.environ.get("RANK", "0") != "0" else _no_group(process, ended)
    if process.rank:
        return None
    reasons = []
    reasons += [f"{taker}: {why}" for taker, why in sorted(process.sharded.items()) if why]
    idle = process.constructed - process.trained
    if idle > 0:
        reasons.append(f"{idle} of {process.constructed} DistributedDataParallel models: no forward pass through the wrapper "
                       "recorded gradients")
    still = sum(1 for model in process.models if model.never_stepped)
    if still:
        reasons.append(f"--every: no optimizer of torch has stepped the parameters of {still} models, whose gradients stay local")
    if reasons:
        return "not compressed: " + "; ".join(reasons)
    if not process.constructed and not process.trained and not process.sharded:
        return "nothing was compressed: no model was wrapped in DistributedDataParallel"
    return None


def _no_group(process: Process, ended: str) -> str | None:
    had_children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0
    if ended == "left" and not process.optimizers and not had_children:  # --help
        return None
    return ("nothing was compressed: the script ran in one process, without torch.distributed; "
            "see `torchrun --nproc-per-node N -m laconic.run`")
