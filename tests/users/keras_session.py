# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""examples/keras_train.py, in one process and by mpirun on two ranks. Needs keras, tensorflow, scikit-learn and Open MPI; the
first two are not among the pinned packages."""

from _launch import run_test

NEEDS = ["keras", "scikit-learn"]

if __name__ == "__main__":
    run_test("test_session.py::test_examples_reach_accuracy_of_one_process[keras_train-tensorflow]")
