# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What qualities.py trained, as Markdown: every figure and verdict in it is computed."""

from __future__ import annotations

import math
import statistics

from learning_page import environment, laid_out
from learning_runs import failed, is_accuracy

from prose import bullets, listed, table
from results import REFERENCE, final_of

#: points that a codec may end below uncompressed training without an explanation
ALLOWED = 1.0
#: why a codec at its default is further away: by name, else by class, and by whether Adam trains
WHY = {
    "powersgd": "the gradients of embeddings and of recurrent weights have more directions than its rank",
    "randomk": "each step sends a hundredth of the elements, whichever they are: what is held back is old when it arrives, and the more so "
               "the shorter the run",
    "signsgd": "a sign has no size: small and large gradients move parameters equally far, and the rate that was found is one for all of them",
    "signum": "as `signsgd`, and its running mean follows late in a short run",
    "threshold": "its threshold is an absolute number, which fits neither every layer nor every phase of training",
    ("sparsification", False): "most of the gradient waits in the residual, and a short run ends before it has arrived "
                               "(a long one closes the gap: [learning.md](learning.md#a-long-run))",
    ("sparsification", True): "Adam divides by the size of what arrives, which residuals make uneven from step to step "
                              "([learning.md](learning.md#optimizers))",
    ("hybrid", False): "few values stand for many, and a short run ends before the residual has arrived",
    ("hybrid", True): "Adam divides by the size of what arrives, which residuals and few values make uneven "
                      "([learning.md](learning.md#optimizers))",
    ("quantization", True): "Adam divides by the size of what arrives: the noise of few levels, or one size for all signs, weighs more than "
                            "under SGD",
    ("quantization", False): "few levels make noise that a short run does not average out",
}

INTRO = """# Quality of every codec at its default

```
make quality
```

Written by bench/qualities.py. Four processes on one machine, Gloo; the demo's models, batches and optimizers (SGD with momentum for mlp and
cnn, Adam for lstm and gpt), in {steps} steps: shorter than the demo's runs. Nothing is timed. Final quality is the mean of a run's last
five evaluations: accuracy in % for mlp and cnn, perplexity a character for lstm and gpt, of which less is better. Mean ± standard deviation over
{seeds}, in brackets the mean difference to uncompressed training with the same seeds (plus is better). **Bold**: more than one point worse; why is
below. Codecs that vote (†) send no scale: their learning rate was found with a seed of its own, on held-out training samples.
"""


def shown(model: str, value: float) -> float:
    """Accuracy in points; perplexity of bits a character."""
    return 100 * value if is_accuracy(model) else 2.0**value


def better_by(model: str, value: float, plain: float) -> float:
    """In points, plus is better."""
    difference = shown(model, value) - shown(model, plain)
    return difference if is_accuracy(model) else -difference


class Found:
    """Final qualities by model and spec, of those seeds of which that run and the uncompressed one are there."""

    def __init__(self, found: list[tuple]):
        """found: (model, spec, cell or None, what was trained or None)"""
        self.missing = sum(run is None for *_, run in found)
        self.all = len(found)
        self.finals = {(model, spec, cell.seed): final_of(run["curve"]) for model, spec, cell, run in found if run}
        self.ratios: dict[str, list[float]] = {}
        for _, spec, _, run in found:
            if run and run["ratio"]:
                self.ratios.setdefault(spec, []).append(run["ratio"])

    def values(self, model: str, spec: str) -> list[float]:
        return [value for (m, s, seed), value in self.finals.items() if (m, s) == (model, spec) and (model, REFERENCE, seed) in self.finals]

    def gap(self, model: str, spec: str) -> float | None:
        """Mean points against uncompressed, plus is better; -inf where a run has failed."""
        pairs = [(value, self.finals[m, REFERENCE, seed]) for (m, s, seed), value in self.finals.items()
                 if (m, s) == (model, spec) and (m, REFERENCE, seed) in self.finals]
        if not pairs:
            return None
        if any(failed(model, value) for value, _ in pairs):
            return -math.inf
        return statistics.fmean(better_by(model, *pair) for pair in pairs)

    def cell(self, model: str, spec: str) -> str:
        values = self.values(model, spec)
        if not values:
            return "–"
        if any(failed(model, value) for value in values):
            return f"**failed, {sum(failed(model, value) for value in values)} of {len(values)}**"
        numbers = [shown(model, value) for value in values]
        digits = 1 if is_accuracy(model) else 2
        text = f"{statistics.fmean(numbers):.{digits}f}" + (f" ± {statistics.stdev(numbers):.{digits}f}" if len(numbers) > 1 else "")
        if spec == REFERENCE:
            return text
        gap = self.gap(model, spec)
        text += f" ({round(gap, digits) + 0.0:+.{digits}f})"
        return f"**{text}**" if gap < -ALLOWED else text


