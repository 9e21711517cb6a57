# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""An exchange of the same number of bytes as another one's, in the same number of rounds, without its codec: what
remains is the codec's own time.

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

    def message_bytes(self) -> int:
        """Size of the message to each other rank in a round."""
        return self.payload // (ROUNDS[self.strategy] * (dist.get_world_size() - 1))

    def sum_bytes(self) -> int:
        """Size of a buffer whose all-reduce sends the payload, as a ring does."""
        world = dist.get_world_size()
        return self.payload * world // (2 * (world - 1))


def swap(message: torch.Tensor, received: list[torch.Tensor]) -> None:
    """The message to every other rank and theirs from them, all at once, as laconic.engines.c10d does it: torch's all-to-all takes
    longer where messages are long."""
    rank, world = dist.get_rank(), dist.get_world_size()
    works = [dist.irecv(received[k - 1], (rank - k) % world) for k in range(1, world)]
    works += [dist.isend(message, (rank + k) % world) for k in range(1, world)]
    for work in works:
        work.wait()


def send_zeros(state: Zeros, bucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that leaves the bucket as it is. Replicas drift apart, which changes no step time. It blocks: with
    one bucket there is nothing left to overlap."""
    if state.strategy in ROUNDS:
        message = torch.zeros(state.message_bytes(), dtype=torch.uint8)
        received = [torch.empty_like(message) for _ in range(dist.get_world_size() - 1)]
        for _ in range(ROUNDS[state.strategy]):
            swap(message, received)
    else:
        dist.all_reduce(torch.zeros(state.sum_bytes(), dtype=torch.uint8))
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
