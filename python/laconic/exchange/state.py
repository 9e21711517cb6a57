# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Saved state: what is checked before the first float of it is copied."""

from __future__ import annotations

import ctypes
import hashlib
import json

from ..core import errors
from ..core._checks import U32, U64
from ..core.errors import LaconicError
from .rates import usable

#: of what is saved. 1: the layout has the parts of buckets, each of them an exchange where the engine adds. 2: the exchanges.
VERSION = 2
_HEADER = {"version": U32, "rank": U32, "world": U32, "model_hash": U64, "agreement": U64}
_SHARD = {"node_shards": U32, "node_shard": U32}  # of a rank that exchanges a shard of its node


def in_units_of_gradients(name: str) -> bool:
    """Whether an entry of a session's state grows with the loss scale."""
    return not name.startswith(("state/", "master/"))


def corrupt(what: str) -> LaconicError:
    return errors.error("state_corrupt", f"the state is damaged: {what}",
                        "pass this rank's state_dict(), or use an older checkpoint")


def fingerprint(parameters) -> str:
    """Hash over the (name, tensor) pairs, names, shapes, types and values, as 32 hexadecimal digits."""
    h = hashlib.blake2b(digest_size=16)
    _add(h, parameters)
    return h.hexdigest()


def _add(h, parameters) -> None:
    for name, p in parameters:
        values = p.detach().cpu().contiguous()
        h.update(f"{name} {tuple(values.shape)} {values.dtype};".encode())
        size = values.numel() * values.element_size()
        if size:
            h.update((ctypes.c_char * size).from_address(values.data_ptr()))


def _whole(state: dict) -> str:
    """Fingerprint of all that a state holds. Its fields have been checked."""
    h = hashlib.blake2b(digest_size=16)
    values = {"tensors", "rates", "entries"}
    h.update(json.dumps({key: value for key, value in unsealed(state).items() if key not in values}, sort_keys=True).encode())
    for key in sorted(values & state.keys()):
        for name, saved in sorted(state[key].items()):
            h.update(f"{key} {name} ".encode())
            if isinstance(saved, (bytes, bytearray)):
                h.update(f"{len(saved)};".encode() + saved)
            else:
                _add(h, [(name, saved)])
    return h.hexdigest()


def sealed(state: dict) -> dict:
    """The state, with the fingerprint of all of it in its header: a mixture of several ranks' states has another one."""
    return {**state, "header": {**state["header"], "fingerprint": _whole(state)}}


def unsealed(state: dict) -> dict:
    if not isinstance(state.get("header"), dict):
        return state
    return {**state, "header": {key: value for key, value in state["header"].items() if key != "fingerprint"}}


def check_seal(state: dict) -> None:
    """Earlier releases have saved none. The state's fields have been checked."""
    if state["header"].get("fingerprint", told := _whole(state)) != told:
        raise errors.error("state_corrupt", "the state is damaged: its parts were not saved together",
                           "pass this rank's state_dict(), or use an older checkpoint; for torch.distributed.checkpoint "
                           "there is laconic.checkpointable(handle)")


def check_fields(what: str, value, fields, optional=frozenset()) -> None:
    """A dict of exactly these keys, and of optional ones."""
    if not isinstance(value, dict):
        raise corrupt(f"{what} is a {type(value).__name__}, not a dict")
    for problem, keys in (("lacks", fields - value.keys()), ("has an unknown", value.keys() - fields - optional)):
        if keys:
            raise corrupt(f"{what} {problem} {min(keys, key=str)!r}")


