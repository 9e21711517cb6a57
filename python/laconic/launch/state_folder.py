# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.run --state DIR`: every rank's states in files, and the one to continue with.

The script's own step is unknown here: a state is recognised by the parameters that the model had when it was saved.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from pathlib import Path

import torch.distributed as dist

from ..core import environment
from ..engines.group import listed
from ..exchange import files
from ..exchange.state import check_fields, corrupt, fingerprint

_NAME = re.compile(r"(?P<model>[0-9a-f]{16})-(?P<ordinal>\d+)-rank(?P<rank>\d+)of(?P<world>\d+)-step(?P<step>\d+)-"
                   r"(?P<parameters>[0-9a-f]{32})\.laconic")
#: states that a rank offers to the others, the newest first; with the reason they have to fit into Handle.gather_texts
_OFFERS, _TEXT = 4, 500
#: parameters, and elements of each, that are looked at for an update that torch does not count (`p.data.add_`)
_LOOKED_AT = 16, 4

_tidied: set[tuple[int, str, str, int]] = set()


class Name:
    """The parts of a file's name: a state can be matched without opening the file."""

    def __init__(self, model: str, ordinal: int, rank: int, world: int, step: int, parameters: str):
        self.model, self.ordinal, self.rank, self.world = model, ordinal, rank, world
        self.step, self.parameters = step, parameters

    def __str__(self) -> str:
        return f"{self.model}-{self.ordinal}-rank{self.rank}of{self.world}-step{self.step}-{self.parameters}.laconic"

    @staticmethod
    def parse(text: str) -> Name | None:
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        numbers = {key: int(found[key]) for key in ("ordinal", "rank", "world", "step")}
        return Name(model=found["model"], parameters=found["parameters"], **numbers)


class Updates:
    """Whether the parameters have been updated since the last exchange: only then parameters and residuals belong together.

    `missing` is called at every forward pass with gradients, so between two calls lie an exchange, an update or both, in this
    order. torch counts updates in place; those that go around the count change some of the elements looked at.
    """

    def __init__(self, handle):
        self._handle = handle
        self._step, self._mark = handle.step, _mark(handle.parameters)
        self._missing = False

    def missing(self) -> bool:
        """An exchange has not been followed by an update yet."""
        step, mark = self._handle.step, _mark(self._handle.parameters)
        updated = mark != self._mark
        if step != self._step:
            self._missing = not updated
        elif updated:
            self._missing = False
        self._step, self._mark = step, mark
        return self._missing


