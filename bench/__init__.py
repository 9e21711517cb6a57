# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Benchmarks: `python -m bench.FOLDER.PROGRAM`, from the root of a checkout."""
