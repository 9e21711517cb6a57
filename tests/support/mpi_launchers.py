# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""For tests that launch ranks with a real mpirun: how, or a skip that says what is missing."""

import os
import shutil

import pytest

OPENMPI, MPICH = "openmpi", "mpich"
LAUNCHERS = {OPENMPI: ["mpirun.openmpi", "--oversubscribe"], MPICH: ["mpirun.mpich"]}
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_PACKAGES = {OPENMPI: "libopenmpi-dev openmpi-bin", MPICH: "libmpich-dev mpich"}


def need_mpi(library, built):
    """The launcher, and a file of the build that is made where the library is."""
    if not shutil.which(LAUNCHERS[library][0]) or not built.exists():
        pytest.skip(f"{library} is not here: apt install {_PACKAGES[library]}, then build {built.name}")
