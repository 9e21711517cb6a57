# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Engines: torch.distributed, plug-ins and aggregation servers; process groups, and their failures."""
