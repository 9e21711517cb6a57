# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""For tests that launch ranks over a real library: how, or a skip that says what is missing."""

import os
import shutil
import tempfile

import pytest

OPENMPI, MPICH, GLOO = "openmpi", "mpich", "gloo"
LAUNCHERS = {OPENMPI: ["mpirun.openmpi", "--oversubscribe"], MPICH: ["mpirun.mpich"]}
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Two processes of Open MPI that make the same folder at the same time fail ("File exists"). In front of a program, this gives each
# rank its own folder, where another library's launcher starts it. The name is short: sockets' paths contain it.
APART = ["sh", "-c", 'export OMPI_MCA_orte_tmpdir_base=$(mktemp -d "$OMPI_MCA_orte_tmpdir_base/XXXXXX"); exec "$@"', "sh"]
PACKAGES = {OPENMPI: "libopenmpi-dev openmpi-bin", MPICH: "libmpich-dev mpich", GLOO: "libgloo-dev"}


def environment():
    """For one of several launches at a time: Open MPI gets its own folder, below the one that conftest.py removes."""
    return {**ENVIRONMENT, "OMPI_MCA_orte_tmpdir_base": tempfile.mkdtemp(prefix="", dir=os.environ["OMPI_MCA_orte_tmpdir_base"])}


def need_library(library, built):
    """Its launcher, if it has one, and a file of the build that is made where the library is."""
    if not built.exists() or (library in LAUNCHERS and not shutil.which(LAUNCHERS[library][0])):
        pytest.skip(f"{library} is not here: apt install {PACKAGES[library]}, then build {built.name}")
