# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What learning.py trained, as Markdown with charts: every statement in it is computed from the figures."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

from convergence_page import T95
from learning_long import Long
from learning_norms import Norms
from learning_optimizers import Optimizers
from learning_runs import Runs, unique
from learning_warmup import Warmups

from prose import bullets, wrapped


def laid_out(text: str) -> str:
    """With paragraphs in lines of equal length; tables, lists, headings, code and pictures stay."""
    blocks = [block if re.match(r"[|#!]|- |```", block) else wrapped(block) for block in re.split(r"\n{2,}", text.strip())]
    return "\n\n".join(blocks) + "\n"


INTRO = """# Learning: a long run, warm-up, optimizers, residuals

```
bench/learning.py
```

Written by bench/learning.py. Four processes on one machine, Gloo, the demo's models, batches and schedules; nothing is timed.
*fp32* is PyTorch's DistributedDataParallel without a hook. *Final* is the mean of a run's last five evaluations: accuracy (mlp,
cnn), or bits a character (lstm, gpt), of which fewer are better.

Differences are taken seed by seed, between runs with the same start and the same batches, and are called beyond chance by the
rule of [convergence.md](convergence.md): Student's t beyond its 95 %, bits in logarithms, accuracies with at least half a test
sample of spread. A seed that ends no better than guessing has failed, and that is beyond chance. **Bold** is worse than fp32
beyond chance, a star better; everything else may be real or not: with three seeds a difference has to be {three:.1f} times its own
spread over the seeds to be beyond chance, with two {two:.0f} times, and one seed tells nothing about chance. Of as many comparisons
as here a few are marked by chance.

A section shows the seeds of which all its runs are there, and is left out where there is none.
"""


def sections(found: dict[str, list[tuple]]) -> list:
    runs = {question: Runs(cells) for question, cells in found.items()}
    compared = {(cell.model, cell.spec) for cell, _ in found["long"]}
    short = Runs([(cell, run) for cell, run in found["seeds"] if (cell.model, cell.spec) in compared])
    makers = {"long": lambda: Long(runs["long"], short), "warmup": lambda: Warmups(runs["warmup"]),
              "optimizers": lambda: Optimizers(runs["optimizers"], found["tuning"]), "norms": lambda: Norms(runs["norms"])}
    return [make() for question, make in makers.items() if runs[question].seeds]


def missing(found: dict[str, list[tuple]]) -> str:
    """In words; nothing of nothing."""
    counts = {question: sum(run is None for _, run in cells) for question, cells in found.items()}
    words = (f"{n} of {len(found[question])} ({question})" for question, n in counts.items() if n)
    return f"Runs that are missing: {', '.join(words)}." if any(counts.values()) else ""


def environment(found: dict[str, list[tuple]]) -> str:
    """Of everything that was trained."""
    counts, dates = Counter(), {}
    for run in (run for cells in found.values() for _, run in cells if run):
        words = place_of(run)
        counts[words] += 1
        dates.setdefault(words, set()).add(run["environment"]["date"])
    lines = [f"{n} runs, {' to '.join(unique([min(dates[words]), max(dates[words])]))}: {words}"
             for words, n in counts.most_common()]
    return bullets([*lines, *filter(None, [mixed(found)])])


def place_of(run: dict) -> str:
    return ", ".join(value if key == "CPU" else f"{key} {value}" for key, value in run["environment"].items() if key != "date")


def mixed(found: dict[str, list[tuple]]) -> str:
    """Comparisons between runs that were not trained in the same place."""
    places: dict = {}
    for question, cells in found.items():
        for cell, run in cells:
            if run and question != "seeds":
                places.setdefault(f"{question}, {cell.model}, seed {cell.seed}", set()).add(place_of(run))
    names = [about for about, where in places.items() if len(where) > 1]
    return (f"Runs that are compared but come from different places, so that they round differently, and with lstm and gpt may "
            f"read another text: {'; '.join(names)}.") if names else ""


def page(found: dict[str, list[tuple]], parts: list) -> str:
    """found: by question, (cell, what was trained or None)."""
    intro = INTRO.format(three=T95[2] / math.sqrt(3), two=T95[1] / math.sqrt(2))
    text = [intro, *(part.text() for part in parts), f"## Environment\n\n{environment(found)}\n", missing(found)]
    return laid_out("\n".join(filter(None, text)))


def write_page(found: dict[str, list[tuple]], folder: Path) -> None:
    """learning.md with its pictures; older pictures of what is not on the page go."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = sections(found)
    pictures = {f"learning-{key}.svg": chart for part in parts for key, chart in part.charts().items()}
    for old in folder.glob("learning-*.svg"):
        if old.name not in pictures:
            old.unlink()
    for file, chart in pictures.items():
        (folder / file).write_text(chart + "\n", encoding="utf-8")
    (folder / "learning.md").write_text(page(found, parts), encoding="utf-8")
