# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Members that die, leave and come, without a membership service: files in a folder that all processes see
(docs/guide/outer-steps.md). A member holds a lock on its own file; the system releases it when the process ends.

    for i in 0 1 2 3; do python -m examples.outer_elastic --name $i --first 0,1,2,3 --folder /shared/run --steps 2000 & done
    python -m examples.outer_elastic --name 4 --first 0,1,2,3 --folder /shared/run --steps 2000    # meanwhile: a newcomer
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import hashlib
import itertools
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

import laconic
from bench.lib.models import mlp


class Folder:
    """Who is alive, and who belongs to which epoch: a run of a group between two changes of its members."""

    def __init__(self, path: Path, name: str):
        self.path, self.name = path, name
        path.mkdir(parents=True, exist_ok=True)
        self._own = (path / f"{name}.alive").open("w")
        fcntl.flock(self._own, fcntl.LOCK_EX)

    def alive(self) -> list[str]:
        """Those whose file is locked."""
        return sorted(file.stem for file in self.path.glob("*.alive") if file.stem == self.name or not self._free(file))

    @staticmethod
    def _free(file: Path) -> bool:
        with file.open() as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def roster(self, epoch: int) -> list[str] | None:
        with contextlib.suppress(FileNotFoundError):
            return (self.path / f"epoch-{epoch}").read_text().split(",")
        return None

    def announce(self, epoch: int, roster: list[str]) -> None:
        """The first roster of an epoch counts."""
        draft = self.path / f"draft-{epoch}-{self.name}"
        draft.write_text(",".join(roster))
        with contextlib.suppress(FileExistsError):
            os.link(draft, self.path / f"epoch-{epoch}")

    def next(self, epoch: int, members: list[str]) -> list[str]:
        """The roster of this epoch, which the first of the members that are alive announces: they, and then those that wait."""
        while (roster := self.roster(epoch)) is None:
            alive = self.alive()
            stay = [name for name in members if name in alive]
            if stay[0] == self.name:
                self.announce(epoch, stay + [name for name in alive if name not in members])
            time.sleep(0.02)
        return roster

    def enter(self, after: int) -> tuple[int, list[str]]:
        """A newcomer's first epoch: the first after `after` whose roster has it."""
        for epoch in itertools.count(after + 1):
            while (roster := self.roster(epoch)) is None:
                time.sleep(0.02)
            if self.name in roster:
                return epoch, roster
        raise AssertionError


def connect(folder: Folder, epoch: int, roster: list[str]) -> None:
    """torch's group of the epoch."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{folder.path.absolute()}/store-{epoch}", rank=roster.index(folder.name), world_size=len(roster),
                            timeout=datetime.timedelta(seconds=60))


def regrouped(folder: Folder, outer, epoch: int, roster: list[str]) -> tuple[int, list[str]]:
    """The next epoch in which all members come together, and its roster."""
    while True:
        epoch += 1
        roster = folder.next(epoch, roster)
        try:
            connect(folder, epoch, roster)
            outer.regroup(dist.group.WORLD)
            return epoch, roster
        except RuntimeError as error:  # somebody has died meanwhile
            print(f"epoch {epoch}: {error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="one that all processes see")
    parser.add_argument("--name", default=os.environ.get("RANK"), help="of this process, unlike all others")
    parser.add_argument("--first", required=True, help="names of those that begin; others are newcomers")
    parser.add_argument("--spec", default="3lc:s=1.5")
    parser.add_argument("--every", type=int, default=2, help="steps per round")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--dies", help="NAME:STEP: this process kills itself, to show what follows")
    parser.add_argument("--enters-after", type=int, default=-1, help="newcomers come once this epoch has begun")
    options = parser.parse_args()
    first = options.first.split(",")
    joins = options.name not in first
    while joins and options.enters_after >= 0 and not (options.folder / f"epoch-{options.enters_after}").exists():
        time.sleep(0.02)
    folder = Folder(options.folder, options.name)
    epoch, roster = folder.enter(0) if joins else (0, first)
    connect(folder, epoch, roster)
    torch.manual_seed(0)
    data = mlp.data(None)
    model = mlp.build(data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    outer = laconic.OuterStep(model, optimizer, spec=options.spec, every=options.every, join=joins, quiet=True)
    batches = data.batches(mlp.BATCH, 1, len(first) if joins else first.index(options.name), len(first) + 1)
    print(f"epoch {epoch}: {len(roster)} members at step {outer.step}", flush=True)
    while outer.step < options.steps:
        try:
            optimizer.zero_grad()
            data.loss(model, next(batches)).backward()
            optimizer.step()
            if options.dies == f"{options.name}:{outer.step}":
                os.kill(os.getpid(), signal.SIGKILL)
            waiting = ",".join(name for name in folder.alive() if name not in roster)
            if outer.step % options.every or not outer.gather_texts(waiting)[0]:  # rank 0 says whether somebody waits
                continue
        except laconic.LaconicError as error:
            print(f"epoch {epoch}: {error}", flush=True)
        epoch, roster = regrouped(folder, outer, epoch, roster)
        print(f"epoch {epoch}: {len(roster)} members at step {outer.step}", flush=True)
    outer.sync()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
    print(f"after {outer.step} steps: {len(roster)} members, accuracy {100 * data.evaluate(model):.1f} %, parameters {digest}", flush=True)
    outer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
