# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Saved state of an OuterStep: checked whole before anything is changed."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json

import torch

from ..core import errors
from ..core._checks import U64
from ..exchange.state import check_fields, check_number, corrupt, fingerprint

VERSION = 1
_FIELDS = {"version", "counts", "anchor", "kept", "outer", "session", "fingerprint"}


@dataclasses.dataclass
class Counts:
    """Of this rank, since OuterStep was created or since the saved run's was."""

    inner_steps: int = 0
    rounds: int = 0
    dropped_rounds: int = 0  #: some rank's change was not finite
    failed_rounds: int = 0
    skipped_steps: int = 0  #: by a GradScaler, on this rank
    last_round: int = 0  #: the inner step that the last round followed
    exchange_seconds: float = 0.0
    exposed_seconds: float = 0.0


def saved(fragment, names: list[str], exchange, counts: Counts) -> dict:
    state = {"version": VERSION, "counts": dataclasses.asdict(counts), "anchor": {name: a.detach().to("cpu", copy=True) for name, a in zip(names, fragment.anchors)},
             "kept": {names[i]: values.to("cpu", copy=True) for i, values in fragment.kept.items()},
             "outer": copy.deepcopy(fragment.rule.state_dict()), "session": exchange.state()}
    return {**state, "fingerprint": _print(state)}


def _print(state: dict) -> str:
    """Of all that is saved: a mixture of several ranks' states has another one."""
    tensors: list = [(f"{kind} {name}", values) for kind in ("anchor", "kept") for name, values in state[kind].items()]
    plain = _flattened("outer", state["outer"], tensors), _flattened("session", state["session"], tensors), state["counts"], state["version"]
    return hashlib.blake2b((json.dumps(plain, sort_keys=True) + fingerprint(tensors)).encode(), digest_size=16).hexdigest()


def _flattened(at: str, value, tensors: list):
    """The value without its tensors, which are appended under their places."""
    if isinstance(value, torch.Tensor):
        tensors.append((at, value))
        return at
    if isinstance(value, dict):
        return [[repr(key), _flattened(f"{at} {key!r}", entry, tensors)] for key, entry in value.items()]
    if isinstance(value, (list, tuple)):
        return [_flattened(f"{at} {i}", entry, tensors) for i, entry in enumerate(value)]
    return value if value is None or isinstance(value, (bool, int, str)) else repr(value)


def prepared(state: dict, fragment, names: list[str], exchange):
    """A call that loads the state and cannot fail, and the counters. LaconicError for anything but this rank's own."""
    check_fields("it", state, _FIELDS)
    if check_number("version", state["version"], U64) != VERSION:
        raise errors.error("state_version", f"state has version {state['version']}, this package reads {VERSION}", "load it with the version that wrote it")
    counts = _counts(state["counts"])
    shapes = {name: anchor.shape for name, anchor in zip(names, fragment.anchors)}
    anchors = _tensors("anchor", state["anchor"], shapes)
    kept = _tensors("kept", state["kept"], {name: shape for name, shape in shapes.items() if name in state["kept"]} if isinstance(state["kept"], dict) else {})
    load_session = exchange.prepare(state["session"])
    try:
        same = state["fingerprint"] == _print(state)
    except (TypeError, ValueError, AttributeError, RuntimeError):
        same = False
    if not same:
        raise corrupt("its parts were not saved together")
    before = copy.deepcopy(fragment.rule.state_dict())
    try:
        fragment.rule.load_state_dict(copy.deepcopy(state["outer"]))
    except Exception as error:  # noqa: BLE001  torch's own refusals
        raise errors.error("state_spec", f"the state is another outer optimizer's: {type(error).__name__}: {error}", "create OuterStep as the saved run did") \
            from error
    finally:
        fragment.rule.load_state_dict(before)

    def load() -> None:
        load_session()
        fragment.rule.load_state_dict(copy.deepcopy(state["outer"]))
        with torch.no_grad():
            for name, anchor in zip(names, fragment.anchors):
                anchor.copy_(anchors[name])
        fragment.kept = {names.index(name): values.to(fragment.anchor.device, copy=True) for name, values in kept.items()}
        fragment.anchor_loaded()

    return load, counts


def _counts(counts) -> Counts:
    own = {field.name: field.type for field in dataclasses.fields(Counts)}
    check_fields("counts", counts, own.keys())
    for name, kind in own.items():
        if kind == "float":
            if not isinstance(counts[name], float) or not 0 <= counts[name] < float("inf"):
                raise corrupt(f"{name} is {counts[name]!r}")
        else:
            check_number(name, counts[name], U64 >> 1)
    return Counts(**counts)


def _tensors(what: str, values, shapes: dict) -> dict[str, torch.Tensor]:
    """Finite float32 tensors by name, of these shapes."""
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise corrupt(f"{what} is not a dict of tensors by name")
    strange, missing = ([name for name in some if name not in others] for some, others in ((values, shapes), (shapes, values)))
    if strange or missing:
        told = ", ".join(filter(None, [f"the state has {strange[0]}" if strange else "", f"this model has {missing[0]}" if missing else ""]))
        raise errors.error("state_model", f"the state is another model's: {told}", "load it into the model that it was saved from")
    for name, saved in values.items():
        if not isinstance(saved, torch.Tensor) or saved.dtype != torch.float32 or saved.layout != torch.strided or saved.device.type == "meta":
            raise corrupt(f"{what} of {name} is not a tensor of float32 values")
        if saved.shape != shapes[name]:
            raise errors.error("state_model", f"{name} has the shape {tuple(saved.shape)} in the state and {tuple(shapes[name])} in this model",
                               "load it into the model that it was saved from")
        if not bool(saved.isfinite().all()):
            raise corrupt(f"{what} of {name} holds a value that is not finite")
    return values


def of_one_rank(state) -> None:
    """LaconicError where several ranks have saved."""
    if state is not None:
        raise errors.error("state_world", "the state was saved by several ranks, and this is one", "load it with the same number of ranks")


def check_session(state) -> dict:
    if state is None:
        raise errors.error("state_world", "the state was saved by one rank, and these are several", "load it with the same number of ranks")
    check_fields("session", state, {"version", "header", "step", "tensors"}, {"rates"})
    return state

