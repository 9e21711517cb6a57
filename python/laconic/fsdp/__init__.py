# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""FSDP2, HSDP and replicate(): compressed exchange between the replicas of a sharded model."""
