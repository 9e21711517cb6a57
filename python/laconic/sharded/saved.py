# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Saved state: of one rank, which continues bit for bit, and whole, in the layout of the plain torch optimizer."""

from __future__ import annotations

import json

import torch

from ..core import _lib, errors
from ..core._checks import U64
from ..engines.c10d import view
from ..exchange.state import check_fields, check_header, check_number, check_tensors, corrupt, fingerprint, in_units_of_gradients
from .inner import WHOLE
from .spread import Alone, Spread

#: of what state_of gives
VERSION = 1


def fingerprint_of(trained) -> str:
    return fingerprint(zip(trained.names, trained.host))


def _packed(groups: list[dict]) -> list[dict]:
    """torch's: with numbers in place of parameters."""
    packed, number = [], 0
    for group in groups:
        count = len(group["params"])
        packed.append({**{k: v for k, v in group.items() if k != "params"}, "params": list(range(number, number + count))})
        number += count
    return packed


def _order(work, groups: list[dict]) -> list[int]:
    """Indices of the parameters as torch numbers them."""
    index = {id(p): i for i, p in enumerate(work.trained.parameters)}
    return [index[id(p)] for group in groups for p in group["params"]]


def _copied(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _check_groups(groups: list[dict], state: dict) -> None:
    theirs = state.get("param_groups")
    if not isinstance(theirs, list) or not all(isinstance(g, dict) and isinstance(g.get("params"), list) for g in theirs):
        raise corrupt("param_groups is not a list of groups")
    if not isinstance(state.get("state"), dict):
        raise corrupt("it lacks 'state'")
    if [len(g["params"]) for g in theirs] != [len(g["params"]) for g in groups]:
        raise errors.error("state_model", f"state: expected groups of {[len(g['params']) for g in groups]} parameters, found "
                           f"{[len(g['params']) for g in theirs]}", "make the optimizer with the same model and groups")


def _take_groups(groups: list[dict], theirs: list[dict]) -> None:
    for group, saved in zip(groups, theirs):
        group.update({key: value for key, value in saved.items() if key != "params"})


# ---- of one rank ------------------------------------------------------------------------------------------------------------------------


def state_of(work: Alone | Spread, groups: list[dict]) -> dict:
    if isinstance(work, Alone):
        return {"state": work.optimizer.state_dict()["state"], "param_groups": _packed(groups),
                "laconic": {"version": VERSION, "world": 1, "step": work.step_number}}
    state = {number: {key: _copied(value) for key, value in own.items()}
             for number, own in work.inner.optimizer.state_dict()["state"].items()}
    small = {work.trained.names[i]: work.inner.tensors[i, WHOLE].detach().clone() for i in sorted(work.inner.small)}
    return {"state": state, "param_groups": _packed(groups),
            "laconic": {"version": VERSION, "world": work.exchange.world, "step": work.step_number, "header": work.exchange.session.header(),
                        "tensors": work.exchange.between_steps(_entries), "small": small}}


def _entries(session, unit: float) -> dict[str, torch.Tensor]:
    """Copies of what the session remembers, in units of unscaled gradients."""
    copied = {}
    for name, address, count in session.entries():
        values = view(address, count, _lib.F32).clone()
        copied[name] = values / unit if in_units_of_gradients(name) else values
    return copied


def _write(_session, _unit: float, ready: list) -> None:
    """(address, values) of check_tensors."""
    for address, values in ready:
        view(address, values.numel(), _lib.F32).copy_(values)


def load(work: Alone | Spread, groups: list[dict], state: dict) -> None:
    if not isinstance(state, dict):
        raise corrupt(f"it is a {type(state).__name__}, not a dict")
    if "laconic" not in state:
        raise errors.error("state_version", "state: this is not the state_dict of a ShardedOptimizer",
                           "use load_full_state_dict for the state of full_state_dict or of a plain optimizer")
    _check_groups(groups, state)
    own = state["laconic"]
    check_fields("laconic", own, {"version", "world", "step"}, {"header", "tensors", "small"})
    if check_number("version", own["version"], U64) != VERSION:
        raise errors.error("state_version", f"state: expected version {VERSION}, found {own['version']}", "load it with the version that wrote it")
    world = 1 if isinstance(work, Alone) else work.exchange.world
    if check_number("world", own["world"], U64) != world:
        raise errors.error("state_world", f"state: expected {world} ranks, found {own['world']}",
                           "use full_state_dict() and load_full_state_dict(): they work with any number of ranks")
    step = check_number("step", own["step"], U64 >> 1)
    if isinstance(work, Alone):
        work.optimizer.load_state_dict({"state": state["state"], "param_groups": work.optimizer.state_dict()["param_groups"]})
    else:
        _load_spread(work, state, own)
    work.step_number = step
    _take_groups(groups, state["param_groups"])


def _load_spread(work: Spread, state: dict, own: dict) -> None:
    exchange, inner = work.exchange, work.inner
    check_fields("laconic", own, {"version", "world", "step", "header", "tensors", "small"})
    check_header(own["header"])
    exchange.session.accepts(own["header"])
    ready = exchange.between_steps(lambda session, unit: check_tensors(own["tensors"], list(session.entries()), unit))
    check_fields("small", own["small"], {work.trained.names[i] for i in inner.small})
    for i in inner.small:
        _check_values(work.trained.names[i], own["small"][work.trained.names[i]], tuple(work.trained.parameters[i].shape))
    for number, values in state["state"].items():
        if type(number) is not int or not 0 <= number < len(inner.places) or not isinstance(values, dict):
            raise corrupt(f"state has an entry {number!r} of a {type(values).__name__}")
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and value.dim() and value.numel() != inner.places[number][2]:
                raise corrupt(f"{key} of {work.trained.names[inner.places[number][0]]} has {value.numel()} values")
    inner.optimizer.load_state_dict({"state": state["state"], "param_groups": inner.optimizer.state_dict()["param_groups"]})
    exchange.between_steps(_write, ready)
    for i in inner.small:
        inner.tensors[i, WHOLE].copy_(own["small"][work.trained.names[i]])
    inner.write_small()
    work.trained.written(inner.small)
    work.masters_loaded()


def _check_values(name: str, values, shape: tuple[int, ...]) -> None:
    if not isinstance(values, torch.Tensor) or values.layout != torch.strided or values.device.type == "meta":
        raise corrupt(f"{name} is a {type(values).__name__}, not a tensor")
    if tuple(values.shape) != shape:
        raise corrupt(f"{name} has the shape {tuple(values.shape)}, not {shape}")


# ---- whole ------------------------------------------------------------------------------------------------------------------------------


def full_state_of(work: Alone | Spread, groups: list[dict]) -> dict:
    trained = work.trained
    if isinstance(work, Alone):
        return {"state": {number: {key: _copied(value) for key, value in own.items()} for number, own in work.optimizer.state_dict()["state"].items()},
                "param_groups": _packed(groups), "masters": {n: p.detach().float().cpu().clone() for n, p in zip(trained.names, trained.parameters)}}
    own, values = _described(work)
    states: dict[int, dict] = {}
    masters: dict[int, torch.Tensor] = {}
    for said, flat in work.exchange.share(json.dumps(own), values):
        at = 0
        for entry in json.loads(said):
            i, offset, count = entry["place"]
            state, shape = states.setdefault(i, {}), trained.parameters[i].shape
            for key in [None, *entry["ranges"]]:
                whole = masters if key is None else state
                tensor = whole.setdefault(i if key is None else key, torch.zeros(shape, dtype=torch.float32, device="cpu"))
                tensor.view(-1)[offset : offset + count] = flat[at : at + count]
                at += count
            for key, (value, dtype) in entry["scalars"].items():
                state[key] = value if dtype is None else torch.tensor(value, dtype=getattr(torch, dtype), device="cpu")
    for i in work.inner.small:
        tensor = work.inner.tensors[i, WHOLE]
        masters[i] = tensor.detach().float().clone()
        states[i] = {key: _copied(value) for key, value in work.inner.optimizer.state.get(tensor, {}).items()}
    numbered = {number: states[i] for number, i in enumerate(_order(work, groups)) if states.get(i)}
    return {"state": numbered, "param_groups": _packed(groups), "masters": {trained.names[i]: masters[i] for i in sorted(masters)}}


def _described(work: Spread) -> tuple[list[dict], torch.Tensor]:
    """This rank's ranges, and their masters and state of float32, back to back."""
    described, values = [], [torch.empty(0, dtype=torch.float32, device="cpu")]
    for i, offset, count in work.inner.places:
        if offset == WHOLE:
            continue
        tensor = work.inner.tensors[i, offset]
        state = work.inner.optimizer.state.get(tensor, {})
        ranges = sorted(key for key, value in state.items() if isinstance(value, torch.Tensor) and value.dim() and value.numel() == count)
        scalars = {key: [value.item(), str(value.dtype).removeprefix("torch.")] if isinstance(value, torch.Tensor) else [value, None]
                   for key, value in state.items() if key not in ranges}
        described.append({"place": [i, offset, count], "ranges": ranges, "scalars": scalars})
        values += [tensor.detach(), *(state[key].detach().float() for key in ranges)]
    return described, torch.cat(values)


def load_full(work: Alone | Spread, groups: list[dict], state: dict) -> None:
    if not isinstance(state, dict) or "laconic" in state:
        raise errors.error("state_version", "state: this is not the state of full_state_dict or of a plain optimizer",
                           "use load_state_dict for one rank's state")
    _check_groups(groups, state)
    trained, masters = work.trained, state.get("masters")
    if masters is not None:
        check_fields("masters", masters, set(trained.names))
        for name, p in zip(trained.names, trained.parameters):
            _check_values(name, masters[name], tuple(p.shape))
    states = {i: state["state"].get(number, {}) for number, i in enumerate(_order(work, groups))}
    for i, own in states.items():
        for key, value in own.items():
            if isinstance(value, torch.Tensor) and value.dim() and value.numel() != trained.parameters[i].numel():
                raise corrupt(f"{key} of {trained.names[i]} has the shape {tuple(value.shape)}")
    if isinstance(work, Alone):
        work.optimizer.load_state_dict({"state": state["state"], "param_groups": work.optimizer.state_dict()["param_groups"]})
        if masters is not None:
            for name, values in zip(trained.names, trained.host):
                values.copy_(masters[name])
            trained.written()
    else:
        _load_full_spread(work, states, masters)
    _take_groups(groups, state["param_groups"])


def _load_full_spread(work: Spread, states: dict[int, dict], masters) -> None:
    inner, trained = work.inner, work.trained
    ranges = {}
    for number, (i, offset, count) in enumerate(inner.places):
        cut = {key: _cut(value, offset, count, trained.parameters[i].shape) for key, value in states[i].items()}
        if cut:
            ranges[number] = cut
    inner.optimizer.load_state_dict({"state": ranges, "param_groups": inner.optimizer.state_dict()["param_groups"]})
    if masters is None:
        work.take_parameters()
        return
    for (i, offset), tensor in inner.tensors.items():
        values = masters[trained.names[i]].detach().to("cpu", torch.float32)
        tensor.copy_(values if offset == WHOLE else values.reshape(-1)[offset : offset + tensor.numel()])
    for name, values in zip(trained.names, trained.host):
        values.copy_(masters[name])
    trained.written()
    work.masters_loaded()


def _cut(value, offset: int, count: int, shape):
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return _copied(value)
    return value.detach().reshape(shape).clone() if offset == WHOLE else value.detach().reshape(-1)[offset : offset + count].clone()
