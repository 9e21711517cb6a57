# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The exchange of a registered codec, in Python: what laconic._session.CSession is to the worker, for codecs of users.

A bucket is exchanged in whole before the next one begins: every rank's status and length (512 bytes), the payloads, padded to the
longest, decoded in rank order by every rank, the sum of what travels as it is, and a last word from every rank on whether it
could decode. Only then does a residual change. So a rank that fails is heard by all, and what was not delivered is still there.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import time

import torch

from . import _lib, errors, registered
from ._checks import U64, whole
from ._session import ALONE, PART, WINDOW, engine_failed, no_span
from .engine import view
from .errors import LaconicError

_OK, _NOT_FINITE, _FAILED = 0, 1, 2
_WORD = struct.Struct("<IIQ")  # status, steps of the flush that is wished for, bytes of payloads
_WORD_BYTES = 512
_LENGTH = struct.Struct("<Q")
#: in place of the length of a parameter whose gradient is zero: nothing was encoded, and its residual stays
_NOTHING = U64
STATE_VERSION = 1


def _hash(what) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps(what).encode()).digest()[:8], "little")


def _zeros(elements: int) -> torch.Tensor:
    return torch.zeros(elements, dtype=torch.float32, device="cpu")


class _Bucket:
    """A buffer in flight: its gradients in float32, by parameter."""

    def __init__(self, layout, address: int, dtype: int, counts, encoded):
        self.buffer = view(address, layout.elements, dtype)
        self.values = self.buffer.float() if dtype != _lib.F32 else self.buffer
        where = [(p, self.values[offset : offset + counts[p]]) for p, offset in zip(layout.parameters, layout.offsets)]
        self.encoded = [(p, g) for p, g in where if p in encoded]
        self.raw = [g for p, g in where if p not in encoded]

    def write(self) -> None:
        if self.values is not self.buffer:
            self.buffer.copy_(self.values)


