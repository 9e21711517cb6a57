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


@dataclasses.dataclass
class Counts:
    """Of this rank, since OuterStep was created or since the saved run's was."""

    inner_steps: int = 0
    rounds: int = 0
    dropped_rounds: int = 0  #: some rank's change was not finite
    failed_rounds: int = 0
    skipped_steps: int = 0  #: by a GradScaler, on this rank
    exchange_seconds: float = 0.0
    exposed_seconds: float = 0.0


def saved(rounds) -> dict:
    rounds.land()
    state = {"version": VERSION, "counts": dataclasses.asdict(rounds.counts), "fragments": [_of(part) for part in rounds.parts]}
    return {**state, "fingerprint": _print(state)}


def _of(part) -> dict:
    fragment, flight = part.fragment, part.flight
    return {"last": part.last, "anchor": _named(fragment, fragment.anchors), "kept": {fragment.names[i]: v.to("cpu", copy=True) for i, v in fragment.kept.items()},
            "outer": copy.deepcopy(fragment.rule.state_dict()), "session": part.exchange.state(),
            "flight": None if flight is None else {"taken": flight.taken, "due": flight.due, "mean": _named(fragment, fragment.changes),
                                                   "own": _named(fragment, fragment.own)}}


def _named(fragment, tensors) -> dict[str, torch.Tensor]:
    return {name: values.detach().to("cpu", copy=True) for name, values in zip(fragment.names, tensors)}


def _print(state: dict) -> str:
    """Of all that is saved: a mixture of several ranks' states has another one."""
    tensors: list = []
    plain = [_flattened(key, state[key], tensors) for key in ("version", "counts", "fragments")]
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


def prepared(state: dict, rounds):
    """A call that loads the state and cannot fail. LaconicError for anything but this rank's own."""
    check_fields("it", state, {"version", "counts", "fragments", "fingerprint"})
    if check_number("version", state["version"], U64) != VERSION:
        raise errors.error("state_version", f"state has version {state['version']}, this package reads {VERSION}", "load it with the version that wrote it")
    counts = _counts(state["counts"])
    if not isinstance(state["fragments"], list) or len(state["fragments"]) != len(rounds.parts):
        raise errors.error("state_model", "the state has another number of fragments", "create OuterStep as the saved run did")
    loads = [_prepared(saved, part) for saved, part in zip(state["fragments"], rounds.parts)]
    try:
        same = state["fingerprint"] == _print(state)
    except (TypeError, ValueError, AttributeError, RuntimeError):
        same = False
    if not same:
        raise corrupt("its parts were not saved together")

    def load() -> None:
        for one in loads:
            one()
        rounds.counts = counts

    return load


def _prepared(saved: dict, part):
    fragment = part.fragment
    check_fields("a fragment", saved, {"last", "anchor", "kept", "outer", "session", "flight"})
    check_number("last", saved["last"], U64 >> 1)
    shapes = {name: anchor.shape for name, anchor in zip(fragment.names, fragment.anchors)}
    anchors = _tensors("anchor", saved["anchor"], shapes)
    kept = _tensors("kept", saved["kept"], {name: shape for name, shape in shapes.items() if name in saved["kept"]} if isinstance(saved["kept"], dict) else {})
    mean, own, flight = {}, {}, saved["flight"]
    if flight is not None:
        check_fields("flight", flight, {"taken", "due", "mean", "own"})
        mean = _tensors("mean", flight["mean"], shapes, finite=False)
        own = _tensors("own", flight["own"], shapes if fragment.own else {}, [p.dtype for p in fragment.own], finite=False)
        flight = check_number("taken", flight["taken"], U64 >> 1), check_number("due", flight["due"], U64 >> 1)
    load_session = part.exchange.prepare(saved["session"])
    before = copy.deepcopy(fragment.rule.state_dict())
    try:
        fragment.rule.load_state_dict(copy.deepcopy(saved["outer"]))
    except Exception as error:  # noqa: BLE001  torch's own refusals
        raise errors.error("state_spec", f"the state is another outer optimizer's: {type(error).__name__}: {error}", "create OuterStep as the saved run did") \
            from error
    finally:
        fragment.rule.load_state_dict(before)

    def load() -> None:
        load_session()
        fragment.rule.load_state_dict(copy.deepcopy(saved["outer"]))
        part.load(saved["last"], flight)
        fragment.load(anchors, kept, mean, own)

    return load


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


def _tensors(what: str, values, shapes: dict, dtypes=(), *, finite: bool = True) -> dict[str, torch.Tensor]:
    """Tensors by name, of these shapes; float32 unless types are given."""
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise corrupt(f"{what} is not a dict of tensors by name")
    strange, missing = ([name for name in some if name not in others] for some, others in ((values, shapes), (shapes, values)))
    if strange or missing:
        told = ", ".join(filter(None, [f"the state has {strange[0]}" if strange else "", f"this model has {missing[0]}" if missing else ""]))
        raise errors.error("state_model", f"the state is another model's: {told}", "load it into the model that it was saved from")
    kinds = dict(zip(shapes, dtypes))
    for name, saved in values.items():
        if not isinstance(saved, torch.Tensor) or saved.dtype != kinds.get(name, torch.float32) or saved.layout != torch.strided or saved.device.type == "meta":
            raise corrupt(f"{what} of {name} is not a tensor of its type")
        if saved.shape != shapes[name]:
            raise errors.error("state_model", f"{name} has the shape {tuple(saved.shape)} in the state and {tuple(shapes[name])} in this model",
                               "load it into the model that it was saved from")
        if finite and not bool(saved.isfinite().all()):
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

