# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Whether gradients follow the laws that SIDCo fits: records the demo's models in training and fits each layer's gradients.

    python -m bench.learning.gradient_laws                      all four models: the tables of docs/results/gradient-laws.md (six minutes, on an idle machine)
    python -m bench.learning.gradient_laws --model gpt          records one of them; what is there already is not recorded again
    python -m bench.learning.gradient_laws --page               only writes the tables, from what was recorded

Each model trains twice in four processes: uncompressed, where rank 0 records its gradient, and with `sidco` and error
feedback, where it records residual + gradient, what the codec encodes. `laconic laws` fits the records with the codec's code.
Figures go to out/gradient-laws, a file per training, as soon as there are any: a run that was cut off goes on there.
Needs a release build (`scripts/build release`), or LACONIC_LIBRARY and LACONIC_BIN.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.learning.gradient_laws_tables import MODES, tables_of
from bench.lib import group, tables
from bench.lib.host import machine
from bench.lib.lab import ROOT, DemoError, laconic_command
from bench.lib.models import MODELS, load

SMALL = 4096  # parameters of at most this number of elements go uncompressed by default
LAWS = ("exp", "gp", "p")
STAGES = ("mode=fixed", "mode=signed", "mode=faithful", "stages=1", "stages=2", "stages=3")
TIMES = 5  # encodings of a record that a time is the median of
GUARDS = ("on", "off")


def specs(ratio: float) -> list[str]:
    """Every setting that could be the default."""
    return [f"sidco:ratio={ratio!r},law={law},{stages},guard={guard}"
            for law, stages, guard in itertools.product(LAWS, STAGES, GUARDS)]


