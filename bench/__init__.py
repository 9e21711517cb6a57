# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Benchmarks: `python -m bench.ROOM.PROGRAM`, from the root of a checkout."""