class OwnSession:
    """As CSession, with its methods, for a registered name."""

    reports = False  #: as CSession.reports: never

    layout_matters = False
    sets = 0  #: as CSession.sets
    waiting = None  #: as CSession.waiting: never

    def __init__(self, spec: str, parameters, *, rank: int, world: int, seed: int, small_elements: int, strategy: str, engine_sums: int,
                 threads: int, short_sends: bool = False, window: int = WINDOW, part: int = PART, rules: list[dict] = (),
                 control: str | None = None, record=None):
        if rules or control or record:
            raise errors.error("unsupported", "a registered codec takes no rules, no control and no record",
                               "leave them out, or name a codec of the library")
        del engine_sums, short_sends
        if strategy not in ("auto", "gather_all"):
            raise errors.error("unsupported", f"strategy {strategy!r}: the frames of a registered codec are gathered", "auto or gather_all")
        self._method = registered.Method(spec)
        self.spec = self._method.spec
        self.rank, self.world = rank, world
        self.seed, self.small_elements = whole("seed", seed, 0, U64), whole("small_elements", small_elements, 0, U64)
        self.window, self.part = whole("window", window, 1, _lib.MAX_WINDOW), whole("part", part, 0, U64)
        self.threads = whole("threads", threads, 0, _lib.MAX_THREADS)
        self.names = [name for name, _ in parameters]
        self._shapes = [tuple(shape) for _, shape in parameters]
        self._counts = [math.prod(shape) for shape in self._shapes]
        self._encoded = {i for i, count in enumerate(self._counts) if count > self.small_elements and world > 1}
        self._codecs = {i: self._method.instance() for i in self._encoded}
        self._decoders = {i: self._method.instance() for i in self._encoded}
        kept = self._encoded if self._method.feedback else ()
        self._residuals = {i: _zeros(self._counts[i]) for i in sorted(kept)}
        self._flush = _zeros(2)  # the wish of this rank, and the parts to come
        self._heard = 0  # the longest wish of the step that is under way
        self._step: int | None = None  # that is under way, or was the last
        self._parts, self._open = 0, False  # of its flush, 0: none; it may have more buckets
        self.all_raw = not self._encoded
        self.trace = None
        self.wire_seconds, self._encode_seconds, self._decode_seconds = 0.0, 0.0, 0.0
        self.broken: LaconicError | None = None
        self._counters = dict.fromkeys(("steps", "exchanges", "elements", "dense_bytes", "wire_bytes", "rounds", "zero_units",
                                        "non_finite_units", "excluded_granules", "partial_granules", "out_of_range",
                                        "residual_resets", "fallbacks", "flushes", "failures"), 0)

    @property
    def word(self) -> str:
        """Told at attach, where other ranks may have a session of the library's."""
        return f"the registered codec {self._method.name}"

    def close(self) -> None:
        if self.trace is not None:
            self.trace.close()

    def abandon(self) -> None:
        """A collective that has not ended holds its own tensors."""

    def release(self, layout) -> None:
        """No buffer is kept between two exchanges."""

    # ---- agreement ----------------------------------------------------------------------------------------------------------

    def _card(self) -> dict:
        from . import __version__

        return {"version of laconic": __version__, "spec": self.spec, "seed": self.seed, "small_elements": self.small_elements,
                "part": self.part, "parameters": len(self.names), "model": _hash([self.names, self._shapes])}

    def agree(self, engine) -> None:
        card = json.dumps(self._card()).encode()
        gathered = engine.gather_bytes(card.ljust(_lib.AGREEMENT_BYTES, b"\0"))
        cards = [json.loads(gathered[r * _lib.AGREEMENT_BYTES : (r + 1) * _lib.AGREEMENT_BYTES].rstrip(b"\0")) for r in range(self.world)]
        for r, other in enumerate(cards):
            for what, value in cards[0].items():
                if other[what] != value:
                    raise errors.error("ranks_disagree", f"{what} is {value} on rank 0 and {other[what]} on rank {r}",
                                       "give every rank the same call, file and LACONIC_* variables")

    # ---- the exchange -------------------------------------------------------------------------------------------------------

    def begin(self, layout, address: int, dtype: int, engine, *, step: int, index: int = 0, failure: LaconicError | None = None,
              span=no_span) -> None:
        """The whole of it: nothing is in flight afterwards. LaconicError: no mean came, and the residuals hold the gradients."""
        del index
        self._enter(step)
        bucket = _Bucket(layout, address, dtype, self._counts, self._encoded)
        finite = [bool(g.isfinite().all()) for _, g in bucket.encoded]
        try:
            self._exchange(bucket, engine, finite, step, failure, span)
        except LaconicError:
            self._counters["failures"] += 1
            self._keep(bucket, finite)
            raise
        except BaseException as error:  # noqa: BLE001  of the engine
            self.broken = engine_failed(error)
            self._counters["failures"] += 1
            self._keep(bucket, finite)
            raise self.broken from error

    def keep(self, layout, address: int, dtype: int, *, step: int, index: int = 0) -> None:
        """The engine has failed before: the gradients go into the residuals."""
        bucket = _Bucket(layout, address, dtype, self._counts, self._encoded)
        self._keep(bucket, [bool(g.isfinite().all()) for _, g in bucket.encoded])

    def finish(self, flight, engine, *, span=no_span) -> None:
        raise AssertionError("nothing is ever in flight")

    def abort(self, flight) -> None:
        raise AssertionError("nothing is ever in flight")

    def _keep(self, bucket: _Bucket, finite: list[bool]) -> None:
        for (p, gradient), sound in zip(bucket.encoded, finite):
            if sound and p in self._residuals:
                self._residuals[p] += gradient

    def _exchange(self, bucket, engine, finite, step, failure, span) -> None:
        started = time.perf_counter()
        parts = self._parts
        payloads, corrected, told = [], [], failure.message if failure is not None else ""
        with span("laconic::encode"):
            if failure is None and all(finite) and parts == 0:
                try:
                    payloads, corrected = self._encode(bucket, step)
                except RuntimeError as error:
                    told = str(error)
        status = _FAILED if told else _OK if all(finite) else _NOT_FINITE
        self._encode_seconds += time.perf_counter() - started
        blob = b"".join(_LENGTH.pack(_NOTHING if data is None else len(data)) for data in payloads)
        blob += b"".join(data for data in payloads if data is not None)
        words = self._ask(engine, status, told, len(blob), failure, span)
        if any(status == _NOT_FINITE for status, _, _ in words):
            self._fall_back(bucket, engine, finite, span)
        elif parts:
            self._drain(bucket, engine, parts, span)
        else:
            self._deliver(bucket, engine, blob, [size for _, _, size in words], corrected, step, failure, span)
        self._count(bucket)

    def _encode(self, bucket, step: int):
        """Payloads (None: a gradient of zeros) and what each of them is of, gradient and residual."""
        payloads, corrected = [], []
        for p, gradient in bucket.encoded:
            if not bool(gradient.any()):
                payloads.append(None)
                corrected.append(None)
                self._counters["zero_units"] += 1
                continue
            held = self._residuals.get(p)
            if held is not None and not bool(held.isfinite().all()):
                held.zero_()
                self._counters["residual_resets"] += 1
            total = gradient.clone() if held is None else gradient + held
            if not bool(total.isfinite().all()):
                raise RuntimeError(f"{self.names[p]}: the sum of gradient and residual is too large for float32")
            corrected.append(total)
            place = registered.Place(self.seed, step, self.rank, self.world, self.names[p])
            try:
                payloads.append(registered.encode(self._codecs[p], place, total.clone().reshape(self._shapes[p]).numpy()))
            except RuntimeError as error:
                raise RuntimeError(f"{self.names[p]}: {error}") from error
        return payloads, corrected

    def _deliver(self, bucket, engine, blob: bytes, sizes, corrected, step: int, failure, span) -> None:
        blobs = self._gather(engine, blob, sizes, span)
        raw = self._sum(bucket.raw, engine, span)
        started, told, means, own = time.perf_counter(), "", {}, {}
        with span("laconic::decode"):
            try:
                means, own = self._decode(bucket, blobs, step)
            except RuntimeError as error:
                told = str(error)
        self._decode_seconds += time.perf_counter() - started
        self._ask(engine, _FAILED if told else _OK, told, 0, failure, span)
        for (p, gradient), total in zip(bucket.encoded, corrected):  # nothing fails from here on
            if total is not None and p in self._residuals:
                self._residuals[p].copy_(total - own[p])
            gradient.copy_(means[p])
        self._put(bucket.raw, raw)
        bucket.write()

    def _decode(self, bucket, blobs: list[bytes], step: int):
        """Means, and this rank's own share, by parameter."""
        import numpy

        listed = [self._split(r, blob, len(bucket.encoded)) for r, blob in enumerate(blobs)]
        means, own = {}, {}
        for i, (p, _) in enumerate(bucket.encoded):
            total = _zeros(self._counts[p])
            for r, payloads in enumerate(listed):
                if payloads[i] is None:
                    continue
                out = numpy.zeros(self._shapes[p], numpy.float32)
                place = registered.Place(self.seed, step, r, self.world, self.names[p])
                try:
                    registered.decode(self._decoders[p], place, payloads[i], out)
                except RuntimeError as error:
                    raise RuntimeError(f"{self.names[p]}, the payload of rank {r}: {error}") from error
                decoded = torch.from_numpy(out).reshape(-1)
                total += decoded
                if r == self.rank:
                    own[p] = decoded
            means[p] = total / self.world
            if not bool(means[p].isfinite().all()):
                raise RuntimeError(f"{self.names[p]}: the mean of the decoded payloads is not finite")
        return means, own

    @staticmethod
    def _split(rank: int, blob: bytes, count: int) -> list:
        if len(blob) < _LENGTH.size * count:
            raise RuntimeError(f"the payloads of rank {rank} are damaged")
        lengths = [_LENGTH.unpack_from(blob, _LENGTH.size * i)[0] for i in range(count)]
        at, payloads = _LENGTH.size * count, []
        for length in lengths:
            size = 0 if length == _NOTHING else length
            payloads.append(None if length == _NOTHING else blob[at : at + size])
            at += size
        if at != len(blob):
            raise RuntimeError(f"the payloads of rank {rank} are damaged")
        return payloads

    def _fall_back(self, bucket, engine, finite, span) -> None:
        """Infinity and NaN reach all ranks as under plain DDP; residuals stay."""
        self._counters["fallbacks"] += 1
        self._counters["non_finite_units"] += finite.count(False)
        everything = [*(g for _, g in bucket.encoded), *bucket.raw]
        self._put(everything, self._sum(everything, engine, span))
        bucket.write()

    def _drain(self, bucket, engine, parts: int, span) -> None:
        """A step of a flush: the gradients go out as they are, with an equal part of the residuals."""
        corrected = [gradient + self._residuals[p] / parts if p in self._residuals else gradient for p, gradient in bucket.encoded]
        everything = [*(g for _, g in bucket.encoded), *bucket.raw]
        means = self._sum([*corrected, *bucket.raw], engine, span)
        self._counters["flushes"] += 1
        for p, _ in bucket.encoded:
            if p in self._residuals:
                self._residuals[p] -= self._residuals[p] / parts
        self._put(everything, means)
        bucket.write()

    # ---- collectives --------------------------------------------------------------------------------------------------------

    def _ask(self, engine, status: int, told: str, size: int, failure, span) -> list:
        """Every rank's (status, wish, size); LaconicError, the same on all ranks, where one has failed."""
        word = _WORD.pack(status, int(self._flush[0]), size) + told.encode(errors="replace")[: _WORD_BYTES - _WORD.size]
        gathered = self._wired(span, engine.gather_bytes, word.ljust(_WORD_BYTES, b"\0"))
        self._sent(_WORD_BYTES * (self.world - 1))
        words = [_WORD.unpack_from(gathered, _WORD_BYTES * r) for r in range(self.world)]
        self._heard = max(self._heard, *(wish for _, wish, _ in words))
        for r, (other, _, _) in enumerate(words):
            if other == _FAILED:
                text = gathered[_WORD_BYTES * r + _WORD.size : _WORD_BYTES * (r + 1)].rstrip(b"\0").decode(errors="replace")
                failed = errors.error("peer_failed", f"rank {r} failed: {text}", "nothing was lost: the residuals hold the gradients")
                if r == self.rank and failure is not None:
                    failed = LaconicError(failure.code, failure.name, failed.message, failure.hint)
                raise failed
        return words

    def _gather(self, engine, blob: bytes, sizes: list[int], span) -> list[bytes]:
        longest = max(sizes)
        if longest == 0:
            return [b""] * self.world
        gathered = self._wired(span, engine.gather_bytes, blob.ljust(longest, b"\0"))
        self._sent(longest * (self.world - 1))
        return [gathered[longest * r : longest * r + size] for r, size in enumerate(sizes)]

    def _sum(self, tensors, engine, span) -> torch.Tensor:
        """The mean over all ranks, flat."""
        flat = torch.cat([t.reshape(-1) for t in tensors]) if tensors else _zeros(0)
        if flat.numel():
            flat /= self.world  # before the sum, as DDP does it
            self._wired(span, engine.sum, flat)
            self._sent(2 * 4 * flat.numel() * (self.world - 1) // self.world)
        return flat

    @staticmethod
    def _put(tensors, flat: torch.Tensor) -> None:
        for tensor, values in zip(tensors, flat.split([t.numel() for t in tensors])):
            tensor.copy_(values)

    def _wired(self, span, call, *arguments):
        start = time.perf_counter()
        try:
            with span("laconic::wire"):
                return call(*arguments)
        finally:
            self.wire_seconds += time.perf_counter() - start

    def _sent(self, size: int) -> None:
        self._counters["wire_bytes"] += size
        self._counters["rounds"] += 1

    def _count(self, bucket) -> None:
        elements = bucket.buffer.numel()
        self._counters["exchanges"] += 1
        self._counters["elements"] += elements
        self._counters["dense_bytes"] += 2 * 4 * elements * (self.world - 1) // self.world

    # ---- steps and flush ----------------------------------------------------------------------------------------------------

    def _enter(self, step: int) -> None:
        if step != self._step:
            self._end_step()
            self._step, self._parts, self._heard, self._open = step, int(self._flush[1]), 0, True
            self._counters["steps"] += 1

    def _end_step(self) -> None:
        """What all ranks have heard in a step holds from the next one on. A state that is saved in the middle of a step changes
        nothing for the rest of it."""
        if not self._open:
            return
        self._open = False
        if self._parts > 0:
            self._flush[1] -= 1
        elif self._heard > 0:
            self._flush[0], self._flush[1] = 0, self._heard

    def set(self, *_) -> None:
        raise errors.error("unsupported", "a registered codec keeps its settings", "attach again with others")

    def flush(self, steps: int) -> int:
        """Asks for a flush in `steps` steps; gives the parts that one under way has left (0: there is none)."""
        self._end_step()
        left = int(self._flush[1])
        if left == 0 and self.world > 1:
            self._flush[0] = max(int(self._flush[0]), steps)
        return left

    # ---- what is remembered and told ----------------------------------------------------------------------------------------

    def scale_residuals(self, factor: float) -> None:
        for residual in self._residuals.values():
            residual *= factor

    def residual_norm(self) -> float:
        return math.sqrt(sum(float(r.double().square().sum()) for r in self._residuals.values()))

    def entries(self):
        """(name, address, count) of everything that this rank remembers."""
        self._end_step()
        for p, residual in self._residuals.items():
            yield f"residual/{self.names[p]}", residual.data_ptr(), residual.numel()
        if self.world > 1:
            yield "state/flush", self._flush.data_ptr(), 2

    def header(self) -> dict:
        agreement = _hash([self.spec, self.seed, self.small_elements])
        return {"version": STATE_VERSION, "rank": self.rank, "world": self.world, "model_hash": _hash([self.names, self._shapes]),
                "agreement": agreement, "spec": self.spec}

    def accepts(self, saved: dict) -> None:
        self._step = None  # what is loaded next may begin with any
        mine = self.header()
        for key, name, what in (("version", "state_version", "the state has version"), ("rank", "state_rank", "the state is that of rank"),
                                ("world", "state_world", "the state is of a run with a number of ranks of"),
                                ("model_hash", "state_model", "the state is of another model, of hash"),
                                ("spec", "state_spec", "the state's spec is"),
                                ("agreement", "state_spec", "seed or small_elements differ: agreement")):
            if saved[key] != mine[key]:
                raise errors.error(name, f"{what} {saved[key]}, here it is {mine[key]}",
                                   "load what state_dict() gave on this rank of the same run")

    def explain(self) -> dict:
        parameters, why = [], ALONE if self.world == 1 else f"at most {self.small_elements} elements"
        for i, name in enumerate(self.names):
            packed = i in self._encoded
            parameters.append({"name": name, "elements": self._counts[i], "codec": self.spec if packed else "none",
                               "reason": "" if packed else why, "pieces": int(packed),
                               "payload_bytes_expected": None if packed else 4 * self._counts[i],
                               "payload_bytes_at_most": None if packed else 4 * self._counts[i]})
        raw = sum(count for i, count in enumerate(self._counts) if i not in self._encoded)
        setting = {"rule": "*", "parameters": len(self._counts), "elements": sum(self._counts), "spec": self.spec, "strategy": "gather_all",
                   "reason": "asked for", "memory_bytes": self._residual_bytes(), "control": "fixed", "zero_stays_zero": False, "version": 0, "since_step": 0, "last_change": "",
                   "network_ms": 0.0, "target_ms": 0.0}
        return {"spec": self.spec, "feedback": self._method.feedback, "memory": "residual" if self._method.feedback else "none", "strategy": "gather_all",
                "reason": ALONE if self.world == 1 else "a registered codec, in Python and slow: every rank decodes all payloads",
                "rank": self.rank, "world": self.world,
                "seed": self.seed, "small_elements": self.small_elements, "threads": self.threads, "window": self.window, "record": None,
                "part": self.part, "isa": "python", "residual_bytes": self._residual_bytes(), "state_bytes": 8, "exchange_bytes": 0,
                "settings": [setting], "parameters": parameters, "elements": sum(self._counts), "uncompressed_elements": raw}

    def _residual_bytes(self) -> int:
        return 4 * sum(residual.numel() for residual in self._residuals.values())

    def stats(self) -> dict:
        counters = dict(self._counters)
        wire, coming = counters["wire_bytes"], int(self._flush[1])
        if self._open:  # the step may have ended
            coming = coming - 1 if self._parts else self._heard
        return {**counters, "ratio": counters["dense_bytes"] / wire if wire else float(self.world == 1), "overflow_repeats": 0, "parts": 0,
                "window_wait_seconds": 0.0, "network_seconds": 0.0, "straggler_seconds": 0.0, "reports_missing": 0,
                "setting_changes": 0, "held_steps": 0, "flush_steps_left": max(coming, 0 if self._parts else int(self._flush[0])),
                "exchange_layouts": 0, "encode_seconds": self._encode_seconds, "decode_seconds": self._decode_seconds, "wire_seconds": self.wire_seconds,
                "residual_bytes": self._residual_bytes(), "residual_norm": self.residual_norm()}
