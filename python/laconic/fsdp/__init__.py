# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""FSDP2, HSDP and replicate(): what travels between replicas of a sharded model is compressed, shard by shard."""
