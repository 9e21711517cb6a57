# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A GAN in the style of PyTorch's examples, unchanged under `torchrun -m laconic.run`: the discriminator sleeps while the generator learns,
also at the first forward pass, at which laconic attaches.
"""

import sys
import tempfile
from pathlib import Path

from _launch import check, check_announced, digest, report, reports, torchrun

NEEDS = []


def rank_main(folder: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    generator = DistributedDataParallel(nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128)))
    critic = DistributedDataParallel(nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)))
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in (generator, critic)]
    torch.manual_seed(1 + dist.get_rank())
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
    loss = nn.BCEWithLogitsLoss()
    before = critic.module[0].weight.detach().clone()
    for _ in range(10):
        critic.requires_grad_(False)
        optimizers[0].zero_grad()
        fake = generator(torch.randn(32, 16))
        loss(critic(fake), ones).backward()
        optimizers[0].step()
        critic.requires_grad_(True)
        optimizers[1].zero_grad()
        both = torch.cat([fake.detach(), torch.randn(32, 128) + 1])
        loss(critic(both), torch.cat([zeros, ones])).backward()
        optimizers[1].step()
    laconic = sys.modules["laconic"]
    report(folder, "gan", dist.get_rank(), digests=[digest(generator), digest(critic)], moved=bool((critic.module[0].weight != before).any()),
           ratios=[laconic.handle_of(net).stats()["ratio"] for net in (generator, critic)])
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        output = torchrun("-m", "laconic.run", "--spec", "3lc", __file__, name)
        check_announced(output)
        first, second = reports(name, "gan")
        check(first["digests"] == second["digests"] and first["moved"], "replicas are equal bit for bit, and both nets learn")
        check(min(first["ratios"]) > 5, " and ".join(f"{ratio:.1f} : 1" for ratio in first["ratios"]))


if __name__ == "__main__":
    rank_main(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
