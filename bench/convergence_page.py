# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What convergence.py trained, as Markdown: every statement in it is computed from the figures."""

from __future__ import annotations

import math
import statistics

import programs  # noqa: F401  gives the next one its path
from prose import listed, table

#: Two-sided 95 % of Student's t, by degrees of freedom.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
CLASSES = 10
GUESSING = math.log(CLASSES)  # the loss of a model that knows nothing
TEST_SAMPLES = 360
NOBODY = "none of them"


def verdict(differences, least: float = 0.0) -> int:
    """-1 or 1 where the mean of paired differences is beyond chance, else 0.

    `least`: the spread that a difference has at least, for figures that come in steps.
    """
    n = len(differences)
    if n < 2:
        return 0
    mean = statistics.fmean(differences)
    error = max(statistics.stdev(differences), least) / math.sqrt(n)
    return 0 if abs(mean) <= T95[n - 1] * error else int(math.copysign(1, mean))


def failed(loss: float) -> bool:
    """No better than guessing."""
    return not loss < GUESSING


def loss_verdict(losses, plain) -> int:
    """1: worse than `plain`. In logarithms: from 0.02 to 0.01 is as much as from 2 to 1."""
    if any(map(failed, losses)):
        return 1
    return verdict([math.log(x / y) for x, y in zip(losses, plain)])


def accuracy_verdict(accuracies, plain) -> int:
    """1: worse than `plain`. Accuracies come in steps of a test sample."""
    return verdict([y - x for x, y in zip(accuracies, plain)], 0.5 / TEST_SAMPLES)


def marked(text: str, sign: int) -> str:
    return f"**{text}**" if sign > 0 else f"{text}\\*" if sign < 0 else text


def loss_cell(losses, plain) -> str:
    bad = sum(map(failed, losses))
    text = f"failed, {bad} of {len(losses)}" if bad else f"{statistics.fmean(losses):.3g}"
    return marked(text, loss_verdict(losses, plain))


def percent(x: float) -> str:
    return f"{100 * x:.1f}"


def accuracy_cell(accuracies, plain) -> str:
    return marked(percent(statistics.fmean(accuracies)), accuracy_verdict(accuracies, plain))


def spread_cell(accuracies, plain) -> str:
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    return marked(f"{percent(statistics.fmean(accuracies))} ± {percent(spread)}", accuracy_verdict(accuracies, plain))


# ---- optimizers ----


class Optimizers:
    def __init__(self, found: dict):
        self.names, self.specs, self.seeds = (found["plan"][key] for key in ("optimizers", "optimizer_specs", "seeds"))
        self._runs = found["runs"]

    def values(self, key: str, name: str, spec: str) -> list:
        """By seed."""
        return [self._runs[f"{name}/{spec}/{seed}"][key] for seed in self.seeds]

    def rate(self, name: str) -> dict:
        return self._runs[f"{name}/rate"]

    def table_of(self, key: str, cell) -> str:
        rows = [[name, *(cell(self.values(key, name, spec), self.values(key, name, "none")) for spec in self.specs)]
                for name in self.names]
        return table(["optimizer", *(f"`{spec}`" for spec in self.specs)], rows)

    def rate_table(self) -> str:
        rows = []
        for name in self.names:
            tried = ", ".join(f"{rate:g}: {loss:.3g}" for rate, loss in self.rate(name)["losses"])
            rows.append([name, tried, f"{self.rate(name)['best']:g}"])
        return table(["optimizer", "learning rates tried: loss on held-out samples", "taken"], rows, left=2)

    def statements(self) -> list[str]:
        lines = []
        for spec in self.specs[1:]:
            worse = {"loss": [], "accuracy": []}
            for name in self.names:
                for key, judge in (("loss", loss_verdict), ("accuracy", accuracy_verdict)):
                    if judge(self.values(key, name, spec), self.values(key, name, "none")) > 0:
                        worse[key].append(name)
            lines.append(f"- `{spec}`: the loss is worse with {listed(worse['loss'], NOBODY)}; the accuracy with "
                         f"{listed(worse['accuracy'], NOBODY)}.")
        return lines


# ---- warm-up ----


