# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_session.py do: `python session_ranks.py FUNCTION OUT [KEY=VALUE…]` under mpirun, or with
`engine=gloo rank= world= rendezvous=`. Every rank writes what the function gives to OUT.RANK."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import pickle
import random
import signal
import sys
from array import array
from pathlib import Path

import laconic
from laconic import LaconicError
from laconic.core import environment
from laconic.exchange import changes

MODEL = [("w1", (100, 64)), ("b1", 100), ("w2", (70, 100)), ("b2", (70,)), ("w3", (33, 5, 71)), ("none", (0,)), ("one", ())]
ELEMENTS = sum(math.prod(shape if isinstance(shape, tuple) else (shape,)) for _, shape in MODEL)
#: spec and strategy whose bits every engine gives
EXACT = [("3lc", "gather_all"), ("3lc", "two_shot"), ("topk:ratio=0.05", "gather_all"), ("int8", "two_shot")]


def gradient(rank, step):
    draw = random.Random(1000 * step + rank)
    return array("f", [draw.gauss(0, 0.1) for _ in range(ELEMENTS)])


def digest(values):
    return hashlib.sha256(bytes(values)).hexdigest()


def said(what):
    """What `what()` raises: its name and text."""
    try:
        what()
    except LaconicError as error:
        return [error.name, str(error)]
    return ["ok", ""]


class Ranks:
    """Makes sessions on the engine that the command line has named."""

    def __init__(self, engine="mpi", **place):
        self.place = {"engine": engine, **{k: int(v) if k in ("rank", "world") else v for k, v in place.items()}}
        self.made = 0
        self.at_end = lambda: None

    def session(self, spec="3lc", model=MODEL, **options):
        place = dict(self.place)
        if "rendezvous" in place:  # a folder for each session
            place["rendezvous"] += f"/{self.made}"
            with contextlib.suppress(FileExistsError):
                os.makedirs(place["rendezvous"].removeprefix("file:"))
        self.made += 1
        return laconic.Session(spec, model, **{"timeout": 60, "small_elements": 100, **place, **options})


def trained(session, steps, begin=0):
    """The digest of every step's mean."""
    digests = []
    for step in range(begin, begin + steps):
        g = gradient(session.rank, step)
        session.average(step, g)
        digests.append(digest(g))
    return digests


def exact(make, windows=(1, 2, 3)):
    """Of every exact spec, window by window: digests. Part 12000: several parts, one of a parameter that is longer."""
    found = {}
    for spec, strategy in EXACT:
        for window in windows:
            with make(spec, strategy=strategy, window=window, part=12000) as session:
                found[f"{spec} {strategy} {window}"] = trained(session, 3)
                assert session.stats()["parts"] == 3 * 6, session.stats()
    return found


# ---- under a launcher -----------------------------------------------------------------------------------------------------------


def means(ranks):
    before = sorted(name for name in ("torch", "numpy") if name in sys.modules)
    result = {"exact": exact(ranks.session), "away": 0.0, "modules": before}
    for strategy in ("native_sum", "auto"):
        with ranks.session("none", strategy=strategy) as session:
            result["place"] = [session.rank, session.world]
            result["library"] = session.explain()["library"]
            for step in range(2):
                g = gradient(session.rank, step)
                session.average(step, g)
                every = [gradient(rank, step) for rank in range(session.world)]
                away = max(abs(mean - sum(x) / session.world) for mean, *x in zip(g, *every))
                result["away"] = max(result["away"], away)
    result["modules_after"] = sorted(name for name in ("torch", "numpy") if name in sys.modules)
    return result


