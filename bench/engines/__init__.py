# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Exchanges by engine: over libraries, torch.distributed, accelerators and with ShardedOptimizer."""
