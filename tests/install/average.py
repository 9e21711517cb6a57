# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One of two ranks that average NumPy arrays in an environment that has laconic from its wheel.

usage: average.py PLUG-IN KEY=VALUE...     arguments of laconic.Session; the wheel's PLUG-IN has to be what carries them
"""

import sys
from pathlib import Path

import laconic
import numpy

file, *words = sys.argv[1:]
maps = Path("/proc/self/maps")
for name in ("libmpi.so", "libmpich.so", "libgloo.so"):
    assert name not in maps.read_text(), f"importing laconic has opened {name}"

options = {key: int(value) if key in ("rank", "world") else value for key, value in (word.split("=", 1) for word in words)}
own = [numpy.random.default_rng(rank).integers(-1000, 1000, 5000).astype("float32") for rank in range(2)]
with laconic.Session("none", [("w", (40, 100)), ("b", 1000)], timeout=60, **options) as session:
    assert session.world == 2, f"the world has {session.world} ranks"
    gradient = own[session.rank].copy()
    session.average(0, gradient)
    assert numpy.array_equal(gradient, (own[0] + own[1]) / 2), "the mean is wrong"
    opened = {line.split()[-1] for line in maps.read_text().splitlines() if line.endswith(f"/{file}")}
    assert opened == {str(Path(laconic.__file__).resolve().parent / "lib" / file)}, opened
    if session.rank == 0:
        print(f"Python: a mean over two ranks by {file} of the wheel")
