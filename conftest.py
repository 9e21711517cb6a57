# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What processes that share the files need: a folder of Open MPI's for each, because two of its launchers that make the same folder in
the same moment fail ("File exists"), and an order: what takes longest begins first, since the last file to begin decides when all is
over. `pytest --durations=50` tells what belongs here."""

import os
import shutil
import tempfile

LONG = [
    "python/tests/test_launchers.py", "tests/demo/test_demo.py", "python/tests/test_run.py", "tests/engines/test_mpi.py",
    "tests/demo/test_models.py", "python/tests/test_session.py", "tests/aggregation/test_aggregation_lab.py",
    "python/tests/test_failures.py", "python/tests/test_run_state.py", "python/tests/test_selftest.py", "lab/tests/test_lab_launcher.py",
    "tests/scripts/test_engines_bench.py", "python/tests/test_doctor.py", "tests/demo/test_networks.py",
    "tests/demo/test_aggregation_demo.py", "tests/scripts/test_late_workers.py", "tests/tools/test_bench_engine.py",
    "tests/scripts/test_bench.py", "tests/demo/test_gradient_laws.py", "lab/tests/test_lab_run.py", "tests/aggregation/test_soak.py",
    "python/tests/test_staging.py",
]


def pytest_collection_modifyitems(items):
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONG)))


def pytest_configure(config):
    config.laconic_openmpi = tempfile.mkdtemp(prefix="ompi-")  # short: names of sockets lie in it
    os.environ["OMPI_MCA_orte_tmpdir_base"] = config.laconic_openmpi


def pytest_unconfigure(config):
    shutil.rmtree(config.laconic_openmpi, ignore_errors=True)
