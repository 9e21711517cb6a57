# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The aggregation server: its speed, and training through it."""
