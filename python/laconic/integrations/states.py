# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Shared by the callbacks of all frameworks: a state file per rank beside each checkpoint, which all ranks load or none. A handle has `rank`,
`step`, `gather_texts` and `prepare`. Imports no framework."""

from __future__ import annotations

import logging
from pathlib import Path

from ..core import environment
from ..core.errors import LaconicError
from ..engines.texts import listed

READY = "ready"
_FIELDS = {"version", "fingerprint", "state"}
VERSION = 1


def content(fingerprint: str, state: dict) -> dict:
    """The contents of a rank's state file: its state and the parameters that it belongs to."""
    return {"version": VERSION, "fingerprint": fingerprint, "state": state}


def write(save, path: Path, content: dict) -> str:
    """Returns the reason of a failure, or an empty text."""
    try:
        save(path, content)
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def say_unsaved(ranks: list[int], trouble: str) -> None:
    environment.say(f"the state of rank {listed(ranks)} was not saved; a run that resumes here starts with empty residuals: "
                    f"{trouble}", logging.WARNING)


def save_alone(save, rank: int, path: Path, content: dict) -> None:
    """Without the other ranks."""
    trouble = write(save, path, content)
    if trouble:
        say_unsaved([rank], trouble)


def resume(handle, fingerprint: str, load, paths: list[Path]) -> bool:
    """Loads the first of `paths` that fits the parameters of this fingerprint, on all ranks or on none; rank 0 logs which. Collective."""
    text, restore = _first_that_fits(handle, fingerprint, load, paths)
    texts = handle.gather_texts(text)
    loads = text.startswith(READY) and len(set(texts)) == 1
    if loads:
        restore()
    if handle.rank == 0:
        if loads:
            environment.say(f"residuals continue at step {handle.step}")
        else:
            environment.say(f"residuals start at zero: {_why_not(texts)}", logging.WARNING)
    return loads


def resume_from(handle, fingerprint: str, content: dict) -> bool:
    """Loads a state that is still in memory, on all ranks or on none. Collective."""
    text, restore = _fits(handle, fingerprint, content, "the last run")
    loads = text.startswith(READY) and set(handle.gather_texts(text)) == {text}
    if loads:
        restore()
    return loads


def _why_not(texts: list[str]) -> str:
    without = [rank for rank, text in enumerate(texts) if not text.startswith(READY)]
    if not without:
        return "the ranks' files were not saved at the same step"
    return f"rank {listed(without)}: {texts[without[0]]}"


def _first_that_fits(handle, fingerprint: str, load, paths: list[Path]):
    """("ready" and what has to be the same on all ranks, a call that loads) of the first that fits, or (why none does, None)."""
    reasons = []
    for path in paths:
        try:
            text, restore = _fits(handle, fingerprint, load(path), str(path))
        except FileNotFoundError:
            text, restore = f"there is no {path}", None
        except (OSError, LaconicError) as error:
            text, restore = str(error), None
        if restore is not None:
            return text, restore
        reasons.append(text)
    # A file that is there and does not fit says more than one that is not there.
    return next((r for r in reasons if not r.startswith("there is no ")), reasons[0] if reasons else "it resumes from no checkpoint"), None


def _fits(handle, fingerprint: str, content: dict, what: str):
    if content.keys() != _FIELDS:
        return f"{what} is not a state that LaconicCallback saved", None
    if content["version"] != VERSION:
        return f"{what} has version {content['version']}, this package reads {VERSION}", None
    if content["fingerprint"] != fingerprint:
        return f"{what} belongs to other parameters than the model has", None
    try:
        restore = handle.prepare(content["state"])
    except LaconicError as error:
        return f"{what}: {error}", None
    return f"{READY} {content['state']['step']} {content['fingerprint']}", restore