class Warmups:
    def __init__(self, found: dict):
        plan = found["plan"]
        self.looks, self.seeds, self._runs = plan["looks"], plan["seeds"], found["runs"]
        self.cases = [("none", 0), *((spec, warmup) for spec in plan["warmup_specs"] for warmup in plan["warmups"])]

    def values(self, spec: str, warmup: int, look: int) -> list:
        """By seed."""
        return [self._runs[f"{spec}/{warmup}/{seed}"][self.looks.index(look)] for seed in self.seeds]

    def cell(self, spec: str, warmup: int, look: int) -> str:
        """In italics where nothing has been compressed yet."""
        text = spread_cell(self.values(spec, warmup, look), self.values("none", 0, look))
        return f"*{text}*" if spec != "none" and look <= warmup else text

    def main_table(self) -> str:
        rows = [[f"`{spec}`", warmup if spec != "none" else "–", *(self.cell(spec, warmup, look) for look in self.looks)]
                for spec, warmup in self.cases]
        return table(["spec", "warm-up", *(f"step {look}" for look in self.looks)], rows)

    def gap_table(self) -> str:
        """Points below `none`; whether a warm-up's are fewer than without it, beyond chance."""
        rows = []
        for spec, warmup in self.cases[1:]:
            rows.append([f"`{spec}`", warmup, *(self.gap_cell(spec, warmup, look) for look in self.looks)])
        return table(["spec", "warm-up", *(f"step {look}" for look in self.looks)], rows)

    def gap(self, spec: str, warmup: int, look: int) -> float:
        pairs = zip(self.values(spec, warmup, look), self.values("none", 0, look))
        return 100 * statistics.fmean(y - x for x, y in pairs)

    def better(self, spec: str, warmup: int, look: int) -> int:
        """1: than the same spec without a warm-up; -1: worse."""
        return -accuracy_verdict(self.values(spec, warmup, look), self.values(spec, 0, look))

    def gap_cell(self, spec: str, warmup: int, look: int) -> str:
        text = f"{self.gap(spec, warmup, look):.1f}"
        if warmup and look <= warmup:
            return f"*{text}*"
        sign = self.better(spec, warmup, look) if warmup else 0
        return f"{text} ↓" if sign > 0 else f"{text} ↑" if sign < 0 else text


PAGE = """# Convergence: optimizers and warm-up

```
bench/convergence.py
```

Written by bench/convergence.py. {world} processes on one machine, Gloo, `laconic.attach`; scikit-learn's digits, the demo's split of {train} and
{test} samples. Nothing is timed. {quick}

Differences are taken seed by seed, between runs with the same start and the same batches, and are called beyond chance where Student's t
is beyond its 95 % (losses in logarithms; accuracies with at least half a test sample, 0.14 points, of spread). **Bold** is worse than `none` beyond
chance, a star better; everything else is no significant difference. With {comparisons} comparisons on this page a few are marked by chance. With
{seeds} seeds a difference has to be {needed:.1f} times its own spread over the seeds to be marked: an unmarked one may be real, and even a wide gap
is unmarked where seeds scatter. Seeds {seed_list} had no part in any choice.

## Optimizers

A perceptron {layers}, {steps} steps of {batch} samples a rank, a cosine to 0 (LBFGS: {lbfgs_gradients} gradients of all samples, {lbfgs},
a constant rate, the mean loss of all ranks). Parameters of at most 4096 elements, the last layer here, go uncompressed. The learning rate was
chosen once per optimizer, uncompressed, with seed {tuning_seed}, training on four fifths of the training samples; all specs take it.

{rates}

Training loss at the end, mean of {seeds} seeds; "failed" counts seeds that end above {guessing:.2f}, where a model that guesses is:

{losses}

Test accuracy at the end, %, mean of {seeds} seeds:

{accuracies}

Beyond chance:

{statements}

## Warm-up

The demo's model and schedule ({demo}): SGD with momentum, {warmup_steps} steps. `warmup=K` of
`attach` sends the first K steps uncompressed. Accuracy, %, mean and standard deviation of {seeds} seeds; *in italics* where the warm-up is still
going on:

{warmups}

Points below `none` at the same step; ↓ fewer and ↑ more than the same spec without a warm-up, beyond chance:

{gaps}

## Environment

{environment}
"""


def page(optimizers: dict, warmup: dict, quick: bool) -> str:
    """Of the figures of both parts."""
    about = {**warmup["about"], **optimizers["about"]}
    environment = {**optimizers["environment"], "time it took": f"optimizers {optimizers['seconds']:.0f} s, warm-up "
                   f"{warmup['seconds']:.0f} s; not a measurement: others used the machine, too"}
    if warmup["environment"]["commit"] != environment["commit"]:
        environment["commit"] += f"; warm-up {warmup['environment']['commit']}"
    runs, warmups = Optimizers(optimizers), Warmups(warmup)
    comparisons = 2 * len(runs.names) * (len(runs.specs) - 1) + 2 * (len(warmups.cases) - 1) * len(warmups.looks)
    text = PAGE.format(
        **about, needed=T95[about["seeds"] - 1] / math.sqrt(about["seeds"]), quick="A quick run, not for publication." if quick else "", comparisons=comparisons, guessing=GUESSING,
        rates=runs.rate_table(), losses=runs.table_of("loss", loss_cell),
        accuracies=runs.table_of("accuracy", accuracy_cell), statements="\n".join(runs.statements()),
        warmups=warmups.main_table(), gaps=warmups.gap_table(),
        environment="\n".join(f"- {name}: {value}" for name, value in environment.items()))
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