def check_number(what: str, value, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise corrupt(f"{what} is {value!r}, not a whole number from 0 to {most}")
    return value


def check_version(version) -> None:
    if not 1 <= check_number("version", version, U32) <= VERSION:
        raise errors.error("state_version", f"state has version {version}, this package reads 1 to {VERSION}",
                           "load it with the version that wrote it, flush() and save again")


def check_header(header) -> None:
    """Types and ranges; whose state it is, the session says."""
    check_fields("header", header, {*_HEADER, "spec"}, _SHARD.keys())
    for name, most in {**_HEADER, **_SHARD}.items():
        check_number(f"header's {name}", header.get(name, 0), most)
    spec = header["spec"]
    if not isinstance(spec, str) or not spec.isascii() or "\0" in spec or len(spec) > 255:
        raise corrupt(f"header's spec is {spec!r}")


def check_rates(rates, names: list[str]) -> dict[str, float]:
    """Learning rates by parameter, saved as float64 tensors of no dimension: floats."""
    import torch

    if not isinstance(rates, dict) or not rates.keys() <= set(names):
        raise corrupt("rates is not a dict of this model's parameters")
    read = {}
    for name, rate in rates.items():
        if not isinstance(rate, torch.Tensor) or rate.dtype != torch.float64 or rate.dim() != 0 \
                or rate.device.type == "meta" or not usable(float(rate)):
            raise corrupt(f"the learning rate of {name} is {rate!r}")
        read[name] = float(rate)
    return read


def of_one_rank(saved):
    """The entries that one rank loads, of which it has none: a release that compressed alone has saved residuals."""
    return {} if isinstance(saved, dict) else saved


def check_tensors(tensors, entries: list, unit: float) -> list:
    """(address, float32 values in the unit of the residuals of now) for every (name, address, count) in `entries`."""
    counts = {name: count for name, _, count in entries}
    may_lack = {name for name in counts if name.startswith("state/") and name.endswith("?")}  # older releases saved none
    check_fields("tensors", tensors, counts.keys() - may_lack, may_lack)
    if may_lack - tensors.keys():
        import torch

        tensors = {**{name: torch.zeros(counts[name], dtype=torch.float32, device="cpu") for name in may_lack}, **tensors}
    return [(address, _values(name, tensors[name], count, unit)) for name, address, count in entries]


def _values(name: str, saved, count: int, unit: float):
    import torch

    if not isinstance(saved, torch.Tensor):
        raise corrupt(f"{name} is a {type(saved).__name__}, not a tensor")
    if saved.dtype != torch.float32 or saved.layout != torch.strided or saved.device.type == "meta":
        raise corrupt(f"{name} is a tensor of {saved.dtype} ({saved.layout}, {saved.device}), not of float32 values")
    if tuple(saved.shape) != (count,):
        raise corrupt(f"{name} has the shape {tuple(saved.shape)}, not ({count},)")
    values = saved.detach().cpu().contiguous()  # map_location may have put it on the model's device
    if in_units_of_gradients(name) and unit != 1.0:
        values = values * unit
    if not bool(values.isfinite().all()):
        raise corrupt(f"{name} holds a value that is not finite")
    if name == "state/flush" and not all(x.is_integer() and 0 <= x <= 65535 for x in values.tolist()):
        raise corrupt(f"{name} holds {values.tolist()}, not two numbers of steps")
    return values


def check_layout(layout, names: list[str], dtypes: list, required: bool) -> list[list[int]]:
    """Indices of the parameters of every bucket: all of them once. An empty layout is that of a run before its first step."""
    if not isinstance(layout, list) or not all(isinstance(bucket, list) and bucket for bucket in layout):
        raise corrupt("layout is not a list of lists of parameter names")
    index = {name: i for i, name in enumerate(names)}
    seen: set[int] = set()
    for bucket in layout:
        for name in bucket:
            if not isinstance(name, str) or name not in index:
                raise corrupt(f"layout has an unknown parameter {name!r}")
            if index[name] in seen:
                raise corrupt(f"layout has {name} twice")
            seen.add(index[name])
        if len({dtypes[index[name]] for name in bucket}) > 1:
            raise corrupt(f"layout has a bucket of several element types, with {bucket[0]}")
    if len(seen) < len(names) and (layout or required):
        raise corrupt(f"layout lacks {next(name for name in names if index[name] not in seen)}")
    return [[index[name] for name in bucket] for bucket in layout]
