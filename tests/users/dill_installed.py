# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A program that keeps its handle to the end, where dill is imported: it ends without a traceback.

dill keeps modules' dictionaries, so that at the end of the interpreter names are gone which destructors would use. Hugging Face's
datasets bring it. Needs dill.
"""

import sys
import tempfile
from pathlib import Path

from _launch import check, check_announced, check_training, digest, report, reports, torchrun

NEEDS = ["dill"]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        output = torchrun(__file__, name)
        check_announced(output)
        check_training(reports(name, "kept"), output)
        check("Exception ignored" not in output and "Error" not in output, "no error from a destructor")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
        raise SystemExit

    import dill
    import torch
    import torch.distributed as dist

    import laconic

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)))
    handle = laconic.attach(model, "3lc")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(40):
        x = torch.randn(16, 64)
        loss = torch.nn.functional.mse_loss(model(x), x.flip(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    dill.dumps(lambda: losses)
    report(Path(sys.argv[1]), "kept", dist.get_rank(), digest=digest(model), first=losses[0], last=losses[-1],
           ratio=handle.stats()["ratio"])
    # neither handle.close() nor destroy_process_group(): the interpreter ends with all of it