def _mark(parameters) -> tuple:
    tensors = [p.detach() for _, p in parameters]
    some = [t.view(-1) for t in tensors if t.is_contiguous() and t.numel()]
    some = some[:: max(1, len(some) // _LOOKED_AT[0])]
    values = [t[:: max(1, t.numel() // _LOOKED_AT[1])].tolist() for t in some]
    return sum(t._version for t in tensors), repr(values)  # noqa: SLF001  as text NaN equals NaN


class Keeper:
    """One model's states on one rank."""

    def __init__(self, handle, name: str, options, others: list[Keeper]):
        """`others`: the keepers of this process's other models."""
        self.handle = handle
        self.done = threading.Event()  # the handle has ended, and what it held was saved
        self._name = name
        self._folder, self._every, self._keep = Path(options.state), options.state_every, options.state_keep
        self._model, self._world = self._header()
        self._rank = dist.get_rank()  # in the default group: several groups may share the folder
        same = [other.ordinal for other in others if other._model == self._model and not other.done.is_set()]
        self.ordinal = 1 + max(same, default=-1)
        self._saved_step = handle.step
        self._updates = Updates(handle)
        self._warned = False

    def _header(self) -> tuple[str, int]:
        """Hash of the model, and number of ranks."""
        session = self.handle.worker.session
        return f"{session.header()['model_hash']:016x}", session.world

    # ---- saving ---------------------------------------------------------------------------------------------------------

    def before_forward(self) -> None:
        """Parameters are now those that a checkpoint of this step holds."""
        missing = self._updates.missing()
        if not missing and self.handle.step // self._every > self._saved_step // self._every:
            self._save()

    def save_last(self) -> None:
        """At the end of the model or of the process, unless the state belongs to a step whose update is lost."""
        try:
            within = self.handle.steps.under_way  # buckets may be under way, on a network that is gone
            if self.handle.step != self._saved_step and not within and not self._updates.missing():
                self._save()
        finally:
            if self.handle.closed:
                self.handle, self._updates = None, None  # they hold the parameters
                self.done.set()

    def _save(self) -> None:
        """A rank that cannot goes on training, and warns once."""
        self._saved_step = step = self.handle.step
        try:
            parameters = fingerprint(self.handle.parameters)
            state = self.handle.state_dict()
            name = Name(self._model, self.ordinal, self._rank, self._world, step, parameters)
            files.save(self._folder / str(name), {"state": state})
            self._forget_old()
        except Exception as error:  # noqa: BLE001  training goes on, whatever it is
            self._warn(f"the state of step {step} was not saved in {self._folder}", error)

    def _warn(self, what: str, error: BaseException) -> None:
        if not self._warned:
            self._warned = True
            environment.say(f"rank {self._rank}: {what}: {type(error).__name__}: {error}", logging.WARNING)

    def _forget_old(self) -> None:
        """Sorted by age, not by step: a run that restarted at step zero must not lose its new states."""
        own = [path for name, path in self._files() if (name.model, name.ordinal) == (self._model, self.ordinal)]
        for path in sorted(own, key=lambda path: path.stat().st_mtime_ns)[: -self._keep]:
            path.unlink()

    def _files(self) -> list[tuple[Name, Path]]:
        """This rank's, of all models."""
        named = ((Name.parse(path.name), path) for path in self._folder.iterdir())
        return [(name, path) for name, path in named if name is not None and name.rank == self._rank]

    def _tidy(self) -> None:
        """Removes files of a killed writer; once, because another model of this process may be writing."""
        key = (os.getpid(), str(self._folder), self._model, self._rank)
        if key in _tidied:
            return
        _tidied.add(key)
        for path in self._folder.glob(f"{self._model}-*{files.PARTIAL}"):
            name = Name.parse(path.name[: -len(files.PARTIAL)])
            if name is not None and name.rank == self._rank:
                path.unlink()

    # ---- loading --------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Collective. Loads the newest state that fits on every rank, or none on any."""
        offers, reason = self._offers()
        said = [json.loads(text) for text in self.handle.gather_texts(_card(self.ordinal, list(offers), reason))]
        self.ordinal = max(ordinal for ordinal, _, _ in said)  # garbage lives longer on some ranks
        common = set.intersection(*({tuple(key) for key in keys} for _, keys, _ in said))
        reasons = [reason for _, _, reason in said]
        if common:
            ordinal, step = max(common, key=lambda key: (key[0] == self.ordinal, key[1]))
            offers[(ordinal, step)]()
            self._saved_step = step
            self._tell(f"{self._name} resumes with the residuals of step {step} in {self._folder}{_but(reasons)}")
        else:
            self._tell(f"the residuals of {self._name} start at zero: {_why(reasons)}", worth=_worth(reasons))
        self._updates = Updates(self.handle)

    def _tell(self, text: str, worth: int = logging.INFO) -> None:
        if self.handle.rank == 0:
            environment.say(text, worth)

    def _offers(self) -> tuple[dict, str]:
        """(ordinal, step) → a call that loads it, and why there is none, or which one was refused."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._tidy()
            found = self._files()
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise PermissionError(f"no permission to write to {self._folder}")
        except OSError as error:
            self._warn(f"--state {self._folder} cannot be used", error)
            return {}, f"{self._folder} cannot be used"
        parameters = fingerprint(self.handle.parameters)
        fits = [(name, path) for name, path in found if (name.model, name.parameters) == (self._model, parameters)]
        here = sorted((x for x in fits if x[0].world == self._world), key=lambda x: x[0].step, reverse=True)
        if not here:
            return {}, self._nothing(found, fits)
        offers, refused = {}, ""
        for name, path in here[:_OFFERS]:
            try:
                offers[(name.ordinal, name.step)] = self._prepare(name, path)
            except Exception as error:  # noqa: BLE001  the other ranks wait for the outcome
                refused = refused or f"step {name.step} is refused: {getattr(error, 'message', error)}"
        return offers, refused

    def _nothing(self, found: list, fits: list) -> str:
        if not found:
            return f"no state in {self._folder}"
        if fits:
            return f"the states in {self._folder} are for {fits[0][0].world} ranks"
        steps = [name.step for name, _ in found if name.model == self._model]
        if not steps:
            return f"the states in {self._folder} are for other models"
        return (f"no state in {self._folder} has these parameters, the newest is from step {max(steps)}: "
                "--state-every must divide the steps between checkpoints")

    def _prepare(self, name: Name, path: Path):
        """Checked whole; the archive's own checksums are not looked at by torch."""
        content = files.load(path)
        check_fields("it", content, {"state"}, {"tensors"})  # earlier releases have saved a fingerprint here
        state = content["state"]
        load = self.handle.prepare(state)
        told = fingerprint(state["tensors"].items()) if "tensors" in content else None
        if told != content.get("tensors") or state["step"] != name.step:
            raise corrupt(f"{path.name} does not contain what was written")
        return load


def _card(ordinal: int, keys: list, reason: str) -> str:
    """For Handle.gather_texts."""
    text = json.dumps([ordinal, keys, reason])
    while len(text) > _TEXT:
        reason = reason[: -1 - (len(text) - _TEXT) // 12]  # a character takes up to twelve
        text = json.dumps([ordinal, keys, reason])
    return text


def _why(reasons: list[str]) -> str:
    if len(set(reasons)) == 1:
        return reasons[0] or "no state is from the same step on all ranks"
    return _by_rank(reasons)


def _but(reasons: list[str]) -> str:
    """Newer states that could not be used."""
    return f" ({_by_rank(reasons)})" if any(reasons) else ""


def _by_rank(reasons: list[str]) -> str:
    first = next(reason for reason in reasons if reason)
    return f"rank {listed([rank for rank, reason in enumerate(reasons) if reason == first])}: {first}"


def _worth(reasons: list[str]) -> int:
    """An empty folder is how every first run begins."""
    empty = all(reason.startswith("no state in ") and "these parameters" not in reason for reason in reasons)
    return logging.INFO if empty else logging.WARNING
