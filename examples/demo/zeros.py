# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""An exchange of as many bytes as another one's, without its codec: what remains is the codec's own time.

GRACE (Xu et al., ICDCS 2021) measures such an upper bound with each method's collective; here all exchanges have the same one.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

SPEC = "zeros"


@dataclass
class Zeros:
    """The hook's state. payload: bytes that this rank sends in a step; it may change between steps."""

    payload: int = 0

    def splits(self) -> list[int]:
        """Bytes to each rank: equal ones to the others, none to this one."""
        rank, world = dist.get_rank(), dist.get_world_size()
        return [0 if peer == rank else self.payload // (world - 1) for peer in range(world)]


def send_zeros(state: Zeros, bucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that leaves the bucket as it is. Replicas drift apart, which changes no step time."""
    splits, gradients = state.splits(), bucket.buffer()
    sent, received = (torch.zeros(sum(splits), dtype=torch.uint8) for _ in range(2))
    # All ranks send the same, so what arrives is split as what leaves.
    work = dist.all_to_all_single(received, sent, splits, splits, async_op=True)
    return work.get_future().then(lambda _: gradients)
