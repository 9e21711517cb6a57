# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.attach`: the one line."""

from __future__ import annotations

import os
import sys

from . import environment, errors
from .errors import LaconicError

DISABLED = "LACONIC_DISABLE=1"


class PassThrough:
    """The handle under LACONIC_DISABLE=1: nothing was touched, training is plain DDP bit for bit."""

    spec, step, last_error = "none", 0, None

    def stats(self) -> dict:
        return {"disabled": True}

    def explain(self) -> dict:
        return {"disabled": True, "reason": DISABLED}

    def flush(self, steps: int = 10) -> int:
        return self.step  # nothing is held back

    def state_dict(self) -> dict:
        return {"disabled": True}

    def load_state_dict(self, state: dict) -> None:
        pass

    def close(self) -> None:
        pass


def _speaks_for_node() -> bool:
    """One process per node reports what it found in the environment."""
    import torch.distributed as dist

    local = os.environ.get("LOCAL_RANK")
    return local == "0" if local is not None else dist.get_rank() == 0


def attach(obj, spec: str | None = None, *, seed: int = 0, small_elements: int = 4096, strategy: str = "auto",
           threads: int = 1, scaler=None, quiet: bool = False):
    """Compresses the gradient exchange of a DistributedDataParallel model. Gives a Handle.

    A collective call: every rank makes it, with the same arguments, right after wrapping the model.

    Args:
        obj: a torch.nn.parallel.DistributedDataParallel wrapper (CPU gradients, Gloo).
        spec: "3lc:s=1.5", "topk:ratio=0.01", … (`laconic list`). Without it, LACONIC_SPEC decides.
        seed: of all random streams; equal on all ranks.
        small_elements: parameters of at most this many elements go uncompressed.
        strategy: "auto", "native_sum", "gather_all" or "two_shot"; the planner refuses what the codec forbids.
        threads: for encoding and decoding on this rank; results do not depend on it.
        scaler: the torch GradScaler in use, so that residuals stay right when the loss scale changes.
        quiet: do not announce what was attached.

    Raises:
        LaconicError: unknown spec, another hook, ranks that disagree (LACONIC_DISABLE=1 on some only included), a rank that
            does not make the call within the group's time-out, parameters that cannot be exchanged.
    """
    disabled = environment.disabled()
    if disabled and "torch" not in sys.modules:
        return PassThrough()
    group, refusal = _look_at(obj)
    if disabled and group is None:
        return PassThrough()
    meeting = None if group is None else _meet(group, disabled, refusal)
    if refusal is not None:
        raise refusal
    if disabled:
        return PassThrough()
    if _speaks_for_node():
        environment.report_unknown()
    chosen = spec if spec is not None else os.environ.get("LACONIC_SPEC", "")
    from .ddp import Handle

    handle = Handle(obj, chosen, meeting, seed=seed, small_elements=small_elements, strategy=strategy, threads=threads,
                    scaler=scaler)
    handle.register(obj)
    if handle.rank == 0 and not quiet:
        environment.say(handle.describe())
    return handle


def _look_at(obj):
    """The group whose ranks attach together, or None; and why this rank cannot."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(obj, DistributedDataParallel):
        return obj.process_group, None
    refusal = errors.error("unsupported", f"cannot attach to a {type(obj).__module__}.{type(obj).__qualname__}",
                           "wrap the model in torch.nn.parallel.DistributedDataParallel first, or start the script with "
                           "`python -m laconic.run`")
    return (dist.group.WORLD if dist.is_available() and dist.is_initialized() else None), refusal


def _meet(group, disabled: bool, refusal: LaconicError | None):
    """Every rank learns what every other one is about to do, before any collective; one message where they differ."""
    from .group import Meeting

    word = DISABLED if disabled else "" if refusal is None else str(refusal)
    meeting = Meeting(group, word)
    if len(set(meeting.words)) == 1:
        return meeting
    off = [rank for rank, said in enumerate(meeting.words) if said == DISABLED]
    if off:
        on = [rank for rank, said in enumerate(meeting.words) if said != DISABLED]
        raise errors.error("ranks_disagree", f"{DISABLED} is set on rank {_listed(off)} and not on rank {_listed(on)}",
                           "set it for all ranks or for none")
    rank, said = next((rank, said) for rank, said in enumerate(meeting.words) if said)
    raise errors.error("ranks_disagree", f"rank {rank} could not attach: {said}",
                       "give every rank the same call, file and LACONIC_* variables")


def _listed(ranks: list[int], limit: int = 8) -> str:
    return ", ".join(map(str, ranks[:limit])) + (f" and {len(ranks) - limit} more" if len(ranks) > limit else "")
