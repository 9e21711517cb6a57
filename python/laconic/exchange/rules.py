# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Rules as users give them: a list of dicts, or a TOML file with a [[rule]] for each. What they mean, the library decides."""

from __future__ import annotations

import os
import tomllib

from ..core import _lib, errors
from ..core._checks import U64, text, whole

#: of a rule, with what one may hold
KEYS = {"match": str, "spec": str, "control": str, "min_elements": int, "max_elements": int, "optional": bool}
# Limits of the command's TOML reader that tomllib does not have: 64 bits for whole numbers, and the depth of nested tables.
_TOML = range(-(2**63), 2**63)
_MOST_DOTS = 4096


def given(rules) -> list[dict]:
    """Those of the call, checked; without any, those of LACONIC_RULES.

    Args:
        rules: None, a path, or a list of dicts with `KEYS`.
    """
    source = "rules"
    if rules is None:
        rules = os.environ.get("LACONIC_RULES") or []
        source = "LACONIC_RULES"
    if isinstance(rules, (str, os.PathLike)):
        source, rules = os.fspath(rules), _read(os.fspath(rules))
    if not isinstance(rules, (list, tuple)):
        raise errors.error("invalid_argument", f"rules is {rules!r}", 'use a list of dicts, such as [{"match": "*embed*", "spec": "none"}], or a path')
    return [_checked(rule, f"{source}: rule {i}") for i, rule in enumerate(rules, 1)]


def chosen(given, variable: str = "LACONIC_CONTROL"):
    """The call's, or that of the variable."""
    return given if given is not None else os.environ.get(variable) or None


def _read(path: str) -> list:
    try:
        with open(path, "rb") as file:
            content = file.read()
        if content.count(b".") > _MOST_DOTS:
            raise errors.error("invalid_argument", f"{path}: it has more than {_MOST_DOTS} dots", "a TOML file with [[rule]] tables")
        found = tomllib.loads(content.decode())
    except OSError as error:
        raise errors.error("invalid_argument", f"rules: cannot read {path}: {error.strerror}", "a TOML file with [[rule]] tables") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.error("invalid_argument", f"{path}: {error}", "a TOML file with [[rule]] tables") from None
    other = sorted(set(found) - {"rule"})
    if other or not isinstance(found.get("rule", []), list):
        raise errors.error("invalid_argument", f"{path}: it has {', '.join(other) or 'one [rule]'}", "only [[rule]] tables belong there")
    rules = found.get("rule", [])
    for i, rule in enumerate(rules, 1):
        for key, value in rule.items() if isinstance(rule, dict) else ():
            if type(value) is int and value not in _TOML:
                raise errors.error("invalid_argument", f"{path}: rule {i}: {key} is {value}", "TOML's whole numbers have 64 bits")
    return rules


def _checked(rule, where: str) -> dict:
    if not isinstance(rule, dict):
        raise errors.error("invalid_argument", f"{where} is {rule!r}", "a dict with " + ", ".join(KEYS))
    for key, value in rule.items():
        if key not in KEYS:
            raise errors.error("invalid_argument", f"{where} has the key {key!r}", "keys: " + ", ".join(KEYS))
        if type(value) is not KEYS[key]:
            raise errors.error("invalid_argument", f"{where}: {key} is {value!r}", f"a {KEYS[key].__name__}")
    return dict(rule)


def array_of(rules: list[dict]):
    """For the library, which copies them."""
    array = (_lib.Rule * max(len(rules), 1))()
    for entry, rule in zip(array, rules):
        entry.match = text("match", rule.get("match", "*"))
        entry.spec = text("spec", rule["spec"]) if "spec" in rule else None
        entry.control = text("control", rule["control"]) if "control" in rule else None
        entry.min_elements = whole("min_elements", rule.get("min_elements", 0), 0, U64)
        entry.max_elements = whole("max_elements", rule["max_elements"], 1, U64) if "max_elements" in rule else 0
        entry.optional = int(rule.get("optional", False))
    return array