def arrays(ranks):
    """Rank 1 gives what cannot be averaged; then all go on."""
    import numpy

    class Interface:
        def __init__(self, x, **changed):
            self.__array_interface__ = {**x.__array_interface__, **changed}
            self.x = x

    good = numpy.zeros(ELEMENTS, numpy.float32)
    readonly = good.copy()
    readonly.flags.writeable = False
    bad = {
        "float64": good.astype(numpy.float64), "swapped": good.astype(">f4"), "int32": good.astype(numpy.int32),
        "read-only": readonly, "apart": numpy.zeros(2 * ELEMENTS, numpy.float32)[::2], "short": good[:-1], "long": bytearray(4),
        "list": [0.0] * ELEMENTS, "bytes": bytes(4 * ELEMENTS), "none": None,
        "interface, read-only": Interface(readonly), "interface, type": Interface(good.astype(numpy.float64)),
        "interface, apart": Interface(numpy.zeros(2 * ELEMENTS, numpy.float32)[::2]),
    }
    heard = {}
    with ranks.session(part=12000) as session:
        for step, (name, value) in enumerate(bad.items()):
            g = value if session.rank == 1 else numpy.frombuffer(gradient(session.rank, step), numpy.float32).copy()
            heard[name] = said(lambda g=g, step=step: session.average(step, g))
        heard["step"] = said(lambda: session.average("three" if session.rank == 1 else 20, good.copy()))
        plain = gradient(session.rank, 30)
        flat, matrix, interface = (numpy.frombuffer(plain, numpy.float32).copy() for _ in range(3))
        before = session.state_dict()
        found = []
        for g in (plain, flat, matrix.reshape(1, -1), Interface(interface)):
            session.load_state_dict(before)
            session.average(30, g)
            found.append(digest(getattr(g, "x", g)))
        return {"heard": heard, "found": found, "failures": session.stats()["failures"]}


def resume(ranks):
    result = {}
    for spec in ("3lc", "topk:ratio=0.05", "powersgd:rank=2"):
        with ranks.session(spec) as session:
            trained(session, 3)
            session.flush(4)
            trained(session, 1, begin=3)
            state = pickle.loads(pickle.dumps(session.state_dict()))
            through = trained(session, 4, begin=4)
        with ranks.session(spec) as session:
            trained(session, 1, begin=90)
            session.load_state_dict(state)
            same = session.state_dict() == state
            result[spec] = [through, trained(session, 4, begin=4), same, state["entries"] != {}]
    return result


def refused(ranks):
    """What load_state_dict says to states that are not this session's; none of them changes anything."""
    with ranks.session("topk:ratio=0.05", strategy="gather_all") as session:
        trained(session, 2)
        state = session.state_dict()
        header, entries = state["header"], state["entries"]
        name = [name for name in entries if name.startswith("residual/")][-1]
        trained(session, 1, begin=2)  # so that a state that is copied in part is seen
        now = session.state_dict()
        nan = array("f", [math.nan]).tobytes() + entries[name][4:]
        others = {
            "rank": {**state, "header": {**header, "rank": 1 - session.rank}},
            "world": {**state, "header": {**header, "world": 3}},
            "spec": {**state, "header": {**header, "spec": "int8"}},
            "model": {**state, "header": {**header, "model_hash": 1}},
            "version": {**state, "version": 7},
            "part": {**state, "part": 5},
            "lacking": {**state, "entries": {k: v for k, v in entries.items() if k != name}},
            "short": {**state, "entries": {**entries, name: entries[name][:-4]}},
            "odd": {**state, "entries": {**entries, name: entries[name][:-1]}},
            "text": {**state, "entries": {**entries, name: "no"}},
            "nan": {**state, "entries": {**entries, name: nan}},
            "list": [],
        }
        heard = {key: said(lambda other=other: session.load_state_dict(other))[0] for key, other in others.items()}
        return {"heard": heard, "unchanged": session.state_dict() == now != state}


def disagree(ranks):
    """What every rank hears when rank 1 makes another call; the last one is good."""
    result = {}
    with ranks.session() as session:
        me = session.rank
    for name, own in {"spec": {"spec": "int8"}, "unknown spec": {"spec": "tokp"}, "window": {"window": 3},
                      "wrong window": {"window": 9}, "model": {"model": MODEL[:-1]}, "no model": {"model": 5},
                      "shape": {"model": [("a", "b")]},
                      "world": {"rank": me, "world": 7} if ranks.place["engine"] == "mpi" else {"seed": -1}}.items():
        result[name] = said(lambda own=own: ranks.session(**(own if me == 1 else {})))
    with ranks.session() as session:
        result["good"] = trained(session, 1)
    return result


