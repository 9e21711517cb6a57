# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Parameter names without the words that wrappers put into them: compiling a model, or checkpointing its activations, does not make
it another one."""

from __future__ import annotations

import re

from ..core import errors
from ..core.errors import LaconicError

_WORDS = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module|module)\.")


def shorten(names, limit: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def bare(name: str) -> str:
    return _WORDS.sub("", name)


def undecorated(names: list[str]) -> list[str]:
    """The names without wrappers' words; as they are where two would be one."""
    without = [bare(name) for name in names]
    return without if len(set(without)) == len(names) else names


def of_rules(rules: list[dict]) -> list[dict]:
    """Names as rules match them, without these prefixes."""
    return [{**rule, "match": bare(rule["match"])} if "match" in rule else rule for rule in rules]


def _listed(state: dict) -> list[str]:
    """The parameters that a state names; none if it is damaged, or from a run before its first step."""
    layout = state["layout"]
    if not isinstance(layout, list) or not all(isinstance(bucket, list) for bucket in layout):
        return []
    names = [name for bucket in layout for name in bucket]
    return names if all(isinstance(name, str) for name in names) else []


def renamed(state: dict, session, session_of) -> dict:
    """A state that an earlier release has saved under decorated names, under those of `session`; any other as it is. session_of(names):
    a session of the same parameters under other names."""
    saved = {bare(name): name for name in _listed(state)}
    own = [bare(name) for name in session.names]
    if saved.keys() != set(own) or set(saved.values()) == set(session.names):
        return state
    try:
        other = session_of([saved[name] for name in own])
        try:
            other.accepts(state["header"])
        finally:
            other.close()
        now = dict(zip(own, session.names))
        tensors = {_entry(key, now): values for key, values in state["tensors"].items()}
        rates = {"rates": {now[bare(name)]: rate for name, rate in state["rates"].items()}} if "rates" in state else {}
    except (LaconicError, AttributeError, KeyError, TypeError):
        return state  # and refused as what it is
    layout = [[now[bare(name)] for name in bucket] for bucket in state["layout"]]
    return {**state, "header": session.header(), "tensors": tensors, "layout": layout, **rates}


def _entry(key: str, now: dict[str, str]) -> str:
    """residual/_orig_mod.w, state/_orig_mod.w@0#1."""
    kind, _, rest = key.partition("/")
    name, at, place = rest.partition("@")
    return f"{kind}/{now.get(bare(name), name)}{at}{place}"


def with_names(error: LaconicError, state: dict, names: list[str]) -> LaconicError:
    """The refusal of another model's state, with the first name that only one of the two has."""
    saved = _listed(state)
    if error.name != "state_model" or not saved:
        return error
    strange, missing = ([name for name in some if name not in set(others)] for some, others in ((saved, names), (names, saved)))
    told = [f"the state has {strange[0]}" if strange else "", f"this model has {missing[0]}" if missing else ""]
    if not any(told):
        return error
    return errors.error(error.name, f"{error.message}: {', '.join(filter(None, told))}", error.hint)