def why(name: str, entry: dict, model: str) -> str | None:
    return WHY.get(name) or WHY.get((entry["class"], not is_accuracy(model)))


def explanations(found: Found, names: dict[str, dict], steps: dict) -> str:
    lines: dict[tuple[str, str], list[str]] = {}
    for name, entry in names.items():
        for model in steps:
            gap = found.gap(model, name)
            if gap is not None and gap < -ALLOWED:
                text = why(name, entry, model) or "not explained yet"
                words = f"{model} ({'failed' if gap == -math.inf else f'{gap:+.1f}'})"
                lines.setdefault((name, text), []).append(words)
    if not lines:
        return "No codec ends more than a point below uncompressed training.\n"
    return bullets(f"`{name}` with {listed(models)}: {text}." for (name, text), models in lines.items()) + "\n"


def rates(tried: list[tuple], found: list[tuple]) -> str:
    """What was tried for codecs that vote, and which rate was taken."""
    taken = {(model, spec): cell.rate for model, spec, cell, _ in found if cell is not None and cell.rate}
    rows: dict[tuple[str, str], list[str]] = {}
    edges = []
    for cell, run in tried:
        value = "–" if run is None else f"{shown(cell.model, final_of(run['curve'])):.1f}"
        rows.setdefault((cell.spec, cell.model), []).append(f"{cell.rate:g}: {value}")
    if not rows:
        return ""
    for (spec, model), words in rows.items():
        rate = taken.get((model, spec))
        tries = [cell.rate for cell, _ in tried if (cell.spec, cell.model) == (spec, model)]
        if rate in (min(tries), max(tries)):
            edges.append(f"`{spec}` with {model}")
    body = table(["codec", "model", "rates tried: accuracy in %, or perplexity, of held-out samples", "taken"],
                 [[f"`{spec}`", model, ", ".join(words), f"{taken[model, spec]:g}" if (model, spec) in taken else "–"]
                  for (spec, model), words in rows.items()], left=3)
    note = f"At an edge of what was tried, so that another rate may be better: {listed(edges)}.\n\n" if edges else ""
    return f"## Learning rates of codecs that vote\n\n{note}{body}\n"


def page(names: dict[str, dict], found: list[tuple], tried: list[tuple], seeds: list[int], steps: dict[str, int]) -> str:
    """names: name → its entry of laconic.codecs(); found: (model, spec, cell, run); tried: (cell, run) of tuning."""
    results = Found(found)
    rows = [["uncompressed", "", "1", *(results.cell(model, REFERENCE) for model in steps)]]
    for name, entry in names.items():
        ratios = results.ratios.get(name)
        sent = f"{min(ratios):.0f} to {max(ratios):.0f}" if ratios else "–"
        mark = " †" if entry["contract"]["merge"] == "vote" else ""
        rows.append([f"`{name}`{mark}", entry["class"], sent, *(results.cell(model, name) for model in steps)])
    head = ["codec", "class", "× fewer bytes", *(f"{model}, {'%' if is_accuracy(model) else 'perplexity'}" for model in steps)]
    intro = INTRO.format(steps=listed(f"{count} ({model})" for model, count in steps.items()), seeds=f"{len(seeds)} seeds")
    by_question = {"quality": [(cell, run) for _, _, cell, run in found if cell is not None], "tuning": tried}
    parts = [intro, table(head, rows, left=2), "## Why not nearer\n\n" + explanations(results, names, steps), rates(tried, found),
             f"## Environment\n\n{environment(by_question)}\n"]
    lacking = results.missing + sum(run is None for _, run in tried)
    if lacking:
        parts.append(f"Runs that are missing: {lacking} of {results.all + len(tried)}.")
    return laid_out("\n\n".join(filter(None, parts)))
