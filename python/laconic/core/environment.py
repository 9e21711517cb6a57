# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The LACONIC_* variables: which there are, what to say of one that is none of them, and how loud to speak; and those that launchers set."""

from __future__ import annotations

import difflib
import logging
import os
import sys
from typing import NamedTuple

log = logging.getLogger("laconic")

PREFIX = "LACONIC_"
DISABLED = "LACONIC_DISABLE=1"
KNOWN = {
    "LACONIC_SPEC": "the spec, if the call gives none",
    "LACONIC_DISABLE": "1, true, yes or on, on all ranks: attach changes nothing, training is plain DDP",
    "LACONIC_CONTROL": "a control, if the call gives none, such as dc2",
    "LACONIC_RECORD": "file for rank 0's record of a run, if the call names none",
    "LACONIC_RULES": "path of a TOML file with rules, if the call gives none",
    "LACONIC_AGGREGATOR": "HOST:PORT of the aggregation servers, if the call names none",
    "LACONIC_TOKEN_FILE": "path of their secret, if the call names none",
    "LACONIC_NODES": "auto, on, off or the ranks of a node, if the call says nothing",
    "LACONIC_LOG": "warn, info or debug: the lowest level that laconic logs (info)",
    "LACONIC_LIBRARY": "path of liblaconic.so",
    "LACONIC_MPI_LIB": "path of the plug-in for MPI, liblaconic_mpi_*.so, instead of the launcher's",
    "LACONIC_GLOO_LIB": "path of the plug-in for Gloo, liblaconic_gloo.so",
    "LACONIC_PORT": "port at which rank 0 listens where the engine is chosen, instead of the launcher's",
    "LACONIC_NCCL_LIB": "path of libnccl.so.2",
    "LACONIC_TRACE": "FILE: a Chrome trace of encoding, network and decoding, per rank",
    "LACONIC_RUN": "set by laconic.run: its options, for the processes that the script starts",
    "LACONIC_EMULATE_RATE": "bits per second to which `laconic lab --emulate` limits senders",
    "LACONIC_EMULATE_RATE_FILE": "the same, for changing rates",
    "LACONIC_LAB": "set by `laconic lab`: how the network is shaped",
    "LACONIC_LAB_CONTROL": "set by `laconic lab`: its control socket",
}


class Launcher(NamedTuple):
    """What a launcher sets: variables of a rank's number, the number of ranks, its number on its host, and the number of ranks there, if one
    tells."""

    name: str
    rank: str
    world: str
    local_rank: str = ""
    local_world: str = ""
    mpi: tuple[str, ...] = ()  #: under which MPI its programs run, the likeliest first
    also: str = ""  #: must be set, too


#: The first that fits counts. "torchrun" has imitators: Kubeflow's pods run it, Ray Train, accelerate and `laconic lab` set the same.
#: Slurm's variables are seen by everything that runs in a job of it, so its own rows come after other launchers'.
LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Launcher("mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
             ("openmpi",)),
    Launcher("mpirun of MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("mpich",), also="MPI_LOCALNRANKS"),
    Launcher("srun --mpi=pmi2", "PMI_RANK", "PMI_SIZE", "SLURM_LOCALID", mpi=("mpich", "openmpi"), also="SLURM_PROCID"),
    Launcher("another with PMI", "PMI_RANK", "PMI_SIZE", mpi=("mpich",)),
    Launcher("srun --mpi=pmix", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", mpi=("openmpi", "mpich"), also="PMIX_RANK"),
    Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


def launcher(*, of_mpi: bool = False) -> Launcher | None:
    """That started this process; None: none that is known. `of_mpi`: a launcher of MPI programs, whatever was set by another within."""
    return next((one for one in LAUNCHERS if number(one.world) is not None and (one.mpi or not of_mpi)
                 and (not one.also or os.environ.get(one.also))), None)


def number(variable: str) -> int | None:
    """The number in a variable of a launcher; None where there is none."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def ranks_here() -> int | None:
    """On this host, as its launcher has it; None where none tells."""
    return next((ranks for one in LAUNCHERS if (ranks := number(one.local_world))), None)


_LEVELS = {"debug": logging.DEBUG, "": logging.INFO, "info": logging.INFO, "warn": logging.WARNING, "warning": logging.WARNING}
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
_reported: set[str] = set()


def _word(name: str) -> str:
    return os.environ.get(name, "").strip().lower()


def disabled() -> bool:
    """The kill switch."""
    return _word("LACONIC_DISABLE") in _YES


def misread() -> list[str]:
    """A line for every value that is none of its variable's words, and what holds instead."""
    lines = []
    if _word("LACONIC_DISABLE") not in _YES + _NO:
        lines.append(f"LACONIC_DISABLE={os.environ['LACONIC_DISABLE']} does not disable laconic: {', '.join(_YES)} do, "
                     f"{', '.join(_NO[1:])} do not")
    if _word("LACONIC_LOG") not in _LEVELS:
        lines.append(f"LACONIC_LOG={os.environ['LACONIC_LOG']} is not a level, using info; levels: warn, info and debug")
    return lines


def say(text: str, level: int = logging.INFO) -> None:
    """One line: through logging if the program has set it up, else on stderr."""
    if level < _LEVELS.get(_word("LACONIC_LOG"), logging.INFO):
        return
    if log.hasHandlers():
        log.log(level, text)
    else:
        print(f"laconic: {text}", file=sys.stderr)


def report_unknown() -> None:
    """A line for every variable with our prefix that means nothing to us, and for every value, once in a process."""
    for line in misread():
        if line not in _reported:
            _reported.add(line)
            say(line, logging.WARNING)
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in KNOWN and name not in _reported:
            _reported.add(name)
            near = nearest(name)
            say(f"{name} is not a variable of laconic; " + (f"did you mean {near}?" if near else "variables: " + ", ".join(KNOWN)),
                logging.WARNING)


def nearest(name: str) -> str | None:
    """The variable that was perhaps meant. Their common beginning does not count."""
    near = difflib.get_close_matches(name.removeprefix(PREFIX), [known.removeprefix(PREFIX) for known in KNOWN], n=1)
    return PREFIX + near[0] if near else None


def place() -> str:
    """The same for processes on one machine and one network, different for those that a network separates."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return os.uname().nodename
