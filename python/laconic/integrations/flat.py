# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Shared by laconic.jax and laconic.keras: a session over all gradients in one flat array, and its state as arrays. Needs NumPy; imports
no framework."""

from __future__ import annotations

import hashlib
import json

import numpy

from ..core import environment, errors
from ..core.errors import LaconicError
from ..engines.texts import gather_texts, listed
from ..exchange.session import Session
from ..exchange.state import corrupt

TYPES = ("float32", "bfloat16", "float16")
_DISABLES = ("rules", "control", "record", "down", "strategy", "aggregator")
_PIECE, _HASH = 1 << 20, 32


class Flat:
    """Averages the gradients of `parameters`, (name, shape) pairs. Attributes: `session`, `step`: number of the next step, `last_error`."""

    def __init__(self, spec: str, parameters, options: dict):
        if environment.disabled():
            spec, options = "none", {key: value for key, value in options.items() if key not in _DISABLES}
        self.session = Session(spec, parameters, **options)
        self.step, self.last_error = 0, None
        sizes = [int(numpy.prod(shape, dtype=numpy.int64)) for _, shape in parameters]
        self._buffer = numpy.empty(sum(sizes), numpy.float32)
        #: a view for each parameter
        self.views = [part.reshape(shape) for part, (_, shape) in zip(numpy.split(self._buffer, numpy.cumsum(sizes)[:-1]), parameters)]

    def means(self, *gradients) -> list[numpy.ndarray]:
        """Of one gradient per parameter, in their types. Valid until the next call: float32 ones are views."""
        try:
            for view, gradient in zip(self.views, gradients, strict=True):
                view[...] = numpy.asarray(gradient)
            self.step += 1
            self.session.average(self.step - 1, self._buffer)
        except LaconicError as error:
            self.last_error = error
            raise
        return [view.astype(gradient.dtype, copy=False) for view, gradient in zip(self.views, gradients)]

    # ---- weights ---------------------------------------------------------------------------------------------------------------

    def compare(self, arrays, what: str, advice: str = "use the same seed on all ranks, or sync=True") -> None:
        """Collective. LaconicError on all ranks where `arrays` differ from rank 0's."""
        hashes = self.session.gather_bytes(hashed(arrays))
        others = [rank for rank in range(self.session.world) if hashes[_HASH * rank : _HASH * (rank + 1)] != hashes[:_HASH]]
        if others:
            raise errors.error("ranks_disagree", f"{what} of rank {listed(others)} differ from those of rank 0", advice)

    def of_rank_0(self, values) -> numpy.ndarray:
        """Collective. Rank 0's values of an array that has the same shape and type on all ranks."""
        values = numpy.asarray(values)
        own, pieces = values.tobytes(), []
        for at in range(0, len(own), _PIECE):
            piece = own[at : at + _PIECE]
            pieces.append(self.session.gather_bytes(piece)[: len(piece)])
        return numpy.frombuffer(b"".join(pieces), values.dtype).reshape(values.shape)

    # ---- state -----------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict:
        state = self.session.state_dict()
        entries = {f"entries/{name}": numpy.frombuffer(saved, numpy.float32).copy() for name, saved in state.pop("entries").items()}
        return {"step": numpy.int64(self.step), "session": numpy.frombuffer(json.dumps(state).encode(), numpy.uint8).copy(), **entries}

    def load_state_dict(self, state: dict) -> None:
        try:
            step, plain = int(state["step"]), json.loads(numpy.asarray(state["session"], numpy.uint8).tobytes())
            entries = {name.removeprefix("entries/"): numpy.asarray(saved, numpy.float32).tobytes() for name, saved in state.items()
                       if name.startswith("entries/")}
            whole = {**plain, "entries": entries}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise corrupt(f"{type(error).__name__}: {error}") from None
        self.session.load_state_dict(whole)
        self.step = step

    # ---- as the callbacks' state files take a handle -----------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return self.session.rank

    def gather_texts(self, text: str) -> list[str]:
        """Every rank's text, 500 bytes of each at most. Collective."""
        return gather_texts(self.session, text)

    def prepare(self, state: dict):
        """A call that loads a state. LaconicError if it cannot be loaded; nothing is changed then."""
        former = self.state_dict()
        self.load_state_dict(state)
        self.load_state_dict(former)
        return lambda: self.load_state_dict(state)


def hashed(arrays) -> bytes:
    """Over shapes, types and values."""
    h = hashlib.blake2b(digest_size=_HASH)
    for values in arrays:
        h.update(f"{values.shape} {values.dtype};".encode() + values.tobytes())
    return h.digest()


class OfSession:
    """What users call of a session, for an object with `flat`."""

    flat: Flat

    @property
    def rank(self) -> int:
        return self.flat.session.rank

    @property
    def world(self) -> int:
        return self.flat.session.world

    @property
    def last_error(self) -> LaconicError | None:
        """The failure of the last exchange that failed."""
        return self.flat.last_error

    def stats(self) -> dict:
        """As laconic.Session.stats."""
        return self.flat.session.stats()

    def explain(self) -> dict:
        """As laconic.Session.explain."""
        return self.flat.session.explain()

    def set(self, spec: str | None = None, rules=None, control: str | None = None) -> None:
        """As laconic.Session.set. Collective."""
        self.flat.session.set(spec, rules, control)

    def flush(self, steps: int = 10) -> int:
        """As laconic.Session.flush."""
        return self.flat.session.flush(steps)

    def state_dict(self) -> dict:
        """NumPy arrays by name, for Orbax, msgpack or pickle: this rank's state, of which every rank saves its own after the same step."""
        return self.flat.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Continues bit for bit. LaconicError, as laconic.Session.load_state_dict; nothing is changed then."""
        self.flat.load_state_dict(state)

    def close(self) -> None:
        """As laconic.Session.close."""
        self.flat.session.close()
