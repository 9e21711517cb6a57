# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Saved state for torch.distributed.checkpoint, which treats plain values with the same name on several ranks as copies."""

from __future__ import annotations

import json

from ..core import errors


class Checkpointable:
    """A handle's state under keys that name its rank: a Stateful of torch.distributed.checkpoint."""

    def __init__(self, handle):
        import torch.distributed as dist

        self._handle, self._rank = handle, f"rank{dist.get_rank()}"  # of all ranks: groups may share a checkpoint

    def state_dict(self) -> dict:
        state = self._handle.state_dict()
        if "tensors" not in state:  # LACONIC_DISABLE=1
            return {}
        about = {key: value for key, value in state.items() if key not in ("tensors", "rates")}
        about["rates"] = {name: float(rate) for name, rate in state.get("rates", {}).items()}
        # One text: the loaded state may have another number of buckets, or rates.
        return {f"{self._rank}/about": json.dumps(about),
                **{f"{self._rank}/{name}": values for name, values in state["tensors"].items()}}

    def load_state_dict(self, saved: dict) -> None:
        import torch

        if not saved and not self.state_dict():
            return
        before = f"{self._rank}/"
        mine = {key.removeprefix(before): value for key, value in saved.items() if key.startswith(before)}
        try:
            state = json.loads(mine.pop("about"))
            rates = {name: torch.tensor(rate, dtype=torch.float64, device="cpu") for name, rate in state.pop("rates").items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise errors.error("state_corrupt", f"the checkpoint has no state for {self._rank}",
                               "save and load laconic.checkpointable(handle) with the same number of ranks") from None
        self._handle.load_state_dict({**state, "tensors": mine, **({"rates": rates} if rates else {})})


def checkpointable(handle) -> Checkpointable:
    """A handle's state for torch.distributed.checkpoint, which then saves and loads each rank's own:

        dcp.save({"model": ddp.module.state_dict(), "laconic": laconic.checkpointable(handle)}, checkpoint_id=folder)

    Load it in the same way, before the first step of the new run.
    """
    return Checkpointable(handle)
