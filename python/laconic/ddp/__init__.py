# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel: laconic.attach, its handle and its hook."""