def lives(ranks):
    """Two at once, one after another, and what is left of one that was closed."""
    first, second = ranks.session("3lc"), ranks.session("topk:ratio=0.05")
    digests = [trained(first, 1), trained(second, 1), trained(first, 1, begin=1)]
    first.close()
    first.close()
    digests.append(trained(second, 1, begin=1))
    left = second.flush(2)
    again = second.flush(3)
    norms = []
    for step in range(2, 2 + again):
        second.average(step, array("f", [1e-3]) * ELEMENTS)  # of a gradient that is zero nothing goes out
        norms.append(second.stats()["residual_norm"])
    return {"digests": digests, "left": [left, again], "norms": norms,
            "stats": first.stats()["steps"], "spec": first.explain()["spec"],
            "closed": [said(lambda: first.average(2, array("f", bytes(4 * ELEMENTS))))[1], said(first.state_dict)[0]]}


def undone(ranks, error="engine"):
    """The engine fails where three parts are in flight: everything lies in the residuals."""
    session = ranks.session("topk:ratio=0.05", small_elements=0, window=3, part=12000)
    start, calls = session._engine.start, []

    def start_or_fail(steps, count):
        calls.append(count)
        if len(calls) == 3:
            raise KeyboardInterrupt if error == "interrupt" else OSError("the cable is out")
        return start(steps, count)

    session._engine.start = start_or_fail
    g = gradient(session.rank, 0)
    try:
        heard = said(lambda: session.average(0, g))
    except KeyboardInterrupt:
        heard = ["KeyboardInterrupt", ""]
    again = said(lambda: session.average(1, array("f", bytes(4 * ELEMENTS))))
    residuals = b"".join(data for name, data in session.state_dict()["entries"].items() if name.startswith("residual/"))
    session.close()
    return {"heard": heard, "again": again, "kept": residuals == bytes(gradient(session.rank, 0)), "calls": len(calls)}


def traced(ranks):
    with ranks.session(part=12000) as session:
        trained(session, 1)


def told(ranks):
    """The lines of a law's changes: of every one, and where the next look is later than the end."""
    found, kept = {}, (environment.say, changes.APART)
    for name, apart in (("each", 0.0), ("last", 1000.0)):
        said = found[name] = []
        environment.say, changes.APART = lambda line, level=0, said=said: said.append(line), apart
        try:
            with ranks.session("topk:ratio=0.1", control="schedule:0=0.1,3=0.5,6=0.02") as session:
                trained(session, 9)
        finally:
            environment.say, changes.APART = kept
    found["modules"] = sorted(name for name in ("torch", "numpy") if name in sys.modules)
    return found


def stopped(ranks, pids):
    """Rank 1 stops; rank 0 ends it when it has told of it."""
    session = ranks.session(timeout=15, strategy="gather_all")
    trained(session, 1)
    if session.rank == 1:
        Path(pids).write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    heard = said(lambda: session.average(1, gradient(session.rank, 1)))
    again = said(lambda: session.average(2, gradient(session.rank, 2)))
    residuals = b"".join(data for name, data in session.state_dict()["entries"].items() if name.startswith("residual/"))
    session.close()
    ranks.at_end = lambda: os.kill(int(Path(pids).read_text()), signal.SIGKILL)
    return {"heard": heard, "again": again, "kept": digest(residuals)}


def opened(ranks):
    return {"said": said(ranks.session)}


def leaves(ranks, how="raise"):
    """Rank 1 goes before the first step; nobody else would wait for less than the timeout."""
    session = ranks.session(timeout=300)
    if session.rank == 1 and how == "raise":
        raise ValueError("of rank 1")
    with session:
        if session.rank == 1:
            sys.exit(3)
        trained(session, 1)


def main():
    function, out, *rest = sys.argv[1:]
    options = dict(part.split("=", 1) for part in rest)
    ranks = Ranks(**{key: options.pop(key) for key in ("engine", "rank", "world", "rendezvous") if key in options})
    number = ranks.place.get("rank", os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
    result = globals()[function](ranks, **options)
    Path(f"{out}.part{number}").write_text(json.dumps(result), encoding="utf-8")
    os.rename(f"{out}.part{number}", f"{out}.{number}")
    ranks.at_end()


if __name__ == "__main__":
    main()
