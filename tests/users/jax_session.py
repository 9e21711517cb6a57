# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""examples/jax_train.py, in one process and by mpirun on two ranks. Needs jax, scikit-learn and Open MPI; jax is not among the
pinned packages."""

from _launch import run_test

NEEDS = ["jax", "scikit-learn"]

if __name__ == "__main__":
    run_test("test_session.py::test_examples_reach_accuracy_of_one_process[jax_train-jax]")