def options(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.learning.gradient_laws", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, action="append", help="record this one; may be repeated (default: all)")
    parser.add_argument("--steps", type=int, help="of each training (default: the demo's)")
    parser.add_argument("--every", type=int, default=10, help="steps between two records (default 10)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="a training each (default 0)")
    parser.add_argument("--ratio", type=float, default=0.001, help="of sidco (default 0.001)")
    parser.add_argument("--world", type=int, default=4, help="processes (default 4)")
    parser.add_argument("--data", metavar="FILE", help="learn from this file, as in make demo")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "gradient-laws", metavar="FOLDER", help="of the figures")
    parser.add_argument("--publish", type=Path, default=ROOT / "docs" / "results", metavar="FOLDER", help="of the page")
    parser.add_argument("--page", action="store_true", help="record nothing: write the tables from the figures that are there")
    parser.add_argument("--again", action="store_true", help="forget what was recorded before")
    given = parser.parse_args(arguments)
    for name, least in (("every", 1), ("world", 2), ("steps", 1)):
        if getattr(given, name) is not None and getattr(given, name) < least:
            parser.error(f"--{name} must be at least {least}")
    if not 0 < given.ratio <= 1:
        parser.error("--ratio must be above 0 and at most 1")
    given.complete = given.model is None
    given.model = list(dict.fromkeys(given.model or MODELS))
    return given


# ---- training -----------------------------------------------------------------------------------------------------------


class Recorder:
    """Appends what rank 0 would encode to a file per parameter."""

    def __init__(self, trainer, folder: Path):
        from bench.lib.layers import OwnGradients

        self.trainer, self.folder, self.steps = trainer, folder, []
        self.gradients = OwnGradients(trainer.model.module)
        self.parameters = self.gradients.parameters

    def step(self) -> None:
        """One training step, recorded."""
        held = self.trainer.handle.state_dict()["tensors"]
        self.steps.append(self.trainer.step)
        found = self.gradients.of(self.trainer.train_step)
        for i, name in enumerate(self.parameters):
            gradient, residual = found[name], held.get(f"residual/{name}")
            if residual is not None:
                gradient = gradient + residual.view_as(gradient)
            with (self.folder / f"{i}.f32").open("ab") as file:
                file.write(gradient.contiguous().numpy().tobytes())

    def about(self) -> dict:
        return {"steps": self.steps, "layers": [{"name": name, "shape": list(p.shape), "compressed": p.numel() > SMALL} for name, p in self.parameters.items()]}


def digest(module) -> str:
    """Gradients of all parameters: recording must not change them."""
    found = hashlib.sha256()
    for parameter in module.parameters():
        found.update(parameter.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def run_rank(rank: int, plan: dict, folder: str) -> None:
    from bench.lib.trainer import Trainer

    kind = load(plan["model"])
    spec = f"sidco:ratio={plan['ratio']!r}" if plan["feedback"] else "none"
    trainer = Trainer(kind, spec, plan["seed"], kind.data(plan["data"]), plan["steps"], rank, plan["world"])
    recorder = Recorder(trainer, Path(folder)) if rank == 0 else None
    while trainer.step < plan["steps"]:
        if recorder is not None and trainer.step % plan["every"] == 0:
            recorder.step()
        else:
            trainer.train_step()
    if recorder is not None:
        about = {**recorder.about(), "quality": trainer.quality(), "parameters": digest(trainer.model.module)}
        (Path(folder) / "about.json").write_text(json.dumps(about), encoding="utf-8")
    trainer.close()


def train(plan: dict, folder: Path) -> dict:
    """Leaves the recorded vectors in `folder`."""
    group.wait(group.start(run_rank, plan["world"], plan, str(folder)))
    return json.loads((folder / "about.json").read_text(encoding="utf-8"))


# ---- fitting ------------------------------------------------------------------------------------------------------------


def short(value):
    """Five digits of a float are enough."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def fit_of(fit: dict) -> dict:
    """The numbers of a stage: wanted, selected, distance."""
    return {**{key: fit[key] for key in ("wanted", "fitted", "sent", "corrections", "exact", "memory_passes", "seconds")},
            "stages": [[short(stage[key]) for key in ("wanted", "selected", "ks")] for stage in fit["stages"]]}


def record_of(step: int, tensor: dict) -> dict:
    if "why" in tensor:
        return {"step": step, "nonzero": tensor["nonzero"], "why": tensor["why"]}
    laws = tensor["laws"]
    return {"step": step, "nonzero": tensor["nonzero"], "compressibility": short(tensor["compressibility"]), "copy_seconds": tensor["copy_seconds"],
            "ks": {law: short(found["ks"]) if found else None for law, found in laws.items()},
            "shape": {law: short(found["shape"]) for law, found in laws.items() if found and "shape" in found},
            "fits": {fit["spec"]: fit_of(fit) for fit in tensor["fits"]}}


def fit_layer(command: str, path: Path, layer: dict, plan: dict, steps: list[int]) -> list[dict]:
    """The records of one layer. Adaptive stages see each record as often as steps lie between two."""
    count = math.prod(layer["shape"])
    tried = specs(plan["ratio"]) if layer["compressed"] else [f"sidco:ratio={plan['ratio']!r}"]
    words = [command, "laws", "--json", "--values", str(count), "--calls", str(plan["every"]), "--times", str(plan["times"]),
             *[word for spec in tried for word in ("--spec", spec)], str(path)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise DemoError(f"laconic laws failed for {layer['name']}: {(done.stderr or done.stdout).strip()[-400:]}")
    return [record_of(step, tensor) for step, tensor in zip(steps, json.loads(done.stdout)["tensors"], strict=True)]


# ---- all of them --------------------------------------------------------------------------------------------------------


def plans(given: argparse.Namespace) -> list[dict]:
    data = os.path.abspath(given.data) if given.data else None
    return [{"model": model, "feedback": feedback, "seed": seed, "steps": given.steps or MODELS[model].steps,
             "every": given.every, "times": TIMES, "ratio": given.ratio, "world": given.world, "data": data}
            for model in given.model for seed in given.seeds for feedback in (False, True)]


def path_of(out: Path, plan: dict) -> Path:
    return out / f"{plan['model']}-{MODES[plan['feedback']]}-{plan['seed']}.json"


def recorded(out: Path, plan: dict) -> dict | None:
    """The figures of this plan, if they are there whole."""
    try:
        found = json.loads(path_of(out, plan).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("plan") == plan else None


def record(out: Path, plan: dict, command: str) -> dict:
    begun = time.monotonic()
    environment = machine()
    with tempfile.TemporaryDirectory(prefix="vectors-", dir=out) as folder:
        about = train(plan, Path(folder))
        trained = time.monotonic()
        for i, layer in enumerate(about["layers"]):
            layer["records"] = fit_layer(command, Path(folder) / f"{i}.f32", layer, plan, about["steps"])
    found = {"plan": plan, "environment": environment,
             "seconds": {"training": round(trained - begun, 1), "fits": round(time.monotonic() - trained, 1)}, **about}
    beside = path_of(out, plan).with_suffix(".new")
    beside.write_text(json.dumps(found), encoding="utf-8")
    beside.replace(path_of(out, plan))  # whole or not at all
    return found


def main(arguments=None) -> int:
    given = options(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        found = []
        for plan in plans(given):
            name = f"{plan['model']} {MODES[plan['feedback']]} feedback, seed {plan['seed']}"
            got = None if given.again and not given.page else recorded(given.out, plan)
            if got is None and not given.page:
                got = record(given.out, plan, laconic_command())
                print(f"{name}: {got['seconds']['training']:.0f} s of training, {got['seconds']['fits']:.0f} s of fits",
                      file=sys.stderr, flush=True)
            elif got is None:
                print(f"{name}: not recorded", file=sys.stderr)
            if got is not None:
                found.append(got)
    except (DemoError, ValueError) as error:
        print(f"gradient_laws: {error}", file=sys.stderr)
        return 1
    if given.page or given.complete:
        if not found:
            print("gradient_laws: nothing was recorded with these settings", file=sys.stderr)
            return 1
        print(tables.publish(given.publish, "gradient-laws", "python -m bench.learning.gradient_laws", tables_of(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
