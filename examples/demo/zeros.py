# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""An exchange of as many bytes as another one's, in as many rounds, without its codec: what remains is the codec's own time.

GRACE (Xu et al., ICDCS 2021) measures such an upper bound with each method's collective.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

SPEC = "zeros"
#: of messages to every other rank; exchanges that the engine adds up take one all-reduce instead
ROUNDS = {"gather_all": 1, "two_shot": 2}


@dataclass
class Zeros:
    """The hook's state, which may change between steps. payload: bytes that this rank sends in a step; strategy: how."""

    payload: int = 0
    strategy: str = "gather_all"

    def splits(self) -> list[int]:
        """Bytes to each rank in a round: equal ones to the others, none to this one."""
        rank, world = dist.get_rank(), dist.get_world_size()
        each = self.payload // (ROUNDS[self.strategy] * (world - 1))
        return [0 if peer == rank else each for peer in range(world)]

    def sum_bytes(self) -> int:
        """Of a buffer whose all-reduce sends the payload, as a ring does."""
        world = dist.get_world_size()
        return self.payload * world // (2 * (world - 1))


def send_zeros(state: Zeros, bucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that leaves the bucket as it is. Replicas drift apart, which changes no step time. It blocks: with
    one bucket there is nothing left to overlap."""
    if state.strategy in ROUNDS:
        splits = state.splits()
        sent, received = (torch.zeros(sum(splits), dtype=torch.uint8) for _ in range(2))
        for _ in range(ROUNDS[state.strategy]):
            dist.all_to_all_single(received, sent, splits, splits)  # all ranks send the same: what arrives is split as what leaves
    else:
        dist.all_reduce(torch.zeros(state.sum_bytes(), dtype=torch.uint8))
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
