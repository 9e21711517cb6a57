# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Shared by benchmarks and the demo: models, training, a lab to run in, tables, charts."""
