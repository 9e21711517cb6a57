# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""How many elements `dgc` and `sidco` select of what is wanted, in training: the table "selected" of docs/results/gradient-laws.md.

    python -m bench.learning.selections                 every training that is not there yet, then the table (five minutes on two cores)
    python -m bench.learning.selections NAME...         only the trainings whose names begin so, and no table

Four processes; rank 0 encodes one step in 10, as its codec does. Without feedback that is its own gradient in an uncompressed training; with
it, what the codec has kept is added in a training with that codec: the residual, and under `dgc` its momentum, too, while the optimizer has
none. Nothing is timed. A training is a file in out/gradient-laws/selected. Needs a release build, or LACONIC_LIBRARY.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import statistics
import sys
from pathlib import Path

from bench.learning.gradient_laws import SMALL
from bench.learning.gradient_laws_tables import MODES, quantile
from bench.lib import cells, group, tables
from bench.lib.lab import ROOT
from bench.lib.models import MODELS, load

WORLD, EVERY, RATIO, FACTOR, SEED = 4, 10, 0.001, 0.9, 0
CODECS = ("sidco", "dgc")
FOLDER = ROOT / "out" / "gradient-laws" / "selected"


@dataclasses.dataclass(frozen=True)
class Plan:
    """A training. trained: the codec of its exchange; steps 0: the demo's."""

    model: str
    trained: str
    steps: int = 0

    @property
    def selects(self) -> tuple[str, ...]:
        """The codecs that encode what this training gives."""
        return CODECS if self.trained == "none" else (self.trained,)


def share(spec: str, vector) -> float:
    """Sent over wanted, of one vector."""
    import laconic
    import numpy

    flat = vector.reshape(-1).numpy()
    codec = laconic.Codec(f"{spec}:ratio={RATIO!r}+noef")
    sent = numpy.count_nonzero(codec.decode(codec.encode(flat)))
    return float(sent / max(1, math.floor(RATIO * flat.size)))


def encoded(gradient, name: str, held: dict):
    """What the codec encodes of a gradient; its memory of this parameter is in `held`, if it has one."""
    momentum, residual = held.get(f"momentum/{name}"), held.get(f"residual/{name}")
    if momentum is not None:
        gradient = gradient + FACTOR * momentum.view_as(gradient)
    return gradient if residual is None else gradient + residual.view_as(gradient)


def run_rank(rank: int, plan: dict, out: Path) -> None:
    from bench.lib.layers import OwnGradients
    from bench.lib.trainer import Trainer

    plan, kind = Plan(**plan), load(plan["model"])
    steps = plan.steps or MODELS[plan.model].steps
    spec = plan.trained if plan.trained == "none" else f"{plan.trained}:ratio={RATIO!r}"
    trainer = Trainer(kind, spec, SEED, kind.data(None), steps, rank, WORLD)
    gradients = OwnGradients(trainer.model.module) if rank == 0 else None
    found: dict[str, list[float]] = {codec: [] for codec in plan.selects}
    while trainer.step < steps:
        if gradients is None or trainer.step % EVERY:
            trainer.train_step()
            continue
        held = trainer.handle.state_dict()["tensors"] if plan.trained != "none" else {}
        for name, gradient in gradients.of(trainer.train_step).items():
            if gradient.numel() > SMALL:
                vector = encoded(gradient, name, held)
                for codec in plan.selects:
                    found[codec].append(share(codec, vector))
    if rank == 0:
        out.write_text(json.dumps({"shares": found, "quality": trainer.quality()}), encoding="utf-8")
    trainer.close()


def plans() -> list[Plan]:
    return [Plan(model, trained) for model in MODELS for trained in ("none", *CODECS)]


def cell_of(plan: Plan) -> cells.Cell:
    return cells.Cell(f"{plan.model}-{plan.trained}", functools.partial(group.answered, run_rank, WORLD, dataclasses.asdict(plan)), FOLDER)


def table_of(found: dict) -> dict:
    """found: what each training gave, by its name."""
    def spread(shares: list[float]) -> list[float]:
        weighted = [(value, 1.0) for value in shares]
        return [statistics.median(shares), quantile(weighted, 0.1), quantile(weighted, 0.9)]

    rows = [[model, MODES[feedback], *(spread(found[f"{model}-{codec if feedback else 'none'}"]["shares"][codec]) for codec in CODECS)]
            for model in MODELS for feedback in (False, True)]
    return tables.table(["model", "feedback", *((f"`{codec}`: sent / wanted (10 % – 90 %)", "{:.2f} ({:.2f} – {:.2f})") for codec in CODECS)], rows)


def publish(found: dict) -> None:
    if missing := [name for name, gave in found.items() if gave is None]:
        raise cells.CellError(f"no table without {', '.join(missing)}")
    page = tables.publish(ROOT / "docs" / "results", "gradient-laws", "python -m bench.learning.gradient_laws", {"selected": table_of(found)}, keep=True)
    print(page)


def main(arguments=None) -> int:
    given = cells.options("python -m bench.learning.selections", __doc__.splitlines()[0], arguments, quick=False)
    return cells.make([cell_of(plan) for plan in plans()], given, publish)


if __name__ == "__main__":
    sys.exit(main())
