# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel: its hook, and the handle of any model."""
